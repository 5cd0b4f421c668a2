//! Translates rules to Envoy's routes. (docs/reference/traffic.md, "Match" and "Action".)
//!
//! Pure: [`RuleInputs`] contains all inputs of a route apart from its rule. A rule or match with a
//! value that Envoy refuses becomes a route that responds with 500.

use std::collections::BTreeMap;
use std::time::Duration;

use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, message, string};

use super::super::lds::{RetryOn, bool_value, retries, route_to};
use super::super::{any, duration};
use super::claims;
use super::text::{regex, string_match};
use strait_model::mesh_config::RetryRule;
use strait_model::{Hostname, Namespace};
use strait_proto::envoy::envoy::config::core::v3 as core;
use strait_proto::envoy::envoy::config::route::v3 as route;
use strait_proto::envoy::envoy::extensions::filters::common::fault::v3 as common_fault;
use strait_proto::envoy::envoy::extensions::filters::http::cors::v3::CorsPolicy;
use strait_proto::envoy::envoy::extensions::filters::http::fault::v3 as fault;
use strait_proto::envoy::envoy::extensions::retry::priority::previous_priorities::v3::PreviousPrioritiesConfig;
use strait_proto::envoy::envoy::r#type::matcher::v3 as matcher;
use strait_proto::envoy::envoy::r#type::v3::{FractionalPercent, fractional_percent};
use strait_proto::envoy::google::protobuf::{Any, Struct, UInt32Value, Value, value};
use strait_rules::traffic::policy::HashKey;
use strait_rules::traffic::route::{
    AbortStatus, CrossOrigin, Destination, HeaderChanges, HeaderEdits, HttpRoutes, HttpRule,
    InjectedFault, MESH, Mirror, PathMatch, PathRewrite, RedirectPath, RedirectPort, RedirectRule,
    RequestMatch, TextMatch,
};
use strait_rules::traffic::{Selection, re2};
use strait_xds::names::OutboundName;

/// An upstream cluster that never exists. Requests to it fail with 500.
pub(crate) const NOWHERE: &str = "UnknownService";

/// The filter that injects faults.
pub(crate) const FAULT: &str = "envoy.filters.http.fault";

/// Field numbers of `VirtualHost` and `Route`.
mod field {
    pub(super) const ROUTES: u32 = 3;
    pub(super) const TYPED_PER_FILTER_CONFIG: u32 = 13;
}

/// The inputs of routes, apart from their rules.
#[derive(Clone, Copy)]
pub(crate) struct RuleInputs<'a> {
    /// The proxy's namespace.
    pub(super) namespace: &'a Namespace,
    /// The selectors that select the proxy.
    pub(super) selection: &'a Selection,
    /// The gateway at which requests arrive; [`strait_rules::traffic::route::MESH`] for a sidecar.
    pub(super) gateway: &'a str,
    /// The port that clients connect to.
    pub(super) port: u16,
    /// Whether the proxy terminates TLS on this port.
    pub(super) is_tls: bool,
    /// Returns the service for a host: the host itself, or the target of an alias.
    pub(super) target: &'a dyn Fn(&Hostname) -> Hostname,
    /// Returns the number of a service's port with the given name, or of the only port.
    pub(super) unnumbered_port: &'a dyn Fn(&Hostname, &str) -> Option<u16>,
    /// Returns the part of a request that is hashed to select an endpoint of a destination's port,
    /// if consistent hashing is used.
    pub(super) hash_key: &'a dyn Fn(&Destination, u16) -> Option<HashKey>,
    /// The mesh's default for retries, for rules without a setting.
    pub(super) retries: Option<&'a RetryRule>,
    /// The number of token rules of the proxy. Each stores claims under a separate key.
    pub(super) token_rules: usize,
}

/// A route and the configuration of filters for it.
#[derive(Debug, Clone, Default)]
pub(super) struct RuleRoute {
    pub(super) route: route::Route,
    /// Filter configuration by name. Kept outside of the route, because the order of a protobuf map
    /// is not fixed.
    pub(super) filters: BTreeMap<&'static str, Any>,
    /// Whether the route matches every request.
    pub(super) is_catch_all: bool,
}

