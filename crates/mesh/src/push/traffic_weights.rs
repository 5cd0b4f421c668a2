//! Finds the preference that applies to a view, and converts the percentages of clusters in a tier
//! into weights.

use std::collections::BTreeMap;
use std::ops::Range;

use super::assignment::{AssignmentGroup, Remote};
use super::context::PushContext;
use super::view_key::{Role, ViewKey};
use crate::aggregate::MergedService;
use strait_model::policy::{Preference, Rank};

/// The sum of the weights of a tier with percentages: large enough that rounding is negligible,
/// small enough for Envoy's 32 bits.
const WHOLE: u128 = 1 << 24;

/// Returns the preference among clusters for a view of a service, if the policy defines one. It
/// does not apply to gateways, which serve all clusters.
pub fn preference<'a>(
    context: &'a PushContext,
    view: &ViewKey,
    service: &MergedService,
) -> Option<&'a Preference> {
    let (host, namespace) = (service.hostname().as_str(), service.primary.namespace.as_str());
    let found = context.policy.preference(host, namespace, &view.cluster);
    found.filter(|_| view.role == Role::Client)
}

/// The endpoints of each cluster in each tier.
#[derive(Debug, Default)]
pub(super) struct TrafficWeights(Vec<Portion>);

/// The endpoints of one cluster in one tier.
#[derive(Debug)]
struct Portion {
    tier: u32,
    share: u32,
    /// Ranges in the members of groups, by index of the group.
    members: Vec<(usize, Range<usize>)>,
    /// Indices of entries behind gateways.
    remote: Vec<usize>,
    total: u128,
}

/// The sizes of the lists before a cluster's endpoints were added.
pub(super) struct Before {
    members: Vec<usize>,
    remote: usize,
}

impl TrafficWeights {
    /// Records the sizes before a cluster's endpoints are added.
    pub(super) fn begin(&self, groups: &[AssignmentGroup], remote: &[Remote]) -> Before {
        let members = groups.iter().map(|group| group.members.len()).collect();
        Before { members, remote: remote.len() }
    }

    /// Records the endpoints that were added since `before`, in the tiers of `ranks`.
    pub(super) fn end(
        &mut self,
        before: Before,
        ranks: impl Iterator<Item = Rank>,
        groups: &[AssignmentGroup],
        remote: &[Remote],
    ) {
        let shares: BTreeMap<u32, u32> =
            ranks.filter_map(|rank| Some((rank.tier, rank.share?))).collect();
        for (tier, share) in shares {
            let mut portion =
                Portion { tier, share, members: Vec::new(), remote: Vec::new(), total: 0 };
            for (at, group) in groups.iter().enumerate().filter(|(_, one)| one.priority == tier) {
                let start = before.members.get(at).copied().unwrap_or_default();
                let new = group.members.get(start..).unwrap_or_default();
                portion.total += new.iter().map(|one| u128::from(one.weight)).sum::<u128>();
                portion.members.push((at, start..group.members.len()));
            }
            for (at, one) in remote.iter().enumerate().skip(before.remote) {
                if groups.get(one.group).is_some_and(|group| group.priority == tier) {
                    portion.total += u128::from(one.weight);
                    portion.remote.push(at);
                }
            }
            if portion.total > 0 {
                self.0.push(portion);
            }
        }
    }

    /// Scales the weights in each tier according to the percentages. A cluster that is alone in its
    /// tier keeps its weights.
    pub(super) fn apply(&self, groups: &mut [AssignmentGroup], remote: &mut [Remote]) {
        for portion in &self.0 {
            let same_tier = || self.0.iter().filter(|other| other.tier == portion.tier);
            let all: u128 = same_tier().map(|other| u128::from(other.share)).sum();
            if same_tier().count() < 2 || all == 0 {
                continue;
            }
            let scaled = |weight: u128| -> u128 {
                let whole = weight * WHOLE * u128::from(portion.share);
                (whole / (portion.total * all)).max(1)
            };
            for (group, range) in &portion.members {
                let members =
                    groups.get_mut(*group).and_then(|one| one.members.get_mut(range.clone()));
                for member in members.into_iter().flatten() {
                    member.weight = u32::try_from(scaled(member.weight.into())).unwrap_or(u32::MAX);
                }
            }
            for at in &portion.remote {
                if let Some(one) = remote.get_mut(*at) {
                    one.weight = u64::try_from(scaled(one.weight.into())).unwrap_or(u64::MAX);
                }
            }
        }
    }
}
