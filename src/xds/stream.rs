//! One ADS stream: moves requests into the session and responses out of it, at the pace of the client.
//!
//! Responses are made only when the transport asks for one, so a slow client holds one pending set and
//! at most one message. Everything that ends a stream is decided here, and counted by reason.

use std::collections::HashSet;
use std::future::pending;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use futures::FutureExt;
use strait_proto::envoy::envoy::config::core::v3::Node;
use tokio::time::Instant;
use tonic::Status;
use tracing::{debug, error, info, warn};

use super::admission::{self, admit};
use super::budgets::{Account, Charge, OverBudget};
use super::connections::{Entry, lock};
use super::generate::{Cache, Picture};
use super::grpc::Requests;
use super::lane::Turn;
use super::names::OutboundName;
use super::node;
use super::request::Request;
use super::resource::{ResourceSource, ResourceType};
use super::rope::Rope;
use super::server::{Line, Shared};
use super::session::{Form, Handled, RESPONSE_BYTES, Response, Rewatched, Session, Violation};
use crate::codes;
use crate::hash::Secret;
use crate::model::{NodeError, Proxy};
use crate::push::PushContext;
use crate::push::interest::{Dirty, Subscription};
use crate::push::scope::{Stand, Wildcards};

/// A stream that says nothing for this long after it was opened is closed.
const FIRST_REQUEST_LIMIT: Duration = Duration::from_secs(10);
/// How often changes are told: once in this time, on average.
const CHANGES_SPACING: Duration = Duration::from_millis(50);
/// How far ahead of that average a stream may be, so that changes that come near each other by chance need
/// not wait: ten times.
const CHANGES_BURST: Duration = Duration::from_millis(450);
/// Responses are put together until they have this many bytes, and written at once.
const WRITE_BYTES: usize = 64 << 10;
/// What [`Stream::responses`] may come to, mostly: less than a write, and one response more.
const MUCH_BYTES: usize = WRITE_BYTES + RESPONSE_BYTES;
/// Requests that answer nothing: at most this many a second, and in a burst.
const REQUESTS_PER_SECOND: f64 = 50.0;
/// See [`REQUESTS_PER_SECOND`].
const REQUESTS_BURST: f64 = 500.0;

/// Why a stream ended. The word is a label of a metric.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) reason: &'static str,
    /// What the client is told; fine if nothing.
    pub(super) status: Option<Status>,
}

impl Ended {
    fn by(reason: &'static str, status: Status) -> Self {
        Self { reason, status: Some(status) }
    }
}

/// The state of one stream.
pub(super) struct Stream {
    shared: Arc<Shared>,
    line: Arc<Line>,
    /// Nobody else changes it: the admin API reads it.
    session: Arc<Mutex<Session>>,
    /// The proxy, once its first request has been let in.
    admitted: Option<AdmittedStream>,
    opened: Instant,
    pace: Pace,
    /// What is due was looked at, and there is nothing to send before something else happens.
    idle: bool,
    /// Much was due when it was last looked at.
    much_due: bool,
    /// When the first change was heard that nothing has been sent of.
    untold_since: Option<std::time::Instant>,
    budget: Budget,
    /// Why it ends, once it does.
    reason: &'static str,
}

struct AdmittedStream {
    proxy: Arc<Proxy>,
    entry: Entry,
    subscription: Subscription,
    /// Of which types it is said to watch all there is.
    lists: Wildcards,
    /// Whether its cluster was there at some time on this stream.
    cluster_seen: bool,
    account: Account,
    /// The names that it watches and that stand for no service.
    made_up: HashSet<(ResourceType, Arc<str>), Secret>,
}

