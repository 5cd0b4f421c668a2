//! Changes of a stream's subscriptions: they are charged to its identity, and determine which
//! changes of the mesh wake the stream.

use std::collections::HashSet;
use std::sync::Arc;

use super::of_service::is_of_service;
use super::{AdmittedStream, StreamEnd, uncharged};
use crate::budgets::{Charge, Refused};
use strait_base::hash::SecretHasher;
use strait_mesh::push::PushContext;
use strait_model::dirty::Wildcards;
use strait_xds::names::hostname_of;
use strait_xds::resource::ResourceType;
use strait_xds::session::SubscriptionDelta;

impl AdmittedStream {
    /// Charges the identity for the changes of the stream's subscriptions. Changes of the new names
    /// wake the stream.
    pub(super) fn resubscribe(
        &mut self,
        context: Option<&PushContext>,
        subscription_delta: &SubscriptionDelta,
        lists: Wildcards,
    ) -> Result<(), StreamEnd> {
        self.charge(context, subscription_delta).map_err(|why| uncharged(&why))?;
        let SubscriptionDelta { assignments, routes, .. } = subscription_delta;
        self.subscription.forget(&assignments.dropped);
        self.subscription.watch(&assignments.new, hostname_of);
        self.subscription.watch_routes(&routes.new, &routes.dropped);
        if std::mem::replace(&mut self.lists, lists) != lists {
            self.subscription.watch_lists(lists);
        }
        Ok(())
    }

    /// Charges the identity for the changes of the stream's subscriptions.
    fn charge(
        &mut self,
        context: Option<&PushContext>,
        subscription_delta: &SubscriptionDelta,
    ) -> Result<(), Refused> {
        let mut charge = self.account.charge();
        let SubscriptionDelta { assignments, routes, others_dropped, others_new } =
            subscription_delta;
        let of = |kind, names: &[Arc<str>]| {
            let names = names.iter().map(|name| (kind, Arc::clone(name)));
            names.collect::<Vec<_>>()
        };
        let both = |assignments: &[Arc<str>], routes: &[Arc<str>]| {
            [of(ResourceType::Endpoint, assignments), of(ResourceType::Route, routes)].concat()
        };
        for one in both(&assignments.dropped, &routes.dropped).iter().chain(others_dropped) {
            if self.made_up.remove(one) {
                charge.made_up = charge.made_up.saturating_sub(1);
                charge.made_up_text = charge.made_up_text.saturating_sub(one.1.len() as u64);
            } else {
                charge.names = charge.names.saturating_sub(1);
            }
        }
        for one in both(&assignments.new, &routes.new).into_iter().chain(others_new.clone()) {
            // While the mesh is unknown, every name counts as that of a service.
            if context.is_none_or(|context| is_of_service(context, one.0, &one.1)) {
                charge.names += 1;
            } else {
                charge.made_up += 1;
                charge.made_up_text += one.1.len() as u64;
                self.made_up.insert(one);
            }
        }
        self.routes.let_go(&routes.dropped);
        self.account.set(charge)
    }

    /// Checks whether the identity can be charged for these new names. After subscribing, they
    /// would already use much more memory.
    pub(super) fn bears(
        &self,
        context: Option<&PushContext>,
        kind: Option<ResourceType>,
        names: &[&str],
    ) -> Result<(), StreamEnd> {
        let (Some(context), Some(kind)) = (context, kind) else { return Ok(()) };
        // A repeated name is subscribed to once.
        let names: HashSet<&str, SecretHasher> = names.iter().copied().collect();
        let mut charge = Charge { verified: self.account.charge().verified, ..Charge::default() };
        for name in names {
            if is_of_service(context, kind, name) {
                charge.names += 1;
            } else {
                charge.made_up += 1;
                charge.made_up_text += name.len() as u64;
            }
        }
        self.account.bears(charge).map_err(|why| uncharged(&why))
    }
}
