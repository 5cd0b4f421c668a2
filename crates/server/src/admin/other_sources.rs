//! `/debug/sources`: the sources of services and objects other than member clusters.

use axum::extract::State;
use axum::http::StatusCode;
use jiff::Timestamp;

use super::failure::{AdminResult, pretty};
use super::sources::SourcesState;
use strait_admin_api as api;
use strait_base::source_status::{SourceStatus, SourceStatusTable};

/// Returns the sources of services and objects other than member clusters.
pub(super) async fn other_sources(State(sources): SourcesState) -> AdminResult {
    Ok(pretty(StatusCode::OK, &rows(&sources.source_statuses)))
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
    }
}
