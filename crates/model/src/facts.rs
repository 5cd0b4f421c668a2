//! Facts that a cluster reports in addition to its services and pods.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use imbl::OrdSet;
use serde_json::Value;

use super::{ClusterExports, Collection, DeclaredGateway, Locality, WorkloadKey};

/// Facts that a cluster reports in addition to its services and pods. Clones share all data.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClusterFacts {
    /// The localities of nodes by name, without nodes that have none.
    pub localities: Arc<BTreeMap<Arc<str>, Arc<Locality>>>,
    /// Pods with an address that receive no traffic, because they are not ready or terminating.
    pub unready: OrdSet<WorkloadKey>,
    /// The gateways of networks that it declares, by name of the object.
    pub gateways: Arc<BTreeMap<WorkloadKey, DeclaredGateway>>,
    /// Services with an external address whose EndpointSlices list no endpoint that serves. Services
    /// without a selector or without a slice are never included. Not stored: after a restart, their
    /// cluster is read first.
    pub unserved: Arc<BTreeSet<WorkloadKey>>,
    /// Its WorkloadEntries as they are stored, by name.
    pub entries: Arc<BTreeMap<WorkloadKey, Arc<Value>>>,
    /// Its own traffic objects as they are stored, if they apply to its proxies.
    pub traffic: Collection,
    /// The services that it exports (multi-cluster services). They affect no proxy.
    pub exports: ClusterExports,
}

/// The traffic objects of a cluster, as far as they have been read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OwnTraffic {
    /// Whether they apply to the cluster's proxies.
    pub is_wanted: bool,
    /// The objects; `None` until all have been read once.
    pub objects: Option<Collection>,
    /// The problems that prevent some of them from being read.
    pub problems: Vec<String>,
}

impl OwnTraffic {
    /// Returns whether no further object is awaited.
    pub fn is_read(&self) -> bool {
        !self.is_wanted || self.objects.is_some()
    }
}

impl ClusterFacts {
    /// Records whether a Service is unserved. Returns whether that is a change.
    pub fn note_unserved(&mut self, service: WorkloadKey, is_unserved: bool) -> bool {
        if self.unserved.contains(&service) == is_unserved {
            return false;
        }
        let unserved = Arc::make_mut(&mut self.unserved);
        if is_unserved { unserved.insert(service) } else { unserved.remove(&service) }
    }

    /// Returns whether the pod with this name receives traffic; true if it is unknown.
    pub fn is_ready(&self, pod: &WorkloadKey) -> bool {
        !self.unready.contains(pod)
    }
}
