//! A workload's certificate: its key and signing request, the checks of a response, and the time of renewal.
//!
//! Pure: it sends and writes nothing.

use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime};

use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::crypto::ring::sign::any_supported_type;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// A certificate is renewed after this part of its lifetime, plus or minus [`SPREAD`], so that agents that started
/// together renew at different times.
const HALF: f64 = 0.5;
const SPREAD: f64 = 0.01;

/// The reason why a certificate is unusable.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unusable {
    #[error(
        "the response has {0} elements, but needs at least two: the certificate, and the roots as the last"
    )]
    Elements(usize),
    #[error("the {0} can't be read as PEM: {1}")]
    Pem(&'static str, String),
    #[error("the {0} contain no certificate")]
    Empty(&'static str),
    #[error("the certificate belongs to another key")]
    OtherKey,
    #[error("the certificate can't be read: {0}")]
    Certificate(String),
    #[error("its validity ends before it starts")]
    Validity,
    #[error("no key can be made: {0}")]
    Key(#[from] rcgen::Error),
}

/// A new key, and the request to sign it.
pub(crate) struct KeyRequest {
    /// The key in PKCS#8, PEM.
    key: String,
    /// The request in PKCS#10, PEM. It contains no name, because the token identifies the caller.
    pub(crate) csr: String,
}

impl KeyRequest {
    /// Generates a P-256 key.
    pub(crate) fn new() -> Result<Self, Unusable> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let csr = CertificateParams::new(Vec::new())?.serialize_request(&key)?.pem()?;
        Ok(Self { key: key.serialize_pem(), csr })
    }

    /// Builds credentials from the elements of a response: the leaf, intermediates, and all roots in the last element.
    pub(crate) fn answered(self, elements: &[String]) -> Result<Credentials, Unusable> {
        let (roots, chain) = match elements.split_last() {
            Some((roots, chain)) if !chain.is_empty() => (roots, chain),
            _ => return Err(Unusable::Elements(elements.len())),
        };
        let chain: Vec<&str> = chain.iter().map(|one| one.trim()).collect();
        Credentials::new(format!("{}\n", chain.join("\n")), self.key, roots)
    }
}

/// A certificate chain, leaf first, and its key.
type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// A certificate chain with its matching key, and the roots from the same response.
#[derive(Clone)]
pub(crate) struct Credentials {
    /// The certificate chain in PEM, leaf first.
    pub(crate) chain: String,
    /// The key in PEM.
    pub(crate) key: String,
    pub(crate) roots: RootSet,
    pub(crate) validity: Validity,
}

impl Credentials {
    /// Checks and combines the files of an earlier run, or the elements of a response.
    pub(crate) fn new(chain: String, key: String, roots: &str) -> Result<Self, Unusable> {
        let (certificates, private) = identity(&chain, &key)?;
        let leaf = certificates.first().ok_or(Unusable::Empty("answer's elements"))?;
        let validity = Validity::of(leaf)?;
        let private = any_supported_type(&private)
            .map_err(|error| Unusable::Pem("key", error.to_string()))?;
        CertifiedKey::new(certificates, private).keys_match().map_err(|_| Unusable::OtherKey)?;
        let roots = RootSet::parse(roots)?;
        Ok(Self { chain, key, roots, validity })
    }

    /// Returns the certificate chain, leaf first, and its key, for a handshake.
    pub(crate) fn identity(&self) -> Result<Identity, Unusable> {
        identity(&self.chain, &self.key)
    }
}

/// Parses a certificate chain and its key in PEM.
fn identity(chain: &str, key: &str) -> Result<Identity, Unusable> {
    let pem =
        |what| move |error: rustls_pki_types::pem::Error| Unusable::Pem(what, error.to_string());
    let chain = CertificateDer::pem_slice_iter(chain.as_bytes());
    let chain = chain.collect::<Result<_, _>>().map_err(pem("certificate"))?;
    Ok((chain, PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(pem("key"))?))
}

/// A sorted set of root certificates without duplicates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RootSet(BTreeSet<Vec<u8>>);

impl RootSet {
    /// Parses certificates in PEM.
    pub(crate) fn parse(text: &str) -> Result<Self, Unusable> {
        let roots: BTreeSet<Vec<u8>> = CertificateDer::pem_slice_iter(text.as_bytes())
            .map(|one| one.map(|one| one.to_vec()))
            .collect::<Result<_, _>>()
            .map_err(|error| Unusable::Pem("roots", error.to_string()))?;
        if roots.is_empty() { Err(Unusable::Empty("roots")) } else { Ok(Self(roots)) }
    }

    /// Returns the union of both sets.
    pub(crate) fn with(&self, other: &Self) -> Self {
        Self(self.0.union(&other.0).cloned().collect())
    }

    pub(crate) fn certificates(&self) -> impl Iterator<Item = CertificateDer<'_>> {
        self.0.iter().map(|one| CertificateDer::from(one.as_slice()))
    }

    pub(crate) fn to_pem(&self) -> String {
        let config = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
        let blocks: Vec<_> =
            self.0.iter().map(|one| pem::Pem::new("CERTIFICATE", one.clone())).collect();
        pem::encode_many_config(&blocks, config)
    }
}

