//! The changes that a stream has not processed yet: a set of names and lists, never a queue.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

/// The changes since a stream last took them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dirty {
    /// Whether any resource may have changed: mesh settings, networks or the stream's own workload
    /// did.
    pub everything: bool,
    /// The wildcard types in which a resource changed.
    pub lists: Wildcards,
    /// The subscribed route configurations that changed.
    pub routes: BTreeSet<Arc<str>>,
    /// The subscribed names of services whose endpoints changed, in no order.
    pub endpoints: Vec<Arc<str>>,
    /// The time of the first of these changes, if it is known.
    pub since: Option<Instant>,
    /// The number of streams that the last change affects, including this one.
    pub streams: usize,
}

impl Dirty {
    /// Returns whether nothing changed.
    pub fn is_empty(&self) -> bool {
        !self.everything
            && self.lists.is_empty()
            && self.routes.is_empty()
            && self.endpoints.is_empty()
    }
}

/// A type to which streams subscribe by wildcard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wildcard {
    /// Upstream clusters.
    Clusters,
    /// Listeners.
    Listeners,
    /// The name table.
    Names,
}

/// A set of wildcard types.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Wildcards(u8);

impl Wildcards {
    /// The set of all wildcard types.
    pub const ALL: Self = Self(7);

    /// Returns whether the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns whether the set contains `one`.
    pub fn contains(self, one: Wildcard) -> bool {
        self.0 & Self::from(one).0 != 0
    }

    /// Returns the intersection of two sets.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Adds types to the set.
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
