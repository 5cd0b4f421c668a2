//! Start of all sources: the configuration, the member clusters, Consul and the stores, with their
//! last known state.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::active_configuration::ReadingRules;
use super::callers::{KnownPods, follow_pods};
use super::core::{Core, EVENTS, share_services};
use super::dns_records::write_dns_records;
use super::feed::{self, Configuration, FeedInputs, FeedOutputs, RolloutOutputs};
use super::ignored_scopes::warn_of_ignored_scopes;
use super::judged_statuses::JudgedStatuses;
use super::key_fetcher::{self, KeyPlaces};
use super::outside_issuer;
use super::relay_keys::{self, RelayIssuerKeys};
use super::relays::follow_members;
use super::root_gate::RootGate;
use super::shared_hold::{HoldFollower, SharedHoldStore};
use super::source::{ConfigOrigin, MeshSource, ObjectStores};
use super::start_reads::EarlyHold;
use crate::admin::Readiness;
use crate::config::ServeArgs;
use strait_base::durable;
use strait_base::latest::publish_change;
use strait_base::source_status::SourceStatusTable;
use strait_base::task::Supervisor;
use strait_explain::ConfigReports;
use strait_identity::{NamedRoots, ServerIdentity};
use strait_kube_client::ApiClient;
use strait_mesh::hold::{HoldFile, HoldRequests, HoldSharing, HoldState};
use strait_mesh::rollout::{RolloutFiles, RolloutState};
use strait_model::mesh_config::SourceProblem;
use strait_model::policy::{DefaultVisibility, Policy};
use strait_model::{RootBundle, WriterRole};
use strait_relay::hub::RelayHub;
use strait_sources::clusters::callers::{self, MemberCallers};
use strait_sources::clusters::credentials::MemberCredentials;
use strait_sources::clusters::events::LastingProblem;
use strait_sources::clusters::published_profiles::{self, PublishedProfilesConfig};
use strait_sources::clusters::renewal::{self, RenewalFailures};
use strait_sources::clusters::status::ClusterStatus;
use strait_sources::clusters::writer::WriterLease;
use strait_sources::clusters::{events, reconciler, statuses};
use strait_sources::members::MemberSources;
use strait_sources::mesh_config_watch::ConfigMapData;
use strait_sources::policy_watch::WatchedFile;
use strait_sources::registry::kube::MemberWrites;
use strait_sources::registry::{self, consul};
use strait_sources::store::Objects;
use strait_sources::store::secret_sources::{self, ObjectsWithSources};

/// Number of hold requests that may wait; further requests block.
const HOLDS: usize = 4;

/// The outputs of the running sources.
pub(super) struct ServerInputs {
    pub(super) statuses: watch::Receiver<Arc<Vec<ClusterStatus>>>,
    pub(super) source_statuses: SourceStatusTable,
    pub(super) mesh_problems: watch::Receiver<Vec<SourceProblem>>,
    /// The mesh's trust domain, once the mesh config has been read.
    pub(super) trust_domain: watch::Receiver<Option<Arc<str>>>,
    /// Identifies the pods of members and verifies their tokens.
    pub(super) callers: Arc<MemberCallers>,
    pub(super) credentials: Arc<MemberCredentials>,
    /// The connections of relays.
    pub(super) relays: Arc<RelayHub>,
    /// The published keys of issuers whose tokens enrol relays.
    pub(super) relay_keys: RelayIssuerKeys,
    /// Number of objects that can't be used unchanged.
    pub(super) faulty: watch::Receiver<usize>,
    /// Reports about all configuration objects.
    pub(super) reports: watch::Receiver<Arc<ConfigReports>>,
    /// The active hold.
    pub(super) hold: watch::Receiver<Arc<HoldState>>,
    /// Whether all replicas have the same hold.
    pub(super) hold_sharing: watch::Receiver<HoldSharing>,
    /// The running rollout.
    pub(super) rollout: watch::Receiver<Arc<RolloutState>>,
    /// Sends requests to hold or release a configuration.
    pub(super) holds: HoldRequests,
    pub(super) readiness: watch::Receiver<Readiness>,
    /// Directory of the last known state, if there is one.
    pub(super) state: Option<strait_lkg::StateDirectory>,
    /// Parts of the last known state that no snapshot contains.
    pub(super) others: strait_lkg::Others,
    pub(super) mesh_data: watch::Receiver<ConfigMapData>,
    /// The member sources that cannot be read.
    pub(super) source_problems: watch::Receiver<Vec<String>>,
    /// Publishes the problems that the task of the admin API finds.
    pub(super) problems: watch::Sender<Arc<Vec<LastingProblem>>>,
    /// Becomes true during shutdown, once another control plane may write.
    pub(super) given_up: watch::Receiver<bool>,
}

