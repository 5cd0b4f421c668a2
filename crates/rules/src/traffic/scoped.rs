//! Objects that hold for the proxies of a namespace, or for those of them that their labels select; those of the root
//! namespace for all. (Istio, Sidecar and Telemetry; docs/reference/traffic.md, "Sidecar".)

use std::collections::BTreeSet;
use std::sync::Arc;

use imbl::OrdMap;
use imbl::ordmap::DiffItem;

use super::changes::TrafficChanges;
use super::object::ObjectMeta;
use super::selection::{RuleSelector, Selectors};
use strait_model::Namespace;

/// An object of such a kind.
pub(super) trait Scoped: PartialEq {
    /// Whether those of the root namespace that have a selector hold for the proxies of all namespaces that it selects; else
    /// for those of the root namespace.
    const ROOT_SELECTS_ALL: bool = false;

    /// Which object it is.
    fn meta(&self) -> &ObjectMeta;
    /// The proxies of its namespace that it holds for, where these are not all.
    fn selector(&self) -> Option<&RuleSelector>;
}

/// All of one kind, by namespace: of each those with a selector first, the oldest of either first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ScopedObjects<T> {
    by_namespace: OrdMap<Namespace, Arc<[Arc<T>]>>,
    root_namespace: Namespace,
}

/// What a change of one of them touches.
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
    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.by_namespace.is_empty()
    }

    /// The namespaces that have any.
    pub(super) fn namespaces(&self) -> impl Iterator<Item = &Namespace> {
        self.by_namespace.keys()
    }

    /// Those of a namespace.
    pub(super) fn of(&self, namespace: &Namespace) -> &[Arc<T>] {
        self.by_namespace.get(namespace).map_or(&[], |all| all)
    }

    /// The root namespace, once there is any object.
    pub(super) fn root_namespace(&self) -> &Namespace {
        &self.root_namespace
    }

    /// Whether a namespace and the root namespace have the same as before.
    pub(super) fn all_same_in(&self, before: &Self, namespace: &Namespace) -> bool {
        self.of(namespace) == before.of(namespace)
            && self.of(&self.root_namespace) == before.of(&before.root_namespace)
    }

    /// Whose proxies an object of a namespace selects by labels; `None` for those of all namespaces.
    fn selects_of<'a>(namespace: &'a Namespace, root: &Namespace) -> Option<&'a Namespace> {
        (!T::ROOT_SELECTS_ALL || namespace != root).then_some(namespace)
    }

    /// That of a namespace for all of its proxies.
    pub(super) fn default_of(&self, namespace: &Namespace) -> Option<&Arc<T>> {
        self.of(namespace).iter().find(|one| one.selector().is_none())
    }

    /// That of the root namespace for all proxies.
    pub(super) fn of_root(&self) -> Option<&Arc<T>> {
        self.default_of(&self.root_namespace)
    }

    /// An older one that holds for the same proxies, and whom these are.
    pub(super) fn before(&self, meta: &ObjectMeta) -> Option<(&ObjectMeta, &'static str)> {
        let own = self.of(&meta.namespace);
        let this = own.iter().find(|one| one.meta() == meta)?;
        let first = own.iter().find(|one| one.selector() == this.selector())?;
        let whom = if this.selector().is_some() { "the same proxies" } else { "the namespace" };
        (first.meta() != meta).then(|| (first.meta(), whom))
    }

    /// Whether the same holds for the proxies of a namespace as by those of before.
    pub(super) fn same_in(&self, before: &Self, namespace: &Namespace) -> bool {
        self.of(namespace) == before.of(namespace) && self.of_root() == before.of_root()
    }

    /// The namespaces in which others may hold than before; `None` for all.
    pub(super) fn differing(&self, before: &Self) -> Option<BTreeSet<Namespace>> {
        if self.of_root() != before.of_root() || self.root_namespace != before.root_namespace {
            return None;
        }
        let namespace = |item: DiffItem<'_, '_, Namespace, Arc<[Arc<T>]>>| match item {
            DiffItem::Add(namespace, _) | DiffItem::Remove(namespace, _) => namespace.clone(),
            DiffItem::Update { new: (namespace, _), .. } => namespace.clone(),
        };
        Some(before.by_namespace.diff(&self.by_namespace).map(namespace).collect())
    }

    /// Takes one in. `note` is told of its namespace, and whether what holds for all is another now.
    pub(super) fn insert(
        &mut self,
        object: &Arc<T>,
        into: ScopedInForce<'_>,
        note: fn(&mut TrafficChanges, &Namespace, bool),
    ) {
        let before = self.of_root().cloned();
        self.root_namespace.clone_from(into.root_namespace);
        let namespace = &object.meta().namespace;
        if let Some(selector) = object.selector() {
            let of = Self::selects_of(namespace, into.root_namespace);
            into.changes.selectors |= into.selectors.add(of, Arc::clone(selector));
        }
        let key = |one: &T| (one.selector().is_none(), one.meta().clone());
        let mut all = self.of(namespace).to_vec();
        let place = all.partition_point(|one| key(one) < key(object));
        all.insert(place, Arc::clone(object));
        self.by_namespace.insert(namespace.clone(), all.into());
        note(into.changes, namespace, self.of_root() != before.as_ref());
    }

    /// Takes one out. `note` is told the same.
    pub(super) fn remove(
        &mut self,
        object: &T,
        from: ScopedInForce<'_>,
        note: fn(&mut TrafficChanges, &Namespace, bool),
    ) {
        let before = self.of_root().cloned();
        let namespace = &object.meta().namespace;
        if let Some(selector) = object.selector() {
            let of = Self::selects_of(namespace, from.root_namespace);
            from.changes.selectors |= from.selectors.remove(of, selector);
        }
        let mut all = self.of(namespace).to_vec();
        all.retain(|one| one.meta() != object.meta());
        if all.is_empty() {
            self.by_namespace.remove(namespace);
        } else {
            self.by_namespace.insert(namespace.clone(), all.into());
        }
        note(from.changes, namespace, self.of_root() != before.as_ref());
    }
}
