//! Merges the responses of several replicas into one. Pure.
//!
//! All replicas read the same sources, so most responses are equal, and the response of one replica
//! is enough. Responses about proxies differ, because each proxy is connected to one replica.

use std::collections::{BTreeMap, BTreeSet};

use axum::http::Method;
use serde_json::{Value, json};

/// Maximum number of refusing proxies that a summary lists.
pub(super) const REFUSALS_MAX: usize = 40;
/// Maximum difference in time, in milliseconds, of the same change in two replicas.
const SAME_CHANGE_MS: i64 = 30_000;

/// Rule by which a response covers all replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MergeRule {
    /// The response of any replica is complete.
    Local,
    /// Only the replica to which a proxy is connected responds.
    OfProxy,
    /// The first response that is not "not found".
    FirstFound,
    /// The list of replicas.
    Replicas,
    Proxies,
    Summary,
    Clusters,
    Sources,
    Objects,
    Reach,
    Events,
    /// One change, and its delivery to each proxy.
    Change,
    /// Changes that the client has not received.
    EventsSince,
    History,
    Preview,
    Scope,
}

impl MergeRule {
    /// Returns the rule for a request. `get` returns a parameter of the query.
    pub(super) fn of<'a>(
        method: &Method,
        path: &str,
        get: impl Fn(&str) -> Option<&'a str>,
    ) -> Self {
        let is_get = *method == Method::GET;
        let has = |name: &str| get(name).is_some();
        match path {
            "/debug/replicas" => Self::Replicas,
            "/debug/proxies" => Self::Proxies,
            "/debug/summary" => Self::Summary,
            "/debug/clusters" => Self::Clusters,
            "/debug/sources" => Self::Sources,
            "/debug/config" => Self::Objects,
            "/debug/config/reach" => Self::Reach,
            "/debug/config_dump"
            | "/debug/explain"
            | "/debug/explain/policy"
            | "/debug/explain/route" => Self::OfProxy,
            "/debug/events" if has("seq") => Self::Change,
            "/debug/events" if get("since").is_none_or(|since| since == "0") => Self::Events,
            "/debug/events" => Self::EventsSince,
            "/debug/history" if !has("version") => Self::History,
            // A version is a number of one replica, a time is not.
            "/debug/diff" if is_get => match get("at").is_some_and(|at| at.parse::<u64>().is_err())
            {
                true => Self::FirstFound,
                false => Self::Local,
            },
            "/debug/diff" if has("proxy") => Self::OfProxy,
            "/debug/diff" | "/debug/hold" if !is_get => Self::Preview,
            "/debug/scope" => Self::Scope,
            _ => Self::Local,
        }
    }
}

/// The response of one replica.
pub(super) struct ReplicaAnswer {
    pub(super) replica: String,
    pub(super) value: Value,
}

/// Merges responses. The first one is that of the replica that received the request.
pub(super) fn merge(rule: MergeRule, answers: Vec<ReplicaAnswer>) -> Value {
    match rule {
        MergeRule::Proxies => proxies(answers),
        MergeRule::Events => events(answers, false),
        MergeRule::EventsSince => events(answers, true),
        MergeRule::History => history(answers),
        MergeRule::Objects => rows(answers, &OBJECT_KEY, add_object),
        MergeRule::Reach => reach(answers),
        MergeRule::Clusters => clusters(answers),
        MergeRule::Sources => {
            rows(answers, &["name"], |into, row| keep_greatest(into, row, "withheld"))
        }
        MergeRule::Summary => fold(answers, add_summary),
        MergeRule::Preview => fold(answers, add_preview),
        MergeRule::Scope => fold(answers, add_scope),
        MergeRule::Local
        | MergeRule::OfProxy
        | MergeRule::FirstFound
        | MergeRule::Change
        | MergeRule::Replicas => {
            answers.into_iter().next().map(|first| first.value).unwrap_or_default()
        }
    }
}

/// Fields that identify a configuration object.
const OBJECT_KEY: [&str; 5] = ["kind", "namespace", "name", "store", "cluster"];

/// Returns the key of a stream in the responses of all replicas.
fn key_at(key: &Value, replica: &str) -> Value {
    json!(format!("{}/{replica}", key.as_str().unwrap_or_default()))
}

