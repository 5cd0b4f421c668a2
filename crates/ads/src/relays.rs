//! The part of the xDS port that relays use. The port accepts their connections; the implementation
//! of [`RelayPort`] serves them.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use strait_identity::RelayIdentity;

/// The prefix of the paths that relays request.
pub(super) const PATH_PREFIX: &str = "/strait/relay/";
/// The number of bytes of a request that are read. It exceeds the maximum size of a request, so that
/// [`RelayPort::answer`] recognizes a larger one and refuses it.
pub const REQUEST_BYTES_MAX: usize = (16 << 10) + 1;

/// A connection of a relay after its handshake.
pub type RelayStream = Box<TlsStream<TcpStream>>;

/// A future of [`RelayPort`].
pub type RelayFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Serves relays.
pub trait RelayPort: Send + Sync {
    /// Serves a connection on which the server sends the requests, until it ends.
    fn serve(
        &self,
        stream: RelayStream,
        relay: RelayIdentity,
        address: SocketAddr,
    ) -> RelayFuture<()>;

    /// Answers a request of a relay for a certificate, with JSON.
    fn answer(
        &self,
        method: http::Method,
        path: String,
        body: Bytes,
        relay: Option<Arc<RelayIdentity>>,
        address: SocketAddr,
    ) -> RelayFuture<(StatusCode, Bytes)>;
}
