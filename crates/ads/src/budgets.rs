//! What each identity may cost, whatever it calls itself on how many streams.
//!
//! A certificate proves an account, and nothing but the registries proves a pod: whoever holds one can invent
//! pods, and names to watch. So what is not vouched for is charged to the identity of the certificate: streams
//! whose pod nobody knows, with what they watch, and names that stand for no service, which count double.
//! What a known pod watches of known services is shown, but not charged. Large requests of one identity are read a few at
//! a time, for what they take is charged when they have been read. Locks are held for look-ups only.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::grpc::REQUEST_BYTES_MAX;
use strait_base::hash::SecretHasher;
use strait_base::lock::lock;
use strait_base::memory::MemoryLimit;
use strait_identity::SpiffeId;

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
        of_stream + self.invented()
    }

    /// What of that is for names that stand for no service.
    fn invented(self) -> u64 {
        2 * (self.made_up * MADE_UP_BYTES + self.made_up_text)
    }

    /// What it takes, more or less.
    fn taken(self) -> u64 {
        STREAM_BYTES + self.names * NAME_BYTES + self.made_up * MADE_UP_BYTES + self.made_up_text
    }
}

/// What the streams of one identity come to.
#[derive(Debug, Clone, Default)]
pub struct IdentityUsage {
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

/// Why something can't be charged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refused {
    /// It is more than the identity may cost.
    Budget(OverBudget),
    /// Memory would be nearly all taken with it.
    Memory,
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

