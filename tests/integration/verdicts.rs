//! The verdict matrix: injects each outage of `tests/verdicts/matrix.json` into a healthy mesh of two clusters and two
//! networks, and compares the verdicts of `strait check`, `status` and `explain` with the expected ones. The mesh has two
//! replicas of the control plane. The proxy is connected to one, and the commands ask the other.

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::process::Output;
use std::time::{Duration, Instant, SystemTime};

use futures::{FutureExt as _, StreamExt as _};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;

use super::mesh::{
    Member, Proxy, SHOP, SOON, SYSTEM, Server, Setup, endpoints_until, free_port, holds, renamed,
    replace, text, wait_until,
};
use super::replicas::{peer_arguments, start_peer, start_ready};
use strait_identity::AuthorityPem;
use strait_sim::objects::{self, Endpoint, NETWORK_LABEL, Port};
use strait_sim::{Certificate, Fault, Options as SimOptions};
use strait_xds::resource::ResourceType;
use strait_xds_client::{Options as ClientOptions, XdsClient};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    outage: String,
    inject: Option<String>,
    check: Verdict,
    status: Verdict,
    explain: Option<Verdict>,
    /// Parts of the timeline of either replica.
    #[serde(default)]
    events: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Verdict {
    exit: i32,
    /// Codes of the findings, in `check -o json`.
    #[serde(default)]
    codes: Vec<String>,
    /// Number of notes of `check`.
    notes: Option<usize>,
    /// Parts of the text.
    #[serde(default)]
    says: Vec<String>,
}

/// A healthy mesh: `web` runs in `west` only, and the client in `east`.
struct World {
    setup: Setup,
    /// Its API server ends with it.
    _east: Member,
    west: Member,
    /// The replica that proxies are connected to.
    server: Server,
    /// The replica that commands ask. Outages of a restart have none.
    queried: Option<Server>,
    /// The ports of both replicas.
    ports: [u16; 2],
    clients: Vec<XdsClient>,
    /// A member that joins later.
    more: Option<Member>,
}

/// Number of rows that run at the same time.
const AT_ONCE: usize = 4;
const GATEWAY: &str = "eastwestgateway";

fn gateway_slice(ready: &[&str]) -> Value {
    let endpoints: Vec<_> = ready.iter().map(|address| Endpoint::new(address)).collect();
    let port = Port { name: "tls", port: 15443, target: 15443 };
    objects::endpoint_slice(SYSTEM, GATEWAY, "eastwestgateway-1", &[port], &endpoints)
}

/// Applies services that every cluster has and that are not part of the mesh.
fn add_system_services(member: &Member, gateway: &str, dns: &str) {
    const DNS: &str = "kube-system";
    const PORT: Port = Port { name: "dns-tcp", port: 53, target: 53 };
    member.apply(gateway_slice(&[gateway]));
    member.apply(objects::service(DNS, "kube-dns", "172.20.0.10", &[PORT]));
    let endpoints = [Endpoint::new(dns)];
    member.apply(objects::endpoint_slice(DNS, "kube-dns", "kube-dns-1", &[PORT], &endpoints));
}

impl World {
    async fn start() -> Self {
        let east = Member::start("east", "prod-east", "198.18.0.1").await;
        let west = Member::start("west", "prod-west", "198.18.0.2").await;
        add_system_services(&east, "10.1.0.9", "10.1.0.10");
        add_system_services(&west, "10.2.0.9", "10.2.0.10");
        east.serve("local", &["10.1.0.1"]);
        west.serve("web", &["10.2.0.1", "10.2.0.2"]);
        let setup = Setup::new();
        let policy = setup.path("policy.yaml");
        replace(&policy, "apiVersion: strait.dev/v1\nkind: Policy\n");
        let policy = policy.display().to_string();
        let setup = setup.with(&["--policy", &policy, "--cluster-removal-grace", "1s"]);
        setup.join(&[&east, &west]);
        let [own, other] = [free_port(), free_port()];
        let server = start_peer(&setup, "state", own, &[other]).await;
        let queried = start_peer(&setup, "state-of-asked", other, &[own]).await;
        let client = server.connect(&setup, &Proxy::sidecar("east")).await;
        endpoints_until(&client, "web", &[("198.18.0.2:15443", 2)]).await;
        Self {
            setup,
            _east: east,
            west,
            server,
            queried: Some(queried),
            ports: [own, other],
            clients: vec![client],
            more: None,
        }
    }

