//! What many proxies share, encoded once.
//!
//! Each entry remembers the inputs it was made from, as the very `Arc`s of the context: an entry
//! serves only where these are still the inputs, and is replaced where they are not. So the key and
//! the remembered inputs together are the generator's entire input, and no entry is ever stale. What
//! nobody asks for again is let go by a sweep now and then.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

use dashmap::DashMap;

use super::tls::Secrets;
use crate::aggregate::MergedService;
use crate::hash::Secret;
use crate::mesh::MeshConfig;
use crate::model::{
    ClusterId, Hostname, KnownClusters, Labels, Namespace, Proxy, ProxyType, Resolution, Service,
    Workload, WorkloadKey,
};
use crate::network::Networks;
use crate::policy::Policy;
use crate::push::PushContext;
use crate::push::addresses::Addresses;
use crate::push::proxy::{east_west_port, served_in};
use crate::push::view::{Matters, ViewKey};
use crate::xds::list::List;
use crate::xds::names::OutboundName;
use crate::xds::resource::Resource;

/// The most entries of a kind; above it the kind is emptied and fills again with what is in use.
const ENTRIES_MAX: usize = 1 << 20;

/// From so many lists on, those that no stream holds go before one more is kept: of a thousand upstream
/// clusters each takes about a megabyte. What a stream holds is there anyway, and costs nothing here.
const LISTS_MANY: usize = 256;

/// The most of routers, whose names and labels are claims unless their pods are known: labels may take
/// 64 KiB.
const ROUTERS_MAX: usize = 1 << 12;

/// Encoded resources shared by all streams. It may be emptied at any time.
#[derive(Debug, Default)]
pub struct Cache {
    pub(super) assignments: Kept<(OutboundName, ViewKey), ServiceInputs, Arc<Resource>>,
    pub(super) clusters: Kept<ClustersKey, ServiceInputs, Arc<[Arc<Resource>]>>,
    pub(super) outbound: Kept<(ViewKey, Secrets), u64, Arc<List>, LISTS_MANY>,
    pub(super) scopes: Kept<(), u64, Scopes>,
    served: Kept<(ClusterId, Namespace), u64, Arc<[Arc<Service>]>>,
    pub(super) addresses: Kept<Class, u64, Arc<Addresses>>,
    pub(super) listeners: Kept<Class, u64, Arc<List>>,
    pub(super) routes: Kept<RouteKey, u64, Arc<Resource>>,
    /// By view, and whether given addresses are told.
    pub(super) names: Kept<(ViewKey, bool), u64, Arc<List>, LISTS_MANY>,
    east_west_ports:
        Kept<(ClusterId, WorkloadKey), RouterInputs, Option<u16>, ROUTERS_MAX, ROUTERS_MAX>,
}

impl Cache {
    /// Lets go of what was not made of `context`, and of what no stream holds any more where streams hold
    /// it themselves. They may use the cache meanwhile.
    pub fn sweep(&self, context: &PushContext) {
        let services: HashSet<_> = context.all_services().map(Arc::as_ptr).collect();
        let by_service = |inputs: &ServiceInputs| {
            services.contains(&Arc::as_ptr(&inputs.service))
                && inputs.are_of(context, &inputs.service)
        };
        // Some streams may be ahead.
        let by_definitions = |made: &u64| *made >= context.definitions;
        let by_upstreams = |made: &u64| *made >= context.upstreams;
        self.assignments.sweep(by_service);
        // Before what is in them.
        self.outbound.sweep(by_upstreams);
        self.clusters.sweep(by_service);
        self.served.sweep(by_definitions);
        self.addresses.sweep(by_definitions);
        self.listeners.sweep(by_definitions);
        self.routes.sweep(by_definitions);
        self.names.sweep(by_definitions);
        // A name that is only claimed may never come again.
        self.east_west_ports
            .sweep(|inputs| by_definitions(&inputs.definitions) && inputs.workload.is_some());
    }

