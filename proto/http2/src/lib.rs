//! The server side of HTTP/2 (RFC 9113, and RFC 7541 for its headers): what gRPC needs and no more, lean where a
//! connection is idle.
//!
//! One task serves a connection, its calls included, so nothing here wakes anybody: whoever drives the
//! [`Http2Connection`] polls the calls whenever it has received or sent. Between frames no buffer is kept.

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

/// What is read at once: a record of TLS.
const READ_MAX: usize = 16 << 10;
/// What is handed to the stream at once, and what it therefore holds of a peer that reads nothing: four records of TLS, which
/// together are as much as Linux passes on in one piece, on loopback and to a card that cuts packets for itself (64 KiB
/// less heads, in whole packets: 64,260 bytes by IPv6). What is a little longer is two pieces, each with its own way.
pub const WRITE_MAX: usize = 62 << 10;
/// The same in pieces: enough where it is upstream clusters, each of which is two.
const PIECES_MAX: usize = 168;

/// Why a connection ends.
#[derive(Debug)]
pub enum ConnectionEnd {
    /// The peer has closed it.
    Closed,
    /// The socket failed.
    Io(io::Error),
    /// The peer broke the protocol.
    Fault(ErrorCode),
}

/// A connection, to be driven by one task.
pub struct Http2Connection<S> {
    stream: S,
    shared: ConnectionHandle,
}

/// A handle of a connection for those who serve it beside its driver.
#[derive(Debug, Clone)]
pub struct ConnectionHandle(Arc<Mutex<Http2Protocol>>);

/// The body of a call.
#[derive(Debug)]
pub struct Body {
    shared: ConnectionHandle,
    stream: u32,
}

