//! The other replicas of this control plane: their addresses, and requests to them.
//!
//! Replicas find each other by the EndpointSlices of Strait's own Service, or by `--peers`. Either
//! list may contain this process, which recognizes itself by its pod or its certificate. Replicas
//! authenticate with certificates that only replicas have ([`strait_identity::replica`]), on the
//! port of proxies. Each request uses its own connection, has a time limit and a size limit.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::future::pending;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes, to_bytes};
use axum::http::{Method, Request, StatusCode, header};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use strait_base::codes;
use strait_base::lock::lock;
use strait_base::task::Supervisor;
use strait_identity::ReplicaAuthenticator;
use strait_kube_client::{
    Access, ApiClient, ApiError, InvalidField, ListSelection, NamespacedName, ObjectMetadata,
    OwnedObject, ReadLimits, WatchEvent, null_as_default,
};

/// Maximum time to connect to a replica.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// Pause before the next request to a replica that did not respond in time.
const SILENT: Duration = Duration::from_secs(5);
/// Maximum size of a replica's response in bytes.
pub(super) const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Interval of counts of the replicas.
pub(super) const LOOK: Duration = Duration::from_secs(5);
/// Name of Strait's own Service.
const SERVICE: &str = "strait";
/// Name of the Service's port for proxies.
const PORT: &str = "grpc-xds";

/// Another replica.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Peer {
    /// Its address: `HOST:PORT`.
    pub address: String,
    /// Name of the pod; `None` for an address of `--peers`.
    pub pod: Option<String>,
    /// Its name, once its certificate has shown it.
    pub name: Option<String>,
}

impl Peer {
    fn at(address: String, pod: Option<String>) -> Self {
        Self { address, pod, name: None }
    }

    /// Returns the name if it is known, otherwise the pod or the address.
    pub fn label(&self) -> &str {
        self.name.as_deref().or(self.pod.as_deref()).unwrap_or(&self.address)
    }

    /// Returns whether this is the replica's name, its pod or its address.
    pub fn is_called(&self, name: &str) -> bool {
        [&self.name, &self.pod].into_iter().flatten().any(|one| one == name) || self.address == name
    }

    /// Returns the key for facts about the replica. Another pod may get the same address later.
    fn place(&self) -> PeerPlace {
        (self.address.clone(), self.pod.clone())
    }
}

/// Address and pod of a replica.
type PeerPlace = (String, Option<String>);

/// Facts that certificates have shown, by the place of a replica.
#[derive(Debug, Default)]
struct ProvenPeers {
    /// Names of replicas.
    names: BTreeMap<PeerPlace, String>,
    /// Places of this process.
    own: BTreeSet<PeerPlace>,
}

impl ProvenPeers {
    /// Records the name that the certificate of a peer shows, or that it is this process (`None`).
    /// Forgets the peers that are not in `found`.
    fn learn(&mut self, peer: &Peer, name: Option<&str>, found: &[Peer]) {
        let exists: BTreeSet<_> = found.iter().map(Peer::place).collect();
        self.names.retain(|place, _| exists.contains(place));
        self.own.retain(|place| exists.contains(place));
        match name {
            Some(name) => drop(self.names.insert(peer.place(), name.to_owned())),
            None => drop(self.own.insert(peer.place())),
        }
    }

    /// Returns the peers without this process, with their proven names.
    fn others(&self, found: &[Peer]) -> Vec<Peer> {
        let others = found.iter().filter(|peer| !self.own.contains(&peer.place()));
        let named =
            |peer: &Peer| Peer { name: self.names.get(&peer.place()).cloned(), ..peer.clone() };
        others.map(named).collect()
    }
}

/// The replicas that were found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct FoundPeers {
    peers: Vec<Peer>,
    /// The reason why the list may be incomplete.
    problem: Option<String>,
    /// Whether the replicas have been searched for.
    is_known: bool,
}

/// A request to another replica.
#[derive(Debug, Clone)]
pub struct PeerRequest {
    /// The method.
    pub method: Method,
    /// Path and query.
    pub path: String,
    /// The body.
    pub body: Bytes,
}

impl PeerRequest {
    /// Creates a request without a body that only reads.
    pub(super) fn get(path: &str) -> Self {
        Self { method: Method::GET, path: path.to_owned(), body: Bytes::new() }
    }
}

