//! How the shards of one hostname become one service.
//!
//! | field | rule |
//! |---|---|
//! | ports, resolution, labels, visibility, creation time | the first shard's |
//! | VIPs, external addresses | each cluster's own, united by cluster ID |
//! | service accounts | the union of those on the objects and those of the endpoints, sorted |
//! | endpoints | every shard's, each with its final network |
//!
//! A difference in what the first shard decides is recorded as a conflict.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::model::{ClusterId, Endpoint, Hostname, NetworkId, Service};
use crate::registry::{ServiceRecord, ShardKey};

/// Decides the network of an endpoint (interface.md, "Networks").
pub trait Place {
    /// The network of `endpoint` of `cluster`, whose system namespace names `system_label`.
    fn network_of(
        &self,
        cluster: &ClusterId,
        system_label: Option<&NetworkId>,
        endpoint: &Endpoint,
    ) -> NetworkId;
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
    /// Its endpoints, shared with what the source sent.
    pub endpoints: Arc<[Endpoint]>,
    /// The network of each, in the same order; one entry where all are in one network.
    networks: Arc<[NetworkId]>,
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

    /// Whether a client sees no difference but in the endpoints.
    pub fn same_definition(&self, other: &Self) -> bool {
        self.by_cluster == other.by_cluster
            && self.primary == other.primary
            && self.service_accounts == other.service_accounts
    }

    /// The endpoints behind the service port `number`, each with its shard and network. A cluster that
    /// calls the port by another name than the first does still serves it: endpoints go by the name of
    /// their own cluster's port.
    pub fn endpoints_of_port(
        &self,
        number: u16,
    ) -> impl Iterator<Item = (&ShardKey, &Endpoint, &NetworkId)> {
        self.shards.iter().flat_map(move |shard| {
            let own = self.by_cluster.get(&shard.key.cluster);
            let port = own.and_then(|own| own.port(number));
            shard
                .iter()
                .filter(move |(one, _)| port.is_some_and(|port| port.name == one.port_name))
                .map(|(endpoint, network)| (&shard.key, endpoint, network))
        })
    }

    /// Every endpoint with its shard and network.
    pub fn endpoints(&self) -> impl Iterator<Item = (&ShardKey, &Endpoint, &NetworkId)> {
        self.shards.iter().flat_map(|shard| {
            shard.iter().map(|(endpoint, network)| (&shard.key, endpoint, network))
        })
    }
}

impl ShardEndpoints {
    /// Each endpoint with its network.
    pub fn iter(&self) -> impl Iterator<Item = (&Endpoint, &NetworkId)> {
        let uniform = if self.networks.len() == 1 { self.networks.first() } else { None };
        self.endpoints.iter().enumerate().filter_map(move |(index, endpoint)| {
            Some((endpoint, uniform.or_else(|| self.networks.get(index))?))
        })
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
        debug_assert_eq!(service.hostname, *host);
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
        if !service.vips.is_empty() {
            merged.vips.entry(key.cluster.clone()).or_insert_with(|| service.vips.clone());
        }
        if !service.external_addresses.is_empty() {
            merged
                .external_addresses
                .entry(key.cluster.clone())
                .or_insert_with(|| service.external_addresses.clone());
        }
        let accounts =
            record.endpoints.iter().filter_map(|endpoint| endpoint.service_account.as_ref());
        merged.service_accounts.extend(service.service_accounts.iter().chain(accounts).cloned());
        let networks =
            record.endpoints.iter().map(|e| place.network_of(&key.cluster, system_label, e));
        merged.shards.push(ShardEndpoints {
            key: key.clone(),
            endpoints: Arc::clone(&record.endpoints),
            networks: collapse(networks.collect()),
        });
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

/// One entry stands for all where all are equal.
fn collapse(mut networks: Vec<NetworkId>) -> Arc<[NetworkId]> {
    if networks.windows(2).all(|pair| pair.first() == pair.last()) {
        networks.truncate(1);
    }
    networks.into()
}

fn differences(winner: &Service, other: &Service) -> Vec<&'static str> {
    let mut fields = Vec::new();
    let ports = |service: &Service| -> Vec<_> {
        service
            .ports
            .iter()
            .map(|port| (Arc::clone(&port.name), port.number, port.protocol))
            .collect()
    };
    if ports(winner) != ports(other) {
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
