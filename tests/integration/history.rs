//! History: the current state compared with an earlier version and time, also after a restart.

use http::StatusCode;
use serde_json::{Value, json};

use super::mesh::{Member, SOON, Server, Setup, holds, text, wait_until};

const WEB: &str = "web.shop.svc.cluster.local";

/// Waits for a difference to that moment that passes, and returns it.
async fn difference_until(server: &Server, at: &str, test: impl Fn(&Value) -> bool) -> Value {
    wait_until(SOON, async || {
        let (_, text) = server.admin.text(&format!("/debug/diff?at={at}")).await;
        let answer: Value = serde_json::from_str(&text).unwrap_or_default();
        holds(test(&answer), &answer).map(|()| answer)
    })
    .await
}

fn endpoints<'a>(answer: &'a Value, cluster: &str) -> &'a Value {
    &answer["services"][WEB]["endpoints"][cluster]
}

async fn strait(server: &Server, arguments: &[&str]) -> (Option<i32>, String) {
    let output = server.strait(arguments).await;
    (output.status.code(), text(&output))
}

/// Waits until the current version is recorded. Returns it and the last record.
async fn recorded(server: &Server) -> (String, Value) {
    let version = wait_until(SOON, async || {
        let published = server.admin.json("/debug/push").await["version"].to_string();
        let (status, text) = server.admin.text(&format!("/debug/diff?at={published}")).await;
        holds(status == StatusCode::OK, text).map(|()| published)
    })
    .await;
    let all = server.admin.json("/debug/history").await;
    (version, all.as_array().and_then(|all| all.last()).cloned().expect("a record"))
}

#[tokio::test]
async fn current_state_is_compared_with_earlier_states_across_a_restart() {
    let east = Member::start("east", "n1", "198.18.0.1").await;
    east.serve("web", &["10.0.0.1"]);
    let setup = Setup::new();
    setup.join(&[&east]);
    let first = setup.start_ready().await;
    first.cluster_in("east", "live").await;
    let (version, before) = recorded(&first).await;
    let time = before["at"].as_str().expect("a time");
    let (code, printed) = strait(&first, &["diff", "--at", &version]).await;
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.contains("no changes"), "{printed}");

    east.serve("web", &["10.0.0.1", "10.0.0.2"]);
    let moved = json!({ "added": ["10.0.0.2:8080 in n1"], "removed": [] });
    let grown = difference_until(&first, &version, |it| endpoints(it, "east") == &moved).await;
    assert_eq!(grown["from"]["version"], before["version"]);
    let (code, printed) = strait(&first, &["diff", "--at", &version]).await;
    assert_eq!(code, Some(2), "{printed}");
    assert!(printed.contains("  endpoints of east\n    + 10.0.0.2:8080 in n1\n"), "{printed}");
    let (_, listed) = strait(&first, &["history", "list"]).await;
    assert!(listed.contains("VERSION") && listed.contains("+1 -0"), "{listed}");
    let last = recorded(&first).await.1["version"].to_string();
    let (_, shown) = strait(&first, &["history", "show", &last]).await;
    assert!(shown.contains(&format!("version {last}")) && shown.contains(WEB), "{shown}");
    let (code, printed) = strait(&first, &["diff", "--at", "100000"]).await;
    assert!(code == Some(1) && printed.contains("version 100000 does not exist yet"), "{printed}");
    let (code, printed) = strait(&first, &["diff", "--at", "2999-01-01T00:00:00Z"]).await;
    assert!(
        code == Some(1) && printed.contains("is in the future; the server's time is"),
        "{printed}"
    );
    first.shut_down().await;

    // A pod is removed while the server is stopped: the next process knows the state at the end of
    // the previous one.
    east.serve("web", &["10.0.0.2"]);
    let second = setup.start_ready().await;
    second.cluster_in("east", "live").await;
    let moved = json!({ "added": ["10.0.0.2:8080 in n1"], "removed": ["10.0.0.1:8080 in n1"] });
    difference_until(&second, time, |it| endpoints(it, "east") == &moved).await;
    let rows = second.admin.json("/debug/history").await;
    let rows = rows.as_array().expect("a list");
    assert!(rows.iter().any(|row| row["restored"] == true), "{rows:#?}");
    let own = rows.iter().filter(|row| row["restored"] == false);
    assert!(own.clone().count() > 0 && own.clone().all(|row| row["gap"].is_null()), "{rows:#?}");
    second.shut_down().await;

    // A process that was killed leaves a gap, which is reported.
    std::fs::remove_file(setup.path("state").join("history-end")).expect("written at the end");
    let third = setup.start_ready().await;
    recorded(&third).await;
    let (code, printed) = strait(&third, &["diff", "--at", time]).await;
    assert!(code == Some(1) && printed.contains("did not shut down properly"), "{printed}");
    third.shut_down().await;
}

