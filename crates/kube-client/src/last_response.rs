//! The time of the last response of a server.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The time of the last useful data from a server.
#[derive(Debug, Default)]
pub(super) struct LastResponse(Mutex<Option<Instant>>);

impl LastResponse {
    /// Sets the time to now.
    pub(super) fn record(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Forgets the time, because a reader has failed since.
    pub(super) fn forget(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Returns how much of `span` remains since that time.
    pub(super) fn remaining(&self, span: Duration) -> Option<Duration> {
        let last = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        span.checked_sub(last?.elapsed()).filter(|remaining| !remaining.is_zero())
    }
}
