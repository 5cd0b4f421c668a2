//! Secrets and ClusterProfiles of the sources in the operator file, next to the Secrets of the system
//! namespace, and the Secrets of access providers.
//!
//! Each source has one reader, which keeps its last state while the namespace cannot be read. A
//! profile is added when the Secret with its credential has been read. With a configuration directory,
//! the objects come from its files.

#[cfg(test)]
mod tests;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::pending;
use tokio::sync::{Notify, mpsc, watch};
use tracing::warn;

use super::combined::changed;
use super::kube::{DecisionObject, MemberDefinition, ProfileObject, SecretObject};
use super::{ObjectName, Objects, WatchedSecret};
use crate::members::placement::complete_set;
use crate::members::profile::PUBLISHING_MANAGER;
use crate::members::{
    MemberSources, ObjectSelection, PlacementSelection, SelectorExpression, Source,
};
use strait_base::codes;
use strait_base::latest::publish_change;
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
            provider_readers: BTreeMap::new(),
            placement_readers: BTreeMap::new(),
            placed: BTreeMap::new(),
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

/// The kind of the objects that a reader reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SelectedKind {
    Secrets,
    ClusterProfiles,
    PlacementDecisions,
}

impl SelectedKind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Secrets => "Secrets",
            Self::ClusterProfiles => "ClusterProfiles",
            Self::PlacementDecisions => "PlacementDecisions",
        }
    }

    fn plural(self) -> &'static str {
        match self {
            Self::Secrets => "secrets",
            Self::ClusterProfiles => "clusterprofiles",
            Self::PlacementDecisions => "placementdecisions",
        }
    }
}

/// The objects that a reader reads.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ReadSelection {
    kind: SelectedKind,
    objects: ObjectSelection,
    /// The only object, if set.
    name: Option<Arc<str>>,
}

impl ReadSelection {
    fn of_source(source: &Source) -> Self {
        let (objects, is_profile) = source.selection();
        let kind = if is_profile { SelectedKind::ClusterProfiles } else { SelectedKind::Secrets };
        Self { kind, objects: objects.clone(), name: None }
    }

    fn of_placement(placement: &PlacementSelection) -> Self {
        let (kind, objects) = (SelectedKind::PlacementDecisions, placement.decisions());
        Self { kind, objects, name: None }
    }

    fn of_secret(name: &ObjectName) -> Self {
        let namespace = Arc::clone(&name.namespace);
        let objects = ObjectSelection { namespace, selector: SelectorExpression::default() };
        Self { kind: SelectedKind::Secrets, objects, name: Some(Arc::clone(&name.name)) }
    }

    fn list_selection(&self) -> ListSelection {
        let is_core = self.kind == SelectedKind::Secrets;
        let all = match is_core {
            true => ListSelection::all("", "v1", self.kind.plural()),
            false => ListSelection::all("multicluster.x-k8s.io", "v1alpha1", self.kind.plural()),
        };
        let selector = self.objects.selector.as_str();
        ListSelection {
            namespace: Some(self.objects.namespace.to_string()),
            labels: (!selector.is_empty()).then(|| selector.to_owned()),
            fields: self.name.as_ref().map(|name| format!("metadata.name={name}")),
            is_optional: !is_core,
            ..all
        }
    }
}

/// The reader of one source.
struct SourceReader {
    selection: ReadSelection,
    state: watch::Receiver<SourceState>,
    tasks: Supervisor,
}

impl Drop for SourceReader {
    fn drop(&mut self) {
        self.tasks.stop();
    }
}

/// The objects of all sources.
struct JoinedObjects {
    objects: Arc<Objects>,
    /// Why selected objects are not used.
    hidden: Vec<String>,
}

