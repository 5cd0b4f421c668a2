//! The proxies in front of a router, as far as they determine which headers of a request it trusts.
//! (Istio, `ProxyConfig`, `gatewayTopology`.)

/// Which claims of requests and connections about their path a router trusts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct GatewayTopology {
    /// The number of trusted proxies in front of the router that append an address to
    /// `x-forwarded-for`.
    pub trusted_proxies: u32,
    /// The handling of headers about the client's certificate.
    pub client_certificate: ForwardedCertificate,
    /// Whether each connection begins with the address of the client (PROXY protocol).
    pub proxy_protocol: bool,
}

/// The handling of a request's header about its client's certificate (`x-forwarded-client-cert`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum ForwardedCertificate {
    /// The header is removed.
    Sanitize,
    /// The header is forwarded if the connection uses mTLS.
    ForwardOnly,
    /// As [`Self::ForwardOnly`], and the certificate that the router itself sees is appended.
    AppendForward,
    /// The header is replaced with the certificate that the router itself sees.
    #[default]
    SanitizeSet,
    /// The header is always forwarded.
    AlwaysForwardOnly,
}

impl ForwardedCertificate {
    /// All values.
    pub const ALL: [Self; 5] = [
        Self::Sanitize,
        Self::ForwardOnly,
        Self::AppendForward,
        Self::SanitizeSet,
        Self::AlwaysForwardOnly,
    ];

    /// Returns Istio's name for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sanitize => "SANITIZE",
            Self::ForwardOnly => "FORWARD_ONLY",
            Self::AppendForward => "APPEND_FORWARD",
            Self::SanitizeSet => "SANITIZE_SET",
            Self::AlwaysForwardOnly => "ALWAYS_FORWARD_ONLY",
        }
    }

    /// Returns the value with this name in Istio.
    pub fn named(text: &str) -> Option<Self> {
        match text {
            "UNDEFINED" => Some(Self::default()),
            _ => Self::ALL.into_iter().find(|one| one.as_str() == text),
        }
    }

    /// Returns whether the certificate that the router itself sees is forwarded.
    pub fn forwards_client_certificate(self) -> bool {
        matches!(self, Self::AppendForward | Self::SanitizeSet)
    }
}
