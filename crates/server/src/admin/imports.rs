//! Exports and imports of multi-cluster services: parts of `/debug/services`, and the response of
//! `/debug/explain/import`.

use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json};

use strait_base::codes;
use strait_base::time::rfc3339_seconds;
use strait_model::{ImportMode, SharedService, SharedServices, WorkloadKey};
use strait_sources::clusters::status::{ClusterState, ClusterStatus};
use strait_sources::registry::kube::{ImportState, ImportStep};

/// Returns the exports of a service: first the one that decides, then the other valid ones, then the
/// refused ones.
pub(super) fn exports(shared: &SharedServices, key: &WorkloadKey) -> Vec<Value> {
    let Some(service) = shared.services.get(key) else { return Vec::new() };
    let winner = service.exports.first().map(|first| first.cluster.as_str());
    let valid = service.exports.iter().enumerate().map(|(at, export)| {
        let conflicts = export.conflicts.iter();
        let conflicts: Vec<_> =
            conflicts.map(|field| json!({ "field": field, "winner": winner })).collect();
        json!({
            "cluster": export.cluster.as_str(), "name": &*export.name,
            "created": created(export.service.created),
            "valid": true, "decides": at == 0, "conflicts": conflicts,
        })
    });
    let refused = service.refused.iter().map(|(cluster, reason)| {
        json!({
            "cluster": cluster.as_str(), "name": null, "created": null,
            "valid": false, "decides": false, "conflicts": [], "reason": reason,
        })
    });
    valid.chain(refused).collect()
}

fn created(seconds: i64) -> Option<String> {
    let seconds = u64::try_from(seconds).ok().filter(|seconds| *seconds > 0)?;
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds)).map(rfc3339_seconds)
}

/// Returns the imports of a service: one for each cluster that has or lacks it.
pub(super) fn imports(clusters: &[ClusterStatus], key: &WorkloadKey) -> Vec<Value> {
    let states =
        clusters.iter().filter_map(|cluster| Some((cluster, cluster.imports.imports.get(key)?)));
    let rows = states.map(|(cluster, state)| {
        let stopped = cluster.imports.stopped.as_ref();
        let stopped = stopped.filter(|_| !state.present || state.ours && !state.ready);
        let reason = stopped.map(|(_, reason)| reason.as_str()).or(state.reason.as_deref());
        let code = stopped.map(|(code, _)| code.id).or(state.code.map(|code| code.id));
        json!({
            "cluster": cluster.id, "present": state.present, "ours": state.ours,
            "ready": state.ready, "ips": state.ips, "slices": 0, "reason": reason, "code": code,
        })
    });
    rows.collect()
}

/// Returns the response of `/debug/explain/import`.
pub(super) fn explanation(
    shared: &SharedServices,
    status: &ClusterStatus,
    key: &WorkloadKey,
) -> Value {
    let missing = ImportState::default();
    let state = status.imports.imports.get(key).unwrap_or(&missing);
    let service = shared.services.get(key);
    let exports = exports(shared, key);
    let decides = exports.iter().find(|export| export["decides"] == true);
    json!({
        "namespace": key.namespace.as_str(), "name": &*key.name, "cluster": status.id,
        "import": {
            "present": state.present, "ours": state.ours, "ready": state.ready, "ips": state.ips,
            "writer": state.ours.then_some("strait"),
        },
        "decides": decides.map(|export| &export["cluster"]),
        "exports": exports,
        "steps": steps(service, status, state),
    })
}

/// Returns the steps up to the first failing step, or all steps if none fails.
fn steps(
    service: Option<&SharedService>,
    status: &ClusterStatus,
    state: &ImportState,
) -> Vec<Value> {
    let failing = failing(service, status, state);
    let mut steps = Vec::new();
    for step in ImportStep::ALL {
        match &failing {
            Some((fails, detail, code)) if *fails == step => {
                let mut json = json!({ "step": step.as_str(), "ok": false, "detail": detail });
                if let Some(code) = code {
                    json["code"] = code.id.into();
                }
                steps.push(json);
                break;
            }
            _ => {
                let detail = detail(step, service, status, state);
                steps.push(json!({ "step": step.as_str(), "ok": true, "detail": detail }));
            }
        }
    }
    steps
}

