//! What the index of an answer means for the next query. Pure.
//!
//! A query that names the index of the last answer is held until there is something newer. As Consul's
//! documentation asks of clients: an index that goes backwards begins anew, one of 0 can't be waited on,
//! and a server that answers at once, again and again, is not asked in a tight loop.

use std::time::Duration;

/// What answers without an index, or with 0, leave: to ask now and then.
const POLL: Duration = Duration::from_secs(5);
/// After news: what else changes in this time comes with the next answer.
const SETTLE: Duration = Duration::from_millis(100);
/// An answer without news before this was not waited for.
const AT_ONCE: Duration = Duration::from_millis(200);
/// The longest rest for a server that doesn't wait.
const REST_MAX: Duration = Duration::from_secs(10);

/// Where one query stands.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct QueryCursor {
    index: Option<u64>,
    fruitless: u32,
}

/// What an answer's index says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answered {
    /// Whether the answer may differ from the one before.
    pub(super) news: bool,
    /// How long to wait before asking again.
    pub(super) rest: Duration,
}

impl QueryCursor {
    /// The index to wait on; `None` asks for what there is now.
    pub(super) fn index(&self) -> Option<u64> {
        self.index
    }

    /// Asks for everything next time, whatever was answered.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Takes the index of an answer that took this long.
    pub(super) fn answered(&mut self, index: Option<u64>, took: Duration) -> Answered {
        let Some(index) = index.filter(|index| *index > 0) else {
            self.forget();
            return Answered { news: true, rest: POLL };
        };
        match self.index {
            Some(last) if index == last => {
                self.fruitless = if took < AT_ONCE { self.fruitless.saturating_add(1) } else { 0 };
                let rest = match self.fruitless {
                    0 => Duration::ZERO,
                    times => SETTLE.saturating_mul(1 << times.min(8)).min(REST_MAX),
                };
                Answered { news: false, rest }
            }
            Some(last) if index < last => {
                // Restored from a snapshot, or another server: its numbers mean something else.
                self.forget();
                Answered { news: true, rest: SETTLE }
            }
            _ => {
                self.index = Some(index);
                self.fruitless = 0;
                Answered { news: true, rest: SETTLE }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOW: Duration = Duration::from_secs(60);
    const QUICK: Duration = Duration::from_millis(1);

    #[test]
    fn an_index_is_waited_on_unless_it_is_nothing_or_goes_backwards() {
        let mut cursor = QueryCursor::default();
        for (index, news, next) in [
            (Some(7), true, Some(7)),
            (Some(7), false, Some(7)),
            (Some(9), true, Some(9)),
            (Some(8), true, None),
            (Some(8), true, Some(8)),
            (Some(0), true, None),
            (Some(5), true, Some(5)),
            (None, true, None),
        ] {
            assert_eq!(cursor.answered(index, SLOW).news, news, "{index:?}");
            assert_eq!(cursor.index(), next, "{index:?}");
        }
    }

    #[test]
    fn a_server_that_does_not_wait_is_left_alone_ever_longer() {
        let mut cursor = QueryCursor::default();
        cursor.answered(Some(3), QUICK);
        let rests: Vec<_> =
            (0..9).map(|_| cursor.answered(Some(3), QUICK).rest.as_millis()).collect();
        assert_eq!(rests, [200, 400, 800, 1600, 3200, 6400, 10_000, 10_000, 10_000]);
        assert_eq!(cursor.answered(Some(3), SLOW).rest, Duration::ZERO);
        assert_eq!(cursor.answered(None, QUICK).rest, POLL);
    }
}
