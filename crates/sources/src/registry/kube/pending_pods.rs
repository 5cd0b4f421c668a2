//! Services that wait a moment for the pods which their slices name.
//!
//! Slices and pods come by watches of their own, in any order: a slice may name a pod that comes a moment later, and a
//! pod may go a moment before its slice changes. What was last sent of the service holds for so long; otherwise proxies
//! would be left without endpoints that are there. What is known of neither an identity nor a network can't be sent
//! meanwhile.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use strait_kube_client::NamespacedName;
use strait_model::registry::ServiceRecord;
use strait_model::{EndpointRef, Endpoints, Health, PodState};

/// How long a service waits, at most. API servers send both within milliseconds of each other.
const LONGEST: Duration = Duration::from_secs(1);

/// The services that wait, since when.
#[derive(Default)]
pub(super) struct PendingPods(BTreeMap<NamespacedName, Instant>);

impl PendingPods {
    /// Whether a service shall wait: it is now to be sent with more endpoints whose pods nobody has seen than it was.
    pub(super) fn waits(
        &mut self,
        key: &NamespacedName,
        sent: Option<&ServiceRecord>,
        next: Option<&ServiceRecord>,
    ) -> bool {
        let worse = matches!((sent, next), (Some(sent), Some(next))
            if without_pod(&next.endpoints) > without_pod(&sent.endpoints));
        let waits = worse && {
            let now = Instant::now();
            now < *self.0.entry(key.clone()).or_insert(now) + LONGEST
        };
        if !waits && !self.0.is_empty() {
            self.0.remove(key);
        }
        waits
    }

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Those that have waited long enough, once there are any.
    pub(super) async fn over(&self) -> Vec<NamespacedName> {
        let Some(first) = self.0.values().min() else { return std::future::pending().await };
        sleep_until(*first + LONGEST).await;
        let now = Instant::now();
        let over = self.0.iter().filter(|(_, since)| **since + LONGEST <= now);
        over.map(|(key, _)| key.clone()).collect()
    }
}

/// How many endpoints would take traffic if only their pods were known.
fn without_pod(endpoints: &Endpoints) -> usize {
    if endpoints.kinds().iter().all(|kind| kind.pod != PodState::Missing) {
        return 0;
    }
    let missing = |endpoint: &EndpointRef<'_>| {
        endpoint.pod == PodState::Missing && endpoint.health == Health::Healthy
    };
    endpoints.iter().filter(missing).count()
}
