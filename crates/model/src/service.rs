//! A service as one registry describes it.

use std::net::IpAddr;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use ipnet::IpNet;

use super::{Hostname, Labels, Locality, NETWORK_LABEL, Namespace, NetworkId, SortedMap, TlsMode};

/// One service of one registry: a value that is never changed once sent.
///
/// It reads as its [`Definition`], beside what is the registry's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// What clusters that run the same service mostly say alike, and then share.
    pub definition: Arc<Definition>,
    /// Virtual addresses in the registry's own cluster, first one first. Empty for headless ones.
    pub vips: Vec<IpAddr>,
    /// Addresses that reach it from outside the cluster: load balancer addresses (IP, else host
    /// name), then `externalIPs`, in the source's order.
    pub external_addresses: Vec<Arc<str>>,
    /// For NodePort gateways: service port to node port. Empty: external addresses take service ports.
    pub external_ports: SortedMap<u16, u16>,
    /// Seconds since the Unix epoch at which the object was made; 0 where unknown.
    pub created: i64,
}

/// What a service is, wherever it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Definition {
    /// The name under which registries are merged.
    pub hostname: Hostname,
    /// The object's own name.
    pub name: Arc<str>,
    /// The object's namespace.
    pub namespace: Namespace,
    /// Ports in the order of the source.
    pub ports: Vec<Port>,
    /// How its endpoints are found.
    pub resolution: Resolution,
    /// Ranges of addresses that lead to it, whatever the cluster (ServiceEntries only).
    pub ranges: Vec<IpNet>,
    /// Labels of the object, as far as they can mean something here.
    pub labels: Labels,
    /// Pod selector; empty where there is none.
    pub selector: Labels,
    /// SPIFFE IDs named on the object itself, in its order.
    pub service_accounts: Vec<Arc<str>>,
    /// Who may see it.
    pub export_to: ExportTo,
    /// `internalTrafficPolicy: Local`: only endpoints on the proxy's own node.
    pub node_local: bool,
    /// Which endpoints come first (`trafficDistribution`).
    pub prefers: Distribution,
    /// Whether its endpoints in this registry's cluster are for proxies of that cluster only, since it
    /// isn't exported (multi-cluster services).
    pub is_cluster_local: bool,
    /// `publishNotReadyAddresses`; affects name tables only.
    pub publish_not_ready: bool,
    /// For how many seconds a client keeps its endpoint (`sessionAffinity: ClientIP`); `None` where it doesn't. Only
    /// compared between clusters, which can disagree on it: proxies are not sent it.
    pub affinity_seconds: Option<u32>,
    /// Outside the mesh: no mTLS is expected.
    pub mesh_external: bool,
}

impl Service {
    /// The first port of this number that is not UDP.
    pub fn port(&self, number: u16) -> Option<&Port> {
        let mut ports = self.ports.iter();
        ports.find(|port| port.number == number && port.protocol != Protocol::Udp)
    }

    /// Whether it is the same but for what is behind its ports: which pods these lead to, and where on them.
    pub fn same_before_ports(&self, other: &Self) -> bool {
        let without = |one: &Self| {
            let mut one = one.clone();
            one.selector = Labels::new();
            // Where the client chooses the address, its proxy replaces the port.
            let is_of_client = one.resolution == Resolution::Passthrough;
            for port in one.ports.iter_mut().filter(|_| !is_of_client) {
                port.target = TargetPort::Number(port.number);
            }
            one
        };
        self == other || without(self) == without(other)
    }

    /// Whether it carries [`NETWORK_LABEL`], as a gateway into a network does.
    pub fn has_network_label(&self) -> bool {
        self.labels.contains_key(NETWORK_LABEL)
    }
}

impl From<Definition> for Service {
    /// Without an address, of unknown age.
    fn from(definition: Definition) -> Self {
        Self {
            definition: Arc::new(definition),
            vips: Vec::new(),
            external_addresses: Vec::new(),
            external_ports: SortedMap::new(),
            created: 0,
        }
    }
}

impl Deref for Service {
    type Target = Definition;

    fn deref(&self) -> &Definition {
        &self.definition
    }
}

impl DerefMut for Service {
    /// A copy of its own, where others share the definition.
    fn deref_mut(&mut self) -> &mut Definition {
        Arc::make_mut(&mut self.definition)
    }
}

/// One port of a [`Service`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Port {
    /// Its name; may be empty where a service has one port only.
    pub name: Arc<str>,
    /// The service port, 1 to 65535.
    pub number: u16,
    /// What it speaks.
    pub protocol: Protocol,
    /// Where it leads on the pod.
    pub target: TargetPort,
}

/// The port of a pod that a service port leads to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum TargetPort {
    /// A number, 1 to 65535.
    Number(u16),
    /// The name of a container port.
    Name(Arc<str>),
}

