//! State that all connections share, state that the streams of one connection share, and the
//! reasons why streams end.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use http::HeaderMap;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::connections::Connections;
use super::debug_types::Members;
use super::handshakes::{Failures, Handshakes};
use super::relays::RelayPort;
use super::replicas::ReplicaPort;
use super::stats::Stats;
use super::sync_limiter::SyncLimiter;
use strait_base::descriptors::Descriptors;
use strait_envoy::Cache;
use strait_envoy::heads::{ConfigVariant, ConfigVariants};
use strait_identity::caller::{self, CallerRefusal, RefusalKind};
use strait_identity::credential::CredentialRegistry;
use strait_identity::{
    Caller, CallerRegistry, PeerIdentity, RelayIdentity, ServerIdentity, SpiffeId,
};
use strait_mesh::push::PushContext;
use strait_mesh::push::subscription_index::SubscriptionIndex;

/// The path of the certificate service's only call.
const CREATE_CERTIFICATE: &str = "/istio.v1.auth.IstioCertificateService/CreateCertificate";

/// The number of streams that a draining server ends per second, so that the servers that take them
/// over are not overloaded. The ends are spread over at most [`DRAIN_SPREAD_MAX`].
pub(super) const DRAIN_PER_SECOND: f64 = 100.0;

/// The number of refused calls of unidentified callers after which a connection is closed.
const STRANGERS_MAX: u32 = 8;

pub(super) const DRAIN_SPREAD_MAX: Duration = Duration::from_secs(10);

/// The dependencies and settings of the server.
pub struct XdsConfig {
    /// The current version of the mesh; `None` until the mesh is complete.
    pub context: watch::Receiver<Option<Arc<PushContext>>>,
    /// The subscriptions of streams to names.
    pub subscription_index: Arc<SubscriptionIndex>,
    /// The server's certificate and the trusted roots.
    pub identity: watch::Receiver<Arc<ServerIdentity>>,
    /// The trust domain for which certificates are issued.
    pub trust_domain: watch::Receiver<Option<Arc<str>>>,
    /// The registry that knows the pods of members and verifies tokens.
    pub callers: Arc<dyn CallerRegistry>,
    /// The registry that reads the Secrets that gateways request.
    pub credentials: Arc<dyn CredentialRegistry>,
    /// The function that lists the members.
    pub members: Members,
    /// Whether tokens are accepted. If not, only certificates are.
    pub tokens_count: bool,
    /// The table of connected proxies.
    pub connections: Arc<Connections>,
    /// The counters.
    pub stats: Arc<Stats>,
    /// The cache of encoded resources.
    pub cache: Arc<Cache>,
    /// The assignment of proxies to configurations, for example during a rollout.
    pub heads: Arc<ConfigVariants>,
    /// The maximum number of simultaneous connections.
    pub max_connections: usize,
    /// The maximum lifetime of a workload certificate.
    pub certificate_lifetime_max: Duration,
    /// Serves relays; `None` if there can be no relayed members.
    pub relays: Option<Arc<dyn RelayPort>>,
    /// The monitor of the process's file descriptors.
    pub descriptors: Arc<Descriptors>,
    /// The time in which the audit compares all streams once; `None` if there is no audit.
    pub audit_interval: Option<Duration>,
    /// Receives the connections of the other replicas; `None` if there are none.
    pub replicas: Option<ReplicaPort>,
    /// Cancelled when streams must end.
    pub drain: CancellationToken,
}

/// State that all connections share.
pub(super) struct ServerShared {
    pub(super) context: watch::Receiver<Option<Arc<PushContext>>>,
    pub(super) subscription_index: Arc<SubscriptionIndex>,
    pub(super) identity: watch::Receiver<Arc<ServerIdentity>>,
    pub(super) callers: Arc<dyn CallerRegistry>,
    pub(super) credentials: Arc<dyn CredentialRegistry>,
    pub(super) members: Members,
    pub(super) tokens_count: bool,
    pub(super) connections: Arc<Connections>,
    pub(super) stats: Arc<Stats>,
    pub(super) cache: Arc<Cache>,
    pub(super) heads: Arc<ConfigVariants>,
    pub(super) sync_limiter: SyncLimiter,
    /// The number of threads that serve streams.
    pub(super) threads: usize,
    pub(super) failures: Failures,
    pub(super) refused_calls: Failures,
    pub(super) audit_interval: Option<Duration>,
    pub(super) replicas: Option<ReplicaPort>,
    pub(super) relays: Option<Arc<dyn RelayPort>>,
    pub(super) drain: CancellationToken,
    pub(super) handshakes: Arc<Handshakes>,
}

/// The reason why a stream must end.
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
                "STR0704: the client certificate has expired; reconnect with a new one"
            }
            Self::RootsChanged => {
                "STR0707: the client certificate no longer chains to a trusted root"
            }
        }
    }
}

impl ServerShared {
    /// Creates the shared state. Must be called within a Tokio runtime.
    pub(super) fn new(config: XdsConfig) -> Self {
        Self {
            context: config.context,
            subscription_index: config.subscription_index,
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
            audit_interval: config.audit_interval,
            replicas: config.replicas,
            relays: config.relays,
            drain: config.drain,
            handshakes: Arc::new(Handshakes::of_limit()),
        }
    }

    pub(super) fn context(&self) -> Option<Arc<PushContext>> {
        self.context.borrow().clone()
    }

