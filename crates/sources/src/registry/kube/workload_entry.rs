//! `WorkloadEntry`s of the cluster, if their kind is installed: machines that belong to it.
//!
//! They are stored unchanged. They are interpreted together with the config cluster's.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::index::{
    IndexChanges, Indexed, IndexedKind, IndexedObject, KubeIndex, ReadKind, missing_names,
    workload_key,
};
use super::scope::Scope;
use strait_kube_client::{Form, Identity, Meta, NamespacedName, Pairs, null_as_default};

/// The decoded part of a WorkloadEntry.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct EntryForm<'a> {
    #[serde(borrow, deserialize_with = "null_as_default")]
    metadata: Meta<'a>,
    spec: Value,
    status: Value,
}

/// The stored part of a WorkloadEntry.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct WorkloadEntryRecord(Arc<Value>);

impl WorkloadEntryRecord {
    /// Returns the stored value.
    pub(super) fn value(&self) -> &Value {
        &self.0
    }
}

impl<'a> Form<'a> for EntryForm<'a> {
    fn identity(&self) -> Identity<'_> {
        self.metadata.identity()
    }
}

impl ReadKind for WorkloadEntryRecord {
    type Form<'a> = EntryForm<'a>;
    type List = Vec<IndexedObject<Self>>;

    const PROTOBUF: bool = false;

    fn convert(form: EntryForm<'_>, scope: &Scope) -> IndexedObject<Self> {
        let EntryForm { metadata, spec, status } = form;
        let key = scope.key(metadata.identity());
        let map = |pairs: Pairs<'_>| -> Map<String, Value> {
            let sorted = pairs.sorted().into_iter();
            sorted.map(|(name, value)| (name.to_string(), Value::from(&*value))).collect()
        };
        // Versions and managed fields change without changing the meaning.
        let object = json!({
            "metadata": {
                "name": *key.name,
                "namespace": *key.namespace,
                "labels": map(metadata.labels),
                "annotations": map(metadata.annotations),
            },
            "spec": spec,
            "status": status,
        });
        IndexedObject { key, value: Some(Self(Arc::new(object))), invalid: None }
    }
}

impl Indexed for WorkloadEntryRecord {
    const KIND: IndexedKind = IndexedKind::WorkloadEntries;

    fn put(self, key: NamespacedName, index: &mut KubeIndex, touched: &mut IndexChanges) {
        index.note_entry(workload_key(&key), Some(self.0), touched);
    }

    fn remove(key: &NamespacedName, index: &mut KubeIndex, touched: &mut IndexChanges) {
        index.note_entry(workload_key(key), None, touched);
    }

    fn replace(
        list: Vec<IndexedObject<Self>>,
        namespace: Option<&Arc<str>>,
        index: &mut KubeIndex,
        touched: &mut IndexChanges,
    ) {
        let gone = missing_names(index.entries(), &list);
        index.exchange(gone, list, namespace, touched);
    }
}
