//! What all connections share, what the streams of one share, and why they end.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use http::HeaderMap;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::connections::Connections;
use super::debug_types::Members;
use super::handshakes::{Failures, Handshakes};
use super::stats::Stats;
use super::sync_limiter::SyncLimiter;
use strait_base::descriptors::Descriptors;
use strait_envoy::Cache;
use strait_envoy::heads::Heads;
use strait_identity::caller::{self, CallerRefusal, RefusalKind};
use strait_identity::credential::CredentialRegistry;
use strait_identity::{Caller, CallerRegistry, PeerIdentity, ServerIdentity, SpiffeId};
use strait_mesh::push::PushContext;
use strait_mesh::push::interest::Interest;

/// The one call of the certificate service.
const CREATE_CERTIFICATE: &str = "/istio.v1.auth.IstioCertificateService/CreateCertificate";

/// A draining server ends about so many streams in a second, so that those who take them over aren't
/// overrun, but spreads the ends over no more than this.
pub(super) const DRAIN_PER_SECOND: f64 = 100.0;

/// A connection on which so many calls were refused for want of a caller is closed.
const STRANGERS_MAX: u32 = 8;

pub(super) const DRAIN_SPREAD_MAX: Duration = Duration::from_secs(10);

/// What the server needs.
pub struct XdsConfig {
    /// The current version of the mesh; `None` until it is complete.
    pub context: watch::Receiver<Option<Arc<PushContext>>>,
    /// Who watches what.
    pub interest: Arc<Interest>,
    /// Who we are and whom we believe.
    pub identity: watch::Receiver<Arc<ServerIdentity>>,
    /// The trust domain for which certificates are issued.
    pub trust_domain: watch::Receiver<Option<Arc<str>>>,
    /// Who knows the pods of members, and what their tokens prove.
    pub callers: Arc<dyn CallerRegistry>,
    /// Who reads the Secrets that gateways ask for.
    pub credentials: Arc<dyn CredentialRegistry>,
    /// Who knows the members.
    pub members: Members,
    /// Whether tokens count; else only certificates do.
    pub tokens_count: bool,
    /// Who is connected.
    pub connections: Arc<Connections>,
    /// What is counted.
    pub stats: Arc<Stats>,
    /// What is encoded.
    pub cache: Arc<Cache>,
    /// Who is served the next configuration, while one is let out to a share.
    pub heads: Arc<Heads>,
    /// The most connections at once.
    pub max_connections: usize,
    /// The longest that a workload's certificate may live.
    pub certificate_lifetime_max: Duration,
    /// How the process fares with its file descriptors.
    pub descriptors: Arc<Descriptors>,
    /// Cancelled when streams shall end.
    pub drain: CancellationToken,
}

/// What all connections share.
pub(super) struct ServerShared {
    pub(super) context: watch::Receiver<Option<Arc<PushContext>>>,
    pub(super) interest: Arc<Interest>,
    pub(super) identity: watch::Receiver<Arc<ServerIdentity>>,
    pub(super) callers: Arc<dyn CallerRegistry>,
    pub(super) credentials: Arc<dyn CredentialRegistry>,
    pub(super) members: Members,
    pub(super) tokens_count: bool,
    pub(super) connections: Arc<Connections>,
    pub(super) stats: Arc<Stats>,
    pub(super) cache: Arc<Cache>,
    pub(super) heads: Arc<Heads>,
    pub(super) sync_limiter: SyncLimiter,
    /// How many threads serve streams.
    pub(super) threads: usize,
    pub(super) failures: Failures,
    pub(super) refused_calls: Failures,
    pub(super) drain: CancellationToken,
    pub(super) handshakes: Arc<Handshakes>,
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

impl ServerShared {
    /// Call it where tasks run.
    pub(super) fn new(config: XdsConfig) -> Self {
        Self {
            context: config.context,
            interest: config.interest,
            identity: config.identity,
            callers: config.callers,
            credentials: config.credentials,
            members: config.members,
            tokens_count: config.tokens_count,
            connections: config.connections,
            stats: config.stats,
            cache: config.cache,
            heads: config.heads,
            sync_limiter: SyncLimiter::default(),
            threads: Handle::current().metrics().num_workers(),
            failures: Failures::default(),
            refused_calls: Failures::default(),
            drain: config.drain,
            handshakes: Arc::new(Handshakes::of_limit()),
        }
    }

    pub(super) fn context(&self) -> Option<Arc<PushContext>> {
        self.context.borrow().clone()
    }

    /// Lets go of what is encoded and of no more use. That may take some milliseconds.
    pub(super) async fn sweep(self: Arc<Self>) {
        let beside = self.heads.editions().into_iter().chain(self.heads.next());
        let beside = beside.filter_map(|head| {
            let context = head.versions().borrow().clone()?;
            Some((Arc::clone(head.cache()), context))
        });
        let settled = self.context().map(|context| (Arc::clone(&self.cache), context));
        for (cache, context) in settled.into_iter().chain(beside) {
            // A panic in it is its own affair.
            let _ = tokio::task::spawn_blocking(move || cache.sweep(&context)).await;
        }
    }

