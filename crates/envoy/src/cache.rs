//! What many proxies share, encoded once.
//!
//! Each entry remembers the inputs it was made from, as the very `Arc`s of the context: an entry
//! serves only where these are still the inputs, and is replaced where they are not. So the key and
//! the remembered inputs together are the generator's entire input, and no entry is ever stale. What
//! nobody asks for again is let go by a sweep now and then.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

pub(super) use super::cache_table::{CacheTable, CacheValue, Span};
use super::cds::ClusterFormat;
use super::chunks::Chunks;
use super::class::{Class, ListenerFormat};
use super::lds::PodListenerKey;
use super::rbac_rules::EncodedPolicies;
use super::rds::{RouteBase, RouteLists};
use strait_mesh::aggregate::MergedService;
use strait_mesh::network::Networks;
use strait_mesh::push::PushContext;
use strait_mesh::push::addresses::ListenAddresses;
use strait_mesh::push::proxy::{east_west_port, served_in};
use strait_mesh::push::view::{ViewDependencies, ViewKey};
use strait_model::mesh_config::MeshConfig;
use strait_model::policy::Policy;
use strait_model::{
    ClusterId, GrpcLibrary, Hostname, KnownClusters, Labels, Namespace, Proxy, ProxyType,
    Resolution, Service, Workload, WorkloadKey,
};
use strait_rules::traffic::HostPattern;
use strait_rules::traffic::destination_rule::RulesForHost;
use strait_xds::list::SharedList;
use strait_xds::names::OutboundName;
use strait_xds::resource::{Resource, ResourceType, Version};

/// From so many lists on, those that no stream holds go before one more is kept: of a thousand upstream
/// clusters each takes about a megabyte. What a stream holds is there anyway, and costs nothing here.
const LISTS_MANY: usize = 256;

/// The most of routers, whose names and labels are claims unless their pods are known: labels may take
/// 64 KiB.
const ROUTERS_MAX: usize = 1 << 12;

/// The upstream clusters of one service.
type Resources = Arc<[Arc<Resource>]>;

/// A resource of a service's port, for libraries with and without mTLS.
pub(super) type LibraryKey = (ResourceType, Arc<str>, OutboundName, Option<GrpcLibrary>);

