//! What the mesh was before: each version's difference from the one before it, so that now can be held against then.
//!
//! Owns a bounded list of [`HistoryRecord`]s. A task of its own compares the versions that the event loop publishes, at most one a
//! second, so that versions which follow each other faster are one record: nobody who publishes or sends waits for it. With a state
//! directory the records outlast a restart, and so does what the mesh was at a proper end; after another end nobody knows what was
//! otherwise before ([`RecordGap`]).

mod difference;
mod recorder;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

pub use self::difference::{MeshDifference, ServiceDifference, SetDifference, ValueDifference};
pub use self::recorder::HistoryRecorder;

/// How many records are kept; the oldest go first.
const RECORDS_MAX: usize = 1024;
/// How many bytes all of them may have, as they are written.
const BYTES_MAX: usize = 8 << 20;
/// How many bytes one of them may have: of more only that there was more is kept.
const RECORD_BYTES_MAX: usize = 2 << 20;

/// The records of all versions that are kept.
#[derive(Debug, Default)]
pub struct History(Mutex<HistoryTable>);

#[derive(Debug, Default)]
struct HistoryTable {
    records: VecDeque<(Arc<HistoryRecord>, usize)>,
    bytes: usize,
    /// The last version that was looked at; it may be no record of its own.
    seen: u64,
}

/// What a version has otherwise than the one of the record before it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HistoryRecord {
    /// The version; each process counts from 1.
    pub version: u64,
    /// When it was recorded.
    pub at: SystemTime,
    /// Why the difference is not known, where it isn't.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap: Option<RecordGap>,
    /// What is otherwise.
    pub difference: MeshDifference,
    /// Whether it is from before this process.
    #[serde(skip)]
    pub restored: bool,
}

/// Why nobody knows what a version has otherwise than before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RecordGap {
    /// It is the first of a process, and the one before it kept no state, or did not end properly.
    Start,
    /// It is more than is kept.
    Size,
}

impl RecordGap {
    /// The reason in words.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Start => {
                "it is the first that was recorded, or the process before it kept no state or did not end properly"
            }
            Self::Size => "it is more than is kept of one version",
        }
    }
}

/// A moment to look back to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PastMoment {
    /// When this version of this process was there.
    Version(u64),
    /// A time.
    Time(SystemTime),
}

/// Now held against then.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// The version that was there then, and since when.
    pub from: (u64, SystemTime),
    /// The version that was looked at last, and since when the mesh is so.
    pub to: (u64, SystemTime),
    /// What is otherwise now.
    pub difference: MeshDifference,
}

/// Why now can't be held against then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnknownMoment {
    /// Nothing is recorded.
    #[error("nothing has been recorded yet")]
    Nothing,
    /// It is to come.
    #[error("there is no version {asked} yet; the last one that was looked at is {last}")]
    Later {
        /// The version that was asked for.
        asked: u64,
        /// The last.
        last: u64,
    },
    /// It is too long ago.
    #[error("what was before version {version} is not kept any more, or was never recorded")]
    Earlier {
        /// The oldest version that is kept.
        version: u64,
        /// Since when it was there.
        at: SystemTime,
    },
    /// Something between then and now is not known.
    #[error("what version {version} has otherwise than what was before it is not known: {}", .gap.as_str())]
    Gap {
        /// The version.
        version: u64,
        /// Since when it was there.
        at: SystemTime,
        /// Why.
        gap: RecordGap,
    },
}

impl History {
    /// One that goes on behind these records, which are in order.
    pub fn restored(records: Vec<HistoryRecord>) -> Self {
        let history = Self::default();
        for record in records {
            history.push(HistoryRecord { restored: true, ..record });
        }
        history
    }

    /// All records, oldest first.
    pub fn records(&self) -> Vec<Arc<HistoryRecord>> {
        self.table().records.iter().map(|(record, _)| Arc::clone(record)).collect()
    }

