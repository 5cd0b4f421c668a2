//! Admin API: the route of a request.

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;

use super::access::faults;
use super::failure::{AdminFailure, AdminResult, bad, pretty};
use super::sources::{SourcesState, connected, current, served_to};
use strait_admin_api::{self as api, Access, PolicyExplanation};
use strait_ads::connections::OpenStream;
use strait_base::codes;
use strait_envoy::{
    ProbedRequest, ProxyConfig, RequestDestination, RequestDirection, RequestWalk, RuleName,
};
use strait_explain::{AccessQuery, CredentialFault, explain_policy};
use strait_mesh::push::PushContext;
use strait_mesh::push::proxy::{inbound_targets, served_in};
use strait_model::Proxy;

const USAGE: &str = "expected ?proxy=PROXY&method=METHOD&url=URL[&header=K:V]…[&sni=S][&from=NS/SA][&httpProxy=PORT]";

/// Query about a request.
#[derive(Default)]
struct WalkQuery {
    proxy: Option<String>,
    method: Option<String>,
    url: Option<String>,
    headers: Vec<String>,
    sni: Option<String>,
    from: Option<String>,
    http_proxy: Option<String>,
}

impl WalkQuery {
    fn read(pairs: Vec<(String, String)>) -> Result<Self, AdminFailure> {
        let mut query = Self::default();
        for (name, value) in pairs {
            match &*name {
                "proxy" => query.proxy = Some(value),
                "method" => query.method = Some(value),
                "url" => query.url = Some(value),
                "header" => query.headers.push(value),
                "sni" => query.sni = Some(value),
                "from" => query.from = Some(value),
                "httpProxy" => query.http_proxy = Some(value),
                _ => return Err(bad(USAGE)),
            }
        }
        Ok(query)
    }
}

