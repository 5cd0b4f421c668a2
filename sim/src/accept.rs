//! What a client takes and what it sends: the media types of requests.

use bytes::Bytes;
use http::HeaderMap;
use http::header::ACCEPT;
use serde_json::Value;

use crate::discovery;
use crate::encode::{Form, Wire};
use crate::protobuf::{self, Message};
use crate::route::Target;
use crate::status::ApiError;

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

pub(crate) fn header(headers: &HeaderMap, name: http::HeaderName) -> &str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// A content type without its parameters.
pub(crate) fn media_type(content_type: &str) -> &str {
    content_type.split(';').next().unwrap_or_default().trim()
}

/// Whether the client takes all of discovery in one document.
pub(crate) fn wants_aggregated(headers: &HeaderMap) -> bool {
    header(headers, ACCEPT).split(',').any(|offer| offer.trim() == discovery::AGGREGATED)
}

/// Whether the client takes a page of this type, which is no object's.
pub(crate) fn takes(headers: &HeaderMap, content_type: &str) -> bool {
    let accept = header(headers, ACCEPT);
    let fits = |offer| {
        matches!(media_type(offer), "application/*" | "*/*") || media_type(offer) == content_type
    };
    accept.is_empty() || accept.split(',').any(fits)
}

/// The first form the client takes that we have, and protobuf only if we speak it. Tables are an offer that a
/// server may leave out: clients that ask for them name plain JSON as well.
pub(crate) fn accepted(
    headers: &HeaderMap,
    target: &Target,
    protobuf: bool,
) -> Option<(Form, Wire)> {
    let accept = header(headers, ACCEPT);
    if accept.is_empty() {
        return Some((Form::Full, Wire::Json));
    }
    accept.split(',').find_map(|offer| {
        let shown = offer.split(';').find_map(|parameter| parameter.trim().strip_prefix("as="));
        let form = match shown {
            None => Form::Full,
            Some("PartialObjectMetadata" | "PartialObjectMetadataList") => Form::Metadata,
            Some(_) => return None,
        };
        match media_type(offer) {
            "application/json" => Some((form, Wire::Json)),
            "application/*" | "*/*" if form == Form::Full => Some((form, Wire::Json)),
            PROTOBUF if protobuf => {
                message(target, form).map(|message| (form, Wire::Protobuf(message)))
            }
            _ => None,
        }
    })
}

/// Custom kinds have none, but their metadata has.
fn message(target: &Target, form: Form) -> Option<&'static Message> {
    let resource = target.view.resource;
    match form {
        Form::Full => Message::named(&resource.api_version(target.view.version), resource.kind),
        Form::Metadata => Message::called("PartialObjectMetadata"),
    }
}

/// How the client is told of a refusal.
pub(crate) fn accepted_status(headers: &HeaderMap) -> Wire {
    let first = header(headers, ACCEPT).split(',').map(media_type).next();
    match (first, Message::called("Status")) {
        (Some(PROTOBUF), Some(status)) => Wire::Protobuf(status),
        _ => Wire::Json,
    }
}

/// The object that a request brings.
///
/// # Errors
/// 415 for a form we don't read, 400 for nonsense in one we do.
pub(crate) fn parse(content_type: &str, body: &Bytes) -> Result<Value, ApiError> {
    match media_type(content_type) {
        "" | "application/json" => serde_json::from_slice(body)
            .ok()
            .filter(Value::is_object)
            .ok_or_else(|| ApiError::bad_request("the body of the request is not a JSON object")),
        PROTOBUF => protobuf::open(body).ok_or_else(|| {
            ApiError::bad_request("the body of the request is not an object of a known kind")
        }),
        _ => Err(ApiError::unsupported_media_type(content_type)),
    }
}
