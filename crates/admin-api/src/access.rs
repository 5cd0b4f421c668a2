//! `/debug/access`: the inputs of access decisions.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The inputs of access decisions: the policies, the workloads that they select, and the names that
/// they refer to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AccessSnapshot {
    /// Namespace whose policies apply to the whole mesh.
    pub root_namespace: String,
    /// Trust domain of the mesh, followed by its aliases.
    pub trust_domains: Vec<String>,
    /// The reachable providers. The value states whether the provider only handles HTTP requests.
    pub providers: BTreeMap<String, bool>,
    /// The active access policies; for an invalid policy, its last valid version.
    pub objects: Vec<Value>,
    /// How policies are treated that are invalid and have no valid version.
    pub policy_errors: PolicyErrors,
    /// The known workloads.
    pub workloads: Vec<SnapshotWorkload>,
}

/// A workload that policies may select.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SnapshotWorkload {
    /// ID of the cluster.
    pub cluster: String,
    /// Namespace of the workload.
    pub namespace: String,
    /// Name of the workload.
    pub name: String,
    /// Labels of the workload.
    pub labels: BTreeMap<String, String>,
    /// SPIFFE ID of the workload.
    pub identity: String,
    /// IP addresses of the workload.
    pub addresses: Vec<String>,
}

open_enum! {
    /// How policies are treated that are invalid and have no valid version.
    PolicyErrors {
        /// The readable parts apply.
        Narrow = "narrow",
        /// The policy denies everything.
        Strict = "strict",
    }
}
