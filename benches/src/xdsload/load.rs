//! The proxies of a thread: each connects, subscribes, and reconnects when it is disconnected or
//! instructed to.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::LocalSet;

use crate::changes::{PERIOD, Sightings, Stamps, now_ns};
use crate::connection::{self, Server, Stream};
use crate::names::Names;
use crate::response::{Event, Reader};
use crate::session::{Profile, Session};
use crate::tokens::Token;
use crate::wire::{ByKind, Kind};

/// The first delay before a retry.
const PAUSE: Duration = Duration::from_millis(100);

/// The stage of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// All proxies connect.
    First,
    /// All proxies reconnect at once.
    Again,
    /// All proxies are connected.
    Steady(Steady),
    /// The run is over.
    Over,
}

/// A window of the time in which all proxies are connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Steady {
    /// The start of the steady stage (`CLOCK_MONOTONIC` in nanoseconds).
    pub(crate) since_ns: u64,
    /// The number of this window, from 0 on.
    pub(crate) window: u32,
}

impl Stage {
    /// The index of the first window of the steady stage in the separate counters.
    pub(crate) const STEADY: usize = 2;

    /// Returns the index in the separate counters, or `None` after the end, when no event is
    /// counted.
    fn index(self) -> Option<usize> {
        match self {
            Self::First => Some(0),
            Self::Again => Some(1),
            Self::Steady(Steady { window, .. }) => Some(Self::STEADY + window as usize),
            Self::Over => None,
        }
    }
}

/// The counters of one stage.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counts {
    pub(crate) bytes: ByKind<u64>,
    pub(crate) messages: ByKind<u64>,
    pub(crate) resources: ByKind<u64>,
    pub(crate) acks: u64,
    pub(crate) nacks: u64,
    pub(crate) connections: u64,
    /// The errors of streams and connection attempts, with their number.
    pub(crate) errors: BTreeMap<String, u64>,
    pub(crate) received: u64,
    pub(crate) sent: u64,
}

/// A proxy that has received all subscribed resources.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InSync {
    pub(crate) proxy: u32,
    pub(crate) at_ns: u64,
}

/// The configuration of one proxy.
pub(crate) struct Proxy {
    pub(crate) profile: Profile,
    pub(crate) tls: Arc<ClientConfig>,
    /// The token of a proxy without a certificate.
    pub(crate) token: Option<Token>,
    pub(crate) slow: bool,
}

/// The input of a thread.
pub(crate) struct Thread {
    /// At least one server.
    pub(crate) servers: Vec<Server>,
    pub(crate) proxies: Vec<Proxy>,
    pub(crate) connecting: usize,
    pub(crate) longest_pause: Duration,
    pub(crate) stage: watch::Receiver<Stage>,
    /// Unbounded: contains at most a few messages for each proxy.
    pub(crate) in_sync: mpsc::UnboundedSender<InSync>,
    pub(crate) stamps: Option<Stamps>,
}

/// The results of a thread.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// Counters by [`Stage::index`].
    pub(crate) counts: Vec<Counts>,
    pub(crate) sightings: Sightings,
}

impl Findings {
    fn counts(&mut self, stage: Stage) -> Option<&mut Counts> {
        let index = stage.index()?;
        if self.counts.len() <= index {
            self.counts.resize(index + 1, Counts::default());
        }
        self.counts.get_mut(index)
    }
}

/// The state that the proxies of a thread share.
struct Shared {
    servers: Vec<Server>,
    connecting: Semaphore,
    longest_pause: Duration,
    connections: connection::Shared,
    names: RefCell<Names>,
    findings: RefCell<Findings>,
    in_sync: mpsc::UnboundedSender<InSync>,
    watches: bool,
}

impl Shared {
    fn count(&self, stage: Stage, what: impl FnOnce(&mut Counts)) {
        if let Some(counts) = self.findings.borrow_mut().counts(stage) {
            what(counts);
        }
    }
}

/// Runs until the stage is [`Stage::Over`].
pub(crate) fn run(thread: Thread) -> std::io::Result<Findings> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(LocalSet::new().block_on(&runtime, proxies(thread)))
}

async fn proxies(thread: Thread) -> Findings {
    let mut stage = thread.stage;
    let shared = Rc::new(Shared {
        servers: thread.servers,
        connecting: Semaphore::new(thread.connecting),
        longest_pause: thread.longest_pause,
        connections: connection::Shared::default(),
        names: RefCell::default(),
        findings: RefCell::default(),
        in_sync: thread.in_sync,
        watches: thread.stamps.is_some(),
    });
    for proxy in thread.proxies {
        tokio::task::spawn_local(live(Rc::clone(&shared), proxy, stage.clone()));
    }
    let mut metered = (0, 0);
    let mut now = *stage.borrow_and_update();
    loop {
        match &thread.stamps {
            Some(stamps) => {
                if let Stage::Steady(Steady { since_ns, .. }) = now {
                    shared.findings.borrow_mut().sightings.look(stamps, since_ns);
                }
                let _ = tokio::time::timeout(PERIOD, stage.changed()).await;
            }
            // The other end is not dropped before this loop has ended.
            None => _ = stage.changed().await,
        }
        // Checked even if this was not the awaited event, because the change may have happened just
        // after.
        let next = *stage.borrow_and_update();
        if next == now {
            continue;
        }
        // Bytes since the start of the previous stage belong to that stage.
        let counted = (shared.connections.received.get(), shared.connections.sent.get());
        shared.count(now, |counts| {
            counts.received += counted.0 - metered.0;
            counts.sent += counted.1 - metered.1;
        });
        metered = counted;
        if next == Stage::Over {
            last_look(&shared, thread.stamps.as_ref(), now).await;
            return shared.findings.take();
        }
        now = next;
    }
}

