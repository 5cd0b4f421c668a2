//! One connection: TLS, then HTTP/2 with every limit set by hand, then calls.
//!
//! One task does it all, streams included: a change wakes it once and leaves in the same turn. ADS is
//! served by [`super::stream`] over [`super::grpc`], everything else by tonic. Ends when its peer may no
//! longer be served, or no longer listens.

use std::io;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::poll_fn;
use futures::stream::{FuturesUnordered, StreamExt};
use http::{HeaderMap, Request as HttpRequest};
use http_body_util::BodyExt;
use hyper::body::Frame;
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::Status;
use tonic::body::Body;
use tonic::service::Routes;
use tower::Service;
use tracing::{debug, warn};

use super::grpc::{self, Requests, ResponseSender, SendError};
use super::handshakes::HandshakePermit;
use super::shared::{ConnectionShared, Leaving, ServerShared};
use super::stream::{Stream, StreamEnd, contained};
use super::sync_limiter::{SyncPermit, TURN_MAX};
use strait_base::codes;
use strait_base::descriptors::Seat;
use strait_http2::{self as http2, CallOver, CallResponse, ConnectionEnd, Rope};
use strait_identity::caller::brings_token;
use strait_identity::{Caller, SpiffeId, tls};
use strait_xds::session::ProtocolForm;

/// A connection waits this long for the turn of its handshake.
const TURN_LIMIT: Duration = Duration::from_secs(30);
/// A handshake must be over by then, and once more that of HTTP/2.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// Who shows no certificate must have made a call by then that is known to be somebody's.
const STRANGER_LIMIT: Duration = Duration::from_secs(10);
/// Connections are asked to reconnect after this long, give or take a fifth, so that load spreads.
const AGE_MAX: Duration = Duration::from_secs(30 * 60);
/// How long a connection may linger after it was asked to.
const AGE_GRACE: Duration = Duration::from_secs(30);
/// A peer is asked this often whether it is there, and must answer within the limit.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_LIMIT: Duration = Duration::from_secs(10);
/// How long another service than ADS may take to begin its answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// How long a connection that ends may take to say so.
const GOODBYE_LIMIT: Duration = Duration::from_secs(1);
/// How often the output is filled again before other connections get their turn: 248 KiB.
const ROUNDS_MAX: usize = 4;

const DELTA_PATH: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";
const SOTW_PATH: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";

/// An accepted connection.
pub(super) struct AcceptedConnection {
    pub(super) shared: Arc<ServerShared>,
    pub(super) address: SocketAddr,
    pub(super) routes: Routes,
    /// Its share of how many there may be, for as long as it lasts.
    pub(super) _room: (OwnedSemaphorePermit, Seat),
}

/// What becomes of the connection when one of its calls has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    GoOn,
    Close,
}

type CallFuture = Pin<Box<dyn Future<Output = After> + Send>>;

/// Boxed, since futures hold it in several places while it passes through them.
type Secured = Box<TlsStream<TcpStream>>;

/// What a connection waits for besides messages of its peer. Each is woken alone.
type Watch = Pin<Box<dyn Future<Output = Notice> + Send>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Notice {
    /// HTTP/2 should have begun by now.
    Begun,
    /// By now somebody should have made a call whom we know.
    Strange,
    /// The peer answers no ping.
    Deaf,
    /// It takes no new calls.
    Leaving(Leaving),
    /// It has taken none for long enough.
    Over,
}

/// Why nobody serves a connection any more.
#[derive(Debug)]
enum Done {
    /// Its peer is sent the reason.
    Ended(ConnectionEnd),
    /// Everything has been sent.
    Over,
}

impl AcceptedConnection {
    pub(super) async fn run(self, socket: TcpStream, mut place: HandshakePermit) {
        let stats = &self.shared.stats;
        if tokio::time::timeout(TURN_LIMIT, place.turn()).await.is_err() {
            stats.handshake_failed("no turn");
            self.shared.failures.note(self.address, "no turn");
            return;
        }
        // Boxed, so that its memory goes when it is over: the task's own stays.
        let handshake = Box::pin(self.handshake(socket));
        let handshake = tokio::time::timeout(HANDSHAKE_LIMIT, handshake).await;
        drop(place);
        match handshake {
            Ok(Ok((stream, line))) => Box::pin(self.serve(stream, Arc::new(line))).await,
            Ok(Err(reason)) => {
                stats.handshake_failed("refused");
                self.shared.failures.note(self.address, &reason);
            }
            Err(_) => {
                stats.handshake_failed("timeout");
                self.shared.failures.note(self.address, "it took too long");
            }
        }
    }

