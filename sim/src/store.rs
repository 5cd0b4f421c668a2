//! The objects of one simulated cluster, with the history that watches read.
//!
//! The store owns all objects, the increasing resource version, and a bounded history of changes per
//! kind. Watches have no queue: each one remembers the version that it has seen and reads the later
//! changes. Therefore a slow watch costs nothing, and a very slow one receives 410, as from a real
//! server.
//!
//! The store decodes an object only when a client changes it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;

use serde_json::{Value, json};
use tokio::sync::watch;

use crate::admit;
use crate::object::{Name, Object, Sketch};
use crate::protobuf::Message;
use crate::resource::{RESOURCES, Resource};
use crate::select::Selector;
use crate::status::ApiError;
use crate::weight;

/// The default number of changes per kind that a store keeps.
pub const DEFAULT_HISTORY: usize = 2048;
/// The number of recent changes whose encoded events are stored.
const DRAWN_MAX: usize = 64;

/// A change of one object.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) before: Option<Arc<Object>>,
    /// The state after the change. For a deletion, the last state with the version of the deletion.
    pub(crate) now: Arc<Object>,
    pub(crate) deleted: bool,
    /// The encoded event, which is created for the first watcher.
    pub(crate) drawn: Arc<Drawn>,
}

/// The event of a change in both encodings, each created on first use.
#[derive(Debug, Default)]
pub(crate) struct Drawn {
    pub(crate) json: OnceLock<Event>,
    pub(crate) protobuf: OnceLock<Event>,
}

/// A complete encoded event.
#[derive(Debug)]
pub(crate) struct Event {
    /// `ADDED`, `MODIFIED` or `DELETED`, as the first watcher and most others see the change.
    pub(crate) kind: &'static str,
    /// The API version.
    pub(crate) version: &'static str,
    pub(crate) bytes: Bytes,
}

impl Change {
    fn new(before: Option<Arc<Object>>, now: Arc<Object>, deleted: bool) -> Change {
        Change { before, now, deleted, drawn: Arc::default() }
    }
}

/// The version that a list shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum At {
    Now,
    NotOlderThan(u64),
    Exact(u64),
}

/// One page of a list.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) objects: Vec<Arc<Object>>,
    pub(crate) version: u64,
    /// The last name on this page, if another page follows.
    pub(crate) after: Option<Name>,
    pub(crate) remaining: Option<usize>,
}

/// The content of a store at one moment, which can be restored.
#[derive(Debug, Clone)]
pub struct Snapshot {
    version: u64,
    objects: Vec<BTreeMap<Name, Arc<Object>>>,
}

/// The objects of one cluster.
#[derive(Debug)]
pub struct Store {
    identity: String,
    history: usize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    version: u64,
    /// One table per row of [`RESOURCES`], in the same order.
    tables: Vec<Table>,
    next_cluster_ip: u32,
}

#[derive(Debug)]
struct Table {
    objects: BTreeMap<Name, Arc<Object>>,
    /// Oldest first, with increasing versions.
    history: VecDeque<Change>,
    /// Changes up to this version have been removed.
    compacted: u64,
    changed: watch::Sender<u64>,
}

impl Store {
    /// Returns a store with the namespaces of every cluster. All UIDs are derived from `identity`:
    /// two stores with the same value look like the same cluster. `history` limits the number of
    /// stored changes per kind.
    pub fn new(identity: &str, history: usize) -> Store {
        let table = || Table {
            objects: BTreeMap::new(),
            history: VecDeque::new(),
            compacted: 0,
            changed: watch::Sender::new(0),
        };
        let tables = RESOURCES.iter().map(|_| table()).collect();
        let state = State { version: 100, tables, next_cluster_ip: 10 };
        let store = Store { identity: identity.to_owned(), history, state: Mutex::new(state) };
        for name in ["default", "kube-system"] {
            let namespace = json!({
                "apiVersion": "v1", "kind": "Namespace",
                "metadata": {"name": name, "creationTimestamp": weight::CREATED},
            });
            store.apply(namespace).expect("a plain namespace is valid");
        }
        store
    }

    /// Returns the version of the last change.
    pub fn version(&self) -> u64 {
        self.lock().version
    }

