//! What an explanation says: its lines, as they are printed.

use serde::Serialize;

use strait_model::{Hostname, NetworkId};

/// The answer of `/debug/explain` (docs/reference/interface.md, "Admin HTTP").
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// The proxy's node id.
    pub proxy: String,
    /// The service.
    pub hostname: Hostname,
    /// The service port.
    pub port: u16,
    /// A line for each cluster and network that has endpoints.
    pub clusters: Vec<ClusterLine>,
    /// Every endpoint.
    pub endpoints: Vec<EndpointLine>,
    /// How the proxy finds endpoints, where it does so by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found: Option<String>,
    /// What other definitions of the service state that counts for nothing, as text.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// What becomes of the endpoints of one cluster in one network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ClusterLine {
    /// The cluster.
    pub cluster: String,
    /// The network.
    pub network: NetworkId,
    /// How many are ready.
    pub ready: usize,
    /// How many there are.
    pub total: usize,
    /// How many stand behind what is sent.
    pub sent: usize,
    /// `direct`, or the gateways' addresses; null where nothing is sent.
    pub via: Option<String>,
    /// Why the others are withheld: the most frequent reason, and how many it holds for.
    pub reason: Option<String>,
    /// The code of that reason.
    pub code: Option<&'static str>,
    /// The other reasons, those that hold for more endpoints first.
    #[serde(rename = "alsoWithheld", skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<WithheldGroup>,
    /// Where policy prefers clusters: used once what has lower numbers is not enough.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
    /// The preference that decides so, in its own wording.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preference: Option<String>,
}

/// Why some of a cluster's endpoints are withheld.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WithheldGroup {
    /// The reason, and how many it holds for.
    pub reason: String,
    /// Its code.
    pub code: &'static str,
}

impl ClusterLine {
    pub(super) fn empty(cluster: &str, network: &NetworkId) -> Self {
        Self {
            cluster: cluster.to_owned(),
            network: network.clone(),
            ready: 0,
            total: 0,
            sent: 0,
            via: None,
            reason: None,
            code: None,
            also: Vec::new(),
            priority: None,
            preference: None,
        }
    }
}

/// What becomes of one endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EndpointLine {
    /// Its address.
    pub address: String,
    /// The other address of a dual-stack pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub additional: Option<String>,
    /// Its port.
    pub port: u16,
    /// Its cluster.
    pub cluster: String,
    /// Its network.
    pub network: NetworkId,
    /// `direct`, `gateway` or `withheld`.
    pub verdict: &'static str,
    /// The gateways' addresses, where it is reached through any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub via: Vec<String>,
    /// Envoy's priority of what is sent, where the service prefers endpoints nearby: 0 comes first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
    /// The steps of the decision in order, up to the one that withheld it.
    pub steps: Vec<StepLine>,
}

/// One step of a decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StepLine {
    /// The step's name.
    pub step: &'static str,
    /// Whether it let the endpoint pass.
    pub ok: bool,
    /// The fact it looked at.
    pub detail: String,
}

/// The network's name; the empty one can be seen.
pub(super) fn quoted(network: &NetworkId) -> String {
    if network.is_empty() { "\"\"".into() } else { network.to_string() }
}
