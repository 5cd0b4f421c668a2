//! Objects from the config cluster's API server: the Secrets that describe member clusters and the
//! ConfigMaps of the mesh, both in the system namespace, the entries of all namespaces, and the labels of
//! these.
//!
//! Owns what was last known of them: while the API server is away, everything stays, and a list that lacks most of it
//! is asked for again before it counts.

mod contact;
#[cfg(any(test, fuzzing))]
pub(super) mod fuzz;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use futures::future::join_all;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tracing::warn;

use super::combined::OWN_CLUSTER;
use super::kinds::{self, Kind};
use super::object::{self, Unusable};
use super::{
    CONFIG_MAPS, ConfigMap, ISTIO_SECRET_LABEL, Known, Namespace, ObjectName, Objects,
    SECRET_LABEL, Secret, Warning,
};
use crate::apiserver::{
    Access, Client, Error, Event, Key, Limits, Metadata, Object, Selection, cluster_uid, look,
    null_as_default, sameness,
};
use crate::codes;
use crate::mass_deletion::{Doubt, MassDeletionGuard};
use crate::model::{Collection, ObjectKey};
use crate::sources::Facts;
use crate::task::Supervisor;

/// Events that wait to be applied. A full channel makes the readers wait.
const EVENTS_MAX: usize = 64;
/// Far more Secrets than there are clusters; each may have 1 MiB.
const OBJECTS_MAX: usize = 10_000;
/// Far more entries, and namespaces, than any mesh has.
const ENTRIES_MAX: usize = 200_000;
/// The pause between two looks whether the cluster that is meant answers again.
const BACK_PAUSE: Duration = Duration::from_secs(2);

/// What is told of the config cluster.
#[derive(Debug, Clone)]
pub struct Watched {
    /// Its objects; `None` until all have been read once.
    pub objects: watch::Receiver<Option<Arc<Objects>>>,
    /// What keeps them from being read the first time, and from where, in words.
    pub unread: watch::Receiver<Option<String>>,
    /// When contact was lost, and that it is back.
    pub contact: watch::Receiver<Facts>,
}

/// Watches the config cluster. A new `access` (a mounted token that was renewed) is taken up without
/// forgetting anything. `known` is what it held before.
pub fn watch(
    access: watch::Receiver<Access>,
    system_namespace: String,
    known: Known,
    tasks: &Supervisor,
) -> Watched {
    let (objects, objects_seen) = watch::channel(None);
    let (unread, unread_seen) = watch::channel(None);
    let (contact, contact_seen) = watch::channel(Facts::starting(OWN_CLUSTER, ""));
    let told = Told { objects, unread, contact };
    tasks.spawn_restarting("config-cluster", Duration::from_secs(1), move || {
        run(access.clone(), system_namespace.clone(), known.clone(), told.clone())
    });
    Watched { objects: objects_seen, unread: unread_seen, contact: contact_seen }
}

#[derive(Clone)]
struct Told {
    objects: watch::Sender<Option<Arc<Objects>>>,
    unread: watch::Sender<Option<String>>,
    contact: watch::Sender<Facts>,
}

