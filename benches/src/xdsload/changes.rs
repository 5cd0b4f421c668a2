//! Stamped changes: which changes were made, and when each proxy received them.
//!
//! A change is recognized by its address in the raw bytes of an assignment. A response may arrive
//! before the change's stamp. So responses wait until all earlier changes are known.

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
use crate::wire::{Kind, Resource};

/// The interval at which waiting responses are searched. No figure depends on it.
pub(crate) const PERIOD: Duration = Duration::from_millis(100);
/// The number of periods between two requests for stamps while few bytes wait for them. Each
/// request costs CPU, which would be counted as the cost of the proxies.
const PERIODS_BETWEEN: usize = 10;
/// The number of waiting bytes above which stamps are requested immediately.
const MUCH: usize = 1 << 20;
/// The time after which a change is no longer searched for.
const LOOKED_FOR_NS: u64 = 60_000_000_000;

/// Returns `CLOCK_MONOTONIC` in nanoseconds, which all processes of a machine share.
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // Monotonic time is never negative.
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// The resource in which a change is visible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Seen {
    /// An assignment of the hostname contains the address.
    Assignment,
    /// A listener has the address: the address of a pod of a headless service.
    Listener,
    /// An upstream cluster of the hostname was added.
    Added,
    /// An upstream cluster of the hostname was removed (Delta).
    Removed,
}

impl Seen {
    /// Converts the kind of a stamp. A stamp without a kind is for an endpoint.
    fn of(kind: Option<&str>) -> Option<Self> {
        match kind {
            None | Some("endpoint") => Some(Self::Assignment),
            Some("headlessPod") => Some(Self::Listener),
            Some("serviceAdded") => Some(Self::Added),
            Some("serviceRemoved") => Some(Self::Removed),
            Some(_) => None,
        }
    }
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) address: String,
    pub(crate) hostname: String,
    pub(crate) at_ns: u64,
    pub(crate) seen: Seen,
}

impl Stamp {
    fn read(line: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(line).ok()?;
        let text = |key: &str| value.get(key)?.as_str().map(str::to_owned);
        Some(Self {
            address: text("address")?,
            hostname: text("hostname")?,
            at_ns: value.get("at_ns")?.as_u64()?,
            seen: Seen::of(value.get("kind").and_then(Value::as_str))?,
        })
    }

    /// Returns the name of the resource that shows the change.
    fn key(&self) -> &str {
        if self.seen == Seen::Listener { &self.address } else { &self.hostname }
    }

    /// Returns the encoding of the address in an assignment: a field of `SocketAddress` with its
    /// length first, so that 10.0.0.1 is not found in 10.0.0.12.
    fn needle(&self) -> Vec<u8> {
        let length = u8::try_from(self.address.len()).unwrap_or(u8::MAX);
        [&[0x12, length], self.address.as_bytes()].concat()
    }
}

/// The known changes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stamps(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    stamps: Vec<Stamp>,
    /// Every change made before this moment is known.
    until_ns: u64,
    /// Whether a caller has requested the next stamps.
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

    /// Requests the next stamps soon.
    pub(crate) fn want(&self) {
        self.known().wanted = true;
    }

    /// Returns the stamps after the first `from`, and the moment up to which the list is complete.
    fn after(&self, from: usize) -> (Vec<Stamp>, u64) {
        let known = self.known();
        (known.stamps.get(from..).unwrap_or_default().to_vec(), known.until_ns)
    }

    /// Returns all stamps.
    pub(crate) fn all(&self) -> Vec<Stamp> {
        self.known().stamps.clone()
    }

    /// Returns the moment up to which the list is complete.
    pub(crate) fn until_ns(&self) -> u64 {
        self.known().until_ns
    }

    /// Polls the simulator for its changes, without end.
    pub(crate) async fn poll(&self, control: SocketAddr) -> Failure {
        loop {
            let error = self.poll_connection(control).await;
            if self.until_ns() == 0 {
                return Failure(format!("--stamps: http://{control}/v1/stamps: {error}"));
            }
            // The connection worked before: the simulator is restarting its port, or closed the
            // connection.
            tokio::time::sleep(PERIOD).await;
        }
    }

    /// Polls on one connection until it fails.
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

/// The changes that the proxies of one thread have received.
#[derive(Debug, Default)]
pub(crate) struct Sightings {
    waiting: Vec<Arrival>,
    waiting_bytes: usize,
    taken: usize,
    /// Changes to search for, by resource kind and name.
    by_key: HashMap<(Seen, Box<[u8]>), Vec<Wanted>>,
    /// For each change, by its index: the delays with which proxies received it, in nanoseconds.
    seen: BTreeMap<usize, Vec<u64>>,
    /// For each hostname: the number of proxies that subscribe to an assignment of it, and the last
    /// such proxy.
    asked: HashMap<Vec<u8>, (u32, u32)>,
}

