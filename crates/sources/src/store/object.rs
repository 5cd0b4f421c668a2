//! Converts a decoded document to supported objects.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::{ObjectName, WatchedConfigMap, WatchedNamespace, WatchedSecret};
use crate::members::placement::PlacementDecision;
use crate::members::profile::ClusterProfile;
use strait_kube_client::Redacted;
use strait_model::{CONFIG_KINDS, ConfigKind, ObjectJson, ObjectKey};

/// One object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum StoreObject {
    Secret(Arc<WatchedSecret>),
    ConfigMap(Arc<WatchedConfigMap>),
    Namespace(Arc<WatchedNamespace>),
    Other(ObjectJson),
}

/// The identity of an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ObjectId {
    pub(super) group: Arc<str>,
    pub(super) kind: Arc<str>,
    pub(super) name: ObjectName,
}

impl ObjectId {
    /// Returns the identity of a Secret.
    pub(super) fn secret(name: &ObjectName) -> Self {
        Self { group: "".into(), kind: "Secret".into(), name: name.clone() }
    }

    /// Returns the identity of a ConfigMap.
    pub(super) fn config_map(name: &ObjectName) -> Self {
        Self { kind: "ConfigMap".into(), ..Self::secret(name) }
    }

    /// Returns the identity of an object that is stored unchanged.
    pub(super) fn from_key(key: &ObjectKey) -> Self {
        let ObjectKey { kind, group, namespace, name } = key.clone();
        Self { group, kind, name: ObjectName { namespace, name } }
    }

    /// Returns the identity as a key.
    pub(super) fn key(&self) -> ObjectKey {
        let Self { group, kind, name: ObjectName { namespace, name } } = self.clone();
        ObjectKey { kind, group, namespace, name }
    }
}

/// The reason why a document is not a usable object.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum UnusableObject {
    /// The document is invalid.
    Invalid(String),
    /// A valid object that only member clusters may contain: with its namespace, and the warning
    /// for a configuration directory.
    MemberOnly(Value, String),
}

/// Kinds outside any namespace. Objects of other kinds without a namespace get the system
/// namespace.
const WITHOUT_NAMESPACE: &[&str] = &["Namespace", "Node", "GatewayClass"];

/// Parses the objects of one document; a `List` contains several. The default namespace is
/// `system_namespace`.
pub(super) fn read(
    document: Value,
    system_namespace: &str,
) -> Vec<Result<(ObjectId, StoreObject), UnusableObject>> {
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
                parse_object(item, system_namespace)
            })
            .collect();
    }
    vec![parse_object(document, system_namespace)]
}

/// Returns whether each object of a document names its namespace, in the order of [`read`].
pub(super) fn named_namespaces(document: &Value) -> Vec<bool> {
    let is_named = |object: &Value| {
        object["metadata"]["namespace"].as_str().is_some_and(|namespace| !namespace.is_empty())
    };
    let is_list = document["kind"].as_str().is_some_and(|kind| kind.ends_with("List"));
    match document["items"].as_array().filter(|_| is_list) {
        Some(items) => items.iter().map(is_named).collect(),
        None => vec![is_named(document)],
    }
}

fn parse_object(
    mut document: Value,
    system_namespace: &str,
) -> Result<(ObjectId, StoreObject), UnusableObject> {
    let invalid = |fact: &str| UnusableObject::Invalid(fact.to_owned());
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
        || CONFIG_KINDS.iter().any(|one| one.kind == kind && one.group == group && !one.namespaced)
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
        ("", "Secret") => StoreObject::Secret(Arc::new(secret(&document, name.clone())?)),
        ("multicluster.x-k8s.io", "ClusterProfile") => {
            StoreObject::Secret(Arc::new(profile(&document, name.clone())?))
        }
        ("multicluster.x-k8s.io", "PlacementDecision") => {
            StoreObject::Secret(Arc::new(decision(&document, name.clone())?))
        }
        ("", "ConfigMap") => StoreObject::ConfigMap(Arc::new(WatchedConfigMap {
            name: name.clone(),
            data: strings(document.get("data"), "data")?,
        })),
        ("", "Namespace") => StoreObject::Namespace(Arc::new(WatchedNamespace {
            name: Arc::clone(&name.name),
            labels: strings(metadata.get("labels"), "metadata.labels")?,
        })),
        ("", "Service" | "Pod") => {
            let fact = format!("{kind} {name} is ignored: services come from member clusters");
            document["metadata"]["namespace"] = name.namespace.as_ref().into();
            return Err(UnusableObject::MemberOnly(document, fact));
        }
        _ => {
            if let Some(metadata) = document.get_mut("metadata").and_then(Value::as_object_mut)
                && !name.namespace.is_empty()
            {
                metadata.insert("namespace".to_owned(), name.namespace.as_ref().into());
            }
            let [group, kind] = ConfigKind::shared_names(&group, &kind);
            let (namespace, name) = (Arc::clone(&name.namespace), Arc::clone(&name.name));
            let key = ObjectKey { kind, group, namespace, name };
            return Ok((ObjectId::from_key(&key), StoreObject::Other(document.into())));
        }
    };
    Ok((ObjectId { group: group.into(), kind: kind.into(), name }, object))
}