    /// Injects an outage.
    async fn inject(&mut self, name: &str) {
        match name {
            "gatewayPodsGone" => self.west.apply(gateway_slice(&[])),
            "gatewayWithoutAddress" => {
                let mut gateway =
                    objects::gateway_service(SYSTEM, "prod-west", "172.20.0.1", "198.18.0.2");
                gateway["status"] = json!({});
                self.west.apply(gateway);
            }
            "gatewayNameUnknown" => {
                let mut gateway =
                    objects::gateway_service(SYSTEM, "prod-west", "172.20.0.1", "198.18.0.2");
                let ingress = json!([{ "hostname": "gateway.invalid" }]);
                gateway["status"]["loadBalancer"]["ingress"] = ingress;
                self.west.apply(gateway);
            }
            "gatewayDeleted" => {
                self.west.api.store().delete("Service", SYSTEM, GATEWAY).expect("it is there");
            }
            "anotherRoot" => self.restart_with_another_root().await,
            "kindFailsAtStart" => {
                let resource = "endpointslices".to_owned();
                self.west.api.fault(Fault::KindFails { resource, body: None });
                self.stop().await;
                std::fs::remove_dir_all(self.setup.path("state")).expect("removed");
                let unused = std::mem::replace(&mut self.server, self.setup.start().await);
                unused.shut_down().await;
            }
            "configSourceAwayAtStart" => {
                let sources =
                    "configSources: [{address: 'xds://127.0.0.1:1'}, {address: 'k8s://'}]";
                self.setup.put("mesh", &mesh_config("mesh", sources));
                self.stop().await;
                std::fs::remove_dir_all(self.setup.path("state")).expect("removed");
                let unused = std::mem::replace(&mut self.server, self.setup.start().await);
                unused.shut_down().await;
            }
            "replicaGone" => {
                self.stop().await;
                let peer = ["--peers", "127.0.0.1:1"].map(str::to_owned);
                let arguments = [self.setup.arguments(), peer.to_vec()].concat();
                let unused =
                    std::mem::replace(&mut self.server, self.setup.start_as(arguments).await);
                unused.shut_down().await;
            }
            "proxiesRefused" => {
                let stranger = Proxy::sidecar("nowhere");
                self.refuse(&stranger).await;
            }
            "memberLabelRemoved" => {
                let proxy = Proxy { ip: "10.99.0.4".into(), ..Proxy::sidecar("west") };
                self.clients.push(self.server.connect(&self.setup, &proxy).await);
                let mut secret = self.west.secret();
                secret["metadata"]["labels"] = json!({});
                self.setup.put("west", &secret);
            }
            "replicaWithOtherPolicy" => {
                let policy = self.setup.path("other-policy.yaml");
                let text =
                    "apiVersion: strait.dev/v1\nkind: Policy\nclusters: {west: {mode: drain}}\n";
                replace(&policy, text);
                self.restart_with("--policy", &policy).await;
            }
            "replicaWithBrokenFile" => {
                let directory = self.setup.path("other-config");
                std::fs::create_dir(&directory).expect("a directory");
                for file in std::fs::read_dir(self.setup.path("config")).expect("readable") {
                    let file = file.expect("a file");
                    std::fs::copy(file.path(), directory.join(file.file_name())).expect("copied");
                }
                std::fs::write(directory.join("broken.json"), "{").expect("written");
                self.restart_with("--config-dir", &directory).await;
            }
            "replicaWithoutMembers" => {
                let directory = self.setup.path("other-config");
                std::fs::create_dir(&directory).expect("a directory");
                self.restart_with("--config-dir", &directory).await;
            }
            "rightMissing" => {
                let resource = "endpointslices".to_owned();
                self.west.api.fault(Fault::Forbidden { resource });
                self.west.api.stop().await;
                self.west.api.restart().await;
            }
            "loginPage" => {
                self.west.api.fault(Fault::Html);
                self.west.api.stop().await;
                self.west.api.restart().await;
            }
            "policyFileBroken" => replace(&self.setup.path("policy.yaml"), "kind: ["),
            "meshConfigBroken" => self.setup.put("mesh", &mesh_config("mesh", "defaultConfig: [")),
            "meshNetworksBroken" => {
                self.setup.put("mesh", &mesh_config("meshNetworks", "networks: ["));
            }
            "routeToUnknownService" => self.setup.put("vs", &route(json!({ "host": "nowhere" }))),
            "routeToUnknownSubset" => {
                let subsets = json!({
                    "apiVersion": "networking.istio.io/v1", "kind": "DestinationRule",
                    "metadata": { "name": "web", "namespace": SHOP },
                    "spec": { "host": "web", "subsets": [{ "name": "v1", "labels": { "app": "web" } }] },
                });
                self.setup.put("dr", &subsets);
                self.setup.put("vs", &route(json!({ "host": "web", "subset": "v9" })));
            }
            "networkTypo" => {
                let pod = objects::pod(SHOP, "web-10-2-0-2", "web", "10.2.0.2", "node");
                self.west.apply(objects::labelled(pod, NETWORK_LABEL, "prod-wset"));
            }
            "kubeconfigRefused" => self.setup.put("west", &runs_program(self.west.secret())),
            "handshakesFail" => {
                for _ in 0..8 {
                    let mut tcp = tokio::net::TcpStream::connect(self.server.bound.xds)
                        .await
                        .expect("connected");
                    tcp.write_all(b"GET / HTTP/1.1\r\n\r\n").await.expect("sent");
                }
            }
            "streamsFall" => {
                let more = Proxy { name: "more", ip: "10.99.0.3".into(), ..Proxy::sidecar("east") };
                let client = self.server.connect(&self.setup, &more).await;
                self.clients.push(client);
                // The server samples the number every five seconds.
                let sampled = Instant::now() + Duration::from_secs(6);
                wait_until(SOON, async || holds(Instant::now() > sampled, "no sample yet")).await;
                self.clients.clear();
            }
            "apiServerDown" => self.west.api.stop().await,
            "tokenInvalid" => {
                self.west.api.fault(Fault::Unauthorized);
                self.west.api.restart().await;
            }
            "clusterIdTwice" => {
                self.setup.put("second", &renamed(self.west.secret(), "second"));
            }
            "kubeconfigRunsProgram" => {
                let secret = renamed(runs_program(self.west.secret()), "north");
                let text = secret.to_string().replace("\"west\":", "\"north\":");
                self.setup.put("north", &serde_json::from_str(&text).expect("JSON"));
            }
            "kubeconfigUnreadable" => self.join_as("north", "{"),
            "clusterIdInvalid" => self.join_as("North_1", &self.west.api.kubeconfig()),
            "sameClusterTwice" => self.join_as("north", &self.west.api.kubeconfig()),
            "apiServerCertificate" => {
                let certificate = Certificate::Expired;
                let options = SimOptions { certificate, ..SimOptions::default() };
                let north = Member::start_with("north", "prod-west", "198.18.0.3", options).await;
                self.setup.put("north", &north.secret());
                self.more = Some(north);
            }
            "otherCluster" => {
                let options =
                    SimOptions { identity: Some("other".into()), ..SimOptions::default() };
                let other = Member::start_with("west", "prod-west", "198.18.0.4", options).await;
                self.setup.put("west", &other.secret());
                self.more = Some(other);
            }
            "apiServerOtherName" => {
                let certificate = Certificate::WrongName;
                let options = SimOptions { certificate, ..SimOptions::default() };
                let north = Member::start_with("north", "prod-west", "198.18.0.3", options).await;
                self.setup.put("north", &north.secret());
                self.more = Some(north);
            }
            "apiServerErrors" => {
                self.west.api.fault(Fault::Errors { codes: vec![500] });
                self.west.api.stop().await;
                self.west.api.restart().await;
            }
            "apiServerRedirects" => {
                self.west.api.fault(Fault::Redirect { location: "https://x.test/".to_owned() });
                self.west.api.stop().await;
                self.west.api.restart().await;
            }
            "apiServerHangs" => {
                self.west.api.fault(Fault::Hang);
                self.west.api.stop().await;
                self.west.api.restart().await;
            }
            "forbiddenServer" => {
                let kubeconfig = self.west.api.kubeconfig();
                let url = self.west.api.url();
                self.join_as("north", &kubeconfig.replace(&url, "https://169.254.169.254"));
            }
            "policyRefusesNetwork" => {
                let policy = "apiVersion: strait.dev/v1\nkind: Policy\nclusters: {west: {networks: [lab]}}\n";
                replace(&self.setup.path("policy.yaml"), policy);
            }
            "subsetRuleUnreadable" => {
                let policy = json!({ "loadBalancer": { "simple": "FASTEST" } });
                self.put_object(
                    "networking.istio.io/v1",
                    "DestinationRule",
                    json!({ "host": "web", "trafficPolicy": policy }),
                );
            }
            "modeUnreadable" => {
                let spec = json!({ "mtls": { "mode": "STRICTER" } });
                self.put_object("security.istio.io/v1", "PeerAuthentication", spec);
            }
            "entryUnreadable" => {
                let spec = json!({ "hosts": ["api.example"], "resolution": "MAYBE", "ports": [] });
                self.put_object("networking.istio.io/v1", "ServiceEntry", spec);
            }
            "filterUnreadable" => {
                let value = json!({ "@type": "type.googleapis.com/none.Such" });
                let patch =
                    json!({ "operation": "ADD", "value": { "name": "x", "typed_config": value } });
                let patches = json!([{ "applyTo": "HTTP_FILTER", "patch": patch }]);
                self.put_object(
                    "networking.istio.io/v1alpha3",
                    "EnvoyFilter",
                    json!({ "configPatches": patches }),
                );
            }
            "keysUnreachable" => {
                let rule = json!({ "issuer": "x", "jwksUri": "https://127.0.0.1:1/keys" });
                let spec = json!({ "jwtRules": [rule] });
                self.put_object("security.istio.io/v1", "RequestAuthentication", spec);
            }
            "accessUnreadable" => {
                let policy = json!({
                    "apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
                    "metadata": { "name": "web", "namespace": SHOP },
                    "spec": { "rules": [{ "from": [{ "source": { "principal": ["a"] } }] }] },
                });
                self.setup.put("policy", &policy);
            }
            "sameAddress" => {
                let label = objects::namespace(SYSTEM);
                self.west.apply(objects::labelled(label, NETWORK_LABEL, "prod-east"));
                self.west.serve("same", &["10.1.0.1"]);
            }
            "routeUnreadable" => self.setup.put("vs", &unreadable_route()),
            "brokenFile" => {
                std::fs::write(self.setup.path("config/broken.json"), "{").expect("written");
            }
            "entryInUnknownNetwork" => {
                let ports = json!([{ "number": 5432, "name": "tcp", "protocol": "TCP" }]);
                let endpoints = json!([{ "address": "10.9.0.1", "network": "nowhere" }]);
                let spec = json!({
                    "hosts": ["db.example"], "location": "MESH_INTERNAL", "resolution": "STATIC",
                    "ports": ports, "endpoints": endpoints,
                });
                self.put_object("networking.istio.io/v1", "ServiceEntry", spec);
            }
            "addressesRefused" => {
                let clusters = "clusters: {west: {addresses: [10.99.0.0/16, 198.18.0.0/15]}}";
                let text = format!("apiVersion: strait.dev/v1\nkind: Policy\n{clusters}\n");
                replace(&self.setup.path("policy.yaml"), &text);
            }
            "proxyRejects" => {
                let rejects = Some(ResourceType::Cluster);
                let options = ClientOptions { rejects, ..ClientOptions::default() };
                let more = Proxy { name: "more", ip: "10.99.0.3".into(), ..Proxy::sidecar("east") };
                let client = self.server.open(&self.setup, &more, options).await;
                self.clients.push(client.unwrap_or_else(|error| panic!("{error}")));
            }
            name => panic!("no outage {name}"),
        }
    }

