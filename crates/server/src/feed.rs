//! The feed: passes every input that can change the mesh to the event loop's queue, and reports
//! when all sources have synced and the process is ready.

mod editions;
mod object_meter;
mod problems;
mod readiness;
mod restored;
mod rolling;
mod running_rollout;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tracing::{info, warn};

use self::editions::FeedOverrides;
use self::object_meter::object_budget;
use self::problems::{first_of_each, report_problems};
use self::readiness::{report_readiness, report_unread};
use self::running_rollout::FeedRollout;
pub(super) use self::running_rollout::RolloutOutputs;
use super::active_configuration::{ActiveConfiguration, ReadingRules};
use super::root_gate::RootGate;
use super::shared_hold::{FoundHold, SharedHoldStore};
use super::source::{MeshSource, ObjectStores};
use super::start_reads::{EarlyHold, START_WAIT};
use crate::admin::Readiness;
use strait_base::codes;
use strait_base::latest::publish_change;
use strait_base::source_status::{SourceStatusMap, SourceStatusTable};
use strait_base::task::{Supervisor, until};
use strait_base::watchdog::Watchdog;
use strait_explain::ConfigReports;
use strait_identity::NamedRoots;
use strait_lkg::LastValidObjects;
use strait_mesh::hold::{HoldChange, HoldFile, HoldRefusal, HoldRequest, HoldState};
use strait_mesh::network::ResolvedNames;
use strait_mesh::network::probes::ProbeAddress;
use strait_mesh::push::PushContext;
use strait_mesh::push::event_loop::MeshEvent;
use strait_mesh::rollout::RolloutFiles;
use strait_model::fetched_keys::{FetchedKeys, KeyPlace, WantedKeys};
use strait_model::mesh_config::ObjectSelectors;
use strait_model::policy::Policy;
use strait_model::registry::{Epoch, RegistryUpdate, ShardKey};
use strait_model::{Cause, ClusterId, ConfigurationSnapshot, KnownClusters, mesh_config};
use strait_rules::access::{PolicyName, PolicyReport, TimePoint};
use strait_rules::service_entry;
use strait_sources::clusters::reconciler::{self, MembersSettled};
use strait_sources::store::Objects;

/// Maximum delay of readiness by gateway names that no DNS server has answered.
const NAMES_WAIT: Duration = Duration::from_secs(5);

/// Maximum delay of readiness by token keys that have not been requested yet.
const KEYS_WAIT: Duration = Duration::from_secs(5);

/// Interval of the checks whether sources have timed out.
const SOURCES_LOOK: Duration = Duration::from_millis(200);

/// Result of sending; fails once the event loop has ended.
type Fed = Result<(), mpsc::error::SendError<MeshEvent>>;

/// Inputs that are read before anything is fed: the configuration, and state from before the start.
pub(super) struct Configuration {
    pub(super) mesh: MeshSource,
    pub(super) stores: ObjectStores,
    pub(super) rules: ReadingRules,
    /// File of the hold that survives restarts, if there is a state directory.
    pub(super) hold_file: Option<HoldFile>,
    /// Storage of the hold that replicas share; `None` if there can be no other replica.
    pub(super) shared_hold: Option<SharedHoldStore>,
    /// The first read of this hold, started with the process.
    pub(super) early_hold: EarlyHold,
    /// Files of the configuration that applies to all proxies during a rollout, if there is a state
    /// directory.
    pub(super) rollout_files: Option<RolloutFiles>,
    /// Opens once the process may serve with its roots.
    pub(super) gate: RootGate,
    /// Why the configuration can't be read.
    pub(super) unread: watch::Receiver<Option<String>>,
}

/// Inputs of the feed.
pub(super) struct FeedInputs {
    /// State of the sources before this process started; precedes all that they report now.
    pub(super) restored: Vec<RegistryUpdate>,
    pub(super) updates: mpsc::Receiver<RegistryUpdate>,
    pub(super) clusters: reconciler::ReconcilerOutputs,
    pub(super) policy: watch::Receiver<Arc<Policy>>,
    pub(super) resolved: watch::Receiver<Arc<ResolvedNames>>,
    pub(super) dead_gateways: watch::Receiver<Arc<BTreeSet<ProbeAddress>>>,
    /// Fetched token keys, and whether each place has been tried.
    pub(super) fetched: watch::Receiver<(Arc<FetchedKeys>, bool)>,
    pub(super) context: watch::Receiver<Option<Arc<PushContext>>>,
    /// Requests of operators to hold or release a configuration.
    pub(super) holds: mpsc::Receiver<HoldRequest>,
}

