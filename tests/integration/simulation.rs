//! Random histories against the whole pipeline, from one seed each.
//!
//! Objects, networks, gateways, Secrets and API servers come and go under several proxies in both forms of
//! the protocol. After each burst three pictures must be one: what the long-lived proxies hold, what
//! fresh proxies of a fresh server are given, and, for assignments, what [`naive`](super::naive) makes of
//! the objects by plain loops. `STRAIT_SIM_SEEDS=1,2,3` chooses other seeds; a failing run prints its own
//! and what happened.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use strait::xds::client::{Client, Held};
use strait::xds::resource::ResourceType;
use strait::xds::session::Form;
use strait_sim::objects::{Endpoint, HTTP, NETWORK_LABEL, Port, TCP};
use strait_sim::{Fault, Gone, objects};

use super::mesh::{
    Member, Proxy, SHOP, SYSTEM, Server, Setup, from_nothing, holds, replace, wait_until,
};
use super::naive::{self, MeshNetworks, Objects, World};

/// Seeds of a usual run.
const SEEDS: [u64; 3] = [1, 2, 3];
const BURSTS: usize = 12;
/// How many events a burst may have. Among many some make every proxy look at everything, which hides
/// what a change should have told by itself; so most are few.
const EVENTS: [usize; 6] = [1, 1, 2, 3, 8, 25];
/// A dead API server is asked again after a pause that grows with the time it was dead.
const LIMIT: Duration = Duration::from_secs(60);

const NETWORKS: [&str; 3] = ["n1", "n2", "n3"];

/// A service that may exist: name, namespace, ports, whether it is headless, its `exportTo`.
type Kind = (&'static str, &'static str, &'static [Port], bool, Option<&'static str>);

const SERVICES: [Kind; 5] = [
    ("cart", SHOP, &[HTTP], false, None),
    ("web", SHOP, &[HTTP, TCP], false, None),
    ("stock", SHOP, &[HTTP], true, None),
    ("ledger", "pay", &[TCP], false, Some(".")),
    ("audit", "pay", &[HTTP], false, Some("shop")),
];

/// The proxies: one nobody knows, one that claims a network, one with a pod, and a gateway.
fn proxies() -> [Proxy; 4] {
    let with_pod = Proxy {
        name: "cart-client",
        account: "cart",
        ip: "10.0.9.9".to_owned(),
        ..Proxy::sidecar("west")
    };
    let claiming = Proxy { name: "claiming", network: Some("n2"), ..Proxy::sidecar("east") };
    [Proxy::sidecar("east"), claiming, with_pod, Proxy::gateway("west")]
}

#[tokio::test]
async fn histories_leave_what_a_fresh_start_gives() {
    let chosen = std::env::var("STRAIT_SIM_SEEDS").ok();
    let seeds: Vec<u64> = match &chosen {
        Some(text) => text.split(',').map(|seed| seed.trim().parse().expect("a seed")).collect(),
        None => SEEDS.to_vec(),
    };
    // Most of the time each waits for the server, so a few run at once.
    for some in seeds.chunks(4) {
        futures::future::join_all(some.iter().map(|seed| Run::of(*seed))).await;
    }
}

/// What happened, printed when the run fails.
struct Log {
    seed: u64,
    lines: Vec<String>,
}

impl Drop for Log {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let seed = self.seed;
            eprintln!(
                "seed {seed}:\n  {}\nseed {seed} again: STRAIT_SIM_SEEDS={seed}",
                self.lines.join("\n  ")
            );
        }
    }
}

/// One history.
struct Run {
    random: StdRng,
    log: Log,
    setup: Setup,
    members: Vec<Member>,
    world: World,
    /// Members that have a Secret.
    joined: BTreeSet<String>,
    down: BTreeSet<String>,
    secrets: u64,
}

