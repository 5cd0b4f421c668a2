//! The protocol state of one stream, in either protocol form.
//!
//! Pure: requests and changes go in, responses come out, and nothing waits.
//! [`Session::next_response`] is called only when there is room to send, so a slow client skips
//! versions but always receives the last one. The two forms differ in how a request is handled
//! (`super::delta`, `super::sotw`) and in how much a response contains. The final state of the
//! client is the same.

mod virtual_hosts;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::agent_roots::AgentRoots;
use super::answers::{Progress, ProxyStanding, SentNames};
use super::audit::{SentState, SentType};
pub use super::form::ProtocolForm;
use super::held_version::HeldVersion;
use super::order::Order;
use super::request::AdsRequest;
pub use super::request_limits::{Handled, NAME_LENGTH_MAX, NAMES_MAX, Violation};
use super::resource::{Resource, ResourceSource, ResourceType, Version};
use super::response::nonce_of;
pub use super::response::{Response, Versioned};
use super::secrets::{SECRET, SecretReport, SecretWatches};
use super::served_hosts::ServedHosts;
use super::subscription::{Batch, GoneAction, TypeSubscription};
use super::unknown_types::{HEALTH_REPORT, PROXY_CONFIG, SideResponse, UnknownTypes};
use super::watches::Watches;
use strait_model::RootBundle;
use strait_model::credential::CredentialState;
use strait_model::dirty::{Dirty, Wildcards};
use strait_proto::envoy::envoy::config::core::v3::Node;

/// The approximate size at which a Delta response is divided, in bytes, so that the first sync of
/// one client does not delay others.
pub const RESPONSE_BYTES: usize = 512 << 10;

/// The types whose resources refer to upstream clusters.
const LEADING: [ResourceType; 4] = [
    ResourceType::Listener,
    ResourceType::Route,
    ResourceType::VirtualHost,
    ResourceType::NameTable,
];

/// The changes that one request makes to the subscriptions of a stream.
#[derive(Debug, Default)]
pub struct SubscriptionDelta {
    /// Changes to the subscribed endpoint assignments.
    pub assignments: Rewatch,
    /// Changes to the subscribed route configurations.
    pub routes: Rewatch,
    /// Names of other types that are no longer subscribed to.
    pub others_dropped: Vec<(ResourceType, Arc<str>)>,
    /// Names of other types that are newly subscribed to.
    pub others_new: Vec<(ResourceType, Arc<str>)>,
}

/// The changes that one request makes to the subscribed names of one type.
#[derive(Debug, Default)]
pub struct Rewatch {
    /// Names that are no longer subscribed to, unless they are also in `new`.
    pub dropped: Vec<Arc<str>>,
    /// Names that are newly subscribed to.
    pub new: Vec<Arc<str>>,
}

impl SubscriptionDelta {
    /// Returns whether no subscription changed.
    pub fn is_empty(&self) -> bool {
        let Self { assignments, routes, others_dropped, others_new } = self;
        let is_empty = |one: &Rewatch| one.dropped.is_empty() && one.new.is_empty();
        is_empty(assignments)
            && is_empty(routes)
            && others_dropped.is_empty()
            && others_new.is_empty()
    }

    fn of(&mut self, kind: ResourceType) -> Option<&mut Rewatch> {
        match kind {
            ResourceType::Endpoint => Some(&mut self.assignments),
            ResourceType::Route => Some(&mut self.routes),
            ResourceType::Cluster
            | ResourceType::Listener
            | ResourceType::VirtualHost
            | ResourceType::NameTable => None,
        }
    }
}

/// Upstream clusters that were sent before the client subscribed to any endpoint assignment.
#[derive(Debug, Default)]
struct EarlyClusters {
    pieces: Vec<Arc<[Arc<str>]>>,
    others: BTreeSet<Arc<str>>,
}

