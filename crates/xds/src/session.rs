//! The protocol state of one stream, in either wire form.
//!
//! Pure: requests and changes go in, responses come out, nothing is awaited. [`Session::next_response`]
//! is called only when there is room to send, so a slow client skips versions and never misses the
//! last. The two forms differ in how a request is read (`super::delta`, `super::sotw`) and in how
//! much a response holds; what a client ends up with is the same.

mod virtual_hosts;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::agent_roots::AgentRoots;
use super::answers::{Progress, ProxyStanding, SentNames};
pub use super::asked::{Handled, NAME_LENGTH_MAX, NAMES_MAX, Violation};
pub use super::form::ProtocolForm;
use super::held_version::HeldVersion;
use super::order::Order;
use super::request::AdsRequest;
use super::resource::{ResourceSource, ResourceType, Version};
pub use super::response::{Response, Versioned};
use super::secrets::{SECRET, SecretReport, SecretWatches};
use super::served_hosts::ServedHosts;
use super::subscription::{Batch, GoneAction, TypeSubscription};
use super::unknown_types::{HEALTH_REPORT, PROXY_CONFIG, SideResponse, UnknownTypes};
use strait_model::RootBundle;
use strait_model::credential::CredentialState;
use strait_model::dirty::{Dirty, Wildcards};
use strait_proto::envoy::envoy::config::core::v3::Node;

/// A response of the Delta form is cut at about this size, so that one first sync holds up nobody.
pub const RESPONSE_BYTES: usize = 512 << 10;

/// The types that lead to upstream clusters.
const LEADING: [ResourceType; 4] = [
    ResourceType::Listener,
    ResourceType::Route,
    ResourceType::VirtualHost,
    ResourceType::NameTable,
];

/// What one request changed of which assignments and route configurations are watched.
#[derive(Debug, Default)]
pub struct SubscriptionDelta {
    /// Of assignments.
    pub assignments: Rewatch,
    /// Of route configurations.
    pub routes: Rewatch,
    /// Names of other types that are not any more.
    pub others_dropped: Vec<(ResourceType, Arc<str>)>,
    /// Names of other types that were not before.
    pub others_new: Vec<(ResourceType, Arc<str>)>,
}

/// What one request changed of the names of a type that are watched.
#[derive(Debug, Default)]
pub struct Rewatch {
    /// Those that are not any more, unless they are new again.
    pub dropped: Vec<Arc<str>>,
    /// Those that were not before.
    pub new: Vec<Arc<str>>,
}

