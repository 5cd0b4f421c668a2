//! The one owner of the member clusters and their tasks.
//!
//! Reads the Secrets, plans, and carries the plan out: each cluster's registry is a task of its own, so
//! that one that hangs or panics is the only one affected. A changed kubeconfig starts a second run
//! beside the first; the first stops when what the second says has been passed on, and not before. What a
//! run says passes through a gate here, which stays shut while the run speaks for another cluster than
//! it should. Never looks into a word of a registry.

mod course;

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio::time::Instant;
use tracing::{info, warn};

use self::course::start_run;
use super::kubeconfig::Refusal;
use super::plan::{self, Action, Hold, Idle, Plan, Running};
use super::remembered::Remembered;
use super::secret::MemberSecret;
use super::status::{ClusterStatus, Facts, Kept, Restored, State, judge};
use crate::apiserver::{Access, Loopback};
use crate::codes;
use crate::model::{ClusterId, KnownCluster, KnownClusters, Mcs, Mode, NamespaceFilter, NetworkId};
use crate::registry::kube::{self, Status};
use crate::registry::{Change, Epoch, RegistryUpdate, ShardKey};
use crate::store::{ObjectName, Objects, Secret};
use crate::task::Supervisor;

/// Clusters that sync for the first time at once: more would only share the same bandwidth.
const FIRST_SYNCS: usize = 8;
/// The least time between two looks at everything: hundreds of clusters have news all the time.
const PACE: Duration = Duration::from_millis(50);
/// How often states are looked at without news: ages and times left move on.
const TICK: Duration = Duration::from_secs(1);
/// How long a registry that ended, or panicked, rests.
const RESTART_PAUSE: Duration = Duration::from_secs(1);
/// How long the configuration may take to be read before the members are presumed to be those that are
/// remembered: its API server may be as dead as theirs.
pub const CONFIGURATION_WAIT: Duration = Duration::from_secs(1);
/// How long a stopped task may take to end before its cluster is withdrawn nonetheless.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// Runs one cluster's registry until it is dropped: `registry::kube::run`, or a test's double.
pub type Runner =
    Arc<dyn Fn(kube::Config) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// What the reconciler needs.
pub struct Config {
    /// Where the Secrets come from; `None` until they have been read once.
    pub objects: watch::Receiver<Option<Arc<Objects>>>,
    /// The config cluster as a member; none with `--config-dir`.
    pub config_cluster: Option<ConfigCluster>,
    /// Whether a kubeconfig may name a literal loopback address.
    pub loopback: Loopback,
    /// The namespace whose label names a cluster's network.
    pub system_namespace: String,
    /// The DNS domain of services.
    pub domain: String,
    /// The trust domain of workloads.
    pub trust_domain: String,
    /// Which namespaces belong to the mesh; `None` until that is known.
    pub namespaces: watch::Receiver<Option<Arc<NamespaceFilter>>>,
    /// What exports and imports of services mean.
    pub mcs: Mcs,
    /// How long a cluster's data outlives its Secret.
    pub removal_grace: Duration,
    /// After this a cluster that never synced no longer holds up readiness.
    pub sync_timeout: Duration,
    /// After this long out of reach a cluster is called stale.
    pub stale_after: Duration,
    /// Where what the registries say goes. Bounded by its receiver; a full one makes the registries
    /// wait, each of which then merges what it has to say.
    pub updates: mpsc::Sender<RegistryUpdate>,
    /// The members as they were known before this process started.
    pub remembered: BTreeMap<ClusterId, Remembered>,
    /// Runs one registry.
    pub runner: Runner,
}

/// The config cluster.
pub struct ConfigCluster {
    /// Its ID, which no Secret can take.
    pub id: ClusterId,
    /// How it is reached; changes when a mounted token is renewed.
    pub access: watch::Receiver<Access>,
}

/// What others see.
#[derive(Debug, Clone)]
pub struct Outputs {
    /// Every cluster and every Secret's key that holds none: the config cluster first, then by ID.
    pub statuses: watch::Receiver<Arc<Vec<ClusterStatus>>>,
    /// The clusters held.
    pub known: watch::Receiver<Arc<KnownClusters>>,
    /// Whether the state of the clusters is complete enough to answer from.
    pub settled: watch::Receiver<Settled>,
}

