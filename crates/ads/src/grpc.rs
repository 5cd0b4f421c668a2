//! The gRPC layer of ADS streams, directly on HTTP/2: requests in, responses out, a status at the
//! end.
//!
//! Responses are written to the socket from memory that all streams share; a generic codec would
//! first copy each into a buffer of the stream. A message is requested from the caller only when
//! the peer has room for it. A peer that makes no room for too long is disconnected. This module
//! does not know xDS.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep};
use tonic::Status;

use strait_base::bounded::{TEXT_BYTES_MAX, bounded};
use strait_http2::{Body, CallOver, CallResponse, Rope};

/// The maximum size of a request, in bytes.
pub(super) const REQUEST_BYTES_MAX: usize = 4 << 20;
/// The size from which a request is large, in bytes. A large request is read only when its identity
/// has room for it. A smaller one is no larger than what HTTP/2 buffers of a stream that is not
/// read.
const LARGE: usize = 256 << 10;
/// The time limit for reading a large request, from the time when there is room for it.
const LARGE_LIMIT: Duration = Duration::from_secs(30);
/// The time after which a peer that accepts no data is disconnected.
pub(super) const STALL_LIMIT: Duration = Duration::from_secs(30);
/// The length of the prefix of each message: flag and length.
const PREFIX: usize = 5;
const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/grpc");

/// The reason why nothing more can be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SendError {
    /// The peer, or the connection, has ended the stream.
    Gone,
    /// The peer accepted no data for [`STALL_LIMIT`].
    Stalled,
}

impl From<CallOver> for SendError {
    fn from(_: CallOver) -> Self {
        Self::Gone
    }
}

/// A reader of the messages in a request's body.
pub(super) struct Requests {
    body: Body,
    /// The beginning of a message. Empty and without allocated memory between messages.
    buffer: Vec<u8>,
    /// The semaphore for large messages, in KiB, shared by the streams of one identity.
    room: Arc<Semaphore>,
    large: Large,
}

/// The state of the permit for a large message.
#[derive(Default)]
enum Large {
    /// No large message has begun.
    #[default]
    None,
    /// The permit is awaited.
    Waits(Pin<Box<dyn Future<Output = Option<OwnedSemaphorePermit>> + Send>>),
    /// The message is read and must be complete before the time ends.
    Reads(OwnedSemaphorePermit, Pin<Box<Sleep>>),
}

/// Data of a body, or `None` at its end.
type BodyData = Result<Option<Vec<u8>>, CallOver>;

/// A received message.
#[derive(Debug)]
pub(super) struct GrpcMessage {
    bytes: Vec<u8>,
    /// The permit for a large message, released when the message is dropped.
    _room: Option<OwnedSemaphorePermit>,
}

impl GrpcMessage {
    /// The content without the prefix.
    pub(super) fn content(&self) -> &[u8] {
        self.bytes.get(PREFIX..).unwrap_or_default()
    }
}

impl Requests {
    /// Creates a reader of a body. A large message is read when the semaphore `room` (in KiB)
    /// admits it. Until then, the peer keeps it, except for the part that HTTP/2 buffers.
    pub(super) fn new(body: Body, room: Arc<Semaphore>) -> Self {
        Self { body, buffer: Vec::new(), room, large: Large::None }
    }

