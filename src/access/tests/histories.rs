//! Random histories of objects, some of them broken, missing, late or in another order: nothing ever lets in what the last
//! good objects keep out, and a long run comes to the same as a fresh start.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
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

/// A PeerAuthentication or a RequestAuthentication of `shop`.
fn random_other(random: &mut StdRng, name: &str) -> Value {
    let mut spec = if random.random_bool(0.6) {
        let modes = ["STRICT", "PERMISSIVE", "DISABLE"];
        json!({ "mtls": { "mode": modes[random.random_range(0..3)] } })
    } else {
        json!({ "jwtRules": [{ "issuer": format!("https://{}", random.random_range(0..3)) }] })
    };
    if random.random_bool(0.5) {
        spec["selector"] = json!({ "matchLabels": { "app": "web" } });
    }
    let kind =
        if spec.get("mtls").is_some() { "PeerAuthentication" } else { "RequestAuthentication" };
    object(kind, "shop", name, spec)
}

/// Breaks one of these in one of the ways in which people do.
fn broken_other(random: &mut StdRng, mut object: Value) -> Value {
    match random.random_range(0..4) {
        0 => object["spec"]["mtls"] = json!({ "mode": "STRIKT" }),
        1 => object["spec"]["jwtRules"] = json!([{ "issuer": "", "jwks": "none" }]),
        2 => object["spec"]["selector"] = json!({ "matchLabels": { "app": "w*b" } }),
        _ => object["spec"] = json!("STRICT"),
    }
    object
}

/// The objects as they are stored, each with whether it can be read; the last good form of each that was read, and what
/// the process has made of them.
struct History {
    random: StdRng,
    stored: BTreeMap<String, (Value, bool)>,
    good: BTreeMap<String, Value>,
    index: AccessIndex,
}

impl History {
    /// One object comes, goes, is edited or broken. Names are of one kind each, so that one object comes in the place of
    /// another.
    fn edit(&mut self) {
        let Self { random, stored, good, .. } = self;
        let name = format!("p{}", random.random_range(0..6));
        let is_policy = name.as_str() < "p4";
        let mut object =
            if is_policy { random_policy(random, &name) } else { random_other(random, &name) };
        let kind = object["kind"].as_str().expect("text").to_owned();
        let name = format!("{kind}/{name}");
        object["metadata"]["namespace"] = "shop".into();
        if random.random_bool(0.2) {
            stored.remove(&name);
        } else if random.random_bool(0.4) && good.contains_key(&name) {
            let broken =
                if is_policy { broken(random, object) } else { broken_other(random, object) };
            stored.insert(name, (broken, false));
        } else {
            stored.insert(name, (object, true));
        }
    }

    /// The process ends, and another begins: of objects that can't be read it remembers what it had written down.
    fn restart(&mut self) {
        let stand_ins = self.index.stand_ins();
        let remembered = self.index.objects_as_remembered(&stand_ins);
        self.index = index();
        self.index.remember(&remembered);
    }

    /// Reads what is stored, in any order.
    fn read(&mut self) -> Arc<AccessPolicies> {
        let Self { stored, good, .. } = self;
        good.retain(|name, _| stored.contains_key(name));
        let readable = stored.iter().filter(|(_, (_, is_good))| *is_good);
        good.extend(readable.map(|(name, (object, _))| (name.clone(), object.clone())));
        let mut objects: Vec<Value> = stored.values().map(|(object, _)| object.clone()).collect();
        objects.shuffle(&mut self.random);
        self.index.hold(objects)
    }
}

impl AccessIndex {
    /// What is written down of what it was given: what stands in for what can't be read in its place.
    fn objects_as_remembered(&self, stand_ins: &[(ObjectJson, ObjectJson)]) -> Collection {
        let of = |(_, object): (_, &ObjectJson)| {
            let stand_in = stand_ins.iter().find(|(broken, _)| broken.place() == object.place());
            stand_in.map_or_else(|| object.clone(), |(_, good)| good.clone())
        };
        self.objects.iter().map(of).collect()
    }
}

#[test]
fn no_history_of_objects_ever_widens_access() {
    let server = Server {
        namespace: "shop",
        labels: &[("app", "web")],
        root: ROOT,
        domains: &["mesh.example", "old.example"],
    };
    let labels = labels(&[("app", "web")]);
    let shop = Namespace::from("shop");
    let subject = AccessSubject { namespace: &shop, labels: &labels, is_known: true };
    for seed in 0..10_000 {
        let mut history = History {
            random: StdRng::seed_from_u64(seed),
            stored: BTreeMap::new(),
            good: BTreeMap::new(),
            index: index(),
        };
        for step in 0..6 {
            // What comes late comes with what is newer, and only the last of it is ever read.
            for _ in 0..history.random.random_range(1..4) {
                history.edit();
            }
            let restarts = step > 0 && history.random.random_bool(0.15);
            if restarts {
                history.restart();
            }
            let policies = history.read();
            let last_good: Vec<Value> = history.good.values().cloned().collect();
            for _ in 0..3 {
                let call = random_call(&mut history.random);
                let form = if call.is_http { WireForm::Http } else { WireForm::Tcp };
                let found =
                    policies.decides(form, &as_request(&call)).verdict == AccessVerdict::Allow;
                let expected = passes(&last_good, &server, &call);
                assert_eq!(found, expected, "seed {seed}, step {step}: {call:?}");
            }
            let fresh = index().hold(last_good);
            assert_eq!(fresh.namespaces, policies.namespaces, "seed {seed}, step {step}");
            assert_eq!(fresh.modes(subject), policies.modes(subject), "seed {seed}, step {step}");
        }
    }
}
