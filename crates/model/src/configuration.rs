//! The configuration from operators' objects at one moment, as a value: it can be held, restored,
//! and identified by its content.

use std::sync::{Arc, OnceLock};
use strait_base::hex;

use ring::digest::{Context, SHA256};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::collection::Collection;
use super::object_json::ObjectJson;

/// The only annotation that changes the meaning of an object. (Istio, AuthorizationPolicy, "Dry
/// run".)
const DRY_RUN: &str = "istio.io/dry-run";
/// The number of bytes of the digest that form the name of a configuration.
const ID_BYTES: usize = 16;

/// The configuration of the mesh at one moment: the effective traffic rules and access policies,
/// and the texts of the mesh config and mesh networks. An invalid object is included in its last
/// valid version. Data that clusters report (services, endpoints, pods) is not included, and
/// neither are entries, which describe such data.
#[derive(Debug, Default)]
pub struct ConfigurationSnapshot {
    /// The objects of the traffic configuration.
    pub traffic: Collection,
    /// The access policies.
    pub access: Collection,
    /// The mesh config as JSON; `None` if the defaults apply.
    pub mesh: Option<Arc<str>>,
    /// The mesh networks as JSON; `None` without any.
    pub networks: Option<Arc<str>>,
    id: OnceLock<Arc<str>>,
}

impl ConfigurationSnapshot {
    /// Creates a snapshot of these parts.
    pub fn new(
        traffic: Collection,
        access: Collection,
        mesh: Option<Arc<str>>,
        networks: Option<Arc<str>>,
    ) -> Self {
        Self { traffic, access, mesh, networks, id: OnceLock::new() }
    }

    /// Returns the name: 32 hexadecimal digits, computed from the content, and therefore equal in
    /// every replica and after a restart. Computed on the first call, which reads every object.
    pub fn id(&self) -> Arc<str> {
        Arc::clone(self.id.get_or_init(|| {
            let mut digest = Context::new(&SHA256);
            for object in self.objects() {
                field(&mut digest, object.counted_text().as_bytes());
            }
            for text in [&self.mesh, &self.networks] {
                field(&mut digest, text.as_deref().map_or(b"-", str::as_bytes));
            }
            let digest = digest.finish();
            hex::encode(&digest.as_ref()[..ID_BYTES]).into()
        }))
    }

    /// Returns all objects; traffic objects first.
    pub fn objects(&self) -> impl Iterator<Item = &ObjectJson> {
        self.traffic.values().chain(self.access.values())
    }

    /// Returns the approximate size in bytes of the parts that differ from `before`; equal parts
    /// are shared.
    pub fn unshared_bytes(&self, before: Option<&Self>) -> usize {
        let empty = Self::default();
        let before = before.unwrap_or(&empty);
        let pairs = [(&self.traffic, &before.traffic), (&self.access, &before.access)];
        let objects = pairs.into_iter().flat_map(|(now, before)| now.differences(before));
        let object_bytes: usize =
            objects.filter_map(|difference| difference.now).map(ObjectJson::bytes).sum();
        let texts = [(&self.mesh, &before.mesh), (&self.networks, &before.networks)];
        let differing = texts.into_iter().filter(|(now, before)| now != before);
        object_bytes
            + differing.map(|(now, _)| now.as_ref().map_or(0, |text| text.len())).sum::<usize>()
    }
}

impl PartialEq for ConfigurationSnapshot {
    fn eq(&self, other: &Self) -> bool {
        self.id() == other.id()
    }
}

impl Eq for ConfigurationSnapshot {}

/// Adds a part with its length, so that different sequences of parts never give the same bytes.
fn field(digest: &mut Context, bytes: &[u8]) {
    digest.update(&(bytes.len() as u64).to_be_bytes());
    digest.update(bytes);
}

/// The relevant part of an object: without its author, its labels, and its status.
#[derive(Debug, Clone, Copy)]
pub struct Counted<'a>(pub &'a Value);

impl Counted<'_> {
    /// Returns the relevant part as an object.
    pub fn to_value(self) -> Value {
        let Self(object) = self;
        let mut relevant =
            Map::from_iter([("metadata".to_owned(), relevant_metadata(&object["metadata"]))]);
        for name in ["apiVersion", "kind", "spec"] {
            if let Some(value) = object.get(name) {
                relevant.insert(name.to_owned(), value.clone());
            }
        }
        Value::Object(relevant)
    }
}

fn relevant_metadata(metadata: &Value) -> Value {
    let mut relevant = Map::new();
    for name in ["creationTimestamp", "name", "namespace"] {
        if let Some(value) = metadata.get(name).filter(|value| !value.is_null()) {
            relevant.insert(name.to_owned(), value.clone());
        }
    }
    if let Some(dry_run) = metadata["annotations"].get(DRY_RUN) {
        let annotations = Map::from_iter([(DRY_RUN.to_owned(), dry_run.clone())]);
        relevant.insert("annotations".to_owned(), Value::Object(annotations));
    }
    Value::Object(relevant)
}

