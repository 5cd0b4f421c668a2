//! The shards, filled by their sources, and the hostnames that an update changed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use imbl::ordset::DiffItem;

use super::assign::AssignNetwork;
use super::elsewhere::{ClusterPods, NamelessEndpoints, PodsByAddress, ResolvedEndpoints};
use super::export_order::ExportOrder;
use super::merge::{MergedRecord, MergedService, merge};
use strait_model::registry::{
    Contents, Epoch, Provider, RegistryUpdate, ServiceRecord, ShardChange, ShardKey,
};
use strait_model::{
    CLUSTERSET, ClusterExports, ClusterFacts, ClusterId, Definition, ExportedService, Hostname,
    KnownClusters, NetworkId, Seniority, Service, WorkloadKey, Workloads, repack,
};

/// All shards.
#[derive(Debug, Clone, Default)]
pub struct Aggregate {
    shards: BTreeMap<ShardKey, ShardContents>,
    config_cluster: Option<ClusterId>,
    known_clusters: Arc<KnownClusters>,
    /// Endpoints that may be pods of other clusters.
    nameless: NamelessEndpoints,
}

#[derive(Debug, Clone)]
struct ShardContents {
    epoch: Epoch,
    /// The cluster's position in merging order.
    seniority: Seniority,
    services: BTreeMap<Hostname, ServiceRecord>,
    /// The services with a network label. They are few; the index avoids a search through all
    /// services.
    labelled: BTreeSet<Hostname>,
    workloads: Workloads,
    network_label: Option<NetworkId>,
    facts: ClusterFacts,
}

/// The changes that an update caused.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AggregateChanges {
    /// Services whose definition or endpoints changed, or that were removed.
    pub hosts: BTreeSet<Hostname>,
    /// The subset of `hosts` whose own object was changed, added or removed in some shard.
    pub objects: BTreeSet<Hostname>,
    /// Pods that were changed or removed. The pods of added or removed clusters are not listed.
    pub workloads: BTreeSet<(ClusterId, WorkloadKey)>,
    /// Clusters that were added or removed, or whose system namespace names a different network.
    pub placements: BTreeSet<ClusterId>,
    /// Clusters whose facts changed.
    pub facts: BTreeSet<ClusterId>,
    /// Clusters whose facts are unchanged except for their traffic objects.
    pub traffic: BTreeSet<ClusterId>,
    /// Clusters whose exported services changed.
    pub exports: BTreeSet<ClusterId>,
    /// Whether any cluster's declared gateways changed.
    pub gateways: bool,
    /// Whether any shard's entries (machines) changed.
    pub entries: bool,
}

impl AggregateChanges {
    /// Returns whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty()
            && self.workloads.is_empty()
            && self.placements.is_empty()
            && self.exports.is_empty()
    }

    /// Adds the changes of a later update.
    pub fn merge(&mut self, later: AggregateChanges) {
        join(&mut self.hosts, later.hosts);
        join(&mut self.objects, later.objects);
        join(&mut self.workloads, later.workloads);
        self.placements.extend(later.placements);
        self.facts.extend(later.facts);
        self.traffic.extend(later.traffic);
        self.exports.extend(later.exports);
        self.gateways |= later.gateways;
        self.entries |= later.entries;
    }
}

/// Moves `more` into `all`: item by item if it is small, otherwise at once.
fn join<T: Ord>(all: &mut BTreeSet<T>, mut more: BTreeSet<T>) {
    if more.len() < all.len() / 8 {
        all.extend(more);
    } else {
        all.append(&mut more);
    }
}

impl Aggregate {
    /// Creates an empty aggregate. The shard of `config_cluster`, if any, is merged first.
    pub fn new(config_cluster: Option<ClusterId>) -> Self {
        Self { config_cluster, ..Self::default() }
    }

    /// Updates the ages of clusters, which determine the merging order.
    pub fn rank(&mut self, known_clusters: Arc<KnownClusters>) {
        let before = std::mem::replace(&mut self.known_clusters, known_clusters);
        let changed: Vec<ClusterId> =
            with_another_age(&before, &self.known_clusters).into_iter().cloned().collect();
        for cluster in changed {
            let seniority = self.seniority(&cluster);
            for provider in Provider::ALL {
                let key = ShardKey { provider, cluster: cluster.clone() };
                if let Some(shard) = self.shards.get_mut(&key) {
                    shard.seniority = seniority;
                }
            }
        }
    }

