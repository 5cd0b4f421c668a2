//! The parts of rules that gRPC libraries with xDS support can apply. This is the only module that
//! decides it, for the generators and for `explain` (gRFC A28, A31, A33, A42, A44).
//!
//! A call is an HTTP/2 POST to `/SERVICE/METHOD`, without a query. A library compares only its path
//! and the headers of the application. If the library cannot decide whether a rule matches a call,
//! the call fails. It never continues with later rules, which are for other calls.

use super::policy::{Algorithm, ClientTls, HashKey, HashTable, PolicyGroups, PoolLimits};
use super::route::{HttpRule, PathMatch, RareConditions, RequestMatch, TextMatch};
use strait_model::GrpcLibrary;
use strait_model::mesh_config::RetryRule;

/// Method of every call.
const METHOD: &str = "POST";
/// Headers that a transport adds or removes without the library. C core compares one header of this
/// list, grpc-go does not.
const UNSEEN_HEADERS: [&str; 7] = [
    "connection",
    "content-length",
    "content-type",
    "host",
    "te",
    "transfer-encoding",
    "user-agent",
];
/// Conditions of `retryOn` that are gRPC codes, for which a library retries (gRFC A44).
const RETRIED_CODES: [&str; 5] =
    ["cancelled", "deadline-exceeded", "internal", "resource-exhausted", "unavailable"];
/// Conditions that libraries handle themselves: a call that no server has processed is always sent
/// again.
const RETRIED_ANYWAY: [&str; 3] = ["connect-failure", "refused-stream", "reset-before-request"];
/// Maximum number of headers with a forbidden value in a match. Each needs two routes: one without
/// the header, and one with another value.
const OTHER_VALUES_MAX: usize = 3;

/// Interpretation of a match by gRPC libraries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallMatch {
    /// It never matches a call.
    Never,
    /// The library can decide which calls match.
    Supported,
    /// The library cannot decide it, for this reason. Calls that satisfy the other conditions fail.
    Unsupported(String),
}

/// Returns how gRPC libraries interpret a match.
pub fn interpret_match(request: &RequestMatch) -> CallMatch {
    let method = request.method.as_ref().map(|method| method.fits(METHOD));
    if method == Some(Some(false)) || !request.query.is_empty() {
        return CallMatch::Never;
    }
    let unsupported =
        || request.headers.iter().chain(&request.without_headers).find(|one| !is_compared(one));
    let what = if method == Some(None) {
        "its expression for the method cannot be evaluated".to_owned()
    } else if request.authority.is_some() {
        "the host of a call is not compared".to_owned()
    } else if request.scheme.is_some() {
        "the scheme of a call is not compared".to_owned()
    } else if request.path.as_ref().is_some_and(|path| !is_compared_path(path)) {
        "not all libraries support its expression for the path".to_owned()
    } else if let Some((name, _)) = unsupported() {
        format!("the header {name} is not compared, or not all libraries support its expression")
    } else if other_values(request) > OTHER_VALUES_MAX {
        format!("more than {OTHER_VALUES_MAX} headers have a forbidden value")
    } else {
        return CallMatch::Supported;
    };
    CallMatch::Unsupported(what)
}

/// Returns the conditions that a library can evaluate. Every call that satisfies the whole match
/// satisfies these.
pub fn supported_conditions(request: &RequestMatch) -> RequestMatch {
    let without: &[_] =
        if other_values(request) > OTHER_VALUES_MAX { &[] } else { &request.without_headers };
    let more = RareConditions {
        method: None,
        authority: None,
        scheme: None,
        without_headers: without.iter().filter(|one| is_compared(one)).cloned().collect(),
        ..RareConditions::clone(request)
    };
    RequestMatch {
        path: request.path.clone().filter(is_compared_path),
        headers: request.headers.iter().filter(|one| is_compared(one)).cloned().collect(),
        more: more.into(),
        ..request.clone()
    }
}

/// Returns the reason why calls that match a rule fail: the rule has an action that libraries do
/// not support, and skipping the action would be wrong.
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

