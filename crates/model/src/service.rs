//! A service as one registry describes it.

use std::net::IpAddr;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use ipnet::IpNet;

use super::{
    Hostname, Labels, Locality, NETWORK_LABEL, Namespace, NetworkId, SharingFacts, SortedMap,
    TlsMode,
};

/// A service of one registry; never modified once sent.
///
/// It dereferences to its [`Definition`]; the other fields are specific to the registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// The part that is usually equal in all clusters with the service, which then share it.
    pub definition: Arc<Definition>,
    /// Virtual addresses in the registry's own cluster, the primary one first. Empty for headless
    /// services.
    pub vips: Vec<IpAddr>,
    /// Addresses that reach it from outside the cluster: load balancer addresses (IP, otherwise
    /// hostname), followed by `externalIPs`, in the order of the source.
    pub external_addresses: Vec<Arc<str>>,
    /// Node ports by service port, for NodePort gateways. If empty, external addresses use the
    /// service ports.
    pub external_ports: SortedMap<u16, u16>,
    /// When the object was created, in seconds since the Unix epoch; 0 if unknown.
    pub created: i64,
}

/// The definition of a service, independent of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Definition {
    /// The hostname by which registries are merged.
    pub hostname: Hostname,
    /// The name of the object.
    pub name: Arc<str>,
    /// The namespace of the object.
    pub namespace: Namespace,
    /// Ports in the order of the source.
    pub ports: Vec<Port>,
    /// How proxies find its endpoints.
    pub resolution: Resolution,
    /// Address ranges that belong to it in every cluster (ServiceEntries only).
    pub ranges: Vec<IpNet>,
    /// Labels of the object that are relevant here.
    pub labels: Labels,
    /// The pod selector; empty if it has none.
    pub selector: Labels,
    /// SPIFFE IDs that the object names, in its order.
    pub service_accounts: Vec<Arc<str>>,
    /// The namespaces to which it is visible.
    pub export_to: ExportTo,
    /// `internalTrafficPolicy: Local`: only endpoints on the proxy's own node are used.
    pub node_local: bool,
    /// The endpoints that have priority (`trafficDistribution`).
    pub prefers: Distribution,
    /// The statements of the cluster's objects about sharing the service with other clusters.
    pub sharing: SharingFacts,
    /// The pods that name tables contain beyond the usual ones.
    pub named_pods: NamedPodScope,
    /// The session affinity timeout in seconds (`sessionAffinity: ClientIP`); `None` without
    /// affinity. It is only compared between clusters, which can disagree on it, and not sent to
    /// proxies.
    pub affinity_seconds: Option<u32>,
    /// Whether it is outside the mesh, so that no mTLS is expected.
    pub mesh_external: bool,
}

/// The annotation of a headless Service whose name has the pods of all networks, and its only value.
pub const HEADLESS_EVERYWHERE: (&str, &str) = ("strait.dev/headless", "everywhere");

/// The pods that name tables contain in addition to the ready pods in the proxy's network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct NamedPodScope {
    /// Pods that are not ready (`publishNotReadyAddresses`).
    pub unready: bool,
    /// Under the name of a headless service, its pods in other networks, for proxies of the
    /// cluster with this Service ([`HEADLESS_EVERYWHERE`]).
    pub everywhere: bool,
}

impl NamedPodScope {
    /// Returns the scope as one number. A number, once assigned, keeps its meaning.
    pub fn code(self) -> u8 {
        u8::from(self.unready) | u8::from(self.everywhere) << 1
    }

    /// Returns the scope with this number; `None` if it is out of range.
    pub fn from_code(code: u8) -> Option<Self> {
        (code < 4).then_some(Self { unready: code & 1 != 0, everywhere: code & 2 != 0 })
    }
}

impl Service {
    /// Returns the first port with this number that is not UDP.
    pub fn port(&self, number: u16) -> Option<&Port> {
        let mut ports = self.ports.iter();
        ports.find(|port| port.number == number && port.protocol != Protocol::Udp)
    }

