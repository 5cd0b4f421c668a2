//! Random policies and requests with real Envoys, compared with the oracle
//! (`tests/access/evaluator.rs`).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use futures::StreamExt;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::access::{event_with_root, guarded_by};
use super::access_cases_envoy::as_far_as_readable;
use super::envoy::{
    Authority, Running, at_loopback, bootstrap, envoys, free_ports, static_cluster, to_loopback,
    validated, workload_server,
};
use super::*;
use crate::access_oracle::evaluator::{Call, Outcome, Server, Token, outcome};
use crate::access_oracle::generator::{
    ISSUERS, asking_for_tokens, random_call, random_modes, random_policy, random_token_rules,
    random_tokens,
};

const DOMAINS: [&str; 2] = ["mesh.example", "old.example"];
/// Number of sets of policies, and number of requests for each set.
const SETS: usize = 120;
const CALLS: usize = 25;
/// Number of concurrent requests. Each mostly waits for responses.
const AT_ONCE: usize = 16;
const WAIT_LIMIT: Duration = Duration::from_secs(20);

/// The ports of a workload: HTTP with mTLS only, HTTP in plain text only, and raw TCP with both.
pub(super) type Doors = [u16; 3];

/// Returns the policy with the ports and addresses of a workload on loopback.
fn on_loopback(policy: &Value, [mtls, plain, bytes]: Doors) -> Value {
    let text = policy.to_string();
    let text = text
        .replace("\"8080\"", &format!("\"{mtls}\""))
        .replace("\"5432\"", &format!("\"{plain}\""))
        .replace("\"0\"", &format!("\"{bytes}\""))
        .replace("10.0.0.7", "127.0.0.7")
        .replace("10.0.0.0/", "127.0.0.0/")
        .replace("10.1.0.1", "127.0.0.1")
        .replace("10.1.0.0/", "127.0.0.0/")
        .replace("\"other\"", "\"shop\"")
        .replace("istio-system", "root");
    serde_json::from_str(&text).expect("JSON")
}

/// Returns a mesh with a workload of `shop` on these ports, after the event `policies`, and the
/// sidecar of the workload.
pub(super) fn behind_doors(policies: MeshEvent, doors: Doors) -> (Arc<PushContext>, Proxy) {
    behind_doors_with_config("", policies, doors)
}

/// Returns the mesh of [`behind_doors`] with additional lines in the mesh config.
pub(super) fn behind_doors_with_config(
    config: &str,
    policies: MeshEvent,
    [mtls, plain, bytes]: Doors,
) -> (Arc<PushContext>, Proxy) {
    let config = format!("trustDomain: mesh.example\ntrustDomainAliases: [old.example]\n{config}");
    let config = MeshConfig::parse(&config, &Default::default()).expect("valid");
    let member = |domain: &str| KnownCluster {
        trust_domain: domain.into(),
        ..strait_model::testing::member(None)
    };
    let members = [("east", "mesh.example"), ("west", "foreign.org"), ("new", "cluster.local")];
    let members = members.map(|(id, domain)| (id.into(), member(domain)));
    let events = [
        MeshEvent::MeshConfig(Arc::new(config)),
        MeshEvent::Clusters(Arc::new(KnownClusters { clusters: members.into_iter().collect() })),
        policies,
    ];
    let ports = vec![port("http-a", 80, mtls), port("http-b", 81, plain), port("tcp-c", 82, bytes)];
    guarded_by(("shop", "web"), ports, events)
}

/// Returns a PeerAuthentication with the modes of the ports.
pub(super) fn door_modes([mtls, plain, bytes]: Doors) -> Value {
    let mode = |mode: &str| json!({ "mode": mode });
    let modes = [(mtls, "STRICT"), (plain, "DISABLE"), (bytes, "PERMISSIVE")];
    let ports: BTreeMap<_, _> =
        modes.into_iter().map(|(port, name)| (port.to_string(), mode(name))).collect();
    json!({
        "apiVersion": "security.istio.io/v1", "kind": "PeerAuthentication",
        "metadata": { "namespace": "shop", "name": "modes" },
        "spec": { "selector": { "matchLabels": { "app": "web" } }, "portLevelMtls": ports },
    })
}

