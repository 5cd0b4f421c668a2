//! The mesh at one version: immutable, complete, and shared by everybody who reads it.
//!
//! Made by the event loop only. Parts that did not change are shared with the version before.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use imbl::OrdMap;

use super::aliases::ServiceAliases;
use crate::aggregate::{AssignNetwork, AssignedEndpoints, Bar, MergedService, SameAddresses};
use crate::network::{Networks, PlacedBy, network_of};
use strait_model::mesh_config::{MeshConfig, MeshNetworks};
use strait_model::policy::{ForeignHostsMode, Policy};
use strait_model::registry::{Provider, ShardKey};
use strait_model::{
    ClusterFacts, ClusterId, ConfigurationSnapshot, EndpointMetadata, EndpointRef, Hostname,
    KnownClusters, Labels, Locality, NO_ADDRESS, Namespace, NetworkId, ObjectKey, Proxy, Seniority,
    Service, Workload, WorkloadKey, Workloads,
};
use strait_rules::access::{AccessPolicies, AccessSubject, TrustBundle, WorkloadAccess};
use strait_rules::service_entry::{Selections, VmWorkload, VmWorkloads};
use strait_rules::traffic::foreign::{is_exported, owner_by_name};
use strait_rules::traffic::gateway::Gateway;
use strait_rules::traffic::{Selection, Traffic};

/// What an operator fixed when the process started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FixedSettings {
    /// The DNS domain of services.
    pub domain: String,
    /// The trust domain of proxies and workloads.
    pub trust_domain: String,
    /// The namespace that stands for the mesh.
    pub system_namespace: String,
    /// The config cluster, where there is one.
    pub config_cluster: Option<ClusterId>,
    /// Whether a network without a gateway is reached directly, as the peer does.
    pub allow_direct_cross_network: bool,
    /// What proxies are sent about endpoints.
    pub metadata: EndpointMetadata,
    /// Other names by which proxies may call a cluster.
    pub cluster_aliases: BTreeMap<ClusterId, ClusterId>,
}

/// One version of the mesh.
#[derive(Debug, Clone)]
pub struct PushContext {
    /// Counts up from 1.
    pub version: u64,
    /// The version that last changed anything but what assignments say, and pods.
    pub definitions: u64,
    /// See [`FixedSettings`].
    pub settings: Arc<FixedSettings>,
    /// Mesh settings.
    pub mesh: Arc<MeshConfig>,
    /// The rules by which addresses belong to networks.
    pub mesh_networks: Arc<MeshNetworks>,
    /// The gateways of each network.
    pub networks: Arc<Networks>,
    /// The clusters that belong to the mesh.
    pub clusters: Arc<KnownClusters>,
    /// What clusters may say, and which come first.
    pub policy: Arc<Policy>,
    /// Who may call whom.
    pub access: Arc<AccessPolicies>,
    /// The network that each synced cluster's system namespace names.
    pub network_labels: OrdMap<ClusterId, Option<NetworkId>>,
    /// Merged services by name.
    pub services: OrdMap<Hostname, Arc<MergedService>>,
    /// Pods of synced clusters.
    pub workloads: OrdMap<ClusterId, Workloads>,
    /// What synced clusters say of themselves.
    pub facts: OrdMap<ClusterId, ClusterFacts>,
    /// The addresses that pods of several clusters have in one network.
    pub same_addresses: SameAddresses,
    /// Definitions that one namespace has for itself, of names that others have as well.
    pub private: Private,
    /// Namespaces for which some service is there that isn't for all, with the number of these: all other
    /// namespaces see the same.
    pub restricted_namespaces: OrdMap<Namespace, usize>,
    /// Services that are other names of services.
    pub aliases: ServiceAliases,
    /// What entries select of clusters, and the machines that they describe.
    pub entries: Arc<Selections>,
    /// What operators' objects say, as far as it is in force.
    pub configuration: Arc<ConfigurationSnapshot>,
    /// The traffic configuration in force.
    pub traffic: Arc<Traffic>,
    /// What is in force in its place for the proxies of clusters that have traffic objects of their own which count.
    pub own_traffic: OrdMap<ClusterId, Arc<Traffic>>,
    /// The machines that clusters describe.
    pub vms: OrdMap<ClusterId, Arc<VmWorkloads>>,
}

/// By name and namespace. Nearly always empty.
pub type Private = OrdMap<Hostname, OrdMap<Namespace, Arc<MergedService>>>;

/// The values of the hosts that are wildcards.
pub(super) fn wildcards<V>(hosts: &OrdMap<Hostname, V>) -> impl Iterator<Item = &V> {
    // No other name begins with a character before it.
    let all = hosts.range(Hostname::from("*")..);
    all.take_while(|(host, _)| host.as_str().starts_with('*')).map(|(_, value)| value)
}

