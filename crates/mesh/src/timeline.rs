//! The last changes: which objects caused each, what it was, who was sent it, and when they had answered.
//!
//! Owns a bounded list. The event loop enters what it has published; each stream that is woken for a change holds a
//! [`Receipt`] and hands it back with the proxy's answer, so that nobody has to ask the streams. With a state directory the
//! list is also in a file ([`TimelineFile`]). Knows nothing of xDS.

mod delivery;
mod file;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::watch;

pub use self::delivery::{
    Delivery, DeliveryCounts, DeliveryRefusal, DeliverySteps, ProxyAnswer, ProxySteps, Receipt,
};
pub use self::file::{TimelineFile, keep};
use strait_model::Causes;

/// How many changes are kept; the oldest go first. Some 500 bytes each, and up to 3 KB for steps of proxies.
const ENTRIES_MAX: usize = 1024;

/// The last changes.
#[derive(Debug)]
pub struct Timeline {
    entries: Mutex<VecDeque<Arc<TimelineEntry>>>,
    /// The number of the last one.
    last: watch::Sender<u64>,
}

/// One change: a version of the mesh.
#[derive(Debug)]
pub struct TimelineEntry {
    /// Its number: 1, 2, …
    pub seq: u64,
    /// When the first of it was heard.
    pub at: SystemTime,
    /// The objects behind it.
    pub causes: Causes,
    /// What it made of services and networks, in words.
    pub effect: String,
    /// The version of the mesh that it is.
    pub version: u64,
    /// From when the first of it was heard until a version was begun: what else came meanwhile is part of it.
    pub waited: Duration,
    /// From when the first of it was heard until the version was there.
    pub published_after: Duration,
    /// Whether it is from before this process.
    pub restored: bool,
    /// How far proxies have followed.
    pub delivery: Arc<Delivery>,
}

impl Default for Timeline {
    fn default() -> Self {
        Self { entries: Mutex::default(), last: watch::Sender::new(0) }
    }
}

impl Timeline {
    /// One that goes on behind these changes of before, which are in order.
    pub fn restored(past: Vec<TimelineEntry>) -> Self {
        let entries: VecDeque<_> = past.into_iter().map(Arc::new).collect();
        let last = entries.back().map_or(0, |last| last.seq);
        Self { entries: Mutex::new(entries), last: watch::Sender::new(last) }
    }

    /// Enters a change that was just published, of a version that was begun then.
    pub fn enter(
        &self,
        version: u64,
        causes: Causes,
        effect: String,
        delivery: Arc<Delivery>,
        begun: Instant,
    ) -> Arc<TimelineEntry> {
        let waited = begun.saturating_duration_since(delivery.heard);
        let published_after = delivery.heard.elapsed();
        let at = SystemTime::now();
        let at = at.checked_sub(published_after).unwrap_or(at);
        let mut entries = self.entries();
        let seq = entries.back().map_or(1, |last| last.seq + 1);
        let entry = Arc::new(TimelineEntry {
            seq,
            at,
            causes,
            effect,
            version,
            waited,
            published_after,
            restored: false,
            delivery,
        });
        if entries.len() >= ENTRIES_MAX {
            entries.pop_front();
        }
        entries.push_back(Arc::clone(&entry));
        drop(entries);
        self.last.send_replace(seq);
        entry
    }

    /// Those after the one numbered `seq`, oldest first.
    pub fn since(&self, seq: u64) -> Vec<Arc<TimelineEntry>> {
        let entries = self.entries();
        let from = entries.partition_point(|entry| entry.seq <= seq);
        entries.range(from..).cloned().collect()
    }

    /// The one with that number, where it is kept.
    pub fn entry(&self, seq: u64) -> Option<Arc<TimelineEntry>> {
        let entries = self.entries();
        let at = entries.binary_search_by_key(&seq, |entry| entry.seq).ok()?;
        entries.get(at).cloned()
    }

    /// The number of the last one; 0 before the first.
    pub fn last(&self) -> watch::Receiver<u64> {
        self.last.subscribe()
    }

    /// A panic while the lock was held can't leave it half-changed, so poison is ignored.
    fn entries(&self) -> MutexGuard<'_, VecDeque<Arc<TimelineEntry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strait_model::Cause;

    #[test]
    fn the_last_changes_are_kept_and_numbered_on() {
        let timeline = Timeline::default();
        let enter = |version: u64| {
            let cause = Cause::named("east".into(), "Service", format!("s{version}"));
            let delivery = Arc::new(Delivery::new(Instant::now()));
            timeline.enter(version, cause.into(), String::new(), delivery, Instant::now())
        };
        let seen = timeline.last();
        assert_eq!(*seen.borrow(), 0);
        let most = ENTRIES_MAX as u64;
        (1..=most + 10).for_each(|version| assert_eq!(enter(version).seq, version));
        assert_eq!(*seen.borrow(), most + 10);
        let all = timeline.since(0);
        assert_eq!((all.len(), all.first().map(|one| one.seq)), (ENTRIES_MAX, Some(11)));
        let last: Vec<_> = timeline.since(most + 8).iter().map(|one| one.version).collect();
        assert_eq!(last, [most + 9, most + 10]);
        assert!(timeline.since(most + 10).is_empty());
        for (seq, is_kept) in [(10, false), (11, true), (most + 10, true), (most + 11, false)] {
            assert_eq!(timeline.entry(seq).map(|one| one.seq), is_kept.then_some(seq));
        }
    }
}
