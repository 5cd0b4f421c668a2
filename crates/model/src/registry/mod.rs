//! The contract between the sources of services and the aggregate.
//!
//! A source (a Kubernetes cluster, Consul, static files) owns one shard, keyed by provider and
//! cluster. It sends full values of what it touched, never "the third one changed", so that
//! applying an update twice changes nothing and a receiver computes what differs. Sources know
//! neither each other nor the receiver.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::{Causes, ClusterFacts, ClusterId, Endpoints, Hostname, NetworkId, Service, Workloads};

/// The kind of source a shard comes from. The order is the order in which sources are merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Provider {
    /// A Kubernetes cluster.
    Kubernetes,
    /// ServiceEntries and WorkloadEntries, and the pods that ServiceEntries select.
    ServiceEntry,
    /// WorkloadEntries that Kubernetes Services select.
    WorkloadEntry,
    /// A datacentre of Consul.
    Consul,
}

impl Provider {
    /// All of them, in order.
    pub const ALL: [Self; 4] =
        [Self::Kubernetes, Self::ServiceEntry, Self::WorkloadEntry, Self::Consul];

    /// The name as users see it in `/debug/endpoints`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Kubernetes => "Kubernetes",
            Self::ServiceEntry => "ServiceEntry",
            Self::WorkloadEntry => "WorkloadEntry",
            Self::Consul => "Consul",
        }
    }
}

/// The part of the mesh one source speaks for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardKey {
    /// The kind of source.
    pub provider: Provider,
    /// The cluster it describes; empty for what belongs to none.
    pub cluster: ClusterId,
}

impl ShardKey {
    /// The shard of a member Kubernetes cluster.
    pub fn kubernetes(cluster: ClusterId) -> Self {
        Self { provider: Provider::Kubernetes, cluster }
    }

    /// The shard of a datacentre of Consul. `name` is no ID that a Kubernetes cluster can have.
    pub fn consul(name: ClusterId) -> Self {
        Self { provider: Provider::Consul, cluster: name }
    }

    /// The shard of all ServiceEntries. What they say is true for the whole mesh, so it belongs to no
    /// cluster, and can't be mistaken for what the config cluster has itself.
    pub fn service_entries() -> Self {
        Self { provider: Provider::ServiceEntry, cluster: ClusterId::default() }
    }

    /// Whether a member cluster claims it, be it what an entry selects there: what an operator writes belongs to no
    /// cluster, and Consul is none.
    pub fn is_claimed(&self) -> bool {
        let of_cluster = self.provider == Provider::Kubernetes || self.is_joined();
        of_cluster && !self.cluster.is_empty()
    }

    /// Whether a proxy of `cluster` finds this at home, as it does what belongs to no cluster.
    pub fn is_visible_in(&self, cluster: &ClusterId) -> bool {
        self.cluster.is_empty() || self.cluster == *cluster
    }
}

impl ShardKey {
    /// Whether it holds what came of one source selecting of another, rather than a source's own update.
    pub fn is_joined(&self) -> bool {
        match self.provider {
            Provider::ServiceEntry => !self.cluster.is_empty(),
            Provider::WorkloadEntry => true,
            _ => false,
        }
    }
}

impl fmt::Display for ShardKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.provider.as_str(), self.cluster)
    }
}

/// Which run of a source an update is of. A later run of the same shard has a greater epoch; its
/// first update is a [`ShardChange::Reset`], and from then on the updates of earlier runs change
/// nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// One update of a source.
#[derive(Debug, Clone)]
pub struct RegistryUpdate {
    /// Whose update it is.
    pub shard: ShardKey,
    /// Which run of it.
    pub epoch: Epoch,
    /// What it says.
    pub change: ShardChange,
}

/// What a source says about its shard.
#[derive(Debug, Clone)]
pub enum ShardChange {
    /// This is all there is: what is not in it has gone.
    Reset(Contents),
    /// These parts have these values now.
    Update(Contents),
    /// The shard has ended: every trace of it goes, whatever the epoch that filled it.
    Removed,
}

/// Full values of the parts an update is about.
#[derive(Debug, Clone, Default)]
pub struct Contents {
    /// Services by hostname; `None` where the service has gone.
    pub services: BTreeMap<Hostname, Option<ServiceRecord>>,
    /// All pods of the shard, where the update is about them. What is not in it has gone; what differs from an earlier
    /// value is cheap to find ([`Workloads::differences`]).
    pub workloads: Option<Workloads>,
    /// The network named by the label of the cluster's system namespace, where the update is about
    /// it: `Some(None)` means there is no label.
    pub network_label: Option<Option<NetworkId>>,
    /// What else the cluster reports of itself, where the update is about it.
    pub facts: Option<ClusterFacts>,
    /// Which objects of the source made it so, as far as the source knows.
    pub causes: Causes,
}

/// A service with all the endpoints that its shard gives it, in a stable order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceRecord {
    /// The service.
    pub service: Arc<Service>,
    /// Its endpoints, those that may not be sent included: the view decides, and says why.
    pub endpoints: Endpoints,
}
