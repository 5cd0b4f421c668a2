//! Selects the streams whose acknowledgement delays the next version.

use std::sync::Arc;

use super::{ChangedItem, Changes, ProxyLocation};
use crate::timeline::{Delivery, Receipt};
use strait_model::dirty::Wildcard;

impl Changes {
    /// Returns a receipt for the stream. Receipts of east-west gateways whose inbound configuration
    /// changed are awaited, including upstream clusters of single pods. Ingress gateways need no wait: they process everything when their
    /// Gateways or rules change, and no traffic from another network passes through them.
    pub(super) fn receipt(
        &self,
        delivery: &Arc<Delivery>,
        stream: u32,
        location: Option<&Arc<ProxyLocation>>,
    ) -> Receipt {
        let is_router = location.is_some_and(|location| location.proxy.kind.is_gateway());
        let seen = if is_router { self.seen_by(stream, location) } else { None };
        let changes_pods = || self.deps.iter().any(|one| matches!(one, ChangedItem::Members(_)));
        let is_awaited = seen.is_some_and(|seen| {
            seen.lists.contains(Wildcard::Listeners)
                || (seen.lists.contains(Wildcard::Clusters) && changes_pods())
        });
        if is_awaited { delivery.awaited_receipt() } else { delivery.receipt() }
    }
}
