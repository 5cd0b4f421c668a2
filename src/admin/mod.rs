//! The admin API: health and metrics for everybody, `/debug/*` for holders of the token.
//!
//! Reads what others own and renders it; writes nothing. The shapes are those of docs/reference/interface.md, and
//! the CLI renders nothing else.

mod port;
mod token;
mod views;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

pub use self::port::Crowd;
use self::port::{Workers, aside};
pub use self::token::{Token, TokenError, runtime_directory};
use crate::clusters::status::ClusterStatus;
use crate::codes;
use crate::descriptors::Descriptors;
use crate::explain::{explain, find_service};
use crate::mesh::watch::Problem;
use crate::metrics::{Metrics, Withheld};
use crate::model::{ClusterId, NetworkId};
use crate::policy::Watched;
use crate::push::PushContext;
use crate::push::event_loop::Figures;
use crate::push::proxy::east_west_port;
use crate::push::view::{Role, ViewKey};
use crate::sources::{Board, STATE_DIRECTORY};
use crate::task::Supervisor;
use crate::xds::connections::{Connection, Connections, rfc3339};
use axum::Router;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

/// For how long a count of endpoints that are withheld will do for `/metrics`.
const WITHHELD_LASTS: Duration = Duration::from_secs(60);

/// Whether the process is ready, and what it waits for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Readiness {
    /// Once true, never false again.
    pub ready: bool,
    /// What is still missing, in words; empty once ready.
    pub waiting_for: Vec<String>,
}

/// What the admin API reads.
pub struct Sources {
    /// The current version of the mesh.
    pub context: watch::Receiver<Option<Arc<PushContext>>>,
    /// How the members fare.
    pub clusters: watch::Receiver<Arc<Vec<ClusterStatus>>>,
    /// How the sources fare that are no member clusters.
    pub board: Board,
    /// What of the mesh config and the mesh networks is not in force.
    pub mesh_problems: watch::Receiver<Vec<Problem>>,
    /// The policy in force.
    pub policy: Watched,
    /// Who is connected.
    pub connections: Arc<Connections>,
    /// Which loops turn.
    pub tasks: Supervisor,
    /// How the event loop fares.
    pub figures: watch::Receiver<Figures>,
    /// Whether the process is ready.
    pub readiness: watch::Receiver<Readiness>,
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// What was counted last of endpoints that are withheld, and when.
    pub withheld: Lately,
    /// How the admin port itself fares.
    pub crowd: Arc<Crowd>,
    /// How the process fares with its file descriptors.
    pub descriptors: Arc<Descriptors>,
    /// What `/debug/*` asks for.
    pub token: Token,
}

/// What was last counted, and when. Counting looks at every endpoint: not at each scrape.
#[derive(Debug, Default)]
pub struct Lately(Mutex<Option<(Instant, Arc<Withheld>)>>);

impl Lately {
    /// What was counted within the last minute, else what is counted now, by a thread that may block.
    async fn counted(&self, count: impl FnOnce() -> Withheld + Send + 'static) -> Arc<Withheld> {
        let fresh = |(at, _): &&(Instant, Arc<Withheld>)| at.elapsed() < WITHHELD_LASTS;
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, counts)) = lock().as_ref().filter(fresh) {
            return Arc::clone(counts);
        }
        let counts = Arc::new(tokio::task::spawn_blocking(count).await.unwrap_or_default());
        *lock() = Some((Instant::now(), Arc::clone(&counts)));
        counts
    }
}

/// A failure, as JSON with a status.
struct Failure(StatusCode, String);

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        pretty(self.0, &json!({ "error": self.1 }))
    }
}

type Answer = Result<Response, Failure>;
type Shared = State<Arc<Sources>>;

/// Serves the admin API until the tasks are stopped.
pub async fn serve(listener: TcpListener, sources: Arc<Sources>) {
    let (crowd, descriptors) = (Arc::clone(&sources.crowd), Arc::clone(&sources.descriptors));
    let tasks = sources.tasks.clone();
    port::serve(listener, router(sources), crowd, descriptors, tasks).await;
}

