//! How the event loop fares.

/// What `/debug/push` shows of the loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoopCounters {
    /// The current version; 0 before the first.
    pub version: u64,
    /// When it was published.
    pub published: Option<std::time::SystemTime>,
    /// Events taken so far.
    pub events: u64,
    /// Events that waited when the loop last looked.
    pub queued: usize,
    /// What the last version took to make and announce.
    pub cost: std::time::Duration,
    /// Streams woken by the last version.
    pub woken: usize,
    /// Streams woken by all versions so far: a stream counts once for each that woke it.
    pub woken_total: u64,
}

impl LoopCounters {
    /// Nothing yet.
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
