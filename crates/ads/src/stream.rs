//! One ADS stream: moves requests into the session and responses out of it at the client's pace.
//!
//! Responses are built only when the transport requests one, so a slow client uses the memory of
//! one set of pending names and at most one message. This module decides when a stream ends. The
//! ends are counted by reason.

mod debug_answers;
mod followed;
mod followed_secrets;
mod moves;
mod of_service;
mod request_budget;
mod resubscription;
mod secrets;
mod side;
mod wakeups;

use std::collections::{HashSet, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use futures::FutureExt;
use tokio::time::Instant;
use tonic::Status;
use tracing::{debug, error, info, warn};

use self::followed_secrets::FollowedSecrets;
use self::request_budget::RequestBudget;
use self::side::{Side, cache_of, context_of};
use self::wakeups::{CHANGES, EVENTS, TIME, Wakeups};
use super::admission::{self, AdmissionRefusal, Admitted, admit};
use super::budgets::{Charge, OverBudget, Refused, StreamAccount};
use super::connections::ConnectionEntry;
use super::grpc::{GrpcMessage, Requests};
use super::pace::Pace;
use super::shared::{ConnectionShared, ServerShared};
use super::sync_limiter::SyncPermit;
use super::{debug_types, node};
use strait_base::bounded::{bounded, head};
use strait_base::codes;
use strait_base::hash::SecretHasher;
use strait_base::lock::lock;
use strait_base::wake::WakeHandle;
use strait_envoy::{Cache, ProxyConfig, RetainedRoutes};
use strait_http2::Rope;
use strait_identity::{Caller, SpiffeId};
use strait_mesh::push::PushContext;
use strait_mesh::push::scope::ProxyLocation;
use strait_mesh::push::subscription_index::Subscription;
use strait_mesh::timeline::Receipt;
use strait_model::dirty::{Dirty, Wildcards};
use strait_model::{ClusterId, NodeError, Proxy, VirtualHostDelivery};
use strait_proto::envoy::envoy::config::core::v3::Node;
use strait_xds::names::hostname_of;
use strait_xds::request::AdsRequest;
use strait_xds::resource::{ResourceSource, ResourceType};
use strait_xds::secrets::SECRET;
use strait_xds::session::{Handled, ProtocolForm, RESPONSE_BYTES, Response, Session, Violation};
use strait_xds::unknown_types::SideResponse;

/// The time limit for the first request after the stream was opened.
const FIRST_REQUEST_LIMIT: Duration = Duration::from_secs(10);
/// The number of bytes up to which responses are combined into one write.
const WRITE_BYTES: usize = 64 << 10;
/// The usual maximum of [`Stream::responses`], in bytes: less than one write, plus one response.
const MUCH_BYTES: usize = WRITE_BYTES + RESPONSE_BYTES;
/// The maximum number of debug requests (istioctl) on one stream. Each may concern all proxies.
const DEBUG_ANSWERS_MAX: u64 = 8;
/// The maximum number of unanswered changes whose receipts a stream stores.
const RECEIPTS_MAX: usize = 64;
/// The number of names in a request above which the charge is checked before subscribing.
const NAMES_MANY: usize = 4096;

/// The reason why a stream ended. The name is a label of a metric.
#[derive(Debug)]
pub(super) struct StreamEnd {
    pub(super) reason: &'static str,
    /// The status for the client; OK if `None`.
    pub(super) status: Option<Status>,
}

impl StreamEnd {
    fn by(reason: &'static str, status: Status) -> Self {
        Self { reason, status: Some(status) }
    }
}

/// The state of one stream.
pub(super) struct Stream {
    shared: Arc<ServerShared>,
    line: Arc<ConnectionShared>,
    /// The caller that opened the stream.
    caller: Caller,
    /// The time at which the stream ends: at or shortly before the token's expiry.
    ends_at: Option<Instant>,
    form: ProtocolForm,
    /// The session. Only this stream changes it; the admin API reads it.
    session: Arc<Mutex<Session>>,
    /// The proxy, once its first request has been admitted.
    admitted: Option<AdmittedStream>,
    opened: Instant,
    pace: Pace,
    /// The cost so far of changes that were taken but not sent, and their number of streams.
    sending: Option<(Duration, usize)>,
    /// Whether the due names were checked and nothing can be sent before the next event.
    idle: bool,
    /// The time at which a response no longer waits for the client's answer, while `idle`.
    waits_until: Option<Instant>,
    /// Whether a large amount was due at the last check.
    much_due: bool,
    /// The time of the first unsent change, and the version that was served then.
    pending_since: Option<(std::time::Instant, u64)>,
    budget: RequestBudget,
    /// The receipts of taken changes that the client has not answered yet.
    receipts: Vec<Receipt>,
    wakeups: Wakeups,
    /// The subscribed secrets that the stream follows.
    secrets: FollowedSecrets,
    /// Responses to debug requests (istioctl), and their number so far.
    debug: VecDeque<SideResponse>,
    debug_answers: u64,
    /// The reason why the stream ends, once it is known.
    reason: &'static str,
}

struct AdmittedStream {
    proxy: Arc<Proxy>,
    entry: ConnectionEntry,
    subscription: Subscription,
    /// Wakes the stream when its subscription has changes.
    wake: WakeHandle,
    /// The wildcard types that the stream is registered for.
    lists: Wildcards,
    /// Whether the proxy's cluster existed at some time during this stream.
    cluster_seen: bool,
    account: StreamAccount,
    /// The subscribed names that refer to no service.
    made_up: HashSet<(ResourceType, Arc<str>), SecretHasher>,
    /// The configuration that the stream is served, if it is not the one for all proxies.
    side: Option<Side>,
    routes: RetainedRoutes,
}

impl AdmittedStream {
    /// Returns the generators for the proxy's resources.
    fn proxy_config<'a>(
        &'a self,
        context: &'a Arc<PushContext>,
        cache: &'a Cache,
    ) -> ProxyConfig<'a> {
        let (network, whereabouts) = self.entry.connection().place();
        let made = ProxyConfig::new(context, &self.proxy, network, cache).at(whereabouts);
        made.with_hosts_apart().holding(&self.routes)
    }

    /// Updates the stream's location in its subscription. The location depends only on changes that
    /// wake the stream in any location: its networks, its own workload, and the known facts about
    /// its machine or node.
    fn update_location(&self, context: &Arc<PushContext>, cache: &Cache) {
        let (network, whereabouts) = self.entry.connection().place();
        let location = ProxyLocation { proxy: Arc::clone(&self.proxy), network, whereabouts };
        let labels = context.known_labels(&self.proxy);
        self.subscription.set_location(
            location,
            self.proxy_config(context, cache).view_class(),
            labels,
        );
    }

    /// Returns whether everything that was known of the proxy's cluster has been withdrawn. In this
    /// case, the proxy keeps its configuration, as it would if it reconnected and was refused.
    /// Otherwise its workload would lose its own listeners because a Secret was removed elsewhere.
    /// The stream still receives the endpoints of services that other clusters have.
    fn is_withdrawn(&mut self, context: &PushContext) -> bool {
        let there = context.network_labels.contains_key(&self.proxy.cluster);
        self.cluster_seen |= there;
        self.cluster_seen && !there
    }
}

