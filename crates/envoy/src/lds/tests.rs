mod access;
mod access_cases_envoy;
mod access_envoy;
mod authorizers;
mod authorizers_envoy;
mod envoy;
mod steps;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::parts::any_port;
use super::{TrafficSettings, gateway, outbound};
use crate::class::{ListenerFormat, class_for};
use crate::{Cache, ProxyConfig};
use strait_mesh::push::PushContext;
use strait_mesh::push::addresses::addresses;
use strait_mesh::push::event_loop::{MeshEvent, MeshState};
use strait_mesh::push::view::{Role, ViewKey};
use strait_model::mesh_config::MeshConfig;
use strait_model::registry::RegistryUpdate;
use strait_model::testing::{endpoint, host, ip, labels, port, service, shard, sidecar, workload};
use strait_model::{
    Endpoint, ExportTo, Health, KnownCluster, KnownClusters, Port, Protocol, Proxy, ProxyType,
    Resolution, Service, TargetPort,
};
use strait_proto::json::to_json;
use strait_xds::resource::{ResourceBody, ResourceSource, ResourceType};

fn mesh() -> MeshState {
    MeshState::new(strait_mesh::testing::settings())
}

fn context(updates: Vec<RegistryUpdate>) -> Arc<PushContext> {
    let mut mesh = mesh();
    for update in updates {
        mesh.apply(MeshEvent::Registry(update));
    }
    mesh.apply(MeshEvent::Complete);
    mesh.next_version().expect("a first version").0
}

/// Returns the resources of a wildcard type that a proxy in network `n1` receives, by name, in
/// Envoy's JSON form.
fn list_resources(
    context: &Arc<PushContext>,
    proxy: &Proxy,
    kind: ResourceType,
) -> BTreeMap<String, Value> {
    resources_in("n1", context, proxy, kind)
}

/// Returns the resources like [`list_resources`] that a proxy in another network receives.
fn resources_in(
    network: &str,
    context: &Arc<PushContext>,
    proxy: &Proxy,
    kind: ResourceType,
) -> BTreeMap<String, Value> {
    let cache = Cache::default();
    let all = ProxyConfig::new(context, proxy, network.into(), &cache).all(kind);
    let json = |body: &ResourceBody| to_json(kind.url(), &body.to_bytes()).expect("a message");
    let all = all.shared.resources().iter().chain(&all.own);
    all.map(|resource| (resource.name.to_string(), json(&resource.body))).collect()
}

fn listeners(context: &Arc<PushContext>, proxy: &Proxy) -> BTreeMap<String, Value> {
    list_resources(context, proxy, ResourceType::Listener)
}

/// Returns one named resource in Envoy's JSON form.
fn named_resource(
    context: &Arc<PushContext>,
    proxy: &Proxy,
    kind: ResourceType,
    name: &str,
) -> Value {
    let cache = Cache::default();
    let resource = ProxyConfig::new(context, proxy, "n1".into(), &cache).one(kind, name);
    to_json(kind.url(), &resource.expect("always an answer").body.to_bytes()).expect("a message")
}

fn route(context: &Arc<PushContext>, proxy: &Proxy, name: &str) -> Value {
    named_resource(context, proxy, ResourceType::Route, name)
}

/// Returns `name: domain…` for every virtual host of the route `name`.
fn domains(context: &Arc<PushContext>, proxy: &Proxy, name: &str) -> Vec<String> {
    let route = route(context, proxy, name);
    let hosts = route["virtual_hosts"].as_array().cloned().unwrap_or_default();
    hosts
        .iter()
        .map(|host| format!("{}: {}", text(&host["name"]), joined(&host["domains"])))
        .collect()
}

/// Returns a line for each chain: `port? transport? [protocols]? mtls? -> http ROUTE | tcp
/// UPSTREAM`.
fn chains(listener: &Value) -> Vec<String> {
    let chains = listener["filter_chains"].as_array().cloned().unwrap_or_default();
    let default = listener.get("default_filter_chain").cloned();
    chains.iter().map(chain).chain(default.iter().map(chain)).collect()
}

