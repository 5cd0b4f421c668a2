//! When a server last sent anything.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// When a server last sent something that is of use.
#[derive(Debug, Default)]
pub(super) struct Heard(Mutex<Option<Instant>>);

impl Heard {
    /// It does.
    pub(super) fn now(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// What it sent before says nothing of now: a reader has failed since.
    pub(super) fn forget(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// How much of `span` is left since then.
    pub(super) fn left_of(&self, span: Duration) -> Option<Duration> {
        let last = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        span.checked_sub(last?.elapsed()).filter(|left| !left.is_zero())
    }
}
