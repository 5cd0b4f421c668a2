//! What a start asks of the config cluster before it goes on: what replicas hold, and what they know of the CA's roots.
//!
//! Both at once, with one limit for both: where the config cluster is dark a start waits once. What is not known by then
//! comes later, by itself.

use std::time::Duration;

use tokio::sync::oneshot;

use super::root_store::RootStore;
use super::shared_hold::{FoundHold, SharedHoldStore};
use strait_base::task::Supervisor;
use strait_identity::RootRecords;

/// How long a start waits for the config cluster.
pub(super) const START_WAIT: Duration = Duration::from_secs(3);

/// What all are to hold, once it has been read; an error where it could not be. None where nobody ever held anything, or
/// where there are no others.
pub(super) type EarlyHold = oneshot::Receiver<Result<Option<FoundHold>, String>>;

/// Begins to read what is held, and returns with what this process and others know of the roots: none of theirs where
/// that is not to be asked for.
pub(super) async fn read(
    hold: Option<SharedHoldStore>,
    roots: &RootStore,
    wait: Duration,
    tasks: &Supervisor,
) -> (EarlyHold, (RootRecords, RootRecords)) {
    let (told, early) = oneshot::channel();
    if let Some(hold) = hold {
        tasks.spawn("hold at start", async move {
            // Nobody waits any more where the process ends.
            let _ = told.send(hold.at_start(wait).await);
        });
    } else {
        let _ = told.send(Ok(None));
    }
    (early, roots.at_start(wait).await)
}

#[cfg(test)]
mod tests;
