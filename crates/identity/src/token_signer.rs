//! Signs tokens like an API server, for tests of this and other crates.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use serde_json::{Value, json};

use crate::token::IssuerKeys;

/// Signs tokens like an API server, with a new key.
pub struct Signer {
    /// The issuer of the tokens.
    pub issuer: String,
    key: EcdsaKeyPair,
    id: &'static str,
}

impl Signer {
    /// Creates a signer with a new key of this ID.
    pub fn new(issuer: &str, id: &'static str) -> Self {
        let (algorithm, random) = (&ECDSA_P256_SHA256_FIXED_SIGNING, SystemRandom::new());
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &random).expect("a key");
        let key = EcdsaKeyPair::from_pkcs8(algorithm, pkcs8.as_ref(), &random).expect("a key");
        Self { issuer: issuer.to_owned(), key, id }
    }

    /// Returns the keys that verify its tokens.
    pub fn keys(&self) -> IssuerKeys {
        IssuerKeys::parse(&self.issuer, self.key_set().to_string().as_bytes()).expect("keys")
    }

    pub(crate) fn key_set(&self) -> Value {
        let point = self.key.public_key().as_ref();
        let [x, y] = [&point[1..33], &point[33..]].map(|half| URL_SAFE_NO_PAD.encode(half));
        let key = json!({ "kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": self.id, "x": x, "y": y });
        json!({ "keys": [key] })
    }

    /// Returns the claims of a token that is valid for one hour, of pod `web-0` and account `web`
    /// in namespace `shop`.
    pub fn claims(&self, now: SystemTime) -> Value {
        let now = now.duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
        json!({
            "iss": self.issuer, "aud": ["istio-ca"], "iat": now, "nbf": now, "exp": now + 3600,
            "sub": "system:serviceaccount:shop:web",
            "kubernetes.io": {
                "namespace": "shop",
                "serviceaccount": { "name": "web", "uid": "account-uid" },
                "pod": { "name": "web-0", "uid": "pod-uid" },
                "node": { "name": "node-1", "uid": "node-uid" },
            },
        })
    }

    /// Signs a token with these claims.
    pub fn sign(&self, claims: &Value) -> String {
        self.sign_as(&json!({ "alg": "ES256", "kid": self.id }), &claims.to_string())
    }

    pub(crate) fn sign_as(&self, header: &Value, claims: &str) -> String {
        let text = |text: &str| URL_SAFE_NO_PAD.encode(text);
        let signed = format!("{}.{}", text(&header.to_string()), text(claims));
        let signature = self.key.sign(&SystemRandom::new(), signed.as_bytes()).expect("it signs");
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}
