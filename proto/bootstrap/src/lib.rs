//! The configuration with which an unmodified Envoy starts: the identity of the proxy, the addresses of the control
//! plane, and the location of the proxy's certificate. All other configuration comes from the control plane.
//!
//! This is a separate crate because two programs print it: `strait proxy bootstrap` and `strait-agent`. It consists of
//! pure functions that return JSON. It reads and writes no file.

mod stats;

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::str::FromStr;

use serde_json::{Map, Value, json};

pub use self::stats::Stats;

/// Name of the upstream cluster for the control plane.
const CONTROL_PLANE: &str = "strait";

/// An address of the control plane: `HOST:PORT`, with an IPv6 address in brackets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Discovery {
    /// A lowercase name, or an address without brackets. The server's certificate must contain it.
    pub host: String,
    /// The port, which is not 0.
    pub port: u16,
}

/// The error for a text that is not `HOST:PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoDiscovery;

impl fmt::Display for NoDiscovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected HOST:PORT, an IPv6 address in brackets")
    }
}

impl std::error::Error for NoDiscovery {}

impl FromStr for Discovery {
    type Err = NoDiscovery;

    fn from_str(text: &str) -> Result<Self, NoDiscovery> {
        let (host, port) = text.rsplit_once(':').ok_or(NoDiscovery)?;
        let port = port.parse::<u16>().ok().filter(|port| *port > 0).ok_or(NoDiscovery)?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = match bare {
            Some(inner) => inner.parse::<Ipv6Addr>().map_err(|_| NoDiscovery)?.to_string(),
            None if is_host(host) => host.to_ascii_lowercase(),
            None => return Err(NoDiscovery),
        };
        Ok(Self { host, port })
    }
}

impl fmt::Display for Discovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

impl Discovery {
    fn is_address(&self) -> bool {
        self.host.parse::<IpAddr>().is_ok()
    }
}

/// Returns whether a text is valid in a node ID or as a host: letters, digits, `-` and `.`.
pub fn is_host(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'.')
}

/// The identity and location of a proxy.
#[derive(Debug, Clone)]
pub struct ProxyNode<'a> {
    /// `sidecar` or `router`.
    pub kind: &'a str,
    /// Name of the pod or workload.
    pub name: &'a str,
    /// Namespace, as in its certificate. It contains no dot, because the last dot of the node ID separates name and
    /// namespace.
    pub namespace: &'a str,
    /// Service account, as in its certificate.
    pub service_account: &'a str,
    /// ID of the proxy's cluster.
    pub cluster: &'a str,
    /// Network of the proxy. If it is `None`, the control plane derives it.
    pub network: Option<&'a str>,
    /// Addresses of the proxy. The first one is part of the node ID.
    pub addresses: &'a [IpAddr],
    /// Name of the Kubernetes node that it runs on, if known.
    pub node_name: Option<&'a str>,
    /// Labels of the pod.
    pub labels: &'a [(String, String)],
    /// DNS domain of services.
    pub domain: &'a str,
    /// Whether the proxy requests virtual hosts one by one (VHDS).
    pub vhds: bool,
}

/// Labels that name the service of a workload, in order of preference. (Istio, "Telemetry labels".)
const CANONICAL_NAMES: [&str; 3] =
    ["service.istio.io/canonical-name", "app.kubernetes.io/name", "app"];

