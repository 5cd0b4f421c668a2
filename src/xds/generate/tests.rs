//! How clients speak to endpoints: by mTLS or in plain text, at rest and while that changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;
use strait_proto::json::to_json;

use super::{Cache, ProxyConfig};
use crate::fixtures::{endpoint, service, settings, shard, sidecar};
use crate::model::{ByName, Endpoint, NamedEndpoint, PodState, Proxy, Resolution, TlsMode};
use crate::push::PushContext;
use crate::push::event_loop::{MeshEvent, MeshState};
use crate::registry::RegistryUpdate;
use crate::xds::resource::{ResourceBody, ResourceSource, ResourceType};

const NAME: &str = "outbound|80||web.ns.svc.cluster.local";

/// An upstream cluster and its assignment, as one proxy is given them.
#[derive(Debug, Clone, PartialEq)]
struct Given {
    cluster: Value,
    assignment: Value,
}

impl Given {
    fn to(proxy: &Proxy, context: &Arc<PushContext>) -> Self {
        let cache = Cache::default();
        let mut picture = ProxyConfig::new(context, proxy, "n1".into(), &cache);
        let clusters = picture.all(ResourceType::Cluster);
        let mut clusters = clusters.shared.resources().iter();
        let cluster = clusters.find(|one| &*one.name == NAME).expect("it has one");
        let assignment = picture.one(ResourceType::Endpoint, NAME).expect("always an answer");
        let json = |kind: ResourceType, body: &ResourceBody| {
            to_json(kind.url(), &body.to_bytes()).expect("a message")
        };
        Self {
            cluster: json(ResourceType::Cluster, &cluster.body),
            assignment: json(ResourceType::Endpoint, &assignment.body),
        }
    }
}

fn client() -> Proxy {
    sidecar("client.ns", "east")
}

/// Which endpoints Envoy speaks mTLS to, where it holds these.
fn by_mtls(cluster: &Value, assignment: &Value) -> BTreeMap<String, bool> {
    let list = |of: &Value, key: &str| of[key].as_array().cloned().unwrap_or_default();
    let mut found = BTreeMap::new();
    for locality in list(assignment, "endpoints") {
        assert!(locality.get("metadata").is_none(), "Envoy overlooks its changes: {locality}");
        for member in list(&locality, "lb_endpoints") {
            let told = &member["metadata"]["filter_metadata"]["envoy.transport_socket_match"];
            let matches = list(cluster, "transport_socket_matches");
            let matching = matches.iter().find(|one| one["match"] == *told);
            let socket = &matching.unwrap_or(cluster)["transport_socket"]["name"];
            let address = &member["endpoint"]["address"]["socket_address"]["address"];
            let mtls = socket == "envoy.transport_sockets.tls";
            found.insert(address.as_str().expect("text").to_owned(), mtls);
        }
    }
    found
}

fn plain(address: &str) -> Endpoint {
    Endpoint { tls_mode: TlsMode::Disabled, ..endpoint(address) }
}

/// An endpoint that somebody wrote by hand.
fn unknown(address: &str) -> Endpoint {
    let pod = PodState::Unnamed;
    Endpoint { service_account: None, workload: None, pod, ..plain(address) }
}

fn says(endpoints: Vec<Endpoint>) -> RegistryUpdate {
    shard("east", 1).network("n1").with(service("web.ns"), endpoints).said()
}

fn given(endpoints: Vec<Endpoint>) -> Given {
    let mut mesh = MeshState::new(settings());
    mesh.apply(MeshEvent::Registry(says(endpoints)));
    mesh.apply(MeshEvent::Complete);
    Given::to(&client(), &mesh.next_version().expect("a first version").0)
}

fn metadata(given: &Given) -> usize {
    given.assignment.to_string().matches("metadata").count()
}

#[test]
fn endpoints_that_all_take_mtls_say_nothing_of_it() {
    let given = given(vec![endpoint("10.0.0.1"), endpoint("10.0.0.2")]);
    assert_eq!(metadata(&given), 0, "{}", given.assignment);
    assert!(by_mtls(&given.cluster, &given.assignment).values().all(|mtls| *mtls));
}

#[test]
fn where_nobody_could_take_mtls_nothing_is_said_of_it_at_all() {
    let given = given(vec![unknown("10.0.0.1"), unknown("10.0.0.2")]);
    assert_eq!(metadata(&given), 0, "{}", given.assignment);
    assert!(!given.cluster.to_string().contains("transport_socket"), "{}", given.cluster);
}

#[test]
fn of_those_that_could_who_does_not_take_mtls_says_so_for_itself() {
    let given = given(vec![endpoint("10.0.0.1"), plain("10.0.0.2"), unknown("10.0.0.3")]);
    assert_eq!(metadata(&given), 4, "two, each with the name of what is matched");
    let found = by_mtls(&given.cluster, &given.assignment);
    assert_eq!(found.into_values().collect::<Vec<_>>(), [true, false, false]);
    let matches = given.cluster["transport_socket_matches"].as_array().expect("a list");
    assert!(matches.iter().all(|one| one["match"].is_object()), "none catches all");
}

#[test]
fn a_client_without_a_proxy_is_given_no_tls_context() {
    let mut mesh = MeshState::new(settings());
    mesh.apply(MeshEvent::Registry(says(vec![endpoint("10.0.0.1")])));
    mesh.apply(MeshEvent::Complete);
    let proxyless = Proxy { generator: Some("grpc".into()), ..client() };
    let given = Given::to(&proxyless, &mesh.next_version().expect("a first version").0);
    assert!(!given.cluster.to_string().contains("transport_socket"), "{}", given.cluster);
}

