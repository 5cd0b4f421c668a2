//! The one owner of the member clusters and their tasks.
//!
//! Reads the Secrets, plans, and carries the plan out: each cluster's registry is a task of its own, so that one that
//! hangs or panics is the only one affected. A changed kubeconfig starts a second run beside the first; the first stops
//! when what the second reports has been passed on, and not before. What a run reports passes through a gate here,
//! which stays shut while the run speaks for another cluster than it should. Never looks into an update of a registry.

mod assumed;
mod context;
mod member;
mod member_run;
mod publish;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::Instant;
use tracing::{info, warn};

pub use self::context::{ConfigCluster, MemberClients, MembersSettled, ReconcilerConfig, Runner};
use self::context::{RESTART_PAUSE, ReconcilerContext};
use self::member::{Member, RunSettings};
use self::member_run::start_run;
use super::flapping::Stage;
use super::plan::{self, Action, Hold, Idle, Plan, PlannedCluster, PlannedMembers};
use super::remembered::RememberedMember;
use super::renewal;
use super::secret::MemberSecret;
use super::status::{
    ClusterIdHolder, ClusterState, ClusterStatus, MemberFacts, RestoredFacts, TokenStatus, judge,
};
use super::token::Lifetime;
use crate::registry::kube::{OwnMesh, RunStatus};
use crate::store::{ObjectName, Objects, WatchedSecret};
use strait_base::codes;
use strait_base::source_status::FRESH_WAIT;
use strait_base::task::{Supervisor, until};
use strait_kube_client::{Access, ReadLimits};
use strait_model::policy::{Policy, WhenDark};
use strait_model::registry::{Epoch, RegistryUpdate, ShardChange, ShardKey};
use strait_model::{ClusterId, KnownCluster, KnownClusters, Mode, NetworkId};

/// Clusters that sync for the first time at once: more would only share the same bandwidth.
const FIRST_SYNCS: usize = 8;
/// The least time between two looks: of hundreds of clusters some have news all the time.
const PACE: Duration = Duration::from_millis(50);
/// How often members are looked at without news whose state may change by the time alone.
const TICK: Duration = Duration::from_secs(1);
/// How often at all members without news: the end of a token draws near.
const TURN: Duration = Duration::from_secs(60);
/// How long the configuration may take to be read before the members are presumed to be those that are
/// remembered: its API server may be as dead as theirs.
pub const CONFIGURATION_WAIT: Duration = Duration::from_secs(1);
/// How long a stopped task may take to end before its cluster is withdrawn nonetheless.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// What others see.
#[derive(Debug, Clone)]
pub struct ReconcilerOutputs {
    /// Every cluster and every Secret's key that holds none: the config cluster first, then by ID.
    pub statuses: watch::Receiver<Arc<Vec<ClusterStatus>>>,
    /// The clusters held.
    pub known: watch::Receiver<Arc<KnownClusters>>,
    /// Whether the state of the clusters is complete enough to answer from.
    pub settled: watch::Receiver<MembersSettled>,
    /// Their API servers.
    pub clients: watch::Receiver<Arc<MemberClients>>,
}

/// Starts the reconciler under `tasks`.
pub fn start(mut config: ReconcilerConfig, tasks: &Supervisor) -> ReconcilerOutputs {
    let remembered = std::mem::take(&mut config.remembered);
    let (statuses, statuses_seen) = watch::channel(Arc::default());
    let (known, known_seen) = watch::channel(Arc::default());
    let (clients, clients_seen) = watch::channel(Arc::default());
    let (settled, settled_seen) = watch::channel(MembersSettled::ConfigurationUnread);
    let context = Arc::new(ReconcilerContext {
        config,
        tasks: tasks.clone(),
        epochs: AtomicU64::new(0),
        first_syncs: Arc::new(Semaphore::new(FIRST_SYNCS)),
        news: Notify::new(),
        noted: Mutex::default(),
        statuses,
        known,
        clients,
        settled,
    });
    let kept = Arc::new(Mutex::new(Some(Reconciler::new(context, remembered))));
    tasks.spawn_restarting("clusters", RESTART_PAUSE, move || {
        let reconciler = ReconcilerGuard::take(&kept);
        async move {
            if let Some(mut reconciler) = reconciler {
                reconciler.run().await;
            }
        }
    });
    ReconcilerOutputs {
        statuses: statuses_seen,
        known: known_seen,
        settled: settled_seen,
        clients: clients_seen,
    }
}