/// Whether the state of the clusters is complete enough to answer from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settled {
    /// The configuration has not been read once.
    ConfigurationUnread,
    /// These have neither synced nor failed for good nor used up their time.
    Waiting(Vec<ClusterId>),
    /// It is.
    All,
}

/// Starts the reconciler under `tasks`.
pub fn start(mut config: Config, tasks: &Supervisor) -> Outputs {
    let remembered = std::mem::take(&mut config.remembered);
    let (statuses, statuses_seen) = watch::channel(Arc::default());
    let (known, known_seen) = watch::channel(Arc::default());
    let (settled, settled_seen) = watch::channel(Settled::ConfigurationUnread);
    let context = Arc::new(Context {
        config,
        tasks: tasks.clone(),
        epochs: AtomicU64::new(0),
        first_syncs: Arc::new(Semaphore::new(FIRST_SYNCS)),
        news: Notify::new(),
        statuses,
        known,
        settled,
    });
    let kept = Arc::new(Mutex::new(Some(Reconciler::new(context, remembered))));
    tasks.spawn_restarting("clusters", RESTART_PAUSE, move || {
        let reconciler = Lent::take(&kept);
        async move {
            if let Some(mut reconciler) = reconciler {
                reconciler.run().await;
            }
        }
    });
    Outputs { statuses: statuses_seen, known: known_seen, settled: settled_seen }
}

/// The reconciler, lent to the task that runs it. It goes back when the task ends, by a panic too, and
/// the next one goes on with it: clusters within their grace have no Secret to be found again by.
struct Lent {
    owner: Arc<Mutex<Option<Reconciler>>>,
    lent: Option<Reconciler>,
}

