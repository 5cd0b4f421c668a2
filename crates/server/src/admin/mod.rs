//! The admin API: health and metrics for all clients, `/debug/*` for holders of the token, and a
//! page that displays it.
//!
//! Renders the state of other modules. Only requests to hold or roll out a configuration change
//! anything. docs/reference/interface.md documents the responses, and the CLI uses nothing else.

mod access;
mod accounts;
mod across;
mod announcements;
mod clusters;
mod connection_problems;
mod events;
mod explained_import;
mod failure;
mod history;
mod hold;
mod imports;
mod json_fields;
mod merge;
mod named;
mod other_sources;
mod page;
mod port;
mod preview;
mod probe;
mod problems;
mod proxy_view;
mod replica_comparison;
mod replica_problems;
mod rollout;
mod same_ranges;
mod session;
mod shared;
mod sharing;
mod sources;
mod stored;
mod summary;
mod tally;
mod token;
mod topics;
mod traffic;
mod views;
mod walk;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{DefaultBodyLimit, Query, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{any, get, post};
use serde::Deserialize;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

pub use self::accounts::{ADMIN_ACCOUNT, AUDIENCE, VIEWER_ACCOUNT};
use self::accounts::{AccountRights, authorization};
pub use self::announcements::Announcements;
use self::events::EventsQuery;
use self::failure::{AdminFailure, AdminResult, bad, pretty};
use self::history::{DiffQuery, HistoryQuery};
pub use self::page::{BrowserAccess, SessionKey};
pub use self::port::ConnectionLimiter;
use self::port::{Workers, aside};
pub use self::problems::follow as follow_problems;
use self::proxy_view::{view_of, withheld};
pub use self::replica_comparison::follow as compare_replicas;
pub use self::replica_problems::ReplicaComparison;
pub use self::shared::SharedAnswers;
pub use self::sources::{Lately, Readiness, Sources};
use self::sources::{SourcesState, connected, current, served_to};
pub use self::stored::{StoredAnswer, StoredAnswers, serve_stored};
pub use self::tally::WithheldTally;
pub use self::token::{Token, TokenError, runtime_directory};
use self::topics::PageTopics;
pub use self::traffic::TrafficReader;
use crate::metrics;
use strait_admin_api as api;
use strait_ads::replicas::ReplicaConnection;
use strait_base::codes;
use strait_base::descriptors::Descriptors;
use strait_base::source_status::STATE_DIRECTORY;
use strait_base::time::rfc3339;
use strait_base::watchdog::SilentLoop;
use strait_envoy::ProxyConfig;
use strait_explain::{explain, find_service, visible_by_default};
use strait_identity::{RootLife, ServerIdentity};
use strait_model::NetworkId;
use strait_model::mesh_config::DefaultProviderFault;
use strait_xds::resource::ResourceSource;

/// Serves the admin API until the tasks are stopped. `replicas` receives the connections of the
/// other replicas, which may read without a token.
pub async fn serve(
    listener: TcpListener,
    replicas: mpsc::Receiver<ReplicaConnection>,
    sources: Arc<Sources>,
) {
    let (admin_connections, descriptors) =
        (Arc::clone(&sources.admin_connections), Arc::clone(&sources.descriptors));
    let tasks = sources.tasks.clone();
    let announcing = Arc::clone(&sources);
    tasks.spawn("announcements", async move {
        PageTopics::of(&announcing).announce(&announcing.announcements).await;
    });
    let workers = Workers::default();
    let of_replicas = debug_routes(workers.clone())
        .route(replica_comparison::PATH, get(replica_comparison::show));
    let serving = across::serve(replicas, of_replicas, Arc::clone(&sources));
    tasks.spawn("requests of replicas", serving);
    let router = router(sources, workers);
    port::serve(listener, router, admin_connections, descriptors, tasks).await;
}

/// Returns the routes that only read. Their responses cover this replica alone.
fn debug_routes(workers: Workers) -> Router<Arc<Sources>> {
    Router::new()
        .route("/debug/clusters", get(clusters::clusters))
        .route("/debug/services", get(services))
        .route("/debug/sources", get(other_sources::other_sources))
        .route("/debug/endpoints", get(endpoints))
        .route("/debug/networks", get(networks))
        .route("/debug/relays", get(relays))
        .route("/debug/addresses", get(addresses))
        .route("/debug/proxies", get(proxies))
        .route("/debug/summary", get(summary::summary))
        .route("/debug/config_dump", get(config_dump))
        .route("/debug/explain", get(explained))
        .route("/debug/explain/import", get(explained_import::explained))
        .route("/debug/explain/policy", get(access::explained))
        .route("/debug/explain/route", get(walk::request_path))
        .route("/debug/access", get(access::snapshot))
        .route("/debug/config", get(access::objects))
        .route("/debug/config/reach", get(access::reach))
        .route("/debug/certificates", get(certificates))
        .route("/debug/mesh", get(mesh))
        .route("/debug/codes", get(all_codes))
        .route("/debug/policy", get(policy))
        .route("/debug/events", get(changes))
        .route("/debug/history", get(recorded))
        .route(
            "/debug/diff",
            get(diff).merge(
                post(preview::preview_change)
                    .layer(DefaultBodyLimit::max(preview::QUESTION_BYTES_MAX)),
            ),
        )
        .route(
            "/debug/scope",
            post(preview::scoped).layer(DefaultBodyLimit::max(preview::QUESTION_BYTES_MAX)),
        )
        .route("/debug/push", get(push))
        .route(
            "/debug/hold",
            get(hold::state).merge(
                post(hold::preview_hold).layer(DefaultBodyLimit::max(hold::QUESTION_BYTES_MAX)),
            ),
        )
        .route("/debug/rollout", get(rollout::state))
        .route("/debug/replicas", get(across::own))
        .route("/debug/", any(unknown))
        .route("/debug/{*rest}", any(unknown))
        .route("/api/", any(unknown))
        .route("/api/{*rest}", any(unknown))
        .route_layer(middleware::from_fn_with_state(workers, aside))
}

fn router(sources: Arc<Sources>, workers: Workers) -> Router {
    let debug = debug_routes(workers)
        .route_layer(middleware::from_fn_with_state(Arc::clone(&sources), across::across))
        .route_layer(middleware::from_fn_with_state(Arc::clone(&sources), share))
        // Long-running, but not work for the workers.
        .route("/api/changes", get(versions))
        .route("/debug/traffic", get(traffic))
        // The outermost layer, so that unauthenticated clients cause no work.
        .route_layer(middleware::from_fn_with_state(Arc::clone(&sources), authorize));
    // Sessions and the reader token can neither create sessions nor change anything.
    let entry = Router::new()
        .route("/api/login-code", get(login_code))
        .route("/api/hold", post(hold::hold).layer(DefaultBodyLimit::max(hold::QUESTION_BYTES_MAX)))
        .route("/api/release", post(hold::release))
        .route(
            "/api/probe-identity",
            post(probe::identity).layer(DefaultBodyLimit::max(probe::QUESTION_BYTES_MAX)),
        )
        .route(
            "/api/rollout",
            post(rollout::change).layer(DefaultBodyLimit::max(hold::QUESTION_BYTES_MAX)),
        )
        .route_layer(middleware::from_fn_with_state(Arc::clone(&sources), holds_token));
    // Metrics have dedicated threads, so that excessive scrapes don't delay operators.
    let metrics = Router::new()
        .route("/metrics", get(metrics))
        .route_layer(middleware::from_fn_with_state(Workers::default(), aside));
    Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .merge(metrics)
        .merge(debug)
        .merge(entry)
        .merge(page::router(Arc::clone(&sources.browsers)))
        .fallback(unknown)
        .layer(middleware::from_fn(page::guarded))
        .with_state(sources)
}

/// Answers requests of pages from shared responses while these are valid.
async fn share(State(sources): SourcesState, request: Request, next: Next) -> Response {
    let headers = request.headers();
    let is_holder = headers.contains_key(header::AUTHORIZATION);
    if *request.method() != Method::GET || is_holder || events::asks_for_stream(headers) {
        return next.run(request).await;
    }
    let (headers, path) = (headers.clone(), request.uri().to_string());
    let times = (sources.announcements.latest().at, Instant::now());
    let make = async || {
        forget_later(&sources);
        next.run(request).await
    };
    sources.shared.answer(path, times, &headers, make).await
}

/// Drops shared responses once they have expired.
fn forget_later(sources: &Arc<Sources>) {
    let later = Arc::clone(sources);
    sources.tasks.child().spawn("shared answers", async move {
        tokio::time::sleep(shared::LIFE).await;
        later.shared.purge(later.announcements.latest().at, Instant::now());
    });
}

/// Applies to localhost too: access to the port does not make a client an operator.
async fn authorize(State(sources): SourcesState, request: Request, next: Next) -> Response {
    let reader = sources.reader_token.as_ref();
    let reads = reader.is_some_and(|token| token.allows(authorization(request.headers())));
    if reads {
        return next.run(request).await;
    }
    if let Some(session) = sources.browsers.session(request.headers()) {
        let mut answer = next.run(request).await;
        if let Some(Ok(cookie)) = session.renewed.map(|cookie| HeaderValue::from_str(&cookie)) {
            answer.headers_mut().insert(header::SET_COOKIE, cookie);
        }
        return answer;
    }
    if !sources.token.allows(authorization(request.headers()))
        && accounts::rights(&sources, request.headers()).await.is_some()
    {
        return next.run(request).await;
    }
    with_token(&sources.token, request, next).await
}

async fn holds_token(State(sources): SourcesState, request: Request, next: Next) -> Response {
    if !sources.token.allows(authorization(request.headers()))
        && accounts::rights(&sources, request.headers()).await == Some(AccountRights::Admin)
    {
        return next.run(request).await;
    }
    with_token(&sources.token, request, next).await
}

async fn with_token(token: &Token, request: Request, next: Next) -> Response {
    if token.allows(authorization(request.headers())) {
        return next.run(request).await;
    }
    let text = "this needs 'Authorization: Bearer <token>'; the token is in the state directory's admin-token, or in the file named by --admin-token-file";
    let mut refusal = AdminFailure(StatusCode::UNAUTHORIZED, text.into()).into_response();
    refusal.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    refusal
}

/// Returns the rates, errors and latency of clusters and services.
async fn traffic(State(sources): SourcesState) -> AdminResult {
    Ok(pretty(StatusCode::OK, &sources.traffic.read().await))
}

/// Returns a code with which a browser opens one session.
async fn login_code(State(sources): SourcesState) -> AdminResult {
    sources.browsers.code()
}

/// Streams announcements of changes to a page.
async fn versions(State(sources): SourcesState) -> AdminResult {
    sources.browsers.changes(&sources.announcements)
}

async fn unknown() -> AdminFailure {
    AdminFailure(
        StatusCode::NOT_FOUND,
        "unknown path; available are / (the page) /livez /readyz /metrics /debug/{clusters,sources,services,endpoints,networks,addresses,proxies,summary,config_dump,explain,access,config,events,history,hold,rollout,diff,scope,codes,certificates,mesh,policy,push,replicas,traffic}".into(),
    )
}

/// Checks whether the loops make progress. Sources don't matter, so no API server can make this
/// fail.
async fn livez(State(sources): SourcesState) -> (StatusCode, String) {
    alive(&sources.tasks.loops().stuck(), &sources.tasks.loops().busy())
}

fn alive(stuck: &[SilentLoop], busy: &[SilentLoop]) -> (StatusCode, String) {
    let line = |one: &SilentLoop, next: &str| format!("{one}; {next}\n");
    if stuck.is_empty() {
        // A restart would read the same input again.
        let lines = busy.iter().map(|one| line(one, "it is busy, and a restart does not help"));
        return (StatusCode::OK, "ok\n".to_owned() + &lines.collect::<String>());
    }
    let next = "restart the process; proxies keep their configuration";
    let lines = stuck.iter().map(|one| line(one, next));
    (StatusCode::SERVICE_UNAVAILABLE, lines.collect())
}

/// Returns 200 once every source has synced, was restored or has timed out, and 503 before. With
/// `?verbose`, lists the clusters and sources, and those that it waits for.
async fn readyz(
    State(sources): SourcesState,
    Query(query): Query<BTreeMap<String, String>>,
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
        let figures = sources.source_statuses.figures().into_iter();
        for (source, figures) in figures.filter(|(source, ..)| **source != *STATE_DIRECTORY) {
            text.push_str(&format!("[+] source {source}: {}\n", figures.state.as_str()));
        }
    }
    text.push_str(if readiness.ready { "ready\n" } else { "not ready\n" });
    (status, text).into_response()
}

