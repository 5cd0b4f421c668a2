//! DNS records of hosts that routers of several clusters serve, as objects of external-dns.

use serde_json::{Value, json};

use super::mesh::{Member, SHOP, SOON, Setup, holds, wait_until};
use strait_sim::{Family, Fault, Options as SimOptions, objects};

const DNS: &str = "dns";

fn object(kind: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "networking.istio.io/v1", "kind": kind,
        "metadata": { "name": name, "namespace": SHOP }, "spec": spec,
    })
}

/// Gives a member a router with an external address.
fn route_in(member: &Member, pod: &str, external: &str) {
    member.serve("edge", &[pod]);
    let service = member.api.store().get("Service", SHOP, "edge").expect("a service");
    let mut service = service.value();
    // The store has the kind apart from the object.
    (service["apiVersion"], service["kind"]) = (json!("v1"), json!("Service"));
    service["spec"]["type"] = json!("LoadBalancer");
    service["status"] = json!({ "loadBalancer": { "ingress": [{ "ip": external }] } });
    member.apply(service);
}

/// Returns the records by host, each with the object's name.
fn records(hub: &Member) -> Vec<(String, String)> {
    let objects = hub.api.store().all("DNSEndpoint");
    let record = |object: Value| {
        let endpoints = object["spec"]["endpoints"].as_array().cloned().unwrap_or_default();
        let sets = endpoints.iter().map(|one| {
            let targets: Vec<_> = one["targets"].as_array().expect("a list").iter().collect();
            let targets: Vec<_> = targets.iter().filter_map(|one| one.as_str()).collect();
            format!("{} {}", one["recordType"].as_str().unwrap_or_default(), targets.join(","))
        });
        let host = endpoints.first().map(|one| one["dnsName"].clone()).unwrap_or_default();
        (host.as_str().unwrap_or_default().to_owned(), sets.collect::<Vec<_>>().join("; "))
    };
    let mut all: Vec<_> = objects.iter().map(|object| record(object.value())).collect();
    all.sort();
    all
}

async fn until(hub: &Member, expected: &[(&str, &str)]) {
    wait_until(3 * SOON, async || {
        let found = records(hub);
        let equal = found
            .iter()
            .map(|(host, sets)| (host.as_str(), sets.as_str()))
            .eq(expected.iter().copied());
        holds(equal, found)
    })
    .await;
}

#[tokio::test]
async fn records_follow_the_routers_of_all_clusters_and_are_deleted_with_the_host_only() {
    let families = [Family::Core, Family::Istio, Family::ExternalDns].into();
    let options = SimOptions { families, ..SimOptions::default() };
    let hub = Member::start_with("hub", "n1", "198.18.0.1", options).await;
    let east = Member::start("east", "n1", "198.18.0.2").await;
    let west = Member::start("west", "n1", "198.18.0.3").await;
    hub.apply(objects::namespace(DNS));
    route_in(&east, "10.0.0.1", "203.0.113.1");
    route_in(&west, "10.0.0.2", "203.0.113.2");
    let server = |port: u16, hosts: Value| json!({ "port": { "number": port, "name": format!("http-{port}"), "protocol": "HTTP" }, "hosts": hosts });
    let servers =
        [server(80, json!(["web.shop.example", "bank.example"])), server(8081, json!(["*"]))];
    let edge = json!({ "selector": { "app": "edge" }, "servers": servers });
    hub.apply(object("Gateway", "edge", edge));
    let route = json!([{ "route": [{ "destination": { "host": "edge" } }] }]);
    let api = json!({ "hosts": ["api.shop.example"], "gateways": ["edge"], "http": route });
    hub.apply(object("VirtualService", "api", api));
    for member in [&east, &west] {
        hub.apply(member.secret());
    }
    let flags = ["--cluster-id", "hub", "--dns-endpoints", DNS, "--dns-domains", "shop.example"];
    let setup = Setup::new().with(&flags).with(&["--remote-cluster-timeout", "1s"]);
    let server = setup.start_replica(&hub.api, "state-1").await;
    let both = "A 203.0.113.1,203.0.113.2";
    until(&hub, &[("api.shop.example", both), ("web.shop.example", both)]).await;

    // A drained cluster leaves the records.
    let mut drained = west.secret();
    drained["metadata"]["annotations"]["strait.dev/mode"] = json!("drain");
    hub.apply(drained);
    let one = "A 203.0.113.1";
    until(&hub, &[("api.shop.example", one), ("web.shop.example", one)]).await;
    hub.apply(west.secret());
    until(&hub, &[("api.shop.example", both), ("web.shop.example", both)]).await;

    // A cluster that has not been read since the start keeps its addresses.
    server.shut_down().await;
    west.api.fault(Fault::Unauthorized);
    let looks = hub.api.request_count("list", "dnsendpoints");
    let server = setup.start_replica(&hub.api, "state-2").await;
    wait_until(3 * SOON, async || {
        let now = hub.api.request_count("list", "dnsendpoints");
        holds(now > looks, now)
    })
    .await;
    hub.api.store().delete("VirtualService", SHOP, "api").expect("deleted");
    until(&hub, &[("web.shop.example", both)]).await;
    server.shut_down().await;
}
