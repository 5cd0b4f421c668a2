//! Stamped changes: which were made, and when each proxy had them.
//!
//! A change is recognised by its address in the raw bytes of an assignment. A response may come before the
//! word of its change does, so responses wait until all changes made before they came are known.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use memchr::memmem;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::Failure;

/// How often waiting responses are looked through. No figure depends on it.
pub(crate) const PERIOD: Duration = Duration::from_millis(100);
/// So many periods pass between two questions for stamps where little waits for them: each costs CPU, which
/// would count as what proxies need.
const PERIODS_BETWEEN: usize = 10;
/// What waits for stamps, in bytes, when they are asked for sooner.
const MUCH: usize = 1 << 20;
/// After this nobody looks for a change any longer.
const LOOKED_FOR_NS: u64 = 60_000_000_000;

/// `CLOCK_MONOTONIC` in nanoseconds, which all processes of a machine share.
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // Monotonic time is never negative.
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) address: String,
    pub(crate) hostname: String,
    pub(crate) at_ns: u64,
}

impl Stamp {
    fn read(line: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(line).ok()?;
        let text = |key: &str| value.get(key)?.as_str().map(str::to_owned);
        Some(Self {
            address: text("address")?,
            hostname: text("hostname")?,
            at_ns: value.get("at_ns")?.as_u64()?,
        })
    }

    /// How the address stands in an assignment: a field of `SocketAddress` with its length before it, so
    /// that 10.0.0.1 isn't found in 10.0.0.12.
    fn needle(&self) -> Vec<u8> {
        let length = u8::try_from(self.address.len()).unwrap_or(u8::MAX);
        [&[0x12, length], self.address.as_bytes()].concat()
    }
}

/// The changes that are known.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stamps(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    stamps: Vec<Stamp>,
    /// Every change made before this moment is known.
    until_ns: u64,
    /// Somebody can't wait for the next ones.
    wanted: bool,
}

impl Stamps {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn learn(&self, new: Vec<Stamp>, until_ns: u64) {
        let mut known = self.known();
        known.stamps.extend(new);
        known.until_ns = until_ns;
        known.wanted = false;
    }

    /// Has the next ones asked for soon.
    pub(crate) fn want(&self) {
        self.known().wanted = true;
    }

