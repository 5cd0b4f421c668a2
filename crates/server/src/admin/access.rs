//! Admin API: access policies and the statuses of configuration objects.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use serde::Deserialize;

use super::failure::{AdminFailure, AdminResult, bad, pretty};
use super::sources::{SourcesState, connected, current, served_to};
use strait_admin_api::{self as api, ObjectStatus};
use strait_ads::connections::{OpenStream, newest_by};
use strait_base::time::rfc3339;
use strait_explain::{
    AccessQuery, ConfigQuery, ConfigView, CredentialFault, access_snapshot, explain_policy, is_for,
    transition_by,
};
use strait_mesh::push::PushContext;
use strait_mesh::timeline::{Timeline, TimelineEntry};
use strait_model::Cause;
use strait_rules::access::{PolicyKind, PolicyName};
use strait_xds::secrets::SecretReport;

/// Query of `/debug/explain/policy`.
#[derive(Deserialize)]
pub(super) struct PolicyQuery {
    proxy: String,
    from: Option<String>,
    path: Option<String>,
    method: Option<String>,
    host: Option<String>,
    port: Option<u16>,
}

/// Explains which callers the workload of a proxy accepts.
pub(super) async fn explained(
    State(sources): SourcesState,
    query: Result<Query<PolicyQuery>, QueryRejection>,
) -> AdminResult {
    let Query(query) = query.map_err(|_| {
        bad("expected ?proxy=PROXY[&from=NS/SA][&path=P][&method=M][&host=H][&port=N]")
    })?;
    current(&sources)?;
    let connection = connected(&sources, &query.proxy)?;
    let (context, _) = served_to(&sources, connection.proxy())?;
    let PolicyQuery { from, path, method, host, port, .. } = query;
    let query = AccessQuery { from, path, method, host, port };
    let explanation = explain_policy(&context, connection.proxy(), &connection.network(), &query)
        .map_err(|text| AdminFailure(StatusCode::BAD_REQUEST, text))?;
    Ok(pretty(StatusCode::OK, &explanation))
}

/// Query that selects objects.
#[derive(Deserialize)]
pub(super) struct ObjectQuery {
    kind: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
}

/// Returns the status of configuration objects.
pub(super) async fn objects(
    State(sources): SourcesState,
    query: Result<Query<ObjectQuery>, QueryRejection>,
) -> AdminResult {
    let Query(query) = query.map_err(|_| bad("expected any of ?kind=K&namespace=N&name=M"))?;
    let context = current(&sources)?;
    let streams = sources.connections.list();
    let streams = newest_by(&streams, |stream| &*stream.proxy().id);
    let proxies: Vec<_> = streams.iter().map(|stream| stream.proxy()).collect();
    let reports = Arc::clone(&sources.reports.borrow());
    let context = reports.judged(&context);
    let credentials = streams.iter().flat_map(|stream| faults(stream)).collect();
    let view = ConfigView::new(&context, &reports, &proxies).with_credentials(credentials);
    let states: Vec<ObjectStatus> =
        view.states(&query.into()).into_iter().map(ObjectStatus::from).collect();
    Ok(pretty(StatusCode::OK, &states))
}

