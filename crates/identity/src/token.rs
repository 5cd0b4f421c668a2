//! Tokens of pods: JWTs (RFC 7519, RFC 7515) that an API server signed for a service account, and
//! the keys (RFC 7517) that verify them. Pure.
//!
//! Accepts exactly the tokens that Kubernetes signs. Other modules check whether a member may vouch
//! for the claims of a token, and whether its pod still exists.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, RSA_PKCS1_2048_8192_SHA256,
    RsaPublicKeyComponents, UnparsedPublicKey,
};
use serde::Deserialize;
use serde_json::{Value, json};

/// Maximum size of a token in bytes; tokens of Kubernetes have about 1,000.
pub const TOKEN_BYTES_MAX: usize = 16 << 10;
/// Tolerated advance of an API server's clock.
const SKEW: Duration = Duration::from_secs(60);
/// Maximum number of keys per issuer, and maximum length of a key ID in bytes.
const KEYS_MAX: usize = 32;
const KEY_ID_MAX: usize = 256;
/// Maximum number of characters of an unknown key ID in messages.
const KEY_ID_SHOWN: usize = 64;
/// Maximum length of an issuer's name in bytes.
const ISSUER_MAX: usize = 2048;
/// Allowed size of an RSA modulus in bytes: 2048 to 8192 bits.
const MODULUS: std::ops::RangeInclusive<usize> = 256..=1024;

/// Reason why a token is rejected. No text contains a secret part of the token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenFlaw {
    /// The token is longer than [`TOKEN_BYTES_MAX`].
    #[error("the token has {0} bytes, more than {TOKEN_BYTES_MAX}")]
    TooLong(usize),
    /// It is not a signed JWT, or a required claim is missing or has another type.
    #[error("it is not a token of a service account: {0} is missing or has another form")]
    Form(&'static str),
    /// The algorithm is not `RS256`, `ES256` or `ES384`, or does not match the key.
    #[error("its algorithm is {0:?}, which does not match a key of its issuer")]
    Algorithm(String),
    /// The issuer has no key with this ID.
    #[error("{}", match .0 {
        Some(key) => format!("its key (kid {key:?}) is not known"),
        None => "it names no key (kid)".to_owned(),
    })]
    UnknownKey(Option<String>),
    /// The signature does not match the key.
    #[error("its signature is wrong")]
    Signature,
    /// The token is of another issuer.
    #[error("its issuer is {found:?}, not {wanted:?}")]
    Issuer {
        /// The issuer of the token.
        found: String,
        /// The accepted issuer.
        wanted: Arc<str>,
    },
    /// The token is for another audience.
    #[error("its audience is {0:?}, which is not accepted")]
    Audience(Vec<String>),
    /// The token has expired.
    #[error("it has expired")]
    Ended,
    /// The token is not valid yet.
    #[error("it is not valid yet")]
    Early,
}

/// The claims of a token, which are not trustworthy before [`SignedToken::verify`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenClaims {
    /// The issuer.
    pub issuer: String,
    /// Namespace of the service account.
    pub namespace: String,
    /// Name of the service account.
    pub service_account: String,
    /// The pod that the token is bound to.
    pub pod: Option<TokenPod>,
    /// The node of the pod.
    pub node: Option<String>,
    /// Expiry of the token.
    pub expires: SystemTime,
}

/// The pod that a token is bound to. Its namespace is that of the service account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenPod {
    /// Name of the pod.
    pub name: Arc<str>,
    /// UID of the pod, unique over time.
    pub uid: Arc<str>,
}

/// A parsed but unverified token.
#[derive(Debug)]
pub struct SignedToken<'a> {
    algorithm: String,
    key: Option<String>,
    /// The signed bytes.
    signed: &'a [u8],
    signature: Vec<u8>,
    claims: TokenClaims,
    audiences: Vec<String>,
    not_before: SystemTime,
    /// Whether the token has Kubernetes' claims about the service account.
    is_kubernetes: bool,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    /// Critical extensions; none is supported.
    crit: Option<Value>,
}

