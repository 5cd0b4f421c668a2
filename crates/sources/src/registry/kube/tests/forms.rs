//! Tests that JSON, protobuf and a full decode have equal results, and that invalid bytes have no
//! other effect.
//!
//! `tests/corpus/kubernetes` contains responses of kube-apiserver 1.36 with a few objects, in both
//! encodings.

use std::fs;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

use crate::registry::kube::offline::Offline;
use crate::registry::kube::offline::OfflineResponse::{self, List, Watch};
use crate::registry::kube::oracle::{
    self, POD, assert_same, count, field, message, protobuf_list, wrapped,
};
use strait_kube_client::Encoding::{self, Json, Protobuf};
use strait_model::registry::Contents;
use strait_model::{Health, PodState, Resolution};

const KINDS: [&str; 5] = ["nodes", "namespaces", "pods", "endpointslices", "services"];

fn recorded(kind: &str, response: OfflineResponse, encoding: Encoding) -> Vec<u8> {
    let response = if response == List { "list" } else { "watch" };
    let form = if encoding == Json { "json" } else { "pb" };
    let folder = strait_base::testing::repository().join("tests/corpus/kubernetes");
    fs::read(folder.join(format!("{kind}.{response}.{form}"))).expect("it is in the repository")
}

/// Returns the contents of a cluster after these responses.
fn cluster(piece: usize, answers: &[(&str, OfflineResponse, Encoding, Vec<u8>)]) -> Contents {
    let mut cluster = Offline::new(piece);
    for (kind, response, encoding, bytes) in answers {
        cluster.take(kind, *response, *encoding, bytes).expect("a good answer");
    }
    assert_eq!(cluster.skipped().count, 0, "{:?}", cluster.skipped());
    cluster.everything()
}