/// The answer to a call. If it is dropped unfinished the call is cancelled.
#[derive(Debug)]
pub struct CallResponse {
    shared: ConnectionHandle,
    stream: u32,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Http2Connection<S> {
    /// A connection of a peer that has yet to speak.
    pub fn new(stream: S) -> Self {
        let shared = ConnectionHandle(Arc::new(Mutex::new(Http2Protocol::new())));
        Self { stream, shared }
    }

    /// The same of a peer of which nobody knows who it is: it may send 64 KiB in all that nobody has read, until
    /// [`ConnectionHandle::widen`].
    pub fn narrow(stream: S) -> Self {
        let shared = ConnectionHandle(Arc::new(Mutex::new(Http2Protocol::narrow())));
        Self { stream, shared }
    }

    /// Another handle.
    pub fn shared(&self) -> ConnectionHandle {
        self.shared.clone()
    }

    /// Takes what the peer says next, unless too much waits to be sent.
    pub fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<Result<(), ConnectionEnd>> {
        if self.shared.protocol().is_full() {
            return Poll::Pending;
        }
        // On the stack, so that an idle connection has no buffer.
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

    /// The next call that the peer has begun.
    pub fn accept(&mut self) -> Option<(Request<Body>, CallResponse)> {
        let (request, stream) = self.shared.protocol().accept()?;
        let body = Body { shared: self.shared(), stream };
        Some((request.map(|()| body), CallResponse { shared: self.shared(), stream }))
    }

    /// Sends what waits, as far as the socket takes it. Returns whether somebody may have waited for the
    /// room that there is now.
    pub fn poll_transmit(&mut self, context: &mut Context<'_>) -> Result<bool, io::Error> {
        let mut protocol = self.shared.protocol();
        if protocol.output.is_empty() && !protocol.held {
            return Ok(false);
        }
        let had_room = protocol.has_room();
        loop {
            // The stream, which may be TLS, takes what it has not passed on. What it holds can't be
            // replaced by what is newer, so it gets no more before that has gone.
            protocol.held = Pin::new(&mut self.stream).poll_flush(context)?.is_pending();
            if protocol.held || protocol.output.is_empty() {
                return Ok(!had_room && protocol.has_room());
            }
            let mut slices = [IoSlice::new(&[]); PIECES_MAX];
            let used = protocol.output.pieces(&mut slices);
            let slices = slices.get(..used).unwrap_or_default();
            match Pin::new(&mut self.stream).poll_write_vectored(context, slices)? {
                Poll::Ready(0) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(count) => protocol.output.drop_first(count),
                Poll::Pending => return Ok(false),
            }
        }
    }

    /// Says goodbye, as far as the peer listens.
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

    /// Whether the peer speaks HTTP/2 at all.
    pub fn has_begun(&self) -> bool {
        self.protocol().has_begun()
    }

    /// Whether nothing more will come.
    pub fn is_over(&self) -> bool {
        self.protocol().is_over()
    }

    /// Lets the peer send as much as any; does nothing where it may already.
    pub fn widen(&self) {
        self.protocol().widen();
    }

    /// Takes no new calls; those there are go on.
    pub fn leave(&self) {
        self.protocol().leave();
    }

    /// Asks whether the peer is there.
    pub fn ping(&self) {
        self.protocol().ping();
    }

    /// Whether the last [`Self::ping`] was answered.
    pub fn is_answered(&self) -> bool {
        self.protocol().is_answered()
    }
}

impl Body {
    /// What came since this was last called; `None` at the end.
    pub fn poll_data(&mut self) -> Poll<Result<Option<Vec<u8>>, CallOver>> {
        match self.shared.protocol().take_body(self.stream) {
            Ok(Some(data)) if data.is_empty() => Poll::Pending,
            taken => Poll::Ready(taken),
        }
    }

    /// Whether nothing more will come.
    pub fn is_end(&self) -> bool {
        self.shared.protocol().is_heard(self.stream)
    }
}

impl CallResponse {
    /// Sends the head of the answer.
    pub fn send_head(&mut self, head: &Response<()>, end: bool) -> Result<(), CallOver> {
        let (status, headers) = (Some(head.status().as_u16()), head.headers());
        self.shared.protocol().send_headers(self.stream, status, headers, end)
    }

    /// How much there is room for, once there is room for anything.
    pub fn poll_room(&mut self) -> Poll<Result<usize, CallOver>> {
        match self.shared.protocol().room(self.stream) {
            Ok(0) => Poll::Pending,
            room => Poll::Ready(room),
        }
    }

    /// Sends the beginning of `messages`, `count` bytes, for which there is room.
    pub fn send(&mut self, messages: &mut Rope, count: usize) -> Result<(), CallOver> {
        self.shared.protocol().send_data(self.stream, messages, count)
    }

    /// Ends the answer.
    pub fn end(self, trailers: &HeaderMap) {
        let _ = self.shared.protocol().send_headers(self.stream, None, trailers, true);
    }

    /// Ready when the peer has given the call up.
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
    async fn what_the_stream_holds_back_is_sent_as_the_peer_reads() {
        let (ours, mut theirs) = tokio::io::duplex(8);
        // It takes all at once, as TLS does, and passes it on in small pieces.
        let mut served = Http2Connection::new(BufWriter::new(ours));
        let drive = poll_fn(|context| {
            served.poll_transmit(context).expect("sent");
            Poll::<()>::Pending
        });
        // Our settings, and the window of the connection.
        let mut hello = [0; 9 + 4 * 6 + 9 + 4];
        tokio::select! {
            () = drive => {}
            read = tokio::time::timeout(Duration::from_secs(5), theirs.read_exact(&mut hello)) => {
                read.expect("in time").expect("all of it");
            }
        }
    }

    /// Takes whatever it is given, and notes how much at once.
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
    async fn much_leaves_in_writes_as_large_as_may_be_whatever_pieces_it_is_of() {
        let window = (1_u32 << 20).to_be_bytes();
        let setting = [&setting::INITIAL_WINDOW_SIZE.to_be_bytes()[..], &window].concat();
        let mut hello = Rope::default();
        hello.put_slice(PREFACE);
        FrameHead::put_frame(kind::SETTINGS, 0, 0, &setting, &mut hello);
        FrameHead::put_frame(kind::WINDOW_UPDATE, 0, 0, &window, &mut hello);
        // `POST /`, as numbers of the table that everybody has.
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
                let count = room.expect("it goes on").min(messages.len());
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

    /// Answers that are not made yet are of the newest state; what TLS has encrypted can't be taken back.
    #[tokio::test]
    async fn there_is_no_room_while_the_stream_holds_something_back() {
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