/// Splits a key of [`key_at`] into the key at its replica and the replica.
pub(super) fn split_key(key: &str) -> Option<(&str, &str)> {
    let (local, replica) = key.rsplit_once('/')?;
    (!matches!(local, "deploy" | "deployment")).then_some((local, replica))
}

/// Converts a time in RFC 3339 format to milliseconds.
fn milliseconds(time: &Value) -> i64 {
    let parsed = time.as_str().and_then(|text| text.parse::<jiff::Timestamp>().ok());
    parsed.map_or(i64::MIN, jiff::Timestamp::as_millisecond)
}

fn items(value: Value) -> Vec<Value> {
    match value {
        Value::Array(items) => items,
        _ => Vec::new(),
    }
}

/// Returns whether a proxy receives its configuration from the stream of a row.
fn is_of_configuration(row: &Value) -> bool {
    ["cds", "lds"].iter().any(|kind| row["types"].get(kind).is_some())
}

/// Concatenates the streams of all replicas. A proxy that has moved is listed at the replica with
/// its newest stream only. The second stream of an agent may be connected to a different replica
/// than its proxy.
fn proxies(answers: Vec<ReplicaAnswer>) -> Value {
    let mut rows = Vec::new();
    for ReplicaAnswer { replica, value } in answers {
        for mut row in items(value) {
            row["key"] = key_at(&row["key"], &replica);
            row["replica"] = json!(replica);
            rows.push(row);
        }
    }
    let proxy =
        |row: &Value| (row["cluster"].to_string(), row["id"].to_string(), is_of_configuration(row));
    let mut newest: BTreeMap<_, (i64, String)> = BTreeMap::new();
    for row in &rows {
        let found = (milliseconds(&row["connectedAt"]), row["replica"].to_string());
        let entry = newest.entry(proxy(row)).or_insert_with(|| found.clone());
        if *entry < found {
            *entry = found;
        }
    }
    rows.retain(|row| {
        let replica = row["replica"].to_string();
        newest.get(&proxy(row)).is_some_and(|(_, newest)| *newest == replica)
    });
    rows.sort_by_cached_key(|row| milliseconds(&row["connectedAt"]));
    Value::Array(rows)
}

/// Merges rows with equal `key` fields with `add`. The order is that of the first response, with
/// the rows that only others have at the end.
fn rows(answers: Vec<ReplicaAnswer>, key: &[&str], add: impl Fn(&mut Value, &Value)) -> Value {
    let of = |row: &Value| key.iter().map(|field| row[field].to_string()).collect::<Vec<_>>();
    let mut merged: Vec<Value> = Vec::new();
    let mut places: BTreeMap<Vec<String>, usize> = BTreeMap::new();
    for answer in answers {
        for row in items(answer.value) {
            let values = of(&row);
            match places.get(&values).and_then(|place| merged.get_mut(*place)) {
                Some(into) => add(into, &row),
                None => {
                    places.insert(values, merged.len());
                    merged.push(row);
                }
            }
        }
    }
    Value::Array(merged)
}

/// Merges the members of all replicas. A member whose state differs between the replicas, or that
/// a replica does not have, names the state in each of them.
fn clusters(answers: Vec<ReplicaAnswer>) -> Value {
    let key = |row: &Value| (row["id"].to_string(), row["secret"].to_string());
    let state = |row: &Value| (key(row), (row["state"].clone(), row["reason"].clone()));
    let by_replica = |answer: &ReplicaAnswer| {
        let states = answer.value.as_array().into_iter().flatten().map(state);
        (answer.replica.clone(), states.collect::<BTreeMap<_, _>>())
    };
    let replicas: Vec<_> = answers.iter().map(by_replica).collect();
    let mut merged =
        rows(answers, &["id", "secret"], |into, row| keep_greatest(into, row, "withheld"));
    for row in merged.as_array_mut().into_iter().flatten() {
        let states = replicas.iter().map(|(replica, states)| {
            let (state, reason) = states.get(&key(row)).cloned().unwrap_or_default();
            json!({ "replica": replica, "state": state, "reason": reason })
        });
        let states: Vec<_> = states.collect();
        if states.iter().any(|one| one["state"] != row["state"]) {
            row["replicas"] = Value::Array(states);
        }
    }
    merged
}