    /// Who makes a call of `path` with these headers. Ready at once where the connection's certificate says.
    ///
    /// # Errors
    /// What the caller is told. The reason is logged.
    pub(super) async fn identify(
        &self,
        line: &ConnectionShared,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<Caller, Status> {
        let registry = self.tokens_count.then_some(&*self.callers);
        let found = caller::identify(line.peer.as_ref(), headers, registry).await;
        found.map_err(|refusal| {
            self.stats.caller_refused(refusal.code.id);
            if path == CREATE_CERTIFICATE {
                self.stats.issued.unauthenticated(refusal.code.id);
            }
            self.refused_calls.note(line.address, &refusal.to_string());
            opaque(&refusal)
        })
    }

    /// Waits until a connection must be left, and says why. `peer` is who is at its other end, where its certificate
    /// says, and `believed` the generation of the roots under which that was last verified.
    pub(super) async fn left(
        self: Arc<Self>,
        peer: Option<Arc<PeerIdentity>>,
        believed: u64,
        age: Duration,
    ) -> Leaving {
        let ends = peer.as_ref().map(|peer| peer.not_after());
        let life = ends.map(|ends| ends.duration_since(SystemTime::now()).unwrap_or_default());
        let ended = async {
            match life {
                Some(life) => tokio::time::sleep(life).await,
                None => std::future::pending().await,
            }
        };
        let mut identity = self.identity.clone();
        let distrusted = async {
            let Some(peer) = peer else { return std::future::pending().await };
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
            () = ended => {
                Leaving::Ends(Ending::CertificateExpired, Duration::ZERO)
            }
            () = distrusted => Leaving::Ends(Ending::RootsChanged, Duration::ZERO),
            () = tokio::time::sleep(age) => Leaving::Aged,
        }
    }
}

/// What a caller learns of why it is not let in: nothing that helps to guess.
fn opaque(refusal: &CallerRefusal) -> Status {
    let (code, title) = (refusal.code, refusal.code.title);
    let text = format!("{code}: {title}");
    match refusal.kind {
        RefusalKind::Unauthenticated => Status::unauthenticated(text),
        RefusalKind::Denied => Status::permission_denied(text),
        RefusalKind::Unavailable => Status::unavailable(text),
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
pub(super) struct ConnectionShared {
    /// Where the other end is.
    pub(super) address: SocketAddr,
    /// What the certificate at the other end proved, where it showed one.
    pub(super) peer: Option<Arc<PeerIdentity>>,
    /// The generation of the roots that vouched for it.
    pub(super) believed: u64,
    /// Who made the first call, where no certificate says.
    caller: OnceLock<SpiffeId>,
    /// Calls that were refused since nobody knew who made them.
    strangers: AtomicU32,
    ending: OnceLock<Ending>,
    told: Notify,
    cut: OnceLock<&'static str>,
}

impl ConnectionShared {
    pub(super) fn new(address: SocketAddr, peer: Option<Arc<PeerIdentity>>, believed: u64) -> Self {
        Self {
            address,
            peer,
            believed,
            caller: OnceLock::new(),
            strangers: AtomicU32::new(0),
            ending: OnceLock::new(),
            told: Notify::new(),
            cut: OnceLock::new(),
        }
    }

    /// Who is at the other end, once anybody knows.
    pub(super) fn identity(&self) -> Option<&SpiffeId> {
        self.peer.as_ref().map(|peer| peer.id()).or_else(|| self.caller.get())
    }

    /// Notes who made a call.
    pub(super) fn note_caller(&self, caller: &Caller) {
        if self.peer.is_none() {
            let _ = self.caller.set(caller.identity().clone());
        }
    }

    /// Notes a call that nobody could be shown to have made; whether there were too many.
    pub(super) fn note_stranger(&self) -> bool {
        self.strangers.fetch_add(1, Ordering::Relaxed) + 1 >= STRANGERS_MAX
    }

    /// Notes why the connection is closed before anything more can be sent on it.
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

/// Waits until the roots may have changed.
pub(super) async fn roots_changed(identity: Option<&mut watch::Receiver<Arc<ServerIdentity>>>) {
    let changed = match identity {
        Some(identity) => identity.changed().await.is_ok(),
        None => false,
    };
    // An error says that the process ends.
    if !changed {
        std::future::pending::<()>().await;
    }
}

/// Over how long the ends of so many streams are spread.
pub(super) fn drain_spread(streams: usize) -> Duration {
    Duration::from_secs_f64(streams as f64 / DRAIN_PER_SECOND).min(DRAIN_SPREAD_MAX)
}
