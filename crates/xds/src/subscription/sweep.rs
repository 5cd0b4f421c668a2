//! Lookup of sorted names in sorted sequences.

use std::sync::Arc;

use crate::resource::{All, Resource};

/// An element of a sequence that is sorted by name.
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

/// A cursor that looks up sorted names in a sorted sequence.
pub(super) struct Sweep<'a, T> {
    all: &'a [T],
    passed: usize,
}

impl<'a, T: SortedByName> Sweep<'a, T> {
    pub(super) fn new(all: &'a [T]) -> Self {
        Self { all, passed: 0 }
    }

    /// Returns the element with this name. Each name must come after the previous one.
    pub(super) fn find(&mut self, name: &str) -> Option<&'a T> {
        self.all.get(self.place(name)?)
    }

    /// Returns the index of the element with this name. Each name must come after the previous one.
    pub(super) fn place(&mut self, name: &str) -> Option<usize> {
        let rest = self.all.get(self.passed..).unwrap_or_default();
        let before = |one: &T| one.name() < name;
        // Usually it is the next element.
        self.passed += match rest {
            [first, second, ..] if before(first) && !before(second) => 1,
            [first, ..] if before(first) => rest.partition_point(before),
            _ => 0,
        };
        self.all.get(self.passed).filter(|one| one.name() == name).map(|_| self.passed)
    }
}

/// A cursor that looks up sorted names in all resources of a wildcard type.
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
