//! What is kept of sources that are no member cluster: the datacentres of Consul, from the published mesh as
//! clusters are, and the objects of stores, as the stores have them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::SystemTime;

use serde_json::Value;
use tokio::sync::watch;

use super::delta::{Deltas, kept};
use super::writer::Outcome;
use super::{Datacentre, Store, StoredObjects};
use crate::model::ClusterId;
use crate::push::PushContext;
use crate::sources::{Facts, Lines};

/// What each store of objects holds, by its name.
pub type Stores = BTreeMap<Arc<str>, Arc<Vec<Arc<Value>>>>;

/// Objects that make no sense, each with what it was when it last did.
pub type StandIns = Vec<(Arc<Value>, Arc<Value>)>;

/// Where the writer learns of sources that are no member cluster.
#[derive(Clone)]
pub struct Others {
    /// How they fare.
    pub lines: watch::Receiver<Lines>,
    /// The objects of the stores that were read, or are known from disk; `None` until it is known which
    /// stores there are.
    pub stores: watch::Receiver<Option<Arc<Stores>>>,
    /// Of an object that makes no sense what it was when it last did is what counts, and what a restart must
    /// find.
    pub stand_ins: watch::Receiver<Arc<StandIns>>,
}

impl Others {
    /// What there is now.
    pub(super) fn now(&mut self) -> Now {
        Now {
            lines: self.lines.borrow_and_update().clone(),
            stores: self.stores.borrow_and_update().clone(),
            stand_ins: Arc::clone(&self.stand_ins.borrow_and_update()),
        }
    }

    /// Waits until there is something new to write.
    pub(super) async fn news(&mut self, written: &Written) {
        loop {
            tokio::select! {
                Ok(()) = self.stores.changed() => return,
                Ok(()) = self.stand_ins.changed() => return,
                // Most of what lines tell is that a source still answers.
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
pub(super) struct Now {
    lines: Lines,
    stores: Option<Arc<Stores>>,
    stand_ins: Arc<StandIns>,
}

/// What the files say, as far as this process wrote them.
#[derive(Clone, Default)]
pub(super) struct Written {
    datacentres: BTreeSet<ClusterId>,
    stores: Stores,
    stand_ins: Arc<StandIns>,
}

impl Now {
    /// Writes what differs from `before`; `deltas` tells what shards say otherwise, and is `None` for all.
    pub(super) fn carry_out(
        self,
        before: &Written,
        context: &PushContext,
        deltas: Option<&Deltas>,
        store: &mut Store,
        done: &mut Outcome,
    ) {
        let names = datacentres(&self.lines);
        for name in &names {
            let delta = deltas.filter(|_| before.datacentres.contains(name));
            let delta = delta.map(|deltas| deltas.get(name));
            let appended = match delta {
                Some(None) => Some(0),
                // Where that failed all of it is written.
                Some(Some(delta)) => {
                    store.append::<Datacentre>(name.as_str(), delta).ok().flatten()
                }
                None => None,
            };
            let bytes = match appended {
                Some(bytes) => Ok(bytes),
                None => {
                    let datacentre = datacentre(context, name);
                    let wanted = self.lines.get(name.as_str()).map_or(0, |facts| facts.services);
                    // The word of one that has only just been read may not have come through yet.
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
        if let Some(name) = store.longest_journal::<Datacentre>(names) {
            done.note(store.put(&datacentre(context, &name.into())));
        }
        let named = || self.lines.keys().map(|name| &**name);
        done.note(store.forget_others::<Datacentre>(named()).map(|()| 0));
        let Some(stores) = &self.stores else { return };
        let as_before = Arc::ptr_eq(&self.stand_ins, &before.stand_ins);
        for (name, objects) in &**stores {
            let same = before.stores.get(name).is_some_and(|held| Arc::ptr_eq(held, objects));
            if (same && as_before) || done.note(store.put(&self.stored(name, objects))) {
                done.written.others.stores.insert(Arc::clone(name), Arc::clone(objects));
            }
        }
        done.note(store.forget_others::<StoredObjects>(named()).map(|()| 0));
        done.written.others.stand_ins = self.stand_ins;
    }

    fn stored(&self, name: &Arc<str>, objects: &[Arc<Value>]) -> StoredObjects {
        let stand_ins: HashMap<*const Value, &Arc<Value>> =
            self.stand_ins.iter().map(|(now, good)| (Arc::as_ptr(now), good)).collect();
        let good =
            |object| Arc::clone(stand_ins.get(&Arc::as_ptr(object)).copied().unwrap_or(object));
        let objects = Arc::new(objects.iter().map(good).collect());
        StoredObjects { store: Arc::clone(name), objects }
    }

    /// When each had last said something, in milliseconds since the Unix epoch. `config_cluster` is when the
    /// API server of that name had.
    pub(super) fn contacts(&self, config_cluster: Option<SystemTime>) -> BTreeMap<Arc<str>, u64> {
        let contact = |facts: &Facts| match facts.kind {
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
fn datacentres(lines: &Lines) -> BTreeSet<ClusterId> {
    let known = lines.iter().filter(|(name, facts)| {
        facts.kind == "consul" && name.contains('/') && (facts.synced || facts.restored.is_some())
    });
    known.map(|(name, _)| ClusterId::new(Arc::clone(name))).collect()
}

fn datacentre(context: &PushContext, name: &ClusterId) -> Datacentre {
    let found = context.services.iter().filter_map(|(host, service)| {
        let (_, record) = kept(service).find(|(id, _)| *id == name)?;
        Some((host.clone(), record))
    });
    Datacentre { name: name.clone(), services: found.collect() }
}
