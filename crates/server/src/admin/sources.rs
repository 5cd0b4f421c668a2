//! State that the admin API reads, and access to it.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::StatusCode;
use tokio::sync::watch;

use super::announcements::Announcements;
use super::failure::AdminFailure;
use super::merge::select;
use super::named::{ambiguous, of_stream};
use super::page::BrowserAccess;
use super::port::ConnectionLimiter;
use super::replica_problems::ReplicaComparison;
use super::shared::SharedAnswers;
use super::tally::WithheldTally;
use super::token::Token;
use super::traffic::TrafficReader;
use crate::metrics::{Metrics, WithheldCounts};
use crate::replicas::OtherReplicas;
use crate::stream_monitor::StreamMonitor;
use strait_ads::connections::{Connections, OpenStream};
use strait_base::descriptors::Descriptors;
use strait_base::source_status::SourceStatusTable;
use strait_base::task::Supervisor;
use strait_envoy::Cache;
use strait_envoy::heads::ConfigVariants;
use strait_explain::{ConfigReports, ConfigTrials};
use strait_mesh::history::History;
use strait_mesh::hold::{HoldRequests, HoldSharing, HoldState, RetainedConfigurations};
use strait_mesh::push::PushContext;
use strait_mesh::push::event_loop::LoopCounters;
use strait_mesh::rollout::RolloutState;
use strait_mesh::timeline::Timeline;
use strait_model::mesh_config::SourceProblem;
use strait_model::policy::Policy;
use strait_model::{Proxy, SharedServices};
use strait_relay::hub::RelayHub;
use strait_sources::clusters::callers::MemberCallers;
use strait_sources::clusters::status::ClusterStatus;
use strait_sources::members::MemberSources;
use strait_sources::policy_watch::WatchedFile;

/// Maximum age of the count of withheld endpoints for `/metrics`.
const WITHHELD_LASTS: Duration = Duration::from_secs(60);

/// Readiness of the process, and the reasons to wait.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Readiness {
    /// Never becomes false again once true.
    pub ready: bool,
    /// Missing parts in words; empty once ready.
    pub waiting_for: Vec<String>,
}

/// State that the admin API reads.
pub struct Sources {
    /// The current version of the mesh.
    pub context: watch::Receiver<Option<Arc<PushContext>>>,
    /// Statuses of the member clusters.
    pub clusters: watch::Receiver<Arc<Vec<ClusterStatus>>>,
    /// The services that the clusters share.
    pub shared_services: watch::Receiver<Arc<SharedServices>>,
    /// Statuses of the sources that are not member clusters.
    pub source_statuses: SourceStatusTable,
    /// Parts of the mesh config and the mesh networks that are not active.
    pub mesh_problems: watch::Receiver<Vec<SourceProblem>>,
    /// The active policy.
    pub policy: WatchedFile<Policy>,
    /// The operator file of member sources.
    pub members: WatchedFile<MemberSources>,
    /// The member sources that cannot be read.
    pub source_problems: watch::Receiver<Vec<String>>,
    /// Reports about all configuration objects.
    pub reports: watch::Receiver<Arc<ConfigReports>>,
    /// Evaluates hypothetical objects.
    pub trials: ConfigTrials,
    /// Cache of encoded resources.
    pub cache: Arc<Cache>,
    /// Connected proxies.
    pub connections: Arc<Connections>,
    /// The supervised tasks and the liveness of loops.
    pub tasks: Supervisor,
    /// Recent changes and their causes.
    pub timeline: Arc<Timeline>,
    /// Changes of each version.
    pub history: Arc<History>,
    /// Configurations that an operator can return to.
    pub retained: Arc<RetainedConfigurations>,
    /// The active hold.
    pub hold: watch::Receiver<Arc<HoldState>>,
    /// Whether the other replicas have the same hold.
    pub hold_sharing: watch::Receiver<HoldSharing>,
    /// The running rollout.
    pub rollout: watch::Receiver<Arc<RolloutState>>,
    /// Assigns proxies to configurations.
    pub heads: Arc<ConfigVariants>,
    /// Sends requests to hold or release a configuration.
    pub holds: HoldRequests,
    /// Counters of the event loop.
    pub figures: watch::Receiver<LoopCounters>,
    /// Readiness of the process.
    pub readiness: watch::Receiver<Readiness>,
    /// The connections of relays.
    pub relays: Arc<RelayHub>,
    /// Inputs of the metrics.
    pub metrics: Arc<Metrics>,
    /// Last count of withheld endpoints for `/metrics`.
    pub withheld: Lately,
    /// Current counts of withheld endpoints by service.
    pub tally: WithheldTally,
    /// Connections of the admin port.
    pub admin_connections: Arc<ConnectionLimiter>,
    /// Use of file descriptors.
    pub descriptors: Arc<Descriptors>,
    /// Falls of the number of streams, and failing handshakes.
    pub stream_monitor: Arc<StreamMonitor>,
    /// Token of `/debug/*` and `/api/*`.
    pub token: Token,
    /// Token with read-only access, if there is one.
    pub reader_token: Option<Token>,
    /// Reads traffic from Prometheus.
    pub traffic: TrafficReader,
    /// Verifies tokens of the config cluster's service accounts.
    pub callers: Arc<MemberCallers>,
    /// Announcements of changes to pages.
    pub announcements: Announcements,
    /// Recent responses to pages.
    pub shared: SharedAnswers,
    /// Sessions of browsers.
    pub browsers: Arc<BrowserAccess>,
    /// The other replicas.
    pub replicas: Arc<OtherReplicas>,
    /// Problems of the other replicas, and differences from them.
    pub comparison: ReplicaComparison,
    /// The state directory, if there is one.
    pub state_dir: Option<PathBuf>,
}

