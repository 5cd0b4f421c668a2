//! A proxy as it describes itself: claims, until they are checked against its certificate.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::{ClusterId, GatewayTopology, Labels, Locality, Namespace, NetworkId, WorkloadKey};

/// The part a proxy plays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProxyType {
    /// Beside one workload.
    Sidecar,
    /// A gateway.
    Router,
}

impl ProxyType {
    /// The name in a node id.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sidecar => "sidecar",
            Self::Router => "router",
        }
    }
}

/// What a node id and its metadata say. (docs/reference/interface.md, "Proxies"; Istio's node metadata.)
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proxy {
    /// The node id as sent.
    pub id: Arc<str>,
    /// Sidecar or router.
    pub kind: ProxyType,
    /// `INSTANCE_IPS` where all are valid, else the id's address. Never empty.
    pub addresses: Vec<IpAddr>,
    /// Pod name and namespace.
    pub workload: WorkloadKey,
    /// The fourth part of the id, `<namespace>.svc.<domain>`.
    pub dns_domain: Arc<str>,
    /// `CLUSTER_ID`; empty where not given.
    pub cluster: ClusterId,
    /// `NETWORK`; `None` leaves it to be derived.
    pub network: Option<NetworkId>,
    /// `REQUESTED_NETWORK_VIEW`: of named networks it is given these only, sorted; `None` where not given.
    pub sees: Option<Arc<[NetworkId]>>,
    /// `SERVICE_ACCOUNT`, where given.
    pub service_account: Option<Arc<str>>,
    /// `LABELS`.
    pub labels: Labels,
    /// `node.locality`.
    pub locality: Locality,
    /// `NODE_NAME`.
    pub node_name: Option<Arc<str>>,
    /// `DNS_AUTO_ALLOCATE`: it is sent addresses that we gave to hosts which have none.
    pub takes_given_addresses: bool,
    /// `STRAIT_SDS`: files on its host that hold its secrets.
    pub sds: Option<Arc<SdsFiles>>,
    /// `PROXY_CONFIG.gatewayTopology`, where given.
    pub topology: Option<GatewayTopology>,
    /// `ISTIO_VERSION`; `None` for an Envoy without Istio's agent.
    pub istio_version: Option<Arc<str>>,
    /// `INTERCEPTION_MODE`: how connections of its workload come to it.
    pub interception: Interception,
    /// `UNPRIVILEGED_POD`: it can't listen at [privileged ports](is_privileged).
    pub is_unprivileged: bool,
    /// `IDLE_TIMEOUT`: how long a connection of bytes may be silent where nothing else says it; zero for ever.
    pub idle_timeout: Option<Duration>,
    /// `TLS_SERVER_*`, `TLS_CLIENT_*`: files of its pod that its agent serves in place of the certificate that it was given.
    pub mounted: Arc<MountedSecrets>,
    /// `POD_PORTS`: ports of its containers that have names, as long as its pod is not known.
    pub named_ports: BTreeMap<Arc<str>, u16>,
    /// Where it is no Envoy but gRPC's own library.
    pub grpc: Option<GrpcLibrary>,
    /// The build's version, such as `1.40.0`; empty where not given.
    pub envoy_version: Arc<str>,
    /// Major and minor version, where it calls itself an Envoy and says so.
    pub envoy_release: Option<(u32, u32)>,
    /// Those of Istio's own filters that it declares.
    pub istio_filters: IstioFilters,
    /// `STRAIT_VHDS`, and what comes of it.
    pub virtual_hosts: VirtualHostDelivery,
}

/// Whether a port is one at which only who may do more than others listens.
pub fn is_privileged(port: u16) -> bool {
    port < 1024
}

/// How a proxy is sent virtual hosts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum VirtualHostDelivery {
    /// In their routes.
    #[default]
    InRoutes,
    /// One by one (VHDS), as it asked.
    OneByOne,
    /// It asked for them one by one and gets them in their routes, for this reason.
    Refused(&'static str),
}

impl VirtualHostDelivery {
    /// The same on a stream that may be of another form than Delta, which alone has them so.
    pub fn on_stream(self, is_delta: bool) -> Self {
        match self {
            Self::OneByOne if !is_delta => Self::Refused("its stream is not of the Delta form"),
            other => other,
        }
    }
}

/// One of Istio's own filters. An Envoy that lacks it refuses all that names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IstioFilter {
    /// Tells the other end of a request of this one, and learns of it.
    PeerMetadata,
    /// Says to servers which HTTP follows (ALPN).
    Alpn,
    /// Counts requests, as `istio_requests_total`.
    HttpStats,
    /// The same as [`Self::PeerMetadata`] in connections that are taken.
    MetadataExchange,
    /// The same in connections that are made.
    UpstreamMetadataExchange,
    /// Counts connections.
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

    /// The category and the type of configuration under which an Envoy declares it.
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

    /// The one that an Envoy declares so, with or without the prefix that types have on the wire.
    pub fn declared(category: &str, type_url: &str) -> Option<Self> {
        let name = type_url.rsplit_once('/').map_or(type_url, |(_, name)| name);
        Self::ALL.into_iter().find(|filter| filter.declaration() == (category, name))
    }
}

/// Some of Istio's own filters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IstioFilters(u8);

impl IstioFilters {
    /// Whether it is among them.
    pub fn has(self, filter: IstioFilter) -> bool {
        self.0 & 1 << filter as u8 != 0
    }

    /// Whether any of these is.
    pub fn has_any<const N: usize>(self, filters: [IstioFilter; N]) -> bool {
        filters.into_iter().any(|filter| self.has(filter))
    }
}

