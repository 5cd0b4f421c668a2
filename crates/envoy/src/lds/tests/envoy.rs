//! Tests of listeners and routes with a real Envoy. Skipped with a message if Envoy is not
//! installed.

mod filters;
mod memory;
mod policies;
mod remote_pods;
mod rules;
mod service_metrics;
mod sidecars;
mod spans;
mod upgrades;

use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    SanType,
};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::lds::inbound;
use crate::rbac::AccessFilters;
use crate::tls::{Secrets, client_trust_domains};
use strait_mesh::push::proxy::{inbound_targets, served_in};
use strait_model::mesh_config::{AccessLog, AccessLogEncoding, AccessLogFormat, command_operators};
use strait_model::testing::named_endpoint;
use strait_model::{ByName, Interception};
use strait_rules::access::PeerModes;
use strait_rules::traffic::telemetry::{self, WrittenLog};

/// Maximum time for a response of an Envoy.
const WAIT_LIMIT: Duration = Duration::from_secs(20);
/// Maximum time for its start, which reads the configuration of many workloads next to other tests.
const START_LIMIT: Duration = Duration::from_secs(60);
const IDENTITY: &str = "spiffe://cluster.local/ns/ns/sa/app";

/// Returns the Envoy in `STRAIT_ENVOY`, or the newest Envoy that `tests/components/install`
/// installed.
pub(super) fn envoy() -> Option<PathBuf> {
    found("STRAIT_ENVOY", "envoy-1.40/envoy")
}

/// Returns the promtool in `STRAIT_PROMTOOL`, or the one that `tests/components/install` installed.
pub(super) fn promtool() -> Option<PathBuf> {
    found("STRAIT_PROMTOOL", "promtool-1/promtool")
}

/// Returns the Envoy in `STRAIT_ENVOY_OLD`, or the oldest Envoy that `tests/components/install`
/// installed.
pub(super) fn old_envoy() -> Option<PathBuf> {
    found("STRAIT_ENVOY_OLD", "envoy-1.36/envoy")
}

/// Returns the installed Envoys of both versions.
pub(super) fn envoys() -> impl Iterator<Item = PathBuf> {
    [envoy(), old_envoy()].into_iter().flatten()
}

/// Returns the program that an environment variable names, or the one at a path in the folder of the
/// installed components.
fn found(variable: &str, path: &str) -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
    let installed = cache.map(|cache| cache.join("strait/components").join(path));
    let found = set(variable).or(installed).filter(|path| path.exists());
    if found.is_none() {
        let line = format!("SKIPPED {}: no {path}, run tests/components/install\n", module_path!());
        std::io::stderr().write_all(line.as_bytes()).expect("stderr");
        if let Some(path) = std::env::var_os("STRAIT_SKIPS") {
            let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
            file.and_then(|mut file| file.write_all(line.as_bytes())).expect("a file");
        }
        let required = std::env::var_os("STRAIT_REAL").is_some_and(|value| value == "required");
        assert!(!required, "real tests are required here, and there is no {path}");
    }
    found
}

/// Returns the static secrets of a bootstrap, with one identity for all proxies.
fn secrets() -> Value {
    Authority::new().secrets()
}

/// A CA that signs any identity.
pub(super) struct Authority {
    root: CertificateParams,
    key: KeyPair,
    pub(super) pem: String,
}

impl Authority {
    pub(super) fn new() -> Self {
        let mut root = CertificateParams::default();
        root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        root.distinguished_name.push(DnType::CommonName, "root");
        let key = KeyPair::generate().expect("a key");
        let pem = root.self_signed(&key).expect("a certificate").pem();
        Self { root, key, pem }
    }

    /// Returns a certificate for an identity, and its key.
    pub(super) fn sign(&self, identity: &str) -> (rcgen::Certificate, KeyPair) {
        self.sign_name(SanType::URI(identity.try_into().expect("ASCII")))
    }

    /// Returns a certificate for a name, and its key.
    fn sign_name(&self, name: SanType) -> (rcgen::Certificate, KeyPair) {
        let mut leaf = CertificateParams::default();
        leaf.subject_alt_names = vec![name];
        leaf.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate().expect("a key");
        let issuer = Issuer::from_params(&self.root, &self.key);
        (leaf.signed_by(&key, &issuer).expect("signed"), key)
    }

