//! A property test: a joining cluster adds resources and removes none (docs/reference/interface.md,
//! "Merging"). In a random mesh, each proxy keeps everything that it received from older clusters.
//! After the younger cluster is removed, all resources are equal to the previous ones, byte for
//! byte.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::Value;

use super::{Cache, ProxyConfig};
use strait_base::testing::rounds;
use strait_mesh::push::PushContext;
use strait_mesh::push::event_loop::{MeshEvent, MeshState};
use strait_mesh::push::view::assignment;
use strait_mesh::testing::settings;
use strait_model::registry::RegistryUpdate;
use strait_model::testing::{
    endpoint, host, labels, member, port, removed, service, shard, sidecar,
};
use strait_model::{
    Endpoint, ExportTo, Health, Hostname, KnownCluster, KnownClusters, Labels, Port, Proxy,
    ProxyType, Resolution, Service, TlsMode,
};
use strait_proto::json::to_json;
use strait_xds::names::OutboundName;
use strait_xds::resource::{Resource, ResourceSource, ResourceType};

/// The younger cluster, whose ID sorts before the others.
const YOUNGER: &str = "a-new-one";
const OLDER: [(&str, i64); 3] = [("east", 100), ("west", 200), ("north", 200)];

fn clusters_event(with: bool) -> MeshEvent {
    let known_cluster = |created| KnownCluster { created: Some(created), ..member(None) };
    let mut clusters: BTreeMap<_, _> =
        OLDER.into_iter().map(|(id, created)| (id.into(), known_cluster(created))).collect();
    if with {
        clusters.insert(YOUNGER.into(), known_cluster(300));
    }
    MeshEvent::Clusters(Arc::new(KnownClusters { clusters }))
}

fn some<'a, T>(random: &mut StdRng, choices: &'a [T]) -> &'a T {
    choices.choose(random).expect("not empty")
}

fn some_ports(random: &mut StdRng) -> Vec<Port> {
    let mut ports: Vec<Port> = Vec::new();
    for _ in 0..random.random_range(1..4) {
        let name = some(random, &["http", "http-b", "tcp", "tcp-b", "odd", "udp", "https"]);
        let number = *some(random, &[80, 81, 5432, 9080]);
        if ports.iter().all(|port| *port.name != **name && port.number != number) {
            ports.push(port(name, number, number + 8000));
        }
    }
    ports
}

fn some_service(random: &mut StdRng, name: &str) -> Service {
    let mut service = service(name);
    service.ports = some_ports(random);
    service.created = random.random_range(1..5);
    match random.random_range(0..12) {
        0..4 => service.resolution = Resolution::Headless,
        4 => service.resolution = Resolution::Alias(host("web.ns")),
        // Service address ranges of clusters may overlap.
        _ => service = service.vip(&format!("10.1.0.{}", random.random_range(1..6))),
    }
    match random.random_range(0..16) {
        0 => service.export_to = ExportTo::Namespaces(vec!["ns".into()]),
        2 => service.node_local = true,
        _ => {}
    }
    // In all clusters: a shared service takes precedence over services that clusters keep local.
    if name == "old.shop" {
        service.sharing.export = Some(false);
    }
    service
}

fn some_endpoints(random: &mut StdRng, service: &Service) -> Vec<Endpoint> {
    let mut all = Vec::new();
    for _ in 0..random.random_range(0..4) {
        let address = format!("10.0.0.{}", random.random_range(2..9));
        let health =
            *some(random, &[Health::Healthy, Health::Healthy, Health::Healthy, Health::Unhealthy]);
        let tls_mode = *some(random, &[TlsMode::Istio, TlsMode::Istio, TlsMode::Disabled]);
        let is_pod = random.random_ratio(5, 6);
        for port in &service.ports {
            let mut endpoint = Endpoint { health, tls_mode, ..endpoint(&address) };
            endpoint.port_name = port.name.clone();
            endpoint.port = port.number + 8000;
            endpoint.workload = endpoint.workload.filter(|_| is_pod);
            all.push(endpoint);
        }
    }
    all
}

/// Returns a random update of a cluster. All pods of the cluster have different addresses, as in a
/// real cluster.
fn some_update(random: &mut StdRng, cluster: &str, epoch: u64) -> RegistryUpdate {
    let network = *some(random, &["", "n1", "n1", "n2"]);
    let mut update = shard(cluster, epoch).network(network);
    if random.random_bool(0.6) {
        let address = format!("203.0.113.{epoch}");
        update = update.with(service("gw.strait-system").gateway_of(network, &address), vec![]);
    }
    for name in ["web.ns", "db.ns", "cart.ns", "old.shop"] {
        if random.random_bool(0.7) {
            let service = some_service(random, name);
            let endpoints = some_endpoints(random, &service);
            update = update.with(service, endpoints);
        }
    }
    update.built()
}