    fn put_object(&self, api_version: &str, kind: &str, spec: Value) {
        let object = json!({
            "apiVersion": api_version, "kind": kind,
            "metadata": { "name": "web", "namespace": SHOP }, "spec": spec,
        });
        self.setup.put("object", &object);
    }

    fn join_as(&self, id: &str, kubeconfig: &str) {
        self.setup.put("north", &strait_sim::member_secret(SYSTEM, id, kubeconfig));
    }

    /// Returns the problems of `strait check` that the metric `strait_problems` of no replica
    /// contains.
    async fn codes_without_metric(&self, queried: &Server) -> Vec<String> {
        let mut metrics = queried.admin.text("/metrics").await.1;
        metrics += &self.server.admin.text("/metrics").await.1;
        let output = queried.strait(&["check", "-o", "json"]).await;
        let found: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let problems = found.as_array().into_iter().flatten();
        let problems = problems.filter(|row| row["severity"] == "problem");
        let codes = problems.filter_map(|row| {
            let (category, code) = (row["category"].as_str()?, row["code"].as_str()?);
            (!OTHER_METRICS.contains(&category)).then(|| code.to_owned())
        });
        let has_series = |code: &String| {
            let label = format!("code=\"{code}\"");
            let mut lines = metrics.lines();
            lines.any(|line| line.starts_with("strait_problems{") && line.contains(&label))
        };
        codes.filter(|code| !has_series(code)).collect()
    }

