//! Whose turn it is to be sent much.
//!
//! A first sync is a thousand times the work of a change. When all proxies come at once, theirs would
//! stand before every change that those who are in sync wait for. So what is much is admitted by its
//! bytes, in the order of asking, and what is little goes past. Knows nothing of what is sent.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What may be on its way at once: enough for every core to have some, and for clients that read slowly.
const BYTES_MAX: usize = 8 << 20;
/// A turn is over after this, sent or not. Who reads slowly costs little at a time: that is no reason for
/// others to wait.
pub(super) const TURN_MAX: Duration = Duration::from_millis(20);
/// Bytes are counted by so many.
const UNIT: usize = 1 << 10;

/// The lane of one server.
#[derive(Debug)]
pub(super) struct SyncLimiter {
    room: Arc<Semaphore>,
}

/// The right to send much; dropping it is the end of it.
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
    /// Waits for the turn to send `bytes` at most.
    pub(super) async fn turn(&self, bytes: usize) -> SyncPermit {
        let units = u32::try_from(units(bytes)).expect("the lane has fewer");
        let room = Arc::clone(&self.room).acquire_many_owned(units).await;
        SyncPermit { room: room.expect("nobody closes the lane") }
    }
}

impl SyncPermit {
    /// Leaves to others what is not needed.
    pub(super) fn needs(&mut self, bytes: usize) {
        let spare = self.room.num_permits().saturating_sub(units(bytes));
        drop(self.room.split(spare));
    }
}

/// Of the whole lane nobody needs more.
fn units(bytes: usize) -> usize {
    bytes.min(BYTES_MAX).div_ceil(UNIT)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn it_admits_by_bytes_and_in_order() {
        let sync_limiter = SyncLimiter::default();
        let mut first = sync_limiter.turn(usize::MAX).now_or_never().expect("it is empty");
        let mut second = Box::pin(sync_limiter.turn(BYTES_MAX / 2));
        assert!(second.as_mut().now_or_never().is_none());
        first.needs(BYTES_MAX / 2 + 1);
        assert!(second.as_mut().now_or_never().is_none(), "one byte is too much");
        assert!(
            sync_limiter.turn(UNIT).now_or_never().is_none(),
            "whoever is small waits behind it"
        );
        first.needs(BYTES_MAX / 2);
        let second = second.now_or_never().expect("there is room");
        drop((first, second));
        assert!(sync_limiter.turn(BYTES_MAX).now_or_never().is_some(), "nothing is left behind");
    }
}
