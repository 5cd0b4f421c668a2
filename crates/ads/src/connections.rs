//! The table of connected proxies, for the admin API. Each stream adds and removes its own entry.
//! Progress is read from the session on request, so it costs the stream nothing.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use dashmap::DashMap;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::admission::Admitted;
use super::budgets::Budgets;
use strait_admin_api as api;
use strait_base::codes;
use strait_base::lock::lock;
use strait_base::time::rfc3339;
use strait_identity::{Caller, CallerProof, SpiffeId};
use strait_mesh::push::Whereabouts;
use strait_mesh::push::subscription_index::StreamBacklog;
use strait_model::{
    Interception, NameMatch, NetworkId, Proxy, ProxyName, RootBundle, VirtualHostDelivery,
};
use strait_xds::answers::Progress;
pub use strait_xds::answers::ProxyStanding;
use strait_xds::audit::SentState;
pub use strait_xds::held_version::HeldVersion;
use strait_xds::resource::{Resource, ResourceType, Version};
use strait_xds::secrets::SecretReport;
use strait_xds::session::{ProtocolForm, Session, joined};

/// The maximum number of streams of one identity with one node ID: a reconnecting proxy has two for
/// a while. The budget limits the usage of an identity with several node IDs.
const PER_NODE_MAX: usize = 4;

/// All open streams.
#[derive(Debug, Default)]
pub struct Connections {
    next: AtomicU64,
    streams: DashMap<u64, Arc<OpenStream>>,
    per_node: DashMap<NodeKey, usize>,
    budgets: Arc<Budgets>,
    /// The number of memory pieces that ended streams have released.
    left: AtomicU64,
    /// Incremented when a stream opens, ends or rejects a response.
    news: watch::Sender<u64>,
}

/// An identity and the node ID that it claims.
type NodeKey = (SpiffeId, Arc<str>);

/// The proof of a stream's identity.
#[derive(Debug, Clone)]
struct KnownBy {
    /// `certificate` or `token`.
    proof: &'static str,
    /// The expiry of the proof.
    until: SystemTime,
    /// The time at which the certificate was issued. `None` for a token.
    issued: Option<SystemTime>,
}

impl KnownBy {
    fn of(caller: &Caller) -> Self {
        match caller.proof() {
            CallerProof::Certificate(peer, _) => {
                let (until, issued) = (peer.not_after(), peer.issued());
                Self { proof: "certificate", until, issued }
            }
            CallerProof::Token(token) => {
                Self { proof: "token", until: token.expires, issued: None }
            }
        }
    }
}

/// One open stream.
#[derive(Debug)]
pub struct OpenStream {
    number: u64,
    proxy: Arc<Proxy>,
    identity: SpiffeId,
    known_by: KnownBy,
    form: ProtocolForm,
    connected_at: SystemTime,
    admitted: Mutex<Admitted>,
    /// The session, which only the stream changes. It is read on request.
    session: Arc<Mutex<Session>>,
    /// The changes that the stream has not handled yet, for its current configuration.
    backlog: Mutex<Option<StreamBacklog>>,
}

/// The entry of a stream. Dropping it removes the stream from the table.
#[derive(Debug)]
pub struct ConnectionEntry {
    connections: Arc<Connections>,
    connection: Arc<OpenStream>,
}

impl Connections {
    /// Creates an empty table with these budgets.
    pub fn new(budgets: Budgets) -> Self {
        Self { budgets: Arc::new(budgets), ..Self::default() }
    }

