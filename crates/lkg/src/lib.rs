//! The last-known-good state of every source, on disk, so that a restart loses nothing.
//!
//! Owns the directory `lkg` of the state directory. It contains one file per cluster ([`ShardState`]), per datacenter
//! of Consul ([`DatacentreState`]), per store of objects ([`StoredObjects`], and [`StoredFiles`] for a directory), one
//! per set of token keys ([`IssuerState`]), and one for the list of members ([`MembersState`]). Changes are appended to
//! a journal next to the file until the journal is as long as the file; then the file is rewritten. Invariants:
//!
//! - A file is written next to the old one, synced and renamed. The last few generations stay.
//! - A file that fails verification is refused with a reason, and the previous generation is used.
//! - No credential is ever written to disk.
//! - This crate does not decide about the served state. The sources do (docs/contributing/decisions/0011-last-known-good.md,
//!   docs/contributing/decisions/0024-journal.md).

#![forbid(unsafe_code)]

mod codec;
mod delta;
mod files;
mod flaw;
mod format;
mod journal;
mod others;
mod outcome;
mod state;
mod writer;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use tracing::{info, warn};

pub use self::state::{
    DatacentreState, IssuerState, MembersState, Note, ShardState, StateOrigin, StoredFiles,
    StoredObjects,
};
pub use codec::MalformedValue;
pub use files::{RefusedFile, StateDirectory};
pub use others::{Issuers, LastValidObjects, Others, StoreStates};
use strait_base::codes;
use strait_base::source_status as sources;
use strait_identity::token::IssuerKeys;
use strait_model::registry::{Contents, ServiceRecord};
use strait_model::{ClusterId, Hostname, RememberedObjects};
use strait_sources::clusters::RememberedMember;
pub use writer::{Writer, Writes};

/// The state that was read from disk.
#[derive(Debug, Default)]
pub struct RestoredState {
    /// The clusters, with their last known contents.
    pub clusters: BTreeMap<ClusterId, RememberedMember>,
    /// The datacentres of Consul, by the name of their shard.
    pub datacentres:
        BTreeMap<ClusterId, sources::RememberedSource<BTreeMap<Hostname, ServiceRecord>>>,
    /// The stores of objects, by name.
    pub stores: sources::RememberedStores<RememberedObjects>,
    /// The keys that sign the tokens of each cluster.
    pub issuers: BTreeMap<ClusterId, Arc<IssuerKeys>>,
    /// The data of the mesh's ConfigMap, if it existed.
    pub mesh: Option<Arc<BTreeMap<String, String>>>,
    /// Whether members existed but none can be restored: their list is unreadable, or no cluster from a Secret has a
    /// valid file.
    pub members_lost: bool,
}

impl RestoredState {
    /// Returns whether no cluster, datacentre or store was restored.
    pub fn is_empty(&self) -> bool {
        self.clusters.is_empty() && self.datacentres.is_empty() && self.stores.is_empty()
    }

    /// Returns whether the process can serve from this state while the configuration can't be read. A state that lost
    /// its members is not enough: serving it would withdraw all endpoints of these members.
    pub fn is_enough(&self) -> bool {
        !self.is_empty() && !self.members_lost
    }
}

/// Opens the directory `lkg` in `state_dir` and reads its files. A file that can't be read is logged and treated as
/// absent.
pub fn open(state_dir: &Path, origin: StateOrigin) -> (StateDirectory, RestoredState) {
    let began = std::time::Instant::now();
    let mut store = StateDirectory::open(&state_dir.join("lkg"), origin);
    let restored = restore(&mut store);
    if !restored.is_empty() {
        let RestoredState { clusters, datacentres, stores, .. } = &restored;
        let (clusters, datacentres, stores) = (clusters.len(), datacentres.len(), stores.len());
        let took = began.elapsed();
        info!(clusters, datacentres, stores, ?took, "last-known-good state read");
    }
    (store, restored)
}

