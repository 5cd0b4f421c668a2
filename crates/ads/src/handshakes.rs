//! Scheduling of TLS handshakes. A handshake costs more than anything else that an unauthenticated
//! peer can request, and the peer may leave it unfinished. Therefore the number of simultaneous
//! handshakes is limited, in total and per source, and sources take turns.
//!
//! This module owns the permits, the queues, and the recent failures. It does not know TLS.
//! Look-ups are the only work under a lock.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::oneshot;
use tracing::warn;

use strait_base::codes::Code;
use strait_base::descriptors;
use strait_base::lock::lock;

/// The maximum number of simultaneous handshakes.
pub(super) const TURNS_MAX: usize = 64;
/// The maximum number of simultaneous handshakes of one source. A source that uses all of them
/// delays only itself.
pub(super) const TURNS_PER_SOURCE_MAX: usize = 32;
/// The maximum number of unfinished handshakes of one source, including waiting ones. A whole mesh
/// may connect from one address, so the number is much larger than that of simultaneous handshakes.
pub(super) const UNFINISHED_PER_SOURCE_MAX: usize = 4096;

/// The handshakes of one server.
#[derive(Debug)]
pub(super) struct Handshakes {
    table: Mutex<HandshakeTable>,
    /// The maximum number of unfinished handshakes of one source.
    unfinished_max: usize,
}

impl Default for Handshakes {
    fn default() -> Self {
        Self { table: Mutex::default(), unfinished_max: UNFINISHED_PER_SOURCE_MAX }
    }
}

#[derive(Debug, Default)]
struct HandshakeTable {
    turns: usize,
    sources: BTreeMap<IpAddr, HandshakeSource>,
    /// The sources with waiting handshakes. The first is the next that may proceed.
    waiting: VecDeque<IpAddr>,
}

#[derive(Debug, Default)]
struct HandshakeSource {
    turns: usize,
    unfinished: usize,
    queue: VecDeque<oneshot::Sender<()>>,
}

/// The registration of an unfinished handshake. Dropping it ends the handshake.
#[derive(Debug)]
pub(super) struct HandshakePermit {
    handshakes: Arc<Handshakes>,
    source: IpAddr,
    turn: Option<oneshot::Receiver<()>>,
}

impl Handshakes {
    /// Creates a scheduler for the process's limit of file descriptors: one source uses at most a
    /// quarter of them.
    pub(super) fn of_limit() -> Self {
        let unfinished_max = descriptors::share(4, 8, UNFINISHED_PER_SOURCE_MAX);
        Self { unfinished_max, ..Self::default() }
    }

    /// Registers a handshake. Returns `None` if its source has too many unfinished ones.
    pub(super) fn enter(self: &Arc<Self>, address: IpAddr) -> Option<HandshakePermit> {
        let source = source(address);
        let (sender, turn) = oneshot::channel();
        let mut table = self.table();
        let entry = table.sources.entry(source).or_default();
        if entry.unfinished >= self.unfinished_max {
            return None;
        }
        entry.unfinished += 1;
        entry.queue.push_back(sender);
        if entry.queue.len() == 1 {
            table.waiting.push_back(source);
        }
        table.give_turns();
        drop(table);
        Some(HandshakePermit { handshakes: Arc::clone(self), source, turn: Some(turn) })
    }

    fn table(&self) -> MutexGuard<'_, HandshakeTable> {
        lock(&self.table)
    }
}

impl HandshakePermit {
    /// Waits until the handshake may proceed.
    pub(super) async fn turn(&mut self) {
        if let Some(turn) = &mut self.turn {
            // The sender is dropped only with the table, and this permit owns a reference to the
            // table.
            let _ = turn.await;
        }
    }
}

impl Drop for HandshakePermit {
    fn drop(&mut self) {
        let mut table = self.handshakes.table();
        // Under the lock, the handshake cannot be permitted to proceed after this check.
        let had_turn = self.turn.as_mut().is_some_and(|turn| {
            let given = turn.try_recv().is_ok() || turn.is_terminated();
            turn.close();
            given
        });
        table.leave(self.source, had_turn);
    }
}

