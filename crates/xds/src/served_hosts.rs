//! State of a stream that receives virtual hosts individually (VHDS), in addition to the routes
//! that the client holds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::virtual_hosts::HeldHosts;

/// The state of virtual hosts that the subscription does not contain.
#[derive(Debug, Default)]
pub(super) struct ServedHosts {
    /// Routes for which the client may not hold the hosts that were sent last.
    pub(super) unsettled: BTreeMap<Arc<str>, Unsettled>,
    /// Routes that the client already had when it connected, until it lists its hosts.
    pub(super) listed_routes: BTreeSet<Arc<str>>,
    /// Names of hosts whose routes the client has unsubscribed from. Envoy would list these hosts
    /// after a reconnect, even if it has subscribed to the route again and has none of them. Their
    /// removal is sent before any route.
    pub(super) gone: Vec<Arc<str>>,
}

/// A route whose hosts the client may or may not have.
#[derive(Debug)]
pub(super) struct Unsettled {
    /// The hosts that the client certainly holds.
    pub(super) held: HeldHosts,
    /// The number of the unanswered response. `None` if no response was sent yet, or if the
    /// response was rejected.
    pub(super) awaited: Option<u64>,
    /// The names of hosts that were sent but not accepted.
    pub(super) names: Vec<Arc<str>>,
}

impl ServedHosts {
    pub(super) fn is_due(&self) -> bool {
        !self.gone.is_empty()
    }

    pub(super) fn awaits(&self, route: &str) -> bool {
        self.unsettled.get(route).is_some_and(|one| one.awaited.is_some())
    }

    /// Records the answer to a response.
    pub(super) fn answered(&mut self, number: u64, is_refusal: bool) {
        self.unsettled.retain(|_, one| {
            let is_it = one.awaited == Some(number);
            one.awaited.take_if(|_| is_it && is_refusal);
            !is_it || is_refusal
        });
    }
}
