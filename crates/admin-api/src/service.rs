//! `/debug/services`: the services, merged over all clusters. `/debug/endpoints`: their endpoints.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A service, merged over all clusters that define it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Service {
    /// The host name.
    pub hostname: String,
    /// The namespace.
    pub namespace: String,
    /// How proxies find the endpoints: `ClientSideLB`, `Headless`, `Alias HOST` and others.
    pub resolution: String,
    /// The ports: the union of the ports in all clusters.
    pub ports: Vec<ServicePort>,
    /// The virtual IP addresses by cluster.
    #[serde(rename = "clusterVIPs")]
    pub cluster_vips: BTreeMap<String, Vec<String>>,
    /// Address ranges that route to the service, of a ServiceEntry. Absent if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub address_ranges: Vec<String>,
    /// The preference among endpoints. Absent without a preference.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic_distribution: Option<String>,
    /// The addresses at which clients outside of the cluster reach the service, by cluster.
    pub external_addresses: BTreeMap<String, Vec<String>>,
    /// The SPIFFE identities of the service's workloads.
    pub service_accounts: Vec<String>,
    /// IDs of the clusters that define the service.
    pub clusters: Vec<String>,
    /// The fields on which clusters disagree.
    pub conflicts: Vec<ServiceConflict>,
    /// Whether each cluster of Kubernetes that has the service shares it.
    pub sharing: Vec<ServiceSharing>,
    /// The ServiceExports of the service: the one that decides, the other valid ones, then the
    /// refused ones.
    pub exports: Vec<ServiceExport>,
    /// The ServiceImports of the service, by cluster.
    pub imports: Vec<ServiceImport>,
}

/// Whether a cluster shares a service with proxies of other clusters.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceSharing {
    /// ID of the cluster.
    pub cluster: String,
    /// `shared` or `local`.
    pub state: String,
    /// The rule that decides it.
    pub rule: String,
    /// The statements of the cluster's objects, from which a policy decides.
    pub statements: SharingStatements,
}

/// The statements of a cluster's objects about sharing a service: true shares it, false keeps it
/// local. A statement is absent if no object makes it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SharingStatements {
    /// Whether a ServiceExport exists, if exports alone decide (`--mcs`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub export: Option<bool>,
    /// The label `strait.dev/share` of the Service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<bool>,
    /// The label `strait.dev/share` of the Service's Namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace_label: Option<bool>,
    /// The label `istio.io/global` of the Service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub istio_label: Option<bool>,
    /// Whether `serviceScopeConfigs` of the mesh config select the service as global.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<bool>,
}

/// A port of a service.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ServicePort {
    /// Name of the port.
    pub name: String,
    /// Number of the port.
    pub port: u16,
    /// Protocol of the port, for example `HTTP` or `TCP`.
    pub protocol: String,
}

/// A field on which clusters disagree.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceConflict {
    /// Name of the field.
    pub field: String,
    /// The cluster whose value applies.
    pub winner: String,
    /// The clusters with a different value, sorted.
    pub losers: Vec<String>,
}

/// A ServiceExport.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceExport {
    /// ID of the exporting cluster.
    pub cluster: String,
    /// The fields in which it differs from the export that decides.
    pub conflicts: Vec<ExportConflict>,
    /// When it was created; null if that is unknown, and for refused exports.
    pub created: Option<String>,
    /// Whether it defines the fields of the merged service.
    pub decides: bool,
    /// Name of the cluster in the cluster set; null for refused exports.
    pub name: Option<String>,
    /// Why it is refused. Absent for valid exports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Whether it is part of the merged service.
    pub valid: bool,
}

/// A field in which an export differs from the export that decides.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ExportConflict {
    /// Name of the field.
    pub field: String,
    /// The cluster whose value applies.
    pub winner: Option<String>,
}

/// The ServiceImport of one cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceImport {
    /// ID of the cluster.
    pub cluster: String,
    /// Code of the reason; null without a code.
    pub code: Option<String>,
    /// The addresses of the import; empty if it is headless.
    pub ips: Vec<String>,
    /// Whether Strait writes it.
    pub ours: bool,
    /// Whether it exists.
    pub present: bool,
    /// Whether its condition `Ready` is true.
    pub ready: bool,
    /// Why it is missing, not ready, or no longer updated; null otherwise.
    pub reason: Option<String>,
    /// Number of EndpointSlices that Strait writes for it.
    pub slices: usize,
    /// Networks whose endpoints pods without sidecars of the cluster do not reach.
    pub unreached: Vec<String>,
}

/// An endpoint of a service.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceEndpoint {
    /// The IP address, a DNS name that proxies resolve, or the path of a socket.
    pub address: String,
    /// ID of the cluster; empty for endpoints of a ServiceEntry.
    pub cluster: String,
    /// The health as proxies see it.
    pub health: EndpointHealth,
    /// The locality `region/zone/subzone`; empty if it is unknown.
    pub locality: String,
    /// Name of the network.
    pub network: String,
    /// The target port.
    pub port: u16,
    /// Name of the service port.
    pub port_name: String,
    /// The source of the endpoint: `Kubernetes`, `External` and others.
    pub provider: String,
    /// The service account; null if it is unknown.
    pub service_account: Option<String>,
    /// The service ports that route to this port; null without any.
    pub service_ports: Option<BTreeSet<u16>>,
    /// Whether it accepts mTLS of the mesh: `istio` or `disabled`.
    pub tls_mode: String,
    /// The load-balancing weight, at least 1.
    pub weight: u32,
    /// The workload `name.namespace`; null if it is unknown.
    pub workload: Option<String>,
    /// Why no proxy receives it, if the policy file withdraws the endpoints of its cluster because the
    /// cluster has been unreachable for too long. Absent otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub withdrawn: Option<String>,
}

open_enum! {
    /// The health of an endpoint.
    EndpointHealth {
        /// It receives traffic.
        Healthy = "healthy",
        /// It is not ready.
        Unhealthy = "unhealthy",
        /// It serves existing sessions and accepts no new ones.
        Draining = "draining",
        /// It is terminating.
        Terminating = "terminating",
    }
}
