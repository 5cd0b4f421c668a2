//! Memory budgets per identity, however many streams and node names it uses.
//!
//! A certificate proves an account, but only the registries prove a pod: the holder of a
//! certificate can invent pods, and names to subscribe to. Therefore unverified usage is charged to
//! the identity of the certificate: streams whose pod is unknown, including their subscribed names,
//! and names that refer to no service, which are charged twice. Subscriptions of known pods to
//! known services are reported but not charged. Large requests of one identity are read a few at a
//! time, because their memory is charged only after they have been read. Look-ups are the only work
//! under a lock.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Semaphore;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::grpc::REQUEST_BYTES_MAX;
use strait_base::hash::SecretHasher;
use strait_base::lock::lock;
use strait_base::memory::MemoryLimit;
use strait_identity::SpiffeId;

/// The memory for the task, buffers and tables of one stream, in bytes.
const STREAM_BYTES: u64 = 64 << 10;
/// The memory for a name that refers to a service, in bytes. Its text is stored anyway.
const NAME_BYTES: u64 = 64;
/// The memory of a typical stream, in bytes.
const PIECE_BYTES: u64 = 128 << 10;
/// The maximum charge for names of one identity, on any machine: 64 MiB.
const NAMES_BYTES_MAX: u64 = 64 << 20;
/// The memory for a name that refers to no service, in addition to its text, in bytes. Neither the
/// name nor its empty response is shared with other streams.
const MADE_UP_BYTES: u64 = 256;

/// The usage of one stream, and whether its pod is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Charge {
    /// Whether the stream's pod or machine is known.
    pub(super) verified: bool,
    /// The number of names that refer to a service.
    pub(super) names: u64,
    /// The number of names that refer to no service.
    pub(super) made_up: u64,
    /// The length of the names that refer to no service, in bytes.
    pub(super) made_up_text: u64,
}

impl Charge {
    /// Returns the charge against the identity's budget, in bytes.
    fn charged(self) -> u64 {
        let of_stream = if self.verified { 0 } else { STREAM_BYTES + self.names * NAME_BYTES };
        of_stream + self.invented()
    }

    /// Returns the part of the charge for names that refer to no service, in bytes.
    fn invented(self) -> u64 {
        2 * (self.made_up * MADE_UP_BYTES + self.made_up_text)
    }

    /// Returns the approximate memory of the stream, in bytes.
    fn taken(self) -> u64 {
        STREAM_BYTES + self.names * NAME_BYTES + self.made_up * MADE_UP_BYTES + self.made_up_text
    }
}

/// The total usage of the streams of one identity.
#[derive(Debug, Clone, Default)]
pub struct IdentityUsage {
    /// The number of streams.
    pub streams: u64,
    /// The number of streams whose pod is unknown.
    pub unverified: u64,
    /// The number of subscribed names, of all types.
    pub names: u64,
    /// The number of subscribed names that refer to no service.
    pub made_up: u64,
    /// The charge against the identity's budget, in bytes.
    pub charged: u64,
    /// The approximate memory of the streams, in bytes.
    pub taken: u64,
    ended: CancellationToken,
}

/// The usage of an identity that exceeds its budget.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{identity} uses {charged} of {limit} bytes for {unverified} streams of unknown pods and \
     {made_up} names of no service"
)]
pub(super) struct OverBudget {
    identity: SpiffeId,
    charged: u64,
    limit: u64,
    unverified: u64,
    made_up: u64,
}

/// The reason why usage cannot be charged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refused {
    /// The identity's budget would be exceeded.
    Budget(OverBudget),
    /// The memory of the process would be nearly exhausted.
    Memory,
}

/// The memory pressure of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    /// Enough memory is free.
    Low,
    /// At least 80 % of the limit is used: new streams are refused, unless the proxy lists its
    /// resources.
    Raised,
    /// At least 90 % of the limit is used: the streams of the identity with the highest usage are
    /// ended.
    High,
}

impl Pressure {
    /// Computes the pressure from the used memory and its limit.
    pub fn of(used: u64, limit: u64) -> Self {
        match used.saturating_mul(100) / limit.max(1) {
            0..80 => Self::Low,
            80..90 => Self::Raised,
            _ => Self::High,
        }
    }

    /// Returns the name in `/debug/push`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Raised => "raised",
            Self::High => "high",
        }
    }
}

/// Counters of budgets, for `/debug/push` and `/metrics`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetCounters {
    /// The memory pressure.
    pub pressure: Pressure,
    /// The memory limit of the process, in bytes.
    pub limit: u64,
    /// The memory of the process at the last measurement, in bytes. 0 if its memory use is unknown.
    pub used: u64,
    /// The number of times that an identity requested more than its budget.
    pub over_budget: u64,
    /// The number of streams that were refused or ended because of memory pressure and that must
    /// reconnect.
    pub deferred: u64,
    /// The number of identities whose streams were ended.
    pub shed: u64,
}

