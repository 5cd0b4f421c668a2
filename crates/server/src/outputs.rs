//! Start of all outputs: ADS, the admin API, the webhook and the state directory, and the tasks
//! that limit memory.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::core::Core;
use super::inputs::{OperatorFiles, ServerInputs};
use super::relays::{self, RelayService, RelayServiceConfig};
use super::stream_monitor::{self, StreamMonitor, StreamSample};
use super::used_invitations::UsedInvitations;
use super::{churn_monitor, pressure, state_dir};
use crate::admin::{self, Readiness, Token};
use crate::config::PrometheusFlags;
use crate::metrics::Metrics;
use crate::replicas::{LOOK, OtherReplicas};
use strait_ads::budgets::Budgets;
use strait_ads::connections::Connections;
use strait_ads::debug_types::{MemberSummary, Members};
use strait_ads::replicas::ReplicaPort;
use strait_ads::server::XdsConfig;
use strait_base::descriptors::Descriptors;
use strait_base::memory::MemoryLimit;
use strait_base::task::Supervisor;
use strait_explain::validation::{ValidationCounts, ValidationMode, Validator};
use strait_explain::{ConfigReports, ConfigTrials};
use strait_identity::{ReplicaAuthenticator, ServerIdentity};
use strait_injection::{FindPodDefaults, InjectionCounts, PodDefaults};
use strait_injection::{
    server as inject,
    server::{AnswerReview, WebhookSettings},
};
use strait_mesh::history::History;
use strait_mesh::push::PushContext;
use strait_model::Namespace;
use strait_rules::access::PolicyErrors;
use strait_rules::traffic::proxy_config_selection;
use strait_sources::clusters::heap;
use strait_sources::clusters::status::{ClusterState, ClusterStatus};

/// Maximum number of connections of replicas that wait to be served.
const REPLICA_CONNECTIONS_MAX: usize = 64;

/// Listeners, credentials and settings of the servers.
pub(super) struct Ports {
    pub(super) xds: TcpListener,
    pub(super) admin: TcpListener,
    pub(super) identity: watch::Receiver<Arc<ServerIdentity>>,
    pub(super) token: Token,
    /// The Prometheus that scrapes the proxies, if it is known.
    pub(super) prometheus: PrometheusFlags,
    /// Token with read-only access, if there is one.
    pub(super) reader_token: Option<Token>,
    /// Host names by which browsers may open the admin port.
    pub(super) admin_hosts: Vec<String>,
    pub(super) max_connections: usize,
    /// See `--audit-interval`; `None` if there is no audit.
    pub(super) audit_interval: Option<Duration>,
    /// See `--max-certificate-lifetime`.
    pub(super) certificate_lifetime_max: Duration,
    /// See `--relay-certificate-ttl`.
    pub(super) relay_certificate_lifetime: Duration,
    /// The record of used invitations of relays.
    pub(super) used_invitations: UsedInvitations,
    /// Whether proxies may authenticate with tokens.
    pub(super) tokens_count: bool,
    /// The state directory, if there is one.
    pub(super) state_dir: Option<PathBuf>,
    /// Listener and settings of the webhook, if it is enabled.
    pub(super) webhook: Option<(TcpListener, WebhookSettings)>,
    /// How unreadable access policies are handled.
    pub(super) policy_errors: PolicyErrors,
    /// How the validation webhook handles objects with errors.
    pub(super) validation: ValidationMode,
    /// The other replicas, and their authentication.
    pub(super) replicas: (Arc<OtherReplicas>, Arc<ReplicaAuthenticator>),
}

/// Handles of the running outputs that shutdown needs.
pub(super) struct ServerOutputs {
    pub(super) streams: Arc<Connections>,
    /// Becomes true once the last state has been written; `None` if no state is stored.
    pub(super) saved: Option<watch::Receiver<bool>>,
    pub(super) drain: CancellationToken,
}

