//! East-west gateways, through which traffic enters a network.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use super::NetworkId;

/// The label with the network of an object. On a gateway, it is the network into which the gateway
/// routes.
pub const NETWORK_LABEL: &str = "topology.istio.io/network";
/// The label with the mTLS port of a gateway.
pub const GATEWAY_PORT_LABEL: &str = "networking.istio.io/gatewayPort";
/// The default mTLS port of a gateway. (docs/reference/interface.md, "Networks".)
pub const GATEWAY_PORT: u16 = 15443;

/// Returns the port that [`GATEWAY_PORT_LABEL`] names; the default for 0 and for values that are no
/// port.
pub fn gateway_port(label: Option<&str>) -> u16 {
    label.and_then(parse_gateway_port).unwrap_or(GATEWAY_PORT)
}

/// Parses the value of [`GATEWAY_PORT_LABEL`]. Returns `None` for 0 and for values that are no port.
pub fn parse_gateway_port(label: &str) -> Option<u16> {
    label.parse().ok().filter(|port| *port != 0)
}

/// An address, or a hostname that DNS resolves to addresses.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GatewayHost {
    /// An IP address.
    Address(IpAddr),
    /// A hostname to be resolved.
    Name(Arc<str>),
}

impl GatewayHost {
    /// Parses an IP address; any other text becomes a hostname in lower case without its final dot.
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

/// A gateway that a cluster declares by a Gateway object, without a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeclaredGateway {
    /// The network into which it routes.
    pub network: NetworkId,
    /// Whether it runs outside the declaring cluster; only the config cluster may declare this
    /// gateway.
    pub of_config_cluster_only: bool,
    /// Its addresses.
    pub addresses: Vec<GatewayHost>,
    /// Pairs of the port for mTLS with SNI routing and the HBONE port; 0 for none.
    pub entrances: BTreeSet<(u16, u16)>,
}

/// The object that defines a gateway, shown in `/debug/networks`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GatewaySource {
    /// A Service with the network label: `namespace/name`.
    Service(Arc<str>),
    /// A `Gateway` of the Gateway API with the network label: `namespace/name`.
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
