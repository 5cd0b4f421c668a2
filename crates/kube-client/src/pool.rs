//! The connections to one API server.
//!
//! Which protocol a server speaks shows when the TLS handshake of the first connection ends (ALPN). Over
//! HTTP/2 all questions share that connection: lists, watches, probes. Over HTTP/1.1 each open question
//! has one of its own, and those that are idle are used again.
//!
//! Owns the connections that may be given out. Whoever asks has the deadline.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Poll;

use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper::rt::Executor as _;
use hyper_util::client::legacy::connect::Connection as _;
use hyper_util::rt::TokioExecutor;
use tokio::sync::watch;
use tower::{BoxError, ServiceExt, service_fn};

use super::error::NotConnected;
use super::transport::{Dial, ServerStream, Transport, http1_over};
use strait_base::lock::lock;

/// What one stream may send ahead of its reader, in bytes: at 100 ms to the server and back, 10 MB/s.
const STREAM_WINDOW: u32 = 1 << 20;
/// No more streams share a connection, whatever the server permits: with their windows full all of them fit
/// the connection's, so one that nobody reads does not stop the others.
const STREAMS_MAX: usize = 16;
/// What all streams of a connection may send ahead, in bytes.
const CONNECTION_WINDOW: u32 = STREAM_WINDOW * STREAMS_MAX as u32;
/// How many connections may end under one request before it was sent.
const CONNECTIONS_LOST_MAX: usize = 3;
/// Bytes of requests that are buffered for a stream.
const SEND_BUFFER: usize = 16 << 10;

type Connection = http2::Connection<ServerStream, Full<Bytes>, TokioExecutor>;
/// Gone when it has ended, so that nothing waits in it.
type Driven = Arc<Mutex<Option<Connection>>>;
type Sender = http2::SendRequest<Full<Bytes>>;

/// Connections to one server.
pub(super) struct ConnectionPool {
    /// Offers HTTP/2 and HTTP/1.1.
    offering: Dial,
    /// Offers HTTP/1.1 alone.
    http1: Dial,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// To a server that speaks HTTP/2. One, but for those that end and where a server permits few streams.
    shared: Vec<Shared>,
    /// To one that chose HTTP/1.1.
    single: Option<Single>,
    /// How the connection turns out that is being made; who makes it holds the other end.
    dialling: Option<watch::Receiver<Option<Dialled>>>,
}

type Dialled = Result<(), NotConnected>;

/// Connections of which each serves one request at a time.
struct Single {
    questions: Transport,
    /// One for probes alone. It dies with the others, which a connection that a probe found made would not show.
    probes: Transport,
}

/// What a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To know the answer.
    Question,
    /// To know whether there is one.
    Probe,
}

/// What a request is given.
enum Dispatch {
    /// A stream of a shared connection.
    Stream(Sender, StreamPermit),
    /// Connections of its own.
    Single(Transport),
    /// A connection that somebody else is making.
    Wait(watch::Receiver<Option<Dialled>>),
    /// The task to make one, and to say how it went.
    Dial(watch::Sender<Option<Dialled>>),
}

