//! Whether an answer that lacks all or most of what was known counts.
//!
//! A list that is suddenly empty is more often a fault (a server that has not read its store yet, a backup restored, a
//! right lost) than a wish, and believing it withdraws everything at once. So it counts only when a second answer, read
//! some seconds later, repeats it; until then what it would take away stays. What is reported of one object is never
//! doubted. Pure: the one rule for whoever reads lists, whatever of.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

/// How long after a doubtful answer it is asked for again.
pub const ASK_AGAIN: Duration = Duration::from_secs(3);
/// What repeats an answer must have been read so long after it, or later: it may have been on its way already.
const APART: Duration = Duration::from_secs(2);

/// Whether an answer with `found` of the `known` lacks all or most of them.
pub const fn lacks_most(known: usize, found: usize) -> bool {
    found < known && known - found > known / 2
}

/// The answers that wait to be repeated, each by what it is a list of.
#[derive(Debug)]
pub struct MassDeletionGuard<K> {
    waiting: BTreeMap<K, Doubt>,
    doubted: u64,
}

/// An answer that waits to be repeated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Doubt {
    since: Instant,
    known: usize,
    found: usize,
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { known, found, .. } = self;
        write!(f, "has {found} where {known} were known; asked again before it counts")
    }
}

impl<K> Default for MassDeletionGuard<K> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new(), doubted: 0 }
    }
}

impl<K: Ord> MassDeletionGuard<K> {
    /// Whether an answer counts that has `found` of the `known`. Where it doesn't it is to be asked for again, after
    /// [`ASK_AGAIN`], and nothing is to be taken away meanwhile.
    pub fn admits(&mut self, of: K, known: usize, found: usize, now: Instant) -> bool {
        if !lacks_most(known, found) {
            self.waiting.remove(&of);
            return true;
        }
        if let Some(doubt) = self.waiting.get_mut(&of) {
            if now.duration_since(doubt.since) >= APART {
                self.waiting.remove(&of);
                return true;
            }
            (doubt.known, doubt.found) = (known, found);
            return false;
        }
        self.waiting.insert(of, Doubt { since: now, known, found });
        self.doubted += 1;
        false
    }

    /// Forgets what nobody asks for any more.
    pub fn forget(&mut self, of: &K) {
        self.waiting.remove(of);
    }

    /// The answers that wait to be repeated.
    pub fn waiting(&self) -> impl Iterator<Item = (&K, &Doubt)> {
        self.waiting.iter()
    }

    /// How many answers were not believed at first, so far.
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
    fn what_lacks_most_counts_when_a_later_answer_repeats_it() {
        let mut guard = MassDeletionGuard::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(guard.admits("pods", 10, 5, at(0)), "half is not most");
        assert!(!guard.admits("pods", 10, 0, at(0)));
        let told: Vec<_> = guard.waiting().map(|(of, doubt)| format!("{of} {doubt}")).collect();
        assert_eq!(told, ["pods has 0 where 10 were known; asked again before it counts"]);
        assert!(!guard.admits("pods", 10, 0, at(1)), "that was on its way already");
        assert!(!guard.admits("nodes", 3, 1, at(1)), "each for itself");
        assert!(guard.admits("pods", 10, 1, at(3)), "as good as the same");
        assert!(guard.admits("nodes", 3, 3, at(4)), "it was a fault");
        assert!(!guard.admits("nodes", 3, 0, at(9)), "and the next one is another");
        assert_eq!((guard.waiting().count(), guard.doubted()), (1, 3));
        guard.forget(&"nodes");
        assert_eq!(guard.waiting().count(), 0);
    }
}
