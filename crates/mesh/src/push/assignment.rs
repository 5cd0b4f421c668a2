//! The assignment of a view for a service port: endpoints and gateways by locality.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use strait_model::{ClusterId, Locality, TlsMode};

/// The endpoints and gateways that a proxy receives for one port of a service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Assignment {
    /// Groups by priority, then in the order of localities. No group is empty. Priorities start at
    /// 0 and have no gaps.
    pub localities: Vec<AssignmentGroup>,
    /// Telemetry names of members, if they are sent ([`strait_model::EndpointMetadata::Full`]).
    pub origins: Vec<TelemetryOrigin>,
}

/// The members in one locality.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AssignmentGroup {
    /// The priority. Members are used only if all lower numbers are not sufficient.
    pub priority: u32,
    /// The locality.
    pub locality: Arc<Locality>,
    /// Endpoints by address and port, followed by gateways by address and port.
    pub members: Vec<AssignmentMember>,
    /// The weight among the localities of the priority, at least 1; `None` for the sum of the
    /// members' weights.
    pub weight: Option<u32>,
}

/// One address in an assignment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AssignmentMember {
    /// The address.
    pub address: IpAddr,
    /// The IPv6 address of a dual-stack pod whose IPv4 address is [`Self::address`], for proxies
    /// that support both.
    pub additional: Option<Ipv6Addr>,
    /// The port.
    pub port: u16,
    /// The weight, at least 1. The sum over an assignment fits into 32 bits (Envoy's limit).
    pub weight: u32,
    /// The TLS mode, which determines whether it receives mTLS.
    pub tls_mode: TlsMode,
    /// Whether it is a gateway, which represents the endpoints of another network.
    pub is_gateway: bool,
    /// Its position in [`Assignment::origins`], starting at 1; 0 if it has none.
    pub origin: u16,
}

/// An address and a port.
pub(super) type EndpointSocket = (IpAddr, u16);

/// The combined weight of endpoints in one locality that are reached through the same gateways.
#[derive(PartialEq)]
pub(super) struct Remote {
    pub(super) group: usize,
    pub(super) weight: u64,
    /// Sorted, without duplicates.
    pub(super) gateways: Vec<EndpointSocket>,
}

/// The telemetry name and cluster of members of an assignment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TelemetryOrigin {
    /// See [`strait_model::Endpoint::telemetry`]; `None` for a gateway.
    pub telemetry: Option<Arc<str>>,
    /// The cluster; empty for a gateway whose cluster is unknown.
    pub cluster: ClusterId,
}
