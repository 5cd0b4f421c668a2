//! A held configuration: proxies keep it regardless of changed objects, while pods are still added
//! and removed, and a restart keeps the hold.

use std::process::Output;

use serde_json::{Value, json};

use super::mesh::{
    Member, Proxy, SOON, Server, Setup, all_resources, endpoints_until, holds, text, wait_until,
};
use strait_xds::resource::ResourceType;
use strait_xds_client::XdsClient;

fn object(kind: &str, name: &str, spec: Value) -> Value {
    let group = if kind == "AuthorizationPolicy" { "security" } else { "networking" };
    json!({
        "apiVersion": format!("{group}.istio.io/v1"), "kind": kind, "spec": spec,
        "metadata": { "namespace": "shop", "name": name },
    })
}

fn route(timeout: &str) -> Value {
    let to = json!([{ "destination": { "host": "web" } }]);
    let spec = json!({ "hosts": ["web"], "http": [{ "timeout": timeout, "route": to }] });
    object("VirtualService", "web", spec)
}

async fn timeout_until(client: &XdsClient, expected: &str) {
    wait_until(SOON, async || {
        let contents = client.held();
        let body = contents.body(ResourceType::Route, "80").ok_or("no route yet")?;
        let route = strait_proto::json::to_json(ResourceType::Route.url(), body);
        let text = route.map_err(|error| error.to_string())?.to_string();
        holds(text.contains(&format!("\"timeout\":\"{expected}\"")), text)
    })
    .await;
}

async fn strait(server: &Server, arguments: &[&str]) -> String {
    let output = server.strait(arguments).await;
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text(&output));
    text(&output)
}

/// Waits until this number of changes is waiting, and returns them.
async fn waiting_until(server: &Server, count: u64) -> Value {
    wait_until(SOON, async || {
        let state = server.admin.json("/debug/hold").await;
        holds(state["waiting"]["count"] == count, &state).map(|()| state)
    })
    .await
}

fn exit(output: &Output) -> Option<i32> {
    output.status.code()
}

#[tokio::test]
async fn hold_survives_changes_and_a_restart_until_it_is_released() {
    let east = Member::start("east", "n1", "198.18.0.1").await;
    east.serve("web", &["10.0.0.1"]);
    let setup = Setup::new();
    setup.join(&[&east]);
    setup.put("route", &route("1s"));
    let server = setup.start_ready().await;
    let client = server.connect(&setup, &Proxy::sidecar("east")).await;
    endpoints_until(&client, "web", &[("10.0.0.1:8080", 1)]).await;
    timeout_until(&client, "1s").await;

    // A dry run prints the effect, and holds nothing.
    let printed = strait(&server, &["history", "pin", "--dry-run"]).await;
    assert!(
        printed.contains("not access policies") && printed.contains("of 1 proxy would not change"),
        "{printed}"
    );
    assert!(server.admin.json("/debug/hold").await["held"].is_null());
    let reason = ["--reason", "5xx since noon", "--by", "alice", "--yes"];
    let printed = strait(&server, &[&["history", "pin"][..], &reason].concat()).await;
    assert!(printed.contains("by alice: 5xx since noon; no changes wait"), "{printed}");
    let before = all_resources(&client);

    // A bad change reaches no proxy; it is checked and shown. Pods are added and removed.
    setup.put("route", &route("9s"));
    setup.put("second", &object("VirtualService", "second", json!({ "hosts": ["none.example"] })));
    let state = waiting_until(&server, 2).await;
    assert_eq!(state["held"]["by"], "alice");
    let woken = server.admin.json("/debug/push").await["streamsWokenTotal"].clone();
    east.serve("web", &["10.0.0.1", "10.0.0.2"]);
    endpoints_until(&client, "web", &[("10.0.0.1:8080", 1), ("10.0.0.2:8080", 1)]).await;
    assert!(server.admin.json("/debug/push").await["streamsWokenTotal"].as_u64() > woken.as_u64());
    assert_eq!(all_resources(&client), before);
    let rows = server.admin.json("/debug/config?kind=VirtualService&name=web").await;
    assert_eq!(
        (&rows[0]["state"], &rows[0]["reasons"][0]["code"]),
        (&json!("waiting"), &json!("STR1070"))
    );
    // An access policy takes effect immediately.
    let deny =
        json!({ "action": "DENY", "rules": [{ "to": [{ "operation": { "paths": ["/x"] } }] }] });
    setup.put("deny", &object("AuthorizationPolicy", "deny", deny));
    wait_until(SOON, async || {
        let rows = server.admin.json("/debug/config?kind=AuthorizationPolicy").await;
        holds(rows[0]["state"] == "inForce", rows)
    })
    .await;
    assert_eq!(waiting_until(&server, 2).await["waiting"]["objects"][1]["name"], "web");

    // Waiting changes are reported everywhere.
    assert_eq!(server.admin.metric("strait_configuration_held").await, 1.0);
    assert_eq!(server.admin.metric("strait_configuration_waiting").await, 2.0);
    let checked = server.strait(&["check", "mesh"]).await;
    assert!(exit(&checked) == Some(0) && text(&checked).contains("STR1070"), "{}", text(&checked));
    assert!(strait(&server, &["status"]).await.contains("alice: 5xx since noon; 2 changes wait"));
    assert!(strait(&server, &["history", "list"]).await.contains("has been held for"));
    let id = server.admin.json("/debug/mesh").await["held"]["configuration"].clone();
    assert_eq!(server.admin.json("/debug/push").await["held"]["configuration"], id);

    // Another process with the same state directory keeps the hold, although its objects differ.
    drop(client);
    server.shut_down().await;
    let server = setup.start_ready().await;
    let client = server.connect(&setup, &Proxy::sidecar("east")).await;
    endpoints_until(&client, "web", &[("10.0.0.1:8080", 1), ("10.0.0.2:8080", 1)]).await;
    timeout_until(&client, "1s").await;
    let state = waiting_until(&server, 2).await;
    assert_eq!(
        (&state["held"]["configuration"], &state["held"]["reason"]),
        (&id, &json!("5xx since noon"))
    );

    // The release prints its changes, which the timeline records.
    let printed = strait(&server, &["history", "release", "--yes"]).await;
    for part in [
        "The current objects would take effect again",
        "VirtualService shop/web would take effect in a different form",
        "~ rds 80",
        "No configuration is held",
    ] {
        assert!(printed.contains(part), "{part}: {printed}");
    }
    timeout_until(&client, "9s").await;
    wait_until(SOON, async || {
        let events = server.admin.json("/debug/events").await;
        // Another change may be in the same version.
        let released = |cause: &Value| cause["kind"] == "Hold" && cause["name"] == "released";
        let mut all_events = events.as_array().into_iter().flatten();
        let is_recorded = all_events.any(|event| {
            let mut others = event["otherCauses"].as_array().into_iter().flatten();
            released(&event["cause"]) || others.any(released)
        });
        holds(is_recorded, &events)
    })
    .await;
    let again = server.strait(&["history", "release", "--yes"]).await;
    assert!(
        exit(&again) == Some(1) && text(&again).contains("nothing is held"),
        "{}",
        text(&again)
    );
    drop(client);
    server.shut_down().await;
    let server = setup.start_ready().await;
    assert!(
        server.admin.json("/debug/hold").await["held"].is_null(),
        "the release survives the restart"
    );
    server.shut_down().await;
}