fn context(policies: &[Value], doors: Doors) -> (Arc<PushContext>, Proxy) {
    let all = policies.iter().cloned().chain([door_modes(doors)]);
    behind_doors(event_with_root("root", all), doors)
}

/// The configuration of an Envoy that acts as many sidecars.
#[derive(Default)]
pub(super) struct SharedEnvoy {
    listeners: Vec<Value>,
    clusters: BTreeMap<String, Value>,
}

impl SharedEnvoy {
    /// Adds the configuration of a sidecar.
    pub(super) fn add(
        &mut self,
        name: &str,
        (context, proxy): &(Arc<PushContext>, Proxy),
        doors: Doors,
        workload: u16,
    ) {
        let mut listener = listeners(context, proxy).remove("virtualInbound").expect("one");
        listener["name"] = name.into();
        listener["address"] = at_loopback(doors[0]);
        let others = doors[1..].iter().map(|port| json!({ "address": at_loopback(*port) }));
        listener["additional_addresses"] = others.collect();
        self.listeners.push(listener);
        for (name, cluster) in list_resources(context, proxy, ResourceType::Cluster) {
            if !name.starts_with("outbound|") {
                let cluster = static_cluster(cluster, to_loopback(&name, workload));
                self.clusters.insert(name, cluster);
            }
        }
    }

    /// Validates the configuration with Envoy and starts Envoy.
    pub(super) async fn run(self, envoy: &Path, what: &str, authority: &Authority) -> Running {
        let mut bootstrap = bootstrap(self.listeners, self.clusters.into_values().collect());
        bootstrap["static_resources"]["secrets"] = authority.secrets();
        validated(envoy, what, &bootstrap);
        Running::start(envoy, &bootstrap).await
    }
}

