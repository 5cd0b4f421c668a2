//! Lists a kind and watches it, for as long as somebody wants to know.
//!
//! Moves bytes and keeps bounds; [`WatchState`] decides. An object is decoded when its last byte is there,
//! and what is kept of it is all that a list costs. Data is only ever replaced as a whole: what was
//! gathered of a list that breaks off is dropped, and readers keep what they had.

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
use super::watch_state::{NextRequest, WatchState};
use super::{ApiClient, ApiError, InvalidField, OwnedObject};
use strait_base::mass_deletion::ASK_AGAIN;

/// What noting that an object is gone, or makes no sense, takes.
const GONE_BYTES: usize = 128;
/// How many objects are asked for in one page.
const PAGE_OBJECTS: usize = 500;
/// How long a watch lasts that begins with everything.
const INITIAL_LIFETIME: Duration = Duration::from_secs(300);
/// How much longer than asked for a watch may last before we end it.
const LIFETIME_GRACE: Duration = Duration::from_secs(15);

/// Which objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListSelection {
    /// The API group; empty for the core group.
    pub group: &'static str,
    /// Its version; of several the one that the server was last found to have.
    pub version: &'static str,
    /// The versions to choose from, the best first, where servers differ.
    pub versions: &'static [&'static str],
    /// The kind in plural, as in paths.
    pub plural: &'static str,
    /// One namespace only.
    pub namespace: Option<String>,
    /// A label selector.
    pub labels: Option<String>,
    /// A field selector.
    pub fields: Option<String>,
    /// Whether a server needn't have the kind: where it has not, it is asked for ever more rarely.
    pub is_optional: bool,
}

impl ListSelection {
    /// All objects of a kind.
    pub const fn all(group: &'static str, version: &'static str, plural: &'static str) -> Self {
        let (namespace, labels, fields, is_optional) = (None, None, None, false);
        Self { group, version, versions: &[], plural, namespace, labels, fields, is_optional }
    }

    /// All objects of a kind, in the first of `versions` that the server has ([`ApiClient::served`]).
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
    /// Sends `sink` all there is of `selection` and then what changes, until `sink` is closed.
    /// Errors are reported and survived. A full `sink` makes this reader wait, and in the end the
    /// server: it never costs memory.
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

    /// As [`ApiClient::watch`], for a kind of which little is kept and which may be read from protobuf.
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
        let again = Again::new(self.again.subscribe(), selection.plural);
        let is_optional = selection.is_optional;
        let mut reader = KindReader {
            client: self,
            kind,
            best: if K::PROTOBUF { Encoding::Protobuf } else { Encoding::Json },
            selection,
            limits,
            sink: Sink { sender: sink, answering: false, told: PhantomData },
            state: if is_optional { WatchState::of_optional() } else { WatchState::new() },
            again,
            revived: self.revived.subscribe(),
            list: ListBuilder::new(),
            share: Share::of(&self.account),
        };
        tokio::select! {
            () = sink.closed() => {}
            // Ends only when the sink is closed.
            _ = reader.run() => {}
        }
    }
}

/// Nobody listens any more.
struct Closed;

/// Why a question ended before its end.
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
    /// The form that is asked for besides JSON.
    best: Encoding,
    selection: ListSelection,
    limits: ReadLimits,
    sink: Sink<'a, K, E>,
    state: WatchState,
    again: Again,
    /// Changes when the server is back. What has been seen of it is no reason to ask again: that was
    /// before this question, or before its answer.
    revived: watch::Receiver<u64>,
    list: ListBuilder<K>,
    /// What of the server's account is this reader's.
    share: Share,
}

/// Whether a fresh list is wanted.
struct Again {
    /// How often one was, by plural.
    wanted: watch::Receiver<BTreeMap<&'static str, u64>>,
    plural: &'static str,
    /// How often one was taken up.
    seen: u64,
}

impl Again {
    fn new(wanted: watch::Receiver<BTreeMap<&'static str, u64>>, plural: &'static str) -> Self {
        let mut again = Self { wanted, plural, seen: 0 };
        again.seen = again.count();
        again
    }