impl SubscriptionDelta {
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

/// Upstream clusters that went out before anybody asked for their assignments.
#[derive(Debug, Default)]
struct EarlyClusters {
    pieces: Vec<Arc<[Arc<str>]>>,
    others: BTreeSet<Arc<str>>,
}

impl EarlyClusters {
    fn add(&mut self, sent: &Batch) {
        for piece in &sent.pieces {
            // The same list may be asked for again and again.
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

/// The state of one stream.
#[derive(Debug)]
pub struct Session {
    form: ProtocolForm,
    complete_answers: bool,
    node: Option<String>,
    /// Boxed: a map's node has room for eleven, and there are four at most.
    watches: BTreeMap<ResourceType, Box<TypeSubscription>>,
    unknown_types: UnknownTypes,
    agent_roots: AgentRoots,
    /// Boxed: gateways have some, and nobody else.
    secrets: Option<Box<SecretWatches>>,
    /// Where virtual hosts are served one by one.
    hosts: Option<Box<ServedHosts>>,
    /// Upstream clusters sent before the client asked for any assignment.
    clusters_before_endpoints: EarlyClusters,
    order: Order,
    subscription_delta: SubscriptionDelta,
    last_nonce: u64,
}

impl Session {
    /// A stream on which nothing was sent yet.
    pub fn new(form: ProtocolForm) -> Self {
        Self {
            form,
            complete_answers: false,
            node: None,
            watches: BTreeMap::new(),
            unknown_types: UnknownTypes::default(),
            agent_roots: AgentRoots::default(),
            secrets: None,
            hosts: None,
            clusters_before_endpoints: EarlyClusters::default(),
            order: Order::default(),
            subscription_delta: SubscriptionDelta::default(),
            last_nonce: 0,
        }
    }

    /// The form it speaks.
    pub fn form(&self) -> ProtocolForm {
        self.form
    }

    /// Has every SotW response hold all that is watched of its type: what proxyless gRPC expects,
    /// where Envoy takes a part of the assignments for a part.
    pub fn answer_completely(&mut self) {
        self.complete_answers = true;
    }

    /// Takes a request of its form. What it asks for comes out of [`Self::next_response`].
    ///
    /// What a client lists is compared with `source` at once; without one it is not believed.
    ///
    /// # Errors
    /// The request ends the stream.
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

    /// Takes what changed in the mesh.
    pub fn on_change(&mut self, dirty: &Dirty) {
        for (kind, watch) in &mut self.watches {
            let in_list = kind.wildcard().is_some_and(|one| dirty.lists.contains(one));
            if dirty.everything || in_list {
                watch.mark_all();
            }
        }
        for kind in [ResourceType::Route, ResourceType::VirtualHost] {
            if let Some(routes) = self.watches.get_mut(&kind) {
                dirty.routes.iter().for_each(|name| routes.mark_watched(name));
            }
        }
        if let Some(endpoints) = self.watches.get_mut(&ResourceType::Endpoint) {
            dirty.endpoints.iter().for_each(|name| endpoints.mark_watched(name));
        }
        // Whether a library speaks mTLS to a service goes by the endpoints.
        if self.complete_answers
            && let Some(clusters) = self.watches.get_mut(&ResourceType::Cluster)
        {
            dirty.endpoints.iter().for_each(|name| clusters.mark_watched(name));
        }
    }

    /// The types of which the client watches all there is, or may do so.
    pub fn lists(&self) -> Wildcards {
        self.watches.keys().filter_map(|kind| kind.wildcard()).collect()
    }

    /// Whether there may be something to send.
    pub fn is_due(&self) -> bool {
        self.watches.values().any(|watch| watch.is_due())
            || self.unknown_types.is_due()
            || self.agent_roots.is_due()
            || self.secrets.as_ref().is_some_and(|secrets| secrets.is_due())
            || self.hosts.as_ref().is_some_and(|hosts| hosts.is_due())
    }

    /// Whether its agent has asked for the roots and nobody has said yet what they are.
    pub fn waits_for_roots(&self) -> bool {
        self.agent_roots.waits()
    }

    /// Takes what the roots are; `news` says whether the agent can't have them all by its certificate.
    pub fn offer_roots(&mut self, bundle: &Arc<RootBundle>, news: bool) {
        self.agent_roots.offer(bundle, news);
    }

    /// Whether its agent has these roots; `None` where it never asked for any.
    pub fn has_roots(&self, bundle: &RootBundle) -> Option<bool> {
        self.agent_roots.has(bundle)
    }

    /// Takes a request for secrets that somebody may have, all others being [`Self::on_request`]'s.
    ///
    /// # Errors
    /// The request ends the stream.
    pub fn on_secrets_request(&mut self, request: &AdsRequest<'_>) -> Result<Handled, Violation> {
        self.open_request(request.node.as_deref(), SECRET)?;
        self.secrets.get_or_insert_default().on_request(self.form, request)
    }

    /// The secrets that the client asks for.
    pub fn secrets(&self) -> impl Iterator<Item = &Arc<str>> {
        self.secrets.iter().flat_map(|secrets| secrets.names())
    }

    /// How each secret fares that the client asks for.
    pub fn secret_reports(&self) -> Vec<SecretReport> {
        self.secrets.as_ref().map(|secrets| secrets.reports()).unwrap_or_default()
    }

    /// How many secrets it asks for beyond what it is given.
    pub fn surplus_secrets(&self) -> usize {
        self.secrets.as_ref().map(|secrets| secrets.surplus()).unwrap_or_default()
    }

    /// Why it refused a secret, if that was the last that it said of them.
    pub fn refused_secret(&self) -> Option<&str> {
        self.secrets.as_ref()?.refused()
    }

    /// Takes what is known of a secret.
    pub fn offer_secret(&mut self, name: &str, state: &CredentialState) {
        if let Some(secrets) = &mut self.secrets {
            secrets.offer(name, state);
        }
    }

    /// Whether so much may have to be sent that others' changes would wait for it: a first sync, mostly.
    pub fn is_much_due(&self) -> bool {
        self.watches.values().any(|watch| watch.is_much())
    }

    /// The next response, of about `limit_bytes` at most where the form can be cut (a SotW response
    /// of a wildcard type can't). Call it until it returns `None`, whenever there is room to send.
    ///
    /// Make before break: types come in the order of [`ResourceType::ALL`], so that what is referred
    /// to is there first; upstream clusters go last, when nothing refers to them any more. Where that takes
    /// an answer of the client, it returns `None` before: see [`Self::send_timeout`].
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
        next(self, &[Endpoint, Cluster], GoneAction::Goes)
    }

    /// Whether the client has answered all that there is to send.
    pub fn is_settled(&self) -> bool {
        !self
            .watches
            .values()
            .any(|watch| watch.is_due() || watch.awaits_answer_to(self.last_nonce))
    }

    /// How long until something is to be sent that waits for an answer of the client, should none come.
    pub fn send_timeout(&self, now: SystemTime) -> Option<Duration> {
        self.order.send_timeout(now)
    }

    /// The next response for a client that keeps its configuration as it is: assignments of what
    /// `is_known`, and nothing else. The rest waits for [`Self::next_response`], and what isn't known
    /// for the next change.
    pub fn next_assignments(
        &mut self,
        source: &mut dyn ResourceSource,
        is_known: impl Fn(&str) -> bool,
        limit_bytes: usize,
        now: SystemTime,
    ) -> Option<Response> {
        self.watches.get_mut(&ResourceType::Endpoint)?.pass_over(|name| !is_known(name));
        self.response_of(ResourceType::Endpoint, GoneAction::Goes, source, limit_bytes, now)
    }

    /// The next response about what is not of the mesh, whatever there is of that.
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
        let watch = self.watches.get_mut(&kind)?;
        let batch = watch.take(source, if whole { usize::MAX } else { limit_bytes }, gone)?;
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
            if batch.brings_something() {
                self.order.clusters_sent(self.last_nonce);
            }
        }
        let removed = if self.form == ProtocolForm::Delta { batch.removed } else { Vec::new() };
        let nonce = format!("{:x}", self.last_nonce);
        Some(Response { form: self.form, kind, version, nonce, pieces, resources, removed })
    }

