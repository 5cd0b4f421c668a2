//! What a client holds under a name.

use std::sync::Arc;

use super::resource::{Resource, Version};

/// What a client holds under one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeldVersion {
    /// It stated so when it connected, with a version of ours, or one we can't read.
    Listed(Option<Version>),
    /// It was sent this on this stream. (If it rejected it, it holds an older one: see [`Nack`](super::answers::Nack).)
    Sent(Arc<Resource>),
}

impl HeldVersion {
    /// The version that the client holds, if it is known.
    pub fn version(&self) -> Option<Version> {
        match self {
            Self::Listed(version) => *version,
            Self::Sent(resource) => Some(resource.version),
        }
    }
}
