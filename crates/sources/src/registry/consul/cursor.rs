//! Decides the next query from the index of a response. Pure.
//!
//! A query that names the index of the last response blocks until there is a newer one. Consul's
//! documentation requires of clients: restart after an index that goes backwards, don't wait for
//! index 0, and don't query a server in a tight loop if it repeatedly responds at once.

use std::time::Duration;

/// The interval of queries if responses have no index or index 0.
const POLL: Duration = Duration::from_secs(5);
/// The pause after a change: further changes in this time arrive with the next response.
const SETTLE: Duration = Duration::from_millis(100);
/// A response without a change before this time means that the server did not block.
const FAST_RESPONSE: Duration = Duration::from_millis(200);
/// The maximum pause for a server that does not block.
const REST_MAX: Duration = Duration::from_secs(10);

/// The position of one query.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct QueryCursor {
    index: Option<u64>,
    fruitless: u32,
}

/// The consequences of a response's index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answered {
    /// Whether the response may differ from the previous one.
    pub(super) news: bool,
    /// How long to wait before the next query.
    pub(super) rest: Duration,
}

impl QueryCursor {
    /// Returns the index to wait for; `None` requests the current state.
    pub(super) fn index(&self) -> Option<u64> {
        self.index
    }

    /// Makes the next query request the current state.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Processes the index of a response that took this long.
    pub(super) fn answered(&mut self, index: Option<u64>, duration: Duration) -> Answered {
        let Some(index) = index.filter(|index| *index > 0) else {
            self.forget();
            return Answered { news: true, rest: POLL };
        };
        match self.index {
            Some(last) if index == last => {
                self.fruitless =
                    if duration < FAST_RESPONSE { self.fruitless.saturating_add(1) } else { 0 };
                let rest = match self.fruitless {
                    0 => Duration::ZERO,
                    times => SETTLE.saturating_mul(1 << times.min(8)).min(REST_MAX),
                };
                Answered { news: false, rest }
            }
            Some(last) if index < last => {
                // Restored from a snapshot, or another server: its indexes have a different
                // meaning.
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
    fn index_is_sent_unless_it_is_zero_or_decreases() {
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
    fn pauses_grow_for_a_server_that_does_not_block() {
        let mut cursor = QueryCursor::default();
        cursor.answered(Some(3), QUICK);
        let rests: Vec<_> =
            (0..9).map(|_| cursor.answered(Some(3), QUICK).rest.as_millis()).collect();
        assert_eq!(rests, [200, 400, 800, 1600, 3200, 6400, 10_000, 10_000, 10_000]);
        assert_eq!(cursor.answered(Some(3), SLOW).rest, Duration::ZERO);
        assert_eq!(cursor.answered(None, QUICK).rest, POLL);
    }
}
