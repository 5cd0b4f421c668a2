//! Order of the matches of routes (Gateway API, "HTTPRouteRule", "GRPCRouteRule").

use std::cmp::Reverse;

use super::super::earlier_matches::EarlierMatches;
use super::super::object::Reason;
use super::super::route::{HttpRule, PathMatch, RequestMatch};
use strait_base::codes;

/// Returns the sort key of a match, the most specific first: by path, method, headers and query
/// parameters.
pub(in crate::traffic) fn specificity(request: &RequestMatch) -> impl Ord + use<> {
    let (kind, length) = match &request.path {
        Some(PathMatch::Exact(path)) => (0, path.len()),
        Some(PathMatch::Segments(path) | PathMatch::Prefix(path)) => (1, path.len()),
        None => (1, 0),
        Some(PathMatch::Regex(path)) => (2, path.len()),
    };
    (
        kind,
        Reverse(length),
        request.method.is_none(),
        Reverse(request.headers.len()),
        Reverse(request.query.len()),
    )
}

/// Returns reasons for matches without an effect, because matches of other rules of the same route
/// come first and cover all of their requests.
pub(super) fn covered(rules: &[HttpRule]) -> Vec<Reason> {
    let rules = rules.iter().enumerate().filter(|(_, rule)| !rule.is_absent);
    let mut matches: Vec<_> = rules
        .flat_map(|(rule, one)| {
            let matches = one.matches.iter().enumerate();
            matches.map(move |(at, request)| (rule, at, request))
        })
        .collect();
    matches.sort_by_key(|(_, _, request)| specificity(request));
    let mut earlier = EarlierMatches::default();
    let mut reasons = Vec::new();
    for (rule, at, request) in matches.into_iter().filter(|(_, _, request)| !request.refused) {
        match earlier.owner_or_add(request, Some((rule, at))) {
            Some((owner, place)) if owner != rule => {
                let text = format!(
                    "spec.rules[{owner}].matches[{place}] comes first and matches all of its requests: it \
                     is never reached"
                );
                let path = format!("spec.rules[{rule}].matches[{at}]");
                reasons.push(Reason::lost(&codes::RULE_UNREACHABLE, path, text));
            }
            _ => {}
        }
    }
    reasons
}