fn chain(chain: &Value) -> String {
    let matches = &chain["filter_chain_match"];
    let mut line = Vec::new();
    if let Some(port) = matches["destination_port"].as_u64() {
        line.push(port.to_string());
    }
    for part in ["server_names", "transport_protocol", "application_protocols"] {
        match &matches[part] {
            Value::String(name) => line.push(name.clone()),
            Value::Array(_) => line.push(format!("[{}]", joined(&matches[part]))),
            _ => {}
        }
    }
    if chain.get("transport_socket").is_some() {
        line.push("mtls".into());
    }
    let config = &chain["filters"][0]["typed_config"];
    line.push(match config["cluster"].as_str() {
        Some(upstream) => format!("-> tcp {upstream}"),
        None => {
            let named = &config["rds"]["route_config_name"];
            let inline =
                &config["route_config"]["virtual_hosts"][0]["routes"][0]["route"]["cluster"];
            format!("-> http {}", named.as_str().or(inline.as_str()).unwrap_or("?"))
        }
    });
    line.join(" ")
}

fn joined(list: &Value) -> String {
    let list = list.as_array().cloned().unwrap_or_default();
    list.iter().map(text).collect::<Vec<_>>().join(" ")
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or("?").to_owned()
}

fn names(listeners: &BTreeMap<String, Value>) -> Vec<&str> {
    listeners.keys().map(String::as_str).collect()
}

/// Returns an update of cluster `east`, in network `n1`, with these services.
fn east(services: Vec<(Service, Vec<Endpoint>)>) -> RegistryUpdate {
    let east = shard("east", 1).network("n1");
    services
        .into_iter()
        .fold(east, |east, (service, endpoints)| east.with(service, endpoints))
        .built()
}

fn client() -> Proxy {
    sidecar("client.ns", "east")
}

fn udp(name: &str, number: u16, target: u16) -> Port {
    Port { protocol: Protocol::Udp, ..port(name, number, target) }
}

fn at(address: &str, port_name: &str, port: u16) -> Endpoint {
    Endpoint { port_name: port_name.into(), port, ..endpoint(address) }
}

#[test]
fn redirected_connections_are_handed_over_or_forwarded() {
    let arrival = &listeners(&context(vec![east(vec![])]), &client())["virtualOutbound"];
    assert_eq!(arrival["use_original_dst"], true);
    assert_eq!(arrival["address"]["socket_address"]["port_value"], 15001);
    assert_eq!(chains(arrival), ["15001 -> tcp BlackHoleCluster", "-> tcp PassthroughCluster"]);
}

#[test]
fn protocol_determines_the_kind_of_listener() {
    let http = "raw_buffer [http/1.1 h2c] -> http";
    let by_route =
        |route: &str| vec![format!("{http} {route}"), "-> tcp PassthroughCluster".into()];
    let bytes = |number| vec![format!("-> tcp outbound|{number}||web.ns.svc.cluster.local")];
    let sniffed = |number| {
        let mut lines = vec![format!("{http} web.ns.svc.cluster.local:{number}")];
        lines.extend(bytes(number));
        lines
    };
    let cases = [
        ("http", 80, "0.0.0.0_80", by_route("80")),
        ("http2", 81, "0.0.0.0_81", by_route("81")),
        ("grpc", 82, "0.0.0.0_82", by_route("82")),
        ("grpc-web", 83, "0.0.0.0_83", by_route("83")),
        ("tcp", 9000, "10.1.0.1_9000", bytes(9000)),
        ("https", 443, "10.1.0.1_443", bytes(443)),
        ("tls", 444, "10.1.0.1_444", bytes(444)),
        ("mysql", 3306, "10.1.0.1_3306", bytes(3306)),
        ("", 9001, "10.1.0.1_9001", sniffed(9001)),
    ];
    for (protocol, number, name, expected) in cases {
        let web = service("web.ns").vip("10.1.0.1").ports(vec![port(protocol, number, 8080)]);
        let listeners = listeners(&context(vec![east(vec![(web, vec![])])]), &client());
        assert_eq!(names(&listeners), [name, "virtualInbound", "virtualOutbound"], "{protocol}");
        assert_eq!(chains(&listeners[name]), expected, "{protocol}");
        assert_eq!(listeners[name]["bind_to_port"], false, "{protocol}");
    }
}

