//! What is in force for the proxies of a cluster whose own traffic objects count for them: what the shared store says, and
//! besides what the cluster says. (docs/decisions/0054-traffic-objects-of-members.md)
//!
//! Pure. It is an index like that of all, of the objects of both; those that others have read are not read again.

use std::sync::Arc;

use super::changes::TrafficChanges;
use super::config::Traffic;
use super::index::{TrafficIndex, TrafficUpdate};
use super::object::Reason;
use super::report::TrafficReport;
use strait_model::{Causes, ClusterId, Collection, ObjectKey};

/// The objects that count for proxies of one cluster.
#[derive(Debug)]
pub struct EditionIndex {
    cluster: ClusterId,
    /// What the cluster says.
    own: Collection,
    /// What the shared store says.
    shared: Collection,
    index: TrafficIndex,
}

impl EditionIndex {
    /// What `shared` says, and `own` of a cluster.
    pub fn new(cluster: ClusterId, shared: &TrafficIndex, own: &Collection) -> Self {
        let mut index = shared.replica_for(&cluster);
        index.take_beside(shared, [&Collection::default(), own], &cluster);
        Self { cluster, own: own.clone(), shared: shared.counting().clone(), index }
    }

    /// Takes what both say now. `None` where nothing comes of it.
    pub fn refresh(&mut self, shared: &TrafficIndex, own: &Collection) -> Option<TrafficUpdate> {
        if self.shared.is(shared.counting()) && self.own.is(own) && self.index.reads_as(shared) {
            return None;
        }
        self.shared = shared.counting().clone();
        let before = std::mem::replace(&mut self.own, own.clone());
        if self.index.reads_as(shared) {
            return self.index.take_beside(shared, [&before, own], &self.cluster);
        }
        // The last good form first, so that it stands in again.
        let good = self
            .reports()
            .filter_map(|(key, report)| Some((ObjectKey::clone(key), report.good()?.0.clone())));
        let mut anew = Self::new(self.cluster.clone(), shared, &good.collect());
        anew.refresh(shared, own);
        let changes: TrafficChanges = self.index.changes_to(&anew.index);
        *self = anew;
        let traffic = Arc::new(self.traffic().clone());
        Some(TrafficUpdate { traffic, changes, causes: Causes::default() })
    }

    /// What is in force.
    pub fn traffic(&self) -> &Traffic {
        self.index.traffic()
    }

    /// The objects of the cluster.
    pub fn own(&self) -> &Collection {
        &self.own
    }

    /// Those of them that the shared store has not as well, each with what is said of it: they count, as far as they make
    /// sense.
    pub fn reports(&self) -> impl Iterator<Item = (&Arc<ObjectKey>, &Arc<TrafficReport>)> {
        let reports = self.index.reports();
        let own = self.own.iter().filter(|(key, _)| self.shared.get(key).is_none());
        own.filter_map(|(key, _)| reports.get_key_value(key))
    }

    /// What is said of objects of the cluster that came or changed since this was last asked.
    pub fn take_news(&mut self) -> Vec<(ObjectKey, Reason)> {
        let news = self.index.take_news();
        news.into_iter().filter(|(key, _)| self.own.get(key).is_some()).collect()
    }
}

#[cfg(test)]
mod tests;
