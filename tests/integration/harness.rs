//! A whole server with simulated clusters, and proxies that connect to it.
//!
//! Only the API servers are simulated; everything between them and a proxy is the real code. The
//! harness starts and stops servers and connects with both variants of the protocol. It contains no
//! expected results.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use clap::Parser;
use rustls::ClientConfig;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use strait_base::task::Supervisor;
use strait_identity::authority::{Authority, AuthorityPem};
use strait_identity::{SpiffeId, tls};
use strait_proto::envoy::envoy::config::core::v3::Node;
use strait_proto::envoy::envoy::service::discovery::v3::DiscoveryRequest;
use strait_proto::envoy::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use strait_proto::json;
use strait_server::Bound;
use strait_server::config::ServeArgs;
use strait_sim::{Family, Options, SimCluster};
use strait_xds::resource::ResourceType;
use strait_xds_client::{XdsClient, XdsConnectError};

/// The system namespace, in the config directory and in every cluster.
pub(crate) const SYSTEM: &str = "strait-system";
/// The time limit of every wait.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// A CA that all servers of a test share, so that keys are created once.
pub(crate) struct Trust {
    directory: tempfile::TempDir,
    authority: Authority,
}

impl Trust {
    pub(crate) fn new() -> Self {
        let now = SystemTime::now();
        let directory = tempfile::tempdir().expect("a directory");
        let files = AuthorityPem::generate(now).expect("a CA");
        files.write(directory.path()).expect("written");
        let authority = Authority::new(&files, "test", now).expect("a sound CA");
        Self { directory, authority }
    }

    /// Returns the certificate of a workload with `account` in a trust domain.
    pub(crate) fn workload(
        &self,
        domain: &str,
        namespace: &str,
        account: &str,
    ) -> Arc<ClientConfig> {
        let id = SpiffeId::new(domain, namespace, account).expect("valid names");
        let issued = self
            .authority
            .issue_workload(&id, Duration::from_secs(3600), SystemTime::now())
            .expect("it signs");
        let chain = issued.chain.certificates().to_vec();
        tls::client_config(chain, issued.key_der(), self.authority.roots()).expect("a sound pair")
    }
}

/// The configuration of a server.
#[derive(Debug, Default)]
pub(crate) struct Setup {
    /// Kubernetes objects by cluster ID.
    pub(crate) clusters: BTreeMap<String, Vec<Value>>,
    /// Annotations of the member Secrets, by cluster ID.
    pub(crate) annotations: BTreeMap<String, Value>,
    /// Creation times of the member Secrets, by cluster ID.
    pub(crate) created: BTreeMap<String, String>,
    /// The content of a file in the config directory, next to the Secrets.
    pub(crate) config: String,
    /// Flags of `strait serve` in addition to ports and directories.
    pub(crate) flags: Vec<String>,
}

#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    serve: ServeArgs,
}

/// A running server with its clusters and files.
pub(crate) struct Estate {
    bound: Bound,
    token: String,
    clients: Supervisor,
    _clusters: Vec<SimCluster>,
    directory: tempfile::TempDir,
}

