//! Connections while workloads start and stop accepting mTLS: by the label of a pod, by the label
//! of a WorkloadEntry, and in a whole locality at once. One pod has no proxy, so mTLS to it by
//! mistake loses a request.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::helper::Load;
use crate::host::Host;
use crate::kube::{Request, endpoint_slice, pod, service};
use crate::process::Process;
use crate::rig_check::{echo, run_load};
use crate::scenarios::{PROPAGATION, finish};
use crate::wait;
use crate::world::{PORTS, World, vip};

const HOST: &str = "modes.shop.svc.cluster.local";
const POD_1: &str = "modes-1";
const POD_2: &str = "modes-2";
const MACHINE: &str = "modes-machine";
/// The workloads behind a sidecar, which accepts both mTLS and plain text.
const BOTH: [(&str, &str); 3] =
    [(POD_1, "10.10.1.21"), (POD_2, "10.10.1.22"), (MACHINE, "10.10.1.24")];
/// The pod without a proxy.
const PLAIN: (&str, &str) = ("modes-plain", "10.10.1.23");
/// Two minor versions, and both variants of the protocol.
const CLIENTS: [&str; 3] = ["a/client", "a/client-sotw", "a/client-old"];

/// Whether each of [`BOTH`] accepts mTLS.
type Modes = BTreeMap<&'static str, bool>;

pub(crate) fn run(world: &mut World, host: &Host) {
    let clients: Vec<&str> =
        CLIENTS.into_iter().filter(|key| world.envoys.contains_key(*key)).collect();
    let mut modes: Modes = BOTH.iter().map(|(name, _)| (*name, false)).collect();
    for (name, ip) in BOTH {
        world.start_sidecar(host, "a", name, "modes", ip, "delta");
        world.start_echo(host, "a", name);
    }
    let (name, ip) = PLAIN;
    let plain = world.topology.stranger("a", name, ip);
    let _echo = echo(host, &plain, name, "a");
    world.apiservers["a"].apply(&objects(&modes));
    for (name, _) in BOTH {
        let envoy = world.envoys.get_mut(&format!("a/{name}")).expect("just started");
        envoy.wait_until_live(PROPAGATION);
    }
    for client in &clients {
        world.wait_for_listener(client);
        wait::until(PROPAGATION, &format!("{client} reaches all"), || {
            let answers = run_load(world.pod(client), &tcp().many(60));
            if answers.by.len() == BOTH.len() + 1 { Ok(()) } else { Err(format!("{answers:?}")) }
        });
    }
    world.wait_for_modes(&modes);

    let loads: Vec<Process> = clients
        .iter()
        .flat_map(|client| [tcp(), http()].map(|load| world.start_load(client, &load)))
        .collect();
    let changes: [&[&str]; 3] = [&[POD_1], &[MACHINE], &[POD_1, POD_2, MACHINE]];
    for names in changes {
        for takes_it in [true, false, true, false] {
            names.iter().for_each(|name| _ = modes.insert(name, takes_it));
            world.apiservers["a"].apply(&objects(&modes));
            world.wait_for_modes(&modes);
        }
    }
    for (at, load) in loads.into_iter().enumerate() {
        let answers = finish(load);
        let client = clients[at / 2];
        assert_eq!(answers.failures, BTreeMap::new(), "{client}");
        assert!(
            answers.by.len() == BOTH.len() + 1 && answers.requests > 100,
            "{client} {answers:?}"
        );
    }
    assert_eq!(world.complaints(), Vec::<String>::new());

    let gone = objects(&modes);
    let gone: Vec<_> =
        gone.iter().map(|object| Request::delete(&crate::kube::path(object))).collect();
    world.apiservers["a"].requests(&gone);
    for (name, _) in BOTH {
        world.envoys.remove(&format!("a/{name}"));
    }
}

fn tcp() -> Load {
    Load::tcp(&format!("{}:9000", vip("a", 13)), 1)
}

fn http() -> Load {
    Load::http(&format!("{}:80", vip("a", 13)), HOST, 1)
}

