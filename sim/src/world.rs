//! Many clusters from one seed: the load of tests, benches and demos.
//!
//! Owns the clusters and the plan they were made from, and plays the controllers that a simulated
//! cluster lacks: it replaces endpoints, scales and rolls out. Each endpoint it writes later carries an
//! address used once in the world, a stamp by which a receiver recognises the change.

use std::collections::BTreeSet;
use std::io;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use crate::cluster::{Options, SimCluster};
use crate::objects::{self, Endpoint, HTTP, NETWORK_LABEL, Port, TCP};
use crate::resource::{Family, Resource};
use crate::stamps::{self, Noted, Stamp, StampLog};
use crate::status::ApiError;
use crate::stencil::{Stencil, mark};
use crate::store::{Name, Store};
use crate::weight;

/// Slices hold no more endpoints than those of the real controller.
const SLICE_ENDPOINTS_MAX: usize = 100;
/// Services share a namespace in groups of this size.
const NAMESPACE_SERVICES: usize = 100;

const NAMESPACES: [&str; 10] =
    ["shop", "pay", "media", "search", "mail", "maps", "ads", "auth", "data", "edge"];
const NAMES: [&str; 20] = [
    "cart",
    "checkout",
    "catalog",
    "reviews",
    "ratings",
    "orders",
    "stock",
    "pricing",
    "users",
    "sessions",
    "images",
    "recommend",
    "shipping",
    "invoices",
    "coupons",
    "wishlist",
    "returns",
    "email",
    "geo",
    "feed",
];

/// What a world is made of.
#[derive(Debug, Clone)]
pub struct WorldOptions {
    /// Number of clusters, `c1` and on.
    pub clusters: usize,
    /// Services in each cluster.
    pub services: usize,
    /// Endpoints of each service in each cluster.
    pub endpoints: usize,
    /// Number of networks; cluster `i` is in network `((i - 1) mod N) + 1`. Clusters of different
    /// networks use the same pod addresses. With one network nothing is labelled.
    pub networks: usize,
    /// Everything random follows from this.
    pub seed: u64,
    /// Whether all clusters have the same services. Otherwise each name ends in its cluster's.
    pub same_names: bool,
    /// Whether each endpoint has its pod.
    pub pods: bool,
    /// The system namespace, which carries the network's label and the gateway.
    pub system_namespace: String,
    /// APIs besides the core, all empty.
    pub families: BTreeSet<Family>,
}

impl Default for WorldOptions {
    fn default() -> WorldOptions {
        WorldOptions {
            clusters: 2,
            services: 10,
            endpoints: 3,
            networks: 1,
            seed: 1,
            same_names: true,
            pods: false,
            system_namespace: "strait-system".to_owned(),
            families: BTreeSet::new(),
        }
    }
}

/// Why a world can't be made, or a change of it can't be.
#[derive(Debug)]
pub enum WorldError {
    /// The address plan has no room for so much in one network; the text says for what.
    TooLarge(&'static str),
    /// No cluster has this ID.
    NoSuchCluster(String),
    /// The cluster has no such service (`NAMESPACE/NAME`), or none at all.
    NoSuchService(String),
    /// The service has no endpoint to replace.
    NoEndpoints(String),
    /// The store refused.
    Refused(ApiError),
    /// No port could be had.
    Io(io::Error),
}

impl std::fmt::Display for WorldError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            WorldError::TooLarge(what) => {
                write!(f, "the address plan has no room for so many {what}")
            }
            WorldError::NoSuchCluster(id) => write!(f, "no cluster {id:?}"),
            WorldError::NoSuchService(name) => write!(f, "no service {name:?} in this cluster"),
            WorldError::NoEndpoints(name) => write!(f, "service {name:?} has no endpoint"),
            WorldError::Refused(_) => write!(f, "the store refused an object"),
            WorldError::Io(_) => write!(f, "can't open a port"),
        }
    }
}

impl std::error::Error for WorldError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            WorldError::Refused(error) => Some(error),
            WorldError::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl From<ApiError> for WorldError {
    fn from(error: ApiError) -> WorldError {
        WorldError::Refused(error)
    }
}

/// A running world.
#[derive(Debug)]
pub struct World {
    members: Vec<Member>,
    pods: bool,
    /// Held for the whole of a change: two at once would read one slice and write half of it each.
    changes: Mutex<Changes>,
}

