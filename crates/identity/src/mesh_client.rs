//! Client that calls workloads of the mesh over mTLS. It accepts any workload whose certificate
//! chains to the mesh's roots, regardless of the address.
//!
//! The caller decides whether the workload is the right one: it must know the accounts of the
//! service, as proxies do.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{CertificateParams, KeyPair};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use webpki::KeyUsage;

use super::error::IdentityError;
use super::error::signing;
use super::tls::{TrustRoots, provider};
use super::{PeerIdentity, pem};

/// ALPN protocol offered to a workload's sidecar (Istio's for mTLS between proxies).
const ALPN: &[u8] = b"istio";
/// Maximum size of a file in bytes.
const FILE_MAX: u64 = 1 << 20;

/// Reads a client's identity from `cert-chain.pem`, `key.pem` and `root-cert.pem` in `directory`,
/// in the form of [`super::authority::write_workload`].
///
/// # Errors
/// If a file can't be read or is invalid.
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

/// A new key and its certificate request. The key never leaves this process.
#[derive(Debug)]
pub struct MeshClientRequest {
    key: KeyPair,
    /// The request in PEM. It contains no name, because the CA identifies the caller.
    pub csr: String,
}

impl MeshClientRequest {
    /// Generates a key.
    ///
    /// # Errors
    /// If no key can be generated.
    pub fn new() -> Result<Self, IdentityError> {
        let key = KeyPair::generate().map_err(signing)?;
        let request = CertificateParams::default().serialize_request(&key).map_err(signing)?;
        let csr = request.pem().map_err(signing)?;
        Ok(Self { key, csr })
    }

    /// Returns the client with the certificate issued for this request. `chain` and `roots` are PEM
    /// texts from `origin`.
    ///
    /// # Errors
    /// If they are invalid, or the certificate is not for this key.
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
    // Each probe must see the current certificate of the workload.
    config.resumption = rustls::client::Resumption::disabled();
    Ok(Arc::new(config))
}

/// Returns the workload of a connection after the handshake.
///
/// # Errors
/// If it presented no certificate, or one without exactly one SPIFFE ID.
pub fn workload(connection: &ClientConnection) -> Result<PeerIdentity, IdentityError> {
    let chain = connection.peer_certificates().ok_or(IdentityError::NoPeerCertificate)?;
    PeerIdentity::from_chain(chain)
}

/// Accepts every workload whose certificate chains to the roots, because certificates contain no
/// addresses.
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
