//! The state of an index, and the effects of a change.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::shared::SharedWithMesh;
use crate::registry::kube::chosen::ChosenNamespaces;
use crate::registry::kube::kind::{IndexedKind, ReadKind};
use crate::registry::kube::namespace::NamespaceFacts;
use crate::registry::kube::node::NodeRecord;
use crate::registry::kube::scope::Scope;
use crate::registry::kube::service::KubeService;
use crate::registry::kube::slices::Slices;
use crate::registry::kube::zones::ZoneRegions;
use strait_kube_client::NamespacedName;
use strait_model::registry::ServiceRecord;
use strait_model::{ClusterFacts, Hostname, Namespace, NetworkId, Workloads};

/// The objects of one cluster.
#[derive(Debug)]
pub(in crate::registry::kube) struct KubeIndex {
    pub(super) scope: Arc<Scope>,
    pub(super) services: BTreeMap<NamespacedName, KubeService>,
    pub(super) slices: Slices,
    pub(super) pods: Workloads,
    /// Whether pods have been listed. Before that, a pod that is not in the index is unknown, not
    /// missing.
    pub(super) pods_listed: bool,
    /// The namespaces whose pods have been listed, of a reader that is limited to namespaces.
    pub(super) pods_listed_in: BTreeSet<Arc<str>>,
    /// The names of the pods at addresses for which slices name no pod, by namespace and address.
    pub(super) unnamed: Unnamed,
    pub(super) nodes: BTreeMap<Arc<str>, NodeRecord>,
    /// The regions of the cluster's zones.
    pub(super) zones: ZoneRegions,
    /// The ranges of pod addresses; `None` if nodes have changed since they were computed.
    pub(super) pod_ranges: Option<Arc<[IpNet]>>,
    pub(super) facts: ClusterFacts,
    pub(super) namespaces: BTreeMap<Arc<str>, NamespaceFacts>,
    pub(super) chosen: ChosenNamespaces,
    pub(super) shared: SharedWithMesh,
    /// Namespaces that have not been read, with their last known services.
    pub(super) unread: UnreadNamespaces,
    /// The UID of the cluster, if namespaces may not be read.
    pub(super) uid: Option<Box<str>>,
    /// The reasons of objects that are invalid as a whole or in part.
    pub(super) invalid: BTreeMap<(IndexedKind, Option<NamespacedName>), Box<str>>,
    pub(super) last_invalid: Option<String>,
    /// The last sent state: equal content is not sent again.
    pub(super) last_sent: LastSent,
}

#[derive(Debug, Default)]
pub(super) struct LastSent {
    pub(super) services: BTreeMap<NamespacedName, ServiceRecord>,
    pub(super) workloads: Option<Workloads>,
    pub(super) network: Option<Option<NetworkId>>,
    pub(super) facts: Option<ClusterFacts>,
    pub(super) endpoints: usize,
}

/// The last known services of namespaces that have not been read, by namespace and hostname.
pub(super) type UnreadNamespaces = BTreeMap<Arc<str>, BTreeMap<Hostname, ServiceRecord>>;

/// Names of pods by namespace and address.
pub(super) type Unnamed = BTreeMap<(Namespace, IpAddr), BTreeSet<Arc<str>>>;

/// The parts that a change affects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::registry::kube) struct IndexChanges {
    pub(super) services: BTreeSet<NamespacedName>,
    pub(super) workloads: bool,
    pub(super) system_namespace: bool,
    pub(super) facts: bool,
}

impl IndexChanges {
    /// Adds services.
    pub(in crate::registry::kube) fn services(&mut self, keys: Vec<NamespacedName>) {
        self.services.extend(keys);
    }

    /// Adds the parts that another change affects.
    pub(in crate::registry::kube) fn merge(&mut self, other: Self) {
        self.services.extend(other.services);
        self.workloads |= other.workloads;
        self.system_namespace |= other.system_namespace;
        self.facts |= other.facts;
    }

    pub(super) fn service(&mut self, key: &NamespacedName) {
        if !self.services.contains(key) {
            self.services.insert(key.clone());
        }
    }

    /// Whether no part is affected.
    pub(in crate::registry::kube) fn is_empty(&self) -> bool {
        self.services.is_empty() && !self.workloads && !self.system_namespace && !self.facts
    }
}

/// A kind of object in the index.
pub(in crate::registry::kube) trait Indexed: ReadKind {
    /// The kind.
    const KIND: IndexedKind;

    /// Stores the object. Replaces an object with the same key.
    fn put(self, key: NamespacedName, index: &mut KubeIndex, touched: &mut IndexChanges);

    /// Removes the object with this key.
    fn remove(key: &NamespacedName, index: &mut KubeIndex, touched: &mut IndexChanges);

    /// Replaces all objects with those on the list; with `namespace`, the objects of that namespace.
    fn replace(
        list: Self::List,
        namespace: Option<&Arc<str>>,
        index: &mut KubeIndex,
        touched: &mut IndexChanges,
    );
}