fn proxies() -> Vec<Proxy> {
    let mut all = Vec::new();
    for (cluster, _) in OLDER {
        let gateway = labels(&[("topology.istio.io/network", "n1")]);
        for (kind, labels) in [(ProxyType::Sidecar, Labels::new()), (ProxyType::Router, gateway)] {
            all.push(Proxy { kind, labels, ..sidecar("client.ns", cluster) });
        }
    }
    all
}

/// The encoded resources of a proxy, by type and name.
type Bytes = BTreeMap<(&'static str, String), Vec<u8>>;

/// The resources of a proxy in encoded and decoded form.
#[derive(Debug)]
struct ReceivedResources {
    bytes: Bytes,
    json: BTreeMap<(&'static str, String), Value>,
    /// The endpoints by service and port: address, port, and whether mTLS is used.
    members: BTreeMap<(Hostname, u16), BTreeSet<JoinedMember>>,
}

/// See [`ReceivedResources::members`].
type JoinedMember = (IpAddr, u16, bool);

const KINDS: [(&str, ResourceType); 2] =
    [("cds", ResourceType::Cluster), ("lds", ResourceType::Listener)];

fn received(context: &Arc<PushContext>, proxy: &Proxy) -> ReceivedResources {
    let cache = Cache::default();
    let network = context.network_of_cluster(&proxy.cluster);
    let mut proxy_config = ProxyConfig::new(context, proxy, network, &cache);
    let mut bytes = Bytes::new();
    let mut json = BTreeMap::new();
    let mut take = |kind: &'static str, resource_type: ResourceType, resource: &Resource| {
        let name = (kind, resource.name.to_string());
        json.insert(
            name.clone(),
            to_json(resource_type.url(), &resource.body.to_bytes()).expect("a message"),
        );
        bytes.insert(name, resource.body.to_bytes().to_vec());
    };
    for (kind, resource_type) in KINDS {
        let all = proxy_config.all(resource_type);
        for resource in all.shared.resources().iter().chain(&all.own) {
            take(kind, resource_type, resource);
        }
    }
    let mut members: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for service in context.all_services() {
        for number in [80, 81, 5432, 9080] {
            let name = OutboundName::sidecar(service.hostname().clone(), number).to_string();
            let endpoints =
                proxy_config.one(ResourceType::Endpoint, &name).expect("always an answer");
            take("eds", ResourceType::Endpoint, &endpoints);
            let route = format!("{}:{number}", service.hostname());
            for route in [number.to_string(), route] {
                let routes =
                    proxy_config.one(ResourceType::Route, &route).expect("always an answer");
                take("rds", ResourceType::Route, &routes);
            }
            let assigned =
                assignment(context, &proxy_config.inputs.view, service, number).localities;
            let all = assigned.iter().flat_map(|group| &group.members);
            let all = all.map(|one| (one.address, one.port, one.tls_mode == TlsMode::Istio));
            members.entry((service.hostname().clone(), number)).or_default().extend(all);
        }
    }
    ReceivedResources { bytes, json, members }
}

impl ReceivedResources {
    /// Returns whether the upstream cluster with this name has an endpoint.
    fn has_endpoints(&self, name: &str) -> bool {
        let members = OutboundName::parts(name).and_then(|(host, port, ..)| {
            let mut all = self.members.iter();
            all.find(|((hostname, number), _)| hostname.as_str() == host && *number == port)
        });
        members.is_some_and(|(_, members)| !members.is_empty())
    }
}

/// Returns the parts of an upstream cluster that affect where and how requests are sent.
fn manner(cluster: &Value) -> Value {
    let options = cluster["typed_extension_protocol_options"].to_string();
    serde_json::json!({
        "type": cluster["type"],
        "mtls": cluster.get("transport_socket").is_some(),
        "http2": options.contains("http2_protocol_options"),
        "auto": options.contains("use_downstream_protocol_config"),
    })
}

fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().map_or(&[], Vec::as_slice)
}

