//! The webhook: an HTTPS server for the API servers of all clusters.
//!
//! Any client that reaches the port may send requests. It learns only how injection would change its pod, and how its
//! object would be validated, which includes whether hosts and subsets exist and which object was created first. The
//! cost is bounded: the number and lifetime of connections, the time to send a request, the size of a request, and the
//! number of requests in progress. If there is no room for a connection, the oldest one is closed; an API server
//! reconnects by itself.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::counts::{InjectionCounts, InjectionResult};
use super::review;
use super::settings::{FindPodDefaults, InjectSettings};
use strait_base::descriptors::{Descriptors, ListeningPort, Seat};
use strait_base::task::Supervisor;
use strait_identity::ServerIdentity;
use strait_model::ClusterId;

/// The path for validation requests, which API servers send before they store an object.
const VALIDATE_PATH: &str = "/validate";
/// The maximum size of a request, in bytes. An API server accepts no larger object. (A request for an update contains
/// the object twice; etcd's limit is 1.5 MiB.)
const QUESTION_BYTES_MAX: usize = 3 << 20;
/// The time limits of a handshake, of the head of a request, and of a complete request with its response.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
const HEAD_LIMIT: Duration = Duration::from_secs(10);
const QUESTION_LIMIT: Duration = Duration::from_secs(10);
/// The maximum age of a connection, and the time for requests in progress after it.
const LIFE: Duration = Duration::from_secs(600);
const GOODBYE_LIMIT: Duration = Duration::from_secs(2);
/// The maximum number of connections. While old connections are closing, there may be twice as many.
const CONNECTIONS_MAX: usize = 256;
/// Requests above this size, in bytes, acquire a permit before the rest is read. Therefore idle connections delay no
/// other client, and many large requests do not exhaust the memory.
const SHORT_BYTES_MAX: usize = 128 << 10;
/// The number of large requests that are read and answered at the same time. Others wait.
const LONG_QUESTIONS_MAX: usize = 8;
/// The number of validations that run at the same time. Their requests have been read completely.
const VALIDATIONS_MAX: usize = 2;
/// File descriptors reserved for API servers.
const RESERVE: usize = 2;

/// The settings of the webhook.
#[derive(Debug, Clone)]
pub struct WebhookSettings {
    /// The settings for pods. The path of a request overrides the cluster and network.
    pub inject: InjectSettings,
    /// Addresses of the control plane for proxies of some clusters. Other clusters use `inject.discovery`.
    pub discovery: BTreeMap<ClusterId, String>,
}

/// A function that handles a validation request. Returns the response, or the reason why it failed.
/// It may block.
pub type AnswerReview = Arc<dyn Fn(&[u8]) -> Result<String, String> + Send + Sync>;

struct Webhook {
    settings: WebhookSettings,
    defaults: FindPodDefaults,
    validate: AnswerReview,
    identity: watch::Receiver<Arc<ServerIdentity>>,
    counts: Arc<InjectionCounts>,
    open: OpenConnections,
    long_questions: Semaphore,
    validations: Arc<Semaphore>,
}

/// The status and reason of a failed request.
type NoAnswer = (StatusCode, String);

/// Accepts connections until the tasks are stopped.
pub async fn serve(
    listener: TcpListener,
    (settings, defaults): (WebhookSettings, FindPodDefaults),
    validate: AnswerReview,
    identity: watch::Receiver<Arc<ServerIdentity>>,
    counts: Arc<InjectionCounts>,
    descriptors: Arc<Descriptors>,
    tasks: Supervisor,
) {
    let mut port = ListeningPort::new("webhook", listener, RESERVE, descriptors);
    let webhook = Arc::new(Webhook {
        settings,
        defaults,
        validate,
        identity,
        counts,
        open: OpenConnections::default(),
        long_questions: Semaphore::new(LONG_QUESTIONS_MAX),
        validations: Arc::new(Semaphore::new(VALIDATIONS_MAX)),
    });
    let room = Arc::new(Semaphore::new(2 * CONNECTIONS_MAX));
    loop {
        // The error has been reported, and the next call pauses.
        let Ok((socket, _, seat)) = port.accept().await else { continue };
        let Ok(permit) = Arc::clone(&room).try_acquire_owned() else { continue };
        let webhook = Arc::clone(&webhook);
        tasks.spawn("webhook connection", async move {
            webhook.converse(socket, seat).await;
            drop(permit);
        });
    }
}

