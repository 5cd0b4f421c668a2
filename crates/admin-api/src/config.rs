//! `/debug/config`: the status of each configuration object.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The status of a configuration object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectStatus {
    /// Kind of the object.
    pub kind: String,
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// The store that contains the object: `config` for the stores that apply to the whole mesh,
    /// `member` for the store of `cluster`.
    pub store: String,
    /// The cluster to whose proxies the object applies. Absent if it applies to the whole mesh.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// Summary of the status.
    pub state: ObjectState,
    /// Number of proxies whose configuration the object affects.
    pub proxies: usize,
    /// Reasons for the status, and warnings.
    pub reasons: Vec<ObjectReason>,
}

open_enum! {
    /// Summary of an object's status.
    ObjectState {
        /// All of the object is active.
        InForce = "inForce",
        /// A part of it has no effect.
        Partly = "partly",
        /// Other objects take precedence wherever it could apply.
        Shadowed = "shadowed",
        /// The object is invalid.
        Refused = "refused",
        /// No known client could use the object.
        Unused = "unused",
        /// The object takes effect after the release of a held configuration.
        Waiting = "waiting",
    }
}

/// A finding about a part of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectReason {
    /// Code of the finding.
    pub code: String,
    /// Path of the part, for example `spec.http[1].route[0]`; empty for the whole object.
    pub path: String,
    /// The finding and its consequence.
    pub text: String,
}
