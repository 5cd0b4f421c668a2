//! The owner of the member clusters and their tasks.
//!
//! Reads the Secrets, computes a plan, and carries it out. Each cluster's registry is a separate
//! task, so that a registry that hangs or panics affects no other. A changed kubeconfig starts a
//! second run in addition to the first; the first stops only after the second run's data has been
//! passed on. If only the credential has changed and its user is the same, the first run uses the new
//! credential. The updates of a run pass through a gate, which is closed while the run reads a
//! different cluster than it should. Never inspects the content of a registry's update.

mod assumed;
mod context;
mod credential_swap;
mod member;
mod member_run;
mod publish;
mod same_cluster;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::Instant;
use tracing::{info, warn};

pub use self::context::{
    ConfigCluster, MemberClients, MembersSettled, ReconcilerConfig, RelayedMembers, Runner,
};
use self::context::{RESTART_PAUSE, ReconcilerContext};
use self::credential_swap::start_swap;
use self::member::{Member, RunSettings};
use self::member_run::start_run;
use super::flapping::Stage;
use super::identity::{ClusterIdHolder, ExpectedCluster};
use super::kubeconfig::KubeconfigRefusal;
use super::plan::{self, Action, Hold, Idle, Plan, PlannedCluster, PlannedMembers};
use super::remembered::RememberedMember;
use super::renewal::{self, RenewalFailures};
use super::resolve::{ProviderSecrets, deselection, permits, resolve};
use super::secret::{CLUSTER_ID_ANNOTATION, MemberSecret, MemberSpec};
use super::status::{
    ClusterState, ClusterStatus, MemberFacts, RestoredFacts, evaluate, refused_kubeconfig,
};
use crate::members::MemberSources;
use crate::members::book::TokenBook;
use crate::registry::kube::{OwnMesh, RunStatus};
use crate::store::{ObjectName, Objects, WatchedSecret};
use strait_base::codes;
use strait_base::source_status::FRESH_WAIT;
use strait_base::task::{Supervisor, until};
use strait_kube_client::{Access, ApiCredential, ReadLimits};
use strait_model::policy::{Policy, WhenDark};
use strait_model::registry::{Epoch, RegistryUpdate, ShardChange, ShardKey};
use strait_model::{ClusterId, KnownCluster, KnownClusters, Mode, NetworkId, ReadNamespaces};

/// Number of concurrent first syncs: more would only share the same bandwidth.
const FIRST_SYNCS: usize = 8;
/// The minimum interval between two steps: among hundreds of clusters, some status changes all the
/// time.
const PACE: Duration = Duration::from_millis(50);
/// Interval at which unchanged members are checked whose state may change with time.
const TICK: Duration = Duration::from_secs(1);
/// Interval at which all members are checked without any change: tokens may expire soon.
const TURN: Duration = Duration::from_secs(60);
/// How long to wait for the configuration before the remembered members are presumed to exist: the
/// API server of the config cluster may be down as well.
pub const CONFIGURATION_WAIT: Duration = Duration::from_secs(1);
/// How long to wait for a stopped task before its cluster is withdrawn nonetheless.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// The state that other parts of the program read.
#[derive(Debug, Clone)]
pub struct ReconcilerOutputs {
    /// The status of every cluster, and of every data key that holds none: the config cluster
    /// first, then by ID.
    pub statuses: watch::Receiver<Arc<Vec<ClusterStatus>>>,
    /// The clusters that are members.
    pub known: watch::Receiver<Arc<KnownClusters>>,
    /// Whether the state of the clusters is complete enough to serve it.
    pub settled: watch::Receiver<MembersSettled>,
    /// Clients of the members' API servers.
    pub clients: watch::Receiver<Arc<MemberClients>>,
    /// The members that may have relays; `None` until the Secrets have been read.
    pub relayed: watch::Receiver<Option<RelayedMembers>>,
}

