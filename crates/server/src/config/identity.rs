//! The flags of `strait serve` about certificates and tokens.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::FalseyValueParser;
use clap::{Args, ValueEnum};

use super::parse_namespace;
use strait_base::duration::{HumanDuration, parse_duration};
use strait_identity::authority::LIFETIME_MAX;
use strait_model::ClusterId;

/// The serving certificate, and the roots of client certificates.
#[derive(Debug, Clone, Args)]
pub struct ServingFlags {
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
}

/// Tokens of workloads.
#[derive(Debug, Clone, Args)]
pub struct TokenFlags {
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
}

/// The CA of workloads, and that of relays.
#[derive(Debug, Clone, Args)]
pub struct AuthorityFlags {
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

    /// none: another CA provides the certificates and roots of workloads [default: the CA of --ca-dir]
    #[arg(long, env = "STRAIT_CA", value_name = "CA", value_enum, conflicts_with = "ca_dir", requires_all = ["tls_cert", "client_ca"])]
    pub ca: Option<NoAuthority>,
}

/// Value of `--ca`: disables the CA.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum NoAuthority {
    /// Issue neither certificates nor roots.
    None,
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
