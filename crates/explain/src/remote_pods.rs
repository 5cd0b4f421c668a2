//! Explains how pods of headless services in other networks are reached.

use std::collections::BTreeSet;

use strait_base::codes;
use strait_mesh::aggregate::MergedService;
use strait_mesh::push::PushContext;
use strait_mesh::push::remote_pods::{PodNaming, RemoteClusterPods};
use strait_mesh::push::shared::set_names;
use strait_mesh::push::view::ViewKey;
use strait_model::{ClusterId, EndpointRef, NetworkId};
use strait_rules::traffic::{HostPattern, Reason};

/// Returns by which name clients in other networks reach a pod, or why they don't; `None` if the
/// pods of its cluster have no names in other networks.
pub(super) fn naming(
    context: &PushContext,
    view: &ViewKey,
    (service, cluster): (&MergedService, &ClusterId),
    (endpoint, network): (EndpointRef<'_>, &NetworkId),
) -> Option<String> {
    let host = service.hostname();
    let services = context.remote_pods.of(host)?;
    let pods = services.clusters.get(cluster).filter(|pods| pods.network == *network)?;
    let name = endpoint.workload?.to_key().name;
    Some(match pods.naming(&name) {
        None => "it has no name in other networks, because it is not a pod of a StatefulSet with an ordinal below 254 whose serviceName is the service".into(),
        Some(PodNaming::BeyondLimit) => format!(
            "it has no name in other networks, because its cluster has more than {} such pods (--headless-pods-max)",
            context.settings.headless_pods_max
        ),
        Some(PodNaming::AwaitsGateways) => {
            "clients receive its name as soon as the gateways know the pod".into()
        }
        Some(PodNaming::Named) if host.is_of_set() => {
            let names = set_names(context, &BTreeSet::new());
            reached_at(pods, &format!("{name}.{}.{host}", names.get(cluster)?))
        }
        Some(PodNaming::Named) => {
            let has_name = |other: EndpointRef<'_>| {
                other.workload.is_some_and(|workload| workload.to_key().name == name)
            };
            let mut others = service.endpoints();
            let is_direct = others.any(|(_, other, place)| *place == view.network && has_name(other));
            let remote = services.outside(&view.network);
            let count = remote.filter(|(_, pods)| pods.naming(&name).is_some()).count();
            if is_direct || count > 1 {
                format!("pods of several clusters have the name {name}: export the service, and use its name in the set (ServiceExport, --mcs)")
            } else {
                reached_at(pods, &format!("{name}.{host}"))
            }
        }
    })
}

/// Returns the reason that rules for `host`, at `path` of their object, do not apply to pods in
/// other networks, if clients select these pods by name.
pub(super) fn rules_without_effect(
    context: &PushContext,
    host: &HostPattern,
    path: &str,
) -> Option<Reason> {
    let mut hosts = context.remote_pods.hosts();
    let service = hosts.find(|service| host.matches(service.as_str()))?;
    let text = format!(
        "the rules do not apply to connections to single pods of {service} in other networks"
    );
    Some(Reason::warning(&codes::RULES_NOT_FOR_PODS, path, text))
}

fn reached_at(pods: &RemoteClusterPods, name: &str) -> String {
    let families = if pods.has_ipv6() { "" } else { " and IPv4" };
    format!("clients with DNS proxying{families} reach it by the name {name}")
}
