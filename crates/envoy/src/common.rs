//! Resources that many proxies share, keyed by the parts of a view that affect them.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::cache::{Cache, Pods, SameMesh, Scopes, ServiceInputs, Span, projected_namespace};
use super::cds::ClusterFormat;
use super::class::{Class, ListenerFormat, class_for};
use super::lds::PodListenerKey;
use super::{cds, lds, nds, rds};
use strait_mesh::aggregate::MergedService;
use strait_mesh::push::PushContext;
use strait_mesh::push::addresses::{ListenAddresses, addresses};
use strait_mesh::push::imports::Imports;
use strait_mesh::push::view::{Role, ViewKey, is_exported};
use strait_model::policy::RemoteEjection;
use strait_model::{ClusterId, Hostname, Namespace, NetworkId, Proxy, Resolution};
use strait_xds::list::SharedList;
use strait_xds::names::{OutboundName, port_number};
use strait_xds::resource::{Resource, ResourceType};
use strait_xds::session::RESPONSE_BYTES;

/// Generates and caches resources that many proxies share.
#[derive(Clone, Copy)]
pub(super) struct SharedResources<'a> {
    pub(super) context: &'a Arc<PushContext>,
    pub(super) cache: &'a Cache,
}

impl SharedResources<'_> {
    pub(super) fn scopes(&self) -> Scopes {
        self.cache.scopes.at((), self.context.definitions, || Scopes::from_context(self.context))
    }

    /// Returns the inputs of addresses, shared listeners and routes, apart from the mesh.
    pub(super) fn class(&self, view: &ViewKey) -> Class {
        Class { namespace: projected_namespace(self.context, &view.namespace), ..class_for(view) }
    }

    pub(super) fn addresses(&self, class: &Class) -> Arc<ListenAddresses> {
        let Class { cluster, namespace, selection, families } = class;
        self.cache.addresses.at(class.clone(), self.context.definitions, || {
            Arc::new(addresses(self.context, cluster, (namespace, selection), *families))
        })
    }

    /// Returns the upstream clusters of all services.
    pub(super) fn outbound(&self, view: &ViewKey, form: &ClusterFormat) -> Arc<SharedList> {
        let scopes = self.scopes();
        let view = scopes.projected(self.context, view);
        let form = form.projected(scopes.by_name, true);
        let key = (view.clone(), form.clone());
        self.cache.outbound.at(key, self.context.definitions, || self.all_outbound(&view, &form))
    }

    /// Returns the upstream clusters of the given services only.
    pub(super) fn outbound_to<'s>(
        &self,
        view: &ViewKey,
        form: &ClusterFormat,
        hosts: impl Iterator<Item = &'s Hostname>,
    ) -> Arc<SharedList> {
        let services =
            hosts.filter_map(|host| self.context.service(host.as_str(), &view.namespace));
        let scopes = self.scopes();
        let view = scopes.projected(self.context, view);
        self.outbound_clusters(&view, &form.projected(scopes.by_name, true), services, false)
    }

    fn all_outbound(&self, whole: &ViewKey, form: &ClusterFormat) -> Arc<SharedList> {
        // A gateway does not forward to services that only one namespace may use.
        let no_namespace = Namespace::default();
        let namespace = match whole.role {
            Role::Client => &whole.namespace,
            Role::Gateway => &no_namespace,
        };
        let services = self.context.services_of(namespace);
        self.outbound_clusters(whole, form, services, whole.role == Role::Client)
    }

    /// Returns the upstream clusters of the services that a proxy may use. `is_scoped` states
    /// whether the proxy follows Sidecars.
    fn outbound_clusters<'s>(
        &self,
        whole: &ViewKey,
        form: &ClusterFormat,
        services: impl Iterator<Item = &'s Arc<MergedService>>,
        is_scoped: bool,
    ) -> Arc<SharedList> {
        let context = self.context;
        let mut clusters = Vec::new();
        let abroad = self.clusters_abroad(&whole.network);
        let marks_gateways = context.policy.remote_ejection() == RemoteEjection::PerNetwork;
        let imports = is_scoped.then(|| Imports::of(context, whole));
        let by_port = imports.filter(Imports::is_by_port);
        for service in services {
            let is_excluded = imports.is_some_and(|imports| !imports.has(service));
            if is_excluded || (whole.role == Role::Client && !self.may_use(whole, service)) {
                continue;
            }
            let abroad = whole.role == Role::Client
                && is_exported(context, service)
                && service.by_cluster.keys().any(|cluster| abroad.contains(cluster));
            let mut view = whole.projected(context, service);
            if !matches!(service.primary.resolution, Resolution::Headless | Resolution::ByName(_)) {
                // An upstream cluster depends on endpoint locations only if it depends on
                // endpoints.
                view = ViewKey {
                    network: NetworkId::default(),
                    visible_networks: None,
                    ipv4: true,
                    ipv6: true,
                    node: None,
                    locality: None,
                    ..view
                };
            }
            if context.remote_pods.of(service.hostname()).is_some() {
                view.network = whole.network.clone();
            }
            let by_name = matches!(service.primary.resolution, Resolution::ByName(_));
            let form = form.projected(by_name, abroad && marks_gateways);
            let key = (service.hostname().clone(), view.clone(), form.clone(), abroad);
            let inputs = ServiceInputs::new(context, service);
            let shared = self.cache.clusters.get_or_make(key, inputs, || {
                let client = cds::ClusterInputs { context, view: &view, form: &form, abroad };
                client.outbound(service).into_iter().map(Arc::new).collect()
            });
            let is_given = |resource: &&Arc<Resource>| {
                let port = || Some(OutboundName::parts(&resource.name)?.1);
                by_port
                    .is_none_or(|by_port| port().is_none_or(|port| by_port.has_port(service, port)))
            };
            clusters.extend(shared.iter().filter(is_given).cloned());
        }
        list(ResourceType::Cluster, clusters)
    }

    /// Returns the clusters that are in another network.
    fn clusters_abroad(&self, network: &NetworkId) -> BTreeSet<&ClusterId> {
        let clusters = self.context.clusters.clusters.keys();
        clusters.filter(|id| self.context.network_of_cluster(id) != *network).collect()
    }

    /// Returns whether a client may use the service.
    fn may_use(&self, view: &ViewKey, service: &MergedService) -> bool {
        self.context.shows(service, &view.namespace, &view.cluster)
    }

    /// Returns the outbound listeners of a sidecar: the shared list, and the remaining listeners.
    pub(super) fn outbound_listeners(
        &self,
        proxy: &Proxy,
        view: &ViewKey,
    ) -> (Arc<SharedList>, Vec<Arc<Resource>>) {
        let form = ListenerFormat::for_proxy(proxy);
        let pods = self.pods(&self.projected(view), form);
        let is_at = |address| pods.listeners.binary_search_by_key(address, |one| one.0).is_ok();
        if !proxy.addresses.iter().any(is_at) {
            return (Arc::clone(&pods.list), Vec::new());
        }
        // A proxy does not need a listener for its own pod.
        let others = pods.listeners.iter().filter(|(at, _)| !proxy.addresses.contains(at));
        let others = others.map(|(_, listener)| Arc::clone(listener)).collect();
        (self.listeners(&self.class(view), form), others)
    }

    /// Returns the listeners that all sidecars of a class have, without the listeners for pods.
    pub(super) fn listeners(&self, class: &Class, form: ListenerFormat) -> Arc<SharedList> {
        self.cache.listeners.at((class.clone(), form), self.context.definitions, || {
            let addresses = self.addresses(class);
            let listeners = lds::shared(self.context, (class, form), &addresses);
            list(ResourceType::Listener, listeners.into_iter().map(Arc::new).collect())
        })
    }

    /// Returns the parts of a view that affect the pods reachable from it.
    pub(super) fn projected(&self, view: &ViewKey) -> ViewKey {
        let ViewKey { cluster, ipv4, ipv6, .. } = view;
        ViewKey {
            cluster: cluster.clone(),
            ipv4: *ipv4,
            ipv6: *ipv6,
            locality: None,
            role: Role::Client,
            ..self.scopes().projected(self.context, view)
        }
    }

    /// Returns the listeners for pods of headless services. The view must be
    /// [projected](Self::projected).
    pub(super) fn pods(&self, view: &ViewKey, form: ListenerFormat) -> Arc<Pods> {
        let context = self.context;
        self.cache.pods.at((view.clone(), form), context.definitions, || {
            let class = class_for(view);
            let (shared, addresses) = (self.listeners(&class, form), self.addresses(&class));
            let mesh = SameMesh::from_context(context);
            let keep = |key: PodListenerKey, make: &dyn Fn() -> Option<Resource>| {
                self.cache.pod_listeners.get(&key, |cached| *cached == mesh).or_else(|| {
                    let made = Arc::new(make()?);
                    self.cache.pod_listeners.put(key, mesh.clone(), Arc::clone(&made));
                    Some(made)
                })
            };
            let pods = lds::pods(context, (view, form), &addresses, shared.resources(), keep);
            let list = if pods.is_empty() {
                shared
            } else {
                let pods = pods.iter().map(|(_, listener)| listener);
                list(
                    ResourceType::Listener,
                    shared.resources().iter().chain(pods).cloned().collect(),
                )
            };
            Arc::new(Pods { list, listeners: pods.into() })
        })
    }

    /// Returns the route configuration with this name for sidecars of a class. With a `namespace`,
    /// the sidecars are in that namespace's DNS domain; otherwise they are in a DNS domain without
    /// services.
    pub(super) fn route(
        &self,
        class: &Class,
        namespace: Option<&Namespace>,
        name: &str,
    ) -> Arc<Resource> {
        let key = (class.clone(), namespace.cloned(), name.into());
        let is_current = |span: &Span| span.contains(self.context.definitions);
        if let Some(cached) = self.cache.routes.get(&key, is_current) {
            return cached;
        }
        let make = || {
            if let Some(port) = rds::proxy_port(name) {
                let domain = namespace.map(|namespace| self.namespace_domain(namespace));
                return self.proxy_route(class, domain.as_deref(), port);
            }
            Arc::new(match port_number(name) {
                Some(port) => self.port_route(class, namespace, port),
                None => {
                    let (addresses, lists) = (self.addresses(class), &self.cache.route_lists);
                    rds::service_routes(self.context, &addresses, class, name, lists)
                        .unwrap_or_else(|| rds::empty(name))
                }
            })
        };
        // Clients choose the names in requests, so only names that occur in listeners are cached.
        if !rds::is_named(&self.addresses(class), &class.cluster, name) {
            return make();
        }
        self.cache.routes.at(key, self.context.definitions, make)
    }

    fn port_route(&self, class: &Class, namespace: Option<&Namespace>, port: u16) -> Resource {
        let base = self.base(class, port, namespace.is_some());
        match namespace {
            Some(namespace) => {
                base.route_in(self.context, &self.namespace_domain(namespace), &self.cache.chunks)
            }
            None => base.route(),
        }
    }

    fn namespace_domain(&self, namespace: &Namespace) -> String {
        format!("{namespace}.svc.{}", self.context.settings.domain)
    }

    fn proxy_route(&self, class: &Class, domain: Option<&str>, port: u16) -> Arc<Resource> {
        let made = rds::proxy_routes(self.context, class, domain, port, &self.cache.route_lists);
        Arc::new(made.unwrap_or_else(|| rds::empty(&rds::proxy_route_name(port))))
    }

    /// Returns the input of the routes of a port, either in the DNS domains of namespaces
    /// (`completes`) or in any other.
    pub(super) fn base(&self, class: &Class, port: u16, completes: bool) -> Arc<rds::RouteBase> {
        let key = (class.clone(), port, completes);
        let caches = (&self.cache.chunks, &self.cache.route_lists);
        self.cache.bases.at(key.clone(), self.context.definitions, || {
            let before = self.cache.base_before_rules(&key, self.context.definitions);
            let amended =
                before.and_then(|(base, hosts)| base.amended(self.context, class, &hosts, caches));
            amended.unwrap_or_else(|| {
                let target = (class, port, completes);
                Arc::new(rds::RouteBase::new(self.context, self.addresses(class), target, caches))
            })
        })
    }

    /// Returns the route configuration with this name in an arbitrary DNS domain, which clients
    /// choose.
    pub(super) fn route_in(&self, class: &Class, domain: &str, name: &str) -> Arc<Resource> {
        if let Some(port) = rds::proxy_port(name) {
            return self.proxy_route(class, Some(domain), port);
        }
        if let Some(port) = port_number(name)
            && rds::is_any_shortened(&self.addresses(class), domain)
        {
            let base = self.base(class, port, true);
            return Arc::new(base.route_in(self.context, domain, &self.cache.chunks));
        }
        self.route(class, None, name)
    }

    /// Returns the route configuration of a port without its virtual hosts, for a proxy in the DNS
    /// domain of a namespace or in another domain.
    pub(super) fn route_outline(
        &self,
        class: &Class,
        domain: Result<&Namespace, &str>,
        port: u16,
    ) -> Resource {
        // Uses the base that the proxy's route is made from, so that no second base is generated.
        let completes = match domain {
            Ok(_) => true,
            Err(domain) => rds::is_any_shortened(&self.addresses(class), domain),
        };
        self.base(class, port, completes).outline()
    }

    /// Returns the name table.
    pub(super) fn names(&self, view: &ViewKey, given: bool) -> Arc<SharedList> {
        let context = self.context;
        let view = self.projected(view);
        self.cache.names.at((view.clone(), given), context.definitions, || {
            let addresses = &self.addresses(&class_for(&view));
            let names = nds::NameTableInputs::new(context, &view, addresses, given);
            let table = names.table(&self.cache.chunks);
            list(ResourceType::NameTable, vec![Arc::new(table)])
        })
    }
}

/// Returns a list of shared resources.
pub(super) fn list(kind: ResourceType, mut resources: Vec<Arc<Resource>>) -> Arc<SharedList> {
    sort(&mut resources);
    SharedList::new(kind, resources.into(), RESPONSE_BYTES)
}

/// Sorts the resources by name and keeps the first of each name.
pub(super) fn sort(resources: &mut Vec<Arc<Resource>>) {
    resources.sort_by(|a, b| a.name.cmp(&b.name));
    resources.dedup_by(|a, b| a.name == b.name);
}

/// Returns the proxy's namespace if the proxy is in its DNS domain `NAMESPACE.svc.DOMAIN`.
/// Otherwise returns the proxy's DNS domain.
pub(super) fn own_domain<'a>(
    context: &PushContext,
    proxy: &'a Proxy,
) -> Result<&'a Namespace, &'a str> {
    let namespace = proxy.namespace();
    let rest = proxy.dns_domain.strip_prefix(namespace.as_str());
    let domain = rest.and_then(|rest| rest.strip_prefix(".svc."));
    if domain == Some(context.settings.domain.as_str()) {
        Ok(namespace)
    } else {
        Err(&proxy.dns_domain)
    }
}
