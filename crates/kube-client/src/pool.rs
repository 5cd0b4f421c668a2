//! The connections to one API server.
//!
//! The protocol of a server is known after the TLS handshake of the first connection (ALPN). With
//! HTTP/2, all requests share that connection: lists, watches, probes. With HTTP/1.1, each open
//! request has a separate connection, and idle connections are reused.
//!
//! Owns the connections that requests may use. Callers set the deadlines.

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
use super::transport::{Dial, ServerStream, StreamPermit, Transport, http1_over};
use strait_base::lock::lock;

/// Receive window of one stream in bytes: 10 MB/s with a round trip of 100 ms.
const STREAM_WINDOW: u32 = 1 << 20;
/// Maximum number of streams per connection, even if the server permits more: their full windows
/// fit into the window of the connection, so that a stream without a reader does not block the
/// others.
const STREAMS_MAX: usize = 16;
/// Receive window of a connection in bytes.
const CONNECTION_WINDOW: u32 = STREAM_WINDOW * STREAMS_MAX as u32;
/// Maximum number of connections that may end before one request has been sent.
const CONNECTIONS_LOST_MAX: usize = 3;
/// Size of the send buffer of a stream in bytes.
const SEND_BUFFER: usize = 16 << 10;

type Connection = http2::Connection<ServerStream, Full<Bytes>, TokioExecutor>;
/// `None` once it has ended, so that no request waits in it.
type Driven = Arc<Mutex<Option<Connection>>>;
type Sender = http2::SendRequest<Full<Bytes>>;

/// The connections to one server.
pub(super) struct ConnectionPool {
    /// Offers HTTP/2 and HTTP/1.1.
    offering: Dial,
    /// Offers only HTTP/1.1.
    http1: Dial,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Connections to a server that supports HTTP/2. Usually one; more if connections are ending,
    /// or if the server permits few streams.
    shared: Vec<Shared>,
    /// Connections to a server that chose HTTP/1.1.
    single: Option<Single>,
    /// The result of the connection attempt in progress; the request that dials has the sender.
    dialling: Option<watch::Receiver<Option<Dialled>>>,
}

type Dialled = Result<(), NotConnected>;

/// Connections that each serve one request at a time.
struct Single {
    questions: Transport,
    /// A separate connection for probes. It fails together with the others, which a connection
    /// newly opened for a probe would not show.
    probes: Transport,
}

/// The purpose of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Needs the content of the response.
    Question,
    /// Needs to know whether there is a response.
    Probe,
}

/// The resource that a request uses.
enum Dispatch {
    /// A stream of a shared connection.
    Stream(Sender, StreamPermit),
    /// Separate connections.
    Single(Transport),
    /// A connection that another request is opening.
    Wait(watch::Receiver<Option<Dialled>>),
    /// The task of opening a connection and reporting the result.
    Dial(watch::Sender<Option<Dialled>>),
}

/// A connection that several requests use concurrently.
struct Shared {
    sender: Sender,
    connection: Driven,
    /// One reference more than there are streams.
    permits: Arc<()>,
}

impl ConnectionPool {
    /// Creates a pool without connections.
    pub(super) fn new(offering: Dial, http1: Dial) -> Self {
        Self { offering, http1, state: Mutex::default() }
    }

    /// Sends a request. The permit must be kept until the response has been read.
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
                        // If the connection ended before the request was sent, another connection
                        // is used.
                        Err(mut error) => match error.take_message() {
                            Some(unsent) => (request, lost) = (unsent, lost + 1),
                            None => return Err(error.into_error().into()),
                        },
                    }
                }
                Dispatch::Wait(mut dialled) => {
                    // An error means that the dialling request gave up: this one dials next.
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

    /// Uses none of the existing connections for new requests, because they may be dead. Open
    /// requests continue.
    pub(super) fn forget(&self) {
        *self.state() = State::default();
    }

    /// Whether a newly opened connection has already ended.
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
        let (outcome, dialling) = watch::channel(None);
        state.dialling = Some(dialling);
        Dispatch::Dial(outcome)
    }

    /// Opens a connection and adds it to the pool.
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

    /// Creates requests over HTTP/1.1 that use the existing connection first.
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

    /// Returns a stream if another may be opened. If the server permits none, the first stream
    /// waits for the permission.
    fn permit(&self) -> Option<(Sender, StreamPermit)> {
        let permitted = lock(&self.connection).as_ref()?.current_max_send_streams();
        let is_free = Arc::strong_count(&self.permits) <= permitted.clamp(1, STREAMS_MAX);
        is_free.then(|| (self.sender.clone(), StreamPermit::counted(&self.permits)))
    }
}

/// Drives a connection. Ends when it is neither in the pool nor in use.
async fn drive(connection: Driven) {
    poll_fn(|cx| {
        let mut current = lock(&connection);
        // Requests on the connection receive the reason of its end.
        let ended =
            current.as_mut().map_or(Poll::Ready(()), |one| Pin::new(one).poll(cx).map(drop));
        if ended.is_ready() {
            *current = None;
        }
        ended
    })
    .await;
}
