//! Combines several stores of objects into one: Strait's own, further directories, servers of MCP
//! over xDS.
//!
//! If several stores contain an object, the first store's version applies and the others are
//! shadowed, which is reported. This is computed from the current contents, so that the next
//! version applies when the first is deleted, and a change of a shadowed object has no effect. The
//! result shares the objects of the first store, so that it only costs memory for the other stores.
//! Secrets, ConfigMaps and Namespaces come from Strait's own store only. A store that has not been
//! read since the start contains its remembered objects. Owns the set of further stores; never
//! interprets an object.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::Value;
use tokio::sync::watch;

use super::{Objects, RememberedStore, UnreadObjects, Warning, WatchedNamespace, files, mcp};
use strait_base::latest::publish_change;
use strait_base::source_status::{RememberedStores, SourceFacts, SourceStatusTable, WARNINGS_MAX};
use strait_base::task::Supervisor;
use strait_model::{
    Collection, Difference, Labels, NamespaceFilter, ObjectFiles, RememberedObjects,
};

/// The kind of Strait's own store if it is an API server.
pub const OWN_CLUSTER: &str = "cluster";
/// The kind of Strait's own store if it is a directory.
pub const OWN_DIRECTORY: &str = "directory";

/// One store. The order of the list of stores is their precedence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Store {
    /// Strait's own store. If it is not on the list, it comes first.
    Own,
    /// A directory of manifests. Only objects of the mesh are used.
    Directory(PathBuf),
    /// A server of MCP over xDS.
    Mcp(mcp::McpServer),
}

impl Store {
    /// Returns its name in the status table.
    fn name(&self, own: &Arc<str>) -> Arc<str> {
        match self {
            Self::Own => Arc::clone(own),
            Self::Directory(path) => format!("fs://{}", path.display()).into(),
            Self::Mcp(server) => format!("xds://{}", server.address).into(),
        }
    }
}

/// The inputs of the combined stores.
#[derive(Debug, Clone)]
pub struct StoresConfig {
    /// Strait's own store.
    pub own: watch::Receiver<Option<Arc<Objects>>>,
    /// The contact with its API server; never changes for a directory.
    pub own_contact: watch::Receiver<SourceFacts>,
    /// Its kind, `directory` or `cluster`, and its location.
    pub own_kind: (&'static str, String),
    /// All stores in order; may change.
    pub stores: watch::Receiver<Vec<Store>>,
    /// The namespaces of Strait's own API server whose objects apply. Directories and MCP servers
    /// are not filtered, because their operators select the objects themselves.
    pub namespaces: watch::Receiver<Arc<NamespaceFilter>>,
    /// The namespace of objects in directories that specify none.
    pub system_namespace: String,
    /// The table in which stores publish their status.
    pub source_statuses: SourceStatusTable,
    /// The contents of each store from before this process started.
    pub remembered: RememberedStores<RememberedObjects>,
    /// Whether contents are stored for restarts.
    pub is_persisted: bool,
    /// Receives the contents of each store that are to be remembered; `None` until they are known.
    pub remembered_contents: watch::Sender<Option<Arc<StoreContents>>>,
}

impl StoresConfig {
    /// Returns the name of Strait's own store in the status table.
    pub fn own_name(&self) -> Arc<str> {
        own_name(self.own_kind.0)
    }

    /// Returns the status of a store before its first response.
    fn facts(&self, store: &Store, name: &Arc<str>) -> SourceFacts {
        let (kind, address) = match store {
            Store::Own => (self.own_kind.0, self.own_kind.1.clone()),
            Store::Directory(path) => ("directory", path.display().to_string()),
            Store::Mcp(_) => ("mcp", name.to_string()),
        };
        let facts = SourceFacts::starting(kind, address);
        match self.remembered.get(name) {
            Some(remembered) => {
                SourceFacts { objects: remembered.held.objects.len(), ..facts.with(remembered) }
            }
            None => facts,
        }
    }
}

/// Returns the name in the status table of Strait's own store of this kind.
pub fn own_name(kind: &str) -> Arc<str> {
    format!("config {kind}").into()
}

/// The contents of each store that are to be remembered, by name.
pub type StoreContents = BTreeMap<Arc<str>, RememberedObjects>;

/// The contents of each store, by name. Each store writes its own entry.
type ContentsByStore = BTreeMap<Arc<str>, StoreObjects>;

/// The objects of the mesh in a store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct StoreObjects {
    objects: Collection,
    /// For a directory, the file of each object.
    files: Arc<ObjectFiles>,
    /// Objects whose current stored version cannot be read.
    unread: Arc<UnreadObjects>,
}