impl RuleRoute {
    /// Returns the route with conditions on claims.
    fn with_claims(&self, claims: Vec<matcher::MetadataMatcher>) -> Self {
        let mut route = self.clone();
        if let Some(matches) = &mut route.route.r#match {
            matches.dynamic_metadata = claims;
        }
        route
    }

    /// Returns the route with additional conditions on headers.
    pub(super) fn with_headers(&self, more: Vec<route::HeaderMatcher>) -> Self {
        let mut route = self.clone();
        route.is_catch_all &= more.is_empty();
        if let Some(matches) = &mut route.route.r#match {
            matches.headers.extend(more);
        }
        route
    }

    /// Writes the route as a field of a virtual host.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let mut filters = Vec::new();
        for (name, config) in &self.filters {
            let mut entry = Vec::new();
            string::encode(1, &(*name).to_owned(), &mut entry);
            message::encode(2, config, &mut entry);
            encode_key(field::TYPED_PER_FILTER_CONFIG, WireType::LengthDelimited, &mut filters);
            encode_varint(entry.len() as u64, &mut filters);
            filters.extend(entry);
        }
        encode_key(field::ROUTES, WireType::LengthDelimited, out);
        encode_varint((self.route.encoded_len() + filters.len()) as u64, out);
        self.route.encode(out).expect("a vector has room");
        out.extend(filters);
    }
}

/// Returns the routes of these rules for a proxy of this kind as fields of a virtual host, empty if
/// no rule applies. Also returns the position of the route that matches every request, which is the
/// last one, or the length if there is none.
pub(crate) fn encoded(rules: &HttpRoutes, inputs: RuleInputs<'_>) -> (Vec<u8>, usize) {
    let mut bytes = Vec::new();
    let mut conditional = 0;
    for route in routes(rules, inputs) {
        route.write(&mut bytes);
        if !route.is_catch_all {
            conditional = bytes.len();
        }
    }
    (bytes, conditional)
}

/// Returns the routes of these rules for a proxy of this kind, up to the first that matches every
/// request.
pub(super) fn routes(rules: &HttpRoutes, inputs: RuleInputs<'_>) -> Vec<RuleRoute> {
    let RuleInputs { gateway, namespace, selection, port, .. } = inputs;
    let chosen = rules.chosen(gateway, namespace, selection, port).into_iter();
    let routes = chosen.flat_map(|(_, rule, request)| {
        let route = rule_route(rules, rule, request, inputs);
        let by_header: Vec<_> = absent_headers(request)
            .into_iter()
            .map(|headers| route.with_headers(headers))
            .collect();
        let claims = conditions(request, inputs);
        by_header.into_iter().flat_map(move |route| {
            claims.iter().map(|claims| route.with_claims(claims.clone())).collect::<Vec<_>>()
        })
    });
    routes.collect()
}

/// Returns the number of routes that [`routes`] generates for a match at a gateway with this number
/// of token rules.
pub(super) fn route_count(request: &RequestMatch, gateway: &str, token_rules: usize) -> usize {
    let by_claims =
        if request.claims.is_empty() || gateway == MESH { 1 } else { token_rules.max(1) };
    absent_headers(request).len() * by_claims
}

/// Returns alternatives of conditions for `withoutHeaders` patterns that match the empty text.
/// Envoy cannot distinguish an absent header from an empty one in one condition, so a header is
/// either absent, or present with another value.
fn absent_headers(request: &RequestMatch) -> Vec<Vec<route::HeaderMatcher>> {
    let mut alternatives = vec![Vec::new()];
    for (name, text) in request.without_headers.iter().filter(|(_, text)| text.takes_empty()) {
        let absent =
            route::HeaderMatcher { invert_match: true, ..header(name, &TextMatch::Present) };
        let other = route::HeaderMatcher { invert_match: true, ..header(name, text) };
        let either: Vec<_> =
            [Some(absent), (!text.takes_all()).then_some(other)].into_iter().flatten().collect();
        alternatives = alternatives
            .iter()
            .flat_map(|headers| {
                either.iter().map(|one| headers.iter().cloned().chain([one.clone()]).collect())
            })
            .collect();
    }
    alternatives
}

