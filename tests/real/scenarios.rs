//! Properties of the complete mesh. Each scenario restores the world.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value, json};

use crate::certs::{Authority, Files, TRUST_DOMAIN};
use crate::envoy::Envoy;
use crate::helper::{Answers, Caller, HTTP_PORT, Load};
use crate::kube::{endpoint_slice, service};
use crate::netns::Netns;
use crate::process::Process;
use crate::rig_check::run_load;
use crate::wait;
use crate::world::{ECHO_PODS, ECHO_VIP, GRACE, IMPOSTER_VIP, SOLO_POD, SOLO_VIP, World, vip};

/// The tolerance of a percentage, in percentage points.
const TOLERANCE: f64 = 5.0;
/// The time limit of a change from an API server to an Envoy.
pub(crate) const PROPAGATION: Duration = Duration::from_secs(20);

const ECHO_HOST: &str = "echo.shop.svc.cluster.local";

pub(crate) fn configuration(world: &mut World) {
    assert_eq!(world.complaints(), Vec::<String>::new());
    let clients = ["a/client", "a/client-sotw"].map(|key| active_clusters(world.envoy(key)));
    let wanted = format!("outbound|80||{ECHO_HOST}");
    for names in clients {
        assert!(names.contains_key(&wanted), "no {wanted} among {:?}", names.keys());
    }
}

pub(crate) fn tcp_shares(world: &mut World) {
    let answers = world.run_load(&tcp(1000));
    assert_eq!(answers.failures, BTreeMap::new());
    for pod in echo_pods() {
        assert_share(&answers, &pod, 100.0 / echo_pods().len() as f64);
    }
}

pub(crate) fn http_shares(world: &mut World) {
    assert_http_shares(&world.run_load(&http(1000)));
}

fn assert_http_shares(answers: &Answers) {
    assert_eq!(answers.failures, BTreeMap::new());
    for (cluster, pods) in ECHO_PODS {
        let share = 100.0 * pods.len() as f64 / echo_pods().len() as f64;
        assert_share(answers, &format!("{cluster}/"), share);
    }
    for pod in echo_pods() {
        assert!(answers.by.contains_key(&pod), "{pod} was never reached: {:?}", answers.by);
    }
}

/// A gateway distributes connections: a client with a persistent connection must not reach only one
/// pod of the other network.
pub(crate) fn few_connections(world: &mut World) {
    for connections in [1, 3] {
        assert_http_shares(&world.run_load(&http(1000).over(connections)));
    }
}

/// The redirection of a pod lets its sidecar reach the pod itself.
pub(crate) fn own_service(world: &mut World) {
    let host = "solo.shop.svc.cluster.local";
    for load in [
        Load::http(&format!("{SOLO_VIP}:80"), host, 20),
        Load::tcp(&format!("{SOLO_VIP}:9000"), 20),
    ] {
        let answers = run_load(world.pod(&format!("a/{}", SOLO_POD.0)), &load);
        assert_eq!(answers.failures, BTreeMap::new());
        assert_eq!(answers.by.keys().collect::<Vec<_>>(), ["a/solo-1"]);
    }
}

pub(crate) fn client_identity(world: &mut World) {
    let answers = world.run_load(&http(200));
    let remote = answers.samples.iter().find(|(pod, _)| pod.starts_with("b/"));
    let (pod, sample) = remote.unwrap_or_else(|| panic!("no pod in b responded: {:?}", answers.by));
    let identity = sample["headers"]["x-forwarded-client-cert"].as_str().unwrap_or_default();
    let wanted = format!("URI={}", spiffe("client"));
    assert!(identity.contains(&wanted), "{pod} saw {identity:?}, not {wanted}");
}

pub(crate) fn delta_equals_sotw(world: &mut World) {
    let resources = |key: &str, ip: &str| comparable(world.envoy(key), ip);
    let (delta, sotw) =
        (resources("a/client", "10.10.0.10"), resources("a/client-sotw", "10.10.0.11"));
    assert!(
        delta.keys().any(|name| name.contains(ECHO_HOST)),
        "nothing to compare: {:?}",
        delta.keys()
    );
    for (name, resource) in &delta {
        assert_eq!(sotw.get(name), Some(resource), "{name} differs");
    }
    let only_sotw: Vec<_> = sotw.keys().filter(|name| !delta.contains_key(*name)).collect();
    assert!(only_sotw.is_empty(), "only SotW has {only_sotw:?}");
}

pub(crate) fn contradicting_node(world: &mut World) {
    let files = world.ca.workload("shop", "client");
    let honest = node("a", "shop", "client");
    assert_eq!(world.call(&world.ads(&files, honest)).err(), None, "an honest node is accepted");
    let lies = [
        ("service account", node("a", "shop", "echo")),
        ("namespace", node("a", "bank", "client")),
        ("unknown cluster", node("nowhere", "shop", "client")),
    ];
    for (lie, node) in lies {
        let refused =
            world.call(&world.ads(&files, node)).err().unwrap_or_else(|| panic!("{lie}: accepted"));
        assert!(refused.starts_with("PermissionDenied"), "{lie}: {refused}");
    }
}