/// Covers combinations of client identity, cluster and network, forwarded address, path, method,
/// host, header and port, with HTTP/1.1, HTTP/2 or raw TCP, under policies of all kinds, including
/// mTLS modes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn real_envoys_respond_to_random_requests_like_the_oracle() {
    let clients = MeshClients::new(Authority::new());
    let issuers = ISSUERS.map(Issuer::new);
    let issuer = |name: &str| issuers.iter().find(|one| one.name == name).expect("it has keys");
    for envoy in envoys() {
        let echo = workload_server().await;
        let mut sets = Vec::new();
        let mut shared = SharedEnvoy::default();
        // All ports are allocated together, because the system may assign a released port again.
        let all: [u16; 3 * SETS] = free_ports();
        for seed in 0..SETS {
            let mut random = StdRng::seed_from_u64(seed as u64);
            let doors = [all[3 * seed], all[3 * seed + 1], all[3 * seed + 2]];
            let count = random.random_range(1..5);
            let mut policies: Vec<_> =
                (0..count).map(|at| random_policy(&mut random, &format!("p{at}"))).collect();
            let rules = random_token_rules(&mut random, |name| issuer(name).keys());
            if random.random_bool(0.6) {
                policies[0] = asking_for_tokens(&mut random, policies[0].clone());
            }
            policies.extend(rules);
            policies.extend(random_modes(&mut random, &["8080", "5432", "0"]));
            let policies: Vec<_> = policies.iter().map(|one| on_loopback(one, doors)).collect();
            let sidecar = behind_doors(as_far_as_readable(&policies), doors);
            shared.add(&format!("inbound-{seed}"), &sidecar, doors, echo);
            sets.push((policies, doors, random));
        }
        let running = shared.run(&envoy, "random policies", &clients.authority).await;
        let mut calls = Vec::new();
        for (seed, (policies, doors, random)) in sets.iter_mut().enumerate() {
            for _ in 0..CALLS {
                let mut call = as_sent(random_call(random), *doors);
                let how = match (call.is_http, random.random_bool(0.4)) {
                    (false, _) => AsSent::Bytes,
                    (true, false) => AsSent::Http1,
                    (true, true) => AsSent::Http2,
                };
                if call.is_http {
                    call.tokens = random_tokens(random);
                }
                let server = Server {
                    namespace: "shop",
                    labels: &[("app", "web")],
                    root: "root",
                    domains: &DOMAINS,
                    providers: &[],
                };
                let expected = outcome(policies, &server, &call);
                calls.push((seed, how, expected, call));
            }
        }
        let mut count = BTreeMap::<(AsSent, Outcome), usize>::new();
        let answers = futures::stream::iter(calls).map(|(seed, how, expected, call)| {
            let bearers = call.tokens.iter().map(|token| bearer(issuer(&token.signer), token));
            let bearers: Vec<_> = bearers.collect();
            let clients = &clients;
            async move { (clients.send(&call, how, &bearers).await, seed, how, expected, call) }
        });
        let mut answers = answers.buffer_unordered(AT_ONCE);
        while let Some((status, seed, how, expected, call)) = answers.next().await {
            let found = match status {
                200 => Outcome::Passes,
                401 => Outcome::Unauthorized,
                403 => Outcome::Denied,
                // A closed raw TCP connection does not show the reason.
                0 if how == AsSent::Bytes && expected != Outcome::Passes => expected,
                0 => Outcome::Closed,
                other => panic!("seed {seed}: {other} for {how:?} {call:?}"),
            };
            let policies = &sets[seed].0;
            assert_eq!(
                found,
                expected,
                "{} seed {seed}: {how:?} {call:?}\n{:#}",
                envoy.display(),
                json!(policies)
            );
            *count.entry((how, expected)).or_default() += 1;
        }
        // A raw TCP connection has no tokens.
        let is_mixed = count.len() == 11 && count.values().all(|count| *count > 15);
        assert!(is_mixed, "requests by kind and outcome: {count:?}");
        drop(running);
    }
}

/// Returns the header of a token and its value.
fn bearer(signer: &Issuer, token: &Token) -> (String, String) {
    let mut claims = json!({ "sub": token.subject });
    if !token.groups.is_empty() {
        claims["groups"] = json!(token.groups);
    }
    if token.has_ended {
        claims["exp"] = 1_000_000_000.into();
    }
    let text = signer.token(&token.issuer, claims);
    let is_usual = token.place == "authorization";
    (token.place.clone(), if is_usual { format!("Bearer {text}") } else { text })
}

/// The way in which a call is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum AsSent {
    Http1,
    Http2,
    Bytes,
}

/// Returns the call in the form that is sent over loopback. Clients of other clusters are in
/// another network: all use that network's gateway address.
fn as_sent(call: Call, [first, other, bytes]: Doors) -> Call {
    let domain = call.identity.as_ref().map(|(domain, ..)| &**domain);
    let is_far = domain.is_some_and(|domain| !DOMAINS.contains(&domain));
    let from = match call.from.to_string().as_str() {
        _ if is_far => "127.16.0.1",
        "10.0.0.7" => "127.0.0.7",
        "10.0.0.200" => "127.0.0.200",
        _ => "127.32.0.1",
    };
    let from = from.parse().expect("an address");
    let port = match (call.is_http, call.port) {
        (false, _) => bytes,
        (true, 8080) => first,
        (true, _) => other,
    };
    let sni = if domain.is_some() { "x.local".to_owned() } else { String::new() };
    let client = if call.is_http { call.client } else { from };
    let address = "127.0.0.1".parse().expect("an address");
    Call { from, client, address, port, sni, ..call }
}

