//! Tests of members from ClusterProfiles: the access by a provider's Secret, its rotation, and the
//! difference between the intent of a profile and its status.

use serde_json::{Value, json};

use super::*;
use crate::members::MemberSources;
use strait_sim::Family;

const FLEET: &str = "fleet";

fn file(access: &str) -> Arc<MemberSources> {
    let text = format!(
        "apiVersion: strait.dev/v1\nkind: MemberSources\nsources: [{{name: inventory, clusterProfiles: {{namespace: {FLEET}, selector: tier=prod}}, ids: ['*']}}]\naccess: [{access}]\n"
    );
    Arc::new(MemberSources::parse(&text).expect("a valid file"))
}

const BY_SECRET: &str =
    "{provider: ocm, secretReader: {namespace: fleet, name: '{clusterName}-msa'}}";

/// Returns the profile of a cluster, as Open Cluster Management writes it.
fn profile(sim: &SimCluster, healthy: &str, property: &str) -> Value {
    let ca = sim.certificate_authority();
    let ca = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, ca);
    json!({
        "apiVersion": "multicluster.x-k8s.io/v1alpha1", "kind": "ClusterProfile",
        "metadata": { "namespace": FLEET, "name": "profile-1", "labels": { "tier": "prod" } },
        "spec": { "displayName": "East", "clusterManager": { "name": "open-cluster-management" } },
        "status": {
            "conditions": [{
                "type": "ControlPlaneHealthy", "status": healthy,
                "lastTransitionTime": "2026-11-29T10:00:00Z",
            }],
            "properties": [{ "name": "cluster.clusterset.k8s.io", "value": property }],
            "accessProviders": [{ "name": "ocm", "cluster": {
                "server": sim.url(), "certificate-authority-data": ca,
                "extensions": [{
                    "name": "client.authentication.k8s.io/exec",
                    "extension": { "clusterName": "c1" },
                }],
            } }],
        },
    })
}

fn token_secret(token: &str) -> Value {
    let token = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, token);
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": { "namespace": FLEET, "name": "c1-msa" },
        "data": { "token": token },
    })
}

/// Starts a mesh whose config cluster has the kind ClusterProfile.
async fn mesh(access: &str) -> (Mesh, watch::Sender<Arc<MemberSources>>) {
    let (sender, sources) = watch::channel(file(access));
    let mesh = Mesh::with_sources(sources).await;
    mesh.hub.enable(Family::MultiCluster);
    mesh.hub.store().apply(namespace(FLEET)).expect("a namespace");
    (mesh, sender)
}

#[tokio::test]
async fn profile_becomes_a_member_and_its_rotated_token_needs_no_list() {
    let sim = sim("east").await;
    let (mut mesh, _file) = mesh(BY_SECRET).await;
    mesh.hub.store().apply(token_secret(&sim.token())).expect("a Secret");
    mesh.hub.store().apply(profile(&sim, "True", "east")).expect("a profile");
    mesh.until_clusters(&["east", "hub"]).await;
    let live = east(&mesh, |east| east.state == ClusterState::Live).await;
    assert_eq!(live.source.as_deref(), Some("inventory"));
    assert_eq!(
        (live.source_kind, live.secret.as_deref()),
        (Some("ClusterProfile"), Some("fleet/profile-1"))
    );
    let inventory = live.inventory.expect("an inventory");
    assert_eq!(inventory.manager, "open-cluster-management");
    assert_eq!((inventory.control_plane_healthy, inventory.joined), ("True", "Unknown"));

    let lists =
        |sim: &SimCluster| sim.requests(|one| one.query.contains("sendInitialEvents")).len();
    let before = lists(&sim);
    mesh.hub.store().apply(token_secret(&sim.rotate_token())).expect("a Secret");
    sim.store().apply(service("shop", "late", "10.96.0.9", &[HTTP])).expect("a service");
    let live = east(&mesh, |east| east.services == 2 && east.state == ClusterState::Live).await;
    assert_eq!((live.relists, lists(&sim)), (0, before));
}

