//! Member clusters, sentence by sentence (docs/reference/interface.md, "Member clusters"): which
//! Secrets define one, which Secret owns an ID, and what remains of a cluster after its Secret is
//! deleted.

use serde_json::{Value, json};

use super::mesh::{
    Member, Proxy, SHOP, SOON, SYSTEM, Server, Setup, endpoints_until, holds, renamed, wait_until,
};
use strait_sim::objects::{HTTP, Port};
use strait_sim::{Fault, objects};

/// Returns a Secret with these keys.
fn secret(name: &str, keys: &[(&str, &str)]) -> Value {
    let data: serde_json::Map<_, _> =
        keys.iter().map(|(key, text)| ((*key).to_owned(), json!(text))).collect();
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": { "name": name, "namespace": SYSTEM, "labels": { "strait.dev/cluster": "true" } },
        "stringData": data,
    })
}

/// Waits until a cluster's first entry is in this state, with a reason that contains this text.
async fn shown(server: &Server, id: &str, state: &str, reason: &str) -> Value {
    let why = |entry: &Value| entry["reason"].as_str().unwrap_or_default().contains(reason);
    server.cluster_until(id, |entry| entry["state"] == state && why(entry)).await
}

async fn member(id: &str, network: &str, last: u8) -> Member {
    let member = Member::start(id, network, &format!("198.18.0.{last}")).await;
    member.serve("web", &[&format!("10.0.0.{last}")]);
    member
}

#[tokio::test]
async fn each_key_of_a_secret_is_a_cluster_or_reports_why_not() {
    let (east, west) = (member("east", "n1", 1).await, member("west", "n1", 2).await);
    let (long, too_long) = ("a".repeat(63), "a".repeat(64));
    let setup = Setup::new();
    let (kubeconfig, other) = (east.api.kubeconfig(), west.api.kubeconfig());
    let keys = [
        (long.as_str(), kubeconfig.as_str()),
        ("west.yaml", &other),
        (&too_long, &kubeconfig),
        ("Upper", &kubeconfig),
        ("under_score", &kubeconfig),
        ("a..b", &kubeconfig),
        ("-a", &kubeconfig),
        ("empty", ""),
        ("program", &kubeconfig.replace("\"token\":", "\"exec\":")),
        ("named", &kubeconfig.replace("127.0.0.1", "localhost")),
    ];
    setup.put("all", &secret("all", &keys));
    // Secrets in another namespace, or with another value of the label, are ignored.
    let mut stranger = secret("stranger", &[("stranger", &kubeconfig)]);
    stranger["metadata"]["namespace"] = json!("elsewhere");
    setup.put("stranger", &stranger);
    let mut no_member = secret("none", &[("none", &kubeconfig)]);
    no_member["metadata"]["labels"] = json!({ "strait.dev/cluster": "yes" });
    setup.put("none", &no_member);
    let server = setup.start_ready().await;
    for (id, state, code) in [
        (long.as_str(), "live", ""),
        ("west.yaml", "live", ""),
        (&too_long, "rejected", "STR0215"),
        ("Upper", "rejected", "STR0215"),
        ("under_score", "rejected", "STR0215"),
        ("a..b", "rejected", "STR0215"),
        ("-a", "rejected", "STR0215"),
        ("empty", "rejected", "STR02"),
        ("program", "rejected", "STR0203"),
        // A literal loopback address is allowed here; a name that resolves to one never is.
        ("named", "rejected", "STR0209"),
    ] {
        let entry = shown(&server, id, state, code).await;
        assert_eq!(entry["secret"], "strait-system/all");
    }
    let clusters = server.admin.json("/debug/clusters").await;
    assert_eq!(clusters.as_array().map(Vec::len), Some(keys.len()), "{clusters:#}");
    let client = server.connect(&setup, &Proxy::sidecar("west.yaml")).await;
    endpoints_until(&client, "web", &[("10.0.0.1:8080", 1), ("10.0.0.2:8080", 1)]).await;
}

