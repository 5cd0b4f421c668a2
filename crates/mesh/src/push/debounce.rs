//! When the next version is due. Pure: time is passed in.
//!
//! Leading edge: the first change after quiet goes at once. While changes keep coming, versions are
//! spaced by a multiple of what the last one cost, so that the loop spends a bounded share of its
//! time on them, and an idle one waits for nothing; the spacing has a ceiling, which bounds how long
//! any change waits. What streams take for a version they space themselves (`strait_ads::pace`).

use std::time::{Duration, Instant};

/// How long a change of endpoints waits at most.
const ENDPOINTS_WAIT_MAX: Duration = Duration::from_millis(50);
/// How long any other change waits at most.
const DEFINITIONS_WAIT_MAX: Duration = Duration::from_millis(100);
/// The loop spends at most one part in this many on making versions.
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
    /// When a change that waits since `since` is due. `definitions` says whether anything but
    /// endpoints changed.
    pub(super) fn due(&self, since: Instant, definitions: bool) -> Instant {
        let Some(last) = self.last else { return since };
        let ceiling = if definitions { DEFINITIONS_WAIT_MAX } else { ENDPOINTS_WAIT_MAX };
        let spacing = (last.cost * SPACING_PER_COST).min(ceiling);
        since.max(last.at + spacing)
    }

    /// Notes that a version was finished at `at` and took `cost` to make and announce.
    pub(super) fn finished(&mut self, at: Instant, cost: Duration) {
        self.last = Some(Finished { at, cost });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_change_after_quiet_goes_at_once_and_none_waits_beyond_its_ceiling() {
        let start = Instant::now();
        let ms = Duration::from_millis;
        let mut clock = Debounce::default();
        assert_eq!(clock.due(start, true), start);
        clock.finished(start, ms(1));
        // Cheap versions are spaced little, dear ones up to the ceiling.
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

    /// Of so many changes of definitions in a second, one after the other, of which a version costs so much: how
    /// many versions they make, and how long the first change of one waits at most.
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
    fn an_idle_loop_waits_for_nothing_and_a_busy_one_joins_what_comes() {
        assert_eq!(second(200, Duration::from_micros(500)), (200, Duration::ZERO));
        let (versions, wait_max) = second(200, Duration::from_millis(10));
        assert!((15..25).contains(&versions), "{versions}: a fifth of the time");
        assert!(wait_max <= Duration::from_millis(50), "{wait_max:?}");
    }
}
