//! What the admin API answers of access policies, and of the objects of the mesh's configuration.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::failure::{AdminFailure, AdminResult, bad, pretty};
use super::sources::{SourcesState, connected, current, served_to};
use crate::access::PolicyName;
use crate::explain::{
    AccessSnapshot, AskedRequest, ConfigQuery, ConfigView, explain_policy, is_for,
};
use crate::push::PushContext;
use crate::xds::connections::OpenStream;

/// A question about a request.
#[derive(Deserialize)]
pub(super) struct PolicyQuery {
    proxy: String,
    from: Option<String>,
    path: Option<String>,
    method: Option<String>,
    host: Option<String>,
    port: Option<u16>,
}

/// Who may call the workload of a proxy.
pub(super) async fn explained(
    State(sources): SourcesState,
    query: Result<Query<PolicyQuery>, QueryRejection>,
) -> AdminResult {
    let Query(query) = query.map_err(|_| {
        bad("an explanation is asked for by ?proxy=PROXY[&from=NS/SA][&path=P][&method=M][&host=H][&port=N]")
    })?;
    current(&sources)?;
    let connection = connected(&sources, &query.proxy)?;
    let (context, _) = served_to(&sources, connection.proxy())?;
    let PolicyQuery { from, path, method, host, port, .. } = query;
    let asked = AskedRequest { from, path, method, host, port };
    let explanation = explain_policy(&context, connection.proxy(), &asked)
        .map_err(|text| AdminFailure(StatusCode::BAD_REQUEST, text))?;
    Ok(pretty(StatusCode::OK, &explanation))
}

/// Which objects are asked for.
#[derive(Deserialize)]
pub(super) struct ObjectQuery {
    kind: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
}

/// What becomes of the objects of the mesh's configuration.
pub(super) async fn objects(
    State(sources): SourcesState,
    query: Result<Query<ObjectQuery>, QueryRejection>,
) -> AdminResult {
    let Query(query) = query
        .map_err(|_| bad("objects are asked for by ?kind=K&namespace=N&name=M, or any of these"))?;
    let context = current(&sources)?;
    let streams = sources.connections.list();
    let streams = newest(&streams);
    let proxies: Vec<_> = streams.iter().map(|stream| stream.proxy()).collect();
    let reports = Arc::clone(&sources.reports.borrow());
    let context = reports.judged(&context);
    let view = ConfigView::new(&context, &reports, &proxies);
    Ok(pretty(StatusCode::OK, &view.states(&query.into())))
}

impl From<ObjectQuery> for ConfigQuery {
    fn from(ObjectQuery { kind, namespace, name }: ObjectQuery) -> Self {
        Self { kind, namespace, name }
    }
}

/// Of each proxy the newest stream.
fn newest(streams: &[Arc<OpenStream>]) -> Vec<&OpenStream> {
    let mut of = std::collections::BTreeMap::new();
    for stream in streams {
        // They are listed from the oldest.
        of.insert(&*stream.proxy().id, &**stream);
    }
    of.into_values().collect()
}

/// What decides about access: the policies, and the workloads that they select.
pub(super) async fn snapshot(State(sources): SourcesState) -> AdminResult {
    let context = current(&sources)?;
    let reports = Arc::clone(&sources.reports.borrow());
    Ok(pretty(StatusCode::OK, &AccessSnapshot::of(&context, &reports.objects)))
}

/// The proxies for which a policy is, each with the versions of listeners that it was sent and has acknowledged.
pub(super) async fn reach(
    State(sources): SourcesState,
    query: Result<Query<ObjectQuery>, QueryRejection>,
) -> AdminResult {
    let Query(query) =
        query.map_err(|_| bad("a policy is asked for by ?kind=K&namespace=N&name=M"))?;
    let context = current(&sources)?;
    let streams = sources.connections.list();
    let named: Vec<PolicyName> = context.access.reports().map(|(name, _)| name.clone()).collect();
    let query = ConfigQuery::from(query);
    let named = named.into_iter().filter(|name| {
        query.selects(name.kind.as_str(), name.object.namespace.as_str(), &name.object.name)
    });
    let answer: Vec<_> = named.map(|name| of_policy(&context, &name, &newest(&streams))).collect();
    Ok(pretty(StatusCode::OK, &answer))
}

fn of_policy(context: &PushContext, name: &PolicyName, streams: &[&OpenStream]) -> Value {
    let own = streams.iter().filter(|stream| is_for(context, name, stream.proxy()));
    let rows: Vec<_> = own
        .map(|stream| {
            let summary = stream.summary();
            let listeners = &summary["types"]["lds"];
            let acknowledged =
                !listeners["sent"].is_null() && listeners["sent"] == listeners["acked"];
            json!({
                "proxy": stream.proxy().id,
                "acknowledged": acknowledged,
                "nack": listeners["nack"],
            })
        })
        .collect();
    let done = rows.iter().filter(|row| row["acknowledged"] == true).count();
    json!({
        "kind": name.kind.as_str(),
        "namespace": name.object.namespace.as_str(),
        "name": name.object.name,
        "proxies": rows.len(),
        "acknowledged": done,
        "rows": rows,
    })
}
