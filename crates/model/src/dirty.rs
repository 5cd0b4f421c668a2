//! What a stream has yet to look at: names and lists that changed, never a queue of changes.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

/// What changed since a stream last looked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dirty {
    /// Something that can change any resource: mesh settings, networks, the stream's own workload.
    pub everything: bool,
    /// Of the types of which the stream watches all there is, those in which something differs.
    pub lists: Wildcards,
    /// Of the route configurations that the stream watches, those that differ.
    pub routes: BTreeSet<Arc<str>>,
    /// Of the names that the stream watches, those of services whose endpoints changed; in no order.
    pub endpoints: Vec<Arc<str>>,
    /// When the first of it was heard, where that is known.
    pub since: Option<Instant>,
    /// How many streams hear of the last of it, this one included.
    pub streams: usize,
}

impl Dirty {
    /// Whether there is nothing to look at.
    pub fn is_empty(&self) -> bool {
        !self.everything
            && self.lists.is_empty()
            && self.routes.is_empty()
            && self.endpoints.is_empty()
    }
}

/// A type of which streams watch all there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wildcard {
    /// Upstream clusters.
    Clusters,
    /// Listeners.
    Listeners,
    /// The table of names.
    Names,
}

/// A set of these.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Wildcards(u8);

impl Wildcards {
    /// All of them.
    pub const ALL: Self = Self(7);

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether `one` is among them.
    pub fn contains(self, one: Wildcard) -> bool {
        self.0 & Self::from(one).0 != 0
    }

    /// Those that are in both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Takes in others.
    pub fn add(&mut self, other: impl Into<Self>) {
        self.0 |= other.into().0;
    }
}

impl From<Wildcard> for Wildcards {
    fn from(one: Wildcard) -> Self {
        Self(1 << one as u8)
    }
}

impl FromIterator<Wildcard> for Wildcards {
    fn from_iter<I: IntoIterator<Item = Wildcard>>(all: I) -> Self {
        let mut set = Self::default();
        all.into_iter().for_each(|one| set.add(one));
        set
    }
}

impl fmt::Debug for Wildcards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [Wildcard::Clusters, Wildcard::Listeners, Wildcard::Names];
        f.debug_set().entries(all.into_iter().filter(|one| self.contains(*one))).finish()
    }
}
