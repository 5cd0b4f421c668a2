//! The certificate of a relay with its key: parsed, checked against the cluster, and with its time of renewal.
//!
//! Pure, except for the random numbers of a new key.

use std::time::{Duration, SystemTime};

use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use strait_base::codes;
use strait_base::pem::encode_key;
use strait_kube_client::{CaBundle, Redacted};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::wire::CertificateResponse;

/// The part of a relay's URI name before the cluster ID: `spiffe://TRUST-DOMAIN/strait/relay/ID`.
const NAME_PATH: &str = "strait/relay/";
/// The part of a lifetime after which a certificate is renewed, and the maximum deviation, so that relays that enrolled
/// together renew at different times.
const HALF: f64 = 0.5;
const SPREAD: f64 = 0.05;

/// The stored parts of a certificate: the name of the file or of the Secret's key, for each.
pub(super) const CHAIN_FILE: &str = "cert-chain.pem";
pub(super) const KEY_FILE: &str = "key.pem";
pub(super) const ROOTS_FILE: &str = "root-cert.pem";
pub(super) const TOKEN_FILE: &str = "token-sha256";

/// A certificate chain, its key, and the roots that came with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RelayCertificate {
    /// PEM, leaf first.
    pub(super) chain: String,
    /// PEM.
    pub(super) key: Redacted<String>,
    /// The roots of the hub, PEM; empty if the hub does not know them.
    pub(super) roots: String,
    /// The SHA-256 of the invitation or token by which the relay enrolled, hexadecimal.
    pub(super) token_hash: String,
    pub(super) begins: SystemTime,
    pub(super) ends: SystemTime,
}

/// A certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum UnusableCertificate {
    #[error("the certificate can't be read: {0}")]
    Unreadable(String),
    #[error("the key of the certificate can't be read")]
    Key,
    #[error("the certificate belongs to another key")]
    OtherKey,
    #[error("the roots contain no certificate")]
    Roots,
    #[error(
        "{}: the certificate names the cluster {named:?}, and --cluster is {expected:?}",
        codes::RELAY_HELLO
    )]
    Cluster { named: String, expected: String },
    #[error(
        "the certificate is not for a relay: it needs exactly one name, spiffe://TRUST-DOMAIN/strait/relay/ID"
    )]
    Name,
    #[error("no key can be made: {0}")]
    Made(#[from] rcgen::Error),
}

/// A new key, and the request to certify it.
pub(super) struct KeyRequest {
    key: KeyPair,
    /// PKCS#10, PEM. It contains no name: the hub takes the name from the invitation.
    pub(super) csr: String,
}

impl KeyRequest {
    /// Generates a P-256 key.
    pub(super) fn new() -> Result<Self, UnusableCertificate> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let csr = CertificateParams::new(Vec::new())?.serialize_request(&key)?.pem()?;
        Ok(Self { key, csr })
    }

    /// Combines the key with the response of the hub.
    pub(super) fn answered(
        &self,
        response: CertificateResponse,
        cluster: &str,
        token_hash: &str,
    ) -> Result<RelayCertificate, UnusableCertificate> {
        let key = PrivateKeyDer::Pkcs8(self.key.serialize_der().into());
        let parts = [response.certificate, encode_key(&key), response.roots, token_hash.to_owned()];
        RelayCertificate::new(parts, cluster)
    }
}

impl RelayCertificate {
    /// Checks and combines the stored parts: chain, key, roots and hash of the token.
    pub(super) fn new(
        [chain, key, roots, token_hash]: [String; 4],
        cluster: &str,
    ) -> Result<Self, UnusableCertificate> {
        if !roots.is_empty() && CaBundle::read(roots.as_bytes()).certificates.is_empty() {
            return Err(UnusableCertificate::Roots);
        }
        let unreadable = |fact: String| UnusableCertificate::Unreadable(fact);
        let (certificates, private) = read_pair(&chain, &key)?;
        let leaf = certificates.first().ok_or_else(|| unreadable("it is empty".to_owned()))?;
        let (_, leaf) =
            X509Certificate::from_der(leaf).map_err(|error| unreadable(error.to_string()))?;
        let named = named_cluster(&leaf).ok_or(UnusableCertificate::Name)?;
        if named != cluster {
            return Err(UnusableCertificate::Cluster { named, expected: cluster.to_owned() });
        }
        let time = |time: x509_parser::time::ASN1Time| {
            let seconds = u64::try_from(time.timestamp()).unwrap_or_default();
            SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
        };
        let (begins, ends) = (time(leaf.validity().not_before), time(leaf.validity().not_after));
        let private = rustls::crypto::ring::sign::any_supported_type(&private)
            .map_err(|_| UnusableCertificate::Key)?;
        rustls::sign::CertifiedKey::new(certificates.clone(), private)
            .keys_match()
            .map_err(|_| UnusableCertificate::OtherKey)?;
        Ok(Self { chain, key: Redacted::new(key), roots, token_hash, begins, ends })
    }