impl AdmittedStream {
    /// What the proxy shall hold.
    fn picture<'a>(&'a self, context: &'a Arc<PushContext>, cache: &'a Cache) -> Picture<'a> {
        let (network, whereabouts) = self.entry.connection().place();
        Picture::new(context, &self.proxy, network, cache).at(whereabouts)
    }

    /// Says where it stands, and whether that is new. That changes with what it hears of wherever it stands:
    /// networks, its own workload, and what is known of its machine or node.
    fn stand(&self, context: &Arc<PushContext>, cache: &Cache) -> bool {
        let (network, whereabouts) = self.entry.connection().place();
        let stand = Stand { proxy: Arc::clone(&self.proxy), network, whereabouts };
        self.subscription.stand(stand, self.picture(context, cache).vantage())
    }

    /// Charges for what it watches otherwise than before.
    fn charge(
        &mut self,
        context: Option<&PushContext>,
        rewatched: &Rewatched,
    ) -> Result<(), OverBudget> {
        let mut charge = self.account.charge();
        let Rewatched { assignments, routes, others_dropped, others_new } = rewatched;
        let of = |kind, names: &[Arc<str>]| {
            let names = names.iter().map(|name| (kind, Arc::clone(name)));
            names.collect::<Vec<_>>()
        };
        let both = |assignments: &[Arc<str>], routes: &[Arc<str>]| {
            [of(ResourceType::Endpoint, assignments), of(ResourceType::Route, routes)].concat()
        };
        for one in both(&assignments.dropped, &routes.dropped).iter().chain(others_dropped) {
            if self.made_up.remove(one) {
                charge.made_up = charge.made_up.saturating_sub(1);
                charge.made_up_text = charge.made_up_text.saturating_sub(one.1.len() as u64);
            } else {
                charge.names = charge.names.saturating_sub(1);
            }
        }
        for one in both(&assignments.new, &routes.new).into_iter().chain(others_new.clone()) {
            // What can't be judged yet is believed.
            if context.is_none_or(|context| is_of_service(context, one.0, &one.1)) {
                charge.names += 1;
            } else {
                charge.made_up += 1;
                charge.made_up_text += one.1.len() as u64;
                self.made_up.insert(one);
            }
        }
        self.account.set(charge)
    }

    /// Whether all that was known of the proxy's cluster has been withdrawn. Such a proxy keeps its
    /// configuration, as it would if it reconnected and was refused: else its workload would lose its
    /// own listeners because somebody removed a Secret elsewhere. It still hears of the endpoints of
    /// services that other clusters have.
    fn is_withdrawn(&mut self, context: &PushContext) -> bool {
        let there = context.network_labels.contains_key(&self.proxy.cluster);
        self.cluster_seen |= there;
        self.cluster_seen && !there
    }
}

impl Stream {
    pub(super) fn new(shared: Arc<Shared>, line: Arc<Line>, form: Form) -> Self {
        let now = Instant::now();
        Self {
            shared,
            line,
            session: Arc::new(Mutex::new(Session::new(form))),
            admitted: None,
            opened: now,
            pace: Pace(now),
            idle: false,
            much_due: false,
            untold_since: None,
            budget: Budget::full(now),
            reason: "transport",
        }
    }

    /// Notes why it ends.
    pub(super) fn ends(&mut self, reason: &'static str) {
        self.reason = reason;
    }

    /// Takes requests and changes until there may be something to send.
    pub(super) async fn until_due(&mut self, requests: &mut Requests) -> Result<(), Ended> {
        while self.idle || self.admitted.is_none() || !lock(&self.session).is_due() {
            let first_request_limit = self.opened + FIRST_REQUEST_LIMIT;
            tokio::select! {
                biased;
                ending = self.line.ended() => {
                    return Err(Ended::by(ending.reason(), Status::unavailable(ending.text())));
                }
                () = shed(self.admitted.as_ref()) => {
                    let code = &codes::MEMORY_SHORT;
                    let text = format!("{code}: {}; come again", code.title);
                    return Err(Ended::by("memory", Status::unavailable(text)));
                }
                request = requests.message() => match request {
                    Ok(Some(request)) => self.take(request.content())?,
                    Ok(None) => return Err(Ended { reason: "client", status: None }),
                    Err(status) => return Err(Ended::by("transport", status)),
                },
                () = changed(self.admitted.as_ref(), self.pace) => self.take_changes()?,
                () = tokio::time::sleep_until(first_request_limit), if self.admitted.is_none() => {
                    let text = "no request within 10 s of opening the stream";
                    return Err(Ended::by("silent", Status::deadline_exceeded(text)));
                }
            }
        }
        Ok(())
    }

    /// Waits for its turn, where much is to be sent.
    pub(super) async fn turn(&mut self) -> Option<Turn> {
        let much = lock(&self.session).is_much_due();
        let goes_on = std::mem::replace(&mut self.much_due, much);
        if !much {
            return None;
        }
        if !goes_on {
            self.shared.stats.large_syncs.fetch_add(1, Ordering::Relaxed);
        }
        Some(self.shared.lane.turn(MUCH_BYTES).await)
    }

