//! A Secret as an API server sends it.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::input::ReadObject;
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
                labels: owned(metadata.labels),
                annotations: owned(metadata.annotations),
                secret_type,
                source: None,
                data,
            }),
            Err(UnusableObject::Invalid(fact) | UnusableObject::MemberOnly(_, fact)) => {
                Err((name, fact))
            }
        }
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
