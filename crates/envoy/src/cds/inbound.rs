//! The upstream clusters from a sidecar to its own workload.

use std::net::IpAddr;
use std::sync::Arc;

use super::{
    encode, from_inbound, limited_options, policy, protocol_options, single_endpoint,
    socket_address, to_own_workload,
};
use crate::istio_filters::{self, NameReaders, ServiceName};
use strait_mesh::push::PushContext;
use strait_mesh::push::proxy::InboundTarget;
use strait_model::{IstioFilter, Protocol, Proxy};
use strait_proto::envoy::envoy::config::cluster::v3 as cluster;
use strait_proto::envoy::envoy::config::core::v3 as core;
use strait_rules::traffic::policy::{PoolLimits, ResolvedPolicy};
use strait_rules::traffic::sidecar::WorkloadBackend;
use strait_xds::resource::Resource;

/// Returns the name of the upstream cluster for a port of the proxy's own workload.
pub(crate) fn inbound_name(target: u16) -> String {
    format!("inbound|{target}||")
}

/// Returns the upstream clusters from a sidecar to its own workload, which serves `targets`.
pub(crate) fn inbound_clusters(
    context: &PushContext,
    proxy: &Proxy,
    targets: &[InboundTarget<'_>],
) -> Vec<Resource> {
    targets.iter().map(|target| inbound(context, target, proxy)).collect()
}

/// Returns the upstream cluster for one port of the proxy's own workload.
fn inbound(context: &PushContext, target: &InboundTarget<'_>, proxy: &Proxy) -> Resource {
    let name = inbound_name(target.target);
    let protocol = protocol_to_workload(target);
    let mut cluster = cluster::Cluster {
        typed_extension_protocol_options: protocol_options(protocol),
        ..to_own_workload(context, name.clone(), (proxy.has_ipv4(), proxy.has_ipv6()))
    };
    if let Some(ingress) = target.ingress {
        lead_to(&mut cluster, &ingress.backend, proxy);
    }
    if let Some(pool) = &target.pool {
        let policy = pool_policy(pool);
        cluster.typed_extension_protocol_options = limited_options(protocol, &policy, None, None);
        policy::limit(&mut cluster, &policy, context.mesh.tcp_keepalive);
    }
    let counting = [IstioFilter::HttpStats, IstioFilter::TcpStats];
    let readers = NameReaders {
        filters: proxy.istio_filters.has_any(counting),
        metrics: proxy.reports_services,
    };
    match target.service {
        Some((hostname, namespace)) => {
            let named = ServiceName { hostname, namespace, is_external: false };
            istio_filters::naming(named, &context.settings.domain, readers, cluster)
        }
        None => encode(name, &cluster),
    }
}

/// Returns a policy that contains only a connection pool. No other setting of a rule applies to
/// connections to the workload.
pub(crate) fn pool_policy(pool: &Arc<PoolLimits>) -> ResolvedPolicy {
    ResolvedPolicy { connection_pool: Some(Arc::clone(pool)), ..ResolvedPolicy::default() }
}

/// Returns the protocol between the sidecar and its workload: the protocol that the port declares.
/// The client's protocol is used if the port declares none or the pool sets `useClientProtocol`,
/// because the hop between two proxies may be HTTP/2 while the application only knows HTTP/1.1.
fn protocol_to_workload(target: &InboundTarget<'_>) -> Protocol {
    let declared = target.port.protocol;
    let uses_client_protocol = target.pool.as_ref().is_some_and(|pool| pool.use_client_protocol);
    if uses_client_protocol && declared.is_http() { Protocol::Auto } else { declared }
}

/// Makes the cluster forward to the address that the workload's Sidecar names, if any.
fn lead_to(cluster: &mut cluster::Cluster, backend: &WorkloadBackend, proxy: &Proxy) {
    use cluster::cluster::{ClusterDiscoveryType, DiscoveryType, LbPolicy};
    let (address, source) = match backend {
        WorkloadBackend::SamePort => return,
        // Redirection never applies to loopback addresses, whatever the source address.
        WorkloadBackend::Loopback(at) => (socket_address(at.ip().to_string(), at.port()), None),
        WorkloadBackend::PodAddress(at) => {
            let is_family = |one: &&IpAddr| one.is_ipv4() == at.is_ipv4();
            // If the pod has no address of this family, connections fail.
            let own = proxy.addresses.iter().find(is_family).copied().unwrap_or(at.ip());
            let source = from_inbound((own.is_ipv4(), own.is_ipv6()));
            (socket_address(own.to_string(), at.port()), Some(source))
        }
        WorkloadBackend::UnixSocket(path) => {
            let pipe = core::Pipe { path: path.to_string(), ..Default::default() };
            (core::Address { address: Some(core::address::Address::Pipe(pipe)) }, None)
        }
    };
    cluster.cluster_discovery_type = Some(ClusterDiscoveryType::Type(DiscoveryType::Static.into()));
    cluster.lb_policy = LbPolicy::RoundRobin.into();
    cluster.upstream_bind_config = source;
    cluster.load_assignment = Some(single_endpoint(&cluster.name, address));
}
