//! Responses that cover all replicas, and the requests of other replicas.
//!
//! A request of a client is sent to the other replicas at the same time, and their responses are
//! merged ([`super::merge`]). A request of a replica is always answered by this process alone, so
//! requests cannot circulate. It can only read.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Query, Request, State};
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};
use tower::ServiceExt as _;
use tracing::debug;

use super::events::asks_for_stream;
use super::failure::{AdminFailure, AdminResult, bad, pretty};
use super::merge::{
    MergeRule, NamedStream, ReplicaAnswer, add_change, merge, number_of, select, split_key,
};
use super::named::{ambiguous, named, of_row};
use super::preview::QUESTION_BYTES_MAX;
use super::replica_problems::ReplicaProblem;
use super::sources::{Sources, SourcesState};
use crate::replica_state;
use crate::replicas::{OtherReplicas, Peer, PeerAnswer, PeerRequest};
use strait_admin_api::{Replica, ReplicaName, ReplicaState, Replicas};
use strait_ads::replicas::ReplicaConnection;
use strait_base::bounded::head;
use strait_base::codes;
use strait_kube_client::percent_encode;

/// Header that names the replicas that did not respond.
pub(super) const MISSING: &str = "strait-missing-replicas";
/// Header that says why one replica did not respond: `NAME: REASON`.
const REASON: &str = "strait-missing-reason";
/// Header with the number of replicas whose responses were merged.
const REPLICAS: &str = "strait-replicas";
/// Maximum time that other replicas may take longer than this one.
const PATIENCE: Duration = Duration::from_secs(2);
/// Maximum time to receive the head of a replica's request.
const HEAD_LIMIT: Duration = Duration::from_secs(10);
/// Maximum lifetime of a replica's connection, which carries one request.
const LIFE: Duration = Duration::from_secs(60);
/// Maximum length of a reason in a header, in bytes.
const REASON_MAX: usize = 300;
/// Path at which a replica lists its streams that a name matches, for other replicas.
const STREAMS: &str = "/replica/streams";

/// Returns the response of all replicas, or of the replica in `?replica=`.
pub(super) async fn across(State(sources): SourcesState, request: Request, next: Next) -> Response {
    let incoming = match AdminRequest::read(request).await {
        Ok(incoming) => incoming,
        Err(failure) => return failure.into_response(),
    };
    let answering = AnswerOfAll { sources, next };
    answering.answer(incoming).await.unwrap_or_else(|failure| failure.into_response())
}

/// A request, without the parameter `replica`.
struct AdminRequest {
    request: Request,
    body: Bytes,
    /// The value of the parameter `replica`.
    replica: Option<String>,
    /// The other parameters, not decoded.
    pairs: Vec<(String, String)>,
}

impl AdminRequest {
    async fn read(request: Request) -> Result<Self, AdminFailure> {
        let (mut parts, body) = request.into_parts();
        let body = to_bytes(body, QUESTION_BYTES_MAX).await.map_err(|_| {
            let text = format!("the request is larger than {QUESTION_BYTES_MAX} bytes");
            AdminFailure(StatusCode::PAYLOAD_TOO_LARGE, text)
        })?;
        let query = parts.uri.query().unwrap_or_default();
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        let (own, pairs): (Vec<_>, Vec<_>) = pairs.partition(|(name, _)| *name == "replica");
        let replica = own.last().map(|(_, value)| (*value).to_owned());
        let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        let pairs: Vec<_> = pairs.into_iter().map(owned).collect();
        if replica.is_some() {
            parts.uri = uri(parts.uri.path(), &pairs)?;
        }
        let request = Request::from_parts(parts, Body::from(body.clone()));
        Ok(Self { request, body, replica, pairs })
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.pairs.iter().find(|(own, _)| own == name).map(|(_, value)| &**value)
    }

    /// Returns the request with another value of a parameter.
    fn with(mut self, name: &str, value: &str) -> Result<Self, AdminFailure> {
        for (own, held) in &mut self.pairs {
            if own == name {
                *held = percent_encode(value);
            }
        }
        *self.request.uri_mut() = uri(self.request.uri().path(), &self.pairs)?;
        Ok(self)
    }

    fn to_peer(&self) -> PeerRequest {
        let path = self.request.uri().path_and_query();
        let path = path.map(ToString::to_string).unwrap_or_default();
        PeerRequest { method: self.request.method().clone(), path, body: self.body.clone() }
    }
}