    /// The record of a version, the newest of that number.
    pub fn record(&self, version: u64) -> Option<Arc<HistoryRecord>> {
        let table = self.table();
        let found = table.records.iter().rev().find(|(record, _)| record.version == version);
        found.map(|(record, _)| Arc::clone(record))
    }

    /// What is otherwise now than it was then.
    ///
    /// # Errors
    /// When then is not known.
    pub fn since(&self, moment: PastMoment) -> Result<Comparison, UnknownMoment> {
        let records = self.records();
        let seen = self.table().seen;
        let last = records.last().ok_or(UnknownMoment::Nothing)?;
        let later = |record: &Arc<HistoryRecord>| match moment {
            PastMoment::Version(version) => !record.restored && record.version > version,
            PastMoment::Time(time) => record.at > time,
        };
        if let PastMoment::Version(asked) = moment
            && asked > seen
        {
            return Err(UnknownMoment::Later { asked, last: seen });
        }
        let from = records.iter().position(later).unwrap_or(records.len());
        let before = from
            .checked_sub(1)
            .and_then(|at| records.get(at))
            .filter(|record| !(record.restored && matches!(moment, PastMoment::Version(_))));
        let before = before.ok_or_else(|| {
            let oldest = records.iter().find(|record| later(record)).unwrap_or(last);
            UnknownMoment::Earlier { version: oldest.version, at: oldest.at }
        })?;
        let mut difference = MeshDifference::default();
        for record in &records[from..] {
            if let Some(gap) = record.gap {
                let (version, at) = (record.version, record.at);
                return Err(UnknownMoment::Gap { version, at, gap });
            }
            difference.then(&record.difference);
        }
        Ok(Comparison { from: (before.version, before.at), to: (seen, last.at), difference })
    }

    /// A version of this process was looked at, and has nothing otherwise than the last record.
    fn saw(&self, version: u64) {
        self.table().seen = version;
    }

    /// Adds the newest record, as it is kept.
    fn push(&self, record: HistoryRecord) -> Arc<HistoryRecord> {
        let mut record = record;
        let mut bytes = record.line().len();
        if bytes > RECORD_BYTES_MAX {
            record.difference = MeshDifference::default();
            record.gap = Some(RecordGap::Size);
            bytes = record.line().len();
        }
        let record = Arc::new(record);
        let mut table = self.table();
        table.bytes += bytes;
        if !record.restored {
            table.seen = record.version;
        }
        table.records.push_back((Arc::clone(&record), bytes));
        while table.records.len() > RECORDS_MAX || table.bytes > BYTES_MAX {
            let Some((_, bytes)) = table.records.pop_front() else { break };
            table.bytes -= bytes;
        }
        record
    }