impl Estate {
    /// Starts the clusters and the server, and waits until it is ready.
    pub(crate) async fn start(setup: &Setup, trust: &Trust) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let config = directory.path().join("config");
        std::fs::create_dir(&config).expect("a directory");
        let mut clusters = Vec::new();
        for (id, objects) in &setup.clusters {
            let cluster = SimCluster::start(id, options(objects)).await.expect("a free port");
            for object in objects {
                cluster.store().apply(object.clone()).expect("a sound object");
            }
            let mut secret = cluster.member_secret(SYSTEM);
            if let Some(annotations) = setup.annotations.get(id) {
                secret["metadata"]["annotations"] = annotations.clone();
            }
            if let Some(created) = setup.created.get(id) {
                secret["metadata"]["creationTimestamp"] = created.as_str().into();
            }
            std::fs::write(config.join(format!("{id}.json")), secret.to_string()).expect("written");
            clusters.push(cluster);
        }
        std::fs::write(config.join("objects.yaml"), &setup.config).expect("written");
        let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
        let mut flags = vec!["serve".to_owned()];
        for (flag, value) in [
            ("--config-dir", text(&config)),
            ("--state-dir", text(&directory.path().join("state"))),
            ("--ca-dir", text(trust.directory.path())),
            ("--namespace", SYSTEM.to_owned()),
            ("--xds-address", "127.0.0.1:0".to_owned()),
            ("--admin-address", "127.0.0.1:0".to_owned()),
        ] {
            flags.extend([flag.to_owned(), value]);
        }
        flags.extend(setup.flags.iter().cloned());
        let flags = Flags::try_parse_from(flags).expect("sound flags");
        let mut bound = strait_server::start(&flags.serve).await.expect("it starts");
        let token = std::fs::read_to_string(&bound.token_file).expect("a token");
        bound.readiness.wait_for(|readiness| readiness.ready).await.expect("it runs");
        Self {
            bound,
            token: token.trim().to_owned(),
            clients: Supervisor::new(),
            _clusters: clusters,
            directory,
        }
    }

    /// Writes a file into the config directory, atomically.
    pub(crate) fn add(&self, name: &str, text: &str) {
        let path = self.directory.path().join("config").join(name);
        super::mesh::replace(&path, text);
    }

    /// Connects as `node` with the delta variant.
    pub(crate) async fn connect(
        &self,
        node: Node,
        tls: Arc<ClientConfig>,
    ) -> Result<XdsClient, XdsConnectError> {
        XdsClient::connect(self.bound.xds, "localhost", tls, node, &self.clients).await
    }

    /// Connects as `node` with the state-of-the-world variant, waits for all resources that its
    /// upstream clusters and listeners name, and returns them. A client that names its listeners
    /// (`wanted`) follows them to routes, upstream clusters and assignments, as gRPC's own library
    /// does.
    pub(crate) async fn collect(
        &self,
        node: Node,
        tls: Arc<ClientConfig>,
        names: &[String],
    ) -> Result<Collection, tonic::Status> {
        let channel =
            strait_xds_client::channel(self.bound.xds, "localhost", tls).await.expect("connected");
        let (requests, receiver) = mpsc::channel(64);
        let mut collector = Collector::default();
        let mut kinds = vec![ResourceType::Cluster, ResourceType::Listener];
        kinds.extend(strait_xds_client::captures_dns(&node).then_some(ResourceType::NameTable));
        if !names.is_empty() {
            kinds = vec![ResourceType::Listener];
            collector.by_name = true;
            let wanted = names.iter().cloned().collect();
            collector.wanted.insert(ResourceType::Listener, wanted);
        }
        collector.wildcards.clone_from(&kinds);
        let first: Vec<_> = kinds.into_iter().map(|kind| collector.request(kind)).collect();
        for mut request in first {
            request.node = Some(node.clone());
            requests.send(request).await.expect("there is room");
        }
        let mut responses = AggregatedDiscoveryServiceClient::new(channel)
            .stream_aggregated_resources(ReceiverStream::new(receiver))
            .await?
            .into_inner();
        while !collector.is_complete() {
            let response = responses.message().await?.expect("the server does not end the stream");
            let kind = ResourceType::of_url(&response.type_url).expect("a requested type");
            let bodies: Vec<Vec<u8>> =
                response.resources.into_iter().map(|any| any.value).collect();
            for request in collector.take(kind, bodies, response.version_info, response.nonce) {
                requests.send(request).await.expect("the server reads");
            }
        }
        let mut resources = collector.resources;
        ResourceType::ALL.into_iter().for_each(|kind| _ = resources.entry(kind).or_default());
        Ok(resources)
    }

    /// Returns the address of the injection webhook.
    pub(crate) fn webhook(&self) -> Option<SocketAddr> {
        self.bound.inject
    }

    /// Returns the JSON response of the admin API.
    pub(crate) async fn get(&self, path: &str) -> Value {
        serde_json::from_str(&self.text(path).await).expect("JSON")
    }

    /// Returns the response of the admin API as text.
    pub(crate) async fn text(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.bound.admin).await.expect("connected");
        let request = format!(
            "GET {path} HTTP/1.1\r\nhost: admin\r\nconnection: close\r\nauthorization: Bearer {}\r\n\r\n",
            self.token
        );
        stream.write_all(request.as_bytes()).await.expect("written");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("read");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.starts_with("HTTP/1.1 200"), "{path}: {head}\n{body}");
        body.to_owned()
    }

    /// Stops clients, server and clusters.
    pub(crate) async fn stop(self) {
        self.clients.shut_down(LIMIT).await;
        self.bound.shut_down().await;
    }
}

/// Returns the options of a cluster that serves only the APIs of these objects.
fn options(objects: &[Value]) -> Options {
    let groups = objects.iter().filter_map(|object| object["apiVersion"].as_str());
    let families = groups.filter_map(|version| match version.split('/').next() {
        Some("networking.istio.io") => Some(Family::Istio),
        Some("gateway.networking.k8s.io") => Some(Family::GatewayApi),
        Some("multicluster.x-k8s.io") => Some(Family::MultiCluster),
        _ => None,
    });
    Options { families: families.chain([Family::Core]).collect(), ..Options::default() }
}

/// Encoded resources by type and name.
pub(crate) type Collection = BTreeMap<ResourceType, BTreeMap<String, Vec<u8>>>;

/// Returns a resource as JSON.
pub(crate) fn to_json(kind: ResourceType, body: &[u8]) -> Value {
    json::to_json(kind.url(), body).expect("a message of this type")
}

/// The client side of the state-of-the-world protocol.
#[derive(Default)]
struct Collector {
    resources: Collection,
    wildcards: Vec<ResourceType>,
    /// Whether upstream clusters are subscribed by the names in routes, not by wildcard.
    by_name: bool,
    wanted: BTreeMap<ResourceType, BTreeSet<String>>,
    last: BTreeMap<ResourceType, (String, String)>,
}