    /// The services that `proxy` may serve: see [`served_in`].
    pub(super) fn served(&self, context: &PushContext, proxy: &Proxy) -> Arc<[Arc<Service>]> {
        let (cluster, namespace) = (&proxy.cluster, proxy.namespace());
        let key = (cluster.clone(), namespace.clone());
        let make = || served_in(context, cluster, namespace);
        self.served.get_or_make(key, context.definitions, make)
    }

    /// The port on which `proxy` listens as an east-west gateway. Finding it looks at every service,
    /// so it is found again only when their definitions or the proxy's pod have changed.
    pub(super) fn east_west_port(&self, context: &PushContext, proxy: &Proxy) -> Option<u16> {
        if proxy.kind != ProxyType::Router {
            return None;
        }
        let key = (proxy.cluster.clone(), proxy.workload.clone());
        let workload = context.workload_of(proxy).cloned();
        // Of a pod that is known, its own labels count.
        let claimed = if workload.is_some() { Labels::new() } else { proxy.labels.clone() };
        let inputs = RouterInputs { definitions: context.definitions, workload, claimed };
        self.east_west_ports.get_or_make(key, inputs, || east_west_port(context, proxy))
    }
}

/// What the port of an east-west gateway depends on, besides its name.
#[derive(Debug, Clone, PartialEq)]
struct RouterInputs {
    definitions: u64,
    workload: Option<Workload>,
    claimed: Labels,
}

/// A service for a view, by who holds secrets, and whether it is in another network as well.
pub(super) type ClustersKey = (Hostname, ViewKey, Secrets, bool);

/// Proxies that share addresses: cluster, namespace, whether they speak IPv4, and IPv6. What is kept
/// for a class was made at a version of the definitions.
pub(super) type Class = (ClusterId, Namespace, bool, bool);

/// A route for a class of proxies, by name, and whether they are in the DNS domain of their namespace. In
/// another, which no service is in, it is the same whatever that is.
pub(super) type RouteKey = (Class, bool, Arc<str>);

/// What of a view can matter for the list of all upstream clusters of services, so that most proxies
/// share one.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Scopes {
    /// Some service is cluster-local.
    pub(super) cluster: bool,
    /// Some service is not exported to everybody.
    pub(super) namespace: bool,
    /// Some upstream cluster depends on its endpoints, and these on the node.
    pub(super) node: bool,
    /// Some upstream cluster depends on its endpoints.
    pub(super) family: bool,
    /// Some upstream cluster depends on its endpoints, and these on where the proxy is.
    pub(super) locality: bool,
}

impl Scopes {
    pub(super) fn of(context: &PushContext) -> Self {
        let mut scopes = Self::default();
        for service in context.all_services() {
            let resolution = &service.primary.resolution;
            let by_endpoints = matches!(resolution, Resolution::Headless | Resolution::ByName(_));
            let matters = Matters::of(context, service);
            scopes.cluster |= matters.cluster;
            scopes.namespace |= matters.namespace;
            scopes.node |= by_endpoints && matters.node;
            scopes.family |= by_endpoints;
            scopes.locality |= by_endpoints && matters.locality;
        }
        scopes.namespace |= !context.private.is_empty();
        scopes
    }

    /// `view` with all left out that doesn't matter.
    pub(super) fn narrowed(self, view: &ViewKey) -> ViewKey {
        ViewKey {
            cluster: if self.cluster { view.cluster.clone() } else { ClusterId::default() },
            network: view.network.clone(),
            sees: view.sees.clone().filter(|_| self.family),
            namespace: if self.namespace { view.namespace.clone() } else { Namespace::default() },
            ipv4: view.ipv4 || !self.family,
            ipv6: view.ipv6 || !self.family,
            node: view.node.clone().filter(|_| self.node),
            locality: view.locality.clone().filter(|_| self.locality),
            role: view.role,
        }
    }
}

/// The parts of a context that the answer for one service depends on.
#[derive(Debug, Clone)]
pub(super) struct ServiceInputs {
    service: Arc<MergedService>,
    networks: Arc<Networks>,
    mesh: Arc<MeshConfig>,
    clusters: Arc<KnownClusters>,
    policy: Arc<Policy>,
}

