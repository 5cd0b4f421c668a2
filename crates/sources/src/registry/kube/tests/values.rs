//! Tests of the index: the contents that follow from objects, in any order.

use std::sync::Arc;

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use crate::registry::kube::endpoint_slice::Slice;
use crate::registry::kube::index::{IndexChanges, Indexed, IndexedObject, KubeIndex};
use crate::registry::kube::namespace::NamespaceFacts;
use crate::registry::kube::node::NodeRecord;
use crate::registry::kube::pod::PodRecord;
use crate::registry::kube::scope::{ReadSettings, Scope};
use crate::registry::kube::service::KubeService;
use strait_kube_client::{Form, Gather, NamespacedName, WatchEvent};
use strait_model::registry::{Contents, ServiceRecord};
use strait_model::{
    Endpoint, ExportTo, Health, Hostname, PodState, Resolution, Service, TargetPort, TlsMode,
};

const CART: &str = "cart.shop.svc.cluster.local";

pub(super) fn index() -> KubeIndex {
    let settings = ReadSettings {
        domain: "cluster.local".into(),
        trust_domain: "td".into(),
        system_namespace: "strait-system".into(),
        metadata: Default::default(),
        clusterset: "default".into(),
    };
    KubeIndex::new(Arc::new(Scope::new(settings, Arc::default())))
}

