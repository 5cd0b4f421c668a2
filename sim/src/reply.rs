//! Answers with their status and content type.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use serde_json::Value;

use crate::body::Answer;
use crate::encode::{View, Wire};
use crate::object::Object;
use crate::status::ApiError;
use crate::task;

pub(crate) fn object_answer(status: StatusCode, view: View, object: &Object) -> Response<Answer> {
    bytes_answer(status, view.wire, view.object(object))
}

/// A list: whole if it is small, else flowing, written as the client reads.
pub(crate) fn list_answer(
    view: View,
    objects: Vec<Arc<Object>>,
    metadata: &Value,
) -> Response<Answer> {
    let mut chunks = view.list(objects, metadata);
    let first = chunks.next().unwrap_or_default();
    let Some(second) = chunks.next() else {
        return with_type(StatusCode::OK, view.wire.content_type(), Answer::Whole(Some(first)));
    };
    let (sender, answer) = Answer::flowing();
    task::spawn(async move {
        for chunk in [first, second].into_iter().chain(chunks) {
            if sender.send(chunk).await.is_err() {
                return;
            }
        }
    });
    with_type(StatusCode::OK, view.wire.content_type(), answer)
}

pub(crate) fn json_answer(status: StatusCode, value: &Value) -> Response<Answer> {
    bytes_answer(status, Wire::Json, value.to_string().into_bytes())
}

pub(crate) fn bytes_answer(status: StatusCode, wire: Wire, body: Vec<u8>) -> Response<Answer> {
    with_type(status, wire.content_type(), Answer::Whole(Some(body.into())))
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

pub(crate) fn refuse(wire: Wire, error: &ApiError) -> Response<Answer> {
    let status = StatusCode::from_u16(error.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut answer = bytes_answer(status, wire, wire.status(&error.to_status()));
    if let Some(seconds) = error.retry_after_seconds {
        answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    answer
}
