//! Times as text.

use std::time::SystemTime;

/// A time as RFC 3339, in UTC, with milliseconds.
pub fn rfc3339(time: SystemTime) -> String {
    jiff::Timestamp::try_from(time).map_or_else(|_| "unknown".into(), |stamp| format!("{stamp:.3}"))
}
