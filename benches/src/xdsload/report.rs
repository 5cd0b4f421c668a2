//! The JSON object that is printed at the end.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::changes::{Seen, Stamp};
use crate::load::{Counts, Findings, InSync};
use crate::wire::{ByKind, Kind};

/// The results of one stage of the run.
#[derive(Debug, Clone, Default)]
pub(crate) struct Told {
    /// The start of the stage.
    pub(crate) began_ns: u64,
    /// The end of the stage.
    pub(crate) ended_ns: u64,
    /// CPU time of the load client in the stage.
    pub(crate) cpu_seconds: f64,
    /// The time when each proxy was last in sync, in no order.
    pub(crate) in_sync: Vec<InSync>,
}

impl Told {
    /// Joins consecutive windows into one.
    pub(crate) fn joined(windows: &[Self]) -> Option<Self> {
        let (first, last) = (windows.first()?, windows.last()?);
        let cpu_seconds = windows.iter().map(|told| told.cpu_seconds).sum();
        let (began_ns, ended_ns) = (first.began_ns, last.ended_ns);
        Some(Self { began_ns, ended_ns, cpu_seconds, in_sync: Vec::new() })
    }
}

/// Returns the report of a stage in which proxies connect.
pub(crate) fn connecting(told: &Told, counts: &Counts) -> Value {
    let after = told.in_sync.iter().map(|it| it.at_ns.saturating_sub(told.began_ns));
    let mut report = json!({"inSync": told.in_sync.len(), "syncMs": spread(after.collect())});
    extend(&mut report, stage(told, counts));
    report
}

/// Returns the report of any stage.
pub(crate) fn stage(told: &Told, counts: &Counts) -> Value {
    json!({
        "seconds": round(told.ended_ns.saturating_sub(told.began_ns) as f64 / 1e9),
        "cpuSeconds": round(told.cpu_seconds),
        "connections": counts.connections,
        "bytes": by_kind(&counts.bytes),
        "messages": by_kind(&counts.messages),
        "resources": by_kind(&counts.resources),
        "wireBytes": {"received": counts.received, "sent": counts.sent},
        "acks": counts.acks,
        "nacks": counts.nacks,
        "errors": counts.errors,
    })
}

/// The time before the end in which changes are not counted as unseen, because they may be in
/// transit, in nanoseconds.
const ON_ITS_WAY_NS: u64 = 1_000_000_000;

/// Returns the latencies of the changes made from `since_ns` to `until_ns`: of each change, and of
/// all together.
pub(crate) fn changes(
    stamps: &[Stamp],
    (since_ns, until_ns): (u64, u64),
    threads: &[Findings],
) -> Value {
    let mut askers: BTreeMap<String, u32> = BTreeMap::new();
    for (hostname, proxies) in threads.iter().flat_map(|it| it.sightings.askers()) {
        *askers.entry(hostname).or_default() += proxies;
    }
    let (mut each, mut all) = (Vec::new(), Vec::new());
    let mut unseen = 0;
    for (index, stamp) in stamps.iter().enumerate() {
        if !(since_ns..until_ns).contains(&stamp.at_ns) {
            continue;
        }
        let sightings = threads.iter().filter_map(|it| it.sightings.seen().get(&index)).flatten();
        let sightings: Vec<u64> = sightings.copied().collect();
        // Subscriptions to upstream clusters and listeners are wildcards.
        let asked = askers.get(&stamp.hostname).filter(|_| stamp.seen == Seen::Assignment);
        let asked = asked.copied().unwrap_or_default();
        let in_time = stamp.at_ns.saturating_add(ON_ITS_WAY_NS) < until_ns;
        unseen += usize::from(sightings.is_empty() && asked > 0 && in_time);
        all.extend_from_slice(&sightings);
        let mut report = json!({
            "address": stamp.address,
            "hostname": stamp.hostname,
            "asked": asked,
            "proxies": sightings.len(),
        });
        extend(&mut report, spread(sightings));
        each.push(report);
    }
    json!({"count": each.len(), "unseen": unseen, "latencyMs": spread(all), "each": each})
}

/// Returns the minimum, median, 99th percentile and maximum, in milliseconds.
fn spread(mut nanoseconds: Vec<u64>) -> Value {
    nanoseconds.sort_unstable();
    let at = |share: f64| {
        let last = nanoseconds.len().checked_sub(1)?;
        // The smallest value that is not below this fraction of all values.
        let place = (share * nanoseconds.len() as f64).ceil() as usize;
        nanoseconds.get(place.saturating_sub(1).min(last)).map(|ns| round(*ns as f64 / 1e6))
    };
    json!({"first": at(0.0), "p50": at(0.5), "p99": at(0.99), "last": at(1.0)})
}

fn by_kind(counts: &ByKind<u64>) -> Value {
    Kind::ALL.into_iter().map(|kind| (kind.short(), counts[kind.index()])).collect()
}

fn extend(report: &mut Value, more: Value) {
    if let (Value::Object(report), Value::Object(more)) = (report, more) {
        report.extend(more);
    }
}

fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// Returns the sum of the counters of all threads.
pub(crate) fn sum<'a>(counts: impl Iterator<Item = &'a Counts>) -> Counts {
    let mut sum = Counts::default();
    for one in counts {
        for kind in Kind::ALL.map(Kind::index) {
            sum.bytes[kind] += one.bytes[kind];
            sum.messages[kind] += one.messages[kind];
            sum.resources[kind] += one.resources[kind];
        }
        sum.acks += one.acks;
        sum.nacks += one.nacks;
        sum.connections += one.connections;
        sum.received += one.received;
        sum.sent += one.sent;
        for (error, times) in &one.errors {
            *sum.errors.entry(error.clone()).or_default() += times;
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_measured_values() {
        let of_hundred = spread((1..=100).rev().map(|ms| ms * 1_000_000).collect());
        assert_eq!(of_hundred, json!({"first": 1.0, "p50": 50.0, "p99": 99.0, "last": 100.0}));
        assert_eq!(spread(vec![]), json!({"first": null, "p50": null, "p99": null, "last": null}));
    }
}
