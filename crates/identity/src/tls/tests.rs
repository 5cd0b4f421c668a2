use rcgen::{BasicConstraints, ExtendedKeyUsagePurpose, IsCa};
use rustls::HandshakeKind;

use super::*;
use crate::testing::{Ca, client, handshake, server};

const ID: &str = "spiffe://cluster.local/ns/shop/sa/web";

#[tokio::test]
async fn workload_of_a_trusted_ca_is_accepted_with_its_identity() {
    let ca = Ca::new();
    let client = client(ca.workload("web"), ca.roots());
    let (peer, _) = handshake(&server(&ca, ca.roots()), &client).await.expect("let in");
    assert_eq!(peer.id().to_string(), ID);
    let hour = Duration::from_secs(3600);
    assert!(peer.not_after() <= SystemTime::now() + hour);
}

#[tokio::test]
async fn client_without_exactly_one_trusted_identity_is_refused() {
    let (ca, foreign) = (Ca::new(), Ca::new());
    let minute = Duration::from_secs(60);
    let now = SystemTime::now();
    let server = server(&ca, ca.roots());
    for (case, pair, reason) in [
        ("foreign CA", foreign.workload("web"), "UnknownIssuer"),
        (
            "two identities",
            ca.invalid(&[ID, "spiffe://cluster.local/ns/shop/sa/db"], |_| {}),
            "has 2 URI names",
        ),
        ("the same identity twice", ca.invalid(&[ID, ID], |_| {}), "has 2 URI names"),
        ("DNS name only", ca.invalid(&["web.shop.svc"], |_| {}), "has 0 URI names"),
        ("no name", ca.invalid(&[], |_| {}), "has 0 URI names"),
        (
            "another URI",
            ca.invalid(&["https://cluster.local/ns/shop/sa/web"], |_| {}),
            "not spiffe://",
        ),
        (
            "no service account",
            ca.invalid(&["spiffe://cluster.local/ns/shop/sa/"], |_| {}),
            "account",
        ),
        ("ended", ca.invalid(&[ID], |params| params.not_after = (now - minute).into()), "Expired"),
        (
            "not begun",
            ca.invalid(&[ID], |params| params.not_before = (now + minute).into()),
            "NotValidYet",
        ),
        (
            "for servers only",
            ca.invalid(&[ID], |params| {
                params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
            }),
            "RequiredEku",
        ),
        (
            "a CA",
            ca.invalid(&[ID], |params| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained)),
            "CaUsedAsEndEntity",
        ),
    ] {
        let refused = handshake(&server, &client(pair, ca.roots())).await;
        let error = refused.err().unwrap_or_else(|| panic!("{case}: was let in"));
        assert!(error.contains(reason), "{case}: {error}");
    }
}

#[tokio::test]
async fn additional_dns_name_is_ignored() {
    let ca = Ca::new();
    let pair = ca.invalid(&[ID, "web.shop.svc"], |_| {});
    handshake(&server(&ca, ca.roots()), &client(pair, ca.roots())).await.expect("let in");
}

#[tokio::test]
async fn client_without_certificate_tls_1_3_or_http2_is_refused() {
    let ca = Ca::new();
    let server = server(&ca, ca.roots());
    let roots = || {
        let mut store = RootCertStore::empty();
        for root in ca.roots().roots.keys() {
            store.add(CertificateDer::from(root.clone())).expect("a root");
        }
        store
    };
    let builder = |version: &'static rustls::SupportedProtocolVersion| {
        ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[version])
            .expect("the provider has it")
            .with_root_certificates(roots())
    };
    let with_alpn = |mut config: ClientConfig, protocols: &[&str]| {
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config)
    };
    let (chain, key) = ca.workload("web");
    let shown = |version| {
        builder(version).with_client_auth_cert(chain.clone(), key.clone_key()).expect("a pair")
    };
    let tls13 = &rustls::version::TLS13;
    for (case, config, reason) in [
        (
            "no certificate",
            with_alpn(builder(tls13).with_no_client_auth(), &["h2"]),
            "sent no certificates",
        ),
        ("TLS 1.2", with_alpn(shown(&rustls::version::TLS12), &["h2"]), "Tls12NotOffered"),
        ("HTTP/1.1", with_alpn(shown(tls13), &["http/1.1"]), "any known protocol"),
        ("no ALPN", with_alpn(shown(tls13), &[]), "HTTP/2"),
    ] {
        let refused = handshake(&server, &config).await;
        let error = refused.err().unwrap_or_else(|| panic!("{case}: was let in"));
        assert!(error.contains(reason), "{case}: {error}");
    }
}

