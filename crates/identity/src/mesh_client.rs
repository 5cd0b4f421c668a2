//! How a client calls a workload of the mesh: mTLS, to whoever the mesh's roots vouch for, whatever the address.
//!
//! Who answered is for the caller to judge: proxies know the accounts of the service, and so does whoever probes in their place.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{CertificateParams, KeyPair};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use webpki::KeyUsage;

use super::authority::signing;
use super::error::IdentityError;
use super::tls::{TrustRoots, provider};
use super::{PeerIdentity, pem};

/// What a workload's sidecar is offered (Istio's ALPN for mTLS between proxies).
const ALPN: &[u8] = b"istio";
/// The most bytes of a file.
const FILE_MAX: u64 = 1 << 20;

/// Reads a client's identity from `cert-chain.pem`, `key.pem` and `root-cert.pem` in `directory`, as
/// [`super::authority::write_workload`] writes them.
///
/// # Errors
/// A file can't be read or used.
pub fn mesh_client(directory: &Path, now: SystemTime) -> Result<Arc<ClientConfig>, IdentityError> {
    let read = |name: &str| {
        let path = directory.join(name);
        strait_base::durable::read_at_most(&path, FILE_MAX)
            .map_err(|source| IdentityError::Read { path, source })
    };
    let chain = pem::certificates(&read("cert-chain.pem")?, "cert-chain.pem")?;
    let key = pem::private_key(&read("key.pem")?, "key.pem")?;
    let roots = TrustRoots::from_pem(&read("root-cert.pem")?, "root-cert.pem", now)?;
    client(chain, key, roots)
}

/// A new key, and the request for a certificate over it: the key stays where it was made.
#[derive(Debug)]
pub struct MeshClientRequest {
    key: KeyPair,
    /// The request in PEM. It names nobody: whoever signs knows who asks.
    pub csr: String,
}

impl MeshClientRequest {
    /// Makes a key.
    ///
    /// # Errors
    /// No key can be made.
    pub fn new() -> Result<Self, IdentityError> {
        let key = KeyPair::generate().map_err(signing)?;
        let request = CertificateParams::default().serialize_request(&key).map_err(signing)?;
        let csr = request.pem().map_err(signing)?;
        Ok(Self { key, csr })
    }

    /// The client whose certificate was issued for this request: `chain` and `roots` in PEM, as `origin` gave them.
    ///
    /// # Errors
    /// They can't be used, or the certificate is not of this key.
    pub fn answered(
        &self,
        chain: &str,
        roots: &str,
        origin: &str,
        now: SystemTime,
    ) -> Result<Arc<ClientConfig>, IdentityError> {
        let chain = pem::certificates(chain.as_bytes(), origin)?;
        let roots = TrustRoots::from_pem(roots.as_bytes(), origin, now)?;
        client(chain, PrivateKeyDer::Pkcs8(self.key.serialize_der().into()), roots)
    }
}

fn client(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    roots: TrustRoots,
) -> Result<Arc<ClientConfig>, IdentityError> {
    let algorithms = provider().signature_verification_algorithms;
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(WorkloadVerifier { roots, algorithms }))
        .with_client_auth_cert(chain, key)?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    // Each probe is to see who answers it.
    config.resumption = rustls::client::Resumption::disabled();
    Ok(Arc::new(config))
}

/// Who answers on a connection whose handshake is done.
///
/// # Errors
/// It showed no certificate, or one without exactly one SPIFFE ID.
pub fn workload(connection: &ClientConnection) -> Result<PeerIdentity, IdentityError> {
    let chain = connection.peer_certificates().ok_or(IdentityError::NoPeerCertificate)?;
    PeerIdentity::of_verified(chain)
}

/// Takes every workload that the roots vouch for: addresses are not in their certificates.
#[derive(Debug)]
struct WorkloadVerifier {
    roots: TrustRoots,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for WorkloadVerifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let chain: Vec<_> = std::iter::once(leaf).chain(intermediates).cloned().collect();
        let now = UNIX_EPOCH + Duration::from_secs(now.as_secs());
        let verified = self.roots.verify(&chain, now, KeyUsage::server_auth());
        verified.map_err(|error| rustls::Error::General(error.to_string()))?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
