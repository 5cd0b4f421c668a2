//! Decisions about services and endpoints that merging requires: networks, and claims that the
//! policy refuses.

use std::net::IpAddr;
use std::sync::Arc;

use strait_model::policy::SharingPolicy;
use strait_model::registry::ShardKey;
use strait_model::{ClusterId, NetworkId, Service, SharingDecision};

/// Assigns networks to endpoints (docs/reference/interface.md, "Networks") and decides which claims
/// of a cluster are accepted.
pub trait AssignNetwork {
    /// Returns whether `cluster` may export `service` to proxies of other clusters.
    fn may_export(&self, _cluster: &ClusterId, _service: &Service) -> bool {
        true
    }

    /// Decides whether the shard's cluster shares `service` with other clusters.
    fn sharing(&self, shard: &ShardKey, service: &Service) -> SharingDecision {
        SharingPolicy::default().decide(&shard.cluster, service.sharing)
    }

    /// Returns whether the service of a ServiceEntry is ignored, because its name belongs to
    /// another namespace.
    fn is_of_foreign_name(&self, _service: &Service) -> bool {
        false
    }

    /// Returns whether endpoints of `cluster` may be in `network`.
    fn may_claim(&self, _cluster: &ClusterId, _network: &NetworkId) -> bool {
        true
    }

    /// Returns the clusters whose pods have this address in this network, or `None` if at most one
    /// cluster has it.
    fn claimants(&self, _network: &NetworkId, _address: IpAddr) -> Option<&Arc<[ClusterId]>> {
        None
    }

    /// Returns whether any address is claimed by several clusters.
    fn has_claimants(&self) -> bool {
        false
    }

    /// Returns whether endpoints of `cluster` may have this address.
    fn may_use(&self, _cluster: &ClusterId, _address: IpAddr) -> bool {
        true
    }

    /// Returns the network of an endpoint of `cluster` at `address`. `system_label` is the network
    /// label of the cluster's system namespace, `label` the endpoint's own network label.
    fn network_of(
        &self,
        cluster: &ClusterId,
        system_label: Option<&NetworkId>,
        label: Option<&NetworkId>,
        address: IpAddr,
    ) -> AssignedEndpoints;
}

/// The network that was assigned to an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssignedEndpoints {
    /// The network.
    pub network: NetworkId,
    /// Whether an endpoint with the same label is in this network at any address.
    pub at_any_address: bool,
}

/// The reason why an endpoint is barred: the claim that its cluster may not make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Bar {
    /// The endpoint's address.
    Address,
    /// The endpoint's network.
    Network,
}
