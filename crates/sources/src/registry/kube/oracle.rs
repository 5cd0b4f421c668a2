//! The oracle of the decoders: random objects, which must have the same meaning in JSON, in
//! protobuf and after a full decode. Tests and fuzzers supply the random numbers.

use k8s_openapi::api::core::v1::{Namespace, Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, RngCore};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::offline::Offline;
use super::offline::OfflineResponse::List;
use strait_kube_client::Encoding::{Json, Protobuf};
use strait_model::registry::Contents;

/// The fields of a message: name in JSON, number, type.
pub(super) type Schema = &'static [(&'static str, u32, OracleState)];

pub(super) enum OracleState {
    Text,
    Number,
    Flag,
    Texts,
    Pairs,
    Nested(Schema),
    Many(Schema),
    /// Seconds in a message, RFC 3339 in JSON.
    Time,
    NumberOrText,
}
use OracleState::{Flag, Many, Nested, Number, NumberOrText, Pairs, Text, Texts, Time};

const META: Schema = &[
    ("name", 1, Text),
    ("generateName", 2, Text),
    ("namespace", 3, Text),
    ("uid", 5, Text),
    ("resourceVersion", 6, Text),
    ("generation", 7, Number),
    ("creationTimestamp", 8, Time),
    ("labels", 11, Pairs),
    ("annotations", 12, Pairs),
    ("finalizers", 14, Texts),
];
const SLICE: Schema = &[
    ("metadata", 1, Nested(META)),
    ("addressType", 4, Text),
    (
        "endpoints",
        2,
        Many(&[
            ("addresses", 1, Texts),
            ("hostname", 3, Text),
            ("nodeName", 6, Text),
            ("zone", 7, Text),
            (
                "conditions",
                2,
                Nested(&[("ready", 1, Flag), ("serving", 2, Flag), ("terminating", 3, Flag)]),
            ),
            (
                "targetRef",
                4,
                Nested(&[
                    ("kind", 1, Text),
                    ("namespace", 2, Text),
                    ("name", 3, Text),
                    ("uid", 4, Text),
                ]),
            ),
        ]),
    ),
    (
        "ports",
        3,
        Many(&[
            ("name", 1, Text),
            ("protocol", 2, Text),
            ("port", 3, Number),
            ("appProtocol", 4, Text),
        ]),
    ),
];
const CONTAINER: Schema = &[
    ("name", 1, Text),
    ("image", 2, Text),
    ("command", 3, Texts),
    ("restartPolicy", 24, Text),
    ("ports", 6, Many(&[("name", 1, Text), ("hostPort", 2, Number), ("containerPort", 3, Number)])),
];
pub(super) const POD: Schema = &[
    ("metadata", 1, Nested(META)),
    (
        "spec",
        2,
        Nested(&[
            ("containers", 2, Many(CONTAINER)),
            ("initContainers", 20, Many(CONTAINER)),
            ("serviceAccountName", 8, Text),
            ("nodeName", 10, Text),
            ("hostname", 16, Text),
            ("subdomain", 17, Text),
            ("hostNetwork", 11, Flag),
        ]),
    ),
    (
        "status",
        3,
        Nested(&[
            ("phase", 1, Text),
            ("message", 3, Text),
            ("hostIP", 5, Text),
            ("podIP", 6, Text),
            ("podIPs", 12, Many(&[("ip", 1, Text)])),
        ]),
    ),
];
const SERVICE: Schema = &[
    ("metadata", 1, Nested(META)),
    (
        "spec",
        2,
        Nested(&[
            (
                "ports",
                1,
                Many(&[
                    ("name", 1, Text),
                    ("protocol", 2, Text),
                    ("port", 3, Number),
                    ("targetPort", 4, NumberOrText),
                    ("nodePort", 5, Number),
                    ("appProtocol", 6, Text),
                ]),
            ),
            ("selector", 2, Pairs),
            ("clusterIP", 3, Text),
            ("type", 4, Text),
            ("externalIPs", 5, Texts),
            ("sessionAffinity", 7, Text),
            ("externalName", 10, Text),
            ("publishNotReadyAddresses", 13, Flag),
            (
                "sessionAffinityConfig",
                14,
                Nested(&[("clientIP", 1, Nested(&[("timeoutSeconds", 1, Number)]))]),
            ),
            ("clusterIPs", 18, Texts),
            ("internalTrafficPolicy", 22, Text),
            ("externalTrafficPolicy", 11, Text),
        ]),
    ),
    (
        "status",
        3,
        Nested(&[(
            "loadBalancer",
            1,
            Nested(&[("ingress", 1, Many(&[("ip", 1, Text), ("hostname", 2, Text)]))]),
        )]),
    ),
];
const NODE: Schema = &[
    ("metadata", 1, Nested(META)),
    ("spec", 2, Nested(&[("podCIDR", 1, Text), ("podCIDRs", 7, Texts)])),
    ("status", 3, Nested(&[("addresses", 5, Many(&[("type", 1, Text), ("address", 2, Text)]))])),
];
const NAMESPACE: Schema = &[("metadata", 1, Nested(META))];

