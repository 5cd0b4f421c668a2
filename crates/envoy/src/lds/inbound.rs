//! The inbound listener of a sidecar. All redirected connections arrive at it. It has a few filter
//! chains for each port of a service, and some for all other ports.
//!
//! The policies of the workload define how each port accepts connections
//! (`strait_rules::access::PeerModes`). The default is PERMISSIVE: mTLS and plain text are
//! accepted. A client of the mesh is recognized by its application protocol (ALPN) and must present
//! an identity of the mesh; other TLS connections are forwarded without decryption unless the port
//! is HTTP. STRICT accepts only TLS with an identity. DISABLE forwards all connections unchanged,
//! including the workload's own TLS. Envoy selects a chain by port, then by TLS or plain text, then
//! by application protocol, and never reconsiders a step.

use std::collections::BTreeSet;

use super::merged::merged;
use super::parts::{
    Families, Http, PLAIN, PLAIN_HTTP, RetryOn, TLS, any_port, bool_value, catch_all_host, chain,
    detect, found, http, http_inspector, is_transparent, listening_on, no_port, normalizing,
    original_destination, original_source, retries, route_to, tcp, tcp_accepted, tls_inspector,
    to_port, wildcards,
};
use super::settings::MESH_ALPN;
use super::{ConnectionLimits, TrafficSettings};
use crate::cds::{BLACK_HOLE, INBOUND_PASSTHROUGH, inbound_name, inbound_policy};
use crate::encode;
use crate::rbac::AccessFilters;
use crate::service_metrics::ServiceMetrics;
use crate::tls::{Secrets, ingress_socket};
use strait_mesh::push::proxy::InboundTarget;
use strait_model::{Interception, Protocol, Proxy};
use strait_proto::envoy::envoy::config::core::v3::{TrafficDirection, TransportSocket};
use strait_proto::envoy::envoy::config::listener::v3 as listener;
use strait_proto::envoy::envoy::config::route::v3 as route;
use strait_proto::envoy::envoy::extensions::filters::network::http_connection_manager::v3 as hcm;
use strait_rules::access::{PeerMode, PeerModes};
use strait_rules::traffic::sidecar::{IngressAddress, SidecarTls};
use strait_xds::resource::Resource;

/// The name of the inbound listener.
const NAME: &str = "virtualInbound";
/// Application protocols of mesh clients that have detected HTTP. Istio's proxies send them, plain
/// Envoys do not.
const MESH_HTTP_ALPN: [&str; 3] = ["istio-http/1.0", "istio-http/1.1", "istio-h2"];
/// Application protocols of mesh clients that have not parsed the protocol.
const MESH_BYTES_ALPN: [&str; 2] = ["istio-peer-exchange", "istio"];
/// Application protocols that servers accept. They never include the mesh's names: `istio` would
/// hide `h2` from the codec, and after `istio-peer-exchange` the client sends data that only
/// Istio's filter reads, so that name is added only with that filter.
pub(super) const ACCEPTED_ALPN: [&str; 2] = ["h2", "http/1.1"];

/// The settings that control access to a workload.
#[derive(Clone, Copy)]
pub(super) struct InboundWorkload<'a> {
    /// The location of the proxy's certificate and roots.
    pub(super) secrets: &'a Secrets,
    /// The trust domains of accepted clients.
    pub(super) trust_domains: &'a BTreeSet<&'a str>,
    /// The mTLS modes of the ports.
    pub(super) modes: &'a PeerModes,
    /// The access filters of the chains.
    pub(super) filters: &'a AccessFilters,
}

