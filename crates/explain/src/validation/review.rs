//! Requests and responses of the validation webhook: `admission.k8s.io/v1`. (Kubernetes, "Dynamic
//! Admission Control".)

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use tracing::info;

use super::counts::ValidationResult;
use crate::{ConfigReason, ObjectVerdict};
use strait_base::admission;
use strait_base::bounded::head;

/// Maximum number of warnings in a response, and the maximum length of each and of all together, in
/// bytes. An API server truncates warnings of more than 256 characters and drops everything beyond
/// 4,096.
const WARNINGS_MAX: usize = 12;
const WARNING_BYTES_MAX: usize = 250;
const WARNINGS_BYTES_MAX: usize = 3_500;
/// Maximum number of reasons in a refusal, and the maximum length of each, in bytes.
const REASONS_MAX: usize = 10;
const REASON_BYTES_MAX: usize = 400;

/// The validation request of an API server.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ValidationRequest {
    uid: String,
    operation: String,
    #[serde(default)]
    sub_resource: String,
    #[serde(default)]
    object: Value,
    #[serde(default)]
    old_object: Value,
}

/// Returns the response to an AdmissionReview and its result, according to `judge`. `judge` returns
/// `None` for an object that is not part of the mesh's configuration, and an error if it cannot
/// decide now.
///
/// # Errors
/// If the body is not an AdmissionReview of a supported version.
pub(super) fn answer(
    body: &[u8],
    judge: impl FnOnce(&Arc<Value>) -> Result<Option<ObjectVerdict>, &'static str>,
) -> Result<(Value, ValidationResult), String> {
    let request: ValidationRequest = admission::request(body)?;
    let response = |fields: Value| admission::response(&request.uid, fields);
    let is_written = matches!(&*request.operation, "CREATE" | "UPDATE");
    let is_leaving = !request.object["metadata"]["deletionTimestamp"].is_null();
    if !is_written || is_leaving || !request.sub_resource.is_empty() {
        return Ok((response(json!({})), ValidationResult::Allowed));
    }
    if !request.object.is_object() {
        return Err("an AdmissionReview of nothing: request.object is no object".to_owned());
    }
    let object = Arc::new(request.object);
    let verdict = match judge(&object) {
        Ok(Some(verdict)) => verdict,
        Ok(None) => return Ok((response(json!({})), ValidationResult::Allowed)),
        Err(why) => {
            let warnings = json!({ "warnings": [format!("strait: not checked: {why}")] });
            return Ok((response(warnings), ValidationResult::Warned));
        }
    };
    let reasons = &verdict.state.reasons;
    // An invalid stored object may still receive labels or lose a finalizer.
    let is_as_before =
        request.operation == "UPDATE" && object.get("spec") == request.old_object.get("spec");
    if verdict.is_refused && !is_as_before {
        let message = refusal(reasons);
        let state = &verdict.state;
        info!(
            kind = state.kind,
            namespace = state.namespace,
            name = state.name,
            "refused an object: {message}"
        );
        let status =
            json!({ "code": 422, "reason": "Invalid", "status": "Failure", "message": message });
        let fields = json!({ "allowed": false, "status": status });
        return Ok((response(fields), ValidationResult::Refused));
    }
    let warnings = warnings(reasons);
    Ok(match warnings.is_empty() {
        true => (response(json!({})), ValidationResult::Allowed),
        false => (response(json!({ "warnings": warnings })), ValidationResult::Warned),
    })
}

fn refusal(reasons: &[ConfigReason]) -> String {
    let mut lines: Vec<String> =
        reasons.iter().take(REASONS_MAX).map(|one| cut(&message(one), REASON_BYTES_MAX)).collect();
    if let more @ 1.. = reasons.len().saturating_sub(REASONS_MAX) {
        lines.push(format!("and {more} more: strait check config -f FILE"));
    }
    if let Some(first) = reasons.first() {
        lines.push(format!("for the next step: strait help {}", first.code));
    }
    lines.join("; ")
}

fn warnings(reasons: &[ConfigReason]) -> Vec<String> {
    let (mut warnings, mut bytes) = (Vec::new(), 0);
    for reason in reasons {
        let warning = cut(&message(reason), WARNING_BYTES_MAX);
        bytes += warning.len();
        if warnings.len() == WARNINGS_MAX || bytes > WARNINGS_BYTES_MAX {
            break;
        }
        warnings.push(warning);
    }
    if let more @ 1.. = reasons.len() - warnings.len() {
        warnings.push(format!("and {more} more: strait check config"));
    }
    warnings
}

fn message(reason: &ConfigReason) -> String {
    format!("{}: {}: {}", reason.code, reason.path, reason.text)
}