/// The files that the operator maintains.
pub(super) struct OperatorFiles {
    pub(super) policy: WatchedFile<Policy>,
    pub(super) members: WatchedFile<MemberSources>,
}

/// Channels of certificates: the current ones, and the roots from the mesh config.
pub(super) struct Certificates {
    pub(super) identity: watch::Receiver<Arc<ServerIdentity>>,
    /// Roots that the mesh config names.
    pub(super) named_roots: watch::Sender<Arc<NamedRoots>>,
    /// Opens once the process may serve with its roots.
    pub(super) gate: RootGate,
}

/// State from before the start.
pub(super) struct KnownBefore {
    pub(super) state_dir: Option<PathBuf>,
    /// Storage of the hold that replicas share; `None` if there can be no other replica.
    pub(super) shared_hold: Option<SharedHoldStore>,
    /// The read of this hold, which has already started.
    pub(super) early_hold: EarlyHold,
}

impl ServerInputs {
    /// Starts all sources, and the feed that sends their updates to the core.
    pub(super) async fn start(
        args: &ServeArgs,
        source: &ConfigOrigin,
        KnownBefore { state_dir, shared_hold, early_hold }: KnownBefore,
        files: &OperatorFiles,
        Certificates { identity, named_roots, gate }: Certificates,
        core: &Core,
        tasks: &Supervisor,
    ) -> Self {
        let policy = files.policy.value.clone();
        let hold_file = state_dir.as_deref().map(HoldFile::of);
        let rollout_files = state_dir.as_deref().map(RolloutFiles::of);
        let (outside_dir, relay_dir) = (state_dir.clone(), state_dir.clone());
        let secrets_dir = state_dir.clone();
        let keys_file = state_dir.as_ref().map(|folder| folder.join("jwks.json"));
        let (state, restored) = last_known_good(args, state_dir).await;
        let config_cluster = source.objects(args, &restored, state.is_some(), tasks);
        let remembered = restored.is_enough().then(|| restored.mesh.clone());
        let objects = config_cluster.objects;
        let mesh = MeshSource::of(args, objects.clone(), remembered, tasks);
        let source_statuses = SourceStatusTable::new(args.clusters.remote_cluster_timeout);
        let (updates, updates_taken) = mpsc::channel(EVENTS);
        let consuls = consul::ConsulConfig {
            addresses: args.sources.consul_address.clone(),
            updates: updates.clone(),
            source_statuses: source_statuses.clone(),
            remembered: restored.datacentres,
        };
        let restored_updates = consul::start(consuls, tasks);
        // Registries send nothing before the mesh config has been read.
        let (selectors, selectors_seen) = watch::channel(None);
        let (trust_domain, trust_domain_seen) = watch::channel(None);
        let (role, given_up) = writer(args, source, &gate, &core.drain, tasks);
        let relays = Arc::new(RelayHub::default());
        let roots = roots(identity, gate.clone(), tasks);
        let writes = MemberWrites { roots, role: role.clone() };
        let sources = files.members.value.clone();
        let ObjectsWithSources { objects: members, problems: source_problems } =
            match &args.sources.members {
                Some(_) => {
                    let hub = source.config_cluster().map(|hub| hub.access);
                    secret_sources::with_sources(objects.clone(), hub, sources.clone(), tasks)
                }
                None => ObjectsWithSources::without(objects.clone()),
            };
        let (renewal_failures, failures_seen) = watch::channel(Arc::default());
        let clusters = reconciler::start(
            reconciler::ReconcilerConfig {
                objects: members,
                sources,
                config_cluster: source.config_cluster(),
                loopback: source.loopback(),
                system_namespace: args.namespace.clone(),
                domain: args.domain.clone(),
                trust_domain: trust_domain_seen.clone(),
                metadata: args.endpoint_metadata(),
                mcs: args.mcs.mcs,
                imports: args.mcs.mcs_imports,
                clusterset: args.mcs.clusterset.clone(),
                shared: core.shared.clone(),
                shared_endpoints: core.shared_endpoints.clone(),
                writes,
                selectors: selectors_seen,
                removal_grace: args.clusters.cluster_removal_grace,
                sync_timeout: args.clusters.remote_cluster_timeout,
                stale_after: args.clusters.stale_after,
                policy: policy.clone(),
                updates,
                remembered: restored.clusters,
                renewal_failures: failures_seen,
                runner: runner(Arc::clone(&relays)),
            },
            tasks,
        );
        let relay_keys =
            relay_keys::start(args, source, relay_dir, policy.clone(), &source_statuses, tasks);
        let relayed = follow_members(clusters.relayed.clone(), Arc::clone(&relays));
        tasks.spawn("relayed members", relayed);
        share_services(args, core, &clusters.statuses, tasks);
        let (callers, keys) = callers::start(
            callers::CallersConfig {
                known: clusters.known.clone(),
                settled: clusters.settled.clone(),
                clients: clusters.clients.clone(),
                policy: policy.clone(),
                statuses: clusters.statuses.clone(),
                pods: Arc::new(KnownPods(core.context.clone())),
                audiences: args.tokens.token_audience.clone(),
                aliases: args.clusters.cluster_alias.iter().cloned().collect(),
                system_namespace: args.namespace.clone(),
                outside: outside_issuer::start(args, source, outside_dir, &source_statuses, tasks),
                remembered: restored.issuers,
            },
            tasks,
        );
        tasks.spawn("pods of callers", follow_pods(core.context.clone(), Arc::clone(&callers)));
        let (writes, failures) = (role.clone(), renewal_failures);
        let statuses = &clusters.statuses;
        let (problems, problems_seen) = watch::channel(Arc::default());
        report_events(args, source, &role, statuses, problems_seen, tasks);
        publish_profiles(source, &writes, &files.members.value, &clusters, tasks);
        renew_tokens(source, writes, &objects, failures, tasks);

        let contact = config_cluster.contact;
        let stores = ObjectStores::of(
            args,
            (objects, contact),
            (restored.stores, state.is_some()),
            source_statuses.clone(),
            tasks,
        );
        let (readiness, readiness_seen) = watch::channel(Readiness::default());
        let (faulty, faulty_seen) = watch::channel(0);
        let (reports, reports_seen) = watch::channel(Arc::default());
        let (holds, holds_asked) = mpsc::channel(HOLDS);
        let (hold, hold_seen) = watch::channel(Arc::default());
        let (rollout, rollout_seen) = watch::channel(Arc::default());
        let (last_valid_objects, last_valid_receiver) = watch::channel(Arc::default());
        let judged = JudgedStatuses {
            context: core.context.clone(),
            reports: reports_seen.clone(),
            readiness: readiness_seen.clone(),
            of_istio: args.write_status,
        };
        let (context, ready) = (core.context.clone(), readiness_seen.clone());
        write_dns_records(args, source, role.clone(), context, ready, tasks);
        tasks.spawn("ignored scopes", warn_of_ignored_scopes(core.context.clone()));
        write_statuses(source, role, judged, tasks);
        let hold_sharing = share_holds(shared_hold.clone(), &hold_seen, &holds, tasks);
        let inputs = Self {
            statuses: clusters.statuses.clone(),
            mesh_problems: mesh.problems(),
            trust_domain: trust_domain_seen,
            callers,
            relays,
            relay_keys,
            credentials: Arc::new(gateway_secrets(args, secrets_dir, &clusters.clients, tasks)),
            faulty: faulty_seen,
            reports: reports_seen,
            hold: hold_seen,
            hold_sharing,
            rollout: rollout_seen,
            holds,
            readiness: readiness_seen,
            state,
            others: strait_lkg::Others {
                lines: source_statuses.lines(),
                stores: stores.held(),
                last_valid_objects: last_valid_receiver,
                issuers: keys,
            },
            mesh_data: mesh.data(),
            source_problems,
            source_statuses: source_statuses.clone(),
            problems,
            given_up,
        };
        let (wanted_keys, keys_wanted) = watch::channel(Arc::default());
        // On this host, the author of a policy could probe ports otherwise
        // (docs/contributing/decisions/0058-loopback.md).
        let loopback = false;
        let fetched = key_fetcher::start(
            "keys of tokens",
            args,
            loopback,
            // Proxies verify these tokens, so nothing requests keys here.
            KeyPlaces { wanted: keys_wanted, requests: Arc::default() },
            keys_file,
            &source_statuses,
            tasks,
        );
        let configuration = Configuration {
            rules: ReadingRules {
                domain: args.domain.clone(),
                defaults: mesh.defaults(),
                errors: args.access.policy_errors.into(),
                budget: Default::default(),
                default_visibility: DefaultVisibility::default(),
            },
            mesh,
            stores,
            hold_file,
            shared_hold,
            early_hold,
            rollout_files,
            unread: config_cluster.unread,
            gate,
        };
        let from = FeedInputs {
            restored: restored_updates,
            updates: updates_taken,
            clusters,
            policy,
            resolved: core.resolved.clone(),
            dead_gateways: core.dead_gateways.clone(),
            fetched,
            context: core.context.clone(),
            holds: holds_asked,
        };
        let to = FeedOutputs {
            events: core.events.clone(),
            selectors,
            trust_domain,
            named_roots,
            wanted_keys,
            faulty,
            reports,
            hold,
            last_valid_objects,
            source_statuses,
            readiness,
        };
        let rollout = RolloutOutputs {
            heads: Arc::clone(&core.heads),
            subscription_index: Arc::clone(&core.subscription_index),
            timeline: Arc::clone(&core.timeline),
            state: rollout,
        };
        tasks.spawn("feed", feed::run(configuration, from, to, rollout, tasks.clone()));
        inputs
    }
}

