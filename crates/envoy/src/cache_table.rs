//! A concurrent map whose entries store the inputs that their values were made from.

use std::hash::Hash;

use dashmap::DashMap;

use strait_base::hash::SecretHasher;

/// Maximum number of entries per table. A full table is emptied and fills again with the values in
/// use.
const ENTRIES_MAX: usize = 1 << 20;

/// The first and the last version of the definitions for which a value is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    first: u64,
    last: u64,
}

impl Span {
    pub(super) fn at_version(version: u64) -> Self {
        Self { first: version, last: version }
    }

    /// Returns the span from the first to the second version.
    pub(super) fn over([first, last]: [u64; 2]) -> Self {
        Self { first, last }
    }

    pub(super) fn first(self) -> u64 {
        self.first
    }

    pub(super) fn contains(self, version: u64) -> bool {
        (self.first..=self.last).contains(&version)
    }

    /// Returns whether the value is valid at `version` or a later one.
    pub(super) fn reaches(self, version: u64) -> bool {
        self.last >= version
    }

    /// Extends the span to version `now` if it contains version `before`.
    pub(super) fn reach(&mut self, [before, now]: [u64; 2]) {
        if self.contains(before) {
            self.last = self.last.max(now);
        }
    }
}

/// A value that a table can cache.
pub(super) trait CacheValue: Clone {
    /// Returns whether a stream holds the value; `true` if that is unknown.
    fn is_in_use(&self) -> bool {
        true
    }
}

/// A map with the inputs of each value. From `MANY` entries on, an insertion removes outdated and
/// unused entries. The table never exceeds `MAX` entries.
#[derive(Debug)]
pub(super) struct CacheTable<
    K: Eq + Hash,
    I,
    V,
    const MANY: usize = ENTRIES_MAX,
    const MAX: usize = ENTRIES_MAX,
> {
    pub(super) entries: DashMap<K, (I, V), SecretHasher>,
}

impl<K: Eq + Hash, I, V, const MANY: usize, const MAX: usize> Default
    for CacheTable<K, I, V, MANY, MAX>
{
    fn default() -> Self {
        Self { entries: DashMap::default() }
    }
}

impl<K: Eq + Hash, I: Clone + PartialEq, V: CacheValue, const MANY: usize, const MAX: usize>
    CacheTable<K, I, V, MANY, MAX>
{
    /// Removes all entries.
    pub(super) fn clear(&self) {
        self.entries.clear();
    }

    /// Returns the cached value of `key` if it was made from `inputs`. Otherwise makes and caches
    /// it.
    pub(super) fn get_or_make(&self, key: K, inputs: I, make: impl FnOnce() -> V) -> V {
        self.get(&key, |cached| *cached == inputs).unwrap_or_else(|| {
            let value = make();
            self.put(key, inputs, value.clone());
            value
        })
    }

    /// Returns the cached value of `key` if `is_current` accepts its inputs.
    pub(super) fn get(&self, key: &K, is_current: impl FnOnce(&I) -> bool) -> Option<V> {
        let entry = self.entries.get(key)?;
        is_current(&entry.0).then(|| entry.1.clone())
    }

    /// Caches a value. Two streams may make the same value at the same time; the results are equal.
    pub(super) fn put(&self, key: K, inputs: I, value: V) {
        if self.entries.len() >= MANY {
            self.sweep(|cached| *cached == inputs);
            if self.entries.len() >= MAX {
                self.entries.clear();
            }
        }
        self.entries.insert(key, (inputs, value));
    }

    /// Calls `look` with each key and its inputs, which it may modify.
    pub(super) fn for_each(&self, mut look: impl FnMut(&K, &mut I)) {
        self.entries.iter_mut().for_each(|mut entry| {
            let (key, (inputs, _)) = entry.pair_mut();
            look(key, inputs);
        });
    }

    /// Removes entries that are outdated or that no stream holds.
    pub(super) fn sweep(&self, is_current: impl Fn(&I) -> bool) {
        // Removed values are freed after the lock is released.
        let mut gone = Vec::new();
        self.entries.retain(|_, entry| {
            let stays = is_current(&entry.0) && entry.1.is_in_use();
            if !stays {
                gone.push(entry.clone());
            }
            stays
        });
    }
}

impl<K: Eq + Hash, V: CacheValue, const MANY: usize, const MAX: usize>
    CacheTable<K, Span, V, MANY, MAX>
{
    /// Returns the value of `key` at a version of the definitions. Makes and caches it if
    /// necessary.
    pub(super) fn at(&self, key: K, version: u64, make: impl FnOnce() -> V) -> V {
        self.get(&key, |span| span.contains(version)).unwrap_or_else(|| {
            let value = make();
            // A value made from an older version must not replace a newer one.
            let newer = self.entries.get(&key).is_some_and(|entry| entry.0.last > version);
            if !newer {
                if self.entries.len() >= MANY {
                    self.sweep(|span| span.contains(version));
                }
                self.entries.insert(key, (Span::at_version(version), value.clone()));
            }
            value
        })
    }

    /// Extends the spans of all values that are unchanged in the next version.
    pub(super) fn carry_over(&self, step: [u64; 2], is_same: impl Fn(&K) -> bool) {
        self.for_each(|key, span| {
            if span.contains(step[0]) && !span.contains(step[1]) && is_same(key) {
                span.reach(step);
            }
        });
    }
}
