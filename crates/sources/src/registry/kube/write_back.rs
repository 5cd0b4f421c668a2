//! Writes into a cluster: conditions of ServiceExports, automatic exports (`--mcs-auto-export`), and
//! ServiceImports with their derived Services and EndpointSlices (`--mcs-imports`). This module
//! writes no other objects.
//!
//! `write_plan` compares the current with the desired state; [`run`] writes, one object at a time.
//! Server-side apply is never forced, so fields of other managers stay. A denied or ineffective
//! write has no other consequences. A written value that another controller reverts is not written
//! again for a while, so that two controllers that disagree don't overwrite each other continuously.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tracing::{debug, info};

use super::import_objects::{APPLIED, DERIVED, US, derived_name};
use super::imports::{ImportWrite, RESTORATIONS_MAX, RestoredFields, WriteMode, import_status};
use super::index::{KubeIndex, namespaced_name, workload_key};
use super::mcs::{GROUP, is_reserved};
use super::mcs_form::ExportCondition;
use strait_base::latest::publish_change;
use strait_base::time::rfc3339_seconds;
use strait_kube_client::{ApiClient, ApiError, ApiStatus, NamespacedName, Patch};
use strait_model::{ClusterId, Resolution, SharedService, SharedServices, WorkloadKey, WriterRole};

/// How long the same value is not written to the same object again. Also the pause for a kind after
/// a denied write.
const REST: Duration = Duration::from_secs(600);
/// How long the same object is neither created nor restored again.
const REST_OF_CREATION: Duration = Duration::from_secs(5);
/// Number of refusals of a creation after which the pause no longer doubles.
const REFUSALS_DOUBLED: u32 = 6;
/// The pause between two writes of imports: at most 20 per second and cluster.
const IMPORT_PACE: Duration = Duration::from_millis(50);
/// The minimum interval between two writes of one EndpointSlice. Changes in between are written
/// together.
const SLICE_PACE: Duration = Duration::from_secs(1);
/// The pause after a transient error.
const PAUSE: Duration = Duration::from_secs(30);

/// The desired state of one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DesiredObject {
    key: NamespacedName,
    state: DesiredState,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum DesiredState {
    /// A ServiceExport, created at this time, needs these conditions.
    Conditions { created: i64, conditions: Vec<ExportCondition> },
    /// A ServiceImport, its derived Service or one of its EndpointSlices needs this write.
    Import(ImportWrite),
    /// A ServiceExport must exist.
    Export,
}

/// A permission that may be denied independently of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum WritePermission {
    Conditions,
    Export,
    Imports,
    ImportStatus,
    DerivedServices,
    Slices,
}

impl WritePermission {
    /// The name of the kind in messages and metrics.
    fn as_str(self) -> &'static str {
        match self {
            Self::Conditions | Self::Export => "serviceexports",
            Self::Imports | Self::ImportStatus => "serviceimports",
            Self::DerivedServices => "services",
            Self::Slices => "endpointslices",
        }
    }

    fn is_of_imports(self) -> bool {
        matches!(self, Self::Imports | Self::ImportStatus | Self::DerivedServices | Self::Slices)
    }
}

/// An object of an import that the API server does not accept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RefusedWrite {
    pub(super) import: WorkloadKey,
    /// The message of the API server.
    pub(super) message: String,
}

/// The results of writes, for the next comparison and for the status.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct WriteReport {
    /// The refusal, if a permission for imports is missing.
    pub(super) denied: Option<String>,
    /// Objects with a field that another manager owns.
    pub(super) conflicts: BTreeMap<(WritePermission, NamespacedName), RefusedWrite>,
    /// Objects that the API server refuses for another reason, for example a quota.
    pub(super) refusals: BTreeMap<(WritePermission, NamespacedName), RefusedWrite>,
    /// Imports for which the cluster has no address family.
    pub(super) unsupported: BTreeSet<NamespacedName>,
    /// Number of writes by kind of object and result.
    pub(super) counts: BTreeMap<(&'static str, &'static str), u64>,
}

