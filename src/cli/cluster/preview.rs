//! Preview of the effects of adding a cluster, which `strait cluster add` prints with and without
//! `--dry-run`.
//!
//! It compares the objects of the cluster with the mesh as the control plane reports it. It reads
//! with the operator's own credential and changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;

use super::api::{ClusterApi, ROOTS};
use crate::cli::client::{AdminClient, Connect};
use crate::cli::output::{items, text};
use strait_admin_api::{ClusterAddresses, Network, Service};
use strait_base::names::list_first;
use strait_model::{GATEWAY_PORT_LABEL, NETWORK_LABEL, Protocol, gateway_port};

/// Maximum number of printed names in a list.
const NAMES_SHOWN: usize = 8;
/// Number of addresses in one request to the control plane.
const ADDRESSES_ASKED: usize = 200;

/// Facts about the cluster to be added and about the mesh.
#[derive(Debug, Default)]
struct PreviewFacts {
    /// ID of the cluster to be added.
    id: String,
    /// Whether the command also creates the gateway of its network.
    creates_gateway: bool,
    /// Services of the cluster to be added.
    services: Value,
    slices: Value,
    nodes: Value,
    /// Network of the cluster, if a flag or label names one.
    network: Option<String>,
    /// Name of the system namespace.
    namespace: String,
    /// Services of the mesh; `None` if the control plane can't be queried.
    merged: Option<Vec<Service>>,
    networks: Vec<Network>,
    /// Members with pods in the same network: their addresses and ranges.
    addresses: Vec<ClusterAddresses>,
    /// Root certificates that workloads trust, in the new cluster and in the config cluster.
    roots: (Option<String>, Option<String>),
}

/// Returns the lines of the preview. Facts that cannot be read are reported, and the others are
/// still shown.
pub(super) async fn preview(
    (id, remote): (&str, &ClusterApi),
    hub: &ClusterApi,
    namespace: &str,
    (network, creates_gateway): (Option<&str>, bool),
    connect: &Connect,
) -> String {
    let list = async |path: &str| match remote.get(path).await {
        Ok(found) => (found.unwrap_or_default(), None),
        Err(failure) => (Value::Null, Some(failure.message().to_owned())),
    };
    let (services, no_services) = list("/api/v1/services").await;
    let (slices, no_slices) = list("/apis/discovery.k8s.io/v1/endpointslices").await;
    let (nodes, _) = list("/api/v1/nodes").await;
    let (system, _) = list(&format!("/api/v1/namespaces/{namespace}")).await;
    let label = system["metadata"]["labels"][NETWORK_LABEL].as_str();
    let roots = async |cluster: &ClusterApi| {
        let found = cluster.published_roots(namespace).await.ok().flatten()?;
        Some(found.trim().to_owned())
    };
    let mut facts = PreviewFacts {
        id: id.to_owned(),
        creates_gateway,
        services,
        slices,
        nodes,
        network: network.or(label).map(str::to_owned),
        namespace: namespace.to_owned(),
        roots: (roots(remote).await, roots(hub).await),
        ..PreviewFacts::default()
    };
    let mut trouble: Vec<String> = no_services.into_iter().chain(no_slices).collect();
    let mesh_facts = async {
        let client = AdminClient::new(connect).await?;
        let merged = client.get("/debug/services", &[]).await?.read()?;
        let networks = client.get("/debug/networks", &[]).await?.read()?;
        let network = facts.network.clone().unwrap_or_default();
        let mut addresses: Vec<ClusterAddresses> = Vec::new();
        let pods: Vec<String> = pod_addresses(&facts).iter().map(ToString::to_string).collect();
        // One request even without addresses: the response contains the ranges of other clusters'
        // pods.
        let none: &[String] = &[];
        let chunks = pods.chunks(ADDRESSES_ASKED).chain(pods.is_empty().then_some(none));
        for some in chunks {
            let query = [("network", network.as_str()), ("address", &some.join(","))];
            addresses.extend(client.get("/debug/addresses", &query).await?.read::<Vec<_>>()?);
        }
        Ok::<_, crate::cli::failure::CommandFailure>((merged, networks, addresses))
    };
    match mesh_facts.await {
        Ok((merged, networks, addresses)) => {
            (facts.merged, facts.networks, facts.addresses) = (Some(merged), networks, addresses);
        }
        Err(failure) => trouble.push(failure.message().to_owned()),
    }
    let mut out = "What would change\n".to_owned();
    out.extend(changes(&facts).iter().map(|line| format!("  {line}\n")));
    out.extend(trouble.iter().map(|fact| format!("  ? incomplete: {fact}\n")));
    out
}