impl Stream {
    pub(super) fn new(
        shared: Arc<ServerShared>,
        line: Arc<ConnectionShared>,
        caller: Caller,
        form: ProtocolForm,
    ) -> Self {
        let now = Instant::now();
        let left = caller.token().map(|token| {
            let left = token.expires.duration_since(SystemTime::now()).unwrap_or_default();
            // Randomized, so that streams that were opened together do not end together.
            left.mul_f64(0.9 + 0.1 * rand::random::<f64>())
        });
        Self {
            shared,
            line,
            caller,
            ends_at: left.map(|left| now + left),
            form,
            session: Arc::new(Mutex::new(Session::new(form))),
            admitted: None,
            opened: now,
            pace: Pace::new(now),
            sending: None,
            idle: false,
            waits_until: None,
            much_due: false,
            pending_since: None,
            budget: RequestBudget::full(now),
            receipts: Vec::new(),
            wakeups: Wakeups::default(),
            secrets: FollowedSecrets::default(),
            debug: VecDeque::new(),
            debug_answers: 0,
            reason: "transport",
        }
    }

    /// Returns the identity of the caller that opened the stream.
    pub(super) fn identity(&self) -> &SpiffeId {
        self.caller.identity()
    }

    /// Records the reason why the stream ends.
    pub(super) fn ends(&mut self, reason: &'static str) {
        self.reason = reason;
    }

