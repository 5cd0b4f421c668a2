//! The reasons that wake a stream: changes of the mesh, its timer, and rare events.

use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::sync::WaitForCancellationFutureOwned;

use strait_base::wake::{WakeHandle, WakeReasons, WakeReceiver};
use strait_identity::ServerIdentity;

/// The mesh has changed for the stream.
pub(super) const CHANGES: WakeReasons = WakeReasons::bit(0);
/// The timer has ended.
pub(super) const TIME: WakeReasons = WakeReasons::bit(1);
/// A rare event: changed trust roots, a changed secret, or memory pressure.
pub(super) const EVENTS: WakeReasons = WakeReasons::bit(2);

/// A receiver of trust roots, after they have changed.
type ChangedRoots = watch::Receiver<Arc<ServerIdentity>>;

/// The sources that wake a stream. Requests are not among them: the task of the connection receives
/// them itself.
pub(super) struct Wakeups {
    word: WakeReceiver,
    /// The reasons that were taken and are not completely handled yet.
    reasons: WakeReasons,
    alarm: Alarm,
    /// Completes when the stream must end because of memory pressure.
    shed: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    /// Completes when the trust roots change, if the stream follows them.
    roots: Option<BoxFuture<'static, ChangedRoots>>,
    /// The waker of the futures for rare events.
    events: Waker,
}

impl Default for Wakeups {
    fn default() -> Self {
        let word = WakeReceiver::default();
        let alarm = Alarm { ends: None, sleep: None, waker: word.waker(TIME) };
        let events = word.waker(EVENTS);
        Self { word, reasons: TIME, alarm, shed: None, roots: None, events }
    }
}

impl Wakeups {
    /// Returns the handle that wakes the stream for changes of the mesh.
    pub(super) fn changes(&self) -> WakeHandle {
        self.word.handle(CHANGES)
    }

    /// Returns a context for a future that is polled again for [`EVENTS`].
    pub(super) fn events(&self) -> Waker {
        self.events.clone()
    }

    /// Takes the reasons for which the stream was woken since the last call.
    pub(super) fn take(&mut self, context: &Context<'_>) {
        let taken = self.word.take(context);
        if taken.has(TIME) {
            self.alarm.ends = None;
        }
        self.reasons.add(taken);
    }

    pub(super) fn has(&self, reason: WakeReasons) -> bool {
        self.reasons.has(reason)
    }

    /// Adds a reason that the stream has found itself.
    pub(super) fn add(&mut self, reason: WakeReasons) {
        self.reasons.add(reason);
    }

    /// Removes a reason that is completely handled.
    pub(super) fn handled(&mut self, reason: WakeReasons) {
        self.reasons.remove(reason);
    }

    /// Wakes the stream at this time, or earlier.
    pub(super) fn wake_at(&mut self, time: Option<Instant>) {
        if let Some(time) = time
            && self.alarm.set(time)
        {
            self.reasons.add(TIME);
        }
    }

    /// Wakes the stream when it must end because of memory pressure.
    pub(super) fn follow_shedding(&mut self, ended: WaitForCancellationFutureOwned) {
        self.shed = Some(Box::pin(ended));
        self.add(EVENTS);
    }

    /// Returns whether the stream must end because of memory pressure.
    pub(super) fn is_shed(&mut self) -> bool {
        let shed = self.shed.as_mut();
        shed.is_some_and(|shed| shed.poll_unpin(&mut Context::from_waker(&self.events)).is_ready())
    }

    /// Wakes the stream when the trust roots change.
    pub(super) fn follow_roots(&mut self, mut roots: ChangedRoots) {
        let changed = async move {
            // An error means that the process is shutting down.
            if roots.changed().await.is_err() {
                pending::<()>().await;
            }
            roots
        };
        self.roots = Some(changed.boxed());
        self.add(EVENTS);
    }

    /// Returns the trust roots if they have changed. Then they are not followed any more.
    pub(super) fn changed_roots(&mut self) -> Option<ChangedRoots> {
        let changed = self.roots.as_mut()?.poll_unpin(&mut Context::from_waker(&self.events));
        let Poll::Ready(roots) = changed else { return None };
        self.roots = None;
        Some(roots)
    }
}

/// The one timer of a stream. It may end too early, so that it is seldom set.
struct Alarm {
    /// The time at which it ends, if it is running.
    ends: Option<Instant>,
    /// Allocated when first needed.
    sleep: Option<Pin<Box<Sleep>>>,
    waker: Waker,
}

impl Alarm {
    /// Sets the timer, unless it ends earlier already. Returns whether this time has passed.
    fn set(&mut self, time: Instant) -> bool {
        if self.ends.is_some_and(|ends| ends <= time) {
            return false;
        }
        match &mut self.sleep {
            Some(sleep) => sleep.as_mut().reset(time),
            None => self.sleep = Some(Box::pin(sleep_until(time))),
        }
        self.ends = Some(time);
        let Some(sleep) = &mut self.sleep else { return false };
        let has_passed = sleep.as_mut().poll(&mut Context::from_waker(&self.waker)).is_ready();
        if has_passed {
            self.ends = None;
        }
        has_passed
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn timer_wakes_at_the_earliest_time_and_is_set_again_after_it() {
        let (now, later) = (Instant::now(), Duration::from_secs(60));
        let mut wakeups = Wakeups::default();
        wakeups.handled(TIME);
        wakeups.wake_at(Some(now + later));
        for _ in 0..2 {
            wakeups.wake_at(Some(Instant::now() + Duration::from_millis(5)));
            wakeups.wake_at(Some(now + later));
            let woken = poll_fn(|context| {
                wakeups.take(context);
                if wakeups.has(TIME) { Poll::Ready(()) } else { Poll::Pending }
            });
            tokio::time::timeout(later / 2, woken).await.expect("it wakes before the later time");
            wakeups.handled(TIME);
        }
    }

    #[tokio::test]
    async fn stream_without_a_deadline_has_no_timer() {
        let mut wakeups = Wakeups::default();
        wakeups.wake_at(None);
        assert!(wakeups.alarm.sleep.is_none());
    }
}
