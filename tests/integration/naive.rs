//! A second implementation of the assignments that a proxy should have, with plain loops over
//! Kubernetes objects as JSON.
//!
//! It was written only from docs/reference/interface.md ("Networks", "Merging"). It shares no code
//! with the product, is slow, and supports only the simulated objects: IPv4, one slice per service,
//! weight 1, clusters of equal age, and equal definitions of a service in all clusters, except for
//! its ports.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::mesh::{Proxy, SYSTEM};
use strait_proto::json::to_json;
use strait_sim::Store;
use strait_xds::resource::ResourceType;
use strait_xds_client::ClientContents;

const NETWORK_LABEL: &str = "topology.istio.io/network";

/// All inputs of the assignments.
#[derive(Debug, Default)]
pub(crate) struct World {
    /// The members, by ID.
    pub(crate) clusters: BTreeMap<String, Cluster>,
    pub(crate) mesh_networks: MeshNetworks,
}

/// A member cluster.
#[derive(Debug, Default)]
pub(crate) struct Cluster {
    /// The network in the Secret's annotation.
    pub(crate) fixed_network: Option<String>,
    /// Its objects as last seen.
    pub(crate) objects: Objects,
}

/// Mesh networks, without contradictions.
#[derive(Debug, Default)]
pub(crate) struct MeshNetworks {
    /// Networks by cluster.
    pub(crate) registries: BTreeMap<String, String>,
    /// Networks by address range.
    pub(crate) ranges: BTreeMap<String, String>,
    /// Gateways: network, address and port.
    pub(crate) gateways: BTreeSet<(String, String, u16)>,
}

impl MeshNetworks {
    /// Returns them in Istio's format.
    pub(crate) fn to_json(&self) -> Value {
        let mut networks = json!({});
        let mut add = |network: &str, list: &str, entry: Value| {
            let network = &mut networks[network];
            if !network.is_object() {
                *network = json!({ "endpoints": [], "gateways": [] });
            }
            network[list].as_array_mut().expect("a list").push(entry);
        };
        for (cluster, network) in &self.registries {
            add(network, "endpoints", json!({ "fromRegistry": cluster }));
        }
        for (range, network) in &self.ranges {
            add(network, "endpoints", json!({ "fromCidr": range }));
        }
        for (network, address, port) in &self.gateways {
            add(network, "gateways", json!({ "address": address, "port": port }));
        }
        json!({ "networks": networks })
    }

    /// Returns the network of the longest range that contains the address.
    fn network_at(&self, address: &str) -> Option<&String> {
        let bits = |text: &str| u32::from(text.parse::<std::net::Ipv4Addr>().expect("IPv4"));
        let mut best: Option<(u32, &String)> = None;
        for (range, network) in &self.ranges {
            let (base, length) = range.split_once('/').expect("a range");
            let length: u32 = length.parse().expect("a length");
            let is_in = bits(base) >> (32 - length) == bits(address) >> (32 - length);
            if is_in && best.is_none_or(|(longest, _)| length > longest) {
                best = Some((length, network));
            }
        }
        best.map(|(_, network)| network)
    }
}

/// The objects of one cluster.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    services: Vec<Value>,
    slices: Vec<Value>,
    pods: Vec<Value>,
    nodes: Vec<Value>,
    namespaces: Vec<Value>,
}

impl Objects {
    /// Returns the current objects of a store.
    pub(crate) fn from_store(store: &Store) -> Self {
        let all = |kind: &str| store.all(kind).iter().map(|object| object.value()).collect();
        Self {
            services: all("Service"),
            slices: all("EndpointSlice"),
            pods: all("Pod"),
            nodes: all("Node"),
            namespaces: all("Namespace"),
        }
    }

    /// Returns the pod that an endpoint names, or the pod with its address.
    fn endpoint_pod(&self, namespace: &str, endpoint: &Value) -> Option<&Value> {
        self.pod(namespace, |pod| match endpoint["targetRef"]["name"].as_str() {
            Some(named) => text(pod, "/metadata/name") == named,
            None => text(pod, "/status/podIP") == text(endpoint, "/addresses/0"),
        })
    }

    fn pod(&self, namespace: &str, test: impl Fn(&Value) -> bool) -> Option<&Value> {
        self.pods.iter().find(|pod| pod["metadata"]["namespace"] == namespace && test(pod))
    }
}

fn label<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object["metadata"]["labels"][key].as_str().filter(|text| !text.is_empty())
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Weights by locality, address, port and whether mTLS is used.
pub(crate) type Members = BTreeMap<(String, String, u64, bool), u64>;

