//! Random policies and requests, against the oracle.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::evaluator::{Call, Server, passes};
use super::generator::{random_call, random_policy};
use super::*;

/// As a proxy sees it: headers that come twice in one.
pub(super) fn as_request(call: &Call) -> AccessRequest {
    let identity = call.identity.as_ref();
    let mut request = AccessRequest {
        identity: identity.map(|(domain, namespace, account)| {
            format!("spiffe://{domain}/ns/{namespace}/sa/{account}")
        }),
        peer: Some(call.from),
        client: Some(call.client),
        port: Some(call.port),
        destination: Some(call.address),
        server_name: Some(call.sni.clone()),
        ..AccessRequest::default()
    };
    if call.is_http {
        request.path = Some(call.path.clone());
        request.headers.insert(":authority".into(), call.host.clone());
        request.headers.insert(":method".into(), call.method.clone());
        let roles: Vec<_> = call.headers.iter().map(|(_, value)| value.as_str()).collect();
        if !roles.is_empty() {
            request.headers.insert("x-role".into(), roles.join(","));
        }
    }
    request
}

#[test]
fn random_requests_are_answered_as_the_oracle_does() {
    let (mut denied, mut allowed) = (0, 0);
    for seed in 0..400 {
        let mut random = StdRng::seed_from_u64(seed);
        let count = random.random_range(1..5);
        let objects: Vec<_> =
            (0..count).map(|at| random_policy(&mut random, &format!("p{at}"))).collect();
        let policies = index().hold(objects.clone());
        for (name, report) in policies.reports() {
            assert_eq!(
                report.state,
                PolicyState::InForce,
                "{name}: {:?} in {objects:#?}",
                report.faults
            );
        }
        let server = Server {
            namespace: "shop",
            labels: &[("app", "web")],
            root: ROOT,
            domains: &["mesh.example", "old.example"],
        };
        for _ in 0..50 {
            let call = random_call(&mut random);
            let expected = passes(&objects, &server, &call);
            let form = if call.is_http { WireForm::Http } else { WireForm::Tcp };
            let found = policies.decides(form, &as_request(&call));
            let lets_in = found.verdict == AccessVerdict::Allow;
            assert_eq!(lets_in, expected, "seed {seed}: {call:?}\n{found:?}\n{:#}", json!(objects));
            if expected { allowed += 1 } else { denied += 1 }
        }
    }
    assert!(allowed > 2000 && denied > 2000, "{allowed} allowed, {denied} denied");
}
