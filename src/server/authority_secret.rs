//! The built-in CA of a server without a disk, kept in a Secret of the config cluster.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::apiserver::{Access, Client, Error as ApiError};
use crate::identity::{AuthorityPem, AuthorityStore, Error, StoreTrouble};

/// The Secret's name, in the system namespace.
const NAME: &str = "strait-ca";

/// See the module's description.
pub(super) struct SecretStore {
    access: Access,
    namespace: String,
}

#[derive(Deserialize)]
struct Secret {
    #[serde(default)]
    data: BTreeMap<String, String>,
}

impl SecretStore {
    pub(super) fn new(access: Access, namespace: String) -> Self {
        Self { access, namespace }
    }

    fn client(&self) -> Result<Client, Error> {
        Client::new(&self.access).map_err(|error| Error::Store {
            reason: error.to_string(),
            trouble: StoreTrouble::Unusable,
        })
    }

    fn failed(&self, error: &ApiError) -> Error {
        let trouble = match error {
            ApiError::Unauthorized(_) | ApiError::Forbidden(_) => StoreTrouble::NoRights,
            ApiError::Unreachable(_)
            | ApiError::Tls(_)
            | ApiError::Silent { .. }
            | ApiError::Broken { .. } => StoreTrouble::Unreachable,
            _ => StoreTrouble::Unusable,
        };
        let (namespace, server) = (&self.namespace, &self.access.server);
        let reason = format!("Secret {namespace}/{NAME} of the config cluster ({server}): {error}");
        Error::Store { reason, trouble }
    }
}

impl AuthorityStore for SecretStore {
    async fn load(&self) -> Result<Option<AuthorityPem>, Error> {
        let path = format!("/api/v1/namespaces/{}/secrets/{NAME}", self.namespace);
        let secret: Secret = match self.client()?.get(&path).await {
            Ok(secret) => secret,
            Err(ApiError::NotFound(_)) => return Ok(None),
            Err(error) => return Err(self.failed(&error)),
        };
        let text = |key: &str| -> Result<String, Error> {
            let lacks = || Error::Store {
                reason: format!("Secret {}/{NAME} has no usable key {key}", self.namespace),
                trouble: StoreTrouble::Unusable,
            };
            let bytes = BASE64.decode(secret.data.get(key).ok_or_else(lacks)?);
            bytes.ok().and_then(|bytes| String::from_utf8(bytes).ok()).ok_or_else(lacks)
        };
        let [ca_cert, ca_key, cert_chain, root_cert] = AuthorityPem::FILES;
        Ok(Some(AuthorityPem {
            ca_cert: text(ca_cert)?,
            ca_key: text(ca_key)?,
            cert_chain: text(cert_chain)?,
            root_cert: text(root_cert)?,
        }))
    }

    async fn create(&self, new: &AuthorityPem) -> Result<bool, Error> {
        let texts = [&new.ca_cert, &new.ca_key, &new.cert_chain, &new.root_cert];
        let data: BTreeMap<&str, String> = AuthorityPem::FILES
            .into_iter()
            .zip(texts)
            .map(|(name, text)| (name, BASE64.encode(text)))
            .collect();
        let secret = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": { "name": NAME, "namespace": self.namespace },
            "data": data,
        });
        let path = format!("/api/v1/namespaces/{}/secrets", self.namespace);
        match self.client()?.create::<Value>(&path, &secret).await {
            Ok(_) => Ok(true),
            Err(ApiError::Rejected(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(self.failed(&error)),
        }
    }
}
