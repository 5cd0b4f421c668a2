//! Requests of an API server to an admission webhook, and the responses. (Kubernetes, "Dynamic
//! Admission Control", `admission.k8s.io/v1`.) Independent of the kinds of objects.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const VERSION: &str = "admission.k8s.io/v1";

#[derive(Debug, Deserialize)]
struct AdmissionReview<R> {
    #[serde(rename = "apiVersion")]
    version: String,
    request: R,
}

/// Returns the request of an AdmissionReview.
///
/// # Errors
/// Returns an error if the text is not an AdmissionReview of the supported version.
pub fn request<R: DeserializeOwned>(body: &[u8]) -> Result<R, String> {
    let review: AdmissionReview<R> =
        serde_json::from_slice(body).map_err(|error| format!("not an AdmissionReview: {error}"))?;
    if review.version != VERSION {
        return Err(format!(
            "an AdmissionReview of version {:?}; only v1 is supported",
            review.version
        ));
    }
    Ok(review.request)
}

/// Returns the response to the request with this UID. The request is allowed unless `fields` of the
/// response override that.
pub fn response(uid: &str, fields: Value) -> Value {
    let mut response = json!({ "uid": uid, "allowed": true });
    if let (Some(response), Value::Object(fields)) = (response.as_object_mut(), fields) {
        response.extend(fields);
    }
    json!({ "apiVersion": VERSION, "kind": "AdmissionReview", "response": response })
}
