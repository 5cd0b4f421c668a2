//! What a view is given of a service's port: endpoints and gateways by locality.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use strait_model::{ClusterId, Locality, TlsMode};

/// What a proxy is given for one port of a service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Assignment {
    /// By priority, then in the order of localities, each once, none without members. Priorities count
    /// from 0 without a gap.
    pub localities: Vec<AssignmentGroup>,
    /// What telemetry calls members, where that is sent ([`strait_model::EndpointMetadata::Full`]).
    pub origins: Vec<TelemetryOrigin>,
}

/// The members in one locality.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AssignmentGroup {
    /// Used once those of all lower ones are not enough.
    pub priority: u32,
    /// The locality.
    pub locality: Arc<Locality>,
    /// Endpoints by address and port, then gateways likewise.
    pub members: Vec<AssignmentMember>,
    /// Its share among the localities of the priority, at least 1; `None` for what its members weigh together.
    pub weight: Option<u32>,
}

/// One address in an assignment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AssignmentMember {
    /// The address.
    pub address: IpAddr,
    /// The IPv6 address of a dual-stack pod whose IPv4 address is [`Self::address`], for proxies that speak both.
    pub additional: Option<Ipv6Addr>,
    /// The port.
    pub port: u16,
    /// Its share, at least 1. The sum over an assignment fits into 32 bits (Envoy's limit).
    pub weight: u32,
    /// Whether it takes mTLS.
    pub tls_mode: TlsMode,
    /// Its place in [`Assignment::origins`], from 1; 0 where it has none there.
    pub origin: u16,
}

/// An address and a port.
pub(super) type EndpointSocket = (IpAddr, u16);

/// What endpoints of one locality that are reached through the same gateways weigh together.
#[derive(PartialEq)]
pub(super) struct Remote {
    pub(super) group: usize,
    pub(super) weight: u64,
    /// Sorted, each once.
    pub(super) gateways: Vec<EndpointSocket>,
}

/// What telemetry calls members of an assignment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TelemetryOrigin {
    /// See [`strait_model::Endpoint::telemetry`]; of a gateway nobody is called anything.
    pub telemetry: Option<Arc<str>>,
    /// The cluster; empty where a gateway's is not known.
    pub cluster: ClusterId,
}
