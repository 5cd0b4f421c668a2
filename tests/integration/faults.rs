//! Rows of the fault matrix (`docs/explanation/failure-model.md`) that need a whole mesh: faults of a connection, an
//! API server, a process or a disk, and the state of a proxy meanwhile.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::json;

use super::mesh::{
    Member, Proxy, SHOP, SOON, SYSTEM, Setup, endpoints_until, holds, outbound, wait_until,
};
use super::relay::{Line, Relay};
use super::restart::quiet;
use super::soak::Replica;
use strait_sim::objects::{self, Endpoint, HTTP, NETWORK_LABEL};
use strait_sim::{Family, Options as SimOptions, SimCluster};
use strait_xds::resource::ResourceType;
use strait_xds_client::{Options as ClientOptions, XdsClient};

/// Longer than any deadline of the product, and sufficient for a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

/// Returns the addresses of `web.shop` that a proxy has.
fn web(client: &XdsClient) -> BTreeSet<SocketAddr> {
    client.held().endpoints(&outbound("web")).into_keys().collect()
}

/// Waits until a proxy has all of these addresses of `web.shop`, and possibly others.
async fn web_has(client: &XdsClient, wanted: &[String]) {
    wait_until(DEADLINE, async || {
        let found = web(client);
        holds(wanted.iter().all(|one| found.contains(&address(one))), (wanted, found))
    })
    .await;
}

/// Starts a member in the network `n1` that serves `web.shop` at this one address.
async fn member(id: &str, at: &str) -> Member {
    let member = Member::start(id, "n1", "198.18.0.1").await;
    member.serve("web", &[at]);
    member
}

#[tokio::test]
async fn connection_fault_affects_only_its_cluster_and_loses_no_endpoint() {
    // If the state is `live`, changes of the cluster arrive meanwhile.
    let lines = [
        ("silent", Line::Silent, "stale"),
        ("oneway", Line::OneWay, "stale"),
        ("halfopen", Line::HalfOpen, "stale"),
        ("refused", Line::Refused, "stale"),
        ("noisy", Line::Noisy, "tlsFailed"),
        ("late", Line::Late(Duration::from_millis(300)), "live"),
        ("narrow", Line::Narrow(4000), "live"),
        ("reset", Line::Reset(Duration::from_secs(5)), "live"),
    ];
    let home = member("home", "10.0.0.1").await;
    let setup = Setup::new();
    setup.join(&[&home]);
    let mut clusters = Vec::new();
    for (number, (id, line, state)) in lines.into_iter().enumerate() {
        let before = format!("10.0.{}.1", number + 1);
        let member = member(id, &before).await;
        let relay = Relay::start(&member).await;
        setup.put(id, &relay.secret(&member));
        clusters.push((member, relay, line, state, before));
    }
    let server = setup.start_ready().await;
    let client = server.connect(&setup, &Proxy::sidecar("home")).await;
    let at = |address: &str| format!("{address}:8080");
    let first: Vec<String> = clusters.iter().map(|(.., before)| at(before)).collect();
    web_has(&client, &first).await;

    for (member, relay, line, _, before) in &clusters {
        relay.set(*line);
        member.serve("web", &[before, &before.replace(".1", ".2")]);
    }
    home.serve("web", &["10.0.0.1", "10.0.0.2"]);
    web_has(&client, &[at("10.0.0.2")]).await;
    for (member, _, line, state, before) in &clusters {
        let arrived = *state == "live";
        if arrived {
            web_has(&client, &[at(&before.replace(".1", ".2"))]).await;
        }
        let entry = server.cluster_in(member.id(), state).await;
        assert_eq!(entry["reason"].is_string(), !arrived, "{line:?}: {entry}");
        assert_eq!(entry["endpoints"], if arrived { 2 } else { 1 }, "{line:?}: {entry}");
    }
    web_has(&client, &first).await;
    assert_eq!(server.cluster("home").await["state"], "live");

    for (_, relay, ..) in &clusters {
        relay.set(Line::Clear);
    }
    for (member, .., before) in &clusters {
        web_has(&client, &[at(&before.replace(".1", ".2"))]).await;
        let entry = server.cluster_in(member.id(), "live").await;
        assert_eq!(entry["relists"], 0, "{entry}");
    }
    web_has(&client, &first).await;
}

