//! Supported HTTP filters, and validation of their configuration.
//!
//! If Envoy rejects a filter, it rejects the listener with everything in it. A filter is therefore
//! accepted only if every Envoy supports its type, if it follows the rules of Envoy's API, and if
//! Envoy makes no further checks that are not repeated here.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::lua;
use crate::traffic::re2;
use strait_model::Hostname;
use strait_model::mesh_config::command_operators;
use strait_proto::{json, rules};

/// An HTTP filter that Envoy accepts.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PatchedFilter {
    /// Name; not empty.
    pub name: Arc<str>,
    /// Type URL of the configuration.
    pub type_url: Arc<str>,
    /// Encoded configuration. Equal configurations have equal bytes.
    pub config: Arc<[u8]>,
    /// Upstream cluster that the filter queries about requests, if any.
    pub upstream: Option<FilterUpstream>,
}

/// An upstream cluster that a filter queries about requests.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FilterUpstream {
    /// Name of the upstream cluster.
    pub name: Arc<str>,
    /// Service, port and subset, if the name is that of a service.
    pub service: Option<(Hostname, u16, Arc<str>)>,
    /// Whether requests pass if the upstream cluster does not respond.
    pub fails_open: bool,
}

impl FilterUpstream {
    /// Returns the upstream cluster that a filter with these fields queries.
    fn from_fields(given: &Map<String, Value>) -> Option<Self> {
        let at = |path: [&str; 3]| {
            let [service, kind, name] = path;
            given.get(service)?.get(kind)?.get(name)?.as_str()
        };
        let name = at(["grpc_service", "envoy_grpc", "cluster_name"])
            .or_else(|| at(["http_service", "server_uri", "cluster"]))?;
        let service = name.strip_prefix("outbound|").and_then(|rest| {
            let (port, rest) = rest.split_once('|')?;
            let (subset, host) = rest.split_once('|')?;
            Some((Hostname::from(host), port.parse().ok()?, subset.into()))
        });
        let fails_open = given.get("failure_mode_allow") == Some(&Value::Bool(true));
        Some(Self { name: name.into(), service, fails_open })
    }
}

const PREFIX: &str = "type.googleapis.com/";
/// Messages that wrap a message of another type.
const TYPED_STRUCTS: [&str; 2] = ["udpa.type.v1.TypedStruct", "xds.type.v3.TypedStruct"];
/// Supported messages within messages of the types below.
const LIBRARIES: [&str; 3] = [
    "envoy.extensions.compression.brotli.compressor.v3.Brotli",
    "envoy.extensions.compression.gzip.compressor.v3.Gzip",
    "envoy.extensions.compression.zstd.compressor.v3.Zstd",
];
/// Minimum fill interval of a token bucket. Envoy rejects shorter ones.
const FILL_INTERVAL_MIN: Duration = Duration::from_millis(50);

/// A fault: path below `patch.value`, and a description.
pub(super) type FilterFault = (String, String);

/// Checks the fields of a filter beyond the rules of Envoy's API. Returns the field and a
/// description of the fault.
type FieldCheck = fn(&Map<String, Value>) -> Result<(), (&'static str, String)>;

/// A supported filter type.
struct FilterType {
    name: &'static str,
    /// Supported fields. The requirements of other fields are unknown.
    fields: &'static [&'static str],
    /// Envoy's checks in addition to the API rules.
    check: FieldCheck,
}

const TYPES: [FilterType; 6] = [
    FilterType {
        name: "envoy.extensions.filters.http.buffer.v3.Buffer",
        fields: &["max_request_bytes"],
        check: |_| Ok(()),
    },
    FilterType {
        name: "envoy.extensions.filters.http.compressor.v3.Compressor",
        fields: &[
            "compressor_library",
            "request_direction_config",
            "response_direction_config",
            "choose_first",
        ],
        check: |_| Ok(()),
    },
    FilterType {
        name: "envoy.extensions.filters.http.ext_authz.v3.ExtAuthz",
        fields: &[
            "grpc_service",
            "http_service",
            "transport_api_version",
            "failure_mode_allow",
            "failure_mode_allow_header_add",
            "with_request_body",
            "clear_route_cache",
            "status_on_error",
            "metadata_context_namespaces",
            "include_peer_certificate",
            "include_tls_session",
            "stat_prefix",
            "allowed_headers",
            "disallowed_headers",
        ],
        check: ext_authz,
    },
    FilterType {
        name: "envoy.extensions.filters.http.header_to_metadata.v3.Config",
        fields: &["request_rules", "response_rules"],
        check: header_to_metadata,
    },
    FilterType {
        name: "envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit",
        fields: &[
            "stat_prefix",
            "status",
            "token_bucket",
            "filter_enabled",
            "filter_enforced",
            "request_headers_to_add_when_not_enforced",
            "response_headers_to_add",
            "local_rate_limit_per_downstream_connection",
            "enable_x_ratelimit_headers",
            "rate_limited_as_resource_exhausted",
        ],
        check: local_ratelimit,
    },
    FilterType {
        name: "envoy.extensions.filters.http.lua.v3.Lua",
        fields: &["inline_code", "default_source_code", "stat_prefix", "clear_route_cache"],
        check: script,
    },
];

