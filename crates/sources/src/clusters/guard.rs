//! Delays the sudden loss of many endpoints until it is confirmed.
//!
//! A list that lacks most entries of the previous one is more often a fault (a restored backup, a
//! lost permission) than intended. Pure: updates in, updates out, no clock. The guard holds an
//! update together with all later ones until most endpoints are back or the hold time has passed;
//! then it releases them as one update.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use strait_model::policy::MassWithdrawal;
use strait_model::registry::{Contents, ShardChange};
use strait_model::{Health, Hostname};

/// The number of ready endpoints of each service of a member, as last passed on. All runs of the
/// member share it: the first update of a new run is compared with the last update of the previous
/// run.
#[derive(Debug, Clone, Default)]
pub(super) struct Passed(Arc<Mutex<Counts>>);

#[derive(Debug, Default)]
struct Counts {
    endpoints_by_host: BTreeMap<Hostname, usize>,
    total: usize,
    /// Whether contents are stored: the next run may be unable to read a part of them.
    stores: bool,
    contents: Option<Contents>,
}

/// Checks the updates of one run before they are passed on.
#[derive(Debug)]
pub(super) struct Guard {
    passed: Passed,
    delayed: Option<DelayedLoss>,
}

#[derive(Debug)]
struct DelayedLoss {
    change: ShardChange,
    shown: LossNotice,
}

/// Description of a delayed loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LossNotice {
    /// Number of ready endpoints that disappeared.
    pub(super) lost: usize,
    /// Number of ready endpoints before.
    pub(super) total: usize,
    /// When the loss takes effect.
    pub(super) until: Instant,
}

impl LossNotice {
    /// Returns a description of the loss for the status.
    pub(super) fn describe_at(&self, now: Instant) -> String {
        let Self { lost, total, until } = self;
        let remaining = until.saturating_duration_since(now).as_secs_f64().ceil();
        format!(
            "{lost} of {total} ready endpoints disappeared at once; they are withdrawn in {remaining} s unless they return"
        )
    }
}

impl Passed {
    /// Records the contents that were passed on before the first run.
    pub(super) fn note(&self, contents: &Contents) {
        self.with(|counts| {
            counts.set(contents);
            counts.contents = counts.stores.then(|| contents.clone());
        });
    }

    /// Sets whether the contents are stored from now on.
    pub(super) fn store_contents(&self, stores: bool) {
        self.with(|counts| counts.stores = stores);
    }

    /// Returns the contents that were passed on, if they are stored.
    pub(super) fn contents(&self) -> Option<Contents> {
        self.with(|counts| counts.contents.clone().filter(|_| counts.stores))
    }

