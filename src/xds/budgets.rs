//! What each identity may cost, whatever it calls itself on how many streams.
//!
//! A certificate proves an account, and nothing but the registries proves a pod: whoever holds one can invent
//! pods, and names to watch. So what is not vouched for is charged to the identity of the certificate: streams
//! whose pod nobody knows, with what they watch, and names that stand for no service, which count double.
//! What a known pod watches of known services is shown, but not charged. The lock is held for look-ups only.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use crate::hash::Secret;
use crate::identity::SpiffeId;
use crate::memory::Memory;

/// What a stream takes of its own: its task, buffers and tables.
const STREAM_BYTES: u64 = 64 << 10;
/// What a name takes that stands for a service: its text is there anyway.
const NAME_BYTES: u64 = 64;
/// What a usual stream takes.
const PIECE_BYTES: u64 = 128 << 10;
/// What a made-up name takes beside its text: it is nobody else's, and nor is its empty answer.
const MADE_UP_BYTES: u64 = 256;

/// What one stream watches, and who stands behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Charge {
    /// Whether its pod, or machine, is known.
    pub(super) verified: bool,
    /// Names that stand for a service.
    pub(super) names: u64,
    /// Names that stand for none.
    pub(super) made_up: u64,
    /// The bytes of those.
    pub(super) made_up_text: u64,
}

impl Charge {
    /// What it counts against the budget, in bytes.
    fn charged(self) -> u64 {
        let of_stream = if self.verified { 0 } else { STREAM_BYTES + self.names * NAME_BYTES };
        of_stream + 2 * (self.made_up * MADE_UP_BYTES + self.made_up_text)
    }

    /// What it takes, more or less.
    fn taken(self) -> u64 {
        STREAM_BYTES + self.names * NAME_BYTES + self.made_up * MADE_UP_BYTES + self.made_up_text
    }
}

/// What the streams of one identity come to.
#[derive(Debug, Clone, Default)]
pub struct Usage {
    /// Its streams.
    pub streams: u64,
    /// Of these, those whose pod nobody knows.
    pub unverified: u64,
    /// The names that they watch, of all types.
    pub names: u64,
    /// Of these, names that stand for no service.
    pub made_up: u64,
    /// What counts against its budget, in bytes.
    pub charged: u64,
    /// What it takes, more or less, in bytes.
    pub taken: u64,
    ended: CancellationToken,
}

/// More than the identity may cost.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{identity} takes {charged} of {limit} bytes for {unverified} streams of pods that nobody knows and \
     {made_up} names that stand for no service"
)]
pub(super) struct OverBudget {
    identity: SpiffeId,
    charged: u64,
    limit: u64,
    unverified: u64,
    made_up: u64,
}

/// How short memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    /// There is enough.
    Low,
    /// From 80 % of the limit on: nobody new is sent everything.
    Raised,
    /// From 90 % on: who takes most is ended.
    High,
}

impl Pressure {
    /// By what is used of a limit.
    pub fn of(used: u64, limit: u64) -> Self {
        match used.saturating_mul(100) / limit.max(1) {
            0..80 => Self::Low,
            80..90 => Self::Raised,
            _ => Self::High,
        }
    }

    /// The word in `/debug/push`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Raised => "raised",
            Self::High => "high",
        }
    }
}

/// What became of budgets so far, for `/debug/push` and `/metrics`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Figures {
    /// How short memory is.
    pub pressure: Pressure,
    /// The most that the process may take, in bytes.
    pub limit: u64,
    /// What it took when it was last looked, in bytes; 0 where nothing bounds it.
    pub used: u64,
    /// How often an identity asked for more than its budget.
    pub over_budget: u64,
    /// Streams that were refused, and told to come again.
    pub deferred: u64,
    /// Identities whose streams were ended.
    pub shed: u64,
}

/// The budgets of one server.
#[derive(Debug)]
pub struct Budgets {
    /// The most that the process may take, in bytes.
    memory: u64,
    /// The most that may be charged to an identity, in bytes.
    limit: u64,
    state: Mutex<(Pressure, u64)>,
    over_budget: AtomicU64,
    deferred: AtomicU64,
    shed: AtomicU64,
    table: Mutex<HashMap<SpiffeId, Usage, Secret>>,
}

impl Default for Budgets {
    fn default() -> Self {
        Self::of_memory(Memory::of_process().limit())
    }
}

/// A stream's entry; dropping it gives back what was charged.
#[derive(Debug)]
pub(super) struct Account {
    budgets: Arc<Budgets>,
    identity: SpiffeId,
    charge: Charge,
    ended: CancellationToken,
}

impl Budgets {
    /// Budgets for a process that may take `memory` bytes: a quarter of it for one identity.
    pub fn of_memory(memory: u64) -> Self {
        Self {
            memory,
            limit: memory / 4,
            state: Mutex::new((Pressure::Low, 0)),
            over_budget: AtomicU64::new(0),
            deferred: AtomicU64::new(0),
            shed: AtomicU64::new(0),
            table: Mutex::default(),
        }
    }

