//! Routing while traffic rules change under load: from one version of a service to another by
//! weights, to a subset that is added and from a subset that is removed, together with its route or
//! before it, in both networks.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::kube::{self, Request, pod};
use crate::process::Process;
use crate::rig_check::run_load;
use crate::scenarios::{PROPAGATION, finish, http};
use crate::wait;
use crate::world::{ECHO_PODS, PORTS, World, pod_labels};

/// Two minor versions of Envoy, and both variants of the protocol.
const CLIENTS: [&str; 3] = ["a/client", "a/client-sotw", "a/client-old"];
/// The number of steps from one version to the other.
const STEPS: usize = 100;
/// The subset with all pods of the other network.
const FAR: &str = "far";
/// The number of times that a subset is added and removed.
const ROUNDS: usize = 5;

/// Returns the version of a pod of the echo service. Each cluster has both versions.
pub(crate) fn version(pod: &str) -> &'static str {
    if pod == "echo-1" { "v1" } else { "v2" }
}

/// Returns the [`CLIENTS`] for which this machine has an Envoy.
pub(crate) fn clients(world: &World) -> Vec<&'static str> {
    CLIENTS.into_iter().filter(|key| world.envoys.contains_key(*key)).collect()
}

/// Labels each pod of the echo service with its version.
pub(crate) fn label_versions(world: &World) {
    for (cluster, pods) in ECHO_PODS {
        let labelled = pods.iter().map(|(name, ip)| {
            let mut labels = pod_labels("echo");
            labels["version"] = version(name).into();
            pod("shop", name, "echo", ip, &labels)
        });
        world.apiservers[cluster].apply(&labelled.collect::<Vec<_>>());
    }
}

pub(crate) fn run(world: &mut World) {
    let clients = clients(world);
    label_versions(world);
    let config = &world.apiservers["a"];
    config.apply(&[rule(&["v1", "v2"]), route(&[("v1", 100), ("v2", 0)])]);
    for client in &clients {
        world.wait_for_version(client, "v1");
    }

    let draining = ECHO_PODS.map(|(cluster, _)| world.chains_draining(cluster));
    let loads: Vec<Process> =
        clients.iter().map(|client| world.start_load(client, &http(1))).collect();
    for step in 1..=STEPS {
        let share = step * 100 / STEPS;
        config.apply(&[route(&[("v1", 100 - share), ("v2", share)])]);
    }
    for client in &clients {
        world.wait_for_version(client, "v2");
    }
    for _ in 0..ROUNDS {
        config.apply(&[rule(&["v1", "v2", "also-v1"]), route(&[("also-v1", 100)])]);
        for client in &clients {
            world.wait_for_version(client, "v1");
        }
        config.apply(&[route(&[("v2", 100)]), rule(&["v1", "v2"])]);
        for client in &clients {
            world.wait_for_version(client, "v2");
        }
        // In the wrong order: the subset is removed while all requests are routed to it, and the
        // removal is visible.
        config.apply(&[rule(&["v1"])]);
        world.wait_for_loss("v2");
        config.apply(&[route(&[("v1", 100)])]);
        for client in &clients {
            world.wait_for_version(client, "v1");
        }
        // All pods of the subset are in the other network: its gateway must have the subset before
        // requests are sent to it.
        config.apply(&[rule(&["v1", "v2", FAR]), route(&[(FAR, 100)])]);
        for client in &clients {
            world.wait_for_pods(client, &matching_pods("b"));
        }
        config.apply(&[rule(&["v1", "v2"]), route(&[("v2", 100)])]);
        for client in &clients {
            world.wait_for_version(client, "v2");
        }
    }
    for (load, client) in loads.into_iter().zip(&clients) {
        let answers = finish(load);
        assert_eq!(answers.failures, BTreeMap::new(), "{client}");
        let by: BTreeSet<_> = answers.by.keys().cloned().collect();
        assert_eq!(
            by,
            [matching_pods("v1"), matching_pods("v2")].into_iter().flatten().collect(),
            "{client}"
        );
    }
    assert_eq!(world.complaints(), Vec::<String>::new());
    // Only the filter chains of removed subsets end at a gateway, one for each port.
    let went = (3 * ROUNDS * PORTS.len()) as u64;
    for ((cluster, _), before) in ECHO_PODS.into_iter().zip(draining) {
        let now = world.chains_draining(cluster);
        assert!(now <= before + went, "{cluster}: {before}, then {now}");
    }

    let gone = [rule(&[]), route(&[])].map(|object| Request::delete(&kube::path(&object)));
    world.apiservers["a"].requests(&gone);
    for client in &clients {
        world.wait_for_all_pods(client);
    }
}

