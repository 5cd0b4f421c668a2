//! The cost of a restart while API servers are down: none, because the last known state is on disk.

use std::time::Instant;

use serde_json::json;

use super::mesh::{
    Member, Proxy, SOON, SYSTEM, Server, Setup, endpoints_until, holds, replace, wait_until,
};
use super::restart::{Bodies, CART, members, quiet, substance};
use strait_base::source_status::FRESH_WAIT;
use strait_sim::{Family, Fault, Gone, Refusal, SimCluster, objects};
use strait_xds::resource::ResourceType;
use strait_xds_client::XdsClient;

/// Returns all resources of a proxy, once the server has nothing more for it.
async fn given(setup: &Setup, server: &Server) -> Vec<(ResourceType, Bodies)> {
    let client = server.connect(setup, &Proxy::sidecar("east")).await;
    endpoints_until(&client, "cart", CART).await;
    let given = substance(&quiet(server, &client).await);
    wait_until_disconnected(server, client).await;
    given
}

/// Ends a stream, and waits until the server has noticed.
async fn wait_until_disconnected(server: &Server, client: XdsClient) {
    drop(client);
    wait_until(SOON, async || {
        let shown = server.admin.json("/debug/proxies").await;
        holds(shown.as_array().is_some_and(Vec::is_empty), shown)
    })
    .await;
}

async fn stop(members: &[&Member]) {
    for member in members {
        member.api.stop().await;
    }
}

/// Returns a setup with two members that a server has served, the members, and the resources of a
/// proxy.
async fn remembered() -> (Setup, Member, Member, Vec<(ResourceType, Bodies)>) {
    let (east, west) = members().await;
    let setup = Setup::new();
    setup.join(&[&east, &west]);
    let first = setup.start_ready().await;
    let before = given(&setup, &first).await;
    first.shut_down().await;
    (setup, east, west, before)
}

/// Returns the same setup with the members stopped.
async fn served() -> (Setup, Member, Member, Vec<(ResourceType, Bodies)>) {
    let (setup, east, west, before) = remembered().await;
    stop(&[&east, &west]).await;
    (setup, east, west, before)
}

fn lkg_files(setup: &Setup) -> Vec<std::path::PathBuf> {
    let files = std::fs::read_dir(setup.path("state").join("lkg")).expect("the directory exists");
    let mut files: Vec<_> = files.map(|file| file.expect("an entry").path()).collect();
    files.sort();
    files
}

#[tokio::test]
async fn restart_without_reachable_members_serves_the_same_bytes_and_reports_it() {
    let (setup, east, west, before) = served().await;
    let began = Instant::now();
    let second = setup.start_ready().await;
    // Far less than the 30 s for which an unresponsive member delays readiness.
    assert!(began.elapsed().as_secs() < 10, "{:?}", began.elapsed());
    for id in ["east", "west"] {
        let entry = second.cluster_in(id, "restored").await;
        assert_eq!(entry["services"], 4, "{entry}");
        assert!(entry["lastContact"].is_string(), "{entry}");
        assert!(entry["reason"].as_str().expect("a reason").contains("from disk"), "{entry}");
        second.cluster_until(id, |entry| entry["reason"].to_string().contains("STR0301")).await;
    }
    assert_eq!(given(&setup, &second).await, before);

    // Their API servers take over without interruption, each separately.
    let client = second.connect(&setup, &Proxy::sidecar("east")).await;
    endpoints_until(&client, "cart", CART).await;
    west.api.restart().await;
    second.cluster_in("west", "live").await;
    assert_eq!(second.cluster("east").await["state"], "restored");
    assert_eq!(substance(&quiet(&second, &client).await), before);
    east.api.restart().await;
    second.cluster_in("east", "live").await;
    assert_eq!(substance(&quiet(&second, &client).await), before);
    east.serve("cart", &["10.0.0.2"]);
    endpoints_until(&client, "cart", &[("10.0.0.2:8080", 1), ("198.18.0.2:15443", 2)]).await;
    wait_until_disconnected(&second, client).await;
    second.shut_down().await;

    // Changes since then are remembered.
    stop(&[&east, &west]).await;
    let third = setup.start_ready().await;
    let client = third.connect(&setup, &Proxy::sidecar("east")).await;
    endpoints_until(&client, "cart", &[("10.0.0.2:8080", 1), ("198.18.0.2:15443", 2)]).await;
}

#[tokio::test]
async fn cluster_whose_secret_was_deleted_meanwhile_is_not_restored() {
    let (setup, _east, _west, _) = served().await;
    setup.take_out("west");
    let second = setup.start_ready().await;
    second.cluster_in("east", "restored").await;
    assert!(second.clusters("west").await.is_empty());
    let client = second.connect(&setup, &Proxy::sidecar("east")).await;
    endpoints_until(&client, "cart", &[("10.0.0.1:8080", 1), ("10.0.0.2:8080", 1)]).await;
    wait_until_disconnected(&second, client).await;
    second.shut_down().await;
    let remaining = lkg_files(&setup);
    assert!(remaining.iter().all(|file| !file.to_string_lossy().contains("west")), "{remaining:?}");
}