/// Clients with certificates of one authority. Each client is created once.
pub(super) struct MeshClients {
    pub(super) authority: Authority,
    connectors: Mutex<BTreeMap<(String, &'static str), tokio_rustls::TlsConnector>>,
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

impl MeshClients {
    pub(super) fn new(authority: Authority) -> Self {
        Self { authority, connectors: Mutex::default() }
    }

    /// Connects with an identity, or in plain text without one.
    async fn connect(
        &self,
        (from, port): (IpAddr, u16),
        identity: Option<&str>,
        alpn: &'static str,
    ) -> std::io::Result<Box<dyn Stream>> {
        let socket = tokio::net::TcpSocket::new_v4()?;
        socket.bind((from, 0).into())?;
        let stream = socket.connect(([127, 0, 0, 1], port).into()).await?;
        let Some(identity) = identity else { return Ok(Box::new(stream)) };
        let connector = {
            let mut connectors = self.connectors.lock().expect("one test");
            let entry = connectors.entry((identity.to_owned(), alpn));
            entry.or_insert_with(|| connector(&self.authority, identity, alpn)).clone()
        };
        let name = ServerName::try_from("x.local").expect("a name");
        Ok(Box::new(connector.connect(name, stream).await?))
    }

    /// Sends a request and returns the response status, or 0 for none.
    pub(super) async fn send_head(
        &self,
        (from, port): (IpAddr, u16),
        identity: Option<&str>,
        alpn: &'static str,
        head: &str,
    ) -> u16 {
        let exchange = async {
            match self.connect((from, port), identity, alpn).await {
                Ok(stream) => answered(stream, head).await,
                // Envoy may reset a denied connection.
                Err(_) => 0,
            }
        };
        tokio::time::timeout(WAIT_LIMIT, exchange).await.expect("an answer")
    }

    /// Sends the request `METHOD PATH` to a host with HTTP/2 in plain text. Returns the response
    /// status, or 0 for none.
    pub(super) async fn send_in_http2(&self, to: (IpAddr, u16), line: &str, host: &str) -> u16 {
        let (method, path) = line.split_once(' ').expect("a method and a path");
        let request = http::Request::builder().method(method).uri(format!("http://{host}{path}"));
        let exchange =
            async { http2_status(self.connect(to, None, "").await.ok()?, request).await };
        let status = tokio::time::timeout(WAIT_LIMIT, exchange).await.expect("an answer");
        status.unwrap_or_default()
    }

    /// Sends a call with additional headers. Returns the response status, or 0 for none.
    async fn send(&self, call: &Call, how: AsSent, more: &[(String, String)]) -> u16 {
        let identity = call.identity.as_ref();
        let identity = identity.map(|(domain, namespace, account)| {
            format!("spiffe://{domain}/ns/{namespace}/sa/{account}")
        });
        let (to, identity) = ((call.from, call.port), identity.as_deref());
        if how == AsSent::Http2 {
            let mut request = http::Request::builder()
                .method(&*call.method)
                .uri(format!("http://{}{}", call.host, call.path))
                .header("x-forwarded-for", call.client.to_string());
            for (name, value) in call.headers.iter().chain(more) {
                request = request.header(name, value);
            }
            let exchange = async {
                let stream = self.connect(to, identity, "istio-h2").await.ok()?;
                http2_status(stream, request).await
            };
            let status = tokio::time::timeout(WAIT_LIMIT, exchange).await.expect("an answer");
            return status.unwrap_or_default();
        }
        let mut head = format!("{} {} HTTP/1.1\r\nhost: {}\r\n", call.method, call.path, call.host);
        head += &format!("connection: close\r\nx-forwarded-for: {}\r\n", call.client);
        for (name, value) in call.headers.iter().chain(more) {
            head += &format!("{name}: {value}\r\n");
        }
        head += "content-length: 0\r\n\r\n";
        let alpn = if how == AsSent::Bytes { "istio" } else { "istio-http/1.1" };
        self.send_head(to, identity, alpn, &head).await
    }
}

/// Returns the status of an HTTP/2 response, if there is one.
#[expect(
    clippy::disallowed_methods,
    reason = "a connection of a test, which ends with its request"
)]
async fn http2_status(stream: Box<dyn Stream>, request: http::request::Builder) -> Option<u16> {
    let io = hyper_util::rt::TokioIo::new(stream);
    let executor = hyper_util::rt::TokioExecutor::new();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(executor, io).await.ok()?;
    let connection = tokio::spawn(connection);
    let request = request.body(http_body_util::Empty::<bytes::Bytes>::new()).expect("a request");
    let answer = sender.send_request(request).await.ok();
    connection.abort();
    Some(answer?.status().as_u16())
}