/// The budgets of one server.
#[derive(Debug)]
pub struct Budgets {
    /// The memory limit of the process, in bytes.
    memory: u64,
    /// The maximum charge of an identity, in bytes.
    limit: u64,
    state: Mutex<(Pressure, u64)>,
    /// The charge for names that refer to no service since the last memory measurement, in bytes.
    /// It covers the time until the next measurement.
    invented: AtomicU64,
    over_budget: AtomicU64,
    deferred: AtomicU64,
    shed: AtomicU64,
    table: Mutex<HashMap<SpiffeId, IdentityUsage, SecretHasher>>,
    /// The semaphore of each identity that limits its large requests.
    rooms: Mutex<HashMap<SpiffeId, Arc<Semaphore>, SecretHasher>>,
}

impl Default for Budgets {
    fn default() -> Self {
        Self::of_memory(MemoryLimit::of_process().limit())
    }
}

/// The account of one stream. Dropping it refunds the charge.
#[derive(Debug)]
pub(super) struct StreamAccount {
    budgets: Arc<Budgets>,
    identity: SpiffeId,
    charge: Charge,
    ended: CancellationToken,
}

impl Budgets {
    /// Creates budgets for a process that may use `memory` bytes. The budget of one identity is a
    /// quarter of it.
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

    /// Returns the counters.
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

    /// Records the memory pressure and the used memory. Returns the previous pressure.
    pub fn press(&self, pressure: Pressure, used: u64) -> Pressure {
        self.invented.store(0, Ordering::Relaxed);
        std::mem::replace(&mut *lock(&self.state), (pressure, used)).0
    }

    /// Returns whether the memory would be nearly exhausted if `invented` more bytes were used for
    /// names that refer to no service. Charges since the last measurement are included.
    fn is_full_with(&self, invented: u64) -> bool {
        let used = lock(&self.state).1;
        let more = self.invented.load(Ordering::Relaxed) + invented;
        // If the memory use of the process is unknown, it is not limited.
        used > 0 && more > 0 && Pressure::of(used + more, self.memory) == Pressure::High
    }

    /// Returns whether a stream without any resources must be refused for now. A refusal is
    /// counted.
    pub(super) fn defers(&self) -> bool {
        let defers = lock(&self.state).0 > Pressure::Low;
        self.deferred.fetch_add(u64::from(defers), Ordering::Relaxed);
        defers
    }

    /// Returns the maximum charge for names of an identity, in bytes.
    fn names_limit(&self) -> u64 {
        self.limit.min(NAMES_BYTES_MAX)
    }

    /// Returns the maximum charge of an identity, in bytes.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns the semaphore for large requests of `identity`, in KiB. It admits 1/32 of the memory
    /// limit, but at least one request of the maximum size.
    pub(super) fn room(&self, identity: &SpiffeId) -> Arc<Semaphore> {
        let mut rooms = lock(&self.rooms);
        if let Some(room) = rooms.get(identity) {
            return Arc::clone(room);
        }
        // Before the table grows, identities without streams are removed.
        if rooms.len() == rooms.capacity() {
            rooms.retain(|_, room| Arc::strong_count(room) > 1);
        }
        let kilobytes = (self.memory / 32).max(REQUEST_BYTES_MAX as u64) >> 10;
        let most = usize::try_from(kilobytes).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        let room = Arc::new(Semaphore::new(most));
        rooms.insert(identity.clone(), Arc::clone(&room));
        room
    }

    /// Opens an account for a stream of `identity`.
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
        // Dropping the account needs the lock.
        drop(table);
        outcome.map(|()| account)
    }

    /// Returns the identities with the highest usage, at most `count`.
    pub fn costliest(&self, count: usize) -> Vec<(SpiffeId, IdentityUsage)> {
        let table = self.table();
        let mut all: Vec<_> = table.iter().map(|(id, usage)| (usage.taken, id)).collect();
        all.sort_unstable_by(|a, b| b.cmp(a));
        all.truncate(count);
        let of = |(_, id): &(u64, &SpiffeId)| Some(((*id).clone(), table.get(*id)?.clone()));
        all.iter().filter_map(of).collect()
    }

    /// Ends the streams of the identity with the highest usage. Returns the identity, or `None` if
    /// no identity uses `least` bytes: then streams are not the cause of the memory pressure.
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
        // A deployment may have thousands of pods that are not known yet, so the absolute limit covers names only.
        let of_names = usage.charged.saturating_sub(usage.unverified * STREAM_BYTES);
        let (charged, limit) = match of_names > self.names_limit() {
            true => (of_names, self.names_limit()),
            false => (usage.charged, self.limit),
        };
        if charged <= limit {
            return Ok(());
        }
        self.over_budget.fetch_add(1, Ordering::Relaxed);
        Err(OverBudget {
            identity: identity.clone(),
            charged,
            limit,
            unverified: usage.unverified,
            made_up: usage.made_up,
        })
    }

    fn table(&self) -> MutexGuard<'_, HashMap<SpiffeId, IdentityUsage, SecretHasher>> {
        lock(&self.table)
    }
}

impl StreamAccount {
    /// Returns the charge of the stream.
    pub(super) fn charge(&self) -> Charge {
        self.charge
    }