#[derive(Debug)]
struct Changes {
    random: StdRng,
    stamps: StampLog,
}

#[derive(Debug)]
struct Member {
    cluster: SimCluster,
    network: String,
    services: Vec<Name>,
}

impl World {
    /// Generates and starts all clusters.
    ///
    /// # Errors
    /// When the addresses of the plan don't suffice, or no port can be had.
    pub async fn generate(options: WorldOptions) -> Result<World, WorldError> {
        let plan = Arc::new(Plan::new(options)?);
        let mut members = Vec::new();
        for index in 0..plan.options.clusters {
            let id = format!("c{}", index + 1);
            let families = plan.options.families.clone();
            let identity = Some(format!("{id} of world {}", plan.options.seed));
            let cluster = Options { identity, families, ..Options::default() };
            let cluster = SimCluster::start(&id, cluster).await.map_err(WorldError::Io)?;
            let filled = {
                let (cluster, plan) = (cluster.clone(), plan.clone());
                tokio::task::spawn_blocking(move || plan.fill(index, cluster.store()))
            };
            members.push((cluster, index, filled));
        }
        let mut world = World {
            members: Vec::new(),
            pods: plan.options.pods,
            changes: Mutex::new(Changes {
                random: StdRng::seed_from_u64(plan.options.seed),
                stamps: StampLog::new(),
            }),
        };
        for (cluster, index, filled) in members {
            let services = filled.await.expect("filling a store does not panic")?;
            world.members.push(Member { cluster, network: plan.network(index), services });
        }
        Ok(world)
    }

    /// All clusters, in the order of their numbers.
    pub fn clusters(&self) -> impl Iterator<Item = &SimCluster> {
        self.members.iter().map(|member| &member.cluster)
    }

    /// The cluster with this ID.
    ///
    /// # Errors
    /// If there is none.
    pub fn cluster(&self, id: &str) -> Result<&SimCluster, WorldError> {
        self.member(id).map(|member| &member.cluster)
    }

    /// The network of a cluster: `n1` and on.
    ///
    /// # Errors
    /// If there is no such cluster.
    pub fn network(&self, id: &str) -> Result<&str, WorldError> {
        self.member(id).map(|member| &*member.network)
    }

    /// The generated services of a cluster.
    ///
    /// # Errors
    /// If there is no such cluster.
    pub fn services(&self, id: &str) -> Result<&[Name], WorldError> {
        self.member(id).map(|member| &*member.services)
    }

    /// Replaces one endpoint of a service (`NAMESPACE/NAME`; absent: any) by a stamped one.
    ///
    /// # Errors
    /// If there is no such cluster, service or endpoint.
    pub fn change(&self, id: &str, service: Option<&str>) -> Result<Stamp, WorldError> {
        let changes = &mut *self.lock();
        let (cluster, service) = self.pick(changes, id, service)?;
        let (member, name) = self.at(cluster, service);
        let count = endpoints_of(member.cluster.store(), name).len();
        if count == 0 {
            return Err(WorldError::NoEndpoints(display(name)));
        }
        let index = changes.random.random_range(0..count);
        self.replace(changes, cluster, service, index)
    }

    /// Replaces all endpoints of a service one after the other, `per_second` of them each second, as
    /// a rolling update does, and returns the stamps.
    ///
    /// # Errors
    /// If there is no such cluster or service.
    pub async fn rollout(
        &self,
        id: &str,
        service: Option<&str>,
        per_second: f64,
    ) -> Result<Vec<Stamp>, WorldError> {
        let (cluster, service) = self.pick(&mut self.lock(), id, service)?;
        let (member, name) = self.at(cluster, service);
        let mut pace = tokio::time::interval(Duration::from_secs_f64(1.0 / per_second.max(0.001)));
        let mut stamps = Vec::new();
        for index in 0..endpoints_of(member.cluster.store(), name).len() {
            pace.tick().await;
            stamps.push(self.replace(&mut self.lock(), cluster, service, index)?);
        }
        Ok(stamps)
    }

