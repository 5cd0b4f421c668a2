//! What a workload enforces, as filters of Envoy: one of `envoy.filters.http.rbac` or `envoy.filters.network.rbac` for
//! each action, in the order in which they decide.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use prost::Message;
use strait_proto::envoy::envoy::config::core::v3::{CidrRange, TypedExtensionConfig};
use strait_proto::envoy::envoy::config::listener::v3 as listener;
use strait_proto::envoy::envoy::config::rbac::v3 as rbac;
use strait_proto::envoy::envoy::config::route::v3::{HeaderMatcher, header_matcher};
use strait_proto::envoy::envoy::extensions::filters::network::http_connection_manager::v3 as hcm;
use strait_proto::envoy::envoy::extensions::path::r#match::uri_template::v3::UriTemplateMatchConfig;
use strait_proto::envoy::envoy::r#type::matcher::v3 as matcher;
use strait_proto::envoy::google::protobuf::{Any, UInt32Value};

use super::{any, ext_authz, jwt};
use crate::access::{
    ActionRules, Atom, EnforcedRules, MatchedClause, ReachableProviders, RuleMatcher, TextPart,
    TextPattern, TrustBundle, WireForm, WorkloadAccess, enforced,
};
use crate::push::authorizers::{Authorizer, Authorizers};

const HTTP: &str = "envoy.filters.http.rbac";
const HTTP_TYPE: &str = "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC";
const NETWORK: &str = "envoy.filters.network.rbac";
const NETWORK_TYPE: &str = "type.googleapis.com/envoy.extensions.filters.network.rbac.v3.RBAC";

/// What guards the chains of one workload.
#[derive(Debug, Default)]
pub(super) struct AccessFilters {
    /// For chains of HTTP, before all that answers requests.
    pub(super) http: Vec<hcm::HttpFilter>,
    /// For other chains.
    pub(super) network: Vec<listener::Filter>,
    /// Whether any rule looks at paths, so that two slashes must not pass for something else than one.
    pub(super) looks_at_paths: bool,
}

impl AccessFilters {
    /// Those of a workload, whose proxy can ask these providers.
    pub(super) fn of(
        access: &WorkloadAccess<'_>,
        trust: &TrustBundle,
        authorizers: &Authorizers<'_>,
        of: jwt::Enforcer,
    ) -> Self {
        if access.policies.is_empty() && access.requests.is_empty() {
            return Self::default();
        }
        // Who calls is found out before it is judged.
        let tokens = jwt::filter(&access.token_rules(), of);
        let providers = authorizers.reach();
        let requests = enforced(access, WireForm::Http, trust, &providers);
        let connections = enforced(access, WireForm::Tcp, trust, &providers);
        let asked = each_provider(&requests, authorizers).flat_map(|(name, provider, rules)| {
            let [tried, noted] = noted_rules(name, rules).map(|rules| rules.map(http_rules));
            let ask = noted.is_some().then(|| ext_authz::http_filter(name, provider));
            [tried, noted, ask].into_iter().flatten()
        });
        let asked_of = each_provider(&connections, authorizers);
        let asked_of = asked_of.flat_map(|(name, provider, rules)| {
            let [tried, noted] = noted_rules(name, rules).map(|rules| rules.map(network_rules));
            let ask = noted.is_some().then(|| ext_authz::network_filter(name, provider)).flatten();
            [tried, noted, ask].into_iter().flatten()
        });
        let judged = each_action(&requests).map(http_filter);
        Self {
            looks_at_paths: requests.looks_at_paths(),
            http: asked.chain(tokens).chain(judged).collect(),
            network: asked_of.chain(each_action(&connections).map(network_filter)).collect(),
        }
    }
}

/// The rules by which providers are asked, with how that is done.
fn each_provider<'r>(
    rules: &'r EnforcedRules,
    authorizers: &'r Authorizers<'r>,
) -> impl Iterator<Item = (&'r str, &'r Authorizer<'r>, &'r ActionRules)> {
    authorizers
        .reachable()
        .filter_map(|(name, authorizer)| Some((&**name, authorizer, rules.custom.get(name)?)))
}

