//! What all readers of one server hold of it together: bytes that are no object yet, objects of lists that are
//! not complete yet, and what whoever reads has kept. Each has bounds of its own as well; this is the one for
//! their sum, which is what a server that means harm can make us hold.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// The account of one server.
#[derive(Debug, Default)]
pub struct ServerAccount {
    /// Of readers: what has been received and not passed on yet.
    read: AtomicUsize,
    /// Of the receiver: what it holds of what was passed on.
    held: AtomicUsize,
    /// When readers ask again that met too much, by their kind.
    again: Mutex<BTreeMap<&'static str, SystemTime>>,
}

impl ServerAccount {
    /// Sets how much is held of what was passed on.
    pub fn hold(&self, bytes: usize) {
        self.held.store(bytes, Ordering::Relaxed);
    }

    /// The sum of all.
    pub fn total(&self) -> usize {
        self.read.load(Ordering::Relaxed).saturating_add(self.held.load(Ordering::Relaxed))
    }

    /// When the first of those readers asks again that leave the server alone for a while.
    pub fn again(&self) -> Option<SystemTime> {
        let again = self.again.lock().unwrap_or_else(PoisonError::into_inner);
        again.values().min().copied()
    }

    /// The reader of a kind asks again after that pause; without one it asks now.
    pub(super) fn asks(&self, kind: &'static str, after: Option<Duration>) {
        let mut again = self.again.lock().unwrap_or_else(PoisonError::into_inner);
        match after.and_then(|after| SystemTime::now().checked_add(after)) {
            Some(at) => drop(again.insert(kind, at)),
            None => drop(again.remove(kind)),
        }
    }
}

/// One reader's part of an account; it is given back in the end.
#[derive(Debug)]
pub(super) struct Share {
    account: Arc<ServerAccount>,
    /// Bytes that are no object yet.
    buffered: usize,
    /// Objects of a list that is not complete yet.
    gathered: usize,
}

impl Share {
    /// A part of nothing yet.
    pub(super) fn of(account: &Arc<ServerAccount>) -> Self {
        Self { account: Arc::clone(account), buffered: 0, gathered: 0 }
    }

    /// So many bytes are no object yet.
    pub(super) fn buffers(&mut self, bytes: usize) {
        self.change(bytes, self.gathered);
    }

    /// The list is longer by so much.
    pub(super) fn gathers(&mut self, bytes: usize) {
        self.change(self.buffered, self.gathered.saturating_add(bytes));
    }

    /// Nothing is held any more.
    pub(super) fn give_back(&mut self) {
        self.change(0, 0);
    }

    /// Whether all readers together, and what was passed on, are above that.
    pub(super) fn exceeds(&self, limit: usize) -> bool {
        self.account.total() > limit
    }

    fn change(&mut self, buffered: usize, gathered: usize) {
        let sum = |a: usize, b: usize| a.saturating_add(b);
        let (before, after) = (sum(self.buffered, self.gathered), sum(buffered, gathered));
        (self.buffered, self.gathered) = (buffered, gathered);
        // What is taken away was added before: the sum never wraps.
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
    fn what_readers_hold_together_counts_and_is_given_back() {
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
    fn the_first_who_asks_again_is_told() {
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