/// Returns the conditions on claims. Sidecars do not support claims.
fn conditions(
    request: &RequestMatch,
    inputs: RuleInputs<'_>,
) -> Vec<Vec<matcher::MetadataMatcher>> {
    if inputs.gateway == MESH || !request.looks_at_claims() {
        return vec![Vec::new()];
    }
    claims::conditions(request, inputs.token_rules)
}

pub(super) fn rule_route(
    rules: &HttpRoutes,
    rule: &HttpRule,
    request: &RequestMatch,
    inputs: RuleInputs<'_>,
) -> RuleRoute {
    let name = match (rule.name.is_empty(), request.name.is_empty()) {
        (false, false) => format!("{}.{}", rule.name, request.name),
        _ => format!("{}{}", rule.name, request.name),
    };
    let mut made = RuleRoute {
        route: route::Route {
            name,
            r#match: Some(encode_match(request)),
            metadata: Some(metadata(&rules.origin.config())),
            stat_prefix: request.stat_prefix.to_string(),
            ..Default::default()
        },
        filters: BTreeMap::new(),
        is_catch_all: request.is_catch_all(),
    };
    // Sidecars do not support claims.
    let is_blind = request.looks_at_claims() && inputs.gateway == MESH;
    if rule.refused || request.refused || is_blind {
        made.route.action = Some(answer(500));
        return made;
    }
    if let Some(fault) = rule.fault.as_deref().and_then(encode_fault) {
        made.filters.insert(FAULT, any(&fault));
    }
    if let Some(cors) = &rule.cors {
        made.filters.insert("envoy.filters.http.cors", any(&encode_cors(cors)));
    }
    let no_changes = HeaderChanges::default();
    let headers = rule.headers.as_deref().unwrap_or(&no_changes);
    change_headers(&mut made.route, headers);
    made.route.action = Some(if let Some(redirect) = &rule.redirect {
        encode_redirect(redirect, request, inputs)
    } else if let Some(response) = &rule.response {
        let body = response.body.as_ref().map(|body| core::DataSource {
            specifier: Some(match std::str::from_utf8(body) {
                Ok(text) => core::data_source::Specifier::InlineString(text.to_owned()),
                Err(_) => core::data_source::Specifier::InlineBytes(body.to_vec()),
            }),
            ..Default::default()
        });
        let status = response.status.into();
        let answer = route::DirectResponseAction { status, body, ..Default::default() };
        route::route::Action::DirectResponse(answer)
    } else {
        let operation = operation(rules, rule, request, inputs);
        made.route.decorator = Some(route::Decorator { operation, ..Default::default() });
        forward(rule, request, headers, inputs, &mut made.route)
    });
    made
}

/// Returns the action of a direct response.
fn answer(status: u32) -> route::route::Action {
    let answer = route::DirectResponseAction { status, ..Default::default() };
    route::route::Action::DirectResponse(answer)
}

/// Returns the destination of a request for traces: the only destination, or the object if there
/// are several.
fn operation(
    rules: &HttpRoutes,
    rule: &HttpRule,
    request: &RequestMatch,
    inputs: RuleInputs<'_>,
) -> String {
    let path = match &request.path {
        None => "/*".to_owned(),
        Some(PathMatch::Exact(path) | PathMatch::Regex(path)) => path.to_string(),
        Some(PathMatch::Prefix(path) | PathMatch::Segments(path)) => format!("{path}*"),
    };
    match &*rule.destinations {
        [only] => {
            let port = destination_port(only, inputs).unwrap_or(inputs.port);
            format!("{}:{port}{path}", only.host)
        }
        _ => format!("{}:{}{path}", rules.origin.name, inputs.port),
    }
}