    /// What is to be sent now, of all types that have something, within a limit for one write.
    pub(super) fn responses(&mut self) -> Rope {
        let mut rope = Rope::default();
        while rope.len() < WRITE_BYTES
            && let Some(response) = self.due()
        {
            response.encode_message(&mut rope);
        }
        while rope.len() < WRITE_BYTES
            && let Some(nothing) = lock(&self.session).next_nothing()
        {
            nothing.encode_message(&mut rope);
        }
        self.idle = rope.is_empty();
        if let Some(since) = self.untold_since.take()
            && !self.idle
        {
            self.shared.stats.propagation.observe(since.elapsed());
        }
        rope
    }

    /// What the session has to send now.
    fn due(&mut self) -> Option<Response> {
        let admitted = self.admitted.as_mut()?;
        let mut session = lock(&self.session);
        if !session.is_due() {
            return None;
        }
        let context = self.shared.context()?;
        let withdrawn = admitted.is_withdrawn(&context);
        let proxy = &admitted.proxy;
        let mut picture = admitted.picture(&context, &self.shared.cache);
        let now = SystemTime::now();
        let response = if withdrawn {
            let is_known = |name: &str| {
                let name = OutboundName::parse(name);
                name.is_some_and(|name| context.services.contains_key(&name.hostname))
            };
            session.next_assignments(&mut picture, is_known, RESPONSE_BYTES, now)?
        } else {
            session.next_response(&mut picture, RESPONSE_BYTES, now)?
        };
        let bytes = response.encoded_len();
        self.shared.stats.sent(response.kind, response.count(), bytes);
        debug!(
            proxy = %proxy.id,
            kind = response.kind.short(),
            resources = response.count(),
            removed = response.removed.len(),
            bytes,
            "sent"
        );
        Some(response)
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), Ended> {
        self.idle = false;
        self.shared.stats.requests.fetch_add(1, Ordering::Relaxed);
        let form = lock(&self.session).form();
        let request = Request::read(form, bytes).map_err(|error| {
            let text = format!("STR0502: not a request: {error}");
            Ended::by("violation", Status::invalid_argument(text))
        })?;
        if self.admitted.is_none()
            && let Some(node) = &request.node
        {
            // Who comes back with what it has is sent little.
            let budgets = self.shared.connections.budgets();
            if request.listed.is_empty() && budgets.defers() {
                let code = &codes::MEMORY_SHORT;
                let text = format!("{code}: {}; try again", code.title);
                return Err(Ended::by("memory", Status::unavailable(text)));
            }
            let admitted = self.let_in(node)?;
            if admitted.proxy.is_proxyless() {
                lock(&self.session).answer_completely();
            }
            self.admitted = Some(admitted);
        }
        let kind = ResourceType::of_url(request.type_url);
        // Only what the client lists is compared with what is there: most requests are mere answers.
        let lists = !request.listed.is_empty();
        let context = if lists { self.shared.context() } else { None };
        let admitted = self.admitted.as_ref().zip(context.as_ref());
        let mut picture =
            admitted.map(|(admitted, context)| admitted.picture(context, &self.shared.cache));
        let source = picture.as_mut().map(|picture| picture as &mut dyn ResourceSource);
        let handled = lock(&self.session)
            .on_request(request, source, SystemTime::now())
            .map_err(|violation| violation_status(&violation))?;
        if handled == Handled::Request && !self.budget.take(Instant::now()) {
            let text = "STR0503: more than 50 unasked-for requests a second";
            return Err(Ended::by("requests", Status::resource_exhausted(text)));
        }
        let Some(admitted) = &mut self.admitted else { return Ok(()) };
        // Before the answer is made: a change from here on marks this stream. A refusal may carry
        // names as well.
        let (rewatched, lists) = {
            let mut session = lock(&self.session);
            (session.rewatched(), session.lists())
        };
        let charged = admitted.charge(self.shared.context().as_deref(), &rewatched);
        charged.map_err(|over| over_budget(&over))?;
        let Rewatched { assignments, routes, .. } = rewatched;
        admitted.subscription.forget(&assignments.dropped);
        let hostname = |name: &str| OutboundName::parse(name).map(|name| name.hostname);
        admitted.subscription.watch(&assignments.new, hostname);
        admitted.subscription.watch_routes(&routes.new, &routes.dropped);
        if std::mem::replace(&mut admitted.lists, lists) != lists {
            admitted.subscription.watch_lists(lists);
        }
        // What changed since a list was compared has marked nobody.
        let is_old = |then: Arc<PushContext>| {
            !self.shared.context.borrow().as_ref().is_some_and(|now| Arc::ptr_eq(&then, now))
        };
        if context.is_some_and(is_old) {
            lock(&self.session).on_change(&Dirty { everything: true, ..Dirty::default() });
        }
        if handled == Handled::Refusal {
            self.tell_refusal(kind);
        }
        Ok(())
    }

