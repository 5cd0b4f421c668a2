//! A request of `strait check --traffic`, as answers have it.

use serde_json::Value;

use crate::cli::output::{OutputStyle, items, text};

/// The first step that failed; none where it was answered.
pub(super) fn failed(row: &Value) -> Option<&Value> {
    items(&row["steps"]).iter().find(|step| step["ok"] == false)
}

/// Which way it went: the gateway's address, or `direct` to a pod. Pods come and go, so theirs is no name of it.
pub(super) fn way(row: &Value) -> String {
    if row["endpoint"].is_null() { text(&row["gateway"]) } else { "direct".to_owned() }
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