    /// Returns whether everything is equal except the pods and target ports behind its ports.
    pub fn same_before_ports(&self, other: &Self) -> bool {
        let without = |service: &Self| {
            let mut service = service.clone();
            service.selector = Labels::new();
            // If the client chooses the address, its proxy replaces the port.
            let is_chosen_by_client = service.resolution == Resolution::Passthrough;
            for port in service.ports.iter_mut().filter(|_| !is_chosen_by_client) {
                port.target = TargetPort::Number(port.number);
            }
            service
        };
        self == other || without(self) == without(other)
    }

    /// Returns whether it has the label [`NETWORK_LABEL`], like a gateway of a network.
    pub fn has_network_label(&self) -> bool {
        self.labels.contains_key(NETWORK_LABEL)
    }
}

impl From<Definition> for Service {
    /// Creates a service without an address and of unknown age.
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

    #[inline]
    fn deref(&self) -> &Definition {
        &self.definition
    }
}

impl DerefMut for Service {
    /// Clones the definition if it is shared.
    fn deref_mut(&mut self) -> &mut Definition {
        Arc::make_mut(&mut self.definition)
    }
}

/// One port of a [`Service`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Port {
    /// The name; may be empty if the service has only one port.
    pub name: Arc<str>,
    /// The service port, 1 to 65535.
    pub number: u16,
    /// The protocol.
    pub protocol: Protocol,
    /// The port on the pod.
    pub target: TargetPort,
}

/// The port of a pod to which a service port routes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum TargetPort {
    /// A number, 1 to 65535.
    Number(u16),
    /// The name of a container port.
    Name(Arc<str>),
}

/// The protocol of a port, as far as Strait distinguishes it.
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
    /// TLS with HTTP inside; routed like TLS.
    Https,
    /// TLS; opaque, routed by address or SNI.
    Tls,
    /// Raw TCP.
    Tcp,
    /// A protocol in which the server sends first (MySQL); protocol detection is never used.
    Mysql,
    /// MongoDB; treated as raw TCP.
    Mongo,
    /// Redis; treated as raw TCP.
    Redis,
    /// UDP; recognized but never proxied.
    Udp,
    /// No protocol is declared; detected at run time.
    Auto,
}

impl Protocol {
    /// Returns the protocol of a Kubernetes port: `appProtocol` if set, otherwise the name up to
    /// its first `-`. If neither declares a protocol, it is detected at run time, except on
    /// well-known ports whose servers send first. (Istio, "Protocol Selection".)
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

    /// Returns whether [`Self::of_port`] recognizes this text.
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

    /// Returns whether requests are routed individually.
    pub fn is_http(self) -> bool {
        matches!(self, Self::Http | Self::Http2 | Self::Grpc | Self::GrpcWeb)
    }

    /// Returns whether clients open TLS themselves, with an SNI.
    pub fn begins_tls(self) -> bool {
        matches!(self, Self::Tls | Self::Https)
    }

    /// Returns whether HTTP/2 must be used for the upstream.
    pub fn is_http2(self) -> bool {
        matches!(self, Self::Http2 | Self::Grpc | Self::GrpcWeb)
    }

    /// Returns the protocol with this name, as returned by [`Self::as_str`].
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

    /// Returns the name as users see it in `/debug/services`.
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

/// How a proxy finds the endpoints of a service.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Resolution {
    /// The control plane sends the endpoints, and the proxy balances the load.
    ClientSide,
    /// Headless: the client has already chosen the address of a pod.
    Headless,
    /// An alias of another host (ExternalName).
    Alias(Hostname),
    /// The proxy resolves hostnames.
    ByName(ByName),
    /// The client has chosen any address (ServiceEntry, `resolution: NONE`).
    Passthrough,
}

impl Resolution {
    /// Returns whether the client has already chosen an address, so that its proxy chooses no
    /// endpoint.
    pub fn is_chosen_by_client(&self) -> bool {
        matches!(self, Self::Headless | Self::Passthrough)
    }

