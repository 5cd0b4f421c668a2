//! Moves streams between configurations (heads), for example when a rollout reaches more proxies or
//! a cluster defines traffic rules for its own proxies.

use std::sync::Arc;

use super::side::{Side, is_same};
use super::{AdmittedStream, Stream};
use crate::shared::ServerShared;
use strait_base::lock::lock;
use strait_mesh::push::subscription_index::{Subscription, SubscriptionIndex};
use strait_xds::names::hostname_of;
use strait_xds::resource::ResourceType;
use strait_xds::session::Session;

impl AdmittedStream {
    /// Moves the stream to the configuration that its proxy is assigned to. Returns whether the
    /// configuration is a different one; then everything must be compared again.
    pub(super) fn change_sides(&mut self, shared: &ServerShared, session: &Session) -> bool {
        let mut has_moved = false;
        loop {
            let head = shared.heads.variant_for(&self.proxy);
            if is_same(self.side.as_ref(), head.as_ref()) {
                return has_moved;
            }
            let subscription_index =
                head.as_ref().map_or(&shared.subscription_index, |head| head.subscription_index());
            self.subscription = self.subscribe_to(subscription_index, session);
            self.side = head.map(|head| Side::of(head, session));
            has_moved = true;
            // Check again: a change of the assignment before the new subscription existed did not
            // notify this stream.
        }
    }

    /// Publishes the changes that the stream has not handled yet for its current configuration. Call
    /// it when the subscription is new and the changes that were taken before are in the session.
    pub(super) fn publish_backlog(&self) {
        self.entry.set_backlog(self.subscription.backlog());
    }

    /// Subscribes to the session's names and lists at another configuration.
    fn subscribe_to(
        &self,
        subscription_index: &Arc<SubscriptionIndex>,
        session: &Session,
    ) -> Subscription {
        let workload = (self.proxy.cluster.clone(), self.proxy.workload.clone());
        let mut subscription =
            subscription_index.subscribe_waking(Some(workload), self.wake.clone());
        let names =
            |all: &mut dyn Iterator<Item = &Arc<str>>| -> Vec<Arc<str>> { all.cloned().collect() };
        subscription.watch_lists(self.lists);
        subscription.watch_routes(&names(&mut session.routes()), &[]);
        subscription.watch(&names(&mut session.assignments()), hostname_of);
        subscription
    }
}

impl Stream {
    /// Records a rejection with the configuration that caused it, if it is not the configuration
    /// for all proxies.
    pub(super) fn record_rejection(&self, kind: ResourceType, nonce: Option<u64>) {
        let Some(admitted) = &self.admitted else { return };
        let Some(side) = &admitted.side else { return };
        let is_of_it = nonce.is_some_and(|nonce| nonce > side.sent_before);
        if !is_of_it || side.refused_before.contains(&kind) {
            return;
        }
        let nack = lock(&self.session).progress().remove(&kind).and_then(|progress| progress.nack);
        let error = nack.map(|nack| nack.error).unwrap_or_default();
        side.head.refused(&admitted.proxy.id, &error);
    }
}