/// What a port speaks, as far as Strait treats it differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// Plain HTTP/1.1.
    Http,
    /// HTTP/2 without TLS.
    Http2,
    /// gRPC over HTTP/2.
    Grpc,
    /// gRPC-Web over HTTP/1.1 or 2.
    GrpcWeb,
    /// TLS with HTTP inside: routed as TLS.
    Https,
    /// TLS: opaque, routed by address or SNI.
    Tls,
    /// Bytes.
    Tcp,
    /// A protocol in which the server speaks first (MySQL): never sniffed.
    Mysql,
    /// MongoDB: treated as bytes.
    Mongo,
    /// Redis: treated as bytes.
    Redis,
    /// Datagrams: known, never proxied.
    Udp,
    /// Nothing declared: sniffed at run time.
    Auto,
}

impl Protocol {
    /// The protocol of a Kubernetes port: `appProtocol` if set, else the name up to its first `-`;
    /// sniffed where neither says, except on ports whose servers speak first.
    /// (Istio, "Protocol Selection".)
    pub fn of_port(transport: &str, app_protocol: Option<&str>, name: &str, number: u16) -> Self {
        if transport.eq_ignore_ascii_case("UDP") {
            return Self::Udp;
        }
        match app_protocol.map(str::to_ascii_lowercase).as_deref() {
            Some("kubernetes.io/h2c") => return Self::Http2,
            Some("kubernetes.io/ws") => return Self::Http,
            Some("kubernetes.io/wss") => return Self::Https,
            _ => {}
        }
        let text = app_protocol.unwrap_or(name).to_ascii_lowercase();
        if text == "grpc-web" || text.starts_with("grpc-web-") {
            return Self::GrpcWeb;
        }
        match text.split('-').next().unwrap_or_default() {
            "tcp" => Self::Tcp,
            "udp" => Self::Udp,
            "grpc" => Self::Grpc,
            "http" | "http_proxy" => Self::Http,
            "http2" => Self::Http2,
            "https" => Self::Https,
            "tls" => Self::Tls,
            "mongo" => Self::Mongo,
            "redis" => Self::Redis,
            "mysql" => Self::Mysql,
            _ if matches!(number, 25 | 53 | 3306 | 27017) => Self::Tcp,
            _ => Self::Auto,
        }
    }

    /// Whether a text names a protocol that [`Self::of_port`] knows.
    pub fn is_known(text: &str) -> bool {
        let text = text.to_ascii_lowercase();
        let first = text.split('-').next().unwrap_or_default();
        let names = [
            "tcp",
            "udp",
            "grpc",
            "http",
            "http_proxy",
            "http2",
            "https",
            "tls",
            "mongo",
            "redis",
            "mysql",
            "kubernetes.io/h2c",
            "kubernetes.io/ws",
            "kubernetes.io/wss",
        ];
        names.contains(&first)
    }

    /// Whether requests are seen and routed one by one.
    pub fn is_http(self) -> bool {
        matches!(self, Self::Http | Self::Http2 | Self::Grpc | Self::GrpcWeb)
    }

    /// Whether clients begin TLS themselves, and name a host in it.
    pub fn begins_tls(self) -> bool {
        matches!(self, Self::Tls | Self::Https)
    }

    /// Whether the upstream must be spoken to in HTTP/2.
    pub fn is_http2(self) -> bool {
        matches!(self, Self::Http2 | Self::Grpc | Self::GrpcWeb)
    }

    /// The protocol of that name, as [`Self::as_str`] says it.
    pub fn named(name: &str) -> Option<Self> {
        let all = [
            Self::Http,
            Self::Http2,
            Self::Grpc,
            Self::GrpcWeb,
            Self::Https,
            Self::Tls,
            Self::Tcp,
            Self::Mysql,
            Self::Mongo,
            Self::Redis,
            Self::Udp,
            Self::Auto,
        ];
        all.into_iter().find(|protocol| protocol.as_str() == name)
    }

    /// The name as users see it in `/debug/services`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "HTTP",
            Self::Http2 => "HTTP2",
            Self::Grpc => "GRPC",
            Self::GrpcWeb => "GRPC-Web",
            Self::Https => "HTTPS",
            Self::Tls => "TLS",
            Self::Tcp => "TCP",
            Self::Mysql => "MySQL",
            Self::Mongo => "Mongo",
            Self::Redis => "Redis",
            Self::Udp => "UDP",
            Self::Auto => "AUTO",
        }
    }
}

/// How the endpoints of a service are found by a proxy.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Resolution {
    /// The control plane sends the endpoints, the proxy balances.
    ClientSide,
    /// Headless: the client has picked a pod address already.
    Headless,
    /// Another name for that host (ExternalName).
    Alias(Hostname),
    /// The proxy resolves names itself.
    ByName(ByName),
    /// The client has picked an address, whatever it is (ServiceEntry, `resolution: NONE`).
    Passthrough,
}

impl Resolution {
    /// Whether the client has picked an address before its proxy hears of the connection: the proxy chooses no endpoint.
    pub fn is_chosen_by_client(&self) -> bool {
        matches!(self, Self::Headless | Self::Passthrough)
    }

    /// What the admin API calls it.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::ClientSide => "ClientSideLB",
            Self::Headless => "Headless",
            Self::ByName(found) if found.just_then => "DNSRoundRobinLB",
            Self::ByName(_) => "DNSLB",
            Self::Passthrough => "Passthrough",
            Self::Alias(_) => "Alias",
        }
    }
}

