//! The flags of `strait serve` and their environment variables.

mod injection;
mod prometheus;

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::FalseyValueParser;
use clap::{Args, ValueEnum};
use tokio::net::TcpListener;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;

pub use self::injection::InjectFlags;
pub(crate) use self::prometheus::bearer;
pub use self::prometheus::{PrometheusError, PrometheusFlags};
use strait_base::dns_name::{is_dns_label, is_dns_subdomain};
use strait_base::duration::{HumanDuration, parse_duration};
use strait_explain::validation::ValidationMode;
use strait_identity::ReplicaId;
use strait_identity::authority::LIFETIME_MAX;
use strait_identity::rotation::default_names;
use strait_model::{
    ClusterId, DnsMode, EndpointMetadata, ImportMode, Mcs, is_set_name, is_trust_domain,
};
use strait_rules::access::PolicyErrors;
use strait_sources::registry::consul;

/// `strait serve` (docs/reference/interface.md). Environment: `STRAIT_` and the flag's name.
#[derive(Debug, Clone, Args)]
pub struct ServeArgs {
    /// Kubeconfig of the config cluster [default: in-cluster, otherwise as for kubectl]
    #[arg(long, env = "STRAIT_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Context of that kubeconfig [default: its current context]
    #[arg(long, env = "STRAIT_CONTEXT", value_name = "NAME")]
    pub context: Option<String>,

    /// Directory of manifests to read instead of a config cluster; changes are followed
    #[arg(long, env = "STRAIT_CONFIG_DIR", value_name = "DIR", conflicts_with_all = ["kubeconfig", "context"])]
    pub config_dir: Option<PathBuf>,

