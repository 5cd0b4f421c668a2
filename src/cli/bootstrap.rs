//! `strait proxy bootstrap`: the configuration an unmodified Envoy starts with.
//!
//! Says who the proxy is, where its control plane is, and where its certificate lies; everything else
//! comes from the control plane. A pure function of its flags: it opens no file and asks nobody.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde_json::{Map, Value, json};

use super::failure::Failure;
use super::output::{self, Format};
use crate::model::{ClusterId, ProxyType};

/// `strait proxy bootstrap`.
#[derive(Debug, Args)]
pub(crate) struct BootstrapArgs {
    /// sidecar: beside one workload; router: a gateway
    #[arg(long = "type", value_name = "TYPE", value_parser = proxy_type)]
    kind: ProxyType,
    /// Name of the pod or workload
    #[arg(long, value_name = "N")]
    name: String,
    /// Its namespace, as in its certificate
    #[arg(long, value_name = "NS")]
    namespace: String,
    /// Its service account, as in its certificate
    #[arg(long, value_name = "SA")]
    service_account: String,
    /// ID of its cluster
    #[arg(long, value_name = "ID")]
    cluster: String,
    /// Its network [default: derived by the control plane]
    #[arg(long, value_name = "NET")]
    network: Option<String>,
    /// Its address; repeatable, the first goes into the node id
    #[arg(long = "ip", value_name = "IP", required = true, value_delimiter = ',')]
    ips: Vec<IpAddr>,
    /// Label of the pod; repeatable
    #[arg(long = "label", value_name = "K=V", value_parser = label)]
    labels: Vec<(String, String)>,
    /// Where the control plane serves ADS; its certificate must name HOST
    #[arg(long, value_name = "HOST:PORT", value_parser = discovery)]
    discovery: Discovery,
    /// Certificate chain, PEM; Envoy reads it, the key and the roots when it starts, and not again
    #[arg(long, value_name = "F")]
    cert: PathBuf,
    /// Its key, PEM
    #[arg(long, value_name = "F")]
    key: PathBuf,
    /// Roots that the control plane and other workloads must chain to, PEM
    #[arg(long, value_name = "F")]
    root_ca: PathBuf,
    /// Which form of ADS
    #[arg(long, value_enum, default_value_t)]
    protocol: Wire,
    /// Where Envoy's own admin interface listens
    #[arg(long, value_name = "A", default_value = "127.0.0.1:15000")]
    admin_address: std::net::SocketAddr,
    /// DNS domain of services
    #[arg(long, value_name = "D", default_value = "cluster.local")]
    domain: String,
    /// yaml or json
    #[arg(long, short, value_enum, default_value = "yaml")]
    output: Format,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Wire {
    /// Only what changed
    #[default]
    Delta,
    /// State of the world: everything of a type, each time
    Sotw,
}

#[derive(Debug, Clone)]
struct Discovery {
    host: String,
    port: u16,
}

fn proxy_type(text: &str) -> Result<ProxyType, String> {
    [ProxyType::Sidecar, ProxyType::Router]
        .into_iter()
        .find(|kind| kind.as_str() == text)
        .ok_or_else(|| "expected sidecar or router".to_owned())
}

fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE".to_owned()),
    }
}

fn discovery(text: &str) -> Result<Discovery, String> {
    let wrong = || "expected HOST:PORT, an IPv6 address in brackets".to_owned();
    let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
    let port = port.parse::<u16>().ok().filter(|port| *port > 0).ok_or_else(wrong)?;
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let host = match bare {
        Some(inner) => inner.parse::<std::net::Ipv6Addr>().map_err(|_| wrong())?.to_string(),
        None if is_host(host) => host.to_ascii_lowercase(),
        None => return Err(wrong()),
    };
    Ok(Discovery { host, port })
}

fn is_host(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'.')
}

/// The bootstrap as text.
///
/// # Errors
/// What can't be part of a node id, or of a certificate's identity.
pub(crate) fn render(args: &BootstrapArgs) -> Result<String, Failure> {
    let bootstrap = bootstrap(args)?;
    match args.output {
        Format::Json => Ok(format!("{bootstrap:#}\n")),
        Format::Yaml => Ok(output::yaml(&bootstrap)),
        _ => Err(Failure::usage("a bootstrap is printed as -o yaml or -o json")),
    }
}

