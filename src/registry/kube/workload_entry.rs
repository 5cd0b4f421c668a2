//! `WorkloadEntry`s of the cluster, where their kind is installed: machines that belong to it.
//!
//! They are kept as they are. What they mean is decided where those of the config cluster are read.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::index::{Index, Indexed, Kept, Kind, Reads, Touched, missing_names, name_of};
use super::scope::Scope;
use crate::apiserver::{Form, Identity, Key, Meta, Pairs, null_as_default};

/// What is decoded of a WorkloadEntry.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct EntryForm<'a> {
    #[serde(borrow, deserialize_with = "null_as_default")]
    metadata: Meta<'a>,
    spec: Value,
    status: Value,
}

/// What is kept of it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entry(Arc<Value>);

impl Entry {
    /// As it is stored.
    pub(super) fn value(&self) -> &Value {
        &self.0
    }
}

impl<'a> Form<'a> for EntryForm<'a> {
    fn identity(&self) -> Identity<'_> {
        self.metadata.identity()
    }
}

impl Reads for Entry {
    type Form<'a> = EntryForm<'a>;
    type List = Vec<Kept<Self>>;

    const PROTOBUF: bool = false;

    fn keep(form: EntryForm<'_>, scope: &Scope) -> Kept<Self> {
        let EntryForm { metadata, spec, status } = form;
        let key = scope.key(metadata.identity());
        let map = |pairs: Pairs<'_>| -> Map<String, Value> {
            let sorted = pairs.sorted().into_iter();
            sorted.map(|(name, value)| (name.to_string(), Value::from(&*value))).collect()
        };
        // Versions, and who manages which field, change without meaning.
        let kept = json!({
            "metadata": {
                "name": *key.name,
                "namespace": *key.namespace,
                "labels": map(metadata.labels),
                "annotations": map(metadata.annotations),
            },
            "spec": spec,
            "status": status,
        });
        Kept { key, value: Some(Self(Arc::new(kept))), odd: None }
    }
}

impl Indexed for Entry {
    const KIND: Kind = Kind::WorkloadEntries;

    fn put(self, key: Key, index: &mut Index, touched: &mut Touched) {
        index.note_entry(name_of(&key), Some(self.0), touched);
    }

    fn remove(key: &Key, index: &mut Index, touched: &mut Touched) {
        index.note_entry(name_of(key), None, touched);
    }

    fn replace(list: Vec<Kept<Self>>, index: &mut Index, touched: &mut Touched) {
        let gone = missing_names(index.entries(), &list);
        index.exchange(gone, list, touched);
    }
}