impl ServerOutputs {
    pub(super) fn start(
        ports: Ports,
        core: Core,
        inputs: ServerInputs,
        files: OperatorFiles,
        history: Arc<History>,
        tasks: &Supervisor,
    ) -> Self {
        let drain = core.drain;
        let descriptors = Arc::new(Descriptors::default());
        let (counted, members) = (Arc::clone(&descriptors), inputs.statuses.clone());
        tasks.spawn("descriptors", count_members(counted, members));

        let state = inputs.state.map(|store| {
            let (saved, saved_seen) = watch::channel(false);
            let (writes, writes_seen) = watch::channel(strait_lkg::Writes::default());
            let writer = strait_lkg::Writer {
                store: Arc::new(Mutex::new(store)),
                context: core.context.clone(),
                statuses: inputs.statuses.clone(),
                others: inputs.others,
                mesh: inputs.mesh_data,
                drain: drain.clone(),
                saved,
                writes,
            };
            tasks.spawn_restarting("last known good", Duration::from_secs(1), move || {
                writer.clone().run()
            });
            (saved_seen, writes_seen)
        });
        let (saved, writes) = state.unzip();
        if let (Some(path), Some(writes)) = (ports.state_dir.clone(), &writes) {
            let (writes, statuses) = (writes.clone(), inputs.source_statuses.clone());
            tasks.spawn_restarting("state directory", Duration::from_secs(1), move || {
                state_dir::report_failures(path.clone(), writes.clone(), statuses.clone())
            });
        }

        let memory = MemoryLimit::of_process();
        let streams = Arc::new(Connections::new(Budgets::of_memory(memory.limit())));
        let stats = Arc::new(strait_ads::Stats::default());
        tasks.spawn("heap", heap::run(inputs.statuses.clone(), heap::QUIET, trim_heap));
        tasks.spawn("heap after the start", trim_heap_after_start(inputs.readiness.clone()));
        let (open, sent) = (Arc::clone(&streams), Arc::clone(&stats));
        let churn = move || open.churn() + sent.large_syncs.load(Ordering::Relaxed);
        let monitor = Arc::new(StreamMonitor::default());
        let (open, counted) = (Arc::clone(&streams), Arc::clone(&stats));
        let sample = move || StreamSample {
            streams: open.len(),
            // The other replicas connect often, which would hide failures of proxies.
            connections: counted
                .connections
                .load(Ordering::Relaxed)
                .saturating_sub(counted.replica_connections.load(Ordering::Relaxed)),
            failed: counted.handshakes_failed(),
        };
        let watched = Arc::clone(&monitor);
        tasks.spawn("stream monitor", stream_monitor::run(watched, sample, drain.clone()));
        tasks.spawn("churn monitor", churn_monitor::run(churn, trim_heap));
        tasks.spawn("pressure", pressure::run(memory, Arc::clone(&streams), trim_heap));

        let (replicas, authenticator) = ports.replicas;
        let (accepted, of_replicas) = mpsc::channel(REPLICA_CONNECTIONS_MAX);
        let counted = Arc::clone(&replicas);
        let relay_service = RelayService::new(RelayServiceConfig {
            hub: Arc::clone(&inputs.relays),
            identity: ports.identity.clone(),
            trust_domain: inputs.trust_domain.clone(),
            statuses: inputs.statuses.clone(),
            used_invitations: ports.used_invitations,
            policy: files.policy.value.clone(),
            published_keys: inputs.relay_keys,
            lifetime: ports.relay_certificate_lifetime,
            replica: relays::replica_name(replicas.name(), move || counted.count(), LOOK, tasks),
            drain: drain.clone(),
        });
        let cache = Arc::clone(&core.cache);
        let config = XdsConfig {
            context: core.context.clone(),
            subscription_index: core.subscription_index,
            identity: ports.identity.clone(),
            trust_domain: inputs.trust_domain,
            callers: inputs.callers.clone(),
            credentials: inputs.credentials,
            members: members_of(inputs.statuses.clone()),
            tokens_count: ports.tokens_count,
            connections: Arc::clone(&streams),
            stats: Arc::clone(&stats),
            cache: core.cache,
            heads: Arc::clone(&core.heads),
            max_connections: ports.max_connections,
            audit_interval: ports.audit_interval,
            relays: Some(Arc::new(relay_service)),
            certificate_lifetime_max: ports.certificate_lifetime_max,
            descriptors: Arc::clone(&descriptors),
            replicas: Some(ReplicaPort { authenticator, accepted }),
            drain: drain.clone(),
        };
        tasks.spawn("ads", strait_ads::server::serve(ports.xds, config, tasks.clone()));

        let injections = ports.webhook.map(|(listener, settings)| {
            let counts = Arc::new(InjectionCounts::default());
            let (identity, descriptors) = (ports.identity.clone(), Arc::clone(&descriptors));
            let (counted, children) = (Arc::clone(&counts), tasks.clone());
            let validations = Arc::new(ValidationCounts::default());
            let validator = Validator::new(
                core.context.clone(),
                inputs.reports.clone(),
                ports.policy_errors,
                ports.validation,
                Arc::clone(&validations),
            );
            let validate: AnswerReview = Arc::new(move |body| validator.answer(body));
            let serving = inject::serve(
                listener,
                (settings, pod_defaults(core.context.clone(), inputs.reports.clone())),
                validate,
                identity,
                counted,
                descriptors,
                children,
            );
            tasks.spawn("webhook", serving);
            (counts, validations)
        });
        let (injections, validations) = injections.unzip();

        let session_key = session_key(ports.identity.clone(), &ports.token);
        let metrics = Metrics {
            xds: stats,
            connections: Arc::clone(&streams),
            tasks: tasks.clone(),
            identity: ports.identity,
            faulty_objects: inputs.faulty,
            source_statuses: inputs.source_statuses.clone(),
            writes,
            descriptors: Arc::clone(&descriptors),
            injections,
            validations,
            hold: inputs.hold.clone(),
            hold_sharing: inputs.hold_sharing.clone(),
            rollout: inputs.rollout.clone(),
            heads: Arc::clone(&core.heads),
            problems: inputs.problems.subscribe(),
        };
        let sources = Arc::new(admin::Sources {
            context: core.context,
            clusters: inputs.statuses,
            shared_services: core.shared,
            source_statuses: inputs.source_statuses,
            mesh_problems: inputs.mesh_problems,
            policy: files.policy,
            members: files.members,
            source_problems: inputs.source_problems,
            reports: inputs.reports,
            trials: ConfigTrials::new(ports.policy_errors),
            cache,
            connections: Arc::clone(&streams),
            tasks: tasks.clone(),
            timeline: core.timeline,
            history,
            retained: core.retained,
            hold: inputs.hold,
            hold_sharing: inputs.hold_sharing,
            rollout: inputs.rollout,
            heads: core.heads,
            holds: inputs.holds,
            figures: core.counters,
            readiness: inputs.readiness,
            metrics: Arc::new(metrics),
            relays: inputs.relays,
            withheld: admin::Lately::default(),
            tally: admin::WithheldTally::default(),
            admin_connections: Arc::default(),
            descriptors,
            stream_monitor: monitor,
            token: ports.token,
            reader_token: ports.reader_token,
            traffic: admin::TrafficReader::new(ports.prometheus),
            callers: inputs.callers,
            announcements: admin::Announcements::default(),
            shared: admin::SharedAnswers::default(),
            browsers: Arc::new(admin::BrowserAccess::new(ports.admin_hosts, session_key)),
            replicas,
            comparison: admin::ReplicaComparison::default(),
            state_dir: ports.state_dir,
        });
        let (watched, problems) = (Arc::clone(&sources), inputs.problems);
        tasks.spawn_restarting("problems", Duration::from_secs(1), move || {
            admin::follow_problems(Arc::clone(&watched), problems.clone())
        });
        let compared = Arc::clone(&sources);
        tasks.spawn_restarting("replica comparison", Duration::from_secs(1), move || {
            admin::compare_replicas(Arc::clone(&compared))
        });
        tasks.spawn("admin", admin::serve(ports.admin, of_replicas, sources));
        Self { streams, saved, drain }
    }
}

