//! The outbound listeners of a sidecar. Redirected connections arrive at one listener, which hands
//! each over to the listener of the original destination. It forwards or rejects connections
//! without such a listener.
//!
//! | port | listener | destination |
//! |---|---|---|
//! | HTTP | `0.0.0.0_PORT`, one for all services | the route `PORT`; other data is forwarded to its original destination |
//! | HTTP, of a service that is selected by address | also `VIP_PORT` | the route `HOST:PORT`; other data is forwarded to its original destination |
//! | raw TCP, TLS | `VIP_PORT`; if several ServiceEntries share the address, one chain for each TLS name | the upstream cluster |
//! | raw TCP, TLS, for an address range of the service or of a rule | a chain of `0.0.0.0_PORT`; if several services share the range, one for each TLS name | the upstream cluster |
//! | raw TCP, TLS, of an entry without an address | TLS: a chain of `0.0.0.0_PORT` for its name; others: the remaining connections of that listener, if the entry keeps the client's destination, unknown destinations are not allowed, or a rule sets TLS, a tunnel, the PROXY protocol or limits, or routes connections elsewhere | the upstream cluster |
//! | undeclared | `VIP_PORT` | the route `HOST:PORT` for HTTP, otherwise the upstream cluster |
//! | undeclared, for an address range | chains of `0.0.0.0_PORT` for HTTP, for other plain text and for the rest | as for a VIP |
//! | HTTP_PROXY, of a Sidecar | `ADDRESS_PORT` | the route `http_proxy.PORT` |
//! | any, of a headless service in other networks | chains of `0.0.0.0_PORT`, or of the first listener | the gateways, with the pod in the SNI; requests keep this destination, whatever host they name |
//! | headless, not HTTP | `POD_PORT` for each directly reachable pod | as for a VIP |

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use prost::Message;

use super::parts::{
    Families, Http, PLAIN, PLAIN_HTTP, bool_value, chain, detect, found, http, http_inspector,
    is_transparent, listening_on, range_chain, request_chains, routes_named, tcp, tcp_limited,
    tls_inspector, to_port, wildcards,
};
use super::remote_pods::client_chains;
use super::ruled::{ConnectionRules, NamedChain, RuledConnections, completed};
use super::{ConnectionLimits, PodListenerKey, TrafficSettings};
use crate::cds::BLACK_HOLE;
use crate::class::{Class, ListenerFormat, class_for};
use crate::encode;
use crate::rds::proxy_route_name;
use strait_mesh::aggregate::MergedService;
use strait_mesh::push::PushContext;
use strait_mesh::push::addresses::{ListenAddresses, has_no_known_address, is_selected_by_sni};
use strait_mesh::push::view::{Path, ViewKey, decide};
use strait_model::{
    CLUSTERSET, ClusterId, Hostname, Interception, Port, Protocol, Resolution, is_privileged,
};
use strait_proto::envoy::envoy::config::core::v3::TrafficDirection;
use strait_proto::envoy::envoy::config::listener::v3 as listener;
use strait_proto::envoy::envoy::extensions::filters::network::http_connection_manager::v3::HttpConnectionManager;
use strait_rules::traffic::HostPattern;
use strait_rules::traffic::envoy_filter::PatchPlace;
use strait_rules::traffic::sidecar::{EgressAddress, ImportScope};
use strait_rules::traffic::telemetry::CallEnd;
use strait_xds::names::OutboundName;
use strait_xds::resource::Resource;

/// Ports that Istio's agent uses in every pod for health and metrics. Envoy refuses a second
/// listener for an address.
const AGENT_PORTS: [u16; 2] = [15021, 15090];

