//! A proxy as it describes itself. Its data are claims until they are checked against its
//! certificate or token.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::{ClusterId, GatewayTopology, Labels, Locality, Namespace, NetworkId, WorkloadKey};

/// The type of a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProxyType {
    /// A sidecar of one workload.
    Sidecar,
    /// A gateway.
    Router,
}

impl ProxyType {
    /// Returns the name in a node ID.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sidecar => "sidecar",
            Self::Router => "router",
        }
    }

    /// Returns whether the proxy belongs to one workload. Sidecar objects select such a proxy, and
    /// it receives the requests of its workload.
    pub fn serves_one_workload(self) -> bool {
        match self {
            Self::Sidecar => true,
            Self::Router => false,
        }
    }

    /// Returns whether the proxy forwards requests of other clients. Gateway objects select such a
    /// proxy, and it may be an east-west gateway.
    pub fn is_gateway(self) -> bool {
        match self {
            Self::Sidecar => false,
            Self::Router => true,
        }
    }
}

/// The content of a node ID and its metadata. (docs/reference/interface.md, "Proxies"; Istio's node
/// metadata.)
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proxy {
    /// The node ID as sent.
    pub id: Arc<str>,
    /// The type: sidecar or router.
    pub kind: ProxyType,
    /// `INSTANCE_IPS` if all are valid, otherwise the address in the node ID. Never empty.
    pub addresses: Vec<IpAddr>,
    /// Name and namespace of the pod.
    pub workload: WorkloadKey,
    /// The fourth part of the node ID, `<namespace>.svc.<domain>`.
    pub dns_domain: Arc<str>,
    /// `CLUSTER_ID`; empty if missing.
    pub cluster: ClusterId,
    /// `NETWORK`; if `None`, the network is derived.
    pub network: Option<NetworkId>,
    /// `REQUESTED_NETWORK_VIEW`: the named networks whose endpoints it receives, sorted; `None` if
    /// missing.
    pub visible_networks: Option<Arc<[NetworkId]>>,
    /// `SERVICE_ACCOUNT`, if set.
    pub service_account: Option<Arc<str>>,
    /// `LABELS`.
    pub labels: Labels,
    /// `node.locality`.
    pub locality: Locality,
    /// `NODE_NAME`.
    pub node_name: Option<Arc<str>>,
    /// `DNS_AUTO_ALLOCATE`: whether it receives addresses that the control plane allocated for
    /// hosts without one.
    pub takes_given_addresses: bool,
    /// `STRAIT_SDS`: files on its host with its secrets.
    pub sds: Option<Arc<SdsFiles>>,
    /// `PROXY_CONFIG.gatewayTopology`, if set.
    pub topology: Option<GatewayTopology>,
    /// `ISTIO_VERSION`; `None` for an Envoy without Istio's agent.
    pub istio_version: Option<Arc<str>>,
    /// `INTERCEPTION_MODE`: how the workload's connections reach the proxy.
    pub interception: Interception,
    /// `UNPRIVILEGED_POD`: it cannot listen on [privileged ports](is_privileged).
    pub is_unprivileged: bool,
    /// `IDLE_TIMEOUT`: the default idle timeout of TCP connections; zero for none.
    pub idle_timeout: Option<Duration>,
    /// `TLS_SERVER_*`, `TLS_CLIENT_*`: files in its pod that its agent serves instead of the issued
    /// certificate.
    pub mounted: Arc<MountedSecrets>,
    /// `POD_PORTS`: named container ports, used while its pod is unknown.
    pub named_ports: BTreeMap<Arc<str>, u16>,
    /// Set if it is gRPC's own library instead of Envoy.
    pub grpc: Option<GrpcLibrary>,
    /// The version of the build, for example `1.40.0`; empty if missing.
    pub envoy_version: Arc<str>,
    /// Major and minor version, if it identifies itself as Envoy with a version.
    pub envoy_release: Option<(u32, u32)>,
    /// The Istio filters that it declares.
    pub istio_filters: IstioFilters,
    /// `STRAIT_SERVICE_METRICS`: it reports service metrics with an access logger of Envoy. False if
    /// its Envoy lacks the logger, or has Istio's own filter for metrics.
    pub reports_services: bool,
    /// `STRAIT_VHDS`, and how it is applied.
    pub virtual_hosts: VirtualHostDelivery,
}

/// Returns whether only privileged processes may listen on this port.
pub fn is_privileged(port: u16) -> bool {
    port < 1024
}

/// How a proxy receives virtual hosts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum VirtualHostDelivery {
    /// As part of route configurations.
    #[default]
    InRoutes,
    /// One by one (VHDS), as it requested.
    OneByOne,
    /// It requested VHDS but receives them as part of route configurations, for this reason.
    Refused(&'static str),
}

