//! Routing while locations change under load: the other network's gateway moves to another machine
//! and back, its cluster is drained and restored, and meanwhile weights shift from one version of a
//! service to another and back.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use serde_json::Value;

use crate::helper::Answers;
use crate::host::Host;
use crate::kube::{Request, path, pod};
use crate::netns::Netns;
use crate::process::Process;
use crate::rig_check::run_load;
use crate::scenarios::{PROPAGATION, finish, http};
use crate::steering::{clients, label_versions, route, rule};
use crate::topology::gateway_address;
use crate::wait;
use crate::world::{Proxy, SYSTEM, World, gateway_service, member_secret, pod_labels};

/// The gateway of the other network, and a second one on another machine: its name, pod address and
/// transit address.
const GATEWAY: &str = "b/eastwest-1";
const OTHER: (&str, &str, &str) = ("eastwest-2", "10.10.0.3", "172.30.0.22");
/// The number of times that the gateway moves there and back, and its cluster is drained.
const ROUNDS: usize = 2;
/// The change of weights per step, in percent.
const STEP: usize = 2;

pub(crate) fn run(world: &mut World, host: &Host) {
    let clients = clients(world);
    label_versions(world);
    world.apiservers["a"].apply(&[rule(&["v1", "v2"]), route(&[("v1", 100), ("v2", 0)])]);
    for client in &clients {
        world.wait_for_version(client, "v1");
    }
    let other = start_other(world, host);
    let other = other.as_str();

    let loads: Vec<Process> =
        clients.iter().map(|client| world.start_load(client, &http(1))).collect();
    let weights = Weights { world, shifted: Cell::new(0) };
    for _ in 0..ROUNDS {
        weights.move_gateway(OTHER.2, [GATEWAY, other]);
        weights.set_mode(Some("drain"));
        for client in &clients {
            weights.wait(client, "no pod in b receives a request", |answers| {
                !answers.by.is_empty() && answers.by.keys().all(|pod| pod.starts_with("a/"))
            });
        }
        weights.set_mode(None);
        for client in &clients {
            weights.wait(client, "b gets requests again", |answers| {
                answers.by.keys().any(|pod| pod.starts_with("b/"))
            });
        }
        weights.move_gateway(gateway_address("b"), [other, GATEWAY]);
    }
    for (load, client) in loads.into_iter().zip(&clients) {
        let answers = finish(load);
        assert_eq!(answers.failures, BTreeMap::new(), "{client}");
        let clusters = answers.by.keys().filter_map(|pod| pod.split_once('/'));
        let clusters: BTreeSet<_> = clusters.map(|(cluster, _)| cluster).collect();
        assert_eq!(clusters, ["a", "b"].into(), "{client}");
    }
    assert_eq!(world.complaints(), Vec::<String>::new());

    world.envoys.remove(other);
    world.pods.remove(other);
    world.apiservers["b"].requests(&[Request::delete(&path(&other_pod()))]);
    let gone = [rule(&[]), route(&[])].map(|object| Request::delete(&path(&object)));
    world.apiservers["a"].requests(&gone);
    world.wait_for_everyone();
}

/// Starts a second gateway of the other network, which receives no traffic yet.
fn start_other(world: &mut World, host: &Host) -> String {
    let (name, ip, address) = OTHER;
    world.apiservers["b"].apply(&[other_pod()]);
    let proxy = Proxy::gateway("b", name, ip);
    let netns: Rc<Netns> = world.topology.gateway_at("b", name, ip, address);
    world.start_proxy(host, &host.envoy, &proxy, netns);
    let key = format!("b/{name}");
    world.envoys.get_mut(&key).expect("just started").wait_until_live(PROPAGATION);
    key
}

fn other_pod() -> Value {
    let (name, ip, _) = OTHER;
    pod(SYSTEM, name, "eastwest", ip, &pod_labels("eastwest"))
}

/// Weights that change during waits.
struct Weights<'a> {
    world: &'a World,
    /// The sum of all steps.
    shifted: Cell<usize>,
}

impl Weights<'_> {
    /// Makes one step, back and forth between the versions.
    fn shift(&self) {
        self.shifted.set(self.shifted.get() + STEP);
        let along = self.shifted.get() % 200;
        let share = if along <= 100 { along } else { 200 - along };
        self.world.apiservers["a"].apply(&[route(&[("v1", 100 - share), ("v2", share)])]);
    }

    /// Waits until the results of a client's requests are as expected. None may fail meanwhile.
    fn wait(&self, client: &str, what: &str, is_there: impl Fn(&Answers) -> bool) {
        wait::until(PROPAGATION, &format!("{client}: {what}"), || {
            self.shift();
            let answers = run_load(self.world.pod(client), &http(40));
            assert_eq!(answers.failures, BTreeMap::new(), "{client}: {what}");
            if is_there(&answers) { Ok(()) } else { Err(format!("{answers:?}")) }
        });
    }

    /// Changes the address of the other network's gateway, and waits until all its connections use
    /// it.
    fn move_gateway(&self, address: &str, [from, to]: [&str; 2]) {
        self.world.apiservers["b"].apply(&[gateway_service("net-b", address)]);
        wait::until(PROPAGATION, &format!("all connections go from {from} to {to}"), || {
            self.shift();
            let open = [from, to].map(|key| self.world.gateway_connections(key));
            if open[0] == 0 && open[1] > 0 { Ok(()) } else { Err(format!("{open:?}")) }
        });
    }

    /// Sets the state of the member's endpoints in its Secret.
    fn set_mode(&self, mode: Option<&str>) {
        let mut secret = member_secret(&self.world.apiservers["b"].reader_kubeconfig());
        if let Some(mode) = mode {
            secret["metadata"]["annotations"]["strait.dev/mode"] = mode.into();
        }
        self.world.apiservers["a"].apply(&[secret]);
    }
}

impl World {
    /// Returns the number of a gateway's connections from other networks.
    fn gateway_connections(&self, key: &str) -> u64 {
        self.envoy(key).stats("_15443.downstream_cx_active$").values().sum()
    }
}
