//! Resources for gRPC libraries, which use xDS without a proxy.
//!
//! A library supports a subset of Envoy's configuration and refuses a resource with any other
//! content (gRFC A27 to A41). It requests all resources by name. A client requests a listener by
//! the dialled `HOST:PORT`. A server requests a listener by a name that its bootstrap's template
//! builds from its listening address.
//!
//! | name | resource |
//! |---|---|
//! | listener `HOST:PORT`, `HOST` | for a client: the route configuration of that service's port |
//! | listener `…IP:PORT` | for a server: equal for all ports of a pod, with mTLS or plain text |
//! | route `outbound|PORT||HOST` | the routes that rules define for the service; without rules, all calls go to the upstream cluster of that name |
//! | upstream cluster `outbound|PORT|SUBSET|HOST` | endpoints by EDS, or one name that the library resolves |
//! | upstream cluster `UnknownService` | no endpoints: the destination of routes without a valid destination |
//!
//! Routes never name a missing upstream cluster: a library would delay all calls to the service
//! until it exists.

mod policy;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use prost::{Message, Name};

use super::cache::{Cache, ServiceInputs};
use super::cds::{peers, single_endpoint, socket_address};
use super::common::SharedResources;
use super::encoding::{any, encode};
use super::rbac;
use super::rbac_rules::EncodedPolicies;
use super::rds::{self, NOWHERE, completed};
use super::tls::{client_trust_domains, library as tls};
use strait_mesh::aggregate::MergedService;
use strait_mesh::push::PushContext;
use strait_mesh::push::subset::SubsetFilter;
use strait_mesh::push::view::{Assignment, ViewKey, by_library_with_mtls};
use strait_model::{ByName, Protocol, Proxy, Resolution, TLS_MODE_LABEL, TlsMode};
use strait_proto::envoy::envoy::config::cluster::v3 as cluster;
use strait_proto::envoy::envoy::config::core::v3 as core;
use strait_proto::envoy::envoy::config::endpoint::v3 as endpoint;
use strait_proto::envoy::envoy::config::listener::v3 as listener;
use strait_proto::envoy::envoy::config::route::v3 as route;
use strait_proto::envoy::envoy::extensions::filters::http::fault::v3::HttpFault;
use strait_proto::envoy::envoy::extensions::filters::http::router::v3::Router;
use strait_proto::envoy::envoy::extensions::filters::network::http_connection_manager::v3 as hcm;
use strait_proto::envoy::google::protobuf::UInt32Value;
use strait_rules::access::PeerMode;
use strait_rules::traffic::policy::ClientTls;
use strait_xds::names::{OutboundName, port_number};
use strait_xds::resource::{Resource, ResourceType};

/// Generates the resources of one library client.
pub(super) struct LibraryConfig<'a> {
    pub(super) context: &'a Arc<PushContext>,
    pub(super) view: &'a ViewKey,
    pub(super) cache: &'a Cache,
}