/// Returns the effects, a line each.
fn changes(facts: &PreviewFacts) -> Vec<String> {
    let mut lines = Vec::new();
    let services: BTreeMap<String, &Value> =
        items(&facts.services["items"]).iter().map(|one| (name_of(one), one)).collect();
    let network = facts.network.as_deref().unwrap_or_default();
    let shown = if network.is_empty() { "\"\" (no label or flag names one)" } else { network };
    let endpoints: usize = items(&facts.slices["items"]).iter().map(ready).sum();
    lines.push(format!(
        "{} services with {endpoints} ready endpoints would be added, in network {shown}",
        services.len()
    ));
    if let Some(merged) = &facts.merged {
        // A cluster that is added again within its grace period is still listed. It is not compared
        // with itself.
        let is_other = |row: &&Service| row.clusters != [facts.id.as_str()];
        let known: BTreeMap<String, &Service> = merged
            .iter()
            .filter(is_other)
            .filter_map(|row| {
                let mut parts = row.hostname.split('.');
                Some((format!("{}.{}", parts.next()?, parts.next()?), row))
            })
            .collect();
        let shared: Vec<&String> =
            services.keys().filter(|name| known.contains_key(*name)).collect();
        lines.push(format!(
            "{} of them would be merged with services of the mesh{}",
            shared.len(),
            named(&shared)
        ));
        lines.extend(conflicts(
            shared
                .iter()
                .filter_map(|name| Some((*name, *services.get(*name)?, *known.get(*name)?))),
        ));
        lines.extend(same_addresses(facts, network));
        let others: BTreeSet<&str> = facts
            .networks
            .iter()
            .filter(|row| matters(facts, row))
            .map(|row| row.network.as_str())
            .filter(|other| *other != network)
            .collect();
        if !others.is_empty() {
            lines.extend(crossing(facts, &services, network, &others));
        }
    }
    match &facts.roots {
        (Some(there), Some(here)) if there != here => lines.push(format!(
            "! its workloads trust different root certificates than the config cluster's (ConfigMap {ROOTS}): mTLS between them will fail"
        )),
        (Some(_), Some(_)) => lines.push("its workloads trust the config cluster's root certificates".into()),
        _ => lines.push(format!("? root certificates can't be compared: ConfigMap {ROOTS} is missing in one of the clusters")),
    }
    lines
}

/// Returns whether traffic may enter or leave a network: it has gateways, or services other than
/// the ones that every cluster has. The network of the config cluster often has neither.
fn matters(facts: &PreviewFacts, network: &Network) -> bool {
    let here =
        |row: &Service| row.clusters.iter().any(|cluster| network.clusters.contains(cluster));
    let is_shared = |row: &Service| {
        let of_system = ["kube-system", &facts.namespace].contains(&row.namespace.as_str());
        !row.hostname.starts_with("kubernetes.default.") && !of_system
    };
    let mut merged = facts.merged.iter().flatten();
    !network.gateways.is_empty() || merged.any(|row| is_shared(row) && here(row))
}

/// Returns the lines about traffic between networks.
fn crossing(
    facts: &PreviewFacts,
    services: &BTreeMap<String, &Value>,
    network: &str,
    others: &BTreeSet<&str>,
) -> Vec<String> {
    let mut lines = Vec::new();
    let leads = |one: &&&Value| one["metadata"]["labels"][NETWORK_LABEL] == network;
    let gateways: Vec<_> = services.values().filter(leads).collect();
    let known = facts.networks.iter().find(|row| row.network == network);
    let has_some = known.is_some_and(|row| !row.gateways.is_empty());
    let addressed =
        gateways.iter().any(|one| !items(&one["status"]["loadBalancer"]["ingress"]).is_empty());
    if facts.creates_gateway && !addressed && !has_some {
        lines.push(
            "other networks would reach it through the gateway that this command creates".into(),
        );
    } else if gateways.is_empty() && !has_some {
        lines.push(format!(
            "! network {network:?} has no gateway: {} could not reach its endpoints (STR0401); strait network join",
            others.iter().map(|other| format!("{other:?}")).collect::<Vec<_>>().join(", ")
        ));
    } else if !gateways.is_empty() && !addressed && !has_some {
        lines.push("! its gateway has no external address yet (STR0402)".into());
    } else {
        let names: Vec<String> = gateways.iter().map(|one| name_of(one)).collect();
        let names: Vec<&String> = names.iter().collect();
        let labels = gateways.iter().map(|one| &one["metadata"]["labels"]);
        let port = labels.filter_map(|labels| labels[GATEWAY_PORT_LABEL].as_str()).next();
        lines.push(format!(
            "other networks would reach it through its gateway, port {}{}",
            gateway_port(port),
            named(&names)
        ));
    }
    for other in others {
        let row = facts.networks.iter().find(|row| row.network == **other);
        if row.is_some_and(|row| row.gateways.is_empty()) {
            lines.push(format!("! network {other:?} has no gateway: the new cluster can't reach its endpoints (STR0401)"));
        }
    }
    lines
}