#[tokio::test]
async fn status_of_a_profile_and_its_missing_secret_remove_nothing() {
    let sim = sim("east").await;
    let (mut mesh, _file) = mesh(BY_SECRET).await;
    mesh.hub.store().apply(token_secret(&sim.token())).expect("a Secret");
    mesh.hub.store().apply(profile(&sim, "True", "east")).expect("a profile");
    mesh.until_clusters(&["east", "hub"]).await;

    // An unhealthy control plane, and a property that changes, are shown.
    mesh.hub.store().apply(profile(&sim, "False", "renamed")).expect("a profile");
    let shown = |one: &ClusterStatus| one.reason.as_ref().is_some_and(|r| r.contains("STR0239"));
    let live = east(&mesh, shown).await;
    assert_eq!((live.state, live.services), (ClusterState::Live, 1));
    assert_eq!(live.inventory.expect("an inventory").control_plane_healthy, "False");

    // Without the Secret, the last credential stays in use.
    mesh.hub.store().delete("Secret", FLEET, "c1-msa").expect("it exists");
    let shown = |one: &ClusterStatus| one.reason.as_ref().is_some_and(|r| r.contains("STR0238"));
    let live = east(&mesh, shown).await;
    assert_eq!((live.state, live.services), (ClusterState::Live, 1));
    sim.store().apply(service("shop", "late", "10.96.0.9", &[HTTP])).expect("a service");
    east(&mesh, |east| east.services == 2).await;

    // Without the profile, the cluster is no member.
    mesh.hub.store().delete("ClusterProfile", FLEET, "profile-1").expect("it exists");
    mesh.until_clusters(&["hub"]).await;
}

#[tokio::test]
async fn profile_cannot_select_a_secret_of_a_namespace_that_is_not_listed() {
    let sim = sim("east").await;
    let by_kubeconfig = "{provider: ocm, kubeconfigSecretReader: {namespaces: [fleet]}}";
    let (mesh, _file) = mesh(by_kubeconfig).await;
    let mut foreign = profile(&sim, "True", "east");
    foreign["status"]["accessProviders"][0]["cluster"]["extensions"][0]["extension"] =
        json!({ "name": "admin", "key": "config", "namespace": "kube-system" });
    mesh.hub.store().apply(foreign).expect("a profile");
    let refused = east(&mesh, |east| east.state == ClusterState::Rejected).await;
    let reason = refused.reason.unwrap_or_default();
    assert!(reason.contains("STR0238") && reason.contains("kube-system"), "{reason}");
    let reads = |one: &strait_sim::Request| one.path.contains("/namespaces/kube-system/secrets");
    assert!(mesh.hub.requests(reads).is_empty(), "the Secret was read");
    assert!(sim.requests(|_| true).is_empty());
}

#[tokio::test]
async fn operator_file_changes_the_credential_of_a_profile() {
    let sim = sim("east").await;
    let (mesh, file_sender) = mesh("").await;
    mesh.hub.store().apply(token_secret(&sim.token())).expect("a Secret");
    mesh.hub.store().apply(profile(&sim, "True", "east")).expect("a profile");
    let refused = east(&mesh, |east| east.state == ClusterState::Rejected).await;
    let reason = refused.reason.unwrap_or_default();
    assert!(reason.contains("STR0237") && reason.contains("lists ocm"), "{reason}");
    file_sender.send_replace(file(BY_SECRET));
    east(&mesh, |east| east.state == ClusterState::Live).await;
}

/// Writes a program that prints the token in a file next to it, and counts its runs.
fn program(directory: &std::path::Path, token: &str) -> String {
    let path = |name: &str| directory.join(name).display().to_string();
    std::fs::write(path("token"), token).expect("written");
    let script = format!(
        "echo \"$KUBERNETES_EXEC_INFO $*\" >> {runs}; printf '{{\"status\": {{\"token\": \"%s\"}}}}' \"$(cat {token})\"",
        runs = path("runs"),
        token = path("token"),
    );
    let entry = json!({
        "provider": "ocm", "program": { "command": "sh", "args": ["-c", script, "sh"] },
        "servers": ["127.0.0.0/8"], "profileArguments": { "allow": ["--region"] },
    });
    entry.to_string()
}