#[tokio::test]
async fn current_context_is_used_or_the_only_one() {
    let (east, west) = (member("east", "n1", 1).await, member("west", "n1", 2).await);
    let parsed = |member: &Member| -> Value {
        serde_json::from_str(&member.api.kubeconfig()).expect("JSON")
    };
    let with = |change: &dyn Fn(&mut Value)| {
        let mut both = parsed(&east);
        for list in ["clusters", "users", "contexts"] {
            let more = parsed(&west)[list][0].clone();
            both[list].as_array_mut().expect("a list").push(more);
        }
        change(&mut both);
        both.to_string()
    };
    let mut only = parsed(&east);
    only.as_object_mut().expect("an object").remove("current-context");
    let setup = Setup::new();
    let keys = [
        ("only", only.to_string()),
        ("chosen", with(&|both| both["current-context"] = json!("west"))),
        ("unset", with(&|both| both["current-context"] = json!(""))),
        ("elsewhere", with(&|both| both["current-context"] = json!("north"))),
    ];
    let keys = keys.each_ref().map(|(key, text)| (*key, text.as_str()));
    setup.put("all", &secret("all", &keys));
    let server = setup.start_ready().await;
    shown(&server, "only", "live", "").await;
    shown(&server, "chosen", "live", "").await;
    shown(&server, "unset", "rejected", "STR0212").await;
    shown(&server, "elsewhere", "rejected", "STR0212").await;
    for (cluster, address) in [("only", "10.0.0.1"), ("chosen", "10.0.0.2")] {
        let path = format!("/debug/endpoints?hostname=web.{SHOP}.svc.cluster.local");
        let endpoints = server.admin.json(&path).await;
        let is_it = |one: &&Value| one["cluster"] == cluster;
        let endpoint = endpoints.as_array().expect("a list").iter().find(is_it).expect("one");
        assert_eq!(endpoint["address"], address, "{endpoints}");
    }
}

#[tokio::test]
async fn removal_of_a_secret_a_key_or_a_label_removes_the_cluster() {
    let (a, b, c) =
        (member("a", "n1", 1).await, member("b", "n1", 2).await, member("c", "n1", 3).await);
    let d = member("d", "n1", 4).await;
    let setup = Setup::new().with(&["--cluster-removal-grace", "120s"]);
    let (b_config, d_config) = (b.api.kubeconfig(), d.api.kubeconfig());
    setup.join(&[&a, &c]);
    setup.put("both", &secret("both", &[("b", &b_config), ("d", &d_config)]));
    let server = setup.start_ready().await;
    let client = server.connect(&setup, &Proxy::sidecar("d")).await;
    let sockets = ["10.0.0.1:8080", "10.0.0.2:8080", "10.0.0.3:8080", "10.0.0.4:8080"];
    let all = sockets.map(|socket| (socket, 1));
    endpoints_until(&client, "web", &all).await;

    setup.take_out("a");
    setup.put("both", &secret("both", &[("d", &d_config)]));
    let mut unlabelled = c.secret();
    unlabelled["metadata"]["labels"] = json!({ "strait.dev/cluster": "false" });
    setup.put("c", &unlabelled);
    for id in ["a", "b", "c"] {
        let entry = shown(&server, id, "draining", "withdrawn in").await;
        assert_eq!((&entry["services"], &entry["endpoints"]), (&json!(2), &json!(1)), "{entry}");
    }
    // Frozen: changes in the cluster are not received, and its state stays.
    a.serve("web", &["10.0.0.9"]);
    d.serve("web", &["10.0.0.4", "10.0.0.5"]);
    let more = [&all[..], &[("10.0.0.5:8080", 1)]].concat();
    endpoints_until(&client, "web", &more).await;

    // Each returns in a different way, also under other names.
    setup.put("new", &renamed(a.secret(), "new"));
    setup.put("both", &secret("both", &[("b", &b_config), ("d", &d_config)]));
    setup.join(&[&c]);
    for id in ["a", "b", "c"] {
        shown(&server, id, "live", "").await;
    }
    let now = ["10.0.0.9:8080", sockets[1], sockets[2], sockets[3], "10.0.0.5:8080"];
    endpoints_until(&client, "web", &now.map(|socket| (socket, 1))).await;
}

#[tokio::test]
async fn removed_cluster_without_data_leaves_no_entry() {
    let (east, denied) = (member("east", "n1", 1).await, member("denied", "n1", 2).await);
    denied.api.fault(Fault::Unauthorized);
    let setup = Setup::new().with(&["--cluster-removal-grace", "120s"]);
    setup.join(&[&east, &denied]);
    setup.put("standby", &renamed(east.secret(), "zz"));
    setup.put("refused", &secret("refused", &[("refused", "users: [")]));
    let server = setup.start_ready().await;
    shown(&server, "denied", "authFailed", "STR0304").await;
    shown(&server, "refused", "rejected", "STR02").await;
    wait_until(SOON, async || {
        let entries = server.clusters("east").await;
        holds(entries.len() == 2 && entries[1]["state"] == "conflict", entries)
    })
    .await;
    for file in ["denied", "standby", "refused"] {
        setup.take_out(file);
    }
    wait_until(SOON, async || {
        let clusters = server.admin.json("/debug/clusters").await;
        holds(clusters.as_array().is_some_and(|all| all.len() == 1), clusters)
    })
    .await;
    shown(&server, "east", "live", "").await;
}