#[tokio::test]
async fn session_is_never_resumed() {
    let ca = Ca::new();
    let server = server(&ca, ca.roots());
    // One client configuration, so that the second connection would use the session of the first.
    let client = client(ca.workload("web"), ca.roots());
    for _ in 0..2 {
        let (_, kind) = handshake(&server, &client).await.expect("let in");
        assert!(matches!(kind, HandshakeKind::Full), "{kind:?}");
    }
}

#[test]
fn roots_are_a_set() {
    let (a, b) = (Ca::new(), Ca::new());
    let now = SystemTime::now();
    let set = |text: String| TrustRoots::from_pem(text.as_bytes(), "bundle", now).expect("roots");
    let (a_pem, b_pem) = (a.roots().to_pem(), b.roots().to_pem());
    let both = set(format!("{a_pem}{b_pem}"));
    assert_eq!(both, set(format!("# comment\n{b_pem}{a_pem}{b_pem}")));
    assert_eq!(both.len(), 2);
    for ca in [&a, &b] {
        assert!(both.authenticate(&ca.workload("web").0, now).is_ok());
    }
}

#[test]
fn expired_root_is_not_trusted() {
    let ca = Ca::new();
    let later = ca.authority.not_after() + Duration::from_secs(2);
    let pair = ca.invalid(&[ID], |_| {});
    assert!(ca.roots().authenticate(&pair.0, SystemTime::now()).is_ok());
    assert!(matches!(
        ca.roots().authenticate(&pair.0, later),
        Err(IdentityError::Untrusted(webpki::Error::UnknownIssuer))
    ));
    let bundle = ca.roots().to_pem();
    assert!(matches!(
        TrustRoots::from_pem(bundle.as_bytes(), "bundle", later),
        Err(IdentityError::NotValidNow { .. })
    ));
}

#[test]
fn bundle_without_certificates_or_with_a_damaged_one_is_rejected() {
    let ca = Ca::new();
    let good = ca.roots().to_pem();
    let damaged = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    for bundle in ["", "x", &ca.files.ca_key, &format!("{good}{damaged}"), &good[..good.len() / 2]]
    {
        assert!(TrustRoots::from_pem(bundle.as_bytes(), "bundle", SystemTime::now()).is_err());
    }
}

#[tokio::test]
async fn trust_domain_with_dedicated_roots_accepts_no_others() {
    let (mesh, west, all) = (Ca::new(), Ca::new(), Ca::new());
    let bundle = |ca: &Ca, domains: &[&str]| {
        (ca.roots().to_pem(), domains.iter().map(|one| (*one).to_owned()).collect())
    };
    let named = NamedRoots {
        own: vec!["cluster.local".into(), "old.example".into()],
        bundles: vec![
            bundle(&west, &["west.example", "old.example"]),
            bundle(&all, &[]),
            ("no PEM".into(), vec!["bad.example".into()]),
        ],
    };
    let now = SystemTime::now();
    let trust = Arc::new(TrustRoots::clone(mesh.roots()).with_named(&named, now));
    let server = server(&mesh, &trust);
    let client_certificate =
        |ca: &Ca, domain: &str| ca.invalid(&[&format!("spiffe://{domain}/ns/shop/sa/web")], |_| {});
    for (case, pair, refused) in [
        ("the mesh's", client_certificate(&mesh, "cluster.local"), None),
        ("named for none, so for the mesh", client_certificate(&all, "cluster.local"), None),
        ("west's own", client_certificate(&west, "west.example"), None),
        ("an alias, by either", client_certificate(&mesh, "old.example"), None),
        ("an alias, by its own", client_certificate(&west, "old.example"), None),
        ("without roots of its own", client_certificate(&mesh, "other.example"), None),
        ("west for the mesh", client_certificate(&west, "cluster.local"), Some("UnknownIssuer")),
        ("west for another", client_certificate(&west, "other.example"), Some("UnknownIssuer")),
        (
            "the mesh for west",
            client_certificate(&mesh, "west.example"),
            Some("none of this domain's roots"),
        ),
        (
            "named for none, for west",
            client_certificate(&all, "west.example"),
            Some("none of this domain's roots"),
        ),
        (
            "unusable roots",
            client_certificate(&mesh, "bad.example"),
            Some("none of this domain's roots"),
        ),
        (
            "a stranger for west",
            client_certificate(&Ca::new(), "west.example"),
            Some("UnknownIssuer"),
        ),
    ] {
        let found = handshake(&server, &client(pair, mesh.roots())).await;
        match refused {
            None => assert!(found.is_ok(), "{case}: {found:?}"),
            Some(reason) => {
                let error = found.err().unwrap_or_else(|| panic!("{case}: was let in"));
                assert!(error.contains(reason), "{case}: {error}");
            }
        }
    }
}
