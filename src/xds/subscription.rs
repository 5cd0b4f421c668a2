//! What one stream watches of one type, and what its client holds of it.
//!
//! Level-triggered: a request or a change only notes which names are *due*; what is sent is found out
//! when there is room to send, by comparing the source with what the client holds. However many
//! changes pass in between, the client gets the last. Knows neither wire form, and does no I/O.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::SystemTime;

use imbl::OrdMap;
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
    names: BTreeSet<Arc<str>>,
    held: OrdMap<Arc<str>, Held>,
    digest: Digest,
    due: BTreeMap<Arc<str>, Due>,
    /// Names that were due and are gone, to be taken back at the end of the sweep.
    going: BTreeMap<Arc<str>, Due>,
    /// Everything of the type must be compared (wildcard only).
    compare_all: bool,
    /// A response is owed even if nothing differs.
    owed: bool,
    /// What `due` was found in (wildcard only), so that chunks of one sweep come from one picture.
    all: Option<Arc<[Arc<Resource>]>>,
    outstanding: VecDeque<Outstanding>,
    progress: Progress,
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
    resources: Arc<[Arc<Resource>]>,
}

/// What a client lacks, within a limit.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) changed: Vec<Arc<Resource>>,
    pub(super) removed: Vec<Arc<str>>,
}

impl Subscription {
    /// A watch of nothing.
    pub(super) fn new(kind: ResourceType) -> Self {
        Self {
            kind,
            wildcard: false,
            was_named: false,
            names: BTreeSet::new(),
            held: OrdMap::new(),
            digest: Digest::default(),
            due: BTreeMap::new(),
            going: BTreeMap::new(),
            compare_all: false,
            owed: false,
            all: None,
            outstanding: VecDeque::new(),
            progress: Progress::default(),
        }
    }

    pub(super) fn names(&self) -> &BTreeSet<Arc<str>> {
        &self.names
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

    pub(super) fn held(&self) -> &OrdMap<Arc<str>, Held> {
        &self.held
    }

    pub(super) fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Takes the client's word for what it holds, from before this stream.
    pub(super) fn list(&mut self, name: Arc<str>, version: Option<Version>) {
        self.hold(name, Held::Listed(version));
    }

    /// Watches a name. It is sent even if the client was sent it before: it may have forgotten it.
    /// (xDS protocol, delta, "resource_names_subscribe".)
    pub(super) fn subscribe(&mut self, name: Arc<str>) {
        self.due.insert(Arc::clone(&name), Due::Send);
        self.names.insert(name);
    }

    /// Watches a name that the client has just listed: it is sent only if it differs.
    pub(super) fn resume(&mut self, name: Arc<str>) {
        self.mark(&name);
        self.names.insert(name);
    }

    /// Watches everything, and owes an answer: the client waits for one even if it lacks nothing.
    pub(super) fn subscribe_all(&mut self) {
        self.wildcard = true;
        self.compare_all = true;
        self.owed = true;
    }

    /// Stops to watch a name. Where everything is watched, the client is told what the name is there.
    pub(super) fn unsubscribe(&mut self, name: &str) {
        let Some(name) = self.names.take(name) else { return };
        if self.wildcard {
            self.due.insert(name, Due::Send);
        } else {
            self.due.remove(&name);
            self.going.remove(&name);
            self.drop_held(&name);
        }
    }

    /// Watches only what was named.
    pub(super) fn unsubscribe_all(&mut self) {
        self.wildcard = false;
        self.compare_all = false;
        self.owed = false;
        self.all = None;
        let unnamed: Vec<_> =
            self.held.keys().filter(|name| !self.names.contains(*name)).cloned().collect();
        for name in unnamed {
            self.drop_held(&name);
        }
        self.due.retain(|name, _| self.names.contains(name));
        self.going.retain(|name, _| self.names.contains(name));
    }

    /// Notes that a name may have changed.
    pub(super) fn mark(&mut self, name: &Arc<str>) {
        self.due.entry(Arc::clone(name)).or_insert(Due::Compare);
    }

    /// Notes that a name may have changed, if it is watched.
    pub(super) fn mark_watched(&mut self, name: &str) {
        if let Some(name) = self.names.get(name) {
            self.due.entry(Arc::clone(name)).or_insert(Due::Compare);
        }
    }

    /// Notes that anything may have changed.
    pub(super) fn mark_all(&mut self) {
        self.compare_all |= self.wildcard;
        for name in &self.names {
            self.due.entry(Arc::clone(name)).or_insert(Due::Compare);
        }
    }

    /// Has a name sent as it is, if it is watched.
    pub(super) fn require(&mut self, name: &Arc<str>) {
        if self.wildcard || self.names.contains(name) {
            self.due.insert(Arc::clone(name), Due::Send);
        }
    }

    /// Looks at these names no more until they change again.
    pub(super) fn pass_over(&mut self, skipped: impl Fn(&str) -> bool) {
        self.due.retain(|name, _| !skipped(name));
    }

    /// Whether there may be something to send.
    pub(super) fn is_due(&self) -> bool {
        self.owed || self.compare_all || !self.due.is_empty() || !self.going.is_empty()
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
        if gone == Gone::Goes {
            // What came back in between is compared like any other.
            self.due.append(&mut self.going);
        }
        let mut batch = Batch::default();
        let mut bytes = 0;
        while bytes < limit_bytes
            && let Some((name, due)) = self.due.pop_first()
        {
            match self.current(source, &name) {
                Some(now) if due == Due::Send || self.differs(&now) => {
                    bytes += now.body.len() + name.len();
                    self.hold_shared(&now);
                    batch.changed.push(now);
                }
                // The same bytes may be another copy by now: keep the one that everybody shares.
                Some(now) => self.hold_shared(&now),
                None if gone == Gone::Stays => _ = self.going.insert(name, due),
                None => {
                    if self.drop_held(&name) || due == Due::Send {
                        bytes += name.len();
                        batch.removed.push(name);
                    }
                }
            }
        }
        if self.due.is_empty() && self.going.is_empty() {
            self.all = None;
        }
        let owed = std::mem::take(&mut self.owed);
        (owed || !batch.changed.is_empty() || !batch.removed.is_empty()).then_some(batch)
    }

    /// Records a response; returns the digest of what the client holds with it.
    pub(super) fn sent(
        &mut self,
        nonce: u64,
        resources: &Arc<[Arc<Resource>]>,
        now: SystemTime,
    ) -> Version {
        let state = Version(self.digest.0);
        if self.outstanding.len() == OUTSTANDING_MAX {
            self.outstanding.pop_front();
        }
        self.outstanding.push_back(Outstanding { nonce, state, resources: Arc::clone(resources) });
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
        let of_response = || answered.resources.iter().map(|resource| &resource.name);
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
            self.all.get_or_insert_with(|| source.all(self.kind));
            return;
        }
        let all = source.all(self.kind);
        let changed = all.iter().filter(|one| self.differs(one)).map(|one| &one.name);
        let gone = self.held.keys().filter(|name| find(&all, name).is_none());
        let due: Vec<Arc<str>> = changed.chain(gone).cloned().collect();
        for name in due {
            self.due.entry(name).or_insert(Due::Compare);
        }
        self.all = Some(all);
    }

