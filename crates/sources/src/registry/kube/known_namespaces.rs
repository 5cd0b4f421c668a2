//! The last known contents of the namespaces of a cluster, from before a run that is limited to them.
//!
//! They replace the objects of a namespace that the run may not read, and a first list that lacks most
//! of them is requested again.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::ObjectCounts;
use super::index::IndexedKind;
use strait_model::registry::Contents;
use strait_model::{
    ClusterExports, ClusterFacts, Namespace, ReadNamespaces, WorkloadKey, Workloads,
};

/// The known contents of each namespace, in the order of the list.
#[derive(Debug, Default)]
pub(super) struct KnownNamespaces(Vec<Contents>);

impl KnownNamespaces {
    /// Divides the contents of a cluster.
    pub(super) fn new(namespaces: &ReadNamespaces, known: Option<Contents>) -> Self {
        let known = known.unwrap_or_default();
        let mut parts: BTreeMap<&str, Contents> = BTreeMap::new();
        for name in namespaces.names() {
            let pods = known.workloads.as_ref().map(|pods| of_namespace(pods, name));
            let facts = known.facts.as_ref().map(|facts| facts_of(facts, name));
            let part = Contents { workloads: pods, facts, ..Contents::default() };
            parts.insert(name, part);
        }
        for (host, record) in known.services {
            let namespace = record.as_ref().map(|record| record.service.namespace.clone());
            let part = namespace.and_then(|namespace| parts.get_mut(namespace.as_str()));
            if let Some(part) = part {
                part.services.insert(host, record);
            }
        }
        // The list is sorted, as the map is.
        Self(parts.into_values().collect())
    }

    /// Removes and returns the contents of the namespace at this position.
    pub(super) fn take(&mut self, position: usize) -> Contents {
        self.0.get_mut(position).map(std::mem::take).unwrap_or_default()
    }

    /// Returns the minimum number of objects of a kind in the namespace at this position.
    pub(super) fn count(&self, position: usize, kind: IndexedKind) -> usize {
        self.0.get(position).map_or(0, |known| ObjectCounts::at_least(known).count(kind))
    }
}

fn of_namespace(pods: &Workloads, namespace: &Arc<str>) -> Workloads {
    let mut found = Workloads::default();
    for (key, pod) in pods.of_namespace(namespace) {
        found.insert(namespace, &key.name(), pod.clone());
    }
    found
}

/// Returns the facts about objects of a namespace.
fn facts_of(facts: &ClusterFacts, namespace: &Arc<str>) -> ClusterFacts {
    let namespace = Namespace::new(Arc::clone(namespace));
    let is_own = |key: &WorkloadKey| key.namespace == namespace;
    let exports = &facts.exports;
    ClusterFacts {
        unready: facts.unready.iter().filter(|key| is_own(key)).cloned().collect(),
        gateways: Arc::new(of_map(&facts.gateways, is_own)),
        entries: Arc::new(of_map(&facts.entries, is_own)),
        exports: ClusterExports {
            exports: exports.exports.iter().filter(|(key, _)| is_own(key)).map(owned).collect(),
            imports: exports.imports.iter().filter(|(key, _)| is_own(key)).map(owned).collect(),
            ..ClusterExports::default()
        },
        ..ClusterFacts::default()
    }
}

fn of_map<V: Clone>(
    map: &BTreeMap<WorkloadKey, V>,
    is_own: impl Fn(&WorkloadKey) -> bool,
) -> BTreeMap<WorkloadKey, V> {
    map.iter().filter(|(key, _)| is_own(key)).map(owned).collect()
}

fn owned<V: Clone>((key, value): (&WorkloadKey, &V)) -> (WorkloadKey, V) {
    (key.clone(), value.clone())
}
