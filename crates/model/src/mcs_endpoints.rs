//! The endpoints of services that clusters export, for the EndpointSlices that importing clusters
//! need.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use super::{ClusterId, Health, Locality, NetworkId, WorkloadKey};

/// The endpoints of all exported services, and the networks of the clusters that import them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SharedEndpoints {
    /// The endpoints by service. A service whose endpoints are unknown is missing.
    pub services: BTreeMap<WorkloadKey, Arc<[SourceEndpoints]>>,
    /// The network of the pods of each cluster.
    pub networks: BTreeMap<ClusterId, NetworkId>,
}

/// The endpoints of one service in one cluster that exports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceEndpoints {
    /// The exporting cluster.
    pub cluster: ClusterId,
    /// Whether the operator drains the cluster, or it was unreachable for too long. It has no
    /// endpoints then.
    pub is_withdrawn: bool,
    /// The endpoints, one for each address and port.
    pub endpoints: Vec<SharedEndpoint>,
}

/// One port of one endpoint, without the data that only proxies need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedEndpoint {
    /// The address on which it listens.
    pub address: IpAddr,
    /// The target port.
    pub port: u16,
    /// The name of the service port in the exporting cluster.
    pub port_name: Arc<str>,
    /// The health.
    pub health: Health,
    /// The network in which the address is valid.
    pub network: NetworkId,
    /// The clusters whose pods have this address in this network, if there are several.
    pub claimants: Option<Arc<[ClusterId]>>,
    /// The locality.
    pub locality: Arc<Locality>,
    /// The node in the exporting cluster, if it is known.
    pub node: Option<Arc<str>>,
    /// The host name below the service, if it has one.
    pub hostname: Option<Arc<str>>,
}

impl SharedEndpoints {
    /// Returns whether both have the same networks and share their endpoints. False negatives are
    /// possible.
    pub fn is_same(&self, other: &Self) -> bool {
        let Self { services, networks } = self;
        let mut both = services.iter().zip(&other.services);
        *networks == other.networks
            && services.len() == other.services.len()
            && both.all(|((a, one), (b, two))| a == b && Arc::ptr_eq(one, two))
    }
}

impl SharedEndpoint {
    /// Returns whether pods of `importer` reach this endpoint of `source` by its address: it is in
    /// their network, and the address does not belong to a pod of another cluster.
    pub fn is_reached_by(
        &self,
        source: &ClusterId,
        importer: &ClusterId,
        network: &NetworkId,
    ) -> bool {
        let claimants = self.claimants.as_deref().unwrap_or_default();
        let own = claimants.iter().find(|cluster| *cluster == importer);
        let holder = own.or(claimants.first());
        self.network == *network && holder.is_none_or(|holder| holder == source)
    }
}