    /// Gives a service so many endpoints: the last ones go, stamped ones come.
    ///
    /// # Errors
    /// If there is no such cluster or service.
    pub fn scale(
        &self,
        id: &str,
        service: Option<&str>,
        endpoints: usize,
    ) -> Result<Vec<Stamp>, WorldError> {
        let changes = &mut *self.lock();
        let (cluster, service) = self.pick(changes, id, service)?;
        let (member, name) = self.at(cluster, service);
        let store = member.cluster.store();
        let mut all = endpoints_of(store, name);
        for gone in all.drain(endpoints.min(all.len())..) {
            self.delete_pod(store, &name.namespace, &gone);
        }
        let first = changes.stamps.next();
        let added = endpoints.saturating_sub(all.len());
        for seq in (first..).take(added) {
            let model = Endpoint::new("").to_value(&name.namespace);
            let endpoint = self.stamped(member, name, all.last().unwrap_or(&model), seq)?;
            all.push(endpoint);
        }
        let at_ns = stamps::now_ns();
        write_slices(store, name, &all)?;
        Ok((0..added).map(|_| self.note(changes, cluster, service, at_ns)).collect())
    }

    /// Changes random services of random clusters, at random moments, so many times a second on
    /// average, until dropped.
    pub async fn churn(&self, per_second: f64) {
        let mut due = tokio::time::Instant::now();
        loop {
            let (gap, index) = {
                let random = &mut self.lock().random;
                // The gaps of a Poisson process.
                let gap = -random.random_range(f64::MIN_POSITIVE..1.0).ln() / per_second;
                (gap, random.random_range(0..self.members.len()))
            };
            due += Duration::from_secs_f64(gap);
            tokio::time::sleep_until(due).await;
            // A service scaled to nothing is left alone.
            let _ = self.change(self.members[index].cluster.id(), None);
        }
    }

    /// Up to `limit` stamps with numbers above `since`, oldest first. About a million are kept.
    pub fn stamps(&self, since: u64, limit: usize) -> Vec<Stamp> {
        let noted = self.lock().stamps.after(since, limit);
        noted.into_iter().map(|(seq, noted)| self.named(seq, noted)).collect()
    }

    fn member(&self, id: &str) -> Result<&Member, WorldError> {
        self.position(id).map(|index| &self.members[index])
    }

    fn position(&self, id: &str) -> Result<usize, WorldError> {
        let found = self.members.iter().position(|member| member.cluster.id() == id);
        found.ok_or_else(|| WorldError::NoSuchCluster(id.to_owned()))
    }

    /// The places of a cluster and of one of its services, random if none is wanted.
    fn pick(
        &self,
        changes: &mut Changes,
        id: &str,
        wanted: Option<&str>,
    ) -> Result<(usize, usize), WorldError> {
        let cluster = self.position(id)?;
        let services = &self.members[cluster].services;
        let found = match wanted {
            Some(wanted) => services.iter().position(|name| display(name) == wanted),
            None if services.is_empty() => None,
            None => Some(changes.random.random_range(0..services.len())),
        };
        let service =
            found.ok_or_else(|| WorldError::NoSuchService(wanted.unwrap_or("any").to_owned()))?;
        Ok((cluster, service))
    }

    /// What [`World::pick`] has picked.
    fn at(&self, cluster: usize, service: usize) -> (&Member, &Name) {
        let member = &self.members[cluster];
        (member, &member.services[service])
    }

    /// Puts a stamped endpoint in the place of endpoint `index`: new pod, slice, old pod.
    fn replace(
        &self,
        changes: &mut Changes,
        cluster: usize,
        service: usize,
        index: usize,
    ) -> Result<Stamp, WorldError> {
        let (member, name) = self.at(cluster, service);
        let store = member.cluster.store();
        let slice = slice_name(&name.name, index / SLICE_ENDPOINTS_MAX);
        let mut slice = read_slice(store, &name.namespace, &slice)
            .ok_or_else(|| WorldError::NoEndpoints(display(name)))?;
        let old = slice["endpoints"][index % SLICE_ENDPOINTS_MAX].clone();
        if old.is_null() {
            return Err(WorldError::NoEndpoints(display(name)));
        }
        let new = self.stamped(member, name, &old, changes.stamps.next())?;
        slice["endpoints"][index % SLICE_ENDPOINTS_MAX] = new;
        let at_ns = stamps::now_ns();
        store.apply(slice)?;
        self.delete_pod(store, &name.namespace, &old);
        Ok(self.note(changes, cluster, service, at_ns))
    }

