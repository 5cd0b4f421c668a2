//! Groups the hosts of a port that share one virtual host: hosts with equal routes from rules.
//!
//! Otherwise a VirtualService with 300 hosts and 300 rules would be sent as 90,000 routes. Each
//! host keeps its position among the fragments. The first host of a group has the virtual host,
//! with the domains of all members. The fragments of the other members are empty.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::rds::lists::RouteList;

/// The groups with at least two hosts. Other hosts are not grouped.
#[derive(Debug, Default)]
pub(super) struct HostGroups {
    /// The positions of all members of a group in ascending order, by the first.
    members: HashMap<u32, Vec<u32>>,
    /// The first member of the group of each other member.
    firsts: HashMap<u32, u32>,
}

impl HostGroups {
    /// Groups hosts by their routes. The hosts are in ascending order of position.
    pub(super) fn new<'a>(hosts: impl Iterator<Item = (usize, &'a Arc<RouteList>)>) -> Self {
        let mut firsts = HashMap::new();
        let mut groups = Self::default();
        for (at, list) in hosts {
            let at = u32::try_from(at).expect("fewer hosts");
            let first = *firsts.entry(list.routes()).or_insert(at);
            if first != at {
                groups.members.entry(first).or_insert_with(|| vec![first]).push(at);
                groups.firsts.insert(at, first);
            }
        }
        groups
    }

    /// Returns the first host of the group of a host. Its fragment is the virtual host.
    pub(super) fn first(&self, at: u32) -> u32 {
        self.firsts.get(&at).copied().unwrap_or(at)
    }

    /// Returns the hosts of the virtual host at a position.
    pub(super) fn members(&self, at: usize) -> impl Iterator<Item = usize> {
        let place = u32::try_from(at).expect("fewer hosts");
        let members = self.members.get(&place).map_or(&[][..], |all| all);
        let alone = members.is_empty() && !self.firsts.contains_key(&place);
        members.iter().map(|at| *at as usize).chain(alone.then_some(at))
    }

    /// Returns the domains of each fragment, given the domains of each host.
    pub(super) fn joined(&self, mut domains: Vec<Vec<String>>) -> Vec<Vec<String>> {
        for (first, members) in &self.members {
            for at in members.iter().skip(1) {
                let more = std::mem::take(&mut domains[*at as usize]);
                domains[*first as usize].extend(more);
            }
        }
        domains
    }

    /// Returns the fragments that differ in `now`, in ascending order. The hosts at `changed` have
    /// other routes there.
    pub(super) fn changed_fragments(&self, now: &Self, changed: &[usize]) -> Vec<usize> {
        let mut fragments = BTreeSet::new();
        for at in changed {
            let place = u32::try_from(*at).expect("fewer hosts");
            for (groups, others) in [(self, now), (now, self)] {
                let first = groups.first(place);
                fragments.insert(first as usize);
                // Adding or removing this host may change the first host of the group.
                let members = groups.members.get(&first).into_iter().flatten();
                fragments.extend(members.map(|at| others.first(*at) as usize));
            }
        }
        fragments.into_iter().collect()
    }
}
