//! Translates the traffic policy of a DestinationRule into settings of an upstream cluster: limits,
//! outlier detection and load balancing. (docs/reference/traffic.md, "DestinationRule".)

use super::super::{any, duration};
use super::error_matcher::{counted_statuses, predicate};
use strait_model::mesh_config::TcpKeepalive;
use strait_model::{Port, Protocol};
use strait_proto::envoy::envoy::config::cluster::v3 as cluster;
use strait_proto::envoy::envoy::config::core::v3 as core;
use strait_proto::envoy::envoy::extensions::transport_sockets::proxy_protocol::v3::ProxyProtocolUpstreamTransport;
use strait_proto::envoy::envoy::extensions::upstreams::http::v3 as http;
use strait_proto::envoy::envoy::r#type::v3::Percent;
use strait_proto::envoy::google::protobuf::{UInt32Value, UInt64Value};
use strait_rules::traffic::policy::{
    Algorithm, ConsistentHash, HashTable, LoadBalancing, OutlierDetection, PoolLimits,
    ProxyProtocol, ResolvedPolicy, RetryBudget, Warmup,
};

/// Linear increase of the weight of a new endpoint, which is Envoy's default.
const AGGRESSION_EVEN_MILLI: u32 = 1000;

/// Returns the port with the protocol that clients use. The policy decides on the upgrade to
/// HTTP/2; if it has no setting, the mesh decides (`upgrades`). Only ports that declare HTTP are
/// upgraded: a workload whose port declares no protocol receives the protocol of the hop. With
/// `useClientProtocol` the client's protocol is used. Ports whose traffic is not parsed stay
/// unchanged.
pub(super) fn with_client_protocol(port: &Port, policy: &ResolvedPolicy, upgrades: bool) -> Port {
    let no_limits = PoolLimits::default();
    let pool = policy.connection_pool.as_deref().unwrap_or(&no_limits);
    let is_http = port.protocol.is_http();
    let reads = is_http || port.protocol == Protocol::Auto;
    let protocol = match pool.h2_upgrade.unwrap_or(upgrades) {
        _ if !reads => port.protocol,
        _ if pool.use_client_protocol => Protocol::Auto,
        true if is_http && !port.protocol.is_http2() => Protocol::Http2,
        _ => port.protocol,
    };
    Port { protocol, ..port.clone() }
}

/// Returns the HTTP connection limits of the policy; `requests_max` limits every connection.
pub(super) fn http_limits(
    policy: &ResolvedPolicy,
    requests_max: Option<u32>,
) -> Option<core::HttpProtocolOptions> {
    let no_limits = PoolLimits::default();
    let pool = policy.connection_pool.as_deref().unwrap_or(&no_limits);
    let requests = pool.max_requests_per_connection.into_iter().chain(requests_max).min();
    let options = core::HttpProtocolOptions {
        idle_timeout: pool.http_idle_timeout.or(pool.tcp_idle_timeout).map(duration),
        max_connection_duration: pool.max_connection_duration.map(duration),
        max_requests_per_connection: requests.map(number),
        ..Default::default()
    };
    (options != core::HttpProtocolOptions::default()).then_some(options)
}

/// Returns the HTTP/2 limits of the policy: concurrent streams per connection, and keepalive pings.
/// Returns the default if the policy has no connection pool.
pub(super) fn http2_options(policy: &ResolvedPolicy) -> core::Http2ProtocolOptions {
    let Some(pool) = &policy.connection_pool else { return core::Http2ProtocolOptions::default() };
    let pings = pool.http2_keepalive.map(|pings| core::KeepaliveSettings {
        interval: Some(duration(pings.interval)),
        timeout: Some(duration(pings.timeout)),
        ..Default::default()
    });
    core::Http2ProtocolOptions {
        max_concurrent_streams: pool.max_concurrent_streams.map(number),
        connection_keepalive: pings,
        ..Default::default()
    }
}

/// Returns the response codes that outlier detection counts as errors, if the policy lists any.
pub(super) fn errors(
    policy: &ResolvedPolicy,
) -> Option<http::http_protocol_options::OutlierDetection> {
    let rule = policy.outlier_detection.as_deref()?;
    if rule.error_statuses.is_empty() {
        return None;
    }
    let error_matcher = Some(predicate(counted_statuses(rule)));
    Some(http::http_protocol_options::OutlierDetection { error_matcher })
}

