//! Detection of addresses that pods of several clusters have in one network, which is only possible
//! for one of them.
//!
//! Every pod that can receive traffic claims its address, once per endpoint. Claims are counted, so
//! that the cost of a change depends on the number of changed endpoints and not on the size of the
//! mesh. A claim takes 8 bytes and is stored in a list per block of 256 addresses, so that a
//! cluster whose nodes have dedicated blocks costs little more. This module only detects conflicts.
//! `push::view` decides which pod a proxy receives.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use imbl::OrdMap;

use super::merge::{MergedService, ShardEndpoints};
use strait_model::registry::ShardKey;
use strait_model::{ClusterId, NetworkId};

/// The number of claims by which the capacity of a list grows.
const STEP: usize = 16;

/// The claims of all pods.
#[derive(Debug, Clone, Default)]
pub struct AddressClaims {
    /// Claims by network and block, sorted by address and cluster.
    blocks: BTreeMap<NetworkId, BTreeMap<u128, Vec<PodAddressClaim>>>,
    /// Clusters by number.
    clusters: Vec<ClusterId>,
    numbers: BTreeMap<ClusterId, u32>,
    /// Addresses with claims of several clusters whose claims changed since the last
    /// [`AddressClaims::settle`].
    stale: BTreeSet<(NetworkId, IpAddr)>,
    shared: SameAddresses,
}

/// The claim of one cluster to one address.
#[derive(Debug, Clone, Copy)]
struct PodAddressClaim {
    /// The last byte of the address in the upper 8 bits, the number of the cluster in the lower 24.
    place: u32,
    /// The number of endpoints with this address; never 0.
    count: u32,
}

const CLUSTER_BITS: u32 = 24;

/// The addresses that pods of several clusters have in one network, each with these clusters in
/// merging order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SameAddresses(OrdMap<NetworkId, OrdMap<IpAddr, Arc<[ClusterId]>>>);

impl SameAddresses {
    /// Returns the clusters whose pods have this address, or `None` if at most one cluster has it.
    /// The first cluster's pod is used by other clusters.
    pub fn claimants(&self, network: &NetworkId, address: IpAddr) -> Option<&Arc<[ClusterId]>> {
        self.0.get(network)?.get(&address)
    }

    /// Returns whether no address is shared.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns all shared addresses, by network and address.
    pub fn iter(&self) -> impl Iterator<Item = (&NetworkId, IpAddr, &Arc<[ClusterId]>)> {
        let networks = self.0.iter();
        networks.flat_map(|(network, addresses)| {
            addresses.iter().map(move |(address, claimants)| (network, *address, claimants))
        })
    }

    fn set(&mut self, network: &NetworkId, address: IpAddr, claimants: Option<Arc<[ClusterId]>>) {
        match (claimants, self.0.get_mut(network)) {
            (Some(claimants), Some(all)) => {
                all.insert(address, claimants);
            }
            (Some(claimants), None) => {
                self.0.insert(network.clone(), OrdMap::unit(address, claimants));
            }
            (None, Some(all)) => {
                all.remove(&address);
                if all.is_empty() {
                    self.0.remove(network);
                }
            }
            (None, None) => {}
        }
    }
}

/// The clusters and addresses whose endpoints must be merged again.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Resettled {
    /// Addresses whose set or order of claiming clusters changed.
    pub addresses: BTreeSet<IpAddr>,
    /// The clusters whose pods have or had these addresses.
    pub clusters: BTreeSet<ClusterId>,
}

impl AddressClaims {
    /// Updates the claims with the difference between two versions of a service.
    pub fn replace(&mut self, old: Option<&MergedService>, new: Option<&MergedService>) {
        for (at, shard) in kubernetes(new) {
            let before = find(old, at, &shard.key);
            if before != Some(shard) {
                self.replace_shard(&shard.key.cluster, before, Some(shard));
            }
        }
        for (at, shard) in kubernetes(old) {
            if find(new, at, &shard.key).is_none() {
                self.replace_shard(&shard.key.cluster, Some(shard), None);
            }
        }
    }

    fn replace_shard(
        &mut self,
        cluster: &ClusterId,
        old: Option<&ShardEndpoints>,
        new: Option<&ShardEndpoints>,
    ) {
        // Most changes affect one range of endpoints: skip the equal prefix and suffix.
        let (mut before, mut behind, mut shorter) = (0, 0, 0);
        if let (Some(old), Some(new)) = (old, new) {
            let is_same = |(a, b): &(Option<_>, Option<_>)| a == b;
            before = old.claims().zip(new.claims()).take_while(is_same).count();
            shorter = old.claims().len().min(new.claims().len());
            let pairs_from_end = old.claims().rev().zip(new.claims().rev()).take(shorter - before);
            behind = pairs_from_end.take_while(is_same).count();
        }
        debug_assert!(before + behind <= shorter);
        let number = self.number(cluster);
        let differing = |shard: &ShardEndpoints| shard.claims().len() - before - behind;
        // Add claims before removing any, so that the count of an unchanged claim never drops to 0.
        if let Some(new) = new {
            let added = new.claims().skip(before).take(differing(new));
            added.flatten().for_each(|(address, network)| self.claim(network, address, number));
        }
        if let Some(old) = old {
            let removed = old.claims().skip(before).take(differing(old));
            removed.flatten().for_each(|(address, network)| self.release(network, address, number));
        }
    }