/// Outputs of the feed.
pub(super) struct FeedOutputs {
    pub(super) events: mpsc::Sender<MeshEvent>,
    /// Namespaces that belong to the mesh.
    pub(super) selectors: watch::Sender<Option<ObjectSelectors>>,
    /// The mesh's trust domain.
    pub(super) trust_domain: watch::Sender<Option<Arc<str>>>,
    /// The roots that the mesh config names.
    pub(super) named_roots: watch::Sender<Arc<NamedRoots>>,
    /// Places from which token keys must be fetched.
    pub(super) wanted_keys: watch::Sender<Arc<BTreeMap<KeyPlace, WantedKeys>>>,
    /// Number of objects that can't be used unchanged.
    pub(super) faulty: watch::Sender<usize>,
    /// Reports about all configuration objects.
    pub(super) reports: watch::Sender<Arc<ConfigReports>>,
    /// The active hold.
    pub(super) hold: watch::Sender<Arc<HoldState>>,
    /// Last valid versions that replace invalid objects.
    pub(super) last_valid_objects: watch::Sender<Arc<LastValidObjects>>,
    /// Statuses of the sources that are not member clusters.
    pub(super) source_statuses: SourceStatusTable,
    pub(super) readiness: watch::Sender<Readiness>,
}

/// Reads the configuration, then feeds until the event loop or a source ends.
pub(super) async fn run(
    configuration: Configuration,
    from: FeedInputs,
    to: FeedOutputs,
    rollout: RolloutOutputs,
    tasks: Supervisor,
) {
    configuration.gate.opened(&to.readiness).await;
    let settings = tokio::select! {
        settings = configuration.mesh.watch() => settings,
        never = report_unread(&to.readiness, configuration.unread) => match never {},
    };
    let (live, remembered) = (settings.borrow().clone(), configuration.stores.remembered());
    let mut watchdog = tasks.watchdog("feed");
    let budget = object_budget(watchdog.progress());
    let rules = ReadingRules { budget: budget.clone(), ..configuration.rules };
    let mut active = ActiveConfiguration::new(rules, live, &remembered);
    let visibility = from.policy.borrow().traffic().default_visibility;
    if active.apply_default_visibility(visibility) {
        active.apply_settings(settings.borrow().clone());
    }
    let is_read = configuration.stores.is_read();
    let shared = held_by_all(configuration.shared_hold, configuration.early_hold, is_read);
    let shared = watchdog.waiting(shared).await;
    let restored = restored::restore(&configuration.hold_file, shared, &mut active);
    let (mut outbox, lost) = watchdog.waiting(restored).await;
    let editions = FeedOverrides::new(Arc::clone(&rollout.heads));
    let mut rollout = FeedRollout::new(configuration.rollout_files, rollout, &tasks);
    if active.hold().is_none() && lost.is_none() {
        let plan = from.policy.borrow().rollout().cloned();
        let restored = rollout.restore(plan.as_ref(), &mut active);
        outbox.extend(watchdog.waiting(restored).await);
    }
    let config = Arc::clone(&active.settings().config);
    let mut entries = service_entry::EntryIndex::new(&config.trust_domain).with_budget(budget);
    entries.remember(&remembered);
    to.selectors.send_replace(Some(config.object_selectors()));
    to.trust_domain.send_replace(Some(config.trust_domain.as_str().into()));
    to.named_roots.send_replace(Arc::new(named_roots(&config)));
    let feed = ConfigFeed {
        from,
        objects: watchdog.waiting(configuration.stores.watch(settings.clone())).await,
        settings,
        known: Arc::default(),
        entries,
        active,
        hold_file: configuration.hold_file,
        rollout,
        editions,
        lost,
        outbox,
        statuses: to.source_statuses.lines(),
        to,
        watchdog,
    };
    feed.run().await;
}