impl WriteReport {
    /// Returns the objects of which another manager owns a field outside of the status.
    pub(super) fn refused(&self) -> BTreeSet<NamespacedName> {
        let objects = self.conflicts.keys();
        let objects = objects.filter(|(one, _)| *one != WritePermission::ImportStatus);
        objects.map(|(_, key)| key.clone()).collect()
    }
}

impl DesiredObject {
    /// Returns a write for the import with this name.
    pub(super) fn import(import: NamespacedName, write: ImportWrite) -> Self {
        // An import can have several slices.
        let key = match &write {
            ImportWrite::Slice { slice, .. } | ImportWrite::DeleteSlice { slice, .. } => {
                NamespacedName { namespace: import.namespace, name: Arc::clone(slice) }
            }
            _ => import,
        };
        Self { key, state: DesiredState::Import(write) }
    }

    /// Returns the key of the import to which the object belongs.
    fn import_key(&self) -> WorkloadKey {
        match &self.state {
            DesiredState::Import(ImportWrite::Slice { object, .. }) => {
                let import = object["metadata"]["labels"][DERIVED].as_str().unwrap_or_default();
                WorkloadKey::new(&*self.key.namespace, import)
            }
            _ => workload_key(&self.key),
        }
    }

    /// Returns the object without times, for comparisons. The hash of its content replaces the
    /// content of a slice, which may be large.
    fn undated(mut self) -> Self {
        match &mut self.state {
            DesiredState::Conditions { conditions, .. } => {
                conditions.iter_mut().for_each(|one| one.since = Box::default());
            }
            DesiredState::Import(ImportWrite::Status { ready, .. }) => ready.since = Box::default(),
            DesiredState::Import(ImportWrite::Slice { object, mode, .. }) => {
                *object = object["metadata"]["annotations"][APPLIED].take();
                mode.forget_version();
            }
            DesiredState::Import(
                ImportWrite::Import { mode, .. } | ImportWrite::Derived { mode, .. },
            ) => mode.forget_version(),
            DesiredState::Import(_) | DesiredState::Export => {}
        }
        self
    }

    fn permission(&self) -> WritePermission {
        match self.state {
            DesiredState::Conditions { .. } => WritePermission::Conditions,
            DesiredState::Export => WritePermission::Export,
            DesiredState::Import(ImportWrite::Import { .. } | ImportWrite::DeleteImport { .. }) => {
                WritePermission::Imports
            }
            DesiredState::Import(ImportWrite::Status { .. } | ImportWrite::AdoptedClusters(_)) => {
                WritePermission::ImportStatus
            }
            DesiredState::Import(
                ImportWrite::Derived { .. } | ImportWrite::DeleteDerived { .. },
            ) => WritePermission::DerivedServices,
            DesiredState::Import(ImportWrite::Slice { .. } | ImportWrite::DeleteSlice { .. }) => {
                WritePermission::Slices
            }
        }
    }

    /// How the write changes an object of an import.
    fn mode(&self) -> Option<&WriteMode> {
        match &self.state {
            DesiredState::Import(write) => write.mode(),
            _ => None,
        }
    }

    fn is_restoration(&self) -> bool {
        matches!(self.mode(), Some(WriteMode::Restore(_)))
    }

    /// Returns whether another write repeats this one. Each restoration of an object repeats the
    /// previous one.
    fn is_repeated_by(&self, other: &Self) -> bool {
        self == other || self.is_restoration() && other.is_restoration()
    }

    /// Returns whether the write applies to one version of the object.
    fn names_version(&self) -> bool {
        self.is_restoration()
            || matches!(&self.state, DesiredState::Import(write) if write.is_deletion())
    }

    fn refused(&self, status: &ApiStatus) -> RefusedWrite {
        RefusedWrite { import: self.import_key(), message: status.message.clone() }
    }

    /// Returns the name of the object that the write changes.
    fn written_key(&self) -> NamespacedName {
        let NamespacedName { namespace, .. } = &self.key;
        match self.permission() {
            WritePermission::DerivedServices => NamespacedName {
                namespace: Arc::clone(namespace),
                name: derived_name(&self.key).into(),
            },
            _ => self.key.clone(),
        }
    }

