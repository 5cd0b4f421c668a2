//! `/debug/summary`: a short form of the data that a map of the mesh needs.
//!
//! Other responses contain the same data row by row. With a hundred open maps, the server would
//! render and send every row to each of them every other second. Here proxies are counted by
//! cluster, and only the first refusals are listed.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;
use serde_json::{Value, json};

use super::failure::{AdminResult, pretty};
use super::merge::REFUSALS_MAX;
use super::sources::{Sources, SourcesState, current};
use super::{hold, rollout, views};
use strait_ads::connections::{OpenStream, ProxyStanding};
use strait_explain::ConfigReports;
use strait_mesh::push::PushContext;
use strait_model::ClusterId;
use strait_rules::access::PolicyState;

/// Maximum number of listed unreadable objects.
const NAMED: usize = 40;

/// Number of connected proxies by status.
#[derive(Debug, Default, Clone, Serialize)]
struct ProxyCounts {
    connected: usize,
    refusing: usize,
    waiting: usize,
}

impl ProxyCounts {
    fn add(&mut self, standing: ProxyStanding) {
        self.connected += 1;
        match standing {
            ProxyStanding::InSync => {}
            ProxyStanding::Waits => self.waiting += 1,
            ProxyStanding::Refuses => self.refusing += 1,
        }
    }
}

/// Returns the numbers of proxies, problems and objects that the map of the page shows.
pub(super) async fn summary(State(sources): SourcesState) -> AdminResult {
    let context = current(&sources)?;
    let reports = sources.reports.borrow().clone();
    let held = sources.hold.borrow().clone();
    let mesh = json!({
        "held": hold::in_short(&sources, &held),
        "holdLost": held.lost,
        "problems": views::mesh_problems(&sources.mesh_problems.borrow()),
    });
    let policy = sources.policy.problem.borrow().clone();
    let identity = sources.metrics.identity.borrow().clone();
    Ok(pretty(
        StatusCode::OK,
        &json!({
            "proxies": proxies(&sources),
            "mesh": mesh,
            "policy": { "problem": policy },
            "sources": sources.source_statuses.show_in_short(),
            "certificates": views::certificates(&identity),
            "objects": objects(&context, &reports),
            "rollout": rollout::in_short(&sources),
        }),
    ))
}

fn proxies(sources: &Sources) -> Value {
    let mut all = ProxyCounts::default();
    let mut by_cluster: BTreeMap<ClusterId, ProxyCounts> = BTreeMap::new();
    let mut refusals = Vec::new();
    for stream in sources.connections.list() {
        let standing = stream.standing();
        all.add(standing);
        by_cluster.entry(stream.proxy().cluster.clone()).or_default().add(standing);
        if standing == ProxyStanding::Refuses && refusals.len() < REFUSALS_MAX {
            refusals.push(refusal(&stream));
        }
    }
    let mut answer = json!(all);
    answer["clusters"] = json!(by_cluster);
    answer["refusals"] = Value::Array(refusals);
    answer
}

fn refusal(stream: &OpenStream) -> Value {
    let proxy = stream.proxy();
    json!({ "key": stream.key(), "id": proxy.id, "cluster": proxy.cluster, "types": stream.refusals() })
}

/// Returns the configuration objects that can't be read, and access policies with unreadable parts.
fn objects(context: &PushContext, reports: &ConfigReports) -> Value {
    let row = |(kind, namespace, name): (&str, &str, &str),
               state,
               (code, path, text): FirstProblem<'_>| json!({ "kind": kind, "namespace": namespace, "name": name, "state": state, "code": code, "path": path, "text": text });
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
    let faulty: Vec<Value> = traffic.chain(access).collect();
    json!({ "faulty": faulty.len(), "first": faulty.iter().take(NAMED).collect::<Vec<_>>() })
}

/// The code, the path and the text of an object's first problem.
type FirstProblem<'a> = (Option<&'static str>, &'a str, &'a str);
