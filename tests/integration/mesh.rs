//! A whole mesh in the test's process: simulated API servers, the real server on free ports,
//! proxies that record responses over mTLS, and the admin API.
//!
//! Each component is started by one line and ends with the test. Nothing sleeps for a fixed time:
//! [`wait_until`] repeats a check until it passes, and reports the last failure at its limit.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use clap::Parser;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::ClientConfig;
use serde_json::{Value, json};
use tempfile::TempDir;

use strait_base::task::Supervisor;
use strait_identity::{Authority, AuthorityPem, SpiffeId, tls};
use strait_proto::envoy::envoy::config::core::v3::Node;
use strait_proto::envoy::google::protobuf::{Struct, Value as ProtoValue, value::Kind};
use strait_server::Bound;
use strait_server::config::ServeArgs;
use strait_sim::objects::{Endpoint, HTTP, NETWORK_LABEL, Port};
use strait_sim::{Options as SimOptions, SimCluster, objects};
use strait_xds::resource::ResourceType;
use strait_xds::session::ProtocolForm;
use strait_xds_client::{Options as ClientOptions, XdsClient, XdsConnectError, channel};

/// The system namespace.
pub(crate) const SYSTEM: &str = "strait-system";
/// The namespace of the services in tests.
pub(crate) const SHOP: &str = "shop";
/// The time limit of anything that should be immediate, because the machine may be busy.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// Returns a port that was free.
pub(crate) fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("bound").port()
}

/// Repeats a check until it returns `Ok`. Panics with the last `Err` at the limit.
pub(crate) async fn wait_until<T>(
    limit: Duration,
    mut check: impl AsyncFnMut() -> Result<T, String>,
) -> T {
    let began = Instant::now();
    loop {
        let problem = match check().await {
            Ok(answer) => return answer,
            Err(problem) => problem,
        };
        assert!(began.elapsed() < limit, "not within {limit:?}: {problem}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Returns the whole output of a command.
pub(crate) fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Returns `Ok` if `is` is true, and otherwise `instead` as the error.
pub(crate) fn holds(is: bool, instead: impl std::fmt::Debug) -> Result<(), String> {
    if is { Ok(()) } else { Err(format!("{instead:#?}")) }
}

/// The data that survives a server: its configuration and state on disk, and the mesh's CA.
pub(crate) struct Setup {
    directory: TempDir,
    authority: Authority,
    flags: Vec<String>,
}

#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    serve: ServeArgs,
}

impl Default for Setup {
    fn default() -> Self {
        Self::new()
    }
}

impl Setup {
    /// Creates an empty configuration directory, and a CA.
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        std::fs::create_dir(directory.path().join("config")).expect("a directory");
        let files = AuthorityPem::generate(SystemTime::now()).expect("a CA");
        files.write(&directory.path().join("ca")).expect("written");
        let authority = Authority::new(&files, "test", SystemTime::now()).expect("a sound CA");
        Self { directory, authority, flags: Vec::new() }
    }

    /// Adds flags of `strait serve`.
    #[must_use]
    pub(crate) fn with(mut self, flags: &[&str]) -> Self {
        self.flags.extend(flags.iter().map(|flag| (*flag).to_owned()));
        self
    }

    /// Returns a path next to the configuration directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Returns the mesh's CA.
    pub(crate) fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Writes an object into the configuration, atomically.
    pub(crate) fn put(&self, name: &str, object: &Value) {
        replace(&self.path("config").join(format!("{name}.json")), &object.to_string());
    }

    /// Deletes an object from the configuration.
    pub(crate) fn take_out(&self, name: &str) {
        std::fs::remove_file(self.path("config").join(format!("{name}.json"))).expect("removed");
    }

    /// Makes clusters members, with one Secret each.
    pub(crate) fn join(&self, members: &[&Member]) {
        for member in members {
            self.put(member.id(), &member.secret());
        }
    }

    /// Returns the command line of `strait serve` for this setup.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let path = |name: &str| self.path(name).display().to_string();
        let (config, state, ca) = (path("config"), path("state"), path("ca"));
        let own_ca = self.flags.iter().any(|flag| flag == "--ca-dir" || flag == "--client-ca");
        let mut arguments: Vec<&str> =
            vec!["--xds-address", "127.0.0.1:0", "--admin-address", "127.0.0.1:0"];
        arguments.extend(["--config-dir", &config, "--state-dir", &state]);
        if !own_ca {
            arguments.extend(["--ca-dir", &ca]);
        }
        let given = self.flags.iter().map(String::as_str);
        arguments.into_iter().chain(given).map(str::to_owned).collect()
    }

    /// Returns the command line with another state directory, because each directory can have only
    /// one server.
    pub(crate) fn arguments_on(&self, state: &Path) -> Vec<String> {
        in_state_dir(self.arguments(), state)
    }

    /// Returns the command line with this config cluster instead of the directory.
    pub(crate) fn arguments_with(&self, hub: &SimCluster) -> Vec<String> {
        let kubeconfig = self.path("kubeconfig");
        std::fs::write(&kubeconfig, hub.kubeconfig()).expect("written");
        let mut arguments = self.arguments();
        let at = arguments.iter().position(|one| one == "--config-dir").expect("it is given");
        let path = kubeconfig.display().to_string();
        arguments.splice(at..at + 2, ["--kubeconfig".to_owned(), path]);
        arguments
    }

    /// Starts a server on free ports.
    pub(crate) async fn start(&self) -> Server {
        self.start_as(self.arguments()).await
    }

    /// Starts a server with this command line of `strait serve`.
    pub(crate) async fn start_as(&self, arguments: Vec<String>) -> Server {
        let name = ["strait".to_owned()];
        let flags = Flags::try_parse_from(name.into_iter().chain(arguments));
        let args = flags.unwrap_or_else(|error| panic!("{error}")).serve;
        let bound = strait_server::start(&args).await.unwrap_or_else(|error| panic!("{error}"));
        let token = std::fs::read_to_string(&bound.token_file).expect("a token");
        let admin = Admin::new(bound.admin, token.trim());
        Server { bound, admin, clients: Supervisor::new() }
    }

    /// Starts a replica with this config cluster and the named state directory, and waits until it
    /// is ready.
    pub(crate) async fn start_replica(&self, hub: &SimCluster, state: &str) -> Server {
        let arguments = in_state_dir(self.arguments_with(hub), &self.path(state));
        let server = self.start_as(arguments).await;
        server.ready().await;
        server
    }

    /// Starts a server and waits until it is ready.
    pub(crate) async fn start_ready(&self) -> Server {
        let server = self.start().await;
        server.ready().await;
        server
    }

    /// Returns a client's TLS configuration: a certificate for this service account of the mesh,
    /// and the CA as its root.
    pub(crate) fn certificate(&self, namespace: &str, account: &str) -> Arc<ClientConfig> {
        self.certificate_for(namespace, account, Duration::from_secs(3600))
    }

    /// Returns a client's TLS configuration whose certificate expires after `life`.
    pub(crate) fn certificate_for(
        &self,
        namespace: &str,
        account: &str,
        life: Duration,
    ) -> Arc<ClientConfig> {
        issue_certificate(&self.authority, &self.authority, namespace, account, life)
    }
}