/// Adds the following responses to the first one.
fn fold(answers: Vec<ReplicaAnswer>, add: impl Fn(&mut Value, Value)) -> Value {
    let mut merged: Option<Value> = None;
    for ReplicaAnswer { replica, mut value } in answers {
        name_keys(&mut value, &replica);
        match &mut merged {
            Some(into) => add(into, value),
            None => merged = Some(value),
        }
    }
    merged.unwrap_or_default()
}

/// Adds the replica to the keys of streams in a summary or a preview.
fn name_keys(value: &mut Value, replica: &str) {
    let groups = ["affected", "proxies"].into_iter().filter(|field| value[*field].is_array());
    for field in groups.collect::<Vec<_>>() {
        for group in value[field].as_array_mut().into_iter().flatten() {
            let proxies = group.get_mut("proxies").and_then(Value::as_array_mut);
            for proxy in proxies.into_iter().flatten() {
                proxy["key"] = key_at(&proxy["key"], replica);
            }
        }
    }
    let refusals = value.get_mut("proxies").and_then(|proxies| proxies.get_mut("refusals"));
    for refusal in refusals.and_then(Value::as_array_mut).into_iter().flatten() {
        refusal["key"] = key_at(&refusal["key"], replica);
    }
}

fn add(into: &mut Value, from: &Value, field: &str) {
    if let Some(more) = from[field].as_u64() {
        into[field] = json!(into[field].as_u64().unwrap_or(0) + more);
    }
}

fn keep_greatest(into: &mut Value, from: &Value, field: &str) {
    if from[field].as_u64() > into[field].as_u64() {
        into[field] = from[field].clone();
        let by = format!("{field}By");
        if from.get(&by).is_some() {
            into[by.as_str()] = from[by.as_str()].clone();
        }
    }
}

/// Appends the items of an array that it does not contain yet.
fn append(into: &mut Value, from: &Value, field: &str) {
    let more = from[field].as_array().cloned().unwrap_or_default();
    match into.get_mut(field).and_then(Value::as_array_mut) {
        Some(items) => {
            for item in more {
                if !items.contains(&item) {
                    items.push(item);
                }
            }
        }
        None if !more.is_empty() => into[field] = Value::Array(more),
        None => {}
    }
}

/// Returns the precedence of an object's state: states that need attention precede others, and the
/// state at a replica with proxies that use the object precedes the state at one without.
fn weight(state: &Value) -> u8 {
    match state.as_str() {
        Some("refused") => 6,
        Some("waiting") => 5,
        Some("partly") => 4,
        Some("inForce") => 3,
        Some("shadowed") => 2,
        Some("unused") => 1,
        _ => 0,
    }
}

/// Adds the proxies of another replica that an object affects.
fn add_object(into: &mut Value, row: &Value) {
    add(into, row, "proxies");
    match (weight(&into["state"]), weight(&row["state"])) {
        (own, other) if own < other => {
            into["state"] = row["state"].clone();
            into["reasons"] = row["reasons"].clone();
        }
        (own, other) if own == other => append(into, row, "reasons"),
        _ => {}
    }
}

fn reach(answers: Vec<ReplicaAnswer>) -> Value {
    rows(answers, &["kind", "namespace", "name"], |into, row| {
        for field in ["connected", "proxies", "acknowledged"] {
            add(into, row, field);
        }
        append(into, row, "rows");
        let latest = |one: &Value| one["transition"]["until"].as_str().unwrap_or("").to_owned();
        if row["transition"].is_object() {
            let until = latest(into).max(latest(row));
            let mut sum = json!({ "proxies": into["transition"]["proxies"], "until": until });
            add(&mut sum, &row["transition"], "proxies");
            into["transition"] = sum;
        }
        add_steps(into, row);
    })
}

/// Adds the deliveries of each change in another replica.
fn add_steps(into: &mut Value, row: &Value) {
    let others = items(row["told"].clone());
    let Some(own) = into.get_mut("told").and_then(Value::as_array_mut) else {
        if !others.is_empty() {
            into["told"] = Value::Array(others);
        }
        return;
    };
    for other in others {
        let near = own.iter_mut().min_by_key(|one| apart(one, &other));
        match near.filter(|one| apart(one, &other) <= SAME_CHANGE_MS) {
            Some(one) => {
                for field in ["proxies", "acknowledged", "refused", "waiting"] {
                    add(one, &other, field);
                }
            }
            None => own.push(other),
        }
    }
    own.sort_by_key(|one| milliseconds(&one["at"]));
}

