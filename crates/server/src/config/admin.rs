//! The flags of `strait serve` about its addresses for operators, replicas and API servers.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::ListenAddress;
use strait_explain::validation::ValidationMode;
use strait_identity::ReplicaId;

/// The admin API and the page.
#[derive(Debug, Clone, Args)]
pub struct AdminFlags {
    /// Address of /livez, /readyz, /metrics, /debug and the page
    #[arg(long, env = "STRAIT_ADMIN_ADDRESS", value_name = "A", default_value = "127.0.0.1:15014")]
    pub admin_address: ListenAddress,

    /// Additional host names by which browsers may open the page, next to localhost and IP addresses; repeatable
    #[arg(long, env = "STRAIT_ADMIN_HOST", value_name = "NAME", value_delimiter = ',')]
    pub admin_host: Vec<String>,

    /// File with the admin token [default: created in the state directory]
    #[arg(long, env = "STRAIT_ADMIN_TOKEN_FILE", value_name = "FILE")]
    pub admin_token_file: Option<PathBuf>,

    /// File with a second token that grants only read access to /debug [default: none]
    #[arg(long, env = "STRAIT_ADMIN_READER_TOKEN_FILE", value_name = "FILE")]
    pub admin_reader_token_file: Option<PathBuf>,
}

/// The other replicas of this control plane.
#[derive(Debug, Clone, Args)]
pub struct ReplicaFlags {
    /// Address of another replica of this control plane: HOST:PORT of its --xds-address; repeatable
    /// [default: in a cluster, the endpoints of the Service strait]
    #[arg(long, env = "STRAIT_PEERS", value_name = "HOST:PORT", value_delimiter = ',', value_parser = parse_peer)]
    pub peers: Vec<String>,

    /// Name of this replica, different from the names of the other replicas [default: $POD_NAME, otherwise the host name]
    #[arg(long, env = "STRAIT_REPLICA_NAME", value_name = "NAME", value_parser = parse_replica_name)]
    pub replica_name: Option<String>,
}

/// The webhooks of API servers.
#[derive(Debug, Clone, Args)]
pub struct WebhookServerFlags {
    /// Address of the webhooks, over TLS: injection at /inject, validation at /validate [default: disabled]
    #[arg(long, env = "STRAIT_INJECT_ADDRESS", value_name = "A")]
    pub inject_address: Option<ListenAddress>,

    /// Whether the validation webhook rejects objects with errors, or accepts them with warnings
    #[arg(long, env = "STRAIT_VALIDATION", value_name = "HOW", default_value = "reject")]
    pub validation: ValidationFlag,
}

/// How the validation webhook handles objects with errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum ValidationFlag {
    /// Reject objects with errors.
    #[default]
    Reject,
    /// Accept objects with errors, and return warnings.
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
