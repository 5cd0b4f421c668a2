//! `strait cluster remove --purge`: the gateway of a cluster is removed after the last proxy has
//! stopped to use it.

use serde_json::Value;

use super::mesh::{Member, Proxy, SOON, Setup, endpoints_until, holds, outbound, text, wait_until};
use strait_sim::{Options, SimCluster, objects};

#[tokio::test]
async fn purge_removes_the_gateway_once_no_proxy_uses_the_cluster() {
    let hub = SimCluster::start("hub", Options::default()).await.expect("started");
    let east = Member::start("east", "n1", "198.18.0.1").await;
    let west = Member::start("west", "n2", "198.18.0.2").await;
    west.serve("web", &["10.2.0.1"]);
    west.apply(objects::labelled(
        objects::namespace("strait-gateway"),
        "app.kubernetes.io/managed-by",
        "strait",
    ));
    hub.store().apply(objects::namespace("strait-system")).expect("applied");
    for member in [&east, &west] {
        hub.store().apply(member.secret()).expect("applied");
    }
    let setup = Setup::new();
    let server = setup.start_replica(&hub, "state").await;
    let client = server.connect(&setup, &Proxy::sidecar("east")).await;
    endpoints_until(&client, "web", &[("198.18.0.2:15443", 1)]).await;

    let mut config: Value = serde_json::from_str(&hub.kubeconfig()).expect("JSON");
    let other: Value = serde_json::from_str(&west.api.kubeconfig()).expect("JSON");
    for list in ["clusters", "users", "contexts"] {
        config[list].as_array_mut().expect("a list").push(other[list][0].clone());
    }
    let kubeconfig = setup.path("operator");
    std::fs::write(&kubeconfig, config.to_string()).expect("written");
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_strait"));
    command
        .args(["cluster", "remove", "west", "--purge", "west", "--yes"])
        .env_clear()
        .env("KUBECONFIG", &kubeconfig)
        .env("STRAIT_SERVER", format!("http://{}", server.bound.admin))
        .env("STRAIT_TOKEN_FILE", &server.bound.token_file);
    let watching = async {
        wait_until(SOON, async || {
            let deleted = !west.api.requests(|one| one.verb == "delete").is_empty();
            holds(deleted, "nothing was deleted in the member")
        })
        .await;
        let left = client.held().endpoints(&outbound("web"));
        assert!(left.is_empty(), "the gateway is removed while proxies use it: {left:?}");
    };
    let (output, ()) = tokio::join!(command.output(), watching);
    let output = output.expect("the program runs");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    assert!(text(&output).contains("no proxy sends requests to cluster west"), "{}", text(&output));
    assert!(west.api.store().get("Namespace", "", "strait-gateway").is_none());
    let secret = hub.store().get("Secret", "strait-system", "strait-cluster-west");
    assert_eq!(secret.map(|secret| secret.value()), None::<Value>);
    drop(client);
    server.shut_down().await;
}
