//! One version of the mesh: immutable, complete, and shared by all readers.
//!
//! Only the event loop creates versions. Unchanged parts are shared with the previous version.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use imbl::OrdMap;

use super::aliases::ServiceAliases;
use super::remote_pods::RemotePods;
use crate::aggregate::{AssignNetwork, AssignedEndpoints, Bar, MergedService, SameAddresses};
use crate::network::{Networks, PlacedBy, network_of};
use strait_model::mesh_config::{MeshConfig, MeshNetworks};
use strait_model::policy::{ForeignHostsMode, Policy};
use strait_model::registry::{Provider, ShardKey};
use strait_model::{
    ClusterFacts, ClusterId, ConfigurationSnapshot, EndpointMetadata, EndpointRef, Hostname,
    KnownClusters, Labels, Locality, NO_ADDRESS, Namespace, NetworkId, ObjectKey, Proxy, Seniority,
    Service, SharingDecision, SharingRule, Workload, WorkloadKey, Workloads,
};
use strait_rules::access::{AccessPolicies, AccessSubject, TrustBundle, WorkloadAccess};
use strait_rules::service_entry::{Selections, VmWorkload, VmWorkloads};
use strait_rules::traffic::foreign::{is_exported, owner_by_name};
use strait_rules::traffic::gateway::Gateway;
use strait_rules::traffic::{Selection, Traffic};

/// Settings that are fixed when the process starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FixedSettings {
    /// The DNS domain of services.
    pub domain: String,
    /// The trust domain of proxies and workloads.
    pub trust_domain: String,
    /// The root namespace, whose objects apply to the whole mesh.
    pub system_namespace: String,
    /// The config cluster, if any.
    pub config_cluster: Option<ClusterId>,
    /// Whether endpoints in a network without a gateway are reached directly, as in Istio.
    pub allow_direct_cross_network: bool,
    /// The maximum number of pods of headless services in a cluster that are reached by name from
    /// other networks.
    pub headless_pods_max: usize,
    /// The endpoint metadata that proxies receive.
    pub metadata: EndpointMetadata,
    /// Alternative names under which proxies may refer to a cluster.
    pub cluster_aliases: BTreeMap<ClusterId, ClusterId>,
}

/// One version of the mesh.
#[derive(Debug, Clone)]
pub struct PushContext {
    /// The version number; starts at 1.
    pub version: u64,
    /// The last version that changed anything other than assignments and pods.
    pub definitions: u64,
    /// See [`FixedSettings`].
    pub settings: Arc<FixedSettings>,
    /// The mesh config.
    pub mesh: Arc<MeshConfig>,
    /// The mesh networks: rules that assign networks to addresses, and configured gateways.
    pub mesh_networks: Arc<MeshNetworks>,
    /// The gateways of each network.
    pub networks: Arc<Networks>,
    /// The clusters that belong to the mesh.
    pub clusters: Arc<KnownClusters>,
    /// The policy: what clusters may claim, and the ranking of clusters.
    pub policy: Arc<Policy>,
    /// The access policies.
    pub access: Arc<AccessPolicies>,
    /// The network label of each synced cluster's system namespace.
    pub network_labels: OrdMap<ClusterId, Option<NetworkId>>,
    /// Merged services by name.
    pub services: OrdMap<Hostname, Arc<MergedService>>,
    /// Pods of synced clusters.
    pub workloads: OrdMap<ClusterId, Workloads>,
    /// Facts that synced clusters report.
    pub facts: OrdMap<ClusterId, ClusterFacts>,
    /// The addresses that pods of several clusters have in one network.
    pub same_addresses: SameAddresses,
    /// Definitions that apply only to proxies of one namespace, of names that others may define as
    /// well.
    pub private: Private,
    /// Namespaces to which some service that is not public is visible, with the number of such
    /// services. All other namespaces see the same services.
    pub restricted_namespaces: OrdMap<Namespace, usize>,
    /// Services that are aliases of other services.
    pub aliases: ServiceAliases,
    /// The pods that entries select from clusters, and the machines that entries describe.
    pub entries: Arc<Selections>,
    /// The active configuration: objects, mesh config and mesh networks.
    pub configuration: Arc<ConfigurationSnapshot>,
    /// The active traffic configuration.
    pub traffic: Arc<Traffic>,
    /// The traffic configuration for proxies of clusters that have active traffic objects of their
    /// own. It replaces `traffic` for these proxies.
    pub own_traffic: OrdMap<ClusterId, Arc<Traffic>>,
    /// The pods of headless services that are reached by name from other networks.
    pub remote_pods: RemotePods,
    /// The machines that clusters describe.
    pub vms: OrdMap<ClusterId, Arc<VmWorkloads>>,
}

