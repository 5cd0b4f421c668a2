//! Intermediate CAs of single members: a workload presents the intermediate CA of the workload's
//! member, all workloads trust only the root, and a member whose intermediate was removed receives
//! no certificates.

use std::path::Path;
use std::sync::Arc;

use rcgen::KeyPair;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tonic::{Code, Status};

use super::mesh::{SOON, Server, Setup, endpoints_until, holds, wait_until};
use super::tokens::{Agent, certificate_request, member, without_certificate};
use strait_identity::{AuthorityPem, tls};
use strait_proto::envoy::envoy::config::core::v3::Node;
use strait_proto::envoy::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use strait_proto::envoy::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use strait_proto::istio::auth::istio_certificate_service_client::IstioCertificateServiceClient;
use strait_xds::resource::ResourceType;
use strait_xds::secrets::SECRET;
use strait_xds_client::{Options as ClientOptions, channel};

/// The certificate of a workload, and the roots that it received.
struct Shown {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    roots: Arc<RootCertStore>,
}

impl Shown {
    /// Requests a certificate for a new key, and retries while the server is busy.
    async fn to(agent: &Agent, server: &Server, setup: &Setup) -> Self {
        let key = KeyPair::generate().expect("a key");
        let chain = wait_until(SOON, async || {
            let result = request_certificate(agent, server, without_certificate(setup), &key).await;
            match result {
                Err(status) if status.code() == Code::Unavailable => Err(status.to_string()),
                result => Ok(result.expect("no final refusal")),
            }
        })
        .await;
        let (roots, chain) = chain.split_last().expect("roots");
        let mut believed = RootCertStore::empty();
        for root in CertificateDer::pem_slice_iter(roots.as_bytes()) {
            believed.add(root.expect("PEM")).expect("a root");
        }
        let parse = |pem: &String| CertificateDer::from_pem_slice(pem.as_bytes()).expect("PEM");
        Self {
            chain: chain.iter().map(parse).collect(),
            key: PrivateKeyDer::Pkcs8(key.serialize_der().into()),
            roots: Arc::new(believed),
        }
    }

    /// Returns the TLS configuration for the control plane.
    fn to_server(&self, setup: &Setup) -> Arc<ClientConfig> {
        let (chain, key) = (self.chain.clone(), self.key.clone_key());
        tls::client_config(chain, key, setup.authority().roots()).expect("a configuration")
    }

    fn intermediate(&self) -> Option<&CertificateDer<'static>> {
        self.chain.get(1)
    }
}

async fn request_certificate(
    agent: &Agent,
    server: &Server,
    tls: Arc<ClientConfig>,
    key: &KeyPair,
) -> Result<Vec<String>, Status> {
    let channel = channel(server.bound.xds, "localhost", tls).await;
    let channel = channel.map_err(|error| Status::unavailable(error.to_string()))?;
    let mut client = IstioCertificateServiceClient::new(channel);
    let answer = client.create_certificate(agent.request(certificate_request(key))).await?;
    Ok(answer.into_inner().cert_chain)
}

/// Verifies another workload as Envoy does: by its roots, with any name.
#[derive(Debug)]
struct ByRoots(Arc<RootCertStore>, WebPkiSupportedAlgorithms);

impl ServerCertVerifier for ByRoots {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let leaf = ParsedCertificate::try_from(leaf)?;
        verify_server_cert_signed_by_trust_anchor(&leaf, &self.0, intermediates, now, self.1.all)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, leaf, signed, &self.1)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, leaf, signed, &self.1)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.1.supported_schemes()
    }
}

/// Makes an mTLS call from one workload to another. Each verifies the other with the roots that it
/// received.
async fn calls(from: &Shown, to: &Shown) -> Result<(), String> {
    let provider = tls::provider();
    let algorithms = provider.signature_verification_algorithms;
    let clients =
        WebPkiClientVerifier::builder_with_provider(Arc::clone(&to.roots), Arc::clone(&provider));
    let accepting = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3")
        .with_client_cert_verifier(clients.build().expect("it verifies"))
        .with_single_cert(to.chain.clone(), to.key.clone_key())
        .expect("a pair");
    let connecting = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(ByRoots(Arc::clone(&from.roots), algorithms)))
        .with_client_auth_cert(from.chain.clone(), from.key.clone_key())
        .expect("a pair");
    let (near, far) = tokio::io::duplex(64 * 1024);
    let accept = async {
        let accepted = TlsAcceptor::from(Arc::new(accepting)).accept(near).await;
        let mut stream = accepted.map_err(|error| error.to_string())?;
        stream.write_all(b"hello").await.map_err(|error| error.to_string())?;
        stream.shutdown().await.map_err(|error| error.to_string())
    };
    let connect = async {
        let name = ServerName::try_from("workload").expect("a name");
        let connected = TlsConnector::from(Arc::new(connecting)).connect(name, far).await;
        let (mut stream, mut read) = (connected.map_err(|error| error.to_string())?, Vec::new());
        stream.read_to_end(&mut read).await.map_err(|error| error.to_string())?;
        holds(read == b"hello", read)
    };
    let both = async { tokio::join!(accept, connect) };
    let (accepted, connected) = tokio::time::timeout(SOON, both).await.expect("in time");
    accepted.and(connected)
}