#[test]
fn udp_ports_aliases_and_reserved_ports_have_no_listener() {
    let reserved = [15001, 15006, 15021, 15090].map(|number| port("http", number, 1)).to_vec();
    let alias = service("other.ns")
        .vip("10.1.0.3")
        .ports(vec![port("tcp", 9000, 1)])
        .with(|it| it.resolution = Resolution::Alias(host("web.ns")));
    let context = context(vec![east(vec![
        (service("dns.ns").vip("10.1.0.1").ports(vec![udp("dns", 53, 53)]), vec![]),
        (service("agent.ns").vip("10.1.0.2").ports(reserved), vec![]),
        (alias, vec![]),
    ])]);
    assert_eq!(names(&listeners(&context, &client())), ["virtualInbound", "virtualOutbound"]);
}

#[test]
fn reserved_port_on_a_service_address_has_a_listener() {
    let web = service("web.ns").vip("10.1.0.1").ports(vec![port("tcp", 15001, 1)]);
    let listeners = listeners(&context(vec![east(vec![(web, vec![])])]), &client());
    assert!(listeners.contains_key("10.1.0.1_15001"), "{:?}", names(&listeners));
}

#[test]
fn older_of_two_services_receives_the_address() {
    let ports = || vec![port("tcp", 9000, 9000)];
    let old = service("old.ns").vip("10.1.0.1").ports(ports()).created(1);
    let new = service("new.ns").vip("10.1.0.1").ports(ports()).created(2);
    for services in
        [vec![(old.clone(), vec![]), (new.clone(), vec![])], vec![(new, vec![]), (old, vec![])]]
    {
        let listeners = listeners(&context(vec![east(services)]), &client());
        let expected = ["-> tcp outbound|9000||old.ns.svc.cluster.local"];
        assert_eq!(chains(&listeners["10.1.0.1_9000"]), expected);
    }
}

#[test]
fn listeners_use_the_address_families_of_the_proxy() {
    let web = service("web.ns")
        .vip("10.1.0.1")
        .vip("fd00::1")
        .ports(vec![port("http", 80, 8080), port("tcp", 9000, 9000)]);
    let context = context(vec![east(vec![(web, vec![])])]);
    let v4: &[&str] = &["0.0.0.0_80", "10.1.0.1_9000", "virtualInbound", "virtualOutbound"];
    let v6: &[&str] = &["::_80", "fd00::1_9000", "virtualInbound", "virtualOutbound"];
    let both: &[&str] =
        &["0.0.0.0_80", "10.1.0.1_9000", "fd00::1_9000", "virtualInbound", "virtualOutbound"];
    let cases = [
        (vec!["10.0.0.1"], v4, "0.0.0.0"),
        (vec!["fd00:1::1"], v6, "::"),
        (vec!["10.0.0.1", "fd00:1::1"], both, "0.0.0.0 ::"),
    ];
    for (addresses, expected, bound) in cases {
        let proxy = Proxy { addresses: addresses.iter().map(|a| ip(a)).collect(), ..client() };
        let listeners = listeners(&context, &proxy);
        assert_eq!(names(&listeners), expected);
        for name in ["virtualInbound", "virtualOutbound", expected[0]] {
            let listener = &listeners[name];
            let more = listener["additional_addresses"].as_array().cloned().unwrap_or_default();
            let all: Vec<_> = [listener]
                .into_iter()
                .chain(&more)
                .map(|one| text(&one["address"]["socket_address"]["address"]))
                .collect();
            assert_eq!(all.join(" "), bound, "{name}");
        }
    }
}

