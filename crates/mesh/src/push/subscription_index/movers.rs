//! Wakes streams for a reason other than a change to the mesh: their proxies move from one head to
//! another.

use std::sync::Arc;

use super::{SubscriptionIndex, lock};
use crate::timeline::Delivery;
use strait_model::Proxy;

impl SubscriptionIndex {
    /// Wakes the streams of these proxies, which then process everything and determine their head.
    /// Streams whose location is not known yet are included. Returns their number.
    pub fn mark_proxies(
        &self,
        is_affected: impl Fn(&Proxy) -> bool,
        delivery: &Arc<Delivery>,
    ) -> usize {
        let table = self.table();
        let mut marked = 0;
        for (_, listener) in table.streams.iter() {
            if listener.location.as_ref().is_none_or(|location| is_affected(&location.proxy)) {
                let mut unread = lock(&listener.pending.dirty);
                unread.everything = true;
                unread.receipts.add(delivery.receipt());
                drop(unread);
                listener.pending.wake.wake();
                marked += 1;
            }
        }
        marked
    }
}
