//! Writes into a cluster: conditions of ServiceExports, clusters of ServiceImports, and automatic
//! exports (`--mcs-auto-export`). This module writes no other objects.
//!
//! [`KubeIndex::desired_objects`] compares the current with the desired state; [`run`] writes, one
//! object at a time. A denied or ineffective write has no other consequences. A written value that
//! another controller reverts is not written again for a while, so that two controllers that
//! disagree don't overwrite each other continuously.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::debug;

use super::index::KubeIndex;
use super::mcs::{ExportCondition, GROUP};
use strait_kube_client::{ApiClient, ApiError, NamespacedName, Patch};
use strait_model::{ClusterId, Resolution, SharedService, SharedServices, WorkloadKey, WriterRole};

/// The minimum interval between two comparisons.
const PACE: Duration = Duration::from_secs(1);
/// How long the same value is not written to the same object again. Also the pause for a kind after
/// a denied write.
const REST: Duration = Duration::from_secs(600);
/// The pause after a transient error.
const PAUSE: Duration = Duration::from_secs(30);
/// The field manager for server-side apply.
const MANAGER: &str = "strait";

/// The desired state of one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DesiredObject {
    key: NamespacedName,
    state: DesiredState,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum DesiredState {
    /// A ServiceExport needs these conditions.
    Conditions(Vec<ExportCondition>),
    /// A ServiceImport needs these clusters.
    Clusters(Vec<ClusterId>),
    /// A ServiceExport must exist.
    Export,
}

/// A permission that may be denied independently of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum WritePermission {
    Conditions,
    Clusters,
    Export,
}

impl DesiredObject {
    /// Returns the wish without times, for comparisons.
    fn undated(mut self) -> Self {
        if let DesiredState::Conditions(conditions) = &mut self.state {
            conditions.iter_mut().for_each(|one| one.since = Box::default());
        }
        self
    }

    fn permission(&self) -> WritePermission {
        match self.state {
            DesiredState::Conditions(_) => WritePermission::Conditions,
            DesiredState::Clusters(_) => WritePermission::Clusters,
            DesiredState::Export => WritePermission::Export,
        }
    }
}

impl KubeIndex {
    /// Returns the objects that must be written into `cluster`, by name.
    pub(super) fn desired_objects(
        &self,
        cluster: &ClusterId,
        shared: &SharedServices,
    ) -> Vec<DesiredObject> {
        let shared_service = |key: &NamespacedName| {
            shared.services.get(&WorkloadKey::new(&*key.namespace, Arc::clone(&key.name)))
        };
        let exports = self.shared_exports().filter_map(|(key, export)| {
            let mut wanted =
                conditions(self.last_sent_resolution(key), shared_service(key), cluster);
            wanted.iter_mut().for_each(|one| one.observed = export.generation);
            let differ = |wanted: &ExportCondition| {
                let current = export.conditions.iter().find(|current| current.kind == wanted.kind);
                current.is_none_or(|current| !has_same_state(current, wanted))
            };
            wanted.iter().any(differ).then(|| {
                let dated = wanted.into_iter().map(|one| dated(one, &export.conditions));
                DesiredObject { key: key.clone(), state: DesiredState::Conditions(dated.collect()) }
            })
        });
        let imports = self.shared_imports().filter_map(|(key, import)| {
            let wanted =
                shared_service(key).map(|service| service.clusters.clone()).unwrap_or_default();
            let same =
                wanted.iter().map(ClusterId::as_str).eq(import.clusters.iter().map(|one| &**one));
            (!same)
                .then(|| DesiredObject { key: key.clone(), state: DesiredState::Clusters(wanted) })
        });
        let missing = shared.to_export.get(cluster).into_iter().flatten().filter_map(|wanted| {
            let key = NamespacedName {
                namespace: wanted.namespace.as_str().into(),
                name: Arc::clone(&wanted.name),
            };
            // Shared services are reported a moment after the exports.
            let is_due = !self.is_exported(&key) && self.last_sent_resolution(&key).is_some();
            let is_due = is_due && !self.declines_export(&key);
            is_due.then_some(DesiredObject { key, state: DesiredState::Export })
        });
        exports.chain(imports).chain(missing).collect()
    }
}

