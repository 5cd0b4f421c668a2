//! Certificates that gateways request by name: what a name stands for, and the state of the credential found under it.
//!
//! Knows neither Kubernetes nor xDS: the readers of Secrets and the senders of secrets exchange these values.

use std::fmt;
use std::sync::Arc;

use crate::Namespace;
use strait_base::codes::Code;

/// A name without a namespace is of the gateway's own.
const KUBERNETES: &str = "kubernetes://";
/// A name as Gateways have it, always with its namespace.
const GATEWAY: &str = "kubernetes-gateway://";
/// The end of a name of which the roots alone are meant.
pub const ROOTS_SUFFIX: &str = "-cacert";
/// The longest name of a Secret, in bytes.
const NAME_BYTES_MAX: usize = 253;

/// What a gateway asks for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CredentialName {
    /// The namespace of the Secret.
    pub namespace: Namespace,
    /// Its name, without [`ROOTS_SUFFIX`].
    pub name: Arc<str>,
    /// What of it.
    pub part: CredentialPart,
}

/// What of a Secret is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CredentialPart {
    /// A certificate chain with its key.
    Pair,
    /// The roots that clients must chain to.
    Roots,
}

/// The name of the resource for a Secret of the gateway's own namespace; one that is such a name already stays.
pub fn resource_name(secret: &str) -> String {
    if secret.starts_with(KUBERNETES) || secret.starts_with(GATEWAY) {
        secret.to_owned()
    } else {
        format!("{KUBERNETES}{secret}")
    }
}

impl CredentialName {
    /// Reads the name of a resource that a proxy of namespace `own` asks for; `None` for all that names no Secret.
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

/// What a gateway is given.
#[derive(Clone, PartialEq, Eq)]
pub enum Credential {
    /// A chain, leaf first, and the leaf's key: PEM, as they stand in the Secret.
    Pair {
        /// The chain.
        chain: Vec<u8>,
        /// The key.
        key: Vec<u8>,
    },
    /// Whom clients must chain to.
    Roots {
        /// Certificates, PEM.
        roots: Vec<u8>,
        /// What these have revoked, PEM, where that is said.
        revoked: Option<Vec<u8>>,
    },
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pair { .. } => "Pair(..)",
            Self::Roots { .. } => "Roots(..)",
        })
    }
}

/// Why a gateway is given nothing, or nothing newer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CredentialTrouble {
    /// The page about it.
    pub code: &'static Code,
    /// The facts.
    pub fact: String,
}

/// What is known of a credential.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CredentialState {
    /// What may be sent. What a proxy holds it keeps, whatever becomes of this.
    pub current: Option<Arc<Credential>>,
    /// Why there is nothing, or nothing newer.
    pub trouble: Option<CredentialTrouble>,
    /// Whether it was looked for at all.
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
