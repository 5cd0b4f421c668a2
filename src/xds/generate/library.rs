//! What gRPC's own library is given, which speaks xDS without a proxy.
//!
//! A library takes part of what an Envoy takes, and refuses a resource for the rest (gRFC A27 to A41). It asks by name for
//! everything, in names of its own making: a client for `HOST:PORT` as it was dialled, a server for the address it
//! listens on inside of a template that its bootstrap chooses.
//!
//! | name | resource |
//! |---|---|
//! | listener `HOST:PORT`, `HOST` | a client's: the route configuration of that service's port |
//! | listener `…IP:PORT` | a server's: the same for all ports of a pod, in mTLS or plain text |
//! | route `outbound|PORT||HOST` | all requests to the upstream cluster of that name |
//! | upstream cluster `outbound|PORT||HOST` | endpoints by EDS, or one name that the library resolves |

use std::net::SocketAddr;
use std::sync::Arc;

use strait_proto::envoy::envoy::config::cluster::v3 as cluster;
use strait_proto::envoy::envoy::config::core::v3 as core;
use strait_proto::envoy::envoy::config::endpoint::v3 as endpoint;
use strait_proto::envoy::envoy::config::listener::v3 as listener;
use strait_proto::envoy::envoy::config::route::v3 as route;
use strait_proto::envoy::envoy::extensions::filters::http::router::v3::Router;
use strait_proto::envoy::envoy::extensions::filters::network::http_connection_manager::v3 as hcm;
use strait_proto::envoy::google::protobuf::UInt32Value;

use super::cache::{Cache, ServiceInputs};
use super::cds::{peers, socket_address};
use super::encoding::{any, encode};
use super::rbac;
use super::rbac_rules::EncodedPolicies;
use super::rds::completed;
use super::tls::{library as tls, trust_domains_of_clients};
use crate::access::PeerMode;
use crate::aggregate::MergedService;
use crate::model::{ByName, Protocol, Proxy, Resolution, TLS_MODE_LABEL, TlsMode};
use crate::push::PushContext;
use crate::push::view::{Assignment, ViewKey, by_library_with_mtls};
use crate::traffic::policy::ClientTls;
use crate::xds::names::{OutboundName, port_number};
use crate::xds::resource::{Resource, ResourceType};

/// One that asks, and the mesh it asks about.
pub(super) struct LibraryConfig<'a> {
    pub(super) context: &'a Arc<PushContext>,
    pub(super) view: &'a ViewKey,
    pub(super) cache: &'a Cache,
}