impl From<Collection> for StoreObjects {
    fn from(objects: Collection) -> Self {
        Self { objects, ..Self::default() }
    }
}

impl From<&Objects> for StoreObjects {
    fn from(objects: &Objects) -> Self {
        Self {
            objects: objects.others.clone(),
            files: Arc::clone(&objects.files),
            unread: Arc::clone(&objects.unread),
        }
    }
}

impl From<&RememberedObjects> for StoreObjects {
    fn from(remembered: &RememberedObjects) -> Self {
        let (objects, files) = (remembered.objects.clone(), Arc::clone(&remembered.files));
        Self { objects, files, ..Self::default() }
    }
}

/// Reads all stores. The value is `None` until Strait's own store has been read once. Stores that
/// are read later add to it.
pub fn watch(config: StoresConfig, tasks: &Supervisor) -> watch::Receiver<Option<Arc<Objects>>> {
    let (sender, receiver) = watch::channel(None);
    let further = tasks.clone();
    // Before any component checks whether all sources have been read.
    announce(&config);
    tasks.spawn_restarting("stores", Duration::from_secs(1), move || {
        run(config.clone(), sender.clone(), further.clone())
    });
    receiver
}

fn announce(config: &StoresConfig) {
    let own = config.own_name();
    for store in config.stores.borrow().iter() {
        // The readers of Strait's own store report whether it has been read.
        if *store != Store::Own {
            let name = store.name(&own);
            config.source_statuses.report(&name, &config.facts(store, &name));
        }
    }
    if config.remembered.contains_key(&own) {
        config.source_statuses.report(&own, &config.facts(&Store::Own, &own));
    }
}

/// The reader of a store; it stops when this value is dropped.
struct StoreTask(Supervisor);

impl Drop for StoreTask {
    fn drop(&mut self) {
        self.0.stop();
    }
}

async fn run(
    mut config: StoresConfig,
    objects: watch::Sender<Option<Arc<Objects>>>,
    tasks: Supervisor,
) {
    let own_name = config.own_name();
    let contents = Arc::new(watch::Sender::new(ContentsByStore::new()));
    let mut contents_receiver = contents.subscribe();
    let mut reading: Vec<(Store, StoreTask)> = Vec::new();
    let mut own_facts = config.facts(&Store::Own, &own_name);
    let mut admitted = AdmittedObjects::default();
    loop {
        let stores = config.stores.borrow_and_update().clone();
        for (store, _) in reading.extract_if(.., |(store, _)| !stores.contains(store)) {
            let name = store.name(&own_name);
            contents.send_modify(|contents| drop(contents.remove(&name)));
            config.remembered.remove(&name);
            config.source_statuses.forget(&name);
        }
        for store in &stores {
            let is_read = reading.iter().any(|(one, _)| one == store);
            if *store != Store::Own && !is_read {
                let tasks = tasks.child();
                read(store, &own_name, &config, &contents, &tasks);
                reading.push((store.clone(), StoreTask(tasks)));
            }
        }
        let own = config.own.borrow_and_update().clone();
        {
            let contact = config.own_contact.borrow_and_update();
            own_facts.last_contact = contact.last_contact.or(own_facts.last_contact);
            own_facts.trouble.clone_from(&contact.trouble);
            own_facts.failures = contact.failures;
            own_facts.doubts = contact.doubts;
        }
        let filter = Arc::clone(&config.namespaces.borrow_and_update());
        let own = own.map(|own| match config.own_kind.0 {
            OWN_CLUSTER => admitted.filter(own, &filter),
            _ => own,
        });
        let further = contents_receiver.borrow_and_update().clone();
        let all = with_remembered(&config, &own_name, &stores, own.as_deref(), &further);
        let own_objects = own.clone().or_else(|| {
            let others = all.get(&own_name)?.objects.clone();
            Some(Arc::new(Objects { others, ..Objects::default() }))
        });
        if let Some(own_objects) = own_objects {
            let merged = combine(&own_objects, &own_name, &stores, &all);
            if own.is_some() && !std::mem::replace(&mut own_facts.synced, true) {
                own_facts.last_contact = Some(SystemTime::now());
            }
            own_facts.objects = own_objects.others.len();
            own_facts.warnings = lines(&own_objects.warnings);
            own_facts.absent_kinds = own_objects.absent.iter().copied().collect();
            report_shadowed(&config.source_statuses, &own_name, &mut own_facts, &merged.shadowed);
            publish_change(&objects, Some(Arc::new(merged.objects)));
            // Last, so that a component that is notified about a source finds its contents.
            further.keys().for_each(|name| config.source_statuses.synced(name));
        }
        remember(&config.remembered_contents, all);
        let changed = tokio::select! {
            changed = config.own.changed() => changed,
            () = changed(&mut config.own_contact) => Ok(()),
            changed = config.stores.changed() => changed,
            changed = config.namespaces.changed() => changed,
            changed = contents_receiver.changed() => changed,
        };
        if changed.is_err() {
            // No further change is possible.
            return std::future::pending().await;
        }
    }
}