/// Returns the key of browser sessions: derived from the CA's key, which all replicas have, without
/// a CA from the token.
fn session_key(identity: watch::Receiver<Arc<ServerIdentity>>, token: &Token) -> admin::SessionKey {
    const PURPOSE: &str = "browser sessions";
    let without_ca = token.shared_key(PURPOSE);
    Arc::new(move || {
        let authority = identity.borrow().authority.clone();
        authority.map_or_else(|| without_ca.clone(), |authority| authority.shared_key(PURPOSE))
    })
}

/// Returns free memory to the system after the start, when restored state and file contents have
/// been dropped.
async fn trim_heap_after_start(mut readiness: watch::Receiver<Readiness>) {
    if readiness.wait_for(|now| now.ready).await.is_err() {
        return;
    }
    for pause in [heap::QUIET, heap::QUIET * heap::AFTERMATH] {
        tokio::time::sleep(pause).await;
        // A panic in this task has no other consequences.
        let _ = tokio::task::spawn_blocking(trim_heap).await;
    }
}

/// Returns free memory to the system.
fn trim_heap() {
    strait_heap::give_back();
}

/// Returns the members with the states that istioctl shows.
fn members_of(statuses: watch::Receiver<Arc<Vec<ClusterStatus>>>) -> Members {
    Arc::new(move || {
        let summary = |one: &ClusterStatus| MemberSummary {
            id: one.id.clone(),
            secret: one.secret.clone().unwrap_or_default(),
            status: match one.state {
                ClusterState::Syncing => "syncing",
                ClusterState::Timeout | ClusterState::AuthFailed | ClusterState::TlsFailed => {
                    "timeout"
                }
                ClusterState::Rejected
                | ClusterState::Conflict
                | ClusterState::IdentityChanged
                | ClusterState::Draining => "closed",
                // The last known state of these clusters is served.
                ClusterState::Live
                | ClusterState::Stale
                | ClusterState::Misbehaving
                | ClusterState::Quarantined
                | ClusterState::Paused
                | ClusterState::Restored => "synced",
            },
        };
        statuses.borrow().iter().map(summary).collect()
    })
}

