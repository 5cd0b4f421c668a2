//! A sidecar's way in: one listener at which every redirected connection arrives, with a few filter
//! chains for each port that a service leads to, and some for all other ports.
//!
//! Inbound is PERMISSIVE: mTLS and plain text are both taken. A client of the mesh is known by the
//! application protocol (ALPN) it offers, and must then show an identity of the mesh; other TLS is passed on unopened, where the port isn't HTTP.
//! Chains are chosen as Envoy does: by port, then TLS or not, then application protocol, and a step
//! once taken is never taken back.

use std::collections::BTreeSet;

use strait_proto::envoy::envoy::config::core::v3::{TrafficDirection, TransportSocket};
use strait_proto::envoy::envoy::config::listener::v3 as listener;
use strait_proto::envoy::envoy::config::route::v3 as route;
use strait_proto::envoy::envoy::extensions::filters::network::http_connection_manager::v3 as hcm;

use super::TrafficSettings;
use super::parts::{
    Families, Http, PLAIN, PLAIN_HTTP, RetryOn, TLS, any_port, bool_value, chain, detect, found,
    http, http_inspector, listening_on, original_destination, retries, route_to, tcp,
    tls_inspector, to_port, virtual_host_of_everything, wildcards,
};
use super::settings::MESH_ALPN;
use crate::model::Protocol;
use crate::push::proxy::InboundTarget;
use crate::xds::generate::cds::{BLACK_HOLE, INBOUND_PASSTHROUGH, inbound_name};
use crate::xds::generate::encode;
use crate::xds::generate::tls::Secrets;
use crate::xds::resource::Resource;

/// The name of the listener.
const NAME: &str = "virtualInbound";
/// What a client of the mesh offers that has seen HTTP: Istio's proxies do, plain Envoys don't say.
const MESH_HTTP_ALPN: [&str; 3] = ["istio-http/1.0", "istio-http/1.1", "istio-h2"];
/// What a client of the mesh offers that has not looked.
const MESH_BYTES_ALPN: [&str; 2] = ["istio-peer-exchange", "istio"];
/// What is accepted of a client's offer. Never one of the mesh's own names: `istio` would hide `h2`
/// from the codec, and who agrees to `istio-peer-exchange` is sent what only Istio's filter reads.
const ACCEPTED_ALPN: [&str; 2] = ["h2", "http/1.1"];

/// The listener at which a sidecar's inbound connections arrive, for the ports that its workload serves.
pub(super) fn listener(
    settings: &TrafficSettings,
    families: Families,
    secrets: &Secrets,
    trust_domains: &BTreeSet<&str>,
    targets: &[InboundTarget<'_>],
) -> Option<Resource> {
    let arrival = settings.inbound_port;
    let mtls = &secrets.downstream(&ACCEPTED_ALPN, trust_domains);
    // Somebody who connects to the port itself would be sent round and round.
    let guard =
        chain("virtualInbound-blackhole", Some(to_port(arrival)), tcp(settings, BLACK_HOLE));
    let mut chains = vec![guard];
    let mut declared = Vec::new();
    for target in targets {
        if target.target == arrival {
            continue;
        }
        let kind = PortKnowledge::of(target.port.protocol);
        if kind != PortKnowledge::Undeclared {
            declared.push(target.target);
        }
        let port = Inbound {
            settings,
            mtls,
            port: Some(target.target),
            name: target.target.to_string(),
            upstream: inbound_name(target.target),
            virtual_host: format!("inbound|http|{}", target.port.number),
            grpc_web: target.port.protocol == Protocol::GrpcWeb,
        };
        chains.extend(port.chains(kind));
    }
    let rest = Inbound {
        settings,
        mtls,
        port: None,
        name: NAME.into(),
        upstream: INBOUND_PASSTHROUGH.into(),
        virtual_host: "inbound|http|0".into(),
        grpc_web: false,
    };
    chains.extend(rest.chains(PortKnowledge::Undeclared));
    let http_inspector = listener::ListenerFilter {
        // Where the protocol is declared nothing is to be found out, and a server that speaks first
        // must not wait for its client.
        filter_disabled: any_port(&declared),
        ..http_inspector()
    };
    let filters = vec![original_destination(), tls_inspector(), http_inspector];
    let listener = listener::Listener {
        filter_chains: chains,
        traffic_direction: TrafficDirection::Inbound.into(),
        ..listening_on(NAME.into(), &wildcards(families), arrival)?
    };
    Some(encode(NAME, &detect(settings, filters, listener)))
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
    fn taken(self) -> &'static [InboundMatch] {
        use Content::{Bytes, Http};
        const fn mtls(alpn: &'static [&'static str], content: Content) -> InboundMatch {
            InboundMatch { transport: TLS, alpn, mtls: true, content }
        }
        const fn plain(alpn: &'static [&'static str], content: Content) -> InboundMatch {
            InboundMatch { transport: PLAIN, alpn, mtls: false, content }
        }
        const UNOPENED: InboundMatch =
            InboundMatch { transport: TLS, alpn: &[], mtls: false, content: Bytes };
        match self {
            Self::Http => &const { [mtls(&MESH_ALPN, Http), plain(&[], Http)] },
            Self::Bytes => &const { [mtls(&MESH_ALPN, Bytes), plain(&[], Bytes), UNOPENED] },
            Self::Undeclared => {
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

/// One port, or all that have no chains of their own.
struct Inbound<'a> {
    settings: &'a TrafficSettings,
    mtls: &'a TransportSocket,
    port: Option<u16>,
    /// Names the chains.
    name: String,
    upstream: String,
    virtual_host: String,
    grpc_web: bool,
}

impl Inbound<'_> {
    fn chains(&self, kind: PortKnowledge) -> impl Iterator<Item = listener::FilterChain> {
        kind.taken().iter().map(|taken| self.chain(taken))
    }

    fn chain(&self, taken: &InboundMatch) -> listener::FilterChain {
        let (content, filter) = match taken.content {
            Content::Http => ("http", self.http()),
            Content::Bytes => ("tcp", tcp(self.settings, &self.upstream)),
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
        let transport_socket = taken.mtls.then(|| self.mtls.clone());
        listener::FilterChain { transport_socket, ..chain }
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
            routes: RouteSpecifier::RouteConfig(routes),
            grpc_web: self.grpc_web,
            routed: false,
        }
        .manager(self.settings);
        http(&hcm::HttpConnectionManager {
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
        })
    }
}
