//! When something is: what decides, and what people read.

use std::fmt;
use std::time::{Duration, Instant, SystemTime};

/// A time: by a clock that never jumps, and as people read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimePoint {
    /// What decides.
    pub instant: Instant,
    /// What is shown.
    pub time: SystemTime,
}

impl TimePoint {
    /// The present.
    pub fn now() -> Self {
        Self { instant: Instant::now(), time: SystemTime::now() }
    }

    pub(super) fn after(self, duration: Duration) -> Self {
        Self { instant: self.instant + duration, time: self.time + duration }
    }
}

/// As RFC 3339 has it, in UTC.
impl fmt::Display for TimePoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::try_from(self.time) {
            Ok(time) => write!(f, "{time:.3}"),
            Err(_) => f.write_str("a time beyond all calendars"),
        }
    }
}
