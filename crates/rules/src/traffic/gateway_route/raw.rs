//! Raw forms of routes (Gateway API, `HTTPRoute`, `GRPCRoute`, `TLSRoute`, `TCPRoute`,
//! `ReferenceGrant`).

use std::sync::Arc;

use serde::Deserialize;

use crate::traffic::object::Reason;
use crate::traffic::route::RedirectPath;
use strait_base::codes;
use strait_model::mesh_config::WrittenDuration;

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RawGatewayRoute {
    pub(super) parent_refs: Vec<RawParentRef>,
    /// Has no effect on Services, because clients choose the host (Gateway API, GEP-1324).
    pub(super) hostnames: Vec<String>,
    pub(super) rules: Vec<RawGatewayRule>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RawConnectionRoute {
    pub(super) parent_refs: Vec<RawParentRef>,
    pub(super) hostnames: Vec<String>,
    pub(super) rules: Vec<RawBackendsRule>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RawBackendsRule {
    /// Name of the rule, without an effect.
    pub(super) name: String,
    pub(super) backend_refs: Vec<RawBackend>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RawParentRef {
    pub(super) group: Option<String>,
    pub(super) kind: Option<String>,
    pub(super) namespace: Option<String>,
    pub(super) name: String,
    pub(super) section_name: Option<String>,
    pub(super) port: Option<u16>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RawGatewayRule {
    pub(super) name: Arc<str>,
    pub(super) matches: Vec<RawGatewayMatch>,
    pub(super) filters: Vec<RawFilter>,
    pub(super) backend_refs: Vec<RawBackend>,
    pub(super) timeouts: RawTimeouts,
    pub(super) retry: Option<RawGatewayRetry>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RawTimeouts {
    pub(super) request: Option<WrittenDuration>,
    pub(super) backend_request: Option<WrittenDuration>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct RawGatewayRetry {
    pub(super) codes: Vec<u16>,
    pub(super) attempts: Option<u32>,
    pub(super) backoff: Option<WrittenDuration>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RawGatewayMatch {
    pub(super) path: Option<RawValueMatch>,
    pub(super) headers: Vec<RawValueMatch>,
    pub(super) query_params: Vec<RawValueMatch>,
    pub(super) method: Option<RawMethod>,
}

/// An HTTP method is a word; a gRPC method has a service and a method.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum RawMethod {
    Http(Arc<str>),
    Grpc(RawGrpcMethod),
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct RawGrpcMethod {
    pub(super) r#type: String,
    pub(super) service: String,
    pub(super) method: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct RawValueMatch {
    pub(super) r#type: String,
    pub(super) name: String,
    pub(super) value: Arc<str>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct RawBackend {
    pub(super) group: String,
    pub(super) kind: Option<String>,
    pub(super) name: String,
    pub(super) namespace: Option<String>,
    pub(super) port: Option<u16>,
    pub(super) weight: Option<u32>,
    pub(super) filters: Vec<RawFilter>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RawFilter {
    pub(super) r#type: String,
    pub(super) request_header_modifier: Option<RawHeaderFilter>,
    pub(super) response_header_modifier: Option<RawHeaderFilter>,
    pub(super) request_redirect: Option<RawRedirectFilter>,
    pub(super) request_mirror: Option<RawMirrorFilter>,
    #[serde(rename = "urlRewrite")]
    pub(super) rewrite: Option<RawRewriteFilter>,
    pub(super) cors: Option<RawCorsFilter>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct RawHeaderFilter {
    pub(super) set: Vec<RawNamedValue>,
    pub(super) add: Vec<RawNamedValue>,
    pub(super) remove: Vec<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct RawNamedValue {
    pub(super) name: String,
    pub(super) value: Arc<str>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RawRedirectFilter {
    pub(super) scheme: Option<Arc<str>>,
    pub(super) hostname: Option<Arc<str>>,
    pub(super) path: Option<RawPathModifier>,
    pub(super) port: Option<u16>,
    pub(super) status_code: Option<u16>,
}

impl RawRedirectFilter {
    /// Returns whether the URL stays the same.
    pub(super) fn is_without_change(&self) -> bool {
        let Self { scheme, hostname, path, port, status_code: _ } = self;
        (scheme, hostname, port) == (&None, &None, &None) && path.is_none()
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct RawRewriteFilter {
    pub(super) hostname: Option<Arc<str>>,
    pub(super) path: Option<RawPathModifier>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RawPathModifier {
    r#type: String,
    replace_full_path: Option<Arc<str>>,
    replace_prefix_match: Option<Arc<str>>,
}

impl RawPathModifier {
    /// Returns the modification of a path.
    ///
    /// # Errors
    /// The fact that the type is unknown, or that its field is not the only one.
    pub(super) fn read(self) -> Result<RedirectPath, String> {
        match (&*self.r#type, self.replace_full_path, self.replace_prefix_match) {
            ("ReplaceFullPath", Some(path), None) => Ok(RedirectPath::Whole(path)),
            ("ReplacePrefixMatch", None, Some(path)) => Ok(RedirectPath::Segments(path)),
            (name, ..) => Err(format!(
                "the fields do not match type {name:?}: ReplaceFullPath requires only \
                 replaceFullPath, ReplacePrefixMatch only replacePrefixMatch"
            )),
        }
    }
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RawMirrorFilter {
    pub(super) backend_ref: RawBackend,
    pub(super) percent: Option<u32>,
    pub(super) fraction: Option<RawFraction>,
}

impl RawMirrorFilter {
    /// Returns the reason why the percentage or fraction does not apply as it is written.
    pub(super) fn share_fault(&self, path: &str) -> Option<Reason> {
        let is_above_one =
            |one: &RawFraction| one.numerator > one.denominator.unwrap_or(100).max(1);
        let bounded = |field, text| {
            let path = format!("{path}.requestMirror.{field}");
            Some(Reason::warning(&codes::TRAFFIC_VALUE, path, text))
        };
        match (self.percent, &self.fraction) {
            (Some(_), Some(_)) => {
                let path = format!("{path}.requestMirror.fraction");
                let text = "percent is set too and takes precedence";
                Some(Reason::lost(&codes::TRAFFIC_REPLACED, path, text))
            }
            (Some(101..), None) => {
                bounded("percent", "is more than 100: all requests are mirrored")
            }
            (None, Some(fraction)) if is_above_one(fraction) => {
                bounded("fraction", "is more than 1: all requests are mirrored")
            }
            _ => None,
        }
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct RawFraction {
    pub(super) numerator: u32,
    pub(super) denominator: Option<u32>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RawCorsFilter {
    pub(super) allow_origins: Vec<Arc<str>>,
    pub(super) allow_credentials: Option<bool>,
    pub(super) allow_methods: Vec<String>,
    pub(super) allow_headers: Vec<String>,
    pub(super) expose_headers: Vec<String>,
    pub(super) max_age: Option<u64>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct RawGrant {
    pub(super) from: Vec<RawGrantEnd>,
    pub(super) to: Vec<RawGrantEnd>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct RawGrantEnd {
    pub(super) group: String,
    pub(super) kind: String,
    pub(super) namespace: String,
    pub(super) name: Option<String>,
}