    pub(super) fn secrets(&self) -> Value {
        let (signed, key) = self.sign(IDENTITY);
        json!([
            {"name": "default", "tls_certificate": {
                "certificate_chain": {"inline_string": signed.pem()},
                "private_key": {"inline_string": key.serialize_pem()},
            }},
            {"name": "ROOTCA", "validation_context": {"trusted_ca": {"inline_string": self.pem}}},
        ])
    }
}

pub(super) fn at_loopback(port: u16) -> Value {
    json!({"socket_address": {"address": "127.0.0.1", "port_value": port}})
}

pub(super) fn to_loopback(name: &str, port: u16) -> Value {
    let endpoint = json!({"endpoint": {"address": at_loopback(port)}});
    json!({"cluster_name": name, "endpoints": [{"lb_endpoints": [endpoint]}]})
}

/// Returns a bootstrap with these listeners and upstream clusters. Its control plane does not
/// exist.
pub(super) fn bootstrap(listeners: Vec<Value>, mut clusters: Vec<Value>) -> Value {
    clusters.push(json!({
        "name": "xds", "type": "STATIC", "load_assignment": to_loopback("xds", 1),
        "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": {"http2_protocol_options": {}},
        }},
    }));
    json!({
        "node": {"id": "test", "cluster": "test"},
        "admin": {"address": at_loopback(0)},
        "dynamic_resources": {"ads_config": {
            "api_type": "DELTA_GRPC", "transport_api_version": "V3",
            "grpc_services": [{"envoy_grpc": {"cluster_name": "xds"}}],
        }},
        "static_resources": {"listeners": listeners, "clusters": clusters, "secrets": secrets()},
    })
}

fn written(directory: &Path, bootstrap: &Value) -> PathBuf {
    let file = directory.join("envoy.json");
    std::fs::write(&file, bootstrap.to_string()).expect("a file");
    file
}

fn validation(envoy: &Path, bootstrap: &Value) -> std::process::Output {
    let directory = tempfile::tempdir().expect("a directory");
    let file = written(directory.path(), bootstrap);
    let mut command = std::process::Command::new(envoy);
    command.args(["--mode", "validate", "-l", "warning", "-c"]).arg(&file);
    command.output().expect("envoy runs")
}

pub(super) fn validated(envoy: &Path, what: &str, bootstrap: &Value) {
    let run = validation(envoy, bootstrap);
    let output = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{what}: {output}");
    assert!(!output.contains("deprecated"), "{what}: {output}");
}

/// Returns the names of the route configurations that a listener requests.
fn requested_routes(listener: &Value) -> Vec<String> {
    let chains = listener["filter_chains"].as_array().into_iter().flatten();
    let chains = chains.chain(listener.get("default_filter_chain"));
    let filters = chains.filter_map(|chain| chain["filters"].as_array()?.last());
    let name = |filter: &Value| {
        filter["typed_config"]["rds"]["route_config_name"].as_str().map(str::to_owned)
    };
    filters.filter_map(name).collect()
}

/// Inlines the route configuration of a listener that requests one by name.
fn inlined(context: &Arc<PushContext>, proxy: &Proxy, mut listener: Value) -> Value {
    let [name] = &requested_routes(&listener)[..] else { return listener };
    let config = &mut listener["filter_chains"][0]["filters"][0]["typed_config"];
    config["route_config"] = route(context, proxy, name);
    config.as_object_mut().expect("an object").remove("rds");
    listener
}

fn every_protocol() -> Vec<Port> {
    let protocols = ["http", "http2", "grpc", "grpc-web", "https", "tls", "tcp", "mysql", "redis"];
    let named = protocols.iter().zip(8001_u16..);
    let ports = named.map(|(name, number)| port(name, number, number + 1000));
    ports.chain([port("", 8100, 9100), port("x", 8101, 9101), udp("dns", 53, 53)]).collect()
}

