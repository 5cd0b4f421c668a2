//! The two forms of the xDS protocol.

/// The two forms of the xDS protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProtocolForm {
    /// Incremental: each response contains the changed resources and the names of removed ones.
    Delta,
    /// State of the world: each response of a wildcard type contains all resources of the type.
    Sotw,
}

impl ProtocolForm {
    /// Returns the name in `/debug/proxies`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Delta => "delta",
            Self::Sotw => "sotw",
        }
    }
}
