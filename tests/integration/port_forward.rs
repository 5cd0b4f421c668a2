//! A port-forward through the API server of the config cluster, with a token of one of its service
//! accounts: with `strait --kube-context`, and with the current context if no server is named.

use std::process::Output;

use serde_json::{Value, json};

use super::mesh::{Server, Setup, text};
use strait_sim::{Fault, Options, SimCluster, objects};

const SYSTEM: &str = super::mesh::SYSTEM;
const POD: &str = "strait-5d9c7b-x2x4z";
/// The simulation names the context after the cluster.
const CONTEXT: &str = "config";

/// A config cluster with a control plane in a pod, and a kubeconfig with one context for it.
struct World {
    hub: SimCluster,
    server: Server,
    setup: Setup,
}

impl World {
    async fn start() -> Self {
        let hub = SimCluster::start("config", Options::default()).await.expect("started");
        hub.store().apply(objects::namespace(SYSTEM)).expect("applied");
        let setup = Setup::new();
        let server = setup.start_replica(&hub, "state").await;
        hub.store().apply(pod(POD, true)).expect("applied");
        hub.forward_pod_port(&format!("{SYSTEM}/{POD}"), 15014, server.bound.admin);
        Self { hub, server, setup }
    }

    fn add_account(&self, name: &str) {
        let account = json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": { "name": name, "namespace": SYSTEM },
        });
        self.hub.store().apply(account).expect("applied");
    }

    /// Runs a command on a machine that knows nothing but the kubeconfig.
    async fn strait(&self, arguments: &[&str]) -> Output {
        let kubeconfig = self.setup.path("operator");
        std::fs::write(&kubeconfig, self.hub.kubeconfig()).expect("written");
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_strait"));
        command.args(arguments).env_clear().env("KUBECONFIG", &kubeconfig).kill_on_drop(true);
        command.output().await.expect("the program runs")
    }

    async fn end(self) {
        self.server.shut_down().await;
    }
}

fn pod(name: &str, is_ready: bool) -> Value {
    let pod = objects::pod(SYSTEM, name, "strait", "10.0.0.9", "node");
    let mut pod = objects::labelled(pod, "app.kubernetes.io/name", "strait");
    let status = if is_ready { "True" } else { "False" };
    pod["status"]["conditions"] = json!([{ "type": "Ready", "status": status }]);
    pod
}

#[tokio::test]
async fn command_forwards_a_port_and_uses_a_token_of_the_config_cluster() {
    let world = World::start().await;
    world.add_account("strait-admin");
    let output = world.strait(&["status", "--kube-context", CONTEXT]).await;
    assert!(text(&output).contains("CLUSTERS"), "{}", text(&output));
    // The admin account may change the mesh.
    let hold = ["history", "pin", "--yes", "--kube-context", CONTEXT];
    let output = world.strait(&hold).await;
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    world.end().await;
}

#[tokio::test]
async fn command_without_a_server_uses_the_current_context_and_reports_it() {
    let world = World::start().await;
    world.add_account("strait-admin");
    let output = world.strait(&["proxy", "list"]).await;
    let text_of = text(&output);
    assert_eq!(output.status.code(), Some(0), "{text_of}");
    let notes: Vec<_> =
        text_of.lines().filter(|line| line.contains("the current context, config")).collect();
    assert_eq!(notes.len(), 1, "{text_of}");
    // A server that is named is used, even if nothing listens there.
    let output = world.strait(&["proxy", "list", "--server", "http://127.0.0.1:1"]).await;
    assert_eq!(output.status.code(), Some(69), "{}", text(&output));
    // Without a control plane in the cluster, the exit code stays that of an unreachable one.
    world.hub.store().delete("Pod", SYSTEM, POD).expect("it is there");
    let output = world.strait(&["proxy", "list"]).await;
    let text_of = text(&output);
    assert_eq!(output.status.code(), Some(69), "{text_of}");
    for part in ["http://127.0.0.1:15014", "no pod of the control plane", "--kube-context"] {
        assert!(text_of.contains(part), "{part:?} is missing in: {text_of}");
    }
    world.end().await;
}

#[tokio::test]
async fn viewer_account_reads_and_changes_nothing() {
    let world = World::start().await;
    world.add_account("strait-viewer");
    let output = world.strait(&["proxy", "list", "--kube-context", CONTEXT]).await;
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    let hold = ["history", "pin", "--yes", "--kube-context", CONTEXT];
    let output = world.strait(&hold).await;
    assert_eq!(output.status.code(), Some(77), "{}", text(&output));
    // A token of another account of the namespace has no rights.
    world.add_account("default");
    for (account, audience, status) in [
        ("strait-viewer", "strait-admin", 200),
        ("default", "strait-admin", 401),
        ("strait-viewer", "istio-ca", 401),
    ] {
        let token = world.hub.account_token(SYSTEM, account, audience).expect("a token");
        let bearer = format!("Bearer {token}");
        let (answer, body) = world.server.admin.get("/debug/clusters", Some(&bearer)).await;
        assert_eq!(answer.as_u16(), status, "{account} for {audience}: {body}");
    }
    world.end().await;
}

#[tokio::test]
async fn failed_port_forward_names_the_context_the_object_and_the_next_step() {
    let world = World::start().await;
    let status = ["status", "--kube-context", CONTEXT];
    let fails_with = async |arguments: &[&str], code: i32, parts: &[&str]| {
        let output = world.strait(arguments).await;
        let text_of = text(&output);
        assert_eq!(output.status.code(), Some(code), "{text_of}");
        for part in parts.iter().chain(&["next:"]) {
            assert!(text_of.contains(part), "{part:?} is missing in: {text_of}");
        }
    };
    fails_with(&["status", "--kube-context", "none"], 64, &["none", CONTEXT]).await;
    fails_with(&status, 77, &[SYSTEM, CONTEXT, "strait-admin or strait-viewer", "--token-file"])
        .await;
    world.add_account("strait-admin");
    world.hub.fault(Fault::Forbidden { resource: "pods".to_owned() });
    fails_with(&status, 77, &["pods", CONTEXT, "forbidden"]).await;
    world.hub.heal();
    world.hub.store().apply(pod(POD, false)).expect("applied");
    fails_with(&status, 69, &[SYSTEM, CONTEXT, "no ready pod", "get pods"]).await;
    // The pod is ready, but nothing listens on its admin port.
    world.hub.store().apply(pod("strait-other", true)).expect("applied");
    fails_with(&status, 69, &["strait-other", CONTEXT, "connection refused"]).await;
    world.end().await;
}
