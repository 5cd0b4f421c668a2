//! The server side of HTTP/2 (RFC 9113, with RFC 7541 for headers): only what gRPC needs, with little memory for an
//! idle connection.
//!
//! One task serves a connection with all its calls, so this crate never wakes a task. The task that drives the
//! [`Http2Connection`] polls the calls after every receive and transmit. No buffer exists between frames.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use http::{HeaderMap, Request, Response};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

pub use self::frame::ErrorCode;
pub use self::protocol::CallOver;
use self::protocol::Http2Protocol;
pub use self::rope::Rope;

pub mod hpack;

mod frame;
mod huffman;
mod protocol;
mod rope;

/// The maximum number of bytes per read: one TLS record.
const READ_MAX: usize = 16 << 10;
/// The maximum number of bytes per write to the stream, and therefore the most that the stream holds for a peer that
/// does not read. The bytes fit into four TLS records. These records are as large as the largest packet that Linux
/// passes on as a whole, over loopback or to a network card that segments packets itself (64 KiB minus headers, in
/// whole segments: 64,260 bytes with IPv6). A slightly larger write would become two packets that are processed
/// separately.
pub const WRITE_MAX: usize = 62 << 10;
/// The maximum number of slices per write: enough for upstream clusters, which take two slices each.
const PIECES_MAX: usize = 168;
/// The number of slices for a short write, which need less initialization: a response with few resources.
const PIECES_FEW: usize = 8;

/// The reason why a connection ends.
#[derive(Debug)]
pub enum ConnectionEnd {
    /// The peer closed the connection.
    Closed,
    /// The socket failed.
    Io(io::Error),
    /// The peer violated the protocol.
    Fault(ErrorCode),
}

/// A connection, driven by one task.
pub struct Http2Connection<S> {
    stream: S,
    shared: ConnectionHandle,
}

/// A handle to a connection for code other than its driver.
#[derive(Debug, Clone)]
pub struct ConnectionHandle(Arc<Mutex<Http2Protocol>>);

/// The request body of a call.
#[derive(Debug)]
pub struct Body {
    shared: ConnectionHandle,
    stream: u32,
}

/// The response of a call. The call is cancelled if this is dropped before the response ends.
#[derive(Debug)]
pub struct CallResponse {
    shared: ConnectionHandle,
    stream: u32,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Http2Connection<S> {
    /// Returns a connection whose peer has not sent anything yet.
    pub fn new(stream: S) -> Self {
        let shared = ConnectionHandle(Arc::new(Mutex::new(Http2Protocol::new())));
        Self { stream, shared }
    }

    /// Returns a connection to an unauthenticated peer. It may send at most 64 KiB of unread data in total, until
    /// [`ConnectionHandle::widen`] is called.
    pub fn narrow(stream: S) -> Self {
        let shared = ConnectionHandle(Arc::new(Mutex::new(Http2Protocol::narrow())));
        Self { stream, shared }
    }

    /// Returns another handle to this connection.
    pub fn shared(&self) -> ConnectionHandle {
        self.shared.clone()
    }

    /// Returns whether the connection is closing and no call is left.
    pub fn is_over(&self) -> bool {
        self.shared.protocol().is_over()
    }

    /// Receives from the peer. Stays pending while too much output is waiting.
    pub fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<Result<(), ConnectionEnd>> {
        if self.shared.protocol().is_full() {
            return Poll::Pending;
        }
        // The buffer is on the stack, so that an idle connection has none.
        let mut space = [MaybeUninit::uninit(); READ_MAX];
        let mut buffer = ReadBuf::uninit(&mut space);
        ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer))
            .map_err(ConnectionEnd::Io)?;
        if buffer.filled().is_empty() {
            return Poll::Ready(Err(ConnectionEnd::Closed));
        }
        let received = self.shared.protocol().receive(buffer.filled());
        Poll::Ready(received.map_err(ConnectionEnd::Fault))
    }

    /// Returns the next call that the peer has opened.
    pub fn accept(&mut self) -> Option<(Request<Body>, CallResponse)> {
        let (request, stream) = self.shared.protocol().accept()?;
        let body = Body { shared: self.shared(), stream };
        Some((request.map(|()| body), CallResponse { shared: self.shared(), stream }))
    }

    /// Sends waiting output, as far as the socket accepts it. Returns whether there is room for output again after
    /// there was none, so that a call may have waited for it.
    pub fn poll_transmit(&mut self, context: &mut Context<'_>) -> Result<bool, io::Error> {
        let mut protocol = self.shared.protocol();
        if protocol.output.is_empty() && !protocol.held {
            return Ok(false);
        }
        let had_room = protocol.has_room();
        loop {
            // The stream may be TLS and buffers data that the socket has not accepted. Buffered data can't be replaced
            // by newer data, so the stream gets more only after its buffer is empty.
            protocol.held = Pin::new(&mut self.stream).poll_flush(context)?.is_pending();
            if protocol.held || protocol.output.is_empty() {
                return Ok(!had_room && protocol.has_room());
            }
            let (mut few, mut many);
            let slices = if protocol.output.pieces_max() <= PIECES_FEW {
                few = [IoSlice::new(&[]); PIECES_FEW];
                &mut few[..]
            } else {
                many = [IoSlice::new(&[]); PIECES_MAX];
                &mut many[..]
            };
            let used = protocol.output.pieces(slices);
            let slices = slices.get(..used).unwrap_or_default();
            match Pin::new(&mut self.stream).poll_write_vectored(context, slices)? {
                Poll::Ready(0) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(count) => protocol.output.drop_first(count),
                Poll::Pending => return Ok(false),
            }
        }
    }

    /// Sends a GOAWAY if the peer is at fault, and the waiting output, as far as the peer reads.
    pub async fn close(&mut self, end: &ConnectionEnd) {
        if let ConnectionEnd::Fault(reason) = end {
            self.shared.protocol().fail(*reason);
        }
        let sent = poll_fn(|context| match self.poll_transmit(context) {
            Err(error) => Poll::Ready(Err(error)),
            Ok(_) => {
                let protocol = self.shared.protocol();
                let gone = protocol.output.is_empty() && !protocol.held;
                if gone { Poll::Ready(Ok(())) } else { Poll::Pending }
            }
        });
        if sent.await.is_ok() {
            let _ = poll_fn(|context| Pin::new(&mut self.stream).poll_shutdown(context)).await;
        }
    }
}

