//! What a restart costs while API servers are dead: nothing. What was last known is on disk.

use std::time::Instant;

use serde_json::json;
use strait::xds::client::Client;
use strait::xds::resource::ResourceType;
use strait_sim::SimCluster;
use strait_sim::objects;

use super::mesh::{
    Member, Proxy, SOON, SYSTEM, Server, Setup, endpoints_until, holds, replace, wait_until,
};
use super::restart::{Bodies, CART, members, quiet, substance};

/// What a proxy holds of every type, once there is nothing more for it.
async fn given(setup: &Setup, server: &Server) -> Vec<(ResourceType, Bodies)> {
    let client = server.connect(setup, &Proxy::sidecar("east")).await;
    endpoints_until(&client, "cart", CART).await;
    let given = substance(&quiet(server, &client).await);
    wait_for_none(server, client).await;
    given
}

/// Ends a stream, and waits until the server has seen it.
async fn wait_for_none(server: &Server, client: Client) {
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

/// A setup with two members, which a server has served; what it gave; and the members, dead.
async fn served() -> (Setup, Member, Member, Vec<(ResourceType, Bodies)>) {
    let (east, west) = members().await;
    let setup = Setup::new();
    setup.join(&[&east, &west]);
    let first = setup.start_ready().await;
    let before = given(&setup, &first).await;
    first.shut_down().await;
    stop(&[&east, &west]).await;
    (setup, east, west, before)
}

fn lkg_files(setup: &Setup) -> Vec<std::path::PathBuf> {
    let files = std::fs::read_dir(setup.path("state").join("lkg")).expect("the directory is there");
    let mut files: Vec<_> = files.map(|file| file.expect("an entry").path()).collect();
    files.sort();
    files
}

#[tokio::test]
async fn with_every_member_dead_a_restart_serves_the_same_bytes_at_once_and_says_so() {
    let (setup, east, west, before) = served().await;
    let began = Instant::now();
    let second = setup.start_ready().await;
    // Far less than the 30 s after which a member that is not heard of no longer counts.
    assert!(began.elapsed().as_secs() < 10, "{:?}", began.elapsed());
    for id in ["east", "west"] {
        let entry = second.cluster_in(id, "restored").await;
        assert_eq!(entry["services"], 4, "{entry}");
        assert!(entry["lastContact"].is_string(), "{entry}");
        assert!(entry["reason"].as_str().expect("a reason").contains("from disk"), "{entry}");
        second.cluster_until(id, |entry| entry["reason"].to_string().contains("STR0301")).await;
    }
    assert_eq!(given(&setup, &second).await, before);

    // Their API servers take over without a gap, each for itself.
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
    wait_for_none(&second, client).await;
    second.shut_down().await;

    // What changed since is what is remembered.
    stop(&[&east, &west]).await;
    let third = setup.start_ready().await;
    let client = third.connect(&setup, &Proxy::sidecar("east")).await;
    endpoints_until(&client, "cart", &[("10.0.0.2:8080", 1), ("198.18.0.2:15443", 2)]).await;
}

#[tokio::test]
async fn a_cluster_whose_secret_went_meanwhile_is_not_restored() {
    let (setup, _east, _west, _) = served().await;
    setup.take_out("west");
    let second = setup.start_ready().await;
    second.cluster_in("east", "restored").await;
    assert!(second.clusters("west").await.is_empty());
    let client = second.connect(&setup, &Proxy::sidecar("east")).await;
    endpoints_until(&client, "cart", &[("10.0.0.1:8080", 1), ("10.0.0.2:8080", 1)]).await;
    wait_for_none(&second, client).await;
    second.shut_down().await;
    let left = lkg_files(&setup);
    assert!(left.iter().all(|file| !file.to_string_lossy().contains("west")), "{left:?}");
}

#[tokio::test]
async fn a_damaged_file_costs_a_generation_and_is_told() {
    let (setup, ..) = served().await;
    let of_west = |file: &&std::path::PathBuf| file.to_string_lossy().contains("cluster-west");
    let newest = lkg_files(&setup).iter().rfind(of_west).cloned().expect("a file");
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
async fn a_file_that_is_broken_at_a_restart_costs_neither_its_good_documents_nor_its_clusters() {
    let (setup, _east, west, before) = served().await;
    let of_east = std::fs::read_to_string(setup.path("config").join("east.json")).expect("read");
    setup.take_out("east");
    setup.take_out("west");
    let all = setup.path("config").join("all.yaml");
    replace(&all, &format!("kind: Secret\ndata: [\n---\n{of_east}\n"));
    let second = setup.start_ready().await;
    second.cluster_in("east", "restored").await;
    let entry = second.cluster_in("west", "rejected").await;
    let reason = entry["reason"].as_str().expect("a reason");
    assert!(reason.contains("STR0219") && reason.contains("all.yaml"), "{reason}");
    assert!(reason.contains("from disk"), "{reason}");
    assert_eq!(given(&setup, &second).await, before);

    west.api.restart().await;
    replace(&all, &format!("{}\n---\n{of_east}\n", west.secret()));
    second.cluster_in("west", "live").await;
    replace(&all, &of_east);
    second.cluster_in("west", "draining").await;
}

#[tokio::test]
async fn a_state_that_cannot_be_written_changes_nothing_else() {
    let (east, west) = members().await;
    let setup = Setup::new();
    setup.join(&[&east, &west]);
    std::fs::create_dir(setup.path("state")).expect("made");
    // A file where the directory should be, which not even root can write into.
    replace(&setup.path("state").join("lkg"), "in the way");
    let server = setup.start_ready().await;
    let client = server.connect(&setup, &Proxy::sidecar("east")).await;
    endpoints_until(&client, "cart", CART).await;
    east.serve("cart", &["10.0.0.2"]);
    endpoints_until(&client, "cart", &[("10.0.0.2:8080", 1), ("198.18.0.2:15443", 2)]).await;
    wait_until(SOON, async || {
        let unwritable = server.admin.metric("strait_state_unwritable").await;
        holds(unwritable == 1.0, "told nobody")
    })
    .await;
    assert!(server.admin.metric("strait_state_write_failures_total").await >= 1.0);
    wait_for_none(&server, client).await;
    server.shut_down().await;
}

#[tokio::test]
async fn with_the_config_cluster_dead_too_the_mesh_is_as_it_was() {
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

    // Back again: the Secrets that are there go on, the one that has gone leaves with its grace.
    let name = west.secret()["metadata"]["name"].as_str().expect("a name").to_owned();
    hub.store().delete("Secret", SYSTEM, &name).expect("there is one");
    hub.restart().await;
    east.api.restart().await;
    second.cluster_in("config", "live").await;
    second.cluster_in("east", "live").await;
    second.cluster_in("west", "draining").await;
}

#[tokio::test]
async fn after_a_restart_of_strait_alone_nobody_sees_the_past() {
    let (east, west) = members().await;
    let setup = Setup::new();
    setup.join(&[&east, &west]);
    let mut server = setup.start_ready().await;
    given(&setup, &server).await;
    let mut seen = Vec::new();
    // A machine may be so busy that nothing is read within the wait; not each of three times.
    for fresh in ["10.0.0.2", "10.0.0.3", "10.0.0.4"] {
        server.shut_down().await;
        // What is on disk is not the truth any more. One of the two is dead.
        east.serve("cart", &[fresh]);
        if seen.is_empty() {
            west.api.stop().await;
        }
        server = setup.start_ready().await;
        let shown =
            server.admin.json("/debug/endpoints?hostname=cart.shop.svc.cluster.local").await;
        let of_east = shown.as_array().expect("a list").iter();
        let of_east = of_east.filter(|one| one["cluster"] == "east");
        let addresses: Vec<_> = of_east.filter_map(|one| one["address"].as_str()).collect();
        server.cluster_in("west", "restored").await;
        if addresses == [fresh] {
            return server.shut_down().await;
        }
        server.cluster_in("east", "live").await;
        seen.push(shown);
    }
    panic!("the past was seen each time: {seen:?}");
}

#[tokio::test]
async fn a_config_cluster_that_was_never_read_is_waited_for_and_told_why() {
    let hub = SimCluster::start("hub", Default::default()).await.expect("a free port");
    hub.store().apply(objects::namespace(SYSTEM)).expect("a valid object");
    hub.stop().await;
    let setup = Setup::new();
    let server = setup.start_as(setup.arguments_with(&hub)).await;
    let told = wait_until(SOON, async || {
        let (status, text) = server.admin.text("/readyz?verbose").await;
        assert_eq!(status, http::StatusCode::SERVICE_UNAVAILABLE);
        holds(text.contains("STR0311"), &text).map(|()| text)
    })
    .await;
    for part in ["secrets of the config cluster can't be read", "refused", "https://", "kubectl"] {
        assert!(told.contains(part), "no {part:?} in {told}");
    }
    hub.restart().await;
    server.ready().await;
}