#[derive(Debug)]
struct Arrival {
    at_ns: u64,
    proxy: u32,
    key: (Seen, Box<[u8]>),
    body: Box<[u8]>,
}

#[derive(Debug)]
struct Wanted {
    index: usize,
    at_ns: u64,
    /// Searches the body for the address.
    finder: Option<memmem::Finder<'static>>,
    /// One bit for each proxy that has received the change.
    had_by: Vec<u64>,
}

impl Sightings {
    /// Records that a proxy subscribes to an assignment. All calls for one proxy come before the
    /// calls for the next proxy.
    pub(crate) fn asked(&mut self, proxy: u32, name: &[u8]) {
        let hostname = &name[hostname_of(name)..];
        match self.asked.get_mut(hostname) {
            Some((_, last)) if *last == proxy => {}
            Some((proxies, last)) => (*proxies, *last) = (*proxies + 1, proxy),
            None => drop(self.asked.insert(hostname.to_vec(), (1, proxy))),
        }
    }

    /// Returns the number of proxies that subscribe to an assignment of each hostname.
    pub(crate) fn askers(&self) -> impl Iterator<Item = (String, u32)> {
        let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        self.asked.iter().map(move |(hostname, (proxies, _))| (text(hostname), *proxies))
    }

    /// Records a received resource.
    pub(crate) fn came(&mut self, at_ns: u64, proxy: u32, kind: Kind, resource: &Resource<'_>) {
        let name = resource.name;
        let hostname = || &name[hostname_of(name)..];
        match kind {
            Kind::Eds => {
                self.note(at_ns, proxy, (Seen::Assignment, hostname()), resource.body);
            }
            Kind::Cds => self.note(at_ns, proxy, (Seen::Added, hostname()), &[]),
            Kind::Lds => {
                // `ADDRESS_PORT`
                let end = memchr::memchr(b'_', name).unwrap_or(name.len());
                self.note(at_ns, proxy, (Seen::Listener, &name[..end]), &[]);
            }
            Kind::Rds | Kind::Vhds | Kind::Nds | Kind::Other => {}
        }
    }

    /// Records the removal of an upstream cluster.
    pub(crate) fn went(&mut self, at_ns: u64, proxy: u32, name: &[u8]) {
        self.note(at_ns, proxy, (Seen::Removed, &name[hostname_of(name)..]), &[]);
    }

    fn note(&mut self, at_ns: u64, proxy: u32, (seen, name): (Seen, &[u8]), body: &[u8]) {
        self.waiting_bytes += body.len();
        self.waiting.push(Arrival { at_ns, proxy, key: (seen, name.into()), body: body.into() });
    }