/// Returns the metrics, in the text format of Prometheus or in OpenMetrics.
async fn metrics(State(sources): SourcesState, headers: HeaderMap) -> AdminResult {
    let context = sources.context.borrow().clone();
    let counted = Arc::clone(&sources);
    let withheld = sources.withheld.counted(move || withheld(&counted)).await;
    let clusters = Arc::clone(&sources.clusters.borrow());
    let text = sources
        .metrics
        .render(context.as_deref(), &clusters, &withheld, *sources.figures.borrow())
        .map_err(|_| {
            AdminFailure(StatusCode::INTERNAL_SERVER_ERROR, "rendering metrics failed".into())
        })?;
    let mut accepted = headers.get_all(header::ACCEPT).iter().filter_map(|it| it.to_str().ok());
    if accepted.any(metrics::is_asked_for) {
        let text = sources.metrics.in_open_metrics(&text);
        return Ok(([(header::CONTENT_TYPE, metrics::OPEN_METRICS)], text).into_response());
    }
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}

#[derive(Deserialize)]
struct ServicesQuery {
    hostname: Option<String>,
}

/// Returns the merged services, or one service.
async fn services(
    State(sources): SourcesState,
    query: Result<Query<ServicesQuery>, QueryRejection>,
) -> AdminResult {
    let Query(query) = query.map_err(|_| bad("expected ?hostname=HOST or no query"))?;
    let context = current(&sources)?;
    let hostname = query.hostname.map(|name| {
        find_service(&context, &name).map_or(name, |service| service.hostname().to_string())
    });
    let shared = Arc::clone(&sources.shared_services.borrow());
    let clusters = Arc::clone(&sources.clusters.borrow());
    let mut all = views::services(&context, hostname.as_deref());
    for service in &mut all {
        views::add_sharing(service, &context.settings.domain, &shared, &clusters);
    }
    Ok(pretty(StatusCode::OK, &all))
}