fn in_state_dir(mut arguments: Vec<String>, state: &Path) -> Vec<String> {
    let at = arguments.iter().position(|one| one == "--state-dir").expect("it is given");
    arguments[at + 1] = state.display().to_string();
    arguments
}

/// Returns the TLS configuration of a client with a certificate of one CA that trusts another.
pub(crate) fn issue_certificate(
    signer: &Authority,
    believed: &Authority,
    namespace: &str,
    account: &str,
    life: Duration,
) -> Arc<ClientConfig> {
    let id = SpiffeId::new("cluster.local", namespace, account).expect("a valid identity");
    let issued = signer.issue_workload(&id, life, SystemTime::now()).expect("issued");
    let chain = issued.chain.certificates().to_vec();
    tls::client_config(chain, issued.key_der(), believed.roots()).expect("a configuration")
}

/// Replaces a file atomically: readers see the old or the new content.
pub(crate) fn replace(path: &Path, text: &str) {
    let temporary = path.with_extension("new");
    std::fs::write(&temporary, text).expect("written");
    std::fs::rename(&temporary, path).expect("renamed");
}

/// A running server. It ends with the test's runtime, or with [`Self::shut_down`].
pub(crate) struct Server {
    /// Its ports and its token.
    pub(crate) bound: Bound,
    /// Its admin API.
    pub(crate) admin: Admin,
    clients: Supervisor,
}

impl Server {
    /// Waits until it is ready.
    pub(crate) async fn ready(&self) {
        wait_until(SOON, async || {
            let (status, text) = self.admin.text("/readyz?verbose").await;
            holds(status == StatusCode::OK, text)
        })
        .await;
    }