/// Creates the reader of gateways' Secrets. Without `--keep-gateway-secrets` it removes the file of an earlier process.
fn gateway_secrets(
    args: &ServeArgs,
    state_dir: Option<PathBuf>,
    clients: &watch::Receiver<Arc<reconciler::MemberClients>>,
    tasks: &Supervisor,
) -> MemberCredentials {
    let credentials = MemberCredentials::new(clients.clone(), tasks.child());
    let file = state_dir.map(|folder| folder.join("gateway-secrets.json"));
    match file {
        Some(file) if args.state.keep_gateway_secrets => credentials.keeping_in(file),
        Some(file) => {
            if let Err(error) = durable::remove(&file)
                && error.kind() != std::io::ErrorKind::NotFound
            {
                warn!(path = %file.display(), %error, "removing the stored gateway secrets failed");
            }
            credentials
        }
        None => credentials,
    }
}

/// Starts the task that synchronizes holds between replicas. Returns whether they agree.
fn share_holds(
    store: Option<SharedHoldStore>,
    hold: &watch::Receiver<Arc<HoldState>>,
    holds: &HoldRequests,
    tasks: &Supervisor,
) -> watch::Receiver<HoldSharing> {
    let Some(store) = store else { return watch::channel(HoldSharing::Alone).1 };
    let (sharing, receiver) = watch::channel(HoldSharing::Shared(None));
    let (hold, holds) = (hold.clone(), holds.clone());
    tasks.spawn_restarting("holds of replicas", Duration::from_secs(1), move || {
        let (store, hold, holds) = (store.clone(), hold.clone(), holds.clone());
        HoldFollower { store, hold, holds, sharing: sharing.clone(), now: SystemTime::now }.run()
    });
    receiver
}

