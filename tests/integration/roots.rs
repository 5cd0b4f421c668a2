//! The roots that workloads must trust, in the namespaces of members.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use prost::Message as _;
use rustls::ClientConfig;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::mesh::{Member, Proxy, SOON, SYSTEM, Server, Setup, holds, replace, wait_until};
use strait_identity::{Authority, AuthorityPem};
use strait_proto::envoy::envoy::config::core::v3::Node;
use strait_proto::envoy::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use strait_proto::envoy::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use strait_proto::envoy::envoy::service::status::v3::{
    ClientConfig as FollowedConfig, ConfigStatus,
};
use strait_sim::{Family, Fault, SimCluster};
use strait_xds_client::channel;

const USUAL: &str = "istio-ca-root-cert";
const BESIDE: &str = "strait-ca-root-cert";

/// Returns the ConfigMap of the roots in a namespace of a cluster.
fn published(cluster: &SimCluster, namespace: &str, name: &str) -> Option<Value> {
    cluster.store().get("configmaps", namespace, name).map(|object| object.value())
}

fn roots(cluster: &SimCluster, namespace: &str, name: &str) -> String {
    let found = published(cluster, namespace, name).unwrap_or_default();
    found["data"]["root-cert.pem"].as_str().unwrap_or_default().to_owned()
}

async fn until(cluster: &SimCluster, namespace: &str, name: &str, expected: &str) {
    wait_until(SOON, async || {
        let found = roots(cluster, namespace, name);
        holds(found == expected, (namespace, name, found))
    })
    .await;
}

/// Waits until the usual ConfigMap of `shop` contains all these roots.
async fn until_contained(cluster: &SimCluster, expected: &[&str]) {
    wait_until(SOON, async || {
        let found = roots(cluster, "shop", USUAL);
        holds(expected.iter().all(|expected| found.contains(expected)), found)
    })
    .await;
}

/// Returns the records of roots that replicas share.
fn records(cluster: &SimCluster) -> Option<Value> {
    cluster.store().get("Secret", SYSTEM, "strait-ca-roots").map(|object| object.value())
}

fn namespace(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } })
}

fn config_map(namespace: &str, text: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": USUAL, "namespace": namespace, "labels": { "owner": "else" } },
        "data": { "root-cert.pem": text, "other": "kept" },
    })
}

