//! Handles the exhaustion of file descriptors (EMFILE): which connections are still accepted, and
//! how operators are notified.
//!
//! A listening port reserves a few descriptors, which are open files without content. If no
//! descriptor is free, a reserved descriptor is closed to accept a waiting connection. Therefore
//! many members or files never lock out proxies and probes. A loop that cannot accept pauses for
//! increasing times, because a waiting connection would wake it immediately.

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use tracing::{debug, error, warn};

use crate::{codes, process};

/// Initial and maximum pause if the system cannot accept.
const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));
/// Minimum time between two reports of exhaustion.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);
/// Descriptors for connections to one API server over HTTP/2: the connection and its replacement.
/// Over HTTP/1.1 it would be ten.
const PER_MEMBER: u64 = 2;
/// Descriptors that the process needs for its own files, ports and watches.
const BASE: u64 = 64;
/// The assumed limit if no limit is set.
const PLENTY: u64 = 1 << 20;

/// Statistics about the file descriptors of the process.
#[derive(Debug, Default)]
pub struct Descriptors {
    exhausted: AtomicU64,
    needed: AtomicU64,
    reported_at: Mutex<Option<Instant>>,
}

/// A snapshot of the statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DescriptorCounts {
    /// The number of open descriptors, if the system reports it.
    pub open: Option<u64>,
    /// The maximum number of open descriptors; `None` if unlimited.
    pub limit: Option<u64>,
    /// The number of descriptors for the known members and the process itself, without proxies.
    pub needed: u64,
    /// The number of connections for which no descriptor was free.
    pub exhausted: u64,
    /// The time since the last report of exhaustion.
    pub exhausted_ago: Option<Duration>,
}

impl Descriptors {
    /// Returns the current statistics. Counting the open descriptors visits each of them.
    pub fn figures(&self) -> DescriptorCounts {
        DescriptorCounts {
            open: process::descriptors_open(),
            limit: process::descriptors_max(),
            needed: self.needed.load(Ordering::Relaxed),
            exhausted: self.exhausted.load(Ordering::Relaxed),
            exhausted_ago: self.reported_at().map(|at| at.elapsed()),
        }
    }

    /// Sets the number of known members. Logs a warning if they need too many descriptors.
    pub fn members(&self, count: usize) {
        let needed = needed(count);
        let before = self.needed.swap(needed, Ordering::Relaxed);
        let Some(limit) = process::descriptors_max() else { return };
        if count > 0 && is_short(needed, limit) && !is_short(before, limit) {
            let code = &codes::DESCRIPTORS;
            warn!(
                members = count,
                needed,
                limit,
                "{code}: the members need more file descriptors than the limit allows; a member without a connection stays at its last known state. {}",
                line(code)
            );
        }
    }

    /// Records that no descriptor was free for a connection.
    fn met_none(&self, port: &'static str) {
        self.exhausted.fetch_add(1, Ordering::Relaxed);
        let mut reported_at = self.reported_at.lock().unwrap_or_else(PoisonError::into_inner);
        if reported_at.is_some_and(|at| at.elapsed() < REPORT_INTERVAL) {
            return;
        }
        *reported_at = Some(Instant::now());
        let code = &codes::DESCRIPTORS;
        let limit = process::descriptors_max();
        error!(
            port,
            limit,
            "{code}: no file descriptor is free for a new connection. {}",
            line(code)
        );
    }

    fn reported_at(&self) -> Option<Instant> {
        *self.reported_at.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the next step in one line.
fn line(code: &codes::Code) -> String {
    code.next.replace('\n', " ")
}

/// Returns the number of descriptors for this many members and the process itself.
fn needed(members: usize) -> u64 {
    u64::try_from(members).unwrap_or(u64::MAX).saturating_mul(PER_MEMBER).saturating_add(BASE)
}

/// Returns whether this many descriptors leave less than a quarter of the limit to proxies.
fn is_short(needed: u64, limit: u64) -> bool {
    needed > limit - limit / 4
}

/// Returns whether an error means that the process or the system has no free descriptor.
pub fn is_none_free(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    [Errno::MFILE, Errno::NFILE].iter().any(|none| code == Some(none.raw_os_error()))
}

/// Returns the number of descriptors for one purpose: the limit divided by `one_in`, within bounds.
pub fn share(one_in: u64, least: usize, most: usize) -> usize {
    let limit = process::descriptors_max().unwrap_or(PLENTY);
    usize::try_from(limit / one_in.max(1)).unwrap_or(most).clamp(least, most)
}

/// Descriptors that are reserved for new connections.
#[derive(Debug)]
struct Reserve {
    size: usize,
    kept: Mutex<Vec<File>>,
}

impl Reserve {
    fn of(size: usize) -> Self {
        let reserve = Self { size, kept: Mutex::default() };
        reserve.fill();
        reserve
    }

    /// Frees a descriptor. Returns whether there was one.
    fn free(&self) -> bool {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).pop().is_some()
    }

    /// Refills the reserve as far as descriptors are free.
    fn fill(&self) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        while kept.len() < self.size
            && let Ok(file) = File::open("/dev/null")
        {
            kept.push(file);
        }
    }
}