fn name_of(object: &Value) -> String {
    format!("{}.{}", text(&object["metadata"]["name"]), text(&object["metadata"]["namespace"]))
}

/// Returns the differences between services of the cluster and the same services of the mesh.
/// Existing members are older, so their definitions win.
fn conflicts<'a>(
    shared: impl Iterator<Item = (&'a String, &'a Value, &'a Service)>,
) -> Vec<String> {
    let (mut more, mut fewer, mut other, mut kinds) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (name, own, merged) in shared {
        let kind = kind_of(own);
        if !merged.resolution.starts_with(kind) {
            kinds.push(format!("{name} ({kind}, {} in the mesh)", text(&merged.resolution)));
        }
        if kind == "Alias" {
            continue;
        }
        let (own, held) = (own_ports(own), merged_ports(merged));
        let numbers = |of: &PortTable, than: &PortTable| {
            let numbers = of.keys().filter(|key| !than.contains_key(*key));
            numbers.map(|(number, _)| number.to_string()).collect::<Vec<_>>().join(",")
        };
        for (list, numbers) in
            [(&mut more, numbers(&own, &held)), (&mut fewer, numbers(&held, &own))]
        {
            if !numbers.is_empty() {
                list.push(format!("{name} ({numbers})"));
            }
        }
        for ((number, _), port) in &own {
            let held = held.iter().find(|((other, _), _)| other == number);
            if let Some((_, held)) = held.filter(|(_, held)| *held != port) {
                let shown = |(port, protocol): &(String, &str)| format!("{port:?} {protocol}");
                let (own, held) = (shown(port), shown(held));
                other.push(format!("{name} (port {number}: {own}, {held} in the mesh)"));
            }
        }
    }
    let line = |sign: &str, names: Vec<String>, what: &str| {
        let shown: Vec<&String> = names.iter().collect();
        (!names.is_empty()).then(|| format!("{sign}{} {what}{}", names.len(), named(&shown)))
    };
    let lines = [
        line(
            "! ",
            kinds,
            "are of a different kind in this cluster; the kind in the mesh stays active",
        ),
        line(
            "! ",
            other,
            "have ports with a different name or protocol in this cluster; the mesh's stay active",
        ),
        line("", more, "would get more ports"),
        line(
            "! ",
            fewer,
            "lack ports in this cluster, and would serve them on ports of the same name, if any",
        ),
    ];
    lines.into_iter().flatten().collect()
}

/// Names and protocols of ports, by number and whether the port is UDP.
type PortTable = BTreeMap<(u64, bool), (String, &'static str)>;

fn own_ports(service: &Value) -> PortTable {
    let ports = items(&service["spec"]["ports"]).iter().filter_map(|port| {
        let name = port["name"].as_str().unwrap_or_default();
        let number = port["port"].as_u64()?;
        let protocol = Protocol::of_port(
            port["protocol"].as_str().unwrap_or("TCP"),
            port["appProtocol"].as_str(),
            name,
            u16::try_from(number).ok()?,
        );
        Some(((number, protocol == Protocol::Udp), (name.to_owned(), protocol.as_str())))
    });
    ports.collect()
}

fn merged_ports(service: &Service) -> PortTable {
    let ports = service.ports.iter().filter_map(|port| {
        let protocol = Protocol::named(&port.protocol)?;
        let key = (u64::from(port.port), protocol == Protocol::Udp);
        Some((key, (port.name.clone(), protocol.as_str())))
    });
    ports.collect()
}

/// Returns the kind of a Service, as in `resolution` of a merged service.
fn kind_of(service: &Value) -> &'static str {
    let spec = &service["spec"];
    match (spec["type"].as_str(), spec["clusterIP"].as_str()) {
        (_, Some("None")) => "Headless",
        (Some("ExternalName"), _) => "Alias",
        _ => "ClientSideLB",
    }
}

/// Returns the addresses of the cluster's pods that receive traffic.
fn pod_addresses(facts: &PreviewFacts) -> BTreeSet<IpAddr> {
    let endpoints =
        items(&facts.slices["items"]).iter().flat_map(|slice| items(&slice["endpoints"]));
    let pods = endpoints.filter(|one| {
        one["targetRef"]["kind"] == "Pod"
            && (one["conditions"]["ready"] != false || one["conditions"]["serving"] == true)
    });
    pods.filter_map(|one| items(&one["addresses"]).first()?.as_str()?.parse().ok()).collect()
}