    /// Returns the number of memory pieces that are released when the stream ends, beyond a typical
    /// stream's pieces.
    pub(super) fn pieces(&self) -> u64 {
        (self.charge.taken() / PIECE_BYTES).saturating_sub(1)
    }

    /// Replaces the charge of the stream, even if it exceeds a limit. On an error, the caller must
    /// end the stream.
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
        // A stream that does not grow is not ended because of the usage of other streams.
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

    /// Checks whether this charge is possible, given the usage of the identity's other streams. A
    /// refusal is counted.
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

    /// Returns a future that completes when the streams of this identity must end because of
    /// memory pressure.
    pub(super) fn ended(&self) -> WaitForCancellationFutureOwned {
        self.ended.clone().cancelled_owned()
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
    fn each_identity_has_a_separate_limit_for_large_requests() {
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
        assert!(lock(&budgets.rooms).len() < 50, "ended identities have no entry");
    }

    #[test]
    fn invented_names_are_refused_before_they_exhaust_the_memory() {
        let budgets = budgets();
        budgets.press(Pressure::Low, 100 << 20);
        let mut kept = Vec::new();
        let mut refused = None;
        // Each account is within its budget, but all of them together would exceed the memory
        // before the next measurement.
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
        late.bears(made_up(60_000)).expect("checked names are charged once");
    }

    #[test]
    fn excessive_charge_is_refused_before_it_is_recorded() {
        let budgets = budgets();
        let account = budgets.open(&id("thief"), false).expect("there is room");
        assert!(account.bears(made_up(10_000)).is_ok());
        assert!(account.bears(made_up(94_000)).is_err());
        assert_eq!(budgets.costliest(1)[0].1.made_up, 0, "the charge is 0");
    }

    /// Creates a charge for `count` names of 60 bytes that refer to no service.
    fn made_up(count: u64) -> Charge {
        Charge { made_up: count, made_up_text: count * 60, ..Charge::default() }
    }

    #[test]
    fn invented_pods_and_names_are_charged_to_their_identity() {
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
        assert_eq!(refused, Some(0), "a quarter of 200 MB is less than twice the usage");
        drop(kept);
        assert!(budgets.costliest(1).is_empty(), "all charges are refunded");
        let streams = (0..10_000).map(|_| budgets.open(&id("thief"), false));
        let open: Vec<_> = streams.map_while(Result::ok).collect();
        assert_eq!(open.len() as u64, budgets.limit() / STREAM_BYTES);
        assert!(
            budgets.open(&id("honest"), false).is_ok(),
            "other identities have separate budgets"
        );
    }

    #[test]
    fn names_of_one_identity_have_an_absolute_limit_on_a_machine_without_one() {
        let budgets = Arc::new(Budgets::of_memory(64 << 30));
        let mut accounts = Vec::new();
        let within = (NAMES_BYTES_MAX / 2 - (1 << 20)) / (MADE_UP_BYTES + 60);
        let mut account = budgets.open(&id("thief"), true).expect("room");
        account.set(Charge { verified: true, ..made_up(within) }).expect("within the limit");
        accounts.push(account);
        let mut account = budgets.open(&id("thief"), true).expect("room");
        let more = Charge { verified: true, ..made_up(10_000) };
        let refused = account.bears(more).expect_err("of both streams together");
        let Refused::Budget(OverBudget { limit, .. }) = refused else { panic!("{refused:?}") };
        assert_eq!(limit, NAMES_BYTES_MAX);
        assert!(account.set(more).is_err());
        // Streams of unknown pods.
        for _ in 0..2000 {
            accounts.push(budgets.open(&id("honest"), false).expect("not names"));
        }
    }

    #[test]
    fn subscriptions_of_known_pods_to_known_services_are_not_charged() {
        let budgets = budgets();
        let watches = Charge { verified: true, names: 10_000, ..Charge::default() };
        let mut all = Vec::new();
        for _ in 0..5_000 {
            let mut account = budgets.open(&id("default"), true).expect("as many as there are");
            account.set(watches).expect("existing names");
            all.push(account);
        }
        assert_eq!(budgets.costliest(1)[0].1.charged, 0);
        let one = all.first_mut().expect("it is there");
        assert!(
            one.set(Charge { made_up: 1 << 20, ..watches }).is_err(),
            "invented names are limited"
        );
    }

    #[test]
    fn streams_with_low_usage_are_not_ended() {
        let budgets = budgets();
        let _open = budgets.open(&id("web"), true).expect("there is room");
        assert_eq!(budgets.end_costliest(2 << 20).map(|(id, _)| id), None);
    }

    #[test]
    fn new_streams_are_refused_from_80_percent_on() {
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
    fn dropped_account_refunds_its_charge() {
        let budgets = budgets();
        let mut account = budgets.open(&id("web"), false).expect("there is room");
        account.set(Charge { names: 10, ..made_up(10) }).expect("there is room");
        account.set(Charge { verified: true, ..made_up(3) }).expect("it is less");
        drop(account);
        assert!(budgets.costliest(1).is_empty());
    }

    #[test]
    fn identities_are_ended_once_in_the_order_of_their_usage() {
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
