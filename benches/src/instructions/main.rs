//! Runs the pure parts of Strait one at a time and many times over, so that `benches/instructions`
//! can count their instructions under callgrind.
//!
//! `instructions CASE` prepares the case, runs it in the function [`measured`], which alone is
//! counted, and prints the number of units. Without a case it lists the cases. For cases named
//! `bytes_…`, the bytes on the heap at the end are counted. `instructions CASE --ns` prints
//! nanoseconds of CPU time per unit instead. The preparation uses the interfaces of the server:
//! responses of an API server are the input, and requests of proxies trigger the output.

mod access;
mod deliveries;
mod edits;
mod objects;
mod rules;
mod streams;
mod tokens;

use std::hint::black_box;
use std::net::IpAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use objects::NAMESPACE;
use rules::Said;
use strait_ads::node;
use strait_envoy::{Cache, ProxyConfig};
use strait_kube_client::Encoding::{self, Json, Protobuf};
use strait_mesh::aggregate::{Aggregate, AssignNetwork, AssignedEndpoints};
use strait_mesh::push::event_loop::{MeshEvent, MeshState};
use strait_mesh::push::subscription_index::{Changes, Subscription, SubscriptionIndex};
use strait_mesh::push::{FixedSettings, PushContext};
use strait_mesh::timeline::{Delivery, Timeline};
use strait_model::EndpointMetadata::{self, Full, Lean};
use strait_model::registry::{Contents, Epoch, RegistryUpdate, ShardChange, ShardKey};
use strait_model::{
    Cause, ClusterId, Hostname, KnownCluster, KnownClusters, Mode, NetworkId, Proxy,
};
use strait_proto::envoy::envoy::config::core::v3::Node;
use strait_proto::envoy::google::protobuf::{Struct, Value, value::Kind};
use strait_sources::registry::kube::offline::{Offline, OfflineResponse};
use strait_xds::resource::{ResourceSource, ResourceType};

const DOMAIN: &str = "cluster.local";

/// A prepared case: the code to run, and the number of units that it processes.
struct Case {
    units: usize,
    run: Box<dyn FnMut()>,
}

impl Case {
    fn new(units: usize, run: impl FnMut() + 'static) -> Self {
        Self { units, run: Box::new(run) }
    }

    /// Returns a case that measures the memory of `held`.
    fn holding<T: 'static>(units: usize, held: T) -> Self {
        Self::new(units, move || {
            black_box(&held);
        })
    }
}

/// Name, unit, preparation.
type Listed = (&'static str, &'static str, fn() -> Case);

const CASES: &[Listed] = &[
    ("decode_json", "endpoint", || decode(Json, 20, 100)),
    ("decode_protobuf", "endpoint", || decode(Protobuf, 20, 100)),
    ("decode_pod", "pod", || decode_pods(500)),
    ("ingest_json", "change", || ingest(Json, 1000, 10)),
    ("ingest_protobuf", "change", || ingest(Protobuf, 1000, 10)),
    ("merge_10_clusters", "endpoint", || merge(10, 10)),
    ("next_context_1k", "change", || next_context(2, 1_000, 10)),
    // Small services, because the preparation under callgrind takes most of the time.
    ("next_context_10k", "change", || next_context(1, 10_000, 1)),
    ("eds_encode_1x100", "endpoint", || eds_encode(Lean, 100, 1)),
    ("eds_encode_10x10", "endpoint", || eds_encode(Lean, 10, 10)),
    ("eds_encode_100x10", "endpoint", || eds_encode(Lean, 10, 100)),
    ("eds_encode_1000x1", "endpoint", || eds_encode(Lean, 1, 1000)),
    ("eds_encode_full_1000x1", "endpoint", || eds_encode(Full, 1, 1000)),
    ("view_lookup", "look-up", || view_lookup(1000)),
    ("mark_50_of_1000", "woken stream", || mark(1000, 50)),
    // The difference between these two cases is the cost of the timeline.
    ("timeline_50_of_1000", "woken stream", || timeline(1000, 50)),
    ("policy_edit_10_of_1000", "edit", access::edit_for_10_of_1000),
    ("rbac_200_rules", "workload", access::rbac_of_200_rules),
    ("rbac_200_rules_cold", "edit", access::rbac_of_200_rules_edited),
    ("token_verify", "token", tokens::verify),
    ("first_sync_1k", "stream", streams::first_sync),
    ("reconnect_1k", "stream", streams::reconnect),
    ("deliver_1k", "delivery", streams::deliver),
    // The same through the whole server: HTTP/2, TLS, and the task of the connection.
    ("deliver_to_1000_streams", "delivery", deliveries::deliver),
    ("rule_edit_50_of_200", "edit", || edits::rule(edits::Hosts::Whole, edits::Clients::Elsewhere)),
    ("rule_edit_one_by_one", "edit", || {
        edits::rule(edits::Hosts::OneByOne, edits::Clients::Elsewhere)
    }),
    ("rule_edit_own_services", "edit", || {
        edits::rule(edits::Hosts::OneByOne, edits::Clients::WithServices)
    }),
    ("bytes_registry", "endpoint", || bytes_registry(100, 100)),
    ("bytes_context", "endpoint", || bytes_context(100, 100)),
    ("bytes_encoded", "endpoint", || bytes_encoded(100, 100)),
    ("bytes_policies_5000", "policy", || access::bytes_policies(5000)),
    ("bytes_policies_stored", "policy", || access::bytes_policies_stored(5000)),
    ("bytes_rules_stored", "object", || rules::bytes_stored(1000, Said::Alike)),
    ("bytes_rules_unlike", "object", || rules::bytes_stored(1000, Said::Unlike)),
    // The script requires these two to be equal.
    ("bytes_rotated_3", "endpoint", || bytes_rotated(3)),
    ("bytes_rotated_301", "endpoint", || bytes_rotated(301)),
];

