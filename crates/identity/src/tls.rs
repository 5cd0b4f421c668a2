//! TLS settings: TLS 1.3 only, HTTP/2 or the protocol of relays, no resumption; client certificates
//! are optional or required.
//!
//! There is no resumption, because a resumed session keeps its old identity without verification
//! and would survive a change of roots. Only this module names the cryptographic provider, so that
//! no process-wide default is needed.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::server::NoServerSessionStorage;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    CertificateError, ClientConfig, DistinguishedName, OtherError, RootCertStore, ServerConfig,
    ServerConnection,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, TrustAnchor, UnixTime};
use tracing::warn;
use webpki::{EndEntityCert, ExtendedKeyUsageValidator, KeyUsage};

use super::error::IdentityError;
use super::peer::validity;
use super::{PeerIdentity, RelayIdentity, SpiffeId, pem, relay_identity};

/// The protocol of proxies, and of relays that request a certificate.
pub const ALPN: &[u8] = b"h2";
/// The protocol of connections of relays, on which the server sends the requests.
pub const RELAY_ALPN: &[u8] = b"strait-relay/1";

/// Returns the cryptographic provider of the process.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Trusted root certificates: a set, so that the old and the new root are both trusted while
/// proxies move from one to the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustRoots {
    roots: Roots,
    /// Roots of trust domains with dedicated roots; no other root may sign for these domains.
    dedicated: BTreeMap<String, Roots>,
    /// Roots that sign only for relays. If set, no other root may sign for relays.
    relays: Option<Roots>,
}

/// Roots by certificate in DER.
type Roots = BTreeMap<Vec<u8>, Root>;

/// Additional roots, and the trust domains that they may sign for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NamedRoots {
    /// Names of the mesh's own trust domain, for which the client CA may always sign.
    pub own: Vec<String>,
    /// PEM bundles, each with its trust domains; a bundle without domains is equivalent to the
    /// client CA.
    pub bundles: Vec<(String, Vec<String>)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Root {
    anchor: TrustAnchor<'static>,
    not_after: SystemTime,
}

impl TrustRoots {
    /// Reads all certificates of a PEM bundle; `origin` is for messages.
    ///
    /// # Errors
    /// If the bundle is empty, a certificate in it can't be parsed, or all of them have expired by
    /// `now`.
    pub fn from_pem(bundle: &[u8], origin: &str, now: SystemTime) -> Result<Self, IdentityError> {
        Self::new(pem::certificates(bundle, origin)?, origin, now)
    }

    /// Creates a set from parsed certificates, as [`Self::from_pem`] does.
    pub fn new(
        certificates: Vec<CertificateDer<'static>>,
        origin: &str,
        now: SystemTime,
    ) -> Result<Self, IdentityError> {
        let mut roots = BTreeMap::new();
        let mut ended = None;
        for (index, certificate) in certificates.into_iter().enumerate() {
            let refused = |reason: String| IdentityError::Certificate {
                origin: origin.to_owned(),
                number: index + 1,
                reason,
            };
            let anchor = webpki::anchor_from_trusted_cert(&certificate)
                .map_err(|error| refused(error.to_string()))?
                .to_owned();
            let (not_before, not_after) =
                validity(&certificate).ok_or_else(|| refused("it can't be parsed".to_owned()))?;
            if not_after < now {
                ended = Some(IdentityError::NotValidNow {
                    origin: origin.to_owned(),
                    not_before,
                    not_after,
                });
            }
            roots.insert(certificate.to_vec(), Root { anchor, not_after });
        }
        match ended {
            Some(error) if roots.values().all(|root| root.not_after < now) => Err(error),
            _ => Ok(Self { roots, dedicated: BTreeMap::new(), relays: None }),
        }
    }

    /// Adds named roots. A trust domain with an invalid bundle has no roots, so that no client can
    /// belong to it; accepting any client would be worse.
    #[must_use]
    pub fn with_named(mut self, named: &NamedRoots, now: SystemTime) -> Self {
        for (bundle, domains) in &named.bundles {
            let read = Self::from_pem(bundle.as_bytes(), "caCertificates of the mesh config", now);
            let roots = read.map(|read| read.roots).unwrap_or_else(|error| {
                warn!(code = error.code(), %error, ?domains, "ignoring invalid roots");
                Roots::new()
            });
            for domain in domains {
                self.dedicated.entry(domain.clone()).or_default().extend(roots.clone());
            }
            if domains.is_empty() {
                self.roots.extend(roots);
            }
        }
        for own in &named.own {
            if let Some(roots) = self.dedicated.get_mut(own) {
                roots.extend(self.roots.clone());
            }
        }
        self
    }

