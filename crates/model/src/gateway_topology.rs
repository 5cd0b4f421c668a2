//! What stands before a router, as far as that decides what it believes of a request's way. (Istio, `ProxyConfig`,
//! `gatewayTopology`.)

/// How much of what requests and connections say of their way to a router is believed there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct GatewayTopology {
    /// How many proxies before it name the client's address behind what is there already (`x-forwarded-for`).
    pub trusted_proxies: u32,
    /// What becomes of what requests say of the client's certificate.
    pub client_certificate: ForwardedCertificate,
    /// Whether each connection says first whose it is (PROXY protocol).
    pub proxy_protocol: bool,
}

/// What becomes of what a request says of its client's certificate (`x-forwarded-client-cert`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum ForwardedCertificate {
    /// It is taken out.
    Sanitize,
    /// It is passed on where the connection is in mTLS.
    ForwardOnly,
    /// The same, with what the router itself sees behind it.
    AppendForward,
    /// What the router itself sees stands in its place.
    #[default]
    SanitizeSet,
    /// It is passed on, whoever says it.
    AlwaysForwardOnly,
}

impl ForwardedCertificate {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Sanitize,
        Self::ForwardOnly,
        Self::AppendForward,
        Self::SanitizeSet,
        Self::AlwaysForwardOnly,
    ];

    /// As Istio calls it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sanitize => "SANITIZE",
            Self::ForwardOnly => "FORWARD_ONLY",
            Self::AppendForward => "APPEND_FORWARD",
            Self::SanitizeSet => "SANITIZE_SET",
            Self::AlwaysForwardOnly => "ALWAYS_FORWARD_ONLY",
        }
    }

    /// The one that Istio calls so.
    pub fn named(text: &str) -> Option<Self> {
        match text {
            "UNDEFINED" => Some(Self::default()),
            _ => Self::ALL.into_iter().find(|one| one.as_str() == text),
        }
    }

    /// Whether what the router itself sees is said.
    pub fn is_said(self) -> bool {
        matches!(self, Self::AppendForward | Self::SanitizeSet)
    }
}
