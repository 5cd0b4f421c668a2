//! Objects of the mesh configuration of all kinds, as they are stored.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use imbl::OrdMap;
use imbl::ordmap::DiffItem;
use serde_json::Value;

use super::object_json::ObjectJson;
use super::sorted::filling;

/// The identity of an object, independent of the API version.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// The kind.
    pub kind: Arc<str>,
    /// The API group.
    pub group: Arc<str>,
    /// The namespace; empty for objects that have none.
    pub namespace: Arc<str>,
    /// The name.
    pub name: Arc<str>,
}

impl ObjectKey {
    /// Returns the key of an object, or `None` if it has no name or kind.
    pub fn of(object: &Value) -> Option<Self> {
        let text = |path| object.pointer(path).and_then(Value::as_str);
        let group = text("/apiVersion")?.split_once('/').map_or("", |(group, _)| group);
        Some(Self {
            kind: text("/kind")?.into(),
            group: group.into(),
            namespace: text("/metadata/namespace").unwrap_or_default().into(),
            name: text("/metadata/name")?.into(),
        })
    }

    /// Shares equal texts with another key, to save memory.
    fn sharing(self, other: &Self) -> Self {
        let share = |text: Arc<str>, shared: &Arc<str>| {
            if text == *shared { Arc::clone(shared) } else { text }
        };
        Self {
            kind: share(self.kind, &other.kind),
            group: share(self.group, &other.group),
            namespace: share(self.namespace, &other.namespace),
            name: self.name,
        }
    }
}

impl fmt::Display for ObjectKey {
    /// Formats the key as `ServiceEntry shop/db`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
    }
}

/// The keys of the objects in each file.
pub type ObjectFiles = BTreeMap<Arc<str>, Arc<Vec<ObjectKey>>>;

/// The content of a store of objects that is preserved across a restart.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RememberedObjects {
    /// The objects of the store.
    pub objects: Collection,
    /// For a directory, the objects in each file.
    pub files: Arc<ObjectFiles>,
}

/// An invalid object, and its last valid version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastValidObject {
    /// The key of the object.
    pub key: ObjectKey,
    /// The stored, invalid version.
    pub now: ObjectJson,
    /// The last valid version, which applies.
    pub good: ObjectJson,
}

/// A set of objects with unique keys. Clones share all data, and comparing two collections that
/// were cloned from each other costs only the differences.
///
/// A key shares its texts with its neighbour's key and is one allocation. So each collection that
/// contains an object stores 8 bytes for its key instead of 64, in tree nodes that are half empty.
#[derive(Clone, Default)]
pub struct Collection(OrdMap<Arc<ObjectKey>, ObjectJson>);

/// An object that differs between two collections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Difference<'a> {
    /// The key of the object.
    pub key: &'a ObjectKey,
    /// The current object; `None` if it was removed.
    pub now: Option<&'a ObjectJson>,
}

impl Collection {
    /// Returns the number of objects.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether the collection is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the object with this key.
    pub fn get(&self, key: &ObjectKey) -> Option<&ObjectJson> {
        self.0.get(key)
    }

    /// Returns the shared key of an object, for use in another collection.
    pub fn shared_key(&self, key: &ObjectKey) -> Option<&Arc<ObjectKey>> {
        self.0.get_key_value(key).map(|(key, _)| key)
    }

    /// Returns all objects, sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = (&ObjectKey, &ObjectJson)> {
        self.0.iter().map(|(key, object)| (&**key, object))
    }

    /// Returns all objects without their keys, sorted by key.
    pub fn values(&self) -> impl Iterator<Item = &ObjectJson> {
        self.0.values()
    }

    /// Inserts an object, replacing an existing object with the same key. Does nothing if the
    /// content is equal.
    pub fn insert(&mut self, key: ObjectKey, object: impl Into<ObjectJson>) {
        let object = object.into();
        if self.0.get(&key) != Some(&object) {
            self.insert_key_shared(key, object);
        }
    }

    /// Like [`Self::insert`], with a key that another collection contains.
    pub fn insert_shared(&mut self, key: &Arc<ObjectKey>, object: ObjectJson) {
        if self.0.get(&**key) != Some(&object) {
            self.0.insert(Arc::clone(key), object);
        }
    }

    fn insert_key_shared(&mut self, key: ObjectKey, object: ObjectJson) {
        let key = match self.0.get_prev(&key) {
            Some((neighbour, _)) => key.sharing(neighbour),
            None => key,
        };
        self.0.insert(Arc::new(key), object);
    }

    /// Removes and returns an object.
    pub fn remove(&mut self, key: &ObjectKey) -> Option<ObjectJson> {
        self.0.remove(key)
    }

    /// Returns whether both share the same data: one is an unmodified clone of the other.
    pub fn is(&self, other: &Self) -> bool {
        self.0.ptr_eq(&other.0)
    }

    /// Returns the collection with invalid objects replaced by their last valid versions.
    #[must_use]
    pub fn with_last_valid(&self, last_valid_objects: &[LastValidObject]) -> Self {
        let mut objects = self.clone();
        for LastValidObject { key, now, good } in last_valid_objects {
            // Another store may contain a different object with this key.
            if self.get(key) == Some(now) {
                objects.insert(key.clone(), good.clone());
            }
        }
        objects
    }

    /// Returns the differences from an earlier collection.
    pub fn differences<'a>(&'a self, before: &'a Self) -> impl Iterator<Item = Difference<'a>> {
        before.0.diff(&self.0).map(|item| match item {
            DiffItem::Add(key, now) => Difference { key, now: Some(now) },
            DiffItem::Update { new: (key, now), .. } => Difference { key, now: Some(now) },
            DiffItem::Remove(key, _) => Difference { key, now: None },
        })
    }
}

