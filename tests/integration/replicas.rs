//! Several control planes with one config cluster: they serve equal bytes, only one writes, and a
//! moving proxy receives no resource that it has.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::cli::envoy;
use super::mesh::{
    Admin, Member, Proxy, SOON, SYSTEM, Server, Setup, endpoints_until, free_port, from_nothing,
    holds, text, wait_until,
};
use strait_sim::objects::namespace;
use strait_sim::{Family, Fault};
use strait_xds::resource::ResourceType;
use strait_xds::session::ProtocolForm;
use strait_xds_client::{ClientContents, Options as ClientOptions, XdsClient};

/// A config cluster, a member on another network, and two control planes.
struct Replicas {
    setup: Setup,
    hub: Member,
    west: Member,
    first: Server,
    second: Server,
}

impl Replicas {
    async fn start() -> Self {
        Self::start_with(Setup::new()).await
    }

    async fn start_with(setup: Setup) -> Self {
        let hub = Member::start("hub", "n1", "198.18.0.1").await;
        hub.api.enable(Family::Istio);
        let west = Member::start("west", "n2", "198.18.0.2").await;
        hub.serve("web", &["10.0.0.1", "10.0.0.2"]);
        west.serve("web", &["10.0.0.1"]);
        west.serve("cart", &["10.0.0.3"]);
        hub.apply(west.secret());
        let setup = setup.with(&["--cluster-id", "hub"]);
        let start = async |state: &str| {
            let server = setup.start_replica(&hub.api, state).await;
            server.cluster_in("west", "live").await;
            server
        };
        let (first, second) = (start("state-1").await, start("state-2").await);
        Self { setup, hub, west, first, second }
    }
}

/// Waits until a proxy has all its resources, and returns them.
async fn settled(server: &Server, client: &XdsClient) -> ClientContents {
    endpoints_until(client, "cart", &[("198.18.0.2:15443", 1)]).await;
    wait_until(SOON, async || {
        let shown = server.admin.json("/debug/proxies").await;
        let types = shown[0]["types"].as_object().cloned().unwrap_or_default();
        let acked = types.values().all(|one| one["sent"] == one["acked"]);
        holds(client.held().is_complete() && acked && !types.is_empty(), &shown)
    })
    .await;
    client.held()
}

#[tokio::test]
async fn replicas_serve_the_same_and_a_moving_proxy_receives_only_changes() {
    let Replicas { setup, hub, west, first, second } = Replicas::start().await;
    let proxy = Proxy::sidecar("hub");
    for form in [ProtocolForm::Delta, ProtocolForm::Sotw] {
        let mut received = Vec::new();
        for server in [&first, &second] {
            let client = server.open(&setup, &proxy, from_nothing(form)).await.expect("let in");
            received.push(settled(server, &client).await);
        }
        for kind in ResourceType::ALL {
            let [from_first, from_second] = [0, 1].map(|at: usize| {
                let names: Vec<_> = received[at].names(kind).map(str::to_owned).collect();
                let bodies: Vec<_> = names
                    .iter()
                    .map(|name| received[at].body(kind, name).map(<[u8]>::to_vec))
                    .collect();
                (
                    names,
                    bodies,
                    received[at].versions(kind),
                    received[at].type_versions.get(&kind).cloned(),
                )
            });
            assert_eq!(from_first, from_second, "{form:?} {kind:?}");
        }
    }

    let client = first.connect(&setup, &proxy).await;
    let before = settled(&first, &client).await;
    drop(client);
    first.shut_down().await;
    let options = ClientOptions { held: before, ..ClientOptions::default() };
    let client = second.open(&setup, &proxy, options).await.expect("let in");
    // One change marks the end: it is the only response.
    west.serve("cart", &["10.0.0.3", "10.0.0.4"]);
    endpoints_until(&client, "cart", &[("198.18.0.2:15443", 2)]).await;
    assert_eq!(client.held().resources, 1, "the proxy had all other resources");
    second.shut_down().await;
    drop(hub);
}

