//! An estimate of the memory that the data of a cluster takes.

/// The memory use is computed again after this many bytes if half of the budget is used, or after
/// this many events if the budget is exhausted.
const WEIGHED_AFTER: usize = 4 << 20;
const WEIGHED_EVENTS: usize = 1000;

/// The approximate memory use. The exact computation visits every object, so it is repeated only
/// after a limited growth; until then, all new data counts, even if it replaces other data.
#[derive(Debug, Default)]
pub(super) struct MemoryEstimate {
    /// The last exact result.
    pub(super) weighed: usize,
    /// Bytes received since.
    since: usize,
    events: usize,
}

impl MemoryEstimate {
    /// Returns the estimate in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.weighed.saturating_add(self.since)
    }

    /// Adds an object of this size.
    pub(super) fn grow(&mut self, bytes: usize) {
        self.since = self.since.saturating_add(bytes);
        self.events += 1;
    }

    /// Removes an object of this size.
    pub(super) fn shrink(&mut self, bytes: usize) {
        self.since = self.since.saturating_sub(bytes);
    }

    /// Whether the exact computation is due: much data has arrived and half of the budget is used,
    /// or the budget seems exhausted and some memory may have been released since.
    pub(super) fn is_stale(&self, most: usize) -> bool {
        let bytes = self.bytes();
        (self.since > WEIGHED_AFTER && bytes > most / 2)
            || (bytes > most && self.events >= WEIGHED_EVENTS)
    }

    /// Sets the exact result.
    pub(super) fn set_weighed(&mut self, bytes: usize) {
        *self = Self { weighed: bytes, since: 0, events: 0 };
    }
}