    /// Waits until a cluster's entry in `/debug/clusters` passes, and returns it.
    pub(crate) async fn cluster_until(&self, id: &str, test: impl Fn(&Value) -> bool) -> Value {
        wait_until(SOON, async || {
            let entry = self.cluster(id).await;
            holds(test(&entry), &entry).map(|()| entry)
        })
        .await
    }

    /// Waits until a cluster is in this state, and returns its entry.
    pub(crate) async fn cluster_in(&self, id: &str, state: &str) -> Value {
        self.cluster_until(id, |entry| entry["state"] == state).await
    }

    /// Returns a cluster's first entry in `/debug/clusters`, or null if it has none.
    pub(crate) async fn cluster(&self, id: &str) -> Value {
        self.clusters(id).await.into_iter().next().unwrap_or_default()
    }

    /// Returns all entries of a cluster in `/debug/clusters`.
    pub(crate) async fn clusters(&self, id: &str) -> Vec<Value> {
        let all = self.admin.json("/debug/clusters").await;
        let all = all.as_array().expect("a list").iter();
        all.filter(|entry| entry["id"] == id).cloned().collect()
    }

    /// Connects a proxy with the Delta variant.
    pub(crate) async fn connect(&self, setup: &Setup, proxy: &Proxy) -> XdsClient {
        let options = ClientOptions::default();
        self.open(setup, proxy, options).await.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Connects a proxy.
    pub(crate) async fn open(
        &self,
        setup: &Setup,
        proxy: &Proxy,
        options: ClientOptions,
    ) -> Result<XdsClient, XdsConnectError> {
        let tls = setup.certificate(proxy.namespace, proxy.account);
        self.open_with(tls, proxy, options).await
    }

    /// Connects a proxy with this certificate.
    pub(crate) async fn open_with(
        &self,
        tls: Arc<ClientConfig>,
        proxy: &Proxy,
        options: ClientOptions,
    ) -> Result<XdsClient, XdsConnectError> {
        self.open_node(tls, proxy.node(), options).await
    }

    /// Connects a proxy with this certificate and node.
    pub(crate) async fn open_node(
        &self,
        tls: Arc<ClientConfig>,
        node: Node,
        options: ClientOptions,
    ) -> Result<XdsClient, XdsConnectError> {
        let channel = channel(self.bound.xds, "localhost", tls).await?;
        XdsClient::open(channel, node, options, &self.clients).await
    }

    /// Connects a proxy that answers its workload's DNS queries.
    pub(crate) async fn connect_resolving(&self, setup: &Setup, proxy: &Proxy) -> XdsClient {
        let mut node = proxy.node();
        let captures = ProtoValue { kind: Some(Kind::StringValue("true".to_owned())) };
        let metadata = node.metadata.get_or_insert_default();
        metadata.fields.insert("DNS_CAPTURE".to_owned(), captures);
        let tls = setup.certificate(proxy.namespace, proxy.account);
        let opened = self.open_node(tls, node, ClientOptions::default()).await;
        opened.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Runs `strait` with this server.
    pub(crate) async fn strait(&self, arguments: &[&str]) -> Output {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_strait"));
        command
            .args(arguments)
            .env_clear()
            .env("STRAIT_SERVER", format!("http://{}", self.bound.admin))
            .env("STRAIT_TOKEN_FILE", &self.bound.token_file);
        command.output().await.expect("the program runs")
    }

    /// Stops it, after its clients.
    pub(crate) async fn shut_down(self) {
        self.clients.shut_down(Duration::from_secs(5)).await;
        self.bound.shut_down().await;
    }
}

/// Returns options for the Delta or the SotW variant, without known resources.
pub(crate) fn from_nothing(form: ProtocolForm) -> ClientOptions {
    ClientOptions { form, ..ClientOptions::default() }
}

/// A client of the admin API.
#[derive(Clone)]
pub(crate) struct Admin {
    address: SocketAddr,
    token: String,
    http: HttpClient<HttpConnector, Empty<Bytes>>,
}

impl Admin {
    /// Returns a client of the server at this address, with this token.
    pub(crate) fn new(address: SocketAddr, token: &str) -> Self {
        let http = HttpClient::builder(TokioExecutor::new()).build_http();
        Self { address, token: token.to_owned(), http }
    }

    /// Returns status and body of a request with this `Authorization`.
    pub(crate) async fn get(
        &self,
        path: &str,
        authorization: Option<&str>,
    ) -> (StatusCode, String) {
        let send = || {
            let mut request = Request::get(format!("http://{}{path}", self.address));
            if let Some(value) = authorization {
                request = request.header(header::AUTHORIZATION, value);
            }
            self.http.request(request.body(Empty::new()).expect("a request"))
        };
        let response = match send().await {
            Ok(response) => response,
            // The server closed the persistent connection at this moment.
            Err(_) => send().await.expect("an answer"),
        };
        let status = response.status();
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        (status, String::from_utf8_lossy(&body).into_owned())
    }

    /// Returns status and body of a request with the token.
    pub(crate) async fn text(&self, path: &str) -> (StatusCode, String) {
        self.get(path, Some(&format!("Bearer {}", self.token))).await
    }

    /// Returns the JSON response.
    pub(crate) async fn json(&self, path: &str) -> Value {
        let (status, text) = self.text(path).await;
        assert_eq!(status, StatusCode::OK, "{path}: {text}");
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}: {text}"))
    }

    /// Returns the value of a metric without labels.
    pub(crate) async fn metric(&self, name: &str) -> f64 {
        let (_, text) = self.text("/metrics").await;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let value = line.unwrap_or_else(|| panic!("no metric {name}: {text}"));
        value.parse().expect("a number")
    }
}

/// A proxy with the properties in its node.
#[derive(Debug, Clone)]
pub(crate) struct Proxy {
    /// `sidecar` or `router`.
    pub(crate) kind: &'static str,
    /// The pod's name.
    pub(crate) name: &'static str,
    /// Its namespace.
    pub(crate) namespace: &'static str,
    /// Its service account.
    pub(crate) account: &'static str,
    /// `CLUSTER_ID`.
    pub(crate) cluster: String,
    /// `NETWORK`, if it claims one.
    pub(crate) network: Option<&'static str>,
    /// Its address.
    pub(crate) ip: String,
    /// `LABELS`.
    pub(crate) labels: Vec<(&'static str, String)>,
}

impl Proxy {
    /// Returns a sidecar of the pod `client.shop`, which is in no registry.
    pub(crate) fn sidecar(cluster: &str) -> Self {
        Self {
            kind: "sidecar",
            name: "client",
            namespace: SHOP,
            account: "client",
            cluster: cluster.to_owned(),
            network: None,
            ip: "10.99.0.1".to_owned(),
            labels: Vec::new(),
        }
    }