/// The response of another replica.
#[derive(Debug)]
pub struct PeerAnswer {
    /// The name of the replica, which its certificate proves.
    pub replica: String,
    /// The status.
    pub status: StatusCode,
    /// The body.
    pub body: Bytes,
}

/// The other replicas of this control plane.
#[derive(Debug)]
pub struct OtherReplicas {
    authenticator: Arc<ReplicaAuthenticator>,
    found: watch::Receiver<Arc<FoundPeers>>,
    proven: Mutex<ProvenPeers>,
    /// The replicas that did not respond in time, by address, with the time of the last request.
    silent: Mutex<BTreeMap<String, Instant>>,
}

impl OtherReplicas {
    /// Creates the client. `found` are the replicas that exist.
    pub(super) fn new(
        authenticator: Arc<ReplicaAuthenticator>,
        found: watch::Receiver<Arc<FoundPeers>>,
    ) -> Self {
        Self { authenticator, found, proven: Mutex::default(), silent: Mutex::default() }
    }

    /// Returns the name of this replica.
    pub fn name(&self) -> &str {
        self.authenticator.name().as_str()
    }

    /// Returns the other replicas.
    pub fn others(&self) -> Vec<Peer> {
        lock(&self.proven).others(&self.found.borrow().peers)
    }

    /// Returns the number of replicas, with this one.
    pub(super) fn count(&self) -> usize {
        1 + self.others().len()
    }

    /// Connects to the peers of `--peers` that have not shown a certificate yet: one may be this
    /// process. A peer of the EndpointSlices has a pod, which shows that it is another process.
    async fn identify_peers(&self) {
        let unknown = |peer: &Peer| peer.pod.is_none() && peer.name.is_none();
        for peer in self.others().into_iter().filter(unknown) {
            let connecting = timeout(CONNECT_LIMIT, self.authenticator.connect(&peer.address));
            match connecting.await {
                Ok(Ok(None)) => self.learn(&peer, None),
                Ok(Ok(Some(stream))) => self.learn(&peer, Some(stream.peer.as_str())),
                // It may start later. The list of peers still contains it.
                Ok(Err(_)) | Err(_) => {}
            }
        }
    }

    /// Returns whether a request to this peer has reached this process itself.
    pub fn is_this_process(&self, peer: &Peer) -> bool {
        lock(&self.proven).own.contains(&peer.place())
    }

    /// Returns the other replicas once they have been searched for, at most after `limit`.
    pub(super) async fn found(&self, limit: Duration) -> Vec<Peer> {
        let mut found = self.found.clone();
        let known = timeout(limit, found.wait_for(|found| found.is_known)).await;
        // It contains a guard of the list. After the limit, the list is empty.
        drop(known);
        self.others()
    }

    /// Returns why responses may lack replicas, if a reason is known.
    pub fn problem(&self) -> Option<String> {
        let found = Arc::clone(&self.found.borrow());
        let has_others = !self.others().is_empty();
        let unproven = has_others.then(|| self.authentication_problem()).flatten();
        unproven.or_else(|| found.problem.clone())
    }

    /// Logs each new reason why responses may lack replicas, and its end, until the process ends.
    pub(super) async fn report_problems(self: Arc<Self>) {
        let mut found = self.found.clone();
        let mut reported = None;
        loop {
            // It fails if the list never changes, as that of `--peers`.
            let is_known = found.wait_for(|found| found.is_known).await.is_ok();
            self.identify_peers().await;
            match next_report(&mut reported, is_known.then(|| self.problem()).flatten()) {
                Some(Some(problem)) => {
                    let code = &codes::REPLICA_MISSING;
                    warn!(%code, %problem, next = code.next, "responses may not cover all replicas");
                }
                Some(None) => info!("responses cover all replicas again"),
                None => {}
            }
            // The CA may change too.
            sleep(LOOK).await;
        }
    }

    /// Records whether a replica responded in time.
    pub fn note(&self, peer: &Peer, is_silent: bool, now: Instant) {
        let mut silent = lock(&self.silent);
        silent.retain(|_, since| now.saturating_duration_since(*since) < SILENT);
        match is_silent {
            true => drop(silent.insert(peer.address.clone(), now)),
            false => drop(silent.remove(&peer.address)),
        }
    }