#[tokio::test]
async fn slow_cluster_does_not_delay_readiness() {
    let (home, far) = (member("home", "10.0.0.1").await, member("far", "10.0.1.1").await);
    for number in 0..100 {
        let name = format!("s{number}");
        far.apply(objects::service(SHOP, &name, &format!("172.20.7.{}", number % 250), &[HTTP]));
    }
    let setup = Setup::new().with(&["--remote-cluster-timeout", "1s"]);
    let relay = Relay::start(&far).await;
    relay.set(Line::Narrow(4000));
    setup.join(&[&home]);
    setup.put("far", &relay.secret(&far));
    let server = setup.start_ready().await;
    let entry = server.cluster("far").await;
    assert_eq!(entry["state"], "timeout", "{entry}");
    let client = server.connect(&setup, &Proxy::sidecar("home")).await;
    endpoints_until(&client, "web", &[("10.0.0.1:8080", 1)]).await;
    home.serve("web", &["10.0.0.2"]);
    endpoints_until(&client, "web", &[("10.0.0.2:8080", 1)]).await;
    relay.set(Line::Narrow(40_000));
    server.cluster_in("far", "live").await;
    endpoints_until(&client, "web", &[("10.0.0.2:8080", 1), ("10.0.1.1:8080", 1)]).await;
}

#[tokio::test]
async fn mesh_works_without_config_cluster_and_config_cluster_works_without_members() {
    let (east, west) = (member("east", "10.0.0.1").await, member("west", "10.0.1.1").await);
    let north = member("north", "10.0.2.1").await;
    let hub = SimCluster::start("hub", SimOptions::default()).await.expect("a free port");
    let hub = Member { api: hub };
    hub.apply(objects::labelled(objects::namespace(SYSTEM), NETWORK_LABEL, "n1"));
    hub.apply(east.secret());
    hub.apply(west.secret());
    let setup = Setup::new();
    let server = setup.start_as(setup.arguments_with(&hub.api)).await;
    server.ready().await;
    let client = server.connect(&setup, &Proxy::sidecar("east")).await;
    endpoints_until(&client, "web", &[("10.0.0.1:8080", 1), ("10.0.1.1:8080", 1)]).await;

    // The config cluster stops: members are still watched, and proxies admitted; changes in the
    // config cluster are not received.
    hub.api.stop().await;
    hub.apply(north.secret());
    west.serve("web", &["10.0.1.2"]);
    endpoints_until(&client, "web", &[("10.0.0.1:8080", 1), ("10.0.1.2:8080", 1)]).await;
    let newcomer = Proxy { ip: "10.99.0.9".to_owned(), ..Proxy::sidecar("west") };
    let newcomer = server.connect(&setup, &newcomer).await;
    endpoints_until(&newcomer, "web", &[("10.0.0.1:8080", 1), ("10.0.1.2:8080", 1)]).await;
    assert!(server.clusters("north").await.is_empty());
    let (status, text) = server.admin.text("/readyz?verbose").await;
    assert_eq!(status, http::StatusCode::OK, "{text}");

    // The members stop, and the config cluster returns.
    east.api.stop().await;
    west.api.stop().await;
    hub.api.restart().await;
    let all = [("10.0.0.1:8080", 1), ("10.0.1.2:8080", 1), ("10.0.2.1:8080", 1)];
    endpoints_until(&client, "web", &all).await;
    hub.serve("web", &["10.0.3.1"]);
    let all = [all[0], all[1], all[2], ("10.0.3.1:8080", 1)];
    endpoints_until(&client, "web", &all).await;
    for id in ["east", "west"] {
        server.cluster_in(id, "stale").await;
    }
    endpoints_until(&client, "web", &all).await;
}

#[tokio::test]
async fn api_installed_later_is_read_without_a_restart() {
    let (east, west) = (member("east", "10.0.0.1").await, member("west", "10.0.1.1").await);
    west.apply(objects::labelled(objects::namespace(SYSTEM), NETWORK_LABEL, "n2"));
    west.api.store().delete("Service", SYSTEM, "eastwestgateway").expect("it was there");
    let setup = Setup::new();
    setup.join(&[&east, &west]);
    let server = setup.start_ready().await;
    let client = server.connect(&setup, &Proxy::sidecar("east")).await;
    endpoints_until(&client, "web", &[("10.0.0.1:8080", 1)]).await;

    west.api.enable(Family::GatewayApi);
    west.apply(json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "Gateway",
        "metadata": {
            "name": "entrance", "namespace": SYSTEM, "labels": { NETWORK_LABEL: "n2" },
        },
        "spec": {
            "gatewayClassName": "istio",
            "addresses": [{ "type": "IPAddress", "value": "198.18.0.7" }],
            "listeners": [{ "name": "mesh", "port": 15443, "protocol": "TLS" }],
        },
    }));
    endpoints_until(&client, "web", &[("10.0.0.1:8080", 1), ("198.18.0.7:15443", 1)]).await;
    assert_eq!(server.cluster("west").await["state"], "live");
}

