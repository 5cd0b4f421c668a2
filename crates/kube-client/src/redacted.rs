//! Secrets in memory: they can be used, but neither printed nor serialized.

use std::fmt;

use base64::prelude::{BASE64_STANDARD, Engine as _};

/// A secret: it can be used, but neither printed nor serialized.
#[derive(Clone, PartialEq, Eq)]
pub struct Redacted<T>(T);

impl<T> Redacted<T> {
    /// Hides `secret`.
    pub fn new(secret: T) -> Self {
        Self(secret)
    }

    /// Returns the secret, for the code that sends it.
    pub fn reveal(&self) -> &T {
        &self.0
    }
}

impl<T> fmt::Debug for Redacted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<redacted>")
    }
}

/// Replaces a credential in a text that its receiver sent back. `header` is the value of the
/// header `Authorization` or `Proxy-Authorization`.
pub(super) fn without_credential(text: &str, header: &[u8]) -> String {
    let header = String::from_utf8_lossy(header);
    let (scheme, value) = header.split_once(' ').unwrap_or(("", &header));
    let decoded = match scheme.eq_ignore_ascii_case("basic") {
        true => {
            BASE64_STANDARD.decode(value.trim()).ok().and_then(|user| String::from_utf8(user).ok())
        }
        false => None,
    };
    let password =
        decoded.as_deref().and_then(|user| user.split_once(':')).map(|(_, password)| password);
    let secrets = [Some(value.trim()), decoded.as_deref(), password];
    let replace = |text: String, secret: &str| text.replace(secret, "…");
    secrets.into_iter().flatten().filter(|secret| !secret.is_empty()).fold(text.to_owned(), replace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credential_that_is_sent_back_is_replaced() {
        // The value of Basic is `me:canary`.
        for (header, text, expected) in [
            ("Bearer canary", "no access with Bearer canary", "no access with Bearer …"),
            ("Basic bWU6Y2FuYXJ5", "Basic bWU6Y2FuYXJ5 is wrong", "Basic … is wrong"),
            ("Basic bWU6Y2FuYXJ5", "no user me:canary", "no user …"),
            ("basic bWU6Y2FuYXJ5", "password canary", "password …"),
            ("canary", "canary", "…"),
            ("Basic !", "!", "…"),
            ("", "text", "text"),
        ] {
            assert_eq!(without_credential(text, header.as_bytes()), expected);
        }
    }

    #[test]
    fn a_secret_never_shows() {
        let token = Redacted::new("canary".to_owned());
        assert!(!format!("{token:?}").contains("canary"));
    }
}
