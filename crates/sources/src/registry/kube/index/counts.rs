//! Counts and sizes of an index.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{IndexedKind, KubeIndex};
use crate::registry::kube::Skipped;
#[cfg(test)]
use crate::registry::kube::scope::Scope;
use crate::registry::kube::weight::{self, MemoryWeight};

/// The namespace whose UID is the identity of a cluster.
const KUBE_SYSTEM: &str = "kube-system";

impl KubeIndex {
    /// Returns the number of services.
    pub(in crate::registry::kube) fn service_count(&self) -> usize {
        self.services.len() + self.unread.values().map(BTreeMap::len).sum::<usize>()
    }

    /// Returns the number of endpoints that were last sent.
    pub(in crate::registry::kube) fn endpoint_count(&self) -> usize {
        self.last_sent.endpoints
    }

    /// Returns the number of stored objects of a kind.
    pub(in crate::registry::kube) fn count(&self, kind: IndexedKind) -> usize {
        match kind {
            IndexedKind::Services => self.services.len() + self.shared.derived.len(),
            IndexedKind::EndpointSlices => self.slices.len() + self.shared.slices.len(),
            IndexedKind::Pods => self.pods.len(),
            IndexedKind::Nodes => self.nodes.len(),
            IndexedKind::Namespaces => self.namespaces.len(),
            IndexedKind::Gateways => self.facts.gateways.len(),
            IndexedKind::ServiceExports => self.exports().count(),
            IndexedKind::ServiceImports => self.imports().count(),
            IndexedKind::WorkloadEntries => self.facts.entries.len(),
        }
    }

    /// Returns the approximate memory use in bytes. Visits every object.
    pub(in crate::registry::kube) fn weight(&self) -> usize {
        let slices = self.slices.all().map(|(key, slice)| weight::key(key) + slice.weight());
        let pods = self.pods.iter().map(|(name, pod)| name.tail.len() + 4 + weight::workload(pod));
        let nodes = self.nodes.iter().map(|(name, node)| name.len() + node.weight());
        let namespaces = self.namespaces.iter().map(|(name, facts)| name.len() + facts.weight());
        let gateways = self.facts.gateways.values().map(MemoryWeight::weight);
        let entries = self.facts.entries.values().map(|entry| weight::entry(entry));
        let traffic = self
            .facts
            .traffic
            .iter()
            .map(|(key, object)| key.namespace.len() + key.name.len() + object.bytes());
        let invalid = self
            .invalid
            .iter()
            .map(|((_, key), reason)| reason.len() + key.as_ref().map_or(0, weight::key));
        weight::map(&self.services)
            + slices.sum::<usize>()
            + pods.sum::<usize>()
            + nodes.sum::<usize>()
            + namespaces.sum::<usize>()
            + gateways.sum::<usize>()
            + entries.sum::<usize>()
            + traffic.sum::<usize>()
            + invalid.sum::<usize>()
            + weight::map(&self.shared.exports)
            + weight::map(&self.shared.imports)
            + weight::map(&self.shared.derived)
            + self.shared.slices.weight()
    }

    /// Returns the number of stored objects.
    pub(in crate::registry::kube) fn object_count(&self) -> usize {
        let indexed: usize = IndexedKind::ALL.into_iter().map(|kind| self.count(kind)).sum();
        indexed + self.facts.traffic.len()
    }

    /// Returns the objects that are invalid as a whole or in part.
    pub(in crate::registry::kube) fn skipped(&self) -> Skipped {
        let count = u64::try_from(self.invalid.len()).unwrap_or(u64::MAX);
        Skipped { count, last: self.last_invalid.clone() }
    }

    /// Returns the UID that identifies the cluster.
    pub(in crate::registry::kube) fn cluster_uid(&self) -> Option<&str> {
        let listed = self.namespaces.get(KUBE_SYSTEM).map(|facts| &*facts.uid);
        listed.or(self.uid.as_deref()).filter(|uid| !uid.is_empty())
    }

    /// Returns whether a namespace is listed.
    pub(in crate::registry::kube) fn has_namespace(&self, name: &str) -> bool {
        self.namespaces.contains_key(name)
    }

    /// Sets the UID of a cluster whose namespaces may not be read.
    pub(in crate::registry::kube) fn set_cluster_uid(&mut self, uid: Option<Box<str>>) {
        self.uid = uid;
    }

    /// Returns the namespaces in which objects can be created.
    pub(in crate::registry::kube) fn writable_namespaces(&self) -> impl Iterator<Item = &Arc<str>> {
        let stay = self.namespaces.iter().filter(|(_, facts)| !facts.is_terminating);
        stay.map(|(name, _)| name)
    }

    /// Returns whether objects can be created in a namespace.
    pub(in crate::registry::kube) fn is_writable(&self, namespace: &str) -> bool {
        self.namespaces.get(namespace).is_some_and(|facts| !facts.is_terminating)
    }

    /// Returns the settings for reading its objects.
    #[cfg(test)]
    pub(in crate::registry::kube) fn scope(&self) -> &Scope {
        &self.scope
    }

    /// Whether no state of any object is left.
    #[cfg(test)]
    pub(in crate::registry::kube) fn is_bare(&self) -> bool {
        self.object_count() == 0
            && self.invalid.is_empty()
            && self.slices.is_bare()
            && self.unnamed.is_empty()
            && self.last_sent.services.is_empty()
            && self.last_sent.endpoints == 0
    }
}