fn uri(path: &str, pairs: &[(String, String)]) -> Result<Uri, AdminFailure> {
    let query: Vec<_> = pairs.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let mark = if query.is_empty() { "" } else { "?" };
    let text = format!("{path}{mark}{}", query.join("&"));
    text.parse().map_err(|_| bad("the query is invalid"))
}

/// Decodes a percent-encoded value of a query.
fn decode(value: &str) -> String {
    let query = format!("/?v={value}").parse::<Uri>().ok();
    let pairs = query.and_then(|uri| Query::<Vec<(String, String)>>::try_from_uri(&uri).ok());
    pairs.and_then(|Query(pairs)| Some(pairs.into_iter().next()?.1)).unwrap_or_default()
}

struct AnswerOfAll {
    sources: Arc<Sources>,
    next: Next,
}

/// The responses of other replicas, and the replicas that did not respond.
#[derive(Default)]
pub(super) struct PeerAnswers {
    answers: Vec<(Peer, PeerAnswer)>,
    missing: Vec<MissingReplica>,
}

struct MissingReplica {
    peer: Peer,
    reason: String,
}

impl AnswerOfAll {
    async fn answer(self, incoming: AdminRequest) -> AdminResult {
        let replicas = Arc::clone(&self.sources.replicas);
        let others = replicas.others();
        if let Some(name) = &incoming.replica {
            let name = decode(name);
            if name == replicas.name() {
                return Ok(self.next.run(incoming.request).await);
            }
            let peer = others.iter().find(|peer| peer.is_called(&name));
            let peer = peer.ok_or_else(|| unknown_replica(&replicas, &others, &name))?;
            return forward(&replicas, peer, incoming.to_peer()).await;
        }
        let rule =
            MergeRule::of(incoming.request.method(), incoming.request.uri().path(), |name| {
                incoming.get(name)
            });
        let is_stream = asks_for_stream(incoming.request.headers());
        match rule {
            MergeRule::Replicas => {
                let ping = PeerRequest::get("/debug/replicas");
                let nothing = std::future::ready(());
                let ((), mut gathered) = gather(&replicas, others.clone(), ping, nothing).await;
                gathered.require_success();
                let problems = self.sources.comparison.problems();
                Ok(list(&replicas, &others, &gathered, &problems))
            }
            MergeRule::Local => Ok(self.next.run(incoming.request).await),
            _ if others.is_empty() || is_stream => Ok(self.next.run(incoming.request).await),
            MergeRule::OfProxy => self.of_proxy(incoming, others).await,
            MergeRule::Change => self.change(incoming, others).await,
            _ => self.merged(rule, incoming, others).await,
        }
    }

    /// Returns the response of the replica to which a proxy is connected.
    async fn of_proxy(self, incoming: AdminRequest, others: Vec<Peer>) -> AdminResult {
        let replicas = Arc::clone(&self.sources.replicas);
        let Some(name) = incoming.get("proxy").map(decode) else {
            return Ok(self.next.run(incoming.request).await);
        };
        if let Some((key, replica)) = split_key(&name) {
            if replica == replicas.name() {
                return Ok(self.next.run(incoming.with("proxy", key)?.request).await);
            }
            if let Some(peer) = others.iter().find(|peer| peer.is_called(replica)) {
                let request = incoming.with("proxy", key)?.to_peer();
                return forward(&replicas, peer, request).await;
            }
        }
        let question = PeerRequest::get(&format!("{STREAMS}?proxy={}", percent_encode(&name)));
        let mut found = named(&self.sources.connections, &name);
        let nothing = std::future::ready(());
        let ((), mut gathered) = gather(&replicas, others, question, nothing).await;
        gathered.require_success();
        for (_, answer) in &gathered.answers {
            let rows: Vec<Value> = serde_json::from_slice(&answer.body).unwrap_or_default();
            found.extend(rows.iter().map(|row| of_row(row, &answer.replica)));
        }
        let selected = select(found).map_err(|names| ambiguous(&name, &names))?;
        let mut response = match selected {
            Some(NamedStream { key, replica: Some(replica), .. }) => {
                let mut answers = gathered.answers.iter();
                let found = answers.find(|(_, answer)| answer.replica == replica);
                let (peer, _) = found.ok_or_else(|| unreadable(&replica))?;
                let request = incoming.with("proxy", &key)?.to_peer();
                return forward(&replicas, peer, request).await;
            }
            Some(NamedStream { key, .. }) => {
                self.next.run(incoming.with("proxy", &key)?.request).await
            }
            // The proxy may be connected to a replica that did not answer.
            None => self.next.run(incoming.request).await,
        };
        name_missing(&mut response, &gathered);
        Ok(response)
    }

