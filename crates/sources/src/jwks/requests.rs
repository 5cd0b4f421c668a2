//! Requests to fetch keys before they are due, because a token names an unknown key.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// The minimum interval between two fetches that unknown keys cause, for each issuer. Callers
/// without any identity can present tokens with unknown keys.
const INTERVAL: Duration = Duration::from_secs(10);

/// The issuers `K` whose keys are requested again.
#[derive(Debug)]
pub struct KeyRequests<K> {
    state: Mutex<Requested<K>>,
    news: Notify,
}

#[derive(Debug)]
struct Requested<K> {
    last: BTreeMap<K, Instant>,
    pending: BTreeSet<K>,
}

impl<K> Default for KeyRequests<K> {
    fn default() -> Self {
        let state = Requested { last: BTreeMap::new(), pending: BTreeSet::new() };
        Self { state: Mutex::new(state), news: Notify::new() }
    }
}

impl<K: Ord + Clone> KeyRequests<K> {
    /// Requests the keys of a known issuer, at most once per 10 s.
    pub fn request(&self, issuer: &K, now: Instant) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = |last: &Instant| now.saturating_duration_since(*last) >= INTERVAL;
        if state.last.get(issuer).is_none_or(is_due) {
            state.last.insert(issuer.clone(), now);
            state.pending.insert(issuer.clone());
            drop(state);
            self.news.notify_one();
        }
    }

    /// Waits for requests, and takes them.
    pub async fn next(&self) -> BTreeSet<K> {
        loop {
            let pending = self.take();
            if !pending.is_empty() {
                return pending;
            }
            self.news.notified().await;
        }
    }

    fn take(&self) -> BTreeSet<K> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut state.pending)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_key_causes_at_most_one_fetch_in_ten_seconds() {
        let (requests, now) = (KeyRequests::default(), Instant::now());
        let after = |seconds| now + Duration::from_secs(seconds);
        for (issuer, seconds, count) in
            [("east", 0, 1), ("east", 9, 0), ("west", 9, 1), ("east", 10, 1), ("east", 11, 0)]
        {
            requests.request(&issuer, after(seconds));
            assert_eq!(requests.take().len(), count, "{issuer} after {seconds} s");
        }
    }
}