    /// Returns the name in the admin API.
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

/// Endpoints that a proxy finds by hostname (ServiceEntry, `resolution: DNS` and
/// `DNS_ROUND_ROBIN`).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ByName {
    /// Whether a new connection uses the address that the hostname currently has, instead of
    /// balancing over all addresses. Then only the first endpoint is used.
    pub just_then: bool,
    /// The endpoints in the order of the source.
    pub endpoints: Vec<NamedEndpoint>,
}

/// An endpoint by hostname. The address may also be an IP address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NamedEndpoint {
    /// The hostname, which the proxy resolves. Or the path of a socket on the proxy's host: it
    /// begins with `/`, or with `@` if it is abstract.
    pub address: Arc<str>,
    /// The target port by name of the service port.
    pub ports: SortedMap<Arc<str>, u16>,
    /// The load-balancing weight, at least 1.
    pub weight: u32,
    /// The locality in which it runs.
    pub locality: Arc<Locality>,
    /// The network; `None` if it is reachable from every network.
    pub network: Option<NetworkId>,
    /// Whether it accepts mTLS.
    pub tls_mode: TlsMode,
    /// See [`Endpoint::labels`](super::Endpoint::labels).
    pub labels: Option<Arc<Labels>>,
}

impl NamedEndpoint {
    /// Returns whether it is a socket on the proxy's host.
    pub fn is_socket(&self) -> bool {
        self.address.starts_with(['/', '@'])
    }
}

/// Which endpoints of a service have priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum Distribution {
    /// All are equal.
    #[default]
    Any,
    /// Endpoints in the proxy's zone, then in its region.
    SameZone,
    /// Endpoints on the proxy's node, then as [`Self::SameZone`].
    SameNode,
}

impl Distribution {
    /// Parses `spec.trafficDistribution` or the annotation
    /// `networking.istio.io/traffic-distribution`, case-insensitively. Unknown values express no
    /// preference.
    pub fn parse(text: &str) -> Self {
        match text.to_ascii_lowercase().as_str() {
            "preferclose" | "prefersamezone" => Self::SameZone,
            "prefersamenode" => Self::SameNode,
            _ => Self::Any,
        }
    }

    /// Returns the name as users see it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Any => "Any",
            Self::SameZone => "PreferSameZone",
            Self::SameNode => "PreferSameNode",
        }
    }
}

/// The namespaces to which a service is visible: `networking.istio.io/exportTo`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Hash)]
pub enum ExportTo {
    /// All namespaces, in all networks.
    #[default]
    Public,
    /// Only these namespaces; empty for none (`~`).
    Namespaces(Vec<Namespace>),
}

impl ExportTo {
    /// Parses the annotation's comma-separated list; `own` is the namespace for `.`.
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
        // Thousands of rules name one namespace.
        namespaces.shrink_to_fit();
        Self::Namespaces(namespaces)
    }

    /// Parses a list of a field `exportTo`. An empty list stands for all namespaces, and a list of
    /// empty texts for none.
    pub fn of_list(list: &[String], own: &Namespace) -> Self {
        let is_blank = |text: &String| text.trim().is_empty();
        if !list.is_empty() && list.iter().all(is_blank) {
            return Self::Namespaces(Vec::new());
        }
        Self::parse(&list.join(","), own)
    }

    /// Returns whether a proxy in `namespace` may see the service.
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
    fn export_to_lists_all_some_or_no_namespaces() {
        let own = Namespace::from("a");
        assert_eq!(ExportTo::parse("", &own), ExportTo::Public);
        assert_eq!(ExportTo::parse("b, *", &own), ExportTo::Public);
        assert!(ExportTo::parse(".", &own).visible_to(&own));
        assert!(!ExportTo::parse(".", &own).visible_to(&"b".into()));
        assert!(!ExportTo::parse("~", &own).visible_to(&own));
        assert!(ExportTo::parse("b,c", &own).visible_to(&"c".into()));
    }
}
