//! What `strait check` finds, as the rows that it prints.

use serde_json::{Value, json};

use strait_base::codes::Code;

/// Something that isn't as it should be.
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

/// Something to know that is no problem.
pub(super) fn note(category: &str, code: &Code, object: String, fact: impl Into<String>) -> Value {
    let mut row = problem(category, code, object, fact);
    row["severity"] = json!("note");
    row
}