/// Returns the service, its pods and its machine. All except the pod without a proxy are in one
/// locality.
fn objects(modes: &Modes) -> Vec<Value> {
    let service = service("shop", "modes", &vip("a", 13), &PORTS);
    let labels = |name: &str, zone: &str| {
        let mode = if modes.get(name) == Some(&true) { "istio" } else { "disabled" };
        json!({ "app": "modes", "istio-locality": zone, "security.istio.io/tlsMode": mode })
    };
    let pods = BOTH.iter().filter(|(name, _)| *name != MACHINE).chain([&PLAIN]);
    let zone = |name: &str| if name == PLAIN.0 { "region.far" } else { "region.near" };
    let pods: Vec<_> = pods.collect();
    let endpoints: Vec<_> =
        pods.iter().map(|(name, ip)| ((*name).to_owned(), (*ip).to_owned(), true)).collect();
    let slice = endpoint_slice(&service, &endpoints);
    let vm = BOTH.iter().find(|(name, _)| *name == MACHINE).expect("the address is among them");
    let vm = json!({
        "apiVersion": "networking.istio.io/v1", "kind": "WorkloadEntry",
        "metadata": { "name": MACHINE, "namespace": "shop" },
        "spec": {
            "address": vm.1, "network": "net-a", "serviceAccount": "modes",
            "locality": "region/near", "labels": labels(MACHINE, zone(MACHINE)),
        },
    });
    let pods =
        pods.iter().map(|(name, ip)| pod("shop", name, "modes", ip, &labels(name, zone(name))));
    let mut objects: Vec<_> = pods.collect();
    objects.extend([service, slice, vm]);
    objects
}

impl World {
    /// Starts a load in a client's pod, for the maximum duration of all changes.
    pub(crate) fn start_load(&self, client: &str, load: &Load) -> Process {
        let kind = if load.host.is_some() { "http" } else { "tcp" };
        let name = format!("load-{}-{kind}", client.replace('/', "-"));
        load.clone().lasting(40).spawn(self.pod(client), &self.folder, &name)
    }

    /// Waits until a client's Envoy has a listener for the service. Without it, connections would
    /// go to the unused VIP, and for two minutes conntrack would treat their ports as not
    /// redirected: a later connection from the same port would bypass Envoy and end with
    /// ENETUNREACH.
    fn wait_for_listener(&self, client: &str) {
        let address = tcp().address;
        wait::until(PROPAGATION, &format!("{client} listens for {address}"), || {
            let listeners = self.envoy(client).get("/listeners");
            if listeners.contains(&address) { Ok(()) } else { Err(listeners) }
        });
    }

    /// Waits until all new connections to each workload have the expected mode: all with mTLS, or
    /// none.
    fn wait_for_modes(&self, modes: &Modes) {
        for (name, takes_it) in modes {
            let counts = || {
                let stats = self
                    .envoy(&format!("a/{name}"))
                    .stats("15006\\.(ssl\\.handshake|downstream_cx_total)$");
                let total = |end: &str| -> u64 {
                    stats.iter().filter(|(key, _)| key.ends_with(end)).map(|(_, value)| value).sum()
                };
                (total("ssl.handshake"), total("downstream_cx_total"))
            };
            wait::until(PROPAGATION, &format!("{name}: mTLS is {takes_it}"), || {
                let before = counts();
                for client in CLIENTS.into_iter().filter(|key| self.envoys.contains_key(*key)) {
                    let answers = run_load(self.pod(client), &tcp().many(24));
                    assert_eq!(answers.failures, BTreeMap::new(), "{client}");
                }
                let now = counts();
                let (mtls, all) = (now.0 - before.0, now.1 - before.1);
                // Connections of other loads are counted before their handshake is complete.
                let as_wanted =
                    if *takes_it { mtls > 0 && all.abs_diff(mtls) <= 4 } else { mtls == 0 };
                if as_wanted && all > 0 { Ok(()) } else { Err(format!("{mtls} of {all} by mTLS")) }
            });
        }
    }
}

impl Load {
    fn many(self, requests: usize) -> Self {
        Self { requests, ..self }
    }
}
