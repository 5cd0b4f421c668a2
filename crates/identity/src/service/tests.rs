use std::collections::HashMap;
use std::path::Path;

use rcgen::{CertificateParams, KeyPair};

use super::*;
use crate::authority::LIFETIME_MAX;
use crate::caller::{CallerAnswer, CallerRegistry, TokenProof};
use crate::proof_time;
use crate::testing::{Ca, id, no_names};
use crate::tls::ClientCertificates;
use crate::{
    AuthorityFrom, CertificateSettings, RootEvidence, Serving, SpiffeId, TrustRoots, rotation,
};
use strait_base::task::Supervisor;
use strait_proto::envoy::google::protobuf::{Struct, Value};

/// Knows that clusters `east` and `west` run pods of account `web`, and that `alias` is a name of
/// the first. Never verifies a token.
#[derive(Debug)]
struct BothRunWeb;

impl CallerRegistry for BothRunWeb {
    fn member_called(&self, name: &ClusterId) -> ClusterId {
        if name.as_str() == "alias" { "east".into() } else { name.clone() }
    }

    fn verify<'a>(&'a self, _: &'a str, _: &'a ClusterId) -> CallerAnswer<'a> {
        Box::pin(std::future::pending())
    }

    fn runs(&self, cluster: &ClusterId, identity: &SpiffeId) -> bool {
        ["east", "west"].contains(&self.member_called(cluster).as_str()) && *identity == id("web")
    }
}

/// Returns a service with the CA `ca`.
fn service(ca: &Ca) -> (CertificateService, Supervisor) {
    service_with(ca, [])
}

/// Returns a service whose members have dedicated CAs in these directories.
fn service_with<const N: usize>(
    ca: &Ca,
    members: [(&str, &Path); N],
) -> (CertificateService, Supervisor) {
    let tasks = Supervisor::new();
    let settings = CertificateSettings {
        serving: Serving::Issued { names: vec!["localhost".to_owned()] },
        client_ca: None,
        authority: Some(AuthorityFrom::Stored(ca.files.clone())),
        relay_authority: None,
        named: no_names(),
        clients: ClientCertificates::Optional,
        evidence: RootEvidence::empty(),
        members: members.map(|(member, folder)| (member.into(), folder.to_owned())).into(),
    };
    let identity = rotation::start(settings, Duration::from_millis(5), &tasks).expect("a sound CA");
    let trust_domain = watch::channel(Some("cluster.local".into())).1;
    let service = CertificateService::new(
        identity,
        trust_domain,
        Arc::new(BothRunWeb),
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
        let caller = Caller::from_certificate(Arc::new(peer), Some("east".into()));
        request.extensions_mut().insert(caller);
    }
    request
}

#[tokio::test]
async fn caller_receives_its_certificate_with_the_roots_last() {
    let ca = Ca::new();
    let (service, _tasks) = service(&ca);
    let answer = service.create_certificate(request(Some(&ca), |_| {})).await.expect("signed");
    let cert_chain = answer.into_inner().cert_chain;
    let [leaf, roots] = &cert_chain[..] else { panic!("{} elements", cert_chain.len()) };
    let roots = TrustRoots::from_pem(roots.as_bytes(), "answer", SystemTime::now()).expect("roots");
    let leaf = crate::pem::certificates(leaf.as_bytes(), "answer").expect("a leaf");
    let peer = roots.authenticate(&leaf, SystemTime::now()).expect("verifies");
    assert_eq!(peer.id(), &id("web"));
}

#[tokio::test]
async fn caller_that_is_no_longer_trusted_receives_nothing() {
    let (ca, other) = (Ca::new(), Ca::new());
    // The caller was accepted under roots that are no longer active.
    let (service, _tasks) = service(&ca);
    let status = service.create_certificate(request(Some(&other), |_| {})).await;
    let status = status.expect_err("refused");
    assert_eq!(status.code(), Code::Unauthenticated, "{status}");
    // The caller's certificate has expired during the connection.
    let request = request(Some(&ca), |_| {});
    let caller = request.extensions().get::<Caller>().expect("a caller").clone();
    let later = SystemTime::now() + Duration::from_secs(3601);
    let status = service.sign(&caller, request.into_inner(), later).await.expect_err("refused");
    assert_eq!(status.code(), Code::Unauthenticated, "{status}");
}

