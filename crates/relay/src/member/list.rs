//! The closed list of requests that a relay forwards to its API server.
//!
//! Pure: [`RequestList::judge`] compares one request with the list. The list contains the requests that the hub's readers
//! send for a member that it dials itself, so that both kinds of members are read equally. RBAC of the relay's account is
//! a second limit. It does not replace the list, because many people can edit RBAC.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use http::header::{CONTENT_TYPE, HeaderMap, UPGRADE};
use http::{HeaderName, Method};
use percent_encoding::percent_decode_str;
use strait_model::{ConfigKind, GATEWAY_API, ISTIO_NETWORKING, ISTIO_NETWORKING_VERSIONS, MCS_API};

/// Maximum length of a path in bytes. A name has at most 253 bytes.
const PATH_BYTES_MAX: usize = 1024;
/// Maximum length of a query in bytes. The longest value is the continuation of a list.
const QUERY_BYTES_MAX: usize = 8 << 10;
/// Maximum size of the body of a review, and of any other body, in bytes.
const REVIEW_BYTES_MAX: usize = 64 << 10;
const OBJECT_BYTES_MAX: usize = 2 << 20;

/// The query parameters of lists and watches.
const LIST_KEYS: &[&str] = &[
    "allowWatchBookmarks",
    "continue",
    "fieldSelector",
    "labelSelector",
    "limit",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "timeoutSeconds",
    "watch",
];
/// The query parameters of a server-side apply.
const APPLY_KEYS: &[&str] = &["fieldManager", "force"];
const APPLY: &str = "application/apply-patch+yaml";
const JSON: &str = "application/json";
/// The content types of changes of a ConfigMap with roots.
const PATCHES: &[&str] =
    &[APPLY, "application/merge-patch+json", "application/strategic-merge-patch+json"];

const MCS_VERSIONS: &[&str] = &["v1beta1", "v1alpha1"];
/// The ConfigMaps with the roots that workloads trust.
const ROOTS: &[&str] = &["istio-ca-root-cert", "strait-ca-root-cert"];

/// Kinds of one API group that may be listed and watched.
struct ReadKinds {
    group: &'static str,
    versions: &'static [&'static str],
    plurals: &'static [&'static str],
    namespaced: bool,
}

/// The kinds that the hub reads from every member.
const READ: &[ReadKinds] = &[
    ReadKinds { group: "", versions: &["v1"], plurals: &["services", "pods"], namespaced: true },
    ReadKinds {
        group: "",
        versions: &["v1"],
        plurals: &["nodes", "namespaces"],
        namespaced: false,
    },
    ReadKinds {
        group: "discovery.k8s.io",
        versions: &["v1"],
        plurals: &["endpointslices"],
        namespaced: true,
    },
    ReadKinds { group: GATEWAY_API, versions: &["v1"], plurals: &["gateways"], namespaced: true },
    ReadKinds {
        group: MCS_API,
        versions: MCS_VERSIONS,
        plurals: &["serviceexports", "serviceimports"],
        namespaced: true,
    },
    ReadKinds {
        group: ISTIO_NETWORKING,
        versions: ISTIO_NETWORKING_VERSIONS,
        plurals: &["workloadentries"],
        namespaced: true,
    },
];

/// The requests that one relay forwards: the fixed groups `read` and `tokens`, and the groups that its flags add.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestList {
    /// The namespaces whose Secrets may be read by name, for gateways (`--gateway-secrets`).
    pub gateway_secrets: BTreeSet<String>,
    /// Whether the ConfigMaps with roots may be written (`--roots`).
    pub roots: bool,
    /// Whether statuses of ServiceExports and ServiceImports, and events, may be written (`--mcs-status`).
    pub mcs_status: bool,
    /// Whether traffic kinds of the member may be read (`--own-traffic`).
    pub own_traffic: bool,
    /// Namespace and name of the Secret with the relay's own certificate. It is never read for the hub.
    pub own_secret: Option<(String, String)>,
}

/// How a permitted request is forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Forward {
    /// Without a body.
    Plain,
    /// With a body of at most this many bytes.
    WithBody(usize),
    /// With the JSON of a ConfigMap, whose name `is_roots_object` checks.
    CreateRoots,
}

