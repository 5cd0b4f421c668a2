//! Stamps, by which a receiver recognizes a change and measures its delay. Each change contains a
//! unique address, and the time at which it was written is recorded.

use std::collections::VecDeque;
use std::net::Ipv4Addr;

use serde::Serialize;

/// The number of stamps that are stored for later requests: three hours at 100 changes per second,
/// in 16 MB.
const KEPT: usize = 1 << 20;
/// The range of stamped addresses, 100.64.0.0/10, which the address plan does not use.
const BASE: u32 = 0x6440_0000;
/// The number of changes after which addresses repeat.
pub(crate) const ADDRESSES: u64 = 1 << 22;

/// One stamped change: from `at_ns` on, `address` is an endpoint of the service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Stamp {
    /// The number of the stamp in the world, from 1.
    pub seq: u64,
    /// An address that is unique in the world: 100.64.0.0 + `seq` (mod 2^22).
    pub address: Ipv4Addr,
    /// The changed cluster.
    pub cluster: String,
    /// The service, as `NAMESPACE/NAME`.
    pub service: String,
    /// The hostname of the service in the mesh.
    pub hostname: String,
    /// When it was written, on the machine's monotonic clock (`CLOCK_MONOTONIC`), in nanoseconds.
    pub at_ns: u64,
    /// The kind of the change, which defines where a proxy sees it.
    pub kind: StampKind,
}

/// The kind of a stamped change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum StampKind {
    /// An endpoint with the address was added.
    Endpoint,
    /// A pod of a headless service with the address was added.
    HeadlessPod,
    /// A service was added. The address is its ClusterIP, unless it is headless.
    ServiceAdded,
    /// A service was removed. The address is not used.
    ServiceRemoved,
}

/// Returns the address for the number of a stamp.
pub(crate) fn address(seq: u64) -> Ipv4Addr {
    let number = u32::try_from(seq % ADDRESSES).expect("less than 2^22");
    Ipv4Addr::from(BASE | number)
}

/// Returns the current time on the clock of all stamps.
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let now = i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec);
    u64::try_from(now).unwrap_or_default()
}

/// A stamp without names: indexes into the world's lists of clusters and services.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Noted {
    pub(crate) cluster: u32,
    pub(crate) service: u32,
    pub(crate) at_ns: u64,
    pub(crate) kind: StampKind,
}

/// The last stamps of a world, in the order of their numbers.
#[derive(Debug)]
pub(crate) struct StampLog {
    /// The number of the first stored stamp.
    first: u64,
    kept: VecDeque<Noted>,
}

impl StampLog {
    pub(crate) fn new() -> StampLog {
        StampLog { first: 1, kept: VecDeque::new() }
    }

    /// Returns the number of the next stamp.
    pub(crate) fn next(&self) -> u64 {
        self.first + self.kept.len() as u64
    }

    pub(crate) fn push(&mut self, stamp: Noted) {
        if self.kept.len() == KEPT {
            self.kept.pop_front();
            self.first += 1;
        }
        self.kept.push_back(stamp);
    }

    /// Returns at most `limit` stamps after number `since`, oldest first, with their numbers.
    pub(crate) fn after(&self, since: u64, limit: usize) -> Vec<(u64, Noted)> {
        let known = since.saturating_add(1).saturating_sub(self.first);
        let known = usize::try_from(known).map_or(self.kept.len(), |n| n.min(self.kept.len()));
        let start = self.first + known as u64;
        (start..).zip(self.kept.range(known..).copied()).take(limit).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_stamp_is_missed_after_the_last_number() {
        let mut log = StampLog::new();
        for at_ns in 0..5 {
            log.push(Noted { cluster: 0, service: 0, at_ns, kind: StampKind::Endpoint });
        }
        let numbers = |since, limit| {
            log.after(since, limit).into_iter().map(|(seq, _)| seq).collect::<Vec<_>>()
        };
        assert_eq!(numbers(0, 3), [1, 2, 3]);
        assert_eq!(numbers(3, 3), [4, 5]);
        assert_eq!(numbers(5, 3), [0; 0]);
        assert_eq!(numbers(u64::MAX, 3), [0; 0]);
    }

    #[test]
    fn oldest_stamps_are_removed_and_numbers_continue() {
        let mut log = StampLog::new();
        for _ in 0..=KEPT {
            log.push(Noted { cluster: 0, service: 0, at_ns: 0, kind: StampKind::Endpoint });
        }
        assert_eq!(log.after(0, 1).first().map(|(seq, _)| *seq), Some(2));
        assert_eq!(log.next(), KEPT as u64 + 2);
    }

    #[test]
    fn addresses_follow_the_numbers() {
        assert_eq!(address(1), Ipv4Addr::new(100, 64, 0, 1));
        assert_eq!(address(300), Ipv4Addr::new(100, 64, 1, 44));
        assert_eq!(address(ADDRESSES + 1), address(1));
    }
}
