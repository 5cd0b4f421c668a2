//! A random history of a mesh, from one seed: objects, networks, gateways, Secrets and API servers
//! are added and removed.
//!
//! It makes events happen and records the world that the control plane can know ([`naive::World`]).
//! It does not contain servers, proxies or expected results; the caller compares results after each
//! burst.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

use super::mesh::{Member, SHOP, SYSTEM, Setup, replace};
use super::naive::{MeshNetworks, Objects, World};
use strait_sim::objects::{Endpoint, HTTP, NETWORK_LABEL, Port, TCP};
use strait_sim::{Fault, objects};

/// The numbers of events in a burst. Among many events, some affect every proxy, which hides
/// missing notifications of single changes; so most bursts are small.
const EVENTS: [usize; 6] = [1, 1, 2, 3, 8, 25];

/// Limits of the faults of a member, so that it is not treated as a cluster that loses contact too
/// often: such members are frozen for minutes, and the test cannot wait that long.
const TROUBLES: usize = 3;
const TROUBLES_WITHIN: Duration = Duration::from_secs(150);

const NETWORKS: [&str; 3] = ["n1", "n2", "n3"];

/// A possible service: name, namespace, ports, whether it is headless, its `exportTo`.
type Kind = (&'static str, &'static str, &'static [Port], bool, Option<&'static str>);

const SERVICES: [Kind; 5] = [
    ("cart", SHOP, &[HTTP], false, None),
    ("web", SHOP, &[HTTP, TCP], false, None),
    ("stock", SHOP, &[HTTP], true, None),
    ("ledger", "pay", &[TCP], false, Some(".")),
    ("audit", "pay", &[HTTP], false, Some("shop")),
];

/// The participants of a history.
pub(crate) struct Cast {
    /// Members, each with the network in its namespace label. The last one contains the pod
    /// `cart-client.shop` with the address 10.0.9.9, which may belong to a proxy.
    pub(crate) members: Vec<(String, &'static str)>,
    /// Members that may leave, join again and change their network, which proxies there would
    /// notice.
    pub(crate) rovers: BTreeSet<String>,
    /// Faults of API servers within a burst.
    pub(crate) faults: Vec<Fault>,
}

/// The events, printed when the run fails.
struct Log {
    seed: u64,
    lines: Vec<String>,
}

impl Drop for Log {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {}:\n  {}", self.seed, self.lines.join("\n  "));
        }
    }
}

/// One history.
pub(crate) struct Story {
    random: StdRng,
    log: Log,
    networks_file: PathBuf,
    cast: Cast,
    members: Vec<Member>,
    world: World,
    /// Members that have a Secret.
    joined: BTreeSet<String>,
    down: BTreeSet<String>,
    /// The times of each member's recent faults.
    troubles: BTreeMap<String, Vec<Instant>>,
}

impl Story {
    /// Starts the clusters, fills them and makes them members of `setup`, to which it adds the
    /// flags that the history needs.
    pub(crate) async fn begin(seed: u64, cast: Cast, setup: Setup) -> (Self, Setup) {
        let mut members = Vec::new();
        for (number, (id, network)) in cast.members.iter().enumerate() {
            let gateway = format!("198.18.0.{}", 10 + number);
            members.push(Member::start(id, network, &gateway).await);
        }
        let networks_file = setup.path("networks.yaml");
        let file = networks_file.display().to_string();
        let setup = setup.with(&["--cluster-removal-grace", "0s", "--mesh-networks", &file]);
        let mut story = Self {
            random: StdRng::seed_from_u64(seed),
            log: Log { seed, lines: Vec::new() },
            networks_file,
            cast,
            members,
            world: World::default(),
            joined: BTreeSet::new(),
            down: BTreeSet::new(),
            troubles: BTreeMap::new(),
        };
        story.first(&setup);
        story.observe();
        (story, setup)
    }

    /// Returns the world as the control plane can know it: for a stopped server, its objects at the
    /// time of the stop.
    pub(crate) fn world(&self) -> &World {
        &self.world
    }

    /// Returns whether every API server is up, so that a new control plane can know the same
    /// objects as an old one.
    pub(crate) fn all_up(&self) -> bool {
        self.down.is_empty()
    }

    /// Adds a line to the output of a failing run.
    pub(crate) fn record(&mut self, what: impl Into<String>) {
        self.log.lines.push(what.into());
    }

    /// Returns a random number below `bound`.
    pub(crate) fn any(&mut self, bound: usize) -> usize {
        self.random.random_range(0..bound)
    }

    /// Stops and starts API servers, then makes several events happen at once, some on servers with
    /// faults. At the end no server has faults.
    pub(crate) async fn burst(&mut self, setup: &Setup) {
        self.lifecycle().await;
        for _ in 0..EVENTS[self.any(EVENTS.len())] {
            self.event(setup);
            // Events should coincide with the publication of versions as well as with each other.
            let pause = self.random.random_range(0..30);
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        self.members.iter().for_each(|member| member.api.heal());
        self.observe();
    }

    /// Ends all faults and starts every stopped API server.
    pub(crate) async fn calm(&mut self) {
        for member in &self.members {
            member.api.heal();
            if self.down.remove(member.id()) {
                member.api.restart().await;
            }
        }
        self.observe();
    }

    fn first(&mut self, setup: &Setup) {
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
            self.join(setup, index, None);
            self.joined.insert(id);
        }
    }

