//! The operator file of member sources in a running control plane, and `strait members check`.

use std::process::{Command, Output};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::mesh::{Member, SOON, Server, Setup, holds, replace, text, wait_until};

const HEAD: &str = "apiVersion: strait.dev/v1\nkind: MemberSources\n";

async fn member(id: &str, last: u8) -> Member {
    let member = Member::start(id, "n1", &format!("198.18.0.{last}")).await;
    member.serve("web", &[&format!("10.0.0.{last}")]);
    member
}

/// Returns the kubeconfig Secret that Cluster API writes for a member.
fn cluster_api_secret(namespace: &str, member: &Member, id: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "cluster.x-k8s.io/secret",
        "metadata": {
            "name": format!("{id}-kubeconfig"), "namespace": namespace,
            "labels": { "cluster.x-k8s.io/cluster-name": id, "tier": "prod" },
        },
        "stringData": { "value": member.api.kubeconfig(), "relative": "x", "token-file": "y" },
    })
}

/// Returns the Secret that Argo CD writes for a member.
fn argo_cd_secret(namespace: &str, member: &Member, id: &str) -> Value {
    let ca = STANDARD.encode(member.api.certificate_authority());
    let config = json!({
        "bearerToken": member.api.token(),
        "tlsClientConfig": { "insecure": false, "caData": ca },
    });
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": {
            "name": format!("cluster-{id}"), "namespace": namespace,
            "labels": { "argocd.argoproj.io/secret-type": "cluster", "strait.dev/cluster": "true" },
        },
        "stringData": { "name": id, "server": member.api.url(), "config": config.to_string() },
    })
}

async fn in_state(server: &Server, id: &str, state: &str) -> Value {
    server.cluster_until(id, |entry| entry["state"] == state).await
}

#[tokio::test]
async fn sources_of_the_operator_file_define_members_and_follow_it() {
    let (east, west, argo) =
        (member("east", 1).await, member("west", 2).await, member("argo", 3).await);
    let setup = Setup::new();
    let file = setup.path("members.yaml");
    let write = |rest: &str| replace(&file, &format!("{HEAD}{rest}"));
    let source = |ids: &str| {
        format!(
            "sources: [{{name: capi, secrets: {{namespace: capi, selector: tier=prod}}, ids: [{ids}]}}]"
        )
    };
    write(&source("prod-east"));
    setup.put("east", &cluster_api_secret("capi", &east, "prod-east"));
    setup.put("west", &cluster_api_secret("capi", &west, "prod-west"));
    setup.put("argo", &argo_cd_secret("strait-system", &argo, "argo"));
    let setup = setup.with(&["--members", &file.display().to_string()]);
    let server = setup.start_ready().await;
    let live = in_state(&server, "prod-east", "live").await;
    assert_eq!(live["source"], "capi");
    assert_eq!(live["secret"], "capi/prod-east-kubeconfig");
    assert_eq!((&live["sourceKind"], &live["via"]), (&json!("Secret"), &json!("direct")));
    assert_eq!((&live["inventory"], &live["missingRights"]), (&Value::Null, &json!([])));
    let credential = &live["credential"];
    assert_eq!((&credential["kind"], &credential["lastError"]), (&json!("token"), &Value::Null));
    let refused = in_state(&server, "prod-west", "rejected").await;
    assert!(refused["reason"].to_string().contains("STR0224"), "{refused}");
    let system = in_state(&server, "argo", "live").await;
    assert_eq!(system["source"], "system");
    // The user of the credential is read after the first sync.
    server.cluster_until("argo", |one| one["credential"]["principal"] == "system:admin").await;
    let shown = server.strait(&["cluster", "get", "argo"]).await;
    let shown = text(&shown);
    assert!(shown.contains("direct") && shown.contains("token, user system:admin"), "{shown}");

    write(&source("'prod-*'"));
    in_state(&server, "prod-west", "live").await;

    // An invalid file keeps the last valid version.
    write("sources: [{name: capi, secrets: {namespace: capi}, ids: []}]");
    wait_until(SOON, async || {
        let policy = server.admin.json("/debug/policy").await;
        holds(policy["members"]["problem"].is_string(), policy)
    })
    .await;
    let found = server.strait(&["check", "policy"]).await;
    assert_eq!(found.status.code(), Some(2), "{}", text(&found));
    let found = text(&found);
    assert!(found.contains("STR0601") && found.contains("members.yaml"), "{found}");
    assert!(found.contains("sources[0].ids"), "{found}");
    in_state(&server, "prod-west", "live").await;

    write("proxies: [{name: p, url: 'socks5://127.0.0.1:1', servers: [a.example]}]");
    wait_until(SOON, async || {
        let clusters = server.admin.json("/debug/clusters").await;
        let is_active = |one: &Value| one["id"] == "prod-east" && one["state"] != "draining";
        let is_there = clusters.as_array().is_some_and(|all| all.iter().any(is_active));
        holds(!is_there, clusters)
    })
    .await;
    let found = text(&server.strait(&["check", "policy"]).await);
    assert!(!found.contains("STR0601"), "{found}");
    // The object still exists: the change of the file may be a mistake.
    in_state(&server, "prod-east", "draining").await;
    let found = server.strait(&["check", "clusters"]).await;
    assert_eq!(found.status.code(), Some(2), "{}", text(&found));
    let found = text(&found);
    let fact = "no longer has source capi, which selected Secret capi/prod-east-kubeconfig";
    assert!(found.contains("STR0243") && found.contains(fact), "{found}");
}

