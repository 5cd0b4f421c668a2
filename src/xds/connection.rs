//! One connection: TLS, then HTTP/2 with every limit set by hand, then calls.
//!
//! One task does it all, streams included: a change wakes it once and leaves in the same turn. ADS is
//! served by [`super::stream`] over [`super::grpc`], everything else by tonic. Ends when its peer may no
//! longer be served, or no longer listens.

use std::io;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::stream::{FuturesUnordered, StreamExt};
use h2::server::{Builder, SendResponse};
use h2::{Ping, PingPong, RecvStream};
use http::{HeaderMap, Request as HttpRequest};
use http_body_util::BodyExt;
use hyper::body::Frame;
use strait_proto::envoy::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::Status;
use tonic::body::Body;
use tonic::service::Routes;
use tower::Service;
use tracing::{debug, warn};

use super::grpc::{self, Requests, Responses, SendError};
use super::handshakes::Place;
use super::rope::{Chunk, Rope};
use super::server::{Leaving, Line, Shared};
use super::stream::{Ended, Request, Stream, contained};
use crate::codes;
use crate::identity::{PeerIdentity, tls};

/// A connection waits this long for the turn of its handshake.
const TURN_LIMIT: Duration = Duration::from_secs(30);
/// A handshake must be over by then, and once more that of HTTP/2.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// Connections are told to reconnect after this long, give or take a fifth, so that load spreads.
const AGE_MAX: Duration = Duration::from_secs(30 * 60);
/// How long a connection that was told so may linger.
const AGE_GRACE: Duration = Duration::from_secs(30);
/// A peer is asked this often whether it is there, and must answer within the limit.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_LIMIT: Duration = Duration::from_secs(10);
/// How long another service than ADS may take to begin its answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// What is handed to HTTP/2 of one stream before the socket has taken it.
const SEND_BUFFER: usize = 64 << 10;

const DELTA_PATH: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";
const SOTW_PATH: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";

/// An accepted connection.
pub(super) struct Connection {
    pub(super) shared: Arc<Shared>,
    pub(super) address: SocketAddr,
    pub(super) routes: Routes,
    /// Its share of how many there may be, for as long as it lasts.
    pub(super) _room: OwnedSemaphorePermit,
}

/// What becomes of the connection when one of its calls has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    GoOn,
    Close,
}

type Call = Pin<Box<dyn Future<Output = After> + Send>>;

impl Connection {
    pub(super) async fn run(self, socket: TcpStream, mut place: Place) {
        let stats = &self.shared.stats;
        if tokio::time::timeout(TURN_LIMIT, place.turn()).await.is_err() {
            stats.handshake_failed("no turn");
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
                warn!(code = "STR0707", peer = %self.address, "TLS handshake failed: {reason}");
            }
            Err(_) => {
                stats.handshake_failed("timeout");
                debug!(peer = %self.address, "TLS handshake took too long");
            }
        }
    }

    async fn handshake(&self, socket: TcpStream) -> Result<(TlsStream<TcpStream>, Line), String> {
        let _ = socket.set_nodelay(true);
        let (config, believed) = {
            let identity = self.shared.identity.borrow();
            (Arc::clone(&identity.server_config), identity.trust_generation)
        };
        let stream = TlsAcceptor::from(config)
            .accept(socket)
            .await
            .map_err(|error: io::Error| tls::failure(&error))?;
        let peer = tls::peer(stream.get_ref().1).map_err(|error| error.to_string())?;
        Ok((stream, Line::new(Arc::new(peer), believed)))
    }

    async fn serve(self, stream: TlsStream<TcpStream>, line: Arc<Line>) {
        let preface = limits().handshake::<_, Chunk>(stream);
        let mut http = match tokio::time::timeout(HANDSHAKE_LIMIT, preface).await {
            Ok(Ok(http)) => http,
            Ok(Err(error)) => return debug!(peer = %self.address, %error, "no HTTP/2"),
            Err(_) => return debug!(peer = %self.address, "HTTP/2 took too long to begin"),
        };
        let deaf = keep_alive(http.ping_pong());
        tokio::pin!(deaf);
        let age = AGE_MAX.mul_f64(0.8 + 0.4 * rand::random::<f64>());
        let left = Arc::clone(&self.shared).left(Arc::clone(&line.peer), line.believed, age);
        let mut course: Pin<Box<dyn Future<Output = Option<Leaving>> + Send>> =
            Box::pin(left.map(Some));
        let mut calls = FuturesUnordered::<Call>::new();
        loop {
            tokio::select! {
                biased;
                Some(after) = calls.next() => if after == After::Close {
                    return;
                },
                accepted = http.accept() => match accepted {
                    Some(Ok((request, call))) => calls.push(self.answer(&line, request, call)),
                    Some(Err(error)) => {
                        return debug!(peer = %self.address, %error, "connection ended");
                    }
                    None => return,
                },
                leaving = &mut course => match leaving {
                    Some(leaving) => {
                        // GOAWAY: Envoy opens a new connection while this one ends.
                        debug!(peer = %self.address, ?leaving, "connection ends");
                        http.graceful_shutdown();
                        course = Box::pin(linger(leaving, Arc::clone(&line)).map(|()| None));
                    }
                    None => return,
                },
                () = &mut deaf => {
                    self.shared.stats.closed("deaf");
                    return debug!(peer = %self.address, "the peer answers no ping");
                }
            }
        }
    }

    fn answer(
        &self,
        line: &Arc<Line>,
        mut request: HttpRequest<RecvStream>,
        call: SendResponse<Chunk>,
    ) -> Call {
        let shared = Arc::clone(&self.shared);
        // The path is compared as it came: nothing before this may have judged another one.
        match request.uri().path() {
            DELTA_PATH => {
                Box::pin(ads::<DeltaDiscoveryRequest>(shared, Arc::clone(line), request, call))
            }
            SOTW_PATH => Box::pin(ads::<DiscoveryRequest>(shared, Arc::clone(line), request, call)),
            _ => {
                request.extensions_mut().insert(PeerIdentity::clone(&line.peer));
                Box::pin(other(self.routes.clone(), request, call).map(|()| After::GoOn))
            }
        }
    }
}

