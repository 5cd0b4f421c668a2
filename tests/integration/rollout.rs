//! Gradual rollouts of configuration changes: which proxies receive a change, what stops it, and
//! what survives a restart. Changes of clusters are sent to all proxies at once.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde_json::{Value, json};

use super::mesh::{
    Member, Proxy, SOON, Server, Setup, all_resources, endpoints_until, holds, replace, text,
    wait_until,
};
use super::page::ChangeEvents;
use strait_xds::resource::ResourceType;
use strait_xds_client::{Options, XdsClient};

const HEAD: &str = "apiVersion: strait.dev/v1\nkind: Policy\n";
/// The number of proxies. 40 % of them are four.
const PROXIES: u8 = 12;

fn object(kind: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "networking.istio.io/v1", "kind": kind, "spec": spec,
        "metadata": { "namespace": "shop", "name": name },
    })
}

fn route(timeout: &str) -> Value {
    let to = json!([{ "destination": { "host": "web" } }]);
    let spec = json!({ "hosts": ["web"], "http": [{ "timeout": timeout, "route": to }] });
    object("VirtualService", "web", spec)
}

/// Returns a route with a header that identifies it at clients.
fn marked(header: &str) -> Value {
    let to = json!([{ "destination": { "host": "web" } }]);
    let headers = json!({ "request": { "set": { header: "yes" } } });
    let spec = json!({ "hosts": ["web"], "http": [{ "headers": headers, "route": to }] });
    object("VirtualService", "web", spec)
}

fn proxy(at: u8) -> Proxy {
    Proxy { ip: format!("10.99.0.{at}"), ..Proxy::sidecar("east") }
}

/// A mesh of one cluster with `web` in it, and a policy with a rollout.
struct Fixture {
    east: Member,
    setup: Setup,
    policy: PathBuf,
}

impl Fixture {
    async fn new(rollout: &str) -> Self {
        let east = Member::start("east", "n1", "198.18.0.1").await;
        east.serve("web", &["10.0.0.1"]);
        let setup = Setup::new();
        let policy = setup.path("policy.yaml");
        let name = policy.display().to_string();
        let setup = setup.with(&["--policy", &name]);
        let fixture = Self { east, setup, policy };
        fixture.write_policy(rollout);
        fixture.setup.join(&[&fixture.east]);
        fixture.setup.put("route", &route("1s"));
        fixture
    }

    fn write_policy(&self, rollout: &str) {
        replace(&self.policy, &format!("{HEAD}{rollout}"));
    }

    async fn connect(&self, server: &Server) -> BTreeMap<String, XdsClient> {
        self.connect_with(server, &Options::default()).await
    }

    async fn connect_with(
        &self,
        server: &Server,
        options: &Options,
    ) -> BTreeMap<String, XdsClient> {
        self.connect_many(server, PROXIES, options).await
    }

    async fn connect_many(
        &self,
        server: &Server,
        count: u8,
        options: &Options,
    ) -> BTreeMap<String, XdsClient> {
        let mut clients = BTreeMap::new();
        for at in 1..=count {
            let opened = server.open(&self.setup, &proxy(at), options.clone()).await;
            clients.insert(proxy(at).id(), opened.expect("the proxy is admitted"));
        }
        for client in clients.values_mut() {
            client.wait_for(|contents| contents.is_complete()).await.expect("a first sync");
        }
        clients
    }
}

/// Returns the timeout of a client's route.
fn timeout(client: &XdsClient) -> Option<String> {
    let contents = client.held();
    let body = contents.body(ResourceType::Route, "80")?;
    let route = strait_proto::json::to_json(ResourceType::Route.url(), body).ok()?.to_string();
    let at = route.find("\"timeout\":\"")? + "\"timeout\":\"".len();
    route[at..].split('"').next().map(str::to_owned)
}

/// Waits until each client has the expected timeout.
async fn timeouts_until(
    clients: &BTreeMap<String, XdsClient>,
    expected: impl Fn(&str) -> &'static str,
) {
    wait_until(SOON, async || {
        let wrong: Vec<_> = clients
            .iter()
            .filter(|(id, client)| timeout(client).as_deref() != Some(expected(id)))
            .map(|(id, client)| (id, timeout(client)))
            .collect();
        holds(wrong.is_empty(), wrong)
    })
    .await;
}

