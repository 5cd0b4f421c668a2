//! A condition in the status of an object. Pure. (Kubernetes, `metav1.Condition`.)

use serde_json::{Value, json};

/// A condition in a status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatusCondition {
    /// The type, for example `Accepted`.
    pub kind: &'static str,
    /// Whether the status is `True` or `False`.
    pub is_true: bool,
    /// The reason, in one word.
    pub reason: &'static str,
    /// The message.
    pub message: String,
}

impl StatusCondition {
    /// Returns the condition as JSON with type `name`; `before` is the condition in the object. The
    /// transition time remains if the status is unchanged. A condition for a later generation is
    /// returned unchanged.
    pub(super) fn written(
        &self,
        name: &str,
        generation: i64,
        before: Option<&Value>,
        now: &str,
    ) -> Value {
        let is_later = |one: &&Value| {
            one["observedGeneration"].as_i64().is_some_and(|observed| observed > generation)
        };
        if let Some(later) = before.filter(is_later) {
            return later.clone();
        }
        let status = if self.is_true { "True" } else { "False" };
        let since = before.filter(|before| before["status"] == status);
        let since = since.and_then(|before| before["lastTransitionTime"].as_str());
        json!({
            "type": name,
            "status": status,
            "reason": self.reason,
            "message": self.message,
            "lastTransitionTime": since.unwrap_or(now),
            "observedGeneration": generation,
        })
    }
}
