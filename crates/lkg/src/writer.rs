//! The task that writes changes soon after they happen. No other task waits for it.
//!
//! It reads the current snapshot of the mesh like any other reader. The changes follow from the parts that two
//! snapshots share, and are appended to the journal of their source. A blocking thread encodes and writes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::delta::{Deltas, deltas, stored_records};
use super::others::{self, Others};
use super::outcome::{ServedClusters, StatusRecord, WriteOutcome, WrittenClusters};
use super::{MembersState, Note, ShardState, StateDirectory};
use strait_base::codes;
use strait_mesh::push::PushContext;
use strait_model::ClusterId;
use strait_sources::clusters::identity::ClusterIdHolder;
use strait_sources::clusters::status::ClusterStatus;

/// The delay between a change and its write, so that related changes are written together. Proxies receive the change
/// first, because writing takes a CPU.
const DELAY: Duration = Duration::from_millis(250);
/// The minimum time between two writes.
const PACE: Duration = Duration::from_secs(2);
/// The pause after a write, as a multiple of the write's duration: under steady change, writing costs only a small
/// part of one core.
const REST: u32 = 30;
/// The longest pause: after a disk stall of one second, a pause of 30 s would risk too many changes.
const REST_MAX: Duration = Duration::from_secs(12);
/// The interval at which contact times are written if nothing else has changed.
const CONTACTS: Duration = Duration::from_secs(30);

/// The inputs of the writer. A clone continues where the original stopped.
#[derive(Clone)]
pub struct Writer {
    /// The directory to write to.
    pub store: Arc<Mutex<StateDirectory>>,
    /// The current snapshot of the mesh.
    pub context: watch::Receiver<Option<Arc<PushContext>>>,
    /// The status of the members.
    pub statuses: watch::Receiver<Arc<Vec<ClusterStatus>>>,
    /// Sources that are not member clusters.
    pub others: Others,
    /// The data of the mesh's ConfigMap.
    pub mesh: watch::Receiver<Option<Arc<BTreeMap<String, String>>>>,
    /// Cancelled when the process shuts down.
    pub drain: CancellationToken,
    /// Set to `true` once the final state has been written, or writing it has failed.
    pub saved: watch::Sender<bool>,
    /// Receives the status of writing.
    pub writes: watch::Sender<Writes>,
}

/// The status of writing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Writes {
    /// When the state was last written completely; `None` until then.
    pub last: Option<SystemTime>,
    /// The number of failed writes.
    pub failures: u64,
    /// The reason why the last write failed; `None` if it succeeded.
    pub failing: Option<Arc<str>>,
}

impl Writer {
    /// Writes changes until the process shuts down, and then a last time.
    pub async fn run(mut self) {
        let mut written = WrittenClusters::default();
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
                let thorough = ending || began >= contacts_at + CONTACTS;
                if thorough {
                    contacts_at = began;
                }
                let work = Work {
                    thorough,
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
                let done = done.await.unwrap_or_else(|error| WriteOutcome::failed(&error));
                written = done.written;
                match done.trouble {
                    Ok(()) => {
                        if trouble.take().is_some() {
                            info!("writing last-known-good state works again");
                        }
                        let bytes = done.bytes;
                        debug!(bytes, took = ?began.elapsed(), "last-known-good state written");
                        self.writes.send_modify(|writes| {
                            (writes.last, writes.failing) = (Some(SystemTime::now()), None);
                        });
                    }
                    Err(error) => {
                        let text = error.to_string();
                        if trouble.as_ref() != Some(&text) {
                            let code = &codes::UNWRITABLE;
                            warn!(
                                %error,
                                %code,
                                "cannot write last-known-good state: proxies are not affected, but a restart would restore the older state. {}",
                                code.next
                            );
                        }
                        self.writes.send_modify(|writes| {
                            writes.failures += 1;
                            writes.failing = Some(text.as_str().into());
                        });
                        trouble = Some(text);
                        // Retries what could not be written.
                        self.context.mark_changed();
                    }
                }
            }
            if ending {
                self.saved.send_replace(true);
                // The supervisor ends this task. If the task returned, it would be restarted.
                return std::future::pending().await;
            }
            let rest = (began.elapsed() * REST).clamp(PACE, REST_MAX);
            tokio::select! {
                () = drain.cancelled() => {}
                () = tokio::time::sleep(rest) => {}
            }
        }
    }

    /// Waits until there are changes to write, and then gives proxies time to receive them.
    async fn news_settled(&mut self, written: &WrittenClusters) {
        self.news(written).await;
        tokio::time::sleep(DELAY).await;
    }

    /// Waits until there are changes to write: a new snapshot, a change of the clusters whose data is served, or other
    /// objects.
    async fn news(&mut self, written: &WrittenClusters) {
        loop {
            tokio::select! {
                Ok(()) = self.context.changed() => return,
                () = self.others.news(&written.others) => return,
                Ok(()) = self.statuses.changed() => {
                    if !are_held(&written.held, &self.statuses.borrow_and_update()) {
                        return;
                    }
                }
                else => return std::future::pending().await,
            }
        }
    }
}

