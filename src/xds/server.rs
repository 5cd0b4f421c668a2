//! The ADS server: accepts connections, and bounds what strangers may cost.
//!
//! Owns what all connections share, and decides when one must end. What is said on a connection is
//! `xds::connection`'s, and on a stream `xds::stream`'s.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use strait_proto::health::health_server::HealthServer;
use strait_proto::istio::auth::istio_certificate_service_server::IstioCertificateServiceServer;
use tokio::net::TcpListener;
use tokio::sync::{Notify, Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

use super::connection::Connection;
use super::connections::Connections;
use super::generate::Cache;
use super::handshakes::{Failures, Handshakes};
use super::health::HealthService;
use super::lane::Lane;
use super::stats::Stats;
use crate::descriptors::{self, Descriptors, Port};
use crate::identity::{CertificateService, PeerIdentity, ServerIdentity};
use crate::push::PushContext;
use crate::push::interest::Interest;
use crate::task::Supervisor;

/// A draining server ends about so many streams in a second, so that those who take them over aren't
/// overrun, but spreads the ends over no more than this.
const DRAIN_PER_SECOND: f64 = 100.0;
const DRAIN_SPREAD_MAX: Duration = Duration::from_secs(10);
/// File descriptors that are kept for proxies, at most.
const RESERVE_MAX: usize = 64;
/// How long to rest between two words of handshakes that failed.
const FAILURES_PAUSE: Duration = Duration::from_secs(1);
/// How long to rest between two sweeps of what is encoded, each of which looks at all of it.
const SWEEP_PAUSE: Duration = Duration::from_secs(60);

/// What the server needs.
pub struct Config {
    /// The current version of the mesh; `None` until it is complete.
    pub context: watch::Receiver<Option<Arc<PushContext>>>,
    /// Who watches what.
    pub interest: Arc<Interest>,
    /// Who we are and whom we believe.
    pub identity: watch::Receiver<Arc<ServerIdentity>>,
    /// The trust domain for which certificates are issued.
    pub trust_domain: watch::Receiver<Option<Arc<str>>>,
    /// Who is connected.
    pub connections: Arc<Connections>,
    /// What is counted.
    pub stats: Arc<Stats>,
    /// What is encoded.
    pub cache: Arc<Cache>,
    /// The most connections at once.
    pub max_connections: usize,
    /// How the process fares with its file descriptors.
    pub descriptors: Arc<Descriptors>,
    /// Cancelled when streams shall end.
    pub drain: CancellationToken,
}

/// What all connections share.
pub(super) struct Shared {
    pub(super) context: watch::Receiver<Option<Arc<PushContext>>>,
    pub(super) interest: Arc<Interest>,
    pub(super) identity: watch::Receiver<Arc<ServerIdentity>>,
    pub(super) connections: Arc<Connections>,
    pub(super) stats: Arc<Stats>,
    pub(super) cache: Arc<Cache>,
    pub(super) lane: Lane,
    pub(super) failures: Failures,
    drain: CancellationToken,
    handshakes: Arc<Handshakes>,
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
            cache: config.cache,
            lane: Lane::default(),
            failures: Failures::default(),
            drain: config.drain,
            handshakes: Arc::new(Handshakes::of_limit()),
        }
    }

    pub(super) fn context(&self) -> Option<Arc<PushContext>> {
        self.context.borrow().clone()
    }

    /// Lets go of what is encoded and of no more use. That may take some milliseconds.
    async fn sweep(self: Arc<Self>) {
        if let Some(context) = self.context() {
            // A panic in it is its own affair.
            let _ = tokio::task::spawn_blocking(move || self.cache.sweep(&context)).await;
        }
    }

    /// Waits until a connection must be left, and says why. `peer` is who is at its other end, and
    /// `believed` the generation of the roots under which its certificate was last verified.
    pub(super) async fn left(
        self: Arc<Self>,
        peer: Arc<PeerIdentity>,
        believed: u64,
        age: Duration,
    ) -> Leaving {
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
        tokio::select! {
            () = self.drain.cancelled() => {
                let spread = drain_spread(self.connections.len());
                Leaving::Ends(Ending::Drain, spread.mul_f64(rand::random::<f64>()))
            }
            () = tokio::time::sleep(life) => {
                Leaving::Ends(Ending::CertificateExpired, Duration::ZERO)
            }
            () = distrusted => Leaving::Ends(Ending::RootsChanged, Duration::ZERO),
            () = tokio::time::sleep(age) => Leaving::Aged,
        }
    }
}