#[tokio::test]
async fn program_of_the_operator_file_provides_the_token_of_a_profile() {
    let sim = sim("east").await;
    let directory = tempfile::tempdir().expect("a directory");
    let entry = program(directory.path(), &sim.token());
    let (mesh, file_sender) = mesh(&entry).await;
    let mut with_arguments = profile(&sim, "True", "east");
    let extensions = &mut with_arguments["status"]["accessProviders"][0]["cluster"]["extensions"];
    extensions.as_array_mut().expect("a list").push(json!({
        "name": "clusterprofiles.multicluster.x-k8s.io/exec/additional-args",
        "extension": ["--region=eu", "--evil"],
    }));
    mesh.hub.store().apply(with_arguments).expect("a profile");
    let live = east(&mesh, |east| east.state == ClusterState::Live).await;
    assert_eq!(live.credential.expect("a credential").identity.as_deref(), Some("ocm"));
    let runs = std::fs::read_to_string(directory.path().join("runs")).expect("it ran");
    let [run] = runs.lines().collect::<Vec<_>>()[..] else { panic!("{runs}") };
    let (info, arguments) = run.rsplit_once(' ').expect("two parts");
    assert_eq!(arguments, "--region=eu");
    let info: Value = serde_json::from_str(info).expect("JSON");
    let cluster = &info["spec"]["cluster"];
    assert_eq!(
        (&cluster["server"], &cluster["config"]),
        (&json!(sim.url()), &json!({ "clusterName": "c1" }))
    );
    assert_eq!(info["spec"]["interactive"], json!(false));

    // A server that is not listed receives no token, and the program does not run for it.
    let requests = sim.requests(|_| true).len();
    file_sender.send_replace(file(&entry.replace("127.0.0.0/8", "10.0.0.0/8")));
    let refused =
        |east: &ClusterStatus| east.reason.as_ref().is_some_and(|r| r.contains("STR0226"));
    let frozen = east(&mesh, refused).await;
    assert_eq!(frozen.services, 1, "the last known state stays");
    sim.store().apply(service("shop", "late", "10.96.0.9", &[HTTP])).expect("a service");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(sim.requests(|_| true).len(), requests);
    let runs = std::fs::read_to_string(directory.path().join("runs")).expect("it ran");
    assert_eq!(runs.lines().count(), 1);
}

#[tokio::test]
async fn client_certificate_of_a_program_is_used_and_replaced_when_it_is_refused() {
    let sim = sim("east").await;
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("credential");
    let print = |(certificate, key): &(String, String)| {
        let status = json!({ "clientCertificateData": certificate, "clientKeyData": key });
        std::fs::write(&path, json!({ "status": status }).to_string()).expect("written");
    };
    let first = sim.issue_certificate("strait");
    print(&first);
    let entry = json!({
        "provider": "ocm", "program": { "command": "cat", "args": [path.display().to_string()] },
        "servers": ["127.0.0.0/8"],
    });
    let (mesh, _file) = mesh(&entry.to_string()).await;
    mesh.hub.store().apply(profile(&sim, "True", "east")).expect("a profile");
    let live = east(&mesh, |east| east.state == ClusterState::Live).await;
    let credential = live.credential.expect("a credential");
    assert_eq!(credential.identity.as_deref(), Some("ocm"));
    assert!(credential.expires.is_some(), "the certificate states its end");

    // Open watches continue, and new requests use the next certificate.
    print(&sim.issue_certificate("strait"));
    sim.revoke_certificate(&first.0);
    sim.stop().await;
    sim.store().apply(service("shop", "late", "10.96.0.9", &[HTTP])).expect("a service");
    sim.restart().await;
    let live = east(&mesh, |east| east.services == 2 && east.state == ClusterState::Live).await;
    assert_eq!(live.credential.expect("a credential").last_error, None);
}

#[tokio::test]
async fn failure_of_a_program_is_the_reason_of_the_member() {
    let sim = sim("east").await;
    let entry = "{provider: ocm, program: {command: sh, args: [-c, 'echo canary; echo log in first >&2; exit 3']}, servers: ['127.0.0.0/8']}";
    let (mesh, _file) = mesh(entry).await;
    mesh.hub.store().apply(profile(&sim, "True", "east")).expect("a profile");
    let names_the_error = |east: &ClusterStatus| {
        east.reason.as_ref().is_some_and(|reason| reason.contains("log in first"))
    };
    let failed = east(&mesh, names_the_error).await;
    assert_eq!(failed.state, ClusterState::AuthFailed);
    let reason = failed.reason.unwrap_or_default();
    assert!(reason.contains("STR0232"), "{reason}");
    assert!(!reason.contains("canary") && sim.requests(|_| true).is_empty());
}