/// Waits for a change. Never returns if no change is possible.
pub(super) async fn changed<T>(receiver: &mut watch::Receiver<T>) {
    if receiver.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// The objects of an API server in namespaces of the mesh. A namespace that is not known has no
/// labels. Only differences between versions are processed, unless the set of namespaces changes.
#[derive(Default)]
struct AdmittedObjects {
    namespaces: BTreeSet<Arc<str>>,
    /// The objects in these namespaces.
    all: Collection,
    admitted: Collection,
}

impl AdmittedObjects {
    fn filter(&mut self, own: Arc<Objects>, filter: &NamespaceFilter) -> Arc<Objects> {
        if filter.admits_all() {
            *self = Self::default();
            return own;
        }
        let is_admitted = |namespace: &&Arc<WatchedNamespace>| {
            let labels = namespace.labels.iter();
            let labels: Labels =
                labels.map(|(key, value)| (key.as_str().into(), value.as_str().into())).collect();
            filter.admits(&labels)
        };
        let namespaces = own.namespaces.iter().filter(is_admitted);
        let namespaces = namespaces.map(|namespace| Arc::clone(&namespace.name)).collect();
        if self.namespaces != namespaces {
            *self = Self { namespaces, ..Self::default() };
        }
        for Difference { key, now } in own.others.differences(&self.all) {
            let is_in = key.namespace.is_empty() || self.namespaces.contains(&key.namespace);
            match own.others.shared_key(key).zip(now).filter(|_| is_in) {
                Some((key, object)) => self.admitted.insert_shared(key, object.clone()),
                None => drop(self.admitted.remove(key)),
            }
        }
        self.all = own.others.clone();
        Arc::new(Objects { others: self.admitted.clone(), ..Objects::clone(&own) })
    }
}

/// Returns the contents of each store, including Strait's own: the reported or else the remembered
/// contents.
fn with_remembered(
    config: &StoresConfig,
    own_name: &Arc<str>,
    stores: &[Store],
    own: Option<&Objects>,
    further: &ContentsByStore,
) -> ContentsByStore {
    let mut all = further.clone();
    if let Some(own) = own {
        all.insert(Arc::clone(own_name), own.into());
    }
    for name in stores.iter().map(|store| store.name(own_name)).chain([Arc::clone(own_name)]) {
        if let Some(remembered) = config.remembered.get(&name).filter(|_| !all.contains_key(&name))
        {
            all.insert(name, (&remembered.held).into());
        }
    }
    all
}

/// Publishes the contents of the stores that are to be remembered.
fn remember(to: &watch::Sender<Option<Arc<StoreContents>>>, all: ContentsByStore) {
    let to_remembered = |StoreObjects { objects, files, .. }| RememberedObjects { objects, files };
    let all: StoreContents =
        all.into_iter().map(|(name, objects)| (name, to_remembered(objects))).collect();
    publish_change(to, Some(Arc::new(all)));
}

/// Starts reading a further store.
fn read(
    store: &Store,
    own: &Arc<str>,
    config: &StoresConfig,
    contents: &Arc<watch::Sender<ContentsByStore>>,
    tasks: &Supervisor,
) {
    let name = store.name(own);
    let line = StoreReporter {
        name,
        contents: Arc::clone(contents),
        source_statuses: config.source_statuses.clone(),
    };
    match store {
        Store::Own => {}
        Store::Directory(path) => {
            let remembered = config
                .remembered
                .get(&line.name)
                .map(|remembered| StoreObjects::from(&remembered.held));
            let StoreObjects { objects: entries, files, .. } = remembered.unwrap_or_default();
            let is_persisted = config.is_persisted;
            let remembered =
                RememberedStore { entries, files, is_persisted, ..RememberedStore::default() };
            let objects =
                files::watch(path.clone(), config.system_namespace.clone(), remembered, tasks);
            let address = path.display().to_string();
            let follow = move || follow(objects.clone(), line.clone(), address.clone());
            tasks.spawn_restarting("config source", Duration::from_secs(1), follow);
        }
        Store::Mcp(server) => {
            let (server, label) = (server.clone(), format!("config source {}", line.name));
            let remembered = config
                .remembered
                .get(&line.name)
                .map(|remembered| StoreObjects::from(&remembered.held));
            let remembered = remembered.unwrap_or_default().objects;
            let run = move || mcp::run(server.clone(), line.clone(), remembered.clone());
            tasks.spawn_restarting(label, Duration::from_secs(1), run);
        }
    }
}

/// Publishes the contents and the status of one store.
#[derive(Debug, Clone)]
pub(super) struct StoreReporter {
    name: Arc<str>,
    contents: Arc<watch::Sender<ContentsByStore>>,
    source_statuses: SourceStatusTable,
}

impl StoreReporter {
    /// Publishes its current contents.
    pub(super) fn set_contents(&self, objects: StoreObjects) {
        self.contents.send_if_modified(|all| {
            let differs = all.get(&self.name).is_none_or(|before| *before != objects);
            if differs {
                all.insert(Arc::clone(&self.name), objects);
            }
            differs
        });
    }

    /// Publishes its status.
    pub(super) fn report(&self, facts: &SourceFacts) {
        self.source_statuses.report(&self.name, facts);
    }
}

async fn follow(
    mut objects: watch::Receiver<Option<Arc<Objects>>>,
    line: StoreReporter,
    address: String,
) {
    let mut facts = SourceFacts::starting("directory", address);
    loop {
        let now = objects.borrow_and_update().clone();
        if let Some(now) = now {
            facts.responded(SystemTime::now());
            facts.objects = now.others.len();
            facts.warnings = lines(&now.warnings);
            line.set_contents((&*now).into());
        }
        line.report(&facts);
        if objects.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

fn lines(warnings: &[Warning]) -> Vec<String> {
    warnings.iter().take(WARNINGS_MAX).map(Warning::to_string).collect()
}

/// Reports the shadowed objects of all stores in the status of Strait's own store, so that they are
/// in one place.
fn report_shadowed(
    source_statuses: &SourceStatusTable,
    name: &Arc<str>,
    facts: &mut SourceFacts,
    shadowed: &[Shadowed],
) {
    facts.warnings.extend(shadowed.iter().take(WARNINGS_MAX).map(Shadowed::to_string));
    source_statuses.report(name, facts);
}

/// An object without effect, because an earlier store contains it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Shadowed {
    /// The object, such as `ServiceEntry shop/db`.
    object: String,
    loser: Arc<str>,
    winner: Arc<str>,
    /// The hosts in it.
    hosts: Vec<Arc<str>>,
}

impl std::fmt::Display for Shadowed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { object, loser, winner, .. } = self;
        write!(
            f,
            "STR0222: {object} of {loser} has no effect: {winner} has it, and takes precedence"
        )
    }
}