impl EarlyClusters {
    fn add(&mut self, sent: &Batch) {
        for piece in &sent.pieces {
            // A client can request the same list repeatedly.
            if !self.pieces.iter().any(|names| Arc::ptr_eq(names, piece.names())) {
                self.pieces.push(Arc::clone(piece.names()));
            }
        }
        self.others.extend(sent.changed.iter().map(|cluster| Arc::clone(&cluster.name)));
        sent.removed.iter().for_each(|name| _ = self.others.remove(name));
    }

    fn contains(&self, name: &str) -> bool {
        let is_in =
            |names: &Arc<[Arc<str>]>| names.binary_search_by(|one| (**one).cmp(name)).is_ok();
        self.others.contains(name) || self.pieces.iter().any(is_in)
    }
}

/// The protocol state of one stream.
#[derive(Debug)]
pub struct Session {
    form: ProtocolForm,
    complete_answers: bool,
    node: Option<String>,
    watches: Watches,
    unknown_types: UnknownTypes,
    agent_roots: AgentRoots,
    /// Boxed, because only gateways have secrets.
    secrets: Option<Box<SecretWatches>>,
    /// The state of VHDS. `None` if virtual hosts are not served individually.
    hosts: Option<Box<ServedHosts>>,
    /// Upstream clusters that were sent before the client subscribed to any endpoint assignment.
    clusters_before_endpoints: EarlyClusters,
    /// Upstream clusters that were sent while the client subscribed to other assignments only, until
    /// it subscribes to theirs.
    unassigned: BTreeSet<Arc<str>>,
    order: Order,
    subscription_delta: SubscriptionDelta,
    last_nonce: u64,
}

impl Session {
    /// Creates the state of a stream on which nothing was sent yet.
    pub fn new(form: ProtocolForm) -> Self {
        Self {
            form,
            complete_answers: false,
            node: None,
            watches: Watches::default(),
            unknown_types: UnknownTypes::default(),
            agent_roots: AgentRoots::default(),
            secrets: None,
            hosts: None,
            clusters_before_endpoints: EarlyClusters::default(),
            unassigned: BTreeSet::new(),
            order: Order::default(),
            subscription_delta: SubscriptionDelta::default(),
            last_nonce: 0,
        }
    }

    /// Returns the protocol form of the stream.
    pub fn form(&self) -> ProtocolForm {
        self.form
    }

    /// Makes every SotW response contain all subscribed resources of the type.
    ///
    /// Proxyless gRPC expects this. Envoy accepts a response with only some endpoint assignments as
    /// an update of these.
    pub fn answer_completely(&mut self) {
        self.complete_answers = true;
    }

    /// Handles a request of the stream's protocol form. [`Self::next_response`] returns the
    /// resources that it requests.
    ///
    /// The versions that a client lists are compared with `source` at once. Without a source, they
    /// are ignored.
    ///
    /// # Errors
    /// The request violates the protocol or a limit, and the stream must end.
    pub fn on_request(
        &mut self,
        request: AdsRequest<'_>,
        source: Option<&mut dyn ResourceSource>,
        now: SystemTime,
    ) -> Result<Handled, Violation> {
        let Some(kind) = self.open_request(request.node.as_deref(), request.type_url)? else {
            return match request.type_url {
                PROXY_CONFIG => Ok(self.agent_roots.on_request(&request)),
                _ => self.unknown_types.on_request(self.form, request),
            };
        };
        match self.form {
            ProtocolForm::Delta => self.on_delta_request(kind, request, source, now),
            ProtocolForm::Sotw => self.on_sotw_request(kind, request, now),
        }
    }

    /// Records changes of the mesh.
    pub fn on_change(&mut self, dirty: &Dirty) {
        for (kind, watch) in self.watches.iter_mut() {
            let in_list = kind.wildcard().is_some_and(|one| dirty.lists.contains(one));
            if dirty.everything || in_list {
                watch.mark_all();
            }
        }
        for kind in [ResourceType::Route, ResourceType::VirtualHost] {
            if let Some(routes) = self.watches.get_mut(kind) {
                dirty.routes.iter().for_each(|name| routes.mark_watched(name));
            }
        }
        if let Some(endpoints) = self.watches.get_mut(ResourceType::Endpoint) {
            dirty.endpoints.iter().for_each(|name| endpoints.mark_watched(name));
        }
        // Whether a proxyless client uses mTLS for a service depends on the endpoints.
        if self.complete_answers
            && let Some(clusters) = self.watches.get_mut(ResourceType::Cluster)
        {
            dirty.endpoints.iter().for_each(|name| clusters.mark_watched(name));
        }
    }