/// Returns the outbound listeners that all sidecars of a class share, sorted by name: the listener
/// for redirected connections, one for each HTTP port, and one for each VIP and port of another
/// protocol.
pub(crate) fn shared(
    context: &PushContext,
    (class, form): (&Class, ListenerFormat),
    addresses: &ListenAddresses,
) -> Vec<Resource> {
    let families = class.families;
    let (ipv4, ipv6) = families;
    let settings = TrafficSettings::for_class(context, class)
        .counting(context, (&class.namespace, &class.selection), form, CallEnd::Client)
        .in_form(form, PatchPlace::Outbound);
    let rules = ConnectionRules { context, class, settings: &settings };
    let reserved = [settings.outbound_port, settings.inbound_port];
    // If several services need the same address, the first one, which is the oldest, receives it.
    let mut any_address: BTreeMap<u16, AnyAddress<'_>> = BTreeMap::new();
    let mut at_address: BTreeMap<(IpAddr, u16), AtAddress<'_>> = BTreeMap::new();
    let scope = context.traffic.scope(&class.namespace, &class.selection);
    let elsewhere = scope.addresses(form.interception);
    let mut placed: BTreeMap<u16, PlacedPort<'_>> = BTreeMap::new();
    let network = context.network_of_cluster(&class.cluster);
    let mut remote: BTreeMap<u16, Vec<(&MergedService, &Port)>> = BTreeMap::new();
    for (service, vips) in &addresses.services {
        let is_addressed = is_addressed(context, class, service);
        for (number, service, port) in wanted_ports((context, class), scope, service) {
            let is_http = port.protocol.is_http();
            if elsewhere.contains_key(&number) {
                placed.entry(number).or_insert(PlacedPort::new(service, port)).add(port);
                continue;
            }
            if context.remote_pods.of(service.hostname()).is_some() {
                remote.entry(number).or_default().push((service, port));
            }
            if !is_http || is_addressed {
                for vip in vips.iter().filter(|vip| vip.has(number)) {
                    at_address.entry((vip.address, number)).or_default().add(service, port);
                }
            }
            if is_http {
                let wanted = any_address.entry(number).or_default();
                wanted.http = true;
                wanted.grpc_web |= port.protocol == Protocol::GrpcWeb;
            } else {
                if has_no_known_address(service) {
                    let is_passthrough = service.primary.resolution == Resolution::Passthrough;
                    if matches!(port.protocol, Protocol::Tls | Protocol::Https) {
                        let wanted = any_address.entry(number).or_default();
                        wanted.names.entry(service.hostname()).or_insert((service, port));
                    } else if is_passthrough
                        || !settings.outbound_any
                        || rules.must_apply(service, port)
                    {
                        let wanted = any_address.entry(number).or_default();
                        wanted.rest.get_or_insert((service, port));
                    }
                }
                let is_supported =
                    |range: &&IpNet| if range.addr().is_ipv4() { ipv4 } else { ipv6 };
                for range in service.primary.ranges.iter().filter(is_supported) {
                    let wanted = any_address.entry(number).or_default();
                    wanted.ranges.entry(*range).or_default().push((service, port));
                }
            }
        }
    }
    let is_free = |port: &u16| !reserved.contains(port) && !AGENT_PORTS.contains(port);
    any_address.retain(|port, _| is_free(port));
    let mut other_ports = Vec::new();
    for (number, services) in remote.into_iter().filter(|(port, _)| is_free(port)) {
        let chains = |destination_port| -> Vec<_> {
            let chains = |service: &(&MergedService, &Port)| {
                client_chains(context, &settings, (&network, families), *service, destination_port)
            };
            services.iter().flat_map(chains).collect()
        };
        if let Some(wanted) = any_address.get_mut(&number) {
            wanted.remote_pods.extend(chains(None));
        }
        // Kept where the port gets its own listener: connections arrive here until that one is warm.
        other_ports.extend(chains(Some(number)));
    }
    // Envoy refuses a response that contains a listener it cannot open.
    let is_open = |port: u16| {
        let listens = elsewhere.get(&port).is_some_and(|at| at.listens);
        !(listens && form.is_unprivileged && is_privileged(port))
    };
    placed.retain(|port, _| is_open(*port));

    let is_handed_over = form.interception != Interception::None;
    let mut listeners = Vec::new();
    if is_handed_over {
        listeners.extend(arrival(&settings, families, form.interception, other_ports));
    }
    listeners.extend(
        placed.iter().filter_map(|(number, port)| port.listener(rules, elsewhere[number], *number)),
    );
    let proxies = scope.proxies().into_keys().filter(|port| is_free(port) && is_open(*port));
    listeners.extend(proxies.filter_map(|port| {
        for_proxy_requests(&settings, families, elsewhere.get(&port).copied(), port)
    }));
    if !is_handed_over {
        any_address.clear();
        at_address.clear();
    }
    listeners.extend(
        any_address.iter().filter_map(|(port, wanted)| wanted.listener(rules, families, *port)),
    );
    listeners
        .extend(at_address.iter().filter_map(|(place, services)| services.listener(rules, *place)));
    let mut resources: Vec<_> = listeners
        .into_iter()
        .map(|message| settings.istio.in_chains(message))
        .map(|message| encode(message.name.clone(), &message))
        .collect();
    resources.sort_by(|a, b| a.name.cmp(&b.name));
    resources
}