fn held_by(statuses: &[ClusterStatus]) -> ServedClusters {
    let kept = |status: &ClusterStatus| {
        let ClusterIdHolder { uid, found_by, .. } = status.kept.clone()?;
        let record = StatusRecord { uid, secret: status.secret.clone(), found_by };
        Some((status.id.as_str().into(), record))
    };
    statuses.iter().filter_map(kept).collect()
}

/// Returns whether `held` matches the clusters whose data is served. Statuses of thousands of clusters change all the
/// time, so nothing is allocated.
fn are_held(held: &ServedClusters, statuses: &[ClusterStatus]) -> bool {
    let mut kept = statuses.iter().filter_map(|status| Some((status, status.kept.as_ref()?)));
    let is_held = |(status, kept): (&ClusterStatus, &ClusterIdHolder)| {
        let holding = held.get(status.id.as_str());
        holding.is_some_and(|one| {
            one.uid == kept.uid && one.secret == status.secret && one.found_by == kept.found_by
        })
    };
    statuses.iter().filter(|status| status.kept.is_some()).count() == held.len()
        && kept.all(is_held)
}

/// The input of one write.
struct Work {
    before: WrittenClusters,
    now: Arc<PushContext>,
    statuses: Arc<Vec<ClusterStatus>>,
    others: others::StateToWrite,
    mesh: Option<Arc<BTreeMap<String, String>>>,
    /// Whether to write times of contact too, and to rewrite the file of a journal that is too old.
    thorough: bool,
}

impl Work {
    /// Writes the differences. If one source can't be written, the others are still written, and it is written
    /// completely later.
    fn carry_out(self, store: &mut StateDirectory) -> WriteOutcome {
        let written =
            WrittenClusters { context: Some(Arc::clone(&self.now)), ..WrittenClusters::default() };
        let mut done = WriteOutcome { bytes: 0, written, trouble: Ok(()) };
        let deltas = self.before.context.as_ref().map(|before| deltas(before, &self.now));
        self.clusters(deltas.as_ref(), store, &mut done);
        self.members(store, &mut done);
        let others = self.others;
        others.carry_out(&self.before.others, &self.now, deltas.as_ref(), store, &mut done);
        done
    }

    fn clusters(
        &self,
        deltas: Option<&Deltas>,
        store: &mut StateDirectory,
        done: &mut WriteOutcome,
    ) {
        let mut held = if are_held(&self.before.held, &self.statuses) {
            Arc::clone(&self.before.held)
        } else {
            Arc::new(held_by(&self.statuses))
        };
        // The update of a cluster that was read only just now may not have arrived yet.
        let is_there = |id: &ClusterId| self.now.network_labels.contains_key(id);
        let labels = self.before.context.as_ref().map(|before| &before.network_labels);
        let as_before = Arc::ptr_eq(&held, &self.before.held)
            && labels.is_some_and(|labels| labels.ptr_eq(&self.now.network_labels));
        if !as_before && !held.keys().all(is_there) {
            Arc::make_mut(&mut held).retain(|id, _| is_there(id));
        }
        let is_known = |id: &ClusterId| {
            deltas.is_some()
                && match (self.before.held.get(id), held.get(id)) {
                    (Some(before), Some(now)) => before.uid == now.uid,
                    _ => false,
                }
        };
        let mut whole = BTreeSet::new();
        for (id, delta) in deltas.into_iter().flatten().filter(|(id, _)| is_known(id)) {
            // If appending fails, the complete state is written.
            match store.append::<ShardState>(id.as_str(), delta) {
                Ok(Some(bytes)) => done.bytes += bytes,
                Ok(None) | Err(_) => drop(whole.insert(id.clone())),
            }
        }
        if deltas.is_none() || !Arc::ptr_eq(&held, &self.before.held) {
            whole.extend(held.keys().filter(|id| !is_known(id)).cloned());
        }
        // One per write, because rewriting files is not urgent.
        let looked_at = |id: &&ClusterId| {
            self.thorough || deltas.is_some_and(|deltas| deltas.contains_key(*id))
        };
        let names = held.keys().filter(looked_at).map(ClusterId::as_str);
        whole.extend(store.longest_journal::<ShardState>(names).map(ClusterId::from));
        let wanted = whole.iter().filter_map(|id| held.get_key_value(id));
        let wanted = wanted.map(|(id, one)| (id, one.uid.as_deref().map(Arc::from)));
        for shard in shards(&self.now, wanted) {
            if !done.note(store.put(&shard)) {
                Arc::make_mut(&mut held).remove(&shard.cluster);
            }
        }
        done.written.held = held;
    }

