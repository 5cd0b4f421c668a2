//! One copy of what many objects say alike: thousands of rules have the same policy, the same two subsets, and the same
//! condition on a path with the same timeout.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

use super::destination_rule::Subset;
use super::object::ObjectState;
use super::policy::TrafficPolicy;
use super::report::TrafficObject;
use super::route::RuleTerms;
use strait_model::SortedMap;

/// Parts of objects, of which equal ones are one.
#[derive(Debug, Default)]
pub(super) struct SharedParts {
    /// How services are spoken to.
    policies: SharedValues<TrafficPolicy>,
    /// The subsets of one rule.
    subsets: SharedValues<SortedMap<Arc<str>, Subset>>,
    /// What one rule says of requests.
    terms: SharedValues<RuleTerms>,
    /// The gateways of one VirtualService.
    gateways: SharedValues<[Arc<str>]>,
    /// What is said of objects: of most of them nothing.
    pub(super) states: SharedValues<ObjectState>,
    /// Names that are no object's own.
    texts: SharedValues<str>,
}

impl SharedParts {
    /// Has what other objects say as well be theirs, in one that has just been read: of the kinds of which there are
    /// thousands.
    pub(super) fn share(&mut self, object: &mut TrafficObject) {
        match object {
            TrafficObject::DestinationRule(rule) => {
                let Some(rule) = Arc::get_mut(rule) else { return };
                rule.policy.iter_mut().for_each(|policy| self.policies.share(policy));
                self.subsets.share(&mut rule.subsets);
            }
            TrafficObject::VirtualService(service) => {
                let Some(service) = Arc::get_mut(service) else { return };
                self.gateways.share(&mut service.gateways);
                for rule in Arc::get_mut(&mut service.http).into_iter().flatten() {
                    self.terms.share(&mut rule.terms);
                    rule.destinations.iter_mut().for_each(|to| self.texts.share(&mut to.subset));
                }
            }
            _ => {}
        }
    }
}

/// Values in use. Those that are not any more are dropped when there may be as many of them as of the others, so that a
/// value costs the same however many there are.
#[derive(Debug)]
pub(super) struct SharedValues<T: ?Sized> {
    all: HashSet<Arc<T>>,
    /// With how many it is looked for some that nobody uses.
    room: usize,
}

/// Fewer than so many are not looked through.
const ROOM_MIN: usize = 64;

impl<T: ?Sized> Default for SharedValues<T> {
    fn default() -> Self {
        Self { all: HashSet::new(), room: ROOM_MIN }
    }
}

impl<T: ?Sized + Eq + Hash> SharedValues<T> {
    /// Has a value be the one that is in use already, where there is an equal one.
    pub(super) fn share(&mut self, value: &mut Arc<T>) {
        if let Some(known) = self.all.get(value) {
            value.clone_from(known);
            return;
        }
        if self.all.len() >= self.room {
            self.all.retain(|one| Arc::strong_count(one) > 1);
            self.room = ROOM_MIN.max(2 * self.all.len());
        }
        self.all.insert(Arc::clone(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_one_and_those_that_nobody_uses_go() {
        let mut values = SharedValues::<str>::default();
        let mut share = |text: &str| {
            let mut value = Arc::from(text);
            values.share(&mut value);
            value
        };
        let kept: Vec<Arc<str>> = (0..100).map(|number| share(&number.to_string())).collect();
        assert!(Arc::ptr_eq(&kept[7], &share("7")) && !Arc::ptr_eq(&kept[7], &share("8")));
        for number in 100..10_000 {
            share(&number.to_string());
        }
        assert!(kept.iter().all(|one| Arc::ptr_eq(one, &share(one))));
        assert!(values.all.len() <= 2 * kept.len() + 1, "{}", values.all.len());
    }
}