    /// How long the same write is not repeated after this number of repetitions. A creation that
    /// the API server refuses is repeated in growing intervals.
    fn rest(&self, repetitions: u32, refused: bool) -> Duration {
        match self.mode() {
            Some(WriteMode::Create) if refused => {
                let doublings = repetitions.saturating_sub(1).min(REFUSALS_DOUBLED);
                REST_OF_CREATION * (1 << doublings)
            }
            Some(WriteMode::Create) => REST_OF_CREATION,
            Some(WriteMode::Restore(_)) if repetitions < RESTORATIONS_MAX => REST_OF_CREATION,
            _ => REST,
        }
    }
}

impl KubeIndex {
    /// Returns the objects that must be written into `cluster`, by name, and the exports that are not
    /// valid, with the reasons as text.
    pub(super) fn desired_objects(
        &self,
        cluster: &ClusterId,
        shared: &SharedServices,
    ) -> (Vec<DesiredObject>, BTreeMap<WorkloadKey, &'static str>) {
        let mut invalid = BTreeMap::new();
        let shared_service = |key: &NamespacedName| shared.services.get(&workload_key(key));
        let exports = self.shared_exports().filter_map(|(key, export)| {
            let mut wanted = match self.invalidity(key) {
                Some(Invalidity { reason, message }) => {
                    invalid.insert(workload_key(key), message);
                    refused(reason, message)
                }
                None => conditions(shared_service(key), cluster),
            };
            if shared.is_partial() {
                keep_conflict(&mut wanted, &export.conditions);
            }
            wanted.iter_mut().for_each(|one| one.observed = export.generation);
            let differ = |wanted: &ExportCondition| {
                let current = export.conditions.iter().find(|current| current.kind == wanted.kind);
                current.is_none_or(|current| !has_same_state(current, wanted))
            };
            wanted.iter().any(differ).then(|| {
                let dated = wanted.into_iter().map(|one| one.dated(&export.conditions));
                let (created, conditions) = (export.created, dated.collect());
                DesiredObject {
                    key: key.clone(),
                    state: DesiredState::Conditions { created, conditions },
                }
            })
        });
        let missing = shared.to_export.get(cluster).into_iter().flatten().filter_map(|wanted| {
            let key = namespaced_name(wanted);
            // Shared services are reported a moment after the exports.
            let is_due = !self.is_exported(&key) && self.last_sent_resolution(&key).is_some();
            let is_due = is_due && !self.declines_export(&key);
            is_due.then_some(DesiredObject { key, state: DesiredState::Export })
        });
        let desired = exports.chain(missing).collect();
        (desired, invalid)
    }

    /// Returns why an export is not valid.
    fn invalidity(&self, key: &NamespacedName) -> Option<Invalidity> {
        match is_reserved(key) {
            true => Some(Invalidity {
                reason: "NotExportable",
                message: "the API server of a cluster is not exported",
            }),
            false => invalidity_of_service(self.last_sent_resolution(key)),
        }
    }
}

/// Why an export is not valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Invalidity {
    /// The reason in the export's condition.
    reason: &'static str,
    message: &'static str,
}

/// Returns why the export of a service is not valid. `service` is the cluster's own service with the
/// name, if any.
fn invalidity_of_service(service: Option<&Resolution>) -> Option<Invalidity> {
    let (reason, message) = match service {
        None => ("NoService", "this cluster has no Service with this name"),
        Some(Resolution::Alias(_)) => {
            ("InvalidServiceType", "a Service of type ExternalName is not exported")
        }
        Some(_) => return None,
    };
    Some(Invalidity { reason, message })
}

/// Returns the conditions of an invalid export.
fn refused(reason: &str, message: &str) -> Vec<ExportCondition> {
    let condition = ExportCondition::new;
    let pending = condition("Ready", false, "Pending", "the export is not valid");
    vec![condition("Valid", false, reason, message), pending]
}