async fn run(
    mut access: watch::Receiver<Access>,
    system_namespace: String,
    known: Known,
    told: Told,
) {
    let mut index = Index::knowing(&told.last().unwrap_or(known));
    // The cluster that was read first, where that may be known.
    let mut uid: Option<String> = None;
    loop {
        let current = access.borrow_and_update().clone();
        let client = match Client::new(&current) {
            Ok(client) => client,
            Err(error) => {
                warn!(%error, "the config cluster can't be reached with this kubeconfig");
                told.unread.send_replace(Some(format!("{}: {error}", current.server)));
                let now = SystemTime::now();
                told.contact.send_modify(|f| f.failed(now, error.to_string(), &codes::UNREACHABLE));
                match access.changed().await {
                    Ok(()) => continue,
                    Err(_) => return std::future::pending().await,
                }
            }
        };
        let (sink, mut inputs) = mpsc::channel(EVENTS_MAX);
        let (mut same, doubts) = sameness();
        same.expect(uid.as_deref());
        same.doubt();
        let serve = async {
            let mut learn = std::pin::pin!(cluster_uid(&client));
            let mut learning = uid.is_none();
            let mut news = None;
            loop {
                tokio::select! {
                    input = inputs.recv() => {
                        let input = input?;
                        contact::note(&told.contact, &input);
                        if matches!(input.event, Event::Answered | Event::Restarted { .. }) {
                            same.doubt();
                        }
                        news = index.apply(input, Instant::now()).or(news);
                        index.take_asked_again().for_each(|plural| client.list_again(plural));
                        let doubts = index.guard.doubted();
                        told.contact.send_if_modified(|facts| {
                            std::mem::replace(&mut facts.doubts, doubts) != doubts
                        });
                    }
                    found = &mut learn, if learning => {
                        learning = false;
                        same.expect(found.as_deref());
                        uid = found;
                    }
                    () = same.answered() => if same.is_lost() { return Some(same.both()) },
                }
                if let Some(new) = news.take_if(|_| !same.is_open()) {
                    told.objects.send_if_modified(|held| {
                        let modified = held.as_deref() != Some(&new);
                        if modified {
                            *held = Some(Arc::new(new));
                        }
                        modified
                    });
                }
                let unread = index.unread().map(|fact| format!("{fact} at {}", current.server));
                told.unread.send_if_modified(|held| {
                    let modified = *held != unread;
                    *held = unread;
                    modified
                });
            }
        };
        let lost = tokio::select! {
            lost = serve => lost,
            () = Box::pin(read(&client, &system_namespace, &sink)) => None,
            () = Box::pin(contact::probe(&client, &told.contact)) => None,
            () = Box::pin(look(&client, doubts)) => None,
            () = renewed(&mut access) => None,
        };
        let Some((was, is)) = lost else { continue };
        let [was, is] = [was, is].map(Option::unwrap_or_default);
        let fact = format!(
            "another cluster answers: its UID was {was} and is {is}; what was last known stays. To accept it start strait serve anew"
        );
        let code = &codes::IDENTITY_CHANGED;
        warn!(server = %current.server, %code, reason = fact, "the config cluster is another one");
        told.contact.send_modify(|facts| facts.failed(SystemTime::now(), fact, code));
        tokio::select! {
            () = until_back(&client, &uid) => {}
            () = renewed(&mut access) => {}
        }
        // What the other one said is forgotten.
        index = told.last().map_or_else(Index::default, |known| Index::knowing(&known));
    }
}

impl Told {
    /// What was told last.
    fn last(&self) -> Option<Known> {
        self.objects.borrow().as_deref().map(Known::of)
    }
}

/// Waits until the cluster of this UID answers.
async fn until_back(client: &Client, uid: &Option<String>) {
    while cluster_uid(client).await != *uid {
        tokio::time::sleep(BACK_PAUSE).await;
    }
}

