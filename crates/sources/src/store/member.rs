//! The traffic objects of a member cluster, if the operator applies them to its proxies
//! (`trafficFrom` of the policy file). Otherwise no requests are sent.
//!
//! Owns their last known state: while the API server is unreachable everything stays, and a list
//! that lacks most known objects is requested again before it applies. They are interpreted
//! elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use futures::future::join_all;
use tokio::sync::{mpsc, watch};

use super::kube::{ReadObject, StoreInput, StoreReader, pass_on_config};
use strait_base::codes;
use strait_base::latest::publish_change;
use strait_base::mass_deletion::MassDeletionGuard;
use strait_kube_client::{ApiClient, ApiError, ListSelection, ReadLimits, WatchEvent};
use strait_model::{Collection, ConfigKind, OwnTraffic};

/// Capacity of the event channel. A full channel makes the readers wait.
const EVENTS_MAX: usize = 64;
/// Maximum number of events that are applied before the result is published.
const BATCH: usize = 256;
/// Maximum size of an object in bytes: objects are decoded completely, which takes a multiple of
/// their size.
const OBJECT_BYTES_MAX: usize = 1 << 20;

/// Reads the traffic objects of a cluster while they are wanted, with the current client of the
/// cluster's run.
pub async fn follow(
    mut wanted: watch::Receiver<bool>,
    mut client: watch::Receiver<Option<ApiClient>>,
    limits: ReadLimits,
    traffic: watch::Sender<OwnTraffic>,
) {
    loop {
        if wanted.wait_for(|wanted| *wanted).await.is_err() {
            return std::future::pending().await;
        }
        traffic.send_replace(OwnTraffic { is_wanted: true, ..OwnTraffic::default() });
        let reading = async {
            loop {
                let current = client.borrow_and_update().clone();
                let read = async {
                    match current {
                        Some(client) => Box::pin(read(client, limits, &traffic)).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    () = read => {}
                    Ok(()) = client.changed() => {}
                }
            }
        };
        tokio::select! {
            () = reading => {}
            _ = wanted.wait_for(|wanted| !*wanted) => {}
        }
        traffic.send_replace(OwnTraffic::default());
    }
}

async fn read(client: ApiClient, limits: ReadLimits, traffic: &watch::Sender<OwnTraffic>) {
    let (sink, mut inputs) = mpsc::channel(EVENTS_MAX);
    let limits = ReadLimits { object_bytes: limits.object_bytes.min(OBJECT_BYTES_MAX), ..limits };
    let readers = ConfigKind::in_members().map(|kind| {
        let selection = ListSelection::in_best(kind.group, kind.versions, kind.plural);
        let selection = ListSelection { is_optional: true, ..selection };
        pass_on_config(&client, selection, (kind, limits), &sink)
    });
    let known_objects = traffic.borrow().objects.clone().unwrap_or_default();
    let mut index = MemberIndex { objects: known_objects, limits, ..MemberIndex::default() };
    let serve = async {
        while let Some(input) = inputs.recv().await {
            index.apply(input, Instant::now());
            for _ in 1..BATCH {
                let Ok(input) = inputs.try_recv() else { break };
                index.apply(input, Instant::now());
            }
            std::mem::take(&mut index.again)
                .into_iter()
                .for_each(|plural| client.list_again(plural));
            publish_change(traffic, index.found());
        }
    };
    tokio::select! {
        _ = join_all(readers) => {}
        () = serve => {}
    }
}

/// The known objects by kind. Pure.
#[derive(Default)]
struct MemberIndex {
    objects: Collection,
    limits: ReadLimits,
    /// Kinds that have been listed once, do not exist or may not be read.
    read: BTreeSet<StoreReader>,
    /// Why kinds cannot be read.
    troubles: BTreeMap<StoreReader, String>,
    /// Errors in single objects.
    invalid: BTreeMap<(StoreReader, String), String>,
    guard: MassDeletionGuard<StoreReader>,
    /// The kinds to list again, in plural.
    again: BTreeSet<&'static str>,
}

impl MemberIndex {
    fn apply(&mut self, StoreInput { reader, event }: StoreInput, now: Instant) {
        let StoreReader::Config(kind) = reader else { return };
        match event {
            WatchEvent::Failed(error) => self.failed(reader, kind, &error),
            WatchEvent::Answered => drop(self.troubles.remove(&reader)),
            WatchEvent::Restarted { objects, invalid } => {
                self.troubles.remove(&reader);
                let stored: Vec<_> = self
                    .objects
                    .iter()
                    .map(|(key, _)| key)
                    .filter(|key| kind.contains(key))
                    .collect();
                let named: BTreeSet<_> = objects
                    .iter()
                    .map(|one| {
                        let name = one.name();
                        kind.key(&name.namespace, &name.name)
                    })
                    .chain(invalid.iter().filter_map(|one| {
                        let key = one.key.as_ref()?;
                        Some(kind.key(&key.namespace, &key.name))
                    }))
                    .collect();
                let found = stored.iter().filter(|key| named.contains(**key)).count();
                if !stored.is_empty() && !self.guard.admits(reader, stored.len(), found, now) {
                    self.again.insert(kind.plural);
                    return;
                }
                let gone: Vec<_> =
                    stored.into_iter().filter(|key| !named.contains(*key)).cloned().collect();
                gone.iter().for_each(|key| drop(self.objects.remove(key)));
                self.invalid.retain(|(found_by, _), _| *found_by != reader);
                objects.into_iter().for_each(|object| self.take(reader, kind, object));
                for one in invalid {
                    let name = one.key.as_ref().map(ToString::to_string).unwrap_or_default();
                    self.invalid.insert((reader, name), one.reason);
                }
                self.read.insert(reader);
            }
            WatchEvent::Applied(object) => self.take(reader, kind, object),
            WatchEvent::Deleted(key) => {
                self.objects.remove(&kind.key(&key.namespace, &key.name));
                self.invalid.remove(&(reader, key.to_string()));
            }
            // The previous version stays.
            WatchEvent::Invalid(one) => {
                let name = one.key.as_ref().map(ToString::to_string).unwrap_or_default();
                self.invalid.insert((reader, name), one.reason);
            }
        }
    }

    fn take(&mut self, reader: StoreReader, kind: &ConfigKind, object: ReadObject) {
        let ReadObject::Config(name, object) = object else { return };
        let key = kind.key(&name.namespace, &name.name);
        self.invalid.remove(&(reader, name.to_string()));
        if self.objects.get(&key).is_none() && self.objects.len() >= self.limits.objects {
            let text = format!("there are more than {}, which is the limit", self.limits.objects);
            self.invalid.insert((reader, name.to_string()), text);
            return;
        }
        let mut object = object.to_value();
        kind.stamp(&mut object);
        self.objects.insert(key, object);
    }

    fn failed(&mut self, reader: StoreReader, kind: &ConfigKind, error: &ApiError) {
        let plural = kind.plural;
        let text = match error {
            // Versions expire; the reader lists again.
            ApiError::Gone(_) | ApiError::VersionAhead(_) => return,
            // Not installed. Known objects stay until a list lacks them: a server that has just
            // started temporarily lacks custom kinds.
            ApiError::NotFound(_) => {
                self.read.insert(reader);
                self.troubles.remove(&reader);
                return;
            }
            ApiError::Forbidden(_) => {
                self.read.insert(reader);
                let code = &codes::OWN_TRAFFIC_DENIED;
                format!(
                    "{code}: {plural}: {error} (trafficFrom of the policy file names this cluster, but none of them apply; strait cluster add --own-traffic grants the permission)"
                )
            }
            ApiError::Misbehaving(_) | ApiError::OverBudget(_) => {
                format!(
                    "{}: {plural}: {error} (the last known ones stay in use)",
                    codes::MISBEHAVING
                )
            }
            // The probe of the cluster reports it.
            _ => return,
        };
        self.troubles.insert(reader, text);
    }

    fn found(&self) -> OwnTraffic {
        let is_read =
            ConfigKind::in_members().all(|kind| self.read.contains(&StoreReader::Config(kind)));
        let invalid = self.invalid.iter().map(|((reader, name), reason)| {
            let code = &codes::TRAFFIC_MALFORMED;
            format!(
                "{code}: {} {name}: {reason}; its previous version stays in use",
                reader.plural()
            )
        });
        // One example is enough, there may be thousands.
        let problems = self.troubles.values().cloned().chain(invalid.take(1)).collect();
        OwnTraffic { is_wanted: true, objects: is_read.then(|| self.objects.clone()), problems }
    }
}

#[cfg(test)]
mod tests;