impl VirtualHostDelivery {
    /// Returns the delivery on a stream; only the Delta form supports VHDS.
    pub fn on_stream(self, is_delta: bool) -> Self {
        match self {
            Self::OneByOne if !is_delta => Self::Refused("its stream does not use the Delta form"),
            other => other,
        }
    }
}

/// A filter that only Istio's proxies contain. An Envoy without it rejects resources that name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IstioFilter {
    /// Exchanges metadata of the two ends of an HTTP request.
    PeerMetadata,
    /// Announces to servers which version of HTTP follows (ALPN).
    Alpn,
    /// Counts requests, as `istio_requests_total`.
    HttpStats,
    /// Exchanges metadata on inbound TCP connections.
    MetadataExchange,
    /// Exchanges metadata on outbound TCP connections.
    UpstreamMetadataExchange,
    /// Counts TCP connections.
    TcpStats,
}

impl IstioFilter {
    const ALL: [Self; 6] = [
        Self::PeerMetadata,
        Self::Alpn,
        Self::HttpStats,
        Self::MetadataExchange,
        Self::UpstreamMetadataExchange,
        Self::TcpStats,
    ];

    /// Returns the category and the configuration type under which an Envoy declares the filter.
    fn declaration(self) -> (&'static str, &'static str) {
        const HTTP: &str = "envoy.filters.http";
        const NETWORK: &str = "envoy.filters.network";
        const UPSTREAM: &str = "envoy.filters.upstream_network";
        match self {
            Self::PeerMetadata => (HTTP, "io.istio.http.peer_metadata.Config"),
            Self::Alpn => (HTTP, "istio.envoy.config.filter.http.alpn.v2alpha1.FilterConfig"),
            Self::HttpStats => (HTTP, "stats.PluginConfig"),
            Self::MetadataExchange => {
                (NETWORK, "envoy.tcp.metadataexchange.config.MetadataExchange")
            }
            Self::UpstreamMetadataExchange => {
                (UPSTREAM, "envoy.tcp.metadataexchange.config.MetadataExchange")
            }
            Self::TcpStats => (NETWORK, "stats.PluginConfig"),
        }
    }

    /// Returns the filter with this declaration; the type may have the prefix that it has on the
    /// wire.
    pub fn declared(category: &str, type_url: &str) -> Option<Self> {
        let name = type_url.rsplit_once('/').map_or(type_url, |(_, name)| name);
        Self::ALL.into_iter().find(|filter| filter.declaration() == (category, name))
    }
}

/// A set of Istio's filters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IstioFilters(u8);

impl IstioFilters {
    /// Returns whether the set contains the filter.
    pub fn has(self, filter: IstioFilter) -> bool {
        self.0 & 1 << filter as u8 != 0
    }

    /// Returns whether the set contains any of these filters.
    pub fn has_any<const N: usize>(self, filters: [IstioFilter; N]) -> bool {
        filters.into_iter().any(|filter| self.has(filter))
    }
}

impl FromIterator<IstioFilter> for IstioFilters {
    fn from_iter<T: IntoIterator<Item = IstioFilter>>(filters: T) -> Self {
        Self(filters.into_iter().fold(0, |all, filter| all | 1 << filter as u8))
    }
}

/// Properties of gRPC's own library, which uses xDS without a proxy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GrpcLibrary {
    /// Whether its bootstrap has a certificate provider named `default`, so that it supports mTLS.
    /// It declares this with `STRAIT_GRPC_MTLS`, or Istio's agent configured it.
    pub mtls: bool,
    /// Whether it supports the load balancer LEAST_REQUEST (gRFC A48). Otherwise it rejects an
    /// upstream cluster with it.
    pub least_request: bool,
}

/// How connections of a workload reach its sidecar.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Interception {
    /// They are redirected.
    #[default]
    Redirect,
    /// They are intercepted transparently, with both original addresses.
    Transparent,
    /// They are not intercepted: the sidecar only receives connections to ports on which it
    /// listens.
    None,
}

impl Interception {
    /// Parses `INTERCEPTION_MODE`.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "REDIRECT" => Some(Self::Redirect),
            "TPROXY" => Some(Self::Transparent),
            "NONE" => Some(Self::None),
            _ => None,
        }
    }

    /// Returns the value of `INTERCEPTION_MODE`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Redirect => "REDIRECT",
            Self::Transparent => "TPROXY",
            Self::None => "NONE",
        }
    }
}

/// Secrets mounted in a proxy's pod, by the names under which its agent serves them.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MountedSecrets {
    /// The secrets for inbound connections.
    pub server: SecretNames,
    /// The secrets for outbound connections.
    pub client: SecretNames,
}