#[derive(Deserialize)]
struct EndpointsQuery {
    hostname: String,
}

/// Returns the endpoints of a service in all clusters.
async fn endpoints(
    State(sources): SourcesState,
    query: Result<Query<EndpointsQuery>, QueryRejection>,
) -> AdminResult {
    let Query(query) = query.map_err(|_| bad("expected ?hostname=HOST"))?;
    let context = current(&sources)?;
    let service = find_service(&context, &query.hostname)
        .map_err(|error| AdminFailure(StatusCode::NOT_FOUND, error.to_string()))?;
    Ok(pretty(StatusCode::OK, &views::endpoints(&context, service.hostname())))
}

/// Returns the networks with their clusters and gateways.
async fn networks(State(sources): SourcesState) -> AdminResult {
    Ok(pretty(StatusCode::OK, &views::networks(&*current(&sources)?)))
}

/// Returns the connections of relays.
async fn relays(State(sources): SourcesState) -> AdminResult {
    let rows: Vec<_> = sources.relays.rows().into_iter().map(views::relay).collect();
    Ok(pretty(StatusCode::OK, &rows))
}

#[derive(Deserialize)]
struct AddressesQuery {
    /// The network; the unnamed network if absent.
    #[serde(default)]
    network: String,
    /// Addresses, separated by commas.
    #[serde(default)]
    address: String,
}

