//! Evaluates a workload's rules for one request, using the matchers from which RBAC filters are
//! generated.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use serde_json::Value;

use super::enforce::{ActionRules, EnforcedRules};
use super::matcher::{Atom, MatchedClause, RuleMatcher};

/// Description of a request. Properties that are not set are treated as absent from the request.
#[derive(Debug, Clone, Default)]
pub struct AccessRequest {
    /// SPIFFE ID of the client; `None` for plaintext connections.
    pub identity: Option<String>,
    /// Address of the peer of the connection.
    pub peer: Option<IpAddr>,
    /// Address of the original client, as reported by intermediate proxies.
    pub client: Option<IpAddr>,
    /// Headers by lower-case name, including `:authority` and `:method`.
    pub headers: BTreeMap<String, String>,
    /// Path without the query.
    pub path: Option<String>,
    /// Port of the workload.
    pub port: Option<u16>,
    /// Address of the workload.
    pub destination: Option<IpAddr>,
    /// Server name (SNI) that the TLS client requests.
    pub server_name: Option<String>,
    /// Dynamic metadata that filters set, by filter name; for example the claims of a verified
    /// token.
    pub noted: BTreeMap<String, Value>,
}

/// Whether a request is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessVerdict {
    /// The request is allowed.
    Allow,
    /// The request is denied.
    Deny,
}

impl AccessVerdict {
    /// Returns the spelling used by `explain`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}

/// A verdict and the reason for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessDecision {
    /// The verdict.
    pub verdict: AccessVerdict,
    /// Key of the deciding rule; `None` if no rule decides.
    pub rule: Option<String>,
    /// Reason for the verdict.
    pub reason: &'static str,
    /// External authorization providers that are queried first, each with the key of its first
    /// matching rule. The request passes only if none of them denies it; the verdict then applies.
    pub queried_providers: Vec<(Arc<str>, String)>,
}

/// Decides one request: deny rules first, then allow rules. The decisions of external authorization
/// providers are unknown and not included.
pub fn decide(rules: &EnforcedRules, request: &AccessRequest) -> AccessDecision {
    let found = |action: &ActionRules| -> Option<String> {
        let mut rules = action.enforced.iter().flatten();
        rules.find(|rule| rule.matches(request)).map(|rule| rule.key.clone())
    };
    let (verdict, rule, reason) = if let Some(rule) = found(&rules.deny) {
        (AccessVerdict::Deny, Some(rule), "a DENY rule matches")
    } else if rules.allow.enforced.is_none() {
        (AccessVerdict::Allow, None, "no ALLOW policy selects the workload")
    } else if let Some(rule) = found(&rules.allow) {
        (AccessVerdict::Allow, Some(rule), "an ALLOW rule matches")
    } else {
        (
            AccessVerdict::Deny,
            None,
            "ALLOW policies select the workload, but none of their rules matches",
        )
    };
    let providers = rules.custom.iter();
    let providers =
        providers.filter_map(|(provider, rules)| Some((Arc::clone(provider), found(rules)?)));
    AccessDecision { verdict, rule, reason, queried_providers: providers.collect() }
}

/// Returns the location of each clause of a rule, and whether the clause holds for the request.
pub fn rule_steps(rule: &RuleMatcher, request: &AccessRequest) -> Vec<(String, bool)> {
    let clauses = rule.sources.iter().chain(&rule.operations).flatten();
    clauses.map(|clause| (clause.place.to_string(), clause.holds(request))).collect()
}

impl RuleMatcher {
    /// Returns whether the rule matches a request.
    pub fn matches(&self, request: &AccessRequest) -> bool {
        let any = |alternatives: &[Vec<MatchedClause>]| {
            let all = |clauses: &Vec<MatchedClause>| clauses.iter().all(|one| one.holds(request));
            alternatives.is_empty() || alternatives.iter().any(all)
        };
        !self.never && any(&self.sources) && any(&self.operations)
    }
}

impl MatchedClause {
    fn holds(&self, request: &AccessRequest) -> bool {
        let all = |atoms: &Vec<Atom<'_>>| atoms.iter().all(|atom| atom.holds(request));
        self.any.iter().any(all) != self.negated
    }
}

impl Atom<'_> {
    fn holds(&self, request: &AccessRequest) -> bool {
        let within = |address: Option<IpAddr>, range: &ipnet::IpNet| {
            address.is_some_and(|address| range.contains(&address))
        };
        match self {
            Self::Identity(pattern) => {
                request.identity.as_deref().is_some_and(|id| pattern.matches(id))
            }
            Self::PeerAddress(range) => within(request.peer, range),
            Self::ClientAddress(range) => within(request.client.or(request.peer), range),
            Self::Header(name, pattern) => {
                request.headers.get(&**name).is_some_and(|value| pattern.matches(value))
            }
            Self::HeaderNowhere(name, pattern) => {
                request.headers.get(&**name).is_none_or(|value| !pattern.matches(value))
            }
            Self::HeaderPresent(name) => request.headers.contains_key(&**name),
            Self::Path(pattern) => {
                request.path.as_deref().is_some_and(|path| pattern.matches(path))
            }
            Self::PathTemplate(template) => {
                request.path.as_deref().is_some_and(|path| fits_template(template, path))
            }
            Self::Port(port) => request.port == Some(*port),
            Self::DestinationAddress(range) => within(request.destination, range),
            Self::ServerName(pattern) => {
                request.server_name.as_deref().is_some_and(|name| pattern.matches(name))
            }
            Self::Metadata(filter, path, pattern) => {
                let noted = request.noted.get(&**filter);
                let noted = path.iter().try_fold(noted, |found, name| Some(found?.get(name)));
                let fits = |one: &Value| one.as_str().is_some_and(|text| pattern.matches(text));
                match noted.flatten() {
                    Some(Value::Array(all)) => all.iter().any(fits),
                    value => value.is_some_and(fits),
                }
            }
        }
    }
}

/// Returns whether a path matches an Envoy path template. `*` matches one segment that is not
/// empty. `**` matches one or more segments, which may be empty, and is followed only by literal
/// text.
fn fits_template(template: &str, path: &str) -> bool {
    let Some(path) = path.strip_prefix('/') else { return false };
    let found: Vec<&str> = path.split('/').collect();
    let wanted: Vec<&str> = template.split('/').skip(1).collect();
    let is_fitting = |(want, found): (&&str, &&str)| match *want {
        "*" => !found.is_empty(),
        want => want == *found,
    };
    let all_fit = |wanted: &[&str], found: &[&str]| wanted.iter().zip(found).all(&is_fitting);
    match wanted.iter().position(|want| *want == "**") {
        None => wanted.len() == found.len() && all_fit(&wanted, &found),
        Some(at) => {
            let (start, end) = (&wanted[..at], &wanted[at + 1..]);
            found.len() >= wanted.len()
                && all_fit(start, &found)
                && all_fit(end, &found[found.len() - end.len()..])
        }
    }
}