fn main() -> ExitCode {
    let Some(name) = std::env::args().nth(1) else {
        CASES.iter().for_each(|(name, unit, _)| println!("{name} {unit}"));
        return ExitCode::SUCCESS;
    };
    let Some((_, _, prepare)) = CASES.iter().find(|(case, ..)| *case == name) else {
        eprintln!("no case {name:?}; without an argument the cases are listed");
        return ExitCode::from(64);
    };
    let mut case = prepare();
    // Clocks are read only on request, because they cannot be read under valgrind.
    let timed = std::env::args().nth(2).as_deref() == Some("--ns");
    let began = if timed { cpu_ns() } else { 0 };
    measured(&mut *case.run);
    if timed {
        println!("{:.1}", (cpu_ns() - began) as f64 / case.units as f64);
    } else {
        println!("{}", case.units);
    }
    // The memory of the case is counted at the end of the process.
    std::mem::forget(case);
    ExitCode::SUCCESS
}

/// Returns the CPU time of this thread, in nanoseconds.
fn cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    // Neither is ever negative.
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// Runs a case. The script counts the instructions inside this function, by its name.
#[inline(never)]
fn measured(run: &mut dyn FnMut()) {
    black_box(run)();
}

// ---- worlds

/// Returns a cluster of `services` services with `endpoints` endpoints each, and the contents that
/// its registry sent.
fn cluster(services: usize, endpoints: usize, salt: usize) -> (Offline, Contents) {
    cluster_that_tells(Lean, services, endpoints, salt)
}

fn cluster_that_tells(
    metadata: EndpointMetadata,
    services: usize,
    endpoints: usize,
    salt: usize,
) -> (Offline, Contents) {
    let mut cluster = Offline::new(usize::MAX).with_metadata(metadata);
    for service in 0..services {
        tell(&mut cluster, "services", Json, &objects::service(service));
        for number in 0..endpoints {
            tell(&mut cluster, "pods", Json, &objects::pod(service, number, salt));
        }
        tell(&mut cluster, "endpointslices", Json, &objects::slice(service, endpoints, salt));
    }
    let contents = cluster.changes().expect("new services");
    assert_eq!(cluster.skipped().count, 0, "{:?}", cluster.skipped());
    (cluster, contents)
}

fn tell(cluster: &mut Offline, plural: &str, encoding: Encoding, event: &[u8]) {
    let told = cluster.take(plural, OfflineResponse::Watch, encoding, event);
    assert_eq!(told, Ok(1), "{plural}");
}

/// Returns an EndpointSlice in the encoding of the case.
fn slice(encoding: Encoding, service: usize, endpoints: usize, salt: usize) -> Vec<u8> {
    match encoding {
        Json => objects::slice(service, endpoints, salt),
        Protobuf => objects::slice_in_protobuf(service, endpoints, salt),
    }
}

fn id(number: usize) -> ClusterId {
    ClusterId::from(&*format!("c{}", number + 1))
}

fn update(number: usize, change: ShardChange) -> RegistryUpdate {
    RegistryUpdate { shard: ShardKey::kubernetes(id(number)), epoch: Epoch(1), change }
}

