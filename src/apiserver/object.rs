//! From bytes to objects: pages of a list and lines of a watch.
//!
//! An object is decoded on its own, so that one which makes no sense costs only itself. What a type
//! does not name is skipped while decoding, without recursion and without being kept: managed
//! fields, which are half of most objects, are never materialised, and depth is no attack.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::de::{DeserializeOwned, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::Error;

/// What every Kubernetes object has, as far as anybody here needs it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    /// The name; never empty once decoded.
    #[serde(deserialize_with = "null_as_default")]
    pub name: Arc<str>,
    /// The namespace; empty for kinds without.
    #[serde(deserialize_with = "null_as_default")]
    pub namespace: Arc<str>,
    /// Unique over time.
    #[serde(deserialize_with = "null_as_default")]
    pub uid: Arc<str>,
    /// The version; opaque.
    #[serde(deserialize_with = "null_as_default")]
    pub resource_version: String,
    /// When it was made, RFC 3339; empty where unknown.
    #[serde(deserialize_with = "null_as_default")]
    pub creation_timestamp: String,
    /// Labels.
    #[serde(deserialize_with = "null_as_default")]
    pub labels: BTreeMap<Arc<str>, Arc<str>>,
    /// Those annotations that may mean something here: the mesh's (`*.istio.io/`) and our own.
    #[serde(deserialize_with = "annotations")]
    pub annotations: BTreeMap<Arc<str>, Arc<str>>,
}

/// Namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The namespace; empty for kinds without.
    pub namespace: Arc<str>,
    /// The name.
    pub name: Arc<str>,
}

impl fmt::Display for Key {
    /// `namespace/name`, or `name`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(&self.name)
    }
}

impl Metadata {
    /// Namespace and name.
    pub fn key(&self) -> Key {
        Key { namespace: Arc::clone(&self.namespace), name: Arc::clone(&self.name) }
    }
}

/// A kind of object, in as much detail as its reader needs. Fields that may be missing, null or odd
/// in the wild are optional or defaulted; an object that can't be decoded even so is left out.
pub trait Object: DeserializeOwned + Send + 'static {
    /// Its metadata.
    fn metadata(&self) -> &Metadata;
}

/// Decodes `null` like a missing field: Go writes empty lists and maps as `null`.
///
/// # Errors
/// Those of the value itself.
pub fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// Annotations are free text of any size; only those of the mesh and our own are kept.
fn means_something(annotation: &str) -> bool {
    let (domain, _) = annotation.split_once('/').unwrap_or_default();
    domain.ends_with("istio.io") || domain == "strait.dev" || annotation == INITIAL_EVENTS_END
}

/// The annotation of the bookmark that ends a streamed list.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

fn annotations<'de, D>(deserializer: D) -> Result<BTreeMap<Arc<str>, Arc<str>>, D::Error>
where
    D: Deserializer<'de>,
{
    struct Kept;
    impl<'de> Visitor<'de> for Kept {
        type Value = BTreeMap<Arc<str>, Arc<str>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a map of annotations")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(BTreeMap::new())
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut kept = BTreeMap::new();
            while let Some(name) = map.next_key::<Cow<'de, str>>()? {
                if means_something(&name) {
                    if let Some(value) = map.next_value::<Option<Arc<str>>>()? {
                        kept.insert(Arc::from(&*name), value);
                    }
                } else {
                    map.next_value::<IgnoredAny>()?;
                }
            }
            Ok(kept)
        }
    }
    deserializer.deserialize_any(Kept)
}

/// An object that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Odd {
    /// Which, where that much can be told.
    pub key: Option<Key>,
    /// Why.
    pub reason: String,
}

/// One page of a list.
pub(super) struct Page<T> {
    /// What could be decoded.
    pub(super) objects: Vec<T>,
    /// What could not.
    pub(super) odd: Vec<Odd>,
    /// The version of the list.
    pub(super) version: String,
    /// Where the next page goes on; `None` after the last one.
    pub(super) next: Option<String>,
}

/// One line of a watch.
#[derive(Debug)]
pub(super) enum Line<T> {
    /// This object is so now.
    Applied { object: T, version: String },
    /// This object is gone.
    Deleted { key: Key, version: String },
    /// This object makes no sense; it is taken for gone, as a fresh list would leave it out.
    Odd { odd: Odd, version: String },
    /// Nothing happened up to this version.
    Bookmark { version: String, initial_events_end: bool },
    /// The watch ends for this reason.
    Error(Error),
}

#[derive(Deserialize)]
struct OnlyMetadata {
    #[serde(default)]
    metadata: Metadata,
}