impl ConnectionHandle {
    fn protocol(&self) -> MutexGuard<'_, Http2Protocol> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the peer has sent the preface and its settings.
    pub fn has_begun(&self) -> bool {
        self.protocol().has_begun()
    }

    /// Extends the window of the connection to its full size. Does nothing if it was already extended.
    pub fn widen(&self) {
        self.protocol().widen();
    }

    /// Refuses new calls. Existing calls continue.
    pub fn leave(&self) {
        self.protocol().leave();
    }

    /// Sends a ping.
    pub fn ping(&self) {
        self.protocol().ping();
    }

    /// Returns whether the last [`Self::ping`] was answered.
    pub fn is_answered(&self) -> bool {
        self.protocol().is_answered()
    }
}

impl Body {
    /// Returns the data received since the last call of this function; `None` at the end of the body.
    pub fn poll_data(&mut self) -> Poll<Result<Option<Vec<u8>>, CallOver>> {
        match self.shared.protocol().take_body(self.stream) {
            Ok(Some(data)) if data.is_empty() => Poll::Pending,
            taken => Poll::Ready(taken),
        }
    }

    /// Returns whether the body is complete and has been read.
    pub fn is_end(&self) -> bool {
        self.shared.protocol().is_heard(self.stream)
    }
}

impl CallResponse {
    /// Sends the response headers.
    pub fn send_head(&mut self, head: &Response<()>, end: bool) -> Result<(), CallOver> {
        let (status, headers) = (Some(head.status().as_u16()), head.headers());
        self.shared.protocol().send_headers(self.stream, status, headers, end)
    }

    /// Returns the number of bytes that can be sent, once it is not 0.
    pub fn poll_room(&mut self) -> Poll<Result<usize, CallOver>> {
        match self.shared.protocol().room(self.stream) {
            Ok(0) => Poll::Pending,
            room => Poll::Ready(room),
        }
    }

    /// Sends the first `count` bytes of `messages`, for which there must be room.
    pub fn send(&mut self, messages: &mut Rope, count: usize) -> Result<(), CallOver> {
        self.shared.protocol().send_data(self.stream, messages, count)
    }

    /// Ends the response.
    pub fn end(self, trailers: &HeaderMap) {
        let _ = self.shared.protocol().send_headers(self.stream, None, trailers, true);
    }

    /// Completes when the peer has cancelled the call.
    pub fn poll_gone(&mut self) -> Poll<()> {
        match self.shared.protocol().room(self.stream) {
            Ok(_) => Poll::Pending,
            Err(CallOver) => Poll::Ready(()),
        }
    }
}