    /// Writes the list of members if a cluster or a setting of one changed, or if times of contact are due.
    fn members(&self, store: &mut StateDirectory, done: &mut WriteOutcome) {
        let (before, held) = (&self.before, &done.written.held);
        let is_same = before.members
            && !self.thorough
            && before.held == *held
            && before.mesh == self.mesh
            && before.context.as_ref().is_some_and(|one| one.clusters == self.now.clusters);
        if !is_same {
            let members = self.list(held);
            if !done.note(store.put_members(&members)) {
                return;
            }
            // A Secret that is currently unusable still names its cluster, and so does a standby.
            let named = self.statuses.iter().map(|status| status.id.as_str());
            if !done.note(store.forget_others::<ShardState>(named).map(|()| 0)) {
                return;
            }
        }
        done.written.members = true;
        done.written.mesh = self.mesh.clone();
    }

    fn list(&self, held: &ServedClusters) -> MembersState {
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
                last_contact: status.last_contact.get().and_then(millis),
            };
            (id, note)
        });
        let members = members.collect();
        let config = self.statuses.iter().find(|status| status.secret.is_none());
        let config = config.and_then(|status| status.last_contact.get());
        let sources = self.others.contacts(config);
        let known = self.now.clusters.clusters.iter().filter(|(id, _)| held.contains_key(*id));
        let created = known.filter_map(|(id, known)| Some((id.clone(), known.created?))).collect();
        let found_by = held.iter();
        let found_by = found_by.filter_map(|(id, one)| Some((id.clone(), one.found_by.clone()?)));
        let found_by = found_by.collect();
        let mesh = self.mesh.as_deref().cloned();
        MembersState { members, sources, mesh, created, found_by }
    }
}

