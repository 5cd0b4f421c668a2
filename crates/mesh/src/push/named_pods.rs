//! Selects the pods of headless services that are reached by name from other networks, and assigns
//! their virtual addresses.
//!
//! All results depend on the current mesh only, so that replicas agree, except for
//! [`PodNaming::AwaitsGateways`].
//! (docs/contributing/decisions/0065-headless-services-across-networks.md)

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::assignment::{Assignment, AssignmentGroup, AssignmentMember};
use super::context::PushContext;
use super::remote_pods::{
    ANY_POD, PodNaming, RemoteClusterPods, RemotePod, RemotePods, ServicePods,
};
use super::subscription_index::{ChangedItem, Changes};
use super::view::{Path, Role, ViewKey, decide, is_exported, reachable_gateways};
use crate::aggregate::{MergedService, ShardEndpoints};
use strait_model::{
    ClusterId, EndpointRef, Health, Hostname, Namespace, NetworkId, Protocol, Resolution, TlsMode,
};

/// The maximum length of a server name in TLS (BoringSSL's limit).
const SERVER_NAME_MAX: usize = 255;
/// The length of the longest `VIP.CLUSTER.outbound_.PORT_._.HOST` without its cluster and host.
const SERVER_NAME_REST: usize = "2001:2:0:f2::ffff:fe..outbound_.65535_._.".len();

/// Returns the gateways through which a proxy reaches the pods of a cluster.
pub fn gateways_to(
    context: &PushContext,
    view: &ViewKey,
    cluster: &ClusterId,
    pods: &RemoteClusterPods,
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

/// Returns whether `changes` may affect the pods.
pub(super) fn may_differ(pods: &RemotePods, context: &PushContext, changes: &Changes) -> bool {
    let is_headless = |host: &Hostname| {
        pods.by_host.contains_key(host) || context.services.get(host).is_some_and(is_headless)
    };
    changes.is_everything()
        || pods.is_awaiting
        || changes.deps.iter().any(|change| match change {
            ChangedItem::Definition(host)
            | ChangedItem::Members(host)
            | ChangedItem::Accounts(host) => is_headless(host),
            ChangedItem::NetworkGateways(_) | ChangedItem::ClusterMode(_) => true,
            _ => false,
        })
}

/// Returns the pods of `context`. `last` are the pods of the previous version, from which it differs
/// by `changes`.
///
/// Without a previous version (`is_first`), all pods are named immediately, because gateways and
/// clients know them from before a restart.
pub(super) fn next_pods(
    last: &RemotePods,
    context: &PushContext,
    changes: &Changes,
    is_first: bool,
) -> RemotePods {
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
        let has_ipv6 =
            context.networks.of_network(&network).iter().any(|one| one.address.is_ipv6());
        let before = last.of(host).and_then(|one| one.clusters.get(cluster));
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
        let names_ipv6 = has_ipv6 && (is_first || before.is_none_or(|before| before.has_ipv6));
        let of_cluster =
            RemoteClusterPods { network, block, has_ipv6, names_ipv6, pods, has_others };
        let service = by_host.entry(host.clone()).or_default();
        service.clusters.insert(cluster.clone(), of_cluster);
    }
    let mut pods = by_host.values().flat_map(|service| service.clusters.values());
    let is_awaiting = pods.any(|cluster| {
        cluster.has_ipv6 != cluster.names_ipv6
            || cluster.pods.values().any(|pod| pod.naming == PodNaming::AwaitsGateways)
    });
    let shared = by_host.into_iter().map(|(host, pods)| {
        let before = last.of(&host).filter(|before| ***before == pods);
        let pods = before.map_or_else(|| Arc::new(pods), Arc::clone);
        (host, pods)
    });
    RemotePods { by_host: shared.collect(), is_awaiting }
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
            shard.key.provider.is_cluster()
                && !shard.sharing.is_local
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
    let publishes_unready = shard.service.named_pods.unready;
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
