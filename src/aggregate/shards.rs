//! The shards as their sources filled them, and which names an update touched.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::merge::{MergedService, Place, merge};
use crate::model::{ClusterId, Hostname, NetworkId, Service, WorkloadKey, Workloads};
use crate::registry::{Change, Contents, Epoch, Provider, RegistryUpdate, ServiceRecord, ShardKey};

/// All shards.
#[derive(Debug, Default)]
pub struct Aggregate {
    shards: BTreeMap<ShardKey, Shard>,
    config_cluster: Option<ClusterId>,
}

#[derive(Debug)]
struct Shard {
    epoch: Epoch,
    services: BTreeMap<Hostname, ServiceRecord>,
    workloads: Workloads,
    network_label: Option<NetworkId>,
}

/// What an update changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Touched {
    /// Services with another definition, other endpoints, or none any more.
    pub hosts: BTreeSet<Hostname>,
    /// Of these, services whose own object changed in some shard, came or went.
    pub objects: BTreeSet<Hostname>,
    /// Pods with another record, or none any more; those of clusters that came or went are not listed.
    pub workloads: BTreeSet<(ClusterId, WorkloadKey)>,
    /// Clusters whose system namespace names another network, or that came or went.
    pub placements: BTreeSet<ClusterId>,
}

impl Touched {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty() && self.workloads.is_empty() && self.placements.is_empty()
    }

    /// Adds what a later update changed.
    pub fn merge(&mut self, later: Touched) {
        self.hosts.extend(later.hosts);
        self.objects.extend(later.objects);
        self.workloads.extend(later.workloads);
        self.placements.extend(later.placements);
    }
}

impl Aggregate {
    /// An empty aggregate. The shard of `config_cluster`, where there is one, is merged first.
    pub fn new(config_cluster: Option<ClusterId>) -> Self {
        Self { shards: BTreeMap::new(), config_cluster }
    }

    /// Takes one word of a source. The word of an earlier run than the one that fills the shard
    /// changes nothing; saying the same twice changes nothing.
    pub fn apply(&mut self, update: RegistryUpdate) -> Touched {
        let RegistryUpdate { shard: key, epoch, change } = update;
        let mut touched = Touched::default();
        match change {
            Change::Removed => {
                if let Some(shard) = self.shards.remove(&key) {
                    touched.placements.insert(key.cluster.clone());
                    touched.hosts = shard.services.keys().cloned().collect();
                    touched.objects.clone_from(&touched.hosts);
                }
            }
            Change::Reset(mut contents) => {
                let shard = match self.shards.get_mut(&key) {
                    Some(shard) if shard.epoch > epoch => return touched,
                    Some(shard) => shard,
                    None => {
                        touched.placements.insert(key.cluster.clone());
                        let new = Shard {
                            epoch,
                            services: BTreeMap::new(),
                            workloads: contents.workloads.take().unwrap_or_default(),
                            network_label: None,
                        };
                        contents.workloads = Some(new.workloads.clone());
                        self.shards.entry(key.clone()).or_insert(new)
                    }
                };
                shard.epoch = epoch;
                // What the reset leaves out has gone: say so in the same words as an update.
                for host in shard.services.keys() {
                    contents.services.entry(host.clone()).or_insert(None);
                }
                contents.workloads.get_or_insert_default();
                contents.network_label.get_or_insert(None);
                shard.apply(&key.cluster, contents, &mut touched);
            }
            Change::Update(contents) => {
                if let Some(shard) = self.shards.get_mut(&key)
                    && shard.epoch == epoch
                {
                    shard.apply(&key.cluster, contents, &mut touched);
                }
            }
        }
        touched
    }

    /// The service of this name as all shards together have it; `None` where none has it.
    pub fn merge(&self, host: &Hostname, place: &dyn Place) -> Option<MergedService> {
        merge(
            host,
            self.in_order().filter_map(|(key, shard)| {
                shard.services.get(host).map(|record| (key, record, shard.network_label.as_ref()))
            }),
            place,
        )
    }

    /// Every name that any shard has.
    pub fn hosts(&self) -> BTreeSet<Hostname> {
        self.shards.values().flat_map(|shard| shard.services.keys().cloned()).collect()
    }

    /// The names that a cluster's shards have.
    pub fn hosts_of(&self, cluster: &ClusterId) -> BTreeSet<Hostname> {
        let of_cluster = self.shards.iter().filter(|(key, _)| key.cluster == *cluster);
        of_cluster.flat_map(|(_, shard)| shard.services.keys().cloned()).collect()
    }

    /// The pods of a cluster; `None` where nothing is known of it.
    pub fn workloads(&self, cluster: &ClusterId) -> Option<&Workloads> {
        self.shards.get(&ShardKey::kubernetes(cluster.clone())).map(|shard| &shard.workloads)
    }

    /// The network that each Kubernetes cluster's system namespace names.
    pub fn network_labels(&self) -> impl Iterator<Item = (&ClusterId, Option<&NetworkId>)> {
        let clusters = self.shards.iter().filter(|(key, _)| key.provider == Provider::Kubernetes);
        clusters.map(|(key, shard)| (&key.cluster, shard.network_label.as_ref()))
    }

    /// Every shard's service objects, in merging order.
    pub fn services(&self) -> impl Iterator<Item = (&ClusterId, &Arc<Service>)> {
        self.in_order().flat_map(|(key, shard)| {
            shard.services.values().map(|record| (&key.cluster, &record.service))
        })
    }

    /// The objects that a name has in the shards, in merging order.
    pub fn services_of(&self, host: &Hostname) -> impl Iterator<Item = &Arc<Service>> {
        let records = self.in_order().filter_map(|(_, shard)| shard.services.get(host));
        records.map(|record| &record.service)
    }

    fn in_order(&self) -> impl Iterator<Item = (&ShardKey, &Shard)> {
        let is_config = |key: &ShardKey| Some(&key.cluster) == self.config_cluster.as_ref();
        let first = self.shards.iter().filter(move |(key, _)| is_config(key));
        first.chain(self.shards.iter().filter(move |(key, _)| !is_config(key)))
    }
}

impl Shard {
    fn apply(&mut self, cluster: &ClusterId, contents: Contents, touched: &mut Touched) {
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
            match record {
                Some(record) => self.services.insert(host.clone(), record),
                None => self.services.remove(&host),
            };
            touched.hosts.insert(host);
        }
        if let Some(workloads) = contents.workloads {
            let differ = self.workloads.differences(&workloads).into_iter();
            touched.workloads.extend(differ.map(|pod| (cluster.clone(), pod)));
            self.workloads = workloads;
        }
        if let Some(label) = contents.network_label
            && self.network_label != label
        {
            self.network_label = label;
            touched.placements.insert(cluster.clone());
        }
    }
}