/// Creates an intermediate of the mesh's CA in this folder.
fn make(setup: &Setup, folder: &Path, whose: &str) -> CertificateDer<'static> {
    let now = std::time::SystemTime::now();
    let files = setup.authority().issue_authority(whose, now).expect("it signs");
    files.write(folder).expect("written");
    CertificateDer::from_pem_slice(files.ca_cert.as_bytes()).expect("PEM")
}

async fn own_until(server: &Server, member: &str, test: impl Fn(&Value) -> bool) -> Value {
    wait_until(SOON, async || {
        let all = server.admin.json("/debug/certificates").await;
        let mut own = all["members"].as_array().into_iter().flatten();
        let own = own.find(|own| own["member"] == member).cloned().unwrap_or_default();
        holds(test(&own), &all).map(|()| own)
    })
    .await
}

/// Returns the status that ends a stream with this first request, or the first response.
async fn first_response(
    server: &Server,
    tls: Arc<ClientConfig>,
    first: DiscoveryRequest,
) -> Result<DiscoveryResponse, Status> {
    let channel = channel(server.bound.xds, "localhost", tls).await.expect("connected");
    let requests = tokio_stream::iter([first]);
    let requests = tokio_stream::StreamExt::chain(requests, tokio_stream::pending());
    let mut client = AggregatedDiscoveryServiceClient::new(channel);
    let mut responses = client.stream_aggregated_resources(requests).await?.into_inner();
    let next = tokio::time::timeout(SOON, responses.message()).await.expect("in time");
    next.map(|response| response.expect("a response"))
}

#[tokio::test]
async fn certificate_of_one_cluster_is_refused_for_nodes_of_another() {
    let (east, west) = (member("east", "n1").await, member("west", "n1").await);
    let setup = Setup::new();
    setup.join(&[&east, &west]);
    let server = setup.start_ready().await;
    let agents = [&east, &west].map(Agent::for_member);
    let easts = Shown::to(&agents[0], &server, &setup).await.to_server(&setup);
    let wests = Shown::to(&agents[1], &server, &setup).await.to_server(&setup);
    let request = |type_url: &str, node: Node| DiscoveryRequest {
        type_url: type_url.to_owned(),
        node: Some(node),
        ..Default::default()
    };
    let clusters = ResourceType::Cluster.url();
    let syncz = "istio.io/debug/syncz";
    let options = ClientOptions::default;
    let east_client = server.open_with(Arc::clone(&easts), &agents[0].proxy, options()).await;
    let _east_client = east_client.expect("its own cluster");
    let west_client = server.open_with(wests, &agents[1].proxy, options()).await;
    let _west_client = west_client.expect("its own cluster");

    // The pod of the other cluster has the same name, address and account.
    for type_url in [clusters, syncz, SECRET] {
        let first = request(type_url, agents[1].proxy.node());
        let refused = first_response(&server, Arc::clone(&easts), first).await;
        let refused = refused.expect_err("the certificate is for east");
        assert_eq!(refused.code(), Code::PermissionDenied, "{type_url}: {refused}");
        let fact = "claims cluster \"west\", but its certificate is from east";
        assert!(refused.message().starts_with("STR0516: node"), "{type_url}: {refused}");
        assert!(refused.message().contains(fact), "{type_url}: {refused}");
    }
    // A debug request that names no cluster shows the proxies of the certificate's cluster.
    let count = wait_until(SOON, async || {
        let node = Node { id: "debug~0.0.0.0~istioctl~cluster.local".into(), ..Node::default() };
        let answer = first_response(&server, Arc::clone(&easts), request(syncz, node)).await;
        let count = answer.map_err(|status| status.to_string())?.resources.len();
        holds(count > 0, count).map(|()| count)
    })
    .await;
    assert_eq!(count, 1);

    // A certificate without a cluster is accepted for every cluster.
    let other = setup.certificate("shop", "web");
    let other = server.open_with(other, &agents[1].proxy, options()).await;
    other.expect("accepted");
}