pub(crate) fn foreign_ca(world: &mut World) {
    let foreign = Authority::create(&world.folder.join("foreign-ca"), "somebody else")
        .workload("shop", "client");
    let ours = world.ca.workload("shop", "client");

    // The control plane.
    let refused = world.call(&world.ads(&foreign, node("a", "shop", "client"))).err();
    assert!(
        refused.as_ref().is_some_and(|reason| !reason.starts_with("no answer")),
        "ADS: {refused:?}"
    );

    // A sidecar, from a pod without one. The same call with a certificate of the mesh succeeds.
    let stranger = world.topology.stranger("a", "stranger", "10.10.0.99");
    let dial = |files: &Files| Caller {
        address: "10.10.1.1:9000".into(),
        server_name: format!("outbound_.9000_._.{ECHO_HOST}"),
        alpn: "istio".into(),
        certificate: files.certificate.clone(),
        key: files.key.clone(),
        node: None,
    };
    let answer = call(&stranger, &dial(&ours))
        .unwrap_or_else(|fact| panic!("a client of our own CA: {fact}"));
    assert!(answer.to_string().contains("echo-1"), "{answer}");
    let refused = call(&stranger, &dial(&foreign)).err();
    assert!(
        refused.as_ref().is_some_and(|reason| reason.contains("alert")),
        "sidecar: {refused:?}"
    );
}

pub(crate) fn wrong_server(world: &mut World) {
    let load = Load::http(&format!("{IMPOSTER_VIP}:80"), "imposter.shop.svc.cluster.local", 10);
    let answers = world.run_load(&load);
    assert!(answers.by.is_empty(), "the imposter answered: {answers:?}");
    assert!(
        answers.failures.keys().all(|reason| reason.starts_with("503")),
        "{:?}",
        answers.failures
    );
    let caught: u64 = world.envoy("a/client").stats("imposter.*fail_verify_san").values().sum();
    assert!(caught > 0, "Envoy counts no failed check of the server's identity");
}

pub(crate) fn not_ready(world: &mut World) {
    let change = SystemTime::now();
    world.set_ready("b", "echo-2", false);
    wait::until(PROPAGATION, "b/echo-2 gets no connection", || {
        let answers = world.run_load(&Load::tcp(&format!("{ECHO_VIP}:9000"), 60));
        if answers.by.contains_key("b/echo-2") { Err(format!("{:?}", answers.by)) } else { Ok(()) }
    });
    // Its weight is removed as well: b's gateway now has one endpoint of four.
    let answers = world.run_load(&http(600));
    assert_eq!(answers.failures, BTreeMap::new());
    assert_share(&answers, "b/", 25.0);
    // Both changes must be on disk before the next scenario kills Strait, which restarts from
    // there.
    world.strait.wait_until_remembered("b", change);
    let change = SystemTime::now();
    world.set_ready("b", "echo-2", true);
    world.wait_for_everyone();
    world.strait.wait_until_remembered("b", change);
}

pub(crate) fn restart(world: &mut World) {
    let keys = ["a/client", "a/client-sotw", "a/eastwest-1", "b/eastwest-1"];
    let before = keys.map(|key| settled(world.envoy(key)));
    let load = world.background(&http(1), 12);
    world.strait.kill();
    world.strait.launch();
    world.strait.wait_until_ready();
    wait::until(Duration::from_secs(60), "all Envoys are connected again", || {
        let proxies = world.strait.try_json("/debug/proxies")?;
        let connected = proxies.as_array().map_or(0, Vec::len);
        let wanted = world.dynamic_envoys();
        if connected >= wanted { Ok(()) } else { Err(format!("{connected} of {wanted}")) }
    });
    let after = keys.map(|key| settled(world.envoy(key)));
    let answers = finish(load);
    assert_eq!(answers.failures, BTreeMap::new());
    for ((key, before), after) in keys.iter().zip(before).zip(after) {
        assert_eq!(before, after, "{key} before and after");
    }
    assert_eq!(world.complaints(), Vec::<String>::new());
}

