//! Encoded resources that many proxies share, encoded once.
//!
//! Each entry stores the inputs that it was made from, as the same `Arc`s that the context holds.
//! An entry is used only while the context still holds these inputs; otherwise it is replaced. The
//! key and the stored inputs together are the generator's entire input, so no entry is ever stale.
//! A periodic sweep removes unused entries.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

pub(super) use super::cache_table::{CacheTable, CacheValue, Span};
use super::cds::ClusterFormat;
use super::chunks::Chunks;
use super::class::{Class, ListenerFormat};
use super::last_assignment::LastAssignment;
use super::lds::PodListenerKey;
use super::rbac_rules::EncodedPolicies;
use super::rds::{RouteBase, RouteLists};
use strait_mesh::aggregate::MergedService;
use strait_mesh::network::Networks;
use strait_mesh::push::PushContext;
use strait_mesh::push::addresses::ListenAddresses;
use strait_mesh::push::proxy::{east_west_port, served_in};
use strait_mesh::push::remote_pods::ServicePods;
use strait_mesh::push::view::{ViewDependencies, ViewKey};
use strait_model::mesh_config::MeshConfig;
use strait_model::policy::Policy;
use strait_model::{
    ClusterId, GrpcLibrary, Hostname, KnownClusters, Labels, Namespace, Proxy, Resolution, Service,
    Workload, WorkloadKey,
};
use strait_rules::traffic::HostPattern;
use strait_rules::traffic::destination_rule::RulesForHost;
use strait_xds::list::SharedList;
use strait_xds::names::OutboundName;
use strait_xds::resource::{Resource, ResourceType, Version};

/// Number of lists from which on an insertion first removes the lists that no stream holds. A list
/// of a thousand upstream clusters takes about 1 MB. A list that a stream holds takes no extra
/// memory in the cache.
const LISTS_MANY: usize = 256;

/// Maximum number of routers. Unless its pod is known, a router's name and labels are unverified
/// claims, and labels may take 64 KiB.
const ROUTERS_MAX: usize = 1 << 12;

/// The upstream clusters of one service.
type Resources = Arc<[Arc<Resource>]>;

/// A resource of a service's port, for libraries with and without mTLS.
pub(super) type LibraryKey = (ResourceType, Arc<str>, OutboundName, Option<GrpcLibrary>);

/// Encoded resources shared by all streams. It may be emptied at any time.
#[derive(Debug, Default)]
pub struct Cache {
    pub(super) assignments: CacheTable<(OutboundName, ViewKey), ServiceInputs, Arc<Resource>>,
    pub(super) last_assignment: LastAssignment,
    pub(super) library: CacheTable<LibraryKey, ServiceInputs, Arc<Resource>>,
    /// Routes for libraries, by name and version, so that equal routes are stored once.
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
    /// The input of the routes of a port: see [`RouteBase`].
    pub(super) bases: CacheTable<BaseKey, Span, Arc<RouteBase>>,
    /// By version, the hosts whose rules changed. Contains only versions that differ from the
    /// previous one in nothing but the rules for routes.
    pub(super) rule_steps: CacheTable<u64, Span, Arc<[HostPattern]>>,
    pub(super) chunks: Chunks,
    /// Routes generated from rules, by their inputs.
    pub(super) route_lists: RouteLists,
    /// Name tables by view and by whether the addresses of ServiceEntries are included.
    pub(super) names: CacheTable<(ViewKey, bool), Span, Arc<SharedList>, LISTS_MANY>,
    pub(super) east_west_ports:
        CacheTable<(ClusterId, WorkloadKey), RouterInputs, Option<u16>, ROUTERS_MAX, ROUTERS_MAX>,
}

