//! Rate limits of certificates: per identity, and in total.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::SpiffeId;

/// Limits per identity: certificates per second, and burst size. The burst covers all pods of a
/// deployment that restarts.
const EACH_PER_SECOND: f64 = 10.0;
const EACH_BURST: f64 = 20.0;
/// Limits in total: certificates per second, and burst size.
const ALL_PER_SECOND: f64 = 500.0;
const ALL_BURST: f64 = 500.0;
/// Number of counted identities, above which identities without recent requests are dropped.
const IDENTITIES_MAX: usize = 4096;

/// Token buckets of recent requests.
#[derive(Debug)]
pub(super) struct IssueLimits {
    all: Bucket,
    each: HashMap<SpiffeId, Bucket>,
}

/// A token bucket.
#[derive(Debug)]
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl IssueLimits {
    pub(super) fn new(now: Instant) -> Self {
        Self { all: Bucket { tokens: ALL_BURST, at: now }, each: HashMap::new() }
    }

    /// Takes a token for a certificate of this identity.
    ///
    /// # Errors
    /// If the limit of the identity or the total limit is exhausted. Returns the time after which
    /// to retry.
    pub(super) fn take(&mut self, id: &SpiffeId, now: Instant) -> Result<(), Duration> {
        if self.each.len() >= IDENTITIES_MAX && !self.each.contains_key(id) {
            self.each.retain(|_, bucket| {
                bucket.fill(EACH_PER_SECOND, EACH_BURST, now);
                bucket.tokens < EACH_BURST
            });
        }
        let new = || Bucket { tokens: EACH_BURST, at: now };
        let own = self.each.entry(id.clone()).or_insert_with(new);
        own.fill(EACH_PER_SECOND, EACH_BURST, now);
        self.all.fill(ALL_PER_SECOND, ALL_BURST, now);
        for (bucket, per_second) in [(&*own, EACH_PER_SECOND), (&self.all, ALL_PER_SECOND)] {
            if bucket.tokens < 1.0 {
                return Err(Duration::from_secs_f64((1.0 - bucket.tokens) / per_second));
            }
        }
        own.tokens -= 1.0;
        self.all.tokens -= 1.0;
        Ok(())
    }
}

impl Bucket {
    fn fill(&mut self, per_second: f64, burst: f64, now: Instant) {
        let since = now.saturating_duration_since(self.at).as_secs_f64();
        self.tokens = (self.tokens + since * per_second).min(burst);
        self.at = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(name: &str) -> SpiffeId {
        SpiffeId::new("cluster.local", "shop", name).expect("valid")
    }

    #[test]
    fn limit_of_an_identity_does_not_affect_others() {
        let now = Instant::now();
        let mut limits = IssueLimits::new(now);
        for _ in 0..20 {
            assert_eq!(limits.take(&id("web"), now), Ok(()));
        }
        let wait = limits.take(&id("web"), now).expect_err("too many");
        assert!(wait <= Duration::from_millis(100), "{wait:?}");
        assert_eq!(limits.take(&id("db"), now), Ok(()));
        assert_eq!(limits.take(&id("web"), now + wait), Ok(()));
    }

    #[test]
    fn total_is_limited_and_inactive_identities_are_dropped() {
        let now = Instant::now();
        let mut limits = IssueLimits::new(now);
        let accepted = (0..1000).filter(|at| limits.take(&id(&format!("a{at}")), now).is_ok());
        assert_eq!(accepted.count(), 500);
        for at in 0..2 * IDENTITIES_MAX as u64 {
            let _ = limits.take(&id(&format!("b{at}")), now + Duration::from_secs(at));
        }
        assert!(limits.each.len() <= IDENTITIES_MAX, "{}", limits.each.len());
    }
}
