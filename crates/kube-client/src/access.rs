//! The access to an API server: plain data that cannot express running a program, reading a file or
//! skipping verification.

use std::fmt;

/// Everything that is needed to reach one API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// `https://HOST:PORT[/path]`.
    pub server: http::Uri,
    /// The PEM root certificates that its certificate must chain to; `None` for the host's own
    /// roots.
    pub ca_pem: Option<Vec<u8>>,
    /// The name that its certificate must be valid for, if it isn't the URL's host.
    pub tls_server_name: Option<String>,
    /// The credential that is sent.
    pub credential: ApiCredential,
    /// Whether a loopback address may be dialled.
    pub loopback: Loopback,
}

impl Access {
    /// Returns the access to a member through its relay, whichever member that is.
    pub fn relay() -> Self {
        Self {
            server: http::Uri::from_static("https://relay/"),
            ca_pem: None,
            tls_server_name: None,
            credential: ApiCredential::Relay,
            loopback: Loopback::Refused,
        }
    }

    /// Whether a relay opens the connections.
    pub fn is_relayed(&self) -> bool {
        self.credential == ApiCredential::Relay
    }
}

/// A credential for an API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ApiCredential {
    /// No credential.
    None,
    /// The credential of the relay, which the hub does not know.
    Relay,
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
    /// A client certificate and a bearer token, both sent, as AKS writes them: an API server uses
    /// the token if it doesn't know the certificate.
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
    /// Also if a host name resolves to one, as on desktop clusters: for the operator's own
    /// kubeconfig.
    Named,
    /// If it is written as an address: for a member's kubeconfig, with `--config-dir` or outside a
    /// pod.
    Allowed,
    /// Never: for a member's kubeconfig, in a pod.
    Refused,
}

/// A secret: it can be used, but neither printed nor serialized.
#[derive(Clone, PartialEq, Eq)]
pub struct Redacted<T>(T);

impl<T> Redacted<T> {
    /// Hides `secret`.
    pub fn new(secret: T) -> Self {
        Self(secret)
    }

    /// Returns the secret, for the code that sends it.
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
