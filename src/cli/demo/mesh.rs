//! The running parts of the demo, all in this process: simulated API servers, a control plane that
//! finds them through Secrets, and a recording client for each network.
//!
//! It owns a folder for Secrets, CA and token, which is deleted with it; the CA's keys are deleted
//! first.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use futures::future::try_join_all;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::expected::{Holdings, SettledProxy, holdings};
use super::show;
use super::world::{CLIENT, SHOP, SYSTEM, World};
use crate::cli::client::{self, Connect};
use crate::cli::failure::CommandFailure;
use crate::cli::output::root_cause;
use strait_admin_api::{Cluster, Explanation};
use strait_base::durable;
use strait_base::task::Supervisor;
use strait_identity::authority::IssuedCertificate;
use strait_identity::{Authority, AuthorityPem, SpiffeId, authority, tls};
use strait_proto::envoy::envoy::config::core::v3::Node;
use strait_server::Bound;
use strait_server::config::{
    AccessFlags, AdminFlags, AuthorityFlags, ClusterFlags, DnsFlags, LogFlags, McsFlags,
    NetworkFlags, PrometheusFlags, ReplicaFlags, ServeArgs, ServingFlags, SourceFlags, StateFlags,
    TokenFlags, WebhookServerFlags,
};
use strait_sim::{Options, SimCluster};
use strait_xds::resource::ResourceType;
use strait_xds_client::{ClientContents, XdsClient};

/// Time limit for operations that normally take milliseconds.
const LIMIT: Duration = Duration::from_secs(10);
/// Time without contact after which the demo reports a cluster as stale; short, because a user
/// waits for it.
const STALE_AFTER: Duration = Duration::from_millis(1500);
const TRUST_DOMAIN: &str = "cluster.local";

/// All running parts of the demo.
pub(super) struct DemoMesh {
    pub(super) world: World,
    pub(super) proxies: Vec<RecordingProxy>,
    api_servers: BTreeMap<String, SimCluster>,
    admin: client::AdminClient,
    bound: Bound,
    ca: Authority,
    tasks: Supervisor,
    folder: Folder,
}

/// The folder with all files of this run. CA keys that others trust are deleted first, and the rest
/// afterwards, even if little time is left.
struct Folder(TempDir);

impl Drop for Folder {
    fn drop(&mut self) {
        self.forget_keys();
    }
}

impl Folder {
    fn forget_keys(&self) {
        // Keys that cannot be deleted here are deleted with the folder.
        let _ = std::fs::remove_dir_all(ca_folder(self.0.path()));
    }
}

/// A proxy that records the configuration that it receives.
pub(super) struct RecordingProxy {
    pub(super) cluster: String,
    pub(super) network: &'static str,
    client: XdsClient,
}

impl RecordingProxy {
    /// Returns `name.namespace@cluster`, the form that every command accepts.
    pub(super) fn name(&self) -> String {
        format!("{CLIENT}.{SHOP}@{}", self.cluster)
    }
}

impl DemoMesh {
    /// Starts everything except the proxies, with the control plane on `address`. Returns when it
    /// is ready.
    pub(super) async fn start(world: World, address: IpAddr) -> Result<Self, CommandFailure> {
        let folder = tempfile::Builder::new()
            .prefix("strait-demo-")
            .tempdir()
            .map_err(|error| CommandFailure::failed(format!("no temporary folder: {error}")))?;
        let owned = Folder(folder);
        let folder = owned.0.path();
        let secrets = folder.join("secrets");
        let files = AuthorityPem::generate(SystemTime::now()).map_err(identity)?;
        files.write(&ca_folder(folder)).map_err(identity)?;
        let ca = Authority::new(&files, "the demo's CA", SystemTime::now()).map_err(identity)?;

        let mut api_servers = BTreeMap::new();
        for cluster in &world.clusters {
            let server =
                SimCluster::start(&cluster.id, Options::default()).await.map_err(|error| {
                    CommandFailure::failed(format!("no API server for {}: {error}", cluster.id))
                })?;
            for object in cluster.objects() {
                apply(&server, object)?;
            }
            write(&secrets.join(format!("{}.yaml", cluster.id)), &server.member_secret(SYSTEM))?;
            api_servers.insert(cluster.id.clone(), server);
        }

        let bound = strait_server::start(&serve_args(folder, address))
            .await
            .map_err(|error| CommandFailure::failed(error.to_string()))?;
        let admin =
            client::AdminClient::new(&Connect::to(server_url(&bound), bound.token_file.clone()))
                .await?;
        let (proxies, tasks) = (Vec::new(), Supervisor::new());
        let mesh = Self { world, proxies, api_servers, admin, bound, ca, tasks, folder: owned };
        let ready = mesh.bound.readiness.clone();
        let mut waiting = ready.clone();
        if within(waiting.wait_for(|readiness| readiness.ready)).await.is_none() {
            let missing = ready.borrow().waiting_for.join(", ");
            return Err(CommandFailure::failed(format!(
                "the control plane is still waiting for {missing}"
            )));
        }
        Ok(mesh)
    }

