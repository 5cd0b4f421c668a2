//! Extension providers: external authorization services for policies with action CUSTOM, access
//! logs and tracing providers. (Istio's `MeshConfig.ExtensionProvider`.)
//!
//! An invalid provider does not make the mesh config invalid. It is stored with its problem, and
//! policies that use it deny the requests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use super::access_log::{AccessLog, AccessLogEncoding, AccessLogFormat, writable_path};
use super::provider_service::ProviderService;
use super::traces::TracingProvider;
use super::{command_operators, parse_duration};
use crate::{is_header_name, is_header_value};

/// The default timeout of an authorization request. (Istio's default.)
const TIMEOUT: Duration = Duration::from_secs(600);
/// The default status if the provider does not respond. (Istio's default.)
const STATUS_ON_ERROR: u16 = 403;
/// The maximum length of a name, in bytes.
const NAME_MAX: usize = 253;
const HTTP: &str = "envoyExtAuthzHttp";
const GRPC: &str = "envoyExtAuthzGrpc";
const LOG: &str = "envoyFileAccessLog";
const ZIPKIN: &str = "zipkin";
const OPEN_TELEMETRY: &str = "opentelemetry";

/// An item of `extensionProviders`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtensionProvider {
    /// The name; empty if it has none.
    pub name: Arc<str>,
    /// The kind.
    pub kind: ProviderKind,
    /// The item as written.
    raw: Value,
}

/// The kind of an extension provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProviderKind {
    /// An external authorization service.
    Authorization(Arc<AuthorizationProvider>),
    /// An access log that proxies write.
    Log(Arc<AccessLog>),
    /// A tracing provider that receives spans from proxies.
    Tracing(Arc<TracingProvider>),
    /// An invalid provider of these kinds, with the reason.
    Broken(String),
    /// Another kind.
    Other,
}

/// An external authorization service, and how it is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthorizationProvider {
    /// The service.
    pub service: ProviderService,
    /// The timeout of a request; above zero.
    pub timeout: Duration,
    /// Whether requests are allowed if the provider cannot be reached.
    pub fail_open: bool,
    /// The status for clients if the provider does not respond.
    pub status_on_error: u16,
    /// Whether the route is selected again after the response.
    pub clear_route_cache: bool,
    /// How much of the request's body it receives, if any.
    pub body: Option<CheckedBody>,
    /// The protocol.
    pub protocol: AuthorizationProtocol,
}

/// The part of a request's body that a provider receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckedBody {
    /// The maximum number of bytes; never 0.
    pub max_bytes: u32,
    /// Whether the beginning of a longer body is sent. Otherwise, the request is rejected (413).
    pub partial: bool,
    /// Whether it is sent as bytes instead of text; only with gRPC.
    pub as_bytes: bool,
}

/// The protocol of a provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuthorizationProtocol {
    /// An HTTP request like the original one. The response is 200, or the response for the client.
    Http(AuthorizationRequest),
    /// `envoy.service.auth.v3.Authorization`.
    Grpc,
}

/// The request to an HTTP provider, and the used headers of the response.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuthorizationRequest {
    /// The prefix of the request's path.
    pub path_prefix: String,
    /// Headers of the original request that it receives, in addition to the default ones.
    pub request_headers: Vec<HeaderNames>,
    /// Headers that are added with these values.
    pub added_headers: BTreeMap<String, String>,
    /// Response headers that replace the client's in the request to the workload.
    pub to_upstream: Vec<HeaderNames>,
    /// Response headers that the client receives if the request is denied.
    pub to_client_on_deny: Vec<HeaderNames>,
    /// Response headers that the client receives if the request is allowed.
    pub to_client_on_allow: Vec<HeaderNames>,
}

/// A pattern for names of headers, case-insensitive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeaderNames {
    /// This name.
    Exact(String),
    /// Names with this prefix.
    Prefix(String),
    /// Names with this suffix.
    Suffix(String),
    /// All names.
    Every,
}