fn varint(mut number: u64, to: &mut Vec<u8>) {
    while number >= 0x80 {
        to.push(u8::try_from(number & 0x7f).expect("seven bits") | 0x80);
        number >>= 7;
    }
    to.push(u8::try_from(number).expect("seven bits"));
}

pub(super) fn field(number: u32, bytes: &[u8]) -> Vec<u8> {
    let mut field = Vec::new();
    varint(u64::from(number) << 3 | 2, &mut field);
    varint(bytes.len().try_into().expect("short"), &mut field);
    field.extend_from_slice(bytes);
    field
}

pub(super) fn count(number: u32, value: i64) -> Vec<u8> {
    let mut field = Vec::new();
    varint(u64::from(number) << 3, &mut field);
    varint(value.cast_unsigned(), &mut field);
    field
}

/// Encodes JSON as protobuf: fields in any order, and some unknown ones.
pub(super) fn message(value: &Value, schema: Schema, random: &mut dyn RngCore) -> Vec<u8> {
    let mut fields: Vec<Vec<u8>> = Vec::new();
    for (name, number, holds) in schema {
        let Some(value) = value.get(name) else { continue };
        let text = |value: &Value| value.as_str().expect("text").as_bytes().to_vec();
        match holds {
            Text => fields.push(field(*number, &text(value))),
            Number => fields.push(count(*number, value.as_i64().expect("a number"))),
            Flag => fields.push(count(*number, i64::from(value.as_bool().expect("a flag")))),
            Time => {
                let time: jiff::Timestamp = value.as_str().expect("text").parse().expect("a time");
                fields.push(field(*number, &count(1, time.as_second())));
            }
            NumberOrText => {
                let parts = match value {
                    Value::String(name) => [count(1, 1), count(2, 0), field(3, name.as_bytes())],
                    number => {
                        let number = number.as_i64().expect("a number");
                        [count(1, 0), count(2, number), field(3, b"")]
                    }
                };
                fields.push(field(*number, &parts.concat()));
            }
            Nested(schema) => fields.push(field(*number, &message(value, schema, random))),
            // The order of these fields matters: they stay together.
            Texts => {
                let all = value.as_array().expect("a list").iter();
                fields.push(all.flat_map(|value| field(*number, &text(value))).collect());
            }
            Many(schema) => {
                let all = value.as_array().expect("a list").iter();
                let all = all.flat_map(|value| field(*number, &message(value, schema, random)));
                fields.push(all.collect());
            }
            Pairs => {
                fields.extend(value.as_object().expect("a map").iter().map(|(name, value)| {
                    field(*number, &[field(1, name.as_bytes()), field(2, &text(value))].concat())
                }));
            }
        }
    }
    for _ in 0..random.random_range(0..3) {
        fields.push(match random.random_range(0..4) {
            0 => field(900, b"\xff\x00 what is this"),
            1 => count(901, random.random()),
            2 => [&[0b1010_0001, 0x3f][..], &[7; 8]].concat(),
            _ => [&[0b1010_0101, 0x3f][..], &[7; 4]].concat(),
        });
    }
    fields.shuffle(random);
    // As Go usually encodes them. All known field numbers have a key with a different first byte.
    if random.random() {
        fields.sort_by_key(|field| field.first().copied());
    }
    fields.concat()
}

