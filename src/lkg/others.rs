//! What is kept of sources that are no member cluster: the datacentres of Consul, from the published mesh as
//! clusters are, and the objects of stores, as the stores have them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::watch;

use super::delta::{Deltas, kept};
use super::outcome::WriteOutcome;
use super::outcome::WrittenOthers;
pub use super::outcome::{Issuers, StandIns, StoreStates};
use super::{DatacentreState, IssuerState, StateDirectory, StoredFiles, StoredObjects};
use crate::model::{ClusterId, ObjectFiles, ObjectJson, RememberedObjects};
use crate::push::PushContext;
use crate::sources::{SourceFacts, SourceStatusMap};

/// Where the writer learns of sources that are no member cluster.
#[derive(Clone)]
pub struct Others {
    /// How they fare.
    pub lines: watch::Receiver<SourceStatusMap>,
    /// The objects of the stores that were read, or are known from disk; `None` until it is known which
    /// stores there are.
    pub stores: watch::Receiver<Option<Arc<StoreStates>>>,
    /// Of an object that makes no sense what it was when it last did is what counts, and what a restart must
    /// find.
    pub stand_ins: watch::Receiver<Arc<StandIns>>,
    /// By which keys the tokens of clusters are signed.
    pub issuers: watch::Receiver<Arc<Issuers>>,
}

impl Others {
    /// What there is now.
    pub(super) fn now(&mut self) -> StateToWrite {
        StateToWrite {
            lines: self.lines.borrow_and_update().clone(),
            stores: self.stores.borrow_and_update().clone(),
            stand_ins: Arc::clone(&self.stand_ins.borrow_and_update()),
            issuers: Arc::clone(&self.issuers.borrow_and_update()),
        }
    }

    /// Waits until there is something new to write.
    pub(super) async fn news(&mut self, written: &WrittenOthers) {
        loop {
            tokio::select! {
                Ok(()) = self.stores.changed() => return,
                Ok(()) = self.stand_ins.changed() => return,
                Ok(()) = self.issuers.changed() => return,
                // Most changes of these lines only show that a source still answers.
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

/// What there is to write.
pub(super) struct StateToWrite {
    lines: SourceStatusMap,
    stores: Option<Arc<StoreStates>>,
    stand_ins: Arc<StandIns>,
    issuers: Arc<Issuers>,
}

impl StateToWrite {
    /// Writes what differs from `before`; `deltas` holds what shards report otherwise, and is `None` for all.
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
            let appended = match delta {
                Some(None) => Some(0),
                // Where that failed all of it is written.
                Some(Some(delta)) => {
                    store.append::<DatacentreState>(name.as_str(), delta).ok().flatten()
                }
                None => None,
            };
            let bytes = match appended {
                Some(bytes) => Ok(bytes),
                None => {
                    let datacentre = datacentre(context, name);
                    let wanted = self.lines.get(name.as_str()).map_or(0, |facts| facts.services);
                    // The update of one that has only just been read may not have come through yet.
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
        let as_before = Arc::ptr_eq(&self.stand_ins, &before.stand_ins);
        for (name, held) in &**stores {
            let RememberedObjects { objects, files } = held;
            let before = before.stores.get(name);
            let same = before.is_some_and(|before| Arc::ptr_eq(&before.objects, objects));
            let same_files = before.is_some_and(|before| Arc::ptr_eq(&before.files, files));
            // An object of which nobody knows the file, as where we stop between the two, may be in any.
            if ((same && as_before) || done.note(store.put(&self.stored(name, objects))))
                && (same_files || done.note(Self::put_files(name, files, store)))
            {
                done.written.others.stores.insert(Arc::clone(name), held.clone());
            }
        }
        done.note(store.forget_others::<StoredObjects>(named()).map(|()| 0));
        let directories = stores.iter().filter(|(_, held)| !held.files.is_empty());
        let directories = directories.map(|(name, _)| &**name);
        done.note(store.forget_others::<StoredFiles>(directories).map(|()| 0));
        done.written.others.stand_ins = self.stand_ins;
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

    fn stored(&self, name: &Arc<str>, objects: &[ObjectJson]) -> StoredObjects {
        let stand_ins: HashMap<*const u8, &ObjectJson> =
            self.stand_ins.iter().map(|(now, good)| (now.place(), good)).collect();
        let good =
            |object: &ObjectJson| stand_ins.get(&object.place()).copied().unwrap_or(object).clone();
        let objects = Arc::new(objects.iter().map(good).collect());
        StoredObjects { store: Arc::clone(name), objects }
    }

    /// When each had last reported something, in milliseconds since the Unix epoch. `config_cluster` is when the API
    /// server of that name had.
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

/// The datacentres that were read, or are known from disk. The line of a Consul itself names none.
fn datacentres(lines: &SourceStatusMap) -> BTreeSet<ClusterId> {
    let known = lines.iter().filter(|(name, facts)| {
        facts.kind == "consul" && name.contains('/') && (facts.synced || facts.restored.is_some())
    });
    known.map(|(name, _)| ClusterId::new(Arc::clone(name))).collect()
}

fn datacentre(context: &PushContext, name: &ClusterId) -> DatacentreState {
    let found = context.services.iter().filter_map(|(host, service)| {
        let (_, record) = kept(service).find(|(id, _)| *id == name)?;
        Some((host.clone(), record))
    });
    DatacentreState { name: name.clone(), services: found.collect() }
}