    /// Adds the proxies of the other replicas to a change, which has a different number at each.
    async fn change(self, incoming: AdminRequest, others: Vec<Peer>) -> AdminResult {
        let replicas = Arc::clone(&self.sources.replicas);
        let request = PeerRequest::get("/debug/events");
        let local = self.next.run(incoming.request);
        let (mut local, mut gathered) = gather(&replicas, others, request, local).await;
        if local.status() != StatusCode::OK {
            name_missing(&mut local, &gathered);
            return Ok(local);
        }
        gathered.require_success();
        let body = to_bytes(local.into_body(), usize::MAX).await;
        let body = body.map_err(|_| unreadable(replicas.name()))?;
        let mut change: Value =
            serde_json::from_slice(&body).map_err(|_| unreadable(replicas.name()))?;
        change["replicas"] = json!([replicas.name()]);
        for (peer, answer) in std::mem::take(&mut gathered.answers) {
            let listed = serde_json::from_slice(&answer.body).unwrap_or_default();
            let Some(seq) = number_of(&change, listed) else { continue };
            let request = PeerRequest::get(&format!("/debug/events?seq={seq}"));
            let response = timeout(PATIENCE, replicas.request(&peer, request)).await;
            let reason = match response {
                Ok(Ok(whole)) if whole.status == StatusCode::OK => {
                    let whole = serde_json::from_slice(&whole.body).unwrap_or_default();
                    add_change(&mut change, &whole, &answer.replica);
                    continue;
                }
                Ok(Ok(refusal)) => refusal_text(&refusal),
                Ok(Err(reason)) => reason,
                Err(_) => late(),
            };
            gathered.missing.push(MissingReplica { peer, reason });
        }
        if !gathered.missing.is_empty() {
            change["missingReplicas"] = json!(names(&gathered));
        }
        let mut response = pretty(StatusCode::OK, &change);
        name_missing(&mut response, &gathered);
        Ok(response)
    }

    /// Merges the responses of all replicas.
    async fn merged(
        self,
        rule: MergeRule,
        incoming: AdminRequest,
        others: Vec<Peer>,
    ) -> AdminResult {
        let replicas = Arc::clone(&self.sources.replicas);
        let mut request = incoming.to_peer();
        if rule == MergeRule::EventsSince {
            // Each replica has its own numbers.
            request.path = "/debug/events".into();
        }
        let local = self.next.run(incoming.request);
        let (mut local, mut gathered) = gather(&replicas, others, request, local).await;
        if rule == MergeRule::FirstFound {
            return Ok(first_found(local, gathered));
        }
        if local.status() != StatusCode::OK {
            name_missing(&mut local, &gathered);
            return Ok(local);
        }
        gathered.require(|status| matches!(status, StatusCode::OK | StatusCode::NOT_FOUND));
        let (parts, body) = local.into_parts();
        let body = to_bytes(body, usize::MAX).await.map_err(|_| unreadable(replicas.name()))?;
        let own = (replicas.name().to_owned(), body);
        let answers = std::mem::take(&mut gathered.answers).into_iter().map(|(_, answer)| answer);
        let answers = answers.filter(|answer| answer.status == StatusCode::OK);
        let all: Vec<_> =
            std::iter::once(own).chain(answers.map(|one| (one.replica, one.body))).collect();
        let (count, missing) = (all.len(), names(&gathered));
        // Takes some milliseconds for a thousand proxies.
        let merging = tokio::task::spawn_blocking(move || {
            let read = |(replica, body): (String, Bytes)| {
                let value = serde_json::from_slice(&body).map_err(|_| unreadable(&replica))?;
                Ok(ReplicaAnswer { replica, value })
            };
            let answers = all.into_iter().map(read).collect::<Result<Vec<_>, AdminFailure>>()?;
            let mut merged = merge(rule, answers);
            if merged.is_object() && !missing.is_empty() {
                merged["missingReplicas"] = json!(missing);
            }
            Ok(pretty(parts.status, &merged))
        });
        let failed = |_| unreadable("this replica");
        let mut response = merging.await.map_err(failed)??;
        response.headers_mut().insert(REPLICAS, HeaderValue::from(count));
        name_missing(&mut response, &gathered);
        Ok(response)
    }
}