#[test]
fn envoy_accepts_every_listener_and_route() {
    let Some(envoy) = envoy() else { return };
    let app = service("app.ns").vip("10.1.0.1").vip("fd00::1").ports(every_protocol());
    let db = service("db.ns").headless().ports(vec![port("", 7000, 7000), port("http", 8001, 1)]);
    let alias = service("www.ns").with(|it| it.resolution = Resolution::Alias(host("app.ns")));
    let invalid = service("odd.ns").vip("10.1.0.9").with(|it| it.hostname = "odd name\n".into());
    let pods = vec![at("10.0.0.2", "", 7000), at("fd00:1::2", "", 7000)];
    let pod = workload("client.ns", "10.0.0.1", &[("app", "app")]);
    let services = shard("east", 1)
        .network("n1")
        .with(app, vec![])
        .with(db, pods)
        .with(alias, vec![])
        .with(invalid, vec![]);
    let context = context(vec![services.pod(pod).built()]);
    let v6 = ip("fd00:1::1");
    let mut proxies = vec![east_west_gateway(), client()];
    proxies.push(Proxy { addresses: vec![ip("10.0.0.1"), v6], ..client() });
    proxies.push(Proxy { addresses: vec![v6], ..client() });
    for proxy in proxies {
        let clusters =
            list_resources(&context, &proxy, ResourceType::Cluster).into_values().collect();
        let mut all: Vec<_> = listeners(&context, &proxy).into_values().collect();
        let routed: Vec<_> = all
            .iter()
            .filter(|listener| !requested_routes(listener).is_empty())
            .enumerate()
            .map(|(index, listener)| {
                // An additional listener, on a separate address.
                let mut listener = inlined(&context, &proxy, listener.clone());
                listener["name"] = format!("routed-{index}").into();
                listener["address"] = at_loopback(20000 + u16::try_from(index).expect("few"));
                listener.as_object_mut().expect("an object").remove("additional_addresses");
                listener
            })
            .collect();
        all.extend(routed);
        assert!(all.iter().any(|listener| chains(listener).len() > 1));
        validated(&envoy, &proxy.id, &bootstrap(all, clusters));
    }
}

#[test]
fn envoys_resolve_names_without_deprecated_fields() {
    let Some(envoy) = envoy() else { return };
    let named = |just_then: bool| {
        let endpoints = ["a.example", "b.example"].map(named_endpoint).into();
        Resolution::ByName(ByName { just_then, endpoints })
    };
    let all = service("all.ns").with(|it| it.resolution = named(false));
    let first = service("first.ns").with(|it| it.resolution = named(true));
    let services = shard("east", 1).network("n1").with(all, vec![]).with(first, vec![]);
    let context = context(vec![services.built()]);
    let old = old_envoy();
    for (envoy, release) in [(Some(envoy), (1, 40)), (old, (1, 36))]
        .into_iter()
        .filter_map(|(one, release)| Some((one?, release)))
    {
        let proxy = Proxy { envoy_release: Some(release), ..client() };
        let clusters = list_resources(&context, &proxy, ResourceType::Cluster);
        assert_eq!(clusters.keys().filter(|name| name.starts_with("outbound|")).count(), 2);
        validated(
            &envoy,
            &format!("{release:?}"),
            &bootstrap(vec![], clusters.into_values().collect()),
        );
    }
}

#[test]
fn envoys_accept_optional_settings_of_the_mesh_config() {
    let Some(envoy) = envoy() else { return };
    let operators = command_operators::all();
    let formats = [
        AccessLogFormat::usual(AccessLogEncoding::Text),
        AccessLogFormat::usual(AccessLogEncoding::Json),
        AccessLogFormat::text(&operators).expect("all are known"),
        AccessLogFormat::json(json!({"a": {"b": [operators, 1, true]}})).expect("all are known"),
    ];
    let deep = telemetry::as_deep_as_envoys_take();
    let expressions = telemetry::READABLE.into_iter().chain(deep.iter().map(String::as_str));
    let filters = [None; 4].into_iter().chain(expressions.map(Some));
    let formats = formats.into_iter().cycle();
    for (at, (format, filter)) in formats.zip(filters).enumerate() {
        let listener = logging_listener(format, filter);
        assert!(listener.to_string().contains("/dev/stdout"));
        assert!(listener.to_string().contains("grpc_web"));
        for envoy in std::iter::once(envoy.clone()).chain(old_envoy()) {
            validated(&envoy, &format!("log{at}"), &bootstrap(vec![listener.clone()], vec![]));
        }
    }
}