/// Alternatives to filters that Strait generates from other kinds of objects.
const INSTEAD: [(&str, &str); 8] = [
    (".jwt_authn.", "write a RequestAuthentication"),
    (".rbac.", "write an AuthorizationPolicy"),
    (".fault.", "write fault into a VirtualService"),
    (".cors.", "write corsPolicy into a VirtualService"),
    (
        ".ratelimit.",
        "its limits are configured in routes, which are not supported; use \
                     local_ratelimit",
    ),
    (".wasm.", "Wasm modules are not supported; use a Lua script"),
    (".router.", "it exists already"),
    (".ext_proc.", "use ext_authz, or an AuthorizationPolicy with action CUSTOM"),
];

/// Parses the value of a patch: the name and the configuration of a filter.
///
/// # Errors
/// The path and a description of the fault.
pub(super) fn read(value: &Value) -> Result<PatchedFilter, FilterFault> {
    let at = |path: &str, fact: &str| (path.to_owned(), fact.to_owned());
    let fields =
        value.as_object().ok_or_else(|| at("", "it is not a filter: set name and typed_config"))?;
    if let Some(other) = fields
        .keys()
        .find(|key| !["name", "typed_config", "typedConfig", "disabled"].contains(&key.as_str()))
    {
        return Err((other.clone(), "a filter supports only name and typed_config".into()));
    }
    let name = fields.get("name").and_then(Value::as_str).filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| at("name", "Envoy requires a name"))?;
    if name.chars().any(char::is_control) {
        return Err(at("name", "it contains a control character"));
    }
    if fields.get("disabled").is_some_and(|disabled| disabled != &Value::Bool(false)) {
        return Err(at(
            "disabled",
            "a disabled filter cannot be enabled again: leave the patch out",
        ));
    }
    let config = fields.get("typed_config").or_else(|| fields.get("typedConfig"));
    let config = config.ok_or_else(|| at("typed_config", "it is missing"))?;
    let below = |(path, fact): FilterFault| (format!("typed_config{path}"), fact);
    let (type_url, config, upstream) = message(config).map_err(below)?;
    Ok(PatchedFilter {
        name: name.into(),
        type_url: type_url.into(),
        config: config.into(),
        upstream,
    })
}

/// Returns the type URL and the encoded configuration of a filter, and the upstream cluster that it
/// queries.
fn message(config: &Value) -> Result<(String, Vec<u8>, Option<FilterUpstream>), FilterFault> {
    let wrong = |path: &str, fact: String| (path.to_owned(), fact);
    let named = config.get("@type").and_then(Value::as_str);
    let named = named.ok_or_else(|| wrong("", "it has no @type".to_owned()))?;
    let mut fields = config.as_object().cloned().unwrap_or_default();
    fields.remove("@type");
    let mut name = named.rsplit('/').next().unwrap_or_default().to_owned();
    if TYPED_STRUCTS.contains(&&*name) {
        let inner = ["type_url", "typeUrl"].iter().find_map(|key| fields.get(*key)?.as_str());
        let inner = inner.ok_or_else(|| wrong("", "it has no type_url".to_owned()))?;
        name = inner.rsplit('/').next().unwrap_or_default().to_owned();
        fields = fields.get("value").and_then(Value::as_object).cloned().unwrap_or_default();
    }
    let Some(filter_type) = TYPES.iter().find(|filter_type| filter_type.name == name) else {
        let instead = INSTEAD.iter().find(|(part, _)| name.contains(part)).map(|(_, text)| *text);
        let all: Vec<_> =
            TYPES.iter().filter_map(|filter_type| filter_type.name.split('.').nth(4)).collect();
        let instead = instead
            .map_or_else(|| format!("supported filters are {}", all.join(", ")), str::to_owned);
        return Err(wrong(".@type", format!("{name:?} is not a supported filter; {instead}")));
    };
    let type_url = format!("{PREFIX}{name}");
    let unread = |error: &dyn std::error::Error| {
        let cause = error.source().map_or_else(|| error.to_string(), ToString::to_string);
        wrong("", cause)
    };
    let fields = Value::Object(fields);
    let bytes = json::from_json(&type_url, &fields)
        .map_err(|error| unknown_type(&fields, "").unwrap_or_else(|| unread(&error)))?;
    let bytes = rules::canonical(&type_url, &bytes).map_err(|error| unread(&error))?;
    if let Some(fault) = rules::violation(&type_url, &bytes).map_err(|error| unread(&error))? {
        return Err(wrong("", format!("Envoy refuses it: {fault}")));
    }
    // Converts the fields to the names of Envoy's API.
    let given = json::to_json(&type_url, &bytes).map_err(|error| unread(&error))?;
    let given = given.as_object().cloned().unwrap_or_default();
    if let Some(other) = given.keys().find(|key| !filter_type.fields.contains(&key.as_str())) {
        return Err(wrong(&format!(".{other}"), format!("this field of {name} is not supported")));
    }
    (filter_type.check)(&given).map_err(|(path, fact)| wrong(&format!(".{path}"), fact))?;
    let upstream = FilterUpstream::from_fields(&given);
    everywhere(&Value::Object(given), "")?;
    Ok((type_url, bytes, upstream))
}

