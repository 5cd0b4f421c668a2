//! Generators: from a mesh snapshot to the encoded xDS resources of one proxy.
//!
//! [`ProxyConfig`] answers for one proxy at one version of the mesh. `cds`, `eds`, `lds`, `rds` and
//! `nds` generate the resources of each type, `library` generates the resources of proxyless gRPC,
//! `ingress` the resources of gateways. `change_impact` computes which proxies a change affects, `walk`
//! follows one request through generated configuration. Invariants:
//!
//! - Pure: the same snapshot and the same proxy give the same bytes, whatever happened before.
//! - A resource that many proxies share is encoded once and stored in [`Cache`], whose key is the generator's entire input.
//! - This crate never changes the mesh and never opens a socket.

#![forbid(unsafe_code)]

#[cfg(test)]
mod access_oracle;
mod cache;
mod cache_table;
mod cds;
mod change_impact;
mod chunks;
mod class;
mod common;
mod eds;
mod encoding;
mod ext_authz;
pub mod heads;
mod ingress;
mod istio_filters;
#[cfg(test)]
mod joining;
mod jwt;
mod lds;
mod library;
mod nds;
#[cfg(any(test, fuzzing))]
pub mod oracle;
mod rbac;
mod rbac_rules;
mod rds;
mod service_metrics;
mod spans;
pub mod testing;
#[cfg(test)]
mod tests;
mod tls;
mod walk;

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::sync::Arc;

pub use self::cache::Cache;
use self::cache::ServiceInputs;
use self::cds::ClusterFormat;
use self::class::ListenerFormat;
use self::common::{SharedResources, list, own_domain, sort};
pub(crate) use self::encoding::{any, duration, encode, encode_struct, nested, seconds};
use self::ingress::NamedIngress;
use self::library::LibraryConfig;
pub use self::rds::{RetainedRoutes, rule_bytes};
use self::spans::SpanReport;
pub use self::walk::{
    LostRule, ProbedRequest, RequestDestination, RequestDirection, RequestWalk, RuleName,
};
use strait_mesh::aggregate::MergedService;
use strait_mesh::push::authorizers::Authorizers;
use strait_mesh::push::ingress::IngressOutline;
use strait_mesh::push::named_pods::gateways_to;
use strait_mesh::push::proxy::inbound_targets;
use strait_mesh::push::subset::SubsetFilter;
use strait_mesh::push::view::{Role, ViewKey};
use strait_mesh::push::{PushContext, Whereabouts};
use strait_model::{NetworkId, Proxy, ProxyType, VirtualHostDelivery};
use strait_rules::traffic::route::HttpRule;
use strait_rules::traffic::virtual_service_selection::RoutedService;
use strait_xds::list::SharedList;
use strait_xds::names::{OutboundName, RemotePodsName, port_number};
use strait_xds::resource::{All, Resource, ResourceSource, ResourceType};
use strait_xds::virtual_hosts;

/// The resources of one proxy at one version of the mesh.
pub struct ProxyConfig<'a> {
    context: &'a Arc<PushContext>,
    proxy: &'a Proxy,
    view: ViewKey,
    /// The port of an east-west gateway; `None` for other proxies.
    east_west_port: Option<u16>,
    cache: &'a Cache,
    /// Whether the proxy requests virtual hosts one by one, so that its routes have none.
    hosts_apart: bool,
    /// The last generated route of a proxy with separate virtual hosts. It is requested twice: with
    /// and without virtual hosts.
    last_whole: Option<Arc<Resource>>,
    /// Keeps the parts of a router's routes until the routes are generated again.
    retained_routes: Option<&'a RetainedRoutes>,
    /// The inbound configuration of a router, computed on first use.
    ingress: OnceCell<Option<NamedIngress<'a>>>,
}

impl<'a> ProxyConfig<'a> {
    /// Creates the configuration of `proxy`, which is in `network`.
    pub fn new(
        context: &'a Arc<PushContext>,
        proxy: &'a Proxy,
        network: NetworkId,
        cache: &'a Cache,
    ) -> Self {
        let east_west_port = cache.east_west_port(context, proxy);
        let role = if east_west_port.is_some() { Role::Gateway } else { Role::Client };
        let view = ViewKey::of(proxy, network, role).selected(context.selection(proxy));
        Self {
            context,
            proxy,
            view,
            east_west_port,
            cache,
            hosts_apart: false,
            last_whole: None,
            retained_routes: None,
            ingress: OnceCell::new(),
        }
    }