/// Waits for another access; for ever where none can come any more.
async fn renewed(access: &mut watch::Receiver<Access>) {
    if access.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

async fn read(client: &Client, namespace: &str, sink: &mpsc::Sender<Input>) {
    let secrets = |(key, value): (&str, &str)| Selection {
        namespace: Some(namespace.to_owned()),
        labels: Some(format!("{key}={value}")),
        ..Selection::all("", "v1", "secrets")
    };
    let config_map = |name: &str| Selection {
        namespace: Some(namespace.to_owned()),
        fields: Some(format!("metadata.name={name}")),
        ..Selection::all("", "v1", "configmaps")
    };
    let kept = kinds::ALL.iter().map(|kind| {
        let selection = Selection::in_best(kind.group, kind.versions, kind.plural);
        pass_on::<KeptObject>(client, selection, Reader::Kept(kind), sink)
    });
    let namespaces = Selection::all("", "v1", "namespaces");
    let [ours, istios] = CONFIG_MAPS;
    tokio::join!(
        pass_on::<SecretObject>(client, secrets(ISTIO_SECRET_LABEL), Reader::IstioSecrets, sink),
        pass_on::<SecretObject>(client, secrets(SECRET_LABEL), Reader::Secrets, sink),
        pass_on::<ConfigMapObject>(client, config_map(ours), Reader::ConfigMap, sink),
        pass_on::<ConfigMapObject>(client, config_map(istios), Reader::IstioConfigMap, sink),
        join_all(kept),
        pass_on::<NamespaceObject>(client, namespaces, Reader::Namespaces, sink),
    );
}

/// Watches one selection, and says with each event whose it is.
async fn pass_on<T>(
    client: &Client,
    selection: Selection,
    reader: Reader,
    sink: &mpsc::Sender<Input>,
) where
    T: Object,
    Found: From<T>,
{
    // One place: waiting is done in `sink`.
    let (events, mut told) = mpsc::channel::<Event<T>>(1);
    let forward = async {
        while let Some(event) = told.recv().await {
            if sink.send(Input { reader, event: convert(event) }).await.is_err() {
                return;
            }
        }
    };
    let many = matches!(reader, Reader::Kept(_) | Reader::Namespaces);
    let objects = if many { ENTRIES_MAX } else { OBJECTS_MAX };
    let limits = Limits { objects, ..Limits::default() };
    tokio::select! {
        () = client.watch::<T, Event<T>>(selection, limits, &events) => {}
        () = forward => {}
    }
}

fn convert<T>(event: Event<T>) -> Event<Found>
where
    Found: From<T>,
{
    match event {
        Event::Restarted { objects, odd } => {
            Event::Restarted { objects: objects.into_iter().map(Found::from).collect(), odd }
        }
        Event::Applied(object) => Event::Applied(object.into()),
        Event::Deleted(key) => Event::Deleted(key),
        Event::Odd(odd) => Event::Odd(odd),
        Event::Answered => Event::Answered,
        Event::Failed(error) => Event::Failed(error),
    }
}

/// What is read. A Secret that carries both labels is found by two of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Reader {
    IstioSecrets,
    Secrets,
    ConfigMap,
    IstioConfigMap,
    Kept(&'static Kind),
    Namespaces,
}

impl Reader {
    const OF_CORE: [Self; 5] = [
        Self::IstioSecrets,
        Self::Secrets,
        Self::ConfigMap,
        Self::IstioConfigMap,
        Self::Namespaces,
    ];

    fn every() -> impl Iterator<Item = Self> {
        Self::OF_CORE.into_iter().chain(kinds::ALL.iter().map(Self::Kept))
    }

    /// Whether the mesh can do without it.
    fn is_optional(self) -> bool {
        !matches!(self, Self::IstioSecrets | Self::Secrets)
    }

    fn plural(self) -> &'static str {
        match self {
            Self::IstioSecrets | Self::Secrets => "secrets",
            Self::ConfigMap | Self::IstioConfigMap => "configmaps",
            Self::Kept(kind) => kind.plural,
            Self::Namespaces => "namespaces",
        }
    }

    /// Whose lists together are all there is of something.
    fn group(self) -> [Self; 2] {
        match self {
            Self::IstioSecrets | Self::Secrets => [Self::IstioSecrets, Self::Secrets],
            Self::ConfigMap | Self::IstioConfigMap => [Self::ConfigMap, Self::IstioConfigMap],
            Self::Kept(_) | Self::Namespaces => [self, self],
        }
    }

    /// All that it reads, in words.
    fn all(self) -> String {
        format!("{} of the config cluster", self.plural())
    }
}

struct Input {
    reader: Reader,
    event: Event<Found>,
}

/// An object, or why it is none that can be used.
enum Found {
    Secret(Secret),
    ConfigMap(ConfigMap),
    Namespace(ObjectName, Namespace),
    /// An object that is kept as it is, but for its kind, which a list doesn't say.
    Kept(ObjectName, Value),
    Unusable(ObjectName, String),
}

/// Data is left untyped, so that an error never quotes it.
#[derive(Deserialize)]
struct SecretObject {
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    data: Value,
}

#[derive(Deserialize)]
struct ConfigMapObject {
    #[serde(default)]
    metadata: Metadata,
    #[serde(default, deserialize_with = "null_as_default")]
    data: BTreeMap<String, String>,
}

/// A namespace, of which the labels count.
#[derive(Deserialize)]
struct NamespaceObject {
    #[serde(default)]
    metadata: Metadata,
}

