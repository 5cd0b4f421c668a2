//! Access policies through the whole server: the proxies that receive them, and the output of the
//! program about them.

use serde_json::{Value, json};

use super::mesh::{Member, Proxy, SOON, Setup, holds, text, wait_until};
use strait_xds::resource::ResourceType;
use strait_xds_client::{Options as ClientOptions, XdsClient};

fn policy(name: &str, labels: &Value, spec: &Value) -> Value {
    let mut spec = spec.clone();
    spec["selector"] = json!({ "matchLabels": labels });
    json!({
        "apiVersion": "security.istio.io/v1",
        "kind": "AuthorizationPolicy",
        "metadata": { "namespace": "shop", "name": name },
        "spec": spec,
    })
}

/// Waits until the inbound listeners of a proxy contain a rule, or don't.
async fn named_until(client: &XdsClient, rule: &str, named: bool) {
    wait_until(SOON, async || {
        let contents = client.held();
        let body = contents.body(ResourceType::Listener, "virtualInbound").unwrap_or_default();
        let is = String::from_utf8_lossy(body).contains(rule);
        holds(is == named && !body.is_empty(), (rule, named))
    })
    .await;
}

/// Creates a pod in the registry, so that its labels are known.
fn pod(east: &Member, name: &'static str, label: &str, ip: &str) -> Proxy {
    east.apply(json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "namespace": "shop", "name": name, "labels": { "app": label } },
        "spec": { "serviceAccountName": "client" },
        "status": { "podIP": ip, "podIPs": [{ "ip": ip }], "phase": "Running" },
    }));
    Proxy { name, ip: ip.to_owned(), ..Proxy::sidecar("east") }
}

#[tokio::test]
async fn policy_reaches_only_the_selected_proxies() {
    let east = Member::start("east", "n1", "198.18.0.1").await;
    east.serve("web", &["10.0.0.1"]);
    let [web, db] = [("web-1", "web", "10.0.0.1"), ("db-1", "db", "10.0.0.2")]
        .map(|(name, label, ip)| pod(&east, name, label, ip));
    let setup = Setup::new();
    setup.join(&[&east]);
    let server = setup.start_ready().await;
    let all_stored = async || {
        let clusters = server.clusters("east").await;
        holds(clusters[0]["objects"].as_u64() >= Some(4), clusters)
    };
    wait_until(SOON, all_stored).await;
    let web_client = server.connect(&setup, &web).await;
    let db_client = server.connect(&setup, &db).await;
    named_until(&web_client, "policy[deny]", false).await;
    named_until(&db_client, "policy[deny]", false).await;
    let woken = async || server.admin.json("/debug/push").await["streamsWokenTotal"].as_u64();
    let before = woken().await;

    let rules = json!({ "action": "DENY", "rules": [{ "to": [{ "operation": { "paths": ["/admin"] } }] }] });
    setup.put("deny", &policy("deny", &json!({ "app": "web" }), &rules));
    named_until(&web_client, "ns[shop]-policy[deny]-rule[0]", true).await;
    assert_eq!(woken().await, before.map(|before| before + 1), "only selected proxies wake");
    named_until(&db_client, "policy[deny]", false).await;

    // The program's output about it.
    let states = server.admin.json("/debug/config?kind=AuthorizationPolicy").await;
    assert_eq!(
        (&states[0]["state"], &states[0]["proxies"]),
        (&json!("inForce"), &json!(1)),
        "{states:#}"
    );
    let found = server.strait(&["check"]).await;
    assert!(!text(&found).contains("STR0824"), "all ports of those are HTTP: {}", text(&found));
    assert!(text(&found).contains("config     1 of 1 object active"), "{}", text(&found));
    let arguments = ["explain", "policy", "web-1.shop", "--from", "shop/client", "--port", "8080"];
    // Paths are normalized as in the proxy.
    for path in ["/admin", "//admin", "/x/../%61dmin?a=b"] {
        let output = server.strait(&[&arguments[..], &["--path", path]].concat()).await;
        assert_eq!(output.status.code(), Some(2), "{path}: {}", text(&output));
        let denied = "http  deny: ns[shop]-policy[deny]-rule[0]";
        assert!(text(&output).contains(denied), "{path}: {}", text(&output));
    }
    let output = server.strait(&[&arguments[..], &["--path", "/"]].concat()).await;
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    wait_until(SOON, async || {
        let status = server.strait(&["policy", "status", "shop/deny"]).await;
        holds(status.status.code() == Some(0), text(&status))
    })
    .await;

    // A broken policy keeps its last valid version.
    let broken = json!({ "action": "DENNY", "rules": [{}] });
    setup.put("deny", &policy("deny", &json!({ "app": "web" }), &broken));
    wait_until(SOON, async || {
        let status = server.strait(&["policy", "status", "deny"]).await;
        let printed = text(&status);
        holds(status.status.code() == Some(2) && printed.contains("STR0821"), printed)
    })
    .await;
    for arguments in [&["check"][..], &["status"]] {
        let found = server.strait(arguments).await;
        assert!(text(&found).contains("STR0820"), "{arguments:?}: {}", text(&found));
        assert_eq!(found.status.code(), Some(2), "{arguments:?}: {}", text(&found));
    }
    named_until(&web_client, "ns[shop]-policy[deny]-rule[0]", true).await;
    assert_eq!(woken().await, before.map(|before| before + 1), "no other proxy wakes");

    // Differences are computed against the active version, not the stored one: fixing it changes
    // nothing. If two pods have the same address, it is unknown which of them a log belongs to.
    pod(&east, "web-2", "web", "10.0.0.3");
    wait_until(SOON, async || {
        let access = server.admin.json("/debug/access").await;
        holds(access.to_string().contains("10.0.0.3"), access)
    })
    .await;
    let (log, good) = (setup.path("web.log"), setup.path("good.json"));
    let line = json!({
        "method": "GET", "path": "/admin", "authority": "web", "upstream_cluster": "inbound|8080||",
        "downstream_local_address": "10.0.0.3:8080", "downstream_remote_address": "10.0.0.2:5",
    });
    std::fs::write(&log, format!("{line}\n")).expect("written");
    std::fs::write(&good, policy("deny", &json!({ "app": "web" }), &rules).to_string())
        .expect("written");
    let [log, good] = [&log, &good].map(|path| path.to_str().expect("a name"));
    let simulated = server.strait(&["policy", "simulate", "-f", good, "--from-log", log]).await;
    assert!(text(&simulated).contains("No decision would change"), "{}", text(&simulated));
    assert_eq!(simulated.status.code(), Some(0), "{}", text(&simulated));
}