/// Definitions by name and namespace. Nearly always empty.
pub type Private = OrdMap<Hostname, OrdMap<Namespace, Arc<MergedService>>>;

/// Returns the values of the hosts that are wildcards.
pub(super) fn wildcards<V>(hosts: &OrdMap<Hostname, V>) -> impl Iterator<Item = &V> {
    // All wildcard names begin with `*` and are therefore adjacent.
    let all = hosts.range(Hostname::from("*")..);
    all.take_while(|(host, _)| host.as_str().starts_with('*')).map(|(_, value)| value)
}

impl PushContext {
    /// Returns the mesh with the cluster's own traffic objects, or `None` if the cluster has no
    /// active ones.
    #[must_use]
    pub fn edition(&self, cluster: &ClusterId) -> Option<Self> {
        let traffic = Arc::clone(self.own_traffic.get(cluster)?);
        Some(Self { traffic, ..self.clone() })
    }

    /// Returns whether an object that applies to proxies of a cluster is that cluster's own.
    pub fn is_own(&self, cluster: &ClusterId, kind: &str, namespace: &str, name: &str) -> bool {
        let is_named =
            |key: &ObjectKey| (&*key.kind, &*key.namespace, &*key.name) == (kind, namespace, name);
        let own = self.facts.get(cluster).into_iter().flat_map(|facts| facts.traffic.iter());
        let mut own = own.map(|(key, _)| key).filter(|key| is_named(key));
        self.own_traffic.contains_key(cluster)
            && own.any(|key| self.configuration.traffic.get(key).is_none())
    }

    /// Returns the service with this name, as proxies of `namespace` see it.
    pub fn service(&self, host: &str, namespace: &Namespace) -> Option<&Arc<MergedService>> {
        let private = self.private.get(host).and_then(|private| private.get(namespace));
        private.or_else(|| self.services.get(host))
    }

    /// Returns the final target of a host, as proxies of `namespace` see it: the host itself unless
    /// it is an alias.
    pub fn target<'a>(&'a self, host: &'a Hostname, namespace: &Namespace) -> &'a Hostname {
        if self.aliases.is_empty() {
            return host;
        }
        // A private definition is never an alias.
        let is_own = self.private.get(host).is_some_and(|all| all.contains_key(namespace));
        if is_own { host } else { self.aliases.target(host) }
    }

