//! The protocol state of one stream, in either wire form.
//!
//! Pure: requests and changes go in, responses come out, nothing is awaited. [`Session::next_response`]
//! is called only when there is room to send, so a slow client skips versions and never misses the
//! last. The two forms differ in how a request is read (`super::delta`, `super::sotw`) and in how
//! much a response holds; what a client ends up with is the same.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use strait_proto::envoy::envoy::config::core::v3::Node;

use super::answers::{Progress, SentNames};
use super::list::Piece;
use super::request::Request;
use super::resource::{Resource, ResourceSource, ResourceType, Version};
use super::rope::Rope;
use super::subscription::{Batch, Gone, Held, Subscription};
use super::unserved::{HEALTH_REPORT, Nothing, TYPES_MAX, Unserved};
use super::{delta, sotw};
use crate::push::interest::Dirty;
use crate::push::scope::Wildcards;

/// The most names a client may watch of one type.
pub const NAMES_MAX: usize = 100_000;
/// A response of the Delta form is cut at about this size, so that one first sync holds up nobody.
pub const RESPONSE_BYTES: usize = 512 << 10;
/// The longest name a client may watch, in bytes.
pub const NAME_LENGTH_MAX: usize = 512;

/// The two forms of the xDS protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Form {
    /// Each response says what changed and what went.
    Delta,
    /// State of the world: each response of a wildcard type is the whole type.
    Sotw,
}

impl Form {
    /// The word in `/debug/proxies`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Delta => "delta",
            Self::Sotw => "sotw",
        }
    }
}

/// A response, ready to be encoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// The form to encode it in.
    pub form: Form,
    /// Of what.
    pub kind: ResourceType,
    /// A digest of all the client holds of the type once it has this.
    pub version: Version,
    /// What the client will answer with.
    pub nonce: String,
    /// Parts of lists that many clients are sent.
    pub pieces: Vec<Arc<Piece>>,
    /// The other resources, sorted by name.
    pub resources: Vec<Stamped>,
    /// Names that are gone (Delta only).
    pub removed: Vec<Arc<str>>,
}

/// A resource, and the version to send it under.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamped {
    /// What is sent.
    pub resource: Arc<Resource>,
    /// That of the resource; of an assignment in Delta, joined with that of its upstream cluster.
    ///
    /// A changed cluster waits for its assignment even if that is the same as before. Should the
    /// stream break between the two, the client comes back and lists both: by this version it shows
    /// that the cluster still waits.
    pub version: Version,
}

impl Deref for Stamped {
    type Target = Resource;

    fn deref(&self) -> &Resource {
        &self.resource
    }
}

impl Response {
    /// How many resources it holds.
    pub fn count(&self) -> usize {
        self.pieces.iter().map(|piece| piece.resources().len()).sum::<usize>()
            + self.resources.len()
    }

    /// All its resources, each with the version it is sent under, in no order.
    pub fn all(&self) -> impl Iterator<Item = (&Arc<Resource>, Version)> {
        let in_pieces = self.pieces.iter().flat_map(|piece| piece.resources());
        let others = self.resources.iter().map(|one| (&one.resource, one.version));
        in_pieces.map(|one| (one, one.version)).chain(others)
    }

    /// Writes it as a message of its form.
    pub(super) fn encode(&self, out: &mut Rope) {
        match self.form {
            Form::Delta => delta::encode(self, out),
            Form::Sotw => sotw::encode(self, out),
        }
    }

    /// The message of its form in one piece.
    pub fn to_bytes(&self) -> Bytes {
        let mut rope = Rope::default();
        self.encode(&mut rope);
        rope.into_bytes()
    }

    /// Writes it as a gRPC message.
    pub(super) fn encode_message(&self, out: &mut Rope) {
        let length = u32::try_from(self.encoded_len()).expect("less than 4 GiB fit into memory");
        out.put_slice(&[0]);
        out.put_slice(&length.to_be_bytes());
        self.encode(out);
    }

    /// The length of what `encode` writes, in bytes.
    pub fn encoded_len(&self) -> usize {
        match self.form {
            Form::Delta => delta::encoded_len(self),
            Form::Sotw => sotw::encoded_len(self),
        }
    }
}

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handled {
    /// It answered a response whose answer was awaited, whatever else it said.
    Answer,
    /// The same, and it was a refusal.
    Refusal,
    /// It came by itself.
    Request,
}

