//! Names of a pod's workload in telemetry, from the pod's labels and its owner.

use serde_json::Value;

use super::object::{items, text};
use super::settings::PodPlace;
use strait_base::bounded::head;

/// The name and revision of the pod's workload in telemetry.
pub(super) struct WorkloadNames {
    pub(super) name: String,
    pub(super) revision: String,
}

impl WorkloadNames {
    pub(super) fn of(pod: &Value, place: PodPlace<'_>) -> Self {
        let labels = &pod["metadata"]["labels"];
        let label = |names: [&str; 2]| names.into_iter().find_map(|name| text(labels, name));
        let name = label(["app.kubernetes.io/name", "app"])
            .or(place.workload)
            .map(str::to_owned)
            .or_else(|| owner(&pod["metadata"]))
            .unwrap_or_default();
        let revision = label(["app.kubernetes.io/version", "version"]).unwrap_or("latest");
        Self { name: label_value(&name), revision: label_value(revision) }
    }
}

/// Returns the workload that created the pod: the Deployment of a ReplicaSet, the CronJob of a Job, or the pod itself.
fn owner(metadata: &Value) -> Option<String> {
    let mut owners = items(metadata, "ownerReferences").iter();
    let Some(owner) = owners.find(|owner| owner["controller"] == true) else {
        let name = text(metadata, "name").or_else(|| text(metadata, "generateName"));
        return name.map(|name| name.trim_end_matches('-').to_owned());
    };
    let name = text(owner, "name")?;
    let hash = text(&metadata["labels"], "pod-template-hash");
    let above = match (text(owner, "kind")?, name.rsplit_once('-')) {
        ("ReplicaSet", Some((above, end))) if Some(end) == hash => above,
        ("Job", Some((above, end)))
            if end.len() >= 8 && end.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            above
        }
        _ => name,
    };
    Some(above.to_owned())
}

/// Returns the longest prefix of the text that is a valid label value.
fn label_value(text: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let cut: String = head(text, 63).chars().take_while(|c| fits(*c)).collect();
    cut.trim_matches(|c: char| !c.is_ascii_alphanumeric()).to_owned()
}

/// The names of a pod that its injected labels do not contain.
pub(super) struct PodNames {
    workload: Option<String>,
    service: Option<String>,
    revision: Option<String>,
    app: Option<String>,
    version: Option<String>,
}

impl PodNames {
    pub(super) fn of(metadata: &Value, place: PodPlace<'_>) -> Self {
        let label = |name: &str| text(&metadata["labels"], name).map(str::to_owned);
        let workload = label("service.istio.io/workload-name");
        let workload = workload.or_else(|| place.workload.map(str::to_owned));
        Self {
            workload: workload.or_else(|| owner(metadata)),
            service: label("service.istio.io/canonical-name"),
            revision: label("service.istio.io/canonical-revision"),
            app: label("app"),
            version: label("version"),
        }
    }
}

/// Returns the environment variables with which the proxy reports service metrics.
pub(super) fn own_labels(pod: &PodNames, names: &WorkloadNames) -> Vec<(&'static str, String)> {
    let PodNames { workload, service, revision, app, version } = pod;
    let service = service.as_ref().unwrap_or(&names.name);
    let revision = revision.as_ref().unwrap_or(&names.revision);
    let said = [
        ("STRAIT_METRICS_WORKLOAD", workload.as_deref()),
        ("STRAIT_METRICS_SERVICE", Some(&**service)),
        ("STRAIT_METRICS_REVISION", Some(&**revision)),
        ("STRAIT_METRICS_APP", Some(app.as_deref().unwrap_or(service))),
        ("STRAIT_METRICS_VERSION", Some(version.as_deref().unwrap_or(revision))),
    ];
    let said = said
        .into_iter()
        .filter_map(|(name, text)| Some((name, text.filter(|text| !text.is_empty())?.to_owned())));
    [("STRAIT_SERVICE_METRICS", "true".to_owned())].into_iter().chain(said).collect()
}
