//! Certificates of the simulated servers: one authority per process, created on first use and never
//! stored, and a separate certificate per server.

use std::sync::{Arc, LazyLock};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::server::WebPkiClientVerifier;
use rustls::{CipherSuite, RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::TlsAcceptor;

/// The kind of certificate that a server presents. Clients that verify certificates accept only the
/// first one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Certificate {
    /// For `127.0.0.1`, `::1` and `localhost`, signed by the authority in the kubeconfig.
    #[default]
    Valid,
    /// Expired in 2020.
    Expired,
    /// For another hostname.
    WrongName,
    /// Signed by another authority than the one in the kubeconfig.
    UnknownAuthority,
}

struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

static AUTHORITY: LazyLock<Authority> = LazyLock::new(|| Authority::new("strait-sim"));

impl Authority {
    fn new(name: &str) -> Authority {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("ring makes P-256 keys");
        let certificate = params.self_signed(&key).expect("a plain CA certificate encodes");
        Authority { pem: certificate.pem(), issuer: Issuer::new(params, key) }
    }
}

/// Returns the certificate of the authority in all kubeconfigs, in PEM.
pub(crate) fn authority_pem() -> &'static str {
    &AUTHORITY.pem
}

/// A client certificate and its key.
pub(crate) struct IssuedCertificate {
    pub(crate) der: CertificateDer<'static>,
    pub(crate) certificate_pem: String,
    pub(crate) key_pem: String,
}

/// Issues a client certificate for a user.
pub(crate) fn client_certificate(user: &str) -> IssuedCertificate {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, user);
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate().expect("ring makes P-256 keys");
    let certificate = params.signed_by(&key, &AUTHORITY.issuer);
    let certificate = certificate.expect("a plain client certificate encodes");
    IssuedCertificate {
        der: certificate.der().clone(),
        certificate_pem: certificate.pem(),
        key_pem: key.serialize_pem(),
    }
}

/// Returns the TLS acceptor of a server with HTTP/1.1 and, if enabled, HTTP/2.
pub(crate) fn acceptor(kind: Certificate, http2: bool) -> TlsAcceptor {
    let names = match kind {
        Certificate::WrongName => vec!["elsewhere.example".to_owned()],
        _ => vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()],
    };
    let mut params = CertificateParams::new(names).expect("the names are valid");
    params.distinguished_name.push(DnType::CommonName, "kube-apiserver");
    if kind == Certificate::Expired {
        params.not_before = rcgen::date_time_ymd(2019, 1, 1);
        params.not_after = rcgen::date_time_ymd(2020, 1, 1);
    }
    let key = KeyPair::generate().expect("ring makes P-256 keys");
    let signed = match kind {
        Certificate::UnknownAuthority => params.signed_by(&key, &Authority::new("nobody").issuer),
        _ => params.signed_by(&key, &AUTHORITY.issuer),
    };
    let certificate = signed.expect("a plain server certificate encodes");
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let mut provider = rustls::crypto::ring::default_provider();
    // The server chooses the cipher suite, and prefers the same one as servers written in Go.
    let preferred = CipherSuite::TLS13_AES_128_GCM_SHA256;
    provider.cipher_suites.sort_by_key(|suite| suite.suite() != preferred);
    let provider = Arc::new(provider);
    let mut authorities = RootCertStore::empty();
    let authority = CertificateDer::from_pem_slice(AUTHORITY.pem.as_bytes()).expect("our own PEM");
    authorities.add(authority).expect("our own certificate");
    let clients =
        WebPkiClientVerifier::builder_with_provider(Arc::new(authorities), Arc::clone(&provider))
            .allow_unauthenticated()
            .build()
            .expect("there is an authority");
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring supports the default versions")
        .with_client_cert_verifier(clients)
        .with_single_cert(vec![certificate.der().clone()], key)
        .expect("the key belongs to the certificate");
    let protocols: &[&[u8]] = if http2 { &[b"h2", b"http/1.1"] } else { &[b"http/1.1"] };
    config.alpn_protocols = protocols.iter().map(|one| one.to_vec()).collect();
    config.ignore_client_order = true;
    TlsAcceptor::from(Arc::new(config))
}