    async fn handshake(&self, socket: TcpStream) -> Result<(Secured, ConnectionShared), String> {
        let _ = socket.set_nodelay(true);
        let (config, believed) = {
            let identity = self.shared.identity.borrow();
            (Arc::clone(&identity.server_config), identity.trust_generation)
        };
        let mut stream = TlsAcceptor::from(config)
            .accept(socket)
            .await
            .map_err(|error: io::Error| tls::failure(&error))?;
        stream.get_mut().1.set_buffer_limit(Some(http2::WRITE_MAX));
        let peer = tls::peer(stream.get_ref().1).map_err(|error| error.to_string())?;
        let line = ConnectionShared::new(self.address, peer.map(Arc::new), believed);
        Ok((Box::new(stream), line))
    }

    async fn serve(self, stream: Secured, line: Arc<ConnectionShared>) {
        let mut http = match &line.peer {
            Some(_) => http2::Http2Connection::new(stream),
            None => http2::Http2Connection::narrow(stream),
        };
        let mut calls = Vec::<CallFuture>::new();
        let mut watches = self.watches(&http.shared(), &line);
        let done =
            poll_fn(|context| self.turn(context, &line, &mut http, &mut calls, &mut watches));
        let done = done.await;
        drop(calls);
        debug!(peer = %self.address, ?done, "connection ends");
        let end = match done {
            Done::Ended(end) => end,
            Done::Over => ConnectionEnd::Closed,
        };
        let _ = tokio::time::timeout(GOODBYE_LIMIT, http.close(&end)).await;
    }

    fn watches(
        &self,
        http: &http2::ConnectionHandle,
        line: &Arc<ConnectionShared>,
    ) -> FuturesUnordered<Watch> {
        let age = AGE_MAX.mul_f64(0.8 + 0.4 * rand::random::<f64>());
        let left = Arc::clone(&self.shared).left(line.peer.clone(), line.believed, age);
        let begun = tokio::time::sleep(HANDSHAKE_LIMIT).map(|()| Notice::Begun);
        let watches = FuturesUnordered::<Watch>::new();
        watches.push(Box::pin(begun));
        watches.push(Box::pin(keep_alive(http.clone())));
        watches.push(Box::pin(left.map(Notice::Leaving)));
        if line.peer.is_none() {
            let strange = tokio::time::sleep(STRANGER_LIMIT).map(|()| Notice::Strange);
            watches.push(Box::pin(strange));
        }
        watches
    }

    /// Does what there is to do: takes notices, receives, has the calls answered, sends.
    fn turn(
        &self,
        context: &mut Context<'_>,
        line: &Arc<ConnectionShared>,
        http: &mut http2::Http2Connection<Secured>,
        calls: &mut Vec<CallFuture>,
        watches: &mut FuturesUnordered<Watch>,
    ) -> Poll<Done> {
        for _ in 0..ROUNDS_MAX {
            while let Poll::Ready(Some(notice)) = watches.poll_next_unpin(context) {
                match notice {
                    Notice::Begun if http.shared().has_begun() => {}
                    Notice::Strange if line.identity().is_some() => {}
                    Notice::Strange => {
                        self.shared.stats.closed("stranger");
                        return Poll::Ready(Done::Over);
                    }
                    Notice::Begun | Notice::Over => return Poll::Ready(Done::Over),
                    Notice::Deaf => {
                        self.shared.stats.closed("deaf");
                        line.note_cut("silent");
                        let (identity, peer) = (line.identity().map(display), self.address);
                        warn!(
                            identity,
                            %peer,
                            "nothing is heard of the proxy for 10 s; its connection is closed"
                        );
                        return Poll::Ready(Done::Over);
                    }
                    Notice::Leaving(leaving) => {
                        // GOAWAY: Envoy opens a new connection while this one ends.
                        debug!(peer = %self.address, ?leaving, "connection leaves");
                        http.shared().leave();
                        watches.push(Box::pin(linger(leaving, Arc::clone(line))));
                    }
                }
            }
            // All there is, before anybody looks at it: an answer has its call polled once.
            while let Poll::Ready(received) = http.poll_receive(context) {
                if let Err(end) = received {
                    return Poll::Ready(Done::Ended(end));
                }
            }
            while let Some((request, answer)) = http.accept() {
                calls.push(self.answer(line, request, answer));
            }
            let mut close = false;
            // They wake nobody but this task: each may have something to do.
            calls.retain_mut(|call| match call.as_mut().poll(context) {
                Poll::Ready(after) => {
                    close |= after == After::Close;
                    false
                }
                Poll::Pending => true,
            });
            if close {
                return Poll::Ready(Done::Over);
            }
            if line.peer.is_none() && line.identity().is_some() {
                http.shared().widen();
            }
            let freed = match http.poll_transmit(context) {
                Ok(freed) => freed,
                Err(error) => return Poll::Ready(Done::Ended(ConnectionEnd::Io(error))),
            };
            if http.shared().is_over() {
                return Poll::Ready(Done::Over);
            }
            if !freed {
                return Poll::Pending;
            }
        }
        // There is more to send: after what other connections have.
        context.waker().wake_by_ref();
        Poll::Pending
    }

