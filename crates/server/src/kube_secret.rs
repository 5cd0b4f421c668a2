//! A Secret of the config cluster that stores state of the control plane.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use strait_kube_client::{ApiClient, ApiError, null_as_default};

/// The decoded fields of the Secret.
#[derive(Deserialize)]
pub(super) struct KubeSecret {
    #[serde(default, deserialize_with = "null_as_default")]
    data: BTreeMap<String, String>,
    #[serde(default)]
    metadata: KubeSecretMetadata,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct KubeSecretMetadata {
    resource_version: String,
}

impl KubeSecret {
    /// Reads a Secret. Returns `None` if it does not exist.
    pub(super) async fn get(
        client: &ApiClient,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Self>, ApiError> {
        match client.get(&path(namespace, name)).await {
            Ok(secret) => Ok(Some(secret)),
            Err(ApiError::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the decoded bytes of a key, or `None` if the key does not exist.
    pub(super) fn part(&self, key: &str) -> Option<Result<Vec<u8>, base64::DecodeError>> {
        Some(BASE64.decode(self.data.get(key)?))
    }

    /// Returns the names of the keys.
    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        self.data.keys().map(String::as_str)
    }

    /// Returns the resource version.
    pub(super) fn version(self) -> String {
        self.metadata.resource_version
    }

    /// Creates a Secret with these keys.
    #[cfg(test)]
    pub(super) fn of(parts: &[(&str, &str)]) -> Self {
        let encoded = parts.iter().map(|(key, text)| ((*key).to_owned(), BASE64.encode(text)));
        Self { data: encoded.collect(), metadata: KubeSecretMetadata::default() }
    }
}

/// Builds a Secret of the control plane with one key.
pub(super) fn object(namespace: &str, name: &str, (key, content): (&str, &[u8])) -> Value {
    let mut object = empty(namespace, name);
    object["data"] = json!({ key: BASE64.encode(content) });
    object
}

/// Builds a Secret of the control plane without keys.
pub(super) fn empty(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": { "name": name, "namespace": namespace, "labels": { "app.kubernetes.io/managed-by": "strait" } },
    })
}

/// Creates a Secret, or replaces the version that was read.
///
/// # Errors
/// The errors of the API server; status 409 if another writer was faster.
pub(super) async fn write(
    client: &ApiClient,
    namespace: &str,
    name: &str,
    part: (&str, &[u8]),
    version: Option<&str>,
) -> Result<(), ApiError> {
    let mut object = object(namespace, name, part);
    let written = match version {
        None => client.create::<IgnoredAny>(&all_of(namespace), &object).await,
        Some(version) => {
            object["metadata"]["resourceVersion"] = json!(version);
            client.replace::<IgnoredAny>(&path(namespace, name), &object).await
        }
    };
    written.map(drop)
}

/// Returns the path of all Secrets in a namespace.
pub(super) fn all_of(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/secrets")
}

/// Returns the path of a Secret.
pub(super) fn path(namespace: &str, name: &str) -> String {
    format!("{}/{name}", all_of(namespace))
}