    /// Returns the seniority of a cluster, which determines its position in merging order.
    pub fn seniority(&self, cluster: &ClusterId) -> Seniority {
        seniority(&self.known_clusters, self.config_cluster.as_ref(), cluster)
    }

    /// Applies one update of a source. An update of an earlier run than the one that fills the
    /// shard has no effect. Applying an update twice has the same effect as applying it once.
    pub fn apply(&mut self, update: RegistryUpdate) -> AggregateChanges {
        let RegistryUpdate { shard: key, epoch, change } = update;
        let mut touched = AggregateChanges::default();
        let exports = self.shards.get(&key).map(|shard| shard.facts.exports.clone());
        match change {
            ShardChange::Removed => {
                if let Some(shard) = self.shards.remove(&key) {
                    if key.provider.is_cluster() {
                        for (host, record) in &shard.services {
                            self.nameless.replace(host, Some(&record.endpoints), None);
                        }
                    }
                    if !key.is_joined() {
                        touched.placements.insert(key.cluster.clone());
                    }
                    touched.facts.insert(key.cluster.clone());
                    if shard.facts.exports != ClusterExports::default() {
                        touched.exports.insert(key.cluster.clone());
                    }
                    touched.entries |= !shard.facts.entries.is_empty();
                    touched.hosts = shard.services.keys().cloned().collect();
                    touched.objects.clone_from(&touched.hosts);
                    let hosts = self.nameless.hosts_of(&shard.workloads);
                    touched.hosts.extend(hosts);
                }
            }
            ShardChange::Reset(mut contents) => {
                let mut first_workloads = None;
                let shard = match self.shards.get_mut(&key) {
                    Some(shard) if shard.epoch > epoch => return touched,
                    Some(shard) => shard,
                    None => {
                        if !key.is_joined() {
                            touched.placements.insert(key.cluster.clone());
                        }
                        // Pods of a new cluster are not listed as changes: proxies whose pod was
                        // not found are notified of the cluster. They are inserted last, because
                        // their nodes are no change either.
                        first_workloads = contents.workloads.take();
                        let seniority = self.seniority(&key.cluster);
                        self.shards
                            .entry(key.clone())
                            .or_insert(ShardContents::empty(epoch, seniority))
                    }
                };
                shard.epoch = epoch;
                // Entries that the reset omits are removed. Report them like an update that removes
                // them.
                for host in shard.services.keys() {
                    contents.services.entry(host.clone()).or_insert(None);
                }
                contents.workloads.get_or_insert_default();
                contents.network_label.get_or_insert(None);
                contents.facts.get_or_insert_default();
                shard.apply(&key, contents, &mut self.nameless, &mut touched);
                if let Some(workloads) = first_workloads {
                    touched.hosts.extend(self.nameless.hosts_of(&workloads));
                    shard.workloads = workloads;
                }
                repack(&mut shard.services);
            }
            ShardChange::Update(contents) => {
                if let Some(shard) = self.shards.get_mut(&key)
                    && shard.epoch == epoch
                {
                    shard.apply(&key, contents, &mut self.nameless, &mut touched);
                }
            }
        }
        if touched.exports.contains(&key.cluster) {
            let hosts = self.reordered_names(&key, &exports.unwrap_or_default());
            touched.hosts.extend(hosts);
        }
        touched
    }

    /// Returns the names of the set whose merging order may differ because exports or imports of the
    /// shard's cluster differ from `before`.
    fn reordered_names(&self, key: &ShardKey, before: &ClusterExports) -> Vec<Hostname> {
        let none = ClusterExports::default();
        let now = self.shards.get(key).map_or(&none, |shard| &shard.facts.exports);
        let exports = before.exports.diff(&now.exports).map(|item| changed_key(&item));
        let imports = before.imports.diff(&now.imports).map(|item| changed_key(&item));
        let names = exports.chain(imports).map(|service| {
            Hostname::of_kubernetes_service(&service.name, service.namespace.as_str(), CLUSTERSET)
        });
        let is_merged =
            |host: &Hostname| self.shards.values().any(|shard| shard.services.contains_key(host));
        names.filter(is_merged).collect()
    }

