use super::*;
use strait_model::ProxyType;
use strait_model::testing::sidecar;

fn cohort(name: &str) -> Cohort {
    Cohort::new(name.into(), 0)
}

/// Returns the indices of the members.
fn members(cohort: &Cohort, all: &[Proxy]) -> Vec<usize> {
    (0..all.len()).filter(|at| cohort.contains(&all[*at])).collect()
}

fn proxies(count: usize) -> Vec<Proxy> {
    let proxy_at = |at: usize| Proxy {
        id: format!("sidecar~10.0.{}.{}~web-{at}.shop~shop.svc", at / 256, at % 256).into(),
        ..sidecar("web.shop", ["east", "west"][at % 2])
    };
    (0..count).map(proxy_at).collect()
}

#[test]
fn cohort_never_exceeds_its_percentage_except_for_the_minimum_of_one() {
    let all = proxies(10_000);
    let counts = (0..=130).chain([199, 200, 201, 999, 1000, 2999, 10_000]);
    for connected in counts {
        // Includes some proxies that are not connected.
        let connected_proxies = &all[..all.len().min(connected + 50)];
        for name in ["a", "b", "0123456789abcdef0123456789abcdef"] {
            let mut last = cohort(name);
            for percent in [1, 5, 25, 50, 99] {
                let next = last.filled(percent, all[..connected].iter());
                let expected = (connected * usize::from(percent) / 100).max(1).min(connected);
                let is_in = members(&next, connected_proxies);
                assert_eq!(is_in.len(), expected, "{percent}% of {connected} by {name}");
                // All members of the smaller cohort remain.
                assert!(
                    members(&last, connected_proxies).iter().all(|at| next.contains(&all[*at])),
                    "{name}"
                );
                last = next;
            }
            let everybody = last.filled(100, all[..connected].iter());
            assert_eq!(members(&everybody, connected_proxies).len(), connected_proxies.len());
        }
    }
}

#[test]
fn five_percent_of_twenty_is_one_for_every_change() {
    let all = proxies(20);
    let mut counts = std::collections::BTreeMap::<usize, usize>::new();
    for change in 0..2000 {
        let is_in = members(&cohort(&change.to_string()).filled(5, all.iter()), &all);
        assert_eq!(is_in.len(), 1, "of change {change}");
        *counts.entry(is_in[0]).or_default() += 1;
    }
    // Each proxy is chosen about equally often.
    assert!(
        counts.len() == 20 && counts.values().all(|count| (50..160).contains(count)),
        "{counts:?}"
    );
}

#[test]
fn later_proxies_are_added_while_there_is_room_and_none_is_removed() {
    let all = proxies(1000);
    let mut share = cohort("a");
    assert!(
        !share.filled(5, [].into_iter()).contains(&all[0]),
        "without connected proxies, the cohort is empty"
    );
    for connected in (0..=1000).step_by(7) {
        let before = members(&share, &all);
        share = share.filled(5, all[..connected].iter());
        let is_in = members(&share, &all);
        assert!(before.iter().all(|at| is_in.contains(at)));
        assert_eq!(is_in.len(), (connected / 20).max(1).min(connected), "of {connected}");
    }
    // Pods are replaced and most disappear: the cohort does not change, though few members
    // are connected.
    let full = share.clone();
    for connected in [&all[900..], &all[..3], &[]] {
        share = share.filled(5, connected.iter());
        assert_eq!(share, full);
    }
}

#[test]
fn membership_depends_only_on_configuration_cluster_and_node() {
    let all = proxies(2000);
    let members_of = |name: &str| members(&cohort(name).filled(50, all.iter()), &all);
    assert_eq!(members_of("a"), members_of("a"));
    // The order differs between changes and does not depend on the order of connections.
    let in_both = members_of("a").iter().filter(|at| members_of("b").contains(at)).count();
    assert!((400..600).contains(&in_both), "{in_both}");
    assert_eq!(members(&cohort("a").filled(50, all.iter().rev()), &all), members_of("a"));
    // Two streams of one proxy count once.
    let twice = cohort("a").filled(50, all.iter().chain(&all));
    assert_eq!(members(&twice, &all), members_of("a"));
    let share = cohort("a").filled(50, all.iter());
    for proxy in &all {
        let back = Proxy {
            labels: [("version".into(), "v2".into())].into_iter().collect(),
            envoy_version: "1.40.0".into(),
            ..proxy.clone()
        };
        assert_eq!(share.contains(&back), share.contains(proxy));
    }
    // The hash has no random seed, so all processes and releases agree.
    let one =
        Proxy { id: "sidecar~10.0.0.1~web.shop~shop.svc".into(), ..sidecar("web.shop", "east") };
    assert_eq!(place("name", &one), PLACED);
}

/// The position of the proxy above. If this number changes, the members of cohorts change, and
/// replicas of two releases disagree.
const PLACED: u64 = 17_331_598_780_481_736_342;

#[test]
fn routers_are_added_last_and_do_not_count() {
    let sidecars = proxies(40);
    let routers: Vec<_> =
        proxies(200).into_iter().map(|it| Proxy { kind: ProxyType::Router, ..it }).collect();
    let share = cohort("a").filled(99, routers.iter());
    assert!(members(&share, &routers).is_empty());
    let share = cohort("a").filled(5, sidecars.iter().chain(&routers));
    assert_eq!(members(&share, &sidecars).len(), 2);
    assert!(members(&share, &routers).is_empty());
    assert_eq!(members(&share.filled(100, [].into_iter()), &routers).len(), 200);
}

#[test]
fn progress_and_members_are_restored_only_for_the_same_configuration() {
    let folder = tempfile::tempdir().expect("a folder");
    let files = RolloutFiles::of(folder.path());
    let all = proxies(400);
    assert_eq!(files.reached(&"a".into()), cohort("a"));
    let share = cohort("a").filled(25, all.iter());
    files.note(&share).expect("written");
    let reached = files.reached(&"a".into());
    assert_eq!((&reached, files.reached(&"b".into())), (&share, cohort("b")));
    assert_eq!(members(&reached, &all).len(), 100);
    // While proxies reconnect one after the other, the cohort does not change.
    for connected in [0, 1, 50, 400] {
        assert_eq!(reached.filled(25, all[..connected].iter()), share);
    }
    // A file in the older format, without the members.
    let path = folder.path().join("rollout.json");
    let old = r#"{"form":"strait rollout 1","next":"a","percent":25}"#;
    std::fs::write(&path, old).expect("written");
    assert_eq!(files.reached(&"a".into()), Cohort::new("a".into(), 25));
    std::fs::write(&path, "{").expect("written");
    assert_eq!(files.reached(&"a".into()), cohort("a"), "a damaged file restarts the rollout");
    files.note(&share).expect("written");
    files.forget();
    assert_eq!(files.reached(&"a".into()), cohort("a"));
}