/// Makes each transport socket of the cluster send the client's address first, by the PROXY
/// protocol, if the policy asks for it.
pub(super) fn announce_client(
    cluster: &mut cluster::Cluster,
    policy: &ResolvedPolicy,
    plain: impl Fn() -> core::TransportSocket,
) {
    let Some(version) = policy.proxy_protocol else { return };
    use core::proxy_protocol_config::Version;
    let version = match version {
        ProxyProtocol::V1 => Version::V1,
        ProxyProtocol::V2 => Version::V2,
    };
    let around = |inner: core::TransportSocket| {
        let announced = ProxyProtocolUpstreamTransport {
            config: Some(core::ProxyProtocolConfig {
                version: version.into(),
                ..Default::default()
            }),
            transport_socket: Some(inner),
            ..Default::default()
        };
        core::TransportSocket {
            name: "envoy.transport_sockets.upstream_proxy_protocol".into(),
            config_type: Some(core::transport_socket::ConfigType::TypedConfig(any(&announced))),
        }
    };
    let own = cluster.transport_socket.take().unwrap_or_else(&plain);
    cluster.transport_socket = Some(around(own));
    for socket in &mut cluster.transport_socket_matches {
        socket.transport_socket = socket.transport_socket.take().map(around);
    }
}

/// Applies circuit breaker limits and outlier detection to a cluster, whichever way its endpoints
/// are discovered.
pub(super) fn limit(
    cluster: &mut cluster::Cluster,
    policy: &ResolvedPolicy,
    keepalive: Option<TcpKeepalive>,
) {
    if let Some(pool) = &policy.connection_pool {
        limit_pool(cluster, pool, keepalive);
    }
    if let Some(budget) = policy.retry_budget {
        let breakers = cluster.circuit_breakers.iter_mut();
        for limits in breakers.flat_map(|breakers| &mut breakers.thresholds) {
            limits.retry_budget = Some(retry_budget(budget));
        }
    }
    if let Some(outliers) = &policy.outlier_detection {
        cluster.outlier_detection = Some(outlier_detection(outliers));
        if outliers.min_health_percent != 0
            && let Some(common) = &mut cluster.common_lb_config
        {
            let value = f64::from(outliers.min_health_percent);
            common.healthy_panic_threshold = Some(Percent { value });
        }
    }
}

fn limit_pool(cluster: &mut cluster::Cluster, pool: &PoolLimits, mesh: Option<TcpKeepalive>) {
    let breakers = cluster.circuit_breakers.iter_mut();
    for limits in breakers.flat_map(|breakers| &mut breakers.thresholds) {
        let put = |limit: &mut Option<UInt32Value>, given: Option<u32>| {
            if let Some(given) = given {
                *limit = Some(number(given));
            }
        };
        put(&mut limits.max_connections, pool.max_connections);
        put(&mut limits.max_pending_requests, pool.max_pending_requests);
        put(&mut limits.max_requests, pool.max_requests);
        put(&mut limits.max_retries, pool.max_retries);
    }
    if let Some(time) = pool.connect_timeout {
        cluster.connect_timeout = Some(duration(time));
    }
    if let Some(own) = pool.tcp_keepalive {
        let mesh = mesh.unwrap_or_default();
        let keepalive = TcpKeepalive {
            probes: own.probes.or(mesh.probes),
            time: own.time.or(mesh.time),
            interval: own.interval.or(mesh.interval),
        };
        cluster.upstream_connection_options = Some(connection_options(keepalive));
    }
}

/// Returns the retry budget, which replaces the fixed limit of concurrent retries.
fn retry_budget(budget: RetryBudget) -> cluster::circuit_breakers::thresholds::RetryBudget {
    let value = f64::from(budget.percent_hundredths) / 100.0;
    cluster::circuit_breakers::thresholds::RetryBudget {
        budget_percent: Some(Percent { value }),
        min_retry_concurrency: Some(number(budget.min_retry_concurrency)),
        ..Default::default()
    }
}

/// Returns the outlier detection settings. Detection is active even if the object is empty. Success
/// rates are never used. (Istio, "OutlierDetection".)
fn outlier_detection(given: &OutlierDetection) -> cluster::OutlierDetection {
    let enforced = |errors: u32| number(if errors == 0 { 0 } else { 100 });
    let local = given.consecutive_local_origin_failures.filter(|_| given.split_local_origin);
    cluster::OutlierDetection {
        consecutive_5xx: given.consecutive_5xx.filter(|errors| *errors != 0).map(number),
        enforcing_consecutive_5xx: given.consecutive_5xx.map(enforced),
        consecutive_gateway_failure: given
            .consecutive_gateway_errors
            .filter(|errors| *errors != 0)
            .map(number),
        enforcing_consecutive_gateway_failure: given.consecutive_gateway_errors.map(enforced),
        split_external_local_origin_errors: given.split_local_origin,
        consecutive_local_origin_failure: local.filter(|errors| *errors != 0).map(number),
        enforcing_consecutive_local_origin_failure: local.map(enforced),
        enforcing_local_origin_success_rate: given.split_local_origin.then(|| number(0)),
        enforcing_success_rate: Some(number(0)),
        interval: given.interval.map(duration),
        base_ejection_time: given.base_ejection_time.map(duration),
        max_ejection_percent: given.max_ejection_percent.map(number),
        ..Default::default()
    }
}