/// Returns the conditions of a valid export.
fn conditions(shared_service: Option<&SharedService>, cluster: &ClusterId) -> Vec<ExportCondition> {
    let condition = ExportCondition::new;
    let ready = match shared_service {
        Some(shared) if shared.is_exported_by(cluster) => {
            condition("Ready", true, "Exported", "proxies of all clusters receive its endpoints")
        }
        Some(SharedService { refused, .. }) if refused.contains_key(cluster) => {
            condition("Ready", false, "Failed", &refused[cluster])
        }
        _ => condition("Ready", false, "Pending", "the mesh does not have it yet"),
    };
    let conflict = match shared_service.and_then(|shared| shared.conflict.as_ref()) {
        Some(conflict) => condition("Conflict", true, &conflict.reason, &conflict.message),
        None => condition("Conflict", false, "NoConflicts", "all clusters that export it agree"),
    };
    vec![condition("Valid", true, "Valid", "a Service with this name exists"), ready, conflict]
}

/// Keeps a reported conflict while the exports of some member are unknown: the conflict may be with
/// that member.
fn keep_conflict(wanted: &mut [ExportCondition], current: &[ExportCondition]) {
    let is_conflict = |one: &&ExportCondition| (&*one.kind, &*one.status) == ("Conflict", "True");
    if let Some(conflict) = current.iter().find(is_conflict)
        && let Some(wanted) = wanted.iter_mut().find(|one| *one.kind == *"Conflict")
    {
        *wanted = conflict.clone();
    }
}

fn has_same_state(a: &ExportCondition, b: &ExportCondition) -> bool {
    (&a.status, &a.reason, &a.message, a.observed) == (&b.status, &b.reason, &b.message, b.observed)
}

/// Writes the desired objects while this process has the writer role. Ends when their sender is
/// dropped. `version` is that of the API, once known.
pub(super) async fn run(
    client: ApiClient,
    mut role: watch::Receiver<WriterRole>,
    mut desired: watch::Receiver<Vec<DesiredObject>>,
    mut version: watch::Receiver<Option<&'static str>>,
    report: watch::Sender<WriteReport>,
) {
    let mut memory = WriteBackState::default();
    loop {
        let Ok(Some(served)) = version.wait_for(Option::is_some).await.map(|version| *version)
        else {
            return;
        };
        if role.wait_for(|role| *role == WriterRole::Writes).await.is_err() {
            return;
        }
        let wanted = desired.borrow_and_update().clone();
        let mut rest = REST;
        for object in wanted {
            // The role may have changed since the first write.
            if *role.borrow() != WriterRole::Writes {
                break;
            }
            if let Some(pause) = memory.pause(&object, Instant::now()) {
                rest = rest.min(pause);
                continue;
            }
            let permission = object.permission();
            if permission.is_of_imports() {
                sleep(IMPORT_PACE).await;
            }
            let result = write(&client, served, &object).await;
            let DesiredObject { key, .. } = &object;
            memory.report(&object, &result);
            match &result {
                Ok(()) => debug!(object = %key, right = ?object.permission(), "written"),
                Err(error) => {
                    debug!(object = %key, right = ?object.permission(), %error, "not written");
                }
            }
            let passes = memory.note(object, &result, Instant::now());
            if passes {
                rest = PAUSE;
                break;
            }
        }
        memory.publish(&report, Instant::now());
        tokio::select! {
            changed = desired.changed() => if changed.is_err() { return },
            () = sleep(rest) => {}
        }
        if rest == PAUSE {
            sleep(PAUSE).await;
        }
    }
}

/// The last write of one object.
#[derive(Debug)]
struct LastWrite {
    object: DesiredObject,
    since: Instant,
    /// How often the same value was written in succession.
    repetitions: u32,
    /// Whether the API server refused it.
    refused: bool,
}

/// The values that were written, and the denied permissions.
#[derive(Debug, Default)]
struct WriteBackState {
    last: BTreeMap<(WritePermission, NamespacedName), LastWrite>,
    denied: BTreeMap<WritePermission, Instant>,
    /// Since when the cluster has no address family for an import.
    unsupported: BTreeMap<NamespacedName, Instant>,
    report: WriteReport,
}

