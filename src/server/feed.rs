//! Puts everything that can change the mesh into the event loop's one queue, and says when the picture
//! is complete and the process ready.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tracing::{info, warn};

use super::source::{MeshSource, Stores};
use crate::admin::Readiness;
use crate::clusters::reconciler::{self, Settled};
use crate::codes;
use crate::identity::NamedRoots;
use crate::lkg::StandIns;
use crate::mesh;
use crate::model::{KnownClusters, NamespaceFilter};
use crate::network::ResolvedNames;
use crate::network::probes::Socket;
use crate::policy::Policy;
use crate::push::PushContext;
use crate::push::event_loop::Event;
use crate::registry::service_entry;
use crate::registry::{Epoch, RegistryUpdate, ShardKey};
use crate::sources::{Board, Facts, Lines, WARNINGS_MAX};
use crate::store::Objects;
use crate::task::{Heart, Supervisor};

/// What readiness waits for at first.
const UNREAD: &str = "the configuration to be read";

/// How long gateway names without any answer may hold up readiness.
const NAMES_WAIT: Duration = Duration::from_secs(5);

/// How often to look whether sources have used up their time.
const SOURCES_LOOK: Duration = Duration::from_millis(200);

/// Fails when the event loop has ended.
type Fed = Result<(), mpsc::error::SendError<Event>>;

/// What is fed in, and where it goes.
pub(super) struct Feed {
    pub(super) events: mpsc::Sender<Event>,
    /// What sources said before this process started, which comes before anything they say now.
    pub(super) restored: Vec<RegistryUpdate>,
    pub(super) updates: mpsc::Receiver<RegistryUpdate>,
    pub(super) clusters: reconciler::Outputs,
    pub(super) mesh: MeshSource,
    pub(super) stores: Stores,
    pub(super) policy: watch::Receiver<Arc<Policy>>,
    /// Which namespaces belong to the mesh.
    pub(super) namespaces: watch::Sender<Option<Arc<NamespaceFilter>>>,
    /// The mesh's trust domain.
    pub(super) trust_domain: watch::Sender<Option<Arc<str>>>,
    /// The roots that the mesh config names.
    pub(super) named_roots: watch::Sender<Arc<NamedRoots>>,
    /// How many objects can't be used as they are.
    pub(super) faulty: watch::Sender<usize>,
    /// What counts in place of objects that make no sense.
    pub(super) stand_ins: watch::Sender<Arc<StandIns>>,
    /// How the sources fare that are no member clusters.
    pub(super) board: Board,
    pub(super) resolved: watch::Receiver<Arc<ResolvedNames>>,
    pub(super) dead_gateways: watch::Receiver<Arc<BTreeSet<Socket>>>,
    pub(super) context: watch::Receiver<Option<Arc<PushContext>>>,
    pub(super) readiness: watch::Sender<Readiness>,
    /// What keeps the configuration from being read.
    pub(super) unread: watch::Receiver<Option<String>>,
    /// Where it says that it turns, once it does.
    pub(super) tasks: Supervisor,
}

impl Feed {
    /// Feeds until the event loop or a source ends.
    pub(super) async fn run(self) {
        let settings = tokio::select! {
            settings = self.mesh.watch() => settings,
            never = tell_unread(&self.readiness, self.unread) => match never {},
        };
        let config = Arc::clone(&settings.borrow().config);
        self.namespaces.send_replace(Some(Arc::clone(&config.namespaces)));
        self.trust_domain.send_replace(Some(config.trust_domain.as_str().into()));
        self.named_roots.send_replace(Arc::new(named_roots(&config)));
        let objects = self.stores.watch(settings.clone()).await;
        let feed = Feeding {
            namespaces: self.namespaces,
            trust_domain: self.trust_domain,
            named_roots: self.named_roots,
            events: self.events,
            restored: self.restored,
            updates: self.updates,
            clusters: self.clusters,
            said: Arc::default(),
            settings,
            policy: self.policy,
            objects,
            entries: service_entry::Index::new(&config.trust_domain),
            faulty: self.faulty,
            stand_ins: self.stand_ins,
            lines: self.board.lines(),
            board: self.board,
            resolved: self.resolved,
            dead_gateways: self.dead_gateways,
            context: self.context,
            readiness: self.readiness,
            heart: self.tasks.heart("feed"),
        };
        feed.run().await;
    }
}

