//! Shared copies of equal parts of objects. Thousands of rules have the same policy, the same two
//! subsets, or the same path condition with the same timeout.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

use super::destination_rule::Subset;
use super::object::ObjectState;
use super::policy::TrafficPolicy;
use super::report::TrafficObject;
use super::route::RuleTerms;
use strait_model::SortedMap;

/// Parts of objects. Equal parts are stored once.
#[derive(Debug, Default)]
pub(super) struct SharedParts {
    /// Traffic policies.
    policies: SharedValues<TrafficPolicy>,
    /// Subsets of a rule.
    subsets: SharedValues<SortedMap<Arc<str>, Subset>>,
    /// Settings of an HTTP rule.
    terms: SharedValues<RuleTerms>,
    /// Gateways of a VirtualService.
    gateways: SharedValues<[Arc<str>]>,
    /// Statuses of objects. Most of them are empty.
    pub(super) states: SharedValues<ObjectState>,
    /// Names that are not names of objects.
    texts: SharedValues<str>,
}

impl SharedParts {
    /// Replaces parts of a newly parsed object by shared copies, for kinds with thousands of
    /// objects.
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

/// Shared values. Unused ones are dropped once they may be as many as the used ones, so that the
/// cost per value is constant.
#[derive(Debug)]
pub(super) struct SharedValues<T: ?Sized> {
    all: HashSet<Arc<T>>,
    /// Number of values at which unused ones are dropped.
    room: usize,
}

/// Minimum number of values before unused ones are dropped.
const ROOM_MIN: usize = 64;

impl<T: ?Sized> Default for SharedValues<T> {
    fn default() -> Self {
        Self { all: HashSet::new(), room: ROOM_MIN }
    }
}

impl<T: ?Sized + Eq + Hash> SharedValues<T> {
    /// Replaces a value by the shared copy, if an equal one exists.
    pub(super) fn share(&mut self, value: &mut Arc<T>) {
        if let Some(shared) = self.all.get(value) {
            value.clone_from(shared);
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
    fn equal_values_are_shared_and_unused_ones_are_dropped() {
        let mut values = SharedValues::<str>::default();
        let mut share = |text: &str| {
            let mut value = Arc::from(text);
            values.share(&mut value);
            value
        };
        let in_use: Vec<Arc<str>> = (0..100).map(|number| share(&number.to_string())).collect();
        assert!(Arc::ptr_eq(&in_use[7], &share("7")) && !Arc::ptr_eq(&in_use[7], &share("8")));
        for number in 100..10_000 {
            share(&number.to_string());
        }
        assert!(in_use.iter().all(|one| Arc::ptr_eq(one, &share(one))));
        assert!(values.all.len() <= 2 * in_use.len() + 1, "{}", values.all.len());
    }
}
