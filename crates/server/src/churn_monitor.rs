//! Gives memory back once many proxies have come, or gone, at about the same time.
//!
//! What a first sync takes for a moment, the request and its names above all, is several times what it leaves in
//! use, and lies between that once it is free: `malloc` keeps those pages. Nothing of it is due while a crowd
//! is still being served.

use std::time::Duration;

/// So many streams that came, went, or were sent much, without calm between them, are a crowd.
const CROWD: u64 = 256;
/// Fewer than so many of them within a [`PERIOD`] are calm.
const CALM: u64 = 32;
/// How often is looked.
const PERIOD: Duration = Duration::from_secs(2);
/// A crowd that has been there for so many looks is not waited for.
const LOOKS: u32 = 30;

/// What was seen of crowds.
#[derive(Debug, Default)]
struct ChurnMonitor {
    /// The turnover when it was last calm, or memory was last given back.
    calm_at: u64,
    /// The same when it was last looked at.
    seen: u64,
    /// How often it has been looked at the crowd that is there.
    looks: u32,
}

impl ChurnMonitor {
    /// Takes the turnover of now, which grows, but for what comes while it is counted; whether a crowd has been
    /// there and is served.
    fn have_passed(&mut self, churn: u64) -> bool {
        let lately = churn.saturating_sub(std::mem::replace(&mut self.seen, churn));
        let crowd = churn.saturating_sub(self.calm_at) >= CROWD;
        self.looks += u32::from(crowd);
        let over = lately < CALM || self.looks == LOOKS;
        if over {
            (self.calm_at, self.looks) = (churn, 0);
        }
        crowd && over
    }
}

/// Calls `give_back`, which may take some milliseconds, whenever a crowd has passed. `churn` is how many
/// streams have come, gone and been sent much so far.
pub(super) async fn run(churn: impl Fn() -> u64, give_back: impl Fn() + Clone + Send + 'static) {
    let mut monitor = ChurnMonitor::default();
    loop {
        tokio::time::sleep(PERIOD).await;
        if monitor.have_passed(churn()) {
            // A panic in it is its own affair.
            let _ = tokio::task::spawn_blocking(give_back.clone()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_goes_back_once_after_each_crowd_and_never_within_one() {
        let mut monitor = ChurnMonitor::default();
        let passed: Vec<bool> = [
            // A few, then many over several looks, then nobody.
            0, 20, 500, 900, 920, 920, // Those that come one by one are none, however many.
            940, 970, 1000, 1030, 1060, 1090, 1120, 1150, 1180, 1210,
        ]
        .map(|churn| monitor.have_passed(churn))
        .into();
        let expected = [false, false, false, false, true].into_iter().chain([false; 11]);
        assert!(passed.iter().copied().eq(expected), "{passed:?}");
    }

    #[test]
    fn memory_goes_back_now_and_then_where_it_is_never_calm() {
        let mut monitor = ChurnMonitor::default();
        let passed = (0..200).filter(|look| monitor.have_passed(look * 2 * CALM)).count();
        assert_eq!(passed, 6, "four looks until it is a crowd, thirty until it isn't waited for");
    }
}
