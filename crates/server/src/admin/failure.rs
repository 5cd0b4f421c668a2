//! An answer that says why there is none.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

/// A failure, as JSON with a status.
pub(super) struct AdminFailure(pub(super) StatusCode, pub(super) String);

impl IntoResponse for AdminFailure {
    fn into_response(self) -> Response {
        pretty(self.0, &json!({ "error": self.1 }))
    }
}

pub(super) type AdminResult = Result<Response, AdminFailure>;

pub(super) fn bad(text: &str) -> AdminFailure {
    AdminFailure(StatusCode::BAD_REQUEST, text.into())
}

/// JSON for people and programs: indented, with a final line end.
pub(super) fn pretty(status: StatusCode, value: &impl serde::Serialize) -> Response {
    match serde_json::to_vec_pretty(value) {
        Ok(mut body) => {
            body.push(b'\n');
            (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