/// F-9: a node proxy accepts all connections to workloads that it receives before their policies.
/// Strait does not serve node proxies, and a guarded proxy receives its policies together with its
/// first inbound listener.
#[tokio::test]
async fn no_proxy_has_inbound_listeners_before_its_policies() {
    let east = Member::start("east", "n1", "198.18.0.1").await;
    east.serve("web", &["10.0.0.1"]);
    let web = pod(&east, "web-1", "web", "10.0.0.1");
    let setup = Setup::new();
    setup.join(&[&east]);
    let rules = json!({ "action": "DENY", "rules": [{ "to": [{ "operation": { "paths": ["/admin"] } }] }] });
    setup.put("deny", &policy("deny", &json!({ "app": "web" }), &rules));
    let server = setup.start_ready().await;

    let node_proxy = Proxy { kind: "ztunnel", ..web.clone() };
    let refused = match server.open(&setup, &node_proxy, ClientOptions::default()).await {
        Err(error) => error.to_string(),
        Ok(client) => {
            wait_until(SOON, async || client.held().ended.ok_or("a stream".to_owned())).await
        }
    };
    assert!(refused.contains("node type \"ztunnel\" is not served"), "{refused}");

    let client = server.connect(&setup, &web).await;
    let first = wait_until(SOON, async || {
        let contents = client.held();
        let body = contents.body(ResourceType::Listener, "virtualInbound").map(<[u8]>::to_vec);
        body.ok_or("no inbound listener yet".to_owned())
    })
    .await;
    let first = String::from_utf8_lossy(&first).into_owned();
    assert!(first.contains("ns[shop]-policy[deny]-rule[0]"), "{first}");
}

/// Returns the mTLS mode of an app's pods.
fn mode(mode: &str) -> Value {
    json!({
        "apiVersion": "security.istio.io/v1",
        "kind": "PeerAuthentication",
        "metadata": { "namespace": "shop", "name": "mode" },
        "spec": { "selector": { "matchLabels": { "app": "web" } }, "mtls": { "mode": mode } },
    })
}

