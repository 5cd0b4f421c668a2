//! What is due of a type of which each name makes a response of its own, and may have to wait for an answer.

use std::sync::Arc;

use super::TypeSubscription;
use super::entries::{Due, Holds, NewEntry};
use crate::resource::{Resource, ResourceSource, Version};

/// What a name was to the client, and is from now on.
#[derive(Debug)]
pub(crate) struct OneChange {
    /// The client waits for an answer, whatever there is.
    pub(crate) is_awaited: bool,
    /// What it was sent before.
    pub(crate) before: Option<Arc<Resource>>,
    pub(crate) now: Arc<Resource>,
}

impl TypeSubscription {
    /// The next name that differs from what is held, or must be sent; it counts as held from now on. Those that `waits` says so of
    /// stay due; it is told whether the client holds anything under the name.
    pub(crate) fn take_one(
        &mut self,
        source: &mut dyn ResourceSource,
        waits: impl Fn(&str, bool) -> bool,
    ) -> Option<OneChange> {
        let mut at = self.due_from;
        while self.due > 0 {
            at = self.entries.position(at, |state| state.due.is_some())?;
            let entry = self.entries.view(at);
            let holds = entry.state.holds == Holds::Sent;
            if waits(entry.name(), holds) {
                at += 1;
                continue;
            }
            let is_awaited = entry.state.due == Some(Due::Send);
            let before = holds.then(|| Arc::clone(entry.resource));
            let Some(now) = source.one(self.kind, entry.name()) else {
                self.settle(at);
                continue;
            };
            let is_other = is_awaited || entry.differs(&now);
            self.settle(at);
            self.hold(at, Holds::Sent, Arc::clone(&now));
            if is_other {
                return Some(OneChange { is_awaited, before, now });
            }
        }
        None
    }

    /// What was sent under a name and is still held.
    pub(crate) fn sent_of(&self, name: &str) -> Option<Arc<Resource>> {
        let entry = self.entries.view(self.place(name)?);
        (entry.state.holds == Holds::Sent).then(|| Arc::clone(entry.resource))
    }

    /// Believes the client that it holds these, which are as they shall be.
    pub(crate) fn list_current(&mut self, all: impl Iterator<Item = Arc<Resource>>) {
        let new: Vec<_> = all.map(NewEntry::sent).collect();
        new.iter().for_each(|entry| self.digest.add(entry.view().digest()));
        if !new.is_empty() {
            self.answers.listed(Version(self.digest.0));
        }
        self.add(new);
    }

    /// Forgets that these were refused: the client doesn't hold them any more.
    pub(crate) fn forget_refused(&mut self, names: &[Arc<str>]) {
        names.iter().for_each(|name| self.answers.forget(name));
    }
}
