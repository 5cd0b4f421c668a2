//! Admission: which clients are admitted, with which identity, and for how long. Tested over real
//! connections, with certificates of every kind.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::ClientConfig;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use tonic::{Code, Status};

use super::mesh::{
    Member, Proxy, SHOP, SOON, Server, Setup, endpoints_until, from_nothing, holds,
    issue_certificate, replace, wait_until,
};
use strait_identity::{Authority, AuthorityPem, RootFingerprint, tls};
use strait_proto::envoy::envoy::config::core::v3::Node;
use strait_proto::envoy::envoy::service::discovery::v3::DeltaDiscoveryRequest;
use strait_proto::envoy::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use strait_sim::objects;
use strait_xds::resource::ResourceType;
use strait_xds::session::ProtocolForm;
use strait_xds_client::{Options as ClientOptions, StreamEnded, XdsConnectError, channel};

/// Starts a ready server with one member, `east` in `n1`, which has the pod `web-10-0-0-1.shop`.
async fn running() -> (Setup, Member, Server) {
    let east = Member::start("east", "n1", "198.18.0.1").await;
    east.serve("web", &["10.0.0.1"]);
    let setup = Setup::new();
    setup.join(&[&east]);
    let server = setup.start_ready().await;
    (setup, east, server)
}

/// Returns the sidecar of the only pod.
fn web() -> Proxy {
    let (name, account, ip) = ("web-10-0-0-1", "web", "10.0.0.1".to_owned());
    Proxy { name, account, ip, ..Proxy::sidecar("east") }
}

fn other_authority() -> Authority {
    let files = AuthorityPem::generate(SystemTime::now()).expect("a CA");
    Authority::new(&files, "other", SystemTime::now()).expect("a sound CA")
}

/// Returns the reason why a proxy is not admitted, immediately or when the stream ends.
async fn refusal(server: &Server, tls: Arc<ClientConfig>, proxy: &Proxy) -> String {
    match server.open_with(tls, proxy, ClientOptions::default()).await {
        Err(XdsConnectError::Refused(status)) => {
            format!("{:?}: {}", status.code(), status.message())
        }
        Err(error) => error.to_string(),
        Ok(mut client) => match client.wait_for(|contents| contents.responses > 0).await {
            Err(StreamEnded(reason)) => reason,
            Ok(contents) => panic!("let in: {contents:?}"),
        },
    }
}

/// Returns the status with which a stream ends that begins with these requests.
async fn answer(
    server: &Server,
    tls: Arc<ClientConfig>,
    requests: Vec<DeltaDiscoveryRequest>,
) -> Status {
    let channel = channel(server.bound.xds, "localhost", tls).await.expect("connected");
    let requests =
        tokio_stream::StreamExt::chain(tokio_stream::iter(requests), tokio_stream::pending());
    let mut client = AggregatedDiscoveryServiceClient::new(channel);
    match client.delta_aggregated_resources(requests).await {
        Err(status) => status,
        Ok(stream) => {
            let mut stream = stream.into_inner();
            loop {
                match tokio::time::timeout(SOON, stream.message()).await.expect("in time") {
                    Ok(Some(_)) => {}
                    Ok(None) => panic!("ended without a reason"),
                    Err(status) => return status,
                }
            }
        }
    }
}

fn request(node: Option<Node>, type_url: &str) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest { node, type_url: type_url.to_owned(), ..Default::default() }
}

#[tokio::test]
async fn proxy_with_valid_claims_is_admitted_and_shown_as_verified() {
    let (setup, _east, server) = running().await;
    let client = server.connect(&setup, &web()).await;
    endpoints_until(&client, "web", &[("10.0.0.1:8080", 1)]).await;
    let shown = server.admin.json("/debug/proxies").await;
    assert_eq!((&shown[0]["verified"], &shown[0]["network"]), (&true.into(), &"n1".into()));
}

#[tokio::test]
async fn certificates_that_do_not_chain_to_the_mesh_fail_the_handshake() {
    let (setup, _east, server) = running().await;
    let other = other_authority();
    let hour = Duration::from_secs(3600);
    let foreign = issue_certificate(&other, setup.authority(), SHOP, "client", hour);
    let anonymous = {
        let mut roots = rustls::RootCertStore::empty();
        for pem in setup.authority().roots().to_pem().split_inclusive("-----END CERTIFICATE-----\n")
        {
            let der = rustls_pki_types::pem::PemObject::from_pem_slice(pem.as_bytes());
            roots.add(der.expect("PEM")).expect("a root");
        }
        let builder = ClientConfig::builder_with_provider(tls::provider());
        let builder = builder.with_protocol_versions(&[&rustls::version::TLS13]).expect("TLS 1.3");
        let mut config = builder.with_root_certificates(roots.clone()).with_no_client_auth();
        config.alpn_protocols = vec![tls::ALPN.to_vec()];
        Arc::new(config)
    };
    for (what, tls) in [("of another CA", foreign), ("none", anonymous)] {
        let failure = refusal(&server, tls, &Proxy::sidecar("east")).await;
        // TLS 1.3: the client may learn of it only when it reads.
        assert!(!failure.contains("PermissionDenied"), "{what}: {failure}");
    }
    // Proxies of this mesh reject a server of another mesh.
    let mistaken = issue_certificate(setup.authority(), &other, SHOP, "client", hour);
    let failure = refusal(&server, mistaken, &Proxy::sidecar("east")).await;
    assert!(failure.contains("no connection"), "{failure}");
    assert_eq!(server.admin.json("/debug/proxies").await, serde_json::json!([]));
}