/// Starts the reconciler under `tasks`.
pub fn start(mut config: ReconcilerConfig, tasks: &Supervisor) -> ReconcilerOutputs {
    let remembered = std::mem::take(&mut config.remembered);
    let (statuses, statuses_receiver) = watch::channel(Arc::default());
    let (known, known_receiver) = watch::channel(Arc::default());
    let (clients, clients_receiver) = watch::channel(Arc::default());
    let (relayed, relayed_receiver) = watch::channel(None);
    let (settled, settled_receiver) = watch::channel(MembersSettled::ConfigurationUnread);
    let hub = config.config_cluster.as_ref().map(|cluster| cluster.access.clone());
    let context = Arc::new(ReconcilerContext {
        book: TokenBook::new(hub, tasks),
        config,
        tasks: tasks.clone(),
        epochs: AtomicU64::new(0),
        first_syncs: Arc::new(Semaphore::new(FIRST_SYNCS)),
        news: Notify::new(),
        noted: Mutex::default(),
        statuses,
        known,
        clients,
        relayed,
        settled,
    });
    let owner = Arc::new(Mutex::new(Some(Reconciler::new(context, remembered))));
    tasks.spawn_restarting("clusters", RESTART_PAUSE, move || {
        let reconciler = ReconcilerGuard::take(&owner);
        async move {
            if let Some(mut reconciler) = reconciler {
                reconciler.run().await;
            }
        }
    });
    ReconcilerOutputs {
        statuses: statuses_receiver,
        known: known_receiver,
        settled: settled_receiver,
        clients: clients_receiver,
        relayed: relayed_receiver,
    }
}

/// The reconciler while a task runs it. It is returned when the task ends, also by a panic, and the
/// next task continues with it: clusters within their grace period could not be restored from a
/// Secret.
struct ReconcilerGuard {
    owner: Arc<Mutex<Option<Reconciler>>>,
    reconciler: Option<Reconciler>,
}

impl ReconcilerGuard {
    /// Returns `None` while another task has it, which cannot happen: only one runs at a time.
    fn take(owner: &Arc<Mutex<Option<Reconciler>>>) -> Option<Self> {
        let reconciler = owner.lock().unwrap_or_else(PoisonError::into_inner).take();
        reconciler.is_some().then(|| Self { owner: Arc::clone(owner), reconciler })
    }

    async fn run(&mut self) {
        if let Some(reconciler) = &mut self.reconciler {
            reconciler.run().await;
        }
    }
}

impl Drop for ReconcilerGuard {
    fn drop(&mut self) {
        *self.owner.lock().unwrap_or_else(PoisonError::into_inner) = self.reconciler.take();
    }
}

/// The set of members to check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MembersToCheck {
    /// Members with changes.
    News,
    /// Members with changes, and members whose state may change with time.
    Unsettled,
    /// All members: something that concerns all of them has changed.
    All,
}

/// The published state of a member.
struct MemberView {
    status: ClusterStatus,
    known: KnownCluster,
    /// Whether readiness waits for it.
    is_awaited: bool,
}

struct Reconciler {
    context: Arc<ReconcilerContext>,
    objects: watch::Receiver<Option<Arc<Objects>>>,
    config_access: Option<watch::Receiver<Access>>,
    sources: watch::Receiver<Arc<MemberSources>>,
    /// The objects that the current plan is based on.
    planned_for: Option<Arc<Objects>>,
    /// The operator file that the current plan is based on.
    planned_sources: Arc<MemberSources>,
    /// The parsed Secrets, so that only changed ones are parsed again.
    read: BTreeMap<ObjectName, (Arc<WatchedSecret>, MemberSecret)>,
    /// Why the operator file no longer selects a removed Secret, until the next plan.
    deselected_objects: BTreeMap<ObjectName, String>,
    /// How the operator file changed, for each member that leaves for that reason.
    deselected: BTreeMap<ClusterId, String>,
    /// The Secrets with the credentials for clusters of ClusterProfiles.
    provider_secrets: ProviderSecrets,
    running: PlannedMembers,
    plan: Plan,
    members: BTreeMap<ClusterId, Member>,
    /// Remembered members that are not members again yet.
    remembered: BTreeMap<ClusterId, RememberedMember>,
    /// When the remembered members are presumed to exist; `None` once that is done or unnecessary.
    presume_after: Option<Instant>,
    /// Whether the members come from the remembered state because the Secrets have not been read.
    assumed: bool,
    /// How long remembered members wait for other clusters whose data may be newer; `None` once
    /// that is over.
    fresh_until: Option<Instant>,
    policy: watch::Receiver<Arc<Policy>>,
    trust_domain: watch::Receiver<Option<Arc<str>>>,
    renewal_failures: watch::Receiver<Arc<RenewalFailures>>,
    /// The published state of each member.
    shown: BTreeMap<ClusterId, MemberView>,
    /// The published state of data keys that hold no member.
    idle: Vec<ClusterStatus>,
    /// The last published states, by cluster and Secret, and when each began.
    states: BTreeMap<(String, Option<String>), (ClusterState, Timestamp)>,
    started: SystemTime,
}

