//! Certificates and roots in files at a proxy.

/// Roots in files at the proxy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct RootFiles {
    /// Them; `None` for those of the proxy's system.
    pub file: Option<String>,
    /// What they have revoked.
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
