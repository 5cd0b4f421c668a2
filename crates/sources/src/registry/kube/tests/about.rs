//! Tests of the namespaces of the mesh, the readiness of pods, and declared gateways.

use std::sync::Arc;

use serde_json::{Value, json};

use super::values::{Arrives, apply, index};
use crate::registry::kube::index::{IndexedObject, KubeIndex, ReadKind};
use crate::registry::kube::workload_entry::WorkloadEntryRecord;
use strait_kube_client::WatchEvent;
use strait_model::registry::Contents;
use strait_model::{DeclaredGateway, LabelSelector, NamespaceFilter, WorkloadKey};

fn namespace(name: &str, labels: Value) -> Arrives {
    Arrives::Namespace(json!({"metadata": {"name": name, "labels": labels}}))
}

fn service(namespace: &str) -> Arrives {
    Arrives::Service(json!({
        "metadata": {"namespace": namespace, "name": "cart"}, "spec": {"ports": [{"port": 80}]},
    }))
}

fn pod(namespace: &str, status: Value) -> Arrives {
    Arrives::Pod(json!({"metadata": {"namespace": namespace, "name": "cart-0"}, "status": status}))
}

/// Selects namespaces with the label `mesh: on`.
fn filter() -> Arc<NamespaceFilter> {
    let labels = [("mesh".into(), "on".into())].into();
    let selector = LabelSelector { labels, ..LabelSelector::default() };
    Arc::new(NamespaceFilter { selectors: vec![selector] })
}

/// Returns the reports about `shop`: its service and its pods.
fn shop(contents: Option<Contents>) -> (Option<bool>, Option<usize>) {
    let contents = contents.unwrap_or_default();
    let service = contents.services.get("cart.shop.svc.cluster.local").map(Option::is_some);
    (service, contents.workloads.map(|pods| pods.of_namespace("shop").count()))
}

#[test]
fn namespaces_enter_and_leave_the_mesh_with_their_labels_and_with_the_filter() {
    let mut index = index();
    let ip = || json!({"podIP": "10.0.0.1"});
    let system = namespace("strait-system", json!({"topology.istio.io/network": "n1"}));
    for arrives in [system, service("shop"), pod("shop", ip()), service("bank"), pod("bank", ip())]
    {
        apply(&mut index, arrives);
    }
    assert_eq!(
        index.everything().services.len(),
        2,
        "without a filter, all namespaces belong to the mesh"
    );
    let touched = index.filter(filter());
    let contents = index.contents(&touched);
    assert_eq!(shop(contents), (Some(false), Some(0)), "its labels are unknown");
    let mut apply = |arrives| {
        let touched = apply(&mut index, arrives);
        shop(index.contents(&touched))
    };
    assert_eq!(apply(namespace("shop", json!({"mesh": "on"}))), (Some(true), Some(1)));
    assert_eq!(apply(namespace("shop", json!({"mesh": "on", "a": "b"}))), (None, None));
    assert_eq!(apply(pod("shop", json!({"podIP": "10.0.0.2"}))), (None, Some(1)));
    assert_eq!(apply(pod("bank", json!({"podIP": "10.0.0.3"}))), (None, None));
    assert_eq!(apply(namespace("shop", json!({}))), (Some(false), Some(0)));
    let everything = index.everything();
    assert_eq!(everything.services.len(), 0);
    assert_eq!(everything.network_label, Some(Some("n1".into())), "read with any labels");
    let touched = index.filter(Arc::default());
    let contents = index.contents(&touched).expect("everything is back");
    assert_eq!(contents.services.len(), 2);
    assert_eq!(contents.workloads.map(|pods| pods.len()), Some(2));
}

