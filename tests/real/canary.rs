//! Routing while a canary tool shifts traffic under load, with the objects that Flagger and Argo
//! Rollouts write: a VirtualService with two hosts or two subsets, and an HTTPRoute with two
//! backends. The tools patch the weights in place. No request may fail.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::kube::{self, Request, endpoint_slice, pod, service};
use crate::process::Process;
use crate::scenarios::{finish, http};
use crate::steering::{clients, version};
use crate::world::{ECHO_PODS, PORTS, World, pod_labels, vip};

/// Label by which Argo Rollouts distinguishes the pods of two ReplicaSets.
const HASH: &str = "rollouts-pod-template-hash";
/// Duration of the load in seconds, which is longer than the changes.
const LOAD_SECONDS: u64 = 20;
/// Number of patches from one version to the other.
const STEPS: usize = 20;

pub(crate) fn run(world: &mut World) {
    label_pods(world);
    for (cluster, pods) in ECHO_PODS {
        world.apiservers[cluster].apply(&versioned_services(cluster, pods));
    }
    let flagger = Canary {
        route: virtual_service(json!({
            "gateways": ["mesh"], "hosts": ["echo"], "http": [{ "route": hosts(100) }],
        })),
        others: ["echo-primary", "echo-canary"]
            .map(|host| destination_rule(host, json!({ "host": host })))
            .into(),
        weights: |primary| json!({ "http": [{ "route": hosts(primary) }] }),
        promote: |_| {},
    };
    let argo = Canary {
        route: virtual_service(json!({
            "hosts": ["echo"], "http": [{ "name": "primary", "route": subsets(100) }],
        })),
        others: vec![argo_subsets("v1", "v2")],
        weights: |stable| json!({ "http": [{ "name": "primary", "route": subsets(stable) }] }),
        // The stable subset moves to the new pods before it gets its traffic back.
        promote: |world| {
            let rule = argo_subsets("v2", "v2");
            world.apiservers["a"].requests(&[merge_patch(&rule, rule["spec"].clone())]);
        },
    };
    let gateway_api = Canary {
        route: json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
            "metadata": { "name": "echo", "namespace": "shop" },
            "spec": {
                "parentRefs": [{ "group": "", "kind": "Service", "name": "echo", "port": 80 }],
                "rules": rules(100),
            },
        }),
        others: Vec::new(),
        weights: |primary| json!({ "rules": rules(primary) }),
        promote: |_| {},
    };
    flagger.shift(world, "v1");
    argo.shift(world, "v2");
    gateway_api.shift(world, "v1");
    for cluster in ECHO_PODS.map(|(cluster, _)| cluster) {
        let gone = versioned_services(cluster, &[]);
        let gone: Vec<Request> =
            gone.iter().map(|object| Request::delete(&kube::path(object))).collect();
        world.apiservers[cluster].requests(&gone);
    }
    assert_eq!(world.complaints(), Vec::<String>::new());
}

/// The objects of one canary tool.
struct Canary {
    /// The object with the weights.
    route: Value,
    others: Vec<Value>,
    /// The fields of `spec` that the tool writes for a weight of the primary version.
    weights: fn(usize) -> Value,
    /// The last step of the tool before the primary gets its traffic back.
    promote: fn(&World),
}

impl Canary {
    /// Shifts all traffic from the primary to the canary and back, under load from every client. At
    /// the end, the version `after` has all traffic.
    fn shift(&self, world: &World, after: &str) {
        let config = &world.apiservers["a"];
        let clients = clients(world);
        config.apply(&self.others);
        config.apply(std::slice::from_ref(&self.route));
        for client in &clients {
            world.wait_for_version(client, "v1");
        }
        let load = |client: &&str| {
            let name = format!("load-canary-{}", client.replace('/', "-"));
            http(1).lasting(LOAD_SECONDS).spawn(world.pod(client), &world.folder, &name)
        };
        let loads: Vec<Process> = clients.iter().map(load).collect();
        for step in 1..=STEPS {
            self.set_weight(world, 100 - step * 100 / STEPS);
        }
        for client in &clients {
            world.wait_for_version(client, "v2");
        }
        (self.promote)(world);
        self.set_weight(world, 100);
        for client in &clients {
            world.wait_for_version(client, after);
        }
        for (load, client) in loads.into_iter().zip(&clients) {
            let answers = finish(load);
            assert_eq!(answers.failures, BTreeMap::new(), "{client}: {}", self.route["kind"]);
            let pods = answers.by.keys().filter_map(|pod| pod.split_once('/'));
            let versions: BTreeSet<_> = pods.map(|(_, pod)| version(pod)).collect();
            assert_eq!(versions, ["v1", "v2"].into(), "{client}: {}", self.route["kind"]);
        }
        let all = std::iter::once(&self.route).chain(&self.others);
        let gone: Vec<Request> = all.map(|object| Request::delete(&kube::path(object))).collect();
        config.requests(&gone);
    }

