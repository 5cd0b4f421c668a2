//! Multi-cluster services in the index: how exports and imports are stored, and the contents that
//! are sent for them.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{IndexChanges, Indexed, IndexedKind, IndexedObject, KubeIndex, missing, workload_key};
use crate::registry::kube::import_objects::DerivedService;
use crate::registry::kube::imported_slices::ImportedSlices;
use crate::registry::kube::mcs::{Export, Import, is_reserved};
use strait_kube_client::NamespacedName;
use strait_model::registry::{Contents, ServiceRecord};
use strait_model::{CLUSTERSET, ExportedService, Hostname, Mcs, Resolution, WrittenImport};

impl Indexed for Export {
    const KIND: IndexedKind = IndexedKind::ServiceExports;

    fn put(self, key: NamespacedName, index: &mut KubeIndex, touched: &mut IndexChanges) {
        index.note_export(&key, Some(self), touched);
    }

    fn remove(key: &NamespacedName, index: &mut KubeIndex, touched: &mut IndexChanges) {
        index.note_export(key, None, touched);
    }

    fn replace(
        list: Vec<IndexedObject<Self>>,
        namespace: Option<&Arc<str>>,
        index: &mut KubeIndex,
        touched: &mut IndexChanges,
    ) {
        index.shared.exports_listed = true;
        touched.facts |= std::mem::take(&mut index.facts.exports.is_unread);
        let gone = missing(index.exports(), &list);
        index.exchange(gone, list, namespace, touched);
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

    fn replace(
        list: Vec<IndexedObject<Self>>,
        namespace: Option<&Arc<str>>,
        index: &mut KubeIndex,
        touched: &mut IndexChanges,
    ) {
        index.shared.imports_listed = true;
        let gone = missing(index.imports(), &list);
        index.exchange(gone, list, namespace, touched);
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
        self.facts.exports.is_unread = mode != Mcs::Off;
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
    pub(in crate::registry::kube) fn shared_imports(&self) -> &BTreeMap<NamespacedName, Import> {
        &self.shared.imports
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
        touched.facts |= self.note_exported(key);
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
        let written = import.as_ref().and_then(|import| import.own.as_ref()).map(|own| {
            let decided_by = Arc::clone(&own.decided_by);
            WrittenImport { decided_by, created: own.created }
        });
        match import {
            Some(import) => imports.insert(key.clone(), import),
            None => imports.remove(key),
        };
        touched.services.insert(key.clone());
        let name = workload_key(key);
        let known = &mut self.facts.exports.imports;
        if known.get(&name) != written.as_ref() {
            touched.facts = true;
            match written {
                Some(written) => known.insert(name, written),
                None => known.remove(&name),
            };
        }
    }

    /// Updates the exported service of this name. Returns whether it differs.
    pub(super) fn note_exported(&mut self, key: &NamespacedName) -> bool {
        if self.is_unread(&key.namespace) {
            return false;
        }
        let export = self.shared.exports.get(key).filter(|_| !is_reserved(key));
        let service = self.services.get(key);
        let service = service.filter(|own| !matches!(own.service.resolution, Resolution::Alias(_)));
        let exported = export.zip(service).map(|(export, service)| ExportedService {
            created: export.created,
            service: Arc::clone(&service.raw),
            labels: export.labels.clone(),
            annotations: export.annotations.clone(),
        });
        let (name, exports) = (workload_key(key), &mut self.facts.exports.exports);
        if exports.get(&name).map(|own| &**own) == exported.as_ref() {
            return false;
        }
        match exported {
            Some(exported) => exports.insert(name, Arc::new(exported)),
            None => exports.remove(&name),
        };
        true
    }

    /// Updates the names that may be exported, because one of their objects could not be decoded.
    /// Returns whether they differ.
    pub(super) fn note_unknown_exports(&mut self) -> bool {
        if self.invalid.is_empty() && self.facts.exports.unknown.is_empty() {
            return false;
        }
        let kinds = [IndexedKind::Services, IndexedKind::ServiceExports];
        let invalid = self.invalid.keys().filter(|(kind, _)| kinds.contains(kind));
        let unknown = invalid.filter_map(|(_, key)| key.as_ref()).map(workload_key).collect();
        let differs = self.facts.exports.unknown != unknown;
        self.facts.exports.unknown = unknown;
        differs
    }

    /// Updates whether all exports are known. `is_complete` is whether all kinds that exports depend
    /// on have been listed. Returns the affected parts.
    pub(in crate::registry::kube) fn set_exports_complete(
        &mut self,
        is_complete: bool,
    ) -> IndexChanges {
        // An object without a readable name may be any export or exported Service.
        let has_nameless = [IndexedKind::Services, IndexedKind::ServiceExports]
            .iter()
            .any(|kind| self.invalid.contains_key(&(*kind, None)));
        let is_complete = is_complete && self.shared.exports_listed && !has_nameless;
        let current = &mut self.facts.exports.is_complete;
        let facts = std::mem::replace(current, is_complete) != is_complete;
        IndexChanges { facts, ..IndexChanges::default() }
    }

    /// Whether imports have been listed.
    pub(in crate::registry::kube) fn has_imports_listed(&self) -> bool {
        self.shared.imports_listed
    }

    /// Whether an object of this name exists that could not be decoded.
    pub(in crate::registry::kube) fn is_unreadable(
        &self,
        kind: IndexedKind,
        key: &NamespacedName,
    ) -> bool {
        self.invalid.contains_key(&(kind, Some(key.clone())))
    }

    /// Whether there is a Service of this name that is not a derived one, or cannot be read.
    pub(in crate::registry::kube) fn has_other_service(&self, key: &NamespacedName) -> bool {
        let is_derived = self.shared.derived.contains_key(key);
        self.services.contains_key(key)
            || (!is_derived && self.is_unreadable(IndexedKind::Services, key))
    }

    /// Returns the derived Services of all controllers.
    pub(in crate::registry::kube) fn derived_services(
        &self,
    ) -> &BTreeMap<NamespacedName, DerivedService> {
        &self.shared.derived
    }

    /// Returns the EndpointSlices of derived Services.
    pub(in crate::registry::kube) fn imported_slices(&self) -> &ImportedSlices {
        &self.shared.slices
    }

    /// Returns whether an EndpointSlice of a derived Service has changed since the last call.
    pub(in crate::registry::kube) fn take_slice_changes(&mut self) -> bool {
        self.shared.slices.take_changes()
    }

    /// Whether there is an EndpointSlice of this name that Strait did not write.
    pub(in crate::registry::kube) fn has_other_slice(&self, key: &NamespacedName) -> bool {
        self.slices.get(key).is_some()
            || self.shared.slices.is_foreign(key)
            || self.is_unreadable(IndexedKind::EndpointSlices, key)
    }
}
