//! One word per task that states why the task was woken.
//!
//! A task has several sources of work: changes, timers, events. Each source has a [`WakeHandle`],
//! which sets one bit of the word. The task takes all bits at once and handles exactly these
//! reasons. It is woken once for all bits that are set before it takes them. Sources stay
//! registered, so a wake-up creates and drops no future.

mod bits;
mod sync;

use std::sync::Arc;
use std::task::{Context, Wake, Waker};

use self::bits::WakeBits;

/// A set of reasons to wake a task.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WakeReasons(u32);

impl WakeReasons {
    /// Returns the set with only this reason. There are 32.
    pub const fn bit(number: u32) -> Self {
        Self(1 << number)
    }

    /// Returns whether the set contains any of these reasons.
    pub fn has(self, reasons: Self) -> bool {
        self.0 & reasons.0 != 0
    }

    /// Adds reasons.
    pub fn add(&mut self, reasons: Self) {
        self.0 |= reasons.0;
    }

    /// Removes reasons.
    pub fn remove(&mut self, reasons: Self) {
        self.0 &= !reasons.0;
    }
}

/// The receiving side: the task takes the reasons for which it was woken.
#[derive(Debug, Default)]
pub struct WakeReceiver {
    word: Arc<WakeBits>,
    /// The registered waker of the task.
    task: Option<Waker>,
}

/// A source's side: it wakes the task for one reason. A default handle belongs to no task.
#[derive(Debug, Clone, Default)]
pub struct WakeHandle {
    word: Arc<WakeBits>,
    reason: WakeReasons,
}

impl WakeReceiver {
    /// Returns a handle that wakes the task for a reason.
    pub fn handle(&self, reason: WakeReasons) -> WakeHandle {
        WakeHandle { word: Arc::clone(&self.word), reason }
    }

    /// Returns a waker for futures whose progress is a reason to wake the task.
    pub fn waker(&self, reason: WakeReasons) -> Waker {
        Arc::new(self.handle(reason)).into()
    }

    /// Takes the reasons since the last call. From now on, a further reason wakes the task of this
    /// context.
    pub fn take(&mut self, context: &Context<'_>) -> WakeReasons {
        // A task keeps its waker, so this is usually a comparison.
        let task = context.waker();
        if !self.task.as_ref().is_some_and(|registered| registered.will_wake(task)) {
            self.word.register(task.clone());
            self.task = Some(task.clone());
        }
        WakeReasons(self.word.take())
    }
}

impl WakeHandle {
    /// Wakes the task for the reason of this handle.
    pub fn wake(&self) {
        self.word.set(self.reason.0);
    }
}

impl Wake for WakeHandle {
    fn wake(self: Arc<Self>) {
        WakeHandle::wake(&self);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        WakeHandle::wake(self);
    }
}

#[cfg(test)]
mod tests;
