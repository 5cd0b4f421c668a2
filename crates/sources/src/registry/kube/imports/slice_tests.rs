//! Tests of the EndpointSlices of imports: the rows of the conformance suite that a plan shows, and
//! a comparison with a naive second calculator over random histories.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use super::slices::ENDPOINTS_MAX;
use super::tests::{Importer, key, workload};
use super::{ImportPlan, ImportWrite, SettledImports, WriteMode};
use crate::registry::kube::import_objects::{derived_name, slice_prefix};
use strait_kube_client::NamespacedName;
use strait_model::{
    ClusterId, ExportedPort, ExportedService, Health, ImportMode, ImportedService, IpFamily,
    Labels, Locality, RankedExport, RawService, SetMember, SharedEndpoint, SharedEndpoints,
    SharedService, SharedServices, SourceEndpoints,
};

/// A cluster that exports `cart`.
#[derive(Debug, Clone)]
struct Exporter {
    ports: Vec<ExportedPort>,
    /// The target port by the name of the service port, for each address.
    pods: BTreeMap<IpAddr, (Health, BTreeMap<&'static str, u16>)>,
    network: &'static str,
    /// Whether this process has read it.
    is_read: bool,
    exports: bool,
}

type ExportingClusters = BTreeMap<&'static str, Exporter>;

fn port(name: &str, number: u16, protocol: &str) -> ExportedPort {
    ExportedPort { name: name.into(), protocol: protocol.into(), app_protocol: None, number }
}

fn address(number: u16) -> IpAddr {
    let [high, low] = number.to_be_bytes();
    [10, 0, high, low].into()
}

/// Returns a cluster with ready pods that serve the port `tcp`, 42, at 4200.
fn exporter(pods: impl IntoIterator<Item = u16>) -> Exporter {
    let pod = |number| (address(number), (Health::Healthy, BTreeMap::from([("tcp", 4200)])));
    Exporter {
        ports: vec![port("tcp", 42, "TCP")],
        pods: pods.into_iter().map(pod).collect(),
        network: "n1",
        is_read: true,
        exports: true,
    }
}

/// Returns the shared services and their endpoints, as the hub computes them.
fn hub(
    world: &ExportingClusters,
    change: impl Fn(&mut RawService),
) -> (SharedServices, SharedEndpoints) {
    let mut shared = SharedServices { removals_certain: true, ..SharedServices::default() };
    let mut endpoints = SharedEndpoints::default();
    let (mut exports, mut sources, mut ports) = (Vec::new(), Vec::new(), Vec::new());
    for (id, exporter) in world {
        let member = SetMember {
            name: Some((*id).into()),
            is_complete: exporter.is_read,
            ..SetMember::default()
        };
        shared.members.insert((*id).into(), member);
        endpoints.networks.insert((*id).into(), exporter.network.into());
        if !exporter.exports {
            continue;
        }
        for port in &exporter.ports {
            let is_taken = |other: &ExportedPort| {
                other.name == port.name
                    || (&other.protocol, other.number) == (&port.protocol, port.number)
            };
            if !ports.iter().any(is_taken) {
                ports.push(port.clone());
            }
        }
        let service = RawService { ports: exporter.ports.clone(), ..RawService::default() };
        exports.push(RankedExport {
            cluster: (*id).into(),
            name: (*id).into(),
            age: 1,
            conflicts: Vec::new(),
            service: Arc::new(ExportedService {
                created: 1,
                service: Arc::new(service),
                labels: Labels::new(),
                annotations: Labels::new(),
            }),
        });
        let rows = exporter.pods.iter().flat_map(|(address, (health, targets))| {
            targets.iter().map(|(name, number)| SharedEndpoint {
                address: *address,
                port: *number,
                port_name: (*name).into(),
                health: *health,
                network: exporter.network.into(),
                claimants: None,
                locality: Arc::new(Locality::parse("r/z1")),
                node: Some("node".into()),
                hostname: None,
            })
        });
        let cluster: ClusterId = (*id).into();
        sources.push(SourceEndpoints { cluster, is_withdrawn: false, endpoints: rows.collect() });
    }
    if let Some(first) = exports.first() {
        let mut service = RawService {
            ports,
            ip_families: vec![IpFamily::V4, IpFamily::V6],
            ..RawService::default()
        };
        change(&mut service);
        let merged = ImportedService {
            decided_by: first.name.clone(),
            service,
            labels: Labels::new(),
            annotations: Labels::new(),
        };
        let merged = Some(Arc::new(merged));
        let service = SharedService { exports, merged, ..SharedService::default() };
        shared.services.insert(workload("cart"), service);
        endpoints.services.insert(workload("cart"), sources.into());
    }
    (shared, endpoints)
}

fn full() -> Importer {
    let mut importer = Importer::new();
    importer.mode = ImportMode::Full;
    importer
}

/// Brings the cluster to the state that the world needs.
fn settle(importer: &mut Importer, world: &ExportingClusters) -> SharedServices {
    let (shared, endpoints) = hub(world, |_| {});
    importer.endpoints = endpoints;
    importer.settle(&shared);
    shared
}

/// Returns the names of the slices that the next plan writes or deletes.
fn writes(importer: &mut Importer, world: &ExportingClusters) -> Vec<String> {
    let (shared, endpoints) = hub(world, |_| {});
    importer.endpoints = endpoints;
    let ImportPlan { writes, .. } = importer.plan(&shared);
    let names = writes.iter().map(|(name, write)| {
        importer.apply(name, write);
        match write {
            ImportWrite::Slice { slice, .. } | ImportWrite::DeleteSlice { slice, .. } => {
                slice.to_string()
            }
            other => panic!("unexpected: {other:?}"),
        }
    });
    names.collect()
}

/// An endpoint in slices: source, address, ports with names, protocols and numbers, readiness.
type Served = BTreeSet<(String, String, Vec<(String, String, u64)>, bool)>;

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Returns all endpoints of the slices of a cluster. None is there twice.
fn served(importer: &Importer) -> Served {
    let mut served = Served::new();
    for slice in importer.slices.values() {
        let ports = slice["ports"].as_array().expect("ports").iter();
        let ports: Vec<_> = ports
            .map(|port| {
                let number = port["port"].as_u64().unwrap_or_default();
                (text(&port["name"]), text(&port["protocol"]), number)
            })
            .collect();
        let endpoints = slice["endpoints"].as_array().expect("endpoints");
        assert!((1..=ENDPOINTS_MAX).contains(&endpoints.len()));
        for endpoint in endpoints {
            let labels = &slice["metadata"]["labels"];
            let source = text(&labels["multicluster.kubernetes.io/source-cluster"]);
            let ready = endpoint["conditions"]["ready"] == true;
            let row = (source, text(&endpoint["addresses"][0]), ports.clone(), ready);
            assert!(served.insert(row), "{slice:#}");
        }
    }
    served
}

/// The naive calculator: every pod of every exporting cluster in the network of cluster a.
fn expected(world: &ExportingClusters) -> Served {
    let mut taken: Vec<ExportedPort> = Vec::new();
    for exporter in world.values().filter(|one| one.exports) {
        for port in &exporter.ports {
            let same_name = taken.iter().any(|one| one.name == port.name);
            let same_number =
                taken.iter().any(|one| one.number == port.number && one.protocol == port.protocol);
            if !same_name && !same_number {
                taken.push(port.clone());
            }
        }
    }
    let mut all = Served::new();
    for (id, exporter) in world {
        if !exporter.exports || exporter.network != world["a"].network {
            continue;
        }
        for (address, (health, targets)) in &exporter.pods {
            let mut ports = Vec::new();
            for port in &taken {
                for own in &exporter.ports {
                    let is_it = own.number == port.number && own.protocol == port.protocol;
                    if let Some(number) = targets.get(&*own.name).filter(|_| is_it) {
                        let protocol = port.protocol.to_string();
                        ports.push((port.name.to_string(), protocol, u64::from(*number)));
                    }
                }
            }
            ports.sort();
            if !ports.is_empty() {
                let ready = *health == Health::Healthy;
                all.insert(((*id).to_owned(), address.to_string(), ports, ready));
            }
        }
    }
    all
}

#[test]
fn slices_equal_a_naive_calculator_for_random_histories() {
    for seed in 0..150 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut importer = full();
        let mut world: ExportingClusters = [
            ("a", exporter([1])),
            ("b", exporter(1000..1000 + random.random_range(0..250))),
            ("c", exporter([3000, 3001])),
        ]
        .into();
        let mut last = Served::new();
        for step in 0..25 {
            let id = *["a", "b", "c"].choose(&mut random).expect("not empty");
            let exporter = world.get_mut(id).expect("it exists");
            let base = match id {
                "a" => 0,
                "b" => 1000,
                _ => 3000,
            };
            let pod = address(base + random.random_range(0..220));
            match random.random_range(0..8) {
                0..=1 => {
                    let target = *[4200, 4201].choose(&mut random).expect("not empty");
                    let targets = BTreeMap::from([("tcp", target), ("admin", 9)]);
                    exporter.pods.insert(pod, (Health::Healthy, targets));
                }
                2 => drop(exporter.pods.remove(&pod)),
                3 => {
                    if let Some((health, _)) = exporter.pods.values_mut().next() {
                        let all = [Health::Healthy, Health::Unhealthy, Health::Terminating];
                        *health = *all.choose(&mut random).expect("not empty");
                    }
                }
                4 => {
                    let all = [
                        vec![port("tcp", 42, "TCP")],
                        vec![port("tcp", 43, "TCP")],
                        vec![port("admin", 42, "TCP"), port("tcp", 4242, "TCP")],
                        vec![port("tcp", 42, "SCTP"), port("admin", 42, "TCP")],
                    ];
                    exporter.ports.clone_from(all.choose(&mut random).expect("not empty"));
                }
                5 => exporter.exports = random.random_bool(0.7),
                6 => exporter.network = ["n1", "n2"].choose(&mut random).expect("not empty"),
                _ => {}
            }
            // Cluster b is sometimes silent. Meanwhile, its changes have no effect.
            world.get_mut("b").expect("it exists").is_read = random.random_bool(0.8);
            let has_import = |importer: &Importer| importer.imports.contains_key("cart");
            settle(&mut importer, &world);
            let found = served(&importer);
            if !has_import(&importer) {
                assert!(found.is_empty(), "seed {seed}, step {step}");
                last.clear();
                continue;
            }
            // The ports of the import are those of known exports only if all are known.
            if world.values().all(|one| one.is_read) {
                let wanted = expected(&world);
                assert_eq!(found, wanted, "seed {seed}, step {step}: {world:#?}");
            } else {
                let of = |served: &Served| -> Served {
                    served.iter().filter(|(source, ..)| source == "b").cloned().collect()
                };
                assert_eq!(of(&found), of(&last), "seed {seed}, step {step}");
            }
            last = found;
        }
    }
}

