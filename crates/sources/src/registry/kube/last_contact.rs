//! The time of the last response of an API server.
//!
//! It changes all the time and nothing has to react to that. Therefore it is a cell that readers
//! look up when they need it, and its changes do not cause notifications.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// The time of the last response of an API server, in milliseconds. Clones share the time, and
/// compare equal to it at any time.
#[derive(Debug, Clone, Default)]
pub struct LastContact(
    /// Milliseconds since the Unix epoch; 0 for never.
    Arc<AtomicU64>,
);

impl LastContact {
    /// Creates a separate cell.
    pub fn at(time: Option<SystemTime>) -> Self {
        Self(Arc::new(AtomicU64::new(time.map_or(0, millis))))
    }

    /// Sets the time to `now`.
    pub fn renew(&self, now: SystemTime) {
        self.0.store(millis(now), Ordering::Relaxed);
    }

    /// Returns the time; `None` if there was no response yet.
    pub fn get(&self) -> Option<SystemTime> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            millis => SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(millis)),
        }
    }
}

impl PartialEq for LastContact {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.get() == other.get()
    }
}

impl Eq for LastContact {}

/// At least one: zero means never.
fn millis(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renewed_time_shows_in_every_clone_and_compares_equal() {
        let contact = LastContact::at(None);
        let shown = contact.clone();
        assert_eq!(shown.get(), None);
        let now = SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_500);
        contact.renew(now);
        assert_eq!(shown.get(), Some(now));
        assert_eq!(shown, contact);
        assert_ne!(shown, LastContact::at(None), "a different server");
    }
}
