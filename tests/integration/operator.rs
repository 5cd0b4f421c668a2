//! The program as operators use it: `strait serve` with simulated clusters, and the commands that
//! show and change clusters, each as a process.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use strait_identity::authority::AuthorityPem;
use strait_sim::objects::{self, HTTP, Port};
use strait_sim::{Family, Fault, Options, SimCluster};

/// The time limit of every wait.
const LIMIT: Duration = Duration::from_secs(60);

/// A config cluster that `strait serve` reads, another cluster, and the operator's kubeconfig for
/// both.
struct Served {
    hub: SimCluster,
    remote: SimCluster,
    folder: tempfile::TempDir,
    server: Child,
    admin: String,
    /// The port of the relays and proxies.
    xds: String,
}

impl Served {
    async fn start(mesh_config: &str, flags: &[&str]) -> Self {
        let options = || Options {
            families: [Family::Core, Family::MultiCluster].into(),
            ..Options::default()
        };
        let hub = SimCluster::start("hub", options()).await.expect("a hub");
        let remote = SimCluster::start("prod-eu", options()).await.expect("a remote");
        for cluster in [&hub, &remote] {
            for name in ["strait-system", "kube-system", "shop"] {
                cluster.store().apply(objects::namespace(name)).expect("applied");
            }
        }
        let config = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": "strait", "namespace": "strait-system" },
            "data": { "mesh": mesh_config },
        });
        hub.store().apply(config).expect("applied");
        let folder = tempfile::tempdir().expect("a folder");
        let mut merged: Value = serde_json::from_str(&hub.kubeconfig()).expect("JSON");
        let other: Value = serde_json::from_str(&remote.kubeconfig()).expect("JSON");
        for list in ["clusters", "users", "contexts"] {
            let more = other[list].as_array().expect("a list").clone();
            merged[list].as_array_mut().expect("a list").extend(more);
        }
        std::fs::write(folder.path().join("kubeconfig"), merged.to_string()).expect("written");
        let mut server = Command::new(env!("CARGO_BIN_EXE_strait"))
            .args(["serve", "--xds-address", "127.0.0.1:0", "--admin-address", "127.0.0.1:0"])
            .args(flags)
            .arg("--kubeconfig")
            .arg(folder.path().join("kubeconfig"))
            .arg("--state-dir")
            .arg(folder.path().join("state"))
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        let lines = server.stdout.take().expect("piped");
        let ready = tokio::task::spawn_blocking(move || {
            let mut line = String::new();
            BufReader::new(lines).read_line(&mut line).map(|_| line)
        });
        let line = ready.await.expect("read").expect("a line");
        let line: Value = serde_json::from_str(&line).expect("one line of JSON");
        let address = |name: &str| line[name].as_str().expect("an address").to_owned();
        let admin = format!("http://{}", address("admin"));
        Self { hub, remote, folder, server, admin, xds: address("xds") }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns a command with the operator's environment.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_strait"));
        command
            .args(arguments)
            .env_clear()
            .env("KUBECONFIG", self.path("kubeconfig"))
            .env("STRAIT_SERVER", &self.admin)
            .env("STRAIT_TOKEN_FILE", self.path("state/admin-token"))
            .stdin(Stdio::null());
        command
    }

    /// Runs a command. Returns its exit code and its whole output.
    async fn strait(&self, arguments: &[&str]) -> (i32, String) {
        let mut command = self.command(arguments);
        let run = tokio::task::spawn_blocking(move || command.output());
        let Output { status, stdout, stderr } = run.await.expect("it ran").expect("it ran");
        let text = [stdout, stderr].concat();
        let text = String::from_utf8(text).expect("UTF-8");
        assert!(!text.contains(&self.remote.token()), "a token is shown: {text}");
        (status.code().expect("an exit code"), text)
    }

    /// Runs a command whose two outputs are closed. Returns its exit code.
    async fn unread(&self, arguments: &[&str]) -> Option<i32> {
        let closed = || std::io::pipe().expect("a pipe").1;
        let mut command = tokio::process::Command::from(self.command(arguments));
        command.stdout(closed()).stderr(closed()).kill_on_drop(true);
        let ended = tokio::time::timeout(LIMIT, command.status()).await.expect("it ends");
        ended.expect("it ran").code()
    }

    /// Runs a command until it succeeds and prints all of these texts.
    async fn until(&self, arguments: &[&str], expected: &[&str]) {
        let started = Instant::now();
        loop {
            let (code, text) = self.strait(arguments).await;
            if code == 0 && expected.iter().all(|part| text.contains(part)) {
                return;
            }
            assert!(started.elapsed() < LIMIT, "{arguments:?} ends with {code}: {text}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Makes the other cluster a member, as Istio's tool does.
    async fn join(&self) {
        self.hub.store().apply(self.remote.member_secret("strait-system")).expect("applied");
        self.until(&["cluster", "get", "prod-eu"], &["live"]).await;
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

fn labels(cluster: &SimCluster, kind: &str, namespace: &str, name: &str) -> Value {
    let found = cluster.store().get(kind, namespace, name).expect("it is there");
    found.value()["metadata"]["labels"].clone()
}

/// Publishes the roots that workloads of a mesh trust.
fn publish_roots(cluster: &SimCluster, pem: &str) {
    let roots = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "istio-ca-root-cert", "namespace": "strait-system" },
        "data": { "root-cert.pem": pem },
    });
    cluster.store().apply(roots).expect("applied");
}

#[tokio::test(flavor = "multi_thread")]
async fn check_reports_all_problems() {
    let served = Served::start("enableTracing: true\nconnectTimeout: 5s\n", &[]).await;
    served.join().await;
    let mut stray = served.remote.member_secret("strait-system");
    stray["metadata"] = json!({ "name": "stray", "namespace": "strait-system" });
    served.hub.store().apply(stray).expect("applied");
    let root = || {
        let files = AuthorityPem::generate(SystemTime::now()).expect("a CA");
        files.root_cert
    };
    let (ours, theirs) = (root(), root());
    publish_roots(&served.hub, &ours);
    publish_roots(&served.remote, &theirs);

    served.remote.enable(Family::Istio);
    for name in ["deny-all", "allow-web"] {
        let metadata = json!({ "namespace": "shop", "name": name });
        let policy = json!({
            "apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
            "metadata": metadata, "spec": {},
        });
        served.remote.store().apply(policy).expect("applied");
    }
    // A conflict with another writer's roots is known only after an attempt to write.
    let started = Instant::now();
    let (code, text) = loop {
        let (code, text) = served.strait(&["check", "--secrets"]).await;
        if text.contains("STR0720") || started.elapsed() > LIMIT {
            break (code, text);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert_eq!(code, 2, "{text}");
    for message in [
        "STR0111",
        "meshConfig/enableTracing",
        "STR0709",
        "STR0720",
        "cluster/prod-eu",
        "mTLS between them fails",
        "secret/strait-system/stray",
        "help: strait help STR0709",
        "STR0840",
        "2 AuthorizationPolicies are defined in this member cluster, without effect",
    ] {
        assert!(text.contains(message), "{message}: {text}");
    }
    assert!(!text.contains("connectTimeout"), "{text}");
    let (_, text) = served.strait(&["check", "mesh"]).await;
    assert!(text.contains("STR0111") && !text.contains("STR0709"), "{text}");

    // Without roots of another writer, Strait's are written into both.
    for cluster in [&served.hub, &served.remote] {
        cluster
            .store()
            .delete("configmaps", "strait-system", "istio-ca-root-cert")
            .expect("deleted");
    }
    served.until(&["check", "--secrets"], &["STR0111", "STR0223"]).await;
    let (code, text) = served.strait(&["check", "trust"]).await;
    assert_eq!((code, &*text), (0, "No problem found.\n\n+   trust\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn overlapping_node_ranges_are_reported_before_two_pods_share_an_address() {
    let served = Served::start("", &[]).await;
    let node = |ranges: &[&str]| {
        json!({
            "apiVersion": "v1", "kind": "Node", "metadata": { "name": "node-1" },
            "spec": { "podCIDR": ranges[0], "podCIDRs": ranges },
        })
    };
    served.hub.store().apply(node(&["10.244.0.0/16"])).expect("applied");
    served.remote.store().apply(node(&["fd00::/64", "10.244.3.0/24"])).expect("applied");
    served.join().await;
    let finding = "same addresses are possible: its nodes and the nodes of config assign pod addresses of 10.244.3.0/24";
    served.until(&["check", "networks"], &["cluster/prod-eu", finding, "STR0414"]).await;
    // The network plug-in may assign addresses from other ranges: this is only a warning.
    let (code, text) = served.strait(&["check", "networks"]).await;
    assert_eq!(code, 0, "{text}");
    served.until(&["cluster", "get", "prod-eu"], &["Same range", finding]).await;

    served.remote.store().apply(node(&["fd00::/64", "10.245.3.0/24"])).expect("applied");
    served.until(&["check", "networks"], &["No problem found.\n\n+   networks"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_joins_a_network_by_two_labels() {
    let served = Served::start("", &[]).await;
    let port = Port { name: "tls", port: 15443, ..HTTP };
    let mut gateway = objects::service("shop", "eastwest", "10.96.0.9", &[port]);
    gateway["status"]["loadBalancer"]["ingress"] = json!([{ "ip": "203.0.113.9" }]);
    served.remote.store().apply(gateway).expect("applied");
    served.join().await;
    let join = ["network", "join", "prod-eu", "--network", "n2", "--gateway", "shop/eastwest"];
    let labelled = || {
        [("Namespace", "", "strait-system"), ("Service", "shop", "eastwest")]
            .map(|(kind, namespace, name)| labels(&served.remote, kind, namespace, name))
            .map(|labels| labels["topology.istio.io/network"] == "n2")
    };

    let (code, text) = served.strait(&[&join[..], &["--dry-run"]].concat()).await;
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("service shop/eastwest: label topology.istio.io/network=n2"), "{text}");
    assert!(text.contains("nothing was changed"), "{text}");
    let (code, text) = served.strait(&[&join[..], &["-o", "yaml"]].concat()).await;
    assert_eq!((code, text.matches("topology.istio.io/network: n2").count()), (0, 2), "{text}");
    assert_eq!(labelled(), [false, false]);

    let (code, text) = served.strait(&[&join[..], &["--yes"]].concat()).await;
    assert_eq!(code, 0, "{text}");
    assert_eq!(labelled(), [true, true]);
    served.until(&["network", "get", "n2"], &["203.0.113.9", "15443", "prod-eu"]).await;
    served.until(&["cluster", "get", "prod-eu"], &["n2"]).await;

    for again in [&join[..5], &join[..7]] {
        let (code, text) = served.strait(again).await;
        assert_eq!(code, 0, "there is nothing to ask: {text}");
        assert!(text.contains("is already in network n2"), "{text}");
    }
    let (_, text) = served.strait(&join[..5]).await;
    assert!(text.contains("has the gateway service shop/eastwest"), "{text}");

    let (code, text) = served.strait(&[&join[..6], &["shop/nothing"]].concat()).await;
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("has no service shop/nothing"), "{text}");

    // An unusable gateway is an error, and so are labels that a Secret overrides.
    let bare = objects::service("shop", "web", "10.96.0.8", &[HTTP]);
    served.remote.store().apply(bare).expect("applied");
    let (code, text) = served.strait(&[&join[..6], &["shop/web", "--yes"]].concat()).await;
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("can't be used: it has no port 15443"), "{text}");
    let mut secret = served.remote.member_secret("strait-system");
    secret["metadata"]["annotations"] = json!({ "strait.dev/network": "n2" });
    served.hub.store().apply(secret).expect("applied");
    let other = ["network", "join", "prod-eu", "--network", "n9", "--yes"];
    let (code, text) = served.strait(&other).await;
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("fixes network n2 for cluster prod-eu"), "{text}");
    assert_eq!(labelled(), [true, true], "nothing was changed");
    // The config cluster cannot be added as a member of itself.
    let file = served.path("hub");
    std::fs::write(&file, served.hub.kubeconfig()).expect("written");
    let (file, url) = (file.display().to_string(), served.hub.url());
    let import = ["cluster", "import", &file, "--name", "copy", "--api-server", &url, "--yes"];
    let (code, text) = served.strait(&import).await;
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("STR0220") && text.contains("the config cluster itself"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rotate_waits_until_the_new_token_is_in_use() {
    let served = Served::start("", &[]).await;
    let url = served.remote.url();
    let add = ["cluster", "add", "prod-eu", "--api-server", &url, "--yes", "--token-ttl", "20m"];
    let (code, text) = served.strait(&add).await;
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("Cluster prod-eu is live"), "{text}");
    let expires = async || {
        let (_, text) = served.strait(&["cluster", "get", "prod-eu", "-o", "json"]).await;
        let row: Value = serde_json::from_str(&text).expect("JSON");
        row["credential"]["expires"].as_str().expect("a time").to_owned()
    };
    let first = expires().await;
    let (code, text) = served.strait(&["cluster", "rotate", "prod-eu", "--yes"]).await;
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("synced with the new token"), "{text}");
    assert_ne!(expires().await, first, "the new token is in use");

    // A token of the same account replaces the old one without a list, so a kind that may not be
    // listed meanwhile does not matter.
    let role = json!({ "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": { "name": "strait-reader", "namespace": "strait-reader" } });
    served.remote.store().apply(role).expect("applied");
    served.remote.fault(Fault::Forbidden { resource: "endpointslices".into() });
    let started = Instant::now();
    let (code, text) = served.strait(&["cluster", "rotate", "prod-eu", "--yes"]).await;
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("synced with the new token"), "{text}");
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());

    let (code, text) = served.strait(&["cluster", "pause", "prod-eu", "--yes"]).await;
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("cluster prod-eu is paused"), "{text}");
    let remove = ["cluster", "remove", "prod-eu", "--yes", "--no-wait"];
    assert_eq!(served.strait(&remove).await.0, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_that_change_a_cluster_finish_when_their_output_is_closed() {
    let served = Served::start("", &[]).await;
    let url = served.remote.url();
    let add = ["cluster", "add", "prod-eu", "--api-server", &url, "--yes", "--token-ttl", "20m"];
    assert_eq!(served.unread(&add).await, Some(0));
    let (code, text) = served.strait(&["cluster", "get", "prod-eu"]).await;
    assert!(code == 0 && text.contains("live"), "{text}");
    for change in ["pause", "resume", "rotate"] {
        let ended = served.unread(&["cluster", change, "prod-eu", "--yes"]).await;
        assert_eq!(ended, Some(0), "{change}");
    }
    let remove = ["cluster", "remove", "prod-eu", "--yes", "--no-wait"];
    assert_eq!(served.unread(&remove).await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_added_with_namespaces_is_read_in_these_only() {
    let served = Served::start("", &[]).await;
    let url = served.remote.url();
    let add = |namespaces: &'static str| {
        let add = ["cluster", "add", "prod-eu", "--api-server", &url, "--yes"];
        [&add[..], &["--namespaces", namespaces]].concat()
    };
    let (code, text) = served.strait(&add("shop,edge")).await;
    assert!(code != 0 && text.contains("prod-eu has no namespace edge; nothing"), "{text}");
    let (code, text) = served.strait(&[&add("shop")[..], &["--roots"]].concat()).await;
    assert!(code != 0 && text.contains("--roots"), "{text}");
    served.remote.store().apply(objects::namespace("edge")).expect("applied");
    let (code, text) = served.strait(&add("shop, edge")).await;
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("role strait-namespace-reader in each namespace"), "{text}");
    served.until(&["cluster", "get", "prod-eu"], &["Namespaces read", "edge, shop"]).await;
    let secret = served.hub.store().get("Secret", "strait-system", "strait-cluster-prod-eu");
    let annotations = secret.expect("it exists").value()["metadata"]["annotations"].clone();
    assert_eq!(annotations["strait.dev/read-namespaces"], "edge,shop");
    let has_role = |namespace: &str| {
        let role = served.remote.store().get("Role", namespace, "strait-namespace-reader");
        role.is_some()
    };
    assert!(has_role("shop") && has_role("edge"));
    let watched = |path: &str| !served.remote.requests(|one| one.path == path).is_empty();
    assert!(watched("/api/v1/namespaces/edge/pods"), "the control plane reads it");
    assert!(!watched("/api/v1/pods"), "the control plane reads no other namespace");
    let remove = ["cluster", "remove", "prod-eu", "--purge", "prod-eu", "--yes", "--no-wait"];
    let (code, text) = served.strait(&remove).await;
    assert_eq!(code, 0, "{text}");
    assert!(!has_role("shop") && !has_role("edge"));
}

#[tokio::test(flavor = "multi_thread")]
async fn reader_has_the_rights_of_its_level_and_loses_none_without_a_line_in_the_plan() {
    let served = Served::start("", &["--mcs", "exports"]).await;
    served.remote.fault(Fault::Forbidden { resource: "serviceexports".into() });
    let url = served.remote.url();
    let add = async |flags: &[&str]| {
        let add = ["cluster", "add", "prod-eu", "--api-server", &url];
        served.strait(&[&add[..], flags].concat()).await
    };
    let role = || {
        let role = served.remote.store().get("ClusterRole", "", "strait-reader");
        role.expect("a role").value()["rules"].to_string()
    };
    for (flags, message) in [
        (&["--level", "4"][..], "--level"),
        (&["--level", "1", "--rbac", "core"], "--rbac"),
        (&["--level", "2", "--mcs-imports"], "--level 3"),
        (&["--rbac", "full", "--mcs-imports"], "--level 3"),
    ] {
        let (code, text) = add(flags).await;
        assert!(code == 64 && text.contains(message), "{flags:?}: {text}");
    }
    let (code, text) = add(&["--yes"]).await;
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("(level 2)") && text.contains("--level 3"), "{text}");
    let granted = role();
    assert!(granted.contains("\"nodes\"") && granted.contains("\"pods\""), "{granted}");
    assert!(!granted.contains("serviceexports") && !granted.contains("tokenreviews"), "{granted}");
    served.until(&["cluster", "get", "prod-eu"], &["list serviceexports"]).await;
    let (code, text) = served.strait(&["check", "clusters", "-o", "json"]).await;
    assert!(code == 0 && text.contains("STR0309"), "a missing kind is no problem: {text}");
    let next = "strait cluster add CONTEXT --name prod-eu --level 3";
    assert!(text.contains(next), "{text}");

    // The same command for the existing member changes its rights only.
    let secret = || {
        let secret = served.hub.store().get("Secret", "strait-system", "strait-cluster-prod-eu");
        secret.expect("a Secret").value()
    };
    let before = secret();
    let (code, text) = add(&["--level", "3", "--tokens", "--yes"]).await;
    assert!(code == 0 && text.contains("which is already a member (level 3)"), "{text}");
    assert!(!text.contains("Will remove"), "{text}");
    let granted = role();
    assert!(granted.contains("serviceexports") && granted.contains("tokenreviews"), "{granted}");
    assert_eq!(secret(), before);
    let (code, text) = add(&["--level", "1", "--dry-run"]).await;
    assert_eq!(code, 0, "{text}");
    for line in [
        "Will remove these rights from prod-eu",
        "! clusterrole strait-reader: create tokenreviews.authentication.k8s.io; get ",
        "serviceexports.multicluster.x-k8s.io",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert_eq!(role(), granted, "nothing was changed");
    let (code, text) = add(&["--mcs-imports=full", "--dry-run"]).await;
    assert!(code == 0 && text.contains("(level 3)"), "{text}");
    let (code, text) = add(&["--namespaces", "shop", "--yes"]).await;
    assert!(code == 1 && text.contains("is not limited to namespaces"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn dry_run_of_cluster_add_reports_problems_and_changes_nothing() {
    let served = Served::start("", &[]).await;
    let service = |name: &str, port: u16| {
        objects::service("shop", name, "10.96.0.7", &[Port { port, ..HTTP }])
    };
    for name in ["cart", "web"] {
        served.hub.store().apply(service(name, 80)).expect("applied");
    }
    served.remote.store().apply(service("cart", 81)).expect("applied");
    served.remote.store().apply(service("web", 80)).expect("applied");
    publish_roots(&served.hub, "ours");
    publish_roots(&served.remote, "theirs");
    served.until(&["service", "list"], &["cart.shop", "web.shop"]).await;

    let url = served.remote.url();
    let add = ["cluster", "add", "prod-eu", "--network", "n2", "--api-server", &url, "--dry-run"];
    let (code, text) = served.strait(&add).await;
    assert_eq!(code, 2, "it finds problems: {text}");
    for line in [
        "2 services with 0 ready endpoints would be added, in network n2",
        "2 of them would be merged with services of the mesh: cart.shop, web.shop",
        "1 would get more ports: cart.shop (81)",
        "! 1 lack ports in this cluster, and would serve them on ports of the same name, if any: cart.shop (80)",
        "! its workloads trust different root certificates than the config cluster's",
        "STR0401",
        "nothing was changed",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let secrets = served.hub.store().all("Secret");
    let made = secrets.iter().any(|secret| secret.value().to_string().contains("multiCluster"));
    assert!(!made, "a Secret was created");
    // The confirmation prompt shows the same text.
    let (_, confirmation) = served.strait(&add[..add.len() - 1]).await;
    let changes = |text: &str| {
        let lines = text.lines().skip_while(|line| *line != "What would change");
        lines
            .take_while(|line| !line.starts_with(char::is_alphabetic) || line.starts_with("What"))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(changes(&confirmation), changes(&text), "{confirmation}");
    assert!(changes(&confirmation).len() > 5, "{confirmation}");
    assert!(served.remote.store().get("Namespace", "", "strait-reader").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn services_are_exported_automatically_unless_excluded() {
    let served = Served::start("", &["--mcs", "exports", "--mcs-auto-export"]).await;
    for cluster in [&served.hub, &served.remote] {
        for (namespace, name) in [("shop", "cart"), ("kube-system", "dns")] {
            let service = objects::service(namespace, name, "10.96.0.7", &[HTTP]);
            cluster.store().apply(service).expect("applied");
        }
    }
    served.join().await;
    let ready = |cluster: &SimCluster| {
        let export = cluster.store().get("ServiceExport", "shop", "cart")?.value();
        let conditions = export["status"]["conditions"].as_array()?.clone();
        conditions.into_iter().find(|one| one["type"] == "Ready" && one["status"] == "True")
    };
    let started = Instant::now();
    while ready(&served.hub).is_none() || ready(&served.remote).is_none() {
        assert!(started.elapsed() < LIMIT, "not exported");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for cluster in [&served.hub, &served.remote] {
        assert!(cluster.store().get("ServiceExport", "kube-system", "dns").is_none());
        assert!(
            cluster.request_count("create", "serviceexports") <= 2,
            "the export is created repeatedly"
        );
    }
}

/// A process that ends with this value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs `strait cluster invite` until the control plane has published its roots. Returns the values for the chart.
async fn invite(served: &Served, hub: &str) -> Value {
    let started = Instant::now();
    loop {
        let mut command = served.command(&["cluster", "invite", "prod-eu", "--hub", hub]);
        let run = tokio::task::spawn_blocking(move || command.output());
        let output = run.await.expect("it ran").expect("it ran");
        if output.status.success() {
            let values = String::from_utf8(output.stdout).expect("UTF-8");
            let values: Value = serde_saphyr::from_str(&values).expect("YAML");
            return values["relay"].clone();
        }
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(started.elapsed() < LIMIT, "{text}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn invited_cluster_is_read_through_its_relay_and_keeps_it_when_certificates_are_rotated() {
    let served = Served::start("", &[]).await;
    let port = served.xds.rsplit_once(':').expect("a port").1;
    let hub = format!("localhost:{port}");
    // No control plane with a CA publishes roots in this namespace.
    let without_ca = ["cluster", "invite", "prod-eu", "--hub", &hub, "--namespace", "shop"];
    let (code, refusal) = served.strait(&without_ca).await;
    assert_eq!(code, 1, "{refusal}");
    for part in ["STR0348", "--ca-dir", "--relay-ca-dir", "--hub-roots"] {
        assert!(refusal.contains(part), "{part}: {refusal}");
    }
    let write = |name: &str, value: &Value| {
        let text = value.as_str().expect("text");
        std::fs::write(served.path(name), text).expect("written");
    };
    let values = invite(&served, &hub).await;
    assert_eq!((&values["enabled"], &values["hubs"]), (&json!(true), &json!([hub])));
    write("roots", &values["roots"]);
    write("invitation", &values["invitation"]);
    write("remote", &json!(served.remote.kubeconfig()));
    let path = |name: &str| served.path(name).display().to_string();
    let [roots, invitation, remote, state] = ["roots", "invitation", "remote", "relay"].map(path);
    let mut command = served.command(&["relay", "--cluster", "prod-eu", "--hub", &hub]);
    command.args(["--hub-roots", &roots, "--invitation-file", &invitation]);
    command.args(["--kubeconfig", &remote, "--state-dir", &state]).stderr(Stdio::null());
    let _relay = Running(command.spawn().expect("it starts"));
    let get = ["cluster", "get", "prod-eu"];
    served.until(&get, &["live", "relay"]).await;

    let certificate = || std::fs::read_to_string(served.path("relay/cert-chain.pem"));
    let renewed = async |before: String| {
        let started = Instant::now();
        while certificate().expect("stored") == before {
            assert!(started.elapsed() < LIMIT, "the certificate is not renewed");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        served.until(&get, &["live", "relay"]).await;
    };
    let annotations = || {
        let secret = served.hub.store().get("Secret", "strait-system", "strait-cluster-prod-eu");
        secret.expect("it exists").value()["metadata"]["annotations"].clone()
    };
    let generation = || {
        let text = annotations()["strait.dev/relay-generation"].clone();
        text.as_str().and_then(|text| text.parse::<u64>().ok()).expect("a number")
    };
    let (first, before) = (generation(), certificate().expect("stored"));
    let (code, text) = served.strait(&["cluster", "rotate", "prod-eu", "prod-eu", "--yes"]).await;
    assert!(code == 64 && text.contains("takes no context"), "{code}: {text}");
    let (code, text) = served.strait(&["cluster", "rotate", "prod-eu", "--yes"]).await;
    let raised = format!("from {first} to {}", first + 1);
    assert!(code == 0 && text.contains(&raised), "{code}: {text}");
    renewed(before).await;

    // A stolen certificate is refused at once. The relay enrols again by another invitation.
    let before = certificate().expect("stored");
    write("invitation", &invite(&served, &hub).await["invitation"]);
    let (code, text) = served.strait(&["cluster", "rotate", "prod-eu", "--now", "--yes"]).await;
    let raised = format!("from {} to {}", first + 1, first + 2);
    assert!(code == 0 && text.contains(&raised), "{code}: {text}");
    renewed(before).await;
    assert_eq!(generation(), first + 2);
    assert!(annotations()["strait.dev/relay-generation-from"].is_null(), "{}", annotations());

    // A removed cluster that is invited again does not accept earlier certificates.
    let (code, text) = served.strait(&["cluster", "remove", "prod-eu", "--yes"]).await;
    assert_eq!(code, 0, "{text}");
    invite(&served, &hub).await;
    assert!(generation() > first + 2, "{}", annotations());
}

#[tokio::test(flavor = "multi_thread")]
async fn rotation_at_once_is_for_members_with_a_relay() {
    let served = Served::start("", &[]).await;
    served.join().await;
    let (code, text) = served.strait(&["cluster", "rotate", "prod-eu", "--now", "--yes"]).await;
    let is_named = text.contains("prod-eu is not a member with a relay");
    assert!(code == 64 && is_named, "{code}: {text}");
    let (code, text) = served.strait(&["cluster", "rotate", "nope", "--now", "--yes"]).await;
    assert!(code == 64 && text.contains("strait cluster list"), "{code}: {text}");
}
