//! `/debug/history`: earlier versions of the mesh. `/debug/diff`: the changes since an earlier version.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A version of the mesh, and its number of changes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HistoryRow {
    /// When the version was recorded.
    pub at: String,
    /// ID of the configuration; null if it is no longer stored.
    pub configuration: Option<String>,
    /// Number of added endpoints.
    pub endpoints_added: usize,
    /// Number of removed endpoints.
    pub endpoints_removed: usize,
    /// Why the changes are unknown; null if they are known.
    pub gap: Option<String>,
    /// Number of changed networks.
    pub networks: usize,
    /// Number of changed objects.
    pub objects: usize,
    /// The replica that recorded the version. Absent if that is the responding replica.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replica: Option<String>,
    /// Whether the version is from before the start of the process.
    pub restored: bool,
    /// Number of changed services.
    pub services: usize,
    /// Number of changed settings.
    pub settings: usize,
    /// The version; each process starts at 1.
    pub version: u64,
}

/// A version of the mesh, and its changes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HistoryVersion {
    /// When the version was recorded.
    pub at: String,
    /// ID of the configuration; null if it is no longer stored.
    pub configuration: Option<String>,
    /// Number of added endpoints.
    pub endpoints_added: usize,
    /// Number of removed endpoints.
    pub endpoints_removed: usize,
    /// Why the changes are unknown; null if they are known.
    pub gap: Option<String>,
    /// Whether the version is from before the start of the process.
    pub restored: bool,
    /// The version; each process starts at 1.
    pub version: u64,
    /// The changes.
    #[serde(flatten)]
    pub changes: MeshChanges,
}

/// The changes from an earlier moment to now.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MeshDiff {
    /// The earlier version.
    pub from: VersionTime,
    /// The current version.
    pub to: VersionTime,
    /// The changes.
    #[serde(flatten)]
    pub changes: MeshChanges,
}

/// A version and its time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct VersionTime {
    /// When the version was recorded.
    pub at: String,
    /// The version.
    pub version: u64,
}

/// The changes between two versions.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MeshChanges {
    /// Changed gateways, as text, by network.
    pub networks: BTreeMap<String, SetChange>,
    /// Changed configuration objects by `KIND.GROUP NAMESPACE/NAME`, with the digests of their
    /// content.
    pub objects: BTreeMap<String, ValueChange>,
    /// Changed services by host name.
    pub services: BTreeMap<String, ServiceChange>,
    /// Changed settings by field of the mesh config, and modes of members as `cluster ID`.
    pub settings: BTreeMap<String, ValueChange>,
}

/// The changes of one service.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceChange {
    /// Its ports, addresses, clusters and so on. Absent if they are equal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub definition: Option<ValueChange>,
    /// Changed endpoints, as text, by cluster. Absent if they are equal.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub endpoints: BTreeMap<String, SetChange>,
}

/// Added and removed items. A changed item is in both lists.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SetChange {
    /// Items that only the later version has.
    pub added: Vec<String>,
    /// Items that only the earlier version has.
    pub removed: Vec<String>,
}

/// A value before and after. Its form is that of the setting or definition.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ValueChange {
    /// The later value; null if it does not exist.
    pub after: Value,
    /// The earlier value; null if it does not exist.
    pub before: Value,
}
