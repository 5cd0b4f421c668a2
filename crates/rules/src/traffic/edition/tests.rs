//! Tests of the configuration for proxies of a cluster with its own traffic objects.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use super::*;
use crate::testing::kind_settings;
use crate::traffic::{HostPattern, Selection};

fn object(kind: &str, name: &str, age: u32, spec: Value) -> Value {
    json!({
        "apiVersion": "networking.istio.io/v1",
        "kind": kind,
        "metadata": {
            "namespace": "shop",
            "name": name,
            "creationTimestamp": format!("2026-01-01T00:00:{age:02}Z"),
        },
        "spec": spec,
    })
}

/// Returns a VirtualService for `host` that routes to `to`.
fn leading(name: &str, age: u32, host: &str, to: &str) -> Value {
    let route = json!([{"route": [{"destination": {"host": to}}]}]);
    object("VirtualService", name, age, json!({"hosts": [host], "http": route}))
}

fn all(objects: &[Value]) -> Collection {
    objects.iter().cloned().map(Arc::new).collect()
}

fn shared(objects: &[Value]) -> TrafficIndex {
    let mut index = TrafficIndex::new(kind_settings());
    index.apply(&all(objects));
    index
}

/// Returns the first destination of requests for the host `web`, for a proxy of its namespace.
fn first_destination(traffic: &Traffic) -> Option<String> {
    let host = HostPattern::for_service(&"web.shop.svc.cluster.local".into());
    let namespace = "shop".into();
    let first = traffic.routed_for_host(&host, &namespace, &Selection::default()).next()?;
    first.destinations().next().map(|to| to.host.to_string())
}

#[test]
fn objects_of_a_cluster_apply_only_to_its_proxies() {
    let shared = shared(&[leading("other", 0, "db", "db-2")]);
    let edition =
        EditionIndex::new("east".into(), &shared, &all(&[leading("web", 5, "web", "web-2")]));
    assert_eq!(
        first_destination(edition.traffic()).as_deref(),
        Some("web-2.shop.svc.cluster.local")
    );
    assert_eq!(first_destination(shared.traffic()), None);
    assert_eq!(edition.traffic().virtual_services.hosts().count(), 2);
    let counting: Vec<_> = edition.reports().map(|(key, _)| key.to_string()).collect();
    assert_eq!(counting, ["VirtualService shop/web"]);
}

#[test]
fn shared_object_replaces_the_object_of_a_cluster_with_the_same_name() {
    let own = all(&[leading("web", 0, "web", "web-own")]);
    let mut shared = shared(&[leading("web", 9, "web", "web-shared")]);
    let mut edition = EditionIndex::new("east".into(), &shared, &own);
    assert_eq!(
        first_destination(edition.traffic()).as_deref(),
        Some("web-shared.shop.svc.cluster.local")
    );
    assert_eq!(edition.reports().count(), 0);
    // An invalid shared object keeps its last valid version. Even without one, it hides the
    // cluster's object of that name.
    let bad = object("VirtualService", "web", 9, json!({"hosts": 7}));
    shared.apply(&all(std::slice::from_ref(&bad)));
    edition.refresh(&shared, &own);
    assert_eq!(
        first_destination(edition.traffic()).as_deref(),
        Some("web-shared.shop.svc.cluster.local")
    );
    let mut replaced = TrafficIndex::new(kind_settings());
    replaced.apply(&all(&[bad]));
    edition.refresh(&replaced, &own);
    assert_eq!(
        first_destination(EditionIndex::new("east".into(), &replaced, &own).traffic()),
        None
    );
    // Without the shared object, that of the cluster applies.
    shared.apply(&Collection::default());
    let update = edition.refresh(&shared, &own).expect("another rule");
    assert_eq!(
        first_destination(&update.traffic).as_deref(),
        Some("web-own.shop.svc.cluster.local")
    );
    assert!(update.changes.hosts.iter().all(|host| host.to_string().starts_with("web.")));
}

#[test]
fn older_object_of_a_host_applies_in_either_store() {
    for (own_age, to) in [(1, "web-own"), (9, "web-shared")] {
        let shared = shared(&[leading("a", 5, "web", "web-shared")]);
        let own = all(&[leading("b", own_age, "web", "web-own")]);
        let edition = EditionIndex::new("east".into(), &shared, &own);
        let expected = format!("{to}.shop.svc.cluster.local");
        assert_eq!(first_destination(edition.traffic()), Some(expected), "{own_age}");
    }
}