#[test]
fn directly_reachable_pods_of_a_headless_service_have_listeners() {
    let headless = || service("db.ns").ports(vec![port("tcp", 5432, 5432)]).headless();
    let unready = Endpoint { health: Health::Unhealthy, ..at("10.0.0.9", "tcp", 5432) };
    let gateway = service("gateway.strait-system").gateway_of("n2", "203.0.113.2");
    let context = context(vec![
        east(vec![(
            headless(),
            vec![
                at("10.0.0.1", "tcp", 5432), // the proxy itself
                at("10.0.0.2", "tcp", 5432),
                at("10.0.0.3", "other", 5432),
                at("fd00::4", "tcp", 5432),
                unready,
            ],
        )]),
        shard("west", 2)
            .network("n2")
            .with(gateway, vec![])
            .with(headless(), vec![at("10.0.0.7", "tcp", 5432)])
            .built(),
        shard("north", 3).network("n1").with(headless(), vec![at("10.0.0.8", "tcp", 5432)]).built(),
    ]);
    let listeners = listeners(&context, &client());
    assert_eq!(
        names(&listeners),
        ["10.0.0.2_5432", "10.0.0.8_5432", "virtualInbound", "virtualOutbound"]
    );
    let expected = ["-> tcp outbound|5432||db.ns.svc.cluster.local"];
    assert_eq!(chains(&listeners["10.0.0.8_5432"]), expected);
}

#[test]
fn pod_does_not_replace_the_listener_of_a_service_address() {
    let web = service("web.ns").vip("10.0.0.2").ports(vec![port("tcp", 5432, 1)]).created(9);
    let ports = || vec![port("tcp", 5432, 5432)];
    let pod = || vec![at("10.0.0.2", "tcp", 5432), at("10.0.0.3", "tcp", 5432)];
    let old = service("b.ns").ports(ports()).headless().created(1);
    let new = service("a.ns").ports(ports()).headless().created(2);
    let context = context(vec![east(vec![(web, vec![]), (new, pod()), (old, pod())])]);
    let listeners = listeners(&context, &client());
    let to = |name: &str| chains(&listeners[name]);
    assert_eq!(to("10.0.0.2_5432"), ["-> tcp outbound|5432||web.ns.svc.cluster.local"]);
    assert_eq!(to("10.0.0.3_5432"), ["-> tcp outbound|5432||b.ns.svc.cluster.local"]);
}

#[test]
fn shared_listeners_are_equal_within_a_class() {
    let context = context(vec![east(vec![
        (service("web.ns").vip("10.1.0.1"), vec![]),
        (service("db.ns").vip("10.1.0.2").ports(vec![port("", 5432, 5432)]), vec![]),
    ])]);
    let shared = |proxy: &Proxy, network: &str| {
        let view = ViewKey::of(proxy, network.into(), Role::Client);
        let addresses = addresses(
            &context,
            &view.cluster,
            (&view.namespace, &view.selection),
            (view.ipv4, view.ipv6),
        );
        outbound::shared(
            &context,
            (&class_for(&view), ListenerFormat::for_proxy(proxy)),
            &addresses,
        )
    };
    let other = Proxy {
        addresses: vec![ip("10.0.0.77")],
        node_name: Some("node".into()),
        istio_version: Some("1.30.0".into()),
        ..sidecar("other.ns", "east")
    };
    assert_eq!(shared(&client(), "n1"), shared(&other, "n2"));
}

/// Returns a mesh with a pod `app` and the service for these ports of it, and the pod's sidecar.
fn serving(ports: Vec<Port>) -> (Arc<PushContext>, Proxy) {
    let app = service("app.ns").vip("10.1.0.1").ports(ports);
    let mut pod = workload("client.ns", "10.0.0.1", &[("app", "app")]);
    Arc::make_mut(&mut pod.1.profile).named_ports.insert("web".into(), 8081);
    let context = context(vec![shard("east", 1).network("n1").with(app, vec![]).pod(pod).built()]);
    (context, client())
}

/// Returns the inbound chains for the ports of a workload, without the chains that every sidecar
/// has.
fn inbound(ports: Vec<Port>) -> Vec<String> {
    let (context, proxy) = serving(ports);
    let all = chains(&listeners(&context, &proxy)["virtualInbound"]);
    let is_specific = |line: &&String| !line.contains("Inbound") && !line.contains("BlackHole");
    all.iter().filter(is_specific).cloned().collect()
}

