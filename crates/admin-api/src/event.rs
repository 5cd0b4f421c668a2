//! `/debug/events`: recent changes of the mesh.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ProxyRefusal;

/// A change of the mesh.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ChangeEvent {
    /// Number of proxies that have acknowledged the change.
    pub acknowledged: u32,
    /// When the control plane received the change.
    pub at: String,
    /// The first object that caused the change; null if it is unknown.
    pub cause: Option<ChangeCause>,
    /// The effect in words.
    pub effect: String,
    /// Names of the replicas that did not respond. Absent if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing_replicas: Vec<String>,
    /// Number of causes that are not listed.
    pub more_causes: usize,
    /// Time from the reception to the last response of a proxy, in milliseconds.
    pub ms: f64,
    /// Further objects that caused the change.
    pub other_causes: Vec<ChangeCause>,
    /// Number of proxies that were sent the change.
    pub proxies: u32,
    /// Time from the reception to the publication, in milliseconds.
    pub published_ms: f64,
    /// The rejections, as far as they are stored. Absent in the list of changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusals: Option<Vec<ProxyRefusal>>,
    /// Number of proxies that rejected the change.
    pub refused: u32,
    /// Node IDs of proxies that rejected the change, as far as they are stored.
    pub refused_by: Vec<String>,
    /// The replica whose number the change has. Absent if the number is that of the responding
    /// replica.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replica: Option<String>,
    /// The replicas that applied the change. Absent if there is only one replica.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub replicas: Vec<String>,
    /// Whether the change is from before the start of the process.
    pub restored: bool,
    /// Number of the change.
    pub seq: u64,
    /// The stored part of the delivery to each proxy. Absent in the list of changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<Vec<ProxyDelivery>>,
    /// The version of the mesh that contains the change.
    pub version: u64,
    /// Time that the change waited for others, in milliseconds.
    pub waited_ms: f64,
    /// Number of proxies that have not responded yet.
    pub waiting: u32,
}

/// An object that caused a change.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ChangeCause {
    /// ID of the object's cluster; empty for objects of the mesh.
    pub cluster: String,
    /// Kind of the object.
    pub kind: String,
    /// Name of the object; empty if the cause is no single object.
    pub name: String,
    /// Namespace of the object; empty without a namespace.
    pub namespace: String,
}

/// The delivery of a change to one proxy.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProxyDelivery {
    /// The response of the proxy.
    pub answer: DeliveryAnswer,
    /// Time from the reception of the change to the proxy's response, in milliseconds; null if the
    /// proxy has not responded.
    pub answered_ms: Option<f64>,
    /// ID of the proxy's cluster.
    pub cluster: String,
    /// Node ID of the proxy.
    pub proxy: String,
    /// Time from the reception of the change to the response that contains it, in milliseconds;
    /// null if it was not sent.
    pub sent_ms: Option<f64>,
}

open_enum! {
    /// The response of a proxy to a change.
    DeliveryAnswer {
        /// It has accepted the change, or needed nothing.
        Acknowledged = "acknowledged",
        /// It has rejected the change.
        Refused = "refused",
        /// It has not responded.
        Waiting = "waiting",
    }
}