impl Reconciler {
    fn new(
        context: Arc<ReconcilerContext>,
        remembered: BTreeMap<ClusterId, RememberedMember>,
    ) -> Self {
        let (now, has_remembered) = (Instant::now(), !remembered.is_empty());
        Self {
            remembered,
            presume_after: has_remembered.then(|| now + CONFIGURATION_WAIT),
            assumed: false,
            fresh_until: has_remembered.then(|| now + FRESH_WAIT),
            policy: context.config.policy.clone(),
            trust_domain: context.config.trust_domain.clone(),
            renewal_failures: context.config.renewal_failures.clone(),
            shown: BTreeMap::new(),
            idle: Vec::new(),
            states: BTreeMap::new(),
            started: SystemTime::now(),
            objects: context.config.objects.clone(),
            sources: context.config.sources.clone(),
            planned_sources: Arc::default(),
            config_access: context.config.config_cluster.as_ref().map(|c| c.access.clone()),
            context,
            planned_for: None,
            read: BTreeMap::new(),
            deselected_objects: BTreeMap::new(),
            deselected: BTreeMap::new(),
            provider_secrets: ProviderSecrets::new(),
            running: PlannedMembers::default(),
            plan: Plan::default(),
            members: BTreeMap::new(),
        }
    }

    async fn run(&mut self) {
        let (mut tick, mut turn) = (tokio::time::interval(TICK), tokio::time::interval(TURN));
        let watchdog = self.context.tasks.watchdog("clusters");
        let mut look = MembersToCheck::All;
        loop {
            watchdog.beat();
            self.step(look).await;
            let paced = Instant::now() + PACE;
            look = tokio::select! {
                () = changed(Some(&mut self.objects)) => MembersToCheck::All,
                () = changed(Some(&mut self.sources)) => MembersToCheck::All,
                () = changed(self.config_access.as_mut()) => MembersToCheck::All,
                () = self.context.news.notified() => MembersToCheck::News,
                () = changed(Some(&mut self.policy)) => MembersToCheck::All,
                () = changed(Some(&mut self.trust_domain)) => MembersToCheck::All,
                () = changed(Some(&mut self.renewal_failures)) => MembersToCheck::All,
                () = until(self.presume_after) => MembersToCheck::All,
                () = until(self.fresh_until) => MembersToCheck::All,
                _ = turn.tick() => MembersToCheck::All,
                _ = tick.tick() => MembersToCheck::Unsettled,
            };
            tokio::time::sleep_until(paced).await;
        }
    }

    /// Does all pending work. Idempotent.
    async fn step(&mut self, mut look: MembersToCheck) {
        let now = Instant::now();
        let objects = self.objects.borrow_and_update().clone();
        // After the objects: it is at least as new as the file that selected them.
        let sources = Arc::clone(&self.sources.borrow_and_update());
        let news = objects.as_ref().filter(|objects| {
            self.planned_for.as_ref().is_none_or(|planned| !Arc::ptr_eq(planned, objects))
        });
        if let Some(objects) = news {
            self.read(&objects.secrets, &sources);
            self.provider_secrets.clone_from(&objects.provider_secrets);
            if let Some(place) = &objects.partial {
                self.presume_unread(place);
            }
        }
        let has_new_sources = objects.is_some() && !Arc::ptr_eq(&self.planned_sources, &sources);
        self.planned_sources = sources;
        if news.is_some()
            || has_new_sources
            || self.plan.next_change.is_some_and(|wake| wake <= now.into_std())
        {
            look = MembersToCheck::All;
            self.plan(now).await;
        }
        #[cfg(test)]
        tests::stumble();
        if objects.is_some() {
            self.presume_after = None;
        } else if self.presume_after.is_some_and(|at| at <= now) {
            look = MembersToCheck::All;
            self.presume();
        }
        self.planned_for = objects;
        if self.fresh_until.take_if(|by| *by <= now).is_some() {
            look = MembersToCheck::All;
        }
        let mut ids = self.members_to_check(look, now);
        self.tend(&ids, now).await;
        let superseded = self.withdraw_superseded().await;
        self.tend(&superseded, now).await;
        ids.extend(superseded);
        self.publish(&ids, look, now);
    }

