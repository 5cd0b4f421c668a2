//! Services that wait a moment for the pods in their slices.
//!
//! Slices and pods arrive on separate watches, in any order: a slice may name a pod that arrives a
//! moment later, and a pod may be deleted a moment before its slice changes. Meanwhile, the last
//! sent version of the service stays; otherwise proxies would temporarily lack existing endpoints.
//! Without its pod, an endpoint has no known identity or network and cannot be sent.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use strait_kube_client::NamespacedName;
use strait_model::registry::ServiceRecord;
use strait_model::{EndpointRef, Endpoints, Health, PodState};

/// Maximum wait of a service. API servers send both within milliseconds of each other.
const LONGEST: Duration = Duration::from_secs(1);

/// The waiting services, and when each began to wait.
#[derive(Default)]
pub(super) struct PendingPods(BTreeMap<NamespacedName, Instant>);

impl PendingPods {
    /// Whether a service must wait: it would be sent with additional endpoints whose pods are
    /// unknown.
    pub(super) fn must_wait(
        &mut self,
        key: &NamespacedName,
        sent: Option<&ServiceRecord>,
        next: Option<&ServiceRecord>,
    ) -> bool {
        let worse = matches!((sent, next), (Some(sent), Some(next))
            if without_pod(&next.endpoints) > without_pod(&sent.endpoints));
        let must_wait = worse && {
            let now = Instant::now();
            now < *self.0.entry(key.clone()).or_insert(now) + LONGEST
        };
        if !must_wait && !self.0.is_empty() {
            self.0.remove(key);
        }
        must_wait
    }

    /// Whether no service is waiting.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the services that have waited long enough, once there are any.
    pub(super) async fn over(&self) -> Vec<NamespacedName> {
        let Some(first) = self.0.values().min() else { return std::future::pending().await };
        sleep_until(*first + LONGEST).await;
        let now = Instant::now();
        let over = self.0.iter().filter(|(_, since)| **since + LONGEST <= now);
        over.map(|(key, _)| key.clone()).collect()
    }
}

/// Returns the number of endpoints that would receive traffic if their pods were known.
fn without_pod(endpoints: &Endpoints) -> usize {
    if endpoints.kinds().iter().all(|kind| kind.pod != PodState::Missing) {
        return 0;
    }
    let missing = |endpoint: &EndpointRef<'_>| {
        endpoint.pod == PodState::Missing && endpoint.health == Health::Healthy
    };
    endpoints.iter().filter(missing).count()
}
