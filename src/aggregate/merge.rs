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

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::model::{ClusterId, EndpointRef, Endpoints, Hostname, NetworkId, Packed, Port, Service};
use crate::registry::{Provider, ServiceRecord, ShardKey};

/// Decides the network of endpoints (interface.md, "Networks").
pub trait Place {
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
}

/// The endpoints that one shard gives a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardEndpoints {
    /// Which shard.
    pub key: ShardKey,
    /// Its own object.
    pub service: Arc<Service>,
    /// Its endpoints, shared with what the source sent.
    pub endpoints: Endpoints,
    /// The networks that they are in: one, nearly always.
    networks: Box<[NetworkId]>,
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
        self.shards.iter().filter_map(move |shard| Some((shard, shard.service.port(number)?)))
    }

    /// Whether any of it is at home in `cluster`.
    pub fn is_at_home_in(&self, cluster: &ClusterId) -> bool {
        self.shards.iter().any(|shard| shard.key.is_at_home_in(cluster))
    }

    /// Whether endpoints that `shard` has in `network` are outside the mesh and in none of its
    /// networks, so that everybody reaches them. (interface.md, "Networks".)
    pub fn is_outside(&self, shard: &ShardKey, network: &NetworkId) -> bool {
        let own = self.by_cluster.get(&shard.cluster);
        network.is_empty() && !shard.is_joined() && own.is_some_and(|own| own.mesh_external)
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
        record: &ServiceRecord,
        system_label: Option<&NetworkId>,
        place: &dyn Place,
    ) -> Self {
        Self::placed(key, record, |label, address| {
            place.network_of(&key.cluster, system_label, label, address)
        })
    }

    /// Endpoints from outside the mesh: each in the network that it names itself, or in none. No
    /// cluster speaks for them, and a range of addresses is one inside the mesh.
    fn outside(key: &ShardKey, record: &ServiceRecord) -> Self {
        Self::placed(key, record, |label, _| Placed {
            network: label.cloned().unwrap_or_default(),
            at_any_address: true,
        })
    }

    fn placed(
        key: &ShardKey,
        record: &ServiceRecord,
        place: impl Fn(Option<&NetworkId>, IpAddr) -> Placed,
    ) -> Self {
        let endpoints = &record.endpoints;
        let mut of_kind: Vec<Option<Placed>> = vec![None; endpoints.kinds().len()];
        let mut networks = Vec::new();
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
            // The latest first: neighbours are in one network.
            let at = networks.iter().rposition(|held| held == network).unwrap_or_else(|| {
                networks.push(network.clone());
                networks.len() - 1
            });
            places.push(u32::try_from(at).unwrap_or(u32::MAX));
        }
        if networks.len() < 2 {
            places.clear();
        }
        Self {
            key: key.clone(),
            service: Arc::clone(&record.service),
            endpoints: endpoints.clone(),
            networks: networks.into(),
            places: places.into(),
        }
    }

    /// The networks that the endpoints are in.
    pub fn networks(&self) -> &[NetworkId] {
        &self.networks
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
    for (key, record, system_label) in records {
        let service = &record.service;
        debug_assert!(host.as_str().starts_with(service.hostname.as_str()));
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
            }
        });
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
        merged.service_accounts.extend(service.service_accounts.iter().chain(accounts).cloned());
        // A pod is in its cluster, whoever selects it.
        let shard = if service.mesh_external && !key.is_joined() {
            ShardEndpoints::outside(key, record)
        } else {
            ShardEndpoints::new(key, record, system_label, place)
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
