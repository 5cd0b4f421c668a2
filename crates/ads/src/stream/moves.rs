//! Streams that go from one head to another, as the share that is given the next configuration changes.

use std::sync::Arc;

use super::side::{Side, is_same};
use super::{AdmittedStream, Stream};
use crate::shared::ServerShared;
use strait_base::lock::lock;
use strait_mesh::push::interest::{Interest, Subscription};
use strait_xds::names::OutboundName;
use strait_xds::resource::ResourceType;
use strait_xds::session::Session;

impl AdmittedStream {
    /// Goes where its proxy is to be served from now on, if that is elsewhere: it has to look at everything then. Whether it
    /// is.
    pub(super) fn change_sides(&mut self, shared: &ServerShared, session: &Session) -> bool {
        let mut has_moved = false;
        loop {
            let head = shared.heads.of(&self.proxy);
            if is_same(self.side.as_ref(), head.as_ref()) {
                return has_moved;
            }
            let interest = head.as_ref().map_or(&shared.interest, |head| head.interest());
            self.subscription = self.subscribe_to(interest, session);
            self.side = head.map(|head| Side::of(head, session));
            has_moved = true;
            // Once more: whoever changed the share before it was entered there told it nothing.
        }
    }

    /// Lets others see what it has yet to look at where it is served now; what it took is with the session.
    pub(super) fn shows_backlog(&self) {
        self.subscription.passed_on();
        self.entry.is_served(self.subscription.backlog());
    }

    /// Watches elsewhere what it watches.
    fn subscribe_to(&self, interest: &Arc<Interest>, session: &Session) -> Subscription {
        let workload = (self.proxy.cluster.clone(), self.proxy.workload.clone());
        let mut subscription = interest.subscribe(Some(workload));
        let names =
            |all: &mut dyn Iterator<Item = &Arc<str>>| -> Vec<Arc<str>> { all.cloned().collect() };
        subscription.watch_lists(self.lists);
        subscription.watch_routes(&names(&mut session.routes()), &[]);
        let hostname = |name: &str| OutboundName::parse(name).map(|name| name.hostname);
        subscription.watch(&names(&mut session.assignments()), hostname);
        subscription
    }
}

impl Stream {
    /// Notes a refusal with the configuration that it is of, if that is one for a share.
    pub(super) fn note_refusal(&self, kind: ResourceType, nonce: Option<u64>) {
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