fn router(sources: Arc<Sources>) -> Router {
    let debug = Router::new()
        .route("/debug/clusters", get(clusters))
        .route("/debug/services", get(services))
        .route("/debug/sources", get(other_sources))
        .route("/debug/endpoints", get(endpoints))
        .route("/debug/networks", get(networks))
        .route("/debug/addresses", get(addresses))
        .route("/debug/proxies", get(proxies))
        .route("/debug/config_dump", get(config_dump))
        .route("/debug/explain", get(explained))
        .route("/debug/mesh", get(mesh))
        .route("/debug/policy", get(policy))
        .route("/debug/push", get(push))
        .route("/debug/", any(unknown))
        .route("/debug/{*rest}", any(unknown))
        .route("/api/", any(unknown))
        .route("/api/{*rest}", any(unknown))
        .route_layer(middleware::from_fn_with_state(Workers::default(), aside))
        // Asked first: strangers keep nobody busy.
        .route_layer(middleware::from_fn_with_state(Arc::clone(&sources), authorize));
    // By threads of their own, so that whoever asks for metrics without end keeps no operator waiting.
    let metrics = Router::new()
        .route("/metrics", get(metrics))
        .route_layer(middleware::from_fn_with_state(Workers::default(), aside));
    Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .merge(metrics)
        .merge(debug)
        .fallback(unknown)
        .with_state(sources)
}

/// From localhost too: whoever can reach the port is not thereby an operator.
async fn authorize(State(sources): Shared, request: Request, next: Next) -> Response {
    let header = request.headers().get(header::AUTHORIZATION);
    if sources.token.allows(header.and_then(|value| value.to_str().ok())) {
        return next.run(request).await;
    }
    let text = "this needs 'Authorization: Bearer <token>'; the token is in the state directory's admin-token, or in the file named by --admin-token-file";
    let mut refusal = Failure(StatusCode::UNAUTHORIZED, text.into()).into_response();
    refusal.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    refusal
}

async fn unknown() -> Failure {
    Failure(
        StatusCode::NOT_FOUND,
        "no such path; there are /livez /readyz /metrics /debug/{clusters,sources,services,endpoints,networks,proxies,config_dump,explain,mesh,policy,push}".into(),
    )
}

/// Whether the process moves, not whether what it reads does: no API server can make it fail.
async fn livez(State(sources): Shared) -> (StatusCode, String) {
    alive(&sources.tasks.stuck())
}