/// A feed whose mesh settings have been read.
struct Feeding {
    events: mpsc::Sender<Event>,
    restored: Vec<RegistryUpdate>,
    updates: mpsc::Receiver<RegistryUpdate>,
    clusters: reconciler::Outputs,
    /// The clusters as the event loop was last told.
    said: Arc<KnownClusters>,
    settings: watch::Receiver<mesh::Settings>,
    policy: watch::Receiver<Arc<Policy>>,
    namespaces: watch::Sender<Option<Arc<NamespaceFilter>>>,
    trust_domain: watch::Sender<Option<Arc<str>>>,
    named_roots: watch::Sender<Arc<NamedRoots>>,
    objects: watch::Receiver<Option<Arc<Objects>>>,
    entries: service_entry::Index,
    faulty: watch::Sender<usize>,
    stand_ins: watch::Sender<Arc<StandIns>>,
    board: Board,
    lines: watch::Receiver<Lines>,
    resolved: watch::Receiver<Arc<ResolvedNames>>,
    dead_gateways: watch::Receiver<Arc<BTreeSet<Socket>>>,
    context: watch::Receiver<Option<Arc<PushContext>>>,
    readiness: watch::Sender<Readiness>,
    heart: Heart,
}

impl Feeding {
    async fn run(mut self) {
        for word in std::mem::take(&mut self.restored) {
            if self.pass_on(word).await.is_err() {
                return;
            }
        }
        loop {
            let settled = self.clusters.settled.borrow_and_update().clone();
            let sources = self.board.waiting_for();
            tell(&self.readiness, &settled, &sources);
            if settled == Settled::All && sources.is_empty() {
                break;
            }
            // The time of a source ends without a word.
            let deadline = (!sources.is_empty()).then(|| Instant::now() + SOURCES_LOOK);
            if self.pass_on_one(deadline).await.is_err() {
                return;
            }
        }
        if self.finish().await.is_err() {
            return;
        }
        while self.pass_on_one(None).await.is_ok() {}
    }

