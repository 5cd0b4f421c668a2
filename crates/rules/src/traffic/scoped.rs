//! Objects that apply to the proxies of a namespace, or to those selected by labels; objects in the
//! root namespace apply to all proxies (Istio, Sidecar and Telemetry; docs/reference/traffic.md,
//! "Sidecar").

use std::collections::BTreeSet;
use std::sync::Arc;

use imbl::OrdMap;
use imbl::ordmap::DiffItem;

use super::changes::TrafficChanges;
use super::object::ObjectMeta;
use super::selection::{RuleSelector, Selectors};
use strait_model::Namespace;

/// An object that applies to the proxies of a namespace.
pub(super) trait Scoped: PartialEq {
    /// Whether an object with a selector in the root namespace applies to proxies of all
    /// namespaces. Otherwise it applies only to proxies in the root namespace.
    const ROOT_SELECTS_ALL: bool = false;

    /// Returns the name, namespace and age of the object.
    fn meta(&self) -> &ObjectMeta;
    /// Returns the selector for proxies in the object's namespace; `None` for all proxies.
    fn selector(&self) -> Option<&RuleSelector>;
}

/// All objects of one kind by namespace. In each namespace, objects with a selector come first,
/// then the oldest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ScopedObjects<T> {
    by_namespace: OrdMap<Namespace, Arc<[Arc<T>]>>,
    root_namespace: Namespace,
}

/// State that is updated when an object changes.
pub(super) struct ScopedInForce<'a> {
    pub(super) selectors: &'a mut Selectors,
    pub(super) changes: &'a mut TrafficChanges,
    pub(super) root_namespace: &'a Namespace,
}

impl<T> Default for ScopedObjects<T> {
    fn default() -> Self {
        Self { by_namespace: OrdMap::new(), root_namespace: Namespace::default() }
    }
}

impl<T: Scoped> ScopedObjects<T> {
    /// Returns whether there are no objects.
    pub(super) fn is_empty(&self) -> bool {
        self.by_namespace.is_empty()
    }

    /// Iterates over the namespaces with objects.
    pub(super) fn namespaces(&self) -> impl Iterator<Item = &Namespace> {
        self.by_namespace.keys()
    }

    /// Returns the objects of a namespace.
    pub(super) fn in_namespace(&self, namespace: &Namespace) -> &[Arc<T>] {
        self.by_namespace.get(namespace).map_or(&[], |all| all)
    }

    /// Returns the root namespace, which is known after the first object.
    pub(super) fn root_namespace(&self) -> &Namespace {
        &self.root_namespace
    }

    /// Returns whether all objects of a namespace and of the root namespace are unchanged since an
    /// earlier version.
    pub(super) fn all_same_in(&self, before: &Self, namespace: &Namespace) -> bool {
        self.in_namespace(namespace) == before.in_namespace(namespace)
            && self.in_namespace(&self.root_namespace)
                == before.in_namespace(&before.root_namespace)
    }

    /// Returns the namespace of the proxies that an object's selector applies to; `None` for all
    /// namespaces.
    fn selector_namespace<'a>(namespace: &'a Namespace, root: &Namespace) -> Option<&'a Namespace> {
        (!T::ROOT_SELECTS_ALL || namespace != root).then_some(namespace)
    }

    /// Returns the object of a namespace that applies to all proxies there.
    pub(super) fn namespace_default(&self, namespace: &Namespace) -> Option<&Arc<T>> {
        self.in_namespace(namespace).iter().find(|one| one.selector().is_none())
    }

    /// Returns the object of the root namespace that applies to all proxies.
    pub(super) fn root_default(&self) -> Option<&Arc<T>> {
        self.namespace_default(&self.root_namespace)
    }

    /// Returns an older object for the same proxies, and a description of these proxies.
    pub(super) fn before(&self, meta: &ObjectMeta) -> Option<(&ObjectMeta, &'static str)> {
        let own = self.in_namespace(&meta.namespace);
        let this = own.iter().find(|one| one.meta() == meta)?;
        let first = own.iter().find(|one| one.selector() == this.selector())?;
        let proxies = if this.selector().is_some() { "the same proxies" } else { "the namespace" };
        (first.meta() != meta).then(|| (first.meta(), proxies))
    }

    /// Returns whether the same objects apply to the proxies of a namespace as in an earlier
    /// version.
    pub(super) fn same_in(&self, before: &Self, namespace: &Namespace) -> bool {
        self.in_namespace(namespace) == before.in_namespace(namespace)
            && self.root_default() == before.root_default()
    }

    /// Returns the namespaces in which other objects may apply than in an earlier version; `None`
    /// for all namespaces.
    pub(super) fn differing(&self, before: &Self) -> Option<BTreeSet<Namespace>> {
        if self.root_default() != before.root_default()
            || self.root_namespace != before.root_namespace
        {
            return None;
        }
        let namespace = |item: DiffItem<'_, '_, Namespace, Arc<[Arc<T>]>>| match item {
            DiffItem::Add(namespace, _) | DiffItem::Remove(namespace, _) => namespace.clone(),
            DiffItem::Update { new: (namespace, _), .. } => namespace.clone(),
        };
        Some(before.by_namespace.diff(&self.by_namespace).map(namespace).collect())
    }

    /// Inserts an object. Calls `note` with its namespace, and with whether the object for all
    /// proxies changed.
    pub(super) fn insert(
        &mut self,
        object: &Arc<T>,
        into: ScopedInForce<'_>,
        note: fn(&mut TrafficChanges, &Namespace, bool),
    ) {
        let before = self.root_default().cloned();
        self.root_namespace.clone_from(into.root_namespace);
        let namespace = &object.meta().namespace;
        if let Some(selector) = object.selector() {
            let scope = Self::selector_namespace(namespace, into.root_namespace);
            into.changes.selectors |= into.selectors.add(scope, Arc::clone(selector));
        }
        let key = |one: &T| (one.selector().is_none(), one.meta().clone());
        let mut all = self.in_namespace(namespace).to_vec();
        let place = all.partition_point(|one| key(one) < key(object));
        all.insert(place, Arc::clone(object));
        self.by_namespace.insert(namespace.clone(), all.into());
        note(into.changes, namespace, self.root_default() != before.as_ref());
    }

    /// Removes an object. Calls `note` with its namespace, and with whether the object for all
    /// proxies changed.
    pub(super) fn remove(
        &mut self,
        object: &T,
        from: ScopedInForce<'_>,
        note: fn(&mut TrafficChanges, &Namespace, bool),
    ) {
        let before = self.root_default().cloned();
        let namespace = &object.meta().namespace;
        if let Some(selector) = object.selector() {
            let scope = Self::selector_namespace(namespace, from.root_namespace);
            from.changes.selectors |= from.selectors.remove(scope, selector);
        }
        let mut all = self.in_namespace(namespace).to_vec();
        all.retain(|one| one.meta() != object.meta());
        if all.is_empty() {
            self.by_namespace.remove(namespace);
        } else {
            self.by_namespace.insert(namespace.clone(), all.into());
        }
        note(from.changes, namespace, self.root_default() != before.as_ref());
    }
}
