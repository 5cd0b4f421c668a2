//! Waiting for a condition, with a time limit. This is the only place of the rig that sleeps.

use std::time::{Duration, Instant};

/// Polls `probe` until it returns `Ok`. Panics with its last `Err` after `limit`.
pub(crate) fn until<T>(
    limit: Duration,
    what: &str,
    mut probe: impl FnMut() -> Result<T, String>,
) -> T {
    let started = Instant::now();
    loop {
        match probe() {
            Ok(found) => return found,
            Err(last) if started.elapsed() >= limit => {
                panic!("{what}: not within {limit:?}; last seen: {last}")
            }
            Err(_) => pause(Duration::from_millis(50)),
        }
    }
}

/// Sleeps, for scenarios in which the passing time matters (an API server that is down for a
/// minute).
#[expect(
    clippy::disallowed_methods,
    reason = "the rig is synchronous: there is no worker to block"
)]
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}
