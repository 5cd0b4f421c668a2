//! Serves the requests of the hub on one connection: compares each with the list, and forwards it to the API server.
//!
//! Bodies pass through chunk by chunk. Only the windows of HTTP/2 limit the speed: at most [`STREAM_WINDOW`] bytes of a
//! stream wait in this process, and a slow hub slows down the API server.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{
    ACCEPT, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, RETRY_AFTER,
    USER_AGENT, WARNING,
};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Either, Full, Limited};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use serde_json::{Value, json};
use strait_base::codes::{self, Code};
use strait_base::lock::lock;
use strait_kube_client::{ApiClient, ApiError, ForwardedResponse, ResponseBody, one_line};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, Semaphore};
use tokio::time::timeout;
use tracing::{debug, warn};

use super::api_server::ApiServer;
use super::list::{Forward, Refusal, RequestList, is_roots_object};
use crate::wire::{
    HELLO_PATH, Hello, PING_LIMIT_SECONDS, PING_SECONDS, RENEW_HEADER, REPLICA_HEADER,
    VERSION_HEADER,
};

/// Window of one stream, and of all streams of a connection, for bodies that the hub sends. They are small.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
/// Size of the send buffer of a stream in bytes.
const SEND_BUFFER: usize = 16 << 10;
/// Maximum number of concurrent requests of the hub.
const STREAMS_MAX: u32 = 256;
/// Maximum size of the headers of a request in bytes.
const HEADER_BYTES_MAX: u32 = 32 << 10;
/// Maximum number of request bodies that are read at the same time.
const BODIES_MAX: usize = 8;
/// The time limit for the body of a request.
const BODY_LIMIT: Duration = Duration::from_secs(15);
/// The time limit for the head of a response. The hub's own limit is shorter.
const HEAD_LIMIT: Duration = Duration::from_secs(20);
/// A request that the hub cancels after this time without a response makes the connection to the API server doubtful.
const DOUBT_AFTER: Duration = Duration::from_secs(4);
/// The time limit for the facts in a hello.
const FACTS_LIMIT: Duration = Duration::from_secs(5);
/// The time in which open requests can end after the relay has decided to close a connection.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);
/// Maximum number of refused requests that are logged as warnings.
const LOGGED_MAX: usize = 256;
/// Maximum length of the name of a hub's replica, and maximum number of replicas.
const REPLICA_BYTES_MAX: usize = 253;
const REPLICAS_MAX: usize = 64;

/// Headers of a response that are passed on.
const RESPONSE_HEADERS: [HeaderName; 6] = [
    CONTENT_TYPE,
    CONTENT_LENGTH,
    CONTENT_ENCODING,
    RETRY_AFTER,
    WARNING,
    HeaderName::from_static("audit-id"),
];

/// A replica of the hub, as it introduces itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HubReplica {
    /// Its name.
    pub(super) name: String,
    /// The number of replicas.
    pub(super) count: usize,
}

impl HubReplica {
    /// Parses `NAME/COUNT`. A hub without a name is the only replica.
    fn parse(header: Option<&HeaderValue>) -> Self {
        let text = header.and_then(|header| header.to_str().ok()).unwrap_or_default();
        let (name, count) = text.rsplit_once('/').unwrap_or((text, "1"));
        let name = strait_base::bounded::head(name, REPLICA_BYTES_MAX).to_owned();
        let count = count.trim().parse().unwrap_or(1).clamp(1, REPLICAS_MAX);
        Self { name, count }
    }
}

/// The service that a relay offers to the hub.
pub(super) struct RequestForwarder {
    api: Arc<ApiServer>,
    list: RequestList,
    cluster: String,
    instance: String,
    bodies: Semaphore,
    /// The refused requests that were logged. Readers repeat them.
    logged: Mutex<BTreeSet<String>>,
    /// Notified if the hub asks for a renewal of the certificate.
    renewal: Arc<Notify>,
}

/// The body of a response: made by the relay, or passed on from the API server.
type RelayBody = Either<Full<Bytes>, ForwardedBody>;

impl RequestForwarder {
    pub(super) fn new(
        api: Arc<ApiServer>,
        list: RequestList,
        cluster: String,
        instance: String,
        renewal: Arc<Notify>,
    ) -> Self {
        let (bodies, logged) = (Semaphore::new(BODIES_MAX), Mutex::default());
        Self { api, list, cluster, instance, bodies, logged, renewal }
    }

