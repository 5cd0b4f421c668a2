//! The wiring of the program: the one place where modules meet.
//!
//! [`start`] binds both ports, starts every task and returns what is needed to talk to it, so that a
//! test or the demo runs the whole daemon on port 0. [`run`] is `strait serve`: start, say where, wait
//! for a signal, drain.

mod authority_secret;
mod crowds;
mod feed;
mod pressure;
mod source;
mod state_dir;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tracing::{info, warn};

use self::feed::Feed;
use self::source::ConfigSource;
use self::state_dir::StateDir;
use crate::admin::{self, Readiness, Token, TokenError};
use crate::aggregate::MergedService;
use crate::clusters::status::ClusterStatus;
use crate::clusters::{events, heap, reconciler, renewal};
use crate::config::{ListenAddress, ServeArgs};
use crate::descriptors::Descriptors;
use crate::identity::authority::{DirectoryStore, load_or_create};
use crate::identity::{self, AuthorityFrom, Serving, rotation};
use crate::lkg;
use crate::memory::Memory;
use crate::metrics::Metrics;
use crate::model::{ClusterIdError, Mcs, NetworkId, SharedServices};
use crate::network::ResolvedNames;
use crate::network::probes::{self, Wanted};
use crate::network::resolver::{self, Dns};
use crate::policy::{self, PolicyError};
use crate::push::event_loop::{self, Figures, Mesh};
use crate::push::interest::Interest;
use crate::push::view::is_exported;
use crate::push::{self, PushContext};
use crate::registry::{self, consul};
use crate::sources::Board;
use crate::store::{self, own_cluster::OwnClusterError};
use crate::task::Supervisor;
use crate::xds::budgets::Budgets;
use crate::xds::{self, names::OutboundName};

/// Words of registries that may wait for the event loop. A full queue makes registries wait, each of
/// which merges what it has to say meanwhile.
const EVENTS: usize = 1024;
/// The least time between two looks at which services are shared.
const SHARED_PACE: Duration = Duration::from_secs(1);
/// How long streams have to end before the process does.
const DRAIN: Duration = Duration::from_secs(15);

/// How long writing the last state may take then.
const SAVE: Duration = Duration::from_secs(5);

