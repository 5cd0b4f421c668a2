//! Times as text.

use std::time::SystemTime;

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
