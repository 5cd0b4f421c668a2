//! Writes what changed, soon after it changed, without anybody waiting for it.
//!
//! Takes the current version of the mesh as any other reader does. Which clusters changed follows from
//! what two versions share; encoding and the disk are a blocking thread's work.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use imbl::ordmap::DiffItem;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::others::{self, Others};
use super::{Members, Note, Shard, Store};
use crate::aggregate::MergedService;
use crate::clusters::status::ClusterStatus;
use crate::model::ClusterId;
use crate::push::PushContext;
use crate::registry::{Provider, ServiceRecord, ShardKey};

/// How long what is new may wait for what comes with it. Proxies are told in that time: writing takes a CPU, and
/// they go first.
const DELAY: Duration = Duration::from_millis(250);
/// The least time between two writes.
const PACE: Duration = Duration::from_secs(2);
/// How many times what a write took must pass before the next: under steady change, writing is to cost
/// no more than a small part of one core.
const REST: u32 = 30;
/// The longest rest: a disk that stalled for a second is no reason to forget half a minute.
const REST_MAX: Duration = Duration::from_secs(12);
/// How often times of contact are written that alone have changed.
const CONTACTS: Duration = Duration::from_secs(30);

/// What the writer needs. A clone goes on where the other was.
#[derive(Clone)]
pub struct Writer {
    /// Where it writes.
    pub store: Arc<Mutex<Store>>,
    /// What it writes.
    pub context: watch::Receiver<Option<Arc<PushContext>>>,
    /// How the members fare.
    pub statuses: watch::Receiver<Arc<Vec<ClusterStatus>>>,
    /// What it writes of sources that are no member cluster.
    pub others: Others,
    /// The data of the mesh's ConfigMap.
    pub mesh: watch::Receiver<Option<Arc<BTreeMap<String, String>>>>,
    /// Cancelled when the process is to end.
    pub drain: CancellationToken,
    /// Told when the last state before that has been written, or can't be.
    pub saved: watch::Sender<bool>,
    /// Told how writing fares.
    pub writes: watch::Sender<Writes>,
}

/// How writing fares.
#[derive(Debug, Clone, Copy, Default)]
pub struct Writes {
    /// When all was last written; `None` until then.
    pub last: Option<SystemTime>,
    /// How often it could not be.
    pub failures: u64,
    /// Whether it could not be the last time.
    pub failing: bool,
}

impl Writer {
    /// Writes until the process is to end, and then once more.
    pub async fn run(mut self) {
        let mut written = Written::default();
        let mut contacts_at = Instant::now();
        let mut trouble: Option<String> = None;
        let drain = self.drain.clone();
        loop {
            let ending = tokio::select! {
                () = drain.cancelled() => true,
                () = self.news_settled(&written) => false,
                () = tokio::time::sleep_until(contacts_at + CONTACTS) => false,
            };
            let began = Instant::now();
            let now = self.context.borrow_and_update().clone();
            if let Some(now) = now {
                contacts_at = began;
                let work = Work {
                    before: written.clone(),
                    now: Arc::clone(&now),
                    statuses: Arc::clone(&self.statuses.borrow_and_update()),
                    others: self.others.now(),
                    mesh: self.mesh.borrow().clone(),
                };
                let store = Arc::clone(&self.store);
                let done = tokio::task::spawn_blocking(move || {
                    work.carry_out(&mut store.lock().unwrap_or_else(PoisonError::into_inner))
                });
                let result = done.await.unwrap_or_else(|error| Err(io::Error::other(error)));
                match result {
                    Ok((bytes, now)) => {
                        if trouble.take().is_some() {
                            info!("last-known-good state is written again");
                        }
                        debug!(bytes, took = ?began.elapsed(), "last-known-good state written");
                        written = now;
                        self.writes.send_modify(|writes| {
                            (writes.last, writes.failing) = (Some(SystemTime::now()), false);
                        });
                    }
                    Err(error) => {
                        let text = error.to_string();
                        if trouble.as_ref() != Some(&text) {
                            warn!(
                                %error,
                                "last-known-good state can't be written: everything goes on, and a restart would find the state from before"
                            );
                            trouble = Some(text);
                        }
                        self.writes.send_modify(|writes| {
                            (writes.failures, writes.failing) = (writes.failures + 1, true);
                        });
                        // What could not be written now is looked at again.
                        self.context.mark_changed();
                    }
                }
            }
            if ending {
                self.saved.send_replace(true);
                // Whoever started this ends it; otherwise it would be started again.
                return std::future::pending().await;
            }
            let rest = (began.elapsed() * REST).clamp(PACE, REST_MAX);
            tokio::select! {
                () = drain.cancelled() => {}
                () = tokio::time::sleep(rest) => {}
            }
        }
    }