/// The check of expressions is no stricter than Envoy.
#[test]
fn envoys_refuse_the_expressions_and_operators_that_strait_refuses() {
    let Some(envoy) = envoy() else { return };
    let deep = telemetry::too_deep_for_envoys();
    let expressions = telemetry::UNREADABLE.into_iter().map(|(text, _)| text);
    let expressions = expressions.chain(deep.iter().map(String::as_str));
    let filtered = expressions.map(|text| {
        let format = AccessLogFormat::usual(AccessLogEncoding::Text);
        (text, logging_listener(format, Some(text)))
    });
    let operators = command_operators::UNREADABLE.into_iter().map(|text| {
        let format = AccessLogFormat::Text(format!("{text}\n").into());
        (text, logging_listener(format, None))
    });
    for (text, listener) in filtered.chain(operators) {
        for envoy in std::iter::once(envoy.clone()).chain(old_envoy()) {
            let run = validation(&envoy, &bootstrap(vec![listener.clone()], vec![]));
            assert!(!run.status.success(), "{} takes {text}", envoy.display());
        }
    }
}

/// Returns an inbound listener with access logs in this format, restricted to calls that match a
/// filter.
fn logging_listener(format: AccessLogFormat, filter: Option<&str>) -> Value {
    let (context, proxy) = serving(every_protocol());
    let view = ViewKey::of(&proxy, "n1".into(), Role::Client);
    let served = served_in(&context, &proxy.cluster, proxy.namespace());
    let targets = inbound_targets(&context, &proxy, &served);
    assert!(!targets.is_empty());
    let clients = client_trust_domains(&context);
    let log = AccessLog { path: "/dev/stdout".to_owned(), format };
    let settings = TrafficSettings {
        logs: Arc::new([WrittenLog { log: Arc::new(log), filter: filter.map(Into::into) }]),
        detection_timeout: Duration::from_secs(5),
        ..TrafficSettings::for_mesh(&context.mesh)
    };
    let workload = inbound::InboundWorkload {
        secrets: &Secrets::for_proxy(&proxy),
        trust_domains: &clients,
        modes: &PeerModes::default(),
        filters: &AccessFilters::default(),
    };
    let made = inbound::listener(
        &settings,
        ((view.ipv4, view.ipv6), Interception::default()),
        workload,
        &targets,
    );
    let made = made.expect("a family");
    let listener = to_json(ResourceType::Listener.url(), &made.body.to_bytes());
    listener.expect("a message")
}

/// An Envoy process that is stopped on drop.
pub(super) struct Running {
    _process: tokio::process::Child,
    _directory: tempfile::TempDir,
    admin: String,
}

impl Running {
    pub(super) async fn start(envoy: &Path, bootstrap: &Value) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let admin_file = directory.path().join("admin");
        let log = directory.path().join("log");
        let process = tokio::process::Command::new(envoy)
            .args(["--concurrency", "1", "--disable-hot-restart", "-l", "warning", "--log-path"])
            .arg(&log)
            .arg("--admin-address-path")
            .arg(&admin_file)
            .arg("-c")
            .arg(written(directory.path(), bootstrap))
            .envs(service_metrics::ENVIRONMENT)
            .kill_on_drop(true)
            .spawn()
            .expect("envoy starts");
        let mut running = Self { _process: process, _directory: directory, admin: String::new() };
        let mut tick = tokio::time::interval(Duration::from_millis(20));
        let ready = async {
            loop {
                tick.tick().await;
                running.admin = std::fs::read_to_string(&admin_file).unwrap_or_default();
                if !running.admin.is_empty() && running.query_admin("/ready").await.contains("LIVE")
                {
                    return;
                }
            }
        };
        if tokio::time::timeout(START_LIMIT, ready).await.is_err() {
            panic!("envoy is not ready: {}", std::fs::read_to_string(log).unwrap_or_default());
        }
        running
    }

    async fn query_admin(&self, path: &str) -> String {
        request(&self.admin, path, "").await
    }

    /// Returns the number of TLS handshakes of an upstream cluster.
    async fn handshakes(&self, upstream: &str) -> u64 {
        self.counter(upstream, "ssl.handshake").await
    }

    /// Returns a counter of an upstream cluster.
    async fn counter(&self, upstream: &str, name: &str) -> u64 {
        let stats = self.query_admin(&format!("/stats?filter={name}")).await;
        let line = format!("cluster.{upstream}.{name}: ");
        let value = stats.split(&line).nth(1).and_then(|rest| rest.lines().next());
        value.and_then(|value| value.trim().parse().ok()).unwrap_or_default()
    }
}