/// Decodes a page.
pub(super) fn decode_page<T: Object>(json: &[u8]) -> Result<Page<T>, String> {
    #[derive(Deserialize)]
    struct Raw<'a> {
        #[serde(borrow)]
        metadata: ListMetadata<'a>,
        // Not defaulted: JSON without items is no list, and an empty list would withdraw everything.
        #[serde(borrow)]
        items: Option<Vec<&'a RawValue>>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct ListMetadata<'a> {
        #[serde(borrow)]
        resource_version: Cow<'a, str>,
        #[serde(default, borrow, rename = "continue")]
        next: Option<Cow<'a, str>>,
    }
    let raw: Raw<'_> = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    if raw.items.is_none() && !has_null_items(json) {
        return Err("it has no items".into());
    }
    let items = raw.items.unwrap_or_default();
    let mut page = Page {
        objects: Vec::with_capacity(items.len()),
        odd: Vec::new(),
        version: raw.metadata.resource_version.into_owned(),
        next: raw.metadata.next.filter(|token| !token.is_empty()).map(Cow::into_owned),
    };
    for item in items {
        match decode_object(item) {
            Ok(object) => page.objects.push(object),
            Err(odd) => page.odd.push(odd),
        }
    }
    Ok(page)
}

/// Go encodes an empty list as `"items": null`.
fn has_null_items(json: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Items<'a> {
        #[serde(borrow)]
        items: &'a RawValue,
    }
    serde_json::from_slice::<Items<'_>>(json).is_ok_and(|raw| raw.items.get() == "null")
}

/// Decodes a line. An error says that it is not a line of a watch at all.
pub(super) fn decode_line<T: Object>(json: &[u8]) -> Result<Line<T>, String> {
    #[derive(Deserialize)]
    struct Raw<'a> {
        #[serde(rename = "type", borrow)]
        kind: Cow<'a, str>,
        #[serde(borrow)]
        object: &'a RawValue,
    }
    #[derive(Deserialize)]
    struct Status {
        #[serde(default)]
        code: u16,
        #[serde(default)]
        message: String,
        #[serde(default)]
        reason: String,
    }
    let raw: Raw<'_> = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    let metadata = || {
        serde_json::from_str::<OnlyMetadata>(raw.object.get())
            .map(|only| only.metadata)
            .map_err(|error| error.to_string())
    };
    Ok(match &*raw.kind {
        "ADDED" | "MODIFIED" => match decode_object::<T>(raw.object) {
            Ok(object) => {
                let version = object.metadata().resource_version.clone();
                Line::Applied { object, version }
            }
            Err(odd) => {
                let version = metadata().map(|metadata| metadata.resource_version);
                Line::Odd { odd, version: version.unwrap_or_default() }
            }
        },
        "DELETED" => {
            let metadata = metadata()?;
            Line::Deleted { key: metadata.key(), version: metadata.resource_version }
        }
        "BOOKMARK" => {
            let metadata = metadata()?;
            let end = metadata.annotations.get(INITIAL_EVENTS_END);
            Line::Bookmark {
                initial_events_end: end.is_some_and(|value| &**value == "true"),
                version: metadata.resource_version,
            }
        }
        "ERROR" => {
            let status: Status =
                serde_json::from_str(raw.object.get()).map_err(|error| error.to_string())?;
            let code = match (status.code, &*status.reason) {
                (_, "Expired" | "Gone") => 410,
                // A status without a code is a failure all the same.
                (0, _) => 500,
                (code, _) => code,
            };
            Line::Error(Error::of_status(code, &status.message, None))
        }
        other => return Err(format!("{:?} is no type of event", super::error::one_line(other))),
    })
}

fn decode_object<T: Object>(raw: &RawValue) -> Result<T, Odd> {
    let object: T = serde_json::from_str(raw.get()).map_err(|error| Odd {
        key: serde_json::from_str::<OnlyMetadata>(raw.get())
            .ok()
            .filter(|only| is_name(&only.metadata.name))
            .map(|only| only.metadata.key()),
        reason: error.to_string(),
    })?;
    let Metadata { name, namespace, .. } = object.metadata();
    if is_name(name) && (namespace.is_empty() || is_name(namespace)) {
        Ok(object)
    } else {
        Err(Odd { key: None, reason: "its name or namespace is no name".into() })
    }
}