    fn answer(
        &self,
        line: &Arc<ConnectionShared>,
        request: HttpRequest<http2::Body>,
        call: CallResponse,
    ) -> CallFuture {
        let (shared, line, routes) =
            (Arc::clone(&self.shared), Arc::clone(line), self.routes.clone());
        // The certificate says at once: then nothing is kept of the asking.
        if line.peer.is_some()
            && !brings_token(request.headers())
            && let Some(found) =
                shared.identify(&line, request.uri().path(), request.headers()).now_or_never()
        {
            return served(found, shared, line, routes, request, call);
        }
        Box::pin(async move {
            let found = shared.identify(&line, request.uri().path(), request.headers()).await;
            served(found, shared, line, routes, request, call).await
        })
    }
}

fn display(identity: &SpiffeId) -> tracing::field::DisplayValue<&SpiffeId> {
    tracing::field::display(identity)
}

/// Serves a call of whoever makes it, or refuses it.
fn served(
    found: Result<Caller, Status>,
    shared: Arc<ServerShared>,
    line: Arc<ConnectionShared>,
    routes: Routes,
    mut request: HttpRequest<http2::Body>,
    call: CallResponse,
) -> CallFuture {
    let caller = match found {
        Ok(caller) => caller,
        Err(status) => {
            ResponseSender::refuse(call, status);
            let close = line.identity().is_none() && line.note_stranger();
            let after = if close { After::Close } else { After::GoOn };
            return Box::pin(std::future::ready(after));
        }
    };
    line.note_caller(&caller);
    // The path is compared as it came: nothing before this may have judged another one.
    let form = match request.uri().path() {
        DELTA_PATH => ProtocolForm::Delta,
        SOTW_PATH => ProtocolForm::Sotw,
        _ => {
            request.extensions_mut().insert(caller);
            return Box::pin(other(routes, request, call).map(|()| After::GoOn));
        }
    };
    Box::pin(ads(form, shared, line, caller, request, call))
}

/// Ends when the peer is no longer there.
async fn keep_alive(http: http2::ConnectionHandle) -> Notice {
    loop {
        tokio::time::sleep(PING_INTERVAL - PING_LIMIT).await;
        http.ping();
        tokio::time::sleep(PING_LIMIT).await;
        if !http.is_answered() {
            return Notice::Deaf;
        }
    }
}

/// Ends when a connection that takes no new streams has lingered long enough.
async fn linger(leaving: Leaving, line: Arc<ConnectionShared>) -> Notice {
    if let Leaving::Ends(ending, after) = leaving {
        tokio::time::sleep(after).await;
        line.end(ending);
    }
    tokio::time::sleep(AGE_GRACE).await;
    Notice::Over
}

