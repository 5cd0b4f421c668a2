//! HTTP/1.1 requests on a dedicated connection, with a limit for time and bytes: to Envoy's admin interface, and to the
//! application.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::problem::chain;

/// The maximum size of a response that is read completely, in bytes.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// Sends a request and reads the complete response.
///
/// # Errors
/// The reason why there is no response.
pub(crate) async fn send(
    address: SocketAddr,
    method: http::Method,
    path: &str,
    limit: Duration,
) -> Result<Response<Bytes>, String> {
    let sending = async {
        let stream = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
        let request =
            Request::builder().method(method).uri(path).header(http::header::HOST, "localhost");
        let request = request.body(Empty::new()).map_err(|error| error.to_string())?;
        exchange(stream, request, |answer| async move {
            let (head, body) = answer.into_parts();
            let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
            let body = body.map_err(|error| error.to_string())?.to_bytes();
            Ok(Response::from_parts(head, body))
        })
        .await
    };
    timeout(limit, sending).await.unwrap_or_else(|_| Err(format!("no answer within {limit:?}")))
}

/// Sends a request over a connection and passes the response to `read`. The connection is closed afterwards.
///
/// # Errors
/// The reason why there is no response.
pub(crate) async fn exchange<S, T, F>(
    stream: S,
    request: Request<Empty<Bytes>>,
    read: impl FnOnce(Response<Incoming>) -> F,
) -> Result<T, String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Future<Output = Result<T, String>>,
{
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| chain(&error))?;
    let answered = async {
        let answer = sender.send_request(request).await.map_err(|error| chain(&error))?;
        read(answer).await
    };
    tokio::pin!(answered, connection);
    tokio::select! {
        answered = &mut answered => answered,
        // The connection may end before the response has been read completely.
        ended = &mut connection => match ended {
            Ok(()) => answered.await,
            Err(error) => Err(chain(&error)),
        },
    }
}

/// Connects to the pod's application from a source address that is not redirected, so that the connection does not pass
/// through Envoy.
///
/// # Errors
/// Any I/O error.
pub(crate) async fn connect_beside_envoy(address: SocketAddr) -> std::io::Result<TcpStream> {
    let (socket, source) = match address.ip() {
        IpAddr::V4(_) => (TcpSocket::new_v4()?, IpAddr::V4(Ipv4Addr::new(127, 0, 0, 6))),
        IpAddr::V6(_) => (TcpSocket::new_v6()?, IpAddr::V6(Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 6))),
    };
    // On a host without that address (::6 exists only if it was added), connections to the pod's address are not
    // redirected either.
    let _ = socket.bind(SocketAddr::new(source, 0));
    socket.connect(address).await
}
