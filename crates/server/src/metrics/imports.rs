//! Metrics of the ServiceImports that Strait writes into clusters.

use std::collections::BTreeMap;
use std::fmt;

use super::family::Family;
use strait_model::ImportMode;
use strait_sources::clusters::status::ClusterStatus;

/// Renders the metrics of clusters into which imports are written.
pub(super) fn render(out: &mut String, clusters: &[&ClusterStatus]) -> fmt::Result {
    let clusters = clusters.iter().filter(|cluster| {
        cluster.imports.mode != ImportMode::Off || !cluster.imports.writes.is_empty()
    });
    let help = "ServiceImports of exported services, by cluster and state.";
    let mut family = Family::gauge(out, "strait_mcs_imports", help)?;
    for cluster in clusters.clone() {
        let mut states: BTreeMap<&str, usize> = BTreeMap::new();
        for state in cluster.imports.imports.values() {
            let state = match (state.present, state.ours, state.ready) {
                (false, ..) => "missing",
                (true, false, _) => "foreign",
                (true, true, false) => "pending",
                (true, true, true) => "ready",
            };
            *states.entry(state).or_default() += 1;
        }
        for (state, count) in states {
            family.sample(&[("cluster", &cluster.id), ("state", state)], count)?;
        }
    }
    let help = "Writes of exports and imports, by cluster, kind of object and result.";
    let mut family = Family::counter(out, "strait_mcs_writes_total", help)?;
    for cluster in clusters.clone() {
        for ((kind, result), count) in &cluster.imports.writes {
            family
                .sample(&[("cluster", &cluster.id), ("kind", kind), ("result", result)], count)?;
        }
    }
    let help = "Deletions of ServiceImports that are delayed because they are many at once.";
    let mut family = Family::gauge(out, "strait_mcs_deletes_held", help)?;
    for cluster in clusters {
        family.sample(&[("cluster", &cluster.id)], cluster.imports.held)?;
    }
    Ok(())
}
