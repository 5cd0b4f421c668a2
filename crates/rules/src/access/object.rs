//! Names and faults of access policies of all kinds.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use strait_base::bounded::bounded;
use strait_base::codes::{self, Code};
use strait_model::{ISTIO_SECURITY, Namespace, ObjectKey, WorkloadKey};

/// The kinds of access policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PolicyKind {
    /// AuthorizationPolicy: which callers may do what.
    Authorization,
    /// PeerAuthentication: the mTLS mode of servers.
    Peer,
    /// RequestAuthentication: which tokens are accepted.
    Request,
}

impl PolicyKind {
    /// Returns the spelling used in objects.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Authorization => "AuthorizationPolicy",
            Self::Peer => "PeerAuthentication",
            Self::Request => "RequestAuthentication",
        }
    }

    /// Returns the kind and name of an object; `None` if it is not an access policy.
    pub fn policy_name(key: &ObjectKey) -> Option<PolicyName> {
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

/// Kind and name of a policy.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PolicyName {
    /// Kind of the policy.
    pub kind: PolicyKind,
    /// Namespace and name of the object.
    pub object: WorkloadKey,
}

impl PolicyName {
    /// Returns the key of the object in the store.
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
    /// Writes the kind and the name, for example `PeerAuthentication shop/strict`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, object } = self;
        write!(f, "{} {}/{}", kind.as_str(), object.namespace, object.name)
    }
}

/// An error in a policy, or a part without an effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessFault {
    /// Error code.
    pub code: &'static Code,
    /// Path from the root of the object.
    pub path: String,
    /// Problem and its consequence.
    pub text: String,
}

impl AccessFault {
    /// Reports a part that cannot be read.
    pub(super) fn unreadable(path: impl Into<String>, text: impl fmt::Display) -> Self {
        Self::warning(&codes::ACCESS_UNREADABLE, path, text)
    }

    /// Returns whether the fault is a part that cannot be read, and not only a part without an
    /// effect.
    pub(super) fn is_unreadable(&self) -> bool {
        *self.code == codes::ACCESS_UNREADABLE
    }

    /// Reports a part that was read, but has another effect than it seems to have.
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

/// Status of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PolicyState {
    /// The whole object is active.
    InForce,
    /// Parts of the object cannot be read, and no earlier version was valid.
    Partly,
    /// The object cannot be read. Its last valid version is active; without one, the object has no
    /// effect.
    Refused,
}

/// Returns the creation time of an object in seconds since the Unix epoch; 0 if unknown.
pub(super) fn created(object: &Value) -> i64 {
    let text = object.pointer("/metadata/creationTimestamp").and_then(Value::as_str);
    let time = text.and_then(|text| text.parse::<jiff::Timestamp>().ok());
    time.map_or(0, jiff::Timestamp::as_second)
}

/// Handling of a rule that cannot be read and has no last valid version (`--policy-errors`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PolicyErrors {
    /// The readable parts apply. A rule without any readable part has no effect and is reported.
    #[default]
    Narrow,
    /// The rule denies everything.
    Strict,
}
