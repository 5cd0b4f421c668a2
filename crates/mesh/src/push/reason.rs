//! The reasons for withholding an endpoint, and the step of the decision at which each applies.

use crate::network::{Networks, PendingCause};
use strait_model::{Health, NetworkId};

/// The steps that can withhold an endpoint, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WithholdingStep {
    /// The endpoint is ready to receive traffic.
    Ready,
    /// Its pod is known.
    Pod,
    /// The endpoint is visible to the proxy.
    Export,
    /// It is in a network whose endpoints the proxy may receive.
    Network,
    /// If it is in another network: that network has a gateway.
    Gateway,
    /// The proxy supports the address family.
    Family,
    /// If it is in another network, or the client is gRPC's own library: the endpoint accepts mTLS
    /// that the client supports.
    Mtls,
}

impl WithholdingStep {
    /// All steps, in order.
    pub const ALL: [Self; 7] = [
        Self::Ready,
        Self::Pod,
        Self::Export,
        Self::Network,
        Self::Gateway,
        Self::Family,
        Self::Mtls,
    ];

    /// Returns the name in `/debug/explain`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Pod => "pod",
            Self::Export => "export",
            Self::Network => "network",
            Self::Gateway => "gateway",
            Self::Family => "family",
            Self::Mtls => "mtls",
        }
    }
}

/// The reason for withholding an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WithheldReason {
    /// It is not ready, draining or terminating.
    NotReady(Health),
    /// Its cluster is being drained at an operator's request.
    ClusterDraining,
    /// Its cluster has been unreachable for longer than the policy allows.
    ClusterDark,
    /// The EndpointSlice names a pod that has not been seen.
    PodMissing,
    /// `exportTo` does not include the proxy's namespace.
    NotExported,
    /// The Sidecar that applies to the proxy does not import the service.
    NotImported,
    /// The policy does not let its cluster export the hostname.
    ExportRefused,
    /// The proxy may see the service, but gateways forward only services that are exported to all
    /// namespaces.
    NotCarried,
    /// The service is local to its cluster.
    ClusterLocal,
    /// The service is local to its node (`internalTrafficPolicy: Local`).
    NodeLocal,
    /// The policy does not let its cluster use the address.
    AddressRefused,
    /// The policy does not let its cluster claim the network.
    NetworkRefused,
    /// Pods of several clusters have the address in that network, and the proxy receives the pod of
    /// another cluster.
    SameAddress,
    /// The proxy requests not to receive endpoints of that network.
    NetworkNotVisible,
    /// An east-west gateway forwards only into its own network.
    OtherNetwork,
    /// The pods of a headless service are reached at their own addresses, which are invalid in
    /// another network.
    HeadlessElsewhere,
    /// The network has no gateway.
    NoGateway,
    /// The network has a gateway, but its address is not known yet.
    GatewayPending,
    /// No gateway of the network has a pod that serves.
    GatewayUnserved,
    /// The name of the network's gateway does not resolve.
    GatewayUnresolved,
    /// The endpoint has no address. It is only reachable from other networks, through the gateways
    /// of its network.
    NoAddress,
    /// The proxy does not support the endpoint's address family.
    EndpointFamily,
    /// The proxy does not support the address family of any gateway.
    GatewayFamily,
    /// The endpoint accepts only plain text.
    PlainText,
    /// The mesh config makes clients send plain text, which no gateway accepts.
    AutoMtlsOff,
    /// The client is gRPC's own library, which cannot tell a gateway the destination.
    LibraryElsewhere,
    /// The client is gRPC's own library, which uses mTLS for all endpoints of a service or for
    /// none, and other endpoints accept mTLS.
    PlainTextForLibrary,
}

impl WithheldReason {
    /// Returns the reason for endpoints of a network none of whose gateways can be dialled.
    pub(super) fn of_pending_gateways(networks: &Networks, network: &NetworkId) -> Self {
        let is_by = |cause| networks.pending_by(network, cause).next().is_some();
        if is_by(PendingCause::Unserved) {
            Self::GatewayUnserved
        } else if is_by(PendingCause::Unresolved) {
            Self::GatewayUnresolved
        } else {
            Self::GatewayPending
        }
    }

    /// Returns whether endpoints that are withheld for this reason are counted: because they are in
    /// another network than the proxy, or withheld from all proxies. The other reasons are properties
    /// of the proxy, or are counted elsewhere.
    pub fn is_counted(self) -> bool {
        match self {
            Self::NotCarried
            | Self::NetworkNotVisible
            | Self::OtherNetwork
            | Self::HeadlessElsewhere
            | Self::NoGateway
            | Self::GatewayPending
            | Self::GatewayUnserved
            | Self::GatewayUnresolved
            | Self::GatewayFamily
            | Self::PlainText
            | Self::AutoMtlsOff
            | Self::LibraryElsewhere
            | Self::PodMissing
            | Self::ExportRefused
            | Self::AddressRefused
            | Self::NetworkRefused => true,
            Self::NotReady(_)
            | Self::ClusterDraining
            | Self::ClusterDark
            | Self::NotExported
            | Self::NotImported
            | Self::SameAddress
            | Self::ClusterLocal
            | Self::NodeLocal
            | Self::NoAddress
            | Self::EndpointFamily
            | Self::PlainTextForLibrary => false,
        }
    }

    /// Returns the step at which the reason applies.
    pub fn step(self) -> WithholdingStep {
        match self {
            Self::NotReady(_) | Self::ClusterDraining | Self::ClusterDark => WithholdingStep::Ready,
            Self::PodMissing => WithholdingStep::Pod,
            Self::NotExported
            | Self::NotImported
            | Self::ExportRefused
            | Self::NotCarried
            | Self::ClusterLocal
            | Self::NodeLocal => WithholdingStep::Export,
            Self::AddressRefused
            | Self::NetworkRefused
            | Self::SameAddress
            | Self::NetworkNotVisible
            | Self::NoAddress
            | Self::OtherNetwork
            | Self::HeadlessElsewhere => WithholdingStep::Network,
            Self::NoGateway
            | Self::GatewayPending
            | Self::GatewayUnserved
            | Self::GatewayUnresolved => WithholdingStep::Gateway,
            Self::EndpointFamily | Self::GatewayFamily => WithholdingStep::Family,
            Self::PlainText
            | Self::AutoMtlsOff
            | Self::LibraryElsewhere
            | Self::PlainTextForLibrary => WithholdingStep::Mtls,
        }
    }
}