impl LibraryConfig<'_> {
    /// Returns the upstream cluster with this name, or `None` if it does not exist or the library
    /// does not support it.
    pub(super) fn cluster(&self, name: &str) -> Option<Arc<Resource>> {
        if name == NOWHERE {
            return Some(Arc::new(encode(name, &by_eds(name))));
        }
        let (service, port, subset) = self.outbound(name)?;
        self.cached(ResourceType::Cluster, name, service, port, || {
            let part = CalledPart { service, port, subset };
            Some(encode(name, &upstream_cluster(self.context, self.view, name, part)?))
        })
    }

    /// Returns the route configuration with this name, or `None` if it belongs to no service.
    ///
    /// The library requests the routes of one service, so the virtual host matches all host names.
    pub(super) fn route(&self, name: &str) -> Option<Arc<Resource>> {
        let (service, port, _) = self.outbound(name).filter(|(.., subset)| subset.is_empty())?;
        if !is_callable(self.view, service, port) {
            return None;
        }
        let mut host = virtual_host(name, Vec::new());
        let fields = self.routes(service, port);
        host.merge(&*fields).expect("it was written here");
        host.routes.iter_mut().for_each(|route| self.replace_unknown_clusters(route));
        let routes = route::RouteConfiguration {
            name: name.into(),
            virtual_hosts: vec![host],
            ..Default::default()
        };
        let made = encode(name, &routes);
        // Clients share equal routes. The content includes the destinations, so comparing the
        // content is sufficient.
        let key = (Arc::clone(&made.name), made.version);
        Some(self.cache.library_routes.get_or_make(key, (), || Arc::new(made)))
    }

    /// Returns the routes of a service's port as fields of a virtual host. HTTP rules apply only to
    /// ports on which they apply for sidecars.
    fn routes(&self, service: &MergedService, port: u16) -> Bytes {
        let Self { context, view, cache } = self;
        if !rds::is_routed(service, &view.cluster, port) {
            let name = OutboundName::sidecar(service.hostname().clone(), port);
            return rds::unruled(&name.to_string());
        }
        let class = SharedResources { context, cache }.class(view);
        rds::library_routes(context, &class, (service.hostname(), port), &cache.route_lists)
    }

    /// Replaces missing upstream clusters in a route. If a cluster occurs twice, the weights are
    /// added.
    fn replace_unknown_clusters(&self, route: &mut route::Route) {
        use route::route_action::ClusterSpecifier;
        let replace_unknown = |name: &mut String| {
            if self.cluster(name).is_none() {
                *name = NOWHERE.to_owned();
            }
        };
        let Some(route::route::Action::Route(action)) = &mut route.action else { return };
        match &mut action.cluster_specifier {
            Some(ClusterSpecifier::Cluster(name)) => replace_unknown(name),
            Some(ClusterSpecifier::WeightedClusters(several)) => {
                let mut shares: BTreeMap<String, u32> = BTreeMap::new();
                for mut cluster in std::mem::take(&mut several.clusters) {
                    replace_unknown(&mut cluster.name);
                    let share = shares.entry(cluster.name).or_default();
                    *share = share.saturating_add(cluster.weight.map_or(0, |weight| weight.value));
                }
                let weighted = |(name, value)| route::weighted_cluster::ClusterWeight {
                    name,
                    weight: Some(UInt32Value { value }),
                    ..Default::default()
                };
                several.clusters = shares.into_iter().map(weighted).collect();
            }
            _ => {}
        }
    }

    /// Returns the listener with this name: of a service that clients in this DNS domain call by
    /// the name, otherwise of a server.
    pub(super) fn listener(&self, name: &str, proxy: &Proxy) -> Option<Arc<Resource>> {
        if let Some((service, port)) = self.dialled(name, &proxy.dns_domain) {
            return self.cached(ResourceType::Listener, name, service, port, || {
                Some(encode(name, &client_listener(name, service, port)))
            });
        }
        let (host, port) = listening(name)?;
        let served = ServedAs::new(self.context, proxy, port, &self.cache.policies);
        Some(Arc::new(encode(name, &server_listener(name, host, port, served))))
    }

    /// Returns the service, port and subset in the name of an upstream cluster.
    fn outbound<'n>(&self, name: &'n str) -> Option<(&Arc<MergedService>, u16, &'n str)> {
        let (host, port, subset, sni) = OutboundName::parts(name)?;
        let service = self.visible(host).filter(|_| !sni)?;
        Some((service, port, subset))
    }

    /// Returns the service and port that a client dials by this name. Without a port, the service
    /// must have only one.
    pub(super) fn dialled(
        &self,
        name: &str,
        dns_domain: &str,
    ) -> Option<(&Arc<MergedService>, u16)> {
        let (host, port) = match name.rsplit_once(':') {
            Some((host, port)) => (host, Some(port_number(port)?)),
            None => (name, None),
        };
        let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        let names = completed(&host, dns_domain);
        let service = names.iter().find_map(|name| self.visible(name))?;
        let mut ports = service.ports_in(&self.view.cluster).map(|port| port.number);
        let port = match port {
            Some(port) => port,
            None => ports.next().filter(|_| ports.next().is_none())?,
        };
        is_callable(self.view, service, port).then_some((service, port))
    }

    /// Returns the service with this full name if the client may use it.
    fn visible(&self, host: &str) -> Option<&Arc<MergedService>> {
        let service = self.context.service(host, &self.view.namespace)?;
        let is_visible = self.context.shows(service, &self.view.namespace, &self.view.cluster);
        is_visible.then_some(service)
    }

    /// Returns the cached result of `make`, or calls `make`.
    fn cached(
        &self,
        kind: ResourceType,
        name: &str,
        service: &Arc<MergedService>,
        port: u16,
        make: impl FnOnce() -> Option<Resource>,
    ) -> Option<Arc<Resource>> {
        let context = self.context;
        let outbound_name = OutboundName::sidecar(service.hostname().clone(), port);
        let is_by_place = service.has_ports_by_cluster()
            || by_name(service).is_some()
            || context.traffic.is_by_namespace(service.hostname().as_str());
        if is_by_place {
            return make().map(Arc::new);
        }
        let key = (kind, Arc::from(name), outbound_name, self.view.grpc);
        let found = self.cache.library.get(&key, |inputs| inputs.are_current(context, service));
        found.or_else(|| {
            let made = Arc::new(make()?);
            self.cache.library.put(key, ServiceInputs::new(context, service), Arc::clone(&made));
            Some(made)
        })
    }
}

