//! The admin port: served by a dedicated thread, with a limited number of connections, none of
//! which may send its request slowly.
//!
//! Any client that reaches the port may open idle connections. When there is no room, the
//! connection that has been idle longest is closed; a probe sends its request immediately and is
//! answered. Slow responses are computed by dedicated threads, few at a time. The workers that
//! serve proxies take no part in any of this.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;
use tracing::{debug, warn};

use super::failure::AdminFailure;
use strait_base::descriptors::{self, Descriptors, ListeningPort, Seat};
use strait_base::task::Supervisor;

/// Maximum time to receive the head of a request, also of the following requests on a connection.
const HEAD_LIMIT: Duration = Duration::from_secs(10);
/// Maximum size of the head of a request in bytes.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Time after which a connection whose response is still in progress may be closed to make room.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Maximum lifetime of a connection, and the time for a last response after that.
const LIFE: (Duration, Duration) = (Duration::from_secs(300), Duration::from_secs(30));
/// Maximum number of slow responses computed at once.
const LONG_ANSWERS_MAX: usize = 2;
/// Paths that process every configuration object and may take seconds: computed one at a time, and
/// other paths don't wait for them.
const HEAVY_PATHS: [&str; 3] = ["/debug/config", "/debug/diff", "/debug/scope"];
const HEAVY_ANSWERS_MAX: usize = 1;
/// Maximum wait of a request for its turn, because waiting requests occupy connections.
const TURN_LIMIT: Duration = Duration::from_secs(5);
/// Maximum number of threads for slow responses and the work that they delegate.
const THREADS_MAX: usize = 8;
/// Maximum number of connections, if file descriptors suffice: for about a hundred browsers, each
/// with one connection for announcements and some for requests.
const CONNECTIONS_MAX: usize = 512;
/// File descriptors reserved for probes.
const RESERVE: usize = 4;

/// Limit and counters of the port's connections.
#[derive(Debug)]
pub struct ConnectionLimiter {
    most: usize,
    rejected: AtomicU64,
    refused: AtomicU64,
    table: Mutex<ConnectionTable>,
}

#[derive(Debug, Default)]
struct ConnectionTable {
    next: u64,
    open: BTreeMap<u64, OpenConnection>,
}

/// An open connection.
#[derive(Debug)]
struct OpenConnection {
    /// Time since which it is idle or its response is in progress.
    since: Instant,
    answering: bool,
    end: CancellationToken,
}

impl Default for ConnectionLimiter {
    /// Returns a limiter that fits the limit of file descriptors.
    fn default() -> Self {
        Self::of(descriptors::share(8, 8, CONNECTIONS_MAX))
    }
}

impl ConnectionLimiter {
    /// Returns a limiter for at most `most` connections.
    fn of(most: usize) -> Self {
        let (rejected, refused) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { most, rejected, refused, table: Mutex::default() }
    }

    /// Returns the maximum number of connections.
    pub fn most(&self) -> usize {
        self.most
    }

    /// Returns the number of open connections.
    pub fn open(&self) -> usize {
        self.table().open.len()
    }

    /// Returns the number of connections that were closed to make room.
    pub fn rejected(&self) -> u64 {
        self.rejected.load(Ordering::Relaxed)
    }

    /// Returns the number of connections that were refused because all others had responses in
    /// progress.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    fn table(&self) -> MutexGuard<'_, ConnectionTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a connection. If there is no room, closes the connection that has been idle longest,
    /// otherwise one whose response has been in progress too long. Returns `None` if there is
    /// neither.
    fn enter(self: &Arc<Self>, now: Instant) -> Option<ConnectionPermit> {
        let mut table = self.table();
        if table.open.len() >= self.most {
            let oldest = |answering: bool| {
                let of = table.open.iter().filter(|(_, one)| one.answering == answering);
                of.min_by_key(|(_, one)| one.since).map(|(number, one)| (*number, one.since))
            };
            let late = |(_, since): &(u64, Instant)| now.duration_since(*since) > ANSWER_LIMIT;
            let Some((number, _)) = oldest(false).or_else(|| oldest(true).filter(late)) else {
                self.refused.fetch_add(1, Ordering::Relaxed);
                return None;
            };
            if let Some(one) = table.open.remove(&number) {
                one.end.cancel();
                self.rejected.fetch_add(1, Ordering::Relaxed);
            }
        }
        let number = table.next;
        table.next += 1;
        let end = CancellationToken::new();
        table
            .open
            .insert(number, OpenConnection { since: now, answering: false, end: end.clone() });
        drop(table);
        Some(ConnectionPermit { admin_connections: Arc::clone(self), number, end })
    }
}

/// Permit of a connection; dropping it ends the connection.
#[derive(Debug)]
struct ConnectionPermit {
    admin_connections: Arc<ConnectionLimiter>,
    number: u64,
    /// Cancelled when the connection must be closed.
    end: CancellationToken,
}

