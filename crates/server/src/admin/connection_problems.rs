//! The problems of proxies' connections: failing handshakes, lost streams, refused proxies, and
//! connected proxies of clusters that are not members.

use std::collections::BTreeMap;
use std::time::Instant;

use super::sources::Sources;
use crate::stream_monitor::ConnectionProblem;
use strait_admin_api as api;
use strait_base::codes;

/// Returns the problems of the connections to this process.
pub(super) fn current(sources: &Sources) -> Vec<ConnectionProblem> {
    let mut found = sources.stream_monitor.problems();
    let refused = sources.metrics.xds.refused_proxies.groups(Instant::now()).into_iter();
    found.extend(refused.map(|group| ConnectionProblem { code: group.code, text: group.text }));
    found.extend(of_former_members(sources));
    found
}

/// Returns the problems of the connections for the admin API.
pub(super) fn rows(sources: &Sources) -> Vec<api::Problem> {
    let row = |one: ConnectionProblem| api::Problem { code: one.code.id.into(), text: one.text };
    current(sources).into_iter().map(row).collect()
}

/// Returns a problem for each cluster that is not a member, but has connected proxies.
fn of_former_members(sources: &Sources) -> Vec<ConnectionProblem> {
    let Some(context) = sources.context.borrow().clone() else { return Vec::new() };
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let streams = sources.connections.list();
    for stream in streams.iter().filter(|stream| !stream.is_of_agent()) {
        let cluster = &stream.proxy().cluster;
        if !context.clusters.contains(cluster) {
            *counts.entry(cluster.to_string()).or_default() += 1;
        }
    }
    let problem = |(cluster, count): (String, usize)| {
        let text = format!(
            "cluster {cluster} is not a member of the mesh, and connected proxies of it ({count}) are refused when they reconnect"
        );
        ConnectionProblem { code: &codes::CLAIM_CLUSTER, text }
    };
    counts.into_iter().map(problem).collect()
}
