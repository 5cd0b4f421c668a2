//! The streams that a name matches.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use serde_json::Value;

use super::failure::{AdminFailure, bad};
use super::merge::NamedStream;
use strait_ads::connections::{Connections, OpenStream};
use strait_model::NameMatch;

/// Returns the error for a prefix that matches several proxies.
pub(super) fn ambiguous(name: &str, proxies: &[String]) -> AdminFailure {
    let text = format!("{name:?} matches several proxies; select one: {}", proxies.join(", "));
    bad(&text)
}

/// Returns the streams of this replica that a name matches.
pub(super) fn named(connections: &Connections, name: &str) -> Vec<NamedStream> {
    connections.named(name).iter().map(of_stream).collect()
}

/// Describes a stream of this replica that a name matches.
pub(super) fn of_stream((found, stream): &(NameMatch, Arc<OpenStream>)) -> NamedStream {
    let proxy = stream.proxy();
    let opened = stream.connected_at().duration_since(UNIX_EPOCH).unwrap_or_default();
    NamedStream {
        exactness: *found as u64,
        key: stream.key(),
        id: proxy.id.to_string(),
        cluster: proxy.cluster.to_string(),
        workload: proxy.workload.to_string(),
        is_of_configuration: stream.is_of_configuration(),
        opened: u64::try_from(opened.as_micros()).unwrap_or(u64::MAX),
        replica: None,
    }
}

/// Reads a stream from the response of another replica.
pub(super) fn of_row(row: &Value, replica: &str) -> NamedStream {
    let text = |field: &str| row[field].as_str().unwrap_or_default().to_owned();
    NamedStream {
        exactness: row["exactness"].as_u64().unwrap_or(u64::MAX),
        key: text("key"),
        id: text("id"),
        cluster: text("cluster"),
        workload: text("workload"),
        is_of_configuration: row["isOfConfiguration"] == true,
        opened: row["opened"].as_u64().unwrap_or_default(),
        replica: Some(replica.to_owned()),
    }
}