#[test]
fn pod_that_starts_or_stops_changes_one_slice() {
    let mut importer = full();
    let mut world: ExportingClusters = [("a", exporter([])), ("b", exporter(0..250))].into();
    settle(&mut importer, &world);
    assert_eq!(importer.slices.len(), 3, "at most 100 endpoints in a slice");
    let b = world.get_mut("b").expect("it exists");
    b.pods.remove(&address(17));
    assert_eq!(writes(&mut importer, &world).len(), 1);
    let b = world.get_mut("b").expect("it exists");
    b.pods.extend(exporter([900]).pods);
    assert_eq!(writes(&mut importer, &world).len(), 1);
    // A pod that replaces another is in the slice that changes anyway.
    let b = world.get_mut("b").expect("it exists");
    b.pods.remove(&address(120));
    b.pods.extend(exporter([901]).pods);
    assert_eq!(writes(&mut importer, &world).len(), 1);
    let b = world.get_mut("b").expect("it exists");
    b.pods.get_mut(&address(3)).expect("a pod").0 = Health::Unhealthy;
    assert_eq!(writes(&mut importer, &world).len(), 1);
    assert_eq!(writes(&mut importer, &world), [""; 0]);
}

#[test]
fn steady_state_and_restart_need_no_write() {
    let mut importer = full();
    let world: ExportingClusters = [("a", exporter([1])), ("b", exporter(2..150))].into();
    let shared = settle(&mut importer, &world);
    // A new process has no memory.
    let ImportPlan { writes, settled, states } = importer.plan(&shared);
    assert_eq!(writes, []);
    assert_eq!(states[&workload("cart")].slices, 3);
    assert_eq!(importer.plan_after(&shared, &settled).writes, []);
    assert_eq!(importer.imports["cart"]["status"]["endpointSliceObjects"], "Present");
}

