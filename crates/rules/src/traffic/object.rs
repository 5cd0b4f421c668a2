//! Metadata and reports that all objects of the traffic configuration have in common.

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use strait_base::bounded::bounded;
use strait_base::codes::{self, Code};
use strait_base::unread;
use strait_model::{ExportTo, Namespace, ObjectKey};

/// Name, namespace and age of an object. Sorts from the oldest to the youngest; objects of the same
/// age by name, then by namespace. This order applies wherever age decides
/// (docs/reference/traffic.md, "Order").
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectMeta {
    /// Creation time in seconds since the Unix epoch; 0 if unknown.
    pub created: i64,
    /// Name of the object.
    pub name: Arc<str>,
    /// Namespace of the object.
    pub namespace: Namespace,
}

impl ObjectMeta {
    /// Returns a value that sorts before every object, for the beginning of a range.
    pub(super) fn before_all() -> Self {
        Self { created: i64::MIN, name: "".into(), namespace: "".into() }
    }

    /// Returns the metadata of the object with a key.
    pub fn from_object(key: &ObjectKey, object: &Value) -> Self {
        let created = object.pointer("/metadata/creationTimestamp").and_then(Value::as_str);
        let created = created.and_then(|text| text.parse::<jiff::Timestamp>().ok());
        Self {
            created: created.map_or(0, jiff::Timestamp::as_second),
            name: Arc::clone(&key.name),
            namespace: Namespace::new(Arc::clone(&key.namespace)),
        }
    }
}

impl fmt::Display for ObjectMeta {
    /// Writes `namespace/name`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A problem in a part of an object, which is reported to its owner.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reason {
    /// Error code.
    pub code: &'static Code,
    /// Path in the object, for example `spec.http[1].route[0]`.
    pub path: String,
    /// Problem and its consequence.
    pub text: String,
    /// Whether the part has no effect. Otherwise it works, and this is a warning.
    pub is_lost: bool,
}

impl Reason {
    /// Reports a part that has no effect.
    pub fn lost(code: &'static Code, path: impl Into<String>, text: impl fmt::Display) -> Self {
        let path: String = path.into();
        Self { code, path: bounded(path), text: bounded(text), is_lost: true }
    }

    /// Returns whether the object contains an error: proxies would reject a part of it, or answer
    /// requests with 500. The API server should reject the object, and its last valid version stays
    /// active.
    pub fn is_fault(&self) -> bool {
        const FAULTS: [&Code; 4] = [
            &codes::ROUTE_REFUSED,
            &codes::MATCH_REFUSED,
            &codes::DESTINATION_INVALID,
            &codes::TRAFFIC_VALUE,
        ];
        self.is_lost && FAULTS.contains(&self.code)
    }

    /// Returns whether a route of the Gateway API contains an error for which its last valid version
    /// stays active: an unreadable condition. For unsupported filters and invalid backends, the
    /// Gateway API requires status 500 instead.
    pub fn is_route_fault(&self) -> bool {
        self.is_lost && *self.code == codes::MATCH_REFUSED
    }

    /// Reports a part that has another effect than it seems to have.
    pub fn warning(code: &'static Code, path: impl Into<String>, text: impl fmt::Display) -> Self {
        let path: String = path.into();
        Self { code, path: bounded(path), text: bounded(text), is_lost: false }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.code, self.path, self.text)
    }
}

/// Iterates over the reasons that `before` does not contain, in their order.
pub(super) fn new_reasons<'a>(
    reasons: &'a [Reason],
    before: &'a [Reason],
) -> impl Iterator<Item = &'a Reason> {
    let before: HashSet<&Reason> = before.iter().collect();
    reasons.iter().filter(move |reason| !before.contains(reason))
}

/// Parses the spec of an object. Also returns reasons for unknown fields.
///
/// # Errors
/// The first field that violates the schema. The whole object is refused.
pub fn body<T: DeserializeOwned>(object: &Value) -> Result<(T, Vec<Reason>), Reason> {
    let (body, unread) = unread::read_spec(object)
        .map_err(|(path, error)| Reason::lost(&codes::TRAFFIC_MALFORMED, path, error))?;
    let reasons = unread
        .into_messages()
        .map(|(path, text)| Reason::lost(&codes::TRAFFIC_UNSUPPORTED, path, text));
    Ok((body, reasons.collect()))
}

/// Parses the namespaces that an object is exported to; `default` applies if `given` is empty. `*`
/// exports to all namespaces, `.` to the object's own namespace, and `~` to none.
pub fn export_to(given: &[String], default: &[String], own: &Namespace) -> ExportTo {
    let list = if given.is_empty() { default } else { given };
    ExportTo::of_list(list, own)
}

/// Adds warnings for redundant entries of `exportTo`.
pub fn note_export(given: &[String], reasons: &mut Vec<Reason>) {
    let is_for_all = given.iter().any(|entry| entry == "*");
    let mut before = BTreeSet::new();
    for (at, entry) in given.iter().enumerate() {
        let text = if !before.insert(entry) {
            format!("{entry:?} is a duplicate")
        } else if is_for_all && entry != "*" {
            format!("{entry:?} is redundant next to *, which exports to all namespaces")
        } else {
            continue;
        };
        let path = format!("spec.exportTo[{at}]");
        reasons.push(Reason::warning(&codes::TRAFFIC_REPLACED, path, text));
    }
}

/// A workload selector: labels that a workload must have.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RawWorkloadSelector {
    /// `matchLabels`, or `labels` in a Sidecar.
    #[serde(alias = "labels")]
    pub match_labels: std::collections::BTreeMap<String, String>,
}

/// Status of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct ObjectState {
    /// Reasons to report to its owner.
    pub reasons: Vec<Reason>,
    /// Whether the object violates its schema. Its last valid version is active; without one, it
    /// has no effect.
    pub refused: bool,
    /// Whether an earlier version is active instead.
    pub is_last_good: bool,
}
