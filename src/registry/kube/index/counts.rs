//! How much an index holds, and how well it reads.

use super::{Index, Kind};
use crate::registry::kube::Skipped;
#[cfg(test)]
use crate::registry::kube::scope::Scope;
use crate::registry::kube::weight::{self, Weighed};

/// The namespace whose UID is the identity of a cluster.
const KUBE_SYSTEM: &str = "kube-system";

impl Index {
    /// Services held.
    pub(in crate::registry::kube) fn service_count(&self) -> usize {
        self.services.len()
    }

    /// Endpoints said.
    pub(in crate::registry::kube) fn endpoint_count(&self) -> usize {
        self.said.endpoints
    }

    /// Objects of a kind held.
    pub(in crate::registry::kube) fn count(&self, kind: Kind) -> usize {
        match kind {
            Kind::Services => self.services.len(),
            Kind::EndpointSlices => self.slices.len(),
            Kind::Pods => self.pods.len(),
            Kind::Nodes => self.nodes.len(),
            Kind::Namespaces => self.namespaces.len(),
            Kind::Gateways => self.facts.gateways.len(),
            Kind::ServiceExports => self.exports().count(),
            Kind::ServiceImports => self.imports().count(),
            Kind::WorkloadEntries => self.facts.entries.len(),
        }
    }

    /// About how much memory all of it takes. Looks at every object.
    pub(in crate::registry::kube) fn weight(&self) -> usize {
        let slices = self.slices.all().map(|(key, slice)| weight::key(key) + slice.weight());
        let pods = self.pods.iter().map(|(name, pod)| name.tail.len() + 4 + weight::workload(pod));
        let nodes = self.nodes.iter().map(|(name, node)| name.len() + node.weight());
        let namespaces = self.namespaces.iter().map(|(name, facts)| name.len() + facts.weight());
        let gateways = self.facts.gateways.values().map(Weighed::weight);
        let entries = self.facts.entries.values().map(|entry| weight::entry(entry));
        let odd = self
            .odd
            .iter()
            .map(|((_, key), reason)| reason.len() + key.as_ref().map_or(0, weight::key));
        weight::map(&self.services)
            + slices.sum::<usize>()
            + pods.sum::<usize>()
            + nodes.sum::<usize>()
            + namespaces.sum::<usize>()
            + gateways.sum::<usize>()
            + entries.sum::<usize>()
            + odd.sum::<usize>()
            + weight::map(&self.shared.exports)
            + weight::map(&self.shared.imports)
    }

    /// Objects held.
    pub(in crate::registry::kube) fn object_count(&self) -> usize {
        Kind::ALL.into_iter().map(|kind| self.count(kind)).sum()
    }

    /// Objects that make no sense, wholly or in part.
    pub(in crate::registry::kube) fn skipped(&self) -> Skipped {
        let count = u64::try_from(self.odd.len()).unwrap_or(u64::MAX);
        Skipped { count, last: self.last_odd.clone() }
    }

    /// The identity of the cluster.
    pub(in crate::registry::kube) fn cluster_uid(&self) -> Option<&str> {
        let uid = &*self.namespaces.get(KUBE_SYSTEM)?.uid;
        Some(uid).filter(|uid| !uid.is_empty())
    }

    /// What its objects are read with.
    #[cfg(test)]
    pub(in crate::registry::kube) fn scope(&self) -> &Scope {
        &self.scope
    }

    /// Whether no trace of any object is left.
    #[cfg(test)]
    pub(in crate::registry::kube) fn is_bare(&self) -> bool {
        self.object_count() == 0
            && self.odd.is_empty()
            && self.slices.is_bare()
            && self.unnamed.is_empty()
            && self.said.services.is_empty()
            && self.said.endpoints == 0
    }
}
