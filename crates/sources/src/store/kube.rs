//! Objects from the config cluster's API server: the Secrets that describe member clusters and the
//! ConfigMaps of the mesh, both in the system namespace; the configuration objects of all
//! namespaces; and the labels of namespaces.
//!
//! Owns their last known state: while the API server is unreachable, everything stays. A list that
//! lacks most known objects is requested again before it applies.

mod contact;
#[cfg(any(test, fuzzing))]
pub(super) mod fuzz;
mod secret_object;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use futures::future::join_all;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tracing::warn;

pub(super) use self::input::{ReadObject, StoreInput, StoreReader};
pub(super) use self::secret_object::{
    DecisionObject, MemberDefinition, ProfileObject, SecretObject,
};
use self::secret_object::{object_name, owned};
use super::combined::OWN_CLUSTER;
use super::policy_effect::PolicyEffect;
use super::value_text::ValueText;
use super::{
    CONFIG_MAPS, ISTIO_SECRET_LABEL, ObjectName, Objects, RememberedStore, SECRET_LABEL, Warning,
    WatchedConfigMap, WatchedNamespace, WatchedSecret,
};
use strait_base::codes;
use strait_base::latest::publish_change;
use strait_base::mass_deletion::{GuardedPart, MassDeletionGuard, UnconfirmedList};
use strait_base::source_status::SourceFacts;
use strait_base::task::Supervisor;
use strait_kube_client::{
    Access, ApiClient, ApiError, ListSelection, ObjectMetadata, OwnedObject, ReadLimits,
    WatchEvent, cluster_uid, identity_check, look, null_as_default,
};
use strait_model::{CONFIG_KINDS, Collection, ConfigKind, ObjectJson, ObjectKey, filling};

/// Capacity of the event channel. A full channel makes the readers wait.
const EVENTS_MAX: usize = 64;
/// Maximum number of Secrets, far more than there are clusters; each may have 1 MiB.
const OBJECTS_MAX: usize = 10_000;
/// Maximum number of objects of a kind, and of namespaces.
const ENTRIES_MAX: usize = 200_000;
/// The pause between two checks whether the right cluster responds again.
const BACK_PAUSE: Duration = Duration::from_secs(2);

/// The published state of the config cluster.
#[derive(Debug, Clone)]
pub struct ConfigClusterState {
    /// Its objects; `None` until all have been read once.
    pub objects: watch::Receiver<Option<Arc<Objects>>>,
    /// Why the first read has not completed, and the source of that error.
    pub unread: watch::Receiver<Option<String>>,
    /// Loss and return of contact.
    pub contact: watch::Receiver<SourceFacts>,
}

/// Watches the config cluster. A new `access` (a renewed mounted token) is used without losing any
/// state. `remembered` is the content from before.
pub fn watch(
    access: watch::Receiver<Access>,
    system_namespace: String,
    remembered: RememberedStore,
    tasks: &Supervisor,
) -> ConfigClusterState {
    let (objects, objects_receiver) = watch::channel(None);
    let (unread, unread_receiver) = watch::channel(None);
    let (contact, contact_receiver) = watch::channel(SourceFacts::starting(OWN_CLUSTER, ""));
    let publisher = StorePublisher { objects, unread, contact };
    tasks.spawn_restarting("config-cluster", Duration::from_secs(1), move || {
        run(access.clone(), system_namespace.clone(), remembered.clone(), publisher.clone())
    });
    ConfigClusterState {
        objects: objects_receiver,
        unread: unread_receiver,
        contact: contact_receiver,
    }
}

#[derive(Clone)]
struct StorePublisher {
    objects: watch::Sender<Option<Arc<Objects>>>,
    unread: watch::Sender<Option<String>>,
    contact: watch::Sender<SourceFacts>,
}

