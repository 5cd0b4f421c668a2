//! Reads the lifetime of a credential from the credential itself.
//!
//! A service account's token is a JWT: its claims are readable. A token for EKS is a presigned URL
//! that contains its date. A client certificate contains its validity. Only the API server verifies
//! them. A wrong date causes a missing or unnecessary warning, or a renewal too early or too late. It
//! grants no permission.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::{SignedDuration, Timestamp};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::Value;

use strait_kube_client::{Access, ApiCredential};

/// The start of a token for EKS; the rest is a presigned URL.
pub(crate) const EKS_PREFIX: &str = "k8s-aws-v1.";
/// How long STS accepts a presigned URL, whatever the URL says.
pub(crate) const EKS_LIFETIME: SignedDuration = SignedDuration::from_mins(15);

/// A credential that expires sooner than this is reported.
const SOON: SignedDuration = SignedDuration::from_hours(7 * 24);

/// The period in which a credential is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lifetime {
    /// When it was issued, if the token contains that.
    pub issued: Option<Timestamp>,
    /// When it expires.
    pub expires: Timestamp,
}

impl Lifetime {
    /// Returns the lifetime of a JWT with an expiry, or of a token for EKS; `None` for any other
    /// token.
    pub fn from_token(token: &str) -> Option<Self> {
        if let Some(url) = token.strip_prefix(EKS_PREFIX) {
            return Self::from_presigned_url(&URL_SAFE_NO_PAD.decode(url).ok()?);
        }
        let claims = claims(token)?;
        let date = |name: &str| Timestamp::from_second(claims[name].as_i64()?).ok();
        Some(Self { issued: date("iat").or_else(|| date("nbf")), expires: date("exp")? })
    }

    /// Returns the lifetime of a presigned URL, which begins at its parameter `X-Amz-Date`.
    fn from_presigned_url(url: &[u8]) -> Option<Self> {
        let url = std::str::from_utf8(url).ok()?;
        let (_, query) = url.split_once('?')?;
        let date = query.split('&').find_map(|pair| pair.strip_prefix("X-Amz-Date="))?;
        let date = jiff::fmt::strtime::parse("%Y%m%dT%H%M%SZ", date).ok()?.to_datetime().ok()?;
        let issued = date.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp();
        let expires = issued.checked_add(EKS_LIFETIME).ok()?;
        Some(Self { issued: Some(issued), expires })
    }

    /// Returns the validity of the first certificate of a PEM chain.
    pub(crate) fn from_certificate(pem: &[u8]) -> Option<Self> {
        let certificate = CertificateDer::from_pem_slice(pem).ok()?;
        let (_, certificate) = x509_parser::parse_x509_certificate(&certificate).ok()?;
        let validity = certificate.validity();
        let date =
            |time: x509_parser::time::ASN1Time| Timestamp::from_second(time.timestamp()).ok();
        Some(Self { issued: date(validity.not_before), expires: date(validity.not_after)? })
    }

    /// Returns the lifetime of the credential of an API server, if it expires.
    pub fn from_access(access: &Access) -> Option<Self> {
        Self::from_credential(&access.credential)
    }

    /// Returns the lifetime of a credential, if it expires. For a certificate and a token, this is
    /// the one that expires first. Returns `None` for a credential that Strait obtains: its source
    /// knows the expiry.
    pub(crate) fn from_credential(credential: &ApiCredential) -> Option<Self> {
        match credential {
            ApiCredential::Token(token) => Self::from_token(token.reveal()),
            ApiCredential::Certificate { certificate_pem, .. } => {
                Self::from_certificate(certificate_pem)
            }
            ApiCredential::CertificateAndToken { certificate_pem, token, .. } => {
                let both =
                    [Self::from_certificate(certificate_pem), Self::from_token(token.reveal())];
                both.into_iter().flatten().min_by_key(|lifetime| lifetime.expires)
            }
            ApiCredential::None
            | ApiCredential::Relay
            | ApiCredential::Basic { .. }
            | ApiCredential::Issued(_) => None,
        }
    }

    /// Returns why the credential is not valid now, if its dates are the reason.
    pub(crate) fn fault(&self, now: Timestamp) -> Option<String> {
        match self.issued {
            Some(issued) if now < issued => {
                Some(format!("the credential is valid from {issued} only"))
            }
            _ if now > self.expires => Some(format!("the credential expired at {}", self.expires)),
            _ => None,
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

/// Returns the claims of a JWT, without verifying it.
fn claims(token: &str) -> Option<Value> {
    let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    serde_json::from_slice(&claims).ok()
}

/// Returns the audiences of a JWT; none if it is no JWT, or names none.
pub(crate) fn audiences(token: &str) -> Vec<String> {
    let audiences = claims(token).map(|mut claims| claims["aud"].take());
    match audiences {
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(some)) => {
            some.iter().filter_map(|one| one.as_str().map(str::to_owned)).collect()
        }
        _ => Vec::new(),
    }
}

/// Returns the namespace and name of the service account of a token.
pub fn service_account(token: &str) -> Option<(String, String)> {
    let claims = claims(token)?;
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
    fn presigned_url_expires_15_min_after_its_date() {
        let eks = |url: &str| format!("{EKS_PREFIX}{}", URL_SAFE_NO_PAD.encode(url));
        let token = eks(
            "https://sts.eu-north-1.amazonaws.com/?Action=GetCallerIdentity&X-Amz-Date=20150830T123600Z&X-Amz-Expires=60",
        );
        let lifetime = Lifetime::from_token(&token).expect("a date");
        assert_eq!(lifetime.expires.to_string(), "2015-08-30T12:51:00Z");
        assert_eq!(lifetime.whole(), Some(EKS_LIFETIME));
        for url in ["", "https://sts/?X-Amz-Date=never", "https://sts/", "\u{0}"] {
            assert_eq!(Lifetime::from_token(&eks(url)), None, "{url}");
        }
        assert_eq!(Lifetime::from_token("k8s-aws-v1.%%%"), None);
    }

    #[test]
    fn certificate_expires_at_the_end_of_its_validity() {
        let mut parameters = rcgen::CertificateParams::new(["reader".to_owned()]).expect("valid");
        parameters.not_before = rcgen::date_time_ymd(2026, 1, 1);
        parameters.not_after = rcgen::date_time_ymd(2027, 1, 1);
        let key = rcgen::KeyPair::generate().expect("a key");
        let pem = parameters.self_signed(&key).expect("signed").pem();
        let lifetime = Lifetime::from_certificate(pem.as_bytes()).expect("a certificate");
        assert_eq!(lifetime.expires.to_string(), "2027-01-01T00:00:00Z");
        assert_eq!(
            lifetime.issued.map(|time| time.to_string()).as_deref(),
            Some("2026-01-01T00:00:00Z")
        );
        let at = |text: &str| lifetime.fault(text.parse().expect("a time"));
        let early = at("2025-12-31T00:00:00Z");
        let late = at("2027-01-02T00:00:00Z");
        assert_eq!(
            early.as_deref(),
            Some("the credential is valid from 2026-01-01T00:00:00Z only")
        );
        assert_eq!(late.as_deref(), Some("the credential expired at 2027-01-01T00:00:00Z"));
        assert_eq!(at("2026-02-01T00:00:00Z"), None);
        assert_eq!(Lifetime::from_certificate(b"garbage"), None);
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
