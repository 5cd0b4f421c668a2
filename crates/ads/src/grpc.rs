//! gRPC for the ADS streams, straight on HTTP/2: requests in, responses out, a status at the end.
//!
//! Responses go to the socket from where all streams share them; a generic codec would copy each into a
//! buffer of the stream's own first. What the peer has no room for is not taken from the caller, and a
//! peer that makes no room for too long is given up. Knows nothing of xDS.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;

use strait_http2::{Body, CallOver, CallResponse, Rope};

/// The largest request.
pub(super) const REQUEST_BYTES_MAX: usize = 4 << 20;
/// From so many bytes on a request is read only where there is room for it. Others are as large as what HTTP/2 takes in
/// of a stream that nobody reads.
const LARGE: usize = 256 << 10;
/// How long a large request may take from when there is room for it.
const LARGE_LIMIT: Duration = Duration::from_secs(30);
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

impl From<CallOver> for SendError {
    fn from(_: CallOver) -> Self {
        Self::Gone
    }
}

/// The messages of a request's body.
pub(super) struct Requests {
    body: Body,
    /// The beginning of a message; empty, and without memory, between messages.
    buffer: Vec<u8>,
    /// Room for large messages, in KiB, shared with other streams.
    room: Arc<Semaphore>,
    large: Large,
}

/// Whether there is room for a large message.
#[derive(Default)]
enum Large {
    /// None has begun.
    #[default]
    None,
    /// It is waited for.
    Waits(Pin<Box<dyn Future<Output = Option<OwnedSemaphorePermit>> + Send>>),
    /// It is read, and must be there by then.
    Reads(OwnedSemaphorePermit, tokio::time::Instant),
}

/// One message, as it came.
#[derive(Debug)]
pub(super) struct GrpcMessage {
    bytes: Vec<u8>,
    /// Its room, for as long as it is there.
    _room: Option<OwnedSemaphorePermit>,
}

impl GrpcMessage {
    /// What it says.
    pub(super) fn content(&self) -> &[u8] {
        self.bytes.get(PREFIX..).unwrap_or_default()
    }
}

impl Requests {
    /// Those of a body. Large ones are read while there is `room` (in KiB) for them: what waits stays with the
    /// peer, but for what HTTP/2 takes in of a stream.
    pub(super) fn new(body: Body, room: Arc<Semaphore>) -> Self {
        Self { body, buffer: Vec::new(), room, large: Large::None }
    }

    /// The next message; `None` where the peer has ended its side. Nothing is lost if it is dropped
    /// unfinished.
    pub(super) async fn message(&mut self) -> Result<Option<GrpcMessage>, Status> {
        loop {
            if let Some(bytes) = next(&mut self.buffer)? {
                let room = match std::mem::take(&mut self.large) {
                    Large::Reads(room, _) => Some(room),
                    _ => None,
                };
                return Ok(Some(GrpcMessage { bytes, _room: room }));
            }
            self.has_room().await;
            match self.data().await? {
                Ok(Some(data)) if self.buffer.is_empty() => self.buffer = data,
                Ok(Some(data)) => self.buffer.extend_from_slice(&data),
                Ok(None) if self.buffer.is_empty() => return Ok(None),
                Ok(None) => return Err(Status::internal("the stream ended within a message")),
                Err(CallOver) => return Err(Status::cancelled("the peer has reset the stream")),
            }
        }
    }

    /// What comes next, in time.
    async fn data(&mut self) -> Result<Result<Option<Vec<u8>>, CallOver>, Status> {
        let data = poll_fn(|_| self.body.poll_data());
        match self.large {
            Large::Reads(_, limit) => tokio::time::timeout_at(limit, data).await.map_err(|_| {
                let seconds = LARGE_LIMIT.as_secs();
                Status::deadline_exceeded(format!("no whole request within {seconds} s"))
            }),
            _ => Ok(data.await),
        }
    }

    /// Waits until there is room for the message that has begun, if it is large. Its place among those that wait
    /// is kept where this is dropped unfinished.
    async fn has_room(&mut self) {
        if let Large::None = self.large
            && let Some(length) = length(&self.buffer).filter(|length| *length > LARGE)
        {
            let kilobytes = u32::try_from(length.div_ceil(1 << 10)).unwrap_or(u32::MAX);
            let room = Arc::clone(&self.room).acquire_many_owned(kilobytes);
            self.large = Large::Waits(Box::pin(async { room.await.ok() }));
        }
        if let Large::Waits(room) = &mut self.large {
            // Nobody closes it.
            let Some(room) = room.await else { return };
            self.large = Large::Reads(room, tokio::time::Instant::now() + LARGE_LIMIT);
            if let Some(length) = length(&self.buffer) {
                self.buffer.reserve_exact((PREFIX + length).saturating_sub(self.buffer.len()));
            }
        }
    }
}