    /// Makes `relays` the only roots for relays. These roots are valid for no other client.
    #[must_use]
    pub(super) fn with_relays(self, relays: &Self) -> Self {
        Self { relays: Some(relays.roots.clone()), ..self }
    }

    /// Returns the number of roots.
    pub fn len(&self) -> usize {
        self.roots.len()
    }

    /// Returns `false`, because an empty bundle is an error.
    pub fn is_empty(&self) -> bool {
        self.roots.is_empty()
    }

    /// Returns the set as one PEM bundle, in a fixed order.
    pub fn to_pem(&self) -> String {
        self.roots.keys().map(|root| pem::encode(&root.as_slice().into())).collect()
    }

    /// Returns each certificate in DER, including those that may only sign for their own trust
    /// domains.
    pub(super) fn certificates(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.roots.keys().chain(self.dedicated.values().flat_map(BTreeMap::keys))
    }

    /// Returns whether the set contains `certificate`.
    pub(super) fn contains(&self, certificate: &CertificateDer<'_>) -> bool {
        self.roots.contains_key(certificate.as_ref())
    }

    /// Returns whether the set contains a root with the name and key of `certificate`: both verify
    /// the same chains.
    pub(super) fn contains_equivalent(&self, certificate: &CertificateDer<'_>) -> bool {
        self.roots.keys().any(|root| are_equivalent(&root.as_slice().into(), certificate))
    }

    /// Returns the roots, in DER, each of which alone verifies `chain`, leaf first.
    pub(super) fn leading(&self, chain: &[CertificateDer<'_>], now: SystemTime) -> Vec<&Vec<u8>> {
        let verifies = |(der, root): &(&Vec<u8>, &Root)| {
            let alone = Roots::from([((*der).clone(), (*root).clone())]);
            verify(&alone, chain, now, KeyUsage::client_auth()).is_ok()
        };
        self.roots.iter().filter(verifies).map(|(der, _)| der).collect()
    }

    /// Adds roots. Certificates that can't be parsed are ignored.
    #[must_use]
    pub(super) fn with(mut self, further: &[CertificateDer<'static>], now: SystemTime) -> Self {
        for certificate in further {
            if let Ok(retained) = Self::new(vec![certificate.clone()], "a retained root", now) {
                self.roots.extend(retained.roots);
            }
        }
        self
    }

    /// Verifies a client's chain, leaf first, and reads its identity.
    ///
    /// # Errors
    /// If it chains to none of the roots, a certificate is not valid at `now` or not meant for
    /// clients, or the leaf does not contain exactly one SPIFFE ID.
    pub fn authenticate(
        &self,
        chain: &[CertificateDer<'_>],
        now: SystemTime,
    ) -> Result<PeerIdentity, IdentityError> {
        let domain = chain.first().and_then(|leaf| SpiffeId::from_certificate(leaf).ok());
        self.verify_client(chain, domain.as_ref().map(SpiffeId::trust_domain), now)?;
        PeerIdentity::from_chain(chain)
    }

    /// Verifies the chain of a relay, leaf first, and reads its identity.
    ///
    /// # Errors
    /// As [`Self::authenticate`]; also if the leaf is not the certificate of a relay.
    pub fn authenticate_relay(
        &self,
        chain: &[CertificateDer<'_>],
        now: SystemTime,
    ) -> Result<RelayIdentity, IdentityError> {
        match &self.relays {
            Some(relays) => verify(relays, chain, now, KeyUsage::client_auth())?,
            None => {
                let leaf = chain.first().ok_or(IdentityError::NoPeerCertificate)?;
                let name = relay_identity::relay_name(leaf)?;
                self.verify_client(chain, name.as_ref().map(|(domain, _)| &**domain), now)?;
            }
        }
        RelayIdentity::from_chain(chain)
    }

    /// Verifies the chain of a client in trust domain `domain` with the roots of that domain.
    fn verify_client(
        &self,
        chain: &[CertificateDer<'_>],
        domain: Option<&str>,
        now: SystemTime,
    ) -> Result<(), IdentityError> {
        let dedicated = domain.and_then(|domain| self.dedicated.get_key_value(domain));
        let verify = |roots| verify(roots, chain, now, KeyUsage::client_auth());
        match dedicated {
            None => verify(&self.roots),
            Some((domain, roots)) => verify(roots).map_err(|error| {
                let mut others = self.dedicated.values().chain([&self.roots]);
                match others.any(|others| verify(others).is_ok()) {
                    true => IdentityError::ForeignRoot { trust_domain: domain.clone() },
                    false => error,
                }
            }),
        }
    }

    /// Verifies a chain of this control plane, leaf first.
    pub(super) fn verify(
        &self,
        chain: &[CertificateDer<'_>],
        now: SystemTime,
        usage: impl ExtendedKeyUsageValidator,
    ) -> Result<(), IdentityError> {
        verify(&self.roots, chain, now, usage)
    }
}

/// Returns whether two roots have the same name and key: both verify the same chains while they are
/// valid.
pub(super) fn are_equivalent(first: &CertificateDer<'_>, other: &CertificateDer<'_>) -> bool {
    let anchors = [first, other].map(|certificate| webpki::anchor_from_trusted_cert(certificate));
    let [Ok(first), Ok(other)] = anchors else { return false };
    first.subject == other.subject && first.subject_public_key_info == other.subject_public_key_info
}

/// Verifies a chain, leaf first. webpki does not support URI name constraints and rejects chains
/// that contain them.
fn verify(
    roots: &Roots,
    chain: &[CertificateDer<'_>],
    now: SystemTime,
    usage: impl ExtendedKeyUsageValidator,
) -> Result<(), IdentityError> {
    let (leaf, intermediates) = chain.split_first().ok_or(IdentityError::NoPeerCertificate)?;
    // webpki does not check the expiry of anchors.
    let anchors: Vec<_> = roots
        .values()
        .filter(|root| root.not_after >= now)
        .map(|root| root.anchor.clone())
        .collect();
    let since_epoch = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    EndEntityCert::try_from(leaf)
        .and_then(|leaf| {
            leaf.verify_for_usage(
                algorithms().all,
                &anchors,
                intermediates,
                UnixTime::since_unix_epoch(since_epoch),
                usage,
                None,
                None,
            )
            .map(|_| ())
        })
        .map_err(IdentityError::Untrusted)
}

/// Whether a client needs a certificate. A presented certificate must be valid in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientCertificates {
    /// The handshake fails without a certificate.
    Required,
    /// A client without a certificate must authenticate with each call.
    Optional,
}

/// Returns the TLS configuration of the server.
pub fn server_config(
    certificate: &Arc<CertifiedKey>,
    trust: &Arc<TrustRoots>,
    clients: ClientCertificates,
) -> Result<Arc<ServerConfig>, IdentityError> {
    let verifier = ClientVerifier { trust: Arc::clone(trust), clients };
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(certificate))));
    config.alpn_protocols = vec![ALPN.to_vec(), RELAY_ALPN.to_vec()];
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    Ok(Arc::new(config))
}

/// Returns the TLS configuration of a port whose clients don't authenticate: API servers that call
/// the webhook.
pub(super) fn public_server_config(
    certificate: &Arc<CertifiedKey>,
) -> Result<Arc<ServerConfig>, IdentityError> {
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(certificate))));
    config.alpn_protocols = vec![ALPN.to_vec(), b"http/1.1".to_vec()];
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    Ok(Arc::new(config))
}

