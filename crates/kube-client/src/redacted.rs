//! Secrets in memory: they can be used, but neither printed nor serialized.

use std::fmt;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_never_shows() {
        let token = Redacted::new("canary".to_owned());
        assert!(!format!("{token:?}").contains("canary"));
    }
}