/// The validity period of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Validity {
    pub(crate) begins: SystemTime,
    pub(crate) ends: SystemTime,
}

impl Validity {
    fn of(leaf: &CertificateDer<'_>) -> Result<Self, Unusable> {
        let (_, leaf) = X509Certificate::from_der(leaf)
            .map_err(|error| Unusable::Certificate(error.to_string()))?;
        let time = |time: x509_parser::time::ASN1Time| {
            let seconds = u64::try_from(time.timestamp()).unwrap_or_default();
            SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
        };
        let validity = leaf.validity();
        let (begins, ends) = (time(validity.not_before), time(validity.not_after));
        if ends <= begins { Err(Unusable::Validity) } else { Ok(Self { begins, ends }) }
    }

    fn lifetime(&self) -> Duration {
        self.ends.duration_since(self.begins).unwrap_or_default()
    }

    /// Returns whether the certificate is valid at `now`, according to this host's clock.
    pub(crate) fn holds_at(&self, now: SystemTime) -> bool {
        self.begins <= now && now < self.ends
    }
}

/// Both clocks at one moment. The wall clock may jump; the monotonic clock stops while the host sleeps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Now {
    pub(crate) steady: Instant,
    pub(crate) wall: SystemTime,
}

impl Now {
    pub(crate) fn read() -> Self {
        Self { steady: Instant::now(), wall: SystemTime::now() }
    }
}

/// The time at which a certificate is renewed: when either clock reaches it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RenewalTime {
    steady: Instant,
    /// `None` if the wall clock must be wrong, because a new certificate is not valid according to it.
    wall: Option<SystemTime>,
}

impl RenewalTime {
    /// Returns the renewal time of a new certificate. `random` is in 0..1.
    pub(crate) fn of_new(validity: Validity, now: Now, random: f64) -> Self {
        let wall = Self::by_wall(validity, random);
        Self {
            steady: now.steady + validity.lifetime().mul_f64(part(random)),
            wall: validity.holds_at(now.wall).then_some(wall),
        }
    }

    /// Returns the renewal time of a certificate from an earlier run. `random` is in 0..1.
    pub(crate) fn of_kept(validity: Validity, now: Now, random: f64) -> Self {
        let wall = Self::by_wall(validity, random);
        let left = wall.duration_since(now.wall).unwrap_or_default();
        Self { steady: now.steady + left, wall: Some(wall) }
    }

    fn by_wall(validity: Validity, random: f64) -> SystemTime {
        validity.begins + validity.lifetime().mul_f64(part(random))
    }

    /// Returns the time until the renewal; zero if it is due.
    pub(crate) fn left(&self, now: Now) -> Duration {
        let steady = self.steady.saturating_duration_since(now.steady);
        let wall = self.wall.map(|wall| wall.duration_since(now.wall).unwrap_or_default());
        wall.map_or(steady, |wall| wall.min(steady))
    }
}

