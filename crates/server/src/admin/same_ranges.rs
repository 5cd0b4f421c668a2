//! Detection of clusters in one network whose nodes assign pod addresses from the same ranges,
//! before two pods have the same address. Computed on request. No configuration depends on it,
//! because some network plug-ins ignore the ranges of nodes.

use std::collections::BTreeSet;

use ipnet::IpNet;

use strait_model::{ClusterId, NetworkId, SameRange};
use strait_sources::clusters::status::ClusterStatus;

/// Fills in `same_ranges` of each row, unless the pods already share addresses. If very many
/// clusters share a range, each lists only its neighbours.
pub(super) fn find_same_ranges(rows: &mut [ClusterStatus]) {
    let mut ranges: Vec<(NetworkId, IpNet, usize)> = Vec::new();
    for (row, status) in rows.iter().enumerate() {
        let Some(network) = &status.network else { continue };
        ranges.extend(status.pod_ranges.iter().map(|range| (network.clone(), *range, row)));
    }
    ranges.sort();
    // Two ranges that overlap are nested, and the outer one is sorted first. This stack contains
    // the ranges around the current one.
    let mut holding: Vec<(&NetworkId, IpNet, usize)> = Vec::new();
    let mut found = BTreeSet::new();
    for (network, range, row) in &ranges {
        while holding.pop_if(|(at, outer, _)| *at != network || !outer.contains(range)).is_some() {}
        if let Some((_, _, other)) = holding.last() {
            found.insert((*row, *other, network, *range));
            found.insert((*other, *row, network, *range));
        }
        holding.push((network, *range, *row));
    }
    let found: Vec<_> = found
        .into_iter()
        .map(|(row, other, network, range)| {
            let cluster = ClusterId::from(rows[other].id.as_str());
            (row, SameRange { network: network.clone(), cluster, range })
        })
        .collect();
    for (row, same) in found {
        let row = &mut rows[row];
        let is_told = row.same_addresses.iter().any(|one| one.cluster == same.cluster)
            || row.same_ranges.iter().any(|one| one.cluster == same.cluster);
        if !is_told {
            row.same_ranges.push(same);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strait_model::SameAddress;

    fn row(id: &str, network: &str, ranges: &[&str]) -> ClusterStatus {
        let parse = |range: &&str| range.parse::<IpNet>().expect("a range");
        ClusterStatus {
            network: Some(network.into()),
            pod_ranges: ranges.iter().map(parse).collect(),
            ..ClusterStatus::live(id)
        }
    }

    fn lines_of(rows: &[ClusterStatus]) -> Vec<String> {
        let of_row = |row: &ClusterStatus| {
            let line = |one: &SameRange| format!("{}: {} {}", row.id, one.cluster, one.range);
            row.same_ranges.iter().map(line).collect::<Vec<_>>()
        };
        rows.iter().flat_map(of_row).collect()
    }

    #[test]
    fn clusters_with_overlapping_ranges_in_one_network_list_each_other() {
        let mut rows = [
            row("a", "n1", &["10.0.0.0/16", "fd00::/64"]),
            row("b", "n1", &["10.1.0.0/16", "fd00::8000:0:0:0/80"]),
            row("c", "n1", &["10.0.4.0/24", "10.0.9.0/24"]),
            row("d", "n2", &["10.0.0.0/16"]),
            row("e", "n1", &["10.2.0.0/16"]),
        ];
        find_same_ranges(&mut rows);
        assert_eq!(
            lines_of(&rows),
            [
                "a: b fd00::8000:0:0:0/80",
                "a: c 10.0.4.0/24",
                "b: a fd00::8000:0:0:0/80",
                "c: a 10.0.4.0/24"
            ]
        );
    }

    #[test]
    fn cluster_that_shares_addresses_lists_no_ranges() {
        let mut rows = [row("a", "n1", &["10.0.0.0/16"]), row("b", "n1", &["10.0.0.0/16"])];
        rows[0].same_addresses.push(SameAddress {
            network: "n1".into(),
            cluster: "b".into(),
            addresses: 1,
            first: "10.0.0.9".parse().expect("an address"),
            holder: "a".into(),
        });
        find_same_ranges(&mut rows);
        assert_eq!(lines_of(&rows), ["b: a 10.0.0.0/16"]);
    }

    #[test]
    fn many_clusters_that_share_a_range_list_only_their_neighbours() {
        let mut rows: Vec<_> =
            (0..2000).map(|number| row(&format!("c{number:04}"), "", &["10.244.0.0/16"])).collect();
        find_same_ranges(&mut rows);
        let most = rows.iter().map(|row| row.same_ranges.len()).max();
        assert_eq!(most, Some(2));
        assert!(rows.iter().all(|row| !row.same_ranges.is_empty()));
    }
}
