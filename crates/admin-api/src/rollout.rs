//! `/debug/rollout` and `/api/rollout`: the gradual rollout of configuration changes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ProxyRefusal;

/// The plan for rollouts, the running rollout, and the last stopped one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Rollout {
    /// Number of completed rollouts since the start.
    pub completed_total: u64,
    /// Why the configuration of all proxies before the start is unknown; null if it is known.
    pub lost: Option<String>,
    /// The plan; null if changes are sent to all proxies at once.
    pub plan: Option<RolloutPlan>,
    /// The rollout in progress; null without one.
    pub running: Option<RunningRollout>,
    /// The stopped rollout, while its previous configuration is held; null without one.
    pub stopped: Option<StoppedRollout>,
    /// Number of stopped rollouts since the start.
    pub stopped_total: u64,
}

/// The steps of a rollout.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RolloutPlan {
    /// Duration of each step except the last, in seconds.
    pub every_seconds: u64,
    /// Percentage of proxies at each step, from 1 to 100, ascending.
    pub steps: Vec<u8>,
    /// The limits at which a rollout stops.
    pub stop_at: RolloutLimits,
}

/// The limits at which a rollout stops.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RolloutLimits {
    /// Percentage of a service's endpoints that proxies with the change may lose; 100 disables the
    /// check.
    pub lost_endpoints: u8,
    /// Number of proxies that reject the change; at least 1.
    pub refused: usize,
}

/// A rollout in progress.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RunningRollout {
    /// When the rollout began.
    pub begun: String,
    /// ID of the new configuration.
    pub configuration: String,
    /// Number of connected proxies.
    pub connected: usize,
    /// Whether the rollout survives a restart.
    pub durable: bool,
    /// When the next step is due; null before the first step.
    pub next_step_at: Option<String>,
    /// Time until the next step in seconds; null before the first step, and if it is due.
    pub next_step_in_seconds: Option<u64>,
    /// Percentage of proxies that receive the new configuration; 0 before the first step.
    pub percent: u8,
    /// The plan of this rollout.
    pub plan: RolloutPlan,
    /// Number of connected proxies that receive the new configuration.
    pub proxies: usize,
    /// The first 100 rejections.
    pub refusals: Vec<ProxyRefusal>,
    /// Number of proxies that rejected the new configuration.
    pub refused: usize,
    /// ID of the previous configuration.
    pub settled: String,
    /// Node IDs of the first 100 proxies that receive the new configuration.
    pub share: Vec<String>,
    /// Number of the current step, from 1; null before the first step.
    pub step: Option<usize>,
    /// When the current step began; null before the first step.
    pub step_since: Option<String>,
}

/// A rollout that was stopped.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StoppedRollout {
    /// When it was stopped.
    pub at: String,
    /// ID of the configuration held since then.
    pub configuration: String,
    /// Why it was stopped.
    pub reason: String,
}

/// The rollout in `/debug/summary`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RolloutInShort {
    /// Why the configuration of all proxies before the start is unknown; null if it is known.
    pub lost: Option<String>,
    /// The rollout in progress; null without one.
    pub running: Option<RunningRolloutInShort>,
}

/// A rollout in progress, without its plan and its proxies.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RunningRolloutInShort {
    /// ID of the new configuration.
    pub configuration: String,
    /// Number of connected proxies.
    pub connected: usize,
    /// Percentage of proxies that receive the new configuration; 0 before the first step.
    pub percent: u8,
    /// Number of connected proxies that receive the new configuration.
    pub proxies: usize,
    /// Number of proxies that rejected the new configuration.
    pub refused: usize,
    /// Number of the current step, from 1; null before the first step.
    pub step: Option<usize>,
}
