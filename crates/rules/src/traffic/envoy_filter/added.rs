//! Additional upstream clusters for filters that query an external server, and their validation.
//!
//! Supported are clusters with addresses or DNS names in plaintext, with HTTP/1.1 or HTTP/2. Other
//! servers need a ServiceEntry and a DestinationRule, so that the settings for services apply to
//! them.

use std::net::IpAddr;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::filters::{FilterFault, unknown_type};
use crate::traffic::HostPattern;
use strait_proto::{json, rules};

const TYPE_URL: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
/// Protocol options in `typed_extension_protocol_options`.
const PROTOCOL: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
/// Name prefixes of upstream clusters that Strait generates or that bootstraps contain.
const TAKEN: [&str; 12] = [
    "outbound|",
    "outbound_.",
    "inbound|",
    "BlackHoleCluster",
    "PassthroughCluster",
    "InboundPassthroughCluster",
    "UnknownService",
    "agent",
    "prometheus_stats",
    "sds-grpc",
    "xds",
    "zipkin",
];

/// All supported paths; `[]` represents each entry of a list.
const PATHS: [&str; 13] = [
    ".name",
    ".type",
    ".connect_timeout",
    ".lb_policy",
    ".dns_lookup_family",
    ".respect_dns_ttl",
    ".load_assignment.cluster_name",
    ".load_assignment.endpoints[].lb_endpoints[].endpoint.address.socket_address.address",
    ".load_assignment.endpoints[].lb_endpoints[].endpoint.address.socket_address.port_value",
    ".load_assignment.endpoints[].lb_endpoints[].endpoint.hostname",
    ".load_assignment.endpoints[].lb_endpoints[].load_balancing_weight",
    ".typed_extension_protocol_options",
    ".alt_stat_name",
];

/// An additional upstream cluster.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AddedCluster {
    /// Name, which no upstream cluster of Strait has.
    pub name: Arc<str>,
    /// Encoded configuration. Equal configurations have equal bytes.
    pub config: Arc<[u8]>,
}

/// Parses the value of a patch.
///
/// # Errors
/// The path and a description of the fault.
pub(super) fn read(value: &Value) -> Result<AddedCluster, FilterFault> {
    let wrong = |path: &str, fact: String| (path.trim_start_matches('.').to_owned(), fact);
    if !value.is_object() {
        return Err(wrong("", "it is not a cluster".to_owned()));
    }
    let unread = |error: &dyn std::error::Error| {
        let cause = error.source().map_or_else(|| error.to_string(), ToString::to_string);
        wrong("", cause)
    };
    let bytes = json::from_json(TYPE_URL, value).map_err(|error| {
        unknown_type(value, "").map_or_else(|| unread(&error), |(path, fact)| wrong(&path, fact))
    })?;
    let bytes = rules::canonical(TYPE_URL, &bytes).map_err(|error| unread(&error))?;
    if let Some(fault) = rules::violation(TYPE_URL, &bytes).map_err(|error| unread(&error))? {
        return Err(wrong("", format!("Envoy refuses it: {fault}")));
    }
    // Converts the fields to the names of Envoy's API.
    let given = json::to_json(TYPE_URL, &bytes).map_err(|error| unread(&error))?;
    followed(&given, String::new()).map_err(|path| {
        let instead = "use a ServiceEntry, and a DestinationRule for its connections";
        wrong(&path, format!("this field is not supported; {instead}"))
    })?;
    let text = |field: &str| given.get(field).and_then(Value::as_str).unwrap_or_default();
    let name = text("name");
    if let Some(reserved) = TAKEN.iter().find(|reserved| name.starts_with(**reserved)) {
        return Err(wrong("name", format!("names with the prefix {reserved} are reserved")));
    }
    if name.is_empty() || name.chars().any(char::is_control) {
        return Err(wrong("name", format!("{name:?} is not a valid name")));
    }
    protocol(&given).map_err(|fact| wrong("typed_extension_protocol_options", fact))?;
    let kind = match text("type") {
        "" => "STATIC",
        kind => kind,
    };
    if !["STATIC", "STRICT_DNS", "LOGICAL_DNS"].contains(&kind) {
        return Err(wrong(
            "type",
            format!(
                "{kind} is not supported; use STATIC, STRICT_DNS or \
                                          LOGICAL_DNS"
            ),
        ));
    }
    if !["", "ROUND_ROBIN", "LEAST_REQUEST", "RANDOM"].contains(&text("lb_policy")) {
        return Err(wrong("lb_policy", format!("{} is not supported", text("lb_policy"))));
    }
    endpoints(&given, kind).map_err(|fact| wrong("load_assignment", fact))?;
    Ok(AddedCluster { name: name.into(), config: bytes.into() })
}

