//! Pods of headless services that are reached by name in other networks: the order of changes, and
//! the resources that scaling sends. (docs/contributing/decisions/0065)

use std::collections::BTreeSet;

use super::members::TCP;
use super::mesh::{
    Member, Proxy, SHOP, SOON, SYSTEM, Server, Setup, east_and_west, holds, wait_until,
};
use strait_proto::istio::nds::NameTable;
use strait_sim::objects;
use strait_sim::objects::Endpoint;
use strait_xds::resource::ResourceType;
use strait_xds_client::XdsClient;

const DB: &str = "db.shop.svc.cluster.local";

/// Applies the headless service `db` with this number of pods of a StatefulSet.
fn scale(member: &Member, pods: usize) {
    member.apply(objects::service(SHOP, "db", "None", &[TCP]));
    let endpoint = |number: usize| {
        let (name, address) = (format!("db-{number}"), format!("10.0.1.{}", number + 1));
        let mut pod = objects::pod(SHOP, &name, "db", &address, "node");
        pod["spec"]["hostname"] = name.clone().into();
        pod["spec"]["subdomain"] = "db".into();
        member.apply(pod);
        Endpoint::new(&address).with_pod(&name)
    };
    let endpoints: Vec<_> = (0..pods).map(endpoint).collect();
    member.slice("db", &[TCP], &endpoints);
}

/// Returns the hosts of pods of `db` in the client's name table.
fn named_pods(client: &XdsClient) -> BTreeSet<String> {
    let table = client.held().message::<NameTable>(ResourceType::NameTable, "");
    let hosts = table.unwrap_or_default().table.into_keys();
    hosts.filter(|host| host.ends_with(&format!(".{DB}"))).collect()
}

/// Returns the number of upstream clusters for single pods of `db` at a gateway.
fn pod_clusters(gateway: &XdsClient) -> usize {
    let suffix = format!(".west.outbound_.9000_._.{DB}");
    gateway.held().names(ResourceType::Cluster).filter(|name| name.ends_with(&suffix)).count()
}

async fn bytes_sent(server: &Server, kind: &str) -> f64 {
    server.admin.metric(&format!("strait_xds_push_bytes_total{{type=\"{kind}\"}}")).await
}

#[tokio::test]
async fn scaling_a_stateful_set_sends_clients_names_only() {
    let (east, west) = east_and_west().await;
    scale(&east, 0);
    scale(&west, 3);
    let setup = Setup::new();
    setup.join(&[&east, &west]);
    let server = setup.start_ready().await;
    let client = server.connect_resolving(&setup, &Proxy::sidecar("east")).await;
    let pods = async |count: usize| {
        wait_until(SOON, async || holds(named_pods(&client).len() == count, named_pods(&client)))
            .await;
    };
    pods(3).await;
    let remote = format!("remote|9000|west|{DB}");
    wait_until(SOON, async || {
        let gateways = client.held().endpoints(&remote);
        holds(gateways.keys().map(ToString::to_string).eq(["198.18.0.2:15443"]), gateways)
    })
    .await;
    // The gateway moves while the service has pods.
    west.apply(objects::gateway_service(SYSTEM, "n2", "172.20.0.1", "198.18.0.9"));
    wait_until(SOON, async || {
        let gateways = client.held().endpoints(&remote);
        holds(gateways.keys().map(ToString::to_string).eq(["198.18.0.9:15443"]), gateways)
    })
    .await;
    let before = [bytes_sent(&server, "cds").await, bytes_sent(&server, "lds").await];
    let names_before = bytes_sent(&server, "nds").await;
    scale(&west, 100);
    pods(100).await;
    scale(&west, 2);
    pods(2).await;
    let after = [bytes_sent(&server, "cds").await, bytes_sent(&server, "lds").await];
    assert_eq!(before, after, "clusters and listeners of clients do not depend on pods");
    assert!(bytes_sent(&server, "nds").await > names_before);
}

#[tokio::test]
async fn gateway_knows_a_pod_before_clients_know_its_name() {
    let (east, west) = east_and_west().await;
    scale(&west, 1);
    let setup = Setup::new();
    setup.join(&[&east, &west]);
    let server = setup.start_ready().await;
    let client = server.connect_resolving(&setup, &Proxy::sidecar("east")).await;
    let gateway = server.connect(&setup, &Proxy::gateway("west")).await;
    let is_known = async |count: usize| {
        wait_until(SOON, async || {
            let (named, known) = (named_pods(&client).len(), pod_clusters(&gateway));
            // The contents of the gateway are read later, so it may only be ahead.
            assert!(named <= known, "{named} named, {known} at the gateway");
            holds((named, known) == (count, count), (named, known))
        })
        .await;
    };
    wait_until(SOON, async || holds(pod_clusters(&gateway) == 1, gateway.held().responses)).await;
    is_known(1).await;
    for count in [2, 5, 40] {
        scale(&west, count);
        is_known(count).await;
    }
}
