//! What single values of rules test of a request or a connection.

use ipnet::IpNet;

/// One value of a field. Texts are as policies write them, with `*` in front, at the end, or alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestTest {
    /// The client's SPIFFE ID without its scheme.
    Principal(Box<str>),
    /// The client's namespace; `*` anywhere.
    Namespace(Box<str>),
    /// The client's service account: its namespace, and its name.
    ServiceAccount(Box<[Box<str>; 2]>),
    /// The client's trust domain.
    TrustDomain(Box<str>),
    /// The address of the peer of the connection.
    PeerAddress(IpNet),
    /// The address of the client, as proxies on the way say.
    ClientAddress(IpNet),
    /// Issuer and subject of the token, with a slash between them.
    RequestPrincipal(Box<str>),
    /// A claim of the token, by its path.
    Claim(Box<ClaimTest>),
    /// A header, by its lower-case name, and its value.
    Header(Box<[Box<str>; 2]>),
    /// The host that the request names.
    Host(Box<str>),
    /// The method.
    Method(Box<str>),
    /// The path, without query.
    Path(Box<str>),
    /// The path, as a template of segments, in Envoy's form.
    PathTemplate(Box<str>),
    /// The port of the workload.
    Port(u16),
    /// The workload's own address.
    DestinationAddress(IpNet),
    /// The server name that a TLS client asks for.
    ServerName(Box<str>),
    /// What a filter of Envoy's has noted of the request: filter, key, value.
    Noted(Box<[Box<str>; 3]>),
}

/// What a claim of a token has to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimTest {
    /// The names that lead to it.
    pub path: Box<[Box<str>]>,
    /// Its value, or that of one of its elements.
    pub value: Box<str>,
}

impl RequestTest {
    /// Whether only a request of HTTP can be tested, no connection.
    pub fn is_http(&self) -> bool {
        match self {
            Self::RequestPrincipal(_)
            | Self::Claim(_)
            | Self::Header(_)
            | Self::Host(_)
            | Self::Method(_)
            | Self::Path(_)
            | Self::PathTemplate(_) => true,
            Self::Principal(_)
            | Self::Namespace(_)
            | Self::ServiceAccount(_)
            | Self::TrustDomain(_)
            | Self::PeerAddress(_)
            | Self::ClientAddress(_)
            | Self::Port(_)
            | Self::DestinationAddress(_)
            | Self::ServerName(_)
            | Self::Noted(_) => false,
        }
    }

    /// Whether it is about who calls, not about what is called.
    pub(super) fn is_of_source(&self) -> bool {
        match self {
            Self::Principal(_)
            | Self::Namespace(_)
            | Self::ServiceAccount(_)
            | Self::TrustDomain(_)
            | Self::PeerAddress(_)
            | Self::ClientAddress(_)
            | Self::RequestPrincipal(_)
            | Self::Claim(_)
            | Self::Header(_) => true,
            Self::Host(_)
            | Self::Method(_)
            | Self::Path(_)
            | Self::PathTemplate(_)
            | Self::Port(_)
            | Self::DestinationAddress(_)
            | Self::ServerName(_)
            | Self::Noted(_) => false,
        }
    }

    /// Whether it is not known yet when a provider is asked: filters that find it out come later. (Istio's validation.)
    pub(super) fn is_unknown_to_providers(&self) -> bool {
        self.needs_mtls() || matches!(self, Self::RequestPrincipal(_) | Self::Claim(_))
    }

    /// Whether only mTLS shows it.
    pub fn needs_mtls(&self) -> bool {
        matches!(
            self,
            Self::Principal(_)
                | Self::Namespace(_)
                | Self::ServiceAccount(_)
                | Self::TrustDomain(_)
        )
    }
}
