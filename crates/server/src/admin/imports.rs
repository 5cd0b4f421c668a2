//! Exports and imports of multi-cluster services: parts of `/debug/services`, and the response of
//! `/debug/explain/import`.

use std::time::{Duration, UNIX_EPOCH};

use strait_admin_api::{
    self as api, ExplainedImport, ExportConflict, ImportExplanation, ImportedField, ServiceExport,
    ServiceImport,
};
use strait_base::codes;
use strait_base::time::rfc3339_seconds;
use strait_model::{
    ClusterId, ImportMode, ImportedService, NetworkId, RankedExport, SharedService, SharedServices,
    WorkloadKey,
};
use strait_sources::clusters::status::{ClusterState, ClusterStatus};
use strait_sources::registry::kube::{ImportState, ImportStep};

/// Returns the exports of a service: first the one that decides, then the other valid ones, then the
/// refused ones, then the invalid ones.
pub(super) fn exports(
    shared: &SharedServices,
    clusters: &[ClusterStatus],
    key: &WorkloadKey,
) -> Vec<ServiceExport> {
    let mut exports = shared.services.get(key).map(valid_exports).unwrap_or_default();
    let without_effect = |cluster: &str, reason: &str| ServiceExport {
        cluster: cluster.to_owned(),
        reason: Some(reason.to_owned()),
        ..ServiceExport::default()
    };
    let refused = shared.services.get(key).into_iter().flat_map(|service| &service.refused);
    exports.extend(refused.map(|(cluster, reason)| without_effect(cluster.as_str(), reason)));
    exports.extend(clusters.iter().filter_map(|status| {
        let reason = status.imports.invalid_exports.get(key)?;
        Some(without_effect(&status.id, &format!("the ServiceExport is not valid: {reason}")))
    }));
    exports
}

fn valid_exports(service: &SharedService) -> Vec<ServiceExport> {
    let winner = service.exports.first().map(|first| first.cluster.as_str());
    let valid = service.exports.iter().enumerate().map(|(at, export)| {
        let conflict = |field: &&str| ExportConflict {
            field: (*field).to_owned(),
            winner: winner.map(str::to_owned),
        };
        ServiceExport {
            cluster: export.cluster.to_string(),
            name: Some(export.name.to_string()),
            created: created(export.service.created),
            valid: true,
            decides: at == 0,
            conflicts: export.conflicts.iter().map(conflict).collect(),
            reason: None,
        }
    });
    valid.collect()
}

fn created(seconds: i64) -> Option<String> {
    let seconds = u64::try_from(seconds).ok().filter(|seconds| *seconds > 0)?;
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds)).map(rfc3339_seconds)
}

/// Returns the imports of a service: one for each cluster that has or lacks it.
pub(super) fn imports(clusters: &[ClusterStatus], key: &WorkloadKey) -> Vec<ServiceImport> {
    let states =
        clusters.iter().filter_map(|cluster| Some((cluster, cluster.imports.imports.get(key)?)));
    let rows = states.map(|(cluster, state)| {
        let stopped = cluster.imports.stopped.as_ref();
        // A ready import can still lack a right, for example to write its slices.
        let stopped = stopped.filter(|(code, _)| {
            !state.present || state.ours && (!state.ready || is_about_rights(code))
        });
        let reason = stopped.map(|(_, reason)| reason.as_str()).or(state.reason.as_deref());
        let code = stopped.map(|(code, _)| code.id).or(state.code.map(|code| code.id));
        ServiceImport {
            cluster: cluster.id.clone(),
            present: state.present,
            ours: state.ours,
            ready: state.ready,
            ips: state.ips.iter().map(ToString::to_string).collect(),
            slices: state.slices,
            unreached: state.unreached.iter().map(ToString::to_string).collect(),
            reason: reason.map(str::to_owned),
            code: code.map(str::to_owned),
        }
    });
    rows.collect()
}