/// Returns the hold that replicas share, as far as it can be read. If the config cluster did not
/// respond to the first read but does now, reads again before anything is served that another
/// replica holds back.
async fn held_by_all(
    store: Option<SharedHoldStore>,
    early: EarlyHold,
    is_read: bool,
) -> Option<FoundHold> {
    let store = store?;
    let read = match early.await {
        Ok(Ok(found)) => Ok(found),
        _ if is_read => store.at_start(START_WAIT).await,
        Ok(Err(fact)) => Err(fact),
        Err(_) => Err("it was not read".to_owned()),
    };
    read.unwrap_or_else(|fact| {
        warn!(fact, "the hold of other replicas is unknown for now");
        None
    })
}

/// A feed whose configuration has been read.
struct ConfigFeed {
    from: FeedInputs,
    to: FeedOutputs,
    /// The clusters as last sent to the event loop.
    known: Arc<KnownClusters>,
    settings: watch::Receiver<mesh_config::MeshSettings>,
    objects: watch::Receiver<Option<Arc<Objects>>>,
    entries: service_entry::EntryIndex,
    active: ActiveConfiguration,
    hold_file: Option<HoldFile>,
    rollout: FeedRollout,
    editions: FeedOverrides,
    /// Why the hold from before the start could not be restored.
    lost: Option<Arc<str>>,
    /// Events of one change that are not sent yet.
    outbox: Vec<MeshEvent>,
    statuses: watch::Receiver<SourceStatusMap>,
    watchdog: Watchdog,
}

