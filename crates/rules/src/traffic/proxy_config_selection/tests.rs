use serde_json::{Value, json};

use super::*;
use crate::testing::kind_settings;
use crate::traffic::TrafficIndex;
use strait_model::{Collection, ISTIO_NETWORKING};

/// Returns an index with these objects, given by namespace, name and spec.
fn stored(objects: &[(&str, &str, Value)]) -> TrafficIndex {
    let object = |(at, (namespace, name, spec)): (usize, &(&str, &str, Value))| {
        let key = ObjectKey {
            kind: "ProxyConfig".into(),
            group: ISTIO_NETWORKING.into(),
            namespace: (*namespace).into(),
            name: (*name).into(),
        };
        let created = format!("2026-01-01T00:00:{at:02}Z");
        (key, Arc::new(json!({ "metadata": { "creationTimestamp": created }, "spec": spec })))
    };
    let objects: Collection = objects.iter().enumerate().map(object).collect();
    let mut index = TrafficIndex::new(kind_settings());
    index.apply(&objects);
    index
}

#[test]
fn most_specific_object_applies_to_a_pod_then_the_oldest() {
    let selecting = json!({ "selector": { "matchLabels": { "app": "web" } }, "concurrency": 1 });
    let index = stored(&[
        ("shop", "web", selecting.clone()),
        ("shop", "web-later", selecting),
        ("shop", "all", json!({ "concurrency": 2 })),
        ("root", "mesh", json!({ "concurrency": 3 })),
        (
            "root",
            "odd",
            json!({ "selector": { "matchLabels": { "app": "web" } }, "concurrency": 9 }),
        ),
    ]);
    let concurrency = |namespace: &str, app: &str| -> Vec<u16> {
        let labels = [("app".into(), app.into())].into_iter().collect();
        let levels = for_pod(index.reports(), &"root".into(), &namespace.into(), &labels);
        levels.into_iter().filter_map(|one| one.concurrency).collect()
    };
    assert_eq!(concurrency("shop", "web"), [1, 2, 3]);
    assert_eq!(concurrency("shop", "cart"), [2, 3]);
    assert_eq!(
        concurrency("pay", "web"),
        [3],
        "selectors in the root namespace match only its own pods"
    );
    assert_eq!(concurrency("root", "web"), [9, 3]);
    let named = |name: &str| {
        let mut all = all(index.reports());
        all.find(|one| *one.meta.name == *name).expect("it exists").clone()
    };
    let shadowing = before(index.reports(), &named("web-later")).expect("one is older");
    assert_eq!(&*shadowing.meta.name, "web");
    assert!(before(index.reports(), &named("all")).is_none());
}