impl HandshakeTable {
    fn leave(&mut self, source: IpAddr, had_turn: bool) {
        if let Some(entry) = self.sources.get_mut(&source) {
            entry.unfinished -= 1;
            if had_turn {
                entry.turns -= 1;
                self.turns -= 1;
            } else {
                entry.queue.retain(|waiting| !waiting.is_closed());
                if entry.queue.is_empty() {
                    self.waiting.retain(|waiting| *waiting != source);
                }
            }
            if entry.unfinished == 0 {
                self.sources.remove(&source);
            }
        }
        self.give_turns();
    }

    /// Permits waiting handshakes to proceed while there is room, alternating between sources.
    fn give_turns(&mut self) {
        let mut passed_over = 0;
        while self.turns < TURNS_MAX
            && passed_over < self.waiting.len()
            && let Some(source) = self.waiting.pop_front()
        {
            let Some(entry) = self.sources.get_mut(&source) else { continue };
            if entry.turns < TURNS_PER_SOURCE_MAX {
                while let Some(waiting) = entry.queue.pop_front() {
                    if waiting.send(()).is_ok() {
                        entry.turns += 1;
                        self.turns += 1;
                        passed_over = 0;
                        break;
                    }
                }
            } else {
                passed_over += 1;
            }
            if !entry.queue.is_empty() {
                self.waiting.push_back(source);
            }
        }
    }
}

/// Returns the source of an address: an IPv4 address, or the /64 network of an IPv6 address,
/// because an IPv6 host can use any address in its network.
fn source(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into()
        }
        v4 => v4,
    }
}

/// The maximum number of reasons that are reported separately. There are hardly more, but a peer
/// may influence their text.
const REASONS_MAX: usize = 8;

/// The maximum length of a reason in a report, in characters.
const REASON_LENGTH_MAX: usize = 300;

/// Failures of unauthenticated peers since the last report: handshakes or calls. They are reported
/// together, because otherwise such peers could fill the log.
#[derive(Debug, Default)]
pub(super) struct Failures {
    since: Mutex<BTreeMap<String, Failed>>,
}

/// The failures with one reason.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Failed {
    count: u64,
    /// The peer of the first failure.
    peer: SocketAddr,
}

impl Failures {
    /// Records a failure.
    pub(super) fn note(&self, peer: SocketAddr, reason: &str) {
        let reason = match reason.char_indices().nth(REASON_LENGTH_MAX) {
            Some((end, _)) => &reason[..end],
            None => reason,
        };
        let mut since = self.since();
        let known = since.contains_key(reason) || since.len() < REASONS_MAX;
        let reason = if known { reason } else { "other reasons" };
        since.entry(reason.to_owned()).or_insert(Failed { count: 0, peer }).count += 1;
    }

    /// Logs the failures since the last call, if any, in one line that begins with `what`.
    pub(super) fn log_new(&self, code: &Code, what: &str) {
        if let Some((count, text)) = self.take() {
            warn!(code = code.id, count, "{what}: {text}");
        }
    }

    fn take(&self) -> Option<(u64, String)> {
        let failed = std::mem::take(&mut *self.since());
        let count = failed.values().map(|one| one.count).sum();
        let mut parts: Vec<_> = failed.iter().collect();
        parts.sort_by_key(|(_, one)| std::cmp::Reverse(one.count));
        let part = |(reason, one): &(&String, &Failed)| match one.count {
            1 => format!("{reason} ({})", one.peer),
            count => format!("{reason} ({count} times, first {})", one.peer),
        };
        let text = parts.iter().map(part).collect::<Vec<_>>().join("; ");
        (count > 0).then_some((count, text))
    }