#[tokio::test]
async fn damaged_file_loses_one_generation_and_is_reported() {
    let (setup, ..) = served().await;
    let is_west = |file: &&std::path::PathBuf| file.to_string_lossy().contains("cluster-west");
    let newest = lkg_files(&setup).iter().rfind(is_west).cloned().expect("a file");
    let good = std::fs::read(&newest).expect("read");
    let next = newest.with_file_name("cluster-west.000000009999.lkg");
    std::fs::write(&next, &good[..good.len() / 2]).expect("written");
    let second = setup.start_ready().await;
    let entry = second.cluster_in("west", "restored").await;
    let reason = entry["reason"].as_str().expect("a reason");
    assert!(reason.contains("an earlier file is used"), "{reason}");
    let client = second.connect(&setup, &Proxy::sidecar("east")).await;
    endpoints_until(&client, "cart", CART).await;
}

#[tokio::test]
async fn broken_file_at_a_restart_removes_neither_its_valid_documents_nor_its_clusters() {
    let (setup, _east, west, before) = served().await;
    let east_secret =
        std::fs::read_to_string(setup.path("config").join("east.json")).expect("read");
    setup.take_out("east");
    setup.take_out("west");
    let all = setup.path("config").join("all.yaml");
    replace(&all, &format!("kind: Secret\ndata: [\n---\n{east_secret}\n"));
    let second = setup.start_ready().await;
    second.cluster_in("east", "restored").await;
    let entry = second.cluster_in("west", "rejected").await;
    let reason = entry["reason"].as_str().expect("a reason");
    assert!(reason.contains("STR0219") && reason.contains("all.yaml"), "{reason}");
    assert!(reason.contains("from disk"), "{reason}");
    assert_eq!(given(&setup, &second).await, before);

    west.api.restart().await;
    replace(&all, &format!("{}\n---\n{east_secret}\n", west.secret()));
    second.cluster_in("west", "live").await;
    replace(&all, &east_secret);
    second.cluster_in("west", "draining").await;
}

#[tokio::test]
async fn unwritable_state_affects_nothing_else() {
    let (east, west) = members().await;
    let setup = Setup::new();
    setup.join(&[&east, &west]);
    std::fs::create_dir(setup.path("state")).expect("made");
    // A file instead of the directory, so that not even root can write into it.
    replace(&setup.path("state").join("lkg"), "in the way");
    let server = setup.start_ready().await;
    let client = server.connect(&setup, &Proxy::sidecar("east")).await;
    endpoints_until(&client, "cart", CART).await;
    east.serve("cart", &["10.0.0.2"]);
    endpoints_until(&client, "cart", &[("10.0.0.2:8080", 1), ("198.18.0.2:15443", 2)]).await;
    wait_until(SOON, async || {
        let unwritable = server.admin.metric("strait_state_unwritable").await;
        holds(unwritable == 1.0, "the metric does not report it")
    })
    .await;
    assert!(server.admin.metric("strait_state_write_failures_total").await >= 1.0);
    wait_until_disconnected(&server, client).await;
    server.shut_down().await;
}

#[tokio::test]
async fn restart_without_the_config_cluster_restores_the_mesh() {
    let (east, west) = members().await;
    let hub = SimCluster::start("hub", Default::default()).await.expect("a free port");
    let apply = |object| hub.store().apply(object).expect("a valid object");
    apply(objects::namespace(SYSTEM));
    apply(east.secret());
    apply(west.secret());
    apply(json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": "strait", "namespace": SYSTEM },
        "data": { "mesh": "connectTimeout: 3s" },
    }));
    let setup = Setup::new();
    let arguments = setup.arguments_with(&hub);

    let first = setup.start_as(arguments.clone()).await;
    first.ready().await;
    for id in ["config", "east", "west"] {
        first.cluster_in(id, "live").await;
    }
    let before = given(&setup, &first).await;
    first.shut_down().await;
    stop(&[&east, &west]).await;
    hub.stop().await;

    let second = setup.start_as(arguments).await;
    second.ready().await;
    for id in ["config", "east", "west"] {
        second.cluster_in(id, "restored").await;
    }
    let after = given(&setup, &second).await;
    let clusters = |given: &[(ResourceType, Bodies)]| {
        let all = given.iter().find(|(kind, _)| *kind == ResourceType::Cluster);
        all.map(|(_, bodies)| bodies.clone())
    };
    assert!(clusters(&before) == clusters(&after), "upstream clusters differ");
    assert_eq!(after, before);

    // After its return, the existing Secrets continue, and the deleted one is removed after its
    // grace period.
    let name = west.secret()["metadata"]["name"].as_str().expect("a name").to_owned();
    hub.store().delete("Secret", SYSTEM, &name).expect("there is one");
    hub.restart().await;
    east.api.restart().await;
    second.cluster_in("config", "live").await;
    second.cluster_in("east", "live").await;
    second.cluster_in("west", "draining").await;
}

