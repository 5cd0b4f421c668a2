//! Error responses of the API server: a `Status` object with the code, reason and wording that
//! Kubernetes clients expect.

use serde_json::{Value, json};

use crate::resource::Resource;

/// An error response.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiError {
    /// The HTTP status, repeated in the body.
    pub code: u16,
    /// The machine-readable reason, for example `NotFound`.
    pub reason: &'static str,
    /// The message for people.
    pub message: String,
    /// Seconds for the header `Retry-After` and for `details.retryAfterSeconds`.
    pub retry_after_seconds: Option<u64>,
    details: Option<Value>,
    continue_token: Option<String>,
}

impl ApiError {
    /// Returns an error without details.
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> ApiError {
        ApiError {
            code,
            reason,
            message: message.into(),
            retry_after_seconds: None,
            details: None,
            continue_token: None,
        }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> ApiError {
        ApiError::new(400, "BadRequest", message)
    }

    pub(crate) fn unauthorized() -> ApiError {
        ApiError::new(401, "Unauthorized", "Unauthorized")
    }

    pub(crate) fn forbidden(resource: &Resource, verb: &str, namespace: &str) -> ApiError {
        let scope = match namespace {
            "" => "at the cluster scope".to_owned(),
            namespace => format!("in the namespace \"{namespace}\""),
        };
        let qualified = resource.qualified();
        let message = format!(
            "{qualified} is forbidden: User \"sim\" cannot {verb} resource \"{}\" in API group \"{}\" {scope}",
            resource.plural, resource.group,
        );
        ApiError::new(403, "Forbidden", message).about(resource, "")
    }

    pub(crate) fn not_found(resource: &Resource, name: &str) -> ApiError {
        let message = format!("{} \"{name}\" not found", resource.qualified());
        ApiError::new(404, "NotFound", message).about(resource, name)
    }

    pub(crate) fn no_such_path() -> ApiError {
        ApiError::new(404, "NotFound", "the server could not find the requested resource")
    }

    pub(crate) fn method_not_allowed() -> ApiError {
        let message = "the server does not allow this method on the requested resource";
        ApiError::new(405, "MethodNotAllowed", message)
    }

    pub(crate) fn not_acceptable() -> ApiError {
        let message = "only the following media types are accepted: application/json, \
                       application/json;stream=watch";
        ApiError::new(406, "NotAcceptable", message)
    }

    pub(crate) fn unsupported_media_type(got: &str) -> ApiError {
        let message = format!("the body of the request was in an unknown format: {got}");
        ApiError::new(415, "UnsupportedMediaType", message)
    }

    pub(crate) fn already_exists(resource: &Resource, name: &str) -> ApiError {
        let message = format!("{} \"{name}\" already exists", resource.qualified());
        ApiError::new(409, "AlreadyExists", message).about(resource, name)
    }

    pub(crate) fn conflict(resource: &Resource, name: &str) -> ApiError {
        let message = format!(
            "Operation cannot be fulfilled on {} \"{name}\": the object has been modified; please \
             apply your changes to the latest version and try again",
            resource.qualified()
        );
        ApiError::new(409, "Conflict", message).about(resource, name)
    }

    pub(crate) fn invalid(resource: &Resource, name: &str, field: &str, why: &str) -> ApiError {
        let message = format!("{} \"{name}\" is invalid: {field}: {why}", resource.kind);
        ApiError::new(422, "Invalid", message).about(resource, name)
    }

    /// Returns the error for an invalid combination of list or watch options.
    pub(crate) fn invalid_options(field: &str, why: &str) -> ApiError {
        let message = format!("ListOptions.meta.k8s.io \"\" is invalid: {field}: {why}");
        let mut error = ApiError::new(422, "Invalid", message);
        error.details = Some(json!({"group": "meta.k8s.io", "kind": "ListOptions"}));
        error
    }

    /// Returns the error for a watch from a compacted version.
    pub(crate) fn too_old(requested: u64, oldest: u64) -> ApiError {
        let message = format!("too old resource version: {requested} ({oldest})");
        ApiError::new(410, "Expired", message)
    }

    /// Returns the error for a list at a compacted exact version.
    pub(crate) fn list_too_old() -> ApiError {
        ApiError::new(410, "Expired", "The resourceVersion for the provided list is too old.")
    }

    /// Returns the error for an expired continue token. `fresh` continues at the same position in
    /// the current state.
    pub(crate) fn continue_expired(fresh: String) -> ApiError {
        let message = "The provided continue parameter is too old to display a consistent list \
            result. You can start a new list without the continue parameter, or use the continue \
            token in this response to retrieve the remainder of the results. Continuing with the \
            provided token results in an inconsistent list - objects that were created, modified, \
            or deleted between the time the first chunk was returned and now may show up in the \
            list.";
        let mut error = ApiError::new(410, "Expired", message);
        error.continue_token = Some(fresh);
        error
    }

    pub(crate) fn too_large_version(requested: u64, current: u64) -> ApiError {
        let message =
            format!("Timeout: Too large resource version: {requested}, current: {current}");
        let mut error = ApiError::new(504, "Timeout", message);
        error.retry_after_seconds = Some(1);
        error.details = Some(json!({
            "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
            "retryAfterSeconds": 1,
        }));
        error
    }

    pub(crate) fn too_many_requests(retry_after_seconds: u64) -> ApiError {
        let message = "too many requests, please try again later";
        let mut error = ApiError::new(429, "TooManyRequests", message);
        error.retry_after_seconds = Some(retry_after_seconds);
        error.details = Some(json!({"retryAfterSeconds": retry_after_seconds}));
        error
    }

    /// Returns a server error, with the reason for `code`.
    pub(crate) fn server_error(code: u16) -> ApiError {
        let (reason, message) = match code {
            503 => ("ServiceUnavailable", "the server is currently unable to handle the request"),
            504 => ("Timeout", "request did not complete within the allotted timeout"),
            _ => ("InternalError", "an error on the server has prevented the request"),
        };
        ApiError::new(code, reason, message)
    }

    fn about(mut self, resource: &Resource, name: &str) -> ApiError {
        self.details =
            Some(json!({"name": name, "group": resource.group, "kind": resource.plural}));
        self
    }

    /// Returns the `Status` object.
    pub fn to_status(&self) -> Value {
        let mut metadata = json!({});
        if let Some(token) = &self.continue_token {
            metadata["continue"] = json!(token);
        }
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": metadata, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        });
        if let Some(details) = &self.details {
            status["details"] = details.clone();
        }
        status
    }
}

impl std::fmt::Display for ApiError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ApiError {}