/// Waits until the rollout is at this step. Returns it and the proxies in the step.
async fn at_step(server: &Server, step: u64) -> (Value, BTreeSet<String>) {
    wait_until(SOON, async || {
        let state = server.admin.json("/debug/rollout").await;
        holds(state["running"]["step"] == step, &state)?;
        let share = state["running"]["share"].as_array().into_iter().flatten();
        let share: BTreeSet<String> =
            share.filter_map(|id| id.as_str().map(str::to_owned)).collect();
        Ok((state, share))
    })
    .await
}

async fn ended(server: &Server) -> Value {
    wait_until(SOON, async || {
        let state = server.admin.json("/debug/rollout").await;
        holds(state["running"].is_null(), &state).map(|()| state)
    })
    .await
}

async fn strait(server: &Server, arguments: &[&str]) -> String {
    let output = server.strait(arguments).await;
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text(&output));
    text(&output)
}

#[tokio::test]
async fn change_reaches_the_first_step_and_a_restart_extends_it_to_no_proxy() {
    let fixture = Fixture::new("rollout: {steps: [40%, 100%], every: 1h}").await;
    let Fixture { east, setup, .. } = &fixture;
    let server = setup.start_ready().await;
    let clients = fixture.connect(&server).await;
    timeouts_until(&clients, |_| "1s").await;
    assert!(
        server.admin.json("/debug/rollout").await["running"].is_null(),
        "nothing to compare with"
    );
    let before: BTreeMap<_, _> =
        clients.iter().map(|(id, one)| (id.clone(), all_resources(one))).collect();

    setup.put("route", &route("9s"));
    let (state, share) = at_step(&server, 1).await;
    assert_eq!(share.len(), 4, "{state}");
    assert_eq!(
        (&state["running"]["percent"], &state["running"]["connected"]),
        (&json!(40), &json!(PROXIES))
    );
    let in_share = |id: &str| if share.contains(id) { "9s" } else { "1s" };
    timeouts_until(&clients, in_share).await;

    // Pods and access policies are not rolled out gradually: all proxies receive them.
    east.serve("web", &["10.0.0.1", "10.0.0.2"]);
    let both = [("10.0.0.1:8080", 1), ("10.0.0.2:8080", 1)];
    for client in clients.values() {
        endpoints_until(client, "web", &both).await;
    }
    for (id, client) in clients.iter().filter(|(id, _)| !share.contains(*id)) {
        assert_eq!(&all_resources(client), &before[id], "{id} receives no part of the change");
    }
    let rows = server.admin.json("/debug/config?kind=VirtualService&name=web").await;
    assert_eq!(rows[0]["reasons"][0]["code"], "STR1090", "{rows}");
    assert_eq!(server.admin.metric("strait_rollout_running").await, 1.0);
    assert!(strait(&server, &["status"]).await.contains("has been active on 40% for"));
    let checked = server.strait(&["check", "mesh"]).await;
    assert_eq!(checked.status.code(), Some(0), "a note: {}", text(&checked));
    assert!(text(&checked).contains("STR1090"), "{}", text(&checked));
    let events = server.admin.json("/debug/events").await;
    assert!(
        events.to_string().contains("40% of proxies receive the next configuration"),
        "{events}"
    );

    // A reconnecting proxy keeps its assignment; a new proxy is assigned to the step or not.
    let member = share.first().expect("some");
    let back = (1..=PROXIES).map(proxy).find(|proxy| proxy.id() == *member).expect("it is one");
    let mut clients = clients;
    drop(clients.remove(member));
    let client = server.connect(setup, &back).await;
    clients.insert(member.clone(), client);
    timeouts_until(&clients, in_share).await;

    // Another process starts in the middle of it.
    drop(clients);
    server.shut_down().await;
    let server = setup.start_ready().await;
    let (_, again) = at_step(&server, 1).await;
    assert!(again.is_empty(), "no proxy is connected yet");
    let clients = fixture.connect(&server).await;
    timeouts_until(&clients, in_share).await;

    // A further change restarts the rollout, with other proxies, from the configuration that
    // applies to all.
    setup.put("route", &route("7s"));
    let next = wait_until(SOON, async || {
        let (now, share) = at_step(&server, 1).await;
        let is_new = now["running"]["configuration"] != state["running"]["configuration"];
        holds(is_new, &now).map(|()| share)
    })
    .await;
    assert_ne!(next, share);
    timeouts_until(&clients, |id| if next.contains(id) { "7s" } else { "1s" }).await;

    // After the rollout to all proxies, a restart uses the new configuration.
    let printed = strait(&server, &["history", "rollout"]).await;
    assert!(
        printed.contains("(step 1 of 2: ") && printed.contains("to 40%, 100% of proxies"),
        "{printed}"
    );
    strait(&server, &["history", "rollout", "--promote", "--yes"]).await;
    timeouts_until(&clients, |_| "7s").await;
    assert_eq!(ended(&server).await["completedTotal"], 1);
    let again = server.strait(&["history", "rollout", "--promote", "--yes"]).await;
    assert!(again.status.code() == Some(1) && text(&again).contains("no rollout is in progress"));
    drop(clients);
    server.shut_down().await;
    let server = setup.start_ready().await;
    assert!(ended(&server).await["lost"].is_null());
    let clients = fixture.connect(&server).await;
    timeouts_until(&clients, |_| "7s").await;
    drop(clients);
    server.shut_down().await;
}

