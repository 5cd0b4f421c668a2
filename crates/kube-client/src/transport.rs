//! Sends requests to a server over any connection.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_rustls::MaybeHttpsStream;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Service, ServiceExt as _};

use super::body::ResponseBody;

/// Size of a connection's read buffer in bytes: one TLS record. Without this setting, the buffer of
/// each watch grows to 400 KiB with the first list and is never reduced.
pub(super) const READ_BUFFER: usize = 16 << 10;

/// Sends requests to a server. Clones share connections.
pub type Transport = BoxCloneSyncService<Request<Full<Bytes>>, Response<Incoming>, BoxError>;

/// The permit for a stream, while it exists.
#[derive(Debug)]
pub struct StreamPermit(#[expect(dead_code, reason = "counted")] Arc<()>);

impl StreamPermit {
    /// Creates a permit that counts as one reference to `permits`.
    pub fn counted(permits: &Arc<()>) -> Self {
        Self(Arc::clone(permits))
    }
}

/// The future of a response. The permit must be kept until the response has been read.
pub type CarriedResponse<'a> = Pin<
    Box<dyn Future<Output = Result<(Response<ResponseBody>, StreamPermit), BoxError>> + Send + 'a>,
>;

/// Sends requests to a server over connections that this crate does not open.
pub trait Carrier: Send + Sync {
    /// Sends a request. The caller sets the deadline.
    fn exchange(&self, request: Request<Full<Bytes>>) -> CarriedResponse<'_>;
}

/// Creates requests over HTTP/1.1, each open one on a separate connection.
pub(super) fn http1_over<C>(dial: C) -> Transport
where
    C: Service<Uri, Response = ServerStream, Error = BoxError> + Clone + Send + Sync + 'static,
    C::Future: Send + Unpin + 'static,
{
    let http = hyper_util::client::legacy::Client::builder(TokioExecutor::new())
        .http1_read_buf_exact_size(READ_BUFFER)
        .build(dial);
    BoxCloneSyncService::new(http.map_err(BoxError::from))
}

/// A connection with its TLS.
pub(super) type ServerStream = MaybeHttpsStream<TokioIo<TcpStream>>;

/// Opens connections, within the time limit.
pub(super) type Dial = BoxCloneSyncService<Uri, ServerStream, BoxError>;
