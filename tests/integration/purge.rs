//! `strait cluster remove --purge`: the gateway of a cluster is removed after the last proxy has
//! stopped to use it.

use serde_json::{Value, json};
use tokio::process::Command;

use super::mesh::{Member, Proxy, SOON, Setup, endpoints_until, holds, outbound, text, wait_until};
use strait_sim::{Family, Options, SimCluster, objects};
use strait_sources::registry::kube::derived_service_name;

/// Returns a command of an operator with access to both clusters.
fn strait(setup: &Setup, hub: &SimCluster, member: &Member) -> Command {
    let mut config: Value = serde_json::from_str(&hub.kubeconfig()).expect("JSON");
    let other: Value = serde_json::from_str(&member.api.kubeconfig()).expect("JSON");
    for list in ["clusters", "users", "contexts"] {
        config[list].as_array_mut().expect("a list").push(other[list][0].clone());
    }
    let kubeconfig = setup.path("operator");
    std::fs::write(&kubeconfig, config.to_string()).expect("written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_strait"));
    command.env_clear().env("KUBECONFIG", &kubeconfig);
    command
}

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

    let mut command = strait(&setup, &hub, &west);
    command
        .args(["cluster", "remove", "west", "--purge", "west", "--yes"])
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

/// Applies the objects of one import, as Strait writes them for this cluster set and owner.
fn apply_import(member: &Member, name: &str, set: &str, manager: &str) {
    let derived = derived_service_name("shop", name);
    let labels = json!({
        "app.kubernetes.io/managed-by": manager, "strait.dev/clusterset": set,
        "multicluster.kubernetes.io/service-name": name, "kubernetes.io/service-name": derived,
        "endpointslice.kubernetes.io/managed-by": "strait.dev",
    });
    for (version, kind, name) in [
        ("multicluster.x-k8s.io/v1beta1", "ServiceImport", name),
        ("v1", "Service", &*derived),
        ("discovery.k8s.io/v1", "EndpointSlice", &*derived),
    ] {
        let metadata = json!({ "namespace": "shop", "name": name, "labels": labels });
        member.apply(json!({ "apiVersion": version, "kind": kind, "metadata": metadata }));
    }
}

#[tokio::test]
async fn objects_of_imports_are_deleted_by_mcs_purge_and_by_purge() {
    let hub = SimCluster::start("hub", Options::default()).await.expect("started");
    let west = Member::start("west", "n2", "198.18.0.2").await;
    west.api.enable(Family::MultiCluster);
    west.serve("web", &["10.2.0.1"]);
    hub.store().apply(objects::namespace("strait-system")).expect("applied");
    hub.store().apply(west.secret()).expect("applied");
    let setup = Setup::new();
    let count = || {
        ["serviceimports", "services", "endpointslices"]
            .map(|plural| west.api.store().all(plural).len())
    };
    let run = async |arguments: &[&str]| {
        let output = strait(&setup, &hub, &west).args(arguments).output().await;
        let output = output.expect("the program runs");
        assert_eq!(output.status.code(), Some(0), "{}", text(&output));
        text(&output)
    };
    let others = count();
    for (name, set) in [("cart", "default"), ("loan", "default"), ("pay", "other")] {
        apply_import(&west, name, set, "strait");
    }
    apply_import(&west, "mail", "default", "someone");
    let before = count();

    let purge = ["cluster", "mcs-purge", "west"];
    let shown = run(&[&purge[..], &["--dry-run"]].concat()).await;
    let plan = "3 ServiceImports, 3 derived Services, 3 EndpointSlices";
    assert!(shown.contains(plan) && count() == before, "{shown}");
    run(&[&purge[..], &["--yes", "--clusterset", "default"]].concat()).await;
    assert_eq!(count(), before.map(|count| count - 2));
    assert!(west.api.store().get("ServiceImport", "shop", "pay").is_some());

    let condition = |kind: &str| json!({ "type": kind, "status": "True" });
    let owned = json!({ "f:status": { "f:conditions": { "k:{\"type\":\"Valid\"}": {} } } });
    west.apply(json!({
        "apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceExport",
        "metadata": { "namespace": "shop", "name": "web", "managedFields": [
            { "manager": "strait", "subresource": "status", "fieldsV1": owned },
        ] },
        "status": { "conditions": [condition("Valid"), condition("Other")] },
    }));
    let remove = ["cluster", "remove", "west", "--purge", "west", "--yes", "--no-wait"];
    let shown = run(&remove).await;
    assert!(shown.contains("the conditions of 1 ServiceExport"), "{shown}");
    let export = west.api.store().get("ServiceExport", "shop", "web").expect("it exists").value();
    assert_eq!(export["status"]["conditions"], json!([condition("Other")]));
    assert!(shown.contains("1 ServiceImport, 1 derived Service, 1 EndpointSlice"), "{shown}");
    assert_eq!(count(), others.map(|count| count + 1), "another controller's objects stay");
    let shown = run(&purge).await;
    assert!(shown.contains("has no ServiceImports that Strait wrote"), "{shown}");
}