    /// Returns whether a replica did not respond in the last seconds. Commands send several
    /// requests, and only the first one should wait for it.
    pub fn is_silent(&self, peer: &Peer, now: Instant) -> bool {
        let silent = lock(&self.silent);
        let since = silent.get(&peer.address);
        since.is_some_and(|since| now.saturating_duration_since(*since) < SILENT)
    }

    /// Returns why replicas can't authenticate each other, if they can't.
    pub fn authentication_problem(&self) -> Option<String> {
        self.authenticator.problem()
    }

    /// See [`ProvenPeers::learn`].
    fn learn(&self, peer: &Peer, name: Option<&str>) {
        lock(&self.proven).learn(peer, name, &self.found.borrow().peers);
    }

    /// Sends a request to another replica.
    ///
    /// # Errors
    /// The reason why there is no response, as text.
    pub async fn request(&self, peer: &Peer, request: PeerRequest) -> Result<PeerAnswer, String> {
        let address = &peer.address;
        let connecting = timeout(CONNECT_LIMIT, self.authenticator.connect(address)).await;
        let stream = connecting
            .map_err(|_| format!("no connection within {} s", CONNECT_LIMIT.as_secs()))?
            .map_err(|error| error.to_string())?;
        let Some(stream) = stream else {
            self.learn(peer, None);
            return Err(format!("{address} is this replica itself"));
        };
        let replica = stream.peer.as_str().to_owned();
        if replica == self.name() {
            return Err(format!(
                "it has the name of this replica, {replica}; set --replica-name to a different name for each"
            ));
        }
        self.learn(peer, Some(&replica));
        let error = |error: hyper::Error| error.to_string();
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream.io)).await.map_err(error)?;
        let built = Request::builder()
            .method(request.method)
            .uri(request.path)
            .header(header::HOST, "replica")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(request.body))
            .map_err(|error| error.to_string())?;
        let talk = async {
            let response = sender.send_request(built).await.map_err(error)?;
            let status = response.status();
            let body = to_bytes(Body::new(response.into_body()), ANSWER_BYTES_MAX).await;
            Ok::<_, String>((status, body.map_err(|error| error.to_string())?))
        };
        // The connection only makes progress while it is polled. It ends with the response.
        let mut connection = std::pin::pin!(connection);
        let mut talk = std::pin::pin!(talk);
        let (status, body) = tokio::select! {
            answered = &mut talk => answered?,
            ended = &mut connection => {
                if let Err(error) = ended {
                    return Err(error.to_string());
                }
                talk.await?
            }
        };
        Ok(PeerAnswer { replica, status, body })
    }
}

/// Returns the replicas of `--peers`.
pub(super) fn listed(addresses: &[String]) -> watch::Receiver<Arc<FoundPeers>> {
    let mut peers: Vec<Peer> =
        addresses.iter().map(|address| Peer::at(address.clone(), None)).collect();
    peers.sort();
    peers.dedup();
    watch::channel(Arc::new(FoundPeers { peers, problem: None, is_known: true })).1
}

/// Follows the EndpointSlices of Strait's own Service. `own_pod` is the pod of this process.
pub(super) fn follow(
    access: watch::Receiver<Access>,
    namespace: String,
    own_pod: Option<String>,
    port: u16,
    tasks: &Supervisor,
) -> watch::Receiver<Arc<FoundPeers>> {
    let (found, seen) = watch::channel(Arc::<FoundPeers>::default());
    let labels = format!("kubernetes.io/service-name={SERVICE}");
    let selection = ListSelection {
        namespace: Some(namespace),
        labels: Some(labels),
        ..ListSelection::all("discovery.k8s.io", "v1", "endpointslices")
    };
    let follower = PeerFollower { access, selection, own_pod, port, found };
    tasks.spawn_restarting("replicas", LOOK, move || follower.clone().run());
    seen
}

/// Watches the EndpointSlices of Strait's own Service.
#[derive(Debug, Clone)]
struct PeerFollower {
    access: watch::Receiver<Access>,
    selection: ListSelection,
    own_pod: Option<String>,
    port: u16,
    found: watch::Sender<Arc<FoundPeers>>,
}