    /// System namespace
    #[arg(
        long,
        short = 'n',
        env = "STRAIT_NAMESPACE",
        value_name = "NS",
        default_value = "strait-system",
        value_parser = parse_namespace
    )]
    pub namespace: String,

    /// ID of the config cluster; with --config-dir there is no config cluster
    #[arg(long, env = "STRAIT_CLUSTER_ID", value_name = "ID", default_value = "config", value_parser = parse_cluster_id)]
    pub cluster_id: String,

    /// DNS domain of services
    #[arg(long, env = "STRAIT_DOMAIN", value_name = "D", default_value = "cluster.local", value_parser = parse_domain)]
    pub domain: String,

    /// Trust domain of proxies and workloads
    #[arg(long, env = "STRAIT_TRUST_DOMAIN", value_name = "TD", default_value = "cluster.local", value_parser = parse_trust_domain)]
    pub trust_domain: String,

    /// Mesh config in Istio's schema [default: ConfigMap strait or istio, key mesh]
    #[arg(long, env = "STRAIT_MESH_CONFIG", value_name = "FILE")]
    pub mesh_config: Option<PathBuf>,

    /// Mesh networks in Istio's schema [default: ConfigMap strait or istio, key meshNetworks]
    #[arg(long, env = "STRAIT_MESH_NETWORKS", value_name = "FILE")]
    pub mesh_networks: Option<PathBuf>,

    /// Policy file: what clusters may export and which are preferred (docs/reference/policy-file.md); reloaded on change
    #[arg(long, env = "STRAIT_POLICY", value_name = "FILE")]
    pub policy: Option<PathBuf>,

    /// Member sources: namespaces whose Secrets may define members, and identities
    /// (docs/reference/member-sources.md); reloaded on change
    #[arg(long, env = "STRAIT_MEMBERS", value_name = "FILE")]
    pub members: Option<PathBuf>,

    /// Access providers of ClusterProfiles in the form of the Cluster Inventory API (JSON), after those in
    /// --members; reloaded on change
    #[arg(
        long,
        env = "STRAIT_CLUSTERPROFILE_PROVIDER_FILE",
        value_name = "FILE",
        requires = "members"
    )]
    pub clusterprofile_provider_file: Option<PathBuf>,

    /// Address for proxies: ADS and the certificate service, over mTLS
    #[arg(long, env = "STRAIT_XDS_ADDRESS", value_name = "A", default_value = "0.0.0.0:15012")]
    pub xds_address: ListenAddress,

    /// Address of /livez, /readyz, /metrics, /debug and the page
    #[arg(long, env = "STRAIT_ADMIN_ADDRESS", value_name = "A", default_value = "127.0.0.1:15014")]
    pub admin_address: ListenAddress,

    /// Additional host names by which browsers may open the page, next to localhost and IP addresses; repeatable
    #[arg(long, env = "STRAIT_ADMIN_HOST", value_name = "NAME", value_delimiter = ',')]
    pub admin_host: Vec<String>,

    /// Address of another replica of this control plane: HOST:PORT of its --xds-address; repeatable
    /// [default: in a cluster, the endpoints of the Service strait]
    #[arg(long, env = "STRAIT_PEERS", value_name = "HOST:PORT", value_delimiter = ',', value_parser = parse_peer)]
    pub peers: Vec<String>,

    /// Name of this replica, different from the names of the other replicas [default: $POD_NAME, otherwise the host name]
    #[arg(long, env = "STRAIT_REPLICA_NAME", value_name = "NAME", value_parser = parse_replica_name)]
    pub replica_name: Option<String>,

    /// Address of the webhooks, over TLS: injection at /inject, validation at /validate [default: disabled]
    #[arg(long, env = "STRAIT_INJECT_ADDRESS", value_name = "A")]
    pub inject_address: Option<ListenAddress>,

    /// Settings of injected sidecars
    #[command(flatten)]
    pub inject: InjectFlags,

    /// File with the admin token [default: created in the state directory]
    #[arg(long, env = "STRAIT_ADMIN_TOKEN_FILE", value_name = "FILE")]
    pub admin_token_file: Option<PathBuf>,

    /// File with a second token that grants only read access to /debug [default: none]
    #[arg(long, env = "STRAIT_ADMIN_READER_TOKEN_FILE", value_name = "FILE")]
    pub admin_reader_token_file: Option<PathBuf>,

    /// The Prometheus that scrapes the proxies
    #[command(flatten)]
    pub prometheus: PrometheusFlags,

    /// Serving certificate chain, PEM [default: issued by the CA]
    #[arg(long, env = "STRAIT_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// Key of the serving certificate, PEM
    #[arg(long, env = "STRAIT_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,

    /// Roots that client certificates must chain to, PEM [default: the CA's]
    #[arg(long, env = "STRAIT_CLIENT_CA", value_name = "FILE")]
    pub client_ca: Option<PathBuf>,

    /// Additional subject alternative names for the serving certificate; repeatable
    #[arg(long, env = "STRAIT_TLS_SAN", value_name = "NAME", value_delimiter = ',')]
    pub tls_san: Vec<String>,

    /// Require a certificate from every client; tokens are ignored
    #[arg(long, env = "STRAIT_REQUIRE_CLIENT_CERTIFICATE", value_parser = FalseyValueParser::new())]
    pub require_client_certificate: bool,

    /// Handling of an access rule that can't be read and has no last valid version: apply its
    /// readable part, or deny everything
    #[arg(long, env = "STRAIT_POLICY_ERRORS", value_name = "HOW", default_value = "narrow")]
    pub policy_errors: PolicyErrorsFlag,

    /// Whether the validation webhook rejects objects with errors, or accepts them with warnings
    #[arg(long, env = "STRAIT_VALIDATION", value_name = "HOW", default_value = "reject")]
    pub validation: ValidationFlag,

    /// Addresses from which token keys are never fetched, even if a RequestAuthentication names them; repeatable
    #[arg(long, env = "STRAIT_JWKS_DENY", value_name = "CIDR", value_delimiter = ',')]
    pub jwks_deny: Vec<ipnet::IpNet>,

    /// Additional roots to verify servers of token keys, next to the system's: a PEM file, read for each fetch
    #[arg(long, env = "STRAIT_JWKS_ROOTS", value_name = "FILE")]
    pub jwks_roots: Option<PathBuf>,

    /// Accepted audiences of pods' tokens; repeatable
    #[arg(
        long,
        env = "STRAIT_TOKEN_AUDIENCE",
        value_name = "A",
        value_delimiter = ',',
        default_values = ["istio-ca", "strait-ca"]
    )]
    pub token_audience: Vec<String>,

    /// Issuer (iss) of tokens for workloads outside of clusters; their sub is system:serviceaccount:NS:SA
    #[arg(long, env = "STRAIT_TOKEN_ISSUER", value_name = "ISS", value_parser = parse_issuer, requires_all = ["token_jwks", "token_cluster", "token_namespace"])]
    pub token_issuer: Option<String>,

    /// URL of the keys of --token-issuer, a JSON Web Key Set
    #[arg(long, env = "STRAIT_TOKEN_JWKS", value_name = "URL", requires = "token_issuer", value_parser = parse_key_uri)]
    pub token_jwks: Option<String>,

    /// Cluster of the workloads with tokens of --token-issuer
    #[arg(long, env = "STRAIT_TOKEN_CLUSTER", value_name = "ID", requires = "token_issuer", value_parser = parse_member)]
    pub token_cluster: Option<ClusterId>,

    /// Namespaces of the service accounts for which --token-issuer may issue tokens; repeatable
    #[arg(long, env = "STRAIT_TOKEN_NAMESPACE", value_name = "NS", value_delimiter = ',', requires = "token_issuer", value_parser = parse_namespace)]
    pub token_namespace: Vec<String>,

    /// Plugged-in CA: ca-cert.pem ca-key.pem cert-chain.pem root-cert.pem, or tls.crt tls.key ca.crt [default: the CA of the Istio installation, otherwise a generated one]
    #[arg(long, env = "STRAIT_CA_DIR", value_name = "DIR")]
    pub ca_dir: Option<PathBuf>,

    /// Start although workloads have none of the CA's roots
    #[arg(long, env = "STRAIT_ACCEPT_NEW_ROOT", value_parser = FalseyValueParser::new())]
    pub accept_new_root: bool,

    /// CA for the workloads of a single member, as ID=DIR, with the files of --ca-dir and below one
    /// of its roots; if DIR contains no CA, the member receives no certificates; repeatable
    #[arg(long, env = "STRAIT_CA_MEMBER_DIR", value_name = "ID=DIR", value_delimiter = ',', conflicts_with = "ca", value_parser = parse_member_dir)]
    pub ca_member_dir: Vec<(ClusterId, PathBuf)>,

    /// Maximum lifetime of workload certificates; requests for longer ones are rejected
    #[arg(long, env = "STRAIT_MAX_CERTIFICATE_LIFETIME", value_name = "D", default_value = "90d", value_parser = parse_lifetime)]
    pub max_certificate_lifetime: Duration,

    /// CA for relays only, with the files of --ca-dir and a dedicated root [default: the CA of the mesh]
    #[arg(long, env = "STRAIT_RELAY_CA_DIR", value_name = "DIR")]
    pub relay_ca_dir: Option<PathBuf>,

    /// Lifetime of the certificates of relays, 1h to 7d; they are renewed at half of it
    #[arg(long, env = "STRAIT_RELAY_CERTIFICATE_TTL", value_name = "D", default_value = "24h", value_parser = parse_relay_lifetime)]
    pub relay_certificate_ttl: Duration,

    /// none: issue neither certificates nor roots to workloads, because another CA does
    #[arg(long, env = "STRAIT_CA", value_name = "CA", value_enum, conflicts_with = "ca_dir", requires_all = ["tls_cert", "client_ca"])]
    pub ca: Option<NoAuthority>,

    /// Directory of the built-in CA, the admin token and the last known state [default: /var/lib/strait if writable, otherwise none]
    #[arg(long, env = "STRAIT_STATE_DIR", value_name = "DIR")]
    pub state_dir: Option<PathBuf>,

    /// Store the Secrets sent to gateways, including private keys, in --state-dir, so that gateways
    /// receive them after a restart while their API server is unreachable
    #[arg(long, env = "STRAIT_KEEP_GATEWAY_SECRETS")]
    pub keep_gateway_secrets: bool,

    /// Keep the program's pages in memory, for nodes that reclaim the file pages of idle programs;
    /// needs a sufficient limit of locked memory
    #[arg(long, env = "STRAIT_LOCK_MEMORY", value_parser = FalseyValueParser::new())]
    pub lock_memory: bool,

    /// Time after which a cluster that has never synced no longer delays readiness
    #[arg(long, env = "STRAIT_REMOTE_CLUSTER_TIMEOUT", value_name = "D", default_value = "30s", value_parser = parse_duration)]
    pub remote_cluster_timeout: Duration,

    /// Endpoint metadata for proxies: lean, or full, which Istio's telemetry needs
    #[arg(long, env = "STRAIT_ENDPOINT_METADATA", value_name = "FORM", default_value = "lean", value_parser = parse_metadata)]
    pub endpoint_metadata: EndpointMetadata,

    /// Interval of gateway probes; a gateway that does not respond is skipped if its network has others [default: never]
    #[arg(long, env = "STRAIT_PROBE_GATEWAYS", value_name = "D", default_value = "0s", hide_default_value = true, value_parser = parse_duration)]
    pub probe_gateways: Duration,

    /// Multi-cluster services (ServiceExport, ServiceImport): off, exports, clusterset or strict
    #[arg(long, env = "STRAIT_MCS", value_name = "MODE", default_value = "off", value_parser = parse_mcs)]
    pub mcs: Mcs,

    /// Create a ServiceExport for every Service that is not limited to its cluster, if permitted; needs --mcs
    #[arg(long, env = "STRAIT_MCS_AUTO_EXPORT", value_parser = FalseyValueParser::new())]
    pub mcs_auto_export: bool,

    /// Objects written into clusters for exported services: off, names (ServiceImports and derived Services), or full (also EndpointSlices)
    #[arg(long, env = "STRAIT_MCS_IMPORTS", value_name = "MODE", default_value = "off", value_parser = ImportMode::named)]
    pub mcs_imports: ImportMode,

    /// Name of the cluster set, in labels of the objects written for exported services
    #[arg(long, env = "STRAIT_CLUSTERSET", value_name = "NAME", default_value = "default", value_parser = parse_clusterset)]
    pub clusterset: String,

    /// Write DNSEndpoint objects of external-dns into this namespace of the config cluster, for hosts of Gateways; needs --dns-domains
    #[arg(long, env = "STRAIT_DNS_ENDPOINTS", value_name = "NAMESPACE")]
    pub dns_endpoints: Option<String>,

    /// Domain below which DNS records are written; repeatable
    #[arg(long, env = "STRAIT_DNS_DOMAINS", value_name = "DOMAIN", value_delimiter = ',', value_parser = parse_dns_domain)]
    pub dns_domains: Vec<String>,

    /// DNS records of a host: simple (one set with all addresses), or weighted (one set for each cluster)
    #[arg(long, env = "STRAIT_DNS_MODE", value_name = "MODE", default_value = "simple", value_parser = DnsMode::named)]
    pub dns_mode: DnsMode,

    /// Property of the DNS provider that contains the weight of a record set
    #[arg(long, env = "STRAIT_DNS_PROVIDER_KEY", value_name = "KEY", default_value = "aws/weight")]
    pub dns_provider_key: String,

    /// Alternative name of a cluster in proxies' metadata, as ALIAS=ID; repeatable
    #[arg(long, env = "STRAIT_CLUSTER_ALIAS", value_name = "ALIAS=ID", value_delimiter = ',', value_parser = parse_alias)]
    pub cluster_alias: Vec<(ClusterId, ClusterId)>,

    /// Time without contact after which a cluster is stale; not a flag, only the demo changes it
    #[arg(skip = strait_sources::clusters::status::STALE_AFTER)]
    pub stale_after: Duration,

    /// Time from the deletion of a cluster's Secret to the removal of its data; 0s removes it immediately
    #[arg(long, env = "STRAIT_CLUSTER_REMOVAL_GRACE", value_name = "D", default_value = "30s", value_parser = parse_duration)]
    pub cluster_removal_grace: Duration,

    /// URL of a Consul whose services join the mesh: `http[s]://HOST[:PORT][?dc=NAME&token-file=FILE&ca-file=FILE&name=NAME]`; repeatable
    #[arg(long, env = "STRAIT_CONSUL_ADDRESS", value_name = "URL", value_delimiter = ',')]
    pub consul_address: Vec<consul::ConsulAddress>,

    /// Reach networks without a gateway directly, as Istio does
    // Accepts 1, yes and on as well. An empty value, as templates produce it, means false.
    #[arg(
        long,
        env = "STRAIT_ALLOW_DIRECT_CROSS_NETWORK",
        value_parser = FalseyValueParser::new()
    )]
    pub allow_direct_cross_network: bool,

    /// Maximum number of pods of headless services that the gateways of a network forward to by name, per cluster
    #[arg(long, env = "STRAIT_HEADLESS_PODS_MAX", value_name = "N", default_value = "1000")]
    pub headless_pods_max: usize,

    /// Apply a Gateway only to routers of its own namespace, as PILOT_SCOPE_GATEWAY_TO_NAMESPACE does
    #[arg(
        long,
        env = "STRAIT_SCOPE_GATEWAY_TO_NAMESPACE",
        value_parser = FalseyValueParser::new()
    )]
    pub scope_gateway_to_namespace: bool,

    /// Apply all VirtualServices of a host to sidecars, as to gateways, instead of only the first
    #[arg(
        long,
        env = "STRAIT_JOIN_VIRTUAL_SERVICES",
        value_parser = FalseyValueParser::new()
    )]
    pub join_virtual_services: bool,

    /// Write the status of each Istio object into the object, if permitted
    #[arg(long, env = "STRAIT_WRITE_STATUS", value_parser = FalseyValueParser::new())]
    pub write_status: bool,

    /// Maximum number of connected proxies
    #[arg(long, env = "STRAIT_MAX_CONNECTIONS", value_name = "N", default_value = "20000", value_parser = parse_connections)]
    pub max_connections: usize,

    /// Time in which the audit regenerates the resources of all proxies once and compares them with
    /// those that were sent, at most 0.5 % of a core; 0s disables it
    #[arg(long, env = "STRAIT_AUDIT_INTERVAL", value_name = "D", default_value = "10m", value_parser = parse_duration)]
    pub audit_interval: Duration,

    /// Log format [default: text on a terminal, otherwise json]
    #[arg(long, env = "STRAIT_LOG_FORMAT", value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,

    /// Log level: error, warn, info, debug, trace, or directives like info,strait::xds=debug
    #[arg(long, env = "STRAIT_LOG_LEVEL", value_name = "LEVEL", default_value = "info", value_parser = parse_log_level)]
    pub log_level: String,
}