impl Lent {
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

impl Drop for Lent {
    fn drop(&mut self) {
        *self.owner.lock().unwrap_or_else(PoisonError::into_inner) = self.lent.take();
    }
}

/// What the reconciler shares with the runs.
struct Context {
    config: Config,
    tasks: Supervisor,
    epochs: AtomicU64,
    first_syncs: Arc<Semaphore>,
    /// A run has something new to see.
    news: Notify,
    statuses: watch::Sender<Arc<Vec<ClusterStatus>>>,
    known: watch::Sender<Arc<KnownClusters>>,
    settled: watch::Sender<Settled>,
}

impl Context {
    fn next_epoch(&self) -> Epoch {
        Epoch(self.epochs.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

struct Reconciler {
    context: Arc<Context>,
    objects: watch::Receiver<Option<Arc<Objects>>>,
    config_access: Option<watch::Receiver<Access>>,
    /// What the plan was made for.
    planned_for: Option<Arc<Objects>>,
    /// The Secrets as read, so that only those that changed are read again.
    read: BTreeMap<ObjectName, (Arc<Secret>, MemberSecret)>,
    running: Running,
    plan: Plan,
    members: BTreeMap<ClusterId, Member>,
    /// Members as they were known before, until they are members again.
    remembered: BTreeMap<ClusterId, Remembered>,
    /// When those are presumed to be members still; none once that is done or needless.
    presume_at: Option<Instant>,
    /// Whether the members are those that are remembered, the Secrets being unread.
    presumed: bool,
}

/// A member and its runs.
struct Member {
    since: Instant,
    serving: Option<Run>,
    /// The run that is to take over.
    next: Option<Run>,
    /// The last status of a run whose words have been passed on.
    last: Status,
    /// Whether anything it said has been passed on.
    has_data: bool,
    /// Whether that was remembered, and nothing newer has been passed on.
    restored: Option<Restored>,
    /// The identity of the cluster whose data that is.
    uid: Option<String>,
    /// Why what the newest run says is not passed on.
    barred: Option<Refusal>,
    /// Tasks that were told to stop.
    ending: Vec<Supervisor>,
}

/// One run of a member's registry.
struct Run {
    access: Access,
    tasks: Supervisor,
    status: watch::Receiver<Status>,
    gate: watch::Sender<bool>,
    delivered: watch::Receiver<bool>,
}

impl Drop for Run {
    fn drop(&mut self) {
        self.tasks.stop();
    }
}

impl Reconciler {
    fn new(context: Arc<Context>, remembered: BTreeMap<ClusterId, Remembered>) -> Self {
        let presume_at = (!remembered.is_empty()).then(|| Instant::now() + CONFIGURATION_WAIT);
        Self {
            remembered,
            presume_at,
            presumed: false,
            objects: context.config.objects.clone(),
            config_access: context.config.config_cluster.as_ref().map(|c| c.access.clone()),
            context,
            planned_for: None,
            read: BTreeMap::new(),
            running: Running::default(),
            plan: Plan::default(),
            members: BTreeMap::new(),
        }
    }

    async fn run(&mut self) {
        let mut tick = tokio::time::interval(TICK);
        loop {
            self.step().await;
            let paced = Instant::now() + PACE;
            tokio::select! {
                () = changed(Some(&mut self.objects)) => {}
                () = changed(self.config_access.as_mut()) => {}
                () = self.context.news.notified() => {}
                () = at(self.presume_at) => {}
                _ = tick.tick() => {}
            }
            tokio::time::sleep_until(paced).await;
        }
    }

    /// Does everything that is to be done now. Doing it again does nothing.
    async fn step(&mut self) {
        let now = Instant::now();
        let objects = self.objects.borrow_and_update().clone();
        let news = objects.as_ref().filter(|objects| {
            self.planned_for.as_ref().is_none_or(|planned| !Arc::ptr_eq(planned, objects))
        });
        if let Some(objects) = news {
            self.read(&objects.secrets);
        }
        if news.is_some() || self.plan.wake.is_some_and(|wake| wake <= now.into_std()) {
            self.plan(now).await;
        }
        #[cfg(test)]
        tests::stumble();
        if objects.is_some() {
            self.presume_at = None;
        } else if self.presume_at.is_some_and(|at| at <= now) {
            self.presume();
        }
        self.planned_for = objects;
        self.tend(now).await;
        self.publish(now);
    }

    fn read(&mut self, secrets: &[Arc<Secret>]) {
        let mut before = std::mem::take(&mut self.read);
        for secret in secrets {
            let read = match before.remove(&secret.name) {
                Some((known, read)) if known == *secret => read,
                _ => MemberSecret::read(secret, self.context.config.loopback),
            };
            self.read.insert(secret.name.clone(), (Arc::clone(secret), read));
        }
    }

    /// Takes the members to be those that are remembered, until the Secrets can be read.
    fn presume(&mut self) {
        self.presume_at = None;
        self.presumed = true;
        warn!("the configuration can't be read yet; the members of before are presumed until then");
        for (id, remembered) in &self.remembered {
            if let Some(cluster) = remembered.presumed() {
                self.running.clusters.insert(id.clone(), cluster);
            }
        }
    }

    async fn plan(&mut self, now: Instant) {
        let secrets: Vec<_> = self.read.values().map(|(_, read)| read.clone()).collect();
        let config = &self.context.config;
        let config_cluster = config.config_cluster.as_ref().map(|cluster| cluster.id.clone());
        let grace = config.removal_grace;
        let has_data = |id: &ClusterId| self.members.get(id).is_some_and(Member::holds_data);
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

    /// What follows from an action beyond what [`Self::tend`] sees from [`Running`].
    async fn carry_out(&mut self, action: &Action, now: Instant) {
        match action {
            Action::Add { id, secret, .. } => info!(cluster = %id, %secret, "cluster added"),
            Action::Adopt { id, secret, member: wanted } => {
                info!(cluster = %id, %secret, "cluster goes on under this Secret");
                let bereft = !self.is_still_there(id);
                // A Secret that was presumed and is there means nothing new.
                let as_presumed = self.running.clusters.get(id).is_some_and(|cluster| {
                    cluster.hold == Hold::Presumed && cluster.secret == *secret
                });
                if let Some(member) = self.members.get_mut(id) {
                    // Another Secret may mean another cluster by the same name.
                    if !as_presumed {
                        member.uid = None;
                    }
                    member.since = now;
                    if bereft {
                        member.drop_others(&wanted.access);
                    }
                }
            }
            Action::Replace { id, .. } => info!(cluster = %id, "kubeconfig changed"),
            Action::SetNetwork { id, .. } | Action::SetMode { id, .. } => {
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
    }

    /// Whether the Secret that held `id` until now still has it, be it unusable.
    fn is_still_there(&self, id: &ClusterId) -> bool {
        let holder = self.running.clusters.get(id).map(|cluster| &cluster.secret);
        let secret = holder.and_then(|holder| self.read.get(holder));
        secret.is_some_and(|(_, read)| read.clusters.contains_key(id))
    }

    /// Says that the shard has ended, after the last word of its tasks: a new cluster by that ID must
    /// not be taken down by it.
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
        let removed = RegistryUpdate { shard, epoch, change: Change::Removed };
        // An error says that there is nobody to tell: the process ends.
        let _ = self.context.config.updates.send(removed).await;
    }

    /// Makes each member run as it should.
    async fn tend(&mut self, now: Instant) {
        // The config cluster first: of two IDs for one cluster it is the one that counts.
        let config = self.context.config.config_cluster.as_ref().map(|cluster| cluster.id.clone());
        let ids: Vec<_> = config.into_iter().chain(self.running.clusters.keys().cloned()).collect();
        for id in ids {
            let mut member = match self.members.remove(&id) {
                Some(member) => member,
                None => self.begin(&id, now).await,
            };
            match self.running.clusters.get(&id) {
                Some(cluster) => match (&cluster.hold, cluster.mode) {
                    (Hold::Leaving { .. } | Hold::Presumed, _) => member.freeze(),
                    (Hold::Held(_), Mode::Pause) if member.has_data => member.freeze(),
                    (Hold::Held(access), _) => self.align(&id, &mut member, access),
                },
                None => {
                    if let Some(access) = &self.config_access {
                        let access = access.borrow().clone();
                        self.align(&id, &mut member, &access);
                    }
                }
            }
            member.advance(|uid| self.twin_of(uid));
            self.members.insert(id, member);
        }
    }

    /// A member that was none until now: with what is remembered of it.
    async fn begin(&mut self, id: &ClusterId, now: Instant) -> Member {
        let mut member = Member::new(now);
        let Some(remembered) = self.remembered.remove(id) else { return member };
        member.last = remembered.status();
        member.has_data = true;
        // Another Secret may mean another cluster by the same name.
        let cluster = self.running.clusters.get(id);
        if cluster.is_none_or(|cluster| remembered.is_of(&cluster.secret)) {
            member.uid = remembered.uid;
        }
        member.restored = Some(Restored { remark: remembered.remark });
        info!(cluster = %id, "cluster restored from disk, until it syncs");
        // Older than any run, so that the first word of any takes its place.
        let (shard, epoch) = (ShardKey::kubernetes(id.clone()), Epoch(0));
        let word = RegistryUpdate { shard, epoch, change: Change::Reset(remembered.contents) };
        // An error says that there is nobody to tell: the process ends.
        let _ = self.context.config.updates.send(word).await;
        member
    }

    fn align(&self, id: &ClusterId, member: &mut Member, access: &Access) {
        member.align(access, || start_run(&self.context, id, access));
    }

    /// Another member that is the cluster with this UID.
    fn twin_of(&self, uid: &str) -> Option<&ClusterId> {
        let twin = self.members.iter().find(|(_, member)| member.uid.as_deref() == Some(uid));
        twin.map(|(id, _)| id)
    }

    fn publish(&self, now: Instant) {
        let mut known = KnownClusters::default();
        let mut statuses = Vec::new();
        let mut waiting = Vec::new();
        let wall = SystemTime::now();
        let trust_domain: Arc<str> = self.context.config.trust_domain.as_str().into();
        for (id, member) in &self.members {
            let cluster = self.running.clusters.get(id);
            let network = cluster.and_then(|cluster| cluster.network.clone());
            let mode = cluster.map(|cluster| cluster.mode).unwrap_or_default();
            let config = cluster.is_none();
            let leaving_in = cluster.and_then(|cluster| match cluster.hold {
                Hold::Leaving { until } => Some(until.saturating_duration_since(now.into_std())),
                Hold::Held(_) | Hold::Presumed => None,
            });
            let limit = self.context.config.sync_timeout;
            let late = !member.has_data && now.duration_since(member.since) >= limit;
            let (shown, successor) = member.shown();
            let (state, reason) = judge(&Facts {
                status: &shown,
                has_data: member.has_data,
                restored: member.restored.as_ref(),
                timed_out: late.then_some(limit),
                leaving_in,
                mode,
                kept: self.plan.kept.get(id),
                successor: successor.as_ref(),
                barred: member.barred.as_ref(),
                stale_after: self.context.config.stale_after,
                now: wall,
            });
            if !member.has_data && !late && holds_up_readiness(state) {
                waiting.push(id.clone());
            }
            let secret = cluster.map(|cluster| cluster.secret.to_string());
            let fixed_network = network.clone();
            known.clusters.insert(
                id.clone(),
                KnownCluster {
                    fixed_network,
                    config,
                    mode,
                    trust_domain: Arc::clone(&trust_domain),
                },
            );
            let kept = member.has_data.then(|| Kept { uid: member.uid.clone() });
            let entry = self.entry(id.as_str(), secret, (state, reason), network, &shown);
            statuses.push(ClusterStatus { kept, ..entry });
        }
        statuses.extend(self.plan.idle.iter().map(|idle| self.idle_entry(idle)));
        statuses.sort_by(|a, b| order(a).cmp(&order(b)));
        publish(&self.context.known, Arc::new(known));
        publish(&self.context.statuses, Arc::new(statuses));
        let read = self.planned_for.is_some() || self.presumed;
        let settled = match (read, waiting.is_empty()) {
            (false, _) => Settled::ConfigurationUnread,
            (true, false) => Settled::Waiting(waiting),
            (true, true) => Settled::All,
        };
        publish(&self.context.settled, settled);
    }

    fn idle_entry(&self, idle: &Idle) -> ClusterStatus {
        let state = if idle.on_standby() { State::Conflict } else { State::Rejected };
        let reason = Some(idle.refusal.to_string());
        let secret = Some(idle.secret.to_string());
        let network = idle.network.clone();
        self.entry(&idle.key, secret, (state, reason), network, &Status::starting())
    }

    fn entry(
        &self,
        id: &str,
        secret: Option<String>,
        (state, reason): (State, Option<String>),
        network: Option<NetworkId>,
        status: &Status,
    ) -> ClusterStatus {
        ClusterStatus {
            id: id.to_owned(),
            secret,
            state,
            reason,
            network,
            trust_domain: self.context.config.trust_domain.clone(),
            last_contact: status.last_contact.and_then(|time| Timestamp::try_from(time).ok()),
            services: status.services,
            endpoints: status.endpoints,
            withheld: 0,
            objects: status.objects,
            relists: status.relists,
            ignored_claims: Vec::new(),
            kept: None,
        }
    }
}

/// The config cluster, which has no Secret, first; then by ID, the one that holds it first.
fn order(status: &ClusterStatus) -> (bool, &str, bool, Option<&str>) {
    let idle = matches!(status.state, State::Conflict | State::Rejected);
    (status.secret.is_some(), &status.id, idle, status.secret.as_deref())
}

/// Whether a member in that state, which never synced, may yet sync by waiting for it.
fn holds_up_readiness(state: State) -> bool {
    !matches!(state, State::AuthFailed | State::TlsFailed | State::Conflict)
}

fn publish<T: PartialEq>(to: &watch::Sender<T>, value: T) {
    to.send_if_modified(|held| {
        let modified = *held != value;
        if modified {
            *held = value;
        }
        modified
    });
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

/// Waits until then; for ever where there is no such time.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
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

impl Member {
    fn new(now: Instant) -> Self {
        Self {
            since: now,
            serving: None,
            next: None,
            last: Status::starting(),
            has_data: false,
            restored: None,
            uid: None,
            barred: None,
            ending: Vec::new(),
        }
    }

    /// Whether anything it said has been passed on, be it since the last look.
    fn holds_data(&self) -> bool {
        let delivered = |run: &Run| *run.delivered.borrow();
        self.has_data || self.serving.as_ref().is_some_and(delivered)
    }

    /// Stops all runs; the data stays as it is.
    fn freeze(&mut self) {
        let (serving, next) = (self.serving.take(), self.next.take());
        self.end(serving);
        self.end(next);
        self.barred = None;
    }

    /// Stops runs whose credential is another than this: it has gone with its Secret.
    fn drop_others(&mut self, access: &Access) {
        for run in [self.serving.take(), self.next.take()].into_iter().flatten() {
            if run.access == *access {
                self.serving = Some(run);
            } else {
                self.end(Some(run));
            }
        }
    }

    /// Sees to it that the newest run uses `access`. There are never more than two.
    fn align(&mut self, access: &Access, start: impl FnOnce() -> Run) {
        if self.next.as_ref().is_some_and(|next| next.access == *access) {
            return;
        }
        let next = self.next.take();
        self.end(next);
        match &self.serving {
            None => self.serving = Some(start()),
            Some(serving) if serving.access == *access => {}
            Some(_) => self.next = Some(start()),
        }
    }

    /// Lets the words of runs through that may speak, and a run that has spoken take over.
    fn advance<'a>(&mut self, twin_of: impl Fn(&str) -> Option<&'a ClusterId>) {
        let mut barred = None;
        for run in [&self.serving, &self.next].into_iter().flatten() {
            let (synced, uid) = {
                let status = run.status.borrow();
                (status.synced, status.cluster_uid.clone())
            };
            if !synced || *run.gate.borrow() {
                continue;
            }
            barred = match (&self.uid, &uid) {
                (Some(was), Some(is)) if was != is => {
                    let fact = format!("the cluster's UID was {was} and is {is}");
                    Some(Refusal::new(&codes::IDENTITY_CHANGED, "", fact))
                }
                (_, Some(is)) => twin_of(is).map(|twin| {
                    let fact = format!("the cluster is a member already, as {twin} (UID {is})");
                    Refusal::new(&codes::SAME_CLUSTER_TWICE, "", fact)
                }),
                (_, None) => None,
            };
            if barred.is_none() {
                self.uid = uid.or(self.uid.take());
                run.gate.send_replace(true);
            }
        }
        self.barred = barred;
        if self.next.as_ref().is_some_and(|next| *next.delivered.borrow()) {
            let old = std::mem::replace(&mut self.serving, self.next.take());
            self.end(old);
        }
        if let Some(serving) = self.serving.as_ref().filter(|run| *run.delivered.borrow()) {
            self.has_data = true;
            self.restored = None;
            self.last = serving.status.borrow().clone();
        }
        self.ending.retain(|tasks| tasks.running() > 0);
    }

    fn end(&mut self, run: Option<Run>) {
        if let Some(run) = run {
            run.tasks.stop();
            self.ending.push(run.tasks.clone());
        }
    }

    /// The status to show, and that of a run which is to take over. While nothing serves yet, the
    /// newest run is what counts.
    fn shown(&self) -> (Status, Option<Status>) {
        let of = |run: &Run| {
            let mut status = run.status.borrow().clone();
            if self.has_data && !*run.delivered.borrow() {
                // What an earlier run said is what is served.
                let Status { services, endpoints, objects, last_contact, .. } = self.last;
                status = Status { services, endpoints, objects, last_contact, ..status };
            }
            status
        };
        match (&self.serving, &self.next) {
            (None, _) => (self.last.clone(), None),
            (Some(serving), None) => (of(serving), None),
            (Some(serving), Some(next)) if self.has_data => (of(serving), Some(of(next))),
            (Some(_), Some(next)) => (of(next), None),
        }
    }
}

#[cfg(test)]
mod tests;