fn bootstrap(args: &BootstrapArgs) -> Result<Value, Failure> {
    let Some(address) = args.ips.first() else {
        return Err(Failure::usage("--ip is missing"));
    };
    for (flag, text) in [
        ("--name", &args.name),
        ("--namespace", &args.namespace),
        ("--service-account", &args.service_account),
        ("--domain", &args.domain),
    ] {
        if !is_host(text) {
            return Err(Failure::usage(format!(
                "{flag} {text:?} is not a name: letters, digits, '-' and '.' only"
            )));
        }
    }
    // The last dot of the node id divides name and namespace.
    if args.namespace.contains('.') {
        return Err(Failure::usage(format!("--namespace {:?} holds a dot", args.namespace)));
    }
    ClusterId::parse(&args.cluster)
        .map_err(|error| Failure::usage(format!("--cluster {:?}: {error}", args.cluster)))?;
    let Node { id, metadata } = node(args, address);
    Ok(json!({
        "node": { "id": id, "cluster": format!("{}.{}", args.name, args.namespace), "metadata": metadata },
        "admin": { "address": socket(&args.admin_address.ip().to_string(), args.admin_address.port()) },
        "dynamic_resources": {
            "ads_config": {
                "api_type": match args.protocol { Wire::Delta => "DELTA_GRPC", Wire::Sotw => "GRPC" },
                "transport_api_version": "V3",
                "set_node_on_first_message_only": true,
                "grpc_services": [{ "envoy_grpc": { "cluster_name": CONTROL_PLANE } }],
            },
            "cds_config": { "ads": {}, "resource_api_version": "V3" },
            "lds_config": { "ads": {}, "resource_api_version": "V3" },
        },
        "static_resources": {
            "clusters": [control_plane(args)],
            "secrets": secrets(args),
        },
    }))
}

/// The upstream cluster by which the bootstrap names the control plane.
const CONTROL_PLANE: &str = "strait";

struct Node {
    id: String,
    metadata: Value,
}

fn node(args: &BootstrapArgs, address: &IpAddr) -> Node {
    let BootstrapArgs { kind, name, namespace, domain, .. } = args;
    let addresses: Vec<String> = args.ips.iter().map(IpAddr::to_string).collect();
    let labels: Map<String, Value> =
        args.labels.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
    let mut metadata = json!({
        "CLUSTER_ID": args.cluster,
        "NAMESPACE": namespace,
        "SERVICE_ACCOUNT": args.service_account,
        "INSTANCE_IPS": addresses.join(","),
        "LABELS": labels,
    });
    if let Some(network) = &args.network {
        metadata["NETWORK"] = json!(network);
    }
    Node {
        id: format!("{}~{address}~{name}.{namespace}~{namespace}.svc.{domain}", kind.as_str()),
        metadata,
    }
}

fn control_plane(args: &BootstrapArgs) -> Value {
    let Discovery { host, port } = &args.discovery;
    let is_address = host.parse::<IpAddr>().is_ok();
    let san = |kind: &str, name: &str| json!({ "san_type": kind, "matcher": { "exact": name } });
    let names = if is_address {
        vec![san("IP_ADDRESS", host)]
    } else {
        // The certificate holds a Service's short form.
        let short = host.strip_suffix(&format!(".{}", args.domain));
        let short = short.filter(|short| short.ends_with(".svc"));
        std::iter::once(host.as_str()).chain(short).map(|name| san("DNS", name)).collect()
    };
    let mut tls = json!({
        "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
        "common_tls_context": {
            "alpn_protocols": ["h2"],
            "tls_params": {
                "tls_minimum_protocol_version": "TLSv1_3",
                "tls_maximum_protocol_version": "TLSv1_3",
            },
            "tls_certificate_sds_secret_configs": [{ "name": "default" }],
            "combined_validation_context": {
                "default_validation_context": { "match_typed_subject_alt_names": names },
                "validation_context_sds_secret_config": { "name": "ROOTCA" },
            },
        },
    });
    if !is_address {
        tls["sni"] = json!(host);
    }
    json!({
        "name": CONTROL_PLANE,
        "type": if is_address { "STATIC" } else { "STRICT_DNS" },
        // Else Envoy tries only the IPv6 addresses of a name that has some, localhost among them.
        "dns_lookup_family": "ALL",
        "connect_timeout": "5s",
        "load_assignment": {
            "cluster_name": CONTROL_PLANE,
            "endpoints": [{ "lb_endpoints": [{ "endpoint": { "address": socket(host, *port) } }] }],
        },
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": {
                    "http2_protocol_options": {
                        // A control plane that vanished without a word is noticed within 40 s.
                        "connection_keepalive": { "interval": "30s", "timeout": "10s" },
                    },
                },
            },
        },
        "transport_socket": { "name": "envoy.transport_sockets.tls", "typed_config": tls },
    })
}

/// The secrets that the control plane's TLS contexts name too.
///
/// Envoy (1.40 tried) accepts `watched_directory` here and does not act on it: it follows files only of
/// secrets that come by SDS, and by a name alone only a static secret is found. So a renewed certificate
/// counts from the proxy's next start; a hot restart keeps its connections.
fn secrets(args: &BootstrapArgs) -> Value {
    let watched = |file: &Path| {
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
        json!({ "path": folder.unwrap_or(Path::new(".")) })
    };
    json!([
        {
            "name": "default",
            "tls_certificate": {
                "certificate_chain": { "filename": args.cert },
                "private_key": { "filename": args.key },
                "watched_directory": watched(&args.cert),
            },
        },
        {
            "name": "ROOTCA",
            "validation_context": {
                "trusted_ca": { "filename": args.root_ca },
                "watched_directory": watched(&args.root_ca),
            },
        },
    ])
}

fn socket(host: &str, port: u16) -> Value {
    json!({ "socket_address": { "address": host, "port_value": port } })
}
