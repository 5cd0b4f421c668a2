//! Checks whether the fields of a Secret form a usable credential; defines the trait of readers of member Secrets.

use std::fmt;
use std::time::SystemTime;

use tokio::sync::watch;

use super::{IdentityError, SpiffeId, pem, tls};
use strait_model::ClusterId;
use strait_model::credential::{Credential, CredentialName, CredentialPart, CredentialState};

/// The fields of a Secret that can be part of a credential, as PEM.
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

/// Builds a credential from the fields of a Secret. Messages name the Secret as `origin`.
///
/// # Errors
/// If a required field is missing or is not PEM, the key does not belong to the certificate, or the
/// certificate is not valid at `now`.
pub fn read_credential(
    part: CredentialPart,
    fields: &SecretFields,
    origin: &str,
    now: SystemTime,
) -> Result<Credential, IdentityError> {
    let lacks = |wanted| IdentityError::Pem { origin: origin.to_owned(), wanted };
    match part {
        CredentialPart::Pair => {
            let chain = fields.certificate.as_deref();
            let chain = chain.ok_or_else(|| lacks("tls.crt (or cert)"))?;
            let key = fields.key.as_deref().ok_or_else(|| lacks("tls.key (or key)"))?;
            let parsed = pem::certificates(chain, origin)?;
            let loaded = pem::private_key(key, origin)?;
            // Envoy relies on the label.
            let key = pem::with_fitting_label(key, &loaded);
            tls::certified_key(parsed, loaded, [origin, origin], now)?;
            Ok(Credential::Pair { chain: chain.to_vec(), key })
        }
        CredentialPart::Roots => {
            let roots = fields.roots.as_deref();
            let roots = roots.ok_or_else(|| lacks("ca.crt (or cacert)"))?;
            pem::certificates(roots, origin)?;
            // An unreadable revocation list would admit clients with revoked certificates.
            let revoked = fields.revoked.as_deref();
            revoked.map(|lists| pem::revocation_lists(lists, origin)).transpose()?;
            Ok(Credential::Roots { roots: roots.to_vec(), revoked: revoked.map(<[u8]>::to_vec) })
        }
    }
}

/// Reads Secrets of members for the gateways that run there.
pub trait CredentialRegistry: fmt::Debug + Send + Sync {
    /// Watches a credential of a member for a proxy that runs there under `account`. The Secret is read until the last
    /// receiver is dropped, and only while the account itself has the right to list the Secrets in
    /// its namespace.
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
    use crate::testing::Ca;

    #[test]
    fn only_a_currently_valid_pair_is_accepted() {
        let now = SystemTime::now();
        let issued = |ca: &Ca| {
            let authority = crate::Authority::new(&ca.files, "test", now).expect("a CA");
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
            read_credential(CredentialPart::Pair, fields, "secret edge/a", now)
        };
        assert!(pair(&fields(&chain, &key), now).is_ok());
        let text = String::from_utf8(key.clone()).expect("text");
        let mislabelled = text.replace("PRIVATE KEY", "RSA PRIVATE KEY").into_bytes();
        for (given, is_unchanged) in [(&key, true), (&mislabelled, false)] {
            let found = pair(&fields(&chain, given), now).expect("whatever the label");
            let Credential::Pair { key: sent, .. } = found else { panic!("a pair") };
            assert_eq!(sent == *given, is_unchanged);
            assert!(String::from_utf8(sent).expect("text").contains("BEGIN PRIVATE KEY"));
        }
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
        let read_roots = |fields: &SecretFields| {
            read_credential(CredentialPart::Roots, fields, "secret edge/a", now)
        };
        assert!(read_roots(&roots).is_ok());
        assert!(read_roots(&SecretFields::default()).is_err());
        let with = |list: &[u8]| SecretFields { revoked: Some(list.to_vec()), ..roots.clone() };
        let list = ca.revocation_list(&[7]);
        let found = read_roots(&with(list.as_bytes())).expect("a revocation list");
        let revoked = Some(list.clone().into_bytes());
        assert_eq!(found, Credential::Roots { roots: chain, revoked });
        let broken = list.replace("X509 CRL", "CERTIFICATE");
        for bad in ["", "nonsense", &broken, &list[..list.len() / 2]] {
            let error = read_roots(&with(bad.as_bytes())).expect_err(bad).to_string();
            assert!(error.contains("revoked certificates"), "{error}");
        }
        assert!(
            !format!("{:?} {:?}", roots, read_roots(&roots)).contains("BEGIN"),
            "keys in a log"
        );
    }
}
