//! The EndpointSlices of derived Services in a cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::size_of;
use std::net::IpAddr;
use std::sync::Arc;

use super::import_objects::{OwnSlice, SliceOrigin};
use super::slice_form::Conditions;
use super::weight;
use strait_kube_client::NamespacedName;

/// The slices that Strait wrote, and the names of other slices that Strait must not use.
#[derive(Debug, Default)]
pub(super) struct ImportedSlices {
    /// The slices by the key of the ServiceImport and the name of the slice.
    own: BTreeMap<NamespacedName, BTreeMap<Arc<str>, OwnSlice>>,
    /// The ServiceImports by the key of the slice.
    imports: BTreeMap<NamespacedName, Arc<str>>,
    /// Slices of other controllers, each with the derived Service for whose selector Kubernetes wrote
    /// it, if it did.
    foreign: BTreeMap<NamespacedName, Option<Arc<str>>>,
    /// The slices that Kubernetes wrote for the selectors of derived Services, by Service.
    of_selectors: BTreeMap<NamespacedName, BTreeSet<Arc<str>>>,
    /// Whether a slice has changed since the last call of [`Self::take_changes`].
    changed: bool,
}

impl ImportedSlices {
    pub(super) fn insert(&mut self, key: NamespacedName, origin: SliceOrigin) {
        self.changed = true;
        match origin {
            SliceOrigin::Own(import, slice) => {
                let of = NamespacedName {
                    namespace: Arc::clone(&key.namespace),
                    name: Arc::clone(&import),
                };
                self.own.entry(of).or_default().insert(Arc::clone(&key.name), slice);
                self.imports.insert(key, import);
            }
            SliceOrigin::Foreign(service) => {
                if let Some(name) = &service {
                    let service = NamespacedName {
                        namespace: Arc::clone(&key.namespace),
                        name: Arc::clone(name),
                    };
                    let slices = self.of_selectors.entry(service).or_default();
                    slices.insert(Arc::clone(&key.name));
                }
                self.foreign.insert(key, service);
            }
        }
    }

    pub(super) fn remove(&mut self, key: &NamespacedName) {
        if let Some(import) = self.imports.remove(key) {
            self.changed = true;
            let of = NamespacedName { namespace: Arc::clone(&key.namespace), name: import };
            if let Some(slices) = self.own.get_mut(&of) {
                slices.remove(&key.name);
                if slices.is_empty() {
                    self.own.remove(&of);
                }
            }
        }
        let Some(service) = self.foreign.remove(key) else { return };
        self.changed = true;
        let Some(name) = service else { return };
        let service = NamespacedName { namespace: Arc::clone(&key.namespace), name };
        if let Some(slices) = self.of_selectors.get_mut(&service) {
            slices.remove(&key.name);
            if slices.is_empty() {
                self.of_selectors.remove(&service);
            }
        }
    }

    /// Returns the slices that Strait wrote, by ServiceImport.
    pub(super) fn own(&self) -> &BTreeMap<NamespacedName, BTreeMap<Arc<str>, OwnSlice>> {
        &self.own
    }

    /// Returns whether a slice of another controller has this name.
    pub(super) fn is_foreign(&self, key: &NamespacedName) -> bool {
        self.foreign.contains_key(key)
    }

    /// Returns the slices that Kubernetes wrote for the selectors of derived Services, by Service.
    pub(super) fn of_selectors(&self) -> &BTreeMap<NamespacedName, BTreeSet<Arc<str>>> {
        &self.of_selectors
    }

    /// Returns the keys of all slices.
    pub(super) fn keys(&self) -> impl Iterator<Item = &NamespacedName> {
        self.imports.keys().chain(self.foreign.keys())
    }

    /// Returns the number of slices.
    pub(super) fn len(&self) -> usize {
        self.imports.len() + self.foreign.len()
    }

    /// Returns whether a slice has changed since the last call.
    pub(super) fn take_changes(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// Returns the approximate memory use in bytes.
    pub(super) fn weight(&self) -> usize {
        let slices = self.own.values().flat_map(BTreeMap::values);
        let of_slice = |slice: &OwnSlice| {
            let rows = slice.endpoints.len() * size_of::<(IpAddr, Conditions)>();
            size_of::<OwnSlice>() + weight::NODE + rows + slice.uid.len() + slice.version.len()
        };
        slices.map(of_slice).sum::<usize>() + self.keys().map(weight::key).sum::<usize>()
    }
}
