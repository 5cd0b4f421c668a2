//! Due names of a type for which each name has a separate response, which may wait for the client's
//! answer.

use std::sync::Arc;

use super::TypeSubscription;
use super::entries::{Due, Holds, NewEntry};
use crate::resource::{Resource, ResourceSource, Version};

/// A due name's resources before and after its response.
#[derive(Debug)]
pub(crate) struct OneChange {
    /// Whether the client waits for a response even if nothing differs.
    pub(crate) is_awaited: bool,
    /// The resource that the client was sent before.
    pub(crate) before: Option<Arc<Resource>>,
    pub(crate) now: Arc<Resource>,
}

impl TypeSubscription {
    /// Returns the next name whose resource differs from the held one, or must be sent. It is
    /// recorded as held.
    ///
    /// Names for which `waits` returns true stay due. The second argument of `waits` states whether
    /// the client was sent a resource under the name.
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

    /// Returns the resource that was sent under a name, if the client still holds it.
    pub(crate) fn sent_of(&self, name: &str) -> Option<Arc<Resource>> {
        let entry = self.entries.view(self.place(name)?);
        (entry.state.holds == Holds::Sent).then(|| Arc::clone(entry.resource))
    }

    /// Records resources that the client states to hold and that are current.
    pub(crate) fn list_current(&mut self, all: impl Iterator<Item = Arc<Resource>>) {
        let new: Vec<_> = all.map(NewEntry::sent).collect();
        new.iter().for_each(|entry| self.digest.add(entry.view().digest()));
        if !new.is_empty() {
            self.answers.listed(Version(self.digest.0));
        }
        self.add(new);
    }

    /// Removes resources from the current rejection, because the client no longer holds them.
    pub(crate) fn forget_refused(&mut self, names: &[Arc<str>]) {
        names.iter().for_each(|name| self.answers.forget(name));
    }
}
