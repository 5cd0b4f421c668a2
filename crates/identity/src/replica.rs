//! Mutual authentication of the replicas of one control plane.
//!
//! A replica proves its identity with a certificate that names it as a replica. Only a process with
//! the CA's key can create one: the certificate must be signed by the same signing certificate that
//! this replica uses, without any CA in between, and its name is not a SPIFFE ID. The CA of a single
//! member, an agent's certificate request and a CA that shares only the root can therefore never
//! produce one, and no other part of the control plane accepts one.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::client::danger::{ServerCertVerified, ServerCertVerifier};
use rustls::server::NoServerSessionStorage;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, DistinguishedName, ServerConfig};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsConnector;
use webpki::KeyUsage;

use super::authority::LIFETIME_DEFAULT;
use super::tls::{TrustRoots, certified_key, provider, verify_tls13_signatures};
use super::{Authority, IdentityError, ReplicaId, ServerIdentity};
use strait_base::lock::lock;

/// ALPN protocol of connections between replicas: HTTP/1.1 on the port of proxies.
pub const ALPN: &[u8] = b"strait-replica/1";
/// Name in the TLS handshake. The certificate of the server is verified by its replica name.
const SERVER_NAME: &str = "replica.strait.invalid";

/// The bytes of a connection between two replicas.
pub trait ReplicaIo: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ReplicaIo for T {}

/// A connection between two replicas, whose names have been verified.
pub struct ReplicaStream {
    /// The other replica.
    pub peer: ReplicaId,
    /// The connection.
    pub io: Pin<Box<dyn ReplicaIo>>,
}

impl fmt::Debug for ReplicaStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connection of replica {}", self.peer)
    }
}

/// The TLS settings for connections between replicas.
#[derive(Debug, Clone)]
struct ReplicaTls {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
    /// The CA that issued the certificate.
    authority: Arc<Authority>,
    /// The certificate of this process.
    leaf: Option<CertificateDer<'static>>,
    renew_at: SystemTime,
}

/// Authenticates this replica to the others, and the others to this one.
#[derive(Debug)]
pub struct ReplicaAuthenticator {
    name: ReplicaId,
    identity: watch::Receiver<Arc<ServerIdentity>>,
    tls: Mutex<Option<ReplicaTls>>,
}

impl ReplicaAuthenticator {
    /// Creates the authenticator of the replica called `name`. It follows changes of the CA.
    pub fn new(name: ReplicaId, identity: watch::Receiver<Arc<ServerIdentity>>) -> Self {
        Self { name, identity, tls: Mutex::default() }
    }

    /// Returns the name of this replica.
    pub fn name(&self) -> &ReplicaId {
        &self.name
    }

    /// Returns the TLS settings to accept other replicas, or `None` if there is no CA whose key
    /// could prove that they are replicas.
    pub fn server_config(&self) -> Option<Arc<ServerConfig>> {
        self.tls(SystemTime::now()).ok().map(|tls| tls.server)
    }

    /// Returns why replicas can't authenticate each other, if they can't.
    pub fn problem(&self) -> Option<String> {
        self.tls(SystemTime::now()).err().map(|error| match error {
            IdentityError::NoAuthority => {
                "this control plane has no CA, whose key proves that a caller is a replica".into()
            }
            other => other.to_string(),
        })
    }

    /// Connects to the replica at this address. Returns `None` if it is this process itself.
    ///
    /// # Errors
    /// If it can't be reached, or does not prove that it is a replica with the same CA.
    pub async fn connect(&self, address: &str) -> io::Result<Option<ReplicaStream>> {
        let tls = self.tls(SystemTime::now()).map_err(io::Error::other)?;
        let socket = TcpStream::connect(address).await?;
        let _ = socket.set_nodelay(true);
        let name = ServerName::try_from(SERVER_NAME).map_err(io::Error::other)?;
        let stream = TlsConnector::from(tls.client).connect(name, socket).await?;
        let connection = stream.get_ref().1;
        if connection.alpn_protocol() != Some(ALPN) {
            return Err(io::Error::other("it is not a replica of this version"));
        }
        let chain = connection.peer_certificates();
        // Each process has its own certificate, also if two replicas have the same name.
        if chain.and_then(<[_]>::first) == tls.leaf.as_ref() {
            return Ok(None);
        }
        let peer = peer_name(chain)?;
        Ok(Some(ReplicaStream { peer, io: Box::pin(stream) }))
    }

