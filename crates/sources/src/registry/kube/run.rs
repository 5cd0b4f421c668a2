//! One run of a cluster's registry: passes the readers' events to the index, and sends updates.
//!
//! The loop never waits for its receiver while events are pending: changes that cannot be sent yet
//! are stored as the names that they affect, and sent as full values when there is room. However
//! slow the receiver is, the cost is one name per changed object.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use tokio::sync::{mpsc, watch};

use super::contact::{Contacts, ReaderId, contact_for_access};
use super::index::{
    IndexChanges, IndexEvent, Indexed, IndexedKind, KubeIndex, ObjectList, ReadPart,
};
use super::known_namespaces::KnownNamespaces;
use super::memory_estimate::MemoryEstimate;
use super::pending_pods::PendingPods;
use super::readers;
use super::reviewed_rights::{self, ReviewedRights};
use super::roots::{self, RootsStatus, Writable};
use super::run_input::RunInput;
use super::scope::{COMMON, ReadSettings, Scope};
use super::write_back::{self, WriteReport};
use super::write_plan::{SharingWanted, WriteBack, WriteSettings};
use super::{ApiContact, ClusterClaims, ObjectCounts, OwnMesh, RunConfig, RunStatus, own_mesh};
use strait_base::codes;
use strait_base::latest::publish_change;
use strait_base::mass_deletion::MassDeletionGuard;
use strait_kube_client::{
    AccessError, ApiClient, ApiError, ClusterIdentityCheck, Keyed as _, NamespacedName, ReadLimits,
    WatchEvent, identity_check, look,
};
use strait_model::mesh_config::ObjectSelectors;
use strait_model::registry::{Contents, Epoch, RegistryUpdate, ShardChange, ShardKey};
use strait_model::{Cause, Causes, ClusterId, Collection, ImportMode, Mcs, OwnTraffic};

/// Capacity of the event channel. A full channel makes the readers wait, and with them the API
/// server.
const EVENTS_MAX: usize = 1024;
/// Maximum number of events that are applied before the resulting changes are sent.
const BATCH: usize = 256;

/// Reads a cluster and reports its contents: first everything, then changes. Survives every error;
/// ends when dropped, or when the receiver of updates is dropped.
pub async fn run(config: RunConfig) {
    let client = ApiClient::new(&config.access);
    run_with(config, client).await;
}