impl LibraryConfig<'_> {
    /// The upstream cluster of that name; `None` where there is none, or none that a library takes.
    pub(super) fn cluster(&self, name: &str) -> Option<Arc<Resource>> {
        let (service, port) = self.outbound(name)?;
        self.kept(ResourceType::Cluster, name, service, port, || {
            let (context, view) = (self.context, self.view);
            Some(encode(name, &upstream_cluster(context, view, name, service, port)?))
        })
    }

    /// The route configuration of that name; `None` where it is of no service.
    pub(super) fn route(&self, name: &str) -> Option<Arc<Resource>> {
        let (service, port) = self.outbound(name)?;
        self.kept(ResourceType::Route, name, service, port, || {
            leads_somewhere(self.view, service, port).then(|| encode(name, &routes(name)))
        })
    }

    /// The listener of that name: a service's as its clients in this DNS domain call it, else that of a server.
    pub(super) fn listener(&self, name: &str, proxy: &Proxy) -> Option<Arc<Resource>> {
        if let Some((service, port)) = self.dialled(name, &proxy.dns_domain) {
            return self.kept(ResourceType::Listener, name, service, port, || {
                Some(encode(name, &client_listener(name, service, port)))
            });
        }
        let (host, port) = listening(name)?;
        let served = ServedAs::of(self.context, proxy, port, &self.cache.policies);
        Some(Arc::new(encode(name, &server_listener(name, host, port, served))))
    }

    /// The service and port of a name that upstream clusters have.
    fn outbound(&self, name: &str) -> Option<(&Arc<MergedService>, u16)> {
        let (host, port, subset, sni) = OutboundName::parts(name)?;
        let service = self.visible(host).filter(|_| subset.is_empty() && !sni)?;
        Some((service, port))
    }

    /// The service and port that a client dials by this name. Without a port it is the service's only one.
    fn dialled(&self, name: &str, dns_domain: &str) -> Option<(&Arc<MergedService>, u16)> {
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
        leads_somewhere(self.view, service, port).then_some((service, port))
    }

    /// The service of that full name, if the client may use it.
    fn visible(&self, host: &str) -> Option<&Arc<MergedService>> {
        let service = self.context.service(host, &self.view.namespace)?;
        let local = self.context.mesh.cluster_local(service.hostname());
        let sees = service.primary.export_to.visible_to(&self.view.namespace)
            && (service.is_visible_in(&self.view.cluster) || !local);
        sees.then_some(service)
    }

    /// What `make` makes, or what was made of the same before.
    fn kept(
        &self,
        kind: ResourceType,
        name: &str,
        service: &Arc<MergedService>,
        port: u16,
        make: impl FnOnce() -> Option<Resource>,
    ) -> Option<Arc<Resource>> {
        let context = self.context;
        let of_port = OutboundName::sidecar(service.hostname().clone(), port);
        let is_by_place = service.has_ports_by_cluster()
            || by_name(service).is_some()
            || context.traffic.is_by_namespace(service.hostname().as_str());
        if is_by_place {
            return make().map(Arc::new);
        }
        let key = (kind, Arc::from(name), of_port, self.view.grpc);
        let kept = self.cache.library.get(&key, |inputs| inputs.are_of(context, service));
        kept.or_else(|| {
            let made = Arc::new(make()?);
            self.cache.library.put(key, ServiceInputs::of(context, service), Arc::clone(&made));
            Some(made)
        })
    }
}

/// Whether a library has an upstream cluster for a port: it follows no original destination, is given no alias, and
/// resolves one name, no more.
fn leads_somewhere(view: &ViewKey, service: &MergedService, port: u16) -> bool {
    let own = service.port_in(&view.cluster, port);
    let is_taken = own.is_some_and(|port| port.protocol != Protocol::Udp);
    is_taken
        && match &service.primary.resolution {
            Resolution::Alias(_) | Resolution::Passthrough => false,
            Resolution::ByName(_) => named(view, service, port).is_some(),
            _ => true,
        }
}

fn by_name(service: &MergedService) -> Option<&ByName> {
    match &service.primary.resolution {
        Resolution::ByName(by_name) => Some(by_name),
        _ => None,
    }
}

/// The only name that stands for a service, its port there, and whether mTLS is spoken there.
fn named<'a>(
    view: &ViewKey,
    service: &'a MergedService,
    number: u16,
) -> Option<(&'a str, u16, TlsMode)> {
    let mut all = by_name(service)?.endpoints.iter();
    let one = all.next().filter(|_| all.next().is_none())?;
    let is_near = one.network.as_ref().is_none_or(|network| *network == view.network);
    let own = service.port(number)?;
    let port = *one.ports.get(&own.name)?;
    (is_near && !one.is_socket()).then_some((&*one.address, port, one.tls_mode))
}

