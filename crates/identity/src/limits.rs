//! How many certificates are issued in how short a time: for one identity, and in all.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::SpiffeId;

/// For one identity: so many a second, and in a burst, such as all pods of a deployment that starts anew.
const EACH_PER_SECOND: f64 = 10.0;
const EACH_BURST: f64 = 20.0;
/// In all: so many a second, and in a burst.
const ALL_PER_SECOND: f64 = 500.0;
const ALL_BURST: f64 = 500.0;
/// Identities that are counted before those are forgotten that asked for nothing of late.
const IDENTITIES_MAX: usize = 4096;

/// Counts what was issued of late.
#[derive(Debug)]
pub(super) struct IssueLimits {
    all: Bucket,
    each: HashMap<SpiffeId, Bucket>,
}

/// A token bucket.
#[derive(Debug)]
struct Bucket {
    left: f64,
    at: Instant,
}

impl IssueLimits {
    pub(super) fn new(now: Instant) -> Self {
        Self { all: Bucket { left: ALL_BURST, at: now }, each: HashMap::new() }
    }

    /// Counts one for this identity.
    ///
    /// # Errors
    /// It is one too many, for it or in all: after how long to ask again.
    pub(super) fn take(&mut self, id: &SpiffeId, now: Instant) -> Result<(), Duration> {
        if self.each.len() >= IDENTITIES_MAX && !self.each.contains_key(id) {
            self.each.retain(|_, bucket| {
                bucket.fill(EACH_PER_SECOND, EACH_BURST, now);
                bucket.left < EACH_BURST
            });
        }
        let new = || Bucket { left: EACH_BURST, at: now };
        let own = self.each.entry(id.clone()).or_insert_with(new);
        own.fill(EACH_PER_SECOND, EACH_BURST, now);
        self.all.fill(ALL_PER_SECOND, ALL_BURST, now);
        for (bucket, per_second) in [(&*own, EACH_PER_SECOND), (&self.all, ALL_PER_SECOND)] {
            if bucket.left < 1.0 {
                return Err(Duration::from_secs_f64((1.0 - bucket.left) / per_second));
            }
        }
        own.left -= 1.0;
        self.all.left -= 1.0;
        Ok(())
    }
}

impl Bucket {
    fn fill(&mut self, per_second: f64, burst: f64, now: Instant) {
        let since = now.saturating_duration_since(self.at).as_secs_f64();
        self.left = (self.left + since * per_second).min(burst);
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
    fn one_identity_that_asks_too_often_waits_and_others_do_not() {
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
    fn all_together_have_a_limit_and_who_asked_long_ago_is_forgotten() {
        let now = Instant::now();
        let mut limits = IssueLimits::new(now);
        let taken = (0..1000).filter(|at| limits.take(&id(&format!("a{at}")), now).is_ok());
        assert_eq!(taken.count(), 500);
        for at in 0..2 * IDENTITIES_MAX as u64 {
            let _ = limits.take(&id(&format!("b{at}")), now + Duration::from_secs(at));
        }
        assert!(limits.each.len() <= IDENTITIES_MAX, "{}", limits.each.len());
    }
}