#[test]
fn slice_has_the_labels_the_owner_and_the_fields_of_its_endpoints() {
    let mut importer = full();
    let mut world: ExportingClusters = [("a", exporter([1])), ("b", exporter([2]))].into();
    world.get_mut("b").expect("it exists").ports.push(port("udp", 42, "UDP"));
    let pods = &mut world.get_mut("b").expect("it exists").pods;
    pods.values_mut().next().expect("a pod").1.insert("udp", 4201);
    let (shared, mut endpoints) =
        hub(&world, |service| service.traffic_distribution = Some("PreferClose".into()));
    let mut sources = endpoints.services[&workload("cart")].to_vec();
    for endpoint in &mut sources[1].endpoints {
        endpoint.hostname = Some("cart-0".into());
    }
    endpoints.services.insert(workload("cart"), sources.into());
    importer.endpoints = endpoints;
    importer.settle(&shared);
    let derived = derived_name(&key("cart"));
    let of = |source: &str| {
        &importer.slices[&format!("{}0", slice_prefix(&derived, source, IpFamily::V4))]
    };
    let slice = of("b");
    let labels = json!({
        "app.kubernetes.io/managed-by": "strait", "strait.dev/clusterset": "default",
        "multicluster.kubernetes.io/service-name": "cart",
        "multicluster.kubernetes.io/source-cluster": "b",
        "kubernetes.io/service-name": derived,
        "endpointslice.kubernetes.io/managed-by": "strait.dev",
    });
    assert_eq!(slice["metadata"]["labels"], labels);
    let owner = &slice["metadata"]["ownerReferences"][0];
    assert_eq!(owner["uid"], importer.services[&derived]["metadata"]["uid"]);
    assert_eq!((&owner["kind"], &owner["controller"]), (&json!("Service"), &json!(true)));
    let ports = json!([
        { "name": "tcp", "protocol": "TCP", "port": 4200 },
        { "name": "udp", "protocol": "UDP", "port": 4201 },
    ]);
    assert_eq!((&slice["addressType"], &slice["ports"]), (&json!("IPv4"), &ports));
    // The node belongs to another cluster.
    let endpoint = json!({
        "addresses": ["10.0.0.2"], "hostname": "cart-0", "zone": "z1",
        "conditions": { "ready": true, "serving": true, "terminating": false },
        "hints": { "forZones": [{ "name": "z1" }] },
    });
    assert_eq!(slice["endpoints"], json!([endpoint]));
    assert_eq!(of("a")["endpoints"][0]["nodeName"], "node");
}

