//! Findings of `strait check` about the control plane's process and the connections of proxies.

use serde_json::Value;

use super::finding::{problem, row};
use crate::cli::output::text;
use strait_admin_api::{Problem, Push};
use strait_base::codes;
use strait_explain::findings;

/// Returns the problems of a control-plane process and its connections.
pub(super) fn of_replica(name: &str, push: &Push) -> Vec<Value> {
    let object = format!("replica/{name}");
    let mut found = of_process(push, &object);
    found.extend(of_streams(push, &object));
    found
}

/// Returns the problems of a process of the control plane.
pub(super) fn of_process(push: &Push, object: &str) -> Vec<Value> {
    findings::of_process(&push.descriptors, object).iter().map(row).collect()
}

/// Returns the problems of connections: failing handshakes, and a fall of the number of streams.
pub(super) fn of_streams(push: &Push, object: &str) -> Vec<Value> {
    let of = |row: &Problem| {
        let code = codes::find(&row.code).unwrap_or(&codes::STREAMS_FELL);
        problem("proxies", code, object.to_owned(), text(&row.text))
    };
    push.connection_problems.iter().map(of).collect()
}
