use super::*;
use crate::fixtures::sidecar;

fn cohort(name: &str, percent: u8) -> Cohort {
    Cohort { name: name.into(), percent }
}

fn proxies(count: usize) -> Vec<Proxy> {
    let of = |at: usize| Proxy {
        id: format!("sidecar~10.0.{}.{}~web-{at}.shop~shop.svc", at / 256, at % 256).into(),
        ..sidecar("web.shop", ["east", "west"][at % 2])
    };
    (0..count).map(of).collect()
}

#[test]
fn a_share_has_as_many_proxies_as_chance_allows() {
    let all = proxies(10_000);
    for name in ["a", "b", "0123456789abcdef0123456789abcdef"] {
        for percent in [1, 5, 25, 50, 99] {
            let cohort = cohort(name, percent);
            let count = all.iter().filter(|proxy| cohort.contains(proxy)).count();
            let part = f64::from(percent) / 100.0;
            let mean = 10_000.0 * part;
            // Five standard deviations of a binomial distribution: one in two million beyond.
            let most = 5.0 * (10_000.0 * part * (1.0 - part)).sqrt();
            let off = (count as f64 - mean).abs();
            assert!(off <= most, "{percent}% of {name}: {count}");
        }
    }
}

#[test]
fn whoever_is_in_a_share_is_in_every_larger_one() {
    for proxy in proxies(500) {
        let shares = (1..=100).map(|percent| cohort("a", percent).contains(&proxy));
        assert!(shares.is_sorted(), "{}", proxy.id);
        assert!(!cohort("a", 0).contains(&proxy) && cohort("a", 100).contains(&proxy));
    }
}

#[test]
fn it_goes_by_the_configuration_the_cluster_and_the_node_and_by_nothing_else() {
    let all = proxies(2000);
    let who = |name: &str| -> Vec<bool> {
        let cohort = cohort(name, 50);
        all.iter().map(|proxy| cohort.contains(proxy)).collect()
    };
    assert_eq!(who("a"), who("a"));
    // Others are the first of another change.
    let same = who("a").into_iter().zip(who("b")).filter(|(a, b)| a == b).count();
    assert!((800..1200).contains(&same), "{same}");
    for proxy in &all {
        let back = Proxy {
            labels: [("version".into(), "v2".into())].into_iter().collect(),
            envoy_version: "1.40.0".into(),
            ..proxy.clone()
        };
        let in_share = cohort("a", 50).contains(proxy);
        assert_eq!(cohort("a", 50).contains(&back), in_share);
    }
    // Of every process and every version of this program: no seed is in it.
    let of = |at: usize| place("a", all[at].cluster.as_str(), &all[at].id);
    assert_eq!([of(0), of(1), of(2)], [of(0), of(1), of(2)]);
    assert_eq!(place("name", "east", "sidecar~10.0.0.1~web.shop~shop.svc"), PLACED);
}

/// Where the proxy above stands. A change of this number is a change of who is in which share: replicas of two versions would
/// disagree.
const PLACED: u64 = 42;

#[test]
fn routers_come_last() {
    for proxy in proxies(200) {
        let router = Proxy { kind: ProxyType::Router, ..proxy };
        assert!(!cohort("a", 99).contains(&router) && cohort("a", 100).contains(&router));
    }
}

#[test]
fn how_far_one_was_is_known_of_that_one_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let files = RolloutFiles::of(folder.path());
    assert_eq!(files.reached(&"a".into()), 0);
    files.note("a", 25).expect("written");
    assert_eq!((files.reached(&"a".into()), files.reached(&"b".into())), (25, 0));
    std::fs::write(folder.path().join("rollout.json"), "{").expect("written");
    assert_eq!(files.reached(&"a".into()), 0, "what can't be told begins anew");
    files.note("a", 5).expect("written");
    files.forget();
    assert_eq!(files.reached(&"a".into()), 0);
}