    /// Serves a connection until it ends, or until `stop`; then open requests have a short time to end. Each hello
    /// passes the replica of the hub to `on_hello`.
    pub(super) async fn serve<S>(
        self: Arc<Self>,
        stream: S,
        on_hello: impl Fn(HubReplica) + Clone + Send + Sync + 'static,
        stop: impl Future<Output = ()>,
    ) -> Result<(), hyper::Error>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let service = service_fn(move |request| {
            let (relay, on_hello) = (Arc::clone(&self), on_hello.clone());
            async move { Ok::<_, Infallible>(relay.respond(request, &on_hello).await) }
        });
        let mut server = http2::Builder::new(TokioExecutor::new());
        server
            .timer(TokioTimer::new())
            .keep_alive_interval(Some(Duration::from_secs(PING_SECONDS)))
            .keep_alive_timeout(Duration::from_secs(PING_LIMIT_SECONDS))
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buf_size(SEND_BUFFER)
            .max_concurrent_streams(STREAMS_MAX)
            .max_header_list_size(HEADER_BYTES_MAX);
        let mut connection = pin!(server.serve_connection(TokioIo::new(stream), service));
        tokio::select! {
            ended = &mut connection => return ended,
            () = stop => connection.as_mut().graceful_shutdown(),
        }
        timeout(DRAIN_LIMIT, connection).await.unwrap_or(Ok(()))
    }

    async fn respond(
        &self,
        request: Request<Incoming>,
        on_hello: &(impl Fn(HubReplica) + Sync),
    ) -> Response<RelayBody> {
        let (head, body) = request.into_parts();
        let target = head.uri.path_and_query().map_or("", |target| target.as_str());
        if (&head.method, target) == (&Method::GET, HELLO_PATH) {
            let replica = HubReplica::parse(head.headers.get(REPLICA_HEADER));
            let version = head.headers.get(VERSION_HEADER).and_then(|text| text.to_str().ok());
            debug!(replica = replica.name, count = replica.count, version, "the hub says hello");
            if head.headers.contains_key(RENEW_HEADER) {
                self.renewal.notify_one();
            }
            let response = self.hello().await;
            on_hello(replica);
            return response;
        }
        let described = describe(&head.method, target);
        let forward = match self.list.judge(&head.method, target, &head.headers) {
            Ok(forward) => forward,
            Err(refusal) => return self.refuse(&described, refusal),
        };
        let body = match self.read_body(forward, target, body).await {
            Ok(body) => body,
            Err(BodyError::Refused) => return self.refuse(&described, Refusal::NotListed),
            Err(BodyError::TooLarge) => {
                let fact = format!("the body of {described} is too large or incomplete");
                return status(StatusCode::PAYLOAD_TOO_LARGE, &codes::RELAY_REFUSES, &fact);
            }
        };
        let headers = rebuild(&head.headers, forward);
        match exchange(self.api.client(), &head.method, target, &headers, body).await {
            Ok(forwarded) => pass_on(forwarded),
            Err(fact) => {
                warn!(request = described, %fact, "{}: the API server does not respond", codes::RELAY_API_SERVER);
                let fact = format!("{described}: {fact}");
                status(StatusCode::SERVICE_UNAVAILABLE, &codes::RELAY_API_SERVER, &fact)
            }
        }
    }

    fn refuse(&self, described: &str, refusal: Refusal) -> Response<RelayBody> {
        let fact = format!("the relay does not forward {described}: {refusal}");
        let is_new = {
            let mut logged = lock(&self.logged);
            logged.len() < LOGGED_MAX && logged.insert(described.to_owned())
        };
        match is_new {
            true => warn!("{}: {fact}", codes::RELAY_REFUSES),
            false => debug!("{}: {fact}", codes::RELAY_REFUSES),
        }
        status(StatusCode::FORBIDDEN, &codes::RELAY_REFUSES, &fact)
    }

    async fn hello(&self) -> Response<RelayBody> {
        let facts = timeout(FACTS_LIMIT, self.api.facts()).await.unwrap_or_default();
        let hello = Hello {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            instance: self.instance.clone(),
            cluster: self.cluster.clone(),
            cluster_uid: facts.uid,
            kubernetes: facts.version,
            allowed: self.list.groups(),
            media_types: vec!["full".to_owned()],
        };
        json_response(StatusCode::OK, &json!(hello))
    }

    /// Reads the body of a request, and checks the name of an object that is created.
    async fn read_body(
        &self,
        forward: Forward,
        target: &str,
        body: Incoming,
    ) -> Result<Bytes, BodyError> {
        if forward == Forward::Plain {
            return Ok(Bytes::new());
        }
        let read = async {
            let _permit = self.bodies.acquire().await.map_err(|_| BodyError::TooLarge)?;
            let body = Limited::new(body, forward.body_bytes_max()).collect().await;
            body.map(|body| body.to_bytes()).map_err(|_| BodyError::TooLarge)
        };
        let bytes = timeout(BODY_LIMIT, read).await.map_err(|_| BodyError::TooLarge)??;
        if forward != Forward::CreateRoots {
            return Ok(bytes);
        }
        let object: Value = serde_json::from_slice(&bytes).map_err(|_| BodyError::Refused)?;
        if !is_roots_object(&object, target) {
            return Err(BodyError::Refused);
        }
        // Encoded again: the API server reads exactly the fields that were checked.
        serde_json::to_vec(&object).map(Bytes::from).map_err(|_| BodyError::Refused)
    }
}

