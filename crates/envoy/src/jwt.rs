//! JWT validation of a workload, with Envoy's filter `envoy.filters.http.jwt_authn`.
//!
//! A request without a token passes, unless a rule that cannot be read may require one. A request
//! with an invalid token that matches a rule is refused (401). Verified payloads are stored under
//! one key per provider, so that a token of one provider cannot pass as a token of another.

use std::borrow::Cow;
use std::collections::BTreeSet;

use prost::Message;

use strait_proto::envoy::envoy::config::core::v3::{DataSource, data_source};
use strait_proto::envoy::envoy::config::route::v3::{RouteMatch, route_match};
use strait_proto::envoy::envoy::extensions::filters::http::jwt_authn::v3 as jwt;
use strait_proto::envoy::envoy::extensions::filters::network::http_connection_manager::v3 as hcm;
use strait_proto::envoy::google::protobuf::{Any, Empty};
use strait_rules::access::{TokenRule, token_key};

const NAME: &str = "envoy.filters.http.jwt_authn";
const TYPE: &str =
    "type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication";
/// A key set that verifies nothing, because Envoy rejects an empty set. It contains the point on
/// P-256 whose x coordinate is the SHA-256 of "strait: a key that nobody has 1" and whose y is
/// even, so its private key is unknown.
const NO_KEYS: &str = r#"{"keys":[{"kty":"EC","crv":"P-256","alg":"ES256","x":"LpgXUJBl11nMkgkPS2pXhmFyJoBwEhxlerbWQGbWOlo","y":"20_Y8LKheGvgLvTjRgg_jrS02bHFdeXxVlxUaAm-17o"}]}"#;

/// The used part of `JwtAuthentication`, with providers in a fixed order.
#[derive(Clone, PartialEq, Message)]
struct OrderedJwt {
    #[prost(btree_map = "string, message", tag = "1")]
    providers: std::collections::BTreeMap<String, jwt::JwtProvider>,
    #[prost(message, repeated, tag = "2")]
    rules: Vec<jwt::RequirementRule>,
    #[prost(bool, tag = "4")]
    bypass_cors_preflight: bool,
}

/// The kind of proxy that enforces the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Enforcer {
    /// A sidecar.
    Sidecar,
    /// A router.
    Router,
}

/// Returns the filter for these rules, or `None` if there are no rules.
pub(super) fn filter(rules: &[Cow<'_, TokenRule>], at: Enforcer) -> Option<hcm::HttpFilter> {
    if rules.is_empty() {
        return None;
    }
    let name = |at: usize| format!("origins-{at}");
    let groups = groups(rules);
    let providers = rules.iter().enumerate().map(|(place, rule)| {
        let mut provider = provider(rule, token_key(place, rules.len()));
        let sharing = groups.iter().find(|members| members.contains(&place));
        let sharing = sharing.into_iter().flatten().map(|at| &*rules[*at]);
        provider.claim_to_headers.extend(removed_headers(rule, sharing));
        // Routes of a router may match claims, but the route was selected before the claims were
        // known.
        let clear_route_cache = at == Enforcer::Router;
        (name(place), jwt::JwtProvider { clear_route_cache, ..provider })
    });
    let config = OrderedJwt {
        providers: providers.collect(),
        rules: vec![jwt::RequirementRule {
            r#match: Some(RouteMatch {
                path_specifier: Some(route_match::PathSpecifier::Prefix("/".into())),
                ..Default::default()
            }),
            requirement_type: Some(jwt::requirement_rule::RequirementType::Requires(requirement(
                &groups, rules, name,
            ))),
        }],
        bypass_cors_preflight: true,
    };
    let config = Any { type_url: TYPE.into(), value: config.encode_to_vec() };
    Some(hcm::HttpFilter {
        name: NAME.into(),
        config_type: Some(hcm::http_filter::ConfigType::TypedConfig(config)),
        ..Default::default()
    })
}

fn provider(rule: &TokenRule, key: String) -> jwt::JwtProvider {
    let keys = rule.keys.as_deref().unwrap_or(NO_KEYS);
    let mut from_headers: Vec<_> = rule
        .from_headers
        .iter()
        .map(|(name, prefix)| jwt::JwtHeader { name: name.clone(), value_prefix: prefix.clone() })
        .collect();
    let mut from_params = rule.from_params.clone();
    if from_headers.is_empty() && from_params.is_empty() && rule.from_cookies.is_empty() {
        from_headers
            .push(jwt::JwtHeader { name: "Authorization".into(), value_prefix: "Bearer ".into() });
        from_params.push("access_token".into());
    }
    let claims = rule.claim_headers.iter().map(|(header, claim)| jwt::JwtClaimToHeader {
        header_name: header.clone(),
        claim_name: claim.clone(),
        ..Default::default()
    });
    jwt::JwtProvider {
        issuer: rule.issuer.clone(),
        audiences: rule.audiences.clone(),
        from_headers,
        from_params,
        from_cookies: rule.from_cookies.clone(),
        forward: rule.forward,
        forward_payload_header: rule.payload_header.clone().unwrap_or_default(),
        claim_to_headers: claims.collect(),
        payload_in_metadata: key,
        normalize_payload_in_metadata: Some(jwt::jwt_provider::NormalizePayload {
            space_delimited_claims: rule.lists_in_text(),
        }),
        jwks_source_specifier: Some(jwt::jwt_provider::JwksSourceSpecifier::LocalJwks(
            DataSource {
                specifier: Some(data_source::Specifier::InlineString(keys.into())),
                ..Default::default()
            },
        )),
        ..Default::default()
    }
}

