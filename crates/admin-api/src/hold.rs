//! `/debug/hold`, `/api/hold` and `/api/release`: the held configuration.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ObjectName;

/// The held configuration, the changes that wait, and the configurations that can be held.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HoldStatus {
    /// The stored configurations to which an operator can return.
    pub configurations: Vec<RetainedConfiguration>,
    /// The held configuration; null without a hold.
    pub held: Option<HeldConfiguration>,
    /// ID of the configuration that the current objects define; null until they have been read.
    pub live: Option<String>,
    /// Why a configuration that was held before the start is no longer held; null otherwise.
    pub lost: Option<String>,
    /// Whether all replicas hold the same configuration.
    pub replicas: HoldReplicas,
    /// The changes that take effect at the release.
    pub waiting: WaitingChanges,
}

/// The configuration that all proxies keep.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HeldConfiguration {
    /// Name of the requester, as given by the requester.
    pub by: String,
    /// Whether a rollout that stopped holds it.
    pub by_rollout: bool,
    /// ID of the configuration.
    pub configuration: String,
    /// Whether the hold survives a restart, which requires a state directory.
    pub durable: bool,
    /// Reason of the request.
    pub reason: String,
    /// Whether all replicas hold it.
    pub replicas: HoldReplicas,
    /// When the hold began.
    pub since: String,
    /// Number of changes that wait for the release.
    pub waiting: usize,
    /// Whether the hold includes access policies.
    pub with_access: bool,
}

/// Whether the other replicas hold the same configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HoldReplicas {
    /// Why the other replicas may not hold it. Absent unless the state is `thisOne`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fact: Option<String>,
    /// Which replicas hold it.
    pub state: HoldSharing,
}

open_enum! {
    /// The replicas that hold a configuration.
    HoldSharing {
        /// There is no other replica.
        Alone = "alone",
        /// All replicas.
        All = "all",
        /// Only this replica for certain.
        ThisOne = "thisOne",
    }
}

/// The changes that take effect at the release of a held configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WaitingChanges {
    /// Number of changes.
    pub count: usize,
    /// Whether the mesh config changes.
    pub mesh_config: bool,
    /// Whether the mesh networks change.
    pub mesh_networks: bool,
    /// The first 1,000 changed objects.
    pub objects: Vec<ObjectName>,
}

/// A stored configuration to which an operator can return.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RetainedConfiguration {
    /// When it became active.
    pub at: String,
    /// ID of the configuration.
    pub id: String,
    /// Whether it is active.
    pub in_force: bool,
    /// Number of objects.
    pub objects: usize,
    /// The first version of the mesh with this configuration.
    pub version: u64,
}