/// Returns the addresses of pods in a network by cluster.
async fn addresses(
    State(sources): SourcesState,
    query: Result<Query<AddressesQuery>, QueryRejection>,
) -> AdminResult {
    let Query(query) = query.map_err(|_| bad("expected any of ?network=NETWORK&address=A,A"))?;
    let context = current(&sources)?;
    let requested = query.address.split(',').filter(|text| !text.is_empty()).map(str::parse);
    let requested = requested.collect::<Result<BTreeSet<IpAddr>, _>>();
    let requested = requested.map_err(|error| bad(&format!("addresses: {error}")))?;
    let network = NetworkId::from(query.network);
    Ok(pretty(StatusCode::OK, &views::addresses_in(&context, &network, &requested)))
}

/// Returns the connected proxies, one entry per stream.
async fn proxies(State(sources): SourcesState) -> AdminResult {
    let rows: Vec<_> = sources.connections.list().iter().map(|one| one.summary()).collect();
    Ok(pretty(StatusCode::OK, &rows))
}

#[derive(Deserialize)]
struct ProxyQuery {
    proxy: String,
}

/// Returns the resources that a proxy was last sent, in Envoy's JSON form.
async fn config_dump(
    State(sources): SourcesState,
    query: Result<Query<ProxyQuery>, QueryRejection>,
) -> AdminResult {
    let Query(query) = query.map_err(|_| bad("expected ?proxy=PROXY"))?;
    let connection = connected(&sources, &query.proxy)?;
    // Before the first version, only the sent resources are known.
    let served = served_to(&sources, connection.proxy()).ok();
    let mut config = served.as_ref().map(|(context, cache)| {
        let (network, whereabouts) = connection.place();
        ProxyConfig::new(context, connection.proxy(), network, cache)
            .at(whereabouts)
            .with_hosts_apart()
    });
    let mut lists = BTreeMap::new();
    let dump = connection.config_dump(|kind, name| {
        let config = config.as_mut()?;
        if !kind.is_wildcard() || config.is_by_name() {
            return config.one(kind, name);
        }
        lists.entry(kind).or_insert_with(|| config.all(kind)).get(name).cloned()
    });
    Ok(pretty(StatusCode::OK, &dump))
}

