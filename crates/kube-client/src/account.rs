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
    stored: AtomicUsize,
    /// The next request of readers that received too much, by kind.
    next_requests: Mutex<BTreeMap<&'static str, SystemTime>>,
}

impl ServerAccount {
    /// Sets how many bytes the receiver stores.
    pub fn set_stored(&self, bytes: usize) {
        self.stored.store(bytes, Ordering::Relaxed);
    }

    /// Returns the sum in bytes.
    pub fn total(&self) -> usize {
        self.read.load(Ordering::Relaxed).saturating_add(self.stored.load(Ordering::Relaxed))
    }

    /// Returns the earliest next request among readers that pause because they received too much.
    pub fn next_requests(&self) -> Option<SystemTime> {
        let next_requests = self.next_requests.lock().unwrap_or_else(PoisonError::into_inner);
        next_requests.values().min().copied()
    }

    /// Records that the reader of a kind makes its next request after that pause; `None` means now.
    pub(super) fn set_next_request(&self, kind: &'static str, after: Option<Duration>) {
        let mut next_requests = self.next_requests.lock().unwrap_or_else(PoisonError::into_inner);
        match after.and_then(|after| SystemTime::now().checked_add(after)) {
            Some(at) => drop(next_requests.insert(kind, at)),
            None => drop(next_requests.remove(kind)),
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
    pub(super) fn new(account: &Arc<ServerAccount>) -> Self {
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
    pub(super) fn release(&mut self) {
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
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_all_readers_is_counted_and_released() {
        let account = Arc::default();
        let (mut pods, mut nodes) = (Share::new(&account), Share::new(&account));
        pods.buffers(10);
        pods.gathers(5);
        pods.gathers(5);
        nodes.buffers(7);
        account.set_stored(100);
        assert_eq!(account.total(), 127);
        assert!(nodes.exceeds(126) && !nodes.exceeds(127));
        pods.buffers(0);
        assert_eq!(account.total(), 117);
        pods.release();
        drop(nodes);
        assert_eq!(account.total(), 100);
    }

    #[test]
    fn earliest_next_request_is_reported() {
        let account = ServerAccount::default();
        assert_eq!(account.next_requests(), None);
        account.set_next_request("pods", Some(Duration::from_secs(600)));
        let later = account.next_requests().expect("pods");
        account.set_next_request("nodes", Some(Duration::from_secs(60)));
        assert!(account.next_requests().expect("nodes") < later);
        account.set_next_request("nodes", None);
        assert_eq!(account.next_requests(), Some(later));
        account.set_next_request("pods", None);
        assert_eq!(account.next_requests(), None);
    }
}
