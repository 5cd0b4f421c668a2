//! How every source fares that is no member cluster: Consul registries, and the stores that the mesh's
//! objects come from.
//!
//! Owns one board, to which each source writes its own line and nobody else's. Whoever shows it turns the
//! facts into a state at that moment, since contact grows old by itself. Never decides what a source says.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use serde::Serialize;
use tokio::sync::watch;

use crate::codes::Code;

/// How long a source may be out of contact before it is called stale.
pub const STALE_AFTER: Duration = Duration::from_secs(10);
/// How long after a start what is on disk waits for a source from which nothing says that it can't be read:
/// what it says may be newer. Nobody should see the past for a moment because Strait was restarted.
pub const FRESH_WAIT: Duration = Duration::from_secs(1);
/// The line of what is no source, and where what they say is kept: there while that can't be written.
pub const STATE_DIRECTORY: &str = "state directory";
/// The most warnings of one source that are kept: whatever is wrong, the first of them say so.
pub const WARNINGS_MAX: usize = 100;

/// What is known of one source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceFacts {
    /// `consul`, `directory`, `cluster`, `mcp`, `entries`, `jwks` or `state`.
    pub kind: &'static str,
    /// Where it is; no credential.
    pub address: String,
    /// When it began.
    pub since: SystemTime,
    /// Whether all of it has been read once.
    pub synced: bool,
    /// Whether what it reported before this process started is in use until then.
    pub restored: Option<RestoredNote>,
    /// When it last reported something that made sense.
    pub last_contact: Option<SystemTime>,
    /// Since when it can't be read, and why; `None` while it can.
    pub trouble: Option<Trouble>,
    /// How often it could not be read.
    pub failures: u64,
    /// Answers that lacked most of what was known, and were asked for again.
    pub doubts: u64,
    /// Services held.
    pub services: usize,
    /// Endpoints held.
    pub endpoints: usize,
    /// Objects held, where it is a store of objects.
    pub objects: usize,
    /// What of it is not used as it is, as text, sorted.
    pub warnings: Vec<String>,
}

/// What there is to say of contents that come from disk.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RestoredNote {
    /// What an operator should know of how they were remembered.
    pub remark: Option<String>,
}

/// A source as it was last known, before this process started.
#[derive(Debug, Clone, Default)]
pub struct RememberedSource<T> {
    /// When it had last reported something.
    pub last_contact: Option<SystemTime>,
    /// What an operator should know of how it is remembered.
    pub remark: Option<String>,
    /// What it held.
    pub held: T,
}

/// Stores of such objects as they were last known, by name.
pub type RememberedStores<O> = BTreeMap<Arc<str>, RememberedSource<O>>;

/// Why a source can't be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// Since when.
    pub since: SystemTime,
    /// The fact.
    pub reason: String,
    /// The page about it.
    pub code: &'static Code,
}

impl SourceFacts {
    /// A source from which nothing has been heard.
    pub fn starting(kind: &'static str, address: impl Into<String>) -> Self {
        Self {
            kind,
            address: address.into(),
            since: SystemTime::now(),
            synced: false,
            restored: None,
            last_contact: None,
            trouble: None,
            failures: 0,
            doubts: 0,
            services: 0,
            endpoints: 0,
            objects: 0,
            warnings: Vec::new(),
        }
    }

    /// These, of a source of which this is remembered.
    pub fn with<T>(self, remembered: &RememberedSource<T>) -> Self {
        let restored = Some(RestoredNote { remark: remembered.remark.clone() });
        Self { restored, last_contact: remembered.last_contact, ..self }
    }

    /// It has reported something that made sense.
    pub fn heard(&mut self, now: SystemTime) {
        self.last_contact = Some(now);
        self.trouble = None;
    }

    /// It could not be read.
    pub fn failed(&mut self, now: SystemTime, reason: String, code: &'static Code) {
        self.failures += 1;
        let since = self.trouble.as_ref().map_or(now, |trouble| trouble.since);
        self.trouble = Some(Trouble { since, reason, code });
    }