async fn run(
    mut access: watch::Receiver<Access>,
    system_namespace: String,
    remembered: RememberedStore,
    publisher: StorePublisher,
) {
    let mut index = StoreIndex::with_remembered(&publisher.last().unwrap_or(remembered));
    // The UID of the cluster that was read first, if known.
    let mut uid: Option<String> = None;
    loop {
        let current = access.borrow_and_update().clone();
        let client = match ApiClient::new(&current) {
            Ok(client) => client,
            Err(error) => {
                warn!(%error, "the config cluster can't be reached with this kubeconfig");
                publisher.unread.send_replace(Some(format!("{}: {error}", current.server)));
                let now = SystemTime::now();
                publisher
                    .contact
                    .send_modify(|f| f.failed(now, error.to_string(), &codes::UNREACHABLE));
                match access.changed().await {
                    Ok(()) => continue,
                    Err(_) => return std::future::pending().await,
                }
            }
        };
        let (sink, mut inputs) = mpsc::channel(EVENTS_MAX);
        let (mut identity, identity_probe) = identity_check();
        identity.expect(uid.as_deref());
        identity.request_check();
        let serve = async {
            let mut learn = std::pin::pin!(cluster_uid(&client));
            let mut learning = uid.is_none();
            let mut news = None;
            loop {
                tokio::select! {
                    input = inputs.recv() => {
                        let input = input?;
                        contact::note(&publisher.contact, &input);
                        if matches!(input.event, WatchEvent::Answered | WatchEvent::Restarted { .. }) {
                            identity.request_check();
                        }
                        news = index.apply(input, Instant::now()).or(news);
                        index.take_kinds_to_list().for_each(|plural| client.list_again(plural));
                        let unconfirmed_lists = index.guard.doubted();
                        publisher.contact.send_if_modified(|facts| {
                            std::mem::replace(&mut facts.doubts, unconfirmed_lists) != unconfirmed_lists
                        });
                    }
                    found = &mut learn, if learning => {
                        learning = false;
                        identity.expect(found.as_deref());
                        uid = found;
                    }
                    () = identity.answered() => if identity.is_lost() { return Some(identity.both()) },
                }
                if let Some(new) = news.take_if(|_| !identity.is_open()) {
                    publish_change(&publisher.objects, Some(Arc::new(new)));
                }
                let unread = index.unread().map(|fact| format!("{fact} at {}", current.server));
                publish_change(&publisher.unread, unread);
            }
        };
        let lost = tokio::select! {
            lost = serve => lost,
            () = Box::pin(read(&client, &system_namespace, &sink)) => None,
            () = Box::pin(contact::probe(&client, &publisher.contact)) => None,
            () = Box::pin(look(&client, identity_probe)) => None,
            () = renewed(&mut access) => None,
        };
        let Some((was, is)) = lost else { continue };
        let [was, is] = [was, is].map(Option::unwrap_or_default);
        let fact = format!(
            "a different cluster responds: its UID was {was} and is {is}; the last known state stays in use. To accept it, restart strait serve"
        );
        let code = &codes::IDENTITY_CHANGED;
        warn!(server = %current.server, %code, reason = fact, "the config cluster is a different one");
        publisher.contact.send_modify(|facts| facts.failed(SystemTime::now(), fact, code));
        tokio::select! {
            () = until_back(&client, &uid) => {}
            () = renewed(&mut access) => {}
        }
        // Discards the reports of the other cluster.
        index = publisher.last().map_or_else(StoreIndex::default, |remembered| {
            StoreIndex::with_remembered(&remembered)
        });
    }
}

impl StorePublisher {
    /// Returns the contents that were last published.
    fn last(&self) -> Option<RememberedStore> {
        self.objects.borrow().as_deref().map(RememberedStore::from_objects)
    }
}

/// Waits until the cluster with this UID responds.
async fn until_back(client: &ApiClient, uid: &Option<String>) {
    while cluster_uid(client).await != *uid {
        tokio::time::sleep(BACK_PAUSE).await;
    }
}