#[tokio::test]
async fn removed_intermediate_cuts_off_only_its_member() {
    let (east, west) = (member("east", "n1").await, member("west", "n1").await);
    let north = member("north", "n1").await;
    let setup = Setup::new();
    let folders = ["east", "west"].map(|id| setup.path(&format!("{id}-ca")));
    let flags: Vec<String> = ["east", "west"]
        .iter()
        .zip(&folders)
        .map(|(id, folder)| format!("--ca-member-dir={id}={}", folder.display()))
        .collect();
    let setup = setup.with(&[&*flags[0], &*flags[1]]);
    let [easts, wests] = [0, 1].map(|at| make(&setup, &folders[at], ["east", "west"][at]));
    setup.join(&[&east, &west, &north]);
    let server = setup.start_ready().await;
    let agents = [&east, &west, &north].map(Agent::for_member);
    let mut shown = Vec::new();
    for agent in &agents {
        shown.push(Shown::to(agent, &server, &setup).await);
    }
    let by = shown.iter().map(Shown::intermediate).collect::<Vec<_>>();
    assert_eq!(by, [Some(&easts), Some(&wests), None], "the third member uses the mesh's CA");
    for from in &shown {
        for to in &shown {
            calls(from, to).await.expect("they trust each other because of the root");
        }
    }
    // The control plane trusts them as well.
    let options = ClientOptions::default;
    let tls = shown[0].to_server(&setup);
    let client = server.open_with(tls, &agents[0].proxy, options()).await.expect("let in");
    endpoints_until(&client, "web", &[("10.0.0.1:8080", 1)]).await;
    let own = own_until(&server, "east", |own| own["issued"] == 1).await;
    assert!(own["expires"].is_string() && own["problem"].is_null(), "{own}");

    // East is cut off.
    std::fs::remove_dir_all(&folders[0]).expect("removed");
    let own = own_until(&server, "east", |own| own["problem"]["code"] == "STR0556").await;
    assert!(own["expires"].is_null(), "{own}");
    let key = KeyPair::generate().expect("a key");
    for tls in [without_certificate(&setup), shown[0].to_server(&setup)] {
        let refused = request_certificate(&agents[0], &server, tls, &key).await.expect_err("cut");
        assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
        assert!(refused.message().starts_with("STR0556"), "{refused}");
    }
    // The name of another cluster with the same account does not help.
    let as_north = Agent { cluster: "north".to_owned(), ..agents[0].clone() };

    let refused = request_certificate(&as_north, &server, shown[0].to_server(&setup), &key).await;
    assert!(refused.expect_err("of east").message().starts_with("STR0557"));
    assert_eq!(Shown::to(&agents[1], &server, &setup).await.intermediate(), Some(&wests));
    assert_eq!(Shown::to(&agents[2], &server, &setup).await.intermediate(), None);
    // Its current certificate is valid until it expires.
    calls(&shown[0], &shown[1]).await.expect("believed");
    let output = server.strait(&["certs", "status"]).await;
    let text = super::mesh::text(&output);
    assert!(
        text.contains("nothing signs") && text.contains("STR0556: the CA of member east"),
        "{text}"
    );
    let (_, metrics) = server.admin.text("/metrics").await;
    for line in [
        "strait_ca_member_signs{member=\"east\"} 0",
        "strait_ca_member_signs{member=\"west\"} 1",
        "strait_member_certificates_issued_total{member=\"west\"} 2",
        "strait_ca_expiry_seconds{member=\"west\"} ",
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }

    // A control plane that starts now uses no other intermediate for it, and serves all other
    // members.
    server.shut_down().await;
    let server = setup.start_ready().await;
    Shown::to(&agents[1], &server, &setup).await;
    let refused = request_certificate(&agents[0], &server, without_certificate(&setup), &key).await;
    assert!(refused.expect_err("cut").message().starts_with("STR0556"));
    // An intermediate of another root is rejected, because no workload would trust it; then an
    // intermediate of the mesh's CA admits east again.
    let foreign = AuthorityPem::generate(std::time::SystemTime::now()).expect("a CA");
    foreign.write(&folders[0]).expect("written");
    let own = own_until(&server, "east", |own| own["problem"]["code"] == "STR0555").await;
    let message = own["problem"]["message"].as_str().expect("a message");
    assert!(message.contains(&*folders[0].display().to_string()), "{message}");
    std::fs::remove_dir_all(&folders[0]).expect("removed");
    let again = make(&setup, &folders[0], "east");
    own_until(&server, "east", |own| own["expires"].is_string() && own["problem"].is_null()).await;
    let shown_again = Shown::to(&agents[0], &server, &setup).await;
    assert_eq!(shown_again.intermediate(), Some(&again));
    calls(&shown_again, &shown[1]).await.expect("believed");
    server.shut_down().await;
}
