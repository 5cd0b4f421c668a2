//! The ADS server: mTLS connections in, streams out. Moves bytes and bounds what a peer may cost.
//!
//! Accepts by itself, so that every limit is set by hand and a connection can be ended when its
//! certificate does. A panic ends its own connection.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::marker::PhantomData;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use futures::stream::unfold;
use http::{Request as HttpRequest, Response as HttpResponse};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use prost::Message;
use strait_proto::envoy::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};
use strait_proto::istio::auth::istio_certificate_service_server::IstioCertificateServiceServer;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::server::{Grpc, StreamingService};
use tonic::service::Routes;
use tonic::{Status, Streaming};
use tower::Service;
use tracing::{debug, warn};

use super::connections::Connections;
use super::generate::Cache;
use super::session::Response;
use super::stats::Stats;
use super::stream::{Request, Stall, Stream};
use crate::identity::{CertificateService, PeerIdentity, ServerIdentity, tls};
use crate::push::PushContext;
use crate::push::interest::Interest;
use crate::task::Supervisor;

/// A handshake must be over by then.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// Handshakes at once: they are what costs.
const HANDSHAKES_MAX: usize = 64;
/// Unfinished handshakes from one address; the others of that address must wait for nobody.
const HANDSHAKES_PER_SOURCE_MAX: usize = 64;
/// A response that the peer takes nothing of for this long ends the connection.
const STALL_LIMIT: Duration = Duration::from_secs(30);
/// Connections are told to reconnect after this long, give or take a fifth, so that load spreads.
const AGE_MAX: Duration = Duration::from_secs(30 * 60);
/// How long a connection that was told so may linger.
const AGE_GRACE: Duration = Duration::from_secs(30);
/// A draining server ends about so many streams in a second, so that those who take them over aren't
/// overrun, but spreads the ends over no more than this.
const DRAIN_PER_SECOND: f64 = 100.0;
const DRAIN_SPREAD_MAX: Duration = Duration::from_secs(10);
/// The largest request.
const REQUEST_BYTES_MAX: usize = 4 << 20;
/// How long to rest when the system can't accept, at first and at most.
const ACCEPT_PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));

const DELTA_PATH: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";
const SOTW_PATH: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";

/// What the server needs.
pub struct Config {
    /// The current version of the mesh; `None` until it is complete.
    pub context: watch::Receiver<Option<Arc<PushContext>>>,
    /// Who watches what.
    pub interest: Arc<Interest>,
    /// Who we are and whom we believe.
    pub identity: watch::Receiver<Arc<ServerIdentity>>,
    /// The trust domain for which certificates are issued.
    pub trust_domain: Arc<str>,
    /// Who is connected.
    pub connections: Arc<Connections>,
    /// What is counted.
    pub stats: Arc<Stats>,
    /// The most connections at once.
    pub max_connections: usize,
    /// Cancelled when streams shall end.
    pub drain: CancellationToken,
}

/// What all connections share.
pub(super) struct Shared {
    context: watch::Receiver<Option<Arc<PushContext>>>,
    pub(super) interest: Arc<Interest>,
    identity: watch::Receiver<Arc<ServerIdentity>>,
    pub(super) connections: Arc<Connections>,
    pub(super) stats: Arc<Stats>,
    pub(super) cache: Cache,
    drain: CancellationToken,
    started: Instant,
    handshakes: Arc<Semaphore>,
    sources: Mutex<HashMap<IpAddr, usize>>,
}

/// Why a stream must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    Drain,
    CertificateExpired,
    RootsChanged,
}

impl Ending {
    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::Drain => "drain",
            Self::CertificateExpired => "certificate expired",
            Self::RootsChanged => "roots changed",
        }
    }

    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Drain => "this server is going away; reconnect",
            Self::CertificateExpired => {
                "STR0704: the client certificate has ended; reconnect with a new one"
            }
            Self::RootsChanged => {
                "STR0707: the client certificate no longer chains to a trusted root"
            }
        }
    }
}