    /// Returns the members to check. The config cluster comes first: if two IDs denote one cluster,
    /// its ID takes precedence.
    fn members_to_check(&self, look: MembersToCheck, now: Instant) -> Vec<ClusterId> {
        let noted = self.context.take_noted();
        let is_selected = |id: &ClusterId| match look {
            MembersToCheck::All => true,
            MembersToCheck::News => noted.contains(id),
            MembersToCheck::Unsettled => {
                noted.contains(id) || self.members.get(id).is_none_or(|one| !one.is_settled(now))
            }
        };
        let config = self.context.config.config_cluster.as_ref().map(|cluster| &cluster.id);
        let ids = config.into_iter().chain(self.running.clusters.keys());
        ids.filter(|id| is_selected(id)).cloned().collect()
    }

    fn read(&mut self, secrets: &[Arc<WatchedSecret>], sources: &MemberSources) {
        let mut before = std::mem::take(&mut self.read);
        for secret in secrets {
            let read = match before.remove(&secret.name) {
                Some((stored, read)) if stored == *secret => read,
                previous => {
                    let mut read = MemberSecret::read(secret, self.context.config.loopback);
                    if let Some(id) = self.id_of_profile(secret, previous.as_ref()) {
                        read.keep_id(id);
                    }
                    read
                }
            };
            self.read.insert(secret.name.clone(), (Arc::clone(secret), read));
        }
        let removed = before.into_values();
        let deselected = removed
            .filter_map(|(secret, _)| Some((secret.name.clone(), deselection(&secret, sources)?)));
        self.deselected_objects.extend(deselected);
    }

    /// Returns the ID that a ClusterProfile defined before. A manager may change the property that
    /// defines it, and proxies carry the ID.
    fn id_of_profile(
        &self,
        object: &WatchedSecret,
        previous: Option<&(Arc<WatchedSecret>, MemberSecret)>,
    ) -> Option<ClusterId> {
        let is_derived = |object: &WatchedSecret| {
            let annotation = object.annotations.get(CLUSTER_ID_ANNOTATION);
            object.profile.is_some() && annotation.is_none_or(String::is_empty)
        };
        if !is_derived(object) {
            return None;
        }
        if let Some((stored, read)) = previous {
            return read.clusters.keys().next().filter(|_| is_derived(stored)).cloned();
        }
        let running = self.running.clusters.iter();
        let mut holders = running.map(|(id, cluster)| (id, cluster.secret == object.name));
        let remembered = self.remembered.iter();
        let mut before = remembered.map(|(id, member)| (id, member.belongs_to(&object.name)));
        let held = holders.find(|(_, is_holder)| *is_holder);
        held.or_else(|| before.find(|(_, is_holder)| *is_holder)).map(|(id, _)| id.clone())
    }

    async fn plan(&mut self, now: Instant) {
        self.resume();
        let (sources, book) = (&self.planned_sources, &self.context.book);
        let provider_secrets = &self.provider_secrets;
        let resolve = |(secret, read): &(Arc<WatchedSecret>, MemberSecret)| {
            resolve(secret, read, sources, provider_secrets, book)
        };
        let resolved = self.read.values().map(resolve);
        let secrets: Vec<_> = resolved.collect();
        let config = &self.context.config;
        let config_cluster = config.config_cluster.as_ref().map(|cluster| cluster.id.clone());
        let grace = config.removal_grace;
        // Data restored from disk exists before a member has started to use it.
        let has_data = |id: &ClusterId| match self.members.get(id) {
            Some(member) => member.holds_data(),
            None => self.running.clusters.contains_key(id) && self.remembered.contains_key(id),
        };
        let now_std = now.into_std();
        let config_id = config_cluster.as_ref();
        let plan = plan::plan(&self.running, &secrets, config_id, grace, &has_data, now_std);
        for action in &plan.actions {
            self.carry_out(action, now).await;
        }
        report(&self.plan, &plan);
        self.plan = plan;
        self.deselected_objects.clear();
        let running = &self.running.clusters;
        let is_leaving = |cluster: &PlannedCluster| matches!(cluster.hold, Hold::Leaving { .. });
        self.deselected.retain(|id, _| running.get(id).is_some_and(is_leaving));
        // Forgets a member that is not named any more: a later cluster with its ID is a different
        // one.
        let named = |id: &ClusterId| {
            let mut secrets = self.read.values();
            config_cluster.as_ref() == Some(id)
                || secrets.any(|(_, secret)| secret.clusters.contains_key(id))
        };
        self.remembered.retain(|id, _| named(id));
    }

