//! Tests of the addresses of pods, and of the order in which they are announced.

use std::net::IpAddr;

use super::*;
use crate::push::FixedSettings;
use crate::push::event_loop::{MeshEvent, MeshState};
use crate::testing::settings;
use strait_model::registry::{RegistryUpdate, ServiceRecord, ShardChange};
use strait_model::testing::{endpoint, host, member, service, shard, workload};
use strait_model::{Endpoint, KnownClusters, Profile, Workload, WorkloadKey};

const DB: &str = "db.ns";
/// The families of a dual-stack proxy, and of a proxy with IPv6 only.
const BOTH: (bool, bool) = (true, true);
const ONLY_V6: (bool, bool) = (false, true);

/// The pods of a StatefulSet or of a Deployment, by name.
fn pods(names: &[&str]) -> Vec<(WorkloadKey, Workload)> {
    let pod = |(at, name): (usize, &&str)| {
        let address = format!("10.0.0.{}", at + 1);
        let (key, pod) = workload(&format!("{name}.ns"), &address, &[]);
        let profile = Profile { subdomain: Some("db".into()), ..(*pod.profile).clone() };
        (key, Workload { profile: Arc::new(profile), ..pod })
    };
    names.iter().enumerate().map(pod).collect()
}

/// Returns the state of a cluster in its own network, which has a gateway.
fn cluster(id: &str, epoch: u64, names: &[&str]) -> RegistryUpdate {
    let pods = pods(names);
    let endpoints = pods.iter().map(|(key, pod)| Endpoint {
        workload: Some(Arc::new(key.clone())),
        tls_mode: TlsMode::Istio,
        ..endpoint(&pod.addresses.iter().next().expect("an address").to_string())
    });
    let network = format!("net-{id}");
    let gateway = service("gateway.istio").gateway_of(&network, "192.0.2.1");
    let db = service(DB).headless();
    let state = shard(id, epoch).network(&network);
    let state = state.with(gateway, vec![]).with(db, endpoints.collect());
    pods.into_iter().fold(state, |state, pod| state.pod(pod)).built()
}

fn mesh(limit: usize, updates: Vec<RegistryUpdate>) -> MeshState {
    let settings = FixedSettings { headless_pods_max: limit, ..(*settings()).clone() };
    let mut mesh = MeshState::new(Arc::new(settings));
    let ids = updates.iter().map(|update| (update.shard.cluster.clone(), member(None)));
    let clusters = KnownClusters { clusters: ids.collect() };
    mesh.apply(MeshEvent::Clusters(Arc::new(clusters)));
    updates.into_iter().for_each(|update| mesh.apply(MeshEvent::Registry(update)));
    mesh.apply(MeshEvent::Complete);
    mesh
}

fn version(mesh: &mut MeshState) -> (Arc<PushContext>, Changes) {
    mesh.next_version().expect("a version")
}

fn west(context: &PushContext) -> RemoteClusterPods {
    let service = context.remote_pods.of(&host(DB)).expect("reached by name");
    service.clusters.get("west").expect("west's pods").clone()
}

/// Returns the last octets of the addresses of pods that gateways forward to, and of named pods.
fn offsets(context: &PushContext) -> (Vec<u8>, Vec<u8>) {
    let west = west(context);
    let last = |addresses: Vec<IpAddr>| match addresses[..] {
        [IpAddr::V4(address)] => address.octets()[3],
        _ => panic!("{addresses:?}"),
    };
    let served = west.served().map(|(addresses, _)| last(addresses)).collect();
    (served, west.named(BOTH).map(|(_, addresses)| last(addresses)).collect())
}

#[test]
fn offset_is_the_ordinal_and_scaling_moves_no_pod() {
    let east = || cluster("east", 1, &["db-0"]);
    let mut mesh = mesh(1000, vec![east(), cluster("west", 1, &["db-0", "db-2", "db-253"])]);
    let (first, _) = version(&mut mesh);
    assert_eq!(offsets(&first), (vec![0, 2, 253], vec![0, 2, 253]));
    mesh.apply(MeshEvent::Registry(cluster("west", 2, &["db-2", "db-1"])));
    version(&mut mesh);
    let (then, _) = version(&mut mesh);
    assert_eq!(offsets(&then), (vec![1, 2], vec![1, 2]));
    assert_eq!(west(&first).block, west(&then).block);
    let service = then.remote_pods.of(&host(DB)).expect("reached by name");
    assert_ne!(west(&then).block, service.clusters["east"].block);
}

