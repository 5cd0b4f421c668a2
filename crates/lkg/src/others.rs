//! State of sources that are not member clusters: datacentres of Consul, read from the published mesh as clusters are,
//! and objects, read from their stores.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::watch;

use super::delta::{Deltas, ObjectsDelta, stored_records};
pub use super::outcome::{Issuers, LastValidObjects, StoreStates};
use super::outcome::{WriteOutcome, WrittenOthers};
use super::state::StateKind;
use super::{DatacentreState, IssuerState, StateDirectory, StoredFiles, StoredObjects};
use strait_base::source_status::{SourceFacts, SourceStatusMap};
use strait_mesh::push::PushContext;
use strait_model::{ClusterId, ObjectFiles, RememberedObjects};

/// The channels from which the writer reads sources that are not member clusters.
#[derive(Clone)]
pub struct Others {
    /// The status of the sources.
    pub lines: watch::Receiver<SourceStatusMap>,
    /// The objects of the stores that were read or restored from disk; `None` until the list of stores is known.
    pub stores: watch::Receiver<Option<Arc<StoreStates>>>,
    /// Invalid objects with their last valid version. That version is active, and a restart must restore it.
    pub last_valid_objects: watch::Receiver<Arc<LastValidObjects>>,
    /// The keys that sign the tokens of each cluster.
    pub issuers: watch::Receiver<Arc<Issuers>>,
}

impl Others {
    /// Returns the current values, and marks them as seen.
    pub(super) fn now(&mut self) -> StateToWrite {
        StateToWrite {
            lines: self.lines.borrow_and_update().clone(),
            stores: self.stores.borrow_and_update().clone(),
            last_valid_objects: Arc::clone(&self.last_valid_objects.borrow_and_update()),
            issuers: Arc::clone(&self.issuers.borrow_and_update()),
        }
    }

    /// Waits until a value differs from the written state.
    pub(super) async fn news(&mut self, written: &WrittenOthers) {
        loop {
            tokio::select! {
                Ok(()) = self.stores.changed() => return,
                Ok(()) = self.last_valid_objects.changed() => return,
                Ok(()) = self.issuers.changed() => return,
                // Most status changes only show that a source still responds.
                Ok(()) = self.lines.changed() => {
                    if datacentres(&self.lines.borrow_and_update()) != written.datacentres {
                        return;
                    }
                }
                else => return std::future::pending().await,
            }
        }
    }
}

/// The values to write.
pub(super) struct StateToWrite {
    lines: SourceStatusMap,
    stores: Option<Arc<StoreStates>>,
    last_valid_objects: Arc<LastValidObjects>,
    issuers: Arc<Issuers>,
}

impl StateToWrite {
    /// Writes the differences from `before`. `deltas` contains the changes of shards; `None` writes all datacentres.
    pub(super) fn carry_out(
        self,
        before: &WrittenOthers,
        context: &PushContext,
        deltas: Option<&Deltas>,
        store: &mut StateDirectory,
        done: &mut WriteOutcome,
    ) {
        let names = datacentres(&self.lines);
        for name in &names {
            let delta = deltas.filter(|_| before.datacentres.contains(name));
            let delta = delta.map(|deltas| deltas.get(name));
            let bytes = match append::<DatacentreState>(store, name.as_str(), delta) {
                Some(bytes) => Ok(bytes),
                None => {
                    let datacentre = datacentre(context, name);
                    let wanted = self.lines.get(name.as_str()).map_or(0, |facts| facts.services);
                    // The update of a datacentre that was read only just now may not have arrived yet.
                    if datacentre.services.is_empty() && wanted != 0 {
                        continue;
                    }
                    store.put(&datacentre)
                }
            };
            if done.note(bytes) {
                done.written.others.datacentres.insert(name.clone());
            }
        }
        let names = names.iter().map(ClusterId::as_str);
        if let Some(name) = store.longest_journal::<DatacentreState>(names) {
            done.note(store.put(&datacentre(context, &name.into())));
        }
        let named = || self.lines.keys().map(|name| &**name);
        done.note(store.forget_others::<DatacentreState>(named()).map(|()| 0));
        self.put_issuers(before, store, done);
        let Some(stores) = &self.stores else { return };
        for (name, RememberedObjects { objects, files }) in &**stores {
            let before = before.stores.get(name);
            let stored = StoredObjects {
                store: Arc::clone(name),
                objects: objects.with_last_valid(&self.last_valid_objects),
            };
            let delta = before.map(|before| ObjectsDelta::of(&before.objects, &stored.objects));
            let delta = delta.as_ref().map(Option::as_ref);
            let bytes = match append::<StoredObjects>(store, name, delta) {
                Some(bytes) => Ok(bytes),
                None => store.put(&stored),
            };
            let same_files = before.is_some_and(|before| Arc::ptr_eq(&before.files, files));
            // After a crash between the two writes, the file of an object is unknown, and any file may contain it.
            if done.note(bytes) && (same_files || done.note(Self::put_files(name, files, store))) {
                let written =
                    RememberedObjects { objects: stored.objects, files: Arc::clone(files) };
                done.written.others.stores.insert(Arc::clone(name), written);
            }
        }
        let written = &done.written.others.stores;
        let longest = store.longest_journal::<StoredObjects>(written.keys().map(|name| &**name));
        if let Some((name, held)) = longest.and_then(|name| written.get_key_value(name)) {
            let (store_name, objects) = (Arc::clone(name), held.objects.clone());
            done.note(store.put(&StoredObjects { store: store_name, objects }));
        }
        done.note(store.forget_others::<StoredObjects>(named()).map(|()| 0));
        let directories = stores.iter().filter(|(_, held)| !held.files.is_empty());
        let directories = directories.map(|(name, _)| &**name);
        done.note(store.forget_others::<StoredFiles>(directories).map(|()| 0));
    }