#[tokio::test]
async fn policy_is_complete_when_all_proxies_acknowledged_it_and_no_port_uses_the_old_mode() {
    let east = Member::start("east", "n1", "198.18.0.1").await;
    east.serve("web", &["10.0.0.1", "10.0.0.2"]);
    let [first, second] = [("web-1", "10.0.0.1"), ("web-2", "10.0.0.2")]
        .map(|(name, ip)| pod(&east, name, "web", ip));
    let setup = Setup::new();
    setup.join(&[&east]);
    // A policy that exists at the start needs no acknowledgement.
    setup.put("mode", &mode("DISABLE"));
    let server = setup.start_ready().await;
    wait_until(SOON, async || {
        let clusters = server.clusters("east").await;
        holds(clusters[0]["objects"].as_u64() >= Some(4), clusters)
    })
    .await;
    let _first = server.connect(&setup, &first).await;
    let rejects_text = Some("policy[deny]".into());
    let options = ClientOptions { rejects_text, ..ClientOptions::default() };
    let _second = server.open(&setup, &second, options).await.expect("it may connect");
    let status = async |name: &str, expected: &[&str], code: i32| {
        wait_until(SOON, async || {
            let status = server.strait(&["policy", "status", name]).await;
            let is_so = expected.iter().all(|part| text(&status).contains(part));
            holds(is_so && status.status.code() == Some(code), text(&status))
        })
        .await;
    };
    let all =
        "PeerAuthentication shop/mode: inForce, acknowledged by 2 of 2 proxies (2 are connected)";
    status("shop/mode", &[all], 0).await;

    setup.put("mode", &mode("STRICT"));
    let until =
        "in transition: workloads of 2 proxies accept plain text in addition to mTLS until 20";
    let acknowledged = "2 proxies, servers and clients; 2 acknowledged all of it";
    status("shop/mode", &[all, until, acknowledged], 2).await;
    let output = server.strait(&["explain", "policy", "web-1.shop", "--port", "8080"]).await;
    let mode_line =
        "mode  PERMISSIVE: in transition to STRICT of PeerAuthentication shop/mode, until 20";
    assert!(text(&output).contains(mode_line), "{}", text(&output));
    let query = format!("/debug/explain/policy?proxy={}&port=8080", first.id());
    let answer = server.admin.json(&query).await;
    let reach = server.admin.json("/debug/config/reach?kind=PeerAuthentication").await;
    let counts = &reach[0]["told"][0];
    assert_eq!([&counts["proxies"], &counts["waiting"]], [&json!(2), &json!(0)], "{reach}");
    let (mode, until) = (&answer["mode"], &reach[0]["transition"]["until"]);
    let expected = json!({ "to": "STRICT", "by": "PeerAuthentication shop/mode", "until": until });
    assert_eq!((&mode["value"], &mode["transition"]), (&json!("PERMISSIVE"), &expected));

    // One proxy rejects another policy.
    let rules = json!({ "action": "DENY", "rules": [{ "to": [{ "operation": { "paths": ["/admin"] } }] }] });
    setup.put("deny", &policy("deny", &json!({ "app": "web" }), &rules));
    let some = "AuthorizationPolicy shop/deny: inForce, acknowledged by 1 of 2 proxies";
    let refused = format!("{} in east: refused: rejected on request", second.id());
    status("deny", &[some, &refused], 2).await;
}

#[tokio::test]
async fn rule_about_addresses_ignores_callers_behind_a_gateway() {
    let east = Member::start("east", "n1", "198.18.0.1").await;
    let west = Member::start("west", "n2", "198.18.0.2").await;
    east.serve("web", &["10.0.0.1"]);
    let web = pod(&east, "web-1", "web", "10.0.0.1");
    west.apply(json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "namespace": "shop", "name": "caller-1", "labels": { "app": "caller" } },
        "spec": { "serviceAccountName": "caller" },
        "status": { "podIP": "10.0.0.9", "podIPs": [{ "ip": "10.0.0.9" }], "phase": "Running" },
    }));
    let setup = Setup::new();
    setup.join(&[&east, &west]);
    let from = json!([{ "from": [{ "source": { "ipBlocks": ["10.0.0.0/8"] } }] }]);
    let rules = json!({ "action": "ALLOW", "rules": from });
    setup.put("near", &policy("near", &json!({ "app": "web" }), &rules));
    let server = setup.start_ready().await;
    let _client = server.connect(&setup, &web).await;
    let explained = async |from: &str| {
        let arguments = ["explain", "policy", "web-1.shop", "--from", from, "--port", "8080"];
        text(&server.strait(&arguments).await)
    };
    wait_until(SOON, async || {
        let printed = explained("shop/caller").await;
        let fact = "STR0847: spec.rules[0].from[0].source.ipBlocks: AuthorizationPolicy shop/near can't match: \
                    shop/caller runs in network n2, and connects from there through a gateway";
        holds(printed.contains(fact), printed)
    })
    .await;
    let printed = explained("shop/client").await;
    assert!(!printed.contains("STR0847") && printed.contains("shop/near"), "{printed}");
}