    /// Keeps the parts of a router's routes in the cache while `routes` exists, for callers that
    /// request routes repeatedly.
    pub fn holding(self, routes: &'a RetainedRoutes) -> Self {
        Self { retained_routes: Some(routes), ..self }
    }

    /// Sets the proxy's location once its pod is known.
    pub fn at(self, whereabouts: Whereabouts) -> Self {
        Self { view: self.view.at(whereabouts), ..self }
    }

    /// Separates virtual hosts from routes if the proxy requests them one by one.
    pub fn with_hosts_apart(self) -> Self {
        Self { hosts_apart: self.proxy.virtual_hosts == VirtualHostDelivery::OneByOne, ..self }
    }

    /// Returns the proxy's view for the comparison of views: see [`ViewKey::view_class`].
    pub fn view_class(&self) -> ViewKey {
        self.view.clone().view_class()
    }

    fn common(&self) -> SharedResources<'a> {
        SharedResources { context: self.context, cache: self.cache }
    }

    /// Returns the generator for proxyless gRPC if the client is a gRPC library.
    fn library(&self) -> Option<LibraryConfig<'_>> {
        let Self { context, cache, view, proxy, .. } = self;
        proxy.is_proxyless().then_some(LibraryConfig { context, view, cache })
    }

    /// Returns the servers of the Gateways that select a router, unless it is an east-west gateway.
    fn ingress(&self) -> Option<&NamedIngress<'a>> {
        let is_ingress = self.proxy.kind == ProxyType::Router && self.east_west_port.is_none();
        let made = || {
            let (context, proxy) = (self.context, self.proxy);
            let served = self.cache.served(context, &proxy.cluster, proxy.namespace());
            NamedIngress::new(IngressOutline::of(context, proxy, &served))
        };
        self.ingress.get_or_init(|| is_ingress.then(made)).as_ref()
    }

    /// Returns the servers of a router without the names of routes.
    fn ingress_outline(&self) -> Option<&IngressOutline<'a>> {
        self.ingress().map(|ingress| &ingress.outline)
    }

    fn clusters(&self) -> All {
        let context = self.context;
        let mut shared = None;
        if let Some(ingress) = self.ingress_outline() {
            let form = ClusterFormat::for_proxy(self.proxy);
            let to = ingress.destinations().into_iter();
            shared = Some(self.common().outbound_to(&self.view, &form, to));
        }
        if self.proxy.kind == ProxyType::Sidecar || self.east_west_port.is_some() {
            shared =
                Some(self.common().outbound(&self.view, &ClusterFormat::for_proxy(self.proxy)));
        }
        let mut own = Vec::new();
        if self.proxy.kind == ProxyType::Sidecar {
            let served = self.cache.served(context, &self.proxy.cluster, self.proxy.namespace());
            let targets = inbound_targets(context, self.proxy, &served);
            let inbound = cds::inbound_clusters(context, self.proxy, &targets);
            own.extend(
                cds::fixed(context, (self.view.ipv4, self.view.ipv6))
                    .into_iter()
                    .chain(inbound)
                    .map(Arc::new),
            );
        }
        if self.east_west_port.is_none() {
            own.extend(self.providers());
            let added =
                context.traffic.envoy_filters.clusters_for(self.proxy, &self.view.selection);
            let added = added.into_iter().map(|one| Resource::new(&*one.name, one.config.to_vec()));
            own.extend(added.map(Arc::new));
        }
        all(shared.unwrap_or_else(|| list(ResourceType::Cluster, Vec::new())), own)
    }

    /// Returns the upstream clusters of authorization providers, of services that users' filters
    /// query, and of tracing collectors. The proxy needs them whatever Sidecars and Gateways
    /// select.
    fn providers(&self) -> Vec<Arc<Resource>> {
        let access = self.context.access_of(self.proxy);
        let authorizers = Authorizers::of(self.context, self.proxy, &access);
        let reachable: Vec<_> = authorizers.reachable().map(|(_, one)| one).collect();
        let reports = SpanReport::for_proxy(self.context, self.proxy, &self.view.selection);
        let filters = &self.context.traffic.envoy_filters;
        let by_filters = filters.upstreams_queried_by(self.proxy, &self.view.selection);
        if reachable.is_empty() && reports.is_empty() && by_filters.is_empty() {
            return Vec::new();
        }
        let names = reachable.iter().map(|one| ext_authz::cluster(one));
        let names = names.chain(reports.iter().map(|one| one.cluster()));
        let names: BTreeSet<_> =
            names.chain(by_filters.iter().map(|one| one.name.to_string())).collect();
        let hosts = reachable.iter().map(|one| one.service.hostname());
        let hosts = hosts.chain(reports.iter().map(|one| &one.host));
        let by_filters = by_filters.iter().filter_map(|one| Some(&one.service.as_ref()?.0));
        let hosts: BTreeSet<_> = hosts.chain(by_filters).collect();
        let form = ClusterFormat::for_proxy(self.proxy);
        let clusters = self.common().outbound_to(&self.view, &form, hosts.into_iter());
        let named = clusters.resources().iter().filter(|one| names.contains(&*one.name));
        named.cloned().collect()
    }

    fn service(&self, host: &str) -> Option<&'_ Arc<MergedService>> {
        match self.view.role {
            Role::Client => self.context.service(host, &self.view.namespace),
            Role::Gateway => self.context.services.get(host),
        }
    }

    /// Returns the gateways to the pods of a headless service in another network.
    fn gateways_to_pods(&self, name: &RemotePodsName) -> Option<Resource> {
        let pods = self.context.remote_pods.of(&name.hostname)?;
        let pods = pods.clusters.get(&name.cluster)?;
        let gateways = gateways_to(self.context, &self.view, &name.cluster, pods);
        let name = name.to_string();
        let bytes = eds::encoded(&name, eds::Modes::Unstated, &gateways);
        Some(Resource::new(&*name, bytes))
    }

    fn assignment(&self, name: &str) -> Arc<Resource> {
        let context = self.context;
        if let Some(remote) = RemotePodsName::parse(name) {
            return Arc::new(self.gateways_to_pods(&remote).unwrap_or_else(|| eds::empty(name)));
        }
        let found = OutboundName::parts(name)
            .and_then(|(host, port, subset, sni)| Some((self.service(host)?, port, subset, sni)));
        let Some((service, port, subset, sni)) = found else {
            return Arc::new(eds::empty(name));
        };
        let hostname = service.hostname().clone();
        let all = OutboundName { hostname, port, subset: Arc::default(), sni };
        let key = (all.of_subset(subset), self.view.projected(context, service));
        let assignments = &self.cache.assignments;
        assignments.get(&key, |inputs| inputs.are_current(context, service)).unwrap_or_else(|| {
            let view = &key.1;
            let rules = context.rules_for(service);
            let subset_filter =
                SubsetFilter::new(&rules, view.rule(&rules, service), service, subset);
            let made = subset_filter.map_or_else(
                || eds::empty(name),
                |filter| eds::assigned(context, view, name, port, service, filter),
            );
            let made = Arc::new(made);
            assignments.put(key, ServiceInputs::new(context, service), Arc::clone(&made));
            made
        })
    }
}