    /// Creates or replaces the object, including its status, and creates a missing namespace. It is
    /// meant for scripts and tests; a client of the API needs several requests for this.
    ///
    /// # Errors
    /// The kind is unknown, or the object has no name.
    pub fn apply(&self, mut object: Value) -> Result<Arc<Object>, ApiError> {
        let api_version = text(&object, "/apiVersion").unwrap_or("v1").to_owned();
        let kind = text(&object, "/kind").unwrap_or_default().to_owned();
        let resource = Resource::by_kind(&api_version, &kind)
            .ok_or_else(|| ApiError::bad_request(format!("no kind {kind:?} in {api_version:?}")))?;
        let Some(name) = text(&object, "/metadata/name").map(str::to_owned) else {
            return Err(ApiError::invalid(resource, "", "metadata.name", "Required value"));
        };
        let namespace = match (resource.namespaced, text(&object, "/metadata/namespace")) {
            (true, namespace) => namespace.unwrap_or("default").to_owned(),
            (false, _) => String::new(),
        };
        if resource.namespaced {
            object["metadata"]["namespace"] = json!(namespace);
        }
        let mut state = self.lock();
        if resource.namespaced && !state.has_namespace(&namespace) {
            let value = json!({"metadata": {"name": namespace}});
            let namespaces = Resource::by_name("namespaces").expect("the table has them");
            self.insert(&mut state, namespaces, value);
        }
        let name = Name::new(&namespace, &name);
        match state.table(resource).objects.get(&name).cloned() {
            None => Ok(self.insert(&mut state, resource, object)),
            Some(current) => Ok(self.replace(&mut state, resource, &current, object, false)),
        }
    }

