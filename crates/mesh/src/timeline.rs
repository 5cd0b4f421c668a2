//! The timeline of recent changes: the objects that caused each change, its effect, the proxies
//! that received it, and when they acknowledged it.
//!
//! Owns a bounded list. The event loop adds each published change. Each stream that is woken for a
//! change holds a [`Receipt`] and returns it with the proxy's response, so streams need not be
//! queried. With a state directory, the list is also stored in a file ([`TimelineFile`]). This
//! module does not know xDS.

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

/// The maximum number of changes; the oldest are dropped first. Each takes about 500 bytes, plus up
/// to 3 KB for the steps of proxies.
const ENTRIES_MAX: usize = 1024;

/// The recent changes.
#[derive(Debug)]
pub struct Timeline {
    entries: Mutex<VecDeque<Arc<TimelineEntry>>>,
    /// The number of the last change.
    last: watch::Sender<u64>,
}

/// One change: a version of the mesh.
#[derive(Debug)]
pub struct TimelineEntry {
    /// The sequence number, starting at 1.
    pub seq: u64,
    /// When its first event was received.
    pub at: SystemTime,
    /// The objects that caused it.
    pub causes: Causes,
    /// The effect on services and networks, as text.
    pub effect: String,
    /// The version of the mesh.
    pub version: u64,
    /// The time from its first event until building the version began. Events in this time are part
    /// of the change.
    pub waited: Duration,
    /// The time from its first event until the version was published.
    pub published_after: Duration,
    /// Whether a previous process recorded it.
    pub restored: bool,
    /// The progress of the delivery to proxies.
    pub delivery: Arc<Delivery>,
}

impl Default for Timeline {
    fn default() -> Self {
        Self { entries: Mutex::default(), last: watch::Sender::new(0) }
    }
}

impl Timeline {
    /// Creates a timeline that starts with the changes of previous processes, in order.
    pub fn restored(past: Vec<TimelineEntry>) -> Self {
        let entries: VecDeque<_> = past.into_iter().map(Arc::new).collect();
        let last = entries.back().map_or(0, |last| last.seq);
        Self { entries: Mutex::new(entries), last: watch::Sender::new(last) }
    }

    /// Adds a change that was just published. `begun` is when building its version began.
    pub fn enter(
        &self,
        version: u64,
        causes: Causes,
        effect: String,
        delivery: Arc<Delivery>,
        begun: Instant,
    ) -> Arc<TimelineEntry> {
        let waited = begun.saturating_duration_since(delivery.received);
        let published_after = delivery.received.elapsed();
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

    /// Returns the changes after sequence number `seq`, oldest first.
    pub fn since(&self, seq: u64) -> Vec<Arc<TimelineEntry>> {
        let entries = self.entries();
        let from = entries.partition_point(|entry| entry.seq <= seq);
        entries.range(from..).cloned().collect()
    }

    /// Returns the change with this sequence number, if it is retained.
    pub fn entry(&self, seq: u64) -> Option<Arc<TimelineEntry>> {
        let entries = self.entries();
        let at = entries.binary_search_by_key(&seq, |entry| entry.seq).ok()?;
        entries.get(at).cloned()
    }

    /// Returns a receiver for the sequence number of the last change; 0 before the first.
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
    fn recent_changes_are_retained_and_numbered_consecutively() {
        let timeline = Timeline::default();
        let enter = |version: u64| {
            let cause = Cause::named("east".into(), "Service", format!("s{version}"));
            let delivery = Arc::new(Delivery::new(Instant::now()));
            timeline.enter(version, cause.into(), String::new(), delivery, Instant::now())
        };
        let last_seq = timeline.last();
        assert_eq!(*last_seq.borrow(), 0);
        let most = ENTRIES_MAX as u64;
        (1..=most + 10).for_each(|version| assert_eq!(enter(version).seq, version));
        assert_eq!(*last_seq.borrow(), most + 10);
        let all = timeline.since(0);
        assert_eq!((all.len(), all.first().map(|one| one.seq)), (ENTRIES_MAX, Some(11)));
        let last: Vec<_> = timeline.since(most + 8).iter().map(|one| one.version).collect();
        assert_eq!(last, [most + 9, most + 10]);
        assert!(timeline.since(most + 10).is_empty());
        for (seq, is_retained) in [(10, false), (11, true), (most + 10, true), (most + 11, false)] {
            assert_eq!(timeline.entry(seq).map(|one| one.seq), is_retained.then_some(seq));
        }
    }
}
