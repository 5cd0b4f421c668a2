use std::collections::HashMap;

use rcgen::{CertificateParams, KeyPair};
use strait_proto::envoy::google::protobuf::{Struct, Value};

use super::*;
use crate::identity::authority::LIFETIME_MAX;
use crate::identity::caller::{CallerAnswer, CallerRegistry, TokenProof};
use crate::identity::testing::{Ca, id, no_names};
use crate::identity::tls::ClientCertificates;
use crate::identity::{
    AuthorityFrom, CertificateSettings, RootEvidence, Serving, SpiffeId, TrustRoots, rotation,
};
use crate::task::Supervisor;

/// Knows that cluster `east` runs pods of account `web`, and nobody by a token.
#[derive(Debug)]
struct EastRunsWeb;

impl CallerRegistry for EastRunsWeb {
    fn verify<'a>(&'a self, _: &'a str, _: &'a ClusterId) -> CallerAnswer<'a> {
        Box::pin(std::future::pending())
    }

    fn runs(&self, cluster: &ClusterId, identity: &SpiffeId) -> bool {
        cluster.as_str() == "east" && *identity == id("web")
    }
}

/// A service whose CA is `ca`, and the request of a caller with a good certificate request.
fn service(ca: &Ca) -> (CertificateService, Supervisor) {
    let tasks = Supervisor::new();
    let settings = CertificateSettings {
        serving: Serving::Issued { names: vec!["localhost".to_owned()] },
        client_ca: None,
        authority: Some(AuthorityFrom::Stored(ca.files.clone())),
        named: no_names(),
        clients: ClientCertificates::Optional,
        evidence: RootEvidence::none(),
    };
    let identity = rotation::start(settings, rotation::INTERVAL, &tasks).expect("a sound CA");
    let trust_domain = watch::channel(Some("cluster.local".into())).1;
    let service = CertificateService::new(
        identity,
        trust_domain,
        Arc::new(EastRunsWeb),
        Arc::default(),
        LIFETIME_MAX,
    );
    (service, tasks)
}

fn request(
    caller: Option<&Ca>,
    change: impl FnOnce(&mut IstioCertificateRequest),
) -> Request<IstioCertificateRequest> {
    let key = KeyPair::generate().expect("ring makes it");
    let csr = CertificateParams::default().serialize_request(&key).expect("it signs");
    let mut message = IstioCertificateRequest {
        csr: csr.pem().expect("PEM"),
        validity_duration: 0,
        metadata: None,
    };
    change(&mut message);
    let mut request = Request::new(message);
    if let Some(ca) = caller {
        let (chain, _) = ca.workload("web");
        let peer = ca.roots().authenticate(&chain, SystemTime::now()).expect("verifies");
        let caller = Caller::of_certificate(Arc::new(peer), Some("east".into()));
        request.extensions_mut().insert(caller);
    }
    request
}

#[tokio::test]
async fn a_caller_gets_a_certificate_for_itself_with_the_roots_last() {
    let ca = Ca::new();
    let (service, _tasks) = service(&ca);
    let answer = service.create_certificate(request(Some(&ca), |_| {})).await.expect("signed");
    let cert_chain = answer.into_inner().cert_chain;
    let [leaf, roots] = &cert_chain[..] else { panic!("{} elements", cert_chain.len()) };
    let roots = TrustRoots::from_pem(roots.as_bytes(), "answer", SystemTime::now()).expect("roots");
    let leaf = crate::identity::pem::certificates(leaf.as_bytes(), "answer").expect("a leaf");
    let peer = roots.authenticate(&leaf, SystemTime::now()).expect("verifies");
    assert_eq!(peer.id(), &id("web"));
}

#[tokio::test]
async fn a_caller_that_is_no_longer_believed_gets_nothing() {
    let (ca, other) = (Ca::new(), Ca::new());
    // It was let in under other roots than those that count now.
    let (service, _tasks) = service(&ca);
    let status = service.create_certificate(request(Some(&other), |_| {})).await;
    let status = status.expect_err("refused");
    assert_eq!(status.code(), Code::Unauthenticated, "{status}");
    // Its certificate has ended while its connection lasted.
    let request = request(Some(&ca), |_| {});
    let caller = request.extensions().get::<Caller>().expect("a caller").clone();
    let later = SystemTime::now() + Duration::from_secs(3601);
    let status = service.sign(&caller, request.into_inner(), later).await.expect_err("refused");
    assert_eq!(status.code(), Code::Unauthenticated, "{status}");
}