impl World {
    fn network(&self, cluster: &str, pod_label: Option<&str>, address: &str) -> String {
        let state = &self.clusters[cluster];
        let namespace =
            state.objects.namespaces.iter().find(|one| text(one, "/metadata/name") == SYSTEM);
        let claims = [
            state.fixed_network.as_deref(),
            pod_label,
            namespace.and_then(|one| label(one, NETWORK_LABEL)),
            self.mesh_networks.registries.get(cluster).map(String::as_str),
            self.mesh_networks.network_at(address).map(String::as_str),
        ];
        claims.into_iter().flatten().next().unwrap_or_default().to_owned()
    }

    fn proxy_network(&self, proxy: &Proxy) -> String {
        if let Some(claimed) = proxy.network {
            return claimed.to_owned();
        }
        let objects = &self.clusters[&proxy.cluster].objects;
        let pod = objects.pod(proxy.namespace, |pod| text(pod, "/metadata/name") == proxy.name);
        let own = pod.and_then(|pod| label(pod, NETWORK_LABEL));
        self.network(&proxy.cluster, own, &proxy.ip)
    }

    /// Returns the gateways through which a cluster's endpoints in a network are reached.
    fn gateways(&self, network: &str, home_cluster: &str) -> BTreeSet<(String, u64)> {
        let mut own = BTreeSet::new();
        let mut all = BTreeSet::new();
        for (id, cluster) in &self.clusters {
            for service in &cluster.objects.services {
                // A fixed network also applies to gateways.
                let claimed = label(service, NETWORK_LABEL);
                let fixed = cluster.fixed_network.as_deref();
                if claimed.map(|claimed| fixed.unwrap_or(claimed)) != Some(network) {
                    continue;
                }
                let ingress =
                    service.pointer("/status/loadBalancer/ingress").and_then(Value::as_array);
                for address in ingress.into_iter().flatten() {
                    let gateway = (text(address, "/ip").to_owned(), 15443);
                    if id == home_cluster {
                        own.insert(gateway.clone());
                    }
                    all.insert(gateway);
                }
            }
        }
        for (gateway_network, address, port) in &self.mesh_networks.gateways {
            if gateway_network == network {
                all.insert((address.clone(), u64::from(*port)));
            }
        }
        if own.is_empty() { all } else { own }
    }

    /// Returns whether a Service is a gateway in the first cluster that has it, which decides its
    /// visibility.
    fn is_entrance(&self, namespace: &str, name: &str) -> bool {
        let is_it = |object: &&Value| {
            text(object, "/metadata/name") == name
                && text(object, "/metadata/namespace") == namespace
        };
        let mut clusters = self.clusters.values();
        let first = clusters.find_map(|cluster| cluster.objects.services.iter().find(is_it));
        let network = first.and_then(|service| label(service, NETWORK_LABEL));
        network.is_some_and(|name| !name.is_empty())
    }

    /// Returns whether the proxy is an east-west gateway.
    fn is_gateway(&self, proxy: &Proxy) -> bool {
        let services = &self.clusters[&proxy.cluster].objects.services;
        proxy.kind == "router"
            && services.iter().any(|service| {
                text(service, "/metadata/namespace") == proxy.namespace
                    && label(service, NETWORK_LABEL).is_some()
                    && proxy
                        .labels
                        .iter()
                        .any(|(key, value)| service["spec"]["selector"][key] == **value)
            })
    }
}

/// Returns the assignments that the proxy should have, by name.
pub(crate) fn assignments(world: &World, proxy: &Proxy) -> BTreeMap<String, Members> {
    let mut all = BTreeMap::new();
    let claims = claims(world);
    let is_gateway = world.is_gateway(proxy);
    if proxy.kind == "router" && !is_gateway {
        return all;
    }
    for cluster in world.clusters.values() {
        for service in &cluster.objects.services {
            let (name, namespace) =
                (text(service, "/metadata/name"), text(service, "/metadata/namespace"));
            let export_to = text(service, "/metadata/annotations/networking.istio.io~1exportTo");
            // No workload calls a gateway.
            let is_entrance = world.is_entrance(namespace, name);
            let is_public = export_to.is_empty() && !is_entrance;
            let visible = is_public
                || export_to == proxy.namespace
                || (export_to == "." && namespace == proxy.namespace);
            let is_headless = text(service, "/spec/clusterIP") == "None";
            let wanted = if is_gateway { is_public } else { visible && !is_headless };
            if !wanted {
                continue;
            }
            for port in service["spec"]["ports"].as_array().into_iter().flatten() {
                let host = format!("{name}.{namespace}.svc.cluster.local");
                let number = &port["port"];
                let resource = if is_gateway {
                    format!("outbound_.{number}_._.{host}")
                } else {
                    format!("outbound|{number}||{host}")
                };
                let (port_name, claims) = (text(port, "/name"), &claims);
                let service = PortQuery { namespace, name, is_public, number, port_name, claims };
                // The name of a port number comes from the first cluster that has it.
                all.entry(resource).or_insert_with(|| members(world, proxy, is_gateway, &service));
            }
        }
    }
    all
}

