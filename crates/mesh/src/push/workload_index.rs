//! An index of streams by the workloads of their proxies. It finds the streams for a change to
//! certain workloads, selected by namespace or labels, without a scan of all streams.
//!
//! The index stores the last known namespace and labels of each stream's workload. The result may
//! contain too many streams but never lacks one: labels are stored as hashes, and a stream whose
//! labels are unverified, or whose workload is unknown, is always included.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::BuildHasher;

use super::numbers::{insert, remove};
use strait_model::{Labels, Namespace};
use strait_rules::access::{ConcernedWorkloads, WorkloadSelection};

/// The index; see the module's documentation.
#[derive(Debug, Default)]
pub(super) struct StreamsByWorkload {
    hasher: RandomState,
    /// The workload of each stream, by stream number.
    places: BTreeMap<u32, WorkloadPlace>,
    /// Streams whose workload is not known yet.
    unplaced: BTreeSet<u32>,
    by_namespace: BTreeMap<Namespace, NamespaceStreams>,
    /// Streams by the hash of a label with its value; each list is sorted and not empty.
    by_label: HashMap<u32, Vec<u32>>,
}

/// The streams of a namespace, sorted.
#[derive(Debug, Default)]
struct NamespaceStreams {
    all: Vec<u32>,
    /// The streams with unverified labels. Selectors never exclude these.
    claiming: Vec<u32>,
}

/// The workload of a stream.
#[derive(Debug, PartialEq, Eq)]
struct WorkloadPlace {
    namespace: Namespace,
    /// Hashes of the labels, sorted; `None` if the labels are unverified.
    labels: Option<Box<[u32]>>,
}

impl StreamsByWorkload {
    /// Adds a stream whose workload is unknown.
    pub(super) fn enter(&mut self, stream: u32) {
        self.unplaced.insert(stream);
    }

    /// Removes a stream.
    pub(super) fn leave(&mut self, stream: u32) {
        self.unplaced.remove(&stream);
        if let Some(place) = self.places.remove(&stream) {
            self.forget(stream, &place);
        }
    }

    /// Sets the workload of a stream; `labels` is `None` if the labels are unverified.
    pub(super) fn place(&mut self, stream: u32, namespace: &Namespace, labels: Option<&Labels>) {
        let place = WorkloadPlace {
            namespace: namespace.clone(),
            labels: labels.map(|labels| self.hashes(labels)),
        };
        if self.places.get(&stream) == Some(&place) {
            return;
        }
        self.leave(stream);
        let own = self.by_namespace.entry(namespace.clone()).or_default();
        insert(&mut own.all, stream);
        match &place.labels {
            None => insert(&mut own.claiming, stream),
            Some(labels) => {
                for label in labels {
                    insert(self.by_label.entry(*label).or_default(), stream);
                }
            }
        }
        self.places.insert(stream, place);
    }

