//! `/debug/relays`: the connections of relays.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A connection of a relay.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RelayRow {
    /// ID of the member.
    pub cluster: String,
    /// The pod or host of the relay.
    pub instance: String,
    /// The version of the relay.
    pub version: String,
    /// When the connection was opened.
    pub since: String,
    /// Whether requests to the member use the connection.
    pub active: bool,
    /// The address and port of the relay.
    pub remote: String,
    /// The forms in which the relay sends objects, as media types.
    pub forms: Vec<String>,
    /// Number of open requests.
    pub streams: usize,
}