#[tokio::test]
async fn cluster_restored_from_a_backup_is_listed_again() {
    let (east, west) = (member("east", "10.0.0.1").await, member("west", "10.0.1.1").await);
    let setup = Setup::new();
    setup.join(&[&east, &west]);
    let server = setup.start_ready().await;
    let client = server.connect(&setup, &Proxy::sidecar("east")).await;
    endpoints_until(&client, "web", &[("10.0.0.1:8080", 1), ("10.0.1.1:8080", 1)]).await;
    let backup = west.api.store().snapshot();
    west.serve("web", &["10.0.1.2", "10.0.1.3"]);
    let now = [("10.0.0.1:8080", 1), ("10.0.1.2:8080", 1), ("10.0.1.3:8080", 1)];
    endpoints_until(&client, "web", &now).await;
    // Resource versions are lower than the versions received before.
    west.api.stop().await;
    west.api.store().restore(backup);
    west.api.restart().await;
    endpoints_until(&client, "web", &[("10.0.0.1:8080", 1), ("10.0.1.1:8080", 1)]).await;
    west.serve("web", &["10.0.1.4"]);
    endpoints_until(&client, "web", &[("10.0.0.1:8080", 1), ("10.0.1.4:8080", 1)]).await;
    server.cluster_until("west", |entry| entry["relists"] != 0 && entry["state"] == "live").await;
}

#[tokio::test]
async fn deletion_of_a_namespace_with_hundreds_of_services_takes_few_pushes() {
    const SERVICES: usize = 500;
    let (east, west) = (member("east", "10.0.0.1").await, member("west", "10.0.1.1").await);
    let name = |number: usize| format!("s{number}");
    for number in 0..SERVICES {
        let (name, vip) = (name(number), format!("172.21.{}.{}", number / 250, number % 250 + 1));
        west.apply(objects::service("doomed", &name, &vip, &[HTTP]));
        let endpoint = [Endpoint::new(&format!("10.3.{}.{}", number / 250, number % 250))];
        west.apply(objects::endpoint_slice("doomed", &name, &name, &[HTTP], &endpoint));
    }
    let setup = Setup::new();
    setup.join(&[&east, &west]);
    let server = setup.start_ready().await;
    let client = server.connect(&setup, &Proxy::sidecar("east")).await;
    let upstreams = |client: &XdsClient| client.held().names(ResourceType::Cluster).count();
    wait_until(SOON, async || holds(upstreams(&client) > SERVICES, upstreams(&client))).await;
    quiet(&server, &client).await;
    let version = async || server.admin.json("/debug/push").await["version"].as_u64();
    let began = version().await.expect("a number");
    // In the order of the namespace controller: the objects in it, kind by kind.
    for kind in ["EndpointSlice", "Service"] {
        for number in 0..SERVICES {
            west.api.store().delete(kind, "doomed", &name(number)).expect("it was there");
        }
    }
    // They are removed in several steps. All responses are acknowledged between the steps.
    let is_there =
        |kind: ResourceType| client.held().names(kind).any(|name| name.contains("doomed"));
    wait_until(SOON, async || {
        let remaining: Vec<_> =
            ResourceType::ALL.into_iter().filter(|kind| is_there(*kind)).collect();
        holds(remaining.is_empty(), remaining)
    })
    .await;
    let after = quiet(&server, &client).await;
    let pushes = version().await.expect("a number") - began;
    assert!(pushes <= 10, "{pushes} versions");
    let endpoints = web(&client);
    assert_eq!(endpoints, ["10.0.0.1:8080", "10.0.1.1:8080"].map(address).into());
    for kind in ResourceType::ALL {
        assert!(after.names(kind).all(|name| !name.contains("doomed")), "{kind:?}");
    }
}