/// Returns the metadata that proxies show for a route (Istio, `istio.config`).
fn metadata(config: &str) -> core::Metadata {
    let config = Value { kind: Some(value::Kind::StringValue(config.to_owned())) };
    let fields = [("config".to_owned(), config)].into();
    core::Metadata {
        filter_metadata: [("istio".to_owned(), Struct { fields })].into(),
        ..Default::default()
    }
}

fn encode_match(request: &RequestMatch) -> route::RouteMatch {
    use route::route_match::PathSpecifier;
    let path = match &request.path {
        None => PathSpecifier::Prefix("/".to_owned()),
        Some(PathMatch::Exact(path)) => PathSpecifier::Path(path.to_string()),
        Some(PathMatch::Prefix(path)) => PathSpecifier::Prefix(path.to_string()),
        Some(PathMatch::Segments(path)) => PathSpecifier::PathSeparatedPrefix(path.to_string()),
        Some(PathMatch::Regex(path)) => PathSpecifier::SafeRegex(regex(path)),
    };
    let mut headers: Vec<route::HeaderMatcher> =
        request.headers.iter().map(|(name, text)| header(name, text)).collect();
    // The others are alternatives: see `absent_headers`.
    let without = request.without_headers.iter().filter(|(_, text)| !text.takes_empty());
    headers.extend(without.map(|(name, text)| route::HeaderMatcher {
        invert_match: true,
        treat_missing_header_as_empty: *text != TextMatch::Present,
        ..header(name, text)
    }));
    let pseudo = [
        (":method", &request.method),
        (":authority", &request.authority),
        (":scheme", &request.scheme),
    ];
    headers
        .extend(pseudo.into_iter().filter_map(|(name, text)| Some(header(name, text.as_ref()?))));
    let query_parameters = request.query.iter().map(|(name, text)| {
        use route::query_parameter_matcher::QueryParameterMatchSpecifier;
        route::QueryParameterMatcher {
            name: name.to_string(),
            query_parameter_match_specifier: Some(match string_match(text) {
                Some(text) => QueryParameterMatchSpecifier::StringMatch(text),
                None => QueryParameterMatchSpecifier::PresentMatch(true),
            }),
        }
    });
    route::RouteMatch {
        case_sensitive: bool_value(!request.ignore_case),
        headers,
        query_parameters: query_parameters.collect(),
        path_specifier: Some(path),
        ..Default::default()
    }
}

pub(super) fn header(name: &str, text: &TextMatch) -> route::HeaderMatcher {
    use route::header_matcher::HeaderMatchSpecifier;
    route::HeaderMatcher {
        name: name.to_owned(),
        header_match_specifier: Some(match string_match(text) {
            Some(text) => HeaderMatchSpecifier::StringMatch(text),
            None => HeaderMatchSpecifier::PresentMatch(true),
        }),
        ..Default::default()
    }
}

