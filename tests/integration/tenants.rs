//! The limits of the policy file on traffic objects of one namespace for the proxies of another one.

use serde_json::{Value, json};

use super::mesh::{Member, Proxy, SOON, Setup, holds, replace, text, wait_until};
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
    let held = client.held();
    let Some(body) = held.body(ResourceType::Route, "80") else { return Vec::new() };
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