    /// Connects a proxy until it has been refused for longer than a refusal of a new pod lasts.
    async fn refuse(&mut self, proxy: &Proxy) {
        let began = Instant::now();
        wait_until(SOON, async || {
            let client = self.server.open(&self.setup, proxy, ClientOptions::default()).await;
            if let Ok(client) = client {
                wait_until(SOON, async || {
                    holds(client.held().ended.is_some(), "the proxy is not refused")
                })
                .await;
            }
            holds(began.elapsed() > Duration::from_secs(6), "not refused for long enough")
        })
        .await;
    }

    /// Restarts the replica that commands do not ask with another value of a flag.
    async fn restart_with(&mut self, flag: &str, value: &Path) {
        self.clients.clear();
        let [own, other] = self.ports;
        let mut arguments = peer_arguments(&self.setup, "state", own, &[other]);
        let at = arguments.iter().position(|one| one == flag).expect("it is given");
        arguments[at + 1] = value.display().to_string();
        let running = std::mem::replace(&mut self.server, Setup::new().start().await);
        running.shut_down().await;
        let unused = std::mem::replace(&mut self.server, start_ready(&self.setup, arguments).await);
        unused.shut_down().await;
    }

    /// Stops the other replica, and replaces the running server by that of an unused setup, because
    /// two servers cannot use one directory.
    async fn stop(&mut self) {
        self.clients.clear();
        if let Some(queried) = self.queried.take() {
            queried.shut_down().await;
        }
        let other = Setup::new();
        let running = std::mem::replace(&mut self.server, other.start().await);
        running.shut_down().await;
    }