#[tokio::test]
async fn tls_1_2_is_rejected() {
    let (setup, _east, server) = running().await;
    let tls = setup.certificate(SHOP, "client");
    let mut old = (*tls).clone();
    old.alpn_protocols.clear();
    let builder = ClientConfig::builder_with_provider(tls::provider());
    let builder = builder.with_protocol_versions(&[&rustls::version::TLS12]);
    // A build without TLS 1.2 cannot request it.
    let Ok(builder) = builder else { return };
    let mut roots = rustls::RootCertStore::empty();
    for pem in setup.authority().roots().to_pem().split_inclusive("-----END CERTIFICATE-----\n") {
        let der = rustls_pki_types::pem::PemObject::from_pem_slice(pem.as_bytes());
        roots.add(der.expect("PEM")).expect("a root");
    }
    let config = builder.with_root_certificates(roots).with_no_client_auth();
    let socket = tokio::net::TcpStream::connect(server.bound.xds).await.expect("connected");
    let name = rustls_pki_types::ServerName::try_from("localhost").expect("valid");
    let result = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, socket).await;
    let error = result.expect_err("refused").to_string();
    assert!(error.contains("ProtocolVersion"), "{error}");
}

#[tokio::test]
async fn each_false_claim_is_rejected_with_its_code() {
    let (setup, east, server) = running().await;
    let labelled = objects::labelled(
        objects::pod(SHOP, "placed", "web", "10.0.0.5", "node"),
        objects::NETWORK_LABEL,
        "n7",
    );
    east.apply(labelled);
    wait_until(SOON, async || {
        let entry = server.cluster("east").await;
        holds(entry["objects"].as_u64().is_some_and(|objects| objects >= 7), entry)
    })
    .await;
    let placed = Proxy { name: "placed", ip: "10.0.0.5".into(), network: Some("n8"), ..web() };
    let certificate = |account: &str| setup.certificate(SHOP, account);
    let stranger = |id: &str| Proxy { cluster: id.to_owned(), ..web() };
    for (claim, proxy, tls, code) in [
        ("namespace", web(), setup.certificate("other", "web"), "STR0510"),
        ("account", web(), certificate("other"), "STR0510"),
        ("cluster", stranger("west"), certificate("web"), "STR0511"),
        ("no cluster", stranger(""), certificate("web"), "STR0511"),
        ("pod's account", Proxy { account: "other", ..web() }, certificate("other"), "STR0512"),
        ("pod's address", Proxy { ip: "10.0.0.9".into(), ..web() }, certificate("web"), "STR0512"),
        ("pod's network", placed, certificate("web"), "STR0513"),
    ] {
        let refused = refusal(&server, tls, &proxy).await;
        assert!(refused.starts_with(&format!("PermissionDenied: {code}")), "{claim}: {refused}");
    }
    assert_eq!(server.admin.json("/debug/proxies").await, serde_json::json!([]));
}

#[tokio::test]
async fn invalid_requests_end_the_stream() {
    let (setup, _east, server) = running().await;
    let tls = || setup.certificate(SHOP, "web");
    let node = || Some(web().node());
    let cds = ResourceType::Cluster.url();
    let bad_id = Some(Node { id: "sidecar~10.0.0.1~web".into(), ..web().node() });
    let other = Some(Node { id: Proxy { name: "else", ..web() }.id(), ..web().node() });
    for (what, requests) in [
        ("no type", vec![request(node(), "")]),
        ("no node", vec![request(None, cds)]),
        ("a node id of three parts", vec![request(bad_id, cds)]),
        ("another node", vec![request(node(), cds), request(other, cds)]),
    ] {
        let status = answer(&server, tls(), requests).await;
        assert_eq!(status.code(), Code::InvalidArgument, "{what}: {status:?}");
        assert!(status.message().starts_with("STR050"), "{what}: {status:?}");
    }
}

