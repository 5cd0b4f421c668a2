//! Changes that affect how unchanged endpoints are reached: the gateways of a network, and the mode
//! of a cluster.
//!
//! Only assignments and other data that is derived from endpoints depend on these. So the change
//! lists only the services with endpoints there. The affected streams are computed as for any other
//! change to endpoints.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::aggregate::MergedService;
use crate::push::subscription_index::{ChangedItem, Changes};
use strait_model::{ClusterId, NetworkId};

/// Changes to gateways and cluster modes that wait for the next version.
#[derive(Debug, Clone, Default)]
pub(super) struct TouchedReach {
    /// Networks whose gateways changed.
    pub(super) networks: BTreeSet<NetworkId>,
    /// Clusters that started or stopped being drained or withdrawn.
    pub(super) clusters: BTreeSet<ClusterId>,
}

impl TouchedReach {
    pub(super) fn is_empty(&self) -> bool {
        self.networks.is_empty() && self.clusters.is_empty()
    }

    /// Returns whether a service has endpoints in these networks or clusters.
    fn concerns(&self, service: &MergedService) -> bool {
        service.shards.iter().any(|shard| {
            self.clusters.contains(&shard.key.cluster)
                || shard.networks().iter().any(|network| self.networks.contains(network))
        })
    }

    /// Records the affected `services` as changes. `reads_more` returns whether more than the
    /// assignments depends on a service's endpoints.
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
            changes.deps.insert(ChangedItem::Endpoints(host.clone()));
            if reads_more(service) {
                changes.deps.insert(ChangedItem::Members(host.clone()));
            }
        }
        changes.deps.extend(self.networks.into_iter().map(ChangedItem::NetworkGateways));
        changes.deps.extend(self.clusters.into_iter().map(ChangedItem::ClusterMode));
    }
}