fn parsed<T: std::str::FromStr>(list: &[String]) -> impl Iterator<Item = T> {
    list.iter().filter_map(|one| one.parse().ok())
}

/// Returns lines about pods of other clusters with the same addresses in the same network, or with
/// addresses in the ranges of the cluster's nodes.
fn same_addresses(facts: &PreviewFacts, network: &str) -> Vec<String> {
    let mut same: BTreeMap<&str, BTreeSet<IpAddr>> = BTreeMap::new();
    let mut ranges: BTreeMap<&str, BTreeSet<IpNet>> = BTreeMap::new();
    for row in facts.addresses.iter().filter(|row| row.cluster != facts.id) {
        same.entry(&row.cluster).or_default().extend(parsed::<IpAddr>(&row.same));
        ranges.entry(&row.cluster).or_default().extend(parsed::<IpNet>(&row.ranges));
    }
    let name_it = "if these are two networks, set a name for this one: --network NAME (STR0414)";
    let mut lines = Vec::new();
    for (cluster, addresses) in &same {
        if let Some(first) = addresses.first() {
            lines.push(format!(
                "! same address: {} of its pods have addresses of pods of {cluster} in network {network:?} (first {first}), and would be sent only to its own proxies; {name_it}",
                addresses.len()
            ));
        }
    }
    let of_nodes = items(&facts.nodes["items"]).iter().flat_map(|node| {
        let all = items(&node["spec"]["podCIDRs"]);
        if all.is_empty() { std::slice::from_ref(&node["spec"]["podCIDR"]) } else { all }
    });
    let of_nodes: Vec<IpNet> = of_nodes.filter_map(|one| one.as_str()?.parse().ok()).collect();
    for (cluster, ranges) in &ranges {
        let overlaps =
            |range: &&IpNet| of_nodes.iter().any(|own| own.contains(*range) || range.contains(own));
        let is_reported = same.get(cluster).is_some_and(|addresses| !addresses.is_empty());
        if let Some(range) = ranges.iter().find(overlaps).filter(|_| !is_reported) {
            lines.push(format!(
                "! same addresses are possible: pods of {cluster} in network {network:?} are in ranges of its nodes ({range}); {name_it}"
            ));
        }
    }
    lines
}

fn ready(slice: &Value) -> usize {
    let is_ready = |one: &&Value| one["conditions"]["ready"] != false;
    items(&slice["endpoints"]).iter().filter(is_ready).count()
}

