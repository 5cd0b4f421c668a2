//! Pods that have only a token: a stand-in for Istio's agent, from the agent's first certificate
//! until its streams end, with API servers that stop and return.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rcgen::{CertificateParams, KeyPair};
use rustls::ClientConfig;
use serde_json::json;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status, Streaming};

use super::mesh::{Member, Proxy, SHOP, SOON, SYSTEM, Server, Setup, holds, wait_until};
use strait_identity::{TrustRoots, tls};
use strait_proto::envoy::envoy::config::core::v3::Node;
use strait_proto::envoy::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use strait_proto::envoy::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use strait_proto::envoy::google::protobuf::value::Kind;
use strait_proto::envoy::google::protobuf::{Struct, Value as ProtoValue};
use strait_proto::istio::auth::IstioCertificateRequest;
use strait_proto::istio::auth::istio_certificate_service_client::IstioCertificateServiceClient;
use strait_sim::{Options as SimOptions, SimCluster, objects};
use strait_xds::resource::ResourceType;
use strait_xds_client::channel;

const AUDIENCE: &str = "istio-ca";
const HOUR: Duration = Duration::from_secs(3600);

/// The agent of one pod: a token, the ID of the pod's cluster, and no certificate.
#[derive(Clone)]
pub(super) struct Agent {
    pub(super) token: String,
    pub(super) cluster: String,
    pub(super) proxy: Proxy,
}

impl Agent {
    /// Returns the agent of the pod `web-10-0-0-1` that the member runs.
    pub(super) fn for_member(member: &Member) -> Self {
        let proxy = Proxy {
            name: "web-10-0-0-1",
            account: "web",
            ip: "10.0.0.1".into(),
            ..Proxy::sidecar(member.id())
        };
        Self { token: token(member, proxy.name, HOUR), cluster: member.id().to_owned(), proxy }
    }

    pub(super) fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        let metadata = request.metadata_mut();
        let bearer = format!("Bearer {}", self.token);
        metadata.insert("authorization", bearer.parse().expect("text"));
        metadata.insert("clusterid", self.cluster.parse().expect("text"));
        request
    }

    /// Requests a certificate, which is an agent's first request.
    async fn certificate(&self, server: &Server, setup: &Setup) -> Result<Vec<String>, Status> {
        let channel = channel(server.bound.xds, "localhost", without_certificate(setup)).await;
        let channel = channel.map_err(|error| Status::unavailable(error.to_string()))?;
        let mut client = IstioCertificateServiceClient::new(channel);
        let answer = client.create_certificate(self.request(csr())).await?;
        Ok(answer.into_inner().cert_chain)
    }

    /// Requests a certificate, and retries while the server asks for it.
    pub(super) async fn certificate_soon(&self, server: &Server, setup: &Setup) -> Vec<String> {
        wait_until(SOON, async || match self.certificate(server, setup).await {
            Ok(chain) => Ok(chain),
            Err(status) if status.code() == Code::Unavailable => Err(status.to_string()),
            Err(status) => panic!("a final refusal: {status}"),
        })
        .await
    }

    /// Opens its stream, as for its Envoy.
    pub(super) async fn stream(
        &self,
        server: &Server,
        setup: &Setup,
    ) -> Result<AgentStream, Status> {
        let channel = channel(server.bound.xds, "localhost", without_certificate(setup)).await;
        let mut client = AggregatedDiscoveryServiceClient::new(channel.expect("connected"));
        let (requests, receiver) = mpsc::channel(16);
        let first = discovery(ResourceType::Cluster.url(), Some(self.proxy.node()));
        requests.send(first).await.expect("room");
        let answer =
            client.stream_aggregated_resources(self.request(ReceiverStream::new(receiver)));
        Ok(AgentStream { requests, responses: answer.await?.into_inner() })
    }
}

pub(super) struct AgentStream {
    requests: mpsc::Sender<DiscoveryRequest>,
    responses: Streaming<DiscoveryResponse>,
}

