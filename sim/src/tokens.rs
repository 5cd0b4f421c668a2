//! Bearer tokens: the administrator's, and those that service accounts were given.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

/// The tokens a cluster accepts.
#[derive(Debug)]
pub(crate) struct Tokens {
    /// Whether requests need one at all.
    needed: bool,
    known: Mutex<BTreeMap<String, Token>>,
}

#[derive(Debug)]
struct Token {
    user: String,
    expires: Option<Instant>,
}

impl Tokens {
    /// With the administrator's token, or open to everybody.
    pub(crate) fn new(admin: Option<&str>) -> Tokens {
        let tokens = Tokens { needed: admin.is_some(), known: Mutex::default() };
        if let Some(admin) = admin {
            tokens.replace_all(admin);
        }
        tokens
    }

    /// From now on only this one counts, as the administrator's.
    pub(crate) fn replace_all(&self, admin: &str) {
        let token = Token { user: "system:admin".to_owned(), expires: None };
        *self.lock() = BTreeMap::from([(admin.to_owned(), token)]);
    }

    /// Who sends this `Authorization` header, if anybody we know.
    pub(crate) fn user_of_header(&self, authorization: &str) -> Option<String> {
        if !self.needed {
            return Some("system:anonymous".to_owned());
        }
        self.user_of(authorization.strip_prefix("Bearer ")?)
    }

    /// Whose token this is, if it counts.
    pub(crate) fn user_of(&self, token: &str) -> Option<String> {
        let known = self.lock();
        let token = known.get(token)?;
        let expired = token.expires.is_some_and(|time| time < Instant::now());
        (!expired).then(|| token.user.clone())
    }

    /// A fresh token in the form of a JWT. Its signature is only a nonce, for we know our tokens by
    /// heart.
    pub(crate) fn issue(&self, user: String, claims: &Value, lifetime: Duration) -> String {
        let header = json!({"alg": "RS256", "kid": "sim"});
        let [header, claims] = [&header, claims].map(|v| URL_SAFE_NO_PAD.encode(v.to_string()));
        let nonce = URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>());
        let token = format!("{header}.{claims}.{nonce}");
        let expires = Instant::now().checked_add(lifetime);
        self.lock().insert(token.clone(), Token { user, expires });
        token
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Token>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
