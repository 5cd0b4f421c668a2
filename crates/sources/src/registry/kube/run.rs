//! One run of a cluster's registry: readers in, index, updates out.
//!
//! The loop never waits for its receiver while there are events to take: what can't be sent yet is
//! remembered as the names it touched, and sent as full values when there is room. However slow the
//! receiver, the cost is a name for each thing that changed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use super::contact::{Contacts, ReaderId, of_access};
use super::endpoint_slice::Slice;
use super::index::{IndexChanges, IndexEvent, Indexed, IndexedKind, KubeIndex, ListOf, ReadAs};
use super::mcs::{self, Export, Import};
use super::namespace::NamespaceFacts;
use super::node::NodeRecord;
use super::pending_pods::PendingPods;
use super::pod::PodRecord;
use super::roots::{self, RootsStatus, Writable};
use super::scope::{COMMON, ReadSettings, Scope};
use super::service::KubeService;
use super::workload_entry::WorkloadEntryRecord;
use super::write_back::{self, WriteBack};
use super::{ApiContact, ObjectCounts, Own, OwnMesh, RunConfig, RunStatus, own_mesh};
use strait_base::codes;
use strait_base::mass_deletion::MassDeletionGuard;
use strait_kube_client::{
    ApiClient, ApiError, Backoff, ClusterIdentityCheck, Keyed as _, ListSelection, NamespacedName,
    Probed, ReadLimits, WatchEvent, identity_check, look,
};
use strait_model::registry::{Contents, Epoch, RegistryUpdate, ShardChange, ShardKey};
use strait_model::{
    Cause, Causes, ClusterId, Collection, DeclaredGateway, GATEWAY_API, ISTIO_NETWORKING,
    ISTIO_NETWORKING_VERSIONS, Mcs, NETWORK_LABEL, NamespaceFilter, OwnTraffic,
};

/// Bytes of a WorkloadEntry.
const ENTRY_BYTES_MAX: usize = 256 << 10;
/// Events that wait for the index. A full channel makes the readers wait, and so the API server.
const EVENTS_MAX: usize = 1024;
/// Events that are taken before what they touched is sent.
const BATCH: usize = 256;
/// What is held is weighed anew when so many bytes have come since and half of the room is used up, or, where there
/// is no more room, so many events.
const WEIGHED_AFTER: usize = 4 << 20;
const WEIGHED_EVENTS: usize = 1000;
/// How often to look whether a server has another version of the multi-cluster services API, and how long to
/// wait at first, and at most, where it has none, and where it can't be asked.
const VERSION_LOOK: Duration = Duration::from_secs(300);
const VERSION_ABSENT: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(120));
const VERSION_AGAIN: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));

