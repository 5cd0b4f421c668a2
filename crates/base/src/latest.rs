//! Publishes the latest value of something to its watchers.

use tokio::sync::watch;

/// Publishes `value` unless it equals the current one, so that watchers are woken only by changes.
/// Returns whether it differed.
pub fn publish_change<T: PartialEq>(sender: &watch::Sender<T>, value: T) -> bool {
    sender.send_if_modified(|current| {
        let differs = *current != value;
        if differs {
            *current = value;
        }
        differs
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_value_wakes_no_watcher() {
        let (sender, receiver) = watch::channel(1);
        assert!(!publish_change(&sender, 1));
        assert!(!receiver.has_changed().expect("the sender exists"));
        assert!(publish_change(&sender, 2));
        assert!(receiver.has_changed().expect("the sender exists"));
        assert_eq!(*receiver.borrow(), 2);
    }
}