impl Forward {
    /// Returns the maximum size of the body in bytes.
    pub(super) fn body_bytes_max(self) -> usize {
        match self {
            Self::Plain => 0,
            Self::WithBody(bytes_max) => bytes_max,
            Self::CreateRoots => OBJECT_BYTES_MAX,
        }
    }
}

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The target is not a path, or the path has another form than the paths of Kubernetes.
    Path,
    /// The query repeats a key, has a key that is not on the list for this path, or cannot be read.
    Query,
    /// A header asks for another user or another protocol.
    Header,
    /// The type of the body is not permitted for this path.
    ContentType,
    /// No row of the list matches.
    NotListed,
    /// Only a row that this flag adds matches.
    Off(&'static str),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Path => "the path has an invalid form",
            Self::Query => "a query parameter is unknown, repeated or invalid",
            Self::Header => "a header asks for another user or protocol",
            Self::ContentType => "the content type is not permitted",
            Self::NotListed => "it is not on the relay's list",
            Self::Off(flag) => return write!(f, "the relay runs without {flag}"),
        })
    }
}

impl RequestList {
    /// Returns the names of the groups, for the hub.
    pub fn groups(&self) -> Vec<String> {
        let secrets = self.gateway_secrets.iter().map(|ns| format!("gateway-secrets {ns}"));
        let flags = [
            (self.roots, "roots"),
            (self.mcs_status, "mcs-status"),
            (self.own_traffic, "own-traffic"),
        ];
        let flags = flags.iter().filter(|(is_on, _)| *is_on).map(|(_, name)| (*name).to_owned());
        ["read".to_owned(), "tokens".to_owned()].into_iter().chain(secrets).chain(flags).collect()
    }