impl Run {
    async fn of(seed: u64) {
        let mut members = Vec::new();
        for (id, network) in [("east", "n1"), ("north", ""), ("west", "n2")] {
            members.push(Member::start(id, network, &format!("198.18.0.{}", id.len())).await);
        }
        let setup = Setup::new();
        let file = setup.path("networks.yaml").display().to_string();
        let setup = setup.with(&["--cluster-removal-grace", "0s", "--mesh-networks", &file]);
        let mut run = Self {
            random: StdRng::seed_from_u64(seed),
            log: Log { seed, lines: Vec::new() },
            setup,
            members,
            world: World::default(),
            joined: BTreeSet::new(),
            down: BTreeSet::new(),
            secrets: 0,
        };
        run.begin();
        let server = run.setup.start_ready().await;
        let mut clients = Vec::new();
        for proxy in proxies() {
            clients.push((proxy.clone(), connect(&server, &run.setup, &proxy).await));
        }
        run.check(&clients).await;
        for burst in 0..BURSTS {
            run.log.lines.push(format!("burst {burst}"));
            run.lifecycle().await;
            for _ in 0..EVENTS[run.random.random_range(0..EVENTS.len())] {
                run.event();
                // Events shall meet versions in the making as well as each other.
                let pause = run.random.random_range(0..30);
                tokio::time::sleep(Duration::from_millis(pause)).await;
            }
            run.members.iter().for_each(|member| member.api.heal());
            run.check(&clients).await;
        }
        assert_eq!(server.admin.metric("strait_task_panics_total").await, 0.0);
    }

    fn begin(&mut self) {
        self.write_networks();
        for index in 0..self.members.len() {
            let id = self.members[index].id().to_owned();
            for (number, service) in SERVICES.iter().enumerate() {
                self.put_service(index, service);
                for address in 1..4 {
                    self.put_pod(index, number, address);
                }
                self.put_slice(index, number);
            }
            self.join(index, None);
            self.joined.insert(id);
        }
    }

    /// Before a burst, when everything is quiet: API servers die and come back.
    async fn lifecycle(&mut self) {
        for member in &self.members {
            let id = member.id().to_owned();
            if self.down.contains(&id) {
                if self.random.random_bool(0.7) {
                    self.log.lines.push(format!("{id}: API server back"));
                    member.api.restart().await;
                    self.down.remove(&id);
                }
            } else if self.random.random_bool(0.2) {
                self.log.lines.push(format!("{id}: API server dies"));
                member.api.stop().await;
                self.down.insert(id);
            }
        }
    }

    /// One thing happens.
    fn event(&mut self) {
        let index = self.random.random_range(0..self.members.len());
        let number = self.random.random_range(0..SERVICES.len());
        let address = self.random.random_range(1..7);
        match self.random.random_range(0..100) {
            0..30 => self.put_slice(index, number),
            30..48 => self.put_pod(index, number, address),
            48..56 => self.delete(index, "Pod", SERVICES[number].1, &pod_name(number, address)),
            56..62 => self.put_service(index, &SERVICES[number]),
            62..67 => self.delete(index, "Service", SERVICES[number].1, SERVICES[number].0),
            67..70 => self.delete(index, "EndpointSlice", SERVICES[number].1, SERVICES[number].0),
            70..75 => self.label_network(index),
            75..80 => self.put_gateway(index),
            80..83 => self.delete(index, "Service", SYSTEM, "eastwestgateway"),
            83..86 => self.put_node(index),
            86..89 => self.put_client_pod(),
            89..91 => self.disturb(index),
            91..95 => self.change_secret(index),
            _ => self.change_networks(),
        }
    }

    fn note(&mut self, index: usize, what: impl std::fmt::Display) {
        let id = self.members[index].id();
        self.log.lines.push(format!("{id}: {what}"));
    }