#[tokio::test]
async fn node_has_at_most_four_streams() {
    let (setup, _east, server) = running().await;
    let mut clients = Vec::new();
    for form in [ProtocolForm::Delta, ProtocolForm::Sotw, ProtocolForm::Delta, ProtocolForm::Sotw] {
        let client = server.open(&setup, &web(), from_nothing(form)).await.expect("let in");
        endpoints_until(&client, "web", &[("10.0.0.1:8080", 1)]).await;
        clients.push(client);
    }
    let refused = refusal(&server, setup.certificate(SHOP, "web"), &web()).await;
    assert!(refused.starts_with("ResourceExhausted: STR0504"), "{refused}");
    // Another node of the same identity is admitted, and a freed place can be used again.
    let other = Proxy { name: "web-other", ip: "10.0.0.8".into(), ..web() };
    endpoints_until(&server.connect(&setup, &other).await, "web", &[("10.0.0.1:8080", 1)]).await;
    clients.pop();
    wait_until(SOON, async || {
        let mut client = server.connect(&setup, &web()).await;
        client.wait_for(|contents| contents.responses > 0).await.map_err(|ended| ended.to_string())
    })
    .await;
}

#[tokio::test]
async fn stream_ends_when_its_root_is_no_longer_trusted() {
    let (setup, _east, server) = running().await;
    let mut client = server.connect(&setup, &web()).await;
    endpoints_until(&client, "web", &[("10.0.0.1:8080", 1)]).await;
    let files = AuthorityPem::generate(SystemTime::now()).expect("a CA");
    let new = Authority::new(&files, "new", SystemTime::now()).expect("a sound CA");
    // This step needs an operator's approval of the new root and of the removal of the old root.
    let old = AuthorityPem::read(&setup.path("ca")).expect("a CA");
    let approved = [&files, &old].map(|files| {
        let root = CertificateDer::from_pem_slice(files.root_cert.as_bytes()).expect("a root");
        RootFingerprint::from_der(&root).to_string()
    });
    replace(&setup.path("ca/rotation-approved"), &approved.join("\n"));
    let texts = [&files.ca_cert, &files.ca_key, &files.cert_chain, &files.root_cert];
    for (name, text) in AuthorityPem::FILES.iter().zip(texts) {
        replace(&setup.path("ca").join(name), text);
    }
    let contents = client.wait_for(|contents| contents.ended.is_some()).await.expect("it ends");
    assert!(
        contents.ended.as_ref().is_some_and(|why| why.contains("STR0707")),
        "{:?}",
        contents.ended
    );
    // A client with a certificate of the new root is admitted.
    let tls = issue_certificate(&new, &new, SHOP, "web", Duration::from_secs(3600));
    let client = server.open_with(tls, &web(), ClientOptions::default()).await.expect("let in");
    endpoints_until(&client, "web", &[("10.0.0.1:8080", 1)]).await;
}

#[tokio::test]
async fn stream_ends_when_its_certificate_expires() {
    let (setup, _east, server) = running().await;
    let tls = setup.certificate_for(SHOP, "web", Duration::from_secs(4));
    let mut client = server.open_with(tls, &web(), ClientOptions::default()).await.expect("let in");
    endpoints_until(&client, "web", &[("10.0.0.1:8080", 1)]).await;
    let ended = tokio::time::timeout(SOON, client.wait_for(|contents| contents.ended.is_some()));
    let contents = ended.await.expect("in time").expect("it ends");
    assert!(
        contents.ended.as_ref().is_some_and(|why| why.contains("STR0704")),
        "{:?}",
        contents.ended
    );
}

#[tokio::test]
async fn rejected_response_is_shown_and_not_sent_again() {
    for form in [ProtocolForm::Delta, ProtocolForm::Sotw] {
        let (setup, east, server) = running().await;
        let rejects = Some(ResourceType::Listener);
        let options = ClientOptions { rejects, ..from_nothing(form) };
        let client = server.open(&setup, &web(), options).await.expect("let in");
        let shown = wait_until(SOON, async || {
            let shown = server.admin.json("/debug/proxies").await;
            holds(shown[0]["types"]["lds"]["nack"].is_object(), &shown).map(|()| shown)
        })
        .await;
        assert_eq!(shown[0]["types"]["lds"]["nack"]["error"], "rejected on request");
        assert!(shown[0]["types"]["lds"]["nack"]["resources"].is_array(), "{shown:#}");
        assert_eq!(shown[0]["types"]["lds"]["acked"], serde_json::Value::Null);
        // Other types continue, and the listener is not sent again for unrelated changes.
        east.serve("web", &["10.0.0.1", "10.0.0.2"]);
        endpoints_until(&client, "web", &[("10.0.0.1:8080", 1), ("10.0.0.2:8080", 1)]).await;
        assert_eq!(client.held().rejected, 1, "{form:?}");
        // A changed listener is sent again, because it may be accepted this time.
        east.apply(objects::service(SHOP, "more", "172.20.1.250", &[objects::TCP]));
        wait_until(SOON, async || holds(client.held().rejected == 2, client.held().rejected)).await;
        let (_, metrics) = server.admin.text("/metrics").await;
        assert!(metrics.contains("nack"), "{metrics}");
    }
}