impl Shared {
    pub(super) fn new(config: Config) -> Self {
        Self {
            context: config.context,
            interest: config.interest,
            identity: config.identity,
            connections: config.connections,
            stats: config.stats,
            cache: Cache::default(),
            drain: config.drain,
            started: Instant::now(),
            handshakes: Arc::new(Semaphore::new(HANDSHAKES_MAX)),
            sources: Mutex::default(),
        }
    }

    pub(super) fn context(&self) -> Option<Arc<PushContext>> {
        self.context.borrow().clone()
    }

    pub(super) fn millis(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Waits until a stream of this peer must end. `believed` is the generation of the roots under
    /// which its certificate was last verified.
    pub(super) async fn ended(self: Arc<Self>, peer: Arc<PeerIdentity>, believed: u64) -> Ending {
        let life = peer.not_after().duration_since(SystemTime::now()).unwrap_or_default();
        let mut identity = self.identity.clone();
        let distrusted = async {
            let mut believed = believed;
            // Verifying costs as much as a handshake: only when the roots have changed.
            while let Ok(now) = identity.wait_for(|now| now.trust_generation != believed).await {
                believed = now.trust_generation;
                if !now.still_trusts(&peer, SystemTime::now()) {
                    return;
                }
            }
            std::future::pending::<()>().await;
        };
        let drained = async {
            self.drain.cancelled().await;
            let spread = drain_spread(self.connections.len());
            tokio::time::sleep(spread.mul_f64(rand::random::<f64>())).await;
        };
        tokio::select! {
            () = drained => Ending::Drain,
            () = tokio::time::sleep(life) => Ending::CertificateExpired,
            () = distrusted => Ending::RootsChanged,
        }
    }
}

/// Over how long the ends of so many streams are spread.
fn drain_spread(streams: usize) -> Duration {
    Duration::from_secs_f64(streams as f64 / DRAIN_PER_SECOND).min(DRAIN_SPREAD_MAX)
}

/// Accepts connections until the server drains.
pub async fn serve(listener: TcpListener, config: Config, tasks: Supervisor) {
    let trust_domain = Arc::clone(&config.trust_domain);
    let certificates = CertificateService::new(config.identity.clone(), trust_domain);
    let routes = Routes::new(IstioCertificateServiceServer::new(certificates)).prepare();
    let room = Arc::new(Semaphore::new(config.max_connections));
    let shared = Arc::new(Shared::new(config));
    let mut pause = ACCEPT_PAUSE.0;
    loop {
        let accepted = tokio::select! {
            () = shared.drain.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((socket, peer)) => {
                pause = ACCEPT_PAUSE.0;
                shared.stats.connections.fetch_add(1, Ordering::Relaxed);
                let Ok(permit) = Arc::clone(&room).try_acquire_owned() else {
                    shared.stats.handshake_failed("too many connections");
                    continue;
                };
                let Some(source) = Source::enter(&shared, peer.ip()) else {
                    shared.stats.handshake_failed("too many handshakes");
                    continue;
                };
                let connection =
                    Connection { shared: Arc::clone(&shared), peer, routes: routes.clone() };
                tasks.spawn("connection", connection.run(socket, source, permit));
            }
            Err(error) => {
                shared.stats.accept_errors.fetch_add(1, Ordering::Relaxed);
                debug!(%error, "can't accept");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(ACCEPT_PAUSE.1);
            }
        }
    }
}

/// An unfinished handshake of one address.
struct Source {
    shared: Arc<Shared>,
    address: IpAddr,
}

impl Source {
    fn enter(shared: &Arc<Shared>, address: IpAddr) -> Option<Self> {
        let mut sources = shared.sources.lock().unwrap_or_else(PoisonError::into_inner);
        let count = sources.entry(address).or_default();
        if *count >= HANDSHAKES_PER_SOURCE_MAX {
            return None;
        }
        *count += 1;
        Some(Self { shared: Arc::clone(shared), address })
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        let mut sources = self.shared.sources.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = sources.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                sources.remove(&self.address);
            }
        }
    }
}

/// Who is at the other end of a connection.
#[derive(Debug)]
pub(super) struct Peer {
    /// What its certificate proved.
    pub(super) identity: Arc<PeerIdentity>,
    /// The generation of the roots that vouched for it.
    pub(super) believed: u64,
}