impl PushContext {
    /// The mesh as proxies of a cluster are given it, where that is otherwise than for all: with its own traffic objects.
    #[must_use]
    pub fn edition(&self, cluster: &ClusterId) -> Option<Self> {
        let traffic = Arc::clone(self.own_traffic.get(cluster)?);
        Some(Self { traffic, ..self.clone() })
    }

    /// Whether an object that counts for proxies of a cluster is that cluster's own.
    pub fn is_own(&self, cluster: &ClusterId, kind: &str, namespace: &str, name: &str) -> bool {
        let is_it =
            |key: &ObjectKey| (&*key.kind, &*key.namespace, &*key.name) == (kind, namespace, name);
        let own = self.facts.get(cluster).into_iter().flat_map(|facts| facts.traffic.iter());
        let mut own = own.map(|(key, _)| key).filter(|key| is_it(key));
        self.own_traffic.contains_key(cluster)
            && own.any(|key| self.configuration.traffic.get(key).is_none())
    }

    /// The service of this name, as proxies of `namespace` know it.
    pub fn service(&self, host: &str, namespace: &Namespace) -> Option<&Arc<MergedService>> {
        let private = self.private.get(host).and_then(|private| private.get(namespace));
        private.or_else(|| self.services.get(host))
    }

    /// The service that a host stands for in the end, as proxies of `namespace` know it: itself, unless it is another name
    /// of one.
    pub fn target<'a>(&'a self, host: &'a Hostname, namespace: &Namespace) -> &'a Hostname {
        if self.aliases.is_empty() {
            return host;
        }
        // What a namespace has for itself is no alias.
        let is_own = self.private.get(host).is_some_and(|all| all.contains_key(namespace));
        if is_own { host } else { self.aliases.target(host) }
    }