/// Reads a cluster with the given client, like [`run`]. Reports the error if the client could not
/// be created.
pub async fn run_with(config: RunConfig, client: Result<ApiClient, AccessError>) {
    let RunConfig {
        cluster,
        limits,
        domain,
        trust_domain,
        own_mesh,
        system_namespace,
        metadata,
        selectors,
        namespaces,
        known,
        ..
    } = config;
    let client = match client {
        Ok(client) => client,
        Err(error) => {
            config.status.send_modify(|status| status.contact = contact_for_access(&error));
            // Only a different access helps, in a new run.
            return config.updates.closed().await;
        }
    };
    config.client.send_replace(Some(client.clone()));
    let (sink, inputs) = mpsc::channel(EVENTS_MAX);
    let (claims, claims_receiver) = watch::channel(None);
    let mesh_namespace = system_namespace.clone();
    let read_own = own_mesh != OwnMesh::Unread;
    let trust = Trust { domain: trust_domain.clone(), own_mesh, own: claims_receiver };
    let clusterset = config.clusterset.clone();
    let settings = ReadSettings { domain, trust_domain, system_namespace, metadata, clusterset };
    let scope = Arc::new(Scope::new(settings, Arc::clone(&COMMON)));
    let (desired, desired_receiver) = watch::channel(Vec::new());
    let (report, report_receiver) = watch::channel(WriteReport::default());
    let (version, version_receiver) = watch::channel(None);
    let (identity_check, doubts) = identity_check();
    let role = config.writes.role.clone();
    let (writable, writable_receiver) = watch::channel(None);
    let (uid_wanted, uid_wanted_receiver) = watch::channel(!namespaces.is_whole());
    let (roots_status, roots_receiver) = watch::channel(None);
    let (reviewed, reviewed_receiver) = watch::channel(ReviewedRights::default());
    let object_counts = config.status.borrow().object_counts;
    let status = RunStatus { object_counts, ..RunStatus::starting() };
    let wanted = SharingWanted {
        always: config.mcs != Mcs::Off || config.imports != ImportMode::Off,
        policy: config.policy.clone(),
    };
    let write_settings = WriteSettings {
        cluster: cluster.clone(),
        imports: config.imports,
        clusterset: config.clusterset.clone(),
        policy: config.policy,
        relayed: config.access.is_relayed(),
    };
    let write_back = WriteBack::new(
        write_settings,
        (config.shared, config.shared_endpoints),
        desired,
        version_receiver.clone(),
        report_receiver,
    );
    let member = Box::new(ClusterInputState {
        cluster: cluster.clone(),
        write_back,
        index: KubeIndex::new(Arc::clone(&scope)).sharing(config.mcs),
        contacts: Contacts::new(namespaces.clone(), wanted.is_true())
            .knowing_pods(object_counts.count(IndexedKind::Pods) > 0),
        known: KnownNamespaces::new(&namespaces, known),
        lacks_uid: !namespaces.is_whole(),
        uid_wanted,
        writable,
        writable_stale: true,
        roots: roots_receiver,
        rights: reviewed_receiver,
        pending: IndexChanges::default(),
        causes: Causes::default(),
        pending_pods: PendingPods::default(),
        identity_check,
        guard: MassDeletionGuard::default(),
        limits,
        over_budget: None,
        memory: MemoryEstimate::default(),
        client: client.clone(),
        trust,
        traffic: config.traffic,
        status,
        began: Instant::now(),
        published: config.status,
    });
    let to = Receiver {
        shard: ShardKey::kubernetes(cluster),
        epoch: config.epoch,
        updates: config.updates,
    };
    tokio::select! {
        () = member.serve(inputs, selectors, &to) => {}
        () = Box::pin(readers::read(&client, &scope, limits, (&namespaces, uid_wanted_receiver), &sink)) => {}
        () = Box::pin(look(&client, doubts)) => {}
        () = Box::pin(reviewed_rights::follow(&client, &namespaces, &reviewed)) => {}
        () = Box::pin(own_mesh::follow(&client, &mesh_namespace, &claims)), if read_own => {}
        () = Box::pin(readers::read_shared((&client, &scope, limits), &namespaces, &sink, &version, wanted)) => {}
        // It ends together with the sender of desired objects.
        () = Box::pin(roots::run(client.clone(), limits, config.writes, &config.clusterset, writable_receiver, roots_status)) => {}
        () = write_back::run(client.clone(), role, desired_receiver, version_receiver, report) => {}
    }
}

/// The namespaces that belong to the mesh and the services that are global, once known.
type SelectorsReceiver = watch::Receiver<Option<ObjectSelectors>>;