/// A port of a service.
struct PortQuery<'a> {
    namespace: &'a str,
    name: &'a str,
    /// Gateways carry only services that are exported to all namespaces.
    is_public: bool,
    number: &'a Value,
    port_name: &'a str,
    claims: &'a Claims<'a>,
}

/// The clusters with pods at an address, by network and address.
type Claims<'a> = BTreeMap<(String, &'a str), BTreeSet<&'a str>>;

fn claims(world: &World) -> Claims<'_> {
    let mut claims = Claims::new();
    for (id, cluster) in &world.clusters {
        let objects = &cluster.objects;
        for slice in &objects.slices {
            let part = |object: &Value, path: &str| text(object, path).to_owned();
            let place = ["/metadata/namespace", "/metadata/name"];
            let is_it = |service: &&Value| place.map(|at| part(service, at) == part(slice, at));
            if !objects.services.iter().any(|service| is_it(&service) == [true; 2]) {
                continue;
            }
            for endpoint in slice["endpoints"].as_array().into_iter().flatten() {
                let address = text(endpoint, "/addresses/0");
                let pod = objects.endpoint_pod(text(slice, "/metadata/namespace"), endpoint);
                if let (Some(pod), true) = (pod, endpoint["conditions"]["ready"] == true) {
                    let network = world.network(id, label(pod, NETWORK_LABEL), address);
                    claims.entry((network, address)).or_default().insert(id.as_str());
                }
            }
        }
    }
    claims
}

fn members(world: &World, proxy: &Proxy, is_gateway: bool, query: &PortQuery<'_>) -> Members {
    let PortQuery { namespace, name, is_public, number, port_name, claims } = *query;
    let here = world.proxy_network(proxy);
    let mut direct: BTreeMap<(String, String, u64), bool> = BTreeMap::new();
    // For each endpoint in another network: its locality and its gateways.
    let mut elsewhere: Vec<(String, BTreeSet<(String, u64)>)> = Vec::new();
    for (id, cluster) in &world.clusters {
        let objects = &cluster.objects;
        let is_it = |object: &&Value| {
            text(object, "/metadata/name") == name
                && text(object, "/metadata/namespace") == namespace
        };
        // A slice without its Service is ignored.
        let Some(service) = objects.services.iter().find(is_it) else { continue };
        let mut own = service["spec"]["ports"].as_array().into_iter().flatten();
        let own = own.find(|port| port["port"] == *number);
        let port_name = own.map_or(port_name, |port| text(port, "/name"));
        for slice in objects.slices.iter().filter(is_it) {
            let ports = slice["ports"].as_array().into_iter().flatten();
            for port in ports.filter(|port| port["name"] == port_name) {
                let port = port["port"].as_u64().expect("a port");
                for endpoint in slice["endpoints"].as_array().into_iter().flatten() {
                    let address = text(endpoint, "/addresses/0");
                    let named = endpoint["targetRef"]["name"].as_str();
                    let pod = objects.endpoint_pod(namespace, endpoint);
                    let ready = endpoint["conditions"]["ready"] == true;
                    if !ready || (named.is_some() && pod.is_none()) {
                        continue;
                    }
                    let mtls = pod.and_then(|pod| label(pod, "security.istio.io/tlsMode"))
                        == Some("istio");
                    let own = pod.and_then(|pod| label(pod, NETWORK_LABEL));
                    let network = world.network(id, own, address);
                    // One address is one pod: the pod of the proxy's cluster, or else that of the
                    // first cluster.
                    let claimants =
                        claims.get(&(network.clone(), address)).filter(|_| pod.is_some());
                    let holder = claimants.and_then(|all| match all.get(&*proxy.cluster) {
                        Some(own) => Some(own),
                        None => all.first(),
                    });
                    if holder.is_some_and(|holder| *holder != id.as_str()) {
                        continue;
                    }
                    let node = text(endpoint, "/nodeName");
                    let node = objects.nodes.iter().find(|one| text(one, "/metadata/name") == node);
                    let part =
                        |key: &str| node.and_then(|node| label(node, key)).unwrap_or_default();
                    let locality = format!(
                        "{}/{}",
                        part("topology.kubernetes.io/region"),
                        part("topology.kubernetes.io/zone")
                    );
                    if network == here {
                        if mtls || !is_gateway {
                            let place = (locality, address.to_owned(), port);
                            direct.entry(place).or_insert(mtls);
                        }
                    } else if mtls && !is_gateway && is_public {
                        elsewhere.push((locality, world.gateways(&network, id)));
                    }
                }
            }
        }
    }
    // The weight of one endpoint, so that it can be divided evenly.
    elsewhere.retain(|(_, gateways)| !gateways.is_empty());
    let whole = elsewhere.iter().fold(1, |whole, (_, gateways)| {
        let count = gateways.len() as u64;
        whole / gcd(whole, count) * count
    });
    let mut through: BTreeMap<(String, u64), BTreeMap<String, u64>> = BTreeMap::new();
    for (locality, gateways) in &elsewhere {
        for gateway in gateways {
            let by_locality = through.entry(gateway.clone()).or_default();
            *by_locality.entry(locality.clone()).or_default() += whole / gateways.len() as u64;
        }
    }
    let mut all = Members::new();
    for ((locality, address, port), mtls) in direct {
        all.insert((locality, address, port, mtls && !is_gateway), whole);
    }
    for ((address, port), by_locality) in through {
        let sum = by_locality.values().sum();
        // The first locality, in order, among the ones with the maximum weight.
        let most = by_locality.values().max().copied().unwrap_or_default();
        let home = by_locality.iter().find(|(_, share)| **share == most).expect("one").0;
        all.insert((home.clone(), address, port, true), seven_digits(sum));
    }
    let unit = all.values().fold(whole, |unit, weight| gcd(unit, *weight));
    all.values_mut().for_each(|weight| *weight /= unit);
    all
}

