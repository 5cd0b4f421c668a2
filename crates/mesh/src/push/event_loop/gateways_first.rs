//! Delays versions until gateways are ready: routes to a destination in another network are
//! published after that network's gateway knows the destination.
//!
//! Proxies process versions at different speeds. A client could receive a route to a subset or
//! service whose SNI the gateway on the path does not know yet, and its requests would fail. So if
//! a version changes the inbound configuration of east-west gateways, the next version that changes
//! more than endpoints waits for their acknowledgement. The first version contains upstream
//! clusters, assignments and the gateways' listeners, to which no route leads without the second.
//! The wait is limited to [`ANSWERS_LIMIT`]. After a wait that timed out, no version waits until
//! the missing acknowledgements have arrived or their streams have ended, so that an unresponsive
//! gateway delays other changes only once.
//! (docs/contributing/decisions/0055-subsets-that-come-and-go.md)

use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use strait_base::task::until;

/// The maximum time to wait for acknowledgements of gateways. A gateway on a busy node needs several
/// hundred milliseconds.
const ANSWERS_LIMIT: Duration = Duration::from_secs(1);

/// The acknowledgements of gateways for which the next version waits.
#[derive(Debug, Default)]
pub(super) struct GatewaysFirst {
    /// A channel that closes when all gateways have acknowledged, and the deadline.
    awaited: Option<(mpsc::Receiver<()>, Instant)>,
    /// The channel of the last wait that timed out. It closes as `awaited` does.
    overdue: Option<mpsc::Receiver<()>>,
}

impl GatewaysFirst {
    /// Records that a version was published. The senders of `answers` are held by the version's
    /// receipts until the gateways acknowledge.
    pub(super) fn note(&mut self, answers: mpsc::Receiver<()>, now: Instant) {
        self.overdue.take_if(|overdue| overdue.is_closed());
        if !answers.is_closed() && self.overdue.is_none() {
            self.awaited = Some((answers, now + ANSWERS_LIMIT));
        }
    }

    /// Waits until all gateways have acknowledged or the deadline has passed. Cancel-safe.
    pub(super) async fn answered(&mut self) {
        let Some((answers, limit)) = &mut self.awaited else { return };
        let has_timed_out = tokio::select! {
            biased;
            _ = answers.recv() => false,
            () = until(Some(*limit)) => true,
        };
        self.overdue = self.awaited.take().map(|(answers, _)| answers).filter(|_| has_timed_out);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::FutureExt;

    use super::*;
    use crate::timeline::Delivery;
    use strait_model::testing::sidecar;

    #[tokio::test]
    async fn next_version_waits_only_for_gateways() {
        let mut first = GatewaysFirst::default();
        assert!(first.answered().now_or_never().is_some(), "nothing was published");
        let (sender, answers) = mpsc::channel(1);
        let delivery = Arc::new(Delivery::new(Instant::now()).awaited_by(&sender));
        let (gateway, ended, client) =
            (delivery.awaited_receipt(), delivery.awaited_receipt(), delivery.receipt());
        drop(sender);
        first.note(answers, Instant::now());
        assert!(first.answered().now_or_never().is_none());
        gateway.acknowledge(&sidecar("gateway.ns", "east"), Instant::now());
        assert!(first.answered().now_or_never().is_none());
        // The stream of the gateway ended.
        drop(ended);
        assert!(first.answered().now_or_never().is_some(), "the client is not awaited");
        drop(client);
        // A version that does not affect gateways.
        let (sender, answers) = mpsc::channel(1);
        drop(sender);
        first.note(answers, Instant::now());
        assert!(first.answered().now_or_never().is_some());
    }

    #[tokio::test]
    async fn unresponsive_gateway_delays_one_version() {
        let (mut first, begun) = (GatewaysFirst::default(), Instant::now());
        let (unresponsive, answers) = mpsc::channel(1);
        first.note(answers, begun);
        first.answered().await;
        assert!(begun.elapsed() >= ANSWERS_LIMIT);
        let is_awaited = |first: &mut GatewaysFirst| {
            let (_sender, answers) = mpsc::channel(1);
            first.note(answers, Instant::now());
            first.answered().now_or_never().is_none()
        };
        assert!(!is_awaited(&mut first), "the gateway has not acknowledged yet");
        drop(unresponsive);
        assert!(is_awaited(&mut first), "the gateway has acknowledged");
    }
}
