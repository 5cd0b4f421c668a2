//! What gRPC's own library, which speaks xDS without a proxy, can follow of rules, and what it can't: the one place where
//! that is decided, for those who configure it and for those who explain. (gRFC A28, A31, A33, A42, A44.)
//!
//! A call is a POST of HTTP/2 to `/SERVICE/METHOD`, without a query. A library looks at its path and at the headers that
//! the application gives it, and at nothing else. Where it can't tell whether a rule is for a call, the call fails: it never
//! falls to a rule behind that one, which is for others.

use super::policy::{Algorithm, ClientTls, HashKey, HashTable, PolicyGroups, PoolLimits};
use super::route::{HttpRule, PathMatch, RareConditions, RequestMatch, TextMatch};
use strait_model::GrpcLibrary;
use strait_model::mesh_config::RetryRule;

/// The method of every call.
const METHOD: &str = "POST";
/// Headers that a transport adds or takes away, behind the library's back; one of them C core looks at, and grpc-go doesn't.
const UNSEEN_HEADERS: [&str; 7] = [
    "connection",
    "content-length",
    "content-type",
    "host",
    "te",
    "transfer-encoding",
    "user-agent",
];
/// The conditions of `retryOn` that are codes of gRPC, which a library tries again on (gRFC A44).
const RETRIED_CODES: [&str; 5] =
    ["cancelled", "deadline-exceeded", "internal", "resource-exhausted", "unavailable"];
/// Those that a library sees to by itself: a call that no server has begun is sent again anyway.
const RETRIED_ANYWAY: [&str; 3] = ["connect-failure", "refused-stream", "reset-before-request"];
/// A header that must not have some value takes two routes: one without it, one with another value. So many such headers
/// are followed.
const OTHER_VALUES_MAX: usize = 3;

/// What a library makes of a match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallMatch {
    /// No call fits it, whoever routes that.
    Never,
    /// It can tell which calls fit.
    Told,
    /// It can't, for that reason; calls that fit the rest of the match fail.
    Untold(String),
}

/// Which calls fit a match.
pub fn of_match(one: &RequestMatch) -> CallMatch {
    let method = one.method.as_ref().map(|method| method.fits(METHOD));
    if method == Some(Some(false)) || !one.query.is_empty() {
        return CallMatch::Never;
    }
    let unseen = || one.headers.iter().chain(&one.without_headers).find(|one| !is_seen(one));
    let what = if method == Some(None) {
        "its expression of the method can't be tried".to_owned()
    } else if one.authority.is_some() {
        "the host of a call is not looked at".to_owned()
    } else if one.scheme.is_some() {
        "the scheme of a call is not looked at".to_owned()
    } else if one.path.as_ref().is_some_and(|path| !is_seen_path(path)) {
        "its expression of the path is none that all libraries know".to_owned()
    } else if let Some((name, _)) = unseen() {
        format!(
            "the header {name} is not looked at, or its expression is none that all libraries know"
        )
    } else if other_values(one) > OTHER_VALUES_MAX {
        format!("more than {OTHER_VALUES_MAX} headers must not have some value")
    } else {
        return CallMatch::Told;
    };
    CallMatch::Untold(what)
}

/// What a library can look at of a match: every call that fits the whole fits this.
pub fn seen_of(one: &RequestMatch) -> RequestMatch {
    let without: &[_] =
        if other_values(one) > OTHER_VALUES_MAX { &[] } else { &one.without_headers };
    let more = RareConditions {
        method: None,
        authority: None,
        scheme: None,
        without_headers: without.iter().filter(|one| is_seen(one)).cloned().collect(),
        ..RareConditions::clone(one)
    };
    RequestMatch {
        path: one.path.clone().filter(is_seen_path),
        headers: one.headers.iter().filter(|one| is_seen(one)).cloned().collect(),
        more: more.into(),
        ..one.clone()
    }
}