impl ServiceInputs {
    pub(super) fn of(context: &PushContext, service: &Arc<MergedService>) -> Self {
        Self {
            service: Arc::clone(service),
            networks: Arc::clone(&context.networks),
            mesh: Arc::clone(&context.mesh),
            clusters: Arc::clone(&context.clusters),
            policy: Arc::clone(&context.policy),
        }
    }

    /// Whether these are they.
    pub(super) fn are_of(&self, context: &PushContext, service: &Arc<MergedService>) -> bool {
        Arc::ptr_eq(&self.service, service)
            && Arc::ptr_eq(&self.networks, &context.networks)
            && Arc::ptr_eq(&self.mesh, &context.mesh)
            && Arc::ptr_eq(&self.clusters, &context.clusters)
            && Arc::ptr_eq(&self.policy, &context.policy)
    }
}

impl PartialEq for ServiceInputs {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.service, &other.service)
            && Arc::ptr_eq(&self.networks, &other.networks)
            && Arc::ptr_eq(&self.mesh, &other.mesh)
            && Arc::ptr_eq(&self.clusters, &other.clusters)
            && Arc::ptr_eq(&self.policy, &other.policy)
    }
}

/// What can be kept.
pub(super) trait Value: Clone {
    /// Whether a stream holds it, if that can be told.
    fn is_held(&self) -> bool {
        true
    }
}

impl Value for Arc<Resource> {
    fn is_held(&self) -> bool {
        Self::strong_count(self) > 1
    }
}

impl Value for Arc<List> {
    fn is_held(&self) -> bool {
        Self::strong_count(self) > 1
    }
}

impl Value for Arc<[Arc<Resource>]> {
    fn is_held(&self) -> bool {
        self.iter().any(Value::is_held)
    }
}

impl Value for Arc<[Arc<Service>]> {}
impl Value for Arc<Addresses> {}
impl Value for Scopes {}
impl Value for Option<u16> {}

/// Values by key, each with the inputs it was made from: from `MANY` on only what is current and held, and
/// never more than `MAX`.
#[derive(Debug)]
pub(super) struct Kept<
    K: Eq + Hash,
    I,
    V,
    const MANY: usize = ENTRIES_MAX,
    const MAX: usize = ENTRIES_MAX,
> {
    entries: DashMap<K, (I, V), Secret>,
}

impl<K: Eq + Hash, I, V, const MANY: usize, const MAX: usize> Default for Kept<K, I, V, MANY, MAX> {
    fn default() -> Self {
        Self { entries: DashMap::default() }
    }
}

impl<K: Eq + Hash, I: Clone + PartialEq, V: Value, const MANY: usize, const MAX: usize>
    Kept<K, I, V, MANY, MAX>
{
    /// The value for `key` made from `inputs`; made now where it isn't kept.
    pub(super) fn get_or_make(&self, key: K, inputs: I, make: impl FnOnce() -> V) -> V {
        self.get(&key, |held| *held == inputs).unwrap_or_else(|| {
            let value = make();
            self.put(key, inputs, value.clone());
            value
        })
    }

    /// The value for `key`, if it is kept and `is_current` says so of the inputs it was made from.
    pub(super) fn get(&self, key: &K, is_current: impl FnOnce(&I) -> bool) -> Option<V> {
        let entry = self.entries.get(key)?;
        is_current(&entry.0).then(|| entry.1.clone())
    }

    /// Keeps a value. Two streams may make the same at once; they make equal bytes.
    pub(super) fn put(&self, key: K, inputs: I, value: V) {
        if self.entries.len() >= MANY {
            self.sweep(|held| *held == inputs);
            if self.entries.len() >= MAX {
                self.entries.clear();
            }
        }
        self.entries.insert(key, (inputs, value));
    }

    /// Lets go of what isn't current, and of what nobody holds.
    fn sweep(&self, is_current: impl Fn(&I) -> bool) {
        // What goes is freed when no lock is held.
        let mut gone = Vec::new();
        self.entries.retain(|_, entry| {
            let stays = is_current(&entry.0) && entry.1.is_held();
            if !stays {
                gone.push(entry.clone());
            }
            stays
        });
    }
}

#[cfg(test)]
mod tests;
