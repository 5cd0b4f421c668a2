//! Subsets that are gone from their DestinationRules while routes still lead to them.
//!
//! Whoever takes a subset away before the route to it, or a moment after, would have requests fail in between: a proxy
//! answers 503 where the upstream cluster of a route is gone. So such a subset stays in force until no rule leads to
//! it, for [`KEPT_FOR`] at most. (docs/reference/traffic.md, "Subsets".) A rule that has gone whole stays for the sake of its
//! subsets, with its policy, since that says how they are spoken to.
//! Owned by the event loop: what objects say is known without it. Pure: time is passed in.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::config::Traffic;
use super::destination_rule::{DestinationRule, DestinationRules};
use super::hosts::HostPattern;
use super::object::ObjectMeta;
use crate::model::Hostname;

/// How long a subset stays that routes lead to. Long enough for somebody to apply the objects of one change one after the
/// other, short enough for a mistake to show.
pub const KEPT_FOR: Duration = Duration::from_secs(30);

/// What objects say, and which subsets are in force besides.
#[derive(Debug, Clone, Default)]
pub struct KeptSubsets {
    given: Arc<Traffic>,
    kept: Vec<KeptSubset>,
}

#[derive(Debug, Clone)]
struct KeptSubset {
    /// The rule as it was when it had the subset.
    rule: Arc<DestinationRule>,
    name: Arc<str>,
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

    /// Takes what objects say now. The rules of subsets that are kept no longer, since some object has them again, or
    /// none leads to them any more. `target` says what a host stands for.
    pub fn take(
        &mut self,
        given: Arc<Traffic>,
        target: impl Fn(&Hostname) -> Hostname,
    ) -> Vec<Arc<DestinationRule>> {
        let before = std::mem::replace(&mut self.given, given);
        let rules = &self.given.destination_rules;
        for [old, new] in rules.differing(&before.destination_rules) {
            for rule in old {
                let lost = rule.subsets.keys().filter(|name| !has(new, rule, name));
                let kept = |name: &Arc<str>| KeptSubset {
                    rule: Arc::clone(rule),
                    name: Arc::clone(name),
                    until: None,
                };
                self.kept.extend(lost.map(kept));
            }
        }
        if self.kept.is_empty() {
            return Vec::new();
        }
        let led = subsets_led_to(&self.given, target);
        self.drop_unless(|one, rules| {
            one.is_among(&led) && !has(rules.of_pattern(&one.rule.host), &one.rule, &one.name)
        })
    }

    /// Has those go whose time is over: their rules.
    pub fn expire(&mut self, now: Instant) -> Vec<Arc<DestinationRule>> {
        self.drop_unless(|one, _| *one.until.get_or_insert(now + KEPT_FOR) > now)
    }

    /// When the time of the next one is over; `None` where none is kept.
    pub fn due(&self) -> Option<Instant> {
        self.kept.iter().filter_map(|one| one.until).min()
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
        let Self { given, kept } = self;
        let gone = kept.extract_if(.., |one| !stays(one, &given.destination_rules));
        gone.map(|one| one.rule).collect()
    }
}

impl KeptSubset {
    fn is_among(&self, subsets: &BTreeSet<(Arc<str>, Hostname)>) -> bool {
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

/// All subsets that rules lead to, by name and host.
fn subsets_led_to(
    traffic: &Traffic,
    target: impl Fn(&Hostname) -> Hostname,
) -> BTreeSet<(Arc<str>, Hostname)> {
    let all = traffic.virtual_services.all().flat_map(|routed| routed.destinations());
    let subsets = all.filter(|to| !to.subset.is_empty());
    subsets.map(|to| (Arc::clone(&to.subset), target(&to.host))).collect()
}

#[cfg(test)]
mod tests;
