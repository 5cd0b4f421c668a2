//! Virtual addresses (VIPs) of the pods of headless services, by which proxies in other networks
//! select a single pod.
//!
//! A gateway has one address for all pods of its network. Therefore, each cluster's pods of a
//! headless service have a block of 256 addresses in 242.0.0.0/8, and a pod of a StatefulSet has
//! the address with its ordinal as the offset. The address only exists in name tables, listeners
//! and server names (SNI): a client's Envoy writes it into the SNI, and the gateway selects the
//! pod by it. All results depend on the current mesh only, so that replicas agree, except for
//! [`PodNaming::AwaitsGateways`].
//! (docs/contributing/decisions/0065-headless-services-across-networks.md)

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use imbl::OrdMap;

use super::assignment::{Assignment, AssignmentGroup, AssignmentMember};
use super::context::PushContext;
use super::subscription_index::{ChangedItem, Changes};
use super::view::{Path, Role, ViewKey, decide, is_exported, reachable_gateways};
use crate::aggregate::{MergedService, ShardEndpoints};
use strait_model::registry::Provider;
use strait_model::{
    ClusterId, EndpointRef, Health, Hostname, Namespace, NetworkId, Protocol, Resolution, TlsMode,
};

/// The offset of the address that represents any pod of the cluster.
const ANY_POD: u8 = 254;
/// The first octet of all addresses.
const RANGE: u8 = 242;
/// The maximum length of a server name in TLS (BoringSSL's limit).
const SERVER_NAME_MAX: usize = 255;
/// The length of the longest `VIP.CLUSTER.outbound_.PORT_._.HOST` without its cluster and host.
const SERVER_NAME_REST: usize = "255.255.255.255..outbound_.65535_._.".len();

/// The pods of headless services that are reached by name from other networks.
#[derive(Debug, Clone, Default)]
pub struct RemotePods {
    by_host: OrdMap<Hostname, Arc<ServicePods>>,
    /// Whether the names of any pods await gateways.
    is_awaiting: bool,
}

/// The pods of one service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServicePods {
    /// The clusters whose network has a gateway and whose pods are reached by name.
    pub clusters: BTreeMap<ClusterId, ClusterPods>,
}

/// The pods of a service in one cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterPods {
    /// The network of the cluster.
    pub network: NetworkId,
    /// The second and third octet of the addresses.
    block: [u8; 2],
    /// The pods with an address, by ordinal.
    pods: BTreeMap<u8, RemotePod>,
    /// Whether the cluster has other pods, which are only reached as any pod.
    has_others: bool,
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
    ) -> impl Iterator<Item = (&'a ClusterId, &'a ClusterPods)> {
        self.clusters.iter().filter(move |(_, pods)| pods.network != *network)
    }

    /// Returns the clusters in `network`.
    pub fn inside<'a>(
        &'a self,
        network: &'a NetworkId,
    ) -> impl Iterator<Item = (&'a ClusterId, &'a ClusterPods)> {
        self.clusters.iter().filter(move |(_, pods)| pods.network == *network)
    }
}

impl ClusterPods {
    /// Returns the address with this offset.
    fn address(&self, offset: u8) -> Ipv4Addr {
        let [second, third] = self.block;
        Ipv4Addr::new(RANGE, second, third, offset)
    }

    /// Returns the range of all addresses: its first address and the length of its prefix.
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

/// Returns the gateways through which a proxy reaches the pods of a cluster.
pub fn gateways_to(
    context: &PushContext,
    view: &ViewKey,
    cluster: &ClusterId,
    pods: &ClusterPods,
) -> Assignment {
    let gateways = match view.is_visible(&pods.network) {
        true => reachable_gateways(context, view, &pods.network, cluster),
        false => Vec::new(),
    };
    let sockets: BTreeSet<_> =
        gateways.iter().map(|gateway| (gateway.address, gateway.port)).collect();
    let members = sockets.into_iter().map(|(address, port)| AssignmentMember {
        address,
        additional: None,
        port,
        weight: 1,
        tls_mode: TlsMode::Istio,
        is_gateway: true,
        origin: 0,
    });
    let group = AssignmentGroup { members: members.collect(), ..AssignmentGroup::default() };
    let localities = if group.members.is_empty() { Vec::new() } else { vec![group] };
    Assignment { localities, origins: Vec::new() }
}

impl RemotePods {
    /// Returns the pods of a service; `None` if none of its clusters is reached by name from
    /// another network.
    pub fn of(&self, host: &Hostname) -> Option<&Arc<ServicePods>> {
        self.by_host.get(host)
    }

    /// Returns whether the pods of a service are the same in both versions. False negatives are
    /// possible.
    pub(super) fn is_same(&self, other: &Self, host: &Hostname) -> bool {
        self.of(host).map(Arc::as_ptr) == other.of(host).map(Arc::as_ptr)
    }

    /// Returns whether another version has to follow, in which more pods are named.
    pub(super) fn is_awaiting(&self) -> bool {
        self.is_awaiting
    }