    fn tell_refusal(&self, kind: Option<ResourceType>) {
        let (Some(kind), Some(admitted)) = (kind, &self.admitted) else { return };
        self.shared.stats.nacked(kind);
        let nack = lock(&self.session).progress().remove(&kind).and_then(|progress| progress.nack);
        let text = nack.map(|nack| nack.error).unwrap_or_default();
        warn!(
            code = "STR0507",
            proxy = %admitted.proxy.id,
            kind = kind.short(),
            error = text.chars().take(400).collect::<String>(),
            "the proxy refused what it was sent; it keeps what it had before"
        );
    }

    fn let_in(&self, node: &Node) -> Result<AdmittedStream, Ended> {
        let refuse = |text: String| {
            self.shared.stats.refused.fetch_add(1, Ordering::Relaxed);
            warn!(identity = %self.line.peer.id(), "proxy refused: {text}");
            text
        };
        let mut proxy = node::read(node).map_err(|error| {
            let status = match &error {
                // Well-formed, but not both claims can be true.
                NodeError::Namespace { .. } => {
                    Status::permission_denied(refuse(format!("{}: {error}", codes::CLAIM_IDENTITY)))
                }
                _ => Status::invalid_argument(refuse(format!("STR0501: {error}"))),
            };
            Ended::by("refused", status)
        })?;
        let settings = Arc::clone(&self.context()?.settings);
        if let Some(id) = settings.cluster_aliases.get(&proxy.cluster) {
            proxy.cluster = id.clone();
        }
        let key = (proxy.cluster.clone(), proxy.workload.clone());
        // Entered before the context is read, so that no change is missed.
        let subscription = self.shared.interest.subscribe(Some(key));
        let context = self.context()?;
        let admitted = admit(&context, &proxy, self.line.peer.id()).map_err(|refusal| {
            Ended::by("refused", Status::permission_denied(refuse(refusal.to_string())))
        })?;
        let proxy = Arc::new(proxy);
        let verified = admitted.verified;
        let identity = self.line.peer.id().clone();
        let account = self.shared.connections.budgets().open(&identity, verified);
        let account = account.map_err(|over| over_budget(&over))?;
        let entry = self
            .shared
            .connections
            .enter(Arc::clone(&proxy), identity, Arc::clone(&self.session), admitted)
            .ok_or_else(|| {
                let text = format!("STR0504: {} has 4 streams open already", proxy.id);
                Ended::by("refused", Status::resource_exhausted(refuse(text)))
            })?;
        info!(
            proxy = %proxy.id,
            cluster = %proxy.cluster,
            identity = %self.line.peer.id(),
            verified,
            "connected"
        );
        let stream = AdmittedStream {
            proxy,
            entry,
            subscription,
            lists: Wildcards::default(),
            cluster_seen: false,
            account,
            made_up: HashSet::default(),
        };
        stream.stand(&context, &self.shared.cache);
        Ok(stream)
    }

    fn take_changes(&mut self) -> Result<(), Ended> {
        self.idle = false;
        let Some(admitted) = &mut self.admitted else { return Ok(()) };
        let dirty = admitted.subscription.take();
        // After that, so that it is at least the version that marked this stream.
        let context = self.shared.context().ok_or_else(not_ready)?;
        if dirty.everything {
            // Its pod or WorkloadEntry may have come, or the network of its cluster changed.
            let before = admitted.entry.connection().network();
            let now = admission::readmit(&context, &admitted.proxy, self.line.peer.id(), before)
                .map_err(|refusal| {
                    self.shared.stats.refused.fetch_add(1, Ordering::Relaxed);
                    warn!(
                        code = refusal.code.id,
                        proxy = %admitted.proxy.id,
                        identity = %self.line.peer.id(),
                        "the proxy's stream is ended: {refusal}"
                    );
                    Ended::by("contradicted", Status::permission_denied(refusal.to_string()))
                })?;
            let charge = Charge { verified: now.verified, ..admitted.account.charge() };
            admitted.account.set(charge).map_err(|over| over_budget(&over))?;
            admitted.entry.readmit(now);
            // Until now it heard of what is seen from where it stood.
            admitted.stand(&context, &self.shared.cache);
        }
        let mut session = lock(&self.session);
        session.on_change(&dirty);
        if session.is_due() {
            self.untold_since = self.untold_since.or(dirty.since);
        }
        drop(session);
        self.pace.step(Instant::now());
        Ok(())
    }