enum BodyError {
    Refused,
    TooLarge,
}

/// Returns the headers that the relay sends to the API server.
fn rebuild(headers: &HeaderMap, forward: Forward) -> HeaderMap {
    let mut rebuilt = HeaderMap::new();
    for name in [ACCEPT, USER_AGENT, CONTENT_TYPE] {
        let is_needed = name != CONTENT_TYPE || forward != Forward::Plain;
        if let Some(value) = headers.get(&name).filter(|_| is_needed) {
            rebuilt.insert(name, value.clone());
        }
    }
    rebuilt
}

/// Sends a request to the API server. A connection on which no response comes is not used again.
async fn exchange(
    client: ApiClient,
    method: &Method,
    target: &str,
    headers: &HeaderMap,
    body: Bytes,
) -> Result<ForwardedResponse, String> {
    let mut pending = PendingResponse { client, since: Instant::now(), has_response: false };
    let exchange = pending.client.forward(method, target, headers, body);
    // Boxed, so that a watch does not keep the memory of the request.
    let response = match timeout(HEAD_LIMIT, Box::pin(exchange)).await {
        Ok(response) => response.map_err(|error| fact(&error)),
        Err(_) => return Err(format!("no response within {} s", HEAD_LIMIT.as_secs())),
    };
    pending.has_response = true;
    response
}

/// Returns the reason without the request, which the message has already.
fn fact(error: &ApiError) -> String {
    match error {
        ApiError::Broken { fact, .. } => fact.clone(),
        error => error.to_string(),
    }
}

/// A request without a response. If it is dropped after some time, the connection to the API server may be dead.
struct PendingResponse {
    client: ApiClient,
    since: Instant,
    has_response: bool,
}

impl Drop for PendingResponse {
    fn drop(&mut self) {
        if !self.has_response && self.since.elapsed() >= DOUBT_AFTER {
            self.client.forget_connections();
        }
    }
}

/// Passes on a response of the API server.
fn pass_on(forwarded: ForwardedResponse) -> Response<RelayBody> {
    let (head, body) = forwarded.response.into_parts();
    let mut response =
        Response::new(Either::Right(ForwardedBody { body, _permit: forwarded.permit }));
    *response.status_mut() = head.status;
    for name in RESPONSE_HEADERS {
        for value in head.headers.get_all(&name) {
            response.headers_mut().append(&name, value.clone());
        }
    }
    response
}

/// The body of a response of the API server, with the permit for its stream.
struct ForwardedBody {
    body: ResponseBody,
    _permit: Option<strait_kube_client::StreamPermit>,
}

impl Body for ForwardedBody {
    type Data = Bytes;
    type Error = <ResponseBody as Body>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Returns a request in one line of limited length, without its query.
fn describe(method: &Method, target: &str) -> String {
    let (path, _) = target.split_once('?').unwrap_or((target, ""));
    one_line(&format!("{method} {path}"))
}

/// Returns an error in the form of an API server.
fn status(status: StatusCode, code: &Code, fact: &str) -> Response<RelayBody> {
    let reason = match status {
        StatusCode::FORBIDDEN => "Forbidden",
        StatusCode::PAYLOAD_TOO_LARGE => "RequestEntityTooLarge",
        _ => "ServiceUnavailable",
    };
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": format!("{code}: {fact}"), "reason": reason, "code": status.as_u16(),
    });
    json_response(status, &body)
}

fn json_response(status: StatusCode, body: &Value) -> Response<RelayBody> {
    let mut response = Response::new(Either::Left(Full::new(Bytes::from(body.to_string()))));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replica_is_a_name_and_a_count() {
        for (text, name, count) in [
            ("strait-0/3", "strait-0", 3),
            ("a/b/2", "a/b", 2),
            ("strait-0", "strait-0", 1),
            ("strait-0/", "strait-0", 1),
            ("strait-0/0", "strait-0", 1),
            ("strait-0/1000000", "strait-0", REPLICAS_MAX),
            ("", "", 1),
        ] {
            let replica = HubReplica::parse(Some(&HeaderValue::from_static(text)));
            assert_eq!((&*replica.name, replica.count), (name, count), "{text}");
        }
        assert_eq!(HubReplica::parse(None).count, 1);
    }

    #[test]
    fn only_three_headers_of_the_hub_are_sent() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("accept", "application/json"),
            ("authorization", "Bearer canary"),
            ("content-type", "application/json"),
            ("cookie", "a=b"),
            ("user-agent", "strait/1"),
            ("x-forwarded-for", "192.0.2.1"),
            ("x-remote-user", "admin"),
        ] {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let names = |forward| {
            let mut names: Vec<_> =
                rebuild(&headers, forward).keys().map(HeaderName::to_string).collect();
            names.sort();
            names
        };
        assert_eq!(names(Forward::Plain), ["accept", "user-agent"]);
        assert_eq!(names(Forward::WithBody(1)), ["accept", "content-type", "user-agent"]);
    }
}
