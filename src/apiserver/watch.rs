//! Lists a kind and watches it, for as long as somebody wants to know.
//!
//! Moves bytes and keeps bounds; [`Course`] decides. An object is decoded when its last byte is there,
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
use super::course::{Ask, Course};
use super::decode::{self, CutError, Encoding, Events, Line, List};
use super::gathered::Gathered;
use super::lines::TooLong;
use super::object::{AsIs, Keyed as _, Kind};
use super::request::{Answer, SILENCE_LIMIT, percent_encode};
use super::{Client, Error, Key, Object, Odd};
use crate::mass_deletion::ASK_AGAIN;

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
pub struct Selection {
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

impl Selection {
    /// All objects of a kind.
    pub const fn all(group: &'static str, version: &'static str, plural: &'static str) -> Self {
        let (namespace, labels, fields, is_optional) = (None, None, None, false);
        Self { group, version, versions: &[], plural, namespace, labels, fields, is_optional }
    }

    /// All objects of a kind, in the first of `versions` that the server has ([`Client::served`]).
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

/// What a reader of a kind is told.
#[derive(Debug)]
pub enum Event<T, L = Vec<T>> {
    /// These are all there are: everything told before is replaced.
    Restarted {
        /// The objects; of two with one key the later counts.
        objects: L,
        /// Those that make no sense and were left out.
        odd: Vec<Odd>,
    },
    /// This object is so now.
    Applied(T),
    /// There is no such object any more, or never was.
    Deleted(Key),
    /// This object makes no sense now; it counts as gone, as a fresh list would leave it out.
    Odd(Odd),
    /// The server answered as it should.
    Answered,
    /// It did not. What was told before still stands; it will be asked again.
    Failed(Error),
}

/// What a reader of a kind is told.
pub(super) type Told<K> = Event<<K as Kind>::Kept, <K as Kind>::List>;

/// The most that one reader takes from one server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one object, in a list or in an event.
    pub object_bytes: usize,
    /// Bytes of one page of a list.
    pub page_bytes: usize,
    /// Objects of one kind.
    pub objects: usize,
    /// Pages of one list, however little is on them.
    pub pages: usize,
    /// Bytes of memory that all of a server takes, of all its kinds: what has come in part, lists that are not
    /// complete yet, and what is kept.
    pub memory_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            object_bytes: 4 << 20,
            page_bytes: 256 << 20,
            objects: 500_000,
            pages: 4_000,
            memory_bytes: 64 << 20,
        }
    }
}

impl Client {
    /// Tells `sink` all there is of `selection` and then what changes, until `sink` is closed.
    /// Errors are told and survived. A full `sink` makes this reader wait, and in the end the
    /// server: it never costs memory.
    pub async fn watch<T, E>(&self, selection: Selection, limits: Limits, sink: &mpsc::Sender<E>)
    where
        T: Object,
        E: From<Event<T>>,
    {
        self.read(AsIs::<T>::new(), selection, limits, sink).await;
    }