#[tokio::test]
async fn one_replica_writes_each_object_once_and_hands_over_when_it_ends() {
    let Replicas { setup: _setup, hub, west, first, second } = Replicas::start().await;
    let written = async |names: &[&str]| {
        for name in names {
            hub.apply(namespace(name));
            west.apply(namespace(name));
        }
        let there = |member: &Member, name: &str| {
            member.api.store().get("ConfigMap", name, "istio-ca-root-cert").is_some()
        };
        wait_until(SOON, async || {
            let lacking: Vec<_> =
                names.iter().filter(|name| !there(&hub, name) || !there(&west, name)).collect();
            holds(lacking.is_empty(), lacking)
        })
        .await;
    };
    let holder = || {
        let found = hub.api.store().get("Lease", SYSTEM, "strait-writer");
        let lease = found.map(|object| object.value()).unwrap_or_default();
        lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned()
    };
    written(&["one", "two", "three"]).await;
    let before = holder();
    assert!(!before.is_empty());

    let began = Instant::now();
    first.shut_down().await;
    assert_ne!(holder(), before, "the lease is released, not left to expire");
    wait_until(SOON, async || {
        let now = holder();
        holds(!now.is_empty() && now != before, now)
    })
    .await;
    assert!(began.elapsed() < Duration::from_secs(14), "before the Lease would have expired");
    written(&["four", "five", "six"]).await;
    for member in [&hub, &west] {
        let writes = member.api.requests(|request| {
            request.resource == "configmaps"
                && ["create", "update", "patch"].contains(&request.verb)
        });
        let mut paths: Vec<_> = writes.iter().map(|one| (one.verb, one.path.clone())).collect();
        paths.sort();
        let mut once = paths.clone();
        once.dedup();
        assert_eq!(paths, once, "{}", member.id());
        assert!(writes.iter().all(|one| one.verb == "create"), "{paths:?}");
    }
    second.shut_down().await;
}

/// Returns a VirtualService of the config cluster.
fn route(timeout: &str) -> Value {
    json!({
        "apiVersion": "networking.istio.io/v1", "kind": "VirtualService",
        "metadata": { "namespace": "shop", "name": "web" },
        "spec": { "hosts": ["web"], "http": [{ "timeout": timeout, "route": [{ "destination": { "host": "web" } }] }] },
    })
}

/// Waits for a state of the hold that passes, and returns it.
async fn hold_state_until(server: &Server, test: impl Fn(&Value) -> bool) -> Value {
    wait_until(SOON, async || {
        let state = server.admin.json("/debug/hold").await;
        holds(test(&state), &state).map(|()| state)
    })
    .await
}

async fn history(server: &Server, arguments: &[&str]) -> String {
    let output = server.strait(&[&["history"][..], arguments, &["--yes"]].concat()).await;
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text(&output));
    text(&output)
}