/// Reads a cluster and says what is in it: once everything, then what changes. Survives every
/// error; ends when dropped, or when nobody takes its updates any more.
pub async fn run(config: RunConfig) {
    let RunConfig {
        cluster,
        access,
        limits,
        domain,
        trust_domain,
        own_mesh,
        system_namespace,
        metadata,
        namespaces,
        ..
    } = config;
    let client = match ApiClient::new(&access) {
        Ok(client) => client,
        Err(error) => {
            config.status.send_modify(|status| status.contact = of_access(&error));
            // Only another access helps, and that is another run.
            return config.updates.closed().await;
        }
    };
    config.client.send_replace(Some(client.clone()));
    let (sink, inputs) = mpsc::channel(EVENTS_MAX);
    let (own, own_seen) = watch::channel(None);
    let mesh_namespace = system_namespace.clone();
    let read_own = own_mesh != OwnMesh::Unread;
    let trust = Trust { domain: trust_domain.clone(), own_mesh, own: own_seen };
    let settings = ReadSettings { domain, trust_domain, system_namespace, metadata };
    let scope = Arc::new(Scope::new(settings, Arc::clone(&COMMON)));
    let (wish, wishes) = watch::channel(Vec::new());
    let (version, version_seen) = watch::channel(None);
    let (identity_check, doubts) = identity_check();
    let role = config.writes.role.clone();
    let (writable, writable_seen) = watch::channel(None);
    let (roots_status, roots_seen) = watch::channel(None);
    let held = config.status.borrow().held;
    let status = RunStatus { held, ..RunStatus::starting() };
    let member = ClusterInputState {
        cluster: cluster.clone(),
        write_back: WriteBack::new(cluster.clone(), config.shared, wish),
        index: KubeIndex::new(Arc::clone(&scope)).sharing(config.mcs),
        contacts: Contacts::without(config.mcs == Mcs::Off),
        writable,
        writable_stale: true,
        roots: roots_seen,
        pending: IndexChanges::default(),
        causes: Causes::default(),
        pending_pods: PendingPods::default(),
        identity_check,
        guard: MassDeletionGuard::default(),
        limits,
        over_budget: None,
        held: MemoryEstimate::default(),
        client: client.clone(),
        trust,
        traffic: config.traffic,
        status,
        began: Instant::now(),
        published: config.status,
    };
    let to = Receiver {
        shard: ShardKey::kubernetes(cluster),
        epoch: config.epoch,
        updates: config.updates,
    };
    tokio::select! {
        () = member.serve(inputs, namespaces, &to) => {}
        () = Box::pin(read(&client, &scope, limits, &sink)) => {}
        () = Box::pin(look(&client, doubts)) => {}
        () = Box::pin(own_mesh::follow(&client, &mesh_namespace, &own)), if read_own => {}
        () = Box::pin(read_shared(&client, &scope, limits, &sink, &version)), if config.mcs != Mcs::Off => {}
        // It ends with whoever wishes.
        () = Box::pin(roots::run(client.clone(), limits, config.writes, writable_seen, roots_status)) => {}
        () = write_back::run(client.clone(), role, wishes, version_seen), if config.mcs != Mcs::Off => {}
    }
}

/// Reads all kinds at once, for as long as anybody takes the events.
async fn read(
    client: &ApiClient,
    scope: &Scope,
    limits: ReadLimits,
    sink: &mpsc::Sender<RunInput>,
) {
    let of = |kind: IndexedKind| {
        let group = match kind {
            IndexedKind::EndpointSlices => "discovery.k8s.io",
            IndexedKind::Gateways => GATEWAY_API,
            IndexedKind::ServiceExports | IndexedKind::ServiceImports => mcs::GROUP,
            IndexedKind::WorkloadEntries => {
                let versions = ISTIO_NETWORKING_VERSIONS;
                let selection = ListSelection::in_best(ISTIO_NETWORKING, versions, kind.plural());
                return ListSelection { is_optional: kind.may_be_absent(), ..selection };
            }
            IndexedKind::Services
            | IndexedKind::Pods
            | IndexedKind::Nodes
            | IndexedKind::Namespaces => "",
        };
        let is_optional = kind.may_be_absent();
        ListSelection { is_optional, ..ListSelection::all(group, "v1", kind.plural()) }
    };
    let mut pods = of(IndexedKind::Pods);
    // Pods that have ended stay for long and mean nothing here.
    pods.fields = Some("status.phase!=Succeeded,status.phase!=Failed".into());
    let mut gateways = of(IndexedKind::Gateways);
    gateways.labels = Some(NETWORK_LABEL.into());
    // They are decoded whole, which takes a multiple of their bytes.
    let object_bytes = limits.object_bytes.min(ENTRY_BYTES_MAX);
    let kept_whole = ReadLimits { object_bytes, ..limits };
    let slices = of(IndexedKind::EndpointSlices);
    let entries = of(IndexedKind::WorkloadEntries);
    let readers: [BoxFuture<'_, ()>; 8] = [
        Box::pin(client.read(
            ReadAs::<KubeService>::with(scope),
            of(IndexedKind::Services),
            limits,
            sink,
        )),
        Box::pin(client.read(ReadAs::<Slice>::with(scope), slices, limits, sink)),
        Box::pin(client.read(ReadAs::<PodRecord>::with(scope), pods, limits, sink)),
        Box::pin(client.read(
            ReadAs::<NodeRecord>::with(scope),
            of(IndexedKind::Nodes),
            limits,
            sink,
        )),
        Box::pin(client.read(
            ReadAs::<NamespaceFacts>::with(scope),
            of(IndexedKind::Namespaces),
            limits,
            sink,
        )),
        Box::pin(client.read(ReadAs::<DeclaredGateway>::with(scope), gateways, limits, sink)),
        Box::pin(client.read(
            ReadAs::<WorkloadEntryRecord>::with(scope),
            entries,
            kept_whole,
            sink,
        )),
        Box::pin(client.keep_probing(sink)),
    ];
    // Only who was woken is looked at: of a member that rests nearly all events are one reader's.
    let mut readers = FuturesUnordered::from_iter(readers);
    while readers.next().await.is_some() {}
}

