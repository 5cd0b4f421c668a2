//! Compares a cluster's exports and imports with the desired state, and sends the resulting desired
//! objects to the writer.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::imports::{ImportPlan, ImportPlanInputs, ImportWrite, Recreation, SettledImports, plan};
use super::index::{IndexedKind, KubeIndex, workload_key};
use super::mcs::GROUP;
use super::write_back::{DesiredObject, RefusedWrite, WriteReport};
use super::{ImportState, ImportStep, ImportsStatus};
use strait_base::codes;
use strait_base::latest::publish_change;
use strait_base::task::until;
use strait_base::time::pace;
use strait_kube_client::NamespacedName;
use strait_model::policy::Policy;
use strait_model::{ClusterId, ImportMode, SharedEndpoints, SharedServices};

/// The bounds of the interval between two comparisons. An import needs three comparisons until it is
/// ready.
const PACES: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(500)];

/// The settings of writing into one cluster.
pub(super) struct WriteSettings {
    pub(super) cluster: ClusterId,
    /// The mode of the flag; the policy can override it.
    pub(super) imports: ImportMode,
    /// The name of the cluster set.
    pub(super) clusterset: String,
    pub(super) policy: watch::Receiver<Arc<Policy>>,
    /// Whether a relay forwards the requests: of writes, only changes of statuses.
    pub(super) relayed: bool,
}

/// Whether exports and imports are read.
#[derive(Clone)]
pub(super) struct SharingWanted {
    /// Because of a flag.
    pub(super) always: bool,
    pub(super) policy: watch::Receiver<Arc<Policy>>,
}

impl SharingWanted {
    pub(super) fn is_true(&self) -> bool {
        self.always || self.policy.borrow().writes_imports()
    }

