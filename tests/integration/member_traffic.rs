//! Traffic objects of member clusters, for the proxies of the clusters that the policy names.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::mesh::{
    Member, Proxy, SOON, Server, Setup, all_resources, holds, replace, text, wait_until,
};
use strait_sim::{Family, Fault, Options as SimOptions};
use strait_xds::resource::ResourceType;
use strait_xds_client::XdsClient;

const HEAD: &str = "apiVersion: strait.dev/v1\nkind: Policy\n";

/// Returns a VirtualService of the host `web` in the namespace `shop`, identified by its timeout.
fn route(name: &str, timeout: &str) -> Value {
    let to = json!([{ "destination": { "host": "web" } }]);
    json!({
        "apiVersion": "networking.istio.io/v1", "kind": "VirtualService",
        "metadata": { "namespace": "shop", "name": name },
        "spec": { "hosts": ["web"], "http": [{ "timeout": timeout, "route": to }] },
    })
}

/// Returns the timeout of a client's requests to `web`; `None` is the default.
fn timeout(client: &XdsClient) -> Option<String> {
    let contents = client.held();
    let body = contents.body(ResourceType::Route, "80")?;
    let route = strait_proto::json::to_json(ResourceType::Route.url(), body).ok()?.to_string();
    let all = route.split("\"timeout\":\"").skip(1).filter_map(|rest| rest.split('"').next());
    all.map(str::to_owned).find(|timeout| timeout != "0s")
}

async fn timeouts_until(clients: [&XdsClient; 2], expected: [&str; 2]) {
    wait_until(SOON, async || {
        let found = clients.map(|client| timeout(client).unwrap_or_default());
        holds(found == expected, (found, expected))
    })
    .await;
}

/// Two clusters with Istio's kinds, each with `web`, and a policy.
struct Fixture {
    members: [Member; 2],
    setup: Setup,
    policy: PathBuf,
}

impl Fixture {
    async fn new(policy: &str) -> Self {
        let options = || SimOptions {
            families: [Family::Core, Family::Istio].into(),
            ..SimOptions::default()
        };
        let east = Member::start_with("east", "n1", "198.18.0.1", options()).await;
        let west = Member::start_with("west", "n1", "198.18.0.2", options()).await;
        east.serve("web", &["10.0.0.1"]);
        west.serve("web", &["10.0.0.2"]);
        east.apply(route("web", "2s"));
        west.apply(route("web", "3s"));
        let setup = Setup::new();
        let file = setup.path("policy.yaml");
        let name = file.display().to_string();
        let setup = setup.with(&["--policy", &name, "--cluster-removal-grace", "0s"]);
        let fixture = Self { members: [east, west], setup, policy: file };
        fixture.write_policy(policy);
        fixture.setup.join(&fixture.members.each_ref());
        fixture
    }

    fn write_policy(&self, rules: &str) {
        replace(&self.policy, &format!("{HEAD}{rules}"));
    }

    async fn connect(&self, server: &Server) -> [XdsClient; 2] {
        let [east, west] = ["east", "west"].map(Proxy::sidecar);
        [server.connect(&self.setup, &east).await, server.connect(&self.setup, &west).await]
    }
}

/// Returns the statuses of the VirtualServices with this name, by cluster.
async fn states(server: &Server, name: &str) -> Vec<(String, String, String)> {
    let path = format!("/debug/config?kind=VirtualService&name={name}");
    let all = server.admin.json(&path).await;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let status = |object: &Value| {
        let store = if object["cluster"].is_null() { "config" } else { "member" };
        assert_eq!(object["store"], store, "{object}");
        (text(&object["cluster"]), text(&object["state"]), text(&object["reasons"][0]["code"]))
    };
    all.as_array().into_iter().flatten().map(status).collect()
}

async fn states_until(server: &Server, name: &str, expected: &[(&str, &str, &str)]) {
    wait_until(SOON, async || {
        let found = states(server, name).await;
        let is = found
            .iter()
            .map(|(a, b, c)| (a.as_str(), b.as_str(), c.as_str()))
            .eq(expected.iter().copied());
        holds(is, found)
    })
    .await;
}

