//! `/debug/sources`: the sources of services and objects other than member clusters.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A source of services or objects that is not a member cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Source {
    /// Name of the source.
    pub name: String,
    /// The kind of the source.
    pub kind: SourceKind,
    /// The address, without credentials.
    pub address: String,
    /// The state.
    pub state: SourceState,
    /// Why the source cannot be read, or the age of restored data. Absent without a reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Code of the reason. Absent without a code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// When the source last sent a valid response; null if it never did.
    pub last_contact: Option<String>,
    /// Number of failed attempts to read the source.
    pub failures: u64,
    /// Number of services.
    pub services: usize,
    /// Number of endpoints.
    pub endpoints: usize,
    /// Number of objects, if it is a store of objects.
    pub objects: usize,
    /// Parts of the data that are not used unchanged, as text, at most 100.
    pub warnings: Vec<String>,
    /// Kinds of objects, in plural, that the API server does not have. Absent if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub absent_kinds: Vec<String>,
    /// Number of endpoints that at least one connected proxy cannot receive because of networks or
    /// the policy.
    pub withheld: usize,
    /// The withheld endpoints by the code of the reason. Absent if empty.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub withheld_by: BTreeMap<String, WithheldOfSource>,
}

/// Endpoints of a source that are withheld for one reason.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WithheldOfSource {
    /// Number of endpoints.
    pub endpoints: usize,
    /// Services that have such endpoints, at most three, the first ones by name.
    pub services: Vec<String>,
}

/// A source without its numbers and warnings, as in `/debug/summary`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SourceInShort {
    /// Name of the source.
    pub name: String,
    /// The kind of the source.
    pub kind: SourceKind,
    /// The state.
    pub state: SourceState,
    /// Why the source cannot be read, or the age of restored data; null without a reason.
    pub reason: Option<String>,
    /// Code of the reason; null without a code.
    pub code: Option<String>,
}

open_enum! {
    /// The kind of a source.
    SourceKind {
        /// The ServiceEntries and WorkloadEntries of all stores.
        Entries = "entries",
        /// A Consul catalog.
        Consul = "consul",
        /// A folder with files.
        Directory = "directory",
        /// The API server of the config cluster.
        Cluster = "cluster",
        /// A server of configuration objects over xDS (MCP).
        Mcp = "mcp",
        /// A server of keys for JWTs.
        Jwks = "jwks",
        /// The state directory, if it cannot be written.
        State = "state",
    }
}

open_enum! {
    /// The state of a source.
    SourceState {
        /// Not read completely yet.
        Syncing = "syncing",
        /// Complete and up to date.
        Live = "live",
        /// Without contact; the last known data stays in use.
        Stale = "stale",
        /// Never read completely, and no longer delays readiness.
        Timeout = "timeout",
        /// Not read completely since the start; data from disk is in use.
        Restored = "restored",
    }
}
