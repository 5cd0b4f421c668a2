use std::collections::HashMap;

use rcgen::{CertificateParams, KeyPair};
use strait_proto::envoy::google::protobuf::{Struct, Value};

use super::*;
use crate::identity::testing::{Ca, id, no_names};
use crate::identity::{AuthorityFrom, Serving, Settings, SpiffeId, TrustRoots, rotation};
use crate::task::Supervisor;

/// A service whose CA is `ca`, and the request of a caller with a good certificate request.
fn service(ca: &Ca) -> (CertificateService, Supervisor) {
    let tasks = Supervisor::new();
    let settings = Settings {
        serving: Serving::Issued { names: vec!["localhost".to_owned()] },
        client_ca: None,
        authority: Some(AuthorityFrom::Stored(ca.files.clone())),
        named: no_names(),
    };
    let identity = rotation::start(settings, rotation::INTERVAL, &tasks).expect("a sound CA");
    let trust_domain = watch::channel(Some("cluster.local".into())).1;
    (CertificateService::new(identity, trust_domain), tasks)
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
        request.extensions_mut().insert(peer);
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
    let caller = request.extensions().get::<PeerIdentity>().expect("a caller").clone();
    let later = caller.not_after() + Duration::from_secs(1);
    let status = service.sign(&caller, request.get_ref(), later).expect_err("refused");
    assert_eq!(status.code(), Code::Unauthenticated, "{status}");
}

#[tokio::test]
async fn what_the_caller_has_no_right_to_is_refused() {
    let ca = Ca::new();
    let (service, _tasks) = service(&ca);
    let impersonating = |text: &str| {
        let kind = Some(Kind::StringValue(text.to_owned()));
        let fields = HashMap::from([("ImpersonatedIdentity".to_owned(), Value { kind })]);
        Some(Struct { fields })
    };
    let other = SpiffeId::new("cluster.local", "shop", "db").expect("valid").to_string();
    for (request, code) in [
        (request(None, |_| {}), Code::Unauthenticated),
        (request(Some(&ca), |r| r.csr.clear()), Code::InvalidArgument),
        (request(Some(&ca), |r| r.validity_duration = -1), Code::InvalidArgument),
        (request(Some(&ca), |r| r.validity_duration = 91 * 86_400), Code::InvalidArgument),
        (request(Some(&ca), |r| r.validity_duration = i64::MAX), Code::InvalidArgument),
        (request(Some(&ca), |r| r.metadata = impersonating(&other)), Code::PermissionDenied),
    ] {
        let status = service.create_certificate(request).await.expect_err("refused");
        assert_eq!(status.code(), code, "{status}");
    }
    let trust_domain = watch::channel(Some("other.example".into())).1;
    let service = CertificateService { trust_domain, ..service };
    let status = service.create_certificate(request(Some(&ca), |_| {})).await.expect_err("refused");
    assert_eq!(status.code(), Code::PermissionDenied);
}