impl ProxyNode<'_> {
    /// Returns the node ID.
    pub fn id(&self) -> String {
        let Self { kind, name, namespace, domain, .. } = self;
        let address = self.addresses.first().map(IpAddr::to_string).unwrap_or_default();
        format!("{kind}~{address}~{name}.{namespace}~{namespace}.svc.{domain}")
    }

    /// Returns the service of the proxy for receivers that see only the node. For example, Zipkin groups spans by this
    /// service. The service is Istio's canonical service with its namespace.
    pub fn service(&self) -> String {
        let label = |wanted: &&str| {
            let mut labels = self.labels.iter();
            labels.find(|(key, value)| key == wanted && !value.is_empty()).map(|(_, value)| value)
        };
        let named = CANONICAL_NAMES.iter().find_map(label).map_or(self.name, String::as_str);
        format!("{named}.{}", self.namespace)
    }

    /// Returns the metadata of the node, without the location of the secrets.
    pub fn metadata(&self) -> Value {
        let addresses: Vec<String> = self.addresses.iter().map(IpAddr::to_string).collect();
        let labels: Map<String, Value> =
            self.labels.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
        let mut metadata = json!({
            "CLUSTER_ID": self.cluster,
            "NAMESPACE": self.namespace,
            "SERVICE_ACCOUNT": self.service_account,
            "INSTANCE_IPS": addresses.join(","),
            "LABELS": labels,
        });
        if let Some(network) = self.network {
            metadata["NETWORK"] = json!(network);
        }
        if let Some(node) = self.node_name {
            metadata["NODE_NAME"] = json!(node);
        }
        if self.vhds {
            metadata["STRAIT_VHDS"] = json!("true");
        }
        metadata
    }
}

/// PEM files with a certificate, its key, and the roots to trust, as absolute paths.
#[derive(Debug, Clone, Copy)]
pub struct PemFiles<'a> {
    /// The chain, leaf first.
    pub chain: &'a Path,
    /// The leaf's key.
    pub key: &'a Path,
    /// Root certificates for the control plane and for other workloads.
    pub roots: &'a Path,
}

impl PemFiles<'_> {
    /// Returns the secrets to which the control plane's TLS contexts refer: `default`, the certificate with its key,
    /// and `ROOTCA`.
    ///
    /// Envoy (tested with 1.36 and 1.40) applies `watched_directory` in secrets that come from SDS, including SDS from
    /// a file. In static secrets it ignores the field and reads the files only at startup.
    pub fn secrets(&self) -> [Value; 2] {
        let watched = |file: &Path| json!({ "path": folder_of(file) });
        [
            json!({
                "name": "default",
                "tls_certificate": {
                    "certificate_chain": { "filename": self.chain },
                    "private_key": { "filename": self.key },
                    "watched_directory": watched(self.chain),
                },
            }),
            json!({
                "name": "ROOTCA",
                "validation_context": {
                    "trusted_ca": { "filename": self.roots },
                    "watched_directory": watched(self.roots),
                },
            }),
        ]
    }

    /// Returns the content of the two SDS files, each a discovery response with one secret.
    pub fn sds_files(&self) -> [Value; 2] {
        self.secrets().map(|mut secret| {
            secret["@type"] =
                json!("type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret");
            json!({ "resources": [secret] })
        })
    }
}

/// The source of a proxy's secrets.
#[derive(Debug, Clone, Copy)]
pub enum SecretSource<'a> {
    /// SDS files, as absolute paths. Envoy reads them again when they are renewed.
    Sds {
        /// The file with the secret `default`.
        certificate: &'a str,
        /// The file with the secret `ROOTCA`.
        roots: &'a str,
    },
    /// Files that are read once, when the proxy starts.
    Static(PemFiles<'a>),
}

/// How often gRPC libraries check whether their certificate was renewed.
const LIBRARY_REFRESH: &str = "60s";

/// The bootstrap for gRPC libraries, which use xDS without a proxy (gRFC A27, A29, A36, A65). The variable
/// `GRPC_XDS_BOOTSTRAP` names its file.
#[derive(Debug, Clone)]
pub struct LibraryBootstrap<'a> {
    /// The identity of the client or server.
    pub node: ProxyNode<'a>,
    /// Addresses of the control plane. Libraries use the first. Libraries that support gRFC A71 fall back to the
    /// others.
    pub discovery: &'a [Discovery],
    /// Its certificate and roots, for the control plane and for the mesh.
    pub files: PemFiles<'a>,
}