/// Returns the event that sets the members to this number of clusters.
fn known(clusters: usize) -> MeshEvent {
    let known = KnownCluster {
        fixed_network: None,
        config: false,
        created: None,
        mode: Mode::Normal,
        withdrawn: None,
        trust_domain: DOMAIN.into(),
        set_name: None,
    };
    let clusters = (0..clusters).map(|number| (id(number), known.clone())).collect();
    MeshEvent::Clusters(Arc::new(KnownClusters { clusters }))
}

/// Builds a mesh of `clusters` equal clusters. Returns the mesh, the registries and the first
/// version.
fn mesh(
    clusters: usize,
    services: usize,
    endpoints: usize,
) -> (MeshState, Vec<Offline>, Arc<PushContext>) {
    mesh_that_tells(Lean, clusters, services, endpoints)
}

fn mesh_that_tells(
    metadata: EndpointMetadata,
    clusters: usize,
    services: usize,
    endpoints: usize,
) -> (MeshState, Vec<Offline>, Arc<PushContext>) {
    let mut mesh = MeshState::new(Arc::new(FixedSettings {
        domain: DOMAIN.into(),
        trust_domain: DOMAIN.into(),
        system_namespace: "strait-system".into(),
        config_cluster: None,
        allow_direct_cross_network: false,
        metadata,
        cluster_aliases: Default::default(),
        headless_pods_max: 1000,
    }));
    mesh.apply(known(clusters));
    let mut registries = Vec::new();
    for number in 0..clusters {
        let (registry, contents) = cluster_that_tells(metadata, services, endpoints, number);
        mesh.apply(MeshEvent::Registry(update(number, ShardChange::Reset(contents))));
        registries.push(registry);
    }
    mesh.apply(MeshEvent::CompleteWithoutNames);
    let (context, _) = mesh.next_version().expect("a first version");
    (mesh, registries, context)
}

fn proxy() -> Proxy {
    proxy_in("c1", NAMESPACE)
}

fn proxy_in(cluster: &str, namespace: &str) -> Proxy {
    let text = |text: &str| Value { kind: Some(Kind::StringValue(text.into())) };
    let fields = [("CLUSTER_ID".to_owned(), text(cluster))].into();
    node::read(&Node {
        id: format!("sidecar~198.18.0.1~web-0.{namespace}~{namespace}.svc.{DOMAIN}"),
        metadata: Some(Struct { fields }),
        ..Default::default()
    })
    .expect("a node")
}

fn hostname(number: usize) -> Hostname {
    Hostname::of_kubernetes_service(&objects::service_name(number), NAMESPACE, DOMAIN)
}

// ---- cases

/// Receives unchanged slices again: they are decoded and recognized as unchanged.
fn decode(encoding: Encoding, slices: usize, endpoints: usize) -> Case {
    let (mut cluster, _) = cluster(slices, endpoints, 0);
    let events: Vec<_> =
        (0..slices).map(|service| slice(encoding, service, endpoints, 0)).collect();
    let run = move || {
        for event in &events {
            tell(&mut cluster, "endpointslices", encoding, black_box(event));
        }
        assert!(cluster.changes().is_none(), "both forms say the same");
    };
    Case::new(slices * endpoints, run)
}

/// Receives known pods again, as a real API server writes them in protobuf.
fn decode_pods(pods: usize) -> Case {
    let mut cluster = Offline::new(usize::MAX);
    let events: Vec<_> = (0..pods).map(objects::real_pod).collect();
    let mut run = move || {
        for event in &events {
            tell(&mut cluster, "pods", Protobuf, black_box(event));
        }
        assert_eq!(cluster.skipped().count, 0, "{:?}", cluster.skipped());
    };
    run();
    Case::new(pods, run)
}

/// Changes a slice in a cluster with many slices: decoding, indexing, and sending the update.
fn ingest(encoding: Encoding, services: usize, endpoints: usize) -> Case {
    const CHANGES: usize = 100;
    let (mut cluster, _) = cluster(services, endpoints, 0);
    let events: Vec<_> =
        (0..CHANGES).map(|service| slice(encoding, service, endpoints, 1)).collect();
    let run = move || {
        for event in &events {
            tell(&mut cluster, "endpointslices", encoding, black_box(event));
            black_box(cluster.changes().expect("a change"));
        }
    };
    Case::new(CHANGES, run)
}

struct Flat;

impl AssignNetwork for Flat {
    fn network_of(
        &self,
        _: &ClusterId,
        _: Option<&NetworkId>,
        _: Option<&NetworkId>,
        _: IpAddr,
    ) -> AssignedEndpoints {
        AssignedEndpoints { network: NetworkId::default(), at_any_address: true }
    }
}