/// Returns the TLS configuration of a client of the control plane, for the demo and tests.
pub fn client_config(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    trust: &TrustRoots,
) -> Result<Arc<ClientConfig>, IdentityError> {
    let mut roots = RootCertStore::empty();
    for root in trust.roots.keys() {
        roots.add(CertificateDer::from(root.as_slice()).into_owned())?;
    }
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(Arc::new(config))
}

/// The peer of a connection after its handshake.
#[derive(Debug, Clone)]
pub enum ConnectionPeer {
    /// It presented no certificate.
    Unknown,
    /// A workload.
    Workload(PeerIdentity),
    /// A relay that requests a certificate.
    EnrolledRelay(RelayIdentity),
    /// A relay on whose connection the server sends the requests.
    Relay(RelayIdentity),
}

/// Returns the peer of a connection after its handshake.
///
/// # Errors
/// If the protocol is neither HTTP/2 nor that of relays (rustls accepts clients that offer no ALPN),
/// or the certificate is not of the kind that the protocol requires.
pub fn peer(connection: &ServerConnection) -> Result<ConnectionPeer, IdentityError> {
    let chain = connection.peer_certificates();
    let is_relay = chain.and_then(<[_]>::first).is_some_and(relay_identity::is_relay);
    match (connection.alpn_protocol(), chain) {
        (Some(ALPN), None) => Ok(ConnectionPeer::Unknown),
        (Some(ALPN), Some(chain)) if is_relay => {
            RelayIdentity::from_chain(chain).map(ConnectionPeer::EnrolledRelay)
        }
        (Some(ALPN), Some(chain)) => PeerIdentity::from_chain(chain).map(ConnectionPeer::Workload),
        (Some(RELAY_ALPN), Some(chain)) => {
            RelayIdentity::from_chain(chain).map(ConnectionPeer::Relay)
        }
        (Some(RELAY_ALPN), None) => Err(IdentityError::NoPeerCertificate),
        _ => Err(IdentityError::NotHttp2),
    }
}

