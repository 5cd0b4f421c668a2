//! Why an endpoint is withheld, and at which step of the decision.

use strait_model::Health;

/// The steps that can withhold an endpoint, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WithholdingStep {
    /// Ready to take traffic.
    Ready,
    /// Its pod is known.
    Pod,
    /// Visible to the proxy.
    Export,
    /// In a network that the proxy may be given at all.
    Network,
    /// Where networks differ: the endpoint's network has a gateway.
    Gateway,
    /// The proxy speaks the address family.
    Family,
    /// Where networks differ, and for gRPC's own library: the endpoint is reached by mTLS that the proxy speaks.
    Mtls,
}

impl WithholdingStep {
    /// All, in order.
    pub const ALL: [Self; 7] = [
        Self::Ready,
        Self::Pod,
        Self::Export,
        Self::Network,
        Self::Gateway,
        Self::Family,
        Self::Mtls,
    ];

    /// The name in `/debug/explain`.
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

/// Why an endpoint is withheld.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WithheldReason {
    /// Not ready, draining or terminating.
    NotReady(Health),
    /// Its cluster is leaving load balancing, as an operator asked.
    ClusterDraining,
    /// Nothing has been heard of its cluster for longer than policy allows.
    ClusterDark,
    /// The slice names a pod that has not been seen.
    PodMissing,
    /// `exportTo` leaves the proxy's namespace out.
    NotExported,
    /// The Sidecar that the proxy follows leaves the service out.
    NotImported,
    /// Policy does not let its cluster export the name.
    ExportRefused,
    /// The proxy may see it, but gateways carry only what is exported to everybody.
    NotCarried,
    /// The service stays in its own cluster.
    ClusterLocal,
    /// The service stays on its own node (`internalTrafficPolicy: Local`).
    NodeLocal,
    /// Policy does not let its cluster use the address.
    AddressRefused,
    /// Policy does not let its cluster claim the network.
    NetworkRefused,
    /// Pods of several clusters have the address in that network, and another's is what the proxy is given.
    SameAddress,
    /// The proxy asks not to be given that network.
    NotSeen,
    /// An east-west gateway forwards into its own network only.
    OtherNetwork,
    /// The pods of a headless service are reached at their own addresses, which mean nothing in another
    /// network.
    HeadlessElsewhere,
    /// The network has no gateway.
    NoGateway,
    /// The network has a gateway without an address yet.
    GatewayPending,
    /// The endpoint has no address of its own: it is reached through the gateways of its network, from other networks.
    NoAddress,
    /// The proxy doesn't speak the endpoint's address family.
    EndpointFamily,
    /// The proxy doesn't speak the address family of any gateway.
    GatewayFamily,
    /// The endpoint takes plain text only.
    PlainText,
    /// Mesh config has clients speak plain text, which no gateway takes.
    AutoMtlsOff,
    /// The proxy is gRPC's own library, which can't say to a gateway where it wants to go.
    LibraryElsewhere,
    /// The proxy is gRPC's own library, which speaks mTLS to all endpoints of a service or to none, and others take it.
    PlainTextBeside,
}

impl WithheldReason {
    /// Whether it is because the endpoint is in another network than the proxy.
    pub fn is_of_networks(self) -> bool {
        match self {
            Self::NotCarried
            | Self::NotSeen
            | Self::OtherNetwork
            | Self::HeadlessElsewhere
            | Self::NoGateway
            | Self::GatewayPending
            | Self::GatewayFamily
            | Self::PlainText
            | Self::AutoMtlsOff
            | Self::LibraryElsewhere => true,
            Self::NotReady(_)
            | Self::ClusterDraining
            | Self::ClusterDark
            | Self::PodMissing
            | Self::NotExported
            | Self::NotImported
            | Self::ExportRefused
            | Self::AddressRefused
            | Self::NetworkRefused
            | Self::SameAddress
            | Self::ClusterLocal
            | Self::NodeLocal
            | Self::NoAddress
            | Self::EndpointFamily
            | Self::PlainTextBeside => false,
        }
    }

    /// The step that failed.
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
            | Self::NotSeen
            | Self::NoAddress
            | Self::OtherNetwork
            | Self::HeadlessElsewhere => WithholdingStep::Network,
            Self::NoGateway | Self::GatewayPending => WithholdingStep::Gateway,
            Self::EndpointFamily | Self::GatewayFamily => WithholdingStep::Family,
            Self::PlainText
            | Self::AutoMtlsOff
            | Self::LibraryElsewhere
            | Self::PlainTextBeside => WithholdingStep::Mtls,
        }
    }
}
