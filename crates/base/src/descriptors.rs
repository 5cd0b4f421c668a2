//! What happens when the process has no file descriptor left (EMFILE): whose connections go on, and what is reported to
//! an operator.
//!
//! A port that accepts keeps a few descriptors in reserve, files that mean nothing: when none is free, one
//! of them is closed for the connection that waits. So members that are many, or files, never shut proxies
//! and probes out. A loop that can't accept rests, ever longer: what waits would wake it at once otherwise.

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

/// How long to rest when the system can't accept, at first and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));
/// How often it is reported that there are no descriptors, however often that is met.
const TOLD_EVERY: Duration = Duration::from_secs(60);
/// What connections to one API server take over HTTP/2: the one, and one that comes while it goes. Over HTTP/1.1
/// it would be ten.
const PER_MEMBER: u64 = 2;
/// What the process takes besides: its own files, its ports, what it watches.
const BASE: u64 = 64;
/// What is taken for the limit where there is none.
const PLENTY: u64 = 1 << 20;

/// How the process fares with its file descriptors.
#[derive(Debug, Default)]
pub struct Descriptors {
    exhausted: AtomicU64,
    needed: AtomicU64,
    told: Mutex<Option<Instant>>,
}

/// The figures, as they are now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DescriptorCounts {
    /// How many are open, where the system says so.
    pub open: Option<u64>,
    /// How many there may be; none where there is no limit.
    pub limit: Option<u64>,
    /// How many the members that are known need, with what the process takes itself, without any proxy.
    pub needed: u64,
    /// How often there was none for a connection that came.
    pub exhausted: u64,
    /// How long ago that was last reported.
    pub exhausted_ago: Option<Duration>,
}

impl Descriptors {
    /// The figures now. Counting what is open looks at each.
    pub fn figures(&self) -> DescriptorCounts {
        DescriptorCounts {
            open: process::descriptors_open(),
            limit: process::descriptors_max(),
            needed: self.needed.load(Ordering::Relaxed),
            exhausted: self.exhausted.load(Ordering::Relaxed),
            exhausted_ago: self.told().map(|at| at.elapsed()),
        }
    }

    /// So many members are known. Says so where there are too many of them.
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
                "{code}: so many members need more file descriptors than the limit leaves; those that get none are served from what is known of them. {}",
                line(code)
            );
        }
    }

    /// A connection that came met none.
    fn met_none(&self, port: &'static str) {
        self.exhausted.fetch_add(1, Ordering::Relaxed);
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.is_some_and(|at| at.elapsed() < TOLD_EVERY) {
            return;
        }
        *told = Some(Instant::now());
        let code = &codes::DESCRIPTORS;
        let limit = process::descriptors_max();
        error!(
            port,
            limit,
            "{code}: no file descriptor is free for a new connection. {}",
            line(code)
        );
    }

    fn told(&self) -> Option<Instant> {
        *self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What to do, in one line.
fn line(code: &codes::Code) -> String {
    code.next.replace('\n', " ")
}

/// How many descriptors so many members need, with what the process takes itself.
fn needed(members: usize) -> u64 {
    u64::try_from(members).unwrap_or(u64::MAX).saturating_mul(PER_MEMBER).saturating_add(BASE)
}

/// Whether so many leave proxies less than a quarter of the limit.
fn is_short(needed: u64, limit: u64) -> bool {
    needed > limit - limit / 4
}

/// Whether an error says that no descriptor is free, here or in the whole system.
pub fn is_none_free(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    [Errno::MFILE, Errno::NFILE].iter().any(|none| code == Some(none.raw_os_error()))
}

/// What share of the descriptors is for one purpose: one in so many, within bounds.
pub fn share(one_in: u64, least: usize, most: usize) -> usize {
    let limit = process::descriptors_max().unwrap_or(PLENTY);
    usize::try_from(limit / one_in.max(1)).unwrap_or(most).clamp(least, most)
}

/// Descriptors that are kept for connections to come.
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

    /// Makes one free. Whether there was any.
    fn free(&self) -> bool {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).pop().is_some()
    }

    /// Takes back what has been used, as far as there is any.
    fn fill(&self) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        while kept.len() < self.size
            && let Ok(file) = File::open("/dev/null")
        {
            kept.push(file);
        }
    }
}

/// The right to a connection. When it ends, the reserve is filled again.
#[derive(Debug)]
pub struct Seat(Arc<Reserve>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.fill();
    }
}

/// A port that accepts connections as long as the process lives.
pub struct ListeningPort {
    name: &'static str,
    listener: TcpListener,
    descriptors: Arc<Descriptors>,
    reserve: Arc<Reserve>,
    pause: Duration,
    /// Until when nothing is accepted.
    rests: Option<Instant>,
}

impl ListeningPort {
    /// One that keeps so many descriptors in reserve.
    pub fn new(
        name: &'static str,
        listener: TcpListener,
        reserve: usize,
        descriptors: Arc<Descriptors>,
    ) -> Self {
        let reserve = Arc::new(Reserve::of(reserve));
        Self { name, listener, descriptors, reserve, pause: PAUSE.0, rests: None }
    }

    /// The next connection. May be dropped and called again at any time.
    ///
    /// # Errors
    /// What the system says; the next call rests before it tries again.
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
                    // Each time there is one less: an end of it is certain.
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
    fn what_says_that_none_is_free_is_told_from_other_errors() {
        assert!(is_none_free(&io::Error::from_raw_os_error(24)));
        assert!(is_none_free(&io::Error::from_raw_os_error(23)));
        assert!(!is_none_free(&io::ErrorKind::ConnectionAborted.into()));
    }

    #[test]
    fn a_reserve_is_used_up_one_by_one_and_filled_again() {
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
        accepted.expect("it goes on");
        assert!(before.elapsed() >= rest, "after its rest");
        assert_eq!(port.pause, PAUSE.0, "all is well again");
    }
}