#[derive(Deserialize)]
struct ClaimsText {
    iss: String,
    sub: String,
    aud: Audiences,
    exp: i64,
    nbf: Option<i64>,
    iat: Option<i64>,
    #[serde(rename = "kubernetes.io")]
    kubernetes: Option<KubernetesText>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Audiences {
    One(String),
    Several(Vec<String>),
}

#[derive(Deserialize)]
struct KubernetesText {
    namespace: String,
    serviceaccount: ObjectText,
    pod: Option<ObjectText>,
    node: Option<NodeText>,
}

#[derive(Deserialize)]
struct ObjectText {
    name: String,
    uid: String,
}

#[derive(Deserialize)]
struct NodeText {
    name: String,
}

impl<'a> SignedToken<'a> {
    /// Parses a token.
    ///
    /// # Errors
    /// If it is too long, is not a JWT of three parts, or lacks the subject, issuer, audience or
    /// expiry. A token whose subject contradicts its service account is an error too.
    pub fn read(token: &'a str) -> Result<Self, TokenFlaw> {
        let read = Self::read_any(token)?;
        if read.is_kubernetes { Ok(read) } else { Err(TokenFlaw::Form("claims")) }
    }

    /// Parses a token of an issuer outside of all clusters, whose subject alone names the service
    /// account.
    ///
    /// # Errors
    /// The errors of [`Self::read`], and an error if the token is of a cluster.
    pub fn read_outside(token: &'a str) -> Result<Self, TokenFlaw> {
        let read = Self::read_any(token)?;
        if read.is_kubernetes { Err(TokenFlaw::Form("kubernetes.io")) } else { Ok(read) }
    }

    fn read_any(token: &'a str) -> Result<Self, TokenFlaw> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(TokenFlaw::TooLong(token.len()));
        }
        let parts = || {
            let (signed, signature) = token.rsplit_once('.')?;
            let (header, claims) = signed.split_once('.')?;
            Some((signed, header, claims, signature))
        };
        let (signed, header, claims, signature) = parts().ok_or(TokenFlaw::Form("parts"))?;
        let header: Header = part(header, "header")?;
        if header.crit.is_some() {
            return Err(TokenFlaw::Form("crit"));
        }
        let claims: ClaimsText = part(claims, "claims").map_err(|flaw| lacking(claims, flaw))?;
        let is_kubernetes = claims.kubernetes.is_some();
        let (namespace, account, pod, node) = match claims.kubernetes {
            Some(KubernetesText { namespace, serviceaccount, pod, node }) => {
                (namespace, serviceaccount.name, pod, node)
            }
            None => {
                let mut parts = claims.sub.split(':').skip(2).map(str::to_owned);
                let mut part = || parts.next().unwrap_or_default();
                (part(), part(), None, None)
            }
        };
        if claims.sub != format!("system:serviceaccount:{namespace}:{account}") {
            return Err(TokenFlaw::Form("sub"));
        }
        let expires = moment(claims.exp).ok_or(TokenFlaw::Form("exp"))?;
        let times = [claims.nbf, claims.iat].into_iter().flatten();
        let not_before = moment(times.max().unwrap_or_default()).ok_or(TokenFlaw::Form("nbf"))?;
        Ok(Self {
            algorithm: header.alg,
            key: header.kid,
            signed: signed.as_bytes(),
            signature: bytes(signature).ok_or(TokenFlaw::Form("signature"))?,
            claims: TokenClaims {
                issuer: claims.iss,
                namespace,
                service_account: account,
                pod: pod.map(|pod| TokenPod { name: pod.name.into(), uid: pod.uid.into() }),
                node: node.map(|node| node.name),
                expires,
            },
            audiences: match claims.aud {
                Audiences::One(audience) => vec![audience],
                Audiences::Several(all) => all,
            },
            not_before,
            is_kubernetes,
        })
    }

    /// Returns the unverified claims.
    pub fn unverified(&self) -> &TokenClaims {
        &self.claims
    }

    /// Checks that the token is valid at `now`, for one of these audiences, without its signature.
    ///
    /// # Errors
    /// If it has expired, is not valid yet, or is for another audience.
    pub fn check(&self, audiences: &[String], now: SystemTime) -> Result<(), TokenFlaw> {
        if self.claims.expires <= now {
            return Err(TokenFlaw::Ended);
        }
        if self.not_before > now + SKEW {
            return Err(TokenFlaw::Early);
        }
        match self.audiences.iter().any(|audience| audiences.contains(audience)) {
            true => Ok(()),
            false => Err(TokenFlaw::Audience(self.audiences.clone())),
        }
    }