/// One connection.
struct Connection {
    shared: Arc<Shared>,
    peer: SocketAddr,
    routes: Routes,
}

impl Connection {
    async fn run(self, socket: TcpStream, source: Source, _room: OwnedSemaphorePermit) {
        let handshake = tokio::time::timeout(HANDSHAKE_LIMIT, self.handshake(socket)).await;
        drop(source);
        match handshake {
            Ok(Ok((stream, peer))) => self.serve(stream, Arc::new(peer)).await,
            Ok(Err(reason)) => {
                self.shared.stats.handshake_failed("refused");
                warn!(code = "STR0707", peer = %self.peer, "TLS handshake failed: {reason}");
            }
            Err(_) => {
                self.shared.stats.handshake_failed("timeout");
                debug!(peer = %self.peer, "TLS handshake took too long");
            }
        }
    }

    async fn handshake(&self, socket: TcpStream) -> Result<(TlsStream<TcpStream>, Peer), String> {
        let _permit = self.shared.handshakes.acquire().await.map_err(|error| error.to_string())?;
        let _ = socket.set_nodelay(true);
        let (config, believed) = {
            let identity = self.shared.identity.borrow();
            (Arc::clone(&identity.server_config), identity.trust_generation)
        };
        let stream = TlsAcceptor::from(config)
            .accept(socket)
            .await
            .map_err(|error: io::Error| tls::failure(&error))?;
        let identity = tls::peer(stream.get_ref().1).map_err(|error| error.to_string())?;
        Ok((stream, Peer { identity: Arc::new(identity), believed }))
    }

    async fn serve(self, stream: TlsStream<TcpStream>, peer: Arc<Peer>) {
        let stall = Arc::new(Stall::default());
        let service = {
            let (shared, stall) = (Arc::clone(&self.shared), Arc::clone(&stall));
            let (peer, routes) = (Arc::clone(&peer), self.routes.clone());
            service_fn(move |request| {
                answer(
                    Arc::clone(&shared),
                    Arc::clone(&peer),
                    Arc::clone(&stall),
                    routes.clone(),
                    request,
                )
            })
        };
        let mut http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        http.timer(TokioTimer::new())
            .max_concurrent_streams(16)
            .max_pending_accept_reset_streams(20)
            .max_local_error_reset_streams(1024)
            .max_header_list_size(8 << 10)
            .max_frame_size(16 << 10)
            .initial_stream_window_size(256 << 10)
            .initial_connection_window_size(1 << 20)
            .max_send_buf_size(256 << 10)
            .keep_alive_interval(Duration::from_secs(20))
            .keep_alive_timeout(Duration::from_secs(10));
        let connection = http.serve_connection(TokioIo::new(stream), service);
        tokio::pin!(connection);
        let age = AGE_MAX.mul_f64(0.8 + 0.4 * rand::random::<f64>());
        let ended = tokio::select! {
            ended = connection.as_mut() => Some(ended),
            () = tokio::time::sleep(age) => None,
            () = self.shared.drain.cancelled() => None,
            // No new stream, and no certificate either, for a peer that is not believed any more.
            ending = Arc::clone(&self.shared).ended(Arc::clone(&peer.identity), peer.believed) => {
                debug!(peer = %self.peer, reason = ending.reason(), "connection ends");
                None
            }
            () = stalled(&self.shared, &stall) => {
                self.shared.stats.closed("stalled");
                warn!(peer = %self.peer, identity = %peer.identity.id(), "the proxy reads nothing; its connection is closed");
                return;
            }
        };
        let ended = match ended {
            Some(ended) => ended,
            None => {
                // GOAWAY: Envoy opens a new connection while this one ends.
                connection.as_mut().graceful_shutdown();
                match tokio::time::timeout(AGE_GRACE, connection).await {
                    Ok(ended) => ended,
                    Err(_) => return,
                }
            }
        };
        if let Err(error) = ended {
            debug!(peer = %self.peer, %error, "connection ended");
        }
    }
}