impl PeerFollower {
    async fn run(mut self) {
        loop {
            let access = self.access.borrow_and_update().clone();
            let mut renewed = self.access.clone();
            let watched = async {
                match ApiClient::new(&access) {
                    Ok(client) => self.watch(&client).await,
                    Err(error) => self.fail(&error),
                }
                // A new access is needed.
                pending::<()>().await;
            };
            tokio::select! {
                () = watched => {}
                Ok(()) = renewed.changed() => {}
            }
        }
    }

    async fn watch(&self, client: &ApiClient) {
        let (events, mut received) = mpsc::channel::<WatchEvent<PeerSlice>>(1);
        let apply = async {
            // Complete once the first list has arrived.
            let mut slices: Option<BTreeMap<NamespacedName, PeerSlice>> = None;
            while let Some(event) = received.recv().await {
                match event {
                    WatchEvent::Restarted { objects, .. } => {
                        let keyed = objects.into_iter().map(|slice| (slice.metadata.key(), slice));
                        slices = Some(keyed.collect());
                    }
                    WatchEvent::Applied(slice) => {
                        slices.get_or_insert_default().insert(slice.metadata.key(), slice);
                    }
                    WatchEvent::Deleted(key)
                    | WatchEvent::Invalid(InvalidField { key: Some(key), .. }) => {
                        slices.get_or_insert_default().remove(&key);
                    }
                    WatchEvent::Invalid(_) | WatchEvent::Answered => {}
                    WatchEvent::Failed(ApiError::Gone(_) | ApiError::VersionAhead(_)) => continue,
                    WatchEvent::Failed(error) => {
                        self.fail(&error);
                        continue;
                    }
                }
                if let Some(slices) = &slices {
                    let peers = peers(slices.values(), self.own_pod.as_deref(), self.port);
                    publish(&self.found, FoundPeers { peers, problem: None, is_known: true });
                }
            }
        };
        tokio::select! {
            () = client.watch(self.selection.clone(), ReadLimits::default(), &events) => {}
            () = apply => {}
        }
    }

    /// Reports that the slices cannot be read. The previous replicas probably still exist.
    fn fail(&self, error: &dyn Display) {
        let text = format!(
            "the EndpointSlices of Service {SERVICE}, which list the replicas, can't be read: {error}"
        );
        let peers = self.found.borrow().peers.clone();
        publish(&self.found, FoundPeers { peers, problem: Some(text), is_known: true });
    }
}

fn publish(found: &watch::Sender<Arc<FoundPeers>>, next: FoundPeers) {
    found.send_if_modified(|held| {
        if **held == next {
            return false;
        }
        if held.peers != next.peers {
            let names: Vec<_> = next.peers.iter().map(Peer::label).collect();
            info!(replicas = ?names, "other replicas changed");
        }
        *held = Arc::new(next);
        true
    });
}

/// Returns the text to report if the problem differs from the reported one: `Some(None)` at its end.
fn next_report(reported: &mut Option<String>, problem: Option<String>) -> Option<Option<String>> {
    (*reported != problem).then(|| reported.clone_from(&problem)).map(|()| problem)
}

/// The decoded fields of an EndpointSlice.
#[derive(Debug, Deserialize)]
struct PeerSlice {
    metadata: ObjectMetadata,
    #[serde(default, deserialize_with = "null_as_default")]
    endpoints: Vec<PeerEndpoint>,
    #[serde(default, deserialize_with = "null_as_default")]
    ports: Vec<PeerPort>,
}