#[tokio::test]
async fn roots_are_written_to_every_namespace_and_restored() {
    let east = Member::start("east", "n1", "198.18.0.1").await;
    for name in ["shop", "kube-system", "kube-public", "kube-node-lease", "edited"] {
        east.apply(namespace(name));
    }
    let mut leaving = namespace("leaving");
    leaving["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    east.apply(leaving);
    east.apply(config_map("edited", "nonsense"));
    let setup = Setup::new();
    setup.join(&[&east]);
    let server = setup.start_ready().await;
    let ours = setup.authority().roots().to_pem();
    for name in ["shop", "kube-system", "edited"] {
        until(&east.api, name, USUAL, &ours).await;
    }
    let edited = published(&east.api, "edited", USUAL).expect("it is there");
    assert_eq!(edited["metadata"]["labels"], json!({ "owner": "else", "istio.io/config": "true" }));
    assert_eq!(edited["data"]["other"], "kept", "other keys of the ConfigMap stay");
    // A new namespace, a namespace with a deleted ConfigMap, and one with an edited ConfigMap.
    east.apply(namespace("new"));
    until(&east.api, "new", USUAL, &ours).await;
    east.api.store().delete("configmaps", "shop", USUAL).expect("deleted");
    until(&east.api, "shop", USUAL, &ours).await;
    east.apply(config_map("new", ""));
    until(&east.api, "new", USUAL, &ours).await;
    for name in ["kube-public", "kube-node-lease", "leaving"] {
        assert_eq!(published(&east.api, name, USUAL), None, "{name}");
    }
    let shown = server
        .cluster_until("east", |row| row["roots"]["current"] == row["roots"]["namespaces"])
        .await;
    assert!(shown["roots"]["namespaces"].as_u64() >= Some(4), "{shown}");
    server.shut_down().await;
}

#[tokio::test]
async fn roots_of_another_writer_stay_and_own_roots_are_replaced() {
    let other = AuthorityPem::generate(SystemTime::now()).expect("a CA");
    let other = Authority::new(&other, "other", SystemTime::now()).expect("a sound CA");
    let foreign = other.roots().to_pem();
    let east = Member::start("east", "n1", "198.18.0.1").await;
    for name in ["shop", "theirs", "both"] {
        east.apply(namespace(name));
    }
    let setup = Setup::new();
    let ours = setup.authority().roots().to_pem();
    east.apply(config_map("theirs", &foreign));
    let both = format!("{foreign}{ours}");
    east.apply(config_map("both", &both));
    setup.join(&[&east]);
    let server = setup.start_ready().await;
    until(&east.api, "shop", USUAL, &ours).await;
    until(&east.api, "theirs", BESIDE, &ours).await;
    let shown = server.cluster_until("east", |row| row["roots"]["beside"] == 1).await;
    assert_eq!(shown["roots"]["foreignFirst"], json!(["theirs"]));
    assert_eq!(roots(&east.api, "theirs", USUAL), foreign);
    assert_eq!(roots(&east.api, "both", USUAL), both, "it contains ours");
    assert_eq!(published(&east.api, "both", BESIDE), None);
    // A root is added: Strait replaces the ConfigMaps that it wrote, under either name.
    let more = AuthorityPem::generate(SystemTime::now()).expect("a CA");
    let more = Authority::new(&more, "more", SystemTime::now()).expect("a sound CA");
    replace(&setup.path("ca/root-cert.pem"), &format!("{ours}{}", more.roots().to_pem()));
    wait_until(SOON, async || {
        let found = [("shop", USUAL), ("theirs", BESIDE)];
        let found = found.map(|(namespace, name)| roots(&east.api, namespace, name));
        let both = found.iter().all(|found| found.matches("BEGIN CERTIFICATE").count() == 2);
        holds(both && found[0] == found[1], found)
    })
    .await;
    assert_eq!(roots(&east.api, "theirs", USUAL), foreign);
    server.shut_down().await;
}

#[tokio::test]
async fn missing_right_is_shown_and_roots_are_written_soon_after_it_is_granted() {
    let east = Member::start("east", "n1", "198.18.0.1").await;
    east.apply(namespace("shop"));
    east.api.fault(Fault::Forbidden { resource: "configmaps".to_owned() });
    let setup = Setup::new();
    setup.join(&[&east]);
    let server = setup.start_ready().await;
    let shown = server.cluster_until("east", |row| row["roots"]["denied"].is_string()).await;
    assert_eq!(shown["state"], "live");
    assert!(shown["reason"].is_null(), "{shown}");
    east.api.heal();
    until(&east.api, "shop", USUAL, &setup.authority().roots().to_pem()).await;
    server.shut_down().await;
}

#[tokio::test]
async fn only_one_of_two_control_planes_writes() {
    let hub = Member::start("hub", "n1", "198.18.0.1").await;
    hub.apply(namespace("shop"));
    let setup = Setup::new();
    let first = setup.start_as(setup.arguments_with(&hub.api)).await;
    first.ready().await;
    until(&hub.api, "shop", USUAL, &setup.authority().roots().to_pem()).await;
    let lease = || {
        let found = hub.api.store().get("leases", SYSTEM, "strait-writer");
        found.map(|object| object.value()).unwrap_or_default()["spec"]["holderIdentity"].clone()
    };
    let holder = lease();
    assert!(holder.is_string());
    // Another server with different roots writes nothing while the first holds the Lease.
    let other = Setup::new().with(&["--accept-new-root"]);
    let second = other.start_as(other.arguments_with(&hub.api)).await;
    second.ready().await;
    let theirs = other.authority().roots().to_pem();
    second.cluster_until("config", |row| row["roots"]["foreign"].is_u64()).await;
    assert!(!roots(&hub.api, "shop", USUAL).contains(&theirs));
    assert_eq!(lease(), holder);
    // After its end, the other takes over within the lifetime of the Lease, and then replaces the
    // roots.
    first.shut_down().await;
    until_contained(&hub.api, &[&theirs]).await;
    assert_ne!(lease(), holder);
    second.shut_down().await;
}

#[tokio::test]
async fn process_without_a_root_that_workloads_have_stays_unready_and_writes_nothing() {
    let hub = Member::start("hub", "n1", "198.18.0.1").await;
    hub.apply(namespace("shop"));
    let setup = Setup::new();
    let old = setup.authority().roots().to_pem();
    let first = setup.start_replica(&hub.api, "state").await;
    until(&hub.api, "shop", USUAL, &old).await;
    wait_until(SOON, async || holds(records(&hub.api).is_some(), "no records")).await;
    first.shut_down().await;
    let recorded = records(&hub.api);
    let changed = Setup::new();
    let fingerprint = |setup: &Setup| {
        let roots = strait_identity::assumed_records(&setup.authority().roots().to_pem());
        roots.keys().next().expect("a root").to_string()
    };
    let refused = changed.start_as(changed.arguments_with(&hub.api)).await;
    let reports = async |server: &Server| {
        wait_until(SOON, async || {
            let (status, text) = server.admin.text("/readyz?verbose").await;
            let parts =
                ["STR0723", &fingerprint(&setup), &fingerprint(&changed), "accept-new-root"];
            holds(status != 200 && parts.iter().all(|part| text.contains(part)), text)
        })
        .await;
    };
    reports(&refused).await;
    // The records are missing, but the roots that Strait wrote into its namespace are there.
    refused.shut_down().await;
    assert_eq!(records(&hub.api), recorded);
    hub.api.store().delete("Secret", SYSTEM, "strait-ca-roots").expect("it is there");
    let refused = changed.start_as(changed.arguments_with(&hub.api)).await;
    reports(&refused).await;
    assert_eq!(roots(&hub.api, "shop", USUAL), old);
    assert_eq!(records(&hub.api), None);
    // The CA's files contain the old root again.
    let new = changed.authority().roots().to_pem();
    replace(&changed.path("ca/root-cert.pem"), &format!("{old}{new}"));
    refused.ready().await;
    until_contained(&hub.api, &[&old, &new]).await;
    refused.shut_down().await;
}

#[tokio::test]
async fn process_accepts_an_approved_new_root_and_keeps_the_previous_one() {
    let hub = Member::start("hub", "n1", "198.18.0.1").await;
    hub.apply(namespace("shop"));
    let setup = Setup::new();
    let old = setup.authority().roots().to_pem();
    let first = setup.start_replica(&hub.api, "state").await;
    until(&hub.api, "shop", USUAL, &old).await;
    wait_until(SOON, async || holds(records(&hub.api).is_some(), "no records")).await;
    first.shut_down().await;
    let changed = Setup::new().with(&["--accept-new-root"]);
    let second = changed.start_as(changed.arguments_with(&hub.api)).await;
    second.ready().await;
    let new = changed.authority().roots().to_pem();
    until_contained(&hub.api, &[&old, &new]).await;
    second.shut_down().await;
}

const CLUSTERS: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
const AGENT_CONFIG: &str = "type.googleapis.com/istio.mesh.v1alpha1.ProxyConfig";
const UNKNOWN: &str = "type.googleapis.com/example.Unknown";

/// The stream of an agent, which sends requests for its proxy and for itself.
struct Agent {
    requests: mpsc::Sender<DiscoveryRequest>,
    responses: tonic::Streaming<DiscoveryResponse>,
}

impl Agent {
    async fn connect(server: &Server, tls: Arc<ClientConfig>) -> Self {
        let node = Some(Proxy::sidecar("east").node());
        let first = DiscoveryRequest { node, type_url: CLUSTERS.into(), ..Default::default() };
        Self::open(server, tls, first).await
    }

    async fn open(server: &Server, tls: Arc<ClientConfig>, first: DiscoveryRequest) -> Self {
        let channel = channel(server.bound.xds, "localhost", tls).await.expect("connected");
        let (requests, receiver) = mpsc::channel(16);
        requests.send(first).await.expect("there is room");
        let mut client = AggregatedDiscoveryServiceClient::new(channel);
        let responses = client.stream_aggregated_resources(ReceiverStream::new(receiver)).await;
        Self { requests, responses: responses.expect("let in").into_inner() }
    }

    async fn request(&self, type_url: &str, response_nonce: &str) {
        let (type_url, response_nonce) = (type_url.to_owned(), response_nonce.to_owned());
        let request = DiscoveryRequest { type_url, response_nonce, ..Default::default() };
        self.requests.send(request).await.expect("the server reads");
    }

    /// Returns the response to istioctl: a stream with no other request and no cluster name.
    async fn istioctl(
        server: &Server,
        tls: Arc<ClientConfig>,
        type_url: &str,
        names: &[&str],
    ) -> DiscoveryResponse {
        let id = "sidecar~1.1.1.1~istioctl.x~x.svc.cluster.local".to_owned();
        let resource_names = names.iter().map(|name| (*name).to_owned()).collect();
        let type_url = type_url.to_owned();
        let node = Some(Node { id, ..Default::default() });
        let first = DiscoveryRequest {
            node,
            type_url: type_url.clone(),
            resource_names,
            ..Default::default()
        };
        Self::open(server, tls, first).await.next(&[&type_url]).await
    }

    /// Returns the next response whose type is in `types`.
    async fn next(&mut self, types: &[&str]) -> DiscoveryResponse {
        loop {
            let next = tokio::time::timeout(SOON, self.responses.message()).await.expect("in time");
            let next = next.expect("no error").expect("the stream continues");
            if types.contains(&&*next.type_url) {
                return next;
            }
        }
    }
}

#[tokio::test]
async fn agent_receives_roots_that_its_certificate_did_not_include() {
    let east = Member::start("east", "n1", "198.18.0.1").await;
    let setup = Setup::new();
    setup.join(&[&east]);
    let older = setup.certificate("shop", "client");
    let server = setup.start_ready().await;
    // For certificates from before the start of the process, the roots are unknown.
    let mut agent = Agent::connect(&server, older).await;
    agent.request(AGENT_CONFIG, "").await;
    let response = agent.next(&[AGENT_CONFIG]).await;
    let ours = setup.authority().roots().to_pem();
    let holds_text = |response: &DiscoveryResponse, pem: &str| {
        let body = &response.resources[0].value;
        assert_eq!(body[..2], [0x92, 2], "field 34, a text");
        String::from_utf8_lossy(body).ends_with(pem)
    };
    assert!(holds_text(&response, &ours));
    agent.request(AGENT_CONFIG, &response.nonce).await;
    // Certificates begin at whole seconds.
    let started = SystemTime::now();
    wait_until(SOON, async || {
        holds(SystemTime::now() > started + Duration::from_secs(1), "the same second")
    })
    .await;
    // A certificate from this process came with all roots, so there is no response.
    let mut younger = Agent::connect(&server, setup.certificate("shop", "client")).await;
    younger.request(AGENT_CONFIG, "").await;
    younger.request(UNKNOWN, "").await;
    let next = younger.next(&[AGENT_CONFIG, UNKNOWN]).await;
    assert_eq!(next.type_url, UNKNOWN, "{next:?}");
    // Both receive an added root.
    let more = AuthorityPem::generate(SystemTime::now()).expect("a CA");
    replace(&setup.path("ca/root-cert.pem"), &format!("{ours}{}", more.root_cert));
    for agent in [&mut agent, &mut younger] {
        let response = agent.next(&[AGENT_CONFIG]).await;
        let text = String::from_utf8_lossy(&response.resources[0].value).into_owned();
        assert_eq!(text.matches("BEGIN CERTIFICATE").count(), 2);
        assert!(text.contains(&*more.root_cert));
    }
    server.shut_down().await;
}

#[tokio::test]
async fn istioctl_receives_the_sync_status_of_the_proxies_it_may_see() {
    let east = Member::start("east", "n1", "198.18.0.1").await;
    east.serve("web", &["10.0.0.1"]);
    let setup = Setup::new();
    setup.join(&[&east]);
    let server = setup.start_ready().await;
    let mut proxy = Agent::connect(&server, setup.certificate("shop", "client")).await;
    let clusters = proxy.next(&[CLUSTERS]).await;
    let syncz = "istio.io/debug/syncz";
    let query = async |namespace: &str, type_url: &str, names: &[&str]| {
        Agent::istioctl(&server, setup.certificate(namespace, "default"), type_url, names).await
    };
    let followed = |answer: &DiscoveryResponse| -> Vec<(String, Vec<i32>)> {
        let read = |body: &[u8]| FollowedConfig::decode(body).expect("the form of CSDS");
        let all = answer.resources.iter().map(|one| read(&one.value));
        let short = |config: FollowedConfig| {
            let states = config.generic_xds_configs.iter().map(|one| one.config_status).collect();
            (config.node.expect("a node").id, states)
        };
        all.map(short).collect()
    };
    let (id, stale, unsent) =
        (Proxy::sidecar("east").id(), ConfigStatus::Stale as i32, ConfigStatus::NotSent as i32);
    let system_view = query(SYSTEM, syncz, &[]).await;
    let statuses = followed(&system_view);
    assert_eq!(statuses.len(), 1, "who only asks is no proxy: {statuses:?}");
    assert_eq!((&statuses[0].0, statuses[0].1[0]), (&id, stale));
    assert!(statuses[0].1[1..].iter().all(|state| *state == unsent), "{statuses:?}");
    let identifier = system_view.control_plane.expect("the response names the replica").identifier;
    let identifier: Value = serde_json::from_str(&identifier).expect("JSON");
    assert_eq!(identifier["Info"]["version"], env!("CARGO_PKG_VERSION"));
    proxy.request(CLUSTERS, &clusters.nonce).await;
    wait_until(SOON, async || {
        let statuses = followed(&query("shop", syncz, &[]).await);
        holds(statuses[0].1[0] == ConfigStatus::Synced as i32, statuses)
    })
    .await;
    assert!(
        followed(&query("elsewhere", syncz, &[]).await).is_empty(),
        "proxies of other namespaces are hidden"
    );
    // The configuration of one proxy, and pages by their paths.
    let name = "client.shop";
    let dump = query("shop", "istio.io/debug/config_dump", &[name]).await;
    assert_eq!(dump.resources[0].type_url, "type.googleapis.com/envoy.admin.v3.ConfigDump");
    let text = String::from_utf8_lossy(&dump.resources[0].value).into_owned();
    assert!(text.contains("outbound|80||web.shop.svc.cluster.local"), "{text}");
    let page =
        query("shop", "istio.io/debug", &["connections", "%zz", "config_dump?proxyID=x"]).await;
    let pages: Vec<Value> = page
        .resources
        .iter()
        .map(|one| serde_json::from_slice(&one.value).expect("JSON"))
        .collect();
    assert_eq!(pages[0][0]["id"], id.as_str());
    assert!(pages[1]["error"].is_string() && pages[2]["error"].is_string(), "{pages:?}");
    let hidden = query("elsewhere", "istio.io/debug/config_dump", &[name]).await;
    assert_eq!(
        hidden.resources[0].type_url, "istio.io/debug",
        "an error, not another's configuration"
    );
    // Members, as `istioctl remote-clusters` lists them: only for operators of the mesh.
    for (namespace, expected) in [
        (
            SYSTEM,
            json!([{ "id": "east", "secretName": "strait-system/east", "syncStatus": "synced" }]),
        ),
        ("shop", json!([])),
    ] {
        let page = query(namespace, "istio.io/debug", &["clusterz"]).await;
        let found: Value = serde_json::from_slice(&page.resources[0].value).expect("JSON");
        let (found, expected) = (found.as_array().expect("a list"), expected);
        let fields = |one: &Value| (one["id"].clone(), one["syncStatus"].clone());
        let wanted = expected.as_array().expect("a list");
        assert_eq!(
            found.iter().map(fields).collect::<Vec<_>>(),
            wanted.iter().map(fields).collect::<Vec<_>>(),
            "{namespace}"
        );
    }
    // Through a proxy's own agent, whose stream continues.
    proxy.request(syncz, "").await;
    assert_eq!(followed(&proxy.next(&[syncz]).await).len(), 1);
    proxy.request("type.googleapis.com/envoy.config.listener.v3.Listener", "").await;
    proxy.next(&["type.googleapis.com/envoy.config.listener.v3.Listener"]).await;
    server.shut_down().await;
}

/// Replaces the files of the CA of `setup`.
fn write_authority(setup: &Setup, files: &AuthorityPem) {
    let texts = [&files.ca_cert, &files.ca_key, &files.cert_chain, &files.root_cert];
    for (name, text) in AuthorityPem::FILES.into_iter().zip(texts) {
        replace(&setup.path("ca").join(name), text);
    }
}

/// Two servers with one config cluster and one CA, and their reports about the CA's roots. An agent
/// of the second server has received the new root and not acknowledged it.
struct TwoReplicas {
    setup: Setup,
    hub: Member,
    first: Server,
    second: Server,
    agent: Agent,
    /// The nonce of the agent's last response.
    nonce: String,
}

/// More than twice the time in which replicas learn of each other, on a busy machine.
const REPORTED: Duration = Duration::from_secs(120);

impl TwoReplicas {
    async fn start() -> Self {
        let hub = Member::start("hub", "n1", "198.18.0.1").await;
        hub.apply(namespace("shop"));
        let setup = Setup::new().with(&["--cluster-id", "hub"]);
        let older = setup.certificate("shop", "client");
        let start = async |state: &str| setup.start_replica(&hub.api, state).await;
        let (first, second) = (start("state-1").await, start("state-2").await);
        // Each has noticed the other.
        wait_until(REPORTED, async || {
            let found = hub.api.store().get("Secret", SYSTEM, "strait-ca-roots");
            let found = found.map(|object| object.value()).unwrap_or_default();
            let text = found["data"]["roots"].as_str().unwrap_or_default().to_owned();
            let text = base64(&text);
            holds(text.matches("\"given\":[").count() == 2, text)
        })
        .await;
        let node = Some(Proxy::sidecar("hub").node());
        let first_request =
            DiscoveryRequest { node, type_url: CLUSTERS.into(), ..Default::default() };
        let mut agent = Agent::open(&second, older, first_request).await;
        agent.request(AGENT_CONFIG, "").await;
        let response = agent.next(&[AGENT_CONFIG]).await;
        agent.request(AGENT_CONFIG, &response.nonce).await;
        Self { setup, hub, first, second, agent, nonce: response.nonce }
    }

    /// Adds the new root and then its key to both, in immediate succession. Neither signs with it.
    /// Then `ending` runs with the second replica's agent, and both sign.
    async fn rotate(mut self, ending: impl AsyncFnOnce(Agent, String)) {
        let old = AuthorityPem::read(&self.setup.path("ca")).expect("a CA");
        let new = AuthorityPem::generate(SystemTime::now()).expect("a CA");
        let both = format!("{}{}", old.root_cert, new.root_cert);
        write_authority(&self.setup, &AuthorityPem { root_cert: both.clone(), ..old });
        for server in [&self.first, &self.second] {
            certificates_until(server, |now| steps(now).len() == 2).await;
        }
        write_authority(&self.setup, &AuthorityPem { root_cert: both, ..new });
        self.nonce = self.agent.next(&[AGENT_CONFIG]).await.nonce;
        for (server, part) in [(&self.second, "1 agents"), (&self.first, "replica ")] {
            let status = wait_until(REPORTED, async || {
                let now = server.admin.json("/debug/certificates").await;
                assert_ne!(steps(&now), ["signs", "wait"], "it signs: {now}");
                let message = now["problem"]["message"].as_str().unwrap_or_default().to_owned();
                holds(message.contains(part) && message.contains("1 agents"), &now).map(|()| now)
            })
            .await;
            assert_eq!(status["problem"]["code"], "STR0550", "{status}");
        }
        ending(self.agent, self.nonce).await;
        for server in [&self.first, &self.second] {
            wait_until(REPORTED, async || {
                let now = server.admin.json("/debug/certificates").await;
                holds(steps(&now) == ["signs", "wait"] && now["problem"].is_null(), now)
            })
            .await;
        }
        self.first.shut_down().await;
        self.second.shut_down().await;
        drop(self.hub);
    }
}

/// Returns the value of a Secret's key in Kubernetes.
fn base64(text: &str) -> String {
    use base64::Engine as _;
    let bytes = base64::engine::general_purpose::STANDARD.decode(text).expect("base64");
    String::from_utf8(bytes).expect("text")
}

#[tokio::test]
async fn new_key_waits_until_an_agent_of_another_replica_has_its_root() {
    let replicas = TwoReplicas::start().await;
    let holder = std::cell::RefCell::new(None);
    replicas
        .rotate(async |agent: Agent, nonce: String| {
            agent.request(AGENT_CONFIG, &nonce).await;
            // The agent stays connected.
            holder.replace(Some(agent));
        })
        .await;
}

#[tokio::test]
async fn new_key_waits_until_an_agent_of_another_replica_disconnects() {
    let replicas = TwoReplicas::start().await;
    replicas.rotate(async |agent: Agent, _| drop(agent)).await;
}

/// Waits until the status of certificates passes, and returns it.
async fn certificates_until(server: &Server, test: impl Fn(&Value) -> bool) -> Value {
    wait_until(SOON, async || {
        let found = server.admin.json("/debug/certificates").await;
        if test(&found) { Ok(found) } else { Err(found.to_string()) }
    })
    .await
}

fn steps(certificates: &Value) -> Vec<&str> {
    let roots = certificates["rotation"]["roots"].as_array().into_iter().flatten();
    roots.filter_map(|root| root["step"].as_str()).collect()
}

#[tokio::test]
async fn root_is_replaced_step_by_step_and_no_step_is_too_early() {
    let hub = Member::start("hub", "n1", "198.18.0.1").await;
    hub.apply(namespace("shop"));
    let setup = Setup::new();
    let arguments = setup.arguments_with(&hub.api);
    let server = setup.start_as(arguments.clone()).await;
    server.ready().await;
    let ours = setup.authority().roots().to_pem();
    let new = AuthorityPem::generate(SystemTime::now()).expect("a CA");
    let both = format!("{ours}{}", new.root_cert);
    // The key is added before its root was distributed.
    let old = AuthorityPem::read(&setup.path("ca")).expect("a CA");
    write_authority(&setup, &AuthorityPem { root_cert: both.clone(), ..new.clone() });
    let refused =
        certificates_until(&server, |now| now["problem"]["code"].as_str() == Some("STR0550")).await;
    assert_eq!(steps(&refused), ["signs"], "the set is refused as a whole: {refused}");
    let output = server.strait(&["certs", "status"]).await;
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(shown.contains("STR0550: the root "), "{shown}");
    let checked = server.strait(&["check", "-o", "json"]).await;
    assert!(String::from_utf8_lossy(&checked.stdout).contains("STR0550"));
    // Only the root is added: no workload has reported it yet.
    write_authority(&setup, &AuthorityPem { root_cert: both.clone(), ..old.clone() });
    let waits = certificates_until(&server, |now| steps(now) == ["signs", "distribute"]).await;
    let output = server.strait(&["certs", "status"]).await;
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    for expected in ["is being distributed", "Phase 1 of 4: distribute"] {
        assert!(shown.contains(expected), "{expected} in {shown}");
    }
    let fingerprint = |now: &Value, at: usize| {
        now["rotation"]["roots"][at]["fingerprint"].as_str().expect("it has one").to_owned()
    };
    // Then the key is added. It signs as soon as the root is read back in each namespace.
    write_authority(&setup, &AuthorityPem { root_cert: both, ..new.clone() });
    let signs = certificates_until(&server, |now| steps(now) == ["signs", "wait"]).await;
    assert_eq!((&signs["problem"], fingerprint(&signs, 0)), (&Value::Null, fingerprint(&waits, 1)));
    // The old root is removed, although certificates may chain to it: it stays, here and in
    // namespaces.
    write_authority(&setup, &new);
    certificates_until(&server, |now| now["problem"]["code"].as_str() == Some("STR0551")).await;
    let has_both = async |server: &Server| {
        let now = certificates_until(server, |now| steps(now) == ["signs", "kept"]).await;
        assert_eq!(
            now["rotation"]["roots"][1]["assumed"], true,
            "earlier certificates are unknown"
        );
        wait_until(SOON, async || {
            let found = roots(&hub.api, "shop", USUAL);
            holds(found.matches("BEGIN CERTIFICATE").count() == 2, found)
        })
        .await;
    };
    has_both(&server).await;
    server.shut_down().await;
    // Also after a restart: from the file in the state directory, or from the Secret that replicas
    // share.
    hub.api.store().delete("Secret", SYSTEM, "strait-ca-roots").expect("it is there");
    let server = setup.start_as(arguments.clone()).await;
    server.ready().await;
    has_both(&server).await;
    wait_until(SOON, async || {
        let there = hub.api.store().get("Secret", SYSTEM, "strait-ca-roots");
        holds(there.is_some(), "no Secret")
    })
    .await;
    server.shut_down().await;
    std::fs::remove_file(setup.path("state/ca-roots.json")).expect("it is there");
    let server = setup.start_as(arguments).await;
    server.ready().await;
    has_both(&server).await;
    // The old key was stolen.
    replace(&setup.path("ca/rotation-approved"), &fingerprint(&signs, 1));
    until(&hub.api, "shop", USUAL, &new.root_cert).await;
    server.shut_down().await;
}

/// Returns the ClusterTrustBundle of a cluster.
fn trust_bundle(cluster: &SimCluster) -> Option<Value> {
    let found = cluster.store().get("ClusterTrustBundle", "", "strait.dev:mesh:roots");
    found.map(|object| object.value())
}

#[tokio::test]
async fn roots_are_in_a_cluster_trust_bundle_where_the_kind_exists() {
    let east = Member::start("east", "n1", "198.18.0.1").await;
    let west = Member::start("west", "n1", "198.18.0.2").await;
    let theirs = Member::start("theirs", "n1", "198.18.0.3").await;
    for member in [&east, &west, &theirs] {
        member.apply(namespace("shop"));
    }
    east.api.enable(Family::TrustBundles);
    theirs.api.enable(Family::TrustBundles);
    let foreign = json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "ClusterTrustBundle",
        "metadata": { "name": "strait.dev:mesh:roots" },
        "spec": { "signerName": "strait.dev/mesh", "trustBundle": "theirs" },
    });
    theirs.apply(foreign);
    let setup = Setup::new();
    setup.join(&[&east, &west, &theirs]);
    let server = setup.start_ready().await;
    let ours = setup.authority().roots().to_pem();
    let written = async || {
        wait_until(SOON, async || {
            let found = trust_bundle(&east.api).unwrap_or_default();
            holds(found["spec"]["trustBundle"] == *ours, found)
        })
        .await;
    };
    written().await;
    let found = trust_bundle(&east.api).expect("written");
    assert_eq!(found["spec"]["signerName"], "strait.dev/mesh");
    assert_eq!(found["metadata"]["labels"]["app.kubernetes.io/managed-by"], "strait");
    until(&east.api, "shop", USUAL, &ours).await;
    let state = async |id: &str, expected: Value| {
        server.cluster_until(id, |row| row["roots"]["trustBundle"] == expected).await;
    };
    state("east", json!("current")).await;
    state("theirs", json!("foreign")).await;
    state("west", Value::Null).await;
    let kept = trust_bundle(&theirs.api).expect("it stays");
    assert_eq!(kept["spec"]["trustBundle"], "theirs");
    assert_eq!(trust_bundle(&west.api), None);
    server.shut_down().await;
}