    /// Returns a guard for several changes to a generated world that watchers see at once.
    pub(crate) fn at_once(&self) -> AtOnce<'_> {
        AtOnce { store: self, state: self.lock() }
    }

    /// Creates an object, as POST does.
    pub(crate) fn create(
        &self,
        resource: &'static Resource,
        mut object: Value,
        dry_run: bool,
    ) -> Result<Arc<Object>, ApiError> {
        let mut state = self.lock();
        if let (None, Some(prefix)) =
            (text(&object, "/metadata/name"), text(&object, "/metadata/generateName"))
        {
            object["metadata"]["name"] = json!(format!("{prefix}{:05x}", state.version));
        }
        let Some(name) = text(&object, "/metadata/name") else {
            let why = "Required value: name or generateName is required";
            return Err(ApiError::invalid(resource, "", "metadata.name", why));
        };
        let namespace = text(&object, "/metadata/namespace").unwrap_or_default();
        if resource.namespaced && !state.has_namespace(namespace) {
            let namespaces = Resource::by_name("namespaces").expect("the table has them");
            return Err(ApiError::not_found(namespaces, namespace));
        }
        if state.table(resource).objects.contains_key(&Name::new(namespace, name)) {
            return Err(ApiError::already_exists(resource, name));
        }
        if dry_run {
            self.complete(&mut state, resource, &mut object);
            return Ok(Arc::new(Object::new(state.version, object)));
        }
        Ok(self.insert(&mut state, resource, object))
    }

    /// Replaces the current object with `change(current)`. If the content is equal, nothing changes:
    /// there is no new version and no event.
    pub(crate) fn update(
        &self,
        resource: &'static Resource,
        name: &Name,
        dry_run: bool,
        change: impl FnOnce(Value) -> Result<Value, ApiError>,
    ) -> Result<Arc<Object>, ApiError> {
        let mut state = self.lock();
        let current = state.table(resource).objects.get(name).cloned();
        let current = current.ok_or_else(|| ApiError::not_found(resource, &name.name))?;
        let wanted = change(current.value())?;
        Ok(self.replace(&mut state, resource, &current, wanted, dry_run))
    }

    /// Deletes an object. Deleting a namespace also deletes its content. `check` may refuse the
    /// deletion.
    pub(crate) fn delete_if(
        &self,
        resource: &'static Resource,
        name: &Name,
        check: impl FnOnce(&Object) -> Result<(), ApiError>,
    ) -> Result<Arc<Object>, ApiError> {
        let mut state = self.lock();
        let current = state.table(resource).objects.get(name).cloned();
        let current = current.ok_or_else(|| ApiError::not_found(resource, &name.name))?;
        check(&current)?;
        if resource.plural == "namespaces" {
            self.empty_namespace(&mut state, &name.name);
        }
        Ok(self.remove(&mut state, resource, &current))
    }

    /// Deletes by kind (`Pod`, `pods` or `po`) and name; `""` is the namespace of cluster-wide kinds.
    ///
    /// # Errors
    /// The kind is unknown, or the object does not exist.
    pub fn delete(&self, kind: &str, namespace: &str, name: &str) -> Result<(), ApiError> {
        let resource = Resource::by_name(kind)
            .ok_or_else(|| ApiError::bad_request(format!("no kind {kind:?}")))?;
        self.delete_if(resource, &Name::new(namespace, name), |_| Ok(())).map(|_| ())
    }

    /// Returns an object by kind (`Pod`, `pods` or `po`) and name.
    pub fn get(&self, kind: &str, namespace: &str, name: &str) -> Option<Arc<Object>> {
        self.find(Resource::by_name(kind)?, &Name::new(namespace, name))
    }

    pub(crate) fn find(&self, resource: &Resource, name: &Name) -> Option<Arc<Object>> {
        self.lock().table(resource).objects.get(name).cloned()
    }

    /// Returns all objects of a kind, sorted by name.
    pub fn all(&self, kind: &str) -> Vec<Arc<Object>> {
        Resource::by_name(kind)
            .map(|resource| self.lock().table(resource).objects.values().cloned().collect())
            .unwrap_or_default()
    }

    /// Returns one page at the requested version. All pages of a list show the same version.
    ///
    /// # Errors
    /// 410 if that version has been compacted, 504 if it does not exist yet.
    pub(crate) fn list(
        &self,
        resource: &Resource,
        selector: &Selector,
        at: At,
        after: Option<&Name>,
        limit: Option<usize>,
    ) -> Result<Page, ApiError> {
        let mut state = self.lock();
        let current = state.version;
        let table = state.table(resource);
        let version = match at {
            At::Now => current,
            At::NotOlderThan(version) | At::Exact(version) if version > current => {
                return Err(ApiError::too_large_version(version, current));
            }
            At::NotOlderThan(_) => current,
            At::Exact(version) if version < table.compacted => {
                return Err(ApiError::list_too_old());
            }
            At::Exact(version) => version,
        };
        let then;
        let objects = match table.history.back() {
            Some(last) if last.now.version > version => {
                then = table.rolled_back_to(version);
                &then
            }
            _ => &table.objects,
        };
        let lower = match (after, selector.namespace()) {
            (Some(name), _) => Bound::Excluded(name.clone()),
            (None, Some(namespace)) => Bound::Included(Name::new(namespace, "")),
            (None, None) => Bound::Unbounded,
        };
        let in_namespace = |name: &Name| selector.namespace().is_none_or(|n| *n == *name.namespace);
        let mut selected = objects
            .range((lower, Bound::Unbounded))
            .take_while(|(name, _)| in_namespace(name))
            .map(|(_, object)| object)
            .filter(|object| selector.matches(object));
        let page: Vec<_> = match limit {
            Some(limit) => selected.by_ref().take(limit).cloned().collect(),
            None => selected.by_ref().cloned().collect(),
        };
        let more = selected.next().is_some();
        let after = page.last().filter(|_| more).map(|object| object.name.clone());
        let remaining = (more && selector.is_plain()).then(|| 1 + selected.count());
        Ok(Page { objects: page, version, after, remaining })
    }

    /// Returns at most `limit` changes of a kind after version `since`, oldest first, and the version
    /// up to which the caller has then seen all changes.
    ///
    /// # Errors
    /// 410 if changes after `since` have been removed.
    pub(crate) fn changes(
        &self,
        resource: &Resource,
        since: u64,
        limit: usize,
    ) -> Result<(Vec<Change>, u64), ApiError> {
        let mut state = self.lock();
        let current = state.version;
        let table = state.table(resource);
        if since < table.compacted {
            return Err(ApiError::too_old(since, table.compacted));
        }
        let start = table.history.partition_point(|change| change.now.version <= since);
        let changes: Vec<_> = table.history.range(start..).take(limit).cloned().collect();
        let seen = match changes.last() {
            Some(last) if changes.len() == limit => last.now.version,
            _ => current.max(since),
        };
        Ok((changes, seen))
    }

    /// Returns a receiver for the version of the last change of a kind. A slow reader sees only the
    /// latest value.
    pub(crate) fn subscribe(&self, resource: &Resource) -> watch::Receiver<u64> {
        self.lock().table(resource).changed.subscribe()
    }

    /// Removes all history, as etcd does every few minutes: every watch receives 410 and every continue
    /// token expires, so all clients list again.
    pub fn compact(&self) {
        let mut state = self.lock();
        state.version += 1;
        let version = state.version;
        for table in &mut state.tables {
            table.forget(version);
        }
    }

    /// Returns the current content.
    pub fn snapshot(&self) -> Snapshot {
        let state = self.lock();
        let objects = state.tables.iter().map(|table| table.objects.clone()).collect();
        Snapshot { version: state.version, objects }
    }

    /// Restores a snapshot, including its versions, as after an etcd restore. Watches that have seen
    /// later versions receive nothing, so stop the server meanwhile, as an operator would.
    pub fn restore(&self, snapshot: Snapshot) {
        let mut state = self.lock();
        state.version = snapshot.version;
        for (table, objects) in state.tables.iter_mut().zip(snapshot.objects) {
            table.objects = objects;
            table.forget(snapshot.version);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is never partially written: only a failed allocation can panic under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the fields that the server adds to any new object.
    fn complete(&self, state: &mut State, resource: &Resource, object: &mut Value) {
        let name = text(object, "/metadata/name").unwrap_or_default();
        let namespace = text(object, "/metadata/namespace").unwrap_or_default();
        // Default namespaces always have the same UIDs. Any other object that is created again has a
        // new UID.
        let nonce = if resource.plural == "namespaces" { 0 } else { state.version };
        let uid = uid(&[&self.identity, resource.plural, namespace, name], nonce);
        let metadata = &mut object["metadata"];
        if metadata["uid"].is_null() {
            metadata["uid"] = json!(uid);
        }
        if metadata["creationTimestamp"].is_null() {
            metadata["creationTimestamp"] = json!(admit::now());
        }
        if !resource.group.is_empty() && metadata["generation"].is_null() {
            metadata["generation"] = json!(1);
        }
        admit::fill_in(resource, object, || {
            state.next_cluster_ip += 1;
            std::net::Ipv4Addr::from(0x0a60_0000 + state.next_cluster_ip).to_string()
        });
    }

    fn insert(
        &self,
        state: &mut State,
        resource: &'static Resource,
        mut object: Value,
    ) -> Arc<Object> {
        self.complete(state, resource, &mut object);
        state.version += 1;
        let now = Arc::new(Object::new(state.version, object));
        let change = Change::new(None, now.clone(), false);
        state.table(resource).record(change, self.history);
        now
    }

    fn replace(
        &self,
        state: &mut State,
        resource: &'static Resource,
        current: &Arc<Object>,
        mut wanted: Value,
        dry_run: bool,
    ) -> Arc<Object> {
        let before = current.value();
        for field in ["uid", "creationTimestamp", "name", "namespace", "generation"] {
            match &before["metadata"][field] {
                Value::Null => {}
                kept => wanted["metadata"][field] = kept.clone(),
            }
        }
        admit::fill_in(resource, &mut wanted, || {
            let ip = text(&before, "/spec/clusterIP");
            ip.unwrap_or_default().to_owned()
        });
        if let Some(generation) = before["metadata"]["generation"].as_u64()
            && differs_beyond_metadata(&before, &wanted)
        {
            wanted["metadata"]["generation"] = json!(generation + 1);
        }
        let unchanged = Object::new(current.version, wanted.clone());
        if dry_run || unchanged == **current {
            return Arc::new(unchanged);
        }
        state.version += 1;
        let now = Arc::new(Object::new(state.version, wanted));
        let change = Change::new(Some(current.clone()), now.clone(), false);
        state.table(resource).record(change, self.history);
        now
    }

    fn remove(
        &self,
        state: &mut State,
        resource: &'static Resource,
        current: &Arc<Object>,
    ) -> Arc<Object> {
        state.version += 1;
        let now = Arc::new(current.at_version(state.version));
        let change = Change::new(Some(current.clone()), now.clone(), true);
        state.table(resource).record(change, self.history);
        now
    }

    fn empty_namespace(&self, state: &mut State, namespace: &str) {
        for resource in RESOURCES.iter().filter(|resource| resource.namespaced) {
            let inside: Vec<_> = state
                .table(resource)
                .objects
                .range(Name::new(namespace, "")..)
                .take_while(|(name, _)| *name.namespace == *namespace)
                .map(|(_, object)| object.clone())
                .collect();
            for object in inside {
                self.remove(state, resource, &object);
            }
        }
    }
}

/// Changes that become visible at once, so that a watcher sends them together.
pub(crate) struct AtOnce<'a> {
    store: &'a Store,
    state: MutexGuard<'a, State>,
}