/// Returns whether the step `right` reports this code.
fn is_about_rights(code: &codes::Code) -> bool {
    [codes::IMPORT_RIGHT_MISSING.id, codes::IMPORT_RELAYED.id].contains(&code.id)
}

/// Returns the response of `/debug/explain/import`.
pub(super) fn explanation(
    shared: &SharedServices,
    status: &ClusterStatus,
    clusters: &[ClusterStatus],
    key: &WorkloadKey,
) -> ImportExplanation {
    let missing = ImportState::default();
    let state = status.imports.imports.get(key).unwrap_or(&missing);
    let service = shared.services.get(key);
    let exports = exports(shared, clusters, key);
    let decides = exports.iter().find(|export| export.decides);
    ImportExplanation {
        namespace: key.namespace.to_string(),
        name: key.name.to_string(),
        cluster: status.id.clone(),
        import: ExplainedImport {
            present: state.present,
            ours: state.ours,
            ready: state.ready,
            ips: state.ips.iter().map(ToString::to_string).collect(),
            slices: state.slices,
            writer: state.ours.then(|| "strait".to_owned()),
        },
        decides: decides.map(|export| export.cluster.clone()),
        fields: service.map(fields).unwrap_or_default(),
        steps: steps(service, &exports, status, state),
        exports,
    }
}

fn unreached(state: &ImportState) -> Vec<&str> {
    state.unreached.iter().map(NetworkId::as_str).collect()
}

/// Returns the fields of the import, each with its value and the cluster whose export defines it.
fn fields(service: &SharedService) -> Vec<ImportedField> {
    let (Some(merged), Some(first)) = (&service.merged, service.exports.first()) else {
        return Vec::new();
    };
    let ImportedService { service: raw, labels, annotations, .. } = &**merged;
    let field = |field: &str, value: String, cluster: &ClusterId| ImportedField {
        field: field.to_owned(),
        value,
        cluster: cluster.to_string(),
    };
    let kind = if raw.headless { "Headless" } else { "ClusterSetIP" };
    let mut fields = vec![field("type", kind.into(), &first.cluster)];
    fields.extend(raw.ports.iter().filter_map(|port| {
        let has_port = |export: &&RankedExport| export.service.service.ports.contains(port);
        let export = service.exports.iter().find(has_port)?;
        Some(field("ports", port.to_string(), &export.cluster))
    }));
    if raw.sticky {
        let seconds = raw.sticky_seconds.map(|seconds| format!(", {seconds} s"));
        let value = format!("ClientIP{}", seconds.unwrap_or_default());
        fields.push(field("sessionAffinity", value, &first.cluster));
    }
    for (name, value) in [
        ("internalTrafficPolicy", &raw.internal_traffic_policy),
        ("trafficDistribution", &raw.traffic_distribution),
    ] {
        fields.extend(value.as_ref().map(|value| field(name, value.to_string(), &first.cluster)));
    }
    let families: Vec<_> = raw.ip_families.iter().map(|family| family.as_str()).collect();
    if !families.is_empty() {
        fields.push(field("ipFamilies", families.join(","), &first.cluster));
    }
    for (name, pairs) in [("labels", labels), ("annotations", annotations)] {
        let pairs: Vec<_> = pairs.iter().map(|(key, value)| format!("{key}={value}")).collect();
        if !pairs.is_empty() {
            fields.push(field(name, pairs.join(","), &first.cluster));
        }
    }
    fields
}

/// Returns the steps up to the first failing step, or all steps if none fails.
fn steps(
    service: Option<&SharedService>,
    exports: &[ServiceExport],
    status: &ClusterStatus,
    state: &ImportState,
) -> Vec<api::ImportStep> {
    let failing = failing(service, exports, status, state);
    let mut steps = Vec::new();
    for step in ImportStep::ALL {
        match &failing {
            Some((fails, detail, code)) if *fails == step => {
                let code = code.map(|code| code.id.to_owned());
                steps.push(import_step(step, false, detail.clone(), code));
                break;
            }
            _ => {
                let detail = detail(step, service, status, state);
                steps.push(import_step(step, true, detail, None));
            }
        }
    }
    steps
}

