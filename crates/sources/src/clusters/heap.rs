//! Returns memory to the system after clusters have been read or removed.
//!
//! The first read of a cluster takes more memory than it leaves in use, and the memory in use is
//! scattered among the free memory: `malloc` keeps those pages. Nothing needs to be returned while
//! more clusters are being read.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::status::ClusterStatus;

/// The time without a read or a removed cluster after which memory is returned.
pub const QUIET: Duration = Duration::from_secs(2);
/// Multiple of the quiet time after which memory is returned a second time: the first responses to
/// proxies and the state written to disk follow a read and also leave memory free.
pub const AFTERMATH: u32 = 4;

/// Calls `release_memory`, which may take some milliseconds, when the set of read clusters has
/// changed and then stayed unchanged for `quiet`. Calls it again after [`AFTERMATH`] times `quiet`.
/// Returns when the sender of statuses is dropped.
pub async fn run(
    mut statuses: watch::Receiver<Arc<Vec<ClusterStatus>>>,
    quiet: Duration,
    release_memory: impl Fn() + Clone + Send + 'static,
) {
    let mut released_for = Vec::new();
    'news: loop {
        let is_unchanged = are_exactly_read(&statuses.borrow_and_update(), &released_for);
        if !is_unchanged {
            let read = read(&statuses.borrow());
            for pause in [quiet, quiet * AFTERMATH] {
                match tokio::time::timeout(pause, wait_for_different(&mut statuses, &read)).await {
                    Ok(Some(())) => continue 'news,
                    Ok(None) => return,
                    Err(_) => {}
                }
                // A panic in it is ignored.
                let _ = tokio::task::spawn_blocking(release_memory.clone()).await;
            }
            released_for = read;
        } else if statuses.changed().await.is_err() {
            return;
        }
    }
}

/// Returns the IDs of the clusters that have been read.
fn read(statuses: &[ClusterStatus]) -> Vec<String> {
    ids_read(statuses).map(str::to_owned).collect()
}

/// Returns whether `ids` are the clusters that have been read. Allocates nothing: among thousands
/// of clusters, some status changes all the time.
fn are_exactly_read(statuses: &[ClusterStatus], ids: &[String]) -> bool {
    ids_read(statuses).eq(ids.iter().map(String::as_str))
}

fn ids_read(statuses: &[ClusterStatus]) -> impl Iterator<Item = &str> {
    statuses.iter().filter(|status| status.sync_took.is_some()).map(|status| status.id.as_str())
}

/// Waits until the set of read clusters differs from `ids`. Returns `None` if the sender is
/// dropped.
async fn wait_for_different(
    statuses: &mut watch::Receiver<Arc<Vec<ClusterStatus>>>,
    ids: &[String],
) -> Option<()> {
    statuses.wait_for(|now| !are_exactly_read(now, ids)).await.ok().map(|_| ())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::mpsc;

    use super::*;

    /// Creates clusters with these IDs; IDs in capitals have been read.
    fn statuses(ids: &[&str]) -> Arc<Vec<ClusterStatus>> {
        let status = |id: &&str| ClusterStatus {
            sync_took: id.chars().all(char::is_uppercase).then_some(QUIET),
            ..ClusterStatus::live(id)
        };
        Arc::new(ids.iter().map(status).collect())
    }

    /// Runs [`run`] concurrently with `send_statuses`, which sends the statuses. Returns how often
    /// memory was released.
    async fn count<F: Future<Output = ()>>(
        quiet: Duration,
        send_statuses: impl FnOnce(
            watch::Sender<Arc<Vec<ClusterStatus>>>,
            mpsc::UnboundedReceiver<()>,
        ) -> F,
    ) -> usize {
        let (sender, receiver) = watch::channel(statuses(&["a", "b"]));
        let (released, times) = mpsc::unbounded_channel();
        let total = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&total);
        let release_memory = move || {
            counted.fetch_add(1, Ordering::Relaxed);
            let _ = released.send(());
        };
        tokio::join!(run(receiver, quiet, release_memory), send_statuses(sender, times));
        total.load(Ordering::Relaxed)
    }

    #[tokio::test]
    async fn memory_is_returned_twice_after_each_read() {
        let times = count(Duration::ZERO, async |sender, mut times| {
            sender.send_replace(statuses(&["A", "b"]));
            times.recv().await.expect("returned after a read");
            times.recv().await.expect("and again later");
            sender.send_replace(statuses(&["A", "c"]));
            sender.send_replace(statuses(&["c"]));
            times.recv().await.expect("returned after a removal");
            times.recv().await.expect("and again later");
        });
        assert_eq!(times.await, 4, "nothing else changed");
    }

    #[tokio::test]
    async fn no_memory_is_returned_while_clusters_are_read() {
        let times = count(QUIET * 1000, async |sender, _| {
            tokio::task::yield_now().await;
            sender.send_replace(statuses(&["A", "B"]));
        });
        assert_eq!(times.await, 0);
    }
}
