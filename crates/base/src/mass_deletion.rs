//! Protects against lists that suddenly lack all or most of the known objects.
//!
//! A sudden lack of objects is more often a fault (a server that has not read its store yet, a
//! restored backup, a revoked right) than intended, and applying the list would remove everything
//! at once. Therefore the list applies only if a second list, read some seconds later, confirms it;
//! until then the missing objects stay. Events about single objects always apply. Pure, and
//! independent of the kind of list.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

/// Time after which a doubtful list is requested again.
pub const CONFIRM_AFTER: Duration = Duration::from_secs(3);
/// Minimum time between a doubtful list and its confirmation. An earlier list may have been sent
/// already.
const APART: Duration = Duration::from_secs(2);

/// Returns whether a list with `found` of the `known` objects lacks all or most of them.
pub const fn lacks_most(known: usize, found: usize) -> bool {
    found < known && known - found > known / 2
}

/// Maximum number of missing objects that a message names.
const NAMED: usize = 3;

/// The part of a list that is compared with known objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuardedPart<K> {
    of: K,
    known: usize,
    found: usize,
    lacking: Vec<String>,
}

impl<K> GuardedPart<K> {
    /// Creates a part with `found` of the `known` objects.
    pub const fn of(of: K, known: usize, found: usize) -> Self {
        Self { of, known, found, lacking: Vec::new() }
    }

    /// Names the missing objects.
    #[must_use]
    pub fn lacking<T: fmt::Display>(self, objects: impl IntoIterator<Item = T>) -> Self {
        let named = objects.into_iter().take(NAMED).map(|object| object.to_string());
        Self { lacking: named.collect(), ..self }
    }

    /// Ignores a single missing object, which was probably deleted.
    #[must_use]
    pub fn of_several(self) -> Self {
        match self.known.saturating_sub(self.found) {
            0 | 1 => Self { known: self.found, ..self },
            _ => self,
        }
    }
}

/// The lists that wait for confirmation, by a key that the source chooses.
#[derive(Debug)]
pub struct MassDeletionGuard<K> {
    waiting: BTreeMap<K, UnconfirmedList>,
    doubted: u64,
}

/// A list that waits for confirmation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnconfirmedList {
    since: Instant,
    known: usize,
    found: usize,
    lacking: Vec<String>,
}

impl fmt::Display for UnconfirmedList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { known, found, lacking, .. } = self;
        write!(f, "has {found} of {known} known objects")?;
        if !lacking.is_empty() {
            let further = (known - found).saturating_sub(lacking.len());
            write!(f, " (lacking {}", lacking.join(", "))?;
            if further > 0 {
                write!(f, " and {further} more")?;
            }
            write!(f, ")")?;
        }
        write!(f, "; waiting for confirmation")
    }
}

impl<K> Default for MassDeletionGuard<K> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new(), doubted: 0 }
    }
}

impl<K: Ord> MassDeletionGuard<K> {
    /// Returns whether a list with `found` of the `known` objects applies. If it does not, the
    /// caller must request it again after [`CONFIRM_AFTER`] and keep the missing objects until
    /// then.
    pub fn admits(&mut self, of: K, known: usize, found: usize, now: Instant) -> bool {
        self.admits_all([GuardedPart::of(of, known, found)], now)
    }

    /// Returns whether a list applies whose parts are checked separately. It applies entirely or
    /// not at all.
    pub fn admits_all(
        &mut self,
        parts: impl IntoIterator<Item = GuardedPart<K>>,
        now: Instant,
    ) -> bool {
        let mut all = true;
        let mut repeated = Vec::new();
        for GuardedPart { of, known, found, lacking } in parts {
            if !lacks_most(known, found) {
                self.waiting.remove(&of);
            } else if let Some(unconfirmed) = self.waiting.get_mut(&of) {
                (unconfirmed.known, unconfirmed.found, unconfirmed.lacking) =
                    (known, found, lacking);
                // If the list waits for another part, this part stays confirmed.
                match now.duration_since(unconfirmed.since) >= APART {
                    true => repeated.push(of),
                    false => all = false,
                }
            } else {
                self.waiting.insert(of, UnconfirmedList { since: now, known, found, lacking });
                self.doubted += 1;
                all = false;
            }
        }
        if all {
            repeated.iter().for_each(|of| drop(self.waiting.remove(of)));
        }
        all
    }