/// Returns whether a library supports an upstream cluster for a port: the service has no original
/// destination, is no alias, and resolves at most one name.
fn is_callable(view: &ViewKey, service: &MergedService, port: u16) -> bool {
    let own = service.port_in(&view.cluster, port);
    let is_served = own.is_some_and(|port| port.protocol != Protocol::Udp);
    is_served
        && match &service.primary.resolution {
            Resolution::Alias(_) | Resolution::Passthrough => false,
            Resolution::ByName(_) => named(view, service, port, SubsetFilter::default()).is_some(),
            _ => true,
        }
}

fn by_name(service: &MergedService) -> Option<&ByName> {
    match &service.primary.resolution {
        Resolution::ByName(by_name) => Some(by_name),
        _ => None,
    }
}

/// Returns the only name of a service, its port, and whether it is reached with mTLS.
fn named<'a>(
    view: &ViewKey,
    service: &'a MergedService,
    number: u16,
    subset: SubsetFilter<'_>,
) -> Option<(&'a str, u16, TlsMode)> {
    let mut all = by_name(service)?.endpoints.iter().filter(|one| subset.contains_named(one));
    let endpoint = all.next().filter(|_| all.next().is_none())?;
    let is_near = endpoint.network.as_ref().is_none_or(|network| *network == view.network);
    let own = service.port(number)?;
    let port = *endpoint.ports.get(&own.name)?;
    (is_near && !endpoint.is_socket()).then_some((&*endpoint.address, port, endpoint.tls_mode))
}

/// A service or a subset of it, at a port.
#[derive(Clone, Copy)]
struct CalledPart<'a> {
    service: &'a MergedService,
    port: u16,
    /// The name of the subset; empty for the entire service.
    subset: &'a str,
}

/// Returns the upstream cluster of a part of a service, or `None` if the part does not exist or the
/// library does not support it.
fn upstream_cluster(
    context: &PushContext,
    view: &ViewKey,
    name: &str,
    CalledPart { service, port, subset }: CalledPart<'_>,
) -> Option<cluster::Cluster> {
    use cluster::cluster::{ClusterDiscoveryType, DiscoveryType};
    if !is_callable(view, service, port) {
        return None;
    }
    let has_mtls = view.grpc.is_some_and(|library| library.mtls);
    let may_speak_mtls = has_mtls && context.mesh.enable_auto_mtls;
    // With an unknown TLS context, a library would continue in plain text.
    let rules = context.rules_for(service);
    let rule = view.rule(&rules, service);
    let part = SubsetFilter::new(&rules, rule, service, subset)?;
    let policy = rule.map(|rule| rule.resolved(subset, port)).unwrap_or_default();
    let policy = policy.or_usual(&context.mesh.usual_limits);
    let ruled = policy.tls.clone();
    let required = match ruled.as_deref() {
        None | Some(ClientTls::Disable) => None,
        Some(ClientTls::Mesh(server)) if has_mtls => Some(server),
        Some(ClientTls::Mesh(_) | ClientTls::Foreign(_) | ClientTls::Impossible) => return None,
    };
    let (mut cluster, mtls) = if by_name(service).is_some() {
        let (address, port, mode) = named(view, service, port, part)?;
        let kind = ClusterDiscoveryType::Type(DiscoveryType::LogicalDns.into());
        let cluster = cluster::Cluster {
            name: name.into(),
            cluster_discovery_type: Some(kind),
            load_assignment: Some(single_endpoint(name, socket_address(address.into(), port))),
            ..Default::default()
        };
        (cluster, may_speak_mtls && mode == TlsMode::Istio)
    } else {
        (by_eds(name), by_library_with_mtls(context, view, service))
    };
    let mtls = required.is_some() || (mtls && ruled.is_none());
    let socket = || {
        let (accounts, domains) = peers(context, service);
        match required.map(|server| &*server.subject_alt_names) {
            None | Some([]) => tls::upstream(accounts.iter().map(|id| &**id), &domains),
            Some(names) => tls::upstream(names.iter().map(|name| &**name), &domains),
        }
    };
    cluster.transport_socket = mtls.then(socket);
    policy::hold_to(&mut cluster, &policy, view.grpc);
    Some(cluster)
}

