//! The EndpointSlices of a cluster, and the index of their dependencies.
//!
//! Slices have numbers while they are stored. Each reference (name, service, pods and addresses) is
//! stored as a hash with the slice's number. For pods, it is the common part of a set's names: a
//! slice nearly always has one such set, and whether it names a given pod of it is checked in the
//! slice. References with equal hashes cause an unnecessary check of a slice, never a wrong result.

use std::collections::BTreeSet;
use std::net::IpAddr;

use xxhash_rust::xxh3::xxh3_64;

use super::endpoint_slice::Slice;
use strait_kube_client::NamespacedName;
use strait_model::WorkloadRef;

/// A reference by which slices are found.
#[derive(Debug, Clone, Copy)]
pub(super) enum Reference<'a> {
    /// The slice itself.
    Slice(&'a NamespacedName),
    /// The service of the slice.
    Service(&'a NamespacedName),
    /// A pod that the slice names: found by everything except its tail.
    Pod(WorkloadRef<'a>),
    /// An address for which the slice names no pod, and its namespace.
    Address(&'a str, IpAddr),
}

/// The slices of a cluster.
#[derive(Debug, Default)]
pub(super) struct Slices {
    /// By number. Numbers of removed slices are reused.
    slots: Vec<Option<Box<(NamespacedName, Slice)>>>,
    free: Vec<u32>,
    /// The hashes of references, each with the number of the slice.
    named: BTreeSet<(u32, u32)>,
}

impl Slices {
    /// Returns the number of slices.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns all slices with their keys.
    pub(super) fn all(&self) -> impl Iterator<Item = (&NamespacedName, &Slice)> {
        self.slots.iter().flatten().map(|slot| (&slot.0, &slot.1))
    }

    /// Returns the keys of all slices.
    pub(super) fn keys(&self) -> impl Iterator<Item = &NamespacedName> {
        self.slots.iter().flatten().map(|slot| &slot.0)
    }

    /// Returns the slice with this key.
    pub(super) fn get(&self, key: &NamespacedName) -> Option<&Slice> {
        self.slot(self.number(key)?).map(|(_, slice)| slice)
    }

    /// Returns the slices of a service, sorted by key.
    pub(super) fn for_service(&self, service: &NamespacedName) -> impl Iterator<Item = &Slice> {
        let found = self.numbers(Reference::Service(service));
        let found = found.filter_map(|number| self.slot(number));
        let mut slices: Vec<_> = found.filter(|(_, slice)| slice.service == *service).collect();
        slices.sort_by(|(a, _), (b, _)| a.cmp(b));
        slices.into_iter().map(|(_, slice)| slice)
    }

    /// Returns the slices with a reference, and possibly others.
    pub(super) fn naming(&self, reference: Reference<'_>) -> impl Iterator<Item = &Slice> {
        let found = self.numbers(reference).filter_map(|number| self.slot(number));
        let found = found.map(|(_, slice)| slice);
        found.filter(move |slice| match reference {
            Reference::Pod(pod) => slice.names(pod),
            _ => true,
        })
    }

    /// Whether a slice has a reference, or one with the same hash.
    pub(super) fn may_name(&self, reference: Reference<'_>) -> bool {
        self.numbers(reference).next().is_some()
    }

    /// Whether a slice has an address for which it names no pod.
    pub(super) fn name_addresses(&self) -> bool {
        // They have the highest hashes: see [`hash`].
        self.named.last().is_some_and(|(hash, _)| hash >> 30 == 3)
    }

    /// Returns the slices that name a node. Searches all slices: a node rarely moves, and an index
    /// of nodes would take as much memory as that of all pods.
    pub(super) fn on_node(&self, name: &str) -> impl Iterator<Item = &Slice> {
        let slices = self.slots.iter().flatten().map(|slot| &slot.1);
        slices.filter(move |slice| slice.names_node(name))
    }

    /// Inserts a slice. Returns the previous slice with this key.
    pub(super) fn insert(&mut self, key: NamespacedName, slice: Slice) -> Option<Slice> {
        if let Some(number) = self.number(&key) {
            let slot = self.slots.get_mut(place(number))?.as_mut()?;
            let old = std::mem::replace(&mut slot.1, slice);
            // Usually, its references are unchanged.
            if slot.1.names_as(&old) {
                return Some(old);
            }
            let (before, hashes) = (hashes(&key, &old), hashes(&key, &slot.1));
            for hash in before.iter().filter(|hash| hashes.binary_search(hash).is_err()) {
                self.named.remove(&(*hash, number));
            }
            let new = hashes.iter().filter(|hash| before.binary_search(hash).is_err());
            self.named.extend(new.map(|hash| (*hash, number)));
            return Some(old);
        }
        let number = self.free.pop().or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).ok()
        });
        // More than four billion slices do not fit in memory.
        let number = number?;
        self.named.extend(hashes(&key, &slice).into_iter().map(|hash| (hash, number)));
        if let Some(slot) = self.slots.get_mut(place(number)) {
            *slot = Some(Box::new((key, slice)));
        }
        None
    }

    /// Removes a slice.
    pub(super) fn remove(&mut self, key: &NamespacedName) -> Option<Slice> {
        let number = self.number(key)?;
        let (_, slice) = *self.slots.get_mut(place(number))?.take()?;
        self.free.push(number);
        for hash in hashes(key, &slice) {
            self.named.remove(&(hash, number));
        }
        Some(slice)
    }

    /// Compacts the tables after they were filled: see [`strait_model::repack`].
    pub(super) fn repack(&mut self) {
        self.slots.shrink_to_fit();
        self.named = std::mem::take(&mut self.named).into_iter().collect();
    }

    /// Whether no state of any slice is left.
    #[cfg(test)]
    pub(super) fn is_bare(&self) -> bool {
        self.len() == 0 && self.slots.iter().all(Option::is_none) && self.named.is_empty()
    }

    fn number(&self, key: &NamespacedName) -> Option<u32> {
        let is_it =
            |number: &u32| self.slot(*number).is_some_and(|(stored_key, _)| stored_key == key);
        self.numbers(Reference::Slice(key)).find(is_it)
    }

    fn numbers(&self, reference: Reference<'_>) -> impl Iterator<Item = u32> {
        let hash = hash(reference);
        self.named.range((hash, 0)..=(hash, u32::MAX)).map(|(_, number)| *number)
    }

    fn slot(&self, number: u32) -> Option<&(NamespacedName, Slice)> {
        self.slots.get(place(number))?.as_deref()
    }
}

