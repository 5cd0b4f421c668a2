//! Certificates that gateways request by name: the meaning of a name, and the state of the
//! credential found under it.
//!
//! This module knows neither Kubernetes nor xDS: readers of Secrets and senders of secrets exchange
//! these values.

use std::fmt;
use std::sync::Arc;

use crate::Namespace;
use strait_base::codes::Code;

/// Prefix of a name; without a namespace, the Secret is in the gateway's namespace.
const KUBERNETES: &str = "kubernetes://";
/// Prefix of a name in the form of the Gateway API, which always has a namespace.
const GATEWAY: &str = "kubernetes-gateway://";
/// Suffix of a name that requests only the trust roots of the Secret.
pub const ROOTS_SUFFIX: &str = "-cacert";
/// The longest name of a Secret, in bytes.
const NAME_BYTES_MAX: usize = 253;

/// The name of a credential that a gateway requests.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CredentialName {
    /// The namespace of the Secret.
    pub namespace: Namespace,
    /// The name of the Secret, without [`ROOTS_SUFFIX`].
    pub name: Arc<str>,
    /// The requested part of the Secret.
    pub part: CredentialPart,
}

/// The part of a Secret that a gateway requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CredentialPart {
    /// A certificate chain with its key.
    Pair,
    /// The trust roots for client certificates.
    Roots,
}

/// Returns the resource name for a Secret in the gateway's namespace. A text that already is a
/// resource name is returned unchanged.
pub fn resource_name(secret: &str) -> String {
    if secret.starts_with(KUBERNETES) || secret.starts_with(GATEWAY) {
        secret.to_owned()
    } else {
        format!("{KUBERNETES}{secret}")
    }
}

impl CredentialName {
    /// Parses a resource name that a proxy of namespace `own` requests. Returns `None` if it names
    /// no Secret.
    pub fn parse(text: &str, own: &Namespace) -> Option<Self> {
        let (namespace, name) = match (text.strip_prefix(KUBERNETES), text.strip_prefix(GATEWAY)) {
            (Some(rest), _) => rest.split_once('/').unwrap_or((own.as_str(), rest)),
            (None, Some(rest)) => rest.split_once('/')?,
            (None, None) => return None,
        };
        let (name, part) = match name.strip_suffix(ROOTS_SUFFIX) {
            Some(name) => (name, CredentialPart::Roots),
            None => (name, CredentialPart::Pair),
        };
        let is_name = |text: &str| {
            let plain =
                |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.';
            !text.is_empty() && text.len() <= NAME_BYTES_MAX && text.bytes().all(plain)
        };
        (is_name(namespace) && is_name(name)).then(|| Self {
            namespace: namespace.into(),
            name: name.into(),
            part,
        })
    }
}

impl fmt::Display for CredentialName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { namespace, name, part } = self;
        match part {
            CredentialPart::Pair => write!(f, "{namespace}/{name}"),
            CredentialPart::Roots => write!(f, "{namespace}/{name}{ROOTS_SUFFIX}"),
        }
    }
}

/// The content of a credential, as a gateway receives it.
#[derive(Clone, PartialEq, Eq)]
pub enum Credential {
    /// A certificate chain, leaf first, and the key of the leaf, as PEM from the Secret. The label
    /// of the key fits its content.
    Pair {
        /// The chain.
        chain: Vec<u8>,
        /// The key.
        key: Vec<u8>,
    },
    /// The trust roots for client certificates.
    Roots {
        /// Certificates, PEM.
        roots: Vec<u8>,
        /// Their certificate revocation lists, PEM, if the Secret has any.
        revoked: Option<Vec<u8>>,
    },
}

impl Credential {
    /// Returns the size of the PEM texts in bytes.
    pub fn size(&self) -> usize {
        match self {
            Self::Pair { chain, key } => chain.len() + key.len(),
            Self::Roots { roots, revoked } => roots.len() + revoked.as_ref().map_or(0, Vec::len),
        }
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pair { .. } => "Pair(..)",
            Self::Roots { .. } => "Roots(..)",
        })
    }
}

/// Why no credential, or no newer one, can be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CredentialTrouble {
    /// The error code.
    pub code: &'static Code,
    /// The facts.
    pub fact: String,
}

/// The state of a credential.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CredentialState {
    /// The credential to send. A proxy keeps the credential that it has if this becomes `None`.
    pub current: Option<Arc<Credential>>,
    /// Why no credential, or no newer one, is available.
    pub trouble: Option<CredentialTrouble>,
    /// Whether the Secret has been read, found or not.
    pub settled: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_secrets_are_read_in_each_form() {
        let own = Namespace::from("edge");
        for (text, expected) in [
            ("kubernetes://shop-tls", Some("edge/shop-tls")),
            ("kubernetes://shop-tls-cacert", Some("edge/shop-tls-cacert")),
            ("kubernetes://edge/shop-tls", Some("edge/shop-tls")),
            ("kubernetes-gateway://other/shop.tls", Some("other/shop.tls")),
            ("kubernetes-gateway://shop-tls", None),
            ("kubernetes://", None),
            ("kubernetes://-cacert", None),
            ("kubernetes://a/b/c", None),
            ("kubernetes://Up", None),
            ("kubernetes://a?limit=1", None),
            ("default", None),
            ("builtin://", None),
        ] {
            let found = CredentialName::parse(text, &own);
            assert_eq!(found.map(|name| name.to_string()).as_deref(), expected, "{text}");
        }
    }
}