/// A change as an API server sends it.
#[derive(Debug, Clone)]
pub(super) enum Arrives {
    Service(Value),
    Slice(Value),
    Pod(Value),
    Node(Value),
    Namespace(Value),
    Deleted(&'static str, &'static str, &'static str),
    Listed(&'static str, Vec<Value>),
}
use Arrives::{Deleted, Listed};

fn convert<T: Indexed>(index: &KubeIndex, value: &Value) -> IndexedObject<T> {
    let json = value.to_string();
    let form: T::Form<'_> = serde_json::from_str(&json).expect("a well-formed object");
    assert!(!form.identity().name.is_empty());
    T::convert(form, index.scope())
}

pub(super) fn apply(index: &mut KubeIndex, arrives: Arrives) -> IndexChanges {
    fn applied<T: Indexed>(index: &mut KubeIndex, value: &Value) -> IndexChanges {
        let object = convert::<T>(index, value);
        index.apply(WatchEvent::Applied(object))
    }
    fn listed<T: Indexed>(index: &mut KubeIndex, values: &[Value]) -> IndexChanges {
        let mut objects = T::List::default();
        values.iter().for_each(|value| objects.add(convert::<T>(index, value)));
        index.apply::<T>(WatchEvent::Restarted { objects, invalid: Vec::new() })
    }
    fn deleted<T: Indexed>(index: &mut KubeIndex, key: NamespacedName) -> IndexChanges {
        index.apply::<T>(WatchEvent::Deleted(key))
    }
    match arrives {
        Arrives::Service(value) => applied::<KubeService>(index, &value),
        Arrives::Slice(value) => applied::<Slice>(index, &value),
        Arrives::Pod(value) => applied::<PodRecord>(index, &value),
        Arrives::Node(value) => applied::<NodeRecord>(index, &value),
        Arrives::Namespace(value) => applied::<NamespaceFacts>(index, &value),
        Deleted(kind, namespace, name) => {
            let key = NamespacedName { namespace: namespace.into(), name: name.into() };
            match kind {
                "services" => deleted::<KubeService>(index, key),
                "slices" => deleted::<Slice>(index, key),
                "pods" => deleted::<PodRecord>(index, key),
                "nodes" => deleted::<NodeRecord>(index, key),
                _ => deleted::<NamespaceFacts>(index, key),
            }
        }
        Listed(kind, values) => match kind {
            "services" => listed::<KubeService>(index, &values),
            "slices" => listed::<Slice>(index, &values),
            "pods" => listed::<PodRecord>(index, &values),
            "nodes" => listed::<NodeRecord>(index, &values),
            _ => listed::<NamespaceFacts>(index, &values),
        },
    }
}

/// Applies changes one by one. Returns the reported contents after each.
fn apply_all(
    index: &mut KubeIndex,
    changes: impl IntoIterator<Item = Arrives>,
) -> Vec<Option<Contents>> {
    let mut all = Vec::new();
    for change in changes {
        let touched = apply(index, change);
        all.push(index.contents(&touched));
    }
    all
}

fn service(spec: Value) -> Arrives {
    Arrives::Service(json!({"metadata": {"namespace": "shop", "name": "cart"}, "spec": spec}))
}

fn cart() -> Arrives {
    service(json!({"clusterIP": "10.0.0.1", "ports": [{"name": "http", "port": 80}]}))
}

fn pod(name: &str, ip: &str) -> Arrives {
    labelled_pod(name, ip, json!({"security.istio.io/tlsMode": "istio"}))
}

fn labelled_pod(name: &str, ip: &str, labels: Value) -> Arrives {
    Arrives::Pod(json!({
        "metadata": {"namespace": "shop", "name": name, "labels": labels},
        "spec": {"serviceAccountName": "cart", "nodeName": "node-1", "containers": [
            {"ports": [{"name": "web", "containerPort": 8080}]}]},
        "status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]},
    }))
}

fn slice(name: &str, endpoints: Value) -> Arrives {
    Arrives::Slice(json!({
        "metadata": {"namespace": "shop", "name": name,
            "labels": {"kubernetes.io/service-name": "cart"}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": endpoints,
    }))
}

fn endpoint(address: &str, pod: &str) -> Value {
    json!({"addresses": [address], "conditions": {"ready": true}, "nodeName": "node-1",
        "targetRef": {"kind": "Pod", "namespace": "shop", "name": pod}, "zone": "slice-zone"})
}

fn node(labels: Value, addresses: Value) -> Arrives {
    Arrives::Node(json!({
        "metadata": {"name": "node-1", "labels": labels}, "status": {"addresses": addresses},
    }))
}

fn record(index: &mut KubeIndex) -> Option<ServiceRecord> {
    index.everything().services.remove(CART).flatten()
}

fn endpoints(index: &mut KubeIndex) -> Vec<Endpoint> {
    record(index).map(|record| record.endpoints.to_vec()).unwrap_or_default()
}

fn converted(spec: Value) -> Service {
    let mut index = index();
    apply(&mut index, service(spec));
    Service::clone(&record(&mut index).expect("a service").service)
}

#[test]
fn ranges_of_nodes_are_merged() {
    let mut index = index();
    let node = |name: &str, spec: Value| {
        Arrives::Node(json!({ "metadata": { "name": name }, "spec": spec }))
    };
    for (name, spec) in [
        ("a", json!({ "podCIDR": "10.0.0.0/24" })),
        ("b", json!({ "podCIDR": "10.0.1.0/24", "podCIDRs": ["10.0.1.0/24", "fd00::/80"] })),
        ("c", json!({})),
        ("d", json!({ "podCIDR": "nonsense" })),
    ] {
        apply(&mut index, node(name, spec));
    }
    let ranges = |index: &mut KubeIndex| {
        index.pod_ranges().iter().map(|one| one.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(ranges(&mut index), ["10.0.0.0/23", "fd00::/80"]);
    apply(&mut index, Deleted("nodes", "", "a"));
    assert_eq!(ranges(&mut index), ["10.0.1.0/24", "fd00::/80"]);
    apply(&mut index, node("b", json!({ "podCIDR": "10.9.0.0/24" })));
    assert_eq!(ranges(&mut index), ["10.9.0.0/24"]);
}

#[test]
fn services_keep_their_addresses_ports_and_kind() {
    let found = converted(json!({
        "type": "LoadBalancer", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "fd00::1"],
        "externalIPs": ["192.0.2.9"], "selector": {"app": "cart"},
        "internalTrafficPolicy": "Local", "publishNotReadyAddresses": true,
        "ports": [{"name": "http", "port": 80, "targetPort": "web"},
                  {"name": "tcp-x", "port": 90, "targetPort": 9090}, {"name": "y", "port": 91}],
    }));
    assert_eq!(found.hostname, Hostname::from(CART));
    assert_eq!(found.resolution, Resolution::ClientSide);
    assert_eq!(
        found.vips.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["10.0.0.1", "fd00::1"]
    );
    assert_eq!(found.external_addresses, ["192.0.2.9".into()]);
    assert!(found.node_local && found.named_pods.unready && !found.mesh_external);
    let targets: Vec<_> = found.ports.iter().map(|port| port.target.clone()).collect();
    let expected =
        [TargetPort::Name("web".into()), TargetPort::Number(9090), TargetPort::Number(91)];
    assert_eq!(targets, expected);

    let headless = converted(json!({"clusterIP": "None", "clusterIPs": ["None"]}));
    assert_eq!((&headless.resolution, headless.vips.len()), (&Resolution::Headless, 0));
    let alias = converted(json!({"type": "ExternalName", "externalName": "Example.COM."}));
    assert_eq!(alias.resolution, Resolution::Alias("example.com".into()));
    assert!(alias.mesh_external);
    let both = converted(
        json!({"type": "ExternalName", "externalName": "example.com", "clusterIP": "None"}),
    );
    assert_eq!(both.resolution, Resolution::Headless);
}

#[test]
fn sctp_ports_are_ignored_and_leave_tcp_ports_alone() {
    let found = converted(json!({"type": "NodePort", "clusterIP": "10.0.0.1", "ports": [
        {"name": "sctp", "port": 80, "targetPort": 9999, "protocol": "SCTP", "nodePort": 30001},
        {"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP", "nodePort": 30002},
    ]}));
    let ports: Vec<_> = found.ports.iter().map(|port| (&*port.name, port.number)).collect();
    assert_eq!(ports, [("http", 80)]);
    let headless = json!({"clusterIP": "None", "ports": [{"port": 80, "protocol": "SCTP"}]});
    assert_eq!(converted(headless).ports, []);
}

#[test]
fn node_port_of_a_datagram_port_does_not_replace_that_of_a_tcp_port() {
    let mut index = index();
    let gateway = json!({
        "metadata": {"namespace": "shop", "name": "cart",
            "annotations": {"traffic.istio.io/nodeSelector": "{}"}},
        "spec": {"type": "NodePort", "clusterIP": "10.0.0.1", "ports": [
            {"name": "tls", "port": 443, "protocol": "TCP", "nodePort": 30001},
            {"name": "quic", "port": 443, "protocol": "UDP", "nodePort": 30002},
        ]},
    });
    apply(&mut index, Arrives::Service(gateway));
    let found = record(&mut index).expect("a service").service;
    assert_eq!(found.external_ports.get(&443), Some(&30001));
}

#[test]
fn endpoints_are_distinguished_by_address_and_port() {
    let mut index = index();
    let at = |name: &str, number: u16, ready: bool| {
        Arrives::Slice(json!({
            "metadata": {"namespace": "shop", "name": name,
                "labels": {"kubernetes.io/service-name": "cart"}},
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": number, "protocol": "TCP"}],
            "endpoints": [{"addresses": ["192.168.0.1"], "conditions": {"ready": ready}}],
        }))
    };
    for change in [cart(), at("a", 8080, false), at("b", 8081, true), at("c", 8080, true)] {
        apply(&mut index, change);
    }
    let found: Vec<_> = endpoints(&mut index).iter().map(|one| (one.port, one.health)).collect();
    assert_eq!(found, [(8080, Health::Healthy), (8081, Health::Healthy)]);
}

#[test]
fn mirrored_slice_names_no_pod_of_its_cluster() {
    let labels = [
        ("multicluster.kubernetes.io/source-cluster", "west"),
        ("endpointslice.kubernetes.io/managed-by", "endpointslice-mesh-controller.cilium.io"),
        ("endpointslice.kubernetes.io/managed-by", "endpointslice-dispatch-controller.karmada.io"),
        ("endpointslice.kubernetes.io/managed-by", "endpointslice.reflection.liqo.io"),
    ];
    for (label, value) in labels {
        let mut index = index();
        let mirror = json!({
            "metadata": {"namespace": "shop", "name": "mirror",
                "labels": {"kubernetes.io/service-name": "cart", label: value}},
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": 8080}],
            "endpoints": [endpoint("10.2.0.1", "cart-1"), endpoint("10.1.0.1", "cart-1")],
        });
        let own = slice("own", json!([endpoint("10.1.0.1", "cart-1")]));
        for change in [cart(), pod("cart-1", "10.1.0.1"), Arrives::Slice(mirror), own] {
            apply(&mut index, change);
        }
        let found = endpoints(&mut index);
        let found: Vec<_> = found.iter().map(|one| (one.pod, one.workload.is_some())).collect();
        assert_eq!(found, [(PodState::Known, true), (PodState::Mirrored, false)], "{label}");
    }
}

#[test]
fn zone_of_a_slice_is_in_the_region_of_the_nodes_of_that_zone() {
    let mut index = index();
    let node = |name: &str, region: &str, zone: &str| {
        Arrives::Node(json!({"metadata": {"name": name, "labels": {
            "topology.kubernetes.io/region": region, "topology.kubernetes.io/zone": zone}}}))
    };
    let bare = json!([{"addresses": ["10.1.0.1"], "conditions": {}, "zone": "z"}]);
    let changes = [
        Listed("pods", vec![]),
        cart(),
        slice("cart-a", bare),
        node("n1", "r", "other"),
        node("n2", "r", "z"),
        node("n3", "r", "z"),
        node("n4", "r2", "z"),
        Deleted("nodes", "", "n4"),
        Deleted("nodes", "", "n3"),
        Deleted("nodes", "", "n2"),
    ];
    index.everything();
    let localities: Vec<_> = changes
        .into_iter()
        .map(|change| {
            let touched = apply(&mut index, change);
            let mut contents = index.contents(&touched)?;
            let record = contents.services.remove(CART)??;
            Some(record.endpoints.first()?.locality.to_string())
        })
        .collect();
    let text = |text: &str| Some(text.to_owned());
    let expected = [
        None,
        None,
        text("/z"),
        None,
        text("r/z"),
        None,
        text("/z"),
        text("r/z"),
        None,
        text("/z"),
    ];
    assert_eq!(localities, expected);
}

#[test]
fn annotations_define_accounts_and_visibility() {
    let mut index = index();
    apply(
        &mut index,
        Arrives::Service(json!({
            "metadata": {"namespace": "shop", "name": "cart",
                "creationTimestamp": "2026-01-01T00:00:10Z",
                "annotations": {
                    "networking.istio.io/exportTo": "., bank",
                    "alpha.istio.io/kubernetes-serviceaccounts": "a, b",
                    "alpha.istio.io/canonical-serviceaccounts": "spiffe://x/y"}},
            "spec": {"type": "LoadBalancer", "clusterIP": "10.0.0.1"},
            "status": {"loadBalancer": {"ingress": [
                {"hostname": "lb.example"}, {"ip": "192.0.2.1", "hostname": "other.example"}]}},
        })),
    );
    let found = record(&mut index).expect("a service").service;
    assert_eq!(found.export_to, ExportTo::Namespaces(vec!["bank".into(), "shop".into()]));
    let accounts: Vec<_> = found.service_accounts.iter().map(|account| &**account).collect();
    assert_eq!(accounts, ["spiffe://x/y", "spiffe://td/ns/shop/sa/a", "spiffe://td/ns/shop/sa/b"]);
    assert_eq!(found.external_addresses, ["lb.example".into(), "192.0.2.1".into()]);
    assert_eq!(found.created, 1_767_225_610);
}

#[test]
fn gateway_service_is_offered_to_no_workload_unless_it_is_exported() {
    let visibility = |labels: Value, annotations: Value| {
        let mut index = index();
        let metadata = json!({
            "namespace": "shop", "name": "cart", "labels": labels, "annotations": annotations,
        });
        let spec = json!({ "clusterIP": "10.0.0.1" });
        apply(&mut index, Arrives::Service(json!({ "metadata": metadata, "spec": spec })));
        record(&mut index).expect("a service").service.export_to.clone()
    };
    let gateway = json!({ "topology.istio.io/network": "n1" });
    assert_eq!(visibility(gateway.clone(), json!({})), ExportTo::Namespaces(vec![]));
    let exported = json!({ "networking.istio.io/exportTo": "*" });
    assert_eq!(visibility(gateway, exported), ExportTo::Public);
    let unnamed = json!({ "topology.istio.io/network": "" });
    assert_eq!(visibility(unnamed, json!({})), ExportTo::Public);
}

#[test]
fn endpoint_combines_its_slice_pod_and_node() {
    let mut index = index();
    let region = json!({"topology.kubernetes.io/region": "r", "topology.kubernetes.io/zone": "z"});
    let pod = labelled_pod(
        "cart-1",
        "10.1.0.1",
        json!({"security.istio.io/tlsMode": "istio", "topology.istio.io/network": "n1"}),
    );
    for change in [
        Listed("pods", vec![]),
        cart(),
        slice("cart-a", json!([endpoint("10.1.0.1", "cart-1")])),
        pod,
        node(region, json!([])),
    ] {
        apply(&mut index, change);
    }
    let found = endpoints(&mut index);
    let [found] = &found[..] else { panic!("one endpoint: {found:?}") };
    assert_eq!((found.address.to_string().as_str(), found.port), ("10.1.0.1", 8080));
    assert_eq!((&*found.port_name, found.health, found.weight), ("http", Health::Healthy, 1));
    assert_eq!(found.service_account.as_deref(), Some("spiffe://td/ns/shop/sa/cart"));
    assert_eq!((found.tls_mode, found.pod), (TlsMode::Istio, PodState::Known));
    assert_eq!(found.network_label, Some("n1".into()));
    assert_eq!(found.locality.to_string(), "r/z");
    assert_eq!(found.node, None, "the node has no effect");
    let local = json!({"clusterIP": "10.0.0.1", "internalTrafficPolicy": "Local"});
    apply(&mut index, service(local));
    assert_eq!(endpoints(&mut index)[0].node.as_deref(), Some("node-1"));

    let all = index.everything();
    let workloads = all.workloads.expect("pods");
    let workload = workloads.get("shop", "cart-1").expect("a workload");
    assert_eq!(workload.named_ports.get("web"), Some(&8080));
    assert_eq!(&*workload.service_account, "cart");
}

#[test]
fn slice_may_arrive_before_its_pod() {
    let mut index = index();
    let all = apply_all(
        &mut index,
        [
            Listed("pods", vec![]),
            cart(),
            slice("cart-a", json!([endpoint("10.1.0.1", "cart-1")])),
            pod("cart-1", "10.1.0.1"),
            Deleted("pods", "shop", "cart-1"),
        ],
    );
    let states: Vec<Option<PodState>> = all
        .into_iter()
        .map(|contents| {
            let record = contents?.services.remove(CART)??;
            record.endpoints.first().map(|endpoint| endpoint.pod)
        })
        .collect();
    let expected =
        [None, None, Some(PodState::Missing), Some(PodState::Known), Some(PodState::Missing)];
    assert_eq!(states, expected);
}

#[test]
fn without_pods_endpoints_have_no_identity_but_are_not_missing() {
    let mut index = index();
    apply(&mut index, cart());
    apply(&mut index, slice("cart-a", json!([endpoint("10.1.0.1", "cart-1")])));
    let found = endpoints(&mut index);
    assert_eq!(found.first().map(|endpoint| endpoint.pod), Some(PodState::Unnamed));
    let touched = apply(&mut index, Listed("pods", vec![]));
    let contents = index.contents(&touched).expect("pods may be read now");
    let record = contents.services.get(CART).cloned().flatten().expect("the service");
    assert_eq!(record.endpoints.first().map(|endpoint| endpoint.pod), Some(PodState::Missing));
}

#[test]
fn endpoint_without_a_pod_gets_the_only_pod_with_its_address() {
    let bare = || json!([{"addresses": ["10.1.0.1"], "conditions": {}}]);
    let cases = [
        (vec![], PodState::Unnamed, None),
        (vec![pod("a", "10.1.0.1")], PodState::Known, Some("a")),
        (vec![pod("a", "10.1.0.1"), pod("b", "10.1.0.1")], PodState::Unnamed, None),
        (vec![pod("a", "10.1.0.2")], PodState::Unnamed, None),
    ];
    for (pods, state, name) in cases {
        let mut index = index();
        let changes = [cart(), slice("cart-a", bare()), Listed("pods", vec![])];
        for change in changes.into_iter().chain(pods.clone()) {
            apply(&mut index, change);
        }
        let found = endpoints(&mut index);
        let found = found.first().expect("an endpoint");
        assert_eq!(found.pod, state, "{pods:?}");
        assert_eq!(found.workload.as_ref().map(|key| &*key.name), name);
    }
}

#[test]
fn endpoint_in_two_slices_is_included_once_in_its_better_state() {
    let ready = || slice("cart-a", json!([endpoint("10.1.0.1", "cart-1")]));
    let unready = || {
        let mut member = endpoint("10.1.0.1", "cart-1");
        member["conditions"] = json!({"ready": false});
        slice("cart-b", json!([member]))
    };
    for order in [[ready(), unready()], [unready(), ready()]] {
        let mut index = index();
        apply(&mut index, cart());
        for change in order {
            apply(&mut index, change);
        }
        let healths: Vec<_> = endpoints(&mut index).iter().map(|one| one.health).collect();
        assert_eq!(healths, [Health::Healthy]);
        apply(&mut index, Deleted("slices", "shop", "cart-a"));
        let healths: Vec<_> = endpoints(&mut index).iter().map(|one| one.health).collect();
        assert_eq!(healths, [Health::Unhealthy], "the other copy of the endpoint stays");
    }
}

#[test]
fn slices_of_host_names_other_clusters_and_no_service_are_omitted() {
    for (label, kind) in [
        (json!({"kubernetes.io/service-name": "cart"}), "FQDN"),
        (
            json!({"kubernetes.io/service-name": "cart",
                   "multicluster.kubernetes.io/service-name": "cart"}),
            "IPv4",
        ),
        (json!({}), "IPv4"),
    ] {
        let mut index = index();
        apply(&mut index, cart());
        apply(
            &mut index,
            Arrives::Slice(json!({
                "metadata": {"namespace": "shop", "name": "x", "labels": label},
                "addressType": kind, "ports": [{"name": "http", "port": 80}],
                "endpoints": [endpoint("10.1.0.1", "p")],
            })),
        );
        assert!(endpoints(&mut index).is_empty());
        assert_eq!(index.skipped().count, 0, "it is valid");
    }
}

#[test]
fn invalid_parts_are_omitted_and_counted() {
    let mut index = index();
    apply(&mut index, cart());
    let members = json!([
        {"addresses": null}, {"addresses": []}, {"addresses": ["fe80::1%eth0"]},
        {"addresses": ["300.1.1.1"]}, endpoint("10.1.0.1", "p"),
    ]);
    apply(&mut index, slice("cart-a", members));
    assert_eq!(endpoints(&mut index).len(), 1);
    assert_eq!(index.skipped().count, 1);
    assert!(index.skipped().last.is_some_and(|last| last.contains("endpointslices shop/cart-a")));
    apply(&mut index, slice("cart-a", json!([endpoint("10.1.0.1", "p")])));
    assert_eq!(index.skipped().count, 0, "mended");

    apply(
        &mut index,
        service(json!({"clusterIP": "x", "ports": [{"port": 0}, {"port": 65536},
        {"port": 80, "targetPort": -1}, {"port": 81}]})),
    );
    let found = record(&mut index).expect("the service").service;
    assert_eq!(found.ports.iter().map(|port| port.number).collect::<Vec<_>>(), [81]);
    assert_eq!(index.skipped().count, 1);
    let invalid = strait_kube_client::InvalidField {
        key: Some(NamespacedName { namespace: "shop".into(), name: "cart".into() }),
        reason: "no sense".into(),
    };
    index.apply::<KubeService>(WatchEvent::Invalid(invalid));
    assert_eq!(record(&mut index), None, "as a fresh list would omit it");
}

#[test]
fn node_port_gateways_follow_their_nodes() {
    let mut index = index();
    apply(
        &mut index,
        Arrives::Service(json!({
            "metadata": {"namespace": "shop", "name": "cart",
                "annotations": {"traffic.istio.io/nodeSelector": "{\"role\":\"edge\"}"}},
            "spec": {"type": "NodePort", "clusterIP": "10.0.0.1", "externalIPs": ["192.0.2.50"],
                "ports": [{"port": 15443, "nodePort": 31443}]},
        })),
    );
    let edge = |name: &str, address: &str, kind: &str| {
        Arrives::Node(json!({"metadata": {"name": name, "labels": {"role": "edge"}},
            "status": {"addresses": [{"type": "InternalIP", "address": "10.9.9.9"},
                                     {"type": kind, "address": address}]}}))
    };
    let other = node(json!({}), json!([{"type": "ExternalIP", "address": "192.0.2.7"}]));
    let steps: [(Arrives, Option<&[&str]>); 5] = [
        (edge("b", "192.0.2.9", "ExternalIP"), Some(&["192.0.2.9"])),
        (edge("a", "192.0.2.10", "ExternalIP"), Some(&["192.0.2.9", "192.0.2.10"])),
        (other, None),
        (edge("b", "192.0.2.9", "InternalIP"), Some(&["192.0.2.10"])),
        (Deleted("nodes", "", "a"), Some(&[])),
    ];
    let first = index.everything();
    assert!(first.services.contains_key(CART));
    for (change, expected) in steps {
        let touched = apply(&mut index, change.clone());
        let contents = index.contents(&touched);
        let addresses =
            contents.and_then(|mut contents| contents.services.remove(CART)).map(|record| {
                let service = record.expect("the service stays").service;
                assert_eq!(service.external_ports.get(&15443), Some(&31443));
                service.external_addresses.iter().map(|one| one.to_string()).collect::<Vec<_>>()
            });
        assert_eq!(
            addresses.as_deref().map(|list| list.iter().map(String::as_str).collect()),
            expected.map(<[&str]>::to_vec),
            "{change:?}"
        );
    }
}

#[test]
fn node_port_gateway_with_local_traffic_policy_is_reached_by_nodes_with_its_pods() {
    let mut index = index();
    let gateway = json!({
        "metadata": {"namespace": "shop", "name": "cart",
            "annotations": {"traffic.istio.io/nodeSelector": "{}"}},
        "spec": {"type": "NodePort", "clusterIP": "10.0.0.1", "externalTrafficPolicy": "Local",
            "ports": [{"name": "http", "port": 15443, "nodePort": 31443}]},
    });
    let node = |name: &str, addresses: &[&str]| {
        let all = addresses.iter().map(|one| json!({"type": "ExternalIP", "address": one}));
        let all: Vec<_> = all.collect();
        Arrives::Node(json!({"metadata": {"name": name}, "status": {"addresses": all}}))
    };
    let on = |node: &str, ready: bool| {
        slice(
            "a",
            json!([{"addresses": ["10.1.0.1"], "conditions": {"ready": ready},
            "nodeName": node}]),
        )
    };
    let found = |index: &mut KubeIndex| {
        let service = record(index).expect("a service").service;
        service.external_addresses.iter().map(|one| one.to_string()).collect::<Vec<_>>()
    };
    let both = ["2001:db8::2", "2001:db8::1", "192.0.2.1", "192.0.2.3"];
    for change in
        [Arrives::Service(gateway), node("n1", &both), node("n2", &["192.0.2.9"]), on("n1", true)]
    {
        apply(&mut index, change);
    }
    assert_eq!(found(&mut index), ["192.0.2.1", "2001:db8::2"], "one address of each family");
    let touched = apply(&mut index, on("n2", true));
    let contents = index.contents(&touched).expect("another node");
    let service = &contents.services.get(CART).cloned().flatten().expect("a service").service;
    assert_eq!(service.external_addresses, ["192.0.2.9".into()]);
    apply(&mut index, on("n2", false));
    assert_eq!(found(&mut index), [""; 0], "no pod is ready");
}

#[test]
fn locality_of_the_pod_precedes_those_of_its_node_and_slice() {
    let at = |labels: Value, with_node: bool| {
        let mut index = index();
        let mut changes = vec![
            cart(),
            slice("cart-a", json!([endpoint("10.1.0.1", "cart-1")])),
            Listed("pods", vec![]),
            labelled_pod("cart-1", "10.1.0.1", labels),
        ];
        if with_node {
            changes.push(node(
                json!({"failure-domain.beta.kubernetes.io/region": "nr",
                       "topology.kubernetes.io/zone": "nz", "topology.istio.io/subzone": "ns"}),
                json!([]),
            ));
        }
        for change in changes {
            apply(&mut index, change);
        }
        endpoints(&mut index).first().expect("an endpoint").locality.to_string()
    };
    assert_eq!(at(json!({"istio-locality": "a.b.c"}), true), "a/b/c");
    assert_eq!(at(json!({"topology.istio.io/locality": "a/b.c"}), true), "a/b.c");
    assert_eq!(at(json!({}), true), "nr/nz/ns");
    assert_eq!(at(json!({}), false), "/slice-zone");
}

#[test]
fn the_system_namespace_names_the_network() {
    let namespace = |name: &str, labels: Value| {
        Arrives::Namespace(json!({"metadata": {"name": name, "uid": "u", "labels": labels}}))
    };
    let n1 = || json!({"topology.istio.io/network": "n1"});
    let mut index = index();
    assert_eq!(index.everything().network_label, Some(None));
    let all = apply_all(
        &mut index,
        [
            namespace("other", n1()),
            namespace("strait-system", n1()),
            namespace("strait-system", n1()),
            namespace("strait-system", json!({})),
            namespace("kube-system", json!({})),
        ],
    );
    let labels: Vec<_> = all.into_iter().map(|one| one.and_then(|one| one.network_label)).collect();
    assert_eq!(labels, [None, Some(Some("n1".into())), None, Some(None), None]);
    assert_eq!(index.cluster_uid(), Some("u"));
}

#[test]
fn equal_content_is_not_reported_again() {
    let mut index = index();
    let zone = || json!({"topology.kubernetes.io/zone": "z"});
    let changes = || {
        vec![
            Listed("pods", vec![]),
            cart(),
            slice("cart-a", json!([endpoint("10.1.0.1", "cart-1")])),
            pod("cart-1", "10.1.0.1"),
            node(zone(), json!([])),
        ]
    };
    apply_all(&mut index, changes());
    let again = changes().split_off(1);
    for (change, contents) in again.clone().iter().zip(apply_all(&mut index, again)) {
        assert!(contents.is_none(), "{change:?}: {contents:?}");
    }
    // A heartbeat of a node, and a label without effect.
    let mut labels = zone();
    labels["beta.kubernetes.io/os"] = json!("linux");
    let quiet = apply_all(&mut index, [node(labels, json!([]))]);
    assert!(matches!(&quiet[..], [None]));
}

#[test]
fn recreated_service_finds_its_slices() {
    let mut index = index();
    let changes = [
        cart(),
        slice("cart-a", json!([endpoint("10.1.0.1", "p")])),
        Deleted("services", "shop", "cart"),
        slice("cart-a", json!([endpoint("10.1.0.2", "p")])),
        cart(),
    ];
    let all = apply_all(&mut index, changes);
    let counts: Vec<_> = all
        .into_iter()
        .map(|contents| {
            let record = contents?.services.remove(CART)?;
            Some(record.map(|record| record.endpoints.len()))
        })
        .collect();
    assert_eq!(counts, [Some(Some(0)), Some(Some(1)), Some(None), None, Some(Some(1))]);
}

/// Creates random changes with few names, so that they collide, with a list at the end.
fn random_changes(random: &mut StdRng) -> Vec<Arrives> {
    const NAMES: [&str; 3] = ["a", "b", "c"];
    let mut changes = Vec::new();
    for _ in 0..random.random_range(5..40) {
        let name = NAMES[random.random_range(0..3)];
        let address = format!("10.1.0.{}", random.random_range(1..4));
        changes.push(match random.random_range(0..9) {
            0 => cart(),
            1 => Deleted("services", "shop", "cart"),
            2 | 3 => {
                let mut member = endpoint(&address, NAMES[random.random_range(0..3)]);
                member["conditions"]["ready"] = json!(random.random_bool(0.7));
                if random.random_bool(0.3) {
                    member["targetRef"] = Value::Null;
                }
                slice(name, json!([member, endpoint("10.1.0.9", "c")]))
            }
            4 => Deleted("slices", "shop", name),
            5 | 6 => pod(name, &address),
            7 => Deleted("pods", "shop", name),
            _ => {
                let zone = NAMES[random.random_range(0..3)];
                node(json!({"topology.kubernetes.io/zone": zone}), json!([]))
            }
        });
    }
    changes
}

/// Returns the objects that remain after `changes`, each in its last version.
fn net_changes(changes: &[Arrives]) -> Vec<Arrives> {
    let mut remaining: Vec<((&str, String), Arrives)> = Vec::new();
    for change in changes {
        let (kind, value) = match change {
            Arrives::Service(value) => ("services", value),
            Arrives::Slice(value) => ("slices", value),
            Arrives::Pod(value) => ("pods", value),
            Arrives::Node(value) => ("nodes", value),
            Arrives::Namespace(value) => ("namespaces", value),
            Deleted(kind, _, name) => {
                remaining.retain(|(key, _)| *key != (*kind, (*name).to_owned()));
                continue;
            }
            Listed(..) => continue,
        };
        let name = value["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        remaining.retain(|(key, _)| *key != (kind, name.clone()));
        remaining.push(((kind, name), change.clone()));
    }
    remaining.into_iter().map(|(_, change)| change).collect()
}

#[test]
fn contents_do_not_depend_on_the_history() {
    for seed in 0..300 {
        let mut random = StdRng::seed_from_u64(seed);
        let changes = random_changes(&mut random);

        // A long run whose contents are accumulated change by change.
        let mut long = index();
        apply(&mut long, Listed("pods", vec![]));
        let mut reported = Contents::default();
        for contents in apply_all(&mut long, changes.clone()).into_iter().flatten() {
            reported.services.extend(contents.services);
            reported.workloads = contents.workloads.or(reported.workloads);
        }
        reported.services.retain(|_, record| record.is_some());

        // A fresh start with the remaining objects, in any order.
        let mut remaining = net_changes(&changes);
        remaining.shuffle(&mut random);
        let mut fresh = index();
        apply(&mut fresh, Listed("pods", vec![]));
        for change in remaining {
            apply(&mut fresh, change);
        }
        let fresh = fresh.everything();
        assert_eq!(reported.services, fresh.services, "seed {seed}: {changes:#?}");
        let pods = |contents: &Contents| contents.workloads.clone().unwrap_or_default();
        assert_eq!(pods(&reported), pods(&fresh), "seed {seed}: {changes:#?}");
        let long = long.everything();
        assert_eq!(long.services, fresh.services, "seed {seed}");
    }
}

#[test]
fn deleted_objects_leave_no_state() {
    for seed in 0..50 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut index = index();
        for change in random_changes(&mut random) {
            apply(&mut index, change);
        }
        for kind in ["services", "slices", "pods", "nodes", "namespaces"] {
            apply(&mut index, Listed(kind, vec![]));
        }
        assert!(index.everything().services.is_empty());
        assert!(index.is_bare(), "seed {seed}: {index:?}");
        index.everything();
        assert_eq!(index.scope().value_count(), 0, "seed {seed}: unused texts");
    }
}

#[test]
fn duplicates_and_unknown_deletions_change_nothing() {
    let mut index = index();
    let all = apply_all(
        &mut index,
        [
            Deleted("services", "shop", "cart"),
            Deleted("slices", "shop", "cart-a"),
            Deleted("pods", "shop", "p"),
            cart(),
            cart(),
            Deleted("services", "shop", "cart"),
            Deleted("services", "shop", "cart"),
        ],
    );
    let has_report: Vec<bool> = all.iter().map(Option::is_some).collect();
    assert_eq!(has_report, [false, false, false, true, false, true, false]);
}