    /// Returns the next message, or `None` if the peer has ended its side.
    pub(super) fn poll_message(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<GrpcMessage>, Status>> {
        loop {
            if let Some(bytes) = next(&mut self.buffer)? {
                let room = match std::mem::take(&mut self.large) {
                    Large::Reads(room, _) => Some(room),
                    _ => None,
                };
                return Poll::Ready(Ok(Some(GrpcMessage { bytes, _room: room })));
            }
            ready!(self.poll_has_room(context));
            let text = "the stream ended within a message";
            match ready!(self.poll_data(context))? {
                Ok(Some(data)) if self.buffer.is_empty() => self.buffer = data,
                Ok(Some(data)) => self.buffer.extend_from_slice(&data),
                Ok(None) if self.buffer.is_empty() => return Poll::Ready(Ok(None)),
                Ok(None) => return Poll::Ready(Err(Status::internal(text))),
                Err(CallOver) => {
                    return Poll::Ready(Err(Status::cancelled("the peer reset the stream")));
                }
            }
        }
    }

    /// Receives more data of the body. A large message must arrive within its time limit.
    fn poll_data(&mut self, context: &mut Context<'_>) -> Poll<Result<BodyData, Status>> {
        if let Poll::Ready(data) = self.body.poll_data() {
            return Poll::Ready(Ok(data));
        }
        let Large::Reads(_, limit) = &mut self.large else { return Poll::Pending };
        ready!(limit.as_mut().poll(context));
        let seconds = LARGE_LIMIT.as_secs();
        let text = format!("no complete request within {seconds} s");
        Poll::Ready(Err(Status::deadline_exceeded(text)))
    }

    /// Waits for a permit if the message that has begun is large.
    fn poll_has_room(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Large::None = self.large
            && let Some(length) = length(&self.buffer).filter(|length| *length > LARGE)
        {
            let kilobytes = u32::try_from(length.div_ceil(1 << 10)).unwrap_or(u32::MAX);
            let room = Arc::clone(&self.room).acquire_many_owned(kilobytes);
            self.large = Large::Waits(Box::pin(async { room.await.ok() }));
        }
        if let Large::Waits(room) = &mut self.large {
            // The semaphore is never closed.
            let Some(room) = ready!(room.as_mut().poll(context)) else { return Poll::Ready(()) };
            self.large = Large::Reads(room, Box::pin(sleep(LARGE_LIMIT)));
            if let Some(length) = length(&self.buffer) {
                self.buffer.reserve_exact((PREFIX + length).saturating_sub(self.buffer.len()));
            }
        }
        Poll::Ready(())
    }
}

/// Returns the length of the first message without its prefix, once it is known.
fn length(buffer: &[u8]) -> Option<usize> {
    let (&[_, ref length @ ..], _) = buffer.split_first_chunk::<PREFIX>()?;
    Some(u32::from_be_bytes(*length) as usize)
}

/// Removes and returns the first message, if it is complete.
fn next(buffer: &mut Vec<u8>) -> Result<Option<Vec<u8>>, Status> {
    let Some(length) = length(buffer) else { return Ok(None) };
    let (compressed, content) = (buffer[0], &buffer[PREFIX..]);
    if compressed != 0 {
        return Err(Status::unimplemented("compressed messages are not supported"));
    }
    if length > REQUEST_BYTES_MAX {
        let text = format!("STR0502: a request of {length} bytes is larger than 4 MiB");
        return Err(Status::resource_exhausted(text));
    }
    Ok(match content.len().checked_sub(length) {
        None => None,
        Some(0) => Some(std::mem::take(buffer)),
        Some(_) => Some(buffer.drain(..PREFIX + length).collect()),
    })
}

/// Returns the messages of a body, up to the first invalid one.
#[cfg(any(test, fuzzing))]
pub(super) fn messages(body: &[u8]) -> Vec<Vec<u8>> {
    let mut buffer = body.to_vec();
    let mut found = Vec::new();
    while let Ok(Some(message)) = next(&mut buffer) {
        found.push(message[PREFIX..].to_vec());
    }
    found
}

/// Parses any bytes as a body, in pieces whose length is the first byte. The result must be equal
/// to that of parsing them at once.
#[cfg(any(test, fuzzing))]
pub(super) fn fuzz(bytes: &[u8]) -> bool {
    let Some((first, bytes)) = bytes.split_first() else { return false };
    let (mut buffer, mut found) = (Vec::new(), Vec::new());
    'pieces: for piece in bytes.chunks(usize::from(*first).max(1)) {
        buffer.extend_from_slice(piece);
        loop {
            match next(&mut buffer) {
                Ok(Some(message)) => found.push(message[PREFIX..].to_vec()),
                Ok(None) => break,
                Err(_) => break 'pieces,
            }
        }
    }
    assert_eq!(found, messages(bytes));
    !found.is_empty()
}

/// Returns the response for a request that is not a valid call, or `None` for a valid one.
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

/// The response side of a call.
pub(super) struct ResponseSender {
    answer: CallResponse,
    /// The rest of `send_timeout`, only while the peer has no room.
    stalled: Option<Pin<Box<Sleep>>>,
    /// [`STALL_LIMIT`], except in tests.
    send_timeout: Duration,
}