/// Waits until the peer has taken nothing of a response for too long.
async fn stalled(shared: &Shared, stall: &Stall) {
    let limit = u64::try_from(STALL_LIMIT.as_millis()).unwrap_or(u64::MAX);
    loop {
        tokio::time::sleep(STALL_LIMIT / 6).await;
        if stall.since_millis().is_some_and(|since| shared.millis().saturating_sub(since) > limit) {
            return;
        }
    }
}

async fn answer(
    shared: Arc<Shared>,
    peer: Arc<Peer>,
    stall: Arc<Stall>,
    mut routes: Routes,
    mut request: HttpRequest<Incoming>,
) -> Result<HttpResponse<Body>, Infallible> {
    // The path is compared as it came: nothing before this may have judged another one.
    match request.uri().path() {
        DELTA_PATH => Ok(ads::<DeltaDiscoveryRequest>(shared, peer, stall, request).await),
        SOTW_PATH => Ok(ads::<DiscoveryRequest>(shared, peer, stall, request).await),
        _ => {
            request.extensions_mut().insert(PeerIdentity::clone(&peer.identity));
            routes.call(request.map(Body::new)).await
        }
    }
}

async fn ads<R: Request + Message + Default>(
    shared: Arc<Shared>,
    peer: Arc<Peer>,
    stall: Arc<Stall>,
    request: HttpRequest<Incoming>,
) -> HttpResponse<Body> {
    Grpc::new(AdsCodec::<R>(PhantomData))
        .apply_max_message_size_config(Some(REQUEST_BYTES_MAX), None)
        .streaming(Ads { shared, peer, stall, form: PhantomData }, request)
        .await
}

/// The handler of one ADS call.
struct Ads<R> {
    shared: Arc<Shared>,
    peer: Arc<Peer>,
    stall: Arc<Stall>,
    form: PhantomData<fn(R)>,
}

type Responses = Pin<Box<dyn futures::Stream<Item = Result<Response, Status>> + Send>>;

impl<R: Request> StreamingService<R> for Ads<R> {
    type Response = Response;
    type ResponseStream = Responses;
    type Future = std::future::Ready<Result<tonic::Response<Responses>, Status>>;

    fn call(&mut self, request: tonic::Request<Streaming<R>>) -> Self::Future {
        if self.shared.context().is_none() {
            let text = "the mesh is not known completely yet; try again";
            return std::future::ready(Err(Status::unavailable(text)));
        }
        let stream = Stream::new(
            Arc::clone(&self.shared),
            &self.peer,
            request.into_inner(),
            Arc::clone(&self.stall),
        );
        let responses = unfold(Some(stream), |stream| async {
            let mut stream = stream?;
            match stream.next().await? {
                Ok(response) => Some((Ok(response), Some(stream))),
                Err(status) => Some((Err(status), None)),
            }
        });
        std::future::ready(Ok(tonic::Response::new(Box::pin(responses))))
    }
}

/// Requests by prost, responses written straight from shared bytes.
struct AdsCodec<R>(PhantomData<fn(R)>);

impl<R: Request + Message + Default> Codec for AdsCodec<R> {
    type Encode = Response;
    type Decode = R;
    type Encoder = ResponseEncoder;
    type Decoder = RequestDecoder<R>;

    fn encoder(&mut self) -> ResponseEncoder {
        ResponseEncoder
    }

    fn decoder(&mut self) -> RequestDecoder<R> {
        RequestDecoder(PhantomData)
    }
}

/// Small buffers while idle: there is one pair for each proxy.
fn buffers() -> BufferSettings {
    BufferSettings::new(512, 32 << 10)
}

struct ResponseEncoder;

impl Encoder for ResponseEncoder {
    type Item = Response;
    type Error = Status;

    fn encode(&mut self, response: Response, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.reserve(response.encoded_len());
        response.encode(out);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        buffers()
    }
}

struct RequestDecoder<R>(PhantomData<fn(R)>);

impl<R: Message + Default> Decoder for RequestDecoder<R> {
    type Item = R;
    type Error = Status;

    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<R>, Status> {
        R::decode(bytes)
            .map(Some)
            .map_err(|error| Status::invalid_argument(format!("STR0502: not a request: {error}")))
    }

    fn buffer_settings(&self) -> BufferSettings {
        buffers()
    }
}