/// Returns the listeners for pods of headless services that are visible from `view`, each with the
/// pod's address, sorted by address. `keep` returns an existing listener for an equal key.
///
/// Only directly reachable pods have a listener: in this network, the address of a pod in another
/// network may belong to another workload. If several services have the same address, the cluster
/// that is merged first wins, then the oldest service.
pub(super) fn pods(
    context: &PushContext,
    (settings, form): (&TrafficSettings, ListenerFormat),
    view: &ViewKey,
    addresses: &ListenAddresses,
    shared: &[Arc<Resource>],
    keep: impl Fn(PodListenerKey, &dyn Fn() -> Option<Resource>) -> Option<Arc<Resource>>,
) -> Vec<(IpAddr, Arc<Resource>)> {
    if form.interception == Interception::None {
        return Vec::new();
    }
    let mut wanted = BTreeMap::new();
    let services = addresses.services.iter().map(|(service, _)| service);
    let class = class_for(view);
    let rules = ConnectionRules { context, class: &class, settings };
    let scope = context.traffic.scope(&class.namespace, &class.selection);
    let elsewhere = scope.addresses(form.interception);
    for service in services.filter(|service| service.primary.resolution == Resolution::Headless) {
        let ports = proxied(service, &view.cluster);
        let ports = ports.filter(|port| !elsewhere.contains_key(&port.number));
        for port in ports.filter(|port| !port.protocol.is_http()) {
            for (shard, endpoint, network) in service.endpoints_of_port(port.number) {
                let at = (endpoint.address, endpoint.port);
                if decide(context, view, service, shard, endpoint, network) != Ok(Path::Direct) {
                    continue;
                }
                let vip_sources = service.vip_source_of_port(&view.cluster, port).into_iter();
                let precedence =
                    vip_sources.chain([shard]).map(|key| context.precedence(key)).max();
                let holder = wanted.entry(at).or_insert((precedence, service, port));
                if precedence < holder.0 {
                    *holder = (precedence, service, port);
                }
            }
        }
    }
    let made = wanted.into_iter().filter_map(|(at, (_, service, port))| {
        let name = name(at.0, at.1);
        if shared.binary_search_by(|one| (*one.name).cmp(&name)).is_ok() {
            return None;
        }
        let ruled = rules.connections_for(service.hostname(), port, Some(at.0));
        let policies = context.rules_for(service);
        let rule = view.rule(&policies, service);
        let policy = rule.map(|rule| rule.resolved("", port.number)).unwrap_or_default();
        let limits = ConnectionLimits::from_policy(&policy.or_usual(&context.mesh.usual_limits));
        let (host, logs) = (service.hostname().clone(), Arc::clone(&settings.logs));
        let (spans, filters) = (settings.spans.clone(), Arc::clone(&settings.filters));
        let metrics = settings.metrics.as_ref().map(|metrics| Arc::clone(&metrics.choice));
        let key = (
            at.0,
            at.1,
            host,
            port.number,
            port.protocol,
            limits.clone(),
            ruled.as_ref().map(RuledConnections::encoded),
            logs,
            spans,
            metrics,
            filters,
            form,
        );
        let make = || {
            let upstream = OutboundName::sidecar(service.hostname().clone(), port.number);
            let rest = || tcp_limited(settings, &upstream.to_string(), limits.clone());
            let ruled = ruled.clone().unwrap_or_default();
            let message = service_listener(settings, at, (service, port), ruled, rest)?;
            Some(encode(name.clone(), &settings.istio.in_chains(message)))
        };
        keep(key, &make).map(|listener| (at.0, listener))
    });
    made.collect()
}