#[test]
fn pods_with_an_address_that_receive_no_traffic_are_reported() {
    let mut index = index();
    let ready = |status: &str| {
        json!({"podIP": "10.0.0.1", "conditions": [
        {"type": "Initialized", "status": "False"}, {"type": "Ready", "status": status}]})
    };
    let cases = [
        (json!({"podIP": "10.0.0.1"}), true),
        (ready("False"), false),
        (ready("True"), true),
        (ready("Unknown"), false),
        (json!({"conditions": [{"type": "Ready", "status": "False"}]}), true),
    ];
    for (status, expected) in cases {
        apply(&mut index, pod("shop", status.clone()));
        let facts = index.everything().facts.expect("said");
        assert_eq!(facts.is_ready(&WorkloadKey::new("shop", "cart-0")), expected, "{status}");
    }
    apply(&mut index, pod("shop", ready("False")));
    apply(&mut index, Arrives::Deleted("pods", "shop", "cart-0"));
    assert!(index.is_bare() && index.everything().facts.expect("said").unready.is_empty());
    let leaving = json!({"metadata": {"namespace": "shop", "name": "cart-0",
        "deletionTimestamp": "2026-01-01T00:00:00Z"}, "status": ready("True")});
    apply(&mut index, Arrives::Pod(leaving));
    assert_eq!(index.everything().facts.expect("said").unready.len(), 1);
}

fn gateways(index: &mut KubeIndex, labels: Value, spec: Value) -> Vec<DeclaredGateway> {
    let object =
        json!({"metadata": {"namespace": "shop", "name": "gw", "labels": labels}, "spec": spec});
    let json = object.to_string();
    let form = serde_json::from_str(&json).expect("a well-formed object");
    let object = DeclaredGateway::convert(form, index.scope());
    index.apply(WatchEvent::Applied(object));
    index.everything().facts.expect("said").gateways.values().cloned().collect()
}

#[test]
fn declared_gateway_has_the_passthrough_listeners_and_is_removed_with_its_label() {
    let mut index = index();
    let labels =
        json!({"topology.istio.io/network": "n2", "networking.istio.io/gatewayPort": "444"});
    let tls = |port: u16, options: Value| json!({"port": port, "protocol": "TLS", "tls": {"mode": "Passthrough", "options": options}});
    let spec = json!({
        "gatewayClassName": "istio",
        "addresses": [{"value": "192.0.2.1"}, {"type": "Hostname", "value": "GW.example.com."},
            {"type": "NamedAddress", "value": "x"}],
        "listeners": [
            tls(15443, json!({})),
            tls(9443, json!({"gateway.istio.io/listener-protocol": "auto-passthrough"})),
            tls(444, json!(null)),
            {"port": 15008, "protocol": "HBONE"},
            {"port": 80, "protocol": "HTTP"},
        ],
    });
    let found = gateways(&mut index, labels, spec.clone());
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].network, "n2".into());
    let addresses: Vec<_> = found[0].addresses.iter().map(ToString::to_string).collect();
    assert_eq!(addresses, ["192.0.2.1", "gw.example.com"]);
    let entrances: Vec<_> = found[0].entrances.iter().copied().collect();
    assert_eq!(entrances, [(0, 15008), (444, 0), (9443, 0)]);
    assert!(
        gateways(&mut index, json!({}), spec).is_empty(),
        "without its label it is not a gateway"
    );
}

#[test]
fn machines_are_stored_unchanged_and_removed_by_a_list_without_them() {
    let mut index = index();
    let form = |address: &str, version: &str| {
        json!({
            "metadata": {"namespace": "shop", "name": "vm", "resourceVersion": version, "labels": {"app": "db"},
                "annotations": {"proxy.istio.io/health-checks-enabled": "true", "other": "x"}},
            "spec": {"address": address},
        })
        .to_string()
    };
    let apply = |index: &mut KubeIndex, object: &str| {
        let form = serde_json::from_str(object).expect("a well-formed object");
        let object = WorkloadEntryRecord::convert(form, index.scope());
        index.apply(WatchEvent::Applied(object)).is_empty()
    };
    assert!(!apply(&mut index, &form("10.7.0.1", "1")));
    assert!(apply(&mut index, &form("10.7.0.1", "2")), "the version has no effect");
    assert!(!apply(&mut index, &form("10.7.0.2", "3")));
    let entries = index.everything().facts.expect("said").entries;
    let entry = entries.values().next().expect("one");
    assert_eq!(entry["spec"], json!({"address": "10.7.0.2"}));
    assert_eq!(entry["metadata"]["labels"], json!({"app": "db"}));
    let annotations = json!({"proxy.istio.io/health-checks-enabled": "true"});
    assert_eq!(entry["metadata"]["annotations"], annotations);
    let none: WatchEvent<IndexedObject<WorkloadEntryRecord>> =
        WatchEvent::Restarted { objects: Vec::new(), invalid: Vec::new() };
    assert!(!index.apply(none).is_empty());
    assert!(index.everything().facts.expect("said").entries.is_empty());
}