fn place(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// Returns the hashes of all references of a slice, sorted and unique.
fn hashes(key: &NamespacedName, slice: &Slice) -> Vec<u32> {
    let namespace = &*slice.service.namespace;
    let own = [Reference::Slice(key), Reference::Service(&slice.service)];
    let sets = slice.sets().map(Reference::Pod);
    let unnamed = slice.unnamed().map(|address| Reference::Address(namespace, address));
    let mut hashes: Vec<u32> = own.into_iter().chain(sets).chain(unnamed).map(hash).collect();
    hashes.sort_unstable();
    hashes.dedup();
    hashes
}

/// Returns the hash of a reference: two bits for its type, then thirty bits.
pub(super) fn hash(reference: Reference<'_>) -> u32 {
    let hash_bytes = |bytes: &[u8]| xxh3_64(bytes);
    let hash_key = |key: &NamespacedName| {
        hash_bytes(key.namespace.as_bytes()).rotate_left(1) ^ hash_bytes(key.name.as_bytes())
    };
    let (kind, hash) = match reference {
        Reference::Slice(key) => (0, hash_key(key)),
        Reference::Service(key) => (1, hash_key(key)),
        Reference::Pod(WorkloadRef { namespace, stem, .. }) => (
            2,
            hash_bytes(namespace.as_str().as_bytes()).rotate_left(1) ^ hash_bytes(stem.as_bytes()),
        ),
        Reference::Address(namespace, IpAddr::V4(address)) => {
            (3, hash_bytes(namespace.as_bytes()).rotate_left(1) ^ hash_bytes(&address.octets()))
        }
        Reference::Address(namespace, IpAddr::V6(address)) => {
            (3, hash_bytes(namespace.as_bytes()).rotate_left(1) ^ hash_bytes(&address.octets()))
        }
    };
    kind << 30 | u32::try_from(hash & 0x3fff_ffff).unwrap_or_default()
}