impl Object for NamespaceObject {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

impl From<NamespaceObject> for Found {
    fn from(NamespaceObject { metadata }: NamespaceObject) -> Self {
        let name = name_of(&metadata.key());
        let labels = owned(metadata.labels);
        let namespace = Namespace { name: Arc::clone(&name.name), labels };
        Self::Namespace(name, namespace)
    }
}

/// An object of the mesh's configuration. What it means others decide, so that one that is wrong keeps
/// nobody from reading the rest.
#[derive(Deserialize)]
struct KeptObject {
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    spec: Value,
    #[serde(default)]
    status: Value,
}

impl Object for KeptObject {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

impl From<KeptObject> for Found {
    /// Leaves out what changes without meaning: versions, and who manages which field.
    fn from(KeptObject { metadata, spec, status }: KeptObject) -> Self {
        let name = name_of(&metadata.key());
        let kept = json!({
            "name": metadata.name,
            "namespace": metadata.namespace,
            "labels": metadata.labels,
            "annotations": metadata.annotations,
            "creationTimestamp": metadata.creation_timestamp,
        });
        Self::Kept(name, json!({ "metadata": kept, "spec": spec, "status": status }))
    }
}

impl Object for SecretObject {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

impl Object for ConfigMapObject {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

impl From<SecretObject> for Found {
    fn from(SecretObject { metadata, data }: SecretObject) -> Self {
        let name = name_of(&metadata.key());
        match object::secret_data(Some(&data), None) {
            Ok(data) => Self::Secret(Secret {
                name,
                created: metadata.creation_timestamp.parse().ok(),
                labels: owned(metadata.labels),
                annotations: owned(metadata.annotations),
                data,
            }),
            Err(Unusable::Invalid(fact) | Unusable::Ignored(fact)) => Self::Unusable(name, fact),
        }
    }
}

impl From<ConfigMapObject> for Found {
    fn from(ConfigMapObject { metadata, data }: ConfigMapObject) -> Self {
        Self::ConfigMap(ConfigMap { name: name_of(&metadata.key()), data })
    }
}

fn owned(map: BTreeMap<Arc<str>, Arc<str>>) -> BTreeMap<String, String> {
    map.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
}

fn name_of(key: &Key) -> ObjectName {
    ObjectName { namespace: Arc::clone(&key.namespace), name: Arc::clone(&key.name) }
}

fn name_of_key(key: &ObjectKey) -> ObjectName {
    ObjectName { namespace: Arc::clone(&key.namespace), name: Arc::clone(&key.name) }
}

/// What is known, by reader. Pure.
#[derive(Default)]
struct Index {
    secrets: BTreeMap<(Reader, ObjectName), Arc<Secret>>,
    config_maps: BTreeMap<(Reader, ObjectName), Arc<ConfigMap>>,
    kept: Collection,
    namespaces: BTreeMap<ObjectName, Arc<Namespace>>,
    /// Readers that have listed once, or that may not and needn't.
    read: BTreeMap<Reader, ()>,
    /// About one object, or about all that a reader reads.
    warnings: BTreeMap<(Reader, Option<ObjectName>), Warning>,
    /// Readers that can't read, and why.
    failing: BTreeMap<Reader, (&'static str, String)>,
    /// What was known of before anything was read, and who has not found most of it yet: by the first reader of
    /// a group. A first list is held against it.
    expected: BTreeMap<Reader, BTreeSet<ObjectName>>,
    /// Lists that were hard to believe.
    guard: MassDeletionGuard<Reader>,
    /// The kinds that are to be listed again, by plural.
    again: BTreeSet<&'static str>,
}

impl Index {
    /// An index of a cluster that is known to have held this, and has not been read since. The entries count.
    fn knowing(known: &Known) -> Self {
        let kept: Collection = (known.entries.iter())
            .filter(|(key, _)| Kind::of(key).is_some())
            .map(|(key, object)| (key.clone(), Arc::clone(object)))
            .collect();
        let namespaces = kept.iter().map(|(key, _)| &key.namespace);
        let namespaces = namespaces.map(|name| ObjectName::new("", name)).collect();
        let expected = [
            (Reader::IstioSecrets, known.secrets.clone()),
            (Reader::ConfigMap, known.config_maps.clone()),
            (Reader::Namespaces, namespaces),
        ];
        Self { kept, expected: expected.into(), ..Self::default() }
    }