fn upstream_cluster(
    context: &PushContext,
    view: &ViewKey,
    name: &str,
    service: &MergedService,
    port: u16,
) -> Option<cluster::Cluster> {
    use cluster::cluster::{ClusterDiscoveryType, DiscoveryType, EdsClusterConfig, LbPolicy};
    if !leads_somewhere(view, service, port) {
        return None;
    }
    let kind = |kind: DiscoveryType| Some(ClusterDiscoveryType::Type(kind.into()));
    let has_mtls = view.grpc.is_some_and(|library| library.mtls);
    let may_speak_mtls = has_mtls && context.mesh.enable_auto_mtls;
    // A library goes on in plain text where it finds a context that it doesn't know.
    let rules = context.rules_for(service);
    let policy = view.rule(&rules, service).map(|rule| rule.resolved("", port));
    let ruled = policy.and_then(|policy| policy.tls);
    let asked = match ruled.as_deref() {
        None | Some(ClientTls::Disable) => None,
        Some(ClientTls::Mesh(server)) if has_mtls => Some(server),
        Some(ClientTls::Mesh(_) | ClientTls::Foreign(_) | ClientTls::Impossible) => return None,
    };
    let (cluster, mtls) = match named(view, service, port) {
        Some((address, port, mode)) => {
            let cluster = cluster::Cluster {
                cluster_discovery_type: kind(DiscoveryType::LogicalDns),
                load_assignment: Some(one_name(name, address, port)),
                ..Default::default()
            };
            (cluster, may_speak_mtls && mode == TlsMode::Istio)
        }
        None => {
            let eds = EdsClusterConfig { eds_config: Some(by_ads()), ..Default::default() };
            let cluster = cluster::Cluster {
                cluster_discovery_type: kind(DiscoveryType::Eds),
                eds_cluster_config: Some(eds),
                ..Default::default()
            };
            (cluster, by_library_with_mtls(context, view, service))
        }
    };
    let mtls = asked.is_some() || (mtls && ruled.is_none());
    let socket = || {
        let (accounts, domains) = peers(context, service);
        match asked.map(|server| &*server.subject_alt_names) {
            None | Some([]) => tls::upstream(accounts.iter().map(|id| &**id), &domains),
            Some(names) => tls::upstream(names.iter().map(|name| &**name), &domains),
        }
    };
    // Without a threshold a library has 1,024 requests open at most (gRFC A32); nobody asked for that.
    let unlimited = cluster::circuit_breakers::Thresholds {
        max_requests: Some(UInt32Value { value: u32::MAX }),
        ..Default::default()
    };
    Some(cluster::Cluster {
        name: name.into(),
        lb_policy: LbPolicy::RoundRobin.into(),
        circuit_breakers: Some(cluster::CircuitBreakers {
            thresholds: vec![unlimited],
            ..Default::default()
        }),
        transport_socket: mtls.then(socket),
        ..cluster
    })
}

fn one_name(name: &str, address: &str, port: u16) -> endpoint::ClusterLoadAssignment {
    let host = endpoint::Endpoint {
        address: Some(socket_address(address.into(), port)),
        ..Default::default()
    };
    let member = endpoint::LbEndpoint {
        host_identifier: Some(endpoint::lb_endpoint::HostIdentifier::Endpoint(host)),
        ..Default::default()
    };
    let group = endpoint::LocalityLbEndpoints { lb_endpoints: vec![member], ..Default::default() };
    endpoint::ClusterLoadAssignment {
        cluster_name: name.into(),
        endpoints: vec![group],
        ..Default::default()
    }
}

