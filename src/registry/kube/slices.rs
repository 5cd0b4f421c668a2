//! The EndpointSlices of a cluster, and which of them depend on what.
//!
//! Slices have numbers while they are here. What a slice names is kept as a hash with the slice's
//! number: 8 bytes for a pod, where its name would be ten times that. Two names with one hash cost a
//! look at a slice that has not changed, never a wrong answer.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use xxhash_rust::xxh3::xxh3_64;

use super::endpoint_slice::Slice;
use crate::apiserver::Key;

/// What a slice depends on besides itself and its service.
#[derive(Debug, Clone, Copy)]
pub(super) enum Reference<'a> {
    /// A pod it names, by namespace and name.
    Pod(&'a str, &'a str),
    /// An address for which it names no pod, and its namespace.
    Address(&'a str, IpAddr),
}

/// The slices of a cluster.
#[derive(Debug, Default)]
pub(super) struct Slices {
    numbers: BTreeMap<Key, u32>,
    /// By number. The numbers of those that are gone are given again.
    slots: Vec<Option<(Key, Slice)>>,
    free: Vec<u32>,
    of_service: BTreeMap<Key, Vec<u32>>,
    /// The hashes of what slices name, each with the number of the slice.
    named: BTreeSet<(u32, u32)>,
}

impl Slices {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }

    /// The keys of all.
    pub(super) fn keys(&self) -> impl Iterator<Item = &Key> {
        self.numbers.keys()
    }

    /// The slice of this key.
    pub(super) fn get(&self, key: &Key) -> Option<&Slice> {
        self.slot(*self.numbers.get(key)?).map(|(_, slice)| slice)
    }

    /// The slices of a service, in order of their keys.
    pub(super) fn of_service(&self, service: &Key) -> impl Iterator<Item = &Slice> {
        let numbers = self.of_service.get(service).into_iter().flatten();
        let mut slices: Vec<&(Key, Slice)> =
            numbers.filter_map(|number| self.slot(*number)).collect();
        slices.sort_by(|(a, _), (b, _)| a.cmp(b));
        slices.into_iter().map(|(_, slice)| slice)
    }

    /// The slices that name something, and perhaps others.
    pub(super) fn that_name(&self, reference: Reference<'_>) -> impl Iterator<Item = &Slice> {
        let hash = hash(reference);
        let entries = self.named.range((hash, 0)..=(hash, u32::MAX));
        entries.filter_map(|(_, number)| self.slot(*number)).map(|(_, slice)| slice)
    }

    /// The slices that name a node. All are looked through: a node that moves is rare, and their names
    /// would take as much as those of all pods.
    pub(super) fn on_node(&self, name: &str) -> impl Iterator<Item = &Slice> {
        let slices = self.slots.iter().flatten().map(|(_, slice)| slice);
        slices.filter(move |slice| {
            let mut nodes = slice.members.iter().filter_map(|member| member.node.as_ref());
            nodes.any(|node| ***node == *name)
        })
    }

    /// Puts a slice in the place of the one of that key, and returns that.
    pub(super) fn insert(&mut self, key: Key, slice: Slice) -> Option<Slice> {
        let old = self.remove(&key);
        let number = self.free.pop().or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).ok()
        });
        // More than four billion slices don't fit in memory.
        let number = number?;
        self.named.extend(references(&slice).map(|reference| (hash(reference), number)));
        self.of_service.entry(slice.service.clone()).or_default().push(number);
        self.numbers.insert(key.clone(), number);
        if let Some(slot) = self.slots.get_mut(place(number)) {
            *slot = Some((key, slice));
        }
        old
    }

    /// Takes a slice out.
    pub(super) fn remove(&mut self, key: &Key) -> Option<Slice> {
        let number = self.numbers.remove(key)?;
        let (_, slice) = self.slots.get_mut(place(number))?.take()?;
        self.free.push(number);
        for reference in references(&slice) {
            self.named.remove(&(hash(reference), number));
        }
        if let Some(numbers) = self.of_service.get_mut(&slice.service) {
            numbers.retain(|one| *one != number);
            if numbers.is_empty() {
                self.of_service.remove(&slice.service);
            }
        }
        Some(slice)
    }

    /// Whether no trace of any slice is left.
    #[cfg(test)]
    pub(super) fn is_bare(&self) -> bool {
        self.numbers.is_empty()
            && self.slots.iter().all(Option::is_none)
            && self.free.len() == self.slots.len()
            && self.of_service.is_empty()
            && self.named.is_empty()
    }

    fn slot(&self, number: u32) -> Option<&(Key, Slice)> {
        self.slots.get(place(number))?.as_ref()
    }
}

fn place(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn references(slice: &Slice) -> impl Iterator<Item = Reference<'_>> {
    let namespace = &*slice.service.namespace;
    slice.members.iter().map(move |member| {
        slice
            .pod_of(member)
            .map_or(Reference::Address(namespace, member.address), |(namespace, name)| {
                Reference::Pod(namespace, name)
            })
    })
}

/// The lower half of 64 bits.
fn hash(reference: Reference<'_>) -> u32 {
    let of = |bytes: &[u8]| xxh3_64(bytes);
    let hash = match reference {
        Reference::Pod(namespace, name) => {
            of(namespace.as_bytes()).rotate_left(1) ^ of(name.as_bytes())
        }
        Reference::Address(namespace, IpAddr::V4(address)) => {
            of(namespace.as_bytes()).rotate_left(2) ^ of(&address.octets())
        }
        Reference::Address(namespace, IpAddr::V6(address)) => {
            of(namespace.as_bytes()).rotate_left(2) ^ of(&address.octets())
        }
    };
    u32::try_from(hash & u64::from(u32::MAX)).unwrap_or_default()
}