impl ExtensionProvider {
    /// Parses a list of providers.
    pub(super) fn read_all(raw: Vec<Value>) -> Vec<Self> {
        raw.into_iter().map(Self::read).collect()
    }

    fn read(raw: Value) -> Self {
        let name = raw.get("name").and_then(Value::as_str).unwrap_or_default();
        let given: Vec<_> = [HTTP, GRPC, LOG, ZIPKIN, OPEN_TELEMETRY]
            .into_iter()
            .filter(|kind| raw.get(kind).is_some())
            .collect();
        let kind = match given[..] {
            [] => ProviderKind::Other,
            [LOG] => match read_log(raw.get(LOG).unwrap_or(&Value::Null)) {
                Ok(log) => ProviderKind::Log(Arc::new(log)),
                Err(fact) => ProviderKind::Broken(fact),
            },
            [kind @ (ZIPKIN | OPEN_TELEMETRY)] => {
                match TracingProvider::read(kind == ZIPKIN, raw.get(kind).unwrap_or(&Value::Null)) {
                    Ok(provider) => ProviderKind::Tracing(Arc::new(provider)),
                    Err(fact) => ProviderKind::Broken(format!("{kind}: {fact}")),
                }
            }
            [kind] if is_provider_name(name) => match read_provider(kind, &raw) {
                Ok(provider) => ProviderKind::Authorization(Arc::new(provider)),
                Err(fact) => ProviderKind::Broken(fact),
            },
            [_] => ProviderKind::Broken(format!("its name {name:?} is not a DNS name")),
            [first, second, ..] => ProviderKind::Broken(format!("it is both {first} and {second}")),
        };
        Self { name: name.into(), kind, raw }
    }

    /// Returns the provider as written.
    pub fn to_json(&self) -> &Value {
        &self.raw
    }
}

