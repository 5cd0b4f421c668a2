//! `/debug/history` and `/debug/diff`: what the mesh was before, and what is otherwise now.

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
use strait_mesh::hold::{KeptConfiguration, KeptConfigurations};

/// By how much the clock of who asks may go ahead of ours.
const CLOCKS_APART: Duration = Duration::from_secs(60);

/// What `/debug/history` is asked with.
#[derive(Deserialize)]
pub(super) struct HistoryQuery {
    version: Option<u64>,
}

/// All records, oldest first, by their sizes; or one as a whole.
pub(super) fn records(
    history: &History,
    kept: &KeptConfigurations,
    query: &HistoryQuery,
) -> AdminResult {
    let kept = kept.all();
    let Some(version) = query.version else {
        let records = history.records();
        let rows: Vec<Value> = records.iter().map(|record| row(record, &kept)).collect();
        return Ok(pretty(StatusCode::OK, &rows));
    };
    let record = history.record(version).ok_or_else(|| {
        let text = format!("there is no record of version {version}; versions that follow each other within a second are one record");
        AdminFailure(StatusCode::NOT_FOUND, text)
    })?;
    let mut whole = row(&record, &kept);
    with(&mut whole, &record.difference);
    Ok(pretty(StatusCode::OK, &whole))
}

/// What `/debug/diff` is asked with.
#[derive(Deserialize)]
pub(super) struct DiffQuery {
    at: Option<String>,
}

/// What is otherwise now than it was then.
pub(super) fn difference(history: &History, query: &DiffQuery) -> AdminResult {
    let moment = query.at.as_deref().and_then(moment).ok_or_else(|| {
        bad("a difference is asked for by ?at=VERSION, or by ?at=TIME in the form of RFC 3339")
    })?;
    let now = SystemTime::now();
    if let PastMoment::Time(time) = moment
        && time > now + CLOCKS_APART
    {
        let text = format!("{} is to come; here it is {}", rfc3339(time), rfc3339(now));
        return Err(AdminFailure(StatusCode::NOT_FOUND, text));
    }
    let found = history.since(moment).map_err(|unknown| {
        let after = match &unknown {
            UnknownMoment::Earlier { at, .. } | UnknownMoment::Gap { at, .. } => {
                format!("; times from {} on can be asked for", rfc3339(*at))
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

/// A record by its sizes.
fn row(record: &Arc<HistoryRecord>, kept: &[KeptConfiguration]) -> Value {
    let MeshDifference { services, networks, settings, objects } = &record.difference;
    let sets = || services.values().flat_map(|service| service.endpoints.values());
    let count = |of: fn(&SetDifference) -> usize| sets().map(of).sum::<usize>();
    // Versions of before the start are numbered anew.
    let own = kept.iter().rev().filter(|_| !record.restored);
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

/// The difference itself, beside or in place of its sizes.
fn with(answer: &mut Value, difference: &MeshDifference) {
    answer["services"] = json!(difference.services);
    answer["networks"] = json!(difference.networks);
    answer["settings"] = json!(difference.settings);
    answer["objects"] = json!(difference.objects);
}
