//! Looks names up that come in order, in runs that are in the same order.

use std::sync::Arc;

use crate::resource::{All, Resource};

/// What a sorted run is searched by.
pub(super) trait SortedByName {
    fn name(&self) -> &str;
}

impl SortedByName for Arc<Resource> {
    fn name(&self) -> &str {
        &self.name
    }
}

impl SortedByName for Arc<str> {
    fn name(&self) -> &str {
        self
    }
}

/// Finds names in a sorted run, one after the other in their order.
pub(super) struct Sweep<'a, T> {
    all: &'a [T],
    passed: usize,
}

impl<'a, T: SortedByName> Sweep<'a, T> {
    pub(super) fn new(all: &'a [T]) -> Self {
        Self { all, passed: 0 }
    }

    /// The one of this name; each name must come after the last one asked for.
    pub(super) fn find(&mut self, name: &str) -> Option<&'a T> {
        self.all.get(self.place(name)?)
    }

    /// The same by its place.
    pub(super) fn place(&mut self, name: &str) -> Option<usize> {
        let rest = self.all.get(self.passed..).unwrap_or_default();
        let before = |one: &T| one.name() < name;
        // Mostly it is the one behind the last.
        self.passed += match rest {
            [first, second, ..] if before(first) && !before(second) => 1,
            [first, ..] if before(first) => rest.partition_point(before),
            _ => 0,
        };
        self.all.get(self.passed).filter(|one| one.name() == name).map(|_| self.passed)
    }
}

/// Finds names in all there is of a wildcard type, in their order.
pub(super) struct Everything<'a> {
    shared: Sweep<'a, Arc<Resource>>,
    own: Sweep<'a, Arc<Resource>>,
}

impl<'a> Everything<'a> {
    pub(super) fn new(all: &'a All) -> Self {
        Self { shared: Sweep::new(all.shared.resources()), own: Sweep::new(&all.own) }
    }

    pub(super) fn find(&mut self, name: &str) -> Option<&'a Arc<Resource>> {
        self.own.find(name).or_else(|| self.shared.find(name))
    }
}