fn merge(clusters: usize, endpoints: usize) -> Case {
    const SERVICES: usize = 100;
    let mut aggregate = Aggregate::new(None);
    for number in 0..clusters {
        let (_, contents) = cluster(SERVICES, endpoints, number);
        aggregate.apply(update(number, ShardChange::Reset(contents)));
    }
    let run = move || {
        for number in 0..SERVICES {
            black_box(aggregate.merge(&hostname(number), &Flat).expect("a service"));
        }
    };
    Case::new(SERVICES * clusters * endpoints, run)
}

/// Changes an endpoint in a mesh of many services: the work of the event loop.
fn next_context(clusters: usize, services: usize, endpoints: usize) -> Case {
    const CHANGES: usize = 50;
    let (mut mesh, mut registries, _) = mesh(clusters, services, endpoints);
    let registry = registries.first_mut().expect("a cluster");
    let mut updates: Vec<_> = (0..CHANGES)
        .map(|number| {
            tell(registry, "endpointslices", Json, &objects::slice(number, endpoints, 100));
            update(0, ShardChange::Update(registry.changes().expect("a change")))
        })
        .collect();
    let run = move || {
        for update in updates.drain(..) {
            mesh.apply(MeshEvent::Registry(update));
            black_box(mesh.next_version().expect("a version"));
        }
    };
    Case::new(CHANGES, run)
}

/// Encodes the first assignments of a proxy. Named like the peer's benchmark: endpoints x services.
fn eds_encode(metadata: EndpointMetadata, services: usize, endpoints: usize) -> Case {
    let (_, _, context) = mesh_that_tells(metadata, 1, services, endpoints);
    let (proxy, cache, names) = (proxy(), Cache::default(), names(services));
    let run = move || assignments(&context, &proxy, &cache, &names, endpoints);
    Case::new(services * endpoints, run)
}

/// Looks up the assignments of a second proxy with the same view.
fn view_lookup(services: usize) -> Case {
    let (_, _, context) = mesh(1, services, 10);
    let (proxy, cache, names) = (proxy(), Cache::default(), names(services));
    assignments(&context, &proxy, &cache, &names, 10);
    let run = move || assignments(&context, &proxy, &cache, &names, 10);
    Case::new(services, run)
}

fn names(services: usize) -> Vec<String> {
    (0..services).map(|number| format!("outbound|80||{}", hostname(number).as_str())).collect()
}

fn assignments(
    context: &Arc<PushContext>,
    proxy: &Proxy,
    cache: &Cache,
    names: &[String],
    endpoints: usize,
) {
    let mut proxy_config = ProxyConfig::new(context, proxy, NetworkId::default(), cache);
    for name in names {
        let resource = proxy_config.one(ResourceType::Endpoint, name).expect("an assignment");
        // An address takes at least some 20 bytes, so this verifies that no endpoint is missing.
        assert!(resource.body.len() > endpoints * 20, "{name}: {} bytes", resource.body.len());
        black_box(resource);
    }
}

/// The number of services, and the number of changes, each to one service.
const MARKED_SERVICES: usize = 1000;
const MARKS: usize = 100;

/// Changes one service among a thousand. Some of many streams subscribe to this service.
fn mark(streams: usize, interested: usize) -> Case {
    let (subscription_index, subscriptions) = watching(streams, interested);
    let changes = marks();
    let run = move || {
        let _kept = &subscriptions;
        for change in &changes {
            assert_eq!(black_box(subscription_index.mark(change)), interested);
        }
    };
    Case::new(MARKS * interested, run)
}