/// Returns the parts of a rule that libraries ignore.
pub fn passed_over(rule: &HttpRule) -> Vec<String> {
    let mut all = Vec::new();
    let mut note = |is_set: bool, what: &str| {
        if is_set {
            all.push(what.to_owned());
        }
    };
    let changes = rule.destinations.iter().filter_map(|to| to.headers.as_ref());
    note(rule.headers.iter().chain(changes).next().is_some(), "headers are not changed");
    let rewrite = rule.rewrite.as_ref();
    note(rewrite.is_some_and(|one| one.authority.is_some()), "the host is not rewritten");
    note(rule.mirrors.iter().flatten().next().is_some(), "requests are not mirrored");
    note(rule.cors.is_some(), "corsPolicy applies only to browsers");
    if let Some(retries) = &rule.retries {
        note(retries.per_try_timeout.is_some(), "perTryTimeout is ignored");
        note(retries.other_localities, "retries go to any locality");
        let unknown: Vec<_> =
            conditions(retries).filter(|condition| !is_supported_condition(condition)).collect();
        let statuses = retries.statuses.iter().map(ToString::to_string);
        let unknown: Vec<_> = unknown.into_iter().map(str::to_owned).chain(statuses).collect();
        if retries.attempts > 0 && !unknown.is_empty() {
            all.push(format!("calls are not retried on {}", unknown.join(", ")));
        }
    }
    all
}

/// Returns the retry conditions that libraries support, in the same form; possibly empty.
pub fn retried_on(conditions: &str) -> String {
    let conditions = conditions.split(',').map(str::trim);
    conditions.filter(|condition| RETRIED_CODES.contains(condition)).collect::<Vec<_>>().join(",")
}

/// Returns the settings of a DestinationRule that a library ignores or applies differently.
pub fn policy_passed_over(groups: &PolicyGroups, library: GrpcLibrary) -> Vec<&'static str> {
    let mut all = Vec::new();
    if let Some(pool) = groups.connection_pool.as_deref() {
        let supported = PoolLimits { max_requests: pool.max_requests, ..PoolLimits::default() };
        if *pool != supported {
            all.push("only http2MaxRequests of connectionPool applies");
        }
    }
    if let Some(balancing) = groups.load_balancer.as_deref() {
        all.extend(match &balancing.algorithm {
            Algorithm::RoundRobin => None,
            Algorithm::LeastRequest => (!library.least_request).then_some(
                "endpoints are chosen in turn: the library does not count active \
                            requests",
            ),
            Algorithm::Random => Some("endpoints are chosen in turn, not at random"),
            Algorithm::Passthrough => {
                Some("endpoints are chosen in turn, not by the original destination")
            }
            Algorithm::ConsistentHash(hash) if !is_hashed(&hash.key) => Some(
                "endpoints are chosen in turn: the library hashes only headers of the application",
            ),
            Algorithm::ConsistentHash(hash) => matches!(hash.table, HashTable::Maglev(_))
                .then_some("a ring is used instead of the Maglev table"),
        });
        if balancing.warmup.is_some() {
            all.push("new endpoints receive their full load immediately");
        }
    }
    if let Some(outliers) = groups.outlier_detection.as_deref()
        && (outliers.split_local_origin
            || outliers.min_health_percent != 0
            || !outliers.error_statuses.is_empty())
    {
        all.push("only errors, interval, ejection time and percentage of outlierDetection apply");
    }
    if matches!(groups.tls.as_deref(), Some(ClientTls::Foreign(_) | ClientTls::Impossible)) {
        all.push("this TLS mode is not supported: calls fail");
    }
    if groups.proxy_protocol.is_some() || groups.tunnel.is_some() || groups.retry_budget.is_some() {
        all.push("proxyProtocol, tunnel and retryBudget have no effect");
    }
    all
}

/// Returns whether a library can choose an endpoint by this key.
pub fn is_hashed(key: &HashKey) -> bool {
    hashed(key).is_some()
}

/// Returns the key by which all libraries choose an endpoint; `None` if they cannot.
pub fn hashed(key: &HashKey) -> Option<HashKey> {
    let HashKey::Header(name) = key else { return None };
    let name = name.to_ascii_lowercase();
    is_compared_header(&name).then_some(HashKey::Header(name))
}

fn conditions(retries: &RetryRule) -> impl Iterator<Item = &str> {
    retries.on.split(',').map(str::trim).filter(|condition| !condition.is_empty())
}

fn is_supported_condition(condition: &str) -> bool {
    // Its status codes are reported one by one.
    RETRIED_CODES.contains(&condition)
        || RETRIED_ANYWAY.contains(&condition)
        || condition == "retriable-status-codes"
}

/// Returns the number of headers that may be present but have a forbidden value.
fn other_values(request: &RequestMatch) -> usize {
    request.without_headers.iter().filter(|(_, text)| *text != TextMatch::Present).count()
}

fn is_compared((name, text): &(std::sync::Arc<str>, TextMatch)) -> bool {
    let is_supported = match text {
        TextMatch::Regex(expression) => is_common(expression) && text.fits("").is_some(),
        TextMatch::Exact(_) | TextMatch::Prefix(_) | TextMatch::Present => true,
    };
    is_compared_header(name) && is_supported
}