/// A permit for a connection. Dropping it refills the reserve.
#[derive(Debug)]
pub struct Seat(Arc<Reserve>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.fill();
    }
}

/// A port that accepts connections during the lifetime of the process.
pub struct ListeningPort {
    name: &'static str,
    listener: TcpListener,
    descriptors: Arc<Descriptors>,
    reserve: Arc<Reserve>,
    pause: Duration,
    /// The end of the current pause.
    rests: Option<Instant>,
}

impl ListeningPort {
    /// Creates a port that reserves this many descriptors.
    pub fn new(
        name: &'static str,
        listener: TcpListener,
        reserve: usize,
        descriptors: Arc<Descriptors>,
    ) -> Self {
        let reserve = Arc::new(Reserve::of(reserve));
        Self { name, listener, descriptors, reserve, pause: PAUSE.0, rests: None }
    }

    /// Returns the next connection. The future may be dropped at any time without losing a
    /// connection.
    ///
    /// # Errors
    /// Returns the error of the system. The next call pauses before it retries.
    pub async fn accept(&mut self) -> io::Result<(TcpStream, SocketAddr, Seat)> {
        if let Some(until) = self.rests {
            tokio::time::sleep_until(until).await;
            self.rests = None;
        }
        self.reserve.fill();
        loop {
            match self.listener.accept().await {
                Ok((socket, address)) => {
                    self.pause = PAUSE.0;
                    return Ok((socket, address, Seat(Arc::clone(&self.reserve))));
                }
                Err(error) if is_none_free(&error) => {
                    self.descriptors.met_none(self.name);
                    // Each iteration uses a descriptor of the reserve, so the loop ends.
                    if !self.reserve.free() {
                        return Err(self.rest(error));
                    }
                }
                Err(error) => return Err(self.rest(error)),
            }
        }
    }

    fn rest(&mut self, error: io::Error) -> io::Error {
        debug!(port = self.name, %error, pause = ?self.pause, "can't accept");
        self.rests = Some(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(PAUSE.1);
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_members_need_more_than_the_limit_leaves() {
        assert_eq!(needed(2000), 4064);
        assert!(is_short(needed(400), 1024) && !is_short(needed(350), 1024));
        assert!(!is_short(needed(2000), 1 << 20));
        assert_eq!(needed(usize::MAX), u64::MAX);
    }

    #[test]
    fn exhaustion_is_distinguished_from_other_errors() {
        assert!(is_none_free(&io::Error::from_raw_os_error(24)));
        assert!(is_none_free(&io::Error::from_raw_os_error(23)));
        assert!(!is_none_free(&io::ErrorKind::ConnectionAborted.into()));
    }

    #[test]
    fn reserve_is_used_one_by_one_and_refilled() {
        let reserve = Arc::new(Reserve::of(2));
        assert_eq!([(); 3].map(|()| reserve.free()), [true, true, false]);
        drop(Seat(Arc::clone(&reserve)));
        assert!(reserve.free());
    }

    #[tokio::test]
    async fn a_port_that_cannot_accept_rests_ever_longer() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let mut port = ListeningPort::new("test", listener, 0, Arc::default());
        let pauses = [(); 10].map(|()| {
            let pause = port.pause;
            port.rest(io::Error::from_raw_os_error(24));
            pause
        });
        assert_eq!(pauses[..2], [Duration::from_millis(5), Duration::from_millis(10)]);
        assert_eq!(pauses[9], PAUSE.1);
        let (before, rest) = (Instant::now(), Duration::from_millis(20));
        port.rests = Some(before + rest);
        let address = port.listener.local_addr().expect("bound");
        let (accepted, _peer) = tokio::join!(port.accept(), TcpStream::connect(address));
        accepted.expect("it accepts again");
        assert!(before.elapsed() >= rest, "after its rest");
        assert_eq!(port.pause, PAUSE.0, "the pause is reset");
    }
}