impl LibraryBootstrap<'_> {
    /// Returns the bootstrap in the format of the libraries.
    pub fn to_json(&self) -> Value {
        let PemFiles { chain, key, roots } = self.files;
        let files = json!({
            "certificate_file": chain, "private_key_file": key, "ca_certificate_file": roots,
        });
        let mut refreshed = files.clone();
        refreshed["refresh_interval"] = json!(LIBRARY_REFRESH);
        let mut metadata = self.node.metadata();
        // Only the bootstrap knows that the library has certificates, so the metadata reports it.
        metadata["STRAIT_GRPC_MTLS"] = json!("true");
        let servers = self.discovery.iter().map(|server| {
            json!({
                "server_uri": server.to_string(),
                "channel_creds": [{ "type": "tls", "config": files }],
                "server_features": ["xds_v3"],
            })
        });
        json!({
            "xds_servers": servers.collect::<Vec<_>>(),
            "node": {
                "id": self.node.id(),
                "cluster": self.node.service(),
                "metadata": metadata,
            },
            "certificate_providers": {
                "default": { "plugin_name": "file_watcher", "config": refreshed },
            },
            "server_listener_resource_name_template":
                "grpc/server?xds.resource.listening_address=%s",
        })
    }
}

/// The input of a bootstrap.
#[derive(Debug, Clone)]
pub struct Bootstrap<'a> {
    /// The identity of the proxy.
    pub node: ProxyNode<'a>,
    /// Addresses of the control plane, at least one. Envoy uses the first that is reachable.
    pub discovery: &'a [Discovery],
    /// Whether to use Delta xDS, which requests only changes, instead of state of the world.
    pub delta: bool,
    /// The listening address of Envoy's admin interface.
    pub admin: SocketAddr,
    /// Its certificate and roots.
    pub secrets: SecretSource<'a>,
    /// Its statistics.
    pub stats: Stats<'a>,
}

/// The maximum size of the RE2 program of a regular expression in a route, in instructions. Istio's proxies use the
/// same limit.
const REGEX_PROGRAM_MAX: u32 = 32_768;