/// Reads what is exported and imported, in the version that the server has: which that is can change while it
/// is read.
async fn read_shared(
    client: &ApiClient,
    scope: &Scope,
    limits: ReadLimits,
    sink: &mpsc::Sender<RunInput>,
    version: &watch::Sender<Option<&'static str>>,
) {
    let (mut absent, mut again) = (VERSION_ABSENT, VERSION_AGAIN);
    loop {
        let pause = match mcs::served(client).await {
            Ok(served) => {
                version.send_replace(Some(served));
                let of = |kind: IndexedKind| ListSelection::all(mcs::GROUP, served, kind.plural());
                let (exports, imports) =
                    (of(IndexedKind::ServiceExports), of(IndexedKind::ServiceImports));
                let read = async {
                    tokio::join!(
                        client.read(ReadAs::<Export>::with(scope), exports, limits, sink),
                        client.read(ReadAs::<Import>::with(scope), imports, limits, sink),
                    )
                };
                // Boxed here, so that clusters without these kinds have no room for it.
                tokio::select! {
                    _ = Box::pin(read) => return,
                    () = Box::pin(replaced(client, served)) => {}
                }
                continue;
            }
            Err(error) => {
                let pause = if matches!(error, ApiError::NotFound(_)) {
                    absent.pause(rand::random())
                } else {
                    // It may have been installed while the server was away.
                    absent = VERSION_ABSENT;
                    again.pause(rand::random())
                };
                let failed = [
                    RunInput::Export(WatchEvent::Failed(error.clone())),
                    RunInput::Import(WatchEvent::Failed(error)),
                ];
                for failed in failed {
                    if sink.send(failed).await.is_err() {
                        return;
                    }
                }
                pause
            }
        };
        sleep(pause).await;
    }
}

/// Until the server has another version that is better.
async fn replaced(client: &ApiClient, served: &str) {
    loop {
        sleep(VERSION_LOOK).await;
        if mcs::served(client).await.is_ok_and(|now| now != served) {
            return;
        }
    }
}

/// All inputs of a run.
enum RunInput {
    Service(IndexEvent<KubeService>),
    Slice(IndexEvent<Slice>),
    Pod(IndexEvent<PodRecord>),
    Node(IndexEvent<NodeRecord>),
    Namespace(IndexEvent<NamespaceFacts>),
    Gateway(IndexEvent<DeclaredGateway>),
    Entry(IndexEvent<WorkloadEntryRecord>),
    Export(IndexEvent<Export>),
    Import(IndexEvent<Import>),
    Probed(Probed),
}

macro_rules! inputs {
    ($($told:ty => $variant:ident,)*) => {
        $(impl From<$told> for RunInput {
            fn from(told: $told) -> Self {
                Self::$variant(told)
            }
        })*
    };
}

inputs! {
    IndexEvent<KubeService> => Service,
    IndexEvent<Slice> => Slice,
    IndexEvent<PodRecord> => Pod,
    IndexEvent<NodeRecord> => Node,
    IndexEvent<NamespaceFacts> => Namespace,
    IndexEvent<DeclaredGateway> => Gateway,
    IndexEvent<WorkloadEntryRecord> => Entry,
    IndexEvent<Export> => Export,
    IndexEvent<Import> => Import,
    Probed => Probed,
}

