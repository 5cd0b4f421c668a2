//! Tests of mTLS and plain text between clients and endpoints, in stable states and during changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use super::{Cache, ProxyConfig};
use strait_mesh::push::PushContext;
use strait_mesh::push::event_loop::{MeshEvent, MeshState};
use strait_mesh::testing::settings;
use strait_model::mesh_config::{MeshConfig, OutlierDetection, UsualLimits};
use strait_model::policy::Policy;
use strait_model::registry::RegistryUpdate;
use strait_model::testing::{endpoint, member, named_endpoint, port, service, shard, sidecar};
use strait_model::{
    ByName, Endpoint, GrpcLibrary, KnownClusters, NamedEndpoint, PodState, Proxy, Resolution,
    TlsMode,
};
use strait_proto::json::to_json;
use strait_rules::access::{AccessIndex, AccessSettings, PolicyErrors};
use strait_xds::resource::{ResourceBody, ResourceSource, ResourceType};

const NAME: &str = "outbound|80||web.ns.svc.cluster.local";

/// An upstream cluster and its assignment, as one proxy receives them.
#[derive(Debug, Clone, PartialEq)]
struct Given {
    cluster: Value,
    assignment: Value,
}

impl Given {
    fn to(proxy: &Proxy, context: &Arc<PushContext>) -> Self {
        let cache = Cache::default();
        let mut proxy_config = ProxyConfig::new(context, proxy, "n1".into(), &cache);
        let cluster = if proxy_config.is_by_name() {
            proxy_config.one(ResourceType::Cluster, NAME).expect("it has one")
        } else {
            let clusters = proxy_config.all(ResourceType::Cluster);
            let mut clusters = clusters.shared.resources().iter();
            Arc::clone(clusters.find(|one| &*one.name == NAME).expect("it has one"))
        };
        let assignment = proxy_config.one(ResourceType::Endpoint, NAME).expect("always an answer");
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

/// Returns for each endpoint whether Envoy uses mTLS with these resources.
fn by_mtls(cluster: &Value, assignment: &Value) -> BTreeMap<String, bool> {
    let list = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
    let mut found = BTreeMap::new();
    for locality in list(assignment, "endpoints") {
        assert!(locality.get("metadata").is_none(), "Envoy overlooks its changes: {locality}");
        for member in list(&locality, "lb_endpoints") {
            let stated_mode =
                &member["metadata"]["filter_metadata"]["envoy.transport_socket_match"];
            let matches = list(cluster, "transport_socket_matches");
            let matching = matches.iter().find(|one| one["match"] == *stated_mode);
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

/// Returns an endpoint that was written manually, without a pod.
fn unknown(address: &str) -> Endpoint {
    let pod = PodState::Unnamed;
    Endpoint { service_account: None, workload: None, pod, ..plain(address) }
}

fn web_update(endpoints: Vec<Endpoint>) -> RegistryUpdate {
    shard("east", 1).network("n1").with(service("web.ns"), endpoints).built()
}

fn given(endpoints: Vec<Endpoint>) -> Given {
    let mut mesh = MeshState::new(settings());
    mesh.apply(MeshEvent::Registry(web_update(endpoints)));
    mesh.apply(MeshEvent::Complete);
    Given::to(&client(), &mesh.next_version().expect("a first version").0)
}

fn metadata(given: &Given) -> usize {
    given.assignment.to_string().matches("metadata").count()
}

#[test]
fn endpoints_state_no_mode_if_all_accept_mtls() {
    let given = given(vec![endpoint("10.0.0.1"), endpoint("10.0.0.2")]);
    assert_eq!(metadata(&given), 0, "{}", given.assignment);
    assert!(by_mtls(&given.cluster, &given.assignment).values().all(|mtls| *mtls));
}

#[test]
fn no_mode_is_stated_if_no_endpoint_could_accept_mtls() {
    let given = given(vec![unknown("10.0.0.1"), unknown("10.0.0.2")]);
    assert_eq!(metadata(&given), 0, "{}", given.assignment);
    assert!(!given.cluster.to_string().contains("transport_socket"), "{}", given.cluster);
}

#[test]
fn endpoints_that_could_accept_mtls_but_do_not_state_their_mode() {
    let given = given(vec![endpoint("10.0.0.1"), plain("10.0.0.2"), unknown("10.0.0.3")]);
    assert_eq!(metadata(&given), 4, "two entries, each with the name of the match");
    let found = by_mtls(&given.cluster, &given.assignment);
    assert_eq!(found.into_values().collect::<Vec<_>>(), [true, false, false]);
    let matches = given.cluster["transport_socket_matches"].as_array().expect("a list");
    assert!(matches.iter().all(|one| one["match"].is_object()), "none catches all");
}

#[test]
fn target_port_of_a_service_without_resolution_replaces_the_connections_port() {
    let cluster = |target: u16, resolution: Resolution| {
        let mut web = service("web.ns").with(|one| one.resolution = resolution);
        web.ports = vec![port("http", 80, target)];
        let mut mesh = MeshState::new(settings());
        mesh.apply(MeshEvent::Registry(shard("east", 1).network("n1").with(web, vec![]).built()));
        mesh.apply(MeshEvent::Complete);
        Given::to(&client(), &mesh.next_version().expect("a first version").0).cluster
    };
    let replaced = cluster(8080, Resolution::Passthrough);
    assert_eq!(replaced["original_dst_lb_config"], json!({ "upstream_port_override": 8080 }));
    for unchanged in [cluster(80, Resolution::Passthrough), cluster(8080, Resolution::Headless)] {
        assert!(unchanged.get("original_dst_lb_config").is_none(), "{unchanged}");
    }
}

fn library(mtls: bool) -> Proxy {
    Proxy { grpc: Some(GrpcLibrary { mtls, least_request: false }), ..client() }
}

fn mesh_with(endpoints: Vec<Endpoint>) -> Arc<PushContext> {
    let mut mesh = MeshState::new(settings());
    mesh.apply(MeshEvent::Registry(web_update(endpoints)));
    mesh.apply(MeshEvent::Complete);
    mesh.next_version().expect("a first version").0
}

fn addresses(assignment: &Value) -> Vec<&str> {
    let groups = assignment["endpoints"].as_array().into_iter().flatten();
    let members = groups.flat_map(|group| group["lb_endpoints"].as_array().expect("members"));
    fn socket(endpoint: &Value) -> &Value {
        &endpoint["endpoint"]["address"]["socket_address"]["address"]
    }
    members.map(|one| socket(one).as_str().expect("a text")).collect()
}

#[test]
fn library_uses_mtls_for_all_endpoints_of_a_service_or_none() {
    let mixed = mesh_with(vec![endpoint("10.0.0.1"), plain("10.0.0.2")]);
    let given = Given::to(&library(true), &mixed);
    let tls = &given.cluster["transport_socket"]["typed_config"]["common_tls_context"];
    assert_eq!(tls["tls_certificate_provider_instance"]["instance_name"], "default");
    assert!(given.cluster["transport_socket_matches"].is_null(), "refused: {}", given.cluster);
    assert!(tls["tls_params"].is_null() && tls["alpn_protocols"].is_null(), "refused: {tls}");
    let validation = &tls["combined_validation_context"]["default_validation_context"];
    let names = validation["match_subject_alt_names"].as_array().expect("accepted servers");
    assert!(!names.is_empty() && validation["match_typed_subject_alt_names"].is_null());
    assert_eq!(addresses(&given.assignment), ["10.0.0.1"], "plain-text endpoints are omitted");

    let given = Given::to(&library(false), &mixed);
    assert!(given.cluster["transport_socket"].is_null(), "{}", given.cluster);
    assert_eq!(addresses(&given.assignment), ["10.0.0.1", "10.0.0.2"]);

    // Pods that could accept mTLS but do not.
    let given = Given::to(&library(true), &mesh_with(vec![plain("10.0.0.1")]));
    assert!(given.cluster["transport_socket"].is_null(), "{}", given.cluster);
    assert_eq!(addresses(&given.assignment), ["10.0.0.1"]);
}

#[test]
fn assignment_for_a_library_has_the_required_fields() {
    let given =
        Given::to(&library(false), &mesh_with(vec![endpoint("10.0.0.1"), plain("10.0.0.2")]));
    for group in given.assignment["endpoints"].as_array().expect("localities") {
        assert!(group["locality"].is_object(), "refused without an id: {group}");
        assert!(
            group["load_balancing_weight"].as_u64() > Some(0),
            "omitted without a weight: {group}"
        );
        assert!(group["metadata"].is_null());
    }
    assert!(!given.assignment.to_string().contains("metadata"), "{}", given.assignment);
}

#[test]
fn library_finds_listeners_by_dialled_and_listening_names() {
    let context = mesh_with(vec![endpoint("10.0.0.1")]);
    let cache = Cache::default();
    let named = |proxy: &Proxy, name: &str| {
        let mut proxy_config = ProxyConfig::new(&context, proxy, "n1".into(), &cache);
        let found = proxy_config.one(ResourceType::Listener, name)?;
        Some(to_json(ResourceType::Listener.url(), &found.body.to_bytes()).expect("a message"))
    };
    let client = library(true);
    for name in [
        "web.ns.svc.cluster.local:80",
        "web.ns.svc.cluster.local.:80",
        "web.ns:80",
        "web:80",
        "WEB:80",
    ] {
        let found = named(&client, name).unwrap_or_else(|| panic!("nothing for {name}"));
        assert_eq!(found["name"], name, "under the requested name");
        let route = &found["api_listener"]["api_listener"]["rds"]["route_config_name"];
        assert_eq!(route, NAME);
    }
    for name in ["web:81", "web.other:80", "nobody.ns:80", "web:http", ":80", "", "web:080"] {
        assert_eq!(named(&client, name), None, "{name}");
    }
    for (name, address, port) in [
        ("grpc/server?xds.resource.listening_address=10.0.0.1:8080", "10.0.0.1", 8080),
        ("xds.istio.io/grpc/lds/inbound/[::]:50051", "::", 50051),
        ("0.0.0.0:9000", "0.0.0.0", 9000),
    ] {
        let found = named(&client, name).unwrap_or_else(|| panic!("nothing for {name}"));
        let socket = &found["address"]["socket_address"];
        assert_eq!((&socket["address"], &socket["port_value"]), (&address.into(), &port.into()));
        for refused in ["listener_filters", "use_original_dst", "api_listener"] {
            assert!(found[refused].is_null(), "{refused} in {found}");
        }
    }
}

#[test]
fn server_accepts_mtls_if_its_pod_is_in_the_mesh_and_it_has_certificates() {
    let context = mesh_with(vec![endpoint("10.0.0.1")]);
    let cache = Cache::default();
    let mesh_labels = strait_model::testing::labels(&[("security.istio.io/tlsMode", "istio")]);
    for (labelled, mtls, expected) in
        [(true, true, true), (true, false, false), (false, true, false)]
    {
        let mut server = library(mtls);
        if labelled {
            server.labels = mesh_labels.clone();
        }
        let mut proxy_config = ProxyConfig::new(&context, &server, "n1".into(), &cache);
        let found = proxy_config.one(ResourceType::Listener, "s/10.0.0.1:8080");
        let found = to_json(ResourceType::Listener.url(), &found.expect("one").body.to_bytes());
        let found = found.expect("a message");
        let socket = &found["default_filter_chain"]["transport_socket"];
        assert_eq!(socket.is_object(), expected, "{found}");
        if expected {
            let context = &socket["typed_config"];
            assert_eq!(context["require_client_certificate"], true);
            assert!(!context.to_string().contains("subject_alt_names"), "refused: {context}");
        }
    }
}

#[test]
fn library_resolves_only_one_name() {
    for (names, expected) in
        [(&["a.example"][..], Some("LOGICAL_DNS")), (&["a.example", "b.example"], None)]
    {
        let endpoints = names.iter().map(|name| named_endpoint(name)).collect();
        let by_name = ByName { just_then: false, endpoints };
        let service = service("web.ns").with(|it| it.resolution = Resolution::ByName(by_name));
        let mut mesh = MeshState::new(settings());
        mesh.apply(MeshEvent::Registry(shard("east", 1).with(service, vec![]).built()));
        mesh.apply(MeshEvent::Complete);
        let context = mesh.next_version().expect("a first version").0;
        let (cache, client) = (Cache::default(), library(false));
        let mut proxy_config = ProxyConfig::new(&context, &client, "n1".into(), &cache);
        let cluster = proxy_config.one(ResourceType::Cluster, NAME);
        let kind = cluster.map(|resource| {
            let json = to_json(ResourceType::Cluster.url(), &resource.body.to_bytes());
            json.expect("a message")["type"].as_str().expect("a type").to_owned()
        });
        assert_eq!(kind.as_deref(), expected);
        assert_eq!(
            proxy_config.one(ResourceType::Listener, "web:80").is_some(),
            expected.is_some()
        );
    }
}

#[test]
fn dns_clusters_use_the_format_that_the_proxy_supports() {
    let cluster_for = |just_then: bool, proxy: &Proxy| {
        let by_name = ByName { just_then, endpoints: vec![named_endpoint("a.example")] };
        let service = service("web.ns").with(|it| it.resolution = Resolution::ByName(by_name));
        let mut mesh = MeshState::new(settings());
        mesh.apply(MeshEvent::Registry(shard("east", 1).with(service, vec![]).built()));
        mesh.apply(MeshEvent::Complete);
        let context = mesh.next_version().expect("a first version").0;
        Given::to(proxy, &context).cluster
    };
    let with_release = |envoy_release| Proxy { envoy_release, ..client() };
    for (release, is_new) in
        [(Some((1, 36)), true), (Some((2, 0)), true), (Some((1, 35)), false), (None, false)]
    {
        for (just_then, kind) in [(false, "STRICT_DNS"), (true, "LOGICAL_DNS")] {
            let cluster = cluster_for(just_then, &with_release(release));
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
fn only_failed_connections_eject_a_gateway_unless_the_policy_says_per_host() {
    let given = |release, remote_ejection: &str, in_west: bool| {
        let mut mesh = MeshState::new(settings());
        let members = [("east", "n1"), ("west", "n2")];
        let clusters = members.map(|(id, network)| (id.into(), member(Some(network)))).into();
        mesh.apply(MeshEvent::Clusters(Arc::new(KnownClusters { clusters })));
        let outlier_detection =
            Some(Arc::new(OutlierDetection { consecutive_5xx: Some(3), ..Default::default() }));
        let mut mesh_config = MeshConfig::default();
        mesh_config.usual_limits = UsualLimits { outlier_detection, ..UsualLimits::default() };
        mesh.apply(MeshEvent::MeshConfig(Arc::new(mesh_config)));
        let policy = format!("apiVersion: strait.dev/v1\nkind: Policy\n{remote_ejection}");
        mesh.apply(MeshEvent::Policy(Arc::new(Policy::parse(&policy).expect("valid"))));
        mesh.apply(MeshEvent::Registry(
            shard("east", 1).with(service("web.ns"), vec![endpoint("10.0.0.1")]).built(),
        ));
        let gateway = service("eastwest.system").gateway_of("n2", "192.0.2.2");
        let mut west = shard("west", 1).with(gateway, vec![]);
        if in_west {
            west = west.with(service("web.ns"), vec![endpoint("10.0.0.1")]);
        }
        mesh.apply(MeshEvent::Registry(west.built()));
        mesh.apply(MeshEvent::Complete);
        let context = mesh.next_version().expect("a first version").0;
        Given::to(&Proxy { envoy_release: release, ..client() }, &context)
    };
    let options = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
    for (release, remote_ejection, in_west, is_exempt) in [
        (Some((1, 40)), "", true, true),
        (Some((1, 36)), "remoteEjection: perNetwork\n", true, true),
        (Some((1, 40)), "remoteEjection: perHost\n", true, false),
        (Some((1, 40)), "", false, false),
        (Some((1, 35)), "", true, false),
        (None, "", true, false),
    ] {
        let case = format!("{release:?} {remote_ejection:?} {in_west}");
        let Given { cluster, assignment } = given(release, remote_ejection, in_west);
        let filters = &cluster["typed_extension_protocol_options"][options]["http_filters"];
        let names: Vec<_> =
            filters.as_array().into_iter().flatten().map(|one| &one["name"]).collect();
        let expected = ["envoy.filters.http.header_mutation", "envoy.filters.http.upstream_codec"];
        assert_eq!(names, expected[..if is_exempt { 2 } else { 0 }], "{case}");
        let detection = &cluster["outlier_detection"];
        assert_eq!(detection["consecutive_5xx"], 3, "{case}");
        let apart = is_exempt.then_some(3);
        assert_eq!(detection["consecutive_local_origin_failure"].as_u64(), apart, "{case}");
        let marks = assignment.to_string().matches(r#""gateway":"yes""#).count();
        assert_eq!(marks, usize::from(in_west), "only the gateway is marked: {assignment}");
    }
}

#[test]
fn endpoints_within_a_cluster_are_reached_in_their_stated_mode() {
    let named = |address, tls_mode| NamedEndpoint { tls_mode, ..named_endpoint(address) };
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
        mesh.apply(MeshEvent::Registry(shard("east", 1).with(service, vec![]).built()));
        mesh.apply(MeshEvent::Complete);
        let context = mesh.next_version().expect("a first version").0;
        let cluster = Given::to(&client(), &context).cluster;
        assert_eq!(by_mtls(&cluster, &cluster["load_assignment"]), expected);
    }
}

/// Whatever endpoints change, and whichever of the two resources a client has already received: no
/// endpoint is reached in the wrong mode, if the mesh knows a workload of the service before and
/// after.
#[test]
fn client_with_half_of_a_change_uses_the_right_mode_for_every_endpoint() {
    let mut random = StdRng::seed_from_u64(22);
    let mut some = || -> Vec<Endpoint> {
        let random_endpoint = |number: usize| {
            let address = format!("10.0.0.{number}");
            match random.random_range(0..4) {
                0 => None,
                1 => Some(endpoint(&address)),
                2 => Some(plain(&address)),
                _ => Some(unknown(&address)),
            }
        };
        (1..5).filter_map(random_endpoint).collect()
    };
    let takes_it = |endpoints: &[Endpoint]| -> BTreeMap<String, bool> {
        let mode = |one: &Endpoint| (one.address.to_string(), one.tls_mode == TlsMode::Istio);
        endpoints.iter().map(mode).collect()
    };
    let has_pod = |endpoints: &[Endpoint]| endpoints.iter().any(|one| one.pod == PodState::Known);
    let mut mesh = MeshState::new(settings());
    let mut before = some();
    mesh.apply(MeshEvent::Registry(web_update(before.clone())));
    mesh.apply(MeshEvent::Complete);
    let mut previous = Given::to(&client(), &mesh.next_version().expect("a first version").0);
    let mut tried = 0;
    for _ in 0..300 {
        let now = some();
        mesh.apply(MeshEvent::Registry(web_update(now.clone())));
        let Some((context, changes)) = mesh.next_version() else { continue };
        let new = Given::to(&client(), &context);
        assert_eq!(by_mtls(&new.cluster, &new.assignment), takes_it(&now));
        if has_pod(&before) && has_pod(&now) {
            tried += 1;
            assert_eq!(by_mtls(&previous.cluster, &new.assignment), takes_it(&now));
            assert_eq!(by_mtls(&new.cluster, &previous.assignment), takes_it(&before));
            assert_eq!(previous.cluster, new.cluster);
            assert!(changes.services().is_empty(), "only the assignment changes");
        } else if has_pod(&before) != has_pod(&now) {
            assert!(!changes.services().is_empty(), "upstream clusters change");
        }
        (before, previous) = (now, new);
    }
    assert!(tried > 100, "{tried}");
}

/// Returns the listener of a server in a mesh with these policies, each with a kind and a spec.
fn served_under(server: &Proxy, policies: &[(&str, Value)]) -> Value {
    let mut mesh = MeshState::new(settings());
    mesh.apply(MeshEvent::Registry(web_update(vec![endpoint("10.0.0.1")])));
    let object = |(at, (kind, spec)): (usize, &(&str, Value))| {
        Arc::new(json!({
            "apiVersion": "security.istio.io/v1",
            "kind": kind,
            "metadata": { "namespace": "ns", "name": format!("p{at}") },
            "spec": spec,
        }))
    };
    let objects = policies.iter().enumerate().map(object).collect();
    let settings = AccessSettings { root: "root".into(), errors: PolicyErrors::Narrow };
    let change = AccessIndex::new(settings.clone()).apply(&settings, &objects).expect("the first");
    mesh.apply(MeshEvent::Access(change.policies, change.causes));
    mesh.apply(MeshEvent::Complete);
    let context = mesh.next_version().expect("a first version").0;
    let cache = Cache::default();
    let mut proxy_config = ProxyConfig::new(&context, server, "n1".into(), &cache);
    let found = proxy_config.one(ResourceType::Listener, "s/10.0.0.1:8080").expect("one");
    to_json(ResourceType::Listener.url(), &found.body.to_bytes()).expect("a message")
}

/// Returns the access filters of a server: the filter's name, its action, and its rules.
fn guards(listener: &Value) -> Vec<(String, String, Vec<String>)> {
    let chain = &listener["default_filter_chain"];
    let filters = chain["filters"][0]["typed_config"]["http_filters"].as_array().expect("filters");
    let (last, guards) = filters.split_last().expect("a responding filter");
    assert_eq!(last["name"], "envoy.filters.http.router");
    let guard = |filter: &Value| {
        let text = |value: &Value| value.as_str().unwrap_or("ALLOW").to_owned();
        let rules = &filter["typed_config"]["rules"];
        assert!(rules.is_object() && filter["typed_config"]["shadow_rules"].is_null(), "{filter}");
        let keys = rules["policies"].as_object().expect("rules").keys().cloned().collect();
        let name = text(&filter["name"]).replace("envoy.filters.http.rbac.", "");
        (name, text(&rules["action"]), keys)
    };
    let found: Vec<_> = guards.iter().map(guard).collect();
    let names: std::collections::BTreeSet<_> = found.iter().map(|one| &one.0).collect();
    assert_eq!(names.len(), found.len(), "a library refuses two of one name: {found:?}");
    found
}

#[test]
fn server_follows_its_mtls_policy_and_never_accepts_forbidden_plain_text() {
    let mesh_labels = strait_model::testing::labels(&[("security.istio.io/tlsMode", "istio")]);
    let labelled = |mtls| Proxy { labels: mesh_labels.clone(), ..library(mtls) };
    for (mode, server, mtls, expected) in [
        ("STRICT", library(true), true, vec!["identity"]),
        ("STRICT", labelled(true), true, vec!["identity"]),
        ("STRICT", labelled(false), false, vec!["nobody"]),
        ("PERMISSIVE", labelled(true), true, vec!["identity"]),
        ("PERMISSIVE", library(true), false, vec![]),
        ("PERMISSIVE", labelled(false), false, vec![]),
        ("DISABLE", labelled(true), false, vec![]),
    ] {
        let peer = ("PeerAuthentication", json!({ "mtls": { "mode": mode } }));
        let listener = served_under(&server, &[peer]);
        let socket = &listener["default_filter_chain"]["transport_socket"];
        assert_eq!(socket.is_object(), mtls, "{mode} {:?}", server.grpc);
        let found = guards(&listener);
        assert_eq!(found.iter().map(|one| &*one.0).collect::<Vec<_>>(), expected, "{mode}");
    }
}

#[test]
fn server_enforces_supported_rules_and_denies_for_others() {
    let allow = json!({ "rules": [
        { "from": [{ "source": { "namespaces": ["ns"] } }] },
        { "from": [{ "source": { "requestPrincipals": ["*"] } }] },
    ] });
    let deny = json!({ "action": "DENY", "rules": [{ "to": [{ "operation": {
        "paths": ["/shop.Cart/{*}"], "ports": ["8080"],
    } }] }] });
    let listener = served_under(
        &library(false),
        &[
            ("AuthorizationPolicy", allow),
            ("AuthorizationPolicy", deny),
            ("AuthorizationPolicy", json!({ "action": "AUDIT", "rules": [{}] })),
            (
                "RequestAuthentication",
                json!({ "jwtRules": [{ "issuer": "i", "jwks": "{\"keys\":[]}" }] }),
            ),
        ],
    );
    let rule = |policy: usize, rule: usize| format!("ns[ns]-policy[p{policy}]-rule[{rule}]");
    let expected = [
        ("deny".to_owned(), "DENY".to_owned(), vec![rule(1, 0)]),
        ("allow".to_owned(), "ALLOW".to_owned(), vec![rule(0, 0)]),
    ];
    assert_eq!(guards(&listener), expected);
    // A library ignores matchers that it does not support and would accept more requests.
    let text = listener.to_string();
    for unknown in ["uri_template", "sourced_metadata", "requested_server_name", "jwt"] {
        assert!(!text.contains(unknown), "{unknown} in {text}");
    }
    let nothing = served_under(&library(false), &[("AuthorizationPolicy", json!({}))]);
    assert_eq!(guards(&nothing), [("allow".to_owned(), "ALLOW".to_owned(), vec![rule(0, 0)])]);
    assert!(nothing.to_string().contains("not_rule"), "it allows nothing: {nothing}");
}