/// Returns how a request passes through the configuration of a proxy.
pub(super) async fn request_path(
    State(sources): SourcesState,
    pairs: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> AdminResult {
    let Query(pairs) = pairs.map_err(|_| bad(USAGE))?;
    let query = WalkQuery::read(pairs)?;
    let (Some(name), Some(method), Some(url)) = (&query.proxy, &query.method, &query.url) else {
        return Err(bad(USAGE));
    };
    current(&sources)?;
    let stream = connected(&sources, name)?;
    let proxy = stream.proxy();
    let (context, cache) = served_to(&sources, proxy)?;
    let invalid = |text: String| AdminFailure(StatusCode::BAD_REQUEST, text);
    let request = ProbedRequest::parse(method, url, &query.headers, query.sni.as_deref());
    let request = request.map_err(invalid)?;
    let request = request.by_proxy(by_proxy(&query, proxy).map_err(invalid)?);
    if proxy.is_proxyless() && query.from.is_some() {
        return Err(invalid(format!(
            "{} is a proxyless gRPC server, which routes no inbound calls; use `strait explain policy` to check whether it accepts a call",
            proxy.id
        )));
    }
    // A gateway only serves requests of other workloads.
    let from = query.from.filter(|_| proxy.kind.serves_one_workload());
    let access = from.map(|from| judged(&context, &stream, &request, from));
    let access = access.transpose().map_err(invalid)?;
    let direction = match &access {
        None => RequestDirection::Out,
        Some(access) if access.mode.value == "DISABLE" => RequestDirection::InAsItIs,
        Some(_) => RequestDirection::InByMtls,
    };
    let (network, whereabouts) = stream.place();
    let config = ProxyConfig::new(&context, proxy, network, &cache).at(whereabouts);
    let mut walk = config.walk(&request, direction);
    walk.name_clusters(&context, &proxy.cluster);
    if proxy.kind.is_gateway() {
        secure(&mut walk, faults(&stream));
    }
    if let Some(access) = access {
        guard(&mut walk, &access);
    }
    walk.notes.extend(refusals(&stream));
    Ok(pretty(StatusCode::OK, &explanation(walk)))
}

fn explanation(walk: RequestWalk) -> api::RouteExplanation {
    let destination = |to: RequestDestination| {
        let RequestDestination { cluster, subset, weight, endpoints, known } = to;
        api::RouteDestination { cluster, subset, weight, endpoints, known }
    };
    let lost = walk.lost.into_iter();
    let lost = lost.map(|one| api::LostRule { rule: rule(one.rule), reason: one.reason });
    api::RouteExplanation {
        proxy: walk.proxy,
        listener: walk.listener,
        chain: walk.chain,
        route: walk.route,
        virtual_host: walk.virtual_host,
        rule: walk.rule.map(rule),
        lost: lost.collect(),
        destinations: walk.destinations.into_iter().map(destination).collect(),
        answer: walk.answer,
        location: walk.location,
        outcome: walk.outcome,
        notes: walk.notes,
    }
}

fn rule(name: RuleName) -> api::RouteRule {
    let RuleName { kind, namespace, name, cluster, index, path, via } = name;
    let via = via.map(|via| Box::new(rule(*via)));
    api::RouteRule { kind: kind.to_owned(), namespace, name, cluster, index, path, via }
}

/// Returns the port of the proxy to which the request is sent explicitly, if any.
fn by_proxy(query: &WalkQuery, proxy: &Proxy) -> Result<Option<u16>, String> {
    let Some(text) = &query.http_proxy else { return Ok(None) };
    let port = text.parse().ok().filter(|port| *port != 0);
    let port = port.ok_or_else(|| format!("httpProxy: {text:?} is not a port from 1 to 65535"))?;
    if query.from.is_some() {
        return Err("httpProxy applies to requests of the proxy's own workload, and from to requests of others; don't combine them".into());
    }
    if !proxy.kind.serves_one_workload() || proxy.is_proxyless() {
        let text =
            format!("{} is not a sidecar; only sidecars have HTTP_PROXY listeners", proxy.id);
        return Err(text);
    }
    Ok(Some(port))
}

/// Evaluates whether the workload accepts the request.
fn judged(
    context: &PushContext,
    stream: &OpenStream,
    request: &ProbedRequest,
    from: String,
) -> Result<PolicyExplanation, String> {
    let proxy = stream.proxy();
    let served = served_in(context, &proxy.cluster, proxy.namespace());
    let targets = inbound_targets(context, proxy, &served);
    let target = targets.iter().find(|one| one.port.number == request.port());
    let query = AccessQuery {
        from: Some(from),
        path: Some(request.path().to_owned()),
        method: Some(request.method().to_owned()),
        host: Some(request.authority().to_owned()),
        port: Some(target.map_or(request.port(), |target| target.target)),
    };
    explain_policy(context, proxy, &stream.network(), &query)
}

/// Applies missing Secrets of a router: without its filter chain's Secret, the connection is closed
/// before any request.
fn secure(walk: &mut RequestWalk, faults: Vec<CredentialFault>) {
    let code = &codes::GATEWAY_CREDENTIAL;
    for CredentialFault { name, has_old, fact, .. } in faults {
        if !walk.credentials.iter().any(|needed| **needed == *name) {
            continue;
        }
        if has_old {
            walk.notes
                .push(format!("{code}: the router continues with the previous {name}: {fact}"));
            continue;
        }
        let RequestWalk { proxy, listener, chain, .. } = std::mem::take(walk);
        let outcome =
            format!("the connection is closed: the router has no {name} ({code}): {fact}");
        *walk = RequestWalk { proxy, listener, chain, outcome, ..RequestWalk::default() };
    }
}

/// Applies the access policies to a request that was routed.
fn guard(walk: &mut RequestWalk, access: &PolicyExplanation) {
    let notes = access.notes.iter();
    walk.notes.extend(notes.map(|one| format!("{}: {}: {}", one.code, one.path, one.text)));
    let is_http = walk.route.is_some();
    let verdict = if is_http { &access.http } else { &access.tcp };
    if verdict.verdict == Access::Allow {
        walk.notes.push(format!("access policies allow it: {}", verdict.by));
        // The decisions of providers are unknown here.
        let providers = verdict.asks.iter();
        walk.notes.extend(providers.map(|one| {
            format!("provider {} is queried first, by {}, and may deny it", one.provider, one.rule)
        }));
        return;
    }
    walk.destinations.clear();
    walk.answer = is_http.then_some(403);
    walk.outcome = format!("access policies deny it: {}", verdict.by);
}

/// Returns the responses that the proxy refused; it uses the previous ones.
pub(super) fn refusals(stream: &OpenStream) -> Vec<String> {
    let summary = stream.summary();
    let types = ["cds", "eds", "lds", "rds"].into_iter();
    let refused = types.filter_map(|kind| {
        let error = &summary.types.get(kind)?.nack.as_ref()?.error;
        Some(format!(
            "{}: the proxy refused the last {kind} response and uses the previous one, if any: {error}",
            codes::NACK
        ))
    });
    refused.collect()
}
