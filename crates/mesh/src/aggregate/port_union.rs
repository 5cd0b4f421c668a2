//! The union of the ports of a service over its shards.

use std::collections::{BTreeMap, BTreeSet};

use strait_model::registry::ShardKey;
use strait_model::{ClusterId, Port, Protocol, Service};

/// A field on which clusters disagree.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct Conflict {
    /// The name of the field.
    pub field: &'static str,
    /// The cluster whose value applies.
    pub winner: ClusterId,
    /// The clusters with a different value, sorted.
    pub losers: Vec<ClusterId>,
}

/// The union of ports while it is built, and the fields on which clusters disagree.
#[derive(Default)]
pub(super) struct PortUnion<'a> {
    /// Each port with the first shard that has it.
    union: Vec<(&'a ShardKey, &'a Port)>,
    /// The number of ports of the first shard.
    first_count: Option<usize>,
    pub(super) protocols_differ: bool,
    /// Losers by field and deciding cluster; `None` means the first cluster.
    lost: BTreeMap<(&'static str, Option<&'a ClusterId>), BTreeSet<&'a ClusterId>>,
    first: Option<&'a ClusterId>,
}

impl<'a> PortUnion<'a> {
    pub(super) fn lost(
        &mut self,
        field: &'static str,
        winner: Option<&'a ClusterId>,
        loser: &'a ClusterId,
    ) {
        let winner = winner.or(self.first);
        self.lost.entry((field, winner)).or_default().insert(loser);
    }

    /// Adds the ports of a shard. Ports that are not for all proxies are not added. Differences are
    /// conflicts if the shard is compared.
    pub(super) fn add(
        &mut self,
        key: &'a ShardKey,
        service: &'a Service,
        (is_for_all, is_compared): (bool, bool),
    ) {
        let cluster = &key.cluster;
        let Some(first_count) = self.first_count else {
            self.first_count = Some(service.ports.len());
            self.first = Some(cluster);
            self.union = service.ports.iter().map(|port| (key, port)).collect();
            return;
        };
        let contains_number = |port: &Port, ports: &[(&ShardKey, &Port)]| {
            ports.iter().any(|(_, one)| is_same_number(one, port))
        };
        let first_count = self.union.get(..first_count).unwrap_or_default();
        let is_missing = |(_, port): &(&ShardKey, &Port)| {
            !service.ports.iter().any(|one| is_same_number(one, port))
        };
        if is_compared
            && (service.ports.iter().any(|port| !contains_number(port, first_count))
                || first_count.iter().any(is_missing))
        {
            self.lost("ports", None, cluster);
        }
        for port in &service.ports {
            let existing = self.union.iter().find(|(_, one)| is_same_number(one, port)).copied();
            match existing {
                Some((first_key, existing)) => {
                    if is_compared
                        && (&existing.name, existing.protocol) != (&port.name, port.protocol)
                    {
                        self.lost("ports", Some(&first_key.cluster), cluster);
                    }
                    if existing.protocol != port.protocol {
                        self.protocols_differ = true;
                    }
                }
                None if is_for_all => self.union.push((key, port)),
                None => {}
            }
        }
    }

    /// Returns the ports that the first shard lacks.
    pub(super) fn added(&self) -> Box<[(ShardKey, Port)]> {
        let added = self.union.get(self.first_count.unwrap_or_default()..).unwrap_or_default();
        added.iter().map(|(key, port)| ((*key).clone(), (*port).clone())).collect()
    }

    pub(super) fn conflicts(self) -> Vec<Conflict> {
        let first = self.first;
        let lost = self.lost.into_iter().filter_map(|((field, winner), losers)| {
            let winner = winner.or(first)?.clone();
            Some(Conflict { field, winner, losers: losers.into_iter().cloned().collect() })
        });
        lost.collect()
    }
}

/// Returns whether two ports have the same number. UDP ports are numbered separately.
pub(super) fn is_same_number(a: &Port, b: &Port) -> bool {
    let is_udp = |port: &Port| port.protocol == Protocol::Udp;
    a.number == b.number && is_udp(a) == is_udp(b)
}
