//! The routes of a host, encoded once and shared.

use std::borrow::Borrow;
use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use bytes::Bytes;

use super::library;
use super::rules::{self, RuleInputs};
use crate::cache_table::{CacheTable, CacheValue};
use crate::chunks::digest;
use crate::class::Class;
use crate::lds::route_to;
use strait_mesh::aggregate::MergedService;
use strait_mesh::push::PushContext;
use strait_model::mesh_config::{HostSharing, RetryRule};
use strait_model::{ClusterId, Hostname, Namespace, Protocol};
use strait_rules::traffic::destination_rule::RuleClient;
use strait_rules::traffic::policy::{Algorithm, HashKey};
use strait_rules::traffic::proxyless::hashed;
use strait_rules::traffic::route::{Destination, MESH, SourceMatch};
use strait_rules::traffic::virtual_service_selection::RoutedService;
use strait_rules::traffic::{HostPattern, Selection};

/// The routes of an object for a port, as fields of a virtual host.
#[derive(Debug)]
pub(crate) struct RouteList {
    /// The encoded routes; empty if no rule applies to the proxy.
    pub(super) bytes: Bytes,
    /// The digest of the bytes.
    pub(super) digest: u64,
    /// The position of the route that matches every request, if there is one; otherwise the length.
    pub(super) conditional: usize,
}

/// The routes of a list, compared by their bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct EncodedRoutes<'a>(&'a RouteList);

impl RouteList {
    /// Returns the routes for comparison.
    pub(super) fn routes(&self) -> EncodedRoutes<'_> {
        EncodedRoutes(self)
    }
}

impl PartialEq for EncodedRoutes<'_> {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
            || (self.0.digest == other.0.digest
                && self.0.conditional == other.0.conditional
                && self.0.bytes == other.0.bytes)
    }
}

impl Eq for EncodedRoutes<'_> {}

impl Hash for EncodedRoutes<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.digest.hash(state);
    }
}

impl CacheValue for Arc<RouteList> {
    fn is_in_use(&self) -> bool {
        Self::strong_count(self) > 1
    }
}

/// An object, a port, and the properties of a proxy that affect the object's rules.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct RouteListKey {
    object: (Namespace, Arc<str>),
    /// The gateway; `None` for sidecars.
    gateway: Option<Arc<str>>,
    port: u16,
    is_tls: bool,
    /// The number of token rules of the gateway, if rules match claims; otherwise 0.
    token_rules: usize,
    cluster: ClusterId,
    namespace: Namespace,
    selection: Selection,
    is_library: bool,
}

/// The place where requests arrive.
#[derive(Debug, Clone, Copy)]
pub(super) struct RouteEntrance<'a> {
    /// The gateway; `None` for sidecars.
    pub(super) gateway: Option<&'a Arc<str>>,
    /// The port that clients connect to.
    pub(super) port: u16,
    /// Whether the proxy terminates TLS on this port.
    pub(super) is_tls: bool,
    /// The number of token rules of the gateway; not used for sidecars.
    pub(super) token_rules: usize,
    /// Whether the client is a gRPC library, which supports fewer features than Envoy.
    pub(super) is_library: bool,
}

/// The inputs of routes, apart from the key.
#[derive(Debug, Clone)]
pub(crate) struct RouteListInputs {
    routed: Arc<RoutedService>,
    /// The service behind each destination that is an alias. Empty if there are no aliases.
    targets: Box<[Option<Hostname>]>,
    /// The ports of destinations that do not name one.
    ports: Box<[Option<u16>]>,
    /// The hash key of each destination with consistent hashing.
    hashes: Box<[Option<HashKey>]>,
    /// The mesh's default for retries.
    retries: Option<Arc<RetryRule>>,
}

impl PartialEq for RouteListInputs {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.routed, &other.routed)
            && self.targets == other.targets
            && self.ports == other.ports
            && self.hashes == other.hashes
            && self.retries == other.retries
    }
}

