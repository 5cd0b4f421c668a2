//! The lines of an explanation, as they are printed.

use strait_admin_api as api;
use strait_model::{Hostname, NetworkId};

/// An explanation, from which the response of `/debug/explain` is built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// Node ID of the proxy.
    pub proxy: String,
    /// Host name of the service.
    pub hostname: Hostname,
    /// Port of the service.
    pub port: u16,
    /// A line for each cluster and network with endpoints.
    pub clusters: Vec<ClusterLine>,
    /// All endpoints.
    pub endpoints: Vec<EndpointLine>,
    /// Description of how the proxy finds endpoints, if it finds them itself.
    pub found: Option<String>,
    /// Notes about other definitions of the service that have no effect.
    pub notes: Vec<String>,
}

/// Summary of the endpoints of one cluster in one network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterLine {
    /// ID of the cluster.
    pub cluster: String,
    /// Name of the network.
    pub network: NetworkId,
    /// Number of ready endpoints.
    pub ready: usize,
    /// Number of all endpoints.
    pub total: usize,
    /// Number of endpoints that are sent, directly or through gateways.
    pub sent: usize,
    /// `direct`, or the addresses of the gateways; null if no endpoint is sent.
    pub via: Option<String>,
    /// The most frequent reason for withheld endpoints, with their number.
    pub reason: Option<String>,
    /// Code of that reason.
    pub code: Option<&'static str>,
    /// The other reasons, the most frequent first.
    pub also: Vec<WithheldGroup>,
    /// Priority that a policy preference assigns; higher numbers are used if lower ones are not
    /// sufficient.
    pub priority: Option<u32>,
    /// Wording of the preference that assigns the priority.
    pub preference: Option<String>,
}

/// A reason for which some of a cluster's endpoints are withheld.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WithheldGroup {
    /// The reason, with the number of endpoints.
    pub reason: String,
    /// Code of the reason.
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

/// The decision about one endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointLine {
    /// Address of the endpoint.
    pub address: String,
    /// The other address of a dual-stack pod.
    pub additional: Option<String>,
    /// Port of the endpoint.
    pub port: u16,
    /// ID of the cluster.
    pub cluster: String,
    /// Name of the network.
    pub network: NetworkId,
    /// `direct`, `gateway` or `withheld`.
    pub verdict: &'static str,
    /// Addresses of the gateways to the endpoint, if any.
    pub via: Vec<String>,
    /// Envoy's priority of a sent endpoint, if the service prefers near endpoints; 0 is the
    /// highest.
    pub priority: Option<u32>,
    /// The steps of the decision in order, up to the step that withheld the endpoint.
    pub steps: Vec<StepLine>,
}

/// One step of a decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepLine {
    /// Name of the step.
    pub step: &'static str,
    /// Whether the step passed.
    pub ok: bool,
    /// The decisive fact.
    pub detail: String,
}

/// Returns the name of a network, with quotes if it is empty.
pub(super) fn quoted(network: &NetworkId) -> String {
    if network.is_empty() { "\"\"".into() } else { network.to_string() }
}

impl From<Explanation> for api::Explanation {
    fn from(explanation: Explanation) -> Self {
        let Explanation { proxy, hostname, port, clusters, endpoints, found, notes } = explanation;
        Self {
            proxy,
            hostname: hostname.to_string(),
            port,
            clusters: clusters.into_iter().map(Into::into).collect(),
            endpoints: endpoints.into_iter().map(Into::into).collect(),
            found,
            notes,
        }
    }
}

impl From<ClusterLine> for api::ExplainedCluster {
    fn from(line: ClusterLine) -> Self {
        let also = line.also.into_iter().map(|WithheldGroup { reason, code }| {
            api::WithheldEndpoints { reason, code: code.to_owned() }
        });
        Self {
            cluster: line.cluster,
            network: line.network.to_string(),
            ready: line.ready,
            total: line.total,
            sent: line.sent,
            via: line.via,
            reason: line.reason,
            code: line.code.map(str::to_owned),
            also_withheld: also.collect(),
            priority: line.priority,
            preference: line.preference,
        }
    }
}

impl From<EndpointLine> for api::ExplainedEndpoint {
    fn from(line: EndpointLine) -> Self {
        let steps = line.steps.into_iter().map(|StepLine { step, ok, detail }| {
            api::ExplainedStep { step: step.to_owned(), ok, detail }
        });
        Self {
            address: line.address,
            additional: line.additional,
            port: line.port,
            cluster: line.cluster,
            network: line.network.to_string(),
            verdict: line.verdict.into(),
            via: line.via,
            priority: line.priority,
            steps: steps.collect(),
        }
    }
}
