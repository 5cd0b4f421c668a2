//! The namespaces of a cluster that belong to the mesh, and the pods in them.
//!
//! Everything is kept, whatever its namespace, and only what belongs to the mesh is reported: so namespaces enter and
//! leave at once, and the network that the system namespace names is read in any case. A namespace that has not been
//! seen has no labels to be chosen by.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::namespace::NamespaceFacts;
use strait_model::{ClusterFacts, NamespaceFilter, Workload, Workloads};

/// What of a cluster belongs to the mesh.
#[derive(Debug, Default)]
pub(super) struct ChosenNamespaces {
    filter: Arc<NamespaceFilter>,
    /// The pods that do; unused where all do.
    pods: Workloads,
}

impl ChosenNamespaces {
    /// Takes another filter; whether it differs.
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

    /// Whether a namespace of which this is known belongs to the mesh.
    pub(super) fn admits(&self, namespace: Option<&NamespaceFacts>) -> bool {
        self.filter.admits_all() || namespace.is_some_and(|facts| self.filter.admits(&facts.labels))
    }

    /// Takes in the pods of a namespace that belongs to the mesh now.
    pub(super) fn enter(&mut self, namespace: &Arc<str>, all: &Workloads) {
        if !self.filter.admits_all() {
            for (key, pod) in all.of_namespace(namespace) {
                self.pods.insert(namespace, &key.name(), pod.clone());
            }
        }
    }

    /// Lets go of the pods of a namespace that belonged to the mesh.
    pub(super) fn leave(&mut self, namespace: &Arc<str>, all: &Workloads) {
        if !self.filter.admits_all() {
            for (key, _) in all.of_namespace(namespace) {
                self.pods.remove(namespace, &key.name());
            }
        }
    }

    /// Takes in a pod, or its new state.
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

    /// Takes in the first pods, of `all` there are.
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

    /// Lets go of a pod.
    pub(super) fn remove(&mut self, namespace: &str, name: &str) {
        if !self.filter.admits_all() {
            self.pods.remove(namespace, name);
        }
    }

    /// What the cluster says of itself, without what is declared where nothing belongs to the mesh.
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
        facts
    }

    /// The pods, of `all` there are, that belong to the mesh.
    pub(super) fn pods<'a>(&'a self, all: &'a Workloads) -> &'a Workloads {
        if self.filter.admits_all() { all } else { &self.pods }
    }
}