    /// As [`Client::watch`], for a kind of which little is kept and which may be read from protobuf.
    pub async fn read<K, E>(
        &self,
        kind: K,
        selection: Selection,
        limits: Limits,
        sink: &mpsc::Sender<E>,
    ) where
        K: Kind,
        E: From<Told<K>>,
    {
        let again = Again::new(self.again.subscribe(), selection.plural);
        let is_optional = selection.is_optional;
        let mut reader = Reader {
            client: self,
            kind,
            best: if K::PROTOBUF { Encoding::Protobuf } else { Encoding::Json },
            selection,
            limits,
            sink: Sink { sender: sink, answering: false, told: PhantomData },
            course: if is_optional { Course::of_optional() } else { Course::new() },
            again,
            revived: self.revived.subscribe(),
            gathered: Gathered::new(),
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
    Failed(Error),
    Closed,
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<Closed> for Stop {
    fn from(_: Closed) -> Self {
        Self::Closed
    }
}

struct Reader<'a, K: Kind, E> {
    client: &'a Client,
    kind: K,
    /// The form that is asked for besides JSON.
    best: Encoding,
    selection: Selection,
    limits: Limits,
    sink: Sink<'a, K, E>,
    course: Course,
    again: Again,
    /// Changes when the server is back. What has been seen of it is no reason to ask again: that was
    /// before this question, or before its answer.
    revived: watch::Receiver<u64>,
    gathered: Gathered<K>,
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

impl<K: Kind, E: From<Told<K>>> Reader<'_, K, E> {
    async fn run(&mut self) -> Result<(), Closed> {
        loop {
            let began = Instant::now();
            let mut hurries = true;
            self.revived.mark_unchanged();
            let question = self.course.ask(began, random());
            let pause = match self.put(question).await {
                Ok(pause) => pause,
                Err(Stop::Closed) => return Err(Closed),
                Err(Stop::Failed(error)) => {
                    self.gathered = Gathered::new();
                    self.share.give_back();
                    if matches!(error, Error::NotFound(_)) && !self.selection.versions.is_empty() {
                        // The kind may be there in another version.
                        self.course.start_over();
                    }
                    let pause = self.course.failed(&error, began.elapsed(), random());
                    debug!(kind = self.selection.plural, %error, ?pause, "to be asked again");
                    // That its probe is answered again says nothing of how much there is.
                    hurries = !matches!(error, Error::OverBudget(_));
                    if matches!(error, Error::OverBudget(_) | Error::Misbehaving(_)) {
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

    /// Asks, and tells what comes. Returns the pause before the next question.
    async fn put(&mut self, question: Ask) -> Result<Duration, Stop> {
        if matches!(question, Ask::InitialEvents | Ask::Page { token: None }) {
            self.choose_version().await?;
        }
        let path = self.selection.path();
        match question {
            Ask::Page { token } => {
                let mut path = format!("{path}limit={PAGE_OBJECTS}");
                if let Some(token) = &token {
                    let _ = write!(path, "&continue={}", percent_encode(token));
                }
                self.page(&path).await?;
                Ok(Duration::ZERO)
            }
            // An empty version asks for the newest state; only the bookmarks say where it ends.
            Ask::InitialEvents => {
                let path = format!(
                    "{path}watch=1&allowWatchBookmarks=true&sendInitialEvents=true\
                     &resourceVersionMatch=NotOlderThan&resourceVersion=&timeoutSeconds={}",
                    INITIAL_LIFETIME.as_secs()
                );
                self.stream(&path, INITIAL_LIFETIME, Begin::Everything).await
            }
            // A version that the server has not seen is "too large" for a list. One object is enough,
            // and of it the head of the answer.
            Ask::Check { version } => {
                let path = format!(
                    "{path}limit=1&resourceVersion={}&resourceVersionMatch=NotOlderThan",
                    percent_encode(&version)
                );
                self.ask(&path).await?;
                self.course.checked();
                Ok(Duration::ZERO)
            }
            Ask::Watch { version, lifetime } => {
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
    async fn ask(&mut self, path: &str) -> Result<Answer, Error> {
        let answer = self.client.ask(Method::GET, path, None, self.best).await?;
        // If the server came back meanwhile, this is its word and that connection is alive.
        self.revived.mark_unchanged();
        Ok(answer)
    }

    /// Whenever everything is read anew: what a server has can change.
    async fn choose_version(&mut self) -> Result<(), Error> {
        let Selection { group, versions, plural, .. } = self.selection;
        if !versions.is_empty() {
            self.selection.version = self.client.served(group, versions, plural).await?;
        }
        Ok(())
    }

    /// Reads a page. Of what is received no more than one object is held.
    async fn page(&mut self, path: &str) -> Result<(), Stop> {
        let mut answer = self.ask(path).await?;
        let mut list = List::new(answer.encoding, self.limits.object_bytes);
        let mut received = 0;
        while let Some(piece) = answer.piece(SILENCE_LIMIT).await? {
            received += piece.len();
            if received > self.limits.page_bytes {
                return Err(self.page_too_long().into());
            }
            list.push(&piece);
            while let Some(object) = list.next().map_err(|error| self.uncut(&answer, error))? {
                match decode::object(&self.kind, answer.encoding, &object) {
                    Ok(object) => self.add(object),
                    Err(odd) => self.add_odd(odd),
                }
                self.check_budget()?;
            }
            self.share.buffers(list.buffered());
            self.check_budget()?;
        }
        self.share.buffers(0);
        let end = list.end().map_err(|fact| self.unread(&answer, &fact))?;
        self.sink.answered().await?;
        self.gathered.pages += 1;
        self.check_budget()?;
        match end.next {
            Some(token) => self.course.page_read(token),
            None => self.listed(end.version).await?,
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
                    self.course.start_over();
                    return Ok(ASK_AGAIN);
                }
            };
            let piece = match piece {
                Err(Error::Silent { .. }) if !initial => break,
                piece => piece?,
            };
            let Some(piece) = piece else { break };
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
        Ok(self.course.watch_ended(began.elapsed(), told, random()))
    }

    /// Takes one of the initial events. Returns whether it was the last.
    async fn gather(&mut self, line: Line<K::Kept>) -> Result<bool, Stop> {
        match line {
            Line::Applied { object, .. } => {
                self.add(object);
                self.check_budget()?;
            }
            // What changes while the initial events are sent: the last word counts.
            Line::Deleted { key, .. } => {
                self.share.gathers(GONE_BYTES);
                self.gathered.forget(key);
                self.check_budget()?;
            }
            Line::Odd { odd, .. } => {
                if let Some(key) = &odd.key {
                    self.gathered.forget(key.clone());
                }
                self.add_odd(odd);
                self.check_budget()?;
            }
            Line::Bookmark { version, initial_events_end: true } => {
                self.sink.answered().await?;
                self.listed(version).await?;
                return Ok(true);
            }
            // A server that doesn't know initial events sends a plain watch, whose first part never
            // ends, and its bookmarks.
            Line::Bookmark { .. } => {
                return Err(self.broken("a bookmark came before the initial events ended").into());
            }
            Line::Error(error) => return Err(error.into()),
        }
        Ok(false)
    }

    /// Takes one more object of a list.
    fn add(&mut self, object: K::Kept) {
        self.share.gathers(object.weight());
        self.gathered.add(object);
    }

    fn add_odd(&mut self, odd: Odd) {
        self.share.gathers(GONE_BYTES + odd.reason.len());
        self.gathered.odd.push(odd);
    }

    async fn listed(&mut self, version: String) -> Result<(), Stop> {
        let (objects, odd) = std::mem::replace(&mut self.gathered, Gathered::new()).finish();
        self.sink.send(Event::Restarted { objects, odd }).await?;
        // From here on whoever was told holds it.
        self.share.give_back();
        self.course.listed(version, Instant::now(), random());
        Ok(())
    }

    async fn tell(&mut self, line: Line<K::Kept>) -> Result<(), Stop> {
        let version = match line {
            Line::Applied { object, version } => {
                self.sink.send(Event::Applied(object)).await?;
                version
            }
            Line::Deleted { key, version } => {
                self.sink.send(Event::Deleted(key)).await?;
                version
            }
            Line::Odd { odd, version } => {
                self.sink.send(Event::Odd(odd)).await?;
                version
            }
            Line::Bookmark { version, .. } => version,
            Line::Error(error) => return Err(error.into()),
        };
        self.course.advanced(version);
        Ok(())
    }

    fn broken(&self, fact: &str) -> Error {
        let path = self.selection.path();
        Error::Broken { request: format!("GET {}", path.trim_end_matches('?')), fact: fact.into() }
    }

    /// An answer that can't be read. Something between us and the server may not be able to carry
    /// protobuf: from then on it is JSON.
    fn unread(&mut self, answer: &Answer, fact: &str) -> Error {
        if answer.encoding == Encoding::Protobuf {
            self.best = Encoding::Json;
        }
        self.broken(fact)
    }

    fn uncut(&mut self, answer: &Answer, error: CutError) -> Error {
        match error {
            CutError::TooLong => self.too_long(),
            CutError::Malformed(fact) => self.unread(answer, &fact),
        }
    }

    fn check_budget(&self) -> Result<(), Error> {
        if self.share.exceeds(self.limits.memory_bytes) {
            return Err(over_memory(self.limits.memory_bytes, self.selection.plural));
        }
        let Some((limit, what)) = self.gathered.excess(&self.limits) else { return Ok(()) };
        Err(Error::OverBudget(format!(
            "its list of {} has more than {limit} {what}, the most that is read",
            self.selection.plural
        )))
    }

    fn too_long(&self) -> Error {
        Error::OverBudget(format!(
            "one of its {} is longer than {} bytes",
            self.selection.plural, self.limits.object_bytes
        ))
    }

    fn page_too_long(&self) -> Error {
        Error::OverBudget(format!(
            "a page of its {} is longer than {} MiB",
            self.selection.plural,
            self.limits.page_bytes >> 20
        ))
    }
}

/// Where events go, and what was last said of the server.
struct Sink<'a, K, E> {
    sender: &'a mpsc::Sender<E>,
    answering: bool,
    told: PhantomData<fn(K)>,
}

impl<K: Kind, E: From<Told<K>>> Sink<'_, K, E> {
    async fn send(&self, event: Told<K>) -> Result<(), Closed> {
        self.sender.send(event.into()).await.map_err(|_| Closed)
    }

    /// Says so once, not with every answer.
    async fn answered(&mut self) -> Result<(), Closed> {
        if !std::mem::replace(&mut self.answering, true) {
            self.send(Event::Answered).await?;
        }
        Ok(())
    }

    async fn failed(&mut self, error: Error) -> Result<(), Closed> {
        self.answering = false;
        self.send(Event::Failed(error)).await
    }
}

/// All kinds together take too much.
fn over_memory(limit: usize, plural: &str) -> Error {
    Error::OverBudget(format!(
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
        let mut pods = Selection::all("", "v1", "pods");
        assert_eq!(pods.path(), "/api/v1/pods?");
        pods.namespace = Some("a".into());
        pods.labels = Some("x=y,z".into());
        pods.fields = Some("status.phase!=Failed".into());
        assert_eq!(
            pods.path(),
            "/api/v1/namespaces/a/pods?labelSelector=x%3Dy%2Cz&fieldSelector=status.phase%21%3DFailed&"
        );
        let slices = Selection::all("discovery.k8s.io", "v1", "endpointslices");
        assert_eq!(slices.path(), "/apis/discovery.k8s.io/v1/endpointslices?");
    }
}
