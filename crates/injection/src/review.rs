//! Responses of the webhook to admission reviews (admission.k8s.io/v1).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Deserialize;
use serde_json::{Value, json};
use tracing::info;

use super::counts::InjectionResult;
use super::patch::difference;
use super::pod::inject;
use super::refusal::Injection;
use super::settings::{InjectSettings, PodDefaults, PodPlace};
use strait_base::admission;
use strait_model::Labels;

/// The request in an AdmissionReview.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct AdmissionRequest {
    uid: String,
    kind: AdmittedKind,
    #[serde(default)]
    namespace: String,
    operation: String,
    object: Value,
}

#[derive(Debug, Deserialize)]
struct AdmittedKind {
    kind: String,
}

/// Answers an AdmissionReview. Returns the response, and the result for the counters.
///
/// # Errors
/// The body is not an AdmissionReview of a supported version.
pub(super) fn answer(
    body: &[u8],
    settings: &InjectSettings,
    find: impl Fn(&str, &Labels) -> PodDefaults,
) -> Result<(Value, InjectionResult), String> {
    let request: AdmissionRequest = admission::request(body)?;
    let response = |fields: Value| admission::response(&request.uid, fields);
    // The containers of an existing pod can't be changed.
    if request.kind.kind != "Pod" || request.operation != "CREATE" {
        return Ok((response(json!({})), InjectionResult::Skipped));
    }
    let place = PodPlace { namespace: &request.namespace, workload: None };
    // Invalid labels are refused later, together with the pod.
    let labels = Labels::deserialize(&request.object["metadata"]["labels"]).unwrap_or_default();
    let defaults = find(&request.namespace, &labels);
    let settings = &InjectSettings { defaults, ..settings.clone() };
    Ok(match inject(&request.object, place, settings) {
        Injection::Injected { pod, warnings } => {
            let patch = Value::Array(difference(&request.object, &pod)).to_string();
            let fields = json!({
                "patchType": "JSONPatch", "patch": BASE64.encode(patch), "warnings": warnings,
            });
            (response(fields), InjectionResult::Injected)
        }
        Injection::Skipped(_) => (response(json!({})), InjectionResult::Skipped),
        Injection::Refused(refusal) => {
            let metadata = &request.object["metadata"];
            let name = metadata["name"].as_str().or(metadata["generateName"].as_str());
            info!(
                code = refusal.code.id,
                cluster = settings.cluster,
                namespace = request.namespace,
                pod = name,
                "a pod is refused: {}",
                refusal.fact
            );
            let status = json!({ "code": 403, "message": refusal.to_string() });
            (response(json!({ "allowed": false, "status": status })), InjectionResult::Refused)
        }
    })
}