/// Value of `--ca`: disables the CA.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum NoAuthority {
    /// Issue neither certificates nor roots.
    None,
}

/// Handling of unreadable access rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum PolicyErrorsFlag {
    /// Apply their readable parts.
    #[default]
    Narrow,
    /// Deny everything.
    Strict,
}

impl From<PolicyErrorsFlag> for PolicyErrors {
    fn from(flag: PolicyErrorsFlag) -> Self {
        match flag {
            PolicyErrorsFlag::Narrow => Self::Narrow,
            PolicyErrorsFlag::Strict => Self::Strict,
        }
    }
}

/// How the validation webhook handles objects with errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum ValidationFlag {
    /// Refuse them.
    #[default]
    Reject,
    /// Accept them with warnings.
    Warn,
}

impl From<ValidationFlag> for ValidationMode {
    fn from(flag: ValidationFlag) -> Self {
        match flag {
            ValidationFlag::Reject => Self::Reject,
            ValidationFlag::Warn => Self::Warn,
        }
    }
}

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Text for people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Address to listen on: `HOST:PORT`, or `:PORT` for all addresses of this machine. Port 0 selects
/// a free port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenAddress {
    /// An address, a host name, or empty.
    host: String,
    port: u16,
}

impl ListenAddress {
    /// Binds the address. If a name has addresses of both families, the IPv4 address is preferred,
    /// as in Go.
    ///
    /// # Errors
    /// The error of the system: an unknown name, an address of another machine, or a port in use.
    pub async fn bind(&self) -> io::Result<TcpListener> {
        if self.host.is_empty() {
            // This address accepts IPv4 too; it does not exist on a machine without IPv6.
            return match TcpListener::bind((Ipv6Addr::UNSPECIFIED, self.port)).await {
                Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                    TcpListener::bind(("0.0.0.0", self.port)).await
                }
                bound => bound,
            };
        }
        let mut found: Vec<SocketAddr> =
            tokio::net::lookup_host((self.host.as_str(), self.port)).await?.collect();
        found.sort_by_key(SocketAddr::is_ipv6);
        TcpListener::bind(&*found).await
    }
}

impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "expected HOST:PORT or :PORT, an IPv6 address in brackets".to_owned();
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let port = port.parse().map_err(|_| wrong())?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let named = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        let host = match bare {
            Some(inner) => inner.parse::<Ipv6Addr>().map_err(|_| wrong())?.to_string(),
            None if host.chars().all(named) => host.to_owned(),
            None => return Err(wrong()),
        };
        Ok(Self { host, port })
    }
}

impl From<(IpAddr, u16)> for ListenAddress {
    fn from((address, port): (IpAddr, u16)) -> Self {
        Self { host: address.to_string(), port }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl ServeArgs {
    /// Returns the endpoint metadata that proxies receive. Service metrics need the names of
    /// workloads.
    pub fn endpoint_metadata(&self) -> EndpointMetadata {
        match self.inject.service_metrics {
            true => EndpointMetadata::Full,
            false => self.endpoint_metadata,
        }
    }

    /// Returns the names of a serving certificate that the CA issues: the conventional names, then
    /// `--tls-san`.
    pub fn serving_names(&self) -> Vec<String> {
        let mut names = default_names(&self.namespace);
        names.extend(self.tls_san.iter().cloned());
        names
    }

    /// Returns the name of this replica.
    pub(super) fn replica_id(&self) -> ReplicaId {
        let name = self.replica_name.clone().or_else(pod_name);
        name.and_then(|name| ReplicaId::parse(&name).ok()).unwrap_or_default()
    }
}

/// Returns the name of the pod in which this process runs. Outside a pod, it is the host name.
pub(super) fn pod_name() -> Option<String> {
    let host = || std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = std::env::var("POD_NAME").ok().or_else(host)?;
    Some(name.trim().to_owned())
}

fn parse_alias(text: &str) -> Result<(ClusterId, ClusterId), String> {
    let (alias, id) = text.split_once('=').ok_or("expected ALIAS=ID")?;
    if alias.is_empty() {
        return Err("the alias is empty".into());
    }
    let id = ClusterId::parse(id).map_err(|error| format!("{id:?}: {error}"))?;
    // The usual alias, `Kubernetes`, is not a valid cluster ID.
    Ok((alias.into(), id))
}

fn parse_peer(text: &str) -> Result<String, String> {
    let (host, port) = text.rsplit_once(':').ok_or("expected HOST:PORT")?;
    match !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0) {
        true => Ok(text.to_owned()),
        false => Err("expected HOST:PORT, an IPv6 address in brackets".into()),
    }
}

fn parse_replica_name(text: &str) -> Result<String, String> {
    ReplicaId::parse(text).map(|name| name.to_string())
}

fn parse_member_dir(text: &str) -> Result<(ClusterId, PathBuf), String> {
    let (id, directory) = text.split_once('=').ok_or("expected ID=DIR")?;
    let id = ClusterId::parse(id).map_err(|error| format!("{id:?}: {error}"))?;
    match directory.is_empty() {
        true => Err(format!("the directory for {id} is empty")),
        false => Ok((id, directory.into())),
    }
}

fn parse_member(text: &str) -> Result<ClusterId, String> {
    ClusterId::parse(text).map_err(|error| error.to_string())
}

fn parse_issuer(text: &str) -> Result<String, String> {
    match text.is_empty() {
        true => Err("the issuer must not be empty".into()),
        false => Ok(text.to_owned()),
    }
}

fn parse_key_uri(text: &str) -> Result<String, String> {
    match text.starts_with("https://") || text.starts_with("http://") {
        true => Ok(text.to_owned()),
        false => Err("expected a URL that begins with https:// or http://".into()),
    }
}

fn parse_cluster_id(text: &str) -> Result<String, String> {
    ClusterId::parse(text).map(|id| id.to_string()).map_err(|error| error.to_string())
}

/// Parses a duration between one minute and the CA's maximum.
fn parse_lifetime(text: &str) -> Result<Duration, String> {
    let lifetime = parse_duration(text)?;
    match (Duration::from_secs(60)..=LIFETIME_MAX).contains(&lifetime) {
        true => Ok(lifetime),
        false => Err(format!("the lifetime must be from 1m to {}", HumanDuration(LIFETIME_MAX))),
    }
}

/// Parses the lifetime of a relay's certificate.
fn parse_relay_lifetime(text: &str) -> Result<Duration, String> {
    let (hour, lifetime) = (Duration::from_secs(3600), parse_duration(text)?);
    match (hour..=hour * 24 * 7).contains(&lifetime) {
        true => Ok(lifetime),
        false => Err("the lifetime must be from 1h to 7d".to_owned()),
    }
}

/// Parses a namespace name, which is a DNS-1123 label.
fn parse_namespace(text: &str) -> Result<String, String> {
    match is_dns_label(text) {
        true => Ok(text.to_owned()),
        false => Err(
            "a namespace has at most 63 characters of a-z, 0-9 and '-', and no '-' at either end"
                .into(),
        ),
    }
}

fn parse_domain(text: &str) -> Result<String, String> {
    match is_dns_subdomain(text) {
        true => Ok(text.to_owned()),
        false => Err("expected a DNS name in lower case, for example cluster.local".into()),
    }
}

fn parse_trust_domain(text: &str) -> Result<String, String> {
    match is_trust_domain(text) {
        true => Ok(text.to_owned()),
        false => {
            Err("a trust domain has at most 255 characters of a-z, 0-9, '.', '-' and '_'".into())
        }
    }
}

fn parse_connections(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("with 0, no proxy could connect".into()),
        Ok(count) => Ok(count),
        Err(_) => Err("expected a number of at least 1".into()),
    }
}

