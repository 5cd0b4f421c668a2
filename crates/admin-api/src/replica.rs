//! `/debug/replicas`: the replicas of the control plane.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Problem;

/// The replicas of the control plane.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Replicas {
    /// Names of the replicas that did not respond. Absent if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing_replicas: Vec<String>,
    /// Why the other replicas are unknown; null if they are known.
    pub problem: Option<String>,
    /// All known replicas.
    pub replicas: Vec<Replica>,
}

/// One replica of the control plane.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Replica {
    /// Address `IP:PORT`. Absent for the replica that responds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The lasting differences between its state and that of the replica that received the request.
    /// Absent if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub differences: Vec<Problem>,
    /// Name of the replica.
    pub name: String,
    /// Why it did not respond. Absent if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Whether it responds.
    pub state: ReplicaState,
}

open_enum! {
    /// Whether a replica responds.
    ReplicaState {
        /// The replica that received the request.
        Own = "self",
        /// Another replica that responds.
        Answers = "answers",
        /// Another replica that does not respond.
        Missing = "missing",
    }
}

/// The response of one replica to another replica's question whether it responds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ReplicaName {
    /// Name of the replica.
    pub name: String,
}