/// Returns whether a library compares a header, whose name is in lower case. It ignores gRPC's own
/// and binary headers.
fn is_compared_header(name: &str) -> bool {
    !name.starts_with(':')
        && !name.starts_with("grpc-")
        && !name.ends_with("-bin")
        && !UNSEEN_HEADERS.contains(&name)
}

fn is_compared_path(path: &PathMatch) -> bool {
    match path {
        PathMatch::Regex(expression) => is_common(expression),
        PathMatch::Exact(_) | PathMatch::Prefix(_) | PathMatch::Segments(_) => true,
    }
}

/// Returns whether an RE2 expression is also valid in Go, which would reject all routes for an
/// invalid one.
fn is_common(expression: &str) -> bool {
    let mut rest = expression.chars();
    while let Some(c) = rest.next() {
        // `\C` matches a byte, which Go does not support.
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

    fn with_conditions(more: RareConditions) -> RequestMatch {
        RequestMatch { more: more.into(), ..RequestMatch::default() }
    }

    #[test]
    fn calls_are_posts_without_a_query() {
        let by =
            |method| with_conditions(RareConditions { method: Some(method), ..Default::default() });
        assert_eq!(interpret_match(&by(exact("POST"))), CallMatch::Supported);
        assert_eq!(interpret_match(&by(exact("GET"))), CallMatch::Never);
        assert_eq!(interpret_match(&by(TextMatch::Regex("GET|POST".into()))), CallMatch::Supported);
        assert_eq!(interpret_match(&by(TextMatch::Regex("P".into()))), CallMatch::Never);
        let query = [("a".into(), TextMatch::Present)].into();
        let with_query = with_conditions(RareConditions { query, ..Default::default() });
        assert_eq!(interpret_match(&with_query), CallMatch::Never);
        assert_eq!(supported_conditions(&by(exact("POST"))), RequestMatch::default());
    }

    #[test]
    fn unsupported_conditions_leave_the_rest_of_a_match() {
        let authority = Some(exact("a"));
        let more = RareConditions { authority, ..RareConditions::default() }.into();
        let mut request = RequestMatch { more, ..header("x-user", exact("jo")) };
        assert!(
            matches!(interpret_match(&request), CallMatch::Unsupported(what) if what.contains("the host"))
        );
        assert_eq!(supported_conditions(&request), header("x-user", exact("jo")));
        for name in ["grpc-timeout", "trace-bin", "user-agent", "content-type", ":path"] {
            request = header(name, TextMatch::Present);
            assert!(
                matches!(interpret_match(&request), CallMatch::Unsupported(what) if what.contains(name))
            );
            assert_eq!(supported_conditions(&request), RequestMatch::default());
        }
        request = header("x-user", TextMatch::Regex(r"a\\C\C".into()));
        assert!(matches!(interpret_match(&request), CallMatch::Unsupported(_)));
        assert_eq!(
            interpret_match(&header("x-user", TextMatch::Regex(r"\\C".into()))),
            CallMatch::Supported
        );
        let path = Some(PathMatch::Regex(r"/\C*".into()));
        request = RequestMatch { path, ..RequestMatch::default() };
        assert!(
            matches!(interpret_match(&request), CallMatch::Unsupported(what) if what.contains("the path"))
        );
        assert_eq!(supported_conditions(&request), RequestMatch::default());
        let without = |count: usize| {
            let all = (0..count).map(|at| (format!("x-{at}").into(), exact("a")));
            with_conditions(RareConditions {
                without_headers: all.collect(),
                ..RareConditions::default()
            })
        };
        assert_eq!(interpret_match(&without(3)), CallMatch::Supported);
        assert!(matches!(interpret_match(&without(4)), CallMatch::Unsupported(_)));
        assert_eq!(supported_conditions(&without(4)), RequestMatch::default());
    }

    #[test]
    fn unsupported_actions_fail_or_are_reported() {
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
    fn only_grpc_codes_are_retried() {
        assert_eq!(retried_on("5xx, unavailable,connect-failure,internal"), "unavailable,internal");
        assert_eq!(retried_on("5xx"), "");
        let ignored = |on: &str, statuses: &[u16]| {
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
        assert_eq!(ignored("unavailable,connect-failure", &[]), Vec::<String>::new());
        let also = "retriable-status-codes,5xx,reset";
        assert_eq!(ignored(also, &[503]), ["calls are not retried on 5xx, reset, 503"]);
    }

    #[test]
    fn only_visible_headers_choose_endpoints() {
        assert_eq!(
            hashed(&HashKey::Header("X-User".into())),
            Some(HashKey::Header("x-user".into()))
        );
        assert!(!is_hashed(&HashKey::Header("X-Trace-Bin".into())));
        assert!(!is_hashed(&HashKey::SourceIp));
    }
}