/// Sends a request to one other replica only.
async fn forward(replicas: &OtherReplicas, peer: &Peer, request: PeerRequest) -> AdminResult {
    let answered = timeout(LIFE, replicas.request(peer, request)).await;
    let answered =
        answered.unwrap_or_else(|_| Err(format!("it did not answer within {} s", LIFE.as_secs())));
    let answer = answered.map_err(|reason| {
        let text = format!("replica {} did not answer: {reason}", peer.label());
        AdminFailure(StatusCode::BAD_GATEWAY, text)
    })?;
    Ok(passed_on(answer))
}

/// Sends a request to other replicas while `local` runs, and waits for their responses for at most
/// [`PATIENCE`] after it.
pub(super) async fn gather<T>(
    replicas: &Arc<OtherReplicas>,
    others: Vec<Peer>,
    request: PeerRequest,
    local: impl Future<Output = T>,
) -> (T, PeerAnswers) {
    let mut gathered = PeerAnswers::default();
    if let Some(problem) = replicas.authentication_problem() {
        let missing = |peer| MissingReplica { peer, reason: problem.clone() };
        gathered.missing = others.into_iter().map(missing).collect();
        return (local.await, gathered);
    }
    let now = std::time::Instant::now();
    let (silent, mut waiting): (Vec<_>, Vec<_>) =
        others.into_iter().partition(|peer| replicas.is_silent(peer, now));
    let as_late = |peer| MissingReplica { peer, reason: late() };
    gathered.missing.extend(silent.into_iter().map(as_late));
    let mut requests = JoinSet::new();
    for peer in waiting.clone() {
        let (replicas, request) = (Arc::clone(replicas), request.clone());
        requests.spawn(async move {
            let answer = replicas.request(&peer, request).await;
            (peer, answer)
        });
    }
    let local = local.await;
    let deadline = Instant::now() + PATIENCE;
    while let Ok(Some(answered)) = timeout_at(deadline, requests.join_next()).await {
        let Ok((peer, answer)) = answered else { continue };
        waiting.retain(|one| *one != peer);
        let is_silent = answer.is_err() && now.elapsed() >= PATIENCE / 2;
        replicas.note(&peer, is_silent, std::time::Instant::now());
        match answer {
            Ok(answer) => gathered.answers.push((peer, answer)),
            Err(_) if replicas.is_this_process(&peer) => {}
            Err(reason) => gathered.missing.push(MissingReplica { peer, reason }),
        }
    }
    waiting.iter().for_each(|peer| replicas.note(peer, true, std::time::Instant::now()));
    gathered.missing.extend(waiting.into_iter().map(as_late));
    for MissingReplica { peer, reason } in &gathered.missing {
        debug!(replica = peer.label(), address = peer.address, %reason, "replica did not answer");
    }
    gathered.answers.sort_by(|(_, one), (_, other)| one.replica.cmp(&other.replica));
    gathered.missing.sort_by(|one, other| one.peer.label().cmp(other.peer.label()));
    (local, gathered)
}

impl PeerAnswers {
    /// Returns the replicas that did not respond, and why.
    pub(super) fn missing(&self) -> impl Iterator<Item = (String, String)> {
        self.missing.iter().map(|MissingReplica { peer, reason }| {
            let name = peer.label().to_owned();
            (name, format!("it is missing from responses ({}): {reason}", peer.address))
        })
    }

    /// Returns the names and the bodies of the successful responses.
    pub(super) fn successes(&self) -> impl Iterator<Item = (&str, &Bytes)> {
        let answers = self.answers.iter().filter(|(_, answer)| answer.status == StatusCode::OK);
        answers.map(|(_, answer)| (&*answer.replica, &answer.body))
    }