fn encode_redirect(
    redirect: &RedirectRule,
    request: &RequestMatch,
    inputs: RuleInputs<'_>,
) -> route::route::Action {
    use route::redirect_action::{
        PathRewriteSpecifier, RedirectResponseCode, SchemeRewriteSpecifier,
    };
    let number = |is_tls: bool| if is_tls { 443 } else { 80 };
    let own = number(inputs.is_tls);
    let default = redirect.scheme.as_deref().map_or(own, |scheme| number(scheme == "https"));
    let port = match redirect.port {
        RedirectPort::Unset => 0,
        RedirectPort::Number(number) => number,
        RedirectPort::FromRequest => inputs.port,
        // If the scheme does not change, the port stays as the client sent it.
        RedirectPort::SchemeDefault if redirect.scheme.is_none() => 0,
        RedirectPort::SchemeDefault => default,
    };
    // A new host is sent without a default port. If the scheme changes, Envoy removes the default
    // port of the old scheme.
    let is_unwritten = redirect.authority.is_some() || inputs.port == own;
    let port = if is_unwritten && port == default { 0 } else { port };
    let code = match redirect.status {
        302 => RedirectResponseCode::Found,
        303 => RedirectResponseCode::SeeOther,
        307 => RedirectResponseCode::TemporaryRedirect,
        308 => RedirectResponseCode::PermanentRedirect,
        _ => RedirectResponseCode::MovedPermanently,
    };
    let text = |text: &Option<std::sync::Arc<str>>| text.as_deref().unwrap_or_default().to_owned();
    route::route::Action::Redirect(route::RedirectAction {
        host_redirect: text(&redirect.authority),
        port_redirect: port.into(),
        response_code: code.into(),
        scheme_rewrite_specifier: redirect
            .scheme
            .as_deref()
            .map(|scheme| SchemeRewriteSpecifier::SchemeRedirect(scheme.to_owned())),
        path_rewrite_specifier: match &redirect.path {
            RedirectPath::Unchanged => None,
            RedirectPath::Whole(path) => Some(PathRewriteSpecifier::PathRedirect(path.to_string())),
            RedirectPath::Prefix(path) => {
                Some(PathRewriteSpecifier::PrefixRewrite(path.to_string()))
            }
            RedirectPath::Segments(path) => Some(match replaced_segments(path, request) {
                ReplacedSegments::Prefix(path) => PathRewriteSpecifier::PrefixRewrite(path),
                ReplacedSegments::Regex(regex) => PathRewriteSpecifier::RegexRewrite(regex),
            }),
        },
        ..Default::default()
    })
}

/// Returns the port of a destination: its number or the port with its name. Without both, returns
/// the service's only port, or else the listener's port. Returns `None` if no port has the name.
fn destination_port(destination: &Destination, inputs: RuleInputs<'_>) -> Option<u16> {
    let (host, port_name) = (&destination.host, &destination.port_name);
    let found = destination.port.or_else(|| (inputs.unnumbered_port)(host, port_name));
    found.or_else(|| port_name.is_empty().then_some(inputs.port))
}

fn upstream(destination: &Destination, inputs: RuleInputs<'_>) -> String {
    let port = destination_port(destination, inputs).filter(|_| !destination.invalid);
    let Some(port) = port else { return NOWHERE.to_owned() };
    let Destination { host, subset, .. } = destination;
    let all = OutboundName::sidecar((inputs.target)(host), port);
    all.of_subset(subset).to_string()
}

fn forward(
    rule: &HttpRule,
    request: &RequestMatch,
    headers: &HeaderChanges,
    inputs: RuleInputs<'_>,
    made: &mut route::Route,
) -> route::route::Action {
    use route::route_action::{
        ClusterNotFoundResponseCode, ClusterSpecifier, HostRewriteSpecifier, MaxStreamDuration,
    };
    let rewritten = rule.rewrite.as_ref().and_then(|rewrite| rewrite.authority.clone());
    let mut host = rewritten.or_else(|| headers.host.clone());
    let specifier = match &*rule.destinations {
        [] => return answer(500),
        [only] if only.invalid => return answer(500),
        [only] => {
            if let Some(headers) = &only.headers {
                change_headers(made, headers);
                host = host.or_else(|| headers.host.clone());
            }
            ClusterSpecifier::Cluster(upstream(only, inputs))
        }
        several => {
            let clusters = several.iter().map(|one| weighted(one, inputs)).collect();
            let weighted = route::WeightedCluster { clusters, ..Default::default() };
            ClusterSpecifier::WeightedClusters(weighted)
        }
    };
    let usable = rule.destinations.iter().filter(|to| !to.invalid);
    let hashes: Vec<_> =
        usable.map(|to| (inputs.hash_key)(to, destination_port(to, inputs)?)).collect();
    // If every destination uses consistent hashing, a retry would select the same endpoint again.
    let is_free = hashes.is_empty() || hashes.iter().any(Option::is_none);
    let hash_policy: Vec<_> = hashes.into_iter().flatten().map(hash_policy).collect();
    let timeout = Some(duration(rule.timeout.unwrap_or_default()));
    let mut action = route::RouteAction {
        cluster_specifier: Some(specifier),
        timeout,
        // Envoy ignores `timeout` if this is set, so it is only set for rules without a timeout, to
        // respect gRPC deadlines.
        max_stream_duration: rule
            .timeout
            .is_none()
            .then(|| MaxStreamDuration { grpc_timeout_header_max: timeout, ..Default::default() }),
        retry_policy: retry_policy(rule.retries.as_deref().or(inputs.retries), is_free),
        hash_policy,
        host_rewrite_specifier: host
            .map(|host| HostRewriteSpecifier::HostRewriteLiteral(host.to_string())),
        request_mirror_policies: rule
            .mirrors
            .iter()
            .flatten()
            .map(|mirror| encode_mirror(mirror, inputs))
            .collect(),
        ..Default::default()
    };
    if rule.is_strict || rule.destinations.iter().any(|one| one.invalid) {
        action.cluster_not_found_response_code =
            ClusterNotFoundResponseCode::InternalServerError.into();
    }
    rewrite_path(rule, request, &mut action);
    route::route::Action::Route(action)
}

