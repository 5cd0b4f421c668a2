//! Resource versions and continue tokens of lists.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use crate::object::Name;
use crate::route::Query;
use crate::status::ApiError;
use crate::store::At;

/// Returns the version that a first page shows, and its size, by the rules for `resourceVersion`,
/// `resourceVersionMatch` and `limit` (Kubernetes API concepts, "Resource versions").
pub(crate) fn moment(query: &Query) -> Result<(At, Option<usize>), ApiError> {
    let invalid = |why| ApiError::invalid_options("resourceVersionMatch", why);
    let limit = query.limit()?;
    match (query.version()?, query.resource_version_match.as_deref()) {
        (None, None) => Ok((At::Now, limit)),
        (None, Some(_)) => Err(invalid(
            "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided",
        )),
        // Any version is acceptable. A real server uses its watch cache, which does not support
        // pages.
        (Some(0), None | Some("NotOlderThan")) => Ok((At::Now, None)),
        (Some(0), Some("Exact")) => Err(invalid(
            "Forbidden: resourceVersionMatch \"Exact\" is forbidden for resourceVersion \"0\"",
        )),
        (Some(version), Some("Exact")) => Ok((At::Exact(version), limit)),
        (Some(version), None) if limit.is_some() => Ok((At::Exact(version), limit)),
        (Some(version), None | Some("NotOlderThan")) => Ok((At::NotOlderThan(version), limit)),
        (Some(_), Some(_)) => Err(invalid("Unsupported value")),
    }
}

/// Returns a continue token. Without a version, the list continues with the state at the time when
/// the token is used.
pub(crate) fn continue_token(version: Option<u64>, after: &Name) -> String {
    let version = version.map_or(json!(-1), |version| json!(version));
    let start = [&*after.namespace, &*after.name];
    let token = json!({"v": "meta.k8s.io/v1", "rv": version, "start": start});
    URL_SAFE_NO_PAD.encode(token.to_string())
}

pub(crate) fn read_continue_token(token: &str) -> Option<(Option<u64>, Name)> {
    let token: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(token).ok()?).ok()?;
    let name = Name::new(token["start"][0].as_str()?, token["start"][1].as_str()?);
    Some((token["rv"].as_u64(), name))
}