impl ResponseSender {
    /// Begins the response to a call.
    pub(super) fn begin(answer: CallResponse) -> Result<Self, SendError> {
        let mut head = Response::new(());
        head.headers_mut().insert(header::CONTENT_TYPE, CONTENT_TYPE);
        Self::begin_with(answer, &head)
    }

    /// Begins the response to a call with the given head.
    pub(super) fn begin_with(
        mut answer: CallResponse,
        head: &Response<()>,
    ) -> Result<Self, SendError> {
        answer.send_head(head, false)?;
        Ok(Self { answer, stalled: None, send_timeout: STALL_LIMIT })
    }

    /// Refuses a call with a status.
    pub(super) fn refuse(mut answer: CallResponse, status: Status) {
        let _ = answer.send_head(&bounded_status(&status).into_http(), true);
    }

    /// Waits until the peer has room for at least one byte.
    pub(super) async fn room(&mut self) -> Result<(), SendError> {
        self.room_for(1).await.map(drop)
    }

    /// Sends messages as the peer makes room.
    pub(super) async fn send(&mut self, mut messages: Rope) -> Result<(), SendError> {
        while !messages.is_empty() {
            let room = self.room_for(messages.len()).await?;
            self.answer.send(&mut messages, room)?;
        }
        Ok(())
    }

    /// Ends the call with a status.
    pub(super) fn end(self, status: &Status) {
        let mut trailers = HeaderMap::new();
        // Fails for text that is not valid in a header, but tonic escapes such text.
        let _ = bounded_status(status).add_header(&mut trailers);
        self.end_with(&trailers);
    }

    /// Ends the call with the given trailers.
    pub(super) fn end_with(self, trailers: &HeaderMap) {
        self.answer.end(trailers);
    }

    /// Waits until the peer cancels the call.
    pub(super) async fn gone(&mut self) {
        poll_fn(|_| self.answer.poll_gone()).await;
    }

    /// Waits until the peer has room for any bytes. Returns how many of the `wanted` bytes it has
    /// room for.
    async fn room_for(&mut self, wanted: usize) -> Result<usize, SendError> {
        // The time limit is that of one wait, not of several.
        self.stalled = None;
        poll_fn(|context| self.poll_room(context)).await.map(|room| room.min(wanted))
    }

    fn poll_room(&mut self, context: &mut Context<'_>) -> Poll<Result<usize, SendError>> {
        if let Poll::Ready(room) = self.answer.poll_room() {
            self.stalled = None;
            return Poll::Ready(Ok(room?));
        }
        let limit = self.send_timeout;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(limit)));
        stalled.as_mut().poll(context).map(|()| Err(SendError::Stalled))
    }
}

