//! Random policies and requests through real Envoys, held to the oracle (`tests/access/evaluator.rs`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::access::{event_of, guarded_by};
use super::envoy::{
    Authority, Running, at_loopback, bootstrap, envoy, free_ports, static_cluster, to_loopback,
    validated, workload_server,
};
use super::*;
use crate::access::tests::evaluator::{Call, Server, passes};
use crate::access::tests::generator::{random_call, random_policy};

const DOMAINS: [&str; 2] = ["mesh.example", "old.example"];
const SETS: usize = 24;
const CALLS: usize = 30;
const PATIENCE: Duration = Duration::from_secs(20);

/// The Envoys there are: the newest, and one of the oldest that are served.
pub(super) fn envoys() -> Vec<PathBuf> {
    let newest = envoy();
    let old =
        newest.as_ref().and_then(|path| Some(path.parent()?.parent()?.join("envoy-1.36/envoy")));
    newest.into_iter().chain(old.filter(|path| path.exists())).collect()
}

/// The text of policies as it is for a workload on loopback.
fn on_loopback(policy: &Value, [mtls, plain]: [u16; 2]) -> Value {
    let text = policy.to_string();
    let text = text
        .replace("\"8080\"", &format!("\"{mtls}\""))
        .replace("\"5432\"", &format!("\"{plain}\""))
        .replace("10.0.0.7", "127.0.0.1")
        .replace("10.0.0.0/", "127.0.0.0/")
        .replace("10.1.0.1", "127.0.0.1")
        .replace("10.1.0.0/", "127.0.0.0/")
        .replace("\"other\"", "\"shop\"")
        .replace("istio-system", "root");
    serde_json::from_str(&text).expect("JSON")
}

/// A mesh in which a workload of `shop` has a port of mTLS alone and one of plain text alone.
fn context(policies: &[Value], [mtls, plain]: [u16; 2]) -> (Arc<PushContext>, Proxy) {
    let config = "{trustDomain: mesh.example, trustDomainAliases: [old.example]}";
    let config = MeshConfig::parse(config, &Default::default()).expect("valid");
    let member = |domain: &str| KnownCluster {
        trust_domain: domain.into(),
        ..crate::fixtures::member(None)
    };
    let members = [("east", "mesh.example"), ("west", "foreign.org"), ("new", "cluster.local")];
    let members = members.map(|(id, domain)| (id.into(), member(domain)));
    let spec = json!({
        "selector": { "matchLabels": { "app": "web" } },
        "portLevelMtls": { mtls.to_string(): { "mode": "STRICT" }, plain.to_string(): { "mode": "DISABLE" } },
    });
    let peer = json!({
        "apiVersion": "security.istio.io/v1", "kind": "PeerAuthentication",
        "metadata": { "namespace": "shop", "name": "modes" }, "spec": spec,
    });
    let events = [
        MeshEvent::MeshConfig(Arc::new(config)),
        MeshEvent::Clusters(Arc::new(KnownClusters { clusters: members.into_iter().collect() })),
        event_of("root", policies.iter().cloned().chain([peer])),
    ];
    let ports = vec![port("http-a", 80, mtls), port("http-b", 81, plain)];
    guarded_by(("shop", "web"), ports, events)
}

#[tokio::test]
async fn real_envoys_answer_random_requests_as_the_oracle_does() {
    let authority = Authority::new();
    for envoy in envoys() {
        let echo = workload_server().await;
        let mut sets = Vec::new();
        let mut static_listeners = Vec::new();
        let mut static_clusters = BTreeMap::new();
        // All at once: what is let go may be given out again.
        let all: [u16; 2 * SETS] = free_ports();
        for seed in 0..SETS {
            let mut random = StdRng::seed_from_u64(seed as u64);
            let ports = [all[2 * seed], all[2 * seed + 1]];
            let count = random.random_range(1..5);
            let policies: Vec<_> = (0..count)
                .map(|at| on_loopback(&random_policy(&mut random, &format!("p{at}")), ports))
                .collect();
            let (context, proxy) = context(&policies, ports);
            let inbound = listeners(&context, &proxy).remove("virtualInbound").expect("one");
            for port in ports {
                let mut listener = inbound.clone();
                listener["name"] = format!("inbound-{seed}-{port}").into();
                listener["address"] = at_loopback(port);
                static_listeners.push(listener);
            }
            for (name, cluster) in held(&context, &proxy, ResourceType::Cluster) {
                if !name.starts_with("outbound|") {
                    let cluster = static_cluster(cluster, to_loopback(&name, echo));
                    static_clusters.insert(name, cluster);
                }
            }
            sets.push((policies, ports, random));
        }
        let mut bootstrap = bootstrap(static_listeners, static_clusters.into_values().collect());
        bootstrap["static_resources"]["secrets"] = authority.secrets();
        validated(&envoy, "random policies", &bootstrap);
        let running = Running::start(&envoy, &bootstrap).await;
        let (mut allowed, mut denied) = (0, 0);
        for (seed, (policies, ports, random)) in sets.iter_mut().enumerate() {
            for _ in 0..CALLS {
                let call = as_sent(random_call(random), *ports);
                let server = Server {
                    namespace: "shop",
                    labels: &[("app", "web")],
                    root: "root",
                    domains: &DOMAINS,
                };
                let expected = passes(policies, &server, &call);
                let status = send(&authority, &call).await;
                let found = match status {
                    200 => true,
                    403 => false,
                    other => panic!("seed {seed}: {other} for {call:?}"),
                };
                assert_eq!(
                    found,
                    expected,
                    "{} seed {seed}: {call:?}\n{:#}",
                    envoy.display(),
                    json!(policies)
                );
                if expected { allowed += 1 } else { denied += 1 }
            }
        }
        assert!(allowed > 100 && denied > 100, "{allowed} allowed, {denied} denied");
        drop(running);
    }
}