    /// Returns all services, as proxies of `namespace` see them, including services not
    /// visible to it.
    pub fn services_of<'a>(
        &'a self,
        namespace: &'a Namespace,
    ) -> impl Iterator<Item = &'a Arc<MergedService>> {
        let shown = self.services.iter().map(move |(host, service)| {
            let private = self.private.get(host).and_then(|private| private.get(namespace));
            private.unwrap_or(service)
        });
        // Names that temporarily have only private definitions.
        let private_only =
            self.private.iter().filter(|(host, _)| !self.services.contains_key(*host));
        shown.chain(private_only.filter_map(move |(_, private)| private.get(namespace)))
    }

    /// Returns all definitions; private ones follow the others.
    pub fn all_services(&self) -> impl Iterator<Item = &Arc<MergedService>> {
        let private = self.private.values().flat_map(|private| private.values());
        self.services.values().chain(private)
    }

    /// Returns all definitions whose hostname is a wildcard.
    pub fn wildcard_services(&self) -> impl Iterator<Item = &Arc<MergedService>> {
        wildcards(&self.services).chain(wildcards(&self.private).flat_map(OrdMap::values))
    }

    /// Returns the network of an endpoint or proxy in `cluster` at `address` with network label
    /// `label`, and the rule that decided it.
    pub fn place(
        &self,
        cluster: &ClusterId,
        label: Option<&NetworkId>,
        address: IpAddr,
    ) -> (NetworkId, PlacedBy) {
        let placement = self.placement();
        let system_label =
            self.network_labels.get(placement.home(cluster)).and_then(Option::as_ref);
        placement.place(cluster, system_label, label, address)
    }

    /// Returns why an endpoint of `shard` is withheld from all proxies: because of the address or
    /// the network.
    pub fn bar(&self, shard: &ShardKey, network: &NetworkId, address: IpAddr) -> Option<Bar> {
        let placement = self.placement();
        if !shard.is_claimed() {
            None
        } else if address != NO_ADDRESS && !placement.may_use(&shard.cluster, address) {
            Some(Bar::Address)
        } else {
            (!placement.may_claim(&shard.cluster, network)).then_some(Bar::Network)
        }
    }

    /// Returns the clusters whose pods have the address of an endpoint of `shard` in its network.
    /// Returns `None` if at most one cluster has it, or if the endpoint is no such pod.
    pub fn claimants(
        &self,
        shard: &ShardKey,
        network: &NetworkId,
        endpoint: EndpointRef<'_>,
    ) -> Option<&Arc<[ClusterId]>> {
        if self.same_addresses.is_empty() || !shard.is_claimed() || !endpoint.claims_address() {
            return None;
        }
        let claimants = self.same_addresses.claimants(network, endpoint.address)?;
        claimants.contains(&shard.cluster).then_some(claimants)
    }

    /// Returns the sort key of a source in merging order; the smallest has precedence.
    pub fn precedence<'a>(&self, key: &'a ShardKey) -> (Provider, Seniority, &'a ClusterId) {
        let seniority = match &self.settings.config_cluster {
            Some(config) if *config == key.cluster => Seniority::Config,
            _ => self.clusters.seniority(&key.cluster),
        };
        (key.provider, seniority, &key.cluster)
    }

    fn placement(&self) -> NetworkAssignment<'_> {
        NetworkAssignment {
            clusters: &self.clusters,
            mesh_networks: &self.mesh_networks,
            policy: &self.policy,
            same_addresses: &self.same_addresses,
            config_cluster: self.settings.config_cluster.as_ref(),
            domain: &self.settings.domain,
            root_namespace: &self.mesh.root_namespace,
        }
    }

    /// Returns the network of a cluster as a whole: the network of its endpoints without a network
    /// label whose addresses are in no configured CIDR range.
    pub fn network_of_cluster(&self, cluster: &ClusterId) -> NetworkId {
        let settings = self.clusters.clusters.get(cluster);
        let fixed = settings.and_then(|settings| settings.fixed_network.as_ref());
        let label = self.network_labels.get(cluster).and_then(Option::as_ref);
        fixed
            .or(label)
            .or(self.mesh_networks.network_by_registry(cluster))
            .cloned()
            .unwrap_or_default()
    }

    /// Returns the location of a proxy. The node is the pod's node, otherwise the node that it
    /// reports. The locality is the pod's, otherwise the node's, otherwise the machine's,
    /// otherwise the locality that it reports.
    pub fn whereabouts(&self, proxy: &Proxy) -> Whereabouts {
        let pod = self.workload_of(proxy);
        let node = match pod {
            Some(pod) => pod.node.as_deref().cloned(),
            None => proxy.node_name.clone(),
        };
        let node_locality = || {
            let localities = &self.facts.get(&proxy.cluster)?.localities;
            localities.get(node.as_deref()?).cloned()
        };
        let reported = || Some(Arc::new(proxy.locality.clone())).filter(|one| !one.is_empty());
        let machine_locality = || self.machine_of(proxy)?.locality().cloned();
        let pod_locality = pod.and_then(|pod| pod.locality.clone());
        let locality =
            pod_locality.or_else(node_locality).or_else(machine_locality).or_else(reported);
        Whereabouts { node, locality }
    }

    /// Returns the WorkloadEntry with the name of a proxy's workload, if the proxy's cluster has no
    /// such pod. An entry of the proxy's own cluster has precedence.
    pub fn machine_of(&self, proxy: &Proxy) -> Option<&VmWorkload> {
        if self.workload_of(proxy).is_some() {
            return None;
        }
        let own = self.vms.get(&proxy.cluster);
        let own = own.and_then(|vms| vms.get(&proxy.workload));
        own.or_else(|| self.entries.vm(&proxy.workload))
    }

    /// Returns the labels of a proxy: its pod's if the pod is known, otherwise the labels that it
    /// reports.
    pub fn labels_of<'a>(&'a self, proxy: &'a Proxy) -> &'a Labels {
        self.workload_of(proxy).map_or(&proxy.labels, |workload| &workload.labels)
    }

    /// Returns the labels of a proxy's pod, or of the machine's WorkloadEntry. Returns `None` if
    /// neither is known, or several workloads share the machine, because the proxy serves each of
    /// them.
    pub fn known_labels(&self, proxy: &Proxy) -> Option<&Labels> {
        if let Some(pod) = self.workload_of(proxy) {
            return Some(&pod.labels);
        }
        let machine = self.machine_of(proxy)?;
        let Some(address) = machine.address() else { return Some(machine.labels()) };
        let namespace = proxy.namespace();
        let cluster_vms = self.vms.get(&proxy.cluster).into_iter().flat_map(|vms| vms.iter());
        let cluster_vms = cluster_vms
            .filter(|(name, vm)| name.namespace == *namespace && vm.address() == Some(address));
        let count = self.entries.vms_at(namespace, address).count() + cluster_vms.count();
        (count <= 1).then(|| machine.labels())
    }

    /// Returns the namespace and labels of all known pods and machines of a namespace, or of all
    /// namespaces if it is `None`.
    pub fn workload_labels<'a>(
        &'a self,
        namespace: Option<&'a Namespace>,
    ) -> impl Iterator<Item = (&'a Namespace, &'a Labels)> {
        let pods = self.workloads.values().flat_map(move |pods| {
            let (own, all) = match namespace {
                Some(namespace) => (Some(pods.of_namespace(namespace.as_str())), None),
                None => (None, Some(pods.iter())),
            };
            own.into_iter().flatten().chain(all.into_iter().flatten())
        });
        let machines = self.vms.values().map(|vms| &**vms).chain([self.entries.vms()]);
        let machines = machines.flatten().filter(move |(name, _)| {
            namespace.is_none_or(|namespace| name.namespace == *namespace)
        });
        let pod_labels = pods.map(|(key, pod)| (key.namespace, &*pod.labels));
        pod_labels.chain(machines.map(|(name, machine)| (&name.namespace, machine.labels())))
    }

    /// Returns the selectors of rules that match a proxy.
    pub fn selection(&self, proxy: &Proxy) -> Selection {
        // Usually no rule has a selector, so labels need not be looked up.
        if self.traffic.is_without_selectors() {
            return Selection::default();
        }
        self.traffic.selection_for(proxy, self.labels_of(proxy))
    }

    /// Returns the Gateways that select a router, the oldest first.
    pub fn gateways_of<'a>(&'a self, proxy: &'a Proxy) -> impl Iterator<Item = &'a Arc<Gateway>> {
        self.traffic.gateways.selecting(proxy.namespace(), self.labels_of(proxy))
    }

    /// Returns the access policies for the workload of a proxy. Labels that only the proxy reports
    /// are marked as unverified.
    pub fn access_of(&self, proxy: &Proxy) -> WorkloadAccess<'_> {
        let verified = self.known_labels(proxy);
        let subject = AccessSubject {
            namespace: proxy.namespace(),
            labels: verified.unwrap_or(&proxy.labels),
            is_known: verified.is_some(),
        };
        self.access.of(subject)
    }

    /// Returns the trust domains of the mesh, the mesh's own first.
    pub fn trust_bundle(&self) -> TrustBundle {
        TrustBundle::new(self.mesh.same_trust_domains(&self.mesh.trust_domain))
    }

    /// Returns the pod that a proxy reports as its own, if its cluster is synced and has this pod.
    pub fn workload_of(&self, proxy: &Proxy) -> Option<&Workload> {
        let WorkloadKey { namespace, name } = &proxy.workload;
        self.workloads.get(&proxy.cluster)?.get(namespace.as_str(), name)
    }
}