async fn answered(mut stream: impl AsyncRead + AsyncWrite + Unpin, head: &str) -> u16 {
    let mut answer = vec![0; 64];
    let exchange = async {
        stream.write_all(head.as_bytes()).await?;
        // A TLS write that the socket does not accept immediately, or that tokio defers, stays in a
        // buffer until a flush.
        stream.flush().await?;
        // Only the status line matters, and Envoy closes the connection later.
        stream.read(&mut answer).await
    };
    // Envoy may reset a denied connection.
    let read = exchange.await.unwrap_or_default();
    answer.truncate(read);
    let answer = String::from_utf8_lossy(&answer);
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_default()
}

/// Sends a request and returns everything that is received.
pub(super) async fn answered_whole(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    request_bytes: impl AsRef<[u8]>,
) -> String {
    let mut answer = Vec::new();
    let exchange = async {
        stream.write_all(request_bytes.as_ref()).await?;
        stream.flush().await?;
        // Envoy may reset a denied connection.
        stream.read_to_end(&mut answer).await
    };
    let _ = tokio::time::timeout(WAIT_LIMIT, exchange).await.expect("an answer");
    String::from_utf8_lossy(&answer).into_owned()
}

/// The prefix of an identity whose client supports no TLS version after 1.2.
pub(super) const OLD_TLS: &str = "tls1.2 ";

fn connector(authority: &Authority, identity: &str, alpn: &str) -> tokio_rustls::TlsConnector {
    // The protocols that sidecars offer.
    let protocols: &[&str] = match alpn {
        "istio-http/1.1" => &["istio-http/1.1", "istio", "http/1.1"],
        "istio-h2" => &["istio-h2", "istio", "h2"],
        _ => &[alpn],
    };
    tokio_rustls::TlsConnector::from(Arc::new(client_config(authority, identity, protocols)))
}

/// Returns the TLS configuration of a mesh client with this identity and these protocols.
pub(super) fn client_config(
    authority: &Authority,
    identity: &str,
    protocols: &[&str],
) -> rustls::ClientConfig {
    let (versions, identity) = match identity.strip_prefix(OLD_TLS) {
        Some(identity) => (&[&rustls::version::TLS12][..], identity),
        None => (rustls::ALL_VERSIONS, identity),
    };
    let (certificate, key) = authority.sign(identity);
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .expect("versions")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyServer))
        .with_client_auth_cert(vec![certificate.der().clone()], key.into())
        .expect("a certificate");
    config.alpn_protocols = protocols.iter().map(|one| one.as_bytes().to_vec()).collect();
    config
}

/// Accepts any server certificate. The server's identity is not tested here.
#[derive(Debug)]
struct AnyServer;

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256, SignatureScheme::ED25519]
    }
}