impl AtOnce<'_> {
    /// Creates or replaces an object in an existing namespace.
    pub(crate) fn put(&mut self, resource: &'static Resource, name: Name, sketch: Arc<dyn Sketch>) {
        self.state.version += 1;
        let version = self.state.version;
        let table = self.state.table(resource);
        let before = table.objects.get(&name).cloned();
        let now = Arc::new(Object::sketched(version, name, sketch));
        table.record(Change::new(before, now, false), self.store.history);
    }

    /// Stores the protobuf encoding of all objects.
    pub(crate) fn keep_protobuf(&self) {
        for (resource, table) in RESOURCES.iter().zip(&self.state.tables) {
            let message =
                Message::named(&resource.api_version(resource.versions[0]), resource.kind);
            for (message, object) in
                message.iter().flat_map(|m| table.objects.values().map(move |o| (m, o)))
            {
                object.keep_protobuf(message);
            }
        }
    }

    /// Deletes an object if it exists.
    pub(crate) fn delete(&mut self, resource: &'static Resource, name: &Name) {
        if let Some(current) = self.state.table(resource).objects.get(name).cloned() {
            self.store.remove(&mut self.state, resource, &current);
        }
    }
}

impl State {
    fn table(&mut self, resource: &Resource) -> &mut Table {
        let index = RESOURCES.iter().position(|row| std::ptr::eq(row, resource));
        &mut self.tables[index.expect("resources are rows of the table")]
    }

