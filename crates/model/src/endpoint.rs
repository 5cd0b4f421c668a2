//! An endpoint: one address and port behind one service port.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use super::{Labels, NetworkId, WorkloadKey};

/// The address of an endpoint without its own address. It represents endpoints behind the gateways
/// of its network, and is never sent to proxies.
pub const NO_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// An endpoint as one registry describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// The address on which it listens, or [`NO_ADDRESS`].
    pub address: IpAddr,
    /// The target port.
    pub port: u16,
    /// The name of the service port that it serves.
    pub port_name: Arc<str>,
    /// The health, which decides whether it may be sent.
    pub health: Health,
    /// The load-balancing weight, at least 1.
    pub weight: u32,
    /// The locality in which it runs.
    pub locality: Arc<Locality>,
    /// The endpoint's network label; `None` to use the cluster's network
    /// (docs/reference/interface.md, "Networks").
    pub network_label: Option<NetworkId>,
    /// Whether it accepts mTLS.
    pub tls_mode: TlsMode,
    /// Its SPIFFE ID, if its pod is known.
    pub service_account: Option<Arc<str>>,
    /// The pod or entry behind it.
    pub workload: Option<Arc<WorkloadKey>>,
    /// The state of the pod.
    pub pod: PodState,
    /// The node on which it runs.
    pub node: Option<Arc<str>>,
    /// The host name below a headless service that the source lists for the address itself. For
    /// pods, the name comes from the pod.
    pub hostname: Option<Arc<str>>,
    /// Its telemetry name, see [`super::telemetry`]; `None` if telemetry names are not sent.
    pub telemetry: Option<Arc<str>>,
    /// The pod's or entry's labels, which determine the subsets to which it belongs. All pods of
    /// a template share one value. `None` if it has no labels.
    pub labels: Option<Arc<Labels>>,
}

/// The state of the pod behind an endpoint, as a registry knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PodState {
    /// The pod has been seen; identity and labels come from the pod.
    Known,
    /// The endpoint names a pod that has not been seen yet; withheld until it is.
    Missing,
    /// The endpoint names no pod, or the registry may not read pods; sent without an identity.
    Unnamed,
    /// The source copied it from another cluster, which runs the pod. Sent without an identity if
    /// no cluster has that pod.
    Mirrored,
}

/// Whether an endpoint may receive traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Health {
    /// Ready.
    Healthy,
    /// Not ready.
    Unhealthy,
    /// Serves existing sessions; accepts no new sessions.
    Draining,
    /// Terminating.
    Terminating,
}

impl Health {
    /// Returns the name, as users see it in `/debug/endpoints`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Unhealthy => "unhealthy",
            Self::Draining => "draining",
            Self::Terminating => "terminating",
        }
    }
}

/// The label by which a workload declares how it accepts connections.
pub const TLS_MODE_LABEL: &str = "security.istio.io/tlsMode";

/// Whether an endpoint accepts mTLS, from the label `security.istio.io/tlsMode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum TlsMode {
    /// The endpoint's proxy terminates mTLS.
    Istio,
    /// Clients send plain text, while the endpoint's proxy still terminates mTLS or already does.
    /// Gateways keep forwarding its traffic until all clients have received the PeerAuthentication
    /// that causes the change.
    Changing,
    /// Plain text.
    #[default]
    Disabled,
}

impl TlsMode {
    /// Returns the value of the label that corresponds to the clients' behavior.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Istio => "istio",
            Self::Changing | Self::Disabled => "disabled",
        }
    }

    /// Parses the label; any value other than `istio` means plain text.
    pub fn from_label(value: Option<&str>) -> Self {
        if value == Some("istio") { Self::Istio } else { Self::Disabled }
    }
}

/// Region, zone and subzone; an empty part is unknown.
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
    /// Parses `region/zone/subzone`; missing parts are empty.
    pub fn parse(text: &str) -> Self {
        let mut parts = text.splitn(3, '/').map(Arc::<str>::from);
        let mut next = || parts.next().unwrap_or_else(|| "".into());
        Self { region: next(), zone: next(), subzone: next() }
    }

    /// Returns the locality that a workload's own labels declare, or `None` if they declare none.
    /// Because a label's value cannot contain `/`, `.` separates the parts. (Istio, "Locality Load
    /// Balancing".)
    pub fn claimed(labels: &Labels) -> Option<Self> {
        let given = |name| labels.get(name).filter(|text| !text.is_empty());
        let claim = given("topology.istio.io/locality").or_else(|| given("istio-locality"))?;
        let parts = if claim.contains('/') { claim.to_string() } else { claim.replace('.', "/") };
        Some(Self::parse(&parts)).filter(|claim| !claim.is_empty())
    }

    /// Returns whether both are in the same region. If only one names its region, an equal
    /// zone is sufficient.
    pub fn has_same_region(&self, other: &Self) -> bool {
        let is_unknown = self.region.is_empty() || other.region.is_empty();
        self.region == other.region
            || (is_unknown && !self.zone.is_empty() && self.zone == other.zone)
    }

    /// Returns whether all parts are unknown.
    pub fn is_empty(&self) -> bool {
        self.region.is_empty() && self.zone.is_empty() && self.subzone.is_empty()
    }
}

impl fmt::Display for Locality {
    /// Formats it as `region/zone/subzone` without trailing empty parts; empty if all parts are
    /// unknown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}/{}/{}", self.region, self.zone, self.subzone);
        f.write_str(text.trim_end_matches('/'))
    }
}
