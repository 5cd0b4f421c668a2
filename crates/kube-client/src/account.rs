//! The memory that all readers of one server use together: undecoded bytes, objects of incomplete
//! lists, and the objects that the receiver stores. Each part also has its own limit. This account
//! limits the sum, because a malicious server determines it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// The memory account of one server.
#[derive(Debug, Default)]
pub struct ServerAccount {
    /// Bytes that readers have received and not passed on yet.
    read: AtomicUsize,
    /// Bytes that the receiver stores.
    held: AtomicUsize,
    /// The next request of readers that received too much, by kind.
    again: Mutex<BTreeMap<&'static str, SystemTime>>,
}

impl ServerAccount {
    /// Sets how many bytes the receiver stores.
    pub fn hold(&self, bytes: usize) {
        self.held.store(bytes, Ordering::Relaxed);
    }

    /// Returns the sum in bytes.
    pub fn total(&self) -> usize {
        self.read.load(Ordering::Relaxed).saturating_add(self.held.load(Ordering::Relaxed))
    }

    /// Returns the earliest next request among readers that pause because they received too much.
    pub fn again(&self) -> Option<SystemTime> {
        let again = self.again.lock().unwrap_or_else(PoisonError::into_inner);
        again.values().min().copied()
    }

    /// Records that the reader of a kind makes its next request after that pause; `None` means now.
    pub(super) fn asks(&self, kind: &'static str, after: Option<Duration>) {
        let mut again = self.again.lock().unwrap_or_else(PoisonError::into_inner);
        match after.and_then(|after| SystemTime::now().checked_add(after)) {
            Some(at) => drop(again.insert(kind, at)),
            None => drop(again.remove(kind)),
        }
    }
}

/// One reader's part of an account; it is released on drop.
#[derive(Debug)]
pub(super) struct Share {
    account: Arc<ServerAccount>,
    /// Undecoded bytes.
    buffered: usize,
    /// Bytes of objects of an incomplete list.
    gathered: usize,
}

impl Share {
    /// Creates an empty part.
    pub(super) fn of(account: &Arc<ServerAccount>) -> Self {
        Self { account: Arc::clone(account), buffered: 0, gathered: 0 }
    }

    /// Sets the number of undecoded bytes.
    pub(super) fn buffers(&mut self, bytes: usize) {
        self.change(bytes, self.gathered);
    }

    /// Adds bytes of a list.
    pub(super) fn gathers(&mut self, bytes: usize) {
        self.change(self.buffered, self.gathered.saturating_add(bytes));
    }

    /// Releases all bytes.
    pub(super) fn give_back(&mut self) {
        self.change(0, 0);
    }

    /// Whether all readers together, and the receiver, exceed the limit.
    pub(super) fn exceeds(&self, limit: usize) -> bool {
        self.account.total() > limit
    }

    fn change(&mut self, buffered: usize, gathered: usize) {
        let sum = |a: usize, b: usize| a.saturating_add(b);
        let (before, after) = (sum(self.buffered, self.gathered), sum(buffered, gathered));
        (self.buffered, self.gathered) = (buffered, gathered);
        // Subtracts only previously added bytes: the sum never wraps.
        match after.checked_sub(before) {
            Some(more) => drop(self.account.read.fetch_add(more, Ordering::Relaxed)),
            None => drop(self.account.read.fetch_sub(before - after, Ordering::Relaxed)),
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_all_readers_is_counted_and_released() {
        let account = Arc::default();
        let (mut pods, mut nodes) = (Share::of(&account), Share::of(&account));
        pods.buffers(10);
        pods.gathers(5);
        pods.gathers(5);
        nodes.buffers(7);
        account.hold(100);
        assert_eq!(account.total(), 127);
        assert!(nodes.exceeds(126) && !nodes.exceeds(127));
        pods.buffers(0);
        assert_eq!(account.total(), 117);
        pods.give_back();
        drop(nodes);
        assert_eq!(account.total(), 100);
    }

    #[test]
    fn earliest_next_request_is_reported() {
        let account = ServerAccount::default();
        assert_eq!(account.again(), None);
        account.asks("pods", Some(Duration::from_secs(600)));
        let later = account.again().expect("pods");
        account.asks("nodes", Some(Duration::from_secs(60)));
        assert!(account.again().expect("nodes") < later);
        account.asks("nodes", None);
        assert_eq!(account.again(), Some(later));
        account.asks("pods", None);
        assert_eq!(account.again(), None);
    }
}
