//! Tests of identities: the token of a file, server binding, and changes of the operator file.

use serde_json::{Value, json};

use super::*;
use crate::clusters::status::CredentialKind;
use crate::members::MemberSources;

/// Returns an operator file with one identity of type `tokenFile`.
fn file(path: &std::path::Path, servers: &str) -> Arc<MemberSources> {
    let path = path.display();
    let text = format!(
        "apiVersion: strait.dev/v1\nkind: MemberSources\nidentities: [{{name: reader, servers: [{servers}], tokenFile: {path}}}]\n"
    );
    Arc::new(MemberSources::parse(&text).expect("a valid file"))
}

/// Returns the Secret of a member that selects an identity.
fn secret(sim: &SimCluster, identity: &str) -> Value {
    let ca = sim.certificate_authority();
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "a",
        "clusters": [{ "name": "a", "cluster": {
            "server": sim.url(),
            "certificate-authority-data": base64::Engine::encode(&base64::engine::general_purpose::STANDARD, ca),
        } }],
        "contexts": [{ "name": "a", "context": { "cluster": "a" } }],
    });
    let mut secret = strait_sim::member_secret(SYSTEM, sim.id(), &kubeconfig.to_string());
    secret["metadata"]["annotations"] = json!({ "strait.dev/identity": identity });
    secret
}

#[tokio::test]
async fn identity_reads_the_servers_that_it_lists_and_no_others() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("token");
    let sim = sim("east").await;
    std::fs::write(&path, sim.token()).expect("written");
    let (operator_file, sources) = watch::channel(file(&path, "10.0.0.0/8"));
    let mesh = Mesh::with_sources(sources).await;
    mesh.hub.store().apply(secret(&sim, "reader")).expect("a Secret");
    let refused = east(&mesh, |east| east.state == ClusterState::Rejected).await;
    let reason = refused.reason.unwrap_or_default();
    assert!(reason.contains("STR0226") && reason.contains("identities.reader.servers"), "{reason}");
    assert!(sim.requests(|_| true).is_empty(), "the token was sent to a server that is not listed");

    operator_file.send_replace(file(&path, "127.0.0.0/8"));
    let live = east(&mesh, |east| east.state == ClusterState::Live).await;
    let credential = live.credential.expect("a credential");
    assert_eq!(credential.kind, CredentialKind::Identity);
    assert_eq!(credential.identity.as_deref(), Some("reader"));

    // The operator withdraws the permission: contact ends, the data stays.
    operator_file.send_replace(file(&path, "10.0.0.0/8"));
    let revoked = east(&mesh, |east| east.state == ClusterState::Rejected).await;
    assert_eq!(revoked.services, live.services);
    tokio::time::sleep(Duration::from_millis(300)).await;
    let before = sim.requests(|_| true).len();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(sim.requests(|_| true).len(), before);
}

#[tokio::test]
async fn unknown_identity_is_refused_by_name() {
    let sim = sim("east").await;
    let mesh = Mesh::start().await;
    mesh.hub.store().apply(secret(&sim, "missing")).expect("a Secret");
    let refused = east(&mesh, |east| east.state == ClusterState::Rejected).await;
    let reason = refused.reason.unwrap_or_default();
    assert!(reason.contains("STR0225") && reason.contains("missing"), "{reason}");
    assert!(sim.requests(|_| true).is_empty());
}

#[tokio::test]
async fn rotated_token_file_needs_no_list_and_a_missing_one_is_named() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("token");
    let sim = sim("east").await;
    let (_file, sources) = watch::channel(file(&path, "127.0.0.1"));
    let mut mesh = Mesh::with_sources(sources).await;
    mesh.hub.store().apply(secret(&sim, "reader")).expect("a Secret");
    let failing = east(&mesh, |east| east.state == ClusterState::AuthFailed).await;
    let reason = failing.reason.unwrap_or_default();
    assert!(reason.contains("STR0232") && reason.contains("token"), "{reason}");
    assert!(sim.requests(|_| true).is_empty(), "a request was sent without a token");

    std::fs::write(&path, sim.token()).expect("written");
    mesh.until_clusters(&["east", "hub"]).await;
    east(&mesh, |east| east.state == ClusterState::Live).await;
    let lists =
        |sim: &SimCluster| sim.requests(|one| one.query.contains("sendInitialEvents")).len();
    let before = lists(&sim);
    std::fs::write(&path, sim.rotate_token()).expect("written");
    sim.store().apply(service("shop", "late", "10.96.0.9", &[HTTP])).expect("a service");
    let live = east(&mesh, |east| east.services == 2).await;
    assert_eq!(live.relists, 0);
    assert_eq!(lists(&sim), before);
}

#[tokio::test]
async fn refused_identity_is_not_called_a_kubeconfig() {
    let directory = tempfile::tempdir().expect("a directory");
    let [path, other] = ["token", "other"].map(|name| directory.path().join(name));
    let sim = sim("east").await;
    std::fs::write(&path, sim.token()).expect("written");
    std::fs::write(&other, "unknown").expect("written");
    let (operator_file, sources) = watch::channel(file(&path, "127.0.0.1"));
    let mesh = Mesh::with_sources(sources).await;
    mesh.hub.store().apply(secret(&sim, "reader")).expect("a Secret");
    east(&mesh, |east| east.state == ClusterState::Live).await;
    operator_file.send_replace(file(&other, "127.0.0.1"));
    let refused = east(&mesh, |east| east.kubeconfig_refused).await;
    let reason = refused.reason.unwrap_or_default();
    assert!(reason.starts_with("the new identity is not used: STR0304"), "{reason}");
}
