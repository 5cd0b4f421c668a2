//! The webhook: HTTPS for the API servers of all clusters.
//!
//! Anyone who reaches the port may ask, and learns nothing but what injection would do to a pod of theirs, and what would
//! become of an object of theirs (whose hosts and subsets are there, and which object came first). What that costs
//! is bounded: connections, how long each may take to ask and to last, the length of a question and how many are answered
//! at once. When there is no room, the oldest connection makes some: an API server comes again by itself.

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

/// Where API servers ask before they store an object.
const VALIDATE_PATH: &str = "/validate";
/// The longest question, in bytes: an API server takes no larger object. (One of an update holds the object twice; etcd
/// takes 1.5 MiB.)
const QUESTION_BYTES_MAX: usize = 3 << 20;
/// How long a handshake, the head of a request, and a whole question may take.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
const HEAD_LIMIT: Duration = Duration::from_secs(10);
const QUESTION_LIMIT: Duration = Duration::from_secs(10);
/// How long a connection may last, and what is under way when it is to end.
const LIFE: Duration = Duration::from_secs(600);
const GOODBYE_LIMIT: Duration = Duration::from_secs(2);
/// Connections at once; for a moment, while old ones end, twice as many.
const CONNECTIONS_MAX: usize = 256;
/// A longer question, in bytes, takes a turn before the rest of it is read: who opens connections and says nothing keeps
/// nobody waiting, and many long ones don't take the memory.
const SHORT_BYTES_MAX: usize = 128 << 10;
/// Long questions that are read and answered at once; others wait.
const LONG_QUESTIONS_MAX: usize = 8;
/// Questions about objects that are worked out at once. They have been read by then.
const VALIDATIONS_MAX: usize = 2;
/// Descriptors that are kept for API servers.
const RESERVE: usize = 2;

/// What the webhook answers by.
#[derive(Debug, Clone)]
pub struct WebhookSettings {
    /// What holds for pods of clusters that the path doesn't name.
    pub inject: InjectSettings,
    /// Where proxies of some clusters find the control plane, by cluster; others as the settings say.
    pub discovery: BTreeMap<ClusterId, String>,
}

/// Answers what API servers ask before they store an object: the answer, or why there is none. May take a moment.
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

/// Why there is no answer.
type NoAnswer = (StatusCode, String);

/// Serves until the tasks are stopped.
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
            debug!(error, "a connection to the webhook broke off");
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
        let late = (StatusCode::REQUEST_TIMEOUT, "the question took too long".to_owned());
        let answer = tokio::time::timeout(QUESTION_LIMIT, answer).await;
        match answer.unwrap_or(Err(late)) {
            Ok(answer) => with_type(StatusCode::OK, "application/json", answer),
            Err((status, reason)) => {
                if !is_validation {
                    self.counts.count(InjectionResult::Failed);
                }
                debug!(%status, reason, "the webhook can't answer");
                with_type(status, "text/plain; charset=utf-8", format!("{reason}\n"))
            }
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Result<String, NoAnswer> {
        let Some(settings) = self.settings.of_path(request.uri().path()) else {
            let text = "there is /inject, /inject/cluster/ID/net/NETWORK and /validate";
            return Err((StatusCode::NOT_FOUND, text.into()));
        };
        let (body, _turn) = self.question(request).await?;
        let (answer, result) = review::answer(&body, &settings, &*self.defaults)
            .map_err(|reason| (StatusCode::BAD_REQUEST, reason))?;
        self.counts.count(result);
        Ok(answer.to_string())
    }

    /// The text of a question, and of a long one the turn that goes with it.
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
                let text = format!("the question can't be read, or is longer than 3 MiB: {error}");
                (StatusCode::PAYLOAD_TOO_LARGE, text)
            })?;
            let Ok(data) = frame.into_data() else { continue };
            if turn.is_none() && text.len() + data.len() > SHORT_BYTES_MAX {
                // It is never closed.
                turn = self.long_questions.acquire().await.ok();
            }
            text.extend_from_slice(&data);
        }
        Ok((text, turn))
    }

    /// What is said of an object, worked out aside: what others ask goes on meanwhile.
    async fn validated(&self, request: Request<Incoming>) -> Result<String, NoAnswer> {
        let (body, _long) = self.question(request).await?;
        // It is never closed.
        let turn = Arc::clone(&self.validations).acquire_owned().await;
        let validate = Arc::clone(&self.validate);
        let answer = tokio::task::spawn_blocking(move || {
            // Who asks may be gone before this is done.
            let _turn = turn;
            validate(&body)
        });
        let failed = |_| {
            let text = "working out this answer failed; the log says where";
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
    /// What holds for pods of the cluster and network that a path names, as Istio's webhook has it: pairs of a word and its
    /// value after `/inject`.
    pub fn of_path(&self, path: &str) -> Option<InjectSettings> {
        let mut settings = self.inject.clone();
        let rest = path.strip_prefix("/inject")?;
        let mut segments = rest.split('/').skip(1).filter(|segment| !segment.is_empty());
        if !rest.is_empty() && !rest.starts_with('/') {
            return None;
        }
        while let Some(word) = segments.next() {
            match (word, segments.next()?) {
                ("cluster", id) => settings.cluster = ClusterId::parse(id).ok()?.to_string(),
                ("net", network) => settings.network = Some(network.to_owned()),
                _ => return None,
            }
        }
        let known = ClusterId::parse(&settings.cluster).ok();
        if let Some(discovery) = known.and_then(|id| self.discovery.get(&id)) {
            settings.discovery.clone_from(discovery);
        }
        Some(settings)
    }
}

/// The connections that are open, oldest first.
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

    /// Lets one in. Where there is no room, the oldest is asked to go.
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
    fn the_oldest_connection_makes_room() {
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
