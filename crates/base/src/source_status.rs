//! The status of every source that is not a member cluster: Consul registries, and the stores of
//! the mesh's objects.
//!
//! A table contains one entry per source, which only that source writes. Readers derive the state
//! from the facts when they need it, because the state also depends on the time since the last
//! contact. The table never interprets the data of a source.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;

use crate::codes::Code;

/// Time without contact after which a source is stale.
pub const STALE_AFTER: Duration = Duration::from_secs(10);
/// Time after a start during which restored data waits for a source without errors, because the
/// source may report newer data. A restart of Strait should not make old data visible for a moment.
pub const FRESH_WAIT: Duration = Duration::from_secs(1);
/// The name of the entry for the state directory, which is not a source. It exists while the
/// directory cannot be written.
pub const STATE_DIRECTORY: &str = "state directory";
/// Maximum number of stored warnings per source.
pub const WARNINGS_MAX: usize = 100;

/// The facts about one source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceFacts {
    /// `consul`, `directory`, `cluster`, `mcp`, `entries`, `jwks` or `state`.
    pub kind: &'static str,
    /// The address, without credentials.
    pub address: String,
    /// The start time.
    pub since: SystemTime,
    /// Whether the source has been read completely once.
    pub synced: bool,
    /// Whether data from before the start of this process is in use until the source has synced.
    pub restored: Option<RestoredNote>,
    /// The time of the last valid response.
    pub last_contact: Option<SystemTime>,
    /// The start of and reason for the current failure; `None` if the source is readable.
    pub trouble: Option<Trouble>,
    /// Number of failed attempts to read the source.
    pub failures: u64,
    /// Number of responses that lacked most known objects and were requested again.
    pub doubts: u64,
    /// Number of services.
    pub services: usize,
    /// Number of endpoints.
    pub endpoints: usize,
    /// Number of objects, if it is a store of objects.
    pub objects: usize,
    /// Parts of the data that are not used unchanged, as text, sorted.
    pub warnings: Vec<String>,
    /// Kinds of objects, in plural, that the API server does not have, sorted.
    pub absent_kinds: Vec<&'static str>,
}

/// Remarks about data from disk.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RestoredNote {
    /// A remark for the operator about the stored data.
    pub remark: Option<String>,
}

/// The last known state of a source from before the start of this process.
#[derive(Debug, Clone, Default)]
pub struct RememberedSource<T> {
    /// The time of the last response.
    pub last_contact: Option<SystemTime>,
    /// A remark for the operator about the stored data.
    pub remark: Option<String>,
    /// The data of the source.
    pub held: T,
}

/// The last known states of stores, by name.
pub type RememberedStores<O> = BTreeMap<Arc<str>, RememberedSource<O>>;

/// The reason why a source cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// The start of the failure.
    pub since: SystemTime,
    /// The reason.
    pub reason: String,
    /// The error code.
    pub code: &'static Code,
}

impl SourceFacts {
    /// Returns the facts about a source without any response.
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
            absent_kinds: Vec::new(),
        }
    }

    /// Adds the last known state from before the start.
    pub fn with<T>(self, remembered: &RememberedSource<T>) -> Self {
        let restored = Some(RestoredNote { remark: remembered.remark.clone() });
        Self { restored, last_contact: remembered.last_contact, ..self }
    }

    /// Records a valid response.
    pub fn responded(&mut self, now: SystemTime) {
        self.last_contact = Some(now);
        self.trouble = None;
    }

    /// Records a failure.
    pub fn failed(&mut self, now: SystemTime, reason: String, code: &'static Code) {
        self.failures += 1;
        let since = self.trouble.as_ref().map_or(now, |trouble| trouble.since);
        self.trouble = Some(Trouble { since, reason, code });
    }

    /// Returns the state at `now`. A source that has never synced times out after
    /// `contact_timeout`.
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

    /// Returns whether restored data is in use and the source may soon report newer data.
    fn is_catching_up(&self) -> bool {
        self.restored.is_some() && !self.synced && self.trouble.is_none()
    }

    /// Returns the reason for the state at `now`, if there is one.
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

/// How data from disk is normally handled.
pub const KEPT: &str = "stays in use until it has synced";

/// Describes the age of data from disk, followed by `more`.
pub fn from_disk<'a>(age: Option<Duration>, more: impl IntoIterator<Item = &'a str>) -> String {
    let mut text = match age {
        Some(age) => format!("from disk, last contact {} ago", rough(age)),
        None => "from disk, of unknown age".to_owned(),
    };
    for more in more {
        text.push_str("; ");
        text.push_str(more);
    }
    text
}

/// Formats an age in its largest unit.
fn rough(age: Duration) -> String {
    let seconds = age.as_secs();
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// The state of a source. Member clusters have these states and additional ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SourceState {
    /// Not read completely yet.
    Syncing,
    /// Complete and up to date.
    Live,
    /// Without contact; the last known data stays in use.
    Stale,
    /// Never read completely, and no longer delays readiness.
    Timeout,
    /// Not read completely since the start; data from disk is in use.
    Restored,
}

impl SourceState {
    /// Returns the name of the state.
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

/// The status of a source in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceFigures {
    /// The state.
    pub state: SourceState,
    /// Number of failed attempts to read the source.
    pub failures: u64,
    /// Number of responses that lacked most known objects and were requested again.
    pub doubts: u64,
    /// The time of the last valid response.
    pub last_contact: Option<SystemTime>,
}

/// The status of a source without values that change with every response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceStanding {
    name: Arc<str>,
    state: SourceState,
    code: Option<&'static str>,
    warnings: Vec<String>,
}

