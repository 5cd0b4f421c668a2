//! Last-known-good: what each source was known to hold, on disk, so that a restart loses nothing.
//!
//! Owns the directory `lkg` of the state directory: a file for each cluster ([`Shard`]), datacentre of
//! Consul ([`Datacentre`]) and store of objects ([`StoredObjects`]), and one for what belongs to none of them
//! ([`Members`]). A file is written beside the old one, synced and renamed; the last few generations stay. What
//! changes is appended to a journal beside the file, until that is as long as the file: then the file is written
//! anew. What can't be proven whole on reading is refused with a reason, and what was written before it is used.
//! Never holds a credential, and never decides what is served: the sources do
//! (docs/decisions/0011-last-known-good.md, docs/decisions/0024-journal.md).

mod codec;
mod delta;
mod files;
mod format;
mod journal;
mod others;
mod writer;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use serde_json::Value;
use tracing::{info, warn};

pub use codec::Malformed;
pub use files::{Refused, Store};
pub use others::{Others, StandIns, Stores};
pub use writer::{Writer, Writes};

use crate::clusters::Remembered;
use crate::codes;
use crate::model::{ClusterFacts, ClusterId, Hostname, Mode, NetworkId, Workloads};
use crate::registry::{Contents, ServiceRecord};
use crate::sources;

/// What the names and identities in a file depend on: with other settings it is not read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// `--domain`.
    pub domain: Arc<str>,
    /// `--trust-domain`.
    pub trust_domain: Arc<str>,
    /// `--namespace`.
    pub system_namespace: Arc<str>,
}

/// What one cluster's registry was known to say.
#[derive(Debug, Clone, PartialEq)]
pub struct Shard {
    /// The cluster.
    pub cluster: ClusterId,
    /// The UID of its `kube-system`, where that was known.
    pub uid: Option<Arc<str>>,
    /// The network that its system namespace named.
    pub network_label: Option<NetworkId>,
    /// Its pods.
    pub workloads: Workloads,
    /// What else it said of itself.
    pub facts: ClusterFacts,
    /// Its services.
    pub services: BTreeMap<Hostname, ServiceRecord>,
}

/// What one datacentre of Consul was known to say.
#[derive(Debug, Clone, PartialEq)]
pub struct Datacentre {
    /// The name of its shard.
    pub name: ClusterId,
    /// Its services.
    pub services: BTreeMap<Hostname, ServiceRecord>,
}

/// The objects of the mesh that one store was known to hold.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredObjects {
    /// The store's name.
    pub store: Arc<str>,
    /// Its objects. No Secret is among them.
    pub objects: Arc<Vec<Arc<Value>>>,
}

/// What was known of the members beside what they hold, and of the mesh.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Members {
    /// The clusters whose contents are kept.
    pub members: BTreeMap<ClusterId, Note>,
    /// When other sources had last answered, by name, in milliseconds since the Unix epoch.
    pub sources: BTreeMap<Arc<str>, u64>,
    /// The data of the mesh's ConfigMap, where there was one.
    pub mesh: Option<BTreeMap<String, String>>,
    /// When the Secrets were made that held the clusters first, in seconds since the Unix epoch.
    pub created: BTreeMap<ClusterId, i64>,
}

/// What was known of a member beside what it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// The Secret that held it, as `namespace/name`; none for the config cluster.
    pub secret: Option<Arc<str>>,
    /// The network that the Secret fixed.
    pub network: Option<NetworkId>,
    /// What an operator had asked for it.
    pub mode: Mode,
    /// When its API server had last answered, in milliseconds since the Unix epoch.
    pub last_contact: Option<u64>,
}

/// What was on disk.
#[derive(Debug, Default)]
pub struct Restored {
    /// The clusters.
    pub clusters: BTreeMap<ClusterId, Remembered>,
    /// The datacentres of Consul, by the name of their shard.
    pub datacentres: BTreeMap<ClusterId, sources::Remembered<BTreeMap<Hostname, ServiceRecord>>>,
    /// The stores of objects, by name.
    pub stores: sources::RememberedStores,
    /// The data of the mesh's ConfigMap, where there was one.
    pub mesh: Option<Arc<BTreeMap<String, String>>>,
    /// Whether there were members, of which nothing is left: their list, or all that they held.
    pub members_lost: bool,
}

impl Restored {
    /// Whether there was nothing.
    pub fn is_empty(&self) -> bool {
        self.clusters.is_empty() && self.datacentres.is_empty() && self.stores.is_empty()
    }

