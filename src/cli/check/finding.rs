//! Rows of `strait check`, one for each finding.

use serde_json::{Value, json};

use crate::cli::output::text;
use strait_base::codes::Code;
use strait_explain::findings::MeshFinding;

/// Returns a finding that the control plane reports too.
pub(super) fn row(finding: &MeshFinding) -> Value {
    let MeshFinding { category, code, object, fact, is_problem } = finding;
    let of = if *is_problem { problem } else { note };
    of(category, code, text(object), text(fact))
}

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
