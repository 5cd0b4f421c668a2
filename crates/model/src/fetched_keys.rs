//! Fetched keys of token issuers: their locations, and the results of fetching.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::Namespace;

/// The location of fetched keys.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeyPlace {
    /// The keys are at this URI.
    Uri(Arc<str>),
    /// This issuer publishes the keys' location (OpenID Connect Discovery).
    Issuer(Arc<str>),
}

impl fmt::Display for KeyPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uri(uri) => f.write_str(&shown_uri(uri)),
            Self::Issuer(issuer) => write!(f, "issuer {}", shown_uri(issuer)),
        }
    }
}

/// Substrings in names of query parameters whose values are confidential.
const SECRET_PARAMETERS: [&str; 7] = ["token", "key", "secret", "sig", "pass", "auth", "code"];

/// Returns a URI for display in logs and metrics: without user and password, and with the values of
/// confidential parameters replaced.
pub fn shown_uri(uri: &str) -> String {
    let (before, query) = match uri.split_once('?') {
        Some((before, query)) => (before, Some(query)),
        None => (uri, None),
    };
    let mut shown = without_user(before).into_owned();
    let Some(query) = query else { return shown };
    let parameter = |one: &str| match one.split_once('=') {
        Some((name, _)) if SECRET_PARAMETERS.iter().any(|it| name.to_lowercase().contains(it)) => {
            format!("{name}=***")
        }
        _ => one.to_owned(),
    };
    shown.push('?');
    shown += &query.split('&').map(parameter).collect::<Vec<_>>().join("&");
    shown
}

/// Replaces user and password in a URI. URIs with a user are rejected, and the user must not be
/// displayed.
fn without_user(uri: &str) -> Cow<'_, str> {
    let hidden = uri.split_once("://").and_then(|(scheme, rest)| {
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let at = rest[..end].rfind('@')?;
        Some(format!("{scheme}://***@{}", &rest[at + 1..]))
    });
    hidden.map_or(Cow::Borrowed(uri), Cow::Owned)
}

/// The location of a rule's keys, and the timeout for fetching them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeySource {
    /// The location.
    pub place: KeyPlace,
    /// The timeout.
    pub timeout: Duration,
}

/// The requirements of all policies for one location.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedKeys {
    /// The timeout for fetching: the longest that any policy requests.
    pub timeout: Duration,
    /// The namespaces of the policies that use the location.
    pub namespaces: BTreeSet<Namespace>,
}

impl WantedKeys {
    /// Adds the requirements of further policies.
    pub fn join(&mut self, other: Self) {
        self.timeout = self.timeout.max(other.timeout);
        self.namespaces.extend(other.namespaces);
    }
}

/// The result of fetching from one location.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyState {
    /// The last valid keys, as a JSON Web Key Set; `None` if there were none yet.
    pub keys: Option<Arc<str>>,
    /// Why the last fetch failed; `None` if it succeeded or was not tried yet.
    pub trouble: Option<String>,
}

/// The results by location.
pub type FetchedKeys = BTreeMap<KeyPlace, KeyState>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn password_in_a_key_location_is_not_shown() {
        let shown = |uri: &str| KeyPlace::Uri(uri.into()).to_string();
        assert_eq!(shown("https://me:secret@a.example/k@1"), "https://***@a.example/k@1");
        assert_eq!(shown("https://a.example/k@1"), "https://a.example/k@1");
        assert_eq!(
            shown("https://a.example/k?p=b2c_1&access_token=secret&x-api-KEY=secret&n"),
            "https://a.example/k?p=b2c_1&access_token=***&x-api-KEY=***&n"
        );
        let issuer = KeyPlace::Issuer("https://me:secret@a.example".into()).to_string();
        assert_eq!(issuer, "issuer https://***@a.example");
    }
}