/// Lists of routes by their inputs.
pub(crate) type RouteLists = CacheTable<RouteListKey, RouteListInputs, Arc<RouteList>>;

/// Returns the routes of an object for requests that arrive at proxies of a class.
pub(super) fn list(
    context: &PushContext,
    class: &Class,
    RouteEntrance { gateway, port, is_tls, token_rules, is_library }: RouteEntrance<'_>,
    routed: &Arc<RoutedService>,
    route_lists: &RouteLists,
) -> Arc<RouteList> {
    let unnumbered = |host: &Hostname, name: &str| unnumbered_port(context, class, (host, name));
    let target = |host: &Hostname| context.target(host, &class.namespace).clone();
    let mut targets = Box::default();
    if !context.aliases.is_empty() {
        let all = routed.destinations().map(|to| &to.host);
        targets = all.map(|host| Some(target(host)).filter(|target| target != host)).collect();
    }
    let portless = routed.portless();
    let ports: Box<[_]> = portless.iter().map(|(host, name)| unnumbered(host, name)).collect();
    let any_source = |is: fn(&SourceMatch) -> bool| routed.sources().any(is);
    let by_namespace = any_source(|source| source.namespace.is_some());
    let by_selection = any_source(|source| source.labels.is_some());
    let by_claims = gateway.is_some() && routed.looks_at_claims();
    let token_rules = if by_claims { token_rules } else { 0 };
    let meta = &routed.service.meta;
    let hash = |to: &Destination, port: u16| {
        let key = hash_key(context, class, &to.host, &to.subset, port);
        if is_library { key.and_then(|key| hashed(&key)) } else { key }
    };
    let (mut hashes, mut by_rules) = (Vec::new(), false);
    if !context.traffic.destination_rules.is_empty() {
        for to in routed.http.rules.iter().flat_map(|rule| &rule.destinations) {
            let host = context.target(&to.host, &class.namespace);
            by_rules |= context.traffic.is_by_namespace(host.as_str());
            hashes.push(hash(
                to,
                to.port.or_else(|| unnumbered(&to.host, &to.port_name)).unwrap_or(port),
            ));
        }
    }
    let (by_namespace, by_selection) = (by_namespace || by_rules, by_selection || by_rules);
    let key = RouteListKey {
        object: (meta.namespace.clone(), Arc::clone(&meta.name)),
        gateway: gateway.cloned(),
        port,
        is_tls,
        token_rules,
        cluster: if portless.is_empty() { ClusterId::default() } else { class.cluster.clone() },
        namespace: if by_namespace { class.namespace.clone() } else { Namespace::default() },
        selection: if by_selection { class.selection.clone() } else { Selection::default() },
        is_library,
    };
    let retries = context.mesh.retries.clone();
    let inputs = RouteListInputs {
        routed: Arc::clone(routed),
        targets,
        ports,
        hashes: hashes.into(),
        retries: retries.clone(),
    };
    route_lists.get_or_make(key, inputs, || {
        let rules = RuleInputs {
            namespace: &class.namespace,
            selection: &class.selection,
            gateway: gateway.map_or(MESH, |name| &**name),
            port,
            is_tls,
            target: &target,
            unnumbered_port: &unnumbered,
            hash_key: &hash,
            retries: retries.as_deref(),
            token_rules,
        };
        let (bytes, conditional) = if is_library {
            (library::encoded(&routed.http, rules), 0)
        } else {
            rules::encoded(&routed.http, rules)
        };
        Arc::new(RouteList { digest: digest(&bytes), bytes: bytes.into(), conditional })
    })
}