    /// Adds a stream. Returns `None` if the identity already has too many streams with this node
    /// ID.
    pub(super) fn enter(
        self: &Arc<Self>,
        proxy: Arc<Proxy>,
        caller: &Caller,
        session: Arc<Mutex<Session>>,
        admitted: Admitted,
    ) -> Option<ConnectionEntry> {
        let identity = caller.identity().clone();
        let known_by = KnownBy::of(caller);
        {
            let key = (identity.clone(), Arc::clone(&proxy.id));
            let mut count = self.per_node.entry(key).or_insert(0);
            if *count >= PER_NODE_MAX {
                return None;
            }
            *count += 1;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let form = lock(&session).form();
        let connection = Arc::new(OpenStream {
            number,
            proxy,
            identity,
            known_by,
            form,
            connected_at: SystemTime::now(),
            admitted: Mutex::new(admitted),
            session,
            backlog: Mutex::default(),
        });
        self.streams.insert(number, Arc::clone(&connection));
        self.notify();
        Some(ConnectionEntry { connections: Arc::clone(self), connection })
    }

    /// Returns all streams, oldest first.
    pub fn list(&self) -> Vec<Arc<OpenStream>> {
        let mut list: Vec<_> = self.streams.iter().map(|one| Arc::clone(one.value())).collect();
        list.sort_by_key(|one| one.number);
        list
    }

    /// Returns the number of open streams.
    pub fn len(&self) -> usize {
        self.streams.len()
    }

    /// The budgets of identities.
    pub fn budgets(&self) -> &Arc<Budgets> {
        &self.budgets
    }

    /// Returns a receiver that is notified when a stream opens, ends or rejects a response.
    pub fn news(&self) -> watch::Receiver<u64> {
        self.news.subscribe()
    }

    /// Notifies the receivers of [`Self::news`].
    pub(super) fn notify(&self) {
        self.news.send_modify(|number| *number += 1);
    }

    /// Records the number of memory pieces that a stream has released.
    pub(super) fn leave(&self, pieces: u64) {
        self.left.fetch_add(pieces, Ordering::Relaxed);
    }

    /// Returns the number of opened and ended streams since the start, plus the memory pieces that
    /// ended streams released.
    pub fn churn(&self) -> u64 {
        let come = self.next.load(Ordering::Relaxed);
        let open = u64::try_from(self.len()).unwrap_or(u64::MAX);
        come + come.saturating_sub(open) + self.left.load(Ordering::Relaxed)
    }

    /// Returns whether no stream is open.
    pub fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    /// Returns the streams that a node ID, a key or a [`ProxyName`] matches, oldest first.
    pub fn named(&self, name: &str) -> Vec<(NameMatch, Arc<OpenStream>)> {
        let matching = |one: Arc<OpenStream>| Some((one.matches(name)?, one));
        self.list().into_iter().filter_map(matching).collect()
    }
}

/// Returns the stream with the configuration of each `key`, oldest first: the newest stream that
/// subscribes to clusters or listeners, otherwise the newest one. An agent may open a second stream
/// with the node ID of its proxy, for other types.
pub fn newest_by<'a, K: Ord>(
    streams: &'a [Arc<OpenStream>],
    key: impl Fn(&'a OpenStream) -> K,
) -> Vec<&'a Arc<OpenStream>> {
    let mut newest: BTreeMap<K, &Arc<OpenStream>> = BTreeMap::new();
    for stream in streams {
        let entry = newest.entry(key(stream)).or_insert(stream);
        if entry.rank() <= stream.rank() {
            *entry = stream;
        }
    }
    let mut newest: Vec<_> = newest.into_values().collect();
    newest.sort_by_key(|stream| stream.number);
    newest
}

impl OpenStream {
    /// Returns the proxy's verified claims.
    pub fn proxy(&self) -> &Proxy {
        &self.proxy
    }

    /// Returns the proxy's network.
    pub fn network(&self) -> NetworkId {
        lock(&self.admitted).network.clone()
    }

    /// Returns the proxy's network and its known location.
    pub fn place(&self) -> (NetworkId, Whereabouts) {
        let admitted = lock(&self.admitted);
        (admitted.network.clone(), admitted.whereabouts.clone())
    }

    /// Returns the unique name of this stream: `name.namespace-number`.
    pub fn key(&self) -> String {
        format!("{}-{}", self.proxy.workload, self.number)
    }

    /// Returns whether the agent has these trust roots, or `None` if it never requested any.
    pub fn has_roots(&self, bundle: &RootBundle) -> Option<bool> {
        lock(&self.session).has_roots(bundle)
    }

    /// Returns when the proxy's certificate was issued, or `None` without a certificate.
    pub fn certificate_issued(&self) -> Option<SystemTime> {
        self.known_by.issued
    }

    /// Returns the authenticated identity.
    pub(super) fn identity(&self) -> &SpiffeId {
        &self.identity
    }

    /// Returns the last versions that were sent and acknowledged, by type.
    pub(super) fn progress(&self) -> BTreeMap<ResourceType, Progress> {
        lock(&self.session).progress()
    }

    /// Returns the worst state among all types.
    pub fn standing(&self) -> ProxyStanding {
        lock(&self.session).standing()
    }

