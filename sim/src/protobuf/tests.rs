use serde_json::json;

use super::*;
use crate::objects::{self, Endpoint, HTTP};
use crate::weight;

macro_rules! real {
    ($($name:literal),*) => {
        [$((
            $name,
            &include_bytes!(concat!("real/", $name, ".json"))[..],
            &include_bytes!(concat!("real/", $name, ".protobuf"))[..],
        )),*]
    };
}

fn named(object: &Value) -> &'static Message {
    let text = |field: &str| object[field].as_str().expect("the object has its kind");
    Message::named(text("apiVersion"), text("kind")).expect("a row of the table")
}

/// Removes empty values, which protobuf can't distinguish from absent ones.
fn without_nothings(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.iter().map(|(key, value)| (key.clone(), without_nothings(value)));
            kept.filter(|(_, value)| !is_zero(value)).collect()
        }
        Value::Array(items) => items.iter().map(without_nothings).collect(),
        value => value.clone(),
    }
}

fn same_both_ways(object: &Value) {
    let body = envelope(
        object["apiVersion"].as_str().unwrap(),
        object["kind"].as_str().unwrap(),
        &encode(named(object), object),
    );
    let read = open(&body).expect("the encoded object is readable");
    assert_eq!(without_nothings(&read), without_nothings(object));
}

#[test]
fn objects_survive_a_round_trip_through_protobuf() {
    let endpoint = Endpoint::new("10.0.0.1").with_pod("cart-1");
    same_both_ways(&weight::pod(objects::pod("shop", "cart-1", "cart", "10.0.0.1", "n1")));
    same_both_ways(&weight::service(objects::service("shop", "cart", "10.96.0.1", &[HTTP])));
    same_both_ways(&weight::node(objects::node("n1", "r1", "r1a")));
    same_both_ways(&weight::endpoint_slice(objects::endpoint_slice(
        "shop",
        "cart",
        "cart-1",
        &[HTTP],
        &[endpoint],
    )));
    same_both_ways(&objects::namespace("shop"));
    same_both_ways(&objects::gateway_service("istio-system", "n1", "10.96.0.9", "198.18.0.1"));
    same_both_ways(&json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}, "data": {"k": "AAEC/w=="}, "type": "Opaque",
    }));
    same_both_ways(&json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "a"},
        "spec": {"holderIdentity": "me", "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.123456Z"},
    }));
}

/// `real/` contains objects as kube-apiserver 1.36 sent them, in both forms.
#[test]
fn encoding_equals_that_of_a_real_server() {
    let cases: [(&str, &[u8], &[u8]); 9] = real!(
        "configmap",
        "lease",
        "namespace",
        "node",
        "pod",
        "secret",
        "service",
        "slice",
        "status"
    );
    for (name, json, real) in cases {
        let object: Value = serde_json::from_slice(json).unwrap();
        let text = |field: &str| object[field].as_str().unwrap();
        let ours = envelope(text("apiVersion"), text("kind"), &encode(named(&object), &object));
        let read = open(real).expect(name);
        assert_eq!(without_nothings(&read), without_nothings(&object), "{name}");
        assert_eq!(ours, real, "{name}");
    }
}

#[test]
fn special_json_forms_survive_a_round_trip() {
    // Inlined fields, quantities, negative numbers and ports.
    same_both_ways(&json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "deletionGracePeriodSeconds": -1},
        "spec": {
            "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Gi"}}],
            "containers": [{
                "name": "c",
                "resources": {"limits": {"cpu": "100m"}},
                "env": [{"name": "E", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
                "readinessProbe": {"httpGet": {"path": "/", "port": "http"}, "periodSeconds": 2},
            }],
        },
    }));
}

#[test]
fn invalid_bodies_are_refused() {
    let good =
        envelope("v1", "Namespace", &encode(Message::called("Namespace").unwrap(), &json!({})));
    assert!(open(&good).is_some());
    for end in 0..21 {
        assert!(open(&good[..end]).is_none(), "{end}");
    }
    assert!(open(b"{}").is_none());
    assert!(open(&envelope("v1", "Unheard", b"")).is_none());
    assert!(
        open(&envelope("v1", "Namespace", b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"))
            .is_none()
    );
}

#[test]
fn custom_kinds_with_a_built_in_name_have_no_protobuf() {
    assert!(Message::named("networking.k8s.io/v1", "Ingress").is_some());
    assert!(Message::named("gateway.networking.k8s.io/v1", "Ingress").is_none());
    assert!(Message::named("example.org/v1", "Service").is_none());
}
