//! `/debug/summary`: what a map of the mesh needs to know of what is many, or mostly says nothing.
//!
//! Other answers have all of it, row by row; a hundred pages that are open on the map would have the server write each row, and carry
//! it to each of them, every other second. Proxies are counted, by cluster, and of what is refused the first are named.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;
use serde_json::{Value, json};

use super::failure::{AdminResult, pretty};
use super::sources::{Sources, SourcesState, current};
use super::{hold, rollout, views};
use strait_ads::connections::{OpenStream, ProxyStanding};
use strait_explain::ConfigReports;
use strait_mesh::push::PushContext;
use strait_model::ClusterId;
use strait_rules::access::PolicyState;

/// How many proxies that refuse something are named, and how many objects that can't be read.
const NAMED: usize = 40;

/// How many proxies are connected, and how they fare.
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

/// What there is to say in short.
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
        if standing == ProxyStanding::Refuses && refusals.len() < NAMED {
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

/// The objects of the mesh's configuration that can't be read, and access policies of which parts can't.
fn objects(context: &PushContext, reports: &ConfigReports) -> Value {
    let row = |(kind, namespace, name): (&str, &str, &str),
               state,
               (code, path, text): FirstProblem<'_>| json!({ "kind": kind, "namespace": namespace, "name": name, "state": state, "code": code, "path": path, "text": text });
    let traffic = reports.traffic.iter().filter(|(_, report)| report.state.refused);
    let traffic = traffic.map(|(key, report)| {
        let told = report.state.reasons.first();
        let told = told.map(|one| (Some(one.code.id), &*one.path, &*one.text)).unwrap_or_default();
        row((&key.kind, &key.namespace, &key.name), "refused", told)
    });
    let access = context.access.reports().filter_map(|(name, report)| {
        let state = match report.state {
            PolicyState::InForce => return None,
            PolicyState::Partly => "partly",
            PolicyState::Refused => "refused",
        };
        let told = report.faults.first();
        let told = told.map(|one| (Some(one.code.id), &*one.path, &*one.text)).unwrap_or_default();
        let object = (name.kind.as_str(), name.object.namespace.as_str(), &*name.object.name);
        Some(row(object, state, told))
    });
    let faulty: Vec<Value> = traffic.chain(access).collect();
    json!({ "faulty": faulty.len(), "first": faulty.iter().take(NAMED).collect::<Vec<_>>() })
}

/// The code, the place and the text of what is said first of an object.
type FirstProblem<'a> = (Option<&'static str>, &'a str, &'a str);