    /// Returns whether `changes` may affect the pods.
    pub(super) fn may_differ(&self, context: &PushContext, changes: &Changes) -> bool {
        let is_headless = |host: &Hostname| {
            self.by_host.contains_key(host) || context.services.get(host).is_some_and(is_headless)
        };
        changes.is_everything()
            || self.is_awaiting
            || changes.deps.iter().any(|change| match change {
                ChangedItem::Definition(host)
                | ChangedItem::Members(host)
                | ChangedItem::Accounts(host) => is_headless(host),
                ChangedItem::NetworkGateways(_) | ChangedItem::ClusterMode(_) => true,
                _ => false,
            })
    }

    /// Returns the pods of `context`, the version after this one, which differs by `changes`.
    /// Without a previous version (`is_first`), all pods are named immediately, because gateways
    /// and clients know them from before a restart.
    pub(super) fn next(&self, context: &PushContext, changes: &Changes, is_first: bool) -> Self {
        let changed = changes.services();
        let reuses = !changes.is_everything()
            && !changes.deps.iter().any(|one| matches!(one, ChangedItem::ClusterMode(_)));
        let mut by_host = BTreeMap::<Hostname, ServicePods>::new();
        let mut taken = BTreeSet::new();
        // A service has two hostnames if it also has a name in the set, but its pods count once.
        let mut counted = BTreeMap::<&ClusterId, BTreeSet<(&Namespace, Arc<str>)>>::new();
        for Claim { service, shard, network } in claims(context) {
            let (host, cluster) = (service.hostname(), &shard.key.cluster);
            let Some(block) = free_block(&mut taken, cluster, host) else { continue };
            let before = self.of(host).and_then(|one| one.clusters.get(cluster));
            let before = before.filter(|one| one.block == block && one.network == network);
            let (mut pods, has_others) = match before {
                Some(before) if reuses && !changed.contains(host) => {
                    (before.pods.clone(), before.has_others)
                }
                _ => pods_of(context, service, shard, &network),
            };
            let counted = counted.entry(cluster).or_default();
            for (ordinal, pod) in &mut pods {
                let is_known = before.and_then(|before| before.pods.get(ordinal));
                let is_known = is_known.is_some_and(|pod| pod.naming != PodNaming::BeyondLimit);
                let name = (&service.primary.namespace, Arc::clone(&pod.name));
                let is_full = counted.len() >= context.settings.headless_pods_max;
                pod.naming = if is_full && !counted.contains(&name) {
                    PodNaming::BeyondLimit
                } else if is_first || is_known {
                    PodNaming::Named
                } else {
                    PodNaming::AwaitsGateways
                };
                if pod.naming != PodNaming::BeyondLimit {
                    counted.insert(name);
                }
            }
            let service = by_host.entry(host.clone()).or_default();
            service
                .clusters
                .insert(cluster.clone(), ClusterPods { network, block, pods, has_others });
        }
        let mut pods = by_host.values().flat_map(|service| service.clusters.values());
        let is_awaiting = pods.any(|cluster| {
            cluster.pods.values().any(|pod| pod.naming == PodNaming::AwaitsGateways)
        });
        let shared = by_host.into_iter().map(|(host, pods)| {
            let before = self.of(&host).filter(|before| ***before == pods);
            let pods = before.map_or_else(|| Arc::new(pods), Arc::clone);
            (host, pods)
        });
        Self { by_host: shared.collect(), is_awaiting }
    }

    /// Returns the services whose pods differ from those of an earlier version.
    pub(super) fn differing<'a>(&'a self, before: &'a Self) -> impl Iterator<Item = &'a Hostname> {
        let hosts: BTreeSet<_> = self.by_host.keys().chain(before.by_host.keys()).collect();
        hosts.into_iter().filter(|host| !self.is_same(before, host))
    }
}

fn is_headless(service: &Arc<MergedService>) -> bool {
    service.primary.resolution == Resolution::Headless
}

/// A service of a cluster whose pods need addresses.
struct Claim<'a> {
    service: &'a MergedService,
    shard: &'a ShardEndpoints,
    network: NetworkId,
}