    /// Waits until there is something new to write, and proxies have been told.
    async fn news_settled(&mut self, written: &Written) {
        self.news(written).await;
        tokio::time::sleep(DELAY).await;
    }

    /// Waits until there is something new to write: another version, another source whose data is served,
    /// or other objects.
    async fn news(&mut self, written: &Written) {
        loop {
            tokio::select! {
                Ok(()) = self.context.changed() => return,
                () = self.others.news(&written.others) => return,
                Ok(()) = self.statuses.changed() => {
                    if held_by(&self.statuses.borrow_and_update()) != written.held {
                        return;
                    }
                }
                else => return std::future::pending().await,
            }
        }
    }
}

/// The clusters whose data is served, each with its UID.
type Held = BTreeMap<ClusterId, Option<String>>;

fn held_by(statuses: &[ClusterStatus]) -> Held {
    let kept = |status: &ClusterStatus| {
        Some((status.id.as_str().into(), status.kept.as_ref()?.uid.clone()))
    };
    statuses.iter().filter_map(kept).collect()
}

/// What the files say, as far as this process wrote them.
#[derive(Clone, Default)]
struct Written {
    context: Option<Arc<PushContext>>,
    held: Held,
    others: others::Written,
}

/// One write.
struct Work {
    before: Written,
    now: Arc<PushContext>,
    statuses: Arc<Vec<ClusterStatus>>,
    others: others::Now,
    mesh: Option<Arc<BTreeMap<String, String>>>,
}

impl Work {
    /// Returns the bytes written, and what the files say now.
    fn carry_out(self, store: &mut Store) -> io::Result<(usize, Written)> {
        let mut held = held_by(&self.statuses);
        // The word of a cluster that has only just been read may not have come through yet.
        held.retain(|id, _| self.now.network_labels.contains_key(id));
        let mut bytes = 0;
        let changed = changed(self.before.context.as_deref(), &self.now);
        let wanted = held.iter().filter(|(id, uid)| {
            self.before.held.get(*id) != Some(*uid)
                || changed.as_ref().is_none_or(|changed| changed.contains(*id))
        });
        let wanted = wanted.map(|(id, uid)| (id, uid.as_deref().map(Arc::from)));
        for shard in shards(&self.now, wanted) {
            bytes += store.put(&shard)?;
        }
        let by_id = self.statuses.iter().filter(|status| status.kept.is_some());
        let by_id = by_id.map(|status| (ClusterId::from(status.id.as_str()), status));
        let by_id = by_id.filter(|(id, _)| held.contains_key(id));
        let members = by_id.map(|(id, status)| {
            let known = self.now.clusters.clusters.get(&id);
            let millis = |time: SystemTime| {
                let since = time.duration_since(SystemTime::UNIX_EPOCH).ok()?;
                u64::try_from(since.as_millis()).ok()
            };
            let note = Note {
                secret: status.secret.as_deref().map(Arc::from),
                network: known.and_then(|known| known.fixed_network.clone()),
                mode: known.map(|known| known.mode).unwrap_or_default(),
                last_contact: status.last_contact.map(SystemTime::from).and_then(millis),
            };
            (id, note)
        });
        let members = members.collect();
        let config = self.statuses.iter().find(|status| status.secret.is_none());
        let config = config.and_then(|status| status.last_contact).map(SystemTime::from);
        let sources = self.others.contacts(config);
        let mesh = self.mesh.as_deref().cloned();
        bytes += store.put_members(&Members { members, sources, mesh })?;
        // A Secret that can't be used just now still names its cluster, and so do standbys.
        store.forget_others::<Shard>(self.statuses.iter().map(|status| status.id.as_str()))?;
        let others = self.others.carry_out(&self.before.others, &self.now, changed.as_ref(), store);
        let (more, others) = others?;
        Ok((bytes + more, Written { context: Some(self.now), held, others }))
    }
}

/// The clusters that hold something else than before; `None` for all.
fn changed(before: Option<&PushContext>, now: &PushContext) -> Option<BTreeSet<ClusterId>> {
    let before = before?;
    let mut changed = BTreeSet::new();
    for difference in before.services.diff(&now.services) {
        match difference {
            DiffItem::Add(_, service) | DiffItem::Remove(_, service) => {
                changed.extend(kept(service).map(|(id, _)| id.clone()));
            }
            DiffItem::Update { old: (_, old), new: (_, new) } => {
                let (old, new): (BTreeMap<_, _>, BTreeMap<_, _>) =
                    (kept(old).collect(), kept(new).collect());
                let differs = |id: &&&ClusterId| old.get(*id) != new.get(*id);
                let ids = old.keys().chain(new.keys());
                changed.extend(ids.filter(differs).copied().cloned());
            }
        }
    }
    for (id, pods) in &now.workloads {
        if before.workloads.get(id) != Some(pods) {
            changed.insert(id.clone());
        }
    }
    for (id, facts) in &now.facts {
        if before.facts.get(id) != Some(facts) {
            changed.insert(id.clone());
        }
    }
    for (id, label) in &now.network_labels {
        if before.network_labels.get(id) != Some(label) {
            changed.insert(id.clone());
        }
    }
    Some(changed)
}

