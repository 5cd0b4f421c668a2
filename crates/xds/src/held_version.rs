//! The version of a resource that a client holds.

use std::sync::Arc;

use super::resource::{Resource, Version};

/// The version of a resource that a client holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeldVersion {
    /// The client stated this version when it connected. `None` if this server did not create the
    /// version.
    Listed(Option<Version>),
    /// The resource was sent on this stream. If the client rejected it, it holds an older version:
    /// see [`Nack`](super::answers::Nack).
    Sent(Arc<Resource>),
}

impl HeldVersion {
    /// Returns the version that the client holds, if it is known.
    pub fn version(&self) -> Option<Version> {
        match self {
            Self::Listed(version) => *version,
            Self::Sent(resource) => Some(resource.version),
        }
    }
}
