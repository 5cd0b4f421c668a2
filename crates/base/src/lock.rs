//! Locks that are taken whatever became of who had them.
//!
//! A panic ends one task and no other. What it leaves behind a lock is whole, since nothing that may panic is done there
//! between two writes that belong together; so poison says nothing.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a mutex guards, also where somebody panicked with it.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