/// Returns the nearest number with seven significant binary digits (docs/contributing/decisions/0009).
fn seven_digits(weight: u64) -> u64 {
    let mut step = 1;
    while weight / step >= 128 {
        step *= 2;
    }
    (weight + step / 2) / step * step
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Returns the assignments that a proxy has, in the same format. Pods of headless services in other
/// networks are left out: tests of `remote_pods` compare them.
pub(crate) fn received_assignments(contents: &ClientContents) -> BTreeMap<String, Members> {
    let names = contents.names(ResourceType::Endpoint);
    let names = names.filter(|name| !name.starts_with("remote|"));
    names.map(|name| (name.to_owned(), decode_members(contents, name))).collect()
}

fn decode_members(contents: &ClientContents, name: &str) -> Members {
    let body = contents.body(ResourceType::Endpoint, name).expect("held");
    let assignment = to_json(ResourceType::Endpoint.url(), body).expect("decodable");
    let cluster = contents.body(ResourceType::Cluster, name);
    let cluster =
        cluster.map(|body| to_json(ResourceType::Cluster.url(), body).expect("decodable"));
    let cluster = cluster.unwrap_or_default();
    let mut all = Members::new();
    for locality in assignment["endpoints"].as_array().into_iter().flatten() {
        let place =
            format!("{}/{}", text(locality, "/locality/region"), text(locality, "/locality/zone"));
        for member in locality["lb_endpoints"].as_array().into_iter().flatten() {
            let socket = &member["endpoint"]["address"]["socket_address"];
            // As Envoy selects it: by the member's own metadata, or else by the cluster's default.
            let tls_metadata =
                &member["metadata"]["filter_metadata"]["envoy.transport_socket_match"];
            let matches = cluster["transport_socket_matches"].as_array().into_iter().flatten();
            let matching = |one: &&Value| one["match"]["tlsMode"] == tls_metadata["tlsMode"];
            let chosen = matches.clone().find(matching).unwrap_or(&cluster);
            let mtls = text(chosen, "/transport_socket/name").ends_with(".tls");
            assert!(locality.get("metadata").is_none(), "Envoy ignores its changes");
            let address = text(socket, "/address").to_owned();
            let port = socket["port_value"].as_u64().expect("a port");
            let weight = member["load_balancing_weight"].as_u64().unwrap_or(1);
            let twice = all.insert((place.clone(), address, port, mtls), weight);
            assert!(twice.is_none(), "{name}: an address twice in one locality: {assignment:#}");
        }
    }
    all
}