    /// Carries out the part of an action that [`Self::tend`] does not derive from
    /// [`PlannedMembers`].
    async fn carry_out(&mut self, action: &Action, now: Instant) {
        match action {
            Action::Add { id, secret, member: wanted, .. } => {
                info!(cluster = %id, %secret, "cluster added");
                warn_about_rights(id, wanted);
            }
            Action::Adopt { id, secret, member: wanted, .. } => {
                info!(cluster = %id, %secret, "another Secret defines the cluster now; it continues unchanged");
                warn_about_rights(id, wanted);
                let without_secret = !self.has_secret(id);
                // A presumed Secret that turns out to exist changes nothing. Neither does one that
                // was created again, unless the policy accepts it.
                let held_it =
                    self.running.clusters.get(id).is_some_and(|cluster| cluster.secret == *secret);
                if let Some(member) = self.members.get_mut(id) {
                    // Another Secret may mean another cluster with the same name, unless its access
                    // is the same.
                    if !held_it && !member.reads_from(&wanted.access) {
                        (member.uid, member.found_by, member.followed) = (None, None, None);
                    }
                    member.since = now;
                    if without_secret {
                        member.drop_others(&wanted.access);
                    }
                }
            }
            Action::Replace { id, .. } => info!(cluster = %id, "kubeconfig or identity changed"),
            Action::SetNamespaces { id, .. }
            | Action::SetNetwork { id, .. }
            | Action::SetMode { id, .. }
            | Action::SetUid { id, .. }
            | Action::SetTrustDomain { id, .. }
            | Action::SetSetName { id, .. } => {
                info!(cluster = %id, "annotation changed");
            }
            Action::StartGrace { id, .. } => match self.deselection_of(id) {
                Some(reason) => {
                    let code = &codes::MEMBER_DESELECTED;
                    warn!(cluster = %id, %code, reason, next = code.next, "cluster will be withdrawn");
                    self.deselected.insert(id.clone(), reason);
                }
                None => info!(cluster = %id, "no Secret defines the cluster any more"),
            },
            Action::Withdraw { id } => {
                match self.deselected.remove(id).or_else(|| self.deselection_of(id)) {
                    Some(reason) => {
                        let code = &codes::MEMBER_DESELECTED;
                        warn!(cluster = %id, %code, reason, "cluster withdrawn");
                    }
                    None => info!(cluster = %id, "cluster withdrawn"),
                }
                self.withdraw(id).await;
            }
        }
        // Last, so that an action that a panic interrupted is planned again.
        self.running.apply(action);
        // Data that was restored keeps the age with which it was merged.
        if let Action::Add { id, .. } = action
            && let Some(created) = self.remembered.get(id).and_then(|member| member.created)
            && let Some(cluster) = self.running.clusters.get_mut(id)
        {
            cluster.created = Some(created);
        }
    }

    /// Returns how the operator file changed, if it no longer selects the object that held `id` until
    /// now.
    fn deselection_of(&self, id: &ClusterId) -> Option<String> {
        let cluster = self.running.clusters.get(id)?;
        self.deselected_objects.get(&cluster.secret).cloned()
    }

    /// Whether the Secret that held `id` until now still contains it, usable or not.
    fn has_secret(&self, id: &ClusterId) -> bool {
        let holder = self.running.clusters.get(id).map(|cluster| &cluster.secret);
        let secret = holder.and_then(|holder| self.read.get(holder));
        secret.is_some_and(|(_, read)| read.clusters.contains_key(id))
    }

