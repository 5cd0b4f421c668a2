use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};

use super::DnsSettings;
use super::plan::{DnsWrite, PresentRecords, plan};
use strait_model::{ClusterId, DnsHosts, DnsMode, DnsTarget};

fn settings(mode: DnsMode) -> DnsSettings {
    DnsSettings {
        namespace: "dns".into(),
        clusterset: "default".into(),
        mode,
        provider_key: "aws/weight".into(),
    }
}

/// Returns one host with these clusters: addresses and ready routers.
fn hosts(host: &str, targets: &[(&str, &[&str], usize)]) -> DnsHosts {
    let targets = targets.iter().map(|(id, addresses, ready)| {
        let addresses = addresses.iter().map(|one| (*one).into()).collect();
        (ClusterId::from(*id), DnsTarget { addresses, ready: *ready })
    });
    let hosts = BTreeMap::from([(host.into(), targets.collect())]);
    DnsHosts { hosts, ..DnsHosts::default() }
}

/// The objects of an API server.
#[derive(Default)]
struct Store(BTreeMap<String, Value>);

impl Store {
    /// Carries out the plan. Returns the number of writes.
    fn follow(&mut self, wanted: &DnsHosts, mode: DnsMode) -> usize {
        let writes = self.plan(wanted, mode);
        for write in &writes {
            match write {
                DnsWrite::Apply { name, body, .. } => {
                    let mut body = body.clone();
                    body["metadata"]["uid"] = json!(format!("uid-{name}"));
                    body["metadata"]["resourceVersion"] = json!("1");
                    self.0.insert(name.clone(), body);
                }
                DnsWrite::Delete { name, uid, version, .. } => {
                    let found = self.0.remove(name).expect("it exists");
                    let metadata = &found["metadata"];
                    assert_eq!(
                        (&metadata["uid"], &metadata["resourceVersion"]),
                        (&json!(uid), &json!(version))
                    );
                }
            }
        }
        writes.len()
    }

    fn plan(&self, wanted: &DnsHosts, mode: DnsMode) -> Vec<DnsWrite> {
        let list = json!({ "items": self.0.values().collect::<Vec<_>>() });
        plan(wanted, &PresentRecords::read(&list, "default"), &settings(mode))
    }

    /// Returns the records of the only object: type, set, weight and targets.
    fn records(&self) -> Vec<String> {
        let object = self.0.values().next().expect("an object");
        let sets = object["spec"]["endpoints"].as_array().expect("a list").iter();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let sets = sets.map(|set| {
            let targets: Vec<_> =
                set["targets"].as_array().expect("a list").iter().map(text).collect();
            let of = [
                text(&set["recordType"]),
                text(&set["setIdentifier"]),
                text(&set["providerSpecific"][0]["value"]),
            ];
            format!("{} {}", of.join(" "), targets.join(","))
        });
        sets.collect()
    }
}

const WEB: &str = "web.shop.example";

#[test]
fn records_have_the_addresses_of_all_clusters_or_a_weighted_set_for_each() {
    let wanted =
        hosts(WEB, &[("east", &["192.0.2.1", "2001:db8::1"], 3), ("west", &["192.0.2.2"], 1)]);
    let mut store = Store::default();
    assert_eq!(store.follow(&wanted, DnsMode::Simple), 1);
    assert_eq!(store.records(), ["A   192.0.2.1,192.0.2.2", "AAAA   2001:db8::1"]);
    let object = store.0.values().next().expect("an object").clone();
    let name = object["metadata"]["name"].as_str().expect("a name");
    assert!(name.starts_with("strait-") && name.len() == "strait-".len() + 10, "{name}");
    let endpoint = &object["spec"]["endpoints"][0];
    assert_eq!((&endpoint["dnsName"], &endpoint["recordTTL"]), (&json!(WEB), &json!(60)));
    assert_eq!(store.follow(&wanted, DnsMode::Simple), 0, "a second look writes nothing");
    assert_eq!(store.follow(&wanted, DnsMode::Weighted), 1);
    let weighted = ["A east 3 192.0.2.1", "AAAA east 3 2001:db8::1", "A west 1 192.0.2.2"];
    assert_eq!(store.records(), weighted);
    assert_eq!(store.follow(&wanted, DnsMode::Weighted), 0);
    let more =
        hosts(WEB, &[("east", &["192.0.2.1", "2001:db8::1"], 9), ("west", &["192.0.2.2"], 1)]);
    assert_eq!(store.follow(&more, DnsMode::Weighted), 1, "the weight has changed");
}

#[test]
fn simple_records_do_not_change_with_the_number_of_routers() {
    let mut store = Store::default();
    assert_eq!(store.follow(&hosts(WEB, &[("east", &["192.0.2.1"], 3)]), DnsMode::Simple), 1);
    assert_eq!(store.follow(&hosts(WEB, &[("east", &["192.0.2.1"], 2)]), DnsMode::Simple), 0);
}