    /// Whether it is enough to go on with while the configuration can't be read: who answered from a state
    /// without its members would withdraw all their endpoints.
    pub fn is_enough(&self) -> bool {
        !self.is_empty() && !self.members_lost
    }
}

/// Opens the directory in `state_dir` and reads what is there. What can't be read is logged, and as
/// good as not there.
pub fn open(state_dir: &Path, origin: Origin) -> (Store, Restored) {
    let began = std::time::Instant::now();
    let mut store = Store::open(&state_dir.join("lkg"), origin);
    let restored = restore(&mut store);
    if !restored.is_empty() {
        let Restored { clusters, datacentres, stores, .. } = &restored;
        let (clusters, datacentres, stores) = (clusters.len(), datacentres.len(), stores.len());
        let took = began.elapsed();
        info!(clusters, datacentres, stores, ?took, "last-known-good state read");
    }
    (store, restored)
}

fn restore(store: &mut Store) -> Restored {
    let (members, _) = store.members();
    let list_lost = members.is_none() && !store.is_empty();
    let Members { mut members, sources, mesh, mut created } = members.unwrap_or_default();
    let mut restored = Restored { mesh: mesh.map(Arc::new), ..Restored::default() };
    let had_members = members.values().any(|note| note.secret.is_some());
    for (shard, refused) in store.read_all::<Shard>() {
        let note = members.remove(&shard.cluster);
        let created = created.remove(&shard.cluster);
        let cluster = shard.cluster.clone();
        restored.clusters.insert(cluster, remembered(shard, note, created, refused));
    }
    for cluster in members.keys() {
        warn!(%cluster, "no file holds what was last known of this cluster");
    }
    let has_members = restored.clusters.values().any(|cluster| cluster.secret.is_some());
    restored.members_lost = list_lost || (had_members && !has_members);
    if restored.members_lost {
        let code = &codes::STATE_DAMAGED;
        let lost = if list_lost { "which members there were" } else { "what any member held" };
        warn!(
            %code,
            "no good file says {lost}: not ready before the configuration has been read. {}",
            code.next
        );
    }
    for (Datacentre { name, services }, refused) in store.read_all() {
        let source = other(&sources, name.as_str(), services, refused);
        restored.datacentres.insert(name, source);
    }
    for (StoredObjects { store, objects }, refused) in store.read_all() {
        let source = other(&sources, &store, objects, refused);
        restored.stores.insert(store, source);
    }
    restored
}

/// What is remembered of a source that is no cluster.
fn other<T>(
    contacts: &BTreeMap<Arc<str>, u64>,
    name: &str,
    held: T,
    refused: Option<Refused>,
) -> sources::Remembered<T> {
    let last_contact = contacts.get(name).copied().and_then(time);
    sources::Remembered { last_contact, remark: refused.as_ref().map(Refused::remark), held }
}

fn time(millis: u64) -> Option<SystemTime> {
    SystemTime::UNIX_EPOCH.checked_add(std::time::Duration::from_millis(millis))
}

fn remembered(
    shard: Shard,
    note: Option<Note>,
    created: Option<i64>,
    refused: Option<Refused>,
) -> Remembered {
    let Shard { uid, network_label, workloads, facts, services, .. } = shard;
    let endpoints = services.values().map(|record| record.endpoints.len()).sum();
    let services: BTreeMap<_, _> =
        services.into_iter().map(|(host, record)| (host, Some(record))).collect();
    let note = note.as_ref();
    Remembered {
        secret: note.and_then(|note| note.secret.clone()),
        network: note.and_then(|note| note.network.clone()),
        created,
        mode: note.map(|note| note.mode).unwrap_or_default(),
        uid: uid.as_deref().map(str::to_owned),
        last_contact: note.and_then(|note| note.last_contact).and_then(time),
        services: services.len(),
        endpoints,
        remark: refused.as_ref().map(Refused::remark),
        contents: Contents {
            services,
            workloads: Some(workloads),
            network_label: Some(network_label),
            facts: Some(facts),
        },
    }
}

/// Takes any bytes as a file of the state directory, and as what a file holds under a head that is right.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(bytes: &[u8]) -> bool {
    files::fuzz(bytes)
}

/// Files of the state directory as we write them.
#[cfg(test)]
pub(crate) fn fuzz_seeds() -> Vec<(&'static str, Vec<u8>)> {
    tests::seeds()
}
