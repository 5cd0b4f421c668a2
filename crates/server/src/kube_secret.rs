//! A Secret of the config cluster, as those read it that keep something there.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use strait_kube_client::{ApiClient, ApiError, null_as_default};

/// What is read of it.
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
    /// The one of that name; `None` where there is none.
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

    /// The bytes of a key; `None` where it has no such key, an error where they can't be decoded.
    pub(super) fn part(&self, key: &str) -> Option<Result<Vec<u8>, base64::DecodeError>> {
        Some(BASE64.decode(self.data.get(key)?))
    }

    /// Which version of the object this is.
    pub(super) fn version(self) -> String {
        self.metadata.resource_version
    }

    /// One with these parts.
    #[cfg(test)]
    pub(super) fn of(parts: &[(&str, &str)]) -> Self {
        let encoded = parts.iter().map(|(key, text)| ((*key).to_owned(), BASE64.encode(text)));
        Self { data: encoded.collect(), metadata: KubeSecretMetadata::default() }
    }
}

/// One of ours, with these bytes of one key.
pub(super) fn object(namespace: &str, name: &str, (key, content): (&str, &[u8])) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": { "name": name, "namespace": namespace, "labels": { "app.kubernetes.io/managed-by": "strait" } },
        "data": { key: BASE64.encode(content) },
    })
}

/// Writes it: a new one, or in the place of the version that was read.
///
/// # Errors
/// Those of the API server; 409 where somebody else was faster.
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

/// Where Secrets of a namespace are.
pub(super) fn all_of(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/secrets")
}

/// Where one is.
pub(super) fn path(namespace: &str, name: &str) -> String {
    format!("{}/{name}", all_of(namespace))
}
