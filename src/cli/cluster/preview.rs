//! What adding a cluster would change, told before it is done: `strait cluster add --dry-run`.
//!
//! Compares what the cluster has with what the control plane says of the mesh. Reads with the operator's
//! own credential and changes nothing.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::api::{Cluster, ROOTS};
use crate::cli::client::{Client, Connect};
use crate::cli::output::{items, text};
use crate::model::{GATEWAY_PORT_LABEL, NETWORK_LABEL, gateway_port};

/// How many names of a list are printed.
const NAMES_SHOWN: usize = 8;

/// What both sides say.
#[derive(Debug, Default)]
struct Facts {
    /// Of the cluster to be added.
    services: Value,
    slices: Value,
    /// The network it would be in, where anything says so.
    network: Option<String>,
    /// The system namespace.
    namespace: String,
    /// Of the mesh; none where the control plane can't be asked.
    merged: Option<Value>,
    networks: Value,
    /// The roots that workloads trust, there and in the config cluster.
    roots: (Option<String>, Option<String>),
}

/// The lines to print. What can't be read is said, and keeps nothing else from being told.
pub(super) async fn preview(
    remote: &Cluster,
    hub: &Cluster,
    namespace: &str,
    network: Option<&str>,
    connect: &Connect,
) -> String {
    let list = async |path: &str| match remote.get(path).await {
        Ok(found) => (found.unwrap_or_default(), None),
        Err(failure) => (Value::Null, Some(failure.message().to_owned())),
    };
    let (services, no_services) = list("/api/v1/services").await;
    let (slices, no_slices) = list("/apis/discovery.k8s.io/v1/endpointslices").await;
    let (system, _) = list(&format!("/api/v1/namespaces/{namespace}")).await;
    let label = system["metadata"]["labels"][NETWORK_LABEL].as_str();
    let roots = async |cluster: &Cluster| {
        let found = cluster.published_roots(namespace).await.ok().flatten()?;
        Some(found.trim().to_owned())
    };
    let mut facts = Facts {
        services,
        slices,
        network: network.or(label).map(str::to_owned),
        namespace: namespace.to_owned(),
        roots: (roots(remote).await, roots(hub).await),
        ..Facts::default()
    };
    let mut trouble: Vec<String> = no_services.into_iter().chain(no_slices).collect();
    let asked = async {
        let client = Client::new(connect)?;
        let merged = client.get("/debug/services", &[]).await?.value;
        Ok::<_, crate::cli::failure::Failure>((
            merged,
            client.get("/debug/networks", &[]).await?.value,
        ))
    };
    match asked.await {
        Ok((merged, networks)) => (facts.merged, facts.networks) = (Some(merged), networks),
        Err(failure) => trouble.push(failure.message().to_owned()),
    }
    let mut out = "What would change\n".to_owned();
    out.extend(changes(&facts).iter().map(|line| format!("  {line}\n")));
    out.extend(trouble.iter().map(|fact| format!("  ? not all can be told: {fact}\n")));
    out
}