    /// Returns the error texts of current rejections, by type.
    pub fn refusals(&self) -> BTreeMap<&'static str, String> {
        let of =
            |(kind, progress): (ResourceType, Progress)| Some((kind.short(), progress.nack?.error));
        self.progress().into_iter().filter_map(of).collect()
    }

    /// Returns the resources that the client holds, by type and name.
    pub(super) fn held(&self) -> BTreeMap<ResourceType, BTreeMap<Arc<str>, HeldVersion>> {
        lock(&self.session).held()
    }

    /// Returns how a node ID, a key or a [`ProxyName`] matches this stream.
    fn matches(&self, name: &str) -> Option<NameMatch> {
        if *name == *self.proxy.id || name == self.key() {
            return Some(NameMatch::Unique);
        }
        let workload = self.proxy.workload.to_string();
        ProxyName::parse(name).matches(&workload, self.proxy.cluster.as_str())
    }

    /// Returns whether a node ID, a key, or a name `name.namespace[@cluster]` matches this stream.
    pub(super) fn is_named(&self, name: &str) -> bool {
        self.matches(name).is_some_and(|found| found <= NameMatch::Exact)
    }

    /// Returns whether the stream subscribes to clusters or listeners, so that its proxy receives
    /// its configuration from it.
    pub fn is_of_configuration(&self) -> bool {
        let is_configuration =
            |kind: &ResourceType| matches!(kind, ResourceType::Cluster | ResourceType::Listener);
        self.progress().keys().any(is_configuration)
    }

    /// Returns whether the stream belongs to an agent, which only requests the table of names. The
    /// proxy next to it has its own stream.
    pub fn is_of_agent(&self) -> bool {
        let progress = self.progress();
        !progress.is_empty() && progress.keys().all(|kind| *kind == ResourceType::NameTable)
    }

    /// Orders the streams of one proxy: the highest one has its configuration.
    pub(super) fn rank(&self) -> (bool, u64) {
        (self.is_of_configuration(), self.number)
    }

    /// Returns when the stream was opened.
    pub fn connected_at(&self) -> SystemTime {
        self.connected_at
    }

    /// Returns whether the proxy has accepted the access policies of every version up to now. They
    /// are in the listeners and, for gateways, in the routes.
    ///
    /// The result is also true if the latest versions do not affect the proxy, although its stream
    /// was not woken for them.
    pub fn has_followed_policies(&self) -> bool {
        let backlog = lock(&self.backlog).clone();
        // Checked first, because changes move from the backlog to the session.
        if backlog.is_none_or(|backlog| backlog.may_have_listener_changes()) {
            return false;
        }
        let session = lock(&self.session);
        let is_router = self.proxy.kind.is_gateway();
        let routes = session.has_followed(ResourceType::Route).filter(|_| is_router);
        session.has_followed(ResourceType::Listener) == Some(true)
            && routes != Some(false)
            && session.has_followed(ResourceType::VirtualHost) != Some(false)
    }

    /// Returns whether a change has been published that the stream's session does not know yet.
    pub(super) fn may_have_changes(&self) -> bool {
        lock(&self.backlog).as_ref().is_none_or(StreamBacklog::may_have_changes)
    }

    /// Returns the client's subscriptions and the resources that it holds, or `None` if a response is
    /// due.
    pub(super) fn sent_state(&self) -> Option<SentState> {
        lock(&self.session).sent_state()
    }

    /// Returns the entry in `/debug/proxies`.
    pub fn summary(&self) -> api::Proxy {
        let admitted = lock(&self.admitted).clone();
        let progress = self.progress();
        let types = progress.iter().map(|(kind, of)| (kind.short().to_owned(), delivery(of)));
        let interception =
            Some(self.proxy.interception).filter(|how| *how != Interception::Redirect);
        let secrets = lock(&self.session).secret_reports();
        api::Proxy {
            key: self.key(),
            id: self.proxy.id.to_string(),
            kind: self.proxy.kind.as_str().to_owned(),
            cluster: self.proxy.cluster.to_string(),
            network: admitted.network.to_string(),
            namespace: self.proxy.namespace().to_string(),
            identity: self.identity.to_string(),
            known_by: Some(self.known_by.proof.to_owned()),
            known_until: rfc3339(self.known_by.until),
            verified: admitted.verified,
            version: self.proxy.envoy_version.to_string(),
            connected_at: rfc3339(self.connected_at),
            protocol: self.form.as_str().to_owned(),
            types: types.collect(),
            interception: interception.map(|how| how.as_str().to_owned()),
            virtual_hosts: virtual_hosts(self.proxy.virtual_hosts),
            secrets: secrets.iter().map(secret).collect(),
            missing_patches: self.proxy.missing_patches().into_iter().map(str::to_owned).collect(),
            replica: None,
        }
    }

    /// Returns the status of each secret that the proxy subscribes to.
    pub fn secret_reports(&self) -> Vec<SecretReport> {
        lock(&self.session).secret_reports()
    }

    /// Returns the resources that the proxy was last sent, by type and name, in Envoy's JSON form.
    ///
    /// Resources that the proxy listed when it connected were sent by another process or on another
    /// stream. They are included in full if the current resource, which `now` returns, has the same
    /// version.
    pub fn config_dump(
        &self,
        mut now: impl FnMut(ResourceType, &str) -> Option<Arc<Resource>>,
    ) -> Value {
        // Copied, so that the stream can continue while the rest is decoded.
        let held = self.held();
        let clusters = held.get(&ResourceType::Cluster);
        let shown = |kind, name: &str, version| match (self.form, kind) {
            (ProtocolForm::Delta, ResourceType::Endpoint) => {
                let cluster = clusters.and_then(|clusters| clusters.get(name)?.version());
                joined(version, cluster)
            }
            _ => version,
        };
        let by_type = ResourceType::ALL.into_iter().map(|kind| {
            let resources: Vec<Value> = held
                .get(&kind)
                .into_iter()
                .flatten()
                .map(|(name, held)| match held {
                    HeldVersion::Sent(resource) => json!({
                        "name": name,
                        "version": shown(kind, name, resource.version).to_string(),
                        "resource": decoded(kind, &resource.body.to_bytes()),
                    }),
                    // The proxy stated that it had this version when it connected; the bytes were
                    // not needed.
                    HeldVersion::Listed(version) => {
                        let same = now(kind, name).filter(|now| Some(now.version) == *version);
                        let mut listed = json!({
                            "name": name,
                            "version": version.map(|version| shown(kind, name, version).to_string()),
                        });
                        if let Some(same) = same {
                            listed["resource"] = decoded(kind, &same.body.to_bytes());
                        }
                        listed
                    }
                })
                .collect();
            (kind.short().to_owned(), Value::Array(resources))
        });
        Value::Object(by_type.collect())
    }
}

