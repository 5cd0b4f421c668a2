//! `/debug/summary`: a short form of the data that a map of the mesh needs.
//!
//! Other responses contain the same data row by row. With a hundred open maps, the server would
//! render and send every row to each of them every other second. Here proxies are counted by
//! cluster, and only the first refusals are listed.

use axum::extract::State;
use axum::http::StatusCode;

use super::failure::{AdminResult, pretty};
use super::merge::REFUSALS_MAX;
use super::replica_problems::ReplicaProblem;
use super::sources::{Sources, SourcesState, current};
use super::{connection_problems, hold, other_sources, rollout, views};
use strait_admin_api as api;
use strait_ads::connections::{OpenStream, ProxyStanding};
use strait_explain::ConfigReports;
use strait_mesh::push::PushContext;
use strait_rules::access::PolicyState;

/// Maximum number of listed unreadable objects.
const NAMED: usize = 40;

/// Returns the numbers of proxies, problems and objects that the map of the page shows.
pub(super) async fn summary(State(sources): SourcesState) -> AdminResult {
    let context = current(&sources)?;
    let reports = sources.reports.borrow().clone();
    let hold = sources.hold.borrow().clone();
    let identity = sources.metrics.identity.borrow().clone();
    let answer = api::Summary {
        proxies: proxies(&sources),
        mesh: api::MeshInShort {
            held: hold::in_short(&sources, &hold),
            hold_lost: hold.lost.as_deref().map(str::to_owned),
            problems: views::mesh_problems(&sources.mesh_problems.borrow()),
        },
        problems: problems(&sources),
        policy: api::PolicyInShort { problem: sources.policy.problem.borrow().clone() },
        sources: other_sources::in_short(&sources.source_statuses),
        certificates: views::certificates(&identity),
        objects: objects(&context, &reports),
        rollout: rollout::in_short(&sources),
        missing_replicas: Vec::new(),
    };
    Ok(pretty(StatusCode::OK, &answer))
}

/// Returns the problems of connections to proxies, and the problems of other replicas.
fn problems(sources: &Sources) -> Vec<api::Problem> {
    let mut found = connection_problems::rows(sources);
    found.extend(sources.comparison.problems().iter().map(ReplicaProblem::row));
    found
}

fn proxies(sources: &Sources) -> api::ProxyNumbers {
    let mut answer = api::ProxyNumbers::default();
    let mut all = api::ProxyCounts::default();
    let streams = sources.connections.list();
    for stream in streams.iter().filter(|stream| !stream.is_of_agent()) {
        let standing = stream.standing();
        count(&mut all, standing);
        let cluster = stream.proxy().cluster.to_string();
        count(answer.clusters.entry(cluster).or_default(), standing);
        if standing == ProxyStanding::Refuses && answer.refusals.len() < REFUSALS_MAX {
            answer.refusals.push(refusal(stream));
        }
    }
    let api::ProxyCounts { connected, refusing, waiting } = all;
    api::ProxyNumbers { connected, refusing, waiting, ..answer }
}

fn count(counts: &mut api::ProxyCounts, standing: ProxyStanding) {
    counts.connected += 1;
    match standing {
        ProxyStanding::InSync => {}
        ProxyStanding::Waits => counts.waiting += 1,
        ProxyStanding::Refuses => counts.refusing += 1,
    }
}

fn refusal(stream: &OpenStream) -> api::RefusingProxy {
    let proxy = stream.proxy();
    let types = stream.refusals().into_iter();
    api::RefusingProxy {
        key: stream.key(),
        id: proxy.id.to_string(),
        cluster: proxy.cluster.to_string(),
        types: types.map(|(kind, error)| (kind.to_owned(), error)).collect(),
    }
}

/// Returns the configuration objects that can't be read, and access policies with unreadable parts.
fn objects(context: &PushContext, reports: &ConfigReports) -> api::FaultyObjects {
    let row = |(kind, namespace, name): (&str, &str, &str),
               state: &str,
               (code, path, text): FirstProblem<'_>| api::FaultyObject {
        kind: kind.to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        state: state.to_owned(),
        code: code.map(str::to_owned),
        path: path.to_owned(),
        text: text.to_owned(),
    };
    let traffic = reports.traffic.iter().filter(|(_, report)| report.state.refused);
    let traffic = traffic.map(|(key, report)| {
        let first = report.state.reasons.first();
        let first =
            first.map(|one| (Some(one.code.id), &*one.path, &*one.text)).unwrap_or_default();
        row((&key.kind, &key.namespace, &key.name), "refused", first)
    });
    let access = context.access.reports().filter_map(|(name, report)| {
        let state = match report.state {
            PolicyState::InForce => return None,
            PolicyState::Partly => "partly",
            PolicyState::Refused => "refused",
        };
        let first = report.faults.first();
        let first =
            first.map(|one| (Some(one.code.id), &*one.path, &*one.text)).unwrap_or_default();
        let object = (name.kind.as_str(), name.object.namespace.as_str(), &*name.object.name);
        Some(row(object, state, first))
    });
    let mut first: Vec<_> = traffic.chain(access).collect();
    let faulty = first.len();
    first.truncate(NAMED);
    api::FaultyObjects { faulty, first }
}

/// The code, the path and the text of an object's first problem.
type FirstProblem<'a> = (Option<&'static str>, &'a str, &'a str);
