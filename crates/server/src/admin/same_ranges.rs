//! Clusters of one network whose nodes give their pods addresses of the same ranges: told before two pods have the same
//! address. Found when somebody asks; nothing that proxies are given depends on it, since some network plug-ins pass
//! over what nodes say.

use std::collections::BTreeSet;

use ipnet::IpNet;

use strait_model::{ClusterId, NetworkId, SameRange};
use strait_sources::clusters::status::ClusterStatus;

/// Fills in `same_ranges` of each row, where pods have no address in common as yet. Of very many clusters that share a
/// range each names its neighbours.
pub(super) fn find_same_ranges(rows: &mut [ClusterStatus]) {
    let mut ranges: Vec<(NetworkId, IpNet, usize)> = Vec::new();
    for (row, status) in rows.iter().enumerate() {
        let Some(network) = &status.network else { continue };
        ranges.extend(status.pod_ranges.iter().map(|range| (network.clone(), *range, row)));
    }
    ranges.sort();
    // Of two ranges that overlap one holds the other, and comes first: those that hold the one that is looked at.
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
    fn clusters_of_one_network_whose_ranges_overlap_name_each_other() {
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
    fn who_shares_addresses_already_is_told_of_these_alone() {
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
    fn very_many_that_share_one_range_name_their_neighbours() {
        let mut rows: Vec<_> =
            (0..2000).map(|number| row(&format!("c{number:04}"), "", &["10.244.0.0/16"])).collect();
        find_same_ranges(&mut rows);
        let most = rows.iter().map(|row| row.same_ranges.len()).max();
        assert_eq!(most, Some(2));
        assert!(rows.iter().all(|row| !row.same_ranges.is_empty()));
    }
}