fn weighted(
    destination: &Destination,
    inputs: RuleInputs<'_>,
) -> route::weighted_cluster::ClusterWeight {
    use route::weighted_cluster::cluster_weight::HostRewriteSpecifier;
    let no_changes = HeaderChanges::default();
    let headers = destination.headers.as_deref().unwrap_or(&no_changes);
    let HeaderChanges { request, response, host } = headers;
    route::weighted_cluster::ClusterWeight {
        name: upstream(destination, inputs),
        weight: Some(UInt32Value { value: destination.weight }),
        request_headers_to_add: added(request),
        request_headers_to_remove: removed(request),
        response_headers_to_add: added(response),
        response_headers_to_remove: removed(response),
        host_rewrite_specifier: host
            .as_ref()
            .map(|host| HostRewriteSpecifier::HostRewriteLiteral(host.to_string())),
        ..Default::default()
    }
}

/// A replacement of matched path segments in Envoy's format.
enum ReplacedSegments {
    Prefix(String),
    Regex(matcher::RegexMatchAndSubstitute),
}

/// Returns the replacement of the matched segments, as [`PathRewrite::Segments`] defines it.
fn replaced_segments(new: &str, request: &RequestMatch) -> ReplacedSegments {
    let new = new.trim_end_matches('/');
    match &request.path {
        // With a non-empty replacement, the rest of the path starts with a slash or is empty.
        Some(PathMatch::Segments(_)) if !new.is_empty() => ReplacedSegments::Prefix(new.to_owned()),
        Some(PathMatch::Segments(prefix)) => {
            let pattern = regex(&format!("^{}/*(.*)$", re2::escaped(prefix)));
            let substitution = "/\\1".to_owned();
            ReplacedSegments::Regex(matcher::RegexMatchAndSubstitute {
                pattern: Some(pattern),
                substitution,
            })
        }
        // The prefix is the slash at the start of every path.
        None => ReplacedSegments::Prefix(format!("{new}/")),
        Some(_) => ReplacedSegments::Prefix(if new.is_empty() { "/" } else { new }.to_owned()),
    }
}

fn rewrite_path(rule: &HttpRule, request: &RequestMatch, action: &mut route::RouteAction) {
    let Some(path) = rule.rewrite.as_ref().and_then(|rewrite| rewrite.path.as_ref()) else {
        return;
    };
    let substituted = |pattern: String, substitution: String| {
        Some(matcher::RegexMatchAndSubstitute { pattern: Some(regex(&pattern)), substitution })
    };
    match path {
        PathRewrite::Segments(path) => match replaced_segments(path, request) {
            ReplacedSegments::Prefix(path) => action.prefix_rewrite = path,
            ReplacedSegments::Regex(regex) => action.regex_rewrite = Some(regex),
        },
        PathRewrite::Matched(path) => action.prefix_rewrite = path.to_string(),
        PathRewrite::Whole(path) => {
            action.regex_rewrite = substituted(".*".to_owned(), path.replace('\\', "\\\\"));
        }
        PathRewrite::Regex(pattern, substitution) => {
            action.regex_rewrite = substituted(pattern.to_string(), substitution.to_string());
        }
    }
}