#[test]
fn pod_without_an_ordinal_below_254_is_reached_as_any_pod() {
    let names = ["db-254", "db-01", "db", "db-7xk2p", "other-3", "zoo-4"];
    let east = cluster("east", 1, &[]);
    let (context, _) = version(&mut mesh(1000, vec![east, cluster("west", 1, &names)]));
    // Of two StatefulSets behind a service, the first one by name has the ordinals.
    let west = west(&context);
    let named: Vec<_> = west.named(BOTH).map(|(name, _)| &**name).collect();
    assert_eq!(named, ["other-3"]);
    assert!(west.has_others);
    let east = context.remote_pods.of(&host(DB)).expect("reached by name").clusters["east"].clone();
    assert!(east.addresses(BOTH).is_empty(), "no pod");
    let (context, _) =
        version(&mut mesh(1000, vec![cluster("east", 1, &[]), cluster("west", 1, &["db-7xk2p"])]));
    let west = context.remote_pods.of(&host(DB)).expect("reached by name").clusters["west"].clone();
    let any_pod: Vec<_> = west.ranges(BOTH).map(|(_, any_pod)| any_pod).collect();
    assert_eq!((west.addresses(BOTH), any_pod.len()), (any_pod, 1));
}

#[test]
fn names_follow_one_version_after_the_gateways() {
    let east = cluster("east", 1, &["db-0"]);
    let mut mesh = mesh(1000, vec![east, cluster("west", 1, &["db-0"])]);
    assert_eq!(offsets(&version(&mut mesh).0), (vec![0], vec![0]), "after a restart");
    assert!(!mesh.is_dirty());
    mesh.apply(MeshEvent::Registry(cluster("west", 2, &["db-0", "db-1"])));
    assert_eq!(offsets(&version(&mut mesh).0), (vec![0, 1], vec![0]));
    assert!(mesh.is_dirty(), "another version follows");
    let (context, changes) = version(&mut mesh);
    assert_eq!(offsets(&context), (vec![0, 1], vec![0, 1]));
    assert_eq!(changes.deps, [ChangedItem::Members(host(DB))].into());
    assert!(!mesh.is_dirty());
    // A pod that fails is no longer named, and returns as a new one.
    mesh.apply(MeshEvent::Registry(cluster("west", 3, &["db-0"])));
    assert_eq!(offsets(&version(&mut mesh).0), (vec![0], vec![0]));
    mesh.apply(MeshEvent::Registry(cluster("west", 4, &["db-0", "db-1"])));
    assert_eq!(offsets(&version(&mut mesh).0), (vec![0, 1], vec![0]));
}

