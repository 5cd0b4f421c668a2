//! Priorities by distance from the proxy, if the service requests them (`trafficDistribution`).
//!
//! | prefers | compared, in order |
//! |---|---|
//! | same zone | network, region, zone |
//! | same node | network, region, zone, subzone, node |
//!
//! The first item that differs decides the distance. Endpoints behind gateways of other networks
//! follow all endpoints in the proxy's own network, in the same order among themselves. This module
//! decides only Envoy's priorities, not weights or whether an endpoint is sent.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use super::assignment::{AssignmentGroup, AssignmentMember};
use super::view_key::ViewKey;
use crate::aggregate::MergedService;
use strait_model::{Distribution, Locality};

/// Splits the members of localities by distance. Each group comes with the number of members that
/// are reached directly; these are first.
pub(super) fn by_distance(
    view: &ViewKey,
    service: &MergedService,
    port: u16,
    groups: Vec<(AssignmentGroup, usize)>,
) -> Vec<AssignmentGroup> {
    let prefers = service.primary.prefers;
    let unknown = Arc::default();
    let here = Here {
        locality: view.locality.as_ref().unwrap_or(&unknown),
        prefers_node: prefers == Distribution::SameNode,
        on_node: if prefers == Distribution::SameNode {
            on_node(view, service, port)
        } else {
            BTreeSet::new()
        },
    };
    ranked(groups, |locality, member, remote| here.distance(locality, member, remote))
}

/// Splits the members of localities by `distance` and assigns priorities. Each group comes with the
/// number of members that are reached directly; the others are remote.
pub(super) fn ranked(
    groups: Vec<(AssignmentGroup, usize)>,
    distance: impl Fn(&Locality, &AssignmentMember, bool) -> u32,
) -> Vec<AssignmentGroup> {
    // The priority from the policy takes precedence over the distance.
    let mut ranked: Vec<((u32, u32), AssignmentGroup)> = Vec::new();
    for (group, direct) in groups {
        let AssignmentGroup { locality, priority, members, .. } = group;
        for (at, member) in members.into_iter().enumerate() {
            let rank = (priority, distance(&locality, &member, at >= direct));
            let same = |(ranked_by, group): &&mut ((u32, u32), AssignmentGroup)| {
                *ranked_by == rank && group.locality == locality
            };
            match ranked.iter_mut().rev().find(same) {
                Some((_, group)) => group.members.push(member),
                None => {
                    let locality = Arc::clone(&locality);
                    ranked.push((
                        rank,
                        AssignmentGroup { locality, members: vec![member], ..Default::default() },
                    ));
                }
            }
        }
    }
    ranked.sort_by(|(a, one), (b, other)| (a, &one.locality).cmp(&(b, &other.locality)));
    // Envoy requires priorities without gaps.
    let mut ranks: Vec<_> = ranked.iter().map(|(rank, _)| *rank).collect();
    ranks.dedup();
    let localities = ranked.into_iter().map(|(rank, group)| {
        let priority = ranks.partition_point(|one| *one < rank);
        AssignmentGroup { priority: u32::try_from(priority).unwrap_or(u32::MAX), ..group }
    });
    localities.collect()
}

/// Returns the addresses of endpoints on the proxy's node.
fn on_node(view: &ViewKey, service: &MergedService, port: u16) -> BTreeSet<(IpAddr, u16)> {
    let Some(node) = &view.node else { return BTreeSet::new() };
    let own_shards =
        service.shards_of_port(port).filter(|(shard, _)| shard.key.cluster == view.cluster);
    let endpoints = own_shards.flat_map(|(shard, _)| shard.packed().map(|(endpoint, _)| endpoint));
    let endpoints = endpoints.filter(|endpoint| endpoint.node() == Some(node));
    endpoints.map(|endpoint| (endpoint.address(), endpoint.port())).collect()
}

/// The location of a proxy.
struct Here<'a> {
    locality: &'a Arc<Locality>,
    prefers_node: bool,
    on_node: BTreeSet<(IpAddr, u16)>,
}

impl Here<'_> {
    /// Returns the distance of a member; 0 is nearest.
    fn distance(&self, locality: &Locality, member: &AssignmentMember, remote: bool) -> u32 {
        let own = self.locality;
        let mut same = vec![own.has_same_region(locality), own.zone == locality.zone];
        if self.prefers_node {
            let is_here = self.on_node.contains(&(member.address, member.port));
            same.extend([own.subzone == locality.subzone, is_here && !remote]);
        }
        let differs = same.iter().position(|same| !same);
        let steps = differs.map_or(0, |first| same.len() - first);
        let remote_distance = if remote { same.len() + 1 } else { 0 };
        u32::try_from(steps + remote_distance).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strait_model::TlsMode;

    #[test]
    fn earlier_difference_is_farther_and_other_networks_are_farthest() {
        let own = Arc::new(Locality::parse("r1/z1/s1"));
        let at = |last: u8| AssignmentMember {
            address: IpAddr::from([10, 0, 0, last]),
            additional: None,
            port: 80,
            weight: 1,
            tls_mode: TlsMode::Istio,
            is_gateway: false,
            origin: 0,
        };
        let distance = |prefers_node, text: &str, last, remote| {
            let on_node = [(at(1).address, 80)].into();
            let here = Here { locality: &own, prefers_node, on_node };
            here.distance(&Locality::parse(text), &at(last), remote)
        };
        let cases = [
            (false, "r1/z1/s9", 2, false, 0),
            (false, "r1/z2/s1", 2, false, 1),
            (false, "r2/z1/s1", 2, false, 2),
            (false, "", 2, false, 2),
            (false, "/z1", 2, false, 0),
            (false, "/z2", 2, false, 2),
            (false, "r1/z1/s1", 2, true, 3),
            (false, "r2/z1/s1", 2, true, 5),
            (true, "r1/z1/s1", 1, false, 0),
            (true, "r1/z1/s1", 2, false, 1),
            (true, "r1/z1/s2", 2, false, 2),
            (true, "r1/z2/s1", 2, false, 3),
            (true, "r2/z1/s1", 2, false, 4),
            (true, "r1/z1/s1", 1, true, 6),
        ];
        for (prefers_node, locality, last, remote, expected) in cases {
            let found = distance(prefers_node, locality, last, remote);
            assert_eq!(found, expected, "{prefers_node} {locality} {last} {remote}");
        }
    }
}
