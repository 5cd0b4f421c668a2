//! Comparison of this replica's state with that of the other replicas.
//!
//! All replicas read the same sources, and each proxy receives the state of one replica. Therefore a
//! difference that lasts is a problem, also if the replica that answers is not the one at fault.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use tokio::time::sleep;
use xxhash_rust::xxh3::xxh3_64;

use super::across::{PeerAnswers, gather};
use super::failure::{AdminResult, pretty};
use super::other_sources;
use super::replica_problems::ReplicaProblem;
use super::sources::{Sources, SourcesState};
use crate::replicas::PeerRequest;
use strait_base::codes;
use strait_explain::code_of_warning;
use strait_sources::clusters::status::{ClusterState, ClusterStatus};

/// Path at which a replica shows its state to other replicas.
pub(super) const PATH: &str = "/replica/standing";
/// Interval of the comparisons.
const PACE: Duration = Duration::from_secs(5);
/// Maximum number of reported differences from one replica.
const DIFFERENCES_MAX: usize = 20;

/// The state of one replica, as far as it must be the same in all replicas.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ReplicaStanding {
    /// The version of the program. Digests of different versions are not compared.
    version: String,
    /// Whether the replica has read all sources.
    ready: bool,
    /// The state of each member by ID.
    clusters: BTreeMap<String, String>,
    /// The state of each other source by name.
    sources: BTreeMap<String, String>,
    /// A digest of each part of the settings by name.
    settings: BTreeMap<String, String>,
}

/// Compares this replica with the others until the process ends. The interval does not depend on the
/// size of the mesh, so that a difference is reported soon after it has lasted.
pub async fn follow(sources: Arc<Sources>) {
    loop {
        sleep(PACE).await;
        compare(&sources).await;
    }
}

/// Requests the state of the other replicas, and records the problems.
async fn compare(sources: &Sources) {
    let replicas = &sources.replicas;
    let others = replicas.others();
    let request = PeerRequest::get(PATH);
    let ((), gathered) = gather(replicas, others, request, std::future::ready(())).await;
    let own = standing(sources);
    let found = found(replicas.name(), &own, &gathered);
    sources.comparison.record(Instant::now(), found);
}

/// Returns the problems of the other replicas, each with its object.
fn found(
    name: &str,
    own: &ReplicaStanding,
    gathered: &PeerAnswers,
) -> Vec<(String, ReplicaProblem)> {
    let mut found = Vec::new();
    for (replica, text) in gathered.missing() {
        let code = &codes::REPLICA_MISSING;
        found.push((String::new(), ReplicaProblem { replica, code, text }));
    }
    // An older version does not have the path.
    for (replica, body) in gathered.successes() {
        let Ok(other) = serde_json::from_slice(body) else { continue };
        let differences = differences((name, own), (replica, &other));
        let of = |(object, text)| {
            let code = &codes::REPLICAS_DIFFER;
            (object, ReplicaProblem { replica: replica.to_owned(), code, text })
        };
        found.extend(differences.into_iter().map(of));
    }
    found
}

