//! A pod as its registry describes it, for identity checks and inbound listeners.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use super::{Labels, Locality, Namespace, NetworkId};

/// Namespace and name of a pod, unique in its cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkloadKey {
    /// The namespace.
    pub namespace: Namespace,
    /// The name.
    pub name: Arc<str>,
}

impl WorkloadKey {
    /// The key of `name` in `namespace`.
    pub fn new(namespace: impl Into<Namespace>, name: impl Into<Arc<str>>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for WorkloadKey {
    /// `name.namespace`, as in a node id.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.name, self.namespace)
    }
}

/// A pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    /// Which.
    pub key: WorkloadKey,
    /// Its addresses, primary first; empty until it has one.
    pub addresses: Vec<IpAddr>,
    /// Its labels.
    pub labels: Arc<Labels>,
    /// Its service account's name.
    pub service_account: Arc<str>,
    /// The network its label names.
    pub network_label: Option<NetworkId>,
    /// Where it runs.
    pub locality: Arc<Locality>,
    /// The node it runs on.
    pub node: Option<Arc<str>>,
    /// Named container ports, for services that target a name.
    pub named_ports: BTreeMap<Arc<str>, u16>,
}