    /// A panic while the lock was held can't leave it half-changed, so poison is ignored.
    fn table(&self) -> MutexGuard<'_, HistoryTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HistoryRecord {
    /// As it is written.
    fn line(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::time::Duration;

    use super::*;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    /// A version that adds one endpoint, and takes the one away that the version before it added.
    fn record(version: u64, seconds: u64, size: usize) -> HistoryRecord {
        let name = |version: u64| format!("{version}{}", "x".repeat(size));
        let endpoints = SetDifference {
            added: BTreeSet::from([name(version)]),
            removed: BTreeSet::from([name(version - 1)]),
        };
        let service = ServiceDifference {
            definition: None,
            endpoints: BTreeMap::from([("east".to_owned(), endpoints)]),
        };
        let difference = MeshDifference {
            services: BTreeMap::from([("web".to_owned(), service)]),
            ..MeshDifference::default()
        };
        HistoryRecord { version, at: at(seconds), gap: None, difference, restored: false }
    }

    fn ends(comparison: &Comparison) -> (u64, u64, Vec<String>) {
        let sets = comparison.difference.services.values().flat_map(|it| it.endpoints.values());
        let texts = sets.flat_map(|set| set.removed.iter().chain(&set.added)).cloned().collect();
        (comparison.from.0, comparison.to.0, texts)
    }

    #[test]
    fn now_is_held_against_any_version_and_any_time_that_is_kept() {
        let history = History::default();
        assert_eq!(history.since(PastMoment::Version(1)), Err(UnknownMoment::Nothing));
        for (version, seconds) in [(1, 10), (4, 20), (5, 30)] {
            history.push(record(version, seconds, 0));
        }
        let found = |moment| history.since(moment).as_ref().map(ends).map_err(Clone::clone);
        let texts = |texts: &[&str]| texts.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        // Version 3 was never recorded by itself: what was recorded last before it counts.
        for moment in [
            PastMoment::Version(1),
            PastMoment::Version(3),
            PastMoment::Time(at(15)),
            PastMoment::Time(at(10)),
        ] {
            assert_eq!(found(moment), Ok((1, 5, texts(&["3", "5"]))), "{moment:?}");
        }
        assert_eq!(found(PastMoment::Version(4)), Ok((4, 5, texts(&["4", "5"]))));
        assert_eq!(found(PastMoment::Time(at(99))), Ok((5, 5, Vec::new())));
        assert_eq!(found(PastMoment::Version(6)), Err(UnknownMoment::Later { asked: 6, last: 5 }));
        let earlier = UnknownMoment::Earlier { version: 1, at: at(10) };
        assert_eq!(found(PastMoment::Time(at(9))), Err(earlier.clone()));
        assert_eq!(found(PastMoment::Version(0)), Err(earlier));
        assert_eq!(history.record(4).map(|it| it.at), Some(at(20)));
        // A version that changed nothing of this is none of its own.
        history.saw(7);
        assert_eq!(found(PastMoment::Version(6)), Ok((5, 7, Vec::new())));
        let later = UnknownMoment::Later { asked: 8, last: 7 };
        assert_eq!(found(PastMoment::Version(8)), Err(later));
    }

    #[test]
    fn a_restart_is_looked_over_by_time_and_only_where_nothing_is_missing() {
        let before = vec![record(7, 10, 0), record(8, 20, 0)];
        for gap in [None, Some(RecordGap::Start)] {
            let history = History::restored(before.clone());
            history.push(HistoryRecord { gap, ..record(1, 30, 0) });
            history.push(record(2, 40, 0));
            let by_time = history.since(PastMoment::Time(at(10)));
            match gap {
                None => assert_eq!(by_time.map(|it| (it.from.0, it.to.0)), Ok((7, 2))),
                Some(gap) => {
                    let wanted = UnknownMoment::Gap { version: 1, at: at(30), gap };
                    assert_eq!(by_time, Err(wanted));
                }
            }
            assert_eq!(history.since(PastMoment::Version(1)).map(|it| it.from), Ok((1, at(30))));
            // Versions of before are not this process's.
            assert!(matches!(
                history.since(PastMoment::Version(7)),
                Err(UnknownMoment::Later { asked: 7, last: 2 })
            ));
        }
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let history = History::default();
        for version in 1..=(RECORDS_MAX as u64 + 100) {
            history.push(record(version, version, 10));
        }
        assert_eq!(history.records().len(), RECORDS_MAX);
        let large = BYTES_MAX / 8;
        for version in 2000..2020 {
            history.push(record(version, version, large / 2 - 200));
        }
        let bytes: usize = history.records().iter().map(|it| it.line().len()).sum();
        assert!(bytes <= BYTES_MAX && history.records().len() < 10, "{bytes}");
        history.push(record(3000, 3000, RECORD_BYTES_MAX));
        let last = history.record(3000).expect("it was recorded");
        assert!(last.gap == Some(RecordGap::Size) && last.difference.is_empty());
        assert_eq!(
            history.since(PastMoment::Version(2019)),
            Err(UnknownMoment::Gap { version: 3000, at: at(3000), gap: RecordGap::Size })
        );
    }
}
