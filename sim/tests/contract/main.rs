//! The behavior of a Kubernetes API server, as cases that run against the simulator and a real server, and
//! the additional features of the simulator: faults, worlds, the control port.

#![allow(clippy::panic, reason = "a failed expectation names the case")]

mod binary;
mod cases;
mod faults;
mod kubectl;
mod protobuf;
mod real;
mod script;
mod worlds;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use strait_sim::SimCluster;

/// Returns a client as the product creates it, without retries, which would hide responses.
async fn client_of(kubeconfig: &str) -> Client {
    // Fails if another test has installed the same provider already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let kubeconfig: Kubeconfig = serde_json::from_str(kubeconfig).expect("a kubeconfig as JSON");
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .expect("a usable kubeconfig");
    config.default_retry = false;
    Client::try_from(config).expect("a client")
}

async fn client(cluster: &SimCluster) -> Client {
    client_of(&cluster.kubeconfig()).await
}

/// Returns a directory that is deleted at the end of the test.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

/// Reports a skipped test directly to stderr, because the test harness hides the output of passing tests.
fn skipped(why: &str) {
    use std::io::Write;
    let line = format!("SKIPPED contract::{why}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
    // The file in which .ci/run collects skipped tests.
    if let Some(path) = std::env::var_os("STRAIT_SKIPS") {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        file.and_then(|mut file| file.write_all(line.as_bytes())).expect("STRAIT_SKIPS is a file");
    }
    let required = std::env::var("STRAIT_REAL").is_ok_and(|value| value == "required");
    assert!(!required, "required here: {why}");
}
