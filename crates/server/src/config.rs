//! The flags of `strait serve` and their environment variables.

mod access;
mod admin;
mod clusters;
mod identity;
mod injection;
mod listen_address;
mod log;
mod prometheus;
mod sources;
mod state;

use std::time::Duration;

use clap::Args;
use clap::builder::FalseyValueParser;

pub use self::access::{AccessFlags, PolicyErrorsFlag};
pub use self::admin::{AdminFlags, ReplicaFlags, ValidationFlag, WebhookServerFlags};
pub use self::clusters::{ClusterFlags, DnsFlags, McsFlags, NetworkFlags};
pub use self::identity::{AuthorityFlags, NoAuthority, ServingFlags, TokenFlags};
pub use self::injection::InjectFlags;
pub use self::listen_address::ListenAddress;
pub use self::log::{LogFlags, LogFormat};
pub(crate) use self::prometheus::bearer;
pub use self::prometheus::{PrometheusError, PrometheusFlags};
pub use self::sources::SourceFlags;
pub use self::state::StateFlags;
use strait_base::dns_name::{is_dns_label, is_dns_subdomain};
use strait_base::duration::parse_duration;
use strait_identity::ReplicaId;
use strait_identity::rotation::default_names;
use strait_model::{ClusterId, EndpointMetadata, is_trust_domain};

/// `strait serve` (docs/reference/interface.md). Environment: `STRAIT_` and the flag's name.
#[derive(Debug, Clone, Args)]
pub struct ServeArgs {
    /// Where the control plane reads its configuration from
    #[command(flatten)]
    pub sources: SourceFlags,

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

    /// Address for proxies: ADS and the certificate service, over mTLS
    #[arg(long, env = "STRAIT_XDS_ADDRESS", value_name = "A", default_value = "0.0.0.0:15012")]
    pub xds_address: ListenAddress,

    /// The admin API and the page
    #[command(flatten)]
    pub admin: AdminFlags,

    /// The other replicas of this control plane
    #[command(flatten)]
    pub replicas: ReplicaFlags,

    /// The webhooks of API servers
    #[command(flatten)]
    pub webhooks: WebhookServerFlags,

    /// Settings of injected sidecars
    #[command(flatten)]
    pub inject: InjectFlags,

    /// The Prometheus that scrapes the proxies
    #[command(flatten)]
    pub prometheus: PrometheusFlags,

    /// The serving certificate, and the roots of client certificates
    #[command(flatten)]
    pub serving: ServingFlags,

    /// Access policies and the keys of their tokens
    #[command(flatten)]
    pub access: AccessFlags,

    /// Tokens of workloads
    #[command(flatten)]
    pub tokens: TokenFlags,

    /// The CA of workloads, and that of relays
    #[command(flatten)]
    pub authority: AuthorityFlags,

    /// State on disk
    #[command(flatten)]
    pub state: StateFlags,

    /// Keep the program's pages in memory, for nodes that reclaim the file pages of idle programs;
    /// needs a sufficient limit of locked memory
    #[arg(long, env = "STRAIT_LOCK_MEMORY", value_parser = FalseyValueParser::new())]
    pub lock_memory: bool,

    /// Member clusters
    #[command(flatten)]
    pub clusters: ClusterFlags,

    /// Endpoint metadata for proxies: lean, or full, which Istio's telemetry needs
    #[arg(long, env = "STRAIT_ENDPOINT_METADATA", value_name = "FORM", default_value = "lean", value_parser = parse_metadata)]
    pub endpoint_metadata: EndpointMetadata,

    /// Networks and their gateways
    #[command(flatten)]
    pub networks: NetworkFlags,

    /// Services that clusters export
    #[command(flatten)]
    pub mcs: McsFlags,

    /// DNS records of hosts of Gateways
    #[command(flatten)]
    pub dns: DnsFlags,

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

    /// The log
    #[command(flatten)]
    pub log: LogFlags,
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
        names.extend(self.serving.tls_san.iter().cloned());
        names
    }

    /// Returns the name of this replica.
    pub(super) fn replica_id(&self) -> ReplicaId {
        let name = self.replicas.replica_name.clone().or_else(pod_name);
        name.and_then(|name| ReplicaId::parse(&name).ok()).unwrap_or_default()
    }
}

/// Returns the name of the pod in which this process runs. Outside a pod, it is the host name.
pub(super) fn pod_name() -> Option<String> {
    let host = || std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = std::env::var("POD_NAME").ok().or_else(host)?;
    Some(name.trim().to_owned())
}

fn parse_cluster_id(text: &str) -> Result<String, String> {
    ClusterId::parse(text).map(|id| id.to_string()).map_err(|error| error.to_string())
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

fn parse_metadata(text: &str) -> Result<EndpointMetadata, String> {
    match text {
        "lean" => Ok(EndpointMetadata::Lean),
        "full" => Ok(EndpointMetadata::Full),
        _ => Err("expected lean or full".into()),
    }
}