/// Encoded resources shared by all streams. It may be emptied at any time.
#[derive(Debug, Default)]
pub struct Cache {
    pub(super) assignments: CacheTable<(OutboundName, ViewKey), ServiceInputs, Arc<Resource>>,
    pub(super) library: CacheTable<LibraryKey, ServiceInputs, Arc<Resource>>,
    /// Routes for libraries, by name and version: those that are the same are there once.
    pub(super) library_routes: CacheTable<(Arc<str>, Version), (), Arc<Resource>>,
    pub(super) policies: EncodedPolicies,
    pub(super) clusters: Arc<CacheTable<ClustersKey, ServiceInputs, Resources>>,
    pub(super) pod_listeners: Arc<CacheTable<PodListenerKey, SameMesh, Arc<Resource>>>,
    pub(super) outbound: CacheTable<(ViewKey, ClusterFormat), Span, Arc<SharedList>, LISTS_MANY>,
    pub(super) scopes: CacheTable<(), Span, Scopes>,
    pub(super) served: CacheTable<(ClusterId, Namespace), Span, Arc<[Arc<Service>]>>,
    pub(super) addresses: CacheTable<Class, Span, Arc<ListenAddresses>>,
    pub(super) listeners: CacheTable<(Class, ListenerFormat), Span, Arc<SharedList>>,
    pub(super) pods: CacheTable<(ViewKey, ListenerFormat), Span, Arc<Pods>>,
    pub(super) routes: CacheTable<RouteKey, Span, Arc<Resource>>,
    /// What routes of a port are made from: see [`Base`].
    pub(super) bases: CacheTable<BaseKey, Span, Arc<RouteBase>>,
    /// Of versions that differ from the one before in rules for routes alone, the hosts that have others.
    pub(super) rule_steps: CacheTable<u64, Span, Arc<[HostPattern]>>,
    pub(super) chunks: Chunks,
    /// Routes that rules make, by what they are made of.
    pub(super) route_lists: RouteLists,
    /// By view, and whether given addresses are sent.
    pub(super) names: CacheTable<(ViewKey, bool), Span, Arc<SharedList>, LISTS_MANY>,
    pub(super) east_west_ports:
        CacheTable<(ClusterId, WorkloadKey), RouterInputs, Option<u16>, ROUTERS_MAX, ROUTERS_MAX>,
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
        let by_definitions = |span: &Span| span.reaches(context.definitions);
        self.assignments.sweep(by_service);
        self.library.sweep(by_service);
        self.policies.sweep(&context.access);
        // Before what is in them.
        self.outbound.sweep(by_definitions);
        self.clusters.sweep(by_service);
        self.served.sweep(by_definitions);
        self.addresses.sweep(by_definitions);
        self.pods.sweep(by_definitions);
        self.listeners.sweep(by_definitions);
        self.pod_listeners.sweep(|mesh| *mesh == SameMesh::of(context));
        self.routes.sweep(by_definitions);
        self.bases.sweep(by_definitions);
        self.rule_steps.sweep(by_definitions);
        self.names.sweep(by_definitions);
        self.chunks.sweep();
        self.route_lists.sweep(|_| true);
        self.library_routes.sweep(|()| true);
        // A name that is only claimed may never come again.
        self.east_west_ports
            .sweep(|inputs| by_definitions(&inputs.span) && inputs.workload.is_some());
    }

    /// Removes all entries, so that everything is generated again.
    pub fn clear(&self) {
        let Self {
            assignments,
            library,
            library_routes,
            policies,
            clusters,
            pod_listeners,
            outbound,
            scopes,
            served,
            addresses,
            listeners,
            pods,
            routes,
            bases,
            rule_steps,
            chunks,
            route_lists,
            names,
            east_west_ports,
        } = self;
        assignments.clear();
        library.clear();
        library_routes.clear();
        policies.clear();
        clusters.clear();
        pod_listeners.clear();
        outbound.clear();
        scopes.clear();
        served.clear();
        addresses.clear();
        listeners.clear();
        pods.clear();
        routes.clear();
        bases.clear();
        rule_steps.clear();
        chunks.clear();
        route_lists.clear();
        names.clear();
        east_west_ports.clear();
    }

    /// An empty one for another mesh, in which pieces of this one may be found.
    pub(super) fn beside(&self) -> Self {
        Self { pod_listeners: Arc::clone(&self.pod_listeners), ..Self::default() }
    }

    /// The same for the newest mesh, of which this one shall have the pieces.
    pub(super) fn ahead(&self) -> Self {
        Self { clusters: Arc::clone(&self.clusters), ..self.beside() }
    }

    /// What the routes of a port were made from in the version before this one, and the hosts that have other rules
    /// since, where nothing else differs.
    pub(super) fn base_before_rules(
        &self,
        key: &BaseKey,
        version: u64,
    ) -> Option<(Arc<RouteBase>, Arc<[HostPattern]>)> {
        let mut before = version;
        let hosts = self.rule_steps.get(&version, |step| {
            before = step.first();
            true
        })?;
        Some((self.bases.get(key, |span| span.contains(before))?, hosts))
    }

    /// The services that `proxy` may serve: see [`served_in`].
    pub(super) fn served(
        &self,
        context: &PushContext,
        cluster: &ClusterId,
        namespace: &Namespace,
    ) -> Arc<[Arc<Service>]> {
        let key = (cluster.clone(), namespace.clone());
        let make = || served_in(context, cluster, namespace);
        self.served.at(key, context.definitions, make)
    }

    /// Takes note of what is [served](Self::served).
    pub(super) fn put_served(
        &self,
        context: &PushContext,
        key: (ClusterId, Namespace),
        served: Arc<[Arc<Service>]>,
    ) {
        self.served.put(key, Span::of(context.definitions), served);
    }

    /// The port on which `proxy` listens as an east-west gateway. Finding it looks at every service,
    /// so it is found again only when such services or the proxy's pod have changed.
    pub(super) fn east_west_port(&self, context: &PushContext, proxy: &Proxy) -> Option<u16> {
        if proxy.kind != ProxyType::Router {
            return None;
        }
        let key = (proxy.cluster.clone(), proxy.workload.clone());
        let workload = context.workload_of(proxy).cloned();
        // Of a pod that is known, its own labels count.
        let claimed = if workload.is_some() { Labels::new() } else { proxy.labels.clone() };
        let is_current = |held: &RouterInputs| {
            held.span.contains(context.definitions)
                && held.workload == workload
                && held.claimed == claimed
        };
        self.east_west_ports.get(&key, is_current).unwrap_or_else(|| {
            let port = east_west_port(context, proxy);
            let span = Span::of(context.definitions);
            self.east_west_ports.put(key, RouterInputs { span, workload, claimed }, port);
            port
        })
    }
}

/// A mesh config, which is another one if it is another value.
#[derive(Debug, Clone)]
pub(super) struct SameMesh(Arc<MeshConfig>);

impl SameMesh {
    pub(super) fn of(context: &PushContext) -> Self {
        Self(Arc::clone(&context.mesh))
    }
}

impl PartialEq for SameMesh {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// The listeners for pods of headless services that proxies of a view reach.
#[derive(Debug)]
pub(super) struct Pods {
    /// These, with those that are not for pods.
    pub(super) list: Arc<SharedList>,
    /// Each with the pod's address, sorted by that.
    pub(super) listeners: Box<[(IpAddr, Arc<Resource>)]>,
}

/// What the port of an east-west gateway depends on, besides its name.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RouterInputs {
    pub(super) span: Span,
    workload: Option<Workload>,
    claimed: Labels,
}

/// A service for a view, in a form, and whether it is in another network as well.
pub(super) type ClustersKey = (Hostname, ViewKey, ClusterFormat, bool);

/// A route for a class of proxies, by name, and the namespace in whose DNS domain they are. In another, which
/// no service is in, it is the same whatever that is.
pub(super) type RouteKey = (Class, Option<Namespace>, Arc<str>);