/// Returns the services of clusters whose pods need addresses, in the order of their precedence. It
/// depends on definitions and gateways only, not on pods, because upstream clusters and listeners
/// of clients follow from it.
fn claims(context: &PushContext) -> Vec<Claim<'_>> {
    if !context.mesh.enable_auto_mtls {
        return Vec::new();
    }
    let clusters = context.clusters.clusters.keys().chain(context.facts.keys());
    let clusters: BTreeSet<_> = clusters.collect();
    let network_of = |cluster: &&ClusterId| context.network_of_cluster(cluster);
    let networks: BTreeSet<NetworkId> = clusters.iter().map(network_of).collect();
    if networks.len() < 2 {
        return Vec::new();
    }
    let with_gateway: BTreeSet<_> =
        networks.iter().filter(|one| context.networks.has_any_configured(one)).collect();
    let services = context.services.values().filter(|service| is_headless(service));
    let services = services.filter(|service| is_exported(context, service));
    let mut claims: Vec<_> = services
        .flat_map(|service| service.shards.iter().map(move |shard| (service, shard)))
        .filter(|(service, shard)| {
            let (host, cluster) = (service.hostname().as_str(), &shard.key.cluster);
            shard.key.provider == Provider::Kubernetes
                && !shard.service.is_cluster_local
                && !service.refused.contains(cluster)
                && SERVER_NAME_REST + cluster.as_str().len() + host.len() <= SERVER_NAME_MAX
        })
        .map(|(service, shard)| {
            let network = context.network_of_cluster(&shard.key.cluster);
            Claim { service, shard, network }
        })
        .filter(|claim| with_gateway.contains(&claim.network))
        .collect();
    claims.sort_by_cached_key(|Claim { service, shard, .. }| {
        let cluster = &shard.key.cluster;
        let (primary, host) = (&service.primary, service.hostname().clone());
        let name: (Namespace, _) = (primary.namespace.clone(), Arc::clone(&primary.name));
        (context.clusters.seniority(cluster), cluster.clone(), name, host)
    });
    claims
}

/// Allocates the block that a hash selects, or the next free one. Returns `None` if none is free.
fn free_block(taken: &mut BTreeSet<u16>, cluster: &ClusterId, host: &Hostname) -> Option<[u8; 2]> {
    // FNV-1a, which is equal in all builds.
    let text = format!("{cluster}/{host}");
    let hash = text
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let [a, b, c, d] = hash.to_be_bytes();
    let first = u16::from_be_bytes([a ^ c, b ^ d]);
    let mut blocks = (0..=u16::MAX).map(|step| first.wrapping_add(step));
    blocks.find(|block| taken.insert(*block)).map(u16::to_be_bytes)
}

/// Returns the pods of a cluster that its gateways reach, by ordinal, and whether there are others.
///
/// If pods of several StatefulSets are behind the service, the set whose name is the first one has
/// the ordinals.
fn pods_of(
    context: &PushContext,
    service: &MergedService,
    shard: &ShardEndpoints,
    network: &NetworkId,
) -> (BTreeMap<u8, RemotePod>, bool) {
    let cluster = &shard.key.cluster;
    let view = ViewKey {
        cluster: cluster.clone(),
        network: network.clone(),
        visible_networks: None,
        namespace: Namespace::default(),
        ipv4: true,
        ipv6: true,
        node: None,
        locality: None,
        selection: Default::default(),
        role: Role::Gateway,
        grpc: None,
    };
    let publishes_unready = shard.service.publish_not_ready;
    let is_reachable = |pod: EndpointRef<'_>| {
        let health = if publishes_unready { Health::Healthy } else { pod.health };
        let pod = EndpointRef { health, ..pod };
        decide(context, &view, service, &shard.key, pod, network) == Ok(Path::Direct)
    };
    let mut by_set = BTreeMap::<String, BTreeMap<u8, RemotePod>>::new();
    let mut has_others = false;
    for port in service.ports().filter(|port| port.protocol != Protocol::Udp) {
        let endpoints = service.endpoints_of_port(port.number);
        let own = endpoints.filter(|(key, _, place)| **key == shard.key && *place == network);
        for (_, pod, _) in own.filter(|(_, pod, _)| is_reachable(*pod)) {
            let Some((name, set, ordinal)) = ordinal_of(context, service, cluster, pod) else {
                has_others = true;
                continue;
            };
            let pods = by_set.entry(set).or_default();
            let known = pods.entry(ordinal).or_insert_with(|| RemotePod {
                name,
                address: pod.address,
                ports: BTreeMap::new(),
                naming: PodNaming::AwaitsGateways,
            });
            // A dual-stack pod is reached at its IPv4 address.
            if pod.address.is_ipv4() && !known.address.is_ipv4() {
                known.address = pod.address;
            }
            known.ports.insert(port.number, pod.port);
        }
    }
    let mut sets = by_set.into_values();
    let first = sets.next().unwrap_or_default();
    (first, has_others || sets.next().is_some())
}

/// Returns the name of a pod, the name of its StatefulSet, and its ordinal, if it has a DNS name
/// below the service's.
fn ordinal_of(
    context: &PushContext,
    service: &MergedService,
    cluster: &ClusterId,
    pod: EndpointRef<'_>,
) -> Option<(Arc<str>, String, u8)> {
    let key = pod.workload?.to_key();
    if key.namespace != service.primary.namespace {
        return None;
    }
    let known = context.workloads.get(cluster)?.get(key.namespace.as_str(), &key.name)?;
    if known.subdomain.as_ref() != Some(&service.primary.name) {
        return None;
    }
    let (set, ordinal) = key.name.rsplit_once('-')?;
    let number: u8 = ordinal.parse().ok().filter(|number| *number < ANY_POD)?;
    let (set, is_canonical) = (set.to_owned(), number.to_string() == ordinal);
    is_canonical.then_some((key.name, set, number))
}

#[cfg(test)]
mod tests;
