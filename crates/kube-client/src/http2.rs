//! Requests over one HTTP/2 connection, with the `h2` crate directly.
//!
//! hyper's client adds a queue of requests with 18 KB for each connection. A connection to an API
//! server has a dozen open requests and rarely a new one, so requests go to `h2` without a queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use h2::client::SendRequest;
use h2::{Reason, SendStream};
use http::header::CONTENT_LENGTH;
use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use std::future::{pending, poll_fn};
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
pub(super) enum SendError {
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
        tokio::spawn(async move {
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
    /// See [`SendError`].
    pub(super) async fn send(
        self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<ResponseBody>, SendError> {
        let Ok(mut sender) = self.sender.ready().await else {
            self.ended.store(true, Ordering::Release);
            return Err(SendError::Unsent(Box::new(request)));
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
                    return Err(SendError::Unsent(Box::new(request)));
                }
                Err(error) => return Err(SendError::Failed(error.into())),
            };
        // The response decides, also if the server does not read the body to its end.
        let upload = async {
            drop(send_body(stream, body).await);
            pending::<()>().await;
        };
        tokio::select! {
            response = response => match response {
                Ok(response) => Ok(response.map(ResponseBody::Http2)),
                Err(error) => Err(SendError::Failed(error.into())),
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
