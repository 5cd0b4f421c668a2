//! Parsing of request paths and queries.

use std::num::{IntErrorKind, ParseIntError};
use std::time::Duration;

use crate::encode::{Form, View, Wire};
use crate::object::Name;
use crate::resource::Resource;
use crate::status::ApiError;

/// The objects that a path below `/api/v1` or `/apis/GROUP/VERSION` names.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) view: View,
    /// Empty for cluster-wide kinds and for all namespaces.
    pub(crate) namespace: String,
    pub(crate) name: Option<String>,
    pub(crate) subresource: Option<String>,
}

impl Target {
    pub(crate) fn parse(path: &str) -> Option<Target> {
        let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
        let (group, version, rest) = match &segments[..] {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return None,
        };
        // A namespace is an object as well as a prefix: /namespaces/shop, /namespaces/shop/status.
        let (namespace, rest) = match rest {
            ["namespaces", _] | ["namespaces", _, "status" | "finalize"] => ("", rest),
            ["namespaces", namespace, rest @ ..] => (*namespace, rest),
            rest => ("", rest),
        };
        let (plural, name, subresource) = match rest {
            [plural] => (plural, None, None),
            [plural, name] => (plural, Some(*name), None),
            [plural, name, subresource] => (plural, Some(*name), Some(*subresource)),
            _ => return None,
        };
        let resource = Resource::by_plural(group, plural)?;
        let version = resource.versions.iter().find(|served| **served == version)?;
        if !resource.namespaced && !namespace.is_empty() {
            return None;
        }
        Some(Target {
            view: View { resource, version, form: Form::Full, wire: Wire::Json },
            namespace: namespace.to_owned(),
            name: name.map(str::to_owned),
            subresource: subresource.map(str::to_owned),
        })
    }

    /// Returns the object's name, if the path contains one.
    pub(crate) fn object_name(&self) -> Option<Name> {
        self.name.as_ref().map(|name| Name::new(&self.namespace, name))
    }

    /// Returns the namespace to select; `None` for all.
    pub(crate) fn selected_namespace(&self) -> Option<&str> {
        (!self.namespace.is_empty()).then_some(self.namespace.as_str())
    }
}

/// The supported query parameters. Unknown ones are ignored, as by a real server.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Query {
    pub(crate) watch: bool,
    pub(crate) label_selector: String,
    pub(crate) field_selector: String,
    pub(crate) limit: Option<String>,
    pub(crate) continue_token: Option<String>,
    pub(crate) resource_version: Option<String>,
    pub(crate) resource_version_match: Option<String>,
    pub(crate) timeout_seconds: Option<String>,
    pub(crate) bookmarks: bool,
    pub(crate) send_initial_events: Option<bool>,
    pub(crate) dry_run: bool,
}

impl Query {
    pub(crate) fn parse(query: &str) -> Query {
        let mut parsed = Query::default();
        for (key, value) in form_urlencoded::parse(query.as_bytes()) {
            let text = Some(value.to_string()).filter(|value| !value.is_empty());
            let flag = matches!(&*value, "true" | "1");
            match &*key {
                "watch" => parsed.watch = flag,
                "labelSelector" => parsed.label_selector = text.unwrap_or_default(),
                "fieldSelector" => parsed.field_selector = text.unwrap_or_default(),
                "limit" => parsed.limit = Some(value.into_owned()),
                "continue" => parsed.continue_token = text,
                "resourceVersion" => parsed.resource_version = text,
                "resourceVersionMatch" => parsed.resource_version_match = text,
                "timeoutSeconds" => parsed.timeout_seconds = Some(value.into_owned()),
                "allowWatchBookmarks" => parsed.bookmarks = flag,
                "sendInitialEvents" => parsed.send_initial_events = Some(flag),
                "dryRun" => parsed.dry_run = value == "All",
                _ => {}
            }
        }
        parsed
    }

    /// Returns the size of a page; `None` if the limit is absent, 0 or negative.
    pub(crate) fn limit(&self) -> Result<Option<usize>, ApiError> {
        Ok(positive(self.limit.as_deref())?.map(|limit| limit as usize))
    }

    /// Returns the timeout of a watch; `None` if it is absent, 0 or negative, so that the server
    /// decides.
    pub(crate) fn timeout(&self) -> Result<Option<Duration>, ApiError> {
        let seconds = positive(self.timeout_seconds.as_deref())?;
        Ok(seconds.map(|seconds| Duration::from_secs(seconds.into())))
    }

    /// Returns the resource version as a number; `None` if it is absent or `""`.
    pub(crate) fn version(&self) -> Result<Option<u64>, ApiError> {
        let Some(text) = &self.resource_version else { return Ok(None) };
        text.parse().map(Some).map_err(|_| {
            ApiError::bad_request(format!("resourceVersion: Invalid value: \"{text}\""))
        })
    }
}

/// Parses a number; `None` unless it is positive. The error has the wording of a real server.
fn positive(text: Option<&str>) -> Result<Option<u32>, ApiError> {
    let Some(text) = text else { return Ok(None) };
    let number: i64 = text.parse().map_err(|error: ParseIntError| {
        let fact = match error.kind() {
            IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "value out of range",
            _ => "invalid syntax",
        };
        ApiError::bad_request(format!("strconv.ParseInt: parsing {text:?}: {fact}"))
    })?;
    Ok((number > 0).then(|| u32::try_from(number).unwrap_or(u32::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_kinds_objects_and_subresources() {
        let cases = [
            ("/api/v1/pods", Some(("pods", "", None, None))),
            ("/api/v1/namespaces", Some(("namespaces", "", None, None))),
            ("/api/v1/namespaces/shop", Some(("namespaces", "", Some("shop"), None))),
            (
                "/api/v1/namespaces/shop/status",
                Some(("namespaces", "", Some("shop"), Some("status"))),
            ),
            ("/api/v1/namespaces/shop/pods", Some(("pods", "shop", None, None))),
            (
                "/api/v1/namespaces/shop/pods/a/status",
                Some(("pods", "shop", Some("a"), Some("status"))),
            ),
            ("/apis/discovery.k8s.io/v1/endpointslices", Some(("endpointslices", "", None, None))),
            ("/apis/discovery.k8s.io/v1beta1/endpointslices", None),
            ("/api/v1/namespaces/shop/nodes", None),
            ("/api/v1/nonsense", None),
            ("/metrics", None),
        ];
        for (path, expected) in cases {
            let target = Target::parse(path);
            let got = target.as_ref().map(|t| {
                (t.view.resource.plural, &*t.namespace, t.name.as_deref(), t.subresource.as_deref())
            });
            assert_eq!(got, expected, "{path}");
        }
    }
}