impl AgentStream {
    async fn send(&self, request: DiscoveryRequest) {
        self.requests.send(request).await.expect("it is open");
    }

    /// Returns the next response, and acknowledges it as Envoy does.
    pub(super) async fn next(&mut self) -> DiscoveryResponse {
        let response = tokio::time::timeout(SOON, self.responses.message()).await.expect("in time");
        let response = response.expect("no error").expect("the stream continues");
        self.send(DiscoveryRequest {
            version_info: response.version_info.clone(),
            response_nonce: response.nonce.clone(),
            ..discovery(&response.type_url, None)
        })
        .await;
        response
    }

    /// Returns the status with which the stream ends.
    async fn end(&mut self) -> Status {
        tokio::time::timeout(SOON, async {
            loop {
                match self.responses.message().await {
                    Ok(Some(_)) => {}
                    Ok(None) => return Status::ok("ended"),
                    Err(status) => return status,
                }
            }
        })
        .await
        .expect("it ends")
    }
}

fn discovery(type_url: &str, node: Option<Node>) -> DiscoveryRequest {
    DiscoveryRequest { type_url: type_url.to_owned(), node, ..Default::default() }
}

/// Returns a certificate request in the agent's format.
fn csr() -> IstioCertificateRequest {
    certificate_request(&KeyPair::generate().expect("a key"))
}

/// Returns a certificate request for this key.
pub(super) fn certificate_request(key: &KeyPair) -> IstioCertificateRequest {
    let csr = CertificateParams::default().serialize_request(key).expect("signed");
    let empty = ProtoValue { kind: Some(Kind::StringValue(String::new())) };
    let fields = [("CertSigner".to_owned(), empty)].into();
    IstioCertificateRequest {
        csr: csr.pem().expect("PEM"),
        validity_duration: 86_400,
        metadata: Some(Struct { fields }),
    }
}

/// Returns a client's TLS configuration with the roots and without a certificate.
pub(super) fn without_certificate(setup: &Setup) -> Arc<ClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    for pem in setup.authority().roots().to_pem().split_inclusive("-----END CERTIFICATE-----\n") {
        let der = rustls_pki_types::pem::PemObject::from_pem_slice(pem.as_bytes());
        roots.add(der.expect("PEM")).expect("a root");
    }
    let builder = ClientConfig::builder_with_provider(tls::provider());
    let builder = builder.with_protocol_versions(&[&rustls::version::TLS13]).expect("TLS 1.3");
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![tls::ALPN.to_vec()];
    Arc::new(config)
}

fn token(member: &Member, pod: &str, life: Duration) -> String {
    member.api.pod_token(SHOP, pod, AUDIENCE, life).expect("a token")
}

/// Starts a member that runs the pod `web-10-0-0-1`.
pub(super) async fn member(id: &str, network: &str) -> Member {
    let member = Member::start(id, network, "198.18.0.1").await;
    member.serve("web", &["10.0.0.1"]);
    member
}

pub(super) async fn running() -> (Setup, Member, Server) {
    let east = member("east", "n1").await;
    let setup = Setup::new();
    setup.join(&[&east]);
    let server = setup.start_ready().await;
    (setup, east, server)
}

fn reviews(member: &Member) -> usize {
    member.api.requests(|request| request.path.ends_with("/tokenreviews")).len()
}

/// Waits until the keys of a member have been read.
async fn keys_read(member: &Member) {
    wait_until(SOON, async || {
        let reads = member.api.requests(|request| request.path == "/openid/v1/jwks").len();
        holds(reads > 0, reads)
    })
    .await;
}

/// Returns the identity in the leaf of a certificate response, which contains the leaf, then the
/// roots.
pub(super) fn verified_identity(chain: &[String]) -> String {
    let (leaf, roots) = (chain.first().expect("a leaf"), chain.last().expect("roots"));
    assert!(chain.len() >= 2 && chain.iter().all(|pem| pem.ends_with('\n')), "{chain:?}");
    let now = SystemTime::now();
    let roots = TrustRoots::from_pem(roots.as_bytes(), "answer", now).expect("roots");
    let der = rustls_pki_types::pem::PemObject::from_pem_slice(leaf.as_bytes()).expect("PEM");
    roots.authenticate(&[der], now).expect("verifies").id().to_string()
}