    /// Handles requests and events until there may be something to send. The sources of events stay
    /// registered, so a poll handles only the reasons for which the stream was woken.
    pub(super) fn poll_due(
        &mut self,
        requests: &mut Requests,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), StreamEnd>> {
        loop {
            // All received requests are handled before anything is sent: a client may request
            // assignments right after its answer.
            while let Poll::Ready(request) = requests.poll_message(context) {
                self.handle_request(request)?;
            }
            if !self.debug.is_empty() {
                return Poll::Ready(Ok(()));
            }
            if !self.idle && self.admitted.is_some() && lock(&self.session).is_due() {
                return Poll::Ready(Ok(()));
            }
            if !self.handle_event(context)? {
                return Poll::Pending;
            }
        }
    }

    /// Handles the next event for which the stream was woken. Returns whether there was one.
    fn handle_event(&mut self, context: &Context<'_>) -> Result<bool, StreamEnd> {
        self.wakeups.take(context);
        if let Some(ending) = self.line.ending() {
            return Err(StreamEnd::by(ending.reason(), Status::unavailable(ending.text())));
        }
        if self.wakeups.has(TIME) && self.ends_at.is_some_and(|end| end <= Instant::now()) {
            let code = &codes::TOKEN_ENDS;
            let text = format!("{code}: {}; reconnect", code.title);
            return Err(StreamEnd::by("token ends", Status::unavailable(text)));
        }
        if self.wakeups.has(EVENTS) && self.wakeups.is_shed() {
            return Err(memory_short("come again"));
        }
        if self.wakeups.has(CHANGES) && self.pace.wait(Instant::now()).is_zero() {
            self.wakeups.handled(CHANGES);
            if self.admitted.as_ref().is_some_and(|one| one.subscription.has_changes()) {
                self.take_changes()?;
                return Ok(true);
            }
        }
        if self.wakeups.has(EVENTS) {
            if self.pass_changed_roots() || self.pass_changed_secret() {
                return Ok(true);
            }
            self.wakeups.handled(EVENTS);
        }
        if self.wakeups.has(TIME) {
            self.wakeups.handled(TIME);
            if self.waits_until.take_if(|until| *until <= Instant::now()).is_some() {
                self.idle = false;
                return Ok(true);
            }
            if self.admitted.is_none() {
                self.end_if_late()?;
            }
        }
        self.wakeups.wake_at(self.next_deadline());
        // The deadline may have passed in the meantime.
        Ok(self.wakeups.has(TIME))
    }

    /// Returns the next time at which the stream has to be woken.
    fn next_deadline(&self) -> Option<Instant> {
        let pause = self.wakeups.has(CHANGES).then(|| self.pace.next());
        let first = self.admitted.is_none().then(|| self.opened + FIRST_REQUEST_LIMIT);
        [self.ends_at, self.waits_until, pause, first].into_iter().flatten().min()
    }

    /// Ends a stream whose first request is late.
    fn end_if_late(&self) -> Result<(), StreamEnd> {
        if Instant::now() < self.opened + FIRST_REQUEST_LIMIT {
            return Ok(());
        }
        if self.debug_answers > 0 {
            // The client sends only debug requests, which have been answered.
            return Err(StreamEnd { reason: "debug", status: None });
        }
        let text = "no request within 10 s of opening the stream";
        Err(StreamEnd::by("silent", Status::deadline_exceeded(text)))
    }

    /// Waits for a permit if a large amount is due.
    pub(super) async fn turn(&mut self) -> Option<SyncPermit> {
        let much = lock(&self.session).is_much_due();
        let goes_on = std::mem::replace(&mut self.much_due, much);
        if !much {
            return None;
        }
        if !goes_on {
            self.shared.stats.large_syncs.fetch_add(1, Ordering::Relaxed);
        }
        Some(self.shared.sync_limiter.turn(MUCH_BYTES).await)
    }

