//! Building blocks of listeners and routes, with filters that a plain Envoy supports.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use prost::{Message, Name};

use super::merged::merged;
use super::{ConnectionLimits, TrafficSettings};
use crate::service_metrics::both;
use crate::spans::SpanReport;
use crate::{any, duration, encode_struct, nested, seconds};
use strait_model::Interception;
use strait_model::mesh_config::{AccessLog, AccessLogFormat, PathNormalization};
use strait_proto::envoy::envoy::config::accesslog::v3 as accesslog;
use strait_proto::envoy::envoy::config::core::v3 as core;
use strait_proto::envoy::envoy::config::listener::v3 as listener;
use strait_proto::envoy::envoy::config::route::v3 as route;
use strait_proto::envoy::envoy::extensions::access_loggers::file::v3::{
    FileAccessLog, file_access_log,
};
use strait_proto::envoy::envoy::extensions::access_loggers::filters::cel::v3::ExpressionFilter;
use strait_proto::envoy::envoy::extensions::filters::http as http_filters;
use strait_proto::envoy::envoy::extensions::filters::listener as listener_filters;
use strait_proto::envoy::envoy::extensions::filters::network::http_connection_manager::v3 as hcm;
use strait_proto::envoy::envoy::extensions::filters::network::tcp_proxy::v3 as tcp_proxy;
use strait_proto::envoy::envoy::extensions::retry::host::previous_hosts::v3::PreviousHostsPredicate;
use strait_proto::envoy::envoy::r#type::v3::{HashPolicy, Int32Range, hash_policy};
use strait_proto::envoy::google::protobuf::{Any, BoolValue, UInt32Value};
use strait_rules::traffic::envoy_filter::PlacedPatch;
use strait_rules::traffic::telemetry::WrittenLog;

/// The transport protocol of TLS in a filter chain match.
pub(super) const TLS: &str = "tls";
/// The transport protocol of plain text in a filter chain match.
pub(super) const PLAIN: &str = "raw_buffer";
/// The protocols that Envoy's HTTP inspector detects in plain text. HTTP/1.0 is omitted and stays
/// raw TCP, because Envoy's HTTP/1.1 codec would refuse it.
pub(super) const PLAIN_HTTP: [&str; 2] = ["http/1.1", "h2c"];

/// Whether a proxy supports IPv4 and IPv6.
pub(crate) type Families = (bool, bool);

