//! Secrets of the sources in the operator file, next to those of the system namespace.
//!
//! Each source of Secrets has one reader, which keeps its last state while the namespace cannot be
//! read. With a configuration directory, the Secrets come from its files.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::pending;
use tokio::sync::{Notify, mpsc, watch};
use tracing::warn;

use super::combined::changed;
use super::kube::SecretObject;
use super::{ObjectName, Objects, WatchedSecret};
use crate::members::{MemberSources, SecretSelection};
use strait_base::codes;
use strait_base::mass_deletion::MassDeletionGuard;
use strait_base::task::Supervisor;
use strait_kube_client::{
    Access, ApiClient, ApiError, ListSelection, ReadLimits, WatchEvent, cluster_uid,
};

/// Maximum number of Secrets of a source; each may have 1 MiB.
const SECRETS_MAX: usize = 10_000;
/// The time limit of the check whether the right cluster responds.
const UID_LIMIT: Duration = Duration::from_secs(10);
/// The pause before a list is requested again, because a different cluster may have responded.
const AGAIN_PAUSE: Duration = Duration::from_secs(2);

/// The objects with the Secrets of all sources, and the problems with sources.
#[derive(Debug, Clone)]
pub struct ObjectsWithSources {
    /// `None` until the own objects and each source have been read once, or a source cannot be read.
    pub objects: watch::Receiver<Option<Arc<Objects>>>,
    /// The sources that cannot be read, each with the reason.
    pub problems: watch::Receiver<Vec<String>>,
}

impl ObjectsWithSources {
    /// Returns the own objects only.
    pub fn without(own: watch::Receiver<Option<Arc<Objects>>>) -> Self {
        Self { objects: own, problems: watch::channel(Vec::new()).1 }
    }
}

/// Adds the Secrets of `sources` to the objects in `own`. `access` is that of the config cluster;
/// `None` for a configuration directory.
pub fn with_sources(
    own: watch::Receiver<Option<Arc<Objects>>>,
    access: Option<watch::Receiver<Access>>,
    sources: watch::Receiver<Arc<MemberSources>>,
    tasks: &Supervisor,
) -> ObjectsWithSources {
    let (objects, objects_receiver) = watch::channel(None);
    let (problems, problems_receiver) = watch::channel(Vec::new());
    let readers = tasks.child();
    tasks.spawn_restarting("member sources", Duration::from_secs(1), move || {
        let joined = JoinedSources {
            own: own.clone(),
            access: access.clone(),
            sources: sources.clone(),
            readers: BTreeMap::new(),
            changed: Arc::default(),
            tasks: readers.clone(),
        };
        joined.run(objects.clone(), problems.clone())
    });
    ObjectsWithSources { objects: objects_receiver, problems: problems_receiver }
}

/// The Secrets of one source.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct SourceState {
    /// `None` until the first list.
    secrets: Option<BTreeMap<ObjectName, Arc<WatchedSecret>>>,
    /// Why the source cannot be read now.
    failure: Option<String>,
    /// The UID of the cluster that was read first, if known.
    uid: Option<String>,
}

/// The cluster that responds, compared with the cluster that was read first.
enum RespondingCluster {
    Right,
    Other {
        was: String,
        is: String,
    },
    /// Its UID cannot be read now.
    Unknown {
        was: Option<String>,
    },
}

/// The reader of one source.
struct SourceReader {
    selection: SecretSelection,
    state: watch::Receiver<SourceState>,
    tasks: Supervisor,
}

impl Drop for SourceReader {
    fn drop(&mut self) {
        self.tasks.stop();
    }
}

struct JoinedSources {
    own: watch::Receiver<Option<Arc<Objects>>>,
    access: Option<watch::Receiver<Access>>,
    sources: watch::Receiver<Arc<MemberSources>>,
    readers: BTreeMap<Arc<str>, SourceReader>,
    /// Notified when the state of a reader changes.
    changed: Arc<Notify>,
    tasks: Supervisor,
}

impl JoinedSources {
    async fn run(
        mut self,
        objects: watch::Sender<Option<Arc<Objects>>>,
        problems: watch::Sender<Vec<String>>,
    ) {
        loop {
            let sources = Arc::clone(&self.sources.borrow_and_update());
            self.align_readers(&sources);
            let own = self.own.borrow_and_update().clone();
            let failures = self.failures();
            problems.send_if_modified(|current| {
                let differs = *current != failures;
                current.clone_from(&failures);
                differs
            });
            // A source that is added later does not delay the other objects.
            let is_complete = objects.borrow().is_some() || self.readers.values().all(is_read);
            if let Some(own) = own.filter(|_| is_complete) {
                let joined = self.join(&own, &sources);
                objects.send_if_modified(|current| {
                    let differs = current.as_ref() != Some(&joined);
                    *current = Some(joined);
                    differs
                });
            }
            tokio::select! {
                changed = self.own.changed() => if changed.is_err() { return pending().await },
                () = changed(&mut self.sources) => {}
                () = self.changed.notified() => {}
            }
        }
    }