impl FromIterator<IstioFilter> for IstioFilters {
    fn from_iter<T: IntoIterator<Item = IstioFilter>>(filters: T) -> Self {
        Self(filters.into_iter().fold(0, |all, filter| all | 1 << filter as u8))
    }
}

/// gRPC's own library, which speaks xDS without a proxy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GrpcLibrary {
    /// Whether its bootstrap has a certificate provider named `default`, so that it can speak mTLS: it says
    /// `STRAIT_GRPC_MTLS`, or is given one by Istio's agent.
    pub mtls: bool,
    /// Whether it can choose the endpoint with fewer open requests of two (gRFC A48): one that can't refuses the upstream
    /// cluster.
    pub least_request: bool,
}

/// How connections of a workload come to its sidecar.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Interception {
    /// They are redirected.
    #[default]
    Redirect,
    /// They are handed over as they are, with both their addresses.
    Transparent,
    /// They don't: it has those that are made to ports at which it listens itself.
    None,
}

impl Interception {
    /// What `INTERCEPTION_MODE` says.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "REDIRECT" => Some(Self::Redirect),
            "TPROXY" => Some(Self::Transparent),
            "NONE" => Some(Self::None),
            _ => None,
        }
    }

    /// The same, as it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Redirect => "REDIRECT",
            Self::Transparent => "TPROXY",
            Self::None => "NONE",
        }
    }
}

/// Secrets that lie in a proxy's pod, by the names under which its agent serves them.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MountedSecrets {
    /// Where it is the server.
    pub server: SecretNames,
    /// Where it is the client.
    pub client: SecretNames,
}

/// The names of secrets, as far as they are others than usual.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SecretNames {
    /// Of its certificate and key.
    pub certificate: Option<Arc<str>>,
    /// Of the roots that it trusts.
    pub roots: Option<Arc<str>>,
}

/// Files of secrets on a proxy's own host, each in the form of a discovery response: absolute paths.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SdsFiles {
    /// With its certificate and key, the secret `default`.
    pub certificate: Arc<str>,
    /// With the roots it trusts, the secret `ROOTCA`.
    pub roots: Arc<str>,
}

impl SdsFiles {
    /// The most bytes of a path.
    pub const PATH_BYTES_MAX: usize = 256;

    /// Whether a path may be one of them. It is opened by the proxy alone.
    pub fn is_path(path: &str) -> bool {
        path.starts_with('/')
            && path.len() <= Self::PATH_BYTES_MAX
            && !path.chars().any(char::is_control)
    }
}

impl Proxy {
    /// The namespace whose configuration it gets.
    pub fn namespace(&self) -> &Namespace {
        &self.workload.namespace
    }

    /// Whether any of its addresses is IPv4.
    pub fn has_ipv4(&self) -> bool {
        self.addresses.iter().any(IpAddr::is_ipv4)
    }

    /// Whether any of its addresses is IPv6.
    pub fn has_ipv6(&self) -> bool {
        self.addresses.iter().any(IpAddr::is_ipv6)
    }

    /// Whether it can listen at a port itself.
    pub fn may_listen_at(&self, port: u16) -> bool {
        !(self.is_unprivileged && is_privileged(port))
    }

    /// Whether it can reach an address of that family.
    pub fn speaks(&self, address: IpAddr) -> bool {
        if address.is_ipv4() { self.has_ipv4() } else { self.has_ipv6() }
    }

    /// Whether Istio's agent runs it, so that secrets come from the agent's socket.
    pub fn has_istio_agent(&self) -> bool {
        self.istio_version.is_some()
    }

    /// Whether it is gRPC's own library, without a proxy.
    pub fn is_proxyless(&self) -> bool {
        self.grpc.is_some()
    }

    /// Splits a node id: `type~ip~name.namespace~domain`, exactly four parts.
    ///
    /// # Errors
    /// The first thing that is wrong with it.
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
        // Pod names may hold dots, namespaces may not: the last dot divides them.
        let (name, namespace) = workload
            .rsplit_once('.')
            .filter(|(name, namespace)| !name.is_empty() && !namespace.is_empty())
            .ok_or_else(|| NodeError::Workload { found: workload.into() })?;
        Ok((kind, ip, WorkloadKey::new(namespace, name), domain))
    }
}

/// What is wrong with a node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NodeError {
    /// Not four parts.
    #[error("node id has {found} parts between '~', expected 4: type~ip~name.namespace~domain")]
    Parts {
        /// How many there are.
        found: usize,
    },
    /// Neither sidecar nor router.
    #[error("node type {found:?} is not served, expected sidecar or router")]
    Type {
        /// The type given.
        found: String,
    },
    /// The address doesn't parse.
    #[error("node address {found:?} is not an IP address")]
    Address {
        /// The text given.
        found: String,
    },
    /// No usable address in the id or the metadata.
    #[error("node has no valid address, neither in its id nor in INSTANCE_IPS")]
    NoAddress,
    /// Not `name.namespace`.
    #[error("node workload {found:?} is not name.namespace")]
    Workload {
        /// The text given.
        found: String,
    },
    /// The metadata claims another namespace than the id.
    #[error(
        "node {id} claims namespace {claimed:?} in its metadata and another in its id; let a bootstrap say one: strait proxy bootstrap"
    )]
    Namespace {
        /// The id.
        id: String,
        /// What `NAMESPACE` says.
        claimed: String,
    },
    /// A metadata value is unusable.
    #[error("node metadata {key}: {reason}")]
    Metadata {
        /// The key.
        key: &'static str,
        /// The fact.
        reason: String,
    },
}
