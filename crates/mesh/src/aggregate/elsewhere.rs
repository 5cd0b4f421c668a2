//! Endpoints that name no pod of their cluster, at addresses of pods of other clusters.
//!
//! Multi-cluster controllers copy EndpointSlices from cluster to cluster, and people write such
//! slices by hand. The cluster that runs a pod decides its identity, readiness and network. So an
//! endpoint at the address of another cluster's pod takes these from that cluster. It is left out
//! if that cluster has the endpoint itself. Only pods in the service's namespace are considered, as
//! within one cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use strait_model::{
    ClusterFacts, ClusterId, Endpoint, EndpointRef, Endpoints, Health, Hostname, Namespace,
    NetworkId, PodState, Workload, WorkloadRef, Workloads,
};

/// The services with endpoints that name no pod, by address, each with the number of these
/// endpoints.
#[derive(Debug, Clone, Default)]
pub(super) struct NamelessEndpoints(BTreeMap<IpAddr, BTreeMap<Hostname, usize>>);

impl NamelessEndpoints {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Replaces the endpoints that one cluster has for a service.
    pub(super) fn replace(
        &mut self,
        host: &Hostname,
        old: Option<&Endpoints>,
        new: Option<&Endpoints>,
    ) {
        if old == new {
            return;
        }
        for endpoint in new.into_iter().flat_map(nameless) {
            let hosts = self.0.entry(endpoint.address).or_default();
            *hosts.entry(host.clone()).or_default() += 1;
        }
        for endpoint in old.into_iter().flat_map(nameless) {
            let Some(hosts) = self.0.get_mut(&endpoint.address) else { continue };
            let Some(count) = hosts.get_mut(host) else { continue };
            *count -= 1;
            if *count == 0 {
                hosts.remove(host);
            }
            if hosts.is_empty() {
                self.0.remove(&endpoint.address);
            }
        }
    }

    /// Returns the services with such endpoints at the addresses of a pod.
    pub(super) fn hosts_at<'a>(&'a self, pod: &'a Workload) -> impl Iterator<Item = &'a Hostname> {
        let at = pod.addresses.iter().filter_map(|address| self.0.get(&address));
        at.flat_map(BTreeMap::keys)
    }

    /// Returns the services with such endpoints at the addresses of any of these pods.
    pub(super) fn hosts_of(&self, pods: &Workloads) -> BTreeSet<Hostname> {
        if self.is_empty() {
            return BTreeSet::new();
        }
        pods.iter().flat_map(|(_, pod)| self.hosts_at(pod)).cloned().collect()
    }

    /// Returns all services with such endpoints.
    pub(super) fn hosts(&self) -> impl Iterator<Item = &Hostname> {
        self.0.values().flat_map(BTreeMap::keys)
    }
}

/// Returns the endpoints that name no pod. Most services have none.
fn nameless(endpoints: &Endpoints) -> impl Iterator<Item = EndpointRef<'_>> {
    let has_any = endpoints.kinds().iter().any(|kind| kind.workload_namespace().is_none());
    let all = has_any.then(|| endpoints.iter());
    all.into_iter().flatten().filter(|endpoint| endpoint.workload.is_none())
}

/// The data of one cluster that is needed to resolve endpoints of a service.
pub(super) struct ClusterPods<'a> {
    pub(super) id: &'a ClusterId,
    pub(super) workloads: &'a Workloads,
    pub(super) facts: &'a ClusterFacts,
    /// The cluster's own endpoints of the service.
    pub(super) endpoints: Option<&'a Endpoints>,
}

/// A pod at an address.
struct PodAt<'a> {
    cluster: ClusterPods<'a>,
    name: WorkloadRef<'a>,
    pod: &'a Workload,
    network: NetworkId,
}

/// The pods of all clusters at the addresses for which endpoints of a service name none.
pub(super) struct PodsByAddress<'a>(BTreeMap<IpAddr, Vec<PodAt<'a>>>);

/// The resolved endpoints of a cluster, and the networks of the endpoints that are pods of other
/// clusters.
pub(super) struct ResolvedEndpoints {
    pub(super) endpoints: Endpoints,
    pub(super) networks: BTreeMap<IpAddr, NetworkId>,
}

