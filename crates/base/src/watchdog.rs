//! Liveness of the loops that everything else depends on.
//!
//! A loop reports when it starts work and when it waits for more. A loop is stuck if a restart
//! would help: it waits and has not run for a minute, or it works on one thing without using CPU
//! time. A loop that uses CPU time is busy. A restart would read the same input again, so a busy
//! loop fails only after [`NO_PROGRESS_AFTER`] with one piece of work. Owns the state of the loops,
//! not their work.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, Interval, MissedTickBehavior};
use tracing::warn;

use crate::cpu::ThreadCpu;
use crate::lock;

/// Maximum time that a loop may be silent, or work without using CPU time.
pub const STUCK_AFTER: Duration = Duration::from_secs(60);
/// Maximum time that a loop may use CPU time for one piece of work.
pub const NO_PROGRESS_AFTER: Duration = Duration::from_secs(600);
/// Interval at which an idle loop reports. Also the time after which work is reported as busy,
/// because other loops may wait for the thread.
const IDLE_BEAT: Duration = Duration::from_secs(10);
/// Time after which work is logged as slow.
const SLOW_AFTER: Duration = Duration::from_secs(1);
/// A thread that uses less than this fraction of the time (one part in 1,000) is blocked.
const BLOCKED_SHARE: u32 = 1000;

/// The loops of a process. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Loops(Arc<Mutex<BTreeMap<&'static str, LoopState>>>);

#[derive(Debug)]
struct LoopState {
    /// The time of the last report.
    reported: Instant,
    work: Option<LoopTask>,
}

/// A piece of work and its thread.
struct LoopTask {
    what: Box<dyn fmt::Display + Send>,
    thread: ThreadCpu,
}

impl fmt::Debug for LoopTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.what)
    }
}

/// A loop that makes no progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SilentLoop {
    /// The name of the loop.
    pub name: &'static str,
    /// The time without progress.
    pub age: Duration,
    /// A description of the loop's work; `None` if the loop waits.
    pub work: Option<String>,
    /// The CPU time that it has used for the work, if the system reports it.
    pub cpu: Option<Duration>,
}

impl SilentLoop {
    /// Returns whether only a restart helps. `others_busy` states whether other loops keep threads
    /// busy.
    fn is_stuck(&self, others_busy: bool) -> bool {
        match &self.work {
            // The thread that should run it may be busy.
            None => self.age >= STUCK_AFTER && !others_busy,
            Some(_) => {
                let is_blocked = self.cpu.is_some_and(|cpu| cpu * BLOCKED_SHARE < self.age);
                (self.age >= STUCK_AFTER && is_blocked) || self.age >= NO_PROGRESS_AFTER
            }
        }
    }
}

impl fmt::Display for SilentLoop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, age, work, cpu } = self;
        let age = age.as_secs();
        match work {
            None => write!(f, "the loop {name:?} has not run for {age} s"),
            Some(work) => {
                write!(f, "the loop {name:?} has worked on {work} for {age} s")?;
                match cpu {
                    Some(cpu) => write!(f, ", with {:.1} s of CPU time", cpu.as_secs_f64()),
                    None => Ok(()),
                }
            }
        }
    }
}

impl Loops {
    /// Adds a loop. It is monitored from now on, even if its task ends.
    pub fn watchdog(&self, name: &'static str) -> Watchdog {
        let mut idle = tokio::time::interval(IDLE_BEAT);
        idle.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let progress = LoopProgress { name, loops: self.clone() };
        progress.report_idle();
        Watchdog { progress, idle }
    }

    /// Returns the loops that are stuck.
    pub fn stuck(&self) -> Vec<SilentLoop> {
        self.stuck_at(Instant::now())
    }

    /// Returns the loops that have worked on one thing for ten seconds and are not stuck.
    pub fn busy(&self) -> Vec<SilentLoop> {
        let silent = self.silent_at(Instant::now()).into_iter();
        silent.filter(|one| one.work.is_some() && !one.is_stuck(false)).collect()
    }

    pub(crate) fn stuck_at(&self, now: Instant) -> Vec<SilentLoop> {
        let silent = self.silent_at(now);
        let is_busy = |one: &SilentLoop| one.work.is_some() && !one.is_stuck(false);
        let others_busy = silent.iter().any(is_busy);
        silent.into_iter().filter(|one| one.is_stuck(others_busy)).collect()
    }

    fn silent_at(&self, now: Instant) -> Vec<SilentLoop> {
        let loops = lock::lock(&self.0);
        let silent =
            loops.iter().map(|(name, state)| (name, state, now.duration_since(state.reported)));
        let silent = silent.filter(|(.., age)| *age >= IDLE_BEAT);
        let of = |(name, state, age): (&&'static str, &LoopState, Duration)| SilentLoop {
            name,
            age,
            work: state.work.as_ref().map(|work| work.what.to_string()),
            cpu: state.work.as_ref().and_then(|work| work.thread.since()),
        };
        silent.map(of).collect()
    }
}

/// Reports the progress of a loop. Clones report for the same loop.
#[derive(Debug, Clone)]
pub struct LoopProgress {
    name: &'static str,
    loops: Loops,
}

impl LoopProgress {
    /// Reports that the loop starts to work on `what`, on the current thread, until it starts
    /// something else or waits.
    pub fn begins(&self, what: impl fmt::Display + Send + 'static) {
        let what: Box<dyn fmt::Display + Send> = Box::new(what);
        self.report(Some(LoopTask { what, thread: ThreadCpu::now() }), Instant::now());
    }

