//! Values by key, each with the inputs it was made from.

use std::hash::Hash;

use dashmap::DashMap;

use strait_base::hash::SecretHasher;

/// The most entries of a kind; above it the kind is emptied and fills again with what is in use.
const ENTRIES_MAX: usize = 1 << 20;

/// Versions of definitions for which something holds, the first and the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    first: u64,
    last: u64,
}

impl Span {
    pub(super) fn of(version: u64) -> Self {
        Self { first: version, last: version }
    }

    /// Of two versions, one behind the other.
    pub(super) fn over([first, last]: [u64; 2]) -> Self {
        Self { first, last }
    }

    pub(super) fn first(self) -> u64 {
        self.first
    }

    pub(super) fn contains(self, version: u64) -> bool {
        (self.first..=self.last).contains(&version)
    }

    /// Whether it holds for `version` or for a later one.
    pub(super) fn reaches(self, version: u64) -> bool {
        self.last >= version
    }

    /// Has it hold for a next version as well, if it holds for the one before.
    pub(super) fn reach(&mut self, [before, now]: [u64; 2]) {
        if self.contains(before) {
            self.last = self.last.max(now);
        }
    }
}

/// What can be kept.
pub(super) trait CacheValue: Clone {
    /// Whether a stream holds it, if that can be known.
    fn is_held(&self) -> bool {
        true
    }
}

/// Values by key, each with the inputs it was made from: from `MANY` on only what is current and held, and
/// never more than `MAX`.
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

    /// The value for `key` made from `inputs`; made now where it isn't kept.
    pub(super) fn get_or_make(&self, key: K, inputs: I, make: impl FnOnce() -> V) -> V {
        self.get(&key, |held| *held == inputs).unwrap_or_else(|| {
            let value = make();
            self.put(key, inputs, value.clone());
            value
        })
    }

    /// The value for `key`, if it is kept and `is_current` says so of the inputs it was made from.
    pub(super) fn get(&self, key: &K, is_current: impl FnOnce(&I) -> bool) -> Option<V> {
        let entry = self.entries.get(key)?;
        is_current(&entry.0).then(|| entry.1.clone())
    }

    /// Keeps a value. Two streams may make the same at once; they make equal bytes.
    pub(super) fn put(&self, key: K, inputs: I, value: V) {
        if self.entries.len() >= MANY {
            self.sweep(|held| *held == inputs);
            if self.entries.len() >= MAX {
                self.entries.clear();
            }
        }
        self.entries.insert(key, (inputs, value));
    }

    /// Looks at all inputs, and may change them.
    pub(super) fn for_each(&self, mut look: impl FnMut(&K, &mut I)) {
        self.entries.iter_mut().for_each(|mut entry| {
            let (key, (inputs, _)) = entry.pair_mut();
            look(key, inputs);
        });
    }

    /// Lets go of what isn't current, and of what nobody holds.
    pub(super) fn sweep(&self, is_current: impl Fn(&I) -> bool) {
        // What goes is freed when no lock is held.
        let mut gone = Vec::new();
        self.entries.retain(|_, entry| {
            let stays = is_current(&entry.0) && entry.1.is_held();
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
    /// The value for `key` at a version of the definitions; made now where it isn't kept.
    pub(super) fn at(&self, key: K, version: u64, make: impl FnOnce() -> V) -> V {
        self.get(&key, |span| span.contains(version)).unwrap_or_else(|| {
            let value = make();
            // Who makes it of an older version is late.
            let newer = self.entries.get(&key).is_some_and(|entry| entry.0.last > version);
            if !newer {
                if self.entries.len() >= MANY {
                    self.sweep(|span| span.contains(version));
                }
                self.entries.insert(key, (Span::of(version), value.clone()));
            }
            value
        })
    }

    /// Keeps for a next version what is the same there.
    pub(super) fn carry_over(&self, step: [u64; 2], is_same: impl Fn(&K) -> bool) {
        self.for_each(|key, span| {
            if span.contains(step[0]) && !span.contains(step[1]) && is_same(key) {
                span.reach(step);
            }
        });
    }
}