/// Why calls that fit a rule fail, whatever else it says: in the place of what a library doesn't do nothing less will do.
pub fn obstacle(rule: &HttpRule) -> Option<&'static str> {
    let rewrites = rule.rewrite.as_ref().is_some_and(|rewrite| rewrite.path.is_some());
    if rule.redirect.is_some() {
        Some("calls are not redirected")
    } else if rule.response.is_some() {
        Some("calls are not answered by the library itself")
    } else if rewrites {
        Some("paths are not rewritten")
    } else {
        None
    }
}

/// What a rule says besides and a library passes over.
pub fn passed_over(rule: &HttpRule) -> Vec<String> {
    let mut all = Vec::new();
    let mut note = |is_said: bool, what: &str| {
        if is_said {
            all.push(what.to_owned());
        }
    };
    let changes = rule.destinations.iter().filter_map(|to| to.headers.as_ref());
    note(rule.headers.iter().chain(changes).next().is_some(), "headers are not changed");
    let rewrite = rule.rewrite.as_ref();
    note(rewrite.is_some_and(|one| one.authority.is_some()), "the host is not rewritten");
    note(rule.mirrors.iter().flatten().next().is_some(), "no copies are sent");
    note(rule.cors.is_some(), "corsPolicy is for browsers");
    if let Some(retries) = &rule.retries {
        note(retries.per_try_timeout.is_some(), "a single try has no timeout");
        note(retries.other_localities, "retries go to any locality");
        let unknown: Vec<_> = conditions(retries).filter(|word| !is_known(word)).collect();
        let statuses = retries.statuses.iter().map(ToString::to_string);
        let unknown: Vec<_> = unknown.into_iter().map(str::to_owned).chain(statuses).collect();
        if retries.attempts > 0 && !unknown.is_empty() {
            all.push(format!("nothing is tried again on {}", unknown.join(", ")));
        }
    }
    all
}

/// Of the conditions of a retry policy those that a library tries again on, in the same form; empty for none.
pub fn retried_on(conditions: &str) -> String {
    let words = conditions.split(',').map(str::trim);
    words.filter(|word| RETRIED_CODES.contains(word)).collect::<Vec<_>>().join(",")
}

/// What settings of a DestinationRule say that a library passes over, or does in its own way.
pub fn policy_passed_over(groups: &PolicyGroups, library: GrpcLibrary) -> Vec<&'static str> {
    let mut all = Vec::new();
    if let Some(pool) = groups.connection_pool.as_deref() {
        let none = PoolLimits { max_requests: pool.max_requests, ..PoolLimits::default() };
        if *pool != none {
            all.push("of connectionPool http2MaxRequests counts alone");
        }
    }
    if let Some(balancing) = groups.load_balancer.as_deref() {
        all.extend(match &balancing.algorithm {
            Algorithm::RoundRobin => None,
            Algorithm::LeastRequest => (!library.least_request)
                .then_some("endpoints are chosen in turn: it counts no open requests"),
            Algorithm::Random => Some("endpoints are chosen in turn, not at random"),
            Algorithm::Passthrough => {
                Some("endpoints are chosen in turn, not where the client was going")
            }
            Algorithm::ConsistentHash(hash) if !is_hashed(&hash.key) => Some(
                "endpoints are chosen in turn: it hashes headers alone that the application gives it",
            ),
            Algorithm::ConsistentHash(hash) => matches!(hash.table, HashTable::Maglev(_))
                .then_some("a ring stands in for the table of Maglev"),
        });
        if balancing.warmup.is_some() {
            all.push("new endpoints have their whole share at once");
        }
    }
    if let Some(outliers) = groups.outlier_detection.as_deref()
        && (outliers.split_local_origin
            || outliers.min_health_percent != 0
            || !outliers.error_statuses.is_empty())
    {
        all.push("of outlierDetection errors, interval, ejection time and share count alone");
    }
    if matches!(groups.tls.as_deref(), Some(ClientTls::Foreign(_) | ClientTls::Impossible)) {
        all.push("it can't speak such TLS: its calls fail");
    }
    if groups.proxy_protocol.is_some() || groups.tunnel.is_some() || groups.retry_budget.is_some() {
        all.push("proxyProtocol, tunnel and retryBudget have no effect");
    }
    all
}

