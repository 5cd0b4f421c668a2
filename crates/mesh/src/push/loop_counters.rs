//! Statistics of the event loop.

/// The statistics of the event loop that `/debug/push` shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoopCounters {
    /// The current version; 0 before the first.
    pub version: u64,
    /// When it was published.
    pub published: Option<std::time::SystemTime>,
    /// The number of events received.
    pub events: u64,
    /// The number of events in the queue at the last check.
    pub queued: usize,
    /// The time that the last version took to build and announce.
    pub cost: std::time::Duration,
    /// The number of streams that the last version woke.
    pub woken: usize,
    /// The total number of wake-ups by all versions; a stream counts once for each version that
    /// woke it.
    pub woken_total: u64,
}

impl LoopCounters {
    /// Returns the statistics before the first event.
    pub fn none() -> Self {
        Self {
            version: 0,
            published: None,
            events: 0,
            queued: 0,
            cost: std::time::Duration::ZERO,
            woken: 0,
            woken_total: 0,
        }
    }
}
