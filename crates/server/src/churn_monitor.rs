//! Returns memory to the system after many proxies have connected or disconnected at about the same
//! time.
//!
//! A first sync temporarily needs several times the memory that it leaves in use, mostly for the
//! request and its names. `malloc` keeps the freed pages. Memory is not returned while a crowd is
//! still being served.

use std::time::Duration;

/// Number of streams that opened, closed or received large responses without a calm period, from
/// which they are a crowd.
const CROWD: u64 = 256;
/// Fewer streams than this within a [`PERIOD`] are a calm period.
const CALM: u64 = 32;
/// Interval of the checks.
const PERIOD: Duration = Duration::from_secs(2);
/// Number of checks after which memory is returned although the crowd has not passed.
const LOOKS: u32 = 30;

/// State of the detection.
#[derive(Debug, Default)]
struct ChurnMonitor {
    /// The counter at the last calm period, or when memory was last returned.
    calm_at: u64,
    /// The counter at the last check.
    seen: u64,
    /// Number of checks of the current crowd.
    looks: u32,
}

impl ChurnMonitor {
    /// Takes the current counter, which almost always grows. Returns whether a crowd has been
    /// served.
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

/// Calls `give_back`, which may take some milliseconds, whenever a crowd has passed. `churn`
/// returns the number of streams that opened, closed or received large responses so far.
pub(super) async fn run(churn: impl Fn() -> u64, give_back: impl Fn() + Clone + Send + 'static) {
    let mut monitor = ChurnMonitor::default();
    loop {
        tokio::time::sleep(PERIOD).await;
        if monitor.have_passed(churn()) {
            // A panic in `give_back` has no other consequences.
            let _ = tokio::task::spawn_blocking(give_back.clone()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_returned_once_after_each_crowd() {
        let mut monitor = ChurnMonitor::default();
        let passed: Vec<bool> = [
            // A few, then many over several checks, then none.
            0, 20, 500, 900, 920, 920, // Streams that open one by one are not a crowd.
            940, 970, 1000, 1030, 1060, 1090, 1120, 1150, 1180, 1210,
        ]
        .map(|churn| monitor.have_passed(churn))
        .into();
        let expected = [false, false, false, false, true].into_iter().chain([false; 11]);
        assert!(passed.iter().copied().eq(expected), "{passed:?}");
    }

    #[test]
    fn memory_is_returned_at_intervals_during_permanent_churn() {
        let mut monitor = ChurnMonitor::default();
        let passed = (0..200).filter(|look| monitor.have_passed(look * 2 * CALM)).count();
        assert_eq!(
            passed, 6,
            "four checks until it is a crowd, thirty until memory is returned anyway"
        );
    }
}