    /// Which names the client watches otherwise than before its last request. Call it after each.
    pub fn subscription_delta(&mut self) -> SubscriptionDelta {
        std::mem::take(&mut self.subscription_delta)
    }

    /// The names of the assignments that the client watches, sorted.
    pub fn assignments(&self) -> impl Iterator<Item = &Arc<str>> {
        self.watches.get(&ResourceType::Endpoint).into_iter().flat_map(|watch| watch.names())
    }

    /// The names of the route configurations that the client watches, sorted.
    pub fn routes(&self) -> impl Iterator<Item = &Arc<str>> {
        self.watches.get(&ResourceType::Route).into_iter().flat_map(|watch| watch.names())
    }

    /// The number of the last response; 0 before the first.
    pub fn last_nonce(&self) -> u64 {
        self.last_nonce
    }

    /// How far the client has followed, by type.
    pub fn progress(&self) -> BTreeMap<ResourceType, Progress> {
        self.watches.iter().map(|(kind, watch)| (*kind, watch.progress().clone())).collect()
    }

    /// Whether the client has accepted all that there is to send of a type; `None` where it asks for none.
    pub fn has_followed(&self, kind: ResourceType) -> Option<bool> {
        let watch = self.watches.get(&kind)?;
        let Progress { sent, acked, nack, .. } = watch.progress();
        Some(!watch.is_due() && sent.is_some() && sent == acked && nack.is_none())
    }

    /// The worst of what it did with what it was last sent of each type.
    pub fn standing(&self) -> ProxyStanding {
        let of = |watch: &TypeSubscription| ProxyStanding::of(watch.progress());
        self.watches.values().map(|watch| of(watch)).max().unwrap_or_default()
    }