    async fn restart_with_another_root(&mut self) {
        self.stop().await;
        let files = AuthorityPem::generate(SystemTime::now()).expect("a CA");
        for (name, text) in [
            ("ca-cert.pem", &*files.ca_cert),
            ("ca-key.pem", &*files.ca_key),
            ("cert-chain.pem", &*files.cert_chain),
            ("root-cert.pem", &*files.root_cert),
        ] {
            replace(&self.setup.path("ca").join(name), text);
        }
        let unused = std::mem::replace(&mut self.server, self.setup.start().await);
        unused.shut_down().await;
    }

    /// Waits until the commands give the expected verdicts.
    async fn judge(&self, row: &Row) {
        let outage = &row.outage;
        let queried = self.queried.as_ref().unwrap_or(&self.server);
        wait_until(SOON, async || {
            let output = queried.strait(&["check", "-o", "json"]).await;
            let found: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            let problems = found.as_array().into_iter().flatten();
            let problems = problems.filter(|one| one["severity"] == "problem");
            let codes: BTreeSet<&str> =
                problems.clone().filter_map(|one| one["code"].as_str()).collect();
            let has_all = row.check.codes.iter().all(|code| codes.contains(code.as_str()));
            let has_next = problems.clone().all(|one| one["next"].as_str() != Some(""));
            let rows = found.as_array().into_iter().flatten();
            let notes = rows.filter(|one| one["severity"] == "note").count();
            let has_notes = row.check.notes.is_none_or(|expected| expected == notes);
            let is_met = is_met(&row.check, &output) && has_all && has_next && has_notes;
            holds(is_met, (outage, "check", text(&output)))
        })
        .await;
        wait_until(SOON, async || {
            let output = queried.strait(&["status"]).await;
            holds(is_met(&row.status, &output), (outage, "status", text(&output)))
        })
        .await;
        wait_until(SOON, async || {
            let lacking = self.codes_without_metric(queried).await;
            holds(lacking.is_empty(), (outage, "strait_problems lacks", lacking))
        })
        .await;
        wait_until(SOON, async || {
            let mut events = queried.admin.text("/debug/events").await.1;
            events += &self.server.admin.text("/debug/events").await.1;
            let lacking: Vec<_> =
                row.events.iter().filter(|part| !events.contains(&***part)).collect();
            holds(lacking.is_empty(), (outage, "the timeline lacks", &lacking))
        })
        .await;
        let Some(expected) = &row.explain else { return };
        wait_until(SOON, async || {
            let output = queried.strait(&["explain", "client.shop", "web.shop"]).await;
            holds(is_met(expected, &output), (outage, "explain", text(&output)))
        })
        .await;
    }
}