impl ConnectionPermit {
    fn note(&self, answering: bool) {
        if let Some(open) = self.admin_connections.table().open.get_mut(&self.number) {
            (open.since, open.answering) = (Instant::now(), answering);
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.admin_connections.table().open.remove(&self.number);
    }
}

/// Serves `router` on a dedicated thread until the tasks are stopped.
pub(super) async fn serve(
    listener: TcpListener,
    router: Router,
    admin_connections: Arc<ConnectionLimiter>,
    descriptors: Arc<Descriptors>,
    tasks: Supervisor,
) {
    let (running, ended) = oneshot::channel::<()>();
    let serving = move || {
        // Dropped when the thread ends, also after a panic.
        let _running = running;
        if let Err(error) = serve_here(listener, router, admin_connections, descriptors, &tasks) {
            warn!(%error, "serving the admin port failed");
        }
    };
    match std::thread::Builder::new().name("admin".into()).spawn(serving) {
        // Waits until the thread drops the sender.
        Ok(_thread) => drop(ended.await),
        Err(error) => {
            warn!(%error, "starting the thread of the admin port failed; the port is not served");
        }
    }
}

/// Serves `router` on the current thread.
fn serve_here(
    listener: TcpListener,
    router: Router,
    admin_connections: Arc<ConnectionLimiter>,
    descriptors: Arc<Descriptors>,
    tasks: &Supervisor,
) -> io::Result<()> {
    let listener = listener.into_std()?;
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().max_blocking_threads(THREADS_MAX).build()?;
    runtime.block_on(async {
        let listener = TcpListener::from_std(listener)?;
        let port = ListeningPort::new("admin", listener, RESERVE, descriptors);
        let stopping = tasks.stopping();
        tokio::select! {
            () = stopping.cancelled() => {}
            () = accept(port, router, admin_connections, tasks.child()) => {}
        }
        io::Result::Ok(())
    })?;
    // A response in progress ends on its own.
    runtime.shutdown_background();
    Ok(())
}

async fn accept(
    mut port: ListeningPort,
    router: Router,
    admin_connections: Arc<ConnectionLimiter>,
    tasks: Supervisor,
) {
    loop {
        // The error has been reported, and the next call pauses.
        let Ok((socket, _, seat)) = port.accept().await else { continue };
        let Some(place) = admin_connections.enter(Instant::now()) else { continue };
        let router = router.clone();
        tasks.spawn("admin connection", async move {
            let io = TokioIo::new(socket);
            converse(io, router, place, seat).await;
        });
        // Lets the closed connection end first, which releases its file descriptor.
        tokio::task::yield_now().await;
    }
}

/// Answers the requests on one connection.
async fn converse(
    io: TokioIo<tokio::net::TcpStream>,
    router: Router,
    place: ConnectionPermit,
    _seat: Seat,
) {
    let place = &place;
    let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
        let router = router.clone();
        async move {
            place.note(true);
            let answer = router.oneshot(request.map(Body::new)).await;
            // The response still has to be sent. A client that does not read it counts as idle,
            // unless the response is a stream of events.
            let is_stream_open = answer.as_ref().is_ok_and(|answer| is_stream(answer.headers()));
            place.note(is_stream_open);
            answer
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_LIMIT).max_header_size(HEAD_BYTES_MAX);
    let mut connection = std::pin::pin!(http.serve_connection(io, service));
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = place.end.cancelled() => return,
        () = tokio::time::sleep(LIFE.0) => {
            connection.as_mut().graceful_shutdown();
            match tokio::time::timeout(LIFE.1, connection).await {
                Ok(ended) => ended,
                Err(_) => return,
            }
        }
    };
    if let Err(error) = ended {
        debug!(%error, "a connection to the admin port ended with an error");
    }
}

fn is_stream(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind == "text/event-stream")
}

/// Semaphores for slow responses.
#[derive(Clone)]
pub(super) struct Workers {
    long: Arc<Semaphore>,
    heavy: Arc<Semaphore>,
}

impl Default for Workers {
    fn default() -> Self {
        let [long, heavy] =
            [LONG_ANSWERS_MAX, HEAVY_ANSWERS_MAX].map(|turns| Arc::new(Semaphore::new(turns)));
        Self { long, heavy }
    }
}

/// Computes a response on a thread that may block.
pub(super) async fn aside(
    State(workers): State<Workers>,
    request: Request,
    next: Next,
) -> Result<Response, Infallible> {
    let is_heavy = HEAVY_PATHS.contains(&request.uri().path());
    let turns = if is_heavy { workers.heavy } else { workers.long };
    let Ok(permit) = tokio::time::timeout(TURN_LIMIT, turns.acquire_owned()).await else {
        let text = "other slow requests are in progress; retry in a moment";
        let failure = AdminFailure(StatusCode::SERVICE_UNAVAILABLE, text.into());
        return Ok(failure.into_response());
    };
    let runtime = tokio::runtime::Handle::current();
    let answer = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        runtime.block_on(next.run(request))
    });
    Ok(answer.await.unwrap_or_else(|_| {
        let text = "computing the response failed; see the log";
        AdminFailure(StatusCode::INTERNAL_SERVER_ERROR, text.into()).into_response()
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_idle_connection_makes_room_and_active_ones_stay() {
        let admin_connections = Arc::new(ConnectionLimiter::of(3));
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let [first, second, third] =
            [0, 1, 2].map(|at| admin_connections.enter(after(at)).expect("room"));
        first.note(true);
        let fourth = admin_connections.enter(after(3)).expect("the second goes");
        assert!(second.end.is_cancelled());
        assert!(![&first, &third, &fourth].into_iter().any(|place| place.end.is_cancelled()));
        drop(second);
        assert_eq!((admin_connections.open(), admin_connections.rejected()), (3, 1));
        third.note(true);
        fourth.note(true);
        assert!(admin_connections.enter(Instant::now()).is_none(), "all are being answered");
        assert_eq!(admin_connections.refused(), 1);
        let late = Instant::now() + ANSWER_LIMIT + Duration::from_secs(1);
        assert!(
            admin_connections.enter(late).is_some() && first.end.is_cancelled(),
            "the slowest has had its time"
        );
        drop((first, third, fourth));
        assert_eq!(admin_connections.open(), 0);
    }
}