/// Row 18 of the conformance suite.
#[test]
fn own_endpoints_of_a_cluster_that_does_not_export_are_not_behind_the_name() {
    let mut importer = full();
    let mut world: ExportingClusters = [("a", exporter([1])), ("b", exporter([2]))].into();
    world.get_mut("a").expect("it exists").exports = false;
    settle(&mut importer, &world);
    let sources: BTreeSet<_> = served(&importer).into_iter().map(|(source, ..)| source).collect();
    assert_eq!(sources, ["b".to_owned()].into());
}

/// Rows 19 and 20 of the conformance suite.
#[test]
fn traffic_of_a_conflicting_port_goes_only_to_clusters_with_exactly_that_port() {
    let mut world: ExportingClusters = [("a", exporter([1])), ("b", exporter([2]))].into();
    world.get_mut("b").expect("it exists").ports = vec![port("tcp", 43, "TCP")];
    let mut importer = full();
    settle(&mut importer, &world);
    let tcp = || ("tcp".to_owned(), "TCP".to_owned(), 4200);
    let row = |source: &str, address: &str, ports| (source.into(), address.into(), ports, true);
    let first = row("a", "10.0.0.1", vec![tcp()]);
    assert_eq!(served(&importer), [first.clone()].into(), "same name, other number");

    let b = world.get_mut("b").expect("it exists");
    b.ports = vec![port("other", 4242, "TCP")];
    b.pods.values_mut().for_each(|(_, targets)| *targets = [("other", 4200)].into());
    settle(&mut importer, &world);
    let other = row("b", "10.0.0.2", vec![("other".into(), "TCP".into(), 4200)]);
    assert_eq!(served(&importer), [first, other].into(), "other name and number");
}