/// Returns resources that are missing or different in `after`.
fn lost(before: &ReceivedResources, after: &ReceivedResources) -> Vec<String> {
    let mut lost = Vec::new();
    for ((kind, name), old) in &before.json {
        let Some(new) = after.json.get(&(*kind, name.clone())) else {
            lost.push(format!("{kind} {name} has gone"));
            continue;
        };
        let same = match *kind {
            "cds" => {
                let (mut was, mut is) = (manner(old), manner(new));
                if !before.has_endpoints(name) {
                    // No pod of an older cluster determined the TLS mode.
                    was["mtls"] = Value::Null;
                    is["mtls"] = Value::Null;
                }
                was == is
            }
            "lds" => {
                let chains = list(new, "filter_chains");
                list(old, "filter_chains").iter().all(|chain| chains.contains(chain))
                    && old["default_filter_chain"] == new["default_filter_chain"]
                    && old["address"] == new["address"]
            }
            "rds" => list(old, "virtual_hosts").iter().all(|host| {
                list(new, "virtual_hosts").iter().any(|other| {
                    let domains = list(other, "domains");
                    other["name"] == host["name"]
                        && other["routes"] == host["routes"]
                        && list(host, "domains").iter().all(|domain| domains.contains(domain))
                })
            }),
            _ => true,
        };
        if !same {
            lost.push(format!("{kind} {name} was\n{old:#}\nand is\n{new:#}"));
        }
    }
    for (key, members) in &before.members {
        let now = after.members.get(key).cloned().unwrap_or_default();
        lost.extend(members.difference(&now).map(|member| format!("{key:?} lacks {member:?}")));
    }
    lost
}

#[test]
fn joining_cluster_removes_nothing_and_leaves_nothing_behind() {
    let (mut added, mut shared) = (0, 0);
    let rounds = rounds(25);
    for seed in 0..rounds {
        let random = &mut StdRng::seed_from_u64(seed);
        let mut mesh = MeshState::new(settings());
        mesh.apply(clusters_event(false));
        for (epoch, (cluster, _)) in (1..).zip(OLDER) {
            mesh.apply(MeshEvent::Registry(some_update(random, cluster, epoch)));
        }
        mesh.apply(MeshEvent::Complete);
        let (context, _) = mesh.next_version().expect("a first version");
        let before: Vec<ReceivedResources> =
            proxies().iter().map(|proxy| received(&context, proxy)).collect();

        mesh.apply(clusters_event(true));
        mesh.apply(MeshEvent::Registry(some_update(random, YOUNGER, 9)));
        let (context, _) = mesh.next_version().expect("a cluster more");
        shared += context.same_addresses.iter().count();
        for (proxy, before) in proxies().iter().zip(&before) {
            let after = received(&context, proxy);
            let lost = lost(before, &after);
            let who = (proxy.kind, &proxy.cluster);
            assert!(lost.is_empty(), "seed {seed}, {who:?}:\n{}", lost.join("\n"));
            added += after.bytes.len() - before.bytes.len();
        }

        mesh.apply(MeshEvent::Registry(removed(YOUNGER, 9)));
        mesh.apply(clusters_event(false));
        let (context, _) = mesh.next_version().expect("a cluster less");
        assert!(context.same_addresses.iter().all(|(_, _, who)| !who.contains(&YOUNGER.into())));
        for (proxy, before) in proxies().iter().zip(&before) {
            let after = received(&context, proxy);
            assert!(after.bytes == before.bytes, "seed {seed}: something stayed behind");
        }
    }
    let rounds = usize::try_from(rounds).expect("few");
    assert!(added > 2 * rounds && shared > rounds / 8, "{added} {shared}");
}

/// Regression test: a younger plain-text pod changed an older headless mTLS service to plain text.
#[test]
fn pods_of_the_first_cluster_decide_mtls_of_a_headless_service() {
    let headless = || service("web.ns").with(|web| web.resolution = Resolution::Headless);
    let plain = |address: &str| Endpoint { tls_mode: TlsMode::Disabled, ..endpoint(address) };
    for (older, younger, mtls) in [("east", "west", true), ("west", "east", false)] {
        let mut mesh = MeshState::new(settings());
        let created = |id: &str| Some(if id == older { 1 } else { 2 });
        let clusters = [older, younger]
            .map(|id| (id.into(), KnownCluster { created: created(id), ..member(None) }));
        mesh.apply(MeshEvent::Clusters(Arc::new(KnownClusters { clusters: clusters.into() })));
        let east = shard("east", 1).with(headless(), vec![endpoint("10.0.0.1")]).built();
        let west = shard("west", 2).with(headless(), vec![plain("10.0.0.2")]).built();
        for update in [east, west] {
            mesh.apply(MeshEvent::Registry(update));
        }
        mesh.apply(MeshEvent::Complete);
        let (context, _) = mesh.next_version().expect("a first version");
        let received = received(&context, &sidecar("client.ns", "north"));
        let upstream = &received.json[&("cds", format!("outbound|80||{}", host("web.ns")))];
        assert_eq!(upstream.get("transport_socket").is_some(), mtls, "{older} is older");
    }
}
