//! How often one stream is sent changes. Pure: time is passed in.
//!
//! A change that many streams are sent costs what each of them takes, times all. After each the stream rests for a
//! multiple of that, so that deliveries leave most of the time to others, and what comes meanwhile is sent together.
//! Where few streams are sent little, that is next to nothing.

use std::time::Duration;

use tokio::time::Instant;

/// Making responses takes about a third of what a delivery costs; the rest is TLS, the system's, and the answer.
/// So this leaves deliveries some four fifths of the time at most.
const PAUSE_PER_COST: u32 = 4;
/// The longest rest.
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// The clock of one stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    next: Instant,
}

impl Pace {
    /// Of a stream that has been sent nothing.
    pub(super) fn new(now: Instant) -> Self {
        Self { next: now }
    }

    /// How long the next change waits.
    pub(super) fn wait(self, now: Instant) -> Duration {
        self.next.saturating_duration_since(now)
    }

    /// Notes that a change was sent: what it took of one thread, how many streams are sent this one as well, and how
    /// many threads do that.
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
    fn a_stream_rests_for_its_part_of_what_all_take_and_no_longer_than_the_limit() {
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

    /// What came of a simulated second.
    struct Second {
        /// Which part of the threads' time it took.
        busy: f64,
        /// How often each stream was sent changes, on average.
        told: f64,
        /// From a change to the last stream that was sent it.
        latency_max: Duration,
    }

    /// `streams` that are all sent each of `changes` a second; sending to one takes `cost` of one of [`THREADS`], of
    /// which making the responses is a third. Who waits for longest is next.
    fn second(streams: usize, changes: u32, cost: Duration) -> Second {
        let (begun, every) = (Instant::now(), Duration::from_secs(1) / changes);
        let end = begun + Duration::from_secs(1);
        let mut free = [begun; THREADS];
        // The next change each is to be sent: all that came before its last response has been sent.
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
    fn an_idle_server_waits_for_nothing() {
        let cost = Duration::from_micros(50);
        for changes in [50, 500, 5000] {
            let Second { told, latency_max, .. } = second(1, changes, cost);
            assert!(told >= f64::from(changes) - 1.0, "{told}");
            assert_eq!(latency_max, cost, "{changes} changes");
        }
    }

    #[test]
    fn a_storm_is_told_together_and_leaves_time_for_others() {
        let cost = Duration::from_micros(200);
        // 200 take 20 ms of both threads for each change: of ten there is no need to join any.
        let few = second(200, 10, cost);
        assert!(few.told >= 9.0 && few.latency_max <= Duration::from_millis(21), "{}", few.told);
        let many = second(200, 1000, cost);
        assert!((0.6..0.85).contains(&many.busy), "{}", many.busy);
        assert!(many.latency_max < Duration::from_millis(75), "{:?}", many.latency_max);
    }
}