    fn any_network(&mut self) -> Option<&'static str> {
        let choice = self.random.random_range(0..NETWORKS.len() + 1);
        NETWORKS.get(choice).copied()
    }

    fn put_service(&mut self, index: usize, kind: &Kind) {
        let (name, namespace, ports, headless, export_to) = *kind;
        self.note(index, format!("service {name}"));
        let vip = format!("172.20.{}.{}", index + 1, name.len());
        let mut service =
            objects::service(namespace, name, if headless { "None" } else { &vip }, ports);
        if let Some(export_to) = export_to {
            service["metadata"]["annotations"] =
                json!({ "networking.istio.io/exportTo": export_to });
        }
        self.members[index].apply(service);
    }

    /// Some addresses, some of them not ready, some without the name of their pod.
    fn put_slice(&mut self, index: usize, number: usize) {
        let (name, namespace, ports, ..) = SERVICES[number];
        let mut endpoints = Vec::new();
        for address in 1..7 {
            if self.random.random_bool(0.5) {
                let mut endpoint = Endpoint::new(&pod_ip(number, address));
                endpoint.ready = self.random.random_bool(0.8);
                endpoint.node = Some(node_name(address));
                if self.random.random_bool(0.8) {
                    endpoint = endpoint.with_pod(&pod_name(number, address));
                }
                endpoints.push(endpoint);
            }
        }
        let word = |one: &Endpoint| {
            let ready = if one.ready { "" } else { " unready" };
            let pod = if one.pod.is_some() { "" } else { " without pod" };
            format!("{}{ready}{pod}", one.address)
        };
        let words: Vec<_> = endpoints.iter().map(word).collect();
        self.note(index, format!("slice {name}: {}", words.join(", ")));
        let slice = objects::endpoint_slice(namespace, name, name, ports, &endpoints);
        self.members[index].apply(slice);
    }

    fn put_pod(&mut self, index: usize, number: usize, address: u8) {
        let (service, namespace, ..) = SERVICES[number];
        let (name, ip) = (pod_name(number, address), pod_ip(number, address));
        let network = self.any_network().filter(|_| self.random.random_bool(0.2));
        let mtls = self.random.random_bool(0.8);
        self.note(index, format!("pod {name} mTLS {mtls} network {network:?}"));
        let mut pod = objects::pod(namespace, &name, service, &ip, &node_name(address));
        if let Some(network) = network {
            pod = objects::labelled(pod, NETWORK_LABEL, network);
        }
        if !mtls {
            pod = objects::labelled(pod, "security.istio.io/tlsMode", "disabled");
        }
        self.members[index].apply(pod);
    }

    /// The pod of the proxy in west that has one comes, moves to another network, or goes.
    fn put_client_pod(&mut self) {
        let west = 2;
        if self.random.random_bool(0.4) {
            return self.delete(west, "Pod", SHOP, "cart-client");
        }
        let network = self.any_network();
        self.note(west, format!("pod cart-client network {network:?}"));
        let mut pod = objects::pod(SHOP, "cart-client", "cart", "10.0.9.9", "node-1");
        if let Some(network) = network {
            pod = objects::labelled(pod, NETWORK_LABEL, network);
        }
        self.members[west].apply(pod);
    }

    fn delete(&mut self, index: usize, kind: &str, namespace: &str, name: &str) {
        self.note(index, format!("no {kind} {name}"));
        // It may not be there.
        let _ = self.members[index].api.store().delete(kind, namespace, name);
    }

    /// Without a label mesh networks decide.
    fn label_network(&mut self, index: usize) {
        let network = self.any_network().filter(|_| self.random.random_bool(0.6));
        self.note(index, format!("network {network:?}"));
        let namespace = objects::namespace(SYSTEM);
        self.members[index].apply(match network {
            Some(network) => objects::labelled(namespace, NETWORK_LABEL, network),
            None => namespace,
        });
    }

    fn put_gateway(&mut self, index: usize) {
        let network = self.any_network();
        let mut addresses = Vec::new();
        for last in 1..4 {
            if self.random.random_bool(0.5) {
                addresses.push(format!("198.18.{}.{last}", self.random.random_range(0..2)));
            }
        }
        self.note(index, format!("gateway to {network:?} at {addresses:?}"));
        let mut gateway =
            objects::gateway_service(SYSTEM, network.unwrap_or("n1"), "172.20.9.9", "0.0.0.0");
        if network.is_none() {
            gateway["metadata"]["labels"] = json!({ "app": "eastwestgateway" });
        }
        let ingress: Vec<_> = addresses.iter().map(|ip| json!({ "ip": ip })).collect();
        gateway["status"]["loadBalancer"]["ingress"] = json!(ingress);
        self.members[index].apply(gateway);
    }

    fn put_node(&mut self, index: usize) {
        let name = node_name(self.random.random_range(1..7));
        if self.random.random_bool(0.3) {
            return self.delete(index, "Node", "", &name);
        }
        let zone = format!("zone-{}", self.random.random_range(0..2));
        self.note(index, format!("{name} in {zone}"));
        self.members[index].apply(objects::node(&name, "region", &zone));
    }

    /// Watches are told that their version is gone, or are broken off.
    fn disturb(&mut self, index: usize) {
        let faults = [
            Fault::Gone { how: Gone::Status, times: Some(2) },
            Fault::Gone { how: Gone::Event, times: Some(2) },
            Fault::CloseWatches { after_ms: 50 },
        ];
        let fault = faults[self.random.random_range(0..faults.len())].clone();
        self.note(index, format!("{fault:?}"));
        self.members[index].api.fault(fault);
        if self.random.random_bool(0.5) {
            self.note(index, "forgets its history");
            self.members[index].api.store().compact();
        }
    }

    /// A credential is renewed; north, where no proxy is, also leaves, joins, and changes its network.
    fn change_secret(&mut self, index: usize) {
        let id = self.members[index].id().to_owned();
        if id != "north" || self.down.contains(&id) {
            self.note(index, "new credential");
            self.members[index].api.rotate_token();
            let fixed =
                self.world.clusters.get(&id).and_then(|cluster| cluster.fixed_network.clone());
            return self.join(index, fixed.as_deref());
        }
        if self.joined.contains(&id) && self.random.random_bool(0.4) {
            self.note(index, "Secret removed");
            self.setup.take_out(&id);
            self.joined.remove(&id);
            self.world.clusters.remove(&id);
        } else {
            let fixed = self.any_network();
            self.join(index, fixed);
            self.joined.insert(id);
        }
    }

    fn join(&mut self, index: usize, network: Option<&str>) {
        self.note(index, format!("Secret, network {network:?}"));
        self.secrets += 1;
        let member = &self.members[index];
        let mut secret = member.secret();
        if let Some(network) = network {
            secret["metadata"]["annotations"] = json!({ "strait.dev/network": network });
        }
        self.setup.put(member.id(), &secret);
        let cluster = self.world.clusters.entry(member.id().to_owned()).or_default();
        cluster.fixed_network = network.map(str::to_owned);
    }

    fn change_networks(&mut self) {
        let mut networks = MeshNetworks::default();
        if self.random.random_bool(0.5) {
            let id = self.members[self.random.random_range(0..self.members.len())].id().to_owned();
            networks.registries.insert(id, NETWORKS[self.random.random_range(0..3)].to_owned());
        }
        for range in ["10.0.0.0/16", "10.0.1.0/24", "10.0.1.4/30"] {
            if self.random.random_bool(0.3) {
                let network = NETWORKS[self.random.random_range(0..3)];
                networks.ranges.insert(range.to_owned(), network.to_owned());
            }
        }
        if self.random.random_bool(0.4) {
            let network = NETWORKS[self.random.random_range(0..3)];
            networks.gateways.insert((network.to_owned(), "198.18.7.7".to_owned(), 443));
        }
        self.world.mesh_networks = networks;
        self.write_networks();
    }

    fn write_networks(&mut self) {
        let text = self.world.mesh_networks.to_json().to_string();
        self.log.lines.push(format!("mesh networks {text}"));
        replace(&self.setup.path("networks.yaml"), &text);
    }

    /// The objects that the control plane can know: a dead server's as they were when it died.
    fn observe(&mut self) {
        for member in &self.members {
            if let Some(cluster) = self.world.clusters.get_mut(member.id())
                && !self.down.contains(member.id())
            {
                cluster.objects = Objects::of(member.api.store());
            }
        }
    }

    /// Waits until the three pictures are one.
    async fn check(&mut self, clients: &[(Proxy, Pair)]) {
        self.observe();
        let seed = self.log.seed;
        for (proxy, pair) in clients {
            let expected = naive::assignments(&self.world, proxy);
            wait_until(LIMIT, async || {
                for client in &pair.0 {
                    let found = naive::held(&client.held());
                    let why = client.held().ended;
                    holds(found == expected, "").map_err(|_| {
                        format!(
                            "seed {seed}, {}, ended {why:?}, against naive: {}",
                            proxy.id(),
                            difference(&expected, &found)
                        )
                    })?;
                }
                Ok(())
            })
            .await;
        }
        // Nobody can know a server that was dead from the start.
        if !self.down.is_empty() {
            return;
        }
        let fresh = self.setup.start_ready().await;
        for (proxy, pair) in clients {
            let newcomers = connect(&fresh, &self.setup, proxy).await;
            wait_until(LIMIT, async || {
                let all: Vec<_> =
                    pair.0.iter().chain(&newcomers.0).map(|one| pictured(&one.held())).collect();
                let words = ["long Delta", "long SotW", "fresh Delta", "fresh SotW"];
                for (picture, word) in all.iter().zip(words) {
                    holds(*picture == all[2], "").map_err(|_| {
                        format!(
                            "seed {seed}, {}, {word} against fresh: {}",
                            proxy.id(),
                            difference(&all[2], picture)
                        )
                    })?;
                }
                Ok(())
            })
            .await;
        }
        fresh.shut_down().await;
    }
}