/// Returns the ports of a service for which proxies of `cluster` have upstream clusters.
fn proxied<'a>(service: &'a MergedService, cluster: &ClusterId) -> impl Iterator<Item = &'a Port> {
    let alias = matches!(service.primary.resolution, Resolution::Alias(_));
    let ports = service.ports_in(cluster);
    ports.filter(move |port| !alias && port.protocol != Protocol::Udp)
}

fn name(address: IpAddr, port: u16) -> String {
    format!("{address}_{port}")
}

/// Returns the listener for redirected connections. It handles connections that no other listener
/// accepts, including those to pods of headless services in other networks.
fn arrival(
    settings: &TrafficSettings,
    families: Families,
    interception: Interception,
    remote_pods: Vec<listener::FilterChain>,
) -> Option<listener::Listener> {
    let port = settings.outbound_port;
    // Without this chain, a connection to the listener's own port would loop.
    let guard = chain("virtualOutbound-blackhole", Some(to_port(port)), tcp(settings, BLACK_HOLE));
    Some(listener::Listener {
        use_original_dst: bool_value(true),
        filter_chains: std::iter::once(guard).chain(remote_pods).collect(),
        default_filter_chain: Some(unknown("virtualOutbound-catchall-tcp", settings)),
        traffic_direction: TrafficDirection::Outbound.into(),
        transparent: is_transparent(interception),
        ..listening_on("virtualOutbound".into(), &wildcards(families), port)?
    })
}

/// Returns the chain for connections to unknown destinations.
fn unknown(name: &str, settings: &TrafficSettings) -> listener::FilterChain {
    let upstream = settings.to_unknown().unwrap_or(BLACK_HOLE);
    chain(name, None, tcp(settings, upstream))
}

/// The chains of the listener that accepts connections of one port to addresses without their own
/// listener.
#[derive(Default)]
struct AnyAddress<'a> {
    /// Whether the listener accepts HTTP, which is routed by host name.
    http: bool,
    grpc_web: bool,
    /// Services with address ranges; each list starts with the oldest service. Envoy selects the
    /// chain of the longest prefix.
    ranges: BTreeMap<IpNet, Vec<(&'a MergedService, &'a Port)>>,
    /// Services without an address whose clients send SNI.
    names: BTreeMap<&'a Hostname, (&'a MergedService, &'a Port)>,
    /// A service without an address whose clients do not send SNI. It receives the remaining
    /// connections.
    rest: Option<(&'a MergedService, &'a Port)>,
    /// The chains for pods of headless services in other networks.
    remote_pods: Vec<listener::FilterChain>,
}