    /// Returns the wildcard types that the client subscribes to, with or without names.
    pub fn lists(&self) -> Wildcards {
        self.watches.iter().filter_map(|(kind, _)| kind.wildcard()).collect()
    }

    /// Returns whether there may be a response to send.
    pub fn is_due(&self) -> bool {
        self.watches.values().any(TypeSubscription::is_due)
            || self.unknown_types.is_due()
            || self.agent_roots.is_due()
            || self.secrets.as_ref().is_some_and(|secrets| secrets.is_due())
            || self.hosts.as_ref().is_some_and(|hosts| hosts.is_due())
    }

    /// Returns whether the agent has requested trust roots and [`Self::offer_roots`] has not been
    /// called yet.
    pub fn waits_for_roots(&self) -> bool {
        self.agent_roots.waits()
    }

    /// Records the trust roots. `news` states whether the agent's certificate chain may lack some
    /// of them.
    pub fn offer_roots(&mut self, bundle: &Arc<RootBundle>, news: bool) {
        self.agent_roots.offer(bundle, news);
    }

    /// Returns whether the agent has these trust roots, or `None` if it never requested any.
    pub fn has_roots(&self, bundle: &RootBundle) -> Option<bool> {
        self.agent_roots.has(bundle)
    }

    /// Handles a request for secrets that the caller can look up. [`Self::on_request`] handles all
    /// other requests.
    ///
    /// # Errors
    /// The request violates the protocol or a limit, and the stream must end.
    pub fn on_secrets_request(&mut self, request: &AdsRequest<'_>) -> Result<Handled, Violation> {
        self.open_request(request.node.as_deref(), SECRET)?;
        self.secrets.get_or_insert_default().on_request(self.form, request)
    }

    /// The names of the secrets that the client subscribes to.
    pub fn secrets(&self) -> impl Iterator<Item = &Arc<str>> {
        self.secrets.iter().flat_map(|secrets| secrets.names())
    }

    /// Returns the status of each secret that the client subscribes to.
    pub fn secret_reports(&self) -> Vec<SecretReport> {
        self.secrets.as_ref().map(|secrets| secrets.reports()).unwrap_or_default()
    }

    /// Returns the number of subscribed secrets that exceed the limit and are not served.
    pub fn surplus_secrets(&self) -> usize {
        self.secrets.as_ref().map(|secrets| secrets.surplus()).unwrap_or_default()
    }

    /// Returns the error with which the client rejected a secret, if its last answer was a
    /// rejection.
    pub fn refused_secret(&self) -> Option<&str> {
        self.secrets.as_ref()?.refused()
    }

    /// Records the state of a secret.
    pub fn offer_secret(&mut self, name: &str, state: &CredentialState) {
        if let Some(secrets) = &mut self.secrets {
            secrets.offer(name, state);
        }
    }

    /// Returns whether so much may be due that changes for other streams would wait for it, usually
    /// because of a first sync.
    pub fn is_much_due(&self) -> bool {
        self.watches.values().any(TypeSubscription::is_much)
    }

