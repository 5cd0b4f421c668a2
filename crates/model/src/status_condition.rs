//! A condition, as statuses of all kinds have them. Pure. (Kubernetes, `metav1.Condition`.)

use serde_json::{Value, json};

/// A condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatusCondition {
    /// What it is about, such as `Accepted`.
    pub kind: &'static str,
    /// Whether it is so.
    pub is_true: bool,
    /// Why, in a word.
    pub reason: &'static str,
    /// Why, in words.
    pub message: String,
}

impl StatusCondition {
    /// As it is written under that name, where `before` stands now. It is so since it was last otherwise; what is about a
    /// later generation than this knows is left alone.
    pub(super) fn written(
        &self,
        name: &str,
        generation: i64,
        before: Option<&Value>,
        now: &str,
    ) -> Value {
        let is_later =
            |one: &&Value| one["observedGeneration"].as_i64().is_some_and(|seen| seen > generation);
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