    /// Waits until they are read. A policy that no longer needs them does not end the reading.
    pub(super) async fn wait(&mut self) {
        while !self.is_true() {
            if self.policy.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

/// When to compare, and where to send the result.
pub(super) struct WriteBack {
    settings: WriteSettings,
    shared: watch::Receiver<Arc<SharedServices>>,
    endpoints: watch::Receiver<Arc<SharedEndpoints>>,
    desired: watch::Sender<Vec<DesiredObject>>,
    version: watch::Receiver<Option<&'static str>>,
    report: watch::Receiver<WriteReport>,
    recreation: Recreation,
    settled: SettledImports,
    /// The time since which many deletions are delayed.
    held_since: Option<Instant>,
    /// The time of the next comparison without any other change: a delayed write is due then.
    due: Option<Instant>,
    stale: bool,
    /// The earliest time of the next comparison.
    next: Instant,
}

impl WriteBack {
    pub(super) fn new(
        settings: WriteSettings,
        (shared, endpoints): (
            watch::Receiver<Arc<SharedServices>>,
            watch::Receiver<Arc<SharedEndpoints>>,
        ),
        desired: watch::Sender<Vec<DesiredObject>>,
        version: watch::Receiver<Option<&'static str>>,
        report: watch::Receiver<WriteReport>,
    ) -> Self {
        Self {
            settings,
            shared,
            endpoints,
            desired,
            version,
            report,
            recreation: Recreation::default(),
            settled: SettledImports::default(),
            held_since: None,
            due: None,
            stale: true,
            next: Instant::now(),
        }
    }

    /// Records that the cluster has changed.
    pub(super) fn note(&mut self) {
        self.stale = true;
    }

    /// Waits until the next comparison is due.
    pub(super) async fn next_look(&mut self) {
        if !self.stale {
            let needs_endpoints = self.mode() == ImportMode::Full;
            tokio::select! {
                Ok(()) = self.shared.changed() => {}
                Ok(()) = self.endpoints.changed(), if needs_endpoints => {}
                Ok(()) = self.report.changed() => {}
                Ok(()) = self.settings.policy.changed() => self.recreation.reset(),
                () = until(self.due) => {}
                else => std::future::pending::<()>().await,
            }
            self.stale = true;
        }
        sleep_until(self.next).await;
    }

    /// Compares the current with the desired state. Returns the state of the imports.
    ///
    /// Writes wait until the shared services contain the exports that this process has read from
    /// the cluster. Before that, restored exports would be compared with the current objects.
    pub(super) fn look(&mut self, index: &KubeIndex) -> Arc<ImportsStatus> {
        let now = Instant::now();
        (self.stale, self.due) = (false, None);
        let shared = Arc::clone(&self.shared.borrow_and_update());
        let member = shared.members.get(&self.settings.cluster);
        let mut status = ImportsStatus { mode: self.mode(), ..ImportsStatus::default() };
        let mut desired = Vec::new();
        if member.is_some_and(|member| member.is_complete) {
            (desired, status.invalid_exports) =
                index.desired_objects(&self.settings.cluster, &shared);
            desired.extend(self.imports(index, &shared, &mut status, now));
        } else if status.mode != ImportMode::Off {
            let reason = "its exports and imports have not been read".to_owned();
            status.stopped = Some((&codes::IMPORT_VERSION_MISSING, reason));
        }
        if self.settings.relayed && status.mode != ImportMode::Off {
            let fact = "its relay forwards no writes of imports".to_owned();
            status.stopped = Some((&codes::IMPORT_RELAYED, fact));
        }
        publish_change(&self.desired, desired);
        self.next = now + pace(now.elapsed(), PACES);
        Arc::new(status)
    }

    fn mode(&self) -> ImportMode {
        let policy = self.settings.policy.borrow();
        policy.imports(&self.settings.cluster).unwrap_or(self.settings.imports)
    }

    /// Plans the imports of exported services.
    fn imports(
        &mut self,
        index: &KubeIndex,
        shared: &SharedServices,
        status: &mut ImportsStatus,
        now: Instant,
    ) -> Vec<DesiredObject> {
        let Some(version) = (*self.version.borrow()).filter(|_| index.has_imports_listed()) else {
            if status.mode != ImportMode::Off {
                let reason = "ServiceImports cannot be listed".to_owned();
                status.stopped = Some((&codes::IMPORT_VERSION_MISSING, reason));
            }
            return Vec::new();
        };
        let report = self.report.borrow_and_update().clone();
        let own = || {
            let own = index.shared_imports().iter().filter(|(_, import)| import.own.is_some());
            own.map(|(key, _)| key)
        };
        let has_namespace = |name: &str| index.is_writable(name);
        self.recreation.note(own(), has_namespace, now.into_std());
        let policy = self.settings.policy.borrow().clone();
        let endpoints = Arc::clone(&self.endpoints.borrow_and_update());
        let inputs = ImportPlanInputs {
            shared,
            cluster: &self.settings.cluster,
            endpoints: &endpoints,
            slices: index.imported_slices().own(),
            is_other_slice: &|key| index.has_other_slice(key),
            mode: status.mode,
            adopts_status: policy.adopts_import_status(&self.settings.cluster),
            set: &self.settings.clusterset,
            version: &format!("{GROUP}/{version}"),
            has_namespace: &has_namespace,
            imports: index.shared_imports(),
            derived: index.derived_services(),
            is_other_service: &|key| index.has_other_service(key),
            unsupported: &report.unsupported,
            settled: &self.settled,
            slices_of_selectors: index.imported_slices().of_selectors(),
            refused: &report.refused(),
            may_create: &|key| {
                !index.is_unreadable(IndexedKind::ServiceImports, key)
                    && self.recreation.may_create(key, now.into_std())
            },
        };
        let ImportPlan { mut writes, states, settled } = plan(&inputs);
        self.settled = settled;
        status.imports = states;
        status.writes = report.counts;
        if self.settings.relayed {
            writes.retain(|(_, write)| matches!(write, ImportWrite::AdoptedClusters(_)));
        }
        if let Some(contested) = self.recreation.contested() {
            let fact = format!("{contested} was deleted again within a minute");
            status.stopped = Some((&codes::IMPORTS_CONTESTED, fact));
            writes.clear();
        } else if let Some(denied) = report.denied {
            status.stopped = Some((&codes::IMPORT_RIGHT_MISSING, denied));
        }
        let conflicts = report.conflicts.into_values();
        let conflicts = conflicts.map(|one| (one, &codes::IMPORT_CONFLICT, ImportStep::Foreign));
        let refusals = report.refusals.into_values();
        let refusals = refusals.map(|one| (one, &codes::IMPORT_REFUSED, ImportStep::Right));
        for (RefusedWrite { import, message }, code, step) in conflicts.chain(refusals) {
            let is_written = writes.iter().any(|(key, _)| workload_key(key) == import);
            let state = status.imports.get_mut(&import).filter(|_| is_written);
            if let Some(state) = state.filter(|state| state.code != Some(&codes::IMPORT_CHANGED)) {
                let fails = (!state.ready).then_some(step);
                let (reason, code) = (Some(message), Some(code));
                *state = ImportState { reason, code, fails, ..std::mem::take(state) };
            }
        }
        let deletions: Vec<_> = writes
            .iter()
            .filter(|(_, write)| matches!(write, ImportWrite::DeleteImport { .. }))
            .map(|(key, _)| key.clone())
            .collect();
        status.held = self.hold(&mut writes, deletions.len(), own().count(), &policy, now);
        for key in deletions {
            if status.held == 0 {
                self.recreation.forget(&key);
            } else if let Some(state) = status.imports.get_mut(&workload_key(&key)) {
                state.reason = Some("the deletion is delayed, because it is one of many".into());
                state.code = Some(&codes::IMPORT_DELETES_HELD);
            }
        }
        self.due = [self.due, self.recreation.next(now.into_std()).map(Instant::from_std)]
            .into_iter()
            .flatten()
            .min();
        writes.into_iter().map(|(key, write)| DesiredObject::import(key, write)).collect()
    }

    /// Delays the deletion of many of the `present` imports at once. Returns the number of delayed
    /// deletions.
    fn hold(
        &mut self,
        writes: &mut Vec<(NamespacedName, ImportWrite)>,
        deletions: usize,
        present: usize,
        policy: &Policy,
        now: Instant,
    ) -> usize {
        let rule = policy.mass_withdrawal(&self.settings.cluster).unwrap_or_default();
        let is_mass =
            deletions >= rule.at_least && deletions * 100 > present * usize::from(rule.percent);
        if !is_mass {
            self.held_since = None;
            return 0;
        }
        let until = *self.held_since.get_or_insert(now) + rule.hold;
        if until <= now {
            return 0;
        }
        self.due = Some(until);
        writes.retain(|(_, write)| !write.is_deletion());
        deletions
    }
}