/// Returns the contents of these clusters in the mesh, each with its UID. All parts are shared with the mesh.
pub(super) fn shards<'a>(
    context: &PushContext,
    clusters: impl Iterator<Item = (&'a ClusterId, Option<Arc<str>>)>,
) -> Vec<ShardState> {
    let empty = |(id, uid): (&ClusterId, Option<Arc<str>>)| {
        let shard = ShardState {
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
            for (id, record) in stored_records(service) {
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
    use super::super::StateOrigin;
    use super::*;
    use strait_mesh::push::event_loop::{MeshEvent, MeshState};
    use strait_mesh::testing::settings;
    use strait_model::registry::{Contents, Epoch, RegistryUpdate, ShardChange, ShardKey};
    use strait_model::testing::{endpoint, service, shard};

    #[test]
    fn record_is_stored_while_another_source_owns_the_name() {
        let dc = ClusterId::from("consul/dc1");
        let said = |key: ShardKey, namespace: &str, address: &str| {
            let service = service("web.ns").with(|service| service.namespace = namespace.into());
            let word = shard("any", 1).with(service, vec![endpoint(address)]).built();
            RegistryUpdate { shard: key, ..word }
        };
        let of_consul = |address| said(ShardKey::consul(dc.clone()), "consul", address);
        let mut mesh = MeshState::new(settings());
        mesh.apply(MeshEvent::Registry(of_consul("10.0.0.1")));
        mesh.apply(MeshEvent::Complete);
        let (alone, _) = mesh.next_version().expect("there is one");
        let kept_of = |context: &PushContext| {
            let service = context.services.values().next().expect("the service");
            let (_, record) = stored_records(service).find(|(id, _)| **id == dc).expect("stored");
            record.endpoints.first().expect("an endpoint").address.to_string()
        };
        assert_eq!(kept_of(&alone), "10.0.0.1");

        // A cluster has the name in another namespace.
        let east = ShardKey::kubernetes("east".into());
        mesh.apply(MeshEvent::Registry(said(east.clone(), "shop", "10.0.0.9")));
        let (taken, _) = mesh.next_version().expect("there is one");
        assert!(taken.services.values().all(|one| one.by_cluster.get(&dc).is_none()));
        assert_eq!(kept_of(&taken), "10.0.0.1");
        assert!(!deltas(&alone, &taken).contains_key(&dc));

        mesh.apply(MeshEvent::Registry(of_consul("10.0.0.2")));
        let (moved, _) = mesh.next_version().expect("there is one");
        assert_eq!(kept_of(&moved), "10.0.0.2");
        assert_eq!(
            deltas(&taken, &moved).into_keys().collect::<Vec<_>>(),
            std::slice::from_ref(&dc)
        );

        let change = ShardChange::Reset(Contents::default());
        mesh.apply(MeshEvent::Registry(RegistryUpdate { shard: east, epoch: Epoch(1), change }));
        let (back, _) = mesh.next_version().expect("there is one");
        assert_eq!(kept_of(&back), "10.0.0.2");
    }

    fn status(id: &str) -> ClusterStatus {
        ClusterStatus { kept: Some(ClusterIdHolder::default()), ..ClusterStatus::live(id) }
    }

    /// Writing fails for both clusters, and later for one of them: reading afterwards returns the last reported
    /// state. It never combines old journal records with a newer file.
    #[test]
    fn failed_source_is_rewritten_completely_without_blocking_others() {
        let origin = StateOrigin {
            domain: "cluster.local".into(),
            trust_domain: "cluster.local".into(),
            system_namespace: "strait-system".into(),
        };
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("lkg");
        let mut store = StateDirectory::open(&path, origin.clone());
        let mut mesh = MeshState::new(settings());
        mesh.apply(MeshEvent::CompleteWithoutNames);
        let says = |mesh: &mut MeshState, cluster: &str, name: &str, address: &str, first: bool| {
            let word = shard(cluster, 1).with(service(name), vec![endpoint(address)]);
            let word = if first { word } else { word.update() };
            mesh.apply(MeshEvent::Registry(word.built()));
        };
        for cluster in ["east", "west"] {
            says(&mut mesh, cluster, "web.ns", "10.0.0.1", true);
        }
        let (_sender, lines) = watch::channel(Default::default());
        let (_stores, stores) = watch::channel(None);
        let (_last_valid_sender, last_valid_objects) = watch::channel(Arc::default());
        let (_issuers, issuers) = watch::channel(Arc::default());
        let mut others = Others { lines, stores, last_valid_objects, issuers };
        let statuses = Arc::new(vec![status("east"), status("west")]);
        let mut written = WrittenClusters::default();
        let mut write = |mesh: &mut MeshState, store: &mut StateDirectory| {
            let now = mesh.next_version().map(|(now, _)| now);
            let now = now.or_else(|| written.context.clone()).expect("a version");
            let work = Work {
                before: written.clone(),
                now: Arc::clone(&now),
                statuses: Arc::clone(&statuses),
                others: others.now(),
                mesh: None,
                thorough: false,
            };
            let done = work.carry_out(store);
            written = done.written;
            (now, done.trouble.is_ok())
        };
        let holds = |now: &PushContext, cluster: &str| {
            let read = StateDirectory::open(&path, origin.clone()).read::<ShardState>(cluster).0;
            let id = ClusterId::from(cluster);
            let wanted = shards(now, [(&id, None)].into_iter()).pop();
            assert_eq!(read, wanted, "{cluster}");
        };
        let (now, fine) = write(&mut mesh, &mut store);
        assert!(fine);
        holds(&now, "east");
        holds(&now, "west");

        // One change is appended. The next can be neither appended nor written.
        says(&mut mesh, "east", "web.ns", "10.0.0.2", false);
        assert!(write(&mut mesh, &mut store).1);
        let away = directory.path().join("away");
        std::fs::rename(&path, &away).expect("renamed");
        std::fs::write(&path, "in the way").expect("written");
        says(&mut mesh, "east", "web.ns", "10.0.0.3", false);
        says(&mut mesh, "east", "db.ns", "10.0.0.9", false);
        assert!(!write(&mut mesh, &mut store).1);
        // This change is reverted, so the state on disk and the current state of this service are equal.
        says(&mut mesh, "east", "web.ns", "10.0.0.2", false);
        std::fs::remove_file(&path).expect("removed");
        std::fs::rename(&away, &path).expect("renamed");
        let (now, fine) = write(&mut mesh, &mut store);
        assert!(fine);
        holds(&now, "east");
        holds(&now, "west");

        // Only one source can't be written.
        let journal = |cluster: &str| {
            let names = std::fs::read_dir(&path).expect("there").flatten();
            let names = names.filter_map(|entry| entry.file_name().into_string().ok());
            let newest = names
                .filter(|name| name.starts_with(&format!("cluster-{cluster}.")))
                .filter(|name| name.ends_with(".lkg"))
                .max();
            path.join(newest.expect("a file").replace(".lkg", ".journal"))
        };
        std::fs::create_dir(journal("west")).expect("in the way");
        for cluster in ["east", "west"] {
            says(&mut mesh, cluster, "web.ns", "10.0.0.7", false);
        }
        let (now, fine) = write(&mut mesh, &mut store);
        assert!(fine, "written whole at once");
        assert!(journal("east").is_file() && !journal("west").exists());
        holds(&now, "east");
        holds(&now, "west");
    }
}
