//! One connection: TLS, then HTTP/2 with explicit limits, then calls.
//!
//! A single task handles the connection and its streams: a change wakes it once and is sent in the
//! same poll. [`super::stream`] serves ADS over [`super::grpc`]; tonic serves all other calls. The
//! connection ends when its peer may no longer be served, or no longer responds.

use std::io;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::poll_fn;
use futures::stream::{FuturesUnordered, StreamExt};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Request as HttpRequest, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Frame;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::rustls::server::Acceptor;
use tokio_rustls::server::TlsStream;
use tonic::Status;
use tonic::body::Body;
use tonic::service::Routes;
use tower::Service;
use tracing::{debug, warn};

use super::grpc::{self, Requests, ResponseSender, SendError};
use super::handshakes::HandshakePermit;
use super::relays::{self, RelayPort};
use super::replicas::ReplicaConnection;
use super::shared::{ConnectionShared, Leaving, ServerShared};
use super::stats::FAILED_REPLICA;
use super::stream::{Stream, StreamEnd, contained};
use super::sync_limiter::{SyncPermit, TURN_MAX};
use strait_base::codes;
use strait_base::descriptors::Seat;
use strait_http2::{self as http2, CallOver, CallResponse, ConnectionEnd, Rope};
use strait_identity::caller::brings_token;
use strait_identity::replica::{self, ReplicaStream};
use strait_identity::{Caller, ConnectionPeer, RelayIdentity, SpiffeId, tls};
use strait_xds::session::ProtocolForm;

/// The time limit for the start of a handshake.
const TURN_LIMIT: Duration = Duration::from_secs(30);
/// The time limit for the TLS handshake, and again for that of HTTP/2.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// The time limit for the first authenticated call of a peer without a certificate.
const STRANGER_LIMIT: Duration = Duration::from_secs(10);
/// The age at which the peer is asked to reconnect, varied by up to 20 % so that the load is
/// spread.
const AGE_MAX: Duration = Duration::from_secs(30 * 60);
/// The time for which a connection may remain open after it was asked to reconnect.
const AGE_GRACE: Duration = Duration::from_secs(30);
/// The interval of pings. The peer must answer within [`PING_LIMIT`].
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_LIMIT: Duration = Duration::from_secs(10);
/// The time limit for the first response of a service other than ADS.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// The time limit for closing a connection in an orderly way.
const GOODBYE_LIMIT: Duration = Duration::from_secs(1);
/// The number of times that the output is filled before other connections are served: 248 KiB in
/// total.
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
    /// The permits for the connection, released when it ends. `None` if it needs none
    /// ([`super::offline`]).
    pub(super) room: Option<(OwnedSemaphorePermit, Seat)>,
}

/// The peer of a connection after its handshake.
enum AcceptedPeer {
    /// A peer that makes calls.
    Calls(Secured, ConnectionShared),
    /// The relay of a member, to which the server sends requests.
    Relay(Secured, RelayIdentity),
    /// Another replica of this control plane.
    Replica(ReplicaStream),
}

/// How the connection continues after a call has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    GoOn,
    Close,
}

type CallFuture = Pin<Box<dyn Future<Output = After> + Send>>;

/// Boxed, because futures contain it in several places while it is passed on.
type Secured = Box<TlsStream<TcpStream>>;

/// An event that a connection waits for, in addition to the peer's messages. Each event is woken
/// separately.
type Watch = Pin<Box<dyn Future<Output = Notice> + Send>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Notice {
    /// The time limit for the beginning of HTTP/2 has passed.
    Begun,
    /// The time limit for an authenticated call has passed.
    Strange,
    /// The peer did not answer a ping.
    Deaf,
    /// The connection must stop accepting new calls.
    Leaving(Leaving),
    /// The time for the end of existing calls has passed.
    Over,
}

/// The reason why a connection is no longer served.
#[derive(Debug)]
enum Done {
    /// The peer is sent the reason.
    Ended(ConnectionEnd),
    /// Everything has been sent.
    Over,
}

/// A handshake that failed.
struct HandshakeFailure {
    /// The reason in the metric.
    counted_as: &'static str,
    /// The reason in words.
    text: String,
}

