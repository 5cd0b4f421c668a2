//! Filters that query authorization providers (action CUSTOM). Each provider has two filters: a
//! shadow RBAC filter (`envoy.filters.http.rbac`, `envoy.filters.network.rbac`) that only records
//! which rules match, and an ext_authz filter (`envoy.filters.http.ext_authz`,
//! `envoy.filters.network.ext_authz`) that queries the provider if a rule matched.
//!
//! Matches of each provider are recorded under a separate key, and no key is a prefix of another.

use super::{any, duration};
use strait_mesh::push::authorizers::Authorizer;
use strait_model::mesh_config::{
    AuthorizationProtocol, AuthorizationProvider, AuthorizationRequest, HeaderNames,
    ProviderService,
};
use strait_proto::envoy::envoy::config::core::v3 as core;
use strait_proto::envoy::envoy::config::listener::v3 as listener;
use strait_proto::envoy::envoy::extensions::filters::http::ext_authz::v3 as http;
use strait_proto::envoy::envoy::extensions::filters::network::ext_authz::v3 as network;
use strait_proto::envoy::envoy::extensions::filters::network::http_connection_manager::v3 as hcm;
use strait_proto::envoy::envoy::r#type::matcher::v3 as matcher;
use strait_proto::envoy::envoy::r#type::v3::HttpStatus;
use strait_xds::names::OutboundName;

const HTTP: &str = "envoy.filters.http.ext_authz";
const NETWORK: &str = "envoy.filters.network.ext_authz";
/// The filters that record which rules match, and the suffix of their metadata keys.
const HTTP_RULES: &str = "envoy.filters.http.rbac";
const NETWORK_RULES: &str = "envoy.filters.network.rbac";
const MATCHED: &str = "shadow_effective_policy_id";

/// Returns the prefix of the metrics and keys of a provider's rules. Provider names contain no `_`.
pub(super) fn stat_prefix(provider: &str) -> String {
    format!("istio_ext_authz_{provider}_")
}

/// Returns the prefix for rules in dry-run mode, which no ext_authz filter reads.
pub(super) fn tried_prefix(provider: &str) -> String {
    format!("istio_dry_run_custom_{provider}_")
}

/// Returns the name of the upstream cluster of a provider.
pub(super) fn cluster(authorizer: &Authorizer<'_>) -> String {
    let Authorizer { provider, service } = authorizer;
    OutboundName::sidecar(service.hostname().clone(), provider.service.port).to_string()
}

/// Returns the filter that queries the provider about requests.
pub(super) fn http_filter(name: &str, authorizer: &Authorizer<'_>) -> hcm::HttpFilter {
    let provider = authorizer.provider;
    let status = HttpStatus { code: provider.status_on_error.into() };
    let body = provider.body.map(|body| http::BufferSettings {
        max_request_bytes: body.max_bytes,
        allow_partial_message: body.partial,
        pack_as_bytes: body.as_bytes,
    });
    let common = http::ExtAuthz {
        transport_api_version: core::ApiVersion::V3.into(),
        failure_mode_allow: provider.fail_open,
        status_on_error: Some(status),
        clear_route_cache: provider.clear_route_cache,
        with_request_body: body,
        filter_enabled_metadata: Some(was_matched(HTTP_RULES, name)),
        ..Default::default()
    };
    let config = match &provider.protocol {
        AuthorizationProtocol::Grpc => http::ExtAuthz {
            services: Some(http::ext_authz::Services::GrpcService(grpc(authorizer))),
            include_peer_certificate: true,
            ..common
        },
        AuthorizationProtocol::Http(request) => http::ExtAuthz {
            services: Some(http::ext_authz::Services::HttpService(over_http(authorizer, request))),
            allowed_headers: list(&request.request_headers),
            ..common
        },
    };
    hcm::HttpFilter {
        name: HTTP.into(),
        config_type: Some(hcm::http_filter::ConfigType::TypedConfig(any(&config))),
        ..Default::default()
    }
}