#[test]
fn inbound_chains_accept_mtls_and_plain_text_by_protocol() {
    let mesh = "[istio istio-peer-exchange istio-http/1.0 istio-http/1.1 istio-h2]";
    let to = "inbound|8080||";
    let http =
        vec![format!("8080 tls {mesh} mtls -> http {to}"), format!("8080 raw_buffer -> http {to}")];
    let bytes = vec![
        format!("8080 tls {mesh} mtls -> tcp {to}"),
        format!("8080 raw_buffer -> tcp {to}"),
        format!("8080 tls -> tcp {to}"),
    ];
    let undeclared = vec![
        format!("8080 tls [istio-http/1.0 istio-http/1.1 istio-h2] mtls -> http {to}"),
        format!("8080 tls [istio-peer-exchange istio] mtls -> tcp {to}"),
        format!("8080 raw_buffer [http/1.1 h2c] -> http {to}"),
        format!("8080 raw_buffer -> tcp {to}"),
        format!("8080 tls -> tcp {to}"),
    ];
    let cases = [
        ("http", &http),
        ("grpc", &http),
        ("grpc-web", &http),
        ("tcp", &bytes),
        ("https", &bytes),
        ("mysql", &bytes),
        ("", &undeclared),
    ];
    for (protocol, expected) in cases {
        assert_eq!(&inbound(vec![port(protocol, 80, 8080)]), expected, "{protocol}");
    }
}

#[test]
fn each_port_of_the_workload_has_inbound_chains_once() {
    let named = Port { target: TargetPort::Name("web".into()), ..port("tcp-x", 82, 1) };
    let ports = vec![
        udp("dns", 53, 8080),
        port("http", 80, 8080),
        port("tcp", 81, 8080),
        named,
        port("http-loop", 15006, 15006),
    ];
    let lines = inbound(ports);
    let to = |port| lines.iter().filter(|line| line.starts_with(port)).count();
    assert_eq!((to("8080"), to("8081"), lines.len()), (2, 3, 5), "{lines:?}");
}

#[test]
fn inbound_listener_prevents_loops_and_forwards_other_ports() {
    let (context, proxy) = serving(vec![]);
    let to = "InboundPassthroughCluster";
    assert_eq!(
        chains(&listeners(&context, &proxy)["virtualInbound"]),
        [
            "15006 -> tcp BlackHoleCluster".to_owned(),
            format!("tls [istio-http/1.0 istio-http/1.1 istio-h2] mtls -> http {to}"),
            format!("tls [istio-peer-exchange istio] mtls -> tcp {to}"),
            format!("raw_buffer [http/1.1 h2c] -> http {to}"),
            format!("raw_buffer -> tcp {to}"),
            format!("tls -> tcp {to}"),
        ]
    );
}

#[test]
fn mtls_requires_a_certificate_and_accepts_no_alpn_of_the_mesh() {
    let (context, proxy) = serving(vec![port("http", 80, 8080)]);
    let tls = |proxy: &Proxy| {
        listeners(&context, proxy)["virtualInbound"]["filter_chains"][1]["transport_socket"]
            ["typed_config"]
            .clone()
    };
    let plain = tls(&proxy);
    assert_eq!(plain["require_client_certificate"], true);
    let common = &plain["common_tls_context"];
    assert_eq!(joined(&common["alpn_protocols"]), "h2 http/1.1");
    assert_eq!(common["tls_params"]["tls_minimum_protocol_version"], "TLSv1_2");
    assert_eq!(common["tls_params"]["tls_maximum_protocol_version"], "TLSv1_3");
    let certificate = &common["tls_certificate_sds_secret_configs"][0];
    assert_eq!(certificate, &serde_json::json!({"name": "default"}));

    let agent = tls(&Proxy { istio_version: Some("1.30.0".into()), ..proxy });
    let source = &agent["common_tls_context"]["tls_certificate_sds_secret_configs"][0]["sds_config"]
        ["api_config_source"]["grpc_services"][0]["envoy_grpc"]["cluster_name"];
    assert_eq!(source, "sds-grpc");
}