#[test]
fn addresses_of_other_networks_are_left_out_and_named() {
    let mut world: ExportingClusters = [("a", exporter([1])), ("b", exporter([2]))].into();
    world.get_mut("b").expect("it exists").network = "n2";
    let mut importer = full();
    let (shared, endpoints) = hub(&world, |_| {});
    importer.endpoints = endpoints;
    importer.settle(&shared);
    assert_eq!(served(&importer).len(), 1);
    let states = importer.plan(&shared).states;
    let state = &states[&workload("cart")];
    assert!(state.ready, "the import stays ready");
    assert_eq!(state.unreached, ["n2".into()]);
}

#[test]
fn address_of_pods_in_two_clusters_is_the_own_clusters_or_the_first_ones() {
    let world: ExportingClusters =
        [("a", exporter([])), ("b", exporter([7])), ("c", exporter([7]))].into();
    for (claimants, holder) in [(["b", "c"], "b"), (["c", "b"], "c")] {
        let (shared, mut endpoints) = hub(&world, |_| {});
        let mut sources = endpoints.services[&workload("cart")].to_vec();
        for endpoint in sources.iter_mut().flat_map(|source| &mut source.endpoints) {
            endpoint.claimants = Some(claimants.map(ClusterId::from).into());
        }
        endpoints.services.insert(workload("cart"), sources.into());
        let mut importer = full();
        importer.endpoints = endpoints;
        importer.settle(&shared);
        let sources: Vec<_> = served(&importer).into_iter().map(|(source, ..)| source).collect();
        assert_eq!(sources, [holder]);
    }
}

#[test]
fn each_address_family_has_its_own_slice() {
    let mut importer = full();
    let mut world: ExportingClusters = [("a", exporter([])), ("b", exporter([1]))].into();
    let v6: IpAddr = "2001:db8::1".parse().expect("an address");
    let b = world.get_mut("b").expect("it exists");
    b.pods.insert(v6, (Health::Healthy, [("tcp", 4200)].into()));
    // The derived Service of the simulated cluster has IPv4 addresses only.
    settle(&mut importer, &world);
    assert_eq!(importer.slices.len(), 1, "a family without an address has no slice");
    let (shared, endpoints) = hub(&world, |service| service.headless = true);
    let mut importer = full();
    importer.endpoints = endpoints;
    importer.settle(&shared);
    let types: Vec<_> = importer.slices.values().map(|slice| text(&slice["addressType"])).collect();
    assert_eq!(types, ["IPv4", "IPv6"]);
    let headless = importer.slices.values().next().expect("a slice");
    assert_eq!(headless["metadata"]["labels"]["service.kubernetes.io/headless"], "");
}

