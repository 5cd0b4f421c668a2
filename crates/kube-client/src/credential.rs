//! Credentials for API servers: fixed credentials, and credentials that a task renews.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::header::HeaderValue;
use tokio::sync::{Notify, watch};

use super::access_error::AccessError;
use super::redacted::Redacted;

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
    /// A token or client certificate that Strait obtains itself and renews; each request uses the
    /// current one.
    Issued(CredentialFeed),
}

impl ApiCredential {
    /// Whether it is sent in the TLS handshake, so that a replacement needs new connections.
    pub(super) fn is_in_handshake(&self) -> bool {
        matches!(self, Self::Certificate { .. } | Self::CertificateAndToken { .. })
    }

    /// Returns the bearer token, if it is or contains one.
    pub fn token(&self) -> Option<&str> {
        match self {
            Self::Token(token) | Self::CertificateAndToken { token, .. } => Some(token.reveal()),
            _ => None,
        }
    }

    /// Returns the header that authenticates a request, if the credential is in one.
    ///
    /// # Errors
    /// Fails if it contains a character that no header may contain, or is not known here.
    pub(super) fn header(&self) -> Result<Option<HeaderValue>, AccessError> {
        let (description, text) = match self {
            Self::None | Self::Certificate { .. } => return Ok(None),
            Self::Issued(_) => return Err(AccessError::Credential("renewed credential")),
            Self::Relay => return Err(AccessError::Credential("credential of the relay")),
            Self::Token(token) | Self::CertificateAndToken { token, .. } => {
                ("token", format!("Bearer {}", token.reveal().trim()))
            }
            Self::Basic { username, password } => (
                "user name and password",
                format!("Basic {}", BASE64.encode(format!("{username}:{}", password.reveal()))),
            ),
        };
        secret_header(text).ok_or(AccessError::Credential(description)).map(Some)
    }
}

/// Returns a header value that is never logged; `None` if it contains an invalid character.
fn secret_header(text: String) -> Option<HeaderValue> {
    let mut value = HeaderValue::try_from(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// The state of a credential that a task renews.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct IssuedCredential {
    /// The current token or client certificate, or both; `None` before the first one, and after the
    /// last one expired.
    pub credential: Option<ApiCredential>,
    /// When it expires.
    pub expires: Option<SystemTime>,
    /// When the next one is requested.
    pub refresh_at: Option<SystemTime>,
    /// Why the last request for one failed. Never contains a secret.
    pub error: Option<Arc<str>>,
}

/// A credential that a task renews. Two feeds are equal if they are of the same task.
#[derive(Clone)]
pub struct CredentialFeed {
    identity: Arc<str>,
    state: watch::Receiver<IssuedCredential>,
    refused: Arc<Notify>,
}

impl CredentialFeed {
    /// Creates the feed of the identity with that name. `refused` is notified when a server does
    /// not accept the credential.
    pub fn new(
        identity: Arc<str>,
        state: watch::Receiver<IssuedCredential>,
        refused: Arc<Notify>,
    ) -> Self {
        Self { identity, state, refused }
    }

    /// Returns the name of the identity.
    pub fn identity(&self) -> &Arc<str> {
        &self.identity
    }

    /// Returns the current state.
    pub fn current(&self) -> IssuedCredential {
        self.state.borrow().clone()
    }

    /// Reports that a server does not accept the current credential.
    pub(super) fn note_refused(&self) {
        self.refused.notify_one();
    }

    /// Waits for the next state. Never returns once the task has ended.
    pub async fn changed(&mut self) {
        if self.state.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl PartialEq for CredentialFeed {
    fn eq(&self, other: &Self) -> bool {
        self.identity == other.identity && self.state.same_channel(&other.state)
    }
}

impl Eq for CredentialFeed {}

impl fmt::Debug for CredentialFeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CredentialFeed").field(&self.identity).finish()
    }
}

/// No request was sent, because there is no usable credential.
#[derive(Debug, thiserror::Error)]
#[error("identity {identity} has no credential: {fact}")]
pub(super) struct NoCredential {
    pub(super) identity: Arc<str>,
    pub(super) fact: Arc<str>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issued_token_never_shows() {
        let credential = Some(ApiCredential::Token(Redacted::new("canary".to_owned())));
        let state = IssuedCredential { credential, ..IssuedCredential::default() };
        let (_sender, state) = watch::channel(state);
        let feed = CredentialFeed::new("eks".into(), state, Arc::default());
        assert!(!format!("{feed:?} {:?}", feed.current()).contains("canary"));
        assert_eq!(feed, feed.clone());
    }
}