#[test]
fn pods_have_ipv6_addresses_if_a_gateway_has_one_and_names_follow_the_gateways() {
    let dual_stack = |epoch| {
        let mut state = cluster("west", epoch, &["db-0", "db-12"]);
        let ShardChange::Reset(contents) = &mut state.change else { panic!("a first update") };
        let second = service("gateway-v6.istio").gateway_of("net-west", "2001:db8::1");
        let record =
            ServiceRecord { service: Arc::new(second), endpoints: Vec::<Endpoint>::new().into() };
        contents.services.insert(host("gateway-v6.istio"), Some(record));
        state
    };
    let named = |context: &PushContext, families| -> Vec<Vec<String>> {
        let west = west(context);
        let texts = |addresses: Vec<IpAddr>| addresses.iter().map(ToString::to_string).collect();
        west.named(families).map(|(_, addresses)| texts(addresses)).collect()
    };
    let east = cluster("east", 1, &["db-0"]);
    let mut mesh = mesh(1000, vec![east, cluster("west", 1, &["db-0", "db-12"])]);
    let (first, _) = version(&mut mesh);
    assert_eq!(west(&first).block, [158, 180], "the hash");
    let (zero, twelve) = ("242.158.180.0", "242.158.180.12");
    assert_eq!(named(&first, BOTH), [[zero], [twelve]]);
    assert_eq!(named(&first, ONLY_V6), [[""; 0]; 2]);
    assert_eq!(west(&first).ranges(ONLY_V6).count(), 0);

    mesh.apply(MeshEvent::Registry(dual_stack(2)));
    let (second, _) = version(&mut mesh);
    let served: Vec<_> = west(&second).served().map(|(addresses, _)| addresses.len()).collect();
    assert_eq!(served, [2, 2]);
    assert_eq!(named(&second, BOTH), [[zero], [twelve]], "gateways first");
    assert!(mesh.is_dirty(), "another version follows");
    let (third, _) = version(&mut mesh);
    let (zero_v6, twelve_v6) = ("2001:2:0:f2::9eb4:0", "2001:2:0:f2::9eb4:c");
    assert_eq!(named(&third, BOTH), [[zero, zero_v6], [twelve, twelve_v6]]);
    assert_eq!(named(&third, ONLY_V6), [[zero_v6], [twelve_v6]]);
    assert_eq!(named(&third, (true, false)), [[zero], [twelve]]);
    assert!(!mesh.is_dirty());
    let ranges: Vec<_> = west(&third).ranges(ONLY_V6).collect();
    let text = format!("{ranges:?}");
    assert_eq!(text, "[((2001:2:0:f2::9eb4:0, 112), 2001:2:0:f2::9eb4:fe)]");
    let restarted = version(&mut self::mesh(1000, vec![cluster("east", 1, &[]), dual_stack(1)])).0;
    assert_eq!(named(&restarted, BOTH), named(&third, BOTH), "after a restart");
}

#[test]
fn pods_beyond_the_limit_of_a_cluster_are_not_named() {
    let names = ["db-0", "db-1", "db-2"];
    let mut state = cluster("west", 1, &names);
    // The same service under another hostname.
    let ShardChange::Reset(contents) = &mut state.change else { panic!("a first update") };
    let record = contents.services.get(&host(DB)).and_then(Option::as_ref).expect("db").clone();
    let mut alias = (*record.service).clone();
    alias.hostname = host("db.set");
    let alias = ServiceRecord { service: Arc::new(alias), ..record };
    contents.services.insert(host("db.set"), Some(alias));
    let (context, _) = version(&mut mesh(2, vec![cluster("east", 1, &[]), state]));
    let set = context.remote_pods.of(&host("db.set")).expect("reached by name");
    assert_eq!(set.clusters["west"].served().count(), 2, "a pod counts once");
    assert_eq!(offsets(&context), (vec![0, 1], vec![0, 1]));
    assert_eq!(west(&context).naming("db-2"), Some(PodNaming::BeyondLimit));
    assert_eq!(west(&context).naming("db-1"), Some(PodNaming::Named));
    assert_eq!(west(&context).naming("db-3"), None);
}

#[test]
fn pods_have_no_addresses_within_one_network_or_without_a_gateway() {
    let alone = version(&mut mesh(1000, vec![cluster("west", 1, &["db-0"])])).0;
    assert!(alone.remote_pods.of(&host(DB)).is_none());
    let state = |id: &str| {
        let state = shard(id, 1).network(&format!("net-{id}"));
        state.with(service(DB).headless(), vec![]).built()
    };
    let without = version(&mut mesh(1000, vec![state("east"), state("west")])).0;
    assert!(without.remote_pods.of(&host(DB)).is_none());
}

#[test]
fn block_belongs_to_the_older_claim_and_the_younger_one_takes_the_next() {
    let (mut taken, db) = (BTreeSet::new(), host(DB));
    let first = free_block(&mut taken, &"west".into(), &db).expect("a block");
    let second = free_block(&mut taken, &"west".into(), &db).expect("a block");
    let number = u16::from_be_bytes;
    assert_eq!(number(second), number(first).wrapping_add(1));
    taken.extend(0..=u16::MAX);
    assert_eq!(free_block(&mut taken, &"west".into(), &db), None);
}