impl ResourceSource for ProxyConfig<'_> {
    fn all(&mut self, kind: ResourceType) -> All {
        if self.proxy.is_proxyless() {
            return all(list(kind, Vec::new()), Vec::new());
        }
        match kind {
            ResourceType::Cluster => self.clusters(),
            ResourceType::Listener => self.listeners(),
            ResourceType::NameTable => all(self.name_table(), Vec::new()),
            ResourceType::Endpoint | ResourceType::Route | ResourceType::VirtualHost => {
                all(list(kind, Vec::new()), Vec::new())
            }
        }
    }

    fn is_by_name(&self) -> bool {
        self.proxy.is_proxyless()
    }

    fn one(&mut self, kind: ResourceType, name: &str) -> Option<Arc<Resource>> {
        if let Some(library) = self.library() {
            return match kind {
                ResourceType::Cluster => library.cluster(name),
                ResourceType::Endpoint => Some(self.assignment(name)),
                ResourceType::Listener => library.listener(name, self.proxy),
                ResourceType::Route => {
                    Some(library.route(name).unwrap_or_else(|| Arc::new(rds::empty(name))))
                }
                ResourceType::VirtualHost | ResourceType::NameTable => None,
            };
        }
        match kind {
            ResourceType::Endpoint => Some(self.assignment(name)),
            ResourceType::Route if self.hosts_apart => Some(self.route_without_hosts(name)),
            ResourceType::Route => Some(self.route(name)),
            ResourceType::VirtualHost => Some(self.whole_route(name)),
            ResourceType::Cluster | ResourceType::Listener | ResourceType::NameTable => None,
        }
    }

    fn is_assigned(&self, cluster: &Resource) -> bool {
        cds::uses_eds(&cluster.body.to_bytes())
    }
}