    /// Returns the due responses of all types, up to a limit for one write.
    pub(super) fn responses(&mut self) -> Rope {
        let begun = Instant::now();
        let mut rope = Rope::default();
        while rope.len() < WRITE_BYTES
            && let Some(answer) = self.debug.pop_front()
        {
            answer.encode_message(&mut rope);
        }
        while rope.len() < WRITE_BYTES
            && let Some(response) = self.due()
        {
            response.encode_message(&mut rope);
        }
        while rope.len() < WRITE_BYTES
            && let Some(aside) = lock(&self.session).next_aside()
        {
            aside.encode_message(&mut rope);
        }
        self.idle = rope.is_empty();
        let left =
            if self.idle { lock(&self.session).send_timeout(SystemTime::now()) } else { None };
        self.waits_until = left.map(|left| begun + left);
        self.note_sent(begun.into_std());
        if let Some((since, version)) = self.pending_since.take()
            && !self.idle
        {
            self.shared.stats.propagation.observe(since.elapsed(), version);
        }
        if let Some((cost, streams)) = self.sending.take() {
            let now = Instant::now();
            self.pace.sent(now, cost + (now - begun), streams, self.shared.threads);
        }
        rope
    }

    /// Returns the next due response of the session.
    fn due(&mut self) -> Option<Response> {
        let admitted = self.admitted.as_mut()?;
        let mut session = lock(&self.session);
        if !session.is_due() {
            return None;
        }
        let context = context_of(&self.shared, admitted.side.as_ref())?;
        let withdrawn = admitted.is_withdrawn(&context);
        let proxy = &admitted.proxy;
        let cache = cache_of(&self.shared, admitted.side.as_ref());
        let mut proxy_config = admitted.proxy_config(&context, cache);
        let now = SystemTime::now();
        let response = if withdrawn {
            let is_known = |name: &str| {
                hostname_of(name).is_some_and(|host| context.services.contains_key(&host))
            };
            session.next_assignments(&mut proxy_config, is_known, RESPONSE_BYTES, now)?
        } else {
            session.next_response(&mut proxy_config, RESPONSE_BYTES, now)?
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

    fn handle_request(
        &mut self,
        request: Result<Option<GrpcMessage>, Status>,
    ) -> Result<(), StreamEnd> {
        match request {
            Ok(Some(request)) => self.take(request.content()),
            Ok(None) => Err(StreamEnd { reason: "client", status: None }),
            Err(status) => Err(StreamEnd::by("transport", status)),
        }
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), StreamEnd> {
        self.idle = false;
        self.shared.stats.requests.fetch_add(1, Ordering::Relaxed);
        let form = self.form;
        let request = AdsRequest::read(form, bytes).map_err(|error| {
            let text = format!("STR0502: not a request: {error}");
            StreamEnd::by("violation", Status::invalid_argument(text))
        })?;
        if debug_types::is_debug(request.type_url) {
            return self.answer_debug(form, &request);
        }
        if self.admitted.is_none()
            && let Some(node) = &request.node
        {
            // A client that lists its resources needs only few responses.
            let budgets = self.shared.connections.budgets();
            if request.listed.is_empty() && budgets.defers() {
                return Err(memory_short("try again"));
            }
            let admitted = self.admit_proxy(node)?;
            if admitted.proxy.is_proxyless() {
                lock(&self.session).answer_completely();
            }
            if admitted.proxy.virtual_hosts == VirtualHostDelivery::OneByOne {
                lock(&self.session).serve_virtual_hosts();
            }
            self.wakeups.follow_shedding(admitted.account.ended());
            self.admitted = Some(admitted);
        }
        let nonce = u64::from_str_radix(request.nonce, 16).ok();
        if request.type_url == SECRET && self.admitted.is_some() {
            return self.handle_secrets_request(&request);
        }
        let kind = ResourceType::of_url(request.type_url);
        if let Some(admitted) = &self.admitted
            && request.names.len() > NAMES_MANY
        {
            admitted.bears(self.own_context().as_deref(), kind, &request.names)?;
        }
        // The source is needed only for listed resources: most requests are only answers.
        let lists = !request.listed.is_empty();
        let context = if lists { self.own_context() } else { None };
        let admitted = self.admitted.as_ref().zip(context.as_ref());
        let mut proxy_config = admitted.map(|(admitted, context)| {
            admitted.proxy_config(context, cache_of(&self.shared, admitted.side.as_ref()))
        });
        let source =
            proxy_config.as_mut().map(|proxy_config| proxy_config as &mut dyn ResourceSource);
        let (handled, subscription_delta, lists, waits_for_roots) = {
            let mut session = lock(&self.session);
            let handled = session
                .on_request(request, source, SystemTime::now())
                .map_err(|violation| violation_status(&violation))?;
            (handled, session.subscription_delta(), session.lists(), session.waits_for_roots())
        };
        if handled == Handled::Request && !self.budget.take(Instant::now()) {
            let text = "STR0503: more than 50 unsolicited requests per second";
            return Err(StreamEnd::by("requests", Status::resource_exhausted(text)));
        }
        if waits_for_roots {
            self.offer_roots_to_agent();
        }
        let Some(admitted) = &mut self.admitted else { return Ok(()) };
        // Done before the response is built, so that later changes mark this stream. A rejection
        // may contain names as well. Most requests are answers that change nothing.
        if !subscription_delta.is_empty() || admitted.lists != lists {
            let context = context_of(&self.shared, admitted.side.as_ref());
            admitted.resubscribe(context.as_deref(), &subscription_delta, lists)?;
        }
        // Changes since the list was compared have not marked this stream.
        let is_old = |then: Arc<PushContext>| {
            let now = context_of(&self.shared, admitted.side.as_ref());
            !now.is_some_and(|now| Arc::ptr_eq(&then, &now))
        };
        if context.is_some_and(is_old) {
            lock(&self.session).on_change(&Dirty { everything: true, ..Dirty::default() });
        }
        match handled {
            Handled::Refusal => {
                self.report_rejection(kind);
                if let Some(kind) = kind {
                    self.record_rejection(kind, nonce);
                }
            }
            Handled::Answer => self.settle(),
            Handled::Request => {}
        }
        Ok(())
    }

    /// Passes the trust roots, which the agent has just requested, to the session.
    fn offer_roots_to_agent(&mut self) {
        let mut identity = self.shared.identity.clone();
        let now = Arc::clone(&identity.borrow_and_update());
        if let Some(bundle) = now.root_bundle() {
            let news = now.has_news_for(self.line.peer.as_deref());
            lock(&self.session).offer_roots(bundle, news);
            self.wakeups.follow_roots(identity);
        }
    }

    /// Passes changed trust roots to the session. Returns whether they have changed.
    fn pass_changed_roots(&mut self) -> bool {
        let Some(mut identity) = self.wakeups.changed_roots() else { return false };
        let now = Arc::clone(&identity.borrow_and_update());
        self.wakeups.follow_roots(identity);
        if let Some(bundle) = now.root_bundle() {
            self.idle = false;
            lock(&self.session).offer_roots(bundle, true);
        }
        true
    }

    fn admit_proxy(&self, node: &Node) -> Result<AdmittedStream, StreamEnd> {
        let stats = &self.shared.stats;
        let claimed = node::cluster(node);
        let claimed = claimed.as_ref().map_or("<none>", ClusterId::as_str);
        let claimed = head(claimed, node::ID_BYTES_MAX);
        let name = head(&node.id, node::ID_BYTES_MAX);
        let refuse = |text: String| {
            stats.refused.fetch_add(1, Ordering::Relaxed);
            // It may repeat metadata of the node.
            let text = bounded(text);
            stats.refused_proxies.refused(std::time::Instant::now(), name, claimed, &text);
            warn!(identity = %self.caller.identity(), "proxy refused: {text}");
            text
        };
        self.caller.is_named().map_err(|refusal| {
            let text = refuse(refusal.to_string());
            StreamEnd::by("refused", Status::unauthenticated(text))
        })?;
        let mut proxy = node::read(node).map_err(|error| {
            let status = match &error {
                // The node is well-formed, but its claims contradict each other.
                NodeError::Namespace { .. } => {
                    Status::permission_denied(refuse(format!("{}: {error}", codes::CLAIM_IDENTITY)))
                }
                _ => Status::invalid_argument(refuse(format!("STR0501: {error}"))),
            };
            StreamEnd::by("refused", status)
        })?;
        let is_delta = self.form == ProtocolForm::Delta;
        proxy.virtual_hosts = proxy.virtual_hosts.on_stream(is_delta);
        if let VirtualHostDelivery::Refused(reason) = proxy.virtual_hosts {
            warn!(code = %codes::VIRTUAL_HOSTS, proxy = %proxy.id, "virtual hosts are sent in their routes: {reason}");
        }
        let current = self.context()?;
        proxy.cluster = admission::canonical(&current, proxy.cluster);
        let key = (proxy.cluster.clone(), proxy.workload.clone());
        // Subscribed before the context is read, so that no change is missed.
        let wake = self.wakeups.changes();
        let subscription = self.shared.subscription_index.subscribe_waking(Some(key), wake.clone());
        let context = self.context()?;
        let fits = match self.caller.token() {
            Some(token) => admission::fits_token(&proxy, token),
            None => admission::fits_certificate(&context, &self.caller, &proxy.id, &proxy.cluster),
        };
        let admitted = fits.and_then(|()| admit(&context, &proxy, self.caller.identity()));
        let admitted = admitted.map_err(|refusal| {
            StreamEnd::by("refused", Status::permission_denied(refuse(refusal.to_string())))
        })?;
        let proxy = Arc::new(proxy);
        let verified = admitted.verified;
        let identity = self.caller.identity();
        let account = self.shared.connections.budgets().open(identity, verified);
        let account = account.map_err(|over| {
            let text = format!("{}: {over}", codes::IDENTITY_BUDGET);
            stats.refused_proxies.refused(std::time::Instant::now(), name, claimed, &text);
            over_budget(&over)
        })?;
        let entry = self
            .shared
            .connections
            .enter(Arc::clone(&proxy), &self.caller, Arc::clone(&self.session), admitted)
            .ok_or_else(|| {
                let text = format!("STR0504: {} already has 4 open streams", proxy.id);
                StreamEnd::by("refused", Status::resource_exhausted(refuse(text)))
            })?;
        stats.refused_proxies.admitted(name, claimed);
        info!(
            proxy = %proxy.id,
            cluster = %proxy.cluster,
            identity = %self.caller.identity(),
            by_token = self.caller.token().is_some(),
            verified,
            "connected"
        );
        let mut stream = AdmittedStream {
            proxy,
            entry,
            subscription,
            wake,
            lists: Wildcards::default(),
            cluster_seen: false,
            account,
            made_up: HashSet::default(),
            side: None,
            routes: RetainedRoutes::default(),
        };
        stream.change_sides(&self.shared, &lock(&self.session));
        let context = context_of(&self.shared, stream.side.as_ref()).unwrap_or(context);
        stream.update_location(&context, cache_of(&self.shared, stream.side.as_ref()));
        stream.publish_backlog();
        Ok(stream)
    }

    fn take_changes(&mut self) -> Result<(), StreamEnd> {
        self.idle = false;
        let begun = Instant::now();
        let Some(admitted) = &mut self.admitted else { return Ok(()) };
        self.receipts.extend(admitted.subscription.take_receipts());
        let surplus = self.receipts.len().saturating_sub(RECEIPTS_MAX);
        self.receipts.drain(..surplus);
        let dirty = admitted.subscription.take();
        let has_moved =
            dirty.everything && admitted.change_sides(&self.shared, &lock(&self.session));
        // Read after the changes, so that it is at least the version that marked this stream.
        let context = context_of(&self.shared, admitted.side.as_ref()).ok_or_else(not_ready)?;
        if dirty.everything {
            // The pod or WorkloadEntry may have appeared, or the cluster's network changed.
            let now = readmitted(&context, admitted, &self.caller).map_err(|refusal| {
                self.shared.stats.refused.fetch_add(1, Ordering::Relaxed);
                warn!(
                    code = refusal.code.id,
                    proxy = %admitted.proxy.id,
                    identity = %self.caller.identity(),
                    "ending the proxy's stream: {refusal}"
                );
                StreamEnd::by("contradicted", Status::permission_denied(refusal.to_string()))
            })?;
            let charge = Charge { verified: now.verified, ..admitted.account.charge() };
            admitted.account.set(charge).map_err(|why| uncharged(&why))?;
            admitted.entry.readmit(now);
            // Until now, the stream received the changes for its previous location.
            admitted.update_location(&context, cache_of(&self.shared, admitted.side.as_ref()));
            self.follow_secrets();
        }
        let mut session = lock(&self.session);
        session.on_change(&dirty);
        if let Some(admitted) = &self.admitted {
            admitted.subscription.confirm_delivery();
            if has_moved {
                admitted.publish_backlog();
            }
        }
        if session.is_due() {
            let since = dirty.since.map(|since| (since, context.version));
            self.pending_since = self.pending_since.or(since);
        }
        drop(session);
        // The changes may not require a response.
        self.settle();
        self.sending = Some((begun.elapsed(), dirty.streams));
        Ok(())
    }

    /// Returns the version of the mesh that the stream is served.
    fn own_context(&self) -> Option<Arc<PushContext>> {
        let side = self.admitted.as_ref().and_then(|admitted| admitted.side.as_ref());
        context_of(&self.shared, side)
    }

    fn context(&self) -> Result<Arc<PushContext>, StreamEnd> {
        self.shared.context().ok_or_else(not_ready)
    }
}

/// Checks an admitted proxy again. Returns its current network, location and verification.
fn readmitted(
    context: &PushContext,
    before: &AdmittedStream,
    caller: &Caller,
) -> Result<Admitted, AdmissionRefusal> {
    let (proxy, was_there) = (&before.proxy, before.account.charge().verified);
    if let Some(token) = caller.token() {
        admission::outlives_token_pod(context, proxy, token, was_there)?;
    }
    let network = before.entry.connection().network();
    admission::readmit(context, proxy, caller.identity(), network)
}

fn not_ready() -> StreamEnd {
    let text = "the mesh is not completely known yet; try again";
    StreamEnd::by("not ready", Status::unavailable(text))
}

/// Runs a part of a stream's work. A panic ends only this stream, with a status.
pub(super) async fn contained<T>(
    work: impl Future<Output = Result<T, StreamEnd>>,
) -> Result<T, StreamEnd> {
    // A panic can leave only the state of this stream inconsistent, and the stream ends.
    AssertUnwindSafe(work).catch_unwind().await.unwrap_or_else(|_| {
        error!(code = %codes::STREAM_FAULT, "a stream panicked and ended; other streams are not affected");
        let text = format!("{}: {}", codes::STREAM_FAULT, codes::STREAM_FAULT.title);
        Err(StreamEnd::by("panic", Status::internal(text)))
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

/// Returns the end of a stream that cannot be charged.
fn uncharged(why: &Refused) -> StreamEnd {
    match why {
        Refused::Budget(over) => over_budget(over),
        Refused::Memory => memory_short("come again"),
    }
}

/// Returns the end of a stream because of memory pressure.
fn memory_short(next: &str) -> StreamEnd {
    let code = &codes::MEMORY_SHORT;
    StreamEnd::by("memory", Status::unavailable(format!("{code}: {}; {next}", code.title)))
}

fn over_budget(over: &OverBudget) -> StreamEnd {
    let code = &codes::IDENTITY_BUDGET;
    warn!(code = code.id, "ending a stream: {over}");
    StreamEnd::by("budget", Status::resource_exhausted(format!("{code}: {over}. {}", code.next)))
}

fn violation_status(violation: &Violation) -> StreamEnd {
    StreamEnd::by("violation", Status::invalid_argument(violation.to_string()))
}

#[cfg(test)]
mod tests;
