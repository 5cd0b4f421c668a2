//! HTTP options of upstream clusters: the protocol of connections and their limits.

use std::collections::HashMap;

use super::gateway_ejection::GatewayFilters;
use super::{policy, tls};
use crate::any;
use strait_model::Protocol;
use strait_proto::envoy::envoy::config::core::v3 as core;
use strait_proto::envoy::envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter;
use strait_proto::envoy::envoy::extensions::upstreams::http::v3 as http;
use strait_proto::envoy::google::protobuf::Any;
use strait_rules::traffic::policy::{ClientTls, ResolvedPolicy};

/// Returns the HTTP options for a protocol. HTTP/1.1 is Envoy's default and needs no options. A
/// port whose protocol is detected at run time uses the protocol of the client.
pub(super) fn protocol_options(protocol: Protocol) -> HashMap<String, Any> {
    if protocol.is_http2() || protocol == Protocol::Auto {
        upstream_http(
            protocol,
            None,
            core::Http2ProtocolOptions::default(),
            (None, None, Vec::new()),
        )
    } else {
        HashMap::new()
    }
}

/// Returns the HTTP options for a protocol with the connection limits of the policy. A connection
/// ends after `requests_max` requests. `marking` distinguishes gateways from other endpoints.
pub(super) fn limited_options(
    protocol: Protocol,
    policy: &ResolvedPolicy,
    requests_max: Option<u32>,
    marking: Option<GatewayFilters>,
) -> HashMap<String, Any> {
    let limits = policy::http_limits(policy, requests_max);
    let http2 = policy::http2_options(policy);
    let may_be_http2 = protocol.is_http2() || protocol == Protocol::Auto;
    let limits_http2 = may_be_http2 && http2 != core::Http2ProtocolOptions::default();
    let names = tls::names_by_request(policy);
    let (errors, filters) = match marking {
        Some(GatewayFilters { errors, filters }) => (Some(errors), filters),
        None => (policy::errors(policy), Vec::new()),
    };
    // A port with protocol HTTPS receives requests that the proxy encrypts.
    let reads = protocol.is_http()
        || protocol == Protocol::Auto
        || matches!(policy.tls.as_deref(), Some(ClientTls::Foreign(_)));
    let has_options = limits.is_some() || limits_http2 || names.is_some() || errors.is_some();
    if reads && has_options {
        upstream_http(protocol, limits, http2, (names, errors, filters))
    } else {
        protocol_options(protocol)
    }
}

fn upstream_http(
    protocol: Protocol,
    common: Option<core::HttpProtocolOptions>,
    http2: core::Http2ProtocolOptions,
    (names, errors, filters): (
        Option<core::UpstreamHttpProtocolOptions>,
        Option<http::http_protocol_options::OutlierDetection>,
        Vec<HttpFilter>,
    ),
) -> HashMap<String, Any> {
    use http::http_protocol_options::explicit_http_config::ProtocolConfig;
    use http::http_protocol_options::{
        ExplicitHttpConfig, UpstreamProtocolOptions, UseDownstreamHttpConfig,
    };
    let explicit = |config| {
        UpstreamProtocolOptions::ExplicitHttpConfig(ExplicitHttpConfig {
            protocol_config: Some(config),
        })
    };
    // A WebSocket is sent as an extended CONNECT (RFC 8441).
    let http2 = core::Http2ProtocolOptions { allow_connect: true, ..http2 };
    let upstream = if protocol.is_http2() {
        explicit(ProtocolConfig::Http2ProtocolOptions(http2))
    } else if protocol == Protocol::Auto {
        UpstreamProtocolOptions::UseDownstreamProtocolConfig(UseDownstreamHttpConfig {
            http_protocol_options: Some(Default::default()),
            http2_protocol_options: Some(http2),
            ..Default::default()
        })
    } else {
        explicit(ProtocolConfig::HttpProtocolOptions(Default::default()))
    };
    let options = http::HttpProtocolOptions {
        common_http_protocol_options: common,
        upstream_http_protocol_options: names,
        outlier_detection: errors,
        http_filters: filters,
        upstream_protocol_options: Some(upstream),
        ..Default::default()
    };
    // At most one entry, because the order of map entries on the wire is not fixed.
    [("envoy.extensions.upstreams.http.v3.HttpProtocolOptions".into(), any(&options))].into()
}