    /// Returns the service with this name, merged over all shards, or `None` if no shard has it.
    pub fn merge(&self, host: &Hostname, place: &dyn AssignNetwork) -> Option<MergedService> {
        let mut records: Vec<_> = self
            .shards
            .iter()
            .filter_map(|(key, shard)| Some((key, shard, shard.services.get(host)?)))
            .collect();
        in_order(&mut records, |(key, shard, _)| (key, shard.seniority));
        if host.is_of_set() {
            self.sort_by_export(&mut records);
        }
        let pods = self.pods_elsewhere(host, &records, place);
        let resolved = records.iter().map(|(key, shard, record)| {
            let pods = pods.as_ref().filter(|_| key.provider.is_cluster())?;
            let label = shard.network_label.as_ref();
            let network_of = |address| place.network_of(&key.cluster, label, None, address).network;
            let ResolvedEndpoints { endpoints, networks } =
                pods.resolve(&key.cluster, &record.endpoints, network_of)?;
            let record = ServiceRecord { service: Arc::clone(&record.service), endpoints };
            Some((record, networks))
        });
        let resolved: Vec<_> = resolved.collect();
        let records = records.into_iter().zip(&resolved).map(|((key, shard, record), resolved)| {
            let system_label = self.system_label(key, shard);
            let is_compared = !host.is_of_set() || shard.export_of(record).is_some();
            let elsewhere = resolved.as_ref().map(|(_, networks)| networks);
            let record = resolved.as_ref().map_or(record, |(record, _)| record);
            MergedRecord { key, record, system_label, elsewhere, is_compared }
        });
        merge(host, records, place)
    }

    /// Sorts the records of a name of the set by their exports, in the order that the ServiceImport
    /// follows, too. Clusters without an export come last.
    fn sort_by_export(&self, records: &mut [(&ShardKey, &ShardContents, &ServiceRecord)]) {
        let Some((.., first)) = records.first() else { return };
        let service =
            WorkloadKey::new(first.service.namespace.clone(), Arc::clone(&first.service.name));
        let exports = self.clusters().map(|(id, _, facts)| (id, &facts.exports));
        let seniority = |id: &ClusterId| self.seniority(id);
        let order = ExportOrder::new(&service, exports, &self.known_clusters, seniority);
        let position = |cluster: &ClusterId, export: &ExportedService| {
            let known = self.known_clusters.clusters.get(cluster);
            let name = known.and_then(|known| known.set_name.as_deref());
            // Without the current time, a time in the future is a late time.
            order.position(name.unwrap_or(cluster.as_str()), order.age(cluster, export, i64::MAX))
        };
        // The sort is stable: clusters without an export stay in merging order.
        records.sort_by_key(|&(key, shard, record)| {
            let export = shard.export_of(record);
            let position = export.map(|export| (position(&key.cluster, export), &key.cluster));
            (key.provider, position.is_none(), position)
        });
    }

