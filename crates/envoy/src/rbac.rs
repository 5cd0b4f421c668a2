//! Generates the RBAC filters of a workload: one `envoy.filters.http.rbac` or
//! `envoy.filters.network.rbac` for each action, in order of evaluation.

use std::collections::{BTreeMap, BTreeSet};

use prost::Message;

use super::rbac_rules::{
    EncodedPolicies, EncodedRules, RuleEncoder, encode_rbac, matching_never, permission, principal,
};
use super::{ext_authz, jwt};
use strait_mesh::push::authorizers::{Authorizer, Authorizers};
use strait_model::mesh_config::DOT_PARAMETER_REGEX;
use strait_proto::envoy::envoy::config::listener::v3 as listener;
use strait_proto::envoy::envoy::config::rbac::v3 as rbac;
use strait_proto::envoy::envoy::extensions::filters::network::http_connection_manager::v3 as hcm;
use strait_proto::envoy::envoy::r#type::matcher::v3 as matcher;
use strait_proto::envoy::google::protobuf::Any;
use strait_rules::access::{
    ActionRules, EnforcedRules, ReachableProviders, TrustBundle, WireForm, WorkloadAccess,
    enforced_policies,
};

const HTTP: &str = "envoy.filters.http.rbac";
const HTTP_TYPE: &str = "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC";
const NETWORK: &str = "envoy.filters.network.rbac";
const NETWORK_TYPE: &str = "type.googleapis.com/envoy.extensions.filters.network.rbac.v3.RBAC";

/// The access filters of one workload.
#[derive(Debug, Default)]
pub(super) struct AccessFilters {
    /// Filters for HTTP, which precede all filters that may respond.
    pub(super) http: Vec<hcm::HttpFilter>,
    /// Filters for other chains.
    pub(super) network: Vec<listener::Filter>,
    /// Whether a rule matches paths. If so, repeated slashes are merged, because they could bypass
    /// the rule.
    pub(super) looks_at_paths: bool,
}

impl AccessFilters {
    /// Returns the access filters of a workload whose proxy can query these providers.
    pub(super) fn new(
        access: &WorkloadAccess<'_>,
        trust: &TrustBundle,
        authorizers: &Authorizers<'_>,
        enforcer: jwt::Enforcer,
        encoded_policies: &EncodedPolicies,
    ) -> Self {
        if access.policies.is_empty() && access.requests.is_empty() {
            return Self::default();
        }
        // Tokens are verified before rules are evaluated.
        let token_rules = access.token_rules();
        let tokens = jwt::filter(&token_rules, enforcer);
        let encoder = RuleEncoder { encoded_policies, trust, token_rules: token_rules.len() };
        let providers = authorizers.reach();
        let rules = |form| {
            let policies = enforced_policies(access, form, &providers);
            policies.map(|policy| vec![encoder.rules(policy, form)])
        };
        let (requests, connections) = (rules(WireForm::Http), rules(WireForm::Tcp));
        let http_providers =
            each_provider(&requests, authorizers).flat_map(|(name, provider, rules)| {
                let [tried, noted] = noted_rules(name, rules).map(|rules| rules.map(http_rules));
                let query = noted.is_some().then(|| ext_authz::http_filter(name, provider));
                [tried, noted, query].into_iter().flatten()
            });
        let network_providers = each_provider(&connections, authorizers);
        let network_providers = network_providers.flat_map(|(name, provider, rules)| {
            let [tried, noted] = noted_rules(name, rules).map(|rules| rules.map(network_rules));
            let query =
                noted.is_some().then(|| ext_authz::network_filter(name, provider)).flatten();
            [tried, noted, query].into_iter().flatten()
        });
        let decides_by_path = access.decides_by_path();
        let judged =
            each_action(&requests, decides_by_path).map(|one| http_filter(one, decides_by_path));
        Self {
            looks_at_paths: requests.rules().any(EncodedRules::looks_at_paths),
            http: http_providers.chain(tokens).chain(judged).collect(),
            network: network_providers
                .chain(each_action(&connections, false).map(network_filter))
                .collect(),
        }
    }
}