/// The reconciler, lent to the task that runs it. It goes back when the task ends, by a panic too, and
/// the next one goes on with it: clusters within their grace have no Secret to be found again by.
struct ReconcilerGuard {
    owner: Arc<Mutex<Option<Reconciler>>>,
    lent: Option<Reconciler>,
}

impl ReconcilerGuard {
    /// `None` while another task has it, which can't be: there is one at a time.
    fn take(owner: &Arc<Mutex<Option<Reconciler>>>) -> Option<Self> {
        let lent = owner.lock().unwrap_or_else(PoisonError::into_inner).take();
        lent.is_some().then(|| Self { owner: Arc::clone(owner), lent })
    }

    async fn run(&mut self) {
        if let Some(reconciler) = &mut self.lent {
            reconciler.run().await;
        }
    }
}

impl Drop for ReconcilerGuard {
    fn drop(&mut self) {
        *self.owner.lock().unwrap_or_else(PoisonError::into_inner) = self.lent.take();
    }
}

/// At which members to look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MembersToLookAt {
    /// At those that have news.
    News,
    /// At those, and at those whose state may change by the time alone.
    Unsettled,
    /// At all: what concerns all of them has changed.
    All,
}

/// What is shown of a member.
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
    /// What the plan was made for.
    planned_for: Option<Arc<Objects>>,
    /// The Secrets as read, so that only those that changed are read again.
    read: BTreeMap<ObjectName, (Arc<WatchedSecret>, MemberSecret)>,
    running: PlannedMembers,
    plan: Plan,
    members: BTreeMap<ClusterId, Member>,
    /// Members as they were known before, until they are members again.
    remembered: BTreeMap<ClusterId, RememberedMember>,
    /// When those are presumed to be members still; none once that is done or needless.
    presume_at: Option<Instant>,
    /// Whether the members are those that are remembered, the Secrets being unread.
    assumed: bool,
    /// Until when what is remembered waits for clusters that may yet say what is newer; none once that is over.
    fresh_by: Option<Instant>,
    policy: watch::Receiver<Arc<Policy>>,
    trust_domain: watch::Receiver<Option<Arc<str>>>,
    /// What is shown of each member.
    shown: BTreeMap<ClusterId, MemberView>,
    /// What is shown of what is no member.
    idle: Vec<ClusterStatus>,
    /// The states last shown, by cluster and Secret, and since when.
    states: BTreeMap<(String, Option<String>), (ClusterState, Timestamp)>,
    started: SystemTime,
}

impl Reconciler {
    fn new(
        context: Arc<ReconcilerContext>,
        remembered: BTreeMap<ClusterId, RememberedMember>,
    ) -> Self {
        let (now, knows) = (Instant::now(), !remembered.is_empty());
        Self {
            remembered,
            presume_at: knows.then(|| now + CONFIGURATION_WAIT),
            assumed: false,
            fresh_by: knows.then(|| now + FRESH_WAIT),
            policy: context.config.policy.clone(),
            trust_domain: context.config.trust_domain.clone(),
            shown: BTreeMap::new(),
            idle: Vec::new(),
            states: BTreeMap::new(),
            started: SystemTime::now(),
            objects: context.config.objects.clone(),
            config_access: context.config.config_cluster.as_ref().map(|c| c.access.clone()),
            context,
            planned_for: None,
            read: BTreeMap::new(),
            running: PlannedMembers::default(),
            plan: Plan::default(),
            members: BTreeMap::new(),
        }
    }

    async fn run(&mut self) {
        let (mut tick, mut turn) = (tokio::time::interval(TICK), tokio::time::interval(TURN));
        let watchdog = self.context.tasks.watchdog("clusters");
        let mut look = MembersToLookAt::All;
        loop {
            watchdog.beat();
            self.step(look).await;
            let paced = Instant::now() + PACE;
            look = tokio::select! {
                () = changed(Some(&mut self.objects)) => MembersToLookAt::All,
                () = changed(self.config_access.as_mut()) => MembersToLookAt::All,
                () = self.context.news.notified() => MembersToLookAt::News,
                () = changed(Some(&mut self.policy)) => MembersToLookAt::All,
                () = changed(Some(&mut self.trust_domain)) => MembersToLookAt::All,
                () = until(self.presume_at) => MembersToLookAt::All,
                () = until(self.fresh_by) => MembersToLookAt::All,
                _ = turn.tick() => MembersToLookAt::All,
                _ = tick.tick() => MembersToLookAt::Unsettled,
            };
            tokio::time::sleep_until(paced).await;
        }
    }