    /// Everything that has arrived by now, then the word that it is all; then goes on feeding until the
    /// version that holds it is there, and is ready.
    async fn finish(&mut self) -> Fed {
        tell(&self.readiness, &self.clusters.settled.borrow(), &[]);
        self.flush().await?;
        self.known().await?;
        self.mesh().await?;
        self.policy().await?;
        self.entries().await?;
        self.events.send(Event::Complete).await?;
        let mut deadline = Some(Instant::now() + NAMES_WAIT);
        while self.context.borrow_and_update().is_none() {
            self.pass_on_one(deadline).await?;
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                warn!("gateway names are not all resolved in time; going on without");
                self.events.send(Event::CompleteWithoutNames).await?;
                deadline = None;
            }
        }
        info!("ready");
        self.readiness.send_replace(Readiness { ready: true, waiting_for: Vec::new() });
        Ok(())
    }

    /// Waits for one thing to happen, or for the deadline, and passes it on.
    async fn pass_on_one(&mut self, deadline: Option<Instant>) -> Fed {
        self.heart.turned();
        let ready = self.readiness.borrow().ready;
        let timeout = async {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(update) = self.updates.recv() => self.pass_on(update).await,
            Ok(()) = self.clusters.known.changed() => {
                // A cluster that has gone withdrew its endpoints first: none is left without its
                // Secret's word on the network it is in.
                self.flush().await?;
                self.known().await
            }
            Ok(()) = self.settings.changed() => self.mesh().await,
            Ok(()) = self.policy.changed() => self.policy().await,
            Ok(()) = self.objects.changed() => self.entries().await,
            Ok(()) = self.resolved.changed() => self.gateway_names().await,
            Ok(()) = self.dead_gateways.changed() => {
                let dead = Arc::clone(&self.dead_gateways.borrow_and_update());
                self.events.send(Event::DeadGateways(dead)).await
            }
            Ok(()) = self.clusters.settled.changed(), if !ready => Ok(()),
            Ok(()) = self.context.changed(), if !ready => Ok(()),
            Ok(()) = self.lines.changed(), if !ready => Ok(()),
            () = timeout => Ok(()),
            () = self.heart.idle() => Ok(()),
            else => std::future::pending().await,
        }
    }

    /// The words of registries that wait. A cluster counts as settled only after its first word has
    /// been passed on, so this holds the first word of every settled cluster.
    async fn flush(&mut self) -> Fed {
        while let Ok(update) = self.updates.try_recv() {
            self.pass_on(update).await?;
        }
        Ok(())
    }

    /// A registry's word; that its cluster belongs to the mesh is said before, so that no endpoint comes
    /// without its Secret's word on the network it is in.
    async fn pass_on(&mut self, update: RegistryUpdate) -> Fed {
        let cluster = &update.shard.cluster;
        if !self.said.clusters.contains_key(cluster) {
            let come = self.clusters.known.borrow().clusters.get(cluster).cloned();
            if let Some(come) = come {
                let mut with_it = KnownClusters::clone(&self.said);
                with_it.clusters.insert(cluster.clone(), come);
                self.say(Arc::new(with_it)).await?;
            }
        }
        self.events.send(Event::Registry(update)).await
    }

    async fn known(&mut self) -> Fed {
        let known = Arc::clone(&self.clusters.known.borrow_and_update());
        self.say(known).await
    }

    async fn say(&mut self, known: Arc<KnownClusters>) -> Fed {
        self.said = Arc::clone(&known);
        self.events.send(Event::Clusters(known)).await
    }

    async fn mesh(&mut self) -> Fed {
        let settings = self.settings.borrow_and_update().clone();
        self.namespaces.send_if_modified(|held| {
            let new = Some(Arc::clone(&settings.config.namespaces));
            let differs = *held != new;
            *held = new;
            differs
        });
        self.named_roots.send_if_modified(|held| {
            let new = named_roots(&settings.config);
            let differs = **held != new;
            *held = Arc::new(new);
            differs
        });
        let trust_domain: Arc<str> = settings.config.trust_domain.as_str().into();
        self.trust_domain.send_if_modified(|held| {
            let differs = held.as_ref() != Some(&trust_domain);
            *held = Some(Arc::clone(&trust_domain));
            differs
        });
        self.events.send(Event::MeshConfig(settings.config)).await?;
        self.events.send(Event::MeshNetworks(settings.networks)).await?;
        self.entries.move_to(&trust_domain);
        // To whom entries are exported may be another matter now.
        self.entries().await
    }

    async fn policy(&mut self) -> Fed {
        let policy = Arc::clone(&self.policy.borrow_and_update());
        self.events.send(Event::Policy(policy)).await
    }

    /// What the ServiceEntries say now.
    async fn entries(&mut self) -> Fed {
        let config = Arc::clone(&self.settings.borrow().config);
        self.entries.export_by_default(&config.default_service_export_to);
        let Some(objects) = self.objects.borrow_and_update().clone() else { return Ok(()) };
        let before = self.entries.problems().to_vec();
        self.entries.shadowed(&objects.shadowed);
        let change = self.entries.apply(&objects.others);
        self.stand_ins.send_if_modified(|held| {
            let new = self.entries.stand_ins();
            // Equal ones too: which object of a store is meant is told by its place in memory.
            let differs = !(held.is_empty() && new.is_empty());
            *held = Arc::new(new);
            differs
        });
        let problems = self.entries.problems();
        for problem in problems.iter().filter(|problem| !before.contains(problem)) {
            let code = &codes::ENTRY;
            warn!(%problem, %code, next = code.next, "configuration not used as it is");
        }
        if before != problems {
            self.faulty.send_replace(problems.len());
            tell_problems(&self.board, problems);
        }
        let Some(change) = change else { return Ok(()) };
        // One run for as long as the process lives, which begins with all there is.
        let update = RegistryUpdate { shard: ShardKey::service_entries(), epoch: Epoch(0), change };
        let selections = Arc::clone(self.entries.selections());
        self.events.send(Event::Entries(update, selections)).await
    }

    async fn gateway_names(&mut self) -> Fed {
        let resolved = Arc::clone(&self.resolved.borrow_and_update());
        self.events.send(Event::GatewayNames(resolved)).await
    }
}

/// What the mesh config says of roots.
fn named_roots(config: &mesh::MeshConfig) -> NamedRoots {
    let bundles = config.ca_certificates.iter();
    NamedRoots {
        own: config.same_trust_domains(&config.trust_domain).map(str::to_owned).collect(),
        bundles: bundles.map(|one| (one.pem.clone(), one.trust_domains.clone())).collect(),
    }
}