/// Returns the wildcard addresses of a proxy's address families.
pub(super) fn wildcards((ipv4, ipv6): Families) -> Vec<IpAddr> {
    let v4 = ipv4.then_some(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let v6 = ipv6.then_some(IpAddr::V6(Ipv6Addr::UNSPECIFIED));
    v4.into_iter().chain(v6).collect()
}

/// Returns a listener on these addresses without filters, or `None` without addresses.
pub(super) fn listening_on(
    name: String,
    addresses: &[IpAddr],
    port: u16,
) -> Option<listener::Listener> {
    let (first, more) = addresses.split_first()?;
    let additional = |address| listener::AdditionalAddress {
        address: Some(socket_address(address, port)),
        ..Default::default()
    };
    Some(listener::Listener {
        name,
        address: Some(socket_address(*first, port)),
        additional_addresses: more.iter().copied().map(additional).collect(),
        ..Default::default()
    })
}

fn socket_address(address: IpAddr, port: u16) -> core::Address {
    let address = core::SocketAddress {
        address: address.to_string(),
        port_specifier: Some(core::socket_address::PortSpecifier::PortValue(port.into())),
        ..Default::default()
    };
    core::Address { address: Some(core::address::Address::SocketAddress(address)) }
}

/// Returns a match on the results of the listener filters. An empty `application_protocols` matches
/// any.
pub(super) fn found(transport: &str, application_protocols: &[&str]) -> listener::FilterChainMatch {
    listener::FilterChainMatch {
        transport_protocol: transport.into(),
        application_protocols: application_protocols.iter().map(|&name| name.into()).collect(),
        ..Default::default()
    }
}

/// Returns a match on the original destination port.
pub(super) fn to_port(port: u16) -> listener::FilterChainMatch {
    listener::FilterChainMatch { destination_port: Some(number(port)), ..Default::default() }
}

/// Returns a match on the original destination address.
pub(super) fn to_range(range: IpNet) -> listener::FilterChainMatch {
    let prefix = core::CidrRange {
        address_prefix: range.addr().to_string(),
        prefix_len: Some(number(range.prefix_len().into())),
    };
    listener::FilterChainMatch { prefix_ranges: vec![prefix], ..Default::default() }
}

/// Returns a chain with one filter.
pub(super) fn chain(
    name: impl Into<String>,
    filter_chain_match: Option<listener::FilterChainMatch>,
    filter: listener::Filter,
) -> listener::FilterChain {
    listener::FilterChain {
        name: name.into(),
        filter_chain_match,
        filters: vec![filter],
        ..Default::default()
    }
}

/// Returns the chain of an address range.
pub(super) fn range_chain(range: IpNet, filter: listener::Filter) -> listener::FilterChain {
    chain(range.to_string(), Some(to_range(range)), filter)
}

/// Returns the chains of an address range in which `requests` handles HTTP in plain text, and
/// `filter` all other data.
pub(super) fn request_chains(
    range: IpNet,
    filter: &listener::Filter,
    requests: &listener::Filter,
) -> [listener::FilterChain; 3] {
    // Envoy selects the longest prefix, then the transport protocol, and never reconsiders a step.
    let plain = |protocols: &[&str]| {
        Some(listener::FilterChainMatch {
            prefix_ranges: to_range(range).prefix_ranges,
            ..found(PLAIN, protocols)
        })
    };
    [
        chain(format!("{range} tcp"), plain(&[]), filter.clone()),
        chain(format!("{range} http"), plain(&PLAIN_HTTP), requests.clone()),
        range_chain(range, filter.clone()),
    ]
}

/// Returns a filter that forwards raw TCP to an upstream cluster.
pub(super) fn tcp(settings: &TrafficSettings, upstream: &str) -> listener::Filter {
    tcp_limited(settings, upstream, ConnectionLimits::default())
}

/// Returns a filter that forwards raw TCP to an upstream cluster, with connection limits.
pub(super) fn tcp_limited(
    settings: &TrafficSettings,
    upstream: &str,
    limits: ConnectionLimits,
) -> listener::Filter {
    tcp_accepted(settings, upstream, limits, false)
}

/// Returns a filter like [`tcp_limited`]. `by_mtls` is whether the connections use the mesh's mTLS,
/// which the proxy terminates.
pub(super) fn tcp_accepted(
    settings: &TrafficSettings,
    upstream: &str,
    limits: ConnectionLimits,
    by_mtls: bool,
) -> listener::Filter {
    use tcp_proxy::tcp_proxy::ClusterSpecifier;
    let to = ClusterSpecifier::Cluster(upstream.into());
    tcp_proxy(settings, upstream.into(), to, (limits, by_mtls))
}

/// Returns a filter that distributes raw TCP connections to several upstream clusters by weight.
pub(super) fn tcp_weighted(
    settings: &TrafficSettings,
    stat_prefix: String,
    clusters: Vec<tcp_proxy::tcp_proxy::weighted_cluster::ClusterWeight>,
    limits: ConnectionLimits,
) -> listener::Filter {
    use tcp_proxy::tcp_proxy::{ClusterSpecifier, WeightedCluster};
    let to = ClusterSpecifier::WeightedClusters(WeightedCluster { clusters });
    tcp_proxy(settings, stat_prefix, to, (limits, false))
}

fn tcp_proxy(
    settings: &TrafficSettings,
    stat_prefix: String,
    to: tcp_proxy::tcp_proxy::ClusterSpecifier,
    (limits, by_mtls): (ConnectionLimits, bool),
) -> listener::Filter {
    use hash_policy::{PolicySpecifier, SourceIp};
    let ConnectionLimits { idle, lasting, by_source, tunnel, attempts } = limits;
    let (access_log, access_log_options) = match &settings.metrics {
        Some(metrics) => metrics.with_connections(access_log(settings), by_mtls),
        None => (access_log(settings), None),
    };
    let source = || HashPolicy { policy_specifier: Some(PolicySpecifier::SourceIp(SourceIp {})) };
    let proxy = tcp_proxy::TcpProxy {
        stat_prefix,
        cluster_specifier: Some(to),
        access_log,
        access_log_options,
        idle_timeout: idle.or(settings.idle_timeout).map(duration),
        max_downstream_connection_duration: lasting.map(duration),
        max_connect_attempts: attempts.map(number),
        hash_policy: by_source.then(source).into_iter().collect(),
        tunneling_config: tunnel.map(|tunnel| tcp_proxy::tcp_proxy::TunnelingConfig {
            hostname: tunnel.target.clone(),
            use_post: tunnel.by_post,
            ..Default::default()
        }),
        ..Default::default()
    };
    network_filter("envoy.filters.network.tcp_proxy", &proxy)
}

/// The settings of an HTTP connection manager, inbound or outbound.
pub(super) struct Http {
    /// The prefix of the metrics.
    pub(super) stat_prefix: String,
    /// The port that clients connect to, if it is a single one.
    pub(super) port: Option<u16>,
    /// The source of the routes.
    pub(super) routes: hcm::http_connection_manager::RouteSpecifier,
    /// Whether gRPC-Web is translated to gRPC.
    pub(super) grpc_web: bool,
    /// Whether routes may inject faults and use CORS. The filters are present even if no route uses
    /// them, because adding them later would drain the listener.
    pub(super) routed: bool,
    /// Whether its connections use the mesh's mTLS, which the proxy terminates.
    pub(super) by_mtls: bool,
    /// Access filters, which precede all filters that may respond.
    pub(super) guards: Vec<hcm::HttpFilter>,
}

impl Http {
    /// Returns the manager. A caller that modifies it must call [`merged`] again.
    pub(super) fn manager(self, settings: &TrafficSettings) -> hcm::HttpConnectionManager {
        let mut filters: Vec<_> = settings.istio.peer_metadata().into_iter().collect();
        filters.extend(self.guards);
        if self.grpc_web {
            let grpc_web = http_filters::grpc_web::v3::GrpcWeb {};
            filters.push(http_filter("envoy.filters.http.grpc_web", &grpc_web));
        }
        filters.extend(settings.istio.alpn());
        if self.routed {
            // CORS comes first: it answers preflight requests, in which no faults are injected.
            let cors = http_filters::cors::v3::Cors::default();
            filters.push(http_filter("envoy.filters.http.cors", &cors));
            let fault = http_filters::fault::v3::HttpFault::default();
            filters.push(http_filter("envoy.filters.http.fault", &fault));
        }
        filters.extend(settings.istio.stats());
        put_in(settings, self.port, &mut filters);
        let router = http_filters::router::v3::Router::default();
        filters.push(http_filter("envoy.filters.http.router", &router));
        let mut access_log = access_log(settings);
        if let Some(metrics) = &settings.metrics {
            access_log.extend_from_slice(metrics.request_logs(self.by_mtls));
        }
        let manager = hcm::HttpConnectionManager {
            stat_prefix: self.stat_prefix,
            route_specifier: Some(self.routes),
            http_filters: filters,
            access_log,
            tracing: settings.spans.as_deref().map(SpanReport::tracing),
            use_remote_address: bool_value(false),
            common_http_protocol_options: settings.idle_timeout.map(|idle| {
                core::HttpProtocolOptions {
                    idle_timeout: Some(duration(idle)),
                    ..Default::default()
                }
            }),
            // Streams have no idle timeout by default; both ends decide.
            stream_idle_timeout: Some(seconds(0)),
            // A WebSocket arrives as an extended CONNECT if the hop is HTTP/2 (RFC 8441).
            http2_protocol_options: Some(core::Http2ProtocolOptions {
                allow_connect: true,
                ..Default::default()
            }),
            upgrade_configs: vec![hcm::http_connection_manager::UpgradeConfig {
                upgrade_type: "websocket".into(),
                ..Default::default()
            }],
            ..Default::default()
        };
        merged(settings, self.port, normalizing(settings, false, manager))
    }
}

/// Inserts users' filters before the router filter, in order.
fn put_in(settings: &TrafficSettings, port: Option<u16>, filters: &mut Vec<hcm::HttpFilter>) {
    let here = settings
        .filters
        .iter()
        .filter(|(patch_port, _)| patch_port.is_none() || *patch_port == port);
    for (_, patch) in here {
        let PlacedPatch::Filter(placed) = &**patch else { continue };
        let config = Any {
            type_url: placed.filter.type_url.to_string(),
            value: placed.filter.config.to_vec(),
        };
        let filter = hcm::HttpFilter {
            name: placed.filter.name.to_string(),
            config_type: Some(hcm::http_filter::ConfigType::TypedConfig(config)),
            ..Default::default()
        };
        let place = if placed.is_first { 0 } else { filters.len() };
        filters.insert(place, filter);
    }
}

/// Applies the path normalization of the mesh config. Without a setting, repeated slashes are
/// merged if policies match paths.
pub(super) fn normalizing(
    settings: &TrafficSettings,
    looks_at_paths: bool,
    manager: hcm::HttpConnectionManager,
) -> hcm::HttpConnectionManager {
    let normalization = PathNormalization::of(settings.path_normalization, looks_at_paths);
    let unescape = hcm::http_connection_manager::PathWithEscapedSlashesAction::UnescapeAndForward;
    hcm::HttpConnectionManager {
        normalize_path: bool_value(normalization != PathNormalization::None),
        merge_slashes: normalization >= PathNormalization::MergeSlashes,
        path_with_escaped_slashes_action: match normalization {
            PathNormalization::DecodeAndMergeSlashes => unescape.into(),
            _ => 0,
        },
        ..manager
    }
}

/// Returns the path normalization of a manager.
pub(crate) fn path_normalization(manager: &hcm::HttpConnectionManager) -> PathNormalization {
    use hcm::http_connection_manager::PathWithEscapedSlashesAction::UnescapeAndForward;
    let normalizes = manager.normalize_path.is_some_and(|flag| flag.value);
    match (normalizes, manager.merge_slashes) {
        (false, _) => PathNormalization::None,
        (true, false) => PathNormalization::Base,
        (true, true) if manager.path_with_escaped_slashes_action() == UnescapeAndForward => {
            PathNormalization::DecodeAndMergeSlashes
        }
        (true, true) => PathNormalization::MergeSlashes,
    }
}

/// Returns a reference to routes from RDS.
pub(super) fn routes_named(name: String) -> hcm::http_connection_manager::RouteSpecifier {
    use core::config_source::ConfigSourceSpecifier::Ads;
    hcm::http_connection_manager::RouteSpecifier::Rds(hcm::Rds {
        route_config_name: name,
        config_source: Some(core::ConfigSource {
            config_source_specifier: Some(Ads(core::AggregatedConfigSource {})),
            // The listener waits for its routes instead of responding with 404.
            initial_fetch_timeout: Some(seconds(0)),
            resource_api_version: core::ApiVersion::V3.into(),
            ..Default::default()
        }),
    })
}

pub(super) fn http(manager: &hcm::HttpConnectionManager) -> listener::Filter {
    network_filter("envoy.filters.network.http_connection_manager", manager)
}

pub(super) fn network_filter<M: Message + Name>(name: &str, config: &M) -> listener::Filter {
    listener::Filter {
        name: name.into(),
        config_type: Some(listener::filter::ConfigType::TypedConfig(any(config))),
    }
}

fn http_filter<M: Message + Name>(name: &str, config: &M) -> hcm::HttpFilter {
    hcm::HttpFilter {
        name: name.into(),
        config_type: Some(hcm::http_filter::ConfigType::TypedConfig(any(config))),
        ..Default::default()
    }
}

/// Returns the filter that restores the original destination address of redirected connections.
pub(super) fn original_destination() -> listener::ListenerFilter {
    let config = listener_filters::original_dst::v3::OriginalDst::default();
    listener_filter("envoy.filters.listener.original_dst", &config)
}

/// Returns the filter that makes connections to the workload use the client's address. Istio's
/// redirection rules exempt its mark.
pub(super) fn original_source() -> listener::ListenerFilter {
    let config =
        listener_filters::original_src::v3::OriginalSrc { mark: 1337, ..Default::default() };
    listener_filter("envoy.filters.listener.original_src", &config)
}

/// Returns whether a listener accepts connections to other addresses.
pub(super) fn is_transparent(interception: Interception) -> Option<BoolValue> {
    (interception == Interception::Transparent).then_some(BoolValue { value: true })
}

/// Returns the filter that detects TLS and reads SNI and ALPN.
pub(super) fn tls_inspector() -> listener::ListenerFilter {
    let config = listener_filters::tls_inspector::v3::TlsInspector::default();
    listener_filter("envoy.filters.listener.tls_inspector", &config)
}

/// Returns the filter that reads the PROXY protocol.
pub(super) fn proxy_protocol() -> listener::ListenerFilter {
    let config = listener_filters::proxy_protocol::v3::ProxyProtocol::default();
    listener_filter("envoy.filters.listener.proxy_protocol", &config)
}

/// Returns the filter that detects HTTP in plain text.
pub(super) fn http_inspector() -> listener::ListenerFilter {
    let config = listener_filters::http_inspector::v3::HttpInspector::default();
    listener_filter("envoy.filters.listener.http_inspector", &config)
}

fn listener_filter<M: Message + Name>(name: &str, config: &M) -> listener::ListenerFilter {
    listener::ListenerFilter {
        name: name.into(),
        config_type: Some(listener::listener_filter::ConfigType::TypedConfig(any(config))),
        ..Default::default()
    }
}

/// Returns a predicate for connections to any of these ports, or `None` without ports.
pub(super) fn any_port(ports: &[u16]) -> Option<listener::ListenerFilterChainMatchPredicate> {
    use listener::listener_filter_chain_match_predicate::{MatchSet, Rule};
    let predicate = |rule| listener::ListenerFilterChainMatchPredicate { rule: Some(rule) };
    let mut rules: Vec<_> = ports
        .iter()
        .map(|&port| Int32Range { start: port.into(), end: i32::from(port) + 1 })
        .map(|range| predicate(Rule::DestinationPortRange(range)))
        .collect();
    // Envoy rejects an OR match with only one rule.
    if rules.len() < 2 { rules.pop() } else { Some(predicate(Rule::OrMatch(MatchSet { rules }))) }
}

/// Returns a predicate for connections to none of these ports, or `None` without ports.
pub(super) fn no_port(ports: &[u16]) -> Option<listener::ListenerFilterChainMatchPredicate> {
    use listener::listener_filter_chain_match_predicate::Rule;
    let not = |any| listener::ListenerFilterChainMatchPredicate {
        rule: Some(Rule::NotMatch(Box::new(any))),
    };
    any_port(ports).map(not)
}

/// Makes a listener continue when a connection sends nothing, because in some protocols the server
/// sends first.
pub(super) fn detect(
    settings: &TrafficSettings,
    filters: Vec<listener::ListenerFilter>,
    listener: listener::Listener,
) -> listener::Listener {
    listener::Listener {
        listener_filters: filters,
        listener_filters_timeout: Some(duration(settings.detection_timeout)),
        continue_on_listener_filters_timeout: true,
        access_log: refused_connection_logs(settings),
        ..listener
    }
}

fn access_log(settings: &TrafficSettings) -> Vec<accesslog::AccessLog> {
    let filtered = |written: &WrittenLog| accesslog::AccessLog {
        filter: written.filter.as_deref().map(expression),
        ..log_to(&written.log)
    };
    settings.logs.iter().map(filtered).collect()
}

/// Returns access logs for connections that no chain accepts (`NR`). No other log covers them.
pub(super) fn refused_connection_logs(settings: &TrafficSettings) -> Vec<accesslog::AccessLog> {
    use accesslog::access_log_filter::FilterSpecifier::ResponseFlagFilter;
    let refused_log = |written: &WrittenLog| {
        let flags = accesslog::ResponseFlagFilter { flags: vec!["NR".to_owned()] };
        let refused =
            accesslog::AccessLogFilter { filter_specifier: Some(ResponseFlagFilter(flags)) };
        let filter = both(refused, written.filter.as_deref().map(expression));
        accesslog::AccessLog { filter: Some(filter), ..log_to(&written.log) }
    };
    settings.logs.iter().map(refused_log).collect()
}

/// Returns a filter for requests that match a CEL expression.
fn expression(text: &str) -> accesslog::AccessLogFilter {
    use accesslog::access_log_filter::FilterSpecifier::ExtensionFilter;
    let config = any(&ExpressionFilter { expression: text.to_owned(), ..Default::default() });
    let filter = accesslog::ExtensionFilter {
        name: "envoy.access_loggers.extension_filters.cel".to_owned(),
        config_type: Some(accesslog::extension_filter::ConfigType::TypedConfig(config)),
    };
    accesslog::AccessLogFilter { filter_specifier: Some(ExtensionFilter(filter)) }
}

fn log_to(log: &AccessLog) -> accesslog::AccessLog {
    use core::data_source::Specifier::InlineString;
    use core::substitution_format_string::Format::TextFormatSource;

    use file_access_log::AccessLogFormat::LogFormat;
    let path = log.path.clone();
    let config = match &log.format {
        AccessLogFormat::Text(text) => {
            let text = core::DataSource {
                specifier: Some(InlineString(text.to_string())),
                ..Default::default()
            };
            let format = core::SubstitutionFormatString {
                format: Some(TextFormatSource(text)),
                ..Default::default()
            };
            any(&FileAccessLog { path, access_log_format: Some(LogFormat(format)) })
        }
        // `json_format` of `log_format`, encoded by hand because its fields need a fixed order.
        AccessLogFormat::Json(fields) => {
            let mut log = any(&FileAccessLog { path, access_log_format: None });
            let mut format = Vec::new();
            nested(2, &fields.as_object().map(encode_struct).unwrap_or_default(), &mut format);
            nested(5, &format, &mut log.value);
            log
        }
    };
    accesslog::AccessLog {
        name: "envoy.access_loggers.file".into(),
        config_type: Some(accesslog::access_log::ConfigType::TypedConfig(config)),
        ..Default::default()
    }
}

/// The conditions under which a request is retried.
pub(crate) enum RetryOn {
    /// The upstream is unreachable, or reports that it did not process the request.
    Upstream,
    /// The connection to the workload was closed before the request was sent.
    OwnWorkload,
}

/// Returns Istio's default retry policy: at most two retries.
pub(crate) fn retries(on: RetryOn) -> route::RetryPolicy {
    use route::retry_policy::{RetryHostPredicate, retry_host_predicate::ConfigType};
    match on {
        RetryOn::Upstream => route::RetryPolicy {
            retry_on: "connect-failure,refused-stream,unavailable,cancelled,retriable-status-codes"
                .into(),
            num_retries: Some(UInt32Value { value: 2 }),
            host_selection_retry_max_attempts: 5,
            retry_host_predicate: vec![RetryHostPredicate {
                name: "envoy.retry_host_predicates.previous_hosts".into(),
                config_type: Some(ConfigType::TypedConfig(any(&PreviousHostsPredicate {}))),
            }],
            ..Default::default()
        },
        RetryOn::OwnWorkload => route::RetryPolicy {
            retry_on: "reset-before-request".into(),
            num_retries: Some(UInt32Value { value: 2 }),
            ..Default::default()
        },
    }
}

/// Returns a route that sends every request to an upstream cluster, without a timeout. The deadline
/// of a gRPC client applies. Its name in logs is Istio's name for routes without a rule.
pub(crate) fn route_to(upstream: &str, retry_policy: Option<route::RetryPolicy>) -> route::Route {
    use route::route_action::{ClusterSpecifier, MaxStreamDuration};
    let action = route::RouteAction {
        cluster_specifier: Some(ClusterSpecifier::Cluster(upstream.into())),
        timeout: Some(seconds(0)),
        max_stream_duration: Some(MaxStreamDuration {
            grpc_timeout_header_max: Some(seconds(0)),
            ..Default::default()
        }),
        retry_policy,
        ..Default::default()
    };
    route::Route { name: "default".into(), ..everything(route::route::Action::Route(action)) }
}

/// Returns a route that applies an action to every request.
pub(crate) fn everything(action: route::route::Action) -> route::Route {
    let prefix = route::route_match::PathSpecifier::Prefix("/".into());
    route::Route {
        r#match: Some(route::RouteMatch { path_specifier: Some(prefix), ..Default::default() }),
        action: Some(action),
        ..Default::default()
    }
}

/// Returns a virtual host for all domains.
pub(crate) fn catch_all_host(name: impl Into<String>, route: route::Route) -> route::VirtualHost {
    route::VirtualHost {
        name: name.into(),
        domains: vec!["*".into()],
        routes: vec![route],
        ..Default::default()
    }
}

/// Returns a boolean wrapper that is set, as opposed to unset.
pub(crate) fn bool_value(value: bool) -> Option<BoolValue> {
    Some(BoolValue { value })
}

pub(super) fn number(port: u16) -> UInt32Value {
    UInt32Value { value: port.into() }
}