/// An assignment as a library takes it: it leaves out a locality that has no weight, and refuses all of one that has no
/// id, or an address that comes twice.
pub(super) fn assignment(name: &str, given: &Assignment) -> endpoint::ClusterLoadAssignment {
    let mut taken = std::collections::HashSet::new();
    let mut last = None;
    let mut priority = 0;
    let mut groups = Vec::new();
    for group in &given.localities {
        let mut members = Vec::new();
        let mut sum = 0_u32;
        for member in &group.members {
            if !taken.insert((member.address, member.port)) {
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
        // Without a gap, whatever was left out.
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

/// All requests go to the service, under whatever name it was dialled: the library asked for this one alone.
fn routes(name: &str) -> route::RouteConfiguration {
    use route::route_action::ClusterSpecifier;
    let action = route::RouteAction {
        cluster_specifier: Some(ClusterSpecifier::Cluster(name.into())),
        ..Default::default()
    };
    let host = virtual_host(name, route::route::Action::Route(action));
    route::RouteConfiguration { name: name.into(), virtual_hosts: vec![host], ..Default::default() }
}

fn virtual_host(name: &str, action: route::route::Action) -> route::VirtualHost {
    let everything = route::RouteMatch {
        path_specifier: Some(route::route_match::PathSpecifier::Prefix(String::new())),
        ..Default::default()
    };
    let route =
        route::Route { r#match: Some(everything), action: Some(action), ..Default::default() };
    route::VirtualHost {
        name: name.into(),
        domains: vec!["*".into()],
        routes: vec![route],
        ..Default::default()
    }
}

fn client_listener(name: &str, service: &MergedService, port: u16) -> listener::Listener {
    let routes = OutboundName::sidecar(service.hostname().clone(), port).to_string();
    let manager = manager(hcm::http_connection_manager::RouteSpecifier::Rds(hcm::Rds {
        route_config_name: routes,
        config_source: Some(by_ads()),
    }));
    let api = listener::ApiListener { api_listener: Some(any(&manager)) };
    listener::Listener { name: name.into(), api_listener: Some(api), ..Default::default() }
}

/// A server's listener, at the address that it says. Who calls it chooses nothing, so one chain takes all.
fn server_listener(name: &str, host: &str, port: u16, served: ServedAs) -> listener::Listener {
    use route::route::Action::NonForwardingAction;
    let ServedAs { mtls, guards } = served;
    let host_of_all = virtual_host("inbound", NonForwardingAction(route::NonForwardingAction {}));
    let routes =
        route::RouteConfiguration { virtual_hosts: vec![host_of_all], ..Default::default() };
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
    let router = hcm::HttpFilter {
        name: "envoy.filters.http.router".into(),
        config_type: Some(hcm::http_filter::ConfigType::TypedConfig(any(&Router::default()))),
        ..Default::default()
    };
    hcm::HttpConnectionManager {
        route_specifier: Some(routes),
        http_filters: vec![router],
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

/// The address at which a server listens that asks by this name: what stands at its end, behind whatever its bootstrap puts
/// before it. The server compares the text.
fn listening(name: &str) -> Option<(&str, u16)> {
    let end = name.rsplit(['/', '=']).next()?;
    let socket: SocketAddr = end.parse().ok()?;
    let host = end.rsplit_once(':')?.0;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    Some((host, socket.port()))
}

/// How a server takes requests.
struct ServedAs {
    /// Over mTLS and nothing else, or in plain text and nothing else: it has one chain, which can't tell both apart.
    mtls: bool,
    /// Who is let in.
    guards: Vec<hcm::HttpFilter>,
}

impl ServedAs {
    /// As policies say. Where they leave it open, clients of the mesh go by the label of its pod, and so does this.
    ///
    /// A server that is to take mTLS alone and has no certificate lets in nobody: a listener with mTLS it would refuse, and
    /// go on in plain text.
    fn of(context: &PushContext, proxy: &Proxy, port: u16, kept: &EncodedPolicies) -> Self {
        let access = context.access_of(proxy);
        let has_certificate = proxy.grpc.is_some_and(|library| library.mtls);
        let label = || context.labels_of(proxy).get(TLS_MODE_LABEL).map(|text| &**text);
        let mtls = match access.modes.of_port(port).mode {
            PeerMode::Disable => false,
            PeerMode::Strict if !has_certificate => {
                return Self { mtls: false, guards: vec![rbac::nobody()] };
            }
            PeerMode::Strict => true,
            PeerMode::Permissive => {
                has_certificate
                    && context.mesh.enable_auto_mtls
                    && TlsMode::from_label(label()) == TlsMode::Istio
            }
        };
        let known = || rbac::only_of_trust_domains(&trust_domains_of_clients(context));
        let mut guards: Vec<_> = mtls.then(known).into_iter().collect();
        guards.extend(rbac::of_library(&access, &context.trust_bundle(), kept));
        Self { mtls, guards }
    }
}