pub(super) fn wrapped(kind: &str, raw: &[u8]) -> Vec<u8> {
    let types = [field(1, b"v1"), field(2, kind.as_bytes())].concat();
    [&b"k8s\0"[..], &field(1, &types), &field(2, raw), &field(3, b""), &field(4, b"")].concat()
}

pub(super) fn protobuf_list(
    objects: &[Value],
    schema: Schema,
    random: &mut dyn RngCore,
) -> Vec<u8> {
    let mut raw = field(1, &[field(1, b""), field(2, b"7"), field(3, b"")].concat());
    raw.extend(objects.iter().flat_map(|object| field(2, &message(object, schema, random))));
    wrapped("ThingList", &raw)
}

fn json_list(objects: &[Value]) -> Vec<u8> {
    let list = json!({"kind": "ThingList", "metadata": {"resourceVersion": "7"}, "items": objects});
    list.to_string().into_bytes()
}

/// Decodes objects completely, with the usual library, and encodes the result.
fn in_full<T: DeserializeOwned + Serialize>(objects: &[Value]) -> Vec<Value> {
    let decoded = objects.iter().map(|object| {
        let full: T = serde_json::from_value(object.clone()).expect("a good object");
        serde_json::to_value(full).expect("it can be written")
    });
    decoded.collect()
}

/// Adds a value that is sometimes omitted.
fn maybe(object: &mut Value, name: &str, value: Value, random: &mut dyn RngCore) {
    if random.random_bool(0.7) {
        object[name] = value;
    }
}

fn pick<'a>(random: &mut dyn RngCore, choices: &[&'a str]) -> &'a str {
    choices.choose(random).expect("not empty")
}

fn address(random: &mut dyn RngCore) -> &'static str {
    pick(random, &["10.1.0.1", "10.1.0.2", "10.1.0.3", "fd00::1"])
}

fn map(random: &mut dyn RngCore) -> Value {
    let names = [
        "app",
        "topology.istio.io/network",
        "security.istio.io/tlsMode",
        "istio-locality",
        "ü/\"x\\",
        "topology.kubernetes.io/zone",
        "topology.kubernetes.io/region",
        "istio.io/persistent-session",
    ];
    let values = ["", "cart", "istio", "a.b.c", "n1", "\u{1f600}\n"];
    let count = random.random_range(0..4);
    let pairs = (0..count).map(|_| (pick(random, &names).to_owned(), json!(pick(random, &values))));
    Value::Object(pairs.collect::<Map<_, _>>())
}

fn meta(random: &mut dyn RngCore, name: &str) -> Value {
    let mut meta = json!({"name": name, "namespace": "shop"});
    maybe(&mut meta, "labels", map(random), random);
    let mut annotations = json!({"kubectl.kubernetes.io/last-applied-configuration": "{\"a\":[]}"});
    maybe(&mut annotations, "networking.istio.io/exportTo", json!("., bank"), random);
    maybe(&mut annotations, "alpha.istio.io/kubernetes-serviceaccounts", json!("a,b"), random);
    maybe(&mut meta, "annotations", annotations, random);
    maybe(&mut meta, "creationTimestamp", json!("2026-01-01T00:00:10Z"), random);
    maybe(&mut meta, "uid", json!("u"), random);
    maybe(&mut meta, "generation", json!(random.random_range(0..1_000_000)), random);
    maybe(&mut meta, "finalizers", json!(["x/y"]), random);
    meta
}

fn containers(random: &mut dyn RngCore) -> Value {
    let count = random.random_range(0..3);
    let all = (0..count).map(|number| {
        let mut container = json!({"name": format!("c{number}")});
        let mut port = json!({"containerPort": random.random_range(0..70_000)});
        maybe(&mut port, "name", json!(pick(random, &["web", "admin"])), random);
        maybe(&mut container, "ports", json!([port, {"containerPort": 9}]), random);
        let policy = json!(pick(random, &["Always", "Never"]));
        maybe(&mut container, "restartPolicy", policy, random);
        container
    });
    all.collect()
}

