//! The daemon: flags, the wiring of all subsystems, the admin port and metrics.
//!
//! [`start`] binds the ports, starts every task and returns the bound addresses, so that a test or the demo can run the
//! whole daemon on port 0. [`run`] is `strait serve`: it starts the daemon, prints the addresses, waits for a signal and
//! drains. Invariants:
//!
//! - This is the only crate in which sources, mesh and ADS meet.
//! - The admin port only reads, except for requests to hold or roll out a configuration.
//! - No domain logic: everything here connects, renders or counts.

#![forbid(unsafe_code)]

pub mod admin;
pub mod config;
pub mod metrics;
pub mod replicas;

mod active_configuration;
mod authority_secret;
mod callers;
mod churn_monitor;
mod config_client;
mod core;
mod dns_records;
mod error;
mod estate_ca;
mod feed;
mod ignored_scopes;
mod inputs;
mod journal;
mod judged_statuses;
mod key_fetcher;
mod kube_secret;
mod outputs;
mod outside_issuer;
mod pressure;
mod relay_keys;
mod relay_tokens;
mod relays;
mod replica_state;
mod rollout;
mod root_gate;
mod root_store;
mod root_witness;
mod shared_hold;
mod source;
mod start_reads;
mod state_dir;
mod stream_monitor;
mod used_invitations;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use strait_base::codes;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::config_client::ConfigClient;
use self::core::Core;
pub use self::error::ServeError;
use self::inputs::{Certificates, KnownBefore, OperatorFiles, ServerInputs};
use self::outputs::{Ports, ServerOutputs};
use self::root_gate::RootGate;
use self::root_store::RootStore;
use self::root_witness::{LateWitness, MeshWitness};
use self::shared_hold::SharedHoldStore;
use self::source::ConfigOrigin;
use self::start_reads::{EarlyHold, START_WAIT};
use self::state_dir::StateDir;
use self::used_invitations::UsedInvitations;
use crate::admin::{Readiness, Token, TokenError};
use crate::config::{ListenAddress, ServeArgs};
use crate::replicas::OtherReplicas;
use strait_base::signal::signalled;
use strait_base::task::Supervisor;
use strait_identity::tls::ClientCertificates;
use strait_identity::{
    AuthorityFrom, ReplicaAuthenticator, RootEvidence, RootLedger, RootRecords, Serving, rotation,
};
use strait_mesh::history::HistoryRecorder;
use strait_mesh::timeline::{self, Timeline, TimelineFile};
use strait_model::ClusterId;
use strait_sources::jwks;
use strait_sources::policy_watch::WatchedFile;

/// Maximum time for streams to end before the process exits.
const DRAIN: Duration = Duration::from_secs(15);

/// Maximum time to write the last state after that.
const SAVE: Duration = Duration::from_secs(5);

/// A running server.
pub struct Bound {
    /// Address for proxies.
    pub xds: SocketAddr,
    /// Address of the admin API.
    pub admin: SocketAddr,
    /// Address of the webhook, if it is served.
    pub inject: Option<SocketAddr>,
    /// File that contains the admin token.
    pub token_file: PathBuf,
    /// Whether the server is ready, and the reasons to wait.
    pub readiness: watch::Receiver<Readiness>,
    tasks: Supervisor,
    drain: CancellationToken,
    streams: Arc<strait_ads::connections::Connections>,
    /// Becomes true once the last state has been written; `None` if no state is stored.
    saved: Option<watch::Receiver<bool>>,
    /// Becomes true once another control plane may write into clusters.
    given_up: watch::Receiver<bool>,
    /// Closed once the timeline and the history have been written.
    written: mpsc::Receiver<()>,
    /// Directory of the token if there is no state directory; deleted when the process ends.
    _temporary: Option<TempDir>,
    /// The state directory, reserved for this process until the last task has ended.
    _state_dir: Option<StateDir>,
}