    /// Returns the pods that may be meant by endpoints of a service that name no pod.
    fn pods_elsewhere<'a>(
        &'a self,
        host: &Hostname,
        records: &[(&ShardKey, &ShardContents, &ServiceRecord)],
        place: &dyn AssignNetwork,
    ) -> Option<PodsByAddress<'a>> {
        if self.nameless.is_empty() {
            return None;
        }
        let kubernetes_records = records.iter().filter(|(key, ..)| key.provider.is_cluster());
        let endpoints = kubernetes_records.clone().map(|(.., record)| &record.endpoints);
        let (.., first_record) = kubernetes_records.clone().next()?;
        let kubernetes_shards = self.shards.iter().filter(|(key, _)| key.provider.is_cluster());
        let clusters = kubernetes_shards.map(|(key, shard)| ClusterPods {
            id: &key.cluster,
            workloads: &shard.workloads,
            facts: &shard.facts,
            endpoints: shard.services.get(host).map(|record| &record.endpoints),
        });
        PodsByAddress::find(
            &first_record.service.namespace,
            endpoints,
            clusters,
            |cluster, pod, address| {
                let shard = self.shards.get(&ShardKey::kubernetes(cluster.clone()));
                let label = shard.and_then(|shard| shard.network_label.as_ref());
                place.network_of(cluster, label, pod.network_label.as_ref(), address).network
            },
        )
    }

    /// Returns the services with endpoints that may be pods of other clusters.
    pub fn nameless_hosts(&self) -> impl Iterator<Item = &Hostname> {
        self.nameless.hosts()
    }

    /// Returns the network label of the system namespace of the shard's cluster. For shards that
    /// belong to no cluster, returns that of the config cluster, if any, because their objects are
    /// written there.
    fn system_label<'a>(
        &'a self,
        key: &ShardKey,
        shard: &'a ShardContents,
    ) -> Option<&'a NetworkId> {
        let own = match &self.config_cluster {
            Some(config) if key.cluster.is_empty() => config,
            _ if key.is_joined() => &key.cluster,
            _ => return shard.network_label.as_ref(),
        };
        self.shards.get(&ShardKey::kubernetes(own.clone()))?.network_label.as_ref()
    }

    /// Returns every hostname of any shard.
    pub fn hosts(&self) -> BTreeSet<Hostname> {
        self.shards.values().flat_map(|shard| shard.services.keys().cloned()).collect()
    }

    /// Returns the hostnames of a cluster's shards. Shards of no cluster are included for the
    /// config cluster.
    pub fn hosts_of(&self, cluster: &ClusterId) -> BTreeSet<Hostname> {
        let is_config = self.config_cluster.as_ref() == Some(cluster);
        let is_included =
            |key: &ShardKey| key.cluster == *cluster || is_config && key.cluster.is_empty();
        let shards = self.shards.iter().filter(|(key, _)| is_included(key));
        shards.flat_map(|(_, shard)| shard.services.keys().cloned()).collect()
    }

    /// Returns the pods of a cluster, or `None` if the cluster has no shard.
    pub fn workloads(&self, cluster: &ClusterId) -> Option<&Workloads> {
        self.shards.get(&ShardKey::kubernetes(cluster.clone())).map(|shard| &shard.workloads)
    }

    /// Returns the facts that a cluster reports.
    pub fn facts(&self, cluster: &ClusterId) -> Option<&ClusterFacts> {
        self.shards.get(&ShardKey::kubernetes(cluster.clone())).map(|shard| &shard.facts)
    }

    /// Returns every Kubernetes cluster with its pods and facts.
    pub fn clusters(&self) -> impl Iterator<Item = (&ClusterId, &Workloads, &ClusterFacts)> {
        let clusters = self.shards.iter().filter(|(key, _)| key.provider.is_cluster());
        clusters.map(|(key, shard)| (&key.cluster, &shard.workloads, &shard.facts))
    }

    /// Returns the service objects of Kubernetes clusters, in merging order.
    pub fn kubernetes_services(&self) -> impl Iterator<Item = &Arc<Service>> {
        let shards = self.in_order().filter(|(key, _)| key.provider.is_cluster());
        shards.flat_map(|(_, shard)| shard.services.values().map(|record| &record.service))
    }

    /// Returns every Kubernetes cluster with its system namespace's network label.
    pub fn network_labels(&self) -> impl Iterator<Item = (&ClusterId, Option<&NetworkId>)> {
        let clusters = self.shards.iter().filter(|(key, _)| key.provider.is_cluster());
        clusters.map(|(key, shard)| (&key.cluster, shard.network_label.as_ref()))
    }

    /// Returns the service objects of a cluster's shards.
    pub fn services_in<'a>(
        &'a self,
        cluster: &'a ClusterId,
    ) -> impl Iterator<Item = &'a Arc<Service>> {
        let shards = self.shards.iter().filter(move |(key, _)| key.cluster == *cluster);
        shards.flat_map(|(_, shard)| shard.services.values().map(|record| &record.service))
    }

    /// Returns the service objects that can be gateways, with their clusters: objects with a
    /// network label, and objects whose hostname is in `named`.
    pub fn gateways<'a>(
        &'a self,
        named: &'a BTreeSet<Hostname>,
    ) -> impl Iterator<Item = (&'a ClusterId, &'a Service)> {
        self.shards.iter().flat_map(move |(key, shard)| {
            let records = shard.labelled.union(named).filter_map(|host| shard.services.get(host));
            records.map(|record| (&key.cluster, &*record.service))
        })
    }

    /// Returns the objects with this hostname, in merging order.
    pub fn services_of(&self, host: &Hostname) -> impl Iterator<Item = &Arc<Service>> {
        let records = self.in_order().filter_map(|(_, shard)| shard.services.get(host));
        records.map(|record| &record.service)
    }

    /// Returns the hostnames for which any of these clusters has an endpoint at any of these
    /// addresses. Scans all endpoints of these clusters.
    pub fn hosts_at(
        &self,
        clusters: &BTreeSet<ClusterId>,
        addresses: &BTreeSet<IpAddr>,
    ) -> BTreeSet<Hostname> {
        let shards = self.shards.iter().filter(|(key, _)| clusters.contains(&key.cluster));
        let records = shards.flat_map(|(_, shard)| &shard.services);
        let has_address = |record: &ServiceRecord| {
            record.endpoints.packed().any(|endpoint| addresses.contains(&endpoint.address()))
        };
        records.filter(|(_, one)| has_address(one)).map(|(host, _)| host.clone()).collect()
    }

    fn in_order(&self) -> impl Iterator<Item = (&ShardKey, &ShardContents)> {
        let mut items: Vec<_> = self.shards.iter().collect();
        in_order(&mut items, |(key, shard)| (key, shard.seniority));
        items.into_iter()
    }
}