/// Returns Envoy's hash policy for the part of a request that selects an endpoint.
pub(super) fn hash_policy(key: HashKey) -> route::route_action::HashPolicy {
    use route::route_action::hash_policy::{
        ConnectionProperties, Cookie, CookieAttribute, Header, PolicySpecifier, QueryParameter,
    };
    let specifier = match key {
        HashKey::Header(header_name) => {
            PolicySpecifier::Header(Header { header_name, ..Default::default() })
        }
        HashKey::Cookie { name, path, ttl, attributes } => {
            let attributes = attributes.into_iter();
            let attributes = attributes.map(|(name, value)| CookieAttribute { name, value });
            let (ttl, attributes) = (ttl.map(duration), attributes.collect());
            PolicySpecifier::Cookie(Cookie { name, path, ttl, attributes })
        }
        HashKey::SourceIp => {
            PolicySpecifier::ConnectionProperties(ConnectionProperties { source_ip: true })
        }
        HashKey::QueryParameter(name) => PolicySpecifier::QueryParameter(QueryParameter { name }),
    };
    route::route_action::HashPolicy { policy_specifier: Some(specifier), ..Default::default() }
}

/// Returns the retry policy, or `None` if requests are never retried. Retries use another endpoint
/// unless a hash selects it (`is_free` is false).
fn retry_policy(rule: Option<&RetryRule>, is_free: bool) -> Option<route::RetryPolicy> {
    use route::retry_policy::{RetryBackOff, RetryPriority, retry_priority};
    let mut policy = retries(RetryOn::Upstream);
    let ignores = rule.and_then(|rule| rule.ignore_previous).unwrap_or(is_free);
    if !ignores {
        policy.retry_host_predicate.clear();
        policy.host_selection_retry_max_attempts = 0;
    }
    let Some(rule) = rule else { return Some(policy) };
    if rule.attempts == 0 {
        return None;
    }
    policy.num_retries = Some(UInt32Value { value: rule.attempts });
    if !rule.on.is_empty() {
        policy.retry_on = rule.on.to_string();
    }
    policy.retriable_status_codes = rule.statuses.iter().map(|status| u32::from(*status)).collect();
    policy.per_try_timeout = rule.per_try_timeout.filter(|one| !one.is_zero()).map(duration);
    policy.retry_back_off = rule
        .backoff
        .map(|base| RetryBackOff { base_interval: Some(duration(base)), ..Default::default() });
    if rule.other_localities {
        let config = PreviousPrioritiesConfig { update_frequency: 2 };
        policy.retry_priority = Some(RetryPriority {
            name: "envoy.retry_priorities.previous_priorities".to_owned(),
            config_type: Some(retry_priority::ConfigType::TypedConfig(any(&config))),
        });
    }
    Some(policy)
}

fn encode_mirror(
    mirror: &Mirror,
    inputs: RuleInputs<'_>,
) -> route::route_action::RequestMirrorPolicy {
    route::route_action::RequestMirrorPolicy {
        cluster: upstream(&mirror.destination, inputs),
        runtime_fraction: Some(core::RuntimeFractionalPercent {
            default_value: Some(per_million(mirror.per_million)),
            ..Default::default()
        }),
        trace_sampled: bool_value(false),
        disable_shadow_host_suffix_append: true,
        ..Default::default()
    }
}

fn per_million(numerator: u32) -> FractionalPercent {
    let denominator = fractional_percent::DenominatorType::Million.into();
    FractionalPercent { numerator, denominator }
}