#[tokio::test]
async fn hold_applies_to_all_replicas_including_later_ones() {
    let Replicas { setup, hub, west, first, second } = Replicas::start().await;
    hub.apply(namespace("shop"));
    hub.apply(route("1s"));
    let is_in_force = |one: &Value| one["inForce"] == true && one["objects"] == 1;
    for server in [&first, &second] {
        let has_active = |state: &Value| {
            let configurations = state["configurations"].as_array();
            configurations.is_some_and(|configurations| configurations.iter().any(is_in_force))
        };
        hold_state_until(server, has_active).await;
    }
    // One replica receives the hold. A bad change is then waiting in both.
    let printed = history(&first, &["pin", "--by", "alice", "--reason", "5xx since noon"]).await;
    assert!(printed.contains("All replicas hold it."), "{printed}");
    hub.apply(route("9s"));
    let mut observed = Vec::new();
    for server in [&first, &second] {
        let state = hold_state_until(server, |state| state["waiting"]["count"] == 1).await;
        let [id, since, by] =
            ["configuration", "since", "by"].map(|key| state["held"][key].clone());
        observed.push((id, since, by));
    }
    assert_eq!(observed[0], observed[1], "both replicas hold the same configuration");
    // A replica without a disk, and a replica that was down, apply the hold from their first
    // response on.
    second.shut_down().await;
    let start = async |state: &str| setup.start_replica(&hub.api, state).await;
    let [second, third] = [start("state-2").await, start("state-3").await];
    for server in [&second, &third] {
        let state = server.admin.json("/debug/hold").await;
        assert_eq!(state["held"]["configuration"], observed[0].0, "{state}");
    }
    // Any of them may release it. A replica that is down meanwhile learns of the release when it
    // returns.
    second.shut_down().await;
    let printed = history(&third, &["release"]).await;
    assert!(printed.contains("The current objects would take effect again"), "{printed}");
    hold_state_until(&first, |state| state["held"].is_null()).await;
    let second = start("state-2").await;
    hold_state_until(&second, |state| state["held"].is_null()).await;

    // A deleted or damaged Secret releases nothing; an unreadable hold is reported.
    history(&first, &["pin", "--by", "bob"]).await;
    hold_state_until(&third, |state| state["held"]["by"] == "bob").await;
    hub.api.store().delete("Secret", SYSTEM, "strait-hold").expect("it is there");
    wait_until(SOON, async || {
        let there = hub.api.store().get("Secret", SYSTEM, "strait-hold");
        holds(there.is_some(), "the object is not written again")
    })
    .await;
    for server in [&first, &second, &third] {
        hold_state_until(server, |state| state["held"]["by"] == "bob").await;
    }
    for server in [first, second, third] {
        server.shut_down().await;
    }
    drop(west);
}

#[tokio::test]
async fn rollout_stopped_by_one_replica_stops_on_all() {
    let setup = Setup::new();
    let policy = setup.path("policy.yaml");
    let rollout =
        "apiVersion: strait.dev/v1\nkind: Policy\nrollout: { steps: [5%, 100%], every: 1h }\n";
    std::fs::write(&policy, rollout).expect("written");
    let setup = setup.with(&["--policy", &policy.display().to_string()]);
    let Replicas { setup: _setup, hub, west: _west, first, second } =
        Replicas::start_with(setup).await;
    hub.apply(namespace("shop"));
    hub.apply(route("1s"));
    let runs = async |server: &Server, is: bool| {
        wait_until(SOON, async || {
            let state = server.admin.json("/debug/rollout").await;
            holds(state["running"].is_object() == is, &state)
        })
        .await;
    };
    for server in [&first, &second] {
        runs(server, true).await;
    }
    history(&first, &["rollout", "--abort", "--reason", "too slow"]).await;
    for server in [&first, &second] {
        runs(server, false).await;
        // The rolled out change is waiting as well: only the hold shows that it was stopped here.
        let state = hold_state_until(server, |state| state["held"].is_object()).await;
        assert!(
            state["held"]["reason"].as_str().is_some_and(|why| why.contains("too slow")),
            "{state}"
        );
        assert_eq!(state["waiting"]["count"], 1, "{state}");
    }
    for server in [first, second] {
        server.shut_down().await;
    }
}

#[tokio::test]
async fn replica_without_rights_holds_alone_and_reports_it() {
    let Replicas { setup: _setup, hub, west: _west, first, second } = Replicas::start().await;
    hub.api.fault(Fault::ReadOnly);
    let printed = history(&first, &["pin"]).await;
    assert!(
        printed.contains("Other replicas may not hold it: Secret strait-system/strait-hold"),
        "{printed}"
    );
    let checked = first.strait(&["check", "mesh"]).await;
    assert_eq!(checked.status.code(), Some(2), "{}", text(&checked));
    assert!(text(&checked).contains("STR1093"), "{}", text(&checked));
    assert!(second.admin.json("/debug/hold").await["held"].is_null());
    hub.api.heal();
    hold_state_until(&second, |state| !state["held"].is_null()).await;
    hold_state_until(&first, |state| state["replicas"]["state"] == "all").await;
    for server in [first, second] {
        server.shut_down().await;
    }
}

/// An Envoy that ends with the test.
struct RunningEnvoy(Child);