    fn has_namespace(&mut self, namespace: &str) -> bool {
        let namespaces = Resource::by_name("namespaces").expect("the table has them");
        self.table(namespaces).objects.contains_key(&Name::new("", namespace))
    }
}

impl Table {
    fn record(&mut self, change: Change, limit: usize) {
        let name = change.now.name.clone();
        if change.deleted {
            self.objects.remove(&name);
        } else {
            self.objects.insert(name, change.now.clone());
        }
        let version = change.now.version;
        self.history.push_back(change);
        // A watcher that is far behind encodes events again, so that they need not be kept in memory.
        if let Some(stale) = self.history.len().checked_sub(DRAWN_MAX + 1) {
            self.history[stale].drawn = Arc::default();
        }
        while self.history.len() > limit {
            if let Some(oldest) = self.history.pop_front() {
                self.compacted = oldest.now.version;
            }
        }
        self.changed.send_replace(version);
    }

    fn forget(&mut self, version: u64) {
        self.history.clear();
        self.compacted = version;
        self.changed.send_replace(version);
    }

    /// Returns the objects right after `version`, by reverting later changes, newest first.
    fn rolled_back_to(&self, version: u64) -> BTreeMap<Name, Arc<Object>> {
        let mut objects = self.objects.clone();
        for change in self.history.iter().rev().take_while(|c| c.now.version > version) {
            match &change.before {
                Some(before) => objects.insert(before.name.clone(), before.clone()),
                None => objects.remove(&change.now.name),
            };
        }
        objects
    }
}