fn a_pod(random: &mut dyn RngCore, name: &str) -> Value {
    let mut spec = json!({"containers": containers(random)});
    maybe(&mut spec, "initContainers", containers(random), random);
    maybe(&mut spec, "nodeName", json!(pick(random, &["node-1", "node-2"])), random);
    maybe(&mut spec, "hostname", json!(pick(random, &["", name])), random);
    maybe(&mut spec, "subdomain", json!(pick(random, &["", "cart"])), random);
    maybe(&mut spec, "serviceAccountName", json!(pick(random, &["", "cart"])), random);
    let mut status = json!({});
    maybe(&mut status, "phase", json!(pick(random, &["Running", "Failed", "Pending"])), random);
    maybe(&mut status, "podIP", json!(address(random)), random);
    let ips = json!([{"ip": address(random)}, {"ip": address(random)}]);
    maybe(&mut status, "podIPs", ips, random);
    json!({"metadata": meta(random, name), "spec": spec, "status": status})
}

fn a_slice(random: &mut dyn RngCore, name: &str) -> Value {
    let count = random.random_range(0..4);
    let endpoints = (0..count).map(|_| {
        let mut endpoint = json!({"addresses": [address(random), "10.9.9.9"]});
        let mut conditions = json!({});
        for condition in ["ready", "serving", "terminating"] {
            let value = json!(random.random_bool(0.5));
            maybe(&mut conditions, condition, value, random);
        }
        maybe(&mut endpoint, "conditions", conditions, random);
        let mut target = json!({"name": pick(random, &["a", "b", "c"])});
        maybe(&mut target, "kind", json!(pick(random, &["Pod", "Node"])), random);
        maybe(&mut target, "namespace", json!(pick(random, &["shop", "other", ""])), random);
        maybe(&mut endpoint, "targetRef", target, random);
        maybe(&mut endpoint, "nodeName", json!(pick(random, &["node-1", "node-2"])), random);
        maybe(&mut endpoint, "zone", json!(pick(random, &["z1", "z2"])), random);
        maybe(&mut endpoint, "hostname", json!(pick(random, &["cart-0", "a.b"])), random);
        endpoint
    });
    let endpoints: Vec<Value> = endpoints.collect();
    let mut port = json!({"name": pick(random, &["http", ""])});
    maybe(&mut port, "port", json!(random.random_range(1..65_536)), random);
    let mut metadata = meta(random, name);
    metadata["labels"]["kubernetes.io/service-name"] = json!("cart");
    let kind = pick(random, &["IPv4", "IPv6"]);
    json!({"metadata": metadata, "addressType": kind, "endpoints": endpoints, "ports": [port]})
}

fn a_service(random: &mut dyn RngCore, name: &str) -> Value {
    let mut port = json!({"port": random.random_range(1..65_536)});
    maybe(&mut port, "name", json!(pick(random, &["http", "grpc-x", ""])), random);
    let target =
        if random.random_bool(0.5) { json!("web") } else { json!(random.random_range(0..65_536)) };
    maybe(&mut port, "targetPort", target, random);
    maybe(&mut port, "nodePort", json!(random.random_range(0..65_536)), random);
    maybe(&mut port, "protocol", json!(pick(random, &["TCP", "UDP"])), random);
    maybe(&mut port, "appProtocol", json!(pick(random, &["http", "kubernetes.io/h2c"])), random);
    let mut spec = json!({"ports": [port]});
    maybe(&mut spec, "selector", map(random), random);
    let kind = pick(random, &["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"]);
    maybe(&mut spec, "type", json!(kind), random);
    maybe(&mut spec, "externalName", json!("Example.com."), random);
    maybe(&mut spec, "clusterIP", json!(pick(random, &["10.96.0.1", "None", ""])), random);
    maybe(&mut spec, "clusterIPs", json!(["10.96.0.1", "fd00::9"]), random);
    maybe(&mut spec, "externalIPs", json!(["192.0.2.1"]), random);
    maybe(&mut spec, "sessionAffinity", json!(pick(random, &["ClientIP", "None"])), random);
    let affinity = json!({"clientIP": {"timeoutSeconds": random.random_range(0..90)}});
    maybe(&mut spec, "sessionAffinityConfig", affinity, random);
    maybe(&mut spec, "internalTrafficPolicy", json!(pick(random, &["Local", "Cluster"])), random);
    maybe(&mut spec, "externalTrafficPolicy", json!(pick(random, &["Local", "Cluster"])), random);
    maybe(&mut spec, "publishNotReadyAddresses", json!(random.random_bool(0.5)), random);
    let ingress = json!([{"ip": "192.0.2.7"}, {"hostname": "lb.example"}]);
    let mut status = json!({"loadBalancer": {}});
    maybe(&mut status["loadBalancer"], "ingress", ingress, random);
    json!({"metadata": meta(random, name), "spec": spec, "status": status})
}