/// Sorts items from the order of shard keys into merging order: by provider, then the config
/// cluster, then by age, then by ID.
fn in_order<T>(items: &mut [T], key_of: impl Fn(&T) -> (&ShardKey, Seniority)) {
    // The sort is stable, and items of equal age are already sorted by ID.
    items.sort_by_key(|item| {
        let (key, seniority) = key_of(item);
        (key.provider, seniority)
    });
}

/// Returns the clusters whose position in merging order may have changed, including added and
/// removed ones. Walks both sorted maps in parallel, because hundreds of clusters become known one
/// by one and a look-up for each would be slow.
fn with_another_age<'a>(before: &'a KnownClusters, now: &'a KnownClusters) -> Vec<&'a ClusterId> {
    let mut changed = Vec::new();
    let mut old = before.clusters.iter().peekable();
    for (id, cluster) in &now.clusters {
        while let Some((removed, _)) = old.next_if(|(other, _)| *other < id) {
            changed.push(removed);
        }
        let previous = old.next_if(|(other, _)| *other == id).map(|(_, previous)| previous);
        if previous.is_none_or(|previous| {
            (previous.config, previous.created) != (cluster.config, cluster.created)
        }) {
            changed.push(id);
        }
    }
    changed.extend(old.map(|(removed, _)| removed));
    changed
}

/// Returns the seniority of a cluster. The config cluster is recognized even before the known
/// clusters are reported.
fn seniority(
    known_clusters: &KnownClusters,
    config_cluster: Option<&ClusterId>,
    cluster: &ClusterId,
) -> Seniority {
    match config_cluster {
        Some(config) if config == cluster => Seniority::Config,
        _ => known_clusters.seniority(cluster),
    }
}

/// Returns the key of a changed entry of a map.
fn changed_key<'a, K, V>(item: &imbl::ordmap::DiffItem<'a, 'a, K, V>) -> &'a K {
    match item {
        imbl::ordmap::DiffItem::Add(key, _) | imbl::ordmap::DiffItem::Remove(key, _) => key,
        imbl::ordmap::DiffItem::Update { old: (key, _), .. } => key,
    }
}

impl ShardContents {
    /// Returns the export by which the cluster shares the service of a record.
    fn export_of(&self, record: &ServiceRecord) -> Option<&Arc<ExportedService>> {
        let exports = &self.facts.exports.exports;
        if exports.is_empty() {
            return None;
        }
        let Definition { namespace, name, .. } = &*record.service.definition;
        exports.get(&WorkloadKey::new(namespace.clone(), Arc::clone(name)))
    }

    fn empty(epoch: Epoch, seniority: Seniority) -> Self {
        Self {
            epoch,
            seniority,
            services: BTreeMap::new(),
            labelled: BTreeSet::new(),
            workloads: Workloads::default(),
            network_label: None,
            facts: ClusterFacts::default(),
        }
    }

