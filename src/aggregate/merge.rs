//! How the shards of one hostname become one service.
//!
//! | field | rule |
//! |---|---|
//! | ports, resolution, labels, visibility, creation time | the first shard's |
//! | VIPs, external addresses | each cluster's own, united by cluster ID |
//! | service accounts | the union of those on the objects and those of the endpoints, sorted |
//! | endpoints | every shard's, each with its final network |
//!
//! A difference in what the first shard decides is recorded as a conflict. What a shard has under the
//! same name in another namespace than the first counts for nothing, which is recorded, too: else
//! whoever may write in one namespace could take a share of another's traffic.
//!
//! A cluster that may not export the name is there for its own proxies: it comes after all others, and
//! neither decides anything for them nor adds accounts.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::model::{ClusterId, EndpointRef, Endpoints, Hostname, NetworkId, Packed, Port, Service};
use crate::registry::{Provider, ServiceRecord, ShardKey};

/// Decides the network of endpoints (interface.md, "Networks"), and what of a cluster counts.
pub trait Place {
    /// Whether what `cluster` has under the name of `service` is for proxies of other clusters.
    fn may_export(&self, _cluster: &ClusterId, _service: &Service) -> bool {
        true
    }

    /// Whether endpoints of `cluster` may be in `network`.
    fn may_claim(&self, _cluster: &ClusterId, _network: &NetworkId) -> bool {
        true
    }

    /// Whether endpoints of `cluster` may have that address.
    fn may_use(&self, _cluster: &ClusterId, _address: IpAddr) -> bool {
        true
    }

    /// The network of an endpoint of `cluster`, whose system namespace names `system_label`, at
    /// `address`, with the label that it carries itself.
    fn network_of(
        &self,
        cluster: &ClusterId,
        system_label: Option<&NetworkId>,
        label: Option<&NetworkId>,
        address: IpAddr,
    ) -> Placed;
}

/// An endpoint's network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// The network.
    pub network: NetworkId,
    /// Whether an endpoint with that label would be in it at any other address, too.
    pub at_any_address: bool,
}

/// What an endpoint claims that it may not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Bar {
    /// Its address.
    Address,
    /// Its network.
    Network,
}

/// One service as all clusters together have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergedService {
    /// The object that decides ports, resolution, labels and visibility: the first shard's.
    pub primary: Arc<Service>,
    /// Every cluster's own object, by cluster.
    pub by_cluster: BTreeMap<ClusterId, Arc<Service>>,
    /// Virtual addresses by cluster; clusters without any are left out.
    pub vips: BTreeMap<ClusterId, Vec<IpAddr>>,
    /// Addresses from outside by cluster, in each source's order; clusters without any are left out.
    pub external_addresses: BTreeMap<ClusterId, Vec<Arc<str>>>,
    /// SPIFFE IDs under which its endpoints may answer.
    pub service_accounts: BTreeSet<Arc<str>>,
    /// What the clusters disagree on.
    pub conflicts: Vec<Conflict>,
    /// Endpoints by shard, in merging order.
    pub shards: Vec<ShardEndpoints>,
    /// The clusters that may not export it: what they have is for their own proxies.
    pub refused: BTreeSet<ClusterId>,
}

/// The endpoints that one shard gives a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardEndpoints {
    /// Which shard.
    pub key: ShardKey,
    /// Its endpoints, shared with what the source sent.
    pub endpoints: Endpoints,
    /// The networks that they are in: one, nearly always. One that holds endpoints which are barred is
    /// there for these once more.
    networks: Box<[NetworkId]>,
    /// Why endpoints are barred, by the place of their network; empty where none are.
    bars: Box<[Option<Bar>]>,
    /// For each endpoint the place of its network; empty where all are in the first.
    places: Box<[u32]>,
}

/// A field on which clusters disagree.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct Conflict {
    /// The field.
    pub field: &'static str,
    /// The cluster whose value holds.
    pub winner: ClusterId,
    /// The clusters with another value, sorted.
    pub losers: Vec<ClusterId>,
}

impl MergedService {
    /// The name under which it was merged.
    pub fn hostname(&self) -> &Hostname {
        &self.primary.hostname
    }

    /// Whether all that have it may not export it, so that each has it for itself.
    pub fn is_of_refused_only(&self) -> bool {
        self.shards.iter().all(|shard| self.refused.contains(&shard.key.cluster))
            && !self.refused.is_empty()
    }

    /// Whether a client sees no difference but in the endpoints, and in the accounts they run under.
    pub fn same_definition(&self, other: &Self) -> bool {
        self.by_cluster == other.by_cluster && self.primary == other.primary
    }