#[test]
fn service_with_an_address_is_unserved_if_its_slices_list_no_endpoint_that_serves() {
    let mut index = index();
    let gateway = |selector: Value| {
        Arrives::Service(json!({
            "metadata": {"namespace": "edge", "name": "gw"},
            "spec": {"type": "LoadBalancer", "selector": selector, "ports": [{"port": 15443}]},
            "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.1"}]}},
        }))
    };
    let slice = |endpoints: Value| {
        let labels = json!({"kubernetes.io/service-name": "gw"});
        Arrives::Slice(json!({
            "metadata": {"namespace": "edge", "name": "gw-1", "labels": labels},
            "addressType": "IPv4", "ports": [{"port": 15443}], "endpoints": endpoints,
        }))
    };
    let pod = |conditions: Value| json!([{"addresses": ["10.0.0.1"], "conditions": conditions}]);
    let leaves =
        |serving: bool| pod(json!({"ready": false, "serving": serving, "terminating": true}));
    let labelled = || gateway(json!({"app": "gw"}));
    let mut unserved = |arrives: Arrives| {
        let touched = apply(&mut index, arrives);
        index.contents(&touched);
        let facts = index.everything().facts.unwrap_or_default();
        facts.unserved.contains(&WorkloadKey::new("edge", "gw"))
    };
    assert!(!unserved(labelled()), "no slice has been seen");
    assert!(!unserved(slice(pod(json!({"ready": true})))));
    assert!(unserved(slice(json!([]))), "Kubernetes keeps an empty slice");
    assert!(!unserved(slice(pod(json!({})))), "unknown means ready");
    assert!(unserved(slice(pod(json!({"ready": false})))));
    assert!(!unserved(slice(leaves(true))), "it still serves");
    assert!(unserved(slice(leaves(false))));
    assert!(!unserved(gateway(json!({}))), "without a selector, the address may be static");
    assert!(unserved(labelled()));
    assert!(!unserved(Arrives::Deleted("slices", "edge", "gw-1")));
    assert!(unserved(slice(json!([]))));
    assert!(!unserved(Arrives::Deleted("services", "edge", "gw")));
}

#[test]
fn unserved_service_is_reported_once_with_its_endpoints() {
    let mut index = index();
    let gateway = json!({
        "metadata": {"namespace": "edge", "name": "gw"},
        "spec": {"selector": {"app": "gw"}, "externalIPs": ["203.0.113.1"], "ports": [{"port": 15443}]},
    });
    let slice = |ready: bool| {
        Arrives::Slice(json!({
            "metadata": {"namespace": "edge", "name": "gw-1",
                         "labels": {"kubernetes.io/service-name": "gw"}},
            "addressType": "IPv4", "ports": [{"port": 15443}],
            "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": ready}}],
        }))
    };
    apply(&mut index, Arrives::Service(gateway));
    apply(&mut index, slice(true));
    index.everything();
    let mut reported = |ready: bool| {
        let touched = apply(&mut index, slice(ready));
        let contents = index.contents(&touched).unwrap_or_default();
        (contents.services.len(), contents.facts.map(|facts| facts.unserved.len()))
    };
    assert_eq!(reported(false), (1, Some(1)));
    assert_eq!(reported(false), (0, None));
    assert_eq!(reported(true), (1, Some(0)));
}