    /// Searches the responses that have waited long enough, for changes made from `since_ns` on.
    pub(crate) fn look(&mut self, stamps: &Stamps, since_ns: u64) {
        let (new, until_ns) = stamps.after(self.taken);
        for stamp in new {
            if stamp.at_ns >= since_ns {
                let key = (stamp.seen, stamp.key().as_bytes().into());
                let find = |needle| memmem::Finder::new(&needle).into_owned();
                self.by_key.entry(key).or_default().push(Wanted {
                    index: self.taken,
                    at_ns: stamp.at_ns,
                    finder: (stamp.seen == Seen::Assignment).then(|| find(stamp.needle())),
                    had_by: Vec::new(),
                });
            }
            self.taken += 1;
        }
        let ready = self.waiting.partition_point(|arrival| arrival.at_ns < until_ns);
        for arrival in self.waiting.drain(..ready) {
            self.waiting_bytes -= arrival.body.len();
            let Some(wanted) = self.by_key.get_mut(&arrival.key) else { continue };
            wanted.retain(|wanted| arrival.at_ns < wanted.at_ns.saturating_add(LOOKED_FOR_NS));
            for wanted in wanted {
                if !wanted.has(arrival.proxy) && wanted.is_shown_by(&arrival) {
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

    /// Returns the delays with which proxies received each change, by the change's index.
    pub(crate) fn seen(&self) -> &BTreeMap<usize, Vec<u64>> {
        &self.seen
    }
}

impl Wanted {
    fn is_shown_by(&self, arrival: &Arrival) -> bool {
        match &self.finder {
            Some(finder) => finder.find(&arrival.body).is_some(),
            // The change is recognized by the name alone, which may have arrived earlier for
            // another reason.
            None => arrival.at_ns >= self.at_ns,
        }
    }

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

/// Returns the index of the hostname in `outbound|80|SUBSET|HOST` and `outbound_.80_._.HOST`.
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
            seen: Seen::Assignment,
        };
        let stamps = of.iter().map(stamp).collect();
        Stamps(Arc::new(Mutex::new(Known { stamps, until_ns, wanted: false })))
    }

    const NAME: &[u8] = b"outbound|80||a.ns.svc.cluster.local";

    #[test]
    fn change_is_recorded_once_per_proxy_and_only_for_the_whole_address() {
        let mut sightings = Sightings::default();
        let body = b"..\x12\x0b100.64.0.12..";
        for (at_ns, proxy) in [(150, 0), (160, 0), (170, 9)] {
            came(&mut sightings, at_ns, proxy, body);
        }
        let stamps = stamps(&[("100.64.0.1", 100), ("100.64.0.12", 100)], 200);
        sightings.look(&stamps, 0);
        assert_eq!(sightings.seen, [(1, vec![50, 70])].into());
    }

    /// Records an assignment.
    fn came(sightings: &mut Sightings, at_ns: u64, proxy: u32, body: &[u8]) {
        sightings.came(at_ns, proxy, Kind::Eds, &Resource { name: NAME, version: b"", body });
    }

    #[test]
    fn changes_of_services_and_pods_are_recognized_by_name() {
        let mut sightings = Sightings::default();
        let of = |name: &'static str| Resource { name: name.as_bytes(), version: b"", body: b"" };
        // Before the change was made, the cluster existed for another reason.
        sightings.came(90, 0, Kind::Cds, &of("outbound|80||a.ns.svc.cluster.local"));
        sightings.came(110, 0, Kind::Cds, &of("outbound|80||a.ns.svc.cluster.local"));
        sightings.came(120, 0, Kind::Cds, &of("outbound|81||a.ns.svc.cluster.local"));
        sightings.came(130, 1, Kind::Lds, &of("100.64.0.2_9000"));
        sightings.came(140, 1, Kind::Lds, &of("100.64.0.20_9000"));
        sightings.went(150, 2, NAME);
        let known = stamps(&[("100.64.0.1", 100), ("100.64.0.2", 100), ("100.64.0.3", 100)], 200);
        for (stamp, seen) in
            known.known().stamps.iter_mut().zip([Seen::Added, Seen::Listener, Seen::Removed])
        {
            stamp.seen = seen;
        }
        sightings.look(&known, 0);
        assert_eq!(sightings.seen, [(0, vec![10]), (1, vec![30]), (2, vec![50])].into());
    }

    #[test]
    fn response_waits_for_the_stamp_of_its_change() {
        let mut sightings = Sightings::default();
        came(&mut sightings, 150, 0, b"\x12\x0a100.64.0.1");
        sightings.look(&stamps(&[], 140), 0);
        assert!(sightings.seen.is_empty());
        sightings.look(&stamps(&[("100.64.0.1", 145)], 160), 0);
        assert_eq!(sightings.seen, [(0, vec![5])].into());
    }

    #[test]
    fn stamps_are_requested_early_when_many_bytes_wait() {
        let mut sightings = Sightings::default();
        let stamps = stamps(&[], 140);
        let wanted = |sightings: &mut Sightings| {
            sightings.look(&stamps, 0);
            stamps.known().wanted
        };
        came(&mut sightings, 150, 0, &[0; MUCH]);
        assert!(!wanted(&mut sightings));
        came(&mut sightings, 160, 0, &[0]);
        assert!(wanted(&mut sightings));
        stamps.learn(Vec::new(), 170);
        assert!(!wanted(&mut sightings));
    }

    #[test]
    fn proxy_with_two_ports_of_a_host_is_counted_once() {
        let mut sightings = Sightings::default();
        for (proxy, name) in [(0, "80||a"), (0, "443||a"), (0, "80||b"), (3, "443||a")] {
            sightings.asked(proxy, format!("outbound|{name}").as_bytes());
        }
        let askers: BTreeMap<_, _> = sightings.askers().collect();
        assert_eq!(askers, [("a".to_owned(), 2), ("b".to_owned(), 1)].into());
    }

    #[test]
    fn change_before_the_run_is_ignored() {
        let mut sightings = Sightings::default();
        came(&mut sightings, 150, 0, b"\x12\x0a100.64.0.1");
        sightings.look(&stamps(&[("100.64.0.1", 100)], 200), 120);
        assert!(sightings.seen.is_empty());
    }

    #[test]
    fn hostname_is_found_in_both_name_formats() {
        for name in [NAME, b"outbound_.80_._.a.ns.svc.cluster.local"] {
            assert_eq!(&name[hostname_of(name)..], b"a.ns.svc.cluster.local");
        }
    }
}