#[derive(Deserialize)]
struct ExplainQuery {
    proxy: String,
    hostname: String,
    port: Option<u16>,
    address: Option<String>,
}

/// Explains for each endpoint of a service why a proxy receives it or which step withholds it.
async fn explained(
    State(sources): SourcesState,
    query: Result<Query<ExplainQuery>, QueryRejection>,
) -> AdminResult {
    let Query(query) =
        query.map_err(|_| bad("expected ?proxy=PROXY&hostname=HOST[&port=N][&address=A]"))?;
    current(&sources)?;
    let connection = connected(&sources, &query.proxy)?;
    let (context, _) = served_to(&sources, connection.proxy())?;
    let view = view_of(&context, &connection);
    let id = connection.proxy().id.to_string();
    let address = query.address.as_deref();
    let is_scoped = connection.proxy().kind.serves_one_workload();
    let mut explanation =
        explain(&context, &id, (&view, is_scoped), &query.hostname, query.port, address)
            .map_err(|error| AdminFailure(StatusCode::NOT_FOUND, error.to_string()))?;
    // Endpoints without IP addresses may be requested by name.
    let is_address = |text: &str| text.parse::<IpAddr>().is_ok();
    if explanation.endpoints.is_empty() && address.is_some_and(|text| !is_address(text)) {
        let text = format!("address={} is not an IP address", address.unwrap_or_default());
        return Err(AdminFailure(StatusCode::BAD_REQUEST, text));
    }
    explanation.notes.extend(walk::refusals(&connection));
    Ok(pretty(StatusCode::OK, &api::Explanation::from(explanation)))
}

/// Returns the certificates in use and their expiry.
async fn certificates(State(sources): SourcesState) -> AdminResult {
    let identity = Arc::clone(&sources.metrics.identity.borrow());
    Ok(pretty(StatusCode::OK, &views::certificates(&identity)))
}

/// Returns the meaning of each code and the next step.
async fn all_codes() -> AdminResult {
    let row = |code: &codes::Code| {
        (code.id, api::CodeMeaning { next: code.next.to_owned(), title: code.title.to_owned() })
    };
    let rows: BTreeMap<_, _> = codes::all().into_iter().map(row).collect();
    Ok(pretty(StatusCode::OK, &rows))
}