/// Whether a library can choose an endpoint by such a key.
pub fn is_hashed(key: &HashKey) -> bool {
    hashed(key).is_some()
}

/// The key by which a library chooses an endpoint, in the form that all libraries find; `None` where it can't.
pub fn hashed(key: &HashKey) -> Option<HashKey> {
    let HashKey::Header(name) = key else { return None };
    let name = name.to_ascii_lowercase();
    is_seen_header(&name).then_some(HashKey::Header(name))
}

fn conditions(retries: &RetryRule) -> impl Iterator<Item = &str> {
    retries.on.split(',').map(str::trim).filter(|word| !word.is_empty())
}

fn is_known(word: &str) -> bool {
    // What it says is which statuses, of which each is told.
    RETRIED_CODES.contains(&word)
        || RETRIED_ANYWAY.contains(&word)
        || word == "retriable-status-codes"
}

/// How many headers must not have some value, and may be there.
fn other_values(one: &RequestMatch) -> usize {
    one.without_headers.iter().filter(|(_, text)| *text != TextMatch::Present).count()
}

fn is_seen((name, text): &(std::sync::Arc<str>, TextMatch)) -> bool {
    let is_known = match text {
        TextMatch::Regex(expression) => is_common(expression) && text.fits("").is_some(),
        TextMatch::Exact(_) | TextMatch::Prefix(_) | TextMatch::Present => true,
    };
    is_seen_header(name) && is_known
}

/// Whether a library looks at a header, which is in lower case: not at its own, nor at binary ones.
fn is_seen_header(name: &str) -> bool {
    !name.starts_with(':')
        && !name.starts_with("grpc-")
        && !name.ends_with("-bin")
        && !UNSEEN_HEADERS.contains(&name)
}

fn is_seen_path(path: &PathMatch) -> bool {
    match path {
        PathMatch::Regex(expression) => is_common(expression),
        PathMatch::Exact(_) | PathMatch::Prefix(_) | PathMatch::Segments(_) => true,
    }
}

