//! The limits of the policy file on traffic objects of one namespace for the proxies of another one.

use serde_json::{Value, json};

use super::mesh::{Member, Proxy, SOON, Setup, endpoints_until, holds, replace, text, wait_until};
use strait_sim::objects;
use strait_xds::resource::ResourceType;
use strait_xds_client::XdsClient;

const HEAD: &str = "apiVersion: strait.dev/v1\nkind: Policy\n";

/// A VirtualService with so many rules for a host of that name.
fn object(namespace: &str, name: &str, rules: usize) -> Value {
    let rule = |at: usize| {
        let path = format!("/{at}");
        json!({ "match": [{ "uri": { "exact": path } }], "route": [{ "destination": { "host": "web.shop.svc.cluster.local" } }] })
    };
    json!({
        "apiVersion": "networking.istio.io/v1", "kind": "VirtualService",
        "metadata": { "namespace": namespace, "name": name },
        "spec": { "hosts": [format!("{name}.example")], "http": (0..rules).map(rule).collect::<Vec<_>>() },
    })
}

/// The hosts `NAME.example` that have routes in a client in `shop`.
fn routed(client: &XdsClient) -> Vec<String> {
    let contents = client.held();
    let Some(body) = contents.body(ResourceType::Route, "80") else { return Vec::new() };
    let route = strait_proto::json::to_json(ResourceType::Route.url(), body).expect("a route");
    let hosts = route["virtual_hosts"].as_array().into_iter().flatten();
    let domains = hosts.flat_map(|host| host["domains"].as_array().into_iter().flatten());
    let names = domains.filter_map(|domain| domain.as_str()?.strip_suffix(".example"));
    names.map(str::to_owned).collect()
}

async fn routed_until(client: &XdsClient, expected: &[&str]) {
    wait_until(SOON, async || {
        let found = routed(client);
        holds(found == expected, found)
    })
    .await;
}

#[tokio::test]
async fn policy_limits_the_effect_of_objects_on_other_namespaces() {
    let east = Member::start("east", "n1", "198.18.0.1").await;
    east.serve("web", &["10.0.0.1"]);
    let setup = Setup::new();
    let file = setup.path("policy.yaml");
    let name = file.display().to_string();
    let write = |rules: &str| replace(&file, &format!("{HEAD}{rules}"));
    write("");
    let setup = setup.with(&["--policy", &name]);
    setup.join(&[&east]);
    setup.put("large", &object("evil", "large", 100));
    setup.put("small", &object("pay", "small", 1));
    let server = setup.start_ready().await;
    let client = server.connect(&setup, &Proxy::sidecar("east")).await;
    routed_until(&client, &["large", "small"]).await;
    let found = server.strait(&["check"]).await;
    assert!(text(&found).contains("STR1111"), "it is recommended: {}", text(&found));

    // Objects of a namespace past its limit apply to that namespace only.
    write("traffic: {foreignBytes: {namespace: 4Ki}}\n");
    routed_until(&client, &["small"]).await;
    let states = server.admin.json("/debug/config?kind=VirtualService&name=large").await;
    assert_eq!(
        (&states[0]["state"], &states[0]["reasons"][0]["code"]),
        (&json!("partly"), &json!("STR1110"))
    );
    let found = server.strait(&["check", "config"]).await;
    assert_eq!(found.status.code(), Some(2), "{}", text(&found));
    assert!(text(&found).contains("STR1110"), "{}", text(&found));
    write("");
    routed_until(&client, &["large", "small"]).await;

    // A dry run lists the objects that the other default would narrow.
    let private = "traffic: {defaultVisibility: namespace}\n";
    let dry_run = setup.path("next.yaml");
    replace(&dry_run, &format!("{HEAD}{private}"));
    let found = server.strait(&["policy", "test", &dry_run.display().to_string()]).await;
    assert_eq!(found.status.code(), Some(2), "{}", text(&found));
    for name in ["VirtualService evil/large", "VirtualService pay/small"] {
        assert!(text(&found).contains(name), "{}", text(&found));
    }
    assert_eq!(routed(&client), ["large", "small"], "a dry run changes nothing");
    write(private);
    routed_until(&client, &[]).await;
    let mut exported = object("pay", "small", 1);
    exported["spec"]["exportTo"] = json!(["*"]);
    setup.put("small", &exported);
    routed_until(&client, &["small"]).await;
    let found = server.strait(&["check"]).await;
    assert!(!text(&found).contains("STR1111"), "{}", text(&found));
}

