//! A CA that certifies relays and hubs, for tests.

use std::time::{Duration, SystemTime};

use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, IsCa, Issuer, KeyPair,
    SanType,
};
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject as _;

use crate::wire::CertificateResponse;

/// A CA.
pub(super) struct TestCa {
    issuer: Issuer<'static, KeyPair>,
    pub(super) root: String,
}

impl TestCa {
    pub(super) fn new() -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root = params.self_signed(&key).expect("signed").pem();
        Self { issuer: Issuer::new(params, key), root }
    }

    /// Certifies the key of a request, with these URI names, from now on for this long.
    pub(super) fn certify(
        &self,
        csr: &str,
        uris: &[&str],
        lifetime: Duration,
    ) -> CertificateResponse {
        self.certify_since(SystemTime::now(), csr, uris, lifetime)
    }

    /// Certifies the key of a request, with these URI names, for this long since `begin`.
    pub(super) fn certify_since(
        &self,
        begin: SystemTime,
        csr: &str,
        uris: &[&str],
        lifetime: Duration,
    ) -> CertificateResponse {
        let mut request = CertificateSigningRequestParams::from_pem(csr).expect("a request");
        let uri = |uri: &&str| SanType::URI(Ia5String::try_from(*uri).expect("ASCII"));
        request.params.subject_alt_names = uris.iter().map(uri).collect();
        request.params.not_before = begin.into();
        request.params.not_after = (begin + lifetime).into();
        let certificate = request.signed_by(&self.issuer).expect("signed").pem();
        CertificateResponse { certificate, roots: self.root.clone(), expires: String::new() }
    }

    /// Returns a certificate for a server, and its key.
    pub(super) fn server(
        &self,
        name: &str,
    ) -> (rustls_pki_types::CertificateDer<'static>, PrivateKeyDer<'static>) {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        let certificate = params.signed_by(&key, &self.issuer).expect("signed");
        let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).expect("a key");
        (certificate.der().clone(), key)
    }
}
