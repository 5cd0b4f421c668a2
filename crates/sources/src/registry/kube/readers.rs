//! The readers of a cluster: one for each kind, or one for each kind in each namespace if the run is
//! limited to namespaces.

use std::sync::Arc;

use futures::StreamExt;
use futures::future::{BoxFuture, join_all};
use futures::stream::FuturesUnordered;
use tokio::sync::{mpsc, watch};

use super::endpoint_slice::Slice;
use super::index::{IndexedKind, ReadAs};
use super::namespace::NamespaceFacts;
use super::node::NodeRecord;
use super::pod::PodRecord;
use super::run_input::RunInput;
use super::scope::Scope;
use super::service::KubeService;
use super::shared_kinds;
use super::workload_entry::WorkloadEntryRecord;
use super::write_plan::SharingWanted;
use strait_kube_client::{ApiClient, ListSelection, ReadLimits, cluster_uid};
use strait_model::{DeclaredGateway, ISTIO_NETWORKING_VERSIONS, NETWORK_LABEL, ReadNamespaces};

/// Maximum size of a WorkloadEntry in bytes.
const ENTRY_BYTES_MAX: usize = 256 << 10;
/// Capacity of the event channel of a namespace. A full channel makes its readers wait.
const NAMESPACE_EVENTS_MAX: usize = 64;

/// Reads all kinds concurrently while the receiver of events exists, except for exports and imports.
pub(super) async fn read(
    client: &ApiClient,
    scope: &Scope,
    limits: ReadLimits,
    (namespaces, uid_wanted): (&ReadNamespaces, watch::Receiver<bool>),
    sink: &mpsc::Sender<RunInput>,
) {
    let mut readers: Vec<BoxFuture<'_, ()>> = vec![
        Box::pin(client.read(
            ReadAs::<NodeRecord>::with(scope),
            selection(IndexedKind::Nodes, None),
            limits,
            sink,
        )),
        Box::pin(client.read(
            ReadAs::<NamespaceFacts>::with(scope),
            selection(IndexedKind::Namespaces, None),
            limits,
            sink,
        )),
        Box::pin(client.keep_probing(sink)),
        Box::pin(read_uid(client, uid_wanted, sink)),
    ];
    if namespaces.is_whole() {
        readers.extend(namespaced(client, scope, limits, None, sink));
    } else {
        for (position, name) in (0..).zip(namespaces.names()) {
            readers.push(Box::pin(async move {
                let (own_sink, events) = mpsc::channel(NAMESPACE_EVENTS_MAX);
                tokio::select! {
                    () = run_all(namespaced(client, scope, limits, Some(name), &own_sink)) => {}
                    () = pass_on(position, events, sink) => {}
                }
            }));
        }
    }
    run_all(readers).await;
}

/// Reads exports and imports of services while the receiver of events exists, once they are wanted.
pub(super) async fn read_shared(
    (client, scope, limits): (&ApiClient, &Scope, ReadLimits),
    namespaces: &ReadNamespaces,
    sink: &mpsc::Sender<RunInput>,
    version: &watch::Sender<Option<&'static str>>,
    wanted: SharingWanted,
) {
    if namespaces.is_whole() {
        return shared_kinds::read((client, scope, limits), None, sink, version, wanted).await;
    }
    let read = |(position, name)| {
        let wanted = wanted.clone();
        async move {
            let (own_sink, events) = mpsc::channel(NAMESPACE_EVENTS_MAX);
            let how = (client, scope, limits);
            tokio::select! {
                () = shared_kinds::read(how, Some(name), &own_sink, version, wanted) => {}
                () = pass_on(position, events, sink) => {}
            }
        }
    };
    join_all((0..).zip(namespaces.names()).map(read)).await;
}

/// Passes on the events of the readers of a namespace, with its position.
async fn pass_on(
    position: u8,
    mut events: mpsc::Receiver<RunInput>,
    sink: &mpsc::Sender<RunInput>,
) {
    while let Some(event) = events.recv().await {
        if sink.send(RunInput::Within(position, Box::new(event))).await.is_err() {
            return;
        }
    }
}

/// Returns the readers of the kinds whose objects belong to namespaces.
fn namespaced<'a>(
    client: &'a ApiClient,
    scope: &'a Scope,
    limits: ReadLimits,
    namespace: Option<&Arc<str>>,
    sink: &'a mpsc::Sender<RunInput>,
) -> Vec<BoxFuture<'a, ()>> {
    let selection = |kind| selection(kind, namespace);
    let mut pods = selection(IndexedKind::Pods);
    // Ended pods stay for long and have no effect here.
    pods.fields = Some("status.phase!=Succeeded,status.phase!=Failed".into());
    let mut gateways = selection(IndexedKind::Gateways);
    gateways.labels = Some(NETWORK_LABEL.into());
    // They are decoded completely, which takes a multiple of their size.
    let object_bytes = limits.object_bytes.min(ENTRY_BYTES_MAX);
    let entry_limits = ReadLimits { object_bytes, ..limits };
    let services = selection(IndexedKind::Services);
    let slices = selection(IndexedKind::EndpointSlices);
    let entries = selection(IndexedKind::WorkloadEntries);
    vec![
        Box::pin(client.read(ReadAs::<KubeService>::with(scope), services, limits, sink)),
        Box::pin(client.read(ReadAs::<Slice>::with(scope), slices, limits, sink)),
        Box::pin(client.read(ReadAs::<PodRecord>::with(scope), pods, limits, sink)),
        Box::pin(client.read(ReadAs::<DeclaredGateway>::with(scope), gateways, limits, sink)),
        Box::pin(client.read(
            ReadAs::<WorkloadEntryRecord>::with(scope),
            entries,
            entry_limits,
            sink,
        )),
    ]
}

/// Selects all objects of a kind, in one namespace or in the whole cluster.
fn selection(kind: IndexedKind, namespace: Option<&Arc<str>>) -> ListSelection {
    let selection = match kind {
        IndexedKind::WorkloadEntries => {
            ListSelection::in_best(kind.group(), ISTIO_NETWORKING_VERSIONS, kind.plural())
        }
        _ => ListSelection::all(kind.group(), "v1", kind.plural()),
    };
    let namespace = namespace.map(ToString::to_string);
    ListSelection { namespace, is_optional: kind.may_be_absent(), ..selection }
}

/// Reads the UID of the cluster when it is wanted, because the credential may be unable to list
/// namespaces.
async fn read_uid(
    client: &ApiClient,
    mut wanted: watch::Receiver<bool>,
    sink: &mpsc::Sender<RunInput>,
) {
    // An error means that the run ends.
    while wanted.wait_for(|is_wanted| *is_wanted).await.is_ok() {
        let uid: Option<Box<str>> = cluster_uid(client).await.map(Into::into);
        let is_known = uid.is_some();
        let is_sent = sink.send(RunInput::Uid(Box::new(uid))).await.is_ok();
        if is_known || !is_sent || wanted.changed().await.is_err() {
            return;
        }
    }
}

/// Polls only readers that were woken: nearly all events of a quiet member come from one reader.
async fn run_all(readers: Vec<BoxFuture<'_, ()>>) {
    let mut readers = FuturesUnordered::from_iter(readers);
    while readers.next().await.is_some() {}
}
