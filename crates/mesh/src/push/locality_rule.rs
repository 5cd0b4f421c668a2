//! Which localities of a service come first, and which shares they have, where the DestinationRule in force says that.
//! (docs/reference/traffic.md, "Localities".)
//!
//! Pure. Says nothing of whether an endpoint is sent.

use std::sync::Arc;

use super::assignment::{AssignmentGroup, AssignmentMember};
use strait_model::Locality;
use strait_model::mesh_config::{Distribute, LocalitySetting, PlaceLabel};
use strait_rules::traffic::policy::ResolvedPolicy;

/// What the rule in force makes of localities, for a client in one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LocalityRule<'a> {
    /// It says nothing, and the service's own wish counts.
    Unsaid,
    /// All are alike.
    Alike,
    /// Each has a share; one that has none is left out.
    Shares(&'a Distribute),
    /// The near ones come first.
    NearFirst(Option<&'a LocalitySetting>),
}

impl<'a> LocalityRule<'a> {
    /// What `policy` makes of localities, for a client that is `here`, if that is known; of what it doesn't say the service's own wish counts,
    /// if it `prefers` some, else what the mesh says. Near ones come first only where outlier detection says which
    /// endpoints fail; else requests would stay with near ones that do. For a client in an unknown place only
    /// `failoverPriority` applies, which may compare networks, and `distribute` from anywhere.
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
        if here.is_some() || needs_no_place { rule } else { Self::Unsaid }
    }

    fn from_place(
        policy: &'a ResolvedPolicy,
        prefers: bool,
        mesh: Option<&'a LocalitySetting>,
        here: &Locality,
    ) -> Self {
        let near_first = policy.outlier_detection.is_some();
        let balancing = policy.load_balancer.as_deref();
        let said = balancing.and_then(|balancing| balancing.locality.as_ref());
        let setting = match said {
            None if prefers => return Self::Unsaid,
            None => mesh,
            said => said,
        };
        match setting {
            None if near_first => Self::NearFirst(None),
            None => Self::Unsaid,
            Some(setting) if !setting.enabled => Self::Alike,
            Some(setting) if !setting.distribute.is_empty() => {
                let shares = setting.distribute.iter().find(|one| holds(&one.from, here).is_some());
                shares.map_or(Self::Alike, Self::Shares)
            }
            Some(setting) if near_first => Self::NearFirst(Some(setting)),
            Some(_) => Self::Alike,
        }
    }
}

/// How far a member is from a client that is `here`; 0 is nearest. It is `remote` behind a gateway of another network.
pub(super) fn distance(
    setting: Option<&LocalitySetting>,
    here: &Locality,
    there: &Locality,
    remote: bool,
) -> u32 {
    let (labels, failover) = match setting {
        Some(setting) => (&*setting.failover_priority, &*setting.failover),
        None => (&[][..], &[][..]),
    };
    let by_region = || {
        let stands_in =
            |(from, to): &(String, String)| *from == *here.region && *to == *there.region;
        let same =
            [here.has_region_of(there), here.zone == there.zone, here.subzone == there.subzone];
        match same {
            [true, true, true] => 0,
            [true, true, false] => 1,
            [true, false, _] => 2,
            [false, ..] if failover.is_empty() || failover.iter().any(stands_in) => 3,
            [false, ..] => 4,
        }
    };
    if labels.is_empty() {
        return by_region();
    }
    let by_labels = by_labels(labels, here, there, remote);
    if failover.is_empty() { by_labels } else { by_labels * 5 + by_region() }
}

/// What is alike in the first of the labels comes before what isn't. Another network comes behind all of the client's own,
/// where that is asked first, and the rest is compared there as well.
fn by_labels(labels: &[PlaceLabel], here: &Locality, there: &Locality, remote: bool) -> u32 {
    let all = u32::try_from(labels.len()).unwrap_or(u32::MAX / 16);
    let is_alike = |label: &PlaceLabel| {
        let same = |own: &Arc<str>, other: &Arc<str>, said: &Option<Arc<str>>| {
            said.as_ref().unwrap_or(own) == other
        };
        match label {
            PlaceLabel::Network => !remote,
            PlaceLabel::Region(said) => same(&here.region, &there.region, said),
            PlaceLabel::Zone(said) => same(&here.zone, &there.zone, said),
            PlaceLabel::Subzone(said) => same(&here.subzone, &there.subzone, said),
        }
    };
    let mut further = 0;
    for (at, label) in (0_u32..).zip(labels) {
        if is_alike(label) {
            continue;
        }
        if at == 0 && *label == PlaceLabel::Network {
            further = all;
            continue;
        }
        return further + all - at;
    }
    further
}