impl HandshakeFailure {
    fn refused(text: String) -> Self {
        Self { counted_as: "refused", text }
    }
}

impl AcceptedConnection {
    pub(super) async fn run(self, socket: TcpStream, mut place: HandshakePermit) {
        let stats = &self.shared.stats;
        if tokio::time::timeout(TURN_LIMIT, place.turn()).await.is_err() {
            stats.handshake_failed("no turn");
            self.shared.failures.note(self.address, "no turn");
            return;
        }
        // Boxed, so that its memory is released when it completes. The memory of the task stays
        // allocated.
        let handshake = Box::pin(self.handshake(socket));
        let handshake = tokio::time::timeout(HANDSHAKE_LIMIT, handshake).await;
        drop(place);
        match handshake {
            Ok(Ok(AcceptedPeer::Replica(stream))) => self.hand_over(stream),
            Ok(Ok(AcceptedPeer::Calls(stream, line))) => {
                Box::pin(self.serve(stream, Arc::new(line))).await;
            }
            Ok(Ok(AcceptedPeer::Relay(stream, relay))) => match self.shared.relays.clone() {
                Some(relays) => relays.serve(stream, relay, self.address).await,
                None => self.shared.failures.note(self.address, "relays are not served here"),
            },
            Ok(Err(failure)) => {
                stats.handshake_failed(failure.counted_as);
                self.shared.failures.note(self.address, &failure.text);
            }
            Err(_) => {
                stats.handshake_failed("timeout");
                self.shared.failures.note(self.address, "it took too long");
            }
        }
    }

    /// Passes the connection of another replica on. It is closed if too many are waiting.
    fn hand_over(self, stream: ReplicaStream) {
        if let (Some(replicas), Some(room)) = (&self.shared.replicas, self.room) {
            let _ = replicas.accepted.try_send(ReplicaConnection { stream, room });
        }
    }

    async fn handshake(&self, socket: TcpStream) -> Result<AcceptedPeer, HandshakeFailure> {
        let _ = socket.set_nodelay(true);
        let failure = |error: io::Error| HandshakeFailure::refused(tls::failure(&error));
        let start = LazyConfigAcceptor::new(Acceptor::default(), socket).await.map_err(failure)?;
        let offers_replica = start
            .client_hello()
            .alpn()
            .is_some_and(|mut protocols| protocols.any(|protocol| protocol == replica::ALPN));
        if offers_replica
            && let Some(config) =
                self.shared.replicas.as_ref().and_then(|port| port.authenticator.server_config())
        {
            self.shared.stats.replica_connections.fetch_add(1, Ordering::Relaxed);
            let failure = |error: io::Error| HandshakeFailure {
                counted_as: FAILED_REPLICA,
                text: tls::failure(&error),
            };
            let stream = start.into_stream(config).await.map_err(failure)?;
            let peer = replica::peer_name(stream.get_ref().1.peer_certificates());
            let peer = peer.map_err(failure)?;
            return Ok(AcceptedPeer::Replica(ReplicaStream { peer, io: Box::pin(stream) }));
        }
        let (config, believed) = {
            let identity = self.shared.identity.borrow();
            (Arc::clone(&identity.server_config), identity.trust_generation)
        };
        let mut stream = start.into_stream(config).await.map_err(failure)?;
        stream.get_mut().1.set_buffer_limit(Some(http2::WRITE_MAX));
        let peer = tls::peer(stream.get_ref().1)
            .map_err(|error| HandshakeFailure::refused(error.to_string()))?;
        let (peer, relay) = match peer {
            ConnectionPeer::Relay(relay) => {
                return Ok(AcceptedPeer::Relay(Box::new(stream), relay));
            }
            ConnectionPeer::Workload(peer) => (Some(Arc::new(peer)), None),
            ConnectionPeer::EnrolledRelay(relay) => (None, Some(Arc::new(relay))),
            ConnectionPeer::Unknown => (None, None),
        };
        let line = ConnectionShared::new(self.address, peer, relay, believed);
        Ok(AcceptedPeer::Calls(Box::new(stream), line))
    }

