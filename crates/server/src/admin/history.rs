//! `/debug/history` and `/debug/diff`: earlier versions of the mesh, and the differences since
//! then.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::failure::{AdminFailure, AdminResult, bad, pretty};
use strait_base::time::rfc3339;
use strait_mesh::history::{
    History, HistoryRecord, MeshDifference, PastMoment, SetDifference, UnknownMoment,
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
        let rows: Vec<Value> = records.iter().map(|record| row(record, &retained)).collect();
        return Ok(pretty(StatusCode::OK, &rows));
    };
    let record = history.record(version).ok_or_else(|| {
        let text = format!("there is no record of version {version}; versions published within one second share a record");
        AdminFailure(StatusCode::NOT_FOUND, text)
    })?;
    let mut whole = row(&record, &retained);
    with(&mut whole, &record.difference);
    Ok(pretty(StatusCode::OK, &whole))
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
    let end = |(version, at): (u64, SystemTime)| json!({ "version": version, "at": rfc3339(at) });
    let mut answer = json!({ "from": end(found.from), "to": end(found.to) });
    with(&mut answer, &found.difference);
    Ok(pretty(StatusCode::OK, &answer))
}

fn moment(text: &str) -> Option<PastMoment> {
    let time = || text.parse::<jiff::Timestamp>().ok().map(|time| PastMoment::Time(time.into()));
    text.parse().map(PastMoment::Version).ok().or_else(time)
}

/// Renders the sizes of a record.
fn row(record: &Arc<HistoryRecord>, retained: &[RetainedConfiguration]) -> Value {
    let MeshDifference { services, networks, settings, objects } = &record.difference;
    let sets = || services.values().flat_map(|service| service.endpoints.values());
    let count = |of: fn(&SetDifference) -> usize| sets().map(of).sum::<usize>();
    // Restored versions have numbers of an earlier process.
    let own = retained.iter().rev().filter(|_| !record.restored);
    let configuration = own.clone().find(|one| one.version <= record.version);
    json!({
        "version": record.version,
        "configuration": configuration.map(|one| one.configuration.id()),
        "at": rfc3339(record.at),
        "restored": record.restored,
        "gap": record.gap.map(|gap| gap.as_str()),
        "services": services.len(),
        "endpointsAdded": count(|set| set.added.len()),
        "endpointsRemoved": count(|set| set.removed.len()),
        "networks": networks.len(),
        "settings": settings.len(),
        "objects": objects.len(),
    })
}

/// Adds the difference itself.
fn with(answer: &mut Value, difference: &MeshDifference) {
    answer["services"] = json!(difference.services);
    answer["networks"] = json!(difference.networks);
    answer["settings"] = json!(difference.settings);
    answer["objects"] = json!(difference.objects);
}