    /// The state at `now`, where a source that never synced has `contact_timeout`.
    pub fn state(&self, now: SystemTime, contact_timeout: Duration) -> SourceState {
        let over = |since, limit| now.duration_since(since).is_ok_and(|age: Duration| age >= limit);
        match (&self.trouble, self.synced) {
            (Some(trouble), true) if over(trouble.since, STALE_AFTER) => SourceState::Stale,
            (_, true) => SourceState::Live,
            (_, false) if self.restored.is_some() => SourceState::Restored,
            (_, false) if over(self.since, contact_timeout) => SourceState::Timeout,
            (_, false) => SourceState::Syncing,
        }
    }

    /// Whether what it reported before is in use, and it may soon report something newer.
    fn is_catching_up(&self) -> bool {
        self.restored.is_some() && !self.synced && self.trouble.is_none()
    }

    /// Why it is in that state at `now`, where there is something to say.
    fn reason(&self, state: SourceState, now: SystemTime) -> Option<String> {
        let trouble = self.trouble.as_ref().map(|trouble| &*trouble.reason);
        match (&self.restored, state) {
            (Some(restored), SourceState::Restored) => {
                let age = self.last_contact.and_then(|last| now.duration_since(last).ok());
                let remark = restored.remark.as_deref();
                Some(from_disk(age, [Some(KEPT), trouble, remark].into_iter().flatten()))
            }
            _ => trouble.map(str::to_owned),
        }
    }
}

/// What becomes of contents that come from disk, as a rule.
pub const KEPT: &str = "stays in use until it has synced";

/// How old contents are that come from disk, and `more` about them.
pub fn from_disk<'a>(age: Option<Duration>, more: impl IntoIterator<Item = &'a str>) -> String {
    let mut text = match age {
        Some(age) => format!("from disk, last heard of {} ago", rough(age)),
        None => "from disk, of unknown age".to_owned(),
    };
    for more in more {
        text.push_str("; ");
        text.push_str(more);
    }
    text
}

/// An age in its largest unit.
fn rough(age: Duration) -> String {
    let seconds = age.as_secs();
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// What a source is in: those states of member clusters that it can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum SourceState {
    /// Not all is there yet.
    Syncing,
    /// All is there and kept up to date.
    Live,
    /// Out of contact; what was last known stays in use.
    Stale,
    /// It was never read whole, and no longer holds up readiness.
    Timeout,
    /// Not read whole since the start; what it reported before is in use, from disk.
    Restored,
}

impl SourceState {
    /// The name of the state.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Syncing => "syncing",
            Self::Live => "live",
            Self::Stale => "stale",
            Self::Timeout => "timeout",
            Self::Restored => "restored",
        }
    }
}

/// How a source fares, in figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceFigures {
    /// The state it is in.
    pub state: SourceState,
    /// How often it could not be read.
    pub failures: u64,
    /// How many of its answers lacked most of what was known, and were asked for again.
    pub doubts: u64,
    /// When it last reported something that made sense.
    pub last_contact: Option<SystemTime>,
}

/// How a source fares that somebody may want to look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceStanding {
    name: Arc<str>,
    state: SourceState,
    code: Option<&'static str>,
    warnings: Vec<String>,
}

/// One entry of `/debug/sources`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceStatus {
    name: Arc<str>,
    kind: &'static str,
    address: String,
    state: SourceState,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'static str>,
    last_contact: Option<Timestamp>,
    failures: u64,
    services: usize,
    endpoints: usize,
    objects: usize,
    warnings: Vec<String>,
}

/// How a source fares in short.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SourceInShort {
    name: Arc<str>,
    kind: &'static str,
    state: SourceState,
    reason: Option<String>,
    code: Option<&'static str>,
}

