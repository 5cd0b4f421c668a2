//! The effect of a policy on a running mesh, and the output of the program about it.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::{Value, json};

use strait_sim::objects::labelled;

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

#[tokio::test]
async fn sharing_of_the_policy_is_previewed_and_keeps_services_local_as_previewed() {
    let east = Member::start("east", "n1", "198.18.0.1").await;
    let west = Member::start("west", "n1", "198.18.0.2").await;
    for (member, last) in [(&east, 1), (&west, 2)] {
        member.serve("web", &[&format!("10.0.0.{last}")]);
        member.serve("cart", &[&format!("10.0.1.{last}")]);
        member.serve("home", &[&format!("10.0.2.{last}")]);
    }
    let relabel = |member: &Member, name: &str, key: &str, value: &str| {
        let service = member.api.store().get("Service", "shop", name).expect("a service");
        let mut service = labelled(service.value(), key, value);
        // The store has the kind apart from the object.
        (service["apiVersion"], service["kind"]) = (json!("v1"), json!("Service"));
        member.apply(service);
    };
    relabel(&east, "web", "istio.io/global", "true");
    relabel(&east, "home", "strait.dev/share", "false");
    let setup = Setup::new();
    let mesh = setup.path("mesh.yaml");
    let scopes = "serviceScopeConfigs: [{servicesSelector: {matchLabels: {istio.io/global: \"true\"}}, scope: GLOBAL}]\n";
    replace(&mesh, scopes);
    let (file, next) = (setup.path("policy.yaml"), setup.path("next.yaml"));
    let name = file.display().to_string();
    replace(&file, HEAD);
    let setup = setup.with(&["--policy", &name, "--mesh-config", &mesh.display().to_string()]);
    setup.join(&[&east, &west]);
    let server = setup.start_ready().await;
    let client = server.connect(&setup, &Proxy::sidecar("west")).await;
    let both = |net: u8| [format!("10.0.{net}.1:8080"), format!("10.0.{net}.2:8080")];
    let received = async |name: &str, expected: &[String]| {
        let expected: Vec<_> = expected.iter().map(|one| (one.as_str(), 1)).collect();
        endpoints_until(&client, name, &expected).await;
    };
    received("web", &both(0)).await;
    received("cart", &both(1)).await;
    received("home", &["10.0.2.2:8080".to_owned()]).await;

    // The mesh config alone changes nothing, and is reported with the number of services.
    let found = server.strait(&["check"]).await;
    let found = text(&found);
    assert!(found.contains("STR0450") && found.contains("would become local"), "{found}");
    let shown = text(&server.strait(&["service", "get", "home.shop"]).await);
    assert!(shown.contains("local") && shown.contains("Service label strait.dev/share"), "{shown}");

    let rules = format!("{HEAD}sharing: {{istioGlobal: honour}}\n");
    replace(&next, &rules);
    let next = next.display().to_string();
    let shown = text(&server.strait(&["policy", "test", &next]).await);
    for line in [
        "cart.shop.svc.cluster.local  east  shared -> local",
        "web.shop.svc.cluster.local  west  shared -> local",
    ] {
        assert!(shown.contains(line), "{shown}");
    }
    assert!(!shown.contains("home.shop.svc.cluster.local  east"), "its label decides: {shown}");
    assert!(!shown.contains("web.shop.svc.cluster.local  east"), "it is global: {shown}");
    let answer = server.strait(&["policy", "test", &next, "-o", "json"]).await;
    let answer: Value = serde_json::from_slice(&answer.stdout).expect("JSON");
    let previewed = answer["changes"].as_array().expect("changes").clone();
    let states = async || {
        let services = server.admin.json("/debug/services").await;
        let mut states = BTreeMap::new();
        for service in services.as_array().expect("services") {
            for row in service["sharing"].as_array().expect("rows") {
                let key = (service["hostname"].to_string(), row["cluster"].to_string());
                states.insert(key, row["state"].clone());
            }
        }
        states
    };
    let before = states().await;
    replace(&file, &rules);
    received("cart", &["10.0.1.2:8080".to_owned()]).await;
    received("web", &["10.0.0.1:8080".to_owned(), "10.0.0.2:8080".to_owned()]).await;

    // Exactly the previewed services have changed.
    let mut changed = Vec::new();
    for (key, state) in states().await {
        if before[&key] != state {
            let old = before[&key].clone();
            changed.push((key, old, state));
        }
    }
    let mut expected: Vec<_> = previewed
        .iter()
        .map(|one| {
            let key = (one["hostname"].to_string(), one["cluster"].to_string());
            (key, one["from"].clone(), one["to"].clone())
        })
        .collect();
    expected.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(changed, expected);
    let found = text(&server.strait(&["check"]).await);
    assert!(!found.contains("STR0450"), "{found}");
}
