//! Content negotiation: the media types that a client accepts and sends.

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

/// Returns a content type without its parameters.
pub(crate) fn media_type(content_type: &str) -> &str {
    content_type.split(';').next().unwrap_or_default().trim()
}

/// Returns whether the client accepts all of discovery in one document.
pub(crate) fn wants_aggregated(headers: &HeaderMap) -> bool {
    header(headers, ACCEPT).split(',').any(|offer| offer.trim() == discovery::AGGREGATED)
}

/// Returns whether the client accepts a page of this type, which is not an object.
pub(crate) fn accepts_page(headers: &HeaderMap, content_type: &str) -> bool {
    let accept = header(headers, ACCEPT);
    let fits = |offer| {
        matches!(media_type(offer), "application/*" | "*/*") || media_type(offer) == content_type
    };
    accept.is_empty() || accept.split(',').any(fits)
}

/// Returns the first form in the client's list that the server supports; protobuf only if it is enabled.
/// Tables are not supported: clients that request them accept plain JSON as well.
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

/// Returns the protobuf message of a kind. Custom kinds have none, but their metadata has one.
fn message(target: &Target, form: Form) -> Option<&'static Message> {
    let resource = target.view.resource;
    match form {
        Form::Full => Message::named(&resource.api_version(target.view.version), resource.kind),
        Form::Metadata => Message::called("PartialObjectMetadata"),
    }
}

/// Returns the encoding for an error response.
pub(crate) fn accepted_status(headers: &HeaderMap) -> Wire {
    let first = header(headers, ACCEPT).split(',').map(media_type).next();
    match (first, Message::called("Status")) {
        (Some(PROTOBUF), Some(status)) => Wire::Protobuf(status),
        _ => Wire::Json,
    }
}

/// Parses the object in a request.
///
/// # Errors
/// 415 for an unsupported content type, 400 for an invalid body.
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