/// Waits for a new access. Never returns if no change is possible.
async fn renewed(access: &mut watch::Receiver<Access>) {
    if access.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

async fn read(client: &ApiClient, namespace: &str, sink: &mpsc::Sender<StoreInput>) {
    let secrets = |(key, value): (&str, &str)| ListSelection {
        namespace: Some(namespace.to_owned()),
        labels: Some(format!("{key}={value}")),
        ..ListSelection::all("", "v1", "secrets")
    };
    let config_map = |name: &str| ListSelection {
        namespace: Some(namespace.to_owned()),
        fields: Some(format!("metadata.name={name}")),
        ..ListSelection::all("", "v1", "configmaps")
    };
    let config_readers = CONFIG_KINDS.iter().map(|kind| {
        let selection = ListSelection::in_best(kind.group, kind.versions, kind.plural);
        pass_on::<ConfigObject>(client, selection, StoreReader::Config(kind), sink)
    });
    let namespaces = ListSelection::all("", "v1", "namespaces");
    let [ours, istios] = CONFIG_MAPS;
    tokio::join!(
        pass_on::<SecretObject>(
            client,
            secrets(ISTIO_SECRET_LABEL),
            StoreReader::IstioSecrets,
            sink
        ),
        pass_on::<SecretObject>(client, secrets(SECRET_LABEL), StoreReader::Secrets, sink),
        pass_on::<ConfigMapObject>(client, config_map(ours), StoreReader::ConfigMap, sink),
        pass_on::<ConfigMapObject>(client, config_map(istios), StoreReader::IstioConfigMap, sink),
        join_all(config_readers),
        pass_on::<NamespaceObject>(client, namespaces, StoreReader::Namespaces, sink),
    );
}

/// Watches one selection, and passes on each event with its reader.
async fn pass_on<T>(
    client: &ApiClient,
    selection: ListSelection,
    reader: StoreReader,
    sink: &mpsc::Sender<StoreInput>,
) where
    T: OwnedObject,
    ReadObject: From<T>,
{
    let many = matches!(reader, StoreReader::Config(_) | StoreReader::Namespaces);
    let objects = if many { ENTRIES_MAX } else { OBJECTS_MAX };
    let limits = ReadLimits { objects, ..ReadLimits::default() };
    pass_on_within::<T>(client, selection, (reader, limits), sink).await;
}

/// Watches the objects of a kind that are stored unchanged.
pub(super) async fn pass_on_config(
    client: &ApiClient,
    selection: ListSelection,
    (kind, limits): (&'static ConfigKind, ReadLimits),
    sink: &mpsc::Sender<StoreInput>,
) {
    let reader = StoreReader::Config(kind);
    pass_on_within::<ConfigObject>(client, selection, (reader, limits), sink).await;
}

async fn pass_on_within<T>(
    client: &ApiClient,
    selection: ListSelection,
    (reader, limits): (StoreReader, ReadLimits),
    sink: &mpsc::Sender<StoreInput>,
) where
    T: OwnedObject,
    ReadObject: From<T>,
{
    // Capacity 1: buffering happens in `sink`.
    let (events, mut received) = mpsc::channel::<WatchEvent<T>>(1);
    let forward = async {
        while let Some(event) = received.recv().await {
            if sink.send(StoreInput { reader, event: convert(event) }).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = client.watch::<T, WatchEvent<T>>(selection, limits, &events) => {}
        () = forward => {}
    }
}

fn convert<T>(event: WatchEvent<T>) -> WatchEvent<ReadObject>
where
    ReadObject: From<T>,
{
    match event {
        WatchEvent::Restarted { objects, invalid } => WatchEvent::Restarted {
            objects: objects.into_iter().map(ReadObject::from).collect(),
            invalid,
        },
        WatchEvent::Applied(object) => WatchEvent::Applied(object.into()),
        WatchEvent::Deleted(key) => WatchEvent::Deleted(key),
        WatchEvent::Invalid(invalid) => WatchEvent::Invalid(invalid),
        WatchEvent::Answered => WatchEvent::Answered,
        WatchEvent::Failed(error) => WatchEvent::Failed(error),
    }
}

#[derive(Deserialize)]
struct ConfigMapObject {
    #[serde(default)]
    metadata: ObjectMetadata,
    #[serde(default, deserialize_with = "null_as_default")]
    data: BTreeMap<String, String>,
}

/// A namespace. Only its labels are used.
#[derive(Deserialize)]
struct NamespaceObject {
    #[serde(default)]
    metadata: ObjectMetadata,
}

impl OwnedObject for NamespaceObject {
    fn metadata(&self) -> &ObjectMetadata {
        &self.metadata
    }
}

impl From<NamespaceObject> for ReadObject {
    fn from(NamespaceObject { metadata }: NamespaceObject) -> Self {
        let name = object_name(&metadata.key());
        let labels = owned(metadata.labels);
        let namespace = WatchedNamespace { name: Arc::clone(&name.name), labels };
        Self::Namespace(name, namespace)
    }
}

/// A configuration object of the mesh. It is not interpreted here, so that an invalid one does not
/// prevent reading the others. A list is stored completely before any of it applies.
#[derive(Deserialize)]
struct ConfigObject {
    #[serde(default)]
    metadata: ObjectMetadata,
    spec: Option<ValueText>,
    status: Option<ValueText>,
}

impl OwnedObject for ConfigObject {
    fn metadata(&self) -> &ObjectMetadata {
        &self.metadata
    }
}

impl From<ConfigObject> for ReadObject {
    /// Omits fields that change without changing the meaning: the resource version and managed
    /// fields.
    fn from(ConfigObject { metadata, spec, status }: ConfigObject) -> Self {
        let name = object_name(&metadata.key());
        let stored_metadata = json!({
            "name": metadata.name,
            "namespace": metadata.namespace,
            "labels": metadata.labels,
            "annotations": metadata.annotations,
            "creationTimestamp": metadata.creation_timestamp,
            "generation": metadata.generation,
        });
        let [spec, status] = [spec, status].map(|text| text.as_ref().map(ValueText::to_value));
        let object = json!({ "metadata": stored_metadata, "spec": spec, "status": status });
        Self::Config(name, object.into())
    }
}

impl OwnedObject for ConfigMapObject {
    fn metadata(&self) -> &ObjectMetadata {
        &self.metadata
    }
}

impl From<ConfigMapObject> for ReadObject {
    fn from(ConfigMapObject { metadata, data }: ConfigMapObject) -> Self {
        Self::ConfigMap(WatchedConfigMap { name: object_name(&metadata.key()), data })
    }
}

fn name_from_key(key: &ObjectKey) -> ObjectName {
    ObjectName { namespace: Arc::clone(&key.namespace), name: Arc::clone(&key.name) }
}

/// A set of objects that a list must mostly contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum GuardedList {
    Whole(StoreReader),
    /// The restrictive policies among them: few, compared with policies that allow.
    Restricting(StoreReader),
}

impl GuardedList {
    fn reader(self) -> StoreReader {
        match self {
            Self::Whole(reader) | Self::Restricting(reader) => reader,
        }
    }
}

/// The known objects by reader. Pure.
#[derive(Default)]
struct StoreIndex {
    secrets: BTreeMap<(StoreReader, ObjectName), Arc<WatchedSecret>>,
    config_maps: BTreeMap<(StoreReader, ObjectName), Arc<WatchedConfigMap>>,
    config_objects: Collection,
    namespaces: BTreeMap<ObjectName, Arc<WatchedNamespace>>,
    /// Readers that have listed once, or that are denied and not required.
    read: BTreeMap<StoreReader, ()>,
    /// Warnings about one object, or about everything that a reader reads.
    warnings: BTreeMap<(StoreReader, Option<ObjectName>), Warning>,
    /// Readers that fail, and why.
    failing: BTreeMap<StoreReader, (&'static str, String)>,
    /// Kinds of the mesh's objects that the API server does not have.
    absent: BTreeSet<&'static str>,
    /// Objects from before the start that the first reader of a group, and the other, have mostly
    /// not found yet. First lists are compared with them.
    expected: BTreeMap<StoreReader, BTreeSet<ObjectName>>,
    /// Doubtful lists.
    guard: MassDeletionGuard<GuardedList>,
    /// The kinds to list again, in plural.
    again: BTreeSet<&'static str>,
}

impl StoreIndex {
    /// Creates an index of a cluster with known content that has not been read since. Its
    /// configuration objects apply.
    fn with_remembered(remembered: &RememberedStore) -> Self {
        let config_objects: Collection = (remembered.entries.iter())
            .filter(|(key, _)| ConfigKind::find(key).is_some())
            .map(|(key, object)| (key.clone(), object.clone()))
            .collect();
        let namespaces = config_objects.iter().map(|(key, _)| &key.namespace);
        let namespaces = namespaces.map(|name| ObjectName::new("", name)).collect();
        let expected = [
            (StoreReader::IstioSecrets, remembered.secrets.clone()),
            (StoreReader::ConfigMap, remembered.config_maps.clone()),
            (StoreReader::Namespaces, namespaces),
        ];
        Self { config_objects, expected: expected.into(), ..Self::default() }
    }

    /// Applies an event. Returns all objects if they may have changed and have all been read once.
    fn apply(&mut self, StoreInput { reader, event }: StoreInput, now: Instant) -> Option<Objects> {
        if matches!(event, WatchEvent::Failed(ApiError::Gone(_) | ApiError::VersionAhead(_))) {
            // Versions expire; the reader lists again.
            return None;
        }
        if !matches!(event, WatchEvent::Failed(_)) && self.failing.remove(&reader).is_none() {
            // This alone is not a change.
            if matches!(event, WatchEvent::Answered) {
                return None;
            }
        }
        match event {
            WatchEvent::Answered => {}
            WatchEvent::Restarted { objects, invalid } => {
                let invalid_names =
                    invalid.iter().filter_map(|invalid| invalid.key.as_ref()).map(object_name);
                let names: BTreeSet<_> =
                    objects.iter().map(ReadObject::name).cloned().chain(invalid_names).collect();
                if !self.admits(reader, &names, now) {
                    return self.complete();
                }
                self.secrets
                    .retain(|(found_by, name), _| *found_by != reader || names.contains(name));
                self.config_maps
                    .retain(|(found_by, name), _| *found_by != reader || names.contains(name));
                self.forget_config_objects(reader, |key| !names.contains(&name_from_key(key)));
                if reader == StoreReader::Namespaces {
                    self.namespaces.retain(|name, _| names.contains(name));
                }
                self.warnings.retain(|(found_by, _), _| *found_by != reader);
                self.absent.remove(reader.plural());
                for object in filling(objects) {
                    self.take(reader, object);
                }
                for invalid in invalid {
                    self.invalid(reader, invalid);
                }
                self.read.insert(reader, ());
                self.find_expected(reader, now);
            }
            WatchEvent::Applied(object) => self.take(reader, object),
            WatchEvent::Deleted(key) => {
                let name = object_name(&key);
                self.secrets.remove(&(reader, name.clone()));
                self.config_maps.remove(&(reader, name.clone()));
                if let StoreReader::Config(kind) = reader {
                    self.config_objects.remove(&kind.key(&name.namespace, &name.name));
                }
                if reader == StoreReader::Namespaces {
                    self.namespaces.remove(&name);
                }
                self.warnings.remove(&(reader, Some(name)));
            }
            WatchEvent::Invalid(invalid) => self.invalid(reader, invalid),
            WatchEvent::Failed(error) => self.failed(reader, &error),
        }
        self.complete()
    }

    /// Returns all objects once all have been read.
    fn complete(&self) -> Option<Objects> {
        StoreReader::every().all(|reader| self.read.contains_key(&reader)).then(|| self.objects())
    }

    /// Returns the objects that a reader has found.
    fn names_found_by(&self, reader: StoreReader) -> impl Iterator<Item = ObjectName> {
        fn names_in<T>(
            map: &BTreeMap<(StoreReader, ObjectName), T>,
            reader: StoreReader,
        ) -> impl Iterator<Item = &ObjectName> {
            map.keys().filter(move |(names_in, _)| *names_in == reader).map(|(_, name)| name)
        }
        let is_of_reader = move |key: &&ObjectKey| matches!(reader, StoreReader::Config(kind) if kind.contains(key));
        let config_names =
            self.config_objects.iter().map(|(key, _)| key).filter(is_of_reader).map(name_from_key);
        let namespaces = self.namespaces.keys().filter(move |_| reader == StoreReader::Namespaces);
        names_in(&self.secrets, reader)
            .chain(names_in(&self.config_maps, reader))
            .chain(namespaces)
            .cloned()
            .chain(config_names)
    }

    /// Whether a list with these names is accepted; otherwise it must be requested again.
    fn admits(&mut self, reader: StoreReader, names: &BTreeSet<ObjectName>, now: Instant) -> bool {
        let (mut known_count, mut found_count) = (0, 0);
        for name in self.names_found_by(reader) {
            known_count += 1;
            found_count += usize::from(names.contains(&name));
        }
        // A first list cannot remove anything that is not stored.
        if known_count == 0 {
            return true;
        }
        let whole = GuardedPart::of(GuardedList::Whole(reader), known_count, found_count);
        let restricting = self.restricting_part(reader, names);
        self.guarded(reader, [whole, restricting], now)
    }

    /// Returns the part of a list that consists of restrictive policies.
    fn restricting_part(
        &self,
        reader: StoreReader,
        names: &BTreeSet<ObjectName>,
    ) -> GuardedPart<GuardedList> {
        let list = GuardedList::Restricting(reader);
        let StoreReader::Config(kind) = reader else { return GuardedPart::of(list, 0, 0) };
        let stored =
            self.config_objects.iter().filter(|(key, _)| kind.restricts() && kind.contains(key));
        let restricts = |(key, object): &(&ObjectKey, &ObjectJson)| {
            PolicyEffect::from_object(key, object).is_some_and(|effect| effect.restricts())
        };
        let stored = stored.filter(restricts).map(|(key, _)| key);
        let (remaining, gone): (Vec<_>, Vec<_>) =
            stored.partition(|key| names.contains(&name_from_key(key)));
        let part = GuardedPart::of(list, remaining.len() + gone.len(), remaining.len());
        part.lacking(gone).of_several()
    }

    /// Checks that the first lists of all readers in a group contain the objects known from before.
    /// If not, all of them must be requested again before they count as read.
    fn find_expected(&mut self, reader: StoreReader, now: Instant) {
        let group = reader.group();
        let [first, _] = group;
        if !group.iter().all(|one| self.read.contains_key(one)) {
            return;
        }
        let Some(expected) = self.expected.remove(&first) else { return };
        let stored: BTreeSet<_> = group.iter().flat_map(|one| self.names_found_by(*one)).collect();
        let found_count = expected.intersection(&stored).count();
        let whole = GuardedPart::of(GuardedList::Whole(first), expected.len(), found_count);
        if !self.guarded(first, [whole], now) {
            self.read.retain(|one, ()| !group.contains(one));
            self.expected.insert(first, expected);
        }
    }

    fn guarded(
        &mut self,
        reader: StoreReader,
        parts: impl IntoIterator<Item = GuardedPart<GuardedList>>,
        now: Instant,
    ) -> bool {
        let before = self.guard.doubted();
        let admitted = self.guard.admits_all(parts, now);
        if !admitted {
            self.again.insert(reader.plural());
        }
        if self.guard.doubted() > before {
            let unconfirmed_lists =
                self.guard.waiting().filter(|(list, _)| list.reader() == reader);
            unconfirmed_lists.for_each(
                |(list, unconfirmed)| warn!(warning = %doubted(*list, unconfirmed), "sudden loss of objects: requesting the list again before it applies"),
            );
        }
        admitted
    }

    /// Removes a reader's objects that no longer exist.
    fn forget_config_objects(
        &mut self,
        reader: StoreReader,
        has_gone: impl Fn(&ObjectKey) -> bool,
    ) {
        let StoreReader::Config(kind) = reader else { return };
        let stored =
            self.config_objects.iter().map(|(key, _)| key).filter(|key| kind.contains(key));
        let gone: Vec<_> = stored.filter(|key| has_gone(key)).cloned().collect();
        gone.iter().for_each(|key| drop(self.config_objects.remove(key)));
    }

    /// Returns and clears the kinds to list again.
    fn take_kinds_to_list(&mut self) -> impl Iterator<Item = &'static str> {
        std::mem::take(&mut self.again).into_iter()
    }

    fn take(&mut self, reader: StoreReader, object: ReadObject) {
        self.warnings.remove(&(reader, Some(object.name().clone())));
        match object {
            ReadObject::Secret(secret) => {
                self.secrets.insert((reader, secret.name.clone()), Arc::new(secret));
            }
            ReadObject::ConfigMap(config_map) => {
                self.config_maps.insert((reader, config_map.name.clone()), Arc::new(config_map));
            }
            ReadObject::Namespace(name, namespace) => {
                self.namespaces.insert(name, Arc::new(namespace));
            }
            ReadObject::Config(name, object) => {
                if let StoreReader::Config(kind) = reader {
                    let mut object = object.to_value();
                    kind.stamp(&mut object);
                    self.config_objects.insert(kind.key(&name.namespace, &name.name), object);
                }
            }
            // The previous version stays.
            ReadObject::Unusable(name, fact) => self.warn(reader, Some(name), fact),
        }
    }

    /// Keeps the previous version of an invalid object.
    fn invalid(&mut self, reader: StoreReader, invalid: strait_kube_client::InvalidField) {
        let name = invalid.key.as_ref().map(object_name);
        self.warn(reader, name, invalid.reason);
    }

    fn failed(&mut self, reader: StoreReader, error: &ApiError) {
        let done_without = match error {
            ApiError::Forbidden(_) => reader.is_optional(),
            ApiError::NotFound(_) => reader.may_lack(),
            _ => false,
        };
        if done_without {
            // No reader can look for it.
            reader.group().iter().for_each(|one| drop(self.expected.remove(one)));
            let first = self.read.insert(reader, ()).is_none();
            // An API server that has just started temporarily lacks custom kinds: objects that
            // restrict access stay until a list lacks them.
            if first && matches!(error, ApiError::NotFound(_)) && reader.is_optional() {
                // The objects from before are of a kind that no longer exists.
                self.forget_config_objects(reader, |_| true);
            }
        }
        if matches!((reader, error), (StoreReader::Config(_), ApiError::NotFound(_))) {
            // The kind is not installed. Requests continue.
            self.absent.insert(reader.plural());
            return;
        }
        let code = match error {
            ApiError::Forbidden(_) if reader.is_optional() => &codes::RIGHT_MISSING,
            error => contact::code(error),
        };
        let trouble = (code.id, format!("can't be read ({error})"));
        if self.failing.get(&reader) != Some(&trouble) {
            warn!(warning = %failure(reader, &trouble), "configuration not used");
            self.failing.insert(reader, trouble);
        }
    }

    fn warn(&mut self, reader: StoreReader, name: Option<ObjectName>, text: String) {
        let source = match &name {
            Some(name) => format!("{} {name}", reader.plural()),
            None => reader.all(),
        };
        let warning = Warning { source, document: None, line: None, text };
        let before = self.warnings.insert((reader, name), warning.clone());
        if before.as_ref() != Some(&warning) {
            warn!(%warning, "configuration not used");
        }
    }

    /// Returns why the first read has not completed, if an error prevents it.
    fn unread(&self) -> Option<String> {
        let mut failing = self.failing.iter().filter(|(one, _)| !self.read.contains_key(one));
        let (reader, (_, fact)) = failing.next()?;
        Some(format!("{} {fact}", reader.all()))
    }

    fn objects(&self) -> Objects {
        let mut secrets: Vec<_> = self.secrets.values().cloned().collect();
        secrets.sort_by(|a, b| a.name.cmp(&b.name));
        // Found by two readers. While a change has reached only one reader, either version is
        // acceptable.
        secrets.dedup_by(|a, b| a.name == b.name);
        let failures = self.failing.iter().map(|(reader, trouble)| failure(*reader, trouble));
        let unconfirmed_lists =
            self.guard.waiting().map(|(list, unconfirmed)| doubted(*list, unconfirmed));
        let warnings = self.warnings.values().cloned();
        let mut warnings: Vec<_> = warnings.chain(failures).chain(unconfirmed_lists).collect();
        warnings.sort();
        warnings.dedup();
        Objects {
            secrets,
            config_maps: self.config_maps.values().cloned().collect(),
            namespaces: self.namespaces.values().cloned().collect(),
            others: self.config_objects.clone(),
            absent: self.absent.clone(),
            warnings,
            ..Objects::default()
        }
    }
}

fn doubted(list: GuardedList, unconfirmed: &UnconfirmedList) -> Warning {
    let subject = match list {
        GuardedList::Whole(_) => "its list",
        GuardedList::Restricting(_) => "for policies that restrict access, its list",
    };
    let text = format!(
        "{}: {subject} {unconfirmed}, the previous version stays in use",
        codes::MASS_WITHDRAWAL
    );
    Warning { source: list.reader().all(), document: None, line: None, text }
}

fn failure(reader: StoreReader, (code, fact): &(&str, String)) -> Warning {
    let text = format!("{code}: {fact}; the previous version stays in use");
    Warning { source: reader.all(), document: None, line: None, text }
}

impl ReadObject {
    pub(super) fn name(&self) -> &ObjectName {
        match self {
            Self::Secret(secret) => &secret.name,
            Self::ConfigMap(config_map) => &config_map.name,
            Self::Unusable(name, _) | Self::Config(name, _) | Self::Namespace(name, _) => name,
        }
    }
}

mod input;
#[cfg(test)]
mod tests;
