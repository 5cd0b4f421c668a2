//! Reports a client's progress on the changes for which its stream was woken, through the receipts
//! of these changes.

use std::time::Instant;

use tracing::warn;

use super::Stream;
use strait_base::lock::lock;
use strait_xds::resource::ResourceType;

impl Stream {
    /// Reports that the recorded changes were sent at this time, or acknowledges them if there was
    /// nothing to send.
    pub(super) fn note_sent(&mut self, at: Instant) {
        match &self.admitted {
            Some(admitted) if !self.idle => {
                self.receipts.iter_mut().for_each(|receipt| receipt.sent(&admitted.proxy, at));
            }
            _ => self.settle(),
        }
    }

    /// Acknowledges the recorded changes once the client has answered all responses.
    pub(super) fn settle(&mut self) {
        if let Some(admitted) = &self.admitted
            && !self.receipts.is_empty()
            && lock(&self.session).is_settled()
        {
            let now = Instant::now();
            self.receipts.drain(..).for_each(|receipt| receipt.acknowledge(&admitted.proxy, now));
        }
    }

    /// Reports that the client has rejected a response, and why.
    pub(super) fn report_rejection(&mut self, kind: Option<ResourceType>) {
        let Some(admitted) = &self.admitted else { return };
        let nack = kind.and_then(|kind| lock(&self.session).progress().remove(&kind)?.nack);
        let text = nack.map(|nack| nack.error).unwrap_or_default();
        let (receipts, now) = (self.receipts.drain(..), Instant::now());
        receipts.for_each(|receipt| receipt.refuse(&admitted.proxy, now, &text));
        let Some(kind) = kind else { return };
        self.shared.stats.nacked(kind);
        self.shared.connections.notify();
        warn!(
            code = "STR0507",
            proxy = %admitted.proxy.id,
            kind = kind.short(),
            error = text.chars().take(400).collect::<String>(),
            "the proxy rejected a response; it keeps its previous configuration"
        );
    }
}