    /// Takes an event in. Returns all objects if they may have changed and have all been read once.
    fn apply(&mut self, Input { reader, event }: Input, now: Instant) -> Option<Objects> {
        if matches!(event, Event::Failed(Error::Gone(_) | Error::VersionAhead(_))) {
            // Versions grow old; it is listed anew.
            return None;
        }
        if !matches!(event, Event::Failed(_)) && self.failing.remove(&reader).is_none() {
            // Nothing is new by that alone.
            if matches!(event, Event::Answered) {
                return None;
            }
        }
        match event {
            Event::Answered => {}
            Event::Restarted { objects, odd } => {
                let odd_names = odd.iter().filter_map(|odd| odd.key.as_ref()).map(name_of);
                let names: BTreeSet<_> =
                    objects.iter().map(Found::name).cloned().chain(odd_names).collect();
                if !self.admits(reader, &names, now) {
                    return self.complete();
                }
                self.secrets.retain(|(of, name), _| *of != reader || names.contains(name));
                self.config_maps.retain(|(of, name), _| *of != reader || names.contains(name));
                self.forget_kept(reader, |key| !names.contains(&name_of_key(key)));
                if reader == Reader::Namespaces {
                    self.namespaces.retain(|name, _| names.contains(name));
                }
                self.warnings.retain(|(of, _), _| *of != reader);
                for object in objects {
                    self.take(reader, object);
                }
                for odd in odd {
                    self.odd(reader, odd);
                }
                self.read.insert(reader, ());
                self.find_expected(reader, now);
            }
            Event::Applied(object) => self.take(reader, object),
            Event::Deleted(key) => {
                let name = name_of(&key);
                self.secrets.remove(&(reader, name.clone()));
                self.config_maps.remove(&(reader, name.clone()));
                if let Reader::Kept(kind) = reader {
                    self.kept.remove(&kind.key(&name.namespace, &name.name));
                }
                if reader == Reader::Namespaces {
                    self.namespaces.remove(&name);
                }
                self.warnings.remove(&(reader, Some(name)));
            }
            Event::Odd(odd) => self.odd(reader, odd),
            Event::Failed(error) => self.failed(reader, &error),
        }
        self.complete()
    }

    /// All objects, once all have been read.
    fn complete(&self) -> Option<Objects> {
        Reader::every().all(|reader| self.read.contains_key(&reader)).then(|| self.objects())
    }

    /// What a reader has found.
    fn held_by(&self, reader: Reader) -> impl Iterator<Item = ObjectName> {
        fn of<T>(
            map: &BTreeMap<(Reader, ObjectName), T>,
            reader: Reader,
        ) -> impl Iterator<Item = &ObjectName> {
            map.keys().filter(move |(of, _)| *of == reader).map(|(_, name)| name)
        }
        let is_kept =
            move |key: &&ObjectKey| matches!(reader, Reader::Kept(kind) if kind.holds(key));
        let kept = self.kept.iter().map(|(key, _)| key).filter(is_kept).map(name_of_key);
        let namespaces = self.namespaces.keys().filter(move |_| reader == Reader::Namespaces);
        of(&self.secrets, reader)
            .chain(of(&self.config_maps, reader))
            .chain(namespaces)
            .cloned()
            .chain(kept)
    }

    /// Whether a list of these counts; else it is to be asked for again.
    fn admits(&mut self, reader: Reader, names: &BTreeSet<ObjectName>, now: Instant) -> bool {
        let (mut known, mut found) = (0, 0);
        for name in self.held_by(reader) {
            known += 1;
            found += usize::from(names.contains(&name));
        }
        // A first list that lacks something takes nothing away that isn't held.
        if known == 0 {
            return true;
        }
        self.guarded(reader, known, found, now)
    }

    /// Looks whether what was known before is among the first lists of all that read such things; if not, all of
    /// them are to be asked for again before they count as read.
    fn find_expected(&mut self, reader: Reader, now: Instant) {
        let group = reader.group();
        let [first, _] = group;
        if !group.iter().all(|one| self.read.contains_key(one)) {
            return;
        }
        let Some(expected) = self.expected.remove(&first) else { return };
        let held: BTreeSet<_> = group.iter().flat_map(|one| self.held_by(*one)).collect();
        let found = expected.intersection(&held).count();
        if !self.guarded(first, expected.len(), found, now) {
            self.read.retain(|one, ()| !group.contains(one));
            self.expected.insert(first, expected);
        }
    }

    fn guarded(&mut self, reader: Reader, known: usize, found: usize, now: Instant) -> bool {
        let before = self.guard.doubted();
        let admitted = self.guard.admits(reader, known, found, now);
        if !admitted {
            self.again.insert(reader.plural());
        }
        if self.guard.doubted() > before {
            let doubts = self.guard.waiting().filter(|(one, _)| **one == reader);
            doubts.for_each(
                |(reader, doubt)| warn!(warning = %doubted(*reader, doubt), "not taken at once"),
            );
        }
        admitted
    }

    /// Drops what a reader has found, as far as it has gone.
    fn forget_kept(&mut self, reader: Reader, has_gone: impl Fn(&ObjectKey) -> bool) {
        let Reader::Kept(kind) = reader else { return };
        let of_kind = self.kept.iter().map(|(key, _)| key).filter(|key| kind.holds(key));
        let gone: Vec<_> = of_kind.filter(|key| has_gone(key)).cloned().collect();
        gone.iter().for_each(|key| drop(self.kept.remove(key)));
    }