#[tokio::test]
async fn drained_cluster_leaves_load_balancing_and_paused_cluster_is_frozen() {
    let (east, west) = (member("east", "n1", 1).await, member("west", "n1", 2).await);
    let setup = Setup::new();
    setup.join(&[&east, &west]);
    let server = setup.start_ready().await;
    let client = server.connect(&setup, &Proxy::sidecar("east")).await;
    let first = ("10.0.0.1:8080", 1);
    endpoints_until(&client, "web", &[first, ("10.0.0.2:8080", 1)]).await;
    let mode = |mode: &str| {
        let mut secret = west.secret();
        secret["metadata"]["annotations"] = json!({ "strait.dev/mode": mode });
        setup.put("west", &secret);
    };

    mode("drain");
    shown(&server, "west", "draining", "strait.dev/mode").await;
    endpoints_until(&client, "web", &[first]).await;
    let shown_as = server.admin.json("/debug/endpoints?hostname=web.shop").await;
    let health = [0, 1].map(|index| shown_as[index]["health"].clone());
    assert_eq!(health, ["healthy", "draining"], "{shown_as:#}");
    west.serve("web", &["10.0.0.2", "10.0.0.3"]);
    server.cluster_until("west", |entry| entry["endpoints"] == 2).await;
    mode("pause");
    shown(&server, "west", "paused", "strait.dev/mode").await;
    let frozen = [first, ("10.0.0.2:8080", 1), ("10.0.0.3:8080", 1)];
    endpoints_until(&client, "web", &frozen).await;
    west.serve("web", &["10.0.0.4"]);
    // East's later change is received, west's is not.
    east.serve("web", &["10.0.0.1", "10.0.0.5"]);
    let later = [&frozen[..], &[("10.0.0.5:8080", 1)]].concat();
    endpoints_until(&client, "web", &later).await;
    mode("sideways");
    shown(&server, "west", "paused", "STR0217").await;
    mode("");
    shown(&server, "west", "live", "").await;
    let all = [first, ("10.0.0.4:8080", 1), ("10.0.0.5:8080", 1)];
    endpoints_until(&client, "web", &all).await;
}

#[tokio::test]
async fn counts_match_the_stored_objects() {
    let east = member("east", "n1", 1).await;
    let setup = Setup::new();
    setup.join(&[&east]);
    let server = setup.start_ready().await;
    let count = server.cluster_in("east", "live").await["objects"].as_u64().expect("a number");
    east.apply(objects::service(SHOP, "more", "172.20.1.1", &[HTTP]));
    east.apply(objects::pod(SHOP, "more-0", "more", "10.0.0.9", "node"));
    server.cluster_until("east", |entry| entry["objects"] == count + 2).await;
    east.api.store().delete("Pod", SHOP, "more-0").expect("there is one");
    server.cluster_until("east", |entry| entry["objects"] == count + 1).await;
}

#[tokio::test]
async fn id_of_the_config_cluster_is_reserved() {
    let (hub, east) = (member("hub", "n1", 1).await, member("east", "n1", 2).await);
    let setup = Setup::new();
    // Older than all others, and under another name: the ID decides.
    let mut thief = secret("aaa", &[("hub", &east.api.kubeconfig())]);
    thief["metadata"]["creationTimestamp"] = json!("2020-01-01T00:00:00Z");
    hub.apply(thief);
    hub.apply(east.secret());
    let kubeconfig = setup.path("hub.kubeconfig");
    std::fs::write(&kubeconfig, hub.api.kubeconfig()).expect("written");
    let mut arguments = setup.arguments();
    let at = arguments.iter().position(|one| one == "--config-dir").expect("given");
    arguments.splice(
        at..at + 2,
        ["--kubeconfig", kubeconfig.to_str().expect("UTF-8"), "--cluster-id", "hub"]
            .map(str::to_owned),
    );
    let server = setup.start_as(arguments).await;
    server.ready().await;
    let clusters = wait_until(SOON, async || {
        let clusters = server.admin.json("/debug/clusters").await;
        let clusters = clusters.as_array().expect("a list").clone();
        let states: Vec<_> = clusters.iter().map(|one| (&one["id"], &one["state"])).collect();
        let (hub, east) = (json!("hub"), json!("east"));
        let (live, rejected) = (json!("live"), json!("rejected"));
        let wanted = [(&hub, &live), (&east, &live), (&hub, &rejected)];
        holds(states == wanted, &clusters).map(|()| clusters.clone())
    })
    .await;
    assert_eq!(clusters[0]["secret"], Value::Null, "the config cluster is first, without a Secret");
    assert!(clusters[2]["reason"].as_str().is_some_and(|why| why.contains("STR0216")));
    let client = server.connect(&setup, &Proxy::sidecar("hub")).await;
    endpoints_until(&client, "web", &[("10.0.0.1:8080", 1), ("10.0.0.2:8080", 1)]).await;
    // The Secret of a member is watched there.
    hub.api.store().delete("Secret", SYSTEM, "strait-cluster-east").expect("there is one");
    shown(&server, "east", "draining", "withdrawn in").await;
}

/// A TCP port.
pub(super) const TCP: Port = Port { name: "tcp", port: 9000, target: 9000 };