    /// Returns the claims after verifying the signature.
    ///
    /// # Errors
    /// If the token is of another issuer, or not signed with the key that it names.
    pub fn verify(&self, keys: &IssuerKeys) -> Result<&TokenClaims, TokenFlaw> {
        if *self.claims.issuer != *keys.issuer {
            let found = self.claims.issuer.clone();
            return Err(TokenFlaw::Issuer { found, wanted: Arc::clone(&keys.issuer) });
        }
        let key = self.key.as_deref().and_then(|id| keys.keys.get(id));
        let shown = || self.key.as_ref().map(|id| id.chars().take(KEY_ID_SHOWN).collect());
        key.ok_or_else(|| TokenFlaw::UnknownKey(shown()))?.verify(self)?;
        Ok(&self.claims)
    }
}

fn part<T: serde::de::DeserializeOwned>(text: &str, name: &'static str) -> Result<T, TokenFlaw> {
    bytes(text).and_then(|bytes| serde_json::from_slice(&bytes).ok()).ok_or(TokenFlaw::Form(name))
}

/// Returns the claim that is missing or has another type, otherwise `flaw`.
fn lacking(claims: &str, flaw: TokenFlaw) -> TokenFlaw {
    let Ok(Value::Object(claims)) = part(claims, "claims") else { return flaw };
    let is_sound = |name: &str| match (name, claims.get(name)) {
        ("aud", Some(Value::Array(all))) => all.iter().all(Value::is_string),
        ("exp", Some(value)) => value.is_i64(),
        (_, Some(value)) => value.is_string(),
        (_, None) => false,
    };
    let wrong = ["iss", "sub", "aud", "exp"].into_iter().find(|name| !is_sound(name));
    wrong.map_or(flaw, TokenFlaw::Form)
}

/// Returns the unverified issuer of a token, even if the token has other faults.
pub fn claimed_issuer(token: &str) -> Option<String> {
    if token.len() > TOKEN_BYTES_MAX {
        return None;
    }
    let Ok(Value::Object(claims)) = part(token.split('.').nth(1)?, "claims") else { return None };
    Some(claims.get("iss")?.as_str()?.to_owned())
}

fn bytes(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}

fn moment(seconds: i64) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_secs(u64::try_from(seconds).ok()?))
}

/// An issuer of tokens and its keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuerKeys {
    issuer: Arc<str>,
    keys: BTreeMap<String, PublicKey>,
}

/// Reason why keys can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidKeys(pub &'static str);

#[derive(Debug, Clone, PartialEq, Eq)]
enum PublicKey {
    Rsa { modulus: Vec<u8>, exponent: Vec<u8> },
    P256(Vec<u8>),
    P384(Vec<u8>),
}

#[derive(Deserialize)]
struct KeySetText {
    keys: Vec<Value>,
}

#[derive(Deserialize)]
struct KeyText {
    kty: String,
    kid: String,
    #[serde(rename = "use")]
    purpose: Option<String>,
    alg: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

impl IssuerKeys {
    /// Parses a JSON Web Key Set. Keys of other kinds are ignored; of two keys with one ID, the
    /// first one is used.
    ///
    /// # Errors
    /// If it is not a key set, has more than 32 keys, or has no usable key.
    pub fn parse(issuer: &str, key_set: &[u8]) -> Result<Self, InvalidKeys> {
        if issuer.is_empty() || issuer.len() > ISSUER_MAX {
            return Err(InvalidKeys("the name of the issuer is empty or longer than 2048 bytes"));
        }
        let set: KeySetText = serde_json::from_slice(key_set)
            .map_err(|_| InvalidKeys("it is not a JSON Web Key Set"))?;
        if set.keys.len() > KEYS_MAX {
            return Err(InvalidKeys("there are more than 32 keys"));
        }
        let mut keys = BTreeMap::new();
        for key in set.keys {
            if let Ok(text) = serde_json::from_value::<KeyText>(key)
                && text.kid.len() <= KEY_ID_MAX
                && let Some(key) = PublicKey::read(&text)
            {
                keys.entry(text.kid).or_insert(key);
            }
        }
        if keys.is_empty() {
            return Err(InvalidKeys("there is no key for RS256, ES256 or ES384 with an ID (kid)"));
        }
        Ok(Self { issuer: issuer.into(), keys })
    }