impl Bound {
    /// Waits for streams to end, then stops every task.
    pub async fn shut_down(mut self) {
        self.drain.cancel();
        let gone = async {
            while !self.streams.is_empty() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        if tokio::time::timeout(DRAIN, gone).await.is_err() {
            warn!(
                streams = self.streams.len(),
                "closing streams that did not end before the deadline"
            );
        }
        if let Some(mut saved) = self.saved
            && tokio::time::timeout(SAVE, saved.wait_for(|saved| *saved)).await.is_err()
        {
            warn!("writing the last state timed out; the previous state is still on disk");
        }
        // The writer logs a failure itself.
        let _ = tokio::time::timeout(SAVE, self.given_up.wait_for(|given_up| *given_up)).await;
        if tokio::time::timeout(SAVE, self.written.recv()).await.is_err() {
            warn!("writing the timeline or the history timed out");
        }
        self.tasks.shut_down(Duration::from_secs(5)).await;
    }
}

/// Runs `strait serve`: prints one line of JSON once its ports listen, and drains on SIGTERM,
/// SIGHUP or Ctrl-C.
///
/// # Errors
/// If the server can't start.
pub async fn run(args: &ServeArgs) -> Result<(), ServeError> {
    if args.lock_memory {
        lock_memory();
    }
    // A signal also ends an unfinished start, and removes its temporary files.
    let mut signal = std::pin::pin!(signalled());
    let bound = tokio::select! {
        bound = Box::pin(start(args)) => bound?,
        () = &mut signal => return Ok(()),
    };
    let inject = bound.inject.map(|inject| format!(r#","inject":"{inject}""#)).unwrap_or_default();
    let line = format!(r#"{{"xds":"{}","admin":"{}"{inject}}}"#, bound.xds, bound.admin);
    // Proxies are served even if nothing reads the output.
    let _ = writeln!(std::io::stdout(), "{line}");
    signal.await;
    info!("draining");
    bound.shut_down().await;
    Ok(())
}

/// Locks the program in memory, or logs why that is not possible.
fn lock_memory() {
    match strait_heap::lock_program() {
        Ok(program) => info!(bytes = program.bytes, "the program is locked in memory"),
        Err(refusal) => {
            let limit = match refusal.limit {
                Some(limit) => format!("its limit is {limit} bytes (RLIMIT_MEMLOCK)"),
                None => "it has no limit (RLIMIT_MEMLOCK)".to_owned(),
            };
            let code = &codes::MEMORY_NOT_LOCKED;
            let (needed, error) = (refusal.bytes, refusal.error);
            warn!(
                code = code.id,
                next = code.next,
                "the process cannot lock {needed} bytes of program code in memory: {error}; {limit}"
            );
        }
    }
}

/// Binds all ports and starts every task.
///
/// # Errors
/// If a flag, a file or a port can't be used. Later failures are reported and retried instead.
pub async fn start(args: &ServeArgs) -> Result<Bound, ServeError> {
    let tasks = Supervisor::new();
    let state_dir = StateDir::open(args.state.state_dir.as_deref())?;
    let state_path = state_dir.as_ref().map(|held| held.path().to_owned());
    let AdminToken { token, file: token_file, temporary } =
        admin_token(args, state_path.as_deref())?;
    let reader_token =
        args.admin.admin_reader_token_file.as_deref().map(Token::read).transpose()?;
    let source = ConfigOrigin::of(args, &tasks).await?;
    let files = OperatorFiles {
        policy: WatchedFile::start(args.sources.policy.as_ref(), &tasks)?,
        members: WatchedFile::start_members(
            args.sources.members.as_ref(),
            args.sources.clusterprofile_provider_file.as_ref(),
            &tasks,
        )?,
    };
    if let Some(path) = &args.access.jwks_roots {
        let checked = jwks::check_roots(path);
        checked.map_err(|source| ServeError::JwksRoots { path: path.clone(), source })?;
    }
    args.prometheus.check()?;
    let (named_roots, named) = watch::channel(Arc::default());
    let config_client = source.config_cluster().map(|hub| ConfigClient::new(hub.access));
    let shared_hold = config_client
        .clone()
        .map(|client| SharedHoldStore { client, namespace: args.namespace.clone() });
    let (roots, early_hold) = RootsKeeper::start(
        args,
        state_path.as_deref(),
        config_client.as_ref(),
        shared_hold.clone(),
        &tasks,
    )
    .await;
    let identity =
        identity(args, state_path.as_deref(), &source, named, roots.evidence(), &tasks).await?;
    let (identity_seen, identity_entered) = (identity.clone(), identity.clone());
    let gate =
        RootGate::start(&identity, roots.known.clone(), args.authority.accept_new_root, &tasks);
    let (xds_listener, xds) = bind(&args.xds_address, "--xds-address").await?;
    let (admin_listener, admin) = bind(&args.admin.admin_address, "--admin-address").await?;
    let webhook = match &args.webhooks.inject_address {
        Some(address) => Some(bind(address, "--inject-address").await?),
        None => None,
    };
    let inject = webhook.as_ref().map(|(_, local)| *local);
    let replicas = other_replicas(args, &source, identity.clone(), xds.port(), &tasks);
    if let Some(state_dir) = &state_path {
        replica_state::take(&replicas.0, state_dir).await;
    }

    let (timeline, timeline_file) = match state_path.as_deref() {
        Some(directory) => {
            let (file, past) = TimelineFile::open(directory.join("timeline"));
            (Arc::new(Timeline::restored(past)), Some(file))
        }
        None => (Arc::default(), None),
    };
    let core = Core::start(args, source.config_cluster_id(), Arc::clone(&timeline), &tasks);
    let before = KnownBefore { state_dir: state_path.clone(), shared_hold, early_hold };
    let certificates = Certificates { identity: identity.clone(), named_roots, gate: gate.clone() };
    let inputs =
        ServerInputs::start(args, &source, before, &files, certificates, &core, &tasks).await;
    let (readiness, given_up) = (inputs.readiness.clone(), inputs.given_up.clone());
    let (problems, source_statuses) = (inputs.problems.subscribe(), inputs.source_statuses.clone());
    let statuses = inputs.statuses.clone();
    let ports = Ports {
        xds: xds_listener,
        admin: admin_listener,
        admin_hosts: args.admin.admin_host.clone(),
        identity,
        token,
        reader_token,
        prometheus: args.prometheus.clone(),
        max_connections: args.max_connections,
        audit_interval: Some(args.audit_interval).filter(|interval| !interval.is_zero()),
        certificate_lifetime_max: args.authority.max_certificate_lifetime,
        relay_certificate_lifetime: args.authority.relay_certificate_ttl,
        used_invitations: UsedInvitations::new(
            config_client.clone().map(|client| (client, args.namespace.clone())),
        ),
        tokens_count: !args.serving.require_client_certificate,
        state_dir: state_path,
        webhook: webhook.map(|(listener, _)| {
            let settings = args.inject.settings(&args.namespace, &args.cluster_id, &args.domain);
            (listener, settings)
        }),
        policy_errors: args.access.policy_errors.into(),
        validation: args.webhooks.validation.into(),
        replicas,
    };
    let (recorder, history) = HistoryRecorder::open(ports.state_dir.as_deref());
    let versions = core.context.clone();
    let ServerOutputs { streams, saved, drain } =
        ServerOutputs::start(ports, core, inputs, files, history, &tasks);
    let entered = journal::JournalInputs {
        timeline: Arc::clone(&timeline),
        context: versions.clone(),
        statuses: statuses.clone(),
        identity: identity_entered,
        problems,
        source_statuses,
        connections: Arc::clone(&streams),
        replica: args.replica_id(),
    };
    tasks.spawn("journal", journal::run(entered, drain.clone()));
    let witness = MeshWitness {
        started: SystemTime::now(),
        readiness: readiness.clone(),
        statuses,
        streams: Arc::clone(&streams),
        replicas: Arc::default(),
    };
    roots.watch(witness, identity_seen, gate, &tasks);
    // Held by each task that writes on shutdown, until it has finished.
    let (writing, written) = mpsc::channel::<()>(1);
    if let Some(file) = timeline_file {
        let (keeping, writing) = (timeline::keep(timeline, file, drain.clone()), writing.clone());
        tasks.spawn("timeline", async move {
            let _writing = writing;
            keeping.await;
        });
    }
    let recording = recorder.run(versions, drain.clone());
    tasks.spawn("history", async move {
        let _writing = writing;
        recording.await;
    });
    info!(%xds, %admin, token_file = %token_file.display(), "listening");
    Ok(Bound {
        xds,
        admin,
        inject,
        token_file,
        readiness,
        tasks,
        drain,
        streams,
        saved,
        given_up,
        written,
        _temporary: temporary,
        _state_dir: state_dir,
    })
}

/// Finds the other replicas: the addresses of `--peers`, otherwise the endpoints of Strait's own
/// Service. A process outside of the config cluster is not an endpoint of the Service, so it does
/// not belong to those replicas.
fn other_replicas(
    args: &ServeArgs,
    source: &ConfigOrigin,
    identity: watch::Receiver<Arc<strait_identity::ServerIdentity>>,
    port: u16,
    tasks: &Supervisor,
) -> (Arc<OtherReplicas>, Arc<ReplicaAuthenticator>) {
    let found = match source {
        ConfigOrigin::Cluster { in_pod: true, access, .. } if args.replicas.peers.is_empty() => {
            let (access, own_pod) = (access.clone(), config::pod_name());
            replicas::follow(access, args.namespace.clone(), own_pod, port, tasks)
        }
        _ => replicas::listed(&args.replicas.peers),
    };
    let authenticator = Arc::new(ReplicaAuthenticator::new(args.replica_id(), identity));
    let replicas = Arc::new(OtherReplicas::new(Arc::clone(&authenticator), found));
    let reporting = Arc::clone(&replicas);
    tasks.spawn_restarting("replica problems", Duration::from_secs(1), move || {
        Arc::clone(&reporting).report_problems()
    });
    (replicas, authenticator)
}

async fn bind(
    address: &ListenAddress,
    flag: &'static str,
) -> Result<(TcpListener, SocketAddr), ServeError> {
    let bound = async {
        let listener = address.bind().await?;
        let local = listener.local_addr()?;
        Ok((listener, local))
    };
    bound.await.map_err(|source| ServeError::Bind { address: address.clone(), flag, source })
}

/// The admin token and its file.
struct AdminToken {
    token: Token,
    file: PathBuf,
    /// Directory that was created for this file only.
    temporary: Option<TempDir>,
}

fn admin_token(args: &ServeArgs, state_dir: Option<&Path>) -> Result<AdminToken, ServeError> {
    if let Some(path) = &args.admin.admin_token_file {
        return Ok(AdminToken { token: Token::read(path)?, file: path.clone(), temporary: None });
    }
    if let Some(directory) = state_dir {
        let (token, file) = Token::read_or_make(directory)?;
        return Ok(AdminToken { token, file, temporary: None });
    }
    let directory = admin::runtime_directory()
        .map_err(|source| TokenError::File { path: std::env::temp_dir(), source })?;
    let (token, file) = Token::read_or_make(directory.path())?;
    info!(path = %file.display(), "admin token");
    Ok(AdminToken { token, file, temporary: Some(directory) })
}

/// Records about the CA's root certificates, and the place where they are stored.
struct RootsKeeper {
    store: RootStore,
    /// The records about roots that workloads had at the start.
    known: RootRecords,
    ledger: Arc<RootLedger>,
    witness: Arc<LateWitness>,
}

impl RootsKeeper {
    /// Reads the stored records, and starts to read the hold that replicas share.
    async fn start(
        args: &ServeArgs,
        state_dir: Option<&Path>,
        config_client: Option<&ConfigClient>,
        shared_hold: Option<SharedHoldStore>,
        tasks: &Supervisor,
    ) -> (Self, EarlyHold) {
        // Without a CA there are no records, so the start does not wait for the config cluster.
        let client = config_client.filter(|_| args.authority.ca.is_none());
        let secret = client.map(|client| (client.clone(), args.namespace.clone()));
        let store = RootStore::new(state_dir, secret, &args.replica_id());
        let (early_hold, (own, shared)) =
            start_reads::read(shared_hold, &store, START_WAIT, tasks).await;
        let mut known = shared.clone();
        known.extend(own.clone());
        if known.is_empty() {
            known = store.written_in_namespace(START_WAIT).await;
        }
        let is_accepted = args.authority.accept_new_root;
        let ledger = RootLedger::new(own, shared.clone(), args.authority.max_certificate_lifetime);
        if is_accepted {
            // The previous roots stay trusted although the CA shares none with them.
            ledger.merge(&shared);
        }
        let ledger = Arc::new(ledger);
        (Self { store, known, ledger, witness: Arc::default() }, early_hold)
    }

    fn evidence(&self) -> RootEvidence {
        let (ledger, witness) = (Arc::clone(&self.ledger), Arc::clone(&self.witness));
        RootEvidence { ledger, witness }
    }

    /// Starts to observe the mesh and to store the records.
    fn watch(
        self,
        witness: MeshWitness,
        identity: watch::Receiver<Arc<strait_identity::ServerIdentity>>,
        gate: RootGate,
        tasks: &Supervisor,
    ) {
        let replicas = Arc::clone(&witness.replicas);
        // `set` is called only once.
        let _ = self.witness.0.set(witness);
        let (store, late) = (self.store, self.witness);
        tasks.spawn_restarting("roots of the CA", Duration::from_secs(1), move || {
            let (store, identity, gate) = (store.clone(), identity.clone(), gate.clone());
            let (late, replicas) = (Arc::clone(&late), Arc::clone(&replicas));
            async move {
                gate.open().await;
                store.run(identity, late, replicas).await;
            }
        });
    }
}

/// Starts the watch of the serving certificate and the roots: from the configured files, otherwise
/// from a CA.
async fn identity(
    args: &ServeArgs,
    state_dir: Option<&Path>,
    source: &ConfigOrigin,
    named: watch::Receiver<Arc<strait_identity::NamedRoots>>,
    evidence: RootEvidence,
    tasks: &Supervisor,
) -> Result<watch::Receiver<Arc<strait_identity::ServerIdentity>>, ServeError> {
    let authority = match &args.authority.ca_dir {
        Some(directory) => Some(AuthorityFrom::Directory(directory.clone())),
        // With files for both purposes there is nothing left to issue; `--ca none` requires these files.
        None if args.serving.tls_cert.is_some() && args.serving.client_ca.is_some() => None,
        None => Some(source.authority(args, state_dir, tasks).await?),
    };
    let serving = match (&args.serving.tls_cert, &args.serving.tls_key) {
        (Some(certificate), Some(key)) => {
            Serving::Files { certificate: certificate.clone(), key: key.clone() }
        }
        _ => Serving::Issued { names: args.serving_names() },
    };
    let client_ca = args.serving.client_ca.clone();
    let clients = match args.serving.require_client_certificate {
        true => ClientCertificates::Required,
        false => ClientCertificates::Optional,
    };
    let members = member_authorities(args, authority.is_some())?;
    let settings = rotation::CertificateSettings {
        serving,
        client_ca,
        authority,
        named,
        clients,
        evidence,
        relay_authority: args.authority.relay_ca_dir.clone(),
        members,
    };
    Ok(rotation::start(settings, rotation::INTERVAL, tasks)?)
}

/// Returns the directories of `--ca-member-dir` by member. Their contents are not read here and
/// can't prevent the start.
fn member_authorities(
    args: &ServeArgs,
    has_authority: bool,
) -> Result<BTreeMap<ClusterId, PathBuf>, ServeError> {
    let mut members = BTreeMap::new();
    for (member, directory) in &args.authority.ca_member_dir {
        let refused = |fact| Err(ServeError::MemberAuthority { member: member.clone(), fact });
        if !has_authority {
            return refused("the mesh has no CA with whose roots it could share; set --ca-dir");
        }
        if members.insert(member.clone(), directory.clone()).is_some() {
            return refused("the member is named twice; set one directory per member");
        }
    }
    Ok(members)
}