impl Webhook {
    async fn converse(self: Arc<Self>, socket: TcpStream, _seat: Seat) {
        let (number, end) = self.open.enter();
        let config = self.identity.borrow().webhook_config();
        let ended = match config {
            Ok(config) => self.answer_all(socket, TlsAcceptor::from(config), &end).await,
            Err(error) => Err(error.to_string()),
        };
        self.open.leave(number);
        if let Err(error) = ended {
            debug!(error, "a connection to the webhook failed");
        }
    }

    async fn answer_all(
        self: &Arc<Self>,
        socket: TcpStream,
        acceptor: TlsAcceptor,
        end: &CancellationToken,
    ) -> Result<(), String> {
        let handshake = tokio::time::timeout(HANDSHAKE_LIMIT, acceptor.accept(socket)).await;
        let stream = handshake.map_err(|_| "the handshake took too long")?;
        let io = TokioIo::new(stream.map_err(|error| error.to_string())?);
        let webhook = Arc::clone(self);
        let service = service_fn(move |request| {
            let webhook = Arc::clone(&webhook);
            async move { Ok::<_, Infallible>(webhook.respond(request).await) }
        });
        let mut http = auto::Builder::new(TokioExecutor::new());
        http.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_LIMIT);
        http.http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(64)
            .max_header_list_size(16 << 10)
            .keep_alive_interval(Duration::from_secs(30))
            .keep_alive_timeout(Duration::from_secs(10));
        let mut connection = std::pin::pin!(http.serve_connection(io, service));
        tokio::select! {
            ended = &mut connection => return ended.map_err(|error| error.to_string()),
            () = end.cancelled() => {}
            () = tokio::time::sleep(LIFE) => {}
        }
        connection.as_mut().graceful_shutdown();
        match tokio::time::timeout(GOODBYE_LIMIT, connection).await {
            Ok(ended) => ended.map_err(|error| error.to_string()),
            Err(_) => Ok(()),
        }
    }

    async fn respond(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let is_validation = request.uri().path() == VALIDATE_PATH;
        let answer = async {
            if is_validation { self.validated(request).await } else { self.answer(request).await }
        };
        let late = (StatusCode::REQUEST_TIMEOUT, "the request took too long".to_owned());
        let answer = tokio::time::timeout(QUESTION_LIMIT, answer).await;
        match answer.unwrap_or(Err(late)) {
            Ok(answer) => with_type(StatusCode::OK, "application/json", answer),
            Err((status, reason)) => {
                if !is_validation {
                    self.counts.count(InjectionResult::Failed);
                }
                debug!(%status, reason, "the webhook failed to respond");
                with_type(status, "text/plain; charset=utf-8", format!("{reason}\n"))
            }
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Result<String, NoAnswer> {
        let Some(settings) = self.settings.settings_for_path(request.uri().path()) else {
            let text = "there is /inject, /inject/cluster/ID/net/NETWORK and /validate";
            return Err((StatusCode::NOT_FOUND, text.into()));
        };
        let (body, _turn) = self.question(request).await?;
        let (answer, result) = review::answer(&body, &settings, &*self.defaults)
            .map_err(|reason| (StatusCode::BAD_REQUEST, reason))?;
        self.counts.count(result);
        Ok(answer.to_string())
    }

    /// Reads the body of a request. A large request also returns its permit.
    async fn question(
        &self,
        request: Request<Incoming>,
    ) -> Result<(Vec<u8>, Option<SemaphorePermit<'_>>), NoAnswer> {
        if request.method() != Method::POST {
            return Err((StatusCode::METHOD_NOT_ALLOWED, "POST an AdmissionReview".into()));
        }
        let mut body = Limited::new(request.into_body(), QUESTION_BYTES_MAX);
        let (mut text, mut turn) = (Vec::new(), None);
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| {
                let text = format!("the request cannot be read, or is larger than 3 MiB: {error}");
                (StatusCode::PAYLOAD_TOO_LARGE, text)
            })?;
            let Ok(data) = frame.into_data() else { continue };
            if turn.is_none() && text.len() + data.len() > SHORT_BYTES_MAX {
                // The semaphore is never closed.
                turn = self.long_questions.acquire().await.ok();
            }
            text.extend_from_slice(&data);
        }
        Ok((text, turn))
    }

    /// Validates an object on a blocking thread, so that other requests are not delayed.
    async fn validated(&self, request: Request<Incoming>) -> Result<String, NoAnswer> {
        let (body, _long) = self.question(request).await?;
        // The semaphore is never closed.
        let turn = Arc::clone(&self.validations).acquire_owned().await;
        let validate = Arc::clone(&self.validate);
        let answer = tokio::task::spawn_blocking(move || {
            // Keeps the permit until the validation has ended, even if the client disconnects earlier.
            let _turn = turn;
            validate(&body)
        });
        let failed = |_| {
            let text = "processing this request failed; see the log for the location";
            (StatusCode::INTERNAL_SERVER_ERROR, text.to_owned())
        };
        answer.await.map_err(failed)?.map_err(|reason| (StatusCode::BAD_REQUEST, reason))
    }
}

