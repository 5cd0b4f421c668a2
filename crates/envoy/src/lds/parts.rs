//! The parts that listeners and routes are made of, each as a plain Envoy takes it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use prost::{Message, Name};

use super::merged::merged;
use super::{ConnectionLimits, TrafficSettings};
use crate::spans::SpanReport;
use crate::{any, duration, nested, seconds, struct_of};
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

/// How TLS and plain text are told apart in a match.
pub(super) const TLS: &str = "tls";
/// See [`TLS`].
pub(super) const PLAIN: &str = "raw_buffer";
/// What Envoy's HTTP inspector finds in plain text. HTTP/1.0 is left out: it stays bytes, since
/// Envoy's HTTP/1.1 codec would refuse it.
pub(super) const PLAIN_HTTP: [&str; 2] = ["http/1.1", "h2c"];

/// Whether a proxy speaks IPv4, and IPv6.
pub(crate) type Families = (bool, bool);

/// The addresses that stand for all of a proxy's own, in its families.
pub(super) fn wildcards((ipv4, ipv6): Families) -> Vec<IpAddr> {
    let v4 = ipv4.then_some(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let v6 = ipv6.then_some(IpAddr::V6(Ipv6Addr::UNSPECIFIED));
    v4.into_iter().chain(v6).collect()
}

/// A listener on these addresses, without filters. No address, no listener.
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

/// A match on what the listener filters found out; an empty `application_protocols` matches any.
pub(super) fn found(transport: &str, application_protocols: &[&str]) -> listener::FilterChainMatch {
    listener::FilterChainMatch {
        transport_protocol: transport.into(),
        application_protocols: application_protocols.iter().map(|&name| name.into()).collect(),
        ..Default::default()
    }
}

/// A match on the port that the client meant.
pub(super) fn to_port(port: u16) -> listener::FilterChainMatch {
    listener::FilterChainMatch { destination_port: Some(number(port)), ..Default::default() }
}

/// A match on the address that the client meant.
pub(super) fn to_range(range: IpNet) -> listener::FilterChainMatch {
    let prefix = core::CidrRange {
        address_prefix: range.addr().to_string(),
        prefix_len: Some(number(range.prefix_len().into())),
    };
    listener::FilterChainMatch { prefix_ranges: vec![prefix], ..Default::default() }
}

/// A chain of one filter.
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

/// Passes bytes to an upstream cluster.
pub(super) fn tcp(settings: &TrafficSettings, upstream: &str) -> listener::Filter {
    tcp_limited(settings, upstream, ConnectionLimits::default())
}

/// The same, in connections that are held to that.
pub(super) fn tcp_limited(
    settings: &TrafficSettings,
    upstream: &str,
    limits: ConnectionLimits,
) -> listener::Filter {
    use tcp_proxy::tcp_proxy::ClusterSpecifier;
    let to = ClusterSpecifier::Cluster(upstream.into());
    tcp_proxy(settings, upstream.into(), to, limits)
}

/// Passes bytes to several upstream clusters, by weight.
pub(super) fn tcp_weighted(
    settings: &TrafficSettings,
    stat_prefix: String,
    clusters: Vec<tcp_proxy::tcp_proxy::weighted_cluster::ClusterWeight>,
    limits: ConnectionLimits,
) -> listener::Filter {
    use tcp_proxy::tcp_proxy::{ClusterSpecifier, WeightedCluster};
    let to = ClusterSpecifier::WeightedClusters(WeightedCluster { clusters });
    tcp_proxy(settings, stat_prefix, to, limits)
}

fn tcp_proxy(
    settings: &TrafficSettings,
    stat_prefix: String,
    to: tcp_proxy::tcp_proxy::ClusterSpecifier,
    ConnectionLimits { idle, lasting, by_source, tunnel, attempts }: ConnectionLimits,
) -> listener::Filter {
    use hash_policy::{PolicySpecifier, SourceIp};
    let source = || HashPolicy { policy_specifier: Some(PolicySpecifier::SourceIp(SourceIp {})) };
    let proxy = tcp_proxy::TcpProxy {
        stat_prefix,
        cluster_specifier: Some(to),
        access_log: access_log(settings),
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

/// An HTTP connection manager as both directions have it.
pub(super) struct Http {
    /// Names its figures.
    pub(super) stat_prefix: String,
    /// The port that its clients mean, if it is one.
    pub(super) port: Option<u16>,
    /// Where its routes come from.
    pub(super) routes: hcm::http_connection_manager::RouteSpecifier,
    /// Whether gRPC-Web is turned into gRPC.
    pub(super) grpc_web: bool,
    /// Whether routes may ask for faults and for answers to other origins (CORS). The filters stand there
    /// whether any route does or not: one that came later would drain the listener.
    pub(super) routed: bool,
    /// What guards it, before all that answers requests.
    pub(super) guards: Vec<hcm::HttpFilter>,
}

impl Http {
    /// The manager. Whoever says more of it lets users [merge](merged) theirs again.
    pub(super) fn manager(self, settings: &TrafficSettings) -> hcm::HttpConnectionManager {
        let mut filters: Vec<_> = settings.istio.peer_metadata().into_iter().collect();
        filters.extend(self.guards);
        if self.grpc_web {
            let grpc_web = http_filters::grpc_web::v3::GrpcWeb {};
            filters.push(http_filter("envoy.filters.http.grpc_web", &grpc_web));
        }
        filters.extend(settings.istio.alpn());
        if self.routed {
            // CORS first: it answers preflights itself, and these are no requests that may fail on purpose.
            let cors = http_filters::cors::v3::Cors::default();
            filters.push(http_filter("envoy.filters.http.cors", &cors));
            let fault = http_filters::fault::v3::HttpFault::default();
            filters.push(http_filter("envoy.filters.http.fault", &fault));
        }
        filters.extend(settings.istio.stats());
        put_in(settings, self.port, &mut filters);
        let router = http_filters::router::v3::Router::default();
        filters.push(http_filter("envoy.filters.http.router", &router));
        let manager = hcm::HttpConnectionManager {
            stat_prefix: self.stat_prefix,
            route_specifier: Some(self.routes),
            http_filters: filters,
            access_log: access_log(settings),
            tracing: settings.spans.as_deref().map(SpanReport::tracing),
            use_remote_address: bool_value(false),
            common_http_protocol_options: settings.idle_timeout.map(|idle| {
                core::HttpProtocolOptions {
                    idle_timeout: Some(duration(idle)),
                    ..Default::default()
                }
            }),
            // A stream may be silent for as long as both ends like.
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

/// Puts the filters of users among those before the router, one after the other.
fn put_in(settings: &TrafficSettings, port: Option<u16>, filters: &mut Vec<hcm::HttpFilter>) {
    let here = settings.filters.iter().filter(|(of, _)| of.is_none() || *of == port);
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

/// The manager, to which those paths are the same that the mesh says are; where it says nothing, with two slashes for one
/// if policies look at paths.
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

/// What of a path is the same path to a manager.
pub(crate) fn normalization_of(manager: &hcm::HttpConnectionManager) -> PathNormalization {
    use hcm::http_connection_manager::PathWithEscapedSlashesAction::UnescapeAndForward;
    let normalizes = manager.normalize_path.is_some_and(|said| said.value);
    match (normalizes, manager.merge_slashes) {
        (false, _) => PathNormalization::None,
        (true, false) => PathNormalization::Base,
        (true, true) if manager.path_with_escaped_slashes_action() == UnescapeAndForward => {
            PathNormalization::DecodeAndMergeSlashes
        }
        (true, true) => PathNormalization::MergeSlashes,
    }
}

/// Routes by RDS.
pub(super) fn routes_named(name: String) -> hcm::http_connection_manager::RouteSpecifier {
    use core::config_source::ConfigSourceSpecifier::Ads;
    hcm::http_connection_manager::RouteSpecifier::Rds(hcm::Rds {
        route_config_name: name,
        config_source: Some(core::ConfigSource {
            config_source_specifier: Some(Ads(core::AggregatedConfigSource {})),
            // The listener waits for its routes instead of answering 404.
            initial_fetch_timeout: Some(seconds(0)),
            resource_api_version: core::ApiVersion::V3.into(),
            ..Default::default()
        }),
    })
}

pub(super) fn http(manager: &hcm::HttpConnectionManager) -> listener::Filter {
    network_filter("envoy.filters.network.http_connection_manager", manager)
}

fn network_filter<M: Message + Name>(name: &str, config: &M) -> listener::Filter {
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

/// Restores the address that the client meant before it was redirected.
pub(super) fn original_destination() -> listener::ListenerFilter {
    let config = listener_filters::original_dst::v3::OriginalDst::default();
    listener_filter("envoy.filters.listener.original_dst", &config)
}

/// Has connections to the workload come from where the client is. (Istio's mark, which its rules leave alone.)
pub(super) fn original_source() -> listener::ListenerFilter {
    let config =
        listener_filters::original_src::v3::OriginalSrc { mark: 1337, ..Default::default() };
    listener_filter("envoy.filters.listener.original_src", &config)
}

/// Whether a listener takes connections that are meant for other addresses.
pub(super) fn is_transparent(interception: Interception) -> Option<BoolValue> {
    (interception == Interception::Transparent).then_some(BoolValue { value: true })
}

/// Tells TLS from plain text, and reads SNI and ALPN.
pub(super) fn tls_inspector() -> listener::ListenerFilter {
    let config = listener_filters::tls_inspector::v3::TlsInspector::default();
    listener_filter("envoy.filters.listener.tls_inspector", &config)
}

/// Reads whose a connection is, which it says first.
pub(super) fn proxy_protocol() -> listener::ListenerFilter {
    let config = listener_filters::proxy_protocol::v3::ProxyProtocol::default();
    listener_filter("envoy.filters.listener.proxy_protocol", &config)
}

/// Tells HTTP from other plain text.
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

/// Connections to any of these ports; `None` for no port.
pub(super) fn any_port(ports: &[u16]) -> Option<listener::ListenerFilterChainMatchPredicate> {
    use listener::listener_filter_chain_match_predicate::{MatchSet, Rule};
    let predicate = |rule| listener::ListenerFilterChainMatchPredicate { rule: Some(rule) };
    let mut rules: Vec<_> = ports
        .iter()
        .map(|&port| Int32Range { start: port.into(), end: i32::from(port) + 1 })
        .map(|range| predicate(Rule::DestinationPortRange(range)))
        .collect();
    // Envoy refuses an "or" of one.
    if rules.len() < 2 { rules.pop() } else { Some(predicate(Rule::OrMatch(MatchSet { rules }))) }
}

/// Connections to none of these ports; `None` for no port.
pub(super) fn no_port(ports: &[u16]) -> Option<listener::ListenerFilterChainMatchPredicate> {
    use listener::listener_filter_chain_match_predicate::Rule;
    let not = |any| listener::ListenerFilterChainMatchPredicate {
        rule: Some(Rule::NotMatch(Box::new(any))),
    };
    any_port(ports).map(not)
}

/// Lets a listener go on with a connection that stays silent: such a client waits for the server.
pub(super) fn detect(
    settings: &TrafficSettings,
    filters: Vec<listener::ListenerFilter>,
    listener: listener::Listener,
) -> listener::Listener {
    listener::Listener {
        listener_filters: filters,
        listener_filters_timeout: Some(duration(settings.detection_timeout)),
        continue_on_listener_filters_timeout: true,
        access_log: log_of_refused(settings),
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

/// Of connections that no chain takes (`NR`), of which nothing else writes.
pub(super) fn log_of_refused(settings: &TrafficSettings) -> Vec<accesslog::AccessLog> {
    use accesslog::access_log_filter::FilterSpecifier::{AndFilter, ResponseFlagFilter};
    let of = |written: &WrittenLog| {
        let flags = accesslog::ResponseFlagFilter { flags: vec!["NR".to_owned()] };
        let refused =
            accesslog::AccessLogFilter { filter_specifier: Some(ResponseFlagFilter(flags)) };
        let filter = match written.filter.as_deref().map(expression) {
            None => refused,
            Some(said) => accesslog::AccessLogFilter {
                filter_specifier: Some(AndFilter(accesslog::AndFilter {
                    filters: vec![refused, said],
                })),
            },
        };
        accesslog::AccessLog { filter: Some(filter), ..log_to(&written.log) }
    };
    settings.logs.iter().map(of).collect()
}

/// Takes the requests for which an expression of CEL is true.
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
        // `json_format` of `log_format`, whose fields have an order this way.
        AccessLogFormat::Json(fields) => {
            let mut log = any(&FileAccessLog { path, access_log_format: None });
            let mut format = Vec::new();
            nested(2, &fields.as_object().map(struct_of).unwrap_or_default(), &mut format);
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

/// When a request is tried again.
pub(crate) enum RetryOn {
    /// The upstream could not be reached, or says that it did nothing.
    Upstream,
    /// The connection to the own workload went away before the request was sent.
    OwnWorkload,
}

/// Tries a request again, twice at most. (Istio's defaults.)
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

/// A route that takes every request to an upstream cluster, however long it takes. A deadline that a
/// gRPC client names holds. Logs call it what Istio's call a route that no rule names.
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

/// A route that does the same with every request.
pub(crate) fn everything(action: route::route::Action) -> route::Route {
    let prefix = route::route_match::PathSpecifier::Prefix("/".into());
    route::Route {
        r#match: Some(route::RouteMatch { path_specifier: Some(prefix), ..Default::default() }),
        action: Some(action),
        ..Default::default()
    }
}

/// A virtual host for every domain.
pub(crate) fn virtual_host_of_everything(
    name: impl Into<String>,
    route: route::Route,
) -> route::VirtualHost {
    route::VirtualHost {
        name: name.into(),
        domains: vec!["*".into()],
        routes: vec![route],
        ..Default::default()
    }
}

/// A flag that is distinct from one that isn't set.
pub(crate) fn bool_value(value: bool) -> Option<BoolValue> {
    Some(BoolValue { value })
}

fn number(port: u16) -> UInt32Value {
    UInt32Value { value: port.into() }
}