    fn with<T>(&self, see: impl FnOnce(&mut Counts) -> T) -> T {
        see(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Counts {
    fn set(&mut self, contents: &Contents) {
        for (host, count) in counted(contents) {
            let before = match count {
                0 => self.endpoints_by_host.remove(host),
                count => self.endpoints_by_host.insert(host.clone(), count),
            };
            self.total = self.total - before.unwrap_or_default() + count;
        }
    }

    /// Returns by how many ready endpoints an update reduces services. Endpoints that it adds to
    /// other services don't count.
    fn lost(&self, change: &ShardChange) -> usize {
        let count_before =
            |host: &Hostname| self.endpoints_by_host.get(host).copied().unwrap_or_default();
        match change {
            ShardChange::Removed => self.total,
            ShardChange::Update(contents) => {
                counted(contents).map(|(host, now)| count_before(host).saturating_sub(now)).sum()
            }
            ShardChange::Reset(contents) => {
                let remaining: usize =
                    counted(contents).map(|(host, now)| count_before(host).min(now)).sum();
                self.total - remaining
            }
        }
    }
}

fn counted(contents: &Contents) -> impl Iterator<Item = (&Hostname, usize)> {
    contents.services.iter().map(|(host, record)| {
        let endpoints = record.iter().flat_map(|record| record.endpoints.packed());
        (host, endpoints.filter(|endpoint| endpoint.health() == Health::Healthy).count())
    })
}

impl Guard {
    /// Creates a guard for a new run.
    pub(super) fn new(passed: Passed) -> Self {
        Self { passed, delayed: None }
    }

    /// Processes an update, and returns the update to pass on now. `rule` applies to every update.
    /// Without a rule, only a fresh list is checked, with the default rule.
    pub(super) fn offer(
        &mut self,
        change: ShardChange,
        rule: Option<MassWithdrawal>,
        now: Instant,
    ) -> Option<ShardChange> {
        let (change, since) = match self.delayed.take() {
            Some(DelayedLoss { change: before, shown }) => {
                (joined(before, change), Some(shown.until))
            }
            None => (change, None),
        };
        let is_list = matches!(change, ShardChange::Reset(_));
        let rule = rule.or((is_list || since.is_some()).then(MassWithdrawal::default));
        let (lost, total) = self.passed.with(|counts| (counts.lost(&change), counts.total));
        let doubtful = rule.is_some_and(|rule| {
            !rule.hold.is_zero()
                && lost >= rule.at_least.max(1)
                && lost * 100 > total * usize::from(rule.percent)
        });
        let hold = rule.map_or(Duration::ZERO, |rule| rule.hold);
        let until = since.unwrap_or(now + hold);
        if doubtful && until > now {
            self.delayed = Some(DelayedLoss { change, shown: LossNotice { lost, total, until } });
            return None;
        }
        Some(self.pass(change))
    }

    /// Returns the delayed update if its hold time has passed.
    pub(super) fn release(&mut self, now: Instant) -> Option<ShardChange> {
        let delayed = self.delayed.take_if(|delayed| delayed.shown.until <= now)?;
        Some(self.pass(delayed.change))
    }

    /// Returns the current delay.
    pub(super) fn holding(&self) -> Option<LossNotice> {
        self.delayed.as_ref().map(|delayed| delayed.shown)
    }

    fn pass(&self, change: ShardChange) -> ShardChange {
        self.passed.with(|counts| {
            if !matches!(change, ShardChange::Update(_)) {
                *counts = Counts { stores: counts.stores, ..Counts::default() };
            }
            match &change {
                ShardChange::Reset(contents) if counts.stores => {
                    counts.contents = Some(contents.clone());
                }
                ShardChange::Update(contents) => {
                    counts.contents.iter_mut().for_each(|stored| apply_update(stored, contents));
                }
                ShardChange::Reset(_) | ShardChange::Removed => {}
            }
            if let ShardChange::Reset(contents) | ShardChange::Update(contents) = &change {
                counts.set(contents);
            }
        });
        change
    }
}

/// Applies an update to complete contents.
fn apply_update(stored: &mut Contents, news: &Contents) {
    for (host, record) in &news.services {
        match record {
            Some(_) => drop(stored.services.insert(host.clone(), record.clone())),
            None => drop(stored.services.remove(host)),
        }
    }
    if news.workloads.is_some() {
        stored.workloads.clone_from(&news.workloads);
    }
    if news.facts.is_some() {
        stored.facts.clone_from(&news.facts);
    }
}

/// Combines two consecutive updates into one.
fn joined(before: ShardChange, after: ShardChange) -> ShardChange {
    let (mut contents, is_list, news) = match (before, after) {
        (ShardChange::Reset(before), ShardChange::Update(after)) => (before, true, after),
        (ShardChange::Update(before), ShardChange::Update(after)) => (before, false, after),
        (_, after) => return after,
    };
    for (host, record) in news.services {
        if record.is_none() && is_list {
            contents.services.remove(&host);
        } else {
            contents.services.insert(host, record);
        }
    }
    contents.workloads = news.workloads.or(contents.workloads);
    contents.network_label = news.network_label.or(contents.network_label);
    contents.facts = news.facts.or(contents.facts);
    contents.causes.merge(news.causes);
    if is_list { ShardChange::Reset(contents) } else { ShardChange::Update(contents) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strait_model::testing::{endpoint, host, service, shard};
    use strait_model::{Cause, Causes, ClusterFacts, WorkloadKey};

    const RULE: Option<MassWithdrawal> =
        Some(MassWithdrawal { percent: 50, at_least: 4, hold: Duration::from_secs(30) });

    /// Creates an update with this number of ready endpoints for each service.
    fn update(counts: &[(&str, u8)], list: bool) -> ShardChange {
        let mut update = shard("east", 1);
        for (name, count) in counts {
            let endpoints = (0..*count).map(|last| endpoint(&format!("10.0.0.{last}")));
            update = update.with(service(name), endpoints.collect());
        }
        let update = if list { update } else { update.update() };
        update.built().change
    }

    fn sizes(change: &ShardChange) -> Vec<(String, Option<usize>)> {
        let (ShardChange::Reset(contents) | ShardChange::Update(contents)) = change else {
            panic!("an end")
        };
        let size = |record: &Option<strait_model::registry::ServiceRecord>| {
            record.as_ref().map(|record| record.endpoints.len())
        };
        contents.services.iter().map(|(host, one)| (host.to_string(), size(one))).collect()
    }

    fn filled() -> (Guard, Instant) {
        let (mut guard, now) = (Guard::new(Passed::default()), Instant::now());
        let first = guard.offer(update(&[("a.ns", 6), ("b.ns", 4)], true), RULE, now);
        assert!(first.is_some(), "the first update is never a loss");
        (guard, now)
    }

    #[test]
    fn loss_up_to_the_percentage_is_passed_on_and_larger_loss_waits() {
        let (mut guard, now) = filled();
        assert!(guard.offer(update(&[("a.ns", 1)], false), RULE, now).is_some(), "5 of 10");
        assert!(guard.offer(update(&[("b.ns", 0)], false), RULE, now).is_none(), "4 of 5");
        let Some(LossNotice { lost, total, until }) = guard.holding() else { panic!("held") };
        assert_eq!((lost, total, until - now), (4, 5, Duration::from_secs(30)));
        assert!(guard.release(now + Duration::from_secs(29)).is_none());
        let confirmed = guard.release(until).expect("the time is over");
        assert_eq!(sizes(&confirmed), [(host("b.ns").to_string(), Some(0))]);
        assert!(guard.holding().is_none());
        assert!(guard.offer(update(&[("b.ns", 4)], false), RULE, until).is_some());
    }

    #[test]
    fn endpoints_that_return_in_time_are_never_withdrawn() {
        let (mut guard, now) = filled();
        assert!(
            guard.offer(update(&[], true), None, now).is_some(),
            "10 endpoints are below the minimum of the default rule"
        );
        let (mut guard, now) = filled();
        assert!(guard.offer(update(&[], true), RULE, now).is_none());
        assert!(
            guard.offer(update(&[("a.ns", 1)], false), RULE, now).is_none(),
            "still a loss of most endpoints"
        );
        let back = guard.offer(update(&[("a.ns", 2), ("b.ns", 4)], false), RULE, now);
        let back = back.expect("6 of 10");
        assert!(matches!(back, ShardChange::Reset(_)));
        let expected = [(host("a.ns").to_string(), Some(2)), (host("b.ns").to_string(), Some(4))];
        assert_eq!(sizes(&back), expected);
    }

    #[test]
    fn later_facts_are_passed_on_together_with_a_delayed_loss() {
        let facts = |names: &[&str]| {
            let key = |name: &&str| WorkloadKey::new("edge", *name);
            let unserved = Arc::new(names.iter().map(key).collect());
            ClusterFacts { unserved, ..ClusterFacts::default() }
        };
        let causes = |names: &[&str]| {
            let mut causes = Causes::default();
            for name in names {
                let (cluster, kind) = ("east".into(), "Service".into());
                let (namespace, name) = ("edge".into(), (*name).into());
                causes.add(Cause { cluster, kind, namespace, name });
            }
            causes
        };
        let with_facts = |mut change: ShardChange, new: ClusterFacts, name: &str| {
            if let ShardChange::Reset(contents) | ShardChange::Update(contents) = &mut change {
                (contents.facts, contents.causes) = (Some(new), causes(&[name]));
            }
            change
        };
        for is_list in [true, false] {
            let (mut guard, now) = filled();
            let empty = [("a.ns", 0), ("b.ns", 0)];
            let loss = with_facts(update(&empty, is_list), facts(&["one"]), "one");
            assert!(guard.offer(loss, RULE, now).is_none(), "delayed");
            let later = with_facts(update(&[], false), facts(&["one", "two"]), "two");
            assert!(guard.offer(later, RULE, now).is_none(), "still delayed");
            assert!(guard.offer(update(&[], false), RULE, now).is_none(), "without facts");
            let until = guard.holding().expect("delayed").until;
            let released = guard.release(until).expect("the time is over");
            let (ShardChange::Reset(contents) | ShardChange::Update(contents)) = released else {
                panic!("an end")
            };
            assert_eq!(contents.facts, Some(facts(&["one", "two"])));
            assert_eq!(contents.causes, causes(&["one", "two"]));
        }
    }

    #[test]
    fn without_a_rule_only_lists_are_delayed() {
        let (mut guard, now) = (Guard::new(Passed::default()), Instant::now());
        let counts = [("a.ns", 200)];
        assert!(guard.offer(update(&counts, true), None, now).is_some());
        assert!(
            guard.offer(update(&[("a.ns", 0)], false), None, now).is_some(),
            "changes from a watch apply at once"
        );
        assert!(guard.offer(update(&counts, false), None, now).is_some());
        assert!(guard.offer(update(&[], true), None, now).is_none(), "a list is delayed");
        let off = Some(MassWithdrawal { hold: Duration::ZERO, ..MassWithdrawal::default() });
        assert!(
            guard.offer(update(&[], true), off, now).is_some(),
            "unless the operator disables the delay"
        );
    }

    #[test]
    fn contents_are_stored_for_the_next_run_if_required() {
        let passed = Passed::default();
        let now = Instant::now();
        let stored = |passed: &Passed| {
            let contents = passed.contents()?;
            Some(sizes(&ShardChange::Reset(contents)))
        };
        let mut guard = Guard::new(passed.clone());
        assert!(guard.offer(update(&[("a.ns", 1)], true), None, now).is_some());
        assert_eq!(stored(&passed), None);
        passed.store_contents(true);
        assert!(guard.offer(update(&[("a.ns", 2)], false), None, now).is_some());
        assert_eq!(stored(&passed), None, "an update alone is incomplete");
        assert!(guard.offer(update(&[("a.ns", 2)], true), None, now).is_some());
        assert!(guard.offer(update(&[("b.ns", 3)], false), None, now).is_some());
        let expected = [(host("a.ns").to_string(), Some(2)), (host("b.ns").to_string(), Some(3))];
        assert_eq!(stored(&passed), Some(expected.to_vec()));
    }

    #[test]
    fn new_run_is_compared_with_the_last_update_of_the_previous_run() {
        let passed = Passed::default();
        let now = Instant::now();
        let mut first = Guard::new(passed.clone());
        assert!(first.offer(update(&[("a.ns", 30)], true), None, now).is_some());
        let mut second = Guard::new(passed.clone());
        assert!(second.offer(update(&[("a.ns", 1)], true), None, now).is_none());
        let mut third = Guard::new(passed);
        assert!(third.offer(update(&[("a.ns", 29)], true), None, now).is_some());
    }
}
