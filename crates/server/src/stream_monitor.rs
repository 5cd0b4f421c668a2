//! Detects that proxies lose their connections: failing handshakes, and a fall of the number of streams.
//!
//! Stores the samples of the last five minutes only. The samples do not distinguish proxies, so a deleted workload and a
//! broken connection are equal. Therefore a fall is reported only if it affects several streams, and for five minutes. A
//! fall to zero is reported until a proxy connects, for at most an hour.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use strait_base::codes::{self, Code};
use strait_base::lock::lock;
use tokio_util::sync::CancellationToken;

/// Time within which a fall and failures are detected.
const WINDOW: Duration = Duration::from_secs(300);
/// Maximum time for which a fall to zero is reported.
const EMPTY_MAX: Duration = Duration::from_secs(3600);
/// Interval of the samples.
const PERIOD: Duration = Duration::from_secs(5);
/// Minimum number of streams before a fall that is reported: a fall to zero, and a fall by half.
const ALL_MIN: usize = 2;
const HALF_MIN: usize = 6;
/// Minimum number of failed handshakes that are reported.
const FAILED_MIN: u64 = 5;

/// Counters at one time. They only increase, except for `streams`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StreamSample {
    /// Open streams.
    pub(super) streams: usize,
    /// Accepted TCP connections.
    pub(super) connections: u64,
    /// Failed handshakes.
    pub(super) failed: u64,
}

/// A problem of the proxies' connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionProblem {
    /// Its code.
    pub code: &'static Code,
    /// The numbers.
    pub text: String,
}

/// The recent samples.
#[derive(Debug, Default)]
pub struct StreamMonitor(Mutex<StreamSamples>);

#[derive(Debug, Default)]
struct StreamSamples {
    /// The samples of the last [`WINDOW`].
    recent: VecDeque<(Instant, StreamSample)>,
    /// The time of a fall to zero, and the number of streams before it, while there is no stream.
    emptied: Option<(Instant, usize)>,
}

impl StreamMonitor {
    /// Adds a sample and drops old ones.
    fn add(&self, now: Instant, sample: StreamSample) {
        let mut samples = lock(&self.0);
        samples.recent.push_back((now, sample));
        while samples.recent.front().is_some_and(|(at, _)| now.duration_since(*at) > WINDOW) {
            samples.recent.pop_front();
        }
        samples.emptied = match samples.emptied {
            _ if sample.streams > 0 => None,
            None if samples.most() >= ALL_MIN => Some((now, samples.most())),
            known => known.filter(|(since, _)| now.duration_since(*since) < EMPTY_MAX),
        };
    }

    /// Returns the current problems.
    pub fn problems(&self) -> Vec<ConnectionProblem> {
        let samples = lock(&self.0);
        let (Some((_, first)), Some((at, last))) = (samples.recent.front(), samples.recent.back())
        else {
            return Vec::new();
        };
        let (most, now) = (samples.most(), last.streams);
        let fall = match samples.emptied {
            Some((since, before)) => Some(format!(
                "all {before} streams of this replica ended {} minutes ago, and no proxy has connected to it since",
                at.duration_since(since).as_secs() / 60
            )),
            None if now * 2 <= most && most >= HALF_MIN => {
                Some(format!("the number of streams fell from {most} to {now} within five minutes"))
            }
            None => None,
        };
        let fall = fall.map(|text| ConnectionProblem { code: &codes::STREAMS_FELL, text });
        let mut found: Vec<ConnectionProblem> = fall.into_iter().collect();
        let failed = last.failed.saturating_sub(first.failed);
        let connections = last.connections.saturating_sub(first.connections);
        // Scanners and load balancers cause a few failures between the connections of proxies.
        if failed >= FAILED_MIN && failed * 2 >= connections {
            let text = format!(
                "{failed} of {connections} connections failed during the TLS handshake within five minutes"
            );
            found.push(ConnectionProblem { code: &codes::HANDSHAKES_FAIL, text });
        }
        found
    }
}

impl StreamSamples {
    /// Returns the maximum number of streams.
    fn most(&self) -> usize {
        self.recent.iter().map(|(_, sample)| sample.streams).max().unwrap_or_default()
    }
}

/// Takes samples until the process drains, because streams that end during a shutdown are not a fall.
pub(super) async fn run(
    monitor: Arc<StreamMonitor>,
    sample: impl Fn() -> StreamSample,
    drain: CancellationToken,
) {
    loop {
        monitor.add(Instant::now(), sample());
        tokio::select! {
            () = tokio::time::sleep(PERIOD) => {}
            () = drain.cancelled() => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the codes after samples of streams, connections and failed handshakes, one each minute.
    fn codes(samples: &[(usize, u64, u64)]) -> Vec<&'static str> {
        let (monitor, start) = (StreamMonitor::default(), Instant::now());
        for (minute, (streams, connections, failed)) in (0..).zip(samples) {
            let sample =
                StreamSample { streams: *streams, connections: *connections, failed: *failed };
            monitor.add(start + Duration::from_secs(60) * minute, sample);
        }
        monitor.problems().iter().map(|problem| problem.code.id).collect()
    }

    #[test]
    fn fall_to_zero_or_by_half_within_five_minutes_is_a_problem() {
        let of = |streams: &[usize]| {
            codes(&streams.iter().map(|count| (*count, 0, 0)).collect::<Vec<_>>())
        };
        for (streams, is_fall) in [
            (vec![], false),
            (vec![0], false),
            (vec![0, 5, 9], false),
            (vec![10, 10, 6], false),
            (vec![10, 10, 5], true),
            (vec![10, 8, 5, 6], false),
            (vec![4, 2], false),
            (vec![2, 0], true),
            (vec![1, 0], false),
            (vec![10, 5, 5, 5, 5, 5], true),
            (vec![10, 5, 5, 5, 5, 5, 5], false),
            ([vec![10], vec![0; 60]].concat(), true),
            ([vec![10], vec![0; 60], vec![1]].concat(), false),
            ([vec![10], vec![0; 61]].concat(), false),
            ([vec![10], vec![0; 90]].concat(), false),
        ] {
            let expected: &[&str] = if is_fall { &["STR0517"] } else { &[] };
            assert_eq!(of(&streams), expected, "{streams:?}");
        }
    }

    #[test]
    fn failing_handshakes_are_a_problem_if_most_connections_fail() {
        assert_eq!(codes(&[(0, 100, 50), (0, 104, 54)]), [""; 0]);
        assert_eq!(codes(&[(0, 100, 50), (0, 105, 55)]), ["STR0518"]);
        assert_eq!(codes(&[(0, 100, 50), (0, 200, 90)]), [""; 0]);
        assert_eq!(codes(&[(0, 0, 0), (0, 9, 9), (0, 9, 9), (0, 9, 9)]), ["STR0518"]);
    }

    #[test]
    fn samples_are_bounded() {
        let (monitor, start) = (StreamMonitor::default(), Instant::now());
        let sample = StreamSample { streams: 1, connections: 0, failed: 0 };
        (0..10_000).for_each(|at| monitor.add(start + PERIOD * at, sample));
        assert_eq!(monitor.0.lock().expect("no panic").recent.len(), 61);
    }

    #[tokio::test]
    async fn planned_shutdown_is_not_a_fall() {
        let (monitor, drain) = (Arc::new(StreamMonitor::default()), CancellationToken::new());
        let sample = || StreamSample { streams: 10, connections: 0, failed: 0 };
        drain.cancel();
        run(Arc::clone(&monitor), sample, drain).await;
        assert_eq!(monitor.0.lock().expect("no panic").recent.len(), 1, "no further sample");
    }
}