    fn apply(
        &mut self,
        key: &ShardKey,
        mut contents: Contents,
        nameless: &mut NamelessEndpoints,
        touched: &mut AggregateChanges,
    ) {
        let cluster = &key.cluster;
        if key.provider.is_cluster() {
            for (host, record) in &contents.services {
                let old = self.services.get(host).map(|record| &record.endpoints);
                nameless.replace(host, old, record.as_ref().map(|record| &record.endpoints));
            }
        }
        if self.services.is_empty() {
            // The entries are sorted and all new, so build whole trees instead of inserting one by
            // one.
            let records = std::mem::take(&mut contents.services).into_iter();
            self.services = records.filter_map(|(host, record)| Some((host, record?))).collect();
            let labelled =
                self.services.iter().filter(|(_, record)| record.service.has_network_label());
            self.labelled = labelled.map(|(host, _)| host.clone()).collect();
            touched.hosts = self.services.keys().cloned().collect();
            touched.objects.clone_from(&touched.hosts);
        }
        for (host, record) in contents.services {
            let old = self.services.get(&host);
            if old == record.as_ref() {
                continue;
            }
            let same_object =
                matches!((old, &record), (Some(old), Some(new)) if old.service == new.service);
            if !same_object {
                touched.objects.insert(host.clone());
            }
            if record.as_ref().is_some_and(|record| record.service.has_network_label()) {
                self.labelled.insert(host.clone());
            } else {
                self.labelled.remove(&host);
            }
            match record {
                Some(record) => self.services.insert(host.clone(), record),
                None => self.services.remove(&host),
            };
            touched.hosts.insert(host);
        }
        if let Some(workloads) = contents.workloads {
            let differ = self.workloads.differences(&workloads);
            if !nameless.is_empty() {
                for WorkloadKey { namespace, name } in &differ {
                    let versions = [&self.workloads, &workloads];
                    let versions = versions.map(|pods| pods.get(namespace.as_str(), name));
                    let hosts =
                        versions.into_iter().flatten().flat_map(|pod| nameless.hosts_at(pod));
                    touched.hosts.extend(hosts.cloned());
                }
            }
            let differ = differ.into_iter();
            touched.workloads.extend(differ.map(|pod| (cluster.clone(), pod)));
            self.workloads = workloads;
        }
        let facts = contents.facts.map(|mut facts| {
            if facts.exports.is_unread {
                facts.exports.exports = self.facts.exports.exports.clone();
            }
            facts
        });
        if let Some(facts) = facts
            && self.facts != facts
        {
            // A proxy is located at its node, so pods on nodes with a changed locality count as
            // changed.
            let (old, new) = (&self.facts.localities, &facts.localities);
            let moved = |node: &Arc<str>| old.get(node) != new.get(node);
            if old != new {
                let pods = self.workloads.iter();
                let pods = pods.filter(|(_, pod)| pod.node.as_ref().is_some_and(|at| moved(at)));
                touched.workloads.extend(pods.map(|(pod, _)| (cluster.clone(), pod.to_key())));
            }
            if !nameless.is_empty() {
                let changed = self.facts.unready.diff(&facts.unready).map(|item| match item {
                    DiffItem::Add(pod) | DiffItem::Remove(pod) => pod,
                });
                let changed =
                    changed.filter_map(|pod| self.workloads.get(pod.namespace.as_str(), &pod.name));
                touched.hosts.extend(changed.flat_map(|pod| nameless.hosts_at(pod)).cloned());
            }
            touched.gateways |=
                self.facts.gateways != facts.gateways || self.facts.unserved != facts.unserved;
            let (traffic, exports) = (self.facts.traffic.clone(), self.facts.exports.clone());
            if exports != facts.exports {
                touched.exports.insert(cluster.clone());
            }
            let differs_in_traffic = traffic != facts.traffic;
            if (ClusterFacts { traffic, exports, ..facts.clone() }) != self.facts {
                touched.facts.insert(cluster.clone());
            } else if differs_in_traffic {
                touched.traffic.insert(cluster.clone());
            }
            touched.entries |= self.facts.entries != facts.entries;
            self.facts = facts;
        }
        if let Some(label) = contents.network_label
            && self.network_label != label
        {
            self.network_label = label;
            touched.placements.insert(cluster.clone());
        }
    }
}