/// The right to a stream, for as long as it is held.
#[derive(Debug)]
pub(super) struct StreamPermit(#[expect(dead_code, reason = "counted")] Arc<()>);

/// A connection that several requests use at once.
struct Shared {
    sender: Sender,
    connection: Driven,
    /// One more than there are streams.
    permits: Arc<()>,
}

impl ConnectionPool {
    /// No connections yet.
    pub(super) fn new(offering: Dial, http1: Dial) -> Self {
        Self { offering, http1, state: Mutex::default() }
    }

    /// Sends a request. The permit is to be held until its answer has been read.
    pub(super) async fn exchange(
        &self,
        mut request: Request<Full<Bytes>>,
        purpose: Purpose,
    ) -> Result<(Response<Incoming>, Option<StreamPermit>), BoxError> {
        let mut lost = 0;
        while lost < CONNECTIONS_LOST_MAX {
            match self.dispatch(purpose) {
                Dispatch::Single(http) => return Ok((http.oneshot(request).await?, None)),
                Dispatch::Stream(mut sender, permit) => {
                    match sender.try_send_request(request).await {
                        Ok(response) => return Ok((response, Some(permit))),
                        // Where the connection ended before the request was on it, another will do.
                        Err(mut error) => match error.take_message() {
                            Some(unsent) => (request, lost) = (unsent, lost + 1),
                            None => return Err(error.into_error().into()),
                        },
                    }
                }
                Dispatch::Wait(mut dialled) => {
                    // An error says that whoever made it gave up: then it is our turn.
                    if let Ok(dialled) = dialled.wait_for(Option::is_some).await {
                        dialled.clone().transpose()?;
                    }
                }
                Dispatch::Dial(result) => {
                    let dialled = self.dial(request.uri()).await;
                    result.send_replace(Some(dialled.clone()));
                    dialled?;
                    lost += usize::from(self.is_empty());
                }
            }
        }
        Err(io::Error::from(io::ErrorKind::UnexpectedEof).into())
    }

    /// Gives out none of the connections again that there are: they may be dead. Those in use stay.
    pub(super) fn forget(&self) {
        *self.state() = State::default();
    }

    /// Whether a connection that was just made has ended already.
    fn is_empty(&self) -> bool {
        let mut state = self.state();
        state.shared.retain(|one| !one.sender.is_closed());
        state.shared.is_empty() && state.single.is_none()
    }

    fn dispatch(&self, purpose: Purpose) -> Dispatch {
        let mut state = self.state();
        if let Some(single) = &state.single {
            return Dispatch::Single(match purpose {
                Purpose::Question => single.questions.clone(),
                Purpose::Probe => single.probes.clone(),
            });
        }
        state.shared.retain(|one| !one.sender.is_closed());
        if let Some((sender, permit)) = state.shared.iter().find_map(Shared::permit) {
            return Dispatch::Stream(sender, permit);
        }
        if let Some(dialling) = state.dialling.as_ref().filter(|one| one.has_changed().is_ok()) {
            return Dispatch::Wait(dialling.clone());
        }
        let (told, dialling) = watch::channel(None);
        state.dialling = Some(dialling);
        Dispatch::Dial(told)
    }

    /// Makes a connection and puts it where requests find it.
    async fn dial(&self, server: &Uri) -> Dialled {
        let failed = |error: BoxError| NotConnected(error.into());
        let io = self.offering.clone().oneshot(server.clone()).await.map_err(failed)?;
        if !io.connected().is_negotiated_h2() {
            let single =
                Single { questions: self.http1_from(io), probes: http1_over(self.http1.clone()) };
            self.state().single = Some(single);
            return Ok(());
        }
        let shared = Shared::begin(io).await.map_err(|error| failed(error.into()))?;
        self.state().shared.push(shared);
        Ok(())
    }

    /// Requests over HTTP/1.1, the first on the connection that is there.
    fn http1_from(&self, io: ServerStream) -> Transport {
        let (first, dial) = (Arc::new(Mutex::new(Some(io))), self.http1.clone());
        http1_over(service_fn(move |server: Uri| {
            let first = lock(&first).take();
            let dial = dial.clone();
            Box::pin(async move {
                match first {
                    Some(io) => Ok(io),
                    None => dial.oneshot(server).await,
                }
            })
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl Shared {
    async fn begin(io: ServerStream) -> hyper::Result<Self> {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .initial_max_send_streams(STREAMS_MAX)
            .max_send_buf_size(SEND_BUFFER);
        let (sender, connection) = builder.handshake(io).await?;
        let connection = Arc::new(Mutex::new(Some(connection)));
        TokioExecutor::new().execute(drive(Arc::clone(&connection)));
        Ok(Self { sender, connection, permits: Arc::new(()) })
    }

    /// A stream, where one more may be opened. Where a server permits none, the first waits until it does.
    fn permit(&self) -> Option<(Sender, StreamPermit)> {
        let permitted = lock(&self.connection).as_ref()?.current_max_send_streams();
        let is_free = Arc::strong_count(&self.permits) <= permitted.clamp(1, STREAMS_MAX);
        is_free.then(|| (self.sender.clone(), StreamPermit(Arc::clone(&self.permits))))
    }
}

/// Lets a connection send what it is given. It ends when it is neither given out any more nor in use.
async fn drive(connection: Driven) {
    poll_fn(|cx| {
        let mut held = lock(&connection);
        // Whoever uses it learns how it ended.
        let ended = held.as_mut().map_or(Poll::Ready(()), |one| Pin::new(one).poll(cx).map(drop));
        if ended.is_ready() {
            *held = None;
        }
        ended
    })
    .await;
}
