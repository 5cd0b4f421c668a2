//! Requests that earlier matches of rules already cover.

use std::collections::HashMap;

use super::route::{PathMatch, RareConditions, RequestMatch, SourceMatch};

/// Maximum number of earlier matches per path that a match is compared with. Equal matches are
/// always found.
const COMPARED_MAX: usize = 32;

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

/// Returns whether a match has all conditions of an earlier match, except for the path.
fn has_all_conditions(request: &RequestMatch, earlier: &RequestMatch) -> bool {
    fn has_all<T: PartialEq>(own: &[T], earlier: &[T]) -> bool {
        earlier.len() <= own.len() && earlier.iter().all(|one| own.contains(one))
    }
    fn has<T: PartialEq>(own: &Option<T>, earlier: &Option<T>) -> bool {
        earlier.is_none() || own == earlier
    }
    let RequestMatch { path, ignore_case, headers, port, refused: _, more } = earlier;
    let SourceMatch { gateways, labels, namespace } = &more.source;
    let source = &request.source;
    (path.is_none() || *ignore_case == request.ignore_case)
        && has(&request.port, port)
        && has(&request.method, &more.method)
        && has(&request.authority, &more.authority)
        && has(&request.scheme, &more.scheme)
        && (gateways.is_empty() || *gateways == source.gateways)
        && has(&source.labels, labels)
        && has(&source.namespace, namespace)
        && has_all(&request.headers, headers)
        && has_all(&request.without_headers, &more.without_headers)
        && has_all(&request.claims, &more.claims)
        && has_all(&request.without_claims, &more.without_claims)
        && has_all(&request.query, &more.query)
}