/// Returns the profile of a member, with the access provider `ocm`.
fn cluster_profile(member: &Member) -> Value {
    let extension = json!({ "name": "client.authentication.k8s.io/exec", "extension": { "clusterName": "c1" } });
    let ca = STANDARD.encode(member.api.certificate_authority());
    json!({
        "apiVersion": "multicluster.x-k8s.io/v1alpha1", "kind": "ClusterProfile",
        "metadata": { "name": "east", "namespace": "fleet" },
        "spec": { "clusterManager": { "name": "ocm" } },
        "status": {
            "conditions": [{ "type": "ControlPlaneHealthy", "status": "False" }],
            "accessProviders": [{ "name": "ocm", "cluster": {
                "server": member.api.url(), "certificate-authority-data": ca, "extensions": [extension],
            } }],
        },
    })
}

#[tokio::test]
async fn program_of_the_provider_file_provides_the_token_of_a_profile() {
    let east = member("east", 1).await;
    let setup = Setup::new();
    let [file, providers, token] =
        ["members.yaml", "providers.json", "token"].map(|name| setup.path(name));
    let source = "sources: [{name: inventory, clusterProfiles: {namespace: fleet}, ids: [east]}]";
    replace(&file, &format!("{HEAD}{source}\n"));
    let script =
        format!("printf '{{\"status\": {{\"token\": \"%s\"}}}}' \"$(cat {})\"", token.display());
    let write = |name: &str| {
        let exec = json!({
            "apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["-c", script],
        });
        let provider =
            json!({ "name": name, "execConfig": exec, "profileSourcedCLIArgsPolicy": "Append" });
        replace(&providers, &json!({ "providers": [provider] }).to_string());
    };
    replace(&token, &east.api.token());
    write("other");
    setup.put("profile", &cluster_profile(&east));
    let setup = setup.with(&[
        "--members",
        &file.display().to_string(),
        "--clusterprofile-provider-file",
        &providers.display().to_string(),
    ]);
    let server = setup.start_ready().await;
    let refused = in_state(&server, "east", "rejected").await;
    assert!(refused["reason"].to_string().contains("STR0237"), "{refused}");
    write("ocm");
    let live = in_state(&server, "east", "live").await;
    let credential = &live["credential"];
    assert_eq!((&credential["kind"], &credential["identity"]), (&json!("identity"), &json!("ocm")));
    let found = text(&server.strait(&["check", "policy"]).await);
    assert!(found.contains("STR0227") && found.contains("profileSourcedCLIArgsPolicy"), "{found}");

    // An invalid file keeps the last valid version.
    replace(&providers, "{}");
    wait_until(SOON, async || {
        let policy = server.admin.json("/debug/policy").await;
        let problem = &policy["members"]["problem"];
        holds(problem.as_str().is_some_and(|one| one.contains("providers.json")), policy)
    })
    .await;
    in_state(&server, "east", "live").await;
}

