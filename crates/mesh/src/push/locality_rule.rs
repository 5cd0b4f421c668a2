//! Priorities and weights of localities according to the active DestinationRule.
//! (docs/reference/traffic.md, "Localities".)
//!
//! Pure. This module does not decide whether an endpoint is sent.

use std::sync::Arc;

use super::assignment::{AssignmentGroup, AssignmentMember};
use strait_model::Locality;
use strait_model::mesh_config::{Distribute, LocalitySetting, PlaceLabel};
use strait_rules::traffic::policy::ResolvedPolicy;

/// The effect of the active rule on localities, for a client in one locality.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LocalityRule<'a> {
    /// The rule does not mention localities; the service's own preference applies.
    Unspecified,
    /// All localities are equal.
    Equal,
    /// Each locality has a weight; localities without one are omitted.
    Shares(&'a Distribute),
    /// Nearer localities have priority.
    NearFirst(Option<&'a LocalitySetting>),
}

impl<'a> LocalityRule<'a> {
    /// Returns the effect of `policy` on localities, for a client in locality `here` (`None` if
    /// unknown). Without a setting in the policy, the service's own preference applies if `prefers`
    /// is set, otherwise the setting of the mesh config. Nearer localities have priority only if
    /// outlier detection identifies failing endpoints; otherwise requests would stay with near
    /// endpoints that fail. For a client in an unknown locality, only `failoverPriority`, which may
    /// compare networks, and `distribute` from anywhere apply.
    pub(super) fn of(
        policy: &'a ResolvedPolicy,
        prefers: bool,
        mesh: Option<&'a LocalitySetting>,
        here: Option<&Locality>,
    ) -> Self {
        let rule = Self::from_place(policy, prefers, mesh, here.unwrap_or(&Locality::default()));
        let needs_no_place = match rule {
            Self::NearFirst(Some(setting)) => !setting.failover_priority.is_empty(),
            Self::Shares(_) => true,
            _ => false,
        };
        if here.is_some() || needs_no_place { rule } else { Self::Unspecified }
    }

    fn from_place(
        policy: &'a ResolvedPolicy,
        prefers: bool,
        mesh: Option<&'a LocalitySetting>,
        here: &Locality,
    ) -> Self {
        let can_prefer_near = policy.outlier_detection.is_some();
        let balancing = policy.load_balancer.as_deref();
        let configured = balancing.and_then(|balancing| balancing.locality.as_ref());
        let setting = match configured {
            None if prefers => return Self::Unspecified,
            None => mesh,
            configured => configured,
        };
        match setting {
            None if can_prefer_near => Self::NearFirst(None),
            None => Self::Unspecified,
            Some(setting) if !setting.enabled => Self::Equal,
            Some(setting) if !setting.distribute.is_empty() => {
                let shares = setting.distribute.iter().find(|one| holds(&one.from, here).is_some());
                shares.map_or(Self::Equal, Self::Shares)
            }
            Some(setting) if can_prefer_near => Self::NearFirst(Some(setting)),
            Some(_) => Self::Equal,
        }
    }
}

/// Returns the distance of a member from a client in locality `here`; 0 is nearest. A `remote`
/// member is behind a gateway of another network.
pub(super) fn distance(
    setting: Option<&LocalitySetting>,
    here: &Locality,
    target: &Locality,
    remote: bool,
) -> u32 {
    let (labels, failover) = match setting {
        Some(setting) => (&*setting.failover_priority, &*setting.failover),
        None => (&[][..], &[][..]),
    };
    let by_region = || {
        let is_failover_target =
            |(from, to): &(String, String)| *from == *here.region && *to == *target.region;
        let same = [
            here.has_same_region(target),
            here.zone == target.zone,
            here.subzone == target.subzone,
        ];
        match same {
            [true, true, true] => 0,
            [true, true, false] => 1,
            [true, false, _] => 2,
            [false, ..] if failover.is_empty() || failover.iter().any(is_failover_target) => 3,
            [false, ..] => 4,
        }
    };
    if labels.is_empty() {
        return by_region();
    }
    let by_labels = by_labels(labels, here, target, remote);
    if failover.is_empty() { by_labels } else { by_labels * 5 + by_region() }
}

/// Returns the distance by labels, where earlier labels take precedence. If the first label is the
/// network, members in other networks are farther than all members in the client's own, and the
/// other labels are compared among them.
fn by_labels(labels: &[PlaceLabel], here: &Locality, target: &Locality, remote: bool) -> u32 {
    let all = u32::try_from(labels.len()).unwrap_or(u32::MAX / 16);
    let matches = |label: &PlaceLabel| {
        let same = |own: &Arc<str>, other: &Arc<str>, value: &Option<Arc<str>>| {
            value.as_ref().unwrap_or(own) == other
        };
        match label {
            PlaceLabel::Network => !remote,
            PlaceLabel::Region(value) => same(&here.region, &target.region, value),
            PlaceLabel::Zone(value) => same(&here.zone, &target.zone, value),
            PlaceLabel::Subzone(value) => same(&here.subzone, &target.subzone, value),
        }
    };
    let mut network_distance = 0;
    for (at, label) in (0_u32..).zip(labels) {
        if matches(label) {
            continue;
        }
        if at == 0 && *label == PlaceLabel::Network {
            network_distance = all;
            continue;
        }
        return network_distance + all - at;
    }
    network_distance
}

/// Distributes each weight among the localities that it covers, in proportion to the weights of
/// their members. Removes localities without a weight.
pub(super) fn distribute(
    shares: &Distribute,
    mut groups: Vec<AssignmentGroup>,
) -> Vec<AssignmentGroup> {
    let share_of = |locality: &Locality| {
        let fitting = shares
            .to
            .iter()
            .filter_map(|(place, share)| Some((holds(place, locality)?, place, *share)));
        // The most specific pattern applies.
        fitting.max_by_key(|(parts, ..)| *parts).map(|(_, place, share)| (place, share))
    };
    let sum =
        |members: &[AssignmentMember]| members.iter().map(|one| u64::from(one.weight)).sum::<u64>();
    let totals: Vec<_> = (groups.iter())
        .filter_map(|group| Some((share_of(&group.locality)?.0, sum(&group.members))))
        .collect();
    groups.retain_mut(|group| {
        let Some((place, share)) = share_of(&group.locality).filter(|(_, share)| *share != 0)
        else {
            return false;
        };
        let total: u64 = totals.iter().filter(|(one, _)| *one == place).map(|(_, sum)| sum).sum();
        let part = (sum(&group.members) * u64::from(share)).div_ceil(total.max(1));
        group.weight = u32::try_from(part.max(1)).ok();
        true
    });
    groups
}

/// Returns the number of parts other than `*` in a pattern `region/zone/subzone` that matches a
/// locality, or `None` if it does not match. `*` matches anything, and omitted parts match too.
fn holds(place: &str, locality: &Locality) -> Option<usize> {
    let own = [&locality.region, &locality.zone, &locality.subzone];
    let mut explicit_parts = 0;
    for (part, own) in place.split('/').zip(own) {
        match part {
            "*" => {}
            part if *part == **own => explicit_parts += 1,
            _ => return None,
        }
    }
    Some(explicit_parts)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::IpAddr;

    use super::*;
    use strait_model::TlsMode;

    fn far(setting: &LocalitySetting, target: &str, remote: bool) -> u32 {
        distance(Some(setting), &Locality::parse("eu/z1/s1"), &Locality::parse(target), remote)
    }

    #[test]
    fn near_localities_come_first_and_failover_selects_regions() {
        let mut setting = LocalitySetting::default();
        let order = ["eu/z1/s1", "eu/z1/s2", "eu/z2/s1", "us/z1/s1", "ap/a/b"];
        assert_eq!(order.map(|target| far(&setting, target, false)), [0, 1, 2, 3, 3]);
        setting.failover = vec![("eu".into(), "us".into()), ("us".into(), "ap".into())];
        assert_eq!(order.map(|target| far(&setting, target, false)), [0, 1, 2, 3, 4]);
        // A zone is part of a region.
        assert_eq!(far(&setting, "us/z1/s1", false), 3);
    }

    #[test]
    fn labels_are_compared_in_order_and_other_networks_are_farthest() {
        use PlaceLabel::{Network, Region, Zone};
        let failover_priority = vec![Network, Region(None), Zone(None)];
        let mut setting = LocalitySetting { failover_priority, ..LocalitySetting::default() };
        let cases = [
            ("eu/z1", false, 0),
            ("eu/z2", false, 1),
            ("us/z1", false, 2),
            ("eu/z1", true, 3),
            ("eu/z2", true, 4),
            ("us/z1", true, 5),
        ];
        for (target, remote, expected) in cases {
            assert_eq!(far(&setting, target, remote), expected, "{target} {remote}");
        }
        // The value replaces the client's own.
        setting.failover_priority = vec![Region(Some("us".into())), Zone(None)];
        assert_eq!(
            ["us/z1", "us/z2", "eu/z1"].map(|target| far(&setting, target, true)),
            [0, 1, 2]
        );
    }

    #[test]
    fn weights_are_distributed_and_localities_without_one_are_omitted() {
        let group = |locality: &str, weights: &[u32]| {
            let member = |(at, weight): (usize, &u32)| AssignmentMember {
                address: IpAddr::from([10, 0, 0, at as u8]),
                additional: None,
                port: 80,
                weight: *weight,
                tls_mode: TlsMode::Istio,
                is_gateway: false,
                origin: 0,
            };
            let locality = Arc::new(Locality::parse(locality));
            let members = weights.iter().enumerate().map(member).collect();
            AssignmentGroup { locality, members, ..AssignmentGroup::default() }
        };
        let to: BTreeMap<String, u32> =
            [("r1/z1/*".into(), 80), ("r1/z2/*".into(), 15), ("r2/*".into(), 5)].into();
        let shares = Distribute { from: "*".into(), to };
        let groups = ["r1/z1/a", "r1/z1/b", "r1/z2/a", "r2/z1/a", "r3/z1/a", "r4/z1/a", "r1/z9/a"];
        let given = distribute(&shares, groups.map(|one| group(one, &[1])).to_vec());
        let found: Vec<_> =
            given.iter().map(|group| (group.locality.to_string(), group.weight)).collect();
        let expected = [("r1/z1/a", 40), ("r1/z1/b", 40), ("r1/z2/a", 15), ("r2/z1/a", 5)];
        assert_eq!(found, expected.map(|(name, weight)| (name.to_owned(), Some(weight))));
        let uneven = distribute(&shares, vec![group("r1/z1/a", &[2, 1]), group("r1/z1/b", &[1])]);
        assert_eq!(uneven.iter().map(|one| one.weight).collect::<Vec<_>>(), [Some(60), Some(20)]);
    }

    #[test]
    fn locality_rule_depends_on_client_locality_and_outlier_detection() {
        use strait_rules::traffic::policy::{LoadBalancing, OutlierDetection};
        let here = Locality::parse("eu/z1/s1");
        let with = |setting: Option<LocalitySetting>, detects: bool| {
            let balancing = |locality| {
                Arc::new(LoadBalancing { locality: Some(locality), ..LoadBalancing::default() })
            };
            ResolvedPolicy {
                load_balancer: setting.map(balancing),
                outlier_detection: detects.then(|| Arc::new(OutlierDetection::default())),
                ..ResolvedPolicy::default()
            }
        };
        let on = LocalitySetting { enabled: true, ..LocalitySetting::default() };
        let off = LocalitySetting::default();
        let to = |from: &str| {
            let distribute = vec![Distribute { from: from.into(), to: BTreeMap::new() }];
            LocalitySetting { distribute, ..on.clone() }
        };
        let kind = |rule: LocalityRule<'_>| match rule {
            LocalityRule::Unspecified => "unsaid",
            LocalityRule::Equal => "alike",
            LocalityRule::Shares(_) => "shares",
            LocalityRule::NearFirst(None) => "near",
            LocalityRule::NearFirst(Some(_)) => "near as said",
        };
        let cases = [
            (with(None, false), "unsaid"),
            (with(None, true), "near"),
            (with(Some(on.clone()), false), "alike"),
            (with(Some(on.clone()), true), "near as said"),
            (with(Some(off.clone()), true), "alike"),
            (with(Some(to("eu/*")), false), "shares"),
            (with(Some(to("*")), true), "shares"),
            (with(Some(to("us/*")), true), "alike"),
        ];
        for (policy, expected) in cases {
            let rule = LocalityRule::of(&policy, false, None, Some(&here));
            assert_eq!(kind(rule), expected, "{policy:?}");
        }
        // A client in an unknown locality.
        let failover_priority = vec![PlaceLabel::Network];
        let by_network = LocalitySetting { failover_priority, ..on.clone() };
        for (policy, expected) in [
            (with(Some(by_network), true), "near as said"),
            (with(Some(to("*")), false), "shares"),
            (with(Some(to("eu/*")), false), "unsaid"),
            (with(Some(on.clone()), true), "unsaid"),
            (with(None, true), "unsaid"),
        ] {
            let rule = LocalityRule::of(&policy, false, None, None);
            assert_eq!(kind(rule), expected, "{policy:?}");
        }
        // The setting of the mesh config has the lowest precedence.
        let (detects, unspecified) = (with(None, true), with(None, false));
        for (policy, prefers, mesh, expected) in [
            (&unspecified, false, Some(&on), "alike"),
            (&unspecified, false, Some(&to("eu/*")), "shares"),
            (&unspecified, true, Some(&to("eu/*")), "unsaid"),
            (&detects, false, Some(&on), "near as said"),
            (&detects, false, Some(&off), "alike"),
            (&detects, true, None, "unsaid"),
            (&with(Some(off.clone()), false), false, Some(&to("eu/*")), "alike"),
        ] {
            let rule = LocalityRule::of(policy, prefers, mesh, Some(&here));
            assert_eq!(kind(rule), expected, "{policy:?} {prefers} {mesh:?}");
        }
    }
}