/// Endpoints that a proxy finds by names (ServiceEntry, `resolution: DNS` and `DNS_ROUND_ROBIN`).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ByName {
    /// A new connection goes to the address that the name has just then, instead of all addresses
    /// being balanced: only the first endpoint counts.
    pub just_then: bool,
    /// In the order of the source.
    pub endpoints: Vec<NamedEndpoint>,
}

/// An endpoint by name. Its address may be an IP as well.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NamedEndpoint {
    /// The name, which the proxy resolves; or the path of a socket on the proxy's own host, which begins
    /// with `/`, or with `@` for an abstract one.
    pub address: Arc<str>,
    /// Where it listens, by the name of the service port.
    pub ports: SortedMap<Arc<str>, u16>,
    /// Its share among equals, at least 1.
    pub weight: u32,
    /// Where it runs.
    pub locality: Arc<Locality>,
    /// The network it is in; `None` for one that is reached from all.
    pub network: Option<NetworkId>,
    /// Whether it takes mTLS.
    pub tls_mode: TlsMode,
    /// See [`Endpoint::labels`](super::Endpoint::labels).
    pub labels: Option<Arc<Labels>>,
}

impl NamedEndpoint {
    /// Whether it is a socket on the proxy's own host.
    pub fn is_socket(&self) -> bool {
        self.address.starts_with(['/', '@'])
    }
}

/// Which endpoints of a service come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum Distribution {
    /// All alike.
    #[default]
    Any,
    /// Those in the proxy's zone, then those in its region.
    SameZone,
    /// Those on the proxy's node, then as above.
    SameNode,
}

impl Distribution {
    /// Reads `spec.trafficDistribution` or the annotation `networking.istio.io/traffic-distribution`, in
    /// whatever case. What it doesn't know prefers nothing.
    pub fn parse(text: &str) -> Self {
        match text.to_ascii_lowercase().as_str() {
            "preferclose" | "prefersamezone" => Self::SameZone,
            "prefersamenode" => Self::SameNode,
            _ => Self::Any,
        }
    }

    /// The name as users see it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Any => "Any",
            Self::SameZone => "PreferSameZone",
            Self::SameNode => "PreferSameNode",
        }
    }
}

/// Who may see a service: `networking.istio.io/exportTo`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Hash)]
pub enum ExportTo {
    /// Everybody, other networks included.
    #[default]
    Public,
    /// These namespaces only; empty for nobody (`~`).
    Namespaces(Vec<Namespace>),
}

impl ExportTo {
    /// Reads the annotation's comma list; `own` is the namespace that `.` stands for.
    pub fn parse(text: &str, own: &Namespace) -> Self {
        let mut namespaces = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            match part {
                "*" => return Self::Public,
                "~" => {}
                "." => namespaces.push(own.clone()),
                other => namespaces.push(other.into()),
            }
        }
        if text.trim().is_empty() {
            return Self::Public;
        }
        namespaces.sort();
        namespaces.dedup();
        // Thousands of rules name one.
        namespaces.shrink_to_fit();
        Self::Namespaces(namespaces)
    }

    /// Whether a proxy of `namespace` may see the service.
    pub fn visible_to(&self, namespace: &Namespace) -> bool {
        match self {
            Self::Public => true,
            Self::Namespaces(list) => list.contains(namespace),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocol_comes_from_app_protocol_then_name_then_well_known_port() {
        let cases: [(&str, Option<&str>, &str, u16, Protocol); 12] = [
            ("TCP", None, "http", 80, Protocol::Http),
            ("TCP", None, "http-web", 80, Protocol::Http),
            ("TCP", None, "grpc-web", 80, Protocol::GrpcWeb),
            ("TCP", None, "grpc", 80, Protocol::Grpc),
            ("TCP", Some("tcp"), "http", 80, Protocol::Tcp),
            ("TCP", Some("kubernetes.io/h2c"), "x", 80, Protocol::Http2),
            ("TCP", Some("HTTP2"), "x", 80, Protocol::Http2),
            ("UDP", None, "http", 80, Protocol::Udp),
            ("TCP", None, "", 80, Protocol::Auto),
            ("TCP", None, "db", 3306, Protocol::Tcp),
            ("TCP", None, "httpfoo", 80, Protocol::Auto),
            ("TCP", Some("example.com/x"), "http", 80, Protocol::Auto),
        ];
        for (transport, app, name, number, expected) in cases {
            assert_eq!(Protocol::of_port(transport, app, name, number), expected, "{app:?} {name}");
        }
    }

    #[test]
    fn export_to_names_everybody_some_or_nobody() {
        let own = Namespace::from("a");
        assert_eq!(ExportTo::parse("", &own), ExportTo::Public);
        assert_eq!(ExportTo::parse("b, *", &own), ExportTo::Public);
        assert!(ExportTo::parse(".", &own).visible_to(&own));
        assert!(!ExportTo::parse(".", &own).visible_to(&"b".into()));
        assert!(!ExportTo::parse("~", &own).visible_to(&own));
        assert!(ExportTo::parse("b,c", &own).visible_to(&"c".into()));
    }
}
