//! Names of a pod's workload in telemetry, from the pod's labels and its owner.

use serde_json::Value;

use super::object::{items, text};
use super::settings::PodPlace;
use strait_base::bounded::head;
use strait_model::workload_of_controller;

/// The label with the name of a pod's workload in telemetry.
pub(super) const CANONICAL_NAME: &str = "service.istio.io/canonical-name";
/// The label with the revision of a pod's workload in telemetry.
pub(super) const CANONICAL_REVISION: &str = "service.istio.io/canonical-revision";

/// The name and revision of the pod's workload in telemetry.
pub(super) struct WorkloadNames {
    pub(super) name: String,
    pub(super) revision: String,
}

impl WorkloadNames {
    pub(super) fn from_pod(pod: &Value, place: PodPlace<'_>) -> Self {
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
    let label = |label: &str| text(&metadata["labels"], label);
    let workload = workload_of_controller(text(owner, "kind")?, text(owner, "name")?, label);
    Some(workload.to_owned())
}

/// Returns the longest prefix of the text that is a valid label value.
fn label_value(text: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let cut: String = head(text, 63).chars().take_while(|c| fits(*c)).collect();
    cut.trim_matches(|c: char| !c.is_ascii_alphanumeric()).to_owned()
}

/// Returns the environment variables with which the proxy reports service metrics, from the metadata of the pod before
/// injection. Labels of the pod override the names that injection chooses.
pub(super) fn own_labels(
    metadata: &Value,
    place: PodPlace<'_>,
    names: &WorkloadNames,
) -> Vec<(&'static str, String)> {
    let label = |name: &str| text(&metadata["labels"], name).map(str::to_owned);
    let workload = label("service.istio.io/workload-name");
    let workload = workload.or_else(|| place.workload.map(str::to_owned));
    let workload = workload.or_else(|| owner(metadata)).unwrap_or_default();
    let service = label(CANONICAL_NAME).unwrap_or_else(|| names.name.clone());
    let revision = label(CANONICAL_REVISION).unwrap_or_else(|| names.revision.clone());
    let labels = [
        ("STRAIT_METRICS_WORKLOAD", workload),
        ("STRAIT_METRICS_SERVICE", service.clone()),
        ("STRAIT_METRICS_REVISION", revision.clone()),
        ("STRAIT_METRICS_APP", label("app").unwrap_or(service)),
        ("STRAIT_METRICS_VERSION", label("version").unwrap_or(revision)),
    ];
    let labels = labels.into_iter().filter(|(_, text)| !text.is_empty());
    [("STRAIT_SERVICE_METRICS", "true".to_owned())].into_iter().chain(labels).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn workload_is_the_owner_of_the_pods_controller() {
        let hash = |label: &str| json!({ label: "7d8b9" });
        for (kind, name, labels, expected) in [
            ("ReplicaSet", "web-v2-7d8b9", hash("pod-template-hash"), "web-v2"),
            ("ReplicaSet", "web-v2-7d8b9", hash("rollouts-pod-template-hash"), "web-v2"),
            ("ReplicaSet", "web-v2-7d8b9", json!({}), "web-v2-7d8b9"),
            ("ReplicationController", "web-3", json!({ "deploymentconfig": "web" }), "web"),
            ("Job", "nightly-28123456", json!({}), "nightly"),
            ("Job", "import-2812345678901", json!({}), "import-2812345678901"),
            ("StatefulSet", "db", json!({}), "db"),
        ] {
            let metadata = json!({
                "name": format!("{name}-abcde"), "labels": labels,
                "ownerReferences": [{ "kind": kind, "name": name, "controller": true }],
            });
            let place = PodPlace { namespace: "shop", workload: None };
            let names = WorkloadNames::from_pod(&json!({ "metadata": metadata }), place);
            assert_eq!(names.name, expected, "{kind}");
            let labels = own_labels(&metadata, place, &names);
            let workload = labels.iter().find(|(name, _)| *name == "STRAIT_METRICS_WORKLOAD");
            assert_eq!(workload.map(|(_, value)| &**value), Some(expected), "{kind}");
        }
    }
}
