//! `/debug/explain`: why a proxy receives the endpoints of a service, or lacks them.
//! `/debug/explain/import`: why a cluster has the ServiceImport of a service, or lacks it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ServiceExport;

/// The decisions about the endpoints of one port of a service, for one proxy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Explanation {
    /// Node ID of the proxy.
    pub proxy: String,
    /// Host name of the service.
    pub hostname: String,
    /// Port of the service.
    pub port: u16,
    /// A line for each cluster and network with endpoints.
    pub clusters: Vec<ExplainedCluster>,
    /// All endpoints.
    pub endpoints: Vec<ExplainedEndpoint>,
    /// How the proxy finds endpoints. Absent unless it finds them itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found: Option<String>,
    /// Notes about other definitions of the service that have no effect. Absent if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// The endpoints of one cluster in one network.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ExplainedCluster {
    /// ID of the cluster.
    pub cluster: String,
    /// Name of the network.
    pub network: String,
    /// Number of ready endpoints.
    pub ready: usize,
    /// Number of all endpoints.
    pub total: usize,
    /// Number of endpoints that are sent, directly or through gateways.
    pub sent: usize,
    /// `direct`, or the addresses of the gateways; null if no endpoint is sent.
    pub via: Option<String>,
    /// The most frequent reason for withheld endpoints, with their number; null without one.
    pub reason: Option<String>,
    /// Code of that reason.
    pub code: Option<String>,
    /// The other reasons, the most frequent first. Absent if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub also_withheld: Vec<WithheldEndpoints>,
    /// Priority that a policy preference assigns; higher numbers are used if lower ones are not
    /// sufficient. Absent without a preference.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
    /// The preference in words. Absent without a preference.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preference: Option<String>,
}

/// A reason for which some of a cluster's endpoints are withheld.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WithheldEndpoints {
    /// The reason, with the number of endpoints.
    pub reason: String,
    /// Code of the reason.
    pub code: String,
}

/// The decision about one endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ExplainedEndpoint {
    /// Address of the endpoint.
    pub address: String,
    /// The other address of a dual-stack pod. Absent for other pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub additional: Option<String>,
    /// Port of the endpoint.
    pub port: u16,
    /// ID of the cluster.
    pub cluster: String,
    /// Name of the network.
    pub network: String,
    /// The decision.
    pub verdict: Verdict,
    /// Addresses of the gateways to the endpoint. Absent if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub via: Vec<String>,
    /// Envoy's priority of a sent endpoint; 0 is the highest. Absent unless the service prefers
    /// near endpoints.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
    /// The steps of the decision in order, up to the step that withheld the endpoint.
    pub steps: Vec<ExplainedStep>,
}

open_enum! {
    /// The decision about an endpoint.
    Verdict {
        /// The proxy is sent the endpoint's address.
        Direct = "direct",
        /// The proxy is sent the addresses of gateways instead.
        Gateway = "gateway",
        /// The proxy is not sent the endpoint.
        Withheld = "withheld",
    }
}

/// One step of a decision.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ExplainedStep {
    /// Name of the step.
    pub step: String,
    /// Whether the step passed.
    pub ok: bool,
    /// The decisive fact.
    pub detail: String,
}

/// Why a cluster has the ServiceImport of a service, or lacks it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ImportExplanation {
    /// ID of the importing cluster.
    pub cluster: String,
    /// The cluster whose export defines the fields; null if no export is valid.
    pub decides: Option<String>,
    /// The exports of the service.
    pub exports: Vec<ServiceExport>,
    /// The fields of the import, each with the cluster whose export defines it.
    pub fields: Vec<ImportedField>,
    /// The import.
    pub import: ExplainedImport,
    /// Name of the service.
    pub name: String,
    /// Namespace of the service.
    pub namespace: String,
    /// The steps up to the first one that fails, or all steps.
    pub steps: Vec<ImportStep>,
}

/// The ServiceImport of an explanation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ExplainedImport {
    /// Its addresses; empty if it is headless.
    pub ips: Vec<String>,
    /// Whether Strait writes it.
    pub ours: bool,
    /// Whether it exists.
    pub present: bool,
    /// Whether its condition `Ready` is true.
    pub ready: bool,
    /// Number of EndpointSlices that Strait writes for it.
    pub slices: usize,
    /// `strait`; null if another controller writes it, or none.
    pub writer: Option<String>,
}

/// A field of a ServiceImport.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ImportedField {
    /// The cluster whose export defines it.
    pub cluster: String,
    /// Name of the field.
    pub field: String,
    /// Value of the field.
    pub value: String,
}

/// One condition for a ServiceImport.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ImportStep {
    /// Code of the reason. Absent if the step passed, or without a code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// The decisive fact.
    pub detail: String,
    /// Whether the step passed.
    pub ok: bool,
    /// Name of the step.
    pub step: String,
}
