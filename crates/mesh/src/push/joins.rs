//! Endpoints from joins: pods or machines of one source that objects of another source select.
//! Recomputed when either changes.
//!
//! Owns the selections of entries and the set of shards with results. These are ordinary shards, so
//! merging, assigning networks and removal need no special case.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use imbl::OrdMap;
use serde_json::Value;
use tracing::warn;

use super::context::FixedSettings;
use crate::aggregate::{Aggregate, AggregateChanges};
use strait_model::registry::{
    Contents, Epoch, Provider, RegistryUpdate, ServiceRecord, ShardChange, ShardKey,
};
use strait_model::{ClusterId, Hostname, WorkloadKey};
use strait_rules::service_entry::{Selections, VmWorkloads, selecting_services, vms};

/// The selections, and whether the results are up to date.
#[derive(Debug, Clone, Default)]
pub(super) struct Joins {
    selections: Arc<Selections>,
    /// The machines of clusters, and the objects from which they were parsed.
    vms: OrdMap<ClusterId, Arc<VmWorkloads>>,
    read_from: BTreeMap<ClusterId, Arc<BTreeMap<WorkloadKey, Arc<Value>>>>,
    /// The shards with results.
    shards: BTreeSet<ShardKey>,
    pods_stale: bool,
    workloads_stale: bool,
    vms_stale: bool,
}

impl Joins {
    /// Replaces the selections. Returns whether machines or hosts differ.
    pub(super) fn select(&mut self, selections: Arc<Selections>) -> bool {
        if self.selections == selections {
            return false;
        }
        let before = std::mem::replace(&mut self.selections, selections);
        (self.pods_stale, self.workloads_stale) = (true, true);
        !self.selections.reports_same(&before)
    }

    /// Returns the selections of entries, with the machines that entries describe.
    pub(super) fn selections(&self) -> &Arc<Selections> {
        &self.selections
    }

    /// Returns the machines of clusters.
    pub(super) fn vms(&self) -> &OrdMap<ClusterId, Arc<VmWorkloads>> {
        &self.vms
    }

    /// Returns whether any result is outdated.
    pub(super) fn is_stale(&self) -> bool {
        self.pods_stale || self.workloads_stale || self.vms_stale
    }

    /// Marks results as outdated that depend on the changes of an update.
    pub(super) fn note(&mut self, touched: &AggregateChanges) {
        let may_join = !self.vms.is_empty() || self.selections.offers_workloads();
        self.workloads_stale |= !touched.objects.is_empty() && may_join;
        self.vms_stale |= touched.entries;
        if self.selections.wants_pods() {
            let mut pods = touched.workloads.iter();
            // Pods of an added or removed cluster are not reported one by one.
            self.pods_stale |= !touched.facts.is_empty()
                || !touched.placements.is_empty()
                || pods.any(|(_, pod)| self.selections.selects_pods_in(&pod.namespace));
        }
    }

    /// Parses the WorkloadEntries of clusters again if they changed. WorkloadEntries of the config
    /// cluster are already part of the objects that belong to no cluster.
    fn read_vms(&mut self, aggregate: &Aggregate, settings: &FixedSettings) {
        if !std::mem::take(&mut self.vms_stale) {
            return;
        }
        (self.pods_stale, self.workloads_stale) = (true, true);
        let clusters = aggregate.clusters().filter(|(id, _, facts)| {
            settings.config_cluster.as_ref() != Some(id) && !facts.entries.is_empty()
        });
        let now: BTreeMap<_, _> =
            clusters.map(|(id, _, facts)| (id.clone(), Arc::clone(&facts.entries))).collect();
        let removed = self.read_from.keys().filter(|id| !now.contains_key(*id));
        removed.for_each(|id| drop(self.vms.remove(id)));
        for (id, objects) in &now {
            if self.read_from.get(id) != Some(objects) {
                let read = vms(objects, &settings.trust_domain, |name, fault| {
                    warn!(cluster = %id, entry = %name, %fault, "ignoring invalid WorkloadEntry");
                });
                self.vms.insert(id.clone(), Arc::new(read));
            }
        }
        self.read_from = now;
    }

    /// Recomputes outdated results and returns the changes.
    pub(super) fn refresh(
        &mut self,
        aggregate: &mut Aggregate,
        settings: &FixedSettings,
    ) -> AggregateChanges {
        self.read_vms(aggregate, settings);
        let no_vms = VmWorkloads::new();
        let mut found: BTreeMap<ShardKey, BTreeMap<Hostname, ServiceRecord>> = BTreeMap::new();
        let mut providers = Vec::new();
        if std::mem::take(&mut self.pods_stale) {
            providers.push(Provider::ServiceEntry);
            for (cluster, pods, facts) in aggregate.clusters() {
                let shard = shard_key(Provider::ServiceEntry, cluster.clone());
                let vms = self.vms.get(cluster).map_or(&no_vms, |vms| &**vms);
                found.insert(shard, self.selections.selected_pods(pods, vms, facts));
            }
        }
        if std::mem::take(&mut self.workloads_stale) {
            providers.push(Provider::WorkloadEntry);
            let shard = shard_key(Provider::WorkloadEntry, ClusterId::default());
            let all = aggregate.kubernetes_services();
            found.insert(shard, selecting_services(self.selections.vms(), all));
            for (cluster, vms) in &self.vms {
                let shard = shard_key(Provider::WorkloadEntry, cluster.clone());
                found.insert(shard, selecting_services(vms, aggregate.services_in(cluster)));
            }
        }
        found.retain(|_, services| !services.is_empty());
        let mut touched = AggregateChanges::default();
        let has_ended =
            |shard: &ShardKey| providers.contains(&shard.provider) && !found.contains_key(shard);
        let removed: Vec<ShardKey> =
            self.shards.iter().filter(|shard| has_ended(shard)).cloned().collect();
        for shard in removed {
            self.shards.remove(&shard);
            touched.merge(aggregate.apply(update(shard, ShardChange::Removed)));
        }
        for (shard, services) in found {
            self.shards.insert(shard.clone());
            let services = services.into_iter().map(|(host, record)| (host, Some(record)));
            let contents = Contents { services: services.collect(), ..Contents::default() };
            touched.merge(aggregate.apply(update(shard, ShardChange::Reset(contents))));
        }
        touched
    }
}

fn shard_key(provider: Provider, cluster: ClusterId) -> ShardKey {
    ShardKey { provider, cluster }
}

/// Creates an update. All these updates are complete and have one source, so the epoch is constant.
fn update(shard: ShardKey, change: ShardChange) -> RegistryUpdate {
    RegistryUpdate { shard, epoch: Epoch(0), change }
}
