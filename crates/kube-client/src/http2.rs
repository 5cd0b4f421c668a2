//! Requests over one HTTP/2 connection, with the `h2` crate directly.
//!
//! hyper's client adds a queue of requests with 18 KB for each connection. A connection to an API
//! server has a dozen open requests and rarely a new one, so requests go to `h2` without a queue.

use std::future::{pending, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use h2::client::SendRequest;
use h2::{Reason, SendStream};
use http::header::CONTENT_LENGTH;
use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::rt::Executor as _;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tower::BoxError;

use super::body::ResponseBody;
use super::transport::ServerStream;

/// Receive window of one stream in bytes: 10 MB/s with a round trip of 100 ms.
const STREAM_WINDOW: u32 = 1 << 20;
/// Maximum number of streams per connection, even if the server permits more: their full windows
/// fit into the window of the connection, so that a stream without a reader does not block the
/// others.
pub(super) const STREAMS_MAX: usize = 16;
/// Receive window of a connection in bytes.
const CONNECTION_WINDOW: u32 = STREAM_WINDOW * STREAMS_MAX as u32;
/// Size of the send buffer of a stream in bytes.
const SEND_BUFFER: usize = 16 << 10;

/// Sends requests over one connection. The connection ends when no clone and no stream is left.
#[derive(Clone)]
pub(super) struct Http2Sender {
    sender: SendRequest<Bytes>,
    /// Whether no further request can be sent.
    ended: Arc<AtomicBool>,
}

/// The reason why there is no response.
pub(super) enum Http2SendError {
    /// The request was not sent, because the connection had ended.
    Unsent(Box<Request<Full<Bytes>>>),
    /// The server may have received the request.
    Failed(BoxError),
}

impl Http2Sender {
    /// Starts HTTP/2 on a new connection, and a task that drives it.
    pub(super) async fn begin(io: ServerStream) -> Result<Self, h2::Error> {
        let (sender, connection) = h2::client::Builder::new()
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .initial_max_send_streams(STREAMS_MAX)
            .max_send_buffer_size(SEND_BUFFER)
            .enable_push(false)
            .handshake(TokioIo::new(io))
            .await?;
        let ended = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&ended);
        TokioExecutor::new().execute(async move {
            // Open requests receive the error.
            drop(connection.await);
            over.store(true, Ordering::Release);
        });
        Ok(Self { sender, ended })
    }

    /// Whether no further request can be sent.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Returns the number of streams that may be open. If the server permits none, the first stream
    /// waits for the permission.
    pub(super) fn streams_max(&self) -> usize {
        self.sender.current_max_send_streams().clamp(1, STREAMS_MAX)
    }

    /// Sends a request and waits for the head of the response.
    ///
    /// # Errors
    /// See [`Http2SendError`].
    pub(super) async fn send(
        self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<ResponseBody>, Http2SendError> {
        let Ok(mut sender) = self.sender.ready().await else {
            self.ended.store(true, Ordering::Release);
            return Err(Http2SendError::Unsent(Box::new(request)));
        };
        let (mut head, body) = request.clone().into_parts();
        let Ok(body) = body.collect().await.map(http_body_util::Collected::to_bytes);
        if !body.is_empty() {
            head.headers.entry(CONTENT_LENGTH).or_insert(HeaderValue::from(body.len()));
        }
        let (response, stream) =
            match sender.send_request(Request::from_parts(head, ()), body.is_empty()) {
                Ok(sent) => sent,
                Err(error) if error.is_io() || error.is_go_away() => {
                    self.ended.store(true, Ordering::Release);
                    return Err(Http2SendError::Unsent(Box::new(request)));
                }
                Err(error) => return Err(Http2SendError::Failed(error.into())),
            };
        // The response decides, also if the server does not read the body to its end.
        let upload = async {
            drop(send_body(stream, body).await);
            pending::<()>().await;
        };
        tokio::select! {
            response = response => match response {
                Ok(response) => Ok(response.map(ResponseBody::Http2)),
                Err(error) => Err(Http2SendError::Failed(error.into())),
            },
            () = upload => unreachable!("it does not end"),
        }
    }
}

/// Sends `body` in the windows that the server grants.
async fn send_body(mut stream: SendStream<Bytes>, mut body: Bytes) -> Result<(), h2::Error> {
    while !body.is_empty() {
        stream.reserve_capacity(body.len());
        let Some(granted) = poll_fn(|cx| stream.poll_capacity(cx)).await.transpose()? else {
            return Err(Reason::CANCEL.into());
        };
        let piece = body.split_to(granted.min(body.len()));
        stream.send_data(piece, body.is_empty())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use hyper_rustls::MaybeHttpsStream;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    type Server = h2::server::Connection<TcpStream, Bytes>;

    async fn connected() -> (Http2Sender, Server) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let dial = async {
            let tcp = TcpStream::connect(address).await.expect("connected");
            let io = MaybeHttpsStream::Http(MaybeHttpsStream::Http(TokioIo::new(tcp)));
            Http2Sender::begin(io).await
        };
        let accept = async {
            let (tcp, _) = listener.accept().await.expect("a connection");
            h2::server::handshake(tcp).await
        };
        let (sender, server) = tokio::join!(dial, accept);
        (sender.expect("a client"), server.expect("a server"))
    }

    fn request(body: usize) -> Request<Full<Bytes>> {
        let body = Full::new(Bytes::from(vec![b'x'; body]));
        Request::put("https://api.example/secrets").body(body).expect("a request")
    }

    /// Returns the next request, and lets the connection continue.
    async fn next(
        server: &mut Server,
    ) -> (Request<h2::RecvStream>, h2::server::SendResponse<Bytes>) {
        server.accept().await.expect("a request").expect("no error")
    }

    #[tokio::test]
    async fn body_is_sent_in_the_windows_that_the_server_grants() {
        let (sender, mut server) = connected().await;
        let serve = async {
            let (request, mut respond) = next(&mut server).await;
            assert_eq!(request.headers()[CONTENT_LENGTH], "300000");
            let mut body = request.into_body();
            let read = async {
                let mut received = 0;
                while let Some(piece) = body.data().await {
                    let piece = piece.expect("a piece");
                    received += piece.len();
                    body.flow_control().release_capacity(piece.len()).expect("granted");
                }
                assert_eq!(received, 300_000);
                respond.send_response(Response::new(()), true).expect("sent");
                pending::<()>().await;
            };
            tokio::select! {
                () = read => {}
                _ = server.accept() => {}
            }
        };
        tokio::select! {
            response = sender.send(request(300_000)) => {
                assert!(response.is_ok_and(|response| response.status() == StatusCode::OK));
            }
            () = serve => panic!("the server ended"),
        }
    }

    #[tokio::test]
    async fn response_to_an_unread_body_is_returned() {
        let (sender, mut server) = connected().await;
        let serve = async {
            let (_request, mut respond) = next(&mut server).await;
            let mut refusal = Response::new(());
            *refusal.status_mut() = StatusCode::PAYLOAD_TOO_LARGE;
            respond.send_response(refusal, true).expect("sent");
            let _ = server.accept().await;
        };
        tokio::select! {
            response = sender.send(request(300_000)) => {
                let status = response.map(|response| response.status());
                assert!(status.is_ok_and(|status| status == StatusCode::PAYLOAD_TOO_LARGE));
            }
            () = serve => panic!("the server ended"),
        }
    }

    #[tokio::test]
    async fn request_after_the_end_of_the_connection_is_returned_unsent() {
        for is_graceful in [true, false] {
            let (sender, mut server) = connected().await;
            if is_graceful {
                server.graceful_shutdown();
                let _ = server.accept().await;
            }
            drop(server);
            while !sender.has_ended() {
                tokio::task::yield_now().await;
            }
            let Err(Http2SendError::Unsent(unsent)) = sender.clone().send(request(3)).await else {
                panic!("the connection has ended");
            };
            assert_eq!(unsent.uri().path(), "/secrets");
            let body = unsent.into_body().collect().await.expect("a body").to_bytes();
            assert_eq!(body, "xxx");
        }
    }
}