    /// Reports the end of the shard, after the last update from the cluster's tasks: otherwise it
    /// could remove a new cluster with this ID.
    async fn withdraw(&mut self, id: &ClusterId) {
        if let Some(mut member) = self.members.remove(id) {
            member.freeze();
            for tasks in &member.ending {
                if !tasks.shut_down(STOP_LIMIT).await {
                    warn!(cluster = %id, "stopped task has not ended; withdrawing its cluster");
                }
            }
        }
        let shard = ShardKey::kubernetes(id.clone());
        let epoch = self.context.next_epoch();
        let removed = RegistryUpdate { shard, epoch, change: ShardChange::Removed };
        // An error means that no receiver is left: the process is ending.
        let _ = self.context.config.updates.send(removed).await;
    }

    /// Brings the run of each of these members in line with the plan.
    async fn tend(&mut self, ids: &[ClusterId], now: Instant) {
        for id in ids {
            #[cfg(test)]
            tests::count_look(id);
            let mut member = match self.members.remove(id) {
                Some(member) => member,
                None => self.begin(id, now).await,
            };
            let cluster = self.running.clusters.get(id);
            let (mode, _) = self.effective_mode(id, cluster);
            let frozen = matches!(member.flapping.stage(now.into_std()), Some(Stage::Frozen(_)))
                || mode == Mode::Pause;
            let hold = cluster.map(|cluster| &cluster.hold);
            member.drop_replaced();
            member.drop_forbidden(|access| permits(&self.planned_sources, access));
            member.is_to_begin = false;
            match (hold, &self.config_access) {
                (Some(Hold::Leaving { .. } | Hold::Assumed), _) => member.freeze(),
                _ if frozen || self.revoked(id, cluster).is_some() => member.freeze(),
                (Some(Hold::BySecret(access)), _) => self.align(id, &mut member, access),
                (None, Some(access)) => {
                    let access = access.borrow().clone();
                    self.align(id, &mut member, &access);
                }
                (None, None) => {}
            }
            let expected = self.expected_cluster(id, cluster);
            let stale_after = self.context.config.stale_after;
            let same_cluster = |uid: &str| self.preceding_member(id, uid);
            member.advance(&expected, same_cluster, stale_after, now);
            self.members.insert(id.clone(), member);
        }
    }

    /// Creates a new member from its remembered state.
    async fn begin(&mut self, id: &ClusterId, now: Instant) -> Member {
        let mut member = Member::new(now);
        let Some(remembered) = self.remembered.remove(id) else { return member };
        member.last = remembered.status();
        member.has_data = true;
        member.claimed = remembered.trust_domain();
        // Another Secret may mean another cluster with the same name.
        let cluster = self.running.clusters.get(id);
        if cluster.is_none_or(|cluster| remembered.belongs_to(&cluster.secret)) {
            (member.uid, member.found_by) = (remembered.uid, remembered.found_by);
        }
        member.restored = Some(RestoredFacts { remark: remembered.remark });
        // Until the Secret has been read, its limits are unknown.
        let may_be_limited = cluster.is_some_and(|cluster| cluster.hold == Hold::Assumed)
            || !self.read_namespaces(id, cluster).is_whole();
        member.passed.store_contents(may_be_limited);
        member.passed.note(&remembered.contents);
        info!(cluster = %id, "cluster restored from disk, until it syncs");
        // Older than any run, so that the first update of any run replaces it.
        let (shard, epoch) = (ShardKey::kubernetes(id.clone()), Epoch(0));
        let update =
            RegistryUpdate { shard, epoch, change: ShardChange::Reset(remembered.contents) };
        // An error means that no receiver is left: the process is ending.
        let _ = self.context.config.updates.send(update).await;
        member
    }