/// Tests that Envoy accepts every field and key in every form.
#[test]
fn envoys_accept_every_field_and_key() {
    let rules = json!([{
        "from": [
            { "source": { "principals": ["*", "a/ns/b/sa/c", "*/sa/c", "a/*"], "requestPrincipals": ["*", "a/b", "a*", "*b"],
                "namespaces": ["a*b"], "trustDomains": ["*", "a", "a*", "*a"], "ipBlocks": ["10.0.0.0/8", "fd00::1"],
                "remoteIpBlocks": ["192.0.2.1"], "notPrincipals": ["a/ns/b/sa/d"] } },
            { "source": { "serviceAccounts": ["a", "b/c"] } },
        ],
        "to": [{ "operation": { "hosts": ["*", "a", "a*", "*a", "a:80"], "ports": ["80"], "methods": ["GET", "*", "P*", "*T"],
            "paths": ["*", "/", "/a*", "*b", "/a/{*}/b", "/{**}"], "notHosts": ["b"] } }],
        "when": [
            { "key": "request.headers[a]", "values": ["*", "b", "b*", "*b"], "notValues": ["c"] },
            { "key": "request.auth.claims[a][b]", "values": ["c*"] }, { "key": "request.auth.audiences", "values": ["a"] },
            { "key": "request.auth.presenter", "values": ["a"] }, { "key": "destination.ip", "values": ["10.0.0.0/8"] },
            { "key": "connection.sni", "values": ["a*"] },
            { "key": "experimental.envoy.filters.network.mysql_proxy[db.table]", "values": ["[a*]"] },
        ],
    }]);
    let policies: Vec<_> = ["ALLOW", "DENY", "AUDIT"]
        .into_iter()
        .flat_map(|action| [(action, "false"), (action, "true")])
        .map(|(action, tried)| {
            json!({
                "apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
                "metadata": {
                    "namespace": "shop", "name": format!("{action}-{tried}").to_lowercase(),
                    "annotations": { "istio.io/dry-run": tried },
                },
                "spec": { "action": action, "rules": rules },
            })
        })
        .collect();
    for envoy in envoys() {
        let (context, proxy) = context(&policies, [18080, 18081, 18082]);
        let clusters =
            list_resources(&context, &proxy, ResourceType::Cluster).into_values().collect();
        let inbound = listeners(&context, &proxy).remove("virtualInbound").expect("one");
        validated(Path::new(&envoy), "every field", &bootstrap(vec![inbound], clusters));
    }
}

/// Signs the tokens of one issuer.
pub(super) struct Issuer {
    pub(super) name: &'static str,
    key: ring::signature::EcdsaKeyPair,
    random: ring::rand::SystemRandom,
}

impl Issuer {
    pub(super) fn new(name: &'static str) -> Self {
        let random = ring::rand::SystemRandom::new();
        let form = &ring::signature::ECDSA_P256_SHA256_FIXED_SIGNING;
        let document = ring::signature::EcdsaKeyPair::generate_pkcs8(form, &random).expect("a key");
        let key = ring::signature::EcdsaKeyPair::from_pkcs8(form, document.as_ref(), &random);
        Self { name, key: key.expect("a key"), random }
    }

    pub(super) fn keys(&self) -> String {
        let point = ring::signature::KeyPair::public_key(&self.key).as_ref();
        let [x, y] = [&point[1..33], &point[33..]].map(encoded);
        let key = json!({ "kty": "EC", "crv": "P-256", "alg": "ES256", "kid": self.name, "x": x, "y": y });
        json!({ "keys": [key] }).to_string()
    }

    pub(super) fn token(&self, issuer: &str, claims: Value) -> String {
        let header = json!({ "alg": "ES256", "kid": self.name, "typ": "JWT" });
        let mut body = json!({ "iss": issuer, "exp": 4_102_444_800_u64 });
        for (name, value) in claims.as_object().expect("claims") {
            body[name] = value.clone();
        }
        let [header, body] = [header, body].map(|part| encoded(part.to_string().as_bytes()));
        let signed = format!("{header}.{body}");
        let signature = self.key.sign(&self.random, signed.as_bytes()).expect("signed");
        format!("{signed}.{}", encoded(signature.as_ref()))
    }
}

fn encoded(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes)
}