#[derive(Debug)]
struct CombinedContents {
    objects: Objects,
    shadowed: Vec<Shadowed>,
}

/// Combines the objects of all stores. Pure.
fn combine(
    own: &Objects,
    own_name: &Arc<str>,
    stores: &[Store],
    further: &ContentsByStore,
) -> CombinedContents {
    let own_objects = StoreObjects::from(own);
    let own_first = (!stores.contains(&Store::Own)).then_some(&Store::Own);
    let order = own_first.into_iter().chain(stores).filter_map(|store| {
        let name = store.name(own_name);
        let objects = match store {
            Store::Own => &own_objects,
            _ => further.get(&name)?,
        };
        Some((name, objects))
    });
    let order: Vec<(Arc<str>, &StoreObjects)> =
        order.filter(|(_, contents)| !contents.objects.is_empty()).collect();
    let mut stores = order.iter();
    let first = stores.next();
    let mut others = first.map(|(_, contents)| contents.objects.clone()).unwrap_or_default();
    let mut unread = first.map(|(_, contents)| Arc::clone(&contents.unread)).unwrap_or_default();
    let mut shadowed = Vec::new();
    for (at, (loser, contents)) in stores.enumerate() {
        for (key, object) in contents.objects.iter() {
            let before = order.iter().take(at + 1);
            match before.into_iter().find(|(_, contents)| contents.objects.get(key).is_some()) {
                None => {
                    others.insert(key.clone(), object.clone());
                    if let Some(wrong) = contents.unread.get(key) {
                        Arc::make_mut(&mut unread).insert(key.clone(), Arc::clone(wrong));
                    }
                }
                Some((winner, _)) => shadowed.push(Shadowed {
                    object: key.to_string(),
                    loser: Arc::clone(loser),
                    winner: Arc::clone(winner),
                    hosts: hosts(&object.to_value()),
                }),
            }
        }
    }
    shadowed.sort();
    let shadowed_texts = shadowed.iter().filter(|one| !one.hosts.is_empty());
    let shadowed_texts =
        shadowed_texts.map(|one: &Shadowed| (one.hosts.clone(), one.to_string())).collect();
    CombinedContents {
        objects: Objects { others, unread, shadowed: shadowed_texts, ..own.clone() },
        shadowed,
    }
}

