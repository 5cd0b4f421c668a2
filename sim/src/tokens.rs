//! Bearer tokens: the administrator's token, and the tokens of service accounts, signed like a real
//! server's tokens.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::digest::{SHA256, digest};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use serde_json::{Value, json};

/// The token issuer of every cluster: the usual name, with a different key in each cluster.
pub(crate) const ISSUER: &str = "https://kubernetes.default.svc";

/// The tokens that a cluster accepts.
#[derive(Debug)]
pub(crate) struct Tokens {
    /// Whether requests need a token.
    needed: bool,
    known: Mutex<BTreeMap<String, Token>>,
    signer: Signer,
}

/// A valid token.
#[derive(Debug, Clone)]
pub(crate) struct Token {
    /// The user of the token.
    pub(crate) user: String,
    /// The claims; null for the administrator's token.
    pub(crate) claims: Value,
    expires: Option<Instant>,
}

struct Signer {
    key: EcdsaKeyPair,
    id: String,
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signer({})", self.id)
    }
}

impl Signer {
    fn new() -> Signer {
        let (algorithm, random) = (&ECDSA_P256_SHA256_FIXED_SIGNING, SystemRandom::new());
        let made = EcdsaKeyPair::generate_pkcs8(algorithm, &random).and_then(|pkcs8| {
            let key = EcdsaKeyPair::from_pkcs8(algorithm, pkcs8.as_ref(), &random);
            key.map_err(|_| ring::error::Unspecified)
        });
        let key = made.expect("the system has random numbers");
        let id = URL_SAFE_NO_PAD.encode(digest(&SHA256, key.public_key().as_ref()));
        Signer { key, id }
    }
}

/// Returns the internal token of a client certificate.
pub(crate) fn token_of(certificate: &[u8]) -> String {
    format!("certificate.{}", URL_SAFE_NO_PAD.encode(digest(&SHA256, certificate)))
}

impl Tokens {
    /// Accepts the administrator's token, or all requests if `admin` is `None`.
    pub(crate) fn new(admin: Option<&str>) -> Tokens {
        let signer = Signer::new();
        let tokens = Tokens { needed: admin.is_some(), known: Mutex::default(), signer };
        if let Some(admin) = admin {
            tokens.replace_all(admin);
        }
        tokens
    }

    /// Replaces all tokens with a new one for the administrator.
    pub(crate) fn replace_all(&self, admin: &str) {
        let user = "system:admin".to_owned();
        let token = Token { user, claims: Value::Null, expires: None };
        let mut known = self.lock();
        known.clear();
        known.insert(admin.to_owned(), token);
    }

    /// Accepts a client certificate for a user, until all tokens are replaced or it is revoked.
    pub(crate) fn accept_certificate(&self, certificate: &[u8], user: &str) {
        let token = Token { user: user.to_owned(), claims: Value::Null, expires: None };
        self.lock().insert(token_of(certificate), token);
    }

    /// Accepts a client certificate no longer.
    pub(crate) fn revoke_certificate(&self, certificate: &[u8]) {
        self.lock().remove(&token_of(certificate));
    }

    /// Returns the user for a header `Authorization`; `None` if the token is unknown.
    pub(crate) fn user_of_header(&self, authorization: &str) -> Option<String> {
        if !self.needed {
            return Some("system:anonymous".to_owned());
        }
        self.find(authorization.strip_prefix("Bearer ")?).map(|token| token.user)
    }

    /// Returns a token if it is valid.
    pub(crate) fn find(&self, token: &str) -> Option<Token> {
        let known = self.lock();
        let token = known.get(token)?;
        let expired = token.expires.is_some_and(|time| time < Instant::now());
        (!expired).then(|| token.clone())
    }

    /// Issues a new token.
    pub(crate) fn issue(&self, user: String, claims: &Value, lifetime: Duration) -> String {
        let header = json!({"alg": "ES256", "kid": self.signer.id});
        let [header, text] = [&header, claims].map(|v| URL_SAFE_NO_PAD.encode(v.to_string()));
        let signed = format!("{header}.{text}");
        let signature = self.signer.key.sign(&SystemRandom::new(), signed.as_bytes());
        let signature = signature.expect("the system has random numbers");
        let token = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature));
        let expires = Instant::now().checked_add(lifetime);
        self.lock().insert(token.clone(), Token { user, claims: claims.clone(), expires });
        token
    }

    /// Returns the content type and document for a path of the issuer; `None` for other paths.
    pub(crate) fn page(&self, path: &str) -> Option<(&'static str, Value)> {
        match path {
            "/.well-known/openid-configuration" => {
                let jwks = format!("{ISSUER}/openid/v1/jwks");
                let page = json!({
                    "issuer": ISSUER, "jwks_uri": jwks, "response_types_supported": ["id_token"],
                    "subject_types_supported": ["public"],
                    "id_token_signing_alg_values_supported": ["ES256"],
                });
                Some(("application/json", page))
            }
            "/openid/v1/jwks" => {
                let point = self.signer.key.public_key().as_ref();
                let [x, y] = [&point[1..33], &point[33..]].map(|v| URL_SAFE_NO_PAD.encode(v));
                let key = json!({
                    "use": "sig", "kty": "EC", "kid": self.signer.id, "crv": "P-256",
                    "alg": "ES256", "x": x, "y": y,
                });
                Some(("application/jwk-set+json", json!({"keys": [key]})))
            }
            _ => None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Token>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
