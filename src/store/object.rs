//! From a decoded document to the objects we know.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::kinds;
use super::{ConfigMap, Namespace, ObjectName, Secret};
use crate::apiserver::Redacted;
use crate::model::ObjectKey;

/// One object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Object {
    Secret(Arc<Secret>),
    ConfigMap(Arc<ConfigMap>),
    Namespace(Arc<Namespace>),
    Other(Arc<Value>),
}

/// What tells objects apart.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) group: String,
    pub(super) kind: String,
    pub(super) name: ObjectName,
}

impl Key {
    /// Of a Secret.
    pub(super) fn secret(name: &ObjectName) -> Self {
        Self { group: String::new(), kind: "Secret".to_owned(), name: name.clone() }
    }

    /// Of an object that is kept as it is.
    pub(super) fn of(key: &ObjectKey) -> Self {
        let name = ObjectName::new(&key.namespace, &key.name);
        Self { group: key.group.to_string(), kind: key.kind.to_string(), name }
    }
}

/// Why a document is no object that can be used.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unusable {
    /// The file is wrong.
    Invalid(String),
    /// It is fine, and means nothing here.
    Ignored(String),
}

/// Kinds that live outside any namespace. The rest gets the system namespace where it names none.
const WITHOUT_NAMESPACE: &[&str] = &["Namespace", "Node", "GatewayClass"];

/// The objects of one document; a `List` holds several. A missing namespace is `system_namespace`.
pub(super) fn read(
    document: Value,
    system_namespace: &str,
) -> Vec<Result<(Key, Object), Unusable>> {
    let kind = document.get("kind").and_then(Value::as_str).unwrap_or_default();
    if kind.ends_with("List")
        && let Some(Value::Array(items)) = document.get("items")
    {
        let item_kind = kind.trim_end_matches("List").to_owned();
        let version = document.get("apiVersion").cloned();
        return items
            .iter()
            .map(|item| {
                let mut item = item.clone();
                // Items of a typed list don't repeat their kind.
                if let Some(item) = item.as_object_mut()
                    && !item_kind.is_empty()
                {
                    item.entry("kind").or_insert_with(|| item_kind.clone().into());
                    if let Some(version) = &version {
                        item.entry("apiVersion").or_insert_with(|| version.clone());
                    }
                }
                one(item, system_namespace)
            })
            .collect();
    }
    vec![one(document, system_namespace)]
}

fn one(mut document: Value, system_namespace: &str) -> Result<(Key, Object), Unusable> {
    let invalid = |fact: &str| Unusable::Invalid(fact.to_owned());
    if !document.is_object() {
        return Err(invalid("is not an object"));
    }
    let text = |field: &str| document.get(field).and_then(Value::as_str).map(str::to_owned);
    let kind = text("kind").ok_or_else(|| invalid("has no kind"))?;
    let version = text("apiVersion").ok_or_else(|| invalid("has no apiVersion"))?;
    let group = version.split_once('/').map_or("", |(group, _)| group).to_owned();
    let metadata = document.get("metadata").unwrap_or(&Value::Null);
    let name = metadata.get("name").and_then(Value::as_str).filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| invalid("has no metadata.name"))?.to_owned();
    let namespace = if WITHOUT_NAMESPACE.contains(&kind.as_str())
        || kinds::ALL.iter().any(|one| one.kind == kind && one.group == group && !one.namespaced)
    {
        ""
    } else {
        match metadata.get("namespace").and_then(Value::as_str) {
            Some(namespace) if !namespace.is_empty() => namespace,
            _ => system_namespace,
        }
    };
    let name = ObjectName::new(namespace, &name);
    let object = match (group.as_str(), kind.as_str()) {
        ("", "Secret") => Object::Secret(Arc::new(secret(&document, name.clone())?)),
        ("", "ConfigMap") => Object::ConfigMap(Arc::new(ConfigMap {
            name: name.clone(),
            data: strings(document.get("data"), "data")?,
        })),
        ("", "Namespace") => Object::Namespace(Arc::new(Namespace {
            name: Arc::clone(&name.name),
            labels: strings(metadata.get("labels"), "metadata.labels")?,
        })),
        ("", "Service" | "Pod") => {
            let fact = format!("{kind} {name} is ignored: services come from member clusters");
            return Err(Unusable::Ignored(fact));
        }
        _ => {
            if let Some(metadata) = document.get_mut("metadata").and_then(Value::as_object_mut)
                && !name.namespace.is_empty()
            {
                metadata.insert("namespace".to_owned(), name.namespace.as_ref().into());
            }
            Object::Other(Arc::new(document))
        }
    };
    Ok((Key { group, kind, name }, object))
}

fn secret(document: &Value, name: ObjectName) -> Result<Secret, Unusable> {
    let metadata = document.get("metadata").unwrap_or(&Value::Null);
    let created = metadata.get("creationTimestamp").and_then(Value::as_str);
    Ok(Secret {
        name,
        labels: strings(metadata.get("labels"), "metadata.labels")?,
        annotations: strings(metadata.get("annotations"), "metadata.annotations")?,
        created: created.and_then(|time| time.parse().ok()),
        data: secret_data(document.get("data"), document.get("stringData"))?,
    })
}

/// A Secret's data, decoded. Never says what it is.
pub(super) fn secret_data(
    data: Option<&Value>,
    string_data: Option<&Value>,
) -> Result<BTreeMap<String, Redacted<Vec<u8>>>, Unusable> {
    let mut decoded = BTreeMap::new();
    for (key, value) in strings(data, "data")? {
        let joined: String = value.split_ascii_whitespace().collect();
        let bytes = STANDARD
            .decode(joined)
            .map_err(|_| Unusable::Invalid(format!("data.{} is not base64", key.escape_debug())))?;
        decoded.insert(key, Redacted::new(bytes));
    }
    for (key, value) in strings(string_data, "stringData")? {
        decoded.insert(key, Redacted::new(value.into_bytes()));
    }
    Ok(decoded)
}

/// A map of strings; absent is empty.
pub(super) fn strings(
    value: Option<&Value>,
    field: &str,
) -> Result<BTreeMap<String, String>, Unusable> {
    let map = match value {
        None | Some(Value::Null) => return Ok(BTreeMap::new()),
        Some(Value::Object(map)) => map,
        Some(_) => return Err(Unusable::Invalid(format!("{field} is not a map"))),
    };
    map.iter()
        .map(|(key, value)| match value {
            Value::String(text) => Ok((key.clone(), text.clone())),
            _ => Err(Unusable::Invalid(format!("{field}.{} is not a string", key.escape_debug()))),
        })
        .collect()
}
