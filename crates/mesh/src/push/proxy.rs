//! Facts about one proxy that follow from the mesh: its labels, the ports that it serves, and
//! whether it is an east-west gateway.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::context::PushContext;
use crate::aggregate::MergedService;
use strait_model::{
    ClusterId, GATEWAY_PORT, GATEWAY_PORT_LABEL, Hostname, NETWORK_LABEL, Namespace, Port,
    Protocol, Proxy, Service, TargetPort, gateway_port, labels_match,
};
use strait_rules::traffic::Selection;
use strait_rules::traffic::destination_rule::{DestinationRule, RuleClient};
use strait_rules::traffic::policy::PoolLimits;
use strait_rules::traffic::sidecar::SidecarIngress;

/// A service port that a proxy's workload serves, or an ingress port of a Sidecar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InboundTarget<'a> {
    /// The port, as the proxy's own cluster defines it.
    pub port: &'a Port,
    /// The hostname and namespace of the service of the port. For an ingress port of a Sidecar, the
    /// oldest service with that port.
    pub service: Option<(&'a Hostname, &'a Namespace)>,
    /// The port number on the workload.
    pub target: u16,
    /// Connection limits for the workload, from its Sidecar or otherwise from the rule for
    /// the service.
    pub pool: Option<Arc<PoolLimits>>,
    /// The ingress listener of the Sidecar for this port, if the Sidecar defines ingress listeners.
    pub ingress: Option<&'a SidecarIngress>,
}

/// Returns the services that workloads of a namespace in a cluster may serve, oldest first: the
/// cluster's services in that namespace, and the services there that belong to no cluster. This
/// scans all services. The result is valid while no definition changes
/// ([`PushContext::definitions`]).
pub fn served_in(
    context: &PushContext,
    cluster: &ClusterId,
    namespace: &Namespace,
) -> Arc<[Arc<Service>]> {
    let services = context.services_of(namespace);
    oldest_first(services.flat_map(|merged| served_of(merged, cluster, namespace)).cloned())
}

/// Returns the objects of one service that workloads of a namespace in a cluster may serve.
pub fn served_of<'a>(
    merged: &'a MergedService,
    cluster: &ClusterId,
    namespace: &Namespace,
) -> impl Iterator<Item = &'a Arc<Service>> {
    let no_cluster = ClusterId::default();
    let own = [cluster, &no_cluster].map(|cluster| merged.by_cluster.get(cluster));
    own.into_iter().flatten().filter(move |own| own.namespace == *namespace)
}

/// Sorts services in the order in which they claim the ports of a workload.
pub fn oldest_first(services: impl Iterator<Item = Arc<Service>>) -> Arc<[Arc<Service>]> {
    let mut services: Vec<_> = services.collect();
    services.sort_by(|a, b| (a.created, &a.hostname).cmp(&(b.created, &b.hostname)));
    services.into()
}

/// Returns the service ports that the workload of `proxy` serves, one for each target port, oldest
/// service first. `served` are the services that its namespace and cluster [serve](served_in). If
/// its Sidecar has ingress listeners, returns only their ports.
///
/// A service is served if its selector matches the workload's labels; named target ports are looked
/// up in the pod. A service without a selector is served if any endpoint is the pod. The
/// same applies to ServiceEntries, for pods and for machines outside Kubernetes.
pub fn inbound_targets<'a>(
    context: &'a PushContext,
    proxy: &'a Proxy,
    served: &'a [Arc<Service>],
) -> Vec<InboundTarget<'a>> {
    let followed = context.traffic.scope(proxy.namespace(), &context.selection(proxy)).sidecar();
    let followed = followed.filter(|_| proxy.kind.serves_one_workload());
    let sidecar_pool = followed.and_then(|sidecar| sidecar.inbound_pool.as_ref());
    if let Some(ingress) = followed.and_then(|sidecar| sidecar.ingress.as_ref()) {
        let mut services = BTreeMap::new();
        for one in all_targets(context, proxy, served) {
            services.entry(one.port.number).or_insert(one.service);
        }
        let target = |one: &'a SidecarIngress| {
            let service = services.get(&one.port.number).copied().flatten();
            let own_pool = one.pool.as_ref().or(sidecar_pool).cloned();
            let rule_pool = || pool_of_rule(context, proxy.namespace(), service?, one.port.number);
            InboundTarget {
                port: &one.port,
                service,
                target: one.port.number,
                pool: own_pool.or_else(rule_pool),
                ingress: Some(one),
            }
        };
        return ingress.iter().map(target).collect();
    }
    let mut targets = BTreeMap::new();
    for one in all_targets(context, proxy, served) {
        targets.entry(one.target).or_insert(one);
    }
    let with_pool = |one: InboundTarget<'a>| {
        let rule_pool = || pool_of_rule(context, proxy.namespace(), one.service?, one.port.number);
        InboundTarget { pool: sidecar_pool.cloned().or_else(rule_pool), ..one }
    };
    targets.into_values().map(with_pool).collect()
}

