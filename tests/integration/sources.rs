//! Sources of services other than member clusters, through the whole server: an MCP-over-xDS
//! server, a Consul, their states in `/debug/sources`, and their restoration after a restart.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use prost::Message;
use rcgen::{CertifiedKey, KeyPair};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_stream::{Stream, StreamExt};
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};

use crate::checked::KEYS;
use crate::mesh::{
    Member, Proxy, SOON as LIMIT, SYSTEM, Server as Strait, Setup, holds, wait_until,
};
use crate::restart::{Bodies, quiet, substance};
use strait_base::task::Supervisor;
use strait_identity::tls;
use strait_proto::envoy::envoy::service::discovery::v3::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};
use strait_proto::envoy::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use strait_proto::envoy::google::protobuf::Any;
use strait_proto::istio::mcp::{Metadata, Resource};
use strait_proto::istio::networking::{ServiceEntry, ServicePort, WorkloadEntry};
use strait_sim::{Family, Fault, SimCluster, objects};
use strait_xds::resource::ResourceType;

/// The resources of the server, and the messages that it has received.
#[derive(Debug, Clone, Default)]
struct Contents {
    version: u64,
    /// Resources by type.
    types: BTreeMap<String, Vec<Any>>,
    /// The rejections of clients.
    refused: Vec<String>,
    /// The node IDs of clients, and the generators in their nodes.
    nodes: Vec<String>,
    streams: usize,
    /// Whether it serves; streams end while it doesn't.
    up: bool,
}

/// An MCP-over-xDS server.
#[derive(Clone)]
struct Mcp {
    contents: Arc<watch::Sender<Contents>>,
}

type Responses = Pin<Box<dyn Stream<Item = Result<DiscoveryResponse, Status>> + Send>>;
type Deltas = Pin<Box<dyn Stream<Item = Result<DeltaDiscoveryResponse, Status>> + Send>>;

