//! Helpers for one result row of `strait check --traffic`.

use serde_json::Value;

use crate::cli::output::{OutputStyle, items, text};

/// Returns the first failed step, or `None` if the request succeeded.
pub(super) fn failed(row: &Value) -> Option<&Value> {
    items(&row["steps"]).iter().find(|step| step["ok"] == false)
}

/// Returns the address of the gateway, or `direct` for a request to a pod. Pod addresses change, so
/// they do not identify a route.
pub(super) fn way(row: &Value) -> String {
    if row["endpoint"].is_null() { text(&row["gateway"]) } else { "direct".to_owned() }
}

/// Returns the sign for success or failure.
pub(super) fn sign(ok: bool, look: &OutputStyle) -> &'static str {
    match (ok, look.unicode) {
        (true, true) => "✓",
        (false, true) => "✗",
        (true, false) => "ok",
        (false, false) => "failed",
    }
}
