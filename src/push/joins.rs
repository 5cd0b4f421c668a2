//! The endpoints that come of what one source selects of another: computed again when either changes.
//!
//! Owns what entries select, and which shards hold what came of it. They are shards like any other, so
//! merging, placement and removal need to know nothing of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::aggregate::{Aggregate, Touched};
use crate::model::{ClusterId, Hostname};
use crate::registry::service_entry::Selections;
use crate::registry::{Change, Contents, Epoch, Provider, RegistryUpdate, ServiceRecord, ShardKey};

/// What is selected, and whether what came of it still holds.
#[derive(Debug, Default)]
pub(super) struct Joins {
    selections: Arc<Selections>,
    /// The shards that hold anything.
    shards: BTreeSet<ShardKey>,
    pods_stale: bool,
    workloads_stale: bool,
}

impl Joins {
    /// Takes other selections. Returns whether they tell anything else of machines or hosts.
    pub(super) fn select(&mut self, selections: Arc<Selections>) -> bool {
        if self.selections == selections {
            return false;
        }
        let before = std::mem::replace(&mut self.selections, selections);
        (self.pods_stale, self.workloads_stale) = (true, true);
        !self.selections.tells_as(&before)
    }

    /// What entries select, and which machines there are.
    pub(super) fn selections(&self) -> &Arc<Selections> {
        &self.selections
    }

    /// Whether something is to be computed again.
    pub(super) fn is_stale(&self) -> bool {
        self.pods_stale || self.workloads_stale
    }

    /// Looks at what an update touched.
    pub(super) fn note(&mut self, touched: &Touched) {
        self.workloads_stale |= !touched.objects.is_empty() && self.selections.offers_workloads();
        if self.selections.wants_pods() {
            let mut pods = touched.workloads.iter();
            // The pods of a cluster that has come or gone are not told one by one.
            self.pods_stale |= !touched.facts.is_empty()
                || !touched.placements.is_empty()
                || pods.any(|(_, pod)| self.selections.wants_pods_of(&pod.namespace));
        }
    }

    /// Computes again what is stale. Returns what that touched.
    pub(super) fn refresh(&mut self, aggregate: &mut Aggregate) -> Touched {
        let mut found: BTreeMap<ShardKey, BTreeMap<Hostname, ServiceRecord>> = BTreeMap::new();
        let mut providers = Vec::new();
        if std::mem::take(&mut self.pods_stale) {
            providers.push(Provider::ServiceEntry);
            for (cluster, pods, facts) in aggregate.clusters() {
                let shard = of(Provider::ServiceEntry, cluster.clone());
                found.insert(shard, self.selections.pods_of(pods, facts));
            }
        }
        if std::mem::take(&mut self.workloads_stale) {
            providers.push(Provider::WorkloadEntry);
            let shard = of(Provider::WorkloadEntry, ClusterId::default());
            found.insert(shard, self.selections.workloads_of(aggregate.kubernetes_services()));
        }
        found.retain(|_, services| !services.is_empty());
        let mut touched = Touched::default();
        let ended =
            |shard: &ShardKey| providers.contains(&shard.provider) && !found.contains_key(shard);
        let gone: Vec<ShardKey> =
            self.shards.iter().filter(|shard| ended(shard)).cloned().collect();
        for shard in gone {
            self.shards.remove(&shard);
            touched.merge(aggregate.apply(said(shard, Change::Removed)));
        }
        for (shard, services) in found {
            self.shards.insert(shard.clone());
            let services = services.into_iter().map(|(host, record)| (host, Some(record)));
            let contents = Contents { services: services.collect(), ..Contents::default() };
            touched.merge(aggregate.apply(said(shard, Change::Reset(contents))));
        }
        touched
    }
}

fn of(provider: Provider, cluster: ClusterId) -> ShardKey {
    ShardKey { provider, cluster }
}

/// All of these words are complete, and there is one speaker.
fn said(shard: ShardKey, change: Change) -> RegistryUpdate {
    RegistryUpdate { shard, epoch: Epoch(0), change }
}