/// Returns the listener for redirected inbound connections of a sidecar, for the ports that its
/// workload serves.
pub(super) fn listener(
    settings: &TrafficSettings,
    (families, interception): (Families, Interception),
    workload: InboundWorkload<'_>,
    targets: &[InboundTarget<'_>],
) -> Option<Resource> {
    let arrival = settings.inbound_port;
    let InboundWorkload { secrets, trust_domains, modes, filters } = workload;
    let mtls = &MeshSockets::new(settings, secrets, trust_domains);
    // Without this chain, a connection to the listener's own port would loop.
    let guard =
        chain("virtualInbound-blackhole", Some(to_port(arrival)), tcp(settings, BLACK_HOLE));
    let mut chains = vec![guard];
    let mut declared = Vec::new();
    let mut own_tls = BTreeSet::new();
    for target in targets {
        if target.target == arrival || is_apart(target, interception) {
            continue;
        }
        let kind = PortKnowledge::from_protocol(target.port.protocol);
        if kind != PortKnowledge::Undeclared {
            declared.push(target.target);
        }
        let port = Inbound::new(target, settings, mtls, filters);
        let mode = modes.of_port(target.target).mode;
        match sidecar_tls(target, mode) {
            Some(tls) => {
                own_tls.insert(target.target);
                chains.push(port.ending_tls(tls));
            }
            None => chains.extend(port.chains(kind, mode)),
        }
    }
    let rest = |port: Option<u16>| Inbound {
        settings,
        mtls,
        filters,
        port,
        arrives_at: port,
        name: port.map_or(NAME.into(), |port| port.to_string()),
        upstream: INBOUND_PASSTHROUGH.into(),
        virtual_host: "inbound|http|0".into(),
        grpc_web: false,
        protocol: Protocol::Auto,
        limits: ConnectionLimits::default(),
    };
    // Ports that policies name and no service has.
    let served = |port: u16| port == arrival || targets.iter().any(|one| one.target == port);
    let others =
        modes.ports.iter().filter(|(port, mode)| !served(**port) && mode.mode != modes.rest.mode);
    for (port, mode) in others {
        chains.extend(rest(Some(*port)).chains(PortKnowledge::Undeclared, mode.mode));
    }
    chains.extend(rest(None).chains(PortKnowledge::Undeclared, modes.rest.mode));
    let http_inspector = listener::ListenerFilter {
        // Ports with a declared protocol need no detection, and a server that speaks first must not
        // wait for its client.
        filter_disabled: any_port(&declared),
        ..http_inspector()
    };
    let mut filters = vec![original_destination()];
    if interception == Interception::Transparent {
        // The workload sees the client addresses.
        filters.push(original_source());
    }
    filters.extend(tls_inspector_for(modes, &own_tls));
    filters.push(http_inspector);
    let listener = listener::Listener {
        filter_chains: chains,
        traffic_direction: TrafficDirection::Inbound.into(),
        transparent: is_transparent(interception),
        ..listening_on(NAME.into(), &wildcards(families), arrival)?
    };
    let listener = detect(settings, filters, listener);
    Some(encode(NAME, &settings.istio.in_chains(listener)))
}

/// Returns the listeners for ports on which a Sidecar makes the proxy listen directly. They have
/// the same chains as in the listener for redirected connections.
pub(super) fn apart(
    settings: &TrafficSettings,
    proxy: &Proxy,
    workload: InboundWorkload<'_>,
    targets: &[InboundTarget<'_>],
) -> Vec<Resource> {
    let InboundWorkload { secrets, trust_domains, modes, filters } = workload;
    let mtls = &MeshSockets::new(settings, secrets, trust_domains);
    let listeners = targets.iter().filter_map(|target| {
        let name = apart_name(target, proxy.interception)?;
        if !proxy.may_listen_at(target.target) {
            return None;
        }
        let addresses = match target.ingress?.address {
            IngressAddress::Own => proxy.addresses.clone(),
            IngressAddress::Given(address) => vec![address],
        };
        let kind = PortKnowledge::from_protocol(target.port.protocol);
        let mode = modes.of_port(target.target).mode;
        let port = Inbound { port: None, ..Inbound::new(target, settings, mtls, filters) };
        let own_tls = sidecar_tls(target, mode);
        let filter_chains = match own_tls {
            Some(tls) => vec![port.ending_tls(tls)],
            None => port.chains(kind, mode).collect(),
        };
        let looks_for_tls = own_tls.is_some() || mode != PeerMode::Disable;
        let looks_for_http = kind == PortKnowledge::Undeclared && own_tls.is_none();
        let mut inspectors: Vec<_> = looks_for_tls.then(tls_inspector).into_iter().collect();
        inspectors.extend(looks_for_http.then(http_inspector));
        let listener = listener::Listener {
            filter_chains,
            traffic_direction: TrafficDirection::Inbound.into(),
            ..listening_on(name.clone(), &addresses, target.target)?
        };
        let listener = detect(settings, inspectors, listener);
        Some(encode(name, &settings.istio.in_chains(listener)))
    });
    listeners.collect()
}

/// Returns the name of the separate listener of a port, if the port has one.
pub(crate) fn apart_name(target: &InboundTarget<'_>, interception: Interception) -> Option<String> {
    is_apart(target, interception).then(|| format!("inbound_{}", target.target))
}

/// Returns whether the proxy listens on the port itself.
fn is_apart(target: &InboundTarget<'_>, interception: Interception) -> bool {
    target.ingress.is_some_and(|ingress| ingress.is_apart(interception))
}

/// Returns the TLS settings of a Sidecar for a port. They apply only if the port does not accept
/// mTLS.
fn sidecar_tls<'a>(target: &InboundTarget<'a>, mode: PeerMode) -> Option<&'a SidecarTls> {
    target.ingress?.tls.as_deref().filter(|_| mode == PeerMode::Disable)
}