/// All sources by name.
pub type SourceStatusMap = BTreeMap<Arc<str>, SourceFacts>;

/// Where sources write how they fare. Clones are the same board.
#[derive(Debug, Clone)]
pub struct SourceStatusTable {
    lines: Arc<watch::Sender<SourceStatusMap>>,
    contact_timeout: Duration,
    started: SystemTime,
}

impl SourceStatusTable {
    /// An empty board. A source that was not read whole within `contact_timeout` holds nobody up any longer.
    pub fn new(contact_timeout: Duration) -> Self {
        let lines = Arc::new(watch::Sender::new(SourceStatusMap::new()));
        Self { lines, contact_timeout, started: SystemTime::now() }
    }

    /// Writes a source's line. What has been read once stays so, and so does what is known from disk.
    pub fn report(&self, name: &Arc<str>, facts: &SourceFacts) {
        self.lines.send_if_modified(|lines| {
            let before = lines.get(name);
            let mut facts = facts.clone();
            if let Some(before) = before {
                facts.synced |= before.synced;
                facts.restored = facts.restored.or_else(|| before.restored.clone());
                facts.last_contact = facts.last_contact.or(before.last_contact);
            }
            let differs = before != Some(&facts);
            if differs {
                lines.insert(Arc::clone(name), facts);
            }
            differs
        });
    }

    /// All of a source has been read once, and taken.
    pub fn synced(&self, name: &str) {
        self.lines.send_if_modified(|lines| match lines.get_mut(name) {
            Some(facts) => !std::mem::replace(&mut facts.synced, true),
            None => false,
        });
    }

    /// Takes the line of a source away that has ended.
    pub fn forget(&self, name: &str) {
        self.lines.send_if_modified(|lines| lines.remove(name).is_some());
    }

    /// All lines, now and whenever one changes.
    pub fn lines(&self) -> watch::Receiver<SourceStatusMap> {
        self.lines.subscribe()
    }

    /// The sources that have been read neither whole nor for as long as they may take, by name.
    pub fn waiting_for(&self) -> Vec<Arc<str>> {
        self.waiting_for_at(SystemTime::now())
    }

    fn waiting_for_at(&self, now: SystemTime) -> Vec<Arc<str>> {
        let starting = now.duration_since(self.started).is_ok_and(|age| age < FRESH_WAIT);
        let lines = self.lines.borrow();
        let waiting = lines.iter().filter(|(_, facts)| {
            facts.state(now, self.contact_timeout) == SourceState::Syncing
                || (starting && facts.is_catching_up())
        });
        waiting.map(|(name, _)| Arc::clone(name)).collect()
    }

    /// How each fares, in figures, by name.
    pub fn figures(&self) -> Vec<(Arc<str>, SourceFigures)> {
        let now = SystemTime::now();
        let lines = self.lines.borrow();
        let figures = lines.iter().map(|(name, facts)| {
            let state = facts.state(now, self.contact_timeout);
            let SourceFacts { failures, doubts, last_contact, .. } = *facts;
            (Arc::clone(name), SourceFigures { state, failures, doubts, last_contact })
        });
        figures.collect()
    }

    /// How each fares, without what every answer of it changes.
    pub fn standings(&self) -> Vec<SourceStanding> {
        let now = SystemTime::now();
        let lines = self.lines.borrow();
        let standing = |(name, facts): (&Arc<str>, &SourceFacts)| SourceStanding {
            name: Arc::clone(name),
            state: facts.state(now, self.contact_timeout),
            code: facts.trouble.as_ref().map(|trouble| trouble.code.id),
            warnings: facts.warnings.clone(),
        };
        lines.iter().map(standing).collect()
    }

    /// What `/debug/summary` has of each, by name.
    pub fn show_in_short(&self) -> Vec<SourceInShort> {
        let short = |one: SourceStatus| SourceInShort {
            name: one.name,
            kind: one.kind,
            state: one.state,
            reason: one.reason,
            code: one.code,
        };
        self.show().into_iter().map(short).collect()
    }