/// Returns the reason of a failed handshake as text, including the result of this module's
/// verifier. A proxy's own log does not contain it.
pub fn failure(error: &io::Error) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match inner {
        Some(rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(reason)))) => {
            reason.to_string()
        }
        Some(reason) => reason.to_string(),
        None => error.to_string(),
    }
}

/// Returns a chain and its key after checking that they belong together and are valid now.
pub(super) fn certified_key(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    [certificate_origin, key_origin]: [&str; 2],
    now: SystemTime,
) -> Result<CertifiedKey, IdentityError> {
    let key = provider()
        .key_provider
        .load_private_key(key)
        .map_err(|_| IdentityError::Key { origin: key_origin.to_owned() })?;
    for (index, certificate) in chain.iter().enumerate() {
        let (not_before, not_after) =
            validity(certificate).ok_or_else(|| IdentityError::Certificate {
                origin: certificate_origin.to_owned(),
                number: index + 1,
                reason: "it can't be parsed".to_owned(),
            })?;
        if now < not_before || not_after < now {
            let origin = certificate_origin.to_owned();
            return Err(IdentityError::NotValidNow { origin, not_before, not_after });
        }
    }
    let certified = CertifiedKey::new(chain, key);
    match certified.keys_match() {
        Ok(()) => Ok(certified),
        Err(_) => Err(IdentityError::KeyMismatch {
            certificate: certificate_origin.to_owned(),
            key: key_origin.to_owned(),
        }),
    }
}

/// Returns the signature algorithms that are accepted.
pub(super) fn algorithms() -> WebPkiSupportedAlgorithms {
    rustls::crypto::ring::default_provider().signature_verification_algorithms
}

/// Implements the methods of a certificate verifier that check signatures, for TLS 1.3 only.
macro_rules! verify_tls13_signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &rustls_pki_types::CertificateDer<'_>,
            _: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            Err(rustls::Error::General("TLS 1.2 is not supported".to_owned()))
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &rustls_pki_types::CertificateDer<'_>,
            signature: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            let algorithms = $crate::tls::algorithms();
            rustls::crypto::verify_tls13_signature(message, certificate, signature, &algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
            $crate::tls::algorithms().supported_schemes()
        }
    };
}
pub(super) use verify_tls13_signatures;

/// Accepts workloads that [`TrustRoots::authenticate`] accepts, and relays that
/// [`TrustRoots::authenticate_relay`] accepts.
#[derive(Debug)]
struct ClientVerifier {
    trust: Arc<TrustRoots>,
    clients: ClientCertificates,
}

impl ClientCertVerifier for ClientVerifier {
    fn client_auth_mandatory(&self) -> bool {
        self.clients == ClientCertificates::Required
    }

    /// Sends no hints: a proxy has one certificate, and hints could only prevent it from sending
    /// it.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let mut chain = vec![end_entity.clone()];
        chain.extend_from_slice(intermediates);
        let now = UNIX_EPOCH + Duration::from_secs(now.as_secs());
        let accepted = match relay_identity::is_relay(end_entity) {
            true => self.trust.authenticate_relay(&chain, now).map(drop),
            false => self.trust.authenticate(&chain, now).map(drop),
        };
        match accepted {
            Ok(()) => Ok(ClientCertVerified::assertion()),
            // Only these two have a specific alert, which is all that the client learns.
            Err(IdentityError::Untrusted(webpki::Error::UnknownIssuer)) => {
                Err(CertificateError::UnknownIssuer.into())
            }
            Err(IdentityError::Untrusted(webpki::Error::CertExpired { .. })) => {
                Err(CertificateError::Expired.into())
            }
            Err(error) => Err(CertificateError::Other(OtherError(Arc::new(error))).into()),
        }
    }

    verify_tls13_signatures!();
}

/// Returns whether a client that trusts `trust` would accept this server.
pub(super) fn serves(trust: &TrustRoots, certificate: &CertifiedKey, now: SystemTime) -> bool {
    trust.verify(&certificate.cert, now, KeyUsage::server_auth()).is_ok()
}

#[cfg(test)]
mod tests;
