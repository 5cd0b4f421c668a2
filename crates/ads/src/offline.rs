//! The server without sockets, for instruction counts: the caller provides the byte streams and
//! polls the connections. From TLS on, everything is as in [`super::server`].

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tonic::service::Routes;

use super::connection::AcceptedConnection;
use super::shared::{ConnectionShared, ServerShared, XdsConfig};
use strait_http2 as http2;
use strait_identity::{ConnectionPeer, tls};

/// A server that accepts no connections itself.
pub struct OfflineServer {
    shared: Arc<ServerShared>,
}

impl OfflineServer {
    /// Creates a server. Must be called within a Tokio runtime.
    pub fn new(config: XdsConfig) -> Self {
        Self { shared: Arc::new(ServerShared::new(config)) }
    }

    /// Serves one connection of a workload until it ends.
    ///
    /// # Errors
    /// The handshake fails, or the certificate is not that of a workload.
    pub async fn serve<S>(&self, stream: S, address: SocketAddr) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let (config, believed) = {
            let identity = self.shared.identity.borrow();
            (Arc::clone(&identity.server_config), identity.trust_generation)
        };
        let mut stream = Box::new(TlsAcceptor::from(config).accept(stream).await?);
        stream.get_mut().1.set_buffer_limit(Some(http2::WRITE_MAX));
        let ConnectionPeer::Workload(peer) =
            tls::peer(stream.get_ref().1).map_err(io::Error::other)?
        else {
            return Err(io::ErrorKind::PermissionDenied.into());
        };
        let line = ConnectionShared::new(address, Some(Arc::new(peer)), None, believed);
        let (shared, routes) = (Arc::clone(&self.shared), Routes::default());
        let connection = AcceptedConnection { shared, address, routes, room: None };
        connection.serve(stream, Arc::new(line)).await;
        Ok(())
    }
}