impl AnyAddress<'_> {
    fn listener(
        &self,
        rules: ConnectionRules<'_>,
        families: Families,
        port: u16,
    ) -> Option<listener::Listener> {
        let settings = rules.settings;
        let wildcards = wildcards(families);
        let name = name(*wildcards.first()?, port);
        let manager = Http {
            stat_prefix: format!("outbound_{name}"),
            port: Some(port),
            routes: routes_named(port.to_string()),
            grpc_web: self.grpc_web,
            routed: true,
            by_mtls: false,
            guards: Vec::new(),
        }
        .manager(settings);
        let mut chains = Vec::new();
        if self.http {
            chains.push(chain("http", Some(found(PLAIN, &PLAIN_HTTP)), http(&manager)));
        }
        for (range, services) in &self.ranges {
            chains.extend(self.at_range(rules, &name, *range, services));
        }
        chains.extend(self.remote_pods.iter().cloned());
        let named = self.by_name(rules);
        let mut needs_names = chains.iter().any(is_named);
        needs_names |= !named.is_empty();
        chains.extend(named.into_iter().map(|one| one.chain));
        if let Some((service, port)) = self.rest
            && let Some(ruled) = rules.connections_for(service.hostname(), port, None)
        {
            let parts = ruled.by_range.into_iter();
            let parts = parts.filter(|(part, _)| self.is_for(None, *part));
            chains.extend(parts.map(|(part, filter)| range_chain(part, filter)));
        }
        // Envoy refuses a listener in which two chains have equal matches.
        let mut matches = HashSet::new();
        chains.retain(|chain| {
            matches.insert(chain.filter_chain_match.as_ref().map(Message::encode_to_vec))
        });
        let rest = match self.rest {
            Some((service, port)) => {
                let ruled = rules
                    .connections_for(service.hostname(), port, None)
                    .and_then(|ruled| ruled.rest);
                let filter = ruled.unwrap_or_else(|| rules.to_service(service, port));
                chain(service.hostname().to_string(), None, filter)
            }
            None => unknown("PassthroughFilterChain", settings),
        };
        let listener = listener::Listener {
            filter_chains: chains,
            default_filter_chain: Some(rest),
            ..handed_over(name, &wildcards, port)?
        };
        let is_sniffed = |services: &Vec<(&MergedService, &Port)>| {
            services.first().is_some_and(|(_, port)| port.protocol == Protocol::Auto)
        };
        let sniffs = self.http || self.ranges.values().any(is_sniffed);
        let mut filters = Vec::new();
        if needs_names {
            filters.push(tls_inspector());
        }
        if sniffs {
            filters.push(http_inspector());
        }
        Some(if filters.is_empty() { listener } else { detect(settings, filters, listener) })
    }

    /// Returns whether connections to `addresses` belong to the services of this range, or to
    /// services without a range (`None`). They belong to the narrowest range that contains them.
    fn is_for(&self, range: Option<IpNet>, addresses: IpNet) -> bool {
        let around = self.ranges.keys().filter(|range| range.contains(&addresses));
        around.max_by_key(|range| range.prefix_len()).copied() == range
    }

    /// Returns the chains of a range of services. The first service receives the connections that
    /// no rule or name matches.
    fn at_range(
        &self,
        rules: ConnectionRules<'_>,
        listener: &str,
        range: IpNet,
        services: &[(&MergedService, &Port)],
    ) -> Vec<listener::FilterChain> {
        let mut chains = Vec::new();
        let (mut named, mut used_names) = (Vec::new(), BTreeSet::new());
        let mut first = None;
        for (service, port) in services {
            let ruled = rules.connections_for(service.hostname(), port, None).unwrap_or_default();
            let is_by_name = !ruled.by_name.is_empty();
            let own = if is_by_name {
                ruled.by_name.iter().filter_map(|one| one.part(range)).collect()
            } else if services.len() > 1 && port.protocol.begins_tls() {
                let name = service.hostname().as_str().into();
                vec![NamedChain::new(name, rules.to_service(service, port)).within(range)]
            } else {
                Vec::new()
            };
            named.extend(own.into_iter().filter(|chain| {
                chain.range.is_none_or(|part| self.is_for(Some(range), part))
                    && used_names.insert((chain.range, Arc::clone(&chain.name)))
            }));
            if !is_by_name && first.is_none() {
                first = Some((*service, *port, ruled));
            }
        }
        if let Some((service, port, ruled)) = first {
            let wider = ruled.by_range.iter().filter(|(part, _)| part.contains(&range));
            let whole = wider.max_by_key(|(part, _)| part.prefix_len());
            let whole = whole.map(|(_, filter)| filter.clone()).or(ruled.rest);
            let parts = ruled.by_range.into_iter();
            let parts = parts.filter(|(part, _)| {
                range.contains(part) && *part != range && self.is_for(Some(range), *part)
            });
            let whole = whole.unwrap_or_else(|| rules.to_service(service, port));
            let requests = (port.protocol == Protocol::Auto)
                .then(|| http(&service_manager(rules.settings, listener, service, port)));
            for (range, filter) in parts.chain([(range, whole)]) {
                match &requests {
                    Some(requests) => chains.extend(request_chains(range, &filter, requests)),
                    None => chains.push(range_chain(range, filter)),
                }
            }
        }
        chains.extend(completed(named).into_iter().map(|one| one.chain));
        chains
    }

    /// Returns the chains for names of services without an address.
    fn by_name(&self, rules: ConnectionRules<'_>) -> Vec<NamedChain> {
        let ruled = self
            .names
            .iter()
            .map(|(host, (_, port))| (*host, rules.connections_for(host, port, None)));
        let ruled: BTreeMap<_, _> = ruled
            .filter_map(|(host, ruled)| {
                Some((host, ruled.filter(|ruled| !ruled.by_name.is_empty())?))
            })
            .collect();
        let others = || self.names.iter().filter(|(host, _)| !ruled.contains_key(*host));
        let mut used_names: BTreeSet<(Option<IpNet>, Arc<str>)> =
            others().map(|(host, _)| (None, host.as_str().into())).collect();
        let by_rules = ruled.values().flat_map(|ruled| &ruled.by_name);
        let by_rules = by_rules.filter(|chain| {
            chain.range.is_none_or(|part| self.is_for(None, part))
                && used_names.insert((chain.range, Arc::clone(&chain.name)))
        });
        let mut named: Vec<NamedChain> = by_rules.cloned().collect();
        named.extend(others().map(|(host, (service, port))| {
            NamedChain::new(host.as_str().into(), rules.to_service(service, port))
        }));
        completed(named)
    }
}