/// Three bytes of JSON, or two of protobuf, would expand to a hundred bytes each.
#[test]
fn object_with_an_endless_list_does_not_affect_others() {
    let json = |count: usize| {
        let ports = vec!["{}"; count].join(",");
        let service = |name: &str, ports: &str| {
            format!(
                r#"{{"metadata":{{"name":"{name}","namespace":"shop"}},"spec":{{"ports":[{ports}]}}}}"#
            )
        };
        let items = format!("{},{}", service("many", &ports), service("few", ""));
        format!(r#"{{"metadata":{{"resourceVersion":"7"}},"items":[{items}]}}"#).into_bytes()
    };
    let protobuf = |count: usize| {
        let name = |name: &str| [field(1, name.as_bytes()), field(3, b"shop")].concat();
        let service = |text: &str, ports: usize| {
            let ports = field(1, b"").repeat(ports);
            [field(1, &name(text)), field(2, &ports)].concat()
        };
        let items = [field(2, &service("many", count)), field(2, &service("few", 0))].concat();
        wrapped("ServiceList", &[field(1, &field(2, b"7")), items].concat())
    };
    for (encoding, bytes) in [(Json, json(10_001)), (Protobuf, protobuf(10_001))] {
        let mut cluster = Offline::new(usize::MAX);
        cluster.take("services", List, encoding, &bytes).expect("a list");
        let skipped = cluster.skipped();
        assert!(skipped.last.is_some_and(|last| last.contains("more than 10,000")), "{encoding:?}");
        assert_eq!(cluster.everything().services.len(), 1, "{encoding:?}");
    }
}

#[test]
fn event_is_read_to_its_end_in_any_encoding_of_its_object() {
    let slice = r#"{"metadata":{"name":"web-1","namespace":"shop","resourceVersion":"7"},"addressType":"IPv4",
        "endpoints":[],"ports":[]}"#;
    let plain: String = slice.split_whitespace().collect();
    let take = |line: String| {
        Offline::new(usize::MAX).take("endpointslices", Watch, Json, format!("{line}\n").as_bytes())
    };
    for object in [slice.replace('\n', " "), plain] {
        for valid in [
            format!(r#"{{"type":"ADDED","object":{object}}}"#),
            format!(r#"{{"type":"MODIFIED","object":{object} }}"#),
            format!(r#"{{"object":{object},"type":"MODIFIED"}}"#),
            format!(r#"{{"type":"ADDED","object":{object},"more":1}}"#),
        ] {
            assert!(take(valid.clone()).is_ok(), "{valid}");
        }
        for invalid in [
            format!(r#"{{"type":"ADDEDX","object":{object}}}"#),
            format!(r#"{{"type":"ADDED","object":{object}}}x"#),
            format!(r#"{{"type":"ADDED","object":{object}}}}}"#),
            format!(r#"{{"type":"ADDED","object":{object}"#),
            format!(r#"{{"type":"ADDED","object":{object},"object":{object}}}"#),
        ] {
            assert!(take(invalid.clone()).is_err(), "{invalid}");
        }
    }
}

#[test]
fn responses_of_a_real_api_server_are_equal_in_both_encodings() {
    let all = |response, encoding, piece| {
        cluster(
            piece,
            &KINDS.map(|kind| (kind, response, encoding, recorded(kind, response, encoding))),
        )
    };
    let listed = all(List, Json, usize::MAX);
    assert_same(&listed, &all(List, Protobuf, usize::MAX), "lists");
    for piece in [1, 100] {
        assert_same(&listed, &all(List, Json, piece), "lists in pieces");
        assert_same(&listed, &all(List, Protobuf, piece), "lists in pieces");
    }
    let watched = all(Watch, Json, usize::MAX);
    assert_same(&watched, &all(Watch, Protobuf, 10), "watches");
    // Without a list of pods, a pod that was not received is unknown, not missing.
    assert_eq!(listed.workloads, watched.workloads);

    // The content is that of the recorded objects.
    let workloads = listed.workloads.as_ref().expect("pods");
    assert_eq!(workloads.len(), 2, "the third has ended");
    let pod = workloads.get("shop", "cart-2").expect("it runs");
    let addresses: Vec<_> = pod.addresses.iter().map(|address| address.to_string()).collect();
    assert_eq!(addresses, ["10.1.0.2", "fd00::2"]);
    assert_eq!(&*pod.identity, "spiffe://cluster.local/ns/shop/sa/cart");
    let ports: Vec<_> = pod.named_ports.iter().map(|(name, port)| (&**name, *port)).collect();
    assert_eq!(ports, [("admin", 15000), ("web", 8080)]);
    assert_eq!(pod.node.as_ref().map(|node| &***node), Some("node-1"));
    let record = |name: &str| {
        let host = format!("{name}.shop.svc.cluster.local");
        listed.services.get(host.as_str()).cloned().flatten().expect("a service")
    };
    let cart = record("cart");
    assert_eq!(
        cart.service.external_addresses,
        ["192.0.2.1".into(), "lb.example".into(), "192.0.2.9".into()]
    );
    assert!(cart.service.node_local && cart.service.named_pods.unready && cart.service.created > 0);
    assert_eq!((cart.service.ports.len(), cart.service.selector.len()), (3, 2));
    let endpoints: Vec<_> = cart
        .endpoints
        .iter()
        .map(|one| (one.address.to_string(), one.health, one.pod, one.locality.to_string()))
        .collect();
    let expected = [
        ("10.1.0.1", Health::Healthy, PodState::Known, "a/b/c"),
        ("10.1.0.2", Health::Terminating, PodState::Known, "a/b/c"),
        ("10.1.0.3", Health::Healthy, PodState::Unnamed, ""),
        ("10.1.0.4", Health::Healthy, PodState::Missing, ""),
        ("fd00::2", Health::Healthy, PodState::Known, "a/b/c"),
    ];
    let expected =
        expected.map(|(address, health, pod, at)| (address.to_owned(), health, pod, at.to_owned()));
    assert_eq!(endpoints, expected);
    assert_eq!(record("headless").service.resolution, Resolution::Headless);
    assert_eq!(record("alias").service.resolution, Resolution::Alias("example.com".into()));
}

#[test]
fn json_protobuf_and_a_full_decode_agree() {
    for seed in 0..400 {
        println!("seed {seed}");
        oracle::json_protobuf_and_a_full_decode_agree(&mut StdRng::seed_from_u64(seed));
    }
}

#[test]
fn invalid_protobuf_object_does_not_affect_others() {
    let mut random = StdRng::seed_from_u64(1);
    let valid = json!({"metadata": {"namespace": "shop", "name": "good"}});
    let mut raw = field(1, &field(2, b"7"));
    let named = field(1, &[field(3, b"shop"), field(1, b"bad")].concat());
    for invalid in [
        [&named[..], &field(2, b"\xff")].concat(),
        [&named[..], &count(3, 1)].concat(),
        field(1, &field(1, b"a name")),
        field(1, &field(1, b"\xff\xfe")),
        Vec::new(),
    ] {
        raw.extend(field(2, &invalid));
    }
    raw.extend(field(2, &message(&valid, POD, &mut random)));
    let mut cluster = Offline::new(7);
    cluster.take("pods", List, Protobuf, &wrapped("PodList", &raw)).expect("a list");
    assert_eq!(cluster.everything().workloads.map(|pods| pods.len()), Some(1));
    // Objects without a name count as one.
    assert_eq!(cluster.skipped().count, 2, "{:?}", cluster.skipped());
}

#[test]
fn invalid_protobuf_list_is_not_an_empty_list() {
    let mut random = StdRng::seed_from_u64(1);
    let list = protobuf_list(&[json!({"metadata": {"name": "a"}})], POD, &mut random);
    let take = |bytes: &[u8]| Offline::new(usize::MAX).take("pods", List, Protobuf, bytes);
    take(&list).expect("a list");
    for length in 0..list.len() {
        // Only the empty fields at the end may be missing.
        if length + 4 < list.len() {
            assert!(take(&list[..length]).is_err(), "{length} bytes of {}", list.len());
        }
    }
    for invalid in [
        wrapped("Status", &field(1, &field(2, b"7"))),
        wrapped("PodList", b""),
        [&b"k8s\0"[..], &field(2, b""), &field(3, b"gzip")].concat(),
        b"<html></html>".to_vec(),
    ] {
        assert!(take(&invalid).is_err(), "{}", invalid.escape_ascii());
    }
}

#[test]
fn random_bytes_cause_no_panic_and_no_damage() {
    let corpus: Vec<_> = KINDS
        .into_iter()
        .flat_map(|kind| [List, Watch].map(|response| (kind, response)))
        .flat_map(|(kind, response)| {
            [Json, Protobuf].map(|form| (kind, response, form, recorded(kind, response, form)))
        })
        .collect();
    let mut random = StdRng::seed_from_u64(7);
    for (kind, response, form, whole) in &corpus {
        let mut cluster = Offline::new(1000);
        for _ in 0..150 {
            let mut bytes = whole.clone();
            for _ in 0..random.random_range(1..8) {
                let at = random.random_range(0..bytes.len().max(1));
                if at >= bytes.len() {
                    break;
                }
                match random.random_range(0..4) {
                    0 => bytes[at] = random.random(),
                    1 => bytes[at] ^= 1 << random.random_range(0..8),
                    2 => drop(bytes.drain(at..bytes.len().min(at + 5))),
                    _ => bytes.truncate(at.max(1)),
                }
            }
            let _ = cluster.take(kind, *response, *form, &bytes);
            cluster.everything();
        }
        // The state is not damaged either: after the valid response it is complete again.
        if *response == List {
            cluster.take(kind, List, *form, whole).expect("a good answer");
            assert_eq!(cluster.skipped().count, 0);
        }
        let noise: Vec<u8> = (0..4096).map(|_| random.random()).collect();
        let _ = cluster.take(kind, *response, *form, &noise);
    }
}