    fn align(&self, id: &ClusterId, member: &mut Member, access: &Access) {
        let budget = self.policy.borrow().budget(id);
        let usual = ReadLimits::default();
        let limits = ReadLimits {
            object_bytes: budget.object_bytes.unwrap_or(usual.object_bytes),
            page_bytes: budget.page_bytes.unwrap_or(usual.page_bytes),
            objects: budget.objects.unwrap_or(usual.objects),
            pages: budget.pages.unwrap_or(usual.pages),
            memory_bytes: budget.memory_bytes.unwrap_or(usual.memory_bytes),
        };
        // Identities are composed while objects are read: a different trust domain requires a new
        // read.
        let cluster = self.running.clusters.get(id);
        let claimed = member.claimed.as_ref();
        let mesh = self.trust_domain.borrow().clone();
        let (Some(trust_domain), Some(mesh)) =
            (self.effective_trust_domain(id, cluster, claimed), mesh)
        else {
            member.is_to_begin = true;
            return;
        };
        let refused = || claimed.and_then(|claimed| self.may_name(id, claimed).err());
        let own_mesh = match cluster.map(|cluster| &cluster.trust_domain) {
            None => OwnMesh::Unread,
            Some(Some(named)) => {
                let kind = cluster.map_or("Secret", |cluster| self.source_kind(&cluster.secret));
                OwnMesh::Overruled(format!("the {kind}'s annotation {named} applies").into())
            }
            Some(None) => match refused() {
                Some(why) => OwnMesh::Overruled(why.into()),
                None => OwnMesh::Counts(mesh),
            },
        };
        let namespaces = self.read_namespaces(id, cluster);
        let how =
            RunSettings { access: access.clone(), limits, trust_domain, own_mesh, namespaces };
        let (passed, object_counts) = (member.passed.clone(), member.last.object_counts);
        let start = || start_run(&self.context, id, &how, &passed, object_counts);
        let swap = |run, access| start_swap(&self.context, run, access);
        member.align(&how, start, swap, id);
    }

    /// Returns the namespaces to which the reader of a cluster is limited. The policy takes
    /// precedence over the Secret.
    fn read_namespaces(&self, id: &ClusterId, cluster: Option<&PlannedCluster>) -> ReadNamespaces {
        let policy = self.policy.borrow().read_namespaces(id).cloned();
        let secret = || cluster.map(|cluster| cluster.namespaces.clone());
        policy.or_else(secret).unwrap_or_default()
    }

    /// Returns why the operator file no longer allows a running member to use its proxy, or what this
    /// control plane issues: the token of an identity, or the certificate of a relay. Its runs then
    /// end. Other refusals leave a running member unchanged.
    fn revoked(
        &self,
        id: &ClusterId,
        cluster: Option<&PlannedCluster>,
    ) -> Option<&KubeconfigRefusal> {
        let access = cluster?.access()?;
        let by_operator = [
            &codes::ID_OUTSIDE_SOURCE,
            &codes::IDENTITY_UNKNOWN,
            &codes::IDENTITY_SERVER,
            &codes::NOT_AVAILABLE,
        ];
        let refusal = self.plan.unused_secrets.get(id)?;
        let is_revoked = by_operator.contains(&refusal.code)
            && matches!(access.credential, ApiCredential::Issued(_) | ApiCredential::Relay);
        (is_revoked || !permits(&self.planned_sources, access)).then_some(refusal)
    }

    /// Returns the trust domain of a cluster's workloads: the one in its Secret, else the cluster's
    /// own if it may claim that, else the mesh's. The config cluster uses the mesh's.
    fn effective_trust_domain(
        &self,
        id: &ClusterId,
        cluster: Option<&PlannedCluster>,
        claimed: Option<&Arc<str>>,
    ) -> Option<Arc<str>> {
        let own = cluster.and_then(|cluster| {
            let claimed = || claimed.filter(|claimed| self.may_name(id, claimed).is_ok());
            cluster.trust_domain.as_ref().or_else(claimed).cloned()
        });
        own.or_else(|| self.trust_domain.borrow().clone())
    }

    /// Checks whether a cluster may claim its workloads' trust domain itself. Unless the policy
    /// decides, it may not claim a domain that an operator assigned to another cluster.
    fn may_name(&self, id: &ClusterId, domain: &str) -> Result<(), String> {
        if self.trust_domain.borrow().as_deref() == Some(domain) {
            return Ok(());
        }
        if let Some(ruled) = self.policy.borrow().may_name(id, domain) {
            return ruled.map_err(|refused| format!("{}: {refused}", codes::TRUST_DOMAIN_REFUSED));
        }
        let is_named = |other: &ClusterId, cluster: &PlannedCluster| {
            other != id
                && cluster.hold != Hold::Assumed
                && cluster.trust_domain.as_deref() == Some(domain)
        };
        match self.running.clusters.iter().find(|(other, cluster)| is_named(other, cluster)) {
            Some((other, cluster)) => {
                let code = &codes::TRUST_DOMAIN_REFUSED;
                let kind = self.source_kind(&cluster.secret);
                Err(format!(
                    "{code}: it belongs to {other}, according to the annotation of that {kind}"
                ))
            }
            None => Ok(()),
        }
    }

