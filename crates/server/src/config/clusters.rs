//! The flags of `strait serve` about clusters, networks and exported services.

use std::time::Duration;

use clap::Args;
use clap::builder::FalseyValueParser;

use strait_base::duration::parse_duration;
use strait_model::{ClusterId, DnsMode, ImportMode, Mcs, is_set_name};

/// Member clusters.
#[derive(Debug, Clone, Args)]
pub struct ClusterFlags {
    /// Time after which a cluster that has never synced no longer delays readiness
    #[arg(long, env = "STRAIT_REMOTE_CLUSTER_TIMEOUT", value_name = "D", default_value = "30s", value_parser = parse_duration)]
    pub remote_cluster_timeout: Duration,

    /// Time from the deletion of a cluster's Secret to the removal of its data; 0s removes it immediately
    #[arg(long, env = "STRAIT_CLUSTER_REMOVAL_GRACE", value_name = "D", default_value = "30s", value_parser = parse_duration)]
    pub cluster_removal_grace: Duration,

    /// Alternative name of a cluster in proxies' metadata, as ALIAS=ID; repeatable
    #[arg(long, env = "STRAIT_CLUSTER_ALIAS", value_name = "ALIAS=ID", value_delimiter = ',', value_parser = parse_alias)]
    pub cluster_alias: Vec<(ClusterId, ClusterId)>,

    /// Time without contact after which a cluster is stale; not a flag, only the demo changes it
    #[arg(skip = strait_sources::clusters::status::STALE_AFTER)]
    pub stale_after: Duration,
}

/// Networks and their gateways.
#[derive(Debug, Clone, Args)]
pub struct NetworkFlags {
    /// Interval of gateway probes; a gateway that does not respond is skipped if its network has others [default: never]
    #[arg(long, env = "STRAIT_PROBE_GATEWAYS", value_name = "D", default_value = "0s", hide_default_value = true, value_parser = parse_duration)]
    pub probe_gateways: Duration,

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
}

/// Services that clusters export.
#[derive(Debug, Clone, Args)]
pub struct McsFlags {
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
}

/// DNS records of hosts of Gateways.
#[derive(Debug, Clone, Args)]
pub struct DnsFlags {
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

/// Parses the name of a cluster set, which must be a valid value of a label.
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