/// Returns an upstream cluster with endpoints by EDS.
fn by_eds(name: &str) -> cluster::Cluster {
    use cluster::cluster::{ClusterDiscoveryType, DiscoveryType, EdsClusterConfig};
    let eds = EdsClusterConfig { eds_config: Some(by_ads()), ..Default::default() };
    cluster::Cluster {
        name: name.into(),
        cluster_discovery_type: Some(ClusterDiscoveryType::Type(DiscoveryType::Eds.into())),
        eds_cluster_config: Some(eds),
        ..Default::default()
    }
}

/// Returns an assignment for a library. A library ignores localities without a weight, and refuses
/// an assignment with duplicate addresses or without a locality.
pub(super) fn assignment(name: &str, given: &Assignment) -> endpoint::ClusterLoadAssignment {
    let mut addresses = std::collections::HashSet::new();
    let mut last = None;
    let mut priority = 0;
    let mut groups = Vec::new();
    for group in &given.localities {
        let mut members = Vec::new();
        let mut sum = 0_u32;
        for member in &group.members {
            if !addresses.insert((member.address, member.port)) {
                continue;
            }
            sum = sum.saturating_add(member.weight);
            let host = endpoint::Endpoint {
                address: Some(socket_address(member.address.to_string(), member.port)),
                ..Default::default()
            };
            members.push(endpoint::LbEndpoint {
                host_identifier: Some(endpoint::lb_endpoint::HostIdentifier::Endpoint(host)),
                load_balancing_weight: Some(UInt32Value { value: member.weight }),
                ..Default::default()
            });
        }
        if members.is_empty() {
            continue;
        }
        // Priorities must be consecutive, so omitted localities leave no gap.
        if last.replace(group.priority).is_some_and(|before| before != group.priority) {
            priority += 1;
        }
        let locality = core::Locality {
            region: group.locality.region.to_string(),
            zone: group.locality.zone.to_string(),
            sub_zone: group.locality.subzone.to_string(),
        };
        groups.push(endpoint::LocalityLbEndpoints {
            locality: Some(locality),
            lb_endpoints: members,
            load_balancing_weight: Some(UInt32Value { value: group.weight.unwrap_or(sum) }),
            priority,
            ..Default::default()
        });
    }
    endpoint::ClusterLoadAssignment {
        cluster_name: name.into(),
        endpoints: groups,
        ..Default::default()
    }
}

/// Returns a virtual host for all host names.
fn virtual_host(name: &str, routes: Vec<route::Route>) -> route::VirtualHost {
    let domains = vec!["*".into()];
    route::VirtualHost { name: name.into(), domains, routes, ..Default::default() }
}

fn client_listener(name: &str, service: &MergedService, port: u16) -> listener::Listener {
    let routes = OutboundName::sidecar(service.hostname().clone(), port).to_string();
    let mut manager = manager(hcm::http_connection_manager::RouteSpecifier::Rds(hcm::Rds {
        route_config_name: routes,
        config_source: Some(by_ads()),
    }));
    // The fault filter has no effect until a route uses it. It is present in advance.
    manager.http_filters.insert(0, filter(rds::FAULT, &HttpFault::default()));
    let api = listener::ApiListener { api_listener: Some(any(&manager)) };
    listener::Listener { name: name.into(), api_listener: Some(api), ..Default::default() }
}

