//! What every object of the traffic configuration says of itself, and what is said of it.

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

/// Which object it is, and how old. Sorts from the oldest to the youngest; of one age by name, then by namespace, as
/// everywhere where age decides. (docs/reference/traffic.md, "Order".)
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectMeta {
    /// When it was made, in seconds since the Unix epoch; 0 where that is not known.
    pub created: i64,
    /// Its name.
    pub name: Arc<str>,
    /// Its namespace.
    pub namespace: Namespace,
}

impl ObjectMeta {
    /// A value that sorts before every object, for the beginning of a range.
    pub(super) fn before_all() -> Self {
        Self { created: i64::MIN, name: "".into(), namespace: "".into() }
    }

    /// Of the object of `key`.
    pub fn of(key: &ObjectKey, object: &Value) -> Self {
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
    /// `namespace/name`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Something about a part of an object that its owner should know.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reason {
    /// What kind of trouble it is.
    pub code: &'static Code,
    /// Where in the object: `spec.http[1].route[0]`.
    pub path: String,
    /// What was found there and what becomes of it.
    pub text: String,
    /// Whether that part has no effect; else it works, and this is a warning.
    pub is_lost: bool,
}

impl Reason {
    /// A part that has no effect.
    pub fn lost(code: &'static Code, path: impl Into<String>, text: impl fmt::Display) -> Self {
        let path: String = path.into();
        Self { code, path: bounded(path), text: bounded(text), is_lost: true }
    }

    /// Returns whether the object holds an error: proxies would refuse a part of it, or answer requests with 500. The API
    /// server should not store such an object, and its last valid version stays in use.
    pub fn is_fault(&self) -> bool {
        const FAULTS: [&Code; 4] = [
            &codes::ROUTE_REFUSED,
            &codes::MATCH_REFUSED,
            &codes::DESTINATION_INVALID,
            &codes::TRAFFIC_VALUE,
        ];
        self.is_lost && FAULTS.contains(&self.code)
    }

    /// A part that works otherwise than one might believe.
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

/// The reasons that were not given before, in their order.
pub(super) fn new_reasons<'a>(
    reasons: &'a [Reason],
    before: &'a [Reason],
) -> impl Iterator<Item = &'a Reason> {
    let before: HashSet<&Reason> = before.iter().collect();
    reasons.iter().filter(move |reason| !before.contains(reason))
}

/// The body of an object, and which of its fields nothing reads.
///
/// # Errors
/// The first field that is not what the schema says; the object is refused whole.
pub fn body<T: DeserializeOwned>(object: &Value) -> Result<(T, Vec<Reason>), Reason> {
    let (body, unread) = unread::read_spec(object)
        .map_err(|(path, error)| Reason::lost(&codes::TRAFFIC_MALFORMED, path, error))?;
    let reasons =
        unread.told().map(|(path, text)| Reason::lost(&codes::TRAFFIC_UNSUPPORTED, path, text));
    Ok((body, reasons.collect()))
}

/// To whom an object is exported: what it says, else `default`. A `*` beside other entries stands for all; `.` is
/// the object's own namespace; `~` is nobody.
pub fn export_to(given: &[String], default: &[String], own: &Namespace) -> ExportTo {
    let list = if given.is_empty() { default } else { given };
    ExportTo::parse(&list.join(","), own)
}

/// Notes what of `exportTo` says nothing beside its other entries.
pub fn note_export(given: &[String], reasons: &mut Vec<Reason>) {
    let is_for_all = given.iter().any(|entry| entry == "*");
    let mut before = BTreeSet::new();
    for (at, entry) in given.iter().enumerate() {
        let text = if !before.insert(entry) {
            format!("{entry:?} is there already")
        } else if is_for_all && entry != "*" {
            format!("{entry:?} says nothing beside *, which is everybody")
        } else {
            continue;
        };
        let path = format!("spec.exportTo[{at}]");
        reasons.push(Reason::warning(&codes::TRAFFIC_REPLACED, path, text));
    }
}

/// A selector as these objects have it: labels that must all be there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RawWorkloadSelector {
    /// `matchLabels`, or `labels` as Sidecar calls them.
    #[serde(alias = "labels")]
    pub match_labels: std::collections::BTreeMap<String, String>,
}

/// How an object is taken.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct ObjectState {
    /// What its owner should know.
    pub reasons: Vec<Reason>,
    /// It does not fit its schema: its last good form counts, or nothing.
    pub refused: bool,
    /// An earlier form of it counts in its place.
    pub is_last_good: bool,
}