fn import_step(
    step: ImportStep,
    ok: bool,
    detail: String,
    code: Option<String>,
) -> api::ImportStep {
    api::ImportStep { step: step.as_str().to_owned(), ok, detail, code }
}

type Failing = (ImportStep, String, Option<&'static codes::Code>);

/// Returns the step that fails, if the import is missing or not ready.
fn failing(
    service: Option<&SharedService>,
    exports: &[ServiceExport],
    status: &ClusterStatus,
    state: &ImportState,
) -> Option<Failing> {
    if state.present && state.ready {
        return None;
    }
    let Some(service) = service else {
        let without_effect = exports.iter().filter_map(|export| {
            Some(format!(": {}: {}", export.cluster, export.reason.as_ref()?))
        });
        let fact = "no cluster exports the service";
        let detail = format!("{fact}{}", without_effect.take(1).collect::<String>());
        return Some((ImportStep::Exported, detail, None));
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
            _ if is_about_rights(code) => ImportStep::Right,
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
        ImportStep::Right => match &status.imports.stopped {
            Some((code, reason)) if is_about_rights(code) => {
                format!("a write was refused: {reason} ({})", code.id)
            }
            _ => "no write was refused".into(),
        },
        ImportStep::Version => "the cluster serves ServiceImports".into(),
        ImportStep::Foreign if state.present && !state.ours => {
            "another controller manages ServiceImports here".into()
        }
        ImportStep::Foreign => "Strait manages the import".into(),
        ImportStep::Network if status.imports.mode == ImportMode::Full && state.ours => {
            network(state)
        }
        ImportStep::Network => "the addresses do not depend on endpoints".into(),
        ImportStep::Address => {
            let ips: Vec<_> = state.ips.iter().map(ToString::to_string).collect();
            if ips.is_empty() { "it is headless".into() } else { ips.join(", ") }
        }
    }
}

/// Returns which endpoints pods without sidecars of the cluster reach.
fn network(state: &ImportState) -> String {
    let slices = match state.slices {
        1 => "1 EndpointSlice".to_owned(),
        count => format!("{count} EndpointSlices"),
    };
    match &*unreached(state) {
        [] => format!("{slices}; all endpoints are in the network of the cluster"),
        networks => format!(
            "{slices}; without endpoints in {}: pods without sidecars need one flat network",
            networks.join(", ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use std::collections::BTreeMap;
    use strait_model::{ExportedPort, ExportedService, Labels, RawService};
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
    fn invalid_export_is_shown_with_its_reason() {
        let none = SharedServices::default();
        let reason = "the mesh has no Service with this name";
        let imports =
            ImportsStatus { invalid_exports: [(key(), reason)].into(), ..ImportsStatus::default() };
        let east = ClusterStatus { imports: Arc::new(imports), ..ClusterStatus::live("east") };
        let explained = json!(explanation(&none, &status(None), &[east], &key()));
        let shown = format!("the ServiceExport is not valid: {reason}");
        assert_eq!(explained["exports"][0]["cluster"], "east");
        assert_eq!(explained["exports"][0]["valid"], false);
        assert_eq!(explained["exports"][0]["reason"], shown.as_str());
        let detail = format!("no cluster exports the service: east: {shown}");
        assert_eq!(explained["steps"][0]["detail"], detail.as_str());
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
            let explained = json!(explanation(shared, &status(state), &[], &key()));
            assert_eq!(outcome(&explained), expected, "{explained:#}");
        }
        let explained = json!(explanation(&exported(), &status(None), &[], &key()));
        assert_eq!(explained["decides"], "east");
        assert_eq!(explained["exports"][0]["created"], "2026-03-01T00:00:00Z");
    }

    #[test]
    fn each_field_names_the_export_that_defines_it() {
        let port = |name: &str, number| ExportedPort {
            name: name.into(),
            protocol: "TCP".into(),
            app_protocol: None,
            number,
        };
        let mut shared = exported();
        let service = shared.services.get_mut(&key()).expect("cart");
        let mut other = service.exports[0].clone();
        other.cluster = "west".into();
        let ports =
            |ports: &[ExportedPort]| RawService { ports: ports.to_vec(), ..RawService::default() };
        let with = |export: &mut RankedExport, raw: RawService| {
            let old = ExportedService::clone(&export.service);
            export.service = Arc::new(ExportedService { service: Arc::new(raw), ..old });
        };
        with(&mut service.exports[0], ports(&[port("http", 80)]));
        with(&mut other, ports(&[port("http", 81), port("admin", 90)]));
        service.exports.push(other);
        let merged = service.merged.as_mut().map(Arc::make_mut).expect("merged");
        merged.service = ports(&[port("admin", 90), port("http", 80)]);
        let explained = json!(explanation(&shared, &status(None), &[], &key()));
        assert_eq!(
            explained["fields"],
            json!([
                { "field": "type", "value": "ClusterSetIP", "cluster": "east" },
                { "field": "ports", "value": "admin 90/TCP", "cluster": "west" },
                { "field": "ports", "value": "http 80/TCP", "cluster": "east" },
            ])
        );
    }

    #[test]
    fn import_names_the_networks_that_its_cluster_does_not_reach() {
        let state = ImportState {
            present: true,
            ours: true,
            ready: true,
            slices: 1,
            unreached: vec!["n2".into()],
            ..ImportState::default()
        };
        let mut status = status(Some(state));
        Arc::make_mut(&mut status.imports).mode = ImportMode::Full;
        let explained = json!(explanation(&exported(), &status, &[], &key()));
        assert_eq!(outcome(&explained), (None, 9), "the import is ready");
        let detail = &explained["steps"][7]["detail"];
        let expected =
            "1 EndpointSlice; without endpoints in n2: pods without sidecars need one flat network";
        assert_eq!(*detail, expected);
        assert_eq!(imports(&[status], &key())[0].unreached, ["n2"]);
    }

    #[test]
    fn ready_import_without_the_right_for_slices_has_a_code() {
        let (present, ours, ready) = (true, true, true);
        let mut status = status(Some(ImportState { present, ours, ready, ..Default::default() }));
        let stopped = (&codes::IMPORT_RIGHT_MISSING, "endpointslices is forbidden".to_owned());
        Arc::make_mut(&mut status.imports).stopped = Some(stopped);
        let explained = json!(explanation(&exported(), &status, &[], &key()));
        assert_eq!(outcome(&explained), (None, 9), "{explained:#}");
        let detail = &explained["steps"][4]["detail"];
        assert_eq!(*detail, "a write was refused: endpointslices is forbidden (STR0443)");
        assert_eq!(imports(&[status], &key())[0].code.as_deref(), Some("STR0443"));
    }

    #[test]
    fn stopped_cluster_fails_at_the_right_or_the_version() {
        for (code, step) in [
            (&codes::IMPORT_RIGHT_MISSING, "right"),
            (&codes::IMPORT_RELAYED, "right"),
            (&codes::IMPORT_VERSION_MISSING, "version"),
            (&codes::IMPORTS_CONTESTED, "foreign"),
        ] {
            let mut status = status(None);
            let imports = Arc::make_mut(&mut status.imports);
            imports.stopped = Some((code, "why".into()));
            let explained = json!(explanation(&exported(), &status, &[], &key()));
            assert_eq!(outcome(&explained).0, Some(step));
            let steps = explained["steps"].as_array().expect("steps");
            assert_eq!(steps.last().map(|step| &step["code"]), Some(&json!(code.id)));
        }
    }
}