    /// The name in `/debug/push`.
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
pub struct BudgetCounters {
    /// How short memory is.
    pub pressure: Pressure,
    /// The most that the process may take, in bytes.
    pub limit: u64,
    /// What it took when it was last looked, in bytes; 0 where nothing bounds it.
    pub used: u64,
    /// How often an identity asked for more than its budget.
    pub over_budget: u64,
    /// Streams that were refused, and asked to come again.
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
    /// What names of no service were charged since memory was last looked at, in bytes: it may fill up before the
    /// next look.
    invented: AtomicU64,
    over_budget: AtomicU64,
    deferred: AtomicU64,
    shed: AtomicU64,
    table: Mutex<HashMap<SpiffeId, IdentityUsage, SecretHasher>>,
    /// Where large requests are read.
    rooms: Mutex<HashMap<SpiffeId, Arc<Semaphore>, SecretHasher>>,
}

impl Default for Budgets {
    fn default() -> Self {
        Self::of_memory(MemoryLimit::of_process().limit())
    }
}

/// A stream's entry; dropping it gives back what was charged.
#[derive(Debug)]
pub(super) struct StreamAccount {
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
            invented: AtomicU64::new(0),
            over_budget: AtomicU64::new(0),
            deferred: AtomicU64::new(0),
            shed: AtomicU64::new(0),
            table: Mutex::default(),
            rooms: Mutex::default(),
        }
    }

    /// What became of them so far.
    pub fn figures(&self) -> BudgetCounters {
        let (pressure, used) = *lock(&self.state);
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        BudgetCounters {
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
        self.invented.store(0, Ordering::Relaxed);
        std::mem::replace(&mut *lock(&self.state), (pressure, used)).0
    }

    /// Whether memory would be nearly all taken with so many bytes more for names of no service. What of them is
    /// charged counts until the next look.
    fn is_full_with(&self, invented: u64) -> bool {
        let used = lock(&self.state).1;
        let more = self.invented.load(Ordering::Relaxed) + invented;
        // Nothing bounds the process where its memory use is unknown.
        used > 0 && more > 0 && Pressure::of(used + more, self.memory) == Pressure::High
    }

    /// Whether a stream that has nothing yet is asked to come again, which is counted.
    pub(super) fn defers(&self) -> bool {
        let defers = lock(&self.state).0 > Pressure::Low;
        self.deferred.fetch_add(u64::from(defers), Ordering::Relaxed);
        defers
    }

    /// The most that may be charged to an identity, in bytes.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Room for large requests of `identity` that are read at once, in KiB: a thirty-second part of memory, and
    /// for one of the largest in any case.
    pub(super) fn room(&self, identity: &SpiffeId) -> Arc<Semaphore> {
        let mut rooms = lock(&self.rooms);
        if let Some(room) = rooms.get(identity) {
            return Arc::clone(room);
        }
        // Before the table grows: who has no stream any more needs none.
        if rooms.len() == rooms.capacity() {
            rooms.retain(|_, room| Arc::strong_count(room) > 1);
        }
        let kilobytes = (self.memory / 32).max(REQUEST_BYTES_MAX as u64) >> 10;
        let most = usize::try_from(kilobytes).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        let room = Arc::new(Semaphore::new(most));
        rooms.insert(identity.clone(), Arc::clone(&room));
        room
    }

    /// Enters a stream of `identity`.
    pub(super) fn open(
        self: &Arc<Self>,
        identity: &SpiffeId,
        verified: bool,
    ) -> Result<StreamAccount, OverBudget> {
        let charge = Charge { verified, ..Charge::default() };
        let mut table = self.table();
        let usage = table.entry(identity.clone()).or_default();
        let ended = usage.ended.clone();
        usage.add(charge);
        let account =
            StreamAccount { budgets: Arc::clone(self), identity: identity.clone(), charge, ended };
        let outcome = self.checked(identity, usage);
        // Before the account is given back, which needs it.
        drop(table);
        outcome.map(|()| account)
    }

    /// The identities that take most, each with what it takes, at most `count`.
    pub fn costliest(&self, count: usize) -> Vec<(SpiffeId, IdentityUsage)> {
        let table = self.table();
        let mut all: Vec<_> = table.iter().map(|(id, usage)| (usage.taken, id)).collect();
        all.sort_unstable_by(|a, b| b.cmp(a));
        all.truncate(count);
        let of = |(_, id): &(u64, &SpiffeId)| Some(((*id).clone(), table.get(*id)?.clone()));
        all.iter().filter_map(of).collect()
    }

    /// Has the streams end of the identity that takes most, and says which. `None` where none takes `least`
    /// bytes: then it is not for them that memory is short.
    pub fn end_costliest(&self, least: u64) -> Option<(SpiffeId, IdentityUsage)> {
        let table = self.table();
        let large = |usage: &IdentityUsage| usage.taken >= least && !usage.ended.is_cancelled();
        let alive = table.iter().filter(|(_, usage)| large(usage));
        let (identity, usage) = alive.max_by_key(|(identity, usage)| (usage.taken, *identity))?;
        usage.ended.cancel();
        self.shed.fetch_add(1, Ordering::Relaxed);
        Some((identity.clone(), usage.clone()))
    }

    fn checked(&self, identity: &SpiffeId, usage: &IdentityUsage) -> Result<(), OverBudget> {
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

    fn table(&self) -> MutexGuard<'_, HashMap<SpiffeId, IdentityUsage, SecretHasher>> {
        lock(&self.table)
    }
}

impl StreamAccount {
    /// What is charged for the stream.
    pub(super) fn charge(&self) -> Charge {
        self.charge
    }

    /// Pieces of memory that are free once the stream is gone, beyond what any stream leaves.
    pub(super) fn pieces(&self) -> u64 {
        (self.charge.taken() / PIECE_BYTES).saturating_sub(1)
    }

    /// Charges this from now on, whether there is enough for it or not: the stream must end otherwise.
    pub(super) fn set(&mut self, charge: Charge) -> Result<(), Refused> {
        if charge == self.charge {
            return Ok(());
        }
        let mut table = self.budgets.table();
        let Some(usage) = table.get_mut(&self.identity) else { return Ok(()) };
        usage.subtract(self.charge);
        usage.add(charge);
        let grows = charge.charged() > self.charge.charged();
        let invented = charge.invented().saturating_sub(self.charge.invented());
        self.budgets.invented.fetch_add(invented, Ordering::Relaxed);
        self.charge = charge;
        // What another stream took is no reason to end one that asks for nothing.
        if !grows {
            return Ok(());
        }
        self.budgets.checked(&self.identity, usage).map_err(Refused::Budget)?;
        if invented > 0 { self.room_for(0) } else { Ok(()) }
    }

