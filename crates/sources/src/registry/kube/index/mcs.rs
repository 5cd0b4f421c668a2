//! Multi-cluster services in the index: how exports and imports are stored, and the contents that
//! are sent for them.

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
    /// Adds the change of a service under its clusterset name to the contents. `own` is the
    /// cluster's record, `None` if its namespace does not belong to the mesh.
    pub(super) fn add_clusterset_change(
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

    /// Sets the mode of multi-cluster services.
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

    /// Returns the exports with their status.
    pub(in crate::registry::kube) fn shared_exports(
        &self,
    ) -> impl Iterator<Item = (&NamespacedName, &Export)> {
        self.shared.exports.iter()
    }

    /// Returns the imports with their status.
    pub(in crate::registry::kube) fn shared_imports(
        &self,
    ) -> impl Iterator<Item = (&NamespacedName, &Import)> {
        self.shared.imports.iter()
    }

    /// Whether an export with this name exists.
    pub(in crate::registry::kube) fn is_exported(&self, key: &NamespacedName) -> bool {
        self.shared.exports.contains_key(key)
    }

    /// Returns the resolution of a service as last sent.
    pub(in crate::registry::kube) fn last_sent_resolution(
        &self,
        key: &NamespacedName,
    ) -> Option<&Resolution> {
        self.last_sent.services.get(key).map(|record| &record.service.resolution)
    }

    /// Stores or removes the export of a service.
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
            self.shared.declined.remove(key);
        } else if was.is_some() && self.services.contains_key(key) {
            self.shared.declined.insert(key.clone());
        }
    }

    /// Whether a service is excluded from automatic export, by its annotation or because its export
    /// was deleted.
    pub(in crate::registry::kube) fn declines_export(&self, key: &NamespacedName) -> bool {
        self.shared.declined.contains(key)
            || self.services.get(key).is_some_and(|service| service.declines_export)
    }

    /// Stores or removes the import of a service.
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
