//! A sidecar's way in: one listener at which every redirected connection arrives, with a few filter
//! chains for each port that a service leads to, and some for all other ports.
//!
//! Each port takes connections as its workload's policies say (`strait_rules::access::PeerModes`). Where nothing is said it is
//! PERMISSIVE: mTLS and plain text are both taken. A client of the mesh is known there by the application protocol
//! (ALPN) it offers, and must then show an identity of the mesh; other TLS is passed on unopened, where the port isn't
//! HTTP. STRICT takes TLS alone, with an identity; DISABLE takes bytes as they come, TLS of the workload's own as well.
//! Chains are chosen as Envoy does: by port, then TLS or not, then application protocol, and a step
//! once taken is never taken back.

use std::collections::BTreeSet;

use super::merged::merged;
use super::parts::{
    Families, Http, PLAIN, PLAIN_HTTP, RetryOn, TLS, any_port, bool_value, chain, detect, found,
    http, http_inspector, is_transparent, listening_on, no_port, normalizing, original_destination,
    original_source, retries, route_to, tcp, tcp_limited, tls_inspector, to_port,
    virtual_host_of_everything, wildcards,
};
use super::settings::MESH_ALPN;
use super::{ConnectionLimits, TrafficSettings};
use crate::cds::{BLACK_HOLE, INBOUND_PASSTHROUGH, inbound_name, inbound_policy};
use crate::encode;
use crate::rbac::AccessFilters;
use crate::tls::{Secrets, of_ingress};
use strait_mesh::push::proxy::InboundTarget;
use strait_model::{Interception, Protocol, Proxy};
use strait_proto::envoy::envoy::config::core::v3::{TrafficDirection, TransportSocket};
use strait_proto::envoy::envoy::config::listener::v3 as listener;
use strait_proto::envoy::envoy::config::route::v3 as route;
use strait_proto::envoy::envoy::extensions::filters::network::http_connection_manager::v3 as hcm;
use strait_rules::access::{PeerMode, PeerModes};
use strait_rules::traffic::sidecar::{IngressAddress, SidecarTls};
use strait_xds::resource::Resource;

/// The name of the listener.
const NAME: &str = "virtualInbound";
/// What a client of the mesh offers that has seen HTTP: Istio's proxies do, plain Envoys don't say.
const MESH_HTTP_ALPN: [&str; 3] = ["istio-http/1.0", "istio-http/1.1", "istio-h2"];
/// What a client of the mesh offers that has not looked.
const MESH_BYTES_ALPN: [&str; 2] = ["istio-peer-exchange", "istio"];
/// What is accepted of a client's offer. Never one of the mesh's own names: `istio` would hide `h2`
/// from the codec, and who agrees to `istio-peer-exchange` is sent what only Istio's filter reads, where that is.
pub(super) const ACCEPTED_ALPN: [&str; 2] = ["h2", "http/1.1"];

/// Who is let in to a workload, and how.
#[derive(Clone, Copy)]
pub(super) struct InboundWorkload<'a> {
    /// Where its proxy finds its certificate and roots.
    pub(super) secrets: &'a Secrets,
    /// The trust domains of clients.
    pub(super) trust_domains: &'a BTreeSet<&'a str>,
    /// How its ports take connections.
    pub(super) modes: &'a PeerModes,
    /// What guards its chains.
    pub(super) filters: &'a AccessFilters,
}

