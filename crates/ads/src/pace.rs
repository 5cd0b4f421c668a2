//! The rate at which one stream is sent changes. Pure: time is passed in.
//!
//! A change that is sent to many streams costs the time for one stream, multiplied by their number.
//! After each change, the stream pauses for a multiple of that cost. Thus deliveries leave time for
//! other work, and changes that arrive during the pause are sent together. If few streams are sent
//! little, the pause is almost zero.

use std::time::Duration;

use tokio::time::Instant;

/// The ratio of the pause to the measured cost. Generating responses is about a third of the cost
/// of a delivery; TLS, the system and the client's answer are the rest. With this ratio, deliveries
/// use at most about four fifths of the time.
const PAUSE_PER_COST: u32 = 4;
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// The time at which one stream may be sent the next change.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    next: Instant,
}

impl Pace {
    /// Creates the state of a stream that was sent nothing yet.
    pub(super) fn new(now: Instant) -> Self {
        Self { next: now }
    }

    /// Returns the time at which the next change may be sent.
    pub(super) fn next(self) -> Instant {
        self.next
    }

    /// Returns how long the next change has to wait.
    pub(super) fn wait(self, now: Instant) -> Duration {
        self.next.saturating_duration_since(now)
    }

    /// Records that a change was sent: its cost on one thread, the number of streams that are sent
    /// the change, and the number of threads that send it.
    pub(super) fn sent(&mut self, now: Instant, cost: Duration, streams: usize, threads: usize) {
        let streams = u32::try_from(streams.max(1)).unwrap_or(u32::MAX);
        let threads = u32::try_from(threads.max(1)).unwrap_or(u32::MAX);
        let all = cost.saturating_mul(streams).saturating_mul(PAUSE_PER_COST) / threads;
        self.next = now + all.min(PAUSE_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREADS: usize = 2;

    #[test]
    fn stream_pauses_in_proportion_to_the_total_cost_up_to_the_limit() {
        let now = Instant::now();
        let us = Duration::from_micros;
        for (cost, streams, threads, rest) in [
            (us(10), 1, 2, us(20)),
            (us(10), 0, 0, us(40)),
            (us(10), 1000, 2, us(20_000)),
            (us(10), 1000, 16, us(2500)),
            (us(10), 5000, 2, PAUSE_MAX),
            (us(3000), 20, 2, PAUSE_MAX),
            (Duration::MAX, usize::MAX, 1, PAUSE_MAX),
        ] {
            let mut pace = Pace::new(now);
            assert_eq!(pace.wait(now), Duration::ZERO);
            pace.sent(now, cost, streams, threads);
            assert_eq!(pace.wait(now), rest, "{cost:?} of {streams} on {threads}");
            assert_eq!(pace.wait(now + rest), Duration::ZERO, "and so after quiet");
        }
    }

    /// The result of a simulated second.
    struct Second {
        /// The fraction of the threads' time that was used.
        busy: f64,
        /// The average number of changes that a stream was sent.
        told: f64,
        /// The longest time from a change to its delivery to a stream.
        latency_max: Duration,
    }

    /// Simulates one second in which `streams` are all sent `changes`. Sending to one stream
    /// occupies one of the [`THREADS`] threads for `cost`. A third of this time is for generating
    /// the responses. The stream that has waited longest is served next.
    fn second(streams: usize, changes: u32, cost: Duration) -> Second {
        let (begun, every) = (Instant::now(), Duration::from_secs(1) / changes);
        let end = begun + Duration::from_secs(1);
        let mut free = [begun; THREADS];
        // The time of the next change for each stream. Changes that arrived before the stream's
        // last response are part of that response.
        let mut next = vec![(Pace::new(begun), begun + every); streams];
        let (mut deliveries, mut latency_max) = (0_u32, Duration::ZERO);
        loop {
            let thread = free.iter_mut().min().expect("some");
            let ready = |(pace, change): &(Pace, Instant)| *change + pace.wait(*change);
            let (pace, change) = next.iter_mut().min_by_key(|one| ready(one)).expect("some");
            let start = ready(&(*pace, *change)).max(*thread);
            if start > end {
                break;
            }
            *thread = start + cost;
            pace.sent(*thread, cost / 3, streams, THREADS);
            latency_max = latency_max.max(*thread - *change);
            let passed = (start - begun).as_nanos() / every.as_nanos();
            *change = begun + every * (u32::try_from(passed).expect("few") + 1);
            deliveries += 1;
        }
        let told = f64::from(deliveries) / streams as f64;
        let busy = cost.as_secs_f64() * f64::from(deliveries) / THREADS as f64;
        Second { busy, told, latency_max }
    }

    #[test]
    fn idle_server_does_not_delay_changes() {
        let cost = Duration::from_micros(50);
        for changes in [50, 500, 5000] {
            let Second { told, latency_max, .. } = second(1, changes, cost);
            assert!(told >= f64::from(changes) - 1.0, "{told}");
            assert_eq!(latency_max, cost, "{changes} changes");
        }
    }

    #[test]
    fn many_changes_are_combined_and_leave_time_for_other_work() {
        let cost = Duration::from_micros(200);
        // Each change costs 20 ms of both threads for 200 streams, so 10 changes per second need
        // not be combined.
        let few = second(200, 10, cost);
        assert!(few.told >= 9.0 && few.latency_max <= Duration::from_millis(21), "{}", few.told);
        let many = second(200, 1000, cost);
        assert!((0.6..0.85).contains(&many.busy), "{}", many.busy);
        assert!(many.latency_max < Duration::from_millis(75), "{:?}", many.latency_max);
    }
}
