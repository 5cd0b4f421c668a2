//! What one stream watches of one type, and what its client holds of it.
//!
//! Level-triggered: a request or a change only notes which names are *due*; what is sent is found out
//! when there is room to send, by comparing the source with what the client holds. However many
//! changes pass in between, the client gets the last. Knows neither wire form, and does no I/O.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::resource::{Resource, ResourceSource, ResourceType, Version};

/// Responses whose answer is awaited; older ones are forgotten, so that a client which never answers
/// costs a bounded amount.
const OUTSTANDING_MAX: usize = 256;
/// The longest error text of a client that is kept, in characters.
const ERROR_LENGTH_MAX: usize = 2048;
/// How much of an error text is searched for names, in bytes: a request may be megabytes, and is
/// searched for each resource of a response. Envoy puts the names first, then what is wrong.
const ERROR_SEARCH_MAX: usize = 16 << 10;

/// What a client holds under one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Held {
    /// It said so when it connected, with a version of ours, or one we can't read.
    Listed(Option<Version>),
    /// It was sent this on this stream. (If it rejected it, it holds an older one: see [`Nack`].)
    Sent(Arc<Resource>),
}

impl Held {
    pub(super) fn version(&self) -> Option<Version> {
        match self {
            Self::Listed(version) => *version,
            Self::Sent(resource) => Some(resource.version),
        }
    }
}

/// A response that the client refused, until it accepts later ones for the same resources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nack {
    /// The client's text, without control characters and cut to a bounded length.
    pub error: String,
    /// The resources its text names, else all of the response.
    pub resources: BTreeSet<Arc<str>>,
}

/// How far a client has followed. A version here is a digest of all the client holds of the type.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// The last one sent.
    pub sent: Option<Version>,
    /// The last one accepted.
    pub acked: Option<Version>,
    /// When something was last sent.
    pub last_sent: Option<SystemTime>,
    /// When something was last accepted.
    pub last_acked: Option<SystemTime>,
    /// What is refused at present.
    pub nack: Option<Nack>,
}

/// See the module's description.
#[derive(Debug)]
pub(super) struct Subscription {
    kind: ResourceType,
    wildcard: bool,
    /// Something was named on this stream, so that naming nothing means nothing (SotW).
    was_named: bool,
    /// Everything of the type must be compared (wildcard only).
    compare_all: bool,
    /// A response is owed even if nothing differs.
    owed: bool,
    /// How many of `entries` are due.
    due: usize,
    /// Sorted by name, each name once.
    entries: Vec<Entry>,
    digest: Digest,
    /// What is due was found in this (wildcard only), so that chunks of one sweep come from one picture.
    all: Option<Arc<[Arc<Resource>]>>,
    outstanding: VecDeque<Outstanding>,
    progress: Progress,
}

/// A name that is watched, held or due. A stream has thousands, so this is 16 bytes.
#[derive(Debug, Clone)]
struct Entry {
    /// What was sent, shared with all who were; else a stub that has the name, and the version if the
    /// client listed one.
    resource: Arc<Resource>,
    holds: Holds,
    /// The client asked for it by this name.
    named: bool,
    due: Option<Due>,
    /// It is due and gone, to be taken back at the end of the sweep.
    going: bool,
}

/// What a client holds of an [`Entry`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holds {
    Nothing,
    /// It said so, with another server's version.
    Unknown,
    /// It said so, with the version of the entry's resource.
    Listed,
    /// It was sent the entry's resource.
    Sent,
}

/// What becomes of a name that is gone from the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gone {
    /// The client keeps it for now: others may refer to it.
    Stays,
    /// It is taken back.
    Goes,
}

/// Why a name is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    /// It may have changed: send it if its version differs.
    Compare,
    /// The client waits for it: send it as it is.
    Send,
}

#[derive(Debug)]
struct Outstanding {
    nonce: u64,
    state: Version,
    /// Their names alone: a client that never answers must not keep old bytes.
    resources: Box<[Arc<str>]>,
}

/// What a client lacks, within a limit.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) changed: Vec<Arc<Resource>>,
    pub(super) removed: Vec<Arc<str>>,
}

impl Entry {
    /// Of what is neither watched nor held, and not due.
    fn new(resource: Arc<Resource>) -> Self {
        Self { resource, holds: Holds::Nothing, named: false, due: None, going: false }
    }

    fn stub(name: &Arc<str>, version: Version) -> Arc<Resource> {
        Arc::new(Resource { name: Arc::clone(name), version, body: Bytes::new() })
    }

