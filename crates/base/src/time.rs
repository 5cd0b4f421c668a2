//! Times as text, and the intervals of repeated work.

use std::time::{Duration, SystemTime};

/// The interval for each unit of time that the work takes: repeated work uses at most 2 % of a core.
const PACE_BY_COST: u32 = 50;

/// Returns the interval from the begin of work that took `cost` to its next begin, within `bounds`:
/// the shortest and the longest.
pub fn pace(cost: Duration, bounds: [Duration; 2]) -> Duration {
    let [shortest, longest] = bounds;
    (cost * PACE_BY_COST).clamp(shortest, longest)
}

/// Formats a time as RFC 3339 in UTC with milliseconds. Returns `unknown` for a time outside of the
/// calendar.
pub fn rfc3339(time: SystemTime) -> String {
    jiff::Timestamp::try_from(time).map_or_else(|_| "unknown".into(), |stamp| format!("{stamp:.3}"))
}

/// Formats a time as RFC 3339 in UTC, in whole seconds, as API servers do. Returns `unknown` for a
/// time outside of the calendar.
pub fn rfc3339_seconds(time: SystemTime) -> String {
    jiff::Timestamp::try_from(time).map_or_else(|_| "unknown".into(), |stamp| format!("{stamp:.0}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_takes_a_fiftieth_of_the_time_within_bounds() {
        let ms = Duration::from_millis;
        let paces = [0, 1, 4, 10, 60_000].map(|cost| pace(ms(cost), [ms(100), ms(500)]));
        assert_eq!(paces, [100, 100, 200, 500, 500].map(ms));
    }
}
