//! The namespaces of a cluster that belong to the mesh, and the pods in them.
//!
//! The objects of all namespaces are stored, but only objects in namespaces of the mesh are
//! reported. Therefore namespaces enter and leave the mesh immediately, and the network label of
//! the system namespace is read in any case. A namespace that has not been received yet has no
//! labels to match.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::namespace::NamespaceFacts;
use strait_model::{
    ClusterExports, ClusterFacts, NamespaceFilter, Workload, WorkloadKey, Workloads,
};

/// The part of a cluster that belongs to the mesh.
#[derive(Debug, Default)]
pub(super) struct ChosenNamespaces {
    filter: Arc<NamespaceFilter>,
    /// The pods that belong to the mesh; unused if all do.
    pods: Workloads,
}

impl ChosenNamespaces {
    /// Replaces the filter. Returns whether it changed.
    pub(super) fn replace(
        &mut self,
        filter: Arc<NamespaceFilter>,
        namespaces: &BTreeMap<Arc<str>, NamespaceFacts>,
        all: &Workloads,
    ) -> bool {
        if self.filter == filter {
            return false;
        }
        self.filter = filter;
        self.pods = Workloads::default();
        if !self.filter.admits_all() {
            for (name, facts) in namespaces {
                if self.filter.admits(&facts.labels) {
                    self.enter(name, all);
                }
            }
        }
        true
    }

    /// Whether a namespace with these facts belongs to the mesh.
    pub(super) fn admits(&self, namespace: Option<&NamespaceFacts>) -> bool {
        self.filter.admits_all() || namespace.is_some_and(|facts| self.filter.admits(&facts.labels))
    }

    /// Adds the pods of a namespace that now belongs to the mesh.
    pub(super) fn enter(&mut self, namespace: &Arc<str>, all: &Workloads) {
        if !self.filter.admits_all() {
            for (key, pod) in all.of_namespace(namespace) {
                self.pods.insert(namespace, &key.name(), pod.clone());
            }
        }
    }

    /// Removes the pods of a namespace that no longer belongs to the mesh.
    pub(super) fn leave(&mut self, namespace: &Arc<str>, all: &Workloads) {
        if !self.filter.admits_all() {
            for (key, _) in all.of_namespace(namespace) {
                self.pods.remove(namespace, &key.name());
            }
        }
    }

    /// Adds or updates a pod.
    pub(super) fn put(
        &mut self,
        facts: Option<&NamespaceFacts>,
        namespace: &Arc<str>,
        name: &str,
        pod: &Workload,
    ) {
        if !self.filter.admits_all() && self.admits(facts) {
            self.pods.insert(namespace, name, pod.clone());
        }
    }

    /// Adds the first pods of `all`.
    pub(super) fn put_all(
        &mut self,
        namespaces: &BTreeMap<Arc<str>, NamespaceFacts>,
        all: &Workloads,
    ) {
        for (name, facts) in namespaces {
            if self.filter.admits(&facts.labels) {
                self.enter(name, all);
            }
        }
    }

    /// Removes a pod.
    pub(super) fn remove(&mut self, namespace: &str, name: &str) {
        if !self.filter.admits_all() {
            self.pods.remove(namespace, name);
        }
    }

    /// Returns the cluster's facts without declarations in namespaces outside the mesh.
    pub(super) fn facts(
        &self,
        facts: &ClusterFacts,
        namespaces: &BTreeMap<Arc<str>, NamespaceFacts>,
    ) -> ClusterFacts {
        let mut facts = facts.clone();
        if !self.filter.admits_all() && !facts.gateways.is_empty() {
            Arc::make_mut(&mut facts.gateways)
                .retain(|name, _| self.admits(namespaces.get(name.namespace.as_str())));
        }
        if !self.filter.admits_all() && !facts.entries.is_empty() {
            Arc::make_mut(&mut facts.entries)
                .retain(|name, _| self.admits(namespaces.get(name.namespace.as_str())));
        }
        if !self.filter.admits_all() && !facts.traffic.is_empty() {
            let belongs = |namespace: &str| self.admits(namespaces.get(namespace));
            let all = facts.traffic.iter().map(|(key, _)| key);
            let gone: Vec<_> = all.filter(|key| !belongs(&key.namespace)).cloned().collect();
            gone.iter().for_each(|key| drop(facts.traffic.remove(key)));
        }
        if !self.filter.admits_all() && facts.exports != ClusterExports::default() {
            let belongs =
                |name: &&WorkloadKey| self.admits(namespaces.get(name.namespace.as_str()));
            let all = facts.exports.exports.keys().chain(facts.exports.imports.keys());
            let gone: Vec<_> = all.filter(|name| !belongs(name)).cloned().collect();
            for name in gone {
                facts.exports.exports.remove(&name);
                facts.exports.imports.remove(&name);
            }
        }
        facts
    }

    /// Returns the pods among `all` that belong to the mesh.
    pub(super) fn pods<'a>(&'a self, all: &'a Workloads) -> &'a Workloads {
        if self.filter.admits_all() { all } else { &self.pods }
    }
}
