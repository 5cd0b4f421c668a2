//! Identities of the proxies: a certificate for each, all with the same key, and a TLS client
//! configuration that is cheap enough for thousands of proxies.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use rcgen::{CertificateParams, KeyPair};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::{CipherSuite, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};

use crate::Failure;
use strait_identity::{Authority, AuthorityPem, SpiffeId, tls};

/// The lifetime of the certificates.
const LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// Issues certificates for workloads.
pub(crate) struct Issuer {
    authority: Authority,
    key: PrivateKeyDer<'static>,
    request: String,
    verifier: Arc<KnownServer>,
}

impl Issuer {
    /// Reads the CA in `directory`.
    pub(crate) fn new(directory: &Path) -> Result<Self, Failure> {
        let failed = |error: &dyn std::fmt::Display| Failure(format!("--ca-dir: {error}"));
        let pem = AuthorityPem::read(directory).map_err(|error| failed(&error))?;
        let origin = directory.display().to_string();
        let authority =
            Authority::new(&pem, &origin, SystemTime::now()).map_err(|error| failed(&error))?;
        // The server cannot detect that proxies share a key, because each presents a different
        // certificate.
        let key = KeyPair::generate().map_err(|error| failed(&error))?;
        let request = CertificateParams::default()
            .serialize_request(&key)
            .and_then(|request| request.pem())
            .map_err(|error| failed(&error))?;
        let mut roots = RootCertStore::empty();
        for root in CertificateDer::pem_slice_iter(pem.root_cert.as_bytes()) {
            let root = root.map_err(|error| failed(&error))?;
            roots.add(root).map_err(|error| failed(&error))?;
        }
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), tls::provider())
                .build()
                .map_err(|error| failed(&error))?;
        Ok(Self {
            authority,
            key: PrivateKeyDer::Pkcs8(key.serialize_der().into()),
            request,
            verifier: Arc::new(KnownServer { full: verifier, known: Mutex::default() }),
        })
    }

    /// Returns a client configuration without a certificate.
    pub(crate) fn nobody(&self) -> Result<Arc<ClientConfig>, Failure> {
        let failed = |error: &dyn std::fmt::Display| Failure(format!("TLS: {error}"));
        let mut config = ClientConfig::builder_with_provider(offered())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| failed(&error))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::clone(&self.verifier) as _)
            .with_no_client_auth();
        config.alpn_protocols = vec![tls::ALPN.to_vec()];
        config.resumption = rustls::client::Resumption::disabled();
        Ok(Arc::new(config))
    }

    /// Returns a client configuration with a certificate for `id`.
    pub(crate) fn client(&self, id: &SpiffeId) -> Result<Arc<ClientConfig>, Failure> {
        let failed = |error: &dyn std::fmt::Display| Failure(format!("a certificate: {error}"));
        let now = SystemTime::now();
        let chain = self
            .authority
            .sign_request(&self.request, id, None, LIFETIME, now, now)
            .map_err(|error| failed(&error))?;
        let mut config = ClientConfig::builder_with_provider(offered())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| failed(&error))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::clone(&self.verifier) as _)
            .with_client_auth_cert(chain.certificates().to_vec(), self.key.clone_key())
            .map_err(|error| failed(&error))?;
        config.alpn_protocols = vec![tls::ALPN.to_vec()];
        // A proxy that reconnects after a restart has no session to resume.
        config.resumption = rustls::client::Resumption::disabled();
        Ok(Arc::new(config))
    }
}

/// The cipher suites that Envoy offers: AES-128 first, if the machine has instructions for it.
fn offered() -> Arc<CryptoProvider> {
    let mut provider = CryptoProvider::clone(&tls::provider());
    provider
        .cipher_suites
        .sort_by_key(|suite| suite.suite() != CipherSuite::TLS13_AES_128_GCM_SHA256);
    Arc::new(provider)
}

/// Verifies a server's chain once, and afterwards accepts the identical chain for the identical
/// name. This saves CPU in the load client, not in the server. The proof that the server has the
/// key is verified every time.
#[derive(Debug)]
struct KnownServer {
    full: Arc<WebPkiServerVerifier>,
    known: Mutex<Option<(Vec<CertificateDer<'static>>, ServerName<'static>)>>,
}

impl ServerCertVerifier for KnownServer {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        above: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let shown = || std::iter::once(leaf).chain(above);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((chain, whose)) = &*known
            && whose == name
            && chain.iter().eq(shown())
        {
            return Ok(ServerCertVerified::assertion());
        }
        let verified = self.full.verify_server_cert(leaf, above, name, ocsp, now)?;
        let chain = shown().map(|certificate| certificate.clone().into_owned()).collect();
        *known = Some((chain, name.to_owned()));
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.full.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.full.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.full.supported_verify_schemes()
    }
}
