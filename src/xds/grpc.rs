//! gRPC for the ADS streams, straight on HTTP/2: requests in, responses out, a status at the end.
//!
//! Responses go to the socket from where all streams share them; a generic codec would copy each into a
//! buffer of the stream's own first. What the peer has no room for is not taken from the caller, and a
//! peer that makes no room for too long is given up. Knows nothing of xDS.

use std::future::poll_fn;
use std::marker::PhantomData;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use prost::Message;
use tonic::Status;

use super::rope::{Chunk, Rope};

/// The largest request.
const REQUEST_BYTES_MAX: usize = 4 << 20;
/// A peer that takes nothing of what it is sent for this long is given up.
pub(super) const STALL_LIMIT: Duration = Duration::from_secs(30);
/// Flag and length before each message.
const PREFIX: usize = 5;
const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/grpc");

/// Why nothing more can be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SendError {
    /// The peer, or the connection, has ended the stream.
    Gone,
    /// The peer took nothing for [`STALL_LIMIT`].
    Stalled,
}

impl From<h2::Error> for SendError {
    fn from(_: h2::Error) -> Self {
        Self::Gone
    }
}

/// The messages of a request's body.
pub(super) struct Requests<R> {
    body: RecvStream,
    /// The beginning of a message; empty, and without memory, between messages.
    buffer: BytesMut,
    message: PhantomData<fn() -> R>,
}

impl<R: Message + Default> Requests<R> {
    pub(super) fn new(body: RecvStream) -> Self {
        Self { body, buffer: BytesMut::new(), message: PhantomData }
    }

    /// The next message; `None` where the peer has ended its side. Nothing is lost if it is dropped
    /// unfinished.
    pub(super) async fn message(&mut self) -> Result<Option<R>, Status> {
        loop {
            if let Some(message) = decode(&mut self.buffer)? {
                return Ok(Some(message));
            }
            match self.body.data().await {
                Some(Ok(data)) => {
                    let _ = self.body.flow_control().release_capacity(data.len());
                    // Copied, since `data` is a part of a buffer of the connection's.
                    self.buffer.extend_from_slice(&data);
                }
                Some(Err(error)) => return Err(Status::cancelled(error.to_string())),
                None if self.buffer.is_empty() => return Ok(None),
                None => return Err(Status::internal("the stream ended within a message")),
            }
        }
    }
}

fn decode<R: Message + Default>(buffer: &mut BytesMut) -> Result<Option<R>, Status> {
    let Some((&[compressed, ref length @ ..], content)) = buffer.split_first_chunk::<PREFIX>()
    else {
        return Ok(None);
    };
    if compressed != 0 {
        return Err(Status::unimplemented("compressed messages are not taken here"));
    }
    let length = u32::from_be_bytes(*length) as usize;
    if length > REQUEST_BYTES_MAX {
        let text = format!("STR0502: a request of {length} bytes is larger than 4 MiB");
        return Err(Status::resource_exhausted(text));
    }
    let Some(content) = content.get(..length) else { return Ok(None) };
    let message = R::decode(content)
        .map_err(|error| Status::invalid_argument(format!("STR0502: not a request: {error}")))?;
    buffer.advance(PREFIX + length);
    if buffer.is_empty() {
        *buffer = BytesMut::new();
    }
    Ok(Some(message))
}

/// Why a request is no call, as an answer; `None` where it is one.
pub(super) fn refusal<B>(request: &Request<B>) -> Option<Response<()>> {
    let content_type = request.headers().get(header::CONTENT_TYPE);
    let is_grpc = content_type.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    let status = match () {
        () if request.method() != Method::POST => StatusCode::METHOD_NOT_ALLOWED,
        () if !is_grpc => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        () => return None,
    };
    let mut response = Response::new(());
    *response.status_mut() = status;
    Some(response)
}

/// The other direction of a call.
pub(super) struct Responses {
    stream: SendStream<Chunk>,
    /// [`STALL_LIMIT`], except in tests.
    patience: Duration,
}

impl Responses {
    /// Begins to answer a call.
    pub(super) fn begin(mut call: SendResponse<Chunk>) -> Result<Self, SendError> {
        let mut head = Response::new(());
        head.headers_mut().insert(header::CONTENT_TYPE, CONTENT_TYPE);
        Ok(Self::of(call.send_response(head, false)?))
    }

    /// Goes on with an answer that has begun.
    pub(super) fn of(stream: SendStream<Chunk>) -> Self {
        Self { stream, patience: STALL_LIMIT }
    }

    /// Refuses a call.
    pub(super) fn refuse(mut call: SendResponse<Chunk>, status: Status) {
        let _ = call.send_response(status.into_http(), true);
    }

    /// Waits until the peer has room for something.
    pub(super) async fn room(&mut self) -> Result<(), SendError> {
        self.room_for(1).await.map(drop)
    }