#[tokio::test]
async fn cluster_profile_becomes_a_member_with_its_providers_token() {
    let east = member("east", 1).await;
    let setup = Setup::new();
    let file = setup.path("members.yaml");
    let source = "sources: [{name: inventory, clusterProfiles: {namespace: fleet}, ids: [east]}]";
    let access =
        "access: [{provider: ocm, secretReader: {namespace: fleet, name: '{clusterName}-msa'}}]";
    replace(&file, &format!("{HEAD}{source}\n{access}\n"));
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": { "name": "c1-msa", "namespace": "fleet" },
        "stringData": { "token": east.api.token() },
    });
    setup.put("profile", &cluster_profile(&east));
    setup.put("secret", &secret);
    let setup = setup.with(&["--members", &file.display().to_string()]);
    let server = setup.start_ready().await;
    let live = in_state(&server, "east", "live").await;
    assert_eq!(live["sourceKind"], "ClusterProfile");
    assert_eq!(live["secret"], "fleet/east");
    assert_eq!(live["inventory"]["controlPlaneHealthy"], "False");
    let shown = text(&server.strait(&["cluster", "get", "east"]).await);
    assert!(shown.contains("ocm: control plane healthy False, joined Unknown"), "{shown}");
    let found = text(&server.strait(&["check", "policy"]).await);
    assert!(!found.contains("STR0227"), "{found}");
}

#[tokio::test]
async fn operator_file_is_checked_with_its_own_exit_codes() {
    let setup = Setup::new();
    let file = setup.path("members.yaml");
    let name = file.display().to_string();
    let check = |arguments: &[&str]| -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_strait"));
        command.args(["members", "check"]).args(arguments).env_clear();
        command.output().expect("it ends")
    };
    // A token file that does not exist yet is not an error, and neither is a server that is down.
    replace(
        &file,
        &format!("{HEAD}identities: [{{name: a, servers: [a.example], tokenFile: /nowhere}}]"),
    );
    let valid = check(&[&name]);
    assert_eq!(valid.status.code(), Some(0), "{}", text(&valid));
    replace(&file, &format!("{HEAD}identities: [{{name: a, tokenFile: /nowhere}}]"));
    let invalid = check(&[&name]);
    assert_eq!(invalid.status.code(), Some(1), "{}", text(&invalid));
    assert!(text(&invalid).contains("identities[0].servers"), "{}", text(&invalid));
    for arguments in [&[][..], &["/nowhere/members.yaml"]] {
        let output = check(arguments);
        assert_eq!(output.status.code(), Some(64), "{}", text(&output));
    }
    let config = setup.path("config").display().to_string();
    for (file, expected) in [(name.as_str(), 1), ("/nowhere/members.yaml", 64)] {
        let address = "127.0.0.1:0";
        let mut command = Command::new(env!("CARGO_BIN_EXE_strait"));
        command
            .args(["serve", "--config-dir", &config, "--members", file])
            .args(["--xds-address", address, "--admin-address", address])
            .env_clear();
        let output = command.output().expect("it ends");
        assert_eq!(output.status.code(), Some(expected), "{}", text(&output));
        let shown = text(&output);
        assert!(shown.contains("STR0601") && shown.contains("--members"), "{shown}");
    }
}