pub(crate) fn dark_cluster(world: &mut World) {
    let seconds = if std::env::var_os("STRAIT_REAL_FULL").is_some() { 60 } else { 15 };
    let load = world.background(&http(1), seconds);
    world.apiserver("b").stop();
    let answers = finish(load);
    assert_eq!(answers.failures, BTreeMap::new());
    assert!(answers.requests > 100, "{answers:?}");
    // At the end of the outage, all pods still respond, and Strait reports the reason.
    let late = world.run_load(&http(200));
    for pod in echo_pods() {
        assert!(late.by.contains_key(&pod), "{pod} is gone: {:?}", late.by);
    }
    world.strait.wait_for_cluster_state("b", &["stale"], Duration::from_secs(60));
    world.apiserver("b").launch();
    world.apiserver("b").wait_until_ready();
    world.strait.wait_for_cluster_state("b", &["live"], Duration::from_secs(60));
    world.wait_for_everyone();
}

pub(crate) fn removed_cluster(world: &mut World) {
    let rounds = if std::env::var_os("STRAIT_REAL_FULL").is_some() { 10 } else { 1 };
    (0..rounds).for_each(|_| remove_and_add(world));
}

fn remove_and_add(world: &mut World) {
    let load = world.background(&http(1), 2 * GRACE.as_secs());
    world.remove_member();
    world.strait.wait_for_cluster_state("b", &["draining"], PROPAGATION);
    // During the grace period nothing changes.
    let answers = world.run_load(&http(100));
    assert!(
        answers.by.keys().any(|pod| pod.starts_with("b/")),
        "withdrawn too early: {:?}",
        answers.by
    );
    wait::until(GRACE + PROPAGATION, "no pod in b receives a request", || {
        let answers = world.run_load(&http(60));
        if answers.by.keys().any(|pod| pod.starts_with("b/")) {
            Err(format!("{:?}", answers.by))
        } else {
            Ok(())
        }
    });
    let answers = finish(load);
    assert_eq!(world.complaints(), Vec::<String>::new());
    assert_eq!(answers.failures, BTreeMap::new());
    assert!(answers.requests > 100, "{answers:?}");
    // b's own proxies keep their configuration, because no newer state of b is known.
    let inbound = format!("inbound|{HTTP_PORT}||");
    let clusters = active_clusters(world.envoy("b/echo-1"));
    assert!(clusters.contains_key(&inbound), "no {inbound} among {:?}", clusters.keys());
    let endpoints = world.strait.json(&format!("/debug/endpoints?hostname={ECHO_HOST}"));
    assert!(
        endpoints.as_array().is_some_and(|all| all.iter().all(|one| one["cluster"] == "a")),
        "{endpoints}"
    );

    world.add_member();
    world.strait.wait_for_cluster_state("b", &["live"], PROPAGATION);
    world.wait_for_everyone();
}

pub(crate) fn no_complaints(world: &mut World) {
    assert_eq!(world.complaints(), Vec::<String>::new());
}

impl World {
    /// Writes the slice of the echo service in `cluster` as its controller would after `pod`
    /// changes.
    pub(crate) fn set_ready(&self, cluster: &str, pod: &str, ready: bool) {
        let pods =
            ECHO_PODS.iter().find(|(name, _)| *name == cluster).expect("a cluster of ours").1;
        let endpoints: Vec<_> = pods
            .iter()
            .map(|(name, ip)| ((*name).to_owned(), (*ip).to_owned(), ready || *name != pod))
            .collect();
        let service = service("shop", "echo", &vip(cluster, 10), &crate::world::PORTS);
        self.apiservers[cluster].apply(&[endpoint_slice(&service, &endpoints)]);
    }

    /// Waits until every endpoint of the echo service receives requests again.
    pub(crate) fn wait_for_everyone(&self) {
        wait::until(PROPAGATION, "all pods respond", || {
            let answers = self.run_load(&tcp(100));
            let missing: Vec<_> =
                echo_pods().into_iter().filter(|pod| !answers.by.contains_key(pod)).collect();
            if missing.is_empty() {
                Ok(())
            } else {
                Err(format!("{missing:?} missing in {answers:?}"))
            }
        });
    }

    /// Returns an ADS call from the client's pod, with any certificate and claim.
    pub(crate) fn ads(
        &self,
        files: &Files,
        (id, metadata): (String, Map<String, Value>),
    ) -> Caller {
        Caller {
            address: self.strait.xds().to_owned(),
            server_name: "strait.strait-system.svc".into(),
            alpn: "h2".into(),
            certificate: files.certificate.clone(),
            key: files.key.clone(),
            node: Some((id, metadata)),
        }
    }

    pub(crate) fn call(&self, caller: &Caller) -> Result<Value, String> {
        call(&self.topology.hub, caller)
    }

    /// Starts a background load in the client's pod; [`finish`] returns its results.
    pub(crate) fn background(&self, load: &Load, seconds: u64) -> Process {
        load.clone().lasting(seconds).spawn(self.pod("a/client"), &self.folder, "load")
    }
}

pub(crate) fn finish(mut load: Process) -> Answers {
    wait::until(Duration::from_secs(90), "the load ends", || load.ended().ok_or_else(String::new));
    serde_json::from_str(&load.stdout())
        .unwrap_or_else(|error| panic!("{error}; {}", load.log_end()))
}

