//! Tracing providers: services that receive spans from proxies. (Istio's
//! `MeshConfig.ExtensionProvider`, `zipkin` and `opentelemetry`.)

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use super::parse_duration;
use super::provider_service::ProviderService;

/// The default path of a Zipkin collector.
const ZIPKIN_PATH: &str = "/api/v2/spans";
/// The default timeout of a collector. (Istio's default.)
const TIMEOUT: Duration = Duration::from_secs(10);

/// A service that receives spans.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TracingProvider {
    /// The service.
    pub service: ProviderService,
    /// The maximum number of bytes of a path in a span; `None` for Envoy's default of 256.
    pub path_bytes_max: Option<u32>,
    /// The protocol.
    pub protocol: SpanProtocol,
}

/// The protocol for sending spans.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SpanProtocol {
    /// Zipkin v2, as JSON.
    Zipkin {
        /// The path of the collector; begins with `/`.
        path: String,
        /// Whether trace IDs have 64 bits instead of 128.
        has_short_ids: bool,
    },
    /// OTLP over gRPC.
    OtlpGrpc {
        /// The timeout of a request; above zero.
        timeout: Duration,
    },
    /// OTLP over HTTP.
    OtlpHttp {
        /// The path of the collector; begins with `/`.
        path: String,
        /// The timeout of a request; above zero.
        timeout: Duration,
    },
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct RawTracingProvider {
    service: String,
    port: u32,
    max_tag_length: u32,
    path: String,
    #[serde(rename = "enable64bitTraceId")]
    enable_64bit_trace_id: bool,
    http: Option<RawOtlpHttp>,
    resource_detectors: RawDetectors,
    grpc: Option<RawOtlpGrpc>,
}

#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
struct RawOtlpHttp {
    path: String,
    timeout: Option<String>,
}

/// Resource detectors, which identify the workload. `environment` is always active
/// (`OTEL_RESOURCE_ATTRIBUTES`).
#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
struct RawDetectors {
    #[serde(rename = "environment")]
    _environment: Value,
}

#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
struct RawOtlpGrpc {
    timeout: Option<String>,
}

impl TracingProvider {
    /// Parses a provider of either kind, or returns the problem.
    pub(super) fn read(is_zipkin: bool, raw: &Value) -> Result<Self, String> {
        let raw = RawTracingProvider::deserialize(raw).map_err(|error| error.to_string())?;
        let service = ProviderService::read(&raw.service, raw.port)?;
        let path_bytes_max = Some(raw.max_tag_length).filter(|length| *length > 0);
        let is_otlp = raw.http.is_some() || raw.grpc.is_some();
        let has_zipkin_fields = !raw.path.is_empty() || raw.enable_64bit_trace_id;
        if (is_zipkin && is_otlp) || (!is_zipkin && has_zipkin_fields) {
            let fields =
                if is_zipkin { "http and grpc are" } else { "path and enable64bitTraceId are" };
            return Err(format!("{fields} for another kind of provider"));
        }
        let protocol = match (raw.http, raw.grpc) {
            (None, None) if is_zipkin => {
                let path = path_or(raw.path, ZIPKIN_PATH)?;
                SpanProtocol::Zipkin { path, has_short_ids: raw.enable_64bit_trace_id }
            }
            (Some(_), Some(_)) => return Err("it has both http and grpc".to_owned()),
            (Some(http), None) => {
                let timeout = timeout(http.timeout.as_deref())?;
                SpanProtocol::OtlpHttp { path: path_or(http.path, "/")?, timeout }
            }
            (None, grpc) => {
                let timeout = timeout(grpc.and_then(|grpc| grpc.timeout).as_deref())?;
                SpanProtocol::OtlpGrpc { timeout }
            }
        };
        Ok(Self { service, path_bytes_max, protocol })
    }
}

/// Validates the path of a request; an empty one gives the default.
fn path_or(path: String, default: &str) -> Result<String, String> {
    let is_path = path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic());
    match &*path {
        "" => Ok(default.to_owned()),
        _ if is_path => Ok(path),
        _ => Err(format!("path {path:?} is not a path that begins with /")),
    }
}

fn timeout(text: Option<&str>) -> Result<Duration, String> {
    match text.map(parse_duration) {
        None => Ok(TIMEOUT),
        Some(Ok(Duration::ZERO)) => Err("timeout: expected more than 0".to_owned()),
        Some(Ok(timeout)) => Ok(timeout),
        Some(Err(fact)) => Err(format!("timeout: {fact}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn defaults_are_those_of_istio() {
        let service = ProviderService {
            namespace: None,
            host: "traces.ops.svc.cluster.local".to_owned(),
            port: 9411,
        };
        let provider_json = |more: Value| {
            let mut provider_json =
                json!({ "service": "traces.ops.svc.cluster.local", "port": 9411 });
            provider_json
                .as_object_mut()
                .expect("an object")
                .extend(more.as_object().expect("one").clone());
            provider_json
        };
        let usual = SpanProtocol::Zipkin { path: ZIPKIN_PATH.to_owned(), has_short_ids: false };
        let zipkin =
            TracingProvider::read(true, &provider_json(json!({}))).expect("it can be sent spans");
        assert_eq!(zipkin, TracingProvider { service, path_bytes_max: None, protocol: usual });
        let read_provider = |is_zipkin, more| {
            let provider = TracingProvider::read(is_zipkin, &provider_json(more))
                .expect("it can be sent spans");
            (provider.path_bytes_max, provider.protocol)
        };
        let own = json!({ "path": "/own", "enable64bitTraceId": true, "maxTagLength": 64 });
        let protocol = SpanProtocol::Zipkin { path: "/own".to_owned(), has_short_ids: true };
        assert_eq!(read_provider(true, own), (Some(64), protocol));
        assert_eq!(read_provider(false, json!({})).1, SpanProtocol::OtlpGrpc { timeout: TIMEOUT });
        let grpc = json!({ "grpc": { "timeout": "1s" } });
        assert_eq!(
            read_provider(false, grpc).1,
            SpanProtocol::OtlpGrpc { timeout: Duration::from_secs(1) }
        );
        let http = json!({ "http": { "path": "/v1/traces", "timeout": "2s" } });
        let timeout = Duration::from_secs(2);
        let path = "/v1/traces".to_owned();
        assert_eq!(read_provider(false, http).1, SpanProtocol::OtlpHttp { path, timeout });
    }

    #[test]
    fn invalid_provider_is_refused_with_the_reason() {
        let sound = json!({ "service": "a.b", "port": 80 });
        let with = |name: &str, value: Value| {
            let mut given = sound.clone();
            given[name] = value;
            given
        };
        for (is_zipkin, given, part) in [
            (true, json!({}), "names no host"),
            (true, json!({ "service": "a.b" }), "1 to 65535"),
            (true, with("path", json!("x")), "begins with /"),
            (true, with("path", json!("/a b")), "begins with /"),
            (true, with("http", json!({})), "another kind"),
            (false, with("path", json!("/x")), "another kind"),
            (false, with("http", json!({ "timeout": "0s" })), "more than 0"),
            (false, with("http", json!({ "headers": [] })), "headers"),
            (false, with("resourceDetectors", json!({ "dynatrace": {} })), "dynatrace"),
        ] {
            let fact = TracingProvider::read(is_zipkin, &given).expect_err("it makes no sense");
            assert!(fact.contains(part), "{given}: {fact}");
        }
        let mut both = with("http", json!({}));
        both["grpc"] = json!({});
        assert!(TracingProvider::read(false, &both).is_err());
    }
}