    /// Does everything that is to be done now. Doing it again does nothing.
    async fn step(&mut self, mut look: MembersToLookAt) {
        let now = Instant::now();
        let objects = self.objects.borrow_and_update().clone();
        let news = objects.as_ref().filter(|objects| {
            self.planned_for.as_ref().is_none_or(|planned| !Arc::ptr_eq(planned, objects))
        });
        if let Some(objects) = news {
            self.read(&objects.secrets);
            if let Some(place) = &objects.partial {
                self.presume_unread(place);
            }
        }
        if news.is_some() || self.plan.wake.is_some_and(|wake| wake <= now.into_std()) {
            look = MembersToLookAt::All;
            self.plan(now).await;
        }
        #[cfg(test)]
        tests::stumble();
        if objects.is_some() {
            self.presume_at = None;
        } else if self.presume_at.is_some_and(|at| at <= now) {
            look = MembersToLookAt::All;
            self.presume();
        }
        self.planned_for = objects;
        if self.fresh_by.take_if(|by| *by <= now).is_some() {
            look = MembersToLookAt::All;
        }
        let ids = self.to_look_at(look, now);
        self.tend(&ids, now).await;
        self.publish(&ids, look, now);
    }

    /// The members to look at. The config cluster first: of two IDs for one cluster it is the one that counts.
    fn to_look_at(&self, look: MembersToLookAt, now: Instant) -> Vec<ClusterId> {
        let noted = self.context.take_noted();
        let is_meant = |id: &ClusterId| match look {
            MembersToLookAt::All => true,
            MembersToLookAt::News => noted.contains(id),
            MembersToLookAt::Unsettled => {
                noted.contains(id) || self.members.get(id).is_none_or(|one| !one.is_settled(now))
            }
        };
        let config = self.context.config.config_cluster.as_ref().map(|cluster| &cluster.id);
        let ids = config.into_iter().chain(self.running.clusters.keys());
        ids.filter(|id| is_meant(id)).cloned().collect()
    }

    fn read(&mut self, secrets: &[Arc<WatchedSecret>]) {
        let mut before = std::mem::take(&mut self.read);
        for secret in secrets {
            let read = match before.remove(&secret.name) {
                Some((known, read)) if known == *secret => read,
                _ => MemberSecret::read(secret, self.context.config.loopback),
            };
            self.read.insert(secret.name.clone(), (Arc::clone(secret), read));
        }
    }

    async fn plan(&mut self, now: Instant) {
        self.resume();
        let secrets: Vec<_> = self.read.values().map(|(_, read)| read.clone()).collect();
        let config = &self.context.config;
        let config_cluster = config.config_cluster.as_ref().map(|cluster| cluster.id.clone());
        let grace = config.removal_grace;
        // What is on disk is there before a member has begun with it.
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
        // A member that nothing names any more is forgotten: one that comes by its ID is another.
        let named = |id: &ClusterId| {
            let mut secrets = self.read.values();
            config_cluster.as_ref() == Some(id)
                || secrets.any(|(_, secret)| secret.clusters.contains_key(id))
        };
        self.remembered.retain(|id, _| named(id));
    }

    /// What follows from an action beyond what [`Self::tend`] sees from [`PlannedMembers`].
    async fn carry_out(&mut self, action: &Action, now: Instant) {
        match action {
            Action::Add { id, secret, .. } => info!(cluster = %id, %secret, "cluster added"),
            Action::Adopt { id, secret, member: wanted, .. } => {
                info!(cluster = %id, %secret, "cluster goes on under this Secret");
                let without_secret = !self.is_still_there(id);
                // A Secret that was presumed and is there means nothing new.
                let as_assumed = self.running.clusters.get(id).is_some_and(|cluster| {
                    cluster.hold == Hold::Assumed && cluster.secret == *secret
                });
                if let Some(member) = self.members.get_mut(id) {
                    // Another Secret may mean another cluster by the same name, unless it leads to the same.
                    if !as_assumed && !member.reads_from(&wanted.access) {
                        member.uid = None;
                    }
                    member.since = now;
                    if without_secret {
                        member.drop_others(&wanted.access);
                    }
                }
            }
            Action::Replace { id, .. } => info!(cluster = %id, "kubeconfig changed"),
            Action::SetNetwork { id, .. }
            | Action::SetMode { id, .. }
            | Action::SetUid { id, .. }
            | Action::SetTrustDomain { id, .. } => {
                info!(cluster = %id, "annotation changed");
            }
            Action::StartGrace { id, .. } => info!(cluster = %id, "cluster loses its Secret"),
            Action::Withdraw { id } => {
                info!(cluster = %id, "cluster withdrawn");
                self.withdraw(id).await;
            }
        }
        // Last: what a panic cut short is planned again.
        self.running.apply(action);
        // Data that outlived the process keeps the age at which it was merged.
        if let Action::Add { id, .. } = action
            && let Some(created) = self.remembered.get(id).and_then(|known| known.created)
            && let Some(cluster) = self.running.clusters.get_mut(id)
        {
            cluster.created = Some(created);
        }
    }