#[tonic::async_trait]
impl AggregatedDiscoveryService for Mcp {
    type StreamAggregatedResourcesStream = Responses;
    type DeltaAggregatedResourcesStream = Deltas;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Responses>, Status> {
        let mut requests = request.into_inner();
        let contents = Arc::clone(&self.contents);
        let mut receiver = contents.subscribe();
        let (sender, responses) = mpsc::channel(16);
        #[expect(clippy::disallowed_methods, reason = "a test's own server")]
        tokio::spawn(async move {
            contents.send_modify(|contents| contents.streams += 1);
            let mut wanted: BTreeMap<String, u64> = BTreeMap::new();
            loop {
                let now = receiver.borrow_and_update().clone();
                if !now.up {
                    return;
                }
                for (url, sent) in &mut wanted {
                    // It does not respond to types that it doesn't have, like Istio's server.
                    let Some(resources) = now.types.get(url) else { continue };
                    if *sent == now.version {
                        continue;
                    }
                    *sent = now.version;
                    let response = DiscoveryResponse {
                        type_url: url.clone(),
                        version_info: now.version.to_string(),
                        nonce: now.version.to_string(),
                        resources: resources.clone(),
                        ..DiscoveryResponse::default()
                    };
                    if sender.send(Ok(response)).await.is_err() {
                        return;
                    }
                }
                tokio::select! {
                    request = requests.next() => {
                        let Some(Ok(request)) = request else { return };
                        if let Some(node) = request.node {
                            let generator = node.metadata.is_some_and(|metadata| metadata.fields.contains_key("GENERATOR"));
                            contents.send_modify(|contents| {
                                contents.nodes.push(format!("{} {generator}", node.id));
                            });
                        }
                        if let Some(refused) = request.error_detail {
                            contents.send_modify(|contents| contents.refused.push(refused.message));
                        }
                        wanted.entry(request.type_url).or_insert(u64::MAX);
                    }
                    changed = receiver.changed() => if changed.is_err() { return },
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(responses))))
    }

    async fn delta_aggregated_resources(
        &self,
        _: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Deltas>, Status> {
        Err(Status::unimplemented("state of the world only"))
    }
}

impl Mcp {
    fn new() -> Self {
        let types = [("WorkloadEntry", vec![]), ("ServiceEntry", vec![])];
        let types =
            types.map(|(kind, objects)| (format!("networking.istio.io/v1/{kind}"), objects));
        let contents =
            Contents { version: 1, types: types.into(), up: true, ..Contents::default() };
        Self { contents: Arc::new(watch::Sender::new(contents)) }
    }

    /// Serves over TLS on a free port, for clients with `client`'s certificate. Returns the
    /// address.
    async fn serve_tls(
        &self,
        own: &CertifiedKey<KeyPair>,
        client: &CertifiedKey<KeyPair>,
        tasks: &Supervisor,
    ) -> SocketAddr {
        let provider = tls::provider();
        let mut roots = RootCertStore::empty();
        roots.add(client.cert.der().clone()).expect("a root");
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let key = PrivateKeyDer::try_from(own.signing_key.serialize_der()).expect("a key");
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_client_cert_verifier(verifier.build().expect("a verifier"))
            .with_single_cert(vec![own.cert.der().clone()], key)
            .expect("a pair");
        config.alpn_protocols = vec![b"h2".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let bound = listener.local_addr().expect("bound");
        let (sender, accepted) = mpsc::channel::<std::io::Result<DuplexStream>>(4);
        let pipes = tasks.clone();
        tasks.spawn("tls", async move {
            while let Ok((stream, _)) = listener.accept().await {
                let Ok(mut stream) = acceptor.accept(stream).await else { continue };
                let (mut near, far) = tokio::io::duplex(65_536);
                pipes.spawn("tls pipe", async move {
                    let _ = tokio::io::copy_bidirectional(&mut stream, &mut near).await;
                });
                let _ = sender.send(Ok(far)).await;
            }
        });
        let service = AggregatedDiscoveryServiceServer::new(self.clone());
        tasks.spawn("mcp server", async move {
            let stream = ReceiverStream::new(accepted);
            Server::builder()
                .add_service(service)
                .serve_with_incoming(stream)
                .await
                .expect("serves");
        });
        bound
    }

    /// Serves at `address` until `tasks` are stopped. Returns the address.
    async fn serve(&self, address: &str, tasks: &Supervisor) -> SocketAddr {
        self.contents.send_modify(|contents| contents.up = true);
        let deadline = tokio::time::Instant::now() + LIMIT;
        let listener = loop {
            match TcpListener::bind(address).await {
                Ok(listener) => break listener,
                // The connections of the previous server may not have ended yet.
                Err(error) => assert!(tokio::time::Instant::now() < deadline, "{error}"),
            }
            tokio::task::yield_now().await;
        };
        let bound = listener.local_addr().expect("bound");
        let service = AggregatedDiscoveryServiceServer::new(self.clone());
        tasks.spawn("mcp server", async move {
            let stream = TcpListenerStream::new(listener);
            Server::builder()
                .add_service(service)
                .serve_with_incoming(stream)
                .await
                .expect("serves");
        });
        bound
    }

    fn set(&self, kind: &str, resources: Vec<Any>) {
        self.contents.send_modify(|contents| {
            contents.version += 1;
            contents.types.insert(format!("networking.istio.io/v1/{kind}"), resources);
        });
    }

    async fn until(&self, wanted: impl FnMut(&Contents) -> bool) {
        let mut receiver = self.contents.subscribe();
        let found = tokio::time::timeout(LIMIT, receiver.wait_for(wanted)).await;
        assert!(found.is_ok(), "{:?}", self.contents.borrow().refused);
    }
}

fn resource(name: &str, kind: &str, body: Vec<u8>) -> Any {
    let type_url = format!("type.googleapis.com/istio.networking.v1alpha3.{kind}");
    let metadata = Metadata { name: name.to_owned(), ..Metadata::default() };
    let resource = Resource { metadata: Some(metadata), body: Some(Any { type_url, value: body }) };
    Any {
        type_url: "type.googleapis.com/istio.mcp.v1alpha1.Resource".to_owned(),
        value: resource.encode_to_vec(),
    }
}

/// Returns a ServiceEntry of an external host with one static endpoint.
fn entry(name: &str, host: &str, address: &str) -> Any {
    let entry = ServiceEntry {
        hosts: vec![host.to_owned()],
        ports: vec![ServicePort { number: 80, name: "http".into(), ..ServicePort::default() }],
        resolution: 1,
        endpoints: vec![WorkloadEntry { address: address.to_owned(), ..WorkloadEntry::default() }],
        ..ServiceEntry::default()
    };
    resource(name, "ServiceEntry", entry.encode_to_vec())
}

/// Returns the addresses of each host.
async fn hosts(strait: &Strait) -> BTreeMap<String, Vec<String>> {
    let mut hosts = BTreeMap::new();
    for service in strait.admin.json("/debug/services").await.as_array().expect("a list") {
        let host = service["hostname"].as_str().expect("a name").to_owned();
        let path = format!("/debug/endpoints?hostname={host}");
        let (status, text) = strait.admin.text(&path).await;
        if status == http::StatusCode::NOT_FOUND {
            // Removed meanwhile.
            continue;
        }
        let endpoints: Vec<Value> = serde_json::from_str(&text).expect("a list");
        let addresses = endpoints.iter().filter_map(|one| one["address"].as_str());
        hosts.insert(host, addresses.map(str::to_owned).collect());
    }
    hosts
}

async fn until_hosts(strait: &Strait, wanted: &[(&str, &[&str])]) {
    let wanted: BTreeMap<String, Vec<String>> = wanted
        .iter()
        .map(|(host, list)| {
            ((*host).to_owned(), list.iter().map(|one| (*one).to_owned()).collect())
        })
        .collect();
    let deadline = tokio::time::Instant::now() + LIMIT;
    loop {
        let found = hosts(strait).await;
        if found == wanted {
            return;
        }
        assert!(tokio::time::Instant::now() < deadline, "{found:?}, not {wanted:?}");
    }
}

async fn source(strait: &Strait, name: &str) -> Value {
    let all = strait.admin.json("/debug/sources").await;
    let found = all.as_array().expect("a list").iter().find(|one| one["name"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {all:#}")).clone()
}

async fn until_source(strait: &Strait, name: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let deadline = tokio::time::Instant::now() + LIMIT;
    loop {
        let found = source(strait, name).await;
        if wanted(&found) {
            return found;
        }
        assert!(tokio::time::Instant::now() < deadline, "{found:#}");
    }
}

/// Writes a file of mesh config and returns its path.
fn mesh_config(folder: &tempfile::TempDir, text: &str) -> String {
    let path = folder.path().join("mesh.yaml");
    std::fs::write(folder.path().join("new"), text).expect("written");
    std::fs::rename(folder.path().join("new"), &path).expect("renamed");
    path.to_str().expect("UTF-8").to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_of_an_mcp_server_are_added_changed_and_kept_after_its_stop() {
    let serving = Supervisor::new();
    let mcp = Mcp::new();
    mcp.set("ServiceEntry", vec![entry("shop/a", "a.example", "192.0.2.1")]);
    let address = mcp.serve("127.0.0.1:0", &serving).await;
    let name = format!("xds://{address}");
    let folder = tempfile::tempdir().expect("a folder");
    let config = format!("configSources: [{{address: '{name}'}}, {{address: 'k8s://'}}]\n");
    let setup = Setup::new().with(&["--mesh-config", &mesh_config(&folder, &config)]);
    let own = json!({
        "apiVersion": "networking.istio.io/v1",
        "kind": "ServiceEntry",
        "metadata": {"name": "a", "namespace": "shop"},
        "spec": {
            "hosts": ["own.example"],
            "ports": [{"number": 80, "name": "http"}],
            "resolution": "STATIC",
            "endpoints": [{"address": "192.0.2.9"}],
        },
    });
    setup.put("own", &own);
    let strait = setup.start_ready().await;

    // The first version contains it, and it shadows the object with the same name in the directory.
    assert_eq!(hosts(&strait).await.into_keys().collect::<Vec<_>>(), ["a.example"]);
    let own_line = source(&strait, "config directory").await;
    let warnings = own_line["warnings"].to_string();
    assert!(warnings.contains("STR0222: ServiceEntry shop/a of config directory"), "{warnings}");
    assert_eq!(mcp.contents.borrow().nodes.len(), 1);
    let node = mcp.contents.borrow().nodes[0].clone();
    assert_eq!(node, "sidecar~127.0.0.1~strait.strait-system~strait-system.svc.cluster.local true");

    // An invalid object affects only itself.
    let bad = resource("shop/a", "ServiceEntry", vec![0xff]);
    mcp.set("ServiceEntry", vec![bad, entry("shop/b", "b.example", "192.0.2.2")]);
    until_hosts(&strait, &[("a.example", &["192.0.2.1"]), ("b.example", &["192.0.2.2"])]).await;
    mcp.until(|contents| contents.refused.iter().any(|text| text.contains("shop/a"))).await;
    let line = until_source(&strait, &name, |line| line["warnings"] != json!([])).await;
    assert_eq!((&line["state"], &line["objects"]), (&json!("live"), &json!(2)));

    // The winning object is removed: the directory's object is used again.
    mcp.set("ServiceEntry", vec![entry("shop/b", "b.example", "192.0.2.3")]);
    until_hosts(&strait, &[("b.example", &["192.0.2.3"]), ("own.example", &["192.0.2.9"])]).await;

    // The server stops: its objects stay.
    assert!(serving.shut_down(LIMIT).await);
    mcp.contents.send_modify(|contents| contents.up = false);
    let line = until_source(&strait, &name, |line| line["code"] == "STR0330").await;
    assert!(line["failures"].as_u64() > Some(0), "{line:#}");
    until_hosts(&strait, &[("b.example", &["192.0.2.3"]), ("own.example", &["192.0.2.9"])]).await;

    // It returns with other contents.
    mcp.set("ServiceEntry", vec![entry("shop/c", "c.example", "192.0.2.4")]);
    let again = Supervisor::new();
    mcp.serve(&address.to_string(), &again).await;
    until_hosts(&strait, &[("c.example", &["192.0.2.4"]), ("own.example", &["192.0.2.9"])]).await;
    let line = until_source(&strait, &name, |line| line["code"].is_null()).await;
    assert_eq!(line["state"], "live");

    // It is removed from the mesh config, and so are its objects.
    mesh_config(&folder, "configSources: []\n");
    until_hosts(&strait, &[("own.example", &["192.0.2.9"])]).await;
    strait.shut_down().await;
    again.shut_down(LIMIT).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn traffic_rules_and_token_rules_of_an_mcp_server_take_effect() {
    let serving = Supervisor::new();
    let mcp = Mcp::new();
    mcp.set("ServiceEntry", vec![entry("shop/a", "a.example", "192.0.2.1")]);
    let networking = "istio.networking.v1alpha3";
    let rule =
        json!({ "match": [{ "uri": { "prefix": "/old" } }], "directResponse": { "status": 410 } });
    let objects = [
        (
            "networking.istio.io/v1",
            networking,
            "VirtualService",
            json!({ "hosts": ["a.example"], "http": [rule] }),
        ),
        (
            "networking.istio.io/v1",
            networking,
            "DestinationRule",
            json!({ "host": "a.example", "trafficPolicy": { "connectionPool": { "tcp": { "connectTimeout": "7s" } } } }),
        ),
        (
            "networking.istio.io/v1",
            networking,
            "Gateway",
            json!({ "selector": { "a": "b" }, "servers": [{ "port": { "number": 80, "name": "http", "protocol": "HTTP" }, "hosts": ["*"] }] }),
        ),
        (
            "networking.istio.io/v1",
            networking,
            "Sidecar",
            json!({ "workloadSelector": { "labels": { "a": "b" } }, "egress": [{ "hosts": ["./*"] }] }),
        ),
        (
            "networking.istio.io/v1alpha3",
            networking,
            "EnvoyFilter",
            json!({ "workloadSelector": { "labels": { "a": "b" } } }),
        ),
        (
            "networking.istio.io/v1beta1",
            "istio.networking.v1beta1",
            "ProxyConfig",
            json!({ "concurrency": 2 }),
        ),
        (
            "telemetry.istio.io/v1",
            "istio.telemetry.v1alpha1",
            "Telemetry",
            json!({ "accessLogging": [{ "providers": [{ "name": "envoy" }] }] }),
        ),
        (
            "security.istio.io/v1",
            "istio.security.v1beta1",
            "RequestAuthentication",
            json!({ "jwtRules": [{ "issuer": "i", "jwks": KEYS }] }),
        ),
    ];
    for (group, package, kind, spec) in &objects {
        let message = format!("{package}.{kind}");
        let body = strait_proto::json::from_json(&message, spec).expect("a message");
        let metadata = Metadata { name: "shop/x".to_owned(), ..Metadata::default() };
        let body = Some(Any { type_url: format!("type.googleapis.com/{message}"), value: body });
        let resource = Resource { metadata: Some(metadata), body };
        let type_url = "type.googleapis.com/istio.mcp.v1alpha1.Resource".to_owned();
        let any = Any { type_url, value: resource.encode_to_vec() };
        mcp.contents.send_modify(|contents| {
            contents.types.insert(format!("{group}/{kind}"), vec![any]);
        });
    }
    let address = mcp.serve("127.0.0.1:0", &serving).await;
    let east = Member::start("east", "n1", "198.18.0.1").await;
    let folder = tempfile::tempdir().expect("a folder");
    let config = format!("configSources: [{{address: 'xds://{address}'}}]\n");
    let setup = Setup::new().with(&["--mesh-config", &mesh_config(&folder, &config)]);
    setup.join(&[&east]);
    let strait = setup.start_ready().await;
    let client = strait.connect(&setup, &Proxy::sidecar("east")).await;
    let wanted: Vec<&str> = objects.iter().map(|(_, _, kind, _)| *kind).collect();
    wait_until(LIMIT, async || {
        let states = strait.admin.json("/debug/config?namespace=shop&name=x").await;
        let states = states.as_array().expect("a list");
        let kinds: Vec<_> = states.iter().filter_map(|one| one["kind"].as_str()).collect();
        let all = wanted.iter().all(|kind| kinds.contains(kind));
        holds(all && states.iter().all(|one| one["state"] != "refused"), states)
    })
    .await;
    // Proxies receive the configuration of these objects.
    wait_until(LIMIT, async || {
        let contents = client.held();
        let routes: Vec<_> = contents.names(ResourceType::Route).collect();
        let body = contents.body(ResourceType::Route, "80").unwrap_or_default();
        holds(body.windows(4).any(|part| part == b"/old"), routes)
    })
    .await;
    let url = "http://a.example/old";
    let explained = strait.strait(&["explain", "route", "client.shop", "GET", url]).await;
    let printed = String::from_utf8_lossy(&explained.stdout).into_owned();
    assert!(printed.contains("410"), "{printed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_sources_delay_readiness_only_for_their_limit() {
    let folder = tempfile::tempdir().expect("a folder");
    // Both ports are unused.
    let port = TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("bound");
    let config = mesh_config(&folder, &format!("configSources: [{{address: 'xds://{port}'}}]\n"));
    let consul = format!("http://{port}");
    let flags = ["--mesh-config", &config, "--consul-address", &consul];
    let setup = Setup::new().with(&flags).with(&["--remote-cluster-timeout", "1s"]);
    let strait = setup.start_ready().await;
    let line = source(&strait, "consul").await;
    assert_eq!((&line["state"], &line["code"]), (&json!("timeout"), &json!("STR0320")));
    let line = source(&strait, &format!("xds://{port}")).await;
    assert_eq!((&line["state"], &line["code"]), (&json!("timeout"), &json!("STR0330")));
    strait.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mcp_server_and_strait_authenticate_each_other() {
    let serving = Supervisor::new();
    let mcp = Mcp::new();
    mcp.set("ServiceEntry", vec![entry("shop/a", "a.example", "192.0.2.1")]);
    let made = |name: &str| rcgen::generate_simple_self_signed([name.to_owned()]).expect("made");
    let (server, client) = (made("mcp.example"), made("strait.example"));
    let address = mcp.serve_tls(&server, &client, &serving).await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: String| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    };
    let (ca, cert) = (file("ca", server.cert.pem()), file("cert", client.cert.pem()));
    let key = file("key", client.signing_key.serialize_pem());
    let config = |sni: &str| {
        json!({"configSources": [{"address": format!("xds://{address}"), "tlsSettings": {
            "mode": "MUTUAL", "caCertificates": ca, "clientCertificate": cert, "privateKey": key, "sni": sni,
        }}]})
        .to_string()
    };
    let file = mesh_config(&folder, &config("other.example"));
    let flags = ["--mesh-config", &file, "--remote-cluster-timeout", "1s"];
    let setup = Setup::new().with(&flags);
    let strait = setup.start_ready().await;
    // Its certificate is for another name.
    let name = format!("xds://{address}");
    until_source(&strait, &name, |line| line["code"] == "STR0332").await;
    assert_eq!(mcp.contents.borrow().streams, 0);
    mesh_config(&folder, &config("mcp.example"));
    until_hosts(&strait, &[("a.example", &["192.0.2.1"])]).await;
    strait.shut_down().await;
    serving.shut_down(LIMIT).await;
}

/// Starts a Consul with one constant service, `web`, with two instances.
async fn consul(tasks: &Supervisor) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let bound = listener.local_addr().expect("bound");
    let connections = tasks.clone();
    tasks.spawn("consul", async move {
        while let Ok((stream, _)) = listener.accept().await {
            connections.spawn("consul connection", async move {
                let _ = answer(stream).await;
            });
        }
    });
    bound
}

async fn answer(stream: TcpStream) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        let target = line.split(' ').nth(1).unwrap_or_default().to_owned();
        while line != "\r\n" {
            line.clear();
            if stream.read_line(&mut line).await? == 0 {
                return Ok(());
            }
        }
        if target.contains("index=") {
            std::future::pending::<()>().await;
        }
        let path = target.split('?').next().unwrap_or_default();
        let instance = |id: &str, address: &str, network: &str| {
            json!({
                "Node": {"Node": "n", "Address": address},
                "Service": {"ID": id, "Port": 8080, "Meta": {"protocol": "http", "network": network}},
                "Checks": [{"Status": "passing"}],
            })
        };
        let body = match path {
            "/v1/status/leader" => json!("127.0.0.1:8300"),
            "/v1/catalog/datacenters" => json!(["dc1"]),
            "/v1/catalog/services" => json!({"web": []}),
            _ => json!([instance("web-1", "10.7.0.1", "n1"), instance("web-2", "10.7.0.2", "n9")]),
        }
        .to_string();
        let head = format!(
            "HTTP/1.1 200 OK\r\nx-consul-index: 7\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(body.as_bytes()).await?;
        stream.flush().await?;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn consul_services_reach_proxies_and_explain_names_their_source() {
    let tasks = Supervisor::new();
    let consul = format!("http://{}", consul(&tasks).await);
    let east = Member::start("east", "n1", "198.18.0.1").await;
    let setup = Setup::new().with(&["--consul-address", &consul]);
    setup.join(&[&east]);
    let server = setup.start_ready().await;
    let mut client = server.connect(&setup, &Proxy::sidecar("east")).await;
    let name = "outbound|8080||web.service.consul";
    let wanted = [("10.7.0.1:8080".parse().expect("an address"), 1)].into();
    let received = client.wait_for(|received| received.endpoints(name) == wanted);
    tokio::time::timeout(LIMIT, received).await.expect("in time").expect("the stream lives");

    let path = "/debug/explain?proxy=client.shop@east&hostname=web.service.consul";
    let explained = server.admin.json(path).await;
    let verdicts: Vec<_> = explained["endpoints"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| (one["cluster"].as_str(), one["verdict"].as_str()))
        .collect();
    let cluster = Some("consul/dc1");
    assert_eq!(verdicts, [(cluster, Some("direct")), (cluster, Some("withheld"))], "{explained:#}");
    let printed = explained.to_string();
    assert!(printed.contains("instance web-1.default of consul/dc1"), "{explained:#}");
    assert!(printed.contains("network n9 has no gateway"), "{explained:#}");
    let endpoints = server.admin.json("/debug/endpoints?hostname=web.service.consul").await;
    assert_eq!(endpoints[0]["provider"], "Consul");
    let (_, metrics) = server.admin.text("/metrics").await;
    assert!(metrics.contains("strait_source_state{source=\"consul/dc1\",state=\"live\"} 1"));
    server.shut_down().await;
    tasks.shut_down(LIMIT).await;
}

/// Returns a ServiceEntry as an API server stores it.
fn stored_entry(name: &str, host: &str, address: &str) -> Value {
    json!({
        "apiVersion": "networking.istio.io/v1",
        "kind": "ServiceEntry",
        "metadata": {"name": name, "namespace": "shop", "creationTimestamp": "2026-03-01T00:00:00Z"},
        "spec": {
            "hosts": [host],
            "ports": [{"number": 80, "name": "http"}],
            "resolution": "STATIC",
            "endpoints": [{"address": address}],
        },
    })
}

/// Returns all resources of a proxy of the config cluster, once it has these hosts.
async fn given(setup: &Setup, strait: &Strait, hosts: &[&str]) -> Vec<(ResourceType, Bodies)> {
    let mut client = strait.connect(setup, &Proxy::sidecar("config")).await;
    let received = client.wait_for(|received| {
        let names: Vec<_> = received.names(ResourceType::Endpoint).collect();
        hosts.iter().all(|host| names.iter().any(|name| name.ends_with(host)))
    });
    tokio::time::timeout(LIMIT, received).await.expect("in time").expect("the stream lives");
    substance(&quiet(strait, &client).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn restart_without_reachable_sources_serves_the_same_bytes_and_reports_it() {
    const HOSTS: &[&str] = &["own.example", "kept.example", "mcp.example", "web.service.consul"];
    let serving = Supervisor::new();
    let mcp = Mcp::new();
    mcp.set("ServiceEntry", vec![entry("shop/mcp", "mcp.example", "192.0.2.1")]);
    let address = mcp.serve("127.0.0.1:0", &serving).await;
    let consul = format!("http://{}", consul(&serving).await);
    let hub = SimCluster::start("hub", Default::default()).await.expect("a free port");
    hub.enable(Family::Istio);
    // The version that the server serves is read.
    let group = "networking.istio.io".to_owned();
    hub.fault(Fault::OnlyVersion { group, version: "v1alpha3".to_owned() });
    let apply = |object| hub.store().apply(object).expect("a valid object");
    apply(objects::namespace(SYSTEM));
    apply(stored_entry("own", "own.example", "192.0.2.9"));
    apply(stored_entry("kept", "kept.example", "192.0.2.8"));
    apply(json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "strait", "namespace": SYSTEM},
        "data": {"mesh": format!("configSources: [{{address: 'xds://{address}'}}]")},
    }));
    let setup = Setup::new();
    let kubeconfig = setup.path("kubeconfig");
    std::fs::write(&kubeconfig, hub.kubeconfig()).expect("written");
    let mut arguments = setup.arguments();
    let at = arguments.iter().position(|one| one == "--config-dir").expect("there");
    arguments.splice(at..at + 2, ["--kubeconfig".to_owned(), kubeconfig.display().to_string()]);
    arguments.extend(["--consul-address".to_owned(), consul]);

    let first = setup.start_as(arguments.clone()).await;
    first.ready().await;
    first.cluster_in("config", "live").await;
    until_source(&first, "consul/dc1", |line| line["state"] == "live").await;
    // An entry that becomes invalid keeps its last valid version, also after the restart.
    let mut bad = stored_entry("kept", "kept.example", "192.0.2.8");
    bad["spec"]["resolution"] = "SOMEHOW".into();
    apply(bad);
    wait_until(LIMIT, async || {
        let faulty = first.admin.metric("strait_config_objects_faulty").await;
        holds((faulty - 1.0).abs() < f64::EPSILON, faulty)
    })
    .await;
    let before = given(&setup, &first, HOSTS).await;
    first.shut_down().await;

    hub.stop().await;
    assert!(serving.shut_down(LIMIT).await);
    mcp.contents.send_modify(|contents| contents.up = false);
    let began = std::time::Instant::now();
    let second = setup.start_as(arguments.clone()).await;
    second.ready().await;
    let elapsed = began.elapsed();
    // Two seconds on an idle machine; far less than the 30 s for which a source delays readiness.
    assert!(elapsed.as_secs() < 10, "{elapsed:?}");
    let after = given(&setup, &second, HOSTS).await;
    assert!(after == before, "the bytes have changed");
    for name in ["consul", "consul/dc1", &format!("xds://{address}"), "config cluster"] {
        let line = until_source(&second, name, |line| line["state"] == "restored").await;
        let reason = line["reason"].as_str().expect("a reason");
        assert!(reason.starts_with("from disk, last contact "), "{line:#}");
        assert!(line["lastContact"].is_string(), "{line:#}");
    }
    until_source(&second, "consul", |line| line["code"] == "STR0320").await;
    until_source(&second, &format!("xds://{address}"), |line| line["code"] == "STR0330").await;
    let line = source(&second, "consul/dc1").await;
    assert_eq!((&line["services"], &line["endpoints"]), (&json!(1), &json!(2)), "{line:#}");
    second.shut_down().await;

    // Restored state is written again; then each source takes over by itself.
    let third = setup.start_as(arguments).await;
    third.ready().await;
    assert!(given(&setup, &third, HOSTS).await == before, "the bytes have changed");
    let again = Supervisor::new();
    mcp.set("ServiceEntry", vec![entry("shop/mcp", "new.example", "192.0.2.1")]);
    mcp.serve(&address.to_string(), &again).await;
    let name = format!("xds://{address}");
    until_source(&third, &name, |line| line["state"] == "live").await;
    given(&setup, &third, &["new.example", "own.example", "kept.example"]).await;
    assert_eq!(source(&third, "config cluster").await["state"], "restored");
    hub.store().delete("ServiceEntry", "shop", "own").expect("there is one");
    hub.restart().await;
    until_source(&third, "config cluster", |line| line["state"] == "live").await;
    let web: &[&str] = &["10.7.0.1", "10.7.0.2"];
    let wanted: [(&str, &[&str]); 3] = [
        ("kept.example", &["192.0.2.8"]),
        ("new.example", &["192.0.2.1"]),
        ("web.service.consul", web),
    ];
    until_hosts(&third, &wanted).await;
    // It is unreachable again, and its entry reports it like its entry among the clusters.
    hub.stop().await;
    let line = until_source(&third, "config cluster", |line| line["state"] == "stale").await;
    assert_eq!(line["code"], "STR0301", "{line:#}");
    assert!(line["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{line:#}");
    assert!(line["lastContact"].is_string(), "{line:#}");
    third.shut_down().await;
    again.shut_down(LIMIT).await;
}
