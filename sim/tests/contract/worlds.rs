//! Generated worlds, checked through their stores and APIs.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use strait_sim::{
    Family, Object, RESOURCES, SimCluster, StampKind, World, WorldError, WorldOptions,
};

use crate::client;
use crate::script::get;

async fn world(options: WorldOptions) -> World {
    World::generate(options).await.expect("a small world")
}

fn text(object: &Object, pointer: &str) -> String {
    object.value().pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// Returns the addresses and pod names of all endpoints of a cluster.
fn endpoints(cluster: &SimCluster) -> BTreeSet<(String, String)> {
    let mut found = BTreeSet::new();
    for slice in cluster.store().all("EndpointSlice") {
        let slice = slice.value();
        for endpoint in slice["endpoints"].as_array().into_iter().flatten() {
            let field = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            found.insert((field(&endpoint["addresses"][0]), field(&endpoint["targetRef"]["name"])));
        }
    }
    found
}

fn pods(cluster: &SimCluster) -> BTreeSet<(String, String)> {
    let pods = cluster.store().all("Pod");
    pods.iter().map(|pod| (text(pod, "/status/podIP"), text(pod, "/metadata/name"))).collect()
}

#[tokio::test]
async fn networks_share_pod_addresses_and_have_separate_gateways() {
    let options = WorldOptions { clusters: 2, networks: 2, pods: true, ..WorldOptions::default() };
    let world = world(options).await;
    let [c1, c2] = ["c1", "c2"].map(|id| world.cluster(id).expect("there"));
    let addresses = |cluster| endpoints(cluster).into_iter().map(|e| e.0).collect::<BTreeSet<_>>();
    assert_eq!(addresses(c1), addresses(c2));
    for (cluster, network) in [(c1, "n1"), (c2, "n2")] {
        assert_eq!(endpoints(cluster), pods(cluster), "each endpoint has its pod");
        let system = cluster.store().get("Namespace", "", "strait-system").expect("there");
        assert_eq!(text(&system, "/metadata/labels/topology.istio.io~1network"), network);
        let gateway = cluster.store().get("Service", "strait-system", "eastwestgateway");
        let gateway = gateway.expect("there");
        assert!(text(&gateway, "/status/loadBalancer/ingress/0/ip").starts_with("198.18."));
    }
    let cluster_ips = |cluster: &SimCluster| {
        let services = cluster.store().all("Service");
        services.iter().map(|service| text(service, "/spec/clusterIP")).collect::<BTreeSet<_>>()
    };
    assert!(cluster_ips(c1).is_disjoint(&cluster_ips(c2)));
    // Deleting and restoring the gateway gives the same object.
    let gateway = || c1.store().get("Service", "strait-system", "eastwestgateway");
    let before = gateway().expect("there").value();
    for is_there in [false, false, true] {
        world.set_gateway("c1", is_there).expect("there are two networks");
        assert_eq!(gateway().is_some(), is_there);
    }
    let after = gateway().expect("there").value();
    assert_eq!((&before["spec"], &before["status"]), (&after["spec"], &after["status"]));
    assert!(c2.store().get("Service", "strait-system", "eastwestgateway").is_some());
    assert!(matches!(world.set_gateway("c9", false), Err(WorldError::NoSuchCluster(_))));
}

#[tokio::test]
async fn changes_keep_slices_and_pods_together() {
    let options = WorldOptions { clusters: 1, pods: true, ..WorldOptions::default() };
    let world = world(options).await;
    let cluster = world.cluster("c1").expect("there");
    let before = endpoints(cluster);
    let stamp = world.change("c1", Some("shop/cart")).expect("a change");
    let after = endpoints(cluster);
    assert_eq!(after.len(), before.len());
    assert!(after.iter().any(|(address, _)| *address == stamp.address.to_string()));
    assert_eq!(after, pods(cluster));
    let stamps = world.rollout("c1", Some("shop/cart"), f64::MAX).await.expect("a rollout");
    let stamped = endpoints(cluster).into_iter().filter(|e| e.0.starts_with("100.")).count();
    assert_eq!((stamps.len(), stamped), (3, 3));
    assert_eq!(endpoints(cluster), pods(cluster));
}

/// Clients learn the pods of a headless service only from its slices.
#[tokio::test]
async fn last_services_are_headless_and_change_too() {
    let options = WorldOptions { clusters: 1, headless: 1, pods: true, ..WorldOptions::default() };
    let world = world(options).await;
    let cluster = world.cluster("c1").expect("there");
    let (last, others) = world.services("c1").expect("there").split_last().expect("some");
    let service = |name: &strait_sim::Name| {
        cluster.store().get("Service", &name.namespace, &name.name).expect("there").value()
    };
    assert_eq!(service(last)["spec"]["clusterIP"], "None");
    assert_eq!(service(last)["spec"]["clusterIPs"], json!(["None"]));
    assert_eq!(service(last)["spec"]["ports"][0]["name"], "tcp");
    assert!(others.iter().all(|name| service(name)["spec"]["clusterIP"] != "None"));
    let slice =
        cluster.store().get("EndpointSlice", &last.namespace, &format!("{}-00000", last.name));
    let slice = slice.expect("there").value();
    assert_eq!(slice["metadata"]["labels"]["service.kubernetes.io/headless"], "");
    assert_eq!(slice["ports"][0]["port"], 9000);
    let name = format!("{}/{}", last.namespace, last.name);
    let stamp = world.change("c1", Some(&name)).expect("a change");
    assert_eq!(stamp.kind, StampKind::HeadlessPod);
    assert_eq!(world.change("c1", Some("shop/cart")).expect("one").kind, StampKind::Endpoint);
    assert_eq!(endpoints(cluster), pods(cluster));
}

/// Returns a Service and the number of slices that it has.
fn service_and_slices(cluster: &SimCluster, name: &str) -> (Option<Value>, usize) {
    let (namespace, name) = name.split_once('/').expect("NAMESPACE/NAME");
    let of_service = |object: &&std::sync::Arc<Object>| {
        text(object, "/metadata/labels/kubernetes.io~1service-name") == name
            && *object.name.namespace == *namespace
    };
    let slices = cluster.store().all("EndpointSlice").iter().filter(of_service).count();
    (cluster.store().get("Service", namespace, name).map(|service| service.value()), slices)
}

#[tokio::test]
async fn services_can_be_added_and_removed() {
    let world = world(WorldOptions { clusters: 1, pods: true, ..WorldOptions::default() }).await;
    let cluster = world.cluster("c1").expect("there");
    let stamps = world.add_service("c1", 2).expect("room");
    let kinds: Vec<_> = stamps.iter().map(|stamp| stamp.kind).collect();
    assert_eq!(kinds, [StampKind::ServiceAdded, StampKind::Endpoint, StampKind::Endpoint]);
    let (service, slices) = service_and_slices(cluster, &stamps[0].service);
    let service = service.expect("added");
    assert_eq!((&service["spec"]["clusterIP"], slices), (&json!(stamps[0].address.to_string()), 1));
    let new: BTreeSet<_> = stamps[1..].iter().map(|stamp| stamp.address.to_string()).collect();
    let addresses: BTreeSet<_> =
        endpoints(cluster).into_iter().map(|endpoint| endpoint.0).collect();
    assert!(new.is_subset(&addresses));
    assert_eq!(endpoints(cluster), pods(cluster));
    // The added service can be changed like any other.
    world.change("c1", Some(&stamps[0].service)).expect("a change");
    for name in [&*stamps[0].service, "shop/cart"] {
        let stamp = world.remove_service("c1", Some(name)).expect("there");
        assert_eq!((stamp.kind, &*stamp.service), (StampKind::ServiceRemoved, name));
        assert_eq!(service_and_slices(cluster, name), (None, 0));
        assert!(world.change("c1", Some(name)).is_err(), "{name}");
        assert!(world.remove_service("c1", Some(name)).is_err(), "{name}");
    }
    // Deployments stay, and so do their pods.
    assert_eq!(pods(cluster).len(), endpoints(cluster).len() + 2 + 3);
    while world.remove_service("c1", None).is_ok() {}
    assert_eq!(endpoints(cluster), BTreeSet::new());
}

#[tokio::test]
async fn definition_changes_without_its_endpoints() {
    let world = world(WorldOptions { clusters: 1, ..WorldOptions::default() }).await;
    let cluster = world.cluster("c1").expect("there");
    let (name, before) = ("shop/cart", endpoints(cluster));
    let service = || service_and_slices(cluster, name).0.expect("there");
    let (uid, slices) =
        (service()["metadata"]["uid"].clone(), cluster.store().all("EndpointSlice"));
    for target in [json!("http"), json!(8080), json!("http")] {
        assert_eq!(world.change_target_port("c1", Some(name)).expect("there"), name);
        assert_eq!(service()["spec"]["ports"][0]["targetPort"], target);
    }
    world.label_service("c1", Some(name), ("bench", "7")).expect("a label");
    assert_eq!(service()["metadata"]["labels"]["bench"], "7");
    assert_eq!(service()["metadata"]["uid"], uid);
    assert_eq!(endpoints(cluster), before);
    assert_eq!(cluster.store().all("EndpointSlice"), slices);
    for (key, value) in [("", "7"), ("bench", "a b"), ("bench", &*"x".repeat(64))] {
        assert!(world.label_service("c1", Some(name), (key, value)).is_err(), "{key} {value}");
    }
}

#[tokio::test]
async fn scaling_fills_and_empties_slices_of_100() {
    let options = WorldOptions { clusters: 1, services: 1, pods: true, ..WorldOptions::default() };
    let world = world(options).await;
    let cluster = world.cluster("c1").expect("there");
    for (size, slices) in [(250, 3), (100, 1), (101, 2), (0, 1), (5, 1)] {
        world.scale("c1", None, size).expect("scaled");
        let got = (endpoints(cluster).len(), cluster.store().all("EndpointSlice").len());
        assert_eq!(got, (size, slices));
        assert_eq!(endpoints(cluster), pods(cluster));
    }
}

#[tokio::test]
async fn scaling_beyond_the_addresses_changes_nothing() {
    let options = WorldOptions { clusters: 1, services: 2, ..WorldOptions::default() };
    let world = world(options).await;
    let addresses = 1 << 22;
    // Three endpoints have addresses of the plan; the other ten have stamped addresses.
    for (service, size, fits) in [
        ("shop/cart", addresses + 4, false),
        ("shop/cart", usize::MAX, false),
        ("shop/cart", 13, true),
        ("shop/checkout", addresses - 6, false),
    ] {
        let before = endpoints(world.cluster("c1").expect("there"));
        let scaled = world.scale("c1", Some(service), size);
        assert_eq!(scaled.is_ok(), fits, "{service} {size}");
        let after = endpoints(world.cluster("c1").expect("there"));
        assert_eq!(after != before, fits, "{service} {size}");
    }
}

#[tokio::test]
async fn churn_changes_the_world_at_its_rate() {
    let world = world(WorldOptions::default()).await;
    let versions = || world.clusters().map(|c| c.store().version()).sum::<u64>();
    let before = versions();
    let reached = async {
        while versions() < before + 20 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = world.churn(1000.0) => {}
        reached = tokio::time::timeout(std::time::Duration::from_secs(20), reached) => {
            reached.expect("twenty changes");
        }
    }
}

#[tokio::test]
async fn config_cluster_contains_the_secrets_of_all_others() {
    for (id, expected) in [("c2", vec!["c1", "c3"]), ("config", vec!["c1", "c2", "c3"])] {
        let config_cluster = Some(id.to_owned());
        let options = WorldOptions { clusters: 3, config_cluster, ..WorldOptions::default() };
        let world = world(options).await;
        let config = world.cluster(id).expect("there");
        let secrets = config.store().all("Secret");
        let keys = secrets.iter().flat_map(|secret| {
            assert_eq!(text(secret, "/metadata/labels/istio~1multiCluster"), "true");
            secret.value()["data"].as_object().expect("data").keys().cloned().collect::<Vec<_>>()
        });
        assert_eq!(keys.collect::<Vec<_>>(), expected);
    }
}

#[tokio::test]
async fn generated_objects_have_a_fixed_creation_time() {
    let options = WorldOptions {
        networks: 2,
        pods: true,
        families: BTreeSet::from([Family::Istio]),
        config_cluster: Some("config".to_owned()),
        ..WorldOptions::default()
    };
    let world = world(options).await;
    world.change("c1", Some("shop/cart")).expect("a change");
    for cluster in world.clusters() {
        let all = RESOURCES.iter().flat_map(|row| cluster.store().all(row.plural));
        let ages: BTreeSet<_> = all.map(|o| text(&o, "/metadata/creationTimestamp")).collect();
        assert_eq!(ages, BTreeSet::from(["2026-01-01T00:00:00Z".to_owned()]), "{}", cluster.id());
    }
    let map = json!({"kind": "ConfigMap", "metadata": {"name": "a", "namespace": "later"}});
    let store = world.cluster("c1").expect("there").store();
    let map = store.apply(map).expect("valid");
    let namespace = store.get("Namespace", "", "later").expect("made with it");
    for later in [map, namespace] {
        assert_ne!(text(&later, "/metadata/creationTimestamp"), "2026-01-01T00:00:00Z");
    }
}

#[tokio::test]
async fn served_kinds_have_definitions() {
    let families = BTreeSet::from([Family::Istio]);
    let world = world(WorldOptions { families, ..WorldOptions::default() }).await;
    let store = world.cluster("c1").expect("there").store();
    assert!(store.get("crd", "", "virtualservices.networking.istio.io").is_some());
    assert!(store.get("crd", "", "httproutes.gateway.networking.k8s.io").is_none());
}

/// Istio's control plane watches TLSRoutes of release 1.5 and TCPRoutes of 1.6, and warns about older ones.
#[tokio::test]
async fn gateway_api_release_is_supported_by_istio() {
    let families = BTreeSet::from([Family::GatewayApi]);
    let world = world(WorldOptions { families, ..WorldOptions::default() }).await;
    let store = world.cluster("c1").expect("there").store();
    for plural in ["tlsroutes", "tcproutes"] {
        let name = format!("{plural}.gateway.networking.k8s.io");
        let definition = store.get("crd", "", &name).expect("defined");
        let release = "/metadata/annotations/gateway.networking.k8s.io~1bundle-version";
        assert_eq!(text(&definition, release), "v1.6.0", "{name}");
        assert_eq!(text(&definition, "/spec/versions/0/name"), "v1", "{name}");
    }
}

/// Works like a typical informer: finds the definition of a kind, lists it, and waits for the end of a
/// streaming list.
#[tokio::test]
async fn defined_kinds_return_empty_lists_in_every_version() {
    let families = BTreeSet::from([Family::Istio, Family::GatewayApi, Family::MultiCluster]);
    let world = world(WorldOptions { families, ..WorldOptions::default() }).await;
    let cluster = world.cluster("c1").expect("there");
    let client = client(cluster).await;
    let mut checked = 0;
    for definition in cluster.store().all("crd") {
        let definition = definition.value();
        let name = definition["metadata"]["name"].as_str().expect("a name");
        let conditions = definition["status"]["conditions"].as_array().expect("conditions");
        let established = |one: &Value| one["type"] == "Established" && one["status"] == "True";
        assert!(conditions.iter().any(established), "{name}");
        let (plural, group) = name.split_once('.').expect("PLURAL.GROUP");
        for version in definition["spec"]["versions"].as_array().expect("versions") {
            let version = version["name"].as_str().expect("a name");
            let path = format!("/apis/{group}/{version}/{plural}");
            get(&path).gives(200, json!({"items": []})).check(&client, name).await;
            let stream = format!(
                "{path}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan\
                 &allowWatchBookmarks=true"
            );
            get(&stream).sees(&["END"]).check(&client, name).await;
            checked += 1;
        }
    }
    assert!(checked > 20, "{checked} kinds and versions");
}

#[tokio::test]
async fn client_changes_to_generated_objects_persist() {
    let world = world(WorldOptions::default()).await;
    let store = world.cluster("c1").expect("there").store();
    let mut service = store.get("Service", "shop", "cart").expect("there").value();
    service["apiVersion"] = "v1".into();
    service["kind"] = "Service".into();
    let uid = service["metadata"]["uid"].clone();
    service["metadata"]["labels"]["tier"] = "front".into();
    store.apply(service).expect("valid");
    let service = store.get("Service", "shop", "cart").expect("there");
    assert_eq!(text(&service, "/metadata/labels/tier"), "front");
    assert_eq!(service.value()["metadata"]["uid"], uid);
}
