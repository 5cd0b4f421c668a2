//! Subsets that are gone from their DestinationRules while routes still lead to them.
//!
//! Whoever takes a subset away before the route to it, or a moment after, would have requests fail in between: a proxy
//! answers 503 where the upstream cluster of a route is gone. So such a subset stays in force until no rule leads to
//! it, for [`KEPT_FOR`] at most. It stays for [`LEFT_FOR`] more: proxies and the gateways of other networks follow each in their own
//! time, and a request that is still on its way may look for another endpoint. (docs/reference/traffic.md, "Subsets".) A rule
//! that has gone whole stays for the sake of its subsets, with its policy, since that says how they are spoken to.
//! Owned by the event loop: what objects say is known without it. Pure: time is passed in.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::config::Traffic;
use super::destination_rule::{DestinationRule, DestinationRules};
use super::hosts::HostPattern;
use super::object::ObjectMeta;
use super::route::Destination;
use crate::model::Hostname;

/// How long a subset stays that routes lead to. Long enough for somebody to apply the objects of one change one after the
/// other, short enough for a mistake to show.
pub const KEPT_FOR: Duration = Duration::from_secs(30);
/// How long a subset stays after the last rule that led to it: until every proxy has other routes, and what it was sent by
/// the old ones is answered, mostly.
pub const LEFT_FOR: Duration = Duration::from_secs(2);

/// A subset, by its name and its host.
type SubsetKey = (Arc<str>, Hostname);

/// What objects say, and which subsets are in force besides.
#[derive(Debug, Clone, Default)]
pub struct KeptSubsets {
    given: Arc<Traffic>,
    kept: Vec<KeptSubset>,
    /// What rules led to until a moment ago: [`KeptSubset::until`] when that counts.
    left: BTreeMap<SubsetKey, Option<Instant>>,
}

#[derive(Debug, Clone)]
struct KeptSubset {
    /// The rule as it was when it had the subset.
    rule: Arc<DestinationRule>,
    name: Arc<str>,
    /// Whether some rule leads to it.
    is_led_to: bool,
    /// `None` until the time is first told.
    until: Option<Instant>,
}

impl KeptSubsets {
    /// The subsets that would be kept if objects said `then` after `now`: each with the rule that has it now, and the object of
    /// one that would still lead there.
    pub fn foreseen(
        now: &Arc<Traffic>,
        then: &Arc<Traffic>,
        target: impl Fn(&Hostname) -> Hostname,
    ) -> Vec<(Arc<DestinationRule>, Arc<str>, ObjectMeta)> {
        let mut subsets = Self::default();
        subsets.take(Arc::clone(now), &target);
        subsets.take(Arc::clone(then), &target);
        let leading = |one: &KeptSubset| {
            let mut all = then.virtual_services.all();
            let first = all.find(|routed| {
                let led = routed.destinations().filter(|to| to.subset == one.name);
                let led = led.map(|to| (Arc::clone(&to.subset), target(&to.host)));
                one.is_among(&led.collect())
            });
            first.map(|routed| routed.service.meta.clone())
        };
        let led = |one: KeptSubset| {
            let by = leading(&one)?;
            Some((one.rule, one.name, by))
        };
        subsets.kept.into_iter().filter_map(led).collect()
    }

