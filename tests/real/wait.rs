//! Waiting for a condition, with a limit. The only place of the rig that sleeps.

use std::time::{Duration, Instant};

/// Polls `probe` until it answers `Ok`, and panics with its last `Err` once `limit` is over.
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

/// Lets time pass where passing time is the scenario itself (an API server that stays away for a minute).
#[expect(
    clippy::disallowed_methods,
    reason = "the rig is synchronous: there is no worker to block"
)]
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}