#[test]
fn object_of_a_cluster_keeps_only_its_own_last_valid_version() {
    let shared_has = shared(&[leading("web", 1, "web", "web-shared")]);
    let empty = shared(&[]);
    let bad = all(&[object("VirtualService", "web", 0, json!({"hosts": 7}))]);
    let good = all(&[leading("web", 0, "web", "web-own")]);
    let mut edition = EditionIndex::new("east".into(), &empty, &good);
    assert!(edition.refresh(&empty, &bad).is_none(), "its last valid version stays");
    assert!(edition.take_new_reasons().iter().any(|(key, _)| &*key.name == "web"));
    assert_eq!(
        first_destination(edition.traffic()).as_deref(),
        Some("web-own.shop.svc.cluster.local")
    );
    // It stays active if a setting changes that requires parsing all objects again.
    let mut settings = kind_settings();
    settings.virtual_services_export_to = vec![".".to_owned()];
    let mut reconfigured = shared(&[]);
    reconfigured.set(settings);
    let update = edition.refresh(&reconfigured, &bad).expect("all objects are parsed again");
    assert_eq!(
        first_destination(&update.traffic).as_deref(),
        Some("web-own.shop.svc.cluster.local")
    );
    assert!(edition.reports().all(|(_, report)| report.state.refused), "it is reported");
    // The shared object with that name is not an earlier version of it.
    let mut edition = EditionIndex::new("east".into(), &shared_has, &Collection::default());
    edition.refresh(&empty, &bad);
    assert_eq!(first_destination(edition.traffic()), None);
}

#[test]
fn causes_contain_the_cluster_of_a_changed_object() {
    let empty = shared(&[]);
    let mut edition = EditionIndex::new("east".into(), &empty, &Collection::default());
    let update = edition.refresh(&empty, &all(&[leading("web", 0, "web", "db")]));
    let causes = format!("{:?}", update.expect("a change").causes);
    assert!(causes.contains("east") && causes.contains("web"), "{causes}");
    let own = edition.own().clone();
    let update = edition.refresh(&shared(&[leading("db", 0, "db", "web")]), &own);
    let causes = format!("{:?}", update.expect("a change").causes);
    assert!(!causes.contains("east"), "{causes}");
}

/// The result of a history equals that of a new index with the final objects of both stores.
#[test]
fn edition_equals_an_index_of_both_stores() {
    let random = &mut StdRng::seed_from_u64(7);
    let random_object = |random: &mut StdRng| {
        let name = format!("o{}", random.random_range(0..5));
        let age = random.random_range(0..20);
        let (host, to) = (["web", "db"][age as usize % 2], format!("t{}", age % 7));
        match random.random_range(0..4) {
            0 => object(
                "DestinationRule",
                &name,
                age,
                json!({"host": host, "subsets": [{"name": to}]}),
            ),
            1 => {
                let egress = json!([{"hosts": [format!("./{host}.shop.svc.cluster.local")]}]);
                object("Sidecar", &name, age, json!({"egress": egress}))
            }
            _ => leading(&name, age, host, &to),
        }
    };
    let some = |random: &mut StdRng| {
        let count = random.random_range(0..6);
        all(&(0..count).map(|_| random_object(random)).collect::<Vec<_>>())
    };
    let mut shared = shared(&[]);
    let mut edition = EditionIndex::new("east".into(), &shared, &Collection::default());
    let (mut changed, mut own) = (0, Collection::default());
    for step in 0..400 {
        if random.random_ratio(1, 2) {
            shared.apply(&some(random));
        } else {
            own = some(random);
        }
        let before = edition.traffic().clone();
        let update = edition.refresh(&shared, &own);
        changed += usize::from(update.is_some());
        let mut both = shared.counting().clone();
        own.iter()
            .filter(|(key, _)| shared.counting().get(key).is_none())
            .for_each(|(key, object)| both.insert(key.clone(), object.clone()));
        let mut fresh = TrafficIndex::new(kind_settings());
        fresh.apply(&both);
        let [now, expected] = [edition.traffic(), fresh.traffic()];
        let rules = [now, expected].map(|traffic| {
            let rules = &traffic.destination_rules;
            let with_rules = |host: HostPattern| (rules.for_pattern(&host).to_vec(), host);
            rules.hosts().map(with_rules).collect::<Vec<_>>()
        });
        assert_eq!(rules[0], rules[1], "step {step}");
        assert!(now.virtual_services == expected.virtual_services, "step {step}");
        // The root namespace is known only after the first Sidecar.
        assert!(now.sidecars.same_in(&expected.sidecars, &"shop".into()), "step {step}");
        assert!(update.is_some() || before == *now, "step {step}");
    }
    assert!(changed > 100);
}