    fn number(&mut self, cluster: &ClusterId) -> u32 {
        if let Some(number) = self.numbers.get(cluster) {
            return *number;
        }
        let number =
            u32::try_from(self.clusters.len()).unwrap_or(u32::MAX) & ((1 << CLUSTER_BITS) - 1);
        self.clusters.push(cluster.clone());
        self.numbers.insert(cluster.clone(), number);
        number
    }

    fn claim(&mut self, network: &NetworkId, address: IpAddr, number: u32) {
        let (block, last) = split(address);
        if !self.blocks.contains_key(network) {
            self.blocks.insert(network.clone(), BTreeMap::new());
        }
        let Some(blocks) = self.blocks.get_mut(network) else { return };
        let claims = blocks.entry(block).or_default();
        let place = last | number;
        match claims.binary_search_by_key(&place, |claim| claim.place) {
            Ok(at) => {
                if let Some(claim) = claims.get_mut(at) {
                    claim.count += 1;
                }
            }
            Err(at) => {
                if claims.len() == claims.capacity() {
                    claims.reserve_exact(STEP);
                }
                claims.insert(at, PodAddressClaim { place, count: 1 });
                if claims_to_address(claims, last).len() > 1 {
                    self.stale.insert((network.clone(), address));
                }
            }
        }
    }

    fn release(&mut self, network: &NetworkId, address: IpAddr, number: u32) {
        let (block, last) = split(address);
        let Some(blocks) = self.blocks.get_mut(network) else { return };
        let Some(claims) = blocks.get_mut(&block) else { return };
        let place = last | number;
        let Ok(at) = claims.binary_search_by_key(&place, |claim| claim.place) else { return };
        let Some(claim) = claims.get_mut(at) else { return };
        claim.count -= 1;
        if claim.count > 0 {
            return;
        }
        if claims_to_address(claims, last).len() > 1 {
            self.stale.insert((network.clone(), address));
        }
        claims.remove(at);
        if claims.is_empty() {
            blocks.remove(&block);
        }
        if blocks.is_empty() {
            self.blocks.remove(network);
        }
    }

    /// Marks all shared addresses as stale, because the order of clusters changed.
    pub fn reorder(&mut self) {
        let all = self.shared.iter().map(|(network, address, _)| (network.clone(), address));
        let all: Vec<_> = all.collect();
        self.stale.extend(all);
    }

    /// Recomputes the claimants of all stale addresses and returns the addresses that changed.
    /// `rank` returns the position of a cluster in merging order.
    pub fn settle<R: Ord>(&mut self, rank: impl Fn(&ClusterId) -> R) -> Resettled {
        let mut changed = Resettled::default();
        for (network, address) in std::mem::take(&mut self.stale) {
            let (block, last) = split(address);
            let claims = self.blocks.get(&network).and_then(|blocks| blocks.get(&block));
            let claims = claims_to_address(claims.map_or(&[], |claims| claims), last);
            let number =
                |claim: &PodAddressClaim| (claim.place & ((1 << CLUSTER_BITS) - 1)) as usize;
            let clusters = claims.iter().filter_map(|claim| self.clusters.get(number(claim)));
            let mut clusters: Vec<ClusterId> = clusters.cloned().collect();
            clusters.sort_by_cached_key(|cluster| (rank(cluster), cluster.clone()));
            let now = (clusters.len() > 1).then(|| Arc::<[ClusterId]>::from(clusters));
            let before = self.shared.claimants(&network, address).cloned();
            if now != before {
                changed.addresses.insert(address);
                changed.clusters.extend(
                    [&before, &now].into_iter().flatten().flat_map(|all| all.iter().cloned()),
                );
                self.shared.set(&network, address, now);
            }
        }
        changed
    }

    /// Returns the number of lists of claims.
    #[cfg(test)]
    pub(super) fn counted(&self) -> usize {
        self.blocks.values().map(BTreeMap::len).sum()
    }

    /// Returns the shared addresses, as of the last [`Self::settle`].
    pub fn shared(&self) -> &SameAddresses {
        &self.shared
    }
}

/// Returns the shards of Kubernetes clusters with their positions. Entries are skipped: the pods
/// that they select are counted in the pods' clusters, and the rest are machines.
fn kubernetes(service: Option<&MergedService>) -> impl Iterator<Item = (usize, &ShardEndpoints)> {
    let shards = service.map_or(&[][..], |service| &service.shards).iter().enumerate();
    shards.filter(|(_, shard)| shard.key.provider.is_cluster())
}

/// Returns the shard with this key. It is nearly always in the same position as in the other
/// version.
fn find<'a>(
    service: Option<&'a MergedService>,
    at: usize,
    key: &ShardKey,
) -> Option<&'a ShardEndpoints> {
    let shards = &service?.shards;
    let has_key = |shard: &&ShardEndpoints| shard.key == *key;
    shards.get(at).filter(has_key).or_else(|| shards.iter().find(has_key))
}

/// Returns the block of an address, and its last byte in the upper 8 bits.
fn split(address: IpAddr) -> (u128, u32) {
    let bits = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    };
    (bits >> 8, ((bits & 0xff) as u32) << CLUSTER_BITS)
}

/// Returns the claims to one address of a block.
fn claims_to_address(claims: &[PodAddressClaim], last: u32) -> &[PodAddressClaim] {
    let start = claims.partition_point(|claim| claim.place < last);
    let rest = claims.get(start..).unwrap_or_default();
    let is_to_address =
        |claim: &PodAddressClaim| claim.place >> CLUSTER_BITS == last >> CLUSTER_BITS;
    rest.get(..rest.partition_point(is_to_address)).unwrap_or_default()
}