#[tokio::test]
async fn restart_with_live_members_sends_no_outdated_state() {
    let (east, west) = members().await;
    let setup = Setup::new();
    setup.join(&[&east, &west]);
    let mut server = setup.start_ready().await;
    given(&setup, &server).await;
    let mut attempts = Vec::new();
    // A machine may be too busy to read anything within the wait, but not three times in a row.
    for fresh in ["10.0.0.2", "10.0.0.3", "10.0.0.4"] {
        server.shut_down().await;
        // The state on disk is outdated. The member `west` is down.
        east.serve("cart", &[fresh]);
        if attempts.is_empty() {
            west.api.stop().await;
        }
        server = setup.start_ready().await;
        let shown =
            server.admin.json("/debug/endpoints?hostname=cart.shop.svc.cluster.local").await;
        let east_rows = shown.as_array().expect("a list").iter();
        let east_rows = east_rows.filter(|one| one["cluster"] == "east");
        let addresses: Vec<_> = east_rows.filter_map(|one| one["address"].as_str()).collect();
        server.cluster_in("west", "restored").await;
        if addresses == [fresh] {
            return server.shut_down().await;
        }
        server.cluster_in("east", "live").await;
        attempts.push(shown);
    }
    panic!("the past was seen each time: {attempts:?}");
}

/// Makes the next lists of an API server empty, of one kind or of all, and makes watches begin with
/// a list.
fn empty_lists(api: &SimCluster, resource: Option<&str>) {
    api.fault(Fault::EmptyLists { resource: resource.map(str::to_owned) });
    api.fault(Fault::Gone { how: Gone::Status, times: Some(100) });
    api.fault(Fault::CloseWatches { after_ms: 1 });
}

#[tokio::test]
async fn empty_list_of_the_config_cluster_removes_nothing() {
    let (east, west) = members().await;
    let hub = SimCluster::start("hub", Default::default()).await.expect("a free port");
    hub.fault(Fault::NoStreamingLists { how: Refusal::Invalid });
    hub.enable(Family::Istio);
    let apply = |object| hub.store().apply(object).expect("a valid object");
    for object in [objects::namespace(SYSTEM), east.secret(), west.secret()] {
        apply(object);
    }
    let networks = "networks: { n3: { endpoints: [{ fromCidr: 10.3.0.0/16 }], gateways: [{ address: 198.18.0.9, port: 15443 }] } }";
    apply(json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": "strait", "namespace": SYSTEM },
        "data": { "mesh": "connectTimeout: 3s", "meshNetworks": networks },
    }));
    apply(json!({
        "apiVersion": "networking.istio.io/v1",
        "kind": "ServiceEntry",
        "metadata": { "name": "db", "namespace": "shop" },
        "spec": {
            "hosts": ["db.example.com"],
            "ports": [{ "name": "tcp", "number": 5432, "protocol": "TCP" }],
            "resolution": "STATIC",
            "endpoints": [{ "address": "10.4.0.1" }],
        },
    }));
    let setup = Setup::new();
    let server = setup.start_as(setup.arguments_with(&hub)).await;
    server.ready().await;
    for id in ["config", "east", "west"] {
        server.cluster_in(id, "live").await;
    }
    let client = server.connect(&setup, &Proxy::sidecar("east")).await;
    endpoints_until(&client, "cart", CART).await;
    let before = quiet(&server, &client).await;
    let networks = server.admin.json("/debug/networks").await;
    let doubts = async || {
        let sources = server.admin.json("/debug/sources").await;
        let all = sources.as_array().expect("a list").clone();
        let own = all.into_iter().find(|one| one["name"] == "config cluster").expect("it is there");
        own["warnings"].as_array().map_or(0, |warnings| {
            warnings.iter().filter(|one| one.to_string().contains("STR0606")).count()
        })
    };

    empty_lists(&hub, None);
    // Secrets, ConfigMaps, ServiceEntries, Namespaces.
    wait_until(SOON, async || {
        let doubts = doubts().await;
        holds(doubts >= 4, doubts)
    })
    .await;
    hub.heal();
    hub.fault(Fault::NoStreamingLists { how: Refusal::Invalid });
    wait_until(SOON, async || {
        let doubts = doubts().await;
        holds(doubts == 0, doubts)
    })
    .await;
    for id in ["config", "east", "west"] {
        server.cluster_in(id, "live").await;
    }
    assert_eq!(server.admin.json("/debug/networks").await, networks);
    let after = quiet(&server, &client).await;
    assert_eq!(after.resources, before.resources, "nothing was sent meanwhile");

    // A repeated empty list takes effect.
    empty_lists(&hub, Some("secrets"));
    server.cluster_in("east", "draining").await;
    let metrics = server.admin.text("/metrics").await.1;
    let metric =
        metrics.lines().find(|line| line.starts_with("strait_source_doubted_answers_total"));
    assert!(metric.is_some_and(|line| !line.ends_with(" 0")), "{metric:?}");
}

