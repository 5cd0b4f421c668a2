//! Objects that do not apply to some proxies, because of the bytes that they would add to each.
//!
//! Every object that is exported is sent to proxies of other namespaces. A small object can be a
//! large resource, so that one namespace could fill the memory of all proxies of the mesh. The
//! event loop measures the objects and decides; this is its decision.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::foreign::ForeignHosts;
use super::hosts::HostPattern;
use super::object::ObjectMeta;
use strait_model::Namespace;

/// The withheld objects. Each entry contains the bytes that it would add to one proxy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Withheld {
    /// Namespaces whose objects exceed the limit of one namespace at proxies of other namespaces.
    /// These objects apply only to their own namespace.
    pub over_namespace: BTreeMap<Namespace, usize>,
    /// Namespaces whose objects exceed the total limit of all namespaces at a proxy of another
    /// namespace. If a Sidecar lists the namespace, the objects are still imported.
    pub over_total: BTreeMap<Namespace, usize>,
    /// The youngest objects of namespaces whose objects exceed the limit even at their own proxies.
    /// They apply to no proxy.
    pub objects: BTreeMap<ObjectMeta, usize>,
    /// The owners of hosts; `None` if objects may apply to hosts of other namespaces.
    pub foreign_hosts: Option<Arc<ForeignHosts>>,
}

impl Withheld {
    /// Returns whether no objects are withheld.
    pub fn is_empty(&self) -> bool {
        self.over_namespace.is_empty()
            && self.over_total.is_empty()
            && self.objects.is_empty()
            && self.foreign_hosts.is_none()
    }

    /// Returns the namespace that owns a host for clients of a namespace, or `None` if objects of
    /// any namespace may apply to it.
    pub fn owner_for(&self, host: &HostPattern, client: &Namespace) -> Option<Namespace> {
        self.foreign_hosts.as_ref()?.owner_for(host, client)
    }

    /// Returns whether objects of `namespace` do not apply to a host of `owner` at proxies of the
    /// namespace `client`.
    pub fn withholds_host(
        &self,
        namespace: &Namespace,
        owner: Option<&Namespace>,
        client: &Namespace,
    ) -> bool {
        let Some(foreign) = &self.foreign_hosts else { return false };
        namespace != client
            && owner.is_some_and(|owner| owner != namespace)
            && namespace.as_str() != &*foreign.root_namespace
    }

    /// Returns whether an object is withheld from all proxies of a namespace.
    pub fn is_from(&self, meta: &ObjectMeta, namespace: &Namespace) -> bool {
        let is_foreign = || meta.namespace != *namespace;
        self.objects.contains_key(meta)
            || (self.over_namespace.contains_key(&meta.namespace) && is_foreign())
    }

    /// Returns whether objects of the namespace `owner` are withheld from proxies of another
    /// namespace that do not list `owner` in a Sidecar.
    pub fn is_past_total(&self, owner: &Namespace, namespace: &Namespace) -> bool {
        owner != namespace && self.over_total.contains_key(owner)
    }

    /// Returns whether objects of a namespace apply to its own proxies but not to all others.
    pub fn concerns(&self, namespace: &Namespace) -> bool {
        let is_listed = |foreign: &Arc<ForeignHosts>| foreign.namespaces.contains(namespace);
        self.over_namespace.contains_key(namespace)
            || self.over_total.contains_key(namespace)
            || self.foreign_hosts.as_ref().is_some_and(is_listed)
    }

    /// Returns the namespaces with objects that are withheld in only one of the two versions.
    pub fn differing(&self, before: &Self) -> BTreeSet<Namespace> {
        let mut differing = BTreeSet::new();
        for (version, other) in [(self, before), (before, self)] {
            let kinds = [
                (&version.over_namespace, &other.over_namespace),
                (&version.over_total, &other.over_total),
            ];
            for (here, other) in kinds {
                differing.extend(here.keys().filter(|name| !other.contains_key(*name)).cloned());
            }
            let objects = version.objects.keys().filter(|meta| !other.objects.contains_key(*meta));
            differing.extend(objects.map(|meta| meta.namespace.clone()));
            let [own, theirs] = [version, other].map(|one| one.foreign_hosts.as_ref());
            let own = own.into_iter().flat_map(|foreign| &foreign.namespaces);
            let is_in =
                |name: &&Namespace| theirs.is_some_and(|all| all.namespaces.contains(*name));
            differing.extend(own.filter(|name| !is_in(name)).cloned());
        }
        differing
    }
}
