//! A limit on large responses in transit.
//!
//! A first sync is a thousand times the work of a change. If all proxies connect at once, their
//! first syncs would delay every change for proxies that are in sync. Therefore large amounts of
//! data are admitted by their size in bytes, in the order of requests. Small amounts are not
//! limited. This module does not know the sent data.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The number of bytes that may be in transit at once: enough to use every core, and to serve
/// clients that read slowly.
const BYTES_MAX: usize = 8 << 20;
/// The longest time for which a stream keeps a permit, even if not everything was sent. A client
/// that reads slowly uses few resources at a time, so other clients need not wait for it.
pub(super) const TURN_MAX: Duration = Duration::from_millis(20);
/// The number of bytes that one semaphore permit represents.
const UNIT: usize = 1 << 10;

/// The limiter of one server.
#[derive(Debug)]
pub(super) struct SyncLimiter {
    room: Arc<Semaphore>,
}

/// The permission to send a large amount. Dropping it releases the bytes.
#[derive(Debug)]
pub(super) struct SyncPermit {
    room: OwnedSemaphorePermit,
}

impl Default for SyncLimiter {
    fn default() -> Self {
        Self { room: Arc::new(Semaphore::new(BYTES_MAX / UNIT)) }
    }
}

impl SyncLimiter {
    /// Waits for the permission to send at most `bytes` bytes.
    pub(super) async fn turn(&self, bytes: usize) -> SyncPermit {
        let units = u32::try_from(units(bytes)).expect("the lane has fewer");
        let room = Arc::clone(&self.room).acquire_many_owned(units).await;
        SyncPermit { room: room.expect("the semaphore is never closed") }
    }
}

impl SyncPermit {
    /// Releases the part of the permit that exceeds `bytes`.
    pub(super) fn needs(&mut self, bytes: usize) {
        let spare = self.room.num_permits().saturating_sub(units(bytes));
        drop(self.room.split(spare));
    }
}

/// Converts bytes to semaphore permits, rounded up, with the limiter's capacity as the maximum.
fn units(bytes: usize) -> usize {
    bytes.min(BYTES_MAX).div_ceil(UNIT)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn permits_are_granted_by_bytes_and_in_order() {
        let sync_limiter = SyncLimiter::default();
        let mut first = sync_limiter.turn(usize::MAX).now_or_never().expect("it is empty");
        let mut second = Box::pin(sync_limiter.turn(BYTES_MAX / 2));
        assert!(second.as_mut().now_or_never().is_none());
        first.needs(BYTES_MAX / 2 + 1);
        assert!(second.as_mut().now_or_never().is_none(), "one byte is too much");
        assert!(sync_limiter.turn(UNIT).now_or_never().is_none(), "small requests wait behind it");
        first.needs(BYTES_MAX / 2);
        let second = second.now_or_never().expect("there is room");
        drop((first, second));
        assert!(sync_limiter.turn(BYTES_MAX).now_or_never().is_some(), "all permits are returned");
    }
}
