//! Gateways first: routes to what only another network has come once that network's gateway knows it.
//!
//! Each proxy follows a version in its own time, so a client might be led to a subset, or to a service, whose SNI the gateway on the way
//! doesn't know yet: its requests would fail. So where a version changes what east-west gateways take in, the next one that changes more
//! than endpoints waits for their answers. What is sent of the first (upstream clusters, assignments, the gateways' own listeners) leads
//! nobody anywhere without the second. For [`ANSWERS_LIMIT`] at most; after a wait in vain nothing waits for [`IN_VAIN_FOR`], so that
//! a gateway that doesn't answer delays others' changes once. (docs/decisions/0055-subsets-that-come-and-go.md)

use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use strait_base::task::until;

/// How long answers of gateways are waited for.
const ANSWERS_LIMIT: Duration = Duration::from_millis(250);
/// How long none are after they were waited for in vain.
const IN_VAIN_FOR: Duration = Duration::from_secs(30);

/// Which answers of gateways the next version waits for.
#[derive(Debug, Default)]
pub(super) struct GatewaysFirst {
    /// They have all answered once nobody can send any more; and until when they may.
    awaited: Option<(mpsc::Receiver<()>, Instant)>,
    in_vain_until: Option<Instant>,
}

impl GatewaysFirst {
    /// Notes that a version was published, for whose gateways the other end of `answers` is held until they have answered.
    pub(super) fn note(&mut self, answers: mpsc::Receiver<()>, now: Instant) {
        let is_in_vain = self.in_vain_until.is_some_and(|until| now < until);
        if !answers.is_closed() && !is_in_vain {
            self.awaited = Some((answers, now + ANSWERS_LIMIT));
        }
    }

    /// Waits until all have answered, or must have. Cancel-safe.
    pub(super) async fn answered(&mut self) {
        let Some((answers, limit)) = &mut self.awaited else { return };
        tokio::select! {
            biased;
            _ = answers.recv() => {}
            () = until(Some(*limit)) => self.in_vain_until = Some(*limit + IN_VAIN_FOR),
        }
        self.awaited = None;
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
    async fn the_next_version_waits_for_those_that_are_awaited_and_no_others() {
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
        // Its stream ended.
        drop(ended);
        assert!(first.answered().now_or_never().is_some(), "the client is not waited for");
        drop(client);
        // A version that is no matter to gateways.
        let (sender, answers) = mpsc::channel(1);
        drop(sender);
        first.note(answers, Instant::now());
        assert!(first.answered().now_or_never().is_some());
    }

    #[tokio::test]
    async fn who_does_not_answer_delays_one_version_for_a_while() {
        let (mut first, begun) = (GatewaysFirst::default(), Instant::now());
        let (_sender, answers) = mpsc::channel(1);
        first.note(answers, begun);
        first.answered().await;
        assert!(begun.elapsed() >= ANSWERS_LIMIT);
        let note = |first: &mut GatewaysFirst, after: Duration| {
            let (sender, answers) = mpsc::channel(1);
            first.note(answers, begun + ANSWERS_LIMIT + after);
            let is_awaited = first.answered().now_or_never().is_none();
            drop(sender);
            is_awaited
        };
        assert!(!note(&mut first, IN_VAIN_FOR / 2), "it was in vain a moment ago");
        assert!(note(&mut first, IN_VAIN_FOR));
    }
}
