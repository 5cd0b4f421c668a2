//! Conditions on strings in Envoy's format.

use strait_proto::envoy::envoy::r#type::matcher::v3 as matcher;
use strait_rules::traffic::route::TextMatch;

/// Returns the matcher for a string, or `None` if the string only has to be present.
pub(super) fn string_match(text: &TextMatch) -> Option<matcher::StringMatcher> {
    use matcher::string_matcher::MatchPattern;
    let pattern = match text {
        TextMatch::Exact(text) => MatchPattern::Exact(text.to_string()),
        TextMatch::Prefix(text) => MatchPattern::Prefix(text.to_string()),
        TextMatch::Regex(text) => MatchPattern::SafeRegex(regex(text)),
        TextMatch::Present => return None,
    };
    Some(matcher::StringMatcher { match_pattern: Some(pattern), ..Default::default() })
}

/// Returns a regular expression, which must match the entire string.
pub(super) fn regex(text: &str) -> matcher::RegexMatcher {
    matcher::RegexMatcher { regex: text.to_owned(), ..Default::default() }
}