#[tokio::test]
async fn rollback_to_a_valid_version() {
    let east = Member::start("east", "n1", "198.18.0.1").await;
    east.serve("web", &["10.0.0.1"]);
    let setup = Setup::new();
    setup.join(&[&east]);
    setup.put("route", &route("1s"));
    let server = setup.start_ready().await;
    let client = server.connect(&setup, &Proxy::sidecar("east")).await;
    endpoints_until(&client, "web", &[("10.0.0.1:8080", 1)]).await;
    timeout_until(&client, "1s").await;
    let good = server.admin.json("/debug/push").await["version"].to_string();
    let before = all_resources(&client);
    setup.put("route", &route("2s"));
    timeout_until(&client, "2s").await;
    let bad = server.admin.json("/debug/hold").await["live"].clone();

    let printed = strait(&server, &["history", "rollback", &good, "--yes"]).await;
    for part in [
        "VirtualService shop/web would take effect in a different form",
        "~ rds 80",
        "1 change waits",
    ] {
        assert!(printed.contains(part), "{part}: {printed}");
    }
    timeout_until(&client, "1s").await;
    assert_eq!(
        all_resources(&client),
        before,
        "the proxy has the configuration of that version again"
    );
    assert_eq!(waiting_until(&server, 1).await["live"], bad);
    // By name, as on another replica; and with an unknown name.
    let name = bad.as_str().expect("a name");
    strait(&server, &["history", "pin", &name[..12], "--yes"]).await;
    timeout_until(&client, "2s").await;
    for (arguments, code, message) in [
        (&["history", "rollback", "100000", "--yes"][..], 1, "version 100000 does not exist yet"),
        (&["history", "rollback", "abcdef00", "--yes"], 1, "is named"),
        (&["history", "rollback", "yesterday", "--yes"], 1, "is neither a version"),
        (&["history", "rollback"], 64, "VERSION|CONFIGURATION"),
        (&["history", "pin"], 64, "add --yes"),
    ] {
        let output = server.strait(arguments).await;
        assert!(
            exit(&output) == Some(code) && text(&output).contains(message),
            "{}",
            text(&output)
        );
    }
    strait(&server, &["history", "release", "--yes"]).await;
    drop(client);
    server.shut_down().await;
}

#[tokio::test]
async fn damaged_hold_is_reported_and_not_applied() {
    let setup = Setup::new();
    setup.put("route", &route("1s"));
    let server = setup.start_ready().await;
    strait(&server, &["history", "pin", "--yes"]).await;
    server.shut_down().await;
    let file = setup.path("state").join("hold.json");
    let damaged = std::fs::read_to_string(&file).expect("there").replace("1s", "2s");
    std::fs::write(&file, damaged).expect("written");
    let server = setup.start_ready().await;
    let state = server.admin.json("/debug/hold").await;
    assert!(state["held"].is_null(), "{state}");
    let checked = server.strait(&["check", "mesh"]).await;
    assert!(exit(&checked) == Some(2) && text(&checked).contains("STR1071"), "{}", text(&checked));
    assert_eq!(server.admin.metric("strait_configuration_hold_lost").await, 1.0);
    strait(&server, &["history", "release", "--yes"]).await;
    assert_eq!(exit(&server.strait(&["check", "mesh"]).await), Some(0));
    assert!(!file.exists());

    // A hold that cannot be stored is rejected.
    std::fs::create_dir(&file).expect("made");
    let refused = server.strait(&["history", "pin", "--yes"]).await;
    assert!(
        exit(&refused) == Some(1) && text(&refused).contains("a restart would lose it"),
        "{}",
        text(&refused)
    );
    assert!(server.admin.json("/debug/hold").await["held"].is_null());
    server.shut_down().await;
}