    /// Returns an east-west gateway, whose pod is in no registry.
    pub(crate) fn gateway(cluster: &str) -> Self {
        Self {
            kind: "router",
            name: "eastwestgateway-0",
            namespace: SYSTEM,
            account: "eastwestgateway",
            ip: "10.99.0.2".to_owned(),
            labels: vec![("app", "eastwestgateway".to_owned())],
            ..Self::sidecar(cluster)
        }
    }

    /// Returns its node ID.
    pub(crate) fn id(&self) -> String {
        let Self { kind, name, namespace, ip, .. } = self;
        format!("{kind}~{ip}~{name}.{namespace}~{namespace}.svc.cluster.local")
    }

    /// Returns the node for the first request.
    pub(crate) fn node(&self) -> Node {
        let text = |text: &str| ProtoValue { kind: Some(Kind::StringValue(text.to_owned())) };
        let labels = self.labels.iter().map(|(key, value)| ((*key).to_owned(), text(value)));
        let labels = Kind::StructValue(Struct { fields: labels.collect() });
        let mut fields = vec![
            ("CLUSTER_ID", text(&self.cluster)),
            ("NAMESPACE", text(self.namespace)),
            ("SERVICE_ACCOUNT", text(self.account)),
            ("INSTANCE_IPS", text(&self.ip)),
            ("LABELS", ProtoValue { kind: Some(labels) }),
        ];
        fields.extend(self.network.map(|network| ("NETWORK", text(network))));
        let fields = fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        Node { id: self.id(), metadata: Some(Struct { fields }), ..Node::default() }
    }
}

/// A member cluster: an API server and its objects.
#[derive(Clone)]
pub(crate) struct Member {
    /// The API server.
    pub(crate) api: SimCluster,
}

impl Member {
    /// Starts a cluster whose system namespace names its network, with a gateway at `gateway`.
    pub(crate) async fn start(id: &str, network: &str, gateway: &str) -> Self {
        Self::start_with(id, network, gateway, SimOptions::default()).await
    }

