//! Tests of the conversion of instances, and of the reports of a datacentre.

use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};

use super::fake::instance;
use crate::registry::consul::catalog::{self, Instances};
use crate::registry::consul::convert::{self, Converted};
use crate::registry::consul::index::{CatalogOutcome, ConsulIndex};
use crate::registry::consul::{AddressError, ConsulAddress};
use strait_base::mass_deletion::CONFIRM_AFTER;
use strait_model::registry::{ServiceRecord, ShardChange};
use strait_model::{Health, Protocol, Resolution, TlsMode};

fn read(instances: &[Value]) -> Instances {
    catalog::instances(json!(instances).to_string().as_bytes()).expect("a list")
}

fn convert(instances: &[Value]) -> Converted {
    convert::service(&"Web".into(), "dc1", &read(instances).valid)
}

fn record(instances: &[Value]) -> ServiceRecord {
    let converted = convert(instances);
    assert_eq!(converted.invalid, Vec::<String>::new());
    converted.record.expect("a service")
}

/// Creates an instance with a change.
fn with(path: &str, value: Value) -> Value {
    let mut changed = instance("web-1", "10.0.0.1", 8080);
    let (parent, key) = path.rsplit_once('/').expect("a path");
    changed.pointer_mut(parent).expect("there")[key] = value;
    changed
}

#[test]
fn a_name_is_a_host_and_its_instances_are_endpoints() {
    let record = record(&[instance("web-1", "10.0.0.1", 8080), instance("web-2", "", 8081)]);
    let service = &record.service;
    assert_eq!(service.hostname.as_str(), "web.service.consul");
    assert_eq!((&*service.name, service.namespace.as_str()), ("Web", "default"));
    let ports: Vec<_> =
        service.ports.iter().map(|port| (&*port.name, port.number, port.protocol)).collect();
    assert_eq!(ports, [("tcp-8080", 8080, Protocol::Tcp), ("tcp-8081", 8081, Protocol::Tcp)]);
    assert_eq!(service.resolution, Resolution::ClientSide);
    assert!(!service.mesh_external && service.vips.is_empty() && service.labels.is_empty());
    let endpoints: Vec<_> = record
        .endpoints
        .iter()
        .map(|one| (format!("{}:{}", one.address, one.port), one.port_name.to_string()))
        .collect();
    let expected = [("10.0.0.1:8080", "tcp-8080"), ("10.9.9.9:8081", "tcp-8081")];
    assert_eq!(endpoints, expected.map(|(a, b)| (a.to_owned(), b.to_owned())));
    let first = record.endpoints.iter().next().expect("one");
    assert_eq!(first.workload.map(|key| key.to_string()).as_deref(), Some("web-1.default"));
}

#[test]
fn checks_decide_health_and_weight() {
    let weights = |passing: i64, warning: i64| json!({"Passing": passing, "Warning": warning});
    for (statuses, weights, health, weight) in [
        (vec![], weights(1, 1), Health::Healthy, 1),
        (vec!["passing", "passing"], weights(10, 1), Health::Healthy, 10),
        (vec!["passing", "warning"], weights(10, 2), Health::Healthy, 2),
        (vec!["passing", "warning"], weights(10, 0), Health::Unhealthy, 1),
        (vec!["passing", "critical"], weights(10, 2), Health::Unhealthy, 1),
        (vec!["maintenance"], weights(1, 1), Health::Unhealthy, 1),
        (vec!["passing"], weights(-5, 1), Health::Healthy, 1),
        (vec!["passing"], weights(i64::MAX, 1), Health::Healthy, 65_535),
        (vec!["passing"], Value::Null, Health::Healthy, 1),
    ] {
        let mut weighted = with("/Service/Weights", weights);
        weighted["Checks"] = statuses.iter().map(|status| json!({"Status": status})).collect();
        let record = record(&[weighted]);
        let endpoint = record.endpoints.iter().next().expect("one");
        assert_eq!((endpoint.health, endpoint.weight), (health, weight), "{statuses:?}");
    }
}