    /// Returns the current version of the mesh with a configuration; `None` is the common one.
    pub(super) fn context_of(&self, head: Option<&ConfigVariant>) -> Option<Arc<PushContext>> {
        head.map_or_else(|| self.context(), |head| head.versions().borrow().clone())
    }

    /// Returns the cache of encoded resources of a configuration; `None` is the common one.
    pub(super) fn cache_of<'a>(&'a self, head: Option<&'a ConfigVariant>) -> &'a Cache {
        head.map_or(&self.cache, |head| head.cache())
    }

    /// Removes unused entries from the caches of encoded resources. This may take some
    /// milliseconds.
    pub(super) async fn sweep(self: Arc<Self>) {
        let beside = self.heads.editions().into_iter().chain(self.heads.next());
        let beside = beside.filter_map(|head| {
            let context = head.versions().borrow().clone()?;
            Some((Arc::clone(head.cache()), context))
        });
        let settled = self.context().map(|context| (Arc::clone(&self.cache), context));
        for (cache, context) in settled.into_iter().chain(beside) {
            // A panic affects only this sweep.
            let _ = tokio::task::spawn_blocking(move || cache.sweep(&context)).await;
        }
    }

    /// Identifies the caller of `path` from these headers. Completes at once if the connection's
    /// certificate identifies the caller.
    ///
    /// # Errors
    /// The status for the caller. The reason is logged.
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

    /// Waits until a connection must stop accepting streams, and returns the reason.
    ///
    /// `peer` is the identity in the peer's certificate, if it has one. `believed` is the
    /// generation of the trust roots under which the certificate was last verified.
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
            // Verification costs as much as a handshake, so it is repeated only when the roots have
            // changed.
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

/// Returns the status for a refused caller. It contains no details that help an attacker.
fn opaque(refusal: &CallerRefusal) -> Status {
    let (code, title) = (refusal.code, refusal.code.title);
    let text = format!("{code}: {title}");
    match refusal.kind {
        RefusalKind::Unauthenticated => Status::unauthenticated(text),
        RefusalKind::Denied => Status::permission_denied(text),
        RefusalKind::Unavailable => Status::unavailable(text),
    }
}

/// The reason why a connection accepts no new streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leaving {
    /// The connection has reached its maximum age. Its streams may continue for a while.
    Aged,
    /// The streams must end after this time.
    Ends(Ending, Duration),
}

/// State that the streams of one connection share.
#[derive(Debug)]
pub(super) struct ConnectionShared {
    /// The address of the peer.
    pub(super) address: SocketAddr,
    /// The identity in the peer's certificate, if it has one.
    pub(super) peer: Option<Arc<PeerIdentity>>,
    /// The relay that the peer's certificate names. It may only request a certificate.
    pub(super) relay: Option<Arc<RelayIdentity>>,
    /// The generation of the trust roots under which the certificate was verified.
    pub(super) believed: u64,
    /// The first caller, if the peer has no certificate.
    caller: OnceLock<SpiffeId>,
    /// The number of calls that were refused because their caller was not identified.
    strangers: AtomicU32,
    ending: OnceLock<Ending>,
    cut: OnceLock<&'static str>,
}

impl ConnectionShared {
    pub(super) fn new(
        address: SocketAddr,
        peer: Option<Arc<PeerIdentity>>,
        relay: Option<Arc<RelayIdentity>>,
        believed: u64,
    ) -> Self {
        Self {
            address,
            peer,
            relay,
            believed,
            caller: OnceLock::new(),
            strangers: AtomicU32::new(0),
            ending: OnceLock::new(),
            cut: OnceLock::new(),
        }
    }

    /// Returns the identity of the peer, once it is known.
    pub(super) fn identity(&self) -> Option<&SpiffeId> {
        self.peer.as_ref().map(|peer| peer.id()).or_else(|| self.caller.get())
    }

    /// Records the caller of a call.
    pub(super) fn note_caller(&self, caller: &Caller) {
        if self.peer.is_none() {
            let _ = self.caller.set(caller.identity().clone());
        }
    }

    /// Records a call whose caller was not identified. Returns whether there were too many.
    pub(super) fn note_stranger(&self) -> bool {
        self.strangers.fetch_add(1, Ordering::Relaxed) + 1 >= STRANGERS_MAX
    }

    /// Records why the connection is closed before anything more can be sent on it.
    pub(super) fn note_cut(&self, reason: &'static str) {
        let _ = self.cut.set(reason);
    }

    /// Returns the reason that [`Self::note_cut`] recorded.
    pub(super) fn cut(&self) -> Option<&'static str> {
        self.cut.get().copied()
    }

    /// Makes all streams end when they are polled next. The task of the connection calls this
    /// before it polls its streams, so no stream has to be woken. The first reason takes
    /// precedence.
    pub(super) fn end(&self, ending: Ending) {
        let _ = self.ending.set(ending);
    }

    /// Returns the reason why the streams must end, if they must.
    pub(super) fn ending(&self) -> Option<Ending> {
        self.ending.get().copied()
    }
}

/// Returns the time over which the ends of this many streams are spread.
pub(super) fn drain_spread(streams: usize) -> Duration {
    Duration::from_secs_f64(streams as f64 / DRAIN_PER_SECOND).min(DRAIN_SPREAD_MAX)
}
