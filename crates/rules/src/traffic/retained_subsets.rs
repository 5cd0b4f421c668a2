//! Retained and early subsets: subsets that are active although the objects do not contain them any
//! more, or not yet.
//!
//! If a subset is removed before the route to it, or shortly after, requests fail: a proxy responds
//! with 503 if the upstream cluster of a route does not exist. Therefore the subset stays active
//! until no rule routes to it, for at most [`KEPT_FOR`]. After the last such rule, it stays for
//! another [`LEFT_FOR`]: proxies and gateways of other networks update at different times, and
//! requests in flight may be retried (docs/reference/traffic.md, "Subsets"). A deleted rule with a
//! retained subset stays too, with its policy, because the policy applies to the subset.
//!
//! A new subset becomes active one version before the first route to it, so that proxies have it by
//! then (docs/contributing/decisions/0055-subsets-that-come-and-go.md).
//!
//! The event loop owns this state; the configuration in the objects does not depend on it. Pure:
//! the caller passes the time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::config::Traffic;
use super::destination_rule::{DestinationRule, DestinationRules};
use super::hosts::HostPattern;
use super::object::ObjectMeta;
use super::route::Destination;
use strait_model::Hostname;

/// Maximum time for which a removed subset stays active while routes use it. Long enough to apply
/// the objects of one change one after the other, short enough to notice a mistake.
pub const KEPT_FOR: Duration = Duration::from_secs(30);
/// Time for which a subset stays active after the last route to it: until every proxy has the new
/// routes, and most requests with the old ones are complete.
pub const LEFT_FOR: Duration = Duration::from_secs(2);

/// Name and host of a subset.
type SubsetKey = (Arc<str>, Hostname);

/// Subsets with new routes that proxies do not have yet.
#[derive(Debug, Default)]
pub struct MissedSubsets {
    /// Whether any of the subsets is not defined by any rule.
    pub is_unknown: bool,
    /// Whether any of the subsets waits for the next version.
    pub is_unpublished: bool,
    /// Subsets of rules that are not active yet.
    ahead: Vec<RuleSubset>,
}

/// The configuration in the objects, with retained and early subsets.
#[derive(Debug, Clone, Default)]
pub struct RetainedSubsets {
    given: Arc<Traffic>,
    retained: Vec<RetainedSubset>,
    /// Early subsets, whose rules are not active yet.
    ahead: Vec<RuleSubset>,
    /// Subsets that no published version contains yet.
    unpublished: Vec<RuleSubset>,
    /// Subsets whose last route was removed recently, with the same deadline as
    /// [`RetainedSubset::until`].
    unrouted: BTreeMap<SubsetKey, Option<Instant>>,
}

/// A subset and a rule that contains it.
#[derive(Debug, Clone)]
struct RuleSubset {
    rule: Arc<DestinationRule>,
    name: Arc<str>,
}

#[derive(Debug, Clone)]
struct RetainedSubset {
    /// The subset, with the last version of the rule that contained it.
    subset: RuleSubset,
    /// Whether a rule routes to it.
    is_routed_to: bool,
    /// Time at which it expires; `None` until the next call of `expire`.
    until: Option<Instant>,
}

impl RetainedSubsets {
    /// Returns the subsets that would be retained if the configuration changed from `now` to
    /// `then`. Each result contains the rule that has the subset now, and an object that would
    /// still route to it.
    pub fn predict(
        now: &Arc<Traffic>,
        then: &Arc<Traffic>,
        target: impl Fn(&Hostname) -> Hostname,
    ) -> Vec<(Arc<DestinationRule>, Arc<str>, ObjectMeta)> {
        let mut subsets = Self::default();
        subsets.take(Arc::clone(now), &target);
        subsets.take(Arc::clone(then), &target);
        let leading = |subset: &RuleSubset| {
            let mut all = then.virtual_services.all();
            let first = all.find(|routed| {
                let destinations = routed.destinations().filter(|to| to.subset == subset.name);
                subset.is_among(&destinations.map(|to| subset_key(to, &target)).collect())
            });
            first.map(|routed| routed.service.meta.clone())
        };
        let routed = |RetainedSubset { subset, .. }: RetainedSubset| {
            let by = leading(&subset)?;
            Some((subset.rule, subset.name, by))
        };
        subsets.retained.into_iter().filter_map(routed).collect()
    }