/// Why a connection takes no new streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leaving {
    /// It is old. Its streams may go on for a while.
    Aged,
    /// Its streams must end, after this long.
    Ends(Ending, Duration),
}

/// What the streams of one connection share.
#[derive(Debug)]
pub(super) struct Line {
    /// What the certificate at the other end proved.
    pub(super) peer: Arc<PeerIdentity>,
    /// The generation of the roots that vouched for it.
    pub(super) believed: u64,
    ending: OnceLock<Ending>,
    told: Notify,
    cut: OnceLock<&'static str>,
}

impl Line {
    pub(super) fn new(peer: Arc<PeerIdentity>, believed: u64) -> Self {
        Self { peer, believed, ending: OnceLock::new(), told: Notify::new(), cut: OnceLock::new() }
    }

    /// Notes why the connection is closed before anything more can be said on it.
    pub(super) fn note_cut(&self, reason: &'static str) {
        let _ = self.cut.set(reason);
    }

    /// Why it was, if it was.
    pub(super) fn cut(&self) -> Option<&'static str> {
        self.cut.get().copied()
    }

    /// Has all streams end. The first reason counts.
    pub(super) fn end(&self, ending: Ending) {
        let _ = self.ending.set(ending);
        self.told.notify_waiters();
    }

    /// Waits until streams must end.
    pub(super) async fn ended(&self) -> Ending {
        loop {
            // Listens before it looks, so that it misses nothing.
            let told = self.told.notified();
            if let Some(ending) = self.ending.get() {
                return *ending;
            }
            told.await;
        }
    }
}

/// Over how long the ends of so many streams are spread.
fn drain_spread(streams: usize) -> Duration {
    Duration::from_secs_f64(streams as f64 / DRAIN_PER_SECOND).min(DRAIN_SPREAD_MAX)
}

/// Accepts connections until the server drains.
pub async fn serve(listener: TcpListener, config: Config, tasks: Supervisor) {
    let certificates =
        CertificateService::new(config.identity.clone(), config.trust_domain.clone());
    let health = HealthService { context: config.context.clone(), drain: config.drain.clone() };
    let routes = Routes::new(IstioCertificateServiceServer::new(certificates))
        .add_service(HealthServer::new(health))
        .prepare();
    let room = Arc::new(Semaphore::new(config.max_connections));
    let reserve = descriptors::share(8, 4, RESERVE_MAX);
    let mut port = Port::new("xds", listener, reserve, Arc::clone(&config.descriptors));
    let shared = Arc::new(Shared::new(config));
    let swept = Arc::clone(&shared);
    tasks.spawn_restarting("sweep", SWEEP_PAUSE, move || Arc::clone(&swept).sweep());
    let failed = Arc::clone(&shared);
    let told = move || {
        let shared = Arc::clone(&failed);
        async move { shared.failures.tell() }
    };
    tasks.spawn_restarting("handshake failures", FAILURES_PAUSE, told);
    loop {
        let accepted = tokio::select! {
            () = shared.drain.cancelled() => return,
            accepted = port.accept() => accepted,
        };
        match accepted {
            Ok((socket, address, seat)) => {
                shared.stats.connections.fetch_add(1, Ordering::Relaxed);
                let Ok(room) = Arc::clone(&room).try_acquire_owned() else {
                    shared.stats.handshake_failed("too many connections");
                    shared.failures.note(address, "too many connections");
                    continue;
                };
                let Some(place) = shared.handshakes.enter(address.ip()) else {
                    shared.stats.handshake_failed("too many handshakes");
                    shared.failures.note(address, "too many handshakes of this source");
                    continue;
                };
                let (shared, routes) = (Arc::clone(&shared), routes.clone());
                let connection = Connection { shared, address, routes, _room: (room, seat) };
                // Boxed, since what wraps a task holds it twice.
                tasks.spawn("connection", Box::pin(connection.run(socket, place)));
            }
            // The next call rests first.
            Err(_) => drop(shared.stats.accept_errors.fetch_add(1, Ordering::Relaxed)),
        }
    }
}