impl ConnectionEntry {
    pub(super) fn connection(&self) -> &OpenStream {
        &self.connection
    }

    /// Sets the changes that the stream has not handled yet, for its current configuration.
    pub(super) fn set_backlog(&self, backlog: StreamBacklog) {
        *lock(&self.connection.backlog) = Some(backlog);
    }

    /// Updates the proxy's network, location and verification.
    pub(super) fn readmit(&self, admitted: Admitted) {
        *lock(&self.connection.admitted) = admitted;
    }
}

impl Drop for ConnectionEntry {
    fn drop(&mut self) {
        let connection = &self.connection;
        self.connections.streams.remove(&connection.number);
        let key = (connection.identity.clone(), Arc::clone(&connection.proxy.id));
        if let Some(mut count) = self.connections.per_node.get_mut(&key) {
            *count = count.saturating_sub(1);
        }
        self.connections.per_node.remove_if(&key, |_, count| *count == 0);
        self.connections.notify();
    }
}

fn decoded(kind: ResourceType, body: &[u8]) -> Value {
    strait_proto::json::to_json(kind.url(), body)
        .unwrap_or_else(|error| json!({ "undecodable": error.to_string() }))
}

fn virtual_hosts(delivery: VirtualHostDelivery) -> Option<api::VirtualHostSubscription> {
    let (code, reason) = match delivery {
        VirtualHostDelivery::InRoutes => return None,
        VirtualHostDelivery::OneByOne => (None, None),
        VirtualHostDelivery::Refused(reason) => (Some(codes::VIRTUAL_HOSTS.id), Some(reason)),
    };
    Some(api::VirtualHostSubscription {
        one_by_one: code.is_none(),
        code: code.map(str::to_owned),
        reason: reason.map(str::to_owned),
    })
}

fn secret(report: &SecretReport) -> api::ProxySecret {
    let trouble = report.trouble.as_ref();
    api::ProxySecret {
        name: report.name.to_string(),
        sent: report.sent,
        code: trouble.map(|trouble| trouble.code.id.to_owned()),
        reason: trouble.map(|trouble| trouble.fact.clone()),
    }
}

fn delivery(progress: &Progress) -> api::TypeDelivery {
    let version = |version: Option<Version>| version.map(|version| version.to_string());
    api::TypeDelivery {
        sent: version(progress.sent),
        acked: version(progress.acked),
        last_sent: progress.last_sent.map(rfc3339),
        last_acked: progress.last_acked.map(rfc3339),
        nack: progress.nack.as_ref().map(|nack| api::Rejection {
            error: nack.error.clone(),
            resources: nack.resources.iter().map(ToString::to_string).collect(),
        }),
    }
}