    fn name(&self) -> &Arc<str> {
        &self.resource.name
    }

    fn held(&self) -> Option<Held> {
        match self.holds {
            Holds::Nothing => None,
            Holds::Unknown => Some(Held::Listed(None)),
            Holds::Listed => Some(Held::Listed(Some(self.resource.version))),
            Holds::Sent => Some(Held::Sent(Arc::clone(&self.resource))),
        }
    }

    fn version(&self) -> Option<Version> {
        matches!(self.holds, Holds::Listed | Holds::Sent).then(|| self.resource.version)
    }

    fn differs(&self, now: &Resource) -> bool {
        self.version() != Some(now.version)
    }

    fn is_idle(&self) -> bool {
        self.holds == Holds::Nothing && !self.named && self.due.is_none()
    }
}

impl Subscription {
    /// A watch of nothing.
    pub(super) fn new(kind: ResourceType) -> Self {
        Self {
            kind,
            wildcard: false,
            was_named: false,
            compare_all: false,
            owed: false,
            due: 0,
            entries: Vec::new(),
            digest: Digest::default(),
            all: None,
            outstanding: VecDeque::new(),
            progress: Progress::default(),
        }
    }

    /// The names the client asked for, sorted.
    pub(super) fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.entries.iter().filter(|entry| entry.named).map(Entry::name)
    }

    pub(super) fn is_named(&self, name: &str) -> bool {
        self.entry(name).is_some_and(|entry| entry.named)
    }

    pub(super) fn is_wildcard(&self) -> bool {
        self.wildcard
    }

    pub(super) fn was_named(&self) -> bool {
        self.was_named
    }

    pub(super) fn note_named(&mut self, named: bool) {
        self.was_named |= named;
    }

    /// What the client holds, sorted by name.
    pub(super) fn held(&self) -> impl Iterator<Item = (&Arc<str>, Held)> {
        self.entries.iter().filter_map(|entry| Some((entry.name(), entry.held()?)))
    }

    /// All that was sent and is still held, sorted by name.
    pub(super) fn held_resources(&self) -> impl Iterator<Item = &Arc<Resource>> {
        let sent = self.entries.iter().filter(|entry| entry.holds == Holds::Sent);
        sent.map(|entry| &entry.resource)
    }

    /// The version the client holds under a name.
    pub(super) fn held_version(&self, name: &str) -> Option<Version> {
        self.entry(name)?.version()
    }

    pub(super) fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Takes the client's word for what it holds, from before this stream.
    pub(super) fn list(&mut self, listed: impl Iterator<Item = (Arc<str>, Option<Version>)>) {
        let listed: BTreeMap<_, _> = listed.collect();
        self.enter(listed.keys());
        for (name, version) in &listed {
            let Some(at) = self.place(name) else { continue };
            let holds = if version.is_some() { Holds::Listed } else { Holds::Unknown };
            self.hold(at, holds, Entry::stub(name, version.unwrap_or(Version(0))));
        }
    }

    /// Watches names, sorted. They are sent even if the client was sent them before: it may have
    /// forgotten them (xDS protocol, delta, "resource_names_subscribe"). Those that it has just
    /// `listed` are sent only if they differ. Returns whether one is new.
    pub(super) fn subscribe(
        &mut self,
        names: &BTreeSet<Arc<str>>,
        listed: impl Fn(&str) -> bool,
    ) -> bool {
        self.enter(names);
        let mut any_new = false;
        for name in names {
            let Some(at) = self.place(name) else { continue };
            any_new |= !std::mem::replace(&mut self.entries[at].named, true);
            self.mark(at, if listed(name) { Due::Compare } else { Due::Send });
        }
        any_new
    }

    /// Watches everything, and owes an answer: the client waits for one even if it lacks nothing.
    pub(super) fn subscribe_all(&mut self) {
        self.wildcard = true;
        self.compare_all = true;
        self.owed = true;
    }

    /// Stops to watch names. Where everything is watched, the client is told what they are there.
    /// Returns whether one was watched.
    pub(super) fn unsubscribe<'a>(&mut self, names: impl IntoIterator<Item = &'a str>) -> bool {
        let mut any = false;
        for name in names {
            let Some(at) = self.place(name).filter(|at| self.entries[*at].named) else { continue };
            any = true;
            self.entries[at].named = false;
            if self.wildcard {
                self.mark(at, Due::Send);
            } else {
                self.settle(at);
                self.drop_held(at);
            }
        }
        if any {
            self.tidy();
        }
        any
    }

    /// Watches only what was named.
    pub(super) fn unsubscribe_all(&mut self) {
        self.wildcard = false;
        self.compare_all = false;
        self.owed = false;
        self.all = None;
        for at in 0..self.entries.len() {
            if !self.entries[at].named {
                self.settle(at);
                self.drop_held(at);
            }
        }
        self.tidy();
    }

    /// Notes that a name may have changed, if it is watched.
    pub(super) fn mark_watched(&mut self, name: &str) {
        if let Some(at) = self.place(name).filter(|at| self.entries[*at].named) {
            self.mark(at, Due::Compare);
        }
    }

    /// Notes that anything may have changed.
    pub(super) fn mark_all(&mut self) {
        self.compare_all |= self.wildcard;
        for at in 0..self.entries.len() {
            if self.entries[at].named {
                self.mark(at, Due::Compare);
            }
        }
    }

    /// Has names sent as they are, those that are watched.
    pub(super) fn require<'a>(&mut self, names: impl Iterator<Item = &'a Arc<str>>) {
        for name in names {
            if let Some(at) = self.place(name).filter(|at| self.entries[*at].named) {
                self.mark(at, Due::Send);
            }
        }
    }

    /// Looks at these names no more until they change again.
    pub(super) fn pass_over(&mut self, skipped: impl Fn(&str) -> bool) {
        for at in 0..self.entries.len() {
            if self.entries[at].due.is_some() && skipped(self.entries[at].name()) {
                self.settle(at);
            }
        }
    }

    /// Whether there may be something to send.
    pub(super) fn is_due(&self) -> bool {
        self.owed || self.compare_all || self.due > 0
    }

    /// Finds what the client lacks, up to about `limit_bytes`, and takes it as held from now on.
    /// `None` where nothing is to be sent. What is over the limit stays due, and so does what is
    /// gone but [`Gone::Stays`].
    pub(super) fn take(
        &mut self,
        source: &mut dyn ResourceSource,
        limit_bytes: usize,
        gone: Gone,
    ) -> Option<Batch> {
        if !self.is_due() {
            return None;
        }
        self.compare(source);
        let all = self.all.clone();
        let mut all = Sweep::new(all.as_deref().unwrap_or_default());
        let mut batch = Batch::default();
        let mut bytes = 0;
        let mut at = 0;
        while bytes < limit_bytes && self.due > 0 {
            let awaited = |entry: &Entry| match gone {
                Gone::Stays => entry.due.is_some() && !entry.going,
                Gone::Goes => entry.due.is_some(),
            };
            let Some(next) = self.entries[at..].iter().position(awaited) else { break };
            at += next;
            let entry = &self.entries[at];
            let must = entry.due == Some(Due::Send);
            let now = all
                .find(entry.name())
                .map(Arc::clone)
                .or_else(|| entry.named.then(|| source.one(self.kind, entry.name())).flatten());
            match now {
                Some(now) => {
                    if must || entry.differs(&now) {
                        bytes += now.body.len() + now.name.len();
                        batch.changed.push(Arc::clone(&now));
                    }
                    self.settle(at);
                    // The same bytes may be another copy by now: keep the one that everybody shares.
                    self.hold(at, Holds::Sent, now);
                }
                None if gone == Gone::Stays => self.entries[at].going = true,
                None => {
                    let name = Arc::clone(entry.name());
                    self.settle(at);
                    if self.drop_held(at) || must {
                        bytes += name.len();
                        batch.removed.push(name);
                    }
                }
            }
            at += 1;
        }
        if gone == Gone::Goes {
            self.tidy();
        }
        if self.due == 0 {
            self.all = None;
        }
        let owed = std::mem::take(&mut self.owed);
        (owed || !batch.changed.is_empty() || !batch.removed.is_empty()).then_some(batch)
    }

    /// Records a response; returns the digest of what the client holds with it.
    pub(super) fn sent(
        &mut self,
        nonce: u64,
        resources: impl Iterator<Item = Arc<str>>,
        now: SystemTime,
    ) -> Version {
        let state = Version(self.digest.0);
        if self.outstanding.len() == OUTSTANDING_MAX {
            self.outstanding.pop_front();
        }
        self.outstanding.push_back(Outstanding { nonce, state, resources: resources.collect() });
        self.progress.sent = Some(state);
        self.progress.last_sent = Some(now);
        state
    }

    /// Takes the client's answer to a response, a refusal if there is an `error`. Returns whether an
    /// answer to that nonce was awaited; if not, it says nothing (xDS protocol, "stale nonce").
    ///
    /// Nothing is sent because of a refusal: the client keeps the last good version, and hears again
    /// when the resource changes. Sending it at once would only go round in circles.
    pub(super) fn answer(&mut self, nonce: u64, error: Option<&str>, now: SystemTime) -> bool {
        let Some(position) = self.outstanding.iter().position(|sent| sent.nonce == nonce) else {
            return false;
        };
        // A client answers in order: what it passed over it will not answer any more.
        let Some(answered) = self.outstanding.drain(..=position).next_back() else { return false };
        let progress = &mut self.progress;
        let of_response = || answered.resources.iter();
        match error {
            None => {
                progress.acked = Some(answered.state);
                progress.last_acked = Some(now);
                if let Some(nack) = &mut progress.nack {
                    of_response().for_each(|name| _ = nack.resources.remove(name));
                }
                progress.nack.take_if(|nack| nack.resources.is_empty());
            }
            Some(error) => {
                let searched = beginning(error, ERROR_SEARCH_MAX);
                let named = of_response().filter(|name| mentions(searched, name));
                let mut resources: BTreeSet<_> = named.cloned().collect();
                if resources.is_empty() {
                    resources = of_response().cloned().collect();
                }
                if let Some(before) = progress.nack.take() {
                    resources.extend(before.resources);
                }
                progress.nack = Some(Nack { error: printable(error), resources });
            }
        }
        true
    }

    /// Turns "compare everything" into the names that differ.
    fn compare(&mut self, source: &mut dyn ResourceSource) {
        if !self.wildcard {
            return;
        }
        if !std::mem::take(&mut self.compare_all) {
            if self.all.is_none() {
                self.all = Some(source.all(self.kind));
            }
            return;
        }
        let all = source.all(self.kind);
        let mut sweep = Sweep::new(&all);
        for at in 0..self.entries.len() {
            let entry = &self.entries[at];
            if sweep.find(entry.name()).is_none_or(|now| entry.differs(now)) {
                self.mark(at, Due::Compare);
            }
        }
        let entries = self.entries.as_slice();
        let mut known = 0;
        let new: Vec<_> = all
            .iter()
            .filter(|now| {
                let before = |entry: &&Entry| *entry.name() < now.name;
                known += entries[known..].iter().take_while(before).count();
                entries.get(known).is_none_or(|entry| *entry.name() != now.name)
            })
            .map(|now| Entry { due: Some(Due::Compare), ..Entry::new(Arc::clone(now)) })
            .collect();
        self.due += new.len();
        self.add(new);
        self.all = Some(all);
    }

    fn place(&self, name: &str) -> Option<usize> {
        self.entries.binary_search_by(|entry| (**entry.name()).cmp(name)).ok()
    }

    fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.get(self.place(name)?)
    }

    /// Makes entries for names that have none; `names` is sorted.
    fn enter<'a>(&mut self, names: impl IntoIterator<Item = &'a Arc<str>>) {
        let new = names.into_iter().filter(|name| self.place(name).is_none());
        let new = new.map(|name| Entry::new(Entry::stub(name, Version(0)))).collect();
        self.add(new);
    }

    /// Takes in entries of other names than there are, sorted.
    fn add(&mut self, new: Vec<Entry>) {
        if new.is_empty() {
            return;
        }
        self.entries.reserve_exact(new.len());
        self.entries.extend(new);
        // Two runs, which a stable sort merges.
        self.entries.sort_by(|a, b| a.name().cmp(b.name()));
    }

    /// Drops entries that say nothing.
    fn tidy(&mut self) {
        self.entries.retain(|entry| !entry.is_idle());
        if self.entries.len() * 2 < self.entries.capacity() {
            self.entries.shrink_to_fit();
        }
    }

    /// Notes that an entry is due, as `Send` if it was so before.
    fn mark(&mut self, at: usize, why: Due) {
        let entry = &mut self.entries[at];
        self.due += usize::from(entry.due.is_none());
        entry.going = false;
        if entry.due != Some(Due::Send) {
            entry.due = Some(why);
        }
    }

    /// Notes that an entry is not due any more.
    fn settle(&mut self, at: usize) {
        let entry = &mut self.entries[at];
        self.due -= usize::from(entry.due.take().is_some());
        entry.going = false;
    }

    fn hold(&mut self, at: usize, holds: Holds, resource: Arc<Resource>) {
        let entry = &mut self.entries[at];
        self.digest.subtract(entry);
        (entry.holds, entry.resource) = (holds, resource);
        self.digest.add(entry);
    }

    /// Returns whether it was held.
    fn drop_held(&mut self, at: usize) -> bool {
        let entry = &mut self.entries[at];
        if let Some(nack) = &mut self.progress.nack {
            nack.resources.remove(entry.name());
        }
        self.progress.nack.take_if(|nack| nack.resources.is_empty());
        self.digest.subtract(entry);
        std::mem::replace(&mut entry.holds, Holds::Nothing) != Holds::Nothing
    }
}