#[test]
fn slice_of_another_controller_is_neither_written_nor_deleted() {
    let derived = derived_name(&key("cart"));
    let world: ExportingClusters = [("a", exporter([])), ("b", exporter([1]))].into();
    let mut writer = full();
    settle(&mut writer, &world);
    let (name, ours) = writer.slices.first_key_value().expect("a slice");
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut slice = ours.clone();
        change(&mut slice["metadata"]);
        slice
    };
    let manager = "endpointslice.kubernetes.io/managed-by";
    let others = [
        changed(&|metadata| metadata["labels"]["strait.dev/clusterset"] = json!("other")),
        changed(&|metadata| metadata["labels"][manager] = json!("endpointslice-controller.k8s.io")),
        changed(&|metadata| metadata["ownerReferences"][0]["name"] = json!("cart")),
        changed(&|metadata| metadata["labels"]["kubernetes.io/service-name"] = json!("cart")),
        changed(&|metadata| metadata["labels"] = json!({})),
    ];
    for other in others {
        let mut importer = full();
        importer.slices.insert(name.clone(), other.clone());
        settle(&mut importer, &world);
        assert_eq!(importer.slices[name], other, "it is unchanged");
        let next = format!("{}1", slice_prefix(&derived, "b", IpFamily::V4));
        assert!(importer.slices.contains_key(&next), "Strait takes the next name");
        settle(&mut importer, &[("a", Exporter { exports: false, ..exporter([]) })].into());
        assert_eq!(importer.slices.keys().collect::<Vec<_>>(), [name]);
    }
}

#[test]
fn slice_that_another_client_changes_is_restored() {
    let mut written = full();
    let world: ExportingClusters = [("a", exporter([1])), ("b", exporter([2, 3]))].into();
    let shared = settle(&mut written, &world);
    let name = format!("{}0", slice_prefix(&derived_name(&key("cart")), "b", IpFamily::V4));
    let changes: [&dyn Fn(&mut Value); 4] = [
        &|slice| slice["endpoints"][0]["addresses"] = json!(["192.0.2.1"]),
        &|slice| drop(slice["endpoints"].as_array_mut().expect("endpoints").pop()),
        &|slice| slice["endpoints"][0]["conditions"]["ready"] = json!(false),
        &|slice| slice["ports"][0]["port"] = json!(4201),
    ];
    for change in changes {
        let mut importer = written.clone();
        change(importer.slices.get_mut(&name).expect("it exists"));
        let plan = importer.plan(&shared);
        let [(_, ImportWrite::Slice { slice, mode: WriteMode::Restore(_), .. })] = &*plan.writes
        else {
            panic!("{:?}", plan.writes);
        };
        assert_eq!(**slice, *name);
        let state = &plan.states[&workload("cart")];
        assert_eq!(state.code.map(|code| code.id), Some("STR0449"), "{state:?}");
        importer.settle(&shared);
        assert_eq!(importer.slices[&name]["endpoints"], written.slices[&name]["endpoints"]);
        assert_eq!(importer.slices[&name]["ports"], written.slices[&name]["ports"]);
    }
}

/// An import without its ports would lose all slices.
#[test]
fn slices_do_not_depend_on_an_import_that_another_client_changes() {
    let mut importer = full();
    let world: ExportingClusters = [("a", exporter([1])), ("b", exporter([2]))].into();
    let shared = settle(&mut importer, &world);
    importer.imports.get_mut("cart").expect("it exists")["spec"]["ports"] = json!([]);
    let plan = importer.plan(&shared);
    let [(_, ImportWrite::Import { mode: WriteMode::Restore(_), .. })] = &*plan.writes else {
        panic!("{:?}", plan.writes);
    };
}

#[test]
fn slices_stay_if_the_exports_change_while_the_import_has_ports_of_another_client() {
    let mut importer = full();
    let world: ExportingClusters = [("a", exporter([1]))].into();
    let mut shared = settle(&mut importer, &world);
    let spec = &mut importer.imports.get_mut("cart").expect("it exists")["spec"];
    spec["ports"] = json!([{ "name": "evil", "port": 9090, "protocol": "TCP" }]);
    let service = shared.services.values_mut().next().expect("it is exported");
    let merged = Arc::make_mut(service.merged.as_mut().expect("it is merged"));
    let port = ExportedPort { name: "more".into(), number: 81, ..merged.service.ports[0].clone() };
    merged.service.ports.push(port);
    let writes = importer.plan(&shared).writes;
    let is_deletion = |(_, write): &(NamespacedName, ImportWrite)| write.is_deletion();
    assert!(!writes.is_empty() && !writes.iter().any(is_deletion), "{writes:?}");
}

