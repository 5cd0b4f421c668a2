//! Holds back the loss of many endpoints at once, until it is confirmed.
//!
//! A list without most of what the one before had is more often a fault (a backup restored, a right lost) than a wish.
//! Pure: updates in, updates out, no clock. What a run reports waits here with all that it reports later, until most of
//! it is back or the time is over; then it goes on as one update.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use strait_model::policy::MassWithdrawal;
use strait_model::registry::{Contents, ShardChange};
use strait_model::{Health, Hostname};

/// How many ready endpoints each service of a member has, as passed on. All runs of the member share it: a new run's
/// first update is compared with what the last one reported.
#[derive(Debug, Clone, Default)]
pub(super) struct Passed(Arc<Mutex<Counts>>);

#[derive(Debug, Default)]
struct Counts {
    by_host: BTreeMap<Hostname, usize>,
    total: usize,
}

/// What a run says, before it is passed on.
#[derive(Debug)]
pub(super) struct Guard {
    passed: Passed,
    held: Option<HeldLoss>,
}

#[derive(Debug)]
struct HeldLoss {
    change: ShardChange,
    shown: LossNotice,
}

/// That a loss is held back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LossNotice {
    /// So many ready endpoints have gone.
    pub(super) lost: usize,
    /// Of so many.
    pub(super) of: usize,
    /// They go then.
    pub(super) until: Instant,
}

impl LossNotice {
    /// What there is to say of it.
    pub(super) fn seen_at(&self, now: Instant) -> String {
        let Self { lost, of, until } = self;
        let left = until.saturating_duration_since(now).as_secs_f64().ceil();
        format!(
            "{lost} of {of} ready endpoints have gone at once; they go in {left} s unless they are back"
        )
    }
}

impl Passed {
    /// What was passed on before the first run.
    pub(super) fn note(&self, contents: &Contents) {
        self.with(|counts| counts.set(contents));
    }