    /// All services, as proxies of `namespace` know them, be they visible to it or not.
    pub fn services_of<'a>(
        &'a self,
        namespace: &'a Namespace,
    ) -> impl Iterator<Item = &'a Arc<MergedService>> {
        let shown = self.services.iter().map(move |(host, service)| {
            let private = self.private.get(host).and_then(|private| private.get(namespace));
            private.unwrap_or(service)
        });
        // A name that nobody else has any more, for the moment.
        let alone = self.private.iter().filter(|(host, _)| !self.services.contains_key(*host));
        shown.chain(alone.filter_map(move |(_, private)| private.get(namespace)))
    }

    /// All definitions there are, those that one namespace has for itself behind the others.
    pub fn all_services(&self) -> impl Iterator<Item = &Arc<MergedService>> {
        let private = self.private.values().flat_map(|private| private.values());
        self.services.values().chain(private)
    }

    /// Those of them that are called by a wildcard.
    pub fn wildcard_services(&self) -> impl Iterator<Item = &Arc<MergedService>> {
        wildcards(&self.services).chain(wildcards(&self.private).flat_map(OrdMap::values))
    }

    /// The network of something in `cluster` at `address` that carries `label`, and which rule
    /// decided that.
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

    /// What bars an endpoint of `shard` from everybody, by its address or by its network.
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

    /// The clusters whose pods have the address of an endpoint of `shard` in its network, where several do and the
    /// endpoint is one of these pods.
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

    /// Where a source stands where sources differ, the smallest first: as they are merged.
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

    /// The network of a cluster as a whole: what its endpoints are in that say nothing themselves, and
    /// whose addresses no CIDR range claims.
    pub fn network_of_cluster(&self, cluster: &ClusterId) -> NetworkId {
        let known = self.clusters.clusters.get(cluster);
        let fixed = known.and_then(|known| known.fixed_network.as_ref());
        let label = self.network_labels.get(cluster).and_then(Option::as_ref);
        fixed.or(label).or(self.mesh_networks.of_registry(cluster)).cloned().unwrap_or_default()
    }

    /// Where a proxy is. Its node is its pod's, else the one that it names; its locality that of its pod, else of
    /// its node, else of its machine, else what it says itself.
    pub fn whereabouts(&self, proxy: &Proxy) -> Whereabouts {
        let pod = self.workload_of(proxy);
        let node = match pod {
            Some(pod) => pod.node.as_deref().cloned(),
            None => proxy.node_name.clone(),
        };
        let of_node = || {
            let localities = &self.facts.get(&proxy.cluster)?.localities;
            localities.get(node.as_deref()?).cloned()
        };
        let claimed = || Some(Arc::new(proxy.locality.clone())).filter(|one| !one.is_empty());
        let of_machine = || self.machine_of(proxy)?.locality().cloned();
        let of_pod = pod.and_then(|pod| pod.locality.clone());
        let locality = of_pod.or_else(of_node).or_else(of_machine).or_else(claimed);
        Whereabouts { node, locality }
    }

    /// The WorkloadEntry of a proxy's name, its cluster's own first, where its cluster has no such pod.
    pub fn machine_of(&self, proxy: &Proxy) -> Option<&VmWorkload> {
        if self.workload_of(proxy).is_some() {
            return None;
        }
        let own = self.vms.get(&proxy.cluster);
        let own = own.and_then(|vms| vms.get(&proxy.workload));
        own.or_else(|| self.entries.vm(&proxy.workload))
    }

    /// The labels of a proxy: its pod's where that is known, else those it claims.
    pub fn labels_of<'a>(&'a self, proxy: &'a Proxy) -> &'a Labels {
        self.workload_of(proxy).map_or(&proxy.labels, |workload| &workload.labels)
    }

    /// The labels of a proxy's pod, or of its machine's WorkloadEntry; `None` where nobody knows it, or where several
    /// workloads share the machine, so that it stands for each of them.
    pub fn known_labels(&self, proxy: &Proxy) -> Option<&Labels> {
        if let Some(pod) = self.workload_of(proxy) {
            return Some(&pod.labels);
        }
        let machine = self.machine_of(proxy)?;
        let Some(address) = machine.address() else { return Some(machine.labels()) };
        let namespace = proxy.namespace();
        let own = self.vms.get(&proxy.cluster).into_iter().flat_map(|vms| vms.iter());
        let own = own
            .filter(|(name, one)| name.namespace == *namespace && one.address() == Some(address));
        let there = self.entries.vms_at(namespace, address).count() + own.count();
        (there <= 1).then(|| machine.labels())
    }

    /// The labels of all pods and machines of a namespace that are known, with that; of all namespaces where it is `None`.
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
        let of_pods = pods.map(|(key, pod)| (key.namespace, &*pod.labels));
        of_pods.chain(machines.map(|(name, machine)| (&name.namespace, machine.labels())))
    }

    /// The selectors of rules that select a proxy.
    pub fn selection(&self, proxy: &Proxy) -> Selection {
        // Mostly no rule asks for labels, and nobody's need be found.
        if self.traffic.is_without_selectors() {
            return Selection::default();
        }
        self.traffic.selection_of(proxy, self.labels_of(proxy))
    }

    /// The Gateways that select a router, the oldest first.
    pub fn gateways_of<'a>(&'a self, proxy: &'a Proxy) -> impl Iterator<Item = &'a Arc<Gateway>> {
        self.traffic.gateways.selecting(proxy.namespace(), self.labels_of(proxy))
    }

    /// What holds of access for the workload beside a proxy. Labels of what nobody knows are claims.
    pub fn access_of(&self, proxy: &Proxy) -> WorkloadAccess<'_> {
        let known = self.known_labels(proxy);
        let subject = AccessSubject {
            namespace: proxy.namespace(),
            labels: known.unwrap_or(&proxy.labels),
            is_known: known.is_some(),
        };
        self.access.of(subject)
    }

    /// The trust domains of the mesh, the mesh's own first.
    pub fn trust_bundle(&self) -> TrustBundle {
        TrustBundle::new(self.mesh.same_trust_domains(&self.mesh.trust_domain))
    }

    /// The pod that a proxy says it stands beside, if its cluster has been read and has it.
    pub fn workload_of(&self, proxy: &Proxy) -> Option<&Workload> {
        let WorkloadKey { namespace, name } = &proxy.workload;
        self.workloads.get(&proxy.cluster)?.get(namespace.as_str(), name)
    }
}

/// Where a proxy runs, as far as that is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Whereabouts {
    /// Its node.
    pub node: Option<Arc<str>>,
    /// Its region, zone and so on.
    pub locality: Option<Arc<Locality>>,
}

/// The inputs by which the event loop places endpoints.
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
    /// The cluster by whose network something is placed: its own, else the one where it is written.
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
        let fixed =
            self.clusters.clusters.get(cluster).and_then(|known| known.fixed_network.as_ref());
        network_of(fixed, label, system_label, self.mesh_networks, cluster, address)
    }
}

impl AssignNetwork for NetworkAssignment<'_> {
    fn may_export(&self, cluster: &ClusterId, service: &Service) -> bool {
        let (host, namespace) = (service.hostname.as_str(), service.namespace.as_str());
        !self.policy.limits_exports() || self.policy.may_export(cluster, host, namespace).is_ok()
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
        // What no range claims is in no network wherever it is, if there are no ranges.
        let by_address = match by {
            PlacedBy::MeshNetworksCidr => true,
            PlacedBy::Nothing => self.mesh_networks.has_ranges(),
            _ => false,
        };
        AssignedEndpoints { network, at_any_address: !by_address }
    }
}
