//! Writes the roots that workloads trust into a ConfigMap of each namespace of the cluster.
//!
//! Agents and injected pods read `istio-ca-root-cert`. That ConfigMap is written if it is missing,
//! unusable or was written by Strait before. If another writer has put its own valid roots there,
//! it is left unchanged, and Strait's roots are in `strait-ca-root-cert`. Roots are written where
//! the permission is granted; a missing permission has no other effect. Each write follows a read,
//! with at most [`WRITES_MAX`] writes at once over all clusters. Where the API server has the kind,
//! a ClusterTrustBundle contains the roots too.

mod judge;
mod state;
#[cfg(test)]
mod tests;
mod trust_bundle;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::sleep;
use tracing::{debug, info};

use self::judge::{KEY, RootsContent, RootsMap, WRITTEN, classify, digest};
pub use self::state::RootsStatus;
pub(super) use self::state::Writable;
use self::state::{ClassifiedMap, MapEvent, NamespaceName, RootsState, TrustBundleState};
use strait_base::latest::publish_change;
use strait_kube_client::{
    ApiClient, ApiError, Backoff, Form, Identity, ListSelection, Meta, NamespacedName, ObjectKind,
    ReadLimits, null_as_default,
};
use strait_model::{RootBundle, WriterRole};

/// Maximum concurrent writes over all clusters: a new root is written hundreds of thousands of
/// times.
const WRITES_MAX: usize = 16;
static WRITES: Semaphore = Semaphore::const_new(WRITES_MAX);
/// The minimum interval between two checks for pending writes.
const PACE: Duration = Duration::from_millis(500);
/// The pause after a transient error.
const PAUSE: Duration = Duration::from_secs(5);
/// The pauses after denied writes. Rights that are granted together with the cluster become
/// effective within seconds.
const AFTER_DENIAL: Backoff = Backoff::new(PAUSE, REST);
/// How often the state is checked without an event.
const REST: Duration = Duration::from_secs(60);
/// Capacity of a reader's event channel. A full channel makes the reader wait, and with it the
/// server.
const EVENTS_MAX: usize = 64;
/// A ConfigMap has at most 1 MiB of data.
const OBJECT_BYTES_MAX: usize = 2 << 20;

/// Objects to write into clusters, besides the ones derived from the clusters' own objects.
#[derive(Debug, Clone)]
pub struct MemberWrites {
    /// The roots of the mesh; `None` while they are unknown, or if another component distributes
    /// them.
    pub roots: watch::Receiver<Option<Arc<RootBundle>>>,
    /// The role of this process, if several run.
    pub role: watch::Receiver<WriterRole>,
}

#[cfg(test)]
impl MemberWrites {
    /// Returns inputs without roots.
    pub(crate) fn nothing() -> Self {
        Self { roots: watch::channel(None).1, role: watch::channel(WriterRole::Writes).1 }
    }
}

/// Keeps the roots in the cluster's namespaces while there are any.
pub(super) async fn run(
    client: ApiClient,
    limits: ReadLimits,
    writes: MemberWrites,
    clusterset: &str,
    namespaces: watch::Receiver<Writable>,
    status: watch::Sender<Option<RootsStatus>>,
) {
    let MemberWrites { mut roots, role } = writes;
    loop {
        let bundle = roots.borrow_and_update().clone();
        let follow = async {
            match bundle {
                Some(bundle) => {
                    let (state, trust_bundle) = watch::channel(None);
                    let in_bundle = Arc::clone(&bundle);
                    let publisher = Publisher {
                        client: &client,
                        bundle,
                        role: role.clone(),
                        namespaces: namespaces.clone(),
                        status: &status,
                        state: RootsState::default(),
                        after_denial: AFTER_DENIAL,
                        trust_bundle,
                    };
                    let (role, namespaces) = (role.clone(), namespaces.clone());
                    tokio::join!(
                        publisher.run(limits),
                        trust_bundle::run(&client, &in_bundle, clusterset, role, namespaces, state),
                    );
                }
                None => {
                    status.send_replace(None);
                    std::future::pending::<()>().await;
                }
            }
        };
        tokio::select! {
            () = Box::pin(follow) => return,
            changed = roots.changed() => if changed.is_err() {
                // The status stays unchanged until the process ends.
                std::future::pending::<()>().await;
            }
        }
    }
}

/// Writes one set of roots into a cluster.
struct Publisher<'a> {
    client: &'a ApiClient,
    bundle: Arc<RootBundle>,
    role: watch::Receiver<WriterRole>,
    namespaces: watch::Receiver<Writable>,
    status: &'a watch::Sender<Option<RootsStatus>>,
    state: RootsState,
    after_denial: Backoff,
    trust_bundle: watch::Receiver<Option<TrustBundleState>>,
}

