//! Common parts of the entries of a Telemetry: the end of calls that they apply to, and their
//! providers (Istio, "Telemetry").

use std::sync::Arc;

use serde::Deserialize;

/// The end of a call that a listener handles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallEnd {
    /// Outbound traffic of a workload.
    Client,
    /// Inbound traffic of a workload, or traffic of a gateway.
    Server,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct RawMatch {
    pub(super) mode: RawMode,
}

#[derive(Deserialize, Default, Clone, Copy)]
pub(super) enum RawMode {
    #[default]
    #[serde(rename = "CLIENT_AND_SERVER")]
    Both,
    #[serde(rename = "CLIENT")]
    Client,
    #[serde(rename = "SERVER")]
    Server,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct RawProvider {
    pub(super) name: Arc<str>,
}

impl RawMode {
    /// Returns the end of calls; `None` for both.
    pub(super) fn end(self) -> Option<CallEnd> {
        match self {
            Self::Both => None,
            Self::Client => Some(CallEnd::Client),
            Self::Server => Some(CallEnd::Server),
        }
    }
}