    /// Replaces the configuration. Returns the rules of subsets that are not retained any more,
    /// because an object contains them again. `target` maps a host to the service that serves it.
    pub fn take(
        &mut self,
        given: Arc<Traffic>,
        target: impl Fn(&Hostname) -> Hostname,
    ) -> Vec<Arc<DestinationRule>> {
        let before = std::mem::replace(&mut self.given, given);
        let removed = before.virtual_services.destinations_beyond(&self.given.virtual_services);
        self.unrouted.extend(removed.map(|to| (subset_key(to, &target), None)));
        self.ahead.clear();
        let mut lost = Vec::new();
        for [old, new] in self.given.destination_rules.differing(&before.destination_rules) {
            lost.extend(old.iter().flat_map(|rule| RuleSubset::beyond(rule, new)));
            self.unpublished.extend(new.iter().flat_map(|rule| RuleSubset::beyond(rule, old)));
        }
        if lost.is_empty() && self.retained.is_empty() {
            return Vec::new();
        }
        let routed = routed_subsets(&self.given, target);
        let unrouted = self.unrouted.keys().cloned().collect();
        lost.retain(|one| one.is_among(&routed) || one.is_among(&unrouted));
        let retained = |subset| RetainedSubset { subset, is_routed_to: true, until: None };
        self.retained.extend(lost.into_iter().map(retained));
        for entry in &mut self.retained {
            let is_routed_to = entry.subset.is_among(&routed);
            if std::mem::replace(&mut entry.is_routed_to, is_routed_to) != is_routed_to {
                entry.until = None;
            }
        }
        self.drop_unless(|one, rules| !one.subset.is_in(rules.for_pattern(&one.subset.rule.host)))
    }

    /// Drops expired subsets and returns their rules.
    pub fn expire(&mut self, now: Instant) -> Vec<Arc<DestinationRule>> {
        self.unrouted.retain(|_, until| *until.get_or_insert(now + LEFT_FOR) > now);
        self.drop_unless(|entry, _| {
            let time = if entry.is_routed_to { KEPT_FOR } else { LEFT_FOR };
            *entry.until.get_or_insert(now + time) > now
        })
    }

    /// Returns the time at which the next subset expires; `None` without any subset.
    pub fn due(&self) -> Option<Instant> {
        let deadlines = self.retained.iter().map(|one| one.until);
        deadlines.chain(self.unrouted.values().copied()).flatten().min()
    }

    /// Returns the subsets with new routes in `given` that proxies do not have yet.
    pub fn missed(&self, given: &Traffic, target: impl Fn(&Hostname) -> Hostname) -> MissedSubsets {
        let mut missed = MissedSubsets::default();
        let added = given.virtual_services.destinations_beyond(&self.given.virtual_services);
        for key in added.map(|to| subset_key(to, &target)) {
            let [to_come, active] =
                [given, &self.given].map(|one| one.destination_rules.of(key.1.as_str()));
            let subsets = [key.clone()].into();
            let is_among = |one: &RuleSubset| one.is_among(&subsets);
            if self.unpublished.iter().any(is_among) {
                missed.is_unpublished = true;
            } else if active.with_subset(&key.0).next().is_none()
                && !self.retained.iter().map(|one| &one.subset).chain(&self.ahead).any(is_among)
            {
                let rules = to_come.with_subset(&key.0);
                let before = missed.ahead.len();
                missed.ahead.extend(
                    rules.map(|rule| RuleSubset {
                        rule: Arc::clone(rule),
                        name: Arc::clone(&key.0),
                    }),
                );
                missed.is_unknown |= missed.ahead.len() == before;
            }
        }
        missed
    }