/// Starts the election of the replica that writes. Returns this replica's role, and whether it has
/// given the role up. With a config directory there is only one replica.
fn writer(
    args: &ServeArgs,
    source: &ConfigOrigin,
    gate: &RootGate,
    drain: &CancellationToken,
    tasks: &Supervisor,
) -> (watch::Receiver<WriterRole>, watch::Receiver<bool>) {
    let Some(config_cluster) = source.config_cluster() else {
        return (watch::channel(WriterRole::Writes).1, watch::channel(true).1);
    };
    let (role, role_seen) = watch::channel(WriterRole::Standby);
    let (given_up, given_up_seen) = watch::channel(false);
    let lease = Arc::new(WriterLease {
        access: config_cluster.access,
        namespace: args.namespace.clone(),
        us: args.replica_id().process_name(),
        role,
        drain: drain.clone(),
        given_up,
    });
    let gate = gate.clone();
    tasks.spawn_restarting("writer", Duration::from_secs(1), move || {
        let (lease, gate) = (Arc::clone(&lease), gate.clone());
        async move {
            tokio::select! {
                () = gate.open() => lease.run().await,
                // It never wrote.
                () = lease.drain.cancelled() => drop(lease.given_up.send_replace(true)),
            }
        }
    });
    (role_seen, given_up_seen)
}

/// Returns the root certificates for workloads, and follows their changes.
fn roots(
    mut identity: watch::Receiver<Arc<ServerIdentity>>,
    gate: RootGate,
    tasks: &Supervisor,
) -> watch::Receiver<Option<Arc<RootBundle>>> {
    let (roots, seen) = watch::channel(None);
    tasks.spawn("roots", async move {
        gate.open().await;
        loop {
            let new = identity.borrow_and_update().root_bundle().cloned();
            publish_change(&roots, new);
            // An error means that the process is ending.
            if identity.changed().await.is_err() {
                return;
            }
        }
    });
    seen
}