/// Returns the shared resources, and the proxy's own resources that have other names.
fn all(shared: Arc<SharedList>, mut own: Vec<Arc<Resource>>) -> All {
    sort(&mut own);
    let shared_names = shared.resources();
    own.retain(|one| shared_names.binary_search_by(|other| other.name.cmp(&one.name)).is_err());
    All { shared, own }
}

impl<'a> ProxyConfig<'a> {
    fn listeners(&self) -> All {
        let (context, proxy) = (self.context, self.proxy);
        let nothing = || list(ResourceType::Listener, Vec::new());
        let (shared, own) = match (proxy.kind, self.east_west_port) {
            (ProxyType::Sidecar, _) => {
                let (shared, mut own) = self.common().outbound_listeners(proxy, &self.view);
                let served = self.cache.served(context, &proxy.cluster, proxy.namespace());
                let targets = inbound_targets(context, proxy, &served);
                let inbound = lds::inbound(context, proxy, &targets, &self.cache.policies);
                own.extend(inbound.into_iter().map(Arc::new));
                (shared, own)
            }
            (ProxyType::Router, Some(port)) => {
                let form = ListenerFormat::for_proxy(proxy);
                let own = lds::gateway(context, (&self.view, form), port);
                (nothing(), own.into_iter().map(Arc::new).collect())
            }
            (ProxyType::Router, None) => {
                let class = self.common().class(&self.view);
                let encoded_policies = &self.cache.policies;
                let own = self.ingress_outline();
                let own = own.map(|ingress| lds::ingress(ingress, proxy, &class, encoded_policies));
                (nothing(), own.into_iter().flatten().map(Arc::new).collect())
            }
        };
        all(shared, own)
    }

    fn route(&self, name: &str) -> Arc<Resource> {
        if self.proxy.kind == ProxyType::Router {
            return Arc::new(self.ingress_route(name).unwrap_or_else(|| rds::empty(name)));
        }
        let class = self.common().class(&self.view);
        match own_domain(self.context, self.proxy) {
            Ok(namespace) => self.common().route(&class, Some(namespace), name),
            Err(domain) => self.common().route_in(&class, domain, name),
        }
    }

    /// Returns the route configuration for a proxy that requests virtual hosts one by one.
    fn route_without_hosts(&mut self, name: &str) -> Arc<Resource> {
        if self.proxy.kind == ProxyType::Sidecar
            && let Some(port) = port_number(name)
        {
            let (class, domain) =
                (self.common().class(&self.view), own_domain(self.context, self.proxy));
            return Arc::new(self.common().route_outline(&class, domain, port));
        }
        Arc::new(virtual_hosts::without_hosts(&self.whole_route(name)))
    }

    fn whole_route(&mut self, name: &str) -> Arc<Resource> {
        let last = self.last_whole.take().filter(|last| *last.name == *name);
        let whole = last.unwrap_or_else(|| self.route(name));
        self.last_whole = Some(Arc::clone(&whole));
        whole
    }

    /// Returns the route configuration with this name if a port of the proxy's Gateways uses it.
    fn ingress_route(&self, name: &str) -> Option<Resource> {
        let ingress = self.ingress()?;
        let servers = ingress.servers_for(name)?;
        let class = self.common().class(&self.view);
        let caches = (&self.cache.chunks, &self.cache.route_lists);
        let (routes, parts) =
            rds::route_for_servers(&ingress.outline, &class, name, servers, caches);
        if let Some(retained) = self.retained_routes {
            retained.hold(name, parts);
        }
        Some(routes)
    }

    /// Returns the object and the rule of each route of a virtual host in a router's routes, in
    /// order.
    fn ingress_rules(
        &self,
        name: &str,
        virtual_host: &str,
    ) -> Vec<(&'a Arc<RoutedService>, &'a HttpRule)> {
        let Some(ingress) = self.ingress() else { return Vec::new() };
        let Some((_, servers)) = ingress.servers_for(name) else { return Vec::new() };
        let class = self.common().class(&self.view);
        rds::rules_at(&ingress.outline, &class, virtual_host, &servers, &self.cache.route_lists)
    }

    /// Returns the name table. It is generated only for proxies that request it.
    fn name_table(&self) -> Arc<SharedList> {
        self.common().names(&self.view, self.proxy.takes_given_addresses)
    }
}