/// Returns the mesh config that applies, with its problems and the fields without effect.
async fn mesh(State(sources): SourcesState) -> AdminResult {
    let context = current(&sources)?;
    let hold = Arc::clone(&sources.hold.borrow());
    let problems = sources.mesh_problems.borrow().clone();
    let texts: Vec<_> = problems.iter().map(|problem| problem.text.as_str()).collect();
    let faults = context.mesh.default_provider_faults.iter();
    let fault = |one: &DefaultProviderFault| api::ProviderFault {
        path: one.path.clone(),
        text: one.text.clone(),
    };
    let settings = context.mesh.to_json();
    let settings = settings.as_object().into_iter().flatten();
    let mesh = api::Mesh {
        held: hold::in_short(&sources, &hold),
        hold_lost: hold.lost.as_deref().map(str::to_owned),
        fields_without_effect: context.mesh.ignored.clone(),
        default_providers_without_effect: faults.map(fault).collect(),
        problem: (!texts.is_empty()).then(|| texts.join(" ")),
        problems: views::mesh_problems(&problems),
        settings: settings.map(|(name, value)| (name.clone(), value.clone())).collect(),
        unknown_registries: views::unknown_registries(&context),
    };
    // As a JSON value, so that the settings and the other fields are sorted together.
    Ok(pretty(StatusCode::OK, &json!(mesh)))
}

/// Returns why the policy file is not active, if so, and its rules for unknown clusters.
async fn policy(State(sources): SourcesState) -> AdminResult {
    let policy = Arc::clone(&sources.policy.value.borrow());
    let statuses = Arc::clone(&sources.clusters.borrow());
    let known: BTreeSet<&str> = statuses.iter().map(|status| status.id.as_str()).collect();
    let unknown = policy.clusters_named().into_iter();
    let unknown = unknown.filter(|(cluster, _)| !known.contains(cluster.as_str()));
    let unknown =
        unknown.map(|(cluster, rule)| api::UnknownCluster { cluster: cluster.to_string(), rule });
    let replayable = {
        let file = sources.members.value.borrow();
        let identities = file.identities.iter().filter(|identity| identity.is_replayable());
        identities.map(|identity| identity.name.to_string()).collect()
    };
    let context = sources.context.borrow().clone();
    let reports = Arc::clone(&sources.reports.borrow());
    let visible = context.iter().flat_map(|context| visible_by_default(context, &reports));
    let limits = policy.traffic().foreign_bytes;
    let answer = api::Policy {
        problem: sources.policy.problem.borrow().clone(),
        unknown_clusters: unknown.collect(),
        preferences: policy.preferences().map(ToString::to_string).collect(),
        foreign_bytes: api::ForeignBytes { namespace: limits.namespace, total: limits.total },
        root_namespace: context.as_ref().map(|context| context.mesh.root_namespace.to_string()),
        visible_by_default: visible.map(hold::name).collect(),
        foreign_hosts: policy.traffic().foreign_hosts.as_str().to_owned(),
        gateway_namespaces: policy.gateway_namespaces().map(|all| all.iter().cloned().collect()),
        members: api::MemberSourcesFile {
            problem: sources.members.problem.borrow().clone(),
            sources: sources.source_problems.borrow().clone(),
            unused: sources.members.value.borrow().unused.clone(),
            replayable,
        },
        remote_ejection: policy.remote_ejection().as_str().to_owned(),
        sharing: api::PolicySharing {
            istio_global: if policy.sharing().honours_istio() { "honour" } else { "ignore" }.into(),
        },
    };
    Ok(pretty(StatusCode::OK, &answer))
}

/// Number of the costliest identities that `/debug/push` lists.
const IDENTITIES_SHOWN: usize = 10;

/// Returns the last changes of the mesh, or streams them as server-sent events.
async fn changes(
    State(sources): SourcesState,
    query: Result<Query<EventsQuery>, QueryRejection>,
    headers: HeaderMap,
) -> AdminResult {
    let Query(query) = query.map_err(|_| bad("expected ?since=NUMBER, ?seq=NUMBER or no query"))?;
    events::answer(&sources.timeline, &query, &headers)
}

/// Returns the changes of each version.
async fn recorded(
    State(sources): SourcesState,
    query: Result<Query<HistoryQuery>, QueryRejection>,
) -> AdminResult {
    let Query(query) = query.map_err(|_| bad("expected ?version=NUMBER or no query"))?;
    history::records(&sources.history, &sources.retained, &query)
}

