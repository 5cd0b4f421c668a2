//! Lists and watches a kind until its receiver is dropped.
//!
//! Transfers data and enforces limits; [`WatchState`] decides. An object is decoded when its last
//! byte has arrived, and a list costs only the stored parts of the objects. Data is always replaced
//! as a whole: an interrupted list is discarded, and receivers keep their objects.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use http::Method;
use tokio::sync::{mpsc, watch};
use tracing::debug;

use super::account::Share;
use super::decode::{self, Events, ListDecoder};
use super::envelope::{CutError, Encoding, WatchLine};
use super::event::{KindEvent, ReadLimits, WatchEvent};
use super::lines::TooLong;
use super::list_builder::ListBuilder;
use super::object::{AsIs, Keyed as _, ObjectKind};
use super::request::{OpenResponse, SILENCE_LIMIT, percent_encode};
use super::watch_state::{NextRequest, WATCH_SPACING, WatchState};
use super::{ApiClient, ApiError, InvalidField, OwnedObject};
use strait_base::mass_deletion::CONFIRM_AFTER;

/// Memory for the record that an object was deleted or is invalid, in bytes.
const GONE_BYTES: usize = 128;
/// Number of objects that are requested in one page.
const PAGE_OBJECTS: usize = 500;
/// The requested duration of a watch that begins with initial events.
const INITIAL_LIFETIME: Duration = Duration::from_secs(300);
/// How long a watch may exceed the requested duration before the client ends it.
const LIFETIME_GRACE: Duration = Duration::from_secs(15);
/// Describes watches that end at once, several times in a row.
const ENDED_AT_ONCE: &str =
    "its watches end at once without an event; a proxy in front of the API server may end them";

/// The objects to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListSelection {
    /// The API group; empty for the core group.
    pub group: &'static str,
    /// The version; if several are possible, the version that the server was last found to have.
    pub version: &'static str,
    /// The possible versions, preferred first, if servers differ.
    pub versions: &'static [&'static str],
    /// The kind in plural, as in paths.
    pub plural: &'static str,
    /// The only namespace to read, if set.
    pub namespace: Option<String>,
    /// A label selector.
    pub labels: Option<String>,
    /// A field selector.
    pub fields: Option<String>,
    /// Whether a server may lack the kind. If it does, the intervals between requests grow.
    pub is_optional: bool,
}

impl ListSelection {
    /// Selects all objects of a kind.
    pub const fn all(group: &'static str, version: &'static str, plural: &'static str) -> Self {
        let (namespace, labels, fields, is_optional) = (None, None, None, false);
        Self { group, version, versions: &[], plural, namespace, labels, fields, is_optional }
    }

    /// Selects all objects of a kind, in the first of `versions` that the server has
    /// ([`ApiClient::served`]).
    pub const fn in_best(
        group: &'static str,
        versions: &'static [&'static str],
        plural: &'static str,
    ) -> Self {
        let (namespace, labels, fields, is_optional) = (None, None, None, false);
        Self { group, version: "", versions, plural, namespace, labels, fields, is_optional }
    }

    fn path(&self) -> String {
        let mut path = match self.group {
            "" => format!("/api/{}", self.version),
            group => format!("/apis/{group}/{}", self.version),
        };
        if let Some(namespace) = &self.namespace {
            path = format!("{path}/namespaces/{}", percent_encode(namespace));
        }
        path = format!("{path}/{}?", self.plural);
        for (name, selector) in [("labelSelector", &self.labels), ("fieldSelector", &self.fields)] {
            if let Some(selector) = selector {
                let _ = write!(path, "{name}={}&", percent_encode(selector));
            }
        }
        path
    }
}

impl ApiClient {
    /// Sends all objects of `selection` to `sink`, and then changes, until `sink` is closed. Errors
    /// are reported and survived. A full `sink` makes this reader wait, and with it the server: it
    /// never costs memory.
    pub async fn watch<T, E>(
        &self,
        selection: ListSelection,
        limits: ReadLimits,
        sink: &mpsc::Sender<E>,
    ) where
        T: OwnedObject,
        E: From<WatchEvent<T>>,
    {
        self.read(AsIs::<T>::new(), selection, limits, sink).await;
    }