impl Cache {
    /// Removes entries that do not match `context`, and values that no stream holds if streams hold
    /// such values themselves. Streams may use the cache meanwhile.
    pub fn sweep(&self, context: &PushContext) {
        let services: HashSet<_> = context.all_services().map(Arc::as_ptr).collect();
        let by_service = |inputs: &ServiceInputs| {
            services.contains(&Arc::as_ptr(&inputs.service))
                && inputs.are_current(context, &inputs.service)
        };
        // Some streams may already use a newer context.
        let by_definitions = |span: &Span| span.reaches(context.definitions);
        self.assignments.sweep(by_service);
        self.library.sweep(by_service);
        self.policies.sweep(&context.access);
        // The lists first, because they hold the clusters.
        self.outbound.sweep(by_definitions);
        self.clusters.sweep(by_service);
        self.served.sweep(by_definitions);
        self.addresses.sweep(by_definitions);
        self.pods.sweep(by_definitions);
        self.listeners.sweep(by_definitions);
        self.pod_listeners.sweep(|mesh| *mesh == SameMesh::from_context(context));
        self.routes.sweep(by_definitions);
        self.bases.sweep(by_definitions);
        self.rule_steps.sweep(by_definitions);
        self.names.sweep(by_definitions);
        self.chunks.sweep();
        self.route_lists.sweep(|_| true);
        self.library_routes.sweep(|()| true);
        // The cache may never be queried again for a name that is only claimed.
        self.east_west_ports
            .sweep(|inputs| by_definitions(&inputs.span) && inputs.workload.is_some());
    }

