//! How many requests that answer nothing a stream may send.

use tokio::time::Instant;

/// Requests that answer nothing: at most this many a second, and in a burst.
const REQUESTS_PER_SECOND: f64 = 50.0;
/// See [`REQUESTS_PER_SECOND`].
const REQUESTS_BURST: f64 = 500.0;

/// A token bucket for requests that answer nothing.
pub(super) struct RequestBudget {
    tokens: f64,
    at: Instant,
}

impl RequestBudget {
    pub(super) fn full(now: Instant) -> Self {
        Self { tokens: REQUESTS_BURST, at: now }
    }

    pub(super) fn take(&mut self, now: Instant) -> bool {
        let refill = now.duration_since(self.at).as_secs_f64() * REQUESTS_PER_SECOND;
        self.at = now;
        self.tokens = (self.tokens + refill).min(REQUESTS_BURST);
        let enough = self.tokens >= 1.0;
        if enough {
            self.tokens -= 1.0;
        }
        enough
    }
}
