//! Access to the pending changes of a stream for other tasks.

use std::sync::Arc;

use super::{PendingChanges, Subscription, SubscriptionIndex, Unread, lock};
use strait_model::dirty::Wildcard;

/// The pending changes of one stream, which may have ended.
#[derive(Debug, Clone)]
pub struct StreamBacklog {
    subscription_index: Arc<SubscriptionIndex>,
    pending: Arc<PendingChanges>,
}

impl SubscriptionIndex {
    /// Announces that a version is about to be published whose streams have not been marked yet;
    /// see [`Self::mark`].
    pub fn begin_publishing(&self) {
        self.table_mut().is_publishing = true;
    }
}

impl Subscription {
    /// Returns a handle to the pending changes.
    pub fn backlog(&self) -> StreamBacklog {
        StreamBacklog {
            subscription_index: Arc::clone(&self.subscription_index),
            pending: Arc::clone(&self.pending),
        }
    }

    /// Reports that the taken changes have been passed to the session.
    pub fn confirm_delivery(&self) {
        lock(&self.pending.dirty).is_in_hand = false;
    }
}

impl StreamBacklog {
    /// Returns whether a change has been published that the stream's session does not know yet.
    pub fn may_have_changes(&self) -> bool {
        self.may_have(|unread| {
            !unread.lists.is_empty() || !unread.routes.is_empty() || !unread.names.is_empty()
        })
    }

    /// Returns whether listeners or routes may differ from the ones that the stream's session knows
    /// to be due, because of a version that existed before this call.
    pub fn may_have_listener_changes(&self) -> bool {
        self.may_have(|unread| {
            unread.lists.contains(Wildcard::Listeners) || !unread.routes.is_empty()
        })
    }

    /// Returns whether a change that is not known to the stream's session may have this part.
    fn may_have(&self, has_part: impl Fn(&Unread) -> bool) -> bool {
        let table = self.subscription_index.table();
        if table.is_publishing {
            return true;
        }
        let unread = lock(&self.pending.dirty);
        unread.is_in_hand || unread.everything || has_part(&unread)
    }
}
