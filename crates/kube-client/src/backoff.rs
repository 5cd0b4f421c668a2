//! How long to wait after failures: longer each time, never in step with others.

use std::time::Duration;

/// Doubling pauses between a first and a longest one.
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
    last: Duration,
}

impl Backoff {
    /// Pauses that begin near `first`, double, and stay below `longest`.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, failures: 0, last: Duration::ZERO }
    }

    /// The next pause. `random` is in `0..1` and moves it by up to a quarter either way, so that
    /// many clients who lost the same server don't come back together.
    pub fn pause(&mut self, random: f64) -> Duration {
        // 2^16 times any first pause is beyond every longest one.
        let doubled = self.first.saturating_mul(1 << self.failures.min(16));
        self.failures = self.failures.saturating_add(1);
        self.last = doubled.min(self.longest).mul_f64(0.75 + random.clamp(0.0, 1.0) / 2.0);
        self.last = self.last.min(self.longest);
        self.last
    }

    /// Notes that what came after the last pause held for `lasted`. Where that was at least twice
    /// the pause, waiting was worth it and the failures are forgotten; a server that breaks off
    /// every few seconds is so read most of the time, one that breaks off at once is left alone.
    pub fn held(&mut self, lasted: Duration) {
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
    fn pauses_double_up_to_the_longest() {
        let mut backoff = quick();
        let pauses: Vec<_> = (0..8).map(|_| backoff.pause(0.5).as_millis()).collect();
        assert_eq!(pauses, [800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000]);
        for _ in 0..100 {
            assert!(backoff.pause(1.0) <= Duration::from_secs(30));
        }
    }

    #[test]
    fn chance_moves_a_pause_by_a_quarter() {
        assert_eq!(quick().pause(0.0).as_millis(), 600);
        assert_eq!(quick().pause(1.0).as_millis(), 1000);
    }

    #[test]
    fn failures_are_forgotten_when_the_wait_was_worth_it() {
        let mut backoff = quick();
        backoff.pause(0.5);
        backoff.pause(0.5);
        backoff.held(Duration::from_secs(2));
        assert_eq!(backoff.pause(0.5).as_millis(), 3200, "2 s is not worth a wait of 1.6 s");
        backoff.held(Duration::from_secs(7));
        assert_eq!(backoff.pause(0.5).as_millis(), 800);
    }
}