    /// Starts a reader for each new source, and stops those of removed sources.
    fn align_readers(&mut self, sources: &MemberSources) {
        let Some(access) = &self.access else { return };
        let mut before = std::mem::take(&mut self.readers);
        for (source, selection) in sources.secret_sources() {
            let reader = match before.remove(&source.name) {
                Some(reader) if reader.selection == *selection => reader,
                replaced => {
                    // The previous Secrets stay until the new selection has been read.
                    let known = replaced.map(|reader| reader.state.borrow().clone());
                    let tasks = self.tasks.child();
                    let (sender, state) = watch::channel(known.unwrap_or_default());
                    let reading = ReadSource {
                        name: Arc::clone(&source.name),
                        access: access.clone(),
                        selection: selection.clone(),
                        state: sender,
                        changed: Arc::clone(&self.changed),
                    };
                    let name = format!("member source {}", source.name);
                    tasks.spawn_restarting(name, Duration::from_secs(1), move || {
                        reading.clone().run()
                    });
                    SourceReader { selection: selection.clone(), state, tasks }
                }
            };
            self.readers.insert(Arc::clone(&source.name), reader);
        }
    }

    fn failures(&self) -> Vec<String> {
        let failure = |(name, reader): (&Arc<str>, &SourceReader)| {
            let fact = reader.state.borrow().failure.clone()?;
            let namespace = &reader.selection.namespace;
            Some(format!("source {name}: Secrets of namespace {namespace}: {fact}"))
        };
        self.readers.iter().filter_map(failure).collect()
    }

    /// Returns the own objects with the Secrets of the sources. A Secret that several sources select
    /// belongs to the first.
    fn join(&self, own: &Arc<Objects>, sources: &MemberSources) -> Arc<Objects> {
        if sources.secret_sources().next().is_none() {
            return Arc::clone(own);
        }
        let mut joined = Objects::clone(own);
        let mut names: BTreeSet<_> = own.secrets.iter().map(|secret| secret.name.clone()).collect();
        for (source, selection) in sources.secret_sources() {
            let found: Vec<Arc<WatchedSecret>> = match self.readers.get(&source.name) {
                Some(reader) => {
                    let state = reader.state.borrow();
                    if state.secrets.is_none() && joined.partial.is_none() {
                        joined.partial = Some(format!("source {}", source.name).into());
                    }
                    state.secrets.iter().flat_map(BTreeMap::values).cloned().collect()
                }
                None => {
                    let is_selected = |secret: &&Arc<WatchedSecret>| {
                        selection.includes(&secret.name.namespace, &secret.labels)
                    };
                    let selected = own.other_secrets.iter().filter(is_selected);
                    let of_source = |secret: &Arc<WatchedSecret>| {
                        let source = Some(Arc::clone(&source.name));
                        Arc::new(WatchedSecret { source, ..WatchedSecret::clone(secret) })
                    };
                    selected.map(of_source).collect()
                }
            };
            let added = found.into_iter().filter(|secret| names.insert(secret.name.clone()));
            joined.secrets.extend(added);
        }
        Arc::new(joined)
    }
}

/// Whether a source has been read, or cannot be read.
fn is_read(reader: &SourceReader) -> bool {
    let state = reader.state.borrow();
    state.secrets.is_some() || state.failure.is_some()
}

/// Reads the Secrets of one source.
#[derive(Clone)]
struct ReadSource {
    /// The name of the source.
    name: Arc<str>,
    access: watch::Receiver<Access>,
    selection: SecretSelection,
    state: watch::Sender<SourceState>,
    changed: Arc<Notify>,
}

impl ReadSource {
    async fn run(mut self) {
        loop {
            let access = self.access.borrow_and_update().clone();
            match ApiClient::new(&access) {
                Ok(client) => {
                    let mut renewed = self.access.clone();
                    tokio::select! {
                        () = self.follow(&client) => {}
                        () = changed(&mut renewed) => {}
                    }
                }
                Err(error) => {
                    self.fail(error.to_string());
                    changed(&mut self.access).await;
                }
            }
        }
    }

    /// Applies the events of a watch.
    async fn follow(&self, client: &ApiClient) {
        let selector = self.selection.selector.as_str();
        let selection = ListSelection {
            namespace: Some(self.selection.namespace.to_string()),
            labels: (!selector.is_empty()).then(|| selector.to_owned()),
            ..ListSelection::all("", "v1", "secrets")
        };
        let limits = ReadLimits { objects: SECRETS_MAX, ..ReadLimits::default() };
        let (events, mut received) = mpsc::channel::<WatchEvent<SecretObject>>(1);
        let apply = async {
            let mut guard = MassDeletionGuard::default();
            let mut is_right = false;
            while let Some(event) = received.recv().await {
                if matches!(event, WatchEvent::Answered | WatchEvent::Restarted { .. }) {
                    is_right = self.is_right_cluster(client).await;
                    if !is_right {
                        tokio::time::sleep(AGAIN_PAUSE).await;
                        client.list_again("secrets");
                    }
                }
                if is_right || matches!(event, WatchEvent::Failed(_)) {
                    self.apply(event, client, &mut guard);
                }
            }
        };
        tokio::select! {
            () = client.watch::<SecretObject, WatchEvent<SecretObject>>(selection, limits, &events) => {}
            () = apply => {}
        }
    }