    /// Takes what objects say now. The rules of subsets that are kept no longer, since some object has them again. `target` says
    /// what a host stands for.
    pub fn take(
        &mut self,
        given: Arc<Traffic>,
        target: impl Fn(&Hostname) -> Hostname,
    ) -> Vec<Arc<DestinationRule>> {
        let before = std::mem::replace(&mut self.given, given);
        let left = before.virtual_services.destinations_beyond(&self.given.virtual_services);
        self.left.extend(left.map(|to| (key_of(to, &target), None)));
        let rules = &self.given.destination_rules;
        let mut lost = Vec::new();
        for [old, new] in rules.differing(&before.destination_rules) {
            for rule in old {
                let names = rule.subsets.keys().filter(|name| !has(new, rule, name));
                lost.extend(names.map(|name| KeptSubset {
                    rule: Arc::clone(rule),
                    name: Arc::clone(name),
                    is_led_to: true,
                    until: None,
                }));
            }
        }
        if lost.is_empty() && self.kept.is_empty() {
            return Vec::new();
        }
        let led = subsets_led_to(&self.given, target);
        let left = self.left.keys().cloned().collect();
        lost.retain(|one| one.is_among(&led) || one.is_among(&left));
        self.kept.extend(lost);
        for one in &mut self.kept {
            let is_led_to = one.is_among(&led);
            if std::mem::replace(&mut one.is_led_to, is_led_to) != is_led_to {
                one.until = None;
            }
        }
        self.drop_unless(|one, rules| !has(rules.of_pattern(&one.rule.host), &one.rule, &one.name))
    }

    /// Has those go whose time is over: their rules.
    pub fn expire(&mut self, now: Instant) -> Vec<Arc<DestinationRule>> {
        self.left.retain(|_, until| *until.get_or_insert(now + LEFT_FOR) > now);
        self.drop_unless(|one, _| {
            let time = if one.is_led_to { KEPT_FOR } else { LEFT_FOR };
            *one.until.get_or_insert(now + time) > now
        })
    }

    /// When the time of the next one is over; `None` where there is none.
    pub fn due(&self) -> Option<Instant> {
        let kept = self.kept.iter().map(|one| one.until);
        kept.chain(self.left.values().copied()).flatten().min()
    }

    /// Whether rules would lead to a subset, and did not before, that no object has, if objects said this.
    pub fn would_miss(&self, given: &Traffic, target: impl Fn(&Hostname) -> Hostname) -> bool {
        let led = given.virtual_services.destinations_beyond(&self.given.virtual_services);
        let is_there = |key: SubsetKey| {
            let all = [&given.destination_rules, &self.given.destination_rules];
            let mut rules = all.into_iter().map(|rules| rules.of(key.1.as_str()));
            let is_said = rules.any(|rules| rules.has_subset(&key.0));
            let key = [key].into();
            is_said || self.kept.iter().any(|one| one.is_among(&key))
        };
        led.map(|to| key_of(to, &target)).any(|key| !is_there(key))
    }

    /// What objects say, and what is kept. `domain` is the DNS domain of services.
    pub fn in_force(&self, domain: &str) -> Arc<Traffic> {
        let mut traffic = Arc::clone(&self.given);
        for one in &self.kept {
            let rules = &mut Arc::make_mut(&mut traffic).destination_rules;
            rules.keep(&one.rule, &one.name, domain);
        }
        traffic
    }

    fn drop_unless(
        &mut self,
        mut stays: impl FnMut(&mut KeptSubset, &DestinationRules) -> bool,
    ) -> Vec<Arc<DestinationRule>> {
        let Self { given, kept, .. } = self;
        let gone = kept.extract_if(.., |one| !stays(one, &given.destination_rules));
        gone.map(|one| one.rule).collect()
    }
}

impl KeptSubset {
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

/// Whether one of these rules, which are of its host, says what `rule` said of a subset, for the same clients.
fn has(rules: &[Arc<DestinationRule>], rule: &DestinationRule, subset: &str) -> bool {
    rules.iter().any(|one| one.is_for_those_of(rule) && one.subsets.contains_key(subset))
}

/// All subsets that rules lead to.
fn subsets_led_to(
    traffic: &Traffic,
    target: impl Fn(&Hostname) -> Hostname,
) -> BTreeSet<SubsetKey> {
    let all = traffic.virtual_services.all().flat_map(|routed| routed.destinations());
    let subsets = all.filter(|to| !to.subset.is_empty());
    subsets.map(|to| key_of(to, &target)).collect()
}

fn key_of(to: &Destination, target: impl Fn(&Hostname) -> Hostname) -> SubsetKey {
    (Arc::clone(&to.subset), target(&to.host))
}

#[cfg(test)]
mod tests;
