//! Measures what each object costs the feed, and reports to the watchdog which object it works on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use strait_base::cpu::thread_time;
use strait_base::watchdog::LoopProgress;
use strait_model::{Cause, ClusterId, ObjectKey};
use strait_rules::budget::{ObjectBudget, ObjectMeter};

/// The CPU time that one object may take. The largest objects within the limits take at most a tenth of it, so that replicas on
/// machines of different speed decide the same. A build without optimization is some 20 times slower.
const OBJECT_CPU_MAX: Duration =
    Duration::from_millis(if cfg!(debug_assertions) { 2000 } else { 100 });

/// The budget of each object that the feed reads.
pub(super) fn object_budget(progress: &LoopProgress) -> ObjectBudget {
    let meter = LoopMeter { progress: progress.clone(), begun: AtomicU64::new(0) };
    ObjectBudget::new(Arc::new(meter), OBJECT_CPU_MAX)
}

/// Measures by the CPU time of the current thread. The feed reads an object without waiting, so the thread stays the same.
#[derive(Debug)]
struct LoopMeter {
    progress: LoopProgress,
    /// The CPU time of the thread when work on the object began, in nanoseconds.
    begun: AtomicU64,
}

impl ObjectMeter for LoopMeter {
    fn begins(&self, object: &ObjectKey, cluster: Option<&ClusterId>) {
        let ObjectKey { kind, namespace, name, .. } = object.clone();
        let cluster = cluster.cloned().unwrap_or_default();
        self.progress.begins(Cause { cluster, kind: kind.to_string().into(), namespace, name });
        self.begun.store(nanos(thread_time()), Ordering::Relaxed);
    }

    fn spent(&self) -> Duration {
        let begun = self.begun.load(Ordering::Relaxed);
        Duration::from_nanos(nanos(thread_time()).saturating_sub(begun))
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