/// Whether text can be a name of the kinds read here: it ends up in host names, keys and logs.
fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 253
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._:".contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    struct Thing {
        metadata: Metadata,
        #[serde(default)]
        size: Option<u16>,
    }

    impl Object for Thing {
        fn metadata(&self) -> &Metadata {
            &self.metadata
        }
    }

    fn page(json: &str) -> Result<Page<Thing>, String> {
        decode_page(json.as_bytes())
    }

    fn line(json: &str) -> Result<Line<Thing>, String> {
        decode_line(json.as_bytes())
    }

    #[test]
    fn an_odd_object_costs_only_itself() {
        let page = page(
            r#"{"metadata":{"resourceVersion":"7","continue":"more"},"items":[
                {"metadata":{"name":"a"},"size":1},
                {"metadata":{"name":"b"},"size":65536},
                {"metadata":{"name":"c\u0000"}}, {"metadata":null}, 5, null,
                {"metadata":{"name":"d","labels":null,"annotations":null,"namespace":null}}]}"#,
        )
        .expect("a page");
        let names: Vec<_> = page.objects.iter().map(|thing| &*thing.metadata.name).collect();
        assert_eq!(names, ["a", "d"]);
        assert_eq!(page.objects.first().and_then(|thing| thing.size), Some(1));
        assert_eq!(page.odd.len(), 5);
        let named = page.odd.first().and_then(|odd| odd.key.as_ref());
        assert_eq!(named.map(ToString::to_string).as_deref(), Some("b"));
        assert_eq!((&*page.version, page.next.as_deref()), ("7", Some("more")));
    }

    #[test]
    fn what_is_no_list_is_not_an_empty_list() {
        for bad in ["", "{}", "[]", "<html>", r#"{"metadata":{"resourceVersion":"1"}}"#] {
            assert!(page(bad).is_err(), "{bad}");
        }
        let empty = page(r#"{"metadata":{"resourceVersion":"1"},"items":null}"#);
        assert!(empty.expect("an empty list").objects.is_empty());
    }

    #[test]
    fn annotations_that_mean_nothing_here_are_not_kept() {
        let page = page(
            r#"{"metadata":{"resourceVersion":"1"},"items":[{"metadata":{"name":"a","annotations":{
                "kubectl.kubernetes.io/last-applied-configuration":"{}","x":null,
                "networking.istio.io/exportTo":"*","strait.dev/network":"n"}}}]}"#,
        )
        .expect("a page");
        let kept: Vec<_> = page
            .objects
            .iter()
            .flat_map(|thing| thing.metadata.annotations.keys().map(|key| &**key))
            .collect();
        assert_eq!(kept, ["networking.istio.io/exportTo", "strait.dev/network"]);
    }

    #[test]
    fn lines_of_a_watch_are_told_apart() {
        let object = r#"{"metadata":{"name":"a","namespace":"n","resourceVersion":"3"}}"#;
        let of =
            |kind: &str, object: &str| line(&format!(r#"{{"type":"{kind}","object":{object}}}"#));
        assert!(matches!(of("ADDED", object), Ok(Line::Applied { version, .. }) if version == "3"));
        assert!(
            matches!(of("DELETED", object), Ok(Line::Deleted { key, .. }) if key.to_string() == "n/a")
        );
        let odd = r#"{"metadata":{"name":"a","resourceVersion":"4"},"size":"x"}"#;
        assert!(matches!(of("MODIFIED", odd), Ok(Line::Odd { version, .. }) if version == "4"));
        let end = r#"{"metadata":{"resourceVersion":"9","annotations":{"k8s.io/initial-events-end":"true"}}}"#;
        assert!(matches!(
            of("BOOKMARK", end),
            Ok(Line::Bookmark { initial_events_end: true, version }) if version == "9"
        ));
        let gone = r#"{"code":410,"reason":"Expired","message":"too old"}"#;
        assert!(matches!(of("ERROR", gone), Ok(Line::Error(Error::Gone(_)))));
        assert!(matches!(of("ERROR", "{}"), Ok(Line::Error(Error::Server(_)))));
        for bad in ["", "{", "{}", "null", r#"{"type":"ADDED"}"#, r#"{"type":"X","object":{}}"#] {
            assert!(line(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn depth_is_no_attack() {
        let depth = 1_000_000;
        let deep = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        let ignored = format!(r#"{{"metadata":{{"name":"a"}},"unknown":{deep}}}"#);
        let list = format!(r#"{{"metadata":{{"resourceVersion":"1"}},"items":[{ignored}]}}"#);
        assert_eq!(page(&list).expect("a page").objects.len(), 1, "skipped without recursion");
        let known = format!(r#"{{"metadata":{{"name":"a","labels":{deep}}}}}"#);
        let list = format!(r#"{{"metadata":{{"resourceVersion":"1"}},"items":[{known}]}}"#);
        assert_eq!(page(&list).expect("a page").odd.len(), 1, "costs only itself");
    }
}