impl ObjectJson {
    /// Returns the text of [`Counted::to_value`]. Only the metadata are parsed, because the other
    /// parts are stored as that text has them.
    pub fn counted_text(&self) -> String {
        let text = self.text();
        let CountedForm { api_version, kind, metadata, spec } =
            serde_json::from_str(&text).unwrap_or_default();
        let metadata = relevant_metadata(&metadata).to_string();
        let parts = [
            ("apiVersion", api_version.map(RawValue::get)),
            ("kind", kind.map(RawValue::get)),
            ("metadata", Some(&*metadata)),
            ("spec", spec.map(RawValue::get)),
        ];
        let mut counted = String::with_capacity(text.len());
        for (name, value) in parts {
            let Some(value) = value else { continue };
            let before = if counted.is_empty() { '{' } else { ',' };
            counted.push(before);
            counted.extend(["\"", name, "\":", value]);
        }
        counted.push('}');
        counted
    }
}

/// The parts of an object that [`Counted`] contains, as text.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct CountedForm<'a> {
    #[serde(borrow, deserialize_with = "present")]
    api_version: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    kind: Option<&'a RawValue>,
    metadata: Value,
    #[serde(borrow, deserialize_with = "present")]
    spec: Option<&'a RawValue>,
}

/// Reads a value that is present, also `null`.
fn present<'de: 'a, 'a, D: Deserializer<'de>>(from: D) -> Result<Option<&'a RawValue>, D::Error> {
    Deserialize::deserialize(from).map(Some)
}

impl PartialEq for Counted<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.to_value() == other.to_value()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(name: &str, spec: u32) -> Value {
        json!({
            "apiVersion": "networking.istio.io/v1", "kind": "VirtualService", "spec": spec,
            "metadata": { "namespace": "shop", "name": name },
        })
    }

    #[test]
    fn counted_text_equals_that_of_the_parsed_object() {
        for object in [
            object("web", 1),
            json!({ "spec": { "b": [1, 0.5, "é\n\"\\"], "a": null }, "kind": "Gateway" }),
            json!({ "spec": null, "kind": null, "metadata": null, "status": { "a": 1 } }),
            json!({
                "apiVersion": "v1", "status": {}, "metadata": {
                    "creationTimestamp": null, "name": "web", "labels": { "a": "b" },
                    "annotations": { DRY_RUN: "true", "other": "1" },
                },
            }),
            json!(null),
        ] {
            let expected = Counted(&object).to_value().to_string();
            assert_eq!(ObjectJson::from(&object).counted_text(), expected, "{object}");
        }
    }

    fn snapshot(objects: &[Value], mesh: Option<&str>) -> ConfigurationSnapshot {
        let objects = objects.iter().cloned().map(Arc::new).collect();
        ConfigurationSnapshot::new(objects, Collection::default(), mesh.map(Into::into), None)
    }

    #[test]
    fn name_depends_only_on_relevant_content() {
        let (one, two) = (object("one", 1), object("two", 2));
        let first = snapshot(&[one.clone(), two.clone()], None);
        assert_eq!(first.id().len(), 32);
        assert_eq!(first.id(), snapshot(&[two.clone(), one.clone()], None).id(), "in any order");
        let mut written = two.clone();
        written["status"] = json!({ "parents": [] });
        written["metadata"]["labels"] = json!({ "team": "a" });
        written["metadata"]["annotations"] = json!({ "who": "a" });
        written["metadata"]["resourceVersion"] = json!("7");
        assert_eq!(first.id(), snapshot(&[one.clone(), written.clone()], None).id());
        written["metadata"]["annotations"] = json!({ DRY_RUN: "true" });
        let mut older = two.clone();
        older["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
        for other in [
            snapshot(&[one.clone(), object("two", 3)], None),
            snapshot(&[one.clone(), written], None),
            snapshot(&[one.clone(), older], None),
            snapshot(&[one.clone(), two], Some("{}")),
            snapshot(&[one], None),
            snapshot(&[], None),
        ] {
            assert_ne!(first.id(), other.id(), "{other:?}");
        }
    }

    #[test]
    fn size_counts_only_parts_that_are_not_shared() {
        let (one, two) = (object("one", 1), object("two", 2));
        let first = snapshot(&[one.clone(), two.clone()], None);
        let full_size = first.unshared_bytes(None);
        let bytes = |object: &Value| ObjectJson::from(object).bytes();
        assert_eq!(full_size, bytes(&one) + bytes(&two));
        assert_eq!(first.unshared_bytes(Some(&first)), 0);
        let mut more = first.traffic.clone();
        let three = Arc::new(object("three", 3));
        more.insert(super::super::ObjectKey::of(&three).expect("a key"), Arc::clone(&three));
        let more = ConfigurationSnapshot::new(more, Collection::default(), Some("{}".into()), None);
        assert_eq!(more.unshared_bytes(Some(&first)), bytes(&three) + 2);
    }
}
