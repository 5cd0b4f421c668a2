//! The decisions about services and endpoints that merging asks for: networks, and what the policy forbids.

use std::net::IpAddr;
use std::sync::Arc;

use strait_model::{ClusterId, NetworkId, Service};

/// Decides the network of endpoints (docs/reference/interface.md, "Networks"), and what of a cluster counts.
pub trait AssignNetwork {
    /// Whether what `cluster` has under the name of `service` is for proxies of other clusters.
    fn may_export(&self, _cluster: &ClusterId, _service: &Service) -> bool {
        true
    }

    /// Whether the service of a ServiceEntry is left out, because its name belongs to another namespace.
    fn is_of_foreign_name(&self, _service: &Service) -> bool {
        false
    }

    /// Whether endpoints of `cluster` may be in `network`.
    fn may_claim(&self, _cluster: &ClusterId, _network: &NetworkId) -> bool {
        true
    }

    /// The clusters whose pods have that address in that network, where several do.
    fn claimants(&self, _network: &NetworkId, _address: IpAddr) -> Option<&Arc<[ClusterId]>> {
        None
    }

    /// Whether there is any address that several have.
    fn has_claimants(&self) -> bool {
        false
    }

    /// Whether endpoints of `cluster` may have that address.
    fn may_use(&self, _cluster: &ClusterId, _address: IpAddr) -> bool {
        true
    }

    /// The network of an endpoint of `cluster`, whose system namespace names `system_label`, at
    /// `address`, with the label that it carries itself.
    fn network_of(
        &self,
        cluster: &ClusterId,
        system_label: Option<&NetworkId>,
        label: Option<&NetworkId>,
        address: IpAddr,
    ) -> AssignedEndpoints;
}

/// An endpoint's network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssignedEndpoints {
    /// The network.
    pub network: NetworkId,
    /// Whether an endpoint with that label would be in it at any other address, too.
    pub at_any_address: bool,
}

/// What an endpoint claims that it may not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Bar {
    /// Its address.
    Address,
    /// Its network.
    Network,
}
