//! Computes when the next version is due. Pure: the caller passes the time.
//!
//! The first change after a quiet period is due immediately. While changes continue, versions are
//! spaced by a multiple of the cost of the last one, so that the event loop spends a bounded part
//! of its time on versions and an idle loop does not wait. The spacing is capped, which bounds the
//! time that a change waits. The streams have their own pacing for sending a version
//! (`strait_ads::pace`).

use std::time::{Duration, Instant};

/// The maximum time that a change to endpoints waits.
const ENDPOINTS_WAIT_MAX: Duration = Duration::from_millis(50);
/// The maximum time that any other change waits.
const DEFINITIONS_WAIT_MAX: Duration = Duration::from_millis(100);
/// The spacing as a multiple of the cost of the last version.
const SPACING_PER_COST: u32 = 4;

/// The clock of one event loop.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Debounce {
    last: Option<Finished>,
}

#[derive(Debug, Clone, Copy)]
struct Finished {
    at: Instant,
    cost: Duration,
}

impl Debounce {
    /// Returns when a change that has been waiting since `since` is due. `definitions` tells
    /// whether anything other than endpoints changed.
    pub(super) fn due(&self, since: Instant, definitions: bool) -> Instant {
        let Some(last) = self.last else { return since };
        let ceiling = if definitions { DEFINITIONS_WAIT_MAX } else { ENDPOINTS_WAIT_MAX };
        let spacing = (last.cost * SPACING_PER_COST).min(ceiling);
        since.max(last.at + spacing)
    }

    /// Records that a version was finished at `at` and took `cost` to build and announce.
    pub(super) fn finished(&mut self, at: Instant, cost: Duration) {
        self.last = Some(Finished { at, cost });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_change_is_due_immediately_and_no_change_waits_beyond_the_maximum() {
        let start = Instant::now();
        let ms = Duration::from_millis;
        let mut clock = Debounce::default();
        assert_eq!(clock.due(start, true), start);
        clock.finished(start, ms(1));
        // Cheap versions are spaced closely, expensive versions up to the maximum.
        let cases = [
            (ms(1), ms(0), false, ms(4)),
            (ms(1), ms(10), false, ms(10)),
            (ms(1), ms(0), true, ms(4)),
            (ms(100), ms(0), false, ms(50)),
            (ms(100), ms(0), true, ms(100)),
            (ms(100), ms(200), true, ms(200)),
        ];
        for (cost, since, definitions, due) in cases {
            clock.finished(start, cost);
            assert_eq!(clock.due(start + since, definitions), start + due, "{cost:?} {since:?}");
        }
    }

    /// Simulates `changes` changes to definitions in one second, with this cost per version.
    /// Returns the number of versions and the longest time that a first change of a version waits.
    fn second(changes: u32, cost: Duration) -> (u32, Duration) {
        let (begun, every) = (Instant::now(), Duration::from_secs(1) / changes);
        let (mut clock, mut free) = (Debounce::default(), begun);
        let (mut change, mut versions, mut wait_max) = (0, 0, Duration::ZERO);
        while change < changes {
            let since = begun + every * change;
            let start = clock.due(since, true).max(free);
            free = start + cost;
            clock.finished(free, cost);
            wait_max = wait_max.max(start - since);
            versions += 1;
            while change < changes && begun + every * change <= start {
                change += 1;
            }
        }
        (versions, wait_max)
    }

    #[test]
    fn idle_loop_does_not_wait_and_busy_loop_combines_changes() {
        assert_eq!(second(200, Duration::from_micros(500)), (200, Duration::ZERO));
        let (versions, wait_max) = second(200, Duration::from_millis(10));
        assert!((15..25).contains(&versions), "{versions}: a fifth of the time");
        assert!(wait_max <= Duration::from_millis(50), "{wait_max:?}");
    }
}