#[test]
fn server_accepts_only_clients_of_the_meshs_trust_domains() {
    let member = |trust_domain: &str| KnownCluster {
        trust_domain: trust_domain.into(),
        ..strait_model::testing::member(None)
    };
    let members = |domains: &[(&str, &str)]| {
        let members = domains.iter().map(|(id, domain)| ((*id).into(), member(domain)));
        MeshEvent::Clusters(Arc::new(KnownClusters { clusters: members.collect() }))
    };
    let config = MeshConfig::parse("trustDomainAliases: [old.example]", &Default::default());
    let config = config.expect("valid");
    let mut mesh = mesh();
    mesh.apply(MeshEvent::MeshConfig(Arc::new(config)));
    mesh.apply(members(&[("east", "cluster.local"), ("west", "west.example"), ("new", "")]));
    mesh.apply(MeshEvent::Registry(east(vec![])));
    mesh.apply(MeshEvent::Complete);
    let accepted = |mesh: &mut MeshState| {
        let (context, changes) = mesh.next_version().expect("a version");
        assert!(changes.is_everything(), "it concerns every server");
        let chain = &listeners(&context, &client())["virtualInbound"]["filter_chains"][1];
        let common = &chain["transport_socket"]["typed_config"]["common_tls_context"];
        let context = &common["combined_validation_context"]["default_validation_context"];
        let peers = context["match_typed_subject_alt_names"].as_array().cloned();
        let prefix = |peer: &Value| match text(&peer["san_type"]).as_str() {
            "URI" => text(&peer["matcher"]["prefix"]),
            other => panic!("{other}: {peer}"),
        };
        peers.unwrap_or_default().iter().map(prefix).collect::<Vec<_>>()
    };
    let mesh_domains = ["spiffe://cluster.local/", "spiffe://old.example/"];
    assert_eq!(accepted(&mut mesh), [&mesh_domains[..], &["spiffe://west.example/"]].concat());
    mesh.apply(members(&[("east", "cluster.local"), ("new", "new.example")]));
    assert_eq!(
        accepted(&mut mesh),
        ["spiffe://cluster.local/", "spiffe://new.example/", "spiffe://old.example/"]
    );
}

#[test]
fn http_is_detected_only_on_ports_without_a_declared_protocol() {
    let disabled = |ports| {
        let (context, proxy) = serving(ports);
        listeners(&context, &proxy)["virtualInbound"]["listener_filters"][2]["filter_disabled"]
            .clone()
    };
    let range =
        |port: u16| serde_json::json!({"destination_port_range": {"start": port, "end": port + 1}});
    assert_eq!(disabled(vec![port("", 80, 8080)]), Value::Null);
    assert_eq!(disabled(vec![port("", 80, 8080), port("tcp", 81, 8081)]), range(8081));
    assert_eq!(
        disabled(vec![port("http", 80, 8080), port("tcp", 81, 8081)]),
        serde_json::json!({"or_match": {"rules": [range(8080), range(8081)]}})
    );
    assert!(any_port(&[]).is_none());
}

fn router() -> Proxy {
    Proxy { kind: ProxyType::Router, ..sidecar("gateway.ns", "east") }
}

fn east_west_gateway() -> Proxy {
    Proxy { labels: labels(&[("topology.istio.io/network", "n1")]), ..router() }
}

#[test]
fn router_without_gateways_has_no_listeners() {
    let context = context(vec![east(vec![(service("web.ns").vip("10.1.0.1"), vec![])])]);
    assert!(listeners(&context, &router()).is_empty());
    assert!(route(&context, &router(), "80").get("virtual_hosts").is_none());
}

#[test]
fn gateway_has_one_chain_for_each_exported_service_and_port() {
    let here = service("here.ns")
        .vip("10.1.0.2")
        .with(|it| it.export_to = ExportTo::Namespaces(vec!["ns".into()]));
    let alias = service("alias.ns").with(|it| it.resolution = Resolution::Alias(host("web.ns")));
    let ports = vec![port("http", 80, 8080), port("tcp", 9000, 9000), udp("dns", 53, 53)];
    let context = context(vec![east(vec![
        (service("web.ns").vip("10.1.0.1").ports(ports), vec![]),
        (here, vec![]),
        (service("local.kube-system").vip("10.1.0.3"), vec![]),
        (alias, vec![]),
        (service("db.ns").headless(), vec![]),
    ])]);
    let listeners = listeners(&context, &east_west_gateway());
    assert_eq!(names(&listeners), ["0.0.0.0_15443"]);
    let listener = &listeners["0.0.0.0_15443"];
    let line = |sni: &str| {
        let alpn = "[istio istio-peer-exchange istio-http/1.0 istio-http/1.1 istio-h2]";
        format!("[{sni}] {alpn} -> tcp {sni}")
    };
    assert_eq!(
        chains(listener),
        [
            line("outbound_.80_._.db.ns.svc.cluster.local"),
            line("outbound_.80_._.web.ns.svc.cluster.local"),
            line("outbound_.9000_._.web.ns.svc.cluster.local"),
        ]
    );
    assert!(listener.get("default_filter_chain").is_none());
    assert!(listener.get("bind_to_port").is_none());
}

