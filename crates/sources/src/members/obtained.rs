//! A credential that was obtained, and when it is renewed.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::time::{Duration, SystemTime};

use strait_kube_client::{ApiCredential, Redacted};

/// Maximum size of a token in bytes; API servers refuse larger headers.
const TOKEN_BYTES_MAX: u64 = 64 << 10;
/// The limits of the lifetime that a response states. A longer or shorter one is replaced.
const LIFETIME_MIN: Duration = Duration::from_secs(60);
pub(super) const LIFETIME_MAX: Duration = Duration::from_secs(24 * 3600);

/// A token or client certificate, and when the next one is requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ObtainedCredential {
    /// The credential.
    pub credential: ApiCredential,
    /// When it expires, if known.
    pub expires: Option<SystemTime>,
    /// The time until the next request.
    pub refresh_after: Duration,
    /// Whether the time of the next request is shown.
    pub shows_refresh: bool,
}

/// Reads a token from a file, without the surrounding white space.
pub(super) fn read_token(path: &Path) -> Result<String, String> {
    let shown = path.display();
    let failed = |error: io::Error| format!("{shown}: {error}");
    // Opening a pipe or a device may wait, and reading it may never end.
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return Err(format!("{shown}: is not a regular file"));
    }
    let mut text = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(TOKEN_BYTES_MAX + 1).read_to_end(&mut text).map_err(failed)?;
    if text.len() as u64 > TOKEN_BYTES_MAX {
        return Err(format!("{shown}: is larger than {} KiB", TOKEN_BYTES_MAX >> 10));
    }
    let text = String::from_utf8(text).map_err(|_| format!("{shown}: is not text"))?;
    let token = text.trim();
    if token.is_empty() {
        return Err(format!("{shown}: is empty"));
    }
    match token.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(token.to_owned()),
        false => Err(format!("{shown}: contains a character that no token has")),
    }
}

impl ObtainedCredential {
    /// Sets the expiry and the renewal time of a credential.
    pub(super) fn expiring(
        credential: ApiCredential,
        expires: SystemTime,
        now: SystemTime,
    ) -> Self {
        let lifetime = limited_lifetime(expires, now);
        Self {
            credential,
            expires: Some(now + lifetime),
            refresh_after: renewal_after(lifetime),
            shows_refresh: true,
        }
    }
}

/// Creates a token that expires, and sets its renewal time.
pub(super) fn expiring_token(
    token: String,
    expires: SystemTime,
    now: SystemTime,
) -> ObtainedCredential {
    let credential = ApiCredential::Token(Redacted::new(token));
    ObtainedCredential::expiring(credential, expires, now)
}

/// Returns the lifetime that a response states, within the limits.
pub(super) fn limited_lifetime(expires: SystemTime, now: SystemTime) -> Duration {
    expires.duration_since(now).unwrap_or_default().clamp(LIFETIME_MIN, LIFETIME_MAX)
}

/// Returns the time until a token is renewed, which is half of its lifetime. A token that is valid for
/// more than 5 min is renewed at least 5 min before it expires.
pub(super) fn renewal_after(lifetime: Duration) -> Duration {
    let before_end = lifetime.saturating_sub(Duration::from_secs(300));
    let half = lifetime / 2;
    if before_end.is_zero() { half } else { half.min(before_end) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_renewed_at_half_of_its_lifetime_or_5_min_before_its_end() {
        let seconds = |lifetime| renewal_after(Duration::from_secs(lifetime)).as_secs();
        assert_eq!(seconds(3600), 1800);
        assert_eq!(seconds(400), 100);
        assert_eq!(seconds(120), 60);
    }

    #[test]
    fn stated_lifetime_is_limited() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let expires = |seconds: u64| {
            let token = expiring_token("t".to_owned(), now + Duration::from_secs(seconds), now);
            token.expires.and_then(|time| time.duration_since(now).ok()).map(|left| left.as_secs())
        };
        assert_eq!(expires(1), Some(60));
        assert_eq!(expires(3600), Some(3600));
        assert_eq!(expires(1 << 40), Some(86_400));
    }

    #[test]
    fn token_file_is_trimmed_and_checked() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("token");
        assert!(read_token(&path).expect_err("absent").contains("token"));
        for (text, token) in
            [("a.b.c\n", Some("a.b.c")), ("", None), ("a b", None), ("\u{e9}", None)]
        {
            std::fs::write(&path, text).expect("written");
            assert_eq!(read_token(&path).ok().as_deref(), token, "{text:?}");
        }
    }
}
