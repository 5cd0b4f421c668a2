//! Virtual addresses (VIPs) of the pods of headless services, by which proxies in other networks
//! select a single pod.
//!
//! A gateway has one address for all pods behind it. Therefore, each cluster's pods of a
//! headless service have a block of 256 addresses in 242.0.0.0/8, and a pod of a StatefulSet has
//! the address with its ordinal as the offset. The address only exists in name tables, listeners
//! and server names (SNI): a client's Envoy writes it into the SNI, and the gateway selects the
//! pod by it.
//! (docs/contributing/decisions/0065-headless-services-across-networks.md)

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use imbl::OrdMap;

use strait_model::{ClusterId, Hostname, NetworkId};

/// The offset of the address that represents any pod of the cluster.
pub(super) const ANY_POD: u8 = 254;
/// The first octet of all addresses.
const RANGE: u8 = 242;

/// The pods of headless services that are reached by name from other networks.
#[derive(Debug, Clone, Default)]
pub struct RemotePods {
    pub(super) by_host: OrdMap<Hostname, Arc<ServicePods>>,
    /// Whether the names of any pods await gateways, so that another version has to follow.
    pub(super) is_awaiting: bool,
}

/// The pods of one service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServicePods {
    /// The clusters whose network has a gateway and whose pods are reached by name.
    pub clusters: BTreeMap<ClusterId, RemoteClusterPods>,
}

/// The pods of a service in one cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteClusterPods {
    /// The network of the cluster.
    pub network: NetworkId,
    /// The second and third octet of the addresses.
    pub(super) block: [u8; 2],
    /// The pods with an address, by ordinal.
    pub(super) pods: BTreeMap<u8, RemotePod>,
    /// Whether the cluster has other pods, which are only reached as any pod.
    pub(super) has_others: bool,
}

/// A pod that is reached by name from other networks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemotePod {
    /// The name of the pod, which is its host name.
    pub name: Arc<str>,
    /// Its address in its own network.
    pub address: IpAddr,
    /// Its port for each port of the service.
    pub ports: BTreeMap<u16, u16>,
    /// Whether proxies know its name.
    pub naming: PodNaming,
}

/// Whether name tables contain a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodNaming {
    /// Not yet: the gateways receive its upstream cluster first.
    AwaitsGateways,
    /// They contain it.
    Named,
    /// They do not, and neither do gateways: its cluster has too many such pods
    /// (`--headless-pods-max`).
    BeyondLimit,
}

impl ServicePods {
    /// Returns the clusters in networks other than `network`.
    pub fn outside<'a>(
        &'a self,
        network: &'a NetworkId,
    ) -> impl Iterator<Item = (&'a ClusterId, &'a RemoteClusterPods)> {
        self.clusters.iter().filter(move |(_, pods)| pods.network != *network)
    }

    /// Returns the clusters in `network`.
    pub fn inside<'a>(
        &'a self,
        network: &'a NetworkId,
    ) -> impl Iterator<Item = (&'a ClusterId, &'a RemoteClusterPods)> {
        self.clusters.iter().filter(move |(_, pods)| pods.network == *network)
    }
}

impl RemoteClusterPods {
    /// Returns the address with this offset.
    fn address(&self, offset: u8) -> Ipv4Addr {
        let [second, third] = self.block;
        Ipv4Addr::new(RANGE, second, third, offset)
    }

    /// Returns the range of all addresses: the first address and the length of the prefix.
    pub fn range(&self) -> (IpAddr, u8) {
        (self.address(0).into(), 24)
    }

    /// Returns the address that represents any pod of the cluster.
    pub fn any_pod(&self) -> IpAddr {
        self.address(ANY_POD).into()
    }

    /// Returns the pods that gateways forward to, each with its virtual address.
    pub fn served(&self) -> impl Iterator<Item = (Ipv4Addr, &RemotePod)> {
        let served = self.pods.iter().filter(|(_, pod)| pod.naming != PodNaming::BeyondLimit);
        served.map(|(ordinal, pod)| (self.address(*ordinal), pod))
    }

    /// Returns the pods that name tables contain, each with its virtual address.
    pub fn named(&self) -> impl Iterator<Item = (&Arc<str>, IpAddr)> {
        let named = self.served().filter(|(_, pod)| pod.naming == PodNaming::Named);
        named.map(|(address, pod)| (&pod.name, address.into()))
    }

    /// Returns the addresses behind the name of the whole service: those of single pods, or the
    /// address of any pod if the cluster has no pods of a StatefulSet.
    pub fn addresses(&self) -> Vec<IpAddr> {
        let any_pod = (self.pods.is_empty() && self.has_others).then(|| self.any_pod());
        self.named().map(|(_, address)| address).chain(any_pod).collect()
    }

    /// Returns how a pod is named, if it has an address.
    pub fn naming(&self, pod: &str) -> Option<PodNaming> {
        self.pods.values().find(|one| *one.name == *pod).map(|pod| pod.naming)
    }
}

impl RemotePods {
    /// Returns the pods of a service; `None` if none of its clusters is reached by name from
    /// another network.
    pub fn of(&self, host: &Hostname) -> Option<&Arc<ServicePods>> {
        self.by_host.get(host)
    }

    /// Returns the services with pods that are reached by name from another network.
    pub fn hosts(&self) -> impl Iterator<Item = &Hostname> {
        self.by_host.keys()
    }

    /// Returns whether the pods of a service are the same in both versions. False negatives are
    /// possible.
    pub(super) fn is_same(&self, other: &Self, host: &Hostname) -> bool {
        self.of(host).map(Arc::as_ptr) == other.of(host).map(Arc::as_ptr)
    }

    /// Returns the services whose pods have changed since an earlier version.
    pub(super) fn differing<'a>(&'a self, before: &'a Self) -> impl Iterator<Item = &'a Hostname> {
        let hosts: BTreeSet<_> = self.by_host.keys().chain(before.by_host.keys()).collect();
        hosts.into_iter().filter(|host| !self.is_same(before, host))
    }
}