#[test]
fn name_becomes_an_alias_only_if_it_is_the_only_address() {
    let mut store = Store::default();
    store.follow(&hosts(WEB, &[("east", &["lb.east.example"], 1)]), DnsMode::Simple);
    assert_eq!(store.records(), ["CNAME   lb.east.example"]);
    let mixed = hosts(WEB, &[("east", &["lb.east.example"], 1), ("west", &["192.0.2.2"], 1)]);
    store.follow(&mixed, DnsMode::Simple);
    assert_eq!(store.records(), ["A   192.0.2.2"]);
    store.follow(&mixed, DnsMode::Weighted);
    assert_eq!(store.records(), ["CNAME east 1 lb.east.example", "A west 1 192.0.2.2"]);
}

#[test]
fn records_are_deleted_only_if_the_host_is_no_longer_configured() {
    let mut store = Store::default();
    let both = hosts(WEB, &[("east", &["192.0.2.1"], 1), ("west", &["192.0.2.2"], 1)]);
    store.follow(&both, DnsMode::Simple);
    let full = store.records();

    // No router is ready: the last records stay.
    assert_eq!(store.follow(&hosts(WEB, &[]), DnsMode::Simple), 0);
    // Neither cluster has been read since a restart.
    let unknown = DnsHosts { unknown: ["east".into(), "west".into()].into(), ..hosts(WEB, &[]) };
    assert_eq!(store.follow(&unknown, DnsMode::Simple), 0);
    // One of them has not been read.
    let half = hosts(WEB, &[("west", &["192.0.2.2"], 1)]);
    let half = DnsHosts { unknown: ["east".into()].into(), ..half };
    assert_eq!(store.follow(&half, DnsMode::Simple), 0);
    assert_eq!(store.records(), full);
    // It has been read, and has no ready router.
    let west = hosts(WEB, &[("west", &["192.0.2.2"], 1)]);
    assert_eq!(store.follow(&west, DnsMode::Simple), 1);
    assert_eq!(store.records(), ["A   192.0.2.2"]);
    // The host is no longer configured.
    assert_eq!(store.follow(&DnsHosts::default(), DnsMode::Simple), 1);
    assert!(store.0.is_empty());
}

#[test]
fn objects_of_others_are_neither_changed_nor_deleted() {
    let wanted = hosts(WEB, &[("east", &["192.0.2.1"], 1)]);
    let mut store = Store::default();
    store.follow(&wanted, DnsMode::Simple);
    for labels in [
        json!(null),
        json!({ "app.kubernetes.io/managed-by": "strait", "strait.dev/clusterset": "other" }),
        json!({ "app.kubernetes.io/managed-by": "helm", "strait.dev/clusterset": "default" }),
    ] {
        let object = store.0.values_mut().next().expect("an object");
        object["metadata"]["labels"] = labels.clone();
        object["spec"] = json!({ "endpoints": [] });
        assert_eq!(store.plan(&wanted, DnsMode::Simple), [], "{labels}");
        assert_eq!(store.plan(&DnsHosts::default(), DnsMode::Simple), [], "{labels}");
    }
}

/// For random sequences of hosts, clusters that fail and come back, the objects equal those that a
/// naive calculation expects.
#[test]
fn objects_follow_any_sequence_of_hosts_and_clusters() {
    for seed in 0..200 {
        let mut random = StdRng::seed_from_u64(seed);
        let (mut store, mut expected) =
            (Store::default(), BTreeMap::<String, BTreeMap<&str, String>>::new());
        for _ in 0..20 {
            let mut wanted = DnsHosts::default();
            for id in ["east", "west"] {
                if random.random_ratio(1, 4) {
                    wanted.unknown.insert(id.into());
                }
            }
            for host in ["a.example", "b.example", "c.example"] {
                if random.random_ratio(1, 4) {
                    expected.remove(host);
                    continue;
                }
                let mut now = BTreeMap::new();
                let targets = wanted.hosts.entry(host.into()).or_default();
                for id in ["east", "west"] {
                    if wanted.unknown.contains(&ClusterId::from(id)) || random.random_ratio(1, 3) {
                        continue;
                    }
                    let address = format!("192.0.2.{}", random.random_range(1..4));
                    let addresses = [address.as_str().into()].into();
                    targets.insert(id.into(), DnsTarget { addresses, ready: 1 });
                    now.insert(id, address);
                }
                if let Some(before) = expected.get(host) {
                    for (id, address) in before {
                        if wanted.unknown.contains(&ClusterId::from(*id)) {
                            now.insert(id, address.clone());
                        }
                    }
                }
                if !now.is_empty() {
                    expected.insert(host.to_owned(), now);
                }
            }
            store.follow(&wanted, DnsMode::Weighted);
            assert_eq!(store.follow(&wanted, DnsMode::Weighted), 0, "seed {seed}: it is stable");
            let mut found = BTreeMap::<String, BTreeMap<&str, String>>::new();
            for object in store.0.values() {
                for set in object["spec"]["endpoints"].as_array().expect("a list") {
                    let id = if set["setIdentifier"] == "east" { "east" } else { "west" };
                    let host = set["dnsName"].as_str().expect("a name").to_owned();
                    let address = set["targets"][0].as_str().expect("an address").to_owned();
                    found.entry(host).or_default().insert(id, address);
                }
            }
            assert_eq!(found, expected, "seed {seed}");
        }
    }
}