#[tokio::test]
async fn bad_change_reaches_at_most_five_percent() {
    // With the default settings.
    let fixture = Fixture::new("rollout: {}").await;
    let setup = &fixture.setup;
    let server = setup.start_ready().await;
    let options = Options { rejects_text: Some("x-refused".into()), ..Options::default() };
    let clients = fixture.connect_many(&server, 100, &options).await;
    timeouts_until(&clients, |_| "1s").await;
    let responses: BTreeMap<_, _> =
        clients.iter().map(|(id, client)| (id.clone(), client.held().responses)).collect();
    setup.put("route", &marked("x-refused"));
    wait_until(SOON, async || {
        let state = server.admin.json("/debug/rollout").await;
        let reason = state["stopped"]["reason"].as_str().unwrap_or_default();
        holds(reason.contains("stopped at 5%"), &state)
    })
    .await;
    timeouts_until(&clients, |_| "1s").await;
    let reached =
        clients.iter().filter(|(id, client)| client.held().responses != responses[*id]).count();
    assert!((1..=5).contains(&reached), "{reached} of 100");
    assert_eq!(clients.values().filter(|client| client.held().rejected > 1).count(), 0);
    drop(clients);
    server.shut_down().await;
}

#[tokio::test]
async fn aborted_change_is_rolled_back_and_reverted_change_ends_the_rollout() {
    let fixture = Fixture::new("rollout: {steps: [40%, 100%], every: 1h}").await;
    let setup = &fixture.setup;
    let server = setup.start_ready().await;
    let clients = fixture.connect(&server).await;
    timeouts_until(&clients, |_| "1s").await;
    setup.put("route", &route("9s"));
    let (_, share) = at_step(&server, 1).await;
    timeouts_until(&clients, |id| if share.contains(id) { "9s" } else { "1s" }).await;
    let arguments = ["history", "rollout", "--abort", "--by", "alice", "--reason", "5xx", "--yes"];
    strait(&server, &arguments).await;
    timeouts_until(&clients, |_| "1s").await;
    let state = server.admin.json("/debug/hold").await;
    assert_eq!((&state["held"]["by"], &state["held"]["reason"]), (&json!("alice"), &json!("5xx")));
    assert_eq!(server.admin.json("/debug/rollout").await["stoppedTotal"], 1);

    // The release starts the rollout again at the first step. A revert removes the rollout and the
    // hold.
    strait(&server, &["history", "release", "--yes"]).await;
    at_step(&server, 1).await;
    timeouts_until(&clients, |id| if share.contains(id) { "9s" } else { "1s" }).await;
    setup.put("route", &route("1s"));
    ended(&server).await;
    timeouts_until(&clients, |_| "1s").await;
    assert!(server.admin.json("/debug/hold").await["held"].is_null());

    // A pin ends a running rollout.
    setup.put("route", &route("5s"));
    at_step(&server, 1).await;
    strait(&server, &["history", "pin", "--yes"]).await;
    ended(&server).await;
    timeouts_until(&clients, |_| "1s").await;

    // Without a plan, the release applies to all proxies at once.
    fixture.write_policy("");
    wait_until(SOON, async || {
        let state = server.admin.json("/debug/rollout").await;
        holds(state["plan"].is_null(), &state)
    })
    .await;
    strait(&server, &["history", "release", "--yes"]).await;
    timeouts_until(&clients, |_| "5s").await;
    assert!(!setup.path("state").join("settled.json").exists());
    drop(clients);
    server.shut_down().await;
}