impl Drop for CallResponse {
    fn drop(&mut self) {
        self.shared.protocol().drop_call(self.stream);
    }
}

#[cfg(any(test, fuzzing))]
pub mod fuzz;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use tokio::io::{AsyncReadExt, BufWriter};

    use super::frame::{FrameHead, PREFACE, flag, kind, setting};
    use super::*;

    #[tokio::test]
    async fn data_buffered_by_the_stream_is_sent_as_the_peer_reads() {
        let (ours, mut theirs) = tokio::io::duplex(8);
        // A stream that accepts all data at once, as TLS does, and forwards it in small pieces.
        let mut served = Http2Connection::new(BufWriter::new(ours));
        let drive = poll_fn(|context| {
            served.poll_transmit(context).expect("sent");
            Poll::<()>::Pending
        });
        // Our settings, and the window update of the connection.
        let mut hello = [0; 9 + 4 * 6 + 9 + 4];
        tokio::select! {
            () = drive => {}
            read = tokio::time::timeout(Duration::from_secs(5), theirs.read_exact(&mut hello)) => {
                read.expect("in time").expect("all of it");
            }
        }
    }

    /// A stream that accepts all data and records the size of each write.
    #[derive(Default)]
    struct Taking(Vec<usize>);

    impl AsyncRead for Taking {
        fn poll_read(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    impl AsyncWrite for Taking {
        fn poll_write(
            self: Pin<&mut Self>,
            context: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.poll_write_vectored(context, &[IoSlice::new(bytes)])
        }

        fn poll_write_vectored(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            slices: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            let length = slices.iter().map(|slice| slice.len()).sum();
            self.0.push(length);
            Poll::Ready(Ok(length))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn large_output_is_written_in_maximum_size_writes() {
        let window = (1_u32 << 20).to_be_bytes();
        let setting = [&setting::INITIAL_WINDOW_SIZE.to_be_bytes()[..], &window].concat();
        let mut hello = Rope::default();
        hello.put_slice(PREFACE);
        FrameHead::put_frame(kind::SETTINGS, 0, 0, &setting, &mut hello);
        FrameHead::put_frame(kind::WINDOW_UPDATE, 0, 0, &window, &mut hello);
        // `POST /`, as indexes of the static table.
        let post = [0x80 | 3, 0x80 | 4, 0x80 | 7];
        FrameHead::put_frame(kind::HEADERS, flag::END_HEADERS, 1, &post, &mut hello);
        let hello = hello.into_bytes();
        for (own, shared) in [(40, 800), (10, 20_000)] {
            let mut served = Http2Connection::new(Taking::default());
            served.shared.protocol().receive(&hello).expect("sound");
            let (_request, mut call) = served.accept().expect("a call");
            let shared = Bytes::from(vec![7; shared]);
            let mut messages = Rope::default();
            while messages.len() < 10 * WRITE_MAX {
                messages.put_slice(&vec![0; own]);
                messages.put_shared(&shared);
            }
            while !messages.is_empty() {
                let Poll::Ready(room) = call.poll_room() else { panic!("all of it was taken") };
                let count = room.expect("the connection is open").min(messages.len());
                call.send(&mut messages, count).expect("room");
                poll_fn(|context| Poll::Ready(served.poll_transmit(context))).await.expect("sent");
            }
            let (_rest, whole) = served.stream.0.split_last().expect("writes");
            assert!(
                whole.len() >= 10 && whole.iter().all(|length| *length == WRITE_MAX),
                "{whole:?}"
            );
        }
    }

    /// Unbuilt responses can still use the newest state, but data that TLS has encrypted can't be replaced.
    #[tokio::test]
    async fn no_room_while_the_stream_has_buffered_data() {
        let (ours, mut theirs) = tokio::io::duplex(8);
        let mut served = Http2Connection::new(BufWriter::new(ours));
        let transmitted = poll_fn(|context| Poll::Ready(served.poll_transmit(context))).await;
        assert!(!transmitted.expect("sent"));
        assert!(!served.shared.protocol().has_room());
        let mut hello = [0; 9 + 4 * 6 + 9 + 4];
        let (mut read, mut freed) = (0, false);
        while read < hello.len() {
            read += theirs.read(&mut hello[read..]).await.expect("open");
            let transmitted = poll_fn(|context| Poll::Ready(served.poll_transmit(context))).await;
            freed |= transmitted.expect("sent");
        }
        assert!(freed && served.shared.protocol().has_room());
    }
}