/// Returns the hosts in an object.
fn hosts(object: &Value) -> Vec<Arc<str>> {
    let hosts = object.pointer("/spec/hosts").and_then(Value::as_array);
    let hosts = hosts.into_iter().flatten().filter_map(Value::as_str);
    hosts.map(|host| host.to_ascii_lowercase().into()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(version: &str, name: &str, host: &str) -> Arc<Value> {
        Arc::new(json!({
            "apiVersion": format!("networking.istio.io/{version}"),
            "kind": "ServiceEntry",
            "metadata": {"namespace": "shop", "name": name},
            "spec": {"hosts": [host]},
        }))
    }

    fn store_objects(objects: &[Arc<Value>]) -> StoreObjects {
        objects.iter().cloned().collect::<Collection>().into()
    }

    fn own(objects: &[Arc<Value>]) -> Objects {
        Objects { others: objects.iter().cloned().collect(), ..Objects::default() }
    }

    fn server(address: &str) -> Store {
        let node = mcp::McpNode { namespace: "s".into(), domain: "d".into() };
        Store::Mcp(mcp::McpServer { address: address.into(), tls: None, node })
    }

    /// Returns the effective hosts, and the shadowed objects.
    fn result(
        own: &Objects,
        stores: &[Store],
        further: &ContentsByStore,
    ) -> (Vec<String>, Vec<String>) {
        let combined = combine(own, &"own".into(), stores, further);
        let hosts = combined
            .objects
            .others
            .values()
            .map(|one| one.to_value()["spec"]["hosts"][0].to_string());
        let shadowed =
            combined.shadowed.iter().map(|one| format!("{} over {}", one.winner, one.loser));
        (hosts.collect(), shadowed.collect())
    }

    #[test]
    fn first_store_of_the_list_applies_and_the_next_after_its_deletion() {
        let own = own(&[entry("v1", "db", "own")]);
        let (a, b) = (server("a:1"), server("b:1"));
        let mut further: ContentsByStore = [
            ("xds://a:1".into(), store_objects(&[entry("v1alpha3", "db", "a")])),
            ("xds://b:1".into(), store_objects(&[entry("v1", "db", "b"), entry("v1", "mq", "mq")])),
        ]
        .into();
        let hosts =
            |texts: &[&str]| texts.iter().map(|text| format!("{text:?}")).collect::<Vec<_>>();
        let all = [a.clone(), Store::Own, b.clone()];
        let (found, shadowed) = result(&own, &all, &further);
        assert_eq!(found, hosts(&["a", "mq"]));
        assert_eq!(shadowed, ["xds://a:1 over own", "xds://a:1 over xds://b:1"]);

        // Strait's own store comes first if the list omits it.
        assert_eq!(result(&own, &[a, b], &further).0, hosts(&["own", "mq"]));
        assert_eq!(result(&own, &[], &further), (hosts(&["own"]), vec![]));

        // The change of a shadowed object has no effect.
        let before = combine(&own, &"own".into(), &all, &further).objects.others;
        further.insert(
            "xds://b:1".into(),
            store_objects(&[entry("v1", "db", "c"), entry("v1", "mq", "mq")]),
        );
        assert_eq!(combine(&own, &"own".into(), &all, &further).objects.others, before);

        // The first version is deleted, and the next one applies.
        further.insert("xds://a:1".into(), StoreObjects::default());
        assert_eq!(result(&own, &all, &further).0, hosts(&["own", "mq"]));
        let none = Objects::default();
        assert_eq!(result(&none, &all, &further).0, hosts(&["c", "mq"]));
        further.remove("xds://b:1");
        assert_eq!(result(&none, &all, &further), (vec![], vec![]));
    }

    #[test]
    fn objects_of_an_api_server_apply_in_admitted_namespaces() {
        use strait_model::LabelSelector;
        let namespace = |name: &str, label: &str| {
            let labels = [(label.to_owned(), "on".to_owned())].into();
            Arc::new(WatchedNamespace { name: name.into(), labels })
        };
        let filter = |label: &str| {
            let labels = [(label.into(), "on".into())].into();
            NamespaceFilter { selectors: vec![LabelSelector { labels, conditions: Vec::new() }] }
        };
        let in_namespace = |namespace: &str, name: &str, host: &str| {
            let mut object = Value::clone(&entry("v1", name, host));
            object["metadata"]["namespace"] = namespace.into();
            Arc::new(object)
        };
        let mut admitted = AdmittedObjects::default();
        let mut admits = |objects: &[(&str, &str, &str)], bank: &str, filter: &NamespaceFilter| {
            let objects: Vec<_> =
                objects.iter().map(|(space, name, host)| in_namespace(space, name, host)).collect();
            let mut own = own(&objects);
            own.namespaces = vec![namespace("bank", bank), namespace("shop", "mesh")];
            let own = Arc::new(own);
            let found = admitted.filter(Arc::clone(&own), filter);
            let fresh = AdmittedObjects::default().filter(own, filter);
            assert_eq!(found, fresh);
            let names = found.others.iter().map(|(key, object)| {
                let host = &object.to_value()["spec"]["hosts"][0];
                format!("{}/{} {}", key.namespace, key.name, host.as_str().expect("a host"))
            });
            names.collect::<Vec<_>>().join(", ")
        };
        let mesh = filter("mesh");
        let both = [("bank", "db", "a"), ("shop", "db", "b")];
        assert_eq!(admits(&both, "none", &mesh), "shop/db b");
        assert_eq!(admits(&both, "mesh", &mesh), "bank/db a, shop/db b");
        assert_eq!(
            admits(&[("bank", "db", "c"), ("shop", "x", "d")], "mesh", &mesh),
            "bank/db c, shop/x d"
        );
        assert_eq!(admits(&both, "mesh", &filter("other")), "");
        assert_eq!(admits(&both, "other", &filter("other")), "bank/db a");
        assert_eq!(admits(&both, "none", &NamespaceFilter::default()), "bank/db a, shop/db b");
        assert_eq!(admits(&both[..1], "none", &mesh), "");
    }

    #[test]
    fn warning_about_a_shadowed_object_names_both_stores() {
        let own = own(&[entry("v1", "db", "own")]);
        let further = [("xds://a:1".into(), store_objects(&[entry("v1", "db", "a")]))].into();
        let combined = combine(&own, &"config directory".into(), &[server("a:1")], &further);
        assert_eq!(
            combined.shadowed[0].to_string(),
            "STR0222: ServiceEntry shop/db of xds://a:1 has no effect: config directory has it, and takes precedence"
        );
    }
}