/// The status of a source, from which `/debug/sources` is built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceStatus {
    /// The name of the source.
    pub name: Arc<str>,
    /// The kind, as in [`SourceFacts::kind`].
    pub kind: &'static str,
    /// The address, without credentials.
    pub address: String,
    /// The state.
    pub state: SourceState,
    /// The reason for the state, if there is one.
    pub reason: Option<String>,
    /// The error code of the current failure.
    pub code: Option<&'static str>,
    /// The time of the last valid response.
    pub last_contact: Option<SystemTime>,
    /// Number of failed attempts to read the source.
    pub failures: u64,
    /// Number of services.
    pub services: usize,
    /// Number of endpoints.
    pub endpoints: usize,
    /// Number of objects, if it is a store of objects.
    pub objects: usize,
    /// Parts of the data that are not used unchanged, as text, sorted.
    pub warnings: Vec<String>,
    /// Kinds of objects, in plural, that the API server does not have, sorted.
    pub absent_kinds: Vec<&'static str>,
}

/// The facts about all sources, by name.
pub type SourceStatusMap = BTreeMap<Arc<str>, SourceFacts>;

/// The table to which sources report their status. Clones share it.
#[derive(Debug, Clone)]
pub struct SourceStatusTable {
    lines: Arc<watch::Sender<SourceStatusMap>>,
    contact_timeout: Duration,
    started: SystemTime,
}

impl SourceStatusTable {
    /// Creates an empty table. A source that is not read completely within `contact_timeout` no
    /// longer delays readiness.
    pub fn new(contact_timeout: Duration) -> Self {
        let lines = Arc::new(watch::Sender::new(SourceStatusMap::new()));
        Self { lines, contact_timeout, started: SystemTime::now() }
    }

    /// Sets the entry of a source. Never clears `synced` or the data from disk.
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

    /// Records that a source has been read completely and its data was applied.
    pub fn synced(&self, name: &str) {
        self.lines.send_if_modified(|lines| match lines.get_mut(name) {
            Some(facts) => !std::mem::replace(&mut facts.synced, true),
            None => false,
        });
    }

    /// Removes the entry of a source that has ended.
    pub fn forget(&self, name: &str) {
        self.lines.send_if_modified(|lines| lines.remove(name).is_some());
    }

    /// Returns a receiver for all entries and their changes.
    pub fn lines(&self) -> watch::Receiver<SourceStatusMap> {
        self.lines.subscribe()
    }

    /// Returns the names of the sources that are neither complete nor timed out.
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

    /// Returns the status of each source in numbers, by name.
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

    /// Returns the status of each source without values that change with every response.
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

    /// Returns the status of each source, by name.
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
                last_contact: facts.last_contact,
                failures: facts.failures,
                services: facts.services,
                endpoints: facts.endpoints,
                objects: facts.objects,
                warnings: facts.warnings.clone(),
                absent_kinds: facts.absent_kinds.clone(),
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
    fn contact_determines_the_state_and_synced_is_never_reset() {
        let start = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        let at = |seconds| start + Duration::from_secs(seconds);
        let contact_timeout = Duration::from_secs(30);
        let mut facts =
            SourceFacts { since: start, ..SourceFacts::starting("consul", "http://c:8500") };
        assert_eq!(facts.state(at(29), contact_timeout), SourceState::Syncing);
        assert_eq!(facts.state(at(30), contact_timeout), SourceState::Timeout);
        facts.synced = true;
        facts.responded(at(40));
        assert_eq!(facts.state(at(4000), contact_timeout), SourceState::Live);
        facts.failed(at(50), "refused".into(), &codes::CONSUL_UNREACHABLE);
        facts.failed(at(55), "refused again".into(), &codes::CONSUL_UNREACHABLE);
        assert_eq!(
            facts.state(at(59), contact_timeout),
            SourceState::Live,
            "a reconnect is not a change"
        );
        assert_eq!(facts.state(at(60), contact_timeout), SourceState::Stale);
        assert_eq!((facts.failures, facts.last_contact), (2, Some(at(40))));
        facts.responded(at(61));
        assert_eq!(facts.state(at(100), contact_timeout), SourceState::Live);
    }

    #[test]
    fn data_from_disk_is_used_with_its_age_until_newer_data_arrives() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let source_statuses = SourceStatusTable::new(Duration::from_secs(30));
        let (restored, other): (Arc<str>, Arc<str>) = ("dc1".into(), "dc2".into());
        let remembered =
            RememberedSource { last_contact: Some(at(1000)), remark: Some("x".into()), held: () };
        let facts = || SourceFacts::starting("consul", "http://c:8500");
        source_statuses.report(&restored, &facts().with(&remembered));
        source_statuses.report(&other, &facts());
        // Both may report newer data for a moment.
        assert_eq!(source_statuses.waiting_for(), [Arc::clone(&restored), Arc::clone(&other)]);
        let later = SystemTime::now() + FRESH_WAIT;
        assert_eq!(source_statuses.waiting_for_at(later), [Arc::clone(&other)]);
        // A new reader does not know the restored data.
        let mut reader = facts();
        reader.failed(at(1300), "refused".into(), &codes::CONSUL_UNREACHABLE);
        source_statuses.report(&restored, &reader);
        assert_eq!(source_statuses.waiting_for(), [other], "it has no newer data");
        let facts = source_statuses.lines().borrow()[&restored].clone();
        let state = facts.state(at(1300), Duration::ZERO);
        assert_eq!(
            facts.reason(state, at(1300)).as_deref(),
            Some("from disk, last contact 5 min ago; stays in use until it has synced; refused; x")
        );
        source_statuses.synced("dc1");
        let facts = source_statuses.lines().borrow()[&restored].clone();
        assert_eq!(facts.state(at(1301), Duration::ZERO), SourceState::Live);
    }
}