/// Checks that only supported fields are set. Returns the path of an unsupported one.
fn followed(value: &Value, path: String) -> Result<(), String> {
    let is_supported = PATHS.contains(&&*path);
    let is_prefix = PATHS.iter().any(|supported| supported.starts_with(&path));
    match value {
        _ if is_supported => Ok(()),
        _ if !is_prefix => Err(path),
        Value::Object(fields) => {
            fields.iter().try_for_each(|(key, value)| followed(value, format!("{path}.{key}")))
        }
        Value::Array(all) => all.iter().try_for_each(|one| followed(one, format!("{path}[]"))),
        _ => Err(path),
    }
}

/// Checks that the protocol is HTTP/1.1 or HTTP/2 without options.
fn protocol(given: &Value) -> Result<(), String> {
    let Some(options) = given["typed_extension_protocol_options"].as_object() else {
        return Ok(());
    };
    let explicit = options.get(PROTOCOL).and_then(|one| one["explicit_http_config"].as_object());
    let is_plain = |config: &Map<String, Value>| {
        let supported = ["http_protocol_options", "http2_protocol_options"];
        let empty = |value: &Value| value.as_object().is_some_and(Map::is_empty);
        config.len() == 1
            && config.iter().all(|(key, value)| supported.contains(&key.as_str()) && empty(value))
    };
    let has_no_others = options.len() == 1
        && options.get(PROTOCOL).and_then(Value::as_object).is_some_and(|settings| {
            settings.keys().all(|key| ["@type", "explicit_http_config"].contains(&key.as_str()))
        });
    match explicit {
        Some(config) if has_no_others && is_plain(config) => Ok(()),
        _ => Err(format!("only explicit_http_config of {PROTOCOL} without options is supported")),
    }
}

fn endpoints(given: &Value, kind: &str) -> Result<(), String> {
    let list = |value: &Value, field: &str| {
        value[field].as_array().map(Vec::as_slice).unwrap_or_default().to_vec()
    };
    let localities = list(&given["load_assignment"], "endpoints");
    let all: Vec<Value> =
        localities.iter().flat_map(|locality| list(locality, "lb_endpoints")).collect();
    if all.is_empty() || (kind == "LOGICAL_DNS" && (all.len() != 1 || localities.len() != 1)) {
        return Err("it needs an endpoint, and with LOGICAL_DNS exactly one".to_owned());
    }
    for endpoint in &all {
        let socket = &endpoint["endpoint"]["address"]["socket_address"];
        let address = socket["address"].as_str().unwrap_or_default();
        let is_ip = address.parse::<IpAddr>().is_ok();
        let is_name = || HostPattern::written(address).is_ok_and(|host| host.exact().is_some());
        if !(is_ip || kind != "STATIC" && is_name()) {
            return Err(format!("{address:?} is not a valid address for {kind}"));
        }
        if !matches!(socket["port_value"].as_u64(), Some(1..=65535)) {
            return Err(format!("{} is not a valid port", socket["port_value"]));
        }
    }
    Ok(())
}
