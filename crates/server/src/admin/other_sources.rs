//! `/debug/sources`: the sources of services and objects other than member clusters.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use jiff::Timestamp;

use super::failure::{AdminResult, pretty};
use super::proxy_view::withheld;
use super::sources::{Sources, SourcesState};
use crate::metrics::{WithheldCounts, WithheldTotal};
use strait_admin_api::{self as api, SourceKind, SourceState};
use strait_base::source_status::{SourceStatus, SourceStatusTable};

/// The name of the source of all ServiceEntries and WorkloadEntries.
const ENTRIES: &str = "entries";

/// Returns the sources of services and objects other than member clusters.
pub(super) async fn other_sources(State(sources): SourcesState) -> AdminResult {
    Ok(pretty(StatusCode::OK, &rows_with_withheld(&sources, &withheld(&sources))))
}

/// Returns the status of each source, with its withheld endpoints.
pub(super) fn rows_with_withheld(sources: &Sources, counts: &WithheldCounts) -> Vec<api::Source> {
    let mut rows = rows(&sources.source_statuses);
    let members = Arc::clone(&sources.clusters.borrow());
    for (cluster, by_code) in counts {
        if members.iter().any(|member| member.id == cluster.as_str()) {
            continue;
        }
        // Endpoints of entries belong to no cluster.
        let (name, kind) = match cluster.is_empty() {
            true => (ENTRIES, SourceKind::Entries),
            false => (cluster.as_str(), SourceKind::Consul),
        };
        let at = rows.iter().position(|row| row.name == name).unwrap_or_else(|| {
            let (name, state) = (name.to_owned(), SourceState::Live);
            rows.push(api::Source { name, kind, state, ..api::Source::default() });
            rows.len() - 1
        });
        let of_code = |(code, total): (&&str, &WithheldTotal)| {
            let services = total.services.iter().map(ToString::to_string).collect();
            ((*code).to_owned(), api::WithheldOfSource { endpoints: total.endpoints, services })
        };
        rows[at].withheld = by_code.values().map(|total| total.endpoints).sum();
        rows[at].withheld_by = by_code.iter().map(of_code).collect();
    }
    rows
}

/// Returns the status of each source.
pub(super) fn rows(table: &SourceStatusTable) -> Vec<api::Source> {
    table.show().into_iter().map(row).collect()
}

/// Returns the status of each source without its numbers and warnings.
pub(super) fn in_short(table: &SourceStatusTable) -> Vec<api::SourceInShort> {
    let short = |status: SourceStatus| {
        let api::Source { name, kind, state, reason, code, .. } = row(status);
        api::SourceInShort { name, kind, state, reason, code }
    };
    table.show().into_iter().map(short).collect()
}

fn row(status: SourceStatus) -> api::Source {
    let last_contact = status.last_contact.and_then(|at| Timestamp::try_from(at).ok());
    api::Source {
        name: status.name.to_string(),
        kind: status.kind.into(),
        address: status.address,
        state: status.state.as_str().into(),
        reason: status.reason,
        code: status.code.map(str::to_owned),
        last_contact: last_contact.map(|at| at.to_string()),
        failures: status.failures,
        services: status.services,
        endpoints: status.endpoints,
        objects: status.objects,
        warnings: status.warnings,
        absent_kinds: status.absent_kinds.into_iter().map(str::to_owned).collect(),
        ..api::Source::default()
    }
}
