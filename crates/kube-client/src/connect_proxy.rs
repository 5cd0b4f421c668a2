//! The proxies that connect API servers, as data.

use std::path::PathBuf;
use std::sync::Arc;

use http::Uri;
use tower::BoxError;

use strait_base::codes;

/// A proxy that the operator defines. Its files are read for each connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectProxy {
    /// Its name in messages.
    pub name: Arc<str>,
    /// `http://HOST:PORT`, `https://HOST:PORT` or `socks5://HOST:PORT`.
    pub url: Uri,
    /// The PEM file with the root certificates of an `https` proxy; `None` for the host's own roots.
    pub roots: Option<PathBuf>,
    /// The PEM files with the certificate that authenticates Strait to an `https` proxy, and its key.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// The file with the value of the header `Proxy-Authorization`. A `socks5` proxy receives the user
    /// name and password in a value of type Basic.
    pub authorization: Option<PathBuf>,
}

/// A proxy does not connect the API server.
#[derive(Debug, thiserror::Error)]
#[error("{code}: proxy {proxy}: {fact}", code = codes::PROXY_FAILED)]
pub(super) struct ProxyError {
    proxy: Arc<str>,
    fact: String,
}

impl ConnectProxy {
    /// Returns the error with this fact.
    pub(super) fn error(&self, fact: impl Into<String>) -> BoxError {
        ProxyError { proxy: Arc::clone(&self.name), fact: fact.into() }.into()
    }
}