/// Every limit that a peer meets, whatever h2's defaults become.
fn limits() -> Builder {
    let mut limits = Builder::new();
    limits
        .max_concurrent_streams(16)
        .max_concurrent_reset_streams(16)
        .max_pending_accept_reset_streams(20)
        .max_local_error_reset_streams(Some(1024))
        .max_header_list_size(8 << 10)
        .max_frame_size(16 << 10)
        .initial_window_size(256 << 10)
        .initial_connection_window_size(1 << 20)
        .max_send_buffer_size(SEND_BUFFER);
    limits
}

/// Ends when the peer is no longer there.
async fn keep_alive(pings: Option<PingPong>) {
    let Some(mut pings) = pings else { return std::future::pending().await };
    loop {
        tokio::time::sleep(PING_INTERVAL).await;
        let pong = tokio::time::timeout(PING_LIMIT, pings.ping(Ping::opaque())).await;
        if !matches!(pong, Ok(Ok(_))) {
            return;
        }
    }
}

/// Ends when a connection that takes no new streams has lingered long enough.
async fn linger(leaving: Leaving, line: Arc<Line>) {
    if let Leaving::Ends(ending, after) = leaving {
        tokio::time::sleep(after).await;
        line.end(ending);
    }
    tokio::time::sleep(AGE_GRACE).await;
}

/// Serves one ADS stream.
async fn ads<R: Request>(
    shared: Arc<Shared>,
    line: Arc<Line>,
    request: HttpRequest<RecvStream>,
    mut call: SendResponse<Chunk>,
) -> After {
    if let Some(refusal) = grpc::refusal(&request) {
        let _ = call.send_response(refusal, true);
        return After::GoOn;
    }
    if shared.context().is_none() {
        let text = "the mesh is not known completely yet; try again";
        Responses::refuse(call, Status::unavailable(text));
        return After::GoOn;
    }
    let Ok(mut responses) = Responses::begin(call) else { return After::GoOn };
    let mut requests = Requests::<R>::new(request.into_body());
    let mut stream = Stream::new(Arc::clone(&shared), Arc::clone(&line), R::FORM);
    loop {
        match step(&mut stream, &mut requests, &mut responses).await {
            Ok(Ok(())) => {}
            Ok(Err(Ended { reason, status })) => {
                shared.stats.closed(reason);
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
                let identity = line.peer.id();
                warn!(%identity, "the proxy reads nothing; its connection is closed");
                return After::Close;
            }
        }
    }
}

/// Sends what is due next. Nothing is made before there is room for it: a slow client gets the newest.
async fn step<R: Request>(
    stream: &mut Stream,
    requests: &mut Requests<R>,
    responses: &mut Responses,
) -> Result<Result<(), Ended>, SendError> {
    if let Err(ended) = contained(stream.until_due(requests)).await {
        return Ok(Err(ended));
    }
    responses.room().await?;
    match contained(async { Ok(stream.responses()) }).await {
        Ok(messages) => responses.send(messages).await.map(Ok),
        Err(ended) => Ok(Err(ended)),
    }
}

/// Serves one call of any other service.
async fn other(
    mut routes: Routes,
    request: HttpRequest<RecvStream>,
    mut call: SendResponse<Chunk>,
) {
    let answer = routes.call(request.map(|body| Body::new(Incoming(body))));
    let answer = tokio::time::timeout(ANSWER_LIMIT, AssertUnwindSafe(answer).catch_unwind());
    let response = match answer.await {
        Ok(Ok(Ok(response))) => response,
        Ok(Err(_)) => {
            let text = format!("{}: {}", codes::STREAM_FAULT, codes::STREAM_FAULT.title);
            return Responses::refuse(call, Status::internal(text));
        }
        Err(_) => {
            let text = "no whole request within 30 s";
            return Responses::refuse(call, Status::deadline_exceeded(text));
        }
    };
    let (head, mut body) = response.into_parts();
    let is_all = hyper::body::Body::is_end_stream(&body);
    let Ok(stream) = call.send_response(http::Response::from_parts(head, ()), is_all) else {
        return;
    };
    let mut responses = Responses::of(stream);
    if is_all {
        return;
    }
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
                    return responses.end_with(trailers);
                }
            }
        }
    }
    responses.end_with(HeaderMap::new());
}

/// The body of a request, as tonic reads it.
struct Incoming(RecvStream);

impl hyper::body::Body for Incoming {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        match self.0.poll_data(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some(Ok(data))) => {
                let _ = self.0.flow_control().release_capacity(data.len());
                Poll::Ready(Some(Ok(Frame::data(data))))
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(error))),
            Poll::Ready(None) => match self.0.poll_trailers(context) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(Ok(Some(trailers))) => Poll::Ready(Some(Ok(Frame::trailers(trailers)))),
                Poll::Ready(Ok(None)) => Poll::Ready(None),
                Poll::Ready(Err(error)) => Poll::Ready(Some(Err(error))),
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }
}
