//! Conditions on token claims in Envoy's format. They match the metadata of the filter that
//! verified a token.
//!
//! Each token rule stores the claims under a separate key ([`token_key`]). A request matches if all
//! required claims are in one token. Excluded claims must not be in any token.

use super::text::string_match;
use strait_proto::envoy::envoy::r#type::matcher::v3 as matcher;
use strait_rules::access::{TOKEN_FILTER, token_key};
use strait_rules::traffic::route::{ClaimPath, RequestMatch, TextMatch};

/// Returns the conditions on claims that a match adds. The request must meet all conditions of at
/// least one list. `token_rules` is the number of token rules of the proxy.
pub(super) fn conditions(
    request: &RequestMatch,
    token_rules: usize,
) -> Vec<Vec<matcher::MetadataMatcher>> {
    let rules = token_rules.max(1);
    let keys: Vec<String> = (0..rules).map(|place| token_key(place, rules)).collect();
    let conditions_for = |key: &String, all: &[(ClaimPath, TextMatch)], invert| {
        let claims = all.iter().map(|(path, text)| claim(key, path, text, invert));
        claims.collect::<Vec<_>>()
    };
    let without: Vec<_> =
        keys.iter().flat_map(|key| conditions_for(key, &request.without_claims, true)).collect();
    if request.claims.is_empty() {
        return vec![without];
    }
    let with = |key| {
        conditions_for(key, &request.claims, false)
            .into_iter()
            .chain(without.iter().cloned())
            .collect()
    };
    keys.iter().map(with).collect()
}

/// If the value is a list, its elements are matched, because claims may be lists.
fn claim(key: &str, path: &ClaimPath, text: &TextMatch, invert: bool) -> matcher::MetadataMatcher {
    use matcher::metadata_matcher::{PathSegment, path_segment::Segment};
    use matcher::value_matcher::MatchPattern;
    let value = |pattern| matcher::ValueMatcher { match_pattern: Some(pattern) };
    let wanted = match string_match(text) {
        None => MatchPattern::PresentMatch(true),
        Some(text) => {
            let text = || value(MatchPattern::StringMatch(text.clone()));
            let element = matcher::list_matcher::MatchPattern::OneOf(Box::new(text()));
            let list = matcher::ListMatcher { match_pattern: Some(element) };
            let either = vec![text(), value(MatchPattern::ListMatch(Box::new(list)))];
            MatchPattern::OrMatch(matcher::OrMatcher { value_matchers: either })
        }
    };
    let levels = std::iter::once(key).chain(path.iter().map(|level| &**level));
    let segment = |level: &str| PathSegment { segment: Some(Segment::Key(level.to_owned())) };
    matcher::MetadataMatcher {
        filter: TOKEN_FILTER.into(),
        path: levels.map(segment).collect(),
        value: Some(value(wanted)),
        invert,
    }
}