impl fmt::Debug for Collection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.values()).finish()
    }
}

impl PartialEq for Collection {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.differences(other).next().is_none()
    }
}

impl Eq for Collection {}

impl FromIterator<Arc<Value>> for Collection {
    /// Of several objects with the same key, the first is used. Objects without a key are skipped.
    fn from_iter<T: IntoIterator<Item = Arc<Value>>>(objects: T) -> Self {
        let mut objects_by_key = BTreeMap::new();
        for object in objects {
            if let Some(key) = ObjectKey::of(&object) {
                objects_by_key.entry(key).or_insert_with(|| object.into());
            }
        }
        objects_by_key.into()
    }
}

impl<O: Into<ObjectJson>> FromIterator<(ObjectKey, O)> for Collection {
    /// Of several objects with the same key, the last is used.
    fn from_iter<T: IntoIterator<Item = (ObjectKey, O)>>(objects: T) -> Self {
        let objects_by_key = objects.into_iter().map(|(key, object)| (key, object.into()));
        objects_by_key.collect::<BTreeMap<_, ObjectJson>>().into()
    }
}

impl From<BTreeMap<ObjectKey, ObjectJson>> for Collection {
    fn from(objects: BTreeMap<ObjectKey, ObjectJson>) -> Self {
        let mut collection = Self::default();
        filling(objects).for_each(|(key, object)| collection.insert_key_shared(key, object));
        collection
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(name: &str, spec: u32) -> Arc<Value> {
        let metadata = json!({ "namespace": "shop", "name": name });
        Arc::new(json!({ "apiVersion": "x/v1", "kind": "A", "metadata": metadata, "spec": spec }))
    }

    #[test]
    fn differences_are_found_and_equal_content_is_unchanged() {
        let before: Collection = ["a", "b", "c"].map(|name| object(name, 1)).into_iter().collect();
        let mut now = before.clone();
        for (name, spec) in [("a", 1), ("b", 2), ("d", 1)] {
            let object = object(name, spec);
            now.insert(ObjectKey::of(&object).expect("a key"), object);
        }
        now.remove(&ObjectKey::of(&object("c", 0)).expect("a key"));
        let differ: Vec<_> = now
            .differences(&before)
            .map(|one| (one.key.to_string(), one.now.map(|now| now.to_value()["spec"].clone())))
            .collect();
        let expected =
            [("A shop/b", Some(json!(2))), ("A shop/c", None), ("A shop/d", Some(json!(1)))];
        assert_eq!(differ, expected.map(|(key, now)| (key.to_owned(), now)));
        assert!(now != before && before == before.clone());
        let last_wins: Collection =
            [object("a", 1), object("a", 2), Arc::new(json!({}))].into_iter().collect();
        assert_eq!(
            last_wins.values().map(|one| one.to_value()["spec"].clone()).collect::<Vec<_>>(),
            [json!(1)]
        );
    }

    #[test]
    fn keys_share_texts_with_neighbours_and_are_shared_by_collections() {
        let all: Collection = [object("a", 1), object("b", 1)].into_iter().collect();
        let keys: Vec<_> = all.iter().map(|(key, _)| key).collect();
        let [a, b] = keys[..] else { panic!("{keys:?}") };
        assert!(Arc::ptr_eq(&a.kind, &b.kind) && Arc::ptr_eq(&a.namespace, &b.namespace));
        let key = all.shared_key(b).expect("it is there");
        let mut other = Collection::default();
        other.insert_shared(key, all.get(b).expect("it is there").clone());
        assert!(other.shared_key(b).is_some_and(|its| Arc::ptr_eq(its, key)));
    }
}