/// A port for a class of proxies, and whether names are completed there.
pub(super) type BaseKey = (Class, u16, bool);

/// What of a view can matter for the list of all upstream clusters of services, so that most proxies
/// share one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Scopes {
    /// Some service is cluster-local.
    pub(super) cluster: bool,
    /// Some upstream cluster depends on its endpoints, and these on the node.
    pub(super) node: bool,
    /// Some upstream cluster depends on its endpoints.
    pub(super) family: bool,
    /// Some upstream cluster depends on its endpoints, and these on where the proxy is.
    pub(super) locality: bool,
    /// Some upstream cluster has names that the proxy resolves.
    pub(super) by_name: bool,
}

impl Scopes {
    pub(super) fn of(context: &PushContext) -> Self {
        let mut scopes = Self::default();
        for service in context.all_services() {
            let resolution = &service.primary.resolution;
            let by_endpoints = matches!(resolution, Resolution::Headless | Resolution::ByName(_));
            let matters = ViewDependencies::of(context, service);
            scopes.cluster |= matters.cluster;
            scopes.node |= by_endpoints && matters.node;
            scopes.family |= by_endpoints;
            scopes.locality |= by_endpoints && matters.locality;
            scopes.by_name |= matches!(resolution, Resolution::ByName(_));
        }
        scopes
    }

    /// `view` with all left out that doesn't matter.
    pub(super) fn projected(self, context: &PushContext, view: &ViewKey) -> ViewKey {
        ViewKey {
            cluster: if self.cluster { view.cluster.clone() } else { ClusterId::default() },
            network: view.network.clone(),
            sees: view.sees.clone().filter(|_| self.family),
            namespace: projected_namespace(context, &view.namespace),
            ipv4: view.ipv4 || !self.family,
            ipv6: view.ipv6 || !self.family,
            node: view.node.clone().filter(|_| self.node),
            locality: view.locality.clone().filter(|_| self.locality),
            selection: view.selection.clone(),
            role: view.role,
            grpc: view.grpc,
        }
    }
}

/// The namespace, if it is one for which some service is there that isn't for all, or some rule.
pub(super) fn projected_namespace(context: &PushContext, namespace: &Namespace) -> Namespace {
    let nobody = Namespace::default();
    // Nothing is for a namespace without a name, but for what names none by mistake.
    let matters = context.restricted_namespaces.contains_key(namespace)
        || context.restricted_namespaces.contains_key(&nobody)
        || context.traffic.concerns(namespace);
    if matters { namespace.clone() } else { nobody }
}

/// The parts of a context that the answer for one service depends on.
#[derive(Debug, Clone)]
pub(super) struct ServiceInputs {
    service: Arc<MergedService>,
    networks: Arc<Networks>,
    mesh: Arc<MeshConfig>,
    clusters: Arc<KnownClusters>,
    policy: Arc<Policy>,
    rules: RulesForHost,
}

impl ServiceInputs {
    pub(super) fn of(context: &PushContext, service: &Arc<MergedService>) -> Self {
        Self {
            service: Arc::clone(service),
            networks: Arc::clone(&context.networks),
            mesh: Arc::clone(&context.mesh),
            clusters: Arc::clone(&context.clusters),
            policy: Arc::clone(&context.policy),
            rules: context.traffic.destination_rules.of(service.hostname().as_str()),
        }
    }

    /// Whether these are they.
    pub(super) fn are_of(&self, context: &PushContext, service: &Arc<MergedService>) -> bool {
        Arc::ptr_eq(&self.service, service)
            && Arc::ptr_eq(&self.networks, &context.networks)
            && Arc::ptr_eq(&self.mesh, &context.mesh)
            && Arc::ptr_eq(&self.clusters, &context.clusters)
            && Arc::ptr_eq(&self.policy, &context.policy)
            && self.rules.are_of(&context.traffic.destination_rules, service.hostname().as_str())
    }
}

impl PartialEq for ServiceInputs {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.service, &other.service)
            && Arc::ptr_eq(&self.networks, &other.networks)
            && Arc::ptr_eq(&self.mesh, &other.mesh)
            && Arc::ptr_eq(&self.clusters, &other.clusters)
            && Arc::ptr_eq(&self.policy, &other.policy)
            && self.rules == other.rules
    }
}

impl CacheValue for Arc<Resource> {
    fn is_held(&self) -> bool {
        Self::strong_count(self) > 1
    }
}

impl CacheValue for Arc<SharedList> {
    fn is_held(&self) -> bool {
        Self::strong_count(self) > 1
    }
}

impl CacheValue for Arc<[Arc<Resource>]> {
    fn is_held(&self) -> bool {
        self.iter().any(CacheValue::is_held)
    }
}

impl CacheValue for Arc<Pods> {}
impl CacheValue for Arc<[Arc<Service>]> {}
impl CacheValue for Arc<ListenAddresses> {}
impl CacheValue for Arc<RouteBase> {}
impl CacheValue for Arc<[HostPattern]> {}
impl CacheValue for Scopes {}
impl CacheValue for Option<u16> {}

#[cfg(test)]
mod tests;