    /// Returns the next response, of at most about `limit_bytes` bytes. A SotW response of a
    /// wildcard type cannot be divided and may be larger. Call it until it returns `None`, whenever
    /// there is room to send.
    ///
    /// Types are sent in the order of [`ResourceType::ALL`] (make before break), so that a resource
    /// arrives before resources that refer to it. Upstream clusters are removed last, when nothing
    /// refers to them; their endpoint assignments only if the client still subscribes to them after
    /// it has answered the removal. If this order requires an answer of the client first, `None` is returned:
    /// see [`Self::send_timeout`].
    pub fn next_response(
        &mut self,
        source: &mut dyn ResourceSource,
        limit_bytes: usize,
        now: SystemTime,
    ) -> Option<Response> {
        use ResourceType::{Cluster, Endpoint};
        let mut next = |session: &mut Self, kinds: &[ResourceType], gone: GoneAction| {
            let mut kinds = kinds.iter();
            kinds.find_map(|kind| session.response_of(*kind, gone, source, limit_bytes, now))
        };
        if let Some(clusters) = next(self, &[Cluster], GoneAction::Stays) {
            return Some(clusters);
        }
        self.postpone_assignments();
        if let Some(assignments) = next(self, &[Endpoint], GoneAction::Stays) {
            return Some(assignments);
        }
        if let Some(gone) = self.gone_hosts_response(now) {
            return Some(gone);
        }
        if self.additions_wait(now) {
            return None;
        }
        if let Some(leading) = next(self, &LEADING, GoneAction::Goes) {
            return Some(leading);
        }
        if self.removals_wait(now) {
            return None;
        }
        if let Some(clusters) = next(self, &[Cluster], GoneAction::Goes) {
            return Some(clusters);
        }
        if self.last_assignments_wait(now) {
            return None;
        }
        next(self, &[Endpoint], GoneAction::Goes)
    }

    /// Returns whether the client has answered all responses and no other response is due.
    pub fn is_settled(&self) -> bool {
        !self
            .watches
            .values()
            .any(|watch| watch.is_due() || watch.awaits_answer_to(self.last_nonce))
    }

    /// Returns the time after which a waiting response is sent even if the client does not answer,
    /// or `None` if no response waits.
    pub fn send_timeout(&self, now: SystemTime) -> Option<Duration> {
        self.order.send_timeout(now)
    }

    /// Returns the next response for a client that keeps its configuration: only endpoint
    /// assignments for which `is_known` is true.
    ///
    /// Other types wait for [`Self::next_response`]. Assignments that are not known wait for their
    /// next change.
    pub fn next_assignments(
        &mut self,
        source: &mut dyn ResourceSource,
        is_known: impl Fn(&str) -> bool,
        limit_bytes: usize,
        now: SystemTime,
    ) -> Option<Response> {
        self.watches.get_mut(ResourceType::Endpoint)?.pass_over(|name| !is_known(name));
        self.response_of(ResourceType::Endpoint, GoneAction::Goes, source, limit_bytes, now)
    }

    /// Returns the next response for types outside of the mesh configuration: trust roots, secrets
    /// and unserved types.
    pub fn next_aside(&mut self) -> Option<SideResponse> {
        let (form, nonce) = (self.form, self.last_nonce + 1);
        let roots = self.agent_roots.take(form, nonce);
        let secret = || self.secrets.as_mut().and_then(|secrets| secrets.take(form, nonce));
        let aside = roots.or_else(secret).or_else(|| self.unknown_types.take(form, nonce))?;
        self.last_nonce = nonce;
        Some(aside)
    }

    fn response_of(
        &mut self,
        kind: ResourceType,
        gone: GoneAction,
        source: &mut dyn ResourceSource,
        limit_bytes: usize,
        now: SystemTime,
    ) -> Option<Response> {
        if kind == ResourceType::VirtualHost {
            return self.hosts_response(source, now);
        }
        let whole = self.answers_whole(kind);
        let watch = self.watches.get_mut(kind)?;
        let batch = watch.take(source, if whole { usize::MAX } else { limit_bytes }, gone)?;
        if whole {
            watch.note_missing();
        }
        let whole = whole.then(|| watch.held_resources());
        let (pieces, resources) =
            whole.as_ref().map_or((&batch.pieces, &batch.changed), |(pieces, all)| (pieces, all));
        self.last_nonce += 1;
        let names = SentNames {
            pieces: pieces.iter().map(|piece| Arc::clone(piece.names())).collect(),
            others: resources.iter().map(|one| Arc::clone(&one.name)).collect(),
        };
        let version = watch.sent(self.last_nonce, names, now);
        let joins = self.form == ProtocolForm::Delta && kind == ResourceType::Endpoint;
        let resources = resources.iter().map(|one| Versioned {
            version: if joins { self.joined(&one.name, one.version) } else { one.version },
            resource: Arc::clone(one),
        });
        let (pieces, resources) = (pieces.clone(), resources.collect());
        if kind == ResourceType::Cluster {
            self.follow_with_assignments(&batch);
            self.note_unassigned(&batch, source);
            if batch.brings_something() {
                self.order.clusters_sent(self.last_nonce);
            }
        }
        let removed = if self.form == ProtocolForm::Delta { batch.removed } else { Vec::new() };
        let nonce = nonce_of(self.last_nonce);
        Some(Response { form: self.form, kind, version, nonce, pieces, resources, removed })
    }

