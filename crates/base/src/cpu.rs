//! CPU time of threads, which does not depend on how busy the machine is.

use std::time::Duration;

use rustix::thread::{Pid, gettid};
use rustix::time::{ClockId, clock_gettime};

/// A thread of this process, with its CPU time at some moment.
#[derive(Debug, Clone, Copy)]
pub struct ThreadCpu {
    thread: Pid,
    used: Duration,
}

impl ThreadCpu {
    /// Records the CPU time of the current thread.
    pub fn now() -> Self {
        Self { thread: gettid(), used: thread_time() }
    }

    /// Returns the CPU time that the thread has used since then, without reading a file; zero if
    /// another thread calls this.
    pub fn on_this_thread(&self) -> Duration {
        if gettid() != self.thread {
            return Duration::ZERO;
        }
        thread_time().saturating_sub(self.used)
    }

    /// Returns the CPU time that the thread has used since then, on any thread. Returns `None` if
    /// the system does not report it.
    pub fn since(&self) -> Option<Duration> {
        let path = format!("/proc/self/task/{}/schedstat", self.thread.as_raw_nonzero());
        let text = std::fs::read_to_string(path).ok()?;
        let used = Duration::from_nanos(text.split_whitespace().next()?.parse().ok()?);
        Some(used.saturating_sub(self.used))
    }
}

/// Returns the CPU time of the current thread.
pub fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn another_thread_reads_the_cpu_time_of_a_busy_thread_and_of_a_blocked_one() {
        let (sender, threads) = mpsc::channel();
        let (release, blocked) = mpsc::channel::<()>();
        let (release_busy, measured) = mpsc::channel::<()>();
        let busy = sender.clone();
        thread::scope(|scope| {
            scope.spawn(move || {
                let _ = sender.send(ThreadCpu::now());
                let _ = blocked.recv();
            });
            let blocked = threads.recv().expect("it started");
            scope.spawn(move || {
                let begun = ThreadCpu::now();
                let _ = busy.send(begun);
                while thread_time().saturating_sub(begun.used) < Duration::from_millis(50) {}
                let _ = busy.send(begun);
                let _ = measured.recv();
            });
            threads.recv().expect("it started");
            let busy = threads.recv().expect("it used its CPU time");
            // The kernel updates the CPU time of a running thread at its next tick.
            assert!(busy.since().expect("the system reports it") >= Duration::from_millis(40));
            assert!(blocked.since().expect("the system reports it") < Duration::from_millis(20));
            drop((release, release_busy));
        });
    }
}