/// Rules that decide nothing: what they match is noted under keys that begin so.
struct NotedRules {
    prefix: String,
    rules: OrderedRbac,
}

/// A provider's rules that are only tried, and those by which it is asked.
fn noted_rules(provider: &str, rules: &ActionRules) -> [Option<NotedRules>; 2] {
    let noted = |prefix: String, rules: &Option<Vec<RuleMatcher>>| {
        let mut rules = of_action(rbac::rbac::Action::Deny, rules.as_deref())?;
        let policies = std::mem::take(&mut rules.policies).into_iter();
        let named = policies.map(|(key, rule)| (format!("istio-ext-authz-{provider}-{key}"), rule));
        Some(NotedRules { prefix, rules: OrderedRbac { policies: named.collect(), ..rules } })
    };
    [
        noted(ext_authz::tried_prefix(provider), &rules.tried),
        noted(ext_authz::stat_prefix(provider), &rules.enforced),
    ]
}

fn http_rules(noted: NotedRules) -> hcm::HttpFilter {
    http_rbac(HttpRbac {
        rules: None,
        shadow_rules: Some(noted.rules),
        shadow_rules_stat_prefix: noted.prefix,
    })
}

fn network_rules(noted: NotedRules) -> listener::Filter {
    network_rbac(NetworkRbac {
        rules: None,
        shadow_rules: Some(noted.rules),
        shadow_rules_stat_prefix: noted.prefix,
        stat_prefix: "tcp.".into(),
    })
}