/// What one request changed of which assignments and route configurations are watched.
#[derive(Debug, Default)]
pub struct Rewatched {
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

impl Rewatched {
    fn of(&mut self, kind: ResourceType) -> Option<&mut Rewatch> {
        match kind {
            ResourceType::Endpoint => Some(&mut self.assignments),
            ResourceType::Route => Some(&mut self.routes),
            ResourceType::Cluster | ResourceType::Listener | ResourceType::NameTable => None,
        }
    }
}

/// A request that ends the stream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The first request doesn't say who sends it.
    #[error("STR0502: the first request on a stream must carry the node")]
    NoNode,
    /// A later request comes from somebody else.
    #[error("STR0502: the node of a stream can't change, from {was:?} to {now:?}")]
    NodeChanged {
        /// Who opened the stream.
        was: String,
        /// Who sends now.
        now: String,
    },
    /// A request without a type.
    #[error("STR0502: a request must name a resource type")]
    NoType,
    /// More than 32 types of which there is nothing here.
    #[error(
        "STR0502: a stream may ask for {TYPES_MAX} types that are not served here, and no more"
    )]
    TooManyTypes,
    /// A type of a longer name than [`NAME_LENGTH_MAX`] bytes.
    #[error("STR0502: the name of a resource type is {0} bytes long, more than {NAME_LENGTH_MAX}")]
    TypeTooLong(usize),
    /// A diagnostic type of the peer's, which has an HTTP counterpart here.
    #[error(
        "STR0502: {0:?} is not served over xDS; use the admin address, /debug/proxies and others"
    )]
    DebugType(String),
    /// More than [`NAMES_MAX`] names.
    #[error("STR0502: {0} names of one type are more than the {NAMES_MAX} a stream may watch")]
    TooManyNames(usize),
    /// A name of more than [`NAME_LENGTH_MAX`] bytes.
    #[error("STR0502: a resource name of {0} bytes is longer than {NAME_LENGTH_MAX}")]
    NameTooLong(usize),
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
    form: Form,
    complete_answers: bool,
    node: Option<String>,
    /// Boxed: a map's node has room for eleven, and there are four at most.
    watches: BTreeMap<ResourceType, Box<Subscription>>,
    unserved: Unserved,
    /// Upstream clusters sent before the client asked for any assignment.
    clusters_before_endpoints: EarlyClusters,
    rewatched: Rewatched,
    last_nonce: u64,
}

impl Session {
    /// A stream on which nothing was said yet.
    pub fn new(form: Form) -> Self {
        Self {
            form,
            complete_answers: false,
            node: None,
            watches: BTreeMap::new(),
            unserved: Unserved::default(),
            clusters_before_endpoints: EarlyClusters::default(),
            rewatched: Rewatched::default(),
            last_nonce: 0,
        }
    }

