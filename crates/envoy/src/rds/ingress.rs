//! Routes of a router: they select the rules of a request by host. (docs/reference/traffic.md,
//! "Gateway".)
//!
//! They contain only rules: services have no default routes, and unknown hosts receive 404.

use std::collections::{BTreeMap, HashMap};
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};

use super::super::cds::GATEWAY_HEADER;
use super::base::field;
use super::lists::{RouteEntrance, RouteList, RouteLists, list};
use super::rules::route_count;
use super::{ANSWER_BYTES_MAX, bool_value, counting, is_domain};
use crate::chunks::{Chunks, FragmentChunk, digest};
use crate::class::Class;
use strait_base::lock::lock;
use strait_mesh::push::ingress::IngressOutline;
use strait_proto::envoy::envoy::config::route::v3 as route;
use strait_proto::envoy::envoy::config::route::v3::virtual_host::TlsRequirementType;
use strait_rules::traffic::HostPattern;
use strait_rules::traffic::gateway::ServerProtocol;
use strait_rules::traffic::gateway_servers::{GatewayPort, PlacedServer};
use strait_rules::traffic::route::HttpRule;
use strait_rules::traffic::virtual_service_selection::RoutedService;
use strait_xds::body::ResourceBody;
use strait_xds::resource::Resource;

/// The parts from which the routes of a router were last generated, by route name. The cache may
/// drop unused parts. While the cache contains these parts, an edit of one rule only regenerates
/// the routes of that rule.
#[derive(Debug, Default)]
pub struct RetainedRoutes(Mutex<BTreeMap<Arc<str>, RouteParts>>);

impl RetainedRoutes {
    /// Holds the parts of the routes with this name, replacing the previous ones.
    pub(crate) fn hold(&self, name: &str, parts: RouteParts) {
        let mut all = lock(&self.0);
        drop(all.insert(name.into(), parts));
    }

    /// Releases the parts of the routes with these names.
    pub fn let_go(&self, names: &[Arc<str>]) {
        let mut all = lock(&self.0);
        names.iter().for_each(|name| drop(all.remove(name)));
    }
}

/// The parts of a route configuration.
#[derive(Debug)]
pub(crate) struct RouteParts {
    _lists: Box<[Arc<RouteList>]>,
    _chunks: Arc<[Arc<FragmentChunk>]>,
}

/// The configuration of a host.
#[derive(Default)]
struct ServedHost<'a> {
    /// The port that clients connect to.
    port: u16,
    /// The rules for the host, in order of precedence.
    lists: Vec<ServedRules<'a>>,
    /// Whether plain-text requests are redirected to HTTPS.
    redirects: bool,
}

/// The rules of an object that is attached to a Gateway.
struct ServedRules<'a> {
    routed: &'a Arc<RoutedService>,
    gateway: &'a Arc<str>,
    list: Arc<RouteList>,
}

/// A virtual host before encoding.
struct PlannedHost<'h, 'a> {
    /// The hosts of the virtual host. It is named after the first.
    hosts: Vec<&'h HostPattern>,
    served: &'h ServedHost<'a>,
}

impl Hash for PlannedHost<'_, '_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let ServedHost { port, lists, redirects } = self.served;
        (&self.hosts, port, redirects).hash(state);
        lists.iter().for_each(|one| (one.list.digest, one.list.conditional).hash(state));
    }
}

impl PlannedHost<'_, '_> {
    /// Writes the virtual host as a field of the route. The rules of several objects follow each
    /// other. Rules that match every request come last.
    fn write(&self, out: &mut Vec<u8>) {
        let requires =
            if self.served.redirects { TlsRequirementType::All } else { TlsRequirementType::None };
        let host = route::VirtualHost {
            name: virtual_host_name(self.hosts[0], self.served),
            domains: self.hosts.iter().map(ToString::to_string).collect(),
            require_tls: requires.into(),
            ..counting()
        };
        let lists = &self.served.lists;
        let routes: usize = lists.iter().map(|one| one.list.bytes.len()).sum();
        encode_key(field::VIRTUAL_HOSTS, WireType::LengthDelimited, out);
        encode_varint((host.encoded_len() + routes) as u64, out);
        host.encode(out).expect("a vector has room");
        for ServedRules { list, .. } in lists {
            out.extend_from_slice(&list.bytes[..list.conditional]);
        }
        for ServedRules { list, .. } in lists {
            out.extend_from_slice(&list.bytes[list.conditional..]);
        }
    }
}

/// Returns the routes with this name, which the given servers of a port share. Unchanged chunks of
/// virtual hosts are reused.
pub(crate) fn route_for_servers(
    ingress: &IngressOutline<'_>,
    class: &Class,
    name: &str,
    (port, servers): (&GatewayPort<'_>, Vec<&PlacedServer<'_>>),
    (chunks, lists): (&Chunks, &RouteLists),
) -> (Resource, RouteParts) {
    let hosts = served_hosts(ingress, class, &servers, lists);
    let mut routes = route::RouteConfiguration {
        name: name.into(),
        // A route may name a service whose upstream cluster does not exist yet.
        validate_clusters: bool_value(false),
        ignore_port_in_host_matching: true,
        max_direct_response_body_size_bytes: Some(ANSWER_BYTES_MAX),
        response_headers_to_remove: vec![GATEWAY_HEADER.into()],
        ..Default::default()
    };
    if hosts.is_empty() {
        routes.virtual_hosts.push(route::VirtualHost {
            name: format!("blackhole:{}", port.number),
            domains: vec!["*".into()],
            ..Default::default()
        });
    }
    let head = Bytes::from(routes.encode_to_vec());
    let planned = planned_hosts(&hosts);
    let chunks = chunks.split(&planned, |one, draft| one.write(&mut draft.bytes));
    let digests = chunks.iter().flat_map(|chunk| chunk.digests());
    let digests = std::iter::once(digest(&head)).chain(digests);
    let runs = chunks.iter().map(|chunk| chunk.bytes().clone());
    let runs: Arc<[Bytes]> = std::iter::once(head).chain(runs).collect();
    let body = ResourceBody::edited(runs, Vec::new(), Vec::new());
    let resource = Resource::of_parts(name, digests, body);
    let lists = hosts.values().flat_map(|host| &host.lists).map(|one| Arc::clone(&one.list));
    (resource, RouteParts { _lists: lists.collect(), _chunks: chunks })
}