    /// What the client holds, by type and name. A route whose hosts it has one by one is in it whole, as others have it.
    pub fn held(&self) -> BTreeMap<ResourceType, BTreeMap<Arc<str>, HeldVersion>> {
        let of = |watch: &TypeSubscription| {
            watch.held().map(|(name, held)| (Arc::clone(name), held)).collect()
        };
        let held = self.watches.iter().map(|(kind, watch)| (*kind, of(watch)));
        let mut held: BTreeMap<_, BTreeMap<_, _>> = held.collect();
        if let Some(whole) = held.remove(&ResourceType::VirtualHost) {
            held.entry(ResourceType::Route).or_default().extend(whole);
        }
        held
    }

    /// Reads what every request begins with. `None`: a type of which there is nothing here.
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
            // The agent may report its workload's health before it says who it is.
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

    /// The watch of `kind`, and whether this request is the first to ask for it.
    pub(super) fn watch(&mut self, kind: ResourceType) -> (&mut TypeSubscription, bool) {
        let mut first = false;
        let watch = self.watches.entry(kind).or_insert_with(|| {
            first = true;
            Box::new(TypeSubscription::new(kind))
        });
        (watch, first)
    }

    /// Watches names of `kind`, sorted; those the client listed are sent only if they differ.
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
        // A cluster that was just sent waits for its assignment, even for one it had before.
        let listed = |name: &str| listed(name) && !clusters_before.contains(name);
        if kind == ResourceType::Endpoint
            && self.complete_answers
            && let Some(clusters) = self.watches.get_mut(&ResourceType::Cluster)
        {
            // Until now nobody told it of their endpoints.
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

    /// Stops to watch names of `kind`.
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

    /// Takes what a request says of a response sent before.
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
        let clusters = self.watches.get(&ResourceType::Cluster);
        joined(version, clusters.and_then(|clusters| clusters.held_version(name)))
    }

    fn answers_whole(&self, kind: ResourceType) -> bool {
        self.form == ProtocolForm::Sotw && (kind.is_wildcard() || self.complete_answers)
    }

    /// Leaves the assignments of upstream clusters that are gone to the end: listeners and routes may still lead
    /// to them.
    fn postpone_assignments(&mut self) {
        let Some(clusters) = self.watches.get(&ResourceType::Cluster) else { return };
        let going: Vec<_> = clusters.going().cloned().collect();
        if let Some(endpoints) = self.watches.get_mut(&ResourceType::Endpoint) {
            endpoints.postpone(&going);
        }
    }

    /// See [`Order::additions_wait`].
    fn additions_wait(&mut self, now: SystemTime) -> bool {
        let due = LEADING.iter().any(|kind| self.is_due_of(*kind));
        let awaits = |kind, nonce| {
            self.watches.get(&kind).is_some_and(|watch| watch.awaits_answer_to(nonce))
        };
        self.order.additions_wait(due, self.last_nonce, awaits, now)
    }

    /// See [`Order::removals_wait`].
    fn removals_wait(&mut self, now: SystemTime) -> bool {
        let due = self.is_due_of(ResourceType::Cluster);
        let followed = LEADING.iter().filter_map(|kind| self.watches.get(kind)).all(|watch| {
            !watch.awaits_answer_to(self.last_nonce) && watch.progress().nack.is_none()
        });
        self.order.removals_wait(due, followed, now)
    }

    fn is_due_of(&self, kind: ResourceType) -> bool {
        self.watches.get(&kind).is_some_and(|watch| watch.is_due())
    }

    /// Has the assignments of the upstream clusters in a response sent next.
    ///
    /// Envoy warms a cluster that is new or changed until its assignment comes, and doesn't always
    /// ask for it again: in delta it sends nothing at all.
    fn follow_with_assignments(&mut self, clusters: &Batch) {
        match self.watches.get_mut(&ResourceType::Endpoint) {
            Some(endpoints) => {
                clusters.pieces.iter().for_each(|piece| endpoints.require_sorted(piece.names()));
                endpoints.require(clusters.changed.iter().map(|cluster| &cluster.name));
            }
            None => self.clusters_before_endpoints.add(clusters),
        }
    }
}

/// Joins the version of an assignment with that of its upstream cluster; the same again parts them.
pub fn joined(assignment: Version, cluster: Option<Version>) -> Version {
    Version(assignment.0 ^ cluster.map_or(0, |cluster| cluster.0))
}

#[cfg(test)]
mod tests;