    /// Returns the streams that a change to these workloads may affect; sorted, without duplicates.
    pub(super) fn concerned(&self, workloads: &ConcernedWorkloads) -> Vec<u32> {
        let mut found: Vec<u32> = self.unplaced.iter().copied().collect();
        for selection in workloads.iter() {
            self.select(selection, &mut found);
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Returns the streams of these namespaces, and streams with an unknown workload; sorted,
    /// without duplicates.
    pub(super) fn in_namespaces(&self, namespaces: &BTreeSet<Namespace>) -> Vec<u32> {
        let own = namespaces.iter().filter_map(|namespace| self.by_namespace.get(namespace));
        let mut found: Vec<u32> = own.flat_map(|own| &own.all).copied().collect();
        found.extend(&self.unplaced);
        found.sort_unstable();
        found
    }

    fn select(&self, selection: &WorkloadSelection, found: &mut Vec<u32>) {
        let WorkloadSelection { namespace, labels } = selection;
        let namespace_streams =
            namespace.as_ref().map(|namespace| self.by_namespace.get(namespace));
        let namespaces: Vec<&NamespaceStreams> = match namespace_streams {
            Some(own) => own.into_iter().collect(),
            None => self.by_namespace.values().collect(),
        };
        if labels.is_empty() {
            found.extend(namespaces.iter().flat_map(|own| &own.all));
            return;
        }
        found.extend(namespaces.iter().flat_map(|own| &own.claiming));
        let label_hashes = self.hashes(labels);
        let lists: Option<Vec<_>> =
            label_hashes.iter().map(|label| self.by_label.get(label)).collect();
        // If a label has no list, no stream has it.
        let rarest = lists.into_iter().flatten().min_by_key(|list| list.len());
        let has_all = |stream: &&u32| {
            let Some(place) = self.places.get(*stream) else { return false };
            namespace.as_ref().is_none_or(|namespace| place.namespace == *namespace)
                && place.labels.as_ref().is_some_and(|own| {
                    label_hashes.iter().all(|label| own.binary_search(label).is_ok())
                })
        };
        found.extend(rarest.into_iter().flatten().filter(has_all));
    }

    fn hashes(&self, labels: &Labels) -> Box<[u32]> {
        let hash = |label: (&_, &_)| {
            let hash: u64 = self.hasher.hash_one(label);
            // Half of the hash is sufficient: a collision only adds a stream to the result.
            u32::try_from(hash >> 32).expect("32 bits are left")
        };
        let mut hashes: Vec<u32> = labels.iter().map(hash).collect();
        hashes.sort_unstable();
        hashes.dedup();
        hashes.into()
    }

    fn forget(&mut self, stream: u32, place: &WorkloadPlace) {
        if let Some(own) = self.by_namespace.get_mut(&place.namespace) {
            remove(&mut own.all, stream);
            remove(&mut own.claiming, stream);
            if own.all.is_empty() {
                self.by_namespace.remove(&place.namespace);
            }
        }
        for label in place.labels.iter().flatten() {
            if let Some(streams) = self.by_label.get_mut(label) {
                remove(streams, stream);
                if streams.is_empty() {
                    self.by_label.remove(label);
                }
            }
        }
    }

    /// Returns whether the index is empty.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
            && self.unplaced.is_empty()
            && self.by_namespace.is_empty()
            && self.by_label.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strait_model::testing::labels;

    fn index() -> StreamsByWorkload {
        let mut index = StreamsByWorkload::default();
        let placed = [
            (1, "shop", Some(labels(&[("app", "web"), ("version", "v1")]))),
            (2, "shop", Some(labels(&[("app", "web"), ("version", "v2")]))),
            (3, "shop", Some(labels(&[]))),
            (4, "pay", Some(labels(&[("app", "web"), ("version", "v1")]))),
            (5, "pay", None),
        ];
        for stream in 1..=6 {
            index.enter(stream);
        }
        for (stream, namespace, labels) in &placed {
            index.place(*stream, &(*namespace).into(), labels.as_ref());
        }
        index
    }

    fn found(
        index: &StreamsByWorkload,
        namespace: Option<&str>,
        selector: &[(&str, &str)],
    ) -> Vec<u32> {
        let namespace = namespace.map(Namespace::from);
        let selection = WorkloadSelection { namespace, labels: labels(selector) };
        index.concerned(&[selection].into_iter().collect())
    }

    /// The workload of stream 6 is unknown, and stream 5 may have any labels.
    #[test]
    fn streams_are_found_by_namespace_and_by_all_labels_of_a_selector() {
        let index = index();
        let web = [("app", "web")];
        let first = [("app", "web"), ("version", "v1")];
        for (namespace, selector, expected) in [
            (None, &[][..], &[1, 2, 3, 4, 5, 6][..]),
            (Some("shop"), &[], &[1, 2, 3, 6]),
            (Some("elsewhere"), &[], &[6]),
            (Some("shop"), &web, &[1, 2, 6]),
            (Some("shop"), &first, &[1, 6]),
            (None, &first, &[1, 4, 5, 6]),
            (Some("pay"), &web, &[4, 5, 6]),
            (Some("pay"), &[("app", "none")], &[5, 6]),
        ] {
            assert_eq!(found(&index, namespace, selector), expected, "{namespace:?} {selector:?}");
        }
        assert_eq!(
            index.concerned(&ConcernedWorkloads::default()),
            [6],
            "a stream with an unknown workload"
        );
    }

    #[test]
    fn stream_is_found_by_its_current_workload_and_removed_completely() {
        let mut index = index();
        index.place(1, &"shop".into(), Some(&labels(&[("app", "db")])));
        index.place(6, &"shop".into(), None);
        assert_eq!(found(&index, Some("shop"), &[("app", "web")]), [2, 6]);
        assert_eq!(found(&index, Some("shop"), &[("app", "db")]), [1, 6]);
        index.place(6, &"shop".into(), Some(&labels(&[("app", "web")])));
        assert_eq!(found(&index, Some("shop"), &[("app", "db")]), [1]);
        (1..=6).for_each(|stream| index.leave(stream));
        assert!(index.is_empty(), "{index:?}");
    }
}