/// What would change, a line each.
fn changes(facts: &Facts) -> Vec<String> {
    let mut lines = Vec::new();
    let services: BTreeMap<String, &Value> =
        items(&facts.services["items"]).iter().map(|one| (name_of(one), one)).collect();
    let network = facts.network.as_deref().unwrap_or_default();
    let shown = if network.is_empty() { "\"\" (nothing names one)" } else { network };
    let endpoints: usize = items(&facts.slices["items"]).iter().map(ready).sum();
    lines.push(format!(
        "{} services with {endpoints} ready endpoints would come, in network {shown}",
        services.len()
    ));
    if let Some(merged) = &facts.merged {
        let known: BTreeMap<String, &Value> = items(merged)
            .iter()
            .filter_map(|row| {
                let mut parts = row["hostname"].as_str()?.split('.');
                Some((format!("{}.{}", parts.next()?, parts.next()?), row))
            })
            .collect();
        let shared: Vec<&String> =
            services.keys().filter(|name| known.contains_key(*name)).collect();
        lines.push(format!("{} of them would be merged{}", shared.len(), named(&shared)));
        let conflicts: Vec<&String> = shared
            .into_iter()
            .filter(|name| {
                let ours = services.get(*name).map(|one| ports(&one["spec"]["ports"]));
                let theirs = known.get(*name).map(|one| ports(&one["ports"]));
                ours != theirs
            })
            .collect();
        if !conflicts.is_empty() {
            lines.push(format!(
                "! {} have other ports there, where the mesh's stay in force{}",
                conflicts.len(),
                named(&conflicts)
            ));
        }
        let others: BTreeSet<&str> = items(&facts.networks)
            .iter()
            .filter(|row| matters(facts, row))
            .filter_map(|row| row["network"].as_str())
            .filter(|other| *other != network)
            .collect();
        if !others.is_empty() {
            lines.extend(crossing(facts, &services, network, &others));
        }
    }
    match &facts.roots {
        (Some(there), Some(here)) if there != here => lines.push(format!(
            "! its workloads trust other roots than the config cluster's (ConfigMap {ROOTS}): mTLS between them will fail"
        )),
        (Some(_), Some(_)) => lines.push("its workloads trust the config cluster's roots".into()),
        _ => lines.push(format!("? roots can't be compared: no ConfigMap {ROOTS} on both sides")),
    }
    lines
}

/// Whether anybody would cross into a network, or out of it: it has gateways, or services beside those that
/// every cluster has for itself. The config cluster often has neither.
fn matters(facts: &Facts, network: &Value) -> bool {
    let here = |row: &Value| {
        let of_row = items(&row["clusters"]).iter();
        of_row.clone().any(|cluster| items(&network["clusters"]).contains(cluster))
    };
    let is_shared = |row: &Value| {
        let host = row["hostname"].as_str().unwrap_or_default();
        let of_system = ["kube-system", &facts.namespace].map(|one| row["namespace"] == one);
        !host.starts_with("kubernetes.default.") && of_system == [false; 2]
    };
    !items(&network["gateways"]).is_empty()
        || facts
            .merged
            .as_ref()
            .is_some_and(|merged| items(merged).iter().any(|row| is_shared(row) && here(row)))
}

/// What there is to say where networks are crossed.
fn crossing(
    facts: &Facts,
    services: &BTreeMap<String, &Value>,
    network: &str,
    others: &BTreeSet<&str>,
) -> Vec<String> {
    let mut lines = Vec::new();
    let leads = |one: &&&Value| one["metadata"]["labels"][NETWORK_LABEL] == network;
    let gateways: Vec<_> = services.values().filter(leads).collect();
    let known = items(&facts.networks).iter().find(|row| row["network"] == network);
    let has_some = known.is_some_and(|row| !items(&row["gateways"]).is_empty());
    let addressed =
        gateways.iter().any(|one| !items(&one["status"]["loadBalancer"]["ingress"]).is_empty());
    if gateways.is_empty() && !has_some {
        lines.push(format!(
            "! no gateway leads into network {network:?}: {} would not reach its endpoints (STR0401); strait network join",
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
            "other networks would reach it by gateway, port {}{}",
            gateway_port(port),
            named(&names)
        ));
    }
    for other in others {
        let row = items(&facts.networks).iter().find(|row| row["network"] == **other);
        if row.is_some_and(|row| items(&row["gateways"]).is_empty()) {
            lines.push(format!("! network {other:?} has no gateway: its endpoints stay out of reach there (STR0401)"));
        }
    }
    lines
}

fn name_of(object: &Value) -> String {
    format!("{}.{}", text(&object["metadata"]["name"]), text(&object["metadata"]["namespace"]))
}

/// Ports as they are compared: number and name.
fn ports(list: &Value) -> BTreeSet<(u64, String)> {
    items(list)
        .iter()
        .map(|port| {
            let name = port["name"].as_str().unwrap_or_default().to_owned();
            (port["port"].as_u64().unwrap_or_default(), name)
        })
        .collect()
}