type Failing = (ImportStep, String, Option<&'static codes::Code>);

/// Returns the step that fails, if the import is missing or not ready.
fn failing(
    service: Option<&SharedService>,
    status: &ClusterStatus,
    state: &ImportState,
) -> Option<Failing> {
    if state.present && state.ready {
        return None;
    }
    let Some(service) = service else {
        return Some((ImportStep::Exported, "no cluster exports the service".into(), None));
    };
    if service.merged.is_none() {
        let reason = state.reason.clone();
        let reason = reason.or_else(|| service.refused.values().next().cloned());
        let is_name = reason.as_ref().is_some_and(|it| it.starts_with(codes::SET_NAME_MISSING.id));
        let step = if is_name { ImportStep::Name } else { ImportStep::Policy };
        return Some((step, reason.unwrap_or_default(), state.code));
    }
    if state.fails == Some(ImportStep::Namespace) {
        return Some((ImportStep::Namespace, state.reason.clone().unwrap_or_default(), state.code));
    }
    if status.imports.mode == ImportMode::Off && status.state == ClusterState::Live {
        return Some((ImportStep::Policy, "--mcs-imports is off for this cluster".into(), None));
    }
    if let Some((code, reason)) = &status.imports.stopped {
        let step = match code.id {
            id if id == codes::IMPORT_RIGHT_MISSING.id => ImportStep::Right,
            id if id == codes::IMPORTS_CONTESTED.id => ImportStep::Foreign,
            _ => ImportStep::Version,
        };
        return Some((step, reason.clone(), Some(*code)));
    }
    let unread = || format!("the cluster has not been read: {}", status.state.as_str());
    let reason = state.reason.clone().unwrap_or_else(unread);
    Some((state.fails.unwrap_or(ImportStep::Version), reason, state.code))
}

/// Returns the fact about a step that does not fail.
fn detail(
    step: ImportStep,
    service: Option<&SharedService>,
    status: &ClusterStatus,
    state: &ImportState,
) -> String {
    let names = service.map(SharedService::names).unwrap_or_default();
    match step {
        ImportStep::Exported if names.is_empty() => {
            state.reason.clone().unwrap_or_else(|| "no cluster exports the service".into())
        }
        ImportStep::Exported => match names.len() {
            1 => "1 cluster exports the service".into(),
            count => format!("{count} clusters export the service"),
        },
        ImportStep::Name => format!("their names in the set: {}", names.join(", ")),
        ImportStep::Namespace => "the cluster has the namespace".into(),
        ImportStep::Policy => match &state.reason {
            Some(reason) if state.present && state.fails.is_none() => reason.clone(),
            _ => format!("--mcs-imports is {} for the cluster", status.imports.mode.as_str()),
        },
        ImportStep::Right => "no write was refused".into(),
        ImportStep::Version => "the cluster serves ServiceImports".into(),
        ImportStep::Foreign if state.present && !state.ours => {
            "another controller manages ServiceImports here".into()
        }
        ImportStep::Foreign => "Strait manages the import".into(),
        ImportStep::Network => "the addresses do not depend on endpoints".into(),
        ImportStep::Address => {
            let ips: Vec<_> = state.ips.iter().map(ToString::to_string).collect();
            if ips.is_empty() { "it is headless".into() } else { ips.join(", ") }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use std::collections::BTreeMap;
    use strait_model::{ExportedService, ImportedService, Labels, RankedExport, RawService};
    use strait_sources::registry::kube::ImportsStatus;

    fn key() -> WorkloadKey {
        WorkloadKey::new("shop", "cart")
    }

    fn exported() -> SharedServices {
        let service = Arc::new(ExportedService {
            created: 1_772_323_200,
            service: Arc::default(),
            labels: Labels::new(),
            annotations: Labels::new(),
        });
        let (cluster, name) = ("east".into(), "east".into());
        let export = RankedExport { cluster, name, age: 1, service, conflicts: vec!["ports"] };
        let merged = ImportedService {
            decided_by: "east".into(),
            service: RawService::default(),
            labels: Labels::new(),
            annotations: Labels::new(),
        };
        let service = SharedService {
            exports: vec![export],
            merged: Some(Arc::new(merged)),
            ..SharedService::default()
        };
        SharedServices { services: [(key(), service)].into(), ..SharedServices::default() }
    }

    fn status(state: Option<ImportState>) -> ClusterStatus {
        let imports = state.map(|state| (key(), state)).into_iter().collect::<BTreeMap<_, _>>();
        let imports =
            ImportsStatus { mode: ImportMode::Names, imports, ..ImportsStatus::default() };
        ClusterStatus { imports: Arc::new(imports), ..ClusterStatus::live("west") }
    }

    /// Returns the failing step of an explanation, and the number of steps.
    fn outcome(explanation: &Value) -> (Option<&str>, usize) {
        let steps = explanation["steps"].as_array().expect("steps");
        let failing = steps.iter().filter(|step| step["ok"] == false);
        let failing: Vec<_> = failing.filter_map(|step| step["step"].as_str()).collect();
        assert!(failing.len() <= 1, "{explanation}");
        (failing.first().copied(), steps.len())
    }

    #[test]
    fn missing_import_has_exactly_one_failing_step() {
        let absent = |step| {
            let reason = Some("why".to_owned());
            ImportState { reason, fails: Some(step), ..ImportState::default() }
        };
        let ready = ImportState {
            present: true,
            ours: true,
            ready: true,
            ips: vec!["10.0.0.1".parse().expect("an address")],
            ..ImportState::default()
        };
        let none = SharedServices::default();
        for (shared, state, expected) in [
            (&exported(), Some(ready.clone()), (None, 9)),
            (&none, None, (Some("exported"), 1)),
            (&exported(), Some(absent(ImportStep::Namespace)), (Some("namespace"), 3)),
            (&exported(), Some(absent(ImportStep::Policy)), (Some("policy"), 4)),
            (&exported(), None, (Some("version"), 6)),
            (&exported(), Some(absent(ImportStep::Foreign)), (Some("foreign"), 7)),
            (&exported(), Some(absent(ImportStep::Address)), (Some("address"), 9)),
            // The import of a service without exports is not deleted yet.
            (&none, Some(ready), (None, 9)),
        ] {
            let explained = explanation(shared, &status(state), &key());
            assert_eq!(outcome(&explained), expected, "{explained:#}");
        }
        let explained = explanation(&exported(), &status(None), &key());
        assert_eq!(explained["decides"], "east");
        assert_eq!(explained["exports"][0]["created"], "2026-03-01T00:00:00Z");
    }

    #[test]
    fn stopped_cluster_fails_at_the_right_or_the_version() {
        for (code, step) in [
            (&codes::IMPORT_RIGHT_MISSING, "right"),
            (&codes::IMPORT_VERSION_MISSING, "version"),
            (&codes::IMPORTS_CONTESTED, "foreign"),
        ] {
            let mut status = status(None);
            let imports = Arc::make_mut(&mut status.imports);
            imports.stopped = Some((code, "why".into()));
            let explained = explanation(&exported(), &status, &key());
            assert_eq!(outcome(&explained).0, Some(step));
            let steps = explained["steps"].as_array().expect("steps");
            assert_eq!(steps.last().map(|step| &step["code"]), Some(&json!(code.id)));
        }
    }
}