#[tokio::test]
async fn rejected_change_stops_automatically_and_is_held() {
    let rollout = "rollout: {steps: [40%, 100%], every: 1h, stopAt: {refused: 2}}";
    let fixture = Fixture::new(rollout).await;
    let setup = &fixture.setup;
    let server = setup.start_ready().await;
    let options = Options { rejects_text: Some("x-refused".into()), ..Options::default() };
    let clients = fixture.connect_with(&server, &options).await;
    timeouts_until(&clients, |_| "1s").await;
    let before: BTreeMap<_, _> =
        clients.iter().map(|(id, one)| (id.clone(), all_resources(one))).collect();
    setup.put("route", &marked("x-refused"));
    let state = wait_until(SOON, async || {
        let state = server.admin.json("/debug/rollout").await;
        holds(!state["stopped"].is_null(), &state).map(|()| state)
    })
    .await;
    let reason = state["stopped"]["reason"].as_str().unwrap_or_default();
    assert!(
        reason.contains("stopped at 40%") && reason.contains("rejected on request"),
        "{reason}"
    );
    timeouts_until(&clients, |_| "1s").await;
    for (id, client) in &clients {
        assert_eq!(&all_resources(client), &before[id], "{id}");
    }
    let refused = clients.values().filter(|one| one.held().rejected > 0).count();
    assert!((2..usize::from(PROXIES)).contains(&refused), "{refused}");

    // The stopped change stays on hold, also after a restart, and is reported as a problem until an
    // operator acts.
    let checked = server.strait(&["check", "mesh"]).await;
    assert!(checked.status.code() == Some(2), "{}", text(&checked));
    assert!(text(&checked).contains("STR1091"), "{}", text(&checked));
    drop(clients);
    server.shut_down().await;
    let server = setup.start_ready().await;
    assert_eq!(server.admin.json("/debug/hold").await["held"]["byRollout"], true);
    let clients = fixture.connect_with(&server, &options).await;
    timeouts_until(&clients, |_| "1s").await;

    // After the fix and a release it is rolled out again.
    let live = server.admin.json("/debug/hold").await["live"].clone();
    setup.put("route", &route("3s"));
    wait_until(SOON, async || {
        let state = server.admin.json("/debug/hold").await;
        holds(state["live"] != live, &state)
    })
    .await;
    strait(&server, &["history", "release", "--yes"]).await;
    let (_, share) = at_step(&server, 1).await;
    timeouts_until(&clients, |id| if share.contains(id) { "3s" } else { "1s" }).await;
    drop(clients);
    server.shut_down().await;
}

#[tokio::test]
async fn page_receives_the_progress_and_rejections_of_a_rollout() {
    let rollout = "rollout: {steps: [40%, 80%, 100%], every: 1h, stopAt: {refused: 1000}}";
    let fixture = Fixture::new(rollout).await;
    let setup = &fixture.setup;
    let server = setup.start_ready().await;
    let mut events = ChangeEvents::listen(&server).await;
    events.settle(20).await;
    setup.put("route", &marked("x-refused"));
    assert!(events.next(SOON).await.is_some(), "event for the start of the rollout");
    at_step(&server, 1).await;
    events.settle(20).await;
    // Clients that only connect and reject it.
    let options = Options { rejects_text: Some("x-refused".into()), ..Options::default() };
    let mut clients = Vec::new();
    for at in 1..=PROXIES {
        let opened = server.open(setup, &proxy(at), options.clone()).await;
        clients.push(opened.expect("the proxy is admitted"));
    }
    assert!(events.next(SOON).await.is_some(), "event for a rejection");
    wait_until(SOON, async || {
        let state = server.admin.json("/debug/rollout").await;
        holds(state["running"]["refused"].as_u64() > Some(0), &state)
    })
    .await;
    events.settle(20).await;
    strait(&server, &["history", "rollout", "--abort", "--yes"]).await;
    assert!(events.next(SOON).await.is_some(), "event for the end of the rollout");
    drop(clients);
    server.shut_down().await;
}