    /// The kinds that are to be listed again.
    fn take_asked_again(&mut self) -> impl Iterator<Item = &'static str> {
        std::mem::take(&mut self.again).into_iter()
    }

    fn take(&mut self, reader: Reader, object: Found) {
        self.warnings.remove(&(reader, Some(object.name().clone())));
        match object {
            Found::Secret(secret) => {
                self.secrets.insert((reader, secret.name.clone()), Arc::new(secret));
            }
            Found::ConfigMap(config_map) => {
                self.config_maps.insert((reader, config_map.name.clone()), Arc::new(config_map));
            }
            Found::Namespace(name, namespace) => {
                self.namespaces.insert(name, Arc::new(namespace));
            }
            Found::Kept(name, mut object) => {
                if let Reader::Kept(kind) = reader {
                    kind.stamp(&mut object);
                    self.kept.insert(kind.key(&name.namespace, &name.name), Arc::new(object));
                }
            }
            // What it was before stays.
            Found::Unusable(name, fact) => self.warn(reader, Some(name), fact),
        }
    }

    /// What it was before stays, whatever it is now.
    fn odd(&mut self, reader: Reader, odd: crate::apiserver::Odd) {
        let name = odd.key.as_ref().map(name_of);
        self.warn(reader, name, odd.reason);
    }

    fn failed(&mut self, reader: Reader, error: &Error) {
        let refused = matches!(error, Error::Forbidden(_) | Error::NotFound(_));
        if refused && reader.is_optional() {
            // Nobody can look for it.
            reader.group().iter().for_each(|one| drop(self.expected.remove(one)));
            let first = self.read.insert(reader, ()).is_none();
            if first && matches!(error, Error::NotFound(_)) {
                // What was known from before was of a kind that is there no more.
                self.forget_kept(reader, |_| true);
            }
        }
        if matches!((reader, error), (Reader::Kept(_), Error::NotFound(_))) {
            // Such objects are not installed there. We go on asking.
            return;
        }
        let code = match error {
            Error::Forbidden(_) if reader.is_optional() => &codes::RIGHT_MISSING,
            error => contact::code(error),
        };
        let trouble = (code.id, format!("can't be read ({error})"));
        if self.failing.get(&reader) != Some(&trouble) {
            warn!(warning = %failure(reader, &trouble), "configuration not used");
            self.failing.insert(reader, trouble);
        }
    }

    fn warn(&mut self, reader: Reader, name: Option<ObjectName>, text: String) {
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

    /// Why not all has been read once, where something stands in the way.
    fn unread(&self) -> Option<String> {
        let mut failing = self.failing.iter().filter(|(one, _)| !self.read.contains_key(one));
        let (reader, (_, fact)) = failing.next()?;
        Some(format!("{} {fact}", reader.all()))
    }

    fn objects(&self) -> Objects {
        let mut secrets: Vec<_> = self.secrets.values().cloned().collect();
        secrets.sort_by(|a, b| a.name.cmp(&b.name));
        // Found by two readers; while a change has reached one of them only, either will do.
        secrets.dedup_by(|a, b| a.name == b.name);
        let failures = self.failing.iter().map(|(reader, trouble)| failure(*reader, trouble));
        let doubts = self.guard.waiting().map(|(reader, doubt)| doubted(*reader, doubt));
        let warnings = self.warnings.values().cloned();
        let mut warnings: Vec<_> = warnings.chain(failures).chain(doubts).collect();
        warnings.sort();
        warnings.dedup();
        Objects {
            secrets,
            config_maps: self.config_maps.values().cloned().collect(),
            namespaces: self.namespaces.values().cloned().collect(),
            others: self.kept.clone(),
            warnings,
            ..Objects::default()
        }
    }
}

fn doubted(reader: Reader, doubt: &Doubt) -> Warning {
    let text =
        format!("{}: its list {doubt}, what was read before is kept", codes::MASS_WITHDRAWAL);
    Warning { source: reader.all(), document: None, line: None, text }
}

fn failure(reader: Reader, (code, fact): &(&str, String)) -> Warning {
    let text = format!("{code}: {fact}; what was read before is kept");
    Warning { source: reader.all(), document: None, line: None, text }
}

impl Found {
    fn name(&self) -> &ObjectName {
        match self {
            Self::Secret(secret) => &secret.name,
            Self::ConfigMap(config_map) => &config_map.name,
            Self::Unusable(name, _) | Self::Kept(name, _) | Self::Namespace(name, _) => name,
        }
    }
}

#[cfg(test)]
mod tests;