    fn room_for(&self, invented: u64) -> Result<(), Refused> {
        if !self.budgets.is_full_with(invented) {
            return Ok(());
        }
        self.budgets.deferred.fetch_add(1, Ordering::Relaxed);
        Err(Refused::Memory)
    }

    /// Whether this could be charged beside what others of the identity take; a refusal is counted.
    pub(super) fn bears(&self, charge: Charge) -> Result<(), Refused> {
        let table = self.budgets.table();
        let Some(usage) = table.get(&self.identity) else { return Ok(()) };
        let more = charge.charged().saturating_sub(self.charge.charged());
        if more == 0 {
            return Ok(());
        }
        let wanted = IdentityUsage {
            charged: usage.charged + more,
            made_up: usage.made_up + charge.made_up.saturating_sub(self.charge.made_up),
            ..usage.clone()
        };
        self.budgets.checked(&self.identity, &wanted).map_err(Refused::Budget)?;
        drop(table);
        self.room_for(charge.invented().saturating_sub(self.charge.invented()))
    }

    /// Waits until the streams of this identity must end, since memory is short.
    pub(super) async fn ended(&self) {
        self.ended.cancelled().await;
    }
}

impl Drop for StreamAccount {
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

impl IdentityUsage {
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

    #[test]
    fn large_requests_of_one_identity_share_room_and_others_have_their_own() {
        let budgets = budgets();
        let room = budgets.room(&id("thief"));
        assert_eq!(room.available_permits(), (200 << 10) / 32);
        let _held = room.try_acquire_many(6000).expect("there is room");
        assert!(budgets.room(&id("thief")).try_acquire_many(1000).is_err());
        assert!(budgets.room(&id("honest")).try_acquire_many(4096).is_ok());
        let small = Budgets::of_memory(1 << 20);
        let largest = REQUEST_BYTES_MAX as u32 >> 10;
        assert!(small.room(&id("honest")).try_acquire_many(largest).is_ok(), "one in any case");
        (0..1000).for_each(|n| drop(budgets.room(&id(&format!("gone-{n}")))));
        assert!(lock(&budgets.rooms).len() < 50, "who is gone needs none");
    }

    #[test]
    fn invented_names_are_refused_before_memory_is_full_of_them() {
        let budgets = budgets();
        budgets.press(Pressure::Low, 100 << 20);
        let mut kept = Vec::new();
        let mut refused = None;
        // Each is within its budget; a look comes too late for all of them together.
        for number in 0..8 {
            let mut account = budgets.open(&id(&format!("thief-{number}")), false).expect("room");
            if let Err(why) = account.bears(made_up(60_000)) {
                refused = Some((number, why));
                break;
            }
            account.set(made_up(60_000)).expect("it was said so");
            kept.push(account);
        }
        assert_eq!(refused, Some((2, Refused::Memory)));
        let mut honest = budgets.open(&id("honest"), true).expect("room");
        let watches = Charge { verified: true, names: 10_000, ..Charge::default() };
        honest.set(watches).expect("it is not for these");
        budgets.press(Pressure::Low, 120 << 20);
        let late = budgets.open(&id("late"), false).expect("room");
        late.bears(made_up(60_000)).expect("what has been looked at counts once");
    }

    #[test]
    fn what_can_not_be_charged_is_told_before_it_is_taken() {
        let budgets = budgets();
        let account = budgets.open(&id("thief"), false).expect("there is room");
        assert!(account.bears(made_up(10_000)).is_ok());
        assert!(account.bears(made_up(94_000)).is_err());
        assert_eq!(budgets.costliest(1)[0].1.made_up, 0, "nothing is charged");
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
        let is_over = |(_, account): &&(&str, StreamAccount)| account.ended.is_cancelled();
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