#[test]
fn slices_of_an_unknown_cluster_stay_and_those_of_others_follow_their_pods() {
    let mut importer = full();
    let mut world: ExportingClusters = [("a", exporter([1])), ("b", exporter([2, 3]))].into();
    settle(&mut importer, &world);
    let before = served(&importer);
    let b = world.get_mut("b").expect("it exists");
    (b.is_read, b.exports) = (false, false);
    world.get_mut("a").expect("it exists").pods.extend(exporter([9]).pods);
    settle(&mut importer, &world);
    let after = served(&importer);
    let of = |served: &Served, source: &str| served.iter().filter(|row| row.0 == source).count();
    assert_eq!((of(&before, "b"), of(&after, "b")), (2, 2));
    assert_eq!((of(&before, "a"), of(&after, "a")), (1, 2));
    // The endpoints of a service that is exported are not known yet.
    let (shared, _) = hub(&world, |_| {});
    importer.endpoints.services.clear();
    assert_eq!(importer.plan(&shared).writes, []);
}

#[test]
fn withdrawn_cluster_has_no_endpoints_even_if_it_is_unknown() {
    let mut importer = full();
    let mut world: ExportingClusters = [("a", exporter([1])), ("b", exporter([2]))].into();
    settle(&mut importer, &world);
    world.get_mut("b").expect("it exists").is_read = false;
    let (shared, mut endpoints) = hub(&world, |_| {});
    let mut sources = endpoints.services[&workload("cart")].to_vec();
    (sources[1].is_withdrawn, sources[1].endpoints) = (true, Vec::new());
    endpoints.services.insert(workload("cart"), sources.into());
    importer.endpoints = endpoints;
    importer.settle(&shared);
    let sources: Vec<_> = served(&importer).into_iter().map(|(source, ..)| source).collect();
    assert_eq!(sources, ["a"]);
    assert!(importer.imports.contains_key("cart"), "the import keeps its address");
}

#[test]
fn mode_names_deletes_the_slices_and_mode_off_leaves_them() {
    for (mode, left) in [(ImportMode::Names, 0), (ImportMode::Off, 2)] {
        let mut importer = full();
        let world: ExportingClusters = [("a", exporter([1])), ("b", exporter([2]))].into();
        let shared = settle(&mut importer, &world);
        importer.mode = mode;
        importer.settle(&shared);
        assert_eq!(importer.slices.len(), left, "{mode:?}");
        assert_eq!((importer.imports.len(), importer.services.len()), (1, 1));
    }
}

#[test]
fn last_export_deletes_the_slices_and_so_does_an_import_that_is_gone() {
    let world: ExportingClusters = [("a", exporter([1]))].into();
    let none: ExportingClusters = [("a", Exporter { exports: false, ..exporter([]) })].into();
    let mut importer = full();
    settle(&mut importer, &world);
    settle(&mut importer, &none);
    assert!(importer.slices.is_empty() && importer.imports.is_empty());
    settle(&mut importer, &world);
    importer.imports.clear();
    settle(&mut importer, &none);
    assert!(importer.slices.is_empty() && importer.services.is_empty());
}

#[test]
fn changed_or_reverted_slice_is_written_again() {
    let mut importer = full();
    let world: ExportingClusters = [("a", exporter([1]))].into();
    let shared = settle(&mut importer, &world);
    let slice = importer.slices.values_mut().next().expect("a slice");
    slice["endpoints"][0]["addresses"][0] = json!("10.0.0.77");
    let ImportPlan { writes, .. } = importer.plan_after(&shared, &SettledImports::default());
    let [(_, ImportWrite::Slice { mode: WriteMode::Restore(_), .. })] = &*writes else {
        panic!("{writes:?}");
    };
}