    fn put_files(
        name: &Arc<str>,
        files: &Arc<ObjectFiles>,
        store: &mut StateDirectory,
    ) -> std::io::Result<usize> {
        if files.is_empty() {
            return Ok(0);
        }
        store.put(&StoredFiles { store: Arc::clone(name), files: Arc::clone(files) })
    }

    fn put_issuers(
        &self,
        before: &WrittenOthers,
        store: &mut StateDirectory,
        done: &mut WriteOutcome,
    ) {
        if Arc::ptr_eq(&self.issuers, &before.issuers) {
            done.written.others.issuers = Arc::clone(&self.issuers);
            return;
        }
        let mut whole = true;
        for (cluster, keys) in &*self.issuers {
            let (cluster, issuer) = (cluster.clone(), Arc::clone(keys.issuer()));
            let state = IssuerState { cluster, issuer, key_set: keys.to_key_set() };
            whole &= done.note(store.put(&state));
        }
        let named = self.issuers.keys().map(ClusterId::as_str);
        whole &= done.note(store.forget_others::<IssuerState>(named).map(|()| 0));
        if whole {
            done.written.others.issuers = Arc::clone(&self.issuers);
        }
    }

    /// Returns when each source last reported something, in milliseconds since the Unix epoch. `config_cluster` is the
    /// time of the last contact with the API server of the config cluster.
    pub(super) fn contacts(&self, config_cluster: Option<SystemTime>) -> BTreeMap<Arc<str>, u64> {
        let contact = |facts: &SourceFacts| match facts.kind {
            "cluster" => config_cluster.max(facts.last_contact),
            _ => facts.last_contact,
        };
        let contacts = self.lines.iter().filter_map(|(name, facts)| {
            let since = contact(facts)?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
            Some((Arc::clone(name), u64::try_from(since.as_millis()).ok()?))
        });
        contacts.collect()
    }
}

/// Appends the changes, if they are known. The inner `None` means that nothing changed. Returns the bytes written, or
/// `None` if the complete state must be written instead.
fn append<T: StateKind>(
    store: &mut StateDirectory,
    name: &str,
    delta: Option<Option<&T::Delta>>,
) -> Option<usize> {
    match delta? {
        None => Some(0),
        Some(delta) => store.append::<T>(name, delta).ok().flatten(),
    }
}

/// Returns the datacentres that were read or restored from disk. The status entry of a Consul server itself is not one.
fn datacentres(lines: &SourceStatusMap) -> BTreeSet<ClusterId> {
    let known = lines.iter().filter(|(name, facts)| {
        facts.kind == "consul" && name.contains('/') && (facts.synced || facts.restored.is_some())
    });
    known.map(|(name, _)| ClusterId::new(Arc::clone(name))).collect()
}

