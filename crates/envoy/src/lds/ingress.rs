//! Listeners of a router: one for each port of the Gateways that select the router.
//! (docs/reference/traffic.md, "Gateway".)
//!
//! Plain text uses one chain. With TLS, each server has a chain that is selected by SNI.
//! Connections with another name match no chain and are closed.

use std::collections::BTreeSet;

use super::TrafficSettings;
use super::inbound::ACCEPTED_ALPN;
use super::merged::merged;
use super::parts::{
    Families, Http, PLAIN, TLS, bool_value, chain, found, http, listening_on, normalizing,
    proxy_protocol, refused_connection_logs, routes_named, tls_inspector, wildcards,
};
use super::ruled::ConnectionRules;
use crate::class::Class;
use crate::ingress::{http_route_name, https_route_name, tls_chain_name};
use crate::rbac::AccessFilters;
use crate::tls::{Secrets, gateway_socket};
use crate::{encode, seconds};
use strait_mesh::push::ingress::{BytesRule, IngressOutline};
use strait_model::{ForwardedCertificate, GatewayTopology};
use strait_proto::envoy::envoy::config::core::v3::{TrafficDirection, TransportSocket};
use strait_proto::envoy::envoy::config::listener::v3 as listener;
use strait_proto::envoy::envoy::extensions::filters::network::http_connection_manager::v3 as hcm;
use strait_rules::traffic::HostPattern;
use strait_rules::traffic::gateway::{GatewayServer, ServerProtocol, ServerTls, TlsClients};
use strait_rules::traffic::gateway_servers::{GatewayPort, PlacedServer};
use strait_xds::resource::Resource;

/// The inputs of a router's listeners.
#[derive(Clone, Copy)]
pub(super) struct IngressListeners<'a> {
    pub(super) ingress: &'a IngressOutline<'a>,
    pub(super) class: &'a Class,
    pub(super) settings: &'a TrafficSettings,
    /// The trusted proxies in front of the router.
    pub(super) topology: GatewayTopology,
    pub(super) families: Families,
    /// The location of the router's mesh certificate, and the trust domains of accepted clients.
    pub(super) secrets: &'a Secrets,
    pub(super) trust_domains: &'a BTreeSet<&'a str>,
    /// The access filters of the chains.
    pub(super) filters: &'a AccessFilters,
}

/// Returns the statistics prefix of requests: the name of the server, or `outbound_` with the name of
/// the listener if the server has no name. For plain text, `server` is the first server of the port
/// (Istio, `Server.name`).
fn stat_prefix(server: Option<&GatewayServer>, listener: &str) -> String {
    match server {
        Some(server) if !server.name.is_empty() => server.name.to_string(),
        _ => format!("outbound_{listener}"),
    }
}

