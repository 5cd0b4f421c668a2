//! Time with a monotonic clock for decisions and a wall clock for display.

use std::fmt;
use std::time::{Duration, Instant, SystemTime};

/// A point in time, by the monotonic clock and by the wall clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimePoint {
    /// Monotonic time, used for decisions.
    pub instant: Instant,
    /// Wall-clock time, used for display.
    pub time: SystemTime,
}

impl TimePoint {
    /// Returns the current time.
    pub fn now() -> Self {
        Self { instant: Instant::now(), time: SystemTime::now() }
    }

    pub(super) fn after(self, duration: Duration) -> Self {
        Self { instant: self.instant + duration, time: self.time + duration }
    }
}

/// Formats the time as RFC 3339, in UTC.
impl fmt::Display for TimePoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::try_from(self.time) {
            Ok(time) => write!(f, "{time:.3}"),
            Err(_) => f.write_str("a time out of range"),
        }
    }
}