/// The known location of a proxy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Whereabouts {
    /// The node.
    pub node: Option<Arc<str>>,
    /// The locality: region, zone and so on.
    pub locality: Option<Arc<Locality>>,
}

/// The inputs from which networks of endpoints are computed.
pub(super) struct NetworkAssignment<'a> {
    pub(super) clusters: &'a KnownClusters,
    pub(super) mesh_networks: &'a MeshNetworks,
    pub(super) policy: &'a Policy,
    pub(super) same_addresses: &'a SameAddresses,
    pub(super) config_cluster: Option<&'a ClusterId>,
    pub(super) domain: &'a str,
    pub(super) root_namespace: &'a str,
}

impl NetworkAssignment<'_> {
    /// Returns the cluster that determines the network: the given one, or the config cluster for
    /// objects without a cluster.
    fn home<'a>(&'a self, cluster: &'a ClusterId) -> &'a ClusterId {
        self.config_cluster.filter(|_| cluster.is_empty()).unwrap_or(cluster)
    }

    fn place(
        &self,
        cluster: &ClusterId,
        system_label: Option<&NetworkId>,
        label: Option<&NetworkId>,
        address: IpAddr,
    ) -> (NetworkId, PlacedBy) {
        let cluster = self.home(cluster);
        let fixed = self
            .clusters
            .clusters
            .get(cluster)
            .and_then(|settings| settings.fixed_network.as_ref());
        network_of(fixed, label, system_label, self.mesh_networks, cluster, address)
    }
}