    /// Gives out the next stamp.
    fn note(&self, changes: &mut Changes, cluster: usize, service: usize, at_ns: u64) -> Stamp {
        let seq = changes.stamps.next();
        let noted = Noted { cluster: as_u32(cluster), service: as_u32(service), at_ns };
        changes.stamps.push(noted);
        self.named(seq, noted)
    }

    fn named(&self, seq: u64, Noted { cluster, service, at_ns }: Noted) -> Stamp {
        let (member, name) = self.at(cluster as usize, service as usize);
        Stamp {
            seq,
            address: stamps::address(seq),
            cluster: member.cluster.id().to_owned(),
            service: display(name),
            hostname: format!("{}.{}.svc.cluster.local", name.name, name.namespace),
            at_ns,
        }
    }

    /// The endpoint with stamp `seq` at the place of `model`, and its pod if it has one.
    fn stamped(
        &self,
        member: &Member,
        service: &Name,
        model: &Value,
        seq: u64,
    ) -> Result<Value, WorldError> {
        let address = stamps::address(seq);
        let mut endpoint = model.clone();
        endpoint["addresses"] = json!([address]);
        if self.pods {
            let pod = format!("{}-s{seq:x}", service.name);
            let node = endpoint["nodeName"].as_str().unwrap_or_default();
            let object = pod_object(service, &pod, &address.to_string(), node);
            let uid = member.cluster.store().apply(object)?.value()["metadata"]["uid"].clone();
            endpoint["targetRef"] =
                json!({"kind": "Pod", "namespace": service.namespace, "name": pod, "uid": uid});
        }
        Ok(endpoint)
    }

