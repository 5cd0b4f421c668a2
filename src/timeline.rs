//! The last changes: which objects caused each, what it was, who was sent it, and when they had answered.
//!
//! Owns a bounded list. The event loop enters what it has published; each stream that is woken for a change holds a
//! [`Receipt`] and hands it back with the proxy's answer, so that nobody has to ask the streams. With a state directory the
//! list is also in a file ([`TimelineFile`]). Knows nothing of xDS.

mod file;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::watch;

pub use self::file::{TimelineFile, keep};
use crate::model::Causes;

/// How many changes are kept; the oldest go first. Some 500 bytes each.
const ENTRIES_MAX: usize = 1024;
/// How many of the proxies that refuse a change are named.
const REFUSERS_MAX: usize = 8;

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

/// How far the proxies that are sent a change have followed.
#[derive(Debug)]
pub struct Delivery {
    heard: Instant,
    proxies: AtomicU32,
    acknowledged: AtomicU32,
    refused: AtomicU32,
    unfollowed: AtomicU32,
    /// When the last answer came, in microseconds after the change was heard.
    last_answer: AtomicU64,
    /// Who refused it, the first few.
    refusers: Mutex<Vec<String>>,
}

/// A [`Delivery`] at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeliveryCounts {
    /// Streams that were woken for it.
    pub proxies: u32,
    /// Those that have acknowledged all that they were sent since, or had nothing to be sent.
    pub acknowledged: u32,
    /// Those that refused some of it.
    pub refused: u32,
    /// Those of which nobody knows: they ended first, or had too much else to answer.
    pub unfollowed: u32,
    /// From when it was heard until the last answer; `None` before the first.
    pub last_answer: Option<Duration>,
}

/// What one stream owes: whether its proxy has followed. Dropped without an answer, nobody knows.
#[derive(Debug)]
pub struct Receipt(Option<Arc<Delivery>>);

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

    /// The number of the last one; 0 before the first.
    pub fn last(&self) -> watch::Receiver<u64> {
        self.last.subscribe()
    }

    /// A panic while the lock was held can't leave it half-changed, so poison is ignored.
    fn entries(&self) -> MutexGuard<'_, VecDeque<Arc<TimelineEntry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Delivery {
    /// Of a change that was heard then, and nobody was sent yet.
    pub fn new(heard: Instant) -> Self {
        Self {
            heard,
            proxies: AtomicU32::new(0),
            acknowledged: AtomicU32::new(0),
            refused: AtomicU32::new(0),
            unfollowed: AtomicU32::new(0),
            last_answer: AtomicU64::new(0),
            refusers: Mutex::default(),
        }
    }

    /// How far one came of which nobody will hear more.
    fn past(heard: Instant, counts: DeliveryCounts, refusers: Vec<String>) -> Self {
        let last = counts.last_answer.map_or(0, |after| after.as_micros());
        Self {
            heard,
            proxies: AtomicU32::new(counts.proxies),
            acknowledged: AtomicU32::new(counts.acknowledged),
            refused: AtomicU32::new(counts.refused),
            unfollowed: AtomicU32::new(counts.unfollowed),
            last_answer: AtomicU64::new(u64::try_from(last).unwrap_or(u64::MAX)),
            refusers: Mutex::new(refusers),
        }
    }

    /// The node ids of proxies that refused some of it: the first eight.
    pub fn refused_by(&self) -> Vec<String> {
        self.refusers.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// For one stream more.
    pub fn receipt(self: &Arc<Self>) -> Receipt {
        self.proxies.fetch_add(1, Ordering::Relaxed);
        Receipt(Some(Arc::clone(self)))
    }

    /// How far it is now.
    pub fn counts(&self) -> DeliveryCounts {
        let last = self.last_answer.load(Ordering::Relaxed);
        DeliveryCounts {
            proxies: self.proxies.load(Ordering::Relaxed),
            acknowledged: self.acknowledged.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            unfollowed: self.unfollowed.load(Ordering::Relaxed),
            last_answer: (last > 0).then(|| Duration::from_micros(last)),
        }
    }

    fn answered(&self, count: &AtomicU32) {
        let after = u64::try_from(self.heard.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.last_answer.fetch_max(after.max(1), Ordering::Relaxed);
        count.fetch_add(1, Ordering::Relaxed);
    }
}

impl DeliveryCounts {
    /// How many have yet to answer.
    pub fn waiting(&self) -> u32 {
        self.proxies.saturating_sub(self.acknowledged + self.refused + self.unfollowed)
    }
}

impl Receipt {
    /// The proxy has acknowledged all that it was sent of the change.
    pub fn acknowledge(mut self) {
        if let Some(delivery) = self.0.take() {
            delivery.answered(&delivery.acknowledged);
        }
    }

    /// The proxy with that node id refused some of it.
    pub fn refuse(mut self, proxy: &str) {
        if let Some(delivery) = self.0.take() {
            let mut refusers = delivery.refusers.lock().unwrap_or_else(PoisonError::into_inner);
            if refusers.len() < REFUSERS_MAX {
                refusers.push(proxy.to_owned());
            }
            drop(refusers);
            delivery.answered(&delivery.refused);
        }
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        if let Some(delivery) = self.0.take() {
            delivery.unfollowed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Cause;

    #[test]
    fn who_was_sent_a_change_is_counted_by_how_it_ended() {
        let delivery = Arc::new(Delivery::new(Instant::now()));
        let [first, second, third, fourth] = [(); 4].map(|()| delivery.receipt());
        assert_eq!((delivery.counts().waiting(), delivery.counts().last_answer), (4, None));
        first.acknowledge();
        second.refuse("web-0.shop");
        drop(third);
        let counts = delivery.counts();
        assert!(counts.last_answer.is_some());
        let DeliveryCounts { proxies, acknowledged, refused, unfollowed, .. } = counts;
        assert_eq!([proxies, acknowledged, refused, unfollowed, counts.waiting()], [4, 1, 1, 1, 1]);
        assert_eq!(delivery.refused_by(), ["web-0.shop"]);
        fourth.acknowledge();
        assert_eq!(delivery.counts().waiting(), 0);
    }

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
    }
}
