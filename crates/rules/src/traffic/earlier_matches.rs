//! Requests that earlier matches of rules already cover.

use std::collections::HashMap;
use std::sync::Arc;

use super::route::{PathMatch, RareConditions, RequestMatch};

/// Matches of requests in the order of evaluation, each with its owner.
#[derive(Debug)]
pub struct EarlierMatches<T>(HashMap<RequestMatch, HashMap<Option<PathMatch>, T>>);

impl<T> Default for EarlierMatches<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T> EarlierMatches<T> {
    /// Returns the owner of an earlier match that covers all requests of this match: an equal one,
    /// or one with a shorter prefix and the same other conditions. Otherwise adds the match with
    /// `own`, if given. A match is compared only with prefixes of its path.
    pub fn owner_or_add(&mut self, request: &RequestMatch, own: Option<T>) -> Option<&T> {
        let mut rest = request.clone();
        let wanted = rest.path.take();
        let name = Arc::default();
        let more = RareConditions::clone(request);
        rest.more = RareConditions { name, stat_prefix: Arc::default(), ..more }.into();
        let paths = self.0.entry(rest).or_default();
        let text = match &wanted {
            Some(PathMatch::Exact(text) | PathMatch::Prefix(text)) => &**text,
            _ => "",
        };
        let mut prefixes = text
            .char_indices()
            .map(|(end, c)| end + c.len_utf8())
            .filter_map(|end| Some(Some(PathMatch::Prefix(text.get(..end)?.into()))));
        let by = prefixes.find(|prefix| paths.contains_key(prefix));
        let by = by.or_else(|| paths.contains_key(&wanted).then(|| wanted.clone()));
        let by = by.or_else(|| paths.contains_key(&None).then_some(None));
        match (by, own) {
            (Some(by), _) => paths.get(&by),
            (None, own) => {
                paths.extend(own.map(|own| (wanted, own)));
                None
            }
        }
    }
}