    /// Reads a kind like [`ApiClient::watch`], for kinds with a small stored part that may be
    /// decoded from protobuf.
    pub async fn read<K, E>(
        &self,
        kind: K,
        selection: ListSelection,
        limits: ReadLimits,
        sink: &mpsc::Sender<E>,
    ) where
        K: ObjectKind,
        E: From<KindEvent<K>>,
    {
        let again = FreshListRequests::new(self.again.subscribe(), selection.plural);
        let is_optional = selection.is_optional;
        let mut reader = KindReader {
            client: self,
            kind,
            best: if K::PROTOBUF { Encoding::Protobuf } else { Encoding::Json },
            selection,
            limits,
            sink: Sink { sender: sink, answering: false, kind: PhantomData },
            state: if is_optional { WatchState::new_optional() } else { WatchState::new() },
            again,
            revived: self.revived.subscribe(),
            authenticated: self.authenticated.subscribe(),
            list: ListBuilder::new(),
            share: Share::new(&self.account),
        };
        tokio::select! {
            () = sink.closed() => {}
            // Ends only when the sink is closed.
            _ = reader.run() => {}
        }
    }
}

/// The receiver was dropped.
struct Closed;

/// The reason why a request ended early.
enum Stop {
    Failed(ApiError),
    Closed,
}

impl From<ApiError> for Stop {
    fn from(error: ApiError) -> Self {
        Self::Failed(error)
    }
}

impl From<Closed> for Stop {
    fn from(_: Closed) -> Self {
        Self::Closed
    }
}

struct KindReader<'a, K: ObjectKind, E> {
    client: &'a ApiClient,
    kind: K,
    /// The encoding that is requested in addition to JSON.
    best: Encoding,
    selection: ListSelection,
    limits: ReadLimits,
    sink: Sink<'a, K, E>,
    state: WatchState,
    again: FreshListRequests,
    /// Changes when the server is reachable again. A change that was already seen is no reason to
    /// retry: it happened before this request, or before its response.
    revived: watch::Receiver<u64>,
    /// Changes when the credential was replaced: a reader whose credential was refused retries.
    authenticated: watch::Receiver<u64>,
    list: ListBuilder<K>,
    /// This reader's part of the server's memory account.
    share: Share,
}

/// Whether a fresh list is requested.
struct FreshListRequests {
    /// The number of requests for fresh lists, by plural kind.
    wanted: watch::Receiver<BTreeMap<&'static str, u64>>,
    plural: &'static str,
    /// The number of requests that were processed.
    processed: u64,
}

impl FreshListRequests {
    fn new(wanted: watch::Receiver<BTreeMap<&'static str, u64>>, plural: &'static str) -> Self {
        let mut again = Self { wanted, plural, processed: 0 };
        again.processed = again.count();
        again
    }

    fn count(&mut self) -> u64 {
        self.wanted.borrow_and_update().get(self.plural).copied().unwrap_or_default()
    }

    /// Waits for a request.
    async fn wanted(&mut self) {
        loop {
            let count = self.count();
            if std::mem::replace(&mut self.processed, count) != count {
                return;
            }
            if self.wanted.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }
}

/// The start of a watch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Begin {
    /// With all objects, up to the bookmark that ends them.
    Everything,
    /// With the next change.
    Changes,
}

