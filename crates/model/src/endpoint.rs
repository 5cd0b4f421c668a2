//! One address and port behind one service port.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use super::{Labels, NetworkId, WorkloadKey};

/// The address of an endpoint that has none: what it stands for is behind the gateways of its network, and nobody is
/// sent this.
pub const NO_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// An endpoint as one registry describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Where it listens, or [`NO_ADDRESS`].
    pub address: IpAddr,
    /// The target port.
    pub port: u16,
    /// The name of the service port it serves.
    pub port_name: Arc<str>,
    /// Whether it may be sent.
    pub health: Health,
    /// Its share among equals, at least 1.
    pub weight: u32,
    /// Where it runs.
    pub locality: Arc<Locality>,
    /// The network its own label claims; `None` leaves that to the cluster (docs/reference/interface.md, "Networks").
    pub network_label: Option<NetworkId>,
    /// Whether it takes mTLS.
    pub tls_mode: TlsMode,
    /// Its SPIFFE ID, where its pod is known.
    pub service_account: Option<Arc<str>>,
    /// The pod or entry behind it.
    pub workload: Option<Arc<WorkloadKey>>,
    /// What is known of its pod.
    pub pod: PodState,
    /// The node it runs on.
    pub node: Option<Arc<str>>,
    /// What telemetry calls it: [`super::telemetry`]; `None` where that is sent to nobody.
    pub telemetry: Option<Arc<str>>,
    /// The labels of its pod or entry, by which it is of a subset of its service; one value for all pods of a template.
    /// `None` where it has none.
    pub labels: Option<Arc<Labels>>,
}

/// What a registry knows of the pod behind an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PodState {
    /// The pod has been seen: identity and labels are its own.
    Known,
    /// A pod is named but has not been seen yet: withheld until it is.
    Missing,
    /// No pod is named, or pods may not be read: sent without an identity.
    Unnamed,
    /// The source copied it from another cluster, whose pod it is. Sent without an identity if no cluster has that pod.
    Mirrored,
}

/// Whether an endpoint may take traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Health {
    /// Ready.
    Healthy,
    /// Not ready.
    Unhealthy,
    /// Serving those it already knows; takes no new sessions.
    Draining,
    /// Going away.
    Terminating,
}

impl Health {
    /// The name as users see it in `/debug/endpoints`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Unhealthy => "unhealthy",
            Self::Draining => "draining",
            Self::Terminating => "terminating",
        }
    }
}

/// The label by which a workload says how it takes connections.
pub const TLS_MODE_LABEL: &str = "security.istio.io/tlsMode";

/// Whether an endpoint takes mTLS: label `security.istio.io/tlsMode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum TlsMode {
    /// A proxy before it terminates mTLS.
    Istio,
    /// Clients send plain text while the proxy before it goes on terminating mTLS, or begins to: gateways carry what
    /// comes for it, until all clients have learnt of a PeerAuthentication that changes that.
    Changing,
    /// Plain text.
    #[default]
    Disabled,
}

impl TlsMode {
    /// The label's value, of what clients send.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Istio => "istio",
            Self::Changing | Self::Disabled => "disabled",
        }
    }

    /// Reads the label; all but `istio` is plain text.
    pub fn from_label(value: Option<&str>) -> Self {
        if value == Some("istio") { Self::Istio } else { Self::Disabled }
    }
}

/// Region, zone and subzone; empty parts are unknown.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Locality {
    /// `topology.kubernetes.io/region`.
    pub region: Arc<str>,
    /// `topology.kubernetes.io/zone`.
    pub zone: Arc<str>,
    /// `topology.istio.io/subzone`.
    pub subzone: Arc<str>,
}

impl Locality {
    /// Reads `region/zone/subzone`; missing parts are empty.
    pub fn parse(text: &str) -> Self {
        let mut parts = text.splitn(3, '/').map(Arc::<str>::from);
        let mut next = || parts.next().unwrap_or_else(|| "".into());
        Self { region: next(), zone: next(), subzone: next() }
    }

    /// The locality that a workload's own labels claim; `None` where they claim none. A label's value
    /// has no `/`, so `.` divides the parts. (Istio, "Locality Load Balancing".)
    pub fn claimed(labels: &Labels) -> Option<Self> {
        let given = |name| labels.get(name).filter(|text| !text.is_empty());
        let claim = given("topology.istio.io/locality").or_else(|| given("istio-locality"))?;
        let parts = if claim.contains('/') { claim.to_string() } else { claim.replace('.', "/") };
        Some(Self::parse(&parts)).filter(|claim| !claim.is_empty())
    }

    /// Whether both are in one region. If only one of them names its region, an equal zone is enough.
    pub fn has_region_of(&self, other: &Self) -> bool {
        let is_unknown = self.region.is_empty() || other.region.is_empty();
        self.region == other.region
            || (is_unknown && !self.zone.is_empty() && self.zone == other.zone)
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.region.is_empty() && self.zone.is_empty() && self.subzone.is_empty()
    }
}

impl fmt::Display for Locality {
    /// `region/zone/subzone` without trailing empty parts; empty where nothing is known.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}/{}/{}", self.region, self.zone, self.subzone);
        f.write_str(text.trim_end_matches('/'))
    }
}
