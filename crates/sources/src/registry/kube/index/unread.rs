//! Namespaces that may not be read when a run begins. Their last known services stay unchanged until
//! the namespace has been read.

use std::sync::Arc;

use super::{IndexChanges, Indexed, KubeIndex, namespaced_name};
use crate::registry::kube::kind::IndexedKind;
use crate::registry::kube::pod::PodRecord;
use strait_kube_client::NamespacedName;
use strait_model::registry::Contents;
use strait_model::{CLUSTERSET, Hostname, WorkloadKey};

impl KubeIndex {
    /// Whether a namespace has not been read, so that its last known services stay.
    pub(in crate::registry::kube) fn is_unread(&self, namespace: &str) -> bool {
        self.unread.contains_key(namespace)
    }

    /// Keeps the known contents of a namespace that has not been read, before anything is sent.
    /// `is_listed` returns whether a kind has been read nevertheless.
    pub(in crate::registry::kube) fn keep_unread(
        &mut self,
        namespace: &Arc<str>,
        known: Contents,
        is_listed: impl Fn(IndexedKind) -> bool,
    ) {
        let Contents { services, workloads, facts, .. } = known;
        let services = services.into_iter().filter_map(|(host, record)| Some((host, record?)));
        self.unread.insert(Arc::clone(namespace), services.collect());
        let facts = facts.unwrap_or_default();
        if !is_listed(IndexedKind::Pods) {
            for (key, pod) in workloads.iter().flat_map(|pods| pods.iter()) {
                self.pods.insert(namespace, &key.name(), pod.clone());
            }
            self.facts.unready.extend(facts.unready);
        }
        let mut touched = IndexChanges::default();
        if !is_listed(IndexedKind::Gateways) {
            for (name, gateway) in facts.gateways.iter() {
                self.note_gateway(name.clone(), Some(gateway.clone()), &mut touched);
            }
        }
        if !is_listed(IndexedKind::WorkloadEntries) {
            for (name, entry) in facts.entries.iter() {
                self.note_entry(name.clone(), Some(Arc::clone(entry)), &mut touched);
            }
        }
        for (name, export) in facts.exports.exports {
            self.facts.exports.exports.insert(name, export);
        }
        for (name, import) in facts.exports.imports {
            self.facts.exports.imports.entry(name).or_insert(import);
        }
    }

    /// Uses the objects of a namespace that has been read now. Returns the affected parts.
    pub(in crate::registry::kube) fn use_read(
        &mut self,
        namespace: &Arc<str>,
        is_listed: impl Fn(IndexedKind) -> bool,
    ) -> IndexChanges {
        let mut touched = IndexChanges { facts: true, ..IndexChanges::default() };
        let Some(known) = self.unread.remove(namespace) else { return touched };
        for record in known.into_values() {
            let service = &record.service;
            let key = NamespacedName {
                namespace: service.namespace.as_str().into(),
                name: Arc::clone(&service.name),
            };
            let of_set = Hostname::of_kubernetes_service(&key.name, &key.namespace, CLUSTERSET);
            let sent = match service.hostname == of_set {
                true => &mut self.shared.last_sent,
                false => &mut self.last_sent.services,
            };
            sent.insert(key.clone(), record);
            touched.services.insert(key);
        }
        self.touch_namespace(namespace, &mut touched);
        let imports = self.imports().filter(|key| key.namespace == *namespace);
        touched.services.extend(imports.cloned());
        // Kinds that may still not be read are absent, as in a run that begins now.
        if !is_listed(IndexedKind::Pods) {
            let pods = self.pods.of_namespace(namespace);
            let names: Vec<_> = pods.map(|(key, _)| key.name().into()).collect();
            for name in names {
                let key = NamespacedName { namespace: Arc::clone(namespace), name };
                PodRecord::remove(&key, self, &mut touched);
            }
        }
        let is_own = |name: &&WorkloadKey| *name.namespace.as_str() == **namespace;
        if !is_listed(IndexedKind::Gateways) {
            let gone: Vec<_> = self.facts.gateways.keys().filter(is_own).cloned().collect();
            gone.into_iter().for_each(|name| self.note_gateway(name, None, &mut touched));
        }
        if !is_listed(IndexedKind::WorkloadEntries) {
            let gone: Vec<_> = self.facts.entries.keys().filter(is_own).cloned().collect();
            gone.into_iter().for_each(|name| self.note_entry(name, None, &mut touched));
        }
        let known = self.facts.exports.exports.keys().filter(is_own).map(namespaced_name);
        let exported: Vec<_> = known.chain(self.exports().cloned()).collect();
        for key in exported.iter().filter(|key| key.namespace == *namespace) {
            self.note_exported(key);
        }
        let written: Vec<_> = self.facts.exports.imports.keys().filter(is_own).cloned().collect();
        for name in written {
            if !self.shared.imports.contains_key(&namespaced_name(&name)) {
                self.facts.exports.imports.remove(&name);
            }
        }
        touched
    }

    /// Returns the number of stored objects of a kind in a namespace.
    pub(in crate::registry::kube) fn count_in(&self, kind: IndexedKind, namespace: &str) -> usize {
        let is_own = |key: &&NamespacedName| *key.namespace == *namespace;
        let is_own_name = |key: &&WorkloadKey| *key.namespace.as_str() == *namespace;
        match kind {
            IndexedKind::Services => {
                self.services.keys().chain(self.shared.derived.keys()).filter(is_own).count()
            }
            IndexedKind::EndpointSlices => {
                self.slices.keys().chain(self.shared.slices.keys()).filter(is_own).count()
            }
            IndexedKind::Pods => self.pods.of_namespace(namespace).count(),
            IndexedKind::Gateways => self.facts.gateways.keys().filter(is_own_name).count(),
            IndexedKind::WorkloadEntries => self.facts.entries.keys().filter(is_own_name).count(),
            IndexedKind::ServiceExports => self.exports().filter(is_own).count(),
            IndexedKind::ServiceImports => self.imports().filter(is_own).count(),
            IndexedKind::Nodes | IndexedKind::Namespaces => self.count(kind),
        }
    }
}