/// Returns the names of the pods of a version or of a cluster.
fn matching_pods(wanted: &str) -> BTreeSet<String> {
    let in_cluster = |(cluster, pods): (&str, &[(&str, &str)])| {
        let pods = pods.iter().filter(|(name, _)| version(name) == wanted || cluster == wanted);
        pods.map(|(name, _)| format!("{cluster}/{name}")).collect::<Vec<_>>()
    };
    ECHO_PODS.into_iter().flat_map(in_cluster).collect()
}

pub(crate) fn rule(subsets: &[&str]) -> Value {
    let subset = |name: &&str| match name.trim_start_matches("also-") {
        FAR => json!({ "name": FAR, "labels": { "topology.istio.io/cluster": "b" } }),
        version => json!({ "name": name, "labels": { "version": version } }),
    };
    let subsets: Vec<_> = subsets.iter().map(subset).collect();
    object("DestinationRule", json!({ "host": "echo", "subsets": subsets }))
}

pub(crate) fn route(shares: &[(&str, usize)]) -> Value {
    let to = |(subset, weight): &(&str, usize)| json!({ "destination": { "host": "echo", "subset": subset }, "weight": weight });
    let route: Vec<_> = shares.iter().map(to).collect();
    object("VirtualService", json!({ "hosts": ["echo"], "http": [{ "route": route }] }))
}

fn object(kind: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "networking.istio.io/v1", "kind": kind,
        "metadata": { "name": "echo", "namespace": "shop" }, "spec": spec,
    })
}

impl World {
    /// Returns the number of removed filter chains of a cluster's gateway that still have
    /// connections.
    fn chains_draining(&self, cluster: &str) -> u64 {
        let gateway = self.envoy(&format!("{cluster}/eastwest-1"));
        gateway.stats("listener_manager.total_filter_chains_draining$").values().sum()
    }

    /// Waits until the status of the route reports that a subset is missing.
    fn wait_for_loss(&self, subset: &str) {
        wait::until(PROPAGATION, &format!("{subset} is gone"), || {
            let states = self.strait.try_json("/debug/config?kind=VirtualService&name=echo")?;
            let is_reported = states.to_string().contains(&format!("no subset {subset} any more"));
            if is_reported { Ok(()) } else { Err(states.to_string()) }
        });
    }

    /// Waits until a client reaches exactly the pods of a version, in both networks.
    pub(crate) fn wait_for_version(&self, client: &str, version: &str) {
        self.wait_for_pods(client, &matching_pods(version));
    }

    /// Waits until a client reaches all pods of the echo service.
    pub(crate) fn wait_for_all_pods(&self, client: &str) {
        wait::until(PROPAGATION, &format!("{client} reaches all again"), || {
            let answers = run_load(self.pod(client), &http(100));
            let all = matching_pods("v1").len() + matching_pods("v2").len();
            if answers.by.len() == all { Ok(()) } else { Err(format!("{answers:?}")) }
        });
    }

    fn wait_for_pods(&self, client: &str, pods: &BTreeSet<String>) {
        wait::until(PROPAGATION, &format!("{client} reaches {pods:?}"), || {
            let answers = run_load(self.pod(client), &http(40));
            assert_eq!(answers.failures, BTreeMap::new(), "{client}");
            let by: BTreeSet<_> = answers.by.keys().cloned().collect();
            if by == *pods { Ok(()) } else { Err(format!("{answers:?}")) }
        });
    }
}
