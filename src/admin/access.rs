//! What the admin API answers of access policies, and of the objects of the mesh's configuration.

use std::collections::BTreeMap;
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
    AccessSnapshot, AskedRequest, ConfigQuery, ConfigView, CredentialFault, explain_policy, is_for,
    transition_by,
};
use crate::push::PushContext;
use crate::xds::connections::OpenStream;
use crate::xds::secrets::SecretReport;

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
    let explanation = explain_policy(&context, connection.proxy(), &connection.network(), &asked)
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
    let credentials = streams.iter().flat_map(|stream| faults(stream)).collect();
    let view = ConfigView::new(&context, &reports, &proxies).with_credentials(credentials);
    Ok(pretty(StatusCode::OK, &view.states(&query.into())))
}

/// What a router has asked for and can't be given.
fn faults(stream: &OpenStream) -> Vec<CredentialFault> {
    let fault = |report: SecretReport| {
        let router = Arc::clone(&stream.proxy().id);
        let SecretReport { name, sent, trouble } = report;
        Some(CredentialFault { router, name, has_old: sent, fact: trouble?.fact })
    };
    stream.secret_reports().into_iter().filter_map(fault).collect()
}

impl From<ObjectQuery> for ConfigQuery {
    fn from(ObjectQuery { kind, namespace, name }: ObjectQuery) -> Self {
        Self { kind, namespace, name }
    }
}

/// Of each proxy the newest stream.
fn newest(streams: &[Arc<OpenStream>]) -> Vec<&OpenStream> {
    newest_by(streams, |stream| &*stream.proxy().id)
}

/// The newest stream of all of which this is the same.
fn newest_by<'a, K: Ord>(
    streams: &'a [Arc<OpenStream>],
    key: impl Fn(&'a OpenStream) -> K,
) -> Vec<&'a OpenStream> {
    // They are listed from the oldest.
    let newest: BTreeMap<K, &OpenStream> =
        streams.iter().map(|stream| (key(stream), &**stream)).collect();
    newest.into_values().collect()
}

/// What decides about access: the policies, and the workloads that they select.
pub(super) async fn snapshot(State(sources): SourcesState) -> AdminResult {
    let context = current(&sources)?;
    let counting = &context.configuration.access;
    let snapshot = AccessSnapshot::of(&context, counting, sources.trials.errors());
    Ok(pretty(StatusCode::OK, &snapshot))
}

/// The proxies of this replica for which a policy is, each with whether it has acknowledged the listeners that hold it as it is
/// now; and until when ports that go to what it says take what they took before.
pub(super) async fn reach(
    State(sources): SourcesState,
    query: Result<Query<ObjectQuery>, QueryRejection>,
) -> AdminResult {
    let Query(query) =
        query.map_err(|_| bad("a policy is asked for by ?kind=K&namespace=N&name=M"))?;
    // Before the streams are looked at: what they have followed is at least this.
    let context = current(&sources)?;
    let streams = sources.connections.list();
    let named: Vec<PolicyName> = context.access.reports().map(|(name, _)| name.clone()).collect();
    let query = ConfigQuery::from(query);
    let named = named.into_iter().filter(|name| {
        query.selects(name.kind.as_str(), name.object.namespace.as_str(), &name.object.name)
    });
    // Pods of two clusters may have the same names and addresses.
    let streams = newest_by(&streams, |stream| (&stream.proxy().cluster, &*stream.proxy().id));
    let answer: Vec<_> = named.map(|name| of_policy(&context, &name, &streams)).collect();
    Ok(pretty(StatusCode::OK, &answer))
}

fn of_policy(context: &PushContext, name: &PolicyName, streams: &[&OpenStream]) -> Value {
    let own: Vec<_> =
        streams.iter().filter(|stream| is_for(context, name, stream.proxy())).collect();
    let rows: Vec<_> = own
        .iter()
        .map(|stream| {
            json!({
                "proxy": stream.proxy().id,
                "cluster": stream.proxy().cluster,
                "acknowledged": stream.has_followed_policies(),
                "nack": stream.summary()["types"]["lds"]["nack"],
            })
        })
        .collect();
    let done = rows.iter().filter(|row| row["acknowledged"] == true).count();
    let mut answer = json!({
        "kind": name.kind.as_str(),
        "namespace": name.object.namespace.as_str(),
        "name": name.object.name,
        "connected": streams.len(),
        "proxies": rows.len(),
        "acknowledged": done,
        "rows": rows,
    });
    let ends: Vec<_> =
        own.iter().filter_map(|stream| transition_by(context, name, stream.proxy())).collect();
    if let Some(last) = ends.iter().max_by_key(|ends| ends.instant) {
        answer["transition"] = json!({ "proxies": ends.len(), "until": last.to_string() });
    }
    answer
}