impl<K: ObjectKind, E: From<KindEvent<K>>> KindReader<'_, K, E> {
    async fn run(&mut self) -> Result<(), Closed> {
        loop {
            let began = Instant::now();
            let (mut hurries, mut is_refused) = (true, false);
            self.revived.mark_unchanged();
            self.authenticated.mark_unchanged();
            let question = self.state.next_request(began, random());
            let pause = match self.execute(question).await {
                Ok(pause) => pause,
                Err(Stop::Closed) => return Err(Closed),
                Err(Stop::Failed(error)) => {
                    if !matches!(error, ApiError::Forbidden(_) | ApiError::NotFound(_)) {
                        self.client.last_response.forget();
                    }
                    self.list = ListBuilder::new();
                    self.share.release();
                    if matches!(error, ApiError::NotFound(_)) && !self.selection.versions.is_empty()
                    {
                        // The kind may exist in another version.
                        self.state.start_over();
                    }
                    let pause = self.state.failed(&error, began.elapsed(), random());
                    debug!(kind = self.selection.plural, %error, ?pause, "to be asked again");
                    // A successful probe does not change the amount of data.
                    hurries = !matches!(error, ApiError::OverBudget(_));
                    is_refused = matches!(error, ApiError::Unauthorized(_));
                    if matches!(error, ApiError::OverBudget(_) | ApiError::Misbehaving(_)) {
                        self.client.account.set_next_request(self.selection.plural, Some(pause));
                    }
                    self.sink.failed(error).await?;
                    pause
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                // Possibly while the request was still open.
                Ok(()) = self.revived.changed(), if hurries => {}
                Ok(()) = self.authenticated.changed(), if is_refused => {}
            }
            self.client.account.set_next_request(self.selection.plural, None);
        }
    }

    /// Sends a request, and passes on the response. Returns the pause before the next request.
    async fn execute(&mut self, question: NextRequest) -> Result<Duration, Stop> {
        if matches!(question, NextRequest::InitialEvents | NextRequest::Page { token: None }) {
            self.choose_version().await?;
        }
        let path = self.selection.path();
        match question {
            NextRequest::Page { token } => {
                let mut path = format!("{path}limit={PAGE_OBJECTS}");
                if let Some(token) = &token {
                    let _ = write!(path, "&continue={}", percent_encode(token));
                }
                Box::pin(self.page(&path)).await?;
                Ok(Duration::ZERO)
            }
            // An empty version requests the current state; only the bookmarks show its end.
            NextRequest::InitialEvents => {
                let path = format!(
                    "{path}watch=1&allowWatchBookmarks=true&sendInitialEvents=true\
                     &resourceVersionMatch=NotOlderThan&resourceVersion=&timeoutSeconds={}",
                    INITIAL_LIFETIME.as_secs()
                );
                self.stream(&path, INITIAL_LIFETIME, Begin::Everything).await
            }
            // The server rejects the list with "too large" if it has not reached the version. One
            // object is enough, and of the response only the head is read.
            NextRequest::Check { version } => {
                let path = format!(
                    "{path}limit=1&resourceVersion={}&resourceVersionMatch=NotOlderThan",
                    percent_encode(&version)
                );
                self.request(&path).await?;
                self.state.checked();
                Ok(Duration::ZERO)
            }
            NextRequest::Watch { version, lifetime } => {
                let path = format!(
                    "{path}watch=1&allowWatchBookmarks=true&resourceVersion={}&timeoutSeconds={}",
                    percent_encode(&version),
                    lifetime.as_secs()
                );
                self.stream(&path, lifetime, Begin::Changes).await
            }
        }
    }

    /// Sends a request, and waits for the head of a successful response.
    async fn request(&mut self, path: &str) -> Result<OpenResponse, ApiError> {
        let answer = Box::pin(self.client.open(Method::GET, path, None, self.best)).await?;
        // If the server returned in the meantime, this is its response and the connection works.
        self.revived.mark_unchanged();
        Ok(answer)
    }

    /// Selects the version before each full read: the versions of a server can change.
    async fn choose_version(&mut self) -> Result<(), ApiError> {
        let ListSelection { group, versions, plural, .. } = self.selection;
        if !versions.is_empty() {
            let served = Box::pin(self.client.served(group, versions, plural));
            self.selection.version = served.await?;
        }
        Ok(())
    }

    /// Reads a page. At most one received object is buffered.
    async fn page(&mut self, path: &str) -> Result<(), Stop> {
        let mut answer = self.request(path).await?;
        let mut list = ListDecoder::new(answer.encoding, self.limits.object_bytes);
        let mut received = 0;
        while let Some(piece) = answer.piece(SILENCE_LIMIT).await? {
            received += piece.len();
            if received > self.limits.page_bytes {
                return Err(self.page_too_long().into());
            }
            self.client.last_response.record();
            list.push(&piece);
            while let Some(object) = list.next().map_err(|error| self.uncut(&answer, error))? {
                match decode::object(&self.kind, answer.encoding, &object) {
                    Ok(object) => self.add(object),
                    Err(invalid) => self.add_invalid(invalid),
                }
                self.check_budget()?;
            }
            self.share.buffers(list.buffered());
            self.check_budget()?;
        }
        self.share.buffers(0);
        let end = list.end();
        let plural = self.selection.plural;
        let end = end.and_then(|end| end.check_kind(plural).map(|()| end));
        let end = end.map_err(|fact| self.unread(&answer, &fact))?;
        self.list.pages += 1;
        self.check_budget()?;
        match end.next {
            // A page alone is not a success: the next one may fail each time.
            Some(token) => self.state.page_read(token),
            None => {
                self.sink.answered().await?;
                self.listed(end.version).await?;
            }
        }
        Ok(())
    }

    /// Reads a watch to its end. Returns the pause before the next request.
    async fn stream(
        &mut self,
        path: &str,
        lifetime: Duration,
        begin: Begin,
    ) -> Result<Duration, Stop> {
        let began = Instant::now();
        let end = began + lifetime + LIFETIME_GRACE;
        let mut initial = begin == Begin::Everything;
        let mut answer = self.request(path).await?;
        // After several watches that ended at once, a watch must last a second or report an event.
        let mut is_on_trial = !initial && self.state.has_short_watches();
        if !initial && !is_on_trial {
            self.sink.answered().await?;
        }
        let mut events = Events::new(answer.encoding, self.limits.object_bytes);
        let mut has_events = false;
        loop {
            let remaining = end.saturating_duration_since(Instant::now());
            // Initial events arrive without pauses; afterwards, silence means that there are no
            // changes.
            let silence = if initial { remaining.min(SILENCE_LIMIT) } else { remaining };
            let piece = tokio::select! {
                piece = answer.piece(silence) => piece,
                // A connection that was open while the server was unreachable may be dead.
                Ok(()) = self.revived.changed() => {
                    Err(self.broken("the server was unreachable in the meantime"))
                }
                () = tokio::time::sleep(WATCH_SPACING.saturating_sub(began.elapsed())), if is_on_trial => {
                    is_on_trial = false;
                    self.sink.answered().await?;
                    continue;
                }
                () = self.again.wanted(), if !initial => {
                    self.state.start_over();
                    return Ok(CONFIRM_AFTER);
                }
            };
            let piece = match piece {
                Err(ApiError::Silent { .. }) if !initial => break,
                piece => piece?,
            };
            let Some(piece) = piece else { break };
            self.client.last_response.record();
            events.push(&piece);
            while let Some(event) = events.next().map_err(|TooLong| self.too_long())? {
                let line = decode::line(&self.kind, answer.encoding, &event)
                    .map_err(|fact| self.unread(&answer, &fact))?;
                has_events = true;
                if std::mem::take(&mut is_on_trial) {
                    self.sink.answered().await?;
                }
                if initial {
                    initial = !self.gather(line).await?;
                } else {
                    self.send_event(line).await?;
                }
            }
            self.share.buffers(events.buffered());
            self.check_budget()?;
        }
        self.share.buffers(0);
        if initial {
            return Err(self.broken("it ended before the initial events did").into());
        }
        if events.has_rest() {
            return Err(self.broken("it ended within an event").into());
        }
        let pause = self.state.watch_ended(began.elapsed(), has_events, random());
        Ok(pause.ok_or_else(|| self.broken(ENDED_AT_ONCE))?)
    }

    /// Processes an initial event. Returns whether it was the last.
    async fn gather(&mut self, line: WatchLine<K::Stored>) -> Result<bool, Stop> {
        match line {
            WatchLine::Applied { object, .. } => {
                self.add(object);
                self.check_budget()?;
            }
            // The last event about an object that changes during the initial events applies.
            WatchLine::Deleted { key, .. } => {
                self.share.gathers(GONE_BYTES);
                self.list.forget(key);
                self.check_budget()?;
            }
            WatchLine::Invalid { invalid, .. } => {
                if let Some(key) = &invalid.key {
                    self.list.forget(key.clone());
                }
                self.add_invalid(invalid);
                self.check_budget()?;
            }
            WatchLine::Bookmark { version, initial_events_end: true } => {
                self.sink.answered().await?;
                self.listed(version).await?;
                return Ok(true);
            }
            // A server without initial events sends a plain watch with bookmarks, which never ends
            // the first part.
            WatchLine::Bookmark { .. } => {
                return Err(self.broken("a bookmark came before the initial events ended").into());
            }
            WatchLine::Error(error) => return Err(error.into()),
        }
        Ok(false)
    }

    /// Adds an object to a list.
    fn add(&mut self, object: K::Stored) {
        self.share.gathers(object.weight());
        self.list.add(object);
    }

    fn add_invalid(&mut self, invalid: InvalidField) {
        self.share.gathers(GONE_BYTES + invalid.reason.len());
        self.list.invalid.push(invalid);
    }

    async fn listed(&mut self, version: String) -> Result<(), Stop> {
        let (objects, invalid) = std::mem::replace(&mut self.list, ListBuilder::new()).finish();
        self.sink.send(WatchEvent::Restarted { objects, invalid }).await?;
        // From here on, the receiver accounts for it.
        self.share.release();
        self.state.listed(version, Instant::now(), random());
        Ok(())
    }

    async fn send_event(&mut self, line: WatchLine<K::Stored>) -> Result<(), Stop> {
        let version = match line {
            WatchLine::Applied { object, version } => {
                self.sink.send(WatchEvent::Applied(object)).await?;
                version
            }
            WatchLine::Deleted { key, version } => {
                self.sink.send(WatchEvent::Deleted(key)).await?;
                version
            }
            WatchLine::Invalid { invalid, version } => {
                self.sink.send(WatchEvent::Invalid(invalid)).await?;
                version
            }
            WatchLine::Bookmark { version, .. } => version,
            WatchLine::Error(error) => return Err(error.into()),
        };
        self.state.advanced(version);
        Ok(())
    }

    fn broken(&self, fact: &str) -> ApiError {
        let path = self.selection.path();
        ApiError::Broken {
            request: format!("GET {}", path.trim_end_matches('?')),
            fact: fact.into(),
        }
    }

    /// Returns the error for an undecodable response. A proxy in between may not support protobuf:
    /// from then on, JSON is requested.
    fn unread(&mut self, answer: &OpenResponse, fact: &str) -> ApiError {
        if answer.encoding == Encoding::Protobuf {
            self.best = Encoding::Json;
        }
        self.broken(fact)
    }

    fn uncut(&mut self, answer: &OpenResponse, error: CutError) -> ApiError {
        match error {
            CutError::TooLong => self.too_long(),
            CutError::Malformed(fact) => self.unread(answer, &fact),
        }
    }

    fn check_budget(&self) -> Result<(), ApiError> {
        if self.share.exceeds(self.limits.memory_bytes) {
            return Err(over_memory(self.limits.memory_bytes, self.selection.plural));
        }
        let Some((limit, unit)) = self.list.excess(&self.limits) else { return Ok(()) };
        Err(ApiError::OverBudget(format!(
            "its list of {} has more than {limit} {unit}, which is the limit",
            self.selection.plural
        )))
    }

    fn too_long(&self) -> ApiError {
        ApiError::OverBudget(format!(
            "one of its {} is longer than {} bytes",
            self.selection.plural, self.limits.object_bytes
        ))
    }

    fn page_too_long(&self) -> ApiError {
        ApiError::OverBudget(format!(
            "a page of its {} is longer than {} MiB",
            self.selection.plural,
            self.limits.page_bytes >> 20
        ))
    }
}