fn call(netns: &Netns, caller: &Caller) -> Result<Value, String> {
    let outcome = netns.helper(&["tls"], &serde_json::to_string(caller).expect("plain values"));
    match outcome.get("refused").and_then(Value::as_str) {
        Some(reason) => Err(reason.to_owned()),
        None => Ok(outcome["accepted"].clone()),
    }
}

pub(crate) fn http(requests: usize) -> Load {
    Load::http(&format!("{ECHO_VIP}:80"), ECHO_HOST, requests)
}

pub(crate) fn tcp(connections: usize) -> Load {
    Load::tcp(&format!("{ECHO_VIP}:9000"), connections)
}

/// Returns all pods of the echo service, as `cluster/pod`.
pub(crate) fn echo_pods() -> Vec<String> {
    let pods = ECHO_PODS
        .iter()
        .flat_map(|(cluster, pods)| pods.iter().map(move |(pod, _)| format!("{cluster}/{pod}")));
    pods.collect()
}

pub(crate) fn spiffe(service_account: &str) -> String {
    format!("spiffe://{TRUST_DOMAIN}/ns/shop/sa/{service_account}")
}

/// Checks that the percentage of responses by pods whose name begins with `who` is within the
/// tolerance of `wanted`.
fn assert_share(answers: &Answers, who: &str, wanted: f64) {
    let count: usize =
        answers.by.iter().filter(|(pod, _)| pod.starts_with(who)).map(|(_, count)| count).sum();
    let share = 100.0 * count as f64 / answers.requests as f64;
    assert!(
        (share - wanted).abs() <= TOLERANCE,
        "{who} has {share:.1} %, not {wanted:.1} %: {:?}",
        answers.by
    );
}

/// Returns the claims of a sidecar that no registry knows.
pub(crate) fn node(
    cluster: &str,
    namespace: &str,
    service_account: &str,
) -> (String, Map<String, Value>) {
    let metadata = json!({
        "CLUSTER_ID": cluster, "NETWORK": "net-a", "NAMESPACE": namespace,
        "SERVICE_ACCOUNT": service_account, "INSTANCE_IPS": "10.10.0.77",
    });
    let id = format!("sidecar~10.10.0.77~visitor.{namespace}~{namespace}.svc.cluster.local");
    (id, metadata.as_object().cloned().unwrap_or_default())
}

/// Returns the active upstream clusters by name.
fn active_clusters(envoy: &Envoy) -> BTreeMap<String, Value> {
    resources(&envoy.config_dump("?resource=dynamic_active_clusters"), "cluster", "name")
}

/// Returns all resources from the server by kind and name, with the proxy's own address masked.
fn comparable(envoy: &Envoy, ip: &str) -> BTreeMap<String, String> {
    let kinds = [
        ("?resource=dynamic_active_clusters", "/cluster", "name"),
        ("?resource=dynamic_listeners", "/active_state/listener", "name"),
        ("?resource=dynamic_route_configs", "/route_config", "name"),
        ("?resource=dynamic_endpoint_configs&include_eds", "/endpoint_config", "cluster_name"),
    ];
    let mut all = BTreeMap::new();
    for (query, pointer, name) in kinds {
        for (name, resource) in
            resources(&envoy.config_dump(query), pointer.trim_start_matches('/'), name)
        {
            all.insert(format!("{pointer} {name}"), resource.to_string().replace(ip, "SELF"));
        }
    }
    all
}

/// Returns the resources of a dump by their field `name`. `path` is their location in an entry,
/// with parts separated by `/`.
pub(crate) fn resources(dump: &Value, path: &str, name: &str) -> BTreeMap<String, Value> {
    let entries = dump.get("configs").and_then(Value::as_array).into_iter().flatten();
    let resources = entries.filter_map(|entry| entry.pointer(&format!("/{path}")));
    resources.map(|one| (one[name].as_str().unwrap_or_default().to_owned(), one.clone())).collect()
}

/// Returns the counters that a restart of the control plane must not change.
fn settled(envoy: &Envoy) -> BTreeMap<String, u64> {
    let filter = "cluster_added$|cluster_modified$|cluster_removed$|cluster_updated$|listener_added$|\
                  listener_modified$|listener_removed$|membership_total$|update_rejected$|update_success$";
    let mut counters = envoy.stats(filter);
    let delta = envoy.get("/config_dump").contains("DELTA_GRPC");
    counters.retain(|name, _| {
        // Delta reports the known versions, so assignments and routes must not be sent again.
        // Clusters and listeners get an empty response; with SotW everything is sent again.
        !name.ends_with("update_success") || (delta && !name.contains("_manager."))
    });
    assert!(counters.len() > 10, "hardly anything counted: {counters:?}");
    counters
}