    /// Whether the Secret that held `id` until now still has it, be it unusable.
    fn is_still_there(&self, id: &ClusterId) -> bool {
        let holder = self.running.clusters.get(id).map(|cluster| &cluster.secret);
        let secret = holder.and_then(|holder| self.read.get(holder));
        secret.is_some_and(|(_, read)| read.clusters.contains_key(id))
    }

    /// Reports that the shard has ended, after the last update of its tasks: a new cluster by that ID must not be taken
    /// down by it.
    async fn withdraw(&mut self, id: &ClusterId) {
        if let Some(mut member) = self.members.remove(id) {
            member.freeze();
            for tasks in &member.ending {
                if !tasks.shut_down(STOP_LIMIT).await {
                    warn!(cluster = %id, "a stopped task has not ended; its cluster is withdrawn");
                }
            }
        }
        let shard = ShardKey::kubernetes(id.clone());
        let epoch = self.context.next_epoch();
        let removed = RegistryUpdate { shard, epoch, change: ShardChange::Removed };
        // An error means that there is nobody to notify: the process ends.
        let _ = self.context.config.updates.send(removed).await;
    }

    /// Makes each of these members run as it should.
    async fn tend(&mut self, ids: &[ClusterId], now: Instant) {
        for id in ids {
            #[cfg(test)]
            tests::looked_at(id);
            let mut member = match self.members.remove(id) {
                Some(member) => member,
                None => self.begin(id, now).await,
            };
            let cluster = self.running.clusters.get(id);
            let (mode, _) = self.mode_of(id, cluster);
            let frozen = matches!(member.flapping.stage(now.into_std()), Some(Stage::Frozen(_)))
                || mode == Mode::Pause;
            let hold = cluster.map(|cluster| &cluster.hold);
            member.drop_replaced();
            member.is_to_begin = false;
            match (hold, &self.config_access) {
                (Some(Hold::Leaving { .. } | Hold::Assumed), _) => member.freeze(),
                _ if frozen => member.freeze(),
                (Some(Hold::Held(access)), _) => self.align(id, &mut member, access),
                (None, Some(access)) => {
                    let access = access.borrow().clone();
                    self.align(id, &mut member, &access);
                }
                (None, None) => {}
            }
            let pinned = cluster.and_then(|cluster| cluster.uid.as_deref());
            let stale_after = self.context.config.stale_after;
            let same_uid_as = |uid: &str| self.same_uid_as(uid, pinned == Some(uid));
            member.advance(pinned, same_uid_as, stale_after, now);
            self.members.insert(id.clone(), member);
        }
    }