#[tokio::test]
async fn unauthorized_request_is_refused() {
    let ca = Ca::new();
    let (service, _tasks) = service(&ca);
    let field = |name: &str, text: &str| {
        let kind = Some(Kind::StringValue(text.to_owned()));
        Some(Struct { fields: HashMap::from([(name.to_owned(), Value { kind })]) })
    };
    let impersonating = |text: &str| field("ImpersonatedIdentity", text);
    let signer = |text: &str| field("CertSigner", text);
    // Agents always send this field.
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

/// Returns a request of `web` with this proof.
fn called_by(caller: Caller) -> Request<IstioCertificateRequest> {
    let mut request = request(None, |_| {});
    request.extensions_mut().insert(caller);
    request
}

#[tokio::test]
async fn certificate_is_renewed_only_if_its_pod_is_known_or_by_token() {
    let ca = Ca::new();
    let (service, _tasks) = service(&ca);
    let by_certificate = |name: &str, cluster: Option<&str>| {
        let (chain, _) = ca.workload(name);
        let peer = ca.roots().authenticate(&chain, SystemTime::now()).expect("verifies");
        Caller::from_certificate(Arc::new(peer), cluster.map(ClusterId::from))
    };
    let proof =
        TokenProof { cluster: "west".into(), named: true, pod: None, expires: SystemTime::now() };
    let by_token = Caller::from_token(id("db"), proof);
    for (caller, code) in [
        (by_token, None),
        (by_certificate("web", Some("east")), None),
        (by_certificate("web", Some("north")), Some(Code::PermissionDenied)),
        (by_certificate("web", None), Some(Code::PermissionDenied)),
        (by_certificate("db", Some("east")), Some(Code::PermissionDenied)),
    ] {
        let found = service.create_certificate(called_by(caller.clone())).await;
        assert_eq!(found.err().map(|status| status.code()), code, "{caller:?}");
    }
    assert_eq!(service.stats.requested.load(Ordering::Relaxed), 5);
    assert_eq!(service.stats.issued.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn certificates_are_exchanged_for_30_days_and_then_only_by_token() {
    let ca = Ca::new();
    let (service, _tasks) = service(&ca);
    let start = SystemTime::now();
    let day = Duration::from_secs(24 * 3600);
    // A manually issued certificate records no token: the first exchange is after 25 days, the
    // second one 10 days later.
    let (chain, _) = ca.workload("web");
    let peer = ca.roots().authenticate(&chain, start).expect("verifies");
    let csr = |peer: PeerIdentity| {
        let caller = Caller::from_certificate(Arc::new(peer), Some("east".into()));
        let long = request(None, |request| request.validity_duration = 60 * 86_400);
        (caller, long.into_inner())
    };
    let (caller, csr_request) = csr(peer);
    let first = service.sign(&caller, csr_request, start).await.expect("the time starts now");
    let (caller, csr_request) = csr(peer_at(&ca, first, start + day));
    let second =
        service.sign(&caller, csr_request, start + 25 * day).await.expect("within 30 days");
    let (caller, csr_request) = csr(peer_at(&ca, second, start + 26 * day));
    let late = service.sign(&caller, csr_request, start + 35 * day).await.expect_err("too long");
    assert_eq!(late.code(), Code::PermissionDenied);
    assert!(late.message().starts_with("STR0554"), "{late}");
    let proof = TokenProof { cluster: "east".into(), named: true, pod: None, expires: start };
    let by_token = Caller::from_token(id("web"), proof);
    let (_, csr_request) = csr(ca.roots().authenticate(&chain, start).expect("verifies"));
    service
        .sign(&by_token, csr_request, start + 35 * day)
        .await
        .expect("a token restarts the time");
}

#[tokio::test]
async fn proof_in_the_future_is_dated_to_its_next_exchange() {
    let ca = Ca::new();
    let (service, _tasks) = service(&ca);
    let (start, day) = (SystemTime::now(), Duration::from_secs(24 * 3600));
    let (chain, _) = ca.invalid(&["spiffe://cluster.local/ns/shop/sa/web"], |params| {
        params.custom_extensions.push(proof_time::extension(start + 20 * day));
    });
    let peer = ca.roots().authenticate(&chain, start).expect("verifies");
    let exchange = async |peer: PeerIdentity, at| {
        let caller = Caller::from_certificate(Arc::new(peer), Some("east".into()));
        let long = request(None, |request| request.validity_duration = 60 * 86_400);
        service.sign(&caller, long.into_inner(), at).await
    };
    let first = exchange(peer, start).await.expect("exchanged");
    let late = exchange(peer_at(&ca, first, start + day), start + 31 * day).await;
    let late = late.expect_err("more than 30 days after the first exchange");
    assert!(late.message().starts_with("STR0554"), "{late}");
}

#[tokio::test]
async fn certificate_contains_the_cluster_that_a_token_proved_and_keeps_it() {
    let ca = Ca::new();
    let (service, _tasks) = service(&ca);
    let issue = async |request| {
        let answer = service.create_certificate(request).await;
        answer.map(|answer| answer.into_inner().cert_chain)
    };
    let cluster = |answer: &[String]| {
        let peer = ca.roots().authenticate(&signed_chain(answer), SystemTime::now());
        peer.expect("verifies").cluster()
    };
    let first = issue(by_token("east")).await.expect("signed");
    assert_eq!(cluster(&first), Some("east".into()));
    let renewed = issue(by_certificate(&ca, &first, "alias")).await.expect("an alias of east");
    assert_eq!(cluster(&renewed), Some("east".into()));
    let refused = issue(by_certificate(&ca, &renewed, "west")).await.expect_err("it is of east");
    assert!(refused.message().starts_with("STR0557"), "{refused}");

    // Without a token, the call only claims a cluster, which proves nothing.
    let (chain, _) = ca.workload("web");
    let peer = ca.roots().authenticate(&chain, SystemTime::now()).expect("verifies");
    let caller = Caller::from_certificate(Arc::new(peer), Some("east".into()));
    let unproven = issue(called_by(caller)).await.expect("renewed");
    assert_eq!(cluster(&unproven), None);
}

/// Returns the peer that presents the certificate of a response.
fn peer_at(ca: &Ca, answer: IstioCertificateResponse, at: SystemTime) -> PeerIdentity {
    let leaf = answer.cert_chain.first().expect("a leaf").as_bytes();
    let leaf = crate::pem::certificates(leaf, "answer").expect("a leaf");
    ca.roots().authenticate(&leaf, at).expect("verifies")
}

#[tokio::test]
async fn maximum_lifetime_is_a_setting() {
    let ca = Ca::new();
    let (service, _tasks) = service(&ca);
    let service = CertificateService { lifetime_max: Duration::from_secs(7200), ..service };
    let lifetime = async |seconds: i64| {
        let request = request(Some(&ca), |request| request.validity_duration = seconds);
        let answer = service.create_certificate(request).await?.into_inner();
        let peer = peer_at(&ca, answer, SystemTime::now());
        Ok::<_, Status>(peer.not_after().duration_since(SystemTime::now()).unwrap_or_default())
    };
    assert!(lifetime(0).await.expect("the usual, cut short") <= Duration::from_secs(7200));
    assert!(lifetime(7200).await.is_ok());
    let refused = lifetime(7201).await.expect_err("not cut short");
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("7200 s, not 7201 s"), "{refused}");
}

/// Returns a request of a caller from `cluster` with a verified token.
fn by_token(cluster: &str) -> Request<IstioCertificateRequest> {
    let mut request = request(None, |_| {});
    let expires = SystemTime::now() + Duration::from_secs(3600);
    let proof = TokenProof { cluster: cluster.into(), named: true, pod: None, expires };
    request.extensions_mut().insert(Caller::from_token(id("web"), proof));
    request
}

/// Returns a request of a caller that names `cluster` and presents the chain of a response.
fn by_certificate(ca: &Ca, answer: &[String], cluster: &str) -> Request<IstioCertificateRequest> {
    let mut request = request(None, |_| {});
    let peer = ca.roots().authenticate(&signed_chain(answer), SystemTime::now()).expect("verifies");
    let caller = Caller::from_certificate(Arc::new(peer), Some(cluster.into()));
    request.extensions_mut().insert(caller);
    request
}

/// Returns the certificates of a response without the roots, which are its last element.
fn signed_chain(answer: &[String]) -> Vec<rustls_pki_types::CertificateDer<'static>> {
    let (_, chain) = answer.split_last().expect("roots");
    let certificates = |pem: &String| crate::pem::certificates(pem.as_bytes(), "answer");
    chain.iter().flat_map(|pem| certificates(pem).expect("PEM")).collect()
}

#[tokio::test]
async fn dedicated_ca_alone_signs_for_its_member() {
    let ca = Ca::new();
    let folders = tempfile::tempdir().expect("a folder");
    let folder = folders.path().join("east");
    let own = ca.authority.issue_authority("east", SystemTime::now()).expect("it signs");
    own.write(&folder).expect("written");
    let (service, _tasks) = service_with(&ca, [("east", &*folder)]);
    let issue = async |request| {
        let answer = service.create_certificate(request).await;
        answer.map(|answer| answer.into_inner().cert_chain)
    };
    let east = issue(by_token("east")).await.expect("signed");
    let west = issue(by_token("west")).await.expect("signed");
    // A leaf, in east the intermediate, and the root that both chain to.
    assert_eq!((east.len(), west.len()), (3, 2));
    assert_eq!((&east[1], &east[2]), (&own.ca_cert, &west[1]));
    for answer in [&east, &west] {
        let peer = ca.roots().authenticate(&signed_chain(answer), SystemTime::now());
        assert_eq!(peer.expect("the root alone is enough").id(), &id("web"));
    }
    // The dedicated CA renews its certificates, under each name of the member. No other member may
    // renew them.
    for name in ["east", "alias"] {
        let renewed = issue(by_certificate(&ca, &east, name)).await.expect("renewed");
        assert_eq!(renewed[1], own.ca_cert, "{name}");
    }
    let refused = issue(by_certificate(&ca, &east, "west")).await.expect_err("it is of east");
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert!(refused.message().starts_with("STR0557"), "{refused}");
    // A certificate of the mesh's CA contains the cluster of its token, too.
    let refused = issue(by_certificate(&ca, &west, "east")).await.expect_err("it is of west");
    assert!(refused.message().starts_with("STR0557"), "{refused}");
    // A certificate without a cluster may precede the dedicated CA.
    let (chain, _) = ca.workload("web");
    let mut unmarked: Vec<String> = chain.iter().map(crate::pem::encode).collect();
    unmarked.push(String::new());
    assert_eq!(
        issue(by_certificate(&ca, &unmarked, "east")).await.expect("renewed")[1],
        own.ca_cert
    );

    // Cut off: requests with a token or a certificate are refused permanently; other members are
    // not affected.
    std::fs::remove_dir_all(&folder).expect("removed");
    let mut identity = service.identity.clone();
    let is_cut =
        |now: &Arc<ServerIdentity>| now.members.values().all(|own| own.authority.is_none());
    let cut = tokio::time::timeout(Duration::from_secs(20), identity.wait_for(is_cut)).await;
    drop(cut.expect("in time").expect("it runs"));
    for request in [by_token("east"), by_certificate(&ca, &east, "alias")] {
        let refused = issue(request).await.expect_err("cut");
        assert_eq!(refused.code(), Code::PermissionDenied);
        assert!(refused.message().starts_with("STR0556"), "{refused}");
    }
    issue(by_certificate(&ca, &east, "west")).await.expect_err("not by another name either");
    assert_eq!(issue(by_token("west")).await.expect("signed").len(), 2);
    // Readmitted with another intermediate, which also renews old certificates.
    let new = ca.authority.issue_authority("east", SystemTime::now()).expect("it signs");
    new.write(&folder).expect("written");
    let signs = |now: &Arc<ServerIdentity>| now.members.values().all(|own| own.authority.is_some());
    let again = tokio::time::timeout(Duration::from_secs(20), identity.wait_for(signs)).await;
    drop(again.expect("in time").expect("it runs"));
    assert_eq!(issue(by_certificate(&ca, &east, "east")).await.expect("renewed")[1], new.ca_cert);
}

#[tokio::test]
async fn invalid_dedicated_ca_causes_a_retryable_error() {
    let (ca, other) = (Ca::new(), Ca::new());
    let folders = tempfile::tempdir().expect("a folder");
    let folder = folders.path().join("east");
    let foreign = other.authority.issue_authority("east", SystemTime::now()).expect("it signs");
    foreign.write(&folder).expect("written");
    let (service, _tasks) = service_with(&ca, [("east", &*folder)]);
    let refused = service.create_certificate(by_token("east")).await.expect_err("unrooted");
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.message().starts_with("STR0555"), "{refused}");
    service.create_certificate(by_token("west")).await.expect("other members are not affected");
    assert_eq!(service.stats.failed_by_reason().get("CA_NOT_READY"), Some(&1));
}