    /// Returns the changes of the subscriptions since the last call. Call it after each request.
    pub fn subscription_delta(&mut self) -> SubscriptionDelta {
        std::mem::take(&mut self.subscription_delta)
    }

    /// The names of the subscribed endpoint assignments, sorted.
    pub fn assignments(&self) -> impl Iterator<Item = &Arc<str>> {
        self.watches.get(ResourceType::Endpoint).into_iter().flat_map(|watch| watch.names())
    }

    /// The names of the subscribed route configurations, sorted.
    pub fn routes(&self) -> impl Iterator<Item = &Arc<str>> {
        self.watches.get(ResourceType::Route).into_iter().flat_map(|watch| watch.names())
    }

    /// Returns the number of the last response, or 0 before the first.
    pub fn last_nonce(&self) -> u64 {
        self.last_nonce
    }

    /// Returns the last versions that were sent and acknowledged, by type.
    pub fn progress(&self) -> BTreeMap<ResourceType, Progress> {
        self.watches.iter().map(|(kind, watch)| (kind, watch.progress().clone())).collect()
    }

    /// Returns whether the client has accepted all resources of a type and no response is due.
    /// Returns `None` if the client did not request the type.
    pub fn has_followed(&self, kind: ResourceType) -> Option<bool> {
        let watch = self.watches.get(kind)?;
        let Progress { sent, acked, nack, .. } = watch.progress();
        Some(!watch.is_due() && sent.is_some() && sent == acked && nack.is_none())
    }

    /// Returns the worst state among all types.
    pub fn standing(&self) -> ProxyStanding {
        let of = |watch: &TypeSubscription| ProxyStanding::of(watch.progress());
        self.watches.values().map(of).max().unwrap_or_default()
    }

    /// Returns the resources that the client holds, by type and name. A route whose hosts are sent
    /// individually appears as a whole route.
    pub fn held(&self) -> BTreeMap<ResourceType, BTreeMap<Arc<str>, HeldVersion>> {
        let of = |watch: &TypeSubscription| {
            watch.held().map(|(name, held)| (Arc::clone(name), held)).collect()
        };
        let held = self.watches.iter().map(|(kind, watch)| (kind, of(watch)));
        let mut held: BTreeMap<_, BTreeMap<_, _>> = held.collect();
        if let Some(whole) = held.remove(&ResourceType::VirtualHost) {
            held.entry(ResourceType::Route).or_default().extend(whole);
        }
        held
    }

    /// Returns the client's subscriptions and the resources that it holds, or `None` if a response is
    /// due. Virtual hosts that are sent individually are left out.
    pub fn sent_state(&self) -> Option<SentState> {
        if self.is_due() {
            return None;
        }
        let of = |watch: &TypeSubscription| SentType {
            is_wildcard: watch.is_wildcard(),
            names: watch.names().cloned().collect(),
            held: watch.held().map(|(name, held)| (Arc::clone(name), held)).collect(),
        };
        let watches = self.watches.iter().filter(|(kind, _)| *kind != ResourceType::VirtualHost);
        Some(SentState { types: watches.map(|(kind, watch)| (kind, of(watch))).collect() })
    }

