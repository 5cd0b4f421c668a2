//! Certificates that gateways ask for by name: what a name stands for, and whether what was found under it is of use.
//!
//! Knows neither Kubernetes nor xDS: who reads Secrets and who sends them speak of them in these values.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::watch;

use super::{IdentityError, SpiffeId, pem, tls};
use crate::codes::Code;
use crate::model::{ClusterId, Namespace};

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

/// What a Secret holds, as far as it is a credential: PEM.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SecretFields {
    /// `tls.crt`, or `cert`.
    pub certificate: Option<Vec<u8>>,
    /// `tls.key`, or `key`.
    pub key: Option<Vec<u8>>,
    /// `ca.crt`, or `cacert`.
    pub roots: Option<Vec<u8>>,
    /// `ca.crl`, or `crl`.
    pub revoked: Option<Vec<u8>>,
}

impl fmt::Debug for SecretFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretFields(..)")
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

impl Credential {
    /// What a part of a Secret comes to; `origin` names it in messages.
    ///
    /// # Errors
    /// It lacks a part, or is no certificate, no pair, or not valid at `now`.
    pub fn of(
        part: CredentialPart,
        fields: &SecretFields,
        origin: &str,
        now: SystemTime,
    ) -> Result<Self, IdentityError> {
        let lacks = |wanted| IdentityError::Pem { origin: origin.to_owned(), wanted };
        match part {
            CredentialPart::Pair => {
                let chain = fields.certificate.as_deref();
                let chain = chain.ok_or_else(|| lacks("tls.crt (or cert)"))?;
                let key = fields.key.as_deref().ok_or_else(|| lacks("tls.key (or key)"))?;
                let parsed = pem::certificates(chain, origin)?;
                let loaded = pem::private_key(key, origin)?;
                tls::certified_key(parsed, loaded, [origin, origin], now)?;
                Ok(Self::Pair { chain: chain.to_vec(), key: key.to_vec() })
            }
            CredentialPart::Roots => {
                let roots = fields.roots.as_deref();
                let roots = roots.ok_or_else(|| lacks("ca.crt (or cacert)"))?;
                pem::certificates(roots, origin)?;
                // Without it those would be let in whose certificates are revoked.
                let revoked = fields.revoked.as_deref();
                revoked.map(|lists| pem::revocation_lists(lists, origin)).transpose()?;
                Ok(Self::Roots { roots: roots.to_vec(), revoked: revoked.map(<[u8]>::to_vec) })
            }
        }
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

/// Who reads the Secrets of members for the gateways that run there.
pub trait CredentialRegistry: fmt::Debug + Send + Sync {
    /// Follows a credential of a member, for a proxy of that account that runs there. It is read for as long as somebody
    /// holds the receiver, and only while the account itself may list the Secrets of its namespace.
    fn follow(
        &self,
        cluster: &ClusterId,
        account: &SpiffeId,
        name: &CredentialName,
    ) -> watch::Receiver<CredentialState>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::testing::Ca;

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

    #[test]
    fn only_a_pair_that_is_valid_now_is_one() {
        let now = SystemTime::now();
        let issued = |ca: &Ca| {
            let authority = crate::identity::Authority::new(&ca.files, "test", now).expect("a CA");
            let names = ["gateway.example".to_owned()];
            let pair = authority.issue_serving(&names, now).expect("it signs");
            (pair.chain.to_pem().into_bytes(), pair.key_pem().into_bytes())
        };
        let ca = Ca::new();
        let ((chain, key), (_, other)) = (issued(&ca), issued(&ca));
        let fields = |chain: &[u8], key: &[u8]| SecretFields {
            certificate: Some(chain.to_vec()),
            key: Some(key.to_vec()),
            ..SecretFields::default()
        };
        let pair = |fields: &SecretFields, now| {
            Credential::of(CredentialPart::Pair, fields, "secret edge/a", now)
        };
        assert!(pair(&fields(&chain, &key), now).is_ok());
        for (wrong, now, text) in [
            (fields(&chain, &other), now, "does not belong"),
            (fields(b"nonsense", &key), now, "holds no certificate"),
            (fields(&chain, b"nonsense"), now, "holds no private key"),
            (SecretFields::default(), now, "tls.crt"),
            (fields(&chain, &key), SystemTime::UNIX_EPOCH, "valid from"),
        ] {
            let error = pair(&wrong, now).expect_err(text).to_string();
            assert!(error.contains(text), "{error}");
        }
        let roots = SecretFields { roots: Some(chain.clone()), ..SecretFields::default() };
        let of_roots = |fields: &SecretFields| {
            Credential::of(CredentialPart::Roots, fields, "secret edge/a", now)
        };
        assert!(of_roots(&roots).is_ok());
        assert!(of_roots(&SecretFields::default()).is_err());
        let with = |list: &[u8]| SecretFields { revoked: Some(list.to_vec()), ..roots.clone() };
        let list = ca.revocation_list(&[7]);
        let found = of_roots(&with(list.as_bytes())).expect("a list of what is revoked");
        let revoked = Some(list.clone().into_bytes());
        assert_eq!(found, Credential::Roots { roots: chain, revoked });
        let broken = list.replace("X509 CRL", "CERTIFICATE");
        for bad in ["", "nonsense", &broken, &list[..list.len() / 2]] {
            let error = of_roots(&with(bad.as_bytes())).expect_err(bad).to_string();
            assert!(error.contains("revoked certificates"), "{error}");
        }
        assert!(!format!("{:?} {:?}", roots, of_roots(&roots)).contains("BEGIN"), "keys in a log");
    }
}
