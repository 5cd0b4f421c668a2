//! A request of `strait check --traffic`, as answers have it.

use serde_json::Value;

use crate::cli::output::{OutputStyle, items};

/// The first step that failed; none where it was answered.
pub(super) fn failed(row: &Value) -> Option<&Value> {
    items(&row["steps"]).iter().find(|step| step["ok"] == false)
}

/// Before what is said of it.
pub(super) fn sign(ok: bool, look: &OutputStyle) -> &'static str {
    match (ok, look.unicode) {
        (true, true) => "✓",
        (false, true) => "✗",
        (true, false) => "ok",
        (false, false) => "failed",
    }
}
