//! Errors in a configuration file: they affect only the edit, and no active object.

use serde_json::{Value, json};

use super::mesh::{Member, Proxy, SOON, Server, Setup, holds, replace, text, wait_until};
use strait_xds::resource::ResourceType;
use strait_xds_client::XdsClient;

const VERSIONS: [(&str, &str); 3] = [
    ("AuthorizationPolicy", "security.istio.io/v1"),
    ("PeerAuthentication", "security.istio.io/v1"),
    ("VirtualService", "networking.istio.io/v1"),
];

fn object(kind: &str, name: &str, spec: &Value) -> String {
    let version = VERSIONS.iter().find(|(listed, _)| *listed == kind).expect("a kind").1;
    let metadata = json!({ "namespace": "shop", "name": name });
    json!({ "apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec }).to_string()
}

fn deny(name: &str) -> String {
    let operation = json!({ "paths": [format!("/{name}")] });
    object(
        "AuthorizationPolicy",
        name,
        &json!({ "action": "DENY", "rules": [{ "to": [{ "operation": operation }] }] }),
    )
}

fn strict() -> String {
    object("PeerAuthentication", "strict", &json!({ "mtls": { "mode": "STRICT" } }))
}

fn route() -> String {
    let route =
        json!({ "match": [{ "uri": { "prefix": "/old" } }], "directResponse": { "status": 410 } });
    object(
        "VirtualService",
        "old",
        &json!({ "hosts": ["cart.shop.svc.cluster.local"], "http": [route] }),
    )
}

/// Joins manifests into one file.
fn documents(all: &[String]) -> String {
    all.join("\n---\n")
}

/// Waits until the inbound listeners of a proxy contain exactly these rules of [`deny`].
async fn denied_until(client: &XdsClient, rules: &[&str]) {
    wait_until(SOON, async || {
        let contents = client.held();
        let body = contents.body(ResourceType::Listener, "virtualInbound").unwrap_or_default();
        let body = String::from_utf8_lossy(body).into_owned();
        let named = ["admin", "secret", "third", "fourth"].into_iter();
        let named: Vec<_> =
            named.filter(|rule| body.contains(&format!("policy[{rule}]"))).collect();
        holds(named == rules && !body.is_empty(), named)
    })
    .await;
}

/// Returns the states of the objects, each as `kind name state`.
async fn states(server: &Server) -> Vec<String> {
    let all = server.admin.json("/debug/config").await;
    let text = |state: &Value| {
        ["kind", "name", "state"].map(|field| state[field].as_str().unwrap_or_default()).join(" ")
    };
    all.as_array().expect("a list").iter().map(text).collect()
}

async fn states_until(server: &Server, wanted: &[&str]) {
    wait_until(SOON, async || {
        let is = states(server).await;
        holds(is == wanted, is)
    })
    .await;
}

/// Returns the mTLS mode of a proxy's inbound port.
async fn mode(server: &Server) -> Value {
    server.admin.json("/debug/explain/policy?proxy=client.shop&port=8080").await["mode"]["value"]
        .clone()
}

#[tokio::test]
async fn broken_file_at_a_restart_removes_no_policy_and_no_route() {
    let east = Member::start("east", "n1", "198.18.0.1").await;
    east.serve("cart", &["10.0.0.1"]);
    let setup = Setup::new();
    setup.join(&[&east]);
    let file = setup.path("config").join("mesh.yaml");
    let good = [deny("admin"), strict(), route()];
    replace(&file, &documents(&good));
    replace(&setup.path("config").join("more.yaml"), &documents(&[deny("secret"), deny("third")]));
    let first = setup.start_ready().await;
    let client = first.connect(&setup, &Proxy::sidecar("east")).await;
    denied_until(&client, &["admin", "secret", "third"]).await;
    assert_eq!(mode(&first).await, "STRICT");
    drop(client);
    first.shut_down().await;

    // An error in one file, and an object removed from another.
    replace(&file, &format!("kind: [\n---\n{}", deny("fourth")));
    replace(&setup.path("config").join("more.yaml"), &deny("secret"));
    for round in ["at once", "and at the next start"] {
        let server = setup.start_ready().await;
        let client = server.connect(&setup, &Proxy::sidecar("east")).await;
        denied_until(&client, &["admin", "secret", "fourth"]).await;
        assert_eq!(mode(&server).await, "STRICT", "{round}");
        let wanted = [
            "AuthorizationPolicy admin refused",
            "AuthorizationPolicy fourth inForce",
            "AuthorizationPolicy secret inForce",
            "PeerAuthentication strict refused",
            "VirtualService old refused",
        ];
        states_until(&server, &wanted).await;
        let shown = server.admin.json("/debug/config?kind=VirtualService").await;
        let reason = &shown[0]["reasons"][0];
        let message = reason["text"].as_str().expect("a text");
        assert_eq!(reason["code"], "STR0219");
        assert!(message.starts_with("mesh.yaml, document 1, line "), "{message}");
        assert!(message.ends_with("the last valid version stays active"), "{message}");
        let checked = server.strait(&["check"]).await;
        assert!(
            text(&checked).contains("other objects that it contained before (3) stay in use"),
            "{round}"
        );
        let url = "http://cart.shop.svc.cluster.local/old";
        let routed = server.strait(&["explain", "route", "client.shop", "GET", url]).await;
        assert!(text(&routed).contains("410"), "{round}: {}", text(&routed));
        drop(client);
        server.shut_down().await;
    }

    // Objects that a valid file no longer contains are removed.
    let server = setup.start_ready().await;
    let client = server.connect(&setup, &Proxy::sidecar("east")).await;
    denied_until(&client, &["admin", "secret", "fourth"]).await;
    replace(&file, &documents(&[deny("admin"), strict()]));
    denied_until(&client, &["admin", "secret"]).await;
    let wanted = [
        "AuthorizationPolicy admin inForce",
        "AuthorizationPolicy secret inForce",
        "PeerAuthentication strict inForce",
    ];
    states_until(&server, &wanted).await;
}

/// Returns the reported doubts about the directory.
async fn doubts(server: &Server) -> Vec<String> {
    let sources = server.admin.json("/debug/sources").await;
    let own = sources.as_array().expect("a list").iter();
    let own = own.filter(|one| one["name"] == "config directory");
    let warnings = own.flat_map(|one| one["warnings"].as_array().cloned().unwrap_or_default());
    let warnings = warnings.filter_map(|one| Some(one.as_str()?.to_owned()));
    warnings.filter(|one| one.contains("STR0606")).collect()
}

#[tokio::test]
async fn policies_that_vanish_together_are_reported_and_stay_until_a_second_read() {
    let east = Member::start("east", "n1", "198.18.0.1").await;
    east.serve("cart", &["10.0.0.1"]);
    let setup = Setup::new();
    setup.join(&[&east]);
    let others: Vec<_> = (0..20)
        .map(|number| {
            let spec = json!({ "action": "ALLOW", "rules": [{}] });
            object("AuthorizationPolicy", &format!("allow-{number:02}"), &spec)
        })
        .collect();
    replace(&setup.path("config").join("others.yaml"), &documents(&others));
    let file = setup.path("config").join("deny.yaml");
    let all = [deny("admin"), deny("secret"), deny("third")];
    replace(&file, &documents(&all));
    let server = setup.start_ready().await;
    let client = server.connect(&setup, &Proxy::sidecar("east")).await;
    denied_until(&client, &["admin", "secret", "third"]).await;

    // A single object was deleted: it is removed immediately, without a doubt.
    replace(&file, &documents(&all[..2]));
    denied_until(&client, &["admin", "secret"]).await;
    assert_eq!(doubts(&server).await, Vec::<String>::new());

    replace(&file, "");
    let reported = wait_until(SOON, async || {
        let reported = doubts(&server).await;
        holds(!reported.is_empty(), &reported).map(|()| reported)
    })
    .await;
    let text = "for policies that restrict access, it has 0 of 2 known objects (lacking AuthorizationPolicy shop/admin, AuthorizationPolicy shop/secret)";
    assert!(reported[0].contains(text), "{reported:?}");
    denied_until(&client, &["admin", "secret"]).await;
    // The directory is read again with the same result, so the deletion takes effect.
    denied_until(&client, &[]).await;
    assert_eq!(doubts(&server).await, Vec::<String>::new());
}
