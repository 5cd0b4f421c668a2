//! Identity of a peer: the only SPIFFE ID in its certificate.
//!
//! The parser accepts exactly the form that the mesh uses, because every later authorization
//! compares these three names. [`super::tls`] decides whether the certificate is trusted.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls_pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

pub use super::error::SpiffeIdError;
use super::error::{BACKDATING, IdentityError};
use super::{member_mark, proof_time};
use strait_base::dns_name::{is_dns_label, is_dns_subdomain};
use strait_model::{ClusterId, Namespace, is_trust_domain};

/// A workload identity: `spiffe://<trust domain>/ns/<namespace>/sa/<service account>`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpiffeId {
    trust_domain: Arc<str>,
    namespace: Namespace,
    service_account: Arc<str>,
}

impl SpiffeId {
    /// Maximum length of a URI in bytes (SPIFFE ID, section 2.3).
    pub const LENGTH_MAX: usize = 2048;

    /// Creates an ID after checking each part: at most 255 bytes of `a-z0-9.-_`, a DNS label, a DNS
    /// subdomain.
    pub fn new(
        trust_domain: &str,
        namespace: &str,
        service_account: &str,
    ) -> Result<Self, SpiffeIdError> {
        if !is_trust_domain(trust_domain) {
            return Err(SpiffeIdError::TrustDomain);
        }
        if !is_dns_label(namespace) {
            return Err(SpiffeIdError::Namespace);
        }
        if !is_dns_subdomain(service_account) {
            return Err(SpiffeIdError::ServiceAccount);
        }
        Ok(Self {
            trust_domain: trust_domain.into(),
            namespace: namespace.into(),
            service_account: service_account.into(),
        })
    }

    /// Returns the trust domain, within which the other two names are unique.
    pub fn trust_domain(&self) -> &str {
        &self.trust_domain
    }

    /// Returns the workload's namespace.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Returns the workload's service account.
    pub fn service_account(&self) -> &str {
        &self.service_account
    }

    /// Returns the identity in a certificate. Names of other kinds than URIs are ignored.
    pub fn from_certificate(certificate: &CertificateDer<'_>) -> Result<Self, SpiffeIdError> {
        let (_, parsed) =
            X509Certificate::from_der(certificate).map_err(|_| SpiffeIdError::Malformed)?;
        let names = parsed
            .subject_alternative_name()
            .map_err(|_| SpiffeIdError::Malformed)?
            .map_or(&[][..], |names| &names.value.general_names);
        let mut uris = Vec::new();
        for name in names {
            match name {
                GeneralName::URI(uri) => uris.push(*uri),
                // Another parser could read it as a URI.
                GeneralName::Invalid(..) => return Err(SpiffeIdError::Malformed),
                _ => {}
            }
        }
        match uris[..] {
            [uri] => uri.parse(),
            _ => Err(SpiffeIdError::UriCount(uris.len())),
        }
    }
}

impl FromStr for SpiffeId {
    type Err = SpiffeIdError;

    fn from_str(uri: &str) -> Result<Self, SpiffeIdError> {
        if uri.len() > Self::LENGTH_MAX {
            return Err(SpiffeIdError::TooLong(uri.len()));
        }
        let path = uri.strip_prefix("spiffe://").ok_or(SpiffeIdError::Form)?;
        let parts: Vec<_> = path.split('/').collect();
        match parts[..] {
            [trust_domain, "ns", namespace, "sa", service_account] => {
                Self::new(trust_domain, namespace, service_account)
            }
            _ => Err(SpiffeIdError::Form),
        }
    }
}

impl fmt::Display for SpiffeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { trust_domain, namespace, service_account } = self;
        write!(f, "spiffe://{trust_domain}/ns/{namespace}/sa/{service_account}")
    }
}