impl IngressListeners<'_> {
    /// Returns the listener of a port, or `None` if the port accepts nothing, because Envoy refuses
    /// a listener without chains.
    pub(super) fn listener(&self, port: &GatewayPort<'_>) -> Option<Resource> {
        let addresses = port.bind.map_or_else(|| wildcards(self.families), |bind| vec![bind]);
        let name = format!("{}_{}", addresses.first()?, port.number);
        let mut filter_chains = self.in_tls(port, &name);
        let accepts_tls = !filter_chains.is_empty();
        let plain = accepts_tls.then(|| found(PLAIN, &[]));
        if !port.http.is_empty() {
            let grpc_web = port.http.iter().any(|one| one.server.grpc_web);
            let stats = stat_prefix(port.http.first().map(|placed| placed.server), &name);
            let filter = self.http((stats, port.number), http_route_name(port), grpc_web);
            filter_chains.push(chain("http", plain, filter));
        } else if let Some(placed) = &port.tcp
            && let Some(filter) = self.bytes(placed)
        {
            filter_chains.push(self.guarded(chain("tcp", plain, filter)));
        }
        if filter_chains.is_empty() {
            return None;
        }
        let listener = listener::Listener {
            filter_chains,
            listener_filters: self.listener_filters(accepts_tls),
            access_log: refused_connection_logs(self.settings),
            traffic_direction: TrafficDirection::Outbound.into(),
            ..listening_on(name.clone(), &addresses, port.number)?
        };
        Some(encode(name, &self.settings.istio.in_chains(listener)))
    }

    /// Returns the listener filters. The PROXY protocol is read before TLS is detected.
    fn listener_filters(&self, accepts_tls: bool) -> Vec<listener::ListenerFilter> {
        let announced = self.topology.proxy_protocol.then(proxy_protocol);
        announced.into_iter().chain(accepts_tls.then(tls_inspector)).collect()
    }

    /// Returns the chains for TLS: one for each server, or one for each name in the rules of a
    /// server that does not decrypt. Names are unique, because Envoy refuses a listener in which
    /// two chains have equal matches.
    fn in_tls(&self, port: &GatewayPort<'_>, listener: &str) -> Vec<listener::FilterChain> {
        let mut chains = Vec::new();
        let mut unopened = self.ingress.unopened(port, &self.class.selection).into_iter();
        for placed in &port.tls {
            let name = || https_route_name(port, placed);
            match &placed.server.protocol {
                ServerProtocol::Https(tls) => {
                    let stats = stat_prefix(Some(placed.server), listener);
                    let filter = self.http((stats, port.number), name(), placed.server.grpc_web);
                    let socket = self.socket(tls, &ACCEPTED_ALPN);
                    chains.push(self.ending(placed, name(), socket, filter));
                }
                ServerProtocol::Tls(tls) => {
                    if let Some(filter) = self.bytes(placed) {
                        let name = tls_chain_name(placed);
                        let socket =
                            self.socket(tls, &self.settings.istio.accepted(&ACCEPTED_ALPN));
                        let chain = self.guarded(self.ending(placed, name, socket, filter));
                        chains.push(self.learning(tls, chain));
                    }
                }
                ServerProtocol::Passthrough => {
                    let passed = unopened.next().into_iter().flat_map(|(_, rules)| rules);
                    chains.extend(passed.filter_map(|BytesRule { routed, rule, takes }| {
                        let name = takes.ok()?.to_string();
                        let chain = self.rules().named(&name, routed, rule, placed.server.port);
                        Some(self.guarded(chain))
                    }));
                }
                ServerProtocol::Http | ServerProtocol::Tcp | ServerProtocol::AutoPassthrough => {}
            }
        }
        chains
    }

    /// Returns the chain of a server that terminates TLS, for the server's host names.
    fn ending(
        &self,
        placed: &PlacedServer<'_>,
        name: String,
        socket: TransportSocket,
        filter: listener::Filter,
    ) -> listener::FilterChain {
        let hosts: BTreeSet<&HostPattern> = placed.hosts.iter().map(|host| &host.host).collect();
        let is_any = hosts.contains(&HostPattern::all());
        let names = hosts.iter().filter(|_| !is_any).map(ToString::to_string).collect();
        let matches = listener::FilterChainMatch { server_names: names, ..found(TLS, &[]) };
        listener::FilterChain {
            transport_socket: Some(socket),
            transport_socket_connect_timeout: Some(seconds(15)),
            ..chain(name, Some(matches), filter)
        }
    }

    fn socket(&self, tls: &ServerTls, mesh_alpn: &[&str]) -> TransportSocket {
        match tls.clients {
            TlsClients::Mesh => {
                let defaults = &self.settings.mesh_tls;
                self.secrets.downstream(mesh_alpn, self.trust_domains, defaults)
            }
            _ => gateway_socket(tls, &self.settings.tls_defaults),
        }
    }

    /// Adds metadata exchange to a raw TCP chain if its clients are members of the mesh.
    fn learning(&self, tls: &ServerTls, chain: listener::FilterChain) -> listener::FilterChain {
        let exchange = self.settings.istio.exchange();
        let exchange = exchange.filter(|_| matches!(tls.clients, TlsClients::Mesh));
        let filters = exchange.into_iter().chain(chain.filters).collect();
        listener::FilterChain { filters, ..chain }
    }

    /// Returns the filter that forwards raw TCP of a server, by the first matching rule that is
    /// bound to it.
    fn bytes(&self, placed: &PlacedServer<'_>) -> Option<listener::Filter> {
        let mut rules = self.ingress.opened(placed, &self.class.selection);
        let BytesRule { routed, rule, .. } = rules.find(|one| one.takes.is_ok())?;
        Some(self.rules().filter(routed, rule, placed.server.port))
    }

    fn rules(&self) -> ConnectionRules<'_> {
        let Self { ingress, class, settings, .. } = self;
        ConnectionRules { context: ingress.context, class, settings }
    }

    /// Returns a raw TCP chain with the access filters in front.
    fn guarded(&self, chain: listener::FilterChain) -> listener::FilterChain {
        let filters = self.filters.network.iter().cloned().chain(chain.filters).collect();
        listener::FilterChain { filters, ..chain }
    }

    /// Returns the filter that accepts external requests. The mesh config or the router's agent
    /// defines how many trusted proxies precede the router; forwarding headers are trusted
    /// accordingly.
    fn http(
        &self,
        (stat_prefix, port): (String, u16),
        routes: String,
        grpc_web: bool,
    ) -> listener::Filter {
        use hcm::http_connection_manager::{ForwardClientCertDetails, SetCurrentClientCertDetails};
        let certificate = self.topology.client_certificate;
        let forwarded = match certificate {
            ForwardedCertificate::Sanitize => ForwardClientCertDetails::Sanitize,
            ForwardedCertificate::ForwardOnly => ForwardClientCertDetails::ForwardOnly,
            ForwardedCertificate::AppendForward => ForwardClientCertDetails::AppendForward,
            ForwardedCertificate::SanitizeSet => ForwardClientCertDetails::SanitizeSet,
            ForwardedCertificate::AlwaysForwardOnly => ForwardClientCertDetails::AlwaysForwardOnly,
        };
        let manager = Http {
            stat_prefix,
            port: Some(port),
            routes: routes_named(routes),
            grpc_web,
            routed: true,
            by_mtls: false,
            guards: self.filters.http.clone(),
        }
        .manager(self.settings);
        let manager = normalizing(self.settings, self.filters.looks_at_paths, manager);
        let manager = hcm::HttpConnectionManager {
            use_remote_address: bool_value(true),
            xff_num_trusted_hops: self.topology.trusted_proxies,
            server_name: "istio-envoy".into(),
            forward_client_cert_details: forwarded.into(),
            set_current_client_cert_details: certificate.forwards_client_certificate().then(|| {
                SetCurrentClientCertDetails {
                    subject: bool_value(true),
                    cert: true,
                    dns: true,
                    uri: true,
                    ..Default::default()
                }
            }),
            ..manager
        };
        http(&merged(self.settings, Some(port), manager))
    }
}