fn part(random: f64) -> f64 {
    HALF + SPREAD * (2.0 * random - 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{BasicConstraints, CertificateSigningRequestParams, IsCa, Issuer};

    const HOUR: Duration = Duration::from_secs(3600);

    struct Ca(Issuer<'static, KeyPair>, String);

    fn ca() -> Ca {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root = params.self_signed(&key).expect("signed").pem();
        Ca(Issuer::new(params, key), root)
    }

    impl Ca {
        fn sign(&self, csr: &str) -> String {
            let request = CertificateSigningRequestParams::from_pem(csr).expect("a request");
            request.signed_by(&self.0).expect("signed").pem()
        }
    }

    #[test]
    fn response_is_split_into_chain_and_roots() {
        let ca = ca();
        let request = KeyRequest::new().expect("made");
        let leaf = ca.sign(&request.csr);
        let answer = [leaf, ca.1.clone(), format!("{}{}", ca.1, self::ca().1)];
        let credentials = request.answered(&answer).expect("usable");
        assert_eq!(credentials.roots.certificates().count(), 2);
        assert_eq!(credentials.chain.matches("BEGIN CERTIFICATE").count(), 2);
        let kept =
            Credentials::new(credentials.chain, credentials.key, &credentials.roots.to_pem());
        assert_eq!(kept.expect("the written files are readable").roots, credentials.roots);
    }

    #[test]
    fn unusable_response_is_refused() {
        let ca = ca();
        let of_other = ca.sign(&KeyRequest::new().expect("made").csr);
        let refused = |elements: &[String]| {
            let request = KeyRequest::new().expect("made");
            request.answered(elements).err().expect("refused").to_string()
        };
        assert!(refused(&[of_other, ca.1.clone()]).contains("another key"));
        assert!(refused(std::slice::from_ref(&ca.1)).contains("at least two"));
        assert!(refused(&[]).contains("0 elements"));
        let own = KeyRequest::new().expect("made");
        let leaf = ca.sign(&own.csr);
        assert!(
            own.answered(&[leaf, String::new()])
                .err()
                .is_some_and(|error| matches!(error, Unusable::Empty(_)))
        );
    }

    fn of_a_day(now: Now) -> Validity {
        Validity { begins: now.wall, ends: now.wall + 24 * HOUR }
    }

    #[test]
    fn renewal_is_at_half_the_lifetime_with_one_percent_spread() {
        let now = Now::read();
        let left = |random| RenewalTime::of_new(of_a_day(now), now, random).left(now).as_secs_f64();
        let day = 86_400.0;
        assert!((left(0.0) - 0.49 * day).abs() < 1.0, "{}", left(0.0));
        assert!((left(1.0) - 0.51 * day).abs() < 1.0, "{}", left(1.0));
    }

    #[test]
    fn forward_clock_jump_triggers_renewal_and_backward_jump_does_not_delay_it() {
        let now = Now::read();
        let time = RenewalTime::of_new(of_a_day(now), now, 0.5);
        let ahead = Now { wall: now.wall + 13 * HOUR, ..now };
        assert_eq!(time.left(ahead), Duration::ZERO);
        let back = Now { steady: now.steady + 13 * HOUR, wall: now.wall - 100 * HOUR };
        assert_eq!(time.left(back), Duration::ZERO);
    }

    #[test]
    fn wrong_clock_does_not_renew_a_new_certificate_immediately() {
        let now = Now::read();
        let wrong = Now { wall: now.wall + 1000 * HOUR, ..now };
        let time = RenewalTime::of_new(of_a_day(now), wrong, 0.5);
        assert!(time.left(wrong) > 11 * HOUR, "{:?}", time.left(wrong));
    }

    #[test]
    fn certificate_from_an_earlier_run_is_renewed_on_schedule() {
        let now = Now::read();
        let begun = Validity { begins: now.wall - 10 * HOUR, ends: now.wall + 14 * HOUR };
        let left = RenewalTime::of_kept(begun, now, 0.5).left(now);
        assert!((left.as_secs_f64() - 7200.0).abs() < 1.0, "{left:?}");
    }
}
