//! What an API server asks a webhook before it stores an object, and how it is answered, whatever the answer is.
//! (Kubernetes, "Dynamic Admission Control", `admission.k8s.io/v1`.) Knows no kind of objects.

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

/// The request of an AdmissionReview.
///
/// # Errors
/// The text is no AdmissionReview of the version that we know.
pub fn request<R: DeserializeOwned>(body: &[u8]) -> Result<R, String> {
    let review: AdmissionReview<R> =
        serde_json::from_slice(body).map_err(|error| format!("no AdmissionReview: {error}"))?;
    if review.version != VERSION {
        return Err(format!("an AdmissionReview of {:?}; only v1 is answered", review.version));
    }
    Ok(review.request)
}

/// The answer to the request with that UID: it is allowed, unless `fields` of the response say otherwise.
pub fn response(uid: &str, fields: Value) -> Value {
    let mut response = json!({ "uid": uid, "allowed": true });
    if let (Some(response), Value::Object(fields)) = (response.as_object_mut(), fields) {
        response.extend(fields);
    }
    json!({ "apiVersion": VERSION, "kind": "AdmissionReview", "response": response })
}
