//! gRPC for the ADS streams, straight on HTTP/2: requests in, responses out, a status at the end.
//!
//! Responses go to the socket from where all streams share them; a generic codec would copy each into a
//! buffer of the stream's own first. What the peer has no room for is not taken from the caller, and a
//! peer that makes no room for too long is given up. Knows nothing of xDS.

use std::future::poll_fn;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use tonic::Status;

use super::http2::{Answer, Body, Gone};
use super::rope::Rope;

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

impl From<Gone> for SendError {
    fn from(_: Gone) -> Self {
        Self::Gone
    }
}

/// The messages of a request's body.
pub(super) struct Requests {
    body: Body,
    /// The beginning of a message; empty, and without memory, between messages.
    buffer: Vec<u8>,
}

/// One message, as it came.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Message(Vec<u8>);

impl Message {
    /// What it says.
    pub(super) fn content(&self) -> &[u8] {
        self.0.get(PREFIX..).unwrap_or_default()
    }
}

impl Requests {
    pub(super) fn new(body: Body) -> Self {
        Self { body, buffer: Vec::new() }
    }

    /// The next message; `None` where the peer has ended its side. Nothing is lost if it is dropped
    /// unfinished.
    pub(super) async fn message(&mut self) -> Result<Option<Message>, Status> {
        loop {
            if let Some(message) = next(&mut self.buffer)? {
                return Ok(Some(message));
            }
            match poll_fn(|_| self.body.poll_data()).await {
                Ok(Some(data)) if self.buffer.is_empty() => self.buffer = data,
                Ok(Some(data)) => self.buffer.extend_from_slice(&data),
                Ok(None) if self.buffer.is_empty() => return Ok(None),
                Ok(None) => return Err(Status::internal("the stream ended within a message")),
                Err(Gone) => return Err(Status::cancelled("the peer has reset the stream")),
            }
        }
    }
}

/// Takes the first message, if it is all there.
fn next(buffer: &mut Vec<u8>) -> Result<Option<Message>, Status> {
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
    Ok(match content.len().checked_sub(length) {
        None => None,
        Some(0) => Some(Message(std::mem::take(buffer))),
        Some(_) => Some(Message(buffer.drain(..PREFIX + length).collect())),
    })
}

/// The messages of a body, as far as they can be read.
#[cfg(any(test, fuzzing))]
pub(super) fn messages(body: &[u8]) -> Vec<Vec<u8>> {
    let mut buffer = body.to_vec();
    let mut found = Vec::new();
    while let Ok(Some(message)) = next(&mut buffer) {
        found.push(message.content().to_vec());
    }
    found
}

/// Takes any bytes as a body, in pieces of the length that the first byte says: they mean what they mean in one.
#[cfg(any(test, fuzzing))]
pub(super) fn fuzz(bytes: &[u8]) -> bool {
    let Some((first, bytes)) = bytes.split_first() else { return false };
    let (mut buffer, mut found) = (Vec::new(), Vec::new());
    'pieces: for piece in bytes.chunks(usize::from(*first).max(1)) {
        buffer.extend_from_slice(piece);
        loop {
            match next(&mut buffer) {
                Ok(Some(message)) => found.push(message.content().to_vec()),
                Ok(None) => break,
                Err(_) => break 'pieces,
            }
        }
    }
    assert_eq!(found, messages(bytes));
    !found.is_empty()
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
    answer: Answer,
    /// [`STALL_LIMIT`], except in tests.
    patience: Duration,
}

impl Responses {
    /// Begins to answer a call.
    pub(super) fn begin(answer: Answer) -> Result<Self, SendError> {
        let mut head = Response::new(());
        head.headers_mut().insert(header::CONTENT_TYPE, CONTENT_TYPE);
        Self::begin_with(answer, &head)
    }

    /// Begins to answer a call with a head made by somebody else.
    pub(super) fn begin_with(mut answer: Answer, head: &Response<()>) -> Result<Self, SendError> {
        answer.send_head(head, false)?;
        Ok(Self { answer, patience: STALL_LIMIT })
    }

    /// Refuses a call.
    pub(super) fn refuse(mut answer: Answer, status: Status) {
        let _ = answer.send_head(&status.into_http(), true);
    }

    /// Waits until the peer has room for something.
    pub(super) async fn room(&mut self) -> Result<(), SendError> {
        self.room_for(1).await.map(drop)
    }

