//! An east-west gateway: where traffic enters a network.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

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

/// Where a gateway was learned, shown in `/debug/networks`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GatewaySource {
    /// A Service that carries the network label: `namespace/name`.
    Service(Arc<str>),
    /// MeshNetworks, `registryServiceName`: the service's hostname.
    RegistryService(Arc<str>),
    /// MeshNetworks, `address`.
    MeshNetworks,
}

impl fmt::Display for GatewaySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(name) => write!(f, "service {name}"),
            Self::RegistryService(host) => write!(f, "meshNetworks registryServiceName {host}"),
            Self::MeshNetworks => f.write_str("meshNetworks address"),
        }
    }
}