    /// Those after the first `from`, and the moment before which none is missing.
    fn after(&self, from: usize) -> (Vec<Stamp>, u64) {
        let known = self.known();
        (known.stamps.get(from..).unwrap_or_default().to_vec(), known.until_ns)
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Stamp> {
        self.known().stamps.clone()
    }

    /// The moment before which none is missing.
    pub(crate) fn until_ns(&self) -> u64 {
        self.known().until_ns
    }

    /// Asks the simulation for its changes, for ever.
    pub(crate) async fn poll(&self, control: SocketAddr) -> Failure {
        loop {
            let error = self.poll_connection(control).await;
            if self.until_ns() == 0 {
                return Failure(format!("--stamps: http://{control}/v1/stamps: {error}"));
            }
            // It worked before: the port is being restarted, or closed the connection.
            tokio::time::sleep(PERIOD).await;
        }
    }

    /// Asks on one connection until it fails.
    async fn poll_connection(&self, control: SocketAddr) -> Box<dyn std::error::Error> {
        let connected = async {
            let stream = TcpStream::connect(control).await?;
            stream.set_nodelay(true)?;
            Ok::<_, Box<dyn std::error::Error>>(http1::handshake(TokioIo::new(stream)).await?)
        };
        let (requests, connection) = match connected.await {
            Ok(connected) => connected,
            Err(error) => return error,
        };
        tokio::select! {
            asked = self.ask(requests, control) => match asked { Err(error) => error },
            ended = connection => match ended {
                Ok(()) => "the connection was closed".into(),
                Err(error) => error.into(),
            },
        }
    }

    async fn ask(
        &self,
        mut requests: http1::SendRequest<Empty<Bytes>>,
        control: SocketAddr,
    ) -> Result<Infallible, Box<dyn std::error::Error>> {
        loop {
            let (asked_ns, since) = (now_ns(), self.known().stamps.len());
            let request = http::Request::get(format!("/v1/stamps?since={since}"))
                .header(http::header::HOST, control.to_string())
                .body(Empty::new())?;
            let response = requests.send_request(request).await?;
            let status = response.status();
            let body = response.into_body().collect().await?.to_bytes();
            if !status.is_success() {
                return Err(status.to_string().into());
            }
            let new: Vec<_> = std::str::from_utf8(&body)?.lines().filter_map(Stamp::read).collect();
            self.learn(new, asked_ns);
            for _ in 0..PERIODS_BETWEEN {
                tokio::time::sleep(PERIOD).await;
                if self.known().wanted {
                    break;
                }
            }
        }
    }
}

/// What the proxies of one thread have seen of the changes.
#[derive(Debug, Default)]
pub(crate) struct Sightings {
    waiting: Vec<Arrival>,
    waiting_bytes: usize,
    taken: usize,
    /// Changes that are looked for, by the hostname they are of.
    by_hostname: HashMap<Vec<u8>, Vec<Wanted>>,
    /// For each change, by its place among all, when proxies had it: nanoseconds after it was made.
    seen: BTreeMap<usize, Vec<u64>>,
    /// How many proxies ask for some assignment of a hostname, and the last that does.
    asked: HashMap<Vec<u8>, (u32, u32)>,
}

#[derive(Debug)]
struct Arrival {
    at_ns: u64,
    proxy: u32,
    hostname: Box<[u8]>,
    body: Box<[u8]>,
}

#[derive(Debug)]
struct Wanted {
    index: usize,
    at_ns: u64,
    finder: memmem::Finder<'static>,
    /// One bit for each proxy that has it.
    had_by: Vec<u64>,
}

impl Sightings {
    /// Takes note that a proxy asks for an assignment. All of one proxy come before those of the next.
    pub(crate) fn asked(&mut self, proxy: u32, name: &[u8]) {
        let hostname = &name[hostname_of(name)..];
        match self.asked.get_mut(hostname) {
            Some((_, last)) if *last == proxy => {}
            Some((proxies, last)) => (*proxies, *last) = (*proxies + 1, proxy),
            None => drop(self.asked.insert(hostname.to_vec(), (1, proxy))),
        }
    }

    /// How many proxies ask for some assignment of a hostname.
    pub(crate) fn askers(&self) -> impl Iterator<Item = (String, u32)> {
        let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        self.asked.iter().map(move |(hostname, (proxies, _))| (text(hostname), *proxies))
    }

    /// Takes note of an assignment that came.
    pub(crate) fn came(&mut self, at_ns: u64, proxy: u32, name: &[u8], body: &[u8]) {
        let hostname = name[hostname_of(name)..].into();
        self.waiting_bytes += body.len();
        self.waiting.push(Arrival { at_ns, proxy, hostname, body: body.into() });
    }

    /// Looks through what has waited long enough, for changes made from `since_ns` on.
    pub(crate) fn look(&mut self, stamps: &Stamps, since_ns: u64) {
        let (new, until_ns) = stamps.after(self.taken);
        for stamp in new {
            if stamp.at_ns >= since_ns {
                let hostname = stamp.hostname.clone().into_bytes();
                self.by_hostname.entry(hostname).or_default().push(Wanted {
                    index: self.taken,
                    at_ns: stamp.at_ns,
                    finder: memmem::Finder::new(&stamp.needle()).into_owned(),
                    had_by: Vec::new(),
                });
            }
            self.taken += 1;
        }
        let ready = self.waiting.partition_point(|arrival| arrival.at_ns < until_ns);
        for arrival in self.waiting.drain(..ready) {
            self.waiting_bytes -= arrival.body.len();
            let Some(wanted) = self.by_hostname.get_mut(&*arrival.hostname) else { continue };
            wanted.retain(|wanted| arrival.at_ns < wanted.at_ns.saturating_add(LOOKED_FOR_NS));
            for wanted in wanted {
                if !wanted.has(arrival.proxy) && wanted.finder.find(&arrival.body).is_some() {
                    wanted.note(arrival.proxy);
                    let after = arrival.at_ns.saturating_sub(wanted.at_ns);
                    self.seen.entry(wanted.index).or_default().push(after);
                }
            }
        }
        if self.waiting_bytes > MUCH {
            stamps.want();
        }
    }

