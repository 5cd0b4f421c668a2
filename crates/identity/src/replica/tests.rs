use std::time::Duration;

use rcgen::{BasicConstraints, DnType, IsCa, KeyPair, KeyUsagePurpose};
use rustls_pki_types::PrivateKeyDer;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::testing::{Ca, Pair, client, server};
use crate::{AuthorityForm, AuthorityPem, tls};

fn name(text: &str) -> ReplicaId {
    ReplicaId::parse(text).expect("a valid name")
}

fn settings(authority: &Arc<Authority>, replica_name: &str) -> ReplicaTls {
    ReplicaTls::new(Arc::clone(authority), &name(replica_name), SystemTime::now())
        .expect("it signs")
}

/// Performs a handshake and returns the names that the server and the client see.
async fn meet(
    server: &Arc<ServerConfig>,
    client: &Arc<ClientConfig>,
) -> (Result<ReplicaId, String>, Result<ReplicaId, String>) {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let accept = async {
        let accepted = TlsAcceptor::from(Arc::clone(server)).accept(near).await;
        let mut stream = accepted.map_err(|error| error.to_string())?;
        stream.write_all(b"x").await.map_err(|error| error.to_string())?;
        let peer = peer_name(stream.get_ref().1.peer_certificates());
        peer.map_err(|error| error.to_string())
    };
    let connect = async {
        let to = ServerName::try_from(SERVER_NAME).expect("valid");
        let connected = TlsConnector::from(Arc::clone(client)).connect(to, far).await;
        let mut stream = connected.map_err(|error| error.to_string())?;
        // The server refuses a client only after the client's part of the handshake.
        stream.read_exact(&mut [0]).await.map_err(|error| error.to_string())?;
        let peer = peer_name(stream.get_ref().1.peer_certificates());
        peer.map_err(|error| error.to_string())
    };
    let both = async { tokio::join!(accept, connect) };
    tokio::time::timeout(Duration::from_secs(10), both).await.expect("the handshake ends")
}

/// Returns a client with the settings of `tls` that presents another certificate.
fn presenting(tls: &ReplicaTls, (chain, key): Pair) -> Arc<ClientConfig> {
    let verifier = ReplicaVerifier::new(&tls.authority, SystemTime::now()).expect("sound");
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("supported")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_auth_cert(chain, key)
        .expect("a pair");
    config.alpn_protocols = vec![ALPN.to_vec()];
    Arc::new(config)
}

fn is_client(params: &mut rcgen::CertificateParams) {
    params.distinguished_name = rcgen::DistinguishedName::new();
}

#[tokio::test]
async fn replicas_with_one_ca_learn_each_others_names() {
    let authority = Arc::new(Ca::new().authority);
    let (first, second) = (settings(&authority, "strait-a"), settings(&authority, "strait-b"));
    assert_eq!(
        meet(&first.server, &second.client).await,
        (Ok(name("strait-b")), Ok(name("strait-a")))
    );
}

#[tokio::test]
async fn workload_is_never_accepted_as_a_replica() {
    let ca = Ca::new();
    let workload = ca.workload("web");
    let dns = ca.invalid(&["strait-b"], is_client);
    let two_names = ca.invalid(&["strait://replica/strait-b", "strait-b"], is_client);
    let spiffe = ca.invalid(&["spiffe://cluster.local/strait/replica/strait-b"], is_client);
    let replica = settings(&Arc::new(ca.authority), "strait-a");
    for pair in [workload, dns, two_names, spiffe] {
        let (accepted, _) = meet(&replica.server, &presenting(&replica, pair)).await;
        accepted.expect_err("it is no replica");
    }
}

#[tokio::test]
async fn ca_below_the_ca_of_replicas_cannot_create_a_replica() {
    let parent = Ca::new();
    let (chain, key) = parent.invalid(&[], |params| {
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.extended_key_usages.clear();
        params.distinguished_name.push(DnType::CommonName, "a member's CA");
    });
    let ca_cert = crate::pem::encode_all(&chain);
    let key = KeyPair::try_from(key.secret_der()).expect("PKCS#8");
    let files = AuthorityPem {
        form: AuthorityForm::Istio,
        cert_chain: ca_cert.clone(),
        ca_cert,
        ca_key: key.serialize_pem(),
        root_cert: parent.files.root_cert.clone(),
    };
    let member = Authority::new(&files, "member", SystemTime::now()).expect("sound");
    let issued = member.issue_replica(&name("strait-b"), SystemTime::now()).expect("it signs");
    let pair = (issued.chain.certificates().to_vec(), issued.key_der());
    let replica = settings(&Arc::new(parent.authority), "strait-a");
    let (accepted, _) = meet(&replica.server, &presenting(&replica, pair)).await;
    accepted.expect_err("its CA is not the CA of the replicas");

    let other = settings(&Arc::new(member), "strait-c");
    let (accepted, connected) = meet(&other.server, &replica.client).await;
    assert!(accepted.is_err() && connected.is_err(), "they share only the root");
}

#[tokio::test]
async fn certificate_of_a_replica_is_not_an_identity_of_a_proxy() {
    let ca = Ca::new();
    let issued = ca.authority.issue_replica(&name("strait-a"), SystemTime::now()).expect("signs");
    let chain = issued.chain.certificates().to_vec();
    ca.roots().authenticate(&chain, SystemTime::now()).expect_err("it has no SPIFFE ID");
    let key = PrivateKeyDer::clone_key(&issued.key_der());
    let proxies = server(&ca, ca.roots());
    let client = client((chain, key), ca.roots());
    crate::testing::handshake(&proxies, &client).await.expect_err("ADS refuses it");
    assert_ne!(ALPN, tls::ALPN);
}

#[test]
fn replicas_derive_the_same_keys_from_one_ca() {
    let ca = Ca::new();
    let again = Authority::new(&ca.files, "again", SystemTime::now()).expect("sound");
    let signature = ca.authority.shared_key("a").sign("text");
    assert!(again.shared_key("a").verify("text", &signature));
    assert!(!again.shared_key("b").verify("text", &signature));
    assert!(!Ca::new().authority.shared_key("a").verify("text", &signature));
}

#[test]
fn name_of_a_replica_is_plain() {
    for wrong in ["", "a b", "a/b", "a\n", "ä", &"a".repeat(254)] {
        ReplicaId::parse(wrong).expect_err(wrong);
    }
    assert_eq!(name("strait-7d4b9c-x2x4z").as_str(), "strait-7d4b9c-x2x4z");
}