    /// Sends messages, as the peer makes room.
    pub(super) async fn send(&mut self, mut messages: Rope) -> Result<(), SendError> {
        while !messages.is_empty() {
            let room = self.room_for(messages.len()).await?;
            self.answer.send(&mut messages, room)?;
        }
        Ok(())
    }

    /// Ends the call.
    pub(super) fn end(self, status: &Status) {
        let mut trailers = HeaderMap::new();
        // It fails for text that is no header, which tonic escapes.
        let _ = status.add_header(&mut trailers);
        self.end_with(&trailers);
    }

    /// Ends the call with trailers made by somebody else.
    pub(super) fn end_with(self, trailers: &HeaderMap) {
        self.answer.end(trailers);
    }

    /// Waits until the peer has given the call up.
    pub(super) async fn gone(&mut self) {
        poll_fn(|_| self.answer.poll_gone()).await;
    }

    /// How much of `wanted` bytes the peer has room for now, once it has for any.
    async fn room_for(&mut self, wanted: usize) -> Result<usize, SendError> {
        let room = poll_fn(|_| self.answer.poll_room());
        match tokio::time::timeout(self.patience, room).await {
            Ok(room) => Ok(room?.min(wanted)),
            Err(_) => Err(SendError::Stalled),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Poll, ready};

    use bytes::Bytes;

    use super::*;
    use crate::xds::http2::Connection;

    /// The two ends of one call; the client's window is as large as this. What the future is given is
    /// done beside it.
    async fn call(window: u32) -> (Responses, h2::client::ResponseFuture) {
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        let tasks = crate::task::Supervisor::new();
        let mut limits = h2::client::Builder::new();
        let client = limits.initial_window_size(window).handshake::<_, Bytes>(theirs);
        let (mut requests, connection) = client.await.expect("a connection");
        let (answer, body) = requests.send_request(request(), false).expect("a call");
        tasks.spawn("client", async move {
            let _open = (requests, body);
            let _ = connection.await;
        });
        let mut served = Connection::new(ours);
        let call = poll_fn(|context| {
            loop {
                let received = served.poll_receive(context);
                served.poll_transmit(context).expect("sent");
                if let Some((_, call)) = served.accept() {
                    return Poll::Ready(call);
                }
                ready!(received).expect("received");
            }
        });
        let call = call.await;
        // Driven beside the call, which it can't wake: it turns all the time.
        tasks.spawn("server", async move {
            loop {
                let turn = poll_fn(|context| {
                    while served.poll_receive(context).is_ready() {}
                    Poll::Ready(served.poll_transmit(context))
                });
                if turn.await.is_err() {
                    return;
                }
                tokio::task::yield_now().await;
            }
        });
        (Responses::begin(call).unwrap_or_else(|_| panic!("it can be answered")), answer)
    }

    fn request() -> Request<()> {
        Request::post("https://strait/call").body(()).expect("a request")
    }

    /// Polls again and again what nobody wakes.
    async fn awake<T>(work: impl Future<Output = T>) -> T {
        tokio::pin!(work);
        poll_fn(|context| {
            context.waker().wake_by_ref();
            work.as_mut().poll(context)
        })
        .await
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
        assert_eq!(awake(responses.room()).await, Err(SendError::Stalled));
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
            awake(responses.send(rope(&shared))).await.expect("sent");
            responses.end(&Status::ok(""));
        };
        assert_eq!(tokio::join!(send, read).1, shared.len());
    }

    #[test]
    fn messages_are_read_whatever_pieces_they_come_in() {
        let bytes = [&[0, 0, 0, 0, 9], &b"a message"[..]].concat();
        let twice = [bytes.clone(), bytes].concat();
        let (mut buffer, mut read) = (Vec::new(), Vec::<Message>::new());
        for byte in twice {
            buffer.extend_from_slice(&[byte]);
            read.extend(next(&mut buffer).expect("sound"));
        }
        let read: Vec<_> = read.iter().map(Message::content).collect();
        assert_eq!(read, [b"a message"; 2]);
        assert_eq!(buffer.capacity(), 0, "an idle stream has no buffer");
    }

    #[test]
    fn messages_that_cost_too_much_are_refused_by_their_head() {
        for (head, code) in [
            ([0, 0, 0x40, 0, 1], tonic::Code::ResourceExhausted),
            ([1, 0, 0, 0, 1], tonic::Code::Unimplemented),
        ] {
            let mut buffer = Vec::from(head);
            assert_eq!(next(&mut buffer).expect_err("refused").code(), code);
        }
    }
}