    /// Moves the responses with any other status to the missing ones, with the reason that the
    /// replica gave.
    fn require(&mut self, is_complete: impl Fn(StatusCode) -> bool) {
        let (complete, refused): (Vec<_>, Vec<_>) =
            self.answers.drain(..).partition(|(_, answer)| is_complete(answer.status));
        self.answers = complete;
        self.missing.extend(refused.into_iter().map(|(peer, answer)| {
            let reason = refusal_text(&answer);
            MissingReplica { peer, reason }
        }));
        self.missing.sort_by(|one, other| one.peer.label().cmp(other.peer.label()));
    }

    fn require_success(&mut self) {
        self.require(|status| status == StatusCode::OK);
    }
}

fn late() -> String {
    format!("it did not answer within {} s", PATIENCE.as_secs())
}

/// Describes a response of another replica that is not a success.
fn refusal_text(answer: &PeerAnswer) -> String {
    let value: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let text = value["error"].as_str().map(|text| format!(": {text}"));
    format!("it answered {}{}", answer.status, text.unwrap_or_default())
}

fn names(gathered: &PeerAnswers) -> Vec<String> {
    gathered.missing.iter().map(|one| one.peer.label().to_owned()).collect()
}

/// Names the missing replicas in a header, because most responses are arrays.
fn name_missing(response: &mut Response, gathered: &PeerAnswers) {
    let names = names(gathered);
    if let Ok(value) = HeaderValue::from_str(&names.join(","))
        && !names.is_empty()
    {
        response.headers_mut().insert(MISSING, value);
    }
    for MissingReplica { peer, reason } in &gathered.missing {
        let is_plain = |c: &char| c.is_ascii() && !c.is_ascii_control();
        let text: String = format!("{}: {reason}", peer.label()).chars().filter(is_plain).collect();
        if let Ok(value) = HeaderValue::from_str(head(&text, REASON_MAX)) {
            response.headers_mut().append(REASON, value);
        }
    }
}

fn passed_on(answer: PeerAnswer) -> Response {
    (answer.status, [(header::CONTENT_TYPE, "application/json")], answer.body).into_response()
}

/// Returns the first successful response.
fn first_found(mut local: Response, mut gathered: PeerAnswers) -> Response {
    if local.status() != StatusCode::NOT_FOUND {
        return local;
    }
    let mut answers = std::mem::take(&mut gathered.answers);
    if let Some(at) = answers.iter().position(|(_, answer)| answer.status == StatusCode::OK) {
        return passed_on(answers.swap_remove(at).1);
    }
    gathered.answers = answers;
    gathered.require(|status| status == StatusCode::NOT_FOUND);
    name_missing(&mut local, &gathered);
    local
}

fn unreadable(replica: &str) -> AdminFailure {
    let text = format!("the response of replica {replica} can't be read");
    AdminFailure(StatusCode::BAD_GATEWAY, text)
}

fn unknown_replica(replicas: &OtherReplicas, others: &[Peer], name: &str) -> AdminFailure {
    let mut all: Vec<_> = others.iter().map(Peer::label).chain([replicas.name()]).collect();
    all.sort_unstable();
    let text = format!("there is no replica {name:?}; the replicas are {}", all.join(", "));
    AdminFailure(StatusCode::NOT_FOUND, text)
}

/// Returns all replicas, and whether each responds.
fn list(
    replicas: &OtherReplicas,
    others: &[Peer],
    gathered: &PeerAnswers,
    problems: &[ReplicaProblem],
) -> Response {
    let own = replicas.name().to_owned();
    let mut rows = vec![Replica { name: own, state: ReplicaState::Own, ..Replica::default() }];
    // A name may have become known with the last response.
    let known = replicas.others();
    for peer in others.iter().filter(|peer| !replicas.is_this_process(peer)) {
        let missing = gathered.missing.iter().find(|one| one.peer.address == peer.address);
        let name = known.iter().find(|one| one.address == peer.address).unwrap_or(peer).label();
        let of_replica = problems
            .iter()
            .filter(|problem| problem.replica == name && *problem.code == codes::REPLICAS_DIFFER);
        rows.push(Replica {
            name: name.to_owned(),
            address: Some(peer.address.clone()),
            state: missing.map_or(ReplicaState::Answers, |_| ReplicaState::Missing),
            reason: missing.map(|one| one.reason.clone()),
            differences: of_replica.map(ReplicaProblem::row).collect(),
        });
    }
    let answer =
        Replicas { replicas: rows, problem: replicas.problem(), missing_replicas: names(gathered) };
    let mut response = pretty(StatusCode::OK, &answer);
    name_missing(&mut response, gathered);
    response
}