/// Every token in a request must be valid, wherever it is. Only rules that allow requests can
/// require a token.
#[tokio::test]
async fn envoys_accept_only_tokens_signed_by_configured_keys() {
    let [a, b, d] = ["https://a", "https://b", "https://d"].map(Issuer::new);
    let authority = Authority::new();
    let tokens = json!({
        "apiVersion": "security.istio.io/v1", "kind": "RequestAuthentication",
        "metadata": { "namespace": "shop", "name": "tokens" },
        "spec": { "jwtRules": [
            { "issuer": "https://a", "jwks": a.keys() },
            { "issuer": "https://b", "jwks": b.keys(), "fromHeaders": [{ "name": "x-b" }] },
            { "issuer": "https://c", "jwksUri": "https://c/keys", "fromHeaders": [{ "name": "x-c" }] },
            {
                "issuer": "https://e", "jwks": a.keys(), "audiences": [""],
                "fromHeaders": [{ "name": "x-e" }],
            },
            {
                "issuer": "https://d", "jwks": d.keys(), "fromHeaders": [{ "name": "x-b" }],
                "outputClaimToHeaders": [{ "header": "X-Told", "claim": "sub" }],
            },
        ] },
    });
    let allow = json!({
        "apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
        "metadata": { "namespace": "shop", "name": "allow" },
        "spec": { "rules": [
            { "from": [{ "source": { "requestPrincipals": ["https://a/alice", "https://b/*", "https://d/*"] } }] },
            { "when": [{ "key": "request.auth.claims[groups]", "values": ["admin"] }] },
        ] },
    });
    let alice =
        || format!("Authorization: Bearer {}\r\n", a.token("https://a", json!({ "sub": "alice" })));
    let bearer = |token: String| format!("Authorization: Bearer {token}\r\n");
    let b_header = |token: String| format!("x-b: {token}\r\n");
    let cases = [
        (String::new(), 403, "nobody"),
        (alice(), 200, "alice"),
        (bearer(a.token("https://a", json!({ "sub": "bob" }))), 403, "another subject of a"),
        (
            bearer(a.token("https://a", json!({ "sub": "bob", "groups": ["x", "admin"] }))),
            200,
            "one element of a list",
        ),
        (bearer(a.token("https://a", json!({ "sub": "bob", "groups": "admin" }))), 200, "a text"),
        (bearer(b.token("https://a", json!({ "sub": "alice" }))), 401, "signed by another"),
        (
            bearer(b.token("https://b", json!({ "sub": "alice" }))),
            401,
            "b's token in the wrong header",
        ),
        (bearer("nonsense".to_owned()), 401, "no token"),
        (b_header(b.token("https://b", json!({ "sub": "x" }))), 200, "any subject of b"),
        (b_header(a.token("https://a", json!({ "sub": "alice" }))), 401, "a's token in b's header"),
        (alice() + &b_header(b.token("https://b", json!({ "sub": "x" }))), 200, "both good"),
        (
            alice() + &b_header(a.token("https://b", json!({ "sub": "x" }))),
            401,
            "one good, one bad",
        ),
        (alice() + &b_header("nonsense".to_owned()), 401, "one good, one nonsense"),
        (format!("x-c: {}\r\n", a.token("https://c", json!({ "sub": "x" }))), 401, "unknown keys"),
        (
            alice() + &format!("x-e: {}\r\n", a.token("https://e", json!({ "sub": "x" }))),
            401,
            "a rule that cannot be read",
        ),
    ];
    for envoy in envoys() {
        let (running, port) =
            guarded_workload(&envoy, &authority, &[tokens.clone(), allow.clone()]).await;
        for (headers, status, what) in &cases {
            let stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await;
            let head = format!("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{headers}\r\n");
            let found = answered(stream.expect("listens"), &head).await;
            assert_eq!(found, *status, "{}: {what}", envoy.display());
        }
        // The header of a rule contains only claims of that rule's token. A client cannot forge it, not
        // even with a valid token of another issuer.
        for (token, user) in [
            (b_header(d.token("https://d", json!({ "sub": "dora" }))), Some("dora")),
            (b_header(b.token("https://b", json!({ "sub": "bob" }))), None),
            (alice(), None),
        ] {
            let stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await;
            let head = "GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\nX-told: forged\r\n";
            let answer =
                answered_whole(stream.expect("listens"), format!("{head}{token}\r\n")).await;
            assert!(answer.starts_with("HTTP/1.1 200"), "{}: {answer}", envoy.display());
            let found = answer.split_once(" told ").map(|(_, user)| user.trim_end());
            assert_eq!(found, user, "{}: {answer}", envoy.display());
        }
        drop(running);
    }
}