#[test]
fn tags_and_metadata_define_protocol_network_tls_and_port() {
    let mut tagged =
        with("/Service/Meta", json!({"protocol": "tcp", "network": "n0", "zone": "z9"}));
    tagged["Service"]["Tags"] = json!([
        "plain",
        "protocol|http",
        "topology.istio.io/network|n1",
        "security.istio.io/tlsMode|istio",
        "service-port|80",
    ]);
    let record = record(&[tagged]);
    let port = &record.service.ports[0];
    assert_eq!((&*port.name, port.number, port.protocol), ("http-80", 80, Protocol::Http));
    let endpoint = record.endpoints.iter().next().expect("one");
    assert_eq!((endpoint.port, &**endpoint.port_name), (8080, "http-80"));
    assert_eq!(endpoint.network_label.map(|network| network.as_str()), Some("n1"));
    assert_eq!(endpoint.tls_mode, TlsMode::Istio);
    assert_eq!(endpoint.locality.to_string(), "dc1/z9");
}

#[test]
fn declared_protocol_of_any_instance_precedes_the_default() {
    let declaring = |id: &str, protocol: &str| {
        let mut declaring = instance(id, "10.0.0.2", 80);
        declaring["Service"]["Meta"] = json!({ "protocol": protocol });
        declaring
    };
    let silent = instance("a", "10.0.0.1", 80);
    let converted = convert(&[silent.clone(), declaring("b", "http"), declaring("c", "grpc")]);
    let port = &converted.record.expect("a service").service.ports[0];
    assert_eq!((&*port.name, port.protocol), ("http-80", Protocol::Http));
    let fact = r#"instance "c": port 80 has protocol HTTP, which instance "b" declares"#;
    assert_eq!(converted.invalid, [fact]);
    let unknown = convert(&[silent, declaring("b", "htpp"), declaring("c", "http")]);
    assert_eq!(unknown.record.expect("a service").service.ports[0].protocol, Protocol::Http);
    assert_eq!(unknown.invalid, [r#"instance "b": protocol "htpp" is unknown and ignored"#]);
}

#[test]
fn locality_comes_from_the_instance_then_the_node_then_the_datacentre() {
    let place = |zone: &str| json!({"Region": "eu", "Zone": zone});
    let mut both = with("/Service/Locality", place("a"));
    both["Node"]["Locality"] = place("b");
    for (located, expected) in [
        (both, "eu/a"),
        (with("/Node/Locality", place("b")), "eu/b"),
        (with("/Node/Meta", json!({"region": "us", "zone": "c"})), "us/c"),
        (instance("web-1", "10.0.0.1", 80), "dc1"),
    ] {
        let record = record(&[located]);
        let endpoint = record.endpoints.iter().next().expect("one");
        assert_eq!(endpoint.locality.to_string(), expected);
    }
}

#[test]
fn instances_inside_and_outside_the_mesh_do_not_mix() {
    let outside = |address: &str| {
        let mut outside = instance("out", address, 443);
        outside["Node"]["Meta"] = json!({"external": "true"});
        outside
    };
    let only = record(&[outside("api.example.com")]);
    assert!(only.service.mesh_external);
    let Resolution::ByName(found) = &only.service.resolution else { panic!("by name") };
    assert_eq!(&*found.endpoints[0].address, "api.example.com");
    assert_eq!(found.endpoints[0].ports.get("tcp-443"), Some(&443));
    let literal = record(&[outside("203.0.113.7")]);
    assert!(literal.service.mesh_external && literal.service.resolution == Resolution::ClientSide);

    let mixed = convert(&[outside("api.example.com"), instance("in", "10.0.0.1", 80)]);
    let record = mixed.record.expect("a service");
    assert!(!record.service.mesh_external && record.service.resolution == Resolution::ClientSide);
    assert_eq!((record.endpoints.len(), record.service.ports.len()), (1, 1));
    assert!(mixed.invalid[0].contains("\"out\" is outside the mesh"), "{:?}", mixed.invalid);
}

#[test]
fn invalid_instance_does_not_affect_others() {
    let valid = instance("good", "10.0.0.1", 80);
    for (invalid, reason) in [
        (with("/Service/Port", json!(70_000)), "port 70000"),
        (with("/Service/Port", json!(-1)), "port -1"),
        (with("/Service/Address", json!("0.0.0.0")), "not a valid instance address"),
        (with("/Service/Address", json!("a b")), "neither an IP address nor a DNS name"),
        (with("/Service/Address", json!("name.example")), "has a host name as address"),
        (with("/Service/Tags", json!(["service-port|x"])), "service-port \"x\" is not a port"),
    ] {
        let converted = convert(&[valid.clone(), invalid]);
        assert_eq!(converted.record.expect("a service").endpoints.len(), 1, "{reason}");
        assert!(converted.invalid[0].contains(reason), "{:?}", converted.invalid);
    }
    for invalid in [json!(7), json!({"Service": {"Port": "x"}}), json!({"Checks": 1})] {
        let read = read(&[valid.clone(), invalid]);
        assert_eq!((read.valid.len(), read.invalid.len()), (1, 1));
    }
    for invalid in ["", "{", "[1", "{}", "7", "\"x\""] {
        catalog::instances(invalid.as_bytes()).expect_err(invalid);
    }
    assert!(catalog::instances(b"null").expect("nothing").valid.is_empty());
    // Consul's own proxies, and instances without a port, are omitted without a report.
    for none in [with("/Service/Kind", json!("connect-proxy")), instance("i", "10.0.0.1", 0)] {
        assert_eq!(convert(&[none]), Converted::default());
    }
}

#[test]
fn order_of_arrival_changes_nothing() {
    let all = [
        instance("a", "10.0.0.1", 80),
        instance("b", "10.0.0.2", 81),
        with("/Service/Tags", json!(["protocol|http"])),
    ];
    let mut turned = all.clone();
    turned.rotate_left(1);
    assert_eq!(record(&all), record(&turned));
}

#[test]
fn virtual_address_from_consul_is_the_vip() {
    let tagged = json!({"consul-virtual": {"Address": "240.0.0.7", "Port": 80}, "wan": {"Address": "1.2.3.4"}});
    let record = record(&[with("/Service/TaggedAddresses", tagged)]);
    assert_eq!(record.service.vips, ["240.0.0.7".parse::<std::net::IpAddr>().expect("an address")]);
}

fn names(names: &[&str]) -> Vec<Arc<str>> {
    names.iter().map(|name| Arc::from(*name)).collect()
}

#[test]
fn first_report_waits_until_every_service_was_read_or_failed_three_times() {
    let mut index = ConsulIndex::new("dc1");
    assert!(!index.has_news());
    let now = Instant::now();
    index.catalogue(names(&["a", "b"]), now);
    index.service(&"a".into(), read(&[instance("a", "10.0.0.1", 80)]));
    for _ in 0..2 {
        index.failed(&"b".into(), "status 500");
        assert!(index.take_change().is_none());
    }
    index.failed(&"b".into(), "status 500");
    let Some(ShardChange::Reset(contents)) = index.take_change() else { panic!("a reset") };
    assert_eq!(contents.services.len(), 1);
    assert!(index.take_change().is_none());
    index.service(&"b".into(), read(&[instance("b", "10.0.0.2", 80)]));
    let Some(ShardChange::Update(contents)) = index.take_change() else { panic!("an update") };
    assert_eq!(
        contents.services.keys().map(|host| host.as_str()).collect::<Vec<_>>(),
        ["b.service.consul"]
    );
}

#[test]
fn sudden_loss_is_accepted_when_the_second_response_confirms_it() {
    let mut index = ConsulIndex::new("dc1");
    let start = Instant::now();
    let later = start + CONFIRM_AFTER;
    let all = ["a", "b", "c"];
    index.catalogue(names(&all), start);
    for name in all {
        assert!(index.service(&name.into(), read(&[instance("i", "10.0.0.1", 80)])));
    }
    assert!(index.take_change().is_some());

    // Losing two of three services is a loss of most, though not all.
    let fact = "the catalogue has 1 of 3 known objects; waiting for confirmation";
    let doubtful = CatalogOutcome::Doubtful(fact.to_owned());
    assert_eq!(index.catalogue(names(&["a"]), start), doubtful);
    assert!(index.take_change().is_none());
    let gone = names(&["b", "c"]);
    assert_eq!(index.catalogue(names(&["a"]), later), CatalogOutcome::Yes { come: vec![], gone });
    assert!(index.take_change().is_some());
}

#[test]
fn response_that_lacks_what_the_token_may_not_read_removes_nothing() {
    let mut index = ConsulIndex::new("dc1");
    let start = Instant::now();
    let later = start + CONFIRM_AFTER;
    let yes = |come: &[&str]| CatalogOutcome::Yes { come: names(come), gone: vec![] };
    assert_eq!(index.catalogue(names(&[]), start), yes(&[]));
    assert!(index.warnings()[0].starts_with("STR0321: the catalogue is empty"));
    index.catalogue(names(&["a", "b"]), start);
    assert!(index.warnings().is_empty());
    assert!(index.service(&"a".into(), read(&[instance("i", "10.0.0.1", 80)])));
    // The first response is processed, so that the other services are not delayed.
    assert!(!index.service(&"b".into(), read(&[])));
    assert!(index.take_change().is_some());
    assert!(!index.service(&"a".into(), read(&[])));
    assert!(matches!(index.catalogue(names(&[]), start), CatalogOutcome::Denied(_)));
    assert!(matches!(index.catalogue(names(&[]), later), CatalogOutcome::Denied(_)));
    assert!(!index.service(&"a".into(), read(&[])));
    assert!(index.take_change().is_none());
    let warnings = index.warnings();
    assert_eq!(warnings.iter().filter(|text| text.contains("STR0321")).count(), 2, "{warnings:?}");
    // Removed by the catalogue.
    assert_eq!(
        index.catalogue(names(&["b"]), later),
        CatalogOutcome::Yes { come: vec![], gone: names(&["a"]) }
    );
    assert!(index.take_change().is_some());
}

#[test]
fn names_with_a_shared_or_invalid_host_are_reported() {
    let mut index = ConsulIndex::new("dc1");
    let now = Instant::now();
    let outcome = index.catalogue(names(&["Web", "web", "a b", "ok"]), now);
    assert_eq!(outcome, CatalogOutcome::Yes { come: names(&["Web", "ok"]), gone: vec![] });
    assert_eq!(index.warnings().len(), 2, "{:?}", index.warnings());
    let outcome = index.catalogue(names(&["web", "ok"]), now);
    assert_eq!(outcome, CatalogOutcome::Yes { come: names(&["web"]), gone: names(&["Web"]) });
}

#[test]
fn addresses_are_urls_with_known_options_and_no_credential() {
    let address: ConsulAddress =
        "https://consul.example:8501/prefix/?dc=a&dc=b_1&name=old&token-file=/t&ca-file=/c"
            .parse()
            .expect("an address");
    assert_eq!(address.to_string(), "https://consul.example:8501/prefix");
    assert_eq!((address.datacentres.len(), address.name.as_str()), (2, "old"));
    assert_eq!(address.token_file.as_deref(), Some(std::path::Path::new("/t")));
    for (bad, error) in [
        ("consul:8500", AddressError::Url),
        ("ftp://consul", AddressError::Url),
        ("", AddressError::Url),
        ("http://u:p@consul", AddressError::UserInfo),
        ("http://consul?token=x", AddressError::Option("token".into())),
        ("http://consul?dc=", AddressError::Value { option: "dc", value: String::new() }),
        ("http://consul?dc=a/b", AddressError::Value { option: "dc", value: "a/b".into() }),
        ("http://consul?name=A", AddressError::Value { option: "name", value: "A".into() }),
    ] {
        assert_eq!(bad.parse::<ConsulAddress>(), Err(error), "{bad}");
    }
}
