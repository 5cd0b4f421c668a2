//! Keys of token issuers that are fetched: where they are, and what policies are made with.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::Namespace;

/// Where keys are that are fetched.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeyPlace {
    /// At this URI.
    Uri(Arc<str>),
    /// Where this issuer says (OpenID Connect Discovery).
    Issuer(Arc<str>),
}

impl fmt::Display for KeyPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uri(uri) => f.write_str(&shown_uri(uri)),
            Self::Issuer(issuer) => write!(f, "what issuer {} names", shown_uri(issuer)),
        }
    }
}

/// What names of parameters have in them whose values are nobody else's affair.
const SECRET_PARAMETERS: [&str; 7] = ["token", "key", "secret", "sig", "pass", "auth", "code"];

/// A URI as it may be shown, in logs and to whoever reads metrics: without who asks and by which password, and without parameters that
/// are secret by their names.
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

/// The same without who asks: that is refused, and told to nobody.
fn without_user(uri: &str) -> Cow<'_, str> {
    let hidden = uri.split_once("://").and_then(|(scheme, rest)| {
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let at = rest[..end].rfind('@')?;
        Some(format!("{scheme}://***@{}", &rest[at + 1..]))
    });
    hidden.map_or(Cow::Borrowed(uri), Cow::Owned)
}

/// Where a rule's keys are, and how long fetching them may take.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeySource {
    /// Where.
    pub place: KeyPlace,
    /// How long.
    pub timeout: Duration,
}

/// What policies want of a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedKeys {
    /// How long a fetch may take: the longest that any of them says.
    pub timeout: Duration,
    /// The namespaces of those that name it.
    pub namespaces: BTreeSet<Namespace>,
}

impl WantedKeys {
    /// What these want of it as well.
    pub fn join(&mut self, other: Self) {
        self.timeout = self.timeout.max(other.timeout);
        self.namespaces.extend(other.namespaces);
    }
}

/// What is known of a place.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyState {
    /// The last keys that made sense, as a JSON Web Key Set; `None` where there were none yet.
    pub keys: Option<Arc<str>>,
    /// Why they could not be fetched the last time; `None` where they could, or nobody has tried yet.
    pub trouble: Option<String>,
}

/// What is known of each place.
pub type FetchedKeys = BTreeMap<KeyPlace, KeyState>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_in_a_place_of_keys_is_not_shown() {
        let shown = |uri: &str| KeyPlace::Uri(uri.into()).to_string();
        assert_eq!(shown("https://me:secret@a.example/k@1"), "https://***@a.example/k@1");
        assert_eq!(shown("https://a.example/k@1"), "https://a.example/k@1");
        assert_eq!(
            shown("https://a.example/k?p=b2c_1&access_token=secret&x-api-KEY=secret&n"),
            "https://a.example/k?p=b2c_1&access_token=***&x-api-KEY=***&n"
        );
        let issuer = KeyPlace::Issuer("https://me:secret@a.example".into()).to_string();
        assert_eq!(issuer, "what issuer https://***@a.example names");
    }
}