fn ready(slice: &Value) -> usize {
    let is_ready = |one: &&Value| one["conditions"]["ready"] != false;
    items(&slice["endpoints"]).iter().filter(is_ready).count()
}

/// The first names of a list, in words.
fn named(names: &[&String]) -> String {
    let first: Vec<&str> = names.iter().take(NAMES_SHOWN).map(|name| name.as_str()).collect();
    match (first.is_empty(), names.len().saturating_sub(NAMES_SHOWN)) {
        (true, _) => String::new(),
        (false, 0) => format!(": {}", first.join(", ")),
        (false, more) => format!(": {} and {more} more", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn service(name: &str, port: u16) -> Value {
        json!({ "metadata": { "name": name, "namespace": "shop" },
                "spec": { "ports": [{ "name": "http", "port": port }] } })
    }

    fn facts() -> Facts {
        let merged = json!([
            { "hostname": "web.shop.svc.cluster.local", "ports": [{ "name": "http", "port": 80 }] },
            { "hostname": "cart.shop.svc.cluster.local", "ports": [{ "name": "http", "port": 81 }] },
        ]);
        Facts {
            services: json!({ "items": [service("web", 80), service("cart", 80), service("new", 80)] }),
            slices: json!({ "items": [{ "endpoints": [
                { "conditions": {} }, { "conditions": { "ready": false } }, { "conditions": { "ready": true } },
            ] }] }),
            network: Some("n2".into()),
            namespace: "strait-system".into(),
            merged: Some(merged),
            networks: json!([{ "network": "n1", "gateways": [{}] }]),
            roots: (Some("a".into()), Some("b".into())),
        }
    }

    #[test]
    fn services_conflicts_endpoints_gateways_and_roots_are_told() {
        let lines = changes(&facts());
        let told =
            |part: &str| assert!(lines.iter().any(|l| l.contains(part)), "{part}: {lines:#?}");
        told("3 services with 2 ready endpoints would come, in network n2");
        told("2 of them would be merged: cart.shop, web.shop");
        told("! 1 have other ports there, where the mesh's stay in force: cart.shop");
        told("! no gateway leads into network \"n2\": \"n1\" would not reach");
        told("! its workloads trust other roots");
    }

    #[test]
    fn a_gateway_that_is_there_is_named_and_equal_roots_are_fine() {
        let mut gateway = service("gw", 15443);
        gateway["metadata"]["labels"] = json!({ NETWORK_LABEL: "n2" });
        gateway["status"] = json!({ "loadBalancer": { "ingress": [{ "ip": "203.0.113.1" }] } });
        let services = json!({ "items": [service("web", 80), gateway] });
        let roots = (Some("a".into()), Some("a".into()));
        let lines = changes(&Facts { services, roots, ..facts() });
        assert!(lines.iter().all(|line| !line.starts_with('!')), "{lines:#?}");
        assert!(lines.iter().any(|line| line.ends_with("port 15443: gw.shop")), "{lines:#?}");
        let flat = Facts { networks: json!([{ "network": "n2", "gateways": [] }]), ..facts() };
        assert!(changes(&flat).iter().all(|line| !line.contains("gateway")), "nothing is crossed");
    }

    #[test]
    fn a_network_matters_once_it_has_services_that_others_may_want() {
        let of_hub = |hostname: &str, namespace: &str| json!({ "hostname": hostname, "namespace": namespace, "clusters": ["config"] });
        let mut services = vec![
            of_hub("kubernetes.default.svc.cluster.local", "default"),
            of_hub("kube-dns.kube-system.svc.cluster.local", "kube-system"),
            of_hub("strait.strait-system.svc.cluster.local", "strait-system"),
        ];
        let warns = |services: &[Value]| {
            let networks = json!([{ "network": "", "clusters": ["config"], "gateways": [] }]);
            let merged = Some(json!(services));
            let lines = changes(&Facts { networks, merged, ..facts() });
            lines.iter().any(|line| line.contains("network \"\" has no gateway"))
        };
        assert!(!warns(&services));
        services.push(of_hub("web.shop.svc.cluster.local", "shop"));
        assert!(warns(&services));
    }
}