    fn since(&self) -> MutexGuard<'_, BTreeMap<String, Failed>> {
        lock(&self.since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_reported_in_one_line() {
        let failures = Failures::default();
        let peer = |port| SocketAddr::from(([192, 0, 2, 1], port));
        assert_eq!(failures.take(), None);
        (1..=1000).for_each(|port| failures.note(peer(port), "bad certificate"));
        failures.note(peer(7), "it took too long");
        let text =
            "bad certificate (1000 times, first 192.0.2.1:1); it took too long (192.0.2.1:7)";
        assert_eq!(failures.take(), Some((1001, text.to_owned())));
        assert_eq!(failures.take(), None, "the failures were reported");
        (0..100).for_each(|number| failures.note(peer(1), &format!("reason {number}")));
        let (count, text) = failures.take().expect("they failed");
        assert_eq!((count, text.matches("; ").count()), (100, REASONS_MAX));
        assert!(text.starts_with("other reasons (92 times"), "{text}");
    }

    fn address(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    fn enter(handshakes: &Arc<Handshakes>, from: u8, count: usize) -> Vec<HandshakePermit> {
        (0..count).map(|_| handshakes.enter(address(from)).expect("room")).collect()
    }

    /// Returns how many of these handshakes may proceed.
    fn turns(places: &mut [HandshakePermit]) -> usize {
        let has_turn = |place: &mut HandshakePermit| {
            let turn = place.turn.as_mut().expect("not taken");
            turn.is_terminated() || turn.try_recv().is_ok()
        };
        places.iter_mut().filter_map(|place| has_turn(place).then_some(())).count()
    }

    #[test]
    fn one_source_never_uses_all_handshakes() {
        let handshakes = Arc::new(Handshakes::default());
        let mut attacker = enter(&handshakes, 1, 1000);
        let mut proxy = enter(&handshakes, 2, 1);
        assert_eq!(turns(&mut attacker), TURNS_PER_SOURCE_MAX);
        assert_eq!(turns(&mut proxy), 1);
    }

    #[test]
    fn waiting_sources_take_turns() {
        let handshakes = Arc::new(Handshakes::default());
        let first = enter(&handshakes, 1, TURNS_PER_SOURCE_MAX);
        let second = enter(&handshakes, 2, TURNS_PER_SOURCE_MAX);
        let mut third = enter(&handshakes, 3, 100);
        let mut fourth = enter(&handshakes, 4, 1);
        assert_eq!((turns(&mut third), turns(&mut fourth)), (0, 0));
        drop(first.into_iter().take(2).collect::<Vec<_>>());
        drop(second);
        assert!(turns(&mut third) > 0, "the longest that waits");
        assert_eq!(
            turns(&mut fourth),
            1,
            "it waits for at most one handshake of each other source"
        );
    }

    #[test]
    fn cancelled_handshake_leaves_no_state() {
        let handshakes = Arc::new(Handshakes::default());
        let mut holding = enter(&handshakes, 1, TURNS_PER_SOURCE_MAX);
        drop(enter(&handshakes, 1, 500));
        let mut last = enter(&handshakes, 1, 1);
        assert_eq!(turns(&mut last), 0);
        holding.pop();
        assert_eq!(turns(&mut last), 1);
        drop((holding, last));
        let table = handshakes.table();
        assert_eq!((table.turns, table.sources.len(), table.waiting.len()), (0, 0, 0));
    }

    #[test]
    fn source_with_too_many_unfinished_handshakes_is_refused() {
        let handshakes = Arc::new(Handshakes::default());
        let mut places = enter(&handshakes, 1, UNFINISHED_PER_SOURCE_MAX);
        assert!(handshakes.enter(address(1)).is_none());
        assert!(handshakes.enter(address(2)).is_some());
        places.pop();
        assert!(handshakes.enter(address(1)).is_some());
    }

    #[test]
    fn all_addresses_of_a_host_are_one_source() {
        let parse = |text: &str| source(text.parse().expect("an address"));
        assert_eq!(parse("2001:db8::1"), parse("2001:db8::ffff:1"));
        assert_ne!(parse("2001:db8::1"), parse("2001:db8:0:1::1"));
        assert_eq!(parse("::ffff:192.0.2.1"), parse("192.0.2.1"));
    }
}
