//! Subsets that are in force otherwise than objects say: gone while routes still lead to them, or to come ahead of these.
//!
//! Whoever takes a subset away before the route to it, or a moment after, would have requests fail in between: a proxy
//! answers 503 where the upstream cluster of a route is gone. So such a subset stays in force until no rule leads to
//! it, for [`KEPT_FOR`] at most. It stays for [`LEFT_FOR`] more: proxies and the gateways of other networks follow each in their own
//! time, and a request that is still on its way may look for another endpoint. (docs/reference/traffic.md, "Subsets".) A rule
//! that has gone whole stays for the sake of its subsets, with its policy, since that says how they are spoken to.
//! A subset that is new is in force one version ahead of what leads to it, so that proxies have it by then
//! (docs/decisions/0055-subsets-that-come-and-go.md).
//! Owned by the event loop: what objects say is known without it. Pure: time is passed in.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::config::Traffic;
use super::destination_rule::{DestinationRule, DestinationRules};
use super::hosts::HostPattern;
use super::object::ObjectMeta;
use super::route::Destination;
use strait_model::Hostname;

/// How long a subset stays that routes lead to. Long enough for somebody to apply the objects of one change one after the
/// other, short enough for a mistake to show.
pub const KEPT_FOR: Duration = Duration::from_secs(30);
/// How long a subset stays after the last rule that led to it: until every proxy has other routes, and what it was sent by
/// the old ones is answered, mostly.
pub const LEFT_FOR: Duration = Duration::from_secs(2);

/// A subset, by its name and its host.
type SubsetKey = (Arc<str>, Hostname);

/// What rules lead to anew while proxies don't have it.
#[derive(Debug, Default)]
pub struct MissedSubsets {
    /// Whether some of it is of no rule.
    pub is_unknown: bool,
    /// Whether the rest waits for the next version.
    pub is_unpublished: bool,
    /// What is of rules that aren't in force.
    ahead: Vec<RuleSubset>,
}

/// What objects say, and which subsets are in force besides.
#[derive(Debug, Clone, Default)]
pub struct KeptSubsets {
    given: Arc<Traffic>,
    kept: Vec<KeptSubset>,
    /// Those of rules to come that are in force ahead of these.
    ahead: Vec<RuleSubset>,
    /// Those that no version has been published with yet.
    unpublished: Vec<RuleSubset>,
    /// What rules led to until a moment ago: [`KeptSubset::until`] when that counts.
    left: BTreeMap<SubsetKey, Option<Instant>>,
}

/// A subset, and a rule that has it.
#[derive(Debug, Clone)]
struct RuleSubset {
    rule: Arc<DestinationRule>,
    name: Arc<str>,
}

#[derive(Debug, Clone)]
struct KeptSubset {
    /// With the rule as it was when it had it.
    subset: RuleSubset,
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
        let leading = |one: &RuleSubset| {
            let mut all = then.virtual_services.all();
            let first = all.find(|routed| {
                let led = routed.destinations().filter(|to| to.subset == one.name);
                one.is_among(&led.map(|to| key_of(to, &target)).collect())
            });
            first.map(|routed| routed.service.meta.clone())
        };
        let led = |KeptSubset { subset, .. }: KeptSubset| {
            let by = leading(&subset)?;
            Some((subset.rule, subset.name, by))
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
        self.ahead.clear();
        let mut lost = Vec::new();
        for [old, new] in self.given.destination_rules.differing(&before.destination_rules) {
            lost.extend(old.iter().flat_map(|rule| RuleSubset::beyond(rule, new)));
            self.unpublished.extend(new.iter().flat_map(|rule| RuleSubset::beyond(rule, old)));
        }
        if lost.is_empty() && self.kept.is_empty() {
            return Vec::new();
        }
        let led = subsets_led_to(&self.given, target);
        let left = self.left.keys().cloned().collect();
        lost.retain(|one| one.is_among(&led) || one.is_among(&left));
        let kept = |subset| KeptSubset { subset, is_led_to: true, until: None };
        self.kept.extend(lost.into_iter().map(kept));
        for one in &mut self.kept {
            let is_led_to = one.subset.is_among(&led);
            if std::mem::replace(&mut one.is_led_to, is_led_to) != is_led_to {
                one.until = None;
            }
        }
        self.drop_unless(|one, rules| !one.subset.is_of(rules.of_pattern(&one.subset.rule.host)))
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

    /// What rules would lead to, and did not before, that proxies don't have, if objects said this.
    pub fn missed(&self, given: &Traffic, target: impl Fn(&Hostname) -> Hostname) -> MissedSubsets {
        let mut missed = MissedSubsets::default();
        let led = given.virtual_services.destinations_beyond(&self.given.virtual_services);
        for key in led.map(|to| key_of(to, &target)) {
            let [to_come, in_force] =
                [given, &self.given].map(|one| one.destination_rules.of(key.1.as_str()));
            let subsets = [key.clone()].into();
            let is_among = |one: &RuleSubset| one.is_among(&subsets);
            if self.unpublished.iter().any(is_among) {
                missed.is_unpublished = true;
            } else if in_force.with_subset(&key.0).next().is_none()
                && !self.kept.iter().map(|one| &one.subset).chain(&self.ahead).any(is_among)
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

    /// Has subsets be in force ahead of the rules that have them, and of what leads there. The hosts of these; selectors of rules
    /// are not known before these are.
    pub fn put_ahead(&mut self, missed: MissedSubsets) -> BTreeSet<HostPattern> {
        let ahead = missed.ahead.into_iter().filter(|one| one.rule.selector.is_none());
        let ahead: Vec<_> = ahead.collect();
        let hosts = ahead.iter().map(|one| one.rule.host.clone()).collect();
        self.unpublished.extend(ahead.iter().cloned());
        self.ahead.extend(ahead);
        hosts
    }

    /// A version was published.
    pub fn published(&mut self) {
        self.unpublished.clear();
    }

    /// What objects say, and what is kept. `domain` is the DNS domain of services.
    pub fn in_force(&self, domain: &str) -> Arc<Traffic> {
        let mut traffic = Arc::clone(&self.given);
        for one in self.kept.iter().map(|one| &one.subset).chain(&self.ahead) {
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
        gone.map(|one| one.subset.rule).collect()
    }
}

impl RuleSubset {
    /// The subsets of a rule that none of these has, which are of its host, for the same clients.
    fn beyond<'a>(
        rule: &'a Arc<DestinationRule>,
        others: &'a [Arc<DestinationRule>],
    ) -> impl Iterator<Item = Self> + use<'a> {
        let of = |name: &Arc<str>| Self { rule: Arc::clone(rule), name: Arc::clone(name) };
        rule.subsets.keys().map(of).filter(|one| !one.is_of(others))
    }

    /// Whether one of these rules, which are of its host, has it for the same clients.
    fn is_of(&self, rules: &[Arc<DestinationRule>]) -> bool {
        let has = |one: &Arc<DestinationRule>| one.subsets.contains_key(&self.name);
        rules.iter().any(|one| one.is_for_those_of(&self.rule) && has(one))
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
