//! Of the virtual hosts that a stream is served one by one, what is to be known besides the routes that it holds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::virtual_hosts::HeldHosts;

/// What is to be known of hosts besides what is held.
#[derive(Debug, Default)]
pub(super) struct ServedHosts {
    /// By route, where the client doesn't hold for certain what it was sent last.
    pub(super) unsettled: BTreeMap<Arc<str>, Unsettled>,
    /// Routes that the client had when it came, until it says which hosts it has.
    pub(super) listed_routes: BTreeSet<Arc<str>>,
    /// Hosts of routes that it has let go. Envoy would list them when it comes back, even if it has taken up the route anew
    /// and has none of them: it is told that they are gone, before it is sent any route.
    pub(super) gone: Vec<Arc<str>>,
}

/// The hosts of a route of which nobody knows whether the client has them.
#[derive(Debug)]
pub(super) struct Unsettled {
    /// Those that it has for certain.
    pub(super) held: HeldHosts,
    /// The number of the response whose answer is awaited; none where nothing was sent yet, or that was refused.
    pub(super) awaited: Option<u64>,
    /// What was sent and refused.
    pub(super) names: Vec<Arc<str>>,
}

impl ServedHosts {
    pub(super) fn is_due(&self) -> bool {
        !self.gone.is_empty()
    }

    pub(super) fn awaits(&self, route: &str) -> bool {
        self.unsettled.get(route).is_some_and(|one| one.awaited.is_some())
    }

    /// Takes the answer to a response.
    pub(super) fn answered(&mut self, number: u64, is_refusal: bool) {
        self.unsettled.retain(|_, one| {
            let is_it = one.awaited == Some(number);
            one.awaited.take_if(|_| is_it && is_refusal);
            !is_it || is_refusal
        });
    }
}
