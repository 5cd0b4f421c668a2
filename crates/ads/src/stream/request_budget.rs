//! A limit on the requests of a stream that do not answer a response.

use tokio::time::Instant;

/// The maximum rate of requests that do not answer a response, per second.
const REQUESTS_PER_SECOND: f64 = 50.0;
/// The maximum burst of requests that do not answer a response.
const REQUESTS_BURST: f64 = 500.0;

/// A token bucket for requests that do not answer a response.
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
