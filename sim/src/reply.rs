//! Answers with their status and content type.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use serde_json::Value;

use crate::body::Answer;
use crate::encode::View;
use crate::status::ApiError;
use crate::store::Object;

pub(crate) fn object_answer(status: StatusCode, view: View, object: &Object) -> Response<Answer> {
    json_bytes(status, view.object(object))
}

pub(crate) fn json_answer(status: StatusCode, value: &Value) -> Response<Answer> {
    json_bytes(status, value.to_string().into_bytes())
}

pub(crate) fn json_bytes(status: StatusCode, body: Vec<u8>) -> Response<Answer> {
    with_type(status, "application/json", Answer::Whole(Some(body.into())))
}

pub(crate) fn respond(
    status: StatusCode,
    content_type: &'static str,
    text: &'static str,
) -> Response<Answer> {
    with_type(status, content_type, Answer::Whole(Some(Bytes::from_static(text.as_bytes()))))
}

pub(crate) fn with_type(
    status: StatusCode,
    content_type: &'static str,
    body: Answer,
) -> Response<Answer> {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}

pub(crate) fn refuse(error: &ApiError) -> Response<Answer> {
    let status = StatusCode::from_u16(error.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut answer = json_answer(status, &error.to_status());
    if let Some(seconds) = error.retry_after_seconds {
        answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    answer
}