    /// Serves the calls of a peer after its handshake.
    pub(super) async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
        self,
        stream: S,
        line: Arc<ConnectionShared>,
    ) {
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

    /// Performs all possible work: handles events, receives, polls the calls, and sends.
    fn turn<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        context: &mut Context<'_>,
        line: &Arc<ConnectionShared>,
        http: &mut http2::Http2Connection<S>,
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
                            "closing connection: nothing received from the proxy for 10 s"
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
            // Receives everything before calls are polled, so that an answer causes only one poll
            // of the call.
            while let Poll::Ready(received) = http.poll_receive(context) {
                if let Err(end) = received {
                    return Poll::Ready(Done::Ended(end));
                }
            }
            while let Some((request, answer)) = http.accept() {
                calls.push(self.answer(line, request, answer));
            }
            let mut close = false;
            // The waker is that of this task, so each call may have work to do.
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
            if http.is_over() {
                return Poll::Ready(Done::Over);
            }
            if !freed {
                return Poll::Pending;
            }
        }
        // More can be sent, but other connections are served first.
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
        if request.uri().path().starts_with(relays::PATH_PREFIX) {
            let port = shared.relays.clone();
            return Box::pin(relay_request(port, line, request, call).map(|()| After::GoOn));
        }
        // Also with a token: the certificate of a relay permits only requests for certificates.
        if line.relay.is_some() {
            let (code, title) = (&codes::RELAY_CERTIFICATE, codes::RELAY_CERTIFICATE.title);
            let text = format!("{code}: {title}: a relay is not a proxy");
            ResponseSender::refuse(call, Status::permission_denied(text));
            return Box::pin(std::future::ready(After::GoOn));
        }
        // The caller is already known from the certificate, so no future for its identification is
        // needed.
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

/// Serves a call of an identified caller, or refuses the call.
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
    // The received path is compared without normalization. No earlier check may have used a
    // different form of it.
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

/// Returns when the peer does not answer a ping.
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

/// Returns when a connection that accepts no new streams has remained open long enough.
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
        let text = "the mesh is not completely known yet; try again";
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
                warn!(%identity, "closing connection: the proxy stopped reading");
                return After::Close;
            }
        }
    }
}

/// Sends the next due responses. No response is built before there is room for it, so a slow client
/// receives the newest version.
async fn step(
    stream: &mut Stream,
    requests: &mut Requests,
    responses: &mut ResponseSender,
) -> Result<Result<(), StreamEnd>, SendError> {
    if let Err(ended) = contained(poll_fn(|context| stream.poll_due(requests, context))).await {
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

/// Sends messages with the permit until [`TURN_MAX`] has passed, and the rest without it.
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

/// Answers one request of a relay for a certificate. It is not gRPC.
async fn relay_request(
    port: Option<Arc<dyn RelayPort>>,
    line: Arc<ConnectionShared>,
    request: HttpRequest<http2::Body>,
    call: CallResponse,
) {
    let (head, mut body) = request.into_parts();
    let answer = async {
        let mut read = Vec::new();
        while let Ok(Some(data)) = poll_fn(|_| body.poll_data()).await {
            read.extend_from_slice(&data);
            if read.len() >= relays::REQUEST_BYTES_MAX {
                read.truncate(relays::REQUEST_BYTES_MAX);
                break;
            }
        }
        match port {
            Some(port) => {
                let (path, relay) = (head.uri.path().to_owned(), line.relay.clone());
                port.answer(head.method, path, read.into(), relay, line.address).await
            }
            None => (StatusCode::NOT_FOUND, Bytes::new()),
        }
    };
    let answer = tokio::time::timeout(ANSWER_LIMIT, answer).await;
    let (status, body) = answer.unwrap_or((StatusCode::REQUEST_TIMEOUT, Bytes::new()));
    let mut head = http::Response::new(());
    *head.status_mut() = status;
    head.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let Ok(mut responses) = ResponseSender::begin_with(call, &head) else { return };
    let mut rope = Rope::default();
    rope.put_shared(&body);
    if responses.send(rope).await.is_ok() {
        responses.end_with(&HeaderMap::new());
    }
}

/// Serves one call of a service other than ADS.
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
            let text = "no complete request within 30 s";
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

/// The body of a request, in the form that tonic reads.
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