/// Whether an expression of RE2 is one of Go's as well, which would refuse all routes for one that isn't.
fn is_common(expression: &str) -> bool {
    let mut rest = expression.chars();
    while let Some(c) = rest.next() {
        // A byte, of which Go knows none.
        if c == '\\' && rest.next() == Some('C') {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::traffic::route::{
        Destination, HeaderChanges, RareAtDestination, RareTerms, RedirectRule, Rewrite, RuleTerms,
    };
    use strait_model::mesh_config::RareRetrySettings;

    fn exact(text: &str) -> TextMatch {
        TextMatch::Exact(text.into())
    }

    fn header(name: &str, text: TextMatch) -> RequestMatch {
        RequestMatch { headers: [(name.into(), text)].into(), ..RequestMatch::default() }
    }

    fn asking(more: RareConditions) -> RequestMatch {
        RequestMatch { more: more.into(), ..RequestMatch::default() }
    }

    #[test]
    fn every_call_is_a_post_without_a_query() {
        let by = |method| asking(RareConditions { method: Some(method), ..Default::default() });
        assert_eq!(of_match(&by(exact("POST"))), CallMatch::Told);
        assert_eq!(of_match(&by(exact("GET"))), CallMatch::Never);
        assert_eq!(of_match(&by(TextMatch::Regex("GET|POST".into()))), CallMatch::Told);
        assert_eq!(of_match(&by(TextMatch::Regex("P".into()))), CallMatch::Never);
        let query = [("a".into(), TextMatch::Present)].into();
        let with_query = asking(RareConditions { query, ..Default::default() });
        assert_eq!(of_match(&with_query), CallMatch::Never);
        assert_eq!(seen_of(&by(exact("POST"))), RequestMatch::default());
    }

    #[test]
    fn what_is_not_looked_at_leaves_the_rest_of_a_match() {
        let authority = Some(exact("a"));
        let more = RareConditions { authority, ..RareConditions::default() }.into();
        let mut one = RequestMatch { more, ..header("x-user", exact("jo")) };
        assert!(matches!(of_match(&one), CallMatch::Untold(what) if what.contains("the host")));
        assert_eq!(seen_of(&one), header("x-user", exact("jo")));
        for name in ["grpc-timeout", "trace-bin", "user-agent", "content-type", ":path"] {
            one = header(name, TextMatch::Present);
            assert!(matches!(of_match(&one), CallMatch::Untold(what) if what.contains(name)));
            assert_eq!(seen_of(&one), RequestMatch::default());
        }
        one = header("x-user", TextMatch::Regex(r"a\\C\C".into()));
        assert!(matches!(of_match(&one), CallMatch::Untold(_)));
        assert_eq!(of_match(&header("x-user", TextMatch::Regex(r"\\C".into()))), CallMatch::Told);
        let path = Some(PathMatch::Regex(r"/\C*".into()));
        one = RequestMatch { path, ..RequestMatch::default() };
        assert!(matches!(of_match(&one), CallMatch::Untold(what) if what.contains("the path")));
        assert_eq!(seen_of(&one), RequestMatch::default());
        let without = |count: usize| {
            let all = (0..count).map(|at| (format!("x-{at}").into(), exact("a")));
            asking(RareConditions { without_headers: all.collect(), ..RareConditions::default() })
        };
        assert_eq!(of_match(&without(3)), CallMatch::Told);
        assert!(matches!(of_match(&without(4)), CallMatch::Untold(_)));
        assert_eq!(seen_of(&without(4)), RequestMatch::default());
    }

    #[test]
    fn what_a_library_does_not_do_fails_or_is_told() {
        let path = Some(crate::traffic::route::PathRewrite::Whole("/".into()));
        let rewrite = |path, authority| Some(Box::new(Rewrite { path, authority }));
        let redirect = Some(Box::new(RedirectRule::default()));
        let rule = |more: RareTerms| {
            HttpRule::from(RuleTerms { more: more.into(), ..RuleTerms::default() })
        };
        let redirects = rule(RareTerms { redirect, ..RareTerms::default() });
        assert!(obstacle(&redirects).is_some());
        let rewrites = rule(RareTerms { rewrite: rewrite(path, None), ..RareTerms::default() });
        assert!(obstacle(&rewrites).is_some());
        let other_host = rewrite(None, Some("b".into()));
        let rule = rule(RareTerms { rewrite: other_host, ..RareTerms::default() });
        assert_eq!((obstacle(&rule), passed_over(&rule).len()), (None, 1));
        let headers = Some(Box::new(HeaderChanges::default()));
        let more = RareAtDestination { headers, ..RareAtDestination::default() }.into();
        let to = Destination { more, ..Destination::invalid() };
        let rule = HttpRule { destinations: [to].into(), ..HttpRule::default() };
        assert_eq!(passed_over(&rule), ["headers are not changed"]);
        assert_eq!(passed_over(&HttpRule::default()), Vec::<String>::new());
    }

    #[test]
    fn retries_are_those_of_codes() {
        assert_eq!(retried_on("5xx, unavailable,connect-failure,internal"), "unavailable,internal");
        assert_eq!(retried_on("5xx"), "");
        let told = |on: &str, statuses: &[u16]| {
            let retries = RetryRule {
                attempts: 1,
                on: Arc::from(on),
                more: RareRetrySettings { statuses: statuses.into(), backoff: None }.into(),
                ..RetryRule::default()
            };
            passed_over(
                &RuleTerms { retries: Some(Box::new(retries)), ..RuleTerms::default() }.into(),
            )
        };
        assert_eq!(told("unavailable,connect-failure", &[]), Vec::<String>::new());
        let also = "retriable-status-codes,5xx,reset";
        assert_eq!(told(also, &[503]), ["nothing is tried again on 5xx, reset, 503"]);
    }

    #[test]
    fn endpoints_are_chosen_by_headers_that_are_seen() {
        assert_eq!(
            hashed(&HashKey::Header("X-User".into())),
            Some(HashKey::Header("x-user".into()))
        );
        assert!(!is_hashed(&HashKey::Header("X-Trace-Bin".into())));
        assert!(!is_hashed(&HashKey::SourceIp));
    }
}