    fn delete_pod(&self, store: &Store, namespace: &str, endpoint: &Value) {
        if let Some(name) = endpoint["targetRef"]["name"].as_str() {
            // It may be gone already: nothing is left to do then.
            let _ = store.delete("Pod", namespace, name);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Changes> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn display(name: &Name) -> String {
    format!("{}/{}", name.namespace, name.name)
}

fn slice_name(service: &str, number: usize) -> String {
    format!("{service}-{number:05x}")
}

fn read_slice(store: &Store, namespace: &str, name: &str) -> Option<Value> {
    let mut slice = store.get("EndpointSlice", namespace, name)?.value();
    slice["apiVersion"] = json!("discovery.k8s.io/v1");
    slice["kind"] = json!("EndpointSlice");
    Some(slice)
}

/// The endpoints of all slices of a generated service.
fn endpoints_of(store: &Store, service: &Name) -> Vec<Value> {
    (0..)
        .map_while(|i| read_slice(store, &service.namespace, &slice_name(&service.name, i)))
        .flat_map(|slice| slice["endpoints"].as_array().cloned().unwrap_or_default())
        .collect()
}

fn write_slices(store: &Store, service: &Name, endpoints: &[Value]) -> Result<(), ApiError> {
    let mut chunks = endpoints.chunks(SLICE_ENDPOINTS_MAX);
    let first = read_slice(store, &service.namespace, &slice_name(&service.name, 0));
    for i in 0.. {
        let name = slice_name(&service.name, i);
        let current = read_slice(store, &service.namespace, &name);
        // The first slice stays even when nothing is in it, as with the real controller.
        let wanted = chunks.next().or((i == 0).then_some(&[]));
        match (wanted, current, &first) {
            (Some(endpoints), Some(mut slice), _) => {
                slice["endpoints"] = json!(endpoints);
                store.apply(slice)?;
            }
            (Some(endpoints), None, Some(first)) => {
                let mut slice = first.clone();
                slice["metadata"] = json!({
                    "name": name,
                    "namespace": service.namespace,
                    "labels": first["metadata"]["labels"],
                });
                slice["endpoints"] = json!(endpoints);
                store.apply(slice)?;
            }
            (None, Some(_), _) => store.delete("EndpointSlice", &service.namespace, &name)?,
            (_, None, _) => return Ok(()),
        }
    }
    Ok(())
}

fn pod_object(service: &Name, name: &str, ip: &str, node: &str) -> Value {
    weight::pod(objects::pod(&service.namespace, name, &service.name, ip, node))
}

/// The pods of a service; values: name, address, node, UID, version.
fn pod_stencil(service: &Name) -> Stencil {
    let mut pod = pod_object(service, &mark(0), &mark(1), &mark(2));
    pod["metadata"]["uid"] = json!(mark(3));
    pod["metadata"]["resourceVersion"] = json!(mark(4));
    if let Some(fields) = pod.as_object_mut() {
        fields.retain(|field, _| field != "kind" && field != "apiVersion");
    }
    Stencil::cut(&pod)
}

/// Options, and the address plan that follows from them.
#[derive(Debug)]
struct Plan {
    options: WorldOptions,
    /// Pod addresses of one cluster.
    pods: u32,
    /// Service addresses of one cluster.
    services: u32,
}

impl Plan {
    fn new(options: WorldOptions) -> Result<Plan, WorldError> {
        let block = |n: usize, least: u32| {
            u32::try_from(n).ok().and_then(u32::checked_next_power_of_two).map(|n| n.max(least))
        };
        let room = |block: u32, n: usize, total: u64| u64::from(block) * n as u64 <= total;
        let networks = options.networks.max(1);
        let pods =
            options.services.checked_mul(options.endpoints).and_then(|n| block(n + 1, 1 << 16));
        // 10.0.0.0/8 for the pods of all clusters of one network, 172.16.0.0/12 for all services.
        let per_network = options.clusters.div_ceil(networks);
        let pods = pods.filter(|pods| room(*pods, per_network, 1 << 24));
        let pods = pods.ok_or(WorldError::TooLarge("endpoints"))?;
        let services = block(options.services + 16, 1 << 8);
        let services = services.filter(|services| room(*services, options.clusters, 1 << 20));
        let services = services.ok_or(WorldError::TooLarge("services"))?;
        Ok(Plan { options: WorldOptions { networks, ..options }, pods, services })
    }

    fn network(&self, cluster: usize) -> String {
        format!("n{}", cluster % self.options.networks + 1)
    }

    fn pod_ip(&self, cluster: usize, number: usize) -> String {
        let block = self.pods * as_u32(cluster / self.options.networks);
        Ipv4Addr::from(0x0a00_0000 + block + as_u32(number) + 1).to_string()
    }

    fn cluster_ip(&self, cluster: usize, number: usize) -> String {
        let block = self.services * as_u32(cluster);
        Ipv4Addr::from(0xac10_0000 + block + as_u32(number) + 1).to_string()
    }

    fn service(&self, cluster: usize, number: usize) -> Name {
        let namespace = number / NAMESPACE_SERVICES;
        let namespace = match namespace / NAMESPACES.len() {
            0 => NAMESPACES[namespace].to_owned(),
            round => format!("{}-{}", NAMESPACES[namespace % NAMESPACES.len()], round + 1),
        };
        let mut name = NAMES[number % NAMES.len()].to_owned();
        if number >= NAMES.len() {
            name += &format!("-{}", number / NAMES.len() + 1);
        }
        if !self.options.same_names {
            name += &format!("-c{}", cluster + 1);
        }
        Name::new(&namespace, &name)
    }

    /// Most services speak HTTP, some have a TCP port as well.
    fn ports(number: usize) -> &'static [Port] {
        if number % 5 == 4 { &[HTTP, TCP] } else { &[HTTP] }
    }

    /// Writes all objects of one cluster.
    fn fill(&self, cluster: usize, store: &Store) -> Result<Vec<Name>, WorldError> {
        let options = &self.options;
        let network = self.network(cluster);
        let system = objects::namespace(&options.system_namespace);
        if options.networks > 1 {
            store.apply(objects::labelled(system, NETWORK_LABEL, &network))?;
            let cluster_ip = self.cluster_ip(cluster, options.services);
            // 198.18.0.0/15, which is for benchmarks: nobody else has it.
            let external_ip = Ipv4Addr::from(0xc612_0000 + as_u32(cluster) + 1).to_string();
            let namespace = &options.system_namespace;
            store.apply(objects::gateway_service(
                namespace,
                &network,
                &cluster_ip,
                &external_ip,
            ))?;
        } else {
            store.apply(system)?;
        }
        let nodes = (options.services * options.endpoints / 50).clamp(3, 100);
        let place = |node: usize| {
            let region = format!("region-{network}");
            let zone = format!("{region}{}", ["a", "b", "c"][node % 3]);
            (format!("node-{}-{node}", cluster + 1), region, zone)
        };
        for node in 0..nodes {
            let (name, region, zone) = place(node);
            store.apply(weight::node(objects::node(&name, &region, &zone)))?;
        }
        let mut random = StdRng::seed_from_u64(options.seed.wrapping_add(cluster as u64));
        let pods_resource = Resource::by_name("pods").expect("the table has them");
        let mut services = Vec::with_capacity(options.services);
        for number in 0..options.services {
            let name = self.service(cluster, number);
            let ports = Plan::ports(number);
            let (namespace, service) = (&*name.namespace, &*name.name);
            let ip = self.cluster_ip(cluster, number);
            store.apply(weight::service(objects::service(namespace, service, &ip, ports)))?;
            if options.pods {
                store.apply(json!({
                    "apiVersion": "v1", "kind": "ServiceAccount",
                    "metadata": {"namespace": namespace, "name": service},
                }))?;
            }
            let pod_stencil = options.pods.then(|| pod_stencil(&name));
            let mut endpoints = Vec::with_capacity(options.endpoints);
            for i in 0..options.endpoints {
                let (node, _, zone) = place(random.random_range(0..nodes));
                let ip = self.pod_ip(cluster, number * options.endpoints + i);
                let mut endpoint = Endpoint::new(&ip);
                if let Some(pods) = &pod_stencil {
                    let pod = format!("{service}-7d9c-{i:04x}");
                    store.load(pods_resource, Name::new(namespace, &pod), |version, uid| {
                        pods.fill(&[&pod, &ip, &node, uid, &version.to_string()])
                    });
                    endpoint = endpoint.with_pod(&pod);
                }
                endpoint.node = Some(node);
                endpoint.zone = Some(zone);
                endpoints.push(endpoint);
            }
            let chunks = endpoints.chunks(SLICE_ENDPOINTS_MAX);
            let none = endpoints.is_empty().then_some(&[][..]);
            for (i, chunk) in chunks.chain(none).enumerate() {
                let slice = slice_name(service, i);
                let slice = objects::endpoint_slice(namespace, service, &slice, ports, chunk);
                store.apply(weight::endpoint_slice(slice))?;
            }
            services.push(name);
        }
        Ok(services)
    }
}

/// For numbers that the plan has checked.
fn as_u32(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(options: WorldOptions) -> Result<Plan, WorldError> {
        Plan::new(options)
    }

    #[test]
    fn clusters_of_different_networks_share_pod_addresses_and_those_of_one_do_not() {
        let options = WorldOptions { clusters: 4, networks: 2, ..WorldOptions::default() };
        let plan = plan(options).expect("small");
        let ips: Vec<_> = (0..4).map(|cluster| plan.pod_ip(cluster, 0)).collect();
        assert_eq!(ips, ["10.0.0.1", "10.0.0.1", "10.1.0.1", "10.1.0.1"]);
        let networks: Vec<_> = (0..4).map(|cluster| plan.network(cluster)).collect();
        assert_eq!(networks, ["n1", "n2", "n1", "n2"]);
    }

    #[test]
    fn cluster_ips_differ_between_clusters() {
        let plan = plan(WorldOptions::default()).expect("small");
        assert_ne!(plan.cluster_ip(0, 0), plan.cluster_ip(1, 0));
    }

    #[test]
    fn a_world_without_room_is_refused() {
        let options =
            WorldOptions { services: 1 << 20, endpoints: 1 << 20, ..WorldOptions::default() };
        assert!(matches!(plan(options), Err(WorldError::TooLarge("endpoints"))));
        let options = WorldOptions { clusters: 50, services: 2000, ..WorldOptions::default() };
        assert!(plan(options).is_ok());
    }

    #[test]
    fn names_are_the_same_in_all_clusters_or_in_none() {
        for same_names in [true, false] {
            let options = WorldOptions { same_names, ..WorldOptions::default() };
            let plan = plan(options).expect("small");
            assert_eq!(plan.service(0, 25) == plan.service(1, 25), same_names);
        }
    }

    #[test]
    fn the_same_seed_makes_the_same_objects() {
        let objects = |seed| {
            let options = WorldOptions { seed, pods: true, ..WorldOptions::default() };
            let store = Store::new("c1", 10);
            plan(options).expect("small").fill(0, &store).expect("valid");
            let slices = store.all("EndpointSlice");
            slices.iter().map(|slice| slice.value()["endpoints"].clone()).collect::<Vec<_>>()
        };
        assert_eq!(objects(1), objects(1));
        assert_ne!(objects(1), objects(2));
    }
}