    /// Sends messages, as the peer makes room.
    pub(super) async fn send(&mut self, mut messages: Rope) -> Result<(), SendError> {
        while !messages.is_empty() {
            let room = self.room_for(messages.len()).await?;
            self.stream.send_data(messages.take(room), false)?;
        }
        Ok(())
    }

    /// Ends the call.
    pub(super) fn end(self, status: &Status) {
        let mut trailers = HeaderMap::new();
        // It fails for text that is no header, which tonic escapes.
        let _ = status.add_header(&mut trailers);
        self.end_with(trailers);
    }

    /// Ends the call with trailers made by somebody else.
    pub(super) fn end_with(mut self, trailers: HeaderMap) {
        let _ = self.stream.send_trailers(trailers);
    }

    /// Waits until the peer has given the call up.
    pub(super) async fn gone(&mut self) {
        let _ = poll_fn(|context| self.stream.poll_reset(context)).await;
    }

    /// How much of `wanted` bytes the peer has room for now, once it has for any.
    async fn room_for(&mut self, wanted: usize) -> Result<usize, SendError> {
        self.stream.reserve_capacity(wanted);
        loop {
            let room = self.stream.capacity();
            if room > 0 {
                return Ok(room.min(wanted));
            }
            let change = poll_fn(|context| self.stream.poll_capacity(context));
            match tokio::time::timeout(self.patience, change).await {
                Ok(Some(changed)) => _ = changed?,
                Ok(None) => return Err(SendError::Gone),
                Err(_) => return Err(SendError::Stalled),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    /// The two ends of one call; the client's window is as large as this.
    async fn call(window: u32) -> (Responses, h2::client::ResponseFuture) {
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        let tasks = crate::task::Supervisor::new();
        let mut limits = h2::client::Builder::new();
        let client = limits.initial_window_size(window).handshake::<_, Bytes>(theirs);
        let server = h2::server::Builder::new().handshake(ours);
        let (client, server) = tokio::join!(client, server);
        let ((mut requests, connection), mut served) =
            (client.expect("a connection"), server.expect("a connection"));
        let (answer, body) = requests.send_request(Request::new(()), false).expect("a call");
        tasks.spawn("client", async move {
            let _open = (requests, body);
            let _ = connection.await;
        });
        let call = served.accept().await.expect("a call").expect("a call").1;
        tasks.spawn("server", async move { while served.accept().await.is_some() {} });
        (Responses::begin(call).unwrap_or_else(|_| panic!("it can be answered")), answer)
    }

    fn rope(shared: &Bytes) -> Rope {
        let mut rope = Rope::default();
        rope.put_shared(shared);
        rope
    }

    #[tokio::test]
    async fn a_peer_that_reads_nothing_is_given_up() {
        let shared = Bytes::from(vec![7; 8 << 10]);
        // The first fits into its window, whether it reads it or not.
        let (mut responses, _answer) = call(8 << 10).await;
        responses.patience = Duration::from_millis(50);
        responses.room().await.expect("room");
        responses.send(rope(&shared)).await.expect("sent");
        assert_eq!(responses.room().await, Err(SendError::Stalled));
    }

    #[tokio::test]
    async fn what_is_larger_than_the_window_arrives_as_the_peer_reads() {
        let (mut responses, answer) = call(1000).await;
        let shared = Bytes::from(vec![7; 100_000]);
        let read = async {
            let mut body = answer.await.expect("an answer").into_body();
            let mut total = 0;
            while let Some(data) = body.data().await {
                let length = data.expect("data").len();
                total += length;
                body.flow_control().release_capacity(length).expect("what was read");
            }
            total
        };
        let send = async {
            responses.send(rope(&shared)).await.expect("sent");
            responses.end(&Status::ok(""));
        };
        assert_eq!(tokio::join!(send, read).1, shared.len());
    }

    #[test]
    fn messages_are_read_whatever_pieces_they_come_in() {
        let message = String::from("a message");
        let mut bytes = Vec::from([0, 0, 0, 0]);
        bytes.push(u8::try_from(message.encoded_len()).expect("short"));
        message.encode(&mut bytes).expect("room");
        let twice = [bytes.clone(), bytes].concat();
        let (mut buffer, mut read) = (BytesMut::new(), Vec::new());
        for byte in twice {
            buffer.extend_from_slice(&[byte]);
            read.extend(decode::<String>(&mut buffer).expect("sound"));
        }
        assert_eq!(read, [message.clone(), message]);
        assert_eq!(buffer.capacity(), 0, "an idle stream has no buffer");
    }

    #[test]
    fn messages_that_cost_too_much_are_refused_by_their_head() {
        for (head, code) in [
            ([0, 0, 0x40, 0, 1], tonic::Code::ResourceExhausted),
            ([1, 0, 0, 0, 1], tonic::Code::Unimplemented),
        ] {
            let mut buffer = BytesMut::from(&head[..]);
            assert_eq!(decode::<String>(&mut buffer).expect_err("refused").code(), code);
        }
    }
}
