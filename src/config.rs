//! The flags of `strait serve`, each also an environment variable, and what follows from them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::FalseyValueParser;
use clap::{Args, ValueEnum};

use crate::cli::duration::parse_duration;
use crate::identity::rotation::default_names;

/// `strait serve` (interface.md). Environment: `STRAIT_` and the flag's name.
#[derive(Debug, Clone, Args)]
pub struct ServeArgs {
    /// Kubeconfig of the config cluster [default: in-cluster, else as kubectl]
    #[arg(long, env = "STRAIT_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Context of that kubeconfig [default: its current context]
    #[arg(long, env = "STRAIT_CONTEXT", value_name = "NAME")]
    pub context: Option<String>,

    /// Directory of manifests to read instead of a config cluster; it is watched
    #[arg(long, env = "STRAIT_CONFIG_DIR", value_name = "DIR", conflicts_with_all = ["kubeconfig", "context"])]
    pub config_dir: Option<PathBuf>,

    /// System namespace
    #[arg(
        long,
        short = 'n',
        env = "STRAIT_NAMESPACE",
        value_name = "NS",
        default_value = "strait-system"
    )]
    pub namespace: String,

    /// ID of the config cluster; with --config-dir there is none
    #[arg(long, env = "STRAIT_CLUSTER_ID", value_name = "ID", default_value = "config")]
    pub cluster_id: String,

    /// DNS domain of services
    #[arg(long, env = "STRAIT_DOMAIN", value_name = "D", default_value = "cluster.local")]
    pub domain: String,

    /// Trust domain of proxies and workloads
    #[arg(long, env = "STRAIT_TRUST_DOMAIN", value_name = "TD", default_value = "cluster.local")]
    pub trust_domain: String,

    /// Mesh config in Istio's schema [default: ConfigMap strait or istio, key mesh]
    #[arg(long, env = "STRAIT_MESH_CONFIG", value_name = "FILE")]
    pub mesh_config: Option<PathBuf>,

    /// Mesh networks in Istio's schema [default: ConfigMap strait or istio, key meshNetworks]
    #[arg(long, env = "STRAIT_MESH_NETWORKS", value_name = "FILE")]
    pub mesh_networks: Option<PathBuf>,

    /// Where proxies connect: ADS and the certificate service, by mTLS
    #[arg(long, env = "STRAIT_XDS_ADDRESS", value_name = "A", default_value = "0.0.0.0:15012")]
    pub xds_address: SocketAddr,

    /// Where /livez, /readyz, /metrics and /debug are served
    #[arg(long, env = "STRAIT_ADMIN_ADDRESS", value_name = "A", default_value = "127.0.0.1:15014")]
    pub admin_address: SocketAddr,

    /// File that holds the admin token [default: made in the state directory]
    #[arg(long, env = "STRAIT_ADMIN_TOKEN_FILE", value_name = "FILE")]
    pub admin_token_file: Option<PathBuf>,

    /// Serving certificate chain, PEM [default: issued by the CA]
    #[arg(long, env = "STRAIT_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// Key of the serving certificate, PEM
    #[arg(long, env = "STRAIT_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,

    /// Roots that client certificates must chain to, PEM [default: the CA's]
    #[arg(long, env = "STRAIT_CLIENT_CA", value_name = "FILE")]
    pub client_ca: Option<PathBuf>,

    /// Names of the serving certificate beside the usual ones; repeatable
    #[arg(long, env = "STRAIT_TLS_SAN", value_name = "NAME", value_delimiter = ',')]
    pub tls_san: Vec<String>,

    /// Plugged-in CA: ca-cert.pem ca-key.pem cert-chain.pem root-cert.pem [default: a CA made once]
    #[arg(long, env = "STRAIT_CA_DIR", value_name = "DIR")]
    pub ca_dir: Option<PathBuf>,

    /// Built-in CA and admin token [default: /var/lib/strait if writable, else none]
    #[arg(long, env = "STRAIT_STATE_DIR", value_name = "DIR")]
    pub state_dir: Option<PathBuf>,

    /// After this, a cluster that never synced no longer holds up readiness
    #[arg(long, env = "STRAIT_REMOTE_CLUSTER_TIMEOUT", value_name = "D", default_value = "30s", value_parser = parse_duration)]
    pub remote_cluster_timeout: Duration,

    /// After this long out of reach a cluster is called stale; no flag, only the demo has no time
    #[arg(skip = crate::clusters::status::STALE_AFTER)]
    pub stale_after: Duration,

    /// How long a cluster's data outlives its Secret; 0s withdraws at once
    #[arg(long, env = "STRAIT_CLUSTER_REMOVAL_GRACE", value_name = "D", default_value = "30s", value_parser = parse_duration)]
    pub cluster_removal_grace: Duration,

    /// Reach networks without a gateway directly, as Istio does
    // The variable takes 1, yes and on as well; a template's empty value says no.
    #[arg(
        long,
        env = "STRAIT_ALLOW_DIRECT_CROSS_NETWORK",
        value_parser = FalseyValueParser::new()
    )]
    pub allow_direct_cross_network: bool,

    /// The most proxies connected at once
    #[arg(long, env = "STRAIT_MAX_CONNECTIONS", value_name = "N", default_value_t = 20_000)]
    pub max_connections: usize,

    /// Log format [default: text on a terminal, else json]
    #[arg(long, env = "STRAIT_LOG_FORMAT", value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,

    /// error, warn, info, debug, trace, or directives such as info,strait::xds=debug
    #[arg(long, env = "STRAIT_LOG_LEVEL", value_name = "LEVEL", default_value = "info")]
    pub log_level: String,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

impl ServeArgs {
    /// The names of a serving certificate that the CA issues: the conventional ones, then
    /// `--tls-san`.
    pub fn serving_names(&self) -> Vec<String> {
        let mut names = default_names(&self.namespace);
        names.extend(self.tls_san.iter().cloned());
        names
    }
}
