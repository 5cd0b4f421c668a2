//! The contract between the sources of services and the aggregate.
//!
//! A source (a Kubernetes cluster, Consul, static files) owns one shard, identified by provider and
//! cluster. It sends complete values of the parts that changed, never a difference like "the
//! third one changed". So applying an update twice changes nothing, and the receiver computes the
//! differences. Sources know neither each other nor the receiver.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::{Causes, ClusterFacts, ClusterId, Endpoints, Hostname, NetworkId, Service, Workloads};

/// The kind of source of a shard. The order is the order in which sources are merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Provider {
    /// A Kubernetes cluster.
    Kubernetes,
    /// A datacentre of Consul.
    Consul,
    /// ServiceEntries and WorkloadEntries, and the pods that ServiceEntries select. Only few users
    /// may register services in the sources above, so an entry does not replace these services.
    ServiceEntry,
    /// WorkloadEntries that Kubernetes Services select.
    WorkloadEntry,
}

impl Provider {
    /// All providers, in order.
    pub const ALL: [Self; 4] =
        [Self::Kubernetes, Self::Consul, Self::ServiceEntry, Self::WorkloadEntry];

    /// Returns the name as users see it in `/debug/endpoints`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Kubernetes => "Kubernetes",
            Self::ServiceEntry => "ServiceEntry",
            Self::WorkloadEntry => "WorkloadEntry",
            Self::Consul => "Consul",
        }
    }

    /// Returns whether it is a Kubernetes cluster, with pods and nodes.
    pub fn is_cluster(self) -> bool {
        match self {
            Self::Kubernetes => true,
            Self::ServiceEntry | Self::WorkloadEntry | Self::Consul => false,
        }
    }

    /// Returns whether ServiceEntry objects define its services.
    pub fn is_of_service_entries(self) -> bool {
        match self {
            Self::ServiceEntry => true,
            Self::Kubernetes | Self::WorkloadEntry | Self::Consul => false,
        }
    }
}

/// Identifies a shard: the part of the mesh that one source describes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardKey {
    /// The kind of source.
    pub provider: Provider,
    /// The cluster; empty for shards that belong to no cluster.
    pub cluster: ClusterId,
}

impl ShardKey {
    /// Returns the key of a member Kubernetes cluster's shard.
    pub fn kubernetes(cluster: ClusterId) -> Self {
        Self { provider: Provider::Kubernetes, cluster }
    }

    /// Returns the key for a datacentre of Consul. `name` cannot be the ID of a Kubernetes cluster.
    pub fn consul(name: ClusterId) -> Self {
        Self { provider: Provider::Consul, cluster: name }
    }

    /// Returns the key of the shard for all ServiceEntries. They apply to the whole mesh, so the
    /// shard belongs to no cluster and cannot be confused with the services of the config cluster.
    pub fn service_entries() -> Self {
        Self { provider: Provider::ServiceEntry, cluster: ClusterId::default() }
    }

    /// Returns whether the content is a claim of a member cluster, including pods that entries
    /// select there. Content written by an operator belongs to no cluster, and neither does Consul.
    pub fn is_claimed(&self) -> bool {
        let of_cluster = self.provider.is_cluster() || self.is_joined();
        of_cluster && !self.cluster.is_empty()
    }

    /// Returns whether the shard is local for proxies of `cluster`; a shard without a cluster is
    /// local for all.
    pub fn is_visible_in(&self, cluster: &ClusterId) -> bool {
        self.cluster.is_empty() || self.cluster == *cluster
    }
}

impl ShardKey {
    /// Returns whether the shard results from joining objects of one source with pods or Services
    /// of another, instead of updates of a source.
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

/// The run of a source to which an update belongs. A later run of the same shard has a greater
/// epoch. Its first update is a [`ShardChange::Reset`], after which updates of earlier runs have no
/// effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// An update of a source.
#[derive(Debug, Clone)]
pub struct RegistryUpdate {
    /// The shard.
    pub shard: ShardKey,
    /// The run of the source.
    pub epoch: Epoch,
    /// The change.
    pub change: ShardChange,
}

/// The change of a shard.
#[derive(Debug, Clone)]
pub enum ShardChange {
    /// The complete content: everything that it does not contain is removed.
    Reset(Contents),
    /// New values for the contained parts.
    Update(Contents),
    /// The shard ended: its content is removed, regardless of the epoch.
    Removed,
}

/// Complete values of the parts that an update changes.
#[derive(Debug, Clone, Default)]
pub struct Contents {
    /// Services by hostname; `None` if the service was removed.
    pub services: BTreeMap<Hostname, Option<ServiceRecord>>,
    /// All pods of the shard, if the update changes pods. Pods that it does not contain are
    /// removed. Comparing with an earlier value is cheap ([`Workloads::differences`]).
    pub workloads: Option<Workloads>,
    /// The network label of the cluster's system namespace, if the update changes it; `Some(None)`
    /// means there is no label.
    pub network_label: Option<Option<NetworkId>>,
    /// Other facts that the cluster reports, if the update changes them.
    pub facts: Option<ClusterFacts>,
    /// The objects of the source that caused the update, as far as they are known.
    pub causes: Causes,
}

/// A service with all its endpoints in the shard, in a stable order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceRecord {
    /// The service.
    pub service: Arc<Service>,
    /// Its endpoints, including endpoints that may not be sent: the view decides, with a reason.
    pub endpoints: Endpoints,
}