impl Publisher<'_> {
    async fn run(self, limits: ReadLimits) {
        let limits = ReadLimits { object_bytes: OBJECT_BYTES_MAX, ..limits };
        // A channel allocates room for 32 messages, whatever its capacity: here these are pointers.
        let (usual, usual_receiver) = mpsc::channel(EVENTS_MAX);
        let (additional, additional_receiver) = mpsc::channel(EVENTS_MAX);
        let (need, needed) = watch::channel(false);
        let (client, bundle) = (self.client, Arc::clone(&self.bundle));
        let read = |map: RootsMap, sink: mpsc::Sender<Box<MapEvent>>| {
            let kind = MapKind { map, bundle: Arc::clone(&bundle) };
            async move { client.read(kind, kind_selection(map), limits, &sink).await }
        };
        let read_usual = Box::pin(read(RootsMap::Usual, usual));
        let readers = async {
            tokio::join!(read_usual, async {
                // Few clusters have ConfigMaps of the second name: most watches for them would be
                // useless.
                if !Box::pin(any_additional(client)).await {
                    let mut needed = needed;
                    let _ = needed.wait_for(|needed| *needed).await;
                }
                // Boxed only now: it would take some KB for each cluster that does not need it.
                Box::pin(read(RootsMap::Additional, additional)).await;
            });
        };
        tokio::select! {
            () = readers => {}
            never = self.write(usual_receiver, additional_receiver, need) => match never {},
        }
    }

    async fn write(
        mut self,
        mut usual: mpsc::Receiver<Box<MapEvent>>,
        mut additional: mpsc::Receiver<Box<MapEvent>>,
        need: watch::Sender<bool>,
    ) -> std::convert::Infallible {
        let mut next = tokio::time::Instant::now();
        self.state.namespaces(self.namespaces.borrow_and_update().clone());
        loop {
            let now = Instant::now();
            self.show(now);
            need.send_if_modified(|need| {
                !*need && {
                    *need = self.state.needs_additional(now);
                    *need
                }
            });
            let pending = match *self.role.borrow_and_update() {
                WriterRole::Standby => Vec::new(),
                WriterRole::Creates | WriterRole::Writes => self.state.pending_writes(now),
            };
            tokio::select! {
                Some(event) = usual.recv() => self.take(RootsMap::Usual, *event, &mut usual),
                Some(event) = additional.recv() => {
                    self.take(RootsMap::Additional, *event, &mut additional);
                }
                Ok(()) = self.namespaces.changed() => {
                    self.state.namespaces(self.namespaces.borrow_and_update().clone());
                }
                Ok(()) = self.role.changed() => {}
                Ok(()) = self.trust_bundle.changed() => {}
                () = tokio::time::sleep_until(next), if !pending.is_empty() => {
                    // Boxed, so that its memory is released after the writes.
                    let pause = Box::pin(self.write_batch(pending)).await;
                    next = tokio::time::Instant::now() + pause;
                }
                // A ConfigMap that was reverted too often may be tried again.
                () = sleep(REST) => {}
            }
        }
    }

    fn take(&mut self, map: RootsMap, event: MapEvent, more: &mut mpsc::Receiver<Box<MapEvent>>) {
        let now = Instant::now();
        self.state.take(map, event, now);
        while let Ok(event) = more.try_recv() {
            self.state.take(map, *event, now);
        }
    }

    fn show(&self, now: Instant) {
        let trust_bundle = *self.trust_bundle.borrow();
        let new = Some(RootsStatus { trust_bundle, ..self.state.status(now) });
        publish_change(self.status, new);
    }

    /// Writes the pending ConfigMaps. Returns the pause after them.
    async fn write_batch(&mut self, pending: Vec<(NamespaceName, RootsMap)>) -> Duration {
        let mut written = 0;
        for (namespace, map) in pending {
            let permit = WRITES.acquire().await;
            // The role may have changed since the first write.
            let role = *self.role.borrow();
            if role == WriterRole::Standby {
                break;
            }
            let result = write(self.client, &namespace, map, &self.bundle, role).await;
            drop(permit);
            match result {
                // Another process may be the one to change it.
                Ok(RootsContent::Lacking) if role == WriterRole::Creates => {}
                Ok(content) => {
                    written += usize::from(content == RootsContent::Ours);
                    self.after_denial = AFTER_DENIAL;
                    self.state.written(&namespace, map, content);
                }
                // The namespace is being deleted, or no longer exists.
                Err(ApiError::Rejected(fact)) if fact.message.contains("being terminated") => {}
                Err(ApiError::NotFound(_)) => {}
                Err(ApiError::Forbidden(fact) | ApiError::Unauthorized(fact)) => {
                    debug!(%namespace, fact, "no permission to write roots");
                    self.state.denied(fact);
                    return self.after_denial.pause(rand::random());
                }
                Err(ApiError::Rejected(fact)) => {
                    debug!(%namespace, name = map.name(), %fact, "the API server rejected the roots");
                    self.state.rejected(&namespace, map, Instant::now());
                }
                Err(error) => {
                    debug!(%namespace, %error, "cannot write roots; they will be retried");
                    return PAUSE;
                }
            }
        }
        if written > 0 {
            info!(namespaces = written, server = %self.client.server(), "roots written");
        }
        PACE
    }
}