fn encode_fault(injected: &InjectedFault) -> Option<fault::HttpFault> {
    use common_fault::fault_delay::FaultDelaySecifier;
    use fault::fault_abort::ErrorType;
    let delay = injected.delay.map(|(delay, share)| common_fault::FaultDelay {
        percentage: Some(per_million(share)),
        fault_delay_secifier: Some(FaultDelaySecifier::FixedDelay(duration(delay))),
    });
    let abort = injected.abort.map(|(status, share)| fault::FaultAbort {
        percentage: Some(per_million(share)),
        error_type: Some(match status {
            AbortStatus::Http(status) => ErrorType::HttpStatus(status.into()),
            AbortStatus::Grpc(status) => ErrorType::GrpcStatus(status.into()),
        }),
        ..Default::default()
    });
    let does_any = delay.is_some() || abort.is_some();
    does_any.then(|| fault::HttpFault { delay, abort, ..Default::default() })
}

fn encode_cors(cors: &CrossOrigin) -> CorsPolicy {
    let always = FractionalPercent { numerator: 100, ..Default::default() };
    CorsPolicy {
        allow_origin_string_match: cors.origins.iter().filter_map(string_match).collect(),
        allow_methods: cors.methods.to_string(),
        allow_headers: cors.headers.to_string(),
        expose_headers: cors.expose.to_string(),
        max_age: cors
            .max_age
            .as_ref()
            .map(Duration::as_secs)
            .map_or_else(String::new, |age| age.to_string()),
        allow_credentials: cors.credentials.and_then(bool_value),
        filter_enabled: Some(core::RuntimeFractionalPercent {
            default_value: Some(always),
            ..Default::default()
        }),
        forward_not_matching_preflights: bool_value(!cors.answers_all_preflights),
        ..Default::default()
    }
}

/// Appends header modifications to the existing ones.
fn change_headers(made: &mut route::Route, changes: &HeaderChanges) {
    made.request_headers_to_add.extend(added(&changes.request));
    made.request_headers_to_remove.extend(removed(&changes.request));
    made.response_headers_to_add.extend(added(&changes.response));
    made.response_headers_to_remove.extend(removed(&changes.response));
}

fn added(edits: &HeaderEdits) -> Vec<core::HeaderValueOption> {
    use core::header_value_option::HeaderAppendAction::{
        AppendIfExistsOrAdd, OverwriteIfExistsOrAdd,
    };
    let set = edits.set.iter().map(|pair| (pair, OverwriteIfExistsOrAdd));
    let add = edits.add.iter().map(|pair| (pair, AppendIfExistsOrAdd));
    set.chain(add)
        .map(|((key, value), action)| core::HeaderValueOption {
            header: Some(core::HeaderValue {
                key: key.to_string(),
                value: value.to_string(),
                ..Default::default()
            }),
            append_action: action.into(),
            // Without this flag, Envoy omits a header with an empty value.
            keep_empty_value: value.is_empty(),
            ..Default::default()
        })
        .collect()
}

fn removed(edits: &HeaderEdits) -> Vec<String> {
    edits.remove.iter().map(ToString::to_string).collect()
}

/// Returns the route of a service without rules.
pub(super) fn to_service(hostname: &Hostname, number: u16) -> route::Route {
    let upstream = OutboundName::sidecar(hostname.clone(), number);
    route_to(&upstream.to_string(), Some(retries(RetryOn::Upstream)))
}

/// Returns the route of a service without rules that has consistent hashing or the mesh's retry
/// settings.
pub(super) fn to_service_by(
    (hostname, port): (&Hostname, u16),
    key: Option<HashKey>,
    retries: Option<&RetryRule>,
) -> route::Route {
    let mut route = to_service(hostname, port);
    if let Some(route::route::Action::Route(action)) = &mut route.action {
        action.retry_policy = retry_policy(retries, key.is_none());
        action.hash_policy = key.map(hash_policy).into_iter().collect();
    }
    route
}

/// Returns the route to pods of a headless service in another network, with the mesh's retry
/// settings. A retry uses another gateway, and reaches the same pod.
pub(super) fn to_pods(upstream: &str, retries: Option<&RetryRule>) -> route::Route {
    route_to(upstream, retry_policy(retries, true))
}

/// Encodes the route of a service without rules as a field of a virtual host.
pub(super) fn plain(route: &route::Route) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(route.encoded_len() + 4);
    message::encode(field::ROUTES, route, &mut bytes);
    bytes
}