    fn current(&self, source: &mut dyn ResourceSource, name: &str) -> Option<Arc<Resource>> {
        let in_all = self.all.as_deref().and_then(|all| find(all, name)).map(Arc::clone);
        in_all.or_else(|| self.names.contains(name).then(|| source.one(self.kind, name)).flatten())
    }

    fn differs(&self, now: &Resource) -> bool {
        self.held.get(&now.name).and_then(Held::version) != Some(now.version)
    }

    /// Holds what was sent, under the name that all streams share: each has thousands of them.
    fn hold_shared(&mut self, now: &Arc<Resource>) {
        if self.names.contains(&now.name) {
            self.names.replace(Arc::clone(&now.name));
        }
        self.hold(Arc::clone(&now.name), Held::Sent(Arc::clone(now)));
    }

    fn hold(&mut self, name: Arc<str>, now: Held) {
        self.digest.add(&name, &now);
        if let Some(before) = self.held.insert(Arc::clone(&name), now) {
            self.digest.subtract(&name, &before);
        }
    }

    /// Returns whether it was held.
    fn drop_held(&mut self, name: &str) -> bool {
        if let Some(nack) = &mut self.progress.nack {
            nack.resources.remove(name);
        }
        self.progress.nack.take_if(|nack| nack.resources.is_empty());
        let Some(before) = self.held.remove(name) else { return false };
        self.digest.subtract(name, &before);
        true
    }
}

/// The sum of a hash of each name with its version: the same for the same contents however they were
/// reached, on every replica, and kept up to date at the cost of what changes.
#[derive(Debug, Clone, Copy, Default)]
struct Digest(u64);

impl Digest {
    fn add(&mut self, name: &str, held: &Held) {
        self.0 = self.0.wrapping_add(Self::of(name, held));
    }

    fn subtract(&mut self, name: &str, held: &Held) {
        self.0 = self.0.wrapping_sub(Self::of(name, held));
    }

    fn of(name: &str, held: &Held) -> u64 {
        xxh3_64_with_seed(name.as_bytes(), held.version().map_or(0, |version| version.0))
    }
}

fn find<'a>(all: &'a [Arc<Resource>], name: &str) -> Option<&'a Arc<Resource>> {
    let index = all.binary_search_by(|resource| (*resource.name).cmp(name)).ok()?;
    all.get(index)
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
        let (a, b) = (Held::Listed(Some(Version(1))), Held::Listed(Some(Version(2))));
        let (mut there, mut back) = (Digest::default(), Digest::default());
        there.add("x", &a);
        there.add("y", &b);
        back.add("y", &a);
        back.add("y", &b);
        back.subtract("y", &a);
        back.add("x", &a);
        assert_eq!(there.0, back.0);
        assert_ne!(Digest::of("x", &b), Digest::of("y", &b));
    }
}