    /// What became of them so far.
    pub fn figures(&self) -> Figures {
        let (pressure, used) = *lock(&self.state);
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        Figures {
            pressure,
            limit: self.memory,
            used,
            over_budget: count(&self.over_budget),
            deferred: count(&self.deferred),
            shed: count(&self.shed),
        }
    }

    /// Notes how short memory is, and what is used of it; returns how short it was before.
    pub fn press(&self, pressure: Pressure, used: u64) -> Pressure {
        std::mem::replace(&mut *lock(&self.state), (pressure, used)).0
    }

    /// Whether somebody who has nothing yet is told to come again, which is counted.
    pub(super) fn defers(&self) -> bool {
        let defers = lock(&self.state).0 > Pressure::Low;
        self.deferred.fetch_add(u64::from(defers), Ordering::Relaxed);
        defers
    }

    /// The most that may be charged to an identity, in bytes.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Enters a stream of `identity`.
    pub(super) fn open(
        self: &Arc<Self>,
        identity: &SpiffeId,
        verified: bool,
    ) -> Result<Account, OverBudget> {
        let charge = Charge { verified, ..Charge::default() };
        let mut table = self.table();
        let usage = table.entry(identity.clone()).or_default();
        let ended = usage.ended.clone();
        usage.add(charge);
        let account =
            Account { budgets: Arc::clone(self), identity: identity.clone(), charge, ended };
        let outcome = self.checked(identity, usage);
        // Before the account is given back, which needs it.
        drop(table);
        outcome.map(|()| account)
    }

    /// The identities that take most, each with what it takes, at most `count`.
    pub fn costliest(&self, count: usize) -> Vec<(SpiffeId, Usage)> {
        let table = self.table();
        let mut all: Vec<_> = table.iter().map(|(id, usage)| (usage.taken, id)).collect();
        all.sort_unstable_by(|a, b| b.cmp(a));
        all.truncate(count);
        let of = |(_, id): &(u64, &SpiffeId)| Some(((*id).clone(), table.get(*id)?.clone()));
        all.iter().filter_map(of).collect()
    }

    /// Has the streams end of the identity that takes most, and says which. `None` where none takes `least`
    /// bytes: then it is not for them that memory is short.
    pub fn end_costliest(&self, least: u64) -> Option<(SpiffeId, Usage)> {
        let table = self.table();
        let large = |usage: &Usage| usage.taken >= least && !usage.ended.is_cancelled();
        let alive = table.iter().filter(|(_, usage)| large(usage));
        let (identity, usage) = alive.max_by_key(|(identity, usage)| (usage.taken, *identity))?;
        usage.ended.cancel();
        self.shed.fetch_add(1, Ordering::Relaxed);
        Some((identity.clone(), usage.clone()))
    }

    fn checked(&self, identity: &SpiffeId, usage: &Usage) -> Result<(), OverBudget> {
        if usage.charged <= self.limit {
            return Ok(());
        }
        self.over_budget.fetch_add(1, Ordering::Relaxed);
        Err(OverBudget {
            identity: identity.clone(),
            charged: usage.charged,
            limit: self.limit,
            unverified: usage.unverified,
            made_up: usage.made_up,
        })
    }

    fn table(&self) -> MutexGuard<'_, HashMap<SpiffeId, Usage, Secret>> {
        lock(&self.table)
    }
}

/// A panic while the lock was held can't leave sums half-changed, so poison is ignored.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Account {
    /// What is charged for the stream.
    pub(super) fn charge(&self) -> Charge {
        self.charge
    }

    /// Pieces of memory that are free once the stream is gone, beyond what any stream leaves.
    pub(super) fn pieces(&self) -> u64 {
        (self.charge.taken() / PIECE_BYTES).saturating_sub(1)
    }

    /// Charges this from now on, whether there is enough for it or not: the stream must end otherwise.
    pub(super) fn set(&mut self, charge: Charge) -> Result<(), OverBudget> {
        if charge == self.charge {
            return Ok(());
        }
        let mut table = self.budgets.table();
        let Some(usage) = table.get_mut(&self.identity) else { return Ok(()) };
        usage.subtract(self.charge);
        usage.add(charge);
        let grows = charge.charged() > self.charge.charged();
        self.charge = charge;
        // What another stream took is no reason to end one that asks for nothing.
        if grows { self.budgets.checked(&self.identity, usage) } else { Ok(()) }
    }

    /// Waits until the streams of this identity must end, since memory is short.
    pub(super) async fn ended(&self) {
        self.ended.cancelled().await;
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        let mut table = self.budgets.table();
        if let Some(usage) = table.get_mut(&self.identity) {
            usage.subtract(self.charge);
            if usage.streams == 0 {
                table.remove(&self.identity);
            }
        }
    }
}

