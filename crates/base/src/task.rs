//! Named, supervised tasks.
//!
//! Every task of the process is started here. Therefore it has a name, ends when the process
//! drains, and its panic is logged, counted and handled: a panic ends only its own task. Owns the
//! set of running tasks, not their work.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::FutureExt;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{Instrument, error, info_span};

use crate::watchdog::{Loops, Watchdog};

/// Waits until the given moment, or forever without one.
pub async fn until(moment: Option<impl Into<Instant>>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment.into()).await,
        None => std::future::pending().await,
    }
}

/// Starts and stops tasks. Clones share one set of tasks; a child's tasks stop with its parent's.
#[derive(Clone, Debug)]
pub struct Supervisor {
    tracker: TaskTracker,
    stop: CancellationToken,
    panics: Arc<AtomicU64>,
    loops: Loops,
}

impl Default for Supervisor {
    fn default() -> Self {
        Self::new()
    }
}

impl Supervisor {
    /// Creates an empty set of tasks.
    pub fn new() -> Self {
        Self {
            tracker: TaskTracker::new(),
            stop: CancellationToken::new(),
            panics: Arc::new(AtomicU64::new(0)),
            loops: Loops::default(),
        }
    }

    /// Creates a set of tasks that can be stopped separately and stops with this one.
    pub fn child(&self) -> Self {
        Self {
            tracker: TaskTracker::new(),
            stop: self.stop.child_token(),
            panics: Arc::clone(&self.panics),
            loops: self.loops.clone(),
        }
    }

    /// Runs `task` until it ends, panics, or the set is stopped. A panic is logged and counted.
    pub fn spawn<F>(&self, name: impl Into<String>, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let name = name.into();
        let stop = self.stop.clone();
        let panics = Arc::clone(&self.panics);
        let span = info_span!("task", %name);
        // Boxed, because a future that is moved into another one keeps its place in both.
        let task = Box::pin(task);
        let run = async move {
            tokio::select! {
                () = stop.cancelled() => {}
                ended = AssertUnwindSafe(task).catch_unwind() => {
                    if ended.is_err() {
                        panics.fetch_add(1, Ordering::Relaxed);
                        error!("task panicked and ended; everything else continues");
                    }
                }
            }
        };
        self.start(run.instrument(span));
    }

    /// Runs the future that `make` returns, and again after `pause` whenever it ends or panics,
    /// until the set is stopped.
    pub fn spawn_restarting<M, F>(&self, name: impl Into<String>, pause: Duration, mut make: M)
    where
        M: FnMut() -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let name = name.into();
        let stop = self.stop.clone();
        let panics = Arc::clone(&self.panics);
        let span = info_span!("task", %name);
        let run = async move {
            loop {
                // The function `make` may panic as well.
                let one = AssertUnwindSafe(async { Box::pin(make()).await }).catch_unwind();
                tokio::select! {
                    () = stop.cancelled() => return,
                    ended = one => if ended.is_err() {
                        panics.fetch_add(1, Ordering::Relaxed);
                        error!("task panicked and restarts");
                    }
                }
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(pause) => {}
                }
            }
        };
        self.start(run.instrument(span));
    }

    #[expect(clippy::disallowed_methods, reason = "the one place where tasks are started")]
    fn start(&self, run: impl Future<Output = ()> + Send + 'static) {
        tokio::spawn(self.tracker.track_future(run));
    }

    /// Returns a token that is cancelled when the set is stopped.
    pub fn stopping(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// Returns the number of panicked tasks, including children's.
    pub fn panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }

    /// Returns the number of running tasks of this set, without its children.
    pub fn running(&self) -> usize {
        self.tracker.len()
    }

    /// Adds a loop that everything else depends on: see [`Loops`].
    pub fn watchdog(&self, name: &'static str) -> Watchdog {
        self.loops.watchdog(name)
    }

    /// Returns the loops of this set, its parent and its children.
    pub fn loops(&self) -> &Loops {
        &self.loops
    }

    /// Stops all tasks of the set and its children without waiting.
    pub fn stop(&self) {
        self.stop.cancel();
        self.tracker.close();
    }

    /// Stops all tasks and waits at most `limit` for this set's tasks to end. Returns whether they
    /// ended.
    pub async fn shut_down(&self, limit: Duration) -> bool {
        self.stop();
        tokio::time::timeout(limit, self.tracker.wait()).await.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watchdog::STUCK_AFTER;

    #[tokio::test]
    async fn loop_whose_task_has_ended_is_stuck() {
        let tasks = Supervisor::new();
        let (done, ended) = tokio::sync::oneshot::channel();
        let watchdog = tasks.child().watchdog("ended");
        tasks.spawn("ended", async move {
            watchdog.beat();
            let _ = done.send(());
        });
        ended.await.expect("it ran");
        assert_eq!(tasks.loops().stuck(), []);
        let stuck = tasks.loops().stuck_at(Instant::now() + STUCK_AFTER);
        assert!(matches!(&stuck[..], [one] if one.name == "ended"), "{stuck:?}");
    }

    #[tokio::test]
    async fn panic_ends_only_its_own_task() {
        let tasks = Supervisor::new();
        let (done, seen) = tokio::sync::oneshot::channel();
        tasks.spawn("bad", async { panic!("on purpose") });
        tasks.spawn("good", async move {
            let _ = done.send(());
        });
        seen.await.expect("the good task runs");
        assert!(tasks.shut_down(Duration::from_secs(5)).await);
        assert_eq!(tasks.panics(), 1);
    }

    #[tokio::test]
    async fn a_restarting_task_runs_again_after_a_panic() {
        let tasks = Supervisor::new();
        let (sender, mut runs) = tokio::sync::mpsc::channel(8);
        tasks.spawn_restarting("flaky", Duration::from_millis(1), move || {
            let sender = sender.clone();
            async move {
                let _ = sender.send(()).await;
                panic!("on purpose")
            }
        });
        runs.recv().await.expect("first run");
        runs.recv().await.expect("second run");
        assert!(tasks.shut_down(Duration::from_secs(5)).await);
    }
}