    /// A member that was none until now: with what is remembered of it.
    async fn begin(&mut self, id: &ClusterId, now: Instant) -> Member {
        let mut member = Member::new(now);
        let Some(remembered) = self.remembered.remove(id) else { return member };
        member.last = remembered.status();
        member.has_data = true;
        member.claimed = remembered.trust_domain();
        // Another Secret may mean another cluster by the same name.
        let cluster = self.running.clusters.get(id);
        if cluster.is_none_or(|cluster| remembered.is_of(&cluster.secret)) {
            member.uid = remembered.uid;
        }
        member.restored = Some(RestoredFacts { remark: remembered.remark });
        member.passed.note(&remembered.contents);
        info!(cluster = %id, "cluster restored from disk, until it syncs");
        // Older than any run, so that the first update of any takes its place.
        let (shard, epoch) = (ShardKey::kubernetes(id.clone()), Epoch(0));
        let word = RegistryUpdate { shard, epoch, change: ShardChange::Reset(remembered.contents) };
        // An error means that there is nobody to notify: the process ends.
        let _ = self.context.config.updates.send(word).await;
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
        // Identities are written while objects are read: of another trust domain they are read anew.
        let cluster = self.running.clusters.get(id);
        let claimed = member.claimed.as_ref();
        let mesh = self.trust_domain.borrow().clone();
        let (Some(trust_domain), Some(mesh)) = (self.trust_domain_of(id, cluster, claimed), mesh)
        else {
            member.is_to_begin = true;
            return;
        };
        let refused = || claimed.and_then(|claimed| self.may_name(id, claimed).err());
        let own_mesh = match cluster.map(|cluster| &cluster.trust_domain) {
            None => OwnMesh::Unread,
            Some(Some(named)) => {
                OwnMesh::Overruled(format!("the Secret's annotation {named} counts").into())
            }
            Some(None) => match refused() {
                Some(why) => OwnMesh::Overruled(why.into()),
                None => OwnMesh::Counts(mesh),
            },
        };
        let how = RunSettings { access: access.clone(), limits, trust_domain, own_mesh };
        let (passed, held) = (member.passed.clone(), member.last.held);
        member.align(&how, || start_run(&self.context, id, &how, &passed, held));
    }

    /// The trust domain of the workloads of a cluster: what its Secret states, else its own where it may name that,
    /// else the mesh's. Of the config cluster its own is the mesh's.
    fn trust_domain_of(
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

    /// Whether a cluster may say itself that its workloads are of a trust domain: where no policy says so,
    /// it may not be one that an operator has named as that of another.
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
            Some((other, _)) => {
                let code = &codes::TRUST_DOMAIN_REFUSED;
                Err(format!("{code}: it is {other}'s, by the annotation of that Secret"))
            }
            None => Ok(()),
        }
    }

    /// What an operator asks for a cluster, and where: what its Secret states goes before the policy.
    fn mode_of(&self, id: &ClusterId, cluster: Option<&PlannedCluster>) -> (Mode, String) {
        match cluster.map(|cluster| cluster.mode).filter(|mode| *mode != Mode::Normal) {
            Some(mode) => (mode, "strait.dev/mode".to_owned()),
            None => match self.policy.borrow().mode(id) {
                Some((mode, rule)) => (mode, format!("policy {rule}")),
                None => (Mode::Normal, String::new()),
            },
        }
    }

    /// The members whose endpoints leave because nothing has been heard of them for too long, and by which
    /// rule. Nothing leaves while no API server answers at all, of several: then it is we who are cut off.
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
            let paused = self.mode_of(id, cluster).0 == Mode::Pause;
            let leaving = cluster.is_some_and(|one| matches!(one.hold, Hold::Leaving { .. }));
            let age = wall.duration_since(since).unwrap_or_default();
            (age >= after && !paused && !leaving).then(|| {
                (id.clone(), format!("not heard of for more than {after:?} (policy {rule})"))
            })
        });
        withdrawn.collect()
    }

    /// Another member that is the cluster with this UID. Clusters restored from one etcd snapshot have one UID: if the
    /// Secret `is_pinned` to it, members whose Secrets are pinned to it too are other clusters. The config cluster has no
    /// Secret and counts as pinned.
    fn same_uid_as(&self, uid: &str, is_pinned: bool) -> Option<&ClusterId> {
        let is_other = |id: &ClusterId| {
            let cluster = self.running.clusters.get(id);
            is_pinned && cluster.is_none_or(|cluster| cluster.uid.as_deref() == Some(uid))
        };
        let mut same = self.members.iter().filter(|(_, member)| member.uid.as_deref() == Some(uid));
        same.find(|(id, _)| !is_other(id)).map(|(id, _)| id)
    }
}

/// Logs what is newly refused.
fn report(before: &Plan, now: &Plan) {
    for idle in now.idle.iter().filter(|idle| !before.idle.contains(idle)) {
        warn!(secret = %idle.secret, key = ?idle.key, reason = %idle.refusal, "cluster not added");
    }
    for (id, refusal) in &now.kept {
        if before.kept.get(id) != Some(refusal) {
            warn!(cluster = %id, reason = %refusal, "Secret not used; the cluster runs on as before");
        }
    }
}

/// Waits for a change; for ever where there can't be one any more.
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