impl Bootstrap<'_> {
    /// Returns the bootstrap in Envoy's format.
    pub fn to_json(&self) -> Value {
        let mut metadata = self.node.metadata();
        let mut resources = json!({ "clusters": [self.control_plane()] });
        match self.secrets {
            SecretSource::Sds { certificate, roots } => {
                metadata["STRAIT_SDS"] = json!({ "cert": certificate, "roots": roots });
            }
            SecretSource::Static(files) => resources["secrets"] = json!(files.secrets()),
        }
        if self.stats.service_metrics {
            metadata["STRAIT_SERVICE_METRICS"] = json!("true");
        }
        let mut bootstrap = json!({
            "node": {
                "id": self.node.id(),
                "cluster": self.node.service(),
                "metadata": metadata,
            },
            "admin": { "address": socket_address(&self.admin.ip().to_string(), self.admin.port()) },
            "dynamic_resources": {
                "ads_config": {
                    "api_type": if self.delta { "DELTA_GRPC" } else { "GRPC" },
                    "transport_api_version": "V3",
                    "set_node_on_first_message_only": true,
                    "grpc_services": [{ "envoy_grpc": { "cluster_name": CONTROL_PLANE } }],
                },
                "cds_config": { "ads": {}, "resource_api_version": "V3" },
                "lds_config": { "ads": {}, "resource_api_version": "V3" },
            },
            // With Envoy's default limit, one long expression makes Envoy reject the entire route configuration
            // (docs/reference/traffic.md, "What Envoy refuses").
            "layered_runtime": { "layers": [
                { "name": "strait", "static_layer": { "re2.max_program_size.error_level": REGEX_PROGRAM_MAX } },
                { "name": "admin", "admin_layer": {} },
            ] },
            "static_resources": resources,
            "stats_config": self.stats.config(self.node.domain),
        });
        if let Some(extensions) = self.stats.extensions() {
            bootstrap["bootstrap_extensions"] = extensions;
        }
        bootstrap
    }

    fn control_plane(&self) -> Value {
        let are_addresses = self.discovery.iter().all(Discovery::is_address);
        let localities =
            self.discovery.iter().enumerate().map(|(priority, Discovery { host, port })| {
                let endpoint = json!({ "endpoint": { "address": socket_address(host, *port) } });
                let mut locality = json!({ "lb_endpoints": [endpoint] });
                if priority > 0 {
                    locality["priority"] = json!(priority);
                }
                locality
            });
        let mut cluster = json!({
            "name": CONTROL_PLANE,
            "type": if are_addresses { "STATIC" } else { "STRICT_DNS" },
            // Otherwise Envoy tries only the IPv6 addresses of a name that has any, for example
            // localhost.
            "dns_lookup_family": "ALL",
            "connect_timeout": "5s",
            "load_assignment": {
                "cluster_name": CONTROL_PLANE,
                "endpoints": localities.collect::<Vec<_>>(),
            },
            "typed_extension_protocol_options": {
                "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                    "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                    "explicit_http_config": {
                        "http2_protocol_options": {
                            // An unreachable control plane is detected within 40 s.
                            "connection_keepalive": { "interval": "30s", "timeout": "10s" },
                        },
                    },
                },
            },
            "transport_socket": { "name": "envoy.transport_sockets.tls", "typed_config": self.tls() },
        });
        if self.discovery.len() > 1 {
            // An unreachable address is unhealthy for a while, so that Envoy tries the next priority.
            cluster["outlier_detection"] = json!({
                "split_external_local_origin_errors": true,
                "consecutive_local_origin_failure": 2,
                "enforcing_consecutive_local_origin_failure": 100,
                "enforcing_local_origin_success_rate": 0,
                "interval": "1s",
                "base_ejection_time": "30s",
                "max_ejection_time": "60s",
                "max_ejection_percent": 100,
            });
        }
        cluster
    }

    fn tls(&self) -> Value {
        let [certificate, roots] = match self.secrets {
            SecretSource::Sds { certificate, roots } => [Some(certificate), Some(roots)],
            SecretSource::Static(_) => [None; 2],
        };
        let mut tls = json!({
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            "common_tls_context": {
                "alpn_protocols": ["h2"],
                "tls_params": {
                    "tls_minimum_protocol_version": "TLSv1_3",
                    "tls_maximum_protocol_version": "TLSv1_3",
                },
                "tls_certificate_sds_secret_configs": [named("default", certificate)],
                "combined_validation_context": {
                    "default_validation_context": { "match_typed_subject_alt_names": self.names() },
                    "validation_context_sds_secret_config": named("ROOTCA", roots),
                },
            },
        });
        if let Some(first) = self.discovery.iter().find(|one| !one.is_address()) {
            tls["sni"] = json!(first.host);
        }
        tls
    }

    /// Returns the matchers for the names in the control plane's certificate. At least one must match.
    fn names(&self) -> Vec<Value> {
        let san =
            |kind: &str, name: &str| json!({ "san_type": kind, "matcher": { "exact": name } });
        let mut names = Vec::new();
        for discovery in self.discovery {
            let host = &*discovery.host;
            if discovery.is_address() {
                names.push(san("IP_ADDRESS", host));
                continue;
            }
            names.push(san("DNS", host));
            // The certificate contains the short name of a Service.
            let short = host.strip_suffix(&format!(".{}", self.node.domain));
            names.extend(
                short.filter(|short| short.ends_with(".svc")).map(|short| san("DNS", short)),
            );
        }
        names
    }
}

/// Returns a reference to a secret: to the file if there is one, otherwise to a static secret.
fn named(name: &str, file: Option<&str>) -> Value {
    let Some(file) = file else { return json!({ "name": name }) };
    let watched = json!({ "path": folder_of(Path::new(file)) });
    let source = json!({ "path": file, "watched_directory": watched });
    json!({
        "name": name,
        "sds_config": { "path_config_source": source, "resource_api_version": "V3" },
    })
}

/// Returns the folder of a file, or `.` if the path has none.
pub fn folder_of(file: &Path) -> &Path {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// Returns an address in Envoy's format.
pub fn socket_address(host: &str, port: u16) -> Value {
    json!({ "socket_address": { "address": host, "port_value": port } })
}