impl OwnedObject for PeerSlice {
    fn metadata(&self) -> &ObjectMetadata {
        &self.metadata
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PeerEndpoint {
    #[serde(default, deserialize_with = "null_as_default")]
    addresses: Vec<String>,
    #[serde(default, deserialize_with = "null_as_default")]
    conditions: PeerConditions,
    target_ref: Option<PeerTarget>,
}

#[derive(Debug, Default, Deserialize)]
struct PeerConditions {
    ready: Option<bool>,
    serving: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct PeerTarget {
    #[serde(default, deserialize_with = "null_as_default")]
    name: String,
}

#[derive(Debug, Deserialize)]
struct PeerPort {
    name: Option<String>,
    port: Option<u16>,
}

/// Returns the replicas that serve, also while they terminate, without this one. A replica with
/// addresses of both families is returned once.
fn peers<'a>(
    slices: impl Iterator<Item = &'a PeerSlice>,
    own_pod: Option<&str>,
    default_port: u16,
) -> Vec<Peer> {
    let mut peers: BTreeMap<String, Peer> = BTreeMap::new();
    for slice in slices {
        let named = slice.ports.iter().find(|port| port.name.as_deref() == Some(PORT));
        let port = named.and_then(|port| port.port).unwrap_or(default_port);
        for endpoint in &slice.endpoints {
            let PeerConditions { ready, serving } = endpoint.conditions;
            let is_serving = serving.or(ready).unwrap_or(true);
            let address = endpoint.addresses.iter().find_map(|text| text.parse::<IpAddr>().ok());
            let (Some(address), true) = (address, is_serving) else { continue };
            let pod = endpoint.target_ref.as_ref().map(|target| target.name.clone());
            let pod = pod.filter(|pod| !pod.is_empty());
            if pod.is_some() && pod.as_deref() == own_pod {
                continue;
            }
            let address = SocketAddr::new(address, port).to_string();
            let key = pod.clone().unwrap_or_else(|| address.clone());
            peers.entry(key).or_insert(Peer::at(address, pod));
        }
    }
    peers.into_values().collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use strait_kube_client::testing::loopback_access;
    use strait_sim::{Options, SimCluster, objects};

    const LIMIT: Duration = Duration::from_secs(30);

    fn endpoint(name: &str, address: &str, conditions: Value) -> Value {
        json!({
            "addresses": [address], "conditions": conditions,
            "targetRef": { "kind": "Pod", "name": name },
        })
    }

    #[test]
    fn replicas_are_the_other_serving_endpoints_of_the_service() {
        let ports = json!([{ "name": "https-inject", "port": 15017 }, { "name": "grpc-xds", "port": 15012 }]);
        let slices = json!([
            { "metadata": { "name": "strait-1" }, "addressType": "IPv4", "ports": ports, "endpoints": [
                endpoint("strait-a", "10.0.0.1", json!({ "ready": true })),
                endpoint("strait-b", "10.0.0.2", json!({ "ready": true, "serving": true })),
                endpoint("strait-c", "10.0.0.3", json!({ "ready": false, "serving": true, "terminating": true })),
                endpoint("strait-d", "10.0.0.4", json!({ "ready": false, "serving": false })),
                endpoint("strait-e", "10.0.0.5", Value::Null),
            ]},
            { "metadata": { "name": "strait-2" }, "addressType": "IPv6", "ports": null, "endpoints": [
                endpoint("strait-b", "fd00::2", json!({ "ready": true })),
                endpoint("strait-f", "fd00::6", json!({ "ready": true })),
            ]},
        ]);
        let slices: Vec<PeerSlice> = serde_json::from_value(slices).expect("a list");
        let found = peers(slices.iter(), Some("strait-a"), 15000);
        let found: Vec<_> = found.iter().map(|peer| (peer.label(), &*peer.address)).collect();
        assert_eq!(
            found,
            [
                ("strait-b", "10.0.0.2:15012"),
                ("strait-c", "10.0.0.3:15012"),
                ("strait-e", "10.0.0.5:15012"),
                ("strait-f", "[fd00::6]:15000"),
            ]
        );
    }

    #[tokio::test]
    async fn changes_of_the_endpoint_slices_arrive_and_failures_keep_the_replicas() {
        const NAMESPACE: &str = "strait-system";
        let sim = SimCluster::start("config", Options::default()).await.expect("a free port");
        let apply = |addresses: &[&str]| {
            let endpoints: Vec<_> =
                addresses.iter().map(|one| objects::Endpoint::new(one)).collect();
            let port = objects::Port { name: PORT, port: 15012, target: 15012 };
            let slice =
                objects::endpoint_slice(NAMESPACE, SERVICE, "strait-1", &[port], &endpoints);
            sim.store().apply(slice).expect("applied");
        };
        apply(&["10.0.0.1"]);
        // The slices of other Services are not selected.
        let other = [objects::Endpoint::new("10.0.0.9")];
        let other = objects::endpoint_slice(NAMESPACE, "web", "web-1", &[], &other);
        sim.store().apply(other).expect("applied");
        let access = loopback_access(&sim.url(), sim.certificate_authority(), sim.token());
        let (_access, access) = watch::channel(access);
        let tasks = Supervisor::new();
        let mut found = follow(access, NAMESPACE.to_owned(), None, 15012, &tasks);
        let mut until = async |addresses: &[&str], fails: bool| {
            let expected: Vec<_> =
                addresses.iter().map(|address| format!("{address}:15012")).collect();
            let is_found = |found: &Arc<FoundPeers>| {
                let is_same = found.peers.iter().map(|peer| &peer.address).eq(&expected);
                is_same && found.problem.is_some() == fails
            };
            let seen = timeout(LIMIT, found.wait_for(is_found)).await;
            drop(seen.unwrap_or_else(|_| panic!("{addresses:?}")).expect("it runs"));
        };
        until(&["10.0.0.1"], false).await;
        apply(&["10.0.0.1", "10.0.0.2"]);
        until(&["10.0.0.1", "10.0.0.2"], false).await;
        sim.stop().await;
        until(&["10.0.0.1", "10.0.0.2"], true).await;
        apply(&["10.0.0.2"]);
        sim.restart().await;
        until(&["10.0.0.2"], false).await;
        let requests = sim.requests(|one| one.verb == "watch").len();
        assert!(requests > 0, "the slices are watched");
    }

    #[tokio::test]
    async fn relays_receive_the_number_of_replicas_with_this_one_and_its_changes() {
        let found = |names: &[&str]| {
            let peer = |name: &&str| Peer::at(format!("{name}:1"), None);
            let peers = names.iter().map(peer).collect();
            Arc::new(FoundPeers { peers, problem: None, is_known: true })
        };
        let tasks = Supervisor::new();
        let (peers, receiver) = watch::channel(found(&[]));
        let proven = Arc::<Mutex<ProvenPeers>>::default();
        let of_relays = Arc::clone(&proven);
        let count = move || 1 + lock(&of_relays).others(&receiver.borrow().peers).len();
        let interval = Duration::from_millis(5);
        let mut name = crate::relays::replica_name("strait-a", count, interval, &tasks);
        let mut counted = async |count: usize| {
            let counted = name.wait_for(|replica| replica.count == count);
            let counted = timeout(LIMIT, counted).await.expect("in time").expect("it runs");
            assert_eq!(counted.name, "strait-a");
        };
        for (names, count) in [(&[][..], 1), (&["b"], 2), (&["b", "c"], 3), (&["c"], 2)] {
            peers.send_replace(found(names));
            counted(count).await;
        }
        // The list of `--peers` may contain this process.
        let listed = Arc::clone(&peers.borrow());
        lock(&proven).learn(&Peer::at("c:1".to_owned(), None), None, &listed.peers);
        counted(1).await;
    }

    #[test]
    fn each_problem_is_reported_once_and_its_end_too() {
        let mut reported = None;
        let mut next = |problem: Option<&str>| next_report(&mut reported, problem.map(Into::into));
        assert_eq!(next(None), None);
        assert_eq!(next(Some("forbidden")), Some(Some("forbidden".into())));
        assert_eq!(next(Some("forbidden")), None);
        assert_eq!(next(Some("no CA")), Some(Some("no CA".into())));
        assert_eq!(next(None), Some(None));
        assert_eq!(next(None), None);
    }

    #[test]
    fn proven_names_replace_those_of_pods_and_end_with_the_pod() {
        let found = |pod: &str| {
            let address = |digit: u8| format!("10.0.0.{digit}:15012");
            [Peer::at(address(2), Some(pod.into())), Peer::at(address(9), None)]
        };
        let labels = |proven: &ProvenPeers, found: &[Peer]| {
            let others = proven.others(found).into_iter();
            others.map(|peer| peer.label().to_owned()).collect::<Vec<_>>()
        };
        let mut proven = ProvenPeers::default();
        let before = found("strait-1");
        assert_eq!(labels(&proven, &before), ["strait-1", "10.0.0.9:15012"]);
        proven.learn(&before[0], Some("west"), &before);
        proven.learn(&before[1], None, &before);
        assert_eq!(labels(&proven, &before), ["west"], "without this process");
        let west = &proven.others(&before)[0];
        assert!(west.is_called("west") && west.is_called("strait-1") && !west.is_called("strait"));
        // Another pod has the same address.
        let after = found("strait-2");
        assert_eq!(labels(&proven, &after), ["strait-2"]);
        proven.learn(&after[0], Some("east"), &after);
        assert_eq!(proven.names.len(), 1, "the previous pod is forgotten");
    }
}