/// A peer with a verified certificate; accompanies its requests.
#[derive(Clone)]
pub struct PeerIdentity {
    id: SpiffeId,
    not_after: SystemTime,
    /// When a token last proved the identity, if the certificate records it.
    proved: Option<SystemTime>,
    /// The cluster that the certificate proves, if it contains one.
    cluster: Option<ClusterId>,
    chain: Arc<[CertificateDer<'static>]>,
}

impl PeerIdentity {
    /// Reads the identity from a verified chain, leaf first.
    ///
    /// # Errors
    /// If the leaf has no single identity, or an invalid extension of this control plane.
    pub(super) fn from_chain(chain: &[CertificateDer<'_>]) -> Result<Self, IdentityError> {
        let leaf = chain.first().ok_or(IdentityError::NoPeerCertificate)?;
        Ok(Self {
            id: SpiffeId::from_certificate(leaf)?,
            not_after: validity(leaf).ok_or(SpiffeIdError::Malformed)?.1,
            proved: proof_time::read(leaf)?,
            cluster: member_mark::read(leaf)?,
            chain: chain.iter().map(|certificate| certificate.clone().into_owned()).collect(),
        })
    }

    /// Returns the identity.
    pub fn id(&self) -> &SpiffeId {
        &self.id
    }

    /// Returns the expiry of the certificate; a connection must not outlive it for long.
    pub fn not_after(&self) -> SystemTime {
        self.not_after
    }

    /// Returns the time of issuance, if the certificate was issued by this control plane.
    pub fn issued(&self) -> Option<SystemTime> {
        let (begins, _) = validity(self.chain.first()?)?;
        Some(begins + BACKDATING)
    }

    /// Returns the time when a token last proved the identity, if the certificate records it.
    pub(super) fn proved(&self) -> Option<SystemTime> {
        self.proved
    }

    /// Returns the cluster that the certificate proves, if it contains one.
    pub fn cluster(&self) -> Option<ClusterId> {
        self.cluster.clone()
    }

    /// Returns the presented chain, leaf first, to be verified again when the roots change.
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.chain
    }
}

impl fmt::Debug for PeerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} until {}", self.id, super::error::time(self.not_after))
    }
}

/// Returns start and end of a certificate's validity, or `None` if it can't be parsed.
pub(super) fn validity(certificate: &CertificateDer<'_>) -> Option<(SystemTime, SystemTime)> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let moment = |time: x509_parser::time::ASN1Time| match u64::try_from(time.timestamp()) {
        Ok(after) => UNIX_EPOCH.checked_add(Duration::from_secs(after)),
        Err(_) => Some(UNIX_EPOCH),
    };
    Some((moment(parsed.validity().not_before)?, moment(parsed.validity().not_after)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parsed_identity_prints_unchanged() {
        let text = "spiffe://cluster.local/ns/shop/sa/web.front-1";
        let id: SpiffeId = text.parse().expect("valid");
        assert_eq!(id.to_string(), text);
        assert_eq!(
            (id.trust_domain(), id.namespace().as_str(), id.service_account()),
            ("cluster.local", "shop", "web.front-1")
        );
    }

    #[test]
    fn malformed_identity_is_rejected() {
        let long = "a".repeat(64);
        for text in [
            "",
            "spiffe://",
            "SPIFFE://td/ns/a/sa/b",
            "https://td/ns/a/sa/b",
            "spiffe:///ns/a/sa/b",
            "spiffe://TD/ns/a/sa/b",
            "spiffe://td:1/ns/a/sa/b",
            "spiffe://user@td/ns/a/sa/b",
            "spiffe://td/ns//sa/b",
            "spiffe://td/ns/a/sa/",
            "spiffe://td/ns/a/sa/b/",
            "spiffe://td/ns/a/sa/b/c",
            "spiffe://td//ns/a/sa/b",
            "spiffe://td/ns/../sa/b",
            "spiffe://td/ns/a%2fb/sa/b",
            "spiffe://td/ns/a/sa/b?x",
            "spiffe://td/ns/a/sa/b#x",
            "spiffe://td/ns/a.b/sa/c",
            "spiffe://td/ns/A/sa/b",
            "spiffe://td/ns/a/sa/b\0",
            "spiffe://td/ns/a/sa/b\n",
            " spiffe://td/ns/a/sa/b",
            "spiffe://td/sa/a/ns/b",
            "spiffe://tü/ns/a/sa/b",
            &format!("spiffe://td/ns/{long}/sa/b"),
            &format!("spiffe://td/ns/a/sa/{}", [&long[1..]; 5].join(".")),
            &format!("spiffe://{}/ns/a/sa/b", "t".repeat(256)),
            &format!("spiffe://td/ns/a/sa/{}", "b".repeat(3000)),
        ] {
            assert!(text.parse::<SpiffeId>().is_err(), "{text:?} was taken");
        }
    }
}