    /// Stops and starts API servers before a burst, when everything is quiet.
    async fn lifecycle(&mut self) {
        for index in 0..self.members.len() {
            let member = self.members[index].clone();
            let id = member.id().to_owned();
            if self.down.contains(&id) {
                if self.random.random_bool(0.7) {
                    self.note(index, "API server back");
                    member.api.restart().await;
                    self.down.remove(&id);
                }
            } else if self.random.random_bool(0.2) && self.may_trouble(&id) {
                self.note(index, "API server dies");
                member.api.stop().await;
                self.down.insert(id);
            }
        }
    }

    /// Returns whether a member has had few recent faults. If so, records another one.
    fn may_trouble(&mut self, id: &str) -> bool {
        let troubles = self.troubles.entry(id.to_owned()).or_default();
        troubles.retain(|at| at.elapsed() < TROUBLES_WITHIN);
        let may = troubles.len() < TROUBLES;
        if may {
            troubles.push(Instant::now());
        }
        may
    }

    /// Makes one event happen.
    fn event(&mut self, setup: &Setup) {
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
            91..95 => self.change_secret(setup, index),
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

    /// Writes a slice with some addresses, some of them not ready, some without the name of their
    /// pod.
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
        let text = |endpoint: &Endpoint| {
            let ready = if endpoint.ready { "" } else { " unready" };
            let pod = if endpoint.pod.is_some() { "" } else { " without pod" };
            format!("{}{ready}{pod}", endpoint.address)
        };
        let texts: Vec<_> = endpoints.iter().map(text).collect();
        self.note(index, format!("slice {name}: {}", texts.join(", ")));
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

    /// Adds the pod of a proxy, moves it to another network, or deletes it.
    fn put_client_pod(&mut self) {
        let home = self.members.len() - 1;
        if self.random.random_bool(0.4) {
            return self.delete(home, "Pod", SHOP, "cart-client");
        }
        let network = self.any_network();
        self.note(home, format!("pod cart-client network {network:?}"));
        let mut pod = objects::pod(SHOP, "cart-client", "cart", "10.0.9.9", "node-1");
        if let Some(network) = network {
            pod = objects::labelled(pod, NETWORK_LABEL, network);
        }
        self.members[home].apply(pod);
    }

    fn delete(&mut self, index: usize, kind: &str, namespace: &str, name: &str) {
        self.note(index, format!("no {kind} {name}"));
        // The object may not exist.
        let _ = self.members[index].api.store().delete(kind, namespace, name);
    }

    /// Sets or removes the network label. Without a label, mesh networks decide.
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

    /// Causes a fault of an API server, or makes it forget its history.
    fn disturb(&mut self, index: usize) {
        let choice = self.any(self.cast.faults.len());
        let fault = self.cast.faults[choice].clone();
        let id = self.members[index].id().to_owned();
        if !self.may_trouble(&id) {
            return;
        }
        self.note(index, format!("{fault:?}"));
        self.members[index].api.fault(fault);
        if self.random.random_bool(0.5) {
            self.note(index, "forgets its history");
            self.members[index].api.store().compact();
        }
    }

    /// Renews a credential; a rover may also leave, join, or change its network.
    fn change_secret(&mut self, setup: &Setup, index: usize) {
        let id = self.members[index].id().to_owned();
        if !self.cast.rovers.contains(&id) || self.down.contains(&id) {
            self.note(index, "new credential");
            self.members[index].api.rotate_token();
            let fixed =
                self.world.clusters.get(&id).and_then(|cluster| cluster.fixed_network.clone());
            return self.join(setup, index, fixed.as_deref());
        }
        if self.joined.contains(&id) && self.random.random_bool(0.4) {
            self.note(index, "Secret removed");
            setup.take_out(&id);
            self.joined.remove(&id);
            self.world.clusters.remove(&id);
        } else {
            let fixed = self.any_network();
            self.join(setup, index, fixed);
            self.joined.insert(id);
        }
    }

    fn join(&mut self, setup: &Setup, index: usize, network: Option<&str>) {
        self.note(index, format!("Secret, network {network:?}"));
        let member = &self.members[index];
        let mut secret = member.secret();
        if let Some(network) = network {
            secret["metadata"]["annotations"] = json!({ "strait.dev/network": network });
        }
        setup.put(member.id(), &secret);
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
        replace(&self.networks_file, &text);
    }

    /// Records the objects that the control plane can know: for a stopped server, its objects at
    /// the time of the stop.
    fn observe(&mut self) {
        for member in &self.members {
            if let Some(cluster) = self.world.clusters.get_mut(member.id())
                && !self.down.contains(member.id())
            {
                cluster.objects = Objects::from_store(member.api.store());
            }
        }
    }
}

fn pod_name(number: usize, address: u8) -> String {
    format!("{}-{address}", SERVICES[number].0)
}

/// Returns the address of a pod, which is equal in every cluster.
fn pod_ip(number: usize, address: u8) -> String {
    format!("10.0.{number}.{address}")
}

fn node_name(address: u8) -> String {
    format!("node-{}", address % 3)
}
