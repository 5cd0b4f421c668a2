//! `strait check --traffic` with an identity that the control plane issues for probes: its name,
//! and the clients that may request it.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use serde_json::{Value, json};

use super::mesh::{Member, SYSTEM, Server, Setup, text};
use strait_identity::mesh_client::MeshClientRequest;

/// Requests a probe identity with this token. Returns the response.
async fn request_identity(server: &Server, token: &str, body: &Value) -> (StatusCode, Value) {
    let request = Request::post(format!("http://{}/api/probe-identity", server.bound.admin))
        .header(header::AUTHORIZATION, format!("Bearer {token}"))
        .body(Full::new(Bytes::from(body.to_string())))
        .expect("a request");
    let http = Client::builder(TokioExecutor::new()).build_http();
    let answer = http.request(request).await.expect("an answer");
    let status = answer.status();
    let body = answer.into_body().collect().await.expect("a body").to_bytes();
    (status, serde_json::from_slice(&body).unwrap_or_default())
}

fn admin_token(server: &Server) -> String {
    std::fs::read_to_string(&server.bound.token_file).expect("a token").trim().to_owned()
}

#[tokio::test]
async fn check_traffic_uses_an_identity_from_the_control_plane() {
    let east = Member::start("east", "n1", "198.18.0.1").await;
    east.serve("web", &["10.0.0.1"]);
    // This test dials nothing.
    east.api.store().delete("Service", SYSTEM, "eastwestgateway").expect("it was there");
    let setup = Setup::new();
    let reader = setup.path("reader");
    std::fs::write(&reader, "token-of-those-who-read\n").expect("written");
    let setup = setup.with(&["--admin-reader-token-file", &reader.display().to_string()]);
    setup.join(&[&east]);
    let server = setup.start_ready().await;
    server.cluster_in("east", "live").await;
    let output = server.strait(&["check", "--traffic", "--to", "east"]).await;
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    assert!(text(&output).contains("network n1 has no gateway"), "{}", text(&output));

    // Checks the identity and its lifetime, and that it chains to the roots of workloads.
    let request = MeshClientRequest::new().expect("a key");
    let body = json!({ "csr": request.csr });
    let (status, given) = request_identity(&server, &admin_token(&server), &body).await;
    assert_eq!(status, StatusCode::OK, "{given}");
    let expected = "spiffe://cluster.local/ns/strait-system/sa/strait-probe";
    assert_eq!(given["identity"], expected);
    let part = |name: &str| given[name].as_str().expect("text").to_owned();
    let ends: jiff::Timestamp = part("expires").parse().expect("a time");
    let remaining =
        SystemTime::from(ends).duration_since(SystemTime::now()).expect("the gateway is pending");
    assert!(
        (Duration::from_secs(500)..=Duration::from_secs(600)).contains(&remaining),
        "{remaining:?}"
    );
    let chain: Vec<CertificateDer<'static>> =
        CertificateDer::pem_slice_iter(part("certChain").as_bytes())
            .map(|one| one.expect("PEM"))
            .collect();
    let roots = setup.authority().roots();
    let peer =
        roots.authenticate(&chain, SystemTime::now()).expect("a certificate of the mesh's CA");
    assert_eq!(peer.id().to_string(), expected);
    let now = SystemTime::now();
    request.answered(&part("certChain"), &part("rootCert"), "there", now).expect("a client");
    let other = MeshClientRequest::new().expect("a key");
    let mistaken = other.answered(&part("certChain"), &part("rootCert"), "there", now);
    assert!(mistaken.is_err(), "all certificates have one key");

    // Other tokens are rejected, and the request must contain only a key.
    for token in ["token-of-those-who-read", "x", ""] {
        assert_eq!(
            request_identity(&server, token, &body).await.0,
            StatusCode::UNAUTHORIZED,
            "{token:?}"
        );
    }
    let named = json!({ "csr": request.csr, "serviceAccount": "admin" });
    for wrong in [json!({}), json!({ "csr": "x" }), named] {
        let (status, response) = request_identity(&server, &admin_token(&server), &wrong).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{wrong}: {response}");
    }
    let readers = ["check", "--traffic", "--token-file", &reader.display().to_string()];
    let refused = server.strait(&readers).await;
    assert_eq!(refused.status.code(), Some(77), "{}", text(&refused));
    assert!(text(&refused).contains("--identity DIR"), "{}", text(&refused));
    server.shut_down().await;
}

#[tokio::test]
async fn check_traffic_without_a_ca_requires_an_identity() {
    let setup = Setup::new();
    let names = ["localhost".to_owned()];
    let issued = setup.authority().issue_serving(&names, SystemTime::now()).expect("issued");
    let file = |name: &str, text: &str| {
        let path = setup.path(name);
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    };
    let (cert, key) = (file("tls.crt", &issued.chain.to_pem()), file("tls.key", &issued.key_pem()));
    let roots = file("roots.pem", &setup.authority().roots().to_pem());
    let flags = ["--ca", "none", "--tls-cert", &cert, "--tls-key", &key, "--client-ca", &roots];
    let setup = setup.with(&flags);
    let server = setup.start_ready().await;
    let refused = server.strait(&["check", "--traffic"]).await;
    assert_eq!(refused.status.code(), Some(1), "{}", text(&refused));
    for part in ["has no CA", "--identity", "strait certs issue"] {
        assert!(text(&refused).contains(part), "{part}: {}", text(&refused));
    }
    server.shut_down().await;
}