/// Returns the listener of a server at its address. Clients cannot select a chain, so one chain
/// accepts all connections.
fn server_listener(name: &str, host: &str, port: u16, served: ServedAs) -> listener::Listener {
    use route::route::Action::NonForwardingAction;
    let ServedAs { mtls, guards } = served;
    let everything = route::RouteMatch {
        path_specifier: Some(route::route_match::PathSpecifier::Prefix(String::new())),
        ..Default::default()
    };
    let route = route::Route {
        r#match: Some(everything),
        action: Some(NonForwardingAction(route::NonForwardingAction {})),
        ..Default::default()
    };
    let catch_all = virtual_host("inbound", vec![route]);
    let routes = route::RouteConfiguration { virtual_hosts: vec![catch_all], ..Default::default() };
    let mut manager = manager(hcm::http_connection_manager::RouteSpecifier::RouteConfig(routes));
    manager.http_filters.splice(..0, guards);
    let filter = listener::Filter {
        name: "envoy.filters.network.http_connection_manager".into(),
        config_type: Some(listener::filter::ConfigType::TypedConfig(any(&manager))),
    };
    let chain = listener::FilterChain {
        name: if mtls { "mtls" } else { "plain" }.into(),
        filters: vec![filter],
        transport_socket: mtls.then(tls::downstream),
        ..Default::default()
    };
    listener::Listener {
        name: name.into(),
        address: Some(socket_address(host.into(), port)),
        default_filter_chain: Some(chain),
        traffic_direction: core::TrafficDirection::Inbound.into(),
        ..Default::default()
    }
}

fn manager(routes: hcm::http_connection_manager::RouteSpecifier) -> hcm::HttpConnectionManager {
    let router = filter("envoy.filters.http.router", &Router::default());
    hcm::HttpConnectionManager {
        route_specifier: Some(routes),
        http_filters: vec![router],
        ..Default::default()
    }
}

fn filter<M: Message + Name>(name: &str, config: &M) -> hcm::HttpFilter {
    hcm::HttpFilter {
        name: name.into(),
        config_type: Some(hcm::http_filter::ConfigType::TypedConfig(any(config))),
        ..Default::default()
    }
}

fn by_ads() -> core::ConfigSource {
    core::ConfigSource {
        config_source_specifier: Some(core::config_source::ConfigSourceSpecifier::Ads(
            core::AggregatedConfigSource {},
        )),
        resource_api_version: core::ApiVersion::V3.into(),
        ..Default::default()
    }
}

/// Returns the listening address of a server from the end of the requested name, after any prefix
/// that its bootstrap adds. The server compares the address as text.
fn listening(name: &str) -> Option<(&str, u16)> {
    let end = name.rsplit(['/', '=']).next()?;
    let socket: SocketAddr = end.parse().ok()?;
    let host = end.rsplit_once(':')?.0;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    Some((host, socket.port()))
}

/// The access settings of a server.
struct ServedAs {
    /// Whether the server accepts only mTLS or only plain text. Its single chain cannot distinguish
    /// the two.
    mtls: bool,
    /// The access filters.
    guards: Vec<hcm::HttpFilter>,
}

impl ServedAs {
    /// Returns the access settings that policies define. In PERMISSIVE mode, the TLS mode label of
    /// the pod decides, because clients of the mesh use it too.
    ///
    /// A server in STRICT mode without a certificate refuses all requests: it would refuse a
    /// listener with mTLS and continue in plain text.
    fn new(
        context: &PushContext,
        proxy: &Proxy,
        port: u16,
        encoded_policies: &EncodedPolicies,
    ) -> Self {
        let access = context.access_of(proxy);
        let has_certificate = proxy.grpc.is_some_and(|library| library.mtls);
        let label = || context.labels_of(proxy).get(TLS_MODE_LABEL).map(|text| &**text);
        let mtls = match access.modes.of_port(port).mode {
            PeerMode::Disable => false,
            PeerMode::Strict if !has_certificate => {
                return Self { mtls: false, guards: vec![rbac::deny_all()] };
            }
            PeerMode::Strict => true,
            PeerMode::Permissive => {
                has_certificate
                    && context.mesh.enable_auto_mtls
                    && TlsMode::from_label(label()) == TlsMode::Istio
            }
        };
        let guard = || rbac::trust_domain_filter(&client_trust_domains(context));
        let mut guards: Vec<_> = mtls.then(guard).into_iter().collect();
        guards.extend(rbac::library_filters(&access, &context.trust_bundle(), encoded_policies));
        Self { mtls, guards }
    }
}