/// Why the server could not start. Afterwards nothing ends it but a signal.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A port can't be bound.
    #[error("can't listen on {address} ({flag}): {source}")]
    Bind {
        /// The address.
        address: ListenAddress,
        /// The flag that names it.
        flag: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// `--cluster-id` is unusable.
    #[error("--cluster-id {id:?}: {source}")]
    ClusterId {
        /// The value.
        id: String,
        /// What is wrong with it.
        source: ClusterIdError,
    },
    /// `--config-dir` is no directory.
    #[error("--config-dir {}: {source}; create it, an empty one is fine", path.display())]
    ConfigDir {
        /// The path.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The config cluster can't be reached by its kubeconfig.
    #[error(transparent)]
    ConfigCluster(#[from] OwnClusterError),
    /// The state directory that was asked for can't be used.
    #[error("--state-dir {}: {source}", path.display())]
    StateDir {
        /// The path.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Another process uses the state directory.
    #[error("state directory {}: {holder} uses it", path.display())]
    StateInUse {
        /// The path.
        path: PathBuf,
        /// Who.
        holder: String,
    },
    /// Certificates or keys can't be used.
    #[error(transparent)]
    Identity(#[from] identity::Error),
    /// The policy can't be used.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// There is no admin token.
    #[error(transparent)]
    Token(#[from] TokenError),
}

/// A running server.
pub struct Bound {
    /// Where proxies connect.
    pub xds: SocketAddr,
    /// Where the admin API is.
    pub admin: SocketAddr,
    /// The file that holds the admin token.
    pub token_file: PathBuf,
    /// Whether it is ready.
    pub readiness: watch::Receiver<Readiness>,
    tasks: Supervisor,
    drain: tokio_util::sync::CancellationToken,
    streams: Arc<xds::connections::Connections>,
    /// Whether the last state has been written, where one is.
    saved: Option<watch::Receiver<bool>>,
    /// What holds the token where there is no state directory; it goes with the process.
    _temporary: Option<TempDir>,
    /// Ours until the last task has ended.
    _state_dir: Option<StateDir>,
}

impl Bound {
    /// Lets streams end, then stops every task.
    pub async fn shut_down(self) {
        self.drain.cancel();
        let gone = async {
            while !self.streams.is_empty() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        if tokio::time::timeout(DRAIN, gone).await.is_err() {
            warn!(streams = self.streams.len(), "streams were still open when the time was up");
        }
        if let Some(mut saved) = self.saved
            && tokio::time::timeout(SAVE, saved.wait_for(|saved| *saved)).await.is_err()
        {
            warn!("the last state was not written in time; the one before it is on disk");
        }
        self.tasks.shut_down(Duration::from_secs(5)).await;
    }
}

/// `strait serve`: prints one line of JSON once both ports listen, and drains on SIGTERM, SIGHUP or Ctrl-C.
///
/// # Errors
/// When it can't start.
pub async fn run(args: &ServeArgs) -> Result<(), ServeError> {
    // From the first moment on: what a start has made by then goes as well.
    let mut asked = std::pin::pin!(signalled());
    let bound = tokio::select! {
        bound = Box::pin(start(args)) => bound?,
        () = &mut asked => return Ok(()),
    };
    println!(r#"{{"xds":"{}","admin":"{}"}}"#, bound.xds, bound.admin);
    asked.await;
    info!("draining");
    bound.shut_down().await;
    Ok(())
}

/// Returns when the process is asked to end: SIGTERM, Ctrl-C, or SIGHUP, the end of its terminal. Signals are
/// caught from the call on.
pub(crate) fn signalled() -> impl Future<Output = ()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut kinds = vec![SignalKind::terminate(), SignalKind::interrupt()];
    if !hangups_are_ignored() {
        kinds.push(SignalKind::hangup());
    }
    let caught = kinds.into_iter().filter_map(|kind| match signal(kind) {
        Ok(mut signal) => Some(Box::pin(async move {
            signal.recv().await;
        })),
        Err(error) => {
            warn!(%error, signal = kind.as_raw_value(), "a signal can't be caught; it ends the process at once");
            None
        }
    });
    let caught: Vec<_> = caught.collect();
    async move {
        match caught.is_empty() {
            true => std::future::pending().await,
            false => drop(futures::future::select_all(caught).await),
        }
    }
}

/// Whether whoever started us wants us to outlive the terminal, as nohup(1) does.
fn hangups_are_ignored() -> bool {
    // Other systems than Linux don't say.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    ignores_hangups(&status)
}

/// The same of what proc_pid_status(5) says.
fn ignores_hangups(status: &str) -> bool {
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // SIGHUP is signal 1, the lowest bit.
    let mask = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 == 1)
}

/// Binds both ports and starts every task.
///
/// # Errors
/// When a flag, a file or a port can't be used. Nothing else is an error: what fails later is shown
/// and healed.
pub async fn start(args: &ServeArgs) -> Result<Bound, ServeError> {
    let tasks = Supervisor::new();
    let held = StateDir::open(args.state_dir.as_deref())?;
    let state_dir = held.as_ref().map(|held| held.path().to_owned());
    let AdminToken { token, file: token_file, temporary } =
        admin_token(args, state_dir.as_deref())?;
    let source = ConfigSource::of(args, &tasks).await?;
    let policy = policy(args, &tasks)?;
    let (named_roots, named) = watch::channel(Arc::default());
    let identity = identity(args, state_dir.as_deref(), &source, named, &tasks).await?;
    let (xds_listener, xds_address) = bind(&args.xds_address, "--xds-address").await?;
    let (admin_listener, admin_address) = bind(&args.admin_address, "--admin-address").await?;

    let (store, restored) = last_known_good(args, state_dir).await;
    let store::kube::Watched { objects, unread, contact } = source.objects(args, &restored, &tasks);
    let remembered = restored.is_enough().then(|| restored.mesh.clone());
    let mesh_source = source::MeshSource::of(args, objects.clone(), remembered, &tasks);
    let mesh_problems = mesh_source.problems();
    let (events, events_taken) = mpsc::channel(EVENTS);
    let (updates, updates_taken) = mpsc::channel(EVENTS);
    let board = Board::new(args.remote_cluster_timeout);
    let consuls = consul::Config {
        addresses: args.consul_address.clone(),
        updates: updates.clone(),
        board: board.clone(),
        remembered: restored.datacentres,
    };
    let restored_words = consul::start(consuls, &tasks);
    // Registries say nothing before the mesh config has been read.
    let (namespaces, namespaces_seen) = watch::channel(None);
    let (trust_domain, trust_domain_seen) = watch::channel(None);
    let (shared, shared_seen) = watch::channel(Arc::default());
    let clusters = reconciler::start(
        reconciler::Config {
            objects: objects.clone(),
            config_cluster: source.config_cluster(),
            loopback: source.loopback(),
            system_namespace: args.namespace.clone(),
            domain: args.domain.clone(),
            trust_domain: trust_domain_seen.clone(),
            metadata: args.endpoint_metadata,
            mcs: args.mcs,
            shared: shared_seen,
            namespaces: namespaces_seen,
            removal_grace: args.cluster_removal_grace,
            sync_timeout: args.remote_cluster_timeout,
            stale_after: args.stale_after,
            policy: policy.policy.clone(),
            updates,
            remembered: restored.clusters,
            runner: Arc::new(|config| Box::pin(registry::kube::run(config))),
        },
        &tasks,
    );

    let descriptors = Arc::new(Descriptors::default());
    let (counted, members) = (Arc::clone(&descriptors), clusters.statuses.clone());
    tasks.spawn("descriptors", count_members(counted, members));

    if let Some(config_cluster) = source.config_cluster() {
        let (namespace, statuses) = (args.namespace.clone(), clusters.statuses.clone());
        tasks.spawn_restarting("kubernetes events", Duration::from_secs(1), move || {
            events::run(config_cluster.access.clone(), namespace.clone(), statuses.clone())
        });
    }
    if let Some(config_cluster) = source.config_cluster() {
        let (secrets, loopback) = (objects.clone(), source.loopback());
        tasks.spawn_restarting("token renewal", Duration::from_secs(1), move || {
            renewal::run(config_cluster.access.clone(), secrets.clone(), loopback)
        });
    }

    let (context, context_seen) = watch::channel(None::<Arc<PushContext>>);
    let (names, names_wanted) = watch::channel(Default::default());
    let (figures, figures_seen) = watch::channel(Figures::none());
    let interest = Arc::new(Interest::default());
    let mesh = Mesh::new(Arc::new(push::Settings {
        domain: args.domain.clone(),
        trust_domain: args.trust_domain.clone(),
        system_namespace: args.namespace.clone(),
        config_cluster: source.config_cluster_id(),
        allow_direct_cross_network: args.allow_direct_cross_network,
        metadata: args.endpoint_metadata,
        cluster_aliases: args.cluster_alias.iter().cloned().collect(),
    }));
    let cache = Arc::<xds::generate::Cache>::default();
    let outputs = event_loop::Outputs {
        context,
        interest: Arc::clone(&interest),
        sight: Arc::<xds::generate::Cache>::clone(&cache),
        names,
        figures,
    };
    let heart = tasks.heart("event loop");
    tasks.spawn("event loop", event_loop::run(mesh, events_taken, outputs, heart));

    if args.mcs != Mcs::Off {
        let (context, auto) = (context_seen.clone(), args.mcs_auto_export);
        tasks.spawn_restarting("shared services", Duration::from_secs(1), move || {
            tell_shared(context.clone(), auto, shared.clone())
        });
    }

    let (resolved, resolved_seen) = watch::channel(Arc::<ResolvedNames>::default());
    match Dns::system() {
        Ok(dns) => {
            let limits = resolver::Limits::default();
            tasks.spawn_restarting("gateway names", Duration::from_secs(1), move || {
                resolver::run(dns.clone(), limits.clone(), names_wanted.clone(), resolved.clone())
            });
        }
        Err(error) => warn!(%error, "no DNS: gateways named by host name can't be reached"),
    }

    let (dead_gateways, dead_gateways_seen) = watch::channel(Arc::default());
    if !args.probe_gateways.is_zero() {
        let (every, context) = (args.probe_gateways, context_seen.clone());
        tasks.spawn_restarting("gateway probes", Duration::from_secs(1), move || {
            let context = context.clone();
            let wanted =
                move || context.borrow().as_deref().map(gateways_to_ask).unwrap_or_default();
            probes::run(every, wanted, dead_gateways.clone())
        });
    }

    let (readiness, readiness_seen) = watch::channel(Readiness::default());
    let (faulty, faulty_seen) = watch::channel(0);
    let drain = tokio_util::sync::CancellationToken::new();
    let stores =
        source::Stores::of(args, (objects, contact), restored.stores, board.clone(), &tasks);
    let (stand_ins, stand_ins_seen) = watch::channel(Arc::default());
    let (writes, writes_seen) = watch::channel(lkg::Writes::default());
    let writes_seen = store.is_some().then_some(writes_seen);
    let saved = store.map(|store| {
        let (saved, saved_seen) = watch::channel(false);
        let writer = lkg::Writer {
            store: Arc::new(Mutex::new(store)),
            context: context_seen.clone(),
            statuses: clusters.statuses.clone(),
            others: lkg::Others {
                lines: board.lines(),
                stores: stores.held(),
                stand_ins: stand_ins_seen,
            },
            mesh: mesh_source.data(),
            drain: drain.clone(),
            saved,
            writes: writes.clone(),
        };
        tasks.spawn_restarting("last known good", Duration::from_secs(1), move || {
            writer.clone().run()
        });
        saved_seen
    });
    if let (Some(held), Some(writes)) = (&held, &writes_seen) {
        let (path, writes, board) = (held.path().to_owned(), writes.clone(), board.clone());
        tasks.spawn_restarting("state directory", Duration::from_secs(1), move || {
            state_dir::tell(path.clone(), writes.clone(), board.clone())
        });
    }
    let feed = Feed {
        events,
        restored: restored_words,
        updates: updates_taken,
        clusters: clusters.clone(),
        mesh: mesh_source,
        stores,
        policy: policy.policy.clone(),
        namespaces,
        trust_domain,
        named_roots,
        faulty,
        stand_ins,
        board: board.clone(),
        resolved: resolved_seen,
        dead_gateways: dead_gateways_seen,
        context: context_seen.clone(),
        readiness,
        unread,
        tasks: tasks.clone(),
    };
    tasks.spawn("feed", feed.run());

    let read = clusters.statuses.clone();
    tasks.spawn("heap", heap::run(read, heap::QUIET, give_back));

    let memory = Memory::of_process();
    let budgets = Budgets::of_memory(memory.limit());
    let connections = Arc::new(xds::connections::Connections::new(budgets));
    let stats = Arc::new(xds::Stats::default());
    let (streams, sent) = (Arc::clone(&connections), Arc::clone(&stats));
    let turnover = move || streams.turnover() + sent.large_syncs.load(Ordering::Relaxed);
    tasks.spawn("crowds", crowds::run(turnover, give_back));
    tasks.spawn("pressure", pressure::run(memory, Arc::clone(&connections), give_back));
    tasks.spawn(
        "ads",
        xds::server::serve(
            xds_listener,
            xds::server::Config {
                context: context_seen.clone(),
                interest,
                identity: identity.clone(),
                trust_domain: trust_domain_seen,
                connections: Arc::clone(&connections),
                stats: Arc::clone(&stats),
                cache,
                max_connections: args.max_connections,
                descriptors: Arc::clone(&descriptors),
                drain: drain.clone(),
            },
            tasks.clone(),
        ),
    );

    let metrics = Metrics {
        xds: stats,
        connections: Arc::clone(&connections),
        tasks: tasks.clone(),
        identity,
        faulty_objects: faulty_seen,
        board: board.clone(),
        writes: writes_seen,
        descriptors: Arc::clone(&descriptors),
    };
    let sources = Arc::new(admin::Sources {
        context: context_seen,
        clusters: clusters.statuses,
        board,
        mesh_problems,
        policy,
        connections: Arc::clone(&connections),
        tasks: tasks.clone(),
        figures: figures_seen,
        readiness: readiness_seen.clone(),
        metrics: Arc::new(metrics),
        withheld: admin::Lately::default(),
        crowd: Arc::default(),
        descriptors,
        token,
    });
    tasks.spawn("admin", admin::serve(admin_listener, sources));
    info!(xds = %xds_address, admin = %admin_address, token_file = %token_file.display(), "listening");
    Ok(Bound {
        xds: xds_address,
        admin: admin_address,
        token_file,
        readiness: readiness_seen,
        tasks,
        drain,
        streams: connections,
        saved,
        _temporary: temporary,
        _state_dir: held,
    })
}

/// Tells how many members need file descriptors.
async fn count_members(
    descriptors: Arc<Descriptors>,
    mut members: watch::Receiver<Arc<Vec<ClusterStatus>>>,
) {
    loop {
        descriptors.members(members.borrow_and_update().len());
        // An error says that the process ends.
        if members.changed().await.is_err() {
            return;
        }
    }
}

/// Has memory that lies free go back to the system.
fn give_back() {
    strait_heap::give_back();
}

/// The policy that was asked for, kept up to date; without a file there are no rules.
fn policy(args: &ServeArgs, tasks: &Supervisor) -> Result<policy::Watched, PolicyError> {
    let Some(path) = &args.policy else { return Ok(policy::Watched::none()) };
    let (watcher, watched) = policy::Watcher::open(path.clone())?;
    tasks.spawn("policy", watcher.run());
    Ok(watched)
}

/// The gateways, each with a service that is reached through it, where there is one.
fn gateways_to_ask(context: &PushContext) -> Wanted {
    let behind = |network: &NetworkId| {
        let there = |service: &&Arc<MergedService>| {
            is_exported(context, service)
                && service.shards.iter().any(|shard| shard.networks().contains(network))
        };
        let service = context.services.values().find(there)?;
        let port = service.ports().next()?.number;
        Some(OutboundName::sni(service.hostname().clone(), port).to_string())
    };
    let gateways = context.networks.iter().filter(|gateway| gateway.port != 0);
    gateways.map(|one| ((one.address, one.port), behind(&one.network))).collect()
}

/// Tells the registries what the mesh makes of exports and imports.
async fn tell_shared(
    mut context: watch::Receiver<Option<Arc<PushContext>>>,
    auto: bool,
    shared: watch::Sender<Arc<SharedServices>>,
) {
    loop {
        let current = context.borrow_and_update().clone();
        if let Some(current) = current {
            let new = push::shared::shared_services(&current, auto);
            shared.send_if_modified(|held| {
                let differs = **held != new;
                if differs {
                    *held = Arc::new(new);
                }
                differs
            });
        }
        // An error says that the process ends.
        if context.changed().await.is_err() {
            return;
        }
        // Every change of any service is a new version; whoever reads a status can wait.
        tokio::time::sleep(SHARED_PACE).await;
    }
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

/// What was last known, and where it is kept from now on.
async fn last_known_good(
    args: &ServeArgs,
    state_dir: Option<PathBuf>,
) -> (Option<lkg::Store>, lkg::Restored) {
    let Some(state_dir) = state_dir else { return (None, lkg::Restored::default()) };
    let origin = lkg::Origin {
        domain: args.domain.as_str().into(),
        trust_domain: args.trust_domain.as_str().into(),
        system_namespace: args.namespace.as_str().into(),
    };
    let read = tokio::task::spawn_blocking(move || lkg::open(&state_dir, origin));
    match read.await {
        Ok((store, restored)) => (Some(store), restored),
        Err(error) => {
            warn!(%error, "last-known-good state can't be read; going on without");
            (None, lkg::Restored::default())
        }
    }
}

/// The token, and where it is.
struct AdminToken {
    token: Token,
    file: PathBuf,
    /// The folder that was made for it alone.
    temporary: Option<TempDir>,
}

fn admin_token(args: &ServeArgs, state_dir: Option<&Path>) -> Result<AdminToken, ServeError> {
    if let Some(path) = &args.admin_token_file {
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

/// The certificate and the roots: from files where they are named, else of a CA.
async fn identity(
    args: &ServeArgs,
    state_dir: Option<&Path>,
    source: &ConfigSource,
    named: watch::Receiver<Arc<identity::NamedRoots>>,
    tasks: &Supervisor,
) -> Result<watch::Receiver<Arc<identity::ServerIdentity>>, ServeError> {
    let authority = match (&args.ca_dir, state_dir) {
        (Some(directory), _) => Some(AuthorityFrom::Directory(directory.clone())),
        // Files for both ends leave nothing for a CA to do.
        (None, _) if args.tls_cert.is_some() && args.client_ca.is_some() => None,
        (None, Some(state)) => {
            let store = DirectoryStore(state.join("ca"));
            Some(AuthorityFrom::Stored(load_or_create(&store, SystemTime::now()).await?))
        }
        (None, None) => Some(AuthorityFrom::Stored(source.authority(args).await?)),
    };
    let serving = match (&args.tls_cert, &args.tls_key) {
        (Some(certificate), Some(key)) => {
            Serving::Files { certificate: certificate.clone(), key: key.clone() }
        }
        _ => Serving::Issued { names: args.serving_names() },
    };
    let client_ca = args.client_ca.clone();
    let settings = rotation::Settings { serving, client_ca, authority, named };
    Ok(rotation::start(settings, rotation::INTERVAL, tasks)?)
}

#[cfg(test)]
mod tests {
    use super::ignores_hangups;

    #[test]
    fn a_hangup_that_whoever_started_us_ignores_is_ignored() {
        for (mask, ignored) in
            [("0000000000000001", true), ("0000000000001000", false), ("0000000000001007", true)]
        {
            let status = format!("Name:\tstrait\nSigBlk:\t0000000000000001\nSigIgn:\t{mask}\n");
            assert_eq!(ignores_hangups(&status), ignored, "{mask}");
        }
        assert!(!ignores_hangups(""), "a system without /proc");
    }
}