/// Returns the filter that detects TLS, for ports that accept mTLS or terminate TLS themselves.
/// Other ports forward TLS like any other data.
fn tls_inspector_for(
    modes: &PeerModes,
    own_tls: &BTreeSet<u16>,
) -> Option<listener::ListenerFilter> {
    let ports = |disabled: bool| -> BTreeSet<u16> {
        let is = |mode: PeerMode| (mode == PeerMode::Disable) == disabled;
        let ports = modes.ports.iter().filter(|(_, port)| is(port.mode));
        ports.map(|(port, _)| *port).filter(|port| !own_tls.contains(port)).collect()
    };
    let filter_disabled = if modes.rest.mode == PeerMode::Disable {
        let looked_at: Vec<u16> = ports(false).union(own_tls).copied().collect();
        Some(no_port(&looked_at)?)
    } else {
        any_port(&ports(true).into_iter().collect::<Vec<_>>())
    };
    Some(listener::ListenerFilter { filter_disabled, ..tls_inspector() })
}

/// Information about the protocol of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PortKnowledge {
    Http,
    Bytes,
    Undeclared,
}

impl PortKnowledge {
    fn from_protocol(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Auto => Self::Undeclared,
            http if http.is_http() => Self::Http,
            _ => Self::Bytes,
        }
    }

    /// Returns the accepted connections, with the way in which each is forwarded.
    fn accepted(self, mode: PeerMode) -> &'static [InboundMatch] {
        use Content::{Bytes, Http};
        const fn mtls(alpn: &'static [&'static str], content: Content) -> InboundMatch {
            InboundMatch { transport: TLS, alpn, mtls: true, content }
        }
        const fn plain(alpn: &'static [&'static str], content: Content) -> InboundMatch {
            InboundMatch { transport: PLAIN, alpn, mtls: false, content }
        }
        const UNOPENED: InboundMatch =
            InboundMatch { transport: TLS, alpn: &[], mtls: false, content: Bytes };
        match (mode, self) {
            (PeerMode::Strict, Self::Http) => &const { [mtls(&[], Http)] },
            (PeerMode::Strict, Self::Bytes) => &const { [mtls(&[], Bytes)] },
            (PeerMode::Strict, Self::Undeclared) => {
                &const { [mtls(&MESH_HTTP_ALPN, Http), mtls(&[], Bytes)] }
            }
            (PeerMode::Disable, Self::Http) => &const { [plain(&[], Http)] },
            (PeerMode::Disable, Self::Bytes) => &const { [plain(&[], Bytes)] },
            (PeerMode::Disable, Self::Undeclared) => {
                &const { [plain(&PLAIN_HTTP, Http), plain(&[], Bytes)] }
            }
            (PeerMode::Permissive, Self::Http) => {
                &const { [mtls(&MESH_ALPN, Http), plain(&[], Http)] }
            }
            (PeerMode::Permissive, Self::Bytes) => {
                &const { [mtls(&MESH_ALPN, Bytes), plain(&[], Bytes), UNOPENED] }
            }
            (PeerMode::Permissive, Self::Undeclared) => {
                &const {
                    [
                        mtls(&MESH_HTTP_ALPN, Http),
                        mtls(&MESH_BYTES_ALPN, Bytes),
                        plain(&PLAIN_HTTP, Http),
                        plain(&[], Bytes),
                        UNOPENED,
                    ]
                }
            }
        }
    }
}