impl<'a> PodsByAddress<'a> {
    /// Finds the pods of a namespace at the addresses for which any of these endpoints names none.
    /// Returns `None` if no pod has one, which is the usual case.
    pub(super) fn find<'e>(
        namespace: &Namespace,
        endpoints: impl Iterator<Item = &'e Endpoints>,
        clusters: impl Iterator<Item = ClusterPods<'a>>,
        network_of: impl Fn(&ClusterId, &Workload, IpAddr) -> NetworkId,
    ) -> Option<Self> {
        let addresses: BTreeSet<IpAddr> =
            endpoints.flat_map(nameless).map(|endpoint| endpoint.address).collect();
        if addresses.is_empty() {
            return None;
        }
        let mut pods: BTreeMap<IpAddr, Vec<PodAt<'a>>> = BTreeMap::new();
        for ClusterPods { id, workloads, facts, endpoints } in clusters {
            for (name, pod) in workloads.of_namespace(namespace.as_str()) {
                for address in pod.addresses.iter().filter(|address| addresses.contains(address)) {
                    let network = network_of(id, pod, address);
                    let cluster = ClusterPods { id, workloads, facts, endpoints };
                    pods.entry(address).or_default().push(PodAt { cluster, name, pod, network });
                }
            }
        }
        (!pods.is_empty()).then_some(Self(pods))
    }

    /// Adds to endpoints of the cluster `own_cluster` that name no pod the facts of other clusters'
    /// pods. `network_of` returns the network that the own cluster assigns to an address. Returns
    /// `None` if nothing differs.
    pub(super) fn resolve(
        &self,
        own_cluster: &ClusterId,
        endpoints: &Endpoints,
        network_of: impl Fn(IpAddr) -> NetworkId,
    ) -> Option<ResolvedEndpoints> {
        let mut networks = BTreeMap::new();
        let mut differs = false;
        let resolved = endpoints.iter().filter_map(|endpoint| {
            let original = Some(endpoint.to_endpoint());
            let pods = self.0.get(&endpoint.address).filter(|_| endpoint.workload.is_none());
            let Some(pods) = pods else { return original };
            let is_copy = endpoint.pod == PodState::Mirrored;
            let network = if is_copy { None } else { Some(network_of(endpoint.address)) };
            let is_candidate = |pod: &&PodAt<'_>| {
                pod.cluster.id != own_cluster
                    && network.as_ref().is_none_or(|own_network| pod.network == *own_network)
            };
            let mut pods = pods.iter().filter(is_candidate);
            let is_reported_by_cluster = |pod: &PodAt<'_>| {
                let same = |reported: EndpointRef<'_>| {
                    (reported.address, reported.port) == (endpoint.address, endpoint.port)
                };
                pod.cluster.endpoints.is_some_and(|endpoints| endpoints.iter().any(same))
            };
            if pods.clone().any(is_reported_by_cluster) {
                differs = true;
                return None;
            }
            match (pods.next(), pods.next()) {
                (Some(pod), None) => {
                    differs = true;
                    networks.insert(endpoint.address, pod.network.clone());
                    Some(with_facts(endpoint, pod))
                }
                // Two clusters have the address, and the endpoint does not say which pod it means.
                (Some(_), Some(_)) if is_copy => {
                    differs = true;
                    Some(Endpoint { pod: PodState::Missing, ..endpoint.to_endpoint() })
                }
                _ => original,
            }
        });
        let endpoints: Endpoints = resolved.collect();
        differs.then_some(ResolvedEndpoints { endpoints, networks })
    }
}

/// Returns the endpoint with the facts that the pod's cluster has about the pod.
fn with_facts(endpoint: EndpointRef<'_>, PodAt { cluster, name, pod, .. }: &PodAt<'_>) -> Endpoint {
    let node_locality = || cluster.facts.localities.get(&***pod.node.as_ref()?);
    let locality = pod.locality.as_ref().or_else(node_locality);
    let is_unready = cluster.facts.unready.contains(&name.to_key());
    let health = match endpoint.health {
        Health::Healthy if is_unready => Health::Unhealthy,
        health => health,
    };
    Endpoint {
        health,
        locality: Arc::clone(locality.unwrap_or(endpoint.locality)),
        network_label: None,
        tls_mode: pod.tls_mode,
        service_account: Some(Arc::clone(&pod.identity)),
        telemetry: pod.telemetry.clone(),
        labels: Some(Arc::clone(&pod.labels)).filter(|labels| !labels.is_empty()),
        ..endpoint.to_endpoint()
    }
}
