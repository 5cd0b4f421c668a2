//! Traffic configuration for the proxies of a cluster that defines traffic objects for its own
//! proxies: the objects of the shared store and of the cluster
//! (docs/contributing/decisions/0054-traffic-objects-of-members.md).
//!
//! Pure. It is an index like that of the mesh, with the objects of both. Objects that the shared
//! index has parsed are not parsed again.

use std::sync::Arc;

use super::changes::TrafficChanges;
use super::config::Traffic;
use super::index::{TrafficIndex, TrafficUpdate};
use super::object::Reason;
use super::report::TrafficReport;
use strait_model::{Causes, ClusterId, Collection, ObjectKey};

/// The objects that apply to proxies of one cluster.
#[derive(Debug)]
pub struct EditionIndex {
    cluster: ClusterId,
    /// Objects of the cluster.
    own: Collection,
    /// Objects of the shared store.
    shared: Collection,
    index: TrafficIndex,
}

impl EditionIndex {
    /// Creates an index with the objects of `shared` and the objects of a cluster in `own`.
    pub fn new(cluster: ClusterId, shared: &TrafficIndex, own: &Collection) -> Self {
        let mut index = shared.replica_for(&cluster);
        index.apply_with_shared(shared, [&Collection::default(), own], &cluster);
        Self { cluster, own: own.clone(), shared: shared.counting().clone(), index }
    }

    /// Applies the current objects of both. Returns `None` if nothing changes.
    pub fn refresh(&mut self, shared: &TrafficIndex, own: &Collection) -> Option<TrafficUpdate> {
        if self.shared.is(shared.counting()) && self.own.is(own) && self.index.reads_as(shared) {
            return None;
        }
        self.shared = shared.counting().clone();
        let before = std::mem::replace(&mut self.own, own.clone());
        if self.index.reads_as(shared) {
            return self.index.apply_with_shared(shared, [&before, own], &self.cluster);
        }
        // The last valid versions are read first, so that they stay active.
        let good = self
            .reports()
            .filter_map(|(key, report)| Some((ObjectKey::clone(key), report.good()?.0.clone())));
        let mut rebuilt = Self::new(self.cluster.clone(), shared, &good.collect());
        rebuilt.refresh(shared, own);
        let changes: TrafficChanges = self.index.changes_to(&rebuilt.index);
        *self = rebuilt;
        let traffic = Arc::new(self.traffic().clone());
        Some(TrafficUpdate { traffic, changes, causes: Causes::default() })
    }

    /// Returns the active configuration.
    pub fn traffic(&self) -> &Traffic {
        self.index.traffic()
    }

    /// Returns the objects of the cluster.
    pub fn own(&self) -> &Collection {
        &self.own
    }

    /// Iterates over the reports of the cluster's objects that the shared store does not contain.
    /// Only these take effect.
    pub fn reports(&self) -> impl Iterator<Item = (&Arc<ObjectKey>, &Arc<TrafficReport>)> {
        let reports = self.index.reports();
        let own = self.own.iter().filter(|(key, _)| self.shared.get(key).is_none());
        own.filter_map(|(key, _)| reports.get_key_value(key))
    }

    /// Returns the reports about objects of the cluster that were added or changed since the last
    /// call.
    pub fn take_new_reasons(&mut self) -> Vec<(ObjectKey, Reason)> {
        let news = self.index.take_new_reasons();
        news.into_iter().filter(|(key, _)| self.own.get(key).is_some()).collect()
    }
}

#[cfg(test)]
mod tests;