impl Collector {
    fn take(
        &mut self,
        kind: ResourceType,
        bodies: Vec<Vec<u8>>,
        version: String,
        nonce: String,
    ) -> Vec<DiscoveryRequest> {
        self.last.insert(kind, (version, nonce));
        let messages: Vec<Value> = bodies.iter().map(|body| to_json(kind, body)).collect();
        let name = |message: &Value| match kind {
            ResourceType::Endpoint => message["cluster_name"].clone(),
            ResourceType::NameTable => json!(""),
            _ => message["name"].clone(),
        };
        let named = messages.iter().zip(bodies);
        let named = named.map(|(one, body)| (name(one).as_str().expect("a name").to_owned(), body));
        let stored = self.resources.entry(kind).or_default();
        let follows = match kind {
            ResourceType::Cluster => Some((ResourceType::Endpoint, assignment_names(&messages))),
            ResourceType::Listener => {
                let mut routes = BTreeSet::new();
                messages.iter().for_each(|listener| find_routes(listener, &mut routes));
                Some((ResourceType::Route, routes))
            }
            ResourceType::Route if self.by_name => {
                Some((ResourceType::Cluster, route_clusters(&messages)))
            }
            ResourceType::Endpoint
            | ResourceType::Route
            | ResourceType::VirtualHost
            | ResourceType::NameTable => None,
        };
        if follows.is_some() && kind != ResourceType::Route {
            // Resources that are not in the response are removed; the other two types arrive in
            // parts.
            stored.clear();
        }
        stored.extend(named);
        let mut requests = vec![self.request(kind)];
        if let Some((kind, wanted)) = follows {
            let before = self.wanted.insert(kind, wanted.clone()).unwrap_or_default();
            self.resources.entry(kind).or_default().retain(|name, _| wanted.contains(name));
            if before != wanted {
                requests.push(self.request(kind));
            }
        }
        requests
    }

    /// Returns the request for all subscriptions of a type; it acknowledges the last response.
    fn request(&self, kind: ResourceType) -> DiscoveryRequest {
        let (version_info, response_nonce) = self.last.get(&kind).cloned().unwrap_or_default();
        let names = self.wanted.get(&kind).into_iter().flatten().cloned().collect();
        DiscoveryRequest { resource_names: names, version_info, response_nonce, ..everything(kind) }
    }

    fn is_complete(&self) -> bool {
        let has_all = |kind| {
            let is_received =
                |name: &String| self.resources.get(&kind).is_some_and(|all| all.contains_key(name));
            self.wanted.get(&kind).is_none_or(|wanted| wanted.iter().all(is_received))
        };
        self.wildcards.iter().all(|kind| self.resources.contains_key(kind))
            && has_all(ResourceType::Endpoint)
            && has_all(ResourceType::Route)
            && has_all(ResourceType::Cluster)
    }
}

fn everything(kind: ResourceType) -> DiscoveryRequest {
    DiscoveryRequest { type_url: kind.url().into(), ..Default::default() }
}

fn assignment_names(clusters: &[Value]) -> BTreeSet<String> {
    let eds = clusters.iter().filter(|cluster| cluster["type"] == json!("EDS"));
    eds.filter_map(|cluster| cluster["name"].as_str()).map(str::to_owned).collect()
}

fn route_clusters(routes: &[Value]) -> BTreeSet<String> {
    let text = Value::from(routes.to_vec());
    let mut found = BTreeSet::new();
    find_named(&text, "cluster", &mut found);
    find_shares(&text, &mut found);
    found
}

/// Finds the upstream clusters with weights.
fn find_shares(value: &Value, found: &mut BTreeSet<String>) {
    let shares = value["weighted_clusters"]["clusters"].as_array().into_iter().flatten();
    found.extend(shares.filter_map(|one| one["name"].as_str()).map(str::to_owned));
    match value {
        Value::Object(fields) => fields.values().for_each(|one| find_shares(one, found)),
        Value::Array(items) => items.iter().for_each(|one| find_shares(one, found)),
        _ => {}
    }
}

fn find_named(value: &Value, key: &str, found: &mut BTreeSet<String>) {
    found.extend(value[key].as_str().map(str::to_owned));
    match value {
        Value::Object(fields) => fields.values().for_each(|one| find_named(one, key, found)),
        Value::Array(items) => items.iter().for_each(|one| find_named(one, key, found)),
        _ => {}
    }
}

/// Finds every route that a listener names, at any depth.
pub(crate) fn find_routes(value: &Value, routes: &mut BTreeSet<String>) {
    if let Some(name) = value["rds"]["route_config_name"].as_str() {
        routes.insert(name.to_owned());
    }
    match value {
        Value::Object(fields) => fields.values().for_each(|one| find_routes(one, routes)),
        Value::Array(items) => items.iter().for_each(|one| find_routes(one, routes)),
        _ => {}
    }
}