/// Starts the task that writes Kubernetes events about members and problems.
fn report_events(
    args: &ServeArgs,
    source: &ConfigOrigin,
    role: &watch::Receiver<WriterRole>,
    statuses: &watch::Receiver<Arc<Vec<ClusterStatus>>>,
    problems: watch::Receiver<Arc<Vec<LastingProblem>>>,
    tasks: &Supervisor,
) {
    let Some(config_cluster) = source.config_cluster() else { return };
    let (access, namespace) = (config_cluster.access, args.namespace.clone());
    let (statuses, role) = (statuses.clone(), role.clone());
    tasks.spawn_restarting("kubernetes events", Duration::from_secs(1), move || {
        let (statuses, problems) = (statuses.clone(), problems.clone());
        events::run(access.clone(), namespace.clone(), role.clone(), statuses, problems)
    });
}

/// Starts the task that renews tokens in the config cluster.
fn renew_tokens(
    source: &ConfigOrigin,
    role: watch::Receiver<WriterRole>,
    objects: &watch::Receiver<Option<Arc<Objects>>>,
    failures: watch::Sender<Arc<RenewalFailures>>,
    tasks: &Supervisor,
) {
    let Some(config_cluster) = source.config_cluster() else { return };
    let (access, objects, loopback) = (config_cluster.access, objects.clone(), source.loopback());
    tasks.spawn_restarting("token renewal", Duration::from_secs(1), move || {
        let (access, role, objects) = (access.clone(), role.clone(), objects.clone());
        renewal::run(access, role, objects, loopback, failures.clone())
    });
}

/// Starts the task that publishes members as ClusterProfiles.
fn publish_profiles(
    source: &ConfigOrigin,
    role: &watch::Receiver<WriterRole>,
    sources: &watch::Receiver<Arc<MemberSources>>,
    clusters: &reconciler::ReconcilerOutputs,
    tasks: &Supervisor,
) {
    let Some(config_cluster) = source.config_cluster() else { return };
    let config = PublishedProfilesConfig {
        access: config_cluster.access,
        role: role.clone(),
        sources: sources.clone(),
        settled: clusters.settled.clone(),
        statuses: clusters.statuses.clone(),
        clients: clusters.clients.clone(),
    };
    tasks.spawn_restarting("published profiles", Duration::from_secs(1), move || {
        published_profiles::run(config.clone())
    });
}

/// Starts the tasks that compute and write the statuses of objects.
fn write_statuses(
    source: &ConfigOrigin,
    role: watch::Receiver<WriterRole>,
    judged: JudgedStatuses,
    tasks: &Supervisor,
) {
    let Some(config_cluster) = source.config_cluster() else { return };
    let (wanted, wanted_seen) = watch::channel(Arc::default());
    let looks = role.clone();
    tasks.spawn_restarting("statuses", Duration::from_secs(1), move || {
        judged.clone().run(looks.clone(), wanted.clone())
    });
    let access = config_cluster.access;
    tasks.spawn_restarting("status writer", Duration::from_secs(1), move || {
        statuses::run(access.clone(), role.clone(), wanted_seen.clone())
    });
}

/// Opens the state directory and reads the last known state.
async fn last_known_good(
    args: &ServeArgs,
    state_dir: Option<PathBuf>,
) -> (Option<strait_lkg::StateDirectory>, strait_lkg::RestoredState) {
    let Some(state_dir) = state_dir else { return (None, strait_lkg::RestoredState::default()) };
    let origin = strait_lkg::StateOrigin {
        domain: args.domain.as_str().into(),
        trust_domain: args.trust_domain.as_str().into(),
        system_namespace: args.namespace.as_str().into(),
    };
    let read = tokio::task::spawn_blocking(move || strait_lkg::open(&state_dir, origin));
    match read.await {
        Ok((store, restored)) => (Some(store), restored),
        Err(error) => {
            warn!(%error, "reading the last-known-good state failed; starting without it");
            (None, strait_lkg::RestoredState::default())
        }
    }
}

/// Returns the function that reads one member: directly, or through its relay.
fn runner(relays: Arc<RelayHub>) -> reconciler::Runner {
    Arc::new(move |config| {
        let client = match config.access.is_relayed() {
            true => Ok(ApiClient::relayed(relays.carrier(&config.cluster))),
            false => ApiClient::new(&config.access),
        };
        Box::pin(registry::kube::run_with(config, client))
    })
}
