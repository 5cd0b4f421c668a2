//! How exports and imports of multi-cluster services are entered, and what of the cluster is sent for them.

use super::{IndexChanges, Indexed, IndexedKind, IndexedObject, KubeIndex, missing};
use crate::registry::kube::mcs::{Export, Import};
use strait_kube_client::NamespacedName;
use strait_model::registry::{Contents, ServiceRecord};
use strait_model::{CLUSTERSET, Hostname, Mcs, Resolution};

impl Indexed for Export {
    const KIND: IndexedKind = IndexedKind::ServiceExports;

    fn put(self, key: NamespacedName, index: &mut KubeIndex, touched: &mut IndexChanges) {
        index.note_export(&key, Some(self), touched);
    }

    fn remove(key: &NamespacedName, index: &mut KubeIndex, touched: &mut IndexChanges) {
        index.note_export(key, None, touched);
    }

    fn replace(list: Vec<IndexedObject<Self>>, index: &mut KubeIndex, touched: &mut IndexChanges) {
        let gone = missing(index.exports(), &list);
        index.exchange(gone, list, touched);
    }
}

impl Indexed for Import {
    const KIND: IndexedKind = IndexedKind::ServiceImports;

    fn put(self, key: NamespacedName, index: &mut KubeIndex, touched: &mut IndexChanges) {
        index.note_import(&key, Some(self), touched);
    }

    fn remove(key: &NamespacedName, index: &mut KubeIndex, touched: &mut IndexChanges) {
        index.note_import(key, None, touched);
    }

    fn replace(list: Vec<IndexedObject<Self>>, index: &mut KubeIndex, touched: &mut IndexChanges) {
        let gone = missing(index.imports(), &list);
        index.exchange(gone, list, touched);
    }
}

impl KubeIndex {
    /// Says what has changed of a service as it is in the set; `own` is the cluster's, `None` where its
    /// namespace doesn't belong to the mesh.
    pub(super) fn say_in_set(
        &mut self,
        key: &NamespacedName,
        own: Option<Option<&ServiceRecord>>,
        contents: &mut Contents,
    ) {
        let hostname = Hostname::of_kubernetes_service(&key.name, &key.namespace, CLUSTERSET);
        let record = own.and_then(|own| self.shared.in_set(key, &hostname, own));
        if self.shared.last_sent.get(key) == record.as_ref() {
            return;
        }
        match &record {
            Some(record) => self.shared.last_sent.insert(key.clone(), record.clone()),
            None => self.shared.last_sent.remove(key),
        };
        contents.services.insert(hostname, record);
    }

    /// What it means that a service is exported, or imported.
    pub(in crate::registry::kube) fn sharing(mut self, mode: Mcs) -> Self {
        self.shared.mode = mode;
        self
    }

    pub(in crate::registry::kube) fn exports(&self) -> impl Iterator<Item = &NamespacedName> {
        self.shared.exports.keys()
    }

    pub(in crate::registry::kube) fn imports(&self) -> impl Iterator<Item = &NamespacedName> {
        self.shared.imports.keys()
    }

    /// The exports, with what is written in their status.
    pub(in crate::registry::kube) fn shared_exports(
        &self,
    ) -> impl Iterator<Item = (&NamespacedName, &Export)> {
        self.shared.exports.iter()
    }

    /// The imports, with what is written in their status.
    pub(in crate::registry::kube) fn shared_imports(
        &self,
    ) -> impl Iterator<Item = (&NamespacedName, &Import)> {
        self.shared.imports.iter()
    }

    /// Whether an export of this name is there.
    pub(in crate::registry::kube) fn is_exported(&self, key: &NamespacedName) -> bool {
        self.shared.exports.contains_key(key)
    }

    /// How the endpoints are found of a service that was sent.
    pub(in crate::registry::kube) fn last_sent_resolution(
        &self,
        key: &NamespacedName,
    ) -> Option<&Resolution> {
        self.last_sent.services.get(key).map(|record| &record.service.resolution)
    }

    /// Keeps whether a service is exported.
    pub(in crate::registry::kube) fn note_export(
        &mut self,
        key: &NamespacedName,
        export: Option<Export>,
        touched: &mut IndexChanges,
    ) {
        let exports = &mut self.shared.exports;
        let exported = export.is_some();
        let was = match export {
            Some(export) => exports.insert(key.clone(), export),
            None => exports.remove(key),
        };
        if was.is_some() != exported {
            touched.services.insert(key.clone());
        }
        if exported {
            self.shared.taken_away.remove(key);
        } else if was.is_some() && self.services.contains_key(key) {
            self.shared.taken_away.insert(key.clone());
        }
    }

    /// Whether a service is not to be exported of itself: its annotation says so, or an export of it was
    /// taken away.
    pub(in crate::registry::kube) fn declines_export(&self, key: &NamespacedName) -> bool {
        self.shared.taken_away.contains(key)
            || self.services.get(key).is_some_and(|service| service.declines_export)
    }

    /// Keeps under which addresses a service is imported.
    pub(in crate::registry::kube) fn note_import(
        &mut self,
        key: &NamespacedName,
        import: Option<Import>,
        touched: &mut IndexChanges,
    ) {
        let imports = &mut self.shared.imports;
        if imports.get(key) == import.as_ref() {
            return;
        }
        match import {
            Some(import) => imports.insert(key.clone(), import),
            None => imports.remove(key),
        };
        touched.services.insert(key.clone());
    }
}