fn alive(stuck: &[(&'static str, Duration)]) -> (StatusCode, String) {
    if stuck.is_empty() {
        return (StatusCode::OK, "ok\n".to_owned());
    }
    let line = |(name, age): &(&str, Duration)| {
        format!(
            "the loop {name:?} has not turned for {} s; restart the process, proxies keep what they have\n",
            age.as_secs()
        )
    };
    (StatusCode::SERVICE_UNAVAILABLE, stuck.iter().map(line).collect())
}

async fn readyz(
    State(sources): Shared,
    Query(query): Query<std::collections::BTreeMap<String, String>>,
) -> Response {
    let readiness = sources.readiness.borrow().clone();
    let status = if readiness.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let mut text = String::new();
    if query.contains_key("verbose") {
        for missing in &readiness.waiting_for {
            text.push_str(&format!("[-] waiting for {missing}\n"));
        }
        for cluster in sources.clusters.borrow().iter() {
            let state = cluster.state.as_str();
            text.push_str(&format!("[+] cluster {}: {state}\n", cluster.id));
        }
        if let Some(fact) =
            sources.metrics.writes.as_ref().and_then(|one| one.borrow().failing.clone())
        {
            let code = &codes::UNWRITABLE;
            text.push_str(&format!("[-] {STATE_DIRECTORY}: {code}: {fact}\n"));
        }
        let figures = sources.board.figures().into_iter();
        for (source, figures) in figures.filter(|(source, ..)| **source != *STATE_DIRECTORY) {
            text.push_str(&format!("[+] source {source}: {}\n", figures.state.as_str()));
        }
    }
    text.push_str(if readiness.ready { "ready\n" } else { "not ready\n" });
    (status, text).into_response()
}

async fn metrics(State(sources): Shared) -> Answer {
    let context = sources.context.borrow().clone();
    let counted = Arc::clone(&sources);
    let withheld = sources.withheld.counted(move || withheld(&counted)).await;
    let clusters = Arc::clone(&sources.clusters.borrow());
    let text = sources
        .metrics
        .render(context.as_deref(), &clusters, &withheld, *sources.figures.borrow())
        .map_err(|_| Failure(StatusCode::INTERNAL_SERVER_ERROR, "metrics: no text".into()))?;
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}

/// How many endpoints some connected proxy can't be given because of networks.
fn withheld(sources: &Sources) -> Withheld {
    let Some(context) = sources.context.borrow().clone() else { return Withheld::new() };
    let connections = sources.connections.list();
    let views = connections.iter().map(|connection| view_of(&context, connection));
    // A gateway is meant to hold its own network only.
    let views: BTreeSet<ViewKey> = views.filter(|view| view.role == Role::Client).collect();
    views::withheld(&context, &views)
}

async fn clusters(State(sources): Shared) -> Answer {
    let statuses = Arc::clone(&sources.clusters.borrow());
    let context = sources.context.borrow().clone();
    let counts = withheld(&sources);
    let mut same_addresses = context.as_deref().map(views::same_addresses).unwrap_or_default();
    // Of several entries of an ID the first is the one that holds it.
    let mut seen = BTreeSet::new();
    let rows: Vec<ClusterStatus> = statuses
        .iter()
        .map(|status| {
            let id = ClusterId::from(status.id.as_str());
            let mut row = status.clone();
            let holds = seen.insert(id.clone());
            if let Some(context) = context.as_ref().filter(|_| holds) {
                row.withheld_by = counts.get(&id).cloned().unwrap_or_default();
                row.withheld = row.withheld_by.values().sum();
                row.ignored_claims = views::ignored_claims(context, &id);
                row.same_addresses = same_addresses.remove(&id).unwrap_or_default();
                let held = context.network_labels.contains_key(&id);
                row.network = row.network.or_else(|| held.then(|| context.network_of_cluster(&id)));
            }
            row
        })
        .collect();
    Ok(pretty(StatusCode::OK, &rows))
}

#[derive(Deserialize)]
struct ServicesQuery {
    hostname: Option<String>,
}

async fn services(State(sources): Shared, Query(query): Query<ServicesQuery>) -> Answer {
    let context = current(&sources)?;
    let hostname = query.hostname.map(|name| {
        find_service(&context, &name).map_or(name, |service| service.hostname().to_string())
    });
    Ok(pretty(StatusCode::OK, &views::services(&context, hostname.as_deref())))
}

#[derive(Deserialize)]
struct EndpointsQuery {
    hostname: String,
}

async fn endpoints(
    State(sources): Shared,
    query: Result<Query<EndpointsQuery>, axum::extract::rejection::QueryRejection>,
) -> Answer {
    let Query(query) = query.map_err(|_| bad("endpoints are asked for by ?hostname=HOST"))?;
    let context = current(&sources)?;
    let service = find_service(&context, &query.hostname)
        .map_err(|error| Failure(StatusCode::NOT_FOUND, error.to_string()))?;
    Ok(pretty(StatusCode::OK, &views::endpoints(&context, service.hostname())))
}

/// Where services and objects come from, beside the member clusters.
async fn other_sources(State(sources): Shared) -> Answer {
    Ok(pretty(StatusCode::OK, &sources.board.show()))
}

async fn networks(State(sources): Shared) -> Answer {
    Ok(pretty(StatusCode::OK, &views::networks(&*current(&sources)?)))
}

#[derive(Deserialize)]
struct AddressesQuery {
    /// The network; the one without a name where it is left out.
    #[serde(default)]
    network: String,
    /// Addresses, with commas between them.
    #[serde(default)]
    address: String,
}

/// Where pods are in a network, and who has an address.
async fn addresses(State(sources): Shared, Query(query): Query<AddressesQuery>) -> Answer {
    let context = current(&sources)?;
    let asked = query.address.split(',').filter(|text| !text.is_empty()).map(str::parse);
    let asked = asked.collect::<Result<BTreeSet<IpAddr>, _>>();
    let asked = asked.map_err(|error| bad(&format!("addresses: {error}")))?;
    let network = NetworkId::from(query.network);
    Ok(pretty(StatusCode::OK, &views::addresses_in(&context, &network, &asked)))
}

async fn proxies(State(sources): Shared) -> Answer {
    let rows: Vec<Value> = sources.connections.list().iter().map(|one| one.summary()).collect();
    Ok(pretty(StatusCode::OK, &rows))
}

#[derive(Deserialize)]
struct ProxyQuery {
    proxy: String,
}

async fn config_dump(
    State(sources): Shared,
    query: Result<Query<ProxyQuery>, axum::extract::rejection::QueryRejection>,
) -> Answer {
    let Query(query) = query.map_err(|_| bad("a configuration is asked for by ?proxy=PROXY"))?;
    let connection = connected(&sources, &query.proxy)?;
    Ok(pretty(StatusCode::OK, &connection.config_dump()))
}

#[derive(Deserialize)]
struct ExplainQuery {
    proxy: String,
    hostname: String,
    port: Option<u16>,
    address: Option<String>,
}

async fn explained(
    State(sources): Shared,
    query: Result<Query<ExplainQuery>, axum::extract::rejection::QueryRejection>,
) -> Answer {
    let Query(query) = query.map_err(|_| {
        bad("an explanation is asked for by ?proxy=PROXY&hostname=HOST[&port=N][&address=A]")
    })?;
    let context = current(&sources)?;
    let connection = connected(&sources, &query.proxy)?;
    let view = view_of(&context, &connection);
    let id = connection.proxy().id.to_string();
    let address = query.address.as_deref();
    let explanation = explain(&context, &id, &view, &query.hostname, query.port, address)
        .map_err(|error| Failure(StatusCode::NOT_FOUND, error.to_string()))?;
    // Endpoints that a proxy finds by names may be asked for by these.
    let is_address = |text: &str| text.parse::<IpAddr>().is_ok();
    if explanation.endpoints.is_empty() && address.is_some_and(|text| !is_address(text)) {
        let text = format!("address={} is no IP address", address.unwrap_or_default());
        return Err(Failure(StatusCode::BAD_REQUEST, text));
    }
    Ok(pretty(StatusCode::OK, &explanation))
}

async fn mesh(State(sources): Shared) -> Answer {
    let context = current(&sources)?;
    let mut answer = context.mesh.to_json();
    answer["fieldsWithoutEffect"] = json!(context.mesh.ignored);
    let problems = sources.mesh_problems.borrow().clone();
    let texts: Vec<_> = problems.iter().map(|problem| problem.text.as_str()).collect();
    answer["problem"] = json!((!texts.is_empty()).then(|| texts.join(" ")));
    let coded = problems.iter().map(|one| json!({ "code": one.code, "text": one.text }));
    answer["problems"] = coded.collect();
    Ok(pretty(StatusCode::OK, &answer))
}

/// Why the policy file is not in force, where it isn't, and what of the policy is about nobody.
async fn policy(State(sources): Shared) -> Answer {
    let policy = Arc::clone(&sources.policy.policy.borrow());
    let statuses = Arc::clone(&sources.clusters.borrow());
    let known: BTreeSet<&str> = statuses.iter().map(|status| status.id.as_str()).collect();
    let unknown: Vec<Value> = policy
        .clusters_named()
        .into_iter()
        .filter(|(cluster, _)| !known.contains(cluster.as_str()))
        .map(|(cluster, rule)| json!({ "cluster": cluster, "rule": rule }))
        .collect();
    let preferences: Vec<String> = policy.preferences().map(ToString::to_string).collect();
    let problem = sources.policy.problem.borrow().clone();
    Ok(pretty(
        StatusCode::OK,
        &json!({ "problem": problem, "unknownClusters": unknown, "preferences": preferences }),
    ))
}

/// How many of the identities that take most `/debug/push` shows.
const IDENTITIES_SHOWN: usize = 10;

async fn push(State(sources): Shared) -> Answer {
    let budgets = sources.connections.budgets();
    let memory = budgets.figures();
    let identities: Vec<_> = budgets
        .costliest(IDENTITIES_SHOWN)
        .iter()
        .map(|(identity, usage)| {
            json!({
                "identity": identity.to_string(),
                "streams": usage.streams,
                "unverified": usage.unverified,
                "names": usage.names,
                "madeUpNames": usage.made_up,
                "bytes": usage.taken,
                "charged": usage.charged,
            })
        })
        .collect();
    let figures = *sources.figures.borrow();
    let age = figures.published.and_then(|at| SystemTime::now().duration_since(at).ok());
    Ok(pretty(
        StatusCode::OK,
        &json!({
            "version": figures.version,
            "published": figures.published.map(rfc3339),
            "ageSeconds": age.map(|age| age.as_secs_f64()),
            "events": figures.events,
            "queued": figures.queued,
            "lastVersionMicroseconds": u64::try_from(figures.cost.as_micros()).unwrap_or(u64::MAX),
            "streamsWoken": figures.woken,
            "streamsWokenTotal": figures.woken_total,
            "endpointsWaitMaxMilliseconds": 50,
            "definitionsWaitMaxMilliseconds": 100,
            "descriptors": descriptors(&sources.descriptors),
            "adminConnections": {
                "open": sources.crowd.open(),
                "most": sources.crowd.most(),
                "crowdedOut": sources.crowd.crowded_out(),
                "refused": sources.crowd.refused(),
            },
            "memory": {
                "limit": memory.limit,
                "used": (memory.used > 0).then_some(memory.used),
                "pressure": memory.pressure.as_str(),
                "deferred": memory.deferred,
                "shed": memory.shed,
            },
            "identityBudget": budgets.limit(),
            "overBudget": memory.over_budget,
            "identities": identities,
        }),
    ))
}

/// How the process fares with its file descriptors.
fn descriptors(descriptors: &Descriptors) -> Value {
    let figures = descriptors.figures();
    json!({
        "open": figures.open,
        "limit": figures.limit,
        "neededByMembers": figures.needed,
        "exhausted": figures.exhausted,
        "exhaustedSecondsAgo": figures.exhausted_ago.map(|ago| ago.as_secs()),
    })
}

fn current(sources: &Sources) -> Result<Arc<PushContext>, Failure> {
    sources.context.borrow().clone().ok_or_else(|| {
        let missing = sources.readiness.borrow().waiting_for.join(", ");
        let text = format!("the mesh is not complete yet; waiting for {missing}");
        Failure(StatusCode::SERVICE_UNAVAILABLE, text)
    })
}

fn connected(sources: &Sources, proxy: &str) -> Result<Arc<Connection>, Failure> {
    sources.connections.find(proxy).ok_or_else(|| {
        let text = format!(
            "no proxy {proxy:?} is connected; a proxy is named by its node id, its key, or name.namespace[@cluster]"
        );
        Failure(StatusCode::NOT_FOUND, text)
    })
}

fn view_of(context: &PushContext, connection: &Connection) -> ViewKey {
    let proxy = connection.proxy();
    let is_gateway = east_west_port(context, proxy).is_some();
    let role = if is_gateway { Role::Gateway } else { Role::Client };
    let (network, whereabouts) = connection.place();
    ViewKey::of(proxy, network, role).at(whereabouts)
}

fn bad(text: &str) -> Failure {
    Failure(StatusCode::BAD_REQUEST, text.into())
}

/// JSON for people and programs: indented, with a final line end.
fn pretty(status: StatusCode, value: &impl serde::Serialize) -> Response {
    match serde_json::to_vec_pretty(value) {
        Ok(mut body) => {
            body.push(b'\n');
            (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stuck_loop_fails_liveness_by_its_name() {
        assert_eq!(alive(&[]), (StatusCode::OK, "ok\n".to_owned()));
        let (status, text) = alive(&[("event loop", Duration::from_secs(61))]);
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(text.contains("\"event loop\" has not turned for 61 s"), "{text}");
    }
}