impl Usage {
    fn add(&mut self, charge: Charge) {
        self.streams += 1;
        self.unverified += u64::from(!charge.verified);
        self.names += charge.names + charge.made_up;
        self.made_up += charge.made_up;
        self.charged += charge.charged();
        self.taken += charge.taken();
    }

    fn subtract(&mut self, charge: Charge) {
        self.streams -= 1;
        self.unverified -= u64::from(!charge.verified);
        self.names -= charge.names + charge.made_up;
        self.made_up -= charge.made_up;
        self.charged -= charge.charged();
        self.taken -= charge.taken();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(account: &str) -> SpiffeId {
        format!("spiffe://cluster.local/ns/shop/sa/{account}").parse().expect("a SPIFFE ID")
    }

    fn budgets() -> Arc<Budgets> {
        Arc::new(Budgets::of_memory(200 << 20))
    }

    /// As many names of 60 bytes.
    fn made_up(count: u64) -> Charge {
        Charge { made_up: count, made_up_text: count * 60, ..Charge::default() }
    }

    #[test]
    fn invented_pods_and_names_are_charged_to_the_one_identity_behind_them() {
        let budgets = budgets();
        let mut kept = Vec::new();
        let mut refused = None;
        for stream in 0..8 {
            let mut account = budgets.open(&id("thief"), false).expect("there is room for streams");
            if account.set(made_up(94_000)).is_err() {
                refused = Some(stream);
                break;
            }
            kept.push(account);
        }
        assert_eq!(refused, Some(0), "a quarter of 200 MB is less than twice what they take");
        drop(kept);
        assert!(budgets.costliest(1).is_empty(), "all is given back");
        let streams = (0..10_000).map(|_| budgets.open(&id("thief"), false));
        let open: Vec<_> = streams.map_while(Result::ok).collect();
        assert_eq!(open.len() as u64, budgets.limit() / STREAM_BYTES);
        assert!(budgets.open(&id("honest"), false).is_ok(), "others have budgets of their own");
    }

    #[test]
    fn what_known_pods_watch_of_known_services_is_charged_to_nobody() {
        let budgets = budgets();
        let watches = Charge { verified: true, names: 10_000, ..Charge::default() };
        let mut all = Vec::new();
        for _ in 0..5_000 {
            let mut account = budgets.open(&id("default"), true).expect("as many as there are");
            account.set(watches).expect("of what there is");
            all.push(account);
        }
        assert_eq!(budgets.costliest(1)[0].1.charged, 0);
        let one = all.first_mut().expect("it is there");
        assert!(one.set(Charge { made_up: 1 << 20, ..watches }).is_err(), "but what is made up is");
    }

    #[test]
    fn it_is_not_for_the_streams_that_memory_is_short_where_none_takes_much() {
        let budgets = budgets();
        let _open = budgets.open(&id("web"), true).expect("there is room");
        assert_eq!(budgets.end_costliest(2 << 20).map(|(id, _)| id), None);
    }

    #[test]
    fn from_four_fifths_on_nobody_new_is_let_in() {
        let budgets = budgets();
        for (used, pressure, defers) in [
            (79, Pressure::Low, false),
            (80, Pressure::Raised, true),
            (90, Pressure::High, true),
            (150, Pressure::High, true),
            (10, Pressure::Low, false),
        ] {
            budgets.press(Pressure::of(used, 100), used);
            assert_eq!((budgets.figures().pressure, budgets.defers()), (pressure, defers));
        }
        assert_eq!(budgets.figures().deferred, 3);
    }

    #[test]
    fn all_is_given_back() {
        let budgets = budgets();
        let mut account = budgets.open(&id("web"), false).expect("there is room");
        account.set(Charge { names: 10, ..made_up(10) }).expect("there is room");
        account.set(Charge { verified: true, ..made_up(3) }).expect("it is less");
        drop(account);
        assert!(budgets.costliest(1).is_empty());
    }

    #[test]
    fn the_identity_that_takes_most_is_ended_first_and_each_once() {
        let budgets = budgets();
        let mut open = Vec::new();
        for (name, count) in [("small", 1), ("large", 3), ("larger", 5)] {
            open.extend((0..count).map(|_| (name, budgets.open(&id(name), true).expect("room"))));
        }
        let ended = || budgets.end_costliest(1).map(|(id, _)| id.service_account().to_owned());
        assert_eq!(ended().as_deref(), Some("larger"));
        let is_over = |(_, account): &&(&str, Account)| account.ended.is_cancelled();
        assert!(open.iter().filter(is_over).all(|(name, _)| *name == "larger"));
        assert_eq!(open.iter().filter(is_over).count(), 5);
        assert_eq!(ended().as_deref(), Some("large"));
        assert_eq!(ended().as_deref(), Some("small"));
        assert_eq!(ended(), None);
        assert_eq!(budgets.figures().shed, 3);
        open.clear();
        assert!(!budgets.open(&id("larger"), true).expect("it may come back").ended.is_cancelled());
    }
}