/// Which namespaces belong to the mesh, once that is known.
type Namespaces = watch::Receiver<Option<Arc<NamespaceFilter>>>;

/// Waits for a change; for ever where none can come any more.
async fn changed(namespaces: &mut Namespaces) {
    if namespaces.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Where updates go, and in whose name.
struct Receiver {
    shard: ShardKey,
    epoch: Epoch,
    updates: mpsc::Sender<RegistryUpdate>,
}

impl Receiver {
    fn update(&self, change: ShardChange) -> RegistryUpdate {
        RegistryUpdate { shard: self.shard.clone(), epoch: self.epoch, change }
    }
}

/// In which trust domain the cluster is read, and in which it says that it is.
struct Trust {
    domain: String,
    own_mesh: OwnMesh,
    own: watch::Receiver<Option<Own>>,
}

impl Trust {
    /// Whether the cluster is read in the trust domain that it is in, as far as it has a say.
    fn is_right(&self) -> bool {
        let OwnMesh::Counts(mesh) = &self.own_mesh else { return true };
        let own = self.own.borrow();
        let names = |own: &Own| **own.trust_domain.as_ref().unwrap_or(mesh) == *self.domain;
        own.as_ref().is_some_and(names)
    }

    /// What an operator should know of it.
    fn remarks(&self) -> impl Iterator<Item = String> {
        let Own { trust_domain, problem } = self.own.borrow().clone().unwrap_or_default();
        let overruled = match (&self.own_mesh, trust_domain) {
            (OwnMesh::Overruled(why), Some(own)) if *own != *self.domain => Some(format!(
                "its own mesh config says trust domain {own}, which doesn't count: {why}"
            )),
            _ => None,
        };
        overruled.into_iter().chain(problem)
    }
}

/// About how much memory is held. Weighing looks at every object, so it is done when as much has come since as may
/// pass unseen; until then all that comes counts, also in the place of something else.
#[derive(Debug, Default)]
struct MemoryEstimate {
    weighed: usize,
    /// What has come since.
    since: usize,
    events: usize,
}

impl MemoryEstimate {
    fn bytes(&self) -> usize {
        self.weighed.saturating_add(self.since)
    }

    fn grow(&mut self, bytes: usize) {
        self.since = self.since.saturating_add(bytes);
        self.events += 1;
    }

    fn shrink(&mut self, bytes: usize) {
        self.since = self.since.saturating_sub(bytes);
    }

    /// Whether it is time to weigh: when much has come and half of the room is used up, or all of it seems to be
    /// and some may have become free since.
    fn is_stale(&self, most: usize) -> bool {
        let bytes = self.bytes();
        (self.since > WEIGHED_AFTER && bytes > most / 2)
            || (bytes > most && self.events >= WEIGHED_EVENTS)
    }

    fn weighed(&mut self, bytes: usize) {
        *self = Self { weighed: bytes, since: 0, events: 0 };
    }
}

/// What is known of the cluster, and of how it is reached.
struct ClusterInputState {
    cluster: ClusterId,
    index: KubeIndex,
    contacts: Contacts,
    /// What changed since the last update that was sent.
    pending: IndexChanges,
    /// The objects that changed it.
    causes: Causes,
    /// What of it waits for pods.
    pending_pods: PendingPods,
    /// Whether all of it is about the cluster that was read first.
    identity_check: ClusterIdentityCheck,
    /// Lists that were hard to believe.
    guard: MassDeletionGuard<IndexedKind>,
    limits: ReadLimits,
    write_back: WriteBack,
    /// The namespaces that can be written into, and whether there may be others by now.
    writable: watch::Sender<Writable>,
    writable_stale: bool,
    /// How far the roots have come in them.
    roots: watch::Receiver<Option<RootsStatus>>,
    /// That a watch sent more than may be held, where it did.
    over_budget: Option<(IndexedKind, String)>,
    /// About how much memory all takes that is held.
    held: MemoryEstimate,
    client: ApiClient,
    trust: Trust,
    /// Its traffic objects, as far as they count.
    traffic: watch::Receiver<OwnTraffic>,
    status: RunStatus,
    began: Instant,
    published: watch::Sender<RunStatus>,
}

impl ClusterInputState {
    async fn serve(
        mut self,
        mut inputs: mpsc::Receiver<RunInput>,
        mut namespaces: Namespaces,
        to: &Receiver,
    ) {
        let mut known = self.filter(&mut namespaces);
        self.take_traffic();
        loop {
            let something_to_say = if !self.may_speak() {
                false
            } else if self.status.synced {
                !self.pending.is_empty()
            } else {
                known
                    && self.contacts.complete()
                    && self.trust.is_right()
                    && self.traffic.borrow().is_read()
            };
            tokio::select! {
                input = inputs.recv() => {
                    let Some(input) = input else { return };
                    self.take(input);
                    for _ in 1..BATCH {
                        let Ok(input) = inputs.try_recv() else { break };
                        self.take(input);
                    }
                }
                () = changed(&mut namespaces) => known |= self.filter(&mut namespaces),
                Ok(()) = self.trust.own.changed() => {}
                () = self.identity_check.answered() => self.status.replaced |= self.identity_check.is_lost(),
                room = to.updates.reserve(), if something_to_say => {
                    let Ok(room) = room else { return };
                    if let Some(change) = self.change() {
                        room.send(to.update(change));
                    }
                }
                over = self.pending_pods.over(), if !something_to_say => self.pending.services(over),
                () = to.updates.closed(), if !something_to_say => return,
                Ok(()) = self.roots.changed() => {}
                Ok(()) = self.traffic.changed() => self.take_traffic(),
                () = self.write_back.due(), if self.may_speak() && self.status.synced => self.write_back.look(&self.index),
            }
            self.tell_writable();
            self.publish();
        }
    }

    /// Takes its traffic objects as they are now. Until they have been read, those that are held stay.
    fn take_traffic(&mut self) {
        let OwnTraffic { is_wanted, objects, .. } = self.traffic.borrow_and_update().clone();
        let traffic = match objects {
            Some(objects) => objects,
            None if is_wanted => return,
            None => Collection::default(),
        };
        let touched = self.index.note_traffic(traffic);
        if !touched.is_empty() {
            // They may be another cluster's.
            self.identity_check.doubt();
            self.held.weighed(self.index.weight());
            self.client.account().hold(self.held.bytes());
        }
        self.pending.merge(touched);
    }

    /// Says which namespaces can be written into, once it is known that they are those of the cluster meant.
    fn tell_writable(&mut self) {
        if !self.writable_stale || !self.may_speak() || !self.status.synced {
            return;
        }
        self.writable_stale = false;
        let new: BTreeSet<_> = self.index.writable_namespaces().cloned().collect();
        self.writable.send_if_modified(|held| {
            let differs = held.as_deref() != Some(&new);
            if differs {
                *held = Some(Arc::new(new));
            }
            differs
        });
    }

    /// Lets the namespaces be those that belong to the mesh now; whether that is known.
    fn filter(&mut self, namespaces: &mut Namespaces) -> bool {
        let Some(filter) = namespaces.borrow_and_update().clone() else { return false };
        let touched = self.index.filter(filter);
        self.pending.merge(touched);
        true
    }

    fn take(&mut self, input: RunInput) {
        match input {
            RunInput::Service(event) => self.event(event),
            RunInput::Slice(event) => self.event(event),
            RunInput::Pod(event) => self.event(event),
            RunInput::Node(event) => self.event(event),
            RunInput::Namespace(event) => {
                self.event(event);
                self.writable_stale = true;
            }
            RunInput::Gateway(event) => self.event(event),
            RunInput::Export(event) => {
                self.event(event);
                self.write_back.note();
            }
            RunInput::Import(event) => {
                self.event(event);
                self.write_back.note();
            }
            RunInput::Entry(event) => self.event(event),
            RunInput::Probed(Probed(Ok(()))) => {
                self.contacts.answered(ReaderId::Probe);
                self.heard();
            }
            RunInput::Probed(Probed(Err(error))) => {
                self.status.errors += 1;
                self.contacts.failed(ReaderId::Probe, error, SystemTime::now());
            }
        }
    }

    fn event<T: Indexed>(&mut self, event: IndexEvent<T>) {
        if let WatchEvent::Failed(error) = event {
            // What a cluster needn't have, and hasn't, is no failure.
            let is_absent = T::KIND.may_be_absent() && matches!(error, ApiError::NotFound(_));
            self.status.errors += u64::from(!is_absent);
            return self.contacts.failed(ReaderId::Kind(T::KIND), error, SystemTime::now());
        }
        match event {
            WatchEvent::Answered => {
                self.contacts.opened(ReaderId::Kind(T::KIND), SystemTime::now());
            }
            _ => self.contacts.answered(ReaderId::Kind(T::KIND)),
        }
        match &event {
            WatchEvent::Answered => self.identity_check.doubt(),
            WatchEvent::Restarted { objects, .. } => {
                self.identity_check.doubt();
                if !self.admits(T::KIND, objects.count()) {
                    return self.heard();
                }
                if self.contacts.listed(T::KIND) {
                    self.status.relists += 1;
                }
            }
            WatchEvent::Applied(_)
            | WatchEvent::Deleted(_)
            | WatchEvent::Invalid(_)
            | WatchEvent::Failed(_) => {}
        }
        self.heard();
        let applied = match &event {
            WatchEvent::Applied(object) => Some((object.key.clone(), object.weight())),
            _ => None,
        };
        let is_list = matches!(event, WatchEvent::Restarted { .. });
        let changed = match &event {
            WatchEvent::Applied(object) => Some(object.key.clone()),
            WatchEvent::Deleted(key) => Some(key.clone()),
            _ => None,
        };
        let touched = self.index.apply(event);
        if !touched.is_empty() {
            self.causes.add(self.cause(T::KIND, changed));
        }
        self.pending.merge(touched);
        self.held.grow(applied.as_ref().map_or(0, |(_, weight)| *weight));
        if is_list || self.held.is_stale(self.limits.memory_bytes) {
            self.held.weighed(self.index.weight());
        }
        self.budget::<T>(applied);
        self.client.account().hold(self.held.bytes());
    }

    /// That an object of this kind changed; without a name, all of its kind.
    fn cause(&self, kind: IndexedKind, key: Option<NamespacedName>) -> Cause {
        let (namespace, name) = key.map(|key| (key.namespace, key.name)).unwrap_or_default();
        let kind = kind.manifest_kind().into();
        Cause { cluster: self.cluster.clone(), kind, namespace, name }
    }

    /// Whether a list with so many objects of a kind counts; else it is asked for again. A first list is held
    /// against what the run before this one had.
    fn admits(&mut self, kind: IndexedKind, count: usize) -> bool {
        let known = match self.contacts.is_listed(kind) {
            true => self.index.count(kind),
            false => self.status.held.count(kind),
        };
        let admitted = self.guard.admits(kind, known, count, Instant::now());
        if !admitted {
            self.client.list_again(kind.plural());
        }
        admitted
    }

    /// Holds no more of a kind, and of all together, than may be, however it came: a list that is too long is
    /// not read to its end, and what a watch adds above it is left out.
    fn budget<T: Indexed>(&mut self, applied: Option<(NamespacedName, usize)>) {
        let (count, limit) = (self.index.count(T::KIND), self.limits.objects);
        let (bytes, most) = (self.held.bytes(), self.limits.memory_bytes);
        if let Some((key, weight)) = applied.filter(|_| count > limit || bytes > most) {
            let touched = self.index.apply::<T>(WatchEvent::Deleted(key));
            self.pending.merge(touched);
            self.held.shrink(weight);
            let plural = T::KIND.plural();
            let fact = match count > limit {
                true => format!("it has more than {limit} {plural}, the most that is held"),
                false => format!(
                    "with what its watch of {plural} adds, it takes more than {most} bytes, the most that it may"
                ),
            };
            self.over_budget = Some((T::KIND, fact));
        } else if count < limit
            && bytes < most - most / 16
            && self.over_budget.take_if(|(kind, _)| *kind == T::KIND).is_some()
        {
            // There is room for what was left out.
            self.client.list_again(T::KIND.plural());
        }
    }

    fn heard(&mut self) {
        self.status.last_contact.renew(SystemTime::now());
    }

    /// What to say now: everything, the first time.
    fn change(&mut self) -> Option<ShardChange> {
        let pending = std::mem::take(&mut self.pending);
        self.write_back.note();
        if self.status.synced {
            let waits = |key: &NamespacedName, said: Option<&_>, next: Option<&_>| {
                self.pending_pods.waits(key, said, next)
            };
            let contents = self.index.contents_but(&pending, waits);
            // Of what waits for pods, the objects are named once it is sent.
            if contents.is_none() && self.pending_pods.is_empty() {
                self.causes = Causes::default();
            }
            let contents = contents?;
            let causes = std::mem::take(&mut self.causes);
            return Some(ShardChange::Update(Contents { causes, ..contents }));
        }
        self.causes = Causes::default();
        self.status.synced = true;
        self.identity_check.expect(self.index.cluster_uid());
        self.status.sync_took = Some(self.began.elapsed());
        Some(ShardChange::Reset(self.index.everything()))
    }

    fn publish(&mut self) {
        self.status.contact = match (self.contacts.contact(), &self.over_budget) {
            (ApiContact::Good, Some((_, fact))) => ApiContact::Misbehaving(fact.clone()),
            (contact, _) => contact,
        };
        self.status.reached = self.contacts.reached();
        self.status.outdated = self.contacts.outdated();
        let is_trouble = matches!(self.status.contact, ApiContact::Misbehaving(_));
        self.status.next_attempt = self.client.account().again().filter(|_| is_trouble);
        let doubted = self.guard.waiting().next();
        self.status.doubted =
            doubted.map(|(kind, doubt)| format!("the list of {} {doubt}", kind.plural()));
        self.status.doubts = self.guard.doubted();
        self.status.degraded = self.contacts.degraded();
        self.status.degraded.extend(self.trust.remarks());
        if let count @ 1.. = self.client.unreadable_ca_blocks() {
            let code = &codes::CREDENTIAL_UNUSABLE;
            let fact = "certificates of the CA bundle can't be read and are ignored";
            self.status.degraded.push(format!("{code}: {count} {fact}"));
        }
        self.status.degraded.extend(self.traffic.borrow().problems.iter().cloned());
        self.status.own = self.trust.own.borrow().clone();
        self.status.roots = self.roots.borrow_and_update().clone();
        if self.may_speak() {
            self.count();
        }
        self.published.send_if_modified(|published| {
            let changed = *published != self.status;
            if changed {
                published.clone_from(&self.status);
            }
            changed
        });
    }

    /// Whether what is held is known to be of the cluster that was read first.
    fn may_speak(&self) -> bool {
        !self.identity_check.is_open() && !self.status.replaced
    }

    /// Puts what is held into the status.
    fn count(&mut self) {
        // As last weighed: else each change would be a new status.
        self.status.memory_bytes = self.held.weighed;

        self.status.services = self.index.service_count();
        self.status.endpoints = self.index.endpoint_count();
        self.status.objects = self.index.object_count();
        self.status.pod_ranges = self.index.pod_ranges();
        self.status.skipped = self.index.skipped();
        self.status.cluster_uid = self.index.cluster_uid().map(str::to_owned);
        if self.status.synced {
            self.status.held = ObjectCounts(IndexedKind::ALL.map(|kind| self.index.count(kind)));
        }
    }
}
