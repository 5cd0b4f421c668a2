//! How a receiver knows a change when it sees one, and how long it took to arrive: each change carries
//! an address that nothing else has, and the moment it was written is kept.

use std::collections::VecDeque;
use std::net::Ipv4Addr;

use serde::Serialize;

/// Stamps kept for those who ask later: three hours at a hundred changes a second, in 16 MB.
const KEPT: usize = 1 << 20;
/// The addresses of stamps, 100.64.0.0/10: none of the plan's are in it.
const BASE: u32 = 0x6440_0000;
/// After so many changes the addresses come again.
pub(crate) const ADDRESSES: u64 = 1 << 22;

/// One stamped change: from `at_ns` on, `address` is an endpoint of the service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Stamp {
    /// Counts the stamps of the world, from 1.
    pub seq: u64,
    /// An address that occurs nowhere else in the world: 100.64.0.0 + `seq` (mod 2^22).
    pub address: Ipv4Addr,
    /// The cluster changed.
    pub cluster: String,
    /// The service, as `NAMESPACE/NAME`.
    pub service: String,
    /// The service, as clients in the mesh call it.
    pub hostname: String,
    /// When it was written, on the machine's monotonic clock (`CLOCK_MONOTONIC`), in nanoseconds.
    pub at_ns: u64,
    /// What changed: where a proxy will see it.
    pub kind: StampKind,
}

/// What a stamped change is a change of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum StampKind {
    /// An endpoint with the address came.
    Endpoint,
    /// A pod of a headless service with the address came.
    HeadlessPod,
    /// A service came, with the address as its ClusterIP unless it is headless.
    ServiceAdded,
    /// A service went. Its address is nowhere.
    ServiceRemoved,
}

/// The address that belongs to a number.
pub(crate) fn address(seq: u64) -> Ipv4Addr {
    let number = u32::try_from(seq % ADDRESSES).expect("less than 2^22");
    Ipv4Addr::from(BASE | number)
}

/// Now, on the clock of all stamps.
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let now = i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec);
    u64::try_from(now).unwrap_or_default()
}

/// A stamp without its names: places in the world's lists of clusters and of services.
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
    /// The number of the first that is kept.
    first: u64,
    kept: VecDeque<Noted>,
}

impl StampLog {
    pub(crate) fn new() -> StampLog {
        StampLog { first: 1, kept: VecDeque::new() }
    }

    /// The number of the next one.
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

    /// Up to `limit` stamps after number `since`, oldest first, with their numbers.
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
    fn whoever_asks_with_the_last_number_misses_none() {
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
    fn the_oldest_go_and_numbers_stay() {
        let mut log = StampLog::new();
        for _ in 0..=KEPT {
            log.push(Noted { cluster: 0, service: 0, at_ns: 0, kind: StampKind::Endpoint });
        }
        assert_eq!(log.after(0, 1).first().map(|(seq, _)| *seq), Some(2));
        assert_eq!(log.next(), KEPT as u64 + 2);
    }

    #[test]
    fn addresses_count_with_the_numbers() {
        assert_eq!(address(1), Ipv4Addr::new(100, 64, 0, 1));
        assert_eq!(address(300), Ipv4Addr::new(100, 64, 1, 44));
        assert_eq!(address(ADDRESSES + 1), address(1));
    }
}
