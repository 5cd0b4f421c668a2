//! Selection of the pods that receive a sidecar.
//!
//! The caller selects namespaces: the API server by the webhook's selectors, or a user by naming a file. Therefore
//! every pod that arrives here is injected, unless the pod or the rules for namespaces exclude it.

use serde_json::Value;

use super::object::text;
use super::refusal::{InjectRefusal, SkipReason};
use super::settings::{InjectSettings, PodPlace};
use strait_base::codes;

/// Label of pods (`"true"`, `"false"`) and of namespaces (`enabled`).
pub const INJECT_LABEL: &str = "strait.dev/inject";

/// Namespaces in which injection never applies.
pub const NEVER_INJECTED: [&str; 4] =
    ["kube-system", "kube-public", "kube-node-lease", "local-path-storage"];

const ISTIO_INJECT: &str = "sidecar.istio.io/inject";
const ISTIO_REVISION: &str = "istio.io/rev";

/// The injection preference in a pod's labels and annotations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InjectionPreference {
    Requested,
    Declined,
    Unset,
}

/// Returns the reason why the pod stays unchanged, if any.
pub(super) fn skipped(
    pod: &Value,
    place: PodPlace<'_>,
    settings: &InjectSettings,
) -> Result<Option<SkipReason>, InjectRefusal> {
    if NEVER_INJECTED.contains(&place.namespace) {
        return Ok(Some(SkipReason::NeverThere));
    }
    let preference = preference(&pod["metadata"], settings.istio_labels)?;
    let on_host = pod["spec"]["hostNetwork"] == true;
    Ok(match preference {
        InjectionPreference::Declined => Some(SkipReason::Declined),
        InjectionPreference::Requested if on_host => {
            return Err(InjectRefusal::new(
                &codes::INJECT_HOST_NETWORK,
                "it requests a sidecar and uses its node's network (hostNetwork: true)",
            ));
        }
        InjectionPreference::Unset if on_host => Some(SkipReason::HostNetwork),
        InjectionPreference::Unset if place.namespace == settings.system_namespace => {
            Some(SkipReason::SystemNamespace)
        }
        InjectionPreference::Requested | InjectionPreference::Unset => None,
    })
}

/// Reads our label, then our annotation, then Istio's. The first one with a value applies.
fn preference(metadata: &Value, istio: bool) -> Result<InjectionPreference, InjectRefusal> {
    let (labels, annotations) = (&metadata["labels"], &metadata["annotations"]);
    for from in [labels, annotations] {
        match text(from, INJECT_LABEL) {
            None | Some("") => {}
            Some("true" | "enabled") => return Ok(InjectionPreference::Requested),
            Some("false" | "disabled") => return Ok(InjectionPreference::Declined),
            Some(other) => {
                let fact = format!("{INJECT_LABEL}: {other:?} is neither \"true\" nor \"false\"");
                return Err(InjectRefusal::new(&codes::INJECT_ANNOTATION, fact));
            }
        }
    }
    if !istio {
        return Ok(InjectionPreference::Unset);
    }
    // Same interpretation as in Istio: four words request injection, any other declines it.
    let preference = text(labels, ISTIO_INJECT).or_else(|| text(annotations, ISTIO_INJECT));
    Ok(match preference.map(str::to_ascii_lowercase).as_deref() {
        None | Some("") if text(labels, ISTIO_REVISION).is_some() => InjectionPreference::Requested,
        None | Some("") => InjectionPreference::Unset,
        Some("y" | "yes" | "true" | "on") => InjectionPreference::Requested,
        Some(_) => InjectionPreference::Declined,
    })
}