    /// Connects a proxy in each network.
    pub(super) async fn connect_proxies(&mut self) -> Result<(), CommandFailure> {
        let edges =
            self.world.edges().map(|(cluster, edge)| (cluster.id.clone(), cluster.network, edge));
        for (cluster, network, edge) in edges.collect::<Vec<_>>() {
            let issued = self.workload(SHOP, CLIENT)?;
            let chain = issued.chain.certificates().to_vec();
            let tls =
                tls::client_config(chain, issued.key_der(), self.ca.roots()).map_err(identity)?;
            let address = edge.client.to_string();
            let node = node(&cluster, network, &address);
            let name = node.id.clone();
            let client = XdsClient::connect(self.bound.xds, "localhost", tls, node, &self.tasks);
            let client = client.await.map_err(|error| {
                CommandFailure::failed(format!("proxy {name}: {error}: {}", root_cause(&error)))
            })?;
            self.proxies.push(RecordingProxy { cluster, network, client });
        }
        Ok(())
    }

    /// Returns the ADS address of the control plane.
    pub(super) fn xds(&self) -> SocketAddr {
        self.bound.xds
    }

    /// Writes a workload's certificate, key and root certificates, like `strait certs issue`.
    pub(super) fn issue(
        &self,
        namespace: &str,
        service_account: &str,
        folder: &Path,
    ) -> Result<(), CommandFailure> {
        let issued = self.workload(namespace, service_account)?;
        authority::write_workload(folder, &issued, self.ca.roots()).map_err(identity)
    }

    fn workload(
        &self,
        namespace: &str,
        service_account: &str,
    ) -> Result<IssuedCertificate, CommandFailure> {
        let id = SpiffeId::new(TRUST_DOMAIN, namespace, service_account)
            .map_err(|error| identity(strait_identity::IdentityError::Identity(error)))?;
        let day = authority::LIFETIME_DEFAULT;
        self.ca.issue_workload(&id, day, SystemTime::now()).map_err(identity)
    }

    /// Returns the folder of this run.
    pub(super) fn folder(&self) -> &Path {
        self.folder.0.path()
    }

    /// Returns shell commands that set the address and token of the control plane.
    pub(super) fn exports(&self) -> String {
        format!(
            "  export STRAIT_SERVER={}\n  export STRAIT_TOKEN_FILE={}\n",
            server_url(&self.bound),
            self.bound.token_file.display()
        )
    }

    /// Returns the API server of a cluster.
    pub(super) fn api_server(&self, cluster: &str) -> &SimCluster {
        &self.api_servers[cluster]
    }

    /// Makes a pod ready or unready, as the cluster's controllers would.
    pub(super) fn set_ready(
        &mut self,
        cluster: &str,
        pod: &str,
        ready: bool,
    ) -> Result<(), CommandFailure> {
        let slice = self.world.set_ready(cluster, pod, ready);
        apply(self.api_server(cluster), slice)
    }