/// Returns the number of a service's port with this name, as proxies of the class see it. Without a
/// name, the service must have only one port. If the service is an alias, its own ports are
/// considered before the target's ports.
pub(crate) fn unnumbered_port(
    context: &PushContext,
    class: &Class,
    (host, name): (&Hostname, &str),
) -> Option<u16> {
    let port_in_service = |host: &Hostname| {
        let service = context.service(host.as_str(), &class.namespace)?;
        let ports = service.ports_in(&class.cluster);
        let mut ports = ports.filter(|port| port.protocol != Protocol::Udp);
        if !name.is_empty() {
            return ports.find(|port| *port.name == *name).map(|port| port.number);
        }
        let only = ports.next()?.number;
        ports.next().is_none().then_some(only)
    };
    let target = context.target(host, &class.namespace);
    port_in_service(host).or_else(|| if target == host { None } else { port_in_service(target) })
}

/// Returns the part of a request that clients of the class hash to select an endpoint of a port, if
/// they use consistent hashing.
fn hash_key(
    context: &PushContext,
    class: &Class,
    host: &Hostname,
    subset: &str,
    port: u16,
) -> Option<HashKey> {
    let host = context.target(host, &class.namespace);
    let rules = context.traffic.destination_rules.of(host.as_str());
    if rules.is_empty() {
        return None;
    }
    let Class { namespace, selection, .. } = class;
    let owner = &context.service(host.as_str(), namespace)?.primary.namespace;
    let rule = rules.rule(RuleClient { namespace, selection }, owner)?;
    match &rule.resolved(subset, port).load_balancer?.algorithm {
        Algorithm::ConsistentHash(hash) => Some(hash.key.clone()),
        _ => None,
    }
}

/// Returns the routes that rules define for a service, or `None` if no rule applies to a proxy of
/// this kind.
pub(super) fn service_routes(
    context: &PushContext,
    class: &Class,
    port: u16,
    hostname: &Hostname,
    route_lists: &RouteLists,
) -> Option<Arc<RouteList>> {
    ruled(context, class, at_sidecar(port), hostname, route_lists)
}

/// Returns the routes of a service for calls of a gRPC library, as fields of a virtual host.
pub(crate) fn library_routes(
    context: &PushContext,
    class: &Class,
    (hostname, port): (&Hostname, u16),
    route_lists: &RouteLists,
) -> Bytes {
    match ruled(context, class, at_library(port), hostname, route_lists) {
        Some(list) => list.bytes.clone(),
        None => library::plain(rules::to_service(hostname, port)).into(),
    }
}

/// Encodes the route to an upstream cluster as a field of a virtual host, for ports to which no
/// HTTP rule can apply.
pub(crate) fn unruled(upstream: &str) -> Bytes {
    library::plain(route_to(upstream, None)).into()
}

fn ruled(
    context: &PushContext,
    class: &Class,
    entrance: RouteEntrance<'_>,
    hostname: &Hostname,
    route_lists: &RouteLists,
) -> Option<Arc<RouteList>> {
    let RouteEntrance { port, is_library, .. } = entrance;
    let services = &context.traffic.virtual_services;
    if !services.is_empty() {
        let host = HostPattern::for_service(hostname);
        let Class { namespace, selection, .. } = class;
        let objects = context.traffic.routed_for_host(&host, namespace, selection);
        if let Some((_, list)) = first(context, class, (&host, entrance), objects, route_lists) {
            return Some(list);
        }
    }
    let key = hash_key(context, class, hostname, "", port);
    let key = if is_library { key.and_then(|key| hashed(&key)) } else { key };
    let retries = context.mesh.retries.as_deref();
    if key.is_none() && retries.is_none() {
        return None;
    }
    let route = rules::to_service_by((hostname, port), key, retries);
    let bytes = if is_library { library::plain(route) } else { rules::plain(&route) };
    Some(Arc::new(RouteList { digest: digest(&bytes), bytes: bytes.into(), conditional: 0 }))
}