    /// Returns the chain and the key, for a handshake.
    pub(super) fn pair(
        &self,
    ) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), UnusableCertificate> {
        read_pair(&self.chain, self.key.reveal())
    }

    /// Returns whether the certificate has expired.
    pub(super) fn has_expired(&self, now: SystemTime) -> bool {
        self.ends <= now
    }

    /// Returns the time until the renewal; zero if it is due. `random` is in 0..1.
    pub(super) fn until_renewal(&self, now: SystemTime, random: f64) -> Duration {
        let lifetime = self.ends.duration_since(self.begins).unwrap_or_default();
        let due = self.begins + lifetime.mul_f64(HALF + SPREAD * (2.0 * random - 1.0));
        due.duration_since(now).unwrap_or_default()
    }
}

fn read_pair(
    chain: &str,
    key: &str,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), UnusableCertificate> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(chain.as_bytes()).collect();
    let chain = chain.map_err(|error| UnusableCertificate::Unreadable(error.to_string()))?;
    let key =
        PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|_| UnusableCertificate::Key)?;
    Ok((chain, key))
}

/// Returns the cluster ID in the only name of a relay's certificate.
fn named_cluster(leaf: &X509Certificate<'_>) -> Option<String> {
    let names = leaf.subject_alternative_name().ok()??;
    let [GeneralName::URI(name)] = &names.value.general_names[..] else { return None };
    let (_, rest) = name.strip_prefix("spiffe://")?.split_once('/')?;
    let cluster = rest.strip_prefix(NAME_PATH)?;
    (!cluster.is_empty() && !cluster.contains('/')).then(|| cluster.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::testing::TestCa;
    use super::*;

    fn issue(uris: &[&str]) -> Result<RelayCertificate, UnusableCertificate> {
        let request = KeyRequest::new().expect("a key");
        let response = TestCa::new().certify(&request.csr, uris, Duration::from_secs(3600));
        request.answered(response, "west", "")
    }

    #[test]
    fn only_a_certificate_with_exactly_the_name_of_the_relay_is_accepted() {
        issue(&["spiffe://mesh.example/strait/relay/west"]).expect("accepted");
        for (uris, expected) in [
            (&["spiffe://mesh.example/strait/relay/east"][..], "names the cluster \"east\""),
            (&["spiffe://mesh.example/ns/shop/sa/web"], "not for a relay"),
            (&["spiffe://mesh.example/strait/relay/west/a"], "not for a relay"),
            (&["spiffe://mesh.example/strait/relay/"], "not for a relay"),
            (&["https://mesh.example/strait/relay/west"], "not for a relay"),
            (&[], "not for a relay"),
            (&["spiffe://a/strait/relay/west", "spiffe://b/strait/relay/west"], "not for a relay"),
        ] {
            let error = issue(uris).expect_err(expected).to_string();
            assert!(error.contains(expected), "{uris:?}: {error}");
        }
    }

    #[test]
    fn roots_are_certificates_or_unknown() {
        let request = KeyRequest::new().expect("a key");
        let uris = ["spiffe://mesh.example/strait/relay/west"];
        let response = TestCa::new().certify(&request.csr, &uris, Duration::from_secs(3600));
        let with_roots = |roots: &str| {
            let response = CertificateResponse { roots: roots.to_owned(), ..response.clone() };
            request.answered(response, "west", "")
        };
        assert_eq!(with_roots("").expect("--hub-roots applies").roots, "");
        let error = with_roots("no roots").expect_err("an invalid response");
        assert!(matches!(error, UnusableCertificate::Roots), "{error}");
    }

    #[test]
    fn certificate_of_another_key_is_rejected() {
        let (ca, uris) = (TestCa::new(), ["spiffe://mesh.example/strait/relay/west"]);
        let (requested, other) =
            (KeyRequest::new().expect("a key"), KeyRequest::new().expect("a key"));
        let response = ca.certify(&requested.csr, &uris, Duration::from_secs(3600));
        let error = other.answered(response, "west", "").expect_err("another key");
        assert!(matches!(error, UnusableCertificate::OtherKey), "{error}");
    }

    #[test]
    fn certificate_is_renewed_near_half_of_its_lifetime() {
        let mut certificate =
            issue(&["spiffe://mesh.example/strait/relay/west"]).expect("accepted");
        let hour = Duration::from_secs(3600);
        certificate.begins = SystemTime::UNIX_EPOCH + hour;
        certificate.ends = certificate.begins + 24 * hour;
        let now = certificate.begins + 2 * hour;
        assert_eq!(certificate.until_renewal(now, 0.5), 10 * hour);
        assert_eq!(certificate.until_renewal(now, 0.0).as_secs(), 3600 * 10 - 72 * 60);
        assert_eq!(certificate.until_renewal(certificate.ends, 0.5), Duration::ZERO);
        assert!(!certificate.has_expired(now) && certificate.has_expired(certificate.ends));
    }

    #[test]
    fn key_is_not_printed() {
        let certificate = issue(&["spiffe://mesh.example/strait/relay/west"]).expect("accepted");
        assert!(!format!("{certificate:?}").contains("PRIVATE"));
    }
}