/// Returns the replicas of this control plane and whether each of them responds.
pub(super) async fn own(State(sources): SourcesState) -> AdminResult {
    // Another replica asks this one only whether it responds.
    Ok(pretty(StatusCode::OK, &ReplicaName { name: sources.replicas.name().to_owned() }))
}

#[derive(Deserialize)]
struct StreamsQuery {
    proxy: String,
}

/// Returns the streams of this replica that a name matches, for another replica.
async fn streams(State(sources): SourcesState, Query(query): Query<StreamsQuery>) -> AdminResult {
    let row = |one: &NamedStream| {
        json!({
            "exactness": one.exactness, "key": one.key, "id": one.id, "cluster": one.cluster,
            "workload": one.workload, "isOfConfiguration": one.is_of_configuration,
            "opened": one.opened,
        })
    };
    let rows: Vec<_> = named(&sources.connections, &query.proxy).iter().map(row).collect();
    Ok(pretty(StatusCode::OK, &rows))
}

/// Returns the last known state of this replica, for a replica that starts without one.
async fn state(State(sources): SourcesState) -> AdminResult {
    let Some(directory) = sources.state_dir.clone() else {
        let text = "this replica has no state directory";
        return Err(AdminFailure(StatusCode::NOT_FOUND, text.into()));
    };
    let packing = tokio::task::spawn_blocking(move || replica_state::pack(&directory));
    let packed = packing.await.map_err(|_| unreadable(sources.replicas.name()))?;
    let packed =
        packed.map_err(|error| AdminFailure(StatusCode::PAYLOAD_TOO_LARGE, error.to_string()))?;
    Ok((StatusCode::OK, packed).into_response())
}

/// Serves the connections of other replicas until the tasks are stopped.
pub(super) async fn serve(
    mut accepted: mpsc::Receiver<ReplicaConnection>,
    debug: Router<Arc<Sources>>,
    sources: Arc<Sources>,
) {
    let tasks = sources.tasks.child();
    let router = debug
        .route(STREAMS, get(streams))
        .route(replica_state::PATH, get(state))
        .with_state(Arc::clone(&sources));
    while let Some(connection) = accepted.recv().await {
        let router = router.clone();
        tasks.spawn("replica connection", async move {
            let ReplicaConnection { stream, room: _room } = connection;
            let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
                router.clone().oneshot(request.map(Body::new))
            });
            let mut http = http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(HEAD_LIMIT);
            let serving = http.serve_connection(TokioIo::new(stream.io), service);
            if let Ok(Err(error)) = timeout(LIFE, serving).await {
                debug!(replica = %stream.peer, %error, "a connection of a replica ended with an error");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_of_a_replica_is_reported_with_its_answer() {
        let answer = |name: &str, status: StatusCode, body: &'static str| {
            let peer =
                Peer { address: format!("{name}:15012"), pod: None, name: Some(name.into()) };
            let body = Bytes::from_static(body.as_bytes());
            (peer, PeerAnswer { replica: name.into(), status, body })
        };
        let answers = vec![
            answer("strait-a", StatusCode::OK, "[]"),
            answer("strait-d", StatusCode::FORBIDDEN, r#"{ "error": "no, \u00fc, thanks" }"#),
            answer("strait-b", StatusCode::NOT_FOUND, ""),
            answer("strait-c", StatusCode::BAD_REQUEST, "?"),
        ];
        let mut gathered = PeerAnswers { answers, missing: Vec::new() };
        gathered.require(|status| matches!(status, StatusCode::OK | StatusCode::NOT_FOUND));
        let mut response = StatusCode::OK.into_response();
        name_missing(&mut response, &gathered);
        assert_eq!(response.headers()[MISSING], "strait-c,strait-d");
        let reasons: Vec<_> = response.headers().get_all(REASON).into_iter().collect();
        assert_eq!(
            reasons,
            [
                "strait-c: it answered 400 Bad Request",
                "strait-d: it answered 403 Forbidden: no, , thanks"
            ]
        );
        assert_eq!(gathered.answers.len(), 2);
    }
}
