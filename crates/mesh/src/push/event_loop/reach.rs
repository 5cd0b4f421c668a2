//! What changes the ways to endpoints that stay as they are: by which gateways a network is entered, and whether what
//! a cluster has counts.
//!
//! On both only assignments depend, and what else is made of endpoints. So just the services with endpoints there are
//! named as changed; who watches these and sees a difference is found out as for any other change of endpoints.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::aggregate::MergedService;
use crate::push::interest::{Changes, Dep};
use strait_model::{ClusterId, NetworkId};

/// What of the ways to endpoints waits for the next version.
#[derive(Debug, Clone, Default)]
pub(super) struct TouchedReach {
    /// Networks with other gateways.
    pub(super) networks: BTreeSet<NetworkId>,
    /// Clusters that were drained, went dark, or are none of that any more.
    pub(super) clusters: BTreeSet<ClusterId>,
}

impl TouchedReach {
    pub(super) fn is_empty(&self) -> bool {
        self.networks.is_empty() && self.clusters.is_empty()
    }

    /// Whether a service has endpoints to which the way is another.
    fn concerns(&self, service: &MergedService) -> bool {
        service.shards.iter().any(|shard| {
            self.clusters.contains(&shard.key.cluster)
                || shard.networks().iter().any(|network| self.networks.contains(network))
        })
    }

    /// Names what of `services` depends on the ways that changed; `reads_more` says of which more than assignments is
    /// made of endpoints.
    pub(super) fn note<'a>(
        self,
        services: impl Iterator<Item = &'a Arc<MergedService>>,
        reads_more: impl Fn(&MergedService) -> bool,
        changes: &mut Changes,
    ) {
        if self.is_empty() {
            return;
        }
        for service in services {
            if changes.is_everything() || !self.concerns(service) {
                continue;
            }
            let host = service.hostname();
            changes.deps.insert(Dep::Endpoints(host.clone()));
            if reads_more(service) {
                changes.deps.insert(Dep::Members(host.clone()));
            }
        }
        changes.deps.extend(self.networks.into_iter().map(Dep::NetworkGateways));
        changes.deps.extend(self.clusters.into_iter().map(Dep::ClusterMode));
    }
}