    /// The endpoints behind the service port `number`, each with its shard and network.
    pub fn endpoints_of_port(
        &self,
        number: u16,
    ) -> impl Iterator<Item = (&ShardKey, EndpointRef<'_>, &NetworkId)> {
        self.shards_of_port(number).flat_map(|(shard, port)| {
            shard
                .iter()
                .filter(|(one, _)| *one.port_name == port.name)
                .map(|(endpoint, network)| (&shard.key, endpoint, network))
        })
    }

    /// The shards that serve the port `number`, each with the port as its own cluster has it. A
    /// cluster that calls the port by another name than the first does still serves it: endpoints go
    /// by the name of their own cluster's port.
    pub fn shards_of_port(&self, number: u16) -> impl Iterator<Item = (&ShardEndpoints, &Port)> {
        self.shards.iter().filter_map(move |shard| {
            Some((shard, self.by_cluster.get(&shard.key.cluster)?.port(number)?))
        })
    }

    /// Whether any of it is at home in `cluster`.
    pub fn is_at_home_in(&self, cluster: &ClusterId) -> bool {
        self.shards.iter().any(|shard| shard.key.is_at_home_in(cluster))
    }

    /// Whether endpoints that `shard` has in `network` are outside the mesh and in none of its
    /// networks, so that everybody reaches them. (interface.md, "Networks".)
    pub fn is_outside(&self, shard: &ShardKey, network: &NetworkId) -> bool {
        let own = self.by_cluster.get(&shard.cluster);
        network.is_empty() && own.is_some_and(|own| own.mesh_external)
    }

    /// Every endpoint with its shard and network.
    pub fn endpoints(&self) -> impl Iterator<Item = (&ShardKey, EndpointRef<'_>, &NetworkId)> {
        self.shards.iter().flat_map(|shard| {
            shard.iter().map(|(endpoint, network)| (&shard.key, endpoint, network))
        })
    }
}

impl ShardEndpoints {
    /// Finds the networks of a shard's endpoints: once for all that carry one label, unless their
    /// addresses decide.
    fn new(
        key: &ShardKey,
        endpoints: &Endpoints,
        system_label: Option<&NetworkId>,
        place: &dyn Place,
    ) -> Self {
        // What an operator writes into an entry is no claim of a cluster.
        let claims = (key.provider == Provider::Kubernetes).then_some(place);
        Self::placed(key, endpoints, claims, |label, address| {
            place.network_of(&key.cluster, system_label, label, address)
        })
    }

    /// Endpoints from outside the mesh: each in the network that it names itself, or in none. No
    /// cluster speaks for them, and a range of addresses is one inside the mesh.
    fn outside(key: &ShardKey, endpoints: &Endpoints) -> Self {
        Self::placed(key, endpoints, None, |label, _| Placed {
            network: label.cloned().unwrap_or_default(),
            at_any_address: true,
        })
    }

    fn placed(
        key: &ShardKey,
        endpoints: &Endpoints,
        claims: Option<&dyn Place>,
        place: impl Fn(Option<&NetworkId>, IpAddr) -> Placed,
    ) -> Self {
        let mut of_kind: Vec<Option<Placed>> = vec![None; endpoints.kinds().len()];
        let mut networks: Vec<NetworkId> = Vec::new();
        let mut bars: Vec<Option<Bar>> = Vec::new();
        let mut places = Vec::new();
        for endpoint in endpoints.packed() {
            let (Some(known), Some(kind)) =
                (of_kind.get_mut(endpoint.kind()), endpoints.kinds().get(endpoint.kind()))
            else {
                continue;
            };
            if !known.as_ref().is_some_and(|known| known.at_any_address) {
                *known = Some(place(kind.network_label.as_ref(), endpoint.address()));
            }
            let Some(Placed { network, .. }) = known else { continue };
            let strange =
                claims.is_some_and(|place| !place.may_use(&key.cluster, endpoint.address()));
            // The latest first: neighbours are in one network.
            let is_it = |(held, bar): (&NetworkId, &Option<Bar>)| {
                held == network && (*bar == Some(Bar::Address)) == strange
            };
            let at = networks.iter().zip(&bars).rposition(is_it).unwrap_or_else(|| {
                let claimed = |place: &dyn Place| place.may_claim(&key.cluster, network);
                bars.push(if strange {
                    Some(Bar::Address)
                } else {
                    claims.filter(|place| !claimed(*place)).map(|_| Bar::Network)
                });
                networks.push(network.clone());
                networks.len() - 1
            });
            places.push(u32::try_from(at).unwrap_or(u32::MAX));
        }
        if networks.len() < 2 {
            places.clear();
        }
        if bars.iter().all(Option::is_none) {
            bars.clear();
        }
        Self {
            key: key.clone(),
            endpoints: endpoints.clone(),
            networks: networks.into(),
            bars: bars.into(),
            places: places.into(),
        }
    }