/// Starts an Envoy with the resources of the proxy of a workload that these policies select, and
/// returns its inbound port.
async fn guarded_workload(
    envoy: &Path,
    authority: &Authority,
    policies: &[Value],
) -> (Running, u16) {
    let echo = workload_server().await;
    let ports: Doors = free_ports();
    let (context, proxy) = context(policies, ports);
    let mut listener = listeners(&context, &proxy).remove("virtualInbound").expect("one");
    listener["address"] = at_loopback(ports[1]);
    let clusters = list_resources(&context, &proxy, ResourceType::Cluster).into_iter();
    let clusters = clusters.filter(|(name, _)| !name.starts_with("outbound|"));
    let clusters =
        clusters.map(|(name, cluster)| static_cluster(cluster, to_loopback(&name, echo)));
    let mut bootstrap = bootstrap(vec![listener], clusters.collect());
    bootstrap["static_resources"]["secrets"] = authority.secrets();
    (Running::start(envoy, &bootstrap).await, ports[1])
}

/// An unknown field that restricts fails closed, with a token and without one.
#[tokio::test]
async fn real_envoys_refuse_every_request_where_an_unknown_field_may_demand_a_token() {
    let [a, b] = ["https://a", "https://b"].map(Issuer::new);
    let authority = Authority::new();
    let tokens = json!({
        "apiVersion": "security.istio.io/v1", "kind": "RequestAuthentication",
        "metadata": { "namespace": "shop", "name": "tokens" },
        "spec": { "jwtRules": [
            { "issuer": "https://a", "jwks": a.keys(), "presence": "REQUIRED" },
            { "issuer": "https://b", "jwks": b.keys(), "colour": "red" },
        ] },
    });
    let bearer = |token: String| format!("Authorization: Bearer {token}\r\n");
    let cases = [
        (String::new(), 401, "no token"),
        (bearer(a.token("https://a", json!({ "sub": "x" }))), 401, "the rule that restricts"),
        (bearer(b.token("https://b", json!({ "sub": "x" }))), 200, "another rule"),
    ];
    for envoy in envoys() {
        let (running, port) =
            guarded_workload(&envoy, &authority, std::slice::from_ref(&tokens)).await;
        for (headers, status, what) in &cases {
            let stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await;
            let head = format!("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{headers}\r\n");
            let found = answered(stream.expect("listens"), &head).await;
            assert_eq!(found, *status, "{}: {what}", envoy.display());
        }
        drop(running);
    }
}

/// Envoy accepts text after `**` in a template, and matches like `explain policy`.
#[tokio::test]
async fn real_envoys_match_templates_with_text_behind_any_segments() {
    let authority = Authority::new();
    let rule = json!({ "to": [{ "operation": { "paths": ["/files/{**}/meta"] } }] });
    let by_method =
        json!({ "when": [{ "key": "request.headers[:method]", "values": ["OPTIONS"] }] });
    let allow = json!({
        "apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
        "metadata": { "namespace": "shop", "name": "allow" },
        "spec": { "rules": [rule, by_method] },
    });
    for envoy in envoys() {
        let (running, port) =
            guarded_workload(&envoy, &authority, std::slice::from_ref(&allow)).await;
        for (request, status) in [
            ("GET /files/a/meta", 200),
            ("GET /files/a/b/meta", 200),
            ("GET /files/meta", 403),
            ("GET /files/a/metadata", 403),
            ("GET /files/a/meta/b", 403),
            ("OPTIONS /other", 200),
        ] {
            let stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await;
            let head = format!("{request} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
            let found = answered(stream.expect("listens"), &head).await;
            assert_eq!(found, status, "{}: {request}", envoy.display());
        }
        drop(running);
    }
}