/// Finds names in sorted resources, one after the other in their order.
struct Sweep<'a> {
    rest: &'a [Arc<Resource>],
}

impl<'a> Sweep<'a> {
    fn new(all: &'a [Arc<Resource>]) -> Self {
        Self { rest: all }
    }

    /// The resource of this name; each name must come after the last one asked for.
    fn find(&mut self, name: &str) -> Option<&'a Arc<Resource>> {
        let before = |one: &Arc<Resource>| *one.name < *name;
        // Mostly it is the next one.
        let skipped = match self.rest.first() {
            Some(first) if before(first) => self.rest.partition_point(before),
            _ => 0,
        };
        self.rest = self.rest.get(skipped..).unwrap_or_default();
        self.rest.first().filter(|one| *one.name == *name)
    }
}

/// The sum of a hash of each name with its version: the same for the same contents however they were
/// reached, on every replica, and kept up to date at the cost of what changes.
#[derive(Debug, Clone, Copy, Default)]
struct Digest(u64);

impl Digest {
    fn add(&mut self, entry: &Entry) {
        self.0 = self.0.wrapping_add(Self::of(entry));
    }

    fn subtract(&mut self, entry: &Entry) {
        self.0 = self.0.wrapping_sub(Self::of(entry));
    }

    fn of(entry: &Entry) -> u64 {
        if entry.holds == Holds::Nothing {
            return 0;
        }
        let version = entry.version().map_or(0, |version| version.0);
        xxh3_64_with_seed(entry.name().as_bytes(), version)
    }
}