/// Truncates a text to a number of bytes at a character boundary, and replaces control characters,
/// which terminals interpret and headers cannot contain.
fn cut(text: &str, bytes_max: usize) -> String {
    const MARK: &str = "…";
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.len() <= bytes_max {
        return text;
    }
    format!("{}{MARK}", head(&text, bytes_max - MARK.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ConfigState, ObjectStanding};

    fn review(operation: &str, object: Value, old: Value) -> String {
        json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": "705ab4f5", "operation": operation, "dryRun": true, "name": "web", "namespace": "shop",
                "kind": { "group": "networking.istio.io", "version": "v1", "kind": "VirtualService" },
                "object": object, "oldObject": old,
            },
        })
        .to_string()
    }

    fn object(spec: u32) -> Value {
        json!({ "kind": "VirtualService", "metadata": { "name": "web" }, "spec": spec })
    }

    fn verdict(is_refused: bool, texts: &[&str]) -> Result<Option<ObjectVerdict>, &'static str> {
        let reasons = texts.iter().map(|text| ConfigReason {
            code: "STR1043",
            path: "spec.http[1]".into(),
            text: (*text).into(),
        });
        let state = ConfigState {
            cluster: None,
            kind: "VirtualService".into(),
            namespace: "shop".into(),
            name: "web".into(),
            store: "config",
            state: ObjectStanding::Partly,
            proxies: 0,
            reasons: reasons.collect(),
        };
        Ok(Some(ObjectVerdict { is_refused, state }))
    }

    #[test]
    fn invalid_objects_are_refused_with_all_reasons() {
        let texts: Vec<String> = (0..12).map(|at| format!("fault {at}")).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let body = review("CREATE", object(1), Value::Null);
        let (answer, result) = answer(body.as_bytes(), |_| verdict(true, &texts)).expect("one");
        assert_eq!(result, ValidationResult::Refused);
        let response = &answer["response"];
        assert_eq!((&response["uid"], &response["allowed"]), (&json!("705ab4f5"), &json!(false)));
        let message = response["status"]["message"].as_str().expect("a message");
        assert!(message.starts_with("STR1043: spec.http[1]: fault 0; STR1043: "), "{message}");
        assert!(
            message.contains("fault 9; and 2 more: strait check config -f FILE; "),
            "{message}"
        );
        assert!(message.ends_with("for the next step: strait help STR1043"), "{message}");
    }

    #[test]
    fn partly_effective_objects_are_stored_with_bounded_warnings() {
        let long = "ü".repeat(300);
        let texts: Vec<&str> = (0..40).map(|_| &*long).collect();
        let body = review("UPDATE", object(1), object(2));
        let (answer, result) = answer(body.as_bytes(), |_| verdict(false, &texts)).expect("one");
        assert_eq!(result, ValidationResult::Warned);
        assert_eq!(answer["response"]["allowed"], true);
        let warnings = answer["response"]["warnings"].as_array().expect("warnings");
        assert_eq!(warnings.len(), 13);
        assert_eq!(warnings[12], "and 28 more: strait check config");
        let lengths = warnings.iter().map(|one| one.as_str().expect("text").len());
        let (longest, all) = (lengths.clone().max(), lengths.sum::<usize>());
        assert!(longest <= Some(256) && all <= 4_096, "{longest:?} {all}");
    }

    #[test]
    fn deletions_and_unchanged_specs_are_allowed() {
        let never = |_: &Arc<Value>| -> Result<Option<ObjectVerdict>, &'static str> {
            unreachable!("the object is not judged")
        };
        let mut leaving = object(1);
        leaving["metadata"]["deletionTimestamp"] = json!("2026-11-25T02:00:00Z");
        for body in [
            review("DELETE", Value::Null, object(1)),
            review("CONNECT", object(1), Value::Null),
            review("UPDATE", leaving, object(2)),
            review("UPDATE", object(1), object(2))
                .replace("\"uid\"", "\"subResource\":\"status\",\"uid\""),
        ] {
            let (answer, result) = answer(body.as_bytes(), never).expect("one");
            assert_eq!(answer["response"], json!({ "uid": "705ab4f5", "allowed": true }));
            assert_eq!(result, ValidationResult::Allowed);
        }
        let body = review("UPDATE", object(1), object(1));
        let (review, _) = answer(body.as_bytes(), |_| verdict(true, &["a fault"])).expect("one");
        assert_eq!(review["response"]["allowed"], true, "an invalid object may lose a finalizer");
        assert_eq!(review["response"]["warnings"], json!(["STR1043: spec.http[1]: a fault"]));
        let (review, _) = answer(body.as_bytes(), |_| Ok(None)).expect("one");
        assert_eq!(review["response"], json!({ "uid": "705ab4f5", "allowed": true }));
    }

    #[test]
    fn objects_are_allowed_while_the_mesh_is_unknown() {
        let body = review("CREATE", object(1), Value::Null);
        let (review, result) = answer(body.as_bytes(), |_| Err("not yet")).expect("one");
        assert_eq!(result, ValidationResult::Warned);
        assert_eq!(review["response"]["allowed"], true);
        assert_eq!(review["response"]["warnings"], json!(["strait: not checked: not yet"]));
    }

    #[test]
    fn invalid_reviews_are_rejected() {
        let good = review("CREATE", object(1), Value::Null);
        for (body, expected) in [
            ("{".to_owned(), "not an AdmissionReview: EOF"),
            ("{}".to_owned(), "not an AdmissionReview: missing field"),
            (good.replace("k8s.io/v1\"", "k8s.io/v1beta1\""), "only v1 is supported"),
            (good.replace("\"uid\"", "\"id\""), "missing field `uid`"),
            (review("CREATE", json!([1]), Value::Null), "request.object is no object"),
            (review("CREATE", Value::Null, Value::Null), "request.object is no object"),
        ] {
            let error = answer(body.as_bytes(), |_| Ok(None)).expect_err(&body);
            assert!(error.contains(expected), "{error}");
        }
    }
}