/// Returns the conditions of an export. `service` is the cluster's own service with this name, if
/// any.
fn conditions(
    service: Option<&Resolution>,
    shared_service: Option<&SharedService>,
    cluster: &ClusterId,
) -> Vec<ExportCondition> {
    let condition = |kind: &str, status: bool, reason: &str, message: &str| ExportCondition {
        kind: kind.into(),
        status: if status { "True" } else { "False" }.into(),
        reason: reason.into(),
        message: message.into(),
        since: Box::default(),
        observed: 0,
    };
    let refused = |reason: &str, message: &str| {
        let pending = condition("Ready", false, "Pending", "the export is not valid");
        vec![condition("Valid", false, reason, message), pending]
    };
    match service {
        None => return refused("NoService", "the mesh has no Service with this name"),
        Some(Resolution::Alias(_)) => {
            return refused("InvalidServiceType", "a Service of type ExternalName is not exported");
        }
        Some(_) => {}
    }
    let is = |clusters: &[ClusterId]| clusters.contains(cluster);
    let ready = match shared_service {
        Some(shared) if is(&shared.clusters) => {
            condition("Ready", true, "Exported", "proxies of all clusters receive its endpoints")
        }
        Some(shared) if is(&shared.refused) => condition(
            "Ready",
            false,
            "Failed",
            "the policy does not allow this cluster to export it",
        ),
        _ => condition("Ready", false, "Pending", "the mesh does not have it yet"),
    };
    let conflict = match shared_service.and_then(|shared| shared.conflict.as_ref()) {
        Some(conflict) => condition("Conflict", true, &conflict.reason, &conflict.message),
        None => condition("Conflict", false, "NoConflicts", "all clusters that export it agree"),
    };
    vec![condition("Valid", true, "Valid", "a Service with this name exists"), ready, conflict]
}

fn has_same_state(a: &ExportCondition, b: &ExportCondition) -> bool {
    (&a.status, &a.reason, &a.message, a.observed) == (&b.status, &b.reason, &b.message, b.observed)
}

/// Returns the condition with its last transition time. An unchanged status keeps its time.
fn dated(wanted: ExportCondition, current: &[ExportCondition]) -> ExportCondition {
    let same = |one: &&ExportCondition| (&one.kind, &one.status) == (&wanted.kind, &wanted.status);
    let since = current.iter().find(same).map(|current| current.since.clone());
    ExportCondition { since: since.unwrap_or_default(), ..wanted }
}

/// When to compare, and where to send the result.
pub(super) struct WriteBack {
    cluster: ClusterId,
    shared: watch::Receiver<Arc<SharedServices>>,
    desired: watch::Sender<Vec<DesiredObject>>,
    stale: bool,
    looked: Instant,
}

impl WriteBack {
    pub(super) fn new(
        cluster: ClusterId,
        shared: watch::Receiver<Arc<SharedServices>>,
        desired: watch::Sender<Vec<DesiredObject>>,
    ) -> Self {
        Self { cluster, shared, desired, stale: true, looked: Instant::now() }
    }

    /// Records that the cluster has changed.
    pub(super) fn note(&mut self) {
        self.stale = true;
    }

    /// Waits until the next comparison is due.
    pub(super) async fn next_look(&mut self) {
        while !self.stale {
            if self.shared.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            self.stale = true;
        }
        sleep_until(self.looked + PACE).await;
    }

    /// Compares the current with the desired state.
    pub(super) fn look(&mut self, index: &KubeIndex) {
        (self.stale, self.looked) = (false, Instant::now());
        let shared = Arc::clone(&self.shared.borrow_and_update());
        let desired = index.desired_objects(&self.cluster, &shared);
        self.desired.send_if_modified(|current| {
            let differ = *current != desired;
            *current = desired;
            differ
        });
    }
}

/// Writes the desired objects while this process has the writer role. Ends when their sender is
/// dropped. `version` is that of the API, once known.
pub(super) async fn run(
    client: ApiClient,
    mut role: watch::Receiver<WriterRole>,
    mut desired: watch::Receiver<Vec<DesiredObject>>,
    mut version: watch::Receiver<Option<&'static str>>,
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
            if !memory.may_try(&object, Instant::now()) {
                continue;
            }
            let result = write(&client, served, &object).await;
            let DesiredObject { key, .. } = &object;
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
        tokio::select! {
            changed = desired.changed() => if changed.is_err() { return },
            () = sleep(rest) => {}
        }
        if rest == PAUSE {
            sleep(PAUSE).await;
        }
    }
}

/// The values that were written, and the denied permissions.
#[derive(Debug, Default)]
struct WriteBackState {
    last: BTreeMap<(WritePermission, NamespacedName), (DesiredObject, Instant)>,
    denied: BTreeMap<WritePermission, Instant>,
}

impl WriteBackState {
    /// Whether a wish may be tried now.
    fn may_try(&self, object: &DesiredObject, now: Instant) -> bool {
        let rests = |since: &Instant| now.duration_since(*since) < REST;
        let tried = self.last.get(&(object.permission(), object.key.clone()));
        !self.denied.get(&object.permission()).is_some_and(rests)
            && !tried.is_some_and(|(last, since)| *last == object.clone().undated() && rests(since))
    }