/// Returns the Secrets that a router has requested and can't receive.
pub(super) fn faults(stream: &OpenStream) -> Vec<CredentialFault> {
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

/// Returns the inputs of access decisions: the policies, and the workloads that they select.
pub(super) async fn snapshot(State(sources): SourcesState) -> AdminResult {
    let context = current(&sources)?;
    let counting = &context.configuration.access;
    let snapshot = access_snapshot(&context, counting, sources.trials.errors());
    Ok(pretty(StatusCode::OK, &snapshot))
}

/// Returns the proxies that a policy applies to, each with whether it has
/// acknowledged the current listeners, and the time until which their ports still accept the
/// previous mode.
pub(super) async fn reach(
    State(sources): SourcesState,
    query: Result<Query<ObjectQuery>, QueryRejection>,
) -> AdminResult {
    let Query(query) = query.map_err(|_| bad("expected ?kind=K&namespace=N&name=M of a policy"))?;
    // Read before the streams, so that their acknowledgements are at least this recent.
    let context = current(&sources)?;
    let streams = sources.connections.list();
    let named: Vec<PolicyName> = context.access.reports().map(|(name, _)| name.clone()).collect();
    let query = ConfigQuery::from(query);
    let named = named.into_iter().filter(|name| {
        query.selects(name.kind.as_str(), name.object.namespace.as_str(), &name.object.name)
    });
    // Pods of two clusters may have the same names and addresses.
    let streams = newest_by(&streams, |stream| (&stream.proxy().cluster, &*stream.proxy().id));
    let of_policy = |name: PolicyName| {
        let mut answer = of_policy(&context, &name, &streams);
        if name.kind == PolicyKind::Peer {
            answer.told = Some(progress(&sources.timeline, &name));
        }
        answer
    };
    let answer: Vec<_> = named.map(of_policy).collect();
    Ok(pretty(StatusCode::OK, &answer))
}

/// Returns the delivery of a policy's last change, and of the transition steps since then: to
/// servers the accepted modes, and to clients the mode to send. Changes from before this process
/// are unknown.
fn progress(timeline: &Timeline, name: &PolicyName) -> Vec<api::PolicyDelivery> {
    let is_of_kind = |cause: &Cause| cause.kind == name.kind.as_str();
    let is_it = |cause: &Cause| {
        let object = &name.object;
        is_of_kind(cause)
            && *cause.namespace == *object.namespace.as_str()
            && cause.name == object.name
    };
    // Steps name no policy, so steps of another policy's transition may be included.
    let is_step = |cause: &Cause| is_of_kind(cause) && cause.name.is_empty();
    let entries = timeline.since(0);
    let by = |entry: &Arc<TimelineEntry>, is: &dyn Fn(&Cause) -> bool| {
        !entry.restored && entry.causes.named_causes().iter().any(is)
    };
    let last = entries.iter().rposition(|entry| by(entry, &is_it));
    let since = last.and_then(|last| entries.get(last..)).unwrap_or_default();
    let of = |entry: &Arc<TimelineEntry>| {
        let counts = entry.delivery.counts();
        api::PolicyDelivery {
            seq: entry.seq,
            at: rfc3339(entry.at),
            proxies: counts.proxies,
            acknowledged: counts.acknowledged,
            refused: counts.refused,
            waiting: counts.waiting(),
        }
    };
    since.iter().filter(|entry| by(entry, &is_it) || by(entry, &is_step)).map(of).collect()
}

fn of_policy(
    context: &PushContext,
    name: &PolicyName,
    streams: &[&Arc<OpenStream>],
) -> api::PolicyReach {
    let own: Vec<_> =
        streams.iter().filter(|stream| is_for(context, name, stream.proxy())).collect();
    let rows: Vec<_> = own
        .iter()
        .map(|stream| api::PolicyProxy {
            proxy: stream.proxy().id.to_string(),
            cluster: stream.proxy().cluster.to_string(),
            acknowledged: stream.has_followed_policies(),
            nack: stream.summary().types.remove("lds").and_then(|lds| lds.nack),
        })
        .collect();
    let ends: Vec<_> =
        own.iter().filter_map(|stream| transition_by(context, name, stream.proxy())).collect();
    let last = ends.iter().max_by_key(|ends| ends.instant);
    api::PolicyReach {
        kind: name.kind.as_str().to_owned(),
        namespace: name.object.namespace.to_string(),
        name: name.object.name.to_string(),
        connected: streams.len(),
        proxies: rows.len(),
        acknowledged: rows.iter().filter(|row| row.acknowledged).count(),
        rows,
        told: None,
        transition: last
            .map(|last| api::PolicyTransition { proxies: ends.len(), until: last.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use strait_mesh::timeline::Delivery;
    use strait_model::{ClusterId, WorkloadKey};

    #[test]
    fn change_of_modes_reports_proxies_that_have_not_answered() {
        let timeline = Timeline::default();
        let enter = |namespace: &str, name: &str| {
            let (kind, cluster) = ("PeerAuthentication".into(), ClusterId::default());
            let cause = Cause { cluster, kind, namespace: namespace.into(), name: name.into() };
            let now = Instant::now();
            let delivery = Arc::new(Delivery::new(now));
            timeline.enter(1, cause.into(), String::new(), Arc::clone(&delivery), now);
            delivery
        };
        let name = PolicyName { kind: PolicyKind::Peer, object: WorkloadKey::new("shop", "mode") };
        let found = || {
            let counts = |one: &api::PolicyDelivery| {
                [one.seq, one.proxies.into(), one.acknowledged.into(), one.waiting.into()].map(Some)
            };
            progress(&timeline, &name).iter().map(counts).collect::<Vec<_>>()
        };
        assert!(found().is_empty(), "nothing has changed");
        let _settled = enter("", "");
        let _of_another = enter("pay", "mode");
        assert!(found().is_empty(), "the policy itself has not changed");
        let first = enter("shop", "mode");
        let client_of_first = first.receipt();
        assert_eq!(found(), [[3, 1, 0, 1].map(Some)]);
        let last = enter("shop", "mode");
        let (done, late) = (last.receipt(), last.receipt());
        done.acknowledge(&strait_model::testing::sidecar("a.shop", "east"), Instant::now());
        let _of_another = enter("shop", "other");
        let step = enter("", "");
        let client = step.receipt();
        assert_eq!(found(), [[4, 2, 1, 1].map(Some), [6, 1, 0, 1].map(Some)]);
        drop((client_of_first, late, client));
        assert_eq!(
            found(),
            [[4, 2, 1, 0].map(Some), [6, 1, 0, 0].map(Some)],
            "the proxies have disconnected"
        );
    }
}