/// The services that share one address and port.
#[derive(Default)]
struct AtAddress<'a> {
    /// Services whose clients send SNI.
    by_sni: BTreeMap<&'a Hostname, (&'a MergedService, &'a Port)>,
    /// The service of all other connections.
    rest: Option<(&'a MergedService, &'a Port)>,
}

impl<'a> AtAddress<'a> {
    fn add(&mut self, service: &'a MergedService, port: &'a Port) {
        if is_selected_by_sni(service, port) {
            self.by_sni.entry(service.hostname()).or_insert((service, port));
        } else {
            self.rest.get_or_insert((service, port));
        }
    }

    /// Returns the listener. A single service receives every connection, whatever the SNI. If
    /// several services share the address, connections with another name are treated like
    /// connections to unknown destinations.
    fn listener(
        &self,
        rules: ConnectionRules<'_>,
        (address, number): (IpAddr, u16),
    ) -> Option<listener::Listener> {
        let settings = rules.settings;
        let ruled = |(service, port): (&MergedService, &Port)| {
            rules.connections_for(service.hostname(), port, Some(address))
        };
        let alone = |(service, port): (&MergedService, &Port)| {
            if port.protocol.is_http() {
                return for_requests(settings, (address, number), (service, port));
            }
            let ruled = ruled((service, port)).unwrap_or_default();
            let rest = || rules.to_service(service, port);
            service_listener(settings, (address, number), (service, port), ruled, rest)
        };
        let mut rest_listener = match (self.rest, self.by_sni.values().next()) {
            (Some(rest), None) => return alone(rest),
            (None, Some(only)) if self.by_sni.len() == 1 => return alone(*only),
            (Some(rest), Some(_)) => alone(rest)?,
            (None, _) => listener::Listener {
                default_filter_chain: Some(unknown("PassthroughFilterChain", settings)),
                ..handed_over(name(address, number), &[address], number)?
            },
        };
        let mut used_names = BTreeSet::new();
        let mut named: Vec<NamedChain> = Vec::new();
        for (host, (service, port)) in &self.by_sni {
            let ruled = ruled((service, port)).unwrap_or_default();
            let mut chains = ruled.by_name;
            if chains.is_empty() {
                let filter = ruled.rest.unwrap_or_else(|| rules.to_service(service, port));
                chains.push(NamedChain::new(host.as_str().into(), filter));
            }
            named.extend(chains.into_iter().filter(|one| used_names.insert(Arc::clone(&one.name))));
        }
        rest_listener.filter_chains.splice(0..0, named.into_iter().map(|one| one.chain));
        let mut filters = vec![tls_inspector()];
        filters.append(&mut rest_listener.listener_filters);
        Some(detect(settings, filters, rest_listener))
    }
}