/// Parses directives of `tracing_subscriber`. That crate accepts any word as a module name, so a
/// misspelled level would disable all logs.
fn parse_log_level(text: &str) -> Result<String, String> {
    const FORM: &str =
        "give error, warn, info, debug, trace or off, or directives like info,strait::xds=debug";
    EnvFilter::try_new(text).map_err(|error| format!("{error}; {FORM}"))?;
    let is_level = |one: &str| one.parse::<LevelFilter>().is_ok();
    let mut of_ours = false;
    for one in text.split(',').map(str::trim).filter(|one| !one.is_empty()) {
        match one.rsplit_once('=') {
            None if is_level(one) => of_ours = true,
            None => return Err(format!("{one:?} is not a level; {FORM}")),
            Some((_, level)) if !is_level(level) => {
                return Err(format!("{level:?} is not a level; {FORM}"));
            }
            Some((target, _)) => of_ours |= target.starts_with("strait"),
        }
    }
    match of_ours {
        true => Ok(text.to_owned()),
        false => Err(format!("no directive matches strait, which would log nothing; {FORM}")),
    }
}

fn parse_metadata(text: &str) -> Result<EndpointMetadata, String> {
    match text {
        "lean" => Ok(EndpointMetadata::Lean),
        "full" => Ok(EndpointMetadata::Full),
        _ => Err("expected lean or full".into()),
    }
}