/// A kind of accepted connection.
struct InboundMatch {
    /// The transport protocol: TLS or plain text.
    transport: &'static str,
    /// Application protocols that the client offers or that were detected; empty matches all
    /// others.
    alpn: &'static [&'static str],
    /// Whether the chain terminates mTLS.
    mtls: bool,
    /// The protocol with which the connection is forwarded.
    content: Content,
}

#[derive(Clone, Copy)]
enum Content {
    Http,
    Bytes,
}

/// The transport sockets that terminate the mesh's mTLS.
struct MeshSockets {
    http: TransportSocket,
    bytes: TransportSocket,
}

impl MeshSockets {
    fn new(settings: &TrafficSettings, secrets: &Secrets, trust_domains: &BTreeSet<&str>) -> Self {
        let bytes = settings.istio.accepted(&ACCEPTED_ALPN);
        Self {
            http: secrets.downstream(&ACCEPTED_ALPN, trust_domains, &settings.mesh_tls),
            bytes: secrets.downstream(&bytes, trust_domains, &settings.mesh_tls),
        }
    }
}

/// The inbound settings of one port, or of all ports without their own chains.
struct Inbound<'a> {
    settings: &'a TrafficSettings,
    mtls: &'a MeshSockets,
    filters: &'a AccessFilters,
    port: Option<u16>,
    /// The port that clients connect to, if it is a single one.
    arrives_at: Option<u16>,
    /// The prefix of the names of the chains.
    name: String,
    upstream: String,
    virtual_host: String,
    grpc_web: bool,
    protocol: Protocol,
    /// Limits of raw TCP connections.
    limits: ConnectionLimits,
}

impl<'a> Inbound<'a> {
    /// Returns the settings of a port that the workload serves.
    fn new(
        target: &InboundTarget<'_>,
        settings: &'a TrafficSettings,
        mtls: &'a MeshSockets,
        filters: &'a AccessFilters,
    ) -> Self {
        let limits =
            target.pool.as_ref().map(|pool| ConnectionLimits::from_policy(&inbound_policy(pool)));
        Self {
            settings,
            mtls,
            filters,
            port: Some(target.target),
            arrives_at: Some(target.target),
            name: target.target.to_string(),
            upstream: inbound_name(target.target),
            virtual_host: format!("inbound|http|{}", target.port.number),
            grpc_web: target.port.protocol == Protocol::GrpcWeb,
            protocol: target.port.protocol,
            limits: limits.unwrap_or_default(),
        }
    }