    /// Checks the node and the type of a request. Returns `None` for an unserved type.
    fn open_request(
        &mut self,
        node: Option<&Node>,
        type_url: &str,
    ) -> Result<Option<ResourceType>, Violation> {
        match (&self.node, node) {
            (Some(was), Some(node)) if *was != node.id => {
                let now = node.id.chars().take(NAME_LENGTH_MAX).collect();
                return Err(Violation::NodeChanged { was: was.clone(), now });
            }
            (None, Some(node)) => self.node = Some(node.id.clone()),
            // The agent may report its workload's health before it states its node.
            (None, None) if type_url != HEALTH_REPORT => return Err(Violation::NoNode),
            _ => {}
        }
        let is_served =
            |kind: &ResourceType| *kind != ResourceType::VirtualHost || self.hosts.is_some();
        match (ResourceType::of_url(type_url).filter(is_served), type_url) {
            (Some(kind), _) => Ok(Some(kind)),
            (None, "") => Err(Violation::NoType),
            (None, url) if url.len() > NAME_LENGTH_MAX => Err(Violation::TypeTooLong(url.len())),
            (None, _) => Ok(None),
        }
    }

    /// Returns the subscription of a type, and whether this request is the first for the type.
    pub(super) fn watch(&mut self, kind: ResourceType) -> (&mut TypeSubscription, bool) {
        let first = self.watches.get(kind).is_none();
        (self.watches.entry(kind), first)
    }

    /// Subscribes to names of a type, which are sorted. A name for which `listed` is true is sent
    /// only if it differs.
    pub(super) fn subscribe(
        &mut self,
        kind: ResourceType,
        names: &[&str],
        listed: impl Fn(&str) -> bool,
    ) {
        let clusters_before = if kind == ResourceType::Endpoint {
            std::mem::take(&mut self.clusters_before_endpoints)
        } else {
            EarlyClusters::default()
        };
        // A cluster that was just sent waits for its assignment, even if the client already has
        // one.
        let listed = |name: &str| listed(name) && !clusters_before.contains(name);
        if kind == ResourceType::Endpoint
            && self.complete_answers
            && let Some(clusters) = self.watches.get_mut(ResourceType::Cluster)
        {
            // The clusters have not been marked for changes of these endpoints so far.
            names.iter().for_each(|name| clusters.mark_watched(name));
        }
        let new = self.watch(kind).0.subscribe(names, listed);
        if kind == ResourceType::Route {
            self.watch_hosts(names);
        }
        if let Some(rewatch) = self.subscription_delta.of(kind) {
            rewatch.new = new;
        } else {
            self.subscription_delta.others_new.extend(new.into_iter().map(|name| (kind, name)));
        }
    }

