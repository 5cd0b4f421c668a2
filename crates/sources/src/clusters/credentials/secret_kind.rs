//! The decoded parts of a Secret.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use strait_identity::credential::SecretFields;
use strait_kube_client::{
    Form, Identity, Keyed, Meta, NamespacedName, ObjectKind, null_as_default,
};

/// Secrets that contain credentials. Other Secrets are not stored.
pub(super) struct SecretKind;

/// The stored parts of a Secret.
#[derive(Debug)]
pub(super) struct StoredSecret {
    key: NamespacedName,
    pub(super) fields: SecretFields,
}

impl Keyed for StoredSecret {
    fn key(&self) -> NamespacedName {
        self.key.clone()
    }

    fn weight(&self) -> usize {
        let SecretFields { certificate, key, roots, revoked } = &self.fields;
        let bytes =
            [certificate, key, roots, revoked].into_iter().flatten().map(Vec::len).sum::<usize>();
        size_of::<Self>() + bytes
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct SecretForm<'a> {
    #[serde(borrow, deserialize_with = "null_as_default")]
    metadata: Meta<'a>,
    #[serde(deserialize_with = "null_as_default")]
    data: CredentialKeys,
}

/// The data keys of certificates in Secrets: the keys of Kubernetes, and the older ones of Istio.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CredentialKeys {
    #[serde(rename = "tls.crt")]
    tls_certificate: Option<String>,
    #[serde(rename = "tls.key")]
    tls_key: Option<String>,
    #[serde(rename = "ca.crt")]
    tls_roots: Option<String>,
    #[serde(rename = "ca.crl")]
    tls_revoked: Option<String>,
    cert: Option<String>,
    key: Option<String>,
    cacert: Option<String>,
    crl: Option<String>,
}

impl<'a> Form<'a> for SecretForm<'a> {
    fn identity(&self) -> Identity<'_> {
        self.metadata.identity()
    }
}

impl ObjectKind for SecretKind {
    type ObjectForm<'a> = SecretForm<'a>;
    type Stored = StoredSecret;
    type List = Vec<StoredSecret>;

    const PROTOBUF: bool = false;

    fn convert(&self, form: SecretForm<'_>) -> StoredSecret {
        let Identity { namespace, name, .. } = form.metadata.identity();
        let key = NamespacedName { namespace: namespace.into(), name: name.into() };
        let CredentialKeys {
            tls_certificate,
            tls_key,
            tls_roots,
            tls_revoked,
            cert,
            key: own_key,
            cacert,
            crl,
        } = form.data;
        // Invalid base64 becomes an empty value, which is reported as an invalid certificate.
        let bytes = |text: Option<String>, other: Option<String>| {
            text.or(other).map(|text| STANDARD.decode(text).unwrap_or_default())
        };
        let fields = SecretFields {
            certificate: bytes(tls_certificate, cert),
            key: bytes(tls_key, own_key),
            roots: bytes(tls_roots, cacert),
            // An empty list counts as absent; invalid base64 stays, so that it is refused.
            revoked: tls_revoked
                .or(crl)
                .filter(|text| !text.is_empty())
                .map(|text| STANDARD.decode(&text).unwrap_or_else(|_| text.into_bytes())),
        };
        StoredSecret { key, fields }
    }
}