impl ConfigFeed {
    async fn run(mut self) {
        for word in std::mem::take(&mut self.from.restored) {
            if self.pass_on(word).await.is_err() {
                return;
            }
        }
        loop {
            let settled = self.from.clusters.settled.borrow_and_update().clone();
            let sources = self.to.source_statuses.waiting_for();
            report_readiness(&self.to.readiness, &settled, &sources);
            if settled == MembersSettled::All && sources.is_empty() {
                break;
            }
            // A source times out without sending anything.
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

    /// Sends everything that has arrived, then the event that all sources have synced. Continues to
    /// feed until this version exists, then reports readiness.
    async fn finish(&mut self) -> Fed {
        report_readiness(&self.to.readiness, &self.from.clusters.settled.borrow(), &[]);
        self.flush().await?;
        self.clusters().await?;
        self.mesh().await?;
        self.policy().await?;
        self.objects().await?;
        self.keys_tried().await?;
        self.send(MeshEvent::Complete).await?;
        let mut deadline = Some(Instant::now() + NAMES_WAIT);
        while self.from.context.borrow_and_update().is_none() {
            self.pass_on_one(deadline).await?;
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                warn!("resolving gateway names timed out; continuing without some of them");
                self.send(MeshEvent::CompleteWithoutNames).await?;
                deadline = None;
            }
        }
        info!("ready");
        self.to.readiness.send_replace(Readiness { ready: true, waiting_for: Vec::new() });
        // Starts the rollout that was pending before the start.
        let live = self.active.live();
        self.follow_rollout(&live).await
    }

    /// Sends an event to the event loop. While its queue is full the feed waits, and only the event
    /// loop may be stuck.
    async fn send(&mut self, event: MeshEvent) -> Fed {
        self.watchdog.waiting(self.to.events.send(event)).await
    }

    /// Waits for one input or for the deadline, and passes the input on.
    async fn pass_on_one(&mut self, deadline: Option<Instant>) -> Fed {
        self.watchdog.beat();
        let ready = self.to.readiness.borrow().ready;
        tokio::select! {
            Some(update) = self.from.updates.recv() => self.pass_on(update).await,
            Ok(()) = self.from.clusters.known.changed() => {
                // A removed cluster withdraws its endpoints first, so that no endpoint lacks the
                // network settings of its cluster's Secret.
                self.flush().await?;
                self.clusters().await
            }
            Ok(()) = self.settings.changed() => self.mesh().await,
            Ok(()) = self.from.policy.changed() => self.policy().await,
            Ok(()) = self.objects.changed() => self.objects().await,
            Some(request) = self.from.holds.recv(), if ready => self.hold(request).await,
            Some((number, verdict)) = self.rollout.verdicts.recv() => {
                self.apply_verdict(number, verdict).await
            }
            () = until(self.active.access().settles().map(Instant::from_std)) => {
                self.access_settled().await
            }
            Ok(()) = self.from.fetched.changed() => self.keys().await,
            Ok(()) = self.from.resolved.changed() => self.gateway_names().await,
            Ok(()) = self.from.dead_gateways.changed() => {
                let dead = Arc::clone(&self.from.dead_gateways.borrow_and_update());
                self.send(MeshEvent::DeadGateways(dead)).await
            }
            Ok(()) = self.from.clusters.settled.changed(), if !ready => Ok(()),
            Ok(()) = self.from.context.changed(), if !ready => Ok(()),
            Ok(()) = self.statuses.changed(), if !ready => Ok(()),
            () = until(deadline) => Ok(()),
            () = self.watchdog.idle() => Ok(()),
            else => std::future::pending().await,
        }
    }

    /// Passes on all waiting registry updates. A cluster settles only after its first update has
    /// been sent, so this includes the first update of every settled cluster.
    async fn flush(&mut self) -> Fed {
        while let Ok(update) = self.from.updates.try_recv() {
            self.pass_on(update).await?;
        }
        Ok(())
    }

    /// Passes on an update of a registry. A cluster that is new to the mesh is sent first, so that
    /// no endpoint lacks the network settings of its Secret.
    async fn pass_on(&mut self, update: RegistryUpdate) -> Fed {
        let cluster = &update.shard.cluster;
        if !self.known.clusters.contains_key(cluster) {
            let come = self.from.clusters.known.borrow().clusters.get(cluster).cloned();
            if let Some(come) = come {
                let mut with_it = KnownClusters::clone(&self.known);
                with_it.clusters.insert(cluster.clone(), come);
                self.pass_on_clusters(Arc::new(with_it)).await?;
            }
        }
        let is_of_traffic = self.editions.apply(&update);
        self.send(MeshEvent::Registry(update)).await?;
        if is_of_traffic {
            self.send_outbox().await?;
            self.publish_stored();
        }
        Ok(())
    }

    async fn clusters(&mut self) -> Fed {
        let known = Arc::clone(&self.from.clusters.known.borrow_and_update());
        self.pass_on_clusters(known).await
    }

    async fn pass_on_clusters(&mut self, known: Arc<KnownClusters>) -> Fed {
        self.known = Arc::clone(&known);
        self.send(MeshEvent::Clusters(known)).await
    }

    async fn mesh(&mut self) -> Fed {
        let live = self.settings.borrow_and_update().clone();
        self.settle();
        let events = self.active.apply_settings(live);
        self.outbox.extend(events);
        self.follow_settings();
        // The default export of entries and the root namespace of policies may have changed.
        self.objects().await
    }

    /// Publishes the active mesh settings.
    fn follow_settings(&mut self) {
        let config = Arc::clone(&self.active.settings().config);
        publish_change(&self.to.selectors, Some(config.object_selectors()));
        publish_change(&self.to.named_roots, Arc::new(named_roots(&config)));
        let trust_domain: Arc<str> = config.trust_domain.as_str().into();
        publish_change(&self.to.trust_domain, Some(Arc::clone(&trust_domain)));
        self.entries.move_to(&trust_domain);
    }

    /// Holds a configuration or releases the held one. The change is on disk before it applies, so
    /// that a restart can't revert a confirmed request.
    async fn hold(&mut self, HoldRequest { change, answer }: HoldRequest) -> Fed {
        let done = self.changed_hold(&change).await;
        let fed = match &done {
            Ok(()) => {
                self.follow_settings();
                self.objects().await
            }
            Err(refusal) => {
                warn!(%refusal, "hold request refused; the active hold is unchanged");
                Ok(())
            }
        };
        // The requester may no longer wait.
        let _ = answer.send(done);
        fed
    }

    async fn changed_hold(&mut self, change: &HoldChange) -> Result<(), HoldRefusal> {
        self.active.check(change)?;
        match change {
            HoldChange::Promote => {
                self.promote();
                return Ok(());
            }
            HoldChange::Abort { by, reason } => {
                self.stop_rollout(by, reason).await;
                return Ok(());
            }
            HoldChange::Release if self.roll_out_waiting().await? => {
                info!("hold released; rolling out the changes that waited for it");
                return Ok(());
            }
            HoldChange::Release if self.active.is_rolling_out() => {
                // There is no hold, but the record of a lost hold must be removed.
                self.remove_hold().await?;
                self.lost = None;
                return Ok(());
            }
            HoldChange::Hold(_) | HoldChange::Release => {}
        }
        if let Some(file) = self.hold_file.clone() {
            let held = match change {
                HoldChange::Hold(hold) => Some(Arc::clone(hold)),
                _ => None,
            };
            restored::put(file, held).await.map_err(HoldRefusal::Unwritable)?;
        }
        if let HoldChange::Hold(hold) = change {
            self.rollout_ends(&hold.reason).await;
        }
        let events = self.active.change(change, TimePoint::now())?;
        self.outbox.extend(events);
        self.lost = None;
        match change {
            HoldChange::Hold(hold) => {
                let id = hold.configuration.id();
                info!(%id, by = hold.by, reason = hold.reason, "configuration held");
            }
            _ => info!("configuration released"),
        }
        Ok(())
    }

    /// Sends all events of one change together.
    async fn send_outbox(&mut self) -> Fed {
        // First, so that no version names a configuration that it does not contain.
        let snapshot = self.active.take_snapshot();
        let mut events: Vec<_> = snapshot.map(MeshEvent::Configuration).into_iter().collect();
        events.append(&mut self.outbox);
        let policy = Arc::clone(&self.from.policy.borrow());
        events.extend(self.editions.refresh(&policy, self.active.traffic()));
        if events.is_empty() {
            return Ok(());
        }
        self.send(MeshEvent::Together(events)).await
    }

    async fn policy(&mut self) -> Fed {
        let policy = Arc::clone(&self.from.policy.borrow_and_update());
        let visibility = policy.traffic().default_visibility;
        self.send(MeshEvent::Policy(policy)).await?;
        if self.active.apply_default_visibility(visibility) {
            self.mesh().await?;
        }
        self.send_outbox().await?;
        let live = self.publish_stored();
        self.follow_rollout(&live).await
    }

    /// Applies the current objects of the stores.
    async fn objects(&mut self) -> Fed {
        let read = self.objects.borrow_and_update().clone();
        let Some(objects) = read else { return self.send_outbox().await };
        self.settle_before(&objects.others);
        self.access(&objects);
        self.entries(&objects);
        self.watchdog.beat();
        self.send_outbox().await?;
        let live = self.publish_stored();
        self.follow_rollout(&live).await
    }

    /// Publishes the state of the hold and the reports of all objects. Returns the live
    /// configuration.
    fn publish_stored(&mut self) -> Arc<ConfigurationSnapshot> {
        let live = self.active.live();
        let waiting = self.active.waiting(&live).map(Arc::new);
        self.to.hold.send_replace(Arc::new(HoldState {
            held: self.active.hold().cloned(),
            is_durable: self.hold_file.is_some(),
            lost: self.lost.clone(),
            live: Some(Arc::clone(&live)),
            waiting: waiting.as_ref().map(|waiting| Arc::clone(&waiting.what)).unwrap_or_default(),
        }));
        let Some(objects) = self.objects.borrow().clone() else { return live };
        self.to.reports.send_replace(Arc::new(ConfigReports {
            objects: objects.others.clone(),
            unread: Arc::clone(&objects.unread),
            traffic: self.active.stored_traffic().reports().clone(),
            members: self.editions.reports(&self.from.policy.borrow()),
            entries: self.entries.problems().into(),
            keys: Arc::clone(&self.from.fetched.borrow().0),
            waiting,
        }));
        live
    }

    /// Applies the current access policies.
    fn access(&mut self, objects: &Objects) {
        let before: BTreeSet<String> = self.access_problems().collect();
        let change = self.active.apply_access(&objects.others, TimePoint::now());
        let problems: BTreeSet<String> = self.access_problems().collect();
        for problem in problems.difference(&before) {
            let code = &codes::ACCESS_UNREADABLE;
            warn!(%problem, %code, next = code.next, "access policy has faults and is not fully applied");
        }
        if problems != before {
            let problems = problems.into_iter().collect::<Vec<_>>();
            report_problems(&self.to.source_statuses, "access policies", &problems);
        }
        publish_change(&self.to.wanted_keys, Arc::new(self.active.wanted_keys()));
        let Some(change) = change else { return };
        self.outbox.push(MeshEvent::Access(change.policies, change.causes));
    }

    /// Applies token keys that were fetched, and reports failures to fetch them.
    async fn keys(&mut self) -> Fed {
        let fetched = Arc::clone(&self.from.fetched.borrow_and_update().0);
        self.to.reports.send_modify(|reports| {
            let keys = Arc::clone(&fetched);
            *reports = Arc::new(ConfigReports { keys, ..ConfigReports::clone(reports) });
        });
        let Some(policies) = self.active.access_mut().apply_keys(fetched) else { return Ok(()) };
        let cause = Cause::named(ClusterId::default(), "RequestAuthentication", "keys");
        self.send(MeshEvent::Access(policies, cause.into())).await
    }

    /// Waits until the token keys that policies name have been requested once, so that tokens that
    /// were valid before the restart are not refused. Waits at most [`KEYS_WAIT`].
    async fn keys_tried(&mut self) -> Fed {
        let deadline = Instant::now() + KEYS_WAIT;
        let is_tried = |(fetched, tried): &(Arc<FetchedKeys>, bool), wanted: &BTreeMap<_, _>| {
            *tried && wanted.keys().all(|place| fetched.contains_key(place))
        };
        let wanted = self.active.wanted_keys();
        while !wanted.is_empty() && Instant::now() < deadline {
            if is_tried(&self.from.fetched.borrow_and_update(), &wanted) {
                break;
            }
            tokio::select! {
                changed = self.from.fetched.changed() => if changed.is_err() { break },
                () = until(Some(deadline)) => {}
            }
        }
        self.keys().await
    }

    /// Ends the transition of servers that still accepted the previous mode of their clients.
    async fn access_settled(&mut self) -> Fed {
        let now = Instant::now().into_std();
        let Some(policies) = self.active.access_mut().settle(now) else { return Ok(()) };
        let cause = Cause::named(ClusterId::default(), "PeerAuthentication", "");
        self.send(MeshEvent::Access(policies, cause.into())).await
    }

    /// Returns the faults of access policies as text.
    fn access_problems(&self) -> impl Iterator<Item = String> {
        let of = |(name, report): (&PolicyName, &PolicyReport)| {
            let faults: Vec<_> = report.faults.iter().map(ToString::to_string).collect();
            format!("{name}: {}", faults.join("; "))
        };
        self.active.stored_access().troubles().map(of)
    }

    /// Applies the current ServiceEntries and traffic objects.
    fn entries(&mut self, objects: &Objects) {
        let config = Arc::clone(&self.active.settings().config);
        self.entries.export_by_default(&config.default_service_export_to);
        let before = self.entries.problems().to_vec();
        self.entries.shadowed(&objects.shadowed);
        let change = self.entries.apply(&objects.others);
        self.traffic(objects);
        let mut objects = self.entries.last_valid_objects();
        objects.extend(self.active.stored_traffic().last_valid_objects());
        objects.extend(self.active.stored_access().last_valid_objects());
        publish_change(&self.to.last_valid_objects, Arc::new(objects));
        let problems = self.entries.problems();
        // Both lists are sorted.
        let new = problems.iter().filter(|problem| before.binary_search(problem).is_err());
        for (_, problem) in first_of_each(new.map(|problem| (&problem.object, problem))) {
            let code = &codes::ENTRY;
            warn!(%problem, %code, next = code.next, "entry has faults and is not fully applied");
        }
        if before != problems {
            self.to.faulty.send_replace(problems.len());
            report_problems(&self.to.source_statuses, "entries", problems);
        }
        let Some(change) = change else { return };
        // This source has one run per process, which begins with a complete list.
        let update = RegistryUpdate { shard: ShardKey::service_entries(), epoch: Epoch(0), change };
        let selections = Arc::clone(self.entries.selections());
        self.outbox.push(MeshEvent::Entries(update, selections));
    }

    /// Applies the current traffic objects and logs new faults.
    fn traffic(&mut self, objects: &Objects) {
        let update = self.active.apply_traffic(&objects.others);
        let news = self.active.stored_traffic_mut().take_new_reasons();
        for (key, reason) in first_of_each(news.into_iter()) {
            let next = reason.code.next;
            warn!(object = %key, %reason, next, "traffic object has faults and is not fully applied");
        }
        self.outbox.extend(update.map(MeshEvent::Traffic));
    }

    async fn gateway_names(&mut self) -> Fed {
        let resolved = Arc::clone(&self.from.resolved.borrow_and_update());
        self.send(MeshEvent::GatewayNames(resolved)).await
    }
}

/// Returns the roots that the mesh config names.
fn named_roots(config: &mesh_config::MeshConfig) -> NamedRoots {
    let bundles = config.ca_certificates.iter();
    NamedRoots {
        own: config.same_trust_domains(&config.trust_domain).map(str::to_owned).collect(),
        bundles: bundles.map(|one| (one.pem.clone(), one.trust_domains.clone())).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strait_model::Collection;
    use strait_model::testing::{endpoint, member, service, shard};
    use strait_rules::access::PolicyErrors;

    #[tokio::test]
    async fn cluster_is_sent_before_its_endpoints() {
        let member = member(Some("n9"));
        let known = Arc::new(KnownClusters { clusters: [("east".into(), member)].into() });
        let (events, mut fed) = mpsc::channel(8);
        let (updates, updates_seen) = mpsc::channel(8);
        let (known, known_seen) = watch::channel(known);
        let (_statuses, statuses) = watch::channel(Arc::default());
        let (_settled, settled) = watch::channel(MembersSettled::All);
        let (_clients, clients) = watch::channel(Arc::default());
        let (_settings, settings) = watch::channel(mesh_config::MeshSettings::default());
        let (_objects, objects) = watch::channel(None);
        let (faulty, _) = watch::channel(0);
        let (_resolved, resolved) = watch::channel(Arc::default());
        let (_dead, dead_gateways) = watch::channel(Arc::default());
        let (_fetched, fetched) = watch::channel(Default::default());
        let (_context, context) = watch::channel(None);
        let (readiness, _) = watch::channel(Readiness { ready: true, waiting_for: Vec::new() });
        let source_statuses = SourceStatusTable::new(Duration::ZERO);
        let rollout = RolloutOutputs {
            heads: Arc::default(),
            subscription_index: Arc::default(),
            timeline: Arc::default(),
            state: watch::channel(Arc::default()).0,
        };
        let mut feed = ConfigFeed {
            from: FeedInputs {
                restored: Vec::new(),
                updates: updates_seen,
                clusters: reconciler::ReconcilerOutputs {
                    statuses,
                    known: known_seen,
                    settled,
                    clients,
                    relayed: watch::channel(None).1,
                },
                policy: strait_sources::policy_watch::WatchedFile::none().value,
                resolved,
                dead_gateways,
                fetched,
                context,
                holds: mpsc::channel(1).1,
            },
            editions: FeedOverrides::new(Arc::default()),
            statuses: source_statuses.lines(),
            to: FeedOutputs {
                events,
                selectors: watch::channel(None).0,
                trust_domain: watch::channel(None).0,
                named_roots: watch::channel(Arc::default()).0,
                wanted_keys: watch::channel(Arc::default()).0,
                faulty,
                reports: watch::channel(Arc::default()).0,
                hold: watch::channel(Arc::default()).0,
                last_valid_objects: watch::channel(Arc::default()).0,
                source_statuses,
                readiness,
            },
            known: Arc::default(),
            settings,
            objects,
            entries: service_entry::EntryIndex::new("cluster.local"),
            active: ActiveConfiguration::new(
                ReadingRules {
                    domain: "cluster.local".to_owned(),
                    defaults: mesh_config::Defaults::default(),
                    errors: PolicyErrors::default(),
                    budget: Default::default(),
                    default_visibility: strait_model::policy::DefaultVisibility::default(),
                },
                mesh_config::MeshSettings::default(),
                &Collection::default(),
            ),
            hold_file: None,
            rollout: FeedRollout::new(None, rollout, &Supervisor::new()),
            lost: None,
            outbox: Vec::new(),
            watchdog: Supervisor::new().watchdog("feed"),
        };
        let word = shard("east", 1).with(service("web.ns"), vec![endpoint("10.0.0.1")]).built();
        updates.send(word).await.expect("room");
        feed.flush().await.expect("a queue");
        assert!(
            matches!(fed.recv().await, Some(MeshEvent::Clusters(published)) if published == *known.borrow())
        );
        assert!(matches!(fed.recv().await, Some(MeshEvent::Registry(_))));
    }
}