/// Adds a rule to encoded DENY rules: it denies requests whose path has a dot segment with a
/// parameter (`/..;/`). Proxies don't resolve all of these segments, so a path could bypass rules.
fn with_dot_parameter_rule(rules: Option<Vec<u8>>) -> Vec<u8> {
    let regex = matcher::RegexMatcher { regex: DOT_PARAMETER_REGEX.into(), ..Default::default() };
    let pattern = matcher::string_matcher::MatchPattern::SafeRegex(regex);
    let path = matcher::StringMatcher { match_pattern: Some(pattern), ..Default::default() };
    let path = matcher::path_matcher::Rule::Path(path);
    let path = rbac::permission::Rule::UrlPath(matcher::PathMatcher { rule: Some(path) });
    let policy = rbac::Policy {
        permissions: vec![permission(path)],
        principals: vec![principal(rbac::principal::Identifier::Any(true))],
        ..Default::default()
    };
    let policies = [("dot-segments-with-parameters".to_owned(), policy)].into();
    let added = OrderedRbac { action: rbac::rbac::Action::Deny.into(), policies };
    // Concatenated messages are merged.
    let mut all = added.encode_to_vec();
    all.extend(rules.into_iter().flatten());
    all
}

/// Returns the rules that query providers, with the settings of each provider.
fn each_provider<'r>(
    rules: &'r EnforcedRules<EncodedRules>,
    authorizers: &'r Authorizers<'r>,
) -> impl Iterator<Item = (&'r str, &'r Authorizer<'r>, &'r ActionRules<EncodedRules>)> {
    authorizers
        .reachable()
        .filter_map(|(name, authorizer)| Some((&**name, authorizer, rules.custom.get(name)?)))
}

/// Rules that are only evaluated: their matches are recorded under keys with this prefix.
struct NotedRules {
    prefix: String,
    /// `envoy.config.rbac.v3.RBAC`.
    rules: Vec<u8>,
}