    /// Whether the cluster that was read first responds. If that is unknown, the last known state
    /// stays, as if it were another one.
    async fn is_right_cluster(&self, client: &ApiClient) -> bool {
        let fact = match self.responding_cluster(client).await {
            RespondingCluster::Right => return true,
            RespondingCluster::Other { was, is } => format!(
                "{}: a different cluster responds: its UID was {was} and is {is}",
                codes::IDENTITY_CHANGED
            ),
            RespondingCluster::Unknown { was } => {
                let was = was.map(|was| format!(", which was {was}")).unwrap_or_default();
                format!(
                    "{}: cannot read the UID of the cluster{was}: a different one may respond, so the last known Secrets stay",
                    codes::SOURCE_UNREADABLE
                )
            }
        };
        self.fail(fact);
        false
    }

    async fn responding_cluster(&self, client: &ApiClient) -> RespondingCluster {
        let was = self.state.borrow().uid.clone();
        let found = tokio::time::timeout(UID_LIMIT, cluster_uid(client)).await;
        match (was, found) {
            (Some(was), Ok(Some(is))) if was != is => RespondingCluster::Other { was, is },
            (Some(_), Ok(Some(_))) => RespondingCluster::Right,
            (None, Ok(Some(is))) => {
                self.state.send_modify(|state| state.uid = Some(is));
                RespondingCluster::Right
            }
            // Never permitted: there is nothing to compare with.
            (None, Ok(None)) => RespondingCluster::Right,
            (was, _) => RespondingCluster::Unknown { was },
        }
    }

    fn apply(
        &self,
        event: WatchEvent<SecretObject>,
        client: &ApiClient,
        guard: &mut MassDeletionGuard<()>,
    ) {
        let mut state = self.state.borrow().clone();
        if !matches!(event, WatchEvent::Failed(_)) {
            state.failure = None;
        }
        match event {
            WatchEvent::Answered => {}
            WatchEvent::Restarted { objects, invalid } => {
                let known = state.secrets.take().unwrap_or_default();
                let mut found = BTreeMap::new();
                for object in objects {
                    match self.read(object) {
                        Ok(secret) => drop(found.insert(secret.name.clone(), secret)),
                        Err(name) => {
                            let previous = known.get(&name).cloned();
                            found.extend(previous.map(|secret| (name, secret)));
                        }
                    }
                }
                for key in invalid.iter().filter_map(|invalid| invalid.key.as_ref()) {
                    let name = ObjectName::new(&key.namespace, &key.name);
                    if let Some(secret) = known.get(&name) {
                        found.insert(name, Arc::clone(secret));
                    }
                }
                let kept = known.keys().filter(|name| found.contains_key(*name)).count();
                let is_admitted = guard.admits((), known.len(), kept, Instant::now());
                if !is_admitted {
                    client.list_again("secrets");
                }
                state.secrets = Some(if is_admitted { found } else { known });
            }
            WatchEvent::Applied(object) => {
                let secrets = state.secrets.get_or_insert_default();
                // If its data is invalid, the previous version stays.
                if let Ok(secret) = self.read(object) {
                    secrets.insert(secret.name.clone(), secret);
                }
            }
            WatchEvent::Deleted(key) => {
                if let Some(secrets) = &mut state.secrets {
                    secrets.remove(&ObjectName::new(&key.namespace, &key.name));
                }
            }
            // The previous version stays.
            WatchEvent::Invalid(invalid) => {
                warn!(reason = invalid.reason, "Secret of a member source not used");
            }
            WatchEvent::Failed(ApiError::Gone(_) | ApiError::VersionAhead(_)) => {}
            WatchEvent::Failed(error) => {
                return self.fail(format!("{}: {error}", codes::SOURCE_UNREADABLE));
            }
        }
        self.publish(state);
    }

    /// Returns a Secret of the source, or its name if its data is invalid.
    fn read(&self, object: SecretObject) -> Result<Arc<WatchedSecret>, ObjectName> {
        let source = Some(Arc::clone(&self.name));
        let read = object.read().map(|secret| Arc::new(WatchedSecret { source, ..secret }));
        read.map_err(|(name, fact)| {
            warn!(secret = %name, reason = fact, "Secret of a member source not used");
            name
        })
    }

    fn fail(&self, fact: String) {
        let state = SourceState { failure: Some(fact), ..self.state.borrow().clone() };
        self.publish(state);
    }

    fn publish(&self, state: SourceState) {
        let before = self.state.borrow().failure.clone();
        if let Some(fact) = state.failure.as_ref().filter(|fact| before.as_ref() != Some(fact)) {
            warn!(namespace = %self.selection.namespace, reason = fact, "cannot read a member source");
        }
        let is_changed = self.state.send_if_modified(|current| {
            let differs = *current != state;
            *current = state;
            differs
        });
        if is_changed {
            self.changed.notify_one();
        }
    }
}