    fn context(&self) -> Result<Arc<PushContext>, Ended> {
        self.shared.context().ok_or_else(not_ready)
    }
}

fn not_ready() -> Ended {
    let text = "the mesh is not known completely yet; try again";
    Ended::by("not ready", Status::unavailable(text))
}

/// Does a part of a stream's work. If that panics the stream ends with a status, and nothing else does.
pub(super) async fn contained<T>(work: impl Future<Output = Result<T, Ended>>) -> Result<T, Ended> {
    // What a panic leaves behind is the state of this stream, which ends with it.
    AssertUnwindSafe(work).catch_unwind().await.unwrap_or_else(|_| {
        error!(code = %codes::STREAM_FAULT, "a stream panicked; it ends, everything else goes on");
        let text = format!("{}: {}", codes::STREAM_FAULT, codes::STREAM_FAULT.title);
        Err(Ended::by("panic", Status::internal(text)))
    })
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Some(admitted) = &self.admitted {
            let reason = self.line.cut().unwrap_or(self.reason);
            info!(proxy = %admitted.proxy.id, reason, "disconnected");
            self.shared.connections.leave(admitted.account.pieces());
        }
    }
}

/// Ends a stream whose identity takes more than its budget.
fn over_budget(over: &OverBudget) -> Ended {
    let code = &codes::IDENTITY_BUDGET;
    warn!(code = code.id, "a stream is ended: {over}");
    Ended::by("budget", Status::resource_exhausted(format!("{code}: {over}. {}", code.next)))
}

/// Whether a name of that type stands for a service.
fn is_of_service(context: &PushContext, kind: ResourceType, name: &str) -> bool {
    let is_known =
        |host: &str| context.services.get(host).is_some() || context.private.get(host).is_some();
    match kind {
        ResourceType::Endpoint | ResourceType::Cluster => {
            OutboundName::parts(name).is_some_and(|(host, ..)| is_known(host))
        }
        ResourceType::Route => {
            let host = name.rsplit_once(':').map(|(host, _)| host);
            name.parse::<u16>().is_ok() || host.is_some_and(is_known)
        }
        ResourceType::Listener | ResourceType::NameTable => false,
    }
}

/// Waits until the stream must end, since memory is short.
async fn shed(admitted: Option<&AdmittedStream>) {
    match admitted {
        Some(admitted) => admitted.account.ended().await,
        None => pending().await,
    }
}

fn violation_status(violation: &Violation) -> Ended {
    Ended::by("violation", Status::invalid_argument(violation.to_string()))
}

/// Waits until there is something to look at, and the stream is not too far ahead.
async fn changed(admitted: Option<&AdmittedStream>, pace: Pace) {
    match admitted {
        Some(admitted) => {
            admitted.subscription.changed().await;
            let wait = pace.wait(Instant::now());
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
        }
        None => pending().await,
    }
}

/// How fast changes are told: those that have been, at [`CHANGES_SPACING`] each time, last until then.
#[derive(Debug, Clone, Copy)]
struct Pace(Instant);

impl Pace {
    /// How long the next one waits.
    fn wait(self, now: Instant) -> Duration {
        self.0.saturating_duration_since(now).saturating_sub(CHANGES_BURST)
    }

    /// Takes note of one.
    fn step(&mut self, now: Instant) {
        self.0 = self.0.max(now) + CHANGES_SPACING;
    }
}

/// A token bucket for requests that answer nothing.
struct Budget {
    tokens: f64,
    at: Instant,
}

impl Budget {
    fn full(now: Instant) -> Self {
        Self { tokens: REQUESTS_BURST, at: now }
    }

    fn take(&mut self, now: Instant) -> bool {
        let refill = now.duration_since(self.at).as_secs_f64() * REQUESTS_PER_SECOND;
        self.at = now;
        self.tokens = (self.tokens + refill).min(REQUESTS_BURST);
        let enough = self.tokens >= 1.0;
        if enough {
            self.tokens -= 1.0;
        }
        enough
    }
}

#[cfg(test)]
mod tests;