impl Drop for RunningEnvoy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the value of an Envoy counter or gauge.
async fn stat(admin: &Admin, name: &str) -> f64 {
    let (_, text) = admin.get(&format!("/stats?usedonly&filter=^{name}$"), None).await;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    value.and_then(|value| value.trim().parse().ok()).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_envoy_with_both_addresses_moves_and_receives_almost_nothing() {
    let Some(envoy) = envoy() else {
        eprintln!("SKIPPED: no envoy (set STRAIT_ENVOY, or put one on PATH)");
        return;
    };
    let Replicas { setup, hub, west, first, second } = Replicas::start().await;
    for number in 0..40 {
        west.serve(&format!("service-{number}"), &["10.0.0.3"]);
    }
    let at = |name: &str| setup.path(name).display().to_string();
    let (certs, admin_port) = (at("certs"), free_port());
    let strait = |arguments: &[&str]| {
        let output =
            Command::new(env!("CARGO_BIN_EXE_strait")).args(arguments).output().expect("it runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    let ca = at("ca");
    let who = ["--namespace", "shop", "--service-account", "client"];
    strait(&[&["certs", "issue", "--ca-dir", &ca, "--out", &certs][..], &who].concat());
    let port = |server: &Server| format!("localhost:{}", server.bound.xds.port());
    let discovery = format!("{},{}", port(&first), port(&second));
    let (cert, key, roots) =
        (at("certs/cert-chain.pem"), at("certs/key.pem"), at("certs/root-cert.pem"));
    let (bootstrap, admin_address) = (at("envoy.yaml"), format!("127.0.0.1:{admin_port}"));
    let mut line = vec!["proxy", "bootstrap", "--type", "sidecar", "--name", "client"];
    line.extend(["--cluster", "hub", "--ip", "10.99.0.1", "--discovery", &discovery]);
    line.extend(["--cert", &cert, "--key", &key, "--root-ca", &roots, "--file", &bootstrap]);
    line.extend(["--admin-address", &admin_address]);
    strait(&[&line[..], &who].concat());
    let _running = run_envoy(&envoy, &bootstrap, &setup.path("envoy.log"));
    let stats = Admin::new(admin_address.parse().expect("an address"), "");

    let on = async |server: &Server| {
        wait_until(SOON, async || {
            let shown = server.admin.json("/debug/proxies").await;
            let types = shown[0]["types"].as_object().cloned().unwrap_or_default();
            let acked = |kind: &str| {
                types.get(kind).is_some_and(|status: &Value| {
                    status["sent"].is_string() && status["sent"] == status["acked"]
                })
            };
            let all = ["cds", "eds", "lds", "rds"].iter().all(|kind| acked(kind));
            let log = std::fs::read_to_string(setup.path("envoy.log")).unwrap_or_default();
            holds(all, (&shown, log.lines().rev().take(5).collect::<Vec<_>>()))
        })
        .await;
    };
    on(&first).await;
    let clusters = "cluster_manager.active_clusters";
    wait_until(SOON, async || {
        let active = stat(&stats, clusters).await;
        holds(active > 40.0, active)
    })
    .await;
    let received = "cluster.strait.upstream_cx_rx_bytes_total";
    let (bytes, cluster_count) = (stat(&stats, received).await, stat(&stats, clusters).await);
    assert!(bytes > 20_000.0, "a mesh worth the name: {bytes}");
    first.shut_down().await;
    on(&second).await;
    let more = stat(&stats, received).await - bytes;
    assert!(more < 10_000.0, "{more} bytes were sent to a proxy that had everything");
    assert_eq!(stat(&stats, clusters).await, cluster_count);
    for changed in ["cluster_manager.cluster_modified", "listener_manager.listener_modified"] {
        assert_eq!(stat(&stats, changed).await, 0.0, "{changed}");
    }
    second.shut_down().await;
    drop(hub);
}

fn run_envoy(envoy: &Path, bootstrap: &str, log: &Path) -> RunningEnvoy {
    let log = std::fs::File::create(log).expect("a log");
    let mut command = Command::new(envoy);
    command.args(["-c", bootstrap, "--concurrency", "1", "-l", "warning", "--disable-hot-restart"]);
    command.stdout(Stdio::null()).stderr(log);
    RunningEnvoy(command.spawn().expect("it starts"))
}

#[tokio::test]
async fn replicas_use_few_connections_to_the_config_cluster() {
    let Replicas { setup: _setup, hub, west: _west, first, second } = Replicas::start().await;
    let reads = || {
        let reads = hub.api.requests(|one| one.verb == "get" && one.path.ends_with("/strait-hold"));
        reads.len()
    };
    let (connections, before) = (hub.api.connection_count(), reads());
    wait_until(SOON, async || holds(reads() >= before + 8, reads())).await;
    let opened = hub.api.connection_count() - connections;
    // Statuses and events open a few connections too.
    assert!(opened <= 4, "eight reads opened {opened} connections");
    for server in [first, second] {
        server.shut_down().await;
    }
}

/// Starts a replica without a config cluster, which knows the others by `--peers`.
pub(crate) async fn start_peer(setup: &Setup, name: &str, port: u16, peers: &[u16]) -> Server {
    start_ready(setup, peer_arguments(setup, name, port, peers)).await
}

/// Returns the command line of a replica that knows the others by `--peers`.
pub(crate) fn peer_arguments(setup: &Setup, name: &str, port: u16, peers: &[u16]) -> Vec<String> {
    let mut arguments = setup.arguments_on(&setup.path(name));
    let at = arguments.iter().position(|one| one == "--xds-address").expect("it is given");
    arguments[at + 1] = format!("127.0.0.1:{port}");
    arguments.extend(["--replica-name".into(), name.into()]);
    let peers = peers.iter().map(|port| format!("127.0.0.1:{port}"));
    arguments.extend(peers.flat_map(|peer| ["--peers".to_owned(), peer]));
    arguments
}

/// Starts a server with this command line, and waits until it is ready.
pub(crate) async fn start_ready(setup: &Setup, arguments: Vec<String>) -> Server {
    let server = setup.start_as(arguments).await;
    server.ready().await;
    server
}

/// Returns a response with its headers.
async fn whole_response(server: &Server, path: &str) -> String {
    let token = std::fs::read_to_string(&server.bound.token_file).expect("a token");
    let request = format!(
        "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nauthorization: Bearer {}\r\n\r\n",
        token.trim()
    );
    let mut stream = tokio::net::TcpStream::connect(server.bound.admin).await.expect("it listens");
    tokio::io::AsyncWriteExt::write_all(&mut stream, request.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    tokio::io::AsyncReadExt::read_to_string(&mut stream, &mut answer).await.expect("text");
    answer
}

/// Returns the keys of the rows of `/debug/proxies`, without their numbers.
async fn listed_proxies(server: &Server, query: &str) -> Vec<String> {
    let rows = server.admin.json(&format!("/debug/proxies{query}")).await;
    let key = |row: &Value| {
        let key = row["key"].as_str().unwrap_or_default();
        let (name, rest) = key.split_once(".shop-").unwrap_or((key, ""));
        let replica = rest.split_once('/').map(|(_, replica)| replica).unwrap_or_default();
        assert_eq!(row["replica"].as_str().unwrap_or_default(), replica, "{row}");
        format!("{name}/{replica}")
    };
    let mut keys: Vec<_> = rows.as_array().expect("rows").iter().map(key).collect();
    keys.sort();
    keys
}

fn pod(name: &'static str) -> Proxy {
    Proxy { name, ..Proxy::sidecar("east") }
}

#[tokio::test]
async fn replicas_answer_as_one_and_name_the_one_that_is_missing() {
    let east = Member::start("east", "n1", "198.18.0.1").await;
    east.serve("web", &["10.0.0.1"]);
    let setup = Setup::new();
    setup.join(&[&east]);
    let [first_port, second_port] = [free_port(), free_port()];
    // Each replica has the same list, which contains itself.
    let first = start_peer(&setup, "strait-a", first_port, &[first_port, second_port]).await;
    let second = start_peer(&setup, "strait-b", second_port, &[first_port, second_port]).await;
    for server in [&first, &second] {
        server.cluster_in("east", "live").await;
    }
    let listed = first.admin.json("/debug/replicas").await;
    let rows: Vec<_> = listed["replicas"].as_array().expect("rows").iter().collect();
    let shown: Vec<_> = rows.iter().map(|row| (&row["name"], &row["state"])).collect();
    assert_eq!(
        shown,
        [(&json!("strait-a"), &json!("self")), (&json!("strait-b"), &json!("answers"))]
    );
    // A refusal by all replicas is one response, not a missing replica.
    let refused = whole_response(&first, "/debug/config?kind=a&kind=b").await;
    assert!(refused.starts_with("HTTP/1.1 400"), "{refused}");
    assert!(!refused.contains("strait-missing"), "{refused}");
    // The timeline has the names of replicas, not of hosts.
    for name in ["strait-a", "strait-b"] {
        let events = second.admin.json(&format!("/debug/events?replica={name}")).await;
        let causes = events.to_string();
        assert!(causes.contains("ControlPlane") && causes.contains(name), "{name}: {causes}");
    }
    let _here = first.connect(&setup, &pod("cart-7d4b9c-aaaaa")).await;
    let there = second.connect(&setup, &pod("web-5f6c7d-bbbbb")).await;
    for server in [&first, &second] {
        wait_until(SOON, async || {
            let found = listed_proxies(server, "").await;
            let expected = ["cart-7d4b9c-aaaaa/strait-a", "web-5f6c7d-bbbbb/strait-b"];
            holds(found == expected, found)
        })
        .await;
        let summary = server.admin.json("/debug/summary").await;
        assert_eq!(summary["proxies"]["connected"], 2, "{summary}");
        assert!(summary.get("missingReplicas").is_none(), "{summary}");
    }
    assert_eq!(listed_proxies(&first, "?replica=strait-a").await.len(), 1);
    assert_eq!(listed_proxies(&first, "?replica=strait-b").await.len(), 1);
    let (status, refusal) = first.admin.text("/debug/proxies?replica=strait-c").await;
    assert_eq!(status, 404);
    assert!(refusal.contains("the replicas are strait-a, strait-b"), "{refusal}");

    // Each name works at the replica that does not serve the proxy.
    for name in ["web-5f6c7d-bbbbb.shop", "web-5f", "web.shop@east", "deploy/web.shop"] {
        let path = format!("/debug/config_dump?proxy={}", name.replace('/', "%2F"));
        let (status, dump) = first.admin.text(&path).await;
        assert_eq!(status, 200, "{name}: {dump}");
        assert!(dump.contains("outbound|80||web.shop"), "{name}: {dump}");
    }
    let (status, refusal) = first.admin.text("/debug/config_dump?proxy=we.pay").await;
    assert_eq!(status, 404, "{refusal}");
    for (server, arguments) in [
        (&first, vec!["explain", "deploy/web.shop", "web.shop"]),
        (&second, vec!["explain", "cart-7d", "web.shop"]),
        (&first, vec!["proxy", "get", "web-5f"]),
        (&first, vec!["proxy", "config", "web-5f", "cds"]),
        (&second, vec!["explain", "route", "cart-7d", "GET", "http://web.shop"]),
        (&second, vec!["explain", "policy", "cart-7d"]),
    ] {
        let output = server.strait(&arguments).await;
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text(&output));
        assert!(output.stderr.is_empty(), "{arguments:?}: {}", text(&output));
    }

    // A proxy that moves appears once, also while its previous stream is still open.
    let moved = first.connect(&setup, &pod("web-5f6c7d-bbbbb")).await;
    wait_until(SOON, async || {
        let found = listed_proxies(&second, "").await;
        let expected = ["cart-7d4b9c-aaaaa/strait-a", "web-5f6c7d-bbbbb/strait-a"];
        holds(found == expected, found)
    })
    .await;
    drop((there, moved));

    second.shut_down().await;
    let (_, events) = first.admin.text("/debug/summary").await;
    assert!(events.contains("\"missingReplicas\": [\n    \"strait-b\"\n  ]"), "{events}");
    let listed = first.strait(&["proxy", "list", "-o", "name"]).await;
    assert_eq!(listed.status.code(), Some(0), "{}", text(&listed));
    let errors = String::from_utf8_lossy(&listed.stderr).into_owned();
    let expected =
        "STR0811: replica strait-b and the proxies that are connected to it are missing: ";
    assert!(errors.contains(expected) && errors.contains("refused"), "{errors}");
    let status = first.strait(&["status", "-o", "json"]).await;
    let whole: Value = serde_json::from_slice(&status.stdout).expect("JSON");
    assert_eq!(whole["missingReplicas"], json!(["strait-b"]), "{whole}");
    assert!(whole["problems"].to_string().contains("STR0811"), "{whole}");
    let only = first.strait(&["proxy", "list", "--replica", "strait-a"]).await;
    assert_eq!((only.status.code(), only.stderr.is_empty()), (Some(0), true), "{}", text(&only));
    first.shut_down().await;
}

#[tokio::test]
async fn only_replicas_with_the_same_ca_answer_each_other() {
    let (setup, other) = (Setup::new(), Setup::new());
    let [first_port, second_port] = [free_port(), free_port()];
    let first = start_peer(&setup, "strait-a", first_port, &[second_port]).await;
    let stranger = start_peer(&other, "strait-b", second_port, &[first_port]).await;
    for (server, port) in [(&first, second_port), (&stranger, first_port)] {
        let found = server.admin.json("/debug/replicas").await;
        assert_eq!(found["missingReplicas"], json!([format!("127.0.0.1:{port}")]), "{found}");
    }
    // A workload of the mesh has a certificate, but no identity of a replica.
    let tls = setup.certificate("shop", "web");
    let mut config = (*tls).clone();
    config.alpn_protocols = vec![b"strait-replica/1".to_vec()];
    let socket =
        tokio::net::TcpStream::connect(("127.0.0.1", first_port)).await.expect("it listens");
    let name = "localhost".try_into().expect("a name");
    let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
    let exchange = async {
        let mut stream = connector.connect(name, socket).await?;
        tokio::io::AsyncWriteExt::write_all(
            &mut stream,
            b"GET /debug/proxies HTTP/1.1\r\nhost: replica\r\n\r\n",
        )
        .await?;
        let mut answer = Vec::new();
        tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = exchange.await.unwrap_or_default();
    assert!(answer.is_empty(), "{}", String::from_utf8_lossy(&answer));
    first.shut_down().await;
    stranger.shut_down().await;
}

#[tokio::test]
async fn replica_that_starts_without_state_takes_that_of_a_running_one() {
    let east = Member::start("east", "n1", "198.18.0.1").await;
    east.serve("web", &["10.0.0.1", "10.0.0.2"]);
    let setup = Setup::new();
    setup.join(&[&east]);
    let [first_port, second_port] = [free_port(), free_port()];
    let first = start_peer(&setup, "strait-a", first_port, &[second_port]).await;
    let original = first.cluster_until("east", |entry| entry["endpoints"] == 2).await;
    wait_until(SOON, async || {
        let files = std::fs::read_dir(setup.path("strait-a").join("lkg"));
        let names: Vec<_> =
            files.into_iter().flatten().flatten().map(|it| it.file_name()).collect();
        let has = |part: &str| names.iter().any(|name| name.to_string_lossy().contains(part));
        holds(has("members") && has("east"), &names)
    })
    .await;
    east.api.stop().await;
    let second = start_peer(&setup, "strait-b", second_port, &[first_port]).await;
    let entry = second.cluster_in("east", "restored").await;
    let counts = |entry: &Value| (entry["services"].clone(), entry["endpoints"].clone());
    assert_eq!(counts(&entry), counts(&original), "{entry}");
    assert!(entry["lastContact"].is_string(), "{entry}");
    let client = second.connect(&setup, &Proxy::sidecar("east")).await;
    endpoints_until(&client, "web", &[("10.0.0.1:8080", 1), ("10.0.0.2:8080", 1)]).await;
    drop(client);
    second.shut_down().await;
    first.shut_down().await;
}
