//! Requests and connections that earlier matches of rules already cover.

use std::collections::{BTreeSet, HashMap};

use super::object::Reason;
use super::route::{
    ConnectionMatch, PathMatch, RareConditions, RequestMatch, SourceMatch, TcpRule,
};
use strait_base::codes;
use strait_base::names::list_first;

/// Maximum number of earlier matches per path that a match is compared with. Equal matches are
/// always found.
const COMPARED_MAX: usize = 32;

/// Maximum number of conditions that are compared one by one. An earlier match with more conditions
/// covers only equal matches.
const COMPARED_CONDITIONS_MAX: usize = 32;
/// Maximum number of earlier matches that a match for connections is compared with.
const COMPARED_CONNECTIONS_MAX: usize = 256;

/// Maximum number of earlier rules that a reason names.
const OWNERS_NAMED: usize = 5;

/// Matches of requests in the order of evaluation, each with its owner.
#[derive(Debug)]
pub struct EarlierMatches<T> {
    equal: HashMap<RequestMatch, T>,
    by_path: HashMap<Option<PathMatch>, Vec<(RequestMatch, T)>>,
}

impl<T> Default for EarlierMatches<T> {
    fn default() -> Self {
        Self { equal: HashMap::new(), by_path: HashMap::new() }
    }
}

impl<T: Clone> EarlierMatches<T> {
    /// Returns the owner of an earlier match that covers all requests of this match: it has the
    /// same path, a prefix of it or none, and no condition that this match does not have. Otherwise
    /// adds the match with `own`, if given.
    pub fn owner_or_add(&mut self, request: &RequestMatch, own: Option<T>) -> Option<T> {
        let (name, stat_prefix) = Default::default();
        let more = RareConditions { name, stat_prefix, ..RareConditions::clone(request) };
        let request = RequestMatch { more: more.into(), ..request.clone() };
        let wider = covering_paths(request.path.as_ref())
            .flat_map(|path| self.by_path.get(&path).into_iter().flatten())
            .find(|(earlier, _)| has_all_conditions(&request, earlier))
            .map(|(_, owner)| owner);
        if let Some(owner) = wider.or_else(|| self.equal.get(&request)) {
            return Some(owner.clone());
        }
        if let Some(own) = own {
            let at_path = self.by_path.entry(request.path.clone()).or_default();
            if at_path.len() < COMPARED_MAX {
                at_path.push((request.clone(), own.clone()));
            }
            self.equal.insert(request, own);
        }
        None
    }
}

/// Returns the conditions on paths that hold for each path with this condition.
fn covering_paths(wanted: Option<&PathMatch>) -> impl Iterator<Item = Option<PathMatch>> {
    let text = match wanted {
        Some(PathMatch::Exact(text) | PathMatch::Prefix(text) | PathMatch::Segments(text)) => {
            &**text
        }
        Some(PathMatch::Regex(_)) | None => "",
    };
    let is_whole = !matches!(wanted, Some(PathMatch::Prefix(_)));
    let ends = text.char_indices().map(|(at, char)| at + char.len_utf8());
    let prefixes = ends.flat_map(move |end| {
        let (prefix, rest) = text.split_at(end);
        let ends_segment = rest.starts_with('/') || (rest.is_empty() && is_whole);
        let segments = ends_segment.then(|| PathMatch::Segments(prefix.into()));
        [Some(PathMatch::Prefix(prefix.into())), segments].into_iter().flatten()
    });
    std::iter::once(None).chain(prefixes.map(Some)).chain(wanted.cloned().map(Some))
}

/// Returns whether `own` contains all items of a list with a limited number of items.
fn has_all<T: PartialEq>(own: &[T], earlier: &[T]) -> bool {
    earlier.len() <= own.len().min(COMPARED_CONDITIONS_MAX)
        && earlier.iter().all(|one| own.contains(one))
}

fn has<T: PartialEq>(own: &Option<T>, earlier: &Option<T>) -> bool {
    earlier.is_none() || own == earlier
}

fn has_all_sender_conditions(own: &SourceMatch, earlier: &SourceMatch) -> bool {
    let SourceMatch { gateways, labels, namespace } = earlier;
    (gateways.is_empty() || *gateways == own.gateways)
        && has(&own.labels, labels)
        && has(&own.namespace, namespace)
}

/// Returns whether a match has all conditions of an earlier match, except for the path.
fn has_all_conditions(request: &RequestMatch, earlier: &RequestMatch) -> bool {
    let RequestMatch { path, ignore_case, headers, port, refused: _, more } = earlier;
    (path.is_none() || *ignore_case == request.ignore_case)
        && has(&request.port, port)
        && has(&request.method, &more.method)
        && has(&request.authority, &more.authority)
        && has(&request.scheme, &more.scheme)
        && has_all_sender_conditions(&request.source, &more.source)
        && has_all(&request.headers, headers)
        && has_all(&request.without_headers, &more.without_headers)
        && has_all(&request.claims, &more.claims)
        && has_all(&request.without_claims, &more.without_claims)
        && has_all(&request.query, &more.query)
}

/// Returns reasons for rules for connections in `spec.LIST` whose matches are all covered by matches
/// of earlier rules.
pub(super) fn covered_connections(list: &str, rules: &[TcpRule]) -> Vec<Reason> {
    let every = [ConnectionMatch::default()];
    let mut earlier: Vec<(u32, &ConnectionMatch)> = Vec::new();
    let mut reasons = Vec::new();
    for rule in rules {
        let is_any = list == "tcp" && rule.matches.is_empty();
        let matches = if is_any { &every[..] } else { &*rule.matches };
        let owner = |one| earlier.iter().find(|(_, earlier)| takes_all(earlier, one));
        let owners: Option<BTreeSet<u32>> =
            matches.iter().map(|one| owner(one).map(|(rule, _)| *rule)).collect();
        if let Some(owners) = owners.filter(|owners| !owners.is_empty()) {
            let owners = owners.into_iter().map(|owner| format!("spec.{list}[{owner}]"));
            let owners = list_first(owners, OWNERS_NAMED);
            let text = format!("all of its connections belong to {owners}: it is never reached");
            let path = format!("spec.{list}[{}]", rule.place.index);
            reasons.push(Reason::warning(&codes::RULE_UNREACHABLE, path, text));
            continue;
        }
        let free = COMPARED_CONNECTIONS_MAX.saturating_sub(earlier.len());
        earlier.extend(matches.iter().take(free).map(|one| (rule.place.index, one)));
    }
    reasons
}

/// Returns whether an earlier match takes all connections of a match. A narrower address range or
/// server name takes precedence over a wider one, wherever the two are.
fn takes_all(earlier: &ConnectionMatch, own: &ConnectionMatch) -> bool {
    let ConnectionMatch { server_names, to, port, source } = earlier;
    let is_by_name = !server_names.is_empty() || !own.server_names.is_empty();
    // The names are sorted.
    let is_named = |name| server_names.binary_search(name).is_ok();
    let takes_ranges = match to.is_empty() {
        true => !is_by_name || own.to.is_empty(),
        false => !own.to.is_empty() && has_all(to, &own.to),
    };
    takes_ranges
        && has(&own.port, port)
        && has_all_sender_conditions(&own.source, source)
        && (!is_by_name || !own.server_names.is_empty() && own.server_names.iter().all(is_named))
}
