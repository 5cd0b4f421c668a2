//! Virtual addresses (VIPs) of the pods of headless services, by which proxies in other networks
//! select a single pod.
//!
//! A gateway has one address for all pods behind it. Therefore, each cluster's pods of a
//! headless service have a block of addresses in 242.0.0.0/8 and, if a gateway of their network has
//! an IPv6 address, in 2001:2:0:f2::/64. A pod of a StatefulSet has the address with its ordinal as
//! the offset. The address only exists in name tables, listeners
//! and server names (SNI): a client's Envoy writes it into the SNI, and the gateway selects the
//! pod by it.
//! (docs/contributing/decisions/0065-headless-services-across-networks.md)

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use imbl::OrdMap;

use strait_model::{ClusterId, Hostname, IpFamily, NetworkId};

/// The offset of the address that represents any pod of the cluster.
pub(super) const ANY_POD: u8 = 254;
/// The first octet of all IPv4 addresses.
const RANGE: u8 = 242;
/// The first segments of all IPv6 addresses. ServiceEntries use 2001:2::/64 of the same unused range
/// (2001:2::/48).
const RANGE_V6: [u16; 4] = [0x2001, 2, 0, 0xf2];

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
    /// The second and third octet of the IPv4 addresses, and the seventh segment of the IPv6
    /// addresses.
    pub(super) block: [u8; 2],
    /// Whether the pods have IPv6 addresses too: a gateway of their network has one. A client
    /// without IPv4 needs such a gateway, and the others need no second address.
    pub(super) has_ipv6: bool,
    /// Whether name tables contain the IPv6 addresses. The gateways receive the upstream clusters of
    /// the pods first.
    pub(super) names_ipv6: bool,
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
    /// Returns the address of a family with this offset.
    fn address(&self, family: IpFamily, offset: u8) -> IpAddr {
        let [second, third] = self.block;
        match family {
            IpFamily::V4 => Ipv4Addr::new(RANGE, second, third, offset).into(),
            IpFamily::V6 => {
                let [a, b, c, d] = RANGE_V6;
                let block = u16::from_be_bytes(self.block);
                Ipv6Addr::new(a, b, c, d, 0, 0, block, offset.into()).into()
            }
        }
    }

    /// Returns the families in which pods have addresses, among these families of a client or a
    /// gateway: whether IPv4, and whether IPv6.
    fn families(&self, (ipv4, ipv6): (bool, bool)) -> impl Iterator<Item = IpFamily> + use<> {
        let ipv4 = ipv4.then_some(IpFamily::V4);
        ipv4.into_iter().chain((ipv6 && self.has_ipv6).then_some(IpFamily::V6))
    }

    /// Returns the ranges of these families: for each, the first address with the length of the
    /// prefix, and the address that represents any pod of the cluster.
    pub fn ranges(&self, families: (bool, bool)) -> impl Iterator<Item = ((IpAddr, u8), IpAddr)> {
        self.families(families).map(|family| {
            let length = if family == IpFamily::V4 { 24 } else { 112 };
            ((self.address(family, 0), length), self.address(family, ANY_POD))
        })
    }

    /// Returns the pods that gateways forward to, each with its virtual addresses.
    pub fn served(&self) -> impl Iterator<Item = (Vec<IpAddr>, &RemotePod)> {
        self.served_at((true, true))
    }

    fn served_at(&self, families: (bool, bool)) -> impl Iterator<Item = (Vec<IpAddr>, &RemotePod)> {
        let served = self.pods.iter().filter(|(_, pod)| pod.naming != PodNaming::BeyondLimit);
        served.map(move |(ordinal, pod)| {
            let families = self.families(families);
            (families.map(|family| self.address(family, *ordinal)).collect(), pod)
        })
    }

    /// Returns the pods that name tables of proxies with these families contain, each with its
    /// virtual addresses.
    pub fn named(
        &self,
        (ipv4, ipv6): (bool, bool),
    ) -> impl Iterator<Item = (&Arc<str>, Vec<IpAddr>)> {
        let served = self.served_at((ipv4, ipv6 && self.names_ipv6));
        let named = served.filter(|(_, pod)| pod.naming == PodNaming::Named);
        named.map(|(addresses, pod)| (&pod.name, addresses))
    }

    /// Returns the addresses behind the name of the whole service: those of single pods, or the
    /// addresses of any pod if the cluster has no pods of a StatefulSet.
    pub fn addresses(&self, families: (bool, bool)) -> Vec<IpAddr> {
        if self.pods.is_empty() && self.has_others {
            return self.ranges(families).map(|(_, any_pod)| any_pod).collect();
        }
        self.named(families).flat_map(|(_, addresses)| addresses).collect()
    }

    /// Returns whether the pods have IPv6 addresses, in addition to IPv4 addresses.
    pub fn has_ipv6(&self) -> bool {
        self.has_ipv6
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