    /// Waits until every proxy has exactly the expected configuration. Fails if a proxy does not
    /// reach it in time.
    pub(super) async fn settle(
        &mut self,
        since: Instant,
    ) -> Result<Vec<SettledProxy>, CommandFailure> {
        let world = &self.world;
        try_join_all(self.proxies.iter_mut().map(async |proxy| {
            let wanted = holdings(world, proxy.network);
            let waited =
                proxy.client.wait_for(|held| held.is_complete() && held_endpoints(held) == wanted);
            match within(waited).await {
                Some(held) => Ok(SettledProxy {
                    proxy: proxy.name(),
                    after: since.elapsed(),
                    holdings: wanted,
                    responses: held.responses,
                }),
                None => {
                    let held = proxy.client.held();
                    let name = proxy.name();
                    let mut text = format!("{name} does not have the expected configuration\n");
                    text += &show::mismatch(&wanted, &held_endpoints(&held));
                    if !held.is_complete() {
                        text += "  it has not received all requested resources\n";
                    }
                    if let Some(why) = held.ended {
                        text += &format!("  its stream ended: {why}\n");
                    }
                    Err(CommandFailure::failed(text.trim_end()))
                }
            }
        }))
        .await
    }

    /// Returns the response of `/debug/explain` for a proxy and a service.
    pub(super) async fn explain(
        &self,
        proxy: &RecordingProxy,
        hostname: &str,
    ) -> Result<Explanation, CommandFailure> {
        let name = proxy.name();
        let query = [("proxy", name.as_str()), ("hostname", hostname)];
        self.admin.get("/debug/explain", &query).await?.read()
    }

    /// Returns the response of `/debug/clusters`.
    pub(super) async fn clusters(&self) -> Result<Vec<Cluster>, CommandFailure> {
        self.admin.get("/debug/clusters", &[]).await?.read()
    }

    /// Returns the number of connected proxies.
    pub(super) async fn connected(&self) -> Result<usize, CommandFailure> {
        let answer = self.admin.get("/debug/proxies", &[]).await?;
        Ok(answer.value.as_array().map_or(0, Vec::len))
    }

    /// Waits until a cluster is in a state.
    pub(super) async fn wait_for_state(
        &self,
        cluster: &str,
        state: &str,
    ) -> Result<(), CommandFailure> {
        let mut tick = tokio::time::interval(Duration::from_millis(20));
        let reached = async {
            loop {
                tick.tick().await;
                let clusters = self.clusters().await?;
                let is_it = |row: &Cluster| row.id == cluster && row.state.as_str() == state;
                if clusters.iter().any(is_it) {
                    return Ok(());
                }
            }
        };
        let late =
            || CommandFailure::failed(format!("cluster {cluster} is not {state} after {LIMIT:?}"));
        tokio::time::timeout(LIMIT, reached).await.unwrap_or_else(|_| Err(late()))
    }

    /// Shuts down all parts in order.
    pub(super) async fn shut_down(self) {
        drop(self.proxies);
        // No more certificates are issued.
        self.folder.forget_keys();
        self.tasks.shut_down(LIMIT).await;
        self.bound.shut_down().await;
    }
}

/// Returns the endpoints of every upstream cluster that has any.
fn held_endpoints(held: &ClientContents) -> Holdings {
    held.names(ResourceType::Endpoint)
        .map(|name| (name.to_owned(), held.endpoints(name)))
        .filter(|(_, endpoints)| !endpoints.is_empty())
        .collect()
}

/// Waits for a future. Returns `None` if it fails or exceeds the time limit.
async fn within<T, E>(what: impl Future<Output = Result<T, E>>) -> Option<T> {
    tokio::time::timeout(LIMIT, what).await.ok()?.ok()
}

fn apply(server: &SimCluster, object: Value) -> Result<(), CommandFailure> {
    let refused =
        |error| CommandFailure::failed(format!("{} rejects an object: {error:?}", server.id()));
    server.store().apply(object).map(drop).map_err(refused)
}

fn write(path: &Path, object: &Value) -> Result<(), CommandFailure> {
    let folder = path.parent().unwrap_or(path);
    std::fs::create_dir_all(folder)
        .and_then(|()| durable::replace(path, object.to_string().as_bytes(), durable::SECRET))
        .map_err(|error| {
            CommandFailure::failed(format!("{} can't be written: {error}", path.display()))
        })
}