impl WriteBackState {
    /// Returns how long the write of an object must wait; `None` if it may be written now.
    fn pause(&self, object: &DesiredObject, now: Instant) -> Option<Duration> {
        let permission = object.permission();
        let rests = |since: &Instant, rest| now.duration_since(*since) < rest;
        if self.denied.get(&permission).is_some_and(|since| rests(since, REST)) {
            return Some(object.rest(0, false));
        }
        let last = self.last.get(&(permission, object.key.clone()))?;
        let (since, rest) = (&last.since, object.rest(last.repetitions, last.refused));
        if rests(since, rest) && last.object.is_repeated_by(&object.clone().undated()) {
            return Some(rest);
        }
        let is_soon = permission == WritePermission::Slices && rests(since, SLICE_PACE);
        is_soon.then_some(SLICE_PACE)
    }

    /// Whether an object may be written now.
    #[cfg(test)]
    fn may_try(&self, object: &DesiredObject, now: Instant) -> bool {
        self.pause(object, now).is_none()
    }

    /// Records the result of a write of an import for the next comparison.
    fn report(&mut self, object: &DesiredObject, result: &Result<(), ApiError>) {
        let permission = object.permission();
        let written = object.written_key();
        let outcome = match result {
            Ok(()) if object.is_restoration() => {
                let kind = permission.as_str();
                info!(object = %written, kind, "restored an object that another client had changed");
                "restored"
            }
            Ok(()) => "ok",
            Err(ApiError::Forbidden(_) | ApiError::Unauthorized(_)) => "denied",
            Err(ApiError::Rejected(status)) if status.code == 409 => "conflict",
            Err(ApiError::Rejected(_)) => "refused",
            Err(_) => "failed",
        };
        *self.report.counts.entry((permission.as_str(), outcome)).or_default() += 1;
        if !permission.is_of_imports() {
            return;
        }
        // A write of an outdated version is simply repeated with the current one.
        let names_version = object.names_version();
        match result {
            Ok(()) => {
                let key = (permission, written);
                self.report.conflicts.remove(&key);
                self.report.refusals.remove(&key);
                if permission == WritePermission::DerivedServices {
                    self.unsupported.remove(&object.key);
                }
            }
            Err(error @ (ApiError::Forbidden(_) | ApiError::Unauthorized(_))) => {
                self.report.denied = Some(error.to_string());
            }
            Err(error) if lacks_family(error) => {
                self.unsupported.insert(object.key.clone(), Instant::now());
            }
            Err(ApiError::Rejected(status)) if outcome == "conflict" && !names_version => {
                self.report.conflicts.insert((permission, written), object.refused(status));
            }
            Err(ApiError::Rejected(status)) if outcome != "conflict" => {
                self.report.refusals.insert((permission, written), object.refused(status));
            }
            Err(_) => {}
        }
    }

    /// Publishes the report if it differs.
    fn publish(&mut self, to: &watch::Sender<WriteReport>, now: Instant) {
        let is_denied = |(permission, since): (&WritePermission, &Instant)| {
            permission.is_of_imports() && now.duration_since(*since) < REST
        };
        if !self.denied.iter().any(is_denied) {
            self.report.denied = None;
        }
        self.unsupported.retain(|_, since| now.duration_since(*since) < REST);
        self.report.unsupported = self.unsupported.keys().cloned().collect();
        publish_change(to, self.report.clone());
    }