    /// Removes a list that is no longer requested.
    pub fn forget(&mut self, of: &K) {
        self.waiting.remove(of);
    }

    /// Returns the lists that wait for confirmation.
    pub fn waiting(&self) -> impl Iterator<Item = (&K, &UnconfirmedList)> {
        self.waiting.iter()
    }

    /// Returns the number of doubtful lists so far.
    pub fn doubted(&self) -> u64 {
        self.doubted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_half_is_most() {
        let cases = [
            (0, 0, false),
            (1, 0, true),
            (1, 1, false),
            (2, 1, false),
            (2, 0, true),
            (3, 2, false),
            (3, 1, true),
            (60, 30, false),
            (60, 29, true),
            (60, 100, false),
        ];
        for (known, found, expected) in cases {
            assert_eq!(lacks_most(known, found), expected, "{found} of {known}");
        }
    }

    #[test]
    fn list_in_parts_applies_if_no_part_waits() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut guard = MassDeletionGuard::default();
        let all = || GuardedPart::of("all", 100, 60);
        let half = GuardedPart::of("denying", 4, 2).lacking(["a", "b"]);
        assert!(guard.admits_all([all(), half], at(0)));
        let denying = || GuardedPart::of("denying", 4, 0).lacking(["a", "b", "c", "d"]);
        assert!(!guard.admits_all([all(), denying()], at(1)));
        let texts: Vec<_> =
            guard.waiting().map(|(of, unconfirmed)| format!("{of} {unconfirmed}")).collect();
        let text = "denying has 0 of 4 known objects (lacking a, b, c and 1 more); waiting for confirmation";
        assert_eq!(texts, [text]);
        // Another part becomes doubtful later. The part that is confirmed by then does not restart.
        let most = || GuardedPart::of("all", 100, 49);
        assert!(!guard.admits_all([most(), denying()], at(4)));
        assert_eq!((guard.waiting().count(), guard.doubted()), (2, 2));
        assert!(guard.admits_all([most(), denying()], at(7)));
        assert_eq!((guard.waiting().count(), guard.doubted()), (0, 2));
    }

    #[test]
    fn single_missing_object_is_treated_as_deleted() {
        let mut guard = MassDeletionGuard::default();
        let now = Instant::now();
        let mut admits =
            |known, found| guard.admits_all([GuardedPart::of((), known, found).of_several()], now);
        assert!(admits(1, 0) && admits(2, 1) && admits(4, 2));
        assert!(!admits(2, 0) && !admits(3, 1));
    }

    #[test]
    fn list_without_most_objects_applies_after_confirmation() {
        let mut guard = MassDeletionGuard::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(guard.admits("pods", 10, 5, at(0)), "half is not most");
        assert!(!guard.admits("pods", 10, 0, at(0)));
        let texts: Vec<_> =
            guard.waiting().map(|(of, unconfirmed)| format!("{of} {unconfirmed}")).collect();
        assert_eq!(texts, ["pods has 0 of 10 known objects; waiting for confirmation"]);
        assert!(!guard.admits("pods", 10, 0, at(1)), "that list was already in transit");
        assert!(!guard.admits("nodes", 3, 1, at(1)), "each for itself");
        assert!(guard.admits("pods", 10, 1, at(3)), "a confirmation");
        assert!(guard.admits("nodes", 3, 3, at(4)), "a fault");
        assert!(!guard.admits("nodes", 3, 0, at(9)), "another doubt");
        assert_eq!((guard.waiting().count(), guard.doubted()), (1, 3));
        guard.forget(&"nodes");
        assert_eq!(guard.waiting().count(), 0);
    }
}