/// The call as it comes from loopback.
fn as_sent(call: Call, [mtls, plain]: [u16; 2]) -> Call {
    let here = "127.0.0.1".parse().expect("an address");
    let has_identity = call.identity.is_some();
    Call {
        from: here,
        address: here,
        port: if has_identity { mtls } else { plain },
        sni: if has_identity { "x.local".to_owned() } else { String::new() },
        is_http: true,
        ..call
    }
}

/// Sends a call; the status that comes back.
async fn send(authority: &Authority, call: &Call) -> u16 {
    let stream = tokio::net::TcpStream::connect(("127.0.0.1", call.port)).await.expect("listens");
    let mut head = format!("{} {} HTTP/1.1\r\nhost: {}\r\n", call.method, call.path, call.host);
    head += &format!("connection: close\r\nx-forwarded-for: {}\r\n", call.client);
    for (name, value) in &call.headers {
        head += &format!("{name}: {value}\r\n");
    }
    head += "content-length: 0\r\n\r\n";
    let exchange = async {
        match &call.identity {
            None => answered(stream, &head).await,
            Some((domain, namespace, account)) => {
                let identity = format!("spiffe://{domain}/ns/{namespace}/sa/{account}");
                let name = ServerName::try_from(call.sni.clone()).expect("a name");
                let connector = connector(authority, &identity);
                answered(connector.connect(name, stream).await.expect("TLS"), &head).await
            }
        }
    };
    tokio::time::timeout(PATIENCE, exchange).await.expect("an answer")
}

async fn answered(mut stream: impl AsyncRead + AsyncWrite + Unpin, head: &str) -> u16 {
    stream.write_all(head.as_bytes()).await.expect("sent");
    let mut answer = vec![0; 64];
    // The first line is all that matters; Envoy takes its time to close.
    let read = stream.read(&mut answer).await.expect("an answer");
    answer.truncate(read);
    let answer = String::from_utf8_lossy(&answer);
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_default()
}

/// Sends a request; all that comes back, as far as it does.
pub(super) async fn answered_whole(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    head: &str,
) -> String {
    let mut answer = Vec::new();
    let exchange = async {
        stream.write_all(head.as_bytes()).await?;
        // Who denies a connection may reset it.
        stream.read_to_end(&mut answer).await
    };
    let _ = tokio::time::timeout(PATIENCE, exchange).await.expect("an answer");
    String::from_utf8_lossy(&answer).into_owned()
}

fn connector(authority: &Authority, identity: &str) -> tokio_rustls::TlsConnector {
    let (certificate, key) = authority.sign(identity);
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyServer))
        .with_client_auth_cert(vec![certificate.der().clone()], key.into())
        .expect("a certificate");
    tokio_rustls::TlsConnector::from(Arc::new(config))
}

/// Takes any server: who it is is not what is tried here.
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

/// Every field and key that there is, in every form, for what an Envoy takes as a whole.
#[test]
fn envoys_take_every_field_and_key() {
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
        let (context, proxy) = context(&policies, [18080, 18081]);
        let clusters = held(&context, &proxy, ResourceType::Cluster).into_values().collect();
        let inbound = listeners(&context, &proxy).remove("virtualInbound").expect("one");
        validated(Path::new(&envoy), "every field", &bootstrap(vec![inbound], clusters));
    }
}

/// Signs tokens of one issuer.
struct Issuer {
    name: &'static str,
    key: ring::signature::EcdsaKeyPair,
    random: ring::rand::SystemRandom,
}

