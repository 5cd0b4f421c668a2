//! Workloads outside of all clusters, with tokens from a separate issuer.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tonic::Code;

use super::mesh::{Member, Proxy, SOON, Setup, holds, wait_until};
use super::tokens::{Agent, verified_identity};

const ISSUER: &str = "https://idp.example";

/// An identity provider: it signs tokens, and serves its key.
struct Provider {
    key: EcdsaKeyPair,
    url: String,
    _serving: JoinSet<()>,
}

impl Provider {
    async fn start() -> Self {
        let (algorithm, random) = (&ECDSA_P256_SHA256_FIXED_SIGNING, SystemRandom::new());
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &random).expect("a key");
        let key = EcdsaKeyPair::from_pkcs8(algorithm, pkcs8.as_ref(), &random).expect("a key");
        let point = key.public_key().as_ref();
        let [x, y] = [&point[1..33], &point[33..]].map(|half| BASE64.encode(half));
        let set = json!({ "keys": [{ "kty": "EC", "crv": "P-256", "alg": "ES256", "kid": "k", "x": x, "y": y }] });
        let body = set.to_string();
        let answer = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        );
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/keys", listener.local_addr().expect("bound"));
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = [0; 4096];
                let _ = stream.read(&mut request).await;
                let _ = stream.write_all(answer.as_bytes()).await;
                let _ = stream.shutdown().await;
            }
        });
        Self { key, url, _serving: serving }
    }

    fn token(&self, namespace: &str, account: &str) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
        let claims = json!({
            "iss": ISSUER, "aud": "istio-ca", "iat": now, "exp": now + 3600,
            "sub": format!("system:serviceaccount:{namespace}:{account}"),
        });
        let part = |value: &Value| BASE64.encode(value.to_string());
        let signed = format!("{}.{}", part(&json!({ "alg": "ES256", "kid": "k" })), part(&claims));
        let signature = self.key.sign(&SystemRandom::new(), signed.as_bytes()).expect("it signs");
        format!("{signed}.{}", BASE64.encode(signature))
    }
}

/// The author of a policy must not learn which ports of this host are open.
#[tokio::test]
async fn keys_that_a_policy_names_are_not_fetched_from_loopback() {
    let provider = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = provider.local_addr().expect("bound").port();
    let setup = Setup::new();
    let rule = |uri: String| json!({ "issuer": "https://issuer.example", "jwksUri": uri });
    for (name, host) in [("literal", "127.0.0.1"), ("v6", "[::1]"), ("name", "localhost")] {
        setup.put(
            name,
            &json!({
                "apiVersion": "security.istio.io/v1", "kind": "RequestAuthentication",
                "metadata": { "name": name, "namespace": "shop" },
                "spec": { "jwtRules": [rule(format!("http://{host}:{port}/keys"))] },
            }),
        );
    }
    let server = setup.start_ready().await;
    wait_until(SOON, async || {
        let (_, text) = server.admin.text("/debug/sources").await;
        holds(text.matches("a loopback address, which is never dialled").count() == 3, text)
    })
    .await;
    let dialled = tokio::time::timeout(std::time::Duration::from_millis(1), provider.accept());
    assert!(dialled.await.is_err(), "the address was dialled");
    server.shut_down().await;
}

#[tokio::test]
async fn machine_outside_of_clusters_joins_with_a_token_of_its_issuer() {
    let provider = Provider::start().await;
    let east = Member::start("east", "n1", "198.18.0.1").await;
    let setup = Setup::new().with(&["--token-issuer", ISSUER, "--token-jwks", &provider.url]);
    let setup = setup.with(&["--token-cluster", "east", "--token-namespace", "vms"]);
    setup.join(&[&east]);
    let server = setup.start_ready().await;
    let proxy = Proxy { name: "db-1", namespace: "vms", account: "db", ..Proxy::sidecar("east") };
    let agent = Agent { token: provider.token("vms", "db"), cluster: "east".to_owned(), proxy };
    // Its keys may not be fetched yet: until then the agent must retry.
    let chain = agent.certificate_soon(&server, &setup).await;
    assert_eq!(verified_identity(&chain), "spiffe://cluster.local/ns/vms/sa/db");
    let mut stream = agent.stream(&server, &setup).await.expect("let in");
    stream.next().await;
    let shown = server.admin.json("/debug/proxies").await;
    assert_eq!(shown[0]["knownBy"], "token", "{shown}");
    assert_eq!(shown[0]["identity"], "spiffe://cluster.local/ns/vms/sa/db");
    // The issuer may not issue tokens for other identities.
    let other = Agent { token: provider.token("shop", "web"), ..agent };
    let status = other.stream(&server, &setup).await.err().expect("refused");
    assert_eq!(status.code(), Code::PermissionDenied, "{status}");
    server.shut_down().await;
}