/// Returns the status with a message of limited length, because it may repeat text from the caller.
fn bounded_status(status: &Status) -> Status {
    if status.message().len() <= TEXT_BYTES_MAX {
        return status.clone();
    }
    Status::new(status.code(), bounded(status.message()))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures::FutureExt;

    use super::*;
    use strait_http2::Http2Connection;

    /// Creates the two ends of one call. `window` is the size of the client's window in bytes.
    async fn call(window: u32) -> (ResponseSender, h2::client::ResponseFuture) {
        let (_, call, answer) = question(window, Bytes::new()).await;
        (ResponseSender::begin(call).unwrap_or_else(|_| panic!("it can be answered")), answer)
    }

    /// Creates one call that is not answered yet, whose body is `text`. Background tasks drive both
    /// ends.
    async fn question(
        window: u32,
        text: Bytes,
    ) -> (Body, CallResponse, h2::client::ResponseFuture) {
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        let tasks = strait_base::task::Supervisor::new();
        let mut limits = h2::client::Builder::new();
        let client = limits.initial_window_size(window).handshake::<_, Bytes>(theirs);
        let (mut requests, connection) = client.await.expect("a connection");
        let (answer, mut body) = requests.send_request(request(), false).expect("a call");
        if !text.is_empty() {
            body.send_data(text, false).expect("it takes all of it");
        }
        tasks.spawn("client", async move {
            let _open = (requests, body);
            let _ = connection.await;
        });
        let mut served = Http2Connection::new(ours);
        let call = poll_fn(|context| {
            loop {
                let received = served.poll_receive(context);
                served.poll_transmit(context).expect("sent");
                if let Some((question, call)) = served.accept() {
                    return Poll::Ready((question.into_body(), call));
                }
                ready!(received).expect("received");
            }
        });
        let (body, call) = call.await;
        // The server is driven in a separate task that the call cannot wake, so it polls
        // continuously.
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
        (body, call, answer)
    }

    fn request() -> Request<()> {
        Request::post("https://strait/call").body(()).expect("a request")
    }

    /// Polls a future continuously, because its data source does not wake it.
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

    #[test]
    fn message_of_a_status_is_bounded() {
        let short = Status::not_found("nothing");
        assert_eq!(bounded_status(&short).message(), "nothing");
        let long = bounded_status(&Status::invalid_argument("x".repeat(300_000)));
        assert_eq!(long.code(), tonic::Code::InvalidArgument);
        assert!(long.message().len() <= TEXT_BYTES_MAX && long.message().ends_with("more bytes)"));
    }

    #[tokio::test]
    async fn peer_that_reads_nothing_is_disconnected() {
        let shared = Bytes::from(vec![7; 8 << 10]);
        // The first message fits into the window, even if the peer does not read it.
        let (mut responses, _answer) = call(8 << 10).await;
        responses.send_timeout = Duration::from_millis(50);
        responses.room().await.expect("room");
        responses.send(rope(&shared)).await.expect("sent");
        assert_eq!(awake(responses.room()).await, Err(SendError::Stalled));
    }

    #[tokio::test]
    async fn large_request_is_read_only_with_a_permit() {
        let length: u32 = 1 << 20;
        let text = [&[0], &length.to_be_bytes()[..], &vec![7; length as usize]].concat();
        let (body, _call, _answer) = question(1000, text.into()).await;
        let room = Arc::new(Semaphore::new(1024));
        let of_others = Arc::clone(&room).try_acquire_owned().expect("there is room");
        let mut requests = Requests::new(body, Arc::clone(&room));
        while !matches!(requests.large, Large::Waits(_)) {
            assert!(poll_fn(|context| requests.poll_message(context)).now_or_never().is_none());
            tokio::task::yield_now().await;
        }
        for _ in 0..100 {
            assert!(poll_fn(|context| requests.poll_message(context)).now_or_never().is_none());
            tokio::task::yield_now().await;
        }
        assert!(requests.buffer.len() <= LARGE, "the rest stays with the peer");
        drop(of_others);
        let message = awake(poll_fn(|context| requests.poll_message(context)))
            .await
            .expect("sound")
            .expect("a message");
        assert_eq!(message.content().len(), length as usize);
        assert_eq!(room.available_permits(), 0, "the permit is held while the message exists");
        drop(message);
        assert_eq!(room.available_permits(), 1024);
    }

    #[tokio::test]
    async fn message_larger_than_the_window_is_sent_as_the_peer_reads() {
        let (mut responses, answer) = call(1000).await;
        let shared = Bytes::from(vec![7; 100_000]);
        let read = async {
            let mut body = answer.await.expect("an answer").into_body();
            let mut total = 0;
            while let Some(data) = body.data().await {
                let length = data.expect("data").len();
                total += length;
                body.flow_control().release_capacity(length).expect("the bytes that were read");
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
    fn messages_are_parsed_from_any_pieces() {
        let bytes = [&[0, 0, 0, 0, 9], &b"a message"[..]].concat();
        let twice = [bytes.clone(), bytes].concat();
        let (mut buffer, mut read) = (Vec::new(), Vec::<Vec<u8>>::new());
        for byte in twice {
            buffer.extend_from_slice(&[byte]);
            read.extend(next(&mut buffer).expect("sound"));
        }
        let read: Vec<_> = read.iter().map(|message| &message[PREFIX..]).collect();
        assert_eq!(read, [b"a message"; 2]);
        assert_eq!(buffer.capacity(), 0, "an idle stream has no buffer");
    }

    #[test]
    fn invalid_messages_are_refused_by_their_prefix() {
        for (head, code) in [
            ([0, 0, 0x40, 0, 1], tonic::Code::ResourceExhausted),
            ([1, 0, 0, 0, 1], tonic::Code::Unimplemented),
        ] {
            let mut buffer = Vec::from(head);
            assert_eq!(next(&mut buffer).expect_err("refused").code(), code);
        }
    }
}