    /// Activates subsets before the rules that define them and before the routes to them. Returns
    /// their hosts. Rules with a selector are left out, because their selectors become known only
    /// with the rules.
    pub fn put_ahead(&mut self, missed: MissedSubsets) -> BTreeSet<HostPattern> {
        let ahead = missed.ahead.into_iter().filter(|one| one.rule.selector.is_none());
        let ahead: Vec<_> = ahead.collect();
        let hosts = ahead.iter().map(|one| one.rule.host.clone()).collect();
        self.unpublished.extend(ahead.iter().cloned());
        self.ahead.extend(ahead);
        hosts
    }

    /// Records that a version was published.
    pub fn published(&mut self) {
        self.unpublished.clear();
    }

    /// Returns the active configuration, including retained and early subsets. `domain` is the DNS
    /// domain of services.
    pub fn active(&self, domain: &str) -> Arc<Traffic> {
        let mut traffic = Arc::clone(&self.given);
        for subset in self.retained.iter().map(|subset| &subset.subset).chain(&self.ahead) {
            let rules = &mut Arc::make_mut(&mut traffic).destination_rules;
            rules.keep(&subset.rule, &subset.name, domain);
        }
        traffic
    }

    fn drop_unless(
        &mut self,
        mut stays: impl FnMut(&mut RetainedSubset, &DestinationRules) -> bool,
    ) -> Vec<Arc<DestinationRule>> {
        let Self { given, retained, .. } = self;
        let gone = retained.extract_if(.., |one| !stays(one, &given.destination_rules));
        gone.map(|one| one.subset.rule).collect()
    }
}

impl RuleSubset {
    /// Iterates over the subsets of a rule that none of the other rules has for the same clients.
    /// All must have the same host.
    fn beyond<'a>(
        rule: &'a Arc<DestinationRule>,
        others: &'a [Arc<DestinationRule>],
    ) -> impl Iterator<Item = Self> + use<'a> {
        let subset = |name: &Arc<str>| Self { rule: Arc::clone(rule), name: Arc::clone(name) };
        rule.subsets.keys().map(subset).filter(|one| !one.is_in(others))
    }

    /// Returns whether any of these rules has the subset for the same clients. All must have the
    /// same host.
    fn is_in(&self, rules: &[Arc<DestinationRule>]) -> bool {
        let has = |one: &Arc<DestinationRule>| one.subsets.contains_key(&self.name);
        rules.iter().any(|one| one.has_same_clients(&self.rule) && has(one))
    }

    fn is_among(&self, subsets: &BTreeSet<SubsetKey>) -> bool {
        let name = || Arc::clone(&self.name);
        match &self.rule.host {
            HostPattern::Exact(host) => subsets.contains(&(name(), host.clone())),
            wildcard @ HostPattern::Under(_) => {
                let all = subsets.range((name(), Hostname::default())..);
                let mut hosts = all.take_while(|(one, _)| *one == self.name);
                hosts.any(|(_, host)| wildcard.matches(host.as_str()))
            }
        }
    }
}

/// Returns all subsets that rules route to.
fn routed_subsets(
    traffic: &Traffic,
    target: impl Fn(&Hostname) -> Hostname,
) -> BTreeSet<SubsetKey> {
    let all = traffic.virtual_services.all().flat_map(|routed| routed.destinations());
    let subsets = all.filter(|to| !to.subset.is_empty());
    subsets.map(|to| subset_key(to, &target)).collect()
}

fn subset_key(to: &Destination, target: impl Fn(&Hostname) -> Hostname) -> SubsetKey {
    (Arc::clone(&to.subset), target(&to.host))
}

#[cfg(test)]
mod tests;
