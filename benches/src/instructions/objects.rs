//! Objects in the form that an API server sends: watch events in JSON and in protobuf.

use serde_json::{Value, json};

/// The namespace of all objects.
pub(crate) const NAMESPACE: &str = "shop";

/// A Service, in JSON.
pub(crate) fn service(number: usize) -> Vec<u8> {
    let name = service_name(number);
    let address = format!("10.96.{}.{}", number / 250 % 250, number % 250 + 1);
    event(&json!({
        "metadata": {"name": name, "namespace": NAMESPACE, "resourceVersion": "1"},
        "spec": {
            "clusterIP": address,
            "clusterIPs": [address],
            "selector": {"app": name},
            "ports": [{"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP"}],
            "type": "ClusterIP",
        },
    }))
}

/// The Pod of an endpoint, in JSON.
pub(crate) fn pod(service: usize, number: usize, salt: usize) -> Vec<u8> {
    let address = address(number, salt);
    event(&json!({
        "metadata": {
            "name": pod_name(service, number),
            "namespace": NAMESPACE,
            "resourceVersion": "1",
            "labels": {"app": service_name(service), "security.istio.io/tlsMode": "istio"},
            "ownerReferences": [
                {"kind": "ReplicaSet", "name": service_name(service), "controller": true},
            ],
        },
        "spec": {"serviceAccountName": service_name(service), "nodeName": node(number)},
        "status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]},
    }))
}

/// An EndpointSlice of `count` endpoints, in JSON. Another `salt` gives other addresses.
pub(crate) fn slice(service: usize, count: usize, salt: usize) -> Vec<u8> {
    let endpoint = |number: usize| {
        let pod = pod_name(service, number);
        json!({
            "addresses": [address(number, salt)],
            "conditions": {"ready": true, "serving": true, "terminating": false},
            "nodeName": node(number),
            "zone": zone(number),
            "targetRef": {"kind": "Pod", "name": pod, "namespace": NAMESPACE, "uid": format!("u-{pod}")},
        })
    };
    let service = service_name(service);
    event(&json!({
        "metadata": {
            "name": format!("{service}-0"),
            "namespace": NAMESPACE,
            "resourceVersion": "1",
            "uid": format!("u-{service}"),
            "labels": {"kubernetes.io/service-name": service},
            "managedFields": [{"manager": "kube-controller-manager", "operation": "Update"}],
        },
        "addressType": "IPv4",
        "endpoints": (0..count).map(endpoint).collect::<Vec<_>>(),
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    }))
}

fn event(object: &Value) -> Vec<u8> {
    format!("{{\"type\":\"MODIFIED\",\"object\":{object}}}\n").into_bytes()
}

/// The EndpointSlice of [`slice()`] in protobuf. Field numbers:
/// k8s.io/api/discovery/v1/generated.proto.
pub(crate) fn slice_in_protobuf(service: usize, count: usize, salt: usize) -> Vec<u8> {
    let service_name = service_name(service);
    let label = [text(1, "kubernetes.io/service-name"), text(2, &service_name)].concat();
    let managed = [text(1, "kube-controller-manager"), text(2, "Update")].concat();
    let metadata = [
        text(1, &format!("{service_name}-0")),
        text(3, NAMESPACE),
        text(5, &format!("u-{service_name}")),
        text(6, "1"),
        field(11, &label),
        field(17, &managed),
    ];
    let mut slice = field(1, &metadata.concat());
    for number in 0..count {
        let pod = pod_name(service, number);
        let target =
            [text(1, "Pod"), text(2, NAMESPACE), text(3, &pod), text(4, &format!("u-{pod}"))];
        let endpoint = [
            text(1, &address(number, salt)),
            field(2, &[count_of(1, 1), count_of(2, 1), count_of(3, 0)].concat()),
            field(4, &target.concat()),
            text(6, &node(number)),
            text(7, &zone(number)),
        ];
        slice.extend(field(2, &endpoint.concat()));
    }
    slice.extend(field(3, &[text(1, "http"), text(2, "TCP"), count_of(3, 8080)].concat()));
    slice.extend(text(4, "IPv4"));

    let kind = [text(1, "discovery.k8s.io/v1"), text(2, "EndpointSlice")].concat();
    event_in_protobuf(&[&b"k8s\0"[..], &field(1, &kind), &field(2, &slice)].concat())
}

/// A numbered Pod (up to 1,000), in protobuf: a Pod that a real API server wrote, with a name and
/// an address of the same length.
pub(crate) fn real_pod(number: usize) -> Vec<u8> {
    let real = include_bytes!("../../../sim/src/protobuf/real/pod.protobuf");
    let [a, b, c] = [number / 100 % 10, number / 10 % 10, number % 10];
    let mut pod = real.to_vec();
    for (from, to) in [("cart-1", format!("ca-{a}{b}{c}")), ("10.0.0.1", format!("10.{a}.{b}.{c}"))]
    {
        for at in 0..pod.len() - from.len() {
            if pod[at..].starts_with(from.as_bytes()) {
                pod[at..at + from.len()].copy_from_slice(to.as_bytes());
            }
        }
    }
    event_in_protobuf(&pod)
}

/// `WatchEvent { type, object: RawExtension { raw: "k8s\0" Unknown { typeMeta, raw } } }`
fn event_in_protobuf(object: &[u8]) -> Vec<u8> {
    let event = [text(1, "MODIFIED"), field(2, &field(1, object))].concat();
    let length = u32::try_from(event.len()).expect("an object is short");
    [&length.to_be_bytes(), &*event].concat()
}

fn text(number: u32, text: &str) -> Vec<u8> {
    field(number, text.as_bytes())
}

fn field(number: u32, content: &[u8]) -> Vec<u8> {
    let mut field = Vec::new();
    prost::encoding::encode_varint(u64::from(number) << 3 | 2, &mut field);
    prost::encoding::encode_varint(content.len() as u64, &mut field);
    field.extend_from_slice(content);
    field
}

fn count_of(number: u32, value: u64) -> Vec<u8> {
    let mut field = Vec::new();
    prost::encoding::encode_varint(u64::from(number) << 3, &mut field);
    prost::encoding::encode_varint(value, &mut field);
    field
}

/// The name of a Service.
pub(crate) fn service_name(number: usize) -> String {
    format!("s{number}")
}

pub(crate) fn pod_name(service: usize, number: usize) -> String {
    format!("{}-7d8b9c6f5-{number:05x}", service_name(service))
}

fn address(number: usize, salt: usize) -> String {
    format!("10.{}.{}.{}", salt % 200, number / 250, number % 250 + 1)
}

fn node(number: usize) -> String {
    format!("node-{}", number % 10)
}

fn zone(number: usize) -> String {
    format!("zone-{}", number % 3)
}
