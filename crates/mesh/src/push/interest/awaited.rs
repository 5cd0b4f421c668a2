//! Whose answers to a change others wait for.

use std::sync::Arc;

use super::{Changes, Stand};
use crate::timeline::{Delivery, Receipt};
use strait_model::ProxyType;
use strait_model::dirty::Wildcard;

impl Changes {
    /// What a stream owes that is sent it, and that stands there: east-west gateways that take in otherwise than before are awaited.
    /// Ingress gateways look at everything where their Gateways or rules change, and lead nobody from another network on.
    pub(super) fn receipt(
        &self,
        delivery: &Arc<Delivery>,
        stream: u32,
        stand: Option<&Arc<Stand>>,
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
