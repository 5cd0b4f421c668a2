//! Keys of token issuers that are fetched: where they are, and what policies are made with.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::model::Namespace;

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
            Self::Uri(uri) => f.write_str(uri),
            Self::Issuer(issuer) => write!(f, "what issuer {issuer} names"),
        }
    }
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
