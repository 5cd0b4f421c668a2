//! The kinds of clients, and the generator of each.
//!
//! | client | receives |
//! |---|---|
//! | [`SidecarClient`] | resources for outbound and inbound requests of one workload |
//! | [`IngressGateway`] | resources for the servers of the Gateways that select it |
//! | [`EastWestGateway`] | one listener that forwards connections from other networks |
//! | [`LibraryClient`] | resources by name, for a gRPC library instead of an Envoy |
//!
//! A new kind of client is a new file with an implementation of [`ProxyGenerator`], and a variant of
//! [`Client`].

mod east_west_gateway;
mod generator;
mod grpc_library;
mod ingress_gateway;
mod inputs;
mod sidecar;

use self::east_west_gateway::EastWestGateway;
use self::generator::ProxyGenerator;
use self::grpc_library::LibraryClient;
use self::ingress_gateway::IngressGateway;
pub(crate) use self::inputs::ClientInputs;
use self::sidecar::SidecarClient;
use strait_model::ProxyType;

/// One client, with the state that its generator keeps for it.
pub(crate) enum Client<'a> {
    Sidecar(SidecarClient),
    Ingress(IngressGateway<'a>),
    EastWest(EastWestGateway),
    Library(LibraryClient),
}

impl<'a> Client<'a> {
    /// Selects the kind of the client. `east_west_port` is the port on which it listens as an
    /// east-west gateway, if it is one.
    pub(crate) fn of(inputs: &ClientInputs<'a>, east_west_port: Option<u16>) -> Self {
        if inputs.proxy.is_proxyless() {
            return Self::Library(LibraryClient);
        }
        match (inputs.proxy.kind, east_west_port) {
            (ProxyType::Sidecar, _) => Self::Sidecar(SidecarClient),
            (ProxyType::Router, Some(port)) => Self::EastWest(EastWestGateway { port }),
            (ProxyType::Router, None) => Self::Ingress(IngressGateway::default()),
        }
    }

    pub(crate) fn generator(&self) -> &dyn ProxyGenerator<'a> {
        match self {
            Self::Sidecar(sidecar) => sidecar,
            Self::Ingress(gateway) => gateway,
            Self::EastWest(gateway) => gateway,
            Self::Library(library) => library,
        }
    }
}