/// Returns whether the VirtualService `evil/taker` responds to the requests of a client for
/// `web.shop`.
fn takes_over_web(client: &XdsClient) -> bool {
    let contents = client.held();
    let Some(body) = contents.body(ResourceType::Route, "80") else { return false };
    let route = strait_proto::json::to_json(ResourceType::Route.url(), body).expect("a route");
    let hosts = route["virtual_hosts"].as_array().into_iter().flatten();
    let is_web = |host: &&Value| host["domains"].to_string().contains("web.shop.svc");
    hosts.filter(is_web).any(|host| host["routes"][0]["direct_response"].is_object())
}

async fn takeover_until(client: &XdsClient, expected: bool) {
    wait_until(SOON, async || holds(takes_over_web(client) == expected, routed(client))).await;
}

#[tokio::test]
async fn policy_denies_objects_the_traffic_of_other_namespaces() {
    let east = Member::start("east", "n1", "198.18.0.1").await;
    let west = Member::start("west", "n2", "198.18.0.2").await;
    east.serve("web", &["10.0.0.1"]);
    west.serve("web", &["10.0.0.2"]);
    west.apply(objects::gateway_service("evil", "n2", "172.20.0.9", "198.18.0.9"));
    let setup = Setup::new();
    let file = setup.path("policy.yaml");
    let name = file.display().to_string();
    let write = |rules: &str| replace(&file, &format!("{HEAD}{rules}"));
    write("");
    let setup = setup.with(&["--policy", &name]);
    setup.join(&[&east, &west]);
    let taker = json!({
        "apiVersion": "networking.istio.io/v1", "kind": "VirtualService",
        "metadata": { "namespace": "evil", "name": "taker" },
        "spec": {
            "hosts": ["web.shop.svc.cluster.local", "taker.example"],
            "http": [{ "directResponse": { "status": 418 } }],
        },
    });
    setup.put("taker", &taker);
    let server = setup.start_ready().await;
    let client = server.connect(&setup, &Proxy::sidecar("east")).await;
    takeover_until(&client, true).await;
    endpoints_until(
        &client,
        "web",
        &[("10.0.0.1:8080", 2), ("198.18.0.2:15443", 1), ("198.18.0.9:15443", 1)],
    )
    .await;
    let found = server.strait(&["check"]).await;
    for note in ["STR1112", "STR1113", "service evil/"] {
        assert!(text(&found).contains(note), "{note}: {}", text(&found));
    }
    let state = async || {
        let states = server.admin.json("/debug/config?kind=VirtualService&name=taker").await;
        let reason = &states[0]["reasons"][0];
        assert_eq!(
            (&reason["code"], &reason["path"]),
            (&json!("STR1112"), &json!("spec.hosts[0]"))
        );
        assert!(reason["text"].to_string().contains("shop"), "{reason}");
        states[0]["state"].clone()
    };
    assert_eq!(state().await, "inForce");

    write("gatewayNamespaces: [strait-system]\ntraffic: {foreignHosts: deny}\n");
    takeover_until(&client, false).await;
    endpoints_until(&client, "web", &[("10.0.0.1:8080", 1), ("198.18.0.2:15443", 1)]).await;
    routed_until(&client, &["taker"]).await;
    assert_eq!(state().await, "partly", "its other host is not affected");
    let found = server.strait(&["check"]).await;
    assert!(!text(&found).contains("STR1113"), "{}", text(&found));
    assert!(text(&found).contains("policy gatewayNamespaces"), "{}", text(&found));
    let proxy = Proxy {
        namespace: "evil",
        name: "other",
        ip: "10.99.0.2".into(),
        ..Proxy::sidecar("east")
    };
    let own = server.connect(&setup, &proxy).await;
    takeover_until(&own, true).await;

    write("traffic: {foreignHosts: allow}\n");
    takeover_until(&client, true).await;
    let states = server.admin.json("/debug/config?kind=VirtualService&name=taker").await;
    assert!(!states.to_string().contains("STR1112"), "{states}");
}