/// Waits for a change. Never returns if no change is possible.
async fn changed(selectors: &mut SelectorsReceiver) {
    if selectors.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// The shard and epoch of updates.
struct Receiver {
    shard: ShardKey,
    epoch: Epoch,
    updates: mpsc::Sender<Box<RegistryUpdate>>,
}

impl Receiver {
    fn update(&self, change: ShardChange) -> Box<RegistryUpdate> {
        Box::new(RegistryUpdate { shard: self.shard.clone(), epoch: self.epoch, change })
    }
}

/// The trust domain in which the cluster is read, and the cluster's own claim.
struct Trust {
    domain: String,
    own_mesh: OwnMesh,
    own: watch::Receiver<Option<ClusterClaims>>,
}

impl Trust {
    /// Whether the cluster is read in the right trust domain, considering its own claim if that
    /// applies.
    fn is_right(&self) -> bool {
        let OwnMesh::Counts(mesh) = &self.own_mesh else { return true };
        let own = self.own.borrow();
        let names =
            |own: &ClusterClaims| **own.trust_domain.as_ref().unwrap_or(mesh) == *self.domain;
        own.as_ref().is_some_and(names)
    }

    /// Returns notes for the operator.
    fn remarks(&self) -> impl Iterator<Item = String> {
        let ClusterClaims { trust_domain, problem } = self.own.borrow().clone().unwrap_or_default();
        let overruled = match (&self.own_mesh, trust_domain) {
            (OwnMesh::Overruled(why), Some(own)) if *own != *self.domain => Some(format!(
                "its own mesh config names trust domain {own}, which has no effect: {why}"
            )),
            _ => None,
        };
        overruled.into_iter().chain(problem)
    }
}

/// The state of the cluster and of the contact with it.
struct ClusterInputState {
    cluster: ClusterId,
    index: KubeIndex,
    contacts: Contacts,
    /// The changes since the last update that was sent.
    pending: IndexChanges,
    /// The objects that caused them.
    causes: Causes,
    /// The services that wait for pods.
    pending_pods: PendingPods,
    /// Whether all data is of the cluster that was read first.
    identity_check: ClusterIdentityCheck,
    /// The last known contents of the namespaces, until everything has been read.
    known: KnownNamespaces,
    /// Whether the UID of the cluster is still to be read by itself.
    lacks_uid: bool,
    /// Whether it is to be read by itself, or was.
    uid_wanted: watch::Sender<bool>,
    /// Doubtful lists.
    guard: MassDeletionGuard<(IndexedKind, ReadPart)>,
    limits: ReadLimits,
    write_back: WriteBack,
    /// The namespaces that can be written into, and whether they may have changed.
    writable: watch::Sender<Writable>,
    writable_stale: bool,
    /// How far the roots have been distributed in them.
    roots: watch::Receiver<Option<RootsStatus>>,
    /// The rights that the API server lists.
    rights: watch::Receiver<ReviewedRights>,
    /// The kind and the reason if a watch exceeded the budget.
    over_budget: Option<(IndexedKind, String)>,
    /// The approximate memory use of all data.
    memory: MemoryEstimate,
    client: ApiClient,
    trust: Trust,
    /// Its traffic objects, if they apply.
    traffic: watch::Receiver<OwnTraffic>,
    status: RunStatus,
    began: Instant,
    published: watch::Sender<RunStatus>,
}

impl ClusterInputState {
    /// Boxed, because a value that is moved into a future takes its place twice.
    async fn serve(
        mut self: Box<Self>,
        mut inputs: mpsc::Receiver<RunInput>,
        mut selectors: SelectorsReceiver,
        to: &Receiver,
    ) {
        let mut selectors_known = self.filter(&mut selectors);
        self.apply_traffic();
        loop {
            let has_report = if !self.may_report() {
                false
            } else if self.status.synced {
                !self.pending.is_empty()
            } else {
                selectors_known
                    && self.contacts.complete()
                    && !self.lacks_uid
                    && self.trust.is_right()
                    && self.traffic.borrow().is_read()
            };
            tokio::select! {
                input = inputs.recv() => {
                    let Some(input) = input else { return };
                    self.take(None, input);
                    for _ in 1..BATCH {
                        let Ok(input) = inputs.try_recv() else { break };
                        self.take(None, input);
                    }
                }
                () = changed(&mut selectors) => selectors_known |= self.filter(&mut selectors),
                Ok(()) = self.trust.own.changed() => {}
                () = self.identity_check.answered() => self.status.replaced |= self.identity_check.is_lost(),
                room = to.updates.reserve(), if has_report => {
                    let Ok(room) = room else { return };
                    if let Some(change) = self.change() {
                        room.send(to.update(change));
                    }
                }
                over = self.pending_pods.over(), if !has_report => self.pending.services(over),
                () = to.updates.closed(), if !has_report => return,
                Ok(()) = self.roots.changed() => {}
                Ok(()) = self.rights.changed() => {}
                Ok(()) = self.traffic.changed() => self.apply_traffic(),
                // The comparison uses the last sent records, so pending changes are sent first.
                () = self.write_back.next_look(), if self.may_report() && self.status.synced && !has_report => {
                    let imports = self.write_back.look(&self.index);
                    if self.status.imports != imports {
                        self.status.imports = imports;
                    }
                }
            }
            self.publish_writable();
            self.publish();
        }
    }

    /// Takes over its current traffic objects. Until they have been read, the previous ones stay.
    fn apply_traffic(&mut self) {
        let OwnTraffic { is_wanted, objects, .. } = self.traffic.borrow_and_update().clone();
        let traffic = match objects {
            Some(objects) => objects,
            None if is_wanted => return,
            None => Collection::default(),
        };
        let touched = self.index.note_traffic(traffic);
        if !touched.is_empty() {
            // They may belong to another cluster.
            self.identity_check.request_check();
            self.memory.set_weighed(self.index.weight());
            self.client.account().set_stored(self.memory.bytes());
        }
        self.pending.merge(touched);
    }

    /// Publishes the namespaces that can be written into, once they are known to belong to the
    /// right cluster.
    fn publish_writable(&mut self) {
        if !self.writable_stale || !self.may_report() || !self.status.synced {
            return;
        }
        self.writable_stale = false;
        let new: BTreeSet<_> = self.index.writable_namespaces().cloned().collect();
        publish_change(&self.writable, Some(Arc::new(new)));
    }

    /// Sets the namespaces that belong to the mesh and the services that are global. Returns whether
    /// they are known.
    fn filter(&mut self, selectors: &mut SelectorsReceiver) -> bool {
        let Some(selectors) = selectors.borrow_and_update().clone() else { return false };
        let ObjectSelectors { namespaces, scopes } = selectors;
        self.pending.merge(self.index.select_global(scopes));
        self.pending.merge(self.index.filter(namespaces));
        true
    }

    fn take(&mut self, part: ReadPart, input: RunInput) {
        match input {
            RunInput::Service(event) => {
                self.event(part, *event);
                self.note_exports();
                self.write_back.note();
            }
            RunInput::Slice(event) => {
                self.event(part, *event);
                if self.index.take_slice_changes() {
                    self.write_back.note();
                }
            }
            RunInput::Pod(event) => self.event(part, *event),
            RunInput::Node(event) => self.event(part, *event),
            RunInput::Namespace(event) => {
                self.event(part, *event);
                self.writable_stale = true;
                self.note_exports();
                self.write_back.note();
            }
            RunInput::Gateway(event) => self.event(part, *event),
            RunInput::Export(event) => {
                self.event(part, *event);
                self.note_exports();
                self.write_back.note();
            }
            RunInput::Import(event) => {
                self.event(part, *event);
                self.write_back.note();
            }
            RunInput::Entry(event) => self.event(part, *event),
            RunInput::Within(position, input) => self.take(Some(position), *input),
            RunInput::Uid(uid) => {
                match uid.is_some() {
                    true => self.contacts.identified(),
                    // It is read again when namespaces are refused again.
                    false if self.contacts.lacks_namespaces() => {
                        self.uid_wanted.send_replace(false);
                    }
                    false => {}
                }
                self.index.set_cluster_uid(*uid);
                self.lacks_uid = false;
            }
            RunInput::Probed(probed) => match probed.0 {
                Ok(()) => {
                    self.contacts.answered(ReaderId::Probe);
                    self.note_contact();
                }
                Err(error) => {
                    self.status.errors += 1;
                    self.contacts.failed(ReaderId::Probe, error, SystemTime::now());
                }
            },
        }
    }

    /// Updates whether all exports are known.
    fn note_exports(&mut self) {
        let needed = [IndexedKind::Services, IndexedKind::Namespaces, IndexedKind::ServiceExports];
        let is_complete = self.over_budget.is_none()
            && needed.into_iter().all(|kind| match kind {
                IndexedKind::Namespaces => self.contacts.is_listed_or_absent(kind),
                _ => self.contacts.is_listed(kind),
            });
        let touched = self.index.set_exports_complete(is_complete);
        self.pending.merge(touched);
    }

    fn event<T: Indexed>(&mut self, part: ReadPart, event: IndexEvent<T>) {
        let reader = ReaderId::Kind(T::KIND, part);
        if let WatchEvent::Failed(error) = event {
            // The absence of an optional kind is not a failure.
            let is_absent = T::KIND.may_be_absent() && matches!(error, ApiError::NotFound(_));
            self.status.errors += u64::from(!is_absent);
            self.contacts.failed(reader, error, SystemTime::now());
            if self.contacts.lacks_namespaces() {
                self.lacks_uid |= !self.uid_wanted.send_replace(true);
            }
            // Its last kind may not be read.
            let touched = self.use_read(part);
            return self.pending.merge(touched);
        }
        match event {
            WatchEvent::Answered => self.contacts.opened(reader, SystemTime::now()),
            _ => self.contacts.answered(reader),
        }
        match &event {
            WatchEvent::Answered => self.identity_check.request_check(),
            WatchEvent::Restarted { objects, .. } => {
                self.identity_check.request_check();
                if !self.admits(T::KIND, part, objects.count()) {
                    return self.note_contact();
                }
                if self.contacts.listed(T::KIND, part) {
                    self.status.relists += 1;
                }
            }
            WatchEvent::Applied(_)
            | WatchEvent::Deleted(_)
            | WatchEvent::Invalid(_)
            | WatchEvent::Failed(_) => {}
        }
        self.note_contact();
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
        let mut touched = self.index.apply_in(self.contacts.namespace(part), event);
        if is_list {
            touched.merge(self.use_read(part));
        }
        if !touched.is_empty() {
            self.causes.add(self.cause(T::KIND, changed));
        }
        self.pending.merge(touched);
        self.memory.grow(applied.as_ref().map_or(0, |(_, weight)| *weight));
        if is_list || self.memory.is_stale(self.limits.memory_bytes) {
            self.memory.set_weighed(self.index.weight());
        }
        self.budget::<T>(applied);
        self.client.account().set_stored(self.memory.bytes());
    }

    /// Uses the objects of a namespace instead of its known contents, if it has been read now. Returns
    /// the affected parts.
    fn use_read(&mut self, part: ReadPart) -> IndexChanges {
        match self.contacts.namespace(part) {
            Some(namespace) if self.index.is_unread(namespace) && self.contacts.is_read(part) => {
                let is_listed = |kind| self.contacts.is_listed_in(kind, part);
                self.index.use_read(namespace, is_listed)
            }
            _ => IndexChanges::default(),
        }
    }

    /// Keeps the known contents of namespaces that may not be read.
    fn keep_unread(&mut self) {
        for (part, namespace) in self.contacts.unread_parts() {
            let known = self.known.take(usize::from(part));
            let is_listed = |kind| self.contacts.is_listed_in(kind, Some(part));
            self.index.keep_unread(&namespace, known, is_listed);
        }
        self.known = KnownNamespaces::default();
    }

    /// Returns the change of an object as a cause; without a name, the change of the whole kind.
    fn cause(&self, kind: IndexedKind, key: Option<NamespacedName>) -> Cause {
        let (namespace, name) = key.map(|key| (key.namespace, key.name)).unwrap_or_default();
        let kind = kind.manifest_kind().into();
        Cause { cluster: self.cluster.clone(), kind, namespace, name }
    }

    /// Whether a list with this number of objects is accepted; otherwise it is requested again. A
    /// first list is compared with the objects of the previous run.
    fn admits(&mut self, kind: IndexedKind, part: ReadPart, count: usize) -> bool {
        let is_listed = self.contacts.is_listed_in(kind, part);
        let known_count = match (part, self.contacts.namespace(part)) {
            (Some(_), Some(namespace)) if is_listed => self.index.count_in(kind, namespace),
            (Some(position), _) => self.known.count(usize::from(position), kind),
            (None, _) if is_listed => self.index.count(kind),
            (None, _) => self.status.object_counts.count(kind),
        };
        let admitted = self.guard.admits((kind, part), known_count, count, Instant::now());
        if !admitted {
            self.client.list_again(kind.plural());
        }
        admitted
    }

    /// Enforces the limits of one kind and of all kinds: a list that is too long is not read to its
    /// end, and objects that a watch adds beyond the limit are omitted.
    fn budget<T: Indexed>(&mut self, applied: Option<(NamespacedName, usize)>) {
        let (count, limit) = (self.index.count(T::KIND), self.limits.objects);
        let (bytes, most) = (self.memory.bytes(), self.limits.memory_bytes);
        if let Some((key, weight)) = applied.filter(|_| count > limit || bytes > most) {
            let touched = self.index.apply::<T>(WatchEvent::Deleted(key));
            self.pending.merge(touched);
            self.memory.shrink(weight);
            let plural = T::KIND.plural();
            let fact = match count > limit {
                true => format!("it has more than {limit} {plural}, which is the limit"),
                false => format!(
                    "with the objects added by its watch of {plural}, it takes more than {most} bytes, which is the limit"
                ),
            };
            self.over_budget = Some((T::KIND, fact));
        } else if count < limit
            && bytes < most - most / 16
            && self.over_budget.take_if(|(kind, _)| *kind == T::KIND).is_some()
        {
            // There is room for the omitted objects.
            self.client.list_again(T::KIND.plural());
        }
    }

    fn note_contact(&mut self) {
        self.status.last_contact.renew(SystemTime::now());
    }

    /// Returns the changes to report: the first time, everything.
    fn change(&mut self) -> Option<ShardChange> {
        let pending = std::mem::take(&mut self.pending);
        self.write_back.note();
        if self.status.synced {
            let must_wait = |key: &NamespacedName, sent: Option<&_>, next: Option<&_>| {
                self.pending_pods.must_wait(key, sent, next)
            };
            let contents = self.index.contents_but(&pending, must_wait);
            // If services wait for pods, the causes are reported when these are sent.
            if contents.is_none() && self.pending_pods.is_empty() {
                self.causes = Causes::default();
            }
            let contents = contents?;
            let causes = std::mem::take(&mut self.causes);
            return Some(ShardChange::Update(Contents { causes, ..contents }));
        }
        self.causes = Causes::default();
        self.status.synced = true;
        self.keep_unread();
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
        self.status.unread = self.contacts.unread();
        let is_trouble = matches!(self.status.contact, ApiContact::Misbehaving(_));
        self.status.next_attempt = self.client.account().next_requests().filter(|_| is_trouble);
        let doubted = self.guard.waiting().next();
        self.status.doubted = doubted.map(|((kind, part), doubt)| {
            format!("the list of {} {doubt}", self.contacts.describe(*kind, *part))
        });
        self.status.doubts = self.guard.doubted();
        self.status.degraded = self.contacts.degraded();
        let missing = self.contacts.missing_namespaces(|name| self.index.has_namespace(name));
        self.status.degraded.extend(missing);
        self.status.missing_rights = self.contacts.missing_rights(&self.rights.borrow_and_update());
        self.status.degraded.extend(self.trust.remarks());
        if let count @ 1.. = self.client.unreadable_ca_blocks() {
            let code = &codes::CREDENTIAL_UNUSABLE;
            let fact = "certificates of the CA bundle are unreadable and ignored";
            self.status.degraded.push(format!("{code}: {count} {fact}"));
        }
        self.status.degraded.extend(self.traffic.borrow().problems.iter().cloned());
        if let Some((code, fact)) = &self.status.imports.stopped
            && code.id == codes::IMPORT_RELAYED.id
        {
            self.status.degraded.push(format!("{code}: no ServiceImports: {fact}"));
        }
        self.status.own = self.trust.own.borrow().clone();
        self.status.roots = self.roots.borrow_and_update().clone();
        if self.may_report() {
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

    /// Whether the data is known to be of the cluster that was read first.
    fn may_report(&self) -> bool {
        !self.identity_check.is_open() && !self.status.replaced
    }

    /// Updates the counts in the status.
    fn count(&mut self) {
        // The last exact value: otherwise each change would be a new status.
        self.status.memory_bytes = self.memory.weighed;

        self.status.services = self.index.service_count();
        self.status.endpoints = self.index.endpoint_count();
        self.status.objects = self.index.object_count();
        self.status.pod_ranges = self.index.pod_ranges();
        self.status.skipped = self.index.skipped();
        self.status.cluster_uid = self.index.cluster_uid().map(str::to_owned);
        if self.status.synced {
            self.status.object_counts =
                ObjectCounts(IndexedKind::ALL.map(|kind| self.index.count(kind)));
        }
    }
}