/// What the Kubernetes API of each cluster says of a service, and each datacentre of Consul: none is called
/// as the other. What counts for nothing in the mesh just now is what its source says all the same.
pub(super) fn kept(service: &MergedService) -> impl Iterator<Item = (&ClusterId, ServiceRecord)> {
    let is_kept = |key: &ShardKey| matches!(key.provider, Provider::Kubernetes | Provider::Consul);
    let said = service.said().filter(move |(key, _)| is_kept(key));
    said.map(|(key, record)| (&key.cluster, record))
}

/// What the mesh holds of these clusters, each with its UID. Shares everything with the mesh.
pub(super) fn shards<'a>(
    context: &PushContext,
    clusters: impl Iterator<Item = (&'a ClusterId, Option<Arc<str>>)>,
) -> Vec<Shard> {
    let empty = |(id, uid): (&ClusterId, Option<Arc<str>>)| {
        let shard = Shard {
            cluster: id.clone(),
            uid,
            network_label: context.network_labels.get(id).cloned().flatten(),
            workloads: context.workloads.get(id).cloned().unwrap_or_default(),
            facts: context.facts.get(id).cloned().unwrap_or_default(),
            services: BTreeMap::new(),
        };
        (id.clone(), shard)
    };
    let mut shards: BTreeMap<_, _> = clusters.map(empty).collect();
    if !shards.is_empty() {
        for (host, service) in &context.services {
            for (id, record) in kept(service) {
                if let Some(shard) = shards.get_mut(id) {
                    shard.services.insert(host.clone(), record);
                }
            }
        }
    }
    shards.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{endpoint, service, settings, shard};
    use crate::push::event_loop::{Event, Mesh};
    use crate::registry::{Change, Contents, Epoch, RegistryUpdate};

    #[test]
    fn what_a_source_says_is_kept_though_it_counts_for_nothing_just_now() {
        let dc = ClusterId::from("consul/dc1");
        let said = |key: ShardKey, namespace: &str, address: &str| {
            let service = service("web.ns").with(|service| service.namespace = namespace.into());
            let word = shard("any", 1).with(service, vec![endpoint(address)]).said();
            RegistryUpdate { shard: key, ..word }
        };
        let of_consul = |address| said(ShardKey::consul(dc.clone()), "consul", address);
        let mut mesh = Mesh::new(settings());
        mesh.apply(Event::Registry(of_consul("10.0.0.1")));
        mesh.apply(Event::Complete);
        let (alone, _) = mesh.next_version().expect("there is one");
        let kept_of = |context: &PushContext| {
            let service = context.services.values().next().expect("the service");
            let kept: Vec<_> = kept(service).collect();
            let [(id, record)] = &kept[..] else { panic!("one source: {kept:?}") };
            assert_eq!(**id, dc);
            record.endpoints.first().expect("an endpoint").address.to_string()
        };
        assert_eq!(kept_of(&alone), "10.0.0.1");

        // An entry of another namespace has the name now.
        mesh.apply(Event::Registry(said(ShardKey::service_entries(), "shop", "10.0.0.9")));
        let (taken, _) = mesh.next_version().expect("there is one");
        assert!(taken.services.values().all(|one| one.by_cluster.get(&dc).is_none()));
        assert_eq!(kept_of(&taken), "10.0.0.1");
        assert_eq!(changed(Some(&alone), &taken), Some(BTreeSet::new()));

        mesh.apply(Event::Registry(of_consul("10.0.0.2")));
        let (moved, _) = mesh.next_version().expect("there is one");
        assert_eq!(kept_of(&moved), "10.0.0.2");
        assert_eq!(changed(Some(&taken), &moved), Some(BTreeSet::from([dc.clone()])));

        let shard = ShardKey::service_entries();
        let change = Change::Reset(Contents::default());
        mesh.apply(Event::Registry(RegistryUpdate { shard, epoch: Epoch(1), change }));
        let (back, _) = mesh.next_version().expect("there is one");
        assert_eq!(kept_of(&back), "10.0.0.2");
    }
}
