//! What access policies have in common: their names, and what is wrong with them.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use strait_base::bounded::bounded;
use strait_base::codes::{self, Code};
use strait_model::{ISTIO_SECURITY, Namespace, ObjectKey, WorkloadKey};

/// The kinds of access policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PolicyKind {
    /// Who may do what.
    Authorization,
    /// How connections are taken.
    Peer,
    /// Which tokens are believed.
    Request,
}

impl PolicyKind {
    /// As objects name it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Authorization => "AuthorizationPolicy",
            Self::Peer => "PeerAuthentication",
            Self::Request => "RequestAuthentication",
        }
    }

    /// The kind and name of an object; `None` where it is no access policy.
    pub fn of(key: &ObjectKey) -> Option<PolicyName> {
        let kind = match (&*key.group, &*key.kind) {
            (ISTIO_SECURITY, "AuthorizationPolicy") => Self::Authorization,
            (ISTIO_SECURITY, "PeerAuthentication") => Self::Peer,
            (ISTIO_SECURITY, "RequestAuthentication") => Self::Request,
            _ => return None,
        };
        let namespace = Namespace::new(Arc::clone(&key.namespace));
        let object = WorkloadKey::new(namespace, Arc::clone(&key.name));
        Some(PolicyName { kind, object })
    }
}

/// Which policy.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PolicyName {
    /// The kind.
    pub kind: PolicyKind,
    /// Namespace and name of the object.
    pub object: WorkloadKey,
}

impl PolicyName {
    /// The key of the object in the store.
    pub fn key(&self) -> ObjectKey {
        ObjectKey {
            kind: self.kind.as_str().into(),
            group: ISTIO_SECURITY.into(),
            namespace: self.object.namespace.as_str().into(),
            name: Arc::clone(&self.object.name),
        }
    }
}

impl fmt::Display for PolicyName {
    /// `PeerAuthentication shop/strict`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, object } = self;
        write!(f, "{} {}/{}", kind.as_str(), object.namespace, object.name)
    }
}

/// Something in a policy that is wrong or has no effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessFault {
    /// What kind of trouble it is.
    pub code: &'static Code,
    /// Where, as a path from the object's root.
    pub path: String,
    /// What was found there, and what comes of it.
    pub text: String,
}

impl AccessFault {
    /// What can't be read.
    pub(super) fn unreadable(path: impl Into<String>, text: impl fmt::Display) -> Self {
        Self::warning(&codes::ACCESS_UNREADABLE, path, text)
    }

    /// Whether it reports a part that cannot be read, and not only one without effect.
    pub(super) fn is_unreadable(&self) -> bool {
        *self.code == codes::ACCESS_UNREADABLE
    }

    /// What is read, and has another effect than it seems.
    pub(super) fn warning(
        code: &'static Code,
        path: impl Into<String>,
        text: impl fmt::Display,
    ) -> Self {
        let path: String = path.into();
        Self { code, path: bounded(path), text: bounded(text) }
    }
}

impl fmt::Display for AccessFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.code, self.path, self.text)
    }
}

/// What becomes of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PolicyState {
    /// All of it counts.
    InForce,
    /// Parts of it can't be read, and there is no form of it that could.
    Partly,
    /// It can't be read: its last good form counts, or nothing of it.
    Refused,
}

/// Seconds since the Unix epoch at which an object was made; 0 where that is not known.
pub(super) fn created(object: &Value) -> i64 {
    let text = object.pointer("/metadata/creationTimestamp").and_then(Value::as_str);
    let time = text.and_then(|text| text.parse::<jiff::Timestamp>().ok());
    time.map_or(0, jiff::Timestamp::as_second)
}

/// What becomes of a rule that can't be read and has no last good form (`--policy-errors`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PolicyErrors {
    /// What of it can be read counts; where that is nothing it counts for nothing, and is shown.
    #[default]
    Narrow,
    /// It denies everything.
    Strict,
}
