//! Editions: the configurations of clusters whose own traffic objects apply to their proxies
//! (docs/contributing/decisions/0054-traffic-objects-of-members.md).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use tracing::{info, warn};

use strait_envoy::heads::{ConfigVariant, ConfigVariants};
use strait_explain::MemberReports;
use strait_mesh::push::event_loop::{BegunEdition, MeshEvent};
use strait_mesh::timeline::Delivery;
use strait_model::policy::Policy;
use strait_model::registry::{Epoch, RegistryUpdate, ShardChange};
use strait_model::{ClusterId, Collection};
use strait_rules::traffic::{EditionIndex, TrafficIndex};

/// Traffic objects that clusters reported, and the editions that result.
pub(super) struct FeedOverrides {
    heads: Arc<ConfigVariants>,
    reported: BTreeMap<ClusterId, ReportedTraffic>,
    running: BTreeMap<ClusterId, EditionIndex>,
    begun: u64,
}

/// The last report of a run of a cluster's registry.
struct ReportedTraffic {
    epoch: Epoch,
    objects: Collection,
}

impl FeedOverrides {
    pub(super) fn new(heads: Arc<ConfigVariants>) -> Self {
        Self { heads, reported: BTreeMap::new(), running: BTreeMap::new(), begun: 0 }
    }

    /// Records the traffic objects of an update, by the same rules as the aggregate. Returns
    /// whether they changed.
    pub(super) fn apply(&mut self, update: &RegistryUpdate) -> bool {
        if !update.shard.provider.is_cluster() {
            return false;
        }
        let (cluster, epoch) = (&update.shard.cluster, update.epoch);
        let held = self.reported.get(cluster);
        let traffic_of =
            |facts: Option<&strait_model::ClusterFacts>| facts.map(|one| one.traffic.clone());
        let objects = match &update.change {
            ShardChange::Removed => {
                return self.reported.remove(cluster).is_some_and(|one| !one.objects.is_empty());
            }
            ShardChange::Reset(_) if held.is_some_and(|one| one.epoch > epoch) => return false,
            ShardChange::Reset(contents) => traffic_of(contents.facts.as_ref()).unwrap_or_default(),
            ShardChange::Update(contents) => match traffic_of(contents.facts.as_ref()) {
                Some(objects) if held.is_some_and(|one| one.epoch == epoch) => objects,
                _ => return false,
            },
        };
        let differs = held.map_or(!objects.is_empty(), |one| one.objects != objects);
        self.reported.insert(cluster.clone(), ReportedTraffic { epoch, objects });
        differs
    }

    /// Returns the events that bring the editions up to date. A cluster has an edition while it has
    /// traffic objects that apply.
    pub(super) fn refresh(&mut self, policy: &Policy, shared: &TrafficIndex) -> Vec<MeshEvent> {
        let mut events = Vec::new();
        let counts = |cluster: &ClusterId, reported: &ReportedTraffic| {
            policy.applies_traffic_from(cluster)
                && reported.objects.iter().any(|(key, _)| shared.counting().get(key).is_none())
        };
        let ended: Vec<_> = self
            .running
            .keys()
            .filter(|cluster| {
                !self.reported.get(*cluster).is_some_and(|reported| counts(cluster, reported))
            })
            .cloned()
            .collect();
        events.extend(ended.into_iter().map(|cluster| self.end(cluster)));
        for (cluster, reported) in
            self.reported.iter().filter(|(cluster, reported)| counts(cluster, reported))
        {
            let edition = match self.running.get_mut(cluster) {
                Some(edition) => {
                    let update = edition.refresh(shared, &reported.objects);
                    let event = |update| MeshEvent::EditionTraffic(cluster.clone(), update);
                    events.extend(update.map(event));
                    edition
                }
                None => {
                    let edition = EditionIndex::new(cluster.clone(), shared, &reported.objects);
                    self.begun += 1;
                    let (head, outputs) = ConfigVariant::new(self.begun);
                    // It is not served before it has a first version.
                    self.heads.begin_edition(cluster.clone(), &head);
                    let traffic = Arc::new(edition.traffic().clone());
                    let begun = BegunEdition { cluster: cluster.clone(), traffic, outputs };
                    events.push(MeshEvent::BeginEdition(Box::new(begun)));
                    info!(%cluster, "the cluster's own traffic objects apply to its proxies");
                    self.running.entry(cluster.clone()).or_insert(edition)
                }
            };
            for (key, reason) in edition.take_new_reasons() {
                warn!(%cluster, object = %key, %reason, "a cluster's own traffic object is not fully applied");
            }
        }
        events
    }

    fn end(&mut self, cluster: ClusterId) -> MeshEvent {
        self.running.remove(&cluster);
        if let Some(head) = self.heads.end_edition(&cluster) {
            let delivery = Arc::new(Delivery::new(Instant::now()));
            head.subscription_index().mark_proxies(|_| true, &delivery);
        }
        info!(%cluster, "the cluster's own traffic objects no longer apply");
        MeshEvent::EndEdition(cluster)
    }

    /// Returns the reports about the objects of each cluster that the policy names.
    pub(super) fn reports(&self, policy: &Policy) -> BTreeMap<ClusterId, MemberReports> {
        let named = self.reported.iter().filter(|(cluster, reported)| {
            policy.applies_traffic_from(cluster) && !reported.objects.is_empty()
        });
        let of = |(cluster, reported): (&ClusterId, &ReportedTraffic)| {
            let running = self.running.get(cluster);
            let reports = running.into_iter().flat_map(EditionIndex::reports);
            let traffic =
                reports.map(|(key, report)| (Arc::clone(key), Arc::clone(report))).collect();
            (cluster.clone(), MemberReports { objects: reported.objects.clone(), traffic })
        };
        named.map(of).collect()
    }
}

#[cfg(test)]
mod tests;
