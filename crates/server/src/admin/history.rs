//! `/debug/history` and `/debug/diff`: earlier versions of the mesh, and the differences since
//! then.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::json;

use super::failure::{AdminFailure, AdminResult, bad, pretty};
use strait_admin_api as api;
use strait_base::time::rfc3339;
use strait_mesh::history::{
    History, HistoryRecord, MeshDifference, PastMoment, ServiceDifference, SetDifference,
    UnknownMoment, ValueDifference,
};
use strait_mesh::hold::{RetainedConfiguration, RetainedConfigurations};

/// Tolerated clock difference to the client.
const CLOCKS_APART: Duration = Duration::from_secs(60);

/// Query of `/debug/history`.
#[derive(Deserialize)]
pub(super) struct HistoryQuery {
    version: Option<u64>,
}

/// Returns the sizes of all records, oldest first, or one complete record.
pub(super) fn records(
    history: &History,
    retained: &RetainedConfigurations,
    query: &HistoryQuery,
) -> AdminResult {
    let retained = retained.all();
    let Some(version) = query.version else {
        let records = history.records();
        let rows: Vec<_> = records.iter().map(|record| row(record, &retained)).collect();
        return Ok(pretty(StatusCode::OK, &rows));
    };
    let record = history.record(version).ok_or_else(|| {
        let text = format!("there is no record of version {version}; versions published within one second share a record");
        AdminFailure(StatusCode::NOT_FOUND, text)
    })?;
    let row = row(&record, &retained);
    let whole = api::HistoryVersion {
        at: row.at,
        configuration: row.configuration,
        endpoints_added: row.endpoints_added,
        endpoints_removed: row.endpoints_removed,
        gap: row.gap,
        restored: row.restored,
        version: row.version,
        changes: changes(&record.difference),
    };
    // As a JSON value, so that the changes and the other fields are sorted together.
    Ok(pretty(StatusCode::OK, &json!(whole)))
}

/// Query of `/debug/diff`.
#[derive(Deserialize)]
pub(super) struct DiffQuery {
    at: Option<String>,
}

/// Returns the differences between a past moment and now.
pub(super) fn difference(history: &History, query: &DiffQuery) -> AdminResult {
    let moment =
        query.at.as_deref().and_then(moment).ok_or_else(|| {
            bad("expected ?at=VERSION or ?at=TIME with a time in RFC 3339 format")
        })?;
    let now = SystemTime::now();
    if let PastMoment::Time(time) = moment
        && time > now + CLOCKS_APART
    {
        let text =
            format!("{} is in the future; the server's time is {}", rfc3339(time), rfc3339(now));
        return Err(AdminFailure(StatusCode::NOT_FOUND, text));
    }
    let found = history.since(moment).map_err(|unknown| {
        let after = match &unknown {
            UnknownMoment::Earlier { at, .. } | UnknownMoment::Gap { at, .. } => {
                format!("; the earliest possible time is {}", rfc3339(*at))
            }
            _ => String::new(),
        };
        AdminFailure(StatusCode::NOT_FOUND, format!("{unknown}{after}"))
    })?;
    let end = |(version, at): (u64, SystemTime)| api::VersionTime { version, at: rfc3339(at) };
    let (from, to) = (end(found.from), end(found.to));
    let answer = api::MeshDiff { from, to, changes: changes(&found.difference) };
    Ok(pretty(StatusCode::OK, &json!(answer)))
}

fn moment(text: &str) -> Option<PastMoment> {
    let time = || text.parse::<jiff::Timestamp>().ok().map(|time| PastMoment::Time(time.into()));
    text.parse().map(PastMoment::Version).ok().or_else(time)
}

/// Returns the sizes of a record.
fn row(record: &Arc<HistoryRecord>, retained: &[RetainedConfiguration]) -> api::HistoryRow {
    let MeshDifference { services, networks, settings, objects } = &record.difference;
    let sets = || services.values().flat_map(|service| service.endpoints.values());
    let count = |of: fn(&SetDifference) -> usize| sets().map(of).sum::<usize>();
    // Restored versions have numbers of an earlier process.
    let own = retained.iter().rev().filter(|_| !record.restored);
    let configuration = own.clone().find(|one| one.version <= record.version);
    api::HistoryRow {
        version: record.version,
        configuration: configuration.map(|one| one.configuration.id().to_string()),
        at: rfc3339(record.at),
        restored: record.restored,
        gap: record.gap.map(|gap| gap.as_str().to_owned()),
        services: services.len(),
        endpoints_added: count(|set| set.added.len()),
        endpoints_removed: count(|set| set.removed.len()),
        networks: networks.len(),
        settings: settings.len(),
        objects: objects.len(),
        replica: None,
    }
}

/// Returns the changes themselves.
fn changes(difference: &MeshDifference) -> api::MeshChanges {
    let MeshDifference { services, networks, settings, objects } = difference;
    let service = |service: &ServiceDifference| api::ServiceChange {
        definition: service.definition.as_ref().map(value),
        endpoints: by_name(&service.endpoints, set),
    };
    api::MeshChanges {
        services: by_name(services, service),
        networks: by_name(networks, set),
        settings: by_name(settings, value),
        objects: by_name(objects, value),
    }
}

fn by_name<T, U>(all: &BTreeMap<String, T>, each: impl Fn(&T) -> U) -> BTreeMap<String, U> {
    all.iter().map(|(name, one)| (name.clone(), each(one))).collect()
}

fn set(set: &SetDifference) -> api::SetChange {
    let [added, removed] = [&set.added, &set.removed].map(|items| items.iter().cloned().collect());
    api::SetChange { added, removed }
}

fn value(value: &ValueDifference) -> api::ValueChange {
    api::ValueChange { before: value.before.clone(), after: value.after.clone() }
}