#[test]
fn gateway_without_exported_services_has_no_listener() {
    let context = context(vec![east(vec![])]);
    assert!(listeners(&context, &east_west_gateway()).is_empty());
    let settings = TrafficSettings::for_mesh(&context.mesh);
    let view = ViewKey::of(&east_west_gateway(), strait_model::NetworkId::default(), Role::Gateway);
    assert!(gateway::listener(&context, &settings, &view, 15443).is_none());
}

#[test]
fn gateway_has_an_upstream_cluster_for_each_chain() {
    let context = context(vec![east(vec![
        (service("web.ns").vip("10.1.0.1"), vec![]),
        (service("db.ns").headless().ports(vec![port("", 1, 1), udp("", 2, 2)]), vec![]),
    ])]);
    let proxy = east_west_gateway();
    let listener = &listeners(&context, &proxy)["0.0.0.0_15443"];
    let targets: Vec<_> = chains(listener)
        .iter()
        .filter_map(|line| line.split("-> tcp ").nth(1).map(str::to_owned))
        .collect();
    let clusters = list_resources(&context, &proxy, ResourceType::Cluster);
    assert_eq!(targets, clusters.keys().cloned().collect::<Vec<_>>());
}

#[test]
fn service_has_all_names_that_the_resolver_completes() {
    let far = service("web.far").vip("10.1.0.2");
    let v6 = service("six.ns").vip("fd00::1");
    let context = context(vec![east(vec![
        (service("web.ns").vip("10.1.0.1"), vec![]),
        (far, vec![]),
        (v6, vec![]),
        (service("db.ns").headless(), vec![]),
    ])]);
    let dual = Proxy { addresses: vec![ip("10.0.0.1"), ip("fd00:1::1")], ..client() };
    assert_eq!(
        domains(&context, &dual, "80"),
        [
            "db.ns.svc.cluster.local:80: db.ns.svc.cluster.local db.ns.svc.cluster.local. db db.ns \
             db.ns.svc *.db.ns.svc.cluster.local *.db.ns.svc.cluster.local. *.db *.db.ns *.db.ns.svc",
            "six.ns.svc.cluster.local:80: six.ns.svc.cluster.local six.ns.svc.cluster.local. six \
             six.ns six.ns.svc [fd00::1]",
            "web.far.svc.cluster.local:80: web.far.svc.cluster.local web.far.svc.cluster.local. \
             web.far web.far.svc 10.1.0.2",
            "web.ns.svc.cluster.local:80: web.ns.svc.cluster.local web.ns.svc.cluster.local. web \
             web.ns web.ns.svc 10.1.0.1",
            "allow_any: *",
        ]
    );
}

#[test]
fn an_alias_is_another_name_of_its_target() {
    let alias = service("www.ns").with(|it| it.resolution = Resolution::Alias(host("web.ns")));
    let context =
        context(vec![east(vec![(service("web.ns").vip("10.1.0.1"), vec![]), (alias, vec![])])]);
    let lines = domains(&context, &client(), "80");
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].starts_with("web.ns") && lines[0].contains(" www.ns.svc "), "{lines:?}");
}

