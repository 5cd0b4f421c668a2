//! Name of a replica of the control plane, and its form in a certificate.

use std::fmt;
use std::sync::Arc;

use rustls_pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// Start of the URI that names a replica in its certificate. It is not a SPIFFE ID, so nothing that
/// reads SPIFFE IDs accepts the certificate.
const URI: &str = "strait://replica/";
/// Maximum length of a replica's name in bytes; pods have names of up to 253 bytes.
const NAME_MAX: usize = 253;

/// Name of a replica; in a cluster, the name of the pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaId(Arc<str>);

impl Default for ReplicaId {
    /// Returns the name of a process that has no other name.
    fn default() -> Self {
        Self("strait".into())
    }
}

impl ReplicaId {
    /// Checks a name: at most 253 bytes of `a-zA-Z0-9.-_`.
    ///
    /// # Errors
    /// If the name is empty, too long, or contains other characters.
    pub fn parse(text: &str) -> Result<Self, String> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        match (1..=NAME_MAX).contains(&text.len()) && text.bytes().all(is_plain) {
            true => Ok(Self(text.into())),
            false => Err(format!(
                "the name of a replica has at most {NAME_MAX} characters of a-z, A-Z, 0-9, '.', '-' and '_'"
            )),
        }
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns a name for this process alone, which differs after a restart.
    pub fn process_name(&self) -> String {
        format!("{}_{:016x}", self.0, rand::random::<u64>())
    }

    /// Returns the URI that names the replica in its certificate.
    pub(super) fn uri(&self) -> String {
        format!("{URI}{}", self.0)
    }

    /// Reads the name in a certificate. The certificate must contain exactly one name.
    pub(super) fn from_certificate(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
        let names = parsed.subject_alternative_name().ok()??;
        match names.value.general_names[..] {
            [GeneralName::URI(uri)] => Self::parse(uri.strip_prefix(URI)?).ok(),
            _ => None,
        }
    }
}

impl fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