/// The names of secrets that differ from the default names.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SecretNames {
    /// The name of the secret with certificate and key.
    pub certificate: Option<Arc<str>>,
    /// The name of the secret with the trust roots.
    pub roots: Option<Arc<str>>,
}

/// Files with secrets on a proxy's host, each in the form of a discovery response. Paths are
/// absolute.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SdsFiles {
    /// The file with its certificate and key, as secret `default`.
    pub certificate: Arc<str>,
    /// The file with the trust roots, as secret `ROOTCA`.
    pub roots: Arc<str>,
}

impl SdsFiles {
    /// The maximum length of a path, in bytes.
    pub const PATH_BYTES_MAX: usize = 256;

    /// Returns whether the path is valid. Only the proxy opens it.
    pub fn is_path(path: &str) -> bool {
        path.starts_with('/')
            && path.len() <= Self::PATH_BYTES_MAX
            && !path.chars().any(char::is_control)
    }
}

impl Proxy {
    /// Returns the namespace whose configuration it receives.
    pub fn namespace(&self) -> &Namespace {
        &self.workload.namespace
    }

    /// Returns whether any address is IPv4.
    pub fn has_ipv4(&self) -> bool {
        self.addresses.iter().any(IpAddr::is_ipv4)
    }

    /// Returns whether any address is IPv6.
    pub fn has_ipv6(&self) -> bool {
        self.addresses.iter().any(IpAddr::is_ipv6)
    }

    /// Returns whether it can listen on a port.
    pub fn may_listen_at(&self, port: u16) -> bool {
        !(self.is_unprivileged && is_privileged(port))
    }

    /// Returns whether it supports the family of this address.
    pub fn supports_address(&self, address: IpAddr) -> bool {
        if address.is_ipv4() { self.has_ipv4() } else { self.has_ipv6() }
    }

    /// Returns whether Istio's agent runs it, so that secrets are served by the agent's socket.
    pub fn has_istio_agent(&self) -> bool {
        self.istio_version.is_some()
    }

    /// Returns whether it is gRPC's own library, without a proxy.
    pub fn is_proxyless(&self) -> bool {
        self.grpc.is_some()
    }

    /// Splits a node ID: `type~ip~name.namespace~domain`, exactly four parts.
    ///
    /// # Errors
    /// Returns the first problem.
    pub fn parse_id(id: &str) -> Result<(ProxyType, Option<IpAddr>, WorkloadKey, &str), NodeError> {
        let parts: Vec<&str> = id.split('~').collect();
        let [kind, ip, workload, domain] = parts[..] else {
            return Err(NodeError::Parts { found: parts.len() });
        };
        let kind = match kind {
            "sidecar" => ProxyType::Sidecar,
            "router" => ProxyType::Router,
            other => return Err(NodeError::Type { found: other.into() }),
        };
        let ip = if ip.is_empty() {
            None
        } else {
            Some(ip.parse().map_err(|_| NodeError::Address { found: ip.into() })?)
        };
        // Names of pods may contain dots and namespaces may not, so split at the last dot.
        let (name, namespace) = workload
            .rsplit_once('.')
            .filter(|(name, namespace)| !name.is_empty() && !namespace.is_empty())
            .ok_or_else(|| NodeError::Workload { found: workload.into() })?;
        Ok((kind, ip, WorkloadKey::new(namespace, name), domain))
    }
}

/// Why a node is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NodeError {
    /// The node ID does not have four parts.
    #[error("node id has {found} parts between '~', expected 4: type~ip~name.namespace~domain")]
    Parts {
        /// The number of parts.
        found: usize,
    },
    /// The type is neither sidecar nor router.
    #[error("node type {found:?} is not served, expected sidecar or router")]
    Type {
        /// The type.
        found: String,
    },
    /// The address is invalid.
    #[error("node address {found:?} is not an IP address")]
    Address {
        /// The text of the address.
        found: String,
    },
    /// Neither the node ID nor the metadata has a usable address.
    #[error("node has no valid address, neither in its id nor in INSTANCE_IPS")]
    NoAddress,
    /// The workload is not `name.namespace`.
    #[error("node workload {found:?} is not name.namespace")]
    Workload {
        /// The text of the workload.
        found: String,
    },
    /// The namespaces in metadata and node ID differ.
    #[error(
        "node {id} has namespace {claimed:?} in its metadata and a different one in its id; generate its bootstrap with strait proxy bootstrap"
    )]
    Namespace {
        /// The node ID.
        id: String,
        /// The value of `NAMESPACE`.
        claimed: String,
    },
    /// A metadata value is invalid.
    #[error("node metadata {key}: {reason}")]
    Metadata {
        /// The key.
        key: &'static str,
        /// The problem.
        reason: String,
    },
}
