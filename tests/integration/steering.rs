//! The effect of a policy on a running mesh, and the output of the program about it.

use std::process::Command;

use serde_json::json;

use super::mesh::{Member, Proxy, SOON, Setup, endpoints_until, holds, replace, text, wait_until};

const HEAD: &str = "apiVersion: strait.dev/v1\nkind: Policy\n";

#[tokio::test]
async fn policy_and_its_changes_take_effect() {
    let east = Member::start("east", "n1", "198.18.0.1").await;
    let west = Member::start("west", "n1", "198.18.0.2").await;
    east.serve("web", &["10.0.0.1"]);
    west.serve("web", &["10.0.0.2"]);
    let setup = Setup::new();
    let file = setup.path("policy.yaml");
    let name = file.display().to_string();
    let setup = setup.with(&["--policy", &name]);
    let write = |rules: &str| replace(&file, &format!("{HEAD}{rules}"));
    write("clusters: {east: {addresses: [198.51.100.0/24]}, nobody: {mode: drain}}");
    setup.join(&[&east, &west]);
    let server = setup.start_ready().await;
    let client = server.connect(&setup, &Proxy::sidecar("west")).await;
    let (east_endpoint, west_endpoint) = (("10.0.0.1:8080", 1), ("10.0.0.2:8080", 1));
    endpoints_until(&client, "web", &[west_endpoint]).await;

    let found = server.strait(&["check"]).await;
    assert!(text(&found).contains("STR0607"), "{}", text(&found));
    let refused = server.strait(&["policy", "test", &name]).await;
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
    assert!(text(&refused).contains("clusters.east.addresses"), "{}", text(&refused));

    write("");
    endpoints_until(&client, "web", &[west_endpoint, east_endpoint]).await;
    let refused = server.strait(&["policy", "test", &name]).await;
    assert_eq!(refused.status.code(), Some(0), "{}", text(&refused));

    // An invalid policy changes nothing, and is reported.
    write("clusters: {east: {adresses: []}}");
    wait_until(SOON, async || {
        let policy = server.admin.json("/debug/policy").await;
        holds(policy["problem"].is_string(), policy)
    })
    .await;
    let found = server.strait(&["check", "policy"]).await;
    assert_eq!(found.status.code(), Some(2), "{}", text(&found));
    assert!(text(&found).contains("STR0601"), "{}", text(&found));
    endpoints_until(&client, "web", &[west_endpoint, east_endpoint]).await;

    write("mesh: {mode: normal}\nclusters: {east: {mode: drain}, west: {mode: pause}}");
    endpoints_until(&client, "web", &[west_endpoint]).await;
    server.cluster_in("east", "draining").await;
    let paused = server.cluster_in("west", "paused").await;
    assert!(paused["since"].is_string(), "{paused}");
    let metrics = server.admin.text("/metrics").await.1;
    assert!(
        metrics.contains("strait_cluster_state{cluster=\"west\",state=\"paused\"} 1"),
        "{metrics}"
    );
}

#[tokio::test]
async fn invalid_policy_ends_the_program_at_start() {
    let setup = Setup::new();
    let config = setup.path("config").display().to_string();
    let file = setup.path("policy.yaml");
    replace(&file, "kind: Policy");
    let file = file.display().to_string();
    for (name, expected) in [(file.as_str(), 1), ("/nowhere/policy.yaml", 64)] {
        let state = setup.path("state").display().to_string();
        let address = "127.0.0.1:0";
        let mut command = Command::new(env!("CARGO_BIN_EXE_strait"));
        command
            .args(["serve", "--config-dir", &config, "--state-dir", &state, "--policy", name])
            .args(["--xds-address", address, "--admin-address", address])
            .env_clear();
        let output = command.output().expect("it ends");
        assert_eq!(output.status.code(), Some(expected), "{}", text(&output));
        assert!(text(&output).contains("STR0601"), "{}", text(&output));
    }
}

#[tokio::test]
async fn preference_ranks_the_local_cluster_first() {
    let east = Member::start("east", "n1", "198.18.0.1").await;
    let west = Member::start("west", "n1", "198.18.0.2").await;
    east.serve("web", &["10.0.0.1"]);
    west.serve("web", &["10.0.0.2"]);
    let setup = Setup::new();
    let file = setup.path("policy.yaml");
    let rules =
        json!([{ "name": "home", "services": { "namespaces": ["*"] }, "order": ["own cluster"] }]);
    replace(&file, &format!("{HEAD}preferences: {rules}"));
    let name = file.display().to_string();
    let setup = setup.with(&["--policy", &name]);
    setup.join(&[&east, &west]);
    let server = setup.start_ready().await;
    let client = server.connect(&setup, &Proxy::sidecar("west")).await;
    endpoints_until(&client, "web", &[("10.0.0.1:8080", 1), ("10.0.0.2:8080", 1)]).await;
    let proxies = server.admin.json("/debug/proxies").await;
    let key = proxies[0]["key"].as_str().expect("a key").to_owned();
    let path = format!("/debug/explain?proxy={key}&hostname=web.{}", super::mesh::SHOP);
    let explained = server.admin.json(&path).await;
    let priority = |cluster: &str| {
        let lines = explained["clusters"].as_array().expect("lines");
        lines.iter().find(|line| line["cluster"] == cluster).expect("a line")["priority"].clone()
    };
    assert_eq!((priority("west"), priority("east")), (json!(0), json!(1)), "{explained:#}");
}