fn is_named(chain: &listener::FilterChain) -> bool {
    chain.filter_chain_match.as_ref().is_some_and(|wanted| !wanted.server_names.is_empty())
}

/// Returns the ports at which a service is reached, each with the corresponding port of the
/// service: its own ports, and ports of a Sidecar's listeners that map to the only port of the
/// service.
fn wanted_ports<'a>(
    (context, class): (&'a PushContext, &'a Class),
    scope: ImportScope<'_>,
    service: &'a MergedService,
) -> impl Iterator<Item = (u16, &'a MergedService, &'a Port)> {
    let own = proxied(service, &class.cluster).map(move |port| (port.number, service, port));
    let whole = || context.service(service.hostname().as_str(), &class.namespace);
    let only = scope.is_by_port().then(whole).flatten().and_then(|whole| {
        let mut ports = proxied(whole, &class.cluster);
        let only = ports.next()?;
        (ports.next().is_none() && !only.protocol.is_http()).then_some((&**whole, only))
    });
    let routed = only.map_or_else(Vec::new, |(whole, only)| {
        let host = HostPattern::for_service(whole.hostname());
        let ports = scope.ports_to_only(&host, &whole.primary.namespace, only.number);
        ports.map(|number| (number, whole, only)).collect()
    });
    own.chain(routed)
}

/// Returns a listener for requests to an HTTP proxy. Each request names a host and port. Without
/// `at`, it listens on all addresses.
fn for_proxy_requests(
    settings: &TrafficSettings,
    families: Families,
    at: Option<EgressAddress>,
    port: u16,
) -> Option<listener::Listener> {
    let addresses = at.map_or_else(|| wildcards(families), |at| vec![at.address]);
    let name = name(*addresses.first()?, port);
    let manager = Http {
        stat_prefix: format!("outbound_{name}"),
        port: Some(port),
        routes: routes_named(proxy_route_name(port)),
        grpc_web: false,
        routed: true,
        by_mtls: false,
        guards: Vec::new(),
    };
    let requests = chain("http_proxy", None, http(&manager.manager(settings)));
    Some(listener::Listener {
        default_filter_chain: Some(requests),
        bind_to_port: bool_value(at.is_some_and(|at| at.listens)),
        ..handed_over(name, &addresses, port)?
    })
}

/// The services that are reached at a listener of a Sidecar.
struct PlacedPort<'a> {
    /// Whether a service accepts HTTP, which is routed by host name.
    http: bool,
    grpc_web: bool,
    /// The first service, which is the oldest. It receives connections if no service accepts HTTP.
    first: (&'a MergedService, &'a Port),
}

impl<'a> PlacedPort<'a> {
    fn new(service: &'a MergedService, port: &'a Port) -> Self {
        Self { http: false, grpc_web: false, first: (service, port) }
    }

    fn add(&mut self, port: &Port) {
        self.http |= port.protocol.is_http();
        self.grpc_web |= port.protocol == Protocol::GrpcWeb;
    }

