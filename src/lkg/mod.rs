//! Last-known-good: what each member was known to hold, on disk, so that a restart loses nothing.
//!
//! Owns the directory `lkg` of the state directory: a file for each cluster ([`Shard`]), which is
//! written again when the cluster changed, and one for what belongs to no single cluster
//! ([`Members`]). A file is written beside the old one, synced and renamed; the last few generations
//! stay. What can't be proven whole on reading is refused with a reason, and the generation before is
//! used. Never holds a credential, and never decides what is served: the reconciler does
//! (docs/decisions/0011-last-known-good.md).

mod codec;
mod files;
mod format;
mod writer;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use tracing::{info, warn};

pub use codec::Malformed;
pub use files::{Refused, Store};
pub use writer::Writer;

use crate::clusters::Remembered;
use crate::model::{ClusterFacts, ClusterId, Hostname, Mode, NetworkId, Workloads};
use crate::registry::{Contents, ServiceRecord};

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

/// What was known of the members beside what they hold, and of the mesh.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Members {
    /// The clusters whose contents are kept.
    pub members: BTreeMap<ClusterId, Note>,
    /// The data of the mesh's ConfigMap, where there was one.
    pub mesh: Option<BTreeMap<String, String>>,
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
    /// The data of the mesh's ConfigMap, where there was one.
    pub mesh: Option<Arc<BTreeMap<String, String>>>,
}

/// Opens the directory in `state_dir` and reads what is there. What can't be read is logged, and as
/// good as not there.
pub fn open(state_dir: &Path, origin: Origin) -> (Store, Restored) {
    let began = std::time::Instant::now();
    let mut store = Store::open(&state_dir.join("lkg"), origin);
    let restored = restore(&mut store);
    if !restored.clusters.is_empty() {
        let clusters = restored.clusters.len();
        info!(clusters, took = ?began.elapsed(), "last-known-good state read");
    }
    (store, restored)
}

fn restore(store: &mut Store) -> Restored {
    let (members, _) = store.members();
    let Members { mut members, mesh } = members.unwrap_or_default();
    let mut clusters = BTreeMap::new();
    for cluster in store.clusters() {
        let (shard, refused) = store.shard(&cluster);
        let Some(shard) = shard else { continue };
        let note = members.remove(&cluster);
        clusters.insert(cluster, remembered(shard, note, refused));
    }
    for cluster in members.keys() {
        warn!(%cluster, "no file holds what was last known of this cluster");
    }
    Restored { clusters, mesh: mesh.map(Arc::new) }
}

fn remembered(shard: Shard, note: Option<Note>, refused: Option<Refused>) -> Remembered {
    let Shard { uid, network_label, workloads, facts, services, .. } = shard;
    let endpoints = services.values().map(|record| record.endpoints.len()).sum();
    let services: BTreeMap<_, _> =
        services.into_iter().map(|(host, record)| (host, Some(record))).collect();
    let note = note.as_ref();
    let time =
        |millis| SystemTime::UNIX_EPOCH.checked_add(std::time::Duration::from_millis(millis));
    Remembered {
        secret: note.and_then(|note| note.secret.clone()),
        network: note.and_then(|note| note.network.clone()),
        mode: note.map(|note| note.mode).unwrap_or_default(),
        uid: uid.as_deref().map(str::to_owned),
        last_contact: note.and_then(|note| note.last_contact).and_then(time),
        services: services.len(),
        endpoints,
        remark: refused.map(|refused| format!("{refused}; an earlier file is used")),
        contents: Contents {
            services,
            workloads: Some(workloads),
            network_label: Some(network_label),
            facts: Some(facts),
        },
    }
}