/// Categories whose problems are in other metrics, or require requests to API servers.
const OTHER_METRICS: [&str; 5] = ["clusters", "secrets", "trust", "injection", "access"];

fn is_met(expected: &Verdict, output: &Output) -> bool {
    let printed = text(output);
    output.status.code() == Some(expected.exit)
        && expected.says.iter().all(|part| printed.contains(part))
}

/// Returns a Secret whose kubeconfig runs a program.
fn runs_program(mut secret: Value) -> Value {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD as BASE64;
    let change = |text: String| text.replace("\"token\":", "\"exec\":").replace("token:", "exec:");
    for (field, is_encoded) in [("stringData", false), ("data", true)] {
        let Some(data) = secret[field].as_object_mut() else { continue };
        for value in data.values_mut() {
            let stored = value.as_str().unwrap_or_default();
            *value = match is_encoded {
                false => json!(change(stored.to_owned())),
                true => {
                    let text = BASE64.decode(stored).expect("base64");
                    json!(BASE64.encode(change(String::from_utf8(text).expect("text"))))
                }
            };
        }
    }
    secret
}

/// Returns a VirtualService of `web` that routes to a destination.
fn route(destination: Value) -> Value {
    json!({
        "apiVersion": "networking.istio.io/v1", "kind": "VirtualService",
        "metadata": { "name": "web", "namespace": SHOP },
        "spec": { "hosts": ["web"], "http": [{ "route": [{ "destination": destination }] }] },
    })
}

fn mesh_config(key: &str, text: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "istio", "namespace": SYSTEM }, "data": { key: text },
    })
}

fn unreadable_route() -> Value {
    let mut route = route(json!({ "host": "web" }));
    route["spec"]["http"][0]["timeout"] = json!("soon");
    route
}

/// Starts a mesh and injects the outage of a row. Returns why the verdicts differ, if they do.
async fn try_row(row: Row) -> Option<String> {
    let name = row.outage.clone();
    let run = AssertUnwindSafe(async move {
        let mut world = World::start().await;
        if let Some(outage) = &row.inject {
            world.inject(outage).await;
        }
        world.judge(&row).await;
        let World { clients, server, queried, .. } = world;
        drop(clients);
        for replica in [Some(server), queried].into_iter().flatten() {
            replica.shut_down().await;
        }
    });
    let panic = run.catch_unwind().await.err()?;
    let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
    Some(format!("{name}: {text}"))
}

#[tokio::test]
async fn each_outage_of_the_matrix_is_reported_with_its_cause() {
    let rows: Vec<Row> =
        serde_json::from_str(include_str!("../verdicts/matrix.json")).expect("the matrix");
    let runs = futures::stream::iter(rows).map(try_row).buffer_unordered(AT_ONCE);
    let failures: Vec<String> = runs.filter_map(std::future::ready).collect().await;
    assert!(failures.is_empty(), "{failures:#?}");
}