/// Sends an HTTP/1.1 request and returns everything that is received.
async fn request(address: &str, path: &str, headers: &str) -> String {
    let exchange = async {
        let mut stream = tokio::net::TcpStream::connect(address).await?;
        let head =
            format!("GET {path} HTTP/1.1\r\nhost: app.ns\r\nconnection: close\r\n{headers}\r\n");
        stream.write_all(head.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = tokio::time::timeout(WAIT_LIMIT, exchange).await;
    answer.unwrap_or_else(|_| panic!("{address} does not answer")).unwrap_or_default()
}

/// Starts a workload that responds with the HTTP version of the request, the client identity in its
/// header, and the header `x-told` if present.
#[expect(clippy::disallowed_methods, reason = "a test's own server, which ends with the test")]
pub(super) async fn workload_server() -> u16 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let answer = hyper::service::service_fn(|request: http::Request<_>| async move {
                let _: &hyper::body::Incoming = request.body();
                let identity = request.headers().get("x-forwarded-client-cert");
                let identity = identity.map_or("nobody", |value| value.to_str().unwrap_or("?"));
                let mut text = format!("<{:?} from {identity}>", request.version());
                if let Some(header) = request.headers().get("x-told") {
                    text += &format!(" told {}", header.to_str().unwrap_or("?"));
                }
                Ok::<_, std::convert::Infallible>(http::Response::new(http_body_util::Full::new(
                    bytes::Bytes::from(text),
                )))
            });
            tokio::spawn(async move {
                let io = hyper_util::rt::TokioIo::new(stream);
                let executor = hyper_util::rt::TokioExecutor::new();
                let server = hyper_util::server::conn::auto::Builder::new(executor);
                let _ = server.serve_connection(io, answer).await;
            });
        }
    });
    port
}

/// Returns ports that no process uses and that the system does not assign to outgoing connections.
/// A port that the system assigned is only reserved while its socket is open, but Envoy binds it
/// later.
pub(super) fn free_ports<const N: usize>() -> [u16; N] {
    // Below Linux's range for outgoing connections (`ip_local_port_range`, from 32768). Processes
    // start at different offsets.
    const FIRST: u32 = 16_384;
    const COUNT: u32 = 16_384;
    static NEXT: LazyLock<AtomicU32> =
        LazyLock::new(|| AtomicU32::new(std::process::id().wrapping_mul(256)));
    let next = || {
        let port = FIRST + NEXT.fetch_add(1, Ordering::Relaxed) % COUNT;
        u16::try_from(port).expect("below 32768")
    };
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let mut free = std::iter::repeat_with(next).filter(is_free);
    [(); N].map(|()| free.next().expect("endless"))
}

pub(super) fn static_cluster(mut cluster: Value, assignment: Value) -> Value {
    let fields = cluster.as_object_mut().expect("an object");
    for field in ["eds_cluster_config", "lb_policy"] {
        fields.remove(field);
    }
    cluster["type"] = "STATIC".into();
    cluster["load_assignment"] = assignment;
    cluster
}

