//! The oracle of the direct encoder of rules: builds the same rules as messages, which prost
//! encodes.

use ipnet::IpNet;

use super::super::any;
use super::{matching_never, permission, principal};
use strait_proto::envoy::envoy::config::core::v3::{CidrRange, TypedExtensionConfig};
use strait_proto::envoy::envoy::config::rbac::v3 as rbac;
use strait_proto::envoy::envoy::config::route::v3::{HeaderMatcher, header_matcher};
use strait_proto::envoy::envoy::extensions::path::r#match::uri_template::v3::UriTemplateMatchConfig;
use strait_proto::envoy::envoy::r#type::matcher::v3 as matcher;
use strait_proto::envoy::google::protobuf::UInt32Value;
use strait_rules::access::{Atom, MatchedClause, RuleMatcher, TextPart, TextPattern};

pub(super) fn policy(rule: &RuleMatcher) -> rbac::Policy {
    let anything = permission(rbac::permission::Rule::Any(true));
    let anybody = principal(rbac::principal::Identifier::Any(true));
    if rule.never {
        return matching_never();
    }
    let permissions = rule.operations.iter().map(|clauses| {
        let rules: Vec<_> = clauses.iter().map(encode_permission).collect();
        let rules = if rules.is_empty() { vec![anything.clone()] } else { rules };
        permission(rbac::permission::Rule::AndRules(rbac::permission::Set { rules }))
    });
    let principals = rule.sources.iter().map(|clauses| {
        let ids: Vec<_> = clauses.iter().map(encode_principal).collect();
        let ids = if ids.is_empty() { vec![anybody.clone()] } else { ids };
        principal(rbac::principal::Identifier::AndIds(rbac::principal::Set { ids }))
    });
    rbac::Policy {
        permissions: permissions.collect(),
        principals: principals.collect(),
        ..Default::default()
    }
}

fn encode_permission(clause: &MatchedClause) -> rbac::Permission {
    use rbac::permission::{Rule, Set};
    let any = clause.any.iter().map(|atoms| {
        let mut rules: Vec<_> = atoms.iter().map(|atom| permission(permitted(atom))).collect();
        match rules.pop() {
            Some(only) if rules.is_empty() => only,
            last => {
                rules.extend(last);
                permission(Rule::AndRules(Set { rules }))
            }
        }
    });
    let rules: Vec<_> = any.collect();
    let any = if rules.is_empty() {
        permission(Rule::NotRule(Box::new(permission(Rule::Any(true)))))
    } else {
        permission(Rule::OrRules(Set { rules }))
    };
    if clause.negated { permission(Rule::NotRule(Box::new(any))) } else { any }
}

fn encode_principal(clause: &MatchedClause) -> rbac::Principal {
    use rbac::principal::{Identifier, Set};
    let any = clause.any.iter().map(|atoms| {
        let mut ids: Vec<_> = atoms.iter().map(|atom| principal(identified(atom))).collect();
        match ids.pop() {
            Some(only) if ids.is_empty() => only,
            last => {
                ids.extend(last);
                principal(Identifier::AndIds(Set { ids }))
            }
        }
    });
    let ids: Vec<_> = any.collect();
    let any = if ids.is_empty() {
        principal(Identifier::NotId(Box::new(principal(Identifier::Any(true)))))
    } else {
        principal(Identifier::OrIds(Set { ids }))
    };
    if clause.negated { principal(Identifier::NotId(Box::new(any))) } else { any }
}

/// Returns the permission for an atom about the operation. Atoms about the source do not occur here
/// and match nothing.
fn permitted(atom: &Atom<'_>) -> rbac::permission::Rule {
    use rbac::permission::Rule;
    match atom {
        Atom::Header(name, pattern) => Rule::Header(header(name, Some(pattern))),
        Atom::HeaderNowhere(name, pattern) => {
            let there = Rule::Header(header(name, Some(pattern)));
            Rule::NotRule(Box::new(permission(there)))
        }
        Atom::HeaderPresent(name) => Rule::Header(header(name, None)),
        Atom::Path(pattern) => Rule::UrlPath(path(pattern)),
        Atom::PathTemplate(template) => Rule::UriTemplate(TypedExtensionConfig {
            name: "uri-template".into(),
            typed_config: Some(any(&UriTemplateMatchConfig {
                path_template: template.to_string(),
            })),
        }),
        Atom::Port(port) => Rule::DestinationPort((*port).into()),
        Atom::DestinationAddress(range) => Rule::DestinationIp(cidr(range)),
        Atom::ServerName(pattern) => Rule::RequestedServerName(string(pattern)),
        Atom::Metadata(filter, path, pattern) => {
            Rule::SourcedMetadata(metadata(filter, path, pattern))
        }
        Atom::Identity(_) | Atom::PeerAddress(_) | Atom::ClientAddress(_) => {
            Rule::NotRule(Box::new(permission(Rule::Any(true))))
        }
    }
}