    /// Returns the chain that terminates TLS outside of the mesh's mTLS. The port has no chain for
    /// plain text.
    fn ending_tls(&self, tls: &SidecarTls) -> listener::FilterChain {
        let is_http = self.protocol.is_http() || self.protocol == Protocol::Https;
        let content = if is_http { Content::Http } else { Content::Bytes };
        let accepted = InboundMatch { transport: TLS, alpn: &[], mtls: false, content };
        let transport_socket = Some(ingress_socket(tls, &self.settings.tls_defaults));
        listener::FilterChain { transport_socket, ..self.chain(&accepted) }
    }

    fn chains(
        &self,
        kind: PortKnowledge,
        mode: PeerMode,
    ) -> impl Iterator<Item = listener::FilterChain> {
        kind.accepted(mode).iter().map(|accepted| self.chain(accepted))
    }

    fn chain(&self, accepted: &InboundMatch) -> listener::FilterChain {
        let (content, filter) = match accepted.content {
            Content::Http => ("http", self.http(accepted.mtls)),
            Content::Bytes => {
                let limits = self.limits.clone();
                ("tcp", tcp_accepted(self.settings, &self.upstream, limits, accepted.mtls))
            }
        };
        let security = match (accepted.mtls, accepted.transport) {
            (true, _) => "mtls",
            (false, TLS) => "tls",
            _ => "plain",
        };
        let matches = listener::FilterChainMatch {
            destination_port: self.port.and_then(|port| to_port(port).destination_port),
            ..found(accepted.transport, accepted.alpn)
        };
        let name = format!("{}-{security}-{content}", self.name);
        let chain = chain(name, Some(matches), filter);
        let mtls = match accepted.content {
            Content::Http => &self.mtls.http,
            Content::Bytes => &self.mtls.bytes,
        };
        let transport_socket = accepted.mtls.then(|| mtls.clone());
        let guards = match accepted.content {
            // The HTTP connection manager contains the access filters.
            Content::Http => &[][..],
            Content::Bytes => &self.filters.network,
        };
        let is_http_by_mtls = accepted.mtls && matches!(accepted.content, Content::Http);
        let metrics = self.settings.metrics.as_ref().filter(|_| is_http_by_mtls);
        let noted = metrics.and_then(ServiceMetrics::client_namespace);
        let filters = noted.into_iter().chain(guards.iter().cloned()).chain(chain.filters);
        let filters = filters.collect();
        listener::FilterChain { transport_socket, filters, ..chain }
    }

    /// Returns the filter that sends requests to the workload, with the identity of the client in a
    /// header.
    fn http(&self, by_mtls: bool) -> listener::Filter {
        use hcm::http_connection_manager::{
            ForwardClientCertDetails, RouteSpecifier, SetCurrentClientCertDetails,
        };
        let route = route_to(&self.upstream, Some(retries(RetryOn::OwnWorkload)));
        let routes = route::RouteConfiguration {
            name: self.upstream.clone(),
            virtual_hosts: vec![catch_all_host(&self.virtual_host, route)],
            validate_clusters: bool_value(false),
            ..Default::default()
        };
        let manager = Http {
            stat_prefix: format!("inbound_{}", self.name),
            port: self.arrives_at,
            routes: RouteSpecifier::RouteConfig(routes),
            grpc_web: self.grpc_web,
            routed: false,
            by_mtls,
            guards: self.filters.http.clone(),
        }
        .manager(self.settings);
        let manager = normalizing(self.settings, self.filters.looks_at_paths, manager);
        let manager = hcm::HttpConnectionManager {
            server_name: "istio-envoy".into(),
            // Without mTLS, Envoy removes this header from the client's request.
            forward_client_cert_details: ForwardClientCertDetails::AppendForward.into(),
            set_current_client_cert_details: Some(SetCurrentClientCertDetails {
                subject: bool_value(true),
                dns: true,
                uri: true,
                ..Default::default()
            }),
            ..manager
        };
        http(&merged(self.settings, self.arrives_at, manager))
    }
}