struct JoinedSources {
    own: watch::Receiver<Option<Arc<Objects>>>,
    access: Option<watch::Receiver<Access>>,
    sources: watch::Receiver<Arc<MemberSources>>,
    readers: BTreeMap<Arc<str>, SourceReader>,
    /// The readers of the Secrets of access providers.
    provider_readers: BTreeMap<ObjectName, SourceReader>,
    /// The readers of the decisions that limit a source, by source.
    placement_readers: BTreeMap<Arc<str>, SourceReader>,
    /// The last complete set of the profiles that decisions select, by source.
    placed: BTreeMap<Arc<str>, BTreeSet<(String, String)>>,
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
            self.align_provider_readers(&sources);
            self.update_placed(own.as_deref(), &sources);
            // A source that is added later does not delay the other objects.
            let readers = self.readers.values().chain(self.provider_readers.values());
            let mut readers = readers.chain(self.placement_readers.values());
            let is_complete = objects.borrow().is_some() || readers.all(is_read);
            let mut found_problems = self.failures();
            found_problems.extend(self.undecided(own.as_deref(), &sources));
            if let Some(own) = own.filter(|_| is_complete) {
                let known = objects.borrow().clone();
                let JoinedObjects { objects: joined, hidden } =
                    self.join(&own, &sources, known.as_deref());
                found_problems.extend(hidden);
                publish_change(&objects, Some(joined));
            }
            publish_change(&problems, found_problems);
            tokio::select! {
                changed = self.own.changed() => if changed.is_err() { return pending().await },
                () = changed(&mut self.sources) => {}
                () = self.changed.notified() => {}
            }
        }
    }

    /// Starts a reader for each new source, and stops those of removed sources.
    fn align_readers(&mut self, sources: &MemberSources) {
        let Some(access) = &self.access.clone() else { return };
        let mut before = std::mem::take(&mut self.readers);
        let mut placements_before = std::mem::take(&mut self.placement_readers);
        for source in &sources.sources {
            let selection = ReadSelection::of_source(source);
            let before = before.remove(&source.name);
            let reader = self.reader(before, Some(&source.name), selection, access);
            self.readers.insert(Arc::clone(&source.name), reader);
            if let Some(placement) = source.placement() {
                let selection = ReadSelection::of_placement(placement);
                let before = placements_before.remove(&source.name);
                let reader = self.reader(before, Some(&source.name), selection, access);
                self.placement_readers.insert(Arc::clone(&source.name), reader);
            }
        }
    }

    /// Computes the profiles that the decisions of each placement select. While slices are missing, the
    /// previous set applies.
    fn update_placed(&mut self, own: Option<&Objects>, sources: &MemberSources) {
        self.placed.retain(|name, _| {
            sources.source(name).is_some_and(|(_, source)| source.placement().is_some())
        });
        for source in &sources.sources {
            let slices = self.slices(own, source).unwrap_or_default();
            if let Some(set) = complete_set(slices.iter().filter_map(|one| one.decision.as_deref()))
            {
                self.placed.insert(Arc::clone(&source.name), set);
            }
        }
    }

    /// Returns the slices of the placement that limits a source; `None` without a placement, and before
    /// they have been read.
    fn slices(&self, own: Option<&Objects>, source: &Source) -> Option<Vec<Arc<WatchedSecret>>> {
        let selection = source.placement()?.decisions();
        if let Some(reader) = self.placement_readers.get(&source.name) {
            let state = reader.state.borrow();
            return state.secrets.as_ref().map(|slices| slices.values().cloned().collect());
        }
        let own = own.filter(|_| self.access.is_none())?;
        let is_slice = |one: &&Arc<WatchedSecret>| {
            one.decision.is_some() && selection.includes(&one.name.namespace, &one.labels)
        };
        Some(own.other_secrets.iter().filter(is_slice).cloned().collect())
    }

    /// Returns the sources whose placement has no decision. Their previous members stay.
    fn undecided(&self, own: Option<&Objects>, sources: &MemberSources) -> Vec<String> {
        let undecided = |source: &Source| {
            let PlacementSelection { namespace, decision_key } = source.placement()?;
            let slices = self.slices(own, source)?;
            slices.is_empty().then(|| {
                format!(
                    "source {}: {}: namespace {namespace} has no PlacementDecision with decision-key {decision_key}; the last known set stays",
                    source.name,
                    codes::PLACEMENT_UNDECIDED
                )
            })
        };
        sources.sources.iter().filter_map(undecided).collect()
    }

    /// Whether the placement of a source selects an object.
    fn is_placed(&self, source: &Source, object: &WatchedSecret) -> bool {
        let name = (object.name.namespace.to_string(), object.name.name.to_string());
        source.placement().is_none()
            || self.placed.get(&source.name).is_some_and(|placed| placed.contains(&name))
    }

    /// Returns `before` if it reads this selection, otherwise a new reader. The previous objects stay
    /// until the new selection has been read.
    fn reader(
        &self,
        before: Option<SourceReader>,
        source: Option<&Arc<str>>,
        selection: ReadSelection,
        access: &watch::Receiver<Access>,
    ) -> SourceReader {
        let known = match before {
            Some(reader) if reader.selection == selection => return reader,
            replaced => replaced.map(|reader| reader.state.borrow().clone()),
        };
        let tasks = self.tasks.child();
        let (sender, state) = watch::channel(known.unwrap_or_default());
        let reading = ReadSource {
            source: source.cloned(),
            access: access.clone(),
            selection: selection.clone(),
            state: sender,
            changed: Arc::clone(&self.changed),
        };
        let name = match source {
            Some(source) => format!("member source {source}"),
            None => "secret of an access provider".to_owned(),
        };
        tasks.spawn_restarting(name, Duration::from_secs(1), move || reading.clone().run());
        SourceReader { selection, state, tasks }
    }

    /// Starts a reader for the Secret of each profile's provider, and stops those that no profile needs.
    fn align_provider_readers(&mut self, sources: &MemberSources) {
        let Some(access) = self.access.clone() else { return };
        let mut before = std::mem::take(&mut self.provider_readers);
        let mut needed = BTreeSet::new();
        for reader in self
            .readers
            .values()
            .filter(|reader| reader.selection.kind == SelectedKind::ClusterProfiles)
        {
            let state = reader.state.borrow();
            let profiles = state.secrets.iter().flat_map(BTreeMap::values);
            needed.extend(profiles.filter_map(|profile| provider_secret(profile, sources)));
        }
        for name in needed {
            let selection = ReadSelection::of_secret(&name);
            let reader = self.reader(before.remove(&name), None, selection, &access);
            self.provider_readers.insert(name, reader);
        }
    }

    fn failures(&self) -> Vec<String> {
        let failure = |(name, reader): (&Arc<str>, &SourceReader)| {
            let fact = reader.state.borrow().failure.clone()?;
            let ReadSelection { kind, objects, .. } = &reader.selection;
            let (kind, namespace) = (kind.as_str(), &objects.namespace);
            Some(format!("source {name}: {kind} of namespace {namespace}: {fact}"))
        };
        let provider = |(name, reader): (&ObjectName, &SourceReader)| {
            let fact = reader.state.borrow().failure.clone()?;
            Some(format!("access: Secret {name}: {fact}"))
        };
        let readers = self.readers.iter().chain(&self.placement_readers);
        let sources = readers.filter_map(failure);
        sources.chain(self.provider_readers.iter().filter_map(provider)).collect()
    }

    /// Returns the own objects with the objects of the sources. An object that several sources select
    /// belongs to the first. Of a Secret and a profile with one name, the first is used as well, because
    /// members are known by the name of their object. `known` contains the
    /// objects that were returned before.
    fn join(
        &self,
        own: &Arc<Objects>,
        sources: &MemberSources,
        known: Option<&Objects>,
    ) -> JoinedObjects {
        let mut hidden = Vec::new();
        if sources.sources.is_empty() {
            return JoinedObjects { objects: Arc::clone(own), hidden };
        }
        let mut joined = Objects::clone(own);
        self.add_provider_secrets(&mut joined, sources);
        let is_profile = |object: &WatchedSecret| object.profile.is_some();
        let mut names: BTreeMap<_, _> =
            own.secrets.iter().map(|secret| (secret.name.clone(), is_profile(secret))).collect();
        let known: BTreeSet<_> =
            known.iter().flat_map(|known| &known.secrets).map(|secret| &secret.name).collect();
        for source in &sources.sources {
            let found: Vec<Arc<WatchedSecret>> = match self.readers.get(&source.name) {
                Some(reader) => {
                    let state = reader.state.borrow();
                    let is_unplaced =
                        source.placement().is_some() && !self.placed.contains_key(&source.name);
                    if (state.secrets.is_none() || is_unplaced) && joined.partial.is_none() {
                        joined.partial = Some(format!("source {}", source.name).into());
                    }
                    let found = state.secrets.iter().flat_map(BTreeMap::values);
                    let is_ready = |one: &&Arc<WatchedSecret>| {
                        known.contains(&one.name) || self.has_read_credential(one, sources)
                    };
                    found.filter(is_ready).cloned().collect()
                }
                None => {
                    let is_selected = |secret: &&Arc<WatchedSecret>| {
                        let is_profile = secret.profile.is_some();
                        let defines = secret.decision.is_none();
                        defines
                            && source.includes(is_profile, &secret.name.namespace, &secret.labels)
                    };
                    let selected = own.other_secrets.iter().filter(is_selected);
                    let of_source = |secret: &Arc<WatchedSecret>| {
                        let source = Some(Arc::clone(&source.name));
                        Arc::new(WatchedSecret { source, ..WatchedSecret::clone(secret) })
                    };
                    selected.map(of_source).collect()
                }
            };
            let is_usable = |object: &Arc<WatchedSecret>| {
                self.is_placed(source, object) && !is_published(object)
            };
            let found = found.into_iter().filter(is_usable);
            for object in found {
                match names.entry(object.name.clone()) {
                    Entry::Vacant(place) => {
                        place.insert(is_profile(&object));
                        joined.secrets.push(object);
                    }
                    Entry::Occupied(used) if *used.get() != is_profile(&object) => {
                        let [unused, used] = match is_profile(&object) {
                            true => ["ClusterProfile", "Secret"],
                            false => ["Secret", "ClusterProfile"],
                        };
                        hidden.push(format!(
                            "source {}: {}: the {unused} {} is not used, because a {used} with this name is selected too",
                            source.name,
                            codes::NAME_OF_ANOTHER_KIND,
                            object.name
                        ));
                    }
                    Entry::Occupied(_) => {}
                }
            }
        }
        JoinedObjects { objects: Arc::new(joined), hidden }
    }

    /// Whether the Secret with the credential of a profile has been read, or cannot be read.
    fn has_read_credential(&self, object: &WatchedSecret, sources: &MemberSources) -> bool {
        let secret = provider_secret(object, sources);
        let reader = secret.map(|secret| self.provider_readers.get(&secret));
        reader.is_none_or(|reader| reader.is_some_and(is_read))
    }

    fn add_provider_secrets(&self, joined: &mut Objects, sources: &MemberSources) {
        for (name, reader) in &self.provider_readers {
            let state = reader.state.borrow();
            let secret = state.secrets.as_ref().and_then(|secrets| secrets.get(name));
            joined.provider_secrets.extend(secret.map(|one| (name.clone(), Arc::clone(one))));
        }
        if self.access.is_some() {
            return;
        }
        let profiles = joined.other_secrets.iter();
        let needed: BTreeSet<_> =
            profiles.filter_map(|profile| provider_secret(profile, sources)).collect();
        let all = joined.secrets.iter().chain(&joined.other_secrets);
        let found = all.filter(|one| {
            one.profile.is_none() && one.decision.is_none() && needed.contains(&one.name)
        });
        let found: Vec<_> = found.map(|one| (one.name.clone(), Arc::clone(one))).collect();
        joined.provider_secrets.extend(found);
    }
}