    fn count(&mut self) -> u64 {
        self.wanted.borrow_and_update().get(self.plural).copied().unwrap_or_default()
    }

    /// Waits until one is.
    async fn wanted(&mut self) {
        loop {
            let count = self.count();
            if std::mem::replace(&mut self.seen, count) != count {
                return;
            }
            if self.wanted.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }
}

/// Where a watch begins.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Begin {
    /// With all there is, up to the bookmark that says so.
    Everything,
    /// With the next change.
    Changes,
}

impl<K: ObjectKind, E: From<KindEvent<K>>> KindReader<'_, K, E> {
    async fn run(&mut self) -> Result<(), Closed> {
        loop {
            let began = Instant::now();
            let mut hurries = true;
            self.revived.mark_unchanged();
            let question = self.state.ask(began, random());
            let pause = match self.put(question).await {
                Ok(pause) => pause,
                Err(Stop::Closed) => return Err(Closed),
                Err(Stop::Failed(error)) => {
                    if !matches!(error, ApiError::Forbidden(_) | ApiError::NotFound(_)) {
                        self.client.heard.forget();
                    }
                    self.list = ListBuilder::new();
                    self.share.give_back();
                    if matches!(error, ApiError::NotFound(_)) && !self.selection.versions.is_empty()
                    {
                        // The kind may be there in another version.
                        self.state.start_over();
                    }
                    let pause = self.state.failed(&error, began.elapsed(), random());
                    debug!(kind = self.selection.plural, %error, ?pause, "to be asked again");
                    // That its probe is answered again says nothing of how much there is.
                    hurries = !matches!(error, ApiError::OverBudget(_));
                    if matches!(error, ApiError::OverBudget(_) | ApiError::Misbehaving(_)) {
                        self.client.account.asks(self.selection.plural, Some(pause));
                    }
                    self.sink.failed(error).await?;
                    pause
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                // Perhaps while the question was still open.
                Ok(()) = self.revived.changed(), if hurries => {}
            }
            self.client.account.asks(self.selection.plural, None);
        }
    }

    /// Asks, and passes on what comes. Returns the pause before the next request.
    async fn put(&mut self, question: NextRequest) -> Result<Duration, Stop> {
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
            // An empty version asks for the newest state; only the bookmarks say where it ends.
            NextRequest::InitialEvents => {
                let path = format!(
                    "{path}watch=1&allowWatchBookmarks=true&sendInitialEvents=true\
                     &resourceVersionMatch=NotOlderThan&resourceVersion=&timeoutSeconds={}",
                    INITIAL_LIFETIME.as_secs()
                );
                self.stream(&path, INITIAL_LIFETIME, Begin::Everything).await
            }
            // A version that the server has not seen is "too large" for a list. One object is enough,
            // and of it the head of the answer.
            NextRequest::Check { version } => {
                let path = format!(
                    "{path}limit=1&resourceVersion={}&resourceVersionMatch=NotOlderThan",
                    percent_encode(&version)
                );
                self.ask(&path).await?;
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

    /// Asks, and waits for a good answer to begin.
    async fn ask(&mut self, path: &str) -> Result<OpenResponse, ApiError> {
        let answer = Box::pin(self.client.ask(Method::GET, path, None, self.best)).await?;
        // If the server came back meanwhile, this is its answer and that connection is alive.
        self.revived.mark_unchanged();
        Ok(answer)
    }

    /// Whenever everything is read anew: what a server has can change.
    async fn choose_version(&mut self) -> Result<(), ApiError> {
        let ListSelection { group, versions, plural, .. } = self.selection;
        if !versions.is_empty() {
            let served = Box::pin(self.client.served(group, versions, plural));
            self.selection.version = served.await?;
        }
        Ok(())
    }

    /// Reads a page. Of what is received no more than one object is held.
    async fn page(&mut self, path: &str) -> Result<(), Stop> {
        let mut answer = self.ask(path).await?;
        let mut list = ListDecoder::new(answer.encoding, self.limits.object_bytes);
        let mut received = 0;
        while let Some(piece) = answer.piece(SILENCE_LIMIT).await? {
            received += piece.len();
            if received > self.limits.page_bytes {
                return Err(self.page_too_long().into());
            }
            self.client.heard.now();
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
        let end = list.end().map_err(|fact| self.unread(&answer, &fact))?;
        self.list.pages += 1;
        self.check_budget()?;
        match end.next {
            // A page proves nothing: the next one may fail each time.
            Some(token) => self.state.page_read(token),
            None => {
                self.sink.answered().await?;
                self.listed(end.version).await?;
            }
        }
        Ok(())
    }

    /// Reads a watch to its end. Returns the pause before the next question.
    async fn stream(
        &mut self,
        path: &str,
        lifetime: Duration,
        begin: Begin,
    ) -> Result<Duration, Stop> {
        let began = Instant::now();
        let end = began + lifetime + LIFETIME_GRACE;
        let mut initial = begin == Begin::Everything;
        let mut answer = self.ask(path).await?;
        if !initial {
            self.sink.answered().await?;
        }
        let mut events = Events::new(answer.encoding, self.limits.object_bytes);
        let mut told = false;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            // Initial events come without a pause; afterwards silence only says that all is quiet.
            let silence = if initial { left.min(SILENCE_LIMIT) } else { left };
            let piece = tokio::select! {
                piece = answer.piece(silence) => piece,
                // What was open while the server was away may be dead without knowing it.
                Ok(()) = self.revived.changed() => {
                    Err(self.broken("the server was away meanwhile"))
                }
                () = self.again.wanted(), if !initial => {
                    self.state.start_over();
                    return Ok(ASK_AGAIN);
                }
            };
            let piece = match piece {
                Err(ApiError::Silent { .. }) if !initial => break,
                piece => piece?,
            };
            let Some(piece) = piece else { break };
            self.client.heard.now();
            events.push(&piece);
            while let Some(event) = events.next().map_err(|TooLong| self.too_long())? {
                let line = decode::line(&self.kind, answer.encoding, &event)
                    .map_err(|fact| self.unread(&answer, &fact))?;
                told = true;
                if initial {
                    initial = !self.gather(line).await?;
                } else {
                    self.tell(line).await?;
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
        Ok(self.state.watch_ended(began.elapsed(), told, random()))
    }

    /// Takes one of the initial events. Returns whether it was the last.
    async fn gather(&mut self, line: WatchLine<K::Kept>) -> Result<bool, Stop> {
        match line {
            WatchLine::Applied { object, .. } => {
                self.add(object);
                self.check_budget()?;
            }
            // What changes while the initial events are sent: the last event counts.
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
            // A server that doesn't know initial events sends a plain watch, whose first part never
            // ends, and its bookmarks.
            WatchLine::Bookmark { .. } => {
                return Err(self.broken("a bookmark came before the initial events ended").into());
            }
            WatchLine::Error(error) => return Err(error.into()),
        }
        Ok(false)
    }

    /// Takes one more object of a list.
    fn add(&mut self, object: K::Kept) {
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
        // From here on the receiver holds it.
        self.share.give_back();
        self.state.listed(version, Instant::now(), random());
        Ok(())
    }

    async fn tell(&mut self, line: WatchLine<K::Kept>) -> Result<(), Stop> {
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

    /// An answer that can't be read. Something between us and the server may not be able to carry
    /// protobuf: from then on it is JSON.
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
        let Some((limit, what)) = self.list.excess(&self.limits) else { return Ok(()) };
        Err(ApiError::OverBudget(format!(
            "its list of {} has more than {limit} {what}, the most that is read",
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

/// Where events go, and what was last reported of the server.
struct Sink<'a, K, E> {
    sender: &'a mpsc::Sender<E>,
    answering: bool,
    told: PhantomData<fn(K)>,
}

impl<K: ObjectKind, E: From<KindEvent<K>>> Sink<'_, K, E> {
    async fn send(&self, event: KindEvent<K>) -> Result<(), Closed> {
        self.sender.send(event.into()).await.map_err(|_| Closed)
    }

    /// Says so once, not with every answer.
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

/// All kinds together take too much.
fn over_memory(limit: usize, plural: &str) -> ApiError {
    ApiError::OverBudget(format!(
        "all that is held of it, with what has come of its {plural}, takes more than {limit} bytes, the most that it may"
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