    fn set_weight(&self, world: &World, primary: usize) {
        let patch = merge_patch(&self.route, (self.weights)(primary));
        world.apiservers["a"].requests(&[patch]);
    }
}

/// Returns the patch of fields of an object's `spec`, as a controller sends it.
fn merge_patch(object: &Value, spec: Value) -> Request {
    Request {
        method: "PATCH".into(),
        path: kube::path(object),
        content_type: Some("application/merge-patch+json".into()),
        body: Some(json!({ "spec": spec })),
    }
}

/// Returns Flagger's routes. Flagger keeps the canary with weight 0.
fn hosts(primary: usize) -> Value {
    json!([
        { "destination": { "host": "echo-primary" }, "weight": primary },
        { "destination": { "host": "echo-canary" }, "weight": 100 - primary },
    ])
}

/// Returns Argo's routes.
fn subsets(stable: usize) -> Value {
    json!([
        { "destination": { "host": "echo", "subset": "stable" }, "weight": stable },
        { "destination": { "host": "echo", "subset": "canary" }, "weight": 100 - stable },
    ])
}

fn rules(primary: usize) -> Value {
    let backend = |name: &str, weight: usize| json!({ "group": "", "kind": "Service", "name": name, "port": 80, "weight": weight });
    json!([{
        "matches": [{ "path": { "type": "PathPrefix", "value": "/" } }],
        "backendRefs": [backend("echo-primary", primary), backend("echo-canary", 100 - primary)],
    }])
}

fn virtual_service(spec: Value) -> Value {
    object("VirtualService", "echo", spec)
}

fn destination_rule(name: &str, spec: Value) -> Value {
    object("DestinationRule", name, spec)
}

/// Returns Argo's DestinationRule, in which Argo sets the hash of each subset.
fn argo_subsets(stable: &str, canary: &str) -> Value {
    let subset =
        |name: &str, hash: &str| json!({ "name": name, "labels": { "app": "echo", (HASH): hash } });
    let subsets = [subset("canary", canary), subset("stable", stable)];
    destination_rule("echo", json!({ "host": "echo", "subsets": subsets }))
}

fn object(kind: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "networking.istio.io/v1", "kind": kind,
        "metadata": { "name": name, "namespace": "shop" }, "spec": spec,
    })
}

/// Labels each pod of the echo service as Argo Rollouts does.
fn label_pods(world: &World) {
    for (cluster, pods) in ECHO_PODS {
        let labelled = pods.iter().map(|(name, ip)| {
            let mut labels = pod_labels("echo");
            labels["version"] = version(name).into();
            labels[HASH] = version(name).into();
            pod("shop", name, "echo", ip, &labels)
        });
        world.apiservers[cluster].apply(&labelled.collect::<Vec<_>>());
    }
}

/// Returns the Services of the primary and the canary pods of a cluster, with their slices.
fn versioned_services(cluster: &str, pods: &[(&str, &str)]) -> Vec<Value> {
    let versions = [("echo-primary", "v1", 20), ("echo-canary", "v2", 21)];
    let versioned = |(name, own, last): (&str, &str, u8)| {
        let mut service = service("shop", name, &vip(cluster, last), &PORTS);
        service["spec"]["selector"] = json!({ "app": "echo", "version": own });
        let pods = pods.iter().filter(|(pod, _)| version(pod) == own);
        let pods: Vec<_> =
            pods.map(|(pod, ip)| ((*pod).to_owned(), (*ip).to_owned(), true)).collect();
        let slice = endpoint_slice(&service, &pods);
        [service, slice]
    };
    versions.into_iter().flat_map(versioned).collect()
}