    /// Starts a cluster with these options of the simulator, like [`Self::start`].
    pub(crate) async fn start_with(
        id: &str,
        network: &str,
        gateway: &str,
        options: SimOptions,
    ) -> Self {
        let api = SimCluster::start(id, options).await.expect("a free port");
        let member = Self { api };
        member.apply(objects::labelled(objects::namespace(SYSTEM), NETWORK_LABEL, network));
        member.apply(objects::node("node", "region", &format!("zone-{network}")));
        member.apply(objects::gateway_service(SYSTEM, network, "172.20.0.1", gateway));
        member
    }

    /// Returns its ID.
    pub(crate) fn id(&self) -> &str {
        self.api.id()
    }

    /// Returns the Secret that makes it a member.
    pub(crate) fn secret(&self) -> Value {
        self.api.member_secret(SYSTEM)
    }

    /// Adds or replaces an object.
    pub(crate) fn apply(&self, object: Value) {
        self.api.store().apply(object).expect("a valid object");
    }

    /// Applies the service `name.shop` with pods in the mesh at these addresses.
    pub(crate) fn serve(&self, name: &str, addresses: &[&str]) {
        let pod_name = |address: &str| format!("{name}-{}", address.replace('.', "-"));
        for address in addresses {
            self.apply(objects::pod(SHOP, &pod_name(address), name, address, "node"));
        }
        let endpoints: Vec<_> = addresses
            .iter()
            .map(|address| Endpoint::new(address).with_pod(&pod_name(address)))
            .collect();
        self.slice(name, &[HTTP], &endpoints);
        if self.api.store().get("Service", SHOP, name).is_none() {
            let vip = name.bytes().fold(7_u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte));
            self.apply(objects::service(SHOP, name, &format!("172.20.1.{vip}"), &[HTTP]));
        }
    }

    /// Applies the slice of the service `name.shop`.
    pub(crate) fn slice(&self, name: &str, ports: &[Port], endpoints: &[Endpoint]) {
        self.apply(objects::endpoint_slice(SHOP, name, &format!("{name}-1"), ports, endpoints));
    }
}

/// Starts east in n1 and west in n2. Both serve `web` on two pods, and a pod of each has the same
/// address.
pub(crate) async fn east_and_west() -> (Member, Member) {
    let east = Member::start("east", "n1", "198.18.0.1").await;
    let west = Member::start("west", "n2", "198.18.0.2").await;
    east.serve("web", &["10.0.0.1", "10.0.0.2"]);
    west.serve("web", &["10.0.0.1", "10.0.0.3"]);
    (east, west)
}

/// Returns the name of the upstream cluster for port 80 of `name.shop`.
pub(crate) fn outbound(name: &str) -> String {
    format!("outbound|80||{name}.{SHOP}.svc.cluster.local")
}

/// Waits until a proxy has exactly these endpoints of `name.shop`, as `address:port` and weight.
pub(crate) async fn endpoints_until(client: &XdsClient, name: &str, expected: &[(&str, u32)]) {
    let expected =
        expected.iter().map(|(address, weight)| (address.parse().expect("valid"), *weight));
    let expected: BTreeMap<SocketAddr, u32> = expected.collect();
    wait_until(SOON, async || {
        let contents = client.held();
        let found = contents.endpoints(&outbound(name));
        let is_received = contents.body(ResourceType::Endpoint, &outbound(name)).is_some();
        holds(is_received && found == expected, (found, &contents.ended))
    })
    .await;
}

/// Returns a Secret under another name with the same content.
pub(crate) fn renamed(mut secret: Value, name: &str) -> Value {
    secret["metadata"]["name"] = json!(name);
    secret
}

/// Returns all resources that a client has, except assignments.
pub(crate) fn all_resources(client: &XdsClient) -> BTreeMap<(ResourceType, String), Vec<u8>> {
    let contents = client.held();
    let kinds = ResourceType::ALL.into_iter().filter(|kind| *kind != ResourceType::Endpoint);
    let by_kind = |kind: ResourceType| {
        let names: Vec<String> = contents.names(kind).map(str::to_owned).collect();
        let body = |name: &String| contents.body(kind, name).expect("it is held").to_vec();
        names.into_iter().map(|name| ((kind, name.clone()), body(&name))).collect::<Vec<_>>()
    };
    kinds.flat_map(by_kind).collect()
}