    fn with<T>(&self, see: impl FnOnce(&mut Counts) -> T) -> T {
        see(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Counts {
    fn set(&mut self, contents: &Contents) {
        for (host, count) in counted(contents) {
            let before = match count {
                0 => self.by_host.remove(host),
                count => self.by_host.insert(host.clone(), count),
            };
            self.total = self.total - before.unwrap_or_default() + count;
        }
    }

    /// How many ready endpoints an update takes away, those that it adds elsewhere not counted.
    fn lost(&self, change: &ShardChange) -> usize {
        let before = |host: &Hostname| self.by_host.get(host).copied().unwrap_or_default();
        match change {
            ShardChange::Removed => self.total,
            ShardChange::Update(contents) => {
                counted(contents).map(|(host, now)| before(host).saturating_sub(now)).sum()
            }
            ShardChange::Reset(contents) => {
                let kept: usize = counted(contents).map(|(host, now)| before(host).min(now)).sum();
                self.total - kept
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
    /// A guard of a new run.
    pub(super) fn new(passed: Passed) -> Self {
        Self { passed, held: None }
    }

    /// Takes an update. Returns what is to be passed on now. `rule` holds for every update; without one only a fresh
    /// list is held back, by the usual rule.
    pub(super) fn offer(
        &mut self,
        change: ShardChange,
        rule: Option<MassWithdrawal>,
        now: Instant,
    ) -> Option<ShardChange> {
        let (change, since) = match self.held.take() {
            Some(HeldLoss { change: before, shown }) => (joined(before, change), Some(shown.until)),
            None => (change, None),
        };
        let is_list = matches!(change, ShardChange::Reset(_));
        let rule = rule.or((is_list || since.is_some()).then(MassWithdrawal::default));
        let (lost, of) = self.passed.with(|counts| (counts.lost(&change), counts.total));
        let doubtful = rule.is_some_and(|rule| {
            !rule.hold.is_zero()
                && lost >= rule.at_least.max(1)
                && lost * 100 > of * usize::from(rule.percent)
        });
        let hold = rule.map_or(Duration::ZERO, |rule| rule.hold);
        let until = since.unwrap_or(now + hold);
        if doubtful && until > now {
            self.held = Some(HeldLoss { change, shown: LossNotice { lost, of, until } });
            return None;
        }
        Some(self.pass(change))
    }

    /// What was held back, where its time is over.
    pub(super) fn release(&mut self, now: Instant) -> Option<ShardChange> {
        let held = self.held.take_if(|held| held.shown.until <= now)?;
        Some(self.pass(held.change))
    }

    /// What is held back now.
    pub(super) fn holding(&self) -> Option<LossNotice> {
        self.held.as_ref().map(|held| held.shown)
    }

    fn pass(&self, change: ShardChange) -> ShardChange {
        self.passed.with(|counts| {
            if !matches!(change, ShardChange::Update(_)) {
                *counts = Counts::default();
            }
            if let ShardChange::Reset(contents) | ShardChange::Update(contents) = &change {
                counts.set(contents);
            }
        });
        change
    }
}

/// Two updates as one.
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
    if is_list { ShardChange::Reset(contents) } else { ShardChange::Update(contents) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strait_model::testing::{endpoint, host, service, shard};

    const RULE: Option<MassWithdrawal> =
        Some(MassWithdrawal { percent: 50, at_least: 4, hold: Duration::from_secs(30) });

    /// An update with so many ready endpoints for each service.
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
        assert!(first.is_some(), "what comes first takes nothing away");
        (guard, now)
    }

    #[test]
    fn a_loss_up_to_the_share_is_passed_on_and_one_above_waits() {
        let (mut guard, now) = filled();
        assert!(guard.offer(update(&[("a.ns", 1)], false), RULE, now).is_some(), "5 of 10");
        assert!(guard.offer(update(&[("b.ns", 0)], false), RULE, now).is_none(), "4 of 5");
        let Some(LossNotice { lost, of, until }) = guard.holding() else { panic!("held") };
        assert_eq!((lost, of, until - now), (4, 5, Duration::from_secs(30)));
        assert!(guard.release(now + Duration::from_secs(29)).is_none());
        let confirmed = guard.release(until).expect("the time is over");
        assert_eq!(sizes(&confirmed), [(host("b.ns").to_string(), Some(0))]);
        assert!(guard.holding().is_none());
        assert!(guard.offer(update(&[("b.ns", 4)], false), RULE, until).is_some());
    }

    #[test]
    fn what_is_back_in_time_was_never_gone() {
        let (mut guard, now) = filled();
        assert!(
            guard.offer(update(&[], true), None, now).is_some(),
            "10 are few for the usual rule"
        );
        let (mut guard, now) = filled();
        assert!(guard.offer(update(&[], true), RULE, now).is_none());
        assert!(
            guard.offer(update(&[("a.ns", 1)], false), RULE, now).is_none(),
            "still most of it"
        );
        let back = guard.offer(update(&[("a.ns", 2), ("b.ns", 4)], false), RULE, now);
        let back = back.expect("6 of 10");
        assert!(matches!(back, ShardChange::Reset(_)));
        let expected = [(host("a.ns").to_string(), Some(2)), (host("b.ns").to_string(), Some(4))];
        assert_eq!(sizes(&back), expected);
    }

    #[test]
    fn without_a_rule_only_a_list_is_doubted() {
        let (mut guard, now) = (Guard::new(Passed::default()), Instant::now());
        let counts = [("a.ns", 200)];
        assert!(guard.offer(update(&counts, true), None, now).is_some());
        assert!(
            guard.offer(update(&[("a.ns", 0)], false), None, now).is_some(),
            "a watch is believed"
        );
        assert!(guard.offer(update(&counts, false), None, now).is_some());
        assert!(guard.offer(update(&[], true), None, now).is_none(), "a list is not");
        let off = Some(MassWithdrawal { hold: Duration::ZERO, ..MassWithdrawal::default() });
        assert!(guard.offer(update(&[], true), off, now).is_some(), "unless an operator says so");
    }

    #[test]
    fn a_new_run_is_held_against_what_the_last_one_said() {
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
