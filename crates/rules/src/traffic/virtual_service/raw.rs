//! Raw form of the rules of a VirtualService (Istio, "Virtual Service").

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;

use strait_model::mesh_config::{WrittenDuration, WrittenRetries};

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RawHttpRule {
    pub(super) name: Arc<str>,
    pub(super) r#match: Vec<RawRequestMatch>,
    pub(super) route: Vec<RawHttpDestination>,
    pub(super) redirect: Option<RawRedirect>,
    pub(super) direct_response: Option<RawResponse>,
    pub(super) delegate: Option<RawDelegate>,
    pub(super) rewrite: Option<RawRewrite>,
    pub(super) timeout: Option<WrittenDuration>,
    pub(super) retries: Option<WrittenRetries>,
    pub(super) fault: Option<RawFault>,
    pub(super) mirror: Option<RawDestination>,
    /// Istio's definition has both spellings.
    #[serde(alias = "mirror_percent")]
    pub(super) mirror_percent: Option<u32>,
    pub(super) mirror_percentage: Option<RawPercent>,
    pub(super) mirrors: Vec<RawMirror>,
    pub(super) cors_policy: Option<RawCors>,
    pub(super) headers: Option<RawHeaders>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RawRequestMatch {
    pub(super) name: Arc<str>,
    pub(super) uri: Option<RawTextMatch>,
    pub(super) scheme: Option<RawTextMatch>,
    pub(super) method: Option<RawTextMatch>,
    pub(super) authority: Option<RawTextMatch>,
    pub(super) headers: BTreeMap<String, RawTextMatch>,
    pub(super) without_headers: BTreeMap<String, RawTextMatch>,
    pub(super) query_params: BTreeMap<String, RawTextMatch>,
    pub(super) ignore_uri_case: bool,
    pub(super) port: Option<u32>,
    pub(super) source_labels: BTreeMap<String, String>,
    pub(super) source_namespace: String,
    pub(super) gateways: Vec<String>,
    pub(super) stat_prefix: Arc<str>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct RawTextMatch {
    pub(super) exact: Option<Arc<str>>,
    pub(super) prefix: Option<Arc<str>>,
    pub(super) regex: Option<Arc<str>>,
}

impl RawTextMatch {
    /// Returns whether several values are set. Only the first applies.
    pub(super) fn is_ambiguous(&self) -> bool {
        let given = [&self.exact, &self.prefix, &self.regex];
        given.iter().filter(|one| one.is_some()).count() > 1
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct RawDestination {
    pub(super) host: String,
    pub(super) subset: Arc<str>,
    pub(super) port: Option<RawPortNumber>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct RawPortNumber {
    pub(super) number: u32,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct RawHttpDestination {
    pub(super) destination: RawDestination,
    pub(super) weight: i64,
    pub(super) headers: Option<RawHeaders>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RawRedirect {
    pub(super) uri: Arc<str>,
    pub(super) prefix_rewrite: Arc<str>,
    pub(super) authority: Arc<str>,
    pub(super) port: Option<u32>,
    pub(super) derive_port: String,
    pub(super) scheme: Arc<str>,
    pub(super) redirect_code: u32,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct RawResponse {
    pub(super) status: u32,
    pub(super) body: Option<RawBody>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct RawBody {
    pub(super) string: Option<String>,
    pub(super) bytes: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct RawDelegate {
    pub(super) name: Arc<str>,
    pub(super) namespace: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RawRewrite {
    pub(super) uri: Arc<str>,
    pub(super) authority: Arc<str>,
    pub(super) uri_regex_rewrite: Option<RawRegexRewrite>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct RawRegexRewrite {
    pub(super) r#match: Arc<str>,
    pub(super) rewrite: Arc<str>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct RawPercent {
    pub(super) value: f64,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct RawFault {
    pub(super) delay: Option<RawDelay>,
    pub(super) abort: Option<RawAbort>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RawDelay {
    pub(super) percent: u32,
    pub(super) percentage: Option<RawPercent>,
    pub(super) fixed_delay: Option<WrittenDuration>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RawAbort {
    pub(super) http_status: Option<u32>,
    pub(super) grpc_status: Option<String>,
    pub(super) percentage: Option<RawPercent>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct RawMirror {
    pub(super) destination: RawDestination,
    pub(super) percentage: Option<RawPercent>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RawCors {
    pub(super) allow_origin: Vec<Arc<str>>,
    pub(super) allow_origins: Vec<RawTextMatch>,
    pub(super) allow_methods: Vec<String>,
    pub(super) allow_headers: Vec<String>,
    pub(super) expose_headers: Vec<String>,
    pub(super) max_age: Option<WrittenDuration>,
    pub(super) allow_credentials: Option<bool>,
    pub(super) unmatched_preflights: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct RawHeaders {
    pub(super) request: RawHeaderEdits,
    pub(super) response: RawHeaderEdits,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct RawHeaderEdits {
    pub(super) set: BTreeMap<String, Arc<str>>,
    pub(super) add: BTreeMap<String, Arc<str>>,
    pub(super) remove: Vec<String>,
}

/// Returns the number of a gRPC status, given by name or number.
pub(super) fn grpc_status(name: &str) -> Option<u8> {
    const NAMES: [&str; 17] = [
        "OK",
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    ];
    let place = NAMES.iter().position(|candidate| *candidate == name);
    let number = place.or_else(|| name.parse().ok().filter(|number| *number < NAMES.len()));
    number.and_then(|number| u8::try_from(number).ok())
}