fn restore(store: &mut StateDirectory) -> RestoredState {
    let (members, _) = store.members();
    let list_lost = members.is_none() && !store.is_empty();
    let MembersState { mut members, sources, mesh, mut created, mut found_by } =
        members.unwrap_or_default();
    let mut restored = RestoredState { mesh: mesh.map(Arc::new), ..RestoredState::default() };
    let had_members = members.values().any(|note| note.secret.is_some());
    for (shard, refused) in store.read_all::<ShardState>() {
        let note = members.remove(&shard.cluster);
        let cluster = shard.cluster.clone();
        let member = RememberedMember {
            created: created.remove(&cluster),
            found_by: found_by.remove(&cluster),
            ..remembered(shard, note, refused)
        };
        restored.clusters.insert(cluster, member);
    }
    for cluster in members.keys() {
        warn!(%cluster, "no file has the last known state of this cluster");
    }
    let has_members = restored.clusters.values().any(|cluster| cluster.secret.is_some());
    restored.members_lost = list_lost || (had_members && !has_members);
    if restored.members_lost {
        let code = &codes::STATE_DAMAGED;
        let lost = if list_lost { "the list of members" } else { "the data of any member" };
        warn!(
            %code,
            "no valid state file contains {lost}: the process is not ready until it has read the configuration. {}",
            code.next
        );
    }
    for (DatacentreState { name, services }, refused) in store.read_all() {
        let source = other(&sources, name.as_str(), services, refused);
        restored.datacentres.insert(name, source);
    }
    for (StoredObjects { store, objects }, refused) in store.read_all() {
        let held = RememberedObjects { objects, ..RememberedObjects::default() };
        let source = other(&sources, &store, held, refused);
        restored.stores.insert(store, source);
    }
    for (StoredFiles { store, files }, _) in store.read_all() {
        if let Some(source) = restored.stores.get_mut(&store) {
            source.held.files = files;
        }
    }
    for (IssuerState { cluster, issuer, key_set }, _) in store.read_all() {
        match IssuerKeys::parse(&issuer, key_set.as_bytes()) {
            Ok(keys) => _ = restored.issuers.insert(cluster, Arc::new(keys)),
            Err(error) => {
                warn!(%cluster, %error, "the stored keys of its tokens cannot be used");
            }
        }
    }
    restored
}

/// Returns the remembered state of a source that is not a member cluster.
fn other<T>(
    contacts: &BTreeMap<Arc<str>, u64>,
    name: &str,
    held: T,
    refused: Option<RefusedFile>,
) -> sources::RememberedSource<T> {
    let last_contact = contacts.get(name).copied().and_then(time);
    sources::RememberedSource {
        last_contact,
        remark: refused.as_ref().map(RefusedFile::remark),
        held,
    }
}

fn time(millis: u64) -> Option<SystemTime> {
    SystemTime::UNIX_EPOCH.checked_add(std::time::Duration::from_millis(millis))
}

fn remembered(
    shard: ShardState,
    note: Option<Note>,
    refused: Option<RefusedFile>,
) -> RememberedMember {
    let ShardState { uid, network_label, workloads, facts, services, .. } = shard;
    let endpoints = services.values().map(|record| record.endpoints.len()).sum();
    let services: BTreeMap<_, _> =
        services.into_iter().map(|(host, record)| (host, Some(record))).collect();
    let note = note.as_ref();
    RememberedMember {
        secret: note.and_then(|note| note.secret.clone()),
        network: note.and_then(|note| note.network.clone()),
        mode: note.map(|note| note.mode).unwrap_or_default(),
        uid: uid.as_deref().map(str::to_owned),
        last_contact: note.and_then(|note| note.last_contact).and_then(time),
        services: services.len(),
        endpoints,
        remark: refused.as_ref().map(RefusedFile::remark),
        contents: Contents {
            services,
            workloads: Some(workloads),
            network_label: Some(network_label),
            facts: Some(facts),
            ..Contents::default()
        },
        ..RememberedMember::default()
    }
}

#[cfg(any(test, fuzzing))]
pub mod fuzz;