#[tokio::test]
async fn what_the_caller_has_no_right_to_is_refused() {
    let ca = Ca::new();
    let (service, _tasks) = service(&ca);
    let field = |name: &str, text: &str| {
        let kind = Some(Kind::StringValue(text.to_owned()));
        Some(Struct { fields: HashMap::from([(name.to_owned(), Value { kind })]) })
    };
    let impersonating = |text: &str| field("ImpersonatedIdentity", text);
    let signer = |text: &str| field("CertSigner", text);
    // Agents always send it.
    let usual = request(Some(&ca), |r| r.metadata = signer(""));
    service.create_certificate(usual).await.expect("signed");
    let other = SpiffeId::new("cluster.local", "shop", "db").expect("valid").to_string();
    for (request, code) in [
        (request(None, |_| {}), Code::Unauthenticated),
        (request(Some(&ca), |r| r.csr.clear()), Code::InvalidArgument),
        (request(Some(&ca), |r| r.validity_duration = -1), Code::InvalidArgument),
        (request(Some(&ca), |r| r.validity_duration = 91 * 86_400), Code::InvalidArgument),
        (request(Some(&ca), |r| r.validity_duration = i64::MAX), Code::InvalidArgument),
        (request(Some(&ca), |r| r.metadata = impersonating(&other)), Code::PermissionDenied),
        (request(Some(&ca), |r| r.metadata = signer("a.example/b")), Code::InvalidArgument),
    ] {
        let status = service.create_certificate(request).await.expect_err("refused");
        assert_eq!(status.code(), code, "{status}");
    }
    let failed: Vec<_> = service.stats.failed_by_reason().into_iter().collect();
    assert_eq!(failed, [("CSR_ERROR", 1), ("TTL_ERROR", 2)]);
    let trust_domain = watch::channel(Some("other.example".into())).1;
    let service = CertificateService { trust_domain, ..service };
    let status = service.create_certificate(request(Some(&ca), |_| {})).await.expect_err("refused");
    assert_eq!(status.code(), Code::PermissionDenied);
}

/// A request of `web` that is proven by `caller`.
fn called_by(caller: Caller) -> Request<IstioCertificateRequest> {
    let mut request = request(None, |_| {});
    request.extensions_mut().insert(caller);
    request
}

#[tokio::test]
async fn a_token_is_enough_and_a_certificate_is_renewed_only_where_its_pod_is_known() {
    let ca = Ca::new();
    let (service, _tasks) = service(&ca);
    let by_certificate = |name: &str, cluster: Option<&str>| {
        let (chain, _) = ca.workload(name);
        let peer = ca.roots().authenticate(&chain, SystemTime::now()).expect("verifies");
        Caller::of_certificate(Arc::new(peer), cluster.map(ClusterId::from))
    };
    let proof =
        TokenProof { cluster: "west".into(), named: true, pod: None, expires: SystemTime::now() };
    let by_token = Caller::of_token(id("db"), proof);
    for (caller, code) in [
        (by_token, None),
        (by_certificate("web", Some("east")), None),
        (by_certificate("web", Some("west")), Some(Code::PermissionDenied)),
        (by_certificate("web", None), Some(Code::PermissionDenied)),
        (by_certificate("db", Some("east")), Some(Code::PermissionDenied)),
    ] {
        let found = service.create_certificate(called_by(caller.clone())).await;
        assert_eq!(found.err().map(|status| status.code()), code, "{caller:?}");
    }
    assert_eq!(service.stats.asked.load(Ordering::Relaxed), 5);
    assert_eq!(service.stats.issued.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn certificates_are_exchanged_for_others_for_thirty_days_and_then_by_token_only() {
    let ca = Ca::new();
    let (service, _tasks) = service(&ca);
    let start = SystemTime::now();
    let day = Duration::from_secs(24 * 3600);
    // Made by hand, it says nothing of a token: 25 days, and then 10 more.
    let (chain, _) = ca.workload("web");
    let peer = ca.roots().authenticate(&chain, start).expect("verifies");
    let csr = |peer: PeerIdentity| {
        let caller = Caller::of_certificate(Arc::new(peer), Some("east".into()));
        let long = request(None, |request| request.validity_duration = 60 * 86_400);
        (caller, long.into_inner())
    };
    let (caller, asked) = csr(peer);
    let first = service.sign(&caller, asked, start).await.expect("it counts from now on");
    let (caller, asked) = csr(peer_of_at(&ca, first, start + day));
    let second = service.sign(&caller, asked, start + 25 * day).await.expect("within 30 days");
    let (caller, asked) = csr(peer_of_at(&ca, second, start + 26 * day));
    let late = service.sign(&caller, asked, start + 35 * day).await.expect_err("too long");
    assert_eq!(late.code(), Code::PermissionDenied);
    assert!(late.message().starts_with("STR0554"), "{late}");
    let proof = TokenProof { cluster: "east".into(), named: true, pod: None, expires: start };
    let by_token = Caller::of_token(id("web"), proof);
    let (_, asked) = csr(ca.roots().authenticate(&chain, start).expect("verifies"));
    service.sign(&by_token, asked, start + 35 * day).await.expect("a token begins anew");
}

/// Who shows the certificate of an answer.
fn peer_of_at(ca: &Ca, answer: IstioCertificateResponse, at: SystemTime) -> PeerIdentity {
    let leaf = answer.cert_chain.first().expect("a leaf").as_bytes();
    let leaf = crate::identity::pem::certificates(leaf, "answer").expect("a leaf");
    ca.roots().authenticate(&leaf, at).expect("verifies")
}

#[tokio::test]
async fn the_longest_life_that_is_allowed_is_a_setting() {
    let ca = Ca::new();
    let (service, _tasks) = service(&ca);
    let service = CertificateService { lifetime_max: Duration::from_secs(7200), ..service };
    let lifetime = async |asked: i64| {
        let request = request(Some(&ca), |request| request.validity_duration = asked);
        let answer = service.create_certificate(request).await?.into_inner();
        let peer = peer_of_at(&ca, answer, SystemTime::now());
        Ok::<_, Status>(peer.not_after().duration_since(SystemTime::now()).unwrap_or_default())
    };
    assert!(lifetime(0).await.expect("the usual, cut short") <= Duration::from_secs(7200));
    assert!(lifetime(7200).await.is_ok());
    let refused = lifetime(7201).await.expect_err("not cut short");
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("7200 s, not 7201 s"), "{refused}");
}