/// Returns the time between two changes in milliseconds.
fn apart(one: &Value, other: &Value) -> i64 {
    milliseconds(&one["at"]).saturating_sub(milliseconds(&other["at"])).saturating_abs()
}

/// Merges the changes of all replicas by time. The same change in several replicas is one change
/// with the proxies of all of them; `replicas` names them. A change that the first replica does not
/// have, for example from before its start, names its `replica`, whose number it has. With
/// `is_since`, the first response contains only changes that the client does not have yet.
fn events(answers: Vec<ReplicaAnswer>, is_since: bool) -> Value {
    let mut answers = answers.into_iter();
    let Some(first) = answers.next() else { return json!([]) };
    let mut merged = items(first.value);
    for row in &mut merged {
        row["replicas"] = json!([first.replica]);
    }
    let oldest = merged.first().map(|row| milliseconds(&row["at"]));
    for ReplicaAnswer { replica, value } in answers {
        let mut taken = BTreeSet::new();
        let mut apart_from_others = Vec::new();
        for mut row in items(value) {
            let same = merged.iter().enumerate().filter(|(at, one)| {
                !taken.contains(at) && one.get("replica").is_none() && is_same_change(one, &row)
            });
            let nearest = same.min_by_key(|(_, one)| apart(one, &row)).map(|(at, _)| at);
            match nearest.and_then(|at| Some((at, merged.get_mut(at)?))) {
                Some((at, one)) => {
                    taken.insert(at);
                    add_change(one, &row, &replica);
                }
                None => {
                    row["replica"] = json!(replica);
                    row["replicas"] = json!([replica]);
                    apart_from_others.push(row);
                }
            }
        }
        // Replicas may combine changes differently. A combination that reached no proxy is not
        // shown a second time.
        let is_due = |row: &Value| {
            let is_earlier = oldest.is_none_or(|oldest| milliseconds(&row["at"]) < oldest);
            match is_earlier {
                true => !is_since,
                false => row["proxies"].as_u64().is_some_and(|proxies| proxies > 0),
            }
        };
        merged.extend(apart_from_others.into_iter().filter(is_due));
    }
    merged.sort_by_cached_key(|row| milliseconds(&row["at"]));
    Value::Array(merged)
}

/// Returns whether two replicas describe the same change.
fn is_same_change(one: &Value, other: &Value) -> bool {
    let is_equal = |field: &&str| one[field] == other[field];
    ["cause", "otherCauses", "effect"].iter().all(is_equal) && apart(one, other) <= SAME_CHANGE_MS
}

/// Returns the number of a change at another replica, from the list of that replica's changes.
pub(super) fn number_of(change: &Value, others: Value) -> Option<u64> {
    let same = items(others).into_iter().filter(|other| is_same_change(change, other));
    same.min_by_key(|other| apart(change, other))?["seq"].as_u64()
}

/// Adds the proxies of another replica to a change.
pub(super) fn add_change(into: &mut Value, row: &Value, replica: &str) {
    for field in ["proxies", "acknowledged", "refused", "waiting"] {
        add(into, row, field);
    }
    for field in ["refusedBy", "refusals", "steps"] {
        append(into, row, field);
    }
    if row["ms"].as_f64() > into["ms"].as_f64() {
        into["ms"] = row["ms"].clone();
    }
    if let Some(replicas) = into.get_mut("replicas").and_then(Value::as_array_mut) {
        replicas.push(json!(replica));
    }
}

/// Adds the records that are older than those of the first replica. They come from the replica with
/// the oldest record, and name it.
fn history(answers: Vec<ReplicaAnswer>) -> Value {
    let mut answers = answers.into_iter();
    let Some(first) = answers.next() else { return json!([]) };
    let own = items(first.value);
    let oldest = own.first().map_or(i64::MAX, |row| milliseconds(&row["at"]));
    let earlier = |ReplicaAnswer { replica, value }| {
        let rows = items(value).into_iter().filter(|row| milliseconds(&row["at"]) < oldest);
        let named = rows.map(|mut row| {
            row["replica"] = json!(replica);
            row
        });
        named.collect::<Vec<_>>()
    };
    let start = |rows: &Vec<Value>| rows.first().map_or(i64::MAX, |row| milliseconds(&row["at"]));
    let mut merged = answers.map(earlier).min_by_key(start).unwrap_or_default();
    merged.extend(own);
    Value::Array(merged)
}

