//! The forms in which protobuf's JSON may write a mesh config, converted to one form.
//!
//! istiod reads the mesh config as protobuf's JSON. It accepts a field by the name in the schema
//! (`access_log_file`) as well as in camel case, and a number as a string.
//! (<https://protobuf.dev/programming-guides/json/>)

use serde_json::{Map, Number, Value};

/// Fields that are maps. Their keys are chosen by users.
const MAPS: [&str; 7] = [
    "customTags",
    "includeAdditionalHeadersInCheck",
    "labels",
    "matchLabels",
    "proxyMetadata",
    "runtimeValues",
    WEIGHTS,
];
/// A map from localities to numbers.
const WEIGHTS: &str = "to";
/// Fields that are numbers.
const NUMBERS: [&str; 29] = [
    "attempts",
    "concurrency",
    "consecutive5xxErrors",
    "consecutiveErrors",
    "consecutiveGatewayErrors",
    "consecutiveLocalOriginFailures",
    "http1MaxPendingRequests",
    "http2MaxRequests",
    "maxConcurrentStreams",
    "maxConnections",
    "maxEjectionPercent",
    "maxPathTagLength",
    "maxRequestBytes",
    "maxRequestsPerConnection",
    "maxRetries",
    "maxTagLength",
    "minHealthPercent",
    "minimumRingSize",
    "numTrustedProxies",
    "port",
    "probes",
    "proxyAdminPort",
    "proxyHttpPort",
    "proxyInboundListenPort",
    "proxyListenPort",
    "retries",
    "sampling",
    "statusPort",
    "tableSize",
];

/// Converts a field of the mesh config.
pub(super) fn normalize(name: &str, value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| normalize(name, item)),
        Value::Object(_) if MAPS.contains(&name) && name != WEIGHTS => {}
        Value::Object(fields) if name == WEIGHTS => {
            fields.values_mut().for_each(read_number);
        }
        Value::Object(fields) => normalize_names(fields),
        Value::String(_) if NUMBERS.contains(&name) => read_number(value),
        _ => {}
    }
}

/// Converts the names of fields and their values. If both spellings of a name are present, the one
/// of the schema stays, so that it is reported as unknown.
fn normalize_names(fields: &mut Map<String, Value>) {
    for (written, mut value) in std::mem::take(fields) {
        let name = match camel_case(&written) {
            Some(name) if !fields.contains_key(&name) => name,
            _ => written,
        };
        normalize(&name, &mut value);
        fields.insert(name, value);
    }
}

/// Returns the name in camel case, if `name` is that of a schema.
pub(super) fn camel_case(name: &str) -> Option<String> {
    let is_part =
        |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if !name.contains('_') || !name.split('_').all(is_part) {
        return None;
    }
    let mut parts = name.split('_');
    let mut camel = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        camel.push_str(&part[..1].to_ascii_uppercase());
        camel.push_str(&part[1..]);
    }
    Some(camel)
}

/// Converts a string that contains a number.
fn read_number(value: &mut Value) {
    let Value::String(text) = value else { return };
    let whole = text.parse::<i64>().ok().map(Number::from);
    let number = whole.or_else(|| text.parse::<f64>().ok().and_then(Number::from_f64));
    if let Some(number) = number {
        *value = Value::Number(number);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_and_numbers_are_read_in_both_forms() {
        for (name, written, expected) in [
            (
                "extensionProviders",
                json!([{"name": "a_b", "envoy_ext_authz_http": {"port": "8000", "include_request_headers_in_check": ["x_y"]}}]),
                json!([{"name": "a_b", "envoyExtAuthzHttp": {"port": 8000, "includeRequestHeadersInCheck": ["x_y"]}}]),
            ),
            (
                "defaultConfig",
                json!({"proxy_metadata": {"a_b": "1"}, "tracing": {"sampling": "0.5", "zipkin": {"address": "1"}}}),
                json!({"proxyMetadata": {"a_b": "1"}, "tracing": {"sampling": 0.5, "zipkin": {"address": "1"}}}),
            ),
            (
                "localityLbSetting",
                json!({"distribute": [{"from": "r_1/*", "to": {"r_1/*": "80", "r2": 20}}]}),
                json!({"distribute": [{"from": "r_1/*", "to": {"r_1/*": 80, "r2": 20}}]}),
            ),
            ("proxyListenPort", json!("15001"), json!(15001)),
            ("proxyListenPort", json!("x"), json!("x")),
            ("port", json!("-1"), json!(-1)),
            ("trustDomain", json!("1"), json!("1")),
        ] {
            let mut value = written;
            normalize(name, &mut value);
            assert_eq!(value, expected, "{name}");
        }
    }

    #[test]
    fn names_of_the_schema_are_converted() {
        for (written, expected) in [
            ("access_log_file", Some("accessLogFile")),
            ("mesh_mTLS", Some("meshMTLS")),
            ("h2_upgrade_policy", Some("h2UpgradePolicy")),
            ("consecutive_5xx_errors", Some("consecutive5xxErrors")),
            ("enable_64bit_trace_id", Some("enable64bitTraceId")),
            ("accessLogFile", None),
            ("_a", None),
            ("a__b", None),
            ("a_", None),
        ] {
            assert_eq!(camel_case(written).as_deref(), expected, "{written}");
        }
        let mut twice = json!({"a_b": 1, "aB": 2});
        normalize("outer", &mut twice);
        assert_eq!(twice, json!({"a_b": 1, "aB": 2}), "neither is lost");
    }
}