/// Returns a bootstrap that combines the sidecar of a client with the sidecar of the workload at
/// `10.0.0.9`: the named outbound listeners on these ports, and the inbound listener on each port
/// of `inbound`, with the workload on loopback.
fn bootstrap_with_both_sidecars(
    (context, proxy): (&Arc<PushContext>, &Proxy),
    outbound: &[(&str, u16)],
    inbound: &[u16],
    workload: u16,
) -> Value {
    let all_listeners = listeners(context, proxy);
    let mut static_listeners = Vec::new();
    for (name, entry) in outbound {
        let mut listener = inlined(context, proxy, all_listeners[*name].clone());
        listener["address"] = at_loopback(*entry);
        listener["bind_to_port"] = true.into();
        static_listeners.push(listener);
    }
    for port in inbound {
        let mut listener = all_listeners["virtualInbound"].clone();
        listener["name"] = format!("inbound-{port}").into();
        listener["address"] = at_loopback(*port);
        static_listeners.push(listener);
    }
    let mut static_clusters = Vec::new();
    for (name, cluster) in list_resources(context, proxy, ResourceType::Cluster) {
        let assignment = match name.starts_with("outbound|") {
            // An endpoint of a cluster is never a loopback address, so it is replaced.
            true => {
                let assignment =
                    named_resource(context, proxy, ResourceType::Endpoint, &name).to_string();
                let here = assignment.replace("10.0.0.9", "127.0.0.1");
                serde_json::from_str(&here).expect("JSON")
            }
            false => to_loopback(&name, workload),
        };
        static_clusters.push(static_cluster(cluster, assignment));
    }
    bootstrap(static_listeners, static_clusters)
}

/// One Envoy acts as the sidecars of both client and server. Without redirection, each listener has
/// a separate port; everything else is unchanged.
#[tokio::test]
async fn plain_envoys_use_mtls_with_each_other_on_ports_of_every_kind() {
    let Some(envoy) = envoy() else { return };
    let [http, grpc, bytes, undeclared, unnamed] = free_ports();
    let entries: [u16; 4] = free_ports();
    let protocols =
        [("http", 80, http), ("grpc", 81, grpc), ("tcp", 82, bytes), ("", 83, undeclared)];
    let ports = protocols.map(|(name, number, target)| port(name, number, target)).to_vec();
    let endpoints = protocols.map(|(name, _, target)| at("10.0.0.9", name, target)).to_vec();
    let app = service("app.ns").vip("10.1.0.1").ports(ports);
    let pod = workload("client.ns", "10.0.0.1", &[("app", "app")]);
    let context =
        context(vec![shard("east", 1).network("n1").with(app, endpoints).pod(pod).built()]);
    let echo = workload_server().await;

    let names = ["0.0.0.0_80", "0.0.0.0_81", "10.1.0.1_82", "10.1.0.1_83"];
    let names: Vec<_> = names.into_iter().zip(entries).collect();
    let inbound = [http, grpc, bytes, undeclared, unnamed];
    let bootstrap = bootstrap_with_both_sidecars((&context, &client()), &names, &inbound, echo);
    let envoy = Running::start(&envoy, &bootstrap).await;

    // Through both sidecars: the workload receives the request with the identity from mTLS.
    let identity = format!("URI={IDENTITY}");
    let expected = [
        (80, "HTTP/1.1", identity.as_str()),
        (81, "HTTP/2.0", identity.as_str()),
        // Raw TCP is not parsed, and neither is the traffic of a client that has not detected the
        // protocol.
        (82, "HTTP/1.1", "nobody"),
        (83, "HTTP/1.1", "nobody"),
    ];
    for ((number, version, from), entry) in expected.into_iter().zip(entries) {
        let answer = request(&format!("127.0.0.1:{entry}"), "/", "").await;
        assert!(
            answer.contains(&format!("<{version} from ")) && answer.contains(from),
            "{number}: {answer}"
        );
        let upstream = format!("outbound|{number}||app.ns.svc.cluster.local");
        assert!(envoy.handshakes(&upstream).await > 0, "{number} came in plain text");
    }
    // In plain text from outside of the mesh: an identity that a plaintext client claims is
    // removed.
    let claim = format!("x-forwarded-client-cert: {identity}\r\n");
    for port in [http, undeclared, unnamed] {
        let answer = request(&format!("127.0.0.1:{port}"), "/", &claim).await;
        assert!(answer.contains("<HTTP/1.1 from nobody>"), "{port}: {answer}");
    }
    let answer = request(&format!("127.0.0.1:{bytes}"), "/", "").await;
    assert!(answer.contains("<HTTP/1.1 from nobody>"), "{answer}");
}
