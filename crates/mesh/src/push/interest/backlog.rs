//! What a stream has yet to look at, as others may see it.

use std::sync::Arc;

use super::{Interest, PendingChanges, Subscription, lock};
use strait_model::dirty::Wildcard;

/// Of one stream; it may be gone.
#[derive(Debug, Clone)]
pub struct StreamBacklog {
    interest: Arc<Interest>,
    pending: Arc<PendingChanges>,
}

impl Interest {
    /// Says that a version is about to be published, of which nobody has been marked yet: see [`Self::mark`].
    pub fn publishes(&self) {
        lock(&self.table).is_publishing = true;
    }
}

impl Subscription {
    /// What it has yet to look at.
    pub fn backlog(&self) -> StreamBacklog {
        StreamBacklog { interest: Arc::clone(&self.interest), pending: Arc::clone(&self.pending) }
    }

    /// Says that what was taken has been passed on to whoever sends it.
    pub fn passed_on(&self) {
        lock(&self.pending.dirty).is_in_hand = false;
    }
}

impl StreamBacklog {
    /// Whether a change has been published that the stream's session does not know yet.
    pub fn may_hold_anything(&self) -> bool {
        let table = lock(&self.interest.table);
        if table.is_publishing {
            return true;
        }
        let unread = lock(&self.pending.dirty);
        unread.is_in_hand
            || unread.everything
            || !unread.lists.is_empty()
            || !unread.routes.is_empty()
            || !unread.names.is_empty()
    }

    /// Whether listeners or routes may differ from what the stream's session knows to be due, by a version that was there
    /// before this was asked.
    pub fn may_hold_listeners(&self) -> bool {
        let table = lock(&self.interest.table);
        if table.is_publishing {
            return true;
        }
        let unread = lock(&self.pending.dirty);
        unread.is_in_hand
            || unread.everything
            || unread.lists.contains(Wildcard::Listeners)
            || !unread.routes.is_empty()
    }
}
