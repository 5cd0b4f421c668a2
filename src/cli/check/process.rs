//! Findings of `strait check` about the control plane's process and the connections of proxies.

use serde_json::Value;

use super::finding::problem;
use crate::cli::output::{items, text};
use strait_base::codes;

/// Age up to which past events are reported, in seconds.
const RECENTLY: u64 = 600;

/// Returns the problems of the control plane's own process.
pub(super) fn of_process(push: &Value) -> Vec<Value> {
    let held = &push["descriptors"];
    let number = |name: &str| held[name].as_u64();
    let Some(limit) = number("limit") else { return Vec::new() };
    let at_most = limit - limit / 10;
    let mut found = Vec::new();
    let mut add = |fact: String| {
        found.push(problem("process", &codes::DESCRIPTORS, "process".into(), fact));
    };
    match number("exhaustedSecondsAgo") {
        Some(ago) if ago < RECENTLY => add(format!(
            "all {limit} file descriptors were in use when a connection arrived {ago} s ago"
        )),
        _ if number("open") > Some(at_most) => {
            add(format!("{} of {limit} file descriptors are in use", text(&held["open"])));
        }
        _ if number("neededByMembers") > Some(at_most) => add(format!(
            "the members need about {} of {limit} file descriptors, which leaves none for proxies",
            text(&held["neededByMembers"])
        )),
        _ => {}
    }
    found
}

/// Returns the problems of connections: failing handshakes, and a fall of the number of streams.
pub(super) fn of_streams(push: &Value) -> Vec<Value> {
    let finding = |row: &Value| {
        let code = row["code"].as_str().and_then(codes::find).unwrap_or(&codes::STREAMS_FELL);
        problem("proxies", code, "proxies".into(), text(&row["text"]))
    };
    items(&push["connectionProblems"]).iter().map(finding).collect()
}