    fn listener(
        &self,
        rules: ConnectionRules<'_>,
        EgressAddress { address, listens }: EgressAddress,
        number: u16,
    ) -> Option<listener::Listener> {
        let settings = rules.settings;
        let (service, port) = self.first;
        let listener = if self.http {
            let name = name(address, number);
            let manager = Http {
                stat_prefix: format!("outbound_{name}"),
                port: Some(number),
                routes: routes_named(number.to_string()),
                grpc_web: self.grpc_web,
                routed: true,
                by_mtls: false,
                guards: Vec::new(),
            };
            let requests = chain("http", None, http(&manager.manager(settings)));
            listener::Listener {
                default_filter_chain: Some(requests),
                ..handed_over(name, &[address], number)?
            }
        } else {
            let ruled =
                rules.connections_for(service.hostname(), port, Some(address)).unwrap_or_default();
            let rest = || rules.to_service(service, port);
            service_listener(settings, (address, number), (service, port), ruled, rest)?
        };
        Some(listener::Listener { bind_to_port: bool_value(listens), ..listener })
    }
}

/// Returns the listener of an address of one service. `rest` handles the connections that no rule
/// matches.
fn service_listener(
    settings: &TrafficSettings,
    (address, number): (IpAddr, u16),
    (service, port): (&MergedService, &Port),
    ruled: RuledConnections,
    rest: impl FnOnce() -> listener::Filter,
) -> Option<listener::Listener> {
    let name = name(address, number);
    let listener = handed_over(name.clone(), &[address], number)?;
    if !ruled.by_name.is_empty() {
        // TLS connections with another name or without a name are closed.
        let filter_chains = ruled.by_name.into_iter().map(|one| one.chain).collect();
        let listener = listener::Listener { filter_chains, ..listener };
        return Some(detect(settings, vec![tls_inspector()], listener));
    }
    let filter = ruled.rest.unwrap_or_else(rest);
    let listener =
        listener::Listener { default_filter_chain: Some(chain("tcp", None, filter)), ..listener };
    if port.protocol != Protocol::Auto {
        return Some(listener);
    }
    let manager = service_manager(settings, &name, service, port);
    let sniffed = chain("http", Some(found(PLAIN, &PLAIN_HTTP)), http(&manager));
    let listener = listener::Listener { filter_chains: vec![sniffed], ..listener };
    Some(detect(settings, vec![http_inspector()], listener))
}

/// Returns whether requests to a service are recognized by its addresses, whatever host they name.
fn is_addressed(context: &PushContext, class: &Class, service: &MergedService) -> bool {
    let (host, namespace) = (service.hostname(), &service.primary.namespace);
    let is_cluster_service = [context.settings.domain.as_str(), CLUSTERSET]
        .iter()
        .any(|domain| host.service_in(domain).is_some());
    is_cluster_service && context.traffic.addressed.contains(namespace, &class.namespace)
}

/// Returns a listener for requests to an address of one service. Other data is forwarded to its
/// original destination.
fn for_requests(
    settings: &TrafficSettings,
    (address, number): (IpAddr, u16),
    (service, port): (&MergedService, &Port),
) -> Option<listener::Listener> {
    let name = name(address, number);
    let manager = service_manager(settings, &name, service, port);
    let requests = chain("http", Some(found(PLAIN, &PLAIN_HTTP)), http(&manager));
    let listener = listener::Listener {
        filter_chains: vec![requests],
        default_filter_chain: Some(unknown("PassthroughFilterChain", settings)),
        ..handed_over(name, &[address], number)?
    };
    Some(detect(settings, vec![http_inspector()], listener))
}

/// Returns the HTTP connection manager for requests to one service.
fn service_manager(
    settings: &TrafficSettings,
    listener: &str,
    service: &MergedService,
    port: &Port,
) -> HttpConnectionManager {
    Http {
        stat_prefix: format!("outbound_{listener}"),
        port: Some(port.number),
        routes: routes_named(format!("{}:{}", service.hostname(), port.number)),
        grpc_web: port.protocol == Protocol::GrpcWeb,
        routed: true,
        by_mtls: false,
        guards: Vec::new(),
    }
    .manager(settings)
}

/// Returns a listener that only receives connections from the listener for redirected connections.
fn handed_over(name: String, addresses: &[IpAddr], port: u16) -> Option<listener::Listener> {
    Some(listener::Listener {
        bind_to_port: bool_value(false),
        traffic_direction: TrafficDirection::Outbound.into(),
        ..listening_on(name, addresses, port)?
    })
}