/// Returns whether the name is valid. Keys of metadata consist of a name followed by `_`, so that
/// no name is a prefix of another key.
fn is_provider_name(name: &str) -> bool {
    let is_plain = |one: u8| one.is_ascii_alphanumeric() || matches!(one, b'-' | b'.');
    !name.is_empty() && name.len() <= NAME_MAX && name.bytes().all(is_plain)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
#[derive(Default)]
struct RawAuthorization {
    service: String,
    port: u32,
    timeout: Option<String>,
    fail_open: bool,
    status_on_error: Option<Value>,
    clear_route_cache: bool,
    include_request_body_in_check: Option<RawCheckedBody>,
    path_prefix: String,
    include_headers_in_check: Vec<String>,
    include_request_headers_in_check: Vec<String>,
    include_additional_headers_in_check: BTreeMap<String, String>,
    headers_to_upstream_on_allow: Vec<String>,
    headers_to_downstream_on_deny: Vec<String>,
    headers_to_downstream_on_allow: Vec<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawLog {
    path: String,
    log_format: RawLogFormat,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawLogFormat {
    text: String,
    labels: Option<Value>,
}

/// Parses a file log at the proxy; without a format, Istio's default text is used.
fn read_log(raw: &Value) -> Result<AccessLog, String> {
    let raw = RawLog::deserialize(raw).map_err(|error| format!("{LOG}: {error}"))?;
    if raw.path.is_empty() {
        return Err(format!("{LOG} has no path"));
    }
    let path = writable_path(raw.path).map_err(|fact| format!("{LOG}.path: {fact}"))?;
    let format = match raw.log_format {
        RawLogFormat { labels: Some(fields), .. } => AccessLogFormat::json(fields),
        RawLogFormat { text, .. } => AccessLogFormat::read(AccessLogEncoding::Text, &text),
    };
    let format = format.map_err(|fact| format!("{LOG}.logFormat: {fact}"))?;
    Ok(AccessLog { path, format })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
#[derive(Default)]
struct RawCheckedBody {
    max_request_bytes: u32,
    allow_partial_message: bool,
    pack_as_bytes: bool,
}

/// The fields that only HTTP providers support.
const HTTP_ONLY: [&str; 7] = [
    "pathPrefix",
    "includeHeadersInCheck",
    "includeRequestHeadersInCheck",
    "includeAdditionalHeadersInCheck",
    "headersToUpstreamOnAllow",
    "headersToDownstreamOnDeny",
    "headersToDownstreamOnAllow",
];

fn read_provider(kind: &str, provider: &Value) -> Result<AuthorizationProvider, String> {
    let mut fields = provider.as_object().into_iter().flat_map(|fields| fields.keys());
    if let Some(other) = fields.find(|field| *field != "name" && *field != kind) {
        return Err(format!("it is both {kind} and {other}"));
    }
    let given = provider.get(kind).unwrap_or(&Value::Null);
    let within = |fact: String| format!("{kind}: {fact}");
    let raw: RawAuthorization =
        serde_json::from_value(given.clone()).map_err(|error| within(error.to_string()))?;
    if kind == GRPC
        && let Some(field) = HTTP_ONLY.into_iter().find(|field| given.get(field).is_some())
    {
        return Err(within(format!("{field} is only supported for {HTTP}")));
    }
    raw.read(kind).map_err(within)
}

impl RawAuthorization {
    fn read(self, kind: &str) -> Result<AuthorizationProvider, String> {
        let service = ProviderService::read(&self.service, self.port)?;
        let timeout = match self.timeout.as_deref().map(parse_duration) {
            None => TIMEOUT,
            Some(Ok(Duration::ZERO)) => return Err("timeout: expected more than 0".to_owned()),
            Some(Ok(timeout)) => timeout,
            Some(Err(fact)) => return Err(format!("timeout: {fact}")),
        };
        let status_on_error = match &self.status_on_error {
            None => STATUS_ON_ERROR,
            Some(given) => status(given).ok_or_else(|| {
                format!("statusOnError {given}: expected an error status, for example 403 or 503")
            })?,
        };
        let body = match self.include_request_body_in_check {
            None => None,
            Some(RawCheckedBody { max_request_bytes: 0, .. }) => {
                let fact = "includeRequestBodyInCheck.maxRequestBytes: expected more than 0";
                return Err(fact.to_owned());
            }
            Some(raw) => Some(CheckedBody {
                max_bytes: raw.max_request_bytes,
                partial: raw.allow_partial_message,
                as_bytes: raw.pack_as_bytes,
            }),
        };
        let protocol = if kind == GRPC {
            AuthorizationProtocol::Grpc
        } else {
            if !self.path_prefix.is_empty() && !self.path_prefix.starts_with('/') {
                return Err(format!("pathPrefix {:?} does not begin with /", self.path_prefix));
            }
            for (name, value) in &self.include_additional_headers_in_check {
                added_header(name, value).map_err(|fact| {
                    format!("includeAdditionalHeadersInCheck: {name:?}: {value:?} {fact}")
                })?;
            }
            let included =
                [&self.include_headers_in_check[..], &self.include_request_headers_in_check];
            AuthorizationProtocol::Http(AuthorizationRequest {
                path_prefix: self.path_prefix,
                request_headers: names("includeRequestHeadersInCheck", &included.concat())?,
                to_upstream: names("headersToUpstreamOnAllow", &self.headers_to_upstream_on_allow)?,
                to_client_on_deny: names(
                    "headersToDownstreamOnDeny",
                    &self.headers_to_downstream_on_deny,
                )?,
                to_client_on_allow: names(
                    "headersToDownstreamOnAllow",
                    &self.headers_to_downstream_on_allow,
                )?,
                added_headers: self.include_additional_headers_in_check,
            })
        };
        Ok(AuthorizationProvider {
            service,
            timeout,
            fail_open: self.fail_open,
            status_on_error,
            clear_route_cache: self.clear_route_cache,
            body,
            protocol,
        })
    }
}

/// Checks that Envoy can add this header. Envoy parses values as formats and reserves `host`. With
/// an invalid header, it rejects the listener of every proxy that uses the provider.
fn added_header(name: &str, value: &str) -> Result<(), String> {
    if name.eq_ignore_ascii_case("host") {
        return Err("is a header that Envoy sets itself".to_owned());
    }
    if !is_header_name(name) || !is_header_value(value) {
        return Err("is not a valid header".to_owned());
    }
    command_operators::check(value)
}

/// Parses an error status that Envoy supports (`envoy.type.v3.StatusCode`). Istio's schema defines
/// it as text.
fn status(given: &Value) -> Option<u16> {
    let number = given.as_u64().or_else(|| given.as_str()?.parse().ok())?;
    let number = u16::try_from(number).ok()?;
    matches!(number, 400..=417 | 421..=424 | 426 | 428 | 429 | 431 | 500..=508 | 510 | 511)
        .then_some(number)
}

fn names(field: &str, given: &[String]) -> Result<Vec<HeaderNames>, String> {
    let read = |text: &String| {
        let (names, part): (fn(String) -> HeaderNames, _) = if text == "*" {
            return Ok(HeaderNames::Every);
        } else if let Some(suffix) = text.strip_prefix('*') {
            (HeaderNames::Suffix, suffix)
        } else if let Some(prefix) = text.strip_suffix('*') {
            (HeaderNames::Prefix, prefix)
        } else {
            (HeaderNames::Exact, &**text)
        };
        let part = part.to_ascii_lowercase();
        // In Envoy, pseudo-headers like `:authority` are headers.
        if !is_header_name(part.strip_prefix(':').unwrap_or(&part)) || part.contains('*') {
            return Err(format!("{field}: {text:?} is not a header name"));
        }
        Ok(names(part))
    };
    given.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(given: Value) -> ProviderKind {
        ExtensionProvider::read(given).kind
    }

    #[test]
    fn defaults_are_those_of_istio() {
        let given = json!({ "name": "opa.local", "envoyExtAuthzGrpc": { "service": "opa/Opa.opa.svc.cluster.local", "port": 9191 } });
        let expected = AuthorizationProvider {
            service: ProviderService {
                namespace: Some("opa".to_owned()),
                host: "opa.opa.svc.cluster.local".to_owned(),
                port: 9191,
            },
            timeout: Duration::from_secs(600),
            fail_open: false,
            status_on_error: 403,
            clear_route_cache: false,
            body: None,
            protocol: AuthorizationProtocol::Grpc,
        };
        assert_eq!(read(given), ProviderKind::Authorization(Arc::new(expected)));
        assert_eq!(read(json!({ "name": "z", "lightstep": {} })), ProviderKind::Other);
    }

    #[test]
    fn logs_are_files_with_a_format() {
        let log = |given: Value| read(json!({ "name": "log", "envoyFileAccessLog": given }));
        let usual = ProviderKind::Log(Arc::new(AccessLog::to_file("/dev/stdout")));
        assert_eq!(log(json!({ "path": "/dev/stdout" })), usual);
        let labels = json!({ "code": "%RESPONSE_CODE%" });
        let ProviderKind::Log(json) =
            log(json!({ "path": "/a", "logFormat": { "labels": labels } }))
        else {
            panic!("it is a log")
        };
        assert_eq!(json.format, AccessLogFormat::Json(Arc::new(labels)));
        for (given, part) in [
            (json!({}), "has no path"),
            (json!({ "path": "/a", "logFormat": { "text": "50%" } }), "logFormat"),
            (json!({ "path": 1 }), "envoyFileAccessLog"),
        ] {
            let ProviderKind::Broken(fact) = log(given) else { panic!("it can't be written") };
            assert!(fact.contains(part), "{fact}");
        }
    }

    #[test]
    fn header_patterns_have_three_forms_and_every_field_takes_effect() {
        let given = json!({ "name": "o2p", "envoyExtAuthzHttp": {
            "service": "o2p.local", "port": 4180, "timeout": "1.5s", "pathPrefix": "/check", "failOpen": true,
            "statusOnError": "503", "clearRouteCache": true,
            "includeRequestBodyInCheck": { "maxRequestBytes": 64, "allowPartialMessage": true, "packAsBytes": true },
            "includeHeadersInCheck": ["x-old"], "includeRequestHeadersInCheck": ["Cookie", "x-a-*"],
            "includeAdditionalHeadersInCheck": { "x-from": "mesh", "x-share": "50%% of %REQ(x-a?:path):9%" },
            "headersToUpstreamOnAllow": ["*-user"], "headersToDownstreamOnDeny": ["*"],
            "headersToDownstreamOnAllow": ["set-cookie"],
        } });
        let ProviderKind::Authorization(provider) = read(given) else { panic!("it can be asked") };
        let AuthorizationProtocol::Http(request) = &provider.protocol else { panic!("HTTP") };
        let exact = |name: &str| HeaderNames::Exact(name.to_owned());
        let prefix = HeaderNames::Prefix("x-a-".to_owned());
        assert_eq!(request.request_headers, [exact("x-old"), exact("cookie"), prefix]);
        assert_eq!(request.to_upstream, [HeaderNames::Suffix("-user".to_owned())]);
        assert_eq!(request.to_client_on_deny, [HeaderNames::Every]);
        assert_eq!(
            (provider.timeout, provider.status_on_error),
            (Duration::from_millis(1500), 503)
        );
        assert!(provider.fail_open && provider.clear_route_cache);
        let body = CheckedBody { max_bytes: 64, partial: true, as_bytes: true };
        assert_eq!(provider.body, Some(body));
    }

    #[test]
    fn invalid_provider_is_stored_with_the_reason() {
        let http = |fields: Value| json!({ "name": "a", "envoyExtAuthzHttp": fields });
        let sound = json!({ "service": "a.b", "port": 80 });
        let with_header = |name: &str, value: &str| {
            let added = json!({ name: value });
            http(json!({ "service": "a.b", "port": 80, "includeAdditionalHeadersInCheck": added }))
        };
        let cases = [
            (http(json!({ "port": 80 })), "names no host"),
            (http(json!({ "service": "a/b/c", "port": 80 })), "[NAMESPACE/]HOST"),
            (http(json!({ "service": "a.b", "port": 0 })), "1 to 65535"),
            (http(json!({ "service": "a.b", "port": 80, "timeout": "0s" })), "more than 0"),
            (http(json!({ "service": "a.b", "port": 80, "statusOnError": "999" })), "error status"),
            (http(json!({ "service": "a.b", "port": 80, "failOpn": true })), "failOpn"),
            (http(json!({ "service": "a.b", "port": 80, "pathPrefix": "x" })), "begin with /"),
            (
                http(json!({ "service": "a.b", "port": 80, "headersToUpstreamOnAllow": ["a b"] })),
                "not a header name",
            ),
            (
                http(json!({ "service": "a.b", "port": 80, "includeRequestBodyInCheck": {} })),
                "maxRequestBytes",
            ),
            (with_header("x-share", "50%"), "neither doubled"),
            (with_header("x-share", "%X%"), "not every Envoy supports"),
            (with_header("x-nul", "a\0b"), "is not a valid header"),
            (with_header("x-line", "a\nb"), "is not a valid header"),
            (with_header("Host", "a"), "sets itself"),
            (with_header(":path", "/"), "is not a valid header"),
            (json!({ "name": "a_b", "envoyExtAuthzGrpc": sound }), "not a DNS name"),
            (
                json!({ "name": "a", "envoyExtAuthzGrpc": sound, "envoyExtAuthzHttp": sound }),
                "both",
            ),
            (json!({ "name": "a", "envoyExtAuthzGrpc": sound, "zipkin": {} }), "both"),
            (
                json!({ "name": "a", "envoyExtAuthzGrpc": { "service": "a.b", "port": 80, "pathPrefix": "/" } }),
                "only supported",
            ),
        ];
        for (given, part) in cases {
            match read(given.clone()) {
                ProviderKind::Broken(fact) => assert!(fact.contains(part), "{given}: {fact}"),
                other => panic!("{given}: {other:?}"),
            }
        }
    }
}
