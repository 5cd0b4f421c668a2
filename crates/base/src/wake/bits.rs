//! The atomic word with the reasons of a task's wake-up, and the task's waker. Only this part of
//! [`super`] is used by several threads at the same time.

use std::sync::PoisonError;
use std::task::Waker;

use super::sync::{AtomicU32, Mutex, Ordering};

/// Bits, and the task that takes them.
#[derive(Debug, Default)]
pub(super) struct WakeBits {
    bits: AtomicU32,
    task: Mutex<Option<Waker>>,
}

impl WakeBits {
    /// Sets a bit. Wakes the task if the word was empty: otherwise another caller has woken it, or
    /// is about to, and it has not taken the bits yet.
    pub(super) fn set(&self, bit: u32) {
        // `Release`: the task sees everything that the caller stored before.
        if self.bits.fetch_or(bit, Ordering::Release) == 0 {
            let task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(task) = &*task {
                task.wake_by_ref();
            }
        }
    }

    /// Takes all bits. Call [`Self::register`] first.
    pub(super) fn take(&self) -> u32 {
        // Reading the empty word does not take the cache line away from the callers of `set`.
        if self.bits.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        self.bits.swap(0, Ordering::Acquire)
    }

    /// Sets the waker of the task. A caller of `set` that finds no waker, or the previous one, has
    /// released the lock before, so that the next [`Self::take`] finds its bit.
    pub(super) fn register(&self, task: Waker) {
        *self.task.lock().unwrap_or_else(PoisonError::into_inner) = Some(task);
    }
}