    /// Decides whether to forward a request. `target` is the path and the query as received.
    ///
    /// # Errors
    /// The reason why it is refused.
    pub(super) fn judge(
        &self,
        method: &Method,
        target: &str,
        headers: &HeaderMap,
    ) -> Result<Forward, Refusal> {
        if headers.keys().any(asks_for_more) {
            return Err(Refusal::Header);
        }
        let (path, query) = match target.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (target, None),
        };
        let query = Query::parse(query)?;
        let segments = segments(path)?;
        let content = Content(headers.get(CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes()));
        match method.as_str() {
            "GET" => self.judge_get(&segments, &query),
            "POST" => self.judge_post(&segments, &query, content),
            "PATCH" | "PUT" => self.judge_change(method, &segments, &query, content),
            _ => Err(Refusal::NotListed),
        }
    }

    fn judge_get(&self, path: &[&str], query: &Query<'_>) -> Result<Forward, Refusal> {
        match path {
            ["version" | "readyz"]
            | ["openid", "v1", "jwks"]
            | [".well-known", "openid-configuration"]
            | ["api", "v1", "namespaces", "kube-system"] => query.only(&[]),
            ["apis", group] => self.judge_discovery(group, None).and_then(|()| query.only(&[])),
            ["apis", group, version] => {
                self.judge_discovery(group, Some(version)).and_then(|()| query.only(&[]))
            }
            ["api", "v1", "namespaces", namespace, "secrets"] => {
                self.may_read_secrets(namespace, query)
            }
            ["api", "v1", "configmaps"] => {
                on(self.roots, "--roots")?;
                let name = query.selected_name().ok_or(Refusal::Query)?;
                if ROOTS.contains(&&*name) { query.only(LIST_KEYS) } else { Err(Refusal::Query) }
            }
            ["api", "v1", "namespaces", namespace, "configmaps", name]
                if is_root(namespace, name) =>
            {
                on(self.roots, "--roots")?;
                query.only(&[])
            }
            ["api", version, rest @ ..] => self.judge_list("", version, rest, query),
            ["apis", group, version, rest @ ..] => self.judge_list(group, version, rest, query),
            _ => Err(Refusal::NotListed),
        }
    }

    /// Lists and watches, in the cluster or in one namespace.
    fn judge_list(
        &self,
        group: &str,
        version: &str,
        rest: &[&str],
        query: &Query<'_>,
    ) -> Result<Forward, Refusal> {
        let (plural, in_namespace) = match rest {
            [plural] => (plural, false),
            ["namespaces", namespace, plural] if is_label(namespace) => (plural, true),
            _ => return Err(Refusal::NotListed),
        };
        let matches = |kinds: &&ReadKinds| {
            kinds.group == group
                && kinds.versions.contains(&version)
                && kinds.plurals.contains(plural)
                && (kinds.namespaced || !in_namespace)
        };
        if !READ.iter().any(|kinds| matches(&kinds)) {
            let is_own = own_traffic(group, Some(version)).any(|kind| kind.plural == *plural);
            self.permit_own_traffic(is_own)?;
        }
        query.only(LIST_KEYS)
    }

    /// The versions and kinds of the groups that have kinds with several versions.
    fn judge_discovery(&self, group: &str, version: Option<&str>) -> Result<(), Refusal> {
        let matches = |kinds: &&ReadKinds| {
            kinds.group == group && version.is_none_or(|version| kinds.versions.contains(&version))
        };
        let has_versions = |kinds: &&ReadKinds| kinds.versions.len() > 1;
        if READ.iter().filter(has_versions).any(|kinds| matches(&kinds)) {
            return Ok(());
        }
        self.permit_own_traffic(own_traffic(group, version).next().is_some())
    }

    /// Permits a request about the member's traffic objects if the relay forwards them. `is_own`:
    /// whether the request is about one of their kinds.
    fn permit_own_traffic(&self, is_own: bool) -> Result<(), Refusal> {
        if is_own { on(self.own_traffic, "--own-traffic") } else { Err(Refusal::NotListed) }
    }

    /// Secrets of a permitted namespace, only by name.
    fn may_read_secrets(&self, namespace: &str, query: &Query<'_>) -> Result<Forward, Refusal> {
        on(self.gateway_secrets.contains(namespace), "--gateway-secrets for this namespace")?;
        let name = query.selected_name().ok_or(Refusal::Query)?;
        let is_own = |own: &(String, String)| (&*own.0, &*own.1) == (namespace, &*name);
        if self.own_secret.as_ref().is_some_and(is_own) {
            return Err(Refusal::NotListed);
        }
        query.only(LIST_KEYS)
    }

    fn judge_post(
        &self,
        path: &[&str],
        query: &Query<'_>,
        content: Content<'_>,
    ) -> Result<Forward, Refusal> {
        let forward = match path {
            ["apis", "authentication.k8s.io", "v1", "tokenreviews" | "selfsubjectreviews"]
            | ["apis", "authorization.k8s.io", "v1", "selfsubjectrulesreviews"] => {
                Forward::WithBody(REVIEW_BYTES_MAX)
            }
            ["apis", "authorization.k8s.io", "v1", "subjectaccessreviews"] => {
                on(!self.gateway_secrets.is_empty(), "--gateway-secrets")?;
                Forward::WithBody(REVIEW_BYTES_MAX)
            }
            ["api", "v1", "namespaces", namespace, "configmaps"] if is_label(namespace) => {
                on(self.roots, "--roots")?;
                Forward::CreateRoots
            }
            ["api", "v1", "namespaces", namespace, "events"] if is_label(namespace) => {
                on(self.mcs_status, "--mcs-status")?;
                Forward::WithBody(REVIEW_BYTES_MAX)
            }
            _ => return Err(Refusal::NotListed),
        };
        query.only(&[])?;
        content.one_of(&[JSON])?;
        Ok(forward)
    }

    fn judge_change(
        &self,
        method: &Method,
        path: &[&str],
        query: &Query<'_>,
        content: Content<'_>,
    ) -> Result<Forward, Refusal> {
        let is_patch = method == Method::PATCH;
        match path {
            // The hub replaces a ConfigMap only if it still has the version that the hub read.
            ["api", "v1", "namespaces", namespace, "configmaps", name]
                if is_root(namespace, name) =>
            {
                on(self.roots, "--roots")?;
                query.only(if is_patch { APPLY_KEYS } else { &[] })?;
                content.one_of(if is_patch { PATCHES } else { &[JSON] })?;
                Ok(Forward::WithBody(OBJECT_BYTES_MAX))
            }
            ["apis", MCS_API, version, "namespaces", namespace, plural, name, "status"]
                if is_patch
                    && MCS_VERSIONS.contains(version)
                    && ["serviceexports", "serviceimports"].contains(plural)
                    && is_label(namespace)
                    && is_name(name) =>
            {
                self.judge_apply(query, content)
            }
            ["api", "v1", "namespaces", namespace, "events", name]
                if is_patch && is_label(namespace) && is_name(name) =>
            {
                self.judge_apply(query, content)
            }
            _ => Err(Refusal::NotListed),
        }
    }

    fn judge_apply(&self, query: &Query<'_>, content: Content<'_>) -> Result<Forward, Refusal> {
        on(self.mcs_status, "--mcs-status")?;
        query.only(APPLY_KEYS)?;
        content.one_of(&[APPLY])?;
        Ok(Forward::WithBody(OBJECT_BYTES_MAX))
    }
}

/// Returns whether the object of a request to create a ConfigMap in a namespace is one with roots.
pub(super) fn is_roots_object(object: &serde_json::Value, target: &str) -> bool {
    let namespace = target.split('/').nth(4).unwrap_or_default();
    let meta = &object["metadata"];
    object["apiVersion"] == "v1"
        && object["kind"] == "ConfigMap"
        && meta["generateName"].is_null()
        && meta["name"].as_str().is_some_and(|name| is_root(namespace, name))
        && (meta["namespace"].is_null() || meta["namespace"] == namespace)
}