/// Returns whether assignments contain locality weights for some client.
fn weighs_localities(policy: &ResolvedPolicy) -> bool {
    let setting = policy.load_balancer.as_deref().and_then(|one| one.locality.as_ref());
    setting.is_some_and(|setting| setting.enabled && !setting.distribute.is_empty())
}

/// Applies the load balancing of the policy. A cluster that forwards to the original destination
/// selects no endpoint.
pub(super) fn balance(cluster: &mut cluster::Cluster, policy: &ResolvedPolicy) {
    use cluster::cluster::common_lb_config::{LocalityConfigSpecifier, LocalityWeightedLbConfig};
    use cluster::cluster::{
        LbConfig, LbPolicy, MaglevLbConfig, RingHashLbConfig, RoundRobinLbConfig,
    };
    let Some(LoadBalancing { algorithm, warmup, .. }) = policy.load_balancer.as_deref() else {
        return;
    };
    if weighs_localities(policy)
        && let Some(common) = &mut cluster.common_lb_config
    {
        common.locality_config_specifier =
            Some(LocalityConfigSpecifier::LocalityWeightedLbConfig(LocalityWeightedLbConfig {}));
    }
    let slowly = warmup.map(slow_start);
    match algorithm {
        Algorithm::RoundRobin => {
            cluster.lb_policy = LbPolicy::RoundRobin.into();
            cluster.lb_config = slowly.map(|slowly| {
                let config = RoundRobinLbConfig { slow_start_config: Some(slowly) };
                LbConfig::RoundRobinLbConfig(config)
            });
        }
        Algorithm::Random => {
            cluster.lb_policy = LbPolicy::Random.into();
            cluster.lb_config = None;
        }
        Algorithm::LeastRequest => {
            if let Some(LbConfig::LeastRequestLbConfig(config)) = &mut cluster.lb_config {
                config.slow_start_config = slowly;
            }
        }
        Algorithm::ConsistentHash(ConsistentHash {
            table: HashTable::Ring { minimum_size },
            ..
        }) => {
            cluster.lb_policy = LbPolicy::RingHash.into();
            cluster.lb_config = Some(LbConfig::RingHashLbConfig(RingHashLbConfig {
                minimum_ring_size: Some(UInt64Value { value: *minimum_size }),
                ..Default::default()
            }));
        }
        Algorithm::ConsistentHash(ConsistentHash { table: HashTable::Maglev(size), .. }) => {
            cluster.lb_policy = LbPolicy::Maglev.into();
            cluster.lb_config = size.map(|value| {
                LbConfig::MaglevLbConfig(MaglevLbConfig { table_size: Some(UInt64Value { value }) })
            });
        }
        Algorithm::Passthrough => {}
    }
}

fn slow_start(warmup: Warmup) -> cluster::cluster::SlowStartConfig {
    let is_even = warmup.aggression_milli == AGGRESSION_EVEN_MILLI;
    cluster::cluster::SlowStartConfig {
        slow_start_window: Some(duration(warmup.duration)),
        aggression: (!is_even).then(|| core::RuntimeDouble {
            default_value: f64::from(warmup.aggression_milli) / 1000.0,
            runtime_key: "upstream.slow_start.aggression".into(),
        }),
        min_weight_percent: Some(Percent { value: f64::from(warmup.minimum_percent) }),
    }
}

fn number(value: u32) -> UInt32Value {
    UInt32Value { value }
}

/// Returns upstream connection options with these TCP keepalive settings.
pub(super) fn connection_options(keepalive: TcpKeepalive) -> cluster::UpstreamConnectionOptions {
    let seconds = |duration: std::time::Duration| UInt32Value {
        value: u32::try_from(duration.as_secs()).unwrap_or(u32::MAX),
    };
    let keepalive = core::TcpKeepalive {
        keepalive_probes: keepalive.probes.map(|value| UInt32Value { value }),
        keepalive_time: keepalive.time.map(seconds),
        keepalive_interval: keepalive.interval.map(seconds),
    };
    cluster::UpstreamConnectionOptions { tcp_keepalive: Some(keepalive), ..Default::default() }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use strait_model::testing::port;

    #[test]
    fn only_ports_that_declare_http_are_upgraded() {
        let pool = PoolLimits { h2_upgrade: Some(true), ..PoolLimits::default() };
        let rule = ResolvedPolicy { connection_pool: Some(Arc::new(pool)), ..Default::default() };
        for (name, upgraded) in [
            ("http", Protocol::Http2),
            ("grpc", Protocol::Grpc),
            ("x", Protocol::Auto),
            ("tcp", Protocol::Tcp),
        ] {
            let port = port(name, 80, 80);
            for (policy, mesh) in [(&rule, false), (&ResolvedPolicy::default(), true)] {
                let used = with_client_protocol(&port, policy, mesh).protocol;
                assert_eq!(used, upgraded, "{name}");
            }
        }
    }
}