impl Issuer {
    fn new(name: &'static str) -> Self {
        let random = ring::rand::SystemRandom::new();
        let form = &ring::signature::ECDSA_P256_SHA256_FIXED_SIGNING;
        let document = ring::signature::EcdsaKeyPair::generate_pkcs8(form, &random).expect("a key");
        let key = ring::signature::EcdsaKeyPair::from_pkcs8(form, document.as_ref(), &random);
        Self { name, key: key.expect("a key"), random }
    }

    fn keys(&self) -> String {
        let point = ring::signature::KeyPair::public_key(&self.key).as_ref();
        let [x, y] = [&point[1..33], &point[33..]].map(encoded);
        let key = json!({ "kty": "EC", "crv": "P-256", "alg": "ES256", "kid": self.name, "x": x, "y": y });
        json!({ "keys": [key] }).to_string()
    }

    fn token(&self, issuer: &str, claims: Value) -> String {
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

/// A token that is there must be good, wherever it stands; one that is not there is asked for by who allows.
#[tokio::test]
async fn real_envoys_believe_tokens_of_known_keys_alone() {
    let (a, b) = (Issuer::new("https://a"), Issuer::new("https://b"));
    let authority = Authority::new();
    let tokens = json!({
        "apiVersion": "security.istio.io/v1", "kind": "RequestAuthentication",
        "metadata": { "namespace": "shop", "name": "tokens" },
        "spec": { "jwtRules": [
            { "issuer": "https://a", "jwks": a.keys() },
            { "issuer": "https://b", "jwks": b.keys(), "fromHeaders": [{ "name": "x-b" }] },
            { "issuer": "https://c", "jwksUri": "https://c/keys", "fromHeaders": [{ "name": "x-c" }] },
        ] },
    });
    let allow = json!({
        "apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
        "metadata": { "namespace": "shop", "name": "allow" },
        "spec": { "rules": [
            { "from": [{ "source": { "requestPrincipals": ["https://a/alice", "https://b/*"] } }] },
            { "when": [{ "key": "request.auth.claims[groups]", "values": ["admin"] }] },
        ] },
    });
    let alice =
        || format!("Authorization: Bearer {}\r\n", a.token("https://a", json!({ "sub": "alice" })));
    let bearer = |token: String| format!("Authorization: Bearer {token}\r\n");
    let of_b = |token: String| format!("x-b: {token}\r\n");
    let cases = [
        (String::new(), 403, "nobody"),
        (alice(), 200, "alice"),
        (bearer(a.token("https://a", json!({ "sub": "bob" }))), 403, "another of a's"),
        (
            bearer(a.token("https://a", json!({ "sub": "bob", "groups": ["x", "admin"] }))),
            200,
            "one of a list",
        ),
        (bearer(a.token("https://a", json!({ "sub": "bob", "groups": "admin" }))), 200, "a text"),
        (bearer(b.token("https://a", json!({ "sub": "alice" }))), 401, "signed by another"),
        (
            bearer(b.token("https://b", json!({ "sub": "alice" }))),
            401,
            "where no token of b stands",
        ),
        (bearer("nonsense".to_owned()), 401, "no token"),
        (of_b(b.token("https://b", json!({ "sub": "x" }))), 200, "anybody of b's"),
        (of_b(a.token("https://a", json!({ "sub": "alice" }))), 401, "a's where b's stand"),
        (alice() + &of_b(b.token("https://b", json!({ "sub": "x" }))), 200, "both good"),
        (alice() + &of_b(a.token("https://b", json!({ "sub": "x" }))), 401, "one good, one bad"),
        (alice() + &of_b("nonsense".to_owned()), 401, "one good, one nonsense"),
        (
            format!("x-c: {}\r\n", a.token("https://c", json!({ "sub": "x" }))),
            401,
            "keys that nobody knows",
        ),
    ];
    for envoy in envoys() {
        let echo = workload_server().await;
        let ports: [u16; 2] = free_ports();
        let (context, proxy) = context(&[tokens.clone(), allow.clone()], ports);
        let mut listener = listeners(&context, &proxy).remove("virtualInbound").expect("one");
        listener["address"] = at_loopback(ports[1]);
        let clusters = held(&context, &proxy, ResourceType::Cluster).into_iter();
        let clusters = clusters.filter(|(name, _)| !name.starts_with("outbound|"));
        let clusters =
            clusters.map(|(name, cluster)| static_cluster(cluster, to_loopback(&name, echo)));
        let mut bootstrap = bootstrap(vec![listener], clusters.collect());
        bootstrap["static_resources"]["secrets"] = authority.secrets();
        let running = Running::start(&envoy, &bootstrap).await;
        for (headers, status, what) in &cases {
            let stream = tokio::net::TcpStream::connect(("127.0.0.1", ports[1])).await;
            let head = format!("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{headers}\r\n");
            let found = answered(stream.expect("listens"), &head).await;
            assert_eq!(found, *status, "{}: {what}", envoy.display());
        }
        drop(running);
    }
}
