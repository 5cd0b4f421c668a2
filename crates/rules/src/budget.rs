//! The CPU time that reading and merging one object may take.
//!
//! [`bounds`](crate::bounds) keeps objects far below it. The budget protects all other objects from
//! one whose cost no limit foresees: the object is refused, and its last valid version stays. The
//! caller measures the time, so that rules need no clock.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use strait_model::{ClusterId, ObjectKey};

/// Measures the work on each object, and reports the current object.
pub trait ObjectMeter: fmt::Debug + Send + Sync {
    /// Starts the measurement for an object of a cluster, or of the mesh's own stores if `cluster`
    /// is `None`.
    fn begins(&self, object: &ObjectKey, cluster: Option<&ClusterId>);

    /// Returns the CPU time since the work on the object began.
    fn spent(&self) -> Duration;
}

/// The CPU time that one object may take. Without a meter, the time is not limited.
#[derive(Debug, Clone, Default)]
pub struct ObjectBudget {
    meter: Option<Arc<dyn ObjectMeter>>,
    limit: Duration,
    cluster: Option<ClusterId>,
}

/// Error: an object exceeds its CPU budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuExcess {
    limit: Duration,
}

impl fmt::Display for CpuExcess {
    /// Omits the measured time, which differs between replicas.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limit = self.limit.as_millis();
        write!(f, "takes more than {limit} ms of CPU time: split it into several objects")
    }
}

impl ObjectBudget {
    /// Creates a budget of `limit` for each object.
    pub fn new(meter: Arc<dyn ObjectMeter>, limit: Duration) -> Self {
        Self { meter: Some(meter), limit, cluster: None }
    }

    /// Returns this budget for the objects of a cluster.
    pub(crate) fn for_cluster(&self, cluster: &ClusterId) -> Self {
        Self { cluster: Some(cluster.clone()), ..self.clone() }
    }

    pub(crate) fn begin(&self, object: &ObjectKey) {
        if let Some(meter) = &self.meter {
            meter.begins(object, self.cluster.as_ref());
        }
    }

    /// Returns an error if the current object exceeds its budget.
    pub(crate) fn excess(&self) -> Option<CpuExcess> {
        let spent = self.meter.as_ref()?.spent();
        (spent > self.limit).then_some(CpuExcess { limit: self.limit })
    }
}