#[tokio::test]
async fn earlier_rejections_do_not_stop_a_rollout() {
    let fixture = Fixture::new("rollout: {steps: [40%, 100%], every: 1h}").await;
    let setup = &fixture.setup;
    let server = setup.start_ready().await;
    let options = Options { rejects: Some(ResourceType::Route), ..Options::default() };
    let mut clients = BTreeMap::new();
    for at in 1..=PROXIES {
        let opened = server.open(setup, &proxy(at), options.clone()).await;
        clients.insert(proxy(at).id(), opened.expect("the proxy is admitted"));
    }
    let refusals = async || server.admin.metric("strait_xds_nacks_total{type=\"rds\"}").await;
    let before = wait_until(SOON, async || {
        let count = refusals().await;
        holds(count >= f64::from(PROXIES), count).map(|()| count)
    })
    .await;
    setup.put("route", &route("9s"));
    let (_, share) = at_step(&server, 1).await;
    wait_until(SOON, async || {
        let count = refusals().await;
        holds(count >= before + share.len() as f64, (count, before))
    })
    .await;
    let state = server.admin.json("/debug/rollout").await;
    assert_eq!((&state["running"]["refused"], &state["stopped"]), (&json!(0), &Value::Null));
    drop(clients);
    server.shut_down().await;
}

#[tokio::test]
async fn change_that_removes_endpoints_reaches_no_proxy() {
    let fixture = Fixture::new("rollout: {steps: [99%, 100%], every: 1h}").await;
    let setup = &fixture.setup;
    let server = setup.start_ready().await;
    let clients = fixture.connect(&server).await;
    timeouts_until(&clients, |_| "1s").await;
    let responses = |client: &XdsClient| client.held().responses;
    let before: Vec<_> = clients.values().map(responses).collect();
    setup.put(
        "sidecar",
        &object("Sidecar", "default", json!({ "egress": [{ "hosts": ["other/*"] }] })),
    );
    wait_until(SOON, async || {
        let state = server.admin.json("/debug/rollout").await;
        let reason = state["stopped"]["reason"].as_str().unwrap_or_default();
        holds(reason.contains("web.shop.svc.cluster.local:80 has 0 of 1 endpoints"), &state)
    })
    .await;
    assert_eq!(clients.values().map(responses).collect::<Vec<_>>(), before);
    drop(clients);
    server.shut_down().await;
}

#[tokio::test]
async fn explain_route_uses_the_configuration_of_the_proxy() {
    let fixture = Fixture::new("rollout: {steps: [40%, 100%], every: 1h}").await;
    let setup = &fixture.setup;
    let server = setup.start_ready().await;
    let clients = fixture.connect(&server).await;
    timeouts_until(&clients, |_| "1s").await;
    let answer = json!({ "hosts": ["web"], "http": [{ "directResponse": { "status": 418 } }] });
    setup.put("route", &object("VirtualService", "web", answer));
    let (_, share) = at_step(&server, 1).await;
    let path =
        |id: &str| format!("/debug/explain/route?proxy={id}&method=GET&url=http://web.shop/");
    for id in clients.keys() {
        let walk = server.admin.json(&path(id)).await;
        let expected = if share.contains(id) { json!(418) } else { Value::Null };
        assert_eq!(walk["answer"], expected, "{id}: {walk}");
    }
    drop(clients);
    server.shut_down().await;
}

#[tokio::test]
async fn unreadable_rollout_state_is_reported() {
    let fixture = Fixture::new("rollout: {steps: [40%, 100%], every: 1h}").await;
    let setup = &fixture.setup;
    let server = setup.start_ready().await;
    let file = setup.path("state").join("settled.json");
    wait_until(SOON, async || holds(file.exists(), "no file")).await;
    server.shut_down().await;
    let damaged = std::fs::read_to_string(&file).expect("there").replace("1s", "2s");
    std::fs::write(&file, damaged).expect("written");
    setup.put("route", &route("9s"));
    let server = setup.start_ready().await;
    let clients = fixture.connect(&server).await;
    timeouts_until(&clients, |_| "9s").await;
    let checked = server.strait(&["check", "mesh"]).await;
    assert_eq!(checked.status.code(), Some(2), "{}", text(&checked));
    assert!(text(&checked).contains("STR1092"), "{}", text(&checked));
    // After this change it is known again.
    setup.put("route", &route("1s"));
    let (_, share) = at_step(&server, 1).await;
    timeouts_until(&clients, |id| if share.contains(id) { "1s" } else { "9s" }).await;
    drop(clients);
    server.shut_down().await;
}
