//! Members whose API servers grant rights in some namespaces only.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::mesh::{Member, Proxy, SOON, Server, Setup, holds, replace, text, wait_until};
use strait_sim::Fault;
use strait_sim::objects::{self, Endpoint, HTTP};
use strait_xds_client::XdsClient;

const HEAD: &str = "apiVersion: strait.dev/v1\nkind: Policy\n";

/// Serves `web` of a namespace at this address.
fn serve(member: &Member, namespace: &str, address: &str) {
    let vip = match namespace {
        "shop" => "172.21.0.1",
        "edge" => "172.21.1.1",
        _ => "172.21.2.1",
    };
    member.apply(objects::service(namespace, "web", vip, &[HTTP]));
    member.apply(objects::pod(namespace, "web-0", "web", address, "node"));
    let endpoint = Endpoint::new(address).with_pod("web-0");
    member.apply(objects::endpoint_slice(namespace, "web", "web-1", &[HTTP], &[endpoint]));
}

/// Replaces the namespaces that may be read. Running watches end, as after their usual time.
fn grant(member: &Member, namespaces: &[&str]) {
    let namespaces = namespaces.iter().map(|name| (*name).to_owned()).collect();
    member.api.fault(Fault::OnlyNamespaces { namespaces });
    member.api.fault(Fault::CloseWatches { after_ms: 1_500 });
}

/// Waits until a client has exactly these addresses of `web`, by namespace.
async fn until(client: &XdsClient, expected: [(&str, &[&str]); 3]) {
    for (namespace, addresses) in expected {
        let name = format!("outbound|80||web.{namespace}.svc.cluster.local");
        let expected: BTreeSet<String> = addresses.iter().map(|ip| format!("{ip}:8080")).collect();
        wait_until(SOON, async || {
            let found = client.held().endpoints(&name).into_keys();
            let found: BTreeSet<String> = found.map(|address| address.to_string()).collect();
            holds(found == expected, (&name, found))
        })
        .await;
    }
}

/// A member that may be read in some namespaces, and one that is read completely.
struct Fixture {
    east: Member,
    _home: Member,
    setup: Setup,
}

impl Fixture {
    async fn new(granted: &[&str], annotations: Value) -> Self {
        let home = Member::start("home", "n1", "198.18.0.1").await;
        let east = Member::start("east", "n1", "198.18.0.2").await;
        for (namespace, address) in
            [("shop", "10.0.0.1"), ("edge", "10.0.1.1"), ("bank", "10.0.2.1")]
        {
            serve(&east, namespace, address);
        }
        grant(&east, granted);
        let setup = Setup::new();
        let policy = setup.path("policy.yaml").display().to_string();
        let setup = setup.with(&["--policy", &policy]);
        setup.join(&[&home]);
        let mut secret = east.secret();
        secret["metadata"]["annotations"] = annotations;
        setup.put("east", &secret);
        let fixture = Self { east, _home: home, setup };
        fixture.write_policy("");
        fixture
    }

    fn write_policy(&self, rules: &str) {
        replace(&self.setup.path("policy.yaml"), &format!("{HEAD}{rules}"));
    }

    async fn start(&self) -> (Server, XdsClient) {
        let server = self.setup.start_ready().await;
        let client = server.connect(&self.setup, &Proxy::sidecar("home")).await;
        (server, client)
    }
}

#[tokio::test]
async fn member_with_rights_in_two_namespaces_is_live_and_a_lost_one_stays_unchanged() {
    let fixture = Fixture::new(&["shop", "edge"], json!({ "strait.dev/network": "n1" })).await;
    fixture.write_policy("clusters: {east: {readNamespaces: [shop, edge]}}");
    let (server, client) = fixture.start().await;
    until(&client, [("shop", &["10.0.0.1"]), ("edge", &["10.0.1.1"]), ("bank", &[])]).await;
    let entry = server.cluster_in("east", "live").await;
    assert_eq!(entry["readNamespaces"], json!(["edge", "shop"]));
    assert_eq!(entry["missingRights"], json!(["list nodes", "list namespaces"]));
    assert!(entry["reason"].as_str().is_some_and(|why| why.contains("STR0309: nodes")), "{entry}");

    grant(&fixture.east, &["shop"]);
    server
        .cluster_until("east", |entry| {
            entry["missingRights"]
                .as_array()
                .is_some_and(|all| all.contains(&json!("list services in edge")))
        })
        .await;
    serve(&fixture.east, "edge", "10.0.1.2");
    serve(&fixture.east, "shop", "10.0.0.2");
    until(&client, [("shop", &["10.0.0.2"]), ("edge", &["10.0.1.1"]), ("bank", &[])]).await;
    let entry = server.cluster_in("east", "stale").await;
    assert_eq!(entry["unreadNamespaces"][0]["namespace"], "edge", "{entry}");
    let reason = entry["reason"].as_str().expect("a reason");
    assert!(reason.contains("STR0318: namespace edge is not read since"), "{reason}");
    let check = server.strait(&["check", "clusters"]).await;
    assert!(text(&check).contains("STR0318"), "{}", text(&check));
    let shown = text(&server.strait(&["cluster", "get", "east"]).await);
    assert!(shown.contains("Namespaces read") && shown.contains("Namespace not read"), "{shown}");
    drop(client);
    server.shut_down().await;

    let (server, client) = fixture.start().await;
    until(&client, [("shop", &["10.0.0.2"]), ("edge", &["10.0.1.1"]), ("bank", &[])]).await;
    server.cluster_in("east", "stale").await;
    serve(&fixture.east, "shop", "10.0.0.3");
    until(&client, [("shop", &["10.0.0.3"]), ("edge", &["10.0.1.1"]), ("bank", &[])]).await;
    grant(&fixture.east, &["shop", "edge"]);
    until(&client, [("shop", &["10.0.0.3"]), ("edge", &["10.0.1.2"]), ("bank", &[])]).await;
    server.cluster_in("east", "live").await;
}

#[tokio::test]
async fn list_of_namespaces_changes_while_the_member_serves() {
    let annotations = json!({ "strait.dev/network": "n1", "strait.dev/read-namespaces": "shop" });
    let fixture = Fixture::new(&["shop", "edge"], annotations).await;
    let (server, client) = fixture.start().await;
    until(&client, [("shop", &["10.0.0.1"]), ("edge", &[]), ("bank", &[])]).await;
    // The policy takes precedence over the Secret. There is no right in the third namespace.
    fixture.write_policy("clusters: {east: {readNamespaces: [shop, edge, bank]}}");
    until(&client, [("shop", &["10.0.0.1"]), ("edge", &["10.0.1.1"]), ("bank", &[])]).await;
    let entry = server.cluster_in("east", "stale").await;
    assert_eq!(entry["unreadNamespaces"][0]["namespace"], "bank", "{entry}");
    // A namespace that is lost before the list changes keeps its endpoints.
    grant(&fixture.east, &["shop", "bank"]);
    server.cluster_until("east", |entry| entry["unreadNamespaces"][0]["namespace"] == "edge").await;
    fixture.write_policy("clusters: {east: {readNamespaces: [bank, edge]}}");
    let frozen = [("shop", &[][..]), ("edge", &["10.0.1.1"]), ("bank", &["10.0.2.1"])];
    until(&client, frozen).await;
    fixture.write_policy("");
    until(&client, [("shop", &["10.0.0.1"]), ("edge", &[]), ("bank", &[])]).await;
}