    /// Returns the current settings. Their certificate is renewed after half of its lifetime, and
    /// when the CA changes.
    fn tls(&self, now: SystemTime) -> Result<ReplicaTls, IdentityError> {
        let authority = self.identity.borrow().authority.clone();
        let authority = authority.ok_or(IdentityError::NoAuthority)?;
        let mut current = lock(&self.tls);
        if let Some(tls) = &*current
            && Arc::ptr_eq(&tls.authority, &authority)
            && now < tls.renew_at
        {
            return Ok(tls.clone());
        }
        let tls = ReplicaTls::new(authority, &self.name, now)?;
        *current = Some(tls.clone());
        Ok(tls)
    }
}

/// Returns the name in the verified chain of a peer.
///
/// # Errors
/// If the peer sent no certificate, or its certificate names no replica.
pub fn peer_name(chain: Option<&[CertificateDer<'_>]>) -> io::Result<ReplicaId> {
    let leaf = chain.and_then(<[_]>::first);
    leaf.and_then(ReplicaId::from_certificate)
        .ok_or_else(|| io::Error::other("its certificate does not name a replica"))
}

impl ReplicaTls {
    fn new(
        authority: Arc<Authority>,
        name: &ReplicaId,
        now: SystemTime,
    ) -> Result<Self, IdentityError> {
        let issued = authority.issue_replica(name, now)?;
        let remaining = issued.chain.not_after().duration_since(now).unwrap_or_default();
        let verifier = Arc::new(ReplicaVerifier::new(&authority, now)?);
        let leaf = issued.chain.certificates().first().cloned();
        let origins = ["the replica's certificate", "its key"];
        let chain = leaf.iter().cloned().collect();
        let certificate = Arc::new(certified_key(chain, issued.key_der(), origins, now)?);
        let resolver = Arc::new(SingleCertAndKey::from(certificate));
        let mut server = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(Arc::<ReplicaVerifier>::clone(&verifier))
            .with_cert_resolver(Arc::<SingleCertAndKey>::clone(&resolver));
        server.alpn_protocols = vec![ALPN.to_vec()];
        server.send_tls13_tickets = 0;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        let mut client = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_client_cert_resolver(resolver);
        client.alpn_protocols = vec![ALPN.to_vec()];
        client.resumption = rustls::client::Resumption::disabled();
        let (server, client) = (Arc::new(server), Arc::new(client));
        let renew_at = now + remaining.min(LIFETIME_DEFAULT) / 2;
        Ok(Self { server, client, authority, leaf, renew_at })
    }
}

/// Accepts certificates of replicas that the CA has signed directly.
#[derive(Debug)]
struct ReplicaVerifier {
    /// The CA's signing certificate.
    signer: TrustRoots,
}

impl ReplicaVerifier {
    fn new(authority: &Authority, now: SystemTime) -> Result<Self, IdentityError> {
        let signer = vec![authority.certificate().clone()];
        let signer = TrustRoots::new(signer, "the signing certificate", now)?;
        Ok(Self { signer })
    }

    /// Verifies the leaf alone, so that no CA below the signing certificate is accepted.
    fn verify(
        &self,
        leaf: &CertificateDer<'_>,
        usage: KeyUsage,
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        let now = UNIX_EPOCH + Duration::from_secs(now.as_secs());
        let chain = [leaf.clone()];
        let verified = self.signer.verify(&chain, now, usage);
        verified.map_err(|error| rustls::Error::General(error.to_string()))?;
        match ReplicaId::from_certificate(leaf) {
            Some(_) => Ok(()),
            None => Err(rustls::Error::General("the certificate names no replica".into())),
        }
    }
}

impl ServerCertVerifier for ReplicaVerifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.verify(leaf, KeyUsage::server_auth(), now)?;
        Ok(ServerCertVerified::assertion())
    }

    verify_tls13_signatures!();
}

impl ClientCertVerifier for ReplicaVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.verify(leaf, KeyUsage::client_auth(), now)?;
        Ok(ClientCertVerified::assertion())
    }

    verify_tls13_signatures!();
}

#[cfg(test)]
mod tests;
