//! Fixtures for tests of this crate and of others.

use super::{Access, ApiCredential, Loopback, Redacted};

/// Returns the access to a server at a loopback address, with a token.
///
/// # Panics
/// If `url` is not a URI.
#[expect(clippy::expect_used, reason = "a fixture")]
pub fn loopback_access(url: &str, ca_pem: &str, token: impl Into<String>) -> Access {
    Access {
        server: url.parse().expect("a URI"),
        ca_pem: Some(ca_pem.into()),
        tls_server_name: None,
        credential: ApiCredential::Token(Redacted::new(token.into())),
        loopback: Loopback::Allowed,
        proxy: None,
    }
}