fn secret(document: &Value, name: ObjectName) -> Result<WatchedSecret, UnusableObject> {
    let metadata = document.get("metadata").unwrap_or(&Value::Null);
    let text = |field: &str| metadata.get(field).and_then(Value::as_str);
    let created = text("creationTimestamp");
    Ok(WatchedSecret {
        name,
        labels: strings(metadata.get("labels"), "metadata.labels")?,
        annotations: strings(metadata.get("annotations"), "metadata.annotations")?,
        created: created.and_then(|time| time.parse().ok()),
        uid: text("uid").filter(|uid| !uid.is_empty()).map(Into::into),
        secret_type: document["type"].as_str().unwrap_or_default().to_owned(),
        source: None,
        data: secret_data(document.get("data"), document.get("stringData"))?,
        profile: None,
        decision: None,
    })
}

/// Reads a ClusterProfile. `spec` and `status` have no invalid form.
fn profile(document: &Value, name: ObjectName) -> Result<WatchedSecret, UnusableObject> {
    let profile = ClusterProfile::read(&document["spec"], &document["status"]);
    let metadata = json!({ "metadata": document["metadata"] });
    Ok(WatchedSecret { profile: Some(Arc::new(profile)), ..secret(&metadata, name)? })
}

fn decision(document: &Value, name: ObjectName) -> Result<WatchedSecret, UnusableObject> {
    let metadata = json!({ "metadata": document["metadata"] });
    let read = secret(&metadata, name)?;
    let decision =
        PlacementDecision::read(&read.labels, &read.name.namespace, &document["decisions"]);
    Ok(WatchedSecret { decision: Some(Arc::new(decision)), ..read })
}

/// Decodes a Secret's data. Errors never quote it.
pub(super) fn secret_data(
    data: Option<&Value>,
    string_data: Option<&Value>,
) -> Result<BTreeMap<String, Redacted<Vec<u8>>>, UnusableObject> {
    let mut decoded = BTreeMap::new();
    for (key, value) in strings(data, "data")? {
        let joined: String = value.split_ascii_whitespace().collect();
        let bytes = STANDARD.decode(joined).map_err(|_| {
            UnusableObject::Invalid(format!("data.{} is not base64", key.escape_debug()))
        })?;
        decoded.insert(key, Redacted::new(bytes));
    }
    for (key, value) in strings(string_data, "stringData")? {
        decoded.insert(key, Redacted::new(value.into_bytes()));
    }
    Ok(decoded)
}

/// Parses a map of strings; an absent one is empty.
pub(super) fn strings(
    value: Option<&Value>,
    field: &str,
) -> Result<BTreeMap<String, String>, UnusableObject> {
    let map = match value {
        None | Some(Value::Null) => return Ok(BTreeMap::new()),
        Some(Value::Object(map)) => map,
        Some(_) => return Err(UnusableObject::Invalid(format!("{field} is not a map"))),
    };
    map.iter()
        .map(|(key, value)| match value {
            Value::String(text) => Ok((key.clone(), text.clone())),
            _ => Err(UnusableObject::Invalid(format!(
                "{field}.{} is not a string",
                key.escape_debug()
            ))),
        })
        .collect()
}
