//! A map for few entries, in one allocation of the exact size.
//!
//! A `BTreeMap` of two labels takes 364 bytes, and there are two such maps per service and cluster;
//! here they take 64. A look-up is a binary search, an insertion copies all entries. Use it for
//! values that are built once and then read.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Rebuilds a tree that will change little, to make it compact. After insertion in key order, its
/// nodes are half full, because each was split when it was full. After rebuilding, they are full.
pub fn repack<K: Ord, V>(map: &mut BTreeMap<K, V>) {
    *map = std::mem::take(map).into_iter().collect();
}

/// Reorders sorted items so that inserting them fills a tree of imbl well: every second item first,
/// then the others. With insertion in key order, each node is split when it is full, and its first
/// half stays half empty. With this order, the later items fill the gaps.
pub fn filling<T>(sorted: impl IntoIterator<Item = T>) -> impl Iterator<Item = T> {
    let (mut even, mut odd) = (Vec::new(), Vec::new());
    for (at, entry) in sorted.into_iter().enumerate() {
        if at % 2 == 0 { &mut even } else { &mut odd }.push(entry);
    }
    even.into_iter().chain(odd)
}

/// A map as an array of entries, sorted by key.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SortedMap<K, V>(Box<[(K, V)]>);

impl<K: Ord, V> SortedMap<K, V> {
    /// Creates an empty map.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether the map is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the value for `key`.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.get_key_value(key).map(|(_, value)| value)
    }

    /// Returns the entry for `key`.
    pub fn get_key_value<Q: Ord + ?Sized>(&self, key: &Q) -> Option<(&K, &V)>
    where
        K: Borrow<Q>,
    {
        let at = self.0.binary_search_by(|(existing, _)| existing.borrow().cmp(key)).ok()?;
        self.0.get(at).map(|(key, value)| (key, value))
    }

    /// Returns whether the map contains `key`.
    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.get(key).is_some()
    }

    /// Inserts a value, replacing an existing one for `key`. Copies all entries.
    pub fn insert(&mut self, key: K, value: V) {
        let mut entries = std::mem::take(&mut self.0).into_vec();
        match entries.binary_search_by(|(existing, _)| existing.cmp(&key)) {
            Ok(at) => entries[at].1 = value,
            Err(at) => entries.insert(at, (key, value)),
        }
        self.0 = entries.into();
    }

    /// Returns the entries, sorted by key.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&K, &V)> + Clone {
        self.0.iter().map(|(key, value)| (key, value))
    }

    /// Returns the sorted keys.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &K> {
        self.0.iter().map(|(key, _)| key)
    }

    /// Returns the values, sorted by key.
    pub fn values(&self) -> impl ExactSizeIterator<Item = &V> {
        self.0.iter().map(|(_, value)| value)
    }
}

impl<K, V> Default for SortedMap<K, V> {
    fn default() -> Self {
        Self(Box::default())
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for SortedMap<K, V> {
    /// Of several entries with the same key, the last is used.
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut entries: Vec<(K, V)> = entries.into_iter().collect();
        entries.sort_by(|(a, _), (b, _)| a.cmp(b));
        entries.dedup_by(|next, previous| {
            let is_duplicate = next.0 == previous.0;
            if is_duplicate {
                std::mem::swap(next, previous);
            }
            is_duplicate
        });
        Self(entries.into())
    }
}

impl<K: Ord, V, const N: usize> From<[(K, V); N]> for SortedMap<K, V> {
    fn from(entries: [(K, V); N]) -> Self {
        entries.into_iter().collect()
    }
}

impl<K: fmt::Debug + Ord, V: fmt::Debug> fmt::Debug for SortedMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<K: Serialize + Ord, V: Serialize> Serialize for SortedMap<K, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de, K: Deserialize<'de> + Ord, V: Deserialize<'de>> Deserialize<'de> for SortedMap<K, V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<K, V>(PhantomData<(K, V)>);
        impl<'de, K: Deserialize<'de> + Ord, V: Deserialize<'de>> Visitor<'de> for Entries<K, V> {
            type Value = SortedMap<K, V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(entries.into_iter().collect())
            }
        }
        deserializer.deserialize_map(Entries(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_sorted_and_the_last_of_equal_keys_is_used() {
        let map: SortedMap<&str, i32> = [("b", 1), ("a", 2), ("b", 3), ("b", 4)].into();
        assert_eq!(map.iter().collect::<Vec<_>>(), [(&"a", &2), (&"b", &4)]);
        assert_eq!((map.get("b"), map.get("c"), map.len()), (Some(&4), None, 2));
    }

    #[test]
    fn filling_returns_all_items() {
        assert_eq!(filling(0..5).collect::<Vec<_>>(), [0, 2, 4, 1, 3]);
        assert_eq!(filling([""; 0]).next(), None);
    }

    #[test]
    fn entry_is_inserted_in_order_or_replaced() {
        let mut map = SortedMap::from([("b", 1)]);
        for (key, value) in [("a", 2), ("c", 3), ("b", 4)] {
            map.insert(key, value);
        }
        assert_eq!(map, [("a", 2), ("b", 4), ("c", 3)].into());
    }

    #[test]
    fn it_serializes_as_a_map() {
        let map = SortedMap::from([("a".to_owned(), 1), ("b".to_owned(), 2)]);
        let json = serde_json::to_string(&map).expect("a map of numbers");
        assert_eq!(json, r#"{"a":1,"b":2}"#);
        assert_eq!(serde_json::from_str::<SortedMap<String, i32>>(&json).expect("JSON"), map);
    }
}