/// Returns the objects that differ between two replicas, each with both states. The text is the
/// same in both replicas.
fn differences(
    one: (&str, &ReplicaStanding),
    other: (&str, &ReplicaStanding),
) -> Vec<(String, String)> {
    let ((first, a), (second, b)) = if one.0 <= other.0 { (one, other) } else { (other, one) };
    // A replica that starts has not read everything.
    if !a.ready || !b.ready {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut compare = |kind: &str, a: &BTreeMap<String, String>, b: &BTreeMap<_, String>, none| {
        let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
        for name in names {
            let state = |of: &BTreeMap<String, String>| of.get(name).cloned();
            let (in_a, in_b) = (state(a), state(b));
            if in_a != in_b {
                let [in_a, in_b] =
                    [in_a, in_b].map(|state| state.unwrap_or_else(|| String::from(none)));
                let object = format!("{kind} {name}");
                let text = format!("{object} is {in_a} in {first}, and {in_b} in {second}");
                found.push((object, text));
            }
        }
    };
    compare("cluster", &a.clusters, &b.clusters, "not a member");
    compare("source", &a.sources, &b.sources, "unknown");
    if a.version == b.version {
        for (name, digest) in &a.settings {
            if b.settings.get(name).is_some_and(|other| other != digest) {
                let text = format!("{name} of {first} differs from that of {second}");
                found.push((name.clone(), text));
            }
        }
    }
    let omitted = found.len().saturating_sub(DIFFERENCES_MAX);
    if omitted > 0 {
        found.truncate(DIFFERENCES_MAX);
        let text = format!("{omitted} more differences between {first} and {second}");
        found.push(("more".to_owned(), text));
    }
    found
}

/// Returns the state of this replica, for another replica.
pub(super) async fn show(State(sources): SourcesState) -> AdminResult {
    Ok(pretty(StatusCode::OK, &standing(&sources)))
}

fn standing(sources: &Sources) -> ReplicaStanding {
    let mut rows: BTreeMap<String, String> = other_sources::rows(&sources.source_statuses)
        .into_iter()
        .map(|row| {
            let warnings = row.warnings.iter().map(|text| code_of_warning(&row.kind, text));
            let problems = warnings.filter(|(_, is_problem)| *is_problem).map(|(code, _)| code.id);
            let own = row.code.as_deref().into_iter();
            (row.name.clone(), with_codes(row.state.as_str(), own.chain(problems)))
        })
        .collect();
    let problems = sources.mesh_problems.borrow().clone();
    let mesh = problems.iter().map(|problem| problem.code);
    rows.insert("mesh config".to_owned(), with_codes("active", mesh));
    let of_file =
        |problem: &Option<String>| with_codes("active", problem.iter().map(|_| codes::POLICY.id));
    rows.insert("policy".to_owned(), of_file(&sources.policy.problem.borrow()));
    rows.insert("members".to_owned(), of_file(&sources.members.problem.borrow()));
    let digest = |text: String| format!("{:016x}", xxh3_64(text.as_bytes()));
    let policy = digest(format!("{:?}", sources.policy.value.borrow()));
    let members = digest(format!("{:?}", sources.members.value.borrow()));
    let statuses = Arc::clone(&sources.clusters.borrow());
    ReplicaStanding {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ready: sources.readiness.borrow().ready,
        clusters: statuses.iter().map(cluster).collect(),
        sources: rows,
        settings: [("the policy".to_owned(), policy), ("the members file".to_owned(), members)]
            .into(),
    }
}

fn cluster(status: &ClusterStatus) -> (String, String) {
    // A Secret whose ID another Secret has is a row of its own.
    let id = match status.state {
        ClusterState::Conflict => {
            format!("{} ({})", status.id, status.secret.as_deref().unwrap_or_default())
        }
        _ => status.id.clone(),
    };
    let code = status.reason.as_deref().and_then(codes::named).map(|code| code.id);
    (id, with_codes(status.state.as_str(), code.into_iter()))
}

/// Appends the codes to a state: `stale (STR0301)`.
fn with_codes<'a>(state: &str, codes: impl Iterator<Item = &'a str>) -> String {
    let codes: BTreeSet<&str> = codes.collect();
    match codes.is_empty() {
        true => state.to_owned(),
        false => format!("{state} ({})", codes.into_iter().collect::<Vec<_>>().join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(clusters: &[(&str, &str)], policy: &str) -> ReplicaStanding {
        let owned = |(name, state): &(&str, &str)| ((*name).to_owned(), (*state).to_owned());
        ReplicaStanding {
            ready: true,
            clusters: clusters.iter().map(owned).collect(),
            sources: [("policy".to_owned(), with_codes("active", std::iter::empty()))].into(),
            settings: [("the policy".to_owned(), policy.to_owned())].into(),
            ..ReplicaStanding::default()
        }
    }

    fn texts(one: &ReplicaStanding, other: &ReplicaStanding) -> Vec<String> {
        let found = differences(("a", one), ("b", other));
        let texts: Vec<String> = found.into_iter().map(|(_, text)| text).collect();
        let mirrored = differences(("b", other), ("a", one));
        assert_eq!(texts, mirrored.into_iter().map(|(_, text)| text).collect::<Vec<_>>());
        texts
    }

    #[test]
    fn differences_name_the_object_and_both_replicas() {
        let well = replica(&[("c1", "live"), ("c2", "live")], "1");
        assert_eq!(texts(&well, &well.clone()), [""; 0]);
        assert_eq!(
            texts(&well, &replica(&[("c1", "stale (STR0301)")], "2")),
            [
                "cluster c1 is live in a, and stale (STR0301) in b",
                "cluster c2 is live in a, and not a member in b",
                "the policy of a differs from that of b",
            ]
        );
        let newer = ReplicaStanding {
            version: "2".into(),
            ..replica(&[("c1", "live"), ("c2", "live")], "2")
        };
        assert_eq!(texts(&well, &newer), [""; 0], "digests of two versions");
        let starting = ReplicaStanding { ready: false, ..ReplicaStanding::default() };
        assert_eq!(texts(&well, &starting), [""; 0]);
        let many: Vec<String> = (0..99).map(|number| format!("c{number}")).collect();
        let many: Vec<(&str, &str)> = many.iter().map(|id| (&**id, "live")).collect();
        let found = texts(&replica(&many, "1"), &replica(&[], "1"));
        assert_eq!((found.len(), &*found[20]), (21, "79 more differences between a and b"));
    }
}
