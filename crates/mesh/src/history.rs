//! The history of the mesh: the difference between each version and its predecessor, for comparing
//! the present with the past.
//!
//! [`History`] owns a bounded list of [`HistoryRecord`]s. A separate task ([`HistoryRecorder`])
//! compares the versions that the event loop publishes, at most one per second, so that several
//! versions in quick succession become one record. Publishing and sending never wait for it. With a
//! state directory, the records survive a restart, and so does a summary of the mesh at an orderly
//! shutdown. After any other shutdown, the first difference is unknown ([`RecordGap`]).

mod difference;
mod recorder;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

pub use self::difference::{MeshDifference, ServiceDifference, SetDifference, ValueDifference};
pub use self::recorder::HistoryRecorder;

/// The maximum number of records; the oldest are dropped first.
const RECORDS_MAX: usize = 1024;
/// The maximum size of all serialized records, in bytes.
const BYTES_MAX: usize = 8 << 20;
/// The maximum size of one serialized record, in bytes. A larger difference is dropped and replaced
/// by [`RecordGap::Size`].
const RECORD_BYTES_MAX: usize = 2 << 20;

/// The records of all retained versions.
#[derive(Debug, Default)]
pub struct History(Mutex<HistoryTable>);

#[derive(Debug, Default)]
struct HistoryTable {
    records: VecDeque<(Arc<HistoryRecord>, usize)>,
    bytes: usize,
    /// The last version that was compared. It has no record if nothing differed.
    last_compared: u64,
}

/// The difference between a version and the version of the previous record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HistoryRecord {
    /// The version; each process starts at 1.
    pub version: u64,
    /// The time of recording.
    pub at: SystemTime,
    /// Why the difference is unknown, or `None` if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap: Option<RecordGap>,
    /// The difference.
    pub difference: MeshDifference,
    /// Whether a previous process recorded it.
    #[serde(skip)]
    pub restored: bool,
}

/// Why the difference between a version and its predecessor is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RecordGap {
    /// The version is the process's first, and the previous process stored no state or
    /// crashed.
    Start,
    /// The difference exceeded the size limit.
    Size,
}

impl RecordGap {
    /// Returns the reason as text.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Start => {
                "it is the first recorded version, or the previous process stored no state or did not shut down properly"
            }
            Self::Size => "it exceeds the size limit for one version",
        }
    }
}

/// The moment in the past to compare with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PastMoment {
    /// The moment when this version of this process was current.
    Version(u64),
    /// A point in time.
    Time(SystemTime),
}

/// The difference between a past moment and the present.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// The version that was current at that moment, and when it was recorded.
    pub from: (u64, SystemTime),
    /// The last compared version, and the time of the last record.
    pub to: (u64, SystemTime),
    /// The difference between the two versions.
    pub difference: MeshDifference,
}

/// Why a past moment cannot be compared with the present.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnknownMoment {
    /// No version has been recorded.
    #[error("no version has been recorded yet")]
    Nothing,
    /// The requested version is in the future.
    #[error("version {requested} does not exist yet; the last compared version is {last}")]
    Later {
        /// The requested version.
        requested: u64,
        /// The last compared version.
        last: u64,
    },
    /// The moment is before the oldest record.
    #[error("the state before version {version} was never recorded or is no longer retained")]
    Earlier {
        /// The version of the oldest record.
        version: u64,
        /// When it was recorded.
        at: SystemTime,
    },
    /// A difference between that moment and the present is unknown.
    #[error("the difference between version {version} and the version before it is unknown: {}", .gap.as_str())]
    Gap {
        /// The version whose difference is unknown.
        version: u64,
        /// When it was recorded.
        at: SystemTime,
        /// Why it is unknown.
        gap: RecordGap,
    },
}

impl History {
    /// Creates a history that starts with the records of previous processes, in order.
    pub fn restored(records: Vec<HistoryRecord>) -> Self {
        let history = Self::default();
        for record in records {
            history.push(HistoryRecord { restored: true, ..record });
        }
        history
    }

    /// Returns all records, oldest first.
    pub fn records(&self) -> Vec<Arc<HistoryRecord>> {
        self.table().records.iter().map(|(record, _)| Arc::clone(record)).collect()
    }

    /// Returns the newest record with this version.
    pub fn record(&self, version: u64) -> Option<Arc<HistoryRecord>> {
        let table = self.table();
        let found = table.records.iter().rev().find(|(record, _)| record.version == version);
        found.map(|(record, _)| Arc::clone(record))
    }

    /// Returns the difference between `moment` and the present.
    ///
    /// # Errors
    /// If `moment` is not recorded, or a difference since then is unknown.
    pub fn since(&self, moment: PastMoment) -> Result<Comparison, UnknownMoment> {
        let records = self.records();
        let last_compared = self.table().last_compared;
        let last = records.last().ok_or(UnknownMoment::Nothing)?;
        let later = |record: &Arc<HistoryRecord>| match moment {
            PastMoment::Version(version) => !record.restored && record.version > version,
            PastMoment::Time(time) => record.at > time,
        };
        if let PastMoment::Version(requested) = moment
            && requested > last_compared
        {
            return Err(UnknownMoment::Later { requested, last: last_compared });
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
            difference.append(&record.difference);
        }
        Ok(Comparison {
            from: (before.version, before.at),
            to: (last_compared, last.at),
            difference,
        })
    }

    /// Notes that a version of this process was compared and does not differ from the last record.
    fn note_compared(&self, version: u64) {
        self.table().last_compared = version;
    }

    /// Appends the newest record and returns it as stored.
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
            table.last_compared = record.version;
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
    /// Serializes the record as one line of the file.
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

    /// Returns the record of a version that adds one endpoint and removes the endpoint that the
    /// previous version added.
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
    fn any_retained_version_or_time_can_be_compared_with_the_present() {
        let history = History::default();
        assert_eq!(history.since(PastMoment::Version(1)), Err(UnknownMoment::Nothing));
        for (version, seconds) in [(1, 10), (4, 20), (5, 30)] {
            history.push(record(version, seconds, 0));
        }
        let found = |moment| history.since(moment).as_ref().map(ends).map_err(Clone::clone);
        let texts = |texts: &[&str]| texts.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        // Version 3 has no record: the last record before it applies.
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
        assert_eq!(
            found(PastMoment::Version(6)),
            Err(UnknownMoment::Later { requested: 6, last: 5 })
        );
        let earlier = UnknownMoment::Earlier { version: 1, at: at(10) };
        assert_eq!(found(PastMoment::Time(at(9))), Err(earlier.clone()));
        assert_eq!(found(PastMoment::Version(0)), Err(earlier));
        assert_eq!(history.record(4).map(|it| it.at), Some(at(20)));
        // A version without a difference has no record.
        history.note_compared(7);
        assert_eq!(found(PastMoment::Version(6)), Ok((5, 7, Vec::new())));
        let later = UnknownMoment::Later { requested: 8, last: 7 };
        assert_eq!(found(PastMoment::Version(8)), Err(later));
    }

    #[test]
    fn comparison_across_a_restart_needs_a_time_and_no_gap() {
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
            // Version numbers of a previous process are not valid in this process.
            assert!(matches!(
                history.since(PastMoment::Version(7)),
                Err(UnknownMoment::Later { requested: 7, last: 2 })
            ));
        }
    }

    #[test]
    fn history_is_bounded() {
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