/// Gives each locality its part of the share that it is in, by what its members weigh, and leaves out those in none.
pub(super) fn share_out(
    shares: &Distribute,
    mut groups: Vec<AssignmentGroup>,
) -> Vec<AssignmentGroup> {
    let share_of = |locality: &Locality| {
        let fitting = shares
            .to
            .iter()
            .filter_map(|(place, share)| Some((holds(place, locality)?, place, *share)));
        // The most specific.
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

/// Whether a place, `region/zone/subzone` with `*` for any and for all that follows, holds a locality; and how many parts of
/// it are said.
fn holds(place: &str, locality: &Locality) -> Option<usize> {
    let own = [&locality.region, &locality.zone, &locality.subzone];
    let mut said = 0;
    for (part, own) in place.split('/').zip(own) {
        match part {
            "*" => {}
            part if *part == **own => said += 1,
            _ => return None,
        }
    }
    Some(said)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::IpAddr;

    use super::*;
    use strait_model::TlsMode;

    fn far(setting: &LocalitySetting, there: &str, remote: bool) -> u32 {
        distance(Some(setting), &Locality::parse("eu/z1/s1"), &Locality::parse(there), remote)
    }

    #[test]
    fn near_localities_come_first_and_a_region_may_stand_in_for_another() {
        let mut setting = LocalitySetting::default();
        let order = ["eu/z1/s1", "eu/z1/s2", "eu/z2/s1", "us/z1/s1", "ap/a/b"];
        assert_eq!(order.map(|there| far(&setting, there, false)), [0, 1, 2, 3, 3]);
        setting.failover = vec![("eu".into(), "us".into()), ("us".into(), "ap".into())];
        assert_eq!(order.map(|there| far(&setting, there, false)), [0, 1, 2, 3, 4]);
        // A zone is one of its region.
        assert_eq!(far(&setting, "us/z1/s1", false), 3);
    }

    #[test]
    fn labels_decide_in_their_order_and_another_network_is_behind_all_of_the_own() {
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
        for (there, remote, expected) in cases {
            assert_eq!(far(&setting, there, remote), expected, "{there} {remote}");
        }
        // A value stands in the place of the client's own.
        setting.failover_priority = vec![Region(Some("us".into())), Zone(None)];
        assert_eq!(["us/z1", "us/z2", "eu/z1"].map(|there| far(&setting, there, true)), [0, 1, 2]);
    }

    #[test]
    fn shares_are_split_by_weight_and_localities_in_none_are_left_out() {
        let group = |locality: &str, weights: &[u32]| {
            let member = |(at, weight): (usize, &u32)| AssignmentMember {
                address: IpAddr::from([10, 0, 0, at as u8]),
                additional: None,
                port: 80,
                weight: *weight,
                tls_mode: TlsMode::Istio,
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
        let given = share_out(&shares, groups.map(|one| group(one, &[1])).to_vec());
        let found: Vec<_> =
            given.iter().map(|group| (group.locality.to_string(), group.weight)).collect();
        let expected = [("r1/z1/a", 40), ("r1/z1/b", 40), ("r1/z2/a", 15), ("r2/z1/a", 5)];
        assert_eq!(found, expected.map(|(name, weight)| (name.to_owned(), Some(weight))));
        let uneven = share_out(&shares, vec![group("r1/z1/a", &[2, 1]), group("r1/z1/b", &[1])]);
        assert_eq!(uneven.iter().map(|one| one.weight).collect::<Vec<_>>(), [Some(60), Some(20)]);
    }

    #[test]
    fn what_the_rule_says_depends_on_where_the_client_is_and_on_outlier_detection() {
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
            LocalityRule::Unsaid => "unsaid",
            LocalityRule::Alike => "alike",
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
        // For a client in an unknown place.
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
        // What the mesh says counts last.
        let (detects, says_nothing) = (with(None, true), with(None, false));
        for (policy, prefers, mesh, expected) in [
            (&says_nothing, false, Some(&on), "alike"),
            (&says_nothing, false, Some(&to("eu/*")), "shares"),
            (&says_nothing, true, Some(&to("eu/*")), "unsaid"),
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