/// Returns the rules of a provider in dry-run mode, and the rules that query it.
fn noted_rules(provider: &str, rules: &ActionRules<EncodedRules>) -> [Option<NotedRules>; 2] {
    let noted = |prefix: String, rules: &Option<Vec<EncodedRules>>| {
        let keys = format!("istio-ext-authz-{provider}-");
        let rules = encode_rbac(rbac::rbac::Action::Deny, &keys, rules.as_deref()?)?;
        Some(NotedRules { prefix, rules })
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

/// Returns the filters of a proxyless gRPC server, which precede the filter that responds. A server
/// supports only one filter per name, and ignores rules in dry-run mode (gRFC A41).
pub(super) fn library_filters(
    access: &WorkloadAccess<'_>,
    trust: &TrustBundle,
    encoded_policies: &EncodedPolicies,
) -> Vec<hcm::HttpFilter> {
    let encoder = RuleEncoder { encoded_policies, trust, token_rules: access.token_rules().len() };
    let policies = enforced_policies(access, WireForm::Grpc, &ReachableProviders::new());
    let rules = policies.map(|policy| vec![encoder.rules(policy, WireForm::Grpc)]);
    let action = |action, name, rules: &ActionRules<EncodedRules>| {
        Some(library_filter(name, encode_action(action, rules.enforced.as_deref())?))
    };
    [
        action(rbac::rbac::Action::Deny, "deny", &rules.deny),
        action(rbac::rbac::Action::Allow, "allow", &rules.allow),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Returns a filter for proxyless gRPC that allows only identities in these trust domains. Without
/// domains it denies all requests.
pub(super) fn trust_domain_filter(domains: &BTreeSet<&str>) -> hcm::HttpFilter {
    let everything = permission(rbac::permission::Rule::Any(true));
    let domain_principal = |domain: &&str| {
        let prefix = matcher::string_matcher::MatchPattern::Prefix(format!("spiffe://{domain}/"));
        let name = matcher::StringMatcher { match_pattern: Some(prefix), ..Default::default() };
        principal(rbac::principal::Identifier::Authenticated(rbac::principal::Authenticated {
            principal_name: Some(name),
        }))
    };
    let policy = rbac::Policy {
        permissions: vec![everything],
        principals: domains.iter().map(domain_principal).collect(),
        ..Default::default()
    };
    let policies = [("trust-domains".to_owned(), policy)];
    let policies = policies.into_iter().filter(|_| !domains.is_empty()).collect();
    let rules = OrderedRbac { action: rbac::rbac::Action::Allow.into(), policies };
    library_filter("identity", rules.encode_to_vec())
}

/// Returns a filter for proxyless gRPC that denies all requests.
pub(super) fn deny_all() -> hcm::HttpFilter {
    let policies = [("nobody".to_owned(), matching_never())].into();
    let rules = OrderedRbac { action: rbac::rbac::Action::Allow.into(), policies };
    library_filter("nobody", rules.encode_to_vec())
}

fn library_filter(name: &str, rules: Vec<u8>) -> hcm::HttpFilter {
    let config = HttpRbac { rules: Some(rules), ..HttpRbac::default() };
    let config = Any { type_url: HTTP_TYPE.into(), value: config.encode_to_vec() };
    hcm::HttpFilter {
        name: format!("{HTTP}.{name}"),
        config_type: Some(hcm::http_filter::ConfigType::TypedConfig(config)),
        ..Default::default()
    }
}

/// Returns the actions that have rules, with the metrics prefix for their dry-run rules, and also
/// DENY if `denies_anyway`.
fn each_action(
    rules: &EnforcedRules<EncodedRules>,
    denies_anyway: bool,
) -> impl Iterator<Item = (rbac::rbac::Action, &'static str, &ActionRules<EncodedRules>)> {
    let all = [
        (rbac::rbac::Action::Log, "istio_dry_run_audit_", &rules.audit),
        (rbac::rbac::Action::Deny, "istio_dry_run_deny_", &rules.deny),
        (rbac::rbac::Action::Allow, "istio_dry_run_allow_", &rules.allow),
    ];
    all.into_iter().filter(move |(action, _, rules)| {
        !rules.is_empty() || (denies_anyway && *action == rbac::rbac::Action::Deny)
    })
}

fn http_filter(
    (action, tried, rules): (rbac::rbac::Action, &'static str, &ActionRules<EncodedRules>),
    decides_by_path: bool,
) -> hcm::HttpFilter {
    let shadow = encode_action(action, rules.tried.as_deref());
    let enforced = encode_action(action, rules.enforced.as_deref());
    let config = HttpRbac {
        rules: match decides_by_path && action == rbac::rbac::Action::Deny {
            true => Some(with_dot_parameter_rule(enforced)),
            false => enforced,
        },
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
    (action, tried, rules): (rbac::rbac::Action, &'static str, &ActionRules<EncodedRules>),
) -> listener::Filter {
    let shadow = encode_action(action, rules.tried.as_deref());
    let config = NetworkRbac {
        rules: encode_action(action, rules.enforced.as_deref()),
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

/// The used part of `envoy.extensions.filters.http.rbac.v3.RBAC`, with encoded rules.
#[derive(Clone, PartialEq, Message)]
struct HttpRbac {
    #[prost(bytes = "vec", optional, tag = "1")]
    rules: Option<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "2")]
    shadow_rules: Option<Vec<u8>>,
    #[prost(string, tag = "3")]
    shadow_rules_stat_prefix: String,
}

/// The used part of `envoy.extensions.filters.network.rbac.v3.RBAC`, with encoded rules.
#[derive(Clone, PartialEq, Message)]
struct NetworkRbac {
    #[prost(bytes = "vec", optional, tag = "1")]
    rules: Option<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "2")]
    shadow_rules: Option<Vec<u8>>,
    #[prost(string, tag = "3")]
    stat_prefix: String,
    #[prost(string, tag = "5")]
    shadow_rules_stat_prefix: String,
}

/// The used part of `envoy.config.rbac.v3.RBAC`, for rules that belong to no policy.
#[derive(Clone, PartialEq, Message)]
struct OrderedRbac {
    #[prost(enumeration = "rbac::rbac::Action", tag = "1")]
    action: i32,
    #[prost(btree_map = "string, message", tag = "2")]
    policies: BTreeMap<String, rbac::Policy>,
}

fn encode_action(action: rbac::rbac::Action, rules: Option<&[EncodedRules]>) -> Option<Vec<u8>> {
    encode_rbac(action, "", rules?)
}
