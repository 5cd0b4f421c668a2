//! `/debug/summary`: the data that the map of the page needs.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{CertificateStatus, HeldConfiguration, Problem, RolloutInShort, SourceInShort};

/// The numbers of proxies, problems and objects that the map of the page shows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Summary {
    /// The certificates.
    pub certificates: CertificateStatus,
    /// Status of the mesh config.
    pub mesh: MeshInShort,
    /// Names of the replicas that did not respond. Absent if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing_replicas: Vec<String>,
    /// Configuration objects that cannot be read.
    pub objects: FaultyObjects,
    /// Status of the policy file.
    pub policy: PolicyInShort,
    /// Problems of the proxies' connections and of the other replicas.
    pub problems: Vec<Problem>,
    /// The connected proxies.
    pub proxies: ProxyNumbers,
    /// The rollout.
    pub rollout: RolloutInShort,
    /// The sources other than member clusters.
    pub sources: Vec<SourceInShort>,
}

/// Status of the mesh config.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MeshInShort {
    /// The held configuration; null without a hold.
    pub held: Option<HeldConfiguration>,
    /// Why a configuration that was held before the start is no longer held; null otherwise.
    pub hold_lost: Option<String>,
    /// The parts of the mesh config and the mesh networks that are not active.
    pub problems: Vec<Problem>,
}

/// Status of the policy file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyInShort {
    /// Why the policy file is not active; null if it is active or missing.
    pub problem: Option<String>,
}

/// Numbers of connected proxies, and the first rejections.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProxyNumbers {
    /// The numbers by cluster.
    pub clusters: BTreeMap<String, ProxyCounts>,
    /// Number of streams.
    pub connected: usize,
    /// The first 40 streams that rejected a response.
    pub refusals: Vec<RefusingProxy>,
    /// Number of streams that rejected the last response of a type.
    pub refusing: usize,
    /// Number of streams that have not acknowledged the last response of a type.
    pub waiting: usize,
}

/// Numbers of the connected proxies of one cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProxyCounts {
    /// Number of streams.
    pub connected: usize,
    /// Number of streams that rejected the last response of a type.
    pub refusing: usize,
    /// Number of streams that have not acknowledged the last response of a type.
    pub waiting: usize,
}

/// A stream that rejected a response.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RefusingProxy {
    /// ID of the proxy's cluster.
    pub cluster: String,
    /// Node ID of the proxy.
    pub id: String,
    /// The unique name of the stream.
    pub key: String,
    /// The error texts by resource type.
    pub types: BTreeMap<String, String>,
}

/// Configuration objects that cannot be read, and access policies with unreadable parts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FaultyObjects {
    /// Number of such objects.
    pub faulty: usize,
    /// The first 40 of them.
    pub first: Vec<FaultyObject>,
}

/// A configuration object that cannot be read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FaultyObject {
    /// Code of the first problem; null without a code.
    pub code: Option<String>,
    /// Kind of the object.
    pub kind: String,
    /// Name of the object.
    pub name: String,
    /// Namespace of the object.
    pub namespace: String,
    /// Path of the part with the first problem.
    pub path: String,
    /// `refused` or `partly`.
    pub state: String,
    /// The first problem in words.
    pub text: String,
}
