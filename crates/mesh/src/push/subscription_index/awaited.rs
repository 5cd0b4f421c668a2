//! Selects the streams whose acknowledgement delays the next version.

use std::sync::Arc;

use super::{Changes, ProxyLocation};
use crate::timeline::{Delivery, Receipt};
use strait_model::ProxyType;
use strait_model::dirty::Wildcard;

impl Changes {
    /// Returns a receipt for the stream. Receipts of east-west gateways whose inbound configuration
    /// changed are awaited. Ingress gateways need no wait: they process everything when their
    /// Gateways or rules change, and no traffic from another network passes through them.
    pub(super) fn receipt(
        &self,
        delivery: &Arc<Delivery>,
        stream: u32,
        stand: Option<&Arc<ProxyLocation>>,
    ) -> Receipt {
        let is_router = stand.is_some_and(|stand| stand.proxy.kind == ProxyType::Router);
        let seen = if is_router { self.seen_by(stream, stand) } else { None };
        if seen.is_some_and(|seen| seen.lists.contains(Wildcard::Listeners)) {
            delivery.awaited_receipt()
        } else {
            delivery.receipt()
        }
    }
}