/// Returns the locations in which a token is looked up, as text.
fn places(rule: &TokenRule) -> Vec<String> {
    let headers =
        rule.from_headers.iter().map(|(name, _)| format!("header {}", name.to_ascii_lowercase()));
    let params = rule.from_params.iter().map(|name| format!("query {name}"));
    let cookies = rule.from_cookies.iter().map(|name| format!("cookie {name}"));
    let all: Vec<_> = headers.chain(params).chain(cookies).collect();
    if all.is_empty() {
        vec!["header authorization".into(), "query access_token".into()]
    } else {
        all
    }
}

/// Returns the headers in which a rule passes token content to the workload, in lower case.
fn passed_headers(rule: &TokenRule) -> impl Iterator<Item = String> {
    let claims = rule.claim_headers.iter().map(|(header, _)| header);
    claims.chain(&rule.payload_header).map(|name| name.to_ascii_lowercase())
}

/// The name of a claim that no token has.
const NO_CLAIM: &str = "strait/no claim";

/// Returns header mappings that remove the headers of other rules in the group from requests. Envoy
/// removes the headers of each rule that it evaluates, but it stops at the first rule with a valid
/// token. Without these mappings, a client with a token of one issuer could forge the headers of
/// another.
fn removed_headers<'r>(
    rule: &TokenRule,
    sharing: impl Iterator<Item = &'r TokenRule>,
) -> Vec<jwt::JwtClaimToHeader> {
    let mut others: BTreeSet<String> = sharing.flat_map(passed_headers).collect();
    for own in passed_headers(rule) {
        others.remove(&own);
    }
    let free = others.into_iter().map(|header_name| jwt::JwtClaimToHeader {
        header_name,
        claim_name: NO_CLAIM.into(),
        ..Default::default()
    });
    free.collect()
}

/// Groups the rules that look up tokens in the same locations, because each of them rejects tokens
/// of the others.
fn groups(rules: &[Cow<'_, TokenRule>]) -> Vec<Vec<usize>> {
    let mut groups: Vec<(Vec<String>, Vec<usize>)> = Vec::new();
    for (at, rule) in rules.iter().enumerate() {
        let mut group = (places(rule), vec![at]);
        let shares =
            |other: &(Vec<String>, Vec<usize>)| other.0.iter().any(|place| group.0.contains(place));
        let (sharing, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut groups).into_iter().partition(shares);
        for (places, members) in sharing {
            group.0.extend(places);
            group.1.extend(members);
        }
        group.1.sort_unstable();
        groups = others;
        groups.push(group);
    }
    let mut groups: Vec<_> = groups.into_iter().map(|(_, members)| members).collect();
    groups.sort();
    groups
}

/// Returns the requirement that each location contains no token or a token that a rule for this
/// location accepts. If a rule requires a token, the location must contain one. Rules that share a
/// location share one requirement.
fn requirement(
    groups: &[Vec<usize>],
    rules: &[Cow<'_, TokenRule>],
    name: impl Fn(usize) -> String,
) -> jwt::JwtRequirement {
    use jwt::jwt_requirement::RequiresType;
    let require = |kind| jwt::JwtRequirement { requires_type: Some(kind) };
    let group_requirement = |members: &Vec<usize>| {
        let providers = members.iter().map(|at| require(RequiresType::ProviderName(name(*at))));
        let is_required = members.iter().any(|at| rules[*at].requires_token);
        let missing = (!is_required).then(|| require(RequiresType::AllowMissing(Empty {})));
        let requirements = providers.chain(missing).collect();
        require(RequiresType::RequiresAny(jwt::JwtRequirementOrList { requirements }))
    };
    let mut all: Vec<_> = groups.iter().map(group_requirement).collect();
    match all.pop() {
        Some(only) if all.is_empty() => only,
        last => {
            all.extend(last);
            require(RequiresType::RequiresAll(jwt::JwtRequirementAndList { requirements: all }))
        }
    }
}
