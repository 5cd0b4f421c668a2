//! `/debug/push`: the version of the mesh, and figures of the process.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{HeldConfiguration, Problem};

/// The version of the mesh, and figures of the event loop, memory and streams.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Push {
    /// The connections of the admin port.
    pub admin_connections: AdminConnections,
    /// Age of the version in seconds; null before the first version.
    pub age_seconds: Option<f64>,
    /// Problems of the proxies' connections.
    pub connection_problems: Vec<Problem>,
    /// Longest time that a change of a definition waits for others, in milliseconds.
    pub definitions_wait_max_milliseconds: u64,
    /// Use of file descriptors.
    pub descriptors: Descriptors,
    /// Longest time that a change of endpoints waits for others, in milliseconds.
    pub endpoints_wait_max_milliseconds: u64,
    /// Number of events that the event loop has received.
    pub events: u64,
    /// The held configuration; null without a hold.
    pub held: Option<HeldConfiguration>,
    /// The identities that use most memory.
    pub identities: Vec<IdentityUse>,
    /// Budget of one identity in bytes; 0 without a limit.
    pub identity_budget: u64,
    /// Time to build and announce the last version, in microseconds.
    pub last_version_microseconds: u64,
    /// Use of memory.
    pub memory: Memory,
    /// Number of streams that were closed because their identity exceeded its budget.
    pub over_budget: u64,
    /// When the version was published; null before the first version.
    pub published: Option<String>,
    /// Number of events that waited at the last check.
    pub queued: usize,
    /// The roots of the CA, and how close their expiry is.
    pub roots: Vec<RootLife>,
    /// Number of streams that the last version woke.
    pub streams_woken: usize,
    /// Number of wake-ups by all versions since the start.
    pub streams_woken_total: u64,
    /// The version of the mesh; 0 before the first version.
    pub version: u64,
}

/// The connections of the admin port.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AdminConnections {
    /// Number of idle connections that were closed in favor of new ones.
    pub crowded_out: u64,
    /// Maximum number of connections.
    pub most: usize,
    /// Number of open connections.
    pub open: usize,
    /// Number of refused connections.
    pub refused: u64,
}

/// Use of file descriptors.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Descriptors {
    /// Number of times that no descriptor was left.
    pub exhausted: u64,
    /// Time since that last happened, in seconds; null if it never did.
    pub exhausted_seconds_ago: Option<u64>,
    /// Maximum number of descriptors; null if it is unknown.
    pub limit: Option<u64>,
    /// Approximate number of descriptors that the members need.
    pub needed_by_members: Option<u64>,
    /// Number of open descriptors; null if it is unknown.
    pub open: Option<u64>,
}

/// The memory that the streams of one identity use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct IdentityUse {
    /// Approximate memory of the streams in bytes.
    pub bytes: u64,
    /// Charge against the identity's budget in bytes.
    pub charged: u64,
    /// The SPIFFE identity.
    pub identity: String,
    /// Number of subscribed names that refer to no service.
    pub made_up_names: u64,
    /// Number of subscribed names of all types.
    pub names: u64,
    /// Number of streams.
    pub streams: u64,
    /// Number of streams whose pod is unknown.
    pub unverified: u64,
}

/// Use of memory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Memory {
    /// Number of streams that had to wait for memory.
    pub deferred: u64,
    /// Memory limit in bytes; 0 without a limit.
    pub limit: u64,
    /// How scarce memory is.
    pub pressure: String,
    /// Number of streams that were closed to free memory.
    pub shed: u64,
    /// Used memory in bytes; null if it was not measured yet.
    pub used: Option<u64>,
}

/// A root of the CA, and how close its expiry is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RootLife {
    /// When the root expires.
    pub ends: String,
    /// How close that is.
    pub stage: RootStage,
    /// Subject of the root.
    pub subject: String,
}

open_enum! {
    /// How close the expiry of a root is.
    RootStage {
        /// More than 20 % of the lifetime is left.
        Fine = "fine",
        /// At most 20 % of the lifetime is left.
        Fifth = "fifth",
        /// At most a month is left.
        Month = "month",
        /// At most a week is left.
        Week = "week",
        /// It has expired.
        Ended = "ended",
    }
}
