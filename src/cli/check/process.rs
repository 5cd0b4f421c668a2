//! Findings of `strait check` about the control plane's process and the connections of proxies.

use serde_json::Value;

use super::finding::problem;
use crate::cli::output::text;
use strait_admin_api::{Problem, Push};
use strait_base::codes;

/// Age up to which past events are reported, in seconds.
const RECENTLY: u64 = 600;

/// Returns the problems of a control-plane process and its connections.
pub(super) fn of_replica(name: &str, push: &Push) -> Vec<Value> {
    let object = format!("replica/{name}");
    let mut found = of_process(push, &object);
    found.extend(of_streams(push, &object));
    found
}

/// Returns the problems of a process of the control plane.
pub(super) fn of_process(push: &Push, object: &str) -> Vec<Value> {
    let held = &push.descriptors;
    let Some(limit) = held.limit else { return Vec::new() };
    let at_most = limit - limit / 10;
    let mut found = Vec::new();
    let mut add = |fact: String| {
        found.push(problem("process", &codes::DESCRIPTORS, object.to_owned(), fact));
    };
    match held.exhausted_seconds_ago {
        Some(ago) if ago < RECENTLY => add(format!(
            "all {limit} file descriptors were in use when a connection arrived {ago} s ago"
        )),
        _ if held.open > Some(at_most) => {
            add(format!("{} of {limit} file descriptors are in use", text(&held.open)));
        }
        _ if held.needed_by_members > Some(at_most) => add(format!(
            "the members need about {} of {limit} file descriptors, which leaves none for proxies",
            text(&held.needed_by_members)
        )),
        _ => {}
    }
    found
}

/// Returns the problems of connections: failing handshakes, and a fall of the number of streams.
pub(super) fn of_streams(push: &Push, object: &str) -> Vec<Value> {
    let of = |row: &Problem| {
        let code = codes::find(&row.code).unwrap_or(&codes::STREAMS_FELL);
        problem("proxies", code, object.to_owned(), text(&row.text))
    };
    push.connection_problems.iter().map(of).collect()
}