fn identity(error: strait_identity::IdentityError) -> CommandFailure {
    CommandFailure::failed(error.to_string()).code(error.code())
}

fn ca_folder(folder: &Path) -> PathBuf {
    folder.join("ca")
}

fn server_url(bound: &Bound) -> String {
    format!("http://{}", bound.admin)
}

fn node(cluster: &str, network: &str, address: &str) -> Node {
    let metadata = json!({
        "CLUSTER_ID": cluster, "NETWORK": network, "NAMESPACE": SHOP, "SERVICE_ACCOUNT": CLIENT,
        "INSTANCE_IPS": address, "LABELS": { "app": CLIENT },
    });
    Node {
        id: format!("sidecar~{address}~{CLIENT}.{SHOP}~{SHOP}.svc.{TRUST_DOMAIN}"),
        metadata: Some(strait_proto::json::to_struct(&metadata)),
        user_agent_name: "strait-demo".into(),
        ..Default::default()
    }
}

/// Returns the settings of a `strait serve` that stores everything in `folder` and ignores the
/// environment.
fn serve_args(folder: &Path, address: IpAddr) -> ServeArgs {
    ServeArgs {
        sources: SourceFlags {
            kubeconfig: None,
            context: None,
            config_dir: Some(folder.join("secrets")),
            mesh_config: None,
            mesh_networks: None,
            policy: None,
            members: None,
            clusterprofile_provider_file: None,
            consul_address: Vec::new(),
        },
        namespace: SYSTEM.into(),
        cluster_id: "config".into(),
        domain: TRUST_DOMAIN.into(),
        trust_domain: TRUST_DOMAIN.into(),
        xds_address: (address, 0).into(),
        admin: AdminFlags {
            admin_address: (IpAddr::from([127, 0, 0, 1]), 0).into(),
            admin_host: Vec::new(),
            admin_token_file: None,
            admin_reader_token_file: None,
        },
        replicas: ReplicaFlags { peers: Vec::new(), replica_name: None },
        webhooks: WebhookServerFlags { inject_address: None, validation: Default::default() },
        inject: Default::default(),
        prometheus: PrometheusFlags::default(),
        serving: ServingFlags {
            tls_cert: None,
            tls_key: None,
            client_ca: None,
            tls_san: vec![address.to_string()],
            require_client_certificate: false,
        },
        access: AccessFlags {
            policy_errors: Default::default(),
            jwks_deny: Vec::new(),
            jwks_roots: None,
        },
        tokens: TokenFlags {
            token_audience: vec!["istio-ca".to_owned(), "strait-ca".to_owned()],
            token_issuer: None,
            token_jwks: None,
            token_cluster: None,
            token_namespace: Vec::new(),
        },
        authority: AuthorityFlags {
            ca_dir: Some(ca_folder(folder)),
            accept_new_root: false,
            ca_member_dir: Vec::new(),
            max_certificate_lifetime: authority::LIFETIME_MAX,
            relay_ca_dir: None,
            relay_certificate_ttl: Duration::from_secs(24 * 3600),
            ca: None,
        },
        state: StateFlags { state_dir: Some(folder.join("state")), keep_gateway_secrets: false },
        clusters: ClusterFlags {
            remote_cluster_timeout: LIMIT,
            cluster_removal_grace: LIMIT,
            cluster_alias: Vec::new(),
            stale_after: STALE_AFTER,
        },
        endpoint_metadata: Default::default(),
        lock_memory: false,
        networks: NetworkFlags {
            probe_gateways: Duration::ZERO,
            allow_direct_cross_network: false,
            headless_pods_max: 1000,
        },
        mcs: McsFlags {
            mcs: Default::default(),
            mcs_auto_export: false,
            mcs_imports: Default::default(),
            clusterset: "default".to_owned(),
        },
        dns: DnsFlags {
            dns_endpoints: None,
            dns_domains: Vec::new(),
            dns_mode: Default::default(),
            dns_provider_key: String::new(),
        },
        scope_gateway_to_namespace: false,
        join_virtual_services: false,
        write_status: false,
        max_connections: 1000,
        audit_interval: Duration::from_secs(60),
        log: LogFlags { log_format: None, log_level: "info".into() },
    }
}