/// Returns the text at a JSON pointer. Empty text is treated as absent, as in Kubernetes.
pub(crate) fn text<'a>(value: &'a Value, pointer: &str) -> Option<&'a str> {
    value.pointer(pointer)?.as_str().filter(|text| !text.is_empty())
}

fn differs_beyond_metadata(a: &Value, b: &Value) -> bool {
    let content = |value: &Value| {
        let mut value = value.clone();
        if let Some(fields) = value.as_object_mut() {
            for field in ["metadata", "status", "kind", "apiVersion"] {
                fields.remove(field);
            }
        }
        value
    };
    content(a) != content(b)
}

/// Returns a UUID that is derived from its parts, so that a world has the same UIDs in every run.
pub(crate) fn uid(parts: &[&str], nonce: u64) -> String {
    let bytes = parts.iter().flat_map(|part| part.bytes().chain([0])).chain(nonce.to_be_bytes());
    // FNV-1a, 128 bits.
    let hash = bytes.fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128, |hash, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    });
    let hex = format!("{hash:032x}");
    format!("{}-{}-4{}-8{}-{}", &hex[..8], &hex[8..12], &hex[13..16], &hex[17..20], &hex[20..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config_map(name: &str, value: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"k": value}})
    }

    fn config_maps() -> &'static Resource {
        Resource::by_name("cm").expect("a row")
    }

    fn names(page: &Page) -> Vec<&str> {
        page.objects.iter().map(|object| &*object.name.name).collect()
    }

    #[test]
    fn list_at_an_exact_version_shows_its_objects() {
        let store = Store::new("c1", 100);
        for name in ["a", "b", "c"] {
            store.apply(config_map(name, "1")).expect("valid");
        }
        let version = store.version();
        store.delete("cm", "default", "b").expect("there");
        store.apply(config_map("d", "1")).expect("valid");
        store.apply(config_map("a", "2")).expect("valid");
        let all = Selector::default();
        let then = store.list(config_maps(), &all, At::Exact(version), None, None).expect("kept");
        assert_eq!(names(&then), ["a", "b", "c"]);
        assert_eq!(then.objects[0].value()["data"]["k"], "1");
        let now = store.list(config_maps(), &all, At::Now, None, None).expect("now");
        assert_eq!(names(&now), ["a", "c", "d"]);
    }

    #[test]
    fn equal_content_does_not_change_the_version() {
        let store = Store::new("c1", 100);
        store.apply(config_map("a", "1")).expect("valid");
        let version = store.version();
        store.apply(config_map("a", "1")).expect("valid");
        assert_eq!(store.version(), version);
    }

    #[test]
    fn removed_history_is_reported() {
        let store = Store::new("c1", 2);
        let start = store.version();
        for value in ["1", "2", "3"] {
            store.apply(config_map("a", value)).expect("valid");
        }
        assert_eq!(
            store.changes(config_maps(), start, 10).map(|_| ()).map_err(|e| e.code),
            Err(410)
        );
        let (changes, seen) = store.changes(config_maps(), start + 1, 10).expect("kept");
        assert_eq!((changes.len(), seen), (2, store.version()));
    }

    #[test]
    fn compaction_expires_earlier_versions() {
        let store = Store::new("c1", 100);
        let before = store.version();
        store.compact();
        assert!(store.changes(config_maps(), before, 10).is_err());
        assert!(store.changes(config_maps(), store.version(), 10).is_ok());
    }

    #[test]
    fn deleting_a_namespace_deletes_its_content() {
        let store = Store::new("c1", 100);
        let mut inside = config_map("a", "1");
        inside["metadata"]["namespace"] = json!("shop");
        store.apply(inside).expect("valid");
        store.delete("ns", "", "shop").expect("there");
        assert!(store.all("cm").is_empty());
    }

    #[test]
    fn same_identity_gives_the_same_kube_system_uid() {
        let uid = |identity| {
            Store::new(identity, 1)
                .get("ns", "", "kube-system")
                .map(|o| o.value()["metadata"]["uid"].clone())
        };
        assert_eq!(uid("c1"), uid("c1"));
        assert_ne!(uid("c1"), uid("c2"));
    }
}