#[tokio::test]
async fn proxy_that_moves_to_another_replica_receives_nothing() {
    let (east, west) = (member("east", "10.0.0.1").await, member("west", "10.0.1.1").await);
    let setup = Setup::new();
    setup.join(&[&east, &west]);
    let first = setup.start().await;
    let second = setup.start_as(setup.arguments_on(&setup.path("other-state"))).await;
    first.ready().await;
    second.ready().await;

    let proxy = Proxy::sidecar("east");
    let client = first.connect(&setup, &proxy).await;
    endpoints_until(&client, "web", &[("10.0.0.1:8080", 1), ("10.0.1.1:8080", 1)]).await;
    let before = quiet(&first, &client).await;
    drop(client);
    first.shut_down().await;

    let options = ClientOptions { held: before.clone(), ..ClientOptions::default() };
    let client = second.open(&setup, &proxy, options).await.expect("let in");
    // One change marks the end: it is the only response.
    west.serve("web", &["10.0.1.2"]);
    endpoints_until(&client, "web", &[("10.0.0.1:8080", 1), ("10.0.1.2:8080", 1)]).await;
    let after = client.held();
    assert_eq!(after.resources, 1, "both replicas have equal content, except for the change");
    for kind in [ResourceType::Cluster, ResourceType::Listener, ResourceType::Route] {
        assert_eq!(after.versions(kind), before.versions(kind), "{kind:?}");
    }
}

/// The number of times that a process is killed. The point in its work depends on the machine.
const KILLS: u8 = 3;

#[tokio::test]
async fn killed_process_leaves_complete_files() {
    let west = member("west", "10.0.1.1").await;
    let setup = Setup::new();
    setup.join(&[&west]);
    let proxy = Proxy::sidecar("west");
    let mut served = BTreeSet::from([address("10.0.1.1:8080")]);
    for round in 1..=KILLS {
        let mut replica = Replica::start(&setup, "state").await;
        let client = replica.connect(&setup, &proxy, ClientOptions::default()).await;
        for last in 1..=20 {
            let next = format!("10.0.{round}.{last}");
            west.serve("web", &[&next]);
            served.insert(address(&format!("{next}:8080")));
            web_has(&client, &[format!("{next}:8080")]).await;
        }
        wait_until(SOON, async || {
            let files: Vec<_> = std::fs::read_dir(setup.path("state").join("lkg"))
                .into_iter()
                .flatten()
                .filter_map(|file| Some(file.ok()?.file_name().to_string_lossy().into_owned()))
                .collect();
            holds(files.iter().any(|name| name.starts_with("cluster-west.")), files)
        })
        .await;
        west.serve("web", &["10.0.9.9"]);
        served.insert(address("10.0.9.9:8080"));
        replica.end("-KILL").await;
        west.api.stop().await;

        let mut replica = Replica::start(&setup, "state").await;
        let clusters = replica.admin.json("/debug/clusters").await;
        assert_eq!(clusters[0]["state"], "restored", "{clusters}");
        let client = replica.connect(&setup, &proxy, ClientOptions::default()).await;
        wait_until(SOON, async || holds(!web(&client).is_empty(), "nothing yet")).await;
        let endpoints = web(&client);
        assert!(
            endpoints.len() == 1 && endpoints.is_subset(&served),
            "{endpoints:?} was never a valid state"
        );
        replica.end("-TERM").await;
        west.api.restart().await;
    }
}

#[tokio::test]
async fn full_disk_affects_only_the_last_known_state() {
    let (east, west) = (member("east", "10.0.0.1").await, member("west", "10.0.1.1").await);
    for number in 0..300 {
        let name = format!("a-service-with-a-long-name-{number}");
        west.apply(objects::service(SHOP, &name, &format!("172.20.8.{}", number % 250), &[HTTP]));
    }
    let setup = Setup::new();
    setup.join(&[&east, &west]);
    // No file may grow beyond 4 KiB, and writes beyond it fail.
    let full = "trap '' XFSZ; ulimit -f 8";
    let mut replica = Replica::start_in(&setup, "state", full).await;
    let proxy = Proxy::sidecar("east");
    let client = replica.connect(&setup, &proxy, ClientOptions::default()).await;
    endpoints_until(&client, "web", &[("10.0.0.1:8080", 1), ("10.0.1.1:8080", 1)]).await;
    west.serve("web", &["10.0.1.2"]);
    endpoints_until(&client, "web", &[("10.0.0.1:8080", 1), ("10.0.1.2:8080", 1)]).await;
    replica.end("-TERM").await;

    // A file that was too large was not written partially: the other files exist, and it does not.
    west.api.stop().await;
    east.api.stop().await;
    let setup = setup.with(&["--remote-cluster-timeout", "1s"]);
    let replica = Replica::start(&setup, "state").await;
    let clusters = replica.admin.json("/debug/clusters").await;
    let state = |id: &str| {
        let all = clusters.as_array().expect("a list").iter();
        all.filter(|one| one["id"] == id).map(|one| one["state"].clone()).collect::<Vec<_>>()
    };
    assert_eq!((state("east"), state("west")), (vec![json!("restored")], vec![json!("timeout")]));
}