/// Returns the kinds of the member's traffic objects in this group and version, or in any version.
/// `trafficFrom` of the policy file can apply such objects to the member's proxies.
fn own_traffic(group: &str, version: Option<&str>) -> impl Iterator<Item = &'static ConfigKind> {
    let has_version =
        move |kind: &ConfigKind| version.is_none_or(|one| kind.versions.contains(&one));
    ConfigKind::in_members().filter(move |kind| kind.group == group && has_version(kind))
}

fn on(is_on: bool, flag: &'static str) -> Result<(), Refusal> {
    if is_on { Ok(()) } else { Err(Refusal::Off(flag)) }
}

/// Returns whether a header asks for another user, or for a protocol that is no request and response.
fn asks_for_more(name: &HeaderName) -> bool {
    let name = name.as_str();
    name.starts_with("impersonate-") || name.starts_with("sec-websocket-") || name == UPGRADE
}

/// Splits a path into its segments. Kubernetes needs no escapes in paths, and proxies disagree on their meaning.
fn segments(path: &str) -> Result<Vec<&str>, Refusal> {
    let below = path.strip_prefix('/').ok_or(Refusal::Path)?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._/".contains(&byte);
    if path.len() > PATH_BYTES_MAX || !below.bytes().all(is_plain) {
        return Err(Refusal::Path);
    }
    let segments: Vec<_> = below.split('/').collect();
    let is_valid = |segment: &&str| !matches!(*segment, "" | "." | "..");
    if segments.iter().all(is_valid) { Ok(segments) } else { Err(Refusal::Path) }
}

fn is_root(namespace: &str, name: &str) -> bool {
    is_label(namespace) && ROOTS.contains(&name)
}

/// Returns whether a text can be the name of a namespace.
fn is_label(text: &str) -> bool {
    text.len() <= 63 && !text.contains('.') && is_name(text)
}

/// Returns whether a text can be the name of an object.
fn is_name(text: &str) -> bool {
    let is_valid =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    let is_end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= 253
        && bytes.iter().copied().all(is_valid)
        && is_end(bytes.first())
        && is_end(bytes.last())
}

/// The content type of a request.
#[derive(Clone, Copy)]
struct Content<'a>(&'a [u8]);

impl Content<'_> {
    fn one_of(self, permitted: &[&str]) -> Result<(), Refusal> {
        let is_permitted = permitted.iter().any(|permitted| permitted.as_bytes() == self.0);
        if is_permitted { Ok(()) } else { Err(Refusal::ContentType) }
    }
}

/// The parameters of a query.
struct Query<'a>(Vec<(&'a str, Cow<'a, str>)>);

impl<'a> Query<'a> {
    fn parse(query: Option<&'a str>) -> Result<Self, Refusal> {
        let Some(query) = query else { return Ok(Self(Vec::new())) };
        // Parsers of URLs disagree on `;` and `+`.
        let is_plain = |byte: u8| byte.is_ascii_graphic() && !b";+#\\\"<>".contains(&byte);
        if query.len() > QUERY_BYTES_MAX || !query.bytes().all(is_plain) {
            return Err(Refusal::Query);
        }
        let mut pairs: Vec<(&str, Cow<'_, str>)> = Vec::new();
        for pair in query.split('&') {
            let (key, value) = pair.split_once('=').ok_or(Refusal::Query)?;
            let value = decode(value).ok_or(Refusal::Query)?;
            if pairs.iter().any(|(earlier, _)| *earlier == key) {
                return Err(Refusal::Query);
            }
            pairs.push((key, value));
        }
        Ok(Self(pairs))
    }

    /// Permits a request without a body if all keys are in `keys`.
    fn only(&self, keys: &[&str]) -> Result<Forward, Refusal> {
        let are_known = self.0.iter().all(|(key, _)| keys.contains(key));
        if are_known { Ok(Forward::Plain) } else { Err(Refusal::Query) }
    }

    /// Returns the name if the field selector selects one object by its name, and nothing else.
    fn selected_name(&self) -> Option<Cow<'_, str>> {
        let (_, value) = self.0.iter().find(|(key, _)| *key == "fieldSelector")?;
        let name = value.strip_prefix("metadata.name=")?;
        is_name(name).then_some(Cow::Borrowed(name))
    }
}

/// Decodes the escapes of a value; `None` if one is invalid, or the result is no text of one line.
fn decode(value: &str) -> Option<Cow<'_, str>> {
    let escapes_are_valid = value.split('%').skip(1).all(|rest| {
        rest.as_bytes().get(..2).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    });
    let text = percent_decode_str(value).decode_utf8().ok().filter(|_| escapes_are_valid)?;
    (!text.contains(char::is_control)).then_some(text)
}
