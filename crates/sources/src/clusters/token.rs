//! Reads the lifetime of a bearer token from the token itself.
//!
//! A service account's token is a JWT: its claims are readable. Nothing here verifies it; its API
//! server does. A wrong date causes a missing or unnecessary warning, or a renewal too early or too
//! late, and grants no permission.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use strait_kube_client::{Access, ApiCredential};

/// A token that expires sooner than this is reported.
const SOON: SignedDuration = SignedDuration::from_hours(7 * 24);

/// The period in which a token is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lifetime {
    /// When it was issued, if the token contains that.
    pub issued: Option<Timestamp>,
    /// When it expires.
    pub expires: Timestamp,
}

impl Lifetime {
    /// Returns the lifetime of a JWT with an expiry; `None` for any other token.
    pub fn from_token(token: &str) -> Option<Self> {
        let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
        let claims: Value = serde_json::from_slice(&claims).ok()?;
        let date = |name: &str| Timestamp::from_second(claims[name].as_i64()?).ok();
        Some(Self { issued: date("iat").or_else(|| date("nbf")), expires: date("exp")? })
    }

    /// Returns the lifetime of the token in the credential of an API server, if it has one.
    pub fn from_access(access: &Access) -> Option<Self> {
        match &access.credential {
            ApiCredential::Token(token) | ApiCredential::CertificateAndToken { token, .. } => {
                Self::from_token(token.reveal())
            }
            ApiCredential::None
            | ApiCredential::Relay
            | ApiCredential::Basic { .. }
            | ApiCredential::Certificate { .. } => None,
        }
    }

    /// Whether an operator should act: less than seven days before expiry, or less than a third of
    /// the lifetime if that is shorter.
    pub fn ends_soon(&self, now: Timestamp) -> bool {
        let third = self.whole().map_or(SOON, |whole| whole / 3);
        self.expires.duration_since(now) < SOON.min(third)
    }

    /// Returns the time of automatic renewal: when half of the lifetime is over.
    pub fn half(&self) -> Timestamp {
        let whole = self.whole().unwrap_or(2 * SOON);
        self.expires.saturating_sub(whole / 2).unwrap_or(self.expires)
    }

    /// Returns the length of the lifetime.
    pub fn whole(&self) -> Option<SignedDuration> {
        let whole = self.expires.duration_since(self.issued?);
        (whole > SignedDuration::ZERO).then_some(whole)
    }
}

/// Returns the namespace and name of the service account of a token.
pub fn service_account(token: &str) -> Option<(String, String)> {
    let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    let claims: Value = serde_json::from_slice(&claims).ok()?;
    let (namespace, name) =
        claims["sub"].as_str()?.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    let plain =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    let is_name = |text: &str| !text.is_empty() && text.bytes().all(plain);
    [namespace, name].into_iter().all(is_name).then(|| (namespace.to_owned(), name.to_owned()))
}

/// Creates a token with this lifetime, which no API server accepts.
#[cfg(test)]
pub(crate) fn example(issued: i64, expires: i64) -> String {
    let claims = serde_json::json!({ "iat": issued, "exp": expires }).to_string();
    format!("e30.{}.sig", URL_SAFE_NO_PAD.encode(claims))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 86_400;

    fn at(days: i64) -> Timestamp {
        Timestamp::from_second(days * DAY).expect("a time")
    }

    #[test]
    fn token_contains_its_expiry() {
        let month = Lifetime::from_token(&example(0, 30 * DAY)).expect("a JWT");
        assert_eq!((month.issued, month.expires, month.half()), (Some(at(0)), at(30), at(15)));
        assert!(!month.ends_soon(at(22)) && month.ends_soon(at(24)) && month.ends_soon(at(31)));
        // The lifetime is shorter than the usual warning period.
        let short = Lifetime::from_token(&example(0, 3 * DAY)).expect("a JWT");
        assert!(!short.ends_soon(at(1)) && short.ends_soon(at(2) + SignedDuration::from_secs(1)));
    }

    #[test]
    fn token_without_an_expiry_has_no_lifetime() {
        for token in
            ["", "opaque", "a.b.c", "e30.e30.", "e30.bnVsbA.x", &format!("{}=", example(0, 1))[4..]]
        {
            assert_eq!(Lifetime::from_token(token), None, "{token}");
        }
        assert_eq!(Lifetime::from_token(&example(0, i64::MAX)), None);
        assert_eq!(service_account(&example(0, 1)), None);
        let account_for = |sub: &str| {
            let claims = URL_SAFE_NO_PAD.encode(format!("{{\"sub\": \"{sub}\"}}"));
            service_account(&format!("e30.{claims}.sig"))
        };
        assert_eq!(account_for("system:serviceaccount:a:b-c"), Some(("a".into(), "b-c".into())));
        for strange in ["system:serviceaccount:a/..:b", "system:serviceaccount::b", "jane"] {
            assert_eq!(account_for(strange), None);
        }
    }
}