    /// Removes all entries, so that everything is generated again.
    pub fn clear(&self) {
        let Self {
            assignments,
            last_assignment,
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
        last_assignment.clear();
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

    /// Returns an empty cache for another mesh, which shares the listeners of pods with this cache.
    pub(super) fn sharing_listeners(&self) -> Self {
        Self { pod_listeners: Arc::clone(&self.pod_listeners), ..Self::default() }
    }

    /// Returns an empty cache for the newest mesh, which shares the upstream clusters and the
    /// listeners of pods with this cache.
    pub(super) fn ahead(&self) -> Self {
        Self { clusters: Arc::clone(&self.clusters), ..self.sharing_listeners() }
    }

    /// Returns the base of the routes of a port in the previous version, and the hosts whose rules
    /// have changed since. Returns `None` if anything else differs between the two versions.
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

    /// Returns the cached services that `proxy` may serve: see [`served_in`].
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

    /// Caches the result of [`served_in`].
    pub(super) fn put_served(
        &self,
        context: &PushContext,
        key: (ClusterId, Namespace),
        served: Arc<[Arc<Service>]>,
    ) {
        self.served.put(key, Span::at_version(context.definitions), served);
    }

    /// Returns the port on which `proxy` listens as an east-west gateway. The search visits every
    /// service, so the result is cached until such services or the proxy's pod change.
    pub(super) fn east_west_port(&self, context: &PushContext, proxy: &Proxy) -> Option<u16> {
        if !proxy.kind.is_gateway() {
            return None;
        }
        let key = (proxy.cluster.clone(), proxy.workload.clone());
        let workload = context.workload_of(proxy).cloned();
        // If the pod is known, its own labels apply.
        let claimed = if workload.is_some() { Labels::new() } else { proxy.labels.clone() };
        let is_current = |inputs: &RouterInputs| {
            inputs.span.contains(context.definitions)
                && inputs.workload == workload
                && inputs.claimed == claimed
        };
        self.east_west_ports.get(&key, is_current).unwrap_or_else(|| {
            let port = east_west_port(context, proxy);
            let span = Span::at_version(context.definitions);
            self.east_west_ports.put(key, RouterInputs { span, workload, claimed }, port);
            port
        })
    }
}

/// A mesh config, compared by address.
#[derive(Debug, Clone)]
pub(super) struct SameMesh(Arc<MeshConfig>);

impl SameMesh {
    pub(super) fn from_context(context: &PushContext) -> Self {
        Self(Arc::clone(&context.mesh))
    }
}

impl PartialEq for SameMesh {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// The listeners for pods of headless services that the proxies of a view reach.
#[derive(Debug)]
pub(super) struct Pods {
    /// The listeners for pods together with all other listeners.
    pub(super) list: Arc<SharedList>,
    /// The listeners with the addresses of their pods, sorted by address.
    pub(super) listeners: Box<[(IpAddr, Arc<Resource>)]>,
}

/// The inputs of the port of an east-west gateway, apart from its name.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RouterInputs {
    pub(super) span: Span,
    workload: Option<Workload>,
    claimed: Labels,
}

/// A service, the view and format that its clusters are generated for, and whether another network
/// has it as well.
pub(super) type ClustersKey = (Hostname, ViewKey, ClusterFormat, bool);

/// The class of a proxy, its DNS domain (a namespace), and the name of the route. The namespace is
/// `None` for all domains without services, because their routes are equal.
pub(super) type RouteKey = (Class, Option<Namespace>, Arc<str>);

/// A class of proxies, a port, and whether short names are expanded there.
pub(super) type BaseKey = (Class, u16, bool);

/// The parts of a view that can affect the list of all upstream clusters. Ignoring the others lets
/// most proxies share one list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Scopes {
    /// A service is cluster-local.
    pub(super) cluster: bool,
    /// An upstream cluster depends on its endpoints, and these depend on the node.
    pub(super) node: bool,
    /// An upstream cluster depends on its endpoints.
    pub(super) family: bool,
    /// An upstream cluster depends on its endpoints, and these depend on the locality of the proxy.
    pub(super) locality: bool,
    /// An upstream cluster has names that the proxy resolves.
    pub(super) by_name: bool,
}

impl Scopes {
    pub(super) fn from_context(context: &PushContext) -> Self {
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

    /// Returns `view` without the parts that have no effect.
    pub(super) fn projected(self, context: &PushContext, view: &ViewKey) -> ViewKey {
        ViewKey {
            cluster: if self.cluster { view.cluster.clone() } else { ClusterId::default() },
            network: view.network.clone(),
            visible_networks: view.visible_networks.clone().filter(|_| self.family),
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

/// Returns the namespace if a service is exported to it explicitly or a rule concerns it. Otherwise
/// returns the empty namespace.
pub(super) fn projected_namespace(context: &PushContext, namespace: &Namespace) -> Namespace {
    let no_namespace = Namespace::default();
    // An object concerns the empty namespace only if it names the empty namespace by mistake.
    let matters = context.restricted_namespaces.contains_key(namespace)
        || context.restricted_namespaces.contains_key(&no_namespace)
        || context.traffic.concerns(namespace);
    if matters { namespace.clone() } else { no_namespace }
}

/// The parts of a context that the resources of one service depend on.
#[derive(Debug, Clone)]
pub(super) struct ServiceInputs {
    service: Arc<MergedService>,
    networks: Arc<Networks>,
    mesh: Arc<MeshConfig>,
    clusters: Arc<KnownClusters>,
    policy: Arc<Policy>,
    rules: RulesForHost,
    remote_pods: Option<Arc<ServicePods>>,
}

impl ServiceInputs {
    pub(super) fn new(context: &PushContext, service: &Arc<MergedService>) -> Self {
        Self {
            service: Arc::clone(service),
            networks: Arc::clone(&context.networks),
            mesh: Arc::clone(&context.mesh),
            clusters: Arc::clone(&context.clusters),
            policy: Arc::clone(&context.policy),
            rules: context.traffic.destination_rules.of(service.hostname().as_str()),
            remote_pods: context.remote_pods.of(service.hostname()).cloned(),
        }
    }

    /// Returns whether these inputs equal the current ones of `context` and `service`.
    pub(super) fn are_current(&self, context: &PushContext, service: &Arc<MergedService>) -> bool {
        Arc::ptr_eq(&self.service, service)
            && Arc::ptr_eq(&self.networks, &context.networks)
            && Arc::ptr_eq(&self.mesh, &context.mesh)
            && Arc::ptr_eq(&self.clusters, &context.clusters)
            && Arc::ptr_eq(&self.policy, &context.policy)
            && self.remote_pods.as_ref() == context.remote_pods.of(service.hostname())
            && self
                .rules
                .are_current_for(&context.traffic.destination_rules, service.hostname().as_str())
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
            && self.remote_pods == other.remote_pods
    }
}

impl CacheValue for Arc<Resource> {
    fn is_in_use(&self) -> bool {
        Self::strong_count(self) > 1
    }
}

impl CacheValue for Arc<SharedList> {
    fn is_in_use(&self) -> bool {
        Self::strong_count(self) > 1
    }
}

impl CacheValue for Arc<[Arc<Resource>]> {
    fn is_in_use(&self) -> bool {
        self.iter().any(CacheValue::is_in_use)
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