/// Returns whether the cluster has ConfigMaps of the second name. If that is unknown, they are
/// read.
async fn any_additional(client: &ApiClient) -> bool {
    #[derive(Deserialize)]
    struct Items {
        #[serde(default, deserialize_with = "null_as_default")]
        items: Vec<serde::de::IgnoredAny>,
    }
    let name = RootsMap::Additional.name();
    let path = format!("/api/v1/configmaps?fieldSelector=metadata.name%3D{name}&limit=1");
    client.get::<Items>(&path).await.map_or(true, |found| !found.items.is_empty())
}

fn kind_selection(map: RootsMap) -> ListSelection {
    let fields = Some(format!("metadata.name={}", map.name()));
    ListSelection { fields, ..ListSelection::all("", "v1", "configmaps") }
}

/// Writes Strait's roots into a ConfigMap unless its content must be left unchanged.
async fn write(
    client: &ApiClient,
    namespace: &str,
    map: RootsMap,
    bundle: &RootBundle,
    role: WriterRole,
) -> Result<RootsContent, ApiError> {
    let all = format!("/api/v1/namespaces/{namespace}/configmaps");
    let path = format!("{all}/{}", map.name());
    let mut object: Value = match client.get(&path).await {
        Ok(existing) => existing,
        Err(ApiError::NotFound(_)) => {
            let mut new = json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": { "name": map.name(), "namespace": namespace },
            });
            put(&mut new, bundle);
            let made = client.create::<Value>(&all, &new).await?;
            return Ok(classify_object(map, &made, bundle));
        }
        Err(error) => return Err(error),
    };
    match classify_object(map, &object, bundle) {
        RootsContent::Lacking if role == WriterRole::Writes => {
            put(&mut object, bundle);
            let replaced = client.replace::<Value>(&path, &object).await?;
            Ok(classify_object(map, &replaced, bundle))
        }
        content => Ok(content),
    }
}

/// Sets Strait's roots in a ConfigMap; its other content stays.
fn put(object: &mut Value, bundle: &RootBundle) {
    object["data"][KEY] = json!(&*bundle.pem);
    object["metadata"]["labels"]["istio.io/config"] = json!("true");
    object["metadata"]["annotations"][WRITTEN] = json!(digest(&bundle.pem));
}

fn classify_object(map: RootsMap, object: &Value, bundle: &RootBundle) -> RootsContent {
    let text = object["data"][KEY].as_str();
    let written = object["metadata"]["annotations"][WRITTEN].as_str();
    classify(map, text, written, bundle, SystemTime::now())
}

/// Names of the ConfigMaps in which Strait writes roots.
pub const ROOTS_MAPS: [&str; 2] = [RootsMap::Usual.name(), RootsMap::Additional.name()];

/// Returns the roots, in PEM, in a ConfigMap if Strait wrote them.
pub fn written_roots(object: &Value) -> Option<&str> {
    let text = object["data"][KEY].as_str()?;
    let written = object["metadata"]["annotations"][WRITTEN].as_str()?;
    (written == digest(text)).then_some(text)
}

/// The decoded part of a ConfigMap with roots.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MapForm<'a> {
    #[serde(borrow, deserialize_with = "null_as_default")]
    metadata: Meta<'a>,
    #[serde(deserialize_with = "null_as_default")]
    data: MapData,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MapData {
    #[serde(rename = "root-cert.pem")]
    roots: Option<String>,
}

impl<'a> Form<'a> for MapForm<'a> {
    fn identity(&self) -> Identity<'_> {
        self.metadata.identity()
    }
}

/// ConfigMaps with one name, evaluated when they are decoded.
struct MapKind {
    map: RootsMap,
    bundle: Arc<RootBundle>,
}

impl ObjectKind for MapKind {
    type ObjectForm<'a> = MapForm<'a>;
    type Stored = ClassifiedMap;
    type List = Vec<ClassifiedMap>;

    const PROTOBUF: bool = false;

    fn convert(&self, form: MapForm<'_>) -> ClassifiedMap {
        let Identity { namespace, name, .. } = form.metadata.identity();
        let key = NamespacedName { namespace: namespace.into(), name: name.into() };
        let written = form.metadata.annotations.get(WRITTEN);
        let text = form.data.roots.as_deref();
        let content = classify(self.map, text, written, &self.bundle, SystemTime::now());
        ClassifiedMap { key, content }
    }
}
