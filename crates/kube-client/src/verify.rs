//! Verifies the certificate of an API server.
//!
//! Like rustls, and in one case like Go's clients: a server may present a certificate that is
//! itself a given root. `openssl req -x509` marks its certificates as CAs, and rustls rejects a CA
//! as server certificate. An operator who gave exactly this certificate as a root trusts it
//! already. Its name, dates and usage are checked as usual, and the handshake still proves that the
//! server has its key.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::access_error::AccessError;

/// Accepts the given roots, both as issuers and as server certificates.
#[derive(Debug)]
pub(super) struct GivenRoots {
    issuers: Arc<WebPkiServerVerifier>,
    roots: Vec<CertificateDer<'static>>,
}

impl GivenRoots {
    /// Creates the verifier for `roots`, DER.
    pub(super) fn new(roots: &[Vec<u8>]) -> Result<Arc<Self>, AccessError> {
        let roots: Vec<_> = roots.iter().cloned().map(CertificateDer::from).collect();
        let mut store = RootCertStore::empty();
        for root in &roots {
            store.add(root.clone()).map_err(|_| AccessError::Ca)?;
        }
        let issuers = WebPkiServerVerifier::builder(store.into()).build();
        Ok(Arc::new(Self { issuers: issuers.map_err(|_| AccessError::Ca)?, roots }))
    }
}

impl ServerCertVerifier for GivenRoots {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match self.issuers.verify_server_cert(shown, intermediates, name, ocsp, now) {
            Err(_) if self.roots.contains(shown) => {
                let parsed = ParsedCertificate::try_from(shown)?;
                usable(shown, now)?;
                verify_server_name(&parsed, name)?;
                Ok(ServerCertVerified::assertion())
            }
            judged => judged,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.issuers.verify_tls12_signature(message, shown, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.issuers.verify_tls13_signature(message, shown, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.issuers.supported_verify_schemes()
    }
}

/// Checks that the certificate is currently valid and permits use by servers.
fn usable(certificate: &CertificateDer<'_>, now: UnixTime) -> Result<(), CertificateError> {
    let (_, parsed) =
        X509Certificate::from_der(certificate).map_err(|_| CertificateError::BadEncoding)?;
    let seconds = |at: x509_parser::time::ASN1Time| at.timestamp().max(0).unsigned_abs();
    let at = |seconds| UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds));
    let validity = parsed.validity();
    let (not_before, not_after) = (seconds(validity.not_before), seconds(validity.not_after));
    if now.as_secs() < not_before {
        return Err(CertificateError::NotValidYetContext { time: now, not_before: at(not_before) });
    }
    if now.as_secs() > not_after {
        return Err(CertificateError::ExpiredContext { time: now, not_after: at(not_after) });
    }
    match parsed.extended_key_usage() {
        Ok(None) => Ok(()),
        Ok(Some(purposes)) if purposes.value.any || purposes.value.server_auth => Ok(()),
        _ => Err(CertificateError::InvalidPurpose),
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{
        BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, KeyPair, date_time_ymd,
    };

    use super::*;

    /// Parameters of a certificate as created by `openssl req -x509`: self-signed, marked as a CA.
    fn params() -> CertificateParams {
        let mut params = CertificateParams::new(vec!["api.example".into()]).expect("names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2030, 1, 1);
        params
    }

    fn made(params: &CertificateParams) -> CertificateDer<'static> {
        let key = KeyPair::generate().expect("a key");
        params.self_signed(&key).expect("a certificate").der().clone()
    }

    /// Verifies `shown` for `name` in the year `year`.
    fn verify(
        roots: &[&CertificateDer<'_>],
        shown: &CertificateDer<'_>,
        name: &'static str,
        year: u64,
    ) -> Result<(), String> {
        let roots: Vec<Vec<u8>> = roots.iter().map(|root| root.to_vec()).collect();
        let now = std::time::Duration::from_secs((year - 1970) * 31_557_600);
        let name = ServerName::try_from(name).expect("a name");
        GivenRoots::new(&roots)
            .expect("roots")
            .verify_server_cert(shown, &[], &name, &[], UnixTime::since_unix_epoch(now))
            .map(|_| ())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn server_may_present_a_given_root() {
        let (root, other_root) = (made(&params()), made(&params()));
        verify(&[&other_root, &root], &root, "api.example", 2025).expect("it is a given root");
        for (roots, name, year, expected) in [
            // The same names and issuer, with another key.
            (vec![&other_root], "api.example", 2025, "CaUsedAsEndEntity"),
            (vec![&root], "other.example", 2025, "not valid for name"),
            (vec![&root], "api.example", 2019, "not valid yet"),
            (vec![&root], "api.example", 2031, "expired"),
        ] {
            let refused = verify(&roots, &root, name, year).expect_err(expected);
            assert!(refused.contains(expected), "{expected}: {refused}");
        }
    }

    #[test]
    fn root_that_is_not_for_servers_is_rejected() {
        let mut params = params();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let root = made(&params);
        verify(&[&root], &root, "api.example", 2025).expect_err("for clients only");
    }
}