    /// The form it speaks.
    pub fn form(&self) -> Form {
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
        request: Request<'_>,
        source: Option<&mut dyn ResourceSource>,
        now: SystemTime,
    ) -> Result<Handled, Violation> {
        let Some(kind) = self.open_request(request.node.as_deref(), request.type_url)? else {
            return self.unserved.on_request(self.form, request);
        };
        match self.form {
            Form::Delta => self.on_delta_request(kind, request, source, now),
            Form::Sotw => self.on_sotw_request(kind, request, now),
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
        if let Some(routes) = self.watches.get_mut(&ResourceType::Route) {
            dirty.routes.iter().for_each(|name| routes.mark_watched(name));
        }
        if let Some(endpoints) = self.watches.get_mut(&ResourceType::Endpoint) {
            dirty.endpoints.iter().for_each(|name| endpoints.mark_watched(name));
        }
    }

    /// The types of which the client watches all there is, or may do so.
    pub fn lists(&self) -> Wildcards {
        self.watches.keys().filter_map(|kind| kind.wildcard()).collect()
    }

    /// Whether there may be something to send.
    pub fn is_due(&self) -> bool {
        self.watches.values().any(|watch| watch.is_due()) || self.unserved.is_due()
    }

    /// Whether so much may have to be sent that others' changes would wait for it: a first sync, mostly.
    pub fn is_much_due(&self) -> bool {
        self.watches.values().any(|watch| watch.is_much())
    }

    /// The next response, of about `limit_bytes` at most where the form can be cut (a SotW response
    /// of a wildcard type can't). Call it until it returns `None`, whenever there is room to send.
    ///
    /// Make before break: types come in the order of [`ResourceType::ALL`], so that what is referred
    /// to is there first; upstream clusters go last, when nothing refers to them any more.
    pub fn next_response(
        &mut self,
        source: &mut dyn ResourceSource,
        limit_bytes: usize,
        now: SystemTime,
    ) -> Option<Response> {
        let makes = ResourceType::ALL.map(|kind| match kind {
            ResourceType::Cluster => (kind, Gone::Stays),
            _ => (kind, Gone::Goes),
        });
        let mut makes = makes.into_iter().chain([(ResourceType::Cluster, Gone::Goes)]);
        makes.find_map(|(kind, gone)| self.response_of(kind, gone, source, limit_bytes, now))
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
        self.response_of(ResourceType::Endpoint, Gone::Goes, source, limit_bytes, now)
    }

    /// The next response for types of which there is nothing, whatever there is of others.
    pub fn next_nothing(&mut self) -> Option<Nothing> {
        let nothing = self.unserved.take(self.form, self.last_nonce + 1)?;
        self.last_nonce += 1;
        Some(nothing)
    }

    fn response_of(
        &mut self,
        kind: ResourceType,
        gone: Gone,
        source: &mut dyn ResourceSource,
        limit_bytes: usize,
        now: SystemTime,
    ) -> Option<Response> {
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
        let joins = self.form == Form::Delta && kind == ResourceType::Endpoint;
        let resources = resources.iter().map(|one| Stamped {
            version: if joins { self.joined(&one.name, one.version) } else { one.version },
            resource: Arc::clone(one),
        });
        let (pieces, resources) = (pieces.clone(), resources.collect());
        if kind == ResourceType::Cluster {
            self.follow_with_assignments(&batch);
        }
        let removed = if self.form == Form::Delta { batch.removed } else { Vec::new() };
        let nonce = format!("{:x}", self.last_nonce);
        Some(Response { form: self.form, kind, version, nonce, pieces, resources, removed })
    }

    /// Which names the client watches otherwise than before its last request. Call it after each.
    pub fn rewatched(&mut self) -> Rewatched {
        std::mem::take(&mut self.rewatched)
    }

    /// The names of the assignments that the client watches, sorted.
    pub fn assignments(&self) -> impl Iterator<Item = &Arc<str>> {
        self.watches.get(&ResourceType::Endpoint).into_iter().flat_map(|watch| watch.names())
    }

    /// How far the client has followed, by type.
    pub fn progress(&self) -> BTreeMap<ResourceType, Progress> {
        self.watches.iter().map(|(kind, watch)| (*kind, watch.progress().clone())).collect()
    }

    /// What the client holds, by type and name.
    pub fn held(&self) -> BTreeMap<ResourceType, BTreeMap<Arc<str>, Held>> {
        let of = |watch: &Subscription| {
            watch.held().map(|(name, held)| (Arc::clone(name), held)).collect()
        };
        self.watches.iter().map(|(kind, watch)| (*kind, of(watch))).collect()
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
        match (ResourceType::of_url(type_url), type_url) {
            (Some(kind), _) => Ok(Some(kind)),
            (None, "") => Err(Violation::NoType),
            (None, url) if url.len() > NAME_LENGTH_MAX => Err(Violation::TypeTooLong(url.len())),
            // Istio's agent asks on its proxy's own stream for whoever asks it: the proxy keeps that.
            (None, url) if url.starts_with("istio.io/debug") && self.watches.is_empty() => {
                Err(Violation::DebugType(url.to_owned()))
            }
            (None, _) => Ok(None),
        }
    }

    /// The watch of `kind`, and whether this request is the first to ask for it.
    pub(super) fn watch(&mut self, kind: ResourceType) -> (&mut Subscription, bool) {
        let mut first = false;
        let watch = self.watches.entry(kind).or_insert_with(|| {
            first = true;
            Box::new(Subscription::new(kind))
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
        let new = self.watch(kind).0.subscribe(names, listed);
        if let Some(rewatch) = self.rewatched.of(kind) {
            rewatch.new = new;
        } else {
            self.rewatched.others_new.extend(new.into_iter().map(|name| (kind, name)));
        }
    }

    /// Stops to watch names of `kind`.
    pub(super) fn unsubscribe<'a>(
        &mut self,
        kind: ResourceType,
        names: impl IntoIterator<Item = &'a str>,
    ) {
        let dropped = self.watch(kind).0.unsubscribe(names);
        if let Some(rewatch) = self.rewatched.of(kind) {
            rewatch.dropped = dropped;
        } else {
            let dropped = dropped.into_iter().map(|name| (kind, name));
            self.rewatched.others_dropped.extend(dropped);
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
        self.form == Form::Sotw && (kind.is_wildcard() || self.complete_answers)
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

/// Refuses more names, or longer ones, than a stream may watch.
pub(super) fn check_names<'a>(
    names: impl IntoIterator<Item = &'a &'a str>,
    watched_already: usize,
) -> Result<(), Violation> {
    let mut count = watched_already;
    for name in names {
        count += 1;
        if name.len() > NAME_LENGTH_MAX {
            return Err(Violation::NameTooLong(name.len()));
        }
    }
    if count > NAMES_MAX { Err(Violation::TooManyNames(count)) } else { Ok(()) }
}

/// Joins the version of an assignment with that of its upstream cluster; the same again parts them.
pub(super) fn joined(assignment: Version, cluster: Option<Version>) -> Version {
    Version(assignment.0 ^ cluster.map_or(0, |cluster| cluster.0))
}

#[cfg(test)]
mod tests;