/// Waits until all changes before the last responses are known, and searches these responses.
async fn last_look(shared: &Shared, stamps: Option<&Stamps>, stage: Stage) {
    let (Some(stamps), Stage::Steady(Steady { since_ns, .. })) = (stamps, stage) else { return };
    let over_ns = now_ns();
    for _ in 0..50 {
        if stamps.until_ns() > over_ns {
            break;
        }
        stamps.want();
        tokio::time::sleep(PERIOD).await;
    }
    shared.findings.borrow_mut().sightings.look(stamps, since_ns);
}

/// Runs one proxy from the first connection to the end.
async fn live(shared: Rc<Shared>, proxy: Proxy, stage: watch::Receiver<Stage>) {
    let mut session = Session::new(proxy.profile.clone());
    let mut failures = 0;
    let mut turn = 0;
    loop {
        let now = *stage.borrow();
        if now == Stage::Over {
            return;
        }
        let ended = tokio::select! {
            // A new stage ends the connection, unless it is the steady stage.
            () = cut(stage.clone(), now) => { failures = 0; continue }
            ended = stream(&shared, turn, &proxy, &mut session, &stage) => ended,
        };
        failures = if ended.worked { 0 } else { failures + 1 };
        turn += 1;
        shared.count(*stage.borrow(), |counts| *counts.errors.entry(ended.error).or_default() += 1);
        // Each proxy has a slightly different delay, to avoid waves of reconnects.
        let pause = PAUSE * (1 << failures.min(6))
            + Duration::from_millis(u64::from(proxy.profile.number % 97));
        tokio::time::sleep(pause.min(shared.longest_pause)).await;
    }
}

async fn cut(mut stage: watch::Receiver<Stage>, since: Stage) {
    let cuts =
        |next: &Stage| *next == Stage::Over || (*next == Stage::Again && since == Stage::First);
    // If the sender is dropped, the run is over.
    let _ = stage.wait_for(cuts).await;
}

struct Ended {
    /// Whether the stream received anything before it ended.
    worked: bool,
    error: String,
}

async fn stream(
    shared: &Shared,
    turn: usize,
    proxy: &Proxy,
    session: &mut Session,
    stage: &watch::Receiver<Stage>,
) -> Ended {
    let Profile { number, form, rejects, .. } = proxy.profile;
    let mut worked = false;
    let mut listed = !shared.watches || *stage.borrow() != Stage::First;
    let mut requests = Vec::new();
    let spoken = async {
        let server = shared.servers.get(turn % shared.servers.len().max(1));
        let server = server.ok_or("there is no server")?;
        let mut stream = {
            let permit = shared.connecting.acquire().await;
            let _permit = permit.map_err(|error| error.to_string())?;
            Stream::open(
                server,
                form,
                number,
                (Arc::clone(&proxy.tls), proxy.token.as_ref()),
                proxy.slow,
                &shared.connections,
            )
            .await?
        };
        shared.count(*stage.borrow(), |counts| counts.connections += 1);
        session.begin(&mut shared.names.borrow_mut(), &mut requests);
        stream.send(&requests)?;
        requests = Vec::new();
        let mut reader = Reader::new(form);
        loop {
            requests.clear();
            let received = stream.receive(|data| {
                let mut findings = shared.findings.borrow_mut();
                let names = &mut shared.names.borrow_mut();
                reader.take(data, |event| match event {
                    Event::Resource(kind, resource) => {
                        session.take(kind, &resource, names);
                        if shared.watches && session.been_in_sync() {
                            findings.sightings.came(now_ns(), number, kind, &resource);
                        }
                    }
                    Event::End(response) => {
                        worked = true;
                        if shared.watches && session.been_in_sync() && response.kind == Kind::Cds {
                            for name in &response.removed {
                                findings.sightings.went(now_ns(), number, name);
                            }
                        }
                        let step = session.end(&response, names, &mut requests);
                        let stage = *stage.borrow();
                        if let Some(counts) = findings.counts(stage) {
                            let kind = response.kind.index();
                            counts.bytes[kind] += response.bytes;
                            counts.messages[kind] += 1;
                            counts.resources[kind] += step.resources;
                            *(if rejects { &mut counts.nacks } else { &mut counts.acks }) += 1;
                        }
                        // A later change may add subscriptions, which no measurement waits for.
                        if step.came_in_sync && !matches!(stage, Stage::Steady(_)) {
                            if !std::mem::replace(&mut listed, true) {
                                session
                                    .asks_for(names, |name| findings.sightings.asked(number, name));
                            }
                            // The receiver is dropped when the run is over.
                            let at_ns = now_ns();
                            let _ = shared.in_sync.send(InSync { proxy: number, at_ns });
                        }
                    }
                })
            });
            received.await?;
            if !requests.is_empty() {
                stream.send(&requests)?;
            }
        }
    };
    let spoken: Result<std::convert::Infallible, String> = spoken.await;
    let Err(error) = spoken;
    Ended { worked, error }
}