/// Returns the DestinationRule that applies at the workloads of a service, if there is one: the
/// rule of their namespace as clients, but never one with a `workloadSelector`, which selects
/// clients. (Istio, "DestinationRule", `workloadSelector`.)
pub fn rule_at_workloads(
    context: &PushContext,
    namespace: &Namespace,
    (hostname, owner): (&Hostname, &Namespace),
) -> Option<Arc<DestinationRule>> {
    let rules = context.traffic.destination_rules.of(hostname.as_str());
    rules.rule(RuleClient { namespace, selection: &Selection::default() }, owner).cloned()
}

fn pool_of_rule(
    context: &PushContext,
    namespace: &Namespace,
    service: (&Hostname, &Namespace),
    port: u16,
) -> Option<Arc<PoolLimits>> {
    rule_at_workloads(context, namespace, service)?.resolved("", port).connection_pool
}

/// Returns the proxy's own port to which the oldest of its Services with port `number` routes, or
/// `None` if none has this port. `served` is as for [`inbound_targets`].
pub fn target_port(
    context: &PushContext,
    proxy: &Proxy,
    served: &[Arc<Service>],
    number: u16,
) -> Option<u16> {
    let mut all = all_targets(context, proxy, served);
    all.find(|one| one.port.number == number).map(|one| one.target)
}

/// Returns all service ports that route to the workload of a proxy, oldest service first.
fn all_targets<'a>(
    context: &'a PushContext,
    proxy: &'a Proxy,
    served: &'a [Arc<Service>],
) -> impl Iterator<Item = InboundTarget<'a>> {
    let labels = context.labels_of(proxy);
    let selecting =
        served.iter().filter(|own| own.selector.is_empty() || labels_match(&own.selector, labels));
    // UDP is never proxied, and a UDP port must not be mistaken for the TCP port with the same
    // number.
    let ports = selecting.flat_map(|own| {
        own.ports.iter().filter(|port| port.protocol != Protocol::Udp).map(move |port| (own, port))
    });
    ports.filter_map(|(own, port)| {
        let target = if own.selector.is_empty() {
            let merged = context.service(own.hostname.as_str(), proxy.namespace());
            merged.and_then(|merged| endpoint_port(context, merged, port, proxy))
        } else {
            target_number(context, proxy, port)
        };
        let service = Some((&own.hostname, &own.namespace));
        target.map(|target| InboundTarget { port, service, target, pool: None, ingress: None })
    })
}

fn target_number(context: &PushContext, proxy: &Proxy, port: &Port) -> Option<u16> {
    match &port.target {
        TargetPort::Number(number) => Some(*number),
        TargetPort::Name(name) => {
            let pod_port =
                context.workload_of(proxy).map(|workload| workload.named_ports.get(name));
            // For an unknown pod, use the ports that the proxy reports.
            pod_port.unwrap_or_else(|| proxy.named_ports.get(name)).copied()
        }
    }
}

fn endpoint_port(
    context: &PushContext,
    service: &MergedService,
    port: &Port,
    proxy: &Proxy,
) -> Option<u16> {
    let is_pod = context.workload_of(proxy).is_some();
    let mut candidates = service.endpoints().filter(|(key, _, _)| {
        // A pod is in its own cluster; a machine elsewhere may have the same address.
        key.cluster == proxy.cluster || (key.cluster.is_empty() && !is_pod)
    });
    candidates.find_map(|(_, endpoint, _)| {
        let is_proxy = match endpoint.workload {
            Some(workload) if workload == proxy.workload => true,
            // The name of a machine's proxy may differ from the WorkloadEntry's.
            Some(_) if is_pod => false,
            _ => proxy.addresses.contains(&endpoint.address),
        };
        (is_proxy && *endpoint.port_name == port.name).then_some(endpoint.port)
    })
}

/// Returns the port on which `proxy` listens as an east-west gateway, or `None` if it is not one.
/// (docs/reference/interface.md, "Networks".)
pub fn east_west_port(context: &PushContext, proxy: &Proxy) -> Option<u16> {
    if !proxy.kind.is_gateway() {
        return None;
    }
    let labels = context.labels_of(proxy);
    let own = context.services.values().filter_map(|merged| merged.by_cluster.get(&proxy.cluster));
    let mut gateways: Vec<&Arc<Service>> = own
        .filter(|service| {
            service.namespace == *proxy.namespace()
                && service.has_network_label()
                && labels_match(&service.selector, labels)
        })
        .collect();
    gateways.sort_by_key(|service| (service.created, service.hostname.clone()));
    let service_port = gateways.iter().find_map(|service| {
        let label = service.labels.get(GATEWAY_PORT_LABEL);
        let number = gateway_port(label.map(|text| &**text));
        let port = service.ports.iter().find(|port| port.number == number)?;
        target_number(context, proxy, port)
    });
    let own_port = || labels.contains_key(NETWORK_LABEL).then_some(GATEWAY_PORT);
    service_port.or_else(own_port)
}