/// Returns the principal identifier for an atom about the source.
fn identified(atom: &Atom<'_>) -> rbac::principal::Identifier {
    use rbac::principal::{Authenticated, Identifier};
    match atom {
        Atom::Identity(pattern) => {
            Identifier::Authenticated(Authenticated { principal_name: Some(string(pattern)) })
        }
        Atom::PeerAddress(range) => Identifier::DirectRemoteIp(cidr(range)),
        Atom::ClientAddress(range) => Identifier::RemoteIp(cidr(range)),
        Atom::Header(name, pattern) => Identifier::Header(header(name, Some(pattern))),
        Atom::HeaderNowhere(name, pattern) => {
            let there = Identifier::Header(header(name, Some(pattern)));
            Identifier::NotId(Box::new(principal(there)))
        }
        Atom::HeaderPresent(name) => Identifier::Header(header(name, None)),
        Atom::Path(pattern) => Identifier::UrlPath(path(pattern)),
        Atom::Metadata(filter, path, pattern) => {
            Identifier::SourcedMetadata(metadata(filter, path, pattern))
        }
        Atom::PathTemplate(_)
        | Atom::Port(_)
        | Atom::DestinationAddress(_)
        | Atom::ServerName(_) => Identifier::NotId(Box::new(principal(Identifier::Any(true)))),
    }
}

fn cidr(range: &IpNet) -> CidrRange {
    CidrRange {
        address_prefix: range.addr().to_string(),
        prefix_len: Some(UInt32Value { value: range.prefix_len().into() }),
    }
}

/// If the value is a list, its elements are matched, because claims may be lists.
fn metadata(filter: &str, path: &[String], pattern: &TextPattern<'_>) -> rbac::SourcedMetadata {
    use matcher::metadata_matcher::{PathSegment, path_segment::Segment};
    use matcher::value_matcher::MatchPattern;
    let value = |pattern| matcher::ValueMatcher { match_pattern: Some(pattern) };
    let text = || value(MatchPattern::StringMatch(string(pattern)));
    let element = matcher::list_matcher::MatchPattern::OneOf(Box::new(text()));
    let list = matcher::ListMatcher { match_pattern: Some(element) };
    let either = vec![text(), value(MatchPattern::ListMatch(Box::new(list)))];
    let either = matcher::OrMatcher { value_matchers: either };
    let segment = |key: &String| PathSegment { segment: Some(Segment::Key(key.clone())) };
    let matcher = matcher::MetadataMatcher {
        filter: filter.into(),
        path: path.iter().map(segment).collect(),
        value: Some(value(MatchPattern::OrMatch(either))),
        ..Default::default()
    };
    let source = rbac::MetadataSource::Dynamic.into();
    rbac::SourcedMetadata { metadata_matcher: Some(matcher), metadata_source: source }
}

fn header(name: &str, pattern: Option<&TextPattern<'_>>) -> HeaderMatcher {
    use header_matcher::HeaderMatchSpecifier::{PresentMatch, StringMatch};
    HeaderMatcher {
        name: name.to_owned(),
        header_match_specifier: Some(match pattern {
            Some(pattern) => StringMatch(string(pattern)),
            None => PresentMatch(true),
        }),
        ..Default::default()
    }
}

fn path(pattern: &TextPattern<'_>) -> matcher::PathMatcher {
    let rule = matcher::path_matcher::Rule::Path(string(pattern));
    matcher::PathMatcher { rule: Some(rule) }
}

/// Returns the simplest matcher for the pattern.
fn string(pattern: &TextPattern<'_>) -> matcher::StringMatcher {
    use matcher::string_matcher::MatchPattern;
    let text = |text: &str| text.to_owned();
    let regex = || {
        MatchPattern::SafeRegex(matcher::RegexMatcher {
            regex: pattern.regex(),
            ..Default::default()
        })
    };
    // Consecutive texts are joined.
    let texts = pattern.parts.iter().map_while(|part| match part {
        TextPart::Text(text) => Some(&**text),
        _ => None,
    });
    let (count, begin) = (texts.clone().count(), texts.collect::<String>());
    // Envoy rejects an empty prefix or suffix.
    let plain = match &pattern.parts[..] {
        [_, _] if count == 2 => MatchPattern::Exact(begin),
        [_, _, TextPart::Any] if count == 2 && !begin.is_empty() => MatchPattern::Prefix(begin),
        [TextPart::Text(whole)] => MatchPattern::Exact(text(whole)),
        [TextPart::Text(prefix), TextPart::Any] if !prefix.is_empty() => {
            MatchPattern::Prefix(text(prefix))
        }
        [TextPart::Any, TextPart::Text(suffix)] if !suffix.is_empty() => {
            MatchPattern::Suffix(text(suffix))
        }
        _ => regex(),
    };
    let is_regex = matches!(plain, MatchPattern::SafeRegex(_));
    matcher::StringMatcher {
        match_pattern: Some(plain),
        // For a regular expression, Envoy uses the case sensitivity of the expression.
        ignore_case: pattern.ignore_case && !is_regex,
    }
}
