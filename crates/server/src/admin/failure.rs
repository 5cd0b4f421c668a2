//! Error responses of the admin API.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use strait_admin_api::Failure;

/// An error response: a status, and JSON with a text.
pub(super) struct AdminFailure(pub(super) StatusCode, pub(super) String);

impl IntoResponse for AdminFailure {
    fn into_response(self) -> Response {
        pretty(self.0, &Failure { error: self.1 })
    }
}

pub(super) type AdminResult = Result<Response, AdminFailure>;

pub(super) fn bad(text: &str) -> AdminFailure {
    AdminFailure(StatusCode::BAD_REQUEST, text.into())
}

/// Renders a value as indented JSON with a final newline.
pub(super) fn pretty(status: StatusCode, value: &impl serde::Serialize) -> Response {
    match serde_json::to_vec_pretty(value) {
        Ok(mut body) => {
            body.push(b'\n');
            (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