/// Returns a VirtualService of `web` with this timeout.
fn route(timeout: &str) -> Value {
    let to = json!([{ "destination": { "host": "web" } }]);
    json!({
        "apiVersion": "networking.istio.io/v1", "kind": "VirtualService",
        "metadata": { "namespace": "shop", "name": "web" },
        "spec": { "hosts": ["web"], "http": [{ "timeout": timeout, "route": to }] },
    })
}

const ROUTE: &str = "VirtualService.networking.istio.io shop/web";

/// Waits for a last record that differs from the previous one and contains an object.
async fn wait_for_record(
    server: &Server,
    before: &Value,
    object: &str,
    test: impl Fn(&Value) -> bool,
) -> Value {
    wait_until(SOON, async || {
        let all = server.admin.json("/debug/history").await;
        let rows = all.as_array().into_iter().flatten().rev();
        let mut own = rows.filter(|row| row["restored"] == false);
        let last = own.next().filter(|row| row["version"] != before["version"]);
        let last = last.ok_or_else(|| format!("{all:#}"))?;
        let path = format!("/debug/history?version={}", last["version"]);
        let whole = server.admin.json(&path).await;
        holds(test(&whole["objects"][object]), &whole).map(|()| last.clone())
    })
    .await
}

#[tokio::test]
async fn changed_rule_is_a_record_for_a_rollback() {
    let east = Member::start("east", "n1", "198.18.0.1").await;
    east.serve("web", &["10.0.0.1"]);
    let setup = Setup::new();
    setup.join(&[&east]);
    setup.put("route", &route("1s"));
    let mut server = setup.start_ready().await;
    server.cluster_in("east", "live").await;
    let mut expected = 1;
    for round in 0..2 {
        let (version, before) = recorded(&server).await;
        let time = before["at"].as_str().expect("a time").to_owned();
        let good = before["configuration"].as_str().expect("its name").to_owned();
        setup.put("route", &route(&format!("{}s", expected + 1)));
        let changed = |it: &Value| it["before"].is_string() && it["after"].is_string();
        let bad = wait_for_record(&server, &before, ROUTE, changed).await;
        assert_eq!((&bad["objects"], &bad["services"]), (&json!(1), &json!(0)), "round {round}");
        assert_ne!(bad["configuration"], good);

        // The output states the difference, and the version to go back to.
        let (code, printed) = strait(&server, &["diff", "--at", &version]).await;
        assert_eq!(code, Some(2), "{printed}");
        let change = "object VirtualService shop/web\n  changed\n";
        assert!(printed.contains(change), "{printed}");
        let (_, printed) = strait(&server, &["diff", "--at", &version, "--cluster", "east"]).await;
        assert!(!printed.contains("VirtualService"), "only endpoints of a cluster: {printed}");
        let (_, listed) = strait(&server, &["history", "list"]).await;
        let short = |id: &Value| id.as_str().expect("a name")[..12].to_owned();
        let (bad, good) = (short(&bad["configuration"]), good[..12].to_owned());
        assert!(listed.contains(&bad) && listed.contains(&good), "{listed}");
        let (code, printed) = strait(&server, &["history", "rollback", &good, "--yes"]).await;
        assert_eq!(code, Some(0), "{printed}");
        // The current state equals the earlier one, and the record of the rollback shows this.
        difference_until(&server, &version, |it| it["objects"] == json!({})).await;
        let (code, printed) = strait(&server, &["history", "release", "--yes"]).await;
        assert_eq!(code, Some(0), "{printed}");
        difference_until(&server, &version, |it| changed(&it["objects"][ROUTE])).await;
        expected += 1;

        // The next process knows the earlier state, and the changes that were made meanwhile.
        server.shut_down().await;
        setup.put("route", &route(&format!("{}s", expected + 1)));
        expected += 1;
        server = setup.start_ready().await;
        server.cluster_in("east", "live").await;
        difference_until(&server, &time, |it| changed(&it["objects"][ROUTE])).await;
        let all = server.admin.json("/debug/history").await;
        let rows = all.as_array().expect("a list").iter();
        let restored = rows.filter(|row| row["restored"] == true && row["objects"] == 1).count();
        assert!(restored > 0, "{all:#}");
    }
    server.shut_down().await;
}