    /// Records the result of a write. Returns whether it failed for a transient reason that affects
    /// every write.
    fn note(&mut self, object: DesiredObject, result: &Result<(), ApiError>, now: Instant) -> bool {
        match result {
            Err(ApiError::Forbidden(_) | ApiError::Unauthorized(_)) => {
                self.denied.insert(object.permission(), now);
                return false;
            }
            // The object was deleted. A new object with the same name needs the value.
            Err(ApiError::NotFound(_)) => return false,
            // The object has changed. Its next version may need the same value.
            Err(ApiError::Rejected(status)) if status.code == 409 && object.names_version() => {
                return false;
            }
            // The value is not accepted.
            Ok(()) | Err(ApiError::Rejected(_)) => {}
            // The cluster's definition of the kind lacks a field.
            Err(ApiError::Server(status)) if status.message.contains("not declared in schema") => {}
            Err(_) => return true,
        }
        self.last.retain(|_, last| now.duration_since(last.since) < REST);
        let key = (object.permission(), object.key.clone());
        let object = object.undated();
        let before = self.last.get(&key).filter(|last| last.object.is_repeated_by(&object));
        let repetitions = before.map_or(0, |last| last.repetitions) + 1;
        let refused = result.is_err();
        self.last.insert(key, LastWrite { object, since: now, repetitions, refused });
        false
    }
}

/// Returns whether the API server rejects an object because the cluster lacks an address family.
fn lacks_family(error: &ApiError) -> bool {
    matches!(error, ApiError::Rejected(status)
        if status.code == 422 && status.message.contains("ipFamil"))
}

async fn write(client: &ApiClient, version: &str, object: &DesiredObject) -> Result<(), ApiError> {
    let NamespacedName { namespace, name } = &object.key;
    let api_version = format!("{GROUP}/{version}");
    let below = format!("/apis/{api_version}/namespaces/{namespace}");
    let apply = async |kind: &str, plural: &str, status: Value| {
        let object = json!({
            "apiVersion": api_version, "kind": kind,
            "metadata": { "name": name, "namespace": namespace }, "status": status,
        });
        let path = format!("{below}/{plural}/{name}/status");
        client.patch::<IgnoredAny>(&path, Patch::ApplyOwn(US), &object).await.map(drop)
    };
    match &object.state {
        DesiredState::Conditions { conditions, .. } => {
            let now = rfc3339_seconds(SystemTime::now());
            let conditions: Vec<Value> = conditions.iter().map(|one| one.to_json(&now)).collect();
            apply("ServiceExport", "serviceexports", json!({ "conditions": conditions })).await
        }
        DesiredState::Import(write) => write_import(client, &api_version, &object.key, write).await,
        DesiredState::Export => {
            // It is deleted together with the Service.
            let service = format!("/api/v1/namespaces/{namespace}/services/{name}");
            let service: Value = client.get(&service).await?;
            let owner = json!({
                "apiVersion": "v1", "kind": "Service", "name": name, "uid": service["metadata"]["uid"],
            });
            let object = json!({
                "apiVersion": api_version, "kind": "ServiceExport",
                "metadata": { "name": name, "namespace": namespace, "ownerReferences": [owner] },
            });
            client.create::<IgnoredAny>(&format!("{below}/serviceexports"), &object).await.map(drop)
        }
    }
}