#[test]
fn names_are_resolved_in_the_form_that_a_proxy_knows() {
    let said_by = |just_then: bool, proxy: &Proxy| {
        let named = NamedEndpoint {
            address: "a.example".into(),
            ports: [("http".into(), 8080)].into_iter().collect(),
            weight: 1,
            locality: Arc::default(),
            network: None,
            tls_mode: TlsMode::Disabled,
            labels: None,
        };
        let by_name = ByName { just_then, endpoints: [named].into_iter().collect() };
        let service = service("web.ns").with(|it| it.resolution = Resolution::ByName(by_name));
        let mut mesh = MeshState::new(settings());
        mesh.apply(MeshEvent::Registry(shard("east", 1).with(service, vec![]).said()));
        mesh.apply(MeshEvent::Complete);
        let context = mesh.next_version().expect("a first version").0;
        Given::to(proxy, &context).cluster
    };
    let of_release = |envoy_release| Proxy { envoy_release, ..client() };
    for (release, is_new) in
        [(Some((1, 36)), true), (Some((2, 0)), true), (Some((1, 35)), false), (None, false)]
    {
        for (just_then, kind) in [(false, "STRICT_DNS"), (true, "LOGICAL_DNS")] {
            let cluster = said_by(just_then, &of_release(release));
            let dns = &cluster["cluster_type"]["typed_config"];
            let expected = is_new.then_some("envoy.clusters.dns");
            assert_eq!(cluster["cluster_type"]["name"].as_str(), expected, "{release:?}");
            assert_eq!(cluster["type"].as_str(), (!is_new).then_some(kind), "{release:?}");
            let settings = if is_new { dns } else { &cluster };
            assert_eq!(settings["respect_dns_ttl"], true, "{cluster}");
            assert_eq!(settings["dns_lookup_family"], "V4_ONLY", "{cluster}");
            let single = dns["all_addresses_in_single_endpoint"] == true;
            assert_eq!(single, is_new && just_then, "{cluster}");
        }
    }
}

#[test]
fn endpoints_in_their_cluster_are_spoken_to_as_each_says() {
    let named = |address: &str, tls_mode| NamedEndpoint {
        address: address.into(),
        ports: [("http".into(), 8080)].into_iter().collect(),
        weight: 1,
        locality: Arc::default(),
        network: None,
        tls_mode,
        labels: None,
    };
    let modes = [TlsMode::Istio, TlsMode::Disabled];
    let cases = [
        (modes.to_vec(), BTreeMap::from([("a".to_owned(), true), ("b".to_owned(), false)])),
        (vec![TlsMode::Istio], BTreeMap::from([("a".to_owned(), true)])),
        (vec![TlsMode::Disabled], BTreeMap::from([("a".to_owned(), false)])),
    ];
    for (modes, expected) in cases {
        let endpoints = ["a", "b"].iter().zip(modes).map(|(name, mode)| named(name, mode));
        let by_name = ByName { just_then: false, endpoints: endpoints.collect() };
        let service = service("web.ns").with(|it| it.resolution = Resolution::ByName(by_name));
        let mut mesh = MeshState::new(settings());
        mesh.apply(MeshEvent::Registry(shard("east", 1).with(service, vec![]).said()));
        mesh.apply(MeshEvent::Complete);
        let context = mesh.next_version().expect("a first version").0;
        let cluster = Given::to(&client(), &context).cluster;
        assert_eq!(by_mtls(&cluster, &cluster["load_assignment"]), expected);
    }
}

/// Whatever changes of endpoints, and whichever of its two resources a client has already taken: none is spoken
/// to in the wrong way, as long as the mesh knows a workload of the service before and after.
#[test]
fn who_has_taken_half_of_a_change_speaks_to_nobody_in_the_wrong_way() {
    let mut random = StdRng::seed_from_u64(22);
    let mut some = || -> Vec<Endpoint> {
        let one = |number: usize| {
            let address = format!("10.0.0.{number}");
            match random.random_range(0..4) {
                0 => None,
                1 => Some(endpoint(&address)),
                2 => Some(plain(&address)),
                _ => Some(unknown(&address)),
            }
        };
        (1..5).filter_map(one).collect()
    };
    let takes_it = |endpoints: &[Endpoint]| -> BTreeMap<String, bool> {
        let mode = |one: &Endpoint| (one.address.to_string(), one.tls_mode == TlsMode::Istio);
        endpoints.iter().map(mode).collect()
    };
    let known = |endpoints: &[Endpoint]| endpoints.iter().any(|one| one.pod == PodState::Known);
    let mut mesh = MeshState::new(settings());
    let mut before = some();
    mesh.apply(MeshEvent::Registry(says(before.clone())));
    mesh.apply(MeshEvent::Complete);
    let mut held = Given::to(&client(), &mesh.next_version().expect("a first version").0);
    let mut tried = 0;
    for _ in 0..300 {
        let now = some();
        mesh.apply(MeshEvent::Registry(says(now.clone())));
        let Some((context, changes)) = mesh.next_version() else { continue };
        let new = Given::to(&client(), &context);
        assert_eq!(by_mtls(&new.cluster, &new.assignment), takes_it(&now));
        if known(&before) && known(&now) {
            tried += 1;
            assert_eq!(by_mtls(&held.cluster, &new.assignment), takes_it(&now));
            assert_eq!(by_mtls(&new.cluster, &held.assignment), takes_it(&before));
            assert_eq!(held.cluster, new.cluster);
            assert!(changes.services().is_empty(), "it costs the assignment alone");
        } else if known(&before) != known(&now) {
            assert!(!changes.services().is_empty(), "upstream clusters are made anew");
        }
        (before, held) = (now, new);
    }
    assert!(tried > 100, "{tried}");
}
