//! The built-in CA of a server without a state directory, stored in a Secret of the config cluster.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use super::kube_secret::{KubeSecret, all_of};
use strait_identity::{AuthorityForm, AuthorityPem, AuthorityStore, IdentityError, StoreTrouble};
use strait_kube_client::{Access, ApiClient, ApiError};

/// The Secret's name, in the system namespace.
const NAME: &str = "strait-ca";

/// Store of the CA in the Secret.
pub(super) struct SecretStore {
    access: Access,
    namespace: String,
}

impl SecretStore {
    pub(super) fn new(access: Access, namespace: String) -> Self {
        Self { access, namespace }
    }

    fn client(&self) -> Result<ApiClient, IdentityError> {
        ApiClient::new(&self.access).map_err(|error| IdentityError::Store {
            reason: error.to_string(),
            trouble: StoreTrouble::Unusable,
        })
    }

    fn failed(&self, error: &ApiError) -> IdentityError {
        failed(&self.access, &self.namespace, NAME, error)
    }
}

/// Converts an error of the API server about a Secret of a CA.
pub(super) fn failed(
    access: &Access,
    namespace: &str,
    name: &str,
    error: &ApiError,
) -> IdentityError {
    let trouble = match error {
        ApiError::Unauthorized(_) | ApiError::Forbidden(_) => StoreTrouble::NoRights,
        ApiError::Unreachable(_)
        | ApiError::Tls(_)
        | ApiError::Silent { .. }
        | ApiError::Broken { .. } => StoreTrouble::Unreachable,
        _ => StoreTrouble::Unusable,
    };
    let server = &access.server;
    let reason = format!("Secret {namespace}/{name} of the config cluster ({server}): {error}");
    IdentityError::Store { reason, trouble }
}

impl AuthorityStore for SecretStore {
    async fn load(&self) -> Result<Option<AuthorityPem>, IdentityError> {
        let read = KubeSecret::get(&self.client()?, &self.namespace, NAME).await;
        let Some(secret) = read.map_err(|error| self.failed(&error))? else { return Ok(None) };
        let text = |key: &str| -> Result<String, IdentityError> {
            let lacks = || IdentityError::Store {
                reason: format!("Secret {}/{NAME} has no usable key {key}", self.namespace),
                trouble: StoreTrouble::Unusable,
            };
            let bytes = secret.part(key).and_then(Result::ok);
            bytes.and_then(|bytes| String::from_utf8(bytes).ok()).ok_or_else(lacks)
        };
        let [ca_cert, ca_key, cert_chain, root_cert] = AuthorityPem::FILES;
        Ok(Some(AuthorityPem {
            ca_cert: text(ca_cert)?,
            ca_key: text(ca_key)?,
            cert_chain: text(cert_chain)?,
            root_cert: text(root_cert)?,
            form: AuthorityForm::Istio,
        }))
    }

    async fn create(&self, new: &AuthorityPem) -> Result<bool, IdentityError> {
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
        match self.client()?.create::<Value>(&all_of(&self.namespace), &secret).await {
            Ok(_) => Ok(true),
            Err(ApiError::Rejected(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(self.failed(&error)),
        }
    }
}