    /// Returns the name of the issuer.
    pub fn issuer(&self) -> &Arc<str> {
        &self.issuer
    }

    /// Returns the keys as a JSON Web Key Set that [`Self::parse`] reads.
    pub fn to_key_set(&self) -> String {
        let keys = self.keys.iter().map(|(id, key)| key.to_json(id));
        json!({ "keys": keys.collect::<Vec<_>>() }).to_string()
    }
}

impl PublicKey {
    fn read(text: &KeyText) -> Option<Self> {
        if text.purpose.as_deref().is_some_and(|purpose| purpose != "sig") {
            return None;
        }
        let number = |text: &Option<String>| bytes(text.as_deref()?);
        let point = |length: usize| {
            let (x, y) = (number(&text.x)?, number(&text.y)?);
            // Uncompressed form (SEC 1, section 2.3.3).
            (x.len() == length && y.len() == length).then(|| [&[4], &x[..], &y[..]].concat())
        };
        let key = match (&*text.kty, text.crv.as_deref()) {
            ("RSA", _) => {
                let (modulus, exponent) = (number(&text.n)?, number(&text.e)?);
                let sizes = MODULUS.contains(&modulus.len()) && (1..=8).contains(&exponent.len());
                sizes.then_some(Self::Rsa { modulus, exponent })?
            }
            ("EC", Some("P-256")) => Self::P256(point(32)?),
            ("EC", Some("P-384")) => Self::P384(point(48)?),
            _ => return None,
        };
        let fits = text.alg.as_deref().is_none_or(|algorithm| algorithm == key.algorithm());
        fits.then_some(key)
    }

    /// Returns the only algorithm of the key; the token does not choose it.
    fn algorithm(&self) -> &'static str {
        match self {
            Self::Rsa { .. } => "RS256",
            Self::P256(_) => "ES256",
            Self::P384(_) => "ES384",
        }
    }

    fn verify(&self, token: &SignedToken<'_>) -> Result<(), TokenFlaw> {
        if token.algorithm != self.algorithm() {
            return Err(TokenFlaw::Algorithm(token.algorithm.chars().take(16).collect()));
        }
        let (text, signature) = (token.signed, &token.signature[..]);
        let verified = match self {
            Self::Rsa { modulus: n, exponent: e } => {
                let key = RsaPublicKeyComponents { n, e };
                key.verify(&RSA_PKCS1_2048_8192_SHA256, text, signature)
            }
            Self::P256(point) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(text, signature)
            }
            Self::P384(point) => {
                UnparsedPublicKey::new(&ECDSA_P384_SHA384_FIXED, point).verify(text, signature)
            }
        };
        verified.map_err(|_| TokenFlaw::Signature)
    }

    fn to_json(&self, id: &str) -> Value {
        let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let curve = |name: &str, point: &[u8]| {
            let (x, y) = point[1..].split_at(point.len() / 2);
            json!({ "kty": "EC", "kid": id, "crv": name, "x": text(x), "y": text(y) })
        };
        match self {
            Self::Rsa { modulus, exponent } => {
                json!({ "kty": "RSA", "kid": id, "n": text(modulus), "e": text(exponent) })
            }
            Self::P256(point) => curve("P-256", point),
            Self::P384(point) => curve("P-384", point),
        }
    }
}

/// Parses any bytes as keys and as a token. Accepted keys must be equal after encoding and parsing,
/// and an unsigned token must never verify.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(bytes: &[u8]) -> bool {
    if let Ok(keys) = IssuerKeys::parse("https://issuer.example", bytes) {
        let again = IssuerKeys::parse(keys.issuer(), keys.to_key_set().as_bytes());
        assert_eq!(again.as_ref(), Ok(&keys), "encoded keys can be parsed");
        return true;
    }
    let Ok(token) = str::from_utf8(bytes) else { return false };
    let Ok(read) = SignedToken::read(token) else { return false };
    let claims = read.unverified();
    let _ = read.check(&["istio-ca".to_owned()], SystemTime::UNIX_EPOCH);
    let others = IssuerKeys { issuer: claims.issuer.as_str().into(), keys: BTreeMap::new() };
    assert!(matches!(read.verify(&others), Err(TokenFlaw::UnknownKey(_))));
    true
}

#[cfg(test)]
pub(crate) mod tests;
