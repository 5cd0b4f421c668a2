//! The order of the clusters that export one service as a multi-cluster service. The first export
//! decides (KEP-1645). Its name in the set and the ServiceImport use the same order.

use strait_model::{
    ClusterExports, ClusterId, ExportedService, KnownClusters, Seniority, WorkloadKey,
    WrittenImport,
};

/// The facts about one service that order its exports.
#[derive(Debug, Clone, Copy)]
pub struct ExportOrder<'a> {
    clusters: &'a KnownClusters,
    /// The ServiceImport of the most senior cluster that has one, so that no cluster can appoint
    /// itself with an object in its own API server while an older one disagrees.
    written: Option<&'a WrittenImport>,
}

impl<'a> ExportOrder<'a> {
    /// Creates the order of the exports of `service`. `exports` are those of all clusters, in the
    /// order of their IDs.
    pub fn new(
        service: &WorkloadKey,
        exports: impl Iterator<Item = (&'a ClusterId, &'a ClusterExports)>,
        clusters: &'a KnownClusters,
        seniority: impl Fn(&ClusterId) -> Seniority,
    ) -> Self {
        let imports =
            exports.filter_map(|(cluster, exports)| Some((cluster, exports.imports.get(service)?)));
        // Of clusters with equal seniority, the first one is used.
        let written = imports.min_by_key(|(cluster, _)| seniority(cluster));
        Self { clusters, written: written.map(|(_, import)| import) }
    }

    /// Returns the position of an export; the lowest one decides. `name` is the name of its cluster in
    /// the set, and `age` is from [`Self::age`]. The cluster that decided the existing import still
    /// decides, then the older export. The caller breaks ties by cluster ID.
    pub fn position(&self, name: &str, age: i64) -> (bool, i64) {
        let decided = self.written.is_some_and(|written| *written.decided_by == *name);
        (!decided, age)
    }

    /// Returns the time by which an export is ranked: its creation time, but not before the creation
    /// of the Secret of its cluster if the existing import is older than that Secret. An API server
    /// can report any time. A time after `now` is ignored.
    pub fn age(&self, cluster: &ClusterId, export: &ExportedService, now: i64) -> i64 {
        if export.created <= 0 || export.created > now {
            return i64::MAX;
        }
        let known = self.clusters.clusters.get(cluster).and_then(|known| known.created);
        match (known, self.written) {
            (Some(known), Some(written)) if known > written.created => export.created.max(known),
            _ => export.created,
        }
    }
}
