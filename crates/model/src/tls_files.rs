//! Certificates and roots in files at a proxy.

/// Trust roots in files at the proxy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct RootFiles {
    /// The file of the roots; `None` means the roots of the proxy's operating system.
    pub file: Option<String>,
    /// The file of their certificate revocation lists.
    pub revoked: Option<String>,
}

/// A certificate with its key, in files at the proxy.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PairFiles {
    /// The certificate.
    pub certificate: String,
    /// The key.
    pub key: String,
}