    /// Returns the mode that an operator requests for a cluster, and its origin. The Secret takes
    /// precedence over the policy.
    fn effective_mode(&self, id: &ClusterId, cluster: Option<&PlannedCluster>) -> (Mode, String) {
        match cluster.map(|cluster| cluster.mode).filter(|mode| *mode != Mode::Normal) {
            Some(mode) => (mode, "strait.dev/mode".to_owned()),
            None => match self.policy.borrow().mode(id) {
                Some((mode, rule)) => (mode, format!("policy {rule}")),
                None => (Mode::Normal, String::new()),
            },
        }
    }

    /// Returns the members whose endpoints are withdrawn because the cluster has been unreachable
    /// for too long, and the rule. No endpoints are withdrawn while all of several API servers are
    /// unreachable: then Strait itself is cut off.
    fn withdrawn(&self, wall: SystemTime) -> BTreeMap<ClusterId, String> {
        let policy = self.policy.borrow();
        let dark: BTreeMap<&ClusterId, SystemTime> = self
            .members
            .iter()
            .filter_map(|(id, member)| Some((id, member.dark_since(self.started)?)))
            .collect();
        if dark.len() == self.members.len() && dark.len() > 1 {
            return BTreeMap::new();
        }
        let withdrawn = dark.into_iter().filter_map(|(id, since)| {
            let (WhenDark::WithdrawAfter(after), rule) = policy.when_dark(id)? else { return None };
            let cluster = self.running.clusters.get(id);
            let paused = self.effective_mode(id, cluster).0 == Mode::Pause;
            let leaving = cluster.is_some_and(|one| matches!(one.hold, Hold::Leaving { .. }));
            let age = wall.duration_since(since).unwrap_or_default();
            (age >= after && !paused && !leaving).then(|| {
                (id.clone(), format!("unreachable for more than {after:?} (policy {rule})"))
            })
        });
        withdrawn.collect()
    }

    /// Returns the facts that decide which cluster a member may be. The config cluster has no object
    /// that could be new.
    fn expected_cluster<'a>(
        &'a self,
        id: &'a ClusterId,
        cluster: Option<&'a PlannedCluster>,
    ) -> ExpectedCluster<'a> {
        let object = cluster.and_then(|cluster| self.read.get(&cluster.secret));
        ExpectedCluster {
            id,
            kind: cluster.map_or("Secret", |cluster| self.source_kind(&cluster.secret)),
            pinned: cluster.and_then(|cluster| cluster.uid.as_deref()),
            follows_source: cluster.is_some() && self.policy.borrow().follows_source(id),
            object: object.and_then(|(object, _)| object.uid.clone()),
            access: cluster.and_then(PlannedCluster::access),
        }
    }
}

/// Logs new refusals.
fn report(before: &Plan, now: &Plan) {
    for idle in now.idle.iter().filter(|idle| !before.idle.contains(idle)) {
        warn!(secret = %idle.secret, key = ?idle.key, reason = %idle.refusal, "cluster not added");
    }
    for (id, refusal) in &now.unused_secrets {
        if before.unused_secrets.get(id) != Some(refusal) {
            warn!(cluster = %id, reason = %refusal, "Secret not used; the cluster continues unchanged");
        }
    }
}

/// Warns about a credential with all rights, which its API server cannot revoke.
fn warn_about_rights(id: &ClusterId, member: &MemberSpec) {
    if member.has_all_rights() {
        let code = &codes::ADMIN_CREDENTIAL;
        warn!(cluster = %id, %code, next = code.next, "the member is read with a client certificate of system:masters");
    }
}

/// Waits for a change. Never returns if no change is possible.
async fn changed<T>(receiver: Option<&mut watch::Receiver<T>>) {
    if let Some(receiver) = receiver
        && receiver.changed().await.is_ok()
    {
        return;
    }
    std::future::pending::<()>().await;
}

#[cfg(test)]
mod tests;
