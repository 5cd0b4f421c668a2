//! An east-west gateway: where traffic enters a network.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use super::NetworkId;

/// The label that says which network something is in, or, on a gateway, leads into.
pub const NETWORK_LABEL: &str = "topology.istio.io/network";
/// The label that names a gateway's mTLS port.
pub const GATEWAY_PORT_LABEL: &str = "networking.istio.io/gatewayPort";
/// The mTLS port of a gateway that names none. (docs/reference/interface.md, "Networks".)
pub const GATEWAY_PORT: u16 = 15443;

/// The mTLS port that a value of [`GATEWAY_PORT_LABEL`] names; 0 and what is no port name none.
pub fn gateway_port(label: Option<&str>) -> u16 {
    let named = label.and_then(|text| text.parse().ok());
    named.filter(|port| *port != 0).unwrap_or(GATEWAY_PORT)
}

/// An address, or a name that DNS turns into addresses.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GatewayHost {
    /// Reached as it is.
    Address(IpAddr),
    /// To be resolved.
    Name(Arc<str>),
}

impl GatewayHost {
    /// An address where `text` is one, else a name in lower case without its final dot.
    pub fn parse(text: &str) -> Self {
        text.parse().map_or_else(
            |_| Self::Name(text.trim_end_matches('.').to_ascii_lowercase().into()),
            Self::Address,
        )
    }
}

impl fmt::Display for GatewayHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Name(name) => f.write_str(name),
        }
    }
}

/// A gateway that a cluster declares by an object of its own, without a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeclaredGateway {
    /// The network it leads into.
    pub network: NetworkId,
    /// Whether it stands elsewhere, which only the config cluster may say.
    pub of_config_cluster_only: bool,
    /// Where it is reached.
    pub addresses: Vec<GatewayHost>,
    /// The port that takes mTLS by SNI, and the HBONE port; 0 for none.
    pub entrances: BTreeSet<(u16, u16)>,
}

/// Where a gateway was learned, shown in `/debug/networks`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GatewaySource {
    /// A Service that carries the network label: `namespace/name`.
    Service(Arc<str>),
    /// A `Gateway` of the Gateway API that carries the network label: `namespace/name`.
    Gateway(Arc<str>),
    /// MeshNetworks, `registryServiceName`: the service's hostname.
    RegistryService(Arc<str>),
    /// MeshNetworks, `address`.
    MeshNetworks,
}

impl fmt::Display for GatewaySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(name) => write!(f, "service {name}"),
            Self::Gateway(name) => write!(f, "gateway {name}"),
            Self::RegistryService(host) => write!(f, "meshNetworks registryServiceName {host}"),
            Self::MeshNetworks => f.write_str("meshNetworks address"),
        }
    }
}
