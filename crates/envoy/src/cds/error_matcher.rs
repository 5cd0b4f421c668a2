//! Matchers of the responses that outlier detection counts as errors.

use strait_proto::envoy::envoy::config::common::matcher::v3::match_predicate::Rule;
use strait_proto::envoy::envoy::config::common::matcher::v3::{HttpHeadersMatch, MatchPredicate};
use strait_proto::envoy::envoy::config::route::v3 as route;
use strait_proto::envoy::envoy::r#type::matcher::v3 as matcher;
use strait_proto::envoy::envoy::r#type::v3::Int64Range;
use strait_rules::traffic::policy::OutlierDetection;

/// Matches the statuses that are errors to a rule, all from 500 on by default.
pub(super) fn counted_statuses(rule: &OutlierDetection) -> Rule {
    use matcher::string_matcher::MatchPattern;
    use route::header_matcher::HeaderMatchSpecifier;
    if rule.error_statuses.is_empty() {
        let range = Int64Range { start: 500, end: 600 };
        return header(":status", HeaderMatchSpecifier::RangeMatch(range));
    }
    let regex = rule.error_statuses.iter().map(u16::to_string).collect::<Vec<_>>().join("|");
    let regex = matcher::RegexMatcher { regex, ..Default::default() };
    header_text(":status", MatchPattern::SafeRegex(regex))
}

/// Matches responses whose header has this text.
pub(super) fn header_text(name: &str, pattern: matcher::string_matcher::MatchPattern) -> Rule {
    let text = matcher::StringMatcher { match_pattern: Some(pattern), ..Default::default() };
    header(name, route::header_matcher::HeaderMatchSpecifier::StringMatch(text))
}

fn header(name: &str, specifier: route::header_matcher::HeaderMatchSpecifier) -> Rule {
    let header = route::HeaderMatcher {
        name: name.into(),
        header_match_specifier: Some(specifier),
        ..Default::default()
    };
    Rule::HttpResponseHeadersMatch(HttpHeadersMatch { headers: vec![header] })
}

/// Returns a predicate with one rule.
pub(super) fn predicate(rule: Rule) -> MatchPredicate {
    MatchPredicate { rule: Some(rule) }
}
