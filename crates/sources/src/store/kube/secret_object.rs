//! A Secret as an API server sends it.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::input::ReadObject;
use crate::members::placement::PlacementDecision;
use crate::members::profile::ClusterProfile;
use crate::store::object::{self, UnusableObject};
use crate::store::{ObjectName, WatchedSecret};
use strait_kube_client::{NamespacedName, ObjectMetadata, OwnedObject, null_as_default};

/// Data is not parsed into types, so that an error never quotes it.
#[derive(Deserialize)]
pub(in crate::store) struct SecretObject {
    #[serde(default)]
    metadata: ObjectMetadata,
    #[serde(default, rename = "type", deserialize_with = "null_as_default")]
    secret_type: String,
    #[serde(default)]
    data: Value,
}

impl OwnedObject for SecretObject {
    fn metadata(&self) -> &ObjectMetadata {
        &self.metadata
    }
}

impl SecretObject {
    /// Returns the Secret.
    ///
    /// # Errors
    /// Returns its name and the problem with its data.
    pub(in crate::store) fn read(self) -> Result<WatchedSecret, (ObjectName, String)> {
        let Self { metadata, secret_type, data } = self;
        let name = object_name(&metadata.key());
        match object::secret_data(Some(&data), None) {
            Ok(data) => Ok(WatchedSecret {
                name,
                created: metadata.creation_timestamp.parse().ok(),
                uid: Some(metadata.uid).filter(|uid| !uid.is_empty()),
                labels: owned(metadata.labels),
                annotations: owned(metadata.annotations),
                secret_type,
                source: None,
                data,
                profile: None,
                decision: None,
            }),
            Err(UnusableObject::Invalid(fact) | UnusableObject::MemberOnly(_, fact)) => {
                Err((name, fact))
            }
        }
    }
}

/// A ClusterProfile as an API server sends it.
#[derive(Deserialize)]
pub(in crate::store) struct ProfileObject {
    #[serde(default)]
    metadata: ObjectMetadata,
    #[serde(default)]
    spec: Value,
    #[serde(default)]
    status: Value,
}

impl OwnedObject for ProfileObject {
    fn metadata(&self) -> &ObjectMetadata {
        &self.metadata
    }
}

/// An object that defines members, or limits them.
pub(in crate::store) trait MemberDefinition: OwnedObject {
    /// Returns the object.
    ///
    /// # Errors
    /// Returns its name and the problem with its content.
    fn read_definition(self) -> Result<WatchedSecret, (ObjectName, String)>;
}

impl MemberDefinition for SecretObject {
    fn read_definition(self) -> Result<WatchedSecret, (ObjectName, String)> {
        self.read()
    }
}

impl MemberDefinition for ProfileObject {
    fn read_definition(self) -> Result<WatchedSecret, (ObjectName, String)> {
        let Self { metadata, spec, status } = self;
        Ok(WatchedSecret {
            name: object_name(&metadata.key()),
            created: metadata.creation_timestamp.parse().ok(),
            uid: Some(metadata.uid).filter(|uid| !uid.is_empty()),
            labels: owned(metadata.labels),
            annotations: owned(metadata.annotations),
            profile: Some(Arc::new(ClusterProfile::read(&spec, &status))),
            ..WatchedSecret::default()
        })
    }
}

/// A PlacementDecision as an API server sends it.
#[derive(Deserialize)]
pub(in crate::store) struct DecisionObject {
    #[serde(default)]
    metadata: ObjectMetadata,
    #[serde(default)]
    decisions: Value,
}

impl OwnedObject for DecisionObject {
    fn metadata(&self) -> &ObjectMetadata {
        &self.metadata
    }
}

impl MemberDefinition for DecisionObject {
    fn read_definition(self) -> Result<WatchedSecret, (ObjectName, String)> {
        let name = object_name(&self.metadata.key());
        let labels = owned(self.metadata.labels);
        let decision = PlacementDecision::read(&labels, &name.namespace, &self.decisions);
        let decision = Some(Arc::new(decision));
        Ok(WatchedSecret { name, labels, decision, ..WatchedSecret::default() })
    }
}

impl From<SecretObject> for ReadObject {
    fn from(object: SecretObject) -> Self {
        match object.read() {
            Ok(secret) => Self::Secret(secret),
            Err((name, fact)) => Self::Unusable(name, fact),
        }
    }
}

/// Returns labels or annotations as owned strings.
pub(super) fn owned(map: BTreeMap<Arc<str>, Arc<str>>) -> BTreeMap<String, String> {
    map.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
}

/// Returns the name of an object.
pub(super) fn object_name(key: &NamespacedName) -> ObjectName {
    ObjectName { namespace: Arc::clone(&key.namespace), name: Arc::clone(&key.name) }
}
