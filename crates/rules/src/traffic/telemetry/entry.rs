//! What entries of a Telemetry have in common: at which ends of calls they hold, and whom they name. (Istio, "Telemetry".)

use std::sync::Arc;

use serde::Deserialize;

/// The end of a call that a listener is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallEnd {
    /// It is a workload's way out.
    Client,
    /// It is a workload's way in, or a router.
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
    /// The end that is meant; `None` for both.
    pub(super) fn end(self) -> Option<CallEnd> {
        match self {
            Self::Both => None,
            Self::Client => Some(CallEnd::Client),
            Self::Server => Some(CallEnd::Server),
        }
    }
}