impl AssignNetwork for NetworkAssignment<'_> {
    fn may_export(&self, cluster: &ClusterId, service: &Service) -> bool {
        let (host, namespace) = (service.hostname.as_str(), service.namespace.as_str());
        !self.policy.limits_exports() || self.policy.may_export(cluster, host, namespace).is_ok()
    }

    fn sharing(&self, shard: &ShardKey, service: &Service) -> SharingDecision {
        match shard.provider {
            Provider::Kubernetes | Provider::WorkloadEntry => {
                self.policy.sharing().decide(&shard.cluster, service.sharing)
            }
            // Entries belong to the config cluster, whose store has them. Without one, no proxy
            // would be left.
            Provider::ServiceEntry
                if self.config_cluster.is_some() && service.sharing.label == Some(false) =>
            {
                SharingDecision { is_local: true, rule: SharingRule::Label }
            }
            // Services of Consul belong to no cluster.
            _ => SharingDecision::default(),
        }
    }

    fn is_of_foreign_name(&self, service: &Service) -> bool {
        let (hostname, namespace) = (&service.hostname, &service.namespace);
        self.policy.traffic().foreign_hosts == ForeignHostsMode::Deny
            && namespace.as_str() != self.root_namespace
            && is_exported(&service.export_to, namespace)
            && owner_by_name(hostname.as_str(), self.domain).is_some_and(|one| one != *namespace)
    }

    fn claimants(&self, network: &NetworkId, address: IpAddr) -> Option<&Arc<[ClusterId]>> {
        self.same_addresses.claimants(network, address)
    }

    fn has_claimants(&self) -> bool {
        !self.same_addresses.is_empty()
    }

    fn may_claim(&self, cluster: &ClusterId, network: &NetworkId) -> bool {
        self.policy.may_claim(cluster, network).is_ok()
    }

    fn may_use(&self, cluster: &ClusterId, address: IpAddr) -> bool {
        self.policy.may_use(cluster, address).is_ok()
    }

    fn network_of(
        &self,
        cluster: &ClusterId,
        system_label: Option<&NetworkId>,
        label: Option<&NetworkId>,
        address: IpAddr,
    ) -> AssignedEndpoints {
        let (network, by) = self.place(cluster, system_label, label, address);
        // Without ranges, an address that no rule covers would be in no network at any other
        // address, too.
        let by_address = match by {
            PlacedBy::MeshNetworksCidr => true,
            PlacedBy::Nothing => self.mesh_networks.has_ranges(),
            _ => false,
        };
        AssignedEndpoints { network, at_any_address: !by_address }
    }
}
