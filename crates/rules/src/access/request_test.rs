//! Tests of a request or connection, one for each value in a rule.

use ipnet::IpNet;

/// One value of a field. Strings are as written in policies: `*` first, last or alone is a
/// wildcard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestTest {
    /// SPIFFE ID of the client, without the scheme.
    Principal(Box<str>),
    /// Namespace of the client; `*` may be anywhere.
    Namespace(Box<str>),
    /// Service account of the client: namespace and name.
    ServiceAccount(Box<[Box<str>; 2]>),
    /// Trust domain of the client.
    TrustDomain(Box<str>),
    /// Address of the peer of the connection.
    PeerAddress(IpNet),
    /// Address of the original client, as reported by intermediate proxies.
    ClientAddress(IpNet),
    /// Issuer and subject of the token, separated by a slash.
    RequestPrincipal(Box<str>),
    /// A claim of the token.
    Claim(Box<ClaimTest>),
    /// A header: lower-case name and value.
    Header(Box<[Box<str>; 2]>),
    /// Host of the request.
    Host(Box<str>),
    /// Method of the request.
    Method(Box<str>),
    /// Path without the query.
    Path(Box<str>),
    /// Path, as an Envoy path template.
    PathTemplate(Box<str>),
    /// Port of the workload.
    Port(u16),
    /// Address of the workload.
    DestinationAddress(IpNet),
    /// Server name (SNI) that the TLS client requests.
    ServerName(Box<str>),
    /// Dynamic metadata of an Envoy filter: filter, key, value.
    Noted(Box<[Box<str>; 3]>),
}

/// Test of a claim of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimTest {
    /// Path to the claim.
    pub path: Box<[Box<str>]>,
    /// Required value of the claim, or of an element if it is a list.
    pub value: Box<str>,
}

impl RequestTest {
    /// Returns whether the test applies only to HTTP requests, not to TCP connections.
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

    /// Returns whether the test is about the caller, not about the operation.
    pub(super) fn describes_source(&self) -> bool {
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

    /// Returns whether the property is unknown when an external authorization provider is queried,
    /// because later filters determine it (Istio's validation).
    pub(super) fn is_unknown_to_providers(&self) -> bool {
        self.needs_mtls() || matches!(self, Self::RequestPrincipal(_) | Self::Claim(_))
    }

    /// Returns whether the property is known only with mTLS.
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