/// Returns the virtual hosts, one for all hosts with equal configuration, in the order of the first
/// host of each.
fn planned_hosts<'h, 'a>(
    hosts: &'h BTreeMap<&'h HostPattern, ServedHost<'a>>,
) -> Vec<PlannedHost<'h, 'a>> {
    let mut planned = Vec::<PlannedHost<'h, 'a>>::new();
    let mut positions = HashMap::<_, usize>::new();
    for (host, served) in hosts {
        let lists = served.lists.iter().map(|one| one.list.routes());
        let key = (served.port, served.redirects, lists.collect::<Vec<_>>());
        let at = *positions.entry(key).or_insert(planned.len());
        match planned.get_mut(at) {
            Some(first) => first.hosts.push(host),
            None => planned.push(PlannedHost { hosts: vec![host], served }),
        }
    }
    planned
}

/// Returns the object and the rule of each route of a virtual host of these servers, in order.
pub(crate) fn rules_at<'a>(
    ingress: &IngressOutline<'a>,
    class: &Class,
    virtual_host: &str,
    servers: &[&PlacedServer<'a>],
    route_lists: &RouteLists,
) -> Vec<(&'a Arc<RoutedService>, &'a HttpRule)> {
    let hosts = served_hosts(ingress, class, servers, route_lists);
    let mut hosts = hosts.iter();
    let found = hosts.find(|(host, served)| virtual_host_name(host, served) == virtual_host);
    let Some((_, served)) = found else { return Vec::new() };
    let (mut rules, mut last) = (Vec::new(), Vec::new());
    for ServedRules { routed, gateway, .. } in &served.lists {
        let Class { namespace, selection, .. } = class;
        for (_, rule, request) in routed.http.chosen(gateway, namespace, selection, served.port) {
            let all = if request.is_catch_all() { &mut last } else { &mut rules };
            let count = route_count(request, gateway, ingress.token_rules);
            all.extend(std::iter::repeat_n((*routed, rule), count));
        }
    }
    rules.append(&mut last);
    rules
}

fn virtual_host_name(host: &HostPattern, served: &ServedHost<'_>) -> String {
    format!("{host}:{}", served.port)
}

/// Returns the configuration of each host of these servers.
fn served_hosts<'a, 'p>(
    ingress: &IngressOutline<'a>,
    class: &Class,
    servers: &[&'p PlacedServer<'a>],
    route_lists: &RouteLists,
) -> BTreeMap<&'p HostPattern, ServedHost<'a>>
where
    'a: 'p,
{
    let mut hosts = BTreeMap::<&HostPattern, ServedHost<'a>>::new();
    // An object may name thousands of Gateways, as the merged rules of Ingresses do. Its routes are
    // equal for all Gateways of one port.
    let mut lists = HashMap::<(*const RoutedService, u16, bool), Arc<RouteList>>::new();
    for placed in servers {
        let served = placed.server.port;
        let start = |port| ServedHost { port, ..ServedHost::default() };
        for routed in ingress.bound(placed) {
            let own = placed.served_hosts(&routed.service);
            if own.is_empty() {
                continue;
            }
            let token_rules = ingress.token_rules;
            let gateway = Some(&placed.gateway.name);
            let is_tls = matches!(placed.server.protocol, ServerProtocol::Https(_));
            let at = (Arc::as_ptr(routed), served, is_tls);
            let list = lists.get(&at).cloned().unwrap_or_else(|| {
                let entrance =
                    RouteEntrance { gateway, port: served, is_tls, token_rules, is_library: false };
                let list = list(ingress.context, class, entrance, routed, route_lists);
                if routed.sources().all(|source| source.gateways.is_empty()) {
                    lists.insert(at, Arc::clone(&list));
                }
                list
            });
            if list.bytes.is_empty() {
                continue;
            }
            for host in own {
                let host = hosts.entry(host).or_insert_with(|| start(served));
                host.redirects |= placed.server.https_redirect;
                // Several servers, and several Gateways that an object names, may have the same
                // routes.
                let is_same = |other: &ServedRules<'_>| {
                    Arc::ptr_eq(&other.list, &list)
                        || (other.list.digest == list.digest && other.list.bytes == list.bytes)
                };
                if !host.lists.iter().any(is_same) {
                    let (gateway, list) = (&placed.gateway.name, Arc::clone(&list));
                    host.lists.push(ServedRules { routed, gateway, list });
                }
            }
        }
        if placed.server.https_redirect {
            for host in &placed.hosts {
                hosts.entry(&host.host).or_insert_with(|| start(served)).redirects = true;
            }
        }
    }
    hosts.retain(|host, _| **host == HostPattern::all() || is_domain(&host.to_string()));
    hosts
}
