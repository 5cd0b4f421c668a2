//! Requests with a credential that a task renews.

use std::sync::{Arc, Mutex};

use http::header::HeaderValue;

use super::credential::{ApiCredential, CredentialFeed, IssuedCredential, NoCredential};
use super::pool::ConnectionPool;
use super::server_dial::ServerDial;
use strait_base::lock::lock;

/// A credential that a task renews, and the connections with its newest client certificate.
pub(super) struct IssuedAccess {
    feed: CredentialFeed,
    dial: ServerDial,
    certified: Mutex<Option<(ApiCredential, Arc<ConnectionPool>)>>,
}

/// How one request authenticates.
#[derive(Default)]
pub(super) struct RequestAccess {
    /// The header.
    pub(super) header: Option<HeaderValue>,
    /// The connections, if the client certificate in their handshakes authenticates.
    pub(super) connections: Option<Arc<ConnectionPool>>,
}

impl IssuedAccess {
    pub(super) fn new(feed: CredentialFeed, dial: ServerDial) -> Self {
        Self { feed, dial, certified: Mutex::default() }
    }

    /// Returns the access with the current credential. A new client certificate needs new
    /// connections; open watches continue on the previous ones.
    pub(super) fn current(&self) -> Result<RequestAccess, NoCredential> {
        let missing =
            |fact: Arc<str>| NoCredential { identity: Arc::clone(self.feed.identity()), fact };
        let IssuedCredential { credential, error, .. } = self.feed.current();
        let Some(credential) = credential else {
            return Err(missing(
                error.unwrap_or_else(|| "the first one is being requested".into()),
            ));
        };
        let unusable = |error: &dyn std::fmt::Display| missing(error.to_string().into());
        let header = credential.header().map_err(|error| unusable(&error))?;
        if !credential.is_in_handshake() {
            return Ok(RequestAccess { header, connections: None });
        }
        let mut certified = lock(&self.certified);
        let connections = match &*certified {
            Some((of, pool)) if *of == credential => Arc::clone(pool),
            _ => {
                let pool = self.dial.pool(&credential).map_err(|error| unusable(&error))?;
                let pool = Arc::new(pool);
                *certified = Some((credential, Arc::clone(&pool)));
                pool
            }
        };
        Ok(RequestAccess { header, connections: Some(connections) })
    }

    /// Reports that the server does not accept the current credential.
    pub(super) fn note_refused(&self) {
        self.feed.note_refused();
    }

    /// Sends no further requests over connections with a client certificate.
    pub(super) fn forget_connections(&self) {
        if let Some((_, pool)) = &*lock(&self.certified) {
            pool.forget();
        }
    }
}