/// Serves one ADS stream.
async fn ads(
    form: ProtocolForm,
    shared: Arc<ServerShared>,
    line: Arc<ConnectionShared>,
    caller: Caller,
    request: HttpRequest<http2::Body>,
    mut call: CallResponse,
) -> After {
    if let Some(refusal) = grpc::refusal(&request) {
        let _ = call.send_head(&refusal, true);
        return After::GoOn;
    }
    if shared.context().is_none() {
        let text = "the mesh is not known completely yet; try again";
        ResponseSender::refuse(call, Status::unavailable(text));
        return After::GoOn;
    }
    let Ok(mut responses) = ResponseSender::begin(call) else { return After::GoOn };
    let room = shared.connections.budgets().room(caller.identity());
    let mut requests = Requests::new(request.into_body(), room);
    let mut stream = Stream::new(Arc::clone(&shared), Arc::clone(&line), caller, form);
    loop {
        match step(&mut stream, &mut requests, &mut responses).await {
            Ok(Ok(())) => {}
            Ok(Err(StreamEnd { reason, status })) => {
                shared.stats.closed(reason);
                stream.ends(reason);
                let status = status.unwrap_or_else(|| Status::ok(""));
                debug!(reason, %status, "stream ended");
                responses.end(&status);
                return After::GoOn;
            }
            Err(SendError::Gone) => {
                shared.stats.closed("transport");
                return After::GoOn;
            }
            Err(SendError::Stalled) => {
                shared.stats.closed("stalled");
                stream.ends("stalled");
                let identity = stream.identity();
                warn!(%identity, "the proxy reads nothing; its connection is closed");
                return After::Close;
            }
        }
    }
}

/// Sends what is due next. Nothing is made before there is room for it: a slow client gets the newest.
async fn step(
    stream: &mut Stream,
    requests: &mut Requests,
    responses: &mut ResponseSender,
) -> Result<Result<(), StreamEnd>, SendError> {
    if let Err(ended) = contained(stream.until_due(requests)).await {
        return Ok(Err(ended));
    }
    responses.room().await?;
    let turn = stream.turn().await;
    let messages = match contained(async { Ok(stream.responses()) }).await {
        Ok(messages) => messages,
        Err(ended) => return Ok(Err(ended)),
    };
    match turn {
        Some(turn) => send_in_turn(turn, messages, responses).await.map(Ok),
        None => responses.send(messages).await.map(Ok),
    }
}

/// Sends until the turn is over, and the rest without it.
async fn send_in_turn(
    mut turn: SyncPermit,
    messages: Rope,
    responses: &mut ResponseSender,
) -> Result<(), SendError> {
    turn.needs(messages.len());
    let mut sending = pin!(responses.send(messages));
    match tokio::time::timeout(TURN_MAX, &mut sending).await {
        Ok(sent) => sent,
        Err(_) => {
            drop(turn);
            sending.await
        }
    }
}

/// Serves one call of any other service.
async fn other(mut routes: Routes, request: HttpRequest<http2::Body>, mut call: CallResponse) {
    let answer = routes.call(request.map(|body| Body::new(Incoming(body))));
    let answer = tokio::time::timeout(ANSWER_LIMIT, AssertUnwindSafe(answer).catch_unwind());
    let response = match answer.await {
        Ok(Ok(Ok(response))) => response,
        Ok(Err(_)) => {
            let text = format!("{}: {}", codes::STREAM_FAULT, codes::STREAM_FAULT.title);
            return ResponseSender::refuse(call, Status::internal(text));
        }
        Err(_) => {
            let text = "no whole request within 30 s";
            return ResponseSender::refuse(call, Status::deadline_exceeded(text));
        }
    };
    let (head, mut body) = response.into_parts();
    let is_all = hyper::body::Body::is_end_stream(&body);
    let head = http::Response::from_parts(head, ());
    if is_all {
        let _ = call.send_head(&head, true);
        return;
    }
    let Ok(mut responses) = ResponseSender::begin_with(call, &head) else { return };
    loop {
        let frame = tokio::select! {
            frame = body.frame() => frame,
            () = responses.gone() => return,
        };
        let Some(Ok(frame)) = frame else { break };
        match frame.into_data() {
            Ok(data) => {
                let mut rope = Rope::default();
                rope.put_shared(&data);
                if responses.send(rope).await.is_err() {
                    return;
                }
            }
            Err(frame) => {
                if let Ok(trailers) = frame.into_trailers() {
                    return responses.end_with(&trailers);
                }
            }
        }
    }
    responses.end_with(&HeaderMap::new());
}

/// The body of a request, as tonic reads it.
struct Incoming(http2::Body);

impl hyper::body::Body for Incoming {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        self.0.poll_data().map(|data| match data {
            Ok(data) => data.map(|data| Ok(Frame::data(data.into()))),
            Err(CallOver) => Some(Err(io::ErrorKind::ConnectionReset.into())),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end()
    }
}