#[tokio::test]
async fn first_list_after_a_restart_or_of_a_new_run_is_verified_by_a_second_read() {
    let (setup, _east, west, _) = remembered().await;

    let lacking = |api: &SimCluster| {
        api.fault(Fault::NoStreamingLists { how: Refusal::Invalid });
        api.fault(Fault::EmptyLists { resource: Some("endpointslices".to_owned()) });
    };
    lacking(&west.api);
    let second = setup.start_ready().await;
    let client = second.connect(&setup, &Proxy::sidecar("east")).await;
    endpoints_until(&client, "cart", CART).await;
    let entry = second.cluster_in("west", "quarantined").await;
    let reason = entry["reason"].as_str().expect("a reason");
    assert!(reason.contains("STR0606") && reason.contains("endpointslices has 0"), "{reason}");
    let before = quiet(&second, &client).await;
    west.api.heal();
    second.cluster_in("west", "live").await;
    let resource_count = |client: &XdsClient| client.held().resources;
    assert_eq!(resource_count(&client), before.resources, "nothing was removed meanwhile");

    // Another run reads the same cluster: its first list lacks the same objects.
    lacking(&west.api);
    let mut secret = west.secret();
    secret["metadata"]["annotations"]["strait.dev/trust-domain"] = json!("cluster.local");
    setup.put("west", &secret);
    let doubted = |entry: &serde_json::Value| entry["reason"].to_string().contains("STR0606");
    second.cluster_until("west", doubted).await;
    west.api.heal();
    second.cluster_until("west", |entry| entry["state"] == "live" && !doubted(entry)).await;
    assert_eq!(resource_count(&client), before.resources, "nothing was removed meanwhile");
}

/// Copies the state directory of a setup.
fn copy(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).expect("a directory");
    for entry in std::fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        let to = to.join(entry.file_name());
        match entry.file_type().expect("a type").is_dir() {
            true => copy(&entry.path(), &to),
            false => drop(std::fs::copy(entry.path(), to).expect("copied")),
        }
    }
}

/// The order of tasks at a start depends on the machine. So this test makes a hundred starts, some
/// concurrently, from copies of one state.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_restart_serves_the_state_on_disk_before_waiting_for_its_clusters() {
    const AT_ONCE: usize = 10;
    let (setup, _east, _west, _) = remembered().await;
    let state = setup.path("state");
    for round in 0..10 {
        let starts = (0..AT_ONCE).map(|number| {
            let mut arguments = setup.arguments();
            let at = arguments.iter().position(|one| *one == state.display().to_string());
            let own = setup.path(&format!("state-{round}-{number}"));
            copy(&state, &own);
            arguments[at.expect("the flag is set")] = own.display().to_string();
            let setup = &setup;
            async move {
                let began = Instant::now();
                let server = setup.start_as(arguments).await;
                let mut readiness = server.bound.readiness.clone();
                readiness.wait_for(|readiness| readiness.ready).await.expect("the server runs");
                let elapsed = began.elapsed();
                let clusters = server.admin.json("/debug/clusters").await;
                let all = clusters.as_array().expect("a list").iter();
                let live = all.filter(|one| one["state"] == "live").count();
                assert!(live == 2 || elapsed >= FRESH_WAIT, "after {elapsed:?}: {clusters}");
                server.shut_down().await;
            }
        });
        futures::future::join_all(starts).await;
    }
}

#[tokio::test]
async fn config_cluster_that_was_never_read_delays_readiness_with_a_reason() {
    let hub = SimCluster::start("hub", Default::default()).await.expect("a free port");
    hub.store().apply(objects::namespace(SYSTEM)).expect("a valid object");
    hub.stop().await;
    let setup = Setup::new();
    let server = setup.start_as(setup.arguments_with(&hub)).await;
    let reported = wait_until(SOON, async || {
        let (status, text) = server.admin.text("/readyz?verbose").await;
        assert_eq!(status, http::StatusCode::SERVICE_UNAVAILABLE);
        holds(text.contains("STR0311"), &text).map(|()| text)
    })
    .await;
    for part in ["secrets of the config cluster can't be read", "refused", "https://", "kubectl"] {
        assert!(reported.contains(part), "no {part:?} in {reported}");
    }
    hub.restart().await;
    server.ready().await;
}