/// Says on the board what of the entries is not used as it is, whichever store it is from.
fn tell_problems(board: &Board, problems: &[service_entry::Problem]) {
    let name: Arc<str> = "entries".into();
    if problems.is_empty() {
        board.forget(&name);
        return;
    }
    let warnings = problems.iter().take(WARNINGS_MAX).map(ToString::to_string).collect();
    let mut facts = Facts { synced: true, warnings, ..Facts::starting("entries", "") };
    facts.last_contact = Some(facts.since);
    board.tell(&name, &facts);
}

/// Says that readiness waits for the configuration, and why: without it, and without any state from before,
/// nobody knows which clusters the mesh has, and whoever answered then would withdraw all endpoints.
async fn tell_unread(
    readiness: &watch::Sender<Readiness>,
    mut unread: watch::Receiver<Option<String>>,
) -> Infallible {
    loop {
        let waiting_for = match &*unread.borrow_and_update() {
            None => UNREAD.to_owned(),
            Some(fact) => {
                let code = &codes::CONFIG_CLUSTER_UNREAD;
                format!(
                    "{UNREAD}: {code}: {fact}; no proxy is answered until then, those that run keep what they have. {}",
                    code.next
                )
            }
        };
        readiness.send_replace(Readiness { ready: false, waiting_for: vec![waiting_for] });
        if unread.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

/// Says what readiness waits for.
fn tell(readiness: &watch::Sender<Readiness>, settled: &Settled, sources: &[Arc<str>]) {
    let mut waiting_for = match settled {
        Settled::ConfigurationUnread => vec![UNREAD.to_owned()],
        Settled::Waiting(clusters) => {
            clusters.iter().map(|id| format!("cluster {id} to sync")).collect()
        }
        Settled::All if sources.is_empty() => vec!["the first version of the mesh".to_owned()],
        Settled::All => Vec::new(),
    };
    waiting_for.extend(sources.iter().map(|name| format!("source {name} to be read")));
    let new = Readiness { ready: false, waiting_for };
    readiness.send_if_modified(|old| {
        let differs = *old != new;
        *old = new;
        differs
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{endpoint, member, service, shard};

    #[tokio::test]
    async fn a_cluster_belongs_to_the_mesh_before_its_endpoints_do() {
        let member = member(Some("n9"));
        let known = Arc::new(KnownClusters { clusters: [("east".into(), member)].into() });
        let (events, mut fed) = mpsc::channel(8);
        let (updates, updates_seen) = mpsc::channel(8);
        let (known, known_seen) = watch::channel(known);
        let (_statuses, statuses) = watch::channel(Arc::default());
        let (_settled, settled) = watch::channel(Settled::All);
        let (_settings, settings) = watch::channel(mesh::Settings::default());
        let (_objects, objects) = watch::channel(None);
        let (faulty, _) = watch::channel(0);
        let (_resolved, resolved) = watch::channel(Arc::default());
        let (_dead, dead_gateways) = watch::channel(Arc::default());
        let (_context, context) = watch::channel(None);
        let (readiness, _) = watch::channel(Readiness { ready: true, waiting_for: Vec::new() });
        let board = Board::new(Duration::ZERO);
        let mut feed = Feeding {
            events,
            restored: Vec::new(),
            updates: updates_seen,
            clusters: reconciler::Outputs { statuses, known: known_seen, settled },
            said: Arc::default(),
            settings,
            policy: crate::policy::Watched::none().policy,
            namespaces: watch::channel(None).0,
            trust_domain: watch::channel(None).0,
            named_roots: watch::channel(Arc::default()).0,
            objects,
            entries: service_entry::Index::new("cluster.local"),
            faulty,
            stand_ins: watch::channel(Arc::default()).0,
            lines: board.lines(),
            board,
            resolved,
            dead_gateways,
            context,
            readiness,
            heart: Supervisor::new().heart("feed"),
        };
        let word = shard("east", 1).with(service("web.ns"), vec![endpoint("10.0.0.1")]).said();
        updates.send(word).await.expect("room");
        feed.flush().await.expect("a queue");
        assert!(matches!(fed.recv().await, Some(Event::Clusters(said)) if said == *known.borrow()));
        assert!(matches!(fed.recv().await, Some(Event::Registry(_))));
    }
}
