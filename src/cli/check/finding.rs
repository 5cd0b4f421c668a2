//! Rows of `strait check`, one for each finding.

use serde_json::{Value, json};

use strait_base::codes::Code;

/// Returns a finding that requires action.
pub(super) fn problem(
    category: &str,
    code: &Code,
    object: String,
    fact: impl Into<String>,
) -> Value {
    json!({
        "code": code.id, "category": category, "severity": "problem", "object": &object,
        "fact": fact.into(), "next": code.next_for(object.strip_prefix("cluster/")),
    })
}

/// Returns a finding that requires no action.
pub(super) fn note(category: &str, code: &Code, object: String, fact: impl Into<String>) -> Value {
    let mut row = problem(category, code, object, fact);
    row["severity"] = json!("note");
    row
}
