//! The two forms of the xDS protocol.

/// The two forms of the xDS protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProtocolForm {
    /// Each response says what changed and what went.
    Delta,
    /// State of the world: each response of a wildcard type is the whole type.
    Sotw,
}

impl ProtocolForm {
    /// The name in `/debug/proxies`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Delta => "delta",
            Self::Sotw => "sotw",
        }
    }
}
