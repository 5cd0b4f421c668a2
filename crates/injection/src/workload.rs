//! Injection into workloads: Deployments, Jobs and the like, and lists of them.

use serde_json::Value;

use super::pod::inject;
use super::refusal::Injection;
use super::settings::{InjectSettings, PodPlace};

/// A workload, and the result of injecting its pod template.
#[derive(Debug, Clone, PartialEq)]
pub struct InjectedWorkload {
    /// Its kind.
    pub kind: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The result for its pod template.
    pub injection: Injection,
}

/// Adds a sidecar to every pod template in a manifest, and returns the result for each. An object without a
/// namespace is in `namespace`. An object without a pod template stays unchanged.
pub fn inject_manifest(
    manifest: &mut Value,
    namespace: &str,
    settings: &InjectSettings,
) -> Vec<InjectedWorkload> {
    let kind = manifest["kind"].as_str().unwrap_or_default().to_owned();
    if kind.ends_with("List") {
        let objects = manifest.get_mut("items").and_then(Value::as_array_mut);
        let objects = objects.into_iter().flatten();
        return objects.flat_map(|object| inject_manifest(object, namespace, settings)).collect();
    }
    let Some(path) = template(&kind) else { return Vec::new() };
    let metadata_text = |field: &str| manifest["metadata"][field].as_str().map(str::to_owned);
    let name = metadata_text("name").or_else(|| metadata_text("generateName")).unwrap_or_default();
    let namespace = metadata_text("namespace").unwrap_or_else(|| namespace.to_owned());
    let workload = (kind != "Pod").then_some(name.as_str()).filter(|name| !name.is_empty());
    let place = PodPlace { namespace: &namespace, workload };
    let Some(pod) = manifest.pointer_mut(path) else { return Vec::new() };
    let injection = inject(pod, place, settings);
    if let Injection::Injected { pod: with_sidecar, .. } = &injection {
        *pod = with_sidecar.clone();
    }
    vec![InjectedWorkload { kind, namespace, name, injection }]
}

/// Returns the path of the pod template in objects of a kind.
fn template(kind: &str) -> Option<&'static str> {
    match kind {
        "Pod" => Some(""),
        "Deployment"
        | "StatefulSet"
        | "DaemonSet"
        | "ReplicaSet"
        | "ReplicationController"
        | "Job" => Some("/spec/template"),
        "CronJob" => Some("/spec/jobTemplate/spec/template"),
        _ => None,
    }
}