/// Reports the number of members, because each member needs file descriptors.
async fn count_members(
    descriptors: Arc<Descriptors>,
    mut members: watch::Receiver<Arc<Vec<ClusterStatus>>>,
) {
    loop {
        descriptors.members(members.borrow_and_update().len());
        // An error means that the process is ending.
        if members.changed().await.is_err() {
            return;
        }
    }
}

/// Returns a function that finds the ProxyConfig settings of a pod's sidecar at the time of
/// injection.
fn pod_defaults(
    context: watch::Receiver<Option<Arc<PushContext>>>,
    reports: watch::Receiver<Arc<ConfigReports>>,
) -> FindPodDefaults {
    Arc::new(move |namespace, labels| {
        let Some(context) = context.borrow().clone() else { return PodDefaults::default() };
        let reports = Arc::clone(&reports.borrow());
        let root = Namespace::from(&*context.mesh.root_namespace);
        let levels =
            proxy_config_selection::for_pod(&reports.traffic, &root, &namespace.into(), labels);
        let mut defaults = PodDefaults::default();
        for level in levels {
            defaults.concurrency = defaults.concurrency.or(level.concurrency);
            for (name, value) in &level.environment {
                defaults.environment.entry(name.to_string()).or_insert_with(|| value.to_string());
            }
        }
        defaults
    })
}