/// Last count and its time. A count examines every endpoint, so it is not repeated for each scrape.
#[derive(Debug, Default)]
pub struct Lately(Mutex<Option<(Instant, Arc<WithheldCounts>)>>);

impl Lately {
    /// Returns a count of the last minute, otherwise a new one from a thread that may block.
    pub(super) async fn counted(
        &self,
        count: impl FnOnce() -> WithheldCounts + Send + 'static,
    ) -> Arc<WithheldCounts> {
        let fresh = |(at, _): &&(Instant, Arc<WithheldCounts>)| at.elapsed() < WITHHELD_LASTS;
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, counts)) = lock().as_ref().filter(fresh) {
            return Arc::clone(counts);
        }
        let counts = Arc::new(tokio::task::spawn_blocking(count).await.unwrap_or_default());
        *lock() = Some((Instant::now(), Arc::clone(&counts)));
        counts
    }
}

/// State argument of the handlers.
pub(super) type SourcesState = State<Arc<Sources>>;

/// Returns the current version of the mesh, or an error until one exists.
pub(super) fn current(sources: &Sources) -> Result<Arc<PushContext>, AdminFailure> {
    sources.context.borrow().clone().ok_or_else(|| {
        let missing = sources.readiness.borrow().waiting_for.join(", ");
        let text = format!("the mesh is not complete yet; waiting for {missing}");
        AdminFailure(StatusCode::SERVICE_UNAVAILABLE, text)
    })
}

/// Returns the version of the mesh that a proxy is served, and the cache of its encoded resources.
/// During a rollout this may be the next configuration.
pub(super) fn served_to(
    sources: &Sources,
    proxy: &Proxy,
) -> Result<(Arc<PushContext>, Arc<Cache>), AdminFailure> {
    let next = sources.heads.variant_for(proxy).and_then(|head| {
        let context = head.versions().borrow().clone()?;
        Some((context, Arc::clone(head.cache())))
    });
    next.map_or_else(|| Ok((current(sources)?, Arc::clone(&sources.cache))), Ok)
}

/// Returns the stream of a proxy, or an error if no such proxy is connected or several match.
pub(super) fn connected(sources: &Sources, proxy: &str) -> Result<Arc<OpenStream>, AdminFailure> {
    // Looked up once: a stream may end between two look-ups.
    let streams = sources.connections.named(proxy);
    let selected = select(streams.iter().map(of_stream).collect())
        .map_err(|names| ambiguous(proxy, &names))?;
    let stream = selected.and_then(|selected| {
        streams.into_iter().map(|(_, stream)| stream).find(|stream| stream.key() == selected.key)
    });
    stream.ok_or_else(|| {
        let text = format!(
            "no proxy {proxy:?} is connected; specify its node ID, its key, name.namespace[@cluster], a unique prefix of the name, or deploy/name.namespace"
        );
        AdminFailure(StatusCode::NOT_FOUND, text)
    })
}