    /// Returns the CPU time that the current thread has used for the loop's work, or zero if
    /// another thread does the work or the loop waits.
    pub fn spent(&self) -> Duration {
        let loops = lock::lock(&self.loops.0);
        let work = loops.get(self.name).and_then(|state| state.work.as_ref());
        work.map_or(Duration::ZERO, |work| work.thread.on_this_thread())
    }

    /// Reports that the loop waits for work.
    pub fn report_idle(&self) {
        self.report(None, Instant::now());
    }

    fn report(&self, work: Option<LoopTask>, now: Instant) {
        let state = LoopState { reported: now, work };
        let before = lock::lock(&self.loops.0).insert(self.name, state);
        let Some(LoopState { reported, work: Some(work) }) = before else { return };
        let took = now.saturating_duration_since(reported);
        if took >= SLOW_AFTER {
            let (name, work, millis) = (self.name, work.what, took.as_millis());
            warn!(name, %work, millis, "one piece of work took long; later work waited");
        }
    }
}

/// The reports of one loop.
#[derive(Debug)]
pub struct Watchdog {
    progress: LoopProgress,
    idle: Interval,
}

impl Watchdog {
    /// Returns the progress to which parts of the loop report.
    pub fn progress(&self) -> &LoopProgress {
        &self.progress
    }

    /// Reports that the loop waits for work.
    pub fn beat(&self) {
        self.progress.report_idle();
    }

    /// Waits until a loop without work should report.
    pub async fn idle(&mut self) {
        self.idle.tick().await;
    }

    /// Waits for another loop and reports meanwhile: only the other loop may be stuck.
    pub async fn waiting<F: Future>(&mut self, other: F) -> F::Output {
        let mut other = pin!(other);
        self.beat();
        loop {
            tokio::select! {
                biased;
                done = &mut other => return done,
                () = self.idle() => self.beat(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    fn silent(age: u64, cpu: Option<Duration>, work: Option<&str>) -> SilentLoop {
        let (age, work) = (Duration::from_secs(age), work.map(str::to_owned));
        SilentLoop { name: "feed", age, work, cpu }
    }

    #[test]
    fn busy_loop_is_not_stuck_until_it_makes_no_progress_for_ten_minutes() {
        let second = Some(Duration::from_secs(1));
        let object = Some("VirtualService shop/web");
        // Age, CPU time, work, and whether the loop is stuck.
        let cases = [
            (59, None, None, false),
            (60, None, None, true),
            (59, Some(Duration::ZERO), object, false),
            (60, Some(Duration::ZERO), object, true),
            (60, Some(Duration::from_millis(59)), object, true),
            (60, Some(Duration::from_millis(60)), object, false),
            (599, second, object, false),
            (600, Some(Duration::from_secs(600)), object, true),
            // If the system reports no CPU time, only progress decides.
            (599, None, object, false),
            (600, None, object, true),
        ];
        for (age, cpu, work, stuck) in cases {
            let one = silent(age, cpu, work);
            assert_eq!(one.is_stuck(false), stuck, "{one}");
        }
    }

    #[test]
    fn waiting_loop_is_not_stuck_while_another_loop_keeps_a_thread_busy() {
        assert!(!silent(60, None, None).is_stuck(true));
        assert!(silent(60, Some(Duration::ZERO), Some("an object")).is_stuck(true));
    }

    #[test]
    fn silent_loop_names_its_work_and_its_cpu_time() {
        let (cpu, object) = (Some(Duration::from_millis(1200)), Some("VirtualService shop/web"));
        let text = silent(75, cpu, object).to_string();
        assert_eq!(
            text,
            "the loop \"feed\" has worked on VirtualService shop/web for 75 s, with 1.2 s of CPU time"
        );
        let text = silent(75, None, None).to_string();
        assert_eq!(text, "the loop \"feed\" has not run for 75 s");
    }

    #[tokio::test]
    async fn blocked_loop_is_stuck_and_names_its_work() {
        let loops = Loops::default();
        let watchdog = loops.watchdog("blocked");
        let (begun, begins) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let progress = watchdog.progress().clone();
        thread::scope(|scope| {
            scope.spawn(move || {
                progress.begins("VirtualService shop/web");
                let _ = begun.send(());
                let _ = released.recv();
            });
            begins.recv().expect("it began");
            assert_eq!(loops.stuck(), []);
            let stuck = loops.stuck_at(Instant::now() + STUCK_AFTER);
            assert!(
                matches!(&stuck[..], [one] if one.work.as_deref() == Some("VirtualService shop/web")),
                "{stuck:?}"
            );
            drop(release);
        });
        watchdog.beat();
        let stuck = loops.stuck_at(Instant::now() + STUCK_AFTER);
        assert!(matches!(&stuck[..], [one] if one.work.is_none()), "{stuck:?}");
    }

    #[tokio::test]
    async fn loop_that_waits_for_another_loop_reports_meanwhile() {
        let loops = Loops::default();
        let mut watchdog = loops.watchdog("waiting");
        watchdog.idle = tokio::time::interval(Duration::from_millis(1));
        let begun = Instant::now();
        watchdog.waiting(tokio::time::sleep(Duration::from_millis(100))).await;
        let reported = lock::lock(&loops.0)["waiting"].reported;
        assert!(reported >= begun + Duration::from_millis(10), "{:?}", reported - begun);
    }
}