/// The same proxy in both forms.
struct Pair([Client; 2]);

async fn connect(server: &Server, setup: &Setup, proxy: &Proxy) -> Pair {
    let open = async |form| {
        let opened = server.open(setup, proxy, from_nothing(form)).await;
        opened.unwrap_or_else(|error| panic!("{}: {error}", proxy.id()))
    };
    Pair([open(Form::Delta).await, open(Form::Sotw).await])
}

/// All that is held, by type and name, as Envoy's JSON.
fn pictured(held: &Held) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    for kind in ResourceType::ALL {
        for name in held.names(kind) {
            let body = held.body(kind, name).unwrap_or_default();
            let json = strait_proto::json::to_json(kind.url(), body).expect("decodable");
            all.insert(format!("{} {name}", kind.short()), json);
        }
    }
    all
}

/// What differs between two maps, in words.
fn difference<V: PartialEq + std::fmt::Debug>(
    expected: &BTreeMap<String, V>,
    found: &BTreeMap<String, V>,
) -> String {
    let names: BTreeSet<_> = expected.keys().chain(found.keys()).collect();
    let differing = names.into_iter().filter(|name| expected.get(*name) != found.get(*name));
    let words = differing.map(|name| {
        format!("\n{name}\n  expected {:?}\n  found    {:?}", expected.get(name), found.get(name))
    });
    words.take(6).collect()
}

fn pod_name(number: usize, address: u8) -> String {
    format!("{}-{address}", SERVICES[number].0)
}

/// The same in every cluster.
fn pod_ip(number: usize, address: u8) -> String {
    format!("10.0.{number}.{address}")
}

fn node_name(address: u8) -> String {
    format!("node-{}", address % 3)
}