    /// What `/debug/sources` answers, by name.
    pub fn show(&self) -> Vec<SourceStatus> {
        let now = SystemTime::now();
        let lines = self.lines.borrow();
        let shown = lines.iter().map(|(name, facts)| {
            let state = facts.state(now, self.contact_timeout);
            SourceStatus {
                name: Arc::clone(name),
                kind: facts.kind,
                address: facts.address.clone(),
                state,
                reason: facts.reason(state, now),
                code: facts.trouble.as_ref().map(|trouble| trouble.code.id),
                last_contact: facts.last_contact.and_then(|at| Timestamp::try_from(at).ok()),
                failures: facts.failures,
                services: facts.services,
                endpoints: facts.endpoints,
                objects: facts.objects,
                warnings: facts.warnings.clone(),
            }
        });
        shown.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codes;

    #[test]
    fn contact_decides_the_state_and_what_was_read_once_is_never_unread() {
        let start = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        let at = |seconds| start + Duration::from_secs(seconds);
        let contact_timeout = Duration::from_secs(30);
        let mut facts =
            SourceFacts { since: start, ..SourceFacts::starting("consul", "http://c:8500") };
        assert_eq!(facts.state(at(29), contact_timeout), SourceState::Syncing);
        assert_eq!(facts.state(at(30), contact_timeout), SourceState::Timeout);
        facts.synced = true;
        facts.heard(at(40));
        assert_eq!(facts.state(at(4000), contact_timeout), SourceState::Live);
        facts.failed(at(50), "refused".into(), &codes::CONSUL_UNREACHABLE);
        facts.failed(at(55), "refused again".into(), &codes::CONSUL_UNREACHABLE);
        assert_eq!(
            facts.state(at(59), contact_timeout),
            SourceState::Live,
            "a reconnect is no news"
        );
        assert_eq!(facts.state(at(60), contact_timeout), SourceState::Stale);
        assert_eq!((facts.failures, facts.last_contact), (2, Some(at(40))));
        facts.heard(at(61));
        assert_eq!(facts.state(at(100), contact_timeout), SourceState::Live);
    }

    #[test]
    fn what_is_from_disk_counts_where_nothing_newer_is_to_be_had_and_says_how_old_it_is() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let source_statuses = SourceStatusTable::new(Duration::from_secs(30));
        let (restored, other): (Arc<str>, Arc<str>) = ("dc1".into(), "dc2".into());
        let remembered =
            RememberedSource { last_contact: Some(at(1000)), remark: Some("x".into()), held: () };
        let facts = || SourceFacts::starting("consul", "http://c:8500");
        source_statuses.report(&restored, &facts().with(&remembered));
        source_statuses.report(&other, &facts());
        // Both may say what is newer, for a moment.
        assert_eq!(source_statuses.waiting_for(), [Arc::clone(&restored), Arc::clone(&other)]);
        let later = SystemTime::now() + FRESH_WAIT;
        assert_eq!(source_statuses.waiting_for_at(later), [Arc::clone(&other)]);
        // A reader that begins doesn't know of it.
        let mut reader = facts();
        reader.failed(at(1300), "refused".into(), &codes::CONSUL_UNREACHABLE);
        source_statuses.report(&restored, &reader);
        assert_eq!(source_statuses.waiting_for(), [other], "nothing newer is to be had of it");
        let facts = source_statuses.lines().borrow()[&restored].clone();
        let state = facts.state(at(1300), Duration::ZERO);
        assert_eq!(
            facts.reason(state, at(1300)).as_deref(),
            Some(
                "from disk, last heard of 5 min ago; stays in use until it has synced; refused; x"
            )
        );
        source_statuses.synced("dc1");
        let facts = source_statuses.lines().borrow()[&restored].clone();
        assert_eq!(facts.state(at(1301), Duration::ZERO), SourceState::Live);
    }
}
