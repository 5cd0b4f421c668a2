//! kubectl, which uses client-go and reads more of discovery than other clients.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use strait_sim::{Options, SimCluster, objects};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use crate::{directory, skipped};

fn kubectl(kubeconfig: &Path, home: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("kubectl");
    command.arg("--kubeconfig").arg(kubeconfig).args(arguments);
    // Discovery is cached below the home directory.
    command.env("HOME", home).stdin(Stdio::null()).kill_on_drop(true);
    command
}

async fn run(kubeconfig: &Path, home: &Path, arguments: &[&str]) -> (bool, String) {
    let output = kubectl(kubeconfig, home, arguments).output().await.expect("kubectl starts");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

fn write(directory: &Path, name: &str, text: &str) -> PathBuf {
    let path = directory.join(name);
    std::fs::write(&path, text).expect("writable");
    path
}

#[tokio::test]
async fn kubectl_works_with_the_simulator() {
    if Command::new("kubectl").arg("version").arg("--client").output().await.is_err() {
        skipped("kubectl is not on PATH, so it was not tested with the simulator");
        return;
    }
    let cluster = SimCluster::start("c1", Options::default()).await.expect("a free port");
    for (name, ip) in [("cart-1", "10.0.0.1"), ("cart-2", "10.0.0.2")] {
        cluster.store().apply(objects::pod("shop", name, "cart", ip, "n1")).expect("valid");
    }
    let directory = directory();
    let home = directory.path();
    let config = write(home, "config", &cluster.kubeconfig());
    let secret = cluster.member_secret("shop").to_string();
    let secret = write(home, "secret.yaml", &secret);
    let secret = secret.to_str().expect("plain text");
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\n\
                   spec: {ports: [{name: http, port: 80}, {name: tcp, port: 90}]}\n";
    let service = write(home, "service.yaml", service);
    let service = service.to_str().expect("plain text");
    let fewer = "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\n\
                 spec: {ports: [{name: http, port: 80, targetPort: 8080}]}\n";
    let fewer = write(home, "fewer.yaml", fewer);
    let fewer = fewer.to_str().expect("plain text");
    // Arguments and expected output. With a leading `!`, the command must fail.
    let steps: &[(&[&str], &str)] = &[
        (&["version"], "Server Version: v1.34.0"),
        (&["api-resources"], "endpointslices"),
        (&["get", "pods", "-n", "shop"], "cart-1"),
        (&["get", "po", "-A", "-l", "app=cart", "-o", "name"], "pod/cart-2"),
        (&["get", "pod", "cart-1", "-n", "shop", "-o", "jsonpath={.status.podIP}"], "10.0.0.1"),
        (&["get", "pods", "-n", "shop", "--chunk-size=1", "-o", "name"], "pod/cart-2"),
        (&["!", "get", "pod", "none", "-n", "shop"], "pods \"none\" not found"),
        (&["apply", "-f", secret], "created"),
        (&["apply", "-f", secret], "unchanged"),
        (
            &["get", "secret", "-n", "shop", "-l", "istio/multiCluster=true", "-o", "name"],
            "strait-cluster-c1",
        ),
        (&["apply", "-f", service], "created"),
        (&["apply", "-f", fewer], "configured"),
        (
            &["get", "svc", "web", "-n", "shop", "-o", "jsonpath={.spec.ports[*].targetPort}"],
            "8080",
        ),
        (&["apply", "--server-side", "-f", service, "--force-conflicts"], "serverside-applied"),
        (&["apply", "--dry-run=server", "-f", service], "(server dry run)"),
        (&["label", "ns", "shop", "topology.istio.io/network=n1"], "labeled"),
        (&["get", "ns", "shop", "-o", "yaml"], "topology.istio.io/network: n1"),
        (&["get", "--raw", "/readyz"], "ok"),
        (&["get", "--raw", "/apis/discovery.k8s.io/v1/endpointslices"], "EndpointSliceList"),
        // The typed clients of client-go write protobuf.
        (&["create", "serviceaccount", "reader", "-n", "shop"], "created"),
        (&["create", "configmap", "words", "-n", "shop", "--from-literal=a=b"], "created"),
        (&["get", "cm", "words", "-n", "shop", "-o", "jsonpath={.data.a}"], "b"),
        (&["describe", "pod", "cart-1", "-n", "shop"], "10.0.0.1"),
        (&["delete", "pod", "cart-1", "-n", "shop"], "deleted"),
        (&["delete", "pod", "--all", "-n", "shop"], "cart-2"),
        (&["!", "get", "gateways"], "the server doesn't have a resource type"),
    ];
    for (arguments, expected) in steps {
        let (fails, arguments) = match arguments {
            ["!", arguments @ ..] => (true, arguments),
            arguments => (false, *arguments),
        };
        let (succeeded, output) = run(&config, home, arguments).await;
        assert!(succeeded != fails && output.contains(expected), "{arguments:?}: {output}");
    }
    watches(&cluster, &config, home).await;
}

async fn watches(cluster: &SimCluster, config: &Path, home: &Path) {
    let mut command = kubectl(config, home, &["get", "nodes", "-w", "-o", "name"]);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("kubectl starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    cluster.store().apply(objects::node("first", "r", "z")).expect("valid");
    let wait = async |expected: &str| {
        let seen =
            async { while lines.next_line().await.expect("text").as_deref() != Some(expected) {} };
        tokio::time::timeout(std::time::Duration::from_secs(20), seen).await.expect(expected);
    };
    let mut wait = wait;
    wait("node/first").await;
    cluster.store().apply(objects::node("second", "r", "z")).expect("valid");
    wait("node/second").await;
    child.kill().await.expect("ours to end");
}