#[tokio::test]
async fn pod_with_a_token_receives_its_certificate_and_its_configuration() {
    let (setup, east, server) = running().await;
    let agent = Agent::for_member(&east);
    let chain = agent.certificate_soon(&server, &setup).await;
    assert_eq!(verified_identity(&chain), "spiffe://cluster.local/ns/shop/sa/web");

    let mut stream = agent.stream(&server, &setup).await.expect("let in");
    assert_eq!(stream.next().await.type_url, ResourceType::Cluster.url());
    // The agent's own requests have no node; a request for an unknown type gets no response.
    stream.send(discovery(ResourceType::Listener.url(), None)).await;
    stream.send(discovery(ResourceType::NameTable.url(), None)).await;
    stream.send(discovery("type.googleapis.com/istio.mesh.v1alpha1.ProxyConfig", None)).await;
    stream.send(discovery("type.googleapis.com/istio.v1.HealthInformation", None)).await;
    let mut kinds = std::collections::BTreeSet::new();
    while kinds.len() < 2 {
        kinds.insert(stream.next().await.type_url);
    }
    assert!(kinds.contains(ResourceType::Listener.url()), "{kinds:?}");
    assert!(kinds.contains(ResourceType::NameTable.url()), "{kinds:?}");
    let shown = server.admin.json("/debug/proxies").await;
    let entry = &shown[0];
    assert_eq!((&entry["verified"], &entry["knownBy"]), (&json!(true), &json!("token")), "{shown}");
    assert!(entry["knownUntil"].is_string(), "{shown}");

    // The agent alone restarts: another stream of the same node, in parallel with the old one for a
    // while.
    let mut again = agent.stream(&server, &setup).await.expect("let in");
    again.next().await;
    // Pods of the same account are separate nodes.
    east.serve("web", &["10.0.0.1", "10.0.0.2", "10.0.0.3"]);
    for pod in ["web-10-0-0-2", "web-10-0-0-3"] {
        let other = Agent { token: token(&east, pod, HOUR), ..agent.clone() };
        let chain = other.certificate_soon(&server, &setup).await;
        assert_eq!(verified_identity(&chain), "spiffe://cluster.local/ns/shop/sa/web");
    }
    assert_eq!(server.admin.metric("strait_certificates_issued_total").await, 3.0);
}

#[tokio::test]
async fn call_without_valid_credentials_is_rejected() {
    let (setup, east, server) = running().await;
    let west = member("west", "n2").await;
    setup.join(&[&west]);
    server.cluster_in("west", "live").await;
    for member in [&east, &west] {
        keys_read(member).await;
        Agent::for_member(member).certificate_soon(&server, &setup).await;
    }
    let good = Agent::for_member(&east);
    let for_others = east.api.pod_token(SHOP, "web-10-0-0-1", "other", HOUR).expect("a token");
    let (east_reviews, west_reviews) = (reviews(&east), reviews(&west));
    let with = |token: &str, cluster: &str| Agent {
        token: token.to_owned(),
        cluster: cluster.to_owned(),
        ..good.clone()
    };
    for (case, agent) in [
        ("no token", with("", "east")),
        ("no JWT", with("abc", "east")),
        ("cut", with(&good.token[..good.token.len() - 8], "east")),
        ("of another cluster by the same issuer", with(&Agent::for_member(&west).token, "east")),
        ("of an unknown cluster", with(&good.token, "north")),
        ("of no cluster", with(&good.token, "")),
        ("for another audience", with(&for_others, "east")),
    ] {
        // The same result for every method.
        let status = agent.stream(&server, &setup).await.err().expect("refused");
        assert_eq!(status.code(), Code::Unauthenticated, "{case}: {status}");
        assert!(!status.message().contains("shop"), "{case}: {status}");
        // Issuers with equal names have different keys: a token with an unknown key may be sent
        // only to the member that the caller names.
        assert_eq!(reviews(&west), west_reviews, "{case}");
    }
    // The token of the other cluster was sent to the named one, which does not know its key.
    assert!(reviews(&east) <= east_reviews + 1);
    let refused = "strait_callers_refused_total{reason=\"STR0522\"}";
    assert!(server.admin.metric(refused).await >= 4.0);
    // Istio's dashboards count only requests to the certificate service.
    let status = with("abc", "east").certificate(&server, &setup).await.expect_err("refused");
    assert_eq!(status.code(), Code::Unauthenticated);
    let failed = "citadel_server_authentication_failure_count{type=\"STR0522\"}";
    assert!((server.admin.metric(failed).await - 1.0).abs() < 0.1);
    // A token of one identity with the certificate of another is rejected.
    let both = {
        let tls = setup.certificate(SHOP, "other");
        let channel = channel(server.bound.xds, "localhost", tls).await.expect("connected");
        let mut client = IstioCertificateServiceClient::new(channel);
        client.create_certificate(good.request(csr())).await
    };
    assert_eq!(both.expect_err("refused").code(), Code::Unauthenticated);
}