/// Writes an object of an import.
async fn write_import(
    client: &ApiClient,
    api_version: &str,
    key: &NamespacedName,
    write: &ImportWrite,
) -> Result<(), ApiError> {
    let NamespacedName { namespace, name } = key;
    let import = format!("/apis/{api_version}/namespaces/{namespace}/serviceimports/{name}");
    let derived = format!("/api/v1/namespaces/{namespace}/services/{}", derived_name(key));
    // The key of a write of a slice is that of the slice.
    let slice = format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices/{name}");
    let apply = async |path: &str, version: &str, kind: &str, object: Value| {
        let mut object = object;
        (object["apiVersion"], object["kind"]) = (version.into(), kind.into());
        let patch = Patch::ApplyOwn(US);
        client.patch::<IgnoredAny>(path, patch, &object).await.map(drop)
    };
    let merge = async |path: &str, fields: RestoredFields, object: &Value, metadata: Value| {
        let mut patch = fields.patch(object);
        patch["metadata"] = metadata;
        let path = format!("{path}?fieldManager={US}");
        client.patch::<IgnoredAny>(&path, Patch::Merge, &patch).await.map(drop)
    };
    // A restored field belongs to the manager of the merge patch, which has the same name. The API
    // server refuses to apply another value to it.
    let update = async |path: &str,
                        (version, kind): (&str, &str),
                        fields: RestoredFields,
                        (object, mode): (&Value, &WriteMode)| {
        if let WriteMode::Restore(version) = mode {
            return merge(path, fields, object, json!({ "resourceVersion": version })).await;
        }
        let applied = apply(path, version, kind, object.clone()).await;
        if !applied.as_ref().is_err_and(is_conflict_with_us) {
            return applied;
        }
        let metadata = &object["metadata"];
        let metadata =
            json!({ "labels": metadata["labels"], "annotations": metadata["annotations"] });
        merge(path, fields, object, metadata).await
    };
    let apply_status = async |status: Value| {
        let metadata = json!({ "name": &**name, "namespace": &**namespace });
        let object = json!({ "metadata": metadata, "status": status });
        apply(&format!("{import}/status"), api_version, "ServiceImport", object).await
    };
    match write {
        ImportWrite::Import { object, mode } => {
            let kind = (api_version, "ServiceImport");
            update(&import, kind, RestoredFields::IMPORT, (object, mode)).await
        }
        ImportWrite::Derived { object, mode } => {
            let kind = ("v1", "Service");
            let applied = update(&derived, kind, RestoredFields::DERIVED, (object, mode)).await;
            if !applied.as_ref().is_err_and(lacks_family) {
                return applied;
            }
            // The cluster lacks a family, and does not say which one it has.
            for family in object["spec"]["ipFamilies"].as_array().into_iter().flatten() {
                let mut object = object.clone();
                object["spec"]["ipFamilies"] = json!([family]);
                object["spec"]["ipFamilyPolicy"] = "SingleStack".into();
                if apply(&derived, "v1", "Service", object).await.is_ok() {
                    return Ok(());
                }
            }
            applied
        }
        ImportWrite::Status { clusters, ready, slices } => {
            let now = rfc3339_seconds(SystemTime::now());
            let clusters = || clusters.iter().map(|cluster| &**cluster);
            let applied = apply_status(import_status(clusters(), ready, &now, *slices)).await;
            match &applied {
                // An older definition lacks the field, and server-side apply refuses unknown ones.
                Err(ApiError::Rejected(status) | ApiError::Server(status))
                    if status.message.contains("endpointSliceObjects") =>
                {
                    apply_status(import_status(clusters(), ready, &now, None)).await
                }
                _ => applied,
            }
        }
        ImportWrite::AdoptedClusters(clusters) => {
            let clusters: Vec<Value> =
                clusters.iter().map(|cluster| json!({ "cluster": &**cluster })).collect();
            apply_status(json!({ "clusters": clusters })).await
        }
        ImportWrite::Slice { object, mode, .. } => {
            let kind = ("discovery.k8s.io/v1", "EndpointSlice");
            update(&slice, kind, RestoredFields::SLICE, (object, mode)).await
        }
        ImportWrite::DeleteSlice { uid, version, .. } => {
            gone(client.delete_exactly(&slice, uid, version).await)
        }
        ImportWrite::DeleteImport { uid, version } => {
            gone(client.delete_exactly(&import, uid, version).await)
        }
        ImportWrite::DeleteDerived { uid, version } => {
            gone(client.delete_exactly(&derived, uid, version).await)
        }
    }
}

/// Returns whether the only other manager of the fields of an applied object has Strait's name.
fn is_conflict_with_us(error: &ApiError) -> bool {
    let ApiError::Rejected(status) = error else { return false };
    let mut managers = status.message.split("with \"").skip(1).peekable();
    let is_us = |text: &str| text.split_once('"').is_some_and(|(manager, _)| manager == US);
    status.code == 409 && managers.peek().is_some() && managers.all(is_us)
}

/// Treats a missing object as deleted.
fn gone(result: Result<(), ApiError>) -> Result<(), ApiError> {
    match result {
        Err(ApiError::NotFound(_)) => Ok(()),
        result => result,
    }
}
