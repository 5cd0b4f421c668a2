//! How an API server is reached: plain data, in which running a program, reading a file or skipping
//! verification can't be expressed.

use std::fmt;

/// Everything needed to reach one API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// `https://HOST:PORT[/path]`.
    pub server: http::Uri,
    /// The roots its certificate must chain to, PEM; `None` for the host's own roots.
    pub ca_pem: Option<Vec<u8>>,
    /// The name its certificate must carry, where it isn't the URL's host.
    pub tls_server_name: Option<String>,
    /// Who we are.
    pub credential: ApiCredential,
    /// Whether a loopback address may be dialled.
    pub loopback: Loopback,
}

/// Who we are to an API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ApiCredential {
    /// Nobody.
    None,
    /// A bearer token.
    Token(Redacted<String>),
    /// User name and password.
    Basic {
        /// The name.
        username: String,
        /// The password.
        password: Redacted<String>,
    },
    /// A client certificate and its key, PEM.
    Certificate {
        /// The chain.
        certificate_pem: Vec<u8>,
        /// The key.
        key_pem: Redacted<Vec<u8>>,
    },
    /// A client certificate and a bearer token, both sent, as AKS writes them: an API server takes
    /// the token where it doesn't know the certificate.
    CertificateAndToken {
        /// The chain.
        certificate_pem: Vec<u8>,
        /// The key.
        key_pem: Redacted<Vec<u8>>,
        /// The token.
        token: Redacted<String>,
    },
}

/// Whether a loopback address may be dialled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loopback {
    /// Also where a name resolves to one, as desktop clusters have it: the operator's own kubeconfig.
    Named,
    /// Where it is written as an address: a member's, with `--config-dir` or outside a pod.
    Allowed,
    /// Never: a member's, in a pod.
    Refused,
}

/// A secret: it can be used, but neither printed nor serialised.
#[derive(Clone, PartialEq, Eq)]
pub struct Redacted<T>(T);

impl<T> Redacted<T> {
    /// Hides `secret`.
    pub fn new(secret: T) -> Self {
        Self(secret)
    }

    /// The secret itself, for the one place that sends it.
    pub fn reveal(&self) -> &T {
        &self.0
    }
}

impl<T> fmt::Debug for Redacted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<redacted>")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_never_shows() {
        let token = ApiCredential::Token(Redacted::new("canary".to_owned()));
        assert!(!format!("{token:?}").contains("canary"));
    }
}