/// The length of the message that begins there, without what stands before it, once that is known.
fn length(buffer: &[u8]) -> Option<usize> {
    let (&[_, ref length @ ..], _) = buffer.split_first_chunk::<PREFIX>()?;
    Some(u32::from_be_bytes(*length) as usize)
}

/// Takes the first message, if it is all there.
fn next(buffer: &mut Vec<u8>) -> Result<Option<Vec<u8>>, Status> {
    let Some(length) = length(buffer) else { return Ok(None) };
    let (compressed, content) = (buffer[0], &buffer[PREFIX..]);
    if compressed != 0 {
        return Err(Status::unimplemented("compressed messages are not taken here"));
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

/// The messages of a body, as far as they can be read.
#[cfg(any(test, fuzzing))]
pub(super) fn messages(body: &[u8]) -> Vec<Vec<u8>> {
    let mut buffer = body.to_vec();
    let mut found = Vec::new();
    while let Ok(Some(message)) = next(&mut buffer) {
        found.push(message[PREFIX..].to_vec());
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
                Ok(Some(message)) => found.push(message[PREFIX..].to_vec()),
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
pub(super) struct ResponseSender {
    answer: CallResponse,
    /// [`STALL_LIMIT`], except in tests.
    send_timeout: Duration,
}

impl ResponseSender {
    /// Begins to answer a call.
    pub(super) fn begin(answer: CallResponse) -> Result<Self, SendError> {
        let mut head = Response::new(());
        head.headers_mut().insert(header::CONTENT_TYPE, CONTENT_TYPE);
        Self::begin_with(answer, &head)
    }

    /// Begins to answer a call with a head made by somebody else.
    pub(super) fn begin_with(
        mut answer: CallResponse,
        head: &Response<()>,
    ) -> Result<Self, SendError> {
        answer.send_head(head, false)?;
        Ok(Self { answer, send_timeout: STALL_LIMIT })
    }

    /// Refuses a call.
    pub(super) fn refuse(mut answer: CallResponse, status: Status) {
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
        match tokio::time::timeout(self.send_timeout, room).await {
            Ok(room) => Ok(room?.min(wanted)),
            Err(_) => Err(SendError::Stalled),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Poll, ready};

    use bytes::Bytes;
    use futures::FutureExt;

    use super::*;
    use strait_http2::Http2Connection;

    /// The two ends of one call; the client's window is as large as this.
    async fn call(window: u32) -> (ResponseSender, h2::client::ResponseFuture) {
        let (_, call, answer) = question(window, Bytes::new()).await;
        (ResponseSender::begin(call).unwrap_or_else(|_| panic!("it can be answered")), answer)
    }

    /// The same before it is answered, with what is asked. What the future is given is done beside it.
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
        (body, call, answer)
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
        responses.send_timeout = Duration::from_millis(50);
        responses.room().await.expect("room");
        responses.send(rope(&shared)).await.expect("sent");
        assert_eq!(awake(responses.room()).await, Err(SendError::Stalled));
    }

    #[tokio::test]
    async fn a_large_request_is_read_only_where_there_is_room_for_it() {
        let length: u32 = 1 << 20;
        let text = [&[0], &length.to_be_bytes()[..], &vec![7; length as usize]].concat();
        let (body, _call, _answer) = question(1000, text.into()).await;
        let room = Arc::new(Semaphore::new(1024));
        let of_others = Arc::clone(&room).try_acquire_owned().expect("there is room");
        let mut requests = Requests::new(body, Arc::clone(&room));
        while !matches!(requests.large, Large::Waits(_)) {
            assert!(requests.message().now_or_never().is_none());
            tokio::task::yield_now().await;
        }
        for _ in 0..100 {
            assert!(requests.message().now_or_never().is_none());
            tokio::task::yield_now().await;
        }
        assert!(requests.buffer.len() <= LARGE, "the rest stays with the peer");
        drop(of_others);
        let message = awake(requests.message()).await.expect("sound").expect("a message");
        assert_eq!(message.content().len(), length as usize);
        assert_eq!(room.available_permits(), 0, "for as long as it is there");
        drop(message);
        assert_eq!(room.available_permits(), 1024);
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