    /// When proxies had each change, by the change's place among all.
    pub(crate) fn seen(&self) -> &BTreeMap<usize, Vec<u64>> {
        &self.seen
    }
}

impl Wanted {
    fn has(&self, proxy: u32) -> bool {
        let word = self.had_by.get(proxy as usize / 64).copied().unwrap_or_default();
        word & (1 << (proxy % 64)) != 0
    }

    fn note(&mut self, proxy: u32) {
        let word = proxy as usize / 64;
        if self.had_by.len() <= word {
            self.had_by.resize(word + 1, 0);
        }
        self.had_by[word] |= 1 << (proxy % 64);
    }
}

/// Where the hostname begins in `outbound|80|SUBSET|HOST` and `outbound_.80_._.HOST`.
pub(crate) fn hostname_of(name: &[u8]) -> usize {
    let after = |separator: &[u8]| memmem::rfind(name, separator).map(|at| at + separator.len());
    after(b"|").or_else(|| after(b"_.")).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamps(of: &[(&str, u64)], until_ns: u64) -> Stamps {
        let stamp = |(address, at_ns): &(&str, u64)| Stamp {
            address: (*address).into(),
            hostname: "a.ns.svc.cluster.local".into(),
            at_ns: *at_ns,
        };
        let stamps = of.iter().map(stamp).collect();
        Stamps(Arc::new(Mutex::new(Known { stamps, until_ns, wanted: false })))
    }

    const NAME: &[u8] = b"outbound|80||a.ns.svc.cluster.local";

    #[test]
    fn a_change_is_seen_once_by_each_proxy_and_only_whole() {
        let mut sightings = Sightings::default();
        let body = b"..\x12\x0b100.64.0.12..";
        for (at_ns, proxy) in [(150, 0), (160, 0), (170, 9)] {
            sightings.came(at_ns, proxy, NAME, body);
        }
        let stamps = stamps(&[("100.64.0.1", 100), ("100.64.0.12", 100)], 200);
        sightings.look(&stamps, 0);
        assert_eq!(sightings.seen, [(1, vec![50, 70])].into());
    }

    #[test]
    fn a_response_waits_for_the_word_of_its_change() {
        let mut sightings = Sightings::default();
        sightings.came(150, 0, NAME, b"\x12\x0a100.64.0.1");
        sightings.look(&stamps(&[], 140), 0);
        assert!(sightings.seen.is_empty());
        sightings.look(&stamps(&[("100.64.0.1", 145)], 160), 0);
        assert_eq!(sightings.seen, [(0, vec![5])].into());
    }

    #[test]
    fn stamps_are_wanted_where_much_waits_for_them() {
        let mut sightings = Sightings::default();
        let stamps = stamps(&[], 140);
        let wanted = |sightings: &mut Sightings| {
            sightings.look(&stamps, 0);
            stamps.known().wanted
        };
        sightings.came(150, 0, NAME, &[0; MUCH]);
        assert!(!wanted(&mut sightings));
        sightings.came(160, 0, NAME, &[0]);
        assert!(wanted(&mut sightings));
        stamps.learn(Vec::new(), 170);
        assert!(!wanted(&mut sightings));
    }

    #[test]
    fn a_proxy_that_asks_for_two_ports_counts_once() {
        let mut sightings = Sightings::default();
        for (proxy, name) in [(0, "80||a"), (0, "443||a"), (0, "80||b"), (3, "443||a")] {
            sightings.asked(proxy, format!("outbound|{name}").as_bytes());
        }
        let askers: BTreeMap<_, _> = sightings.askers().collect();
        assert_eq!(askers, [("a".to_owned(), 2), ("b".to_owned(), 1)].into());
    }

    #[test]
    fn a_change_before_the_run_is_not_counted() {
        let mut sightings = Sightings::default();
        sightings.came(150, 0, NAME, b"\x12\x0a100.64.0.1");
        sightings.look(&stamps(&[("100.64.0.1", 100)], 200), 120);
        assert!(sightings.seen.is_empty());
    }

    #[test]
    fn hostnames_are_found_in_both_forms() {
        for name in [NAME, b"outbound_.80_._.a.ns.svc.cluster.local"] {
            assert_eq!(&name[hostname_of(name)..], b"a.ns.svc.cluster.local");
        }
    }
}
