//! `/debug/config/reach`: the proxies to which an access policy applies.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Rejection;

/// The proxies to which an access policy applies, and whether they have acknowledged it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyReach {
    /// Number of proxies that have acknowledged the current policies.
    pub acknowledged: usize,
    /// Number of connected proxies in the mesh.
    pub connected: usize,
    /// Kind of the policy.
    pub kind: String,
    /// Name of the policy.
    pub name: String,
    /// Namespace of the policy.
    pub namespace: String,
    /// Number of proxies to which the policy applies.
    pub proxies: usize,
    /// These proxies.
    pub rows: Vec<PolicyProxy>,
    /// The delivery of the policy's last change and of the steps of its transition. Absent for
    /// policies other than PeerAuthentications.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub told: Option<Vec<PolicyDelivery>>,
    /// The transition to another mTLS mode. Absent without a transition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transition: Option<PolicyTransition>,
}

/// A proxy to which a policy applies.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyProxy {
    /// Whether it has acknowledged the current policies.
    pub acknowledged: bool,
    /// ID of the proxy's cluster.
    pub cluster: String,
    /// The rejection of its listeners; null without one.
    pub nack: Option<Rejection>,
    /// Node ID of the proxy.
    pub proxy: String,
}

/// The delivery of a change of a policy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyDelivery {
    /// Number of proxies that have acknowledged the change.
    pub acknowledged: u32,
    /// When the control plane received the change.
    pub at: String,
    /// Number of proxies that were sent the change.
    pub proxies: u32,
    /// Number of proxies that rejected the change.
    pub refused: u32,
    /// Number of the change, as in `/debug/events`.
    pub seq: u64,
    /// Number of proxies that have not responded yet.
    pub waiting: u32,
}

/// The transition to another mTLS mode.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyTransition {
    /// Number of proxies whose ports still accept the previous mode.
    pub proxies: usize,
    /// When the last of them stops accepting it.
    pub until: String,
}