/// Repeats [`mark`] with the timeline: each woken stream stores a receipt, records that it has sent
/// the change, and returns the receipt with the acknowledgement. The change is entered.
fn timeline(streams: usize, interested: usize) -> Case {
    let (subscription_index, subscriptions) = watching(streams, interested);
    let changes = marks();
    let (timeline, proxy) = (Timeline::default(), proxy());
    let stride = streams / interested;
    // A stream has already allocated the space for its pending receipts.
    let mut receipts = Vec::with_capacity(interested);
    // Enough changes that old entries are evicted as new ones are entered.
    let enter = |timeline: &Timeline, delivery: &Arc<Delivery>| {
        let cause = Cause::named("c1".into(), "EndpointSlice", "svc-1");
        let words = "svc-1: 10 -> 10 endpoints".to_owned();
        timeline.enter(1, cause.into(), words, Arc::clone(delivery), Instant::now())
    };
    for _ in 0..2000 {
        enter(&timeline, &Arc::new(Delivery::new(Instant::now())));
    }
    let run = move || {
        for (number, change) in changes.iter().enumerate() {
            let delivery = Arc::new(Delivery::new(Instant::now()));
            assert_eq!(
                black_box(subscription_index.mark_followed(change, Some(&delivery))),
                interested
            );
            black_box(enter(&timeline, &delivery));
            let first = (number * MARKED_SERVICES / MARKS) % stride;
            for woken in subscriptions.iter().skip(first).step_by(stride) {
                receipts.extend(woken.take_receipts());
            }
            assert_eq!(receipts.len(), interested, "the woken streams");
            // The sending side has already read the clock; the acknowledging side reads it again.
            let begun = Instant::now();
            receipts.iter_mut().for_each(|receipt| receipt.sent(&proxy, begun));
            receipts.drain(..).for_each(|receipt| receipt.acknowledge(&proxy, Instant::now()));
            assert_eq!(delivery.counts().waiting(), 0);
        }
    };
    Case::new(MARKS * interested, run)
}

/// Returns streams that subscribe to many services, with the same number of streams for each
/// service.
fn watching(streams: usize, interested: usize) -> (Arc<SubscriptionIndex>, Vec<Subscription>) {
    let subscription_index = Arc::new(SubscriptionIndex::default());
    let mut subscriptions = Vec::new();
    for stream in 0..streams {
        let mut subscription = subscription_index.subscribe(None);
        let watched = MARKED_SERVICES * interested / streams;
        let mut names: Vec<Arc<str>> = (0..watched)
            .map(|place| hostname((stream + place * streams / watched) % MARKED_SERVICES))
            .map(|host| Arc::from(host.as_str()))
            .collect();
        names.sort();
        subscription.watch(&names, |name| Some(name.into()));
        subscriptions.push(subscription);
    }
    (subscription_index, subscriptions)
}

fn marks() -> Vec<Changes> {
    let change = |number| Changes::for_endpoints([hostname(number * MARKED_SERVICES / MARKS)]);
    (0..MARKS).map(change).collect()
}

/// Measures a cluster as its registry stores it, with the contents that it sent.
fn bytes_registry(services: usize, endpoints: usize) -> Case {
    let (registry, contents) = cluster(services, endpoints, 0);
    Case::holding(services * endpoints, (registry, contents))
}

/// Measures the mesh and its version, without the cluster's registry.
fn bytes_context(services: usize, endpoints: usize) -> Case {
    let (mesh, _, context) = mesh(1, services, endpoints);
    Case::holding(services * endpoints, (mesh, context))
}

/// Measures the mesh, its version, and the assignments of all services for one kind of proxy.
fn bytes_encoded(services: usize, endpoints: usize) -> Case {
    let (mesh, _, context) = mesh(1, services, endpoints);
    let cache = Cache::default();
    assignments(&context, &proxy(), &cache, &names(services), endpoints);
    Case::holding(services * endpoints, (mesh, context, cache))
}

/// Measures a mesh of two clusters after the second one was replaced `rounds` times with other
/// addresses, and removed before every other replacement. Removed clusters must leave no memory
/// behind.
fn bytes_rotated(rounds: usize) -> Case {
    const SERVICES: usize = 5;
    const ENDPOINTS: usize = 4;
    let (mut mesh, mut registries, mut context) = mesh(2, SERVICES, ENDPOINTS);
    for round in 1..=rounds {
        let before = Arc::downgrade(&context);
        if round % 2 == 0 {
            mesh.apply(known(1));
            mesh.apply(MeshEvent::Registry(update(1, ShardChange::Removed)));
            let without = mesh.next_version().expect("a version without it").0;
            drop(std::mem::replace(&mut context, without));
            assert!(before.upgrade().is_none(), "no reference to the previous version is left");
            mesh.apply(known(2));
        }
        let (registry, contents) = cluster(SERVICES, ENDPOINTS, round % 2 + 1);
        *registries.last_mut().expect("two clusters") = registry;
        let epoch = Epoch(round as u64 + 1);
        let shard = ShardKey::kubernetes(id(1));
        let update = RegistryUpdate { shard, epoch, change: ShardChange::Reset(contents) };
        mesh.apply(MeshEvent::Registry(update));
        context = mesh.next_version().expect("a version with it").0;
    }
    Case::holding(2 * SERVICES * ENDPOINTS, (mesh, registries, context))
}
