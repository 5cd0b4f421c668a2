//! Measures what each object costs the feed, and reports to the watchdog which object it works on.

use std::sync::Arc;
use std::time::Duration;

use strait_base::watchdog::LoopProgress;
use strait_model::{Cause, ClusterId, ObjectKey};
use strait_rules::budget::{ObjectBudget, ObjectMeter};

/// Maximum CPU time of one object. The largest objects within the limits take at most a tenth of
/// it, so that replicas on machines of different speed decide alike. A build without optimization
/// is about 20 times slower.
const OBJECT_CPU_MAX: Duration =
    Duration::from_millis(if cfg!(debug_assertions) { 2000 } else { 100 });

/// Returns the budget of each object that the feed reads.
pub(super) fn object_budget(progress: &LoopProgress) -> ObjectBudget {
    ObjectBudget::new(Arc::new(LoopMeter(progress.clone())), OBJECT_CPU_MAX)
}

/// Measures by the CPU time of the current thread. The feed reads an object without waiting, so the
/// thread does not change.
#[derive(Debug)]
struct LoopMeter(LoopProgress);

impl ObjectMeter for LoopMeter {
    fn begins(&self, object: &ObjectKey, cluster: Option<&ClusterId>) {
        let ObjectKey { kind, namespace, name, .. } = object.clone();
        let cluster = cluster.cloned().unwrap_or_default();
        self.0.begins(Cause { cluster, kind: kind.to_string().into(), namespace, name });
    }

    fn spent(&self) -> Duration {
        self.0.spent()
    }
}
