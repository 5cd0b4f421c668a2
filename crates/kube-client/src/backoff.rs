//! Delays after failures: exponential, with jitter.

use std::time::Duration;

/// Delays that double from a first to a maximum one.
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
    last: Duration,
}

impl Backoff {
    /// Creates delays that begin near `first`, double, and stay near or below `longest`.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, failures: 0, last: Duration::ZERO }
    }

    /// Returns the next delay. `random` in `0..1` changes it by up to a quarter in either
    /// direction, so that many clients that lost the same server don't reconnect at the same time.
    pub fn pause(&mut self, random: f64) -> Duration {
        // 2^16 times any first delay exceeds every maximum.
        let doubled = self.first.saturating_mul(1 << self.failures.min(16));
        self.failures = self.failures.saturating_add(1);
        self.last = doubled.min(self.longest).mul_f64(0.75 + random.clamp(0.0, 1.0) / 2.0);
        self.last = self.last.min(self.longest);
        self.last
    }

    /// Records how long the attempt after the last delay lasted. If that was at least twice the
    /// delay, the failures are forgotten. So a server that disconnects every few seconds is read
    /// most of the time, and a server that disconnects at once is retried slowly.
    pub fn record_duration(&mut self, lasted: Duration) {
        if lasted > self.first && lasted >= self.last * 2 {
            self.failures = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quick() -> Backoff {
        Backoff::new(Duration::from_millis(800), Duration::from_secs(30))
    }

    #[test]
    fn delays_double_up_to_the_maximum() {
        let mut backoff = quick();
        let pauses: Vec<_> = (0..8).map(|_| backoff.pause(0.5).as_millis()).collect();
        assert_eq!(pauses, [800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000]);
        for _ in 0..100 {
            assert!(backoff.pause(1.0) <= Duration::from_secs(30));
        }
    }

    #[test]
    fn jitter_changes_a_delay_by_a_quarter() {
        assert_eq!(quick().pause(0.0).as_millis(), 600);
        assert_eq!(quick().pause(1.0).as_millis(), 1000);
    }

    #[test]
    fn failures_are_forgotten_after_a_long_attempt() {
        let mut backoff = quick();
        backoff.pause(0.5);
        backoff.pause(0.5);
        backoff.record_duration(Duration::from_secs(2));
        assert_eq!(
            backoff.pause(0.5).as_millis(),
            3200,
            "an attempt of 2 s is too short after a delay of 1.6 s"
        );
        backoff.record_duration(Duration::from_secs(7));
        assert_eq!(backoff.pause(0.5).as_millis(), 800);
    }
}