/// Returns the Secret with the credential of a profile, if the operator file selects one.
fn provider_secret(object: &WatchedSecret, sources: &MemberSources) -> Option<ObjectName> {
    let (kind, provider) = object.profile.as_ref()?.choose(&sources.access)?;
    let secret = provider.secret(kind).ok()??;
    Some(ObjectName { namespace: secret.namespace, name: secret.name })
}

/// Whether an object is a profile that Strait publishes for a member: it defines none.
fn is_published(object: &WatchedSecret) -> bool {
    let manager = object.profile.as_ref().map(|profile| profile.inventory.manager.as_str());
    manager == Some(PUBLISHING_MANAGER)
}

/// Whether a source has been read, or cannot be read.
fn is_read(reader: &SourceReader) -> bool {
    let state = reader.state.borrow();
    state.secrets.is_some() || state.failure.is_some()
}

/// Reads the Secrets of one source.
#[derive(Clone)]
struct ReadSource {
    /// The name of the source; `None` for the Secret of a provider.
    source: Option<Arc<str>>,
    access: watch::Receiver<Access>,
    selection: ReadSelection,
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
                    let follow = async {
                        match self.selection.kind {
                            SelectedKind::Secrets => self.follow::<SecretObject>(&client).await,
                            SelectedKind::ClusterProfiles => {
                                self.follow::<ProfileObject>(&client).await;
                            }
                            SelectedKind::PlacementDecisions => {
                                self.follow::<DecisionObject>(&client).await;
                            }
                        }
                    };
                    tokio::select! {
                        () = follow => {}
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
    async fn follow<T: MemberDefinition>(&self, client: &ApiClient) {
        let selection = self.selection.list_selection();
        let limits = ReadLimits { objects: SECRETS_MAX, ..ReadLimits::default() };
        let (events, mut received) = mpsc::channel::<WatchEvent<T>>(1);
        let apply = async {
            let mut guard = MassDeletionGuard::default();
            let mut is_right = false;
            while let Some(event) = received.recv().await {
                if matches!(event, WatchEvent::Answered | WatchEvent::Restarted { .. }) {
                    is_right = self.is_right_cluster(client).await;
                    if !is_right {
                        tokio::time::sleep(AGAIN_PAUSE).await;
                        client.list_again(self.selection.kind.plural());
                    }
                }
                if is_right || matches!(event, WatchEvent::Failed(_)) {
                    self.apply(event, client, &mut guard);
                }
            }
        };
        tokio::select! {
            () = client.watch::<T, WatchEvent<T>>(selection, limits, &events) => {}
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
                    "{}: cannot read the UID of the cluster{was}: a different one may respond, so the last known objects stay",
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

    fn apply<T: MemberDefinition>(
        &self,
        event: WatchEvent<T>,
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
                    client.list_again(self.selection.kind.plural());
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

    /// Returns an object of the source, or its name if its data is invalid.
    fn read<T: MemberDefinition>(&self, object: T) -> Result<Arc<WatchedSecret>, ObjectName> {
        let source = self.source.clone();
        let read =
            object.read_definition().map(|secret| Arc::new(WatchedSecret { source, ..secret }));
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
            warn!(namespace = %self.selection.objects.namespace, reason = fact, "cannot read a member source");
        }
        let is_changed = publish_change(&self.state, state);
        if is_changed {
            self.changed.notify_one();
        }
    }
}