/// Whether `text` names `name`, and not only something that it is a part of.
fn mentions(text: &str, name: &str) -> bool {
    let inside = |c: char| c.is_ascii_alphanumeric() || "|_-*".contains(c);
    !name.is_empty()
        && text.match_indices(name).any(|(at, _)| {
            let (before, after) = (&text[..at], &text[at + name.len()..]);
            // A stop ends a sentence unless a name goes on behind it.
            let rest = after.strip_prefix('.').unwrap_or(after);
            !before.ends_with(|c| inside(c) || c == '.')
                && !after.starts_with(inside)
                && (rest.len() == after.len() || !rest.starts_with(inside))
        })
}

/// At most the first `bytes` of a text.
fn beginning(text: &str, bytes: usize) -> &str {
    (0..=bytes.min(text.len())).rev().find_map(|end| text.get(..end)).unwrap_or_default()
}

/// A client's text, safe to show and log.
fn printable(text: &str) -> String {
    let visible = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().take(ERROR_LENGTH_MAX).map(visible).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_whole_names_only() {
        for (text, names_it) in [
            ("Error adding/updating cluster(s) outbound|80||a.b: no such thing", true),
            ("bad outbound|80||a.b.", true),
            ("outbound|80||a.b", true),
            ("\"outbound|80||a.b\", outbound|80||c.d", true),
            ("bad outbound|80||a.b.c", false),
            ("bad xoutbound|80||a.b", false),
            ("bad outbound|80||a.bc", false),
            ("", false),
        ] {
            assert_eq!(mentions(text, "outbound|80||a.b"), names_it, "{text}");
        }
    }

    #[test]
    fn a_clients_text_is_cut_and_cleaned() {
        assert_eq!(printable("a\u{1b}[31m\nb"), "a [31m b");
        assert_eq!(printable(&"ü".repeat(10_000)).chars().count(), ERROR_LENGTH_MAX);
    }

    #[test]
    fn a_digest_does_not_depend_on_the_way_there() {
        let listed = |name: &str, version| Entry {
            holds: Holds::Listed,
            ..Entry::new(Entry::stub(&name.into(), Version(version)))
        };
        let (mut there, mut back) = (Digest::default(), Digest::default());
        there.add(&listed("x", 1));
        there.add(&listed("y", 2));
        back.add(&listed("y", 1));
        back.add(&listed("y", 2));
        back.subtract(&listed("y", 1));
        back.add(&listed("x", 1));
        assert_eq!(there.0, back.0);
        assert_ne!(Digest::of(&listed("x", 2)), Digest::of(&listed("y", 2)));
    }
}
