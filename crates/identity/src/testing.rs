//! CAs, certificates of all kinds, and real handshakes for the tests of this crate.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rcgen::{
    CertificateParams, CertificateRevocationListParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, Issuer, KeyIdMethod, KeyPair, RevokedCertParams, SanType,
    date_time_ymd,
};
use rustls::{ClientConfig, HandshakeKind, ServerConfig};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::watch;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::{Authority, AuthorityPem, NamedRoots, PeerIdentity, SpiffeId, TrustRoots, tls};

pub(crate) type Pair = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// A CA and its files.
pub(crate) struct Ca {
    pub(crate) files: AuthorityPem,
    pub(crate) authority: Authority,
}

impl Ca {
    pub(crate) fn new() -> Self {
        let now = SystemTime::now();
        let files = AuthorityPem::generate(now).expect("a CA can be made");
        let authority = Authority::new(&files, "test", now).expect("a new CA is sound");
        Self { files, authority }
    }

    /// Returns its root with other dates but the same name and key.
    pub(crate) fn with_new_dates(&self) -> AuthorityPem {
        let key = KeyPair::from_pem(&self.files.ca_key).expect("PKCS#8");
        let root = self.roots().certificates().next().expect("one root");
        let (_, parsed) = X509Certificate::from_der(root).expect("a certificate");
        let mut names = parsed.subject().iter_common_name();
        let name = names.next().and_then(|name| name.as_str().ok()).expect("it has a name");
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "Strait");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let root = params.self_signed(&key).expect("it signs").pem();
        let files = self.files.clone();
        AuthorityPem { ca_cert: root.clone(), cert_chain: root.clone(), root_cert: root, ..files }
    }

    pub(crate) fn roots(&self) -> &Arc<TrustRoots> {
        self.authority.roots()
    }

    /// Issues a valid workload certificate.
    pub(crate) fn workload(&self, name: &str) -> Pair {
        let id = id(name);
        let issued = self
            .authority
            .issue_workload(&id, Duration::from_secs(3600), SystemTime::now())
            .expect("it signs");
        (issued.chain.certificates().to_vec(), issued.key_der())
    }

    /// Returns a revocation list with these serial numbers, in PEM.
    pub(crate) fn revocation_list(&self, numbers: &[u64]) -> String {
        let issuer_key = KeyPair::from_pem(&self.files.ca_key).expect("PKCS#8");
        let issuer = Issuer::from_ca_cert_pem(&self.files.ca_cert, issuer_key).expect("a CA");
        let revoked = numbers.iter().map(|number| RevokedCertParams {
            serial_number: (*number).into(),
            revocation_time: date_time_ymd(2026, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2026, 1, 1),
            next_update: date_time_ymd(2100, 1, 1),
            crl_number: 1.into(),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&issuer).expect("it signs").pem().expect("it encodes")
    }

    /// Issues a client certificate that the production code would never issue.
    pub(crate) fn invalid(
        &self,
        names: &[&str],
        change: impl FnOnce(&mut CertificateParams),
    ) -> Pair {
        let issuer_key = KeyPair::from_pem(&self.files.ca_key).expect("PKCS#8");
        let issuer = Issuer::from_ca_cert_pem(&self.files.ca_cert, issuer_key).expect("a CA");
        let mut params = CertificateParams::default();
        for name in names {
            let name = (*name).to_owned().try_into().expect("ASCII");
            let is_uri = format!("{name:?}").contains(':');
            params.subject_alt_names.push(match is_uri {
                true => SanType::URI(name),
                false => SanType::DnsName(name),
            });
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        change(&mut params);
        let key = KeyPair::generate().expect("ring makes it");
        let leaf = params.signed_by(&key, &issuer).expect("it signs");
        (vec![leaf.into()], PrivateKeyDer::Pkcs8(key.serialize_der().into()))
    }
}

/// Returns the roots of a mesh config without any.
pub(crate) fn no_names() -> watch::Receiver<Arc<NamedRoots>> {
    watch::channel(Arc::default()).1
}

pub(crate) fn id(name: &str) -> SpiffeId {
    SpiffeId::new("cluster.local", "shop", name).expect("valid")
}

/// Returns a server with a new certificate of `ca`, which trusts `trust`.
pub(crate) fn server(ca: &Ca, trust: &Arc<TrustRoots>) -> Arc<ServerConfig> {
    let now = SystemTime::now();
    let issued = ca.authority.issue_serving(&["localhost".to_owned()], now).expect("it signs");
    let chain = issued.chain.certificates().to_vec();
    let certified = tls::certified_key(chain, issued.key_der(), ["c", "k"], now).expect("a pair");
    tls::server_config(&Arc::new(certified), trust, tls::ClientCertificates::Required)
        .expect("a server configuration")
}

/// Returns a client that presents `pair` and trusts `trust`.
pub(crate) fn client((chain, key): Pair, trust: &TrustRoots) -> Arc<ClientConfig> {
    tls::client_config(chain, key, trust).expect("a client configuration")
}

/// Performs a handshake and returns the server's result. The client reads all that the server sends
/// afterwards.
pub(crate) async fn handshake(
    server: &Arc<ServerConfig>,
    client: &Arc<ClientConfig>,
) -> Result<(PeerIdentity, HandshakeKind), String> {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let acceptor = TlsAcceptor::from(Arc::clone(server));
    let connector = TlsConnector::from(Arc::clone(client));
    let accept = async {
        let mut stream = acceptor.accept(near).await.map_err(|error| tls::failure(&error))?;
        stream.shutdown().await.map_err(|error| error.to_string())?;
        let connection = stream.get_ref().1;
        let peer = tls::peer(connection).map_err(|error| error.to_string())?;
        let tls::ConnectionPeer::Workload(peer) = peer else {
            return Err("no certificate of a workload".to_owned());
        };
        Ok::<_, String>((peer, connection.handshake_kind().expect("it is done")))
    };
    let connect = async {
        let name = ServerName::try_from("localhost").expect("valid");
        let mut stream = connector.connect(name, far).await.map_err(|error| error.to_string())?;
        // Session tickets would follow the handshake.
        let _ = stream.read_to_end(&mut Vec::new()).await;
        Ok::<_, String>(())
    };
    let both = async { tokio::join!(accept, connect) };
    let (accepted, connected) = tokio::time::timeout(Duration::from_secs(10), both)
        .await
        .map_err(|_| "the handshake never ended".to_owned())?;
    let accepted = accepted?;
    connected.map(|()| accepted)
}
