//! Computes which streams a version affects, before the version is published.
//!
//! A change to services is evaluated for the location of every stream. The streams that a change to
//! access policies affects follow from the differing policies.

use std::sync::Arc;

use super::context::PushContext;
use super::reach::reach;
use super::scope::{
    AffectedResources, ChangeImpact, ProxyLocation, is_worth_computing, related_hosts, same_access,
};
use super::subscription_index::{ChangedItem, Changes, SubscriptionIndex};

impl Changes {
    /// Computes which of the streams each part of the change affects.
    pub fn compute_impact(
        &mut self,
        versions: [&Arc<PushContext>; 2],
        subscription_index: &SubscriptionIndex,
        change_impact: &dyn ChangeImpact,
    ) {
        if !is_worth_computing(versions.map(|context| &**context), &self.services()) {
            self.deps.insert(ChangedItem::Mesh);
        }
        if self.is_everything() {
            return;
        }
        if self.affects_services() {
            self.compute_service_impact(versions, subscription_index, change_impact);
        }
        if self.affects_access() {
            self.compute_access_impact(versions.map(|context| &**context), subscription_index);
        }
    }

    fn compute_service_impact(
        &mut self,
        versions: [&Arc<PushContext>; 2],
        subscription_index: &SubscriptionIndex,
        change_impact: &dyn ChangeImpact,
    ) {
        let [before, now] = versions;
        let hosts = related_hosts([before, now], &self.services());
        self.reach = self.affects_only_hosts().then(|| reach([before, now], &hosts)).flatten();
        let locations = subscription_index.locations(self.reach.as_ref());
        let places: Vec<_> = locations.iter().map(|(_, location)| Arc::clone(location)).collect();
        let mut seen = change_impact.seen(before, now, &hosts, &places);
        if self.may_move() {
            for (seen, place) in seen.iter_mut().zip(&places) {
                if place.moved([before, now]) {
                    *seen = Arc::new(AffectedResources {
                        everything: true,
                        ..AffectedResources::default()
                    });
                }
            }
        }
        self.set_seen(locations, seen);
    }

    fn compute_access_impact(
        &mut self,
        [before, now]: [&PushContext; 2],
        subscription_index: &SubscriptionIndex,
    ) {
        let concerned = now.access.concerned(&before.access);
        let same = |(_, location): &(u32, Arc<ProxyLocation>)| same_access([before, now], location);
        self.same_access =
            subscription_index.locations_of(&concerned).into_iter().filter(same).collect();
        self.concerned = Some(concerned);
    }
}