/// Returns the first names of a list, as text.
fn named(names: &[&String]) -> String {
    match names.is_empty() {
        true => String::new(),
        false => format!(": {}", list_first(names.iter(), NAMES_SHOWN)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::output::tests::typed;

    fn service(name: &str, port: u16) -> Value {
        json!({ "metadata": { "name": name, "namespace": "shop" },
                "spec": { "ports": [{ "name": "http", "port": port }] } })
    }

    fn facts() -> PreviewFacts {
        let merged = json!([
            { "hostname": "web.shop.svc.cluster.local", "resolution": "ClientSideLB",
              "ports": [{ "name": "http", "port": 80, "protocol": "HTTP" }] },
            { "hostname": "cart.shop.svc.cluster.local", "resolution": "Headless",
              "ports": [{ "name": "http", "port": 81, "protocol": "HTTP" }] },
            { "hostname": "db.shop.svc.cluster.local", "resolution": "ClientSideLB",
              "ports": [{ "name": "tcp", "port": 80, "protocol": "TCP" }] },
        ]);
        PreviewFacts {
            id: "new".into(),
            creates_gateway: false,
            services: json!({ "items": [
                service("web", 80), service("cart", 80), service("db", 80), service("new", 80),
            ] }),
            nodes: json!({ "items": [{ "spec": { "podCIDR": "10.0.1.0/24" } }] }),
            addresses: typed(json!([
                { "cluster": "east", "ranges": ["10.0.0.0/16"], "same": ["10.0.1.2", "10.0.1.3"] },
                { "cluster": "north", "ranges": ["10.0.1.64/26"], "same": [] },
                { "cluster": "west", "ranges": ["10.1.0.0/16"], "same": [] },
            ])),
            slices: json!({ "items": [{ "endpoints": [
                { "conditions": {} }, { "conditions": { "ready": false } }, { "conditions": { "ready": true } },
            ] }] }),
            network: Some("n2".into()),
            namespace: "strait-system".into(),
            merged: Some(typed(merged)),
            networks: typed(json!([{ "network": "n1", "gateways": [{}] }])),
            roots: (Some("a".into()), Some("b".into())),
        }
    }

    #[test]
    fn preview_reports_services_conflicts_addresses_gateways_and_roots() {
        let lines = changes(&facts());
        let contains =
            |part: &str| assert!(lines.iter().any(|l| l.contains(part)), "{part}: {lines:#?}");
        contains("4 services with 2 ready endpoints would be added, in network n2");
        contains(
            "3 of them would be merged with services of the mesh: cart.shop, db.shop, web.shop",
        );
        contains(
            "! 1 are of a different kind in this cluster; the kind in the mesh stays active: cart.shop (ClientSideLB, Headless in the mesh)",
        );
        contains(r#"mesh's stay active: db.shop (port 80: "http" HTTP, "tcp" TCP in the mesh)"#);
        contains("1 would get more ports: cart.shop (80)");
        contains("serve them on ports of the same name, if any: cart.shop (81)");
        contains(
            "! same address: 2 of its pods have addresses of pods of east in network \"n2\" (first 10.0.1.2)",
        );
        contains(
            "! same addresses are possible: pods of north in network \"n2\" are in ranges of its nodes (10.0.1.64/26)",
        );
        assert!(!lines.iter().any(|line| line.contains("west")), "{lines:#?}");
        contains("! network \"n2\" has no gateway: \"n1\" could not reach");
        contains("! its workloads trust different root certificates");
    }

    #[test]
    fn existing_gateway_and_equal_roots_cause_no_warning() {
        let mut gateway = service("gw", 15443);
        gateway["metadata"]["labels"] = json!({ NETWORK_LABEL: "n2" });
        gateway["status"] = json!({ "loadBalancer": { "ingress": [{ "ip": "203.0.113.1" }] } });
        let services = json!({ "items": [service("web", 80), gateway] });
        let roots = (Some("a".into()), Some("a".into()));
        let addresses = Vec::new();
        let lines = changes(&PreviewFacts { services, roots, addresses, ..facts() });
        assert!(lines.iter().all(|line| !line.starts_with('!')), "{lines:#?}");
        assert!(lines.iter().any(|line| line.ends_with("port 15443: gw.shop")), "{lines:#?}");
        let networks = typed(json!([{ "network": "n2", "gateways": [] }]));
        let flat = PreviewFacts { networks, ..facts() };
        assert!(changes(&flat).iter().all(|line| !line.contains("gateway")), "nothing is crossed");
    }

    #[test]
    fn gateway_that_the_command_creates_is_not_missing() {
        let lines = changes(&PreviewFacts { creates_gateway: true, ..facts() });
        assert!(lines.iter().all(|line| !line.contains("has no gateway")), "{lines:#?}");
        assert!(lines.iter().any(|line| line.contains("this command creates")), "{lines:#?}");
    }

    #[test]
    fn cluster_that_returns_is_not_compared_with_itself() {
        let merged = json!([{ "hostname": "web.shop.svc.cluster.local", "clusters": ["new"],
            "resolution": "Headless", "ports": [{ "name": "http", "port": 80, "protocol": "HTTP" }] }]);
        let addresses =
            typed(json!([{ "cluster": "new", "ranges": ["10.0.1.0/24"], "same": ["10.0.1.2"] }]));
        let lines = changes(&PreviewFacts { merged: Some(typed(merged)), addresses, ..facts() });
        let contains = |part: &str| lines.iter().any(|line| line.contains(part));
        assert!(contains("0 of them would be merged") && !contains("same address"), "{lines:#?}");
        assert!(!contains("different kind"), "{lines:#?}");
    }

    #[test]
    fn networks_with_only_system_services_cause_no_warning() {
        let of_hub = |hostname: &str, namespace: &str| json!({ "hostname": hostname, "namespace": namespace, "clusters": ["config"] });
        let mut services = vec![
            of_hub("kubernetes.default.svc.cluster.local", "default"),
            of_hub("kube-dns.kube-system.svc.cluster.local", "kube-system"),
            of_hub("strait.strait-system.svc.cluster.local", "strait-system"),
        ];
        let warns = |services: &[Value]| {
            let networks =
                typed(json!([{ "network": "", "clusters": ["config"], "gateways": [] }]));
            let merged = Some(typed(json!(services)));
            let lines = changes(&PreviewFacts { networks, merged, ..facts() });
            lines.iter().any(|line| line.contains("network \"\" has no gateway"))
        };
        assert!(!warns(&services));
        services.push(of_hub("web.shop.svc.cluster.local", "shop"));
        assert!(warns(&services));
    }
}
