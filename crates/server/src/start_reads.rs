//! Reads from the config cluster before the start continues: the hold of replicas, and their
//! records about the CA's roots.
//!
//! Both run at the same time with one time limit, so that an unreachable config cluster delays a
//! start only once. Later tasks read the rest.

use std::time::Duration;

use tokio::sync::oneshot;

use super::root_store::RootStore;
use super::shared_hold::{FoundHold, SharedHoldStore};
use strait_base::task::Supervisor;
use strait_identity::RootRecords;

/// Maximum wait of a start for the config cluster.
pub(super) const START_WAIT: Duration = Duration::from_secs(3);

/// Result of the read of the shared hold. `None` if there never was a hold or there is no other
/// replica.
pub(super) type EarlyHold = oneshot::Receiver<Result<Option<FoundHold>, String>>;

/// Starts to read the shared hold. Returns it together with this process's and the shared records
/// about roots. The shared records are empty if there is nothing to read.
pub(super) async fn read(
    hold: Option<SharedHoldStore>,
    roots: &RootStore,
    wait: Duration,
    tasks: &Supervisor,
) -> (EarlyHold, (RootRecords, RootRecords)) {
    let (result, early) = oneshot::channel();
    if let Some(hold) = hold {
        tasks.spawn("hold at start", async move {
            // The receiver is gone if the process ends.
            let _ = result.send(hold.at_start(wait).await);
        });
    } else {
        let _ = result.send(Ok(None));
    }
    (early, roots.at_start(wait).await)
}

#[cfg(test)]
mod tests;