    /// Records the result of a write. Returns whether it failed for a transient reason that affects
    /// every write.
    fn note(&mut self, object: DesiredObject, result: &Result<(), ApiError>, now: Instant) -> bool {
        match result {
            Err(ApiError::Forbidden(_) | ApiError::Unauthorized(_)) => {
                self.denied.insert(object.permission(), now);
                return false;
            }
            // The object was deleted, or the value is not accepted.
            Ok(()) | Err(ApiError::NotFound(_) | ApiError::Rejected(_)) => {}
            Err(_) => return true,
        }
        self.last.retain(|_, (_, since)| now.duration_since(*since) < REST);
        self.last.insert((object.permission(), object.key.clone()), (object.undated(), now));
        false
    }
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
        client.patch::<IgnoredAny>(&path, Patch::Apply(MANAGER), &object).await.map(drop)
    };
    match &object.state {
        DesiredState::Conditions(conditions) => {
            let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
            let json = |one: &ExportCondition| {
                let since = if one.since.is_empty() { now.as_str() } else { &one.since };
                let mut json = json!({
                    "type": one.kind, "status": one.status, "reason": one.reason,
                    "message": one.message, "lastTransitionTime": since,
                });
                if one.observed > 0 {
                    json["observedGeneration"] = one.observed.into();
                }
                json
            };
            let conditions: Vec<Value> = conditions.iter().map(json).collect();
            apply("ServiceExport", "serviceexports", json!({ "conditions": conditions })).await
        }
        DesiredState::Clusters(clusters) => {
            let clusters: Vec<Value> =
                clusters.iter().map(|cluster| json!({ "cluster": cluster.as_str() })).collect();
            apply("ServiceImport", "serviceimports", json!({ "clusters": clusters })).await
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use strait_model::Disagreement;

    fn shared(clusters: &[&str], refused: &[&str], conflict: bool) -> SharedService {
        let ids = |names: &[&str]| names.iter().map(|name| ClusterId::from(*name)).collect();
        let conflict = conflict
            .then(|| Disagreement { reason: "PortConflict".into(), message: "ports: …".into() });
        SharedService { clusters: ids(clusters), refused: ids(refused), conflict }
    }

    #[test]
    fn conditions_report_whether_an_export_is_valid_ready_and_undisputed() {
        let alias = Resolution::Alias("elsewhere.example".into());
        for (service, shared_service, expected) in [
            (None, None, "Valid=False NoService, Ready=False Pending"),
            (Some(&alias), None, "Valid=False InvalidServiceType, Ready=False Pending"),
            (
                Some(&Resolution::ClientSide),
                None,
                "Valid=True Valid, Ready=False Pending, Conflict=False NoConflicts",
            ),
            (
                Some(&Resolution::ClientSide),
                Some(shared(&["east", "west"], &[], false)),
                "Valid=True Valid, Ready=True Exported, Conflict=False NoConflicts",
            ),
            (
                Some(&Resolution::ClientSide),
                Some(shared(&["west"], &["east"], true)),
                "Valid=True Valid, Ready=False Failed, Conflict=True PortConflict",
            ),
        ] {
            let found = conditions(service, shared_service.as_ref(), &"east".into());
            let found: Vec<_> = found
                .iter()
                .map(|one| format!("{}={} {}", one.kind, one.status, one.reason))
                .collect();
            assert_eq!(found.join(", "), expected);
        }
    }

    #[test]
    fn unchanged_status_keeps_its_time() {
        let at = |status: &str, since: &str| ExportCondition {
            kind: "Ready".into(),
            status: status.into(),
            reason: "x".into(),
            message: "y".into(),
            since: since.into(),
            observed: 1,
        };
        let current = [at("True", "2026-01-01T00:00:00Z")];
        assert_eq!(&*dated(at("True", ""), &current).since, "2026-01-01T00:00:00Z");
        assert_eq!(&*dated(at("False", ""), &current).since, "");
        // A changed object needs a new report, even with the same value.
        let later = ExportCondition { observed: 2, ..at("True", "") };
        assert!(
            has_same_state(&at("True", ""), &current[0]) && !has_same_state(&later, &current[0])
        );
    }

    #[test]
    fn write_without_effect_is_not_repeated_for_a_while() {
        let object = |name: &str, clusters: &[&str]| DesiredObject {
            key: NamespacedName { namespace: "shop".into(), name: name.into() },
            state: DesiredState::Clusters(clusters.iter().map(|id| ClusterId::from(*id)).collect()),
        };
        let (now, later) = (Instant::now(), Instant::now() + REST);
        let mut memory = WriteBackState::default();
        assert!(memory.may_try(&object("cart", &["a"]), now));
        assert!(!memory.note(object("cart", &["a"]), &Ok(()), now));
        assert!(!memory.may_try(&object("cart", &["a"]), now), "another writer reverted it");
        assert!(memory.may_try(&object("cart", &["a", "b"]), now));
        assert!(memory.may_try(&object("cart", &["a"]), later));
        // A missing permission applies to all objects.
        let denied = Err(ApiError::from_status(403, "no", None));
        assert!(!memory.note(object("loan", &["a"]), &denied, now));
        assert!(
            !memory.may_try(&object("other", &["a"]), now)
                && memory.may_try(&object("other", &["a"]), later)
        );
        let export = DesiredObject { key: object("cart", &[]).key, state: DesiredState::Export };
        assert!(memory.may_try(&export, now));
        let exists = Err(ApiError::from_status(409, "already exists", None));
        assert!(!memory.note(export.clone(), &exists, now), "another writer was faster");
        assert!(!memory.may_try(&export, now));
        assert!(memory.note(
            object("cart", &[]),
            &Err(ApiError::from_status(503, "busy", None)),
            now
        ));
    }
}
