//! Random histories of objects, some of them broken: nothing ever lets in what the last good objects keep out, and a
//! long run comes to the same as a fresh start.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::evaluator::{Server, passes};
use super::generator::{random_call, random_policy};
use super::random::as_request;
use super::*;

/// Breaks an object in one of the ways in which people do.
fn broken(random: &mut StdRng, mut object: Value) -> Value {
    match random.random_range(0..6) {
        0 => object["spec"]["action"] = "DENNY".into(),
        1 => object["spec"]["rules"] = "none".into(),
        2 => object["spec"]["selector"] = json!({ "matchLabels": { "app": "w*b" } }),
        3 => object["spec"]["rule"] = json!([]),
        4 => object["spec"] = json!([1]),
        _ => {
            object["spec"]["rules"] =
                json!([{ "when": [{ "key": "nobody.knows", "values": ["1"] }] }]);
        }
    }
    object
}

#[test]
fn no_history_of_objects_ever_widens_access() {
    let server = Server {
        namespace: "shop",
        labels: &[("app", "web")],
        root: ROOT,
        domains: &["mesh.example", "old.example"],
    };
    for seed in 0..1000 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut index = index();
        let (mut stored, mut good) = (BTreeMap::new(), BTreeMap::new());
        for step in 0..10 {
            let name = format!("p{}", random.random_range(0..4));
            // Names are in one namespace each, so that one object comes in the place of another.
            let mut object = random_policy(&mut random, &name);
            object["metadata"]["namespace"] = "shop".into();
            if random.random_bool(0.2) {
                stored.remove(&name);
                good.remove(&name);
            } else if random.random_bool(0.4) && good.contains_key(&name) {
                stored.insert(name, broken(&mut random, object));
            } else {
                good.insert(name.clone(), object.clone());
                stored.insert(name, object);
            }
            let policies = index.hold(stored.values().cloned());
            let last_good: Vec<Value> = good.values().cloned().collect();
            for _ in 0..5 {
                let call = random_call(&mut random);
                let form = if call.is_http { WireForm::Http } else { WireForm::Tcp };
                let found =
                    policies.decides(form, &as_request(&call)).verdict == AccessVerdict::Allow;
                let expected = passes(&last_good, &server, &call);
                assert_eq!(found, expected, "seed {seed}, step {step}: {call:?}");
            }
            let fresh = super::index().hold(good.values().cloned());
            assert_eq!(fresh.namespaces, policies.namespaces, "seed {seed}, step {step}");
        }
    }
}
