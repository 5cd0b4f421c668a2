//! Settings that users merge into HTTP connection managers, and their validation.
//!
//! Supported are fields for connections, forwarded addresses and headers that Envoy accepts
//! independently of others. Settings that access policies rely on are configured elsewhere: path
//! normalization in the mesh config, client certificates in its topology.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::filters::{FilterFault, unknown_type};
use strait_proto::{json, rules};

const NAME: &str =
    "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
const TYPE_URL: &str = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
/// Supported fields with their supported subfields. An empty list supports all subfields.
const FIELDS: [(&str, &[&str]); 20] = [
    ("add_user_agent", &[]),
    ("always_set_request_id_in_response", &[]),
    (
        "common_http_protocol_options",
        &[
            "idle_timeout",
            "max_connection_duration",
            "max_headers_count",
            "max_stream_duration",
            "headers_with_underscores_action",
            "max_requests_per_connection",
        ],
    ),
    ("delayed_close_timeout", &[]),
    ("drain_timeout", &[]),
    ("generate_request_id", &[]),
    (
        "http2_protocol_options",
        &["max_concurrent_streams", "initial_stream_window_size", "initial_connection_window_size"],
    ),
    ("http_protocol_options", &["accept_http_10", "default_host_for_http_10", "header_key_format"]),
    ("max_request_headers_kb", &[]),
    ("preserve_external_request_id", &[]),
    ("request_headers_timeout", &[]),
    ("request_timeout", &[]),
    ("server_header_transformation", &[]),
    ("server_name", &[]),
    ("skip_xff_append", &[]),
    ("stat_prefix", &[]),
    ("stream_idle_timeout", &[]),
    ("use_remote_address", &[]),
    ("via", &[]),
    ("xff_num_trusted_hops", &[]),
];

/// Alternatives to unsupported fields.
const INSTEAD: [(&str, &str); 6] = [
    ("path", "set pathNormalization in the mesh config"),
    ("merge_slashes", "set pathNormalization in the mesh config"),
    ("client_cert", "set gatewayTopology in the mesh config"),
    ("http_filters", "patch HTTP_FILTER"),
    ("access_log", "write a Telemetry"),
    ("tracing", "write a Telemetry"),
];

/// Settings to merge into a connection manager: a message of the same type.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PatchedManager {
    /// Encoded configuration. Equal configurations have equal bytes.
    pub config: Arc<[u8]>,
}

/// Parses the value of a patch: a connection manager with the fields to change.
///
/// # Errors
/// The path and a description of the fault.
pub(super) fn read(value: &Value) -> Result<PatchedManager, FilterFault> {
    let at = |path: &str, fact: &str| (path.to_owned(), fact.to_owned());
    let fields = value.as_object().ok_or_else(|| at("", "it is not a filter: set typed_config"))?;
    let supported = ["name", "typed_config", "typedConfig"];
    if let Some(other) = fields.keys().find(|key| !supported.contains(&key.as_str())) {
        return Err((other.clone(), "only typed_config is supported".into()));
    }
    let config = fields.get("typed_config").or_else(|| fields.get("typedConfig"));
    let config = config.ok_or_else(|| at("typed_config", "it is missing"))?;
    message(config).map_err(|(path, fact)| (format!("typed_config{path}"), fact))
}

fn message(config: &Value) -> Result<PatchedManager, FilterFault> {
    let wrong = |path: &str, fact: String| (path.to_owned(), fact);
    let mut fields = config.as_object().cloned().unwrap_or_default();
    let named = fields.remove("@type");
    let named = named.as_ref().and_then(Value::as_str).unwrap_or_default();
    if named.rsplit('/').next() != Some(NAME) {
        return Err(wrong(".@type", format!("{named:?} is not {NAME}")));
    }
    let unread = |error: &dyn std::error::Error| {
        let cause = error.source().map_or_else(|| error.to_string(), ToString::to_string);
        wrong("", cause)
    };
    let encoded = |value: &Value| {
        let bytes = json::from_json(TYPE_URL, value)
            .map_err(|error| unknown_type(value, "").unwrap_or_else(|| unread(&error)))?;
        rules::canonical(TYPE_URL, &bytes).map_err(|error| unread(&error))
    };
    let bytes = encoded(&Value::Object(fields))?;
    // Envoy's rules apply to a complete connection manager, so the required fields are added.
    let whole = encoded(&json!({ "stat_prefix": "x", "route_config": {} }))?;
    let whole = [whole, bytes.clone()].concat();
    if let Some(fault) = rules::violation(TYPE_URL, &whole).map_err(|error| unread(&error))? {
        return Err(wrong("", format!("Envoy refuses it: {fault}")));
    }
    // Converts the fields to the names of Envoy's API.
    let given = json::to_json(TYPE_URL, &bytes).map_err(|error| unread(&error))?;
    let given = given.as_object().cloned().unwrap_or_default();
    if given.is_empty() {
        return Err(wrong("", "it sets no fields".to_owned()));
    }
    for (key, value) in &given {
        let instead = || {
            let other = INSTEAD.iter().find(|(part, _)| key.contains(part));
            other.map_or(String::new(), |(_, text)| format!("; {text}"))
        };
        let Some((_, below)) = FIELDS.iter().find(|(field, _)| field == key) else {
            let fact = format!("this field is not supported{}", instead());
            return Err(wrong(&format!(".{key}"), fact));
        };
        if value.pointer("/header_key_format/stateful_formatter").is_some() {
            let path = format!(".{key}.header_key_format.stateful_formatter");
            return Err(wrong(&path, "only proper_case_words is supported".to_owned()));
        }
        let mut inner = value.as_object().into_iter().flat_map(Map::keys);
        if let Some(other) = inner.find(|one| !below.contains(&one.as_str())) {
            return Err(wrong(
                &format!(".{key}.{other}"),
                "this field is not supported".to_owned(),
            ));
        }
    }
    texts(&Value::Object(given), "")?;
    Ok(PatchedManager { config: bytes.into() })
}

/// Checks texts. Envoy accepts no negative durations, and no control characters in headers.
fn texts(value: &Value, path: &str) -> Result<(), FilterFault> {
    match value {
        Value::Object(fields) => {
            fields.iter().try_for_each(|(key, value)| texts(value, &format!("{path}.{key}")))
        }
        Value::String(text) if text.chars().any(char::is_control) => {
            Err((path.to_owned(), "it contains a control character".to_owned()))
        }
        Value::String(text) if text.starts_with('-') => {
            Err((path.to_owned(), format!("{text:?} is negative")))
        }
        _ => Ok(()),
    }
}