fn a_node(random: &mut dyn RngCore, name: &str) -> Value {
    let mut metadata = meta(random, name);
    metadata.as_object_mut().expect("a map").remove("namespace");
    let kind = pick(random, &["ExternalIP", "InternalIP"]);
    let addresses = json!([{"type": kind, "address": address(random)}]);
    let mut spec = json!({});
    maybe(&mut spec, "podCIDR", json!(pick(random, &["10.0.1.0/24", "none", ""])), random);
    maybe(&mut spec, "podCIDRs", json!(["10.0.1.0/24", "fd00::/80"]), random);
    json!({"metadata": metadata, "spec": spec, "status": {"addresses": addresses}})
}

/// Encodes a list of objects; the second argument are the completely decoded objects.
type Write<'a> = dyn FnMut(&[Value], &[Value], Schema) -> Vec<u8> + 'a;

/// Creates the objects of a small cluster, and compares all ways to read them.
///
/// # Panics
/// Panics if they differ.
pub fn json_protobuf_and_a_full_decode_agree(random: &mut dyn RngCore) {
    let random_objects =
        |random: &mut dyn RngCore, names: &[&str], make: fn(&mut dyn RngCore, &str) -> Value| {
            names.iter().map(|name| make(random, name)).collect::<Vec<Value>>()
        };
    let nodes = random_objects(random, &["node-1", "node-2"], a_node);
    let pods = random_objects(random, &["a", "b", "c"], a_pod);
    let slices = random_objects(random, &["cart-1", "cart-2"], a_slice);
    let services = random_objects(random, &["cart"], a_service);
    let namespaces = random_objects(
        random,
        &["strait-system"],
        |random, name| json!({"metadata": a_node(random, name)["metadata"]}),
    );
    let kinds: [(&str, &[Value], Vec<Value>, Schema); 5] = [
        ("nodes", &nodes, in_full::<Node>(&nodes), NODE),
        ("namespaces", &namespaces, in_full::<Namespace>(&namespaces), NAMESPACE),
        ("pods", &pods, in_full::<Pod>(&pods), POD),
        ("endpointslices", &slices, in_full::<EndpointSlice>(&slices), SLICE),
        ("services", &services, in_full::<Service>(&services), SERVICE),
    ];
    let lists = |encoding, list: &mut Write<'_>| {
        let all: Vec<_> = kinds
            .iter()
            .map(|(kind, plain, full, schema)| (*kind, List, encoding, list(plain, full, schema)))
            .collect();
        let mut cluster = Offline::new(100);
        for (kind, response, encoding, bytes) in &all {
            cluster.take(kind, *response, *encoding, bytes).expect("a good answer");
        }
        (cluster.skipped().count, cluster.everything())
    };
    let (invalid, slim) = lists(Json, &mut |plain, _, _| json_list(plain));
    let (full_invalid, full) = lists(Json, &mut |_, full, _| json_list(full));
    let (binary_invalid, binary) =
        lists(Protobuf, &mut |plain, _, schema| protobuf_list(plain, schema, random));
    assert_same(&slim, &full, "a full decode");
    assert_same(&slim, &binary, "protobuf");
    assert_eq!((invalid, invalid), (full_invalid, binary_invalid));
}

pub(super) fn assert_same(left: &Contents, right: &Contents, context: &str) {
    assert_eq!(left.services, right.services, "{context}");
    assert_eq!(left.workloads, right.workloads, "{context}");
    assert_eq!(left.network_label, right.network_label, "{context}");
}