/// Returns the filter that queries the provider about connections, or `None` if the provider only
/// supports requests.
pub(super) fn network_filter(name: &str, authorizer: &Authorizer<'_>) -> Option<listener::Filter> {
    let provider = authorizer.provider;
    if provider.protocol != AuthorizationProtocol::Grpc {
        return None;
    }
    let config = network::ExtAuthz {
        stat_prefix: "tcp.".into(),
        grpc_service: Some(grpc(authorizer)),
        failure_mode_allow: provider.fail_open,
        include_peer_certificate: true,
        transport_api_version: core::ApiVersion::V3.into(),
        filter_enabled_metadata: Some(was_matched(NETWORK_RULES, name)),
        ..Default::default()
    };
    Some(listener::Filter {
        name: NETWORK.into(),
        config_type: Some(listener::filter::ConfigType::TypedConfig(any(&config))),
    })
}

/// Returns a matcher that is true if any rule of the provider matched.
fn was_matched(filter: &str, provider: &str) -> matcher::MetadataMatcher {
    use matcher::metadata_matcher::{PathSegment, path_segment::Segment};
    use matcher::value_matcher::MatchPattern;
    let key = Segment::Key(stat_prefix(provider) + MATCHED);
    matcher::MetadataMatcher {
        filter: filter.into(),
        path: vec![PathSegment { segment: Some(key) }],
        value: Some(matcher::ValueMatcher {
            match_pattern: Some(MatchPattern::PresentMatch(true)),
        }),
        ..Default::default()
    }
}

fn grpc(authorizer: &Authorizer<'_>) -> core::GrpcService {
    let AuthorizationProvider { service: ProviderService { host, .. }, timeout, .. } =
        authorizer.provider;
    let envoy = core::grpc_service::EnvoyGrpc {
        cluster_name: cluster(authorizer),
        authority: host.clone(),
        ..Default::default()
    };
    core::GrpcService {
        timeout: Some(duration(*timeout)),
        target_specifier: Some(core::grpc_service::TargetSpecifier::EnvoyGrpc(envoy)),
        ..Default::default()
    }
}

fn over_http(authorizer: &Authorizer<'_>, request: &AuthorizationRequest) -> http::HttpService {
    let AuthorizationProvider { service: ProviderService { host, port, .. }, timeout, .. } =
        authorizer.provider;
    let uri = core::HttpUri {
        uri: format!("http://{host}:{port}"),
        timeout: Some(duration(*timeout)),
        http_upstream_type: Some(core::http_uri::HttpUpstreamType::Cluster(cluster(authorizer))),
    };
    let added = request.added_headers.iter();
    let added = added.map(|(key, value)| core::HeaderValue {
        key: key.clone(),
        value: value.clone(),
        ..Default::default()
    });
    let authorization =
        http::AuthorizationRequest { headers_to_add: added.collect(), ..Default::default() };
    http::HttpService {
        server_uri: Some(uri),
        path_prefix: request.path_prefix.clone(),
        authorization_request: Some(authorization)
            .filter(|authorization| !authorization.headers_to_add.is_empty()),
        authorization_response: Some(http::AuthorizationResponse {
            allowed_upstream_headers: list(&request.to_upstream),
            allowed_client_headers: list(&request.to_client_on_deny),
            allowed_client_headers_on_success: list(&request.to_client_on_allow),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// Returns `None` for an empty list, so that Envoy's defaults apply.
fn list(names: &[HeaderNames]) -> Option<matcher::ListStringMatcher> {
    use matcher::string_matcher::MatchPattern;
    let pattern = |names: &HeaderNames| match names {
        HeaderNames::Exact(name) => MatchPattern::Exact(name.clone()),
        HeaderNames::Prefix(part) => MatchPattern::Prefix(part.clone()),
        HeaderNames::Suffix(part) => MatchPattern::Suffix(part.clone()),
        HeaderNames::Every => MatchPattern::SafeRegex(matcher::RegexMatcher {
            regex: ".*".into(),
            ..Default::default()
        }),
    };
    let matcher = |names: &HeaderNames| matcher::StringMatcher {
        match_pattern: Some(pattern(names)),
        ignore_case: *names != HeaderNames::Every,
    };
    let patterns: Vec<_> = names.iter().map(matcher).collect();
    (!patterns.is_empty()).then_some(matcher::ListStringMatcher { patterns })
}