#[tokio::test]
async fn named_cluster_rules_apply_to_its_proxies_and_the_shared_store_wins() {
    let fixture = Fixture::new("trafficFrom: [east]").await;
    let [east, west] = &fixture.members;
    let server = fixture.setup.start_ready().await;
    let [east_client, west_client] = &fixture.connect(&server).await;
    let clients = [east_client, west_client];
    timeouts_until(clients, ["2s", ""]).await;
    states_until(&server, "web", &[("east", "inForce", "")]).await;
    let list_count = |member: &Member| member.api.request_count("list", "virtualservices");
    assert_eq!(list_count(west), 0, "the policy does not name this cluster");

    let url = "http://web.shop/";
    let proxies = server.admin.json("/debug/proxies").await;
    let rows = proxies.as_array().expect("rows");
    for row in rows {
        let key = row["key"].as_str().expect("a key");
        let output = server.strait(&["explain", "route", key, "GET", url]).await;
        let is_east = row["cluster"] == "east";
        let rule = "VirtualService shop/web of cluster east spec.http[0]";
        assert_eq!(text(&output).contains(rule), is_east, "{}", text(&output));
    }

    let before = all_resources(west_client);
    east.apply(route("web", "4s"));
    timeouts_until(clients, ["4s", ""]).await;
    assert!(
        all_resources(west_client) == before,
        "objects of a cluster apply only to its own proxies"
    );

    // The object of the shared store with this name applies to all proxies, and its origin is
    // shown.
    fixture.setup.put("web", &route("web", "9s"));
    timeouts_until(clients, ["9s", "9s"]).await;
    states_until(&server, "web", &[("", "inForce", ""), ("east", "shadowed", "STR1120")]).await;
    fixture.setup.take_out("web");
    timeouts_until(clients, ["4s", ""]).await;

    // An unreadable object keeps its last valid version, and reports this.
    let mut broken = route("web", "5s");
    broken["spec"]["hosts"] = json!(7);
    east.apply(broken);
    states_until(&server, "web", &[("east", "refused", "STR1001")]).await;
    timeouts_until(clients, ["4s", ""]).await;
    east.apply(route("web", "5s"));
    timeouts_until(clients, ["5s", ""]).await;

    // Changes of the key take effect, including unknown cluster names.
    fixture.write_policy("trafficFrom: [west, nobody]");
    timeouts_until(clients, ["", "3s"]).await;
    states_until(&server, "web", &[("west", "inForce", "")]).await;
    let found = server.strait(&["check"]).await;
    assert!(text(&found).contains("trafficFrom names it"), "{}", text(&found));
    fixture.write_policy("");
    timeouts_until(clients, ["", ""]).await;
    states_until(&server, "web", &[]).await;
    fixture.write_policy("trafficFrom: [east, west]");
    timeouts_until(clients, ["5s", "3s"]).await;
    server.shut_down().await;
}

#[tokio::test]
async fn rules_of_a_cluster_stay_while_it_is_unreachable_and_are_removed_with_it() {
    let fixture = Fixture::new("trafficFrom: [east, west]").await;
    let server = fixture.setup.start_ready().await;
    let [east_client, west_client] = &fixture.connect(&server).await;
    timeouts_until([east_client, west_client], ["2s", "3s"]).await;
    fixture.members[0].api.stop().await;
    fixture.members[1].apply(route("web", "6s"));
    timeouts_until([east_client, west_client], ["2s", "6s"]).await;
    server.shut_down().await;

    // After a restart, while its API server is down.
    let server = fixture.setup.start_ready().await;
    let [east_client, west_client] = &fixture.connect(&server).await;
    timeouts_until([east_client, west_client], ["2s", "6s"]).await;
    let both = [("east", "inForce", ""), ("west", "inForce", "")];
    states_until(&server, "web", &both).await;
    fixture.setup.take_out("west");
    states_until(&server, "web", &both[..1]).await;
    // A proxy that stays connected in a removed cluster keeps its configuration.
    timeouts_until([east_client, west_client], ["2s", "6s"]).await;
    server.shut_down().await;
}

#[tokio::test]
async fn missing_right_of_a_reader_delays_nothing_and_is_reported() {
    let fixture = Fixture::new("trafficFrom: [east]").await;
    let resource = "virtualservices".to_owned();
    fixture.members[0].api.fault(Fault::Forbidden { resource });
    let server = fixture.setup.start_ready().await;
    let clients = &fixture.connect(&server).await;
    timeouts_until(clients.each_ref(), ["", ""]).await;
    let row = server.cluster_until("east", |row| row.to_string().contains("STR1121")).await;
    assert!(row.to_string().contains("virtualservices"), "{row}");
    let found = server.strait(&["cluster", "get", "east"]).await;
    assert!(text(&found).contains("--own-traffic"), "{}", text(&found));
    server.shut_down().await;
}
