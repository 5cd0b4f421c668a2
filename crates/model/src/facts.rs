//! What a cluster says of itself besides its services and pods.

use std::collections::BTreeMap;
use std::sync::Arc;

use imbl::OrdSet;
use serde_json::Value;

use super::{Collection, DeclaredGateway, Locality, WorkloadKey};

/// What a cluster says of itself besides its services and pods. A clone shares everything.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClusterFacts {
    /// Where its nodes are, by name; nodes that don't say are left out.
    pub localities: Arc<BTreeMap<Arc<str>, Arc<Locality>>>,
    /// Pods with an address that take no traffic: not ready, or going away.
    pub unready: OrdSet<WorkloadKey>,
    /// Entrances of networks that it declares, by the name of the object.
    pub gateways: Arc<BTreeMap<WorkloadKey, DeclaredGateway>>,
    /// Its WorkloadEntries as they are stored, by name.
    pub entries: Arc<BTreeMap<WorkloadKey, Arc<Value>>>,
    /// Its traffic objects as they are stored, where they count for its proxies.
    pub traffic: Collection,
}

/// What is read of the traffic objects of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OwnTraffic {
    /// Whether they count.
    pub is_wanted: bool,
    /// They; `None` until all have been read once.
    pub objects: Option<Collection>,
    /// What keeps some of them from being read.
    pub problems: Vec<String>,
}

impl OwnTraffic {
    /// Whether nothing more of it is waited for.
    pub fn is_read(&self) -> bool {
        !self.is_wanted || self.objects.is_some()
    }
}

impl ClusterFacts {
    /// Whether the pod of this name takes traffic, as far as is known.
    pub fn is_ready(&self, pod: &WorkloadKey) -> bool {
        !self.unready.contains(pod)
    }
}