/// The listener at which a sidecar's inbound connections arrive, for the ports that its workload serves.
pub(super) fn listener(
    settings: &TrafficSettings,
    (families, interception): (Families, Interception),
    workload: InboundWorkload<'_>,
    targets: &[InboundTarget<'_>],
) -> Option<Resource> {
    let arrival = settings.inbound_port;
    let InboundWorkload { secrets, trust_domains, modes, filters } = workload;
    let mtls = &MeshSockets::of(settings, secrets, trust_domains);
    // Somebody who connects to the port itself would be sent round and round.
    let guard =
        chain("virtualInbound-blackhole", Some(to_port(arrival)), tcp(settings, BLACK_HOLE));
    let mut chains = vec![guard];
    let mut declared = Vec::new();
    let mut own_tls = BTreeSet::new();
    for target in targets {
        if target.target == arrival || is_apart(target, interception) {
            continue;
        }
        let kind = PortKnowledge::of(target.port.protocol);
        if kind != PortKnowledge::Undeclared {
            declared.push(target.target);
        }
        let port = Inbound::of(target, settings, mtls, filters);
        let mode = modes.of_port(target.target).mode;
        match own_tls_of(target, mode) {
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
    // Ports of which something is said and that no service has.
    let served = |port: u16| port == arrival || targets.iter().any(|one| one.target == port);
    let others =
        modes.ports.iter().filter(|(port, mode)| !served(**port) && mode.mode != modes.rest.mode);
    for (port, mode) in others {
        chains.extend(rest(Some(*port)).chains(PortKnowledge::Undeclared, mode.mode));
    }
    chains.extend(rest(None).chains(PortKnowledge::Undeclared, modes.rest.mode));
    let http_inspector = listener::ListenerFilter {
        // Where the protocol is declared nothing is to be found out, and a server that speaks first
        // must not wait for its client.
        filter_disabled: any_port(&declared),
        ..http_inspector()
    };
    let mut filters = vec![original_destination()];
    if interception == Interception::Transparent {
        // The workload sees its clients' own addresses.
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

/// The listeners at ports at which a Sidecar has its proxy listen itself, with the chains that these ports would have where
/// connections arrive by redirection.
pub(super) fn apart(
    settings: &TrafficSettings,
    proxy: &Proxy,
    workload: InboundWorkload<'_>,
    targets: &[InboundTarget<'_>],
) -> Vec<Resource> {
    let InboundWorkload { secrets, trust_domains, modes, filters } = workload;
    let mtls = &MeshSockets::of(settings, secrets, trust_domains);
    let listeners = targets.iter().filter_map(|target| {
        let name = apart_name(target, proxy.interception)?;
        if !proxy.may_listen_at(target.target) {
            return None;
        }
        let addresses = match target.ingress?.address {
            IngressAddress::Own => proxy.addresses.clone(),
            IngressAddress::Given(address) => vec![address],
        };
        let kind = PortKnowledge::of(target.port.protocol);
        let mode = modes.of_port(target.target).mode;
        let port = Inbound { port: None, ..Inbound::of(target, settings, mtls, filters) };
        let own_tls = own_tls_of(target, mode);
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

/// The name of the listener of a port that has one of its own.
pub(crate) fn apart_name(target: &InboundTarget<'_>, interception: Interception) -> Option<String> {
    is_apart(target, interception).then(|| format!("inbound_{}", target.target))
}

/// Whether the proxy listens at the port itself.
fn is_apart(target: &InboundTarget<'_>, interception: Interception) -> bool {
    target.ingress.is_some_and(|ingress| ingress.is_apart(interception))
}

/// TLS that a Sidecar says of a port, which counts where the port takes no mTLS.
fn own_tls_of<'a>(target: &InboundTarget<'a>, mode: PeerMode) -> Option<&'a SidecarTls> {
    target.ingress?.tls.as_deref().filter(|_| mode == PeerMode::Disable)
}

/// What tells TLS from plain text, at the ports that take mTLS or end TLS of their own: at others TLS is the workload's,
/// and bytes like any.
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

/// How much is known of what a port speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PortKnowledge {
    Http,
    Bytes,
    Undeclared,
}

impl PortKnowledge {
    fn of(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Auto => Self::Undeclared,
            http if http.is_http() => Self::Http,
            _ => Self::Bytes,
        }
    }

    /// The connections that are taken, each with what becomes of them.
    fn taken(self, mode: PeerMode) -> &'static [InboundMatch] {
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

/// Connections that are taken.
struct InboundMatch {
    /// TLS or plain text.
    transport: &'static str,
    /// What the client offers or was found to speak; empty for all else.
    alpn: &'static [&'static str],
    /// Whether mTLS ends here.
    mtls: bool,
    /// As what they are passed on.
    content: Content,
}

#[derive(Clone, Copy)]
enum Content {
    Http,
    Bytes,
}

/// Where the mesh's mTLS ends.
struct MeshSockets {
    http: TransportSocket,
    bytes: TransportSocket,
}

impl MeshSockets {
    fn of(settings: &TrafficSettings, secrets: &Secrets, trust_domains: &BTreeSet<&str>) -> Self {
        let bytes = settings.istio.accepted(&ACCEPTED_ALPN);
        Self {
            http: secrets.downstream(&ACCEPTED_ALPN, trust_domains, &settings.mesh_tls),
            bytes: secrets.downstream(&bytes, trust_domains, &settings.mesh_tls),
        }
    }
}

/// One port, or all that have no chains of their own.
struct Inbound<'a> {
    settings: &'a TrafficSettings,
    mtls: &'a MeshSockets,
    filters: &'a AccessFilters,
    port: Option<u16>,
    /// The port that its clients mean, if it is one.
    arrives_at: Option<u16>,
    /// Names the chains.
    name: String,
    upstream: String,
    virtual_host: String,
    grpc_web: bool,
    protocol: Protocol,
    /// What connections of bytes are held to.
    limits: ConnectionLimits,
}

impl<'a> Inbound<'a> {
    /// What becomes of connections to a port that the workload serves.
    fn of(
        target: &InboundTarget<'_>,
        settings: &'a TrafficSettings,
        mtls: &'a MeshSockets,
        filters: &'a AccessFilters,
    ) -> Self {
        let limits = target.pool.as_ref().map(|pool| ConnectionLimits::of(&inbound_policy(pool)));
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

    /// The chain where TLS ends that is none of the mesh. There is none for plain text.
    fn ending_tls(&self, tls: &SidecarTls) -> listener::FilterChain {
        let is_http = self.protocol.is_http() || self.protocol == Protocol::Https;
        let content = if is_http { Content::Http } else { Content::Bytes };
        let taken = InboundMatch { transport: TLS, alpn: &[], mtls: false, content };
        let transport_socket = Some(of_ingress(tls, &self.settings.tls_defaults));
        listener::FilterChain { transport_socket, ..self.chain(&taken) }
    }

    fn chains(
        &self,
        kind: PortKnowledge,
        mode: PeerMode,
    ) -> impl Iterator<Item = listener::FilterChain> {
        kind.taken(mode).iter().map(|taken| self.chain(taken))
    }

    fn chain(&self, taken: &InboundMatch) -> listener::FilterChain {
        let (content, filter) = match taken.content {
            Content::Http => ("http", self.http()),
            Content::Bytes => {
                ("tcp", tcp_limited(self.settings, &self.upstream, self.limits.clone()))
            }
        };
        let security = match (taken.mtls, taken.transport) {
            (true, _) => "mtls",
            (false, TLS) => "tls",
            _ => "plain",
        };
        let matches = listener::FilterChainMatch {
            destination_port: self.port.and_then(|port| to_port(port).destination_port),
            ..found(taken.transport, taken.alpn)
        };
        let name = format!("{}-{security}-{content}", self.name);
        let chain = chain(name, Some(matches), filter);
        let mtls = match taken.content {
            Content::Http => &self.mtls.http,
            Content::Bytes => &self.mtls.bytes,
        };
        let transport_socket = taken.mtls.then(|| mtls.clone());
        let guards = match taken.content {
            // They are in the manager.
            Content::Http => &[][..],
            Content::Bytes => &self.filters.network,
        };
        let filters = guards.iter().cloned().chain(chain.filters).collect();
        listener::FilterChain { transport_socket, filters, ..chain }
    }

    /// Requests go to the workload with the identity of the client beside them.
    fn http(&self) -> listener::Filter {
        use hcm::http_connection_manager::{
            ForwardClientCertDetails, RouteSpecifier, SetCurrentClientCertDetails,
        };
        let route = route_to(&self.upstream, Some(retries(RetryOn::OwnWorkload)));
        let routes = route::RouteConfiguration {
            name: self.upstream.clone(),
            virtual_hosts: vec![virtual_host_of_everything(&self.virtual_host, route)],
            validate_clusters: bool_value(false),
            ..Default::default()
        };
        let manager = Http {
            stat_prefix: format!("inbound_{}", self.name),
            port: self.arrives_at,
            routes: RouteSpecifier::RouteConfig(routes),
            grpc_web: self.grpc_web,
            routed: false,
            guards: self.filters.http.clone(),
        }
        .manager(self.settings);
        let manager = normalizing(self.settings, self.filters.looks_at_paths, manager);
        let manager = hcm::HttpConnectionManager {
            server_name: "istio-envoy".into(),
            // Without mTLS Envoy drops what the client says of itself.
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
