//! Locks that ignore poisoning.
//!
//! A panic ends only its own task. The value behind the lock is consistent nevertheless, because no
//! code panics between two related writes under a lock.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, even if a thread panicked while holding it.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