/// The filters of a server that is gRPC's own library, before the one that answers. It takes no two of one name, and does
/// nothing with rules that are only tried (gRFC A41).
pub(super) fn of_library(access: &WorkloadAccess<'_>, trust: &TrustBundle) -> Vec<hcm::HttpFilter> {
    let rules = enforced(access, WireForm::Grpc, trust, &ReachableProviders::new());
    let action = |action, name, rules: &ActionRules| {
        Some(library_filter(name, of_action(action, rules.enforced.as_deref())?))
    };
    [
        action(rbac::rbac::Action::Deny, "deny", &rules.deny),
        action(rbac::rbac::Action::Allow, "allow", &rules.allow),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// A library's filter that lets in who has an identity in one of these trust domains. Where there are none it is nobody.
pub(super) fn only_of_trust_domains(domains: &BTreeSet<&str>) -> hcm::HttpFilter {
    let everything = permission(rbac::permission::Rule::Any(true));
    let of_domain = |domain: &&str| {
        let prefix = matcher::string_matcher::MatchPattern::Prefix(format!("spiffe://{domain}/"));
        let name = matcher::StringMatcher { match_pattern: Some(prefix), ..Default::default() };
        principal(rbac::principal::Identifier::Authenticated(rbac::principal::Authenticated {
            principal_name: Some(name),
        }))
    };
    let policy = rbac::Policy {
        permissions: vec![everything],
        principals: domains.iter().map(of_domain).collect(),
        ..Default::default()
    };
    let policies = [("trust-domains".to_owned(), policy)];
    let policies = policies.into_iter().filter(|_| !domains.is_empty()).collect();
    library_filter("identity", OrderedRbac { action: rbac::rbac::Action::Allow.into(), policies })
}

/// A library's filter that lets in nobody.
pub(super) fn nobody() -> hcm::HttpFilter {
    let policies = [("nobody".to_owned(), matching_never())].into();
    library_filter("nobody", OrderedRbac { action: rbac::rbac::Action::Allow.into(), policies })
}

fn library_filter(name: &str, rules: OrderedRbac) -> hcm::HttpFilter {
    let config = HttpRbac { rules: Some(rules), ..HttpRbac::default() };
    let config = Any { type_url: HTTP_TYPE.into(), value: config.encode_to_vec() };
    hcm::HttpFilter {
        name: format!("{HTTP}.{name}"),
        config_type: Some(hcm::http_filter::ConfigType::TypedConfig(config)),
        ..Default::default()
    }
}

/// The actions that have anything to do, with the name under which what is tried is counted.
fn each_action(
    rules: &EnforcedRules,
) -> impl Iterator<Item = (rbac::rbac::Action, &'static str, &ActionRules)> {
    let all = [
        (rbac::rbac::Action::Log, "istio_dry_run_audit_", &rules.audit),
        (rbac::rbac::Action::Deny, "istio_dry_run_deny_", &rules.deny),
        (rbac::rbac::Action::Allow, "istio_dry_run_allow_", &rules.allow),
    ];
    all.into_iter().filter(|(_, _, rules)| !rules.is_empty())
}

fn http_filter(
    (action, tried, rules): (rbac::rbac::Action, &'static str, &ActionRules),
) -> hcm::HttpFilter {
    let shadow = of_action(action, rules.tried.as_deref());
    let config = HttpRbac {
        rules: of_action(action, rules.enforced.as_deref()),
        shadow_rules_stat_prefix: if shadow.is_some() { tried.into() } else { String::new() },
        shadow_rules: shadow,
    };
    http_rbac(config)
}

fn http_rbac(config: HttpRbac) -> hcm::HttpFilter {
    let config = Any { type_url: HTTP_TYPE.into(), value: config.encode_to_vec() };
    hcm::HttpFilter {
        name: HTTP.into(),
        config_type: Some(hcm::http_filter::ConfigType::TypedConfig(config)),
        ..Default::default()
    }
}

fn network_filter(
    (action, tried, rules): (rbac::rbac::Action, &'static str, &ActionRules),
) -> listener::Filter {
    let shadow = of_action(action, rules.tried.as_deref());
    let config = NetworkRbac {
        rules: of_action(action, rules.enforced.as_deref()),
        shadow_rules_stat_prefix: if shadow.is_some() { tried.into() } else { String::new() },
        shadow_rules: shadow,
        stat_prefix: "tcp.".into(),
    };
    network_rbac(config)
}

fn network_rbac(config: NetworkRbac) -> listener::Filter {
    let config = Any { type_url: NETWORK_TYPE.into(), value: config.encode_to_vec() };
    listener::Filter {
        name: NETWORK.into(),
        config_type: Some(listener::filter::ConfigType::TypedConfig(config)),
    }
}

/// `envoy.extensions.filters.http.rbac.v3.RBAC`, as far as it is used, with policies in one order.
#[derive(Clone, PartialEq, Message)]
struct HttpRbac {
    #[prost(message, optional, tag = "1")]
    rules: Option<OrderedRbac>,
    #[prost(message, optional, tag = "2")]
    shadow_rules: Option<OrderedRbac>,
    #[prost(string, tag = "3")]
    shadow_rules_stat_prefix: String,
}

/// `envoy.extensions.filters.network.rbac.v3.RBAC` likewise.
#[derive(Clone, PartialEq, Message)]
struct NetworkRbac {
    #[prost(message, optional, tag = "1")]
    rules: Option<OrderedRbac>,
    #[prost(message, optional, tag = "2")]
    shadow_rules: Option<OrderedRbac>,
    #[prost(string, tag = "3")]
    stat_prefix: String,
    #[prost(string, tag = "5")]
    shadow_rules_stat_prefix: String,
}

/// `envoy.config.rbac.v3.RBAC` likewise: equal policies make equal bytes.
#[derive(Clone, PartialEq, Message)]
struct OrderedRbac {
    #[prost(enumeration = "rbac::rbac::Action", tag = "1")]
    action: i32,
    #[prost(btree_map = "string, message", tag = "2")]
    policies: BTreeMap<String, rbac::Policy>,
}

fn of_action(action: rbac::rbac::Action, rules: Option<&[RuleMatcher]>) -> Option<OrderedRbac> {
    let rules = rules?;
    if rules.is_empty() && action != rbac::rbac::Action::Allow {
        return None;
    }
    let policies = rules.iter().map(|rule| (rule.key.clone(), policy(rule)));
    Some(OrderedRbac { action: action.into(), policies: policies.collect() })
}

fn policy(rule: &RuleMatcher) -> rbac::Policy {
    let anything = permission(rbac::permission::Rule::Any(true));
    let anybody = principal(rbac::principal::Identifier::Any(true));
    if rule.never {
        return matching_never();
    }
    let permissions = rule.operations.iter().map(|clauses| {
        let rules: Vec<_> = clauses.iter().map(permission_of).collect();
        let rules = if rules.is_empty() { vec![anything.clone()] } else { rules };
        permission(rbac::permission::Rule::AndRules(rbac::permission::Set { rules }))
    });
    let principals = rule.sources.iter().map(|clauses| {
        let ids: Vec<_> = clauses.iter().map(principal_of).collect();
        let ids = if ids.is_empty() { vec![anybody.clone()] } else { ids };
        principal(rbac::principal::Identifier::AndIds(rbac::principal::Set { ids }))
    });
    rbac::Policy {
        permissions: permissions.collect(),
        principals: principals.collect(),
        ..Default::default()
    }
}

fn matching_never() -> rbac::Policy {
    let anything = permission(rbac::permission::Rule::Any(true));
    let anybody = principal(rbac::principal::Identifier::Any(true));
    rbac::Policy {
        permissions: vec![permission(rbac::permission::Rule::NotRule(Box::new(anything)))],
        principals: vec![principal(rbac::principal::Identifier::NotId(Box::new(anybody)))],
        ..Default::default()
    }
}

fn permission(rule: rbac::permission::Rule) -> rbac::Permission {
    rbac::Permission { rule: Some(rule) }
}

fn principal(identifier: rbac::principal::Identifier) -> rbac::Principal {
    rbac::Principal { identifier: Some(identifier) }
}

fn permission_of(clause: &MatchedClause) -> rbac::Permission {
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

fn principal_of(clause: &MatchedClause) -> rbac::Principal {
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

/// An atom about what is called. One that is about who calls is never among these, and matches nothing.
fn permitted(atom: &Atom) -> rbac::permission::Rule {
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
            typed_config: Some(any(&UriTemplateMatchConfig { path_template: template.clone() })),
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

/// An atom about who calls.
fn identified(atom: &Atom) -> rbac::principal::Identifier {
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

fn header(name: &str, pattern: Option<&TextPattern>) -> HeaderMatcher {
    use header_matcher::HeaderMatchSpecifier::{PresentMatch, StringMatch};
    HeaderMatcher {
        name: name.into(),
        header_match_specifier: Some(match pattern {
            Some(pattern) => StringMatch(string(pattern)),
            None => PresentMatch(true),
        }),
        ..Default::default()
    }
}

fn path(pattern: &TextPattern) -> matcher::PathMatcher {
    let rule = matcher::path_matcher::Rule::Path(string(pattern));
    matcher::PathMatcher { rule: Some(rule) }
}

/// A list of texts counts by its elements, as claims may be lists.
fn metadata(filter: &str, path: &[String], pattern: &TextPattern) -> rbac::SourcedMetadata {
    use matcher::metadata_matcher::{PathSegment, path_segment::Segment};
    use matcher::value_matcher::MatchPattern;
    let value = |pattern| matcher::ValueMatcher { match_pattern: Some(pattern) };
    let text = || value(MatchPattern::StringMatch(string(pattern)));
    let one_of = matcher::list_matcher::MatchPattern::OneOf(Box::new(text()));
    let list = matcher::ListMatcher { match_pattern: Some(one_of) };
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

/// The plainest matcher that says the same.
fn string(pattern: &TextPattern) -> matcher::StringMatcher {
    use matcher::string_matcher::MatchPattern;
    let text = |text: &String| text.clone();
    let regex = || {
        MatchPattern::SafeRegex(matcher::RegexMatcher {
            regex: pattern.regex(),
            ..Default::default()
        })
    };
    // An empty prefix or suffix is none that Envoy takes.
    let plain = match &pattern.parts[..] {
        [TextPart::Text(one)] => MatchPattern::Exact(text(one)),
        [TextPart::Text(one), TextPart::Any] if !one.is_empty() => MatchPattern::Prefix(text(one)),
        [TextPart::Any, TextPart::Text(one)] if !one.is_empty() => MatchPattern::Suffix(text(one)),
        _ => regex(),
    };
    let is_regex = matches!(plain, MatchPattern::SafeRegex(_));
    matcher::StringMatcher {
        match_pattern: Some(plain),
        // Of a regular expression Envoy takes it from the expression alone.
        ignore_case: pattern.ignore_case && !is_regex,
    }
}
