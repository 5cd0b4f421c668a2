//! The connections to one API server.
//!
//! The protocol of a server is known after the TLS handshake of the first connection (ALPN). With
//! HTTP/2, all requests share that connection: lists, watches, probes. With HTTP/1.1, each open
//! request has a separate connection, and idle connections are reused.
//!
//! Owns the connections that requests may use. Callers set the deadlines.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body_util::Full;
use hyper_util::client::legacy::connect::Connection as _;
use tokio::sync::watch;
use tower::{BoxError, ServiceExt, service_fn};

use super::body::ResponseBody;
use super::error::NotConnected;
use super::http2::{Http2Sender, SendError};
use super::transport::{Dial, ServerStream, StreamPermit, Transport, http1_over};
use strait_base::lock::lock;

/// Maximum number of connections that may end before one request has been sent.
const CONNECTIONS_LOST_MAX: usize = 3;
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
    Stream(Http2Sender, StreamPermit),
    /// Separate connections.
    Single(Transport),
    /// A connection that another request is opening.
    Wait(watch::Receiver<Option<Dialled>>),
    /// The task of opening a connection and reporting the result.
    Dial(watch::Sender<Option<Dialled>>),
}

/// A connection that several requests use concurrently.
struct Shared {
    sender: Http2Sender,
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
    ) -> Result<(Response<ResponseBody>, Option<StreamPermit>), BoxError> {
        let mut lost = 0;
        while lost < CONNECTIONS_LOST_MAX {
            match self.dispatch(purpose) {
                Dispatch::Single(http) => {
                    let response = http.oneshot(request).await?;
                    return Ok((response.map(ResponseBody::Hyper), None));
                }
                // If the connection ended before the request was sent, another one is used.
                Dispatch::Stream(sender, permit) => match sender.send(request).await {
                    Ok(response) => return Ok((response, Some(permit))),
                    Err(SendError::Unsent(unsent)) => (request, lost) = (*unsent, lost + 1),
                    Err(SendError::Failed(error)) => return Err(error),
                },
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
        state.shared.retain(|one| !one.sender.has_ended());
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
        state.shared.retain(|one| !one.sender.has_ended());
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
        let sender = Http2Sender::begin(io).await.map_err(|error| failed(error.into()))?;
        self.state().shared.push(Shared { sender, permits: Arc::new(()) });
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
    /// Returns a stream if another may be opened.
    fn permit(&self) -> Option<(Http2Sender, StreamPermit)> {
        let is_free = Arc::strong_count(&self.permits) <= self.sender.streams_max();
        is_free.then(|| (self.sender.clone(), StreamPermit::counted(&self.permits)))
    }
}