/// The receiver of events, and the last reported state of the server.
struct Sink<'a, K, E> {
    sender: &'a mpsc::Sender<E>,
    answering: bool,
    kind: PhantomData<fn(K)>,
}

impl<K: ObjectKind, E: From<KindEvent<K>>> Sink<'_, K, E> {
    async fn send(&self, event: KindEvent<K>) -> Result<(), Closed> {
        self.sender.send(event.into()).await.map_err(|_| Closed)
    }

    /// Reports this once, not with every response.
    async fn answered(&mut self) -> Result<(), Closed> {
        if !std::mem::replace(&mut self.answering, true) {
            self.send(WatchEvent::Answered).await?;
        }
        Ok(())
    }

    async fn failed(&mut self, error: ApiError) -> Result<(), Closed> {
        self.answering = false;
        self.send(WatchEvent::Failed(error)).await
    }
}

/// Returns the error for all kinds together exceeding the limit.
fn over_memory(limit: usize, plural: &str) -> ApiError {
    ApiError::OverBudget(format!(
        "all of its data, including the received {plural}, takes more than {limit} bytes, which is the limit"
    ))
}

fn random() -> f64 {
    rand::random()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_kubernetes() {
        let mut pods = ListSelection::all("", "v1", "pods");
        assert_eq!(pods.path(), "/api/v1/pods?");
        pods.namespace = Some("a".into());
        pods.labels = Some("x=y,z".into());
        pods.fields = Some("status.phase!=Failed".into());
        assert_eq!(
            pods.path(),
            "/api/v1/namespaces/a/pods?labelSelector=x%3Dy%2Cz&fieldSelector=status.phase%21%3DFailed&"
        );
        let slices = ListSelection::all("discovery.k8s.io", "v1", "endpointslices");
        assert_eq!(slices.path(), "/apis/discovery.k8s.io/v1/endpointslices?");
    }
}