    /// Unsubscribes from names of a type.
    pub(super) fn unsubscribe<'a>(
        &mut self,
        kind: ResourceType,
        names: impl IntoIterator<Item = &'a str>,
    ) {
        let dropped = self.watch(kind).0.unsubscribe(names);
        if kind == ResourceType::Route {
            self.forget_hosts(dropped.iter().map(|name| &**name));
        }
        if let Some(rewatch) = self.subscription_delta.of(kind) {
            rewatch.dropped = dropped;
        } else {
            let dropped = dropped.into_iter().map(|name| (kind, name));
            self.subscription_delta.others_dropped.extend(dropped);
        }
    }

    /// Handles a request as the answer to an earlier response.
    pub(super) fn answer(
        &mut self,
        kind: ResourceType,
        nonce: &str,
        error: Option<&str>,
        now: SystemTime,
    ) -> Handled {
        let nonce = u64::from_str_radix(nonce, 16).ok();
        let awaited = nonce.is_some_and(|nonce| self.watch(kind).0.answer(nonce, error, now));
        match (awaited, error) {
            (true, None) => Handled::Answer,
            (true, Some(_)) => Handled::Refusal,
            (false, _) => Handled::Request,
        }
    }

    /// See [`joined`].
    pub(super) fn joined(&self, name: &str, version: Version) -> Version {
        let clusters = self.watches.get(ResourceType::Cluster);
        joined(version, clusters.and_then(|clusters| clusters.held_version(name)))
    }

    fn answers_whole(&self, kind: ResourceType) -> bool {
        self.form == ProtocolForm::Sotw && (kind.is_wildcard() || self.complete_answers)
    }

    /// Defers the assignments of upstream clusters that the source no longer has, because listeners
    /// and routes may still refer to the clusters.
    fn postpone_assignments(&mut self) {
        let Some(clusters) = self.watches.get(ResourceType::Cluster) else { return };
        let going: Vec<_> = clusters.going().cloned().collect();
        if let Some(endpoints) = self.watches.get_mut(ResourceType::Endpoint) {
            endpoints.postpone(&going);
        }
    }

    /// See [`Order::additions_wait`].
    fn additions_wait(&mut self, now: SystemTime) -> bool {
        let due = LEADING.iter().any(|kind| self.is_due_of(*kind));
        let awaits =
            |kind, nonce| self.watches.get(kind).is_some_and(|watch| watch.awaits_answer_to(nonce));
        let endpoints = self.watches.get(ResourceType::Endpoint);
        self.unassigned.retain(|name| endpoints.is_some_and(|endpoints| !endpoints.is_named(name)));
        let unassigned = !self.unassigned.is_empty();
        self.order.additions_wait(due, (self.last_nonce, unassigned), awaits, now)
    }

    /// See [`Order::removals_wait`].
    fn removals_wait(&mut self, now: SystemTime) -> bool {
        let due = self.is_due_of(ResourceType::Cluster);
        let followed = LEADING.iter().filter_map(|kind| self.watches.get(*kind)).all(|watch| {
            !watch.awaits_answer_to(self.last_nonce) && watch.progress().nack.is_none()
        });
        self.order.removals_wait(due, followed, now)
    }

    /// See [`Order::last_assignments_wait`].
    fn last_assignments_wait(&mut self, now: SystemTime) -> bool {
        let due = self.is_due_of(ResourceType::Endpoint);
        let clusters = self.watches.get(ResourceType::Cluster);
        let answered = clusters.is_none_or(|watch| !watch.awaits_answer_to(self.last_nonce));
        self.order.last_assignments_wait(due, answered, now)
    }

    fn is_due_of(&self, kind: ResourceType) -> bool {
        self.watches.get(kind).is_some_and(|watch| watch.is_due())
    }

    /// Records the upstream clusters in a response whose assignments the client does not subscribe
    /// to yet.
    fn note_unassigned(&mut self, clusters: &Batch, source: &dyn ResourceSource) {
        clusters.removed.iter().for_each(|name| _ = self.unassigned.remove(name));
        // A client without any assignment may never subscribe to one.
        let Some(endpoints) = self.watches.get(ResourceType::Endpoint) else { return };
        let is_missing =
            |one: &&Arc<Resource>| !endpoints.is_named(&one.name) && source.is_assigned(one);
        let missing = clusters.changed.iter().filter(is_missing);
        self.unassigned.extend(missing.map(|one| Arc::clone(&one.name)));
    }

    /// Marks the assignments of the upstream clusters in a response to be sent next.
    ///
    /// Envoy warms a new or changed cluster until its assignment arrives, and does not always
    /// request the assignment again: in Delta, it sends no request at all.
    fn follow_with_assignments(&mut self, clusters: &Batch) {
        match self.watches.get_mut(ResourceType::Endpoint) {
            Some(endpoints) => {
                clusters.pieces.iter().for_each(|piece| endpoints.require_sorted(piece.names()));
                endpoints.require(clusters.changed.iter().map(|cluster| &cluster.name));
            }
            None => self.clusters_before_endpoints.add(clusters),
        }
    }
}

/// Combines the version of an endpoint assignment with that of the upstream cluster. Combining
/// twice with the same cluster version restores the original.
pub fn joined(assignment: Version, cluster: Option<Version>) -> Version {
    Version(assignment.0 ^ cluster.map_or(0, |cluster| cluster.0))
}

#[cfg(test)]
mod tests;
