//! A pod as its registry describes it, for identity checks and inbound listeners.
//!
//! Pods are many and alike: what those of one template share is a [`Profile`], and a [`Workload`] is
//! only what is its own, 32 bytes of it. [`super::Workloads`] holds them with their names.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Deref;
use std::sync::Arc;

use super::{Labels, Locality, Namespace, NetworkId, SortedMap, TlsMode};

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

/// A pod, without its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    /// What it shares with others.
    pub profile: Arc<Profile>,
    /// Its addresses, primary first; empty until it has one.
    pub addresses: Addresses,
    /// The node it runs on; one value for all pods there.
    pub node: Option<Arc<Arc<str>>>,
}

/// What the pods of one template share.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Profile {
    /// Their labels.
    pub labels: Labels,
    /// Their service account's name.
    pub service_account: Arc<str>,
    /// Their SPIFFE ID.
    pub identity: Arc<str>,
    /// Whether they take mTLS.
    pub tls_mode: TlsMode,
    /// The network that their label names.
    pub network_label: Option<NetworkId>,
    /// The locality that their labels claim, which goes before their node's.
    pub locality: Option<Arc<Locality>>,
    /// What telemetry calls them: [`super::telemetry`]; `None` where that is told to nobody.
    pub telemetry: Option<Arc<str>>,
    /// The headless service below which each has a name of its own, the pod's (`subdomain`, where
    /// `hostname` is the pod's name: what a StatefulSet gives its pods).
    pub subdomain: Option<Arc<str>>,
    /// Named container ports, for services that target a name.
    pub named_ports: SortedMap<Arc<str>, u16>,
}

impl Deref for Workload {
    type Target = Profile;

    fn deref(&self) -> &Profile {
        &self.profile
    }
}

/// The addresses of a pod. Nearly all have one, of IPv4.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Addresses(Held);

#[derive(Debug, Clone, PartialEq, Eq, Default)]
enum Held {
    #[default]
    None,
    One(Ipv4Addr),
    // A thin pointer: what is rare should cost those that are many nothing.
    #[expect(clippy::box_collection, reason = "half the size of a boxed slice")]
    Others(Box<Vec<IpAddr>>),
}

impl Addresses {
    /// Whether there is none yet.
    pub fn is_empty(&self) -> bool {
        matches!(self.0, Held::None)
    }

    /// Whether `address` is one of them.
    pub fn contains(&self, address: &IpAddr) -> bool {
        self.iter().any(|own| own == *address)
    }

    /// All of them, primary first.
    pub fn iter(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let (one, others) = match &self.0 {
            Held::None => (None, &[][..]),
            Held::One(address) => (Some(IpAddr::V4(*address)), &[][..]),
            Held::Others(others) => (None, &others[..]),
        };
        one.into_iter().chain(others.iter().copied())
    }
}

impl FromIterator<IpAddr> for Addresses {
    fn from_iter<I: IntoIterator<Item = IpAddr>>(addresses: I) -> Self {
        let mut addresses = addresses.into_iter();
        Self(match (addresses.next(), addresses.next()) {
            (None, _) => Held::None,
            (Some(IpAddr::V4(only)), None) => Held::One(only),
            (Some(first), second) => {
                Held::Others(Box::new([first].into_iter().chain(second).chain(addresses).collect()))
            }
        })
    }
}