fn datacentre(context: &PushContext, name: &ClusterId) -> DatacentreState {
    let found = context.services.iter().filter_map(|(host, service)| {
        let (_, record) = stored_records(service).find(|(id, _)| *id == name)?;
        Some((host.clone(), record))
    });
    DatacentreState { name: name.clone(), services: found.collect() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::StateOrigin;
    use super::super::outcome::WrittenClusters;
    use super::*;
    use strait_mesh::push::event_loop::{MeshEvent, MeshState};
    use strait_mesh::testing::settings;
    use strait_model::{Collection, LastValidObject, ObjectJson, ObjectKey};

    fn object(name: &str, hosts: &str) -> ObjectJson {
        let (api, metadata) =
            ("networking.istio.io/v1", json!({ "namespace": "shop", "name": name }));
        let spec = json!({ "hosts": [hosts] });
        json!({ "apiVersion": api, "kind": "ServiceEntry", "metadata": metadata, "spec": spec })
            .into()
    }

    fn key(name: &str) -> ObjectKey {
        ObjectKey::of(&object(name, "").to_value()).expect("a key")
    }

    #[test]
    fn changed_objects_of_a_store_are_appended_and_restored() {
        let origin = StateOrigin {
            domain: "cluster.local".into(),
            trust_domain: "cluster.local".into(),
            system_namespace: "strait-system".into(),
        };
        let directory = tempfile::tempdir().expect("a directory");
        let mut disk = StateDirectory::open(directory.path(), origin.clone());
        let mut mesh = MeshState::new(settings());
        mesh.apply(MeshEvent::CompleteWithoutNames);
        let (context, _) = mesh.next_version().expect("the first one");
        let name: Arc<str> = "config cluster".into();
        let facts = SourceFacts::starting("config", "");
        let lines = SourceStatusMap::from([(Arc::clone(&name), facts)]);
        let mut before = WrittenOthers::default();
        // Returns the bytes written, and the number of files.
        let mut write = |objects: &Collection, last_valid_objects: &[LastValidObject]| {
            let files = Arc::default();
            let held = RememberedObjects { objects: objects.clone(), files };
            let state = StateToWrite {
                lines: lines.clone(),
                stores: Some(Arc::new([(Arc::clone(&name), held)].into())),
                last_valid_objects: Arc::new(last_valid_objects.to_vec()),
                issuers: Arc::default(),
            };
            let written = WrittenClusters::default();
            let mut done = WriteOutcome { bytes: 0, written, trouble: Ok(()) };
            state.carry_out(&before, &context, None, &mut disk, &mut done);
            done.trouble.expect("written");
            before = done.written.others;
            let mut reopened = StateDirectory::open(directory.path(), origin.clone());
            let (read, refused) = reopened.read::<StoredObjects>(&name);
            assert_eq!(refused, None);
            assert_eq!(
                read.expect("it is there").objects,
                objects.with_last_valid(last_valid_objects)
            );
            let files = std::fs::read_dir(directory.path()).expect("there").flatten();
            let whole =
                files.filter(|file| file.path().extension().is_some_and(|end| end == "lkg"));
            (done.bytes, whole.count())
        };
        let many = (0..1000).map(|number| {
            let name = format!("entry-{number}");
            (key(&name), object(&name, "a.example"))
        });
        let mut objects: Collection = many.collect();
        let (whole, _) = write(&objects, &[]);
        assert!(whole > 100_000, "{whole} bytes");
        assert_eq!(write(&objects, &[]), (0, 1));
        objects.insert(key("entry-7"), object("entry-7", "b.example"));
        objects.insert(key("new"), object("new", "c.example"));
        objects.remove(&key("entry-9"));
        let (bytes, files) = write(&objects, &[]);
        assert!(bytes < 1000 && files == 1, "{bytes} bytes");

        // For an invalid object, the last valid version is stored. Nothing changes on disk.
        let (now, good) = (object("new", "*"), object("new", "c.example"));
        objects.insert(key("new"), now.clone());
        let last_valid = LastValidObject { key: key("new"), now, good };
        assert_eq!(write(&objects, std::slice::from_ref(&last_valid)), (0, 1));
        // The last valid version no longer applies, because the object changed again.
        objects.insert(key("new"), object("new", "d.example"));
        let (bytes, files) = write(&objects, &[last_valid]);
        assert!((1..1000).contains(&bytes) && files == 1, "{bytes} bytes");

        // The journal has reached the length of the file, so the file is rewritten.
        let mut changes = 0;
        while write(&objects, &[]).1 == 1 {
            changes += 1;
            for number in 0..100 {
                let name = format!("entry-{number}");
                objects.insert(key(&name), object(&name, &format!("host-{changes}.example")));
            }
        }
        assert!((5..=12).contains(&changes), "{changes} times a tenth");
    }
}