fn add_summary(into: &mut Value, from: Value) {
    append(into, &from, "problems");
    let counts = ["connected", "refusing", "waiting"];
    let mut from = from["proxies"].clone();
    let own = &mut into["proxies"];
    counts.iter().for_each(|field| add(own, &from, field));
    let clusters = from["clusters"].as_object().cloned().unwrap_or_default();
    for (cluster, row) in clusters {
        if own["clusters"].get(&cluster).is_none() {
            own["clusters"][&cluster] = row;
            continue;
        }
        counts.iter().for_each(|field| add(&mut own["clusters"][&cluster], &row, field));
    }
    let mut refusals = items(own["refusals"].take());
    refusals.extend(items(from["refusals"].take()));
    refusals.truncate(REFUSALS_MAX);
    own["refusals"] = Value::Array(refusals);
}

/// Adds the proxies of another replica that would receive other resources. Proxies with the same
/// differences form one group.
fn add_preview(into: &mut Value, from: Value) {
    add(into, &from, "unaffected");
    add(into, &from, "notLookedAt");
    for row in items(from["objects"].clone()) {
        let is_it = |one: &&mut Value| OBJECT_KEY.iter().all(|field| one[field] == row[field]);
        if let Some(own) = into["objects"].as_array_mut().and_then(|own| own.iter_mut().find(is_it))
            && row.get("proxies").is_some()
        {
            add_object(own, &row);
        }
    }
    add_groups(into, from, "affected");
}

fn add_scope(into: &mut Value, from: Value) {
    add(into, &from, "notLookedAt");
    add_groups(into, from, "proxies");
}

/// Returns the fields of a group, except its proxies.
fn differences(group: &Value) -> impl Iterator<Item = (&String, &Value)> {
    group.as_object().into_iter().flatten().filter(|(name, _)| *name != "proxies")
}

fn add_groups(into: &mut Value, mut from: Value, field: &str) {
    let mut groups = items(into[field].take());
    for group in items(from[field].take()) {
        match groups.iter_mut().find(|one| differences(one).eq(differences(&group))) {
            Some(one) => append(one, &group, "proxies"),
            None => groups.push(group),
        }
    }
    into[field] = Value::Array(groups);
}

/// A stream that a proxy's name matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NamedStream {
    /// How exactly the name matches; a smaller number is more exact.
    pub(super) exactness: u64,
    pub(super) key: String,
    pub(super) id: String,
    pub(super) cluster: String,
    pub(super) workload: String,
    /// Whether the proxy receives its configuration from this stream.
    pub(super) is_of_configuration: bool,
    /// The time at which it was opened, in microseconds since the epoch.
    pub(super) opened: u64,
    /// The replica, or `None` for the replica that received the request.
    pub(super) replica: Option<String>,
}

/// [`NamedStream::exactness`] of a name that any pod of a Deployment matches.
pub(super) const OF_DEPLOYMENT: u64 = 2;
/// [`NamedStream::exactness`] of a prefix, which must be unique.
pub(super) const OF_PREFIX: u64 = 3;

/// Selects the stream of a name: among the most exact matches, the newest one with a configuration.
/// Returns `None` if nothing matches.
///
/// # Errors
/// The names of the proxies if a prefix matches several.
pub(super) fn select(streams: Vec<NamedStream>) -> Result<Option<NamedStream>, Vec<String>> {
    let Some(best) = streams.iter().map(|stream| stream.exactness).min() else {
        return Ok(None);
    };
    let mut matching: Vec<_> =
        streams.into_iter().filter(|stream| stream.exactness == best).collect();
    if best == OF_PREFIX {
        let names: BTreeSet<_> = matching
            .iter()
            .map(|stream| format!("{}@{}", stream.workload, stream.cluster))
            .collect();
        if names.len() > 1 {
            return Err(names.into_iter().collect());
        }
    }
    if best == OF_DEPLOYMENT {
        // Each request selects the same pod.
        let first = matching.iter().map(|one| (one.workload.clone(), one.cluster.clone())).min();
        matching.retain(|one| {
            first.as_ref().is_some_and(|(workload, cluster)| {
                *workload == one.workload && *cluster == one.cluster
            })
        });
    }
    Ok(matching.into_iter().max_by_key(|one| (one.is_of_configuration, one.opened)))
}

#[cfg(test)]
mod tests;