/// Returns the first nested message in `value` whose type Strait does not know, as a fault.
pub(super) fn unknown_type(value: &Value, path: &str) -> Option<FilterFault> {
    match value {
        Value::Array(all) => {
            let mut all = all.iter().enumerate();
            all.find_map(|(at, one)| unknown_type(one, &format!("{path}[{at}]")))
        }
        Value::Object(fields) => fields.iter().find_map(|(key, value)| {
            let path = format!("{path}.{key}");
            match value {
                Value::String(url) if key == "@type" && !json::is_known(url) => {
                    let fact = format!(
                        "Strait does not support the message type {url}: check its spelling, or \
                         leave this extension out"
                    );
                    Some((path, fact))
                }
                _ => unknown_type(value, &path),
            }
        }),
        _ => None,
    }
}

/// Checks parts of messages that Envoy validates wherever they are.
fn everywhere(value: &Value, path: &str) -> Result<(), FilterFault> {
    match value {
        Value::Array(all) => {
            let mut all = all.iter().enumerate();
            all.try_for_each(|(at, one)| everywhere(one, &format!("{path}[{at}]")))
        }
        Value::Object(fields) => {
            for (key, value) in fields {
                let path = format!("{path}.{key}");
                let wrong = |fact: String| Err((path.clone(), fact));
                match (key.as_str(), value) {
                    ("filename" | "environment_variable" | "watched_directory", _) => {
                        return wrong(
                            "its value depends on the proxy: write the text itself".into(),
                        );
                    }
                    ("google_grpc", _) => {
                        return wrong(
                            "use envoy_grpc: not every Envoy supports google_grpc".into(),
                        );
                    }
                    ("regex", Value::String(text)) => {
                        let regex = re2::parse(text).map_err(|fact| (path.clone(), fact))?;
                        if regex.size > re2::PLAIN_PROGRAM_MAX {
                            return wrong("its program exceeds Envoy's default limit".to_owned());
                        }
                    }
                    ("@type", Value::String(name)) => {
                        let name = name.rsplit('/').next().unwrap_or_default();
                        if !LIBRARIES.contains(&name) {
                            return wrong(format!("{name:?} is not a supported library"));
                        }
                    }
                    ("header", Value::Object(header)) => {
                        header_value(header).map_err(|fact| (path.clone(), fact))?;
                    }
                    ("initial_metadata" | "headers_to_add", Value::Array(all)) => {
                        let mut plain = all.iter().filter_map(Value::as_object);
                        plain.try_for_each(header_value).map_err(|fact| (path.clone(), fact))?;
                    }
                    _ => {}
                }
                everywhere(value, &path)?;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Checks a header to add. Its value may contain command operators, which Envoy parses when it
/// loads the listener.
fn header_value(header: &Map<String, Value>) -> Result<(), String> {
    let text = |key| header.get(key).and_then(Value::as_str).unwrap_or_default();
    let name = text("key");
    if name.starts_with(':') || name.eq_ignore_ascii_case("host") {
        return Err(format!("{name:?} is not a header that may be added"));
    }
    command_operators::check(text("value"))
}

fn script(given: &Map<String, Value>) -> Result<(), (&'static str, String)> {
    let inline = given.get("inline_code").and_then(Value::as_str);
    let source = given.get("default_source_code");
    let (field, script) = match (inline, source) {
        (Some(_), Some(_)) => {
            let fact = "inline_code is set as well, and Envoy accepts only one of them";
            return Err(("default_source_code", fact.to_owned()));
        }
        (Some(script), None) => ("inline_code", script),
        (None, Some(source)) => match source.get("inline_string").and_then(Value::as_str) {
            Some(script) => ("default_source_code.inline_string", script),
            None => {
                return Err((
                    "default_source_code",
                    "write the script as inline_string".to_owned(),
                ));
            }
        },
        (None, None) => return Err(("default_source_code", "there is no script".to_owned())),
    };
    lua::check(script).map_err(|fact| (field, fact))
}

fn local_ratelimit(given: &Map<String, Value>) -> Result<(), (&'static str, String)> {
    let Some(bucket) = given.get("token_bucket") else {
        return Err((
            "token_bucket",
            "it is missing, so the number of allowed requests is undefined".to_owned(),
        ));
    };
    // Envoy 1.36 rejects a listener with 0, which newer versions accept.
    if bucket.get("max_tokens").and_then(Value::as_u64).unwrap_or_default() == 0 {
        return Err(("token_bucket.max_tokens", "it must be greater than 0".to_owned()));
    }
    let interval = bucket.get("fill_interval").and_then(Value::as_str).unwrap_or_default();
    let seconds: f64 = interval.trim_end_matches('s').parse().unwrap_or_default();
    if seconds < FILL_INTERVAL_MIN.as_secs_f64() {
        return Err((
            "token_bucket.fill_interval",
            "Envoy rejects intervals below 50 ms".to_owned(),
        ));
    }
    Ok(())
}

fn ext_authz(given: &Map<String, Value>) -> Result<(), (&'static str, String)> {
    match (given.get("grpc_service"), given.get("http_service")) {
        (Some(grpc), None) => {
            if given.get("transport_api_version") != Some(&json!("V3")) {
                return Err(("transport_api_version", "Envoy accepts only V3".to_owned()));
            }
            let other = grpc.as_object().into_iter().flat_map(Map::keys);
            let mut other = other.filter(|key| {
                !["envoy_grpc", "timeout", "initial_metadata"].contains(&key.as_str())
            });
            if other.next().is_some() || grpc.get("envoy_grpc").is_none() {
                return Err((
                    "grpc_service",
                    "only envoy_grpc, timeout and initial_metadata are supported".to_owned(),
                ));
            }
        }
        (None, Some(http)) => {
            let prefix = http.get("path_prefix").and_then(Value::as_str).unwrap_or("/");
            if !prefix.starts_with('/') {
                return Err((
                    "http_service.path_prefix",
                    "it does not begin with a slash".to_owned(),
                ));
            }
            if http.get("server_uri").is_none() {
                return Err(("http_service.server_uri", "it is missing".to_owned()));
            }
            if http.get("retry_policy").is_some() {
                return Err(("http_service.retry_policy", "it is not supported".to_owned()));
            }
        }
        _ => {
            return Err((
                "grpc_service",
                "exactly one of grpc_service and http_service must be set".to_owned(),
            ));
        }
    }
    Ok(())
}

fn header_to_metadata(given: &Map<String, Value>) -> Result<(), (&'static str, String)> {
    let mut any = false;
    for list in ["request_rules", "response_rules"] {
        for rule in given.get(list).and_then(Value::as_array).into_iter().flatten() {
            any = true;
            metadata_rule(rule).map_err(|fact| (list, fact.to_owned()))?;
        }
    }
    if any { Ok(()) } else { Err(("request_rules", "there is no rule".to_owned())) }
}

fn metadata_rule(rule: &Value) -> Result<(), &'static str> {
    let has = |key: &str| rule.get(key).is_some();
    if has("header") == has("cookie") {
        return Err("a rule must have one of header and cookie");
    }
    if has("cookie") && rule.get("remove") == Some(&Value::Bool(true)) {
        return Err("a rule cannot remove a cookie");
    }
    let (present, missing) = (rule.get("on_header_present"), rule.get("on_header_missing"));
    if present.is_none() && missing.is_none() {
        return Err("a rule must have on_header_present or on_header_missing");
    }
    let is_empty =
        |pair: &Value| pair.get("value").and_then(Value::as_str).is_none_or(str::is_empty);
    let rewrites = |pair: &Value| pair.get("regex_value_rewrite").is_some();
    if missing.is_some_and(|pair| is_empty(pair) || rewrites(pair)) {
        return Err("on_header_missing must have a value, and nothing to rewrite");
    }
    if present.is_some_and(|pair| !is_empty(pair) && rewrites(pair)) {
        return Err("on_header_present has both a value and a regex_value_rewrite");
    }
    Ok(())
}