    /// The networks that the endpoints are in.
    pub fn networks(&self) -> &[NetworkId] {
        &self.networks
    }

    /// Why the endpoints of that place in [`Self::networks`] are withheld from everybody.
    pub fn bar(&self, place: usize) -> Option<Bar> {
        self.bars.get(place).copied().flatten()
    }

    /// Each endpoint with its network.
    pub fn iter(&self) -> impl Iterator<Item = (EndpointRef<'_>, &NetworkId)> {
        self.packed().filter_map(|(endpoint, at)| Some((endpoint.unpack(), self.networks.get(at)?)))
    }

    /// Each endpoint as it is kept, with the place of its network in [`Self::networks`].
    pub fn packed(&self) -> impl Iterator<Item = (Packed<'_>, usize)> {
        let place = |index| self.places.get(index).map_or(0, |at| *at as usize);
        self.endpoints.packed().enumerate().map(move |(index, packed)| (packed, place(index)))
    }
}

pub(super) fn merge<'a>(
    host: &Hostname,
    records: impl Iterator<Item = (&'a ShardKey, &'a ServiceRecord, Option<&'a NetworkId>)>,
    place: &dyn Place,
) -> Option<MergedService> {
    let mut merged: Option<MergedService> = None;
    let mut disagree: BTreeMap<&'static str, Vec<ClusterId>> = BTreeMap::new();
    let mut winner = None;
    let mut records: Vec<_> = records
        .map(|(key, record, label)| {
            // What an operator writes into an entry is nobody's claim.
            let refused = key.provider == Provider::Kubernetes
                && !place.may_export(&key.cluster, &record.service);
            (refused, key, record, label)
        })
        .collect();
    if records.iter().any(|(refused, ..)| *refused) {
        records.sort_by_key(|(refused, ..)| *refused);
    }
    let nobody_else = records.iter().all(|(refused, ..)| *refused);
    for (refused, key, record, system_label) in records {
        let service = &record.service;
        debug_assert_eq!(service.hostname, *host);
        let strange = merged.as_ref().is_some_and(|one| one.primary.namespace != service.namespace);
        if strange {
            disagree.entry("namespace").or_default().push(key.cluster.clone());
            continue;
        }
        let merged = merged.get_or_insert_with(|| {
            winner = Some(key.cluster.clone());
            MergedService {
                primary: Arc::clone(service),
                by_cluster: BTreeMap::new(),
                vips: BTreeMap::new(),
                external_addresses: BTreeMap::new(),
                service_accounts: BTreeSet::new(),
                conflicts: Vec::new(),
                shards: Vec::new(),
                refused: BTreeSet::new(),
            }
        });
        if refused {
            merged.refused.insert(key.cluster.clone());
        }
        for field in differences(&merged.primary, service) {
            disagree.entry(field).or_default().push(key.cluster.clone());
        }
        merged.by_cluster.entry(key.cluster.clone()).or_insert_with(|| Arc::clone(service));
        // An entry that joins a cluster's service is reached as that is.
        let of_cluster = key.provider == Provider::Kubernetes;
        if !service.vips.is_empty() && (of_cluster || merged.vips.is_empty()) {
            merged.vips.entry(key.cluster.clone()).or_insert_with(|| service.vips.clone());
        }
        if !service.external_addresses.is_empty() {
            merged
                .external_addresses
                .entry(key.cluster.clone())
                .or_insert_with(|| service.external_addresses.clone());
        }
        let kinds = record.endpoints.kinds().iter();
        let accounts = kinds.filter_map(|kind| kind.service_account.as_ref());
        if !refused || nobody_else {
            let named = service.service_accounts.iter().chain(accounts);
            merged.service_accounts.extend(named.cloned());
        }
        let shard = if service.mesh_external {
            ShardEndpoints::outside(key, &record.endpoints)
        } else {
            ShardEndpoints::new(key, &record.endpoints, system_label, place)
        };
        merged.shards.push(shard);
    }
    let mut merged = merged?;
    if let Some(winner) = winner {
        merged.conflicts = disagree
            .into_iter()
            .map(|(field, mut losers)| {
                losers.sort();
                Conflict { field, winner: winner.clone(), losers }
            })
            .collect();
    }
    Some(merged)
}

fn differences(winner: &Service, other: &Service) -> Vec<&'static str> {
    let mut fields = Vec::new();
    let same =
        |(a, b): (&Port, &Port)| (&a.name, a.number, a.protocol) == (&b.name, b.number, b.protocol);
    let same_count = winner.ports.len() == other.ports.len();
    if !(same_count && winner.ports.iter().zip(&other.ports).all(same)) {
        fields.push("ports");
    }
    if winner.resolution != other.resolution {
        fields.push("resolution");
    }
    if winner.export_to != other.export_to {
        fields.push("exportTo");
    }
    fields
}