#[test]
fn domain_belongs_to_the_older_service() {
    let hostname =
        |name: &str, created| service("x.ns").created(created).with(|it| it.hostname = name.into());
    let context = context(vec![east(vec![
        (hostname("WEB.ns", 2), vec![]),
        (hostname("web.ns.svc.cluster.local", 1), vec![]),
        (hostname("web.ns", 3), vec![]),
        (hostname("bad name\n", 0), vec![]),
    ])]);
    assert_eq!(
        domains(&context, &client(), "80"),
        [
            "web.ns.svc.cluster.local:80: web.ns.svc.cluster.local web.ns.svc.cluster.local. web \
             web.ns.svc",
            "WEB.ns:80: WEB.ns WEB.ns.",
            "allow_any: *",
        ]
    );
}

#[test]
fn full_name_is_never_a_short_name_of_another_host() {
    let entry = service("x.ns").created(9).with(|it| it.hostname = "web.ns".into());
    let (older, vip) = (service("web.ns").created(1).vip("10.1.0.1"), "10.1.0.1");
    let context = context(vec![east(vec![(older, vec![]), (entry, vec![])])]);
    let lines = domains(&context, &client(), "80");
    assert_eq!(
        lines[0],
        format!(
            "web.ns.svc.cluster.local:80: web.ns.svc.cluster.local web.ns.svc.cluster.local. web web.ns.svc {vip}"
        )
    );
    assert_eq!(lines[1], "web.ns:80: web.ns web.ns.");
    // A host of another namespace takes no name from the service.
    let namespaces = |owner: &str, proxy: Proxy| {
        let entry = service(&format!("x.{owner}")).created(9);
        let entry = entry.with(|it| it.hostname = "web.ns".into());
        let web = service("web.ns").created(1);
        let context = self::context(vec![east(vec![(web, vec![]), (entry, vec![])])]);
        let lines = domains(&context, &proxy, "80");
        let is_web = |line: &&String| line.starts_with("web.ns.svc.cluster.local:80:");
        let line = lines.iter().find(is_web).expect("the service's").clone();
        (line.split(' ').any(|name| name == "web.ns"), line)
    };
    let (has_it, line) = namespaces("bank", client());
    assert!(has_it, "the service keeps its short name: {line}");
    let bank_client =
        Proxy { dns_domain: "bank.svc.cluster.local".into(), ..sidecar("web-1.bank", "east") };
    let (has_it, line) = namespaces("bank", bank_client);
    assert!(!has_it, "but for clients of the entry's own namespace: {line}");
}

#[test]
fn services_of_other_ports_and_protocols_are_not_in_a_route() {
    let ports = vec![port("http", 81, 1), port("tcp", 80, 1), port("", 82, 1)];
    let web = service("web.ns").vip("10.1.0.1").ports(ports);
    let context = context(vec![east(vec![(web, vec![])])]);
    let hosts = |name| domains(&context, &client(), name).len();
    assert_eq!([hosts("80"), hosts("81"), hosts("82")], [1, 2, 2]);
}

#[test]
fn route_of_one_service_matches_every_host() {
    let web = service("web.ns").vip("10.1.0.1").ports(vec![port("", 82, 1)]);
    let context = context(vec![east(vec![(web, vec![])])]);
    let name = "web.ns.svc.cluster.local:82";
    let route = route(&context, &client(), name);
    assert_eq!(domains(&context, &client(), name), [format!("{name}: *")]);
    let action = &route["virtual_hosts"][0]["routes"][0]["route"];
    assert_eq!(action["cluster"], "outbound|82||web.ns.svc.cluster.local");
    assert_eq!(action["timeout"], "0s");
    assert_eq!(action["retry_policy"]["num_retries"], 2);
    assert_eq!(route["validate_clusters"], false);
}

#[test]
fn response_for_an_unknown_route_name_has_no_routes() {
    let context = context(vec![east(vec![(service("web.ns").vip("10.1.0.1"), vec![])])]);
    let unnamed = ["", "x", "-1", "65536", "nobody.ns:80", "web.ns.svc.cluster.local:99", ":"];
    // Each port has only one valid name.
    let renamed =
        ["+80", "080", "0", "web.ns.svc.cluster.local:080", "web.ns.svc.cluster.local:+80"];
    for name in unnamed.into_iter().chain(renamed) {
        let route = route(&context, &client(), name);
        assert_eq!(route["name"].as_str().unwrap_or_default(), name);
        assert!(route.get("virtual_hosts").is_none(), "{name}");
    }
}
