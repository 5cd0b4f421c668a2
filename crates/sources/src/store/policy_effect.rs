//! The effect of an access policy on callers, without parsing all of it.

use serde_json::Value;

use strait_model::{ISTIO_SECURITY, ObjectJson, ObjectKey};

/// The effect of an access policy on callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PolicyEffect {
    /// Without it, rejected callers would be accepted.
    Restricts,
    /// The policy accepts callers, or only audits.
    Other,
}

impl PolicyEffect {
    /// Returns the effect; `None` if the object is not an access policy.
    pub(super) fn from_object(key: &ObjectKey, object: &ObjectJson) -> Option<Self> {
        if &*key.group != ISTIO_SECURITY {
            return None;
        }
        let restricts = match &*key.kind {
            "PeerAuthentication" => true,
            "AuthorizationPolicy" => {
                let object = object.to_value();
                match object.pointer("/spec/action").and_then(Value::as_str) {
                    // A policy without rules rejects all callers.
                    None | Some("ALLOW") => object.pointer("/spec/rules/0").is_none(),
                    Some("AUDIT") => false,
                    Some(_) => true,
                }
            }
            _ => false,
        };
        Some(if restricts { Self::Restricts } else { Self::Other })
    }

    pub(super) fn restricts(&self) -> bool {
        *self == Self::Restricts
    }
}
