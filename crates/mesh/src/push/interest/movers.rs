//! Streams that are to look at everything anew for another reason than a change of the mesh: their proxies go from one head to
//! another.

use std::sync::Arc;

use super::{Interest, lock};
use crate::timeline::Delivery;
use strait_model::Proxy;

impl Interest {
    /// Has the streams of these proxies look at everything, and at what head they are given; streams of which nobody has said yet
    /// where they stand as well. Returns how many these are.
    pub fn mark_proxies(
        &self,
        is_meant: impl Fn(&Proxy) -> bool,
        delivery: &Arc<Delivery>,
    ) -> usize {
        let table = lock(&self.table);
        let mut marked = 0;
        for (_, listener) in table.streams.iter() {
            if listener.stand.as_ref().is_none_or(|stand| is_meant(&stand.proxy)) {
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