fn with_type(status: StatusCode, kind: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    response
}

impl WebhookSettings {
    /// Returns the settings for the cluster and network in a path, in the syntax of Istio's webhook: pairs of a word
    /// and its value after `/inject`.
    pub fn settings_for_path(&self, path: &str) -> Option<InjectSettings> {
        let mut settings = self.inject.clone();
        let rest = path.strip_prefix("/inject")?;
        let mut segments = rest.split('/').skip(1).filter(|segment| !segment.is_empty());
        if !rest.is_empty() && !rest.starts_with('/') {
            return None;
        }
        while let Some(key) = segments.next() {
            match (key, segments.next()?) {
                ("cluster", id) => settings.cluster = ClusterId::parse(id).ok()?.to_string(),
                ("net", network) => settings.network = Some(network.to_owned()),
                _ => return None,
            }
        }
        let cluster = ClusterId::parse(&settings.cluster).ok();
        if let Some(discovery) = cluster.and_then(|id| self.discovery.get(&id)) {
            settings.discovery.clone_from(discovery);
        }
        Some(settings)
    }
}

/// The open connections, oldest first.
#[derive(Debug, Default)]
struct OpenConnections(Mutex<OpenTable>);

#[derive(Debug, Default)]
struct OpenTable {
    next: u64,
    open: BTreeMap<u64, CancellationToken>,
}

impl OpenConnections {
    fn table(&self) -> MutexGuard<'_, OpenTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a connection. If the table is full, the oldest one begins to close.
    fn enter(&self) -> (u64, CancellationToken) {
        let mut table = self.table();
        if table.open.len() >= CONNECTIONS_MAX
            && let Some((_, oldest)) = table.open.pop_first()
        {
            oldest.cancel();
        }
        let (number, end) = (table.next, CancellationToken::new());
        table.next += 1;
        table.open.insert(number, end.clone());
        (number, end)
    }

    fn leave(&self, number: u64) {
        self.table().open.remove(&number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_connection_is_closed_when_the_table_is_full() {
        let connections = OpenConnections::default();
        let (_, first) = connections.enter();
        let (second_number, second) = connections.enter();
        (2..CONNECTIONS_MAX).for_each(|_| drop(connections.enter()));
        assert!(!first.is_cancelled());
        connections.enter();
        assert!(first.is_cancelled() && !second.is_cancelled());
        connections.leave(second_number);
        connections.enter();
        assert!(!second.is_cancelled(), "there was room again");
    }
}
