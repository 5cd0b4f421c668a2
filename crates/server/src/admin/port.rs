//! How the admin port is served: by a thread of its own, at most so many connections, none of which may be
//! slow in asking.
//!
//! Anyone who reaches the port may open connections without end and send nothing on them, so when there is no room the
//! connection that has sent nothing for longest makes some: a probe asks at once, and is answered. What takes long to
//! answer is worked out by threads that serve nothing else, few at a time; the workers that proxies hang on have no
//! part in any of this.

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

/// How long the head of a request may take, also the next one of a connection.
const HEAD_LIMIT: Duration = Duration::from_secs(10);
/// The longest head of a request.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// How long an answer may be under way while others want to connect and there is no room.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// How long a connection may last, and then an answer on it.
const LIFE: (Duration, Duration) = (Duration::from_secs(300), Duration::from_secs(30));
/// How many answers that take long are worked out at once.
const LONG_ANSWERS_MAX: usize = 2;
/// What looks at every object of the configuration, and may take seconds: one at a time, behind which nothing else waits.
const HEAVY_PATHS: [&str; 3] = ["/debug/config", "/debug/diff", "/debug/scope"];
const HEAVY_ANSWERS_MAX: usize = 1;
/// How long a question waits for its turn. Whoever waits has a connection, and there are not many.
const TURN_LIMIT: Duration = Duration::from_secs(5);
/// Threads for them, and for what they leave to others.
const THREADS_MAX: usize = 8;
/// How many connections there are at most, where there are descriptors enough: of a hundred browsers one on which each is told of
/// changes, and some on which it asks.
const CONNECTIONS_MAX: usize = 512;
/// Descriptors that are kept for probes.
const RESERVE: usize = 4;

/// How the port fares.
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
    /// Since when it asks nothing, or is being answered.
    since: Instant,
    answering: bool,
    end: CancellationToken,
}

impl Default for ConnectionLimiter {
    /// As many as the limit of file descriptors lets be wise.
    fn default() -> Self {
        Self::of(descriptors::share(8, 8, CONNECTIONS_MAX))
    }
}

impl ConnectionLimiter {
    /// At most so many at once.
    fn of(most: usize) -> Self {
        let (rejected, refused) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { most, rejected, refused, table: Mutex::default() }
    }

    /// How many there may be at once.
    pub fn most(&self) -> usize {
        self.most
    }

    /// How many connections are open.
    pub fn open(&self) -> usize {
        self.table().open.len()
    }

    /// How many were closed for others' sake.
    pub fn rejected(&self) -> u64 {
        self.rejected.load(Ordering::Relaxed)
    }

    /// How many were refused, since all others were being answered.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    fn table(&self) -> MutexGuard<'_, ConnectionTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a connection in. Where there is no room, one that doesn't ask goes, the longest first, else one whose
    /// answer has been under way for long; `None` where there is none of these.
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

/// The right to a connection; dropping it is the end of that connection.
#[derive(Debug)]
struct ConnectionPermit {
    admin_connections: Arc<ConnectionLimiter>,
    number: u64,
    /// Cancelled when it must go.
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

/// Serves `router` until the tasks are stopped.
pub(super) async fn serve(
    listener: TcpListener,
    router: Router,
    admin_connections: Arc<ConnectionLimiter>,
    descriptors: Arc<Descriptors>,
    tasks: Supervisor,
) {
    let (running, ended) = oneshot::channel::<()>();
    let serving = move || {
        // Dropped when the thread ends, however it does.
        let _running = running;
        if let Err(error) = serve_here(listener, router, admin_connections, descriptors, &tasks) {
            warn!(%error, "the admin port can't be served");
        }
    };
    match std::thread::Builder::new().name("admin".into()).spawn(serving) {
        // The end of the sender is what is waited for.
        Ok(_thread) => drop(ended.await),
        Err(error) => warn!(%error, "no thread for the admin port: it is not served"),
    }
}

/// The same, by this thread.
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
    // An answer that is being worked out ends by itself.
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
        // Whoever had to go for it goes first, and takes its descriptor with it.
        tokio::task::yield_now().await;
    }
}

/// Answers what is asked on one connection.
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
            // What is left is to be sent; whoever doesn't take it says nothing either. What is told as it happens goes on.
            let goes_on = answer.as_ref().is_ok_and(|answer| is_stream(answer.headers()));
            place.note(goes_on);
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
        debug!(%error, "a connection to the admin port broke off");
    }
}

fn is_stream(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind == "text/event-stream")
}

/// Who works out answers that take long.
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

/// Has an answer worked out aside, by a thread that may be busy for long.
pub(super) async fn aside(
    State(workers): State<Workers>,
    request: Request,
    next: Next,
) -> Result<Response, Infallible> {
    let is_heavy = HEAVY_PATHS.contains(&request.uri().path());
    let turns = if is_heavy { workers.heavy } else { workers.long };
    let Ok(permit) = tokio::time::timeout(TURN_LIMIT, turns.acquire_owned()).await else {
        let text = "other answers are being worked out, and take long: ask again in a moment";
        let failure = AdminFailure(StatusCode::SERVICE_UNAVAILABLE, text.into());
        return Ok(failure.into_response());
    };
    let runtime = tokio::runtime::Handle::current();
    let answer = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        runtime.block_on(next.run(request))
    });
    Ok(answer.await.unwrap_or_else(|_| {
        let text = "working out this answer failed; the log says where";
        AdminFailure(StatusCode::INTERNAL_SERVER_ERROR, text.into()).into_response()
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_says_nothing_for_longest_makes_room_and_who_is_being_answered_does_not() {
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