#[tokio::test]
async fn known_pod_is_admitted_while_its_api_server_is_unreachable_also_after_a_restart() {
    let (setup, east, server) = running().await;
    keys_read(&east).await;
    let agent = Agent::for_member(&east);
    agent.certificate_soon(&server, &setup).await;
    let review_count = reviews(&east);
    let newer = Agent { token: token(&east, agent.proxy.name, HOUR), ..agent.clone() };
    // A token signed by an unknown key.
    let unknown_key = {
        let twin = SimCluster::start("east", SimOptions::default()).await.expect("a free port");
        twin.store()
            .apply(objects::pod(SHOP, agent.proxy.name, "web", "10.0.0.1", "node"))
            .expect("valid");
        twin.pod_token(SHOP, agent.proxy.name, AUDIENCE, HOUR).expect("a token")
    };
    east.api.stop().await;
    let chain = newer.certificate(&server, &setup).await.expect("proven offline");
    assert_eq!(verified_identity(&chain), "spiffe://cluster.local/ns/shop/sa/web");
    newer.stream(&server, &setup).await.expect("let in").next().await;
    assert_eq!(reviews(&east), review_count, "nothing was asked");
    server.shut_down().await;

    let server = setup.start_ready().await;
    server.cluster_in("east", "restored").await;
    let chain =
        agent.certificate(&server, &setup).await.expect("a certificate for the remembered pod");
    assert_eq!(verified_identity(&chain), "spiffe://cluster.local/ns/shop/sa/web");
    agent.stream(&server, &setup).await.expect("let in").next().await;
    // A token with an unknown key cannot be verified before its API server returns.
    let stranger = Agent { token: unknown_key, ..agent };
    let status = stranger.certificate(&server, &setup).await.expect_err("not now");
    assert_eq!(status.code(), Code::Unavailable, "{status}");
}

#[tokio::test]
async fn token_without_pod_is_reviewed_by_the_member_and_the_result_cached() {
    let (setup, east, server) = running().await;
    keys_read(&east).await;
    Agent::for_member(&east).certificate_soon(&server, &setup).await;
    let by_hand = {
        let account = json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": { "namespace": SHOP, "name": "web" },
        });
        east.apply(account);
        let path = format!("{}/api/v1/namespaces/{SHOP}/serviceaccounts/web/token", east.api.url());
        token_by_hand(&east, &path).await
    };
    // It is bound to no pod, so only the API server can verify it.
    let before = reviews(&east);
    let agent = Agent { token: by_hand, ..Agent::for_member(&east) };
    for _ in 0..3 {
        agent
            .certificate(&server, &setup)
            .await
            .expect("a certificate after a review by the member");
    }
    assert_eq!(reviews(&east), before + 1, "one review for three calls");
    east.api.stop().await;
    agent.certificate(&server, &setup).await.expect("a certificate from the cached result");
}