/// Returns the differences between a past moment and now.
async fn diff(
    State(sources): SourcesState,
    query: Result<Query<DiffQuery>, QueryRejection>,
) -> AdminResult {
    let Query(query) = query.map_err(|_| bad("expected ?at=VERSION or ?at=TIME"))?;
    history::difference(&sources.history, &query)
}

/// Returns the current version of the mesh, and figures of the event loop, memory and streams.
async fn push(State(sources): SourcesState) -> AdminResult {
    let budgets = sources.connections.budgets();
    let memory = budgets.figures();
    let identities = budgets.costliest(IDENTITIES_SHOWN).into_iter();
    let identities = identities.map(|(identity, usage)| api::IdentityUse {
        identity: identity.to_string(),
        streams: usage.streams,
        unverified: usage.unverified,
        names: usage.names,
        made_up_names: usage.made_up,
        bytes: usage.taken,
        charged: usage.charged,
    });
    let figures = *sources.figures.borrow();
    let age = figures.published.and_then(|at| SystemTime::now().duration_since(at).ok());
    let answer = api::Push {
        version: figures.version,
        held: hold::in_short(&sources, &sources.hold.borrow()),
        published: figures.published.map(rfc3339),
        age_seconds: age.map(|age| age.as_secs_f64()),
        events: figures.events,
        queued: figures.queued,
        last_version_microseconds: u64::try_from(figures.cost.as_micros()).unwrap_or(u64::MAX),
        streams_woken: figures.woken,
        streams_woken_total: figures.woken_total,
        endpoints_wait_max_milliseconds: 50,
        definitions_wait_max_milliseconds: 100,
        descriptors: descriptors(&sources.descriptors),
        connection_problems: connection_problems::rows(&sources),
        roots: root_lives(&sources.metrics.identity.borrow()),
        admin_connections: api::AdminConnections {
            open: sources.admin_connections.open(),
            most: sources.admin_connections.most(),
            crowded_out: sources.admin_connections.rejected(),
            refused: sources.admin_connections.refused(),
        },
        memory: api::Memory {
            limit: memory.limit,
            used: (memory.used > 0).then_some(memory.used),
            pressure: memory.pressure.as_str().to_owned(),
            deferred: memory.deferred,
            shed: memory.shed,
        },
        identity_budget: budgets.limit(),
        over_budget: memory.over_budget,
        identities: identities.collect(),
    };
    Ok(pretty(StatusCode::OK, &answer))
}

/// Returns the roots of the CA and how close their expiry is.
fn root_lives(identity: &ServerIdentity) -> Vec<api::RootLife> {
    let now = SystemTime::now();
    let row = |life: RootLife| {
        let stage = life.stage(now).as_str().into();
        api::RootLife { subject: life.subject.clone(), ends: rfc3339(life.ends), stage }
    };
    identity.root_lives().into_iter().map(row).collect()
}

/// Returns the use of file descriptors.
fn descriptors(descriptors: &Descriptors) -> api::Descriptors {
    let figures = descriptors.figures();
    api::Descriptors {
        open: figures.open,
        limit: figures.limit,
        needed_by_members: Some(figures.needed),
        exhausted: figures.exhausted,
        exhausted_seconds_ago: figures.exhausted_ago.map(|ago| ago.as_secs()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn stuck_loop_fails_liveness_with_its_work_and_busy_loop_does_not() {
        assert_eq!(alive(&[], &[]), (StatusCode::OK, "ok\n".to_owned()));
        let one = SilentLoop {
            name: "feed",
            age: Duration::from_secs(61),
            work: Some("VirtualService shop/web".to_owned()),
            cpu: Some(Duration::ZERO),
        };
        let work = "the loop \"feed\" has worked on VirtualService shop/web for 61 s";
        let (status, text) = alive(std::slice::from_ref(&one), &[]);
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(text.starts_with(work), "{text}");
        let (status, text) = alive(&[], &[one]);
        assert_eq!(status, StatusCode::OK);
        assert!(text.starts_with(&format!("ok\n{work}")), "{text}");
    }
}