/// Returns the hosts that only rules name, with the namespace of the rules. Port 80 includes all of
/// them. Other ports include only the hosts that a wildcard service of the port includes.
pub(super) fn beyond<'a>(
    context: &PushContext,
    class: &Class,
    port: u16,
    routed: impl Iterator<Item = &'a MergedService>,
    route_lists: &RouteLists,
) -> Vec<(Hostname, Namespace, Arc<RouteList>)> {
    let services = &context.traffic.virtual_services;
    let mut found = Vec::new();
    if !services.is_empty() {
        let routed: BTreeSet<HostPattern> =
            routed.map(|service| HostPattern::for_service(service.hostname())).collect();
        let wildcards: Vec<_> = routed.iter().filter(|host| host.exact().is_none()).collect();
        let is_here =
            |host: &&HostPattern| port == 80 || wildcards.iter().any(|under| under.contains(host));
        if may_have_ruled_hosts(port, routed.iter()) {
            for host in services.hosts().filter(|host| !routed.contains(*host)).filter(is_here) {
                let Class { namespace, selection, .. } = class;
                let objects = context.traffic.routed_for_pattern(host, namespace, selection);
                let entrance = at_sidecar(port);
                if let Some((routed, list)) =
                    first(context, class, (host, entrance), objects, route_lists)
                {
                    let namespace = routed.service.meta.namespace.clone();
                    found.push((Hostname::from(host.to_string()), namespace, list));
                }
            }
        }
    }
    found
}

/// Returns whether the route of a port with these services may include hosts that only rules name:
/// see [`beyond`].
pub(super) fn may_have_ruled_hosts(
    port: u16,
    mut services: impl Iterator<Item: Borrow<HostPattern>>,
) -> bool {
    port == 80 || services.any(|host| host.borrow().exact().is_none())
}

/// Returns the entrance for requests of a sidecar's workload to `port`.
pub(super) fn at_sidecar(port: u16) -> RouteEntrance<'static> {
    RouteEntrance { gateway: None, port, is_tls: false, token_rules: 0, is_library: false }
}

/// Returns the entrance for calls of a gRPC library to `port`.
pub(super) fn at_library(port: u16) -> RouteEntrance<'static> {
    RouteEntrance { is_library: true, ..at_sidecar(port) }
}

/// Returns the first object for a host that has routes for a proxy of this kind, and these routes.
/// They include the routes of other objects that share the host with it.
fn first<'a>(
    context: &PushContext,
    class: &Class,
    (host, entrance): (&HostPattern, RouteEntrance<'_>),
    objects: impl Iterator<Item = &'a Arc<RoutedService>>,
    route_lists: &RouteLists,
) -> Option<(&'a Arc<RoutedService>, Arc<RouteList>)> {
    let lists = objects.map(|routed| (routed, list(context, class, entrance, routed, route_lists)));
    let mut lists = lists.filter(|(_, list)| !list.bytes.is_empty());
    let (winner, first) = lists.next()?;
    // Routes for a library end with a route for all calls, so later routes would have no effect.
    if context.mesh.host_sharing == HostSharing::FirstAlone || entrance.is_library {
        return Some((winner, first));
    }
    let sharing = lists.filter(|(routed, _)| winner.shares_host(routed, host));
    let all: Vec<_> = [first].into_iter().chain(sharing.map(|(_, list)| list)).collect();
    Some((winner, joined(all)))
}

/// Joins the routes of several objects. Routes that match every request come last.
fn joined(lists: Vec<Arc<RouteList>>) -> Arc<RouteList> {
    if let [only] = &lists[..] {
        return Arc::clone(only);
    }
    let conditional = lists.iter().flat_map(|one| &one.bytes[..one.conditional]);
    let last = lists.iter().flat_map(|one| &one.bytes[one.conditional..]);
    let bytes: Bytes = conditional.chain(last).copied().collect();
    let conditional = lists.iter().map(|one| one.conditional).sum();
    Arc::new(RouteList { digest: digest(&bytes), bytes, conditional })
}