pub(super) async fn token_by_hand(member: &Member, path: &str) -> String {
    use strait_kube_client::{Access, ApiClient, ApiCredential, Loopback, Redacted};
    let access = Access {
        server: member.api.url().parse().expect("a URL"),
        ca_pem: Some(member.api.certificate_authority().as_bytes().to_vec()),
        tls_server_name: None,
        credential: ApiCredential::Token(Redacted::new(member.api.token())),
        loopback: Loopback::Named,
        proxy: None,
    };
    let request = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": { "audiences": [AUDIENCE], "expirationSeconds": 3600 },
    });
    let path = path.trim_start_matches(&member.api.url());
    let answer: serde_json::Value =
        ApiClient::new(&access).expect("a client").create(path, &request).await.expect("made");
    answer["status"]["token"].as_str().expect("a token").to_owned()
}

#[tokio::test]
async fn stream_ends_with_its_token_or_its_pod() {
    let (setup, east, server) = running().await;
    keys_read(&east).await;
    let agent = Agent::for_member(&east);
    agent.certificate_soon(&server, &setup).await;
    let short =
        Agent { token: token(&east, agent.proxy.name, Duration::from_secs(4)), ..agent.clone() };
    let mut ends = short.stream(&server, &setup).await.expect("let in");
    ends.next().await;
    let status = ends.end().await;
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(status.message().starts_with("STR0526"), "{status}");

    let mut stream = agent.stream(&server, &setup).await.expect("let in");
    stream.next().await;
    // Another pod with the same name, as in a StatefulSet.
    east.api.store().delete("Pod", SHOP, "web-10-0-0-1").expect("deleted");
    let status = stream.end().await;
    assert_eq!(status.code(), Code::PermissionDenied, "{status}");
    assert!(status.message().starts_with("STR0525"), "{status}");
    east.serve("web", &["10.0.0.1"]);
    wait_until(SOON, async || {
        let refused =
            agent.certificate(&server, &setup).await.expect_err("no certificate for a deleted pod");
        holds(refused.code() == Code::Unauthenticated, refused)
    })
    .await;
    Agent::for_member(&east).certificate_soon(&server, &setup).await;
}

#[tokio::test]
async fn member_vouches_for_its_pods_but_not_for_the_system_namespace() {
    let (setup, east, server) = running().await;
    keys_read(&east).await;
    east.apply(objects::pod(SYSTEM, "gateway-0", "gateway", "10.0.0.50", "node"));
    let token = east.api.pod_token(SYSTEM, "gateway-0", AUDIENCE, HOUR).expect("a token");
    let agent = Agent { token, ..Agent::for_member(&east) };
    wait_until(SOON, async || {
        let refused = agent.certificate(&server, &setup).await.expect_err("refused");
        holds(refused.code() == Code::PermissionDenied, refused)
    })
    .await;
    server.shut_down().await;
    let policy = setup.path("policy.yaml");
    let text = "apiVersion: strait.dev/v1\nkind: Policy\nclusters:\n  east:\n    identities: [shop, strait-system]\n";
    std::fs::write(&policy, text).expect("written");
    let setup = setup.with(&["--policy", &policy.display().to_string()]);
    let server = setup.start_ready().await;
    let chain = agent.certificate_soon(&server, &setup).await;
    assert_eq!(verified_identity(&chain), format!("spiffe://cluster.local/ns/{SYSTEM}/sa/gateway"));
}

#[tokio::test]
async fn token_is_rejected_if_certificates_are_required() {
    let east = member("east", "n1").await;
    let setup = Setup::new().with(&["--require-client-certificate"]);
    setup.join(&[&east]);
    let server = setup.start_ready().await;
    let status = Agent::for_member(&east).certificate(&server, &setup).await.expect_err("refused");
    assert_ne!(status.code(), Code::Unauthenticated, "the handshake fails, not the call: {status}");
    let client = server.connect(&setup, &Proxy::sidecar("east")).await;
    wait_until(SOON, async || holds(client.held().responses > 0, ())).await;
}
