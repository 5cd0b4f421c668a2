//! What the admin API reads, and how it asks for it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::StatusCode;
use tokio::sync::watch;

use super::announcements::Announcements;
use super::failure::AdminFailure;
use super::page::BrowserAccess;
use super::port::ConnectionLimiter;
use super::shared::SharedAnswers;
use super::tally::WithheldTally;
use super::token::Token;
use crate::metrics::{Metrics, WithheldCounts};
use strait_ads::connections::{Connections, OpenStream};
use strait_base::descriptors::Descriptors;
use strait_base::source_status::SourceStatusTable;
use strait_base::task::Supervisor;
use strait_envoy::Cache;
use strait_envoy::heads::Heads;
use strait_explain::{ConfigReports, ConfigTrials};
use strait_mesh::history::History;
use strait_mesh::hold::{HoldRequests, HoldSharing, HoldState, KeptConfigurations};
use strait_mesh::push::PushContext;
use strait_mesh::push::event_loop::LoopCounters;
use strait_mesh::rollout::RolloutState;
use strait_mesh::timeline::Timeline;
use strait_model::Proxy;
use strait_model::mesh_config::SourceProblem;
use strait_sources::clusters::status::ClusterStatus;
use strait_sources::policy_watch::WatchedPolicy;

/// For how long a count of endpoints that are withheld will do for `/metrics`.
const WITHHELD_LASTS: Duration = Duration::from_secs(60);

/// Whether the process is ready, and what it waits for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Readiness {
    /// Once true, never false again.
    pub ready: bool,
    /// What is still missing, in words; empty once ready.
    pub waiting_for: Vec<String>,
}

/// What the admin API reads.
pub struct Sources {
    /// The current version of the mesh.
    pub context: watch::Receiver<Option<Arc<PushContext>>>,
    /// How the members fare.
    pub clusters: watch::Receiver<Arc<Vec<ClusterStatus>>>,
    /// How the sources fare that are no member clusters.
    pub source_statuses: SourceStatusTable,
    /// What of the mesh config and the mesh networks is not in force.
    pub mesh_problems: watch::Receiver<Vec<SourceProblem>>,
    /// The policy in force.
    pub policy: WatchedPolicy,
    /// What is said of each object of the mesh's configuration.
    pub reports: watch::Receiver<Arc<ConfigReports>>,
    /// Tries objects that are not stored.
    pub trials: ConfigTrials,
    /// What is kept of what proxies are sent.
    pub cache: Arc<Cache>,
    /// Who is connected.
    pub connections: Arc<Connections>,
    /// Which loops turn.
    pub tasks: Supervisor,
    /// What changed lately, and why.
    pub timeline: Arc<Timeline>,
    /// What each version changed.
    pub history: Arc<History>,
    /// The configurations that can be gone back to.
    pub kept: Arc<KeptConfigurations>,
    /// What is held.
    pub hold: watch::Receiver<Arc<HoldState>>,
    /// Whether the other replicas hold the same.
    pub hold_sharing: watch::Receiver<HoldSharing>,
    /// What is let out to a share of proxies.
    pub rollout: watch::Receiver<Arc<RolloutState>>,
    /// Who is served that.
    pub heads: Arc<Heads>,
    /// Where it is asked that something be held.
    pub holds: HoldRequests,
    /// How the event loop fares.
    pub figures: watch::Receiver<LoopCounters>,
    /// Whether the process is ready.
    pub readiness: watch::Receiver<Readiness>,
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// What was counted last of endpoints that are withheld, and when.
    pub withheld: Lately,
    /// The same by service, for whoever wants to know it now.
    pub tally: WithheldTally,
    /// How the admin port itself fares.
    pub admin_connections: Arc<ConnectionLimiter>,
    /// How the process fares with its file descriptors.
    pub descriptors: Arc<Descriptors>,
    /// What `/debug/*` asks for.
    pub token: Token,
    /// What will do as well for what changes nothing.
    pub reader_token: Option<Token>,
    /// When pages are to look again.
    pub announcements: Announcements,
    /// What pages have been answered lately.
    pub shared: SharedAnswers,
    /// Who has been let in by it and reads from a browser.
    pub browsers: Arc<BrowserAccess>,
}

/// What was last counted, and when. Counting looks at every endpoint: not at each scrape.
#[derive(Debug, Default)]
pub struct Lately(Mutex<Option<(Instant, Arc<WithheldCounts>)>>);

impl Lately {
    /// What was counted within the last minute, else what is counted now, by a thread that may block.
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

/// How handlers are given it.
pub(super) type SourcesState = State<Arc<Sources>>;

/// The current version of the mesh; a failure until there is one.
pub(super) fn current(sources: &Sources) -> Result<Arc<PushContext>, AdminFailure> {
    sources.context.borrow().clone().ok_or_else(|| {
        let missing = sources.readiness.borrow().waiting_for.join(", ");
        let text = format!("the mesh is not complete yet; waiting for {missing}");
        AdminFailure(StatusCode::SERVICE_UNAVAILABLE, text)
    })
}

/// The version of the mesh that a proxy is served, and what is encoded of it: of the next configuration where it is in the share
/// that is given that.
pub(super) fn served_to(
    sources: &Sources,
    proxy: &Proxy,
) -> Result<(Arc<PushContext>, Arc<Cache>), AdminFailure> {
    let next = sources.heads.of(proxy).and_then(|head| {
        let context = head.versions().borrow().clone()?;
        Some((context, Arc::clone(head.cache())))
    });
    next.map_or_else(|| Ok((current(sources)?, Arc::clone(&sources.cache))), Ok)
}

/// The stream of a proxy; a failure where none of that name is connected.
pub(super) fn connected(sources: &Sources, proxy: &str) -> Result<Arc<OpenStream>, AdminFailure> {
    sources.connections.find(proxy).ok_or_else(|| {
        let text = format!(
            "no proxy {proxy:?} is connected; a proxy is named by its node id, its key, or name.namespace[@cluster]"
        );
        AdminFailure(StatusCode::NOT_FOUND, text)
    })
}