/// Parses the name of a cluster set, which must be a valid value of a label.
/// Parses a domain below which DNS records may be written.
fn parse_dns_domain(text: &str) -> Result<String, String> {
    let domain = text.trim_end_matches('.').to_ascii_lowercase();
    let is_label = |label: &str| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        !label.is_empty() && label.len() <= 63 && label.bytes().all(is_plain)
    };
    match domain.len() <= 253 && domain.split('.').all(is_label) {
        true => Ok(domain),
        false => Err("expected a domain, for example shop.example".to_owned()),
    }
}

fn parse_clusterset(text: &str) -> Result<String, String> {
    match is_set_name(text) && text.len() <= 63 {
        true => Ok(text.to_owned()),
        false => Err("it is not a DNS label, or two with a dot, of at most 63 characters".into()),
    }
}

fn parse_mcs(text: &str) -> Result<Mcs, String> {
    match text {
        "off" => Ok(Mcs::Off),
        "exports" => Ok(Mcs::Exports),
        "clusterset" => Ok(Mcs::Clusterset),
        "strict" => Ok(Mcs::Strict),
        _ => Err("expected off, exports, clusterset or strict".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn address_name_and_bare_port_can_be_bound() {
        for (text, local) in [
            ("127.0.0.1:0", Some("127.0.0.1")),
            ("localhost:0", Some("127.0.0.1")),
            (":0", None),
            ("[::]:0", None),
            ("0.0.0.0:0", Some("0.0.0.0")),
        ] {
            let address: ListenAddress = text.parse().expect(text);
            assert_eq!(address.to_string(), text);
            let listener = match address.bind().await {
                // Happens on a machine without IPv6.
                Err(error) if text == "[::]:0" => return eprintln!("SKIPPED: {text}: {error}"),
                bound => bound.expect(text).local_addr().expect(text),
            };
            assert!(listener.port() > 0);
            let ip = listener.ip();
            assert!(local.map_or(ip.is_unspecified(), |local| ip.to_string() == local), "{ip}");
        }
        for text in ["", "15012", "localhost", "::1:15012", "[::1:2", "a b:1", "h:65536", "h:"] {
            text.parse::<ListenAddress>().expect_err(text);
        }
        let nowhere: ListenAddress = "nowhere.invalid:0".parse().expect("a name");
        nowhere.bind().await.expect_err("no such name");
    }
}
